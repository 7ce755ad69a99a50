"""Call the engine on a connection of user code, inside the transaction of that connection.

A connection is recognised by the name of its class, so that this module imports no driver.
"""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from flowfabric.core.errors import FlowFabricError, InvalidInput, SchemaMismatch
from flowfabric.db.functions import Function

ACCEPTED = (
    "an asyncpg or psycopg connection, a SQLAlchemy session or connection, or a Django connection"
)

_NO_SCHEMA = {"3F000", "42883", "42P01"}
_NO_RIGHT = "42501"


@dataclass(frozen=True, slots=True)
class Operation:
    """An engine function, with the SQL text of a call for each style of placeholders."""

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


class CallerConnection(ABC):
    """An adapter for a connection of the caller. Engine calls join the caller's transaction."""

    is_async: ClassVar[bool]

    def __init__(self, connection: Any, field: str = "via") -> None:
        self._connection = connection
        # The name of the argument or setting that holds the connection, for error messages.
        self._field = field

    @property
    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open on the connection."""
        return bool(self._connection.in_transaction())

    def _check_transaction(self, is_open: bool, instead: str) -> None:
        if not is_open:
            raise InvalidInput(
                field=self._field,
                problem=f"this connection is not in a transaction: {instead}"
                + (", or omit via" if self._field == "via" else ""),
            )

    def _check_postgres(self, system: str) -> None:
        if system != "postgresql":
            raise InvalidInput(
                field=self._field, problem=f"is a connection to {system}, not PostgreSQL"
            )


class SyncConnection(CallerConnection):
    """An adapter for a synchronous driver. Calls run in the caller's thread."""

    is_async = False

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager that runs its `with` block in one transaction."""
        block: AbstractContextManager[Any] = self._connection.begin()
        return block

    def flush(self) -> None:
        """Send the pending changes of an ORM session. For other connections, do nothing."""

    @abstractmethod
    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        """Call an engine function inside the caller's transaction."""


class AsyncConnection(CallerConnection):
    """An adapter for an async driver. Calls run on the caller's event loop."""

    is_async = True

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Return a context manager that runs its `async with` block in one transaction."""
        block: AbstractAsyncContextManager[Any] = self._connection.begin()
        return block

    async def flush(self) -> None:
        """Send the pending changes of an ORM session. For other connections, do nothing."""

    @abstractmethod
    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        """Call an engine function inside the caller's transaction."""


class Asyncpg(AsyncConnection):
    @property
    def is_in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        block: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return block

    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        connection = self._connection
        self._check_transaction(
            connection.is_in_transaction(), "open one with `async with connection.transaction():`"
        )
        return str(await connection.fetchval(operation.numbered, *args))


_PSYCOPG_IDLE = 0


class Psycopg(SyncConnection):
    @property
    def is_in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status != _PSYCOPG_IDLE)

    def transaction(self) -> AbstractContextManager[Any]:
        block: AbstractContextManager[Any] = self._connection.transaction()
        return block

    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        self._check_transaction(
            _has_transaction(self._connection), "open one with `with connection.transaction():`"
        )
        # Do not use the cursor and row types that the caller configured.
        psycopg = sys.modules["psycopg"]
        with psycopg.Cursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            return str(cursor.execute(operation.by_position, args).fetchone()[0])


class PsycopgAsync(AsyncConnection):
    @property
    def is_in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status != _PSYCOPG_IDLE)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        block: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return block

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
    """Return True if a transaction is open, or if the next statement would open one.

    `connection` is a connection of psycopg.
    """
    return not connection.autocommit or connection.info.transaction_status != _PSYCOPG_IDLE


