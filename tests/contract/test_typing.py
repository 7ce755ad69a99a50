"""What a type checker tells users of the package: mistakes are errors, results have their type."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .sources import PACKAGE

PREAMBLE = """
from datetime import timedelta

from flowfabric import App, Context, Retry, Run, Task

app = App()


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(lane="mail", retry=Retry(max_retries=4), needs={"smtp"})
async def send_mail(to: str, *, body: str) -> str:
    return to + body


@app.task
def shout(text: str) -> list[str]:
    return [text.upper()]


@app.task
async def with_context(ctx: Context, user_id: int) -> set[int]:
    return {user_id}
"""

# A comment on a line says what mypy must answer for it: R: the type revealed, E: a part of the
# error. Any line without a comment must be silent.
GOOD = """
async def good() -> None:
    reveal_type(await add.submit(1, 2))  # R: Run[int]
    reveal_type(await (await add.submit(1)).result())  # R: int
    reveal_type(await (await add.submit(1)).result(timeout=30))  # R: int
    reveal_type(await (await send_mail.submit("a@x", body="?")).result())  # R: str
    reveal_type(await (await shout.submit("a")).result())  # R: list[str]
    reveal_type(await (await with_context.submit(7)).result())  # R: set[int]
    reveal_type(await add(1, 2))  # R: int
    reveal_type(shout("a"))  # R: list[str]
    reveal_type(await add.using(priority=3, delay=timedelta(1)).submit(1))  # R: Run[int]


def good_sync() -> None:
    reveal_type(add.submit_sync(1))  # R: Run[int]
    reveal_type(shout.submit_sync(text="a").result_sync())  # R: list[str]
"""
BAD = """
async def bad() -> None:
    await add.submit("1")  # E: incompatible type "str"; expected "int"
    await add.submit()  # E: Missing positional argument "a"
    await add.submit(1, 2, 3)  # E: Too many arguments
    await add.submit(1, c=2)  # E: Unexpected keyword argument "c"
    await send_mail.submit("a@x", "?")  # E: Too many positional arguments
    await send_mail.submit("a@x")  # E: Missing named argument "body"
    await with_context.submit("7")  # E: incompatible type "str"; expected "int"
    number: str = await (await add.submit(1)).result()  # E: Incompatible types in assignment
    await add.using(priority="high").submit(1)  # E: incompatible type "str"
    await add.using(hurry=True).submit(1)  # E: Unexpected keyword argument "hurry"
    add.submit_sync("1")  # E: incompatible type "str"; expected "int"


@app.task(lane=3)  # E: No overload variant
async def wrong_lane() -> None: ...
"""


@pytest.fixture(scope="module")
def answers(request, tmp_path_factory):
    """One run of mypy over all of it: (line, severity, message)."""
    file = tmp_path_factory.mktemp("typing") / "snippets.py"
    file.write_text(PREAMBLE + GOOD + BAD, encoding="utf-8")
    cache = request.config.cache.mkdir("mypy")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--config-file", "", "--cache-dir", str(cache), "--hide-error-context"),
            str(file),
        ],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(PACKAGE.parent), "PATH": ""},
        cwd=file.parent,
    )
    assert finished.returncode in (0, 1), finished.stdout + finished.stderr
    found = []
    for line in finished.stdout.splitlines():
        match = re.match(r"snippets\.py:(\d+): (error|note): (.*)", line)
        assert match, f"about something else: {line}"
        found.append((int(match[1]), match[2], match[3]))
    return found


def expectations(mark):
    return [
        pytest.param(number, match[1], id=line.split("#")[0].strip())
        for number, line in enumerate((PREAMBLE + GOOD + BAD).splitlines(), 1)
        if (match := re.search(rf"# {mark}: (.*)$", line))
    ]


@pytest.mark.parametrize(("number", "expected"), expectations("R"))
def test_a_result_has_its_type(answers, number, expected):
    revealed = [text for line, _, text in answers if line == number]
    assert len(revealed) == 1, revealed
    found = revealed[0].removeprefix('Revealed type is "').removesuffix('"')
    # versions of mypy differ in how far they spell a name out
    assert re.sub(r"\b(?:builtins|flowfabric[\w.]*)\.", "", found) == expected


@pytest.mark.parametrize(("number", "expected"), expectations("E"))
def test_a_mistake_is_an_error(answers, number, expected):
    errors = [text for line, severity, text in answers if line == number and severity == "error"]
    assert errors, "mypy is content"
    assert expected in errors[0]


def test_everything_else_is_fine(answers):
    marked = {param.values[0] for mark in "RE" for param in expectations(mark)}
    assert [answer for answer in answers if answer[0] not in marked] == []
