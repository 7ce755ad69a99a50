"""F01 to F16: what must hold of flows. Each finds what is planted, in the whole database and
narrowed to an execution concerned; flows of many shapes, at every moment of their life, are clean.

There is no F15: the summary of a flow is counted when it is asked for, so that nothing is stored
that could differ from it (docs/decisions/0027)."""

from __future__ import annotations

import random

import asyncpg
import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.db.inspection import narrowed
from flowfabric.doctor import explain, find_check, invariants
from flowfabric.doctor.checks import Reads
from flowfabric.doctor.examination import judge_executions
from support.database import home
from support.factories import new_id
from support.flows import Edge, Group, make_flow
from support.proofs import some_of
from support.sabotage import drop_checks, unwitnessed

# A flow that has just been stored, and one in the midst of its life: `a` has succeeded and let `c`
# go, `b` has failed and `e` was skipped; `d` has all before it.
NODES = ["a", "b", "c", "d", "e"]
EDGES = [("a", "c"), ("c", "d"), Edge("a", "d", 1), ("b", "e")]
GROUPS = [Group("d", "any_of", on_satisfied="let_run", group=1)]

BACKLOG = (
    "insert into ff.cancel_backlog (partition_key, flow_id, policy, requested_at, due_at) "
    f"values ({home()}, {{flow}}, 'cancel_all', ff.now(), ff.now()); "
    f"insert into ff.cancel_backlog_member values ({home()}, {{flow}}, {{c}}); "
)

