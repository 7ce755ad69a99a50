"""Worker processes that can be killed, stopped and continued, working on a module of tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from flowfabric import App

# A result names the attempt that gave it, so that a result of a stale holder would show.
TASKS = """
from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from flowfabric import App, Context, Retry
from flowfabric.core.policy import Fixed

app = App()


@app.task(name="quick")
async def quick(ctx: Context, n: int) -> list[int]:
    return [n * 7 + 1, ctx.attempt]


@app.task(name="nap")
async def nap(ctx: Context, n: int, seconds: float) -> list[int]:
    await asyncio.sleep(seconds)
    return [n * 7 + 2, ctx.attempt]


@app.task(name="block")
def block(ctx: Context, n: int, seconds: float) -> list[int]:
    time.sleep(seconds)
    return [n * 7 + 3, ctx.attempt]


@app.task(name="flaky", retry=Retry(max_retries=3, backoff=Fixed(timedelta(milliseconds=100))))
async def flaky(ctx: Context, n: int) -> list[int]:
    if ctx.attempt < 2 + n % 2:
        raise RuntimeError(f"attempt {ctx.attempt} of {n} fails")
    return [n * 7 + 4, ctx.attempt]


@app.task(name="doomed", retry=Retry(max_retries=1, backoff=Fixed(timedelta(milliseconds=50))))
async def doomed(n: int) -> None:
    raise ValueError(f"{n} always fails")
"""
MODULE = "shop"


def load(url: str, tasks: str = TASKS) -> tuple[App, dict[str, Any]]:
    """Return the app and the names of a module of tasks, to submit them from this process."""
    module: dict[str, Any] = {"__name__": MODULE}
    exec(compile(tasks, f"{MODULE}.py", "exec"), module)
    app: App = module["app"]
    app.settings = replace(app.settings, database_url=url)
    return app, module


class Crew:
    """Processes by position; one that was killed has been replaced when `kill` returns."""

    def __init__(
        self, folder: Path, commands: Sequence[Sequence[str]], environment: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._commands = commands
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        }
        self._count = 0
        self._all: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}
        self.workers = [self._start(position) for position in range(len(commands))]

    async def until_started(self, within: float = 200.0) -> None:
        deadline = time.monotonic() + within
        while self.log().count(" started: ") < len(self.workers):
            assert time.monotonic() < deadline, self.log()
            self.supervise()
            await asyncio.sleep(0.05)

    def kill(self, position: int) -> None:
        """`kill -9`, and another one in its place."""
        self.workers[position].kill()
        self.workers[position].wait()
        self.workers[position] = self._start(position)

    def stop(self, position: int) -> None:
        self.workers[position].send_signal(signal.SIGSTOP)

    def go_on(self, position: int) -> None:
        self.workers[position].send_signal(signal.SIGCONT)

    def supervise(self) -> None:
        """Start those again that found no database when they started; nobody else may end."""
        for position, worker in enumerate(self.workers):
            if worker.poll() is not None:
                assert worker.returncode == 5, f"exit code {worker.returncode}\n{self.log()}"
                self.workers[position] = self._start(position)

    def errors(self) -> list[str]:
        """The lines of the log with a traceback that no failing handler explains."""
        lines = self.log().splitlines()
        return [
            line
            for line, following in pairwise(lines)
            if following.lstrip().startswith("Traceback") and " failed" not in line
        ]

    def log(self) -> str:
        """What all of them wrote, dead ones too."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("worker-*.log")))

    def close(self, within: float = 200.0) -> list[int]:
        """SIGTERM to all; their exit codes."""
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
            worker.terminate()
        return [worker.wait(within) for worker in self.workers]

    def destroy(self) -> None:
        for worker in self._all:
            if worker.poll() is None:
                worker.kill()
            worker.wait()

    def _start(self, position: int) -> subprocess.Popen[bytes]:
        self._count += 1
        path = self._folder / f"worker-{self._count}.log"
        with path.open("wb") as log:
            worker = subprocess.Popen(
                self._commands[position],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._all.append(worker)
        self._logs[worker.pid] = path
        return worker


class Fleet(Crew):
    """Worker processes of the command line, all alike."""

    def __init__(
        self,
        folder: Path,
        url: str,
        size: int,
        *,
        concurrency: int,
        lease: float,
        tasks: str = TASKS,
    ) -> None:
        (folder / f"{MODULE}.py").write_text(tasks)
        command = [
            *(sys.executable, "-m", "flowfabric", "worker", f"{MODULE}:app"),
            *("--concurrency", str(concurrency)),
        ]
        environment = {"FLOWFABRIC_DATABASE_URL": url, "FLOWFABRIC_LEASE_TTL": str(lease)}
        super().__init__(folder, [command] * size, environment)

    def close(self, within: float = 200.0) -> list[int]:
        """SIGTERM to all once they have started: one that still imports would die of it."""
        deadline = time.monotonic() + within
        while any(
            worker.poll() is None and " started: " not in self._logs[worker.pid].read_text()
            for worker in self.workers
        ):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        return super().close(within)
