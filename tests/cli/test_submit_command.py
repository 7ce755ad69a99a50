"""`flowfabric submit` and `flowfabric result`: arguments, options, results and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cli.operating import Commands, Finished
from support.database import home
from support.factories import NAMESPACE, Item

SHOP = """
import asyncio
from datetime import date
from decimal import Decimal
from enum import Enum
from pydantic import BaseModel
from flowfabric import App, Context

app = App()

class Size(Enum):
    SMALL = "s"

class Order(BaseModel):
    size: Size
    price: Decimal

@app.task
async def greet(name: str, times: int = 1, *, key: str = "") -> str:
    return key + name * times

@app.task
async def total(order: Order, on: date) -> dict[str, str]:
    return {"price": str(order.price), "on": on.isoformat()}

@app.task
async def gather(*names: str, **more: int) -> int:
    return len(names) + sum(more.values())

@app.task
async def nothing() -> None: ...

@app.task
async def boom() -> None:
    raise ValueError("it is broken")

@app.task
async def talk(ctx: Context, words: list[str]) -> int:
    for word in words:
        await ctx.stream.send(word)
    await ctx.stream.send({"n": 1}, kind="progress")
    return len(words)

@app.task(lane="slow")
async def sleep() -> None:
    await asyncio.sleep(60)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module e6_store in the current folder."""
    (tmp_path / "e6_store.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("e6_store", None)


class Submits:
    """`await submit("greet", '["Ada"]')` in this process; `start` starts another one."""

    def __init__(self, url: str, folder: Path) -> None:
        self._run = Commands(url)
        self.environment = {
            "PATH": os.environ["PATH"],
            "FLOWFABRIC_DATABASE_URL": url,
            "FLOWFABRIC_NAMESPACE": NAMESPACE,
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }
        self.folder = folder

    async def start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric", *command),
            cwd=self.folder,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def __call__(self, task: str, *arguments: str) -> Finished:
        return await self._run("submit", f"e6_store:{task}", *arguments, is_program=False)


@pytest.fixture
def submit(shop: None, db, tmp_path: Path) -> Submits:
    return Submits(db.url, tmp_path)


@pytest.fixture
async def worker(submit: Submits) -> AsyncIterator[None]:
    """`flowfabric worker` on the same module."""
    process = await submit.start("worker", "e6_store:app", "--lanes", "default")
    yield
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 60)


async def test_a_submission_prints_its_id_and_nothing_else(ff, submit):
    finished = await submit("greet", '{"name": "Ada"}')

    assert finished.code == 0
    assert finished.err == ""
    shown = await ff("show", finished.out.strip())
    assert (shown.line["task"], shown.line["public_state"]) == ("e6_store.greet", "waiting")


async def test_json_says_whether_the_key_was_used_before(submit):
    first = await submit("greet", '["Ada"]', "--key", "k", "-o", "json")
    again = await submit("greet", '["Ada"]', "--key", "k", "-o", "json")

    assert first.line["is_duplicate"] is False
    assert again.line == {**first.line, "is_duplicate": True}
    assert "the key was used before" in again.err


async def test_a_key_with_other_arguments_is_a_conflict_or_yields_the_existing_one(ff, shop):
    first = await ff("submit", "e6_store:greet", '["Ada"]', "--key", "k")
    id = first.out.strip()

    finished = await ff("submit", "e6_store:greet", '["Bob"]', "--key", "k")
    assert (finished.code, finished.out) == (4, "")
    assert id[-36:] in finished.err
    again = await ff(
        *("submit", "e6_store:greet", '["Bob"]', "--key", "k", "--on-conflict", "existing")
    )
    assert (again.code, again.out.strip()) == (0, id)
    assert "the key was used before" in again.err


async def test_the_options_reach_the_execution(ff, submit):
    finished = await submit(
        *("greet", '["Ada"]', "--lane", "mail", "--priority", "7", "--delay", "10m"),
        *("--deadline", "2h", "--tag", "team.name=x", "--tag", "team.city=y z"),
    )

    info = (await ff("show", finished.out.strip())).line
    assert (info["lane"], info["priority"], info["public_state"]) == ("mail", 7, "delayed")
    assert info["tags"] == {"team.name": "x", "team.city": "y z"}
    assert info["delayed_until"] < info["deadline_at"]


async def test_waiting_prints_the_result_as_json(submit, worker):
    for task, arguments, result in [
        ("greet", '{"name": "Ada", "times": 2}', "AdaAda"),
        ("greet", '["Ada"]', "Ada"),
        ("greet", '"Ada"', "Ada"),
        ("greet", '{"name": "Ada", "key": "~"}', "~Ada"),
        (
            "total",
            '{"order": {"size": "s", "price": "1.50"}, "on": "2026-11-16"}',
            {"price": "1.50", "on": "2026-11-16"},
        ),
        ("gather", '["a", "b"]', 2),
        ("gather", '{"one": 1, "two": 2}', 3),
        ("nothing", "{}", None),
    ]:
        finished = await submit(task, arguments, "--wait", "--timeout", "100s")

        assert finished.code == 0, finished.err
        assert json.loads(finished.out) == result
        assert UUID(finished.err.split()[0])


async def test_a_run_that_fails_ends_with_one_and_shows_its_trace(submit, worker):
    finished = await submit("boom", "--wait", "--timeout", "100s")

    assert finished.code == 1
    assert finished.out == ""
    assert "e6_store.boom failed in attempt 1: ValueError: it is broken" in finished.err
    assert 'raise ValueError("it is broken")' in finished.err


@pytest.mark.parametrize("more", [[], ["--stream"]], ids=["", "stream"])
async def test_a_run_that_takes_longer_goes_on(ff, submit, more):
    finished = await submit("sleep", "--wait", "--timeout", "1s", *more)

    assert finished.code == 4
    assert "e6_store.sleep has not ended within 1 s, it is waiting" in finished.err
    assert "no worker runs e6_store.sleep; start one: flowfabric dev e6_store:app" in (finished.err)
    assert "flowfabric result 0" in finished.err


async def test_the_stream_is_printed_on_stderr_and_the_result_alone_on_stdout(submit, worker):
    finished = await submit(
        "talk", '[["Hello ", "world"]]', "--wait", "--stream", "--timeout", "100s"
    )

    assert (finished.code, finished.out) == (0, "2\n"), finished.err
    assert finished.err.endswith('Hello world progress {"n": 1}')


async def test_ctrl_c_while_waiting_says_how_to_go_on(submit):
    process = await submit.start("submit", "e6_store:sleep", "--wait", "--stream")
    assert process.stderr is not None
    told = ""
    while "no worker runs" not in told:
        told += (await asyncio.wait_for(process.stderr.readline(), 60)).decode()

    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 60)

    assert process.returncode == 130
    assert out == b""
    assert "it continues; later: flowfabric result" in err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.parametrize(
    ("task", "arguments", "told"),
    [
        ("greet", '{"nmae": "Ada"}', "nmae: there is no such parameter; did you mean name?"),
        (
            "greet",
            '{"zzz": 1, "name": ""}',
            "zzz: there is no such parameter; e6_store.greet takes",
        ),
        ("greet", "{}", "name: is missing; e6_store.greet takes name: str, times: int = 1"),
        ("total", "{}", "order, on: are missing; e6_store.total takes"),
        ("greet", '{"name": 5, "times": "x"}', "valid string; times: Input should be a valid int"),
        ("greet", '["a", 1, 2]', "too many positional arguments"),
        ("greet", '{"name": 5}', "name: Input should be a valid string"),
        ("total", '{"order": {"size": "s"}, "on": "2026-11-16"}', "order.price: Field required"),
        ("greet", '{"name": "Ada}', "JSON: unterminated string starting at at character 10"),
        ("greet", "Ada", """a text needs its own quotes: '"Ada"'"""),
        ("greet", "{'name': 'Ada'}", "names need double quotes"),
        ("greet", '{\n"name": }', "at line 2, character 9"),
        ("greet", "", "JSON: is empty; write {} for no arguments"),
        ("great", "{}", "did you mean e6_store:greet?"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(ff: Commands, shop, task, arguments, told):
    finished = await ff("submit", f"e6_store:{task}", arguments)

    assert finished.code == 2
    assert told in finished.err
    assert finished.out == ""


async def test_options_that_make_no_sense_are_named(ff: Commands, shop):
    for options, told in (
        (["--unique", "window"], "--unique: requires --key"),
        (["--on-conflict", "existing"], "--on-conflict: requires --key"),
        (["--timeout", "1s"], "--timeout: requires --wait"),
        (["--stream"], "--stream: requires --wait"),
        (["--delay", "soon"], "delay"),
        (["--deadline", "2026-01-01"], "deadline"),
        (["--tag", "x"], "tag"),
        (["--tag", "team.a=1", "--tag", "team.a=2"], "team.a is given twice"),
        (["--lane", "caf\u00e9"], "lane"),
    ):
        finished = await ff("submit", "e6_store:greet", '["Ada"]', *options)
        assert finished.code == 2, (options, finished.err)
        assert told in finished.err


async def test_arguments_come_from_stdin(ff: Commands, shop):
    stored = await ff("submit", "e6_store:greet", "-", stdin='{"name": "Ada"}\n')
    bad = await ff("submit", "e6_store:greet", "-", stdin="")

    assert stored.code == 0
    shown = await ff("show", stored.out.strip(), "--payload")
    assert json.loads(shown.line["payload"]) == {"name": "Ada"}
    assert bad.code == 2
    assert "JSON: is empty" in bad.err


async def test_an_unreachable_database_ends_with_five(ff: Commands, shop):
    url = "postgresql://u:secret@127.0.0.1:1/x"

    finished = await ff("submit", "e6_store:greet", '["Ada"]', "--database-url", url)

    assert finished.code == 5
    assert "secret" not in finished.err


# result


async def test_a_result_is_printed_and_waited_for(ff: Commands, make, engine):
    done = await make.execution("completed")
    full = f"{{fp:{home()}}}:{done.id}"

    assert (await ff("result", full)).code == 0
    assert (await ff("result", str(done.id), "--wait")).out == (await ff("result", full)).out


async def test_a_result_that_is_not_there_yet_is_a_conflict(ff: Commands, make):
    execution = await make.execution("waiting")

    finished = await ff("result", str(execution.id))
    waited = await ff("result", str(execution.id), "--wait", "--timeout", "0s")

    assert (finished.code, finished.out) == (4, "")
    assert "it has not ended yet, it is waiting; use --wait to wait for it" in finished.err
    assert waited.code == 4


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
async def test_what_ended_otherwise_ends_with_one(ff: Commands, make, state):
    execution = await make.execution(state)

    finished = await ff("result", str(execution.id))

    assert (finished.code, finished.out) == (1, "")
    assert "flowfabric show" in finished.err


async def test_an_execution_nobody_knows_is_not_found(ff: Commands):
    finished = await ff("result", "0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e")

    assert finished.code == 3
    assert "there is no such execution" in finished.err


async def test_neither_a_result_nor_a_failure_can_control_the_terminal(ff: Commands, engine):
    """Whoever may call the functions of the engine stores what it likes."""
    control = "\x1b]0;title\x07\x9b5m\u202e"
    harm = {"\x1b", "\x07", "\x9b", "\u202e"}
    await engine.submit_many([Item(), Item()])
    done, failed = await engine.claim(2)
    await engine.complete(done, f'"{control}"'.encode())
    detail = json.dumps({"message": control, "trace": f"{control}\nlast"}).encode()
    await engine.fail(failed, "permanent", reason="\x9b5m\u202e", detail=detail)

    ended = await ff.on_terminal("result", str(done.execution_id))
    broken = await ff.on_terminal("result", str(failed.execution_id))

    assert (ended[0], broken[0]) == (0, 1)
    assert not harm & {*ended[1], *broken[1]}
    assert "last\n" in broken[1]
    # a pipe gets what was stored
    assert (await ff("result", str(done.execution_id))).out == f'"{control}"\n'
