"""Steps: results that a handler records, so that a later run does not compute them again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import MAX_NAME_BYTES, check_text
from flowfabric.core.states import StepKind

MAX_VALUE_BYTES = 1_048_576
# The most steps that one execution may record, and the number of steps at which its worker warns.
MAX_STEPS = 50_000
MANY_STEPS = 5_000
_MAX_COUNT = 2**31


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """One step to record.

    `position` is the number of the step in the journal, counted from 0. Steps that run at the same
    time share one position. `is_sequential` means that the handler itself began the step, while no
    other step was in flight.
    """

    name: str
    occurrence: int
    position: int
    is_sequential: bool = True
    kind: StepKind = StepKind.STEP
    value: bytes | None = field(default=None, repr=False)
    encoding: str | None = None
    # A sleep has one of these two: a delay from now, by the database's clock, or an end.
    delay: timedelta | None = None
    until: datetime | None = None
    # The highest position that was known to be recorded when this step started; -1 if none was.
    follows: int | None = None
    # The code version that records the step. From then on the execution belongs to this version.
    code_version: str | None = None

    def check(self) -> None:
        """Refuse invalid fields, as the engine would. The error names the field."""
        check_step_name(self.name)
        for name, count in (("occurrence", self.occurrence), ("position", self.position)):
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < _MAX_COUNT:
                raise InvalidInput(field=name, problem="must be a whole number of at least 0")
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
                field="delay",
                problem="a sleep needs a delay or an end, not both; other steps have neither",
            )


# The encoding of values that contain secrets: JSON that is never shown to people.
SECRET = "secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A recorded step, with its value, the end of its sleep, or the answer of its wait."""

    name: str
    occurrence: int
    position: int
    is_sequential: bool
    kind: StepKind
    value: bytes | None = field(repr=False)
    encoding: str | None
    recorded_at: datetime
    until_at: datetime | None
    attempt: int
    # For a wait: when its answer was ready, and what ended it (`signals`, `timeout` or `operator`).
    # None until then.
    ready_at: datetime | None = None
    taken_as: str | None = None


def check_step_name(name: str, *, field: str = "name") -> None:
    check_text(field, name, MAX_NAME_BYTES)
    if any(ch < " " or ch == "\x7f" for ch in name):
        raise InvalidInput(field=field, problem="must not contain control characters")
