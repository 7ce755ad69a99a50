"""The events of a drain with 8 and 32 partitions: each once, and in order for its execution."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta

import pytest

from flowfabric import Context, Fixed, Retry
from flowfabric.core.execution import Event
from worker.apps import working

LAST = "completed"


def versions(events: Iterable[Event]) -> dict[str, list[int]]:
    """The versions of each execution, in the order of the events."""
    found = defaultdict(list)
    for event in events:
        found[str(event.id)].append(event.version)
    return found


@pytest.mark.parametrize("number", [8, 32])
async def test_a_drain_is_told_once_and_in_order_to_whoever_reads_along_or_later(
    app, several, number
):
    @app.task(retry=Retry(1, Fixed(timedelta(0))))
    async def work(ctx: Context, n: int) -> int:
        if n % 5 == 0 and ctx.attempt == 1:
            raise ValueError(n)
        return n

    client = await app.client()
    start = await client.events.open()
    count = 12 * number
    events: list[Event] = []

    async def read_along() -> None:
        ends = 0
        async for page in client.events.follow_pages(start, limit=7 * number):
            events.extend(page.events)
            ends += sum(event.kind == LAST for event in page.events)
            if ends == count:
                return

    reading = asyncio.create_task(read_along())
    async with working(app, concurrency=50):
        numbers = [(n,) for n in range(count)]
        runs = await work.submit_many(numbers, keys=[f"key {n}" for n in range(count)])
        assert len({run.id.partition_key for run in runs}) == number
        async with asyncio.timeout(120):
            await asyncio.gather(*(run.result() for run in runs))
            await reading
    seen = versions(events)
    assert seen.keys() == {str(run.id) for run in runs}
    assert all(one == list(range(1, len(one) + 1)) for one in seen.values())
    stored = await several.fetchval("select count(*) from ff.event")
    assert len(events) == stored > 3 * count

    again, cursor = [], start
    while True:
        page = await client.events.read(cursor, limit=100)
        again += page.events
        cursor = page.cursor
        if not page.has_more:
            break
    assert versions(again) == seen
