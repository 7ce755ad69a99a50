"""Stores the exceptions that steps raised and the handler caught, and restores them."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

from flowfabric.core.errors import FlowFabricError, StepFailed
from flowfabric.core.step import StepRecord
from flowfabric.core.trace import facts_of
from flowfabric.tasks.failures import message_of, type_of

# The size limits of one argument or attribute, and of all attributes together.
_VALUE_BYTES = 16_384
_ATTRIBUTES_BYTES = 65_536


def stored_error(error: Exception) -> bytes:
    """Encode an exception. Never raises.

    Arguments and attributes that are too large or do not fit JSON are left out.
    """
    facts: dict[str, Any] = {"type": type_of(error), "message": message_of(error)}
    args = list(error.args)
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args.append(error.filename)  # its args do not contain the file name
    if _size(args):
        facts["args"] = args
    room = _ATTRIBUTES_BYTES
    attributes = {}
    for name, value in vars(error).items():
        if (size := _size(value)) and size <= room:
            attributes[name] = value
            room -= size
    if attributes:
        facts["attributes"] = attributes
    return json.dumps(facts).encode()


def error_of(record: StepRecord) -> Exception:
    """Restore the exception of a recorded failure.

    The result is a `StepFailed` in two cases: the class of the exception is in no imported module,
    or an exception of this class cannot be made without a call of `__init__`.
    """
    facts = facts_of(record.value)
    kind, message = str(facts.get("type", "")), str(facts.get("message", ""))
    error = _rebuild(kind, message, facts)
    if error is None:
        error = StepFailed(
            f"Step {record.name!r} failed in an earlier run, with {kind}: {message}",
            step=record.name,
            type=kind,
            message=message,
        )
    error.add_note(f"Step {record.name!r} failed in an earlier run and was not called again.")
    return error


def _size(value: object) -> int:
    """Return the length of a value as JSON. Return 0 if the value must be left out, because it is
    too long or cannot be read back unchanged.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        return len(text) if len(text) <= _VALUE_BYTES and json.loads(text) == value else 0
    except Exception:
        return 0


def _rebuild(name: str, message: str, facts: dict[str, Any]) -> Exception | None:
    kind = _find_class(name)
    if kind is None:
        return None
    try:
        args = tuple(facts.get("args", [message]))
        error = kind.__new__(kind, *args)
        if not isinstance(error, OSError):
            error.args = args
        vars(error).update(facts.get("attributes", {}))
    except Exception:
        return None
    if isinstance(error, FlowFabricError):
        vars(error).setdefault("facts", {})
    return error if isinstance(error, kind) else None


def _find_class(name: str) -> type[Exception] | None:
    """Find an exception class by name in the imported modules; import nothing."""
    parts = name.split(".")
    for length in reversed(range(len(parts))):
        found: object = sys.modules.get(".".join(parts[:length]) or "builtins")
        for part in parts[length:]:
            found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None
