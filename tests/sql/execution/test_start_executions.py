"""ff.start_executions: on whom a crash is blamed, and what a suspect comes to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from support.factories import TTL, Item, refused


class Crashes:
    """Claims one execution again and again and lets its worker vanish."""

    def __init__(self, clock, engine, execution_id, **claim):
        self.clock, self.engine, self.id = clock, engine, execution_id
        self.claim = {"reports_starts": True} | claim

    async def take(self):
        row = await self.engine.row(self.id)
        if row["reclaim_at"]:
            await self.clock.set(row["reclaim_at"])
            await self.engine.promote()
        return await self.engine.take(self.id, **self.claim)

    async def crash(self, start=None):
        """One lease that is lost; `start` is how its run was said to start: beside, alone."""
        lease = await self.take()
        if start is not None:
            assert (await self.engine.start(lease, alone=start == "alone")).word == "started"
        await self.clock.advance(TTL)
        await self.engine.expire()
        return lease

    async def counts(self):
        row = await self.engine.row(self.id)
        return row["crash_count"], row["lone_crash_count"], row["company_count"]


@pytest.fixture
async def crashes(clock, engine):
    (created,) = await engine.submit_many([Item(max_reclaims=4)])
    return Crashes(clock, engine, created.id)


async def test_the_first_crash_is_blamed_on_all_that_its_worker_held(crashes):
    await crashes.crash()
    assert await crashes.counts() == (1, 0, 0)
    assert (await crashes.take()).crash_count == 1
    assert await crashes.counts() == (1, 0, 1)


async def test_what_was_claimed_ahead_and_not_started_is_not_suspected(crashes):
    for _ in range(10):
        await crashes.crash()
    assert await crashes.counts() == (1, 0, 9)
    lease = await crashes.take()
    row = await crashes.engine.row(crashes.id)
    assert (lease.crash_count, row["reclaim_count"], row["company_count"]) == (1, 10, 10)


async def test_two_crashes_that_it_had_started_in_make_a_suspect(crashes):
    await crashes.crash()
    await crashes.crash("beside")
    assert (await crashes.take()).crash_count == 2
    row = await crashes.engine.row(crashes.id)
    assert (row["reclaim_count"], row["company_count"]) == (2, 2)


async def test_a_worker_that_does_not_say_when_it_starts_is_taken_to_start_at_once(crashes):
    crashes.claim = {}
    for count in range(1, 5):
        await crashes.crash()
        assert await crashes.counts() == (count, 0, 0)


@pytest.mark.parametrize("max_reclaims", [1, 4, 20])
async def test_a_suspect_that_crashes_alone_three_times_fails_whatever_its_limit(
    clock, engine, max_reclaims
):
    (created,) = await engine.submit_many([Item(max_reclaims=max_reclaims)])
    crashes = Crashes(clock, engine, created.id)
    await crashes.crash()
    await crashes.crash("beside")
    lone = 0
    while (await engine.row(created.id))["phase"] != "terminal":
        row = await engine.row(created.id)
        if row["reclaim_at"]:
            await clock.set(row["reclaim_at"])
            await engine.promote()
        if lease := await engine.claim_one(reports_starts=True):
            lone += 1
            await engine.start(lease, alone=True)
            await clock.advance(TTL)
            await engine.expire()
    row = await engine.row(created.id)
    assert (row["public_state"], lone) == ("failed", min(max_reclaims + 1, 3))
    if lone == 3:
        assert row["failure_category"] == "crashed_alone"
        assert row["failure_reason"] == (
            "its worker vanished 3 times while it ran alone in its process"
        )
    else:
        assert row["failure_category"] == "reclaim_cap_exceeded"


async def test_the_third_crash_alone_is_not_waited_for(crashes):
    await crashes.crash()
    await crashes.crash("beside")
    for _ in range(3):
        await crashes.crash("alone")
    assert (await crashes.engine.row(crashes.id))["reclaim_at"] is None
    assert await crashes.engine.claim() == []
    assert (await crashes.engine.row(crashes.id))["public_state"] == "failed"


async def test_a_reclaim_grant_ends_what_crashed_alone_three_times(crashes):
    await crashes.crash()
    await crashes.crash("beside")
    for _ in range(2):
        await crashes.crash("alone")
    lease = await crashes.take()
    await crashes.engine.start(lease, alone=True)
    await crashes.clock.advance(TTL)
    assert (await crashes.engine.grant_reclaim(crashes.id)).word == "reclaim_cap_exceeded"
    assert (await crashes.engine.row(crashes.id))["failure_category"] == "crashed_alone"


async def test_company_alone_never_reaches_the_limit_of_reclaims(crashes):
    await crashes.crash()
    for _ in range(8):
        await crashes.crash()
    lease = await crashes.take()
    assert (await crashes.engine.start(lease)).word == "started"
    assert (await crashes.engine.complete(lease)).word == "completed"


async def test_the_crash_of_a_suspect_beside_others_counts_towards_its_limit(crashes):
    await crashes.crash()
    await crashes.crash("beside")
    for _ in range(5):
        await crashes.crash("beside")
    row = await crashes.engine.row(crashes.id)
    await crashes.clock.set(row["reclaim_at"])
    await crashes.engine.promote()
    assert await crashes.engine.claim() == []
    row = await crashes.engine.row(crashes.id)
    assert (row["public_state"], row["failure_category"]) == ("failed", "reclaim_cap_exceeded")
    assert row["reclaim_count"] - row["company_count"] == 4


async def test_a_limit_of_no_reclaims_is_kept_even_in_company(clock, engine):
    (created,) = await engine.submit_many([Item(max_reclaims=0)])
    await Crashes(clock, engine, created.id).crash()
    assert await engine.claim() == []
    assert (await engine.row(created.id))["public_state"] == "failed"


@pytest.mark.parametrize(
    ("act", "crash_count"),
    [
        ("complete", 0),
        ("fail", 0),
        ("delay", 4),
        ("wait_children", 4),
        ("hold", 4),
        ("continue_as", 0),
        ("release", 4),
        ("revoke", 4),
    ],
)
async def test_only_an_attempt_that_comes_to_its_end_clears_the_suspect(crashes, act, crash_count):
    await crashes.crash()
    await crashes.crash("beside")
    await crashes.crash("alone")
    await crashes.crash("alone")
    lease = await crashes.take()
    await crashes.engine.start(lease, alone=True)
    if act == "revoke":
        await crashes.engine.revoke(crashes.id)
    else:
        await getattr(crashes.engine, act)(lease)
    assert (await crashes.counts())[:2] == (crash_count, crash_count // 2)


async def test_a_poison_that_sleeps_between_its_crashes_meets_the_limit(crashes):
    while (await crashes.engine.row(crashes.id))["phase"] != "terminal":
        lease = await crashes.take()
        await crashes.engine.start(lease, alone=lease.crash_count > 1)
        await crashes.engine.delay(lease)
        await crashes.clock.set((await crashes.engine.row(crashes.id))["delayed_until"])
        await crashes.engine.promote()
        await crashes.crash("alone" if lease.crash_count > 1 else "beside")
        assert (await crashes.counts())[0] < 6
        await crashes.clock.advance(minutes=5)
        await crashes.engine.promote()
        if (await crashes.counts())[1] == 3:
            assert await crashes.engine.claim() == []
    assert (await crashes.engine.row(crashes.id))["failure_category"] == "crashed_alone"


LIMIT = timedelta(seconds=10)


@pytest.mark.parametrize("is_put_off", [False, True])
async def test_the_time_of_the_attempt_of_a_suspect_runs_from_its_start_on(
    clock, engine, is_put_off
):
    policy = {"timeout_policy": {"attempt_timeout_ms": 10_000}}
    (created,) = await engine.submit_many([Item(policy=policy)])
    crashes = Crashes(clock, engine, created.id)
    await clock.freeze()
    await crashes.crash()
    lease = await crashes.take()
    assert lease.attempt_deadline_at is None
    await clock.advance(2 * LIMIT)
    assert (await engine.expire_executions())[0] == 0
    if is_put_off:
        await engine.delay(lease)
        await clock.set((await engine.row(created.id))["delayed_until"])
        await engine.promote()
        lease = await crashes.take()
    now = await clock.now()
    for alone in (True, False):
        assert (await engine.start(lease, alone=alone)).word == "started"
        assert (await engine.row(created.id))["attempt_deadline_at"] == now + LIMIT
        await clock.advance(LIMIT / 4)
    await engine.delay(lease)
    assert (await engine.row(created.id))["attempt_time_left"] == LIMIT / 2
    await clock.set((await engine.row(created.id))["delayed_until"])
    await engine.promote()
    lease = await crashes.take()
    await engine.start(lease)
    await clock.advance(LIMIT / 2)
    assert (await engine.expire_executions())[0] == 1
    assert (await engine.row(created.id))["public_state"] == "expired"


async def test_a_suspect_that_is_put_off_before_its_start_stays_one(crashes):
    await crashes.crash()
    await crashes.crash("beside")
    await crashes.engine.delay(await crashes.take())
    assert await crashes.counts() == (2, 0, 2)


async def test_a_replay_begins_without_crashes(crashes):
    await crashes.crash()
    await crashes.crash("beside")
    lease = await crashes.take()
    await crashes.engine.fail(lease, "permanent")
    await crashes.engine.replay(crashes.id)
    assert await crashes.counts() == (0, 0, 0)


async def test_the_last_word_about_the_start_counts(crashes):
    """A worker that takes other work beside a long run says so."""
    await crashes.crash()
    await crashes.crash("beside")
    lease = await crashes.take()
    for alone in (True, True, False):
        assert (await crashes.engine.start(lease, alone=alone)).word == "started"
    await crashes.clock.advance(TTL)
    await crashes.engine.expire()
    assert await crashes.counts() == (3, 0, 2)


async def test_a_start_is_no_transition(engine, make):
    execution = await make.execution("leased")
    before = await engine.row(execution.id)
    assert (await engine.start(execution.lease)).word == "started"
    after = await engine.row(execution.id)
    assert after["lease_start"] == "beside"
    assert (after["version"], after["transitioned_at"]) == (
        before["version"],
        before["transitioned_at"],
    )
    assert await engine.kinds(execution.id) == ["submitted", "claimed"]


async def test_each_execution_of_a_batch_gets_its_own_answer(engine, make):
    good = await make.execution("leased")
    ended = await make.execution("completed")
    forged = replace(good.lease, execution_id=uuid4())
    answers = await engine.start_many([good.lease, ended.lease, forged, good.lease])
    words = [answer.word for answer in answers]
    assert words == ["started", "not_active", "not_found", "duplicate"]


async def test_whether_it_is_alone_must_be_said(engine, make):
    execution = await make.execution("leased")
    with refused("WF001", message="invalid_input", field="are_alone"):
        await engine.start(execution.lease, alone=None)
