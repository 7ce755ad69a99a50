"""Consumes a subscription: notes every event in a file, then acknowledges it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flowfabric.client import FlowFabric
from flowfabric.core.errors import SubscriptionLost, Unavailable

from .stage import Stage, play

FILE = "mirrored.jsonl"
NAME = "mirror"
NAMESPACE = "default"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


async def mirror(stage: Stage) -> None:
    """Several processes do this at once: one of them has its turn, the others wait."""
    file = os.open(stage.folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    client = await stage.insist(FlowFabric(stage.url, namespace=NAMESPACE).open)
    try:
        while True:
            # Without a database at its start a consumer ends, and somebody starts it again.
            with suppress(Unavailable, SubscriptionLost):
                await consume(client, file)
            await asyncio.sleep(0.1)
    finally:
        await client.close()


async def consume(client: FlowFabric, file: int) -> None:
    async for event in client.subscriptions.consume(
        NAME, since=LONG_AGO, page_size=20, lease_ttl=timedelta(seconds=2)
    ):
        line = json.dumps([os.getpid(), str(event.id), event.version])
        # What a kill left of a line is closed off: it was not acknowledged, so it comes again.
        os.write(file, b"\n" + line.encode() + b"\n")
        await event.ack()


def read_mirror(path: Path) -> Iterator[tuple[int, str, int]]:
    """The events that were noted, in their order: who noted them, the execution, its version."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            told: list[Any] = json.loads(line)
        except ValueError:
            continue
        yield told[0], told[1], told[2]


if __name__ == "__main__":
    play(mirror)
