"""Flows built step by step: members, staged edges, policies, and edges that are applied."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from support.database import home, partitions
from support.factories import Engine, new_id, refused
from support.graphs import Graphs, Stepwise


@pytest.fixture
def graphs(engine):
    return Graphs(engine)


async def beside(db, flow):
    """The same flow on a connection of its own."""
    return Stepwise(Graphs(Engine(await db.connect())), flow.id, flow.ids)


async def counts(flow):
    row = await flow.row()
    return row["node_count"], row["edge_count"], row["graph_revision"]


# create_flow


async def test_a_flow_is_made_once(graphs):
    flow_id = new_id()
    first = await graphs.create(flow_id, tags='{"team.name": "blue"}', creator="ann")
    assert (first["outcome"], first["graph_revision"]) == ("created", 0)
    again = await graphs.create(flow_id, flow_kind="other")
    assert (again["outcome"], again["graph_revision"]) == ("already_satisfied", 0)
    row = await graphs.one("describe_flow", flow_id=flow_id)
    assert (row["flow_kind"], row["creator"]) == ("test", "ann")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"flow_kind": None}, "flow_kind"),
        ({"flow_kind": ""}, "flow_kind"),
        ({"flow_kind": "x" * 257}, "flow_kind"),
        ({"namespace": None}, "namespace"),
        ({"partition_key": partitions()}, "partition_key"),
        ({"partition_key": None}, "partition_key"),
        ({"tags": '{"Bad": "x"}'}, "tags"),
        ({"tags": "nonsense"}, "tags"),
        ({"creator": "x" * 257}, "creator"),
    ],
)
async def test_a_flow_that_cannot_be_made_is_refused(db, graphs, fields, field):
    with refused("WF001", field=field):
        await graphs.create(new_id(), **fields)
    with refused("WF001", field="flow_id"):
        await graphs.one("create_flow", flow_id=None, flow_kind="test")
    assert await db.fetchval("select count(*) from ff.flow") == 0


async def test_the_flow_of_another_tenant_is_not_taken_over(engine, graphs):
    flow_id = new_id()
    await graphs.create(flow_id)
    with refused("WF001", field="flow_id", problem="is taken: make a new one"):
        await Graphs(engine.within("other")).create(flow_id)


# add_execution_to_flow


async def test_a_member_counts_once(db, engine, graphs):
    flow = await graphs.flow()
    flow.ids["a"] = await graphs.submitted()
    added = await flow.add("a")
    assert tuple(added) == ("added", 1, 1)
    again = await flow.add("a")
    assert tuple(again) == ("already_member", 1, 1)
    assert await counts(flow) == (1, 0, 1)
    # membership is one fact, and seen at once
    assert (await engine.row(flow.ids["a"]))["flow_id"] == flow.id
    names = await db.fetch("select node_name from ff.execution_body")
    assert [row["node_name"] for row in names] == ["a"]
    assert await engine.kinds(flow.ids["a"]) == ["submitted"]


@pytest.mark.parametrize("state", ["leased", "delayed", "completed", "failed", "blocked"])
async def test_an_execution_in_any_state_can_be_added(graphs, make, engine, state):
    flow = await graphs.flow()
    flow.ids["a"] = (await make.execution(state)).id
    before = dict(await engine.row(flow.ids["a"]))
    assert (await flow.add("a"))["outcome"] == "added"
    after = await engine.row(flow.ids["a"])
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"flow_id", "has_body", "mutated_at"}
    assert after["flow_id"] == flow.id


async def test_an_unknown_flow_leaves_the_execution_as_it_was(engine, graphs):
    flow = Stepwise(graphs, new_id(), {"a": await graphs.submitted()})
    before = await engine.snapshot()
    with refused("WF305", message="flow_not_found"):
        await flow.add("a")
    assert await engine.snapshot() == before


async def test_an_unknown_execution_leaves_the_flow_as_it_was(graphs):
    flow = await graphs.flow()
    before = await flow.row()
    flow.ids["a"] = new_id()
    with refused("WF301", message="not_found"):
        await flow.add("a")
    assert await flow.row() == before


async def test_an_execution_is_in_one_flow_only(graphs):
    first, second = await graphs.flow("a"), await graphs.flow()
    second.ids["a"] = first.ids["a"]
    with refused("WF408", flow_id=f"{{fp:{home()}}}:{first.id}"):
        await second.add("a")
    assert await counts(second) == (0, 0, 0)


async def test_a_cancelled_flow_takes_no_members(graphs):
    flow = await graphs.flow()
    await graphs.call("cancel_flow_header", flow_id=flow.id)
    flow.ids["a"] = await graphs.submitted()
    with refused("WF215", message="flow_already_terminal"):
        await flow.add("a")
    assert await counts(flow) == (0, 0, 0)


async def test_a_member_that_is_there_is_told_so_after_the_cancel(graphs):
    """A repeat gets its first answer, whatever happened since."""
    flow = await graphs.flow("a")
    await graphs.call("cancel_flow_header", flow_id=flow.id)
    assert (await flow.add("a"))["outcome"] == "already_member"


async def test_the_execution_of_another_tenant_is_not_found(engine, graphs):
    flow = await graphs.flow()
    other = Graphs(engine.within("other"))
    flow.ids["a"] = await other.submitted()
    with refused("WF301"):
        await flow.add("a")
    with refused("WF305"):
        await Stepwise(other, flow.id, flow.ids).add("a")
    # an operator sees both, and still does not mix them
    with refused("WF301"):
        await Stepwise(Graphs(engine.within(None)), flow.id, flow.ids).add("a")


async def test_many_members_can_be_added_at_once(db, graphs):
    flow = await graphs.flow()
    flow.ids |= {f"n{n}": await graphs.submitted() for n in range(24)}
    others = [await beside(db, flow) for _ in range(6)]

    async def add(flow, names):
        for name in names:
            assert (await flow.add(name))["outcome"] == "added"

    names = list(flow.ids)
    await asyncio.gather(*(add(one, names[n::6]) for n, one in enumerate(others)))
    assert await counts(flow) == (24, 0, 24)


@pytest.mark.parametrize("name", ["", "x" * 257])
async def test_a_name_of_a_member_is_short(graphs, name):
    flow = await graphs.flow("a")
    with refused("WF001", field="node_name"):
        await graphs.call(
            "add_execution_to_flow",
            flow_id=flow.id,
            execution_id=flow.ids["a"],
            node_name=name,
        )


# stage_dependency_edge


async def test_a_staged_edge_counts_and_holds_nobody_back(db, graphs):
    flow = await graphs.flow("a", "b")
    edge_id = new_id()
    edge = await flow.stage("a", "b", edge_id=edge_id, data_passing_ref="payload", group_no=2)
    assert tuple(edge) == ("staged", edge_id, 3)
    assert await counts(flow) == (2, 1, 3)
    assert await flow.state("b") == "waiting"
    (group,) = await flow.groups("b")
    assert (group["group_no"], group["n"], group["policy"]) == (2, 1, "all_of")
    row = await db.fetchrow("select * from ff.edge")
    assert (row["applied_at"], row["resolution"]) == (None, None)
    assert (row["data_passing_ref"], row["created_by"], row["kind"]) == (
        "payload",
        "engine",
        "success_only",
    )


async def test_an_empty_reference_is_none(db, graphs):
    flow = await graphs.flow("a", "b")
    await flow.stage("a", "b", data_passing_ref="")
    assert await db.fetchval("select data_passing_ref from ff.edge") is None


@pytest.mark.parametrize("revision", [0, 1, 3, 99])
async def test_a_graph_that_has_changed_is_read_again(db, graphs, revision):
    flow = await graphs.flow("a", "b")
    with refused("WF412", expected=revision, graph_revision=2):
        await flow.stage("a", "b", revision=revision)
    assert await counts(flow) == (2, 0, 2)
    assert await db.fetchval("select count(*) from ff.edge") == 0
    assert await flow.groups("b") == []


async def test_a_repeated_stage_gets_its_first_answer(graphs):
    flow = await graphs.flow("a", "b", "c")
    edge_id = new_id()
    first = await flow.stage("a", "b", revision=3, edge_id=edge_id)
    await flow.stage("a", "c")
    again = await flow.stage("a", "b", revision=3, edge_id=edge_id)
    assert tuple(again) == tuple(first)
    assert await counts(flow) == (3, 2, 5)
    # another edge with that id is not a repeat
    with refused("WF412"):
        await flow.stage("a", "c", revision=3, edge_id=edge_id)


async def test_an_edge_id_is_used_once(graphs):
    flow = await graphs.flow("a", "b", "c")
    edge_id = new_id()
    await flow.stage("a", "b", edge_id=edge_id, data_passing_ref="payload")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await flow.stage("a", "c", edge_id=edge_id)
    assert caught.value.sqlstate == "WF411"
    edge = json.loads(caught.value.detail)["edge"]
    assert edge["edge_id"] == str(edge_id)
    assert edge["downstream_id"] == f"{{fp:{home()}}}:{flow.ids['b']}"
    assert (edge["data_passing_ref"], edge["resolution"]) == ("payload", None)
    # the revision stays
    assert await counts(flow) == (3, 1, 4)
    with refused("WF411"):
        await flow.stage("a", "b", edge_id=edge_id, data_passing_ref="payload")


async def test_two_edges_between_a_pair_count_twice(graphs):
    flow = await graphs.flow("a", "b")
    await flow.stage("a", "b")
    await flow.stage("a", "b")
    assert [group["n"] for group in await flow.groups("b")] == [2]


async def test_nobody_waits_for_itself(graphs):
    flow = await graphs.flow("a")
    with refused("WF409", message="self_referencing_edge"):
        await flow.stage("a", "a")
    assert await counts(flow) == (1, 0, 1)


async def test_both_ends_are_members(graphs):
    flow = await graphs.flow("a")
    flow.ids["stranger"] = await graphs.submitted()
    flow.ids["nobody"] = new_id()
    for upstream, downstream in [("a", "stranger"), ("stranger", "a"), ("a", "nobody")]:
        with refused("WF216", message="not_in_flow"):
            await flow.stage(upstream, downstream)
    assert await counts(flow) == (1, 0, 1)


async def test_a_circle_of_two_is_refused(graphs):
    """Its two members would wait for each other for ever."""
    flow = await graphs.flow("a", "b")
    await flow.stage("a", "b")
    path = [f"{{fp:{home()}}}:{flow.ids[name]}" for name in ("a", "b", "a")]
    with refused("WF410", path=path):
        await flow.stage("b", "a")
    assert await counts(flow) == (2, 1, 3)


async def test_a_circle_is_shown_whole(graphs):
    flow = await graphs.flow("a", "b", "c", "d", "e")
    for upstream, downstream in [("a", "b"), ("b", "c"), ("b", "d"), ("c", "e"), ("a", "e")]:
        await flow.stage(upstream, downstream)
    path = [f"{{fp:{home()}}}:{flow.ids[name]}" for name in ("a", "b", "c", "a")]
    with refused("WF410", path=path):
        await flow.stage("c", "a")
    # another way round is no circle
    await flow.stage("d", "e")


async def test_a_walk_that_is_too_long_is_refused_as_a_circle(db, engine, graphs):
    """Behind the downstream is a chain longer than a stage is ready to walk."""
    size = 3
    flow = await graphs.flow(*(f"n{n}" for n in range(size + 1)), "a")
    for n in range(size):
        await flow.stage(f"n{n}", f"n{n + 1}")
    found = await engine.connection.fetchval(
        f"select ff._find_cycle('{home()}', $1, $2, 2)", flow.ids["a"], flow.ids["n0"]
    )
    assert found == ["cycle_check_limit"]
    found = await engine.connection.fetchval(
        f"select ff._find_cycle('{home()}', $1, $2, 4)", flow.ids["a"], flow.ids["n0"]
    )
    assert found is None


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"edge_id": None}, "WF001", "edge_id"),
        ({"upstream_id": None}, "WF001", "upstream_id"),
        ({"downstream_id": None}, "WF001", "downstream_id"),
        ({"expected_graph_revision": None}, "WF001", "expected_graph_revision"),
        ({"data_passing_ref": "x" * 257}, "WF001", "data_passing_ref"),
        ({"group_no": -1}, "WF001", "group_no"),
        ({"group_no": None}, "WF001", "group_no"),
        ({"created_by": None}, "WF001", "created_by"),
        ({"kind": "completed"}, "WF003", "kind"),
        ({"kind": None}, "WF003", "kind"),
    ],
)
async def test_an_edge_that_makes_no_sense_is_refused(graphs, fields, code, field):
    flow = await graphs.flow("a", "b")
    given = {
        "flow_id": flow.id,
        "edge_id": new_id(),
        "upstream_id": flow.ids["a"],
        "downstream_id": flow.ids["b"],
        "expected_graph_revision": 2,
    }
    with refused(code, field=field):
        await graphs.call("stage_dependency_edge", **{**given, **fields})
    assert await counts(flow) == (2, 0, 2)


async def test_an_unknown_or_cancelled_flow_takes_no_edges(engine, graphs):
    flow = await graphs.flow("a", "b")
    with refused("WF305"):
        await Stepwise(graphs, new_id(), flow.ids).stage("a", "b", revision=0)
    with refused("WF305"):
        await Stepwise(Graphs(engine.within("other")), flow.id, flow.ids).stage(
            "a", "b", revision=2
        )
    await graphs.call("cancel_flow_header", flow_id=flow.id, policy="flow_only")
    with refused("WF215"):
        await flow.stage("a", "b")


async def test_a_group_that_is_decided_takes_no_more_edges(engine, graphs):
    """Its state stays; whoever waits again does so in a group of its own."""
    flow = await graphs.flow("a", "b", "c")
    await engine.complete(await engine.take(flow.ids["a"]))
    await flow.link("a", "b")
    assert [group["state"] for group in await flow.groups("b")] == ["satisfied"]
    with refused("WF001", field="group_no"):
        await flow.stage("c", "b")
    await flow.link("c", "b", group_no=1)
    assert await flow.state("b") == "waiting_children"


async def test_of_two_stages_with_one_revision_one_wins(db, graphs):
    flow = await graphs.flow("a", "b", "c")
    one, two = await beside(db, flow), await beside(db, flow)
    answers = await asyncio.gather(
        one.stage("a", "c", revision=3), two.stage("b", "c", revision=3), return_exceptions=True
    )
    failures = [answer for answer in answers if isinstance(answer, Exception)]
    assert [failure.sqlstate for failure in failures] == ["WF412"]
    assert await counts(flow) == (3, 1, 4)
    assert [group["n"] for group in await flow.groups("c")] == [1]


async def test_two_halves_of_a_circle_at_once_do_not_close_it(db, graphs):
    flow = await graphs.flow("a", "b")
    one, two = await beside(db, flow), await beside(db, flow)
    await asyncio.gather(
        one.stage("a", "b", revision=2), two.stage("b", "a", revision=2), return_exceptions=True
    )
    upstream = await db.fetchval("select upstream_id from ff.edge")
    ends = ("a", "b") if upstream == flow.ids["b"] else ("b", "a")
    with refused("WF410"):
        await flow.stage(*ends)


# set_edge_group_policy


async def test_a_policy_is_set_once_and_can_be_changed_before_the_first_edge(graphs):
    flow = await graphs.flow("a", "b")
    assert await flow.policy("b", "quorum", k=2) == "set"
    assert await flow.policy("b", "quorum", k=2) == "already_set"
    assert await flow.policy("b", "quorum", k=2, on_satisfied="cancel_remaining") == "already_set"
    # the whole policy is compared, not its kind alone
    assert await flow.policy("b", "quorum", k=2, on_satisfied="let_run") == "set"
    assert await flow.policy("b", "quorum", k=3, on_satisfied="let_run") == "set"
    assert await flow.policy("b", "any_of", group_no=1) == "set"
    assert await flow.policy("b", "all_of") == "set"
    found = [
        (row["group_no"], row["policy"], row["k"], row["on_satisfied"])
        for row in await flow.groups("b")
    ]
    assert found == [(0, "all_of", None, None), (1, "any_of", None, "cancel_remaining")]
    # no edge, no change of the graph
    assert await counts(flow) == (2, 0, 2)


async def test_a_policy_comes_before_the_first_edge(graphs):
    flow = await graphs.flow("a", "b")
    await flow.stage("a", "b")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await flow.policy("b", "any_of")
    assert caught.value.sqlstate == "WF001"
    assert "edge_group_policy_already_fixed" in json.loads(caught.value.detail)["problem"]
    # saying what is so already is no change, and another group is another matter
    assert await flow.policy("b", "all_of") == "already_set"
    assert await flow.policy("b", "any_of", group_no=1) == "set"


@pytest.mark.parametrize(
    ("policy", "fields", "field"),
    [
        ("quorum", {"k": 0}, "k"),
        ("quorum", {"k": -1}, "k"),
        ("quorum", {}, "k"),
        ("any_of", {"k": 1}, "k"),
        ("all_of", {"k": 1}, "k"),
        ("all_of", {"on_satisfied": "let_run"}, "on_satisfied"),
        ("any_of", {"on_satisfied": "stop"}, "on_satisfied"),
        ("some_of", {}, "policy"),
        (None, {}, "policy"),
        ("any_of", {"group_no": -1}, "group_no"),
        ("any_of", {"group_no": None}, "group_no"),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused(graphs, policy, fields, field):
    flow = await graphs.flow("a", "b")
    with refused("WF001", field=field):
        await flow.policy("b", policy, **fields)
    assert await flow.groups("b") == []


async def test_a_policy_is_for_a_member_of_a_flow_that_is_there(graphs):
    """The flow is looked up, and locked."""
    flow = await graphs.flow("a")
    flow.ids["stranger"] = await graphs.submitted()
    with refused("WF216"):
        await flow.policy("stranger", "any_of")
    with refused("WF305"):
        await Stepwise(graphs, new_id(), flow.ids).policy("a", "any_of")
    await graphs.call("cancel_flow_header", flow_id=flow.id)
    with refused("WF215"):
        await flow.policy("a", "any_of")


async def test_of_a_policy_and_a_first_edge_at_once_both_orders_make_sense(db, graphs):
    """The policy holds for the edge, or is refused because the edge was first."""
    seen = set()
    flow = await graphs.flow("a", "b")
    one, two = await beside(db, flow), await beside(db, flow)
    for number in range(30):
        names = (one.stage("a", "b", group_no=number), two.policy("b", "any_of", group_no=number))
        staged, told = await asyncio.gather(*names, return_exceptions=True)
        assert staged["outcome"] == "staged"
        (group,) = [row for row in await flow.groups("b") if row["group_no"] == number]
        if told == "set":
            assert group["policy"] == "any_of"
        else:
            assert told.sqlstate == "WF001"
            assert group["policy"] == "all_of"
        assert group["n"] == 1
        seen.add(group["policy"])
    assert seen


async def test_a_policy_waits_for_a_stage_that_is_not_committed(db, graphs):
    flow = await graphs.flow("a", "b")
    other = await beside(db, flow)
    async with db.conn.transaction():
        await flow.stage("a", "b")
        task = asyncio.create_task(other.policy("b", "any_of"))
        await db.until_waiting(task)
    with refused("WF001", field="policy"):
        await task


# apply_dependency_to_child


async def test_an_applied_edge_holds_its_downstream_back(db, engine, graphs):
    """The downstream cannot be claimed any more."""
    flow = await graphs.flow("a", "b")
    edge = await flow.stage("a", "b")
    answer = await flow.apply(edge, "a", "b")
    assert tuple(answer) == ("applied", 1, "waiting_children", None)
    row = await engine.row(flow.ids["b"])
    assert (row["eligibility"], row["blocking_reason"], row["cause"]) == (
        "blocked_by_dependencies",
        "waiting_for_children",
        "apply_dependency",
    )
    assert (await engine.row(flow.ids["a"]))["is_awaited"]
    assert await db.fetchval("select resolution::text from ff.edge") == "unsatisfied"

    again = await flow.apply(edge, "a", "b")
    assert tuple(again) == ("already_applied", 1, "waiting_children", None)
    assert await counts(flow) == (2, 1, 3)
    assert [group["n"] for group in await flow.groups("b")] == [1]
    await engine.complete(await engine.take(flow.ids["a"]))
    await engine.take(flow.ids["b"])


async def test_the_unsatisfied_are_counted(engine, graphs):
    flow = await graphs.flow("a", "b", "c")
    assert (await flow.link("a", "c"))["unsatisfied"] == 1
    assert (await flow.link("b", "c", group_no=1))["unsatisfied"] == 2
    await engine.complete(await engine.take(flow.ids["a"]))
    edge = await flow.stage("b", "c", group_no=2)
    assert (await flow.apply(edge, "b", "c"))["unsatisfied"] == 2


async def test_an_upstream_that_has_succeeded_satisfies_at_once(engine, graphs):
    """The downstream does not wait for an end that is past."""
    flow = await graphs.flow("a", "b")
    await engine.complete(await engine.take(flow.ids["a"]))
    answer = await flow.link("a", "b")
    assert tuple(answer) == ("applied", 0, "waiting", None)
    assert [group["state"] for group in await flow.groups("b")] == ["satisfied"]
    await engine.take(flow.ids["b"])


async def test_an_upstream_that_has_failed_skips_at_once(engine, graphs):
    flow = await graphs.flow("a", "b", "c")
    await flow.link("b", "c")
    await engine.fail(await engine.take(flow.ids["a"]), "permanent")
    answer = await flow.link("a", "b")
    assert (answer["outcome"], answer["public_state"]) == ("applied", "skipped")
    assert await flow.state("c") == "skipped"
    assert await engine.kinds(flow.ids["b"]) == ["submitted", "skipped"]


async def test_an_edge_that_is_staged_and_not_applied_keeps_the_group_open(engine, graphs):
    """The first end does not decide: staged edges are counted too."""
    flow = await graphs.flow("a", "b", "c")
    late = await flow.stage("b", "c")
    await flow.link("a", "c")
    await engine.complete(await engine.take(flow.ids["a"]))
    (group,) = await flow.groups("c")
    assert (group["n"], group["succeeded"], group["state"]) == (2, 1, "pending")
    assert await flow.state("c") == "waiting_children"
    await engine.complete(await engine.take(flow.ids["b"]))
    assert await flow.state("c") == "waiting_children"
    await flow.apply(late, "b", "c")
    assert await flow.state("c") == "waiting"


async def test_a_quorum_is_not_given_up_while_edges_are_only_staged(engine, graphs):
    flow = await graphs.flow("a", "b", "c", "d")
    await flow.policy("d", "quorum", k=2)
    edges = {name: await flow.stage(name, "d") for name in "abc"}
    await flow.apply(edges["a"], "a", "d")
    await engine.fail(await engine.take(flow.ids["a"]), "permanent")
    assert [group["state"] for group in await flow.groups("d")] == ["pending"]
    for name in "bc":
        await flow.apply(edges[name], name, "d")
        await engine.complete(await engine.take(flow.ids[name]))
    assert await flow.state("d") == "waiting"


async def test_the_ends_of_an_edge_are_compared(graphs):
    """An edge is not taken for another pair."""
    flow = await graphs.flow("a", "b", "c")
    edge = await flow.stage("a", "b")
    for ends in [("a", "c"), ("c", "b"), ("b", "a")]:
        with refused("WF003", field="edge_id"):
            await flow.apply(edge, *ends)
    with refused("WF003", field="edge_id"):
        await flow.apply({"edge_id": new_id()}, "a", "b")
    with refused("WF003", field="edge_id"):
        await Stepwise(graphs, new_id(), flow.ids).apply(edge, "a", "b")
    assert await flow.state("b") == "waiting"


@pytest.mark.parametrize(
    "arguments",
    [
        {"flow_id": None},
        {"edge_id": None},
        {"upstream_id": None},
        {"downstream_id": None},
    ],
)
async def test_an_edge_is_named_whole(graphs, arguments):
    flow = await graphs.flow("a", "b")
    edge = await flow.stage("a", "b")
    given = {
        "flow_id": flow.id,
        "edge_id": edge["edge_id"],
        "upstream_id": flow.ids["a"],
        "downstream_id": flow.ids["b"],
    }
    with refused("WF003", field="edge_id"):
        await graphs.call("apply_dependency_to_child", **{**given, **arguments})


async def test_the_edge_of_another_tenant_is_not_found(engine, graphs):
    flow = await graphs.flow("a", "b")
    edge = await flow.stage("a", "b")
    with refused("WF003", field="edge_id"):
        await Stepwise(Graphs(engine.within("other")), flow.id, flow.ids).apply(edge, "a", "b")


@pytest.mark.parametrize(
    "state", ["leased", "completed", "delayed", "blocked", "retry_delayed", "awaiting", "revoked"]
)
async def test_only_what_could_be_claimed_is_given_dependencies(db, graphs, make, state):
    flow = await graphs.flow("a")
    flow.ids["b"] = (await make.execution(state)).id
    await flow.add("b")
    edge = await flow.stage("a", "b")
    with refused("WF217", message="not_runnable"):
        await flow.apply(edge, "a", "b")
    assert await db.fetchval("select applied_at from ff.edge") is None


async def test_an_edge_of_a_cancelled_flow_is_not_applied(graphs):
    flow = await graphs.flow("a", "b")
    edge = await flow.stage("a", "b")
    await graphs.call("cancel_flow_header", flow_id=flow.id, policy="flow_only")
    with refused("WF215"):
        await flow.apply(edge, "a", "b")


async def test_a_worker_gives_its_own_execution_dependencies(engine, graphs):
    flow = await graphs.flow("a", "b")
    lease = await engine.take(flow.ids["a"])
    edge = await flow.stage("b", "a")
    answer = await flow.apply(edge, "b", "a", lease)
    # it runs on until it waits
    assert tuple(answer) == ("applied", 1, "active", None)
    assert (await engine.wait_children(lease)).word == "waiting"
    assert await flow.state("a") == "waiting_children"
    await engine.complete(await engine.take(flow.ids["b"]))
    assert (await engine.take(flow.ids["a"])).claim_kind == "resumed"


async def test_nobody_else_gives_a_running_execution_dependencies(clock, engine, graphs):
    flow = await graphs.flow("a", "b")
    lease = await engine.take(flow.ids["a"])
    edge = await flow.stage("b", "a")
    forged = replace(lease, lease_id=new_id())
    assert (await flow.apply(edge, "b", "a", forged))["outcome"] == "stale_lease"
    older = replace(lease, epoch=0)
    assert (await flow.apply(edge, "b", "a", older))["outcome"] == "stale_lease"
    await clock.advance(timedelta(minutes=5))
    assert (await flow.apply(edge, "b", "a", lease))["outcome"] == "lease_expired"
    assert await flow.state("b") == "waiting"


async def test_an_edge_of_a_satisfied_group_holds_nothing_back(engine, graphs):
    flow = await graphs.flow("a", "b", "c")
    await flow.policy("c", "any_of", on_satisfied="let_run")
    late = await flow.stage("b", "c")
    await flow.link("a", "c")
    await engine.complete(await engine.take(flow.ids["a"]))
    assert await flow.state("c") == "waiting"
    answer = await flow.apply(late, "b", "c")
    assert tuple(answer) == ("applied", 1, "waiting", None)
    assert await flow.state("c") == "waiting"


async def test_an_end_and_an_apply_at_once_miss_nobody(db, engine, graphs):
    """Whichever comes first, the edge is resolved."""
    for _ in range(6):
        flow = await graphs.flow("a", "b")
        edge = await flow.stage("a", "b")
        lease = await engine.take(flow.ids["a"])
        other = await beside(db, flow)
        ended, applied = await asyncio.gather(
            engine.complete(lease, wait=True), other.apply(edge, "a", "b")
        )
        assert (ended.word, applied["outcome"]) == ("completed", "applied")
        await engine.resolve()
        assert await flow.state("b") == "waiting"
        assert (
            await db.fetchval(
                "select resolution::text from ff.edge where edge_id = $1", edge["edge_id"]
            )
            == "satisfied"
        )
        await engine.complete(await engine.take(flow.ids["b"]))


async def test_errors_say_what_they_are(graphs):
    """They are different errors, not all one kind of bad input."""
    flow = await graphs.flow("a", "b")
    flow.ids["stranger"] = await graphs.submitted()
    found = []
    for act in (
        lambda: flow.stage("a", "a"),
        lambda: flow.stage("a", "b", revision=9),
        lambda: flow.stage("a", "stranger"),
        lambda: Stepwise(graphs, new_id(), flow.ids).stage("a", "b", revision=0),
        lambda: flow.stage("a", "b", kind="other"),
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await act()
        found.append(caught.value.message)
    assert found == [
        "self_referencing_edge",
        "stale_graph_revision",
        "not_in_flow",
        "flow_not_found",
        "invalid_dependency",
    ]


# Tags


async def test_tags_are_added_and_changed(graphs):
    flow = await graphs.flow()
    before = (await flow.row())["mutated_at"]
    await graphs.one("set_flow_tags", flow_id=flow.id, tags='{"team.name": "blue", "a.b": "1"}')
    row = await graphs.one("set_flow_tags", flow_id=flow.id, tags='{"a.b": "2"}')
    assert json.loads(row["tags"]) == {"team.name": "blue", "a.b": "2"}
    after = await flow.row()
    assert json.loads(after["tags"]) == {"team.name": "blue", "a.b": "2"}
    assert after["mutated_at"] > before
    await graphs.one("set_flow_tags", flow_id=flow.id, tags='{"a.b": "2"}')
    assert (await flow.row())["mutated_at"] == after["mutated_at"]


@pytest.mark.parametrize(
    "key",
    ["plain", "Team.x", "a.", "a..", ".a", "a.b c", "a-b.c", 'a."b', "1a.b", "a. b", "", "ä.b"],
)
async def test_a_key_that_is_no_key_is_refused(graphs, key):
    flow = await graphs.flow()
    with refused("WF001", field="tags"):
        await graphs.call("set_flow_tags", flow_id=flow.id, tags=json.dumps({key: "x"}))
    assert json.loads((await flow.row())["tags"]) == {}


@pytest.mark.parametrize("key", ["a.b", "cairn.session_id", "a1_.b2", "a._x", "a.b.c", "a.0"])
async def test_a_key_has_a_namespace(graphs, key):
    flow = await graphs.flow()
    row = await graphs.one("set_flow_tags", flow_id=flow.id, tags=json.dumps({key: "any text"}))
    assert json.loads(row["tags"]) == {key: "any text"}


@pytest.mark.parametrize("tags", [None, "{}", "[]", "nonsense", '{"a.b": 1}'])
async def test_tags_are_text(graphs, tags):
    flow = await graphs.flow()
    with refused("WF001", field="tags"):
        await graphs.call("set_flow_tags", flow_id=flow.id, tags=tags)


async def test_there_are_at_most_64_tags(graphs):
    flow = await graphs.flow()
    many = json.dumps({f"a.b{n}": "x" for n in range(64)})
    await graphs.call("set_flow_tags", flow_id=flow.id, tags=many)
    with refused("WF001", field="tags", problem="would be more than 64"):
        await graphs.call("set_flow_tags", flow_id=flow.id, tags='{"one.more": "x"}')


async def test_an_unknown_flow_has_no_tags(graphs):
    with refused("WF305"):
        await graphs.call("set_flow_tags", flow_id=new_id(), tags='{"a.b": "x"}')
