"""Records as JSON answers: the same facts that commands print with `-o json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.execution import Steered
from flowfabric.drawing.plain import body_text, plain
from flowfabric.server.problems import Problem

JSON = "application/json"
# Only the answer to a claim has leases, inside signed tokens.
_SECRET = {"lease_id", "attempt_id", "lease_ids"}


def shown(value: Any) -> Any:
    """Return a value as JSON data, without leases and, in records, without nulls."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return body_text(value)
    if is_dataclass(value) and not isinstance(value, type):
        return shown(plain(value))
    if isinstance(value, Mapping):
        return {str(name): shown(one) for name, one in plain(value).items() if name not in _SECRET}
    if isinstance(value, set | frozenset):
        return sorted(map(shown, value), key=str)
    if isinstance(value, Sequence):
        return [shown(one) for one in value]
    return str(value)


def stored_json(body: bytes | None) -> Any:
    """Return a stored payload or result: the JSON value, or its text if it is not JSON."""
    if body is None:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return {"base64_or_text": body_text(body)}


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """Return a value as a JSON answer. Underscores in names of headers mean hyphens."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(json.dumps(shown(value)), status, media_type=JSON, headers=named)


def raw(text: str, status: int = 200, **headers: str) -> Response:
    """Return JSON text that needs no change."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(text, status, media_type=JSON, headers=named)


def page(request: Request, items: Sequence[Any], cursor: object | None, **more: Any) -> Response:
    """Return a page `{items, next_cursor}`; the header Link has the address of the next page."""
    headers: dict[str, str] = {}
    if cursor is not None:
        query = [(key, text) for key, text in request.query_params.multi_items() if key != "cursor"]
        address = f"{request.url.path}?{urlencode([*query, ('cursor', str(cursor))])}"
        headers["Link"] = f'<{address}>; rel="next"'
    facts = {"items": list(items), "next_cursor": None if cursor is None else str(cursor), **more}
    text = json.dumps({**shown(facts), "next_cursor": facts["next_cursor"]})
    return raw(text, 200, **headers)


def etag(version: int) -> str:
    return f'"{version}"'


def wanted_version(request: Request) -> int | None:
    """Return the version that the header If-Match names; None if there is none."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    number = given.strip().removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise Problem(400, "invalid_etag", "If-Match must be the ETag of an execution.")
    return int(number)


def steered(request: Request, done: Steered) -> Response:
    """Return the answer to an operation; 412 if the execution has moved on from If-Match."""
    if done.outcome == "already_applied" and wanted_version(request) is not None:
        raise Problem(
            412,
            "version_moved",
            "The execution has changed since that version. Read it again, then decide.",
            public_state=str(done.public_state),
            version=done.version,
        )
    return answer(done, ETag=etag(done.version))


def wait_seconds(request: Request, most: float = 30.0) -> float:
    """Return how long the header `Prefer: wait=20` asks to wait, at most `most` seconds."""
    for part in request.headers.get("prefer", "").split(","):
        name, _, number = part.strip().partition("=")
        if name.lower() == "wait" and number.isascii() and number.isdecimal():
            return min(float(number[:6]), most)
    return 0.0
