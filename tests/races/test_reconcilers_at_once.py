"""Every reconciler run by four processes' worth of clients at once does its work once, and an
engine with all of them running comes to rest in a consistent state."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.reconcilers.loop import run_reconcilers
from flowfabric.reconcilers.table import RECONCILERS
from support.admission import Admission
from support.clock import Clock
from support.database import Database
from support.factories import Engine, Item
from support.flows import Group, make_flow
from support.proofs import some_of
from support.streams import append
from worker.waiting import eventually

N = 40
BATCH = 7
HOUR = timedelta(hours=1)


async def _submitted(engine: Engine, **options: object) -> None:
    await engine.submit_many([Item(**options) for _ in range(N)])  # type: ignore[arg-type]


async def _completed(engine: Engine, **options: object) -> None:
    await _submitted(engine, **options)
    await engine.complete_many(await engine.claim(N))


async def _leased(engine: Engine, clock: Clock) -> None:
    await _submitted(engine)
    assert len(await engine.claim(N)) == N
    await clock.advance(HOUR)


async def _past_deadline(engine: Engine, clock: Clock) -> None:
    await _submitted(engine, deadline=HOUR)
    await clock.advance(2 * HOUR)


async def _delayed(engine: Engine, clock: Clock) -> None:
    await _submitted(engine, delay=HOUR)
    await clock.advance(2 * HOUR)


async def _owing(engine: Engine, clock: Clock) -> None:
    """A hundred who waited for it were told when it ended, N were not."""
    await engine.submit_many([Item() for _ in range(101 + N)])
    target, *waiters = await engine.claim(101 + N)
    for waiter in waiters:
        await engine.wait_for(waiter, [target.execution_id])
    await engine.complete(target)


async def _stored(engine: Engine, clock: Clock) -> None:
    """Signals in transactions of their senders, which nobody has noticed."""
    await _submitted(engine)
    await engine.signal_many(
        [{"execution_id": row["execution_id"]} for row in await engine.rows()], join=True
    )


async def _suspended(engine: Engine, clock: Clock) -> None:
    await _submitted(engine)
    for lease in await engine.claim(N):
        await engine.ask(lease, timeout=HOUR)
        await engine.suspend(lease, "approve")
    await clock.advance(HOUR)


async def _unawaited(engine: Engine, clock: Clock) -> None:
    """Waitpoints that no wait was opened for."""
    await _submitted(engine)
    for lease in await engine.claim(N):
        await engine.waitpoint(lease, expires_in=timedelta(seconds=1))
    await clock.advance(seconds=1)


async def _unneeded(engine: Engine, clock: Clock) -> None:
    """A hundred siblings were cancelled when their group was decided, N were not."""
    names = [f"n{number}" for number in range(101 + N)]
    flow = await make_flow(
        engine,
        nodes=[*names, "z"],
        edges=[(name, "z") for name in names],
        groups=[Group("z", "any_of", on_satisfied="cancel_remaining")],
    )
    await flow.complete("n0")


async def _flow_cancelled(engine: Engine, clock: Clock) -> None:
    """Whoever cancelled the flow died behind the header."""
    flow = await make_flow(engine, nodes=[f"n{number}" for number in range(N)])
    await engine.connection.execute(
        "select outcome from ff.cancel_flow_header(0::smallint, $1, $2)", engine.namespace, flow.id
    )
    await clock.advance(HOUR)


async def _all_ended(engine: Engine, clock: Clock) -> None:
    """N groups list a sibling that has ended without their being told."""
    for _ in range(N):
        flow = await make_flow(
            engine,
            nodes=["a", "b", "z"],
            edges=[("a", "z"), ("b", "z")],
            groups=[Group("z", "any_of", on_satisfied="cancel_remaining")],
        )
        await flow.complete("a")
        await engine.connection.execute(
            "update ff.edge_group set cancel_pending = true, cancel_members = array[$2::uuid], "
            "cancel_enqueued_at = ff.now() where downstream_id = $1",
            flow["z"],
            flow["b"],
        )


async def _without_worker(engine: Engine, clock: Clock) -> None:
    """Blocked although a worker that can run them is there."""
    await engine.connection.execute(
        "select ff.register_worker('test', 'pool', 'pool-1', null, null, '{}', '1 hour')"
    )
    await _submitted(engine)
    for row in await engine.rows():
        await engine.block(row["execution_id"], "waiting_for_capable_worker")


async def _granted(engine: Engine, clock: Clock) -> None:
    await _submitted(engine)
    for row in await engine.rows():
        await engine.connection.execute(
            "insert into ff.grant values (0, $1, 'claim', $2, 'pool', 'pool-1', ff.now(), "
            "ff.now() + interval '10 seconds')",
            row["execution_id"],
            secrets.token_bytes(32),
        )
    await clock.advance(HOUR)


async def _ended_long_ago(engine: Engine, clock: Clock) -> None:
    await _completed(engine)
    await clock.advance(days=31)


async def _events_left(engine: Engine, clock: Clock) -> None:
    await _completed(engine, policy={"retention_ms": 1})
    await clock.advance(seconds=1)
    await engine.connection.execute("select ff.trim_retention(0::smallint)")
    await clock.advance(days=1)


async def _keys_over(engine: Engine, clock: Clock) -> None:
    for n in range(N):
        await engine.submit(key=f"k-{n}", fingerprint=b"f", window=HOUR)
    await clock.advance(HOUR)


async def _silent_workers(engine: Engine, clock: Clock) -> None:
    await engine.connection.execute(
        "select ff.register_worker('test', 'pool', 'pool-' || n, null, null, '{}', '1 minute') "
        f"from generate_series(1, {N}) n"
    )
    await clock.advance(HOUR)


async def _tickets_over(engine: Engine, clock: Clock) -> None:
    await Admission(engine).quota(concurrency=N)
    for _ in range(N):
        await engine.connection.execute(
            "select ff.check_admission(0::smallint, $1, 'api', null, gen_random_uuid())",
            engine.namespace,
        )
    await clock.advance(HOUR)


async def _periods_over(engine: Engine, clock: Clock) -> None:
    for n in range(N):
        await engine.connection.execute(
            "select ff.create_budget($1, 'hourly', $2, '{tokens}', '{5}', "
            "p_period => 'interval', p_period_length => '1 hour')",
            engine.namespace,
            f"k{n}",
        )
    await clock.advance(HOUR)


async def _frames_over(engine: Engine, clock: Clock) -> None:
    await engine.submit_many([Item() for _ in range(N)])
    for lease in await engine.claim(N, ttl=timedelta(hours=3)):
        await append(engine, lease, b"a", mode="best_effort", ttl=timedelta(seconds=5))
    await clock.advance(seconds=11)


Prepare = Callable[[Engine, Clock], Awaitable[None]]

# Work for each, and a count that must be N afterwards: of what it did, or of what is not left.
WORK: dict[str, tuple[Prepare, str]] = {
    "lease_expiry": (_leased, "select count(*) from ff.event where kind = 'lease_expired'"),
    "execution_expiry": (_past_deadline, "select count(*) from ff.event where kind = 'expired'"),
    "delayed_promoter": (
        _delayed,
        "select count(*) from ff.execution where eligibility = 'eligible_now'",
    ),
    "wake_resolver": (
        _owing,
        "select count(*) - 100 from ff.execution where eligibility = 'eligible_now'",
    ),
    "signal_notices": (_stored, "select count(*) from ff.signal where noticed_at is not null"),
    "suspension_timeouts": (_suspended, "select count(*) from ff.event where kind = 'woken'"),
    "waitpoint_expiry": (
        _unawaited,
        "select count(*) from ff.waitpoint where close_reason = 'never_committed'",
    ),
    "event_roll_up": (_leased, "select sum(event_count) from ff.minute where kind = 'claimed'"),
    "stream_expiry": (_frames_over, f"select {N} - count(*) from ff.stream_chunk"),
    "edge_cancel_dispatcher": (
        _unneeded,
        "select count(*) - 100 from ff.event where kind = 'cancelled'",
    ),
    "edge_cancel_reconciler": (
        _all_ended,
        "select count(*) from ff.edge_group where not cancel_pending",
    ),
    "cancel_backlog": (
        _flow_cancelled,
        "select count(*) from ff.event where kind = 'cancelled'",
    ),
    "unblocker": (
        _without_worker,
        "select count(*) from ff.execution where eligibility = 'eligible_now'",
    ),
    "grant_reaper": (_granted, f"select {N} - count(*) from ff.grant"),
    "retention_trimmer": (_ended_long_ago, f"select {N} - count(*) from ff.execution"),
    "event_trimmer": (_events_left, f"select {N} - count(*) from ff.event"),
    "key_trimmer": (_keys_over, f"select {N} - count(*) from ff.idempotency_key"),
    "gate_sweep": (_tickets_over, f"select {N} - count(*) from ff.gate_ticket"),
    "budget_reset": (_periods_over, "select count(*) from ff.budget where period_no = 1"),
    "worker_sweep": (
        _silent_workers,
        "select count(*) from ff.worker_event where kind = 'ttl_swept'",
    ),
}


# It has work only with several partitions: tests/partitions/test_shares.py runs it.
ELSEWHERE = {"gate_balance"}


@pytest.mark.parametrize(
    "reconciler",
    some_of([one for one in RECONCILERS if one.name not in ELSEWHERE], turn=0, share=2),
    ids=lambda one: one.name,
)
async def test_four_at_once_do_the_work_once(db: Database, clock, engine, reconciler) -> None:
    prepare, count = WORK[reconciler.name]
    await prepare(engine, clock)

    async def until_empty(client: FlowFabric) -> int:
        total = quiet = 0
        while quiet < 2:
            handled, _ = await reconciler.run_once(client, BATCH)
            assert handled <= BATCH
            total += handled
            quiet = 0 if handled else quiet + 1
        return total

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(FlowFabric(db.url, pool_size=1)) for _ in range(4)
        ]
        found = await asyncio.gather(*(until_empty(client) for client in clients))
        # what was passed over because another one had it locked
        found.append(await until_empty(clients[0]))
    # A sweep of gates also counts releases that it subtracts.
    assert sum(found) == N or (reconciler.name == "gate_sweep" and sum(found) > N)
    assert await db.fetchval(count) == N


async def test_all_of_them_together_bring_everything_to_rest(db: Database, clock, engine) -> None:
    """Leases, deadlines, delays and retention all end by themselves."""
    policy = {"retention_ms": 1000}
    await engine.submit_many([Item(policy=policy) for _ in range(N)])
    await engine.complete_many(await engine.claim(N))
    await engine.submit_many([Item(deadline=timedelta(minutes=5)) for _ in range(N)])
    await engine.claim(N // 2, ttl=timedelta(seconds=30))
    await engine.submit_many([Item(delay=timedelta(minutes=1)) for _ in range(N)])
    await engine.connection.execute(
        "select ff.register_worker('test', 'pool', 'pool-1', null, null, '{}', '1 minute')"
    )
    await clock.advance(minutes=10)

    async def is_at_rest() -> bool:
        rows = await db.fetch(
            "select public_state::text, count(*)::integer from ff.execution group by 1"
        )
        return dict(map(tuple, rows)) == {"expired": N, "waiting": N} and not await db.fetchval(
            "select exists (select from ff.worker)"
        )

    async with (
        FlowFabric(db.url, pool_size=2) as one,
        FlowFabric(db.url, pool_size=2) as two,
    ):
        soon = [
            type(r)(r.name, min(r.cadence, timedelta(seconds=0.2)), r.batch, r.run_once)
            for r in RECONCILERS
        ]
        running = [asyncio.create_task(run_reconcilers(client, soon)) for client in (one, two)]
        try:
            await eventually(is_at_rest)
            assert not any(task.done() for task in running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
