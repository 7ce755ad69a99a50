"""ff.submit_flow: a whole graph in one call, all of it or nothing, and every problem answered."""

from __future__ import annotations

import asyncio
import base64
import json
from uuid import UUID

import asyncpg
import pytest

from support.database import home, partitions
from support.factories import Engine, new_id
from support.graphs import Graphs


@pytest.fixture
def graphs(engine):
    return Graphs(engine)


async def stored(db):
    """How many rows a flow could have left, table by table."""
    return [
        await db.fetchval(f"select count(*) from ff.{table}")
        for table in ("flow", "execution", "execution_body", "event", "edge", "edge_group")
    ]


def named(document, *names):
    """The ids of nodes by their names."""
    ids = {node["name"]: UUID(node["execution_id"]) for node in document["nodes"]}
    return [ids[name] for name in names]


# What is stored


async def test_a_graph_is_stored_at_once(db, engine, graphs):
    document = await graphs.document(
        "a",
        "b",
        "c",
        edges=[(0, 2), {"from": 1, "to": 2, "group": 3, "ref": "payload"}],
        tags={"team.name": "blue"},
        creator="ann",
    )
    answer = await graphs.submit(document)

    assert (answer["outcome"], answer["detail"]) == ("created", None)
    assert answer["flow_id"] == document["flow_id"]
    flow = await db.fetchrow("select * from ff.flow")
    assert (flow["flow_kind"], flow["namespace"], flow["creator"]) == ("test", "test", "ann")
    assert json.loads(flow["tags"]) == {"team.name": "blue"}
    # as if it had been built step by step
    assert (flow["node_count"], flow["edge_count"], flow["graph_revision"]) == (3, 2, 5)

    a, b, c = named(document, "a", "b", "c")
    assert [(await engine.row(id_))["public_state"] for id_ in (a, b, c)] == [
        "waiting",
        "waiting",
        "waiting_children",
    ]
    assert (await engine.row(c))["blocking_reason"] == "waiting_for_children"
    assert [(await engine.row(id_))["is_awaited"] for id_ in (a, b, c)] == [True, True, False]
    assert {(await engine.row(id_))["flow_id"] for id_ in (a, b, c)} == {flow["flow_id"]}
    events = await engine.events()
    assert {(event["kind"], event["flow_id"]) for event in events} == {
        ("submitted", flow["flow_id"])
    }
    assert len(events) == 3

    edges = await db.fetch("select * from ff.edge order by edge_id")
    assert [(edge["upstream_id"], edge["downstream_id"], edge["group_no"]) for edge in edges] == [
        (a, c, 0),
        (b, c, 3),
    ]
    assert [edge["data_passing_ref"] for edge in edges] == [None, "payload"]
    assert {edge["resolution"] for edge in edges} == {"unsatisfied"}
    groups = await db.fetch("select * from ff.edge_group order by group_no")
    assert [(g["downstream_id"], g["group_no"], g["policy"], g["n"]) for g in groups] == [
        (c, 0, "all_of", 1),
        (c, 3, "all_of", 1),
    ]


async def test_a_member_is_runnable_from_the_start(engine, graphs):
    """It is not stored in a state that nothing leads out of."""
    document = await graphs.document("a", "b", edges=[(0, 1)])
    await graphs.submit(document)
    a, b = named(document, "a", "b")

    assert {(await engine.row(id_))["phase"] for id_ in (a, b)} == {"runnable"}
    lease = await engine.take(a)
    assert await engine.claim_one() is None
    await engine.complete(lease)
    await engine.take(b)


