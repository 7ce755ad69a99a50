"""Why a value cannot travel as JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any


class EncodingError(ValueError):
    """A value would not come back from JSON as it went: where in it, and why, without the value."""

    def __init__(self, problem: str, at: Iterable[Any] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = deque(at)

    def under(self, key: Any) -> EncodingError:
        """The same, seen from what holds the value."""
        self.at.appendleft(key)
        return self

    def field(self, *outer: object) -> str:
        """Where it is, behind the name of the whole."""
        return ".".join(map(str, (*outer, *self.at)))

    def told(self) -> str:
        """Where it is, if not everywhere, and why."""
        where = self.field()
        return f"{where}: {self.problem}" if where else self.problem


def kind_of(value: Any) -> str:
    """The class of a value, in words."""
    kind = type(value)
    name = kind.__qualname__.rpartition("<locals>.")[2]
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def wrong_class(value: Any, wanted: type) -> EncodingError:
    """An object of another class than the hint names."""
    name = wanted.__qualname__.rpartition("<locals>.")[2]
    if not isinstance(value, wanted):
        return EncodingError(f"is {kind_of(value)}, and the hint says {name}")
    own = type(value).__qualname__.rpartition("<locals>.")[2]
    if wanted in (list, tuple, dict, set, frozenset):
        return EncodingError(f"is {kind_of(value)} and would come back as a {name}: make it one")
    return EncodingError(
        f"is {kind_of(value)} and would come back as a plain {name}: let the hint name {own}, by "
        f"itself or in a union such as {own} | {name}, with a field that tells them apart"
    )
