"""Submits work of every kind, at a steady pace: with and without keys, delays, retries, deadlines
and limits.

What gets no answer is handed in again by its own id, or left as it is: both may happen to users.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from random import Random

from flowfabric.core.errors import LaneNotFound, Unavailable
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.limit import Gate, Limit
from flowfabric.core.policy import Fixed, Retry, policy_json

from .stage import LANE, NAMESPACE, TASK, Stage, play
from .verbs import Verbs

ROUTE = Route(NAMESPACE, LANE, TASK)
CALLERS = 8
# More than this waiting: the workers are behind, and nothing is learned from a longer line.
MOST_WAITING = 150
# Some work is under one of two limits, some under both; doctor counts their slots (Q01).
FEW = Limit("few", concurrency=3)
TENANT = Limit("tenant", concurrency=2, key="tenant")


async def submit(stage: Stage) -> None:
    numbers = iter(range(stage.submits)) if stage.submits else count()
    async with stage.verbs() as verbs, asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(_submit(stage, verbs, numbers))
        group.create_task(_until_calm(stage))


async def _until_calm(stage: Stage) -> None:
    """A process that ends before has failed."""
    while True:
        if stage.calm:
            return
        await asyncio.sleep(0.1)


async def _submit(stage: Stage, verbs: Verbs, numbers: Iterator[int]) -> None:
    random = stage.random
    pause = CALLERS / stage.submits_per_second
    for number in numbers:
        if stage.calm:
            return
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        if random.random() < 0.1:
            await _wait_for_room(verbs)
        submission = _some_work(random, number, verbs)
        try:
            await verbs.client.executions.assign_partitions([submission])
        except Unavailable:
            continue  # without its partition a key would be looked for in the wrong one
        while True:
            try:
                await verbs.submit(submission)
                break
            except Unavailable:
                if random.random() < 0.3:
                    break


async def _wait_for_room(verbs: Verbs) -> None:
    while True:
        try:
            if (await verbs.client.lanes.get(LANE)).waiting < MOST_WAITING:
                return
        except (Unavailable, LaneNotFound):
            return
        await asyncio.sleep(0.5)


def _some_work(random: Random, number: int, verbs: Verbs) -> Submission:
    """A key is used by several submissions, so its work has to be the same each time."""
    key = f"{verbs.process}/{number // 3}" if random.random() < 0.25 else None
    payload = json.dumps({"n": number // 3 * 3 if key else number}).encode()
    retry = Retry(max_retries=3, backoff=Fixed(timedelta(milliseconds=random.choice((10, 300)))))
    policy = policy_json(
        retry=retry if random.random() < 0.7 else None,
        timeout=timedelta(seconds=1.2) if random.random() < 0.05 else None,
        retention=timedelta(seconds=5) if random.random() < 0.03 else None,
    )
    quotas = [Gate(NAMESPACE, FEW)] if random.random() < 0.2 else []
    if random.random() < 0.2:
        quotas.append(Gate(NAMESPACE, TENANT, random.choice("abc")))
    return Submission(
        id=mint(),
        route=ROUTE,
        quotas=tuple(quotas),
        payload=payload,
        priority=random.choice((0, 0, 0, 10, 100)),
        delay=timedelta(seconds=random.uniform(0.05, 2.0)) if random.random() < 0.15 else None,
        deadline=timedelta(seconds=random.uniform(0.5, 6.0)) if random.random() < 0.06 else None,
        policy=policy,
        key=key,
        key_fingerprint=payload if key else None,
    )


if __name__ == "__main__":
    play(submit)
