"""Suspended members of flows: joins wait for them, and a cancel or a decision ends them."""

from __future__ import annotations

import pytest

from support.cancelling import cancel
from support.database import home
from support.flows import Edge, Flow, Group, make_flow

CANCEL = {"on_satisfied": "cancel_remaining"}


async def suspend(flow: Flow, name: str) -> None:
    """Run a member until it waits for a signal, with a waitpoint open."""
    lease = await flow.take(name)
    await flow.engine.waitpoint(lease, "payment")
    await flow.engine.ask(lease, "approve")
    assert (await flow.engine.suspend(lease, "approve")).word == "suspended"
    assert await flow.state(name) == "suspended"


async def closed_as(flow: Flow, name: str) -> tuple[str | None, int]:
    """Why the suspension of a member was closed, and how many waitpoints are open."""
    (row,) = await flow.engine.suspensions(flow[name])
    return row["close_reason"], len(await flow.engine.waitpoints(flow[name]))


async def signal_is_refused(flow: Flow, name: str) -> None:
    """A late signal finds an end, and changes nothing."""
    before = await flow.row(name)
    assert (await flow.engine.signal(flow[name])).word == "not_signalable"
    assert await flow.row(name) == before


async def test_a_join_waits_for_a_suspended_member_and_goes_on_after_it(db):
    flow = await make_flow(db, nodes=["a", "b", "z"], edges=[("a", "z"), ("b", "z")])
    await suspend(flow, "a")
    await flow.complete("b")
    assert await flow.states() == {"a": "suspended", "b": "completed", "z": "waiting_children"}
    assert (await flow.engine.signal(flow["a"])).effect == "woken"
    await flow.complete("a")
    assert await flow.state("z") == "waiting"
    await flow.complete("z")


@pytest.mark.parametrize(("outcome", "end"), [("success", "cancelled"), ("failed", "suspended")])
async def test_the_first_of_several_cancels_a_suspended_sibling(db, outcome, end):
    flow = await make_flow(
        db,
        nodes=["a", "b", "z"],
        edges=[("a", "z"), ("b", "z")],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    await suspend(flow, "a")
    await flow.end("b", outcome)
    assert await flow.state("a") == end
    if end == "cancelled":
        assert await closed_as(flow, "a") == ("cancelled", 0)
        await signal_is_refused(flow, "a")
        assert await flow.state("z") == "waiting"
    else:
        assert (await flow.engine.signal(flow["a"])).effect == "woken"
        await flow.complete("a")
        assert await flow.state("z") == "waiting"


async def test_a_suspended_sibling_that_is_locked_is_cancelled_later(db):
    flow = await make_flow(
        db,
        nodes=["a", "b", "z"],
        edges=[("a", "z"), ("b", "z")],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    await suspend(flow, "a")
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", flow["a"]
        )
        await flow.complete("b")
        assert await flow.state("a") == "suspended"
    await db.execute(f"select ff.cancel_siblings('{home()}')")
    assert await flow.state("a") == "cancelled"
    assert await closed_as(flow, "a") == ("cancelled", 0)


async def test_a_cancelled_flow_ends_its_suspended_members_and_what_follows_them(db):
    flow = await make_flow(db, nodes=["a", "b", "z"], edges=[("a", "z"), ("b", "z")])
    await suspend(flow, "a")
    await cancel(flow)
    assert await flow.states() == {"a": "cancelled", "b": "cancelled", "z": "cancelled"}
    assert await closed_as(flow, "a") == ("cancelled", 0)
    await signal_is_refused(flow, "a")


async def test_a_timeout_that_ends_a_member_skips_what_needs_it(db, clock):
    flow = await make_flow(db, nodes=["a", "z"], edges=[("a", "z")])
    lease = await flow.take("a")
    await flow.engine.ask(lease, "approve")
    until = await db.fetchval("select ff.now() + interval '1 hour'")
    await flow.engine.suspend(lease, "approve", until_at=until, on_timeout="fail")
    await clock.advance(hours=1)
    assert (await flow.engine.time_out())[0] == 1
    assert await flow.states() == {"a": "failed", "z": "skipped"}
    assert await closed_as(flow, "a") == ("timed_out_fail", 0)


async def test_an_upstream_that_fails_ends_a_suspended_member_that_came_to_need_it(db):
    """A running member may be given an edge; it is suspended when the upstream fails."""
    flow = await make_flow(db, nodes=["a", "b"], edges=[Edge("a", "b", is_applied=False)])
    lease = await flow.take("b")
    row = await flow.apply(lease=lease)
    await flow.engine.ask(lease, "approve")
    assert (await flow.engine.suspend(lease, "approve")).word == "suspended", row
    await flow.fail("a")
    assert await flow.state("b") == "skipped"
    assert await closed_as(flow, "b") == ("skipped", 0)
    await signal_is_refused(flow, "b")
