"""`via=`: a submit, of a task or of a whole flow, that joins the transaction of the caller's own
connection.

The connection is known by its type, looked at by name, so that no driver has to be installed. The
execution exists if and only if that transaction commits. A connection without a transaction is
refused: what it was given for could not be kept.
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
    """A call of the engine, in the words of each driver."""

    function: Function
    by_place: str
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


class Joined(ABC):
    """A caller's connection that can carry a submit."""

    is_async: ClassVar[bool]

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _in_transaction(self, is_so: bool, instead: str) -> None:
        if not is_so:
            raise InvalidInput(
                field="via",
                problem=f"this connection is not in a transaction, so there is nothing to join: "
                f"{instead}, or leave via out",
            )


class SyncJoined(Joined):
    """One that answers in the caller's thread."""

    is_async = False

    @abstractmethod
    def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        """Submit inside the caller's transaction."""


class AsyncJoined(Joined):
    """One that answers on the caller's event loop."""

    is_async = True

    @abstractmethod
    async def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        """Submit inside the caller's transaction."""


class Asyncpg(AsyncJoined):
    async def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        connection = self._connection
        self._in_transaction(
            connection.is_in_transaction(), "open one with `async with connection.transaction():`"
        )
        return str(await connection.fetchval(operation.numbered, *args))


_PSYCOPG_IDLE = 0


class Psycopg(SyncJoined):
    def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        self._in_transaction(
            _begins(self._connection), "open one with `with connection.transaction():`"
        )
        # Its own kind of cursor and row may be set on the connection.
        psycopg = sys.modules["psycopg"]
        with psycopg.Cursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            return str(cursor.execute(operation.by_place, args).fetchone()[0])


class PsycopgAsync(AsyncJoined):
    async def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        self._in_transaction(
            _begins(self._connection), "open one with `async with connection.transaction():`"
        )
        psycopg = sys.modules["psycopg"]
        rows = psycopg.rows.tuple_row
        async with psycopg.AsyncCursor(self._connection, row_factory=rows) as cursor:
            await cursor.execute(operation.by_place, args)
            return str((await cursor.fetchone())[0])


def _begins(connection: Any) -> bool:
    """Whether psycopg is in a transaction, or begins one with the next statement."""
    return not connection.autocommit or connection.info.transaction_status != _PSYCOPG_IDLE


class SqlAlchemy(SyncJoined):
    def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        return self._ask(self._connection, operation, args)

    def _ask(self, connection: Any, operation: Operation, args: Sequence[Any]) -> str:
        if connection.dialect.name != "postgresql":
            raise InvalidInput(
                field="via", problem=f"is a connection to {connection.dialect.name}, not PostgreSQL"
            )
        driver = connection.connection.dbapi_connection
        self._in_transaction(
            not getattr(driver, "autocommit", False),
            "use an isolation level other than AUTOCOMMIT",
        )
        values = {f"p{number}": value for number, value in enumerate(args, 1)}
        statement = sys.modules["sqlalchemy"].text(operation.named)
        return str(connection.execute(statement, values).scalar_one())


class SqlAlchemySession(SqlAlchemy):
    def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        return self._ask(self._connection.connection(), operation, args)


class SqlAlchemyAsync(AsyncJoined):
    async def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        return await self._ask(self._connection, operation, args)

    async def _ask(self, connection: Any, operation: Operation, args: Sequence[Any]) -> str:
        # Below it is the synchronous one, called so that its waiting is ours.
        found: str = await connection.run_sync(lambda inner: SqlAlchemy(inner).ask(operation, args))
        return found


class SqlAlchemyAsyncSession(SqlAlchemyAsync):
    async def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        return await self._ask(await self._connection.connection(), operation, args)


class Django(SyncJoined):
    def ask(self, operation: Operation, args: Sequence[Any]) -> str:
        connection = self._connection
        if connection.vendor != "postgresql":
            raise InvalidInput(
                field="via", problem=f"is a connection to {connection.vendor}, not PostgreSQL"
            )
        self._in_transaction(
            connection.in_atomic_block or not connection.get_autocommit(),
            "open one with `with transaction.atomic():`",
        )
        with connection.cursor() as cursor:
            cursor.execute(operation.by_place, args)
            return str(cursor.fetchone()[0])


