"""Call the engine.

This module times and counts every call, and converts the errors of the engine and the driver to
errors of flowfabric. After a conflict or a lost connection, it repeats the call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from flowfabric.core.errors import (
    ConnectionLost,
    FlowFabricError,
    InvalidInput,
    MissingRole,
    ReadOnlyServer,
    RetryExhausted,
    SchemaMismatch,
    Unavailable,
)
from flowfabric.db.grants import APP_ROLE, OPERATOR_ROLE, operator_functions
from flowfabric.db.library import package_source
from flowfabric.telemetry import Meter

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection
    from flowfabric.db.functions import Statement

Rows: TypeAlias = list[asyncpg.Record]

# Serialisation failure and deadlock: the transaction changed nothing and can run again.
_CONFLICTS = {"40001", "40P01"}
# A migration replaced the function library between the look-up of a function and its call.
_REPLACED = "cache lookup failed for function"
_LOCK_TIMEOUT = "55P03"
_CONFLICT_PAUSES = (0.005, 0.010)

# The server shuts down, starts, or has no free connection. The call may have taken effect; every
# call of the engine may be repeated (decision 0010).
_SERVER_GONE = {"57P01", "57P02", "57P03", "57P05", "53300"}
_RECONNECT_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)

_SCHEMA_ERRORS = {"42883", "42P01", "42703", "3F000"}

# How long a call waits for an unreachable database, by default.
PATIENCE_SECONDS = 10.0
# A connection that does not answer for this long counts as dead. A call takes milliseconds, and
# waits for a lock for at most 2 s. The kernel would notice a dead connection after 15 minutes.
ANSWER_SECONDS = 10.0


async def invoke(connection: Connection, statement: Statement, args: Sequence[Any]) -> Rows:
    """Run one statement on one connection; convert errors as `translated` does."""
    try:
        return await connection.fetch(statement.text, *args, timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        connection.terminate()
        raise _Silent(f"no answer within {ANSWER_SECONDS:g} s") from error
    except asyncpg.InternalClientError as error:
        # The driver has read the shutdown message of the server but has not closed the connection.
        connection.terminate()
        raise _Gone(str(error)) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translated(error, statement.name) from error


async def retrying(
    meter: Meter,
    statement: Statement,
    attempt: Callable[[], Awaitable[Rows]],
    *,
    patience: float = PATIENCE_SECONDS,
) -> Rows:
    """Run `attempt`, and repeat it after a conflict or a lost connection.

    After conflicts, repeat it at most twice. If `patience` is 0, never repeat it after a lost
    connection. Otherwise repeat it for up to `patience` seconds. If a connection did not answer,
    repeat it once more even after this time, because most likely only that connection is dead.
    """
    started = perf_counter()
    failure: str | None = None
    rows: Rows = []
    conflicts = losses = 0
    may_overrun = patience > 0
    deadline = monotonic() + patience
    try:
        while True:
            try:
                rows = await attempt()
                return rows
            except _Conflict as error:
                if conflicts == len(_CONFLICT_PAUSES):
                    raise RetryExhausted(operation=statement.name) from error
                await asyncio.sleep(_CONFLICT_PAUSES[conflicts])
                conflicts += 1
            except _Gone as error:
                pause = _RECONNECT_PAUSES[min(losses, len(_RECONNECT_PAUSES) - 1)]
                is_late = monotonic() + pause > deadline
                if is_late and may_overrun and is_silent(error):
                    may_overrun = False
                elif is_late:
                    raise ConnectionLost(
                        f"The database did not answer {statement.name} for {patience:g} s: {error}",
                        operation=statement.name,
                    ) from error
                await asyncio.sleep(pause)
                losses += 1
    except BaseException as error:
        failure = type(error).__name__
        raise
    finally:
        meter.record(statement.name, perf_counter() - started, len(rows), failure)


class _Conflict(Exception):
    """The server rolled back the transaction because of a concurrent transaction."""


class _Gone(Exception):
    """The connection is lost. It is not known whether the call took effect."""


class _Silent(_Gone):
    """The connection did not answer in time, so it counts as dead."""


def translated(error: Exception, operation: str) -> Exception:
    """Convert an error of the driver or of the server to an error of flowfabric."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state.startswith("WF"):
            return FlowFabricError.from_engine(state, _facts(error))
        if state in _CONFLICTS or (state == "XX000" and _REPLACED in str(error)):
            return _Conflict(str(error))
        if state == _LOCK_TIMEOUT:
            return RetryExhausted(operation=operation)
        if state in _SERVER_GONE or state.startswith("08"):
            return _Gone(str(error))
        if state in _SCHEMA_ERRORS:
            return SchemaMismatch(
                f"The schema does not support {operation} ({error}). Run: flowfabric db migrate"
            )
        if state == "25006":
            return ReadOnlyServer(f"{operation} writes, and this connection is read-only.")
        if state == "42501":
            return _without_right(error, operation)
        if state[:2] in ("22", "23", "54"):
            return InvalidInput(field="item", problem=f"the database cannot store it: {error}")
        return Unavailable(f"{operation} failed in the database: {error}", sqlstate=state)
    if isinstance(error, asyncpg.DataError):
        return InvalidInput(field="item", problem=f"the driver cannot send it: {error}")
    return _Gone(str(error) or type(error).__name__)


def _without_right(error: Exception, operation: str) -> FlowFabricError:
    """Return the error for a call that the login of this process may not make.

    Every login needs the app role. If the login lacks even this role, the installation is wrong,
    so the error is a SchemaMismatch.
    """
    is_for_operators = operation in _for_operators()
    role = OPERATOR_ROLE if is_for_operators else APP_ROLE
    text = (
        f"The login of this process may not call {operation} ({error}). Grant it the role {role}, "
        "then run as the owner: flowfabric db migrate"
    )
    return MissingRole(text, role=role) if is_for_operators else SchemaMismatch(text)


@cache
def _for_operators() -> frozenset[str]:
    return operator_functions(package_source().library())


def lost(error: BaseException) -> bool:
    """Return whether an error means that the connection must be discarded."""
    return isinstance(error, _Gone)


def is_silent(error: BaseException) -> bool:
    """Return whether an error means that a connection did not answer in time."""
    return isinstance(error, _Silent)


def gone(error: Exception) -> Exception:
    """Convert the error of a failed attempt to connect into an error of flowfabric."""
    if isinstance(
        error, asyncpg.InvalidAuthorizationSpecificationError | asyncpg.InvalidCatalogNameError
    ):
        return Unavailable(f"The database refused the connection: {error}")
    return _Gone(str(error) or type(error).__name__)


def _facts(error: asyncpg.PostgresError) -> dict[str, Any]:
    try:
        facts = json.loads(error.detail or "{}")
    except ValueError:
        facts = {"detail": error.detail}
    return facts if isinstance(facts, dict) else {"detail": facts}
