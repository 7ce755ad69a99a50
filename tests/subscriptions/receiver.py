"""A receiver of webhooks on the loopback address, with a certificate of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64decode, b64encode
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from hmac import new as new_hmac

import trustme

from flowfabric.core.webhook import Allowed, parse_address

HOST = "hooks.example.com"


@dataclass
class Receiver:
    """Answers by a script of statuses, and keeps every request."""

    trust: ssl.SSLContext
    port: int = 0
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}/events?x=1"

    @property
    def allowed(self) -> Allowed:
        """The only place where tests may connect to, listed on purpose."""
        return Allowed.parse(f"{HOST}:{self.port}", "127.0.0.0/8")

    @property
    def bodies(self) -> list[dict]:
        return [json.loads(body) for _, _, body in self.requests]

    async def resolve(self, host: str, port: int):
        assert host == HOST
        return [parse_address("127.0.0.1")]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers = {}
                while (text := (await reader.readline()).decode().strip()) != "":
                    name, _, value = text.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append((line.decode().strip(), headers, body))
                self.arrived.set()
                status = self.statuses.pop(0) if self.statuses else 204
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n"
                    "Location: https://hooks.example.com/elsewhere\r\n\r\n".encode()
                )
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            return  # the sender hung up
        finally:
            writer.close()


@asynccontextmanager
async def receiving(name: str = HOST):
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(server_side)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    receiver = Receiver(trust)
    server = await asyncio.start_server(receiver.answer, "127.0.0.1", 0, ssl=server_side)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Verify a signature as a receiver does: see docs/guide/subscriptions.md."""
    key = b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + b64encode(new_hmac(key, content, sha256).digest()).decode()
    return compare_digest(expected, headers["webhook-signature"])
