"""Signing in and out, and the files that pages load."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.token import Scope
from flowfabric.dashboard.pages import STATIC, read_static, render
from flowfabric.server.dashboard.page import HEADERS, PREFIX, Id, form_of, root, see_other
from flowfabric.server.principals import COOKIE, HOST_COOKIE, cookie_of
from flowfabric.server.problems import Problem
from flowfabric.server.routing import Routes

routes = Routes("dashboard")


class _Limits(TypedDict):
    """The attributes of a cookie: where browsers send it, and whether scripts can read it."""

    path: str
    secure: bool
    httponly: bool
    samesite: Literal["strict"]


@routes.get(PREFIX + "/sign-in", None, include_in_schema=False)
async def sign_in_page(request: Request) -> Response:
    """Show the page that asks for a token."""
    return _sign_in(request, "")


@routes.post(PREFIX + "/sign-in", None, is_form=True, include_in_schema=False)
async def sign_in(request: Request) -> Response:
    """Check a token, and keep it in a cookie that scripts cannot read."""
    form = await form_of(request)
    name = cookie_of(request)
    token = request.cookies[name] = form.get("token", "").strip()
    try:
        await request.app.state.backend.authenticate(request)
    except Problem as problem:
        return _sign_in(request, problem.detail, problem.status)
    answer = see_other(root(request))
    answer.set_cookie(name, token, **_limits(request, name))
    return answer


@routes.post(PREFIX + "/sign-out", None, is_form=True, include_in_schema=False)
async def sign_out(request: Request) -> Response:
    """Delete the cookies with the token, and redirect to the sign-in page."""
    await form_of(request)
    answer = see_other(f"{root(request)}/sign-in")
    # Delete both cookies: the browser may have signed in over http and over https.
    for name in (COOKIE, HOST_COOKIE):
        answer.delete_cookie(name, **_limits(request, name))
    return answer


@routes.get(PREFIX + "/static/{name}", None, include_in_schema=False)
async def static(name: Id) -> Response:
    """Return a file that the pages load, such as a style sheet or the script."""
    if name not in STATIC:
        raise Problem(404, "unknown_path", "There is no such file.")
    return Response(
        read_static(name), media_type=STATIC[name], headers={"Cache-Control": "max-age=60"}
    )


@routes.get(PREFIX + "/{rest:path}", Scope.READ, include_in_schema=False)
async def unknown(rest: str) -> Response:
    """Show a page that says that the address is unknown. This HTTP route must be the last."""
    raise Problem(404, "unknown_path", "There is no such page.")


def _limits(request: Request, name: str) -> _Limits:
    is_host = name == HOST_COOKIE
    path = "/" if is_host else root(request)
    return {"path": path, "secure": is_host, "httponly": True, "samesite": "strict"}


def _sign_in(request: Request, problem: str, status: int = 200) -> Response:
    now = datetime.now().astimezone()
    html = render("sign_in", now=now, root=root(request), problem=problem)
    return Response(html, status, media_type="text/html", headers=HEADERS)
