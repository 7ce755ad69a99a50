"""Operations on all executions that a filter finds, with a dry run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, NotRequired, TypedDict

from pydantic import Field
from starlette.responses import Response

from flowfabric.client.filters import Where
from flowfabric.core.errors import FlowFabricError, InvalidInput, Unavailable
from flowfabric.core.execution import ExecutionFilter, ExecutionSummary, OperationAnswer
from flowfabric.core.ids import ExecutionId
from flowfabric.core.partition import Found
from flowfabric.core.states import PublicState
from flowfabric.core.token import Scope
from flowfabric.server.answers import answer, missing_in
from flowfabric.server.executions import filter_of, where_of
from flowfabric.server.paths import Reason
from flowfabric.server.problems import ProblemFacts, facts_of
from flowfabric.server.routing import Call, CurrentCall, Routes

routes = Routes("bulk")
AT_ONCE = 8
_ENDED = frozenset(state for state in PublicState if state.is_terminal)
STATES: dict[str, frozenset[PublicState]] = {
    "cancel": frozenset(PublicState) - _ENDED,
    "replay": _ENDED,
    "retry": _ENDED | {PublicState.DELAYED, PublicState.WAITING},
    "revoke-lease": frozenset({PublicState.ACTIVE}),
}
Verb = Literal["cancel", "replay", "retry", "revoke-lease"]


class Bulk(Reason):
    """The executions to change, and whether the request is a dry run."""

    where: str = Field(description="A filter with at least one condition, as for lists.")
    dry_run: bool = True
    limit: int = Field(default=1000, ge=1, le=10_000, description="Change at most this many.")


class Matched(TypedDict):
    """How many executions a dry run has counted."""

    dry_run: bool
    matches: int
    is_more: bool
    missing_partitions: NotRequired[list[int]]


class RefusedOne(TypedDict):
    """An execution that was not changed, and why."""

    id: ExecutionId
    problem: ProblemFacts


class Handled(TypedDict):
    """Answer of a bulk act. `outcomes` counts the executions by the answer of the engine.

    If `next` is true, there may be more matching executions.
    """

    dry_run: bool
    handled: int
    outcomes: dict[str, int]
    refused: list[RefusedOne]
    next: bool
    missing_partitions: NotRequired[list[int]]


@routes.post("/v1/bulk/{verb}", Scope.OPERATE, answers=Matched | Handled)
async def bulk(call: CurrentCall, verb: Verb, body: Bulk) -> Response:
    """Change the newest executions that match a filter, at most `limit` of them.

    If `dry_run` is true (the default), only count the executions that match. If the answer has
    `next: true`, there may be more of them: send the request again.
    """
    filter, partition = await filter_of(call, bulk_where(verb, body.where))
    if body.dry_run:
        total = await call.client.executions.count(filter, partition=partition)
        facts = {"dry_run": True, "matches": total.number, "is_more": total.is_more}
        return answer({**facts, **missing_in(total)})
    now = await call.client.executions.server_time()
    filter = replace(filter, created_before=min(filter.created_before or now, now))
    found, has_more = await matching(call, filter, partition, body.limit)
    done = await act_on(call, verb, body.reason, found)
    return answer({"dry_run": False, **done, "next": has_more, **missing_in(found)})


def bulk_where(verb: str, text: str) -> Where:
    """Return the filter for a bulk act.

    If `text` does not name states, the filter finds only executions whose state allows the act.
    """
    where = where_of([text])
    if where.is_everything:
        raise InvalidInput(field="where", problem="must contain at least one condition")
    if where.states is None:
        where = replace(where, states=tuple(sorted(STATES[verb])), is_state_meant=False)
    return where


async def matching(
    call: Call, filter: ExecutionFilter, partition: int | None, limit: int
) -> tuple[Found[ExecutionSummary], bool]:
    """Return the newest executions that match a filter, and whether there may be more."""
    found: Found[ExecutionSummary] = Found()
    cursor = None
    while len(found) < limit:
        page = await call.client.executions.list(
            filter, cursor=cursor, limit=min(500, limit - len(found)), partition=partition
        )
        found += page.executions
        found.missing = tuple(sorted({*found.missing, *page.missing}))
        cursor = page.cursor
        if cursor is None:
            break
    return found, cursor is not None


async def act_on(
    call: Call, verb: str, reason: str | None, found: list[ExecutionSummary]
) -> dict[str, Any]:
    """Apply an act to every execution that has not changed since it was found."""
    act = _action(call, verb, reason)
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
    return {
        "handled": len(found),
        "outcomes": dict(outcomes),
        "refused": refused[:100],
    }


def _action(
    call: Call, verb: str, reason: str | None
) -> Callable[[ExecutionSummary], Awaitable[OperationAnswer]]:
    executions, leases = call.client.executions, call.client.leases
    methods: dict[str, Any] = {
        "cancel": executions.cancel,
        "replay": executions.replay,
        "retry": executions.retry,
        "revoke-lease": leases.revoke,
    }
    method, actor = methods[verb], call.principal.name
    return lambda each: method(each.id, reason=reason, actor=actor, if_version=each.version)
