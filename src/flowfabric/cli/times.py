"""Times as people type them: `10m`, `2h`, an ISO time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from flowfabric.core.errors import InvalidInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# A span is counted from now, by the clock of whoever resolves it.
When: TypeAlias = timedelta | datetime


def span(text: str, field: str) -> timedelta:
    """A length of time such as 30s, 10m, 2h or 7d."""
    found = _span(text)
    if found is None:
        raise InvalidInput(field=field, problem=f"{text[:40]!r} is not like 30s, 10m, 2h or 7d")
    return found


def when(text: str, field: str) -> When:
    """A span, or an ISO time; without a zone, that of this machine."""
    found = _span(text)
    if found is not None:
        return found
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            field=field, problem=f"{text[:40]!r} is neither like 10m nor an ISO time"
        ) from error


def past(moment: When, now: datetime) -> datetime:
    """That long ago, or the moment itself."""
    return moment if isinstance(moment, datetime) else now - moment


def future(moment: When, now: datetime) -> datetime:
    """In that long, or the moment itself."""
    return moment if isinstance(moment, datetime) else now + moment


def _span(text: str) -> timedelta | None:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdecimal()) or len(number) > 12:
        return None
    try:
        found = timedelta(seconds=int(number) * _UNITS[unit])
        # One that leaves the calendar in either direction is none.
        _ = datetime.now(UTC) - found, datetime.now(UTC) + found
    except OverflowError:
        return None
    return found
