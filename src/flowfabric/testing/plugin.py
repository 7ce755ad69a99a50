"""The pytest plugin: three fixtures, which do nothing until a test requests them.

`ff_postgres`  The server of the test run: one for all processes of xdist.
`ff_db`        A fresh, migrated database for the test.
`ff`           The harness on that database; see `flowfabric.testing.Harness`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from flowfabric.testing.database import Database, Postgres
from flowfabric.testing.harness import Harness
from flowfabric.testing.server import shared_server


@pytest.fixture(scope="session")
def ff_postgres() -> Iterator[Postgres]:
    """Return the server of this test run. FLOWFABRIC_TEST_DATABASE_URL replaces it."""
    with shared_server() as server:
        postgres = Postgres(server)
        try:
            yield postgres
        finally:
            postgres.close()


@pytest.fixture
def ff_db(ff_postgres: Postgres) -> Iterator[Database]:
    """Return a fresh database with the schema. It is dropped after the test."""
    database = ff_postgres.database()
    try:
        yield database
    finally:
        ff_postgres.drop(database)


@pytest.fixture
def ff(ff_db: Database) -> Iterator[Harness]:
    """Return the harness. While it exists, every app uses the test's database."""
    harness = Harness(ff_db)
    try:
        yield harness
    finally:
        harness.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Close the harness on the event loop of the test, whichever async plugin runs the test."""
    harness: object = getattr(item, "funcargs", {}).get("ff")
    function = getattr(item, "obj", None)
    if not isinstance(harness, Harness) or not inspect.iscoroutinefunction(function):
        return (yield)

    @functools.wraps(function)
    async def run_and_close(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        finally:
            await harness.close()

    item.obj = run_and_close  # type: ignore[attr-defined]
    try:
        return (yield)
    finally:
        item.obj = function  # type: ignore[attr-defined]


def pytest_fixture_post_finalizer(request: pytest.FixtureRequest) -> None:
    """Close connections of the harness that are still open after the teardown of a fixture."""
    # `funcargs` is None if the session was aborted.
    harness: object = (getattr(request.node, "funcargs", None) or {}).get("ff")
    if isinstance(harness, Harness):
        harness.rest()
