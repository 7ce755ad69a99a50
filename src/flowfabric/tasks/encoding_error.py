"""The error for a value that cannot be stored as JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any


class EncodingError(ValueError):
    """Raised for a value that cannot be stored as JSON, or would read back as another value.

    The error says where and why, but does not contain the value.
    """

    def __init__(self, problem: str, at: Iterable[Any] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = deque(at)

    def under(self, key: Any) -> EncodingError:
        """Add `key` to the front of the path, and return this error."""
        self.at.appendleft(key)
        return self

    def field(self, *outer: object) -> str:
        """Return the path to the value, with the names in `outer` in front."""
        return ".".join(map(str, (*outer, *self.at)))

    def describe(self) -> str:
        """Return the problem as text. If there is a path to the value, the text begins with it."""
        where = self.field()
        return f"{where}: {self.problem}" if where else self.problem


def kind_of(value: Any) -> str:
    """Return the class name of a value with its article, such as "an int"."""
    kind = type(value)
    name = kind.__qualname__.rpartition("<locals>.")[2]
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def wrong_class(value: Any, wanted: type) -> EncodingError:
    """Return the error for an object that does not have the class of its type hint."""
    name = wanted.__qualname__.rpartition("<locals>.")[2]
    if not isinstance(value, wanted):
        return EncodingError(f"is {kind_of(value)}, but the hint is {name}")
    own = type(value).__qualname__.rpartition("<locals>.")[2]
    if wanted in (list, tuple, dict, set, frozenset):
        return EncodingError(f"is {kind_of(value)} and would read back as a {name}: convert it")
    return EncodingError(
        f"is {kind_of(value)} and would read back as a plain {name}: name {own} in the hint, alone "
        f"or in a union such as {own} | {name} with a field that tells them apart"
    )
