"""Flows through the client: stored whole, built step by step, and read."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    CycleDetected,
    DependencyAlreadyExists,
    ExecutionAlreadyInFlow,
    ExecutionNotFound,
    ExecutionNotInFlow,
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidDependency,
    InvalidInput,
    LaneClosed,
    NotRunnable,
    SelfReferencingEdge,
    StaleGraphRevision,
    StaleLease,
)
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.flow import (
    Edge,
    EdgeGroupPolicy,
    FlowEligibility,
    FlowState,
    Graph,
    Group,
    Node,
)
from flowfabric.core.ids import ExecutionId, FlowId, mint, mint_flow, mint_in, uuid7
from flowfabric.core.states import (
    FailureClass,
    FlowCancelPolicy,
    GroupPolicy,
    GroupState,
    Outcome,
    PublicState,
    Resolution,
)

ROUTE = Route("default", "default", "tests.work")
HOUR = timedelta(hours=1)


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url) as client:
        yield client


def graph(names, edges=(), groups=(), *, lane="default", **options):
    """One node for each letter, in a lane of its name if `lane` is None."""
    return Graph(
        id=mint_flow(),
        kind="test",
        nodes=[
            Node(
                name,
                Submission(
                    id=mint_in(0), route=Route("default", lane or name, "tests.work"), payload=b"{}"
                ),
            )
            for name in names
        ],
        edges=[Edge(*edge) for edge in edges],
        groups=groups,
        **options,
    )


def ids(graph):
    return [node.submission.id for node in graph.nodes]


async def submitted(client, flow=None):
    id = mint() if flow is None else mint_in(flow.partition_key)
    return (await client.executions.submit(Submission(id=id, route=ROUTE, payload=b"null"))).id


async def built(client, size):
    """A flow made step by step, and its members."""
    flow = (await client.flows.create("test")).id
    members = [await submitted(client, flow) for _ in range(size)]
    for member in members:
        await client.flows.add_execution(flow, member)
    return flow, members


async def claim(client, *lanes):
    (claimed,) = await client.executions.claim(
        worker_id="w", worker_instance_id="w-1", lease_ttl=HOUR, lanes=lanes or None
    )
    return claimed


async def complete(client, lane, result=b"1"):
    await client.executions.complete(await claim(client, lane), result)


# Whole graphs


async def test_a_graph_is_stored_and_read_back(client):
    given = graph(
        "abc",
        [(0, 2), (1, 2, 1, "payload")],
        [Group(2, 0, EdgeGroupPolicy.quorum(1, "let_run"))],
        tags={"team.name": "blue"},
        creator="ann",
    )
    answer = await client.flows.submit(given)
    assert (answer.id, answer.is_duplicate) == (given.id, False)

    info = await client.flows.describe(given.id)
    assert (info.id, info.flow_kind, info.namespace) == (given.id, "test", "default")
    assert (info.state, info.node_count, info.edge_count) == (FlowState.OPEN, 3, 2)
    assert (info.tags, info.creator, info.cancel_policy) == ({"team.name": "blue"}, "ann", None)
    a, b, c = ids(given)
    assert [(one.downstream_id, one.group_no, one.group_policy, one.n) for one in info.groups] == [
        (c, 0, EdgeGroupPolicy.quorum(1, "let_run"), 1),
        (c, 1, EdgeGroupPolicy.all_of(), 1),
    ]
    assert {one.state for one in info.groups} == {GroupState.PENDING}

    edges = await client.flows.edges(given.id)
    assert [(edge.upstream_id, edge.downstream_id, edge.group_no) for edge in edges] == [
        (a, c, 0),
        (b, c, 1),
    ]
    assert [edge.data_passing_ref for edge in edges] == [None, "payload"]
    assert {(edge.edge_state, edge.resolution) for edge in edges} == {
        ("applied", Resolution.UNSATISFIED)
    }
    members = await client.flows.members(given.id)
    assert [(one.id, one.name, one.public_state) for one in members] == [
        (a, "a", PublicState.WAITING),
        (b, "b", PublicState.WAITING),
        (c, "c", PublicState.WAITING_CHILDREN),
    ]
    assert {(one.task, one.lane) for one in members} == {("tests.work", "default")}


async def test_nodes_may_come_in_any_order(client):
    given = graph("cab", [(1, 0), (2, 0)], [Group(0, 0, EdgeGroupPolicy.any_of())])
    await client.flows.submit(given)
    c, a, b = ids(given)
    edges = await client.flows.edges(given.id)
    assert {(edge.upstream_id, edge.downstream_id) for edge in edges} == {(a, c), (b, c)}
    (group,) = (await client.flows.describe(given.id)).groups
    assert (group.downstream_id, group.group_policy.kind) == (c, GroupPolicy.ANY_OF)


async def test_the_same_graph_again_is_a_duplicate(client):
    given = graph("ab", [(0, 1)])
    await client.flows.submit(given)
    assert (await client.flows.submit(given)).is_duplicate
    assert (await client.flows.describe(given.id)).node_count == 2


async def test_a_bad_graph_never_leaves(db, client):
    with pytest.raises(CycleDetected) as caught:
        await client.flows.submit(graph("abc", [(0, 1), (1, 2), (2, 0)]))
    assert caught.value.path == ["a", "b", "c", "a"]
    with pytest.raises(InvalidInput, match="name of nodes"):
        await client.flows.submit(graph("aa"))
    assert await db.fetchval("select count(*) from ff.route") == 0


async def test_what_only_the_engine_can_refuse_is_raised(db, client):
    given = graph("ab", lane=None)
    await client.lanes.register(given.nodes[1].submission.route)
    await client.lanes.drain("b")
    with pytest.raises(LaneClosed):
        await client.flows.submit(given)
    assert await db.fetchval("select count(*) from ff.execution") == 0
    assert await client.flows.describe(given.id) is None


async def test_a_database_that_was_made_anew_is_told_the_routes_again(db, client):
    given = graph("a")
    await client.flows.submit(given)
    await db.execute("truncate ff.flow, ff.execution, ff.execution_body, ff.event, ff.route")
    again = graph("a")
    assert not (await client.flows.submit(again)).is_duplicate


async def test_a_flow_runs_in_its_order(client):
    given = graph("abcd", [(0, 1), (0, 2), (1, 3), (2, 3)], lane=None)
    await client.flows.submit(given)
    await complete(client, "a")
    for lane in "cb":
        await complete(client, lane)
    await complete(client, "d")
    summary = await client.flows.summary(given.id)
    assert (summary.state, summary.total, summary.unfinished) == (FlowState.COMPLETED, 4, 0)
    assert summary.counts == {PublicState.COMPLETED: 4}


async def test_a_failure_skips_what_depends_on_it(client):
    given = graph("abc", [(0, 1), (1, 2)], lane=None)
    await client.flows.submit(given)
    await client.executions.fail(
        await claim(client, "a"), Failure(FailureClass.PERMANENT, "no luck")
    )
    members = await client.flows.members(given.id)
    assert [one.public_state for one in members] == ["failed", "skipped", "skipped"]
    assert members[0].failure_reason == "no luck"
    skipped = await client.flows.members(given.id, states=[PublicState.SKIPPED])
    assert [one.name for one in skipped] == ["b", "c"]
    edges = await client.flows.edges(given.id, downstream=ids(given)[2])
    assert [(edge.resolution, edge.outcome) for edge in edges] == [
        (Resolution.IMPOSSIBLE, Outcome.SKIPPED)
    ]
    assert (await client.flows.summary(given.id)).state is FlowState.FAILED


async def test_results_are_read_by_name(client):
    given = graph("abc", [(0, 2), (1, 2)], lane=None)
    await client.flows.submit(given)
    await complete(client, "b", b'"second"')
    await complete(client, "a", b'"first"')
    a, b, c = ids(given)
    found = await client.flows.inputs([c, a])
    assert [(one.execution_id, one.upstream_id, one.node_name, one.result) for one in found] == [
        (c, b, "b", b'"second"'),
        (c, a, "a", b'"first"'),
    ]
    assert all(one.is_counted for one in found)
    assert await client.flows.inputs([]) == []


# Step by step


async def test_a_flow_is_built_step_by_step(client):
    id = mint_flow()
    created = await client.flows.create("test", id=id, tags={"team.name": "x"}, creator="ann")
    assert (created.id, created.is_new) == (id, True)
    assert not (await client.flows.create("other", id=id)).is_new
    first, second = await submitted(client, id), await submitted(client, id)
    added = await client.flows.add_execution(id, first, name="first")
    assert (added.is_new, added.node_count, added.graph_revision) == (True, 1, 1)
    assert not (await client.flows.add_execution(id, first)).is_new
    await client.flows.add_execution(id, second)
    assert [one.name for one in await client.flows.members(id)] == ["first", None]
    assert await client.executions.flow_id(first) == id
    assert await client.executions.flow_id(mint()) is None

    assert await client.flows.set_edge_group_policy(id, second, EdgeGroupPolicy.any_of())
    assert not await client.flows.set_edge_group_policy(id, second, EdgeGroupPolicy.any_of())
    edge = await client.flows.stage_dependency_edge(
        id, first, second, expected_graph_revision=2, data_passing_ref="payload"
    )
    assert edge.graph_revision == 3
    assert await client.flows.eligibility(second) is FlowEligibility.ELIGIBLE
    applied = await client.flows.apply_dependency_to_child(id, edge.edge_id, first, second)
    assert (applied.is_new, applied.unsatisfied) == (True, 1)
    assert applied.downstream_state is PublicState.WAITING_CHILDREN
    assert await client.flows.eligibility(second) is FlowEligibility.BLOCKED_BY_DEPENDENCIES
    again = await client.flows.apply_dependency_to_child(id, edge.edge_id, first, second)
    assert not again.is_new

    found = await client.flows.describe_edge(id, edge.edge_id)
    assert (found.upstream_id, found.downstream_id) == (first, second)
    assert (found.data_passing_ref, found.created_by) == ("payload", "engine")
    assert await client.flows.describe_edge(id, uuid4()) is None


async def test_each_refusal_is_an_error_of_its_own(client):
    flow, (a, b) = await built(client, 2)
    stranger = await submitted(client, flow)
    stage = client.flows.stage_dependency_edge
    with pytest.raises(SelfReferencingEdge):
        await stage(flow, a, a, expected_graph_revision=2)
    with pytest.raises(StaleGraphRevision) as stale:
        await stage(flow, a, b, expected_graph_revision=1)
    assert stale.value.facts["graph_revision"] == 2
    with pytest.raises(ExecutionNotInFlow):
        await stage(flow, a, stranger, expected_graph_revision=2)
    missing = FlowId.of(flow.partition_key, uuid7())
    with pytest.raises(FlowNotFound):
        await stage(missing, a, b, expected_graph_revision=0)
    with pytest.raises(InvalidDependency):
        await stage(flow, a, b, expected_graph_revision=2, kind="completion")
    edge_id = uuid7()
    await stage(flow, a, b, expected_graph_revision=2, edge_id=edge_id)
    with pytest.raises(DependencyAlreadyExists) as exists:
        await stage(flow, a, b, expected_graph_revision=3, edge_id=edge_id)
    assert exists.value.facts["edge"]["downstream_id"] == b
    with pytest.raises(CycleDetected) as cycle:
        await stage(flow, b, a, expected_graph_revision=3)
    assert cycle.value.path == [a, b, a]
    with pytest.raises(InvalidDependency):
        await client.flows.apply_dependency_to_child(flow, edge_id, b, a)
    with pytest.raises(InvalidInput, match="edge_group_policy_already_fixed"):
        await client.flows.set_edge_group_policy(flow, b, EdgeGroupPolicy.any_of())
    other = (await client.flows.create("test", id=FlowId.of(flow.partition_key, uuid7()))).id
    with pytest.raises(ExecutionAlreadyInFlow):
        await client.flows.add_execution(other, a)
    with pytest.raises(ExecutionNotFound):
        await client.flows.add_execution(other, mint_in(other.partition_key))
    with pytest.raises(FlowNotFound):
        await client.flows.set_tags(mint_flow(), {"a.b": "c"})
    await client.flows.cancel(other, cancel_policy=FlowCancelPolicy.FLOW_ONLY)
    with pytest.raises(FlowAlreadyTerminal):
        await client.flows.add_execution(other, stranger)


async def test_a_worker_shows_its_lease_to_add_dependencies(client):
    flow, (a, b) = await built(client, 2)
    held = await claim(client)
    assert held.id == a
    edge = await client.flows.stage_dependency_edge(flow, b, a, expected_graph_revision=2)
    apply = client.flows.apply_dependency_to_child
    with pytest.raises(NotRunnable):
        await apply(flow, edge.edge_id, b, a)
    held.epoch += 1
    with pytest.raises(StaleLease):
        await apply(flow, edge.edge_id, b, a, claimed=held)
    held.epoch -= 1
    applied = await apply(flow, edge.edge_id, b, a, claimed=held)
    assert applied.downstream_state is PublicState.ACTIVE
    await client.executions.wait_children(held)
    assert await client.executions.state(a) is PublicState.WAITING_CHILDREN
    await complete(client, "default")
    assert (await claim(client)).claim_kind == "resumed"


async def test_the_graph_is_read_again_and_the_edge_staged(client):
    """What StaleGraphRevision is for: two builders, both edges in the end."""
    flow, (a, b, c) = await built(client, 3)

    async def add(upstream):
        tries = 0
        while True:
            revision = (await client.flows.describe(flow)).graph_revision
            tries += 1
            try:
                return await client.flows.stage_dependency_edge(
                    flow, upstream, c, expected_graph_revision=revision
                )
            except StaleGraphRevision:
                assert tries < 20

    await asyncio.gather(add(a), add(b))
    assert (await client.flows.describe(flow)).groups[0].n == 2


# Reads


async def test_flows_are_listed_page_by_page(client):
    given = [graph("ab", [(0, 1)]) for _ in range(3)]
    for one in given:
        await client.flows.submit(one)
    first = await client.flows.list(limit=2)
    assert [flow.id for flow in first.flows] == [one.id for one in given[:2]]
    assert first.after == given[1].id
    rest = await client.flows.list(limit=2, after=first.after)
    assert ([flow.id for flow in rest.flows], rest.after) == ([given[2].id], None)
    newest = await client.flows.list(limit=1, newest=True)
    assert newest.flows[0].id == given[2].id
    assert newest.flows[0].state is FlowState.BLOCKED
    assert newest.flows[0].counts == {PublicState.WAITING: 1, PublicState.WAITING_CHILDREN: 1}
    assert (await client.flows.list(limit=0)).flows == []


async def test_what_is_not_there_is_none_or_empty(db, client):
    given = graph("a")
    await client.flows.submit(given)
    async with FlowFabric(db.url, namespace="other") as other:
        for where, id in ((client, mint_flow()), (other, given.id)):
            assert await where.flows.describe(id) is None
            assert await where.flows.summary(id) is None
            assert await where.flows.edges(id) == []
            assert await where.flows.members(id) == []
            assert await where.flows.tags(id) == {}
            assert await where.flows.tag(id, "a.b") is None
        assert (await other.flows.list()).flows == []
        assert await other.flows.inputs(ids(given)) == []
        assert await other.flows.eligibility(ids(given)[0]) is FlowEligibility.NOT_FOUND


async def test_tags_are_set_and_read(client):
    flow, _ = await built(client, 0)
    assert await client.flows.set_tags(flow, {"team.name": "blue"}) == {"team.name": "blue"}
    await client.flows.set_tag(flow, "team.size", "3")
    assert await client.flows.tags(flow) == {"team.name": "blue", "team.size": "3"}
    assert await client.flows.tag(flow, "team.size") == "3"
    assert await client.flows.tag(flow, "team.other") is None


async def test_a_cancelled_flow_says_so(client):
    flow, _ = await built(client, 1)
    await client.flows.cancel(
        flow, cancel_policy=FlowCancelPolicy.FLOW_ONLY, reason="enough", actor="ann"
    )
    info = await client.flows.describe(flow)
    assert (info.state, info.cancel_policy) == (FlowState.CANCELLED, FlowCancelPolicy.FLOW_ONLY)
    assert (info.cancel_reason, info.cancelled_by) == ("enough", "ann")
    assert info.cancelled_at
    assert (await client.flows.list()).flows[0].state is FlowState.CANCELLED


async def test_many_edges_and_members_come_whole(client):
    """More than one page of each."""
    size = 5_200
    names = [f"n{n}" for n in range(size)]
    given = graph(names, [(0, n) for n in range(1, size)])
    await client.flows.submit(given)
    assert len(await client.flows.members(given.id)) == size
    assert len(await client.flows.edges(given.id)) == size - 1
    assert len(await client.flows.edges(given.id, upstream=ids(given)[0])) == size - 1
    assert len(await client.flows.edges(given.id, downstream=ids(given)[7])) == 1


# Bad input


async def test_ids_of_the_wrong_kind_are_refused(client):
    flow, (a,) = await built(client, 1)
    for wrong, told in (("nope", "flow_id"), (a, "must be a FlowId"), (None, "flow_id")):
        with pytest.raises(InvalidInput, match=told):
            await client.flows.describe(wrong)
    with pytest.raises(InvalidInput, match="must be an ExecutionId"):
        await client.flows.add_execution(flow, flow)
    with pytest.raises(InvalidInput, match="must be an ExecutionId"):
        await client.flows.inputs([flow])


async def test_a_member_of_another_partition_is_refused_before_anything_is_sent(client):
    flow, (a,) = await built(client, 1)
    far = ExecutionId.of(flow.partition_key + 1, uuid7())
    for act in (
        client.flows.add_execution(flow, far),
        client.flows.stage_dependency_edge(flow, a, far, expected_graph_revision=1),
        client.flows.apply_dependency_to_child(flow, uuid7(), far, a),
        client.flows.set_edge_group_policy(flow, far, EdgeGroupPolicy.any_of()),
    ):
        with pytest.raises(InvalidInput, match="another partition than the flow"):
            await act


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda flows: flows.create(""), "flow_kind"),
        (lambda flows: flows.create("x", tags={"Bad": "y"}), "tags"),
        (lambda flows: flows.create("x", creator=""), "creator"),
        (lambda flows: flows.create("x", id=FlowId.of(9, uuid7())), "partition_key"),
        (lambda flows: flows.add_execution(mint_flow(), mint(), name=""), "name"),
        (lambda flows: flows.set_tags(mint_flow(), {}), "tags"),
        (lambda flows: flows.set_tags(mint_flow(), {"bad": "x"}), "tags"),
        (lambda flows: flows.tag(mint_flow(), "bad"), "tags"),
        (lambda flows: flows.list(limit=-1), "limit"),
        (lambda flows: flows.list(limit=1001), "limit"),
        (lambda flows: flows.list(after=FlowId.of(3, uuid7()), partition=2), "after"),
    ],
)
async def test_bad_input_is_named(client, call, field):
    with pytest.raises(InvalidInput) as caught:
        await call(client.flows)
    assert caught.value.field == field
