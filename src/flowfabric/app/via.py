"""`via=`: submits a task or a flow inside the transaction of the caller's own connection.

The execution exists if and only if that transaction commits. A connection without a transaction is
refused. The type of the connection is recognised by its name, so that no driver has to be
installed.
"""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from flowfabric.client import FlowFabric
from flowfabric.client.submissions import (
    JSON,
    Ask,
    Place,
    Plan,
    carry_out,
    carry_out_sync,
    flow_plan,
    submit_all_plan,
)
from flowfabric.core.errors import (
    FlowFabricError,
    InvalidInput,
    SchemaMismatch,
    UnknownRoute,
)
from flowfabric.core.execution import Submission, Submitted
from flowfabric.core.flow import FlowSubmitted, Graph
from flowfabric.db import functions
from flowfabric.db.functions import Function

T = TypeVar("T")

ACCEPTED = (
    "an asyncpg or psycopg connection, a SQLAlchemy session or connection, or a Django connection"
)

_NO_SCHEMA = {"3F000", "42883", "42P01"}
_NO_RIGHT = "42501"


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of an engine function, as text for each driver."""

    function: Function
    by_position: str
    named: str

    @classmethod
    def of(cls, function: Function) -> Operation:
        text = function.text
        return cls(function, re.sub(r"\$\d+", "%s", text), re.sub(r"\$(\d+)", r":p\1", text))

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def numbered(self) -> str:
        return self.function.text


_OPERATIONS = {one: Operation.of(one) for one in (functions.SUBMIT_JSON, functions.SUBMIT_FLOW)}


class CallerConnection(ABC):
    """A connection of the caller, in whose transaction we submit."""

    is_async: ClassVar[bool]

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _check_transaction(self, is_open: bool, instead: str) -> None:
        if not is_open:
            raise InvalidInput(
                field="via",
                problem=f"this connection is not in a transaction: {instead}, or omit via",
            )


class SyncConnection(CallerConnection):
    """A connection that answers in the caller's thread."""

    is_async = False

    @abstractmethod
    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        """Call an engine function inside the caller's transaction."""


class AsyncConnection(CallerConnection):
    """A connection that answers on the caller's event loop."""

    is_async = True

    @abstractmethod
    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        """Call an engine function inside the caller's transaction."""


class Asyncpg(AsyncConnection):
    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        connection = self._connection
        self._check_transaction(
            connection.is_in_transaction(), "open one with `async with connection.transaction():`"
        )
        return str(await connection.fetchval(operation.numbered, *args))


_PSYCOPG_IDLE = 0


class Psycopg(SyncConnection):
    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        self._check_transaction(
            _has_transaction(self._connection), "open one with `with connection.transaction():`"
        )
        # The connection may have its own kind of cursor and row.
        psycopg = sys.modules["psycopg"]
        with psycopg.Cursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            return str(cursor.execute(operation.by_position, args).fetchone()[0])


class PsycopgAsync(AsyncConnection):
    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        self._check_transaction(
            _has_transaction(self._connection),
            "open one with `async with connection.transaction():`",
        )
        psycopg = sys.modules["psycopg"]
        rows = psycopg.rows.tuple_row
        async with psycopg.AsyncCursor(self._connection, row_factory=rows) as cursor:
            await cursor.execute(operation.by_position, args)
            return str((await cursor.fetchone())[0])


def _has_transaction(connection: Any) -> bool:
    """Tell whether psycopg is in a transaction, or begins one with the next statement."""
    return not connection.autocommit or connection.info.transaction_status != _PSYCOPG_IDLE


class SqlAlchemy(SyncConnection):
    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return self._call(self._connection, operation, args)

    def _call(self, connection: Any, operation: Operation, args: Sequence[Any]) -> str:
        if connection.dialect.name != "postgresql":
            raise InvalidInput(
                field="via", problem=f"is a connection to {connection.dialect.name}, not PostgreSQL"
            )
        driver = connection.connection.dbapi_connection
        self._check_transaction(
            not getattr(driver, "autocommit", False),
            "use an isolation level other than AUTOCOMMIT",
        )
        values = {f"p{number}": value for number, value in enumerate(args, 1)}
        statement = sys.modules["sqlalchemy"].text(operation.named)
        return str(connection.execute(statement, values).scalar_one())


class SqlAlchemySession(SqlAlchemy):
    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return self._call(self._connection.connection(), operation, args)


class SqlAlchemyAsync(AsyncConnection):
    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return await self._call(self._connection, operation, args)

    async def _call(self, connection: Any, operation: Operation, args: Sequence[Any]) -> str:
        # It wraps a synchronous connection; run_sync lets us await it.
        found: str = await connection.run_sync(
            lambda inner: SqlAlchemy(inner).call(operation, args)
        )
        return found


class SqlAlchemyAsyncSession(SqlAlchemyAsync):
    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return await self._call(await self._connection.connection(), operation, args)


class Django(SyncConnection):
    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        connection = self._connection
        if connection.vendor != "postgresql":
            raise InvalidInput(
                field="via", problem=f"is a connection to {connection.vendor}, not PostgreSQL"
            )
        self._check_transaction(
            connection.in_atomic_block or not connection.get_autocommit(),
            "open one with `with transaction.atomic():`",
        )
        with connection.cursor() as cursor:
            cursor.execute(operation.by_position, args)
            return str(cursor.fetchone()[0])


