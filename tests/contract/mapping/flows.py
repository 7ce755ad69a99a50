"""Flows, their members and edges."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from flowfabric.client import FlowFabric
from flowfabric.core.flow import EdgeGroupPolicy
from flowfabric.core.ids import ExecutionId, mint, mint_flow, mint_in
from flowfabric.core.states import GroupPolicy, OnSatisfied
from flowfabric.db.connection import open_connection as unbound
from support.sabotage import unwitnessed

from .world import See, World, graph, operation, said

SOURCE = "contract"


async def _built(world: World, *lanes: str) -> Any:
    """A flow made step by step: its id and its members."""
    id = (await world.client.flows.create("test")).id
    members = [await world.submit(lane=lane) for lane in lanes]
    for member in members:
        await world.client.flows.add_execution(id, member)
    return id, members


@operation(
    "create_flow",
    sql=["create_flow"],
    python=["flows.create"],
    reasons=["0008", "0010"],
)
async def _(world: World, see: See) -> None:
    """The time is the database's. Tags and a creator can be given. An id that is taken in another
    namespace is refused.
    """
    flows, id = world.client.flows, mint_flow()
    is_new = [(await flows.create(kind, id=id)).is_new for kind in ("test", "other")]
    info = await flows.describe(id)
    see("is_new", is_new, [True, False])
    see("state", str(info.state), "open")
    see("graph_revision", info.graph_revision, 0)
    see("without_a_kind", await said(flows.create("")), "InvalidInput")
    async with FlowFabric(world.db.url, namespace="other") as other:
        see("of_another_namespace", await said(other.flows.create("test", id=id)), "InvalidInput")


@operation(
    "add_execution_to_flow",
    sql=["add_execution_to_flow"],
    python=["flows.add_execution"],
    reasons=["0010", "0012"],
)
async def _(world: World, see: See) -> None:
    """A refusal because of a state has its own class; only a malformed call is InvalidInput. A
    repeat is answered as a repeat, even after the flow was cancelled.
    """
    flows = world.client.flows
    id, other = [(await flows.create("test")).id for _ in range(2)]
    one, two = await world.submit(), await world.submit()
    answers = [await flows.add_execution(id, member) for member in (one, one, two)]
    see(
        "counts",
        [[answer.node_count, answer.graph_revision] for answer in answers],
        [[1, 1], [1, 1], [2, 2]],
    )
    see("is_new", [answer.is_new for answer in answers], [True, False, True])
    see("of_another_flow", await said(flows.add_execution(other, one)), "ExecutionAlreadyInFlow")
    see("without_a_flow", await said(flows.add_execution(mint_flow(), one)), "FlowNotFound")
    see("without_an_execution", await said(flows.add_execution(id, mint())), "ExecutionNotFound")
    see("of_another_partition", await said(flows.add_execution(id, mint_in(7))), "InvalidInput")
    await flows.cancel(id)
    see(
        "to_a_cancelled_flow",
        await said(flows.add_execution(id, await world.submit())),
        "FlowAlreadyTerminal",
    )


@operation(
    "stage_dependency_edge",
    sql=["stage_dependency_edge"],
    python=["flows.stage_dependency_edge"],
    reasons=["0010", "0012", "ruling: eligible when all groups are satisfied"],
)
async def _(world: World, see: See) -> None:
    """A cycle is refused with its path. Edges may be in several groups of one downstream node. A
    decided group accepts no more edges. The same edge with the same expected revision gets the
    first answer, since the caller may have lost its connection.
    """
    id, (a, b) = await _built(world, "a", "b")
    stage, edge_id = world.client.flows.stage_dependency_edge, uuid4()

    async def staged(*ends: ExecutionId, revision: int = 3, **options: Any) -> Any:
        return await stage(id, *ends, expected_graph_revision=revision, **options)

    see("graph_revision", (await staged(a, b, revision=2, edge_id=edge_id)).graph_revision, 3)
    see("again", (await staged(a, b, revision=2, edge_id=edge_id)).graph_revision, 3)
    see("to_itself", await said(staged(a, a)), "SelfReferencingEdge")
    see("with_an_old_revision", await said(staged(a, b, revision=1)), "StaleGraphRevision")
    see("to_a_stranger", await said(staged(a, await world.submit())), "ExecutionNotInFlow")
    see("back_again", await said(staged(b, a)), "CycleDetected")
    see("with_its_id_again", await said(staged(a, b, edge_id=edge_id)), "DependencyAlreadyExists")
    see("of_another_kind", await said(staged(a, b, kind="any_end")), "InvalidDependency")


@operation(
    "apply_dependency_to_child",
    sql=["apply_dependency_to_child"],
    python=["flows.apply_dependency_to_child"],
    reasons=["0009", "0024"],
)
async def _(world: World, see: See) -> None:
    """It holds the downstream node back, compares both ends, and resolves the edge at once if the
    upstream node has ended. A running downstream node is refused, unless its own worker shows its
    lease. A delayed or paused downstream node is refused, because the delay or pause would be lost.
    """
    flows = world.client.flows
    id, (a, b, c) = await _built(world, "a", "b", "c")
    edge = await flows.stage_dependency_edge(id, a, b, expected_graph_revision=3)
    answers = [await flows.apply_dependency_to_child(id, edge.edge_id, a, b) for _ in range(2)]
    other = await said(flows.apply_dependency_to_child(id, edge.edge_id, b, a))
    await world.executions.complete(await world.next("a"))
    held = await world.next("c")
    late = await flows.stage_dependency_edge(id, b, held.id, expected_graph_revision=4)
    see("is_new", [answer.is_new for answer in answers], [True, False])
    see("unsatisfied", answers[0].unsatisfied, 1)
    see("state", str(answers[0].downstream_state), "waiting_children")
    see("after_the_end_of_the_upstream", await world.state(b), "waiting")
    see("other_ends", other, "InvalidDependency")
    see(
        "while_it_runs",
        await said(flows.apply_dependency_to_child(id, late.edge_id, b, c)),
        "NotRunnable",
    )


@operation(
    "set_edge_group_policy",
    sql=["set_edge_group_policy"],
    python=["flows.set_edge_group_policy"],
    reasons=["0009", "ruling: eligible when all groups are satisfied"],
)
async def _(world: World, see: See) -> None:
    """It locks the flow, which must exist. It compares the whole policy, not only its kind. A
    member may have several groups.
    """
    flows = world.client.flows
    id, (a, b) = await _built(world, "a", "b")
    policies = (EdgeGroupPolicy.quorum(2), EdgeGroupPolicy.quorum(2), EdgeGroupPolicy.quorum(1))
    is_new = [await flows.set_edge_group_policy(id, b, policy) for policy in policies]
    await flows.stage_dependency_edge(id, a, b, expected_graph_revision=2)
    zero = EdgeGroupPolicy(GroupPolicy.QUORUM, 0, OnSatisfied.LET_RUN)
    see("is_new", is_new, [True, False, True])
    see(
        "after_the_first_edge",
        await said(flows.set_edge_group_policy(id, b, EdgeGroupPolicy.any_of())),
        "InvalidInput",
    )
    see(
        "without_a_flow",
        await said(flows.set_edge_group_policy(mint_flow(), b, EdgeGroupPolicy.any_of())),
        "FlowNotFound",
    )
    see("k_of_zero", await said(flows.set_edge_group_policy(id, b, zero, group=1)), "InvalidInput")


@operation(
    "describe_flow",
    sql=["describe_flow"],
    python=["flows.describe"],
    reasons=["0002", "0005"],
)
async def _(world: World, see: See) -> None:
    """States are enums and the table checks the counts: nothing malformed can be stored, so there
    is no error for it. The state of a group is stored when the group is decided.
    """
    flows = world.client.flows
    id, _members = await graph(world)
    info = await flows.describe(id)
    see("flow_kind", info.flow_kind, "test")
    see("state", str(info.state), "open")
    see("counts", [info.node_count, info.edge_count, info.graph_revision], [3, 2, 5])
    see(
        "groups",
        [f"{one.group_policy.kind} {one.state} {one.n}" for one in info.groups],
        ["quorum pending 2"],
    )
    see("missing", str(await flows.describe(mint_flow())), "None")


@operation(
    "list_flows",
    sql=["list_flows"],
    python=["flows.list"],
    reasons=["0027", "ruling: a page may come back short with a cursor"],
)
async def _(world: World, see: See) -> None:
    """It lists the flows of a namespace, in the order of the ids or newest first, with the counts
    of their members. A page may be short and still carry a cursor.
    """
    flows = world.client.flows
    for _ in range(3):
        await graph(world)
    first = await flows.list(limit=2)
    rest = await flows.list(limit=2, after=first.after)
    async with FlowFabric(world.db.url, namespace="other") as other:
        none = await other.flows.list()
    see("pages", [len(first.flows), len(rest.flows)], [2, 1])
    see("none", len(none.flows), 0)
    see("state", str(first.flows[0].state), "blocked")


@operation(
    "list_edges",
    sql=["list_edges"],
    python=["flows.edges"],
    reasons=["0002"],
)
async def _(world: World, see: See) -> None:
    """It lists all edges of a flow, or the edges out of or into one member. An edge has one record
    and no second index that could disagree with it, so there is no error for such a difference.
    """
    flows = world.client.flows
    id, (a, _b, c) = await graph(world)
    see("all", len(await flows.edges(id)), 2)
    see("outgoing", len(await flows.edges(id, upstream=a)), 1)
    see("incoming", len(await flows.edges(id, downstream=c)), 2)
    see("of_a_missing_flow", len(await flows.edges(mint_flow())), 0)


@operation(
    "describe_edge",
    sql=["describe_edge"],
    python=["flows.describe_edge"],
    reasons=["0009"],
)
async def _(world: World, see: See) -> None:
    """It also says how the upstream node ended, and when the edge was resolved."""
    flows = world.client.flows
    id, (a, *_rest) = await graph(world)
    await world.executions.complete(await world.next("a"))
    (edge,) = await flows.edges(id, upstream=a)
    shown = await flows.describe_edge(id, edge.edge_id)
    see("edge_state", shown.edge_state, "applied")
    see("resolution", str(shown.resolution), "satisfied")
    see("outcome", str(shown.outcome), "success")
    see("of_another_flow", str(await flows.describe_edge(mint_flow(), edge.edge_id)), "None")


@operation(
    "project_flow_summary",
    sql=["summarise_flow"],
    python=["flows.summary"],
    reasons=["0027"],
)
async def _(world: World, see: See) -> None:
    """Members are counted when the summary is read; there is no projection that could be stale."""
    flows = world.client.flows
    id, _members = await graph(world)
    states = [await flows.summary(id)]
    held = await world.next("a")
    states.append(await flows.summary(id))
    await world.executions.complete(held)
    await world.executions.complete(await world.next("b"))
    states.append(await flows.summary(id))
    await world.executions.complete(await world.next("c"))
    states.append(await flows.summary(id))
    empty = await flows.summary((await flows.create("test")).id)
    see("states", [str(one.state) for one in states], ["blocked", "running", "open", "completed"])
    see("total", states[-1].total, 3)
    see("empty", str(empty.state), "open")
    see("missing", str(await flows.summary(mint_flow())), "None")


@operation(
    "set_flow_tag",
    sql=["set_flow_tags"],
    python=["flows.set_tag", "flows.set_tags"],
    reasons=["ruling: tags of flows follow the rules for tags of executions"],
)
async def _(world: World, see: See) -> None:
    """One call sets several tags, at most 64; a value is at most 1024 bytes."""
    flows = world.client.flows
    id = (await flows.create("test")).id
    await flows.set_tag(id, "team.name", "blue")
    see("tags", sorted(await flows.set_tags(id, {"team.size": "3"})), ["team.name", "team.size"])
    see("bad_key", await said(flows.set_tag(id, "plain", "x")), "InvalidInput")
    see("missing", await said(flows.set_tag(mint_flow(), "team.name", "x")), "FlowNotFound")


@operation(
    "get_flow_tag",
    sql=["describe_flow"],
    python=["flows.tag"],
    reasons=["ruling: tags of flows follow the rules for tags of executions"],
)
async def _(world: World, see: See) -> None:
    """No difference."""
    flows = world.client.flows
    id = (await flows.create("test", tags={"team.name": "blue"})).id
    see("value", await flows.tag(id, "team.name"), "blue")
    see("missing", str(await flows.tag(id, "team.size")), "None")
    see("of_a_missing_flow", str(await flows.tag(mint_flow(), "team.name")), "None")


@operation(
    "evaluate_flow_eligibility",
    sql=["evaluate_flow_eligibility"],
    python=["flows.eligibility"],
    reasons=["0005"],
)
async def _(world: World, see: See) -> None:
    """It reads the records of the edges. It never answers `owned` or `terminal`: an owned or ended
    execution is not runnable. executions.why says more.
    """
    flows = world.client.flows
    _id, (a, _b, c) = await graph(world)
    held = await world.next("b")
    answers = [await flows.eligibility(one) for one in (a, c, held.id, mint())]
    await world.executions.complete(held)
    await world.executions.complete(await world.next("a"))
    see(
        "answers",
        [str(one) for one in answers],
        ["eligible", "blocked_by_dependencies", "not_runnable", "not_found"],
    )
    see("after_the_end_of_the_upstream", str(await flows.eligibility(c)), "eligible")


@operation(
    "promote_blocked_to_eligible",
    sql=["promote_blocked_to_eligible"],
    python=["executions.promote_blocked_to_eligible"],
    reasons=["0009", "0012"],
)
async def _(world: World, see: See) -> None:
    """Nothing has to call it: the call that decides the last group of a member makes the member
    eligible in the same transaction. It exists for repairs by hand.
    """
    promote = world.executions.promote_blocked_to_eligible
    _id, (a, _b, c) = await graph(world)
    stranded = await world.submit(lane="d")
    async with unwitnessed(world.db.conn):
        # Only a bug could leave such a row.
        await world.db.execute(
            "update ff.execution set eligibility = 'blocked_by_dependencies', "
            "blocking_reason = 'waiting_for_children' where execution_id = $1",
            stranded.uuid,
        )
    see("stranded", (await promote(stranded)).public_state, "waiting")
    see("with_open_dependencies", await said(promote(c)), "DepsNotSatisfied")
    see("not_blocked", await said(promote(a)), "NotBlockedByDeps")
    see("missing", await said(promote(mint())), "ExecutionNotFound")
    held = await world.next("a")
    see("running", await said(promote(a)), "NotRunnable")
    await world.executions.complete(held)
    see("ended", await said(promote(a)), "ExecutionTerminal")


async def _left_over(world: World, lanes: str) -> Any:
    """Decide a group while a sibling's row is locked; return the sibling, still not cancelled."""
    _id, members = await graph(world, lanes, ((0, 3), (1, 3), (2, 3)))
    async with unbound(world.db.url) as other, other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", members[2].uuid
        )
        for lane in lanes[:2]:
            await world.executions.complete(await world.next(lane))
        # The client gives up, and leaves the sibling to the reconcilers.
        await world.executions._cascades.close()
    return members[2]


