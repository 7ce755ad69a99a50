"""A mixed load with known answers: submitted piece by piece, compared with the database after."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from flowfabric import App
from flowfabric.core.errors import Unavailable
from flowfabric.core.ids import ExecutionId

from .server import Server
from .workers import load

KINDS = ("quick", "nap", "block", "flaky", "doomed")


def tasks_on(url: str) -> tuple[App, dict[str, Any]]:
    """The tasks of the workers, to be submitted from here."""
    app, module = load(url)
    return app, {kind: module[kind] for kind in KINDS}


@dataclass(slots=True)
class Load:
    """What was asked for and confirmed: each number by the execution that stands for it."""

    total: int
    random: Random
    acknowledged: dict[ExecutionId, tuple[str, int]] = field(default_factory=dict)
    refused: int = 0

    async def submit(self, tasks: dict[str, Any], *, seconds: float, piece: int = 25) -> None:
        """Submit everything in about `seconds`, a tenth of it with a key and twice."""
        pause = seconds / max(self.total // piece, 1)
        for start in range(0, self.total, piece):
            numbers = range(start, min(start + piece, self.total))
            await asyncio.gather(*(self._submit(tasks, n) for n in numbers))
            await asyncio.sleep(pause * self.random.uniform(0.7, 1.1))

    async def _submit(self, tasks: dict[str, Any], n: int) -> None:
        kind = self.random.choices(KINDS, (50, 28, 7, 10, 5))[0]
        arguments: tuple[Any, ...] = (n,)
        if kind in ("nap", "block"):
            arguments = (n, round(self.random.uniform(0.05, 0.2), 3))
        task = tasks[kind]
        times = 1
        if self.random.random() < 0.1:
            task, times = task.using(key=f"number-{n}"), 2
        for _ in range(times):
            run = await self._insist(task, arguments)
            assert self.acknowledged.setdefault(run.id, (kind, n)) == (kind, n)

    async def _insist(self, task: Any, arguments: tuple[Any, ...]) -> Any:
        """A submit that was refused for want of a database is made again under a key or anew."""
        while True:
            try:
                return await task.submit(*arguments)
            except Unavailable:
                self.refused += 1
                await asyncio.sleep(0.05)

    async def check(self, server: Server) -> Counter[str]:
        """Every confirmed execution ended once, as its task says; returns the ends by kind."""
        await server.check_invariants()
        rows = {
            ExecutionId.of(row["partition_key"], row["execution_id"]): row
            for row in await server.fetch(
                """
                select e.partition_key, e.execution_id, e.public_state::text, e.attempt_index,
                       e.retry_count, e.version, e.result, r.task, v.versions, v.ends
                from ff.execution e
                join ff.route r using (route_id)
                cross join lateral (
                  select array_agg(v.version order by v.version) as versions,
                         count(*) filter (where v.kind in (
                           'completed', 'failed', 'cancelled', 'expired', 'skipped')) as ends
                  from ff.event v
                  where v.partition_key = e.partition_key and v.execution_id = e.execution_id) v
                """
            )
        }
        assert len(self.acknowledged) == self.total
        assert len({n for _, n in self.acknowledged.values()}) == self.total
        assert self.acknowledged.keys() - rows.keys() == set(), "confirmed and lost"
        # A submit whose confirmation was lost may have taken effect; no other row may be there.
        assert len(rows.keys() - self.acknowledged.keys()) <= self.refused
        ends: Counter[str] = Counter()
        for id, (kind, n) in self.acknowledged.items():
            row = rows[id]
            assert row["task"] == kind
            assert row["ends"] == 1, f"{id} ended {row['ends']} times"
            assert row["versions"] == list(range(1, row["version"] + 1)), f"{id} lacks an event"
            if kind == "doomed":
                ended = (row["public_state"], row["retry_count"])
                assert ended == ("failed", 1), f"{id} {kind} {ended}"
            else:
                assert row["public_state"] == "completed", f"{id} {kind} {row['public_state']}"
                # The number tells that the handler ran, the attempt that its holder was current.
                value = n * 7 + 1 + KINDS.index(kind)
                given = json.loads(row["result"])
                wanted = [value, row["attempt_index"] + 1]
                assert given == wanted, f"{id} {kind} has the result {given}, not {wanted}"
            ends[f"{kind} {row['public_state']}"] += 1
        return ends


async def progress(server: Server) -> tuple[int, int]:
    """How many executions there are, and how many of them have ended."""
    rows = await server.fetch(
        "select count(*) as total, count(*) filter (where phase = 'terminal') as ended"
        " from ff.execution"
    )
    return rows[0]["total"], rows[0]["ended"]


async def until_all_ended(server: Server, *, stuck_after: float = 25.0) -> None:
    """Wait for the last end; a standstill of this long is a failure, and says what hangs."""
    last, since = -1, 0.0
    clock = asyncio.get_running_loop().time
    while True:
        total, ended = await progress(server)
        if ended == total:
            return
        if ended != last:
            last, since = ended, clock()
        if clock() - since > stuck_after:
            rows = await server.fetch(
                "select execution_id, public_state, ownership, eligibility, lease_expires_at,"
                " due_at, reclaim_at, delayed_until, reclaim_count, worker_instance_id, now()"
                " from ff.execution where phase <> 'terminal' limit 10"
            )
            raise AssertionError(
                f"{ended} of {total} ended, then nothing:\n" + "\n".join(map(str, rows))
            )
        await asyncio.sleep(0.1)
