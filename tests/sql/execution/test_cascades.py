"""Those whom an end concerns and who cannot be told at once: wakes_pending and ff.resolve_wakes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from support.database import home
from support.factories import Engine, refused

PENDING = {"wakes_pending": True}


async def blocked(engine):
    return sum(row["eligibility"] == "blocked_by_dependencies" for row in await engine.rows())


async def waiting(engine, make, kid, number=1):
    waiters = []
    for _ in range(number):
        waiter = await make.execution("leased")
        await engine.wait_for(waiter.lease, [kid])
        waiters.append(waiter)
    return waiters


async def many_waiting(engine, kid, number):
    route = await engine.register(lane="many")
    for _ in range(number):
        await engine.submit(route=route)
    for lease in await engine.claim(number, lanes=["many"]):
        await engine.wait_for(lease, [kid])


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
async def test_a_waiter_that_is_locked_is_left_and_the_answer_says_so(db, engine, make, how):
    kid = await make.execution("leased")
    (waiter,) = await waiting(engine, make, kid.id)
    transaction = await db.lock_executions(waiter.id)
    match how:
        case "complete":
            answer = await engine.complete(kid.lease)
        case "fail":
            answer = await engine.fail(kid.lease, "permanent")
        case _:
            answer = await engine.cancel(kid.id)
    assert answer.word in ("completed", "failed", "cancelled")
    assert answer.detail == PENDING
    row = await engine.row(kid.id)
    assert (row["phase"], row["wakes_pending"]) == ("terminal", True)
    # it is still locked: nothing can be done yet
    assert await engine.resolve() == (0, timedelta(milliseconds=100))
    await transaction.rollback()
    assert await engine.resolve() == (1, None)
    assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"
    assert (await engine.row(kid.id))["wakes_pending"] is False
    assert await engine.resolve() == (0, None)


async def test_only_those_of_a_batch_that_left_somebody_say_so(db, engine, make):
    one, two = await make.execution("leased"), await make.execution("leased")
    (first,) = await waiting(engine, make, one.id)
    await waiting(engine, make, two.id)
    transaction = await db.lock_executions(first.id)
    answers = await engine.complete_many([one.lease, two.lease])
    assert [(answer.word, answer.detail) for answer in answers] == [
        ("completed", PENDING),
        ("completed", None),
    ]
    await transaction.rollback()
    assert await engine.resolve() == (1, None)


async def test_expiry_leaves_what_it_cannot_tell_to_the_resolver(db, engine, make, clock):
    kid = await make.execution("waiting", deadline=timedelta(minutes=1))
    (waiter,) = await waiting(engine, make, kid.id)
    transaction = await db.lock_executions(waiter.id)
    await clock.advance(minutes=1)
    await engine.expire_executions()
    assert (await engine.row(kid.id))["wakes_pending"] is True
    await transaction.rollback()
    assert (await engine.resolve())[0] == 1


async def test_two_targets_that_end_at_once_do_not_lose_a_wake(db, engine, make):
    """The classic: each sees the other's target open, and nobody wakes the waiter."""
    waiter = await make.execution("leased")
    one, two = await make.execution("leased"), await make.execution("leased")
    await engine.wait_for(waiter.lease, [one.id, two.id])
    other = Engine(await db.connect())
    first, second = engine.connection.transaction(), other.connection.transaction()
    await first.start()
    await second.start()
    assert (await engine.complete(one.lease)).detail is None
    # the waiter is the first one's until it commits
    assert (await other.complete(two.lease)).detail == PENDING
    await second.commit()
    await first.commit()
    assert await engine.resolve() == (1, None)
    row = await engine.row(waiter.id)
    assert (row["eligibility"], row["wait_left"]) == ("eligible_now", None)


async def test_many_ends_at_once_always_wake_the_waiter(db, engine, make):
    engines = [Engine(await db.connect()) for _ in range(4)]
    for _ in range(8):
        waiter = await make.execution("leased")
        kids = [await make.execution("leased") for _ in engines]
        await engine.wait_for(waiter.lease, [kid.id for kid in kids])
        answers = await asyncio.gather(
            *(each.complete(kid.last_lease) for each, kid in zip(engines, kids, strict=True))
        )
        assert {answer.word for answer in answers} == {"completed"}
        while (await engine.resolve())[1] is not None:
            pass
        assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"