@operation(
    "edge_cancel_dispatcher",
    sql=["cancel_siblings"],
    python=["executions.cancel_siblings"],
    reasons=["0009", "ruling: what still feeds an open group is retained"],
)
async def _(world: World, see: See) -> None:
    """The transaction that decides a group cancels the upstream nodes that are not needed any more,
    as many as it can; this function cancels the rest. An upstream node that another open group
    waits for is retained. A locked upstream node stays on the list; the others of its group are
    cancelled.
    """
    sibling = await _left_over(world, "abcd")
    before = await world.state(sibling)
    handled = [(await world.executions.cancel_siblings())[0] for _ in range(2)]
    see("states", [before, await world.state(sibling)], ["waiting", "cancelled"])
    see("handled", handled, [1, 0])
    see(
        "reason",
        (await world.executions.describe(sibling)).cancellation_reason,
        "sibling_quorum_satisfied",
    )


@operation(
    "edge_cancel_reconciler",
    sql=["reconcile_siblings"],
    python=["executions.reconcile_siblings"],
    reasons=["0009"],
)
async def _(world: World, see: See) -> None:
    """It closes groups whose unneeded upstream nodes have all ended, and never cancels."""
    sibling = await _left_over(world, "abcd")
    see("while_it_lives", (await world.executions.reconcile_siblings())[0], 0)
    see("state", await world.state(sibling), "waiting")
    await world.executions.cancel(sibling)
    see("when_it_has_ended", (await world.executions.reconcile_siblings())[0], 1)
