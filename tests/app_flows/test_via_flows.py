"""A flow that joins the caller's transaction: it exists if and only if that commits."""

from __future__ import annotations

from contextlib import suppress

import asyncpg
import psycopg
import pytest

from flowfabric import InvalidInput, NotFound
from flowfabric.core.errors import LaneClosed
from support.proofs import some_of
from via.kinds import KINDS, Caller, RolledBack
from worker.apps import working


def kinds(turn: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", some_of(KINDS, turn, share=2))


@pytest.fixture
async def notes(db):
    """A table of the caller's own."""
    await db.execute("create table note (text text)")

    async def count() -> int:
        return await db.fetchval("select count(*) from note")

    return count


@pytest.fixture
def add(app):
    @app.task(name="shop.add")
    async def add(a: int, b: int = 0) -> int:
        return a + b

    return add


async def store(caller: Caller, app, add, *, commit: bool = True, lane: str | None = None):
    """A transaction of the caller's that writes a note and stores a flow."""
    begun = []

    def write(f) -> None:
        begun.append(f)
        f.add(add.using(lane=lane), f.add(add, 1, name="one").result, 2, name="two")

    async def asynchronously(caller: Caller) -> None:
        async with caller.transaction():
            await caller.note()
            async with app.flow("sums", via=caller.via) as f:
                write(f)
            if not commit:
                raise RolledBack

    def synchronously(caller: Caller) -> None:
        with caller.transaction():
            caller.note()
            with app.flow("sums", via=caller.via) as f:
                write(f)
            if not commit:
                raise RolledBack

    with suppress(RolledBack):
        await caller.run(synchronously if caller.thread else asynchronously)
    return begun[0].run


@kinds(0)
async def test_what_is_committed_runs(db, app, add, notes, kind):
    async with KINDS[kind](db.url) as caller, working(app):
        run = await store(caller, app, add)
        assert await run.result(timeout=60) == 3
        assert await notes() == 1


@kinds(1)
async def test_what_is_rolled_back_leaves_no_trace(db, app, add, notes, kind):
    async with KINDS[kind](db.url) as caller:
        run = await store(caller, app, add, commit=False)

    assert await notes() == 0
    for table in ("execution", "event", "edge", "edge_group", "flow", "execution_body"):
        assert await db.fetchval(f"select count(*) from ff.{table}") == 0, table
    with pytest.raises(NotFound, match="rolled back"):
        await run.result(timeout=60)


@pytest.mark.parametrize("kind", ["asyncpg_connection", "psycopg_connection"])
async def test_a_refused_flow_leaves_the_transaction_usable(db, app, add, notes, kind):
    await add.using(lane="closed").submit(1)
    await (await app.client()).lanes.disable("closed")
    before = await db.fetchval("select count(*) from ff.execution")

    async def refused(caller: Caller) -> None:
        async with caller.transaction():
            with pytest.raises(LaneClosed):
                async with app.flow("sums", via=caller.via) as f:
                    f.add(add.using(lane="closed"), f.add(add, 1).result)
            await caller.note()

    def refused_sync(caller: Caller) -> None:
        with caller.transaction():
            with pytest.raises(LaneClosed), app.flow("sums", via=caller.via) as f:
                f.add(add.using(lane="closed"), f.add(add, 1).result)
            caller.note()

    async with KINDS[kind](db.url) as caller:
        await caller.run(refused_sync if caller.thread else refused)
    assert await notes() == 1
    assert await db.fetchval("select count(*) from ff.execution") == before


async def test_a_connection_of_the_wrong_kind_is_refused(db, app, add):
    connection = await asyncpg.connect(db.url)
    with psycopg.connect(db.url) as other:
        with pytest.raises(InvalidInput, match=r"synchronous connection .*use `with app\.flow"):
            async with app.flow("sums", via=other) as f:
                f.add(add, 1)
        with pytest.raises(InvalidInput, match="not in a transaction"):
            async with app.flow("sums", via=connection) as f:
                f.add(add, 1)
        with pytest.raises(InvalidInput, match="must be an asyncpg or psycopg connection"):
            async with app.flow("sums", via=7) as f:
                f.add(add, 1)
    await connection.close()
    assert await db.fetchval("select count(*) from ff.execution") == 0
