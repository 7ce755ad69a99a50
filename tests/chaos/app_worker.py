"""The worker that users have, with somebody listening in on what it says to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from flowfabric import App, Context
from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.execution import Claimed, FailAnswer, Failure

from .history import Recorder
from .stage import LANE, NAMESPACE, TASK, Stage, play
from .verbs import claimed, failed, fence, renewed

CONCURRENCY = 3


async def work(stage: Stage) -> None:
    app = App(database_url=stage.url, namespace=NAMESPACE, lease_ttl=stage.lease_ttl)
    app.task(name=TASK, lane=LANE)(handler(stage.random))
    client = await stage.insist(partial(app.client, pool_size=1))
    listen_in(client, stage.recorder)
    try:
        await app.run_worker(lanes=[LANE], concurrency=CONCURRENCY)
    finally:
        with suppress(Unavailable):
            await app.close()


def handler(random: Random) -> Callable[..., Any]:
    async def handle(ctx: Context, n: int) -> list[Any]:
        await ctx.stream.send(f"{n} begins")
        await asyncio.sleep(random.uniform(0.05, 0.4))
        await ctx.stream.summary({"attempt": ctx.attempt})
        if random.random() < 0.2:
            raise RuntimeError(f"{n} fails this time")
        return [n, ctx.attempt, ctx.epoch]

    return handle


def listen_in(client: FlowFabric, recorder: Recorder) -> None:
    """Put a recorder between a worker and its client, call by call."""
    executions, leases = client.executions, client.leases
    claim, complete_soon, fail = executions.claim, executions.complete_soon, executions.fail
    renew, release = leases.renew, leases.release

    async def recorded_claim(**asked: Any) -> list[Claimed]:
        name = str(asked["claim_id"])
        return await recorder.record("claim", claim(**asked), claimed, claim=name)

    def recorded_complete_soon(held: Claimed, result: bytes, answered: Callable[..., None]) -> None:
        number = recorder.invoke("complete", fence(held) | {"result": result.decode()})

        def told(item: Any, error: Exception | None) -> None:
            if error is None:
                recorder.answer(number, {})
            else:
                recorder.fail(number, error)
            answered(item, error)

        complete_soon(held, result, told)

    async def recorded_fail(held: Claimed, failure: Failure) -> FailAnswer:
        return await recorder.record("fail", fail(held, failure), failed, **fence(held))

    async def recorded_renew(
        held: Sequence[Claimed], ttl: timedelta, **options: Any
    ) -> tuple[dict[Claimed, FlowFabricError], list[Claimed]]:
        items = [fence(one) for one in held]
        call = renew(held, ttl, **options)
        return await recorder.record("renew", call, partial(renewed, held), items=items)

    async def recorded_release(held: Sequence[Claimed], **options: Any) -> dict[Claimed, Exception]:
        numbers = {one: recorder.invoke("release", fence(one)) for one in held}
        try:
            refused = await release(held, **options)
        except FlowFabricError as error:
            for number in numbers.values():
                recorder.fail(number, error)
            raise
        for one, number in numbers.items():
            if one in refused:
                recorder.fail(number, refused[one])
            else:
                recorder.answer(number, {})
        return refused

    for owner, name, recorded in (
        (executions, "claim", recorded_claim),
        (executions, "complete_soon", recorded_complete_soon),
        (executions, "fail", recorded_fail),
        (leases, "renew", recorded_renew),
        (leases, "release", recorded_release),
    ):
        setattr(owner, name, recorded)


if __name__ == "__main__":
    play(work)
