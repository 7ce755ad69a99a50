"""Apps on the test's database, workers for the length of a block, and worker processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from flowfabric import App
from flowfabric.telemetry import ExecutionFilter
from flowfabric.worker import heartbeat, registration
from flowfabric.worker.worker import Worker
from support.database import Database
from support.isolation import KEPT, is_setting

AppMaker = Callable[..., App]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of whoever runs the tests reaches them."""
    for name in [name for name in os.environ if is_setting(name) and name not in KEPT]:
        monkeypatch.delenv(name)


@pytest.fixture
async def make_app(db: Database) -> AsyncIterator[AppMaker]:
    """Makes apps on the database of the test, and closes them after it."""
    apps: list[App] = []

    def make(**settings: Any) -> App:
        apps.append(App(database_url=db.url, **settings))
        return apps[-1]

    yield make
    for app in apps:
        await asyncio.wait_for(app.close(), 60)


@pytest.fixture
def app(make_app: AppMaker) -> App:
    return make_app()


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a heartbeat renew leases of half a minute ten times a second.

    A short lease would have quick beats, too, but a busy machine would lose it.
    """
    monkeypatch.setattr(heartbeat, "_REGULAR_SHARE", 300)
    monkeypatch.setattr(heartbeat, "_URGENT_SHARE", 1500)
    monkeypatch.setattr(registration, "_BEAT_SHARE", 700)


@asynccontextmanager
async def working(app: App, *, within: float = 120.0, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs during the block and is told to stop after it."""
    worker = await app.worker(**options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, within)


@contextmanager
def log_to(formatter: logging.Formatter, stream: TextIO) -> Iterator[None]:
    """Write the log to a stream, too, as a worker process writes it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(ExecutionFilter())
    logger = logging.getLogger("flowfabric")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class WorkerProcess:
    """`flowfabric worker` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid

    async def end(self, number: int = signal.SIGTERM, *, within: float = 120.0) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return await self.ended(within=within)

    async def ended(self, *, within: float = 120.0) -> int:
        return await asyncio.wait_for(self.process.wait(), within)

    async def asleep(self, *, within: float = 120.0) -> None:
        """Wait until its main thread sleeps, and has handled the signals that it got."""
        async with asyncio.timeout(within):
            seen = 0
            while seen < 10:
                seen = seen + 1 if self._is_asleep() else 0
                await asyncio.sleep(0.01)

    def _is_asleep(self) -> bool:
        stat = Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "S"

    async def log(self) -> str:
        """Everything it wrote; it must have ended, or be about to."""
        assert self.process.stderr
        return (await self.process.stderr.read()).decode()

    async def logged(self, text: str, *, within: float = 120.0) -> str:
        """Wait for a line of its log that holds a text."""
        assert self.process.stderr
        async with asyncio.timeout(within):
            seen = ""
            while line := (await self.process.stderr.readline()).decode():
                seen += line
                if text in line:
                    return line
        raise AssertionError(f"no line with {text!r} in:\n{seen}")


ProcessStarter = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
async def start_worker(db: Database, folder: Path) -> AsyncIterator[ProcessStarter]:
    """Starts `flowfabric worker shop:app` on a module with the given text."""
    started: list[asyncio.subprocess.Process] = []

    async def start(module: str, *options: str, **environment: str) -> WorkerProcess:
        (folder / "shop.py").write_text(module)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric", "worker", "shop:app", *options),
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "PYTHONDONTWRITEBYTECODE": "1",
                "FLOWFABRIC_DATABASE_URL": db.url,
                **environment,
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return WorkerProcess(process)

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()
