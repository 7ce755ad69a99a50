"""Turn the outcomes that the engine returns into answers and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from flowfabric.client.batching import BUSY, Busy
from flowfabric.core.errors import FlowFabricError
from flowfabric.db.functions import Function
from flowfabric.db.session import Database

Answer = TypeVar("Answer")


Pass: TypeAlias = tuple[int, timedelta | None]


async def handle_batch(database: Database, statement: Function, **arguments: Any) -> Pass:
    """Run one batch of a reconciler.

    Return how many rows the batch handled, and the time until the next batch is due.
    """
    row = (await database.call(statement, **arguments))[0]
    return row["handled"], row["due_in"]


def refusal(outcome: str, detail: str | None, **facts: Any) -> FlowFabricError:
    """Return the error for an outcome of the engine that is a refusal."""
    details: dict[str, Any] = json.loads(detail) if detail else {}
    return FlowFabricError.from_engine(outcome, {**facts, **details})


def answers(
    size: int, plain: Answer, rows: Iterable[Any], *, same: str
) -> list[Answer | Exception | Busy]:
    """Return one answer for each of `size` items, from the rows of the engine.

    The answer for an item is `plain` if there is no row for it, which means success. The answer is
    also `plain` if the outcome of the row is `same`, which means that the call was a repeat. For a
    locked row the answer is BUSY. For other outcomes it is an error.
    """
    found: list[Answer | Exception | Busy] = [plain] * size
    for row in rows:
        if row["outcome"] in ("busy", "duplicate"):
            # `duplicate`: the batch contains two items for one execution. The second is sent again
            # alone.
            found[row["item"] - 1] = BUSY
        elif row["outcome"] != same:
            found[row["item"] - 1] = refusal(row["outcome"], row["detail"])
    return found
