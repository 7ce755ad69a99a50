"""The model with signals and suspensions: T17, T18 and T25 to T27.

A wait is a step of the journal. It takes the first signal with its name, once. Waits here are for
one signal by name; conditions and waitpoints have tests of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.states import (
    AttemptLifecycle,
    BlockingReason,
    Eligibility,
    EventKind,
    Outcome,
    Phase,
    StepKind,
)

from .model import NOTHING, Answer, Execution, Fence, Model, Recorded, Refusal, Wait, invalid

# What a timeout does to an execution: the event and outcome, and how its attempt ends.
_ENDS = {
    "fail": (Outcome.FAILED, EventKind.FAILED, "timeout", AttemptLifecycle.ENDED_FAILURE),
    "cancel": (
        Outcome.CANCELLED,
        EventKind.CANCELLED,
        "cancelled",
        AttemptLifecycle.ENDED_CANCELLED,
    ),
    "expire": (Outcome.EXPIRED, EventKind.EXPIRED, "timeout", AttemptLifecycle.ENDED_FAILURE),
}
BEHAVIORS = ("auto_resume", "escalate", *_ENDS)


@dataclass(slots=True, kw_only=True)
class Sent:
    """A signal. It is in the inbox until it is noticed."""

    signal_id: UUID
    name: str
    payload: bytes | None
    accepted_at: datetime
    noticed_at: datetime | None = None
    taken_at: datetime | None = None
    # The wait that took it. A taken signal without a wait is spent.
    wait: tuple[str, int] | None = None


@dataclass(slots=True, kw_only=True)
class Suspension:
    suspension_id: UUID
    lease_id: UUID
    waits: list[tuple[str, int]]
    timeout_at: datetime | None
    behavior: str
    resume_delay: timedelta | None
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One question for the answer of a wait."""

    name: str
    occurrence: int
    signal: str
    timeout: timedelta | None
    take: bool
    position: int = 6


