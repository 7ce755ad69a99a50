"""Routes of the server are short: validation, a call of the client, a rendering."""

from __future__ import annotations

import ast
import inspect
import textwrap

from flowfabric.server.application import GROUPS
from flowfabric.server.routing import GuardedRoute
from support.cases import for_each

MOST_LINES = 15
ROUTES = [route for group in GROUPS for route in group._made.routes]


def lines_of(route: GuardedRoute) -> int:
    """Return the number of lines of a route, without its signature and its docstring."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(route.endpoint))).body
    assert isinstance(made, ast.AsyncFunctionDef)
    body = made.body[1:] if ast.get_docstring(made) else made.body
    return int(body[-1].end_lineno or 0) - body[0].lineno + 1


@for_each("route", ROUTES)
def test_a_route_is_short(route):
    assert lines_of(route) <= MOST_LINES, f"{route.methods} {route.path}: {lines_of(route)} lines"


@for_each("route", ROUTES)
def test_a_route_declares_its_scope_and_says_what_it_does(route):
    assert isinstance(route, GuardedRoute)
    assert route.access is not None
    assert route.endpoint.__doc__, route.path


def test_all_routes_are_looked_at():
    assert len(ROUTES) > 140
