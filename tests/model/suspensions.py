"""Handlers that wait for signals, the senders, and the timeouts."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from support.model import Execution
from support.suspension_model import BEHAVIORS, Asking

from . import reading
from .bench import MINUTE, NOTHING, SECOND, Call
from .choices import ACTOR, AGAIN, FENCES, PICK, VERSION, WHO, between, one_of, operation
from .executions import Executions
from .grants import Grants
from .operators import Operators

SIGNALS = ("a", "b")
# Mostly the behaviours that do not end it, so that executions live to see more.
BEHAVIOR = one_of(["auto_resume"] * 6 + ["escalate"] * 3 + [*BEHAVIORS, *BEHAVIORS, "explode"])
TIMEOUT = one_of([None, 20 * SECOND, MINUTE, MINUTE, 5 * MINUTE])
DELAY = one_of([None] * 5 + [NOTHING, 20 * SECOND])


def _is_suspended(e: Execution) -> bool:
    return e.phase == "suspended"


def wait_name(signal: str) -> str:
    return f"wait {signal}"


class Suspensions(Executions, Operators, Grants):
    """Handlers that wait for signals, the senders, and the timeouts."""

    @operation(
        3,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        signal=one_of(SIGNALS),
        name=one_of([None] * 12 + ["load"]),
        occurrence=one_of([0, 0, 0, 1]),
        timeout=TIMEOUT,
        take=one_of([False, True]),
        again=AGAIN,
    )
    def ask_waits(
        self,
        pick: int,
        kind: str,
        who: str | None,
        signal: str,
        name: str | None,
        occurrence: int,
        timeout: timedelta | None,
        take: bool,
        again: bool,
    ) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        asked = Asking(
            name=name or wait_name(signal),
            occurrence=occurrence,
            signal=signal,
            timeout=timeout,
            take=take,
        )
        call = self._fenced_batch(
            "ask_waits",
            [fence],
            who,
            "",
            names=[asked.name],
            occurrences=[occurrence],
            positions=[asked.position],
            are_sequential=[False],
            conditions=[json.dumps({"signal": signal})],
            timeouts=[timeout],
            takes=[take],
        )
        call.read = reading.asked
        self.step(
            call,
            lambda: self.model.ask(who, fence, asked),
            target=fence.execution_id,
            again=again,
        )

    def _open_waits(self, e: Execution | None) -> list[tuple[str, int]]:
        return [
            key
            for key, step in (e.journal.items() if e is not None else ())
            if step.kind == "wait" and step.opened_at is not None and step.taken_as is None
        ]

    @operation(
        3,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        wait=one_of(["open"] * 12 + ["none", "none", "never"]),
        target=one_of([None] * 8 + [3, 9, 17, "self"]),
        k=one_of([None] * 8 + [1, 2]),
        span=one_of([None] * 6 + [20 * SECOND, MINUTE, NOTHING]),
        behavior=BEHAVIOR,
        delay=DELAY,
        again=AGAIN,
    )
    def suspend_execution(
        self,
        pick: int,
        kind: str,
        who: str | None,
        wait: str,
        target: Any,
        k: int | None,
        span: timedelta | None,
        behavior: str,
        delay: timedelta | None,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, lambda e: e.is_leased and bool(self._open_waits(e)))
        waits = {"none": [], "never": [("never", 0)]}.get(wait)
        targets = [] if target is None else [self._run_for(id_, target)]
        until = None if span is None else self.model.now + span
        self._suspend(id_, kind, waits, targets, k, until, behavior, delay, again, who)

    def _suspend(
        self,
        id_: UUID,
        kind: str,
        waits: list[tuple[str, int]] | None,
        targets: list[UUID],
        k: int | None,
        until: datetime | None,
        behavior: str,
        delay: timedelta | None,
        again: bool,
        who: str | None = None,
    ) -> None:
        if waits is None:
            waits = self._open_waits(self.model.executions.get(id_))
        fence = self.fence(id_, kind)
        suspension_id = self.mint()
        call = self._single(
            "suspend_execution",
            fence,
            who,
            suspension_id=suspension_id,
            wait_names=[name for name, _ in waits],
            wait_occurrences=[occurrence for _, occurrence in waits],
            targets=targets,
            k=k,
            until_at=until,
            on_timeout=behavior,
            resume_delay=delay,
        )
        call.read = reading.suspended
        self.step(
            call,
            lambda: self.model.suspend(
                who, fence, suspension_id, waits or [], targets, k, until, behavior, delay
            ),
            target=fence.execution_id,
            again=again,
        )

    def _run_for(self, id_: UUID, pick: int | str) -> UUID:
        if pick == "self":
            return id_
        assert isinstance(pick, int)
        return self.choose(pick, lambda e: e.phase != "terminal" and e.execution_id != id_)

    @operation(
        8,
        pick=between(0, 59),
        signal=one_of(SIGNALS),
        timeout=TIMEOUT,
        behavior=BEHAVIOR,
        target=one_of([None, None, None, 3, 9]),
        delay=DELAY,
        then=one_of([None] * 5 + ["before", "look", "late", "late", "signal", "resume"]),
    )
    def fall_asleep(
        self,
        pick: int,
        signal: str,
        timeout: timedelta | None,
        behavior: str,
        target: int | None,
        delay: timedelta | None,
        then: str | None,
    ) -> None:
        """A handler is claimed, opens a wait and suspends; now and then something wakes it.

        Or the signal is there before the wait, or the wait has timed out when it looks again.
        """
        id_ = self.choose(pick, lambda e: e.is_leased or e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        if e is None:
            return
        targets = [] if target is None else [self._run_for(id_, target)]
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        taken = sum(name == wait_name(signal) for name, _ in e.journal)
        if then == "before":
            self.deliver_signals(1, None, signal, False, False, False)
        self.ask_waits(1, "current", None, signal, None, taken, timeout, False, False)
        if then == "look" and timeout is not None:
            self._advance(timeout)
            self.ask_waits(1, "current", None, signal, None, taken, timeout, False, False)
        if then in ("before", "look"):
            self.ask_waits(1, "current", None, signal, None, taken, timeout, True, False)
        if e.is_leased and id_ not in targets:
            self._suspend(id_, "current", None, targets, None, None, behavior, delay, False)
        if then == "late":
            self.wait_too_long(1, NOTHING)
        elif then == "signal":
            self.deliver_signals(1, None, signal, False, False, False)
        elif then == "resume":
            self.resume_execution(1, None, "ann", "any", None, False)
        self.aim = None

    @operation(
        4,
        pick=PICK,
        who=WHO,
        signal=one_of(SIGNALS),
        join=one_of([False, False, True]),
        is_locked=one_of([False] * 6 + [True]),
        again=AGAIN,
    )
    def deliver_signals(
        self, pick: int, who: str | None, signal: str, join: bool, is_locked: bool, again: bool
    ) -> None:
        id_ = self.choose(pick, _is_suspended)
        signal_id, payload = self.mint(), b"%d" % pick
        call = Call(
            "deliver_signals",
            {
                "partition_key": 0,
                "namespace": who,
                "execution_ids": [id_],
                "signal_ids": [signal_id],
                "names": [signal],
                "payloads": [payload],
                "is_transactional": join,
            },
            reading.delivered,
        )

        def expect() -> Any:
            return self.model.deliver(who, id_, signal_id, signal, payload, join)

        transaction = self._lock(id_) if is_locked and id_ in self.model.executions else None
        self.step(call, expect, target=id_)
        self._unlock(transaction)
        if again:
            self.step(call, expect, target=id_)

    @operation(2, again=AGAIN)
    def notice_signals(self, again: bool) -> None:
        self._tick("notice_signals", self.model.notice_signals, again)

    @operation(2, again=AGAIN)
    def expire_suspensions(self, again: bool) -> None:
        self._tick("expire_suspensions", self.model.expire_suspensions, again)

    @operation(2, pick=between(0, 59), by=one_of([-SECOND, NOTHING, NOTHING, MINUTE]))
    def wait_too_long(self, pick: int, by: timedelta) -> None:
        """Time passes until a suspension is about to time out, or has."""
        id_ = self.choose(pick, _is_suspended)
        e = self.model.executions.get(id_)
        suspension = None if e is None else self.model.open_suspension(e)
        if suspension is None or suspension.timeout_at is None:
            return
        self._advance(max(suspension.timeout_at + by - self.model.now, NOTHING))
        self.expire_suspensions(False)

    @operation(2, pick=PICK, who=WHO, actor=ACTOR, version=VERSION, delay=DELAY, again=AGAIN)
    def resume_execution(
        self,
        pick: int,
        who: str | None,
        actor: str | None,
        version: str,
        delay: timedelta | None,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, _is_suspended)
        if_version = self.version(id_, version)
        self.step(
            self._operation(
                "resume_execution", id_, who, actor=actor, if_version=if_version, delay=delay
            ),
            lambda: self.model.resume(who, id_, actor, if_version, delay),
            target=id_,
            again=again,
            is_repeatable=False,
        )
