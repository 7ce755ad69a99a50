"""ff.set_lane: a lane's state holds for what comes and for what waits already."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from support.database import partitions
from support.factories import LANE, NAMESPACE, Engine, refused
from support.hints import hints

HOUR = timedelta(hours=1)


async def set_lane(engine: Engine, lane: str | None = LANE, **arguments: Any) -> Any:
    given = {"namespace": NAMESPACE, "lane": lane} | arguments
    names = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(given, 1))
    return await engine.connection.fetchrow(
        f"select s.* from ff.set_lane({names}) s", *given.values()
    )


@pytest.mark.parametrize(
    ("state", "takes", "gives"),
    [
        ("active", True, True),
        ("paused", True, False),
        ("draining", False, True),
        ("disabled", False, False),
    ],
)
async def test_a_state_decides_what_is_taken_and_what_is_given(engine, state, takes, gives):
    waiting = await engine.submit()
    await set_lane(engine, state=state, reason="a test", actor="me")
    late = await engine.submit()
    if takes:
        assert late.word == "created"
    else:
        assert late.word == "lane_closed"
        assert late.detail == {"field": "lane", "lane": LANE, "state": state}
    leases = await engine.claim(10)
    assert [lease.execution_id for lease in leases] == (
        [] if not gives else [waiting.id, late.id] if takes else [waiting.id]
    )
    # the state is looked up, never stored on rows
    row = await engine.row(waiting.id)
    assert row["blocking_reason"] == ("none" if gives else "waiting_for_worker")


async def test_another_lane_is_not_touched(engine):
    await engine.submit()
    other = await engine.submit(route=await engine.register(lane="other"))
    await set_lane(engine, state="disabled")
    assert [lease.execution_id for lease in await engine.claim(10)] == [other.id]


@pytest.mark.parametrize("state", ["paused", "disabled"])
async def test_a_lease_that_runs_out_in_a_closed_lane_is_reclaimed_when_it_opens(
    engine, make, state
):
    execution = await make.execution("expired_lease", lane=LANE)
    await set_lane(engine, state=state)
    assert await engine.claim(10) == []
    await set_lane(engine, state="active")
    assert (await engine.take(execution.id)).claim_kind == "reclaimed"


async def test_work_that_runs_goes_on_in_a_lane_that_was_closed(engine, make):
    execution = await make.execution("leased", lane=LANE)
    await set_lane(engine, state="disabled")
    assert (await engine.renew(execution.last_lease)).word == "renewed"
    assert (await engine.complete(execution.last_lease)).word == "completed"


async def test_a_pause_until_a_time_is_over_at_that_time(clock, engine):
    now = await clock.freeze()
    await engine.submit()
    await set_lane(engine, state="paused", resumes_at=now + HOUR)
    await clock.advance(HOUR - timedelta(microseconds=1))
    assert await engine.claim(1) == []
    await clock.advance(timedelta(microseconds=1))
    assert len(await engine.claim(1)) == 1


async def test_a_change_is_written_down_and_a_repeat_changes_nothing(clock, engine):
    await clock.freeze()
    await engine.register()
    until = await clock.now() + HOUR
    first = await set_lane(
        engine, state="paused", resumes_at=until, reason="flood", actor="operator"
    )
    assert dict(first) == {
        "outcome": "changed",
        "namespace": "test",
        "lane": LANE,
        "state": "paused",
        "resumes_at": until,
        "retention": None,
        "reason": "flood",
        "changed_by": "operator",
        "changed_at": await clock.now(),
    }
    # even when the pause is over by now
    await clock.advance(2 * HOUR)
    again = await set_lane(
        engine, state="paused", resumes_at=until, reason="flood", actor="operator"
    )
    assert dict(again) == dict(first) | {"outcome": "unchanged"}


async def test_resuming_ends_the_pause_and_its_time(clock, engine):
    await engine.register()
    await set_lane(engine, state="paused", resumes_at=await clock.now() + HOUR, reason="flood")
    row = await set_lane(engine, state="active")
    assert (row["state"], row["resumes_at"], row["reason"]) == ("active", None, None)


async def test_the_retention_is_left_alone_unless_it_is_given_or_cleared(engine):
    await engine.register()
    row = await set_lane(engine, retention=HOUR)
    assert (row["state"], row["retention"]) == ("active", HOUR)
    row = await set_lane(engine, state="paused", reason="flood")
    assert (row["state"], row["retention"]) == ("paused", HOUR)
    row = await set_lane(engine, clear_retention=True)
    assert (row["state"], row["retention"], row["reason"]) == ("paused", None, "flood")
    row = await set_lane(engine, state="active", retention=timedelta(0))
    assert (row["state"], row["retention"]) == ("active", timedelta(0))


async def test_the_list_of_lanes_shows_the_change(clock, engine):
    await clock.freeze()
    await engine.submit()
    await set_lane(engine, state="draining", retention=HOUR, reason="moving", actor="operator")
    row = await engine.connection.fetchrow("select * from ff.lane_depth")
    assert (row["state"], row["waiting"], row["retention"]) == ("draining", 1, HOUR)
    assert (row["reason"], row["changed_by"], row["changed_at"]) == (
        "moving",
        "operator",
        await clock.now(),
    )


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("lane", {"lane": None, "state": "active"}),
        ("state", {"state": "asleep"}),
        ("state", {}),
        ("resumes_at", {"state": "active", "resumes_at": "later"}),
        ("resumes_at", {"resumes_at": "later", "retention": HOUR}),
        ("resumes_at", {"state": "paused", "resumes_at": "now"}),
        ("retention", {"retention": timedelta(seconds=-1)}),
        ("retention", {"retention": timedelta(days=40_000)}),
        ("clear_retention", {"retention": HOUR, "clear_retention": True}),
        ("clear_retention", {"state": "active", "clear_retention": None}),
        ("reason", {"state": "active", "reason": "x" * 257}),
        ("actor", {"state": "active", "actor": "a\nb"}),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused_by_its_field(
    clock, engine, field, arguments
):
    now = await clock.freeze()
    await engine.register()
    times = {"later": now + HOUR, "now": now}
    arguments = {
        name: times.get(value, value) if isinstance(value, str) else value
        for name, value in arguments.items()
    }
    with refused("WF001", field=field):
        await set_lane(engine, **arguments)
    row = await engine.connection.fetchrow("select * from ff.lane")
    assert (row["state"], row["changed_at"], row["retention"]) == ("active", None, None)


async def test_a_lane_nobody_knows_is_not_found(engine):
    with refused("WF303", message="lane_not_found", lane="nowhere"):
        await set_lane(engine, "nowhere", state="paused")


async def test_a_lane_that_opens_tells_its_workers(db, engine):
    await engine.register()
    await set_lane(engine, state="paused")

    async def heard(state: str) -> list[str]:
        return await hints(db, "ff_ready", lambda: set_lane(engine, state=state))

    told = [f"{partition} test {LANE}" for partition in range(partitions())]
    assert await heard("active") == told
    assert await heard("active") == []
    assert await heard("disabled") == []
    assert await heard("draining") == told


async def test_a_claim_and_a_pause_at_once_end_in_one_of_two_orders(db):
    claiming, pausing = Engine(await db.connect()), Engine(await db.connect())
    won = set()
    for _ in range(30):
        await set_lane_or_register(pausing, "active")
        submitted = await claiming.submit()
        leases, _ = await asyncio.gather(claiming.claim(1), set_lane(pausing, state="paused"))
        won.add(len(leases))
        row = await claiming.row(submitted.id)
        assert row["ownership"] == ("leased" if leases else "unowned")
        # whatever the order was, from now on nothing is given
        assert await claiming.claim(1) == []
        await set_lane(pausing, state="active")
        for lease in leases or await claiming.claim(1):
            assert (await claiming.complete(lease)).word == "completed"
    assert won <= {0, 1}


async def set_lane_or_register(engine: Engine, state: str) -> None:
    await engine.register()
    await set_lane(engine, state=state)


async def test_a_pause_that_waits_for_its_commit_is_not_seen_yet(db, engine):
    submitted = await engine.submit()
    other = Engine(await db.connect())
    async with other.connection.transaction():
        await set_lane(other, state="paused")
        assert [lease.execution_id for lease in await engine.claim(1)] == [submitted.id]
    late = await engine.submit()
    assert late.word == "created"
    assert await engine.claim(1) == []


async def test_a_lane_of_one_namespace_is_not_that_of_another(engine):
    """Two tenants use one name: neither pauses the other, nor hears of it."""
    other = Engine(engine.connection, namespace="other")
    for one in (engine, other):
        await one.submit()
    await set_lane(engine, state="paused", retention=HOUR)
    assert await engine.claim() == []
    assert len(await other.claim()) == 1
    rows = await engine.connection.fetch("select * from ff.list_lanes('other')")
    assert [(row["lane"], row["state"], row["retention"]) for row in rows] == [
        (LANE, "active", None)
    ]


async def test_lanes_are_listed_in_the_order_of_their_bytes(engine):
    for lane in ("b", "B", "a", "~", "a b", "Z"):
        await engine.register(lane=lane)
    rows = await engine.connection.fetch("select lane from ff.list_lanes('test')")
    assert [row["lane"] for row in rows] == ["B", "Z", "a", "a b", "b", "~"]
