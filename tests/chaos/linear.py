"""The search for an order: one execution, its log, and everything that was asked about it.

The state machine is that of the engine as a caller sees it (phases, the lease, the epoch, attempts,
the answers that a lease is owed again). The log is the order of the effects. So what is searched
for is which call wrote which line, and a moment for every other call between its beginning and its
answer at which that answer is right.

A call that changes nothing can be placed as soon as its answer is right: that takes no choice from
anybody else. There is only a choice where two calls may have written one line, and there the search
goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from .history import FENCED, OPERATIONS, UNKNOWN, Call, Event, Row

ACTIVE = ("leased", "expired", "revoked")
WAITING = ("runnable", "blocked")
# Why an execution stands in a line.
LINES = ("waiting_for_quota", "waiting_for_budget")
# The words by which the engine remembers how a lease ended, by the event that ended it.
_LEASE_ENDS = {
    "completed": "complete",
    "failed": "fail",
    "retry_scheduled": "fail",
    "delayed": "delay",
    "released": "release",
    "held": "hold",
    "cancelled": "cancel_held",
    "lease_revoked": "revoke",
}
_REFUSALS = {
    "expired": "LeaseExpired",
    "revoked": "LeaseRevoked",
    "inactive": "ExecutionNotActive",
    "stale": "StaleLease",
}
# Of a resumed attempt only the last lease is remembered: one before it that repeats its call is
# told off, although it was heard. A plain cancel may meet another end when it is repeated.
_MAY_BE_TOLD_OFF = ("delay", "release", "hold", "cancel")


@dataclass(frozen=True, slots=True)
class State:
    phase: str = "none"
    version: int = 0
    epoch: int = 0
    lease: str | None = None
    attempts: int = 0
    is_interrupted: bool = False
    outcome: str | None = None
    # How the last lease ended, and those of the attempts before.
    last: tuple[str, str] | None = None
    ended: frozenset[tuple[str, str]] = frozenset()

    @property
    def public_states(self) -> tuple[str, ...]:
        """What a reader may be told; whether something is due is a matter of the clock."""
        if self.phase == "ended":
            return (self.outcome or "",)
        return ("active",) if self.phase in ACTIVE else ("waiting", "delayed", "rate_limited")


def linearise(log: Sequence[Event], calls: Sequence[Call], row: Row | None = None) -> str | None:
    """None if there is an order, else how far the best one comes and what does not fit."""
    if [event.version for event in log] != list(range(1, len(log) + 1)):
        return f"the log has the versions {[event.version for event in log]}"
    state = State()
    states = [state]
    for event in log:
        after = moved(state, event)
        if after is None:
            return f"{event} is impossible in {state}"
        state = after
        states.append(state)
    if row is not None and (
        row.version != state.version
        or row.epoch != state.epoch
        or row.public_state not in state.public_states
    ):
        return f"the log ends in {state}, the row is {row}"
    return _Search(log, states, calls).run()


class _Search:
    def __init__(self, log: Sequence[Event], states: list[State], calls: Sequence[Call]) -> None:
        self._log = log
        self._states = states
        self._calls = sorted(calls, key=lambda call: call.invoked)
        self._must = frozenset(n for n, call in enumerate(self._calls) if call.verdict != UNKNOWN)
        # For each line of the log, who may have written it.
        self._authors = [
            [n for n, call in enumerate(self._calls) if may_write(call, event)] for event in log
        ]
        self._best: tuple[int, frozenset[int]] = (-1, frozenset())
        self._seen: set[tuple[int, frozenset[int]]] = set()

    def run(self) -> str | None:
        stack = [(0, frozenset[int]())]
        while stack:
            position, done = stack.pop()
            done = self._place_readers(position, done)
            if (position, done) in self._seen:
                continue
            self._seen.add((position, done))
            if position > self._best[0]:
                self._best = (position, done)
            if position == len(self._log):
                if self._must <= done:
                    return None
                continue
            if self._log[position].is_engine:
                stack.append((position + 1, done))
                continue
            bound = self._bound(done)
            for n in reversed(self._authors[position]):
                if n not in done and self._calls[n].invoked <= bound:
                    stack.append((position + 1, done | {n}))
                elif n in done and self._calls[n].op == "cancel":
                    # Repeated after a replay, it cancels the new life: the rule of repeats tells.
                    stack.append((position + 1, done))
        return self._story()

    def _bound(self, done: frozenset[int]) -> float:
        """Whatever begins later than this has to wait for somebody's answer."""
        return min((self._calls[n].returned for n in self._must - done), default=inf)

    def _place_readers(self, position: int, done: frozenset[int]) -> frozenset[int]:
        """Add every call that may be answered as it was in this state, without an effect."""
        state = self._states[position]
        while True:
            bound = self._bound(done)
            more = {
                n
                for n in self._must - done
                if self._calls[n].invoked <= bound and is_right(state, self._calls[n])
            }
            if not more:
                return done
            done = done | more

    def _story(self) -> str:
        position, done = self._best
        bound = self._bound(done)
        left = [self._calls[n] for n in sorted(self._must - done)]
        stuck = [call for call in left if call.invoked <= bound] or left
        line = self._log[position] if position < len(self._log) else "the end of the log"
        return f"no order: stuck before {line} in {self._states[position]} with " + "; ".join(
            map(str, stuck[:3])
        )


