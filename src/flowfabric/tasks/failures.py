"""Converts exceptions of user code to stored failures."""

from __future__ import annotations

import json
import traceback

from flowfabric.core.execution import Failure
from flowfabric.core.policy import Retry
from flowfabric.core.states import FailureClass
from flowfabric.core.text import printable
from flowfabric.core.trace import LIBRARY, place_of
from flowfabric.tasks.retry_rules import YES, decide

_NAME_BYTES = 256
_REASON_BYTES = 256
# A character may need twice as many bytes in JSON. The database stores at most 64 KiB.
_MESSAGE_BYTES = 4_000
_TRACE_BYTES = 24_000


def failure_of(
    error: BaseException,
    kind: FailureClass = FailureClass.TRANSIENT,
    retry: Retry | None = None,
    attempt: int = 1,
) -> Failure:
    """Convert an exception to a failure with a one-line summary, type, message and traceback.

    If the rules of `retry` exclude the error, the failure is permanent. `attempt` counts from 1.

    This function never raises, and its result always fits the limits of the database. An execution
    whose failure cannot be stored would neither end nor be released.
    """
    decision = YES
    if kind is FailureClass.TRANSIENT:
        decision = decide(error, retry, attempt)
        if not decision.is_allowed:
            kind = FailureClass.PERMANENT
    name = type_of(error)
    message = printable(_message(error)[:_MESSAGE_BYTES])
    trace = _trace(error)[-_TRACE_BYTES:]
    detail = {
        "type": name,
        "message": _head(message, _MESSAGE_BYTES),
        "trace": _tail(printable(trace, lines=True), _TRACE_BYTES),
        # With this, a reader in another process can tell our frames from the user's.
        "library": LIBRARY,
    }
    return Failure(
        kind=kind,
        reason=_one_line(f"{type(error).__name__}: {message}" if message else name, _REASON_BYTES),
        category=name,
        detail=json.dumps(detail, ensure_ascii=False).encode(),
        place=_place(error),
        retry_delay=decision.delay,
        retry_at=decision.at,
    )


def _place(error: BaseException) -> str | None:
    """Return the innermost function of user code that an error came through, or None.

    A function of an installed package is returned only if there is no other function: the fault is
    seldom in a package. The text has no line number, so that it stays the same when code above it
    changes.
    """
    try:
        found = place_of(error)
    except Exception:  # an object that pretends to be a traceback
        return None
    return None if found is None else _one_line(found, _NAME_BYTES)


def type_of(error: BaseException) -> str:
    """Return the module and the name of the class of an error."""
    name = type(error).__qualname__
    if type(error).__module__ != "builtins":
        name = f"{type(error).__module__}.{name}"
    return _one_line(name, _NAME_BYTES)


def message_of(error: BaseException) -> str:
    """Return the message of an error, at most 4000 bytes of it."""
    return _head(printable(_message(error)[:_MESSAGE_BYTES], lines=True), _MESSAGE_BYTES)


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as broken:
        return f"(its traceback cannot be shown: {type(broken).__name__})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"(its message cannot be shown: {type(broken).__name__})"


def _one_line(text: str, most: int) -> str:
    return _head(" ".join(printable(text).split()), most) or "failed"


def _head(text: str, most: int) -> str:
    return text.encode("utf-8", "replace")[:most].decode(errors="ignore")


def _tail(text: str, most: int) -> str:
    return text.encode("utf-8", "replace")[-most:].decode(errors="ignore")
