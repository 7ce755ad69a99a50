"""ff.release_leases: a worker that stops hands its executions to the next one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import TTL, Item, new_id, refused
from support.hints import hints


async def test_a_released_execution_waits_with_its_attempt_interrupted(clock, engine, make):
    execution = await make.execution("leased")
    lease = execution.last_lease
    await clock.advance(seconds=5)
    now = await clock.freeze()
    assert (await engine.release(lease, "deploy")).word == "released"

    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "runnable",
        "unowned",
        "eligible_now",
    )
    assert (row["blocking_reason"], row["attempt_state"], row["cause"]) == (
        "waiting_for_worker",
        "attempt_interrupted",
        "release",
    )
    assert row["public_state"] == "waiting"
    assert (row["attempt_paused_at"], row["attempt_pause_cause"]) == (now, "deploy")
    for column in ("lease_id", "lease_expires_at", "worker_id", "worker_instance_id", "due_at"):
        assert row[column] is None, column
    assert row["attempt_ended_as"] is row["attempt_ended_at"] is None
    assert (row["last_lease_id"], row["last_lease_end"]) == (lease.lease_id, "release")
    assert (row["last_worker_id"], row["last_worker_instance_id"]) == ("pool", "pool-1")
    assert (row["epoch"], row["attempt_id"], row["attempt_index"]) == (1, lease.attempt_id, 0)
    assert (row["retry_count"], row["reclaim_count"]) == (0, 0)

    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["outcome"], event["occurred_at"]) == ("released", None, now)
    assert (event["lease_id"], event["epoch"]) == (lease.lease_id, 1)
    assert event["worker_instance_id"] == "pool-1"
    assert json.loads(event["detail"]) == {"cause": "deploy"}
    assert await engine.attempts(execution.id) == []


async def test_the_time_an_attempt_has_left_is_kept(clock, engine):
    await clock.freeze()
    await engine.submit(policy={"timeout_policy": {"attempt_timeout_ms": 60_000}})
    lease = await engine.take()
    await clock.advance(seconds=20)
    await engine.release(lease)
    row = await engine.row(lease.execution_id)
    assert row["attempt_time_left"] == timedelta(seconds=40)
    assert row["attempt_deadline_at"] is None


async def test_an_attempt_without_a_timeout_has_none_after_a_release(engine, make):
    execution = await make.execution("interrupted")
    row = await engine.row(execution.id)
    assert row["attempt_time_left"] is row["attempt_deadline_at"] is None


async def test_a_released_execution_keeps_its_place_in_the_queue(clock, engine):
    first, second = (await engine.submit()).id, (await engine.submit()).id
    await engine.release(await engine.take(first))
    assert (await engine.take()).execution_id == first
    assert (await engine.take()).execution_id == second


async def test_it_may_be_released_and_resumed_often(engine, make):
    execution = await make.execution("leased")
    lease = execution.last_lease
    for _ in range(5):
        assert (await engine.release(lease)).word == "released"
        lease = await engine.take(execution.id)
    row = await engine.row(execution.id)
    assert (row["epoch"], row["total_attempt_count"]) == (6, 1)
    assert await engine.kinds(execution.id) == [
        "submitted",
        "claimed",
        *["released", "resumed"] * 5,
    ]


async def test_all_leases_of_a_process_are_released_in_one_call(engine):
    await engine.submit_many([Item()] * 50)
    leases = await engine.claim()
    assert {answer.word for answer in await engine.release_many(leases)} == {"released"}
    assert {row["public_state"] for row in await engine.rows()} == {"waiting"}


async def test_a_late_release_is_refused_and_marks_the_lease_expired(clock, engine, make):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await engine.release(execution.last_lease)).word == "lease_expired"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]


@pytest.mark.parametrize(
    ("forgery", "word"),
    [
        ({"lease_id": uuid4()}, "stale_lease"),
        ({"epoch": 2}, "stale_lease"),
        ({"attempt_id": uuid4()}, "stale_lease"),
        ({"execution_id": new_id()}, "not_found"),
        ({"lease_id": None}, "invalid"),
        ({"epoch": None}, "invalid"),
        ({"attempt_id": None}, "invalid"),
        ({"execution_id": None}, "invalid"),
    ],
)
async def test_a_forged_fence_writes_nothing(engine, make, forgery, word):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    assert (await engine.release(replace(execution.last_lease, **forgery))).word == word
    assert await engine.snapshot() == before


async def test_an_ended_execution_is_not_active(engine, make):
    execution = await make.execution("completed")
    answer = await engine.release(execution.last_lease)
    assert answer.word == "not_active"
    assert (answer.detail["phase"], answer.detail["outcome"]) == ("terminal", "success")


async def test_an_execution_of_another_namespace_is_not_found(engine, make):
    execution = await make.execution("leased")
    assert (await engine.within("other").release(execution.last_lease)).word == "not_found"
    assert (await engine.within(None).release(execution.last_lease)).word == "released"


async def test_a_locked_row_is_busy_and_may_be_waited_for_alone(db, engine):
    await engine.submit_many([Item()] * 3)
    leases = await engine.claim()
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update",
            leases[1].execution_id,
        )
        words = [answer.word for answer in await engine.release_many(leases)]
        assert words == ["released", "busy", "released"]
    with refused("WF001", field="wait"):
        await engine.release_many(leases, wait=True)
    assert (await engine.release(leases[1], wait=True)).word == "released"


async def test_of_two_items_for_one_execution_the_second_is_a_duplicate(engine, make):
    lease = (await make.execution("leased")).last_lease
    words = [answer.word for answer in await engine.release_many([lease, lease])]
    assert words == ["released", "duplicate"]


@pytest.mark.parametrize("cause", [None, "x" * 257, "é" * 129, "two\nlines", "del\x7f"])
async def test_the_cause_is_a_short_line(engine, make, cause):
    execution = await make.execution("leased")
    with refused("WF001", message="invalid_input", field="cause"):
        await engine.release(execution.last_lease, cause)


@pytest.mark.parametrize("size", [0, 1001])
async def test_a_batch_has_one_to_a_thousand_items(engine, make, size):
    lease = (await make.execution("leased")).last_lease
    with refused("WF001", field="execution_ids"):
        await engine.release_many([lease] * size)


async def test_the_lease_that_was_released_gets_the_same_answer_again(clock, engine, make):
    execution = await make.execution("interrupted")
    before = await engine.snapshot()
    await clock.advance(days=1)
    assert (await engine.release(execution.last_lease, "another")).word == "released"
    assert (await engine.release(execution.last_lease, wait=True)).word == "released"
    assert await engine.snapshot() == before


async def test_a_release_hints_that_there_is_work(db, engine):
    await engine.submit_many([Item()] * 5)
    leases = await engine.claim()
    assert await hints(db, "ff_ready", lambda: engine.release_many(leases)) == [
        f"{home()} test default"
    ]
    assert await hints(db, "ff_ready", lambda: engine.release_many(leases)) == []
