"""Finds and kills processes of the system by /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def kill_family(pid: int, *, within: float = 60.0) -> None:
    """Kill a process and all its descendants with SIGKILL, and wait until all are gone."""
    family = [pid, *children_of(pid)]
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    deadline = time.monotonic() + within
    while any(map(is_alive, family)):
        assert time.monotonic() < deadline, f"{family} outlive their kill"
        time.sleep(0.002)


def children_of(parent: int) -> Iterator[int]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    yield int(process.name)


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not count."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
