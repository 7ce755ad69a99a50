"""Minutes: counts of events by minute, and how long executions waited and ran."""

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

        The window is `window` long, at most 30 days, and ends with the minute of `until` (default:
        now). If `step` is given, the window is divided into parts of this length, and each part has
        its own counts. If `is_total` is true, the counts of all lanes and tasks are added up, and
        there are no latencies.

        A reconciler counts an event some seconds after it happened. Partitions that cannot be
        reached are not counted; `missing` names them.
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
        """Count the events that are not counted yet.

        Return how many were counted, and the time until the next call.
        """
        return await handle_everywhere(
            self._database, functions.ROLL_UP_EVENTS, Due.MINUTE, partition=partition, limit=limit
        )
