"""ff.promote_delayed: what waited for its time becomes eligible, quietly."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.database import home
from support.factories import Item, refused
from support.hints import hints

MINUTE = timedelta(minutes=1)


async def test_a_delayed_execution_becomes_eligible_without_an_event(clock, engine):
    await clock.freeze()
    (created,) = await engine.submit_many([Item(delay=MINUTE)])
    before = await engine.row(created.id)
    now = await clock.advance(MINUTE)
    assert await engine.promote() == (1, None)
    row = await engine.row(created.id)
    assert (row["eligibility"], row["blocking_reason"], row["cause"]) == (
        "eligible_now",
        "waiting_for_worker",
        "promote",
    )
    assert (row["public_state"], row["attempt_state"]) == ("waiting", "pending_first_attempt")
    assert row["delayed_until"] is row["due_at"] is None
    assert row["version"] == before["version"]
    assert row["transitioned_at"] == row["mutated_at"] == now
    assert row["created_at"] == before["created_at"]
    assert await engine.kinds(created.id) == ["submitted"]


async def test_the_attempt_state_is_kept_because_it_routes_the_next_claim(engine, make):
    execution = await make.execution("retry_waiting")
    row = await engine.row(execution.id)
    assert (row["attempt_state"], row["cause"]) == ("pending_retry_attempt", "promote")
    assert (row["failure_class"], row["last_lease_end"]) == ("transient", "fail")
    assert (await engine.take(execution.id)).attempt_type == "retry"


async def test_what_is_not_due_stays_delayed(clock, engine):
    await clock.freeze()
    await engine.submit(delay=MINUTE)
    await clock.advance(MINUTE - timedelta(microseconds=1))
    before = await engine.snapshot()
    assert await engine.promote() == (0, timedelta(microseconds=1))
    assert await engine.snapshot() == before


async def test_a_second_time_there_is_nothing_left_to_do(clock, engine):
    await engine.submit(delay=MINUTE)
    await clock.advance(MINUTE)
    assert (await engine.promote())[0] == 1
    before = await engine.snapshot()
    assert await engine.promote() == (0, None)
    assert await engine.snapshot() == before


@pytest.mark.parametrize("state", ["waiting", "leased", "interrupted", "completed", "failed"])
async def test_what_is_not_delayed_is_left_alone(clock, engine, make, state):
    await make.execution(state)
    await clock.advance(days=2)
    before = await engine.snapshot()
    handled, _ = await engine.promote()
    assert handled == 0
    assert await engine.snapshot() == before


async def test_overdue_leases_do_not_hide_what_is_delayed(clock, engine):
    await engine.submit_many([Item()] * 20)
    await engine.claim(ttl=timedelta(seconds=1))
    (created,) = await engine.submit_many([Item(delay=MINUTE)])
    await clock.advance(MINUTE)
    assert (await engine.promote(1))[0] == 1
    assert (await engine.row(created.id))["eligibility"] == "eligible_now"


async def test_the_wait_before_a_reclaim_ends_without_a_transition(clock, engine, make):
    execution = await make.execution("reclaim_delayed")
    before = await engine.row(execution.id)
    assert await engine.claim() == []
    await clock.set(before["reclaim_at"])
    assert (await engine.promote())[0] == 1
    after = await engine.row(execution.id)
    assert after["reclaim_at"] is after["due_at"] is None
    for column in ("cause", "version", "ownership", "eligibility", "transitioned_at"):
        assert after[column] == before[column], column
    assert (await engine.take(execution.id)).claim_kind == "reclaimed"


async def test_the_longest_overdue_go_first_up_to_the_limit(clock, engine):
    now = await clock.freeze()
    answers = await engine.submit_many(
        [Item(delayed_until=now + MINUTE * n) for n in (5, 3, 1, 4, 2)]
    )
    by_time = [answers[n].id for n in (2, 4, 1, 3, 0)]
    await clock.advance(MINUTE * 10)
    for n in (2, 4, 5):
        await engine.promote(2)
        promoted = {
            row["execution_id"]
            for row in await engine.rows()
            if row["eligibility"] == "eligible_now"
        }
        assert promoted == set(by_time[:n])


async def test_the_answer_tells_when_to_come_back(clock, engine):
    await clock.freeze()
    await engine.submit_many([Item(delay=MINUTE * n) for n in (1, 4)])
    assert await engine.promote() == (0, MINUTE)
    await clock.advance(MINUTE)
    assert await engine.promote() == (1, MINUTE * 3)
    # leases are due, too: whoever sleeps must not sleep past them
    await engine.claim(ttl=timedelta(seconds=5))
    assert await engine.promote() == (0, timedelta(seconds=5))


async def test_what_others_have_locked_is_skipped(db, clock, engine):
    answers = await engine.submit_many([Item(delay=MINUTE)] * 3)
    await clock.advance(MINUTE)
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", answers[0].id
        )
        assert (await engine.promote())[0] == 2
    assert (await engine.promote())[0] == 1


async def test_a_promotion_hints_that_there_is_work(db, clock, engine):
    for lane in ("a", "b"):
        route = await engine.register(lane=lane)
        await engine.submit_many([Item(route=route, delay=MINUTE)] * 3)
    assert await hints(db, "ff_ready", engine.promote) == []
    await clock.advance(MINUTE)
    assert sorted(await hints(db, "ff_ready", engine.promote)) == [
        f"{home()} test a",
        f"{home()} test b",
    ]


async def test_a_large_backlog_is_promoted_in_one_call(clock, engine):
    await engine.submit_many([Item(delay=MINUTE)] * 1000)
    await clock.advance(MINUTE)
    assert (await engine.promote())[0] == 500
    assert (await engine.promote(10000))[0] == 500


@pytest.mark.parametrize("limit", [None, 0, -1, 10001])
async def test_the_limit_is_one_to_ten_thousand(engine, limit):
    with refused("WF001", message="invalid_input", field="limit"):
        await engine.promote(limit)
