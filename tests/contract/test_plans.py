"""The hot path reads only what it needs, whatever the planner believes about the tables.

Measured by the counters that Postgres keeps for every index: which ones a call scanned and how
many entries it read. Each situation is one that made a plan 5 to 500 times dearer before
(physical.md, traps T1 to T6): a connection that never called before; a plan made while the table
was empty, or small and analysed, and kept while it grew; a table of a million rows. Nothing is
analysed after the growth.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from support.admission import Admission
from support.factories import Engine, Item, Lease
from support.proofs import some_of

N = 100  # rows a call
# Rows that a call has no business with: far more than a call may read.
GROWN = 12_000
# one look whether anything was trimmed early, and each key by itself
KEYED = {
    "execution_pkey": N,
    "execution_body_pkey": N,
    "idempotency_key_pkey": 3 * N,
    "event_trim_pkey": 1,
}
HOT_TABLES = {
    "execution",
    "execution_body",
    "attempt",
    "event",
    "claim_slot",
    "idempotency_key",
    "grant",
}
EXECUTION_INDEXES = {
    "execution_pkey",
    "execution_ready",
    "execution_reclaim",
    "execution_due",
    "execution_attention",
}

GROW = """
insert into ff.execution (
  partition_key, execution_id, route_id, namespace, rank, created_at, order_at, transitioned_at,
  mutated_at,
  version, phase, ownership, eligibility, blocking_reason, outcome, attempt_state, cause)
select 0, ('0190' || lpad(to_hex($1::bigint + n), 12, '0') || lpad(to_hex(n), 16, '0'))::uuid,
       ($3::bigint[])[1 + n % cardinality($3::bigint[])], 'test', (9000 - n % 3)::smallint,
       t.at, t.at, t.at, t.at, 1, 'runnable', 'unowned', 'eligible_now', 'waiting_for_worker',
       'none', 'pending_first_attempt', 'submit'
from generate_series(1, $2::bigint) n
cross join lateral (
  select clock_timestamp() - interval '1 hour' + n * interval '1 ms' as at) t
"""
GROW_KEYS = """
insert into ff.idempotency_key (
  partition_key, namespace, key, execution_id, scope, fingerprint, expires_at)
