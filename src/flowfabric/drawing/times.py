"""Writes times for people: `250ms`, `3h58m`, and a moment with its distance from now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def short(duration: timedelta) -> str:
    """Return a duration in one unit: 250ms, 42s, 7m, 3h, 12d."""
    if milliseconds := _below_a_second(duration):
        return milliseconds
    seconds = int(abs(duration).total_seconds())
    for unit, size, up_to in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 48)):
        if seconds < size * up_to:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def precise(duration: timedelta) -> str:
    """Return a duration in its two largest units, such as 3h58m, or as 250ms below a second."""
    if milliseconds := _below_a_second(duration):
        return milliseconds
    seconds = round(abs(duration).total_seconds())
    units = [
        (seconds // 86400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "m"),
        (seconds % 60, "s"),
    ]
    first = next((index for index, (number, _) in enumerate(units) if number), 3)
    return "".join(f"{number}{unit}" for number, unit in units[first:][:2] if number) or "0s"


def _below_a_second(duration: timedelta) -> str | None:
    """Return a duration as text if it is 1 to 999 ms long, else None."""
    milliseconds = round(abs(duration) / timedelta(milliseconds=1))
    return f"{milliseconds}ms" if 0 < milliseconds < 1000 else None


def exact(moment: datetime) -> str:
    """Return a moment in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def relative(moment: datetime, now: datetime) -> str:
    """Return a moment as text, with its distance from now: `... UTC (3h58m ago)`."""
    distance = f"in {precise(moment - now)}" if moment > now else f"{precise(now - moment)} ago"
    return f"{exact(moment)} ({distance})"


def until(moment: datetime | None, now: datetime, *, past: str = "now") -> str:
    """Return the time until a moment. Return `past` if it is over, and a dash for None."""
    if moment is None:
        return "-"
    return f"in {precise(moment - now)}" if moment > now else past
