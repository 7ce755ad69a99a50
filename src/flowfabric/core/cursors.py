"""Cursors of the event log: one for each partition, or all of them joined into one text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from flowfabric.core.errors import InvalidInput

PREFIXES = ("ff2:", "ff1:")
"""The prefixes of cursors, including the prefixes of older releases."""

_BETWEEN = "/"
_CURSOR = re.compile(r"ff2:([0-9]{1,5}):.+", re.ASCII | re.DOTALL)


def join_cursors(cursors: Iterable[str]) -> str:
    """Join cursors, one for each partition, into one cursor."""
    return _BETWEEN.join(cursors)


def split_cursor(text: str, partitions: int) -> dict[int, str]:
    """Split a cursor into the cursors of its partitions; raise InvalidInput if it is not a cursor.

    The result lacks partitions that were added after the cursor was made.
    """
    if not isinstance(text, str) or not text.isascii() or "\0" in text:
        raise InvalidInput(field="cursor", problem="is not a cursor; open a new one")
    found: dict[int, str] = {}
    for part in text.split(_BETWEEN):
        if part.startswith("ff1:"):
            raise InvalidInput(field="cursor", problem="is of an older release; open a new one")
        match = _CURSOR.fullmatch(part)
        if match is None:
            raise InvalidInput(field="cursor", problem="is not a cursor; open a new one")
        partition = int(match[1])
        if partition >= partitions:
            raise InvalidInput(
                field="cursor", problem=f"names partition {partition}; there are {partitions}"
            )
        if partition in found:
            raise InvalidInput(field="cursor", problem=f"names partition {partition} twice")
        found[partition] = part
    return found
