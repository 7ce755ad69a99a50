"""Turns an exception of user code into what is stored about a failed attempt, and back."""

from __future__ import annotations

import json
import traceback
from typing import Any

from flowfabric.core.execution import Failure
from flowfabric.core.states import FailureClass

_REASON_BYTES = 256
_MESSAGE_CHARACTERS = 4_000
_TRACE_CHARACTERS = 16_000


def failure_of(error: BaseException, kind: FailureClass = FailureClass.TRANSIENT) -> Failure:
    """What went wrong: one line for lists, and type, message and trace for whoever debugs it."""
    name = type(error).__qualname__
    if type(error).__module__ != "builtins":
        name = f"{type(error).__module__}.{name}"
    message = _printable(str(error))
    trace = _printable("".join(traceback.format_exception(error)), lines=True)
    detail = {
        "type": name,
        "message": message[:_MESSAGE_CHARACTERS],
        "trace": trace[-_TRACE_CHARACTERS:],
    }
    return Failure(
        kind=kind,
        reason=_one_line(f"{type(error).__name__}: {message}" if message else name),
        category=name[:256],
        detail=json.dumps(detail).encode(),
    )


def facts_of(detail: bytes | None) -> dict[str, Any]:
    """Type, message and trace of a stored failure."""
    if detail is None:
        return {}
    try:
        facts = json.loads(detail)
    except ValueError:
        return {"message": repr(detail[:200])}
    return facts if isinstance(facts, dict) else {"message": str(facts)}


def _one_line(text: str) -> str:
    line = " ".join("".join(ch if ch >= " " and ch != "\x7f" else " " for ch in text).split())
    return line.encode()[:_REASON_BYTES].decode(errors="ignore") or "failed"


def _printable(text: str, *, lines: bool = False) -> str:
    """Text that any JSON reader and any terminal can take."""
    keep = "\n\t" if lines else ""
    clean = "".join(ch if ch >= " " or ch in keep else " " for ch in text)
    return clean.encode("utf-8", "replace").decode()
