"""HTTP routes for the health of the process and of its database, and for the OpenAPI page."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.token import Scope
from flowfabric.server.answers import Verbatim, answer
from flowfabric.server.metrics import CONTENT_TYPE
from flowfabric.server.openapi import document
from flowfabric.server.principals import NoAuth
from flowfabric.server.problems import Problem
from flowfabric.server.routing import CurrentCall, Routes
from flowfabric.server.shapes import Text

routes = Routes("health")
# A database that does not answer within this time is not ready.
READY_SECONDS = 2.0


class Status(TypedDict):
    """The answer if all is well."""

    status: str


@routes.get("/livez", None, answers=Status)
async def livez() -> Response:
    """Say that the process runs, without asking the database."""
    return answer({"status": "ok"})


@routes.get("/readyz", None, answers=Status)
async def readyz(request: Request) -> Response:
    """Say whether the database answers: the status is 200 if it does, otherwise 503."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            client = await request.app.state.backend.app.client()
            await client.executions.server_time()
    except TimeoutError as error:
        raise Problem(503, "not_ready", "The database does not answer.") from error
    return answer({"status": "ok"})


@routes.get("/healthz", None, answers=Status)
async def healthz(request: Request) -> Response:
    """Say whether the database answers, as `/readyz` does."""
    return await readyz(request)


@routes.get("/metrics", Scope.READ, answers=Text("text/plain"))
async def metrics(call: CurrentCall) -> Response:
    """Return the metrics of the caller's namespace, for Prometheus.

    The totals of the process count all namespaces. They are included only if the server needs no
    tokens. Otherwise only `flowfabric serve --metrics-port` serves them.
    """
    is_alone = isinstance(call.backend.authenticate, NoAuth)
    text = await call.backend.metrics.text(call.client, with_totals=is_alone)
    return Response(text, media_type=CONTENT_TYPE)


@routes.get("/v1/openapi.json", None, answers=dict[str, Any])
async def openapi(request: Request) -> Response:
    """Describe this API as an OpenAPI document."""
    return answer(Verbatim(document(request.app)))
