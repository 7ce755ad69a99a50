"""ff.read_traffic: how busy the lanes are, from a bounded number of rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from support.database import home
from support.factories import Engine, Item, refused


async def traffic(engine: Engine, **arguments: Any) -> dict[str, Any]:
    given = ", ".join(f"p_{name} => ${i}" for i, name in enumerate(arguments, 1))
    rows = await engine.connection.fetch(
        f"select t.* from ff.read_traffic('{home()}'{', ' if given else ''}{given}) t",
        *arguments.values(),
    )
    return {row["lane"]: row for row in rows}


async def test_what_waits_is_delayed_and_runs_is_counted_by_lane(clock, engine, make):
    await clock.freeze()
    # What is claimed must be alone in its lane.
    for state in ("completed", "failed"):
        await make.execution(state, lane="mail")
    await make.execution("leased", lane="mail", ttl=timedelta(hours=3))
    for state in ("expired_lease", "delayed", "waiting", "waiting"):
        await make.execution(state, lane="mail")
    await engine.submit(route=await engine.register(lane="print"))

    lanes = await traffic(engine)

    counts = [lanes["mail"][name] for name in ("waiting", "delayed", "active")]
    assert counts == [2, 1, 2]
    assert [lanes["print"][name] for name in ("waiting", "delayed", "active")] == [1, 0, 0]
    # Nobody runs the one whose lease ran out.
    assert (lanes["mail"]["workers"], lanes["mail"]["running"]) == (["pool-1"], [1])
    assert not lanes["mail"]["is_more_waiting"]
    assert not lanes["mail"]["is_more_timed"]


async def test_rates_are_of_the_window(clock, engine, make):
    await clock.freeze()
    await make.execution("completed", lane="mail")
    await clock.advance(seconds=11)
    await make.execution("completed", lane="mail")
    await make.execution("failed", lane="mail")

    lane = (await traffic(engine))["mail"]

    assert (lane["submitted"], lane["completed"], lane["failed"]) == (2, 1, 1)
    assert lane["seconds"] == 10
    longer = (await traffic(engine, window=timedelta(minutes=1)))["mail"]
    assert (longer["submitted"], longer["completed"], longer["seconds"]) == (3, 2, 60)


async def test_counts_stop_and_say_so(clock, engine):
    await clock.freeze()
    route = await engine.register(lane="mail")
    await engine.submit_many([Item(route=route) for _ in range(101)])
    await engine.submit_many([Item(route=route, delay=timedelta(hours=1)) for _ in range(3)])
    await clock.advance(seconds=1)

    lane = (await traffic(engine, limit=2))["mail"]

    assert (lane["waiting"], lane["is_more_waiting"]) == (100, True)
    assert (lane["delayed"], lane["is_more_timed"]) == (2, True)
    # Two events were looked at, and they are a second old.
    assert (lane["submitted"], lane["seconds"]) == (2, 1)
    exact = (await traffic(engine))["mail"]
    assert (exact["waiting"], exact["is_more_waiting"], exact["delayed"]) == (101, False, 3)


async def test_the_longest_wait_is_found_behind_a_higher_priority(clock, engine):
    since = await clock.freeze()
    route = await engine.register(lane="mail")
    await engine.submit(route=route, priority=0)
    await clock.advance(minutes=5)
    await engine.submit(route=route, priority=9)

    assert (await traffic(engine))["mail"]["waiting_since"] == since
    assert (await traffic(engine.within(None)))["mail"]["waiting"] == 2


async def test_a_namespace_sees_its_own_lanes_and_counts(engine):
    await engine.submit(route=await engine.register(lane="mail"))
    await engine.within("other").register(lane="secret")

    assert (await traffic(engine, namespace="test")).keys() == {"mail"}
    other = await traffic(engine, namespace="other")
    assert {lane: row["waiting"] for lane, row in other.items()} == {"secret": 0}
    assert (await traffic(engine)).keys() == {"mail", "secret"}


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("limit", {"limit": 0}),
        ("limit", {"limit": None}),
        ("window", {"window": timedelta(0)}),
        ("window", {"window": timedelta(hours=2)}),
        ("window", {"window": None}),
    ],
)
async def test_what_makes_no_sense_is_refused_by_its_field(engine, field, arguments):
    with refused("WF001", field=field):
        await traffic(engine, **arguments)
