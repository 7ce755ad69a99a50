"""What every process of a run asked for and was told, and what the database held in the end.

A process appends to a file of its own, a line when a call begins and a line when its answer is
there. A call without a second line is unknown: it may have taken effect or not, also later. Lines
reach the kernel before the call leaves, so a `kill -9` loses none; nothing is synced to the disk,
the machine itself does not die. Times are of the monotonic clock, one for the whole machine.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from flowfabric.core.errors import FlowFabricError, Unavailable

Answer = TypeVar("Answer")

OK = "ok"
REFUSED = "refused"
UNKNOWN = "unknown"


class Recorder:
    """Writes the history of one process."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        path = folder / f"history-{process}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # A worker renews its leases on a thread of its own: both take numbers from here.
        self._numbers = count(1)

    async def record(
        self,
        op: str,
        call: Awaitable[Answer],
        answer: Callable[[Answer], Mapping[str, Any]],
        **args: Any,
    ) -> Answer:
        """Make a call between its two lines; `answer` is what of its answer is written down."""
        number = self.invoke(op, args)
        try:
            given = await call
        except FlowFabricError as error:
            self.fail(number, error)
            raise
        self.answer(number, answer(given))
        return given

    def invoke(self, op: str, args: Mapping[str, Any]) -> int:
        """A call is about to be made; returns its number."""
        number = next(self._numbers)
        self._write({"n": number, "op": op, "args": args})
        return number

    def answer(self, number: int, answer: Mapping[str, Any]) -> None:
        self._write({"n": number, "verdict": OK, "answer": answer})

    def fail(self, number: int, error: Exception) -> None:
        """A refusal says that the call did nothing; that the database was away says nothing."""
        verdict = UNKNOWN if isinstance(error, Unavailable) else REFUSED
        self._write({"n": number, "verdict": verdict, "answer": {"error": type(error).__name__}})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps({"t": monotonic(), **line}, separators=(",", ":"))
        os.write(self._file, text.encode() + b"\n")


@dataclass(slots=True, kw_only=True)
class Call:
    """One call: when it was made, when it was answered (never: infinity), and what was said."""

    process: str
    op: str
    invoked: float
    returned: float = inf
    verdict: str = UNKNOWN
    args: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.verdict == OK

    @property
    def error(self) -> str | None:
        return self.answer.get("error") if self.verdict == REFUSED else None

    def __str__(self) -> str:
        told = self.answer if self.verdict != UNKNOWN else "unknown"
        return f"{self.process} {self.op} {dict(self.args)} at {self.invoked:.3f}: {told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log of one execution."""

    version: int
    kind: str
    lease: str | None = None
    epoch: int | None = None
    attempt: int | None = None
    outcome: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """The name that the caller gave to the operation that wrote this."""
        return self.detail.get("reason")

    @property
    def is_engine(self) -> bool:
        """Whether time brought it about, not a call that somebody recorded."""
        return self.kind in ("lease_expired", "expired") or self.detail.get("category") in (
            "attempt_timeout",
            "reclaim_cap_exceeded",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One execution as the database holds it at the end."""

    public_state: str
    version: int
    epoch: int
    eligibility: str = "not_applicable"
    payload: str | None = None
    result: str | None = None

    @property
    def is_ended(self) -> bool:
        return self.public_state in ("completed", "failed", "cancelled", "expired", "skipped")


LEASING = ("claimed", "resumed", "reclaimed")
ENDING = ("completed", "failed", "cancelled", "expired", "skipped")
# The calls that show a fence, with the kinds of event that each of them may write.
FENCED: dict[str, tuple[str, ...]] = {
    "complete": ("completed",),
    "fail": ("failed", "retry_scheduled"),
    "delay": ("delayed",),
    "release": ("released",),
    "hold": ("held",),
    "cancel_held": ("cancelled",),
    "renew": (),
    "progress": (),
}
# The calls of operators, who give each a name (`reason`) that the event carries.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "cancel": ("cancelled",),
    "revoke": ("lease_revoked",),
    "replay": ("replayed",),
    "retry": ("replayed", "promoted", "unblocked"),
    "priority": ("priority_changed",),
}


@dataclass(kw_only=True)
class History:
    """All calls of a run, and the rows and the log that it left behind."""

    calls: list[Call] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    # How long after the last grant of a lease its holder must be refused.
    lease_seconds: float = 2.0

    def of(self, *ops: str) -> Iterator[Call]:
        return (call for call in self.calls if call.op in ops)

    @cached_property
    def leases(self) -> dict[str, list[tuple[Call, Mapping[str, Any]]]]:
        """By execution, every confirmed claim and what it got, in the order of the answers."""
        found: dict[str, list[tuple[Call, Mapping[str, Any]]]] = defaultdict(list)
        for call in sorted(self.of("claim"), key=lambda call: call.returned):
            if call.is_ok:
                for item in call.answer["items"]:
                    found[item["id"]].append((call, item))
        return found

    @cached_property
    def fenced(self) -> list[Call]:
        """Every fenced call, one for each execution: renewals of several are taken apart."""
        found = [call for call in self.of(*FENCED) if call.op != "renew"]
        for call in self.of("renew"):
            lost, busy = call.answer.get("lost", ()), call.answer.get("busy", ())
            for index, item in enumerate(call.args["items"]):
                if index in busy:
                    continue
                is_lost = call.is_ok and index in lost
                found.append(
                    Call(
                        process=call.process,
                        op="renew",
                        invoked=call.invoked,
                        returned=call.returned,
                        verdict=REFUSED if is_lost else call.verdict,
                        args=item,
                    )
                )
        return found

    def written(self, call: Call) -> list[Event]:
        """The events that a fenced or an operation wrote, going by its lease or its name."""
        events = self.events.get(call.args["id"], ())
        if call.op in OPERATIONS or call.op == "cancel_held":
            kinds = OPERATIONS.get(call.op) or FENCED[call.op]
            return [e for e in events if e.kind in kinds and e.reason == call.args["reason"]]
        kinds = FENCED[call.op]
        lease = call.args["lease"]
        return [e for e in events if e.kind in kinds and e.lease == lease and not e.is_engine]

    def counts(self) -> Counter[str]:
        """How many calls of each kind there were, and how they ended."""
        found: Counter[str] = Counter()
        for call in self.calls:
            found[f"{call.op} {call.verdict}"] += 1
        return found


def read_calls(folder: Path) -> list[Call]:
    """The calls of all processes, in the order they were made."""
    calls: list[Call] = []
    for path in sorted(folder.glob("history-*.jsonl")):
        process = path.stem.removeprefix("history-")
        calls += calls_of(process, path.read_text(encoding="utf-8").splitlines())
    calls.sort(key=lambda call: call.invoked)
    return calls


def calls_of(process: str, lines: Iterable[str]) -> list[Call]:
    calls: dict[int, Call] = {}
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the last words of somebody who was killed
        if "op" in line:
            calls[line["n"]] = Call(
                process=process, op=line["op"], invoked=line["t"], args=line["args"]
            )
        else:
            call = calls[line["n"]]
            call.verdict, call.answer = line["verdict"], line["answer"]
            # What is unknown stays so: the server may be at it even after the caller gave up.
            call.returned = inf if call.verdict == UNKNOWN else line["t"]
    return list(calls.values())
