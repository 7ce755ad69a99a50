"""Errors as problem+json (RFC 9457): the only mapping from our errors to HTTP.

`type` is stable: `urn:flowfabric:` and the name of the error. `field` names what is wrong in the
request. Errors that FastAPI finds itself get this form, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from flowfabric.core import errors
from flowfabric.core.errors import FlowFabricError, InvalidInput, name_of
from flowfabric.core.ids import with_bare_ids

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:flowfabric:"

# The HTTP status of each class of errors. The first class to which an error belongs decides.
STATUS: tuple[tuple[type[FlowFabricError], int], ...] = (
    (errors.PayloadTooLarge, 413),
    (errors.InvalidToken, 404),
    (errors.TokenExpired, 410),
    (errors.CapabilityMismatch, 409),
    (errors.InvalidInput, 422),
    (errors.NotFound, 404),
    (errors.CursorExpired, 410),
    (errors.Conflict, 409),
    (errors.LimitReached, 429),
    (errors.ReadOnlyServer, 503),
    (errors.Refused, 409),
    (errors.Forbidden, 403),
    (errors.NotOverHttp, 501),
    (errors.LeaseLost, 409),
    (errors.Unavailable, 503),
    (errors.SchemaError, 503),
    (errors.ExecutionEnded, 409),
    (errors.ResultTimeout, 504),
    (errors.WaitTimeout, 504),
    (errors.FlowCancelTimeout, 504),
)
# Seconds after which a client should try again.
_RETRY_AFTER = {429: 1, 503: 1}
# Facts that are removed from every answer, because a caller could use them to act as the holder of
# a lease.
_SECRET = {*errors.LEASE_FACTS, "token"}


class ProblemFacts(dict[str, Any]):
    """The facts of a problem, as JSON data."""


class Problem(Exception):
    """A refusal by the server itself, such as status 401 or 413."""

    def __init__(
        self,
        status: int,
        name: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.name, self.detail = status, name, detail
        self.headers, self.facts = dict(headers or {}), facts


def status_of(error: FlowFabricError) -> int:
    """Return the HTTP status of one of our errors."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def facts_of(error: FlowFabricError) -> ProblemFacts:
    """Return an error as the facts of a problem."""
    facts = {
        name: value
        for name, value in error.facts.items()
        if value is not None and value != "" and name not in _SECRET
    }
    facts.pop("problem", None)
    return ProblemFacts(
        facts,
        type=TYPE + name_of(type(error)),
        title=_title(name_of(type(error))),
        status=status_of(error),
        detail=with_bare_ids(str(error)),
    )


def answer(problem: Problem | FlowFabricError, request_id: str = "") -> Response:
    """Return the answer for an error."""
    if isinstance(problem, Problem):
        headers = problem.headers
        facts = {
            **problem.facts,
            "type": TYPE + problem.name,
            "title": _title(problem.name),
            "status": problem.status,
            "detail": problem.detail,
        }
    else:
        headers, facts = {}, facts_of(problem)
    if request_id:
        facts["request_id"] = request_id
    status = int(facts["status"])
    if status in _RETRY_AFTER and "Retry-After" not in headers:
        headers = {**headers, "Retry-After": str(_RETRY_AFTER[status])}
    body = json.dumps(facts, default=str)
    return Response(body, status, media_type=MEDIA_TYPE, headers=headers)


def from_http(error: HTTPException) -> Problem:
    """Return the problem for an error of the framework, such as an unknown path."""
    known = {404: "unknown_path", 405: "method_not_allowed"}
    detail = {
        404: "There is no such path. GET /v1/openapi.json lists all paths.",
        405: "This path does not take this method; see the header Allow for its methods.",
    }
    name = known.get(error.status_code, "invalid_request")
    text = detail.get(error.status_code, str(error.detail))
    return Problem(error.status_code, name, text, headers=error.headers)


def from_validation(found: Sequence[Any]) -> InvalidInput:
    """Return the error for a request that does not fit its model. It names the first bad field."""
    first = found[0]
    path = [str(part) for part in first["loc"]]
    field = ".".join(path[1:]) or path[0]
    return InvalidInput(field=field, problem=_lower(str(first["msg"])))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
