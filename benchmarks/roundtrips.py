"""A proxy in front of the server. It counts round trips by the server's answers."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

_ENCRYPTION = {80877103, 80877104}
# The application_name of the connection that only polls for the end.
WATCHER = b"bench watcher"


class Counter:
    """The number of round trips through the proxy, and the URL of the proxy."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self.url = ""
        self.round_trips = 0

    def listens_on(self, port: int) -> None:
        secret = f":{self._parts.password}" if self._parts.password else ""
        user = f"{self._parts.username}{secret}@" if self._parts.username else ""
        self.url = f"postgresql://{user}127.0.0.1:{port}{self._parts.path}"

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        to_server = None
        try:
            length, code = struct.unpack("!ii", await client.readexactly(8))
            while code in _ENCRYPTION:
                to_client.write(b"N")
                length, code = struct.unpack("!ii", await client.readexactly(8))
            about = await client.readexactly(length - 8)
            server, to_server = await self._connect()
            to_server.write(struct.pack("!ii", length, code) + about)
            back = asyncio.create_task(self._backward(server, to_client, WATCHER not in about))
            while data := await client.read(65536):
                to_server.write(data)
            to_server.write_eof()
            await back
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client or the server has closed the connection
        finally:
            to_client.close()
            if to_server is not None:
                to_server.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = parse_qs(self._parts.query)
        host = self._parts.hostname or query.get("host", ["127.0.0.1"])[0]
        port = self._parts.port or int(query.get("port", ["5432"])[0])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _backward(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, is_counted: bool
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not client.is_closing():
                head = await server.readexactly(5)
                rest = await server.readexactly(struct.unpack("!i", head[1:])[0] - 4)
                # "Ready for query" ends every answer.
                self.round_trips += is_counted and head[:1] == b"Z"
                client.write(head + rest)
        client.close()


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[Counter]:
    """Count round trips with a proxy in front of the database."""
    counter = Counter(url)
    listening = await asyncio.start_server(counter.serve, "127.0.0.1", 0)
    counter.listens_on(listening.sockets[0].getsockname()[1])
    try:
        yield counter
    finally:
        listening.close()
