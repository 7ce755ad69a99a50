"""Grants, and the claims made with them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from support.model import Answer, Execution, Worker

from . import reading
from .bench import SECOND, WORKERS, Call
from .choices import AGAIN, GRANT_TTL, PICK, WHO, between, one_of, operation
from .walker import Walker


class Grants(Walker):
    """Grants, and the claims made with them."""

    def _issue(
        self,
        function: str,
        id_: UUID,
        who: str | None,
        worker: Worker,
        ttl: timedelta,
        key: bytes,
        again: bool,
        expect: Callable[[], Answer],
    ) -> None:
        answer = self.step(
            Call(
                function,
                {
                    "partition_key": 0,
                    "namespace": who,
                    "execution_id": id_,
                    "key": key,
                    "worker_id": worker.id,
                    "worker_instance_id": worker.instance,
                    "capabilities": sorted(worker.capabilities),
                    "grant_ttl": ttl,
                },
                lambda rows: reading.single(rows, ("kind", "expires_at")),
            ),
            expect,
            target=id_,
            again=again,
        )
        if answer.word == "granted":
            self.grant_keys[id_] = key

    def _new_key(self, pick: int, id_: UUID) -> bytes:
        """Mostly a new key; the one it was granted with before; too short a one."""
        if pick % 11 == 0 and id_ in self.grant_keys:
            return self.grant_keys[id_]
        return b"short" if pick == 61 else self.mint().bytes * 2

    @operation(6, pick=PICK, who=WHO, worker=between(0, 2), ttl=GRANT_TTL, again=AGAIN)
    def issue_claim_grant(
        self, pick: int, who: str | None, worker: int, ttl: timedelta, again: bool
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        key = self._new_key(pick, id_)
        self._issue(
            "issue_claim_grant", id_, who, WORKERS[worker], ttl, key, again,
            lambda: self.model.issue_claim_grant(who, id_, key, WORKERS[worker], ttl),
        )  # fmt: skip

    @operation(4, pick=PICK, who=WHO, worker=between(0, 2), ttl=GRANT_TTL, again=AGAIN)
    def issue_reclaim_grant(
        self, pick: int, who: str | None, worker: int, ttl: timedelta, again: bool
    ) -> None:
        id_ = self.choose(pick, lambda e: e.ownership.startswith("lease_"))
        key = self._new_key(pick, id_)
        self._issue(
            "issue_reclaim_grant", id_, who, WORKERS[worker], ttl, key, again,
            lambda: self.model.issue_reclaim_grant(who, id_, key, WORKERS[worker], ttl),
        )  # fmt: skip

    def _use(
        self, function: str, id_: UUID, pick: int, who: str | None, own: bool, **more: Any
    ) -> tuple[Call, bytes, Worker, UUID]:
        grant = self.model.grants.get(id_)
        key = self.grant_keys.get(id_, b"k" * 32) if pick % 8 else b"w" * 32
        worker = next(
            (w for w in WORKERS if own and grant is not None and w.id == grant.worker_id),
            WORKERS[pick % 3],
        )
        former = self.fences.get(id_)
        claim_id = former[0].lease_id if former and pick % 9 == 0 else self.mint()
        assert claim_id is not None
        call = Call(
            function,
            {
                "partition_key": 0,
                "namespace": who,
                "execution_id": id_,
                "key": key,
                "worker_id": worker.id,
                "worker_instance_id": worker.instance,
                "claim_id": claim_id,
                "lease_ttl": 30 * SECOND,
                **more,
            },
            reading.lease,
        )
        return call, key, worker, claim_id

    def _choose_granted(self, pick: int, kind: str) -> UUID:
        def is_granted(e: Execution) -> bool:
            grant = self.model.grants.get(e.execution_id)
            return grant is not None and grant.kind == kind

        return self.choose(pick, is_granted)

    @operation(
        7,
        pick=PICK,
        who=WHO,
        kind=one_of(["claim", "claim", "resume"]),
        index=one_of([None, None, None, "next", "wrong"]),
        own=one_of([True, True, True, False]),
        again=AGAIN,
    )
    def claim_granted(
        self, pick: int, who: str | None, kind: str, index: str | None, own: bool, again: bool
    ) -> None:
        id_ = self._choose_granted(pick, kind)
        e = self.model.executions.get(id_)
        expected = None
        if index is not None and e is not None:
            right = e.total_attempt_count if kind == "claim" else e.attempt_index
            expected = right + (index == "wrong")
        function = "claim_execution" if kind == "claim" else "claim_resumed_execution"
        call, key, worker, claim_id = self._use(
            function, id_, pick, who, own, expected_attempt_index=expected
        )
        answer = self.step(
            call,
            lambda: self.model.claim_granted(
                kind, who, id_, key, worker, claim_id, 30 * SECOND, expected
            ),
            target=id_,
            again=again,
        )
        self._keep(answer, claim_id)

    @operation(5, pick=PICK, who=WHO, own=one_of([True, True, True, False]), again=AGAIN)
    def reclaim_execution(self, pick: int, who: str | None, own: bool, again: bool) -> None:
        id_ = self._choose_granted(pick, "reclaim")
        call, key, worker, claim_id = self._use("reclaim_execution", id_, pick, who, own)
        call.read = reading.reclaimed
        answer = self.step(
            call,
            lambda: self.model.reclaim_execution(who, id_, key, worker, claim_id, 30 * SECOND),
            target=id_,
            again=again,
        )
        self._keep(answer, claim_id)

    @operation(3, pick=between(0, 59), kind=one_of(["current"]), worker=one_of([2]), again=AGAIN)
    def grant_and_use(self, pick: int, kind: str, worker: int, again: bool) -> None:
        """The whole way of a grant, which would seldom be gone step by step."""
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        if e is None:
            return
        is_open = e.attempt_state == "attempt_interrupted"
        is_lost = e.phase == "active"
        if is_lost:
            self.issue_reclaim_grant(pick, None, worker, 10 * SECOND, again)
            self.reclaim_execution(pick, None, True, again)
        else:
            self.issue_claim_grant(pick, None, worker, 10 * SECOND, again)
            self.claim_granted(pick, None, "resume" if is_open else "claim", None, True, again)

    @operation(2, pick=PICK, who=WHO, again=AGAIN)
    def issue_grant_and_claim(self, pick: int, who: str | None, again: bool) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        former = self.fences.get(id_)
        claim_id = former[0].lease_id if former and pick % 9 == 0 else self.mint()
        assert claim_id is not None
        answer = self.step(
            Call(
                "issue_grant_and_claim",
                {
                    "partition_key": 0,
                    "namespace": who,
                    "execution_id": id_,
                    "claim_id": claim_id,
                    "lease_ttl": 30 * SECOND,
                },
                reading.lease,
            ),
            lambda: self.model.issue_grant_and_claim(who, id_, claim_id, 30 * SECOND),
            target=id_,
            again=again,
        )
        self._keep(answer, claim_id)

    @operation(2, again=AGAIN)
    def reap_grants(self, again: bool) -> None:
        self._tick("reap_grants", self.model.reap_grants, again)