# The invariant, the stage to start from, what to do; {a} is the id of the node a.
CORRUPTIONS = [
    ("F01", "stored", "update ff.flow set node_count = 6, graph_revision = 99"),
    ("F01", "stored", "update ff.flow set edge_count = 3"),
    ("F01", "stored", "delete from ff.edge where downstream_id = {e}"),
    ("F01", "stored", "delete from ff.execution where execution_id = {a}"),
    ("F02", "stored", "delete from ff.flow"),
    ("F02", "stored", "update ff.execution set flow_id = {a} where execution_id = {e}"),
    ("F02", "stored", "update ff.flow set namespace = 'another'"),
    ("F03", "stored", "update ff.edge set upstream_id = {e} where downstream_id = {e}"),
    ("F03", "stored", "update ff.edge set upstream_id = {flow} where downstream_id = {e}"),
    ("F03", "stored", "update ff.execution set flow_id = null where execution_id = {a}"),
    ("F03", "stored", "update ff.execution set flow_id = null where execution_id = {e}"),
    ("F03", "stored", "delete from ff.flow"),
    ("F04", "stored", "update ff.edge set upstream_id = {d} where downstream_id = {c}"),
    ("F04", "stored", "update ff.edge set upstream_id = {e}, downstream_id = {c} "
                      "where downstream_id = {e}; update ff.edge set upstream_id = {c}, "
                      "downstream_id = {e} where downstream_id = {c} and upstream_id = {a}"),
    ("F05", "stored", "update ff.edge_group set n = 2 where downstream_id = {e}"),
    ("F05", "stored", "delete from ff.edge where downstream_id = {e}"),
    ("F05", "stored", "delete from ff.edge_group where downstream_id = {e}"),
    ("F05", "stored", "update ff.edge set group_no = 1 where downstream_id = {e}"),
    ("F05", "stored", "update ff.edge_group set flow_id = {a} where downstream_id = {e}"),
    ("F05", "stored", "delete from ff.execution where execution_id = {e}"),
    ("F05", "worked", "update ff.flow set trimmed_at = ff.now(); "
                      "update ff.edge_group set succeeded = 0 where downstream_id = {c}"),
    ("F05", "worked", "update ff.edge_group set succeeded = 0 where downstream_id = {c}"),
    ("F05", "worked", "update ff.edge_group set failed = 0, skipped = 1 where downstream_id = {e}"),
    ("F06", "stored", "update ff.edge set resolution = 'satisfied', outcome = 'success', "
                      "resolved_at = ff.now() where downstream_id = {c}"),
    ("F06", "worked", "update ff.edge set outcome = 'cancelled' where downstream_id = {e}"),
    ("F06", "worked", "update ff.edge set outcome = 'failed' where downstream_id = {c}"),
    ("F06", "worked", "update ff.edge set resolution = 'satisfied' where downstream_id = {e}"),
    ("F07", "stored", "update ff.edge_group set succeeded = 1 where downstream_id = {c}"),
    ("F07", "stored", "update ff.edge_group set failed = 1 where downstream_id = {c}"),
    ("F07", "stored", "update ff.edge_group set state = 'satisfied' where downstream_id = {c}"),
    ("F07", "worked", "update ff.edge_group set succeeded = 0 where downstream_id = {c}"),
    ("F07", "worked", "update ff.edge_group set state = 'satisfied' where downstream_id = {e}"),
    ("F07", "worked", "update ff.edge_group set state = 'impossible' where downstream_id = {c}"),
    ("F07", "worked", "update ff.edge_group set fired_at = null where downstream_id = {c}"),
    ("F07", "worked", "update ff.edge_group set fired_n = 2 where downstream_id = {c}"),
    ("F07", "worked", "update ff.edge_group set fired_k = 2 where group_no = 1"),
    ("F07", "worked", "update ff.edge_group set state = 'pending', fired_at = null, "
                      "fired_k = null, fired_n = null where group_no = 1"),
    ("F08", "stored", "update ff.edge_group set state = 'satisfied' where downstream_id = {c}"),
    ("F08", "stored", "delete from ff.edge_group where downstream_id = {c}"),
    ("F08", "stored", "update ff.execution set eligibility = 'eligible_now', "
                      "blocking_reason = 'waiting_for_worker' where execution_id = {c}"),
    ("F09", "stored", "update ff.edge_group set state = 'impossible' where downstream_id = {c}"),
    ("F09", "stored", "update ff.edge_group set state = 'satisfied' where downstream_id = {d}"),
    ("F09", "worked", "update ff.edge_group set state = 'impossible' where group_no = 1"),
    ("F09", "worked", "update ff.edge_group set state = 'pending' where downstream_id = {e}"),
    ("F09", "worked", "delete from ff.edge_group where downstream_id = {e}"),
    ("F10", "stored", "update ff.execution set is_awaited = false where execution_id = {a}"),
    ("F10", "stored", "update ff.execution set phase = 'terminal' where execution_id = {a}"),
    ("F10", "stored", "update ff.execution set phase = 'terminal' where execution_id = {a}; "
                      "update ff.edge set reopened_version = 2 where upstream_id = {a}"),
    ("F10", "worked", "update ff.edge set resolution = 'unsatisfied' where downstream_id = {c}"),
    ("F13", "stored", "update ff.flow set cancelled_at = ff.now(), cancel_policy = 'cancel_all'"),
    ("F13", "stored", BACKLOG),
    ("F13", "stored", BACKLOG + "update ff.flow set cancelled_at = ff.now(), "
                                "cancel_policy = 'cancel_pending'"),
    ("F13", "stored", BACKLOG + "update ff.flow set cancelled_at = ff.now(), "
                                "cancel_policy = 'cancel_all'; delete from ff.cancel_backlog"),
    ("O06", "stored", "update ff.flow set cancelled_at = ff.now(), cancel_policy = 'flow_only'"),
    ("F14", "stored", "update ff.flow set graph_revision = 8"),
    ("F14", "stored", "update ff.flow set mutated_at = created_at - interval '1 s'"),
    ("F16", "worked", "update ff.edge set kept_version = 1 where downstream_id = {c}"),
    ("F16", "worked", "update ff.execution set outcome = 'failed' where execution_id = {a}"),
    ("F16", "worked", "update ff.edge set resolved_at = resolved_at + interval '1 s'"),
    ("F16", "worked", "update ff.edge_group set fired_at = fired_at - interval '1 s'"),
    ("F16", "worked", "insert into ff.kept_result (partition_key, execution_id, version) "
                      f"values ({home()}, {{flow}}, 1)"),
]  # fmt: skip


