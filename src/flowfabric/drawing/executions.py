"""Draws executions as text and as plain data: lists, single records, and blocking reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from flowfabric.core.execution import (
    AttemptInfo,
    Event,
    ExecutionInfo,
    ExecutionSummary,
    LimitOf,
)
from flowfabric.core.ids import PartitionedId
from flowfabric.core.states import BlockingReason, PublicState, StepKind
from flowfabric.core.step import SECRET, StepRecord
from flowfabric.core.why import Why
from flowfabric.drawing.picture import COLOURS
from flowfabric.drawing.plain import body_facts, body_text, plain
from flowfabric.drawing.table import Column, record, table
from flowfabric.drawing.text import Cell, Screen, Styled, cell, cut, printable
from flowfabric.drawing.times import exact, relative, short, until

EVENTS_SHOWN = 10
ATTEMPTS_SHOWN = 5
STEPS_SHOWN = 20
CHILDREN_SHOWN = 10
# How many characters of a step's value are shown without --payload.
VALUE_SHOWN = 120

_Record = TypeVar("_Record")


def short_id(id: PartitionedId) -> str:
    """Return the id of an execution or a flow as people see it: its UUID."""
    return str(id.uuid)


def state_cell(state: PublicState) -> Cell:
    return cell(state, COLOURS.get(state))


def summary_columns(
    now: datetime, *, is_wide: bool, with_namespace: bool
) -> list[Column[ExecutionSummary]]:
    """Return the columns of a list of executions."""
    return [
        Column("ID", lambda each: short_id(each.id)),
        Column("STATE", lambda each: state_cell(each.public_state), least=9),
        Column(
            "NAMESPACE",
            lambda each: each.namespace,
            least=6,
            drop=2,
            is_shown=is_wide or with_namespace,
        ),
        Column("TASK", lambda each: each.task, least=8, keeps_end=True),
        Column("LANE", lambda each: each.lane, least=6, drop=4),
        Column("TRY", lambda each: str(each.total_attempt_count), is_number=True, drop=3),
        Column("AGE", lambda each: short(now - each.created_at), is_number=True),
        Column("PRIORITY", lambda each: str(each.priority), is_number=True, is_shown=is_wide),
        Column("RECLAIMS", lambda each: str(each.reclaim_count), is_number=True, is_shown=is_wide),
        Column("CREATED", lambda each: exact(each.created_at), is_shown=is_wide),
        Column("WORKER", lambda each: each.worker_instance_id or "-", is_shown=is_wide),
        Column("WHY", lambda each: in_short(each, now), least=10),
    ]


def in_short(each: ExecutionSummary, now: datetime) -> Cell:
    """Return why an execution is in its state, in a few words."""
    if each.is_crash_loop:
        return Styled(f"crash loop, {each.reclaim_count} workers lost", "red")
    if each.public_state.is_terminal:
        return each.failure_reason or ""
    words = ""
    if each.is_held:
        words = f"held at step {each.held_step}" if each.held_step else "held"
    elif each.blocking_reason is not BlockingReason.NONE:
        # The state already says "waiting", so the reason omits that word.
        words = each.blocking_reason.removeprefix("waiting_").replace("_", " ")
    elif each.public_state is PublicState.ACTIVE and each.worker_instance_id:
        words = f"on {each.worker_instance_id}"
    if each.delayed_until is not None and each.public_state is PublicState.DELAYED:
        due = until(each.delayed_until, now, past="due")
        words = f"{due}, {words}" if words else due
    if each.failure_reason:
        words = f"{words}: {each.failure_reason}" if words else each.failure_reason
    return words


def _child_facts(each: ExecutionSummary) -> dict[str, Any]:
    names = ("id", "task", "public_state", "attempt", "created_at", "terminal_at", "failure_reason")
    return plain({name: getattr(each, name) for name in names})


def why_facts(why: Why) -> dict[str, Any]:
    """Return a reason for a state as plain data, with the other reasons in `others`."""
    facts = {
        "dimension": why.dimension,
        "code": why.code,
        "sentence": why.sentence,
        "evidence": why.evidence,
        "changes_at": why.changes_at,
        "others": [why_facts(other) for other in why.others] or None,
    }
    return plain(facts)


def why_lines(why: Why) -> list[str]:
    """Return the reasons for a state as sentences, the most important first."""
    return [printable(why.sentence), *(f"  also: {printable(str(other))}" for other in why.others)]


def attempt_columns(now: datetime) -> list[Column[AttemptInfo]]:
    """Return the columns of a list of attempts."""

    def failure(each: AttemptInfo) -> str:
        text = ": ".join(filter(None, (each.failure_class, each.failure_reason)))
        return text or each.pause_cause or ""

    return [
        Column("#", lambda each: str(each.attempt), is_number=True),
        Column("TYPE", lambda each: each.attempt_type),
        Column("STATE", lambda each: each.lifecycle, least=10),
        Column("STARTED", lambda each: exact(each.started_at), drop=2),
        Column(
            "TOOK",
            lambda each: (
                short((each.ended_at or now) - each.started_at) + ("" if each.ended_at else "…")
            ),
            is_number=True,
        ),
        Column("WORKER", lambda each: each.worker_instance_id or "-", least=8),
        Column("FAILURE", failure, least=10),
    ]


def attempt_facts(attempt: AttemptInfo) -> dict[str, Any]:
    """Return an attempt as plain data, with its trace as text."""
    facts = plain(attempt)
    facts.pop("failure_detail", None)
    return facts | ({"trace": trace} if (trace := attempt.trace()) else {})


def step_facts(step: StepRecord, *, is_whole: bool) -> dict[str, Any]:
    """Return a step as plain data.

    The value is left out if it is a secret, or if it is long and `is_whole` is false.
    """
    facts = plain(step)
    facts.pop("value", None)
    is_shown = is_whole or len(step.value or b"") <= VALUE_SHOWN
    return facts | body_facts("value", step.value, is_whole=is_shown and step.encoding != SECRET)


def trace_lines(attempt: AttemptInfo, *, is_whole: bool) -> list[str]:
    """Return a title line and the traceback of a failed attempt.

    If `is_whole` is false, the lines of flowfabric's own code are left out. If the attempt has no
    traceback, return no lines.
    """
    if not (trace := attempt.trace(is_whole=is_whole)):
        return []
    lines = (f"  {printable(line)}" for line in trace.split("\n"))
    return [f"trace of attempt {attempt.attempt}", *lines]


@dataclass(frozen=True, slots=True)
class ExecutionDetails:
    """Draws everything about one execution, as plain data or as lines of text.

    Payload, result and long step values are shown in full only if `with_payload` is set. Secrets
    are never shown. The traceback in the text has the lines of flowfabric's own code only if
    `with_trace` is set.
    """

    info: ExecutionInfo
    why: Why
    attempts: Sequence[AttemptInfo]
    steps: Sequence[StepRecord]
    events: Sequence[Event]
    children: Sequence[ExecutionSummary] = ()
    with_payload: bool = False
    with_trace: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the details as plain data."""
        facts = plain(self.info)
        for name in ("payload", "result"):
            facts.pop(name, None)
            body = getattr(self.info, name)
            facts |= body_facts(name, body, is_whole=self.with_payload)
        facts["why"] = why_facts(self.why)
        facts["attempts"] = list(map(attempt_facts, self.attempts))
        if self.steps:
            facts["steps"] = [step_facts(step, is_whole=self.with_payload) for step in self.steps]
        if self.children:
            facts["children"] = list(map(_child_facts, self.children))
        facts["events"] = list(map(plain, self.events[-EVENTS_SHOWN:]))
        return facts

    def lines(self, now: datetime, screen: Screen) -> list[str]:
        """Return the details as lines of text."""
        inner = screen.narrowed(2)
        lines = [short_id(self.info.id), *record(self._record_facts(now), screen, indent=2)]
        for title, section in (
            ("attempts", _last(self.attempts, ATTEMPTS_SHOWN, attempt_columns(now), inner)),
            ("steps", _last(self.steps, STEPS_SHOWN, self._step_columns(now), inner)),
            ("children", self._child_lines(now, inner)),
            ("events", _last(self.events, EVENTS_SHOWN, _EVENT_COLUMNS, inner)),
        ):
            if section:
                head, *rows = section
                lines += ["", f"  {title}{head}", *(f"  {row}" for row in rows)]
            if title == "attempts" and (trace := self._last_trace()):
                lines += ["", *(f"  {line}" for line in trace)]
        return lines

    def _last_trace(self) -> list[str]:
        traces = (trace_lines(one, is_whole=self.with_trace) for one in reversed(self.attempts))
        return next(filter(None, traces), [])

    def _record_facts(self, now: datetime) -> Iterator[tuple[str, Cell | Sequence[Cell] | None]]:
        info = self.info

        def at(moment: datetime | None) -> str | None:
            return None if moment is None else relative(moment, now)

        crash_loop = [Styled("CRASH LOOP", "red")] if info.is_crash_loop else []
        yield "state", [state_cell(info.public_state), *crash_loop]
        for number, sentence in enumerate(why_lines(self.why)):
            yield "why" if not number else "", sentence.strip()
        yield "changes", at(self.why.changes_at)
        yield "task", info.task
        yield "lane", info.lane
        yield "namespace", info.namespace
        yield "priority", str(info.priority)
        yield "needs", ", ".join(sorted(info.capabilities))
        yield "created", at(info.created_at)
        yield "creator", info.creator
        if info.parent_id is not None:
            yield (
                "parent",
                f"{short_id(info.parent_id)}{', ends with it' if info.ends_with_parent else ''}",
            )
        yield "flow", info.flow_id and short_id(info.flow_id)
        yield "children", str(info.child_count or "")
        yield "version", info.task_version
        yield "code version", info.code_version
        yield "started", at(info.started_at)
        yield "ended", at(info.terminal_at)
        is_open = info.terminal_at is None
        yield "delayed", at(info.delayed_until) if is_open else None
        yield "deadline", at(info.deadline_at) if is_open else None
        if info.lease_id is not None and info.lease_expires_at is not None:
            yield "lease", f"{info.lease_id} epoch {info.epoch}"
            yield "", f"leased by {info.worker_instance_id} of {info.worker_id}"
            yield "", f"until {at(info.lease_expires_at)}"
        yield "times out", at(info.attempt_deadline_at) if is_open else None
        yield "reclaim", at(info.reclaim_at) if is_open else None
        yield "progress", _progress(info, now)
        yield "attempts", _tally(info)
        kind = " ".join(filter(None, (info.failure_class, _category(info))))
        if info.failure_reason or kind:
            yield "failure", ": ".join(filter(None, (kind, info.failure_reason)))
        if info.cancelled_by or info.cancellation_reason:
            reason = f": {info.cancellation_reason}" if info.cancellation_reason else ""
            yield "cancelled", f"by {info.cancelled_by}{reason}"
        yield "key", info.key
        yield "limits", ", ".join(_limit(one) for one in info.limits)
        yield "tags", " ".join(f"{key}={value}" for key, value in info.tags.items())
        yield "trimmed", at(info.trim_at)
        for name, body, encoding in (
            ("payload", info.payload, info.payload_encoding),
            ("result", info.result, info.result_encoding),
        ):
            if body is not None:
                yield name, f"{len(body)} bytes{f' of {encoding}' if encoding else ''}"
                if self.with_payload:
                    yield from (("", line or " ") for line in body_text(body).splitlines())

    def _child_lines(self, now: datetime, screen: Screen) -> list[str]:
        """Return a text to add to the section's title, then a table of the newest children.

        If there are no children, return no lines.
        """
        if not self.children:
            return []
        number = len(self.children)
        head = f" (the newest {number} of {self.info.child_count})"
        columns = summary_columns(now, is_wide=False, with_namespace=False)
        return [
            head if self.info.child_count > number else "",
            *table(columns, self.children, screen),
        ]

    def _step_columns(self, now: datetime) -> list[Column[StepRecord]]:
        def value(step: StepRecord) -> str:
            if step.kind == StepKind.WAIT and step.taken_as != "signals":
                return step.taken_as or "open"
            if step.until_at is not None and step.kind != StepKind.WAIT:
                return f"until {relative(step.until_at, now)}"
            if step.value is None:
                return ""
            if step.encoding == SECRET:
                return "a secret"
            text = body_text(step.value)
            return text if self.with_payload else cut(text, VALUE_SHOWN)

        return [
            Column("#", lambda each: str(each.position), is_number=True),
            Column(
                "STEP",
                lambda each: each.name + (f"#{each.occurrence}" if each.occurrence else ""),
                least=10,
            ),
            Column("KIND", lambda each: each.kind),
            Column("RECORDED", lambda each: exact(each.recorded_at), drop=2),
            Column("ATTEMPT", lambda each: str(each.attempt), is_number=True, drop=1),
            Column("VALUE", value, least=10),
        ]


