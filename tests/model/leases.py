"""Leases that are renewed, given back and lost."""

from __future__ import annotations

from datetime import timedelta

from .bench import MINUTE, NOTHING, SECOND
from .choices import AGAIN, FENCES, PICK, TTL, WHO, between, one_of, operation, several
from .executions import Executions
from .grants import Grants
from .operators import Operators


class Leases(Executions, Operators, Grants):
    """Leases that are renewed, given back and lost."""

    @operation(4, picks=several(PICK, 3), kind=FENCES, who=WHO, ttl=TTL, again=AGAIN)
    def renew(
        self, picks: list[int], kind: str, who: str | None, ttl: timedelta, again: bool
    ) -> None:
        fences = self._fences(picks, kind)
        self.step(
            self._fenced_batch("renew_leases", fences, who, "renewed", lease_ttl=ttl),
            lambda: self.model.renew(who, fences, ttl),
            target=fences[0].execution_id,
            again=again,
        )

    @operation(
        4,
        picks=several(PICK, 3),
        kind=FENCES,
        who=WHO,
        alone=one_of([True, True, False, False, None]),
        again=AGAIN,
    )
    def start(
        self, picks: list[int], kind: str, who: str | None, alone: bool | None, again: bool
    ) -> None:
        fences = self._fences(picks, kind)
        self.step(
            self._fenced_batch(
                "start_executions", fences, who, "started", are_alone=[alone] * len(fences)
            ),
            lambda: self.model.start(who, fences, alone),
            target=fences[0].execution_id,
            again=again,
        )

    @operation(4, picks=several(PICK, 2), kind=FENCES, who=WHO, again=AGAIN)
    def release(self, picks: list[int], kind: str, who: str | None, again: bool) -> None:
        fences = self._fences(picks, kind)
        self.step(
            self._fenced_batch("release_leases", fences, who, "released", cause="worker_shutdown"),
            lambda: self.model.release(who, fences, "worker_shutdown"),
            target=fences[0].execution_id,
            again=again,
        )

    @operation(2, again=AGAIN)
    def expire_leases(self, again: bool) -> None:
        # handled also counts rows whose timer was only moved on
        self._tick("expire_leases", lambda: self.model.expire_leases() * 0, again, is_exact=False)

    @operation(2, span=one_of([10 * SECOND, 30 * SECOND, MINUTE]))
    def leases_run_out(self, span: timedelta) -> None:
        self._advance(span)
        self._tick("expire_leases", lambda: self.model.expire_leases() * 0, False, is_exact=False)

    @operation(3, pick=between(0, 59), is_revoked=one_of([False, False, True]))
    def lose_again(self, pick: int, is_revoked: bool) -> None:
        id_ = self.choose(
            pick, lambda e: e.phase == "active" and (bool(pick % 2) or e.policy.max_reclaims < 100)
        )
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        if is_revoked:
            self.revoke_lease(1, None, "any", None, "any", False)
            self.renew([1], "current", None, 30 * SECOND, False)
        elif e.lease_expires_at is not None:
            self._advance(max(e.lease_expires_at - self.model.now, NOTHING))
            self.expire_leases(False)
        self.issue_reclaim_grant(1, None, 2, 10 * SECOND, False)
        self.reclaim_execution(1, None, True, False)
        self.aim = None

    @operation(1, pick=between(0, 59))
    def lose_too_often(self, pick: int) -> None:
        id_ = self.choose(pick, lambda e: e.phase != "terminal" and e.policy.max_reclaims == 0)
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        self.aim = None
        if e.lease_expires_at is not None:
            self._advance(max(e.lease_expires_at - self.model.now, NOTHING))
            self.expire_leases(False)
            self.claim_most(2, 5)
