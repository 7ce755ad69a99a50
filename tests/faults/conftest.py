"""The fixtures of worker/apps.py and a durable server, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker.apps import app, folder, make_app, plain_environment

from .server import Server, durable_server

__all__ = ["app", "durable", "durable_process", "folder", "make_app", "plain_environment"]


@pytest.fixture(scope="session")
def durable_process() -> Iterator[Server]:
    with durable_server() as server:
        yield server


@pytest.fixture
async def durable(durable_process: Server) -> Server:
    """A server with fsync that the test may end as it likes, and a database of the test's own."""
    await durable_process.new_database()
    return durable_process
