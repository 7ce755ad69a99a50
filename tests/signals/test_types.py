"""Types at delivery: a value is checked where it is sent, by what the wait or task declared."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from flowfabric import App, Context, InvalidInput, PublicState, every, signal
from flowfabric.core import json_schema
from flowfabric.core.signal import Signal
from flowfabric.tasks.codec import codec_for
from flowfabric.tasks.signals import encode_signal, signal_schema
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


@pytest.mark.parametrize("door", ["name", "waitpoint"])
@pytest.mark.parametrize("sent", ["one by one", "at once"])
async def test_a_second_value_may_have_the_type_of_a_later_wait(app, stranger, door, sent):
    """The type of the open wait was asked of every value that came before the first was taken."""

    @app.task
    async def take(ctx: Context) -> list[Any]:
        if door == "name":
            first = await ctx.wait_for_signal("order", int)
        else:
            first = await (await ctx.waitpoint("order")).wait(int)
        return [first, await ctx.wait_for_signal("order", str)]

    def send(value: Any) -> Any:
        return stranger.signals.deliver(
            run.id, Signal(name="order", payload=json.dumps(value).encode())
        )

    run = await take.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
    with pytest.raises(InvalidInput, match="does not fit"):
        await send("text")
    if sent == "at once":
        await asyncio.gather(send(1), send("text"))
    else:
        await send(1)
        await send("text")
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [1, "text"]


async def test_each_of_two_open_waits_refuses_a_value_of_another_type(app, stranger):
    @app.task
    async def take(ctx: Context) -> list[int]:
        return sorted(
            await asyncio.gather(
                ctx.wait_for_signal("order", int), ctx.wait_for_signal("order", int)
            )
        )

    def send(value: Any) -> Any:
        return stranger.signals.deliver(
            run.id, Signal(name="order", payload=json.dumps(value).encode())
        )

    run = await take.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
    await send(1)
    with pytest.raises(InvalidInput, match="does not fit"):
        await send("text")
    await send(2)
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [1, 2]


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


class Part(BaseModel):
    part_id: int = Field(alias="partId")


class Whole(BaseModel):
    user_id: int = Field(serialization_alias="uid", validation_alias="userId")
    parts: list[Part]


@pytest.mark.parametrize(
    ("hint", "value", "wrong"),
    [
        (float, float("inf"), "many"),
        (float, float("nan"), "Nan"),
        (Whole, Whole(userId=1, parts=[Part(partId=2)]), {"userId": 1, "parts": [{}]}),
        (Whole, {"userId": 1, "parts": [{"partId": 2}]}, {"user_id": 1, "parts": [{}]}),
    ],
)
def test_a_type_takes_what_its_own_sender_writes(hint, value, wrong):
    schema = signal_schema(codec_for(hint))
    payload = encode_signal("order", value, {"order": Any if isinstance(value, dict) else hint})
    codec_for(hint).read(payload)
    Signal(name="order", payload=payload).check_type(1, schema)
    with pytest.raises(InvalidInput):
        Signal(name="order", payload=json.dumps(wrong).encode()).check_type(1, schema)


class Sum(BaseModel):
    part: Sum | Product | None = None
    kind: Literal["sum"]


class Product(BaseModel):
    part: Sum | Product | None = None
    kind: Literal["product"]


def test_each_part_of_nested_choices_is_looked_into_once(monkeypatch):
    looks: list[Any] = []
    look = json_schema._look

    def counted(schema: Any, value: Any, *rest: Any) -> Any:
        looks.append(value)
        return look(schema, value, *rest)

    monkeypatch.setattr(json_schema, "_look", counted)
    value = None
    for _ in range(15):
        value = {"part": value, "kind": "product"}
    schema = signal_schema(codec_for(Sum | Product))
    Signal(name="order", payload=json.dumps(value).encode()).check_type(1, schema)
    assert 15 < len(looks) < 1000
    value = {"part": {"part": value, "kind": "difference"}, "kind": "sum"}
    with pytest.raises(InvalidInput, match=r"part\.kind: must be"):
        Signal(name="order", payload=json.dumps(value).encode()).check_type(1, schema)


async def test_a_handler_cannot_wait_for_a_signal_that_its_task_does_not_take(app):
    @app.task(signals={"order": int})
    async def take(ctx: Context) -> list[str]:
        problems = []
        for wait in (
            ctx.signal("payment", int),
            ctx.wait_for(every(signal("order", int), signal("payment", int))),
        ):
            try:
                await wait
            except InvalidInput as error:
                problems.append(str(error))
        return problems

    run = await take.submit()
    async with working(app, concurrency=1):
        problems = await run.result(timeout=60)
    assert len(problems) == 2
    assert all("takes no signal 'payment'; it takes order" in one for one in problems)