async def test_the_fields_of_a_node_are_those_of_an_item(db, clock, engine, graphs):
    now = await clock.freeze()
    document = await graphs.document("a", "b")
    document["nodes"][0] |= {
        "payload_base64": base64.b64encode(b"\x00" * 300).decode(),
        "payload_encoding": "raw",
        "priority": 7,
        "delay_ms": 1500,
        "deadline_ms": 60000,
        "policy": {"retry_policy": {"max_retries": 2}},
        "max_reclaims": 3,
        "tags": {"team.name": "blue"},
        "creator": "ann",
        "trace_context": "{}",
        "task_version": "2",
    }
    document["nodes"][1]["delayed_until"] = "2999-01-01T00:00:00Z"
    assert (await graphs.submit(document))["outcome"] == "created"

    a, b = named(document, "a", "b")
    row = await engine.row(a)
    assert (row["payload_encoding"], row["rank"], row["max_reclaims"]) == ("raw", 8993, 3)
    assert (row["delayed_until"] - now).total_seconds() == 1.5
    assert (row["deadline_at"] - now).total_seconds() == 60
    assert (row["payload"], row["public_state"]) == (None, "delayed")
    body = await db.fetchrow("select * from ff.execution_body where execution_id = $1", a)
    assert body["payload"] == b"\x00" * 300
    assert json.loads(body["policy"]) == {"retry_policy": {"max_retries": 2}}
    assert (body["creator"], body["task_version"], body["node_name"]) == ("ann", "2", "a")
    assert (await engine.row(b))["delayed_until"].year == 2999


async def test_policies_are_stored_with_their_defaults(db, graphs):
    document = await graphs.document(
        "a",
        "b",
        "any",
        "two",
        "all",
        edges=[(0, 2), (1, 2), (0, 3), (1, 3), (0, 4), (1, 4)],
        groups=[
            {"node": 2, "policy": "any_of"},
            {"node": 3, "group": 0, "policy": "quorum", "k": 2, "on_satisfied": "let_run"},
            {"node": 4, "policy": "all_of"},
        ],
    )
    assert (await graphs.submit(document))["outcome"] == "created"
    rows = await db.fetch("select * from ff.edge_group")
    found = {
        row["downstream_id"]: (row["policy"], row["k"], row["on_satisfied"], row["n"])
        for row in rows
    }
    any_, two, all_ = named(document, "any", "two", "all")
    assert found == {
        any_: ("any_of", None, "cancel_remaining", 2),
        two: ("quorum", 2, "let_run", 2),
        all_: ("all_of", None, None, 2),
    }


async def test_a_flow_needs_no_edges(db, graphs):
    document = await graphs.document("a", "b")
    del document["edges"], document["groups"]
    assert (await graphs.submit(document))["outcome"] == "created"
    assert await db.fetchval("select count(*) from ff.edge") == 0


async def test_one_node_may_feed_another_through_two_groups(db, graphs):
    edges = [{"from": 0, "to": 1}, {"from": 0, "to": 1, "group": 1}]
    document = await graphs.document("a", "b", edges=edges)
    assert (await graphs.submit(document))["outcome"] == "created"
    assert await db.fetchval("select count(*) from ff.edge_group") == 2


async def test_the_ids_of_edges_tell_their_places(db, graphs):
    document = await graphs.document("a", "b", "c", edges=[(0, 1), (0, 2), (1, 2)])
    await graphs.submit(document)
    flow = document["flow_id"]
    ids = [str(row["edge_id"]) for row in await db.fetch("select edge_id from ff.edge order by 1")]
    assert ids == [f"{flow[:14]}8000-800{n}{flow[-13:]}" for n in range(3)]


async def test_workers_are_told_of_the_lanes_that_have_work(db, engine, graphs):
    heard = []
    listener = await db.connect()
    await listener.add_listener("ff_ready", lambda *told: heard.append(told[3]))
    document = await graphs.document("a", "b", edges=[(0, 1)])
    document["nodes"][0]["route_id"] = await engine.register(lane="first")
    document["nodes"][1]["route_id"] = await engine.register(lane="second")
    await graphs.submit(document)
    await listener.fetchval("select 1")
    assert heard == [f"{home()} test first"]


# Repeats


async def test_the_same_flow_again_is_a_duplicate(db, engine, graphs):
    document = await graphs.document("a", "b", edges=[(0, 1)])
    assert (await graphs.submit(document))["outcome"] == "created"
    before = await stored(db)
    await engine.complete(await engine.take(named(document, "a")[0]))
    # not even a lane that is closed since takes back what was accepted
    await db.execute("update ff.lane set state = 'disabled'")

    assert (await graphs.submit(document))["outcome"] == "duplicate"
    assert (await stored(db))[:3] == before[:3]


