"""Long-lived connections to the database.

A small pool of connections serves most calls. A session is one separate connection, on which a
worker claims, listens or sends heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from flowfabric.config import plain_url
from flowfabric.core.errors import ConnectionLost, FlowFabricError, Unavailable
from flowfabric.db import call, functions
from flowfabric.db.connection import address_of, open_connection
from flowfabric.db.functions import HINT
from flowfabric.db.kept_connections import KeptConnections
from flowfabric.db.known_types import KnownTypes
from flowfabric.db.migrate import verify
from flowfabric.db.outage import Outage
from flowfabric.db.partitions import KnownPartitions, Numbers
from flowfabric.telemetry import ENGINE_LOGGER, Meter

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection
    from flowfabric.db.functions import Statement

Notify = Callable[[str | None], None]
SendHint = Callable[[str, str], Awaitable[None]]

CONNECT_TIMEOUT_SECONDS = 10.0
# Errors of a lost connection. InternalClientError: the driver has read the shutdown message of the
# server but has not closed the connection.
_BROKEN = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
# How many connections user code of one process may hold at a time. Further requests wait.
MAX_LENT = 10
# LISTEN counts as broken if a test hint does not arrive within this time.
HEARING_SECONDS = 1.0

_BACKEND = "select pg_catalog.pg_backend_pid()"


class _Connection(KnownTypes):
    """A connection that is not reset after a call, because calls leave no session state."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A pool of connections to one database. Call `open` before anything else."""

    # Whether calls go through a server, which knows the namespace of its caller.
    is_remote = False
    namespace: str | None = None

    def __init__(self, url: str, *, size: int = 4, name: str = "flowfabric") -> None:
        self.url = url = plain_url(url)
        self.meter = Meter()
        self._outage = Outage(address_of(url))
        self._size = size
        self._name = name
        self._pool: asyncpg.Pool[Any] | None = None
        self._kept: KeptConnections | None = None
        self._lent: asyncpg.Pool[Any] | None = None
        self.is_pooled = False
        # If the tables are distributed, a hint that the engine sends stays on the node of the
        # partition, where no process listens. So the client sends its own hints.
        self.is_distributed = False
        self.partitions = KnownPartitions(self._read_partitions)

    async def open(self) -> Self:
        """Verify that the schema fits this process, then open the pool."""
        async with (
            open_connection(self.url, statement_cache_size=0) as connection,
            _answering(connection),
        ):
            self.is_distributed = (await verify(connection)).is_distributed
            # A pooler reports its own process id. Behind a pooler, a prepared statement may be
            # missing in the next transaction, so use none.
            self.is_pooled = await connection.fetchval(_BACKEND) != connection.get_server_pid()
            row = await connection.fetchrow(functions.READ_PARTITIONS.text)
            self.partitions.note(_numbers(row))
        try:
            self._pool = await asyncpg.create_pool(
                self.url,
                # Keep no minimum of open connections: while the server is down, the driver would
                # try to restore them and log every failure with a traceback.
                min_size=0,
                max_size=self._size,
                connection_class=_Connection,
                timeout=CONNECT_TIMEOUT_SECONDS,
                max_inactive_connection_lifetime=60.0,
                **self._connection_options(self._name),
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise Unavailable(f"Cannot reach the database: {error}") from error
        self._kept = KeptConnections(self._pool, timeout=CONNECT_TIMEOUT_SECONDS)
        return self

    async def close(self) -> None:
        pools, self._pool, self._lent = (self._lent, self._pool), None, None
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.close()
        for pool in pools:
            if pool is not None:
                try:
                    await asyncio.wait_for(pool.close(), 5)
                except TimeoutError:
                    pool.terminate()

    async def call(
        self, statement: Statement, *, patience: float = call.PATIENCE_SECONDS, **arguments: Any
    ) -> call.Rows:
        """Call the engine on any connection of the pool.

        Every argument of the statement must be given.
        """
        args = statement.bind(arguments)

        async def attempt() -> call.Rows:
            if (kept := self._kept) is None:
                raise Unavailable("The connection pool is closed.")
            try:
                connection = await kept.take()
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                raise call.gone(error) from error
            try:
                rows = await call.invoke(connection, statement, args)
            except BaseException as error:
                await kept.discard(connection)
                if call.is_silent(error):
                    await kept.replace_all()
                raise
            await kept.keep(connection)
            return rows

        with self._outage.watched(patience):
            return await call.retrying(self.meter, statement, attempt, patience=patience)

    @property
    def pool_use(self) -> tuple[int, int]:
        """How many connections of the pool are in use, and how many are open but idle."""
        if self._pool is None or self._kept is None:
            return 0, 0
        idle = self._pool.get_idle_size() + self._kept.free
        return max(self._pool.get_size() - idle, 0), idle

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """Lend a connection to user code.

        Lent connections come from a separate pool. So user code that keeps a connection for long
        does not delay calls of the engine.
        """
        if self._lent is None:
            # create_pool() returns an unopened pool; the first acquire opens it.
            self._lent = asyncpg.create_pool(
                self.url,
                min_size=0,
                max_size=MAX_LENT,
                timeout=CONNECT_TIMEOUT_SECONDS,
                max_inactive_connection_lifetime=60.0,
                reset=_reset_lent,
                **self._connection_options(f"{self._name} transactions"),
            )
        pool = await self._lent
        async with pool.acquire() as connection:
            yield connection

    def session(self, name: str) -> Session:
        """Return a new session, which opens its own connection at its first use."""
        options = self._connection_options(f"{self._name} {name}")
        return Session(
            self.url,
            self.meter,
            self._outage,
            options,
            self._hint_from_elsewhere,
            is_distributed=self.is_distributed,
        )

    async def _read_partitions(self) -> Numbers:
        return _numbers((await self.call(functions.READ_PARTITIONS))[0])

    async def _hint_from_elsewhere(self, channel: str, payload: str) -> None:
        """Send a hint. Do not use the connection that waits for the hint."""
        if self._pool is not None and self._pool.get_size():
            await self.call(HINT, channel=channel, payload=payload, patience=0.0)
            return
        # Leave the pool empty: a process that only listens and reads needs one connection.
        async with (
            open_connection(self.url, statement_cache_size=0) as connection,
            _answering(connection),
        ):
            await connection.fetch(HINT.text, *HINT.bind({"channel": channel, "payload": payload}))

    def _connection_options(self, name: str) -> dict[str, Any]:
        return {
            "server_settings": {"application_name": name},
            "statement_cache_size": 0 if self.is_pooled else 100,
        }


def _numbers(row: Any) -> Numbers:
    return Numbers(row["partitions"], row["minted_partitions"], row["keyed_partitions"])


async def _reset_lent(connection: Any) -> None:
    """Undo all settings that user code has made on a lent connection.

    The driver's own reset does not reset the role.
    """
    await connection.reset()
    await connection.execute("reset session authorization")


class Session:
    """One connection. If it was lost, the next call connects and listens again."""

    def __init__(
        self,
        url: str,
        meter: Meter,
        outage: Outage,
        options: dict[str, Any],
        hint: SendHint,
        *,
        is_distributed: bool = False,
    ) -> None:
        self.is_distributed = is_distributed
        self._url = url
        self._meter = meter
        self._outage = outage
        self._options = options
        self._hint = hint
        # None until tested. A transaction pooler accepts LISTEN but never delivers a hint.
        self.can_hear: bool | None = None
        self._connection: asyncpg.Connection[Any] | None = None
        self._channels: dict[str, Notify] = {}
        self._heard: dict[str, Callable[..., None]] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    async def call(
        self, statement: Statement, *, patience: float = call.PATIENCE_SECONDS, **arguments: Any
    ) -> call.Rows:
        """Call the engine on this connection. If another call is running, wait for its end."""
        args = statement.bind(arguments)

        async def attempt() -> call.Rows:
            async with self._lock:
                return await call.invoke(await self._connected(), statement, args)

        with self._outage.watched(patience):
            return await call.retrying(self._meter, statement, attempt, patience=patience)

    async def listen(self, channel: str, notify: Notify, *, trial: bool = True) -> None:
        """Call `notify` with the payload of each hint on a channel.

        Call `notify` with None if hints were possibly missed. When this function returns, LISTEN
        has taken effect or has failed. A failure is only logged, and the caller must then poll.

        If `trial` is true, also test whether hints arrive on this connection, and store the answer
        in `can_hear`. If a connection is lost during the test, raise ConnectionLost. The next call
        of `listen` then repeats the test.
        """
        self._channels[channel] = notify
        async with self._lock:
            connection = await self._connected()
            await self._hear(connection, channel)
            if trial and self.can_hear is None:
                self.can_hear = await self._try_hearing(connection)

    async def unlisten(self, channel: str) -> None:
        self._channels.pop(channel, None)
        async with self._lock:
            heard = self._heard.pop(channel, None)
            connection = self._connection
            if heard is not None and connection is not None and not connection.is_closed():
                # A lost connection no longer listens, so ignore its errors.
                with contextlib.suppress(*_BROKEN):
                    async with _answering(connection):
                        await connection.remove_listener(channel, heard)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def close(self) -> None:
        self._closed = True
        self._channels.clear()
        async with self._lock:
            if self._connection is not None and not self._connection.is_closed():
                try:
                    await self._connection.close(timeout=2)
                except (TimeoutError, *_BROKEN):
                    self._connection.terminate()
            self._connection = None

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._closed:
            raise Unavailable("The session is closed.")
        try:
            connection: asyncpg.Connection[Any] = await asyncpg.connect(
                self._url,
                timeout=CONNECT_TIMEOUT_SECONDS,
                connection_class=KnownTypes,
                **self._options,
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise call.gone(error) from error
        self._connection = connection
        self._heard.clear()
        connection.add_termination_listener(self._terminated)
        for channel in list(self._channels):
            await self._hear(connection, channel)
        return connection

    def _terminated(self, _connection: object) -> None:
        """Tell all listeners that hints may be missing. The next call connects again."""
        for notify in list(self._channels.values()):
            notify(None)

    async def _try_hearing(self, connection: asyncpg.Connection[Any]) -> bool:
        """Test whether a hint that is sent on another connection arrives on this one.

        If one of the two connections is lost, the test proves nothing, so raise ConnectionLost.
        """
        channel = f"ff_test_{secrets.token_hex(8)}"
        arrived = asyncio.Event()
        problem: Exception | None = None

        def heard(*_: object) -> None:
            arrived.set()

        try:
            async with _answering(connection):
                await connection.add_listener(channel, heard)
            await self._hint(channel, "")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARING_SECONDS):
                    await arrived.wait()
            # A dead connection delivers no hint either, but it does not answer.
            async with _answering(connection):
                await connection.remove_listener(channel, heard)
        except ConnectionLost:
            raise
        except FlowFabricError as error:
            problem = error
        except _BROKEN as error:
            problem = call.translated(error, "listen")
            if call.lost(problem):
                connection.terminate()
        if connection.is_closed():
            raise ConnectionLost("The connection was lost during the test of LISTEN.")
        if problem is not None:
            ENGINE_LOGGER.warning("LISTEN not tested, polling instead: %s", problem)
        elif not arrived.is_set():
            ENGINE_LOGGER.warning(
                "LISTEN does not work on this connection (a transaction pooler?): polling instead"
            )
        return arrived.is_set()

    async def _hear(self, connection: asyncpg.Connection[Any], channel: str) -> None:
        if channel in self._heard:
            return

        def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if (notify := self._channels.get(channel)) is not None:
                notify(str(payload))

        try:
            async with _answering(connection):
                await connection.add_listener(channel, heard)
        except _BROKEN as error:
            ENGINE_LOGGER.warning(
                "cannot listen on %s: %s", channel, str(error) or type(error).__name__
            )
            return
        self._heard[channel] = heard
        if (notify := self._channels.get(channel)) is not None:
            notify(None)


@contextlib.asynccontextmanager
async def _answering(connection: Connection) -> AsyncIterator[None]:
    """Close the connection if the `async with` block does not end within ANSWER_SECONDS."""
    try:
        async with asyncio.timeout(call.ANSWER_SECONDS):
            yield
    except TimeoutError:
        connection.terminate()
        raise
