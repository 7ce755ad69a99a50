"""Times as people type and read them: `10m`, `2h`, an ISO time; `3d` for an age."""

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


def short(duration: timedelta) -> str:
    """A length of time at a glance: 42s, 7m, 3h, 12d."""
    seconds = int(abs(duration).total_seconds())
    for unit, size, up_to in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 48)):
        if seconds < size * up_to:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def precise(duration: timedelta) -> str:
    """A length of time in its two largest units: 3h58m."""
    seconds = round(abs(duration).total_seconds())
    units = [
        (seconds // 86400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "m"),
        (seconds % 60, "s"),
    ]
    first = next((index for index, (number, _) in enumerate(units) if number), 3)
    return "".join(f"{number}{unit}" for number, unit in units[first:][:2] if number) or "0s"


def exact(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def relative(moment: datetime, now: datetime) -> str:
    """A moment, and how far away it is."""
    distance = f"in {precise(moment - now)}" if moment > now else f"{precise(now - moment)} ago"
    return f"{exact(moment)} ({distance})"


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
