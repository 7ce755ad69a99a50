"""Consume what is left of a subscription."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

PATIENCE = 60
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def names(events) -> list[str]:
    return [f"{event.kind} {event.version}" for event in events]


async def rest(client, name="billing", *, ack=True, **options) -> list:
    """Consume everything that is left, and acknowledge it."""
    found = []
    async with asyncio.timeout(PATIENCE):
        async for event in client.subscriptions.consume(name, follow=False, **options):
            found.append(event)
            if ack:
                await event.ack()
    return found


async def begin(client, name="billing", **options) -> None:
    assert await rest(client, name, **options) == []
