"""ff.expire_leases: who fell silent loses the lease, who renewed does not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.database import home
from support.factories import TTL, Item, refused
from support.hints import hints

SECOND = timedelta(seconds=1)


async def test_a_lease_that_ran_out_is_marked_and_nothing_else_is_lost(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("leased")
    lease = execution.last_lease
    now = await clock.advance(TTL)
    assert await engine.expire() == (1, None)

    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "active",
        "lease_expired_reclaimable",
        "not_applicable",
    )
    assert (row["blocking_reason"], row["attempt_state"], row["cause"]) == (
        "waiting_for_worker",
        "attempt_interrupted",
        "expire_lease",
    )
    assert row["public_state"] == "active"
    # kept for whoever wants to know who was lost; the epoch is not raised
    assert (row["lease_id"], row["worker_instance_id"]) == (lease.lease_id, "pool-1")
    assert (row["lease_expires_at"], row["epoch"]) == (lease.lease_expires_at, 1)
    assert (row["attempt_paused_at"], row["attempt_pause_cause"]) == (now, "lease_expired")
    assert row["attempt_ended_as"] is row["due_at"] is row["reclaim_at"] is None
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["version"], event["occurred_at"]) == ("lease_expired", 3, now)
    assert (event["lease_id"], event["epoch"]) == (lease.lease_id, 1)
    assert (event["attempt_index"], event["worker_instance_id"]) == (0, "pool-1")


async def test_a_lease_is_over_at_the_moment_of_its_expiry_and_not_before(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("leased")
    await clock.set(execution.last_lease.lease_expires_at - timedelta(microseconds=1))
    assert await engine.expire() == (0, timedelta(microseconds=1))
    await clock.set(execution.last_lease.lease_expires_at)
    assert await engine.expire() == (1, None)


async def test_a_lease_that_was_renewed_is_met_too_early_and_armed_again(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("leased")
    await clock.advance(TTL - SECOND)
    await engine.renew(execution.last_lease)
    before = await engine.row(execution.id)
    assert before["due_at"] == execution.last_lease.lease_expires_at
    await clock.advance(SECOND)

    assert await engine.expire() == (1, TTL - SECOND)
    after = await engine.row(execution.id)
    assert after["due_at"] == after["lease_expires_at"] == before["lease_expires_at"]
    assert (after["ownership"], after["version"]) == ("leased", before["version"])
    assert await engine.expire() == (0, TTL - SECOND)

    await clock.advance(TTL - SECOND)
    assert await engine.expire() == (1, None)
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"


async def test_a_second_time_there_is_nothing_left_to_do(clock, engine, make):
    await make.execution("expired_lease")
    before = await engine.snapshot()
    assert await engine.expire() == (0, None)
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    "state", ["waiting", "delayed", "retry_delayed", "interrupted", "completed"]
)
async def test_what_has_no_lease_is_left_alone(clock, engine, make, state):
    await make.execution(state)
    await clock.advance(days=2)
    before = await engine.snapshot()
    handled, _ = await engine.expire()
    assert handled == 0
    assert await engine.snapshot() == before


async def test_a_new_attempt_is_left_alone_after_a_reclaim(clock, engine, make):
    execution = await make.execution("reclaimed")
    assert (await engine.expire())[0] == 0
    assert (await engine.complete(execution.last_lease)).word == "completed"


async def test_the_longest_overdue_go_first_up_to_the_limit(clock, engine):
    await clock.freeze()
    order = []
    for _ in range(6):
        await engine.submit()
        order.append((await engine.take()).execution_id)
        await clock.advance(SECOND)
    await clock.advance(minutes=10)
    for n in (2, 4, 6):
        assert (await engine.expire(2))[0] == 2
        marked = {
            row["execution_id"] for row in await engine.rows() if row["ownership"] != "leased"
        }
        assert marked == set(order[:n])
    assert await engine.expire(2) == (0, None)


async def test_the_answer_tells_when_to_come_back(clock, engine):
    await clock.freeze()
    await engine.submit_many([Item()] * 2)
    await engine.claim(1, ttl=timedelta(minutes=1))
    await engine.claim(1, ttl=timedelta(minutes=3))
    assert await engine.expire() == (0, timedelta(minutes=1))
    await clock.advance(minutes=1)
    assert await engine.expire() == (1, timedelta(minutes=2))


async def test_what_others_have_locked_is_skipped(db, clock, engine):
    await engine.submit_many([Item()] * 3)
    leases = await engine.claim()
    await clock.advance(TTL)
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update",
            leases[0].execution_id,
        )
        assert (await engine.expire())[0] == 2
    assert (await engine.expire())[0] == 1


async def test_from_the_third_loss_on_a_row_waits_longer_each_time(clock, engine, make):
    """Up to a half shorter than the full wait, and not alike for those that crashed together."""
    await clock.freeze()
    (created,) = await engine.submit_many([Item()])
    waits = []
    for _ in range(13):
        await engine.take(created.id)
        now = await clock.advance(TTL)
        await engine.expire()
        row = await engine.row(created.id)
        assert row["due_at"] == row["reclaim_at"]
        full = None if row["crash_count"] < 3 else min(2 ** (row["crash_count"] - 3), 240)
        if full is not None:
            assert full / 2 <= (row["reclaim_at"] - now) / SECOND <= full
        waits.append(full)
        if row["reclaim_at"]:
            assert await engine.claim() == []
            await clock.set(row["reclaim_at"] - timedelta(microseconds=1))
            assert (await engine.promote())[0] == 0
            await clock.set(row["reclaim_at"])
            assert (await engine.promote())[0] == 1
    assert waits == [None, None, 1, 2, 4, 8, 16, 32, 64, 128, 240, 240, 240]
    row = await engine.row(created.id)
    assert (row["reclaim_count"], row["retry_count"]) == (12, 0)


async def test_rows_that_crashed_together_do_not_come_back_together(clock, engine):
    await clock.freeze()
    await engine.submit_many([Item()] * 20)
    for _ in range(3):
        assert len(await engine.claim()) == 20
        await clock.advance(TTL)
        await engine.expire()
    assert len({row["reclaim_at"] for row in await engine.rows()}) > 15


async def test_an_expiry_hints_that_there_is_work(db, clock, engine):
    for lane in ("a", "b"):
        route = await engine.register(lane=lane)
        await engine.submit_many([Item(route=route)] * 3)
    await engine.claim()
    assert await hints(db, "ff_ready", engine.expire) == []
    await clock.advance(TTL)
    assert sorted(await hints(db, "ff_ready", engine.expire)) == [
        f"{home()} test a",
        f"{home()} test b",
    ]


@pytest.mark.parametrize("limit", [None, 0, -1, 10001])
async def test_the_limit_is_one_to_ten_thousand(engine, limit):
    with refused("WF001", message="invalid_input", field="limit"):
        await engine.expire(limit)


async def test_the_limit_has_a_default(db):
    row = await db.fetchrow(f"select * from ff.expire_leases(p_partition_key => '{home()}')")
    assert (row["handled"], row["due_in"]) == (0, None)
