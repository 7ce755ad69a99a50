"""The OpenAPI document of FastAPI, with scopes added and FastAPI's errors replaced by ours."""

from __future__ import annotations

from http.client import responses
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

from flowfabric.server.problems import MEDIA_TYPE
from flowfabric.server.routing import GuardedRoute
from flowfabric.server.shapes import Shapes

if TYPE_CHECKING:
    from fastapi import FastAPI

_PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `type` is stable; `field` names what is wrong in the request.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:flowfabric:execution_not_found"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "field": {"type": "string"},
        "request_id": {"type": "string"},
    },
}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the server. The first call builds it."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for ours in ("HTTPValidationError", "ValidationError"):
        schemas.pop(ours, None)
    schemas["Problem"] = _PROBLEM
    made["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "flowfabric token new"}
    }
    shapes = Shapes(schemas)
    for route in app.routes:
        if isinstance(route, GuardedRoute) and route.include_in_schema:
            for method in route.methods or ():
                operation = made["paths"][route.path_format][method.lower()]
                _complete(operation, method, route, shapes)
    return made


def _complete(operation: dict[str, Any], method: str, route: GuardedRoute, shapes: Shapes) -> None:
    scope = route.access.scope
    operation["security"] = [] if scope is None else [{"token": []}]
    if scope is not None:
        operation["x-flowfabric-scope"] = str(scope)
    answers: dict[str, dict[str, Any]] = {
        str(status): {"description": responses[status], "content": shapes.content(shape)}
        for status, shape in route.access.answers.items()
    }
    problem: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    # A route that answers a browser with a page also refuses with a page.
    for answered in answers.values():
        problem |= {name: one for name, one in answered["content"].items() if name == "text/html"}
    for status in sorted(_refusal_statuses(operation, method, route)):
        answers[str(status)] = {"description": responses[status], "content": problem}
    operation["responses"] = answers


def _refusal_statuses(operation: dict[str, Any], method: str, route: GuardedRoute) -> set[int]:
    """Return the statuses with which an HTTP route can refuse a request.

    Some statuses follow from the scope, the method and the parameters of the route. The route
    declares the others.
    """
    found = {421, 503, *route.access.refuses}
    if route.access.scope is not None:
        found |= {401, 403, 429}
    if "parameters" in operation or "requestBody" in operation:
        found.add(422)
    if "{" in route.path_format:
        found.add(404)
    if method in ("POST", "PUT"):
        found |= {400, 408, 413, 415}
    if method != "GET":
        found.add(409)
    return found
