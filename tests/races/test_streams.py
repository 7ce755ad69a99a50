"""Appends against renewals and against every end of a lease (the traps of decision 0050)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.factories import Engine, Item, Lease
from support.proofs import drawn
from support.streams import Chunk, append, append_many, read

from .crowd import engines


async def leases(engine: Engine, number: int) -> list[Lease]:
    route = await engine.register()
    await engine.submit_many([Item(route=route) for _ in range(number)])
    return await engine.claim(number)


async def test_renewals_are_never_busy_beside_appends(engine, db):
    held = await leases(engine, 20)
    for lease in held:
        await append(engine, lease)
    is_over = False

    async def push(writer: Engine, mine: list[Lease]) -> int:
        number = 1
        while not is_over:
            chunks = [Chunk(lease=lease, frames=[b"x"] * 50, no=number) for lease in mine]
            words = {one.word for one in await append_many(writer, chunks)}
            assert words == {"appended"}
            number += 50
        return number

    writers = await engines(db, 2)
    pushing = [
        asyncio.create_task(push(writer, held[place::2])) for place, writer in enumerate(writers)
    ]
    for _ in range(30):
        words = {one.word for one in await engine.renew_many(held)}
        assert words == {"renewed"}
    is_over = True
    assert min(await asyncio.gather(*pushing)) > 1


ENDS: dict[str, Any] = {
    "complete": lambda engine, lease: engine.complete(lease),
    "fail": lambda engine, lease: engine.fail(lease),
    "release": lambda engine, lease: engine.release(lease),
    "cancel": lambda engine, lease: engine.cancel(lease.execution_id),
    "revoke": lambda engine, lease: engine.revoke(lease.execution_id),
}


@pytest.mark.parametrize(
    "number", [10, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_no_frame_follows_a_committed_end(engine, db, number, sized):
    number = sized(number, short=40)
    random = drawn("ends of streams")
    held = await leases(engine, number)
    ended: set[int] = set()
    last = dict.fromkeys(range(number), -1)

    async def push(writer: Engine, mine: list[int]) -> None:
        while left := [place for place in mine if place not in ended]:
            chunks = [Chunk(lease=held[place], no=last[place] + 1) for place in left]
            for place, one in zip(left, await append_many(writer, chunks), strict=True):
                if one.word == "appended":
                    assert place not in seen or one.last_no < seen[place]
                    last[place] = one.last_no
                elif one.word != "busy":
                    assert one.word in ("not_active", "lease_revoked", "stale_lease")

    seen: dict[int, int] = {}

    async def end(ender: Engine) -> None:
        order = list(range(number))
        random.shuffle(order)
        for place in order:
            how = random.choice(list(ENDS))
            while (answer := await ENDS[how](ender, held[place])).word == "busy":
                pass  # an append opens the stream
            assert answer.word not in ("stale_lease", "not_active"), (how, answer)
            # Everything that is there when the end has committed is all there will ever be.
            seen[place] = len((await read(ender, held[place].execution_id)).frames)
            ended.add(place)

    first, second, ender = await engines(db, 3)
    everything = list(range(number))
    await asyncio.gather(push(first, everything[::2]), push(second, everything[1::2]), end(ender))
    for place, lease in enumerate(held):
        assert len((await read(engine, lease.execution_id)).frames) == seen[place]
        assert last[place] <= seen[place] - 1
