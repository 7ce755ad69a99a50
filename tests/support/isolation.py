"""Where the tests run: in an empty folder, with no setting of whoever started them, hearing Ctrl-C.

Commands and apps look for `.flowfabric/`, `flowfabric.toml` and variables where they are started. A
clone has all of them once somebody has worked in it, so no test may see its clone.
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

from flowfabric.db import session
from flowfabric.embedded.binaries import VARIABLE as BINARIES
from flowfabric.testing.server import VARIABLE as SERVER

# What says on which Postgres the tests run.
SERVERS = (SERVER, BINARIES)
# What some tests read themselves.
KEPT = (
    *SERVERS,
    "FLOWFABRIC_TEST_MUTANT",
    "FLOWFABRIC_MODEL_SEED",
    "FLOWFABRIC_CHAOS_SECONDS",
    "FLOWFABRIC_GRAPHS",
    "FLOWFABRIC_PROOF_SEED",
)
_started_in = Path.cwd()
_nowhere: Path | None = None


def is_setting(name: str) -> bool:
    """Whether a variable says something to flowfabric or to a client of Postgres."""
    return name.startswith(("PG", "FLOWFABRIC_")) or name == "DATABASE_URL"


def chosen_binaries() -> dict[str, str]:
    """For the environment of a process that starts a server of its own: on the same Postgres."""
    return {BINARIES: os.environ[BINARIES]} if BINARIES in os.environ else {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Leave the folder, before the modules with tests are imported: some make an app."""
    global _nowhere
    for name in [name for name in os.environ if is_setting(name) and name not in KEPT]:
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background: the commands that tests start would be deaf to Ctrl-C, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not session.config.pluginmanager.hasplugin("dsession"):
        # (xdist starts its processes where it was started itself: their arguments are relative.)
        _nowhere = Path(tempfile.mkdtemp(prefix="ff-nowhere-"))
        # The user of a server passes through, if the tests run as root.
        _nowhere.chmod(0o755)
        os.chdir(_nowhere)
        # Hypothesis writes where it is: let it do so in the clone.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(_started_in / ".hypothesis"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of every later search for garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: some tests wait for processes that they started."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Go back, after the fixtures of the session have ended."""
    global _nowhere
    if _nowhere is not None:
        os.chdir(_started_in)
        shutil.rmtree(_nowhere)
        _nowhere = None


@pytest.fixture(scope="session", autouse=True)
def patient_trial() -> Iterator[None]:
    """A hint that a busy machine delays for a second does not make a worker poll, and say so."""
    with mock.patch.object(session, "HEARING_SECONDS", 60.0):
        yield


@pytest.fixture(scope="session", autouse=True)
async def loop() -> asyncio.AbstractEventLoop:
    """The loop of all tests of this process."""
    return asyncio.get_running_loop()


@pytest.fixture(autouse=True)
def no_tasks_left(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """What a test leaves running ends with it, as if the loop had been its own."""
    yield
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))


@pytest.fixture(autouse=True)
def nowhere() -> Iterator[None]:
    """The next test finds the same empty folder."""
    yield
    assert _nowhere is not None
    assert Path.cwd() == _nowhere, "the test went elsewhere and stayed there"
    left = sorted(_nowhere.iterdir())
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not left, f"the test wrote into the folder it was started in: {left}"
