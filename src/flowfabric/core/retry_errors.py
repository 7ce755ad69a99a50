"""Exceptions that a handler or a step raises to say whether and when to try again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flowfabric.core.errors import InvalidInput

# The engine refuses a longer wait.
_LONGEST = timedelta(days=36_525)


class RetryAfter(Exception):
    """Try again at a time that you choose: after seconds or a timedelta, or at a datetime.

    The retry counts towards `max_retries`; a task without a policy is retried up to 3 times. The
    rules of the policy (`retry_on`, `never_on`, `when`) do not apply.
    """

    # Class attributes, because an error from the journal is rebuilt without __init__.
    delay: timedelta | None = None
    at: datetime | None = None
    reason: str = ""

    def __init__(self, when: float | timedelta | datetime, reason: str = "") -> None:
        super().__init__(when, reason)
        self.reason = reason
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise InvalidInput(field="when", problem="must be a datetime with a time zone")
            self.at = when
        else:
            self.delay = _as_delay(when)

    def __str__(self) -> str:
        if self.at is not None:
            moment = f"try again at {self.at.astimezone(UTC).isoformat(timespec='seconds')}"
        elif self.delay is not None:
            moment = f"try again in {self.delay.total_seconds():g} s"
        else:
            moment = "try again"
        return f"{self.reason} ({moment})" if self.reason else moment


class GiveUp(Exception):
    """End the execution as failed, even if retries are left."""


def _as_delay(when: float | timedelta) -> timedelta:
    if isinstance(when, bool) or not isinstance(when, int | float | timedelta):
        raise InvalidInput(
            field="when", problem="must be seconds, a timedelta or a datetime with a time zone"
        )
    try:
        delay = when if isinstance(when, timedelta) else timedelta(seconds=when)
    except (OverflowError, ValueError):
        delay = timedelta.max
    if not timedelta(0) <= delay <= _LONGEST:
        raise InvalidInput(field="when", problem="must be from now to a hundred years from now")
    return delay