select 0, 'test', 'old-' || n, gen_random_uuid(), 'window', '', clock_timestamp() + interval '1 day'
from generate_series(1, $1::bigint) n
"""
COUNTERS = """
select s.relname as table, s.indexrelname as index, s.idx_scan as scans, s.idx_tup_read as entries
from pg_stat_user_indexes s where s.schemaname = 'ff'
union all
select s.relname, '', s.seq_scan, s.seq_tup_read
from pg_stat_user_tables s where s.schemaname = 'ff'
"""


@dataclass(frozen=True)
class Work:
    """What one call read: index entries by index, rows of whole-table scans by table."""

    entries: dict[str, int]
    scans: dict[str, int]
    whole: dict[str, int]

    def check(self, most: dict[str, float]) -> None:
        """No hot table is read whole; no index but these is used, and none more than this."""
        assert {table for table in self.whole if table in HOT_TABLES} == set()
        small = {
            "lane_pkey",
            "route_pkey",
            "route_task",
            "route_version",
            "route_lane",
            "meta_pkey",
            "namespace_grant_pkey",
            "event_generation_pkey",
            # empty without limits: whether there is a gate, a budget, a line or a fair lane at all
            "line_gate",
            "line_pkey",
            "line_open",
            "fair_lane_pkey",
            "gate_release_gate",
            "gate_pkey",
            "gate_opens",
            "gate_key",
            "budget_key",
            "budget_pkey",
            "budget_shut",
        }
        used = {index for index in self.scans if index not in small}
        assert used <= set(most), used - set(most)
        for index, limit in most.items():
            assert self.entries.get(index, 0) <= limit, (index, self.entries)


class Meter:
    """An engine on one connection, and another one to read the counters from."""

    def __init__(self, engine: Engine, observer: asyncpg.Connection) -> None:
        self.engine = engine
        self._observer = observer

    async def of(self, call: Awaitable[Any]) -> tuple[Any, Work]:
        before = await self._read()
        answer = await call
        after = await self._read()
        moved = {
            key: (after[key][0] - before[key][0], after[key][1] - before[key][1]) for key in after
        }
        return answer, Work(
            entries={index: n for (_, index), (_, n) in moved.items() if index and n},
            scans={index: n for (_, index), (n, _) in moved.items() if index and n},
            whole={table: n for (table, index), (s, n) in moved.items() if not index and s},
        )

    async def _read(self) -> dict[tuple[str, str], tuple[int, int]]:
        # A session hands in its counters when it is idle for long enough; this says: now.
        for connection in (self.engine.connection, self._observer):
            await connection.execute("select pg_stat_force_next_flush()")
        rows = await self._observer.fetch(COUNTERS)
        return {
            (row["table"], row["index"]): (row["scans"] or 0, row["entries"] or 0) for row in rows
        }


def by_key(lookups: int) -> int:
    """Entries of a primary key that so many look-ups may read: a row that was updated a moment ago
    has an entry for every version that no vacuum has removed."""
    return 4 * lookups


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def grow(connection: asyncpg.Connection, number: int, routes: list[int]) -> None:
    past = await connection.fetchval("select count(*) from ff.execution")
    await connection.execute(GROW, past, number, routes, timeout=110)
    await connection.execute(GROW_KEYS, min(number, 20_000))


def keyed(route: int, number: int) -> list[Item]:
    return [
        Item(
            route=route,
            payload=b"x" * 300,
            key=str(uuid4()),
            fingerprint=b"f",
            policy={
                "retry_policy": {
                    "max_retries": 3,
                    "backoff": {"type": "fixed", "delay_ms": 3_600_000},
                }
            },
        )
        for _ in range(number)
    ]


async def exercise(engine: Engine, route: int, *, submits: bool) -> None:
    """Call everything often enough for every plan to be cached, on whatever is there."""
    nobody = Lease(
        **{
            **dict.fromkeys(Lease.__dataclass_fields__),
            "execution_id": uuid4(),
            "lease_id": uuid4(),
            "attempt_id": uuid4(),
            "epoch": 1,
        }
    )
    for _ in range(8):
        if submits:
            await engine.submit_many(keyed(route, 3))
        leases = (await engine.claim(6)) or [nobody]
        await engine.renew_many(leases)
        await engine.complete_many(leases[:1], [b"1"])
        failing = leases[1:3] or [nobody]
        await engine.fail_many(failing, ["transient"] * len(failing), ["no"] * len(failing))
        await engine.release_many(leases[3:] or [nobody])
        await engine.results([lease.execution_id for lease in leases])
        await engine.expire()
        await engine.promote()


SITUATIONS = ["cold", "empty, then grown", "small and analysed, then grown"]


def in_situations(turn: int) -> pytest.MarkDecorator:
    """Run a test in every situation. `make test` runs it in one of them, another for each turn."""
    return pytest.mark.parametrize("meter", some_of(SITUATIONS, turn), indirect=True)


@pytest.fixture
async def meter(request, bare):
    async with _situation(bare, request.param, GROWN, routes=1) as meter:
        yield meter


@asynccontextmanager
async def _situation(url: str, name: str, number: int, *, routes: int) -> AsyncIterator[Meter]:
    async with connected(url) as connection, connected(url) as observer:
        side = Engine(observer)
        ids = [await side.register(task=f"tests.work_{n}") for n in range(routes)]
        engine = Engine(connection)
        small = name.startswith("small")
        if small:
            await side.submit_many(keyed(ids[0], 30))
            await observer.execute("analyze")
        if name != "cold":
            await exercise(engine, ids[0], submits=small)
        if small:
            # out of the way of what follows, so that every situation claims the same rows
            while leases := await side.claim(1000, ttl=timedelta(days=1), instance="side"):
                await side.complete_many(leases, [b"1"] * len(leases))
        await grow(observer, number, ids)
        yield Meter(engine, observer)


def claim_limits(routes: int = 1) -> dict[str, int]:
    return {
        # the window once; with several routes also a few heads of each
        "execution_ready": 2 * N if routes == 1 else 4 * N + 4 * routes,
        "execution_reclaim": 20,
        # locked, read and updated
        "execution_pkey": by_key(3 * N),
        "execution_body_pkey": N,
        "attempt_pkey": 0,
        "claim_slot_pkey": 10,
        # whether there is a grant at all, before the rows are read and after they are locked
        "grant_expiry": 0,
        "grant_pkey": 0,
    }


async def check_the_hot_path(meter: Meter, routes: int = 1) -> None:
    engine = meter.engine
    leases, work = await meter.of(engine.claim(N))
    assert len(leases) == N
    work.check(claim_limits(routes))

    answers, work = await meter.of(engine.renew_many(leases))
    assert {answer.word for answer in answers} == {"renewed"}
    work.check({"execution_pkey": by_key(2 * N), "attempt_pkey": 0})

    half = N // 2
    answers, work = await meter.of(engine.complete_many(leases[:half], [b"1"] * half))
    assert {answer.word for answer in answers} == {"completed"}
    # whether any task has hooks for this end
    work.check({"execution_pkey": by_key(2 * half), "hook_of_success": 0})

    answers, work = await meter.of(
        engine.fail_many(leases[half:], ["transient"] * half, ["broken"] * half)
    )
    assert {answer.word for answer in answers} == {"failed"}
    work.check(
        {
            "execution_pkey": by_key(3 * half),
            "execution_body_pkey": half,
            "attempt_pkey": 0,
            "hook_in_force": 0,
        }
    )

    # A repeat and a stale call are answered item by item, still by key.
    answers, work = await meter.of(engine.complete_many(leases, [b"1"] * N))
    assert {answer.word for answer in answers} == {"completed", "not_active"}
    # how the stale half lost its leases: the last event of each
    work.check(
        {
            "execution_pkey": by_key(2 * N),
            "attempt_pkey": 0,
            "event_history": half,
            "hook_of_success": 0,
        }
    )

    # What is not there, or locked by others, is looked up once more to tell which.
    gone = [replace(lease, execution_id=uuid4()) for lease in leases]
    answers, work = await meter.of(engine.renew_many(gone))
    assert {answer.word for answer in answers} == {"not_found"}
    work.check({"execution_pkey": by_key(2 * N), "attempt_pkey": 0})

    results, work = await meter.of(engine.results([lease.execution_id for lease in leases]))
    assert len(results) == N
    work.check({"execution_pkey": by_key(N)})


@pytest.mark.parametrize("meter", SITUATIONS, indirect=True)
async def test_the_hot_path(meter):
    await check_the_hot_path(meter)


@in_situations(1)
async def test_leases_given_back_and_taken_again(meter):
    """The attempt goes on, so the claim looks at what there was before."""
    engine = meter.engine
    leases = await engine.claim(N)
    answers, work = await meter.of(engine.release_many(leases))
    assert {answer.word for answer in answers} == {"released"}
    work.check({"execution_pkey": by_key(2 * N), "attempt_pkey": 0})
    again, work = await meter.of(engine.claim(N))
    assert [lease.execution_id for lease in again] == [lease.execution_id for lease in leases]
    # the entries that the first claim left dead are walked over once more
    work.check(claim_limits() | {"execution_ready": 4 * N, "execution_pkey": by_key(4 * N)})


@in_situations(2)
async def test_retries(meter):
    """A new attempt moves the old one to the history: four look-ups a row instead of three."""
    engine = meter.engine
    route = await engine.register(lane="flaky")
    await engine.submit_many(keyed(route, N))
    leases = await engine.claim(N, lanes=["flaky"])
    answers, work = await meter.of(engine.fail_many(leases, ["transient"] * N, ["no"] * N))
    assert {answer.word for answer in answers} == {"retry_scheduled"}
    work.check(
        {
            "execution_pkey": by_key(3 * N),
            "execution_body_pkey": N,
            "attempt_pkey": 0,
            "step_unanswered": N,
        }
    )
    await engine.connection.execute(
        "update ff.execution set delayed_until = delayed_until - interval '2 h', "
        "due_at = due_at - interval '2 h' where delayed_until is not null"
    )
    (handled, _), work = await meter.of(engine.promote())
    # the small table had some to retry as well
    assert N <= handled <= N + 30
    work.check({"execution_due": 5 * N, "execution_pkey": by_key(2 * handled)})
    again, work = await meter.of(engine.claim(N, lanes=["flaky"]))
    assert {lease.attempt_index for lease in again} == {1}
    # six versions of each row: submitted, claimed, failed, moved in time, promoted, claimed
    work.check(claim_limits() | {"execution_ready": 4 * N, "execution_pkey": 6 * 6 * N})


@in_situations(3)
async def test_a_claim_repeated_and_an_empty_one(meter):
    engine = meter.engine
    claim_id = uuid4()
    leases = await engine.claim(N, claim_id=claim_id)
    again, work = await meter.of(engine.claim(N, claim_id=claim_id))
    assert again == leases
    unusual = {"execution_reclaim": 0, "grant_pkey": 0, "event_generation_pkey": 0}
    work.check(
        unusual | {"execution_pkey": by_key(N), "execution_body_pkey": N, "claim_slot_pkey": 10}
    )
    assert await engine.register(lane="nothing here")
    nothing, work = await meter.of(engine.claim(N, lanes=["nothing here"]))
    assert nothing == []
    work.check(unusual | {"execution_ready": 0, "claim_slot_pkey": 10, "grant_expiry": 0})
    async with engine.connection.transaction():
        assert await engine.claim(N, lanes=["nothing here"]) == []
        xid = await engine.connection.fetchval("select pg_current_xact_id_if_assigned()::text")
    assert xid is None, "an idle poll must not take a transaction id"


@in_situations(4)
async def test_foreign_rows_cost_nothing(meter):
    """A worker of another lane has the same work, with twenty thousand rows it must not touch."""
    engine = meter.engine
    route = await engine.register(lane="mine")
    await engine.submit_many([Item(route=route)] * N)
    leases, work = await meter.of(engine.claim(N, lanes=["mine"]))
    assert len(leases) == N
    work.check(claim_limits())


@in_situations(5)
async def test_grants_are_looked_up_by_their_execution(meter):
    """Those of other workers are passed over, one look-up a row, however many there are."""
    engine = meter.engine
    route = await engine.register(lane="granted")
    created = await engine.submit_many([Item(route=route)] * (3 * N))
    for number, submitted in enumerate(created[: 2 * N]):
        await engine.grant(submitted.id, worker="pool" if number % 2 else "other")
    leases, work = await meter.of(engine.claim(N, lanes=["granted"]))
    own = [submitted.id for submitted in created[1 : 2 * N : 2]]
    assert [lease.execution_id for lease in leases] == own
    work.check(
        claim_limits() | {"execution_ready": 4 * N, "grant_expiry": 2, "grant_pkey": by_key(4 * N)}
    )
    await engine.connection.execute(
        "update ff.\"grant\" set expires_at = expires_at - interval '1 h' where worker_id = 'other'"
    )
    (handled, _), work = await meter.of(engine.reap())
    assert handled == N
    work.check(
        {"grant_expiry": 5 * N, "grant_pkey": by_key(2 * N), "execution_pkey": by_key(2 * N)}
    )


async def test_executions_under_limits_are_admitted_and_put_into_line_by_their_ids(bare):
    async with _situation(bare, "cold", 0, routes=1) as meter:
        admission = Admission(meter.engine)
        gate = await admission.quota(concurrency=N)
        route = await meter.engine.register(lane="limited")
        await admission.submit(10 * N, quotas=[gate], route=route)
        leases, work = await meter.of(meter.engine.claim(N, lanes=["limited"]))
        assert len(leases) == N
        # one more look at the head of the route
        work.check(claim_limits() | {"execution_ready": 3 * N})
        leases, work = await meter.of(meter.engine.claim(N, lanes=["limited"]))
        assert leases == []
        # 900 executions are put into line: each is read in order, locked and updated by its id. The
        # entries of the first claim are dead; while a transaction of another test is open, they are
        # walked over more than once.
        work.check(
            claim_limits()
            | {"execution_ready": 25 * N, "execution_pkey": 22 * N, "execution_line": N}
        )


async def test_executions_that_resume_under_a_full_gate_are_put_into_line_by_their_ids(bare):
    async with _situation(bare, "cold", 0, routes=1) as meter:
        admission = Admission(meter.engine)
        gate = await admission.quota(concurrency=10 * N)
        route = await meter.engine.register(lane="limited")
        await admission.submit(9 * N, quotas=[gate], route=route)
        leases = await meter.engine.claim(9 * N, lanes=["limited"])
        await meter.engine.release_many(leases)
        await admission.call("set_quota", quota="api", concurrency=1)
        await meter.engine.connection.fetch("select * from ff.sweep_gates(0::smallint)")
        await meter.engine.connection.execute("vacuum ff.execution")
        assert len(await meter.engine.claim(1, lanes=["limited"])) == 1
        leases, work = await meter.of(meter.engine.claim(N, lanes=["limited"]))
        assert leases == []
        work.check(
            claim_limits()
            | {"execution_ready": 25 * N, "execution_pkey": 22 * N, "execution_line": N}
        )


async def test_executions_to_be_reclaimed_under_a_full_gate_are_read_once(bare):
    async with _situation(bare, "cold", 0, routes=1) as meter:
        admission = Admission(meter.engine)
        gate = await admission.quota(concurrency=10 * N)
        route = await meter.engine.register(lane="limited")
        await admission.submit(9 * N, quotas=[gate], route=route)
        for lease in await meter.engine.claim(9 * N, lanes=["limited"]):
            await meter.engine.revoke(lease.execution_id)
        await admission.call("set_quota", quota="api", concurrency=1)
        await meter.engine.connection.fetch("select * from ff.sweep_gates(0::smallint)")
        await meter.engine.connection.execute("vacuum ff.execution")
        assert len(await meter.engine.claim(1, lanes=["limited"])) == 1
        leases, work = await meter.of(meter.engine.claim(1, lanes=["limited"]))
        assert leases == []
        work.check(claim_limits() | {"execution_reclaim": 20 * N, "execution_pkey": by_key(N)})


@in_situations(6)
async def test_timers_read_what_is_due(meter):
    engine = meter.engine
    await engine.claim(N, ttl=timedelta(hours=1))
    for name in ("expire", "promote"):
        (handled, _), work = await meter.of(getattr(engine, name)())
        assert handled == 0
        # a few of the table's own timers, more if the machine is slow and they come due meanwhile
        work.check({"execution_due": N})
    await engine.connection.execute(
        "update ff.execution set due_at = due_at - interval '2 h', "
        "lease_expires_at = lease_expires_at - interval '2 h' where ownership = 'leased'"
    )
    (handled, _), work = await meter.of(engine.expire())
    assert handled == N
    # Each lease left a dead entry when it was set back; finding the next due row walks them all.
    work.check({"execution_due": 5 * N, "execution_pkey": by_key(4 * N)})
    leases, work = await meter.of(engine.claim(N))
    assert len(leases) == N
    assert {lease.claim_kind for lease in leases} == {"reclaimed"}
    work.check(
        claim_limits()
        | {"execution_reclaim": 3 * N, "execution_ready": 4 * N, "execution_pkey": by_key(5 * N)}
    )


@in_situations(7)
async def test_a_batch_of_submits_with_keys(meter):
    """A key is looked up by itself, however many there are."""
    engine = meter.engine
    route = await engine.register()
    items = keyed(route, N)
    created, work = await meter.of(engine.submit_many(items))
    assert {answer.word for answer in created} == {"created"}
    # an insert that may conflict looks each key up before it writes
    work.check(KEYED)
    others = [replace(item, fingerprint=b"other") for item in items]
    answers, work = await meter.of(engine.submit_many(others))
    assert {answer.word for answer in answers} == {"key_reused"}
    work.check({"execution_pkey": N, "idempotency_key_pkey": N, "event_trim_pkey": 1})
    read = "select execution_id from ff.read_key(0::smallint, 'test', $1)"
    id, work = await meter.of(engine.connection.fetchval(read, items[7].key))
    assert id == created[7].id
    work.check({"execution_pkey": 1, "idempotency_key_pkey": 1})


@pytest.mark.parametrize("keys", [0, 1, 10])
async def test_keys_looked_up_by_a_plan_from_before_there_were_many(bare, keys):
    """The plan for a key is made while the table has hardly any, analysed, and then it grows."""
    async with connected(bare) as connection, connected(bare) as observer:
        engine, side = Engine(connection), Engine(observer)
        route = await side.register()
        if keys:
            await side.submit_many(keyed(route, keys))
        await observer.execute("analyze")
        for _ in range(8):
            await engine.submit_many(keyed(route, 1))
        await grow(observer, 1000, [route])
        await observer.execute(GROW_KEYS.replace("'old-'", "'older-'"), 20_000)
        answers, work = await Meter(engine, observer).of(engine.submit_many(keyed(route, N)))
    assert {answer.word for answer in answers} == {"created"}
    work.check(KEYED)


@pytest.mark.parametrize("routes", [20, 200])
async def test_many_routes(bare, routes):
    async with _situation(bare, "empty, then grown", 20_000, routes=routes) as meter:
        await check_the_hot_path(meter, routes)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("situation", ["cold", "empty, then grown"])
async def test_a_million_rows(bare, situation, sized):
    rows = sized(1_000_000, short=50_000)
    async with _situation(bare, situation, rows, routes=1) as meter:
        await check_the_hot_path(meter)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_million_rows_on_two_hundred_routes(bare, sized):
    rows = sized(1_000_000, short=50_000)
    async with _situation(bare, "cold", rows, routes=200) as meter:
        await check_the_hot_path(meter, routes=200)