def test_every_invariant_of_flows_has_a_corruption():
    flows = {check.name for check in invariants() if check.name.startswith("F")}
    assert {name for name, _, _ in CORRUPTIONS} - {"O06"} | {"F11", "F12"} == flows
    assert len(flows) == 15


async def found(db):
    return {row["name"] for row in await db.broken_invariants()}


async def staged(db, stage):
    flow = await make_flow(db, nodes=NODES, edges=EDGES, groups=GROUPS)
    if stage == "worked":
        await flow.complete("a")
        await flow.fail("b")
        assert await flow.states() == {
            "a": "completed", "b": "failed", "c": "waiting", "d": "waiting_children",
            "e": "skipped",
        }  # fmt: skip
    return flow


@pytest.mark.parametrize("stage", ["stored", "worked"])
async def test_a_planted_corruption_is_found(db, conn, stage):
    flow = await staged(db, stage)
    ids = {name: f"'{id}'" for name, id in flow.ids.items()} | {"flow": f"'{flow.id}'"}
    assert await found(db) == set()
    await drop_checks(conn)
    for name, corruption in [(n, c) for n, s, c in CORRUPTIONS if s == stage]:
        transaction = conn.transaction()
        await transaction.start()
        async with unwitnessed(conn):
            await conn.execute(corruption.format(**ids))
        rows = [row for row in await db.broken_invariants() if row["name"] == name]
        assert rows, f"{name} did not notice: {corruption}"
        assert all(row["problem"] for row in rows)
        check = find_check(name)
        assert check.reads is Reads.EXECUTIONS
        for row in rows:
            # of a flow as a whole, any member tells
            id = row["execution_id"] or flow["c"]
            again = await conn.fetch(narrowed(check.text), home(), [id])
            assert row in again, f"{name}, narrowed, did not notice: {corruption}"
        if name in {"F05", "F06", "F07", "F09", "F10"} and "delete" not in corruption:
            # ... and whoever ended tells of those that wait for it
            again = await conn.fetch(
                narrowed(check.text), home(), [flow["a"], flow["b"], flow["c"]]
            )
            assert {row["problem"] for row in rows} <= {row["problem"] for row in again}
        await transaction.rollback()


async def test_a_cancelled_flow_is_in_scope_by_its_own_event(db, conn):
    db.leave_broken("planted")
    flow = await make_flow(db, nodes=NODES, edges=EDGES, groups=GROUPS)
    async with unwitnessed(conn):
        await conn.execute(
            "update ff.flow set cancelled_at = ff.now(), cancel_policy = 'cancel_all'"
        )
    check = find_check("F13")
    assert len(await conn.fetch(narrowed(check.text), home(), [flow.id])) == len(NODES)


async def test_a_cycle_is_found_wherever_it_is(db, conn):
    """Layers before it and behind it, a graph beside it, ids in any order."""
    db.leave_broken("planted")
    names = [f"n{number}" for number in range(12)]
    edges = [
        *((names[i], names[i + 1]) for i in range(9)),
        ("n0", "n9"),
        ("n11", "n10"),
        ("n10", "n0"),
        ("n9", "n3"),
    ]
    flow = await make_flow(db, nodes=names, edges=edges)
    # highest id first, and without the cycle
    await make_flow(db, nodes=names, edges=[(to, from_) for from_, to in edges[:-1]])
    rows = [row for row in await db.broken_invariants() if row["name"] == "F04"]
    assert len(rows) == 1
    assert rows[0]["execution_id"] in {flow[f"n{number}"] for number in range(3, 10)}
    assert "7 edges" in rows[0]["problem"]


