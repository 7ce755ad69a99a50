"""Measures the counts by minute: `python benchmarks/minutes.py [--quick]`

First: how many events per second one process counts, for one busy task and for 100 tasks. The
events are like the events of a drain: many submits, then claims and completions in batches of 100.
Then: how long a read takes after a day with 100 busy tasks. Such a day has 576 000 rows in
`ff.minute`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from time import perf_counter

import asyncpg

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Route
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server

BATCH = 100
WINDOWS = (timedelta(hours=1), timedelta(hours=6), timedelta(hours=24))

EVENTS = """
insert into ff.event (partition_key, version, xid, execution_id, occurred_at, route_id, kind,
                      namespace)
select 0, $4, pg_current_xact_id(), md5(n::text)::uuid, clock_timestamp(),
       ($3::bigint[])[1 + n % cardinality($3::bigint[])], $5::text::ff.event_kind, 'default'
from generate_series($1::bigint, $2::bigint) n
"""

# A day of 100 tasks, four kinds of events each, every minute.
DAY = """
insert into ff.minute (partition_key, starts_at, namespace, lane, task, kind, event_count, buckets,
                       counts)
select 0, date_trunc('minute', clock_timestamp()) - n * interval '1 minute', 'default', 'default',
       'task' || t, k::ff.event_kind, 60,
       case when k = 'submitted' then '{}' else array(
         select (40 + t % 50 + b)::smallint from generate_series(0, 11) b) end,
       case when k = 'submitted' then '{}' else array(
         select 5 from generate_series(0, 11) b) end
from generate_series(1, 1440) n, generate_series(1, 100) t,
     unnest(array['submitted', 'claimed', 'completed', 'failed']) k
"""


async def fill(connection: asyncpg.Connection, first: int, last: int, routes: list[int]) -> None:
    """Write the events of a drain."""
    await connection.execute(EVENTS, first, last, routes, 1, "submitted")
    for start in range(first, last, BATCH):
        end = min(start + BATCH - 1, last)
        await connection.execute(EVENTS, start, end, routes, 2, "claimed")
        await connection.execute(EVENTS, start, end, routes, 3, "completed")


async def count(client: FlowFabric) -> tuple[int, float]:
    """Count all events; return their number and the seconds."""
    total, begun = 0, perf_counter()
    while True:
        handled, due_in = await client.minutes.roll_up(limit=10_000)
        total += handled
        if due_in is None:
            return total, perf_counter() - begun


async def measure(*, quick: bool = False) -> list[Verdict]:
    executions = 20_000 if quick else 100_000
    verdicts = []
    async with server() as admin, database(admin, "bench_minutes") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        watcher = await asyncpg.connect(url)
        async with FlowFabric(url, pool_size=4) as client:
            first = 1
            for tasks in (1, 100):
                routes = [
                    await client.lanes.register(Route("default", "default", f"bench.task{one}"))
                    for one in range(tasks)
                ]
                say(f"writing the events of {executions} executions of {tasks} tasks")
                await fill(watcher, first, first + executions - 1, routes)
                first += executions
                total, seconds = await count(client)
                assert total == 3 * executions, total
                rate = total / seconds
                print(json.dumps({"tasks": tasks, "events_per_s": round(rate)}), flush=True)
                verdicts.append(
                    Rule(f"events counted by one process, {tasks} tasks", 60_000, 60_000).judge(
                        rate
                    )
                )
            say("writing a busy day")
            await watcher.execute("truncate ff.minute")
            await watcher.execute(DAY)
            # Start without sums. Each pass of `count` then adds one hour of minutes to the sums.
            await watcher.execute("update ff.minute_position set summed_at = '-infinity'")
            begun = perf_counter()
            await count(client)
            say(f"sums of a day: {perf_counter() - begun:.1f} s")
            await watcher.execute("vacuum (analyze) ff.minute")
            for window in WINDOWS:
                times = []
                for _ in range(5 if quick else 20):
                    begun = perf_counter()
                    found = await client.minutes.read(window)
                    times.append(perf_counter() - begun)
                assert len(found) == 400, len(found)
                slow = sorted(times)[int(len(times) * 0.95)] * 1000
                print(json.dumps({"window": str(window), "p95_ms": round(slow, 1)}), flush=True)
                verdicts.append(
                    Rule(f"read of {window} in a busy day, p95", 100, 100, True, unit="ms").judge(
                        slow
                    )
                )
        await watcher.close()
    return verdicts


if __name__ == "__main__":
    sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
