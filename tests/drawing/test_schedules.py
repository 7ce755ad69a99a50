"""Rules of schedules in words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.core.schedule import cron_rule, every_rule
from flowfabric.drawing.schedules import in_words


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 9 * * 1-5", "at 09:00 on Monday to Friday, UTC"),
        ("@daily", "at 00:00 every day, UTC"),
        ("@hourly", "at minute 0 of every hour every day, UTC"),
        ("* * * * *", "every minute every day, UTC"),
        ("*/15 * * * *", "every 15 minutes every day, UTC"),
        ("*/10 9-17 * * MON,WED", "every 10 minutes of hours 9 to 17 on Monday and Wednesday, UTC"),
        ("0,30 8,20 * * *", "at 08:00, 08:30, 20:00 and 20:30 every day, UTC"),
        ("5 */2 * * *", "at minute 5 of every second hour every day, UTC"),
        ("5 */3 * * *", "at minute 5 of every 3rd hour every day, UTC"),
        ("0 6 1,15 * *", "at 06:00 on days 1 and 15 of the month, UTC"),
        ("0 6 L * *", "at 06:00 on the last day of the month, UTC"),
        ("0 6 * * MON#2", "at 06:00 on the second Monday of the month, UTC"),
        ("0 6 * * 5L", "at 06:00 on the last Friday of the month, UTC"),
        ("0 6 1 * 1", "at 06:00 on day 1 of the month, and on Monday, UTC"),
        ("@yearly", "at 00:00 on day 1 of the month in January, UTC"),
        ("0 0 1 JAN-MAR,7 *", "at 00:00 on day 1 of the month in January to March and July, UTC"),
        ("0 0 1 */3 *", "at 00:00 on day 1 of the month in every 3rd month, UTC"),
        ("0 0 */2 * *", "at 00:00 on every second day of the month, UTC"),
        ("1-30/7 1 * * *", "at minutes 1 to 30 in steps of 7 of hour 1 every day, UTC"),
    ],
)
def test_a_cron_expression_is_said_in_words(cron, words):
    assert in_words(cron_rule(cron)) == words


def test_an_interval_and_a_time_zone_are_said_in_words():
    assert in_words(every_rule(timedelta(minutes=15))) == "every 15 minutes"
    assert in_words(every_rule(timedelta(days=1))) == "every day"
    assert in_words(every_rule(timedelta(seconds=90))) == "every 90 seconds"
    words = in_words(cron_rule("0 9 * * *", tz="Europe/Berlin"))
    assert words == "at 09:00 every day, Europe/Berlin time"
