"""Measure what 100 000 suspended executions cost everybody else.

    python benchmarks/suspended.py [NUMBER]

Compares the processor time of claims, of reconcilers and of the questions of idle workers, without
suspended executions, with as many whose timeouts are in the future, and with as many overdue ones.
Starts a Postgres of its own. Prints one JSON line per function: milliseconds of processor time per
call in each of the three, and the two ratios to none.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import asyncpg

from flowfabric import App, Context, PublicState

app = App()
CALLS = {
    "claim_executions": (
        "ff.claim_executions(0::smallint, null, 'w', 'w-1', gen_random_uuid(), array['empty'], "
        "null, '{}', 100, '30 s')"
    ),
    "find_work": "ff.find_work(null, array['empty'], null, '{}')",
    "find_due timer": "ff.find_due('timer')",
    "promote_delayed": "ff.promote_delayed(0::smallint)",
    "expire_leases": "ff.expire_leases(0::smallint)",
    "expire_executions": "ff.expire_executions(0::smallint)",
    "notice_signals": "ff.notice_signals(0::smallint)",
}
ROUNDS = 5000
# One suspended execution as often as asked for, with its wait and its suspension.
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
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1000


async def measure(connection: asyncpg.Connection, pid: int) -> dict[str, float]:
    """Return the processor time of each function per call, the least of three turns."""
    await connection.execute("vacuum analyze")
    found: dict[str, float] = {}
    for _ in range(3):
        for name, call in CALLS.items():
            before = spent(pid)
            await connection.execute(
                f"do $$ begin for i in 1..{ROUNDS} loop perform * from {call}; end loop; end $$"
            )
            found[name] = min(found.get(name, 1e9), (spent(pid) - before) / ROUNDS)
    return found


async def main(number: int) -> None:
    async with app:
        await app.prepare()
        run = await wait.submit()
        worker = asyncio.create_task(app.run_worker())
        while await run.state() is not PublicState.SUSPENDED:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        client = await app.client()
        connection = await asyncpg.connect(client.database.url)
        pid = await connection.fetchval("select pg_backend_pid()")
        none = await measure(connection, pid)
        results = []
        for timeout in ("now() + interval ''1 day''", "now() - interval ''1 day''"):
            await connection.execute(
                CLONE.format(number=number, timeout=timeout, model=run.id.uuid)
            )
            results.append(await measure(connection, pid))
            for table in ("step", "suspension", "execution"):
                await connection.execute(
                    f"delete from ff.{table} where execution_id <> $1", run.id.uuid
                )
        future, overdue = results
        await connection.close()
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
