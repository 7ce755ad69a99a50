"""Colours and progress, as a terminal and a log show them."""

from __future__ import annotations

import asyncio
import io
import re
import sys

import pytest

from flowfabric.cli import output
from flowfabric.cli.output import Progress, screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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
    assert screen().has_colour is is_coloured


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

    async with Progress().during(text):
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

    async with Progress().during(text):
        await enough.wait()
    assert set(log.getvalue().splitlines()) == {"some done"}

    log.truncate(0)
    async with Progress(for_logs=False).during(lambda: "some done"):
        await asyncio.sleep(0.05)
    assert log.getvalue() == ""


async def test_what_is_quick_shows_no_progress(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    async with Progress().during(lambda: "never"):
        await asyncio.sleep(0)
    assert terminal.getvalue() == ""
