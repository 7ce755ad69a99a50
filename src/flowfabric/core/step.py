"""Steps: what a handler did once, so that a later run of it does not do it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import MAX_NAME_BYTES, check_text
from flowfabric.core.states import StepKind

MAX_VALUE_BYTES = 1_048_576
_MAX_COUNT = 2**31


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """One thing to be recorded. `position` counts the steps of the handler's own flow; those it
    starts beside itself share one. `is_sequential` says that it was of the handler's own flow, and
    that no other was in flight."""

    name: str
    occurrence: int
    position: int
    is_sequential: bool = True
    kind: StepKind = StepKind.STEP
    value: bytes | None = field(default=None, repr=False)
    encoding: str | None = None
    # A sleep has one of them: from now by the database's clock, or a moment.
    delay: timedelta | None = None
    until: datetime | None = None
    # The highest position known to be recorded when it was started, -1 for none.
    follows: int | None = None

    def check(self) -> None:
        """Refuse what the engine would refuse, naming the field, before anything is sent."""
        check_step_name(self.name)
        for name, count in (("occurrence", self.occurrence), ("position", self.position)):
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < _MAX_COUNT:
                raise InvalidInput(field=name, problem="must be a whole number from 0 on")
        if not isinstance(self.is_sequential, bool):
            raise InvalidInput(field="is_sequential", problem="must be true or false")
        if self.kind not in StepKind.__members__.values():
            raise InvalidInput(field="kind", problem="must be step, failure, sleep or now")
        if self.value is not None and len(self.value) > MAX_VALUE_BYTES:
            raise InvalidInput(
                field="value",
                problem=f"of step {self.name!r} is {len(self.value)} bytes; at most "
                f"{MAX_VALUE_BYTES} (1 MiB) are allowed. Store large data elsewhere and return a "
                "reference",
            )
        if self.until is not None and self.until.tzinfo is None:
            raise InvalidInput(field="until", problem="must be a datetime with a time zone")
        times = (self.delay is not None) + (self.until is not None)
        if times != (self.kind == StepKind.SLEEP):
            raise InvalidInput(
                field="delay", problem="a sleep, and nothing else, has either a delay or an end"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step as it is recorded: its value, or until when it sleeps."""

    name: str
    occurrence: int
    position: int
    is_sequential: bool
    kind: StepKind
    value: bytes | None = field(repr=False)
    encoding: str | None
    recorded_at: datetime
    until_at: datetime | None
    # The attempt that recorded it.
    attempt_index: int


def check_step_name(name: str, *, field: str = "name") -> None:
    check_text(field, name, MAX_NAME_BYTES)
    if any(ch < " " or ch == "\x7f" for ch in name):
        raise InvalidInput(field=field, problem="must not hold control characters")
