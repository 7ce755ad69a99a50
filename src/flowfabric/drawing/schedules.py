"""Writes the rule of a schedule in words: `0 9 * * 1` becomes `at 09:00 on Monday, UTC`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from flowfabric.core.schedule import Rule

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
_NUMBERS = {name[:3].upper(): str(n) for n, name in enumerate(_DAYS[:7])} | {
    name[:3].upper(): str(n) for n, name in enumerate(_MONTHS) if name
}
_ORDINALS = {"1": "first", "2": "second", "3": "third", "4": "fourth", "5": "fifth"}
_UNITS = (
    (timedelta(days=1), "day"),
    (timedelta(hours=1), "hour"),
    (timedelta(minutes=1), "minute"),
    (timedelta(seconds=1), "second"),
)
# Up to this many times of the day are listed one by one.
_TIMES_LISTED = 6


def in_words(rule: Rule) -> str:
    """Return when a rule fires, as a person would say it."""
    if rule.every is not None:
        return _every(rule.every)
    assert rule.cron is not None
    minute, hour, day, month, weekday = (_plain(one) for one in rule.cron.split())
    parts = [_times(minute, hour), _days(day, weekday), _months(month)]
    zone = rule.time_zone if rule.time_zone == "UTC" else f"{rule.time_zone} time"
    return f"{' '.join(part for part in parts if part)}, {zone}"


def _every(every: timedelta) -> str:
    for size, unit in _UNITS:
        number, rest = divmod(every, size)
        if number and not rest:
            return f"every {unit}" if number == 1 else f"every {number} {unit}s"
    return f"every {every}"


def _plain(field: str) -> str:
    """Return a cron field with names replaced by numbers, and with */1 replaced by *."""
    text = re.sub(r"[A-Za-z]{3}", lambda found: _NUMBERS.get(found[0].upper(), found[0]), field)
    return "*" if text in ("*/1", "?") else text


def _times(minute: str, hour: str) -> str:
    minutes, hours = _values(minute), _values(hour)
    if minutes and hours and len(minutes) * len(hours) <= _TIMES_LISTED:
        return f"at {_join([f'{h:02}:{m:02}' for h in hours for m in minutes])}"
    within = _range("hour", hour)
    if minute == "*":
        return f"every minute{f' of {within}' if within else ''}"
    if (step := _step(minute)) is not None:
        return f"every {step} minutes{f' of {within}' if within else ''}"
    at = _range("minute", minute)
    if hour == "*":
        return f"at {at} of every hour"
    if (step := _step(hour)) is not None:
        return f"at {at} of every {_nth(step)} hour"
    return f"at {at} of {within}"


def _days(day: str, weekday: str) -> str:
    on_day = "" if day == "*" else f"on {_month_day(day)}"
    on_weekday = "" if weekday == "*" else f"on {_weekday(weekday)}"
    if on_day and on_weekday:
        return f"{on_day}, and {on_weekday}"
    return on_day or on_weekday or "every day"


def _month_day(day: str) -> str:
    if day == "L":
        return "the last day of the month"
    if (step := _step(day)) is not None:
        return f"every {_nth(step)} day of the month"
    return f"{_range('day', day)} of the month"


def _weekday(weekday: str) -> str:
    names = []
    for one in weekday.split(","):
        if found := re.fullmatch(r"([0-7])#([1-5])", one):
            names.append(f"the {_ORDINALS[found[2]]} {_DAYS[int(found[1])]} of the month")
        elif found := re.fullmatch(r"([0-7])L", one):
            names.append(f"the last {_DAYS[int(found[1])]} of the month")
        elif found := re.fullmatch(r"([0-7])-([0-7])", one):
            names.append(f"{_DAYS[int(found[1])]} to {_DAYS[int(found[2])]}")
        elif re.fullmatch("[0-7]", one):
            names.append(_DAYS[int(one)])
        else:
            names.append(f"weekday {one}")
    return _join(names)


def _months(month: str) -> str:
    if month == "*":
        return ""
    if (step := _step(month)) is not None:
        return f"in every {_nth(step)} month"
    names = []
    for one in month.split(","):
        ends = one.split("-")
        if all(end.isdecimal() and 1 <= int(end) <= 12 for end in ends):
            names.append(" to ".join(_MONTHS[int(end)] for end in ends))
        else:
            names.append(f"month {one}")
    return f"in {_join(names)}"


def _values(field: str) -> list[int]:
    """Return the numbers in a field of cron, or [] if the field is not a list of numbers."""
    parts = field.split(",")
    return sorted(map(int, parts)) if all(part.isdecimal() for part in parts) else []


def _range(unit: str, field: str) -> str:
    """Describe a field of cron with its unit: minute 5, hours 9 to 17. Return '' for *."""
    if field == "*":
        return ""
    parts = [part.replace("-", " to ").replace("/", " in steps of ") for part in field.split(",")]
    is_one = len(parts) == 1 and parts[0].isdecimal()
    return f"{unit if is_one else unit + 's'} {_join(parts)}"


def _step(field: str) -> str | None:
    found = re.fullmatch(r"\*/(\d+)", field)
    return found[1] if found else None


def _nth(number: str) -> str:
    if number == "2":
        return "second"
    ending = "th" if number[-2:] in ("11", "12", "13") else {"1": "st", "3": "rd"}.get(number[-1])
    return f"{number}{ending or ('nd' if number[-1] == '2' and number != '12' else 'th')}"


def _join(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
