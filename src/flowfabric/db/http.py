"""Call the engine through an HTTP server. The caller needs no rights in the database.

The code that uses a `Database` need not change: it makes the same calls and reads the same rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, cast

from flowfabric.config import check_server_url
from flowfabric.core.errors import (
    FlowFabricError,
    Forbidden,
    InvalidInput,
    NotOverHttp,
    PayloadTooLarge,
    Unavailable,
    class_of,
)
from flowfabric.db import call, functions
from flowfabric.db.http_functions import MADE_BY_WORKERS, OFFERED
from flowfabric.db.partitions import KnownPartitions
from flowfabric.db.session import Database, Notify, Session
from flowfabric.db.wire import Row, decode, encode, row_type
from flowfabric.telemetry import Meter

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection
    from flowfabric.db.functions import Statement

# How long one call may wait for news, and how much longer its answer may take.
WAIT_SECONDS = 20.0
ANSWER_SECONDS = 30.0
TYPE = "urn:flowfabric:"
# HTTP statuses that say that the server is down, or that a proxy cannot reach it. The call may have
# taken effect; it may be repeated.
_GONE = {502, 503, 504}

_waiting: ContextVar[float] = ContextVar("flowfabric_waiting", default=0.0)


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """During the `with` block, let the server wait for news before it answers a call.

    The server waits for at most `seconds`, and only in some reads. It answers all other calls
    immediately.
    """
    before = _waiting.set(seconds)
    try:
        yield
    finally:
        _waiting.reset(before)


class HttpDatabase(Database):
    """A `Database` that calls a server of flowfabric over HTTP instead of a database."""

    is_remote = True

    def __init__(self, url: str, token: str | None) -> None:
        if find_spec("httpx2") is None:
            raise InvalidInput(
                field="url", problem="needs a library; pip install 'flowfabric[http]'"
            )
        import httpx2

        self.url = check_server_url("url", url).rstrip("/")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidInput(field="token", problem="must be a token such as ffp_...")
        self.meter = Meter()
        self.is_pooled = self.is_distributed = False
        self.partitions = KnownPartitions(self._read_partitions)
        self.namespace: str | None = None
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._settings: dict[str, Any] = {
            "base_url": self.url,
            "headers": {**headers, "accept": "application/json"},
            "timeout": httpx2.Timeout(ANSWER_SECONDS, read=WAIT_SECONDS + ANSWER_SECONDS),
            "follow_redirects": False,
        }
        self._new = httpx2.AsyncClient
        self._http: httpx2.AsyncClient | None = None
        self._failure: tuple[type[Exception], ...] = (httpx2.HTTPError, OSError)

    async def open(self) -> Self:
        """Read the namespace of the caller and the number of partitions from the server."""
        self._http = self._new(**self._settings)
        try:
            self.namespace = str((await self._send("GET", "/v1/capabilities"))["namespace"])
            self.partitions.note(await self._read_partitions())
        except BaseException as error:
            await self.close()
            if call.lost(error):
                raise Unavailable(f"Cannot reach the server at {self.url}: {error}") from error
            raise
        return self

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def call(
        self, statement: Statement, *, patience: float = call.PATIENCE_SECONDS, **arguments: Any
    ) -> call.Rows:
        """Call the engine through the server.

        While the server is down, repeat the call for up to `patience` seconds.
        """
        given = dict(zip(statement.arguments, statement.bind(arguments), strict=True))
        if statement.name in MADE_BY_WORKERS:
            return [] if statement is functions.HINT else cast(call.Rows, [_NOTHING_DUE])
        if statement.name not in OFFERED:
            raise NotOverHttp(
                f"{statement.name} is not offered over HTTP. Connect to the database: set "
                "FLOWFABRIC_DATABASE_URL instead of FLOWFABRIC_URL.",
                operation=statement.name,
            )
        scope, _ = OFFERED[statement.name]
        body = json.dumps({"arguments": {name: encode(value) for name, value in given.items()}})
        seconds = _waiting.get()

        async def attempt() -> call.Rows:
            answer = await self._send(
                "POST", f"/v1/calls/{scope}/{statement.name}", body.encode(), seconds
            )
            return _rows(statement, answer)

        return await call.retrying(self.meter, statement, attempt, patience=patience)

    async def _send(
        self, method: str, path: str, body: bytes | None = None, wait: float = 0.0
    ) -> dict[str, Any]:
        if (http := self._http) is None:
            raise Unavailable("The client is closed.")
        headers = {} if body is None else {"content-type": "application/json"}
        if wait:
            headers["prefer"] = f"wait={wait:.0f}"
        try:
            answer = await http.request(method, path, content=body, headers=headers)
        except self._failure as error:
            raise call.gone(error) from error
        if answer.status_code in _GONE:
            raise call.gone(OSError(f"HTTP {answer.status_code}"))
        try:
            facts = json.loads(answer.content)
        except ValueError:
            facts = None
        if answer.status_code != 200:
            raise error_of(answer.status_code, facts if isinstance(facts, dict) else {})
        if not isinstance(facts, dict):
            raise Unavailable(f"{self.url} is not a server of flowfabric: its answer is not JSON.")
        return facts

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        raise NotOverHttp(operation="ctx.transaction")
        yield  # required in a context manager

    def session(self, name: str) -> Session:
        """Return a session that has no connection of its own and receives no hints."""
        return HttpSession(self)


class HttpSession(Session):
    """A session that receives no hints. The code that uses it must poll."""

    def __init__(self, database: HttpDatabase) -> None:
        self._calls = database.call
        self.is_distributed = False
        self.can_hear = False

    async def call(
        self, statement: Statement, *, patience: float = call.PATIENCE_SECONDS, **arguments: Any
    ) -> call.Rows:
        return await self._calls(statement, patience=patience, **arguments)

    async def listen(self, channel: str, notify: Notify, *, trial: bool = True) -> None:
        await asyncio.sleep(0)

    async def unlisten(self, channel: str) -> None:
        await asyncio.sleep(0)

    @property
    def is_connected(self) -> bool:
        return True

    async def close(self) -> None:
        await asyncio.sleep(0)


def error_of(status: int, facts: Mapping[str, Any]) -> Exception:
    """Return the error for a problem that the server has reported.

    The error has the class that a direct call to the database would raise.
    """
    name = str(facts.get("type", "")).removeprefix(TYPE)
    text = str(facts.get("detail") or f"The server answered HTTP {status}.")
    more = {
        key: value
        for key, value in facts.items()
        if key not in ("type", "title", "status", "detail", "request_id")
    }
    kind = class_of(name)
    if kind is not None:
        if issubclass(kind, InvalidInput) and more.get("field"):
            more["problem"] = text.removeprefix(f"{more['field']}: ")
        return kind(text, **more)
    if status in (401, 403):
        return Forbidden(text, **more)
    if status == 413:
        return PayloadTooLarge(text, field="item", problem="is too large for the server")
    return (Unavailable if status >= 500 or status == 429 else FlowFabricError)(text, **more)


_NOTHING_DUE = row_type(("handled", "due_in"))((0, None))
_row_type = cache(row_type)


def _rows(statement: Statement, answer: Mapping[str, Any]) -> call.Rows:
    """Return the rows of an answer, with the columns in the order of the statement.

    Further columns, which a newer server may send, are left out.
    """
    columns, kind = list(answer["columns"]), _row_type(statement.columns)
    if tuple(columns) == statement.columns:
        rows: list[Row] = [kind(decode("row", one) for one in row) for row in answer["rows"]]
    else:
        indexes = [columns.index(name) for name in statement.columns]
        rows = [kind(decode("row", row[index]) for index in indexes) for row in answer["rows"]]
    return cast(call.Rows, rows)
