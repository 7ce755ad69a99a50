"""When a rule should fire, found without the library: every minute of a span is looked at on the
clock on the wall, by zoneinfo alone.

Cron as Debian has it: a rule with a star in front of its minute or hour fires whenever the wall
shows its time, so not at all in an hour that is left out and twice in one that comes twice. A rule
of fixed hours fires once a day: what would be in the hour left out, right after the change; of the
hour that comes twice, in the first.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


def firings(
    minutes: set[int], hours: set[int], zone: str, start: datetime, end: datetime, *, is_fixed: bool
) -> list[datetime]:
    """The times from behind `start` up to `end` at which a rule fires every day."""
    tz = ZoneInfo(zone)
    found: set[datetime] = set()
    moment = start.replace(second=0, microsecond=0)
    while moment <= end:
        wall = moment.astimezone(tz)
        if wall.minute in minutes and wall.hour in hours and not (is_fixed and wall.fold):
            found.add(moment)
        if is_fixed and _left_out(tz, moment) & {(h, m) for h in hours for m in minutes}:
            found.add(moment)
        moment += MINUTE
    return sorted(moment for moment in found if start < moment <= end)


def _left_out(tz: ZoneInfo, moment: datetime) -> set[tuple[int, int]]:
    """The hours and minutes on the wall that the change at this moment leaves out."""
    before = (moment - MINUTE).astimezone(tz).replace(tzinfo=None)
    now = moment.astimezone(tz).replace(tzinfo=None)
    skipped = set()
    while (before := before + MINUTE) < now:
        skipped.add((before.hour, before.minute))
    return skipped


def utc(*when: int) -> datetime:
    return datetime(*when, tzinfo=UTC)
