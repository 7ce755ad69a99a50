"""Records about partitions: their number, and the rows that a read of all partitions found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")


class Found(list[T]):
    """Rows that a read of all partitions found. `missing` lists partitions that did not answer."""

    def __init__(self, rows: Iterable[T] = (), missing: tuple[int, ...] = ()) -> None:
        super().__init__(rows)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """How many partitions exist.

    `minted` is the number of partitions that new ids use. `keyed` is the number of partitions that
    idempotency keys use. `grace_left` is the time until new ids use all existing partitions.
    """

    partitions: int
    minted: int
    keyed: int
    grace_left: timedelta = timedelta(0)
