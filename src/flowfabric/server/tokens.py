"""HTTP routes for administrators: API tokens, the audit, and database logins."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import Annotated, Literal, TypedDict
from uuid import UUID

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import Forbidden, InvalidInput
from flowfabric.core.namespace import NamespaceGrant
from flowfabric.core.token import ApiToken, AuditEntry, NewToken, Scope
from flowfabric.server.answers import answer, page
from flowfabric.server.routing import Call, CurrentCall, Routes
from flowfabric.server.shapes import PageOf
from flowfabric.server.submissions import Body, Duration, duration

routes = Routes("tokens")
# The longest lifetime of a token that is made over HTTP.
LONGEST = timedelta(days=366)


class New(Body):
    """A token to make, for the namespace of the caller."""

    name: str
    scopes: list[Scope] = Field(min_length=1)
    expires: Duration = Field(
        default="90d",
        description="At most 366d, and at most as long as the token of the caller is valid.",
    )


class Revoked(TypedDict):
    """Whether this call revoked the token."""

    id: UUID
    outcome: Literal["revoked", "unchanged"]


@routes.post("/v1/tokens", Scope.ADMIN, status_code=201, answers=NewToken)
async def create(call: CurrentCall, body: New) -> Response:
    """Make a token. Only this answer contains the token: it cannot be read later."""
    if missing := set(body.scopes) - call.principal.scopes:
        raise Forbidden(f"A token cannot give what it does not have: {', '.join(sorted(missing))}.")
    made = await call.client.tokens.create(
        body.name,
        body.scopes,
        expires=_lifetime(call, body),
        actor=call.principal.name,
    )
    return answer(made, 201)


@routes.get("/v1/tokens", Scope.ADMIN, answers=PageOf(ApiToken))
async def list_tokens(
    call: CurrentCall,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: UUID | None = None,
) -> Response:
    """List the API tokens of the namespace, newest first, without their secrets."""
    found = await call.client.tokens.list(after=cursor, limit=limit)
    return page(request, found, found[-1].token_id if len(found) == limit else None)


@routes.delete("/v1/tokens/{id}", Scope.ADMIN, answers=Revoked)
async def revoke(call: CurrentCall, id: UUID, reason: str | None = None) -> Response:
    """Revoke a token. It stops working within 5 seconds."""
    is_new = await call.client.tokens.revoke(id, reason=reason, actor=call.principal.name)
    return answer({"id": id, "outcome": "revoked" if is_new else "unchanged"})


@routes.get("/v1/audit", Scope.ADMIN, answers=PageOf(AuditEntry))
async def audit(
    call: CurrentCall,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int, Query(ge=0)] | None = None,
) -> Response:
    """List what operators and administrators did, newest first."""
    found = await call.client.tokens.audit(before=cursor, limit=limit)
    return page(request, found, found[-1].audit_id if len(found) == limit else None)


@routes.get("/v1/namespaces", Scope.ADMIN, answers=PageOf(NamespaceGrant))
async def list_namespaces(call: CurrentCall, request: Request) -> Response:
    """List the database logins that are bound to the namespace of the caller."""
    found = await call.client.namespaces.list()
    own = [one for one in found if one.namespace == call.principal.namespace]
    return page(request, own, None)


def _lifetime(call: Call, body: New) -> timedelta:
    """Return how long a new token is valid: never longer than the token of the caller.

    Only an operator with a database login can make a token that never expires.
    """
    wanted = duration(body.expires, "expires") or timedelta(0)
    if not timedelta(0) < wanted <= LONGEST:
        raise InvalidInput(field="expires", problem="must be more than 0 and at most 366d")
    until = call.principal.expires_at
    if until is None:
        return wanted
    left = timedelta(seconds=max(until - monotonic(), 1))
    if "expires" in body.model_fields_set and wanted > left:
        raise InvalidInput(
            field="expires", problem="must not be later than the expiry of your own token"
        )
    return min(wanted, left)
