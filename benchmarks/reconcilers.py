"""Measures the load of idle reconcilers: `python benchmarks/reconcilers.py [--quick]`

One process runs its reconcilers on a database in which nothing is due. 100 000 executions ended
some hours ago. The processor time of every process of the server is read from /proc before and
after. The load of the server without reconcilers is shown too, but not subtracted.
"""

from __future__ import annotations

import asyncio
import json
import sys

import asyncpg

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Route
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from flowfabric.reconcilers.loop import run_reconcilers
from harness import Rule, Verdict, conclude, database, say, server
from idle import load, parent_of, transactions

FINISHED = 100_000

FILL = """
insert into ff.execution (
  partition_key, execution_id, route_id, namespace, rank, created_at, order_at, transitioned_at,
  mutated_at,
  version, phase, ownership, eligibility, blocking_reason, outcome, attempt_state, cause,
  total_attempt_count, attempt_id, attempt_type, attempt_started_at, attempt_ended_at,
  attempt_ended_as, started_at, terminal_at)
select 0, (lpad(to_hex((extract(epoch from t.at) * 1000)::bigint), 12, '0') || '7000'
           || '8000' || lpad(to_hex(n), 12, '0'))::uuid,
       $2, 'default', 9000, t.at, t.at, t.at, t.at, 3, 'terminal', 'unowned', 'not_applicable',
       'none', 'success', 'attempt_terminal', 'complete', 1, gen_random_uuid(), 'initial',
       t.at, t.at, 'ended_success', t.at, t.at
from generate_series(1, $1::bigint) n
cross join lateral (
  select clock_timestamp() - interval '2 hours' + n * interval '10 ms' as at) t
"""


async def measure(*, quick: bool = False) -> list[Verdict]:
    seconds = 20.0 if quick else 60.0
    async with server() as admin, database(admin, "bench_reconcilers") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        watcher = await asyncpg.connect(url)
        async with FlowFabric(url, pool_size=4) as client:
            route = await client.lanes.register(Route("default", "default", "bench.noop"))
            await watcher.execute(FILL, FINISHED, route)
            await watcher.execute("vacuum (analyze) ff.execution")
            await watcher.execute("checkpoint")
            await asyncio.sleep(3)
            postmaster = parent_of(await watcher.fetchval("select pg_backend_pid()"))
            say(f"the server alone, {seconds / 2:g} s")
            alone = await load(postmaster, seconds / 2)
            running = asyncio.create_task(run_reconcilers(client))
            # Wait until each reconciler has run once, so that connections are open and plans are
            # made.
            await asyncio.sleep(17)
            calls = await transactions(watcher)
            say(f"measuring for {seconds:g} s")
            busy = await load(postmaster, seconds)
            calls = await transactions(watcher) - calls
            assert not running.done(), running
            running.cancel()
            await asyncio.wait([running])
        await watcher.close()
    line = {
        "finished_executions": FINISHED,
        "transactions_per_s": round(calls / seconds, 1),
        "server_alone_percent": round(alone, 2),
        "server_percent": round(busy, 2),
    }
    print(json.dumps(line), flush=True)
    rule = Rule("idle reconcilers of one process: Postgres, of one core", 2, 1, True, unit="%")
    return [rule.judge(busy)]


if __name__ == "__main__":
    sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
