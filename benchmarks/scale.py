"""Measures how the cost of a claim depends on the contents of the table.

Run `python benchmarks/scale.py [--quick]`. Each situation has its own database; all databases are
on one server. A sample is one claim of 100 executions, timed inside the server and rolled back. The
situations take turns, so that a slow minute affects them all. Each database is vacuumed after its
sample, so that rolled-back claims leave nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

import asyncpg

from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server

CLAIM = 100
WAITING = 1_000
# Enough rows for each of 200 routes to fill a claim.
SPREAD = 20_000

_VACUUM = "vacuum (index_cleanup on, truncate off) ff.execution"

_SAMPLER = """
create function public.sample_claim(p_tasks text[], p_limit integer, p_versions text[])
returns double precision
language plpgsql as $$
declare
  v_started timestamptz;
  v_rows    integer;
begin
  v_started := clock_timestamp();
  select cardinality(c.execution_ids) into v_rows from ff.claim_executions(
    0::smallint, 'default', 'bench', 'bench-1', gen_random_uuid(), null, p_tasks, '{}', p_limit,
    interval '30 seconds', p_code_versions => p_versions) c;
  if v_rows is distinct from p_limit then
    raise exception 'the claim returned % executions', v_rows;
  end if;
  return extract(epoch from clock_timestamp() - v_started) * 1000;
end $$;

-- Claims executions, and returns the fence of each. A null array means the usual value.
create function public.claim_all(p_tasks text[], p_limit integer)
returns table (id uuid, lease_id uuid, epoch bigint, attempt_id uuid)
language plpgsql as $$
declare
  v_claim uuid := gen_random_uuid();
begin
  return query
  select u.id, v_claim, coalesce(u.epoch, 1), coalesce(u.attempt_id, v_claim)
  from ff.claim_executions(
    0::smallint, 'default', 'bench', 'bench-1', v_claim, null, p_tasks, '{}', p_limit,
    interval '1 hour') c
  cross join lateral unnest(c.execution_ids, c.epochs, c.attempt_ids) u (id, epoch, attempt_id);
end $$;

-- Fills the table through the database functions: submits executions. With p_finish, it also claims
-- and completes them. Ids increase with the clock, as the ids of clients do.
create procedure public.fill(p_count integer, p_tasks text[], p_finish boolean)
language plpgsql as $$
declare
  v_routes bigint[];
  v_size   integer;
  v_ids    uuid[];
  v_at     bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint - 3600000;