class SuspendingModel(Model):
    """The model, and what signals and suspensions add to it."""

    @staticmethod
    def open_suspension(e: Execution) -> Suspension | None:
        last: Suspension | None = e.suspensions[-1] if e.suspensions else None
        return last if last is not None and last.is_open else None

    # What other operations do to waits and signals

    def _end(self, number: str, e: Execution, *given: Any, **named: Any) -> None:
        super()._end(number, e, *given, **named)
        if (suspension := self.open_suspension(e)) is not None:
            suspension.is_open = False

    def _runs_have_ended(self, e: Execution) -> None:
        if e.phase == Phase.SUSPENDED:
            self._resume("T18", e, "wake")
        else:
            super()._runs_have_ended(e)

    def _schedule_retry(self, number: str, e: Execution, *given: Any, **named: Any) -> None:
        super()._schedule_retry(number, e, *given, **named)
        self._drop_unanswered(e)

    def _run_again(self, e: Execution, actor: str | None, *, is_counted: bool) -> None:
        super()._run_again(e, actor, is_counted=is_counted)
        self._drop_unanswered(e)

    @staticmethod
    def _drop_unanswered(e: Execution) -> None:
        """Forget the waits that no signal has answered: the next attempt asks again."""
        for step in e.journal.values():
            if step.kind == StepKind.WAIT and step.taken_as != "signals":
                step.opened_at = step.until_at = step.ready_at = None
                step.taken_at = step.taken_as = step.value = step.encoding = None

    def _forget_steps(self, e: Execution, names: Sequence[tuple[str, int]], fresh: bool) -> None:
        super()._forget_steps(e, names, fresh)
        for sent in e.mailbox:
            if sent.wait is not None and sent.wait not in e.journal:
                sent.wait = None
            if fresh and sent.taken_at is None:
                sent.taken_at = self.now

    # Signals

    @staticmethod
    def _first(e: Execution, name: str) -> Sent | None:
        """Return the signal that a wait for this name takes."""
        kept = [s for s in e.mailbox if s.name == name and s.noticed_at and not s.taken_at]
        return min(kept, key=lambda s: (s.noticed_at, s.signal_id), default=None)

    def _notice(self, e: Execution) -> None:
        for sent in e.mailbox:
            if sent.noticed_at is None:
                sent.noticed_at = max(self.now, sent.accepted_at)

    def _wake_ready(self, e: Execution) -> UUID | None:
        """Wake a suspended execution if a wait is ready. Return the signal that woke it."""
        suspension = self.open_suspension(e)
        if suspension is None:
            return None
        for key in suspension.waits:
            sent = self._first(e, e.journal[key].signal or "")
            if sent is not None:
                self._resume("T18", e, "wake", delay=suspension.resume_delay)
                return sent.signal_id
        return None

    def _resume(
        self,
        number: str,
        e: Execution,
        cause: str,
        *,
        delay: timedelta | None = None,
        actor: str | None = None,
    ) -> None:
        suspension = self.open_suspension(e)
        assert suspension is not None
        suspension.is_open = False
        self._forget_waits(e)
        e.wait_left = e.blocking_detail = None
        until = self.now + delay if delay is not None and delay > NOTHING else None
        self._wait(e, until, BlockingReason.WAITING_FOR_RESUME_DELAY)
        self._move(number, e, cause, EventKind.WOKEN, actor=actor)

    def deliver(
        self,
        namespace: str | None,
        id_: UUID,
        signal_id: UUID,
        name: str,
        payload: bytes | None,
        join: bool,
    ) -> list[Answer]:
        """Store a signal, and wake the execution if its row is free."""
        e = self._find(namespace, id_)
        if e is None:
            return [Answer("not_found", {"effect": None})]
        if e.phase == Phase.TERMINAL:
            return [Answer("not_signalable", {"effect": None})]
        is_locked = not join and id_ not in self.locked
        is_new = all(one.signal_id != signal_id for one in e.mailbox)
        if is_new:
            e.mailbox.append(
                Sent(signal_id=signal_id, name=name, payload=payload, accepted_at=self.now)
            )
        woken_by = None
        if is_locked:
            self._notice(e)
            woken_by = self._wake_ready(e)
        if not is_new:
            return [Answer("duplicate", {"effect": None})]
        effect = "woken" if woken_by == signal_id else "buffered" if is_locked else "stored"
        return [Answer("accepted", {"effect": effect})]

    def notice_signals(self) -> int:
        """Notice the signals in the inbox, and wake the executions that waited for them."""
        stored = [
            e
            for id_, e in self.executions.items()
            if id_ not in self.locked and any(one.noticed_at is None for one in e.mailbox)
        ]
        for e in stored:
            self._notice(e)
            self._wake_ready(e)
        return len(stored)

    # Waits

    def ask(self, namespace: str | None, fence: Fence, asked: Asking) -> list[Answer]:
        """Open a wait if it is new, and take its answer if it is asked to."""
        e, answer = self._judge(namespace, fence, None)
        if e is None:
            assert answer is not None
            return [answer]
        self._notice(e)
        at = self._at(e)
        until = None if asked.timeout is None else at + asked.timeout
        key = asked.name, asked.occurrence
        step = e.journal.get(key)
        if step is None:
            step = e.journal[key] = Recorded(
                name=asked.name,
                occurrence=asked.occurrence,
                position=asked.position,
                is_sequential=False,
                kind=StepKind.WAIT,
                attempt_index=e.attempt_index,
                epoch=e.epoch,
                recorded_at=at,
                until_at=until,
                encoding=None,
                value=None,
                opened_at=at,
                signal=asked.signal,
            )
        elif step.kind != StepKind.WAIT:
            return [Answer("invalid", {"field": "name"})]
        elif step.opened_at is None:
            step.opened_at, step.until_at = at, until
        word, ready_at = "taken", step.ready_at
        if step.taken_as is None:
            sent = self._first(e, asked.signal)
            if sent is not None:
                word, ready_at = "ready", sent.noticed_at
            elif step.until_at is not None and step.until_at <= at:
                word, ready_at = "timed_out", step.until_at
            else:
                word = "open"
            if asked.take and word != "open":
                step.taken_as = "timeout" if sent is None else "signals"
                step.taken_at, step.ready_at = at, ready_at
                word = "taken"
                if sent is not None:
                    step.signal_ids, step.value = [sent.signal_id], sent.payload
                    sent.taken_at, sent.wait = at, key
        facts = {
            name: getattr(step, name)
            for name in (
                "recorded_at", "until_at", "taken_as", "signal_ids", "value", "attempt_index",
            )
        }  # fmt: skip
        return [Answer(word, {**facts, "ready_at": ready_at})]

    def suspend(
        self,
        namespace: str | None,
        fence: Fence,
        suspension_id: UUID,
        waits: Sequence[tuple[str, int]],
        targets: Sequence[UUID],
        k: int | None,
        until: datetime | None,
        behavior: str,
        delay: timedelta | None,
    ) -> Answer:  # T17
        """Suspend an execution until one of its waits is ready, k runs have ended, or a time."""
        wanted = set(targets)
        if fence.execution_id in wanted:
            raise invalid("targets")
        if k is not None and not 1 <= k <= len(wanted):
            raise invalid("k")
        if not waits and not wanted and until is None:
            raise invalid("wait_names")
        if behavior not in BEHAVIORS:
            raise invalid("on_timeout")
        e, answer = self._judge(namespace, fence, "suspend")
        if e is None:
            assert answer is not None
            one = self._find(namespace, fence.execution_id)
            for past in reversed(one.suspensions if one is not None else []):
                if past.lease_id == fence.lease_id:
                    return Answer("suspended", {"timeout_at": past.timeout_at})
            return answer
        found = [self._find(namespace, id_) for id_ in wanted]
        if None in found:
            return Answer("not_found", {"field": "targets"})
        open_ = [t for t in found if t is not None and t.phase != Phase.TERMINAL]
        left = (len(wanted) if k is None else k) - (len(found) - len(open_)) if wanted else None
        self._notice(e)
        steps = [e.journal.get(key) for key in waits]
        if any(s is None or s.kind != StepKind.WAIT or s.opened_at is None for s in steps):
            return Answer("invalid", {"field": "wait_names"})
        because = self._is_satisfied(e, [s for s in steps if s is not None], left, until)
        if because is not None:
            return Answer("already_satisfied", {"by": because})
        times = [s.until_at for s in steps if s is not None and s.until_at is not None]
        timeout_at = min([*times, *([] if until is None else [until])], default=None)
        assert fence.lease_id is not None
        e.suspensions.append(
            Suspension(
                suspension_id=suspension_id,
                lease_id=fence.lease_id,
                waits=list(waits),
                timeout_at=timeout_at,
                behavior=behavior,
                resume_delay=delay,
            )
        )
        if left is not None:
            e.wait_no += 1
            for target in found:
                assert target is not None
                is_open = target.phase != Phase.TERMINAL
                target.is_awaited |= is_open
                self.touched.add(target.execution_id)
                self.waits[e.execution_id, target.execution_id] = Wait(
                    wait_no=e.wait_no, ended_at=None if is_open else self.now
                )
        self._interrupt("T17", e, "suspend", EventKind.SUSPENDED, "suspended")
        e.phase, e.eligibility = Phase.SUSPENDED, Eligibility.NOT_APPLICABLE
        e.blocking_reason = BlockingReason.WAITING_FOR_SIGNAL
        e.wait_left = left
        return Answer("suspended", {"timeout_at": timeout_at})

    def _is_satisfied(
        self, e: Execution, steps: Sequence[Recorded], left: int | None, until: datetime | None
    ) -> str | None:
        """Return why the holder need not wait, or None."""
        if left is not None and left <= 0:
            return "runs"
        if until is not None and until <= self.now:
            return "timeout"
        for step in steps:
            if step.taken_as is not None:
                return step.taken_as
            if self._first(e, step.signal or "") is not None:
                return "signals"
            if step.until_at is not None and step.until_at <= self.now:
                return "timeout"
        return None

    def resume(
        self,
        namespace: str | None,
        id_: UUID,
        actor: str | None,
        if_version: int | None,
        delay: timedelta | None,
    ) -> Answer:  # T18
        """End the waits of a suspended execution for an operator."""
        e = self._get(namespace, id_)
        if if_version not in (None, e.version):
            return self._shown("already_applied", e)
        suspension = self.open_suspension(e)
        if suspension is None:
            raise Refusal("not_suspended")
        at = self._at(e)
        for key in suspension.waits:
            step = e.journal[key]
            step.ready_at = step.taken_at = at
            step.taken_as = "operator"
        self._resume("T18", e, "wake", delay=delay, actor=actor)
        return self._shown("resumed", e)

    # Timeouts

    def expire_suspensions(self) -> int:  # T25, T26, T27
        """Apply the timeouts that are due. A signal that came before counts instead."""
        due = self._due(self.executions.values())
        for e in due:
            self._notice(e)
            self._wake_ready(e)
        for behavior in BEHAVIORS:
            # The end of one may have woken or ended another.
            some = [e for e in self._due(due) if e.suspensions[-1].behavior == behavior]
            for e in some:
                if behavior == "auto_resume":
                    self._resume("T26", e, "time_out_suspension")
                elif behavior == "escalate":
                    self._escalate(e)
                else:
                    self._end_late(e, behavior)
            self._tell()
        return len(due)

    def _due(self, several: Any) -> list[Execution]:
        found = []
        for e in several:
            suspension = self.open_suspension(e)
            if suspension is None or e.execution_id in self.locked:
                continue
            if suspension.timeout_at is not None and suspension.timeout_at <= self.now:
                found.append(e)
        return found

    def _escalate(self, e: Execution) -> None:
        suspension = e.suspensions[-1]
        for key in suspension.waits:
            e.journal[key].until_at = None
        suspension.timeout_at = None
        e.blocking_reason = BlockingReason.PAUSED_BY_OPERATOR
        self._move("T27", e, "escalate", EventKind.ESCALATED)

    def _end_late(self, e: Execution, behavior: str) -> None:
        outcome, kind, class_, attempt_as = _ENDS[behavior]
        reason = f"suspension_timeout:{behavior}"
        self._end(
            "T25",
            e,
            outcome,
            "time_out_suspension",
            kind,
            lease_end="expire",
            attempt_as=attempt_as,
            takes_lease=True,
            failure=(class_, "suspension_timeout", reason, None),
        )
        if behavior == "cancel":
            e.cancellation_reason, e.cancelled_by = reason, "suspension_timeout"
