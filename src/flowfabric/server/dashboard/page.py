"""Code that all pages share: headers, the visitor, forms, and errors as pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from fastapi import Path
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.core.execution import ExecutionSummary
from flowfabric.core.lane import LaneTraffic
from flowfabric.core.states import BlockingReason
from flowfabric.core.token import Scope
from flowfabric.dashboard.pages import render
from flowfabric.drawing.executions import in_short
from flowfabric.drawing.text import text_of
from flowfabric.server.principals import PAGES, Principal, cookie_of
from flowfabric.server.problems import Problem, facts_of
from flowfabric.server.routing import Call

PREFIX = PAGES
PAGE = 50
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    # A browser that may not send a referrer also hides the origin of a form.
    "Referrer-Policy": "same-origin",
}
Id = Annotated[str, Path(max_length=64)]
Name = Annotated[str, Path(max_length=256)]
# The menu entry of each page whose own name is not a menu entry.
_HERE = {"execution": "executions", "flow": "flows", "bulk": "executions", "task": "tasks"}
_HERE |= {"schedule": "schedules", "audit": "events"}


@dataclass(frozen=True, slots=True)
class Visitor:
    """What the person behind a request may see and do."""

    namespace: str
    may_operate: bool
    may_administer: bool
    may_submit: bool
    may_see_payloads: bool
    can_sign_out: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """An execution in a list, with a few words about why it is in its state."""

    execution: ExecutionSummary
    words: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.execution, name)


def listed(
    executions: Sequence[ExecutionSummary], now: datetime, lanes: Sequence[LaneTraffic] = ()
) -> list[Listed]:
    """Return executions with the words that a list shows about each.

    If an execution waits because its lane is paused or disabled, the words say so.
    """
    stopped = {one.lane: one.state for one in lanes if one.state in ("paused", "disabled")}

    def words(one: ExecutionSummary) -> str:
        if one.blocking_reason == BlockingReason.WAITING_FOR_WORKER and one.lane in stopped:
            return f"the lane {one.lane} is {stopped[one.lane]}"
        return text_of(in_short(one, now))

    return [Listed(one, words(one)) for one in executions]


def show(
    request: Request, call: Call, name: str, now: datetime, status: int = 200, **facts: Any
) -> Response:
    """Return a page. `now` is the time of the database."""
    html = render(
        name,
        now=now,
        root=root(request),
        here=_HERE.get(name, name),
        visitor=visitor(request, call.principal),
        **facts,
    )
    return Response(html, status, media_type="text/html", headers=HEADERS)


def visitor(request: Request, principal: Principal | None) -> Visitor:
    scopes = principal.scopes if principal else frozenset()
    hides = request.app.state.backend.hides_payloads
    return Visitor(
        principal.namespace if principal else "",
        Scope.OPERATE in scopes,
        Scope.ADMIN in scopes,
        Scope.SUBMIT in scopes,
        Scope.OPERATE in scopes or not hides,
        cookie_of(request) in request.cookies,
    )


def root(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}{PREFIX}"


def see_other(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303, headers=HEADERS)


def back_to(request: Request, path: str, **query: str) -> RedirectResponse:
    """Send the browser to a page of the dashboard."""
    text = urlencode({name: value for name, value in query.items() if value})
    return see_other(f"{root(request)}{path}{'?' if text else ''}{text}")


async def form_of(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. Refuse a form from a page of another site."""
    origin = request.headers.get("origin", "")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    site = request.headers.get("sec-fetch-site", "same-origin")
    if origin.lower() != own.lower() or site != "same-origin":
        raise Problem(403, "cross_origin", "A page of another site may not act here.")
    return fields_in(await request.body())


def fields_in(body: bytes) -> Mapping[str, str]:
    """Parse the body of a posted form and return its fields."""
    try:
        found = parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise InvalidInput(field="form", problem="has more than 200 fields") from error
    return dict(found)


def reason_in(form: Mapping[str, str]) -> str:
    reason = form.get("reason", "").strip()
    if not reason:
        raise InvalidInput(field="reason", problem="must be given: it is recorded with the act")
    return reason


def whole_in(form: Mapping[str, str], name: str) -> int:
    text = form.get(name, "").strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise InvalidInput(field=name, problem="must be a whole number")
    return int(text)


def text_in(form: Mapping[str, str], name: str) -> str | None:
    """Return a field without the blanks around it; None if nothing is left."""
    return form.get(name, "").strip() or None


def once_in(form: Mapping[str, str]) -> UUID | None:
    """Return the id that the page put into the form; None if the form has no id.

    A form that is sent twice, for example by a double click, sends the same id twice. So the act
    happens only once.
    """
    text = text_in(form, "once")
    try:
        return None if text is None else UUID(text)
    except ValueError as error:
        raise InvalidInput(field="once", problem="is not an id") from error


def is_page(request: Request) -> bool:
    """Return whether a request is for a page of the dashboard. If so, its errors are pages, too."""
    path = request.scope.get("flowfabric.route") or ""
    return str(path).startswith(PREFIX)


def problem_page(request: Request, error: FlowFabricError | Problem) -> Response:
    """Return an error as a page. If there is no valid token, redirect to the sign-in page."""
    if isinstance(error, Problem):
        status, detail = error.status, error.detail
    else:
        facts = facts_of(error)
        status, detail = facts["status"], facts["detail"]
    if status == 401:
        return see_other(f"{root(request)}/sign-in")
    call = getattr(request.state, "call", None)
    titles = {403: "Not allowed", 404: "Not found", 412: "It has changed", 503: "No database"}
    html = render(
        "problem",
        now=datetime.now().astimezone(),
        root=root(request),
        here="",
        visitor=visitor(request, call.principal if call else None),
        status=status,
        title=titles.get(status, "That did not work"),
        detail=detail,
    )
    return Response(html, status, media_type="text/html", headers=HEADERS)
