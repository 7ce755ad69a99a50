"""Rules round changes of the clock, at midnight above all: some by hand, and random ones against a
look at every minute."""

from __future__ import annotations

import random
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from flowfabric.core.schedule import cron_rule

from .wall_clock import changes, firings, utc

# A zone and the day, in UTC, on which its clock moves.
CHANGES = [
    ("Atlantic/Azores", (2022, 3, 27)),  # 00:00 becomes 01:00
    ("Atlantic/Azores", (2022, 10, 30)),  # 01:00 becomes 00:00
    ("America/Havana", (2022, 3, 13)),  # 00:00 becomes 01:00
    ("America/Havana", (2022, 11, 6)),  # 01:00 becomes 00:00
    ("America/Santiago", (2022, 9, 11)),  # 00:00 becomes 01:00
    ("America/Santiago", (2022, 4, 3)),  # 24:00 becomes 23:00, the day before
    ("Asia/Beirut", (2021, 3, 27)),  # 00:00 becomes 01:00
    ("Asia/Beirut", (2021, 10, 30)),  # 24:00 becomes 23:00
    ("Africa/Cairo", (2014, 5, 15)),  # 00:00 becomes 01:00
    ("Africa/Cairo", (2014, 9, 25)),  # 24:00 becomes 23:00
    ("America/Asuncion", (2021, 10, 3)),  # 00:00 becomes 01:00
    ("America/St_Johns", (2010, 3, 14)),  # 00:01 becomes 01:01
    ("America/St_Johns", (2010, 11, 7)),  # 00:01 becomes 23:01, the day before
    ("Australia/Lord_Howe", (2026, 10, 3)),  # 02:00 becomes 02:30
    ("Australia/Lord_Howe", (2026, 4, 4)),  # 02:00 becomes 01:30
    ("Antarctica/Troll", (2022, 3, 27)),  # 01:00 becomes 03:00
    ("Antarctica/Troll", (2022, 10, 30)),  # 03:00 becomes 01:00
    ("Pacific/Apia", (2011, 12, 30)),  # the 30th is left out
    ("Pacific/Apia", (2012, 3, 31)),  # 04:00 becomes 03:00
    ("Pacific/Chatham", (2022, 9, 24)),  # 02:45 becomes 03:45
    ("Asia/Pyongyang", (2015, 8, 14)),  # 00:00 becomes 23:30, for good
    ("Africa/Casablanca", (2022, 5, 8)),  # 02:00 becomes 03:00, behind Ramadan
    ("Europe/Dublin", (2022, 10, 30)),  # summer is the standard time there
    ("Europe/Berlin", (2026, 3, 29)),
    ("Europe/Berlin", (2026, 10, 25)),
    ("America/New_York", (2026, 3, 8)),
    ("America/New_York", (2026, 11, 1)),
]
RULE_COUNT = 219
SPAN = timedelta(hours=40)
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True)
class Drawn:
    """A rule as text and, drawn together with it, what the text means."""

    text: str
    minutes: set[int]
    hours: set[int]
    days: set[int]
    is_last_day: bool
    months: set[int]
    weekdays: set[int]
    nth: int | None
    is_either: bool
    is_fixed: bool

    def is_day(self, day: date) -> bool:
        is_last = day.day == monthrange(day.year, day.month)[1]
        by_date = day.day in self.days or (self.is_last_day and is_last)
        by_name = day.isoweekday() % 7 in self.weekdays
        if self.nth is not None:
            by_name = by_name and (day.day - 1) // 7 + 1 == self.nth
        is_named = (by_date or by_name) if self.is_either else (by_date and by_name)
        return is_named and day.month in self.months


def number_field(dice: random.Random, size: int, favourites: list[int]) -> tuple[str, set[int]]:
    """A field of minutes or hours, which likes to name the favourites."""
    every = set(range(size))
    kind = dice.choice(["star", "steps", "one", "list", "range", "stepped range", "from"])
    one = dice.choice(favourites) if dice.random() < 0.7 else dice.randrange(size)
    step = dice.choice([2, 3, 5, 7, 15, 20, 30])
    last = min(size - 1, one + dice.randrange(6))
    match kind:
        case "star":
            return "*", every
        case "steps":
            return f"*/{step}", set(range(0, size, step))
        case "one":
            return f"{one}", {one}
        case "list":
            chosen = {one, *dice.sample(range(size), 2)}
            return ",".join(map(str, sorted(chosen))), chosen
        case "range":
            return f"{one}-{last}", set(range(one, last + 1))
        case "stepped range":
            return f"0-{size - 1}/{step}", set(range(0, size, step))
        case _:
            return f"{one}/{step}", set(range(one, size, step))


