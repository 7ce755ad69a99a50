"""A worker process that does what a worker may do, and what it must not be able to do.

A share of what it claims is left to zombies: they let the lease run out, and then act on it as if
nothing had happened. Nobody here stops working because a lease was lost: to refuse is the engine's
part.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import uuid7
from flowfabric.core.states import FailureClass
from flowfabric.reconcilers.loop import run_reconcilers

from .stage import Stage, play
from .verbs import Verbs

SLOTS = 8
ZOMBIES = 0.6
# The engine waits longer before every reclaim: minutes, if zombies had their way for ever.
ZOMBIE_ATTEMPTS = 5


class Worker:
    def __init__(self, verbs: Verbs, stage: Stage) -> None:
        self._verbs = verbs
        self._random = stage.random
        self._calm = stage.calm
        self._instance = verbs.process
        self._ttl = stage.lease_ttl
        self._held: set[Claimed] = set()
        self._busy = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_reconcilers(self._verbs.client))
            group.create_task(self._beat())
            claim_id: UUID | None = None
            while True:
                free = SLOTS - self._busy
                if not free:
                    await asyncio.sleep(0.02)
                    continue
                claim_id = claim_id or uuid7()
                try:
                    claimed = await self._verbs.claim(claim_id, self._instance, free, self._ttl)
                except Unavailable:
                    # Half of the time by the same name, as a good worker; else it is forgotten.
                    claim_id = claim_id if self._random.random() < 0.5 else None
                    continue
                claim_id = None
                for one in claimed:
                    self._busy += 1
                    group.create_task(self._work(one))
                if not claimed:
                    await asyncio.sleep(self._random.uniform(0.1, 0.3))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._ttl.total_seconds() / 3)
            if held := list(self._held):
                with suppress(Unavailable):
                    await self._verbs.renew(held, self._ttl)

    async def _work(self, claimed: Claimed) -> None:
        try:
            is_fresh = claimed.attempt <= ZOMBIE_ATTEMPTS
            if is_fresh and not self._calm and self._random.random() < ZOMBIES:
                await self._rise(claimed)
                return
            self._held.add(claimed)
            slow = self._random.random() < 0.05
            seconds = self._random.uniform(1.0, 3.0) if slow else self._random.uniform(0.0, 0.15)
            await asyncio.sleep(seconds / 2)
            if self._random.random() < 0.2:
                await self._try(self._verbs.progress(claimed, self._random.randrange(101)))
            await asyncio.sleep(seconds / 2)
            await self._settle(claimed)
        finally:
            self._held.discard(claimed)
            self._busy -= 1

    async def _rise(self, claimed: Claimed) -> None:
        """Outlive the lease, then act on it."""
        late = self._random.choice((0.1, 0.3, 0.6, 1.5))
        await asyncio.sleep(self._ttl.total_seconds() + late)
        if self._random.random() < 0.5:
            await self._try(self._verbs.renew([claimed], self._ttl))
        if self._random.random() < 0.5:
            await self._try(self._verbs.progress(claimed, 99))
        await self._settle(claimed)

    async def _settle(self, claimed: Claimed) -> None:
        verbs, random = self._verbs, self._random
        # A known answer for a known attempt; the last word tells two calls of one holder apart.
        number = json.loads(claimed.payload or b"{}")["n"]
        result = [number, claimed.attempt, str(claimed.lease_id)]
        if self._calm:
            await self._try(verbs.complete(claimed, json.dumps([*result, "calm"])))
            return
        what = random.choices(
            ("complete", "fail", "doom", "delay", "release", "hold", "cancel"),
            (70, 12, 3, 5, 5, 1, 3),
        )[0]
        for again in range(2 if random.random() < 0.08 else 1):
            if what == "complete":
                await self._try(verbs.complete(claimed, json.dumps([*result, f"call {again}"])))
            elif what == "fail":
                await self._try(verbs.fail(claimed, FailureClass.TRANSIENT))
            elif what == "doom":
                await self._try(verbs.fail(claimed, FailureClass.PERMANENT))
            elif what == "delay":
                span = timedelta(seconds=random.uniform(0.0, 1.0))
                await self._try(verbs.delay(claimed, span))
            elif what == "release":
                await self._try(verbs.release(claimed))
            elif what == "hold":
                await self._try(verbs.hold(claimed))
            else:
                await self._try(verbs.cancel_held(claimed))
        if random.random() < 0.2:
            await self._try(verbs.read(claimed.id))

    async def _try(self, call: Awaitable[object]) -> None:
        with suppress(FlowFabricError):  # it is in the history
            await call


async def work(stage: Stage) -> None:
    async with stage.verbs() as verbs:
        await Worker(verbs, stage).run()


if __name__ == "__main__":
    play(work)
