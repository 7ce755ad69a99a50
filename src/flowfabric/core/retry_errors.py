"""Exceptions that a handler or a step raises to decide whether and when to try again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flowfabric.core.errors import InvalidInput

# The longest wait that the engine accepts.
_LONGEST = timedelta(days=36_525)


class RetryAfter(Exception):
    """Raise this to try again at a datetime, or after a timedelta or a number of seconds.

    A time in the past means now. The retry counts towards `max_retries`. A task without a retry
    policy is retried up to 3 times. The rules of the retry policy (`retry_on`, `never_on`, `when`)
    do not apply.
    """

    # These attributes are plain JSON values and have defaults in the class, because the journal
    # rebuilds an error from its JSON attributes, without calling __init__.
    reason: str = ""
    seconds: float | None = None
    moment: str | None = None

    def __init__(self, when: float | timedelta | datetime, reason: str = "") -> None:
        super().__init__(when, reason)
        self.reason = reason
        if isinstance(when, datetime):
            self.moment = _as_moment(when)
        else:
            self.seconds = _as_seconds(when)

    @property
    def delay(self) -> timedelta | None:
        """How long to wait before the next try, or None if a datetime was given."""
        return None if self.seconds is None else timedelta(seconds=self.seconds)

    @property
    def at(self) -> datetime | None:
        """The time of the next try, or None if a duration was given."""
        return None if self.moment is None else datetime.fromisoformat(self.moment)

    def __str__(self) -> str:
        if self.moment is not None:
            text = f"try again at {self.moment}"
        elif self.seconds is not None:
            text = f"try again in {self.seconds:g} s"
        else:
            text = "try again"
        return f"{self.reason} ({text})" if self.reason else text


class GiveUp(Exception):
    """Raise this to end the execution as failed, even if retries are left."""


def _as_moment(when: datetime) -> str:
    if when.tzinfo is None:
        raise InvalidInput(field="when", problem="must be a datetime with a time zone")
    try:
        moment = when.astimezone(UTC)
    except OverflowError:
        moment = datetime(9999 if when.year > 1 else 1, 1, 1, tzinfo=UTC)
    if moment.year >= 9999:
        raise InvalidInput(field="when", problem="must be before the year 9999")
    # The engine's calendar begins a day later than Python's. A very early time may be replaced by a
    # later one, because every time in the past means now.
    return max(moment, datetime(2, 1, 1, tzinfo=UTC)).isoformat()


def _as_seconds(when: float | timedelta) -> float:
    if isinstance(when, bool) or not isinstance(when, int | float | timedelta):
        raise InvalidInput(
            field="when", problem="must be seconds, a timedelta or a datetime with a time zone"
        )
    try:
        delay = when if isinstance(when, timedelta) else timedelta(seconds=max(when, 0.0))
    except (OverflowError, ValueError):
        delay = timedelta.max
    if delay > _LONGEST:
        raise InvalidInput(field="when", problem="must be at most a hundred years from now")
    return max(delay.total_seconds(), 0.0)
