"""A running member that waits for what it depends on, and what lets it go on."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import DepsNotSatisfied, NotBlockedByDeps
from flowfabric.core.ids import ExecutionId
from support.database import home
from support.factories import refused
from support.flows import Edge, Group, make_flow


async def grown(db, names="ab", *, applied=True, **group):
    """A member that runs, and was given upstreams by its own worker."""
    flow = await make_flow(
        db,
        nodes=[*names, "z"],
        edges=[Edge(name, "z", is_applied=False) for name in names],
        groups=[Group("z", **group)] if group else [],
    )
    lease = await flow.take("z")
    for number in range(len(names) if applied else 0):
        assert (await flow.apply(number, lease))["outcome"] == "applied"
    return flow, lease


async def promote(db, execution_id, namespace="test"):
    return await db.fetchrow(
        f"select * from ff.promote_blocked_to_eligible('{home()}', $1, $2)",
        namespace,
        execution_id,
    )


async def test_it_waits_for_the_edges_that_are_open_and_goes_on_with_its_attempt(db):
    flow, lease = await grown(db)
    assert (await flow.engine.wait_children(lease)).word == "waiting"
    row = await flow.row("z")
    assert (row["public_state"], row["blocking_reason"]) == (
        "waiting_children",
        "waiting_for_children",
    )
    assert (row["ownership"], row["attempt_state"]) == ("unowned", "attempt_interrupted")
    (*_, event) = await flow.engine.events(flow["z"])
    assert (event["kind"], json.loads(event["detail"])) == ("waiting", {"open": 2})
    await flow.complete("a")
    assert await flow.state("z") == "waiting_children"
    await flow.complete("b")
    again = await flow.take("z")
    assert (again.claim_kind, again.attempt_id) == ("resumed", lease.attempt_id)
    assert (await flow.engine.complete(again)).word == "completed"


async def test_with_nothing_left_to_wait_for_it_is_eligible_at_once(db):
    """What it depends on has ended before it asks."""
    flow, lease = await grown(db)
    await flow.complete("a")
    await flow.complete("b")
    assert (await flow.engine.wait_children(lease)).word == "waiting"
    row = await flow.row("z")
    assert (row["public_state"], row["eligibility"]) == ("waiting", "eligible_now")
    (*_, event) = await flow.engine.events(flow["z"])
    assert json.loads(event["detail"]) == {"open": 0}


async def test_a_member_without_edges_does_not_wait(db):
    flow = await make_flow(db, nodes=["z"])
    await flow.engine.wait_children(await flow.take("z"))
    assert await flow.state("z") == "waiting"


async def test_an_open_edge_of_a_decided_group_is_not_waited_for(db):
    flow, lease = await grown(db, "ab", policy="any_of", on_satisfied="let_run")
    await flow.complete("a")
    await flow.engine.wait_children(lease)
    assert await flow.state("z") == "waiting"


async def test_an_edge_that_is_only_staged_is_not_waited_for(db):
    flow, lease = await grown(db, applied=False)
    await flow.engine.wait_children(lease)
    assert await flow.state("z") == "waiting"


async def test_a_failure_of_what_it_waits_for_skips_it(db):
    flow, lease = await grown(db)
    await flow.engine.wait_children(lease)
    await flow.fail("a")
    row = await flow.row("z")
    assert (row["public_state"], row["attempt_state"]) == ("skipped", "attempt_terminal")


async def test_the_time_of_the_attempt_stands_still_while_it_waits(db, clock):
    flow = await make_flow(
        db,
        nodes=["a", "z"],
        edges=[Edge("a", "z", is_applied=False)],
        items={"z": {"policy": {"timeout_policy": {"attempt_timeout_ms": 60_000}}}},
    )
    lease = await flow.take("z", ttl=timedelta(minutes=5))
    await flow.apply(0, lease)
    await flow.engine.wait_children(lease)
    await clock.advance(hours=1)
    await flow.engine.expire_executions()
    await flow.complete("a")
    assert (await flow.take("z")).claim_kind == "resumed"


async def test_the_lease_that_was_given_up_gets_its_answer_again(db):
    flow, lease = await grown(db)
    await flow.engine.wait_children(lease)
    before = await flow.engine.snapshot()
    assert (await flow.engine.wait_children(lease)).word == "waiting"
    assert await flow.engine.snapshot() == before


# Mending by hand


async def test_a_member_with_an_open_dependency_is_not_promoted(db):
    flow = await make_flow(db, nodes=["a", "z"], edges=[("a", "z")])
    with refused("WF219", message="deps_not_satisfied", open_groups=1):
        await promote(db, flow["z"])
    assert await flow.state("z") == "waiting_children"


async def test_a_member_that_waits_for_runs_is_not_promoted(db, make):
    waiter = await make.execution("awaiting")
    with refused("WF219", message="deps_not_satisfied", open_runs=1):
        await promote(db, waiter.id)


async def test_a_blocked_member_without_an_open_dependency_is_promoted_and_again(db):
    """As nothing leaves one behind, the edge is taken away by hand."""
    flow = await make_flow(db, nodes=["a", "z"], edges=[("a", "z")])
    await db.execute("delete from ff.edge")
    await db.execute("delete from ff.edge_group")
    db.leave_broken("the graph was tampered with")
    for _ in range(2):
        row = await promote(db, flow["z"])
        assert (row["outcome"], row["public_state"]) == ("promoted", "waiting")
    row = await flow.row("z")
    assert (row["eligibility"], row["cause"]) == ("eligible_now", "satisfy_dependencies")
    assert (await flow.take("z")).claim_kind == "fresh"


@pytest.mark.parametrize(
    ("state", "code", "word"),
    [
        ("completed", "WF204", "already_terminal"),
        ("leased", "WF217", "not_runnable"),
        ("waiting", "WF218", "not_blocked_by_deps"),
        ("delayed", "WF218", "not_blocked_by_deps"),
    ],
)
async def test_whatever_is_not_blocked_by_dependencies_is_refused(db, make, state, code, word):
    execution = await make.execution(state)
    with refused(code, message=word):
        await promote(db, execution.id)


async def test_a_member_of_another_tenant_is_not_found(db):
    flow = await make_flow(db, nodes=["a", "z"], edges=[("a", "z")])
    for arguments in ((flow["z"], "other"), (flow.id, "test"), (None, None)):
        with refused("WF301", message="not_found"):
            await promote(db, *arguments)


async def test_the_client_promotes_too(db, make):
    flow = await make_flow(db, nodes=["a", "z"], edges=[("a", "z")])
    async with FlowFabric(db.url, namespace="test", pool_size=1) as client:
        with pytest.raises(DepsNotSatisfied):
            await client.executions.promote_blocked_to_eligible(ExecutionId.parse(flow.text("z")))
        with pytest.raises(NotBlockedByDeps):
            await client.executions.promote_blocked_to_eligible(ExecutionId.parse(flow.text("a")))
