"""The pytest plugin: three fixtures, none of which does anything until a test asks for it.

`ff_postgres`  The server of the test run: one for all processes of xdist.
`ff_db`        A fresh, migrated database of the test's own.
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
    """The server of this test run; FLOWFABRIC_TEST_DATABASE_URL names one to use instead."""
    with shared_server() as server:
        postgres = Postgres(server)
        try:
            yield postgres
        finally:
            postgres.close()


@pytest.fixture
def ff_db(ff_postgres: Postgres) -> Iterator[Database]:
    """A fresh database with the schema in it, removed after the test."""
    database = ff_postgres.database()
    try:
        yield database
    finally:
        ff_postgres.drop(database)


@pytest.fixture
def ff(ff_db: Database) -> Iterator[Harness]:
    """The harness; while it is there, every app uses the test's database."""
    harness = Harness(ff_db)
    try:
        yield harness
    finally:
        harness.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Close the harness on the test's own event loop, whichever plugin runs that."""
    harness: object = getattr(item, "funcargs", {}).get("ff")
    function = getattr(item, "obj", None)
    if not isinstance(harness, Harness) or not inspect.iscoroutinefunction(function):
        return (yield)

    @functools.wraps(function)
    async def and_close(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        finally:
            await harness.close()

    item.obj = and_close  # type: ignore[attr-defined]
    try:
        return (yield)
    finally:
        item.obj = function  # type: ignore[attr-defined]


def pytest_fixture_post_finalizer(request: pytest.FixtureRequest) -> None:
    """A fixture that looked at a run after the test opened connections once more."""
    harness: object = getattr(request.node, "funcargs", {}).get("ff")
    if isinstance(harness, Harness):
        harness.rest()
