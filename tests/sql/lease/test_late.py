"""Late is late: a call of the holder after the deadline, or after the time of its attempt, does
what the reconciler would have done, and says so. So the promise holds with a single worker, too."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.factories import TTL

OPERATIONS = {
    "start": (),
    "renew": (),
    "complete": (b"late",),
    "fail": ("transient",),
    "release": (),
    "progress": (50,),
    "delay": (),
    "wait_children": (),
    "wait_for": (),
    "record": (),
    "hold": (),
    "continue_as": (),
    "cancel_held": (),
}
SECONDS = timedelta(seconds=10)
TIMEOUT = {"timeout_policy": {"attempt_timeout_ms": 10_000}}
RETRY = {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 5000}}}
LATE = {
    "past the deadline": {"deadline": SECONDS},
    "past both": {"deadline": SECONDS, "policy": TIMEOUT | RETRY},
    "attempt to be tried again": {"policy": TIMEOUT | RETRY},
    "attempt that was the last": {"policy": TIMEOUT},
}
# of no matter here: where it is, and the times of its own
OWN = {"execution_id", "route_id", "lease_id", "attempt_id", "last_lease_id", "xid", "event_id"}

# of two that were made one after the other
TIMES = {"created_at", "order_at", "started_at", "attempt_started_at", "attempt_paused_at",
         "lease_expires_at", "deadline_at"}  # fmt: skip


def facts(row):
    return {name: value for name, value in dict(row).items() if name not in OWN}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_late_call_does_what_the_reconciler_would_have_done(
    clock, engine, make, operation, late
):
    await clock.freeze()
    mine, swept = [await make.execution("leased", ttl=TTL, **LATE[late]) for _ in range(2)]
    other = await make.execution("delayed")
    arguments = ([other.id],) if operation == "wait_for" else OPERATIONS[operation]
    await clock.advance(SECONDS)
    answer = await getattr(engine, operation)(mine.lease, *arguments)
    assert answer.word == "not_active"
    is_over = "deadline" in LATE[late]
    assert answer.detail["reason"] == ("deadline_passed" if is_over else "attempt_timed_out")
    assert ("delayed_until" in answer.detail) == (late == "attempt to be tried again")
    assert (await engine.expire_executions())[0] == 1
    rows = [facts(await engine.row(one.id)) for one in (mine, swept)]
    assert rows[0] == rows[1]
    assert rows[0]["public_state"] == ("delayed" if "delayed_until" in answer.detail else "expired")
    events = [[facts(e) for e in await engine.events(one.id)] for one in (mine, swept)]
    assert events[0] == events[1]
    assert await engine.steps(mine.id) == []
    # whoever was told off by the reconciler is told the same
    again = await engine.complete(swept.lease)
    assert (again.word, again.detail["reason"]) == ("not_active", answer.detail["reason"])


@pytest.mark.parametrize("operation", ["complete_many", "fail_many", "renew_many", "release_many"])
async def test_a_child_that_ends_with_its_late_parent_ends_in_the_same_batch(
    clock, engine, make, operation
):
    parent = await make.execution("leased", deadline=SECONDS)
    child = await make.execution("leased", parent=parent.id, with_parent=True)
    alive = await make.execution("leased")
    await clock.advance(SECONDS)
    leases = [parent.lease, child.lease, alive.lease]
    arguments = [["permanent"] * 3, ["no"] * 3] if operation == "fail_many" else []
    answers = await getattr(engine, operation)(leases, *arguments)
    states = [(await engine.row(one.id))["public_state"] for one in (parent, child)]
    if operation == "complete_many":
        # its result came in time, in the same call
        assert (answers[1].word, states) == ("completed", ["expired", "completed"])
    else:
        assert (answers[1].word, states) == ("not_active", ["expired", "cancelled"])
    assert answers[0].word == "not_active"
    assert answers[2].word not in ("not_active", "busy")


async def test_the_word_is_still_good_at_the_last_moment(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("leased", deadline=SECONDS, policy=TIMEOUT)
    await clock.advance(SECONDS - timedelta(microseconds=1))
    assert (await engine.renew(execution.lease)).word == "renewed"
    assert (await engine.complete(execution.lease)).word == "completed"


@pytest.mark.parametrize("state", ["waiting", "interrupted", "expired_lease"])
async def test_a_claim_ends_what_is_past_its_deadline_and_takes_what_is_behind_it(
    clock, engine, make, state
):
    await clock.freeze()
    day = timedelta(days=1)
    late, swept = [await make.execution(state, lane=lane, deadline=day) for lane in ("a", "b")]
    behind = await make.execution(lane="a")
    await clock.advance(2 * day)
    assert [lease.execution_id for lease in await engine.claim(1, lanes=["a"])] == [behind.id]
    assert (await engine.expire_executions())[0] == 1
    rows = [facts(await engine.row(one.id)) for one in (late, swept)]
    assert rows[0]["public_state"] == "expired"
    assert {name for name in rows[0] if rows[0][name] != rows[1][name]} <= TIMES
