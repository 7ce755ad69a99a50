"""ff.read_key: the execution that a submit with the key would get."""

from __future__ import annotations

from datetime import timedelta

from support.database import home
from support.factories import Engine, Item, refused

HOUR = timedelta(hours=1)
KEYED = Item(key="k", fingerprint=b"f", window=HOUR)


async def read(engine: Engine, key: str = "k"):
    row = await engine.connection.fetchrow(
        f"select * from ff.read_key('{home()}', $1, $2)", engine.namespace, key
    )
    return row and (row["execution_id"], row["task"])


async def test_a_key_is_read_until_its_window_is_over(clock, engine):
    await clock.freeze()
    assert await read(engine) is None
    first = await engine.submit(KEYED)
    await engine.complete(await engine.take(first.id))
    assert await read(engine) == (first.id, "tests.work")
    assert await read(engine, "other") is None
    await clock.advance(HOUR)
    assert await read(engine) is None


async def test_a_key_that_is_unique_while_unfinished_is_read_until_its_execution_has_ended(
    clock, engine
):
    first = await engine.submit(KEYED, scope="unfinished")
    await clock.advance(2 * HOUR)
    assert await read(engine) == (first.id, "tests.work")
    await engine.complete(await engine.take(first.id))
    assert await read(engine) is None


async def test_the_key_of_a_trimmed_execution_leads_nowhere(clock, engine, make):
    policy = {"retention_ms": 1}
    await make.execution("completed", key="k", fingerprint=b"f", window=HOUR, policy=policy)
    assert await read(engine) is not None
    await clock.advance(seconds=1)
    await engine.connection.execute(f"select ff.trim_retention('{home()}')")
    assert await read(engine) is None


async def test_a_key_is_read_in_its_namespace_only(engine):
    await engine.submit(KEYED)
    assert await read(engine.within("other")) is None
    with refused("WF001", field="namespace"):
        await read(engine.within(None))
