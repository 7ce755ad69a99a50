"""The functions that build and read flows as Python calls.

    graphs = Graphs(engine)
    answer = await graphs.submit(await graphs.document("a", "b", "c", edges=[(0, 2), (1, 2)]))
    flow = await graphs.flow("a", "b")                  # made step by step: .id, .ids, .revision
    edge = await flow.stage("a", "b")                   # expects the present revision
    await flow.apply(edge)                              # .outcome, .unsatisfied, .public_state

A refused call raises, as in support.factories. `with refused("WF412"):` expects that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .factories import Engine, Lease, new_id

if TYPE_CHECKING:
    from .database import Record


@dataclass(slots=True)
class Graphs:
    """Flows on one connection, in the namespace of its engine."""

    engine: Engine

    async def call(self, function: str, **arguments: Any) -> list[Record]:
        """Return the rows of a function. The partition and the namespace are filled in."""
        arguments = {
            "partition_key": self.engine.partition_key,
            "namespace": self.engine.namespace,
            **arguments,
        }
        given = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(arguments, 1))
        return await self.engine.connection.fetch(
            f"select a.* from ff.{function}({given}) a", *arguments.values()
        )

    async def one(self, function: str, **arguments: Any) -> Record:
        (row,) = await self.call(function, **arguments)
        return row

    async def node(self, name: str, **fields: Any) -> dict[str, Any]:
        return {
            "execution_id": str(new_id()),
            "route_id": await self.engine.register(),
            "name": name,
            **fields,
        }

    async def document(
        self,
        *names: str,
        edges: Iterable[tuple[int, int] | Mapping[str, Any]] = (),
        groups: Sequence[Mapping[str, Any]] = (),
        **fields: Any,
    ) -> dict[str, Any]:
        """Return a flow in the format of submit_flow. An edge is a pair of places, or JSON."""
        return {
            "flow_id": str(new_id()),
            "flow_kind": "test",
            "nodes": [await self.node(name) for name in names],
            "edges": [
                dict(edge) if isinstance(edge, Mapping) else {"from": edge[0], "to": edge[1]}
                for edge in edges
            ],
            "groups": [dict(group) for group in groups],
            **fields,
        }

    async def submit(self, document: Any, *, database: str | None = None, **given: Any) -> Any:
        """Call submit_flow and return its answer. `namespace` and `partition_key` are optional."""
        partition = given.get("partition_key", self.engine.partition_key)
        namespace = given.get("namespace", self.engine.namespace)
        text = await self.engine.connection.fetchval(
            "select ff.submit_flow($1::smallint, $2, $3::text::jsonb, $4)::text",
            partition,
            namespace,
            json.dumps(document),
            database,
        )
        return json.loads(text)

    async def create(self, flow_id: UUID | None = None, **fields: Any) -> Record:
        return await self.one(
            "create_flow", flow_id=flow_id or new_id(), **{"flow_kind": "test", **fields}
        )

    async def flow(self, *names: str) -> Stepwise:
        """Create a flow step by step, with these members and no edges."""
        flow = Stepwise(self, new_id())
        await self.create(flow.id)
        for name in names:
            flow.ids[name] = await self.submitted()
            await flow.add(name)
        return flow

    async def submitted(self, **fields: Any) -> UUID:
        answer = await self.engine.submit(**fields)
        assert answer.word == "created", answer
        assert answer.id is not None
        return answer.id


@dataclass(slots=True)
class Stepwise:
    """A flow that is built step by step. Calls name its members."""

    graphs: Graphs
    id: UUID
    ids: dict[str, UUID] = field(default_factory=dict)

    async def row(self) -> Record:
        return await self.graphs.one("describe_flow", flow_id=self.id)

    async def revision(self) -> int:
        revision: int = (await self.row())["graph_revision"]
        return revision

    async def add(self, name: str) -> Record:
        return await self.graphs.one(
            "add_execution_to_flow",
            flow_id=self.id,
            execution_id=self.ids[name],
            node_name=name,
        )

    async def stage(
        self,
        upstream: str,
        downstream: str,
        *,
        revision: int | None = None,
        edge_id: UUID | None = None,
        **fields: Any,
    ) -> Record:
        return await self.graphs.one(
            "stage_dependency_edge",
            flow_id=self.id,
            edge_id=edge_id or new_id(),
            upstream_id=self.ids[upstream],
            downstream_id=self.ids[downstream],
            expected_graph_revision=await self.revision() if revision is None else revision,
            **fields,
        )

    async def apply(
        self, edge: Record, upstream: str, downstream: str, lease: Lease | None = None
    ) -> Record:
        held = (
            {"lease_id": lease.lease_id, "epoch": lease.epoch, "attempt_id": lease.attempt_id}
            if lease
            else {}
        )
        return await self.graphs.one(
            "apply_dependency_to_child",
            flow_id=self.id,
            edge_id=edge["edge_id"],
            upstream_id=self.ids[upstream],
            downstream_id=self.ids[downstream],
            **held,
        )

    async def link(self, upstream: str, downstream: str, **fields: Any) -> Record:
        """Stage an edge and apply it."""
        edge = await self.stage(upstream, downstream, **fields)
        return await self.apply(edge, upstream, downstream)

    async def policy(self, downstream: str, policy: str | None, **fields: Any) -> str:
        row = await self.graphs.one(
            "set_edge_group_policy",
            flow_id=self.id,
            downstream_id=self.ids[downstream],
            policy=policy,
            **fields,
        )
        outcome: str = row["outcome"]
        return outcome

    async def groups(self, downstream: str) -> list[Record]:
        return await self.graphs.engine.connection.fetch(
            "select * from ff.edge_group where partition_key = $1 and downstream_id = $2 "
            "order by group_no",
            self.graphs.engine.partition_key,
            self.ids[downstream],
        )

    async def state(self, name: str) -> str:
        state: str = (await self.graphs.engine.row(self.ids[name]))["public_state"]
        return state
