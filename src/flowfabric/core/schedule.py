"""Schedules: rules, the firings that are due, and stored schedules.

This module reads no clock. `now` is always the time of the database.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import cache, cached_property
from uuid import UUID

from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import Misfire, ScheduleState

MAX_FIRINGS = 1000
"""The most executions that one call submits; the next call submits the rest."""

GRACE = timedelta(minutes=1)
"""A firing that is later than this counts as missed. Only the misfire rule `skip` uses it."""

SCHEDULED_AT_TAG = "schedule.at"
"""The tag that holds the scheduled time of a firing; `schedule.name` holds the schedule's name."""

MAX_SCHEDULE_NAME_BYTES = 240
MAX_CRON_BYTES = 256
MAX_SCHEDULE_TAGS = 62
LEAST_EVERY = timedelta(seconds=1)
MOST_EVERY = timedelta(days=36525)

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# The fields as cronsim's errors name them, with index and allowed values.
_FIELDS = {
    "minute": (0, "0 to 59"),
    "hour": (1, "0 to 23"),
    "day-of-month": (2, "1 to 31, or L for the last"),
    "month": (3, "1 to 12 or JAN to DEC"),
    "day-of-week": (4, "0 to 7 (Sunday is 0 and 7) or SUN to SAT"),
}
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()  # noqa: SIM905
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
# The range of start times. It is narrower than the range of datetime, so that each time exists in
# every time zone.
_FIRST_START = datetime(1, 1, 2, tzinfo=UTC)
_END_OF_STARTS = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Rule:
    """When a schedule fires: by a cron expression in a time zone, or at a fixed interval from
    `anchor`.

    Methods take datetimes with a time zone and return datetimes in UTC.
    """

    cron: str | None = None
    every: timedelta | None = None
    time_zone: str = "UTC"
    anchor: datetime | None = None

    def after(self, moment: datetime) -> datetime:
        """Return the first moment after `moment` at which the rule fires."""
        for time in self.times(moment):
            return time
        raise InvalidInput(field="every", problem=f"{self} has no time before the year 10000")

    def times(self, moment: datetime) -> Iterator[datetime]:
        """Yield the moments after `moment` at which the rule fires, ascending."""
        if self.every is not None:
            return self._steps(moment, self.every)
        return self._calendar(moment)

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last moment between `first` and `now` at which the rule fires.

        If the rule does not fire between them, return `first`.
        """
        if self.every is not None:
            return max(first, self.after(now) - self.every)
        # Search backwards in growing windows: a rule that fires every minute may have been idle for
        # a year.
        window = timedelta(minutes=2)
        while now - window > first:
            found = self._last(now - window, now)
            if found is not None:
                return found
            window *= 8
        return self._last(first, now) or first

    def _last(self, start: datetime, now: datetime) -> datetime | None:
        found = None
        for moment in self.times(start):
            if moment > now:
                break
            found = moment
        return found

    def _steps(self, moment: datetime, every: timedelta) -> Iterator[datetime]:
        anchor = _LONG_AGO if self.anchor is None else self.anchor
        number = 0 if moment < anchor else (moment - anchor) // every + 1
        with suppress(OverflowError):  # the last year of the calendar
            while True:
                yield (anchor + number * every).astimezone(UTC)
                number += 1

    def _calendar(self, moment: datetime) -> Iterator[datetime]:
        last = moment.astimezone(UTC)
        for found in self._instants(last):
            if found > last:
                yield found
                last = found
        raise InvalidInput(
            field="cron", problem=f"{self.cron!r} names no time in the next fifty years"
        )

    def _instants(self, moment: datetime) -> Iterator[datetime]:
        """Yield the moments at which the cron rule fires, ascending.

        They include all moments after `moment`, and a few before it.
        """
        from cronsim import CronSim  # imported here: most apps have no schedules

        assert self.cron is not None
        minute, hour, *_ = self.cron.split()
        is_fixed = not minute.startswith("*") and not hour.startswith("*")
        wall = moment.astimezone(self._zone).replace(tzinfo=None, fold=0)
        first, second = self._readings(wall)
        # A clock that is set back shows the last hour twice: start an hour earlier.
        start = wall - max(second - first, timedelta())
        seconds: deque[datetime] = deque()
        # Use CronSim without a time zone. With a time zone, when the clock changes at midnight, it
        # omits days, fires at wrong hours or never returns.
        for wall in CronSim(self.cron, start):
            first, second = self._readings(wall)
            if second < first:  # set forward: the clock never shows this time
                if is_fixed:
                    yield self._change(second, first)
                continue
            while seconds and seconds[0] < first:
                yield seconds.popleft()
            yield first
            if first < second and not is_fixed:
                seconds.append(second)
        yield from seconds

    def _readings(self, wall: datetime) -> tuple[datetime, datetime]:
        """Return the first and the second moment at which the wall clock shows a time.

        They are equal if the clock shows the time once. If the clock is set back and shows the time
        twice, the second moment is after the first. If the clock is set forward and skips the time,
        the second moment is before the first.
        """
        first = wall.replace(tzinfo=self._zone, fold=0)
        return first.astimezone(UTC), first.replace(fold=1).astimezone(UTC)

    def _change(self, before: datetime, after: datetime) -> datetime:
        """Return the moment at which the clock is set forward.

        It is later than `before` and not later than `after`.
        """
        offset = after.astimezone(self._zone).utcoffset()
        while after - before > timedelta(seconds=1):
            middle = before + (after - before) // timedelta(seconds=2) * timedelta(seconds=1)
            if middle.astimezone(self._zone).utcoffset() == offset:
                after = middle
            else:
                before = middle
        return after

    @cached_property
    def _zone(self) -> tzinfo:
        return zone(self.time_zone)

    def __str__(self) -> str:
        if self.every is not None:
            return f"every {self.every}"
        return f"{self.cron} {self.time_zone}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a due schedule: submit its task for each time in `fire_ats`, then wait until
    `next_at`.
    """

    fire_ats: list[datetime]
    next_at: datetime