async def test_a_flow_that_was_trimmed_meanwhile_does_not_run_again(db, engine, graphs):
    """Nothing of it is kept but its events, which tell that it was there."""
    document = await graphs.document("a", "b")
    await graphs.submit(document)
    for lease in await engine.claim(limit=2):
        await engine.complete(lease)
    while (await stored(db))[0]:
        await db.fetch(f"select from ff.trim_retention('{home()}', p_retention => interval '0')")
    assert (await stored(db))[:2] == [0, 0]

    assert (await graphs.submit(document))["outcome"] == "duplicate"
    other = await graphs.document("c", "d")
    other["nodes"][1]["execution_id"] = document["nodes"][0]["execution_id"]
    answer = await graphs.submit(other)
    assert answer["detail"]["field"] == "nodes[1].execution_id"
    assert answer["detail"]["problem"] == "is taken: make a new one"
    assert (await stored(db))[:2] == [0, 0]


async def test_a_flow_with_the_id_of_another_is_refused(db, engine, graphs):
    first = await graphs.document("a")
    await graphs.submit(first)
    second = await graphs.document("a", flow_id=first["flow_id"])
    answer = await graphs.submit(second)
    assert (answer["outcome"], answer["detail"]["field"]) == ("invalid", "flow_id")

    made = await graphs.create(new_id())
    assert made["outcome"] == "created"
    empty = await db.fetchval("select flow_id from ff.flow where node_count = 0")
    answer = await graphs.submit(await graphs.document("a", flow_id=str(empty)))
    assert answer["detail"] == {"field": "flow_id", "problem": "is taken: make a new one"}


async def test_another_tenant_does_not_hear_of_a_flow(engine, graphs):
    document = await graphs.document("a")
    await graphs.submit(document)
    other = Graphs(engine.within("other"))
    document["nodes"] = [await other.node("a")]
    answer = await other.submit(document)
    assert answer["detail"]["problem"] == "is taken: make a new one"


async def test_two_submits_at_once_store_one_flow(db, engine, graphs):
    others = [Graphs(Engine(await db.connect())) for _ in range(4)]
    for number in range(1, 11):
        document = await graphs.document("a", "b", edges=[(0, 1)])
        answers = await asyncio.gather(*(one.submit(document) for one in others))
        outcomes = sorted(answer["outcome"] for answer in answers)
        assert outcomes == ["created"] + ["duplicate"] * 3, answers
        assert (await stored(db))[:2] == [number, 2 * number]


async def test_a_repeat_that_overtakes_nobody_finds_the_flow_at_every_moment(db, graphs):
    """One that looked for the flow in vain, and then finds its executions there."""
    document = await graphs.document("a", "b", edges=[(0, 1)])
    await graphs.submit(document)
    blind = """
      create or replace function ff._judge_existing_flow(p_partition_key smallint, p_namespace text,
        p_flow_id uuid, p_first_id text, out outcome text, out detail jsonb)
      language plpgsql set search_path = '' as $$
      begin
        if nextval('ff_test.looks') > 1 then
          select k.outcome, k.detail into outcome, detail
          from ff_test.known(p_partition_key, p_namespace, p_flow_id, p_first_id) k;
        end if;
      end $$"""
    await db.execute("create sequence ff_test.looks")
    await db.execute("alter function ff._judge_existing_flow set schema ff_test")
    await db.execute("alter function ff_test._judge_existing_flow rename to known")
    await db.execute(blind)
    assert (await graphs.submit(document))["outcome"] == "duplicate"
    assert await db.fetchval("select last_value from ff_test.looks") == 2


# Transactions of the caller's


async def test_a_problem_leaves_the_callers_transaction_alive(db, engine, graphs):
    bad = await graphs.document("a", "b", edges=[(1, 0)])
    good = await graphs.document("a")
    async with db.conn.transaction():
        assert (await graphs.submit(bad))["outcome"] == "invalid"
        assert (await graphs.submit(good))["outcome"] == "created"
    assert (await stored(db))[:2] == [1, 1]


