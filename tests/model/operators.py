"""What an operator does with an execution or a lane."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

from . import reading
from .bench import MINUTE, NAMESPACE, NOTHING, Call, Disagreement
from .choices import ACTOR, AGAIN, FENCES, PICK, VERSION, WHO, one_of, operation, several
from .walker import Walker


class Operators(Walker):
    """What an operator does with an execution or a lane."""

    @operation(
        4,
        pick=PICK,
        who=WHO,
        source=one_of(
            [
                "operator_override",
                "operator_override",
                "lease_holder",
                "lease_holder",
                "flow_cascade",
                "",
            ]
        ),
        kind=FENCES,
        reason=one_of([None, "enough"]),
        actor=ACTOR,
        again=AGAIN,
    )
    def cancel_execution(
        self,
        pick: int,
        who: str | None,
        source: str,
        kind: str,
        reason: str | None,
        actor: str | None,
        again: bool,
    ) -> None:
        id_ = self.choose_held(pick) if source == "lease_holder" else self.choose(pick)
        fence = self.fence(id_, kind)
        self.step(
            self._operation(
                "cancel_execution",
                id_,
                who,
                reason=reason,
                source=source,
                actor=actor,
                lease_id=fence.lease_id,
                epoch=fence.epoch,
                attempt_id=fence.attempt_id,
            ),
            lambda: self.model.cancel(who, id_, source, reason, actor, fence),
            target=id_,
            again=again,
            # a holder that is late ends it first, and is then told that it has ended
            is_repeatable=not self._is_late(id_),
        )

    def _is_late(self, id_: UUID) -> bool:
        e = self.model.executions.get(id_)
        return e is not None and (self.model.is_over(e) or self.model.is_late(e))

    @operation(
        4,
        pick=PICK,
        who=WHO,
        aim=one_of(["any", "any", "lease", "other_lease", "instance", "no_instance"]),
        actor=ACTOR,
        version=VERSION,
        again=AGAIN,
    )
    def revoke_lease(
        self, pick: int, who: str | None, aim: str, actor: str | None, version: str, again: bool
    ) -> None:
        id_ = self.choose_held(pick)
        e = self.model.executions.get(id_)
        expected = {"lease": e.lease_id if e else None, "other_lease": UUID(int=7)}.get(aim)
        instance = {"instance": "pool-1", "no_instance": ""}.get(aim)
        if_version = self.version(id_, version)
        self.step(
            self._operation(
                "revoke_lease",
                id_,
                who,
                expected_lease_id=expected,
                worker_instance_id=instance,
                actor=actor,
                if_version=if_version,
            ),
            lambda: self.model.revoke(who, id_, expected, instance, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        4,
        pick=PICK,
        who=WHO,
        priority=one_of([0, 5, 9000, 9001, -1, None]),
        actor=ACTOR,
        version=VERSION,
        again=AGAIN,
    )
    def change_priority(
        self,
        pick: int,
        who: str | None,
        priority: int | None,
        actor: str | None,
        version: str,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, lambda e: e.phase == "runnable")
        if_version = self.version(id_, version)
        self.step(
            self._operation(
                "change_priority", id_, who, priority=priority, actor=actor, if_version=if_version
            ),
            lambda: self.model.change_priority(who, id_, priority, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        8,
        pick=PICK,
        who=WHO,
        actor=ACTOR,
        version=VERSION,
        how=one_of(["plain"] * 6 + ["step"] * 4 + ["fresh"] * 3 + ["unknown", "both", "neither"]),
        is_held=one_of([False, False, True]),
        again=AGAIN,
    )
    def replay_execution(
        self,
        pick: int,
        who: str | None,
        actor: str | None,
        version: str,
        how: str,
        is_held: bool,
        again: bool,
    ) -> None:
        id_ = self.choose(
            pick,
            lambda e: e.blocking_reason == "paused_by_policy" if is_held else e.phase == "terminal",
        )
        e = self.model.executions.get(id_)
        steps = list(e.journal) if e is not None else []
        from_step = {
            "step": steps[pick % len(steps)] if steps else None,
            "unknown": ("elsewhere", 1),
            "both": ("load", 0),
        }.get(how)
        fresh = {"fresh": True, "both": True, "neither": None}.get(how, False)
        if_version = self.version(id_, version)
        more = {"from_step": from_step[0], "from_occurrence": from_step[1]} if from_step else {}
        self.step(
            self._operation(
                "replay_execution",
                id_,
                who,
                actor=actor,
                if_version=if_version,
                fresh=fresh,
                **more,
            ),
            lambda: self.model.replay(who, id_, actor, if_version, from_step, fresh),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(3, pick=PICK, who=WHO, actor=ACTOR, version=VERSION, again=AGAIN)
    def retry_execution(
        self, pick: int, who: str | None, actor: str | None, version: str, again: bool
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility not in ("eligible_now", "not_applicable"))
        if_version = self.version(id_, version)
        self.step(
            self._operation("retry_execution", id_, who, actor=actor, if_version=if_version),
            lambda: self.model.retry(who, id_, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        3,
        pick=PICK,
        who=WHO,
        reason=one_of(
            [
                "waiting_for_budget",
                "waiting_for_quota",
                "waiting_for_capable_worker",
                "paused_by_operator",
                "paused_by_policy",
                "waiting_for_worker",
                None,
            ]
        ),
        detail=one_of([None, "tokens"]),
        actor=ACTOR,
        again=AGAIN,
    )
    def block_execution(
        self,
        pick: int,
        who: str | None,
        reason: str | None,
        detail: str | None,
        actor: str | None,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        self.step(
            self._operation(
                "block_execution_for_admission",
                id_,
                who,
                blocking_reason=reason,
                detail=detail,
                actor=actor,
            ),
            lambda: self.model.block(who, id_, reason, detail, actor),
            target=id_,
            again=again,
        )

    @operation(
        3,
        pick=PICK,
        who=WHO,
        expected=one_of([None, None, "", "waiting_for_budget", "paused_by_operator"]),
        actor=ACTOR,
        version=VERSION,
        again=AGAIN,
    )
    def unblock_execution(
        self,
        pick: int,
        who: str | None,
        expected: str | None,
        actor: str | None,
        version: str,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility.startswith("blocked"))
        if_version = self.version(id_, version)
        self.step(
            self._operation(
                "unblock_execution",
                id_,
                who,
                expected_reason=expected,
                actor=actor,
                if_version=if_version,
            ),
            lambda: self.model.unblock(who, id_, expected, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        4,
        picks=several(PICK, 2),
        who=WHO,
        tags=one_of([{"app.a": "1"}, {"app.a": "2", "app.b": "x"}, {}, {"Bad": "1"}, None]),
        again=AGAIN,
    )
    def set_tags(
        self, picks: list[int], who: str | None, tags: dict[str, str] | None, again: bool
    ) -> None:
        ids = list(dict.fromkeys(self.choose(pick) for pick in picks))
        self.step(
            Call(
                "set_tags",
                {
                    "partition_key": 0,
                    "namespace": who,
                    "execution_ids": ids,
                    "tags": None if tags is None else json.dumps(tags),
                },
                lambda rows: reading.outcomes(rows, len(ids), "tagged"),
            ),
            lambda: self.model.set_tags(who, ids, tags),
            target=ids[0],
            again=again,
        )

    @operation(
        2,
        lane=one_of(["a", "b", "b", "c"]),
        state=one_of(["active"] * 6 + ["paused", "paused", "draining", "disabled", "odd", None]),
        resumes_in=one_of([None, None, MINUTE, NOTHING]),
        actor=ACTOR,
        again=AGAIN,
    )
    def set_lane(
        self,
        lane: str,
        state: str | None,
        resumes_in: timedelta | None,
        actor: str | None,
        again: bool,
    ) -> None:
        resumes_at = None if resumes_in is None else self.model.now + resumes_in
        call = Call(
            "set_lane",
            {
                "namespace": NAMESPACE,
                "lane": lane,
                "state": state,
                "resumes_at": resumes_at,
                "actor": actor,
            },
            reading.lane,
        )
        answer = self.step(
            call, lambda: self.model.set_lane(NAMESPACE, lane, state, resumes_in, actor)
        )
        if again and not answer.is_raised:
            second = self.step(
                call, lambda: self.model.set_lane(NAMESPACE, lane, state, resumes_in, actor)
            )
            if second.word != "unchanged":
                raise Disagreement(f"a repeated set_lane answered {second}")
