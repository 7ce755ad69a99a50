"""The model with quotas and budgets.

An execution holds a slot of each of its quotas exactly while it is leased. A claim goes through its
candidates in order, and admits every candidate that all its quotas and budgets have room for.

The engine puts a refused execution into a line at once, or in a later claim. So the model takes the
line of an execution over from the engine (`stand`), and checks that the gate of the line refuses
it. Everything else follows from the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.states import AttemptState, BlockingReason, Eligibility, EventKind, Phase

from .model import Answer, Execution, Fence, Item, Refusal, Route
from .suspension_model import SuspendingModel

# The ids of budgets begin here.
BUDGETS = 2**62
MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SLICES = 62


@dataclass(slots=True, kw_only=True)
class Gate:
    """The counters of one quota without keys."""

    quota: str
    concurrency: int | None = None
    rate: int | None = None
    window: timedelta | None = None
    is_refusing: bool = False
    # The concurrency that an operator set.
    changed: int | None = None
    # Slots outside executions: when they were taken, and when they run out.
    tickets: dict[UUID, tuple[datetime, datetime]] = field(default_factory=dict)
    # Starts by slice. A slice is a sixtieth of the window.
    starts: Counter[int] = field(default_factory=Counter)
    newest: int = 0
    reserved_for: UUID | None = None
    start_for: UUID | None = None
    # Known from the engine: when the rate opens, and whether a release is still to be counted.
    opens_at: datetime | None = None
    is_released: bool = False

    @property
    def most(self) -> int | None:
        return self.concurrency if self.changed is None else self.changed

    def slice(self, now: datetime) -> int:
        assert self.window is not None
        found = (now - _EPOCH) // (self.window / 60)
        return found if self.newest - found > _SLICES else max(found, self.newest)

    def started(self, now: datetime) -> int:
        """Return the number of starts that count now."""
        slice_ = self.slice(now)
        if self.newest > slice_:
            return self.starts.total()
        return sum(n for at, n in self.starts.items() if at > slice_ - _SLICES)

    def start(self, now: datetime) -> None:
        slice_ = self.slice(now)
        if self.newest > slice_:
            self.starts = Counter({slice_: self.starts.total()})
        self.starts = Counter({at: n for at, n in self.starts.items() if at > slice_ - _SLICES})
        self.starts[slice_] += 1
        self.newest = slice_


@dataclass(slots=True, kw_only=True)
class Budget:
    """A budget of one dimension, without a period."""

    budget: str
    hard: int
    on_exceed: str
    raised: int | None = None
    usage: int = 0
    refused: int = 0
    breach_count: int = 0
    soft_breach_count: int = 0
    # Applied reports by key, until when they are known.
    reports: dict[str, datetime] = field(default_factory=dict)
    # What was recorded for executions in this period, and in past ones.
    ledger: Counter[UUID] = field(default_factory=Counter)

    @property
    def limit(self) -> int:
        return self.hard if self.raised is None else self.raised

    @property
    def is_shut(self) -> bool:
        return self.on_exceed != "warn" and self.usage + self.refused >= self.limit


@dataclass(slots=True, kw_only=True)
class Line:
    is_open: bool
    served_at: datetime


class GatedModel(SuspendingModel):
    """The model, and what quotas and budgets add to it."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.gates: dict[int, Gate] = {}
        self.budgets: dict[int, Budget] = {}
        self.lines: dict[tuple[Route, int], Line] = {}
        # Of the claim that runs: the slots it takes, the gates that refused somebody, and what it
        # has reserved (whether a start, by gate).
        self._taking: Counter[int] = Counter()
        self._refusing: set[int] = set()
        self._reserving: set[tuple[int, bool]] = set()
        # Executions whose line this claim has closed. The engine may have read them before that. If
        # so, they may have made reservations, which the model does not know.
        self.unsure: set[UUID] = set()

    def begin(self) -> None:
        super().begin()
        self.forget_claim()

    def forget_claim(self) -> None:
        """Forget what the last claim did: it shows in the executions now."""
        self._taking.clear()
        self._refusing.clear()
        self._reserving.clear()
        self.unsure.clear()

    # Room

    def used(self, id_: int, but: Execution | None = None) -> int:
        """Return how many slots of a gate are taken."""
        leased = sum(
            e.is_leased and id_ in (e.quota_ids or ()) and e is not but
            for e in self.executions.values()
        )
        return leased + len(self.gates[id_].tickets) + self._taking[id_]

    def _room(self, id_: int, e: Execution, *, keeps: bool = True) -> tuple[int | None, int | None]:
        """Return how many slots and starts there are for an execution; None means any number."""
        gate = self.gates[id_]
        slots = starts = None
        if gate.most is not None:
            slots = gate.most - self.used(id_, e)
            slots -= keeps and self.kept(id_, of_starts=False) not in (None, e.execution_id)
        if gate.rate is not None:
            starts = gate.rate - gate.started(self.now)
            starts -= keeps and self.kept(id_, of_starts=True) not in (None, e.execution_id)
        return slots, starts

    def kept(self, id_: int, *, of_starts: bool) -> UUID | None:
        """Return the execution for which a gate keeps a slot or a start, unless that is void."""
        gate = self.gates[id_]
        kept = gate.start_for if of_starts else gate.reserved_for
        if (id_, of_starts) in self._reserving:
            return kept
        e = self.executions.get(kept) if kept is not None else None
        if e is None or e.line_id not in self.gates:
            return None
        line, awaited = self.lines[e.route, e.line_id], self.gates[e.line_id]
        opens_at = awaited.opens_at if awaited.opens_at and awaited.opens_at > self.now else None
        if of_starts:
            is_first = e.line_id > id_ or (
                e.line_id < id_ and opens_at is None and awaited.most is not None
            )
        else:
            is_quick = awaited.window is not None and awaited.window <= MINUTE
            is_first = e.line_id > id_ and (opens_at is None or is_quick)
        is_forgotten = line.is_open and line.served_at < self.now - timedelta(seconds=30)
        is_worked = self.lanes[e.route.place].is_worked(self.now)
        return kept if is_first and is_worked and not is_forgotten else None

    @staticmethod
    def _starts(e: Execution) -> bool:
        """Return whether the next lease of an execution counts as a start."""
        return e.phase == Phase.ACTIVE or e.attempt_state != AttemptState.ATTEMPT_INTERRUPTED

    def _refuser(self, e: Execution) -> tuple[int | None, bool]:
        """Return the first gate or budget that refuses an execution, and whether by its rate."""
        for id_ in e.quota_ids or ():
            slots, starts = self._room(id_, e)
            if slots is not None and slots <= 0:
                return id_, False
            if starts is not None and starts <= 0 and self._starts(e):
                return id_, True
        shut = (id_ for id_ in e.budget_ids or () if self.budgets[id_].is_shut)
        return next(shut, None), False

    def refuses(self, id_: int, e: Execution) -> bool:
        if id_ >= BUDGETS:
            return self.budgets[id_].is_shut
        slots, starts = self._room(id_, e)
        is_full = slots is not None and slots <= 0
        return is_full or (starts is not None and starts <= 0 and self._starts(e))

    # Claims

    def _is_within_reach(self, e: Execution) -> bool:
        """Return whether a claim reads an execution: it is in no line, or its line is open.

        While the rate of a gate has no room, its line is open only to what resumes.
        """
        if e.line_id is None:
            return True
        if e.line_id >= BUDGETS:
            return self.lines[e.route, e.line_id].is_open
        gate = self.gates[e.line_id]
        is_due = gate.opens_at is not None and gate.opens_at <= self.now
        has_start = gate.opens_at is None or is_due or not self._starts(e)
        if self.lines[e.route, e.line_id].is_open:
            return has_start
        if not gate.is_released and not is_due:
            return False
        reserved = gate.reserved_for is not None
        has_slot = gate.most is None or self.used(e.line_id) + reserved < gate.most
        return has_slot and has_start

    def _admit(self, e: Execution) -> bool:
        refuser, is_by_rate = self._refuser(e)
        if refuser is not None:
            self._refusing.add(refuser)
            if e.line_id is not None and self.refuses(e.line_id, e):
                self.unsure.add(e.execution_id)
            elif refuser < BUDGETS:
                self._reserve(e, refuser, is_by_rate)
            return False
        for id_ in e.quota_ids or ():
            gate = self.gates[id_]
            self._taking[id_] += 1
            if gate.rate is not None and self._starts(e):
                gate.start(self.now)
            if gate.reserved_for == e.execution_id:
                gate.reserved_for = None
            if gate.start_for == e.execution_id:
                gate.start_for = None
        return True

    def _reserve(self, e: Execution, refuser: int, is_by_rate: bool) -> None:
        """Keep what an execution can get, if it was refused five times."""
        if (e.refusal_count or 0) + (e.line_id != refuser) < 5:
            return
        window = self.gates[refuser].window
        is_slow = is_by_rate and window is not None and window > MINUTE
        for id_ in e.quota_ids or ():
            gate = self.gates[id_]
            slots, starts = self._room(id_, e, keeps=False)
            has_slot = slots is not None and slots > 0 and not self.kept(id_, of_starts=False)
            if id_ < refuser and not is_slow and has_slot:
                gate.reserved_for = e.execution_id
                self._reserving.add((id_, False))
            has_start = starts is not None and starts > 0 and not self.kept(id_, of_starts=True)
            is_next = id_ < refuser or (id_ > refuser and not is_by_rate)
            if is_next and has_start and self._starts(e):
                gate.start_for = e.execution_id
                self._reserving.add((id_, True))

    def _admit_alone(self, e: Execution) -> None:
        self._taking.clear()
        if self._refuser(e)[0] is not None:
            raise Refusal("not_eligible")
        self._admit(e)
        self._taking.clear()

    def _lease(self, e: Execution, *given: Any, **named: Any) -> None:
        super()._lease(e, *given, **named)
        # It counts as leased from now on.
        for id_ in e.quota_ids or ():
            self._taking[id_] = max(self._taking[id_] - 1, 0)

    def stand(self, e: Execution, line_id: int, function: str) -> str | None:
        """Put an execution into the line that the engine chose. Return what is wrong with it."""
        if line_id not in (*(e.quota_ids or ()), *(e.budget_ids or ())):
            return "not one of its gates"
        is_quota = line_id < BUDGETS
        eligibility = Eligibility.BLOCKED_BY_QUOTA if is_quota else Eligibility.BLOCKED_BY_BUDGET
        if function == "submit_executions":
            line = self.lines.get((e.route, line_id))
            if line is None or line.is_open:
                return "its line was not closed"
            e.eligibility = eligibility
        elif function == "claim_executions" and e.is_claimable:
            if line_id not in self._refusing and not self.refuses(line_id, e):
                return "the gate has room for it"
            at = self._at(e)
            e.mutated_at = max(self.now, e.mutated_at)
            if e.phase == Phase.RUNNABLE and e.eligibility != eligibility:
                e.eligibility, e.cause, e.transitioned_at = eligibility, "block", at
                self.taken["T6"] += 1
            is_counted = len(e.quota_ids or ()) > 1
            e.refusal_count = min((e.refusal_count or 0) + 1, 100) if is_counted else None
        else:
            return f"{function} puts nothing into line"
        e.blocking_reason = (
            BlockingReason.WAITING_FOR_QUOTA if is_quota else BlockingReason.WAITING_FOR_BUDGET
        )
        e.blocked_at = self._at(e)
        e.line_id = line_id
        self.touched.add(e.execution_id)
        return None

    # Submits

    def _is_refused(self, item: Item) -> bool:
        """Return whether a quota that refuses has no room for a new execution."""
        return any(self.gates[id_].is_refusing and self._is_full(id_) for id_ in item.quotas)

    def _is_full(self, id_: int) -> bool:
        gate = self.gates[id_]
        is_waited_for = any(e.line_id == id_ for e in self.executions.values())
        reserved = gate.reserved_for is not None
        return is_waited_for or (gate.most is not None and gate.most <= self.used(id_) + reserved)

    # Quotas

    def set_quota(self, id_: int, concurrency: int) -> str:
        gate = self.gates[id_]
        is_changed = gate.changed != concurrency
        gate.changed = concurrency
        return "changed" if is_changed else "unchanged"

    def lift_quota(self, id_: int) -> str:
        gate = self.gates[id_]
        is_changed, gate.changed = gate.changed is not None, None
        return "lifted" if is_changed else "unchanged"

    def check_admission(self, id_: int, ticket_id: UUID, ttl: timedelta) -> str:
        gate = self.gates[id_]
        if ticket_id in gate.tickets and gate.tickets[ticket_id][1] > self.now:
            return "already_admitted"
        self._end_holds(gate)
        if gate.rate is not None:
            kept = gate.start_for is not None
            if gate.started(self.now) >= gate.rate - kept:
                return "rate_exceeded"
        taken = self.used(id_) + (gate.reserved_for is not None)
        if gate.most is not None and gate.most <= taken:
            return "concurrency_exceeded"
        gate.tickets[ticket_id] = self.now, self.now + ttl
        if gate.rate is not None:
            gate.start(self.now)
        return "admitted"

    def _end_holds(self, gate: Gate) -> None:
        gate.tickets = {id_: span for id_, span in gate.tickets.items() if span[1] > self.now}

    def release_admission(self, id_: int, ticket_id: UUID) -> str:
        self.gates[id_].tickets.pop(ticket_id, None)
        return "released"

    def sweep_gates(self) -> None:
        for gate in self.gates.values():
            self._end_holds(gate)

    # Budgets

    def _charge(
        self, ids: Sequence[int], amount: int, key: str | None, spender: UUID | None = None
    ) -> tuple[str, Budget | None]:
        """Add usage to all budgets or to none. Return the outcome and the budget that decided."""
        all_ = [self.budgets[id_] for id_ in sorted(ids)]
        if key is not None and any(b.reports.get(key, self.now) > self.now for b in all_):
            return "already_applied", None
        for b in all_:
            if b.on_exceed != "warn" and amount > 0 and b.usage + amount > b.limit:
                b.refused += amount
                b.breach_count += 1
                return "hard_breach", b
        for b in all_:
            b.usage += amount
            if key is not None:
                b.reports[key] = self.now + timedelta(hours=24)
            if spender is not None:
                b.ledger[spender] += amount
        loud = (b for b in all_ if b.on_exceed == "warn" and b.usage > b.limit and amount > 0)
        if (first := next(loud, None)) is not None:
            first.soft_breach_count += 1
            return "soft_breach", first
        return "ok", None

    def report_usage(
        self, namespace: str | None, fences: Sequence[Fence], amount: int, key: str | None
    ) -> list[Answer]:
        self._settle_overdue(namespace, fences)
        judged = [
            self._judge_item(namespace, fence, "release", is_second)
            for fence, is_second in self._each(fences)
        ]
        answers = [
            Answer("suspended") if answer is not None and answer.word == "repeat" else answer
            for _, answer in judged
        ]
        # The engine applies reports in the order of the ids.
        held = [(e, n) for n, (e, _) in enumerate(judged) if e is not None]
        for e, n in sorted(held, key=lambda pair: pair[0].execution_id):
            answers[n] = self._report(e, amount, key)
        return [answer for answer in answers if answer is not None]

    def _report(self, e: Execution, amount: int, key: str | None) -> Answer:
        if amount < 0:
            return Answer("invalid", {"field": "usage"})
        word, budget = self._charge(e.budget_ids or (), amount, key)
        if word == "soft_breach":
            self._move("T32", e, "report_usage", EventKind.BUDGET_EXCEEDED)
        if word != "hard_breach" or budget is None or budget.on_exceed != "suspend":
            return Answer(word)
        if amount > budget.limit:
            return Answer(word)
        self._interrupt("T15", e, "release", EventKind.RELEASED, "budget")
        e.eligibility = Eligibility.BLOCKED_BY_BUDGET
        e.blocking_reason = BlockingReason.WAITING_FOR_BUDGET
        e.blocked_at = self._at(e)
        e.line_id = next(id_ for id_, b in self.budgets.items() if b is budget)
        return Answer("suspended")

    def record_spend(self, id_: int, spender: UUID, amount: int, key: str | None) -> str:
        return self._charge([id_], amount, key, spender)[0]

    def release_budget(self, id_: int, spender: UUID) -> int | None:
        """Take back what was spent for an execution. Return the amount, or None for nothing."""
        budget = self.budgets[id_]
        if spender not in budget.ledger:
            return None
        amount = budget.ledger.pop(spender)
        budget.usage = max(budget.usage - amount, 0)
        if amount > 0:
            budget.refused = 0
        return amount

    def raise_budget(self, id_: int, hard: int) -> str:
        budget = self.budgets[id_]
        budget.raised, budget.refused = hard, 0
        return "raised"

    def reset_budget(self, id_: int) -> str:
        budget = self.budgets[id_]
        budget.usage = budget.refused = 0
        # What was spent in a past period is not taken back.
        budget.ledger.clear()
        return "reset"
