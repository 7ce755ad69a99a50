"""Minutes: how many events each task had, and how long executions waited and ran."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flowfabric.client.addresses import Scoped
from flowfabric.client.outcomes import Pass
from flowfabric.client.partitions import ask_reachable
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.errors import InvalidInput
from flowfabric.core.minute import Counted, together
from flowfabric.core.partition import Found
from flowfabric.core.states import EventKind
from flowfabric.db import functions
from flowfabric.db.records import reader

_counted = reader(Counted, functions.READ_MINUTES, kind=EventKind, buckets=tuple, counts=tuple)


class Minutes(Scoped):
    """Reads and writes the counts of events by minute."""

    async def read(
        self,
        window: timedelta = timedelta(hours=1),
        *,
        until: datetime | None = None,
        step: timedelta | None = None,
        task: str | None = None,
        lane: str | None = None,
        is_total: bool = False,
    ) -> Found[Counted]:
        """Return how many events happened in a window, by lane, task and kind, with latencies.

        `window` is at most 30 days long and ends at `until` (default: now). `step` divides the
        window into parts of this length. `is_total` adds up all lanes and tasks, and leaves out the
        latencies; that is enough for a chart. A reconciler counts the events some seconds after
        they happened. `missing` names the partitions that cannot be reached: their events are not
        counted.
        """
        if not isinstance(window, timedelta) or not timedelta(0) < window <= timedelta(days=30):
            raise InvalidInput(field="window", problem="must be more than 0 and at most 30 days")
        if until is None:
            rows = await self._database.call(functions.SERVER_TIME)
            until = rows[0]["server_time"]
        # Read whole minutes: the window ends with the minute of `until`.
        try:
            last = until.replace(second=0, microsecond=0) + timedelta(minutes=1)
            since = last - window
        except OverflowError as error:
            raise InvalidInput(field="until", problem="is outside the calendar") from error

        async def read_one(partition: int) -> Sequence[Counted]:
            rows = await self._database.call(
                functions.READ_MINUTES,
                partition_key=partition,
                namespace=self._namespace,
                since=since,
                until=last,
                step=step,
                task=task,
                lane=lane,
                is_total=is_total,
            )
            return [_counted(row) for row in rows]

        answers, missing = await ask_reachable(await self._database.partitions.all(), read_one)
        if len(answers) == 1:
            return Found(answers[0], missing)
        same: dict[tuple[datetime, str, str, EventKind], list[Counted]] = {}
        for one in (each for answer in answers for each in answer):
            same.setdefault((one.starts_at, one.lane, one.task, one.kind), []).append(one)
        return Found([together(same[key]) for key in sorted(same)], missing)

    async def roll_up(self, *, partition: int | None = None, limit: int = 5000) -> Pass:
        """Count the events that are not counted yet, each once."""
        return await handle_everywhere(
            self._database, functions.ROLL_UP_EVENTS, Due.MINUTE, partition=partition, limit=limit
        )
