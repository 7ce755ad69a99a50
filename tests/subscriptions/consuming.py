"""Consume what is left of a subscription."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from time import monotonic

PATIENCE = 60
OUR_CONNECTIONS = (
    "select count(*) from pg_stat_activity "
    "where datname = current_database() and application_name like 'flowfabric%'"
)
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


async def rest_forever(client, name="billing", **options) -> None:
    async for event in client.subscriptions.consume(name, **options):
        await event.ack()


class Stopwatch:
    """How many seconds a module believes to have passed besides the true ones."""

    seconds = 0.0


def stopwatch(monkeypatch, module) -> Stopwatch:
    """Let a test move the clock by which a module measures durations."""
    passed = Stopwatch()
    monkeypatch.setattr(module, "monotonic", lambda: monotonic() + passed.seconds)
    return passed


class Pages:
    """Counts the pages that a client reads, so that a test can wait for them."""

    def __init__(self, client, monkeypatch) -> None:
        self._count, self._more = 0, asyncio.Event()
        read = client.events.read

        async def counted(*args, **options):
            page = await read(*args, **options)
            self._count += 1
            self._more.set()
            return page

        monkeypatch.setattr(client.events, "read", counted)

    async def read(self, number: int) -> None:
        """Wait until this many more pages were asked for, and the last one but one was handled."""
        goal = self._count + number
        async with asyncio.timeout(PATIENCE):
            while self._count < goal:
                self._more.clear()
                await self._more.wait()


async def begin(client, name="billing", **options) -> None:
    assert await rest(client, name, **options) == []
