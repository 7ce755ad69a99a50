"""Operations on all executions that a filter finds, with a dry run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from starlette.responses import Response

from flowfabric.core.errors import FlowFabricError, InvalidInput, Unavailable
from flowfabric.core.execution import ExecutionSummary, Steered
from flowfabric.core.states import PublicState
from flowfabric.core.token import Scope
from flowfabric.server.answers import answer
from flowfabric.server.executions import filter_of, where_of
from flowfabric.server.paths import Reason
from flowfabric.server.problems import facts_of
from flowfabric.server.routing import Call, CurrentCall, Routes

routes = Routes("bulk")
AT_ONCE = 8
_ENDED = frozenset(state for state in PublicState if state.is_terminal)
_STATES: dict[str, frozenset[PublicState]] = {
    "cancel": frozenset(PublicState) - _ENDED,
    "replay": _ENDED,
    "retry": _ENDED | {PublicState.DELAYED, PublicState.WAITING},
    "revoke-lease": frozenset({PublicState.ACTIVE}),
}
Verb = Literal["cancel", "replay", "retry", "revoke-lease"]


class Bulk(Reason):
    """Which executions, and whether to change them."""

    where: str = Field(description="The filter language of lists, with at least one condition.")
    dry_run: bool = True
    limit: int = Field(default=1000, ge=1, le=10_000, description="Change at most this many.")


@routes.post("/v1/bulk/{verb}", Scope.OPERATE)
async def bulk(call: CurrentCall, verb: Verb, body: Bulk) -> Response:
    """Change all executions that match, newest first. `dry_run` (the default) only counts them.

    If `next` is true, more match than the limit: call again.
    """
    where = where_of([body.where])
    if where.is_everything:
        raise InvalidInput(field="where", problem="must contain at least one condition")
    if where.states is None:
        where = replace(where, states=tuple(sorted(_STATES[verb])), is_state_meant=False)
    filter, partition = await filter_of(call, where)
    if body.dry_run:
        total = await call.client.executions.count(filter, partition=partition)
        return answer({"dry_run": True, "matches": total.number, "is_more": total.is_more})
    now = await call.client.executions.server_time()
    filter = replace(filter, created_before=min(filter.created_before or now, now))
    found: list[ExecutionSummary] = []
    cursor = None
    while len(found) < body.limit:
        page = await call.client.executions.list(
            filter, cursor=cursor, limit=min(500, body.limit - len(found)), partition=partition
        )
        found += page.executions
        cursor = page.cursor
        if cursor is None:
            break
    return answer({"dry_run": False, **await _act(call, verb, body, found), "next": bool(cursor)})


async def _act(call: Call, verb: str, body: Bulk, found: list[ExecutionSummary]) -> dict[str, Any]:
    act = _action(call, verb, body.reason)
    outcomes: Counter[str] = Counter()
    refused: list[dict[str, Any]] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(summary: ExecutionSummary) -> None:
        async with gate:
            try:
                outcomes[(await act(summary)).outcome] += 1
            except Unavailable:
                raise
            except FlowFabricError as error:
                refused.append({"id": summary.id, "problem": facts_of(error)})

    await asyncio.gather(*map(one, found))
    return {"handled": len(found), "outcomes": dict(outcomes), "refused": refused[:100]}


def _action(
    call: Call, verb: str, reason: str | None
) -> Callable[[ExecutionSummary], Awaitable[Steered]]:
    executions, leases = call.client.executions, call.client.leases
    methods: dict[str, Any] = {
        "cancel": executions.cancel,
        "replay": executions.replay,
        "retry": executions.retry,
        "revoke-lease": leases.revoke,
    }
    method, actor = methods[verb], call.principal.name
    return lambda each: method(each.id, reason=reason, actor=actor, if_version=each.version)
