"""Passes of reconcilers over all partitions. One that fails is left alone for a while."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from flowfabric.client.outcomes import Pass, handle_batch
from flowfabric.client.partitions import ask_each, within_time
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.db import functions
from flowfabric.db.functions import Function
from flowfabric.db.outage import level_of
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

_LATER = timedelta.max


class Due(StrEnum):
    """What ff.find_due can look for."""

    TIMER = "timer"
    WAKE = "wake"
    FLOW_CANCEL = "flow_cancel"
    SIBLING = "sibling"
    ROUTE = "route"
    GATE = "gate"
    SIGNAL = "signal"
    SUSPENSION = "suspension"
    WAITPOINT = "waitpoint"
    STREAM = "stream"
    GRANT = "grant"
    EVENT = "event"


async def handle_everywhere(
    database: Database, statement: Function, due: Due | None, *, partition: int | None, limit: int
) -> Pass:
    """Run one batch of a reconciler in a partition, or (None) in each where something is due.

    A partition that fails is logged and left alone for a while; the others go on.
    """
    if partition is None and len(partitions := await database.partitions.all()) > 1:
        return await _handle_each(database, statement, due, partitions, limit)
    return await handle_batch(database, statement, partition_key=partition or 0, limit=limit)


async def _handle_each(
    database: Database, statement: Function, due: Due | None, partitions: range, limit: int
) -> Pass:
    rest = database.partitions.rest
    dues = {} if due is None else await _find_due(database, due)
    wanted = [
        one
        for one in partitions
        if rest.is_over(one)
        and (due is None or dues is None or dues.get(one, _LATER) <= timedelta(0))
    ]

    async def handle(one: int) -> Pass | FlowFabricError:
        fewer = max(limit // 4 ** min(rest.failures(one), 4), 1)
        call = handle_batch(database, statement, partition_key=one, limit=fewer)
        try:
            handled, due_in = await within_time(one, len(partitions), call)
        except FlowFabricError as error:
            rest.begin(one)
            ENGINE_LOGGER.log(
                level_of(error), "%s failed in partition %s: %s", statement.name, one, error
            )
            return error
        rest.end(one)
        return handled, timedelta(0) if handled == fewer else due_in

    answers = await ask_each(wanted, handle) if wanted else []
    done = [answer for answer in answers if not isinstance(answer, FlowFabricError)]
    if answers and not done:
        raise next(answer for answer in answers if isinstance(answer, FlowFabricError))
    times = [due_in for _, due_in in done if due_in is not None]
    times += [due_in for due_in in (dues or {}).values() if due_in > timedelta(0)]
    return sum(handled for handled, _ in done), min(times, default=None)


async def _find_due(database: Database, due: Due) -> dict[int, timedelta] | None:
    """Return the partitions with something to do, and when; None if the look over all failed."""
    try:
        rows = await database.call(functions.FIND_DUE, kind=due.value)
    except Unavailable as error:
        # Some partitions may answer although a look over all does not.
        ENGINE_LOGGER.log(level_of(error), "look over the partitions failed: %s", error)
        return None
    return {row["partition_key"]: row["due_in"] for row in rows}
