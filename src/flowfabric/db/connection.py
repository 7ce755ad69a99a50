"""Open the connection of an administrative command, and translate errors of an unreachable
database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import asyncpg

from flowfabric.core.errors import ConnectionLost, InvalidInput, Unavailable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[Any] | PoolConnectionProxy[Any]

CONNECT_TIMEOUT_SECONDS = 10.0
# The server shuts down, but the connection is not closed yet. InternalClientError: the driver read
# the shutdown message between two statements and accepts no further one.
_GOOD_BYES = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,
)


@asynccontextmanager
async def open_connection(
    url: str, *, timeout: float = CONNECT_TIMEOUT_SECONDS, statement_cache_size: int = 100
) -> AsyncIterator[Connection]:
    """Open one connection for the block; raise `Unavailable` if it cannot be opened or is lost."""
    try:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            url, timeout=timeout, statement_cache_size=statement_cache_size
        )
    except ValueError as error:
        # The URL is malformed, so a repeat would not help. It may hold a password: do not show it.
        raise InvalidInput(field="database_url", problem=str(error)) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise Unavailable(f"Cannot reach the database at {place(url)}: {_reason(error)}") from error
    try:
        yield connection
    except (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
    ) as error:
        if not connection.is_closed() and not isinstance(error, _GOOD_BYES):
            raise
        connection.terminate()
        raise ConnectionLost(
            f"Lost the connection to the database at {place(url)}: {_reason(error)}"
        ) from error
    finally:
        if not connection.is_closed():
            await connection.close(timeout=timeout)


def place(url: str) -> str:
    """Return host and database of a URL, without user and password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["localhost"])[0]
    return f"{host}{parts.path}"


def read_only(url: str) -> str:
    """Return a URL whose connections refuse to write."""
    parts = urlsplit(url)
    setting = "default_transaction_read_only=on"
    return parts._replace(query=f"{parts.query}&{setting}" if parts.query else setting).geturl()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
