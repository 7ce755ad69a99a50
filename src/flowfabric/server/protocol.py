"""The HTTP protocol of `flowfabric serve`: uvicorn's protocol, with limits on the size of headers
and on the time until they are complete.

uvicorn itself waits for ever for the end of the headers, and keeps any number of headers. So a
caller without a token could take all connections or all memory of the server. If a request is not
HTTP, uvicorn answers with plain text. Here every refusal is JSON (problem+json).
"""

from __future__ import annotations

import asyncio
from http.client import responses
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowfabric.server.problems import MEDIA_TYPE, Problem, answer

# A connection is closed if the headers of its request are not complete after this time.
HEAD_SECONDS = 30.0
# The request line and the headers together may have at most this many bytes.
HEAD_BYTES = 65_536


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection that sends too many headers, or sends them too slowly.

    The time limit does not apply while the server answers a request. uvicorn itself closes a
    connection that sends nothing after an answer.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._is_in_head = True
        self._head_bytes = 0
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, "head_too_large", f"Send at most {HEAD_BYTES} bytes of headers.")
                return
        if self.cycle is None or self.cycle.response_complete:
            self._start()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP. The status is 400."""
        self._refuse(400, "invalid_http", "This is not a request of HTTP/1.1.")

    def _refuse(self, status: int, name: str, detail: str) -> None:
        body = bytes(answer(Problem(status, name, detail)).body)
        head = (
            f"HTTP/1.1 {status} {responses[status]}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop()
        super().on_headers_complete()

    def _start(self) -> None:
        if self._closing is None:
            self._closing = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
