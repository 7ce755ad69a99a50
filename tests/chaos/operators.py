"""Operators who cancel, revoke, replay, retry, change priorities, and look at what became of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.execution import ExecutionFilter, ExecutionSummary
from flowfabric.core.states import PublicState

from .stage import Stage, play
from .verbs import Verbs

OPERATORS = 3
PAUSE_SECONDS = 0.3

_OPEN = {PublicState.WAITING, PublicState.DELAYED}
_ENDED = {state for state in PublicState if state.is_terminal}
# What is done, how often, and to executions in which states.
_HABITS = (
    ("cancel", 12, _OPEN | {PublicState.ACTIVE}),
    ("revoke", 20, {PublicState.ACTIVE}),
    ("replay", 14, _ENDED),
    ("retry", 12, _ENDED | {PublicState.DELAYED, PublicState.WAITING}),
    ("priority", 20, _OPEN),
    ("read", 22, set(PublicState)),
)


async def operate(stage: Stage) -> None:
    async with stage.verbs() as verbs, asyncio.TaskGroup() as group:
        for _ in range(OPERATORS):
            group.create_task(_operate(stage, verbs))


async def _operate(stage: Stage, verbs: Verbs) -> None:
    random = stage.random
    while not stage.calm:
        await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.3, 1.7))
        names = [name for name, _, _ in _HABITS]
        weights = [weight for _, weight, _ in _HABITS]
        habit = _HABITS[names.index(random.choices(names, weights)[0])]
        with suppress(Unavailable):
            page = await verbs.client.executions.list(ExecutionFilter(states=habit[2]), limit=30)
            if page.executions:
                await _act(verbs, random, habit[0], random.choice(page.executions))


async def _act(verbs: Verbs, random: Random, what: str, target: ExecutionSummary) -> None:
    """Half of the time for the version that was seen in the list, else for whatever is there."""
    version = target.version if random.random() < 0.5 else None
    with suppress(FlowFabricError):  # it is in the history
        match what:
            case "cancel":
                await verbs.cancel(target.id, version)
            case "revoke":
                await verbs.revoke(target.id, version)
            case "replay":
                await verbs.replay(target.id, version)
            case "retry":
                await verbs.retry(target.id, version)
            case "priority":
                await verbs.priority(target.id, random.randrange(1000), version)
        if what == "read" or random.random() < 0.5:
            await verbs.read(target.id)


if __name__ == "__main__":
    play(operate)
