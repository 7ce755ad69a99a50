"""Tracebacks of user code: leave out flowfabric's own frames, and read stored failures."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

LIBRARY = str(Path(__file__).parents[1])

_FRAME = re.compile(r'([ |]*)File "([^"]*)", line \d+, in ')
# Standard modules through which the library calls user code: threads, tasks, context managers.
_PASSAGES = tuple(
    str(Path(*name.split("/")))
    for name in (
        "concurrent/futures/thread.py",
        "concurrent/futures/_base.py",
        "asyncio/futures.py",
        "asyncio/tasks.py",
        "asyncio/threads.py",
        "contextlib.py",
    )
)


def skip_library(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error, starting at the first frame of user code.

    If no frame is of user code, return the whole traceback.
    """
    trace, follows = error.__traceback__, False
    while trace is not None:
        follows = _is_library(trace.tb_frame.f_code.co_filename, LIBRARY, follows=follows)
        if not follows:
            return trace
        trace = trace.tb_next
    return error.__traceback__


def place_of(error: BaseException) -> str | None:
    """Return the innermost function of user code that an error came through, with its module.

    A function of the standard library or of an installed package is returned only if the error came
    through no function of the app.
    """
    place = outside = None
    trace, follows = error.__traceback__, False
    while trace is not None:
        code = trace.tb_frame.f_code
        follows = _is_library(code.co_filename, LIBRARY, follows=follows)
        if not follows:
            name = f"{trace.tb_frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
            if code.co_filename.startswith(_installed()):
                outside = name
            else:
                place = name
        trace = trace.tb_next
    return place or outside


@cache
def _installed() -> tuple[str, ...]:
    """Return the folders of Python's own modules and of installed packages."""
    import sysconfig  # imported here: only a failure needs it

    return tuple({*sysconfig.get_paths().values()} - {sys.prefix, sys.base_prefix})


def fold(trace: str, library: str = LIBRARY) -> str:
    """Remove flowfabric's own frames from the text of a traceback, and say how many were removed.

    If all frames are flowfabric's own, they are removed only if flowfabric defines the class of the
    error.
    """
    kept: list[str] = []
    user_frames = folded = 0
    follows, body = False, None
    lines = trace.rstrip("\n").split("\n")
    for line in lines:
        if (frame := _FRAME.match(line)) is not None:
            follows = _is_library(frame[2], library, follows=follows)
            body = frame[1]
            folded += follows
            user_frames += not follows
        elif body is None or not line.startswith((f"{body}  ", f"{body}[Previous line repeated")):
            follows, body = False, None
        if not follows:
            kept.append(line)
    if not folded or not (user_frames or _is_of_library(lines)):
        return trace.rstrip("\n")
    frames = "frame" if folded == 1 else "frames"
    return "\n".join([*kept, f"… {folded} {frames} of flowfabric left out"])


def facts_of(detail: bytes | None) -> dict[str, Any]:
    """Return the facts of a stored failure by name, such as its type, message and trace."""
    if detail is None:
        return {}
    try:
        facts = json.loads(detail)
    except (ValueError, RecursionError):
        return {"message": repr(detail[:200])}
    return facts if isinstance(facts, dict) else {"message": str(facts)}


def trace_of(detail: bytes | None, *, is_whole: bool = False) -> str:
    """Return the trace of a stored failure: whole, or only the frames of user code."""
    facts = facts_of(detail)
    trace = str(facts.get("trace") or "").rstrip("\n")
    return trace if is_whole or not trace else fold(trace, str(facts.get("library") or LIBRARY))


def _is_library(file: str, library: str, *, follows: bool) -> bool:
    """Return whether a frame of a traceback counts as flowfabric's own.

    flowfabric calls user code through some modules of Python, such as asyncio. A frame of such a
    module also counts if the previous frame counts. `follows` says whether the previous frame
    counts.
    """
    return file.startswith(library + os.sep) or (follows and file.endswith(_PASSAGES))


def _is_of_library(lines: Iterable[str]) -> bool:
    return any(line.startswith("flowfabric.core.errors.") for line in lines)
