"""ff.trim_keys: idempotency keys that are over, and slots of workers long gone."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from support.database import home
from support.factories import Engine, refused

HOUR = timedelta(hours=1)


async def trim(engine: Engine, limit: int | None = 500) -> tuple[int, timedelta | None]:
    return await engine._tick("ff.trim_keys", limit)


async def keys(engine: Engine) -> list[str]:
    rows = await engine.connection.fetch("select key from ff.idempotency_key order by key")
    return [row["key"] for row in rows]


async def test_a_key_goes_when_its_window_is_past_and_not_before(clock, engine):
    await clock.freeze()
    await engine.submit(key="short", fingerprint=b"f", window=HOUR)
    await engine.submit(key="long", fingerprint=b"f", window=2 * HOUR)
    assert await trim(engine) == (0, HOUR)
    await clock.advance(HOUR)
    assert await trim(engine) == (1, HOUR)
    assert await keys(engine) == ["long"]
    await clock.advance(HOUR)
    assert await trim(engine) == (1, None)
    assert await trim(engine) == (0, None)


async def test_the_key_of_a_window_may_outlive_its_execution(clock, engine, make):
    """A repeat within the window is a duplicate, also of what was trimmed."""
    execution = await make.execution(
        "completed", key="k", fingerprint=b"f", window=HOUR, policy={"retention_ms": 1}
    )
    await clock.advance(seconds=1)
    await engine.connection.execute(f"select ff.trim_retention('{home()}')")
    assert (await trim(engine))[0] == 0
    again = await engine.submit(key="k", fingerprint=b"f", window=HOUR)
    assert (again.word, again.id) == ("duplicate", execution.id)


@pytest.mark.parametrize("state", ["waiting", "leased", "completed", "gone"])
async def test_a_key_that_is_unique_while_unfinished_goes_when_its_execution_is_over(
    clock, engine, make, state
):
    policy = {"retention_ms": 1}
    execution = await make.execution(
        "completed" if state == "gone" else state,
        key="k",
        fingerprint=b"f",
        scope="unfinished",
        window=HOUR,
        policy=policy,
    )
    if state == "gone":
        await clock.advance(seconds=1)
        await engine.connection.execute(f"select ff.trim_retention('{home()}')")
    # within its window it stays in any case
    assert (await trim(engine))[0] == 0
    await clock.advance(HOUR)
    assert (await trim(engine))[0] == 1
    assert await keys(engine) == ([] if state in ("completed", "gone") else ["k"])
    again = await engine.submit(key="k", fingerprint=b"f", scope="unfinished")
    is_live = state in ("waiting", "leased")
    assert (again.word == "duplicate") == is_live
    assert (again.id == execution.id) == is_live


async def test_keys_that_must_stay_do_not_stand_in_front_of_the_others(clock, engine):
    await clock.freeze()
    for n in range(5):
        await engine.submit(key=f"live-{n}", fingerprint=b"f", scope="unfinished", window=HOUR)
    for n in range(5):
        await engine.submit(key=f"over-{n}", fingerprint=b"f", window=HOUR)
    await clock.advance(HOUR)
    assert [(await trim(engine, 5))[0] for _ in range(3)] == [5, 5, 0]
    assert await keys(engine) == [f"live-{n}" for n in range(5)]


async def test_a_key_that_is_being_taken_is_passed_over(db, clock, engine):
    for name in ("busy", "free"):
        await engine.submit(key=name, fingerprint=b"f", window=HOUR)
    await clock.advance(HOUR)
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.idempotency_key where key = 'busy' for update")
        assert (await asyncio.wait_for(trim(engine), 60))[0] == 1
    assert await keys(engine) == ["busy"]


async def test_four_at_once_trim_every_key_once(db, clock, engine):
    for n in range(40):
        await engine.submit(key=f"k-{n}", fingerprint=b"f", window=HOUR)
    await clock.advance(HOUR)

    async def until_empty(one: Engine) -> int:
        total = 0
        while handled := (await trim(one, 3))[0]:
            total += handled
        return total

    engines = [Engine(await db.connect()) for _ in range(4)]
    assert sum(await asyncio.gather(*(until_empty(one) for one in engines))) == 40


async def test_the_slot_of_a_worker_that_claims_no_more_goes_after_a_day(clock, engine, make):
    slots = "select array_agg(worker_instance_id) from ff.claim_slot"
    await make.execution("leased")
    await clock.advance(hours=23)
    await engine.submit()
    await engine.take(lanes=["default"], instance="pool-2")
    await trim(engine)
    assert sorted(await engine.connection.fetchval(slots)) == ["pool-1", "pool-2"]
    await clock.advance(HOUR)
    await trim(engine)
    assert await engine.connection.fetchval(slots) == ["pool-2"]


@pytest.mark.parametrize("limit", [None, 0, 10_001])
async def test_the_limit_must_make_sense(engine, limit):
    with refused("WF001", field="limit"):
        await trim(engine, limit)
