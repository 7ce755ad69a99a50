"""Numbers of attempts. Users and handlers count from 1; columns of the engine count from 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def attempt_number(index: int) -> int:
    """Return the number of an attempt (from 1) for its index (from 0)."""
    return index + 1


def attempt_index(number: int | None) -> int | None:
    """Return the index of an attempt (from 0) for its number (from 1)."""
    return None if number is None else number - 1


def with_attempt_numbers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of the engine, with attempt numbers (from 1) instead of indexes (from 0)."""
    return dict(
        (name.removesuffix("_index"), value if value is None else attempt_number(value))
        if name.endswith("attempt_index")
        else (name, value)
        for name, value in facts.items()
    )
