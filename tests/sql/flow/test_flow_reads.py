"""What can be read of flows: themselves, their edges, groups and members, and their results."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

import pytest

from support.factories import new_id, refused
from support.flows import Edge, Group, make_flow
from support.graphs import Graphs


@pytest.fixture
def graphs(engine):
    return Graphs(engine)


def groups(row):
    return json.loads(row["edge_groups"])


# describe_flow


async def test_a_new_flow_is_open(graphs):
    flow = await graphs.flow()
    row = await flow.row()
    assert (row["state"], row["graph_revision"], row["node_count"], row["edge_count"]) == (
        "open",
        0,
        0,
        0,
    )
    assert row["created_at"] == row["mutated_at"]
    assert (row["cancelled_at"], row["cancel_policy"], row["trimmed_at"]) == (None, None, None)
    assert (json.loads(row["tags"]), groups(row)) == ({}, [])


async def test_a_flow_that_is_not_there_has_no_row(engine, graphs):
    flow = await graphs.flow()
    for function in ("describe_flow", "summarise_flow", "list_edges", "list_flow_members"):
        assert await graphs.call(function, flow_id=new_id()) == []
        assert await graphs.call(function, flow_id=None) == []
        assert await Graphs(engine.within("other")).call(function, flow_id=flow.id) == []
    assert len(await Graphs(engine.within(None)).call("describe_flow", flow_id=flow.id)) == 1


async def test_a_cancelled_flow_says_why(clock, graphs):
    flow = await graphs.flow("a")
    now = await clock.freeze()
    await graphs.call(
        "cancel_flow_header", flow_id=flow.id, policy="flow_only", reason="enough", actor="ann"
    )
    row = await flow.row()
    assert (row["state"], row["cancelled_at"], row["cancel_policy"]) == (
        "cancelled",
        now,
        "flow_only",
    )
    assert (row["cancel_reason"], row["cancelled_by"]) == ("enough", "ann")


async def test_groups_are_told_as_they_stand(engine, graphs):
    """The state of a group is the one that was stored when it was decided."""
    flow = await make_flow(
        engine,
        nodes=["a", "b", "c", "d", "e"],
        edges=[
            ("a", "d"),
            ("b", "d"),
            ("c", "d"),
            ("a", "e"),
            Edge("b", "e", group=1),
        ],
        groups=[Group("d", "quorum", k=2, on_satisfied="let_run")],
    )

    async def told():
        row = await graphs.one("describe_flow", flow_id=flow.id)
        return {
            (flow.named(UUID(one["downstream_id"])), one["group_no"]): (
                one["state"],
                one["n"],
                one["succeeded"],
                one["failed"],
            )
            for one in groups(row)
        }

    assert await told() == {
        ("d", 0): ("pending", 3, 0, 0),
        ("e", 0): ("pending", 1, 0, 0),
        ("e", 1): ("pending", 1, 0, 0),
    }
    await flow.complete("a")
    await flow.fail("b")
    assert await told() == {
        ("d", 0): ("pending", 3, 1, 1),
        ("e", 0): ("satisfied", 1, 1, 0),
        ("e", 1): ("impossible", 1, 0, 1),
    }
    await flow.complete("c")
    found = await told()
    assert found["d", 0] == ("satisfied", 3, 2, 1)
    row = await graphs.one("describe_flow", flow_id=flow.id)
    order = [(one["downstream_id"], one["group_no"]) for one in groups(row)]
    assert order == sorted(order)
    quorum = next(one for one in groups(row) if one["policy"] == "quorum")
    assert (quorum["k"], quorum["on_satisfied"]) == (2, "let_run")
    assert quorum["fired_at"]


# list_flows


async def pages(graphs, limit, **given):
    """The ids of all flows, page by page."""
    found, after = [], None
    while True:
        *rows, last = await graphs.call("list_flows", after=after, limit=limit, **given)
        assert len(rows) <= limit
        assert last["flow_id"] is None
        found.append([row["flow_id"] for row in rows])
        after = last["next_after"]
        if after is None:
            return found
        # behind the last one of the page
        assert not rows or after == rows[-1]["flow_id"]


async def test_flows_are_listed_page_by_page(graphs):
    ids = sorted([(await graphs.flow()).id for _ in range(5)])
    assert await pages(graphs, 2) == [ids[:2], ids[2:4], ids[4:]]
    assert await pages(graphs, 5) == [ids]
    assert await pages(graphs, 10) == [ids]
    newest = ids[::-1]
    assert await pages(graphs, 2, newest=True) == [newest[:2], newest[2:4], newest[4:]]


async def test_where_there_is_nothing_the_page_is_empty(graphs):
    assert await pages(graphs, 10) == [[]]
    assert await pages(graphs, 10, newest=True) == [[]]


async def test_a_tenant_sees_its_own_flows(engine, graphs):
    ours = (await graphs.flow()).id
    theirs = (await Graphs(engine.within("other")).flow()).id
    assert await pages(graphs, 10) == [[ours]]
    assert await pages(Graphs(engine.within("other")), 10) == [[theirs]]
    both = await pages(Graphs(engine.within(None)), 1)
    assert [one for page in both for one in page] == sorted([ours, theirs])


async def test_a_page_counts_a_bounded_number_of_members(db, graphs):
    """It is cut behind the flow that was too much; the cursor goes on."""
    ids = sorted([(await graphs.flow()).id for _ in range(3)])
    await db.execute("update ff.flow set node_count = 100001, graph_revision = 100001")
    db.leave_broken("the counts are made up")
    assert await pages(graphs, 10) == [[ids[0]], [ids[1]], [ids[2]]]


async def test_a_list_tells_how_far_flows_are(engine, graphs):
    flow = await make_flow(engine, nodes=["a", "b"], edges=[("a", "b")])
    await flow.complete("a")
    row, _ = await graphs.call("list_flows")
    assert (row["state"], row["node_count"], row["edge_count"]) == ("open", 2, 1)
    assert json.loads(row["counts"]) == {"completed": 1, "waiting": 1}
    await flow.complete("b")
    assert (await graphs.call("list_flows"))[0]["state"] == "completed"
    await graphs.call("cancel_flow_header", flow_id=flow.id)
    assert (await graphs.call("list_flows"))[0]["state"] == "completed"
    await flow.engine.replay(flow["b"])
    await graphs.call("cancel_flow_header", flow_id=flow.id)
    assert (await graphs.call("list_flows"))[0]["state"] == "cancelled"


@pytest.mark.parametrize("given", [{"limit": 0}, {"limit": None}, {"limit": 10001}])
async def test_a_page_has_a_size(graphs, given):
    with refused("WF001", field="limit"):
        await graphs.call("list_flows", **given)


async def test_an_order_is_asked_for_plainly(graphs):
    with refused("WF001", field="newest"):
        await graphs.call("list_flows", newest=None)


# summarise_flow


async def test_the_state_of_a_flow_follows_from_its_members(clock, engine, graphs):
    """Live counts: there is no summary that could be behind (section 1.12)."""
    flow = await make_flow(engine, nodes=["a", "b", "c"], edges=[("a", "c"), ("b", "c")])

    async def summary():
        row = await graphs.one("summarise_flow", flow_id=flow.id)
        counts = json.loads(row["counts"])
        assert sum(counts.values()) == row["total"] == 3
        return row["state"], counts

    assert await summary() == ("blocked", {"waiting": 2, "waiting_children": 1})
    lease = await flow.take("a")
    assert await summary() == ("running", {"active": 1, "waiting": 1, "waiting_children": 1})
    await engine.complete(lease)
    await engine.delay(await flow.take("b"), timedelta(hours=1))
    assert (await summary())[0] == "blocked"
    await clock.advance(timedelta(hours=2))
    await engine.promote()
    await flow.complete("b")
    assert await summary() == ("open", {"completed": 2, "waiting": 1})
    await flow.complete("c")
    assert await summary() == ("completed", {"completed": 3})


@pytest.mark.parametrize(
    ("end", "state"), [("failed", "failed"), ("cancelled", "failed"), ("success", "completed")]
)
async def test_what_is_skipped_is_no_failure_but_what_caused_it_is(engine, graphs, end, state):
    flow = await make_flow(engine, nodes=["a", "b"], edges=[("a", "b")])
    await flow.end("a", end)
    if end == "success":
        await flow.complete("b")
    row = await graphs.one("summarise_flow", flow_id=flow.id)
    assert row["state"] == state


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ({"a": "success"}, "completed"),  # b and c were cancelled as not needed
        ({"a": "failed", "b": "success"}, "completed"),
        ({"a": "failed", "b": "failed", "c": "failed"}, "failed"),
    ],
)
async def test_a_flow_has_not_failed_by_what_it_could_do_without(engine, graphs, ends, state):
    flow = await make_flow(
        engine,
        nodes=["a", "b", "c", "d"],
        edges=[("a", "d"), ("b", "d"), ("c", "d")],
        groups=[Group("d", "any_of", on_satisfied="cancel_remaining")],
    )
    for name, end in ends.items():
        await flow.end(name, end)
    if state == "completed":
        await flow.complete("d")
    row = await graphs.one("summarise_flow", flow_id=flow.id)
    assert row["state"] == state


async def test_a_last_node_that_failed_fails_its_flow(engine, graphs):
    flow = await make_flow(engine, nodes=["a", "b"])
    await flow.complete("a")
    await flow.fail("b")
    assert (await graphs.one("summarise_flow", flow_id=flow.id))["state"] == "failed"


async def test_a_skipped_member_alone_does_not_fail_its_flow(db, engine, graphs):
    """Its upstream was trimmed, or is of no flow: what is left is completed and skipped."""
    flow = await make_flow(engine, nodes=["a", "b", "c"], edges=[("a", "b")])
    await flow.fail("a")
    await flow.complete("c")
    await db.execute("update ff.execution set flow_id = null where execution_id = $1", flow["a"])
    db.leave_broken("the upstream was taken out of the flow")
    row = await graphs.one("summarise_flow", flow_id=flow.id)
    assert (row["state"], json.loads(row["counts"])) == (
        "completed",
        {"completed": 1, "skipped": 1},
    )


async def test_an_empty_flow_is_open(graphs):
    flow = await graphs.flow()
    row = await graphs.one("summarise_flow", flow_id=flow.id)
    assert tuple(row) == ("open", 0, "{}")


# Edges


async def test_edges_are_listed_both_ways(engine, graphs):
    flow = await make_flow(
        engine, nodes=["a", "b", "c", "alone"], edges=[("a", "c"), ("b", "c"), ("a", "b")]
    )

    async def found(**given):
        rows = await graphs.call("list_edges", flow_id=flow.id, **given)
        assert [row["edge_id"] for row in rows] == sorted(row["edge_id"] for row in rows)
        return {(flow.named(row["upstream_id"]), flow.named(row["downstream_id"])) for row in rows}

    assert await found() == {("a", "c"), ("b", "c"), ("a", "b")}
    assert await found(upstream_id=flow["a"]) == {("a", "c"), ("a", "b")}
    assert await found(downstream_id=flow["c"]) == {("a", "c"), ("b", "c")}
    assert await found(upstream_id=flow["a"], downstream_id=flow["c"]) == {("a", "c")}
    assert await found(upstream_id=flow["c"]) == set()
    assert await found(upstream_id=flow["alone"]) == set()
    assert await found(downstream_id=flow["alone"]) == set()


async def test_edges_are_listed_page_by_page(engine, graphs):
    nodes = [f"n{n}" for n in range(6)]
    flow = await make_flow(engine, nodes=nodes, edges=[("n0", name) for name in nodes[1:]])
    seen, after = [], None
    while rows := await graphs.call("list_edges", flow_id=flow.id, after=after, limit=2):
        seen += [row["edge_id"] for row in rows]
        after = seen[-1]
    assert seen == sorted(flow.edge_ids)
    rows = await graphs.call("list_edges", flow_id=flow.id, upstream_id=flow["n0"], limit=2)
    assert [row["edge_id"] for row in rows] == seen[:2]
    with refused("WF001", field="limit"):
        await graphs.call("list_edges", flow_id=flow.id, limit=0)


async def test_an_execution_of_another_flow_has_no_edges_here(engine, graphs):
    flow = await make_flow(engine, nodes=["a", "b"], edges=[("a", "b")])
    other = await make_flow(engine, nodes=["c", "d"], edges=[("c", "d")])
    assert await graphs.call("list_edges", flow_id=other.id, upstream_id=flow["a"]) == []
    (edge,) = flow.edge_ids
    assert await graphs.call("describe_edge", flow_id=other.id, edge_id=edge) == []


async def test_a_staged_edge_reads_back(clock, graphs):
    now = await clock.freeze()
    flow = await graphs.flow("a", "b")
    staged = await flow.stage("a", "b", data_passing_ref="payload", group_no=4)
    row = await graphs.one("describe_edge", flow_id=flow.id, edge_id=staged["edge_id"])
    assert dict(row) == {
        "edge_id": staged["edge_id"],
        "upstream_id": flow.ids["a"],
        "downstream_id": flow.ids["b"],
        "group_no": 4,
        "kind": "success_only",
        "data_passing_ref": "payload",
        "created_at": now,
        "created_by": "engine",
        "applied_at": None,
        "resolution": None,
        "outcome": None,
        "resolved_at": None,
    }


async def test_an_edge_tells_how_its_upstream_ended(engine, graphs):
    flow = await make_flow(engine, nodes=["a", "b", "c"], edges=[("a", "c"), ("b", "c")])
    await flow.complete("a")
    await flow.fail("b")
    rows = await graphs.call("list_edges", flow_id=flow.id)
    told = {flow.named(row["upstream_id"]): (row["resolution"], row["outcome"]) for row in rows}
    assert told == {"a": ("satisfied", "success"), "b": ("impossible", "failed")}
    assert all(row["resolved_at"] for row in rows)


async def test_an_edge_that_is_not_there_has_no_row(engine, graphs):
    flow = await graphs.flow("a", "b")
    staged = await flow.stage("a", "b")
    assert await graphs.call("describe_edge", flow_id=flow.id, edge_id=new_id()) == []
    assert await graphs.call("describe_edge", flow_id=flow.id, edge_id=None) == []
    other = Graphs(engine.within("other"))
    assert await other.call("describe_edge", flow_id=flow.id, edge_id=staged["edge_id"]) == []


# Members


async def test_members_are_listed_with_their_names(engine, graphs):
    flow = await make_flow(engine, nodes=["a", "b", "c"], edges=[("a", "b"), ("a", "c")])
    await flow.fail("a")
    rows = await graphs.call("list_flow_members", flow_id=flow.id)
    assert [(row["node_name"], row["public_state"]) for row in rows] == [
        ("a", "failed"),
        ("b", "skipped"),
        ("c", "skipped"),
    ]
    assert rows[0]["lane"] == flow.lanes["a"]
    assert (rows[0]["task"], rows[0]["attempt_index"]) == ("tests.work", 0)
    assert rows[0]["failure_reason"]
    some = await graphs.call("list_flow_members", flow_id=flow.id, states=["skipped", "active"])
    assert [row["node_name"] for row in some] == ["b", "c"]
    first = await graphs.call("list_flow_members", flow_id=flow.id, limit=1)
    rest = await graphs.call("list_flow_members", flow_id=flow.id, after=first[0]["execution_id"])
    assert [row["node_name"] for row in [*first, *rest]] == ["a", "b", "c"]
    with refused("WF001", field="limit"):
        await graphs.call("list_flow_members", flow_id=flow.id, limit=10001)


async def test_the_flow_of_an_execution_is_a_column_of_the_list(db, engine, graphs):
    """resolve_execution_flow_id"""
    flow = await graphs.flow("a")
    alone = await graphs.submitted()
    read = "select flow_id from ff.execution_list where execution_id = $1"
    assert await db.fetchval(read, flow.ids["a"]) == flow.id
    assert await db.fetchval(read, alone) is None
    assert await db.fetchval(read, new_id()) is None


# evaluate_flow_eligibility


async def eligibility(graphs, execution_id):
    row = await graphs.one("evaluate_flow_eligibility", execution_id=execution_id)
    return row["eligibility"]


async def test_what_depends_on_nothing_is_eligible(engine, graphs):
    alone = await graphs.submitted()
    assert await eligibility(graphs, alone) == "eligible"
    assert await eligibility(graphs, new_id()) == "not_found"
    assert await eligibility(graphs, None) == "not_found"
    assert await eligibility(Graphs(engine.within("other")), alone) == "not_found"


@pytest.mark.parametrize("state", ["leased", "expired_lease", "revoked", "completed", "failed"])
async def test_what_is_not_runnable_is_told_so(graphs, make, state):
    """Owned or ended is never runnable here: a check of the table sees to that."""
    execution = await make.execution(state)
    assert await eligibility(graphs, execution.id) == "not_runnable"


async def test_dependencies_are_read_from_the_edges(engine, graphs):
    """An applied edge makes its downstream not eligible, and only as long as it is open."""
    flow = await graphs.flow("a", "b", "c")
    staged = await flow.stage("a", "b")
    assert await eligibility(graphs, flow.ids["b"]) == "eligible"
    await flow.apply(staged, "a", "b")
    assert await eligibility(graphs, flow.ids["b"]) == "blocked_by_dependencies"
    await engine.complete(await engine.take(flow.ids["a"]))
    assert await eligibility(graphs, flow.ids["b"]) == "eligible"


async def test_an_edge_of_a_decided_group_blocks_nobody(engine, graphs):
    flow = await make_flow(
        engine,
        nodes=["a", "b", "c"],
        edges=[("a", "c"), ("b", "c")],
        groups=[Group("c", "any_of", on_satisfied="let_run")],
    )
    assert await eligibility(graphs, flow["c"]) == "blocked_by_dependencies"
    await flow.complete("a")
    assert await eligibility(graphs, flow["c"]) == "eligible"


async def test_what_cannot_be_any_more_is_impossible(db, engine, graphs):
    """Seen from the group; here the downstream is made to look as if it were not told yet."""
    flow = await make_flow(engine, nodes=["a", "b"], edges=[("a", "b")])
    await db.execute(
        "update ff.edge_group set state = 'impossible', failed = 1, fired_at = ff.now(), "
        "fired_k = 1, fired_n = 1"
    )
    db.leave_broken("the group is decided without its edges")
    assert await eligibility(graphs, flow["b"]) == "impossible"


# read_inputs


async def inputs(graphs, flow, *names):
    rows = await graphs.call("read_inputs", execution_ids=[flow[name] for name in names])
    return [
        (
            flow.named(row["execution_id"]),
            row["node_name"],
            row["group_no"],
            row["is_counted"],
            row["result"],
        )
        for row in rows
    ]


async def test_a_node_reads_the_results_of_its_upstreams_by_name(engine, graphs):
    flow = await make_flow(
        engine,
        nodes=["a", "b", "c", "d"],
        edges=[("a", "c"), Edge("b", "c", group=1), ("c", "d")],
    )
    assert await inputs(graphs, flow, "c") == [
        ("c", "a", 0, False, None),
        ("c", "b", 1, False, None),
    ]
    await flow.complete("b", b'"from b"')
    await flow.complete("a", b'"from a"')
    # in the order in which they ended
    assert await inputs(graphs, flow, "c", "d", "a") == [
        ("c", "b", 1, True, b'"from b"'),
        ("c", "a", 0, True, b'"from a"'),
        ("d", "c", 0, False, None),
    ]
    rows = await graphs.call("read_inputs", execution_ids=[flow["c"]])
    assert {row["result_encoding"] for row in rows} == {"json"}
    assert {row["edge_id"] for row in rows} == set(flow.edge_ids[:2])


async def test_what_ends_after_the_decision_is_not_counted(clock, engine, graphs):
    """What a node sees does not change between its attempts, not even within one moment."""
    await clock.freeze()
    flow = await make_flow(
        engine,
        nodes=["a", "b", "c", "d"],
        edges=[("a", "d"), ("b", "d"), ("c", "d")],
        groups=[Group("d", "quorum", k=2, on_satisfied="let_run")],
    )
    await flow.complete("b", b"2")
    await flow.complete("c", b"3")
    decided = await inputs(graphs, flow, "d")
    assert [(name, counted) for _, name, _, counted, _ in decided] == [
        ("b", True),
        ("c", True),
        ("a", False),
    ]
    await flow.complete("a", b"1")
    after = await inputs(graphs, flow, "d")
    assert after[:2] == decided[:2]
    assert after[2] == ("d", "a", 0, False, b"1")


async def test_an_upstream_that_failed_has_nothing_to_read(engine, graphs):
    flow = await make_flow(
        engine,
        nodes=["a", "b", "c"],
        edges=[("a", "c"), ("b", "c")],
        groups=[Group("c", "any_of", on_satisfied="let_run")],
    )
    await flow.fail("a")
    await flow.complete("b", b"2")
    found = await inputs(graphs, flow, "c")
    assert found == [("c", "a", 0, False, None), ("c", "b", 0, True, b"2")]


async def test_the_results_of_others_are_not_read(engine, graphs):
    flow = await make_flow(engine, nodes=["a", "b"], edges=[("a", "b")])
    await flow.complete("a", b"1")
    other = Graphs(engine.within("other"))
    assert await other.call("read_inputs", execution_ids=[flow["b"]]) == []
    assert await graphs.call("read_inputs", execution_ids=[new_id(), None]) == []
    for none in ([], None):
        with refused("WF001", field="execution_ids"):
            await graphs.call("read_inputs", execution_ids=none)
