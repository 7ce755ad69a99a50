"""Measure how much 100 000 suspended executions slow down claims, reconcilers and idle workers.

    python benchmarks/suspended.py [NUMBER]

Compares the processor time of claims, of reconcilers and of the queries of idle workers in three
databases: without suspended executions, with NUMBER suspended executions whose timeouts are in the
future, and with NUMBER whose timeouts have passed. The databases take turns; the least time of each
function counts. Starts its own Postgres, or uses the server in BENCH_DSN. Prints one JSON line per
function: milliseconds of processor time per call in each of the three databases, and the ratios of
the second and the third to the first.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import asyncpg

from flowfabric import App, Context, PublicState
from harness import database, say, server

app = App()
CALLS = {
    "claim_executions": (
        "ff.claim_executions(0::smallint, null, 'w', 'w-1', gen_random_uuid(), array['empty'], "
        "null, '{}', 100, '30 s')"
    ),
    "find_work": "ff.find_work(null, array['empty'], null, '{}')",
    # The query that a process makes for all its reconcilers.
    "find_due": (
        "ff.find_due('{timer,wake,flow_cancel,sibling,route,gate,signal,suspension,waitpoint,"
        "stream,grant,event}')"
    ),
    "promote_delayed": "ff.promote_delayed(0::smallint)",
    "expire_leases": "ff.expire_leases(0::smallint)",
    "expire_executions": "ff.expire_executions(0::smallint)",
    "notice_signals": "ff.notice_signals(0::smallint)",
}
ROUNDS = 500
TURNS = 9
TIMEOUTS = (None, "now() + interval ''1 day''", "now() - interval ''1 day''")
# Copies one suspended execution {number} times, with its wait and its suspension.
CLONE = """
do $$
declare
  v_columns text;
  v_values  text;
  v_table   regclass;
begin
  create temporary table made on commit drop as
    select gen_random_uuid() as id, gen_random_uuid() as sid from generate_series(1, {number});
  foreach v_table in array array['ff.execution', 'ff.step', 'ff.suspension']::regclass[] loop
    select string_agg(quote_ident(a.attname), ', '),
           string_agg(case when a.attname = 'execution_id' then 'm.id'
                           when a.attname = 'suspension_id' then 'm.sid'
                           when a.attname = 'timeout_at' then '{timeout}'
                           else 'o.' || quote_ident(a.attname) end, ', ')
      into v_columns, v_values
    from pg_attribute a
    where a.attrelid = v_table and a.attnum > 0 and not a.attisdropped and a.attgenerated = '';
    execute format('insert into %s (%s) select %s from made m, '
                   '(select * from %s where execution_id = %L) o',
                   v_table, v_columns, v_values, v_table, '{model}');
  end loop;
end $$
"""


@app.task
async def wait(ctx: Context) -> None:
    await ctx.wait_for_signal("go", timeout=3600.0)


def spent(pid: int) -> float:
    """Return the processor time of a process in milliseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


async def measure(connection: asyncpg.Connection, found: dict[str, float]) -> None:
    """Note the processor time of each function per call, if it is the least so far."""
    pid = connection.get_server_pid()
    for name, call in CALLS.items():
        before = spent(pid)
        await connection.execute(
            f"do $$ begin for i in 1..{ROUNDS} loop perform * from {call}; end loop; end $$"
        )
        found[name] = min(found.get(name, 1e9), (spent(pid) - before) / ROUNDS)


async def suspend_one() -> UUID:
    """Return the id of an execution that is suspended."""
    async with app:
        await app.prepare()
        run = await wait.submit()
        worker = asyncio.create_task(app.run_worker())
        while await run.state() is not PublicState.SUSPENDED:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return run.id.uuid


async def main(number: int) -> None:
    """Measure three databases in turns."""
    async with (
        server() as admin,
        database(admin, "none") as none_url,
        database(admin, "future") as future_url,
        database(admin, "overdue") as overdue_url,
    ):
        urls = [none_url, future_url, overdue_url]
        connections = []
        for url, timeout in zip(urls, TIMEOUTS, strict=True):
            app.settings = replace(app.settings, database_url=url)
            model = await suspend_one()
            connection = await asyncpg.connect(url)
            if timeout is not None:
                say(f"{number} suspended executions, timeout {timeout}")
                await connection.execute(CLONE.format(number=number, timeout=timeout, model=model))
            await connection.execute("vacuum analyze")
            connections.append(connection)
        results: list[dict[str, float]] = [{}, {}, {}]
        for turn in range(TURNS):
            say(f"turn {turn + 1} of {TURNS}")
            for connection, found in zip(connections, results, strict=True):
                await measure(connection, found)
        for connection in connections:
            await connection.close()
    none, future, overdue = results
    for name in CALLS:
        print(
            json.dumps(
                {
                    "function": name,
                    "none_ms": round(none[name], 4),
                    "future_ms": round(future[name], 4),
                    "overdue_ms": round(overdue[name], 4),
                    "future_ratio": round(future[name] / none[name], 3),
                    "overdue_ratio": round(overdue[name] / none[name], 3),
                }
            )
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
