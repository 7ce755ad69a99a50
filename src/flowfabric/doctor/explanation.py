"""Explains one execution: reads its rows, and checks it with the invariants about executions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowfabric.core.attempts import with_attempt_numbers
from flowfabric.core.errors import ExecutionNotFound, SchemaMismatch
from flowfabric.core.ids import ExecutionId
from flowfabric.db.inspection import QueryFailed, look, text_of
from flowfabric.doctor.examination import judge_executions
from flowfabric.doctor.report import Verdict

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The rows of one execution, and the verdicts of the invariants about it.

    Each row is a pair: a word for its kind, such as `attempt`, and its columns.
    """

    id: ExecutionId
    rows: tuple[tuple[str, dict[str, Any]], ...]
    verdicts: tuple[Verdict, ...]


async def explain(connection: Connection, id: ExecutionId) -> Explanation:
    try:
        rows = await look(connection, text_of("execution.sql"), id.partition_key, id.uuid)
    except QueryFailed as error:
        raise SchemaMismatch(
            f"The tables cannot be read: {error}. Run as the owner of schema ff."
        ) from error
    if not rows:
        raise ExecutionNotFound(id=str(id))
    verdicts = await judge_executions(connection, {id.partition_key: [id.uuid]})
    return Explanation(
        id=id,
        rows=tuple((row["part"], with_attempt_numbers(json.loads(row["facts"]))) for row in rows),
        verdicts=tuple(verdicts),
    )
