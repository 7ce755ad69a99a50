"""All events of a database, read page by page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Seen:
    """What tells one event from another."""

    execution: str
    version: int
    kind: str

    @property
    def key(self) -> tuple[str, int, str]:
        return self.execution, self.version, self.kind


async def all_events(client: Any, cursor: str | None = None) -> tuple[list[Seen], str]:
    """Read everything after a cursor, or from the start."""
    if cursor is None:
        cursor = await client.events.open(since=datetime(2020, 1, 1, tzinfo=UTC))
    found: list[Seen] = []
    while True:
        page = await client.events.read(cursor, limit=200)
        found += [Seen(str(one.id), one.version, str(one.kind)) for one in page.events]
        cursor = page.cursor
        if not page.has_more:
            return found, cursor


def out_of_order(events: list[Seen]) -> list[Seen]:
    """The events that come after a later one of the same execution."""
    last: dict[str, int] = {}
    wrong = []
    for event in events:
        if event.version <= last.get(event.execution, 0):
            wrong.append(event)
        last[event.execution] = event.version
    return wrong
