"""Open a connection for an administrative command, and report an unreachable database."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from flowfabric.config import UNREADABLE_URL, plain_url
from flowfabric.core.errors import ConnectionLost, InvalidInput, Unavailable
from flowfabric.db.known_types import KnownTypes

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[Any] | PoolConnectionProxy[Any]

CONNECT_TIMEOUT_SECONDS = 10.0
_DEFAULT_PORT = re.compile(r":5432(?=,|$)")
# The server shuts down, but the connection is still open. InternalClientError: the driver has read
# the shutdown message between two statements and accepts no further statement.
_GOOD_BYES = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,
)


@asynccontextmanager
async def open_connection(
    url: str, *, timeout: float = CONNECT_TIMEOUT_SECONDS, statement_cache_size: int = 100
) -> AsyncIterator[Connection]:
    """Open one connection, and close it at the end of the `async with` block.

    If the connection cannot be opened or is lost during the block, raise `Unavailable`.
    """
    url = plain_url(url)
    try:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            url,
            timeout=timeout,
            statement_cache_size=statement_cache_size,
            connection_class=KnownTypes,
        )
    except asyncpg.exceptions.ClientConfigurationError as error:
        raise InvalidInput(field="database_url", problem=str(error)) from error
    except (ValueError, OverflowError):
        # The message of the error may contain a part of the password.
        raise InvalidInput(field="database_url", problem=UNREADABLE_URL) from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise Unavailable(
            f"Cannot reach the database at {address_of(url)}: {_reason(error)}"
        ) from error
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
            f"Lost the connection to the database at {address_of(url)}: {_reason(error)}"
        ) from error
    finally:
        if not connection.is_closed():
            await connection.close(timeout=timeout)


def address_of(url: str) -> str:
    """Return the host and the database of a URL as text, without user and password.

    The text contains the port if it is not 5432. For an embedded server, the text is `embedded in`
    and the folder of the server.
    """
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = unquote(parts.netloc.rpartition("@")[2])
    if not host:
        host = ":".join([query.get("host", ["localhost"])[0], *query.get("port", [])])
    host = _DEFAULT_PORT.sub("", host)
    if (home := Path(host).parent).name == ".flowfabric" and parts.path == "/flowfabric":
        return f"embedded in {home}"
    return f"{host}{parts.path}"


def read_only(url: str) -> str:
    """Return the URL with a setting that makes its connections read-only."""
    parts = urlsplit(url)
    setting = "default_transaction_read_only=on"
    return parts._replace(query=f"{parts.query}&{setting}" if parts.query else setting).geturl()


def without_password(url: str) -> tuple[str, str | None]:
    """Remove all passwords from a URL. Return the URL and the password of its user.

    If the URL has no password of a user, return None instead of the password. Other passwords, such
    as `sslpassword`, are removed and not returned.
    """
    if not url.startswith("postgresql://"):
        raise InvalidInput(field="database_url", problem="must begin with postgresql://")
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    options = parse_qsl(parts.query, keep_blank_values=True)
    secrets = [value for name, value in options if name == "password"]
    shown = [(name, value) for name, value in options if "password" not in name.lower()]
    if len(shown) < len(options):
        parts = parts._replace(query=urlencode(shown, quote_via=quote))
    given = secrets[-1] if secrets else unquote(password)
    return urlunsplit(parts._replace(netloc=f"{user}{at}{hosts}")), given or None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
