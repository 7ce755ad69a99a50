"""The fixtures of worker/apps.py and a durable server, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker.apps import app, folder, make_app, plain_environment

from .server import Server, durable_server

__all__ = [
    "app",
    "durable",
    "durable_process",
    "folder",
    "killable",
    "killable_process",
    "make_app",
    "plain_environment",
]


@pytest.fixture(scope="session")
def durable_process() -> Iterator[Server]:
    with durable_server() as server:
        yield server


@pytest.fixture
async def durable(durable_process: Server) -> Server:
    """A server with fsync that the test may end as it likes, and a database of the test's own."""
    await durable_process.new_database()
    return durable_process


@pytest.fixture(scope="session")
def killable_process() -> Iterator[Server]:
    with durable_server(fsync="off") as server:
        yield server


@pytest.fixture
async def killable(killable_process: Server) -> Server:
    """The same for the samples in `make test`: the test may end its processes as it likes."""
    await killable_process.new_database()
    return killable_process
