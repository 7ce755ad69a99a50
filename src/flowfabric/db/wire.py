"""Arguments and rows as JSON, for calls of the engine over HTTP.

A value of a type that JSON does not have becomes an object with one field, such as {"uuid": "…"}.
No other value becomes an object, because the engine takes and returns JSON documents as texts.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from flowfabric.core.errors import InvalidInput

# Arguments are values, arrays, or arrays of arrays.
MAX_DEPTH = 4
_MICROSECOND = timedelta(microseconds=1)

# A number with more digits would take seconds to become an integer.
_MOST_DIGITS = 1000


def _decimal(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite() or max(len(text), abs(number.adjusted())) > _MOST_DIGITS:
        raise ValueError("is not a number, or is too long")
    return number


_READERS: Mapping[str, tuple[type, Callable[[Any], Any]]] = {
    "uuid": (str, UUID),
    "at": (str, datetime.fromisoformat),
    "us": (int, lambda number: timedelta(microseconds=number)),
    "base64": (str, lambda text: b64decode(text, validate=True)),
    "decimal": (str, _decimal),
}


def encode(value: Any) -> Any:
    """Convert an argument, or a value in a row, to JSON data."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case UUID():
            return {"uuid": str(value)}
        case datetime():
            return {"at": value.isoformat()}
        case timedelta():
            return {"us": value // _MICROSECOND}
        case bytes():
            return {"base64": b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case list() | tuple():
            return [encode(one) for one in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def decode(field: str, value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return the value that `encode` was given; raise InvalidInput for any other JSON data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        if depth == 0:
            raise InvalidInput(field=field, problem="is nested too deeply")
        return [decode(field, one, depth - 1) for one in value]
    kind, text = next(iter(value.items()), (None, None))
    known, read = _READERS.get(str(kind), (None, None))
    if len(value) != 1 or known is None or read is None or type(text) is not known:
        raise InvalidInput(
            field=field, problem=f"must be a value, or an object with one of: {', '.join(_READERS)}"
        )
    try:
        return read(text)
    except (ValueError, ArithmeticError) as error:
        raise InvalidInput(field=field, problem=f"is not a valid {kind}") from error


class Row(tuple[Any, ...]):
    """A row whose values can be read by number and by name, as in a record of the driver."""

    __slots__ = ()
    names: Mapping[str, int]

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names[key] if isinstance(key, str) else key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self.names else default

    def keys(self) -> list[str]:
        return list(self.names)

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self.names]


def row_type(columns: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these columns."""
    names = {name: position for position, name in enumerate(columns)}
    return type("Row", (Row,), {"__slots__": (), "names": names})
