"""Types at delivery: a value is checked where it is sent, by what the wait or task declared."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from flowfabric import App, Context, InvalidInput, PublicState, every, signal
from flowfabric.core.signal import Signal
from steps.stage import until
from worker.apps import working


class Item(BaseModel):
    name: str
    amount: int = Field(ge=1)


class Order(BaseModel):
    id: int
    items: list[Item]
    note: str | None = None


@pytest.fixture
async def stranger_app(app):
    """An app on the same database that knows no task of the other."""
    async with App(name="stranger", database_url=app.database_url) as stranger:
        yield stranger


@pytest.fixture
async def stranger(stranger_app):
    return await stranger_app.client()


@pytest.mark.parametrize("door", ["name", "token", "condition"])
async def test_a_wait_refuses_a_value_of_another_type_where_it_is_sent(app, stranger, db, door):
    tokens: list[str] = []

    @app.task
    async def take(ctx: Context) -> Any:
        if door == "token":
            paid = await ctx.waitpoint("order")
            tokens.append(paid.token)
            return (await paid.wait(Order)).id
        if door == "condition":
            order, other = await ctx.wait_for(every(signal("order", Order), signal("other", int)))
            return order.id + other
        return (await ctx.wait_for_signal("order", Order)).id

    def send(value: Any) -> Any:
        sent = Signal(name="order", payload=json.dumps(value).encode())
        if door == "token":
            return stranger.signals.deliver_by_token(tokens[0], sent)
        return stranger.signals.deliver(run.id, sent)

    run = await take.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        for bad, path in (({"id": "x", "items": []}, "id"), ({"id": 1}, "items"), (3, "")):
            with pytest.raises(InvalidInput, match=f"does not fit .*: {path}") as caught:
                await send(bad)
            assert caught.value.field == "value"
        assert await db.fetchval("select count(*) from ff.signal") == 0
        await send({"id": 7, "items": []})
        if door == "condition":
            await run.signal("other", 1)
        assert await run.result(timeout=60) == (8 if door == "condition" else 7)


async def test_a_task_declares_its_signals_for_every_sender(app, stranger, stranger_app, db):
    @app.task(signals={"order": Order, "stop": Any})
    async def take(ctx: Context) -> int:
        await ctx.sleep(3600)
        return 1

    run = await take.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.DELAYED)
    with pytest.raises(InvalidInput, match="items: is missing"):
        await stranger.signals.deliver(run.id, Signal(name="order", payload=b'{"id": 1}'))
    with pytest.raises(InvalidInput, match="takes no signal go; it takes order, stop"):
        await stranger.signals.deliver(run.id, Signal(name="go"))
    await stranger.signals.deliver(run.id, Signal(name="stop", payload=b"[1]"))
    several = [Signal(name="order", payload=b'{"id": %d, "items": []}' % n) for n in range(3)]
    for one in several:
        await stranger.signals.deliver(run.id, one)
    assert await db.fetchval("select count(*) from ff.signal") == 4
    described = await stranger.tasks.describe(take.name)
    assert described.signals is not None
    assert described.signals["order"]["required"] == ["id", "items"]
    async with db.conn.transaction():
        unknowing = stranger_app.run_of(run.id, take.name)
        with pytest.raises(InvalidInput, match="is missing"):
            await unknowing.signal("order", {"id": 1}, via=db.conn)
        await unknowing.signal("order", {"id": 1, "items": []}, via=db.conn)
    assert await db.fetchval("select count(*) from ff.signal") == 5


@pytest.mark.parametrize("door", ["name", "token"])
async def test_newer_code_takes_the_type_that_it_waits_for(app, door):
    tokens: list[str] = []
    hints: list[Any] = [int]

    @app.task
    async def take(ctx: Context) -> Any:
        if door == "name":
            return await ctx.wait_for_signal("order", hints[-1])
        paid = await ctx.waitpoint("order")
        tokens.append(paid.token)
        return await paid.wait(hints[-1])

    run = await take.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await run.cancel()
        await until(run, PublicState.CANCELLED)
        hints.append(str)
        await (await app.client()).executions.replay(run.id)
        await until(run, PublicState.SUSPENDED)
        if door == "name":
            await run.signal("order", "text")
        else:
            await app.signal(tokens[-1], "text")
        assert await run.result(timeout=60) == "text"


async def test_a_value_that_is_nested_too_deeply_is_refused_alone(app, stranger):
    @app.task(signals={"order": list[Any]})
    async def take(ctx: Context) -> list[Any]:
        return await ctx.wait_for_signal("order", list[Any])

    run = await take.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        deep, other = await asyncio.gather(
            stranger.signals.deliver(
                run.id, Signal(name="order", payload=b"[" * 30_000 + b"]" * 30_000)
            ),
            stranger.signals.deliver(run.id, Signal(name="order", payload=b"[1]")),
            return_exceptions=True,
        )
        assert "nested too deeply" in str(deep)
        assert not isinstance(other, BaseException)
        assert await run.result(timeout=60) == [1]
