"""Real servers in throw-away projects, and processes that use them from outside."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric import embedded
from flowfabric.embedded import binaries, postmaster
from flowfabric.embedded.account import Account, caller
from flowfabric.embedded.folder import Folder
from support.isolation import chosen_binaries
from support.programs import readable_by
from support.signals import hear_ctrl_c


def _roomy_folder() -> str:
    """Memory if there is enough of it and programs may run from there: the disk may be busy."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK | os.X_OK):
        return "/tmp"
    found = os.statvfs(memory)
    is_roomy = found.f_bavail * found.f_frsize > 2 << 30
    return memory if is_roomy and not found.f_flag & os.ST_NOEXEC else "/tmp"


TEMPORARY = _roomy_folder()
# Ours may lie under root's home, where no other user gets to.
SYSTEM_PYTHON = next(
    (python for python in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(python).exists()),
    sys.executable,
)

SCRIPT = """
import json, os, pathlib, sys
import embedded

for line in sys.stdin:
    try:
        answer = eval(line)
    except SyntaxError:
        answer = exec(line)
    except embedded.EmbeddedError as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer, default=str), flush=True)
"""


class Process:
    """A Python process that has imported `embedded` and does what it is told."""

    def __init__(self, package: Path, *, uid: int | None, python: str, env: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [python, "-B", "-c", SCRIPT],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(package)} | env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            start_new_session=True,
            preexec_fn=hear_ctrl_c,
        )

    def tell(self, line: str) -> None:
        assert self.popen.stdin
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def answer(self) -> Any:
        assert self.popen.stdout
        return json.loads(self.popen.stdout.readline())

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def start(self, project: Path) -> Any:
        """Start the project's server; returns [url, started], or [error, message]."""
        self.tell_start(project)
        return self.answer()

    def tell_start(self, project: Path) -> None:
        start = f"(server := embedded.start(pathlib.Path({str(project)!r})))"
        self.tell(f"[{start}.url, server.started]")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def end(self) -> int:
        """Let it reach the end of its program."""
        assert self.popen.stdin
        self.popen.stdin.close()
        return self.popen.wait(timeout=60)

    def close(self) -> None:
        if self.popen.poll() is None:
            self.kill()
        assert self.popen.stdin
        assert self.popen.stdout
        self.popen.stdin.close()
        self.popen.stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can enter; pytest's own is closed to all but its owner."""
    path = Path(tempfile.mkdtemp(prefix="ff-test-", dir=TEMPORARY))
    path.chmod(0o755)
    yield path
    for found in path.rglob(".flowfabric"):
        _destroy(found.parent)
    shutil.rmtree(path)


@pytest.fixture
def new_project(folder: Path) -> Path:
    """A project that never had a server."""
    path = folder / "project"
    path.mkdir()
    path.chmod(0o755)
    return path


@pytest.fixture
def project(new_project: Path, made_project: Path) -> Path:
    """A project that had a server before: a second cheaper than a new one."""
    subprocess.run(["cp", "-a", made_project / ".flowfabric", new_project], check=True)
    return new_project


@pytest.fixture(scope="session")
def made_project() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ff-test-", dir=TEMPORARY))
    path.chmod(0o755)
    embedded.start(path).release()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def package() -> Iterator[Path]:
    """A copy of the package alone, importable as `embedded` by any user with any Python."""
    path = Path(tempfile.mkdtemp(prefix="ff-test-package-", dir=TEMPORARY))
    path.chmod(0o755)
    source = Path(embedded.__file__).parent
    shutil.copytree(source, path / "embedded", ignore=shutil.ignore_patterns("__pycache__"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def new_process(package: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def new(
        *, uid: int | None = None, python: str | None = None, env: dict[str, str] | None = None
    ) -> Process:
        default = sys.executable if uid is None else SYSTEM_PYTHON
        chosen = chosen_binaries()
        if uid is not None:
            chosen = _binaries_for(uid, chosen.get(binaries.VARIABLE))
        process = Process(package, uid=uid, python=python or default, env=chosen | (env or {}))
        processes.append(process)
        return process

    yield new
    for process in processes:
        process.close()


@pytest.fixture(params=["system", "wheel"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the programs come from, in this process and in those it is told to."""
    if request.param == "system" and not list(binaries._system(caller())):
        pytest.skip("this system has no PostgreSQL")
    monkeypatch.setenv(binaries.VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def query() -> Callable[..., Any]:
    """Runs one statement through asyncpg and returns its first value."""

    def run(url: str, statement: str) -> Any:
        async def fetch() -> Any:
            connection = await asyncpg.connect(url)
            try:
                return await connection.fetchval(statement)
            finally:
                await connection.close()

        return asyncio.run(fetch())

    return run


@pytest.fixture
def is_up() -> Callable[[Path], bool]:
    """Whether a server listens for a project, found out without becoming one of its users."""

    def look(project: Path) -> bool:
        folder = Folder(project)
        with folder.locked(), closing(postmaster._Listener(folder.socket)) as listener:
            return listener.exists

    return look


@pytest.fixture
def server_pid() -> Callable[[Path], int]:
    def look(project: Path) -> int:
        folder = Folder(project)
        with folder.locked(), closing(postmaster._Listener(folder.socket)) as listener:
            assert listener.exists
            return listener.pid

    return look


@pytest.fixture
def kill_server(server_pid, wait_until) -> Callable[[Path], None]:
    def kill(project: Path) -> None:
        pid = server_pid(project)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not postmaster._is_alive(pid))

    return kill


@pytest.fixture
def wait_until() -> Callable[[Callable[[], Any]], None]:
    def wait(condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "waited for 30 s"
            time.sleep(0.005)

    return wait


@cache
def _binaries_for(uid: int, _choice: str | None) -> dict[str, str]:
    """The programs that are chosen now, as a folder where that user can run them."""
    user = Account(name=str(uid), uid=uid, gid=uid, switch=True)
    found = binaries.find(user, data=Path("/nonexistent"), major=None)
    return {binaries.VARIABLE: str(readable_by(user, found).folder)}


def _destroy(project: Path) -> None:
    folder = Folder(project)
    try:
        with folder.locked():
            postmaster.stop(folder)
            for pid in postmaster._processes(folder.data):
                os.kill(pid, signal.SIGKILL)
            folder.forget_socket()
    except (OSError, embedded.EmbeddedError):
        return
    if folder.record.home:
        shutil.rmtree(folder.record.home, ignore_errors=True)