def moved(state: State, event: Event) -> State | None:
    """The state behind an event; None if it cannot happen here."""
    kind, phase = event.kind, state.phase
    if kind == "submitted":
        return State(phase="runnable", version=1) if phase == "none" else None
    if phase == "none":
        return None
    after = replace(state, version=state.version + 1)
    match kind:
        case "claimed" | "resumed" | "reclaimed":
            return _leased(after, event)
        case "replayed":
            if phase == "ended":
                return replace(after, phase="runnable", outcome=None, is_interrupted=False)
        case "priority_changed":
            if phase in WAITING:
                return after
        case "promoted":
            if phase == "runnable":
                return after
        case "unblocked":
            if phase == "blocked":
                return replace(after, phase="runnable")
            # It stood in the line of a gate: the engine puts it there and takes it out quietly.
            if phase == "runnable" and event.detail.get("blocking_reason") in LINES:
                return after
        case "lease_expired":
            if phase == "leased" and event.lease == state.lease:
                return replace(after, phase="expired")
        case "lease_revoked":
            if phase == "leased" and event.lease == state.lease:
                return _ended(after, event, "revoked", takes=True)
        case "delayed" | "released":
            if _is_holders(state, event):
                return replace(_ended(after, event, "runnable"), is_interrupted=True)
        case "held":
            if _is_holders(state, event):
                return replace(_ended(after, event, "blocked"), is_interrupted=True)
        case "retry_scheduled":
            if event.is_engine and phase == "leased":
                after = _ended(after, event, "runnable", takes=True)
                return replace(after, is_interrupted=False)
            if _is_holders(state, event):
                return replace(_ended(after, event, "runnable"), is_interrupted=False)
        case "completed":
            if _is_holders(state, event):
                return replace(_ended(after, event, "ended"), outcome="completed")
        case "failed":
            if event.is_engine and phase in ("expired", "revoked"):
                return replace(_ended(after, event, "ended"), outcome="failed")
            if _is_holders(state, event):
                return replace(_ended(after, event, "ended"), outcome="failed")
        case "cancelled" | "expired":
            if phase != "ended":
                after = _ended(after, event, "ended", takes=phase == "leased")
                return replace(after, outcome=kind)
    return None


def _leased(after: State, event: Event) -> State | None:
    is_new = event.kind != "resumed"
    if event.kind == "reclaimed":
        fits = after.phase in ("expired", "revoked")
    else:
        fits = after.phase == "runnable" and after.is_interrupted != is_new
    if not fits or event.epoch != after.epoch + 1:
        return None
    attempts = after.attempts + is_new
    if event.attempt != attempts:
        return None
    last = after.last if after.lease is None else (after.lease, "engine")
    ended = after.ended | {last} if is_new and last else after.ended
    return replace(
        after,
        phase="leased",
        epoch=after.epoch + 1,
        lease=event.lease,
        attempts=attempts,
        is_interrupted=False,
        ended=ended,
        # a new attempt has had no lease before this one
        last=None if is_new else after.last,
    )


def _is_holders(state: State, event: Event) -> bool:
    """Whether the event is of the one who holds the lease."""
    return state.phase == "leased" and (event.lease, event.epoch) == (state.lease, state.epoch)


def _ended(after: State, event: Event, phase: str, *, takes: bool = False) -> State:
    """The lease is over, if there was one; taken away, its epoch does not come again."""
    last = after.last
    if after.lease is not None:
        how = "engine" if event.is_engine or after.phase == "expired" else _LEASE_ENDS[event.kind]
        last = (after.lease, how)
    return replace(after, phase=phase, epoch=after.epoch + takes, lease=None, last=last)


