"""Members stay until their whole flow has ended, and then go with all the flow kept of them."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from support.database import home
from support.factories import Engine
from support.flows import Group, make_flow

SHORT = {"policy": {"retention_ms": 1000}}


async def trim(db, retention="1 second", limit=500):
    return await db.fetchval(
        f"select handled from ff.trim_retention('{home()}', $2, p_retention => $1::text::interval)",
        retention,
        limit,
    )


async def kept(db):
    return {
        table: await db.fetchval(f"select count(*) from ff.{table}")
        for table in ("execution", "flow", "edge", "edge_group", "execution_body")
    }


NOTHING = {"execution": 0, "flow": 0, "edge": 0, "edge_group": 0, "execution_body": 0}


@pytest.mark.parametrize("items", [{}, {"a": SHORT, "b": SHORT, "c": SHORT}])
async def test_a_member_stays_until_the_last_one_has_ended(db, clock, items):
    flow = await make_flow(db, nodes=[*"abc"], edges=[("a", "b"), ("b", "c")], items=items)
    await flow.complete("a")
    await flow.complete("b")
    await clock.advance(minutes=1)
    assert await trim(db) == 0
    await flow.complete("c")
    await clock.advance(minutes=1)
    assert await trim(db) == 3
    assert await kept(db) == NOTHING


async def test_a_member_that_still_waits_keeps_all_of_them(db, clock):
    flow = await make_flow(db, nodes=[*"abcd"], edges=[("a", "b"), ("c", "d")])
    await flow.complete("a")
    await flow.complete("b")
    await clock.advance(minutes=1)
    assert await trim(db) == 0
    await flow.fail("c")
    await clock.advance(minutes=1)
    assert await trim(db) == 4
    assert await kept(db) == NOTHING


async def test_what_has_a_longer_time_stays_without_its_edges(db, clock):
    flow = await make_flow(
        db,
        nodes=[*"abc"],
        edges=[("a", "b"), ("b", "c")],
        items={"a": SHORT, "c": SHORT},
    )
    for name in "abc":
        await flow.complete(name)
    await clock.advance(minutes=1)
    assert await trim(db, "1 day") == 2
    assert await kept(db) == NOTHING | {"execution": 1, "flow": 1, "edge_group": 1} | {
        "execution_body": 1
    }
    first = await db.fetchval("select trimmed_at from ff.flow")
    assert first is not None
    await clock.advance(days=2)
    assert await trim(db, "1 day") == 1
    assert await kept(db) == NOTHING


async def test_the_flow_remembers_since_when_members_are_missing(db, clock):
    flow = await make_flow(
        db,
        nodes=[*"abc"],
        items={"a": SHORT, "b": {"policy": {"retention_ms": 120_000}}},
    )
    for name in "abc":
        await flow.complete(name)
    times = []
    for _ in range(2):
        await clock.advance(minutes=3)
        assert await trim(db, "1 day", limit=1) == 1
        times.append(await db.fetchval("select trimmed_at from ff.flow"))
    assert times[0] == times[1] is not None


async def test_a_flow_is_trimmed_in_bounded_steps(db, clock):
    names = [f"n{i:02}" for i in range(30)]
    flow = await make_flow(
        db, nodes=names, edges=[(names[0], name) for name in names[1:]], groups=[]
    )
    await flow.fail("n00")
    await clock.advance(minutes=1)
    assert [await trim(db, limit=12) for _ in range(4)] == [12, 12, 6, 0]
    assert await kept(db) == NOTHING


async def test_what_the_flow_keeps_of_a_member_goes_with_it_in_both_directions(db, clock):
    flow = await make_flow(
        db,
        nodes=[*"abc"],
        edges=[("a", "c"), ("b", "c")],
        groups=[Group("c", "any_of", on_satisfied="let_run")],
        items={"b": SHORT},
    )
    for name in "abc":
        await flow.complete(name)
    await clock.advance(minutes=1)
    assert await trim(db, "1 day") == 1
    assert [edge["upstream_id"] for edge in await flow.edges()] == [flow["a"]]
    await clock.advance(days=2)
    assert await trim(db, "1 day") == 2
    assert await kept(db) == NOTHING


async def test_others_are_trimmed_beside_a_flow_that_goes_on(db, clock, make):
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")], items={"a": SHORT})
    await flow.complete("a")
    await make.execution("completed")
    await make.execution("completed", policy=SHORT["policy"])
    await clock.advance(minutes=1)
    assert await trim(db, limit=2) == 2
    assert {row["execution_id"] for row in await flow.engine.rows()} == set(flow.ids.values())


async def test_a_flow_that_is_locked_keeps_its_members_for_now(db, clock):
    flow = await make_flow(db, nodes=["a"])
    await flow.complete("a")
    await clock.advance(minutes=1)
    connection = await db.connect()
    async with connection.transaction():
        await connection.execute("select from ff.flow for share")
        assert await trim(db) == 0
    assert await trim(db) == 1


async def test_a_replay_and_a_trim_at_once_never_leave_half_a_flow(db, clock):
    """Either all that its replay needs is there, or it is refused."""
    for _ in range(10):
        flow = await make_flow(db, nodes=[*"abc"], edges=[("a", "b"), ("b", "c")])
        await flow.fail("a")
        await clock.advance(minutes=1)
        other = Engine(await db.connect())

        async def replay(engine=other, id_=flow["a"]):
            try:
                return (await engine.replay(id_)).word
            except asyncpg.PostgresError as error:
                return error.sqlstate

        word, trimmed = await asyncio.gather(replay(), trim(db))
        if word == "replayed":
            assert trimmed == 0
            assert await flow.states() == {
                "a": "waiting",
                "b": "waiting_children",
                "c": "waiting_children",
            }
            for name in "abc":
                await flow.complete(name)
            await clock.advance(minutes=1)
            await trim(db)
        else:
            assert word in ("WF301", "WF215", "40001")
            await trim(db)
        assert await kept(db) == NOTHING
