"""The views are what readers see: executions, attempts, events and lanes in words."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from support.factories import STATES, TTL, Item
from support.sabotage import unwitnessed


async def one(db, view, execution):
    (row,) = await db.fetch(f"select * from ff.{view} where execution_id = $1", execution.id)
    return row


async def many(db, view, execution, order):
    return await db.fetch(
        f"select * from ff.{view} where execution_id = $1 order by {order}", execution.id
    )


# ff.execution_view


async def test_an_execution_is_shown_whole(db, clock, engine, make):
    now = await clock.freeze()
    route = await engine.register(lane="mail", task="mail.send", capabilities="smtp,gpu")
    execution = await make.execution(
        "waiting",
        route=route,
        priority=7,
        payload=b"x" * 300,
        encoding="json",
        tags={"team.a": "b"},
        policy={"retry_policy": {}},
        creator="alice",
        deadline_at=now + timedelta(hours=1),
    )
    row = await one(db, "execution_view", execution)
    assert (row["lane"], row["task"], row["capabilities"]) == ("mail", "mail.send", ["gpu", "smtp"])
    assert (row["namespace"], row["priority"], row["public_state"]) == ("test", 7, "waiting")
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "runnable",
        "unowned",
        "eligible_now",
    )
    assert (row["payload"], row["payload_encoding"]) == (b"x" * 300, "json")
    assert json.loads(row["tags"]) == {"team.a": "b"}
    assert json.loads(row["policy"]) == {"retry_policy": {}}
    assert (row["creator"], row["created_at"]) == ("alice", now)
    assert row["deadline_at"] == now + timedelta(hours=1)
    assert row["attempt_id"] is row["lease_id"] is row["result"] is row["terminal_at"] is None


async def test_an_execution_at_work_is_shown_with_its_lease(db, make):
    execution = await make.execution("leased", payload=b"small")
    lease = execution.last_lease
    row = await one(db, "execution_view", execution)
    assert (row["lease_id"], row["epoch"], row["attempt_id"]) == (
        lease.lease_id,
        lease.epoch,
        lease.attempt_id,
    )
    assert (row["worker_id"], row["worker_instance_id"]) == ("pool", "pool-1")
    assert (row["lease_expires_at"], row["payload"]) == (lease.lease_expires_at, b"small")
    assert (row["attempt_type"], row["total_attempt_count"], row["cause"]) == (
        "initial",
        1,
        "claim",
    )


async def test_an_ended_execution_is_shown_with_its_result_or_failure(db, engine, make):
    done = await make.execution("leased")
    await engine.complete(done.last_lease, b"[1]", encoding="json")
    row = await one(db, "execution_view", done)
    assert (row["result"], row["result_encoding"], row["outcome"]) == (b"[1]", "json", "success")
    failed = await make.execution("failed")
    row = await one(db, "execution_view", failed)
    assert (row["failure_class"], row["failure_reason"]) == ("permanent", "it broke")


@pytest.mark.parametrize("state", STATES)
async def test_every_state_is_shown_once_by_every_view(db, engine, make, state):
    execution = await make.execution(state)
    row = await engine.row(execution.id)
    for view in ("execution_view", "execution_list"):
        shown = await one(db, view, execution)
        assert shown["public_state"] == row["public_state"]
    attempts = await many(db, "attempt_view", execution, "attempt_index")
    assert [a["attempt_index"] for a in attempts] == list(range(row["total_attempt_count"]))
    events = await many(db, "event_view", execution, "version")
    assert [event["version"] for event in events] == list(range(1, row["version"] + 1))
    ends = await many(db, "completion_feed", execution, "version")
    expected = [(row["outcome"], row["version"])] if row["phase"] == "terminal" else []
    if state == "replayed":
        expected = [("success", row["version"] - 1)]  # how it ended before
    assert [(end["outcome"], end["version"]) for end in ends] == expected


# ff.execution_list


async def test_a_list_shows_where_an_execution_stands(db, engine, make):
    execution = await make.execution("retry_delayed", priority=3, lane="mail")
    row = await one(db, "execution_list", execution)
    stored = await engine.row(execution.id)
    assert (row["lane"], row["task"], row["priority"]) == ("mail", "tests.work", 3)
    assert (row["public_state"], row["blocking_reason"]) == ("delayed", "waiting_for_retry_backoff")
    assert (row["retry_count"], row["total_attempt_count"], row["reclaim_count"]) == (1, 1, 0)
    assert (row["delayed_until"], row["failure_reason"]) == (stored["delayed_until"], "it broke")
    assert not {"payload", "result"} & set(row.keys())


# ff.attempt_view


async def test_attempts_are_one_list_from_history_and_row(db, clock, engine, make):
    execution = await make.execution("retried")
    first = (await engine.attempts(execution.id))[0]
    await clock.advance(TTL)
    await engine.expire()
    third = await engine.take(execution.id, worker="other", instance="other-1")
    await engine.complete(third)
    attempts = await many(db, "attempt_view", execution, "attempt_index")
    assert [a["attempt_type"] for a in attempts] == ["initial", "retry", "reclaim"]
    assert [a["lifecycle"] for a in attempts] == [
        "ended_failure",
        "interrupted_reclaimed",
        "ended_success",
    ]
    assert [a["epoch"] for a in attempts] == [1, 2, 3]
    assert [a["previous_attempt_index"] for a in attempts] == [None, 0, 1]
    assert [a["attempt_reason"] for a in attempts] == [
        None,
        "transient",
        "lease_expired_reclaimable",
    ]
    assert [a["worker_instance_id"] for a in attempts] == ["pool-1", "pool-1", "other-1"]
    assert [a["lease_id"] for a in attempts] == [
        first["last_lease_id"],
        execution.last_lease.lease_id,
        third.lease_id,
    ]
    assert (attempts[0]["failure_class"], attempts[0]["failure_reason"]) == (
        "transient",
        "it broke",
    )
    assert all(a["ended_at"] >= a["started_at"] for a in attempts)


@pytest.mark.parametrize(
    ("state", "lifecycle", "cause"),
    [
        ("leased", "started", None),
        ("resumed", "started", None),
        ("interrupted", "suspended", "worker_shutdown"),
        ("expired_lease", "suspended", "lease_expired"),
        ("retry_delayed", "ended_failure", None),
        ("completed", "ended_success", None),
        ("failed", "ended_failure", None),
        ("over_the_cap", "interrupted_reclaimed", "lease_expired"),
    ],
)
async def test_the_latest_attempt_tells_whether_it_runs(db, make, state, lifecycle, cause):
    execution = await make.execution(state)
    latest = (await many(db, "attempt_view", execution, "attempt_index"))[-1]
    assert (latest["lifecycle"], latest["pause_cause"]) == (lifecycle, cause)
    assert (latest["ended_at"] is not None) == (lifecycle not in ("started", "suspended"))
    assert (latest["worker_id"], latest["worker_instance_id"]) == ("pool", "pool-1")
    assert latest["lease_id"] == execution.last_lease.lease_id


async def test_an_execution_that_was_never_claimed_has_no_attempt(db, make):
    execution = await make.execution("waiting")
    assert await many(db, "attempt_view", execution, "attempt_index") == []


# ff.event_view and the feeds


async def test_events_are_shown_with_lane_and_task(db, make):
    execution = await make.execution("failed", lane="mail")
    events = await many(db, "event_view", execution, "version")
    assert [event["kind"] for event in events] == ["submitted", "claimed", "failed"]
    assert {(event["lane"], event["task"], event["namespace"]) for event in events} == {
        ("mail", "tests.work", "test")
    }
    assert [event["outcome"] for event in events] == [None, None, "failed"]
    assert json.loads(events[-1]["detail"]) == {"class": "permanent"}


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("waiting", []),
        ("leased", ["acquired"]),
        ("completed", ["acquired", "revoked"]),
        ("failed", ["acquired", "revoked"]),
        ("retry_delayed", ["acquired", "revoked"]),
        ("resumed", ["acquired", "revoked", "acquired"]),
        ("expired_lease", ["acquired", "expired"]),
        ("reclaimed", ["acquired", "expired", "reclaimed"]),
    ],
)
async def test_the_lease_feed_tells_how_leases_begin_and_end(db, make, state, told):
    execution = await make.execution(state)
    events = await many(db, "lease_feed", execution, "version")
    assert [event["lease_event"] for event in events] == told
    assert all(event["worker_instance_id"] == "pool-1" for event in events)


async def test_the_operator_feed_is_empty_without_operators(db, make):
    for state in ("completed", "retried"):
        await make.execution(state)
    assert await db.fetch("select * from ff.operator_feed") == []


# ff.lane_depth


async def test_lanes_are_shown_with_what_waits_in_them(db, engine, make):
    mail = await engine.register(lane="mail")
    other = await engine.register(lane="mail", task="other")
    empty = await engine.register(lane="empty")
    await engine.submit_many(
        [Item(route=mail)] * 4 + [Item(route=other)] * 3 + [Item(delay=TTL, route=mail)]
    )
    await engine.claim(2, lanes=["mail"])
    await db.execute("update ff.lane set state = 'paused' where lane = 'mail'")
    rows = await db.fetch("select * from ff.lane_depth order by lane")
    assert [(row["lane"], row["state"], row["waiting"]) for row in rows] == [
        ("empty", "active", 0),
        ("mail", "paused", 5),
    ]
    assert empty


async def test_a_deep_lane_is_counted_up_to_ten_thousand(db, engine):
    routes = [await engine.register(task=task) for task in ("a", "b")]
    # the witness would look at each row; its own tests do that
    async with unwitnessed(db.conn):
        for n in range(10):
            await engine.submit_many([Item(route=routes[n % 2])] * 1000)
        assert await db.fetchval("select waiting from ff.lane_depth") == 10000
        await engine.submit_many([Item(route=routes[0])] * 1000)
    assert await db.fetchval("select waiting from ff.lane_depth") == 10001
