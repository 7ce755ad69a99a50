"""Turns the outcome words that the engine returns for an item into answers and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar

from flowfabric.client.batching import BUSY, Busy
from flowfabric.core.errors import FlowFabricError
from flowfabric.db.functions import Function
from flowfabric.db.session import Database

Answer = TypeVar("Answer")


async def handle_batch(
    database: Database, statement: Function, **arguments: Any
) -> tuple[int, timedelta | None]:
    """Let a reconciler do one batch; how many it handled, and how soon the next one is due."""
    row = (await database.call(statement, **arguments))[0]
    return row["handled"], row["due_in"]


def refusal(outcome: str, detail: str | None, **facts: Any) -> FlowFabricError:
    """The error that an outcome word stands for."""
    told: dict[str, Any] = json.loads(detail) if detail else {}
    return FlowFabricError.from_engine(outcome, {**facts, **told})


def answers(
    size: int, plain: Answer, rows: Iterable[Any], *, same: str
) -> list[Answer | Exception | Busy]:
    """One answer per item: `plain`, unless a row (item, outcome, detail) says something else.

    `same` is the word for a repeat that got its first answer again.
    """
    found: list[Answer | Exception | Busy] = [plain] * size
    for row in rows:
        if row["outcome"] in ("busy", "duplicate"):
            # A second item for one execution in one batch: alone, it is told what the first was.
            found[row["item"] - 1] = BUSY
        elif row["outcome"] != same:
            found[row["item"] - 1] = refusal(row["outcome"], row["detail"])
    return found
