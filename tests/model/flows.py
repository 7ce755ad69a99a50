"""Flows: submitted whole, or built edge by edge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

from support.flow_model import Graph
from support.model import Answer, Execution, Policy

from . import reading
from .bench import NAMESPACE, POLICIES, ROUTES, STRANGER, Call, Disagreement
from .choices import AGAIN, PICK, RULES, WHO, between, one_of, operation
from .executions import Executions
from .grants import Grants


class Flows(Executions, Grants):
    """Flows: submitted whole, or built edge by edge."""

    @operation(
        7,
        size=one_of([2, 3, 3, 4, 5]),
        shape=between(0, 2**30),
        route=one_of([0, 1, 2]),
        again=AGAIN,
    )
    def submit_flow(self, size: int, shape: int, route: int, again: bool) -> None:
        """A small graph: chains, joins and forks, with rules of all kinds."""
        if len(self.model.executions) > 17:
            return
        dice = Random(shape)
        edges: list[tuple[int, int, int]] = []
        for to in range(1, size):
            ups = dice.sample(range(to), dice.randint(to == size - 1, min(to, 3)))
            edges += [(up, to, dice.choice([0, 0, 1])) for up in ups]
        rules = {}
        for to, number in dict.fromkeys((to, number) for _, to, number in edges):
            n = sum((to, number) == edge[1:] for edge in edges)
            rule = dice.choice(RULES)
            rules[to, number] = rule if (rule[1] or 1) <= n else RULES[0]
        policies = [dice.choice(POLICIES) for _ in range(size)]
        self._submit_flow(edges, rules, policies, route, again)

    def _submit_flow(
        self,
        edges: list[tuple[int, int, int]],
        rules: dict[tuple[int, int], tuple[str, int | None, str | None]],
        policies: Sequence[tuple[Policy, dict[str, Any] | None]],
        route: int,
        again: bool,
    ) -> list[UUID]:
        """The members, if it was stored."""
        now = self.model.now
        nodes = tuple(
            Execution(
                execution_id=self.mint(),
                route=ROUTES[route],
                policy=rules_of,
                priority=0,
                created_at=now,
                transitioned_at=now,
                mutated_at=now,
                version=0,
            )
            for rules_of, _ in policies
        )
        flow_id = self.mint()
        graph = Graph(nodes, tuple(edges), rules)
        document = {
            "flow_id": str(flow_id),
            "flow_kind": "walk",
            "nodes": [
                {
                    "execution_id": str(node.execution_id),
                    "name": f"n{at}",
                    "route_id": self.bench.routes[ROUTES[route]],
                    "payload": None,
                    **({"policy": text} if text else {}),
                }
                for at, (node, (_, text)) in enumerate(zip(nodes, policies, strict=True))
            ],
            "edges": [{"from": f, "to": t, "group": g} for f, t, g in edges],
            "groups": [
                {
                    "node": to,
                    "group": number,
                    "policy": policy,
                    **({"k": k} if k else {}),
                    **({"on_satisfied": after} if after else {}),
                }
                for (to, number), (policy, k, after) in rules.items()
            ],
        }
        call = Call(
            "submit_flow",
            {"partition_key": 0, "namespace": NAMESPACE, "flow": json.dumps(document)},
            lambda rows: Answer(json.loads(rows[0][0])["outcome"]),
            {"flow": "::jsonb"},
        )

        def expect() -> Answer:
            is_there = flow_id in self.model.flows
            if not is_there and not self.model.lanes[ROUTES[route].place].is_open:
                return Answer("lane_closed")
            return Answer(self.model.submit_flow(flow_id, NAMESPACE, graph))

        if self.step(call, expect).word != "created":
            return []
        ids = [node.execution_id for node in nodes]
        self.ids += ids
        if again and self.step(call, expect).word != "duplicate":
            raise Disagreement("a repeated submit_flow was not a duplicate")
        return ids

    def choose_flow(self, pick: int) -> UUID:
        """A flow, mostly one that is not cancelled; now and then one that is not there."""
        there = list(self.model.flows)
        if pick > 60 or not there:
            return UUID(int=pick + 1)
        liked = [id_ for id_, f in self.model.flows.items() if not f.cancelled_at and f.node_count]
        some = liked if liked and pick % 5 else there
        return some[pick // 5 % len(some)]

    def choose_member(self, pick: int, flow_id: UUID) -> UUID:
        members = [e.execution_id for e in self.model._members(flow_id)]
        if not members or pick > 60:
            return self.choose(pick)
        return members[pick % len(members)]

    def _flow_call(
        self, function: str, flow_id: UUID, who: str | None, read: Any, **more: Any
    ) -> Call:
        return Call(
            function,
            {"partition_key": 0, "namespace": who, "flow_id": flow_id, **more},
            read,
        )

    @operation(2, pick=PICK, name=one_of([NAMESPACE, NAMESPACE, STRANGER]), again=AGAIN)
    def create_flow(self, pick: int, name: str, again: bool) -> None:
        flow_id = self.choose_flow(pick) if pick % 4 == 0 else self.mint()
        call = self._flow_call(
            "create_flow",
            flow_id,
            name,
            lambda rows: Answer(rows[0]["outcome"], {"revision": rows[0]["graph_revision"]}),
            flow_kind="walk",
        )

        def expect() -> Answer:
            word, revision = self.model.create_flow(name, flow_id)
            return Answer(word, {"revision": revision})

        answer = self.step(call, expect)
        if again and not answer.is_raised and self.step(call, expect).word != "already_satisfied":
            raise Disagreement("a repeated create_flow made another one")

    @operation(3, pick=PICK, member=PICK, who=WHO, again=AGAIN)
    def add_execution_to_flow(self, pick: int, member: int, who: str | None, again: bool) -> None:
        flow_id = self.choose_flow(pick)
        id_ = self.choose(member, lambda e: e.flow_id is None)
        self.step(
            self._flow_call(
                "add_execution_to_flow",
                flow_id,
                who,
                lambda rows: Answer(
                    rows[0]["outcome"],
                    {"counts": (rows[0]["node_count"], rows[0]["graph_revision"])},
                ),
                execution_id=id_,
            ),
            lambda: reading.added(self.model.add_execution(who, flow_id, id_)),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        2, pick=PICK, member=PICK, who=WHO, group=one_of([0, 1, 2]), rule=one_of(RULES), again=AGAIN
    )
    def set_edge_group_policy(
        self,
        pick: int,
        member: int,
        who: str | None,
        group: int,
        rule: tuple[str, int | None, str | None],
        again: bool,
    ) -> None:
        flow_id = self.choose_flow(pick)
        id_ = self.choose_member(member, flow_id)
        self.step(
            self._flow_call(
                "set_edge_group_policy",
                flow_id,
                who,
                lambda rows: Answer(rows[0]["outcome"]),
                downstream_id=id_,
                policy=rule[0],
                k=rule[1],
                on_satisfied=rule[2],
                group_no=group,
            ),
            lambda: Answer(self.model.set_policy(who, flow_id, id_, group, rule)),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        6,
        pick=PICK,
        up=PICK,
        down=PICK,
        who=WHO,
        group=one_of([0, 0, 1, 2]),
        revision=one_of(["seen"] * 5 + ["older"]),
        is_applied=one_of([True, True, True, False]),
        is_held=one_of([False, True]),
        again=AGAIN,
    )
    def stage_and_apply(
        self,
        pick: int,
        up: int,
        down: int,
        who: str | None,
        group: int,
        revision: str,
        is_applied: bool,
        is_held: bool,
        again: bool,
    ) -> None:
        flow_id = self.choose_flow(pick)
        ends = self.choose_member(up, flow_id), self.choose_member(down, flow_id)
        flow = self.model.flows.get(flow_id)
        seen = (flow.graph_revision if flow else 0) - (revision == "older")
        edge_id = self.mint()
        self.step(
            self._flow_call(
                "stage_dependency_edge",
                flow_id,
                who,
                lambda rows: Answer(rows[0]["outcome"], {"revision": rows[0]["graph_revision"]}),
                edge_id=edge_id,
                upstream_id=ends[0],
                downstream_id=ends[1],
                expected_graph_revision=seen,
                group_no=group,
            ),
            lambda: reading.staged(self.model.stage(who, flow_id, edge_id, ends, group, seen)),
            target=ends[1],
            again=again,
        )
        if is_applied and edge_id in self.model.edges:
            self._apply(flow_id, edge_id, ends, is_held, again)

    @operation(2, pick=PICK, is_held=one_of([False, True]), again=AGAIN)
    def apply_dependency(self, pick: int, is_held: bool, again: bool) -> None:
        """One that was only staged, mostly."""
        edges = list(self.model.edges.values())
        staged = [edge for edge in edges if edge.applied_at is None]
        some = staged or edges
        if some:
            edge = some[pick % len(some)]
            ends = edge.upstream_id, edge.downstream_id
            self._apply(
                edge.flow_id, edge.edge_id, ends if pick < 60 else ends[::-1], is_held, again
            )

    def _apply(
        self, flow_id: UUID, edge_id: UUID, ends: tuple[UUID, UUID], is_held: bool, again: bool
    ) -> None:
        fence = self.fence(ends[1], "current") if is_held else None
        more = (
            {"lease_id": fence.lease_id, "epoch": fence.epoch, "attempt_id": fence.attempt_id}
            if fence
            else {}
        )
        self.step(
            self._flow_call(
                "apply_dependency_to_child",
                flow_id,
                NAMESPACE,
                reading.applied,
                edge_id=edge_id,
                upstream_id=ends[0],
                downstream_id=ends[1],
                **more,
            ),
            lambda: self.model.apply(NAMESPACE, flow_id, edge_id, ends, fence),
            target=ends[1],
            again=again,
            is_repeatable=False,
        )