_KINDS: dict[tuple[str, str], type[SyncJoined] | type[AsyncJoined]] = {
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


def recognise(via: Any) -> SyncJoined | AsyncJoined:
    """The way to use a caller's connection; InvalidInput for anything else."""
    for kind in type(via).__mro__:
        found = _KINDS.get((kind.__module__.partition(".")[0], kind.__qualname__))
        if found is not None:
            return found(via)
    shown = f"{type(via).__module__}.{type(via).__qualname__}"
    raise InvalidInput(field="via", problem=f"must be {ACCEPTED}, not {shown}")


def _unknown(answer: UnknownRoute) -> UnknownRoute:
    return UnknownRoute(
        "This transaction does not see the route of the task, which was registered after it began "
        "(it is REPEATABLE READ or SERIALIZABLE). Roll it back and try again.",
        **answer.facts,
    )


async def submit_joined(
    client: FlowFabric, via: Any, submissions: Sequence[Submission], *, instead: str
) -> list[Submitted]:
    """Submit on a caller's asynchronous connection."""
    joined = _asynchronous(via, f"use {instead}(..., via=...)")
    place = await client.transactional.place(submissions)
    return await _carry_out(submit_all_plan(JSON, submissions, place), joined, client)


def submit_joined_sync(
    find: Callable[[bool], Place], via: Any, submissions: Sequence[Submission], *, instead: str
) -> list[Submitted]:
    """Submit on a caller's synchronous connection, in the caller's thread. `find` asks our own
    connection for the place; with True, anew."""
    joined = _synchronous(via, f"use await {instead}(..., via=...)")
    return _carry_out_sync(submit_all_plan(JSON, submissions, find(False)), joined, find)


async def submit_flow_joined(client: FlowFabric, via: Any, graph: Graph) -> FlowSubmitted:
    """Store a flow on a caller's asynchronous connection."""
    joined = _asynchronous(via, "use `with app.flow(..., via=...)`, without async,")
    graph.check()
    place = await client.transactional.place([node.submission for node in graph.nodes])
    return await _carry_out(flow_plan(graph, place), joined, client)


def submit_flow_joined_sync(find: Callable[[bool], Place], via: Any, graph: Graph) -> FlowSubmitted:
    """Store a flow on a caller's synchronous connection, in the caller's thread."""
    joined = _synchronous(via, "use `async with app.flow(..., via=...)`")
    graph.check()
    return _carry_out_sync(flow_plan(graph, find(False)), joined, find)


def _asynchronous(via: Any, instead: str) -> AsyncJoined:
    joined = recognise(via)
    if not isinstance(joined, AsyncJoined):
        raise InvalidInput(
            field="via",
            problem=f"is a synchronous connection ({_name(via)}); {instead} in the thread that "
            "owns it",
        )
    return joined


def _synchronous(via: Any, instead: str) -> SyncJoined:
    joined = recognise(via)
    if not isinstance(joined, SyncJoined):
        raise InvalidInput(
            field="via",
            problem=f"is an asynchronous connection ({_name(via)}); {instead} on its event loop",
        )
    return joined


async def _carry_out(plan: Plan[T], joined: AsyncJoined, client: FlowFabric) -> T:
    async def ask(one: Ask) -> str:
        operation = _OPERATIONS[one.function]
        with _explaining(operation):
            return await joined.ask(operation, one.function.bind(one.arguments))

    async def find(submissions: Sequence[Submission]) -> Place:
        return await client.transactional.place(submissions, anew=True)

    try:
        return await carry_out(plan, ask, find)
    except UnknownRoute as error:
        raise _unknown(error) from error


def _carry_out_sync(plan: Plan[T], joined: SyncJoined, find: Callable[[bool], Place]) -> T:
    def ask(one: Ask) -> str:
        operation = _OPERATIONS[one.function]
        with _explaining(operation):
            return joined.ask(operation, one.function.bind(one.arguments))

    try:
        return carry_out_sync(plan, ask, lambda _: find(True))
    except UnknownRoute as error:
        raise _unknown(error) from error


@contextmanager
def _explaining(operation: Operation) -> Iterator[None]:
    """Our word for what concerns us; what concerns the caller's connection stays the driver's."""
    try:
        yield
    except Exception as error:
        told = _explained(error, operation)
        if told is None:
            raise
        raise told from error


def _explained(error: Exception, operation: Operation) -> FlowFabricError | None:
    cause: Any = error
    for source in (error, getattr(error, "orig", None), error.__cause__):
        if _state(source):
            cause = source
            break
    state = _state(cause)
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


def _state(error: Any) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _name(via: Any) -> str:
    return f"{type(via).__module__.partition('.')[0]} {type(via).__name__}"