_EVENT_COLUMNS: list[Column[Event]] = [
    Column("#", lambda each: str(each.version), is_number=True),
    Column("AT", lambda each: exact(each.occurred_at)),
    Column("EVENT", lambda each: each.kind),
    Column("BY", lambda each: each.actor or each.worker_instance_id or "-", least=8),
    Column(
        "DETAIL",
        lambda each: " ".join(f"{key}={value}" for key, value in (each.detail or {}).items()),
        least=10,
    ),
]


def _last(
    records: Sequence[_Record], number: int, columns: Sequence[Column[_Record]], screen: Screen
) -> list[str]:
    """Return a text to add to the section's title, then a table of the last `number` records.

    If there are no records, return no lines.
    """
    if not records:
        return []
    head = f" (the last {number})" if len(records) > number else ""
    return [head, *table(columns, records[-number:], screen)]


def _category(info: ExecutionInfo) -> str | None:
    """Return the category of a failure, or None if the reason already begins with the category."""
    category, reason = info.failure_category or "", info.failure_reason or ""
    name = category.rpartition(".")[2]
    return None if reason == category or reason.startswith(f"{name}: ") else category


def _limit(one: LimitOf) -> str:
    return f"{one.kind} {one.name}{f' of {one.key}' if one.key else ''}"


def _progress(info: ExecutionInfo, now: datetime) -> str | None:
    if info.progressed_at is None:
        return None
    percent = None if info.progress_percent is None else f"{info.progress_percent} %"
    text = ", ".join(filter(None, (percent, info.progress_message)))
    return f"{text} ({short(now - info.progressed_at)} ago)"


def _tally(info: ExecutionInfo) -> str:
    parts = [str(info.total_attempt_count)]
    for number, word in ((info.retry_count, "retries"), (info.replay_count, "replays")):
        if number:
            parts.append(f"{word} {number}")
    if info.reclaim_count:
        parts.append(f"reclaims {info.reclaim_count} of {info.max_reclaims}")
    return ", ".join(parts)
