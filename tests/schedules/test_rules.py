"""When rules fire, and what is done about times that were missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from flowfabric.core.errors import InvalidInput
from flowfabric.core.schedule import (
    GRACE,
    Rule,
    cron_rule,
    every_rule,
    misfire_rule,
    plan,
    version_numbers,
)
from flowfabric.core.states import Misfire

from .wall_clock import firings, utc

EVERY_HOUR = set(range(24))
# An expression, its minutes and hours, and whether it is one of fixed hours.
RULES = {
    "30 2 * * *": ({30}, {2}, True),
    "30 1 * * *": ({30}, {1}, True),
    "0 * * * *": ({0}, EVERY_HOUR, False),
    "* * * * *": (set(range(60)), EVERY_HOUR, False),
    "*/20 2 * * *": ({0, 20, 40}, {2}, False),
    "0,30 0-4 * * *": ({0, 30}, {0, 1, 2, 3, 4}, True),
    "15 2,3 * * *": ({15}, {2, 3}, True),
}
# 60 hours round each change of 2026, and one where the clock moves by half an hour.
CHANGES = {
    "Berlin in spring": ("Europe/Berlin", utc(2026, 3, 29, 1)),
    "Berlin in autumn": ("Europe/Berlin", utc(2026, 10, 25, 1)),
    "New York in spring": ("America/New_York", utc(2026, 3, 8, 7)),
    "New York in autumn": ("America/New_York", utc(2026, 11, 1, 6)),
    "Lord Howe in spring": ("Australia/Lord_Howe", utc(2026, 10, 3, 15, 30)),
    "Lord Howe in autumn": ("Australia/Lord_Howe", utc(2026, 4, 4, 15)),
}
HALF = timedelta(hours=30)
CASES = [
    pytest.param(expression, change, id=f"{expression} {change}")
    for expression in RULES
    for change in CHANGES
]


@pytest.mark.parametrize(("expression", "change"), CASES)
def test_a_rule_fires_as_the_clock_on_the_wall_shows(expression, change):
    zone, moment = CHANGES[change]
    minutes, hours, is_fixed = RULES[expression]
    start, end = moment - HALF, moment + HALF
    rule = cron_rule(expression, zone)
    found = list(takewhile(lambda at: at <= end, rule.times(start)))
    assert found == firings(minutes, hours, zone, start, end, is_fixed=is_fixed)
    assert found


@pytest.mark.parametrize(("expression", "change"), CASES)
def test_the_next_time_is_the_same_wherever_one_asks_from(expression, change):
    """A worker that was restarted asks from another moment than one that went on."""
    zone, moment = CHANGES[change]
    rule = cron_rule(expression, zone)
    start, end = moment - timedelta(hours=4), moment + timedelta(hours=4)
    times = list(takewhile(lambda at: at <= end + timedelta(days=2), rule.times(start)))
    asked = start
    while asked < end:
        assert rule.after(asked) == next(at for at in times if at > asked)
        asked += timedelta(minutes=7, seconds=13)


@pytest.mark.parametrize(("expression", "change"), CASES)
def test_the_latest_time_is_the_last_before_now(expression, change):
    zone, moment = CHANGES[change]
    rule = cron_rule(expression, zone)
    first = rule.after(moment - timedelta(days=20))
    now, end = moment - timedelta(hours=3), moment + timedelta(hours=3)
    times = list(takewhile(lambda at: at <= end, rule.times(now - timedelta(days=2))))
    while now < end:
        assert rule.latest(first, now) == max(at for at in times if at <= now)
        now += timedelta(minutes=11)


def test_the_29th_of_february_comes_every_four_years():
    rule = cron_rule("0 12 29 2 *", "Europe/Berlin")
    assert list(islice(rule.times(utc(2026, 1, 1)), 3)) == [
        utc(2028, 2, 29, 11),
        utc(2032, 2, 29, 11),
        utc(2036, 2, 29, 11),
    ]
    assert rule.latest(utc(2028, 2, 29, 11), utc(2040, 1, 1)) == utc(2036, 2, 29, 11)
    # 2100 is not a leap year
    assert rule.after(utc(2097, 1, 1)) == utc(2104, 2, 29, 11)


def test_equal_steps_do_not_drift():
    anchor = utc(2026, 1, 1, 0, 0, 7)
    rule = every_rule(timedelta(minutes=7), anchor)
    assert rule.after(anchor - timedelta(days=1)) == anchor
    assert rule.after(anchor) == anchor + timedelta(minutes=7)
    late = anchor + timedelta(days=400, seconds=1)
    assert (rule.after(late) - anchor) % timedelta(minutes=7) == timedelta()
    assert rule.after(late) - timedelta(minutes=7) <= late < rule.after(late)
    assert rule.latest(anchor, late) == rule.after(late) - timedelta(minutes=7)


def test_equal_steps_end_with_the_calendar():
    rule = Rule(every=timedelta(days=36525), anchor=utc(2026, 5, 1))
    times = list(rule.times(utc(2026, 5, 2)))
    assert times[0] == rule.after(utc(2026, 5, 2))
    assert times[-1] > utc(9800, 1, 1)


def test_equal_steps_take_no_notice_of_the_clock_on_the_wall():
    rule = every_rule(
        timedelta(hours=24), datetime(2026, 3, 28, 9, tzinfo=ZoneInfo("Europe/Berlin"))
    )
    assert [at.hour for at in islice(rule.times(utc(2026, 3, 27)), 3)] == [8, 8, 8]


# What is done about missed times

EVERY_MINUTE = cron_rule("* * * * *")
NINE = cron_rule("0 9 * * *")


@pytest.mark.parametrize("misfire", Misfire)
def test_a_time_that_is_on_time_fires_under_every_rule(misfire):
    at = utc(2026, 5, 1, 9)
    found = plan(NINE, misfire, at, at + timedelta(seconds=3))
    assert found.fire_ats == [at]
    assert found.next_at == utc(2026, 5, 2, 9)


def test_once_fires_the_latest_for_all_that_were_missed():
    found = plan(NINE, Misfire.ONCE, utc(2026, 5, 1, 9), utc(2026, 5, 4, 12))
    assert found.fire_ats == [utc(2026, 5, 4, 9)]
    assert found.next_at == utc(2026, 5, 5, 9)


def test_skip_fires_nothing_that_was_missed():
    found = plan(NINE, Misfire.SKIP, utc(2026, 5, 1, 9), utc(2026, 5, 4, 12))
    assert found.fire_ats == []
    assert found.next_at == utc(2026, 5, 5, 9)


def test_skip_fires_what_is_only_a_little_late():
    at = utc(2026, 5, 4, 9)
    assert plan(NINE, Misfire.SKIP, utc(2026, 5, 1, 9), at + GRACE).fire_ats == [at]
    late = at + GRACE + timedelta(milliseconds=1)
    assert plan(NINE, Misfire.SKIP, utc(2026, 5, 1, 9), late).fire_ats == []


def test_all_fires_every_time_in_order():
    found = plan(NINE, Misfire.ALL, utc(2026, 5, 1, 9), utc(2026, 5, 4, 12))
    assert found.fire_ats == [utc(2026, 5, day, 9) for day in (1, 2, 3, 4)]
    assert found.next_at == utc(2026, 5, 5, 9)


def test_all_goes_on_where_it_stopped_when_there_are_too_many():
    start, now = utc(2026, 5, 1), utc(2026, 5, 4)
    at, fired = start, []
    while at <= now:
        found = plan(EVERY_MINUTE, Misfire.ALL, at, now, most=1000)
        assert len(found.fire_ats) <= 1000
        fired += found.fire_ats
        at = found.next_at
    assert fired == [start + n * timedelta(minutes=1) for n in range(3 * 24 * 60 + 1)]


def test_years_of_downtime_cost_no_years():
    """The latest of five million times is not found by counting them."""
    found = plan(EVERY_MINUTE, Misfire.ONCE, utc(2016, 1, 1), utc(2026, 1, 1, 0, 0, 30))
    assert found.fire_ats == [utc(2026, 1, 1)]


# What a caller may write


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("61 * * * *", "minute '61': must be 0 to 59"),
        ("0 24 * * *", "hour '24'"),
        ("0 0 31 2 *", "there is no day 31 in month 2"),
        ("0 0 * * MONDAY", "did you mean MON?"),
        ("0 0 * JUNE *", "did you mean JUN?"),
        ("0 0 * * 1-9", "day of week '1-9'"),
        ("@dayly", "did you mean @daily?"),
        ("* * * *", "has 4 fields, not five"),
        ("* * * * * *", "has 6 fields, not five"),
        ("", "has 0 fields"),
        (None, "must be text"),
        ("0 0 0 * *", "day of month '0'"),
        (f"{'1,' * 200}1 0 * * *", "must be at most 256 bytes"),
    ],
)
def test_a_bad_expression_is_told_what_is_wrong(expression, told):
    with pytest.raises(InvalidInput) as caught:
        cron_rule(expression)
    assert caught.value.field == "cron"
    assert told in caught.value.problem


@pytest.mark.parametrize(
    ("zone", "told"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("nowhere at all", "there is no time zone"),
        ("../../etc/passwd", "there is no time zone"),
        (5, "must be a name"),
    ],
)
def test_a_bad_time_zone_is_told_the_nearest(zone, told):
    with pytest.raises(InvalidInput) as caught:
        cron_rule("0 9 * * *", zone)
    assert caught.value.field == "tz"
    assert told in caught.value.problem


def test_a_time_zone_may_be_an_object():
    assert cron_rule("0 9 * * *", ZoneInfo("Europe/Berlin")).time_zone == "Europe/Berlin"
    assert cron_rule("0 9 * * *", UTC).time_zone == "UTC"


def test_names_for_common_rules_are_understood():
    assert cron_rule("@daily") == Rule(cron="0 0 * * *")
    assert cron_rule(" 0  9 * * mon-fri ").after(utc(2026, 5, 2)) == utc(2026, 5, 4, 9)


def test_a_bad_misfire_rule_is_told_the_nearest():
    with pytest.raises(InvalidInput, match="did you mean once") as caught:
        misfire_rule("onse")
    assert caught.value.field == "misfire"


@pytest.mark.parametrize(
    ("every", "start", "field"),
    [
        (5, None, "every"),
        (timedelta(milliseconds=999), None, "every"),
        (timedelta(days=40000), None, "every"),
        (timedelta(hours=1), datetime(2026, 1, 1), "start"),  # noqa: DTZ001
        (timedelta(hours=1), "now", "start"),
        (timedelta(hours=1), datetime.max.replace(tzinfo=UTC), "start"),
        (timedelta(hours=1), datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")), "start"),
    ],
)
def test_bad_steps_are_refused(every, start, field):
    with pytest.raises(InvalidInput) as caught:
        every_rule(every, start)
    assert caught.value.field == field


def test_a_version_is_numbers_with_dots():
    assert version_numbers("1.10.0") == (1, 10, 0)
    for bad in ("", "1.", "v1", "1.2rc1", "1..2", "1.2.3.4.5.6.7.8.9", 1):
        with pytest.raises(InvalidInput) as caught:
            version_numbers(bad)
        assert caught.value.field == "version"


@pytest.mark.parametrize("tz", ["localtime", "Localtime"])
def test_a_zone_that_every_machine_has_for_itself_is_refused(tz):
    with pytest.raises(InvalidInput) as refused:
        cron_rule("0 8 * * *", tz)
    assert refused.value.field == "tz"
    assert "localtime" in refused.value.problem