begin
  for i in 0 .. (cardinality(p_tasks) - 1) / 500 loop
    select v_routes || array_agg(r.route_id order by r.item) into v_routes
    from (select p_tasks[i * 500 + 1 : i * 500 + 500] as tasks) t
    cross join lateral ff.register_routes(
      array_fill('default'::text, array[cardinality(t.tasks)]),
      array_fill('default'::text, array[cardinality(t.tasks)]),
      t.tasks,
      array_fill(''::text, array[cardinality(t.tasks)])) r;
  end loop;
  for done in 0 .. p_count - 1 by 500 loop
    v_size := least(500, p_count - done);
    v_ids := array(
      select (lpad(to_hex(v_at + done + n), 12, '0') || '7'
              || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid
      from generate_series(1, v_size) n);
    perform ff.submit_executions(
      0::smallint, 'default', v_ids,
      array(select v_routes[(done + n) % cardinality(v_routes) + 1]
            from generate_series(1, v_size) n),
      array_fill('{"i":1}'::bytea, array[v_size]), p_hint => false);
    if p_finish then
      perform ff.complete_executions(
        0::smallint, 'default', array_agg(c.id), array_agg(c.lease_id), array_agg(c.epoch),
        array_agg(c.attempt_id), array_agg('null'::bytea), p_hint => false)
      from public.claim_all(p_tasks, v_size) c;
    end if;
    commit;
  end loop;
  if p_finish and exists (select from ff.execution e where e.phase <> 'terminal') then
    raise exception 'not all executions were completed';
  end if;
end $$;

-- Assigns a code version to all waiting executions without one: claims each, records a step,
-- releases it.
create procedure public.begin_version(p_version text)
language plpgsql as $$
declare
  v_tasks text[] := array(select r.task from ff.route r where r.code_version is null);
  v_size  integer := cardinality(v_tasks);
begin
  perform ff.register_routes(
    array_fill('default'::text, array[v_size]), array_fill('default'::text, array[v_size]), v_tasks,
    array_fill(''::text, array[v_size]), p_code_versions => array_fill(p_version, array[v_size]));
  loop
    drop table if exists claimed;
    create temporary table claimed as select * from public.claim_all(v_tasks, 500);
    exit when not exists (select from claimed);
    perform ff.record_steps(
      0::smallint, 'default', array_agg(c.id), array_agg(c.lease_id), array_agg(c.epoch),
      array_agg(c.attempt_id), array_agg('a'::text), array_agg(0), array_agg(0), array_agg(true),
      array_agg('step'::text), array_agg('1'::bytea), p_code_versions => array_agg(p_version))
    from claimed c;
    perform ff.release_leases(
      0::smallint, 'default', array_agg(c.id), array_agg(c.lease_id), array_agg(c.epoch),
      array_agg(c.attempt_id), 'bench', false)
    from claimed c;
    commit;
  end loop;
  if exists (select from ff.execution e where e.phase = 'active') then
    raise exception 'not all leases were released';
  end if;
end $$;
"""


@dataclass(frozen=True)
class Situation:
    """The contents of a database before the claims."""

    name: str
    routes: int = 1
    waiting: int = WAITING
    finished: int = 0
    foreign: int = 0
    foreign_routes: int = 0
    # How many other code versions are in flight, and the code version of the waiting executions.
    other_versions: int = 0
    version: str | None = None

    @property
    def tasks(self) -> list[str]:
        return [f"bench.task_{n}" for n in range(self.routes)]

    async def prepare(self, url: str) -> asyncpg.Connection:
        connection = await asyncpg.connect(url)
        await migrate(connection)
        await connection.execute(_SAMPLER)
        for start in range(0, self.finished, 50_000):
            size = min(50_000, self.finished - start)
            await connection.execute(f"call public.fill({size}, {_array(self.tasks)}, true)")
            # Vacuum, as autovacuum would. Otherwise claims read the dead rows of earlier claims.
            await connection.execute(_VACUUM)
        if self.foreign:
            foreign = [f"other.task_{n}" for n in range(self.foreign_routes)]
            await connection.execute(f"call public.fill({self.foreign}, {_array(foreign)}, false)")
        for number in range(self.other_versions):
            await connection.execute(f"call public.fill({WAITING}, {_array(self.tasks)}, false)")
            await connection.execute(f"call public.begin_version('other-{number}')")
        await connection.execute(f"call public.fill({self.waiting}, {_array(self.tasks)}, false)")
        if self.version is not None:
            await connection.execute(f"call public.begin_version('{self.version}')")
        await connection.execute("vacuum (analyze)")
        return connection


def _array(names: list[str]) -> str:
    return "array[" + ", ".join(f"'{name}'" for name in names) + "]"


async def sample(situation: Situation, connection: asyncpg.Connection) -> float:
    """Return the milliseconds of one claim, and roll it back."""
    versions = None if situation.version is None else [situation.version]

    async def claim(limit: int) -> float:
        return await connection.fetchval(
            "select public.sample_claim($1, $2, $3)", situation.tasks, limit, versions
        )

    transaction = connection.transaction()
    await transaction.start()
    try:
        # After a vacuum changed the statistics, a call plans again. Plan before the timed call.
        await claim(1)
        return await claim(CLAIM)
    finally:
        await transaction.rollback()
        await connection.execute(_VACUUM)


async def measure(*, quick: bool = False) -> list[Verdict]:
    many = 50_000 if quick else 1_000_000
    samples = 40 if quick else 200
    few = Situation(f"{WAITING} waiting")
    full = Situation(f"{many} waiting", waiting=many)
    finished = Situation(f"{WAITING} waiting, {many} finished", finished=many)
    one = Situation("1 route", waiting=SPREAD)
    some = Situation("16 routes", waiting=SPREAD, routes=16)
    lots = Situation("200 routes", waiting=SPREAD, routes=200)
    foreign = Situation(
        "100000 foreign rows on 10000 routes", foreign=100_000, foreign_routes=10_000
    )
    begun = Situation(f"{WAITING} waiting, begun by one version", version="mine")
    versions = Situation(
        f"{WAITING} waiting, begun by one version beside 10", version="mine", other_versions=10
    )
    beside = Situation(f"{WAITING} waiting beside 10 versions", other_versions=10)
    situations = (few, full, finished, one, some, lots, foreign, begun, versions, beside)
    times: dict[str, list[float]] = {situation.name: [] for situation in situations}
    async with server() as admin, AsyncExitStack() as stack:
        connections = {}
        for number, situation in enumerate(situations):
            say(f"filling: {situation.name}")
            url = await stack.enter_async_context(database(admin, f"bench_scale_{number}"))
            connection = await situation.prepare(url)
            stack.push_async_callback(connection.close)
            connections[situation.name] = connection
        say(f"{samples} claims of {CLAIM} in each")
        for turn in range(samples + 10):
            for situation in situations:
                taken = await sample(situation, connections[situation.name])
                if turn >= 10:  # the first samples plan and warm up
                    times[situation.name].append(taken)
    middle = {name: median(values) for name, values in times.items()}
    for name, value in middle.items():
        line = {"claim_of": CLAIM, "situation": name, "median_ms": round(value, 3)}
        print(json.dumps(line), flush=True)

    def verdict(subject: str, what: Situation, than: Situation, bar: float, goal: float) -> Verdict:
        rule = Rule(f"claim of 100: {subject}", bar, goal, at_most=True)
        return rule.judge(middle[what.name] / middle[than.name])

    return [
        verdict(f"{many} waiting vs {WAITING}", full, few, 1.5, 1.1),
        verdict(f"{many} finished vs none", finished, few, 1.5, 1.1),
        verdict("16 covered routes vs 1", some, one, 1.5, 1.1),
        verdict("200 covered routes vs 1", lots, one, 5.0, 2.0),
        verdict("10 code versions in flight vs none", beside, few, 1.1, 1.03),
        verdict("of a code version, 10 others in flight vs none", versions, begun, 1.1, 1.03),
        verdict("100000 foreign rows on 10000 routes vs none", foreign, few, 2.0, 1.2),
    ]


if __name__ == "__main__":
    sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
