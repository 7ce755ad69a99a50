"""Small flows for tests. Every node has its own lane, so that a test can claim it by name.

    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "c"), ("b", "c")],
                           groups=[Group("c", "any_of", on_satisfied="cancel_remaining")])
    await flow.complete("a", b"42")                     # claims it and completes it
    await flow.fail("b")
    assert await flow.states() == {"a": "completed", "b": "failed", "c": "waiting"}

`flow["a"]` is the uuid of a node. `flow.over(engine)` is the same flow on another connection.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from .database import Database
from .factories import Engine, Lease, Outcome, new_id

if TYPE_CHECKING:
    from .database import Connection, Record

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Edge:
    """One dependency. `("a", "b")` stands for Edge("a", "b")."""

    from_: str
    to: str
    group: int = 0
    ref: str | None = None
    is_applied: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """The policy of the edges into a node. A group that is not listed is all_of."""

    node: str
    policy: str = "all_of"
    k: int | None = None
    on_satisfied: str | None = None
    group: int = 0


Where: TypeAlias = "Engine | Database | Connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A stored flow, with calls on its nodes by name."""

    engine: Engine
    id: UUID
    ids: Mapping[str, UUID]
    lanes: Mapping[str, str]
    edge_ids: Sequence[UUID] = field(default_factory=list)

    def __getitem__(self, name: str) -> UUID:
        return self.ids[name]

    def text(self, name: str) -> str:
        """Return the id of a node as clients write it."""
        return f"{{fp:{self.engine.partition_key}}}:{self.ids[name]}"

    def over(self, where: Where) -> Flow:
        return replace(self, engine=_engine(where))

    async def take(self, name: str, **arguments: Any) -> Lease:
        arguments.setdefault("instance", f"worker-of-{name}")
        return await self.engine.take(self.ids[name], lanes=[self.lanes[name]], **arguments)

    async def complete(self, name: str, result: bytes | None = b"null") -> Outcome:
        answer = await self.engine.complete(await self.take(name), result)
        assert answer.word == "completed", answer
        return answer

    async def fail(self, name: str, class_: str = "permanent") -> Outcome:
        return await self.engine.fail(await self.take(name), class_)

    async def cancel(self, name: str) -> Outcome:
        return await self.engine.cancel(self.ids[name])

    async def end(self, name: str, outcome: str) -> Outcome:
        """End a node that can be claimed: success, failed or cancelled."""
        match outcome:
            case "success":
                return await self.complete(name)
            case "failed":
                return await self.fail(name)
            case "cancelled":
                return await self.cancel(name)
        raise AssertionError(outcome)

    async def apply(self, number: int = 0, lease: Lease | None = None) -> Record:
        """Apply a staged edge. If the downstream is running, pass the lease of its worker."""
        edge = await self.engine.connection.fetchrow(
            "select upstream_id, downstream_id from ff.edge where edge_id = $1",
            self.edge_ids[number],
        )
        assert edge is not None
        row: Record | None = await self.engine.connection.fetchrow(
            "select * from ff.apply_dependency_to_child($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            self.engine.partition_key,
            self.engine.namespace,
            self.id,
            self.edge_ids[number],
            edge["upstream_id"],
            edge["downstream_id"],
            lease.lease_id if lease else None,
            lease.epoch if lease else None,
            lease.attempt_id if lease else None,
        )
        assert row is not None
        return row

    async def row(self, name: str) -> Record:
        return await self.engine.row(self.ids[name])

    async def state(self, name: str) -> str:
        state: str = (await self.row(name))["public_state"]
        return state

    async def states(self, names: Iterable[str] | None = None) -> dict[str, str]:
        return {name: await self.state(name) for name in names or self.ids}

    async def group(self, name: str, number: int = 0) -> Record:
        row: Record | None = await self.engine.connection.fetchrow(
            "select * from ff.edge_group where partition_key = $1 and downstream_id = $2 "
            "and group_no = $3",
            self.engine.partition_key,
            self.ids[name],
            number,
        )
        assert row is not None, f"no group {number} of {name}"
        return row

    async def edges(self, to: str | None = None) -> list[Record]:
        """Return the edges of the flow, or the edges into one node, in the order of creation."""
        return await self.engine.connection.fetch(
            "select g.* from unnest($3::uuid[]) with ordinality u(id, n) join ff.edge g "
            "on g.partition_key = $1 and g.flow_id = $2 and g.edge_id = u.id "
            "where $4::uuid is null or g.downstream_id = $4 order by u.n",
            self.engine.partition_key,
            self.id,
            list(self.edge_ids),
            None if to is None else self.ids[to],
        )

    async def counts(self, name: str, number: int = 0) -> tuple[str, int, int, int, int]:
        """Return state, n, succeeded, failed and skipped of a group."""
        row = await self.group(name, number)
        return (row["state"], row["n"], row["succeeded"], row["failed"], row["skipped"])

    def named(self, id_: UUID) -> str:
        return next(name for name, one in self.ids.items() if one == id_)


def _engine(where: Where) -> Engine:
    if isinstance(where, Engine):
        return where
    return Engine(where.conn if isinstance(where, Database) else where)


