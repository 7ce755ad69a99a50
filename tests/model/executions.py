"""Submits, claims and ends of executions."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from support.gate_model import BUDGETS as FIRST_BUDGET
from support.model import Answer, Item

from . import reading
from .bench import (
    LIMITS,
    MINUTE,
    NAMESPACE,
    NOTHING,
    POLICIES,
    ROUTES,
    SECOND,
    STRANGER,
    TASK,
    WORKERS,
    Call,
    Disagreement,
)
from .choices import AGAIN, FENCES, PICK, TTL, WHO, between, one_of, operation, several
from .walker import Walker


def _options(item: Item, policy: Any, *, is_child: bool) -> str:
    """Write the rare fields of an item as the client does."""
    options = {
        "deadline_ms": (
            None if item.deadline is None else item.deadline / timedelta(milliseconds=1)
        ),
        "policy": json.dumps(policy) if policy else None,
        "key": item.key,
        "key_fingerprint": None if item.fingerprint is None else item.fingerprint.hex(),
        "key_scope": item.scope,
        "key_window_ms": item.window / timedelta(milliseconds=1),
        "parent_id": str(item.parent_id) if is_child and item.parent_id else None,
        "with_parent": item.with_parent,
        "quotas": list(item.quotas) or None,
        "budgets": list(item.budgets) or None,
    }
    return json.dumps({name: value for name, value in options.items() if value is not None})


class Executions(Walker):
    """Submits, claims and ends of executions."""

    @operation(
        14,
        picks=several(PICK, 3),
        route=one_of([0] * 6 + [1] * 5 + [2] * 4 + [3, None]),
        namespace=one_of([NAMESPACE] * 19 + [STRANGER]),
        priority=one_of([0, 0, 0, 5, 9000, 9001, -1]),
        delay=one_of([None, None, None, NOTHING, -SECOND, 20 * SECOND, 5 * MINUTE]),
        deadline=one_of([None, None, None, None, MINUTE, 3 * MINUTE, NOTHING]),
        policy=one_of([*range(len(POLICIES)), 1, 1, 2, 2, 5, 6, 6]),
        key=one_of([None] * 15 + ["k1", "k1", "k2", "k3", ""]),
        fingerprint=one_of([b"x", b"x", b"x", b"y", None]),
        scope=one_of(["window", "unfinished"]),
        window=one_of([MINUTE, timedelta(hours=1), NOTHING]),
        family=one_of(
            [(None, None)] * 20
            + [(3, True), (7, True), (11, None), (22, False), (62, False)]
            + [(60, True), (62, True), ("self", True), (None, True)]
        ),
        limits=one_of([()] * (len(LIMITS) // 2) + list(LIMITS)),
        again=AGAIN,
    )
    def submit(
        self,
        picks: list[int],
        route: int | None,
        namespace: str,
        priority: int,
        delay: timedelta | None,
        deadline: timedelta | None,
        policy: int,
        key: str | None,
        fingerprint: bytes | None,
        scope: str,
        window: timedelta,
        family: tuple[int | str | None, bool | None],
        limits: tuple[str, ...],
        again: bool,
    ) -> None:
        if len(self.model.executions) > 20:
            picks = [63]
        chosen = ROUTES[route] if route is not None else None
        if chosen is not None and chosen.namespace == STRANGER:
            namespace = STRANGER
        ids = [self.bench.limits[name] for name in limits if namespace == NAMESPACE]
        if ids:
            # Whether a claim reads a line to its end, and so finds what is overdue in it, is not
            # defined.
            deadline = None
        rules, text = POLICIES[policy]
        parent, with_parent = family
        parent_id = self.choose_unfinished(parent) if isinstance(parent, int) else None
        items = []
        for n, pick in enumerate(picks):
            # one of those that are there again, or a new one
            id_ = self.ids[pick % len(self.ids)] if pick > 55 and self.ids else self.mint()
            if pick > 61 and n:
                id_ = items[0].id or id_
            items.append(
                Item(
                    id=id_,
                    route=chosen,
                    priority=priority,
                    delay=delay,
                    deadline=deadline,
                    policy=rules,
                    # one id twice with two keys is no call that anybody repeats
                    key=key if not key or n == 0 or id_ == items[0].id else f"{key}{n}",
                    fingerprint=fingerprint,
                    scope=scope,
                    window=window,
                    parent_id=id_ if parent == "self" else parent_id,
                    with_parent=with_parent,
                    quotas=tuple(id_ for id_ in ids if id_ < FIRST_BUDGET),
                    budgets=tuple(id_ for id_ in ids if id_ >= FIRST_BUDGET),
                )
            )
        n = len(items)
        call = Call(
            "submit_executions",
            {
                "partition_key": 0,
                "namespace": namespace,
                "execution_ids": [item.id for item in items],
                "route_ids": [self.bench.routes[chosen] if chosen else 12345] * n,
                "payloads": [b"null"] * n,
                "priorities": [priority] * n,
                "delays": [delay] * n,
                "options": [_options(item, text, is_child=parent is not None) for item in items],
            },
            lambda rows: reading.submitted(rows, n),
        )

        def expect() -> list[Answer]:
            return self.model.submit(namespace, items)

        answers = self.step(call, expect, again=False)
        created = [i.id for i, a in zip(items, answers, strict=True) if a.word == "created"]
        self.ids += [id_ for id_ in created if id_ is not None and id_ not in self.ids]
        if again:
            second = self.step(call, expect)
            for item, first, later in zip(items, answers, second, strict=True):
                if first.word == "created" and later != Answer("duplicate", {"id": item.id}):
                    raise Disagreement(f"a repeated submit answered {later}")

    def _claim(
        self,
        who: str | None,
        worker: int,
        lanes: list[str] | None,
        limit: int,
        ttl: timedelta,
        again: bool,
        claim_id: UUID | None = None,
    ) -> None:
        claimer = WORKERS[worker]
        # every second worker says when it starts
        reports = worker % 2 == 0
        is_new = claim_id is None
        claim_id = claim_id or self.mint()
        call = Call(
            "claim_executions",
            {
                "partition_key": 0,
                "namespace": who,
                "worker_id": claimer.id,
                "worker_instance_id": claimer.instance,
                "claim_id": claim_id,
                "lanes": lanes,
                "tasks": [TASK],
                "capabilities": sorted(claimer.capabilities),
                "limit": limit,
                "lease_ttl": ttl,
                "reports_starts": reports,
            },
            lambda rows: reading.claimed(rows, claim_id),
        )
        answers = self.step(
            call,
            lambda: self.model.claim(who, claimer, claim_id, lanes, limit, ttl, reports),
            again=again,
        )
        if isinstance(answers, list) and is_new:
            self._keep(answers, claim_id)
            if answers:
                self.last_claims[claimer.instance] = (who, worker, lanes, limit, ttl, claim_id)
            else:
                self.last_claims.pop(claimer.instance, None)

    @operation(
        5,
        who=WHO,
        worker=between(0, 2),
        lanes=one_of([None, None, None, ["a"], ["b"], ["a", "b"], ["c"]]),
        limit=one_of([1, 1, 2, 3, 10, 0]),
        ttl=TTL,
        again=AGAIN,
    )
    def claim(
        self,
        who: str | None,
        worker: int,
        lanes: list[str] | None,
        limit: int,
        ttl: timedelta,
        again: bool,
    ) -> None:
        self._claim(who, worker, lanes, limit, ttl, again)

    @operation(8, worker=one_of([2, 2, 1]), limit=one_of([1, 2, 3]), ttl=TTL)
    def claim_more(self, worker: int, limit: int, ttl: timedelta) -> None:
        self._claim(None, worker, None, limit, ttl, False)

    @operation(8, worker=one_of([2, 1]), limit=one_of([2, 5]))
    def claim_most(self, worker: int, limit: int) -> None:
        self._claim(None, worker, None, limit, 30 * SECOND, False)

    @operation(2, worker=between(0, 2))
    def claim_again_later(self, worker: int) -> None:
        """The last claim of a process, repeated after others have acted."""
        last = self.last_claims.get(WORKERS[worker].instance)
        if last is not None:
            who, _, lanes, limit, ttl, claim_id = last
            self._claim(who, worker, lanes, limit, ttl, False, claim_id)

    @operation(8, picks=several(PICK, 3), kind=FENCES, who=WHO, again=AGAIN)
    def complete(self, picks: list[int], kind: str, who: str | None, again: bool) -> None:
        fences = self._fences(picks, kind)
        results = [b"%d" % pick for pick in picks]
        self.step(
            self._fenced_batch("complete_executions", fences, who, "completed", results=results),
            lambda: self.model.complete(who, fences, results),
            target=fences[0].execution_id,
            again=again,
            # the second of two items for one execution is completed first and a duplicate later
            is_repeatable=len({f.execution_id for f in fences}) == len(fences),
        )

    @operation(
        8,
        picks=several(PICK, 2),
        kind=FENCES,
        who=WHO,
        class_=one_of(
            ["transient"] * 4 + ["permanent", "infra_crash", "timeout", "cancelled", "odd", None]
        ),
        reason=one_of(["it broke"] * 8 + [None, "x" * 257]),
        category=one_of([None, None, "io", "other"]),
        detail=one_of([None, b"{}"]),
        again=AGAIN,
    )
    def fail(
        self,
        picks: list[int],
        kind: str,
        who: str | None,
        class_: str | None,
        reason: str | None,
        category: str | None,
        detail: bytes | None,
        again: bool,
    ) -> None:
        fences = self._fences(picks, kind)
        n = len(fences)
        self.step(
            self._fenced_batch(
                "fail_executions",
                fences,
                who,
                "",
                classes=[class_] * n,
                reasons=[reason] * n,
                categories=[category] * n,
                details=[detail] * n,
            ),
            lambda: self.model.fail(who, fences, class_, reason, category, detail),
            target=fences[0].execution_id,
            again=again,
        )

    @operation(
        4,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        delay=one_of(
            [20 * SECOND, 20 * SECOND, 5 * MINUTE, NOTHING, -SECOND, None, timedelta(days=40_000)]
        ),
        newer_step=one_of([None, None, None, "ff.patch x"]),
        again=AGAIN,
    )
    def delay_execution(
        self,
        pick: int,
        kind: str,
        who: str | None,
        delay: timedelta | None,
        newer_step: str | None,
        again: bool,
    ) -> None:
        delay = delay if newer_step is None else None
        fence = self.fence(self.choose_held(pick), kind)
        given = {"delay": delay, "newer_step": newer_step}
        self.step(
            self._single("delay_execution", fence, who, "delayed_until", **given),
            lambda: self.model.delay(who, fence, delay, newer_step),
            target=fence.execution_id,
            again=again,
        )

    @operation(
        8,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        percent=one_of([0, 50, 100, None, -1, 101]),
        message=one_of([None, "on it"]),
        again=AGAIN,
    )
    def report_progress(
        self,
        pick: int,
        kind: str,
        who: str | None,
        percent: int | None,
        message: str | None,
        again: bool,
    ) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single("report_progress", fence, who, percent=percent, message=message),
            lambda: self.model.report_progress(who, fence, percent, message),
            target=fence.execution_id,
            again=again,
        )
