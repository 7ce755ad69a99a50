"""Read JSON strictly: refuse NaN and infinite numbers, which Python would accept."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn

NOT_FINITE = "is NaN or infinite, which JSON does not have; send null or a text"


class NotFinite(ValueError):
    """A text contains NaN, Infinity, or a number that is too large for a float. `path` contains the
    names and list indexes that lead to the number.
    """

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        super().__init__("a number is NaN or infinite, which JSON does not have")
        self.path = path


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raise NotFinite for NaN, Infinity and numbers that are too large for a float. Raise ValueError
    for any other text that is not JSON, and RecursionError for a text that is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except NotFinite:
        raise NotFinite(_path_to_number(json.loads(text))) from None


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise NotFinite
    return number


def _refuse(name: str) -> NoReturn:
    raise NotFinite


def _path_to_number(value: Any) -> tuple[str, ...]:
    """Return the path to a NaN or infinite number inside a value."""
    left: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while left:
        path, one = left.pop()
        if isinstance(one, float) and not isfinite(one):
            return path
        if isinstance(one, dict):
            left += [((*path, name), item) for name, item in one.items()]
        elif isinstance(one, list):
            left += [((*path, str(n)), item) for n, item in enumerate(one)]
    return ()  # a later field of the same name has replaced the number