def judged(state: State, lease: str, op: str) -> str:
    """What a fence is worth: held, repeat, or the reason of the refusal."""
    if lease == state.lease:
        return "held" if state.phase == "leased" else "expired"
    if (lease, op) == state.last or (lease, op) in state.ended:
        return "repeat"
    if state.phase not in ACTIVE:
        return "inactive"
    if state.phase == "revoked" and state.last is not None and lease == state.last[0]:
        return "revoked"
    return "stale"


def may_write(call: Call, event: Event) -> bool:
    """Whether this call may be the one that wrote this line, and was then told what it was told."""
    if call.op == "submit":
        return (
            event.kind == "submitted"
            and call.answer.get("id", call.args["id"]) == (call.args["id"])
        )
    if call.error and call.op not in _MAY_BE_TOLD_OFF:
        return False
    answer = call.answer if call.is_ok else {}
    if call.op == "claim":
        if event.kind not in ("claimed", "resumed", "reclaimed"):
            return False
        told = {"lease": event.lease, "epoch": event.epoch, "attempt": event.attempt}
        return call.args["claim"] == event.lease and all(
            answer.get(name, value) == value for name, value in told.items()
        )
    if call.op in OPERATIONS or call.op == "cancel_held":
        kinds = OPERATIONS.get(call.op) or FENCED[call.op]
        if event.kind not in kinds or event.reason != call.args["reason"]:
            return False
        # One whose first answer was lost is told that the version has moved; one who cancelled,
        # that it is cancelled, perhaps by somebody after a replay.
        return (
            answer.get("outcome") in (None, "already_applied")
            or answer["version"] == event.version
            or (call.op.startswith("cancel") and answer["version"] > event.version)
        )
    if call.op not in FENCED or event.kind not in FENCED[call.op] or event.is_engine:
        return False
    retries = answer.get("retries", event.kind == "retry_scheduled")
    return event.lease == call.args["lease"] and retries == (event.kind == "retry_scheduled")


def is_right(state: State, call: Call) -> bool:
    """Whether the engine gives this answer in this state and changes nothing."""
    if call.op == "submit":
        # Its own id again, or another one's key.
        return call.is_ok and state.phase != "none"
    if call.op == "claim":
        # The same claim again: told what it still holds.
        return state.phase == "leased" and call.args["claim"] == state.lease
    if state.phase == "none":
        return call.error == "ExecutionNotFound" or call.answer.get("version", 0) is None
    if call.error == "ExecutionNotFound" or (call.op == "read" and call.answer["version"] is None):
        # Trimmed: the rule of confirmed work tells whether it may be.
        return state.phase == "ended"
    if call.op == "read":
        return (
            call.answer["version"] == state.version
            and call.answer["state"] in state.public_states
            and call.answer["epoch"] == state.epoch
        )
    if call.op in FENCED:
        return _is_right_fenced(state, call)
    return _is_right_operation(state, call)


def _is_right_fenced(state: State, call: Call) -> bool:
    if call.op == "cancel_held" and state.phase == "ended":
        if state.outcome != "cancelled":
            return call.error == "ExecutionTerminal"
        return call.is_ok and call.answer["version"] == state.version
    word = judged(state, call.args["lease"], call.op)
    if call.op in ("renew", "progress"):
        if call.is_ok:
            return word == "held"
        return word != "held" and call.error in (None, _REFUSALS.get(word))
    return word == "repeat" if call.is_ok else call.error == _REFUSALS.get(word)


def _is_right_operation(state: State, call: Call) -> bool:
    asked, answer = call.args["if_version"], call.answer
    if call.is_ok:
        if answer["version"] != state.version or answer["state"] not in state.public_states:
            return False
        match answer["outcome"]:
            case "already_applied":
                # Without a version of its own it would have been tried again.
                return asked is not None and asked != state.version
            case "already_satisfied":
                return call.op == "revoke" and (
                    answer["why"] == "no_active_lease" or state.phase == "leased"
                )
            case "cancelled":
                return call.op == "cancel" and state.outcome == "cancelled"
        return False
    is_meant = asked is None or asked == state.version
    match call.op, call.error:
        case "cancel", "ExecutionTerminal":
            return state.phase == "ended" and state.outcome != "cancelled"
        case "replay", "ExecutionNotTerminal":
            return is_meant and state.phase != "ended"
        case (("replay" | "retry"), "MaxReplaysExhausted"):
            return is_meant and state.phase == "ended"
        case "retry", "ExecutionNotEligible":
            return is_meant and state.phase not in ("ended", "blocked")
        case "priority", "ExecutionNotEligible":
            return is_meant and state.phase not in WAITING
    return False
