"""Turns the outcome words that the engine returns for an item into answers and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from flowfabric.client.batching import BUSY, Busy
from flowfabric.core.errors import FlowFabricError

Answer = TypeVar("Answer")


def refusal(outcome: str, detail: str | None, **facts: Any) -> FlowFabricError:
    """The error that an outcome word stands for."""
    told: dict[str, Any] = json.loads(detail) if detail else {}
    return FlowFabricError.from_engine(outcome, {**facts, **told})


def answers(
    size: int, plain: Answer, rows: Iterable[Sequence[Any]], *, same: str
) -> list[Answer | Exception | Busy]:
    """One answer per item: `plain`, unless a row (item, outcome, detail) says something else.

    `same` is the word for a repeat that got its first answer again.
    """
    found: list[Answer | Exception | Busy] = [plain] * size
    for item, outcome, detail in rows:
        if outcome in ("busy", "duplicate"):
            # A second item for one execution in one batch: alone, it is told what the first was.
            found[item - 1] = BUSY
        elif outcome != same:
            found[item - 1] = refusal(outcome, detail)
    return found