async def test_what_the_caller_rolls_back_was_never_there(db, graphs):
    document = await graphs.document("a", "b", edges=[(0, 1)])
    transaction = db.conn.transaction()
    await transaction.start()
    assert (await graphs.submit(document))["outcome"] == "created"
    await transaction.rollback()
    assert await stored(db) == [0] * 6
    assert (await graphs.submit(document))["outcome"] == "created"


async def test_the_answer_names_the_database(graphs):
    first = await graphs.submit(await graphs.document("a"))
    same = await graphs.submit(await graphs.document("a"), database=first["database"])
    other = await graphs.submit(await graphs.document("a"), database="another/1")
    assert same["outcome"] == "created"
    assert (other["outcome"], other["detail"]["field"]) == ("invalid", "database")


# What is refused, and nothing stored


def _set(path, value):
    def change(document):
        *way, last = path
        place = document
        for step in way:
            place = place[step]
        place[last] = value

    return change


def _drop(path):
    def change(document):
        *way, last = path
        place = document
        for step in way:
            place = place[step]
        del place[last]

    return change


LATER = "2999-01-01T00:00:00Z"
BAD = [
    (_set(["flow_id"], None), "flow_id", "must be a uuid"),
    (_set(["flow_id"], "nonsense"), "flow_id", "must be a uuid"),
    (_drop(["flow_id"]), "flow_id", "must be a uuid"),
    (_set(["flow_kind"], ""), "flow_kind", "1 to 256 bytes"),
    (_set(["flow_kind"], 7), "flow_kind", "must be text"),
    (_drop(["flow_kind"]), "flow_kind", "must be text"),
    (_set(["tags"], {"Bad": "x"}), "tags", "team.field"),
    (_set(["tags"], [1]), "tags", "must be an object"),
    (_set(["tags"], '{"team.field": "x"}'), "tags", "must be an object"),
    (_set(["creator"], "x" * 257), "creator", "at most 256 bytes"),
    (_set(["colour"], "red"), "colour", "is not a field of a flow"),
    (_set(["nodes"], []), "nodes", "1 to 10000"),
    (_set(["nodes"], {}), "nodes", "must be a list"),
    (_set(["edges"], {}), "edges", "must be a list"),
    (_set(["groups"], 3), "groups", "must be a list"),
    (_set(["nodes", 1], "x"), "nodes[1]", "must be an object"),
    (_set(["nodes", 1, "name"], ""), "nodes[1].name", "1 to 256 bytes"),
    (_drop(["nodes", 1, "name"]), "nodes[1].name", "must be text"),
    (_set(["nodes", 2, "name"], "a"), "nodes[2].name", "a is the name of two nodes"),
    (_set(["nodes", 2, "execution_id"], "x"), "nodes[2].execution_id", "must be a uuid"),
    (_set(["nodes", 2, "route_id"], "x"), "nodes[2].route_id", "register_routes"),
    (_set(["nodes", 2, "priority"], 1.5), "nodes[2].priority", "whole number"),
    (_set(["nodes", 2, "colour"], 1), "nodes[2].colour", "is not a field of an item"),
    (_set(["nodes", 2, "key"], "k"), "nodes[2].key", "neither a key nor a parent"),
    (_set(["nodes", 2, "with_parent"], True), "nodes[2].key", "neither a key nor a parent"),
    (_set(["nodes", 0, "policy"], {"retention_ms": -1}), "nodes[0].policy", ""),
    (_set(["nodes", 1, "max_reclaims"], -1), "nodes[1].max_reclaims", "0 to 1000000"),
    (_set(["nodes", 2, "delay_ms"], 5), "nodes[2].delay_ms", "waits for others"),
    (_set(["nodes", 2, "delayed_until"], LATER), "nodes[2].delayed_until", "waits for others"),
    (_set(["edges", 1], 7), "edges[1]", "must be an object"),
    (_set(["edges", 1, "colour"], 1), "edges[1]", "fields other than"),
    (_set(["edges", 1, "from"], 3), "edges[1].from", "no such node"),
    (_set(["edges", 1, "from"], -1), "edges[1].from", "no such node"),
    (_set(["edges", 1, "from"], "x"), "edges[1].from", "no such node"),
    (_set(["edges", 1, "from"], 0.5), "edges[1].from", "no such node"),
    (_drop(["edges", 1, "from"]), "edges[1].from", "no such node"),
    (_set(["edges", 1, "to"], 99999), "edges[1].to", "no such node"),
    (_set(["edges", 1, "to"], None), "edges[1].to", "no such node"),
    (_set(["edges", 1, "to"], 1), "edges[1].to", "cannot wait for itself"),
    (_set(["edges", 1, "to"], 0), "edges[1].from", "must come before"),
    (_set(["edges", 1, "from"], 0), "edges[1]", "is given twice"),
    (_set(["edges", 1, "group"], -1), "edges[1].group", "from 0"),
    (_set(["edges", 1, "ref"], "x" * 257), "edges[1].ref", "at most 256 bytes"),
    (_set(["groups", 0], []), "groups[0]", "must be an object"),
    (_set(["groups", 0, "colour"], 1), "groups[0]", "fields other than"),
    (_set(["groups", 0, "node"], 3), "groups[0].node", "no such node"),
    (_set(["groups", 0, "node"], 1), "groups[0].node", "no edge leads to this group"),
    (_set(["groups", 0, "group"], 1), "groups[0].node", "no edge leads to this group"),
    (_set(["groups", 0, "group"], "x"), "groups[0].group", "from 0"),
    (_set(["groups", 0, "policy"], "some_of"), "groups[0].policy", "all_of, any_of or quorum"),
    (_drop(["groups", 0, "policy"]), "groups[0].policy", "all_of, any_of or quorum"),
    (_set(["groups", 0, "k"], 3), "groups[0].k", "is 3, but only 2 edges lead to the group"),
    (_set(["groups", 0, "k"], 0), "groups[0].k", "quorum k must be >= 1"),
    (_set(["groups", 0, "k"], 1.5), "groups[0].k", "quorum k must be >= 1"),
    (_drop(["groups", 0, "k"]), "groups[0].k", "quorum k must be >= 1"),
    (_set(["groups", 0, "policy"], "any_of"), "groups[0].k", "belongs to a quorum only"),
    (_set(["groups", 0, "on_satisfied"], "stop"), "groups[0].on_satisfied", "cancel_remaining"),
]


