"""Serve the dashboard while `flowfabric dev` or `flowfabric demo` runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowfabric.app.app import App

PORT = 9090
HOST = "127.0.0.1"
# How long an open page may hold up the end of the command.
CLOSE_SECONDS = 2.0
MISSING = "needs more packages: pip install 'flowfabric[server]'"


@dataclass
class Dashboard:
    """A running dashboard. Everybody on this machine can use it."""

    address: str
    _app: App
    _running: Any
    _task: asyncio.Task[None]

    async def close(self) -> None:
        """Stop serving, and close the connections of the app."""
        self._running.should_exit = True
        self._running.force_exit = True
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), CLOSE_SECONDS)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._app.close()


async def open_dashboard(app: App, port: int = PORT) -> Dashboard | None:
    """Serve the dashboard of an app on this port, or on a free port if this port is taken.

    Return None if the packages of the server are not installed.
    """
    try:
        uvicorn, server, protocol = await asyncio.to_thread(_import)
    except ModuleNotFoundError:
        return None

    class Quiet(uvicorn.Server):  # type: ignore[name-defined,misc]
        """A server that does not react to Ctrl-C. The command does."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    listening = _listen(port)
    config = uvicorn.Config(
        server(app, auth="none"),
        access_log=False,
        log_config=None,
        server_header=False,
        lifespan="off",
        http=protocol,
    )
    running = Quiet(config)
    task = asyncio.create_task(running.serve(sockets=[listening]))
    while not running.started and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    if task.done():
        await task
    address = f"http://{HOST}:{listening.getsockname()[1]}/dashboard"
    return Dashboard(address, app, running, task)


def _import() -> tuple[Any, Any, Any]:
    import uvicorn

    from flowfabric.server import server
    from flowfabric.server.protocol import BoundedProtocol

    return uvicorn, server, BoundedProtocol


def _listen(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError:
        found.bind((HOST, 0))
    return found
