"""Tokens and the audit, for administrators."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import Forbidden
from flowfabric.core.token import Scope
from flowfabric.server.answers import answer, page
from flowfabric.server.routing import CurrentCall, Routes
from flowfabric.server.submissions import Body, Duration, duration

routes = Routes("tokens")


class New(Body):
    """A token to make, for the namespace of the caller."""

    name: str
    scopes: list[Scope] = Field(min_length=1)
    expires: Duration | None = None


@routes.post("/v1/tokens", Scope.ADMIN, status_code=201)
async def create(call: CurrentCall, body: New) -> Response:
    """Make a token. Only this answer has the token itself."""
    if missing := set(body.scopes) - call.principal.scopes:
        raise Forbidden(f"A token cannot give what it does not have: {', '.join(sorted(missing))}.")
    made = await call.client.tokens.create(
        body.name,
        body.scopes,
        expires=duration(body.expires, "expires"),
        actor=call.principal.name,
    )
    return answer(made, 201)


@routes.get("/v1/tokens", Scope.ADMIN)
async def list_tokens(
    call: CurrentCall,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: UUID | None = None,
) -> Response:
    """List the tokens of the namespace, newest first, without the tokens themselves."""
    found = await call.client.tokens.list(after=cursor, limit=limit)
    return page(request, found, found[-1].token_id if len(found) == limit else None)


@routes.delete("/v1/tokens/{id}", Scope.ADMIN)
async def revoke(call: CurrentCall, id: UUID, reason: str | None = None) -> Response:
    """Revoke a token. It stops working within 5 seconds."""
    is_new = await call.client.tokens.revoke(id, reason=reason, actor=call.principal.name)
    return answer({"id": id, "outcome": "revoked" if is_new else "unchanged"})


@routes.get("/v1/audit", Scope.ADMIN)
async def audit(
    call: CurrentCall,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int, Query(ge=0)] | None = None,
) -> Response:
    """List what operators and administrators did, newest first."""
    found = await call.client.tokens.audit(before=cursor, limit=limit)
    return page(request, found, found[-1].audit_id if len(found) == limit else None)
