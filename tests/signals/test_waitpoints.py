"""Waitpoints in handlers: a token now, the answer later; and the commands for keys and tokens."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from flowfabric import Context, ExecutionFailed, InvalidInput, PublicState, WaitTimeout
from flowfabric.core.errors import InvalidToken, TargetNotSignalable, WaitpointClosed
from steps.stage import until
from worker.apps import working

HOUR = timedelta(hours=1)


class Receipt(BaseModel):
    amount: int


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_token_is_handed_out_and_its_answer_awaited(app, db, kind):
    sent: list[str] = []

    if kind == "async":

        @app.task(name="pay")
        async def pay(ctx: Context) -> int:
            paid = await ctx.waitpoint("payment")
            await ctx.step("ask", sent.append, paid.token)
            receipt = await paid.wait(Receipt, timeout=HOUR)
            return receipt.amount
    else:

        @app.task(name="pay")
        def pay(ctx: Context) -> int:
            paid = ctx.waitpoint_sync("payment")
            ctx.step_sync("ask", sent.append, paid.token)
            receipt: Receipt = paid.wait_sync(Receipt, timeout=HOUR)
            return receipt.amount

    run = await pay.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        (token,) = sent
        with pytest.raises(InvalidToken):
            await app.signal(token[:-2] + ("AA" if token[-2:] != "AA" else "QA"), {"amount": 7})
        # `stored` if the row is locked at this moment: a reconciler notices it then.
        assert (await app.signal(token, {"amount": 7}, by="shop")).effect in ("woken", "stored")
        assert await run.result(timeout=60) == 7
        with pytest.raises((WaitpointClosed, TargetNotSignalable)):
            await app.signal(token, {"amount": 8})
    assert len(sent) == 1
    assert await db.fetchval("select source_identity from ff.signal") == "shop"


async def test_an_answer_before_the_wait_counts_and_a_later_run_has_the_same_token(app):
    tokens: list[str] = []
    asked, go = asyncio.Event(), asyncio.Event()

    async def ask(token: str) -> None:
        asked.set()
        await go.wait()

    @app.task
    async def pay(ctx: Context) -> list[Any]:
        paid = await ctx.waitpoint("payment")
        tokens.append(paid.token)
        await ctx.step("ask", ask, paid.token)
        first = await paid.wait(int)
        return [first, await ctx.wait_for_signal("more", int)]

    run = await pay.submit()
    async with working(app, concurrency=1):
        await asyncio.wait_for(asked.wait(), 60)
        await app.signal(tokens[0], 1)
        go.set()
        await until(run, PublicState.SUSPENDED)
        await run.signal("more", 2)
        assert await run.result(timeout=60) == [1, 2]
    assert len(set(tokens)) == 1
    assert len(tokens) == 2


async def test_a_signal_by_name_answers_the_waitpoint(app):
    @app.task
    async def pay(ctx: Context) -> int:
        return await (await ctx.waitpoint("payment")).wait(int)

    run = await pay.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await run.signal("payment", 5)
        assert await run.result(timeout=60) == 5


async def test_the_link_needs_a_public_url(make_app, monkeypatch):
    monkeypatch.setenv("FLOWFABRIC_PUBLIC_URL", "https://shop.example/")
    app = make_app()

    @app.task
    async def link(ctx: Context) -> list[str]:
        paid = await ctx.waitpoint("payment")
        return [paid.url, paid.token]

    run = await link.submit()
    async with working(app, concurrency=1):
        url, token = await run.result(timeout=60)
    assert url == f"https://shop.example/w/{token}"
    monkeypatch.setenv("FLOWFABRIC_PUBLIC_URL", "shop.example")
    with pytest.raises(InvalidInput, match="https://"):
        make_app()


async def test_without_a_public_url_the_link_says_what_to_set(app):
    @app.task
    async def link(ctx: Context) -> str:
        return (await ctx.waitpoint("payment")).url

    run = await link.submit()
    async with working(app, concurrency=1):
        with pytest.raises(ExecutionFailed, match="FLOWFABRIC_PUBLIC_URL"):
            await run.result(timeout=60)


async def test_the_token_is_not_shown_by_the_waitpoint_or_the_journal(app):
    @app.task
    async def link(ctx: Context) -> list[str]:
        paid = await ctx.waitpoint("payment")
        return [repr(paid), paid.token]

    run = await link.submit()
    async with working(app, concurrency=1):
        shown, token = await run.result(timeout=60)
    assert token not in shown
    client = await app.client()
    (step,) = await client.steps.list(run.id)
    assert (step.encoding, token in repr(step)) == ("secret", False)


async def test_a_text_that_is_no_token_is_refused_like_a_wrong_token(app):
    for text in ("", "x", "ffw_", "ffw_" + "A" * 93, "ffw_" + "é" * 93):
        with pytest.raises(InvalidToken):
            await app.signal(text, 1)


@pytest.mark.parametrize("sent", ["before", "in a transaction that was open before"])
async def test_a_signal_by_name_from_before_the_waitpoint_answers_it(app, db, sent):
    @app.task
    async def pay(ctx: Context) -> int:
        return await (await ctx.waitpoint("payment")).wait(int)

    run = await pay.submit()
    connection = await db.connect()
    transaction = connection.transaction()
    await transaction.start()
    await run.signal("payment", 5, key="k", via=connection)
    if sent == "before":
        await transaction.commit()
    async with working(app, concurrency=1):
        if sent != "before":
            await until(run, PublicState.SUSPENDED)
            await transaction.commit()
        assert await run.result(timeout=60) == 5


async def test_a_replay_from_the_wait_asks_the_holder_of_the_token_again(app):
    tokens: list[str] = []

    @app.task
    async def pay(ctx: Context) -> int:
        paid = await ctx.waitpoint("payment")
        tokens.append(paid.token)
        return await paid.wait(int)

    run = await pay.submit()
    async with working(app, concurrency=1):
        for n in (1, 2):
            await until(run, PublicState.SUSPENDED)
            await app.signal(tokens[0], n)
            assert await run.result(timeout=60) == n
            if n == 1:
                client = await app.client()
                await client.executions.replay(run.id, from_step="ff.answer payment")
    assert len(set(tokens)) == 1


async def test_the_longest_names_can_be_waited_for_and_sent(app):
    name, key = "é" * 128, "k" * 256

    @app.task
    async def pay(ctx: Context) -> int:
        paid = await ctx.waitpoint(key)
        return await paid.wait(int) + await ctx.wait_for_signal(name, int)

    @app.task
    async def payer(id: str) -> None:
        await app.get(id).signal(name, 1)
        await app.get(id).signal(key, 2)

    run = await pay.submit()
    async with working(app, concurrency=2):
        await until(run, PublicState.SUSPENDED)
        sent = await payer.submit(str(run.id))
        await sent.result(timeout=60)
        assert await run.result(timeout=60) == 3


@pytest.mark.parametrize("why", ["answered", "expired"])
async def test_a_wait_for_a_dead_waitpoint_ends_at_once(app, clock, why):
    @app.task
    async def pay(ctx: Context) -> list[Any]:
        paid = await ctx.waitpoint("payment", expires_in=HOUR)
        if why == "answered":
            await paid.wait(int)
        else:
            await ctx.wait_for_signal("go")
        nobody = await paid.wait(int, default="nobody")
        try:
            await paid.wait(int)
        except WaitTimeout as error:
            return [nobody, str(error)]

    run = await pay.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        if why == "answered":
            await run.signal("payment", 1)
        else:
            await clock.advance(HOUR)
            await (await app.client()).signals.expire_waitpoints()
            await run.signal("go")
        nobody, error = await run.result(timeout=60)
    assert (nobody, "No signal 'payment'" in error) == ("nobody", True)


async def test_a_second_signal_by_name_waits_for_the_next_wait(app, db):
    """It was bound to the waitpoint of that name, and lost when the first one had answered it."""

    @app.task
    async def work(ctx: Context) -> list[int]:
        paid = await ctx.waitpoint("pay")
        return [await paid.wait(int), await ctx.wait_for_signal("pay", int)]

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.SUSPENDED)
    for value in (1, 2):
        await run.signal("pay", value)
    async with working(app):
        assert await run.result(timeout=60) == [1, 2]
