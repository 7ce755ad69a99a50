"""Quotas and budgets: usage, changed limits, and slots outside executions."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from support.model import Answer, Execution

from .bench import BUDGETS, GATES, LIMITS, MINUTE, NAMESPACE, SECOND, Call
from .choices import AGAIN, FENCES, PICK, WHO, between, one_of, operation, several
from .executions import Executions

QUOTA = one_of(list(GATES))
BUDGET = one_of([*BUDGETS, "patient"])
AMOUNTS = one_of([1, 20, 40, 40, 60, 101, 0])
KEYS = one_of([None, None, None, "a", "b"])


class Gates(Executions):
    """Quotas and budgets."""

    def _outcome(self, function: str, **arguments: Any) -> Call:
        return Call(
            function, {"namespace": NAMESPACE, **arguments}, lambda rows: Answer(rows[0]["outcome"])
        )

    @operation(
        1,
        limits=one_of(LIMITS),
        count=between(1, 3),
        route=one_of([0, 0, 1]),
        priority=one_of([0, 0, 5]),
        policy=one_of([0, 0, 1, 6]),
    )
    def submit_limited(
        self, limits: tuple[str, ...], count: int, route: int, priority: int, policy: int
    ) -> None:
        """Work that a claim finds at once, unless a limit has no room."""
        self.submit(
            picks=list(range(count)),
            route=route,
            namespace=NAMESPACE,
            priority=priority,
            delay=None,
            deadline=None,
            policy=policy,
            key=None,
            fingerprint=None,
            scope="window",
            window=MINUTE,
            family=(None, None),
            limits=limits,
            again=False,
        )

    @operation(1, worker=one_of([2, 1]), pick=PICK, amount=AMOUNTS)
    def claim_and_spend(self, worker: int, pick: int, amount: int) -> None:
        self.claim_most(worker, 5)
        self.report_usage([pick], "current", None, amount, None, False)

    @operation(
        3,
        picks=several(PICK, 2),
        kind=FENCES,
        who=WHO,
        amount=one_of([1, 20, 40, 40, 60, 101, 0, -1]),
        key=KEYS,
        again=AGAIN,
    )
    def report_usage(
        self,
        picks: list[int],
        kind: str,
        who: str | None,
        amount: int,
        key: str | None,
        again: bool,
    ) -> None:
        def spends(e: Execution) -> bool:
            return e.is_leased and e.budget_ids is not None

        fences = [self.fence(self.choose(pick, spends), kind) for pick in picks]
        self.step(
            self._fenced_batch(
                "report_usage",
                fences,
                who,
                "",
                usages=[json.dumps({"tokens": amount})] * len(fences),
                dedup_keys=[key] * len(fences),
            ),
            lambda: self.model.report_usage(who, fences, amount, key),
            target=fences[0].execution_id,
            again=again,
            is_repeatable=False,
        )

    @operation(1, name=BUDGET, pick=PICK, amount=AMOUNTS, key=KEYS, again=AGAIN)
    def record_spend(self, name: str, pick: int, amount: int, key: str | None, again: bool) -> None:
        id_ = self.choose(pick)
        self.step(
            self._outcome(
                "record_spend",
                budget=name,
                key=None,
                execution_id=id_,
                dimensions=["tokens"],
                amounts=[amount],
                dedup_key=key,
            ),
            lambda: Answer(self.model.record_spend(self.bench.limits[name], id_, amount, key)),
            again=again,
            is_repeatable=False,
        )

    @operation(1, name=BUDGET, pick=PICK, again=AGAIN)
    def release_budget(self, name: str, pick: int, again: bool) -> None:
        spent = list(self.model.budgets[self.bench.limits[name]].ledger)
        id_ = spent[pick % len(spent)] if spent and pick % 5 else self.choose(pick)
        call = self._outcome("release_budget", budget=name, key=None, execution_id=id_)
        call.read = lambda rows: json.loads(rows[0]["released"]).get("tokens")
        self.step(
            call,
            lambda: self.model.release_budget(self.bench.limits[name], id_),
            again=again,
            is_repeatable=False,
        )

    @operation(1, name=BUDGET, hard=one_of([50, 100, 150, 300]), again=AGAIN)
    def raise_budget(self, name: str, hard: int, again: bool) -> None:
        self.step(
            self._outcome(
                "raise_budget", budget=name, key=None, dimensions=["tokens"], hard_limits=[hard]
            ),
            lambda: Answer(self.model.raise_budget(self.bench.limits[name], hard)),
            again=again,
        )

    @operation(1, name=BUDGET)
    def reset_budget(self, name: str) -> None:
        self.step(
            self._outcome("reset_budget", budget=name, key=None),
            lambda: Answer(self.model.reset_budget(self.bench.limits[name])),
        )

    @operation(1, name=one_of(["slot", "pair", "both", "door"]), most=between(1, 4), again=AGAIN)
    def set_quota(self, name: str, most: int, again: bool) -> None:
        self.step(
            self._outcome("set_quota", quota=name, concurrency=most),
            lambda: Answer(self.model.set_quota(self.bench.limits[name], most)),
            again=again,
            is_repeatable=False,
        )

    @operation(1, name=one_of(["slot", "pair", "both", "door"]), again=AGAIN)
    def lift_quota(self, name: str, again: bool) -> None:
        self.step(
            self._outcome("lift_quota", quota=name),
            lambda: Answer(self.model.lift_quota(self.bench.limits[name])),
            again=again,
            is_repeatable=False,
        )

    @operation(1, name=QUOTA, pick=PICK, ttl=one_of([10 * SECOND, MINUTE, 5 * MINUTE]), again=AGAIN)
    def check_admission(self, name: str, pick: int, ttl: timedelta, again: bool) -> None:
        id_ = self.bench.limits[name]
        ticket_id = self._ticket(id_, pick) or self.mint()
        self.step(
            self._outcome(
                "check_admission",
                partition_key=0,
                quota=name,
                key=None,
                ticket_id=ticket_id,
                ttl=ttl,
            ),
            lambda: Answer(self.model.check_admission(id_, ticket_id, ttl)),
            again=again,
            is_repeatable=False,
        )

    def _ticket(self, id_: int, pick: int) -> UUID | None:
        """A ticket, now and then."""
        tickets = list(self.model.gates[id_].tickets)
        return tickets[pick % len(tickets)] if tickets and pick % 3 == 0 else None

    @operation(1, name=QUOTA, pick=PICK, again=AGAIN)
    def release_admission(self, name: str, pick: int, again: bool) -> None:
        id_ = self.bench.limits[name]
        ticket_id = self._ticket(id_, pick * 3) or self.mint()
        self.step(
            self._outcome(
                "release_admission", partition_key=0, quota=name, key=None, ticket_id=ticket_id
            ),
            lambda: Answer(self.model.release_admission(id_, ticket_id)),
            again=again,
        )

    @operation(1, pick=between(0, 59))
    def was_refused_often(self, pick: int) -> None:
        """As if an execution under several quotas had moved from line to line."""

        def is_refused(e: Execution) -> bool:
            return e.phase == "runnable" and len(e.quota_ids or ()) > 1

        e = self.model.executions.get(self.choose(pick, is_refused))
        if e is not None and is_refused(e):
            e.refusal_count = 4
            self._run(
                self.bench.connection.execute(
                    "update ff.execution set refusal_count = 4 where execution_id = $1",
                    e.execution_id,
                )
            )

    @operation(1, again=AGAIN)
    def sweep_gates(self, again: bool) -> None:
        self._tick("sweep_gates", lambda: self.model.sweep_gates() or 0, again, is_exact=False)
