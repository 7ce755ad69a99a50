"""Collects the payloads of NOTIFY while a test does something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .database import Database

_END = "end of the test"


async def hints(db: Database, channel: str, act: Callable[[], Awaitable[Any]]) -> list[str]:
    """Return the payloads that a channel carried during `act`, in order."""
    heard: list[str] = []
    ended = asyncio.Event()

    def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == _END:
            ended.set()
        else:
            heard.append(str(payload))

    listener = await db.connect()
    await listener.add_listener(channel, hear)
    await act()
    await db.execute("select pg_notify($1, $2)", channel, _END)
    await asyncio.wait_for(ended.wait(), 60)
    await listener.remove_listener(channel, hear)
    return heard
