"""The routes of the dashboard: pages for people, below `/dashboard`.

A page authenticates by the cookie of the sign-in, which holds a token, and a page that acts takes
forms of its own origin only. Reading needs the scope `read`, acting the scope `operate`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import Path
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from flowfabric.client.filters import parse
from flowfabric.client.portraits import located, read_portrait
from flowfabric.core.errors import FlowFabricError, FlowNotFound, InvalidInput
from flowfabric.core.execution import ExecutionFilter, ExecutionSummary, Steered
from flowfabric.core.states import PublicState
from flowfabric.core.token import Scope
from flowfabric.dashboard.pages import STATIC, read_static, render
from flowfabric.drawing.executions import in_short
from flowfabric.drawing.picture import picture_of
from flowfabric.drawing.svg import as_svg
from flowfabric.drawing.text import text_of
from flowfabric.server.principals import COOKIE, Principal
from flowfabric.server.problems import Problem, facts_of
from flowfabric.server.routing import Call, CurrentCall, Routes

PREFIX = "/dashboard"
PAGE = 50
MEMBERS_SHOWN = 500
WINDOW = timedelta(seconds=10)
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}
# An SVG is an image of its own: its style is inside it.
SVG_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
# The states of the overview.
SHOWN = (
    PublicState.WAITING,
    PublicState.DELAYED,
    PublicState.ACTIVE,
    PublicState.WAITING_CHILDREN,
    PublicState.SUSPENDED,
    PublicState.FAILED,
)
# What needs a person: title, advice, and the filter that finds it.
ATTENTION = (
    ("Held", "The code no longer fits the recorded steps. Retry, or replay.", "held=yes"),
    ("Crash looping", "Their workers keep dying with them.", "crash_looping=yes"),
    ("Failed in the last day", "Retry them once the cause is gone.", "state=failed ended<1d"),
)

routes = Routes("dashboard")
Id = Annotated[str, Path(max_length=64)]


@dataclass(frozen=True, slots=True)
class Visitor:
    """What the person behind a request may see and do."""

    namespace: str
    may_operate: bool
    may_see_payloads: bool
    can_sign_out: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """An execution in a list, with its reason in a few words."""

    execution: ExecutionSummary
    words: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.execution, name)


@routes.get(PREFIX, Scope.READ, include_in_schema=False)
async def overview(call: CurrentCall, request: Request) -> Response:
    """Show states, what needs attention, lanes and workers."""
    now = await call.client.executions.server_time()
    count = call.client.executions.count
    totals = [(state, await count(ExecutionFilter(states=[state]))) for state in SHOWN]
    attention = [
        (title, advice, where, await _first(call, where, now)) for title, advice, where in ATTENTION
    ]
    return _page(
        request,
        call,
        "overview",
        now,
        totals=totals,
        attention=attention,
        lanes=await call.client.lanes.traffic(window=WINDOW),
        workers=await call.client.workers.list(),
    )


@routes.get(PREFIX + "/executions", Scope.READ, include_in_schema=False)
async def executions(
    call: CurrentCall, request: Request, where: str = "", cursor: str | None = None
) -> Response:
    """List executions by the filter language of `flowfabric ls --where`."""
    now = await call.client.executions.server_time()
    try:
        found = await _list(call, where, now, cursor=cursor, limit=PAGE)
    except InvalidInput as error:
        facts = {"where": where, "problem": str(error), "executions": [], "missing": (), "next": ""}
        return _page(request, call, "executions", now, 422, **facts)
    query = urlencode({"where": where, "cursor": found.cursor or ""})
    return _page(
        request,
        call,
        "executions",
        now,
        where=where,
        problem="",
        executions=_listed(found.executions, now),
        missing=found.missing,
        next=f"{_root(request)}/executions?{query}" if found.cursor else "",
    )


@routes.get(PREFIX + "/executions/{id}", Scope.READ, include_in_schema=False)
async def execution(call: CurrentCall, request: Request, id: Id) -> Response:
    """Show everything about one execution."""
    found = await call.client.executions.find(id)
    portrait = await read_portrait(call.client, found, with_payload=True)
    now = await call.client.executions.server_time()
    return _page(
        request,
        call,
        "execution",
        now,
        portrait=portrait,
        children=_listed(portrait.children, now),
        acts=_acts(portrait.info.public_state),
        base=str(request.base_url).rstrip("/"),
    )


@routes.post(
    PREFIX + "/executions/{id}/{act}", Scope.OPERATE, is_form=True, include_in_schema=False
)
async def act(call: CurrentCall, request: Request, id: Id, act: Id) -> Response:
    """Cancel, retry, replay or reprioritise an execution, if it is still as the page showed it."""
    form = await _form(request)
    found = await call.client.executions.find(id)
    known: dict[str, Callable[..., Awaitable[Steered]]] = {
        "cancel": call.client.executions.cancel,
        "retry": call.client.executions.retry,
        "replay": call.client.executions.replay,
        "revoke-lease": call.client.leases.revoke,
        "priority": call.client.executions.change_priority,
    }
    if act not in known:
        raise Problem(404, "unknown_path", "There is no such act.")
    arguments = (_whole(form, "priority"),) if act == "priority" else ()
    done = await known[act](
        found,
        *arguments,
        reason=_reason(form),
        actor=call.principal.name,
        if_version=_whole(form, "version"),
    )
    if done.outcome == "already_applied":
        raise Problem(412, "version_moved", "The execution has changed. Look again, then decide.")
    return _see_other(f"{_root(request)}/executions/{found.uuid}")


@routes.get(PREFIX + "/flows", Scope.READ, include_in_schema=False)
async def flows(call: CurrentCall, request: Request, after: str | None = None) -> Response:
    """List flows, newest first."""
    place = None if after is None else await call.client.flows.find(after)
    found = await call.client.flows.list(after=place, limit=PAGE, newest=True)
    now = await call.client.executions.server_time()
    next = f"{_root(request)}/flows?after={found.after.uuid}" if found.after else ""
    return _page(request, call, "flows", now, flows=found.flows, next=next)


@routes.get(PREFIX + "/flows/{id}", Scope.READ, include_in_schema=False)
async def flow(call: CurrentCall, request: Request, id: Id) -> Response:
    """Show one flow with its picture and its members."""
    found = await call.client.flows.find(id)
    info = await call.client.flows.describe(found)
    summary = await call.client.flows.summary(found)
    if info is None or summary is None:
        raise FlowNotFound(id=id)
    members = await call.client.flows.members(found)
    now = await call.client.executions.server_time()
    return _page(
        request,
        call,
        "flow",
        now,
        info=info,
        summary=summary,
        members=members[:MEMBERS_SHOWN],
        total=len(members),
        stamp=sum(one.version for one in members),
    )


@routes.get(PREFIX + "/flows/{id}/graph.svg", Scope.READ, include_in_schema=False)
async def graph(call: CurrentCall, id: Id) -> Response:
    """Draw one flow."""
    found = await call.client.flows.find(id)
    info = await call.client.flows.describe(found)
    summary = await call.client.flows.summary(found)
    if info is None or summary is None:
        raise FlowNotFound(id=id)
    members, edges = await call.client.flows.members(found), await call.client.flows.edges(found)
    now = await call.client.executions.server_time()
    picture = picture_of(info.flow_kind, summary.state, members, edges, info.groups, now=now)
    return Response(as_svg(picture), media_type="image/svg+xml", headers=SVG_HEADERS)


@routes.get(PREFIX + "/lanes", Scope.READ, include_in_schema=False)
async def lanes(call: CurrentCall, request: Request) -> Response:
    """Show lanes and their traffic."""
    found = await call.client.lanes.traffic(window=WINDOW)
    now = await call.client.executions.server_time()
    return _page(request, call, "lanes", now, lanes=found, window=WINDOW)


@routes.get(PREFIX + "/workers", Scope.READ, include_in_schema=False)
async def workers(call: CurrentCall, request: Request) -> Response:
    """Show the live workers."""
    found = await call.client.workers.list()
    now = await call.client.executions.server_time()
    return _page(request, call, "workers", now, workers=found)


@routes.post(PREFIX + "/workers/drain", Scope.OPERATE, is_form=True, include_in_schema=False)
async def drain(call: CurrentCall, request: Request) -> Response:
    """Ask a worker to finish what it runs, and to end."""
    form = await _form(request)
    outcome = await call.client.workers.drain(
        form.get("instance", ""), _reason(form), actor=call.principal.name
    )
    if outcome == "not_registered":
        raise Problem(404, "worker_not_found", "That worker is not registered any more.")
    return _see_other(f"{_root(request)}/workers")


@routes.get(PREFIX + "/sign-in", None, include_in_schema=False)
async def sign_in_page(request: Request) -> Response:
    """Ask for a token."""
    return _sign_in(request, "")


@routes.post(PREFIX + "/sign-in", None, is_form=True, include_in_schema=False)
async def sign_in(request: Request) -> Response:
    """Check a token, and keep it in a cookie that scripts cannot read."""
    form = await _form(request)
    request.cookies[COOKIE] = form.get("token", "").strip()
    try:
        await request.app.state.backend.authenticate(request)
    except Problem as problem:
        return _sign_in(request, problem.detail, problem.status)
    answer = _see_other(_root(request))
    answer.set_cookie(
        COOKIE,
        request.cookies[COOKIE],
        path=_root(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@routes.post(PREFIX + "/sign-out", None, is_form=True, include_in_schema=False)
async def sign_out(request: Request) -> Response:
    """Forget the token."""
    await _form(request)
    answer = _see_other(f"{_root(request)}/sign-in")
    answer.delete_cookie(COOKIE, path=_root(request), httponly=True, samesite="strict")
    return answer


@routes.get(PREFIX + "/static/{name}", None, include_in_schema=False)
async def static(name: Id) -> Response:
    """Return the style or the script of the pages."""
    if name not in STATIC:
        raise Problem(404, "unknown_path", "There is no such file.")
    return Response(
        read_static(name), media_type=STATIC[name], headers={"Cache-Control": "max-age=60"}
    )


def is_page(request: Request) -> bool:
    """Return whether a request is one of a person: its errors are pages, too."""
    path = request.scope.get("flowfabric.route") or ""
    return str(path).startswith(PREFIX)


def problem_page(request: Request, error: FlowFabricError | Problem) -> Response:
    """Return an error as a page. Who is not signed in is sent to the sign-in."""
    if isinstance(error, Problem):
        status, detail = error.status, error.detail
    else:
        facts = facts_of(error)
        status, detail = facts["status"], facts["detail"]
    if status == 401:
        return _see_other(f"{_root(request)}/sign-in")
    call = getattr(request.state, "call", None)
    titles = {403: "Not allowed", 404: "Not found", 412: "It has changed", 503: "No database"}
    html = render(
        "problem",
        now=datetime.now().astimezone(),
        root=_root(request),
        here="",
        visitor=_visitor(request, call.principal if call else None),
        status=status,
        title=titles.get(status, "That did not work"),
        detail=detail,
    )
    return Response(html, status, media_type="text/html", headers=HEADERS)


def _page(
    request: Request, call: Call, name: str, now: datetime, status: int = 200, **facts: Any
) -> Response:
    here = {"execution": "Executions", "flow": "Flows"}.get(name, name.capitalize())
    html = render(
        name,
        now=now,
        root=_root(request),
        here=here,
        visitor=_visitor(request, call.principal),
        **facts,
    )
    return Response(html, status, media_type="text/html", headers=HEADERS)


def _sign_in(request: Request, problem: str, status: int = 200) -> Response:
    now = datetime.now().astimezone()
    html = render("sign_in", now=now, root=_root(request), problem=problem)
    return Response(html, status, media_type="text/html", headers=HEADERS)


def _visitor(request: Request, principal: Principal | None) -> Visitor:
    scopes = principal.scopes if principal else frozenset()
    hides = request.app.state.backend.hides_payloads
    return Visitor(
        principal.namespace if principal else "",
        Scope.OPERATE in scopes,
        Scope.OPERATE in scopes or not hides,
        COOKIE in request.cookies,
    )


def _root(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}{PREFIX}"


def _see_other(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303, headers=HEADERS)


async def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form; refuse a form that a page of another site has sent."""
    origin = request.headers.get("origin", "")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    site = request.headers.get("sec-fetch-site", "same-origin")
    if origin.lower() != own.lower() or site != "same-origin":
        raise Problem(403, "cross_origin", "A page of another site may not act here.")
    body = (await request.body()).decode(errors="replace")
    return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=20))


