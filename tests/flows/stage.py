"""Graphs of the evaluator as flows in a database, and what a test does to their nodes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from flowfabric.doctor import invariants
from support.database import Database, home
from support.factories import Engine, new_id

from .evaluator import Ended, Graph, Group, final_groups

if TYPE_CHECKING:
    from support.database import Connection

DAY = timedelta(days=1)
_ENDS = {"completed", "failed", "cancelled", "expired", "skipped"}


@dataclass(slots=True)
class Planted:
    """A graph that is stored, and the ids of its nodes."""

    graph: Graph
    flow_id: UUID
    ids: list[UUID]
    numbers: dict[UUID, int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = {id_: number for number, id_ in enumerate(self.ids)}

    def ids_of(self, nodes: Iterable[int]) -> list[UUID]:
        return [self.ids[node] for node in nodes]


async def plant(engine: Engine, graph: Graph, items: Mapping[int, Mapping[str, Any]]) -> Planted:
    """Store a graph with the one call that there is for it."""
    route = await engine.register()
    planted = Planted(graph, new_id(), [new_id() for _ in range(graph.size)])
    document = {
        "flow_id": str(planted.flow_id),
        "flow_kind": "random",
        "nodes": [
            {"execution_id": str(id_), "name": f"n{node}", "route_id": route, **_node(items, node)}
            for node, id_ in enumerate(planted.ids)
        ],
        "edges": [
            {"from": edge.upstream, "to": edge.downstream, "group": edge.group}
            for edge in graph.edges
        ],
        "groups": [
            {
                "node": node,
                "group": number,
                "policy": rule.policy,
                **({"k": rule.k} if rule.k else {}),
                **(
                    {}
                    if rule.policy == "all_of"
                    else {"on_satisfied": "cancel_remaining" if rule.cancels else "let_run"}
                ),
            }
            for (node, number), rule in graph.rules.items()
        ],
    }
    answer = await engine.connection.fetchval(
        "select ff.submit_flow(p_partition_key => $1, p_namespace => $2, "
        "p_flow => $3::text::jsonb)",
        engine.partition_key,
        engine.namespace,
        json.dumps(document),
    )
    assert json.loads(answer)["outcome"] == "created", answer
    return planted


def _node(items: Mapping[int, Mapping[str, Any]], node: int) -> dict[str, Any]:
    item = dict(items.get(node, {}))
    deadline = item.pop("deadline", None)
    if deadline is not None:
        item["deadline_ms"] = int(deadline.total_seconds() * 1000)
    return item


async def siblings(engine: Engine, limit: int = 100) -> tuple[int, timedelta | None]:
    return await engine._tick("ff.cancel_siblings", limit)


async def settle_all(engine: Engine) -> None:
    """What reconcilers do, until nothing is left."""
    for _ in range(1000):
        _, wakes_due = await engine.resolve()
        _, siblings_due = await siblings(engine)
        if wakes_due is None and siblings_due is None:
            await engine._tick("ff.reconcile_siblings", 50)
            return
    raise AssertionError("there is always something left to tell")


@asynccontextmanager
async def locked(connection: Connection, ids: Sequence[UUID]) -> AsyncIterator[None]:
    """Somebody else holds these rows."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(
            f"select from ff.execution where partition_key = {home()} and execution_id = any ($1) "
            "order by execution_id for no key update",
            ids,
        )
        yield
    finally:
        await transaction.rollback()


async def history(engine: Engine, planted: Planted) -> list[Ended]:
    """The ends of a flow in the order they were written."""
    rows = await engine.connection.fetch(
        "select v.execution_id, v.kind, v.outcome, e.cancelled_by, "
        "e.total_attempt_count > 0 as ran "
        "from ff.event v join ff.execution e using (partition_key, execution_id) "
        f"where v.partition_key = {home()} and v.execution_id = any ($1) order by v.event_id",
        planted.ids,
    )
    return [
        Ended(
            planted.numbers[row["execution_id"]],
            row["outcome"],
            "skip"
            if row["kind"] == "skipped"
            else "sibling"
            if row["kind"] == "cancelled" and row["cancelled_by"] == "flow_cascade"
            else "ours",
            row["kind"] in ("completed", "failed") or row["ran"],
        )
        for row in rows
        if row["kind"] in _ENDS
    ]


async def outcomes(engine: Engine, planted: Planted) -> dict[int, str]:
    ended, _ = await look(engine, planted)
    return ended


async def look(engine: Engine, planted: Planted) -> tuple[dict[int, str], bool]:
    """Who has ended how, and whether somebody has yet to be told or cancelled."""
    rows = await engine.connection.fetch(
        f"select execution_id, outcome from ff.execution where partition_key = {home()} "
        "and flow_id = $1 and phase = 'terminal' "
        f"union all select null, null from ff.execution where partition_key = {home()} "
        "and wakes_pending "
        f"union all select null, null from ff.edge_group where partition_key = {home()} "
        "and cancel_pending",
        planted.flow_id,
    )
    ended = {planted.numbers[row[0]]: row[1] for row in rows if row[0] is not None}
    return ended, len(ended) < len(rows)


async def groups(engine: Engine, planted: Planted) -> dict[tuple[int, int], Group]:
    rows = await engine.connection.fetch(
        "select downstream_id, group_no, n, succeeded, failed, skipped, state from ff.edge_group "
        f"where partition_key = {home()} and downstream_id = any ($1)",
        planted.ids,
    )
    return {
        (planted.numbers[row["downstream_id"]], row["group_no"]): Group(
            *(row[name] for name in ("n", "succeeded", "failed", "skipped", "state"))
        )
        for row in rows
    }


async def leftovers(engine: Engine, planted: Planted) -> list[str]:
    """What must not be there when all has been told."""
    told = await engine.connection.fetch(
        f"""
        select 'wakes pending of ' || e.execution_id as problem from ff.execution e
        where e.partition_key = {home()} and e.execution_id = any ($1) and e.wakes_pending
        union all
        select 'siblings pending of ' || g.downstream_id from ff.edge_group g
        where g.partition_key = {home()} and g.downstream_id = any ($1)
          and (g.cancel_pending or g.cancel_members <> '{{}}')
        union all
        select 'edge ' || d.edge_id || ' is ' || d.resolution || ' after ' || u.outcome
        from ff.edge d
        join ff.execution u on u.partition_key = {home()} and u.execution_id = d.upstream_id
        where d.partition_key = {home()} and d.flow_id = $2 and u.phase = 'terminal'
          and (d.outcome is distinct from u.outcome
               or (d.resolution = 'satisfied') <> (u.outcome = 'success'))
        """,
        planted.ids,
        planted.flow_id,
    )
    return [row["problem"] for row in told]


async def compare_groups(engine: Engine, planted: Planted, ended: Mapping[int, str]) -> list[str]:
    wanted, got = final_groups(planted.graph, ended), await groups(engine, planted)
    return [
        f"group {key}: {got.get(key)}, not {wanted[key]}"
        for key in wanted
        if got.get(key) != wanted[key]
    ]


async def doctor(db: Database) -> list[str]:
    """Every invariant, those too that hold only after a while."""
    problems = []
    for check in invariants():
        try:
            rows = await db.fetch(check.text)
        except asyncpg.PostgresError as error:
            raise AssertionError(f"{check}: {error}") from error
        problems += [str(dict(row)) for row in rows]
    return problems
