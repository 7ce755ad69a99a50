"""Records as JSON answers: the same facts that commands print with `-o json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.execution import OperationAnswer
from flowfabric.core.json_text import read_json
from flowfabric.drawing.plain import body_text, plain
from flowfabric.server.problems import Problem

JSON = "application/json"
# Fields that are left out of answers, because they identify a lease. Only the answer to a claim has
# leases, inside signed tokens.
SECRET = {"lease_id", "attempt_id", "lease_ids"}


# Fields of records that hold JSON of users. This JSON is shown unchanged.
_OF_USERS = {"arguments", "data", "details", "document", "result", "signals"}


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A JSON value of a user, such as a result. It is shown unchanged, with its nulls."""

    value: Any


def shown(value: Any) -> Any:
    """Return a value as JSON data. Leases and null fields of records are left out."""
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
    if isinstance(value, Verbatim):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    if isinstance(value, Mapping):
        return {str(name): shown(one) for name, one in plain(value).items() if name not in SECRET}
    if isinstance(value, set | frozenset):
        return sorted(map(shown, value), key=str)
    if isinstance(value, Sequence):
        return [shown(one) for one in value]
    return str(value)


def _record(value: Any) -> dict[str, Any]:
    facts = plain({one.name: getattr(value, one.name) for one in fields(value)})
    return {name: _field(name, one) for name, one in facts.items() if name not in SECRET}


def _field(name: str, value: Any) -> Any:
    if name in _OF_USERS and not isinstance(value, bytes):
        return value
    return _data(value) if isinstance(value, Mapping) else shown(value)


def _data(value: Any) -> Any:
    """Return the JSON document in a field of a record. Keep its nulls, but remove leases."""
    if isinstance(value, Mapping):
        return {str(name): _data(one) for name, one in value.items() if name not in SECRET}
    if isinstance(value, list | tuple):
        return [_data(one) for one in value]
    return shown(value)


def stored_json(body: bytes | None) -> Verbatim | None:
    """Return a stored payload or result as a JSON value.

    If it is not JSON, or is nested too deeply, return an object that contains it as text or base64.
    """
    if body is None:
        return None
    try:
        return Verbatim(read_json(body))
    except (ValueError, RecursionError):
        return Verbatim({"base64_or_text": body_text(body)})


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """Return a value as a JSON answer. An underscore in the name of a header becomes a hyphen."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(json.dumps(shown(value)), status, media_type=JSON, headers=named)


def raw(text: str, status: int = 200, **headers: str) -> Response:
    """Return a JSON text as an answer, unchanged."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(text, status, media_type=JSON, headers=named)


class Partial(Protocol):
    """What the partitions have answered. `missing` names the partitions that did not answer."""

    @property
    def missing(self) -> Sequence[int]: ...


def missing_in(found: Partial) -> dict[str, list[int]]:
    """Return a field with the partitions that did not answer; no field if all have answered."""
    return {"missing_partitions": list(found.missing)} if found.missing else {}


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
    """Return the version in the header If-Match; None if the header is missing or is `*`."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    number = given.strip().removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise Problem(400, "invalid_etag", "If-Match must be the ETag of an execution.")
    return int(number)


def operation_answer(request: Request, done: OperationAnswer) -> Response:
    """Return the answer to an operation.

    Raise a Problem with status 412 if the execution has changed since the version in If-Match.
    """
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
    """Return how many seconds a request asks the server to wait, as in `Prefer: wait=20`.

    The number is at most `most`. It is 0 if the request does not ask.
    """
    for part in request.headers.get("prefer", "").split(","):
        name, _, number = part.strip().partition("=")
        if name.lower() == "wait" and number.isascii() and number.isdecimal():
            return min(float(number[:6]), most)
    return 0.0
