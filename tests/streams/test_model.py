"""Many frames against a model: leases that come and go, repeats, lost answers, a clock that steps
back, readers that stop and go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import pytest

from support.factories import TTL, Engine, Item, Lease
from support.proofs import drawn
from support.streams import START, Chunk, Id, append_many, read

SECOND_SHARE = 0.2


@dataclass
class Modelled:
    """One execution: what it has acknowledged, and what its frames mean."""

    id: UUID
    lease: Lease | None = None
    # Of the lease: how many frames it stored, and its first position.
    number: int = 0
    base: int = 0
    # Journal entries now, and every valid frame with its position.
    entries: int = 0
    valid: list[tuple[int, bytes]] = field(default_factory=list)
    has_appended: bool = False
    sent: int = 0


@dataclass
class Reader:
    """Reads one stream piece by piece, and obeys rewinds."""

    stream: Modelled
    after: Id = START
    kept: list[tuple[Id, bytes]] = field(default_factory=list)

    async def advance(self, engine: Engine, limit: int) -> bool:
        found = await read(engine, self.stream.id, self.after, limit=limit)
        for one in found.frames:
            assert one.id > self.after
            self.after = one.id
            if one.to is not None:
                to = one.to
                assert to == START or to in [id for id, _ in self.kept]
                self.kept = [(id, payload) for id, payload in self.kept if id <= to]
            else:
                assert one.payload is not None
                self.kept.append((one.id, one.payload))
        return bool(found.frames)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(600, id="some"),
        pytest.param(20_000, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
async def test_every_acknowledged_frame_is_read_once_and_in_order(engine, clock, frames, sized):
    random = drawn("frames")
    frames = sized(frames, short=2_000)
    route = await engine.register()
    streams = [Modelled((await engine.submit(Item(route=route))).id) for _ in range(6)]
    readers = [Reader(stream) for stream in streams for _ in range(2)]
    total = 0
    while total < frames:
        await _lease(engine, clock, streams)
        total += await _append(engine, random, streams)
        await _disturb(engine, clock, random, streams)
        for reader in random.sample(readers, 3):
            await reader.advance(engine, random.choice([1, 7, 1000]))
    for reader in readers:
        while await reader.advance(engine, 500):
            pass
        assert [payload for _, payload in reader.kept] == [one for _, one in reader.stream.valid]
        ids = [id for id, _ in reader.kept]
        assert ids == sorted(set(ids))


async def _lease(engine: Engine, clock: Any, streams: list[Modelled]) -> None:
    if any(one.lease is None for one in streams):
        leases = await engine.claim(10)
        if not leases and not any(one.lease for one in streams):
            # After its third crash in a row an execution waits before it may be claimed.
            await clock.advance(minutes=5)
            await engine.promote()
        for lease in leases:
            (stream,) = [one for one in streams if one.id == lease.execution_id]
            stream.lease, stream.number, stream.has_appended = lease, 0, False
            stream.base = stream.entries


async def _append(engine: Engine, random: Random, streams: list[Modelled]) -> int:
    """Append to some streams at once. Some calls repeat frames whose answer was lost."""
    chosen = [one for one in random.sample(streams, random.randint(1, 6)) if one.lease]
    chunks, fresh = [], []
    for one in chosen:
        new = [b"%d" % (one.sent + n) for n in range(random.choice([1, 2, 5, 40]))]
        one.sent += len(new)
        again = random.choice([0, 0, 1, 3])
        old = [payload for _, payload in one.valid[len(one.valid) - min(again, one.number) :]]
        if not one.number or not again:
            old = []
        assert one.lease is not None
        chunks.append(
            Chunk(
                lease=one.lease,
                frames=[*old, *new],
                no=one.number - len(old),
                base=one.base,
                position=one.entries,
            )
        )
        fresh.append(new)
    if not chunks:
        return 0
    for one, new, answer in zip(chosen, fresh, await append_many(engine, chunks), strict=True):
        assert answer.word == "appended", answer
        if not one.has_appended:
            one.valid = [(position, p) for position, p in one.valid if position < one.base]
            one.has_appended = True
        one.valid += [(one.entries, payload) for payload in new]
        one.number += len(new)
        assert answer.last_no == one.number - 1
    return sum(map(len, fresh))


async def _disturb(engine: Engine, clock: Any, random: Random, streams: list[Modelled]) -> None:
    one = random.choice(streams)
    what = random.choice(["step", "step", "release", "fail", "expire", "back", "on", "nothing"])
    if what == "step":
        one.entries += 1
    elif what == "release" and one.lease:
        await engine.release(one.lease)
        one.lease = None
    elif what == "fail" and one.lease:
        await engine.revoke(one.id)
        one.lease = None
    elif what == "expire" and random.random() < SECOND_SHARE:
        await clock.advance(TTL)
        await engine.expire()
        for each in streams:
            each.lease = None
    elif what == "back":
        await clock.advance(milliseconds=-random.randint(1, 2000))
    elif what == "on":
        await clock.advance(milliseconds=random.randint(1, 500))
