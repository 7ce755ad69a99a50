"""The console blocks of the README, the guides and the operating page: every command exists with
its options, and prints what the page shows."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
import typer

from cli.operating import Commands
from docs.pages import PAGES, ROOT, Command, commands, name_of, same
from flowfabric import App, FlowFabric
from flowfabric.cli.main import app as command_line
from flowfabric.core.code_version import CodeVersion
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.step import Step
from support.cases import for_each
from support.factories import NAMESPACE
from support.isolation import chosen_binaries
from worker.apps import working

ALL = [command for page in PAGES for command in commands(page)]
SHOWN = [command for command in ALL if command.output]


@for_each("command", ALL)
def test_a_command_exists_with_its_options(command: Command):
    words = command.words
    match words[0]:
        case "flowfabric":
            found = typer.main.get_command(command_line)
            context = found.make_context("flowfabric", words[1:])
            while words := [*context._protected_args, *context.args]:
                name, found, rest = found.resolve_command(context, words)
                context = found.make_context(name, rest, parent=context)
        case "make":
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words[1:])
        case "pip":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert words[1] == "install"
            for name, extra in re.findall(r"([\w-]+)\[(\w+)\]", " ".join(words)):
                others = {("sqlalchemy", "asyncio")}
                if (name, extra) not in others:
                    assert name == project["name"]
                    assert extra in project["optional-dependencies"]
        case "mkdir":
            assert words[2:4] == ["&&", "cd"]
            assert words[1] == words[4]
        case "uvicorn":
            assert words[1:] == ["web:web"]
        case "pytest":
            assert words == ["pytest"]
        case "export":
            assert re.fullmatch(r"(FLOWFABRIC_\w+|DATABASE_URL)=\S+", words[1])
        case other:
            pytest.fail(
                f"no test knows the command {other!r}; say above the block why it is not run"
            )


def shown(page: str, line: str) -> Command:
    """The command of a page that begins so; its output is compared by the test that asks."""
    (found,) = [
        one for one in SHOWN if name_of(one.block.page) == page and one.line.startswith(line)
    ]
    return found


README = "README.md"
QUICKSTART = "docs/guide/quickstart.md"
FLOWS = "docs/guide/flows.md"
DEPLOYS = "docs/guide/deploys.md"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Empty, and one that the user of the server can enter; pytest's own is closed."""
    path = Path(tempfile.mkdtemp(prefix="ff-docs-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.slow
def test_the_quickstart_prints_what_it_shows(folder):
    """The first minutes, in a folder without a database: init, dev, submit."""
    init = shown(QUICKSTART, "flowfabric init")
    dev = shown(QUICKSTART, "flowfabric dev")
    submit = shown(QUICKSTART, "flowfabric submit")
    environment = {"PATH": os.environ["PATH"], "NO_COLOR": "1", **chosen_binaries()}

    def start(command: Command, **options: object) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", *command.words]
        return subprocess.Popen(
            words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, **options
        )

    assert same(start(init).communicate(timeout=240)[0]) == same(init.output)
    log = folder / "dev.log"
    with log.open("w") as err:
        running = start(dev, stderr=err)
    try:
        wait_for(lambda: "\nstop " in log.read_text(), running)
        process = start(submit, stderr=subprocess.PIPE)
        result, id = process.communicate(timeout=240)
        assert process.returncode == 0, id + log.read_text()
        assert same(id + result) == same(submit.output)
        assert same(result) == same(shown(README, "flowfabric submit").output)
        # The worker logs into the same terminal, between the lines of dev or after them.
        labels = tuple(line.split()[0] + " " for line in dev.output.splitlines())
        told = [line for line in log.read_text().splitlines() if line.startswith(labels)]
        assert same("\n".join(told)) == same(dev.output), log.read_text()
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0, log.read_text()
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = monotonic() + 240
    while not condition():
        assert process.poll() is None
        assert monotonic() < until
        sleep(0.05)


async def test_flow_graph_prints_what_the_guide_shows(db):
    graph = shown(FLOWS, "flowfabric flow graph ID")
    example = await asyncio.create_subprocess_exec(
        *(sys.executable, "provider_race.py"),
        cwd=ROOT / "examples",
        env={**os.environ, "FLOWFABRIC_DATABASE_URL": db.url, "FLOWFABRIC_NAMESPACE": NAMESPACE},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await asyncio.wait_for(example.communicate(), 60)
    assert example.returncode == 0, log.decode()
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        (race,) = [one for one in (await client.flows.list()).flows if one.flow_kind == "race"]
    await compare(graph, Commands(db.url), ID=str(race.id))


async def test_why_prints_what_the_guide_shows(db):
    why = shown(FLOWS, "flowfabric why NODE")
    app = App(database_url=db.url, namespace=NAMESPACE)
    is_running, is_over = asyncio.Event(), asyncio.Event()

    @app.task
    async def encode(number: int) -> int:
        if number == 2:
            is_running.set()
            await is_over.wait()
        return number

    @app.task
    async def stitch(parts: list[int]) -> int:
        return len(parts)

    async with working(app):
        async with app.flow("film") as f:
            parts = [f.add(encode, number, name=f"encode {number}") for number in (1, 2, 3)]
            last = f.add(stitch, [part.result for part in parts])
        for number in (0, 2):
            await f.run.result(parts[number], timeout=60)
        await asyncio.wait_for(is_running.wait(), 60)
        await compare(why, Commands(db.url), NODE=str(f.run.node(last).id))
        is_over.set()
        assert await f.run.result(timeout=60) == 3
    await app.close()


async def test_versions_prints_what_the_guide_shows(db):
    versions = shown(DEPLOYS, "flowfabric versions")
    task = "shop.deliver"
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        for version in ("1", "1", "2"):
            route = Route(NAMESPACE, "default", task)
            await client.executions.submit(Submission(id=mint(), route=route, payload=b"null"))
            (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
            step = Step(name="charge", occurrence=0, position=0, code_version=version)
            await client.steps.record(held, step)
        for number, version in enumerate("1222"):
            await client.workers.register(
                worker_id="w",
                worker_instance_id=f"w-{number}",
                tasks=[task],
                code=CodeVersion(version),
                finish_only=version == "1",
            )
    await compare(versions, Commands(db.url))


async def compare(command: Command, ff: Commands, **ids: str) -> None:
    """Run a command with ids in the place of its capitals, and hold what it prints to the page."""
    words = [ids.get(word, word) for word in command.words[1:]]
    finished = await ff(*words, "-o", "table")
    assert finished.code == 0, finished.err
    assert same(finished.out) == same(command.output), str(command)


def test_every_output_of_the_pages_is_compared():
    """With a line of its own: the calls of `shown` in this file, read from its text."""
    asked = re.findall(r"shown\((\w+), \"(.+?)\"\)", Path(__file__).read_text())
    named = {(globals()[page], line) for page, line in asked}
    missing = [
        str(one)
        for one in SHOWN
        if not any(
            page == name_of(one.block.page) and one.line.startswith(line) for page, line in named
        )
    ]
    assert missing == [], "compare them in this file"
