"""cancel_execution: ends an execution from anywhere, once, and tells its holder."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from support.factories import TTL, Engine, new_id, refused

ANOTHER = UUID("01234567-89ab-7def-8123-456789abcdef")

UNFINISHED = [
    "waiting",
    "delayed",
    "leased",
    "interrupted",
    "retry_delayed",
    "expired_lease",
    "reclaim_delayed",
    "revoked",
    "delayed_by_worker",
    "held",
    "blocked",
    "replayed",
]


@pytest.mark.parametrize("state", UNFINISHED)
async def test_an_operator_cancels_from_every_unfinished_state(engine, make, state):
    execution = await make.execution(state)
    before = await engine.row(execution.id)
    answer = await engine.cancel(execution.id, reason="not needed", actor="ann")
    row = await engine.row(execution.id)
    assert (answer.word, answer.public_state, answer.version) == (
        "cancelled",
        "cancelled",
        before["version"] + 1,
    )
    assert row["public_state"] == "cancelled"
    assert row["cancelled_by"] == "operator_override"
    assert row["cancellation_reason"] == "not needed"
    assert row["attempt_state"] == (
        "attempt_terminal"
        if before["attempt_state"] != "pending_first_attempt"
        else "pending_first_attempt"
    )
    assert row["due_at"] is None
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["outcome"], event["actor"]) == ("cancelled", "cancelled", "ann")


async def test_a_live_lease_is_taken_away_and_the_epoch_rises(engine, make):
    """The holder cannot complete any more, and the end is announced."""
    execution = await make.execution("leased")
    await engine.cancel(execution.id)
    row = await engine.row(execution.id)
    assert row["epoch"] == execution.lease.epoch + 1
    assert row["attempt_ended_as"] == "ended_cancelled"
    assert (await engine.complete(execution.lease)).word == "not_active"
    event = (await engine.events(execution.id))[-1]
    assert event["lease_id"] == execution.lease.lease_id


async def test_without_a_lease_no_lease_event_is_written(engine, make):
    execution = await make.execution("waiting")
    await engine.cancel(execution.id)
    assert (await engine.events(execution.id))[-1]["lease_id"] is None


async def test_an_expired_lease_does_not_end_a_second_time(engine, make):
    execution = await make.execution("expired_lease")
    await engine.cancel(execution.id)
    assert (await engine.events(execution.id))[-1]["lease_id"] is None
    assert (await engine.row(execution.id))["epoch"] == execution.lease.epoch


async def test_cancelling_twice_succeeds_and_writes_nothing(engine, make):
    execution = await make.execution("waiting")
    await engine.cancel(execution.id, reason="first")
    before = await engine.snapshot()
    answer = await engine.cancel(execution.id, reason="second")
    assert answer.word == "cancelled"
    assert await engine.snapshot() == before


@pytest.mark.parametrize("state", ["completed", "failed", "over_the_cap", "expired"])
async def test_another_end_is_named_and_stays(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    with refused("WF204"):
        await engine.cancel(execution.id)
    assert await engine.snapshot() == before


async def test_the_holder_cancels_with_its_fence(engine, make):
    execution = await make.execution("leased")
    answer = await engine.cancel_held(execution.lease, "changed my mind")
    assert answer.word == "cancelled"
    assert (await engine.row(execution.id))["cancelled_by"] == "lease_holder"


@pytest.mark.parametrize("source", ["lease_holder", "flow_cascade", "something else"])
async def test_whoever_is_no_operator_needs_a_fence_while_it_runs(engine, make, source):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    with refused("WF001", field="fence"):
        await engine.cancel(execution.id, source=source)
    with refused("WF001", field="fence"):
        await engine.cancel(execution.id, source=source, lease_id=execution.lease.lease_id)
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    "forged", [{"epoch": 99}, {"lease_id": ANOTHER}, {"attempt_id": ANOTHER}], ids=str
)
async def test_a_wrong_fence_cancels_nothing(engine, make, forged):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    assert (await engine.cancel_held(replace(execution.lease, **forged))).word == "stale_lease"
    assert await engine.snapshot() == before


async def test_a_holder_whose_lease_ran_out_is_refused_and_the_lease_is_marked(engine, make, clock):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await engine.cancel_held(execution.lease)).word == "lease_expired"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"


@pytest.mark.parametrize("state", ["interrupted", "retry_delayed", "delayed_by_worker", "held"])
async def test_a_former_holder_cancels_nothing(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    assert (await engine.cancel_held(execution.lease)).word == "not_active"
    assert await engine.snapshot() == before


async def test_other_sources_need_no_fence_while_it_waits(engine, make):
    execution = await make.execution("waiting")
    assert (await engine.cancel(execution.id, source="flow_cascade")).word == "cancelled"
    assert (await engine.row(execution.id))["cancelled_by"] == "flow_cascade"


async def test_an_unknown_execution_is_not_found(engine):
    with refused("WF301"):
        await engine.cancel(new_id())


async def test_a_foreign_namespace_finds_nothing(db, make, engine):
    execution = await make.execution("waiting")
    stranger = Engine(db.conn, namespace="other")
    with refused("WF301"):
        await stranger.cancel(execution.id)
    assert (await engine.row(execution.id))["public_state"] == "waiting"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("actor", {"actor": "x" * 257}),
        ("actor", {"actor": "a\nb"}),
        ("reason", {"reason": "\x07"}),
        ("source", {"source": ""}),
        ("source", {"source": None}),
        ("source", {"source": "y" * 257}),
    ],
)
async def test_words_that_cannot_be_stored_are_refused(engine, make, field, arguments):
    execution = await make.execution("waiting")
    with refused("WF001", field=field):
        await engine.cancel(execution.id, **arguments)


async def test_two_cancels_at_once_both_succeed_with_one_event(db, engine, make):
    execution = await make.execution("leased")
    others = [Engine(await db.connect()) for _ in range(4)]
    answers = await asyncio.gather(*(other.cancel(execution.id) for other in others))
    assert {answer.word for answer in answers} == {"cancelled"}
    assert (await engine.kinds(execution.id)).count("cancelled") == 1
    assert (await engine.row(execution.id))["epoch"] == execution.lease.epoch + 1


async def test_the_holder_is_told_by_a_hint(db, engine, make):
    execution = await make.execution("leased")
    listener = await db.connect()
    heard: asyncio.Queue[str] = asyncio.Queue()
    await listener.add_listener("ff_lost", lambda *told: heard.put_nowait(told[3]))
    worker = (await engine.row(execution.id))["worker_instance_id"]
    await engine.cancel(execution.id)
    async with asyncio.timeout(60):
        told = await heard.get()
    assert told == worker


async def test_a_failure_of_an_earlier_attempt_stays_readable(engine, make):
    execution = await make.execution("retry_delayed")
    await engine.cancel(execution.id, reason="enough")
    row = await engine.row(execution.id)
    assert row["failure_reason"] == "it broke"
    assert row["attempt_ended_as"] == "ended_failure"
    assert row["cancellation_reason"] == "enough"


async def test_a_cancelled_execution_is_kept_as_long_as_its_policy_says(engine, make, clock):
    execution = await make.execution("waiting", policy={"retention_ms": 60_000})
    await engine.cancel(execution.id)
    row = await engine.row(execution.id)
    assert row["trim_at"] - row["terminal_at"] == timedelta(minutes=1)


@pytest.mark.parametrize("state", ["waiting", "delayed", "leased", "expired_lease", "blocked"])
async def test_a_cancellation_is_announced_as_an_end(db, engine, make, state):
    execution = await make.execution(state)
    await engine.cancel(execution.id)
    ends = await db.fetch(
        "select outcome, namespace from ff.completion_feed where execution_id = $1", execution.id
    )
    assert [tuple(end) for end in ends] == [("cancelled", "test")]


async def test_a_holder_that_cancels_announces_it_too(db, engine, make):
    execution = await make.execution("leased")
    assert (await engine.cancel_held(execution.last_lease)).word == "cancelled"
    feed = "select outcome from ff.completion_feed where execution_id = $1"
    assert [end["outcome"] for end in await db.fetch(feed, execution.id)] == ["cancelled"]


async def test_a_cancellation_takes_the_grant_along(engine, make):
    """Of all that an end has to close, this is what there is so far."""
    waiting, lost = await make.execution("waiting"), await make.execution("expired_lease")
    assert (await engine.grant(waiting.id)).word == "granted"
    assert (await engine.grant_reclaim(lost.id)).word == "granted"
    for execution in (waiting, lost):
        await engine.cancel(execution.id)
    assert await engine.grants() == []