def _reason(form: Mapping[str, str]) -> str:
    reason = form.get("reason", "").strip()
    if not reason:
        raise InvalidInput(field="reason", problem="must be given: it is recorded with the act")
    return reason


def _whole(form: Mapping[str, str], name: str) -> int:
    text = form.get(name, "").strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise InvalidInput(field=name, problem="must be a whole number")
    return int(text)


def _acts(state: PublicState) -> Sequence[tuple[str, str]]:
    """Return the acts that fit a state, with their labels."""
    if state.is_terminal:
        return (("replay", "Replay"),)
    if state is PublicState.ACTIVE:
        return (("cancel", "Cancel"), ("revoke-lease", "Revoke lease"))
    if state is PublicState.SUSPENDED:
        return (("cancel", "Cancel"),)
    return (("retry", "Retry now"), ("priority", "Set priority"), ("cancel", "Cancel"))


async def _list(
    call: Call, where: str, now: datetime, *, cursor: str | None = None, limit: int
) -> Any:
    filter, partition = await located(call.client, parse(where).resolved(now), None)
    return await call.client.executions.list(
        filter, cursor=cursor, limit=limit, partition=partition
    )


async def _first(call: Call, where: str, now: datetime) -> list[Listed]:
    return _listed((await _list(call, where, now, limit=5)).executions, now)


def _listed(executions: Sequence[ExecutionSummary], now: datetime) -> list[Listed]:
    return [Listed(one, text_of(in_short(one, now))) for one in executions]