class SqlAlchemy(SyncConnection):
    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return self._call(self._connection, operation, args)

    def _call(self, connection: Any, operation: Operation, args: Sequence[Any]) -> str:
        self._check_postgres(connection.dialect.name)
        driver = connection.connection.dbapi_connection
        self._check_transaction(
            not getattr(driver, "autocommit", False),
            "use an isolation level other than AUTOCOMMIT",
        )
        values = {f"p{number}": value for number, value in enumerate(args, 1)}
        statement = sys.modules["sqlalchemy"].text(operation.named)
        return str(connection.execute(statement, values).scalar_one())


class SqlAlchemySession(SqlAlchemy):
    def flush(self) -> None:
        self._connection.flush()

    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return self._call(self._connection.connection(), operation, args)


class SqlAlchemyAsync(AsyncConnection):
    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return await self._call(self._connection, operation, args)

    async def _call(self, connection: Any, operation: Operation, args: Sequence[Any]) -> str:
        # An async connection of SQLAlchemy wraps a synchronous one. run_sync calls the inner one.
        found: str = await connection.run_sync(
            lambda inner: SqlAlchemy(inner, self._field).call(operation, args)
        )
        return found


class SqlAlchemyAsyncSession(SqlAlchemyAsync):
    async def flush(self) -> None:
        await self._connection.flush()

    async def call(self, operation: Operation, args: Sequence[Any]) -> str:
        return await self._call(await self._connection.connection(), operation, args)


class Django(SyncConnection):
    @property
    def is_in_transaction(self) -> bool:
        return bool(self._connection.in_atomic_block)

    def transaction(self) -> AbstractContextManager[Any]:
        atomic = sys.modules["django.db.transaction"].atomic
        block: AbstractContextManager[Any] = atomic(using=self._connection.alias)
        return block

    def call(self, operation: Operation, args: Sequence[Any]) -> str:
        connection = self._connection
        self._check_postgres(connection.vendor)
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


def recognise(via: Any, field: str = "via") -> SyncConnection | AsyncConnection:
    """Return the adapter for a caller's connection; raise InvalidInput for an unknown type."""
    for kind in type(via).__mro__:
        found = _KINDS.get((kind.__module__.partition(".")[0], kind.__qualname__))
        if found is not None:
            return found(via, field)
    shown = f"{type(via).__module__}.{type(via).__qualname__}"
    raise InvalidInput(field=field, problem=f"must be {ACCEPTED}, not {shown}")


@contextmanager
def converting_errors(operation: Operation, field: str = "via") -> Iterator[None]:
    """Convert errors of the engine that the `with` block raises to errors of flowfabric.

    If the engine function or the right to call it is missing, raise SchemaMismatch. Other errors
    pass through unchanged.
    """
    try:
        yield
    except Exception as error:
        converted = _convert(error, operation, field)
        if converted is None:
            raise
        raise converted from error


def _convert(error: Exception, operation: Operation, field: str) -> FlowFabricError | None:
    cause = cause_of(error)
    state = sqlstate_of(cause)
    if state.startswith("WF"):
        diagnosis = getattr(cause, "diag", None)
        detail = getattr(diagnosis, "message_detail", None) or getattr(cause, "detail", None)
        return FlowFabricError.from_engine(state, json.loads(detail) if detail else {})
    if state in _NO_SCHEMA:
        return SchemaMismatch(
            f"The database of the connection given as {field} lacks {operation.name} ({cause}). If "
            "it is the app's database, run: flowfabric db migrate"
        )
    if state == _NO_RIGHT:
        return SchemaMismatch(
            f"The role of the connection given as {field} may not call {operation.name} "
            f"({cause}). Grant it the role flowfabric_app"
        )
    return None


def cause_of(error: BaseException) -> Any:
    """Return the error of the driver that caused `error`.

    SQLAlchemy and Django wrap the errors of drivers. If `error` is not wrapped, return it.
    """
    for source in (error, getattr(error, "orig", None), error.__cause__):
        if sqlstate_of(source):
            return source
    return error


def sqlstate_of(error: Any) -> str:
    """Return the SQLSTATE of a driver's error, or an empty string."""
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")
