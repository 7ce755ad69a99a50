"""How members end, replay and are cancelled with their flow."""

from __future__ import annotations

from uuid import UUID

from support.model import Answer

from . import reading
from .bench import MINUTE, POLICIES, Call
from .choices import ACTOR, AGAIN, PICK, RULES, WHO, between, one_of, operation
from .flows import Flows
from .waits import Waits


class FlowEnds(Flows, Waits):
    """How members end, replay and are cancelled with their flow."""

    @operation(
        2,
        rule=one_of([rule for rule in RULES if rule[2] == "cancel_remaining"]),
        how=one_of(["complete", "complete", "complete", "fail"]),
        locked=one_of([None, 1, 1, 2, 3]),
        is_needed=one_of([False, True]),
        is_resolved=one_of([False, True]),
    )
    def race(
        self,
        rule: tuple[str, int | None, str | None],
        how: str,
        locked: int | None,
        is_needed: bool,
        is_resolved: bool,
    ) -> None:
        """Three that race, and one that waits for the first; now and then one of them is held by
        somebody else, or needed by another as well."""
        if len(self.model.executions) > 17:
            return
        edges = [(up, 3, 0) for up in range(3)] + ([(2, 4, 0)] if is_needed else [])
        ids = self._submit_flow(edges, {(3, 0): rule}, [POLICIES[0]] * 5, 0, False)
        if not ids:
            return
        for id_ in ids[: rule[1] or 1]:
            self.aim = id_
            self.issue_grant_and_claim(1, None, False)
            transaction = self._lock(ids[locked]) if locked not in (None, ids.index(id_)) else None
            if how == "complete":
                self.complete([1], "current", None, False)
            else:
                self.fail([1], "current", None, "permanent", "it broke", None, None, False)
            self._unlock(transaction)
        self.aim = None
        if is_resolved:
            self.resolve_wakes(False)
            self.cancel_siblings(True)

    @operation(
        3,
        pick=PICK,
        who=WHO,
        policy=one_of(["cancel_all"] * 3 + ["cancel_pending"] * 2 + ["flow_only"]),
        reason=one_of([None, "enough"]),
        actor=ACTOR,
        locked=one_of([None, None, 1, 2, 3]),
        is_followed=one_of([False, True]),
    )
    def cancel_flow_header(
        self,
        pick: int,
        who: str | None,
        policy: str,
        reason: str | None,
        actor: str | None,
        locked: int | None,
        is_followed: bool,
    ) -> None:
        flow_id = self.choose_flow(pick)
        members = self.model._members(flow_id)
        transaction = None
        if locked is not None and members:
            transaction = self._lock(members[locked % len(members)].execution_id)
        self.step(
            self._flow_call(
                "cancel_flow_header",
                flow_id,
                who,
                reading.header,
                policy=policy,
                reason=reason,
                actor=actor,
                grace=MINUTE,
            ),
            lambda: reading.cancelled(
                self.model.cancel_header(who, flow_id, policy, reason, actor, MINUTE)
            ),
        )
        self._unlock(transaction)
        if is_followed:
            self._cancel_members(flow_id, None, None)

    def choose_cancelled(self, pick: int) -> UUID:
        there = list(self.model.backlogs)
        return there[pick % len(there)] if there and pick < 60 else self.choose_flow(pick)

    @operation(4, pick=PICK, who=WHO, locked=one_of([None, None, 1, 2]))
    def cancel_members(self, pick: int, who: str | None, locked: int | None) -> None:
        self._cancel_members(self.choose_cancelled(pick), who, locked)

    def _cancel_members(self, flow_id: UUID, who: str | None, locked: int | None) -> None:
        members = self.model._members(flow_id)
        transaction = None
        if locked is not None and members:
            transaction = self._lock(members[locked % len(members)].execution_id)
        self.step(
            self._flow_call(
                "cancel_members",
                flow_id,
                who,
                lambda rows: Answer(
                    "handled" if rows[0]["handled"] else "nothing",
                    {
                        "counts": tuple(rows[0][n] for n in ("handled", "remaining", "draining")),
                        "is_pending": rows[0]["wakes_pending"],
                    },
                ),
            ),
            lambda: reading.ended(self.model.cancel_members(who, flow_id)),
        )
        self._unlock(transaction)

    @operation(1, pick=PICK, member=PICK, who=WHO, again=AGAIN)
    def ack_cancel_member(self, pick: int, member: int, who: str | None, again: bool) -> None:
        flow_id = self.choose_cancelled(pick)
        id_ = self.choose_member(member, flow_id)
        self.step(
            self._flow_call(
                "ack_cancel_member",
                flow_id,
                who,
                lambda rows: Answer(rows[0]["outcome"], {"remaining": rows[0]["remaining"]}),
                execution_id=id_,
            ),
            lambda: Answer("acked", {"remaining": self.model.ack_member(who, flow_id, id_)}),
            target=id_,
            again=again,
        )

    @operation(1, again=AGAIN)
    def cancel_backlog(self, again: bool) -> None:
        self._tick("cancel_backlog", self.model.cancel_backlog, again)

    @operation(3, again=AGAIN)
    def cancel_siblings(self, again: bool) -> None:
        self._tick("cancel_siblings", self.model.cancel_siblings, again)

    @operation(1, again=AGAIN)
    def reconcile_siblings(self, again: bool) -> None:
        self._tick("reconcile_siblings", self.model.reconcile_siblings, again)

    @operation(1, pick=PICK, who=WHO, again=AGAIN)
    def promote_blocked(self, pick: int, who: str | None, again: bool) -> None:
        id_ = self.choose(pick, lambda e: e.cause in ("satisfy_dependencies", "apply_dependency"))
        self.step(
            Call(
                "promote_blocked_to_eligible",
                {"partition_key": 0, "namespace": who, "execution_id": id_},
                lambda rows: Answer(rows[0]["outcome"]),
            ),
            lambda: Answer(self.model.promote_blocked(who, id_)),
            target=id_,
            again=again,
        )

    @operation(4, pick=between(0, 59), is_skipped=one_of([False, True]), actor=ACTOR)
    def replay_member(self, pick: int, is_skipped: bool, actor: str | None) -> None:
        """One that failed and made others impossible, or one that was skipped."""
        self.aim = self.choose(
            pick,
            lambda e: (
                e.flow_id is not None
                and e.phase == "terminal"
                and (e.outcome == "skipped" if is_skipped else e.outcome in ("failed", "cancelled"))
                and not self.model._is_dead(e)
            ),
        )
        self.replay_execution(1, None, actor, "any", "plain", False, False)
        self.aim = None

    @operation(
        6,
        pick=between(0, 59),
        how=one_of(["complete", "complete", "fail", "cancel"]),
        is_locked=one_of([False, False, True]),
        is_resolved=one_of([False, True]),
    )
    def end_member(self, pick: int, how: str, is_locked: bool, is_resolved: bool) -> None:
        """End an upstream of others."""
        upstreams = {
            edge.upstream_id
            for edge in self.model.edges.values()
            if edge.resolution == "unsatisfied"
            and self.model.executions[edge.upstream_id].phase != "terminal"
        }
        open_ = [
            id_
            for id_ in upstreams
            if self.model.executions[id_].is_claimable or self.model.executions[id_].is_leased
        ]
        some = sorted(open_) if open_ and pick % 7 else sorted(upstreams)
        if some:
            self.aim = some[pick % len(some)]
            self.end_awaited(pick, how, is_locked, False)
            if is_resolved:
                self.cancel_siblings(False)