def plan(
    rule: Rule, misfire: Misfire, next_at: datetime, now: datetime, most: int = MAX_FIRINGS
) -> Plan:
    """Plan which times from `next_at` to `now` must fire.

    `next_at` is the first time that has not fired. The misfire rule decides:

    - `all`: every time fires, the earliest first, but one call returns at most `most` of them.
    - `once`: only the latest time fires.
    - `skip`: the latest time fires if it is at most GRACE ago. Otherwise no time fires.
    """
    if misfire is Misfire.ALL:
        due = [next_at]
        for moment in rule.times(next_at):
            if moment > now or len(due) == most:
                return Plan(due, moment)
            due.append(moment)
    latest = rule.latest(next_at, now)
    is_missed = misfire is Misfire.SKIP and now - latest > GRACE
    return Plan([] if is_missed else [latest], rule.after(now))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A stored schedule: its rule, what it submits, and when it fired and will fire."""

    namespace: str
    app: str
    name: str
    schedule_id: UUID
    state: ScheduleState
    version: str
    task: str
    lane: str
    cron: str | None
    every: timedelta | None
    time_zone: str
    anchor_at: datetime | None
    rule_no: int
    misfire: Misfire
    priority: int
    is_paused: bool
    orphaned_at: datetime | None
    next_at: datetime | None
    last_at: datetime | None
    last_id: ExecutionId | None
    fired_count: int
    declared_at: datetime
    changed_at: datetime | None
    changed_by: str | None
    reason: str | None

    @property
    def rule(self) -> Rule:
        return Rule(self.cron, self.every, self.time_zone, self.anchor_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedule:
    """What a worker needs to know to fire a schedule that is due."""

    name: str
    schedule_id: UUID
    rule: Rule
    rule_no: int
    misfire: Misfire
    next_at: datetime


def cron_rule(expression: str, tz: str | tzinfo = "UTC") -> Rule:
    """Build a rule from a cron expression; if it is wrong, raise InvalidInput with the reason."""
    if not isinstance(expression, str):
        raise InvalidInput(field="cron", problem=f"must be text, not {type(expression).__name__}")
    text = " ".join(expression.split())
    if text.startswith("@"):
        if text.lower() not in _MACROS:
            raise InvalidInput(
                field="cron",
                problem=f"{text!r} is not known{near(text.lower(), _MACROS)}",
            )
        text = _MACROS[text.lower()]
    fields = text.split()
    if len(text.encode("utf-8", "surrogatepass")) > MAX_CRON_BYTES:
        raise InvalidInput(field="cron", problem=f"must be at most {MAX_CRON_BYTES} bytes")
    if len(fields) != 5:
        raise InvalidInput(
            field="cron",
            problem=f"{text[:80]!r} has {len(fields)} fields, not five: minute, hour, day of "
            "month, month, day of week. For intervals below a minute use every",
        )
    from cronsim import CronSimError

    rule = Rule(cron=text, time_zone=zone_name(tz))
    try:
        rule.after(_LONG_AGO)
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        raise InvalidInput(field="cron", problem=_cron_problem(fields, str(error))) from error
    return rule


def every_rule(every: timedelta, start: datetime | None = None) -> Rule:
    """Build a rule that fires at equal intervals, counted from `start`.

    If `start` is None, the intervals are counted from the time when the schedule is first declared.
    """
    if not isinstance(every, timedelta):
        raise InvalidInput(
            field="every", problem=f"must be a timedelta, not {type(every).__name__}"
        )
    if not LEAST_EVERY <= every <= MOST_EVERY:
        raise InvalidInput(field="every", problem="must be between a second and a hundred years")
    if start is not None:
        if not isinstance(start, datetime) or start.tzinfo is None:
            raise InvalidInput(field="start", problem="must be a datetime with a time zone")
        if not _FIRST_START <= start < _END_OF_STARTS:
            raise InvalidInput(field="start", problem="must be between the years 1 and 9999")
        start = start.astimezone(UTC)
    return Rule(every=every, anchor=start)


def misfire_rule(misfire: str) -> Misfire:
    try:
        return Misfire(misfire)
    except ValueError:
        words = [str(word) for word in Misfire]
        raise InvalidInput(
            field="misfire", problem=f"must be one of {', '.join(words)}{near(misfire, words)}"
        ) from None


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a dotted version: 1.10.0 becomes (1, 10, 0)."""
    if not isinstance(version, str) or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,7}", version):
        raise InvalidInput(
            field="version",
            problem=f"{version!r} must be one to eight numbers with dots, as in 1.4.2",
        )
    return tuple(int(number) for number in version.split("."))