async def make_flow(
    where: Where,
    *,
    nodes: Sequence[str],
    edges: Sequence[Edge | tuple[str, str]] = (),
    groups: Sequence[Group] = (),
    items: Mapping[str, Mapping[str, Any]] | None = None,
) -> Flow:
    """Store a flow. `items` gives nodes the fields of a submit (support.factories.Item)."""
    engine = _engine(where)
    links = [edge if isinstance(edge, Edge) else Edge(*edge) for edge in edges]
    number = next(_numbers)
    lanes = {name: f"f{number}-{name}" for name in nodes}
    ids = {name: new_id() for name in nodes}
    flow = Flow(
        engine=engine, id=new_id(), ids=ids, lanes=lanes, edge_ids=[new_id() for _ in links]
    )
    if not items and _is_whole(nodes, links, groups):
        return await _submit(flow, links, groups)
    async with engine.connection.transaction():
        for name in nodes:
            answer = await engine.submit(
                id=ids[name],
                route=await engine.register(lane=lanes[name]),
                **(items or {}).get(name, {}),
            )
            assert answer.word == "created", answer
        await _store(flow, links, groups)
    return flow


def _is_whole(nodes: Sequence[str], links: Sequence[Edge], groups: Sequence[Group]) -> bool:
    """Return whether ff.submit_flow accepts the flow. Other flows are inserted directly."""
    places = {name: place for place, name in enumerate(nodes)}
    sizes = Counter((link.to, link.group) for link in links)
    if len({(link.from_, link.to, link.group) for link in links}) < len(links):
        return False
    return all(link.is_applied and places[link.from_] < places[link.to] for link in links) and all(
        (group.k or 1) <= sizes[group.node, group.group] for group in groups
    )


async def _submit(flow: Flow, links: Sequence[Edge], groups: Sequence[Group]) -> Flow:
    engine = flow.engine
    places = {name: place for place, name in enumerate(flow.ids)}
    document = {
        "flow_id": str(flow.id),
        "flow_kind": "test",
        "nodes": [
            {
                "execution_id": str(id_),
                "name": name,
                "route_id": await engine.register(lane=flow.lanes[name]),
                "payload": None,
            }
            for name, id_ in flow.ids.items()
        ],
        "edges": [
            {
                "from": places[link.from_],
                "to": places[link.to],
                "group": link.group,
                "ref": link.ref,
            }
            for link in links
        ],
        "groups": [
            {
                "node": places[group.node],
                "group": group.group,
                "policy": group.policy,
                "k": group.k,
                "on_satisfied": group.on_satisfied,
            }
            for group in groups
        ],
    }
    answer = json.loads(
        await engine.connection.fetchval(
            "select ff.submit_flow($1, $2, $3)",
            engine.partition_key,
            engine.namespace,
            json.dumps(document),
        )
    )
    assert answer["outcome"] == "created", answer
    rows = await engine.connection.fetch(
        "select edge_id from ff.edge where partition_key = $1 and flow_id = $2 order by edge_id",
        engine.partition_key,
        flow.id,
    )
    return replace(flow, edge_ids=[row["edge_id"] for row in rows])


async def _store(flow: Flow, links: Sequence[Edge], groups: Sequence[Group]) -> None:
    connection, partition = flow.engine.connection, flow.engine.partition_key
    await connection.execute(
        "insert into ff.flow (partition_key, flow_id, namespace, flow_kind, graph_revision, "
        "node_count, edge_count, created_at, mutated_at) "
        "values ($1, $2, $3, 'test', $4, $5, $6, ff.now(), ff.now())",
        partition,
        flow.id,
        flow.engine.namespace,
        len(flow.ids) + len(links),
        len(flow.ids),
        len(links),
    )
    await connection.execute(
        "insert into ff.execution_body (partition_key, execution_id, node_name) "
        "select $1, * from unnest($2::uuid[], $3::text[]) "
        "on conflict (partition_key, execution_id) do update set node_name = excluded.node_name",
        partition,
        list(flow.ids.values()),
        list(flow.ids),
    )
    await connection.execute(
        "update ff.execution set flow_id = $2, is_awaited = execution_id = any ($4) "
        "where partition_key = $1 and execution_id = any ($3)",
        partition,
        flow.id,
        list(flow.ids.values()),
        [flow[link.from_] for link in links if link.is_applied],
    )
    await connection.execute(
        "update ff.execution set eligibility = 'blocked_by_dependencies', "
        "blocking_reason = 'waiting_for_children', cause = 'apply_dependency' "
        "where partition_key = $1 and execution_id = any ($2)",
        partition,
        [flow[link.to] for link in links if link.is_applied],
    )
    policies = {(group.node, group.group): group for group in groups}
    for link in links:
        policies.setdefault((link.to, link.group), Group(link.to, group=link.group))
    await connection.executemany(
        "insert into ff.edge_group (partition_key, downstream_id, group_no, flow_id, policy, k, "
        "on_satisfied, n) values ($1, $2, $3, $4, $5, $6, $7, $8)",
        [
            (
                partition,
                flow[group.node],
                group.group,
                flow.id,
                group.policy,
                group.k,
                group.on_satisfied or (None if group.policy == "all_of" else "cancel_remaining"),
                sum((link.to, link.group) == (group.node, group.group) for link in links),
            )
            for group in policies.values()
        ],
    )
    await connection.executemany(
        "insert into ff.edge (partition_key, flow_id, edge_id, upstream_id, downstream_id, "
        "group_no, data_passing_ref, created_at, applied_at, resolution) values ($1, $2, $3, $4, "
        "$5, $6, $7, ff.now(), case when $8 then ff.now() end, case when $8 then "
        "'unsatisfied'::ff.resolution end)",
        [
            (
                partition,
                flow.id,
                edge_id,
                flow[link.from_],
                flow[link.to],
                link.group,
                link.ref,
                link.is_applied,
            )
            for link, edge_id in zip(links, flow.edge_ids, strict=True)
        ],
    )
