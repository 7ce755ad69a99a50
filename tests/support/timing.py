"""How fast something is, asked so that a busy machine does not change the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic


async def is_ever_within(
    seconds: float, attempt: Callable[[], Awaitable[object]], *, tries: int = 10
) -> bool:
    """Whether one of some attempts takes less. A machine that is busy slows most of them down; a
    timer, a poll or a lock that is waited for slows all of them."""
    for _ in range(tries):
        began = monotonic()
        await attempt()
        if monotonic() - began < seconds:
            return True
    return False