async def test_waits_and_ends_at_once_never_miss_each_other(db, engine, make):
    waiters, enders = Engine(await db.connect()), Engine(await db.connect())
    for _ in range(6):
        waiter, kid = await make.execution("leased"), await make.execution("leased")
        answers = await asyncio.gather(
            waiters.wait_for(waiter.last_lease, [kid.id]),
            enders.complete(kid.last_lease, wait=True),
        )
        assert [answer.word for answer in answers] == ["waiting", "completed"]
        await engine.resolve()
        assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"


async def test_a_hundred_and_fifty_waiters_are_woken_in_two_bounded_steps(engine, make):
    kid = await make.execution("leased")
    await many_waiting(engine, kid.id, 150)
    answer = await engine.complete(kid.lease)
    assert (answer.word, answer.detail) == ("completed", PENDING)
    assert await blocked(engine) == 50
    assert await engine.resolve() == (50, None)
    assert await blocked(engine) == 0


async def test_more_work_is_due_at_once(engine, make):
    kid = await make.execution("leased")
    await many_waiting(engine, kid.id, 130)
    await engine.complete(kid.lease)
    assert await engine.resolve(20) == (20, timedelta(0))
    assert await engine.resolve(20) == (10, None)


async def test_a_crash_before_the_wakes_are_resolved_loses_nothing(db, engine, make):
    kid = await make.execution("leased")
    (waiter,) = await waiting(engine, make, kid.id)
    transaction = await db.lock_executions(waiter.id)
    await engine.complete(kid.lease)
    # whoever completed it never calls again; the flag is in the table for the reconciler
    await transaction.rollback()
    assert await Engine(await db.connect()).resolve(500) == (1, None)
    assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"


async def test_a_waiter_that_ends_while_it_is_owed_a_wake_clears_the_debt(db, engine, make):
    kid = await make.execution("leased")
    (waiter,) = await waiting(engine, make, kid.id)
    transaction = await db.lock_executions(waiter.id)
    await engine.complete(kid.lease)
    await transaction.rollback()
    await engine.cancel(waiter.id)
    assert await engine.resolve() == (0, None)
    assert (await engine.row(kid.id))["wakes_pending"] is False


async def test_two_resolvers_at_once_wake_once(db, engine, make):
    kid = await make.execution("leased")
    await many_waiting(engine, kid.id, 140)
    await engine.complete(kid.lease)
    others = [Engine(await db.connect()) for _ in range(2)]
    answers = await asyncio.gather(*(each.resolve() for each in (engine, *others)))
    assert sum(handled for handled, _ in answers) == 40
    assert await blocked(engine) == 0
    await engine.resolve()


async def test_what_is_owed_a_wake_is_not_trimmed(db, engine, make, clock):
    for policy in (None, {"retention_ms": 0}):
        kid = await make.execution("leased", policy=policy)
        (waiter,) = await waiting(engine, make, kid.id)
        transaction = await db.lock_executions(waiter.id)
        await engine.complete(kid.lease)
        await clock.advance(seconds=1)
        trim = f"select handled from ff.trim_retention('{home()}', p_retention => '0')"
        assert await db.fetchval(trim) == 0
        await transaction.rollback()
        await engine.resolve()
        assert await db.fetchval(trim) == 1


async def test_a_replay_tells_them_first(db, engine, make):
    kid = await make.execution("leased")
    await many_waiting(engine, kid.id, 130)
    await engine.complete(kid.lease)
    assert (await engine.replay(kid.id)).word == "replayed"
    assert await blocked(engine) == 0
    assert (await engine.row(kid.id))["wakes_pending"] is False


async def test_a_replay_that_cannot_tell_them_is_to_be_tried_again(db, engine, make):
    kid = await make.execution("leased")
    (waiter,) = await waiting(engine, make, kid.id)
    transaction = await db.lock_executions(waiter.id)
    await engine.complete(kid.lease)
    with pytest.raises(asyncpg.SerializationError):
        await engine.replay(kid.id)
    await transaction.rollback()
    assert (await engine.retry(kid.id)).word == "replayed"
    assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"


async def test_a_replayed_target_wakes_who_waits_for_its_next_end(engine, make):
    kid = await make.execution("completed", lane="k")
    await engine.replay(kid.id)
    (waiter,) = await waiting(engine, make, kid.id)
    assert await blocked(engine) == 1
    await engine.complete(await engine.take(kid.id, lanes=["k"]))
    assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"


@pytest.mark.parametrize("limit", [None, 0, 10_001])
async def test_a_limit_that_makes_no_sense_is_refused(engine, limit):
    with refused("WF001", field="limit"):
        await engine.resolve(limit)
