"""Rules of the operations that no file of a noun shows: found by reading the list line by line."""

from __future__ import annotations

import pytest


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


@pytest.mark.parametrize("state", ["draining", "disabled"])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_repeat_is_told_of_what_it_stored_though_the_lane_was_closed_since(
    db, engine, state, key
):
    """The answer got lost and the lane was closed: what is stored is stored."""
    item = {"key": key, "fingerprint": b"f" if key else None}
    first = await engine.submit(**item)
    await db.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => 'default', p_state => $1)", state
    )
    before = await engine.snapshot()
    again = await engine.submit(id=first.id, **item)
    assert (again.word, again.id, again.detail) == ("duplicate", first.id, None)
    assert (await engine.submit()).word == "lane_closed"
    assert (await engine.within("other").submit(id=first.id)).word == "lane_closed"
    assert await engine.snapshot() == before


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
