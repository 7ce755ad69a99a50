"""Graphs are judged as a whole before they are sent: names, edges, policies, circles."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from flowfabric.core.errors import CycleDetected, InvalidInput
from flowfabric.core.execution import Route, Submission
from flowfabric.core.flow import (
    MAX_EDGES,
    MAX_NODES,
    Edge,
    EdgeGroupPolicy,
    FlowState,
    FlowSummary,
    Graph,
    Group,
    GroupInfo,
    Node,
)
from flowfabric.core.ids import ExecutionId, FlowId, mint_flow, mint_in
from flowfabric.core.states import GroupPolicy, GroupState, OnSatisfied, PublicState

ROUTE = Route("default", "default", "tests.work")


def node(name, **options):
    id = options.pop("id", None) or mint_in(options.pop("partition", 0))
    route = options.pop("route", ROUTE)
    return Node(name, Submission(id=id, route=route, payload=b"null", **options))


def graph(names="abc", edges=(), groups=(), **options):
    nodes = [one if isinstance(one, Node) else node(one) for one in names]
    return Graph(
        **{
            "id": mint_flow(),
            "kind": "test",
            "nodes": nodes,
            "edges": [edge if isinstance(edge, Edge) else Edge(*edge) for edge in edges],
            "groups": groups,
            **options,
        }
    )


# Policies


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (EdgeGroupPolicy.all_of(), {"kind": "all_of"}),
        (EdgeGroupPolicy(), {"kind": "all_of"}),
        (EdgeGroupPolicy.any_of(), {"kind": "any_of", "on_satisfied": "cancel_remaining"}),
        (EdgeGroupPolicy.any_of("let_run"), {"kind": "any_of", "on_satisfied": "let_run"}),
        (EdgeGroupPolicy.quorum(2), {"kind": "quorum", "k": 2, "on_satisfied": "cancel_remaining"}),
        (
            EdgeGroupPolicy.quorum(3, OnSatisfied.LET_RUN),
            {"kind": "quorum", "k": 3, "on_satisfied": "let_run"},
        ),
    ],
)
def test_a_policy_reads_back_from_json(policy, told):
    assert policy.to_json() == told
    assert EdgeGroupPolicy.from_json(told) == policy


def test_what_is_left_over_is_cancelled_unless_said_otherwise():
    assert EdgeGroupPolicy.from_json({"kind": "any_of"}) == EdgeGroupPolicy.any_of(
        OnSatisfied.CANCEL_REMAINING
    )
    assert EdgeGroupPolicy.from_json({"kind": "quorum", "k": 1}) == EdgeGroupPolicy.quorum(1)


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({}, "group_policy"),
        ([], "group_policy"),
        ({"kind": "some_of"}, "group_policy"),
        ({"kind": "any_of", "n": 2}, "group_policy"),
        ({"kind": "all_of", "on_satisfied": "let_run"}, "group_policy"),
        ({"kind": "any_of", "k": 1}, "k"),
        ({"kind": "any_of", "on_satisfied": "stop"}, "on_satisfied"),
        ({"kind": "quorum"}, "k"),
        ({"kind": "quorum", "k": 0}, "k"),
        ({"kind": "quorum", "k": True}, "k"),
        ({"kind": "quorum", "k": "2"}, "k"),
    ],
)
def test_a_policy_that_is_none_is_refused(told, field):
    with pytest.raises(InvalidInput) as caught:
        EdgeGroupPolicy.from_json(told)
    assert caught.value.field == field


def test_a_policy_says_how_many_it_needs():
    needed = [
        policy.needed(5)
        for policy in (
            EdgeGroupPolicy.all_of(),
            EdgeGroupPolicy.any_of(),
            EdgeGroupPolicy.quorum(3),
        )
    ]
    assert needed == [5, 1, 3]


# Graphs


def test_a_sound_graph_passes():
    graph(
        "abcd",
        [(0, 2), (1, 2), Edge(2, 3, 1, "payload"), Edge(0, 3)],
        [Group(2, 0, EdgeGroupPolicy.quorum(2)), Group(3, 1, EdgeGroupPolicy.any_of())],
        tags={"team.name": "blue"},
        creator="ann",
    ).check()


PAST = datetime(2020, 1, 1, tzinfo=UTC)
BAD = [
    (graph(kind=""), "flow_kind", "1 to 256"),
    (graph(tags={"Bad": "x"}), "tags", "team.field"),
    (graph(creator=""), "creator", "1 to 256"),
    (graph(""), "nodes", f"are 0; must be 1 to {MAX_NODES}"),
    (graph("aba"), "nodes[2].name", "'a' is the name of nodes[0] too"),
    (graph(["a", ""]), "nodes[1].name", "1 to 256"),
    (graph([node("a"), node("b", partition=1)]), "nodes[1].execution_id", "partition of the flow"),
    (
        graph([node("a"), node("b", route=replace(ROUTE, namespace="other"))]),
        "nodes[1].namespace",
        "the namespace of the other nodes",
    ),
    (graph([node("a", key="k", key_fingerprint=b"x")]), "nodes[0].key", "cannot be used in a flow"),
    (graph([node("a", parent_id=mint_in(0))]), "nodes[0].parent_id", "cannot be used in a flow"),
    (graph([node("a", max_reclaims=-1)]), "nodes[0].max_reclaims", "0 to 1000000"),
    (
        graph([node("a"), node("b", delay=timedelta(1))], [(0, 1)]),
        "nodes[1].delay",
        "waits for others",
    ),
    (
        graph([node("a"), node("b", delayed_until=PAST)], [(0, 1)]),
        "nodes[1].delayed_until",
        "waits for others",
    ),
    (graph("ab", [(0, 2)]), "edges[0].to", "there is no node 2"),
    (graph("ab", [(0, 1), (-1, 1)]), "edges[1].from", "there is no node -1"),
    (graph("ab", [("a", 1)]), "edges[0].from", "there is no node 'a'"),
    (graph("ab", [(1, 1)]), "edges[0].to", "'b' cannot wait for itself"),
    (graph("ab", [Edge(0, 1, -1)]), "edges[0].group", "0 to"),
    (graph("ab", [Edge(0, 1, 0, "")]), "edges[0].ref", "1 to 256"),
    (graph("ab", [(0, 1), (0, 1)]), "edges[1]", "repeats edges[0]"),
    (graph("ab", [(0, 1)], [Group(2)]), "groups[0].node", "there is no node 2"),
    (graph("ab", [(0, 1)], [Group(0)]), "groups[0].node", "no edge leads to group 0 of 'a'"),
    (graph("ab", [(0, 1)], [Group(1, 1)]), "groups[0].node", "no edge leads to group 1 of 'b'"),
    (graph("ab", [(0, 1)], [Group(1), Group(1)]), "groups[1]", "repeats groups[0]"),
    (
        graph("abc", [(0, 2), (1, 2)], [Group(2, 0, EdgeGroupPolicy.quorum(3))]),
        "groups[0].k",
        "is 3, but only 2 edges lead to the group",
    ),
]


@pytest.mark.parametrize(
    ("bad", "field", "problem"), BAD, ids=[f"{field}: {problem}" for _, field, problem in BAD]
)
def test_a_bad_graph_is_refused_with_its_reason(bad, field, problem):
    with pytest.raises(InvalidInput) as caught:
        bad.check()
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_a_graph_has_its_limits():
    with pytest.raises(InvalidInput, match="nodes: are 10001"):
        replace(graph("a"), nodes=[node("a")] * (MAX_NODES + 1)).check()
    with pytest.raises(InvalidInput, match="edges: are 50001"):
        replace(graph("ab"), edges=[Edge(0, 1)] * (MAX_EDGES + 1)).check()


@pytest.mark.parametrize(
    ("names", "edges", "path"),
    [
        ("ab", [(0, 1), (1, 0)], "aba"),
        ("abc", [(0, 1), (1, 2), (2, 0)], "abca"),
        ("xabcy", [(0, 1), (1, 3), (3, 2), (2, 1), (2, 4)], "acba"),
        # what only leads to a circle, or away from it, is not of it
        ("abcdef", [(0, 1), (1, 2), (2, 1), (2, 3), (4, 5)], "bcb"),
    ],
)
def test_a_circle_is_named_with_its_path(names, edges, path):
    with pytest.raises(CycleDetected) as caught:
        graph(names, edges).check()
    assert caught.value.path == list(path)
    assert " -> ".join(path) in str(caught.value)


def test_a_long_circle_is_shown_by_its_beginning():
    size = 50
    edges = [(n, (n + 1) % size) for n in range(size)]
    with pytest.raises(CycleDetected, match=r"n0 -> n1 -> n2 .* -> …") as caught:
        graph([f"n{n}" for n in range(size)], edges).check()
    assert len(caught.value.path) == size + 1


def test_nodes_are_put_behind_those_they_wait_for():
    given = graph("dcab", [(2, 1), (3, 1), (1, 0)], [Group(1, 0, EdgeGroupPolicy.any_of())])
    given.check()
    found = given.in_order()
    assert [one.name for one in found.nodes] == ["a", "b", "c", "d"]
    assert found.edges == [Edge(0, 2), Edge(1, 2), Edge(2, 3)]
    assert found.groups == [Group(2, 0, EdgeGroupPolicy.any_of())]


def test_a_graph_in_order_stays_as_it_is():
    given = graph("abc", [(0, 2)])
    assert given.in_order() is given


def test_every_graph_without_a_circle_can_be_put_in_order():
    random = Random(7)
    for _ in range(200):
        size = random.randint(2, 20)
        order = random.sample(range(size), size)
        pairs = {tuple(sorted(random.sample(range(size), 2))) for _ in range(random.randint(0, 40))}
        edges = [Edge(order[a], order[b]) for a, b in pairs]
        given = graph([f"n{n}" for n in range(size)], edges)
        given.check()
        found = given.in_order()
        assert all(edge.upstream < edge.downstream for edge in found.edges)

        def by_name(one):
            return {
                (one.nodes[edge.upstream].name, one.nodes[edge.downstream].name)
                for edge in one.edges
            }

        assert by_name(found) == by_name(given)


# What a reader is shown


def test_what_is_not_decided_runs():
    group = GroupInfo(
        downstream_id=mint_in(0),
        group_no=0,
        group_policy=EdgeGroupPolicy(GroupPolicy.ALL_OF),
        n=7,
        succeeded=1,
        failed=2,
        skipped=3,
        state=GroupState.PENDING,
        fired_at=None,
        cancel_pending=False,
        cancel_reason=None,
    )
    assert group.running == 1


def test_what_has_not_ended_is_counted():
    counts = {PublicState.COMPLETED: 2, PublicState.ACTIVE: 1, PublicState.DELAYED: 4}
    assert FlowSummary(mint_flow(), FlowState.RUNNING, 7, counts).unfinished == 5


def test_a_flow_ends_in_three_ways():
    ended = {state for state in FlowState if state.is_terminal}
    assert ended == {FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED}


# Ids


def test_the_id_of_a_flow_reads_back():
    id = mint_flow(64)
    again = FlowId.parse(str(id))
    assert (again, again.partition_key, again.uuid) == (id, id.partition_key, id.uuid)
    assert isinstance(again, FlowId)
    assert not isinstance(again, ExecutionId)
    with pytest.raises(InvalidInput) as caught:
        FlowId.parse("nonsense")
    assert caught.value.field == "flow_id"


def test_a_member_is_minted_where_its_flow_is():
    flow = mint_flow(64)
    member = mint_in(flow.partition_key)
    assert isinstance(member, ExecutionId)
    assert member.partition_key == flow.partition_key
    assert {mint_flow().partition_key for _ in range(20)} == {0}
    assert len({mint_flow(64).partition_key for _ in range(200)}) > 10
