"""Operations on one execution that must not act twice, however often they are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flowfabric.client.outcomes import refusal
from flowfabric.core.errors import ExecutionNotFound, InvalidInput, RetryExhausted
from flowfabric.core.execution import MAX_NAME_BYTES, Steered, check_text
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
    partition, uuid = place(id)
    return partition, namespace, uuid


def place(id: ExecutionId) -> tuple[int, UUID]:
    """Where an execution is; whatever else was given is told what an id is."""
    if not isinstance(id, ExecutionId):
        raise InvalidInput(
            field="id",
            problem=f"must be an ExecutionId, not {type(id).__name__}; "
            "ExecutionId.parse(text) makes one",
        )
    return id.partition_key, id.uuid


def check_words(**words: str | None) -> None:
    """Refuse a reason or an actor that cannot be sent; the engine judges the rest."""
    for name, value in words.items():
        if value is not None and value != "":
            check_text(name, value, MAX_NAME_BYTES)


async def steer(
    database: Database,
    namespace: str | None,
    operation: Function,
    id: ExecutionId,
    kinds: tuple[EventKind, ...],
    *args: object,
    if_version: int | None,
    wrote: Mapping[str, object],
    actor: str | None,
) -> Steered:
    """One operation, meant for one version of the execution: the caller's, or the present one.

    Without a version of the caller's, an execution that somebody else moved meanwhile is tried
    again as it is now, unless the event that moved it is the one this operation writes (its kind,
    `actor` and what it `wrote`): then it is ours, and its answer was lost on the way.
    """
    where = address(id, namespace)
    if if_version is not None:
        return steered(id, (await database.call(operation, *where, *args, if_version))[0])
    for _ in range(_TRIES):
        found = await database.call(functions.READ_VERSION, *where)
        if not found:
            raise ExecutionNotFound(id=str(id))
        version: int = found[0][0]
        answer = steered(id, (await database.call(operation, *where, *args, version))[0])
        if answer.outcome != "already_applied":
            return answer
        event = await database.call(functions.READ_EVENT, *where, version + 1)
        if event and _is_ours(event[0], kinds, actor, wrote):
            return answer
    raise RetryExhausted(
        f"{id} was moved by others {_TRIES} times in a row; nothing was changed, try again later.",
        operation=operation.name,
    )


def _is_ours(
    event: Any, kinds: tuple[EventKind, ...], actor: str | None, wrote: Mapping[str, object]
) -> bool:
    detail = json.loads(event["detail"]) if event["detail"] else {}
    return (
        event["kind"] in kinds
        and event["actor"] == actor
        and all(detail.get(name) == value for name, value in wrote.items())
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
