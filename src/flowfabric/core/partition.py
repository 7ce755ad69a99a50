"""How many partitions a database has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """The numbers of partitions: that exist, that new ids use, and that keys use.

    New ids use all that exist after `rests_for`.
    """

    partitions: int
    minted: int
    keyed: int
    rests_for: timedelta = timedelta(0)
