"""Tables, times and progress as a terminal shows them."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.cli import output
from flowfabric.cli.output import Column, Progress, Styled, cut, printable, table, text_width
from flowfabric.cli.times import precise, relative, short

COLUMNS = [
    Column("ID"),
    Column("TASK", least=5, keeps_end=True),
    Column("LANE", least=4, drop=1),
    Column("N", is_number=True),
    Column("WHY", least=6),
]
ROWS = [
    ["0190", "app.mail.send", "mail", "3", "because of something long"],
    ["0191", "app.x", "a-very-long-lane", "12", ""],
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_without_a_width_is_not_cut():
    assert table(COLUMNS, ROWS, None) == [
        "ID    TASK           LANE               N  WHY",
        "0190  app.mail.send  mail               3  because of something long",
        "0191  app.x          a-very-long-lane  12",
    ]


@pytest.mark.parametrize("width", range(23, 80))
def test_a_table_fits_its_width(width):
    lines = table(COLUMNS, ROWS, width)
    assert max(map(len, lines)) <= width
    assert all(line.startswith(("ID", "0190", "0191")) for line in lines)
    assert ("LANE" in lines[0]) == (width >= 29)


def test_what_is_cut_says_so():
    assert table(COLUMNS, ROWS, 40)[1] == "0190  …il.send  mail        3  because …"
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"


def test_wide_characters_count_twice():
    assert text_width("日本") == 4
    assert cut("日本語", 5) == "日本…"
    assert cut("日本語", 4) == "日…"
    lines = table([Column("A"), Column("B")], [["日本", "x"], ["abcd", "y"]], None)
    assert lines[1:] == ["日本  x", "abcd  y"]


def test_what_could_steer_the_terminal_is_not_printed():
    assert printable("a\x1b[31mb\nc\td\x07\u202e") == "a?[31mb c d??"
    (_, line) = table([Column("A")], [["a\x1b[2Jb\nc"]], None)
    assert line == "a?[2Jb c"


@pytest.mark.parametrize(
    ("is_terminal", "environment", "is_coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_is_for_terminals(monkeypatch, is_terminal, environment, is_coloured):
    monkeypatch.setattr(sys, "stdout", Terminal() if is_terminal else io.StringIO())
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = table([Column("A"), Column("B")], [[Styled("x", "red"), "y"]], None)[1]
    assert line == ("\x1b[31mx\x1b[0m  y" if is_coloured else "x  y")


@pytest.mark.parametrize(
    ("duration", "at_a_glance", "exactly"),
    [
        (timedelta(0), "0s", "0s"),
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


async def test_progress_is_one_changing_line_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output, "TERMINAL_SECONDS", 0.01)
    told, enough = 0, asyncio.Event()

    def text() -> str:
        nonlocal told
        told += 1
        if told == 4:
            enough.set()
        return f"{told} done"

    async with Progress().telling(text):
        await enough.wait()
    assert re.match(r"\r\x1b\[K1 done\r\x1b\[K2 done\r\x1b\[K3 done", terminal.getvalue())
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()


async def test_progress_is_a_line_now_and_then_in_a_log(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(output, "LOG_SECONDS", 0.01)
    enough = asyncio.Event()

    def text() -> str:
        if "\n" in log.getvalue():
            enough.set()
        return "some done"

    async with Progress().telling(text):
        await enough.wait()
    assert set(log.getvalue().splitlines()) == {"some done"}

    log.truncate(0)
    async with Progress(for_logs=False).telling(lambda: "some done"):
        await asyncio.sleep(0.05)
    assert log.getvalue() == ""


async def test_what_is_quick_shows_no_progress(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    async with Progress().telling(lambda: "never"):
        await asyncio.sleep(0)
    assert terminal.getvalue() == ""
