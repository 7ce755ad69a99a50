"""Operations on one execution that must not act twice, however often they are sent."""

from __future__ import annotations

import json
from typing import Any

from flowfabric.client.refusals import refusal
from flowfabric.core.errors import ExecutionNotFound, InvalidInput, RetryExhausted
from flowfabric.core.execution import Steered
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import EventKind, PublicState
from flowfabric.db import functions
from flowfabric.db.functions import Function
from flowfabric.db.session import Database

# How often an operation is tried on an execution that others move at the same time.
_TRIES = 5

_ANSWERS = {
    "cancelled",
    "changed",
    "replayed",
    "promoted",
    "unblocked",
    "blocked",
    "revoked",
    "already_satisfied",
    "already_applied",
}


def address(id: ExecutionId, namespace: str | None) -> tuple[object, ...]:
    """The first arguments of every operation on one execution."""
    if not isinstance(id, ExecutionId):
        raise InvalidInput(
            field="id",
            problem=f"must be an ExecutionId, not {type(id).__name__}; "
            "ExecutionId.parse(text) makes one",
        )
    return id.partition_key, namespace, id.uuid


async def steer(
    database: Database,
    namespace: str | None,
    operation: Function,
    id: ExecutionId,
    kinds: tuple[EventKind, ...],
    *args: object,
    if_version: int | None,
) -> Steered:
    """One operation, meant for one version of the execution: the caller's, or the present one.

    Without a version of the caller's, an execution that somebody else moved meanwhile is tried
    again as it is now, unless the event that moved it is of the kind this operation writes: then
    it is ours, and its answer was lost on the way.
    """
    where = address(id, namespace)
    if if_version is not None:
        return steered(id, (await database.call(operation, *where, *args, if_version))[0])
    for _ in range(_TRIES):
        found = await database.call(functions.READ_VERSION, id.partition_key, id.uuid, namespace)
        if not found:
            raise ExecutionNotFound(id=str(id))
        version: int = found[0][0]
        answer = steered(id, (await database.call(operation, *where, *args, version))[0])
        if answer.outcome != "already_applied":
            return answer
        event = await database.call(functions.READ_EVENT, id.partition_key, id.uuid, version + 1)
        if event and event[0]["kind"] in kinds:
            return answer
    raise RetryExhausted(
        f"{id} was moved by others {_TRIES} times in a row; nothing was changed, try again later.",
        operation=operation.name,
    )


def steered(id: ExecutionId, row: Any) -> Steered:
    """The answer of an operation on one execution; a refusal is raised."""
    if row["outcome"] not in _ANSWERS:
        raise refusal(row["outcome"], row["detail"], id=str(id))
    return Steered(
        id=id,
        outcome=row["outcome"],
        public_state=PublicState(row["public_state"]),
        version=row["version"],
        detail=json.loads(row["detail"]) if row["detail"] else {},
    )
