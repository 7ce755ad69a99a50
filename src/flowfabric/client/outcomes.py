"""Turn the outcomes that the engine returns for items into answers and errors."""

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
    """Run one batch of a reconciler; return how many rows it handled and the time until the next
    batch."""
    row = (await database.call(statement, **arguments))[0]
    return row["handled"], row["due_in"]


def refusal(outcome: str, detail: str | None, **facts: Any) -> FlowFabricError:
    """Return the error for an outcome that the engine returned."""
    details: dict[str, Any] = json.loads(detail) if detail else {}
    return FlowFabricError.from_engine(outcome, {**facts, **details})


def answers(
    size: int, plain: Answer, rows: Iterable[Any], *, same: str
) -> list[Answer | Exception | Busy]:
    """Return one answer per item. An item without a row has succeeded and gets `plain`.

    An item whose row has the outcome `same` is a repeat and gets `plain`, too. Other outcomes are
    refusals.
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
