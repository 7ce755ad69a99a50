"""ff.wait_for_runs: an execution waits until others have ended, without a worker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import TTL, Engine, new_id, refused
from support.hints import hints


async def targets(engine, number, lane="kids"):
    """Executions that wait for a worker in a lane of their own."""
    route = await engine.register(lane=lane)
    return [(await engine.submit(route=route)).id for _ in range(number)]


async def end(engine, execution_id, how="complete"):
    """End one of them, in one of the ways there are."""
    if how == "cancel":
        return await engine.cancel(execution_id)
    lease = await engine.grant_and_claim(execution_id)
    if how == "fail":
        return await engine.fail(lease, "permanent")
    return await engine.complete(lease)


async def state(engine, execution_id):
    row = await engine.row(execution_id)
    return row["eligibility"], row["wait_left"]


async def test_a_waiter_gives_up_its_lease_and_is_blocked(engine, make, clock):
    await clock.freeze()
    waiter = await make.execution("leased", deadline=timedelta(days=2))
    kids = await targets(engine, 2)
    answer = await engine.wait_for(waiter.lease, kids)
    assert (answer.word, answer.open, answer.detail) == ("waiting", 2, None)
    row = await engine.row(waiter.id)
    assert row["public_state"] == "waiting_children"
    assert (row["phase"], row["ownership"], row["lease_id"]) == ("runnable", "unowned", None)
    assert row["blocking_reason"] == "waiting_for_children"
    assert row["attempt_state"] == "attempt_interrupted"
    assert (row["wait_no"], row["wait_left"], row["due_at"]) == (1, 2, row["deadline_at"])
    assert row["attempt_pause_cause"] == "waiting_for_runs"
    waits = await engine.waits(waiter.id)
    assert [(w["target_id"], w["wait_no"], w["ended_at"]) for w in waits] == [
        (kid, 1, None) for kid in sorted(kids)
    ]
    assert [(await engine.row(kid))["is_awaited"] for kid in kids] == [True, True]
    assert await engine.kinds(waiter.id) == ["submitted", "claimed", "waiting"]


async def test_the_last_end_makes_it_eligible_and_its_attempt_goes_on(engine, make):
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 3)
    await engine.wait_for(waiter.lease, kids)
    for left, kid in zip((2, 1), kids[:2], strict=True):
        await end(engine, kid)
        assert await state(engine, waiter.id) == ("blocked_by_dependencies", left)
    await end(engine, kids[2])
    assert await state(engine, waiter.id) == ("eligible_now", None)
    assert await engine.waits(waiter.id) == []
    row = await engine.row(waiter.id)
    assert (row["blocking_reason"], row["cause"]) == ("waiting_for_worker", "satisfy_dependencies")
    lease = await engine.take(waiter.id, lanes=["w"])
    assert (lease.claim_kind, lease.attempt_index) == ("resumed", 0)
    # being woken is quiet
    assert await engine.kinds(waiter.id) == ["submitted", "claimed", "waiting", "resumed"]


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
async def test_any_end_counts(engine, make, how):
    waiter = await make.execution("leased")
    (kid,) = await targets(engine, 1)
    await engine.wait_for(waiter.lease, [kid])
    await end(engine, kid, how)
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_an_expired_deadline_counts(engine, make, clock):
    kid = (await engine.submit(delay=timedelta(days=9), deadline=timedelta(hours=1))).id
    waiter = await make.execution("leased")
    await engine.wait_for(waiter.lease, [kid])
    await clock.advance(hours=1)
    await engine.expire_executions()
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_too_many_reclaims_count(engine, make, clock):
    kid = await make.execution("leased", lane="k", policy={"max_reclaim_count": 0})
    waiter = await make.execution("leased", lane="w")
    await engine.wait_for(waiter.lease, [kid.id])
    await clock.advance(TTL)
    await engine.expire()
    assert await engine.claim(1, lanes=["k"]) == []
    assert (await engine.row(kid.id))["public_state"] == "failed"
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_an_attempt_that_ran_out_of_time_counts(engine, make, clock):
    kid = await make.execution(
        "leased",
        policy={"timeout_policy": {"attempt_timeout_ms": 60_000}},
        ttl=timedelta(hours=1),
    )
    waiter = await make.execution("leased")
    await engine.wait_for(waiter.lease, [kid.id])
    await clock.advance(minutes=2)
    await engine.expire_executions()
    assert (await engine.row(kid.id))["public_state"] == "expired"
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_a_retry_is_no_end(engine, make):
    kid = await make.execution("leased", policy={"retry_policy": {}})
    waiter = await make.execution("leased")
    await engine.wait_for(waiter.lease, [kid.id])
    assert (await engine.fail(kid.lease, "transient")).word == "retry_scheduled"
    assert await state(engine, waiter.id) == ("blocked_by_dependencies", 1)


async def test_k_of_n_is_enough(engine, make):
    waiter = await make.execution("leased")
    kids = await targets(engine, 3)
    answer = await engine.wait_for(waiter.lease, kids, 2)
    assert answer.open == 3
    await end(engine, kids[2])
    assert await state(engine, waiter.id) == ("blocked_by_dependencies", 1)
    await end(engine, kids[0])
    assert await state(engine, waiter.id) == ("eligible_now", None)
    # the third is none of its business any more
    assert (await end(engine, kids[1])).detail is None


async def test_what_has_ended_counts_at_once(engine, make):
    waiter = await make.execution("leased")
    kids = await targets(engine, 3)
    await end(engine, kids[1])
    answer = await engine.wait_for(waiter.lease, kids, 2)
    assert answer.open == 2
    assert await state(engine, waiter.id) == ("blocked_by_dependencies", 1)
    assert [w["ended_at"] is not None for w in await engine.waits(waiter.id)] == [
        kid == kids[1] for kid in sorted(kids)
    ]
    await end(engine, kids[0])
    assert await state(engine, waiter.id) == ("eligible_now", None)


@pytest.mark.parametrize("k", [None, 1])
async def test_if_enough_have_ended_it_is_eligible_without_waiting(engine, make, k):
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 2)
    for kid in kids if k is None else kids[:1]:
        await end(engine, kid)
    answer = await engine.wait_for(waiter.lease, kids, k)
    assert (answer.word, answer.open) == ("waiting", 0 if k is None else 1)
    assert await state(engine, waiter.id) == ("eligible_now", None)
    assert (await engine.row(waiter.id))["wait_no"] == 1
    assert await engine.waits(waiter.id) == []
    assert await engine.kinds(waiter.id) == ["submitted", "claimed", "waiting"]
    # nobody was marked for nothing
    assert not any([(await engine.row(kid))["is_awaited"] for kid in kids])
    await engine.take(waiter.id, lanes=["w"])


async def test_the_tenth_wait_is_like_the_first(engine, make):
    waiter = await make.execution("leased", lane="w")
    lease = waiter.lease
    for number in range(1, 11):
        kids = await targets(engine, 2)
        assert (await engine.wait_for(lease, kids)).word == "waiting"
        row = await engine.row(waiter.id)
        assert (row["wait_no"], row["wait_left"]) == (number, 2)
        for kid in kids:
            await end(engine, kid)
        lease = await engine.take(waiter.id, lanes=["w"])
    assert lease.epoch == 11
    assert (await engine.complete(lease)).word == "completed"


async def test_the_same_target_may_be_waited_for_again(engine, make):
    waiter = await make.execution("leased", lane="w")
    one, two = await targets(engine, 2)
    await engine.wait_for(waiter.lease, [one, two], 1)
    await end(engine, one)
    lease = await engine.take(waiter.id, lanes=["w"])
    await engine.wait_for(lease, [one, two])
    assert await state(engine, waiter.id) == ("blocked_by_dependencies", 1)
    await end(engine, two)
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_targets_given_twice_count_once(engine, make):
    waiter = await make.execution("leased")
    one, two = await targets(engine, 2)
    assert (await engine.wait_for(waiter.lease, [one, two, one])).open == 2
    assert len(await engine.waits(waiter.id)) == 2
    await end(engine, one)
    assert await state(engine, waiter.id) == ("blocked_by_dependencies", 1)
    await end(engine, two)
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_one_end_wakes_all_who_wait_for_it(engine, make):
    (kid,) = await targets(engine, 1)
    waiters = [await make.execution("leased") for _ in range(3)]
    for waiter in waiters:
        await engine.wait_for(waiter.lease, [kid])
    assert (await end(engine, kid)).detail is None
    for waiter in waiters:
        assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_a_batch_that_ends_several_targets_of_one_waiter_counts_each(engine, make):
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 5)
    await engine.wait_for(waiter.lease, kids)
    leases = await engine.claim(5, lanes=["kids"])
    assert {a.word for a in await engine.complete_many(leases[:4])} == {"completed"}
    assert await state(engine, waiter.id) == ("blocked_by_dependencies", 1)
    await engine.complete_many(leases[4:])
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_an_execution_that_waits_may_be_waited_for(engine, make):
    low, middle, high = [await make.execution("leased", lane=f"w{n}") for n in range(3)]
    await engine.wait_for(high.lease, [middle.id])
    await engine.wait_for(middle.lease, [low.id])
    await engine.complete(low.lease)
    assert await state(engine, middle.id) == ("eligible_now", None)
    assert await state(engine, high.id) == ("blocked_by_dependencies", 1)
    await engine.complete(await engine.take(middle.id, lanes=["w1"]))
    assert await state(engine, high.id) == ("eligible_now", None)


async def test_a_worker_of_the_waiter_is_told(db, engine, make):
    waiter = await make.execution("leased", lane="w")
    (kid,) = await targets(engine, 1)
    await engine.wait_for(waiter.lease, [kid])
    heard: list[str] = []
    listener = await db.connect()
    await listener.add_listener("ff_ready", lambda *args: heard.append(args[3]))
    await end(engine, kid)
    await listener.execute("select 1")
    assert heard == [f"{home()} test w"]


async def test_workers_of_what_it_waits_for_are_told_once_its_locks_are_gone(db, engine, make):
    """A claim that meets the locks finds nothing, and nobody else would tell it to look again."""
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 2)
    other = Engine(await db.connect())

    async def wait_and_commit() -> None:
        transaction = other.connection.transaction()
        await transaction.start()
        assert (await other.wait_for(waiter.lease, kids)).word == "waiting"
        assert await engine.claim(5, lanes=["kids"]) == [], "they are locked"
        await transaction.commit()

    assert await hints(db, "ff_ready", wait_and_commit) == [f"{home()} test kids"]
    assert {lease.execution_id for lease in await engine.claim(5, lanes=["kids"])} == set(kids)


async def test_also_when_the_one_who_would_wait_is_refused(db, engine, make):
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 1)
    stale = replace(waiter.lease, epoch=7)
    assert await hints(db, "ff_ready", lambda: engine.wait_for(stale, kids)) == [
        f"{home()} test kids"
    ]


async def test_nobody_is_told_of_what_cannot_be_claimed(db, engine, make):
    waiter = await make.execution("leased", lane="w")
    running = await make.execution("leased", lane="a")
    delayed = await make.execution("delayed", lane="b")
    ended = await make.execution("completed", lane="c")
    kids = [running.id, delayed.id, ended.id]
    assert await hints(db, "ff_ready", lambda: engine.wait_for(waiter.lease, kids)) == []


# The end of a waiter


async def test_a_waiter_that_is_cancelled_leaves_no_wait_behind(engine, make):
    waiter = await make.execution("awaiting")
    await engine.cancel(waiter.id)
    assert await engine.waits(waiter.id) == []
    assert (await engine.row(waiter.id))["wait_left"] is None
    assert [row["is_awaited"] for row in await engine.rows()].count(True) == 1


async def test_a_waiter_that_expires_leaves_no_wait_behind(engine, make, clock):
    waiter = await make.execution("awaiting", deadline=timedelta(minutes=5))
    await clock.advance(minutes=5)
    await engine.expire_executions()
    assert (await engine.row(waiter.id))["public_state"] == "expired"
    assert await engine.waits(waiter.id) == []


async def test_the_end_of_a_target_after_that_of_its_waiter_changes_nothing(engine, make):
    waiter = await make.execution("leased")
    (kid,) = await targets(engine, 1)
    await engine.wait_for(waiter.lease, [kid])
    await engine.cancel(waiter.id)
    before = await engine.row(waiter.id)
    await end(engine, kid)
    assert await engine.row(waiter.id) == before


async def test_a_waiter_cannot_be_retried_or_replayed_past_its_wait(engine, make):
    waiter = await make.execution("awaiting")
    before = await engine.snapshot()
    with refused("WF205"):
        await engine.retry(waiter.id)
    with refused("WF206"):
        await engine.replay(waiter.id)
    assert await engine.snapshot() == before


async def test_the_priority_of_a_waiter_may_change(engine, make):
    waiter = await make.execution("awaiting")
    assert (await engine.change_priority(waiter.id, 5)).word == "changed"
    assert await state(engine, waiter.id) == ("blocked_by_dependencies", 1)


# The fence


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lease_id": uuid4()}, "stale_lease"),
        ({"epoch": 7}, "stale_lease"),
        ({"attempt_id": uuid4()}, "stale_lease"),
        ({"execution_id": uuid4()}, "not_found"),
        ({"epoch": None}, "invalid"),
    ],
)
async def test_a_fence_that_is_not_good_changes_nothing(engine, make, change, word):
    waiter = await make.execution("leased")
    kids = await targets(engine, 1)
    before = await engine.snapshot()
    answer = await engine.wait_for(replace(waiter.lease, **change), kids)
    assert (answer.word, answer.open) == (word, None)
    assert await engine.snapshot() == before


async def test_who_lost_its_lease_does_not_wait(engine, make, clock):
    waiter = await make.execution("leased")
    kids = await targets(engine, 1)
    await clock.advance(TTL)
    assert (await engine.wait_for(waiter.lease, kids)).word == "lease_expired"
    assert (await engine.row(waiter.id))["ownership"] == "lease_expired_reclaimable"
    assert (await engine.row(kids[0]))["is_awaited"] is False


async def test_a_repeat_gets_the_first_answer_and_does_not_act_twice(engine, make):
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 2)
    await engine.wait_for(waiter.lease, kids)
    before = await engine.snapshot()
    again = await engine.wait_for(waiter.lease, kids)
    assert (again.word, again.open) == ("waiting", 2)
    assert await engine.snapshot() == before
    for kid in kids:
        await end(engine, kid)
    late = await engine.wait_for(waiter.lease, kids)
    assert (late.word, late.open) == ("waiting", 0)
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_a_zombie_that_waits_later_is_told_off(engine, make):
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 1)
    await engine.release(waiter.lease)
    lease = await engine.take(waiter.id, lanes=["w"])
    assert (await engine.wait_for(waiter.lease, kids)).word == "stale_lease"
    assert (await engine.complete(lease)).word == "completed"


# Bad input


async def test_an_unknown_target_is_not_found_and_named(engine, make):
    waiter = await make.execution("leased")
    kids = await targets(engine, 2)
    nobody = new_id()
    before = await engine.snapshot()
    answer = await engine.wait_for(waiter.lease, [*kids, nobody])
    assert (answer.word, answer.detail) == (
        "not_found",
        {"field": "targets", "id": f"{{fp:{home()}}}:{nobody}"},
    )
    assert await engine.snapshot() == before


async def test_a_target_of_another_namespace_is_not_found(engine, make):
    waiter = await make.execution("leased")
    other = engine.within("other")
    foreign = (await other.submit(route=await other.register(lane="x"))).id
    before = await engine.snapshot()
    assert (await engine.wait_for(waiter.lease, [foreign])).word == "not_found"
    assert await engine.snapshot() == before


async def test_a_target_of_another_partition_is_not_found(db, engine, make):
    await db.execute("update ff.meta set value = '8' where name = 'partitions'")
    waiter = await make.execution("leased")
    other = Engine(db.conn, partition_key=1)
    away = (await other.submit(route=await other.register(lane="x"))).id
    assert (await engine.wait_for(waiter.lease, [away])).word == "not_found"
    assert (await other.row(away))["is_awaited"] is False


@pytest.mark.parametrize(
    ("given", "k", "field"),
    [
        (None, None, "targets"),
        ([], None, "targets"),
        ([None], None, "targets"),
        ([uuid4() for _ in range(1001)], None, "targets"),
        ("self", None, "targets"),
        ("two", 0, "k"),
        ("two", 3, "k"),
        ("twice", 2, "k"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused_and_the_field_named(
    engine, make, given, k, field
):
    waiter = await make.execution("leased")
    kids = await targets(engine, 2)
    chosen = {"self": [kids[0], waiter.id], "two": kids, "twice": [kids[0], kids[0]]}
    before = await engine.snapshot()
    with refused("WF001", field=field):
        await engine.wait_for(waiter.lease, chosen[given] if isinstance(given, str) else given, k)
    assert await engine.snapshot() == before


async def test_a_thousand_targets_are_taken(engine, make):
    waiter = await make.execution("leased", lane="w")
    kids = await targets(engine, 1000)
    assert (await engine.wait_for(waiter.lease, kids)).open == 1000
    leases = await engine.claim(1000, lanes=["kids"])
    await engine.complete_many(leases)
    assert await state(engine, waiter.id) == ("eligible_now", None)


# Locks


async def test_it_waits_for_a_target_that_is_ending_and_counts_it(db, engine, make):
    waiter = await make.execution("leased")
    kid = await make.execution("leased")
    other = Engine(await db.connect())
    transaction = other.connection.transaction()
    await transaction.start()
    await other.complete(kid.last_lease)
    waiting = asyncio.create_task(engine.wait_for(waiter.lease, [kid.id]))
    await db.until_waiting(waiting)
    await transaction.commit()
    assert (await waiting).open == 0
    assert await state(engine, waiter.id) == ("eligible_now", None)


async def test_an_end_that_meets_a_wait_half_done_is_seen(db, engine, make):
    waiter = await make.execution("leased")
    kid = await make.execution("leased")
    other = Engine(await db.connect())
    transaction = other.connection.transaction()
    await transaction.start()
    await other.wait_for(waiter.last_lease, [kid.id])
    assert (await engine.complete(kid.lease)).word == "busy"
    ending = asyncio.create_task(engine.complete(kid.lease, wait=True))
    await db.until_waiting(ending)
    await transaction.commit()
    assert (await ending).word == "completed"
    assert await state(engine, waiter.id) == ("eligible_now", None)
