"""delay_execution, wait_children, hold_execution, report_progress: a holder about its execution."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from support.factories import TTL, Engine, new_id, refused

ANOTHER = UUID("01234567-89ab-7def-8123-456789abcdef")

HOUR = timedelta(hours=1)
ENDINGS = ["delay", "wait_children", "hold", "continue_as"]
DONE = {
    "delay": "delayed",
    "wait_children": "waiting",
    "hold": "held",
    "continue_as": "continued",
}


async def test_a_delayed_execution_goes_on_with_the_same_attempt(engine, make, clock):
    execution = await make.execution("leased", lane="a")
    answer = await engine.delay(execution.lease, HOUR)
    row = await engine.row(execution.id)
    assert answer.word == "delayed"
    assert answer.delayed_until == row["delayed_until"]
    assert (row["public_state"], row["blocking_reason"]) == ("delayed", "waiting_for_delay")
    assert (row["attempt_state"], row["lease_id"]) == ("attempt_interrupted", None)
    assert row["attempt_ended_at"] is None
    assert await engine.claim(1, lanes=["a"]) == []
    await clock.advance(HOUR)
    await engine.promote()
    lease = await engine.take(execution.id, lanes=["a"])
    assert (lease.claim_kind, lease.attempt_id) == ("resumed", execution.lease.attempt_id)
    assert lease.epoch == execution.lease.epoch + 1


async def test_a_delay_until_a_moment(engine, make, clock):
    execution = await make.execution("leased")
    until = await clock.now() + HOUR
    answer = await engine.delay(execution.lease, None, until=until)
    assert answer.delayed_until == until


async def test_a_delay_that_is_past_makes_it_eligible_at_once(engine, make):
    execution = await make.execution("leased")
    answer = await engine.delay(execution.lease, timedelta(0))
    assert (answer.word, answer.delayed_until) == ("delayed", None)
    assert (await engine.row(execution.id))["public_state"] == "waiting"


async def test_a_delay_does_not_disturb_the_deadline(engine, make, clock):
    execution = await make.execution("leased", deadline=timedelta(minutes=30))
    deadline = (await engine.row(execution.id))["deadline_at"]
    await engine.delay(execution.lease, HOUR)
    row = await engine.row(execution.id)
    assert (row["deadline_at"], row["due_at"]) == (deadline, deadline)
    await clock.advance(minutes=30)
    assert (await engine.expire_executions())[0] == 1
    assert (await engine.row(execution.id))["public_state"] == "expired"


async def test_the_time_of_the_attempt_stands_still_while_it_is_delayed(engine, make, clock):
    await clock.freeze()
    execution = await make.execution(
        "leased", lane="a", policy={"timeout_policy": {"attempt_timeout_ms": 20_000}}
    )
    await clock.advance(seconds=15)
    await engine.delay(execution.lease, HOUR)
    await clock.advance(HOUR)
    await engine.promote()
    lease = await engine.take(execution.id, lanes=["a"])
    left = lease.attempt_deadline_at - await clock.now()
    assert left == timedelta(seconds=5)


async def test_waiting_without_an_open_dependency_is_over_at_once(engine, make):
    execution = await make.execution("leased", lane="a")
    assert (await engine.wait_children(execution.lease)).word == "waiting"
    row = await engine.row(execution.id)
    assert (row["public_state"], row["blocking_reason"]) == ("waiting", "waiting_for_worker")
    lease = await engine.take(execution.id, lanes=["a"])
    assert lease.claim_kind == "resumed"


async def test_a_held_execution_waits_for_an_operator(engine, make):
    execution = await make.execution("leased", lane="a")
    assert (await engine.hold(execution.lease, "unknown step", "charge")).word == "held"
    row = await engine.row(execution.id)
    assert (row["eligibility"], row["blocking_reason"]) == (
        "blocked_by_operator",
        "paused_by_policy",
    )
    assert row["blocking_detail"] == "charge: unknown step"
    assert await engine.claim(1, lanes=["a"]) == []
    assert (await engine.retry(execution.id, actor="ann")).word == "unblocked"
    lease = await engine.take(execution.id, lanes=["a"])
    assert lease.attempt_id == execution.lease.attempt_id


@pytest.mark.parametrize("payload", [b"[2]", b"x" * 1000, None], ids=["small", "large", "none"])
async def test_a_continued_execution_has_new_input_and_no_steps(engine, make, clock, payload):
    timeout = {"timeout_policy": {"attempt_timeout_ms": 20_000}}
    execution = await make.execution("leased", lane="a", policy=timeout, deadline=HOUR)
    first, deadline = execution.lease, (await engine.row(execution.id))["deadline_at"]
    await engine.record(first)
    await clock.advance(seconds=15)
    answer = await engine.continue_as(first, payload, "raw")
    assert (answer.word, answer.generation) == ("continued", 1)
    assert await engine.steps(execution.id) == []
    assert (await engine.row(execution.id))["public_state"] == "waiting"
    lease = await engine.take(execution.id, lanes=["a"])
    assert (lease.claim_kind, lease.attempt_id) == ("resumed", first.attempt_id)
    assert (lease.generation, lease.payload, lease.payload_encoding) == (1, payload, "raw")
    assert lease.attempt_deadline_at - await clock.now() > timedelta(seconds=15), "a fresh timeout"
    assert lease.deadline_at == deadline
    assert (await engine.continue_as(lease, b"[3]")).generation == 2
    assert (await engine.take(execution.id, lanes=["a"])).payload == b"[3]"
    events = await engine.events(execution.id)
    assert [json.loads(one["detail"]) for one in events if one["kind"] == "continued"] == [
        {"generation": 1, "dropped_steps": 1},
        {"generation": 2, "dropped_steps": 0},
    ]


async def test_a_continued_execution_counts_retries_and_reclaims_anew(engine, make):
    execution = await make.execution("reclaimed", lane="a")
    assert (await engine.row(execution.id))["reclaim_count"] == 1
    await engine.continue_as(execution.lease)
    row = await engine.row(execution.id)
    assert (row["retry_count"], row["reclaim_count"], row["crash_count"]) == (0, 0, 0)
    assert row["total_attempt_count"] == 2


@pytest.mark.parametrize(
    ("payload", "encoding", "field"),
    [(b"x" * 1_048_577, None, "payload"), (b"[]", "x" * 65, "payload_encoding")],
    ids=["payload", "encoding"],
)
async def test_new_input_has_the_limits_of_a_submission(engine, make, payload, encoding, field):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    with refused("WF001", field=field):
        await engine.continue_as(execution.lease, payload, encoding)
    assert await engine.snapshot() == before


@pytest.mark.parametrize("operation", ENDINGS)
async def test_a_repeat_gets_the_first_answer(engine, make, operation):
    execution = await make.execution("leased")
    first = await getattr(engine, operation)(execution.lease)
    before = await engine.snapshot()
    assert await getattr(engine, operation)(execution.lease) == first
    assert first.word == DONE[operation]
    assert await engine.snapshot() == before


@pytest.mark.parametrize("operation", [*ENDINGS, "progress"])
@pytest.mark.parametrize(
    "forged", [{"epoch": 99}, {"lease_id": ANOTHER}, {"attempt_id": ANOTHER}], ids=str
)
async def test_a_wrong_fence_changes_nothing(engine, make, operation, forged):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    arguments = (10,) if operation == "progress" else ()
    answer = await getattr(engine, operation)(replace(execution.lease, **forged), *arguments)
    assert answer.word == "stale_lease"
    assert await engine.snapshot() == before


@pytest.mark.parametrize("operation", [*ENDINGS, "progress"])
async def test_past_its_expiry_a_lease_is_marked_and_the_call_refused(
    engine, make, clock, operation
):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    arguments = (10,) if operation == "progress" else ()
    answer = await getattr(engine, operation)(execution.lease, *arguments)
    assert answer.word == "lease_expired"
    row = await engine.row(execution.id)
    assert (row["ownership"], row["progress_percent"]) == ("lease_expired_reclaimable", None)


@pytest.mark.parametrize("operation", [*ENDINGS, "progress"])
async def test_a_fence_is_required(engine, make, operation):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    arguments = (10,) if operation == "progress" else ()
    answer = await getattr(engine, operation)(replace(execution.lease, epoch=None), *arguments)
    assert answer.word == "invalid"
    assert answer.detail["problem"] == "fence_required"
    assert await engine.snapshot() == before


@pytest.mark.parametrize("operation", [*ENDINGS, "progress"])
async def test_an_unknown_or_foreign_execution_is_not_found(db, engine, make, operation):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    arguments = (10,) if operation == "progress" else ()
    lost = replace(execution.lease, execution_id=new_id())
    assert (await getattr(engine, operation)(lost, *arguments)).word == "not_found"
    stranger = Engine(db.conn, namespace="other")
    answer = await getattr(stranger, operation)(execution.lease, *arguments)
    assert answer.word == "not_found"
    assert await engine.snapshot() == before


async def test_progress_keeps_what_is_not_given(engine, make):
    execution = await make.execution("leased")
    assert (await engine.progress(execution.lease, 10, "loading")).word == "reported"
    await engine.progress(execution.lease, 40)
    row = await engine.row(execution.id)
    assert (row["progress_percent"], row["progress_message"]) == (40, "loading")
    assert row["progressed_at"] is not None
    assert await engine.kinds(execution.id) == ["submitted", "claimed"]


async def test_a_new_attempt_begins_without_progress(engine, make):
    execution = await make.execution("leased", lane="a")
    await engine.progress(execution.lease, 90, "almost")
    await engine.revoke(execution.id)
    await engine.take(execution.id, lanes=["a"])
    row = await engine.row(execution.id)
    assert (row["progress_percent"], row["progress_message"]) == (None, None)


@pytest.mark.parametrize("percent", [-1, 101, 255])
async def test_a_percentage_is_from_0_to_100(engine, make, percent):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    with refused("WF001", field="percent"):
        await engine.progress(execution.lease, percent)
    assert await engine.snapshot() == before


async def test_bad_arguments_are_named(engine, make, clock):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    with refused("WF001", field="percent"):
        await engine.progress(execution.lease)
    with refused("WF001", field="message"):
        await engine.progress(execution.lease, 1, "m" * 1025)
    with refused("WF001", field="delay"):
        await engine.delay(execution.lease, None)
    with refused("WF001", field="delay"):
        await engine.delay(execution.lease, HOUR, until=await clock.now())
    with refused("WF001", field="delay"):
        await engine.delay(execution.lease, timedelta(days=40_000))
    with refused("WF001", field="delay"):
        await engine.delay(execution.lease, newer_step="patch")
    with refused("WF001", field="newer_step"):
        await engine.delay(execution.lease, None, newer_step="")
    with refused("WF001", field="reason"):
        await engine.hold(execution.lease, None)
    with refused("WF001", field="reason"):
        await engine.hold(execution.lease, "x" * 257)
    with refused("WF001", field="step"):
        await engine.hold(execution.lease, "why", "")
    assert await engine.snapshot() == before
