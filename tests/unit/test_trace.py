"""Which frames of a traceback are shown: the user's, and how many of ours were left out."""

from __future__ import annotations

import json
import logging
import re
import traceback

import pytest

from flowfabric.core.errors import InvalidInput
from flowfabric.core.trace import LIBRARY, fold, skip_library, trace_of
from flowfabric.tasks.failures import failure_of
from flowfabric.telemetry import JsonFormatter, TextFormatter

OURS = f'  File "{LIBRARY}/worker/runner.py", line 9, in _run\n    value = await prepare()\n'
THREAD = '  File "/usr/lib/python3.11/concurrent/futures/thread.py", line 58, in run\n    fn()\n'
MINE = '  File "/srv/shop/app.py", line 4, in charge\n    raise ValueError("no")\n'
HEAD = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("trace", "shown"),
    [
        (f"{HEAD}{OURS}{MINE}ValueError: no", f"{HEAD}{MINE}ValueError: no\n… 1 frame"),
        (f"{HEAD}{OURS}{THREAD}{MINE}ValueError: no", f"{HEAD}{MINE}ValueError: no\n… 2 frames"),
        # In user code a thread pool is the user's own.
        (f"{HEAD}{MINE}{THREAD}ValueError: no", f"{HEAD}{MINE}{THREAD}ValueError: no"),
        (f"{HEAD}{OURS}{MINE}{OURS}{MINE}E", f"{HEAD}{MINE}{MINE}E\n… 2 frames"),
        (
            f"{HEAD}{OURS}  [Previous line repeated 9 more times]\n{MINE}E",
            f"{HEAD}{MINE}E\n… 1 frame",
        ),
        (f"{HEAD}{MINE}E\n\n{HEAD}{OURS}{MINE}F", f"{HEAD}{MINE}E\n\n{HEAD}{MINE}F\n… 1 frame"),
        # Without a user's frame the trace is ours to read, unless the error says all.
        (f"{HEAD}{OURS}KeyError: 3", f"{HEAD}{OURS}KeyError: 3"),
        (
            f"{HEAD}{OURS}flowfabric.core.errors.InvalidInput: name: is missing",
            f"{HEAD}flowfabric.core.errors.InvalidInput: name: is missing\n… 1 frame",
        ),
        # Not a frame: a message that looks like one.
        (f'{HEAD}{MINE}E: see\n    File "x"', f'{HEAD}{MINE}E: see\n    File "x"'),
    ],
)
def test_the_frames_of_the_library_become_one_line(trace, shown):
    assert fold(trace).removesuffix(" of flowfabric left out") == shown


def raised_through_the_library() -> InvalidInput:
    try:
        fold(None)  # type: ignore[arg-type]
    except AttributeError as error:
        try:
            raise InvalidInput(field="trace", problem="must be a text") from error
        except InvalidInput as refused:
            return refused
    raise AssertionError


def test_a_group_of_errors_keeps_the_frames_of_the_user():
    group = ExceptionGroup("several", [raised_through_the_library()])
    shown = fold("".join(traceback.format_exception(group)))
    assert "test_trace.py" in shown
    assert "core/trace.py" not in shown
    assert shown.endswith("… 1 frame of flowfabric left out")


def test_a_traceback_without_a_frame_of_the_user_stays():
    error = raised_through_the_library().__cause__
    assert error is not None
    assert skip_library(error) is error.__traceback__
    ours = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    assert skip_library(ours) is ours.__traceback__


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_the_message_of_an_error_neither_controls_a_terminal_nor_floods_a_log(formatter):
    error = ValueError(f"red \x1b[31m \ud800 {'x' * 1_000_000}")
    record = logging.LogRecord("n", 40, "", 0, "failed", (), (ValueError, error, None))
    line = formatter.format(record)
    assert "ValueError: red ?[31m ? xxx" in line
    assert len(line) < 5000
    line.encode()


# Controls of ASCII and of C1, DEL, directions and other invisible marks, and what some programs
# take for the end of a line.
CONTROL = "\x00\x07\x0b\x0c\x1b\x1c\x7f\x85\x9b\xad\u200b\u202e\u2028\u2029\u2066\ufeff\ud800"


def test_text_of_a_user_can_neither_control_a_terminal_nor_begin_a_log_line():
    harm = f"a{CONTROL}b\r\n08:00:00 error   forged\n\nc"
    error = ValueError(harm)
    record = logging.LogRecord("n", 40, "", 0, "%s", (harm,), (ValueError, error, None))
    line = TextFormatter().format(record)
    assert not set(CONTROL) & set(line)
    first, *others = line.splitlines()
    assert first.endswith(f" error   a{'?' * len(CONTROL)}b ")
    assert others.count("  08:00:00 error   forged") == 2
    assert all(other.startswith("  ") for other in others if other)
    assert not set(CONTROL) & set(json.loads(JsonFormatter().format(record))["exception"])


def test_a_stored_trace_is_read_with_the_frames_of_the_user_or_with_all():
    error = raised_through_the_library()
    detail = failure_of(error).detail
    assert detail is not None
    assert "core/trace.py" not in trace_of(detail)
    assert "core/trace.py" in trace_of(detail, is_whole=True)
    # The library of the worker may be in another place than that of the reader.
    elsewhere = detail.replace(LIBRARY.encode(), b"/opt/worker/flowfabric")
    assert re.sub(LIBRARY, "", trace_of(elsewhere)) == trace_of(detail)
    assert trace_of(None) == trace_of(b"not json") == ""