def draw(dice: random.Random, day: date) -> Drawn:
    """A rule that is likely to have something to do on this day and its neighbours."""
    minute, minutes = number_field(dice, 60, [0, 1, 15, 29, 30, 31, 45, 59])
    hour, hours = number_field(dice, 24, [0, 0, 1, 1, 2, 3, 22, 23])
    near = [day + timedelta(days=n) for n in (-1, 0, 0, 1)]
    chosen = dice.choice(near)
    days, is_last_day, day_text = set(range(1, 32)), False, "*"
    match dice.choice(["star", "star", "one", "steps", "last"]):
        case "one":
            days, day_text = {chosen.day}, f"{chosen.day}"
        case "steps":
            days, day_text = set(range(1, 32, 2)), "*/2"
        case "last":
            days, is_last_day, day_text = set(), True, "L"
    months, month_text = set(range(1, 13)), "*"
    if dice.random() < 0.3:
        months, month_text = {chosen.month}, f"{chosen.month}"
    weekdays, nth, weekday_text = set(range(7)), None, "*"
    name = chosen.isoweekday() % 7
    match dice.choice(["star", "star", "one", "name", "nth"]):
        case "one":
            weekdays, weekday_text = {name}, dice.choice([f"{name}", f"{name or 7}"])
        case "name":
            weekdays, weekday_text = {name}, WEEKDAYS[name]
        case "nth":
            weekdays, nth = {name}, (chosen.day - 1) // 7 + 1
            weekday_text = f"{WEEKDAYS[name]}#{nth}"
    return Drawn(
        text=f"{minute} {hour} {day_text} {month_text} {weekday_text}",
        minutes=minutes,
        hours=hours,
        days=days,
        is_last_day=is_last_day,
        months=months,
        weekdays=weekdays,
        nth=nth,
        is_either=not day_text.startswith("*") and not weekday_text.startswith("*"),
        is_fixed=not minute.startswith("*") and not hour.startswith("*"),
    )


def compare(drawn: Drawn, zone: str, start: datetime, end: datetime, dice: random.Random) -> int:
    """The rule's times in the span are those of the wall, from wherever one asks; how many."""
    expected = firings(
        drawn.minutes,
        drawn.hours,
        zone,
        start,
        end,
        is_fixed=drawn.is_fixed,
        is_day=drawn.is_day,
    )
    rule = cron_rule(drawn.text, zone)
    assert list(takewhile(lambda at: at <= end, rule.times(start))) == expected, drawn.text
    for near in (1, 1, 1, 1, 1, 0.1, 0.1, 0.05, 0.05):
        asked = start + (0.5 + near * (dice.random() - 0.5)) * (end - start)
        later = [at for at in expected if at > asked]
        assert rule.after(asked) == later[0] if later else rule.after(asked) > end, drawn.text
        if len(expected) > len(later):
            earlier = expected[-len(later) - 1]
            assert rule.latest(expected[0], asked) == earlier, drawn.text
    return len(expected)


@pytest.mark.parametrize(
    "number", range(len(CHANGES)), ids=lambda n: " ".join(map(str, CHANGES[n]))
)
def test_random_rules_fire_as_the_clock_on_the_wall_shows(number):
    zone, when = CHANGES[number]
    around = utc(*when)
    [moment] = changes(zone, around - timedelta(hours=4), around + timedelta(hours=28))
    start, end = moment - SPAN, moment + SPAN
    dice = random.Random(f"{zone} {when}")
    rule_count = len(range(number, RULE_COUNT, len(CHANGES)))
    day = moment.astimezone(ZoneInfo(zone)).date()
    fired = [compare(draw(dice, day), zone, start, end, dice) for _ in range(rule_count)]
    assert any(fired)


# A rule, its zone, where one asks from, and the times that follow.
BY_HAND = [
    # Hour 1 is there, right behind the change.
    (
        "*/30 1 * * 0",
        "Atlantic/Azores",
        (2022, 3, 26),
        [(2022, 3, 27, 1), (2022, 3, 27, 1, 30), (2022, 4, 3, 1)],
    ),
    (
        "*/30 1 27 3 *",
        "Atlantic/Azores",
        (2022, 3, 26),
        [(2022, 3, 27, 1), (2022, 3, 27, 1, 30), (2023, 3, 27, 1)],
    ),
    # Hour 0 is not there on that Sunday, and hour 1 is not named.
    ("* 0 * * 0", "America/Havana", (2022, 3, 13), [(2022, 3, 20, 4), (2022, 3, 20, 4, 1)]),
    ("* 0 * * 0", "America/Santiago", (2022, 9, 11), [(2022, 9, 18, 3), (2022, 9, 18, 3, 1)]),
    # A fixed time that is left out comes right behind the change, on the day it names.
    ("30 0 * * 0", "America/Havana", (2022, 3, 13), [(2022, 3, 13, 5), (2022, 3, 20, 4, 30)]),
    # Also where a whole day is left out; what falls together fires once.
    ("0 8,9 30 12 *", "Pacific/Apia", (2011, 12, 1), [(2011, 12, 30, 10), (2012, 12, 29, 18)]),
    ("0 0 31 12 *", "Pacific/Apia", (2011, 12, 1), [(2011, 12, 30, 10), (2012, 12, 30, 10)]),
    # The hour that comes twice belongs to two days: 23:01 follows 00:00.
    (
        "0 * 6,7 11 *",
        "America/St_Johns",
        (2010, 11, 7, 1, 30),
        [(2010, 11, 7, 2, 30), (2010, 11, 7, 3, 30), (2010, 11, 7, 4, 30)],
    ),
    (
        "*/30 23 6 11 *",
        "America/St_Johns",
        (2010, 11, 7, 1),
        [(2010, 11, 7, 1, 30), (2010, 11, 7, 2), (2010, 11, 7, 3)],
    ),
]


@pytest.mark.parametrize(
    ("text", "zone", "asked", "times"), BY_HAND, ids=[f"{row[0]} {row[1]}" for row in BY_HAND]
)
def test_a_rule_at_midnight_names_its_own_hours_only(text, zone, asked, times):
    found = islice(cron_rule(text, zone).times(utc(*asked)), len(times))
    assert list(found) == [utc(*at) for at in times]
