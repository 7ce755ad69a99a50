"""How many signals a handler waits for at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from flowfabric.core.errors import InvalidInput
from flowfabric.handlers.waits import MAX_WAITS, Pause, PauseSuspended, SignalWait, Waits


async def test_one_signal_more_than_the_limit_is_refused_and_the_others_are_all_named():
    paused: asyncio.Future[Pause] = asyncio.get_running_loop().create_future()
    waits = Waits(asyncio.get_running_loop(), lambda: datetime.now(UTC), paused.set_result)

    def one(number: int) -> SignalWait:
        return SignalWait(f"s{number}", 0, None, lambda future: None)

    several = [asyncio.create_task(waits.wait(one(n))) for n in range(MAX_WAITS)]
    pause = await asyncio.wait_for(paused, 60)
    with pytest.raises(InvalidInput, match="at most 1000 signals at once") as refused:
        await waits.wait(one(MAX_WAITS))
    assert refused.value.field == "signals"
    assert isinstance(pause, PauseSuspended)
    assert len(set(pause.waits)) == MAX_WAITS
    for task in several:
        task.cancel()
    await asyncio.gather(*several, return_exceptions=True)
