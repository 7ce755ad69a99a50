"""Waiting for a condition, with a deadline and without a fixed sleep."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

T = TypeVar("T")


async def eventually(
    condition: Callable[[], T | Awaitable[T]], *, within: float = 120.0, what: str = ""
) -> T:
    """Ask until the answer is true, and return it; fails when the time is over."""
    deadline = monotonic() + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found  # type: ignore[return-value]
        if monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what or condition}; last was {found}")
        await asyncio.sleep(0.01)
