"""Parse times: `10m`, `2h`, or an ISO time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from flowfabric.core.errors import InvalidInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# A moment, or a duration. `past` and `future` turn a duration into a moment.
When: TypeAlias = timedelta | datetime


def span(text: str, field: str) -> timedelta:
    """Parse a duration such as 30s, 10m, 2h or 7d."""
    found = _span(text)
    if found is None:
        raise InvalidInput(field=field, problem=f"{text[:40]!r} must look like 30s, 10m, 2h or 7d")
    return found


def when(text: str, field: str) -> When:
    """Parse a duration or an ISO time. A time without a time zone is local time."""
    found = _span(text)
    if found is not None:
        return found
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            field=field, problem=f"{text[:40]!r} must be a duration such as 10m, or an ISO time"
        ) from error


def past(moment: When, now: datetime) -> datetime:
    """Return `moment` as a time. If it is a duration, count it back from `now`."""
    return moment if isinstance(moment, datetime) else now - moment


def future(moment: When, now: datetime) -> datetime:
    """Return `moment` as a time. If it is a duration, add it to `now`."""
    return moment if isinstance(moment, datetime) else now + moment


def _span(text: str) -> timedelta | None:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdecimal()) or len(number) > 12:
        return None
    try:
        found = timedelta(seconds=int(number) * _UNITS[unit])
        # Refuse a duration that is too long for the calendar.
        _ = datetime.now(UTC) - found, datetime.now(UTC) + found
    except OverflowError:
        return None
    return found
