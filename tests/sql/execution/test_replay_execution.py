"""replay_execution and retry_execution: what ended runs again, what waits goes on now."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from support.database import home
from support.factories import Engine, new_id, refused

ENDED = [
    "completed",
    "failed",
    "over_the_cap",
    "cancelled",
    "cancelled_unstarted",
    "expired",
    "timed_out",
]
UNFINISHED = ["waiting", "delayed", "leased", "expired_lease", "revoked", "held", "blocked"]


@pytest.mark.parametrize("state", ENDED)
async def test_every_ended_execution_can_be_replayed(engine, make, state):
    execution = await make.execution(state, lane="a")
    before = await engine.row(execution.id)
    answer = await engine.replay(execution.id, reason="again", actor="ann")
    row = await engine.row(execution.id)
    assert (answer.word, answer.public_state) == ("replayed", "waiting")
    assert row["attempt_state"] == "pending_replay_attempt"
    assert (row["retry_count"], row["reclaim_count"], row["replay_count"]) == (0, 0, 1)
    assert (row["result"], row["terminal_at"], row["cancelled_by"]) == (None, None, None)
    assert row["epoch"] == before["epoch"]
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["actor"]) == ("replayed", "ann")
    lease = await engine.take(execution.id, lanes=["a"])
    assert (lease.attempt_type, lease.attempt_index) == ("replay", before["total_attempt_count"])
    assert lease.epoch == before["epoch"] + 1


async def test_the_history_of_attempts_is_kept(engine, make):
    execution = await make.execution("failed", lane="a")
    await engine.replay(execution.id)
    lease = await engine.take(execution.id, lanes=["a"])
    await engine.complete(lease)
    (past,) = await engine.attempts(execution.id)
    assert (past["ended_as"], past["failure_reason"]) == ("ended_failure", "it broke")


@pytest.mark.parametrize("state", UNFINISHED)
async def test_a_live_execution_cannot_be_replayed(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    with refused("WF206"):
        await engine.replay(execution.id)
    assert await engine.snapshot() == before


async def test_the_limit_of_replays_is_the_policys(engine, make):
    execution = await make.execution("cancelled", lane="a", policy={"max_replay_count": 2})
    for _ in range(2):
        await engine.replay(execution.id)
        await engine.cancel(execution.id)
    with refused("WF212"):
        await engine.replay(execution.id)
    with refused("WF212"):
        await engine.retry(execution.id)
    assert (await engine.row(execution.id))["public_state"] == "cancelled"


async def test_without_a_policy_ten_replays_are_allowed(engine, make):
    execution = await make.execution("cancelled_unstarted")
    for _ in range(10):
        await engine.replay(execution.id)
        await engine.cancel(execution.id)
    with refused("WF212"):
        await engine.replay(execution.id)


async def test_a_deadline_that_has_passed_is_lifted(engine, make):
    execution = await make.execution("expired")
    await engine.replay(execution.id)
    assert (await engine.row(execution.id))["deadline_at"] is None
    assert (await engine.expire_executions())[0] == 0


async def test_a_deadline_to_come_stays_armed(engine, make, clock):
    execution = await make.execution("completed", lane="a", deadline=timedelta(hours=1))
    await engine.replay(execution.id)
    row = await engine.row(execution.id)
    assert row["due_at"] == row["deadline_at"] is not None
    await clock.advance(hours=1)
    assert (await engine.expire_executions())[0] == 1
    assert (await engine.row(execution.id))["public_state"] == "expired"


async def test_a_repeat_for_the_same_version_does_nothing(engine, make):
    execution = await make.execution("completed")
    version = (await engine.row(execution.id))["version"]
    await engine.replay(execution.id, if_version=version)
    await engine.cancel(execution.id)
    again = await engine.replay(execution.id, if_version=version)
    assert (again.word, again.public_state) == ("already_applied", "cancelled")
    assert (await engine.row(execution.id))["replay_count"] == 1


async def test_two_replays_at_once_replay_once(db, engine, make):
    execution = await make.execution("completed")
    version = (await engine.row(execution.id))["version"]
    others = [Engine(await db.connect()) for _ in range(4)]
    answers = await asyncio.gather(
        *(other.replay(execution.id, if_version=version) for other in others)
    )
    assert sorted(answer.word for answer in answers) == ["already_applied"] * 3 + ["replayed"]


async def test_retry_replays_what_has_ended(engine, make):
    execution = await make.execution("failed")
    assert (await engine.retry(execution.id)).word == "replayed"


@pytest.mark.parametrize("state", ["delayed", "retry_delayed", "delayed_by_worker"])
async def test_retry_makes_a_delayed_execution_due_now(engine, make, state):
    execution = await make.execution(state)
    attempt_state = (await engine.row(execution.id))["attempt_state"]
    answer = await engine.retry(execution.id, actor="ann")
    row = await engine.row(execution.id)
    assert answer.word == "promoted"
    assert (row["public_state"], row["attempt_state"]) == ("waiting", attempt_state)
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["actor"]) == ("promoted", "ann")


@pytest.mark.parametrize("state", ["held", "blocked"])
async def test_retry_unblocks_what_is_held(engine, make, state):
    execution = await make.execution(state)
    assert (await engine.retry(execution.id)).word == "unblocked"
    row = await engine.row(execution.id)
    assert (row["eligibility"], row["blocking_detail"]) == ("eligible_now", None)


@pytest.mark.parametrize("state", ["waiting", "leased", "expired_lease"])
async def test_retry_of_what_could_run_anyway_is_refused(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    with refused("WF205"):
        await engine.retry(execution.id)
    assert await engine.snapshot() == before


@pytest.mark.parametrize("operation", ["replay", "retry"])
async def test_bad_input_is_refused(db, engine, make, operation):
    execution = await make.execution("failed")
    before = await engine.snapshot()
    with refused("WF301"):
        await getattr(engine, operation)(new_id())
    with refused("WF301"):
        await getattr(Engine(db.conn, namespace="other"), operation)(execution.id)
    with refused("WF001", field="reason"):
        await getattr(engine, operation)(execution.id, reason="x" * 257)
    assert await engine.snapshot() == before


@pytest.mark.parametrize("view", ["execution_view", "execution_list"])
async def test_a_replay_clears_the_failure_of_the_execution(engine, make, view):
    """The attempt keeps it; the execution that waits again does not show it."""
    execution = await make.execution("failed")
    await engine.replay(execution.id)
    shown = await engine.connection.fetchrow(
        f"select failure_reason from ff.{view} where execution_id = $1", execution.id
    )
    assert shown["failure_reason"] is None
    attempt = await engine.connection.fetchrow(
        "select failure_reason from ff.attempt_view where execution_id = $1", execution.id
    )
    assert attempt["failure_reason"] == "it broke"


async def test_the_deadline_that_ended_it_unstarted_is_forgotten_by_a_replay(engine, make):
    """No attempt had failed: what completes after all has no failure to show."""
    execution = await make.execution("expired", lane="a")
    assert (await engine.row(execution.id))["failure_category"] == "execution_deadline"
    await engine.replay(execution.id)
    lease = await engine.take(execution.id, lanes=["a"])
    assert (await engine.complete(lease, b"1")).word == "completed"
    row = (await engine.results([execution.id]))[execution.id]
    assert (row["failure_class"], row["failure_category"], row["failure_reason"]) == (None,) * 3


async def test_the_failure_of_an_attempt_goes_with_it_into_the_history(engine, make):
    execution = await make.execution("failed", lane="a")
    await engine.replay(execution.id)
    await engine.take(execution.id, lanes=["a"])
    row = await engine.row(execution.id)
    assert (row["failure_class"], row["failure_reason"]) == (None, None)
    (past,) = await engine.attempts(execution.id)
    assert past["failure_reason"] == "it broke"


@pytest.mark.parametrize("limit", ["2.0", "2", "20e-1"])
async def test_a_limit_of_replays_is_a_number_however_it_is_written(engine, limit):
    submitted = await engine.submit(policy=f'{{"max_replay_count": {limit}}}')
    words = []
    for _ in range(2):
        await engine.cancel(submitted.id)
        words.append((await engine.replay(submitted.id)).word)
    await engine.cancel(submitted.id)
    with pytest.raises(Exception, match="max_replays_exhausted"):
        await engine.replay(submitted.id)
    assert words == ["replayed", "replayed"]


@pytest.mark.parametrize("lost", ["expired_lease", "revoked"])
async def test_what_was_cancelled_without_its_lease_is_replayed_as_a_new_attempt(
    engine, make, lost
):
    """No lease ended with it: the next one is claimed, not reclaimed (and no invariant minds)."""
    execution = await make.execution(lost, lane="a")
    await engine.cancel(execution.id)
    await engine.replay(execution.id)
    lease = await engine.take(execution.id, lanes=["a"])
    assert (lease.claim_kind, lease.attempt_type, lease.attempt_index) == ("fresh", "replay", 1)
    row = await engine.row(execution.id)
    assert row["reclaim_count"] == 0


async def test_an_edited_input_replaces_the_payload_and_is_recorded(engine, make, db):
    execution = await make.execution("completed")
    for number, payload in enumerate((b'"small"', b'"' + b"x" * 1000 + b'"', b"0"), start=1):
        answer = await engine.replay(execution.id, payload=payload, actor="ada", reason="typo")
        assert answer.word == "replayed"
        stored = await db.fetchval(
            f"select payload from ff.describe_execution('{home()}', null, $1)", execution.id
        )
        assert stored == payload
        (*_, event) = await engine.events(execution.id)
        assert (event["kind"], event["actor"]) == ("replayed", "ada")
        assert '"input": "edited"' in event["detail"]
        if number < 3:
            await engine.complete(await engine.take(execution.id))
    with refused("WF001"):
        await engine.replay(execution.id, payload=b"x" * 1_048_577)
