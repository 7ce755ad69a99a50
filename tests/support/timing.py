"""Measures speed so that a busy machine does not change the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic


async def is_ever_within(
    seconds: float, attempt: Callable[[], Awaitable[object]], *, tries: int = 10
) -> bool:
    """Return whether one of several attempts takes less time than the limit.

    A busy machine slows down most attempts. Waiting for a timer, a poll or a lock slows down all.
    """
    for _ in range(tries):
        began = monotonic()
        await attempt()
        if monotonic() - began < seconds:
            return True
    return False
