"""Compare answers with the OpenAPI document. Every caller of the tests does so with every answer.

A status, a media type or a field that the document does not name is an error.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import httpx
import jsonschema_rs
from starlette.routing import Match

from flowfabric.server.application import Server
from flowfabric.server.openapi import document
from flowfabric.server.routing import GuardedRoute


def closed(made: dict[str, Any]) -> dict[str, Any]:
    """Return the document with schemas of answers that allow no further fields."""
    made = deepcopy(made)
    for name, schema in made["components"]["schemas"].items():
        if name != "Problem":
            _close(schema)
    for operations in made["paths"].values():
        for operation in operations.values():
            _close(operation["responses"])
    return made


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for one in schema:
            _close(one)
    if isinstance(schema, dict):
        if "properties" in schema and "required" in schema:
            schema.setdefault("additionalProperties", False)
        for one in schema.values():
            _close(one)


def problem_of(served: Server, answer: httpx.Response) -> str | None:
    """Return what is wrong with an answer, or None. The body must have been read."""
    method, route = answer.request.method, _route_of(served, answer.request)
    if route is None or not route.include_in_schema or method not in (route.methods or ()):
        return None
    documented = _document(served)["paths"][route.path_format][method.lower()]["responses"]
    what = f"{method} {route.path_format} {answer.status_code}"
    if str(answer.status_code) not in documented:
        return f"{what}: the status is not documented"
    content = documented[str(answer.status_code)]["content"]
    media_type = answer.headers["content-type"].partition(";")[0]
    if media_type not in content:
        return f"{what}: {media_type} is not documented"
    if not media_type.endswith("json"):
        return None
    check = _validator(served, route.path_format, method.lower(), answer.status_code, media_type)
    wrong = next(iter(check.iter_errors(answer.json())), None)
    return None if wrong is None else f"{what}: {list(wrong.instance_path)} {wrong.message[:500]}"


def _route_of(served: Server, request: httpx.Request) -> GuardedRoute | None:
    scope = {"type": "http", "path": request.url.path, "method": request.method}
    for route in served.router.routes:
        if isinstance(route, GuardedRoute) and route.matches(scope)[0] is Match.FULL:
            return route
    return None


# All servers have the same routes, so they have one document.
_DOCUMENTS: list[dict[str, Any]] = []
_VALIDATORS: dict[tuple[Any, ...], Any] = {}


def _document(served: Server) -> dict[str, Any]:
    if not _DOCUMENTS:
        _DOCUMENTS.append(closed(document(served)))
    return _DOCUMENTS[0]


def _validator(served: Server, path: str, method: str, status: int, media_type: str) -> Any:
    key = (path, method, status, media_type)
    if key not in _VALIDATORS:
        made = _document(served)
        content = made["paths"][path][method]["responses"][str(status)]["content"]
        schema = {**content[media_type]["schema"], "components": made["components"]}
        _VALIDATORS[key] = jsonschema_rs.validator_for(schema)
    return _VALIDATORS[key]