SHAPES = {
    "alone": (["a"], [], []),
    "chain": (["a", "b", "c", "d"], [("a", "b"), ("b", "c"), ("c", "d")], []),
    "diamond": (["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], []),
    "race": (
        ["a", "b", "c", "d", "e"],
        [("a", "d"), ("b", "d"), ("c", "d"), ("c", "e")],
        [Group("d", "any_of", on_satisfied="cancel_remaining")],
    ),
    "quorum": (
        ["a", "b", "c", "d", "e", "f"],
        [("a", "e"), ("b", "e"), ("c", "e"), ("d", "e"), ("e", "f")],
        [Group("e", "quorum", 2, on_satisfied="let_run")],
    ),
    "several groups": (
        ["a", "b", "c", "d", "e"],
        [Edge("a", "d"), Edge("b", "d"), Edge("b", "d", 1), Edge("c", "d", 1), Edge("d", "e", 3)],
        [Group("d", "any_of", on_satisfied="cancel_remaining", group=1)],
    ),
    "half built": (
        ["a", "b", "c"],
        [Edge("a", "c"), Edge("b", "c", is_applied=False)],
        [],
    ),
    "more than there are": (
        ["a", "b", "c"],
        [("a", "c"), ("b", "c")],
        [Group("c", "quorum", 3, on_satisfied="cancel_remaining")],
    ),
}


async def step(flow, dice, *, cancels=True):
    """Something that may happen to a flow; refusals are part of it."""
    engine = flow.engine
    name = dice.choice(list(flow.ids))
    state = await flow.state(name)
    what = dice.random()
    if state in ("waiting", "active") and what < 0.5:
        lease = await engine.claim_one(lanes=[flow.lanes[name]])
        if lease is not None:
            end = dice.choice(["complete", "complete", "fail", "release", "wait", "hold", "leave"])
            if end == "complete":
                await engine.complete(lease)
            elif end == "fail":
                await engine.fail(lease, dice.choice(["permanent", "transient"]))
            elif end == "release":
                await engine.release(lease)
            elif end == "wait":
                await engine.wait_children(lease)
            elif end == "hold":
                await engine.hold(lease)
    elif state in ("completed", "failed", "cancelled", "expired", "skipped"):
        if what < 0.3:
            await engine.replay(flow[name])
    elif what < 0.6:
        await engine.cancel(flow[name])
    elif what < 0.7:
        await engine.unblock(flow[name])
    elif what < 0.8:
        await engine.revoke(flow[name])
    elif what < 0.85 and cancels:
        policy = dice.choice(["cancel_all", "cancel_pending", "flow_only"])
        await engine.connection.execute(
            f"select from ff.cancel_flow_header('{home()}', null, $1, $2)", flow.id, policy
        )
    else:
        await engine.connection.execute(
            f"select from ff.cancel_members('{home()}', null, $1, 1)", flow.id
        )
    await engine.resolve(1)
    await engine.connection.execute(
        f"select from ff.cancel_siblings('{home()}', 1), ff.reconcile_siblings('{home()}')"
    )


@pytest.mark.parametrize("name", some_of(SHAPES, turn=0, share=2))
async def test_flows_of_every_shape_are_clean_at_every_moment(db, name):
    nodes, edges, groups = SHAPES[name]
    dice = random.Random(name)
    for _ in range(3):
        flow = await make_flow(
            db,
            nodes=nodes,
            edges=edges,
            groups=groups,
            items={node: {"policy": {"retry_policy": {"max_retries": 1}}} for node in nodes},
        )
        assert await found(db) == set()
        for _ in range(16):
            try:
                await step(flow, dice)
            except asyncpg.PostgresError as refusal:
                if not str(refusal.sqlstate).startswith("WF"):
                    raise
            rows = await db.broken_invariants()
            assert rows == [], (await flow.states(), rows)
    ids = [row["execution_id"] for row in await db.fetch("select execution_id from ff.execution")]
    verdicts = await judge_executions(db.conn, {0: ids})
    assert [verdict.findings for verdict in verdicts if verdict.findings] == []


async def test_flows_that_are_trimmed_are_clean_at_every_moment(db, conn, clock):
    for nodes, edges, groups in SHAPES.values():
        flow = await make_flow(db, nodes=nodes, edges=edges, groups=groups)
        if len(nodes) > 4:
            await conn.execute(
                f"select from ff.cancel_flow_header('{home()}', null, $1, 'cancel_all')", flow.id
            )
            await conn.execute(f"select from ff.cancel_members('{home()}', null, $1)", flow.id)
        else:
            for name in nodes:
                if await flow.state(name) != "skipped":
                    await flow.cancel(name)
    await clock.advance(days=60)
    left = [await db.fetchval("select count(*) from ff.execution")]
    for _ in range(200):
        await conn.execute(f"select from ff.trim_retention('{home()}', p_limit => 2)")
        rows = await db.broken_invariants()
        assert rows == []
        left.append(await db.fetchval("select count(*) from ff.execution"))
        if left[-1] == 0:
            break
    assert len(set(left)) > 10, "one by one, to see every moment"
    for table in (
        "flow",
        "edge",
        "edge_group",
        "kept_result",
        "cancel_backlog",
        "cancel_backlog_member",
    ):
        assert await db.fetchval(f"select count(*) from ff.{table}") == 0, table


async def build(flow, dice, staged_edges):
    """A change of the graph, sensible or not."""
    connection = flow.engine.connection
    up, down = dice.sample(list(flow.ids.values()), 2)
    group = dice.choice([0, 0, 1])
    what = dice.random()
    if what < 0.45:
        edge_id = new_id()
        revision = await connection.fetchval(
            "select graph_revision from ff.flow where flow_id = $1", flow.id
        )
        await connection.execute(
            f"select from ff.stage_dependency_edge('{home()}', null, $1, $2, $3, $4, $5, "
            "p_group_no => $6)",
            *(flow.id, edge_id, up, down, revision, group),
        )
        staged_edges.append((edge_id, up, down))
    elif what < 0.85:
        if staged_edges:
            edge = staged_edges.pop(dice.randrange(len(staged_edges)))
            await connection.execute(
                f"select from ff.apply_dependency_to_child('{home()}', null, $1, $2, $3, $4)",
                *(flow.id, *edge),
            )
    else:
        policy, k = dice.choice([("all_of", None), ("any_of", None), ("quorum", 2)])
        after = None if policy == "all_of" else dice.choice(["cancel_remaining", "let_run"])
        await connection.execute(
            f"select from ff.set_edge_group_policy('{home()}', null, $1, $2, $3, $4, $5, $6)",
            *(flow.id, down, policy, k, after, group),
        )


@pytest.mark.parametrize("seed", some_of(range(6), turn=0))
async def test_flows_that_are_built_while_they_run_are_clean_at_every_moment(db, seed):
    dice = random.Random(seed)
    flow = await make_flow(db, nodes=list("abcdefgh"))
    staged_edges = []
    for number in range(60):
        try:
            if dice.random() < (0.9 if number < 20 else 0.5):
                await build(flow, dice, staged_edges)
            else:
                await step(flow, dice, cancels=False)
        except asyncpg.PostgresError as refusal:
            if not str(refusal.sqlstate).startswith("WF"):
                raise
        rows = await db.broken_invariants()
        assert rows == [], (await flow.states(), rows)


async def test_a_flow_is_in_the_narrowed_pass_and_in_the_explanation_of_a_member(db, conn):
    flow = await staged(db, "worked")
    rows = (await explain(conn, ExecutionId.of(home(), flow["d"]))).rows
    parts = [part for part, _ in rows]
    assert [parts.count(part) for part in ("flow", "edge_group", "edge in", "edge out")] == [
        1, 2, 2, 0,
    ]  # fmt: skip
    names = {verdict.name for verdict in await judge_executions(conn, {home(): [flow["d"]]})}
    assert {f"F{number:02}" for number in range(1, 15)} - names == {"F11", "F12"}
