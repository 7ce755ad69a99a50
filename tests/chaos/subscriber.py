"""Follows the events, saves its cursor with every page, and goes on from there after its death."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from flowfabric.core.errors import CursorExpired

from .stage import Stage, play

FILE = "deliveries.jsonl"


async def subscribe(stage: Stage) -> None:
    path = stage.folder / FILE
    async with stage.verbs() as verbs:
        events = verbs.client.events
        saved = list(read_deliveries(path))
        cursor = saved[-1]["cursor"] if saved else await events.open()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        _save(file, "start", [], cursor)
        while True:
            limit = stage.random.choice((50, 500))
            try:
                async with aclosing(events.follow_pages(cursor, limit=limit)) as pages:
                    async for page in pages:
                        told = [[event.id, event.version] for event in page.events]
                        _save(file, "page", told, page.cursor)
            except CursorExpired as error:
                cursor = await events.open(error.resume_from)
                _save(file, "expired", [], cursor)


def _save(file: int, what: str, events: list[Any], cursor: str) -> None:
    line = json.dumps({"what": what, "events": events, "cursor": cursor})
    # What a kill left of a line is closed off first; it was not saved, so it came again.
    os.write(file, b"\n" * (what == "start") + line.encode() + b"\n")


def read_deliveries(path: Path) -> Iterator[dict[str, Any]]:
    """The pages that were saved, in order."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                page = json.loads(line)
            except ValueError:
                continue
            yield page


if __name__ == "__main__":
    play(subscribe)
