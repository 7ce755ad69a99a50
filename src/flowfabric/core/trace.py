"""Tracebacks of user code: which frames are the library's own, and what a stored failure says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

LIBRARY = str(Path(__file__).parents[1])

_FRAME = re.compile(r'([ |]*)File "([^"]*)", line \d+, in ')
# Where the library's calls pass on their way to user code: threads, tasks and context managers.
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
    """Return the traceback of an error from the first frame of user code on.

    An error without such a frame keeps its traceback.
    """
    trace, follows = error.__traceback__, False
    while trace is not None:
        follows = _is_library(trace.tb_frame.f_code.co_filename, LIBRARY, follows=follows)
        if not follows:
            return trace
        trace = trace.tb_next
    return error.__traceback__


def fold(trace: str, library: str = LIBRARY) -> str:
    """Return the text of a traceback without the library's frames, and say how many there were.

    A trace without a frame of user code stays whole, unless the error itself is the library's.
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
    """Read type, message and trace of a stored failure."""
    if detail is None:
        return {}
    try:
        facts = json.loads(detail)
    except (ValueError, RecursionError):
        return {"message": repr(detail[:200])}
    return facts if isinstance(facts, dict) else {"message": str(facts)}


def trace_of(detail: bytes | None, *, is_whole: bool = False) -> str:
    """Return the trace of a stored failure, with all frames or with those of user code."""
    facts = facts_of(detail)
    trace = str(facts.get("trace") or "").rstrip("\n")
    return trace if is_whole or not trace else fold(trace, str(facts.get("library") or LIBRARY))


def _is_library(file: str, library: str, *, follows: bool) -> bool:
    """Tell whether a frame is the library's; `follows` says whether the one before it is."""
    return file.startswith(library + os.sep) or (follows and file.endswith(_PASSAGES))


def _is_of_library(lines: Iterable[str]) -> bool:
    return any(line.startswith("flowfabric.core.errors.") for line in lines)
