"""A proxy that knows where PostgreSQL's messages begin and end, so that it can lose an answer.

Armed for a function of the engine, it lets the next call of it through to the server whole, and
cuts the client off: when the server has answered (the call is committed), or while the statement
still runs. The server is not told of the second kind of cut: as after a broken network, it goes on.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from urllib.parse import parse_qs, urlsplit

_SSL_REQUEST = 80877103
_GSS_REQUEST = 80877104
_CANCEL_REQUEST = 80877102


@dataclass(slots=True)
class Cut:
    """One planned fault, and what became of it."""

    function: str
    # Called when the call is with the server and the answer is held back; the cut comes after it.
    running: Callable[[int], Awaitable[None]] | None = None
    # Called before the call reaches the server, with the number of its backend.
    before: Callable[[int], Awaitable[None]] | None = None
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    repeated: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Hole:
    """A planned black hole: the first message that is lost, by its type and its text.

    The types: `P` prepares a statement and `B` calls it, `2` is the begin of the answer, and `A` is
    a hint. The message that begins a connection has none.
    """

    kind: bytes
    text: bytes
    happened: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Listens on a port of its own in front of one database."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._host = parts.hostname or query["host"][0]
        self._port = parts.port or int(query.get("port", ["5432"])[0])
        self._user = parts.username
        self._database = parts.path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut: Cut | None = None
        self.cuts = 0
        # Round trips, by the backend that answered and the statement it had been sent last.
        self.answers: Counter[tuple[int, bytes]] = Counter()
        self._links: set[_Link] = set()
        self.hole: Hole | None = None
        # Whether to turn everybody away who comes now.
        self.is_closed = False

    def black_hole(self) -> None:
        """Lose everything on the connections of now, and tell nobody; new ones work."""
        for link in self._links:
            link.is_lost = True

    def open_hole_at(self, kind: bytes, text: bytes) -> None:
        """Open the planned black hole if this is the message that it waits for."""
        hole = self.hole
        if hole is None or hole.happened.is_set() or hole.kind != kind or hole.text not in text:
            return
        self.black_hole()
        hole.happened.set()

    def sever(self, random: Random, *, silently: bool = False) -> bool:
        """Break one of the connections of now, whatever goes over it; False if there is none.

        Silently, nobody is told, as in a black hole.
        """
        if not self._links:
            return False
        link = random.choice(sorted(self._links, key=id))
        if silently:
            link.is_lost = True
        else:
            link.sever()
        return True

    def say_good_bye(self) -> None:
        """What a server says that shuts down, on every connection of now, and does not hang up."""
        fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"
        for link in self._links:
            link.tell(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    @property
    def url(self) -> str:
        assert self._server
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{self._user}@127.0.0.1:{port}{self._database}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        if self.is_closed:
            writer.transport.abort()
            return
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            writer.transport.abort()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)


class _Link:
    """One connection: two streams of messages, and what is known of the session."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client, self._to_client = reader, writer
        self._statements: dict[bytes, bytes] = {}
        self._backend = 0
        self._asked = b""
        self.is_lost = False
        # Set while a call's answer is held back: what to do with it.
        self._holding: Cut | None = None
        self._answered = asyncio.Event()

    def sever(self) -> None:
        self._to_client.transport.abort()

    def tell(self, message: bytes) -> None:
        self._to_client.write(message)

    async def run(self) -> None:
        startup = await self._startup()
        if startup is None:
            return
        self._server, self._to_server = await self._proxy.connect()
        try:
            self._to_server.write(startup)
            async with asyncio.TaskGroup() as group:
                back = group.create_task(self._backward())
                await self._forward()
                back.cancel()
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._to_server.close()

    async def _startup(self) -> bytes | None:
        """The first message, which has no type; encryption is declined."""
        while True:
            head = await self._client.readexactly(8)
            length, code = struct.unpack("!ii", head)
            if code in (_SSL_REQUEST, _GSS_REQUEST):
                self._to_client.write(b"N")
                continue
            if code == _CANCEL_REQUEST:
                return None
            startup = head + await self._client.readexactly(length - 8)
            self._proxy.open_hole_at(b"", startup)
            return startup

    async def _forward(self) -> None:
        while True:
            kind, message = await _message(self._client)
            if self.is_lost:
                continue
            if kind == b"P":
                name, text = message[5:].split(b"\0", 2)[:2]
                self._statements[name] = self._asked = text
            elif kind == b"Q":
                self._asked = message[5:-1]
            elif kind == b"B":
                statement = message[5:].split(b"\0", 2)[1]
                self._asked = self._statements.get(statement, b"")
                self._holding = self._called(self._asked)
                if self._holding is not None and self._holding.before is not None:
                    await self._holding.before(self._backend)
            self._proxy.open_hole_at(kind, self._asked)
            if self.is_lost:
                continue
            self._to_server.write(message)
            if kind == b"S" and self._holding is not None:
                await self._lose_answer(self._holding)
                return

    def _called(self, text: bytes) -> Cut | None:
        """The planned fault, if this is the call that it waits for."""
        cut = self._proxy.cut
        if cut is None or f"ff.{cut.function}(".encode() not in text:
            return None
        if cut.happened.is_set():
            cut.repeated.set()
            return None
        return cut

    async def _lose_answer(self, cut: Cut) -> None:
        await self._to_server.drain()
        if cut.running is None:
            await self._answered.wait()
        else:
            await cut.running(self._backend)
        self._proxy.cuts += 1
        cut.happened.set()
        self._to_client.transport.abort()
        # The server hears of it only when it has finished.
        async with asyncio.timeout(60):
            await self._answered.wait()

    async def _backward(self) -> None:
        while True:
            kind, message = await _message(self._server)
            if kind == b"K":
                self._backend = struct.unpack("!i", message[5:9])[0]
            elif kind == b"Z":
                self._proxy.answers[self._backend, self._asked] += 1
            self._proxy.open_hole_at(kind, message if kind == b"A" else self._asked)
            if self._holding is None and not self.is_lost:
                self._to_client.write(message)
            elif kind == b"Z":
                self._answered.set()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    length = struct.unpack("!i", head[1:])[0]
    return head[:1], head + await reader.readexactly(length - 4)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            await proxy.close()