def zone_name(tz: str | tzinfo) -> str:
    """Return the name of a time zone. `tz` is a name, a ZoneInfo or `datetime.UTC`."""
    from zoneinfo import ZoneInfo

    if isinstance(tz, ZoneInfo) and tz.key:
        tz = tz.key
    if tz is UTC:
        return "UTC"
    if not isinstance(tz, str):
        raise InvalidInput(
            field="tz", problem="must be a name such as Europe/Berlin, or a ZoneInfo with a key"
        )
    zone(tz)
    return tz


@cache
def zone(name: str) -> tzinfo:
    """Return the time zone with this name.

    If there is no such time zone, raise InvalidInput, which suggests a similar name.
    """
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    if name == "UTC":
        return UTC
    if name.lower() == "localtime":
        raise InvalidInput(
            field="tz", problem="localtime differs between machines; use a name: Europe/Berlin"
        )
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        known = available_timezones()
        hint = near(name, known) if known else "; no time zones are installed: install tzdata"
        raise InvalidInput(
            field="tz", problem=f"there is no time zone {name[:64]!r}{hint}"
        ) from error


def near(word: object, known: Iterator[str] | set[str] | dict[str, str] | list[str]) -> str:
    """Return '; did you mean …?' with the most similar known word, or an empty string."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    text = str(word).lower().replace(" ", "_")
    matches = get_close_matches(text, by_lower, n=1)
    if not matches:
        # Suggest Europe/Berlin for Berlin.
        matches = [name for name in sorted(by_lower) if name.endswith(f"/{text}")][:1]
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""


def _cron_problem(fields: list[str], problem: str) -> str:
    """Return a sentence that says which cron field is wrong and which values it allows."""
    name = problem.removeprefix("Bad ")
    if name not in _FIELDS:
        return f"{' '.join(fields)!r}: {problem}"
    index, allowed = _FIELDS[name]
    text = fields[index]
    hint = ""
    if name in ("month", "day-of-week"):
        words = _MONTHS if name == "month" else _WEEKDAYS
        unknown = [w for w in re.findall(r"[A-Za-z]{3,}", text) if w.upper() not in words]
        if unknown:
            hint = near(unknown[0][:3].upper(), words)
    if name == "day-of-month" and text.isdecimal() and 1 <= int(text) <= 31:
        return f"there is no day {text} in month {fields[3]}"
    return f"{name.replace('-', ' ')} {text[:40]!r}: must be {allowed}{hint}"