@pytest.mark.parametrize(
    ("change", "field", "problem"), BAD, ids=[f"{field}: {problem}" for _, field, problem in BAD]
)
async def test_a_bad_graph_is_refused_whole(db, graphs, change, field, problem):
    document = await graphs.document(
        "a",
        "b",
        "c",
        edges=[(0, 2), (1, 2)],
        groups=[{"node": 2, "policy": "quorum", "k": 2}],
    )
    change(document)
    answer = await graphs.submit(document)
    assert answer["outcome"] == "invalid"
    assert answer["detail"]["field"] == field
    assert problem in answer["detail"]["problem"]
    assert await stored(db) == [0] * 6


async def test_a_group_that_is_given_twice_is_refused(db, graphs):
    group = {"node": 1, "policy": "any_of"}
    document = await graphs.document("a", "b", edges=[(0, 1)], groups=[group, group])
    answer = await graphs.submit(document)
    assert answer["detail"] == {"field": "groups[1]", "problem": "is given twice"}
    assert await stored(db) == [0] * 6


async def test_all_of_has_nothing_left_over_to_cancel(graphs):
    group = {"node": 1, "policy": "all_of", "on_satisfied": "let_run"}
    document = await graphs.document("a", "b", edges=[(0, 1)], groups=[group])
    assert (await graphs.submit(document))["detail"]["field"] == "groups[0].on_satisfied"


@pytest.mark.parametrize("document", [None, [], "x", 7])
async def test_what_is_no_object_is_refused(db, graphs, document):
    answer = await graphs.submit(document)
    assert answer["detail"] == {"field": "flow", "problem": "must be an object"}


