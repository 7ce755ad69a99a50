"""Health of the process and of its database, and the description of the API."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.token import Scope
from flowfabric.server.answers import answer
from flowfabric.server.metrics import CONTENT_TYPE
from flowfabric.server.openapi import document
from flowfabric.server.problems import Problem
from flowfabric.server.routing import CurrentCall, Routes

routes = Routes("health")
# A database that does not answer within this time is not ready.
READY_SECONDS = 2.0


@routes.get("/livez", None)
async def livez() -> Response:
    """Say that the process runs. It asks nobody else."""
    return answer({"status": "ok"})


@routes.get("/readyz", None)
async def readyz(request: Request) -> Response:
    """Say whether the database answers: 200 or 503."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            client = await request.app.state.backend.app.client()
            await client.executions.server_time()
    except TimeoutError as error:
        raise Problem(503, "not_ready", "The database does not answer.") from error
    return answer({"status": "ok"})


@routes.get("/healthz", None)
async def healthz(request: Request) -> Response:
    """Say whether the database answers, as `/readyz` does."""
    return await readyz(request)


@routes.get("/metrics", Scope.READ)
async def metrics(call: CurrentCall) -> Response:
    """Return the metrics of this process and of the caller's namespace, for Prometheus."""
    return Response(await call.backend.metrics.text(call.client), media_type=CONTENT_TYPE)


@routes.get("/v1/openapi.json", None)
async def openapi(request: Request) -> Response:
    """Describe this API as an OpenAPI document."""
    return answer(document(request.app))
