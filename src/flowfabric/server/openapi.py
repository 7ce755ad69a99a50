"""The OpenAPI document: what FastAPI derives, with our errors instead of its own, and scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

from flowfabric.server.problems import MEDIA_TYPE
from flowfabric.server.routing import GuardedRoute

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
    """Return the OpenAPI document of the server; it is made once."""
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
    for route in app.routes:
        if isinstance(route, GuardedRoute) and route.include_in_schema:
            for method in route.methods or ():
                _complete(made["paths"][route.path_format][method.lower()], route)
    return made


def _complete(operation: dict[str, Any], route: GuardedRoute) -> None:
    scope = route.access.scope
    operation["security"] = [] if scope is None else [{"token": []}]
    if scope is not None:
        operation["x-flowfabric-scope"] = str(scope)
    answers = operation["responses"]
    answers.pop("422", None)
    answers["default"] = {
        "description": "A problem",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
