"""When a rule should fire, found without the library: every minute of a span is looked at on the
clock on the wall, by zoneinfo alone.

Cron as Debian has it: a rule with a star in front of its minute or hour fires whenever the wall
shows its time, so not at all in an hour that is left out and twice in one that comes twice. A rule
of fixed hours fires once a day: what would be in the hour left out, right after the change; of the
hour that comes twice, in the first.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


def firings(
    minutes: set[int],
    hours: set[int],
    zone: str,
    start: datetime,
    end: datetime,
    *,
    is_fixed: bool,
    is_day: Callable[[date], bool] = lambda _: True,
) -> list[datetime]:
    """The times from behind `start` up to `end` at which a rule fires on the days that it names."""

    def is_named(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours and is_day(wall.date())

    found = []
    for moment, wall, is_second, left_out in _minutes(zone, start, end):
        is_shown = is_named(wall) and not (is_fixed and is_second)
        if is_shown or (is_fixed and any(map(is_named, left_out))):
            found.append(moment)
    return [moment for moment in found if start < moment <= end]


@cache
def _minutes(
    zone: str, start: datetime, end: datetime
) -> list[tuple[datetime, datetime, bool, list[datetime]]]:
    """Every minute of a span, what the wall shows then, whether it does so for the second time, and
    what a change at this moment leaves out."""
    tz = ZoneInfo(zone)
    found = []
    moment = start.replace(second=0, microsecond=0)
    before = (moment - MINUTE).astimezone(tz).replace(tzinfo=None)
    while moment <= end:
        wall = moment.astimezone(tz)
        shown, is_second = wall.replace(tzinfo=None, fold=0), bool(wall.fold)
        left_out = []
        while (before := before + MINUTE) < shown:
            left_out.append(before)
        found.append((moment, shown, is_second, left_out))
        before = shown
        moment += MINUTE
    return found


def changes(zone: str, start: datetime, end: datetime) -> list[datetime]:
    """The minutes of a span at which the clock on the wall moves."""
    moved = []
    before: datetime | None = None
    for moment, wall, _, _ in _minutes(zone, start, end):
        if before is not None and wall - before != MINUTE:
            moved.append(moment)
        before = wall
    return moved


def utc(*when: int) -> datetime:
    return datetime(*when, tzinfo=UTC)
