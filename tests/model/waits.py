"""Waiting for the end of others, and whom an end concerns."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from support.model import Item

from . import reading
from .bench import NAMESPACE, ROUTES, Call
from .choices import AGAIN, FENCES, PICK, WHO, between, one_of, operation
from .executions import Executions
from .grants import Grants
from .operators import Operators


class Waits(Executions, Operators, Grants):
    """Waiting for the end of others, and whom an end concerns."""

    @operation(4, pick=PICK, kind=FENCES, who=WHO, again=AGAIN)
    def wait_children(self, pick: int, kind: str, who: str | None, again: bool) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single("wait_children", fence, who),
            lambda: self.model.wait_children(who, fence),
            target=fence.execution_id,
            again=again,
        )

    @operation(
        6,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        targets=one_of([[3], [8], [9], [13, 24], [6, 7, 11], [1, 17], [60], [62, 2], ["self"], []]),
        k=one_of([None, None, None, 1, 1, 2, 0, 9]),
        again=AGAIN,
    )
    def wait_for_runs(
        self,
        pick: int,
        kind: str,
        who: str | None,
        targets: list[Any],
        k: int | None,
        again: bool,
    ) -> None:
        id_ = self.choose_held(pick)
        self._wait_for(id_, kind, who, [self._other_than(id_, t) for t in targets], k, again)

    def _other_than(self, id_: UUID, pick: Any) -> UUID:
        """One to wait for: mostly unfinished, mostly another."""
        if pick == "self":
            return id_
        return self.choose(pick, lambda e: e.phase != "terminal" and e.execution_id != id_)

    def _wait_for(
        self,
        id_: UUID,
        kind: str,
        who: str | None,
        targets: list[UUID],
        k: int | None,
        again: bool,
    ) -> None:
        fence = self.fence(id_, kind)
        self.step(
            self._single("wait_for_runs", fence, who, "open", targets=targets, k=k),
            lambda: self.model.wait_for_runs(who, fence, targets, k),
            target=fence.execution_id,
            again=again,
            # what had ended before a wait without end is not kept to be counted again
            is_repeatable=False,
        )

    @operation(
        4, pick=between(0, 59), others=one_of([[3], [9], [6, 13], [8, 16, 21]]), k=one_of([None, 1])
    )
    def wait_again(self, pick: int, others: list[int], k: int | None) -> None:
        """Claimed to wait for others."""
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        targets = [self._other_than(id_, other) for other in others]
        if e is None or id_ in targets:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        self._wait_for(id_, "current", None, targets, k, False)
        self.aim = None

    @operation(4, pick=between(0, 59), is_child=one_of([False, True]), route=one_of([0, 1, 2]))
    def have_child(self, pick: int, is_child: bool, route: int) -> None:
        """A child that ends with its parent; of a child, to have grandchildren."""
        if len(self.model.executions) > 20:
            return
        parent = self.choose(
            pick,
            lambda e: (
                e.phase != "terminal"
                and e.route.namespace == NAMESPACE
                and (e.ends_with_parent or not is_child)
            ),
        )
        id_ = self.mint()
        item = Item(id=id_, route=ROUTES[route], parent_id=parent, with_parent=True)
        answers = self.step(
            Call(
                "submit_executions",
                {
                    "partition_key": 0,
                    "namespace": NAMESPACE,
                    "execution_ids": [id_],
                    "route_ids": [self.bench.routes[ROUTES[route]]],
                    "payloads": [b"null"],
                    "options": [json.dumps({"parent_id": str(parent), "with_parent": True})],
                },
                lambda rows: reading.submitted(rows, 1),
            ),
            lambda: self.model.submit(NAMESPACE, [item]),
        )
        if answers[0].word == "created":
            self.ids.append(id_)

    def _concerned(self, id_: UUID) -> list[UUID]:
        """Who waits for this one, and which children end with it."""
        model = self.model
        waiters = [
            w for (w, target), wait in model.waits.items() if target == id_ and not wait.ended_at
        ]
        heirs = [
            e.execution_id
            for e in model.executions.values()
            if e.parent_id == id_ and e.ends_with_parent and e.phase != "terminal"
        ]
        downstreams = [
            edge.downstream_id
            for edge in model.edges.values()
            if edge.upstream_id == id_ and edge.resolution == "unsatisfied"
        ]
        siblings = [
            edge.upstream_id
            for edge in model.edges.values()
            if edge.downstream_id in downstreams
            and edge.upstream_id != id_
            and edge.resolution == "unsatisfied"
        ]
        return list(dict.fromkeys(waiters + heirs + downstreams + siblings))

    @operation(
        6,
        pick=between(0, 59),
        how=one_of(["complete", "fail", "cancel", "cancel"]),
        is_locked=one_of([False, True]),
        is_resolved=one_of([False, True]),
    )
    def end_awaited(self, pick: int, how: str, is_locked: bool, is_resolved: bool) -> None:
        """End one that concerns others; now and then one of those is locked meanwhile."""
        id_ = self.choose(
            pick, lambda e: e.phase != "terminal" and bool(self._concerned(e.execution_id))
        )
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if how != "cancel" and e.eligibility == "eligible_now" and e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        concerned = self._concerned(id_)
        transaction = None
        if is_locked and concerned:
            transaction = self._lock(concerned[pick % len(concerned)])
        if how == "complete":
            self.complete([1], "current", None, False)
        elif how == "fail":
            self.fail([1], "current", None, "permanent", "it broke", None, None, False)
        else:
            self.cancel_execution(1, None, "operator_override", "current", None, None, False)
        if transaction is not None:
            self._run(transaction.rollback())
            self.model.locked = set()
        self.aim = None
        if is_resolved:
            self.resolve_wakes(False)

    @operation(3, again=AGAIN)
    def resolve_wakes(self, again: bool) -> None:
        self._tick("resolve_wakes", self.model.resolve_wakes, again)
