"""Run reconcilers in all partitions. A partition that fails is skipped for a while."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from time import monotonic

from flowfabric.client.outcomes import Pass, handle_batch
from flowfabric.client.partitions import ask_each, look, within_time
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.db import functions
from flowfabric.db.functions import Function
from flowfabric.db.outage import level_of
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

_LATER = timedelta.max


class Due(StrEnum):
    """The kinds of due work that ff.find_due can find."""

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
    MINUTE = "minute"


class Dues:
    """The work that is due in all partitions, found by one query.

    The reconcilers of a process share the query, so that an idle process makes one call instead of
    one for each reconciler.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._looked_at = -math.inf
        self._due_at: dict[Due, float] = {}

    async def due_in(self, due: Due, *, max_age: timedelta) -> timedelta | None:
        """Return the time until work of this kind is due; None if there is no such work.

        If the last query is older than `max_age`, query again. If the query fails, work of every
        kind counts as due, because some partitions can perhaps be reached.
        """
        oldest = monotonic() - max_age.total_seconds()
        async with self._lock:
            if self._looked_at < oldest:
                await self._look()
        due_at = self._due_at.get(due)
        return None if due_at is None else timedelta(seconds=due_at - monotonic())

    async def _look(self) -> None:
        self._looked_at = monotonic()
        found = await _find_due(self._database, list(Due))
        if found is None:
            self._due_at = dict.fromkeys(Due, self._looked_at)
            return
        self._due_at = {}
        for kind, _, due_in in found:
            due_at = self._looked_at + due_in.total_seconds()
            self._due_at[kind] = min(due_at, self._due_at.get(kind, math.inf))


async def handle_everywhere(
    database: Database, statement: Function, due: Due | None, *, partition: int | None, limit: int
) -> Pass:
    """Run one batch of a reconciler in the given partition, or in each partition if none is given.

    If there are several partitions, skip a partition that has no due work or has failed recently.
    """
    if partition is None and len(partitions := await database.partitions.all()) > 1:
        return await _handle_each(database, statement, due, partitions, limit)
    return await handle_batch(database, statement, partition_key=partition or 0, limit=limit)


async def _handle_each(
    database: Database, statement: Function, due: Due | None, partitions: range, limit: int
) -> Pass:
    rest = database.partitions.rest
    found = [] if due is None else await _find_due(database, [due])
    dues = None if found is None else {one: due_in for _, one, due_in in found}
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


async def _find_due(
    database: Database, dues: Sequence[Due]
) -> list[tuple[Due, int, timedelta]] | None:
    """Return the times until work is due, each with its kind and its partition. Return None if
    the query over all partitions failed.
    """
    try:
        call = database.call(functions.FIND_DUE, kinds=[due.value for due in dues])
        rows = await look(database.partitions.numbers.partitions, call)
    except Unavailable as error:
        ENGINE_LOGGER.log(level_of(error), "query over all partitions failed: %s", error)
        return None
    return [(Due(row["kind"]), row["partition_key"], row["due_in"]) for row in rows]