_KINDS: dict[tuple[str, str], type[SyncConnection] | type[AsyncConnection]] = {
    ("asyncpg", "Connection"): Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): Asyncpg,
    ("psycopg", "Connection"): Psycopg,
    ("psycopg", "AsyncConnection"): PsycopgAsync,
    ("sqlalchemy", "Session"): SqlAlchemySession,
    ("sqlalchemy", "scoped_session"): SqlAlchemySession,
    ("sqlalchemy", "Connection"): SqlAlchemy,
    ("sqlalchemy", "AsyncSession"): SqlAlchemyAsyncSession,
    ("sqlalchemy", "async_scoped_session"): SqlAlchemyAsyncSession,
    ("sqlalchemy", "AsyncConnection"): SqlAlchemyAsync,
    ("django", "BaseDatabaseWrapper"): Django,
    ("django", "ConnectionProxy"): Django,
}


def recognise(via: Any) -> SyncConnection | AsyncConnection:
    """Return the adapter for a caller's connection; InvalidInput for anything else."""
    for kind in type(via).__mro__:
        found = _KINDS.get((kind.__module__.partition(".")[0], kind.__qualname__))
        if found is not None:
            return found(via)
    shown = f"{type(via).__module__}.{type(via).__qualname__}"
    raise InvalidInput(field="via", problem=f"must be {ACCEPTED}, not {shown}")


def _unknown(answer: UnknownRoute) -> UnknownRoute:
    return UnknownRoute(
        "This transaction does not see the route of the task, because the route was registered "
        "after the transaction began (REPEATABLE READ or SERIALIZABLE). Roll back and try again.",
        **answer.facts,
    )


async def submit_via(
    client: FlowFabric, via: Any, submissions: Sequence[Submission], *, instead: str
) -> list[Submitted]:
    """Submit on an async connection of the caller."""
    connection = _async_connection(via, f"use {instead}(..., via=...)")
    place = await client.transactional.place(submissions)
    return await _carry_out(submit_all_plan(JSON, submissions, place), connection, client)


def submit_via_sync(
    find: Callable[[bool], Place], via: Any, submissions: Sequence[Submission], *, instead: str
) -> list[Submitted]:
    """Submit on a synchronous connection of the caller, in the caller's thread.

    `find` looks up the routes on our own connection; with True it forgets the known ones first.
    """
    connection = _sync_connection(via, f"use await {instead}(..., via=...)")
    return _carry_out_sync(submit_all_plan(JSON, submissions, find(False)), connection, find)


async def submit_flow_via(client: FlowFabric, via: Any, graph: Graph) -> FlowSubmitted:
    """Store a flow on an async connection of the caller."""
    connection = _async_connection(via, "use `with app.flow(..., via=...)`, without async,")
    graph.check()
    place = await client.transactional.place([node.submission for node in graph.nodes])
    return await _carry_out(flow_plan(graph, place), connection, client)


def submit_flow_via_sync(find: Callable[[bool], Place], via: Any, graph: Graph) -> FlowSubmitted:
    """Store a flow on a synchronous connection of the caller, in the caller's thread."""
    connection = _sync_connection(via, "use `async with app.flow(..., via=...)`")
    graph.check()
    return _carry_out_sync(flow_plan(graph, find(False)), connection, find)


def _async_connection(via: Any, instead: str) -> AsyncConnection:
    connection = recognise(via)
    if not isinstance(connection, AsyncConnection):
        raise InvalidInput(
            field="via",
            problem=f"is a synchronous connection ({_name(via)}); {instead} in the thread that "
            "owns it",
        )
    return connection


def _sync_connection(via: Any, instead: str) -> SyncConnection:
    connection = recognise(via)
    if not isinstance(connection, SyncConnection):
        raise InvalidInput(
            field="via",
            problem=f"is an asynchronous connection ({_name(via)}); {instead} on its event loop",
        )
    return connection


async def _carry_out(plan: Plan[T], connection: AsyncConnection, client: FlowFabric) -> T:
    async def call(one: Ask) -> str:
        operation = _OPERATIONS[one.function]
        with _converting_errors(operation):
            return await connection.call(operation, one.function.bind(one.arguments))

    async def find(submissions: Sequence[Submission]) -> Place:
        return await client.transactional.place(submissions, anew=True)

    try:
        return await carry_out(plan, call, find)
    except UnknownRoute as error:
        raise _unknown(error) from error


def _carry_out_sync(plan: Plan[T], connection: SyncConnection, find: Callable[[bool], Place]) -> T:
    def call(one: Ask) -> str:
        operation = _OPERATIONS[one.function]
        with _converting_errors(operation):
            return connection.call(operation, one.function.bind(one.arguments))

    try:
        return carry_out_sync(plan, call, lambda _: find(True))
    except UnknownRoute as error:
        raise _unknown(error) from error


@contextmanager
def _converting_errors(operation: Operation) -> Iterator[None]:
    """Convert errors of the engine; errors of the caller's connection stay as they are."""
    try:
        yield
    except Exception as error:
        converted = _convert(error, operation)
        if converted is None:
            raise
        raise converted from error


def _convert(error: Exception, operation: Operation) -> FlowFabricError | None:
    cause: Any = error
    for source in (error, getattr(error, "orig", None), error.__cause__):
        if _sqlstate(source):
            cause = source
            break
    state = _sqlstate(cause)
    if state.startswith("WF"):
        diagnosis = getattr(cause, "diag", None)
        detail = getattr(diagnosis, "message_detail", None) or getattr(cause, "detail", None)
        return FlowFabricError.from_engine(state, json.loads(detail) if detail else {})
    if state in _NO_SCHEMA:
        return SchemaMismatch(
            f"The database of the connection given as via lacks {operation.name} ({cause}). If it "
            "is the app's database, run: flowfabric db migrate"
        )
    if state == _NO_RIGHT:
        return SchemaMismatch(
            f"The role of the connection given as via may not call {operation.name} ({cause}). "
            "Grant it the role flowfabric_app"
        )
    return None


def _sqlstate(error: Any) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _name(via: Any) -> str:
    return f"{type(via).__module__.partition('.')[0]} {type(via).__name__}"
