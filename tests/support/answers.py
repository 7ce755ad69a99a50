"""Counts what the engine has answered, so that a test waits for a call and not for time to pass."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from flowfabric.db import call
from flowfabric.db.functions import Statement

PATIENCE_SECONDS = 60.0


class Answers:
    """The answers to calls of this process, by function, since this object was made.

    A caller that has asked twice has seen the first answer, and goes on waiting.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counts: Counter[str] = Counter()
        invoke = call.invoke

        async def counted(connection: Any, statement: Any, args: Sequence[Any]) -> Any:
            rows = await invoke(connection, statement, args)
            self._counts[statement.name] += 1
            return rows

        monkeypatch.setattr(call, "invoke", counted)

    async def until(
        self, function: Statement, number: int, waiting: asyncio.Future[Any] | None = None
    ) -> None:
        """Wait for so many answers of a function; fail if `waiting` ends before."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._counts[function.name] < number:
                assert waiting is None or not waiting.done(), "it did not wait"
                await asyncio.sleep(0.002)