async def test_ids_are_used_once(db, engine, graphs):
    document = await graphs.document("a", "b")
    document["nodes"][1]["execution_id"] = document["nodes"][0]["execution_id"]
    answer = await graphs.submit(document)
    assert answer["detail"] == {"field": "nodes[1].execution_id", "problem": "is given twice"}

    document = await graphs.document("a", "b")
    await engine.submit(id=named(document, "b")[0])
    answer = await graphs.submit(document)
    assert answer["detail"]["field"] == "nodes[1].execution_id"
    assert answer["detail"]["problem"] == "is taken: make a new one"
    assert (await stored(db))[:2] == [0, 1]


async def test_an_id_that_is_taken_at_the_same_moment_is_a_conflict(db, engine, graphs):
    """Whoever repeats the call is told that it is taken; nothing of the flow is there."""
    document = await graphs.document("a", "b")
    other = Engine(await db.connect())
    await other.register()
    async with other.connection.transaction():
        await other.submit(id=named(document, "b")[0])
        task = asyncio.create_task(graphs.submit(document))
        await db.until_waiting(task)
    with pytest.raises(asyncpg.SerializationError):
        await task
    assert (await stored(db))[:2] == [0, 1]
    assert (await graphs.submit(document))["detail"]["field"] == "nodes[1].execution_id"


async def test_an_unknown_route_is_named(db, graphs):
    document = await graphs.document("a", "b")
    document["nodes"][1]["route_id"] = 7
    answer = await graphs.submit(document)
    assert answer["outcome"] == "unknown_route"
    assert answer["detail"] == {"field": "nodes[1].route_id", "route_id": 7}
    assert await stored(db) == [0] * 6


async def test_a_lane_that_is_closed_takes_no_flow(db, engine, graphs):
    document = await graphs.document("a", "b")
    document["nodes"][1]["route_id"] = await engine.register(lane="closed")
    await db.execute("update ff.lane set state = 'draining' where lane = 'closed'")
    answer = await graphs.submit(document)
    assert answer["outcome"] == "lane_closed"
    assert (answer["detail"]["field"], answer["detail"]["lane"]) == ("nodes[1].lane", "closed")
    assert await stored(db) == [0] * 6


async def test_there_is_a_namespace_and_a_partition(graphs):
    document = await graphs.document("a")
    answer = await graphs.submit(document, namespace=None)
    assert answer["detail"]["field"] == "namespace"
    for partition in (partitions(), -1, None):
        answer = await graphs.submit(document, partition_key=partition)
        assert answer["detail"]["field"] == "partition_key"


@pytest.mark.parametrize(("nodes", "edges", "field"), [(10_001, 0, "nodes"), (2, 50_001, "edges")])
async def test_a_graph_has_its_limits(graphs, nodes, edges, field):
    document = await graphs.document("a")
    document["nodes"] = [{}] * nodes
    document["edges"] = [{}] * edges
    answer = await graphs.submit(document)
    assert (answer["outcome"], answer["detail"]["field"]) == ("invalid", field)


async def test_the_largest_graph_goes_in_one_call(db, engine, graphs):
    """10 000 nodes and 50 000 edges: five edges from each node to the next ones."""
    route = await engine.register()
    first = new_id()
    document = {
        "flow_id": str(new_id()),
        "flow_kind": "large",
        "nodes": [
            {"execution_id": str(UUID(int=first.int + n)), "route_id": route, "name": f"n{n}"}
            for n in range(10_000)
        ],
        "edges": [
            {"from": n, "to": n + step}
            for n in range(10_000)
            for step in range(1, 7)
            if n + step < 10_000
        ][:50_000],
    }
    answer = await graphs.submit(document)
    assert answer["outcome"] == "created"
    assert await db.fetchval("select count(*) from ff.execution") == 10_000
    assert await db.fetchval("select count(*) from ff.edge") == 50_000
    assert await db.fetchval("select sum(n) from ff.edge_group") == 50_000
    ready = await db.fetchval("select count(*) from ff.execution where eligibility='eligible_now'")
    assert ready == 10_000 - len({edge["to"] for edge in document["edges"]})
