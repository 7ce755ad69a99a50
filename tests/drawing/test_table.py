"""Tables, records, JSON and times as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from uuid import UUID

import pytest

from flowfabric.drawing.plain import json_line
from flowfabric.drawing.table import Column, record, table
from flowfabric.drawing.text import Screen, Styled, cut, printable, text_width
from flowfabric.drawing.times import precise, relative, short, until

COLUMNS = [
    Column("ID", itemgetter(0)),
    Column("TASK", itemgetter(1), least=5, keeps_end=True),
    Column("LANE", itemgetter(2), least=4, drop=1),
    Column("N", itemgetter(3), is_number=True),
    Column("HIDDEN", itemgetter(9), is_shown=False),
    Column("WHY", itemgetter(4), least=6),
]
ROWS = [
    ["0190", "app.mail.send", "mail", "3", "because of something long"],
    ["0191", "app.x", "a-very-long-lane", "12", ""],
]
TWO = [Column("A", itemgetter(0)), Column("B", itemgetter(1))]


def test_a_table_without_a_width_is_not_cut():
    assert table(COLUMNS, ROWS, Screen()) == [
        "ID    TASK           LANE               N  WHY",
        "0190  app.mail.send  mail               3  because of something long",
        "0191  app.x          a-very-long-lane  12",
    ]


@pytest.mark.parametrize("width", range(23, 80))
def test_a_table_fits_its_width(width):
    lines = table(COLUMNS, ROWS, Screen(width))
    assert max(map(len, lines)) <= width
    assert all(line.startswith(("ID", "0190", "0191")) for line in lines)
    assert ("LANE" in lines[0]) == (width >= 29)


def test_what_is_cut_says_so():
    assert table(COLUMNS, ROWS, Screen(40))[1] == "0190  …il.send  mail        3  because …"
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"


def test_wide_characters_count_twice():
    assert text_width("日本") == 4
    assert cut("日本語", 5) == "日本…"
    assert cut("日本語", 4) == "日…"
    lines = table(TWO, [["日本", "x"], ["abcd", "y"]], Screen())
    assert lines[1:] == ["日本  x", "abcd  y"]


def test_what_could_control_the_terminal_is_not_printed():
    assert printable("a\x1b[31mb\nc\td\x07\u202e\u2028\u2029") == "a?[31mb c d????"
    (_, line) = table(TWO[:1], [["a\x1b[2Jb\nc"]], Screen())
    assert line == "a?[2Jb c"
    assert record([("name", "a\x1b[2Jb\nc")], Screen()) == ["name  a?[2Jb c"]


@pytest.mark.parametrize("has_colour", [True, False])
def test_a_colour_is_shown_where_there_are_colours(has_colour):
    screen = Screen(has_colour=has_colour)
    red = "\x1b[31mx\x1b[0m" if has_colour else "x"
    assert table(TWO, [[Styled("x", "red"), "y"]], screen)[1] == f"{red}  y"
    assert record([("a", [Styled("x", "red"), "y"])], screen) == [f"a  {red}  y"]


def test_a_record_leaves_out_facts_without_a_text():
    facts = [("state", "failed"), ("tags", ""), ("creator", None), ("", "more"), ("namespace", "n")]
    assert record(facts, Screen(), indent=1) == [
        " state      failed",
        "            more",
        " namespace  n",
    ]


@dataclass
class Thing:
    id: UUID
    at: datetime
    took: timedelta
    needs: frozenset[str]
    reason: str | None
    detail: dict[str, object]


def test_a_record_is_one_json_line_without_the_facts_that_are_null():
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    thing = Thing(UUID(int=1), now, timedelta(minutes=1), frozenset("ba"), None, {"x": None})
    assert json.loads(json_line(thing)) == {
        "id": str(UUID(int=1)),
        "at": now.isoformat(),
        "took": 60,
        "needs": ["a", "b"],
        "detail": {"x": None},
    }


@pytest.mark.parametrize(
    ("duration", "at_a_glance", "exactly"),
    [
        (timedelta(0), "0s", "0s"),
        (timedelta(microseconds=1500), "2ms", "2ms"),
        (timedelta(milliseconds=-999), "999ms", "999ms"),
        (timedelta(milliseconds=999.6), "0s", "1s"),
        (timedelta(seconds=99), "99s", "1m39s"),
        (timedelta(minutes=59, seconds=59), "59m", "59m59s"),
        (timedelta(hours=3, minutes=59), "3h", "3h59m"),
        (timedelta(hours=2), "2h", "2h"),
        (timedelta(days=3, hours=1, minutes=5), "3d", "3d1h"),
        (timedelta(days=3, minutes=5), "3d", "3d"),
        (timedelta(seconds=-5), "5s", "5s"),
    ],
)
def test_lengths_of_time(duration, at_a_glance, exactly):
    assert (short(duration), precise(duration)) == (at_a_glance, exactly)


def test_moments_say_how_far_away_they_are():
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert relative(now + timedelta(hours=2), now) == "2026-05-01 14:00:00 UTC (in 2h)"
    assert relative(now - timedelta(hours=2), now) == "2026-05-01 10:00:00 UTC (2h ago)"
    assert until(now + timedelta(hours=2), now) == "in 2h"
    assert [until(now, now), until(now, now, past="due"), until(None, now)] == ["now", "due", "-"]
