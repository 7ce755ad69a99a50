"""Runs the tests in an empty folder, without the user's settings, and lets Ctrl-C stop them.

Commands and apps look for `.flowfabric/`, `flowfabric.toml` and variables in the place where they
are started. A working copy often has all of them, so no test may run in it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from flowfabric.db import call, session
from flowfabric.embedded.binaries import VARIABLE as BINARIES
from flowfabric.testing.server import VARIABLE as SERVER

# The variables that choose the Postgres of the tests.
SERVERS = (SERVER, BINARIES)
# Variables that some tests read themselves.
KEPT = (
    *SERVERS,
    "FLOWFABRIC_TEST_MUTANT",
    "FLOWFABRIC_TEST_PARTITIONS",
    "FLOWFABRIC_TEST_FORMS",
    "FLOWFABRIC_TEST_FOREIGN_TRANSACTIONS",
    "FLOWFABRIC_CITUS_URL",
    "FLOWFABRIC_MODEL_SEED",
    "FLOWFABRIC_CHAOS_SECONDS",
    "FLOWFABRIC_GRAPHS",
    "FLOWFABRIC_PROOF_SEED",
)
_started_in = Path.cwd()
_nowhere: Path | None = None


def is_setting(name: str) -> bool:
    """Return whether a variable configures flowfabric or a client of Postgres."""
    return name.startswith(("PG", "FLOWFABRIC_")) or name == "DATABASE_URL"


def chosen_binaries() -> dict[str, str]:
    """Return the variables that make another process start its server with the same Postgres."""
    return {BINARIES: os.environ[BINARIES]} if BINARIES in os.environ else {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Leave the folder before test modules are imported, because some of them make an app."""
    global _nowhere
    # A collection creates millions of objects and drops few of them.
    gc.disable()
    for name in [name for name in os.environ if is_setting(name) and name not in KEPT]:
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background ignores Ctrl-C, and so would the commands that tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not session.config.pluginmanager.hasplugin("dsession"):
        # xdist starts its processes in its own folder, because their arguments are relative paths.
        _nowhere = Path(tempfile.mkdtemp(prefix="ff-nowhere-"))
        # If the tests run as root, the server's user must be able to enter this folder.
        _nowhere.chmod(0o755)
        os.chdir(_nowhere)
        # Hypothesis writes to the current folder. Let it write to the working copy instead.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(_started_in / ".hypothesis"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use two processes more than cores, because some tests wait for processes, locks and beats."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Return to the first folder, after the fixtures of the session have ended."""
    global _nowhere
    if _nowhere is not None:
        os.chdir(_started_in)
        shutil.rmtree(_nowhere)
        _nowhere = None


@pytest.fixture(scope="session", autouse=True)
def patient_trial() -> Iterator[None]:
    """Let sessions wait longer for their trial hint, because a busy machine may delay it.

    A worker without hints would poll and log a warning. A connection that goes dead during the
    trial is noticed only after this time, so it is no longer than an answer may take.
    """
    with mock.patch.object(session, "HEARING_SECONDS", call.ANSWER_SECONDS):
        yield


@pytest.fixture(scope="session", autouse=True)
async def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of all tests of this process."""
    return asyncio.get_running_loop()


@pytest.fixture(autouse=True)
def no_tasks_left(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Cancel all tasks that a test leaves running, as if the test had its own loop."""
    yield
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))


@pytest.fixture(autouse=True)
def nowhere() -> Iterator[None]:
    """Check that a test leaves the folder empty and is still in it."""
    yield
    assert _nowhere is not None
    # Called for every test: os is ten times as fast as pathlib here.
    assert os.getcwd() == os.fspath(_nowhere), "the test went elsewhere and stayed there"
    left = sorted(os.listdir(_nowhere))
    for path in map(_nowhere.joinpath, left):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not left, f"the test wrote into the folder it was started in: {left}"
