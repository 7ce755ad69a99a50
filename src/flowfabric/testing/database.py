"""A fresh, migrated database for every test that requests one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from flowfabric.db import disposable
from flowfabric.db.connection import open_connection
from flowfabric.doctor import Report, examine
from flowfabric.testing.loop_thread import LoopThread
from flowfabric.testing.server import Server

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection

T = TypeVar("T")


class Postgres:
    """The server of a test run, and its databases for tests.

    The databases are clones of a template. The first request creates the template.
    """

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._server = server
        self._template = f"flowfabric_{server.mark}"
        self._numbers = count(1)
        self._loop_thread = LoopThread()
        self._stack = AsyncExitStack()
        self._administration: Connection | None = None
        self._spare: Future[Database] | None = None
        self._has_template = False

    def database(self) -> Database:
        """Return an unused database. Call `drop` after use."""
        ready, is_first = self._spare, not self._has_template
        if ready is None:
            ready = self._loop_thread.begin(self._clone())
        database = ready.result()
        # Prepare the database of the next test while this test runs.
        self._spare = None if is_first else self._loop_thread.begin(self._clone())
        return database

    def drop(self, database: Database) -> None:
        """Remove a database in the background, even with open connections."""
        self._loop_thread.begin(self._drop(database))

    def close(self) -> None:
        """Remove the template, and the database that was prepared for the next test."""
        try:
            if self._spare is not None:
                self.drop(self._spare.result())
            self._loop_thread.do(self._end())
        finally:
            self._loop_thread.close()

    async def _clone(self) -> Database:
        administration = self._administration
        if administration is None:
            administration = self._administration = await self._stack.enter_async_context(
                open_connection(self.url)
            )
        if not self._has_template:
            await disposable.create_template(administration, self.url, self._template)
            self._has_template = True
        name = f"{self._template}_{next(self._numbers)}"
        await disposable.clone(administration, self._template, name)
        return Database(self._server.url_of(name), name, self._loop_thread)

    async def _drop(self, database: Database) -> None:
        await database.close()
        if self._administration is not None:
            await disposable.drop(self._administration, database.name)

    async def _end(self) -> None:
        if self._administration is not None:
            await disposable.drop(self._administration, self._template)
        await self._stack.aclose()


@dataclass(eq=False)
class Database:
    """The database of one test. Its queries run in another thread, not on the test's event loop."""

    url: str
    name: str
    _loop_thread: LoopThread

    def __post_init__(self) -> None:
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None

    def fetch(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Return the rows of a query."""

        async def ask(connection: Connection) -> list[dict[str, Any]]:
            return [dict(row) for row in await connection.fetch(query, *arguments)]

        return self._ask(ask)

    def execute(self, script: str) -> None:
        """Run statements, for example to create the test's own tables."""

        async def ask(connection: Connection) -> None:
            await connection.execute(script)

        self._ask(ask)

    def submitted(self) -> list[dict[str, Any]]:
        """Return every execution as submitted, oldest first."""
        return self._ask(disposable.submitted)

    def examine(self) -> Report:
        """Return the report of `flowfabric doctor`."""
        return self._ask(lambda connection: examine(connection, is_throwaway=True))

    def skip(self, span: timedelta, living: Sequence[str] = ()) -> datetime:
        """Move the clock of the database forward. The workers in `living` keep their leases."""
        return self._ask(lambda connection: disposable.skip(connection, span, living))

    def _ask(self, question: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            if self._connection is None:
                self._connection = await self._stack.enter_async_context(open_connection(self.url))
            return await question(self._connection)

        return self._loop_thread.do(ask())

    async def close(self) -> None:
        """Close the connection."""
        self._connection = None
        await self._stack.aclose()
