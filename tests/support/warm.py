"""Reuses database backends: apps of the next test get the backends of earlier apps.

A new backend reads the catalogue and plans each function at first use. That takes 35 ms of CPU for
every connection of every app and worker. So when flowfabric closes a connection, its backend is
kept. A later connection to the same database on the same loop gets it, reset except for the plans.
While it waits, the backend has the application name of the tests' own connections, so that tests
that count connections do not count it. A terminated, broken or busy connection ends as usual.

The heartbeat of a worker has its own thread and loop. Its loop is reused too, as its connection
belongs to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest import mock
from weakref import WeakKeyDictionary, WeakSet

import asyncpg

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]

# The application_name of the tests' own connections.
OURS = "ff_test"
# Resets a connection for its next user. It keeps the plans, which are the reason to reuse it.
AS_NEW = "reset session authorization; reset role; discard temp; discard sequences"
_MOST = 8
_PATIENCE = 10.0
# Only flowfabric connects with these options. See db/connection.py and db/session.py.
_OPTIONS = {"statement_cache_size", "timeout"}
_KNOWN = _OPTIONS | {"server_settings", "connection_class", "record_class", "loop"}

_run = asyncio.run
_connect = asyncpg.connect
_close = asyncpg.Connection.close


class Backends:
    """The idle backends of one database, kept for later connections."""

    def __init__(self, url: str) -> None:
        self._idle: defaultdict[asyncio.AbstractEventLoop, list[Connection]] = defaultdict(list)
        _backends[url] = self
        self._forget: Callable[[], object] = lambda: _backends.pop(url, None)

    def pids(self) -> list[int]:
        return [
            connection.get_server_pid()
            for idle in list(self._idle.values())
            for connection in idle
            if not connection.is_closed()
        ]

    def close(self) -> None:
        self._forget()
        for idle in list(self._idle.values()):
            for connection in idle:
                connection.terminate()

    async def take(self, options: dict[str, Any]) -> Connection | None:
        """Return a connection to an idle backend, or None."""
        idle = self._idle[asyncio.get_running_loop()]
        while idle:
            former = idle.pop()
            if former.is_closed():
                continue
            connection = _moved(
                former,
                options.get("connection_class", asyncpg.Connection),
                options["statement_cache_size"],
            )
            name = options.get("server_settings", {}).get("application_name", "")
            naming = asyncio.ensure_future(_does(connection, f"set application_name = '{name}'"))
            try:
                if await asyncio.shield(naming):
                    return connection
            except asyncio.CancelledError:
                # Many clients close while their connection for results is still being opened.
                if await naming and await self.keep(connection):
                    raise
                connection.terminate()
                raise
            connection.terminate()
        return None

    async def keep(self, connection: Connection) -> bool:
        """Keep the backend of a connection that is about to close. Return False if impossible."""
        loop = asyncio.get_running_loop()
        idle = self._idle[loop]
        if (
            loop not in _lasting
            or len(idle) >= _MOST
            or connection.is_closed()
            or connection.is_in_transaction()
        ):
            return False
        if not await _does(connection, f"{_RESET}; {AS_NEW}; set application_name = '{OURS}'"):
            return False
        idle.append(_moved(connection, asyncpg.Connection, 0))
        connection._cleanup()  # type: ignore[attr-defined]
        return True


_RESET = "select pg_advisory_unlock_all(); close all; unlisten *; reset all; deallocate all"
_backends: dict[str, Backends] = {}
# A connection belongs to its loop, so keep only the connections of lasting loops.
_lasting: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_kept: WeakKeyDictionary[Connection, Backends] = WeakKeyDictionary()
# The threads of worker/heartbeat.py have this name.
_HEARTBEAT = "flowfabric-heartbeat"
_runners: list[asyncio.Runner] = []


def keep_of(loop: asyncio.AbstractEventLoop) -> None:
    """Keep the backends of this loop's connections when they close."""
    _lasting.add(loop)


@contextmanager
def warm_backends() -> Iterator[None]:
    """Keep backends during the block, for databases that have a `Backends`."""
    with (
        mock.patch.object(asyncpg, "connect", _connect_warm),
        mock.patch.object(asyncpg.connection, "connect", _connect_warm),
        mock.patch.object(asyncpg.Connection, "close", _close_warm),
        mock.patch.object(asyncio, "run", _run_warm),
    ):
        yield
    # A loop cannot be closed on a thread where another loop runs.
    closing = threading.Thread(target=_close_runners)
    closing.start()
    closing.join()


def _close_runners() -> None:
    while _runners:
        runner = _runners.pop()
        runner.run(_end_all())
        runner.close()


def _run_warm(main: Coroutine[Any, Any, Any], **settings: Any) -> Any:
    if threading.current_thread().name != _HEARTBEAT:
        return _run(main, **settings)
    try:
        runner = _runners.pop()
    except IndexError:
        runner = asyncio.Runner()
    try:
        return run_in(runner, main)
    finally:
        _runners.append(runner)


def run_in(runner: asyncio.Runner, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as asyncio.run() does, but keep the loop and its backends."""
    keep_of(runner.get_loop())
    try:
        return runner.run(main)
    finally:
        runner.run(_end_all())


async def _end_all() -> None:
    """Cancel all tasks that were left running."""
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left)


async def _connect_warm(dsn: str | None = None, **options: Any) -> Connection:
    backends = _backends.get(dsn or "")
    is_flowfabric = (
        _OPTIONS <= options.keys() <= _KNOWN
        and options.get("server_settings", {}).keys() <= {"application_name"}
    )  # fmt: skip
    connection: Connection
    if backends is None or not is_flowfabric:
        connection = await _connect(dsn, **options)
    else:
        connection = await backends.take(options) or await _connect(dsn, **options)
        _kept[connection] = backends
    return connection


async def _close_warm(self: Connection, *, timeout: float | None = None) -> None:
    backends = _kept.pop(self, None)
    if backends is None or not await backends.keep(self):
        await _close(self, timeout=timeout)


async def _does(connection: Connection, query: str) -> bool:
    """Run a query. Return False if the connection can no longer be used."""
    try:
        await connection.execute(query, timeout=_PATIENCE)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        return False
    except asyncio.CancelledError:
        connection.terminate()
        raise
    return True


def _moved(former: Any, connection_class: Any, statement_cache_size: int) -> Connection:
    """Return a new connection object for the same backend. The former object is closed."""
    connection: Connection = connection_class(
        former._protocol,
        former._transport,
        former._loop,
        former._addr,
        former._config._replace(statement_cache_size=statement_cache_size),
        former._params,
    )
    former._protocol.set_connection(connection)
    former._aborted = True
    return connection
