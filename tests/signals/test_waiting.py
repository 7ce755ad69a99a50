"""Handlers that wait for signals: typed, once, without a slot."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from flowfabric import (
    Context,
    ExecutionFailed,
    Fixed,
    InvalidInput,
    PublicState,
    Retry,
    WaitTimeout,
    first,
    first_sync,
    gather,
)
from flowfabric.core.errors import SignalLimitExceeded, TargetNotSignalable
from steps.stage import skip, until, until_held
from support.database import several_partitions
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)


class Receipt(BaseModel):
    amount: int


async def time_out(app, clock, span: timedelta) -> None:
    """Let time pass, and apply the timeouts of suspensions that became due by it."""
    now = await clock.advance(span)
    client = await app.client()

    async def are_applied() -> bool:
        """A worker that applies them at the same time has them locked."""
        await client.signals.expire_suspensions()
        return not await clock.db.fetchval(
            "select exists (select from ff.suspension"
            " where closed_at is null and timeout_at <= $1)",
            now,
        )

    await eventually(are_applied)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_wait_frees_the_slot_and_goes_on_with_the_value(app, db, kind):
    starts: list[int] = []

    if kind == "async":

        @app.task(name="ask")
        async def ask(ctx: Context) -> list[Any]:
            starts.append(1)
            await ctx.step("mail", lambda: 1)
            receipt = await ctx.wait_for_signal("paid", Receipt)
            return [receipt.amount, ctx.attempt]
    else:

        @app.task(name="ask")
        def ask(ctx: Context) -> list[Any]:
            starts.append(1)
            ctx.step_sync("mail", lambda: 1)
            receipt = ctx.wait_for_signal_sync("paid", Receipt)
            return [receipt.amount, ctx.attempt]

    @app.task
    async def quick() -> str:
        return "done"

    run = await ask.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        assert await (await quick.submit()).result(timeout=60) == "done", "the slot is free"
        (pending,) = await run.pending()
        assert (pending.signal, pending.until) == ("paid", None)
        sent = await run.signal("paid", {"amount": 7}, by="shop")
        assert sent.effect == "woken"
        assert await run.result(timeout=60) == [7, 1]
    assert len(starts) == 2
    assert await run.pending() == []


@several_partitions
async def test_a_signal_before_the_wait_counts(app):
    @app.task
    async def ask(ctx: Context) -> bool:
        return await ctx.wait_for_signal("approve", bool)

    run = await ask.submit()
    assert (await run.signal("approve", True)).effect == "buffered"
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) is True


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_wait_that_times_out_returns_its_default(app, clock, kind):
    if kind == "async":

        @app.task(name="ask")
        async def ask(ctx: Context) -> str:
            return await ctx.wait_for_signal("approve", str, timeout=HOUR, default="nobody")
    else:

        @app.task(name="ask")
        def ask(ctx: Context) -> str:
            return ctx.wait_for_signal_sync("approve", str, timeout=HOUR, default="nobody")

    run = await ask.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await time_out(app, clock, HOUR)
        assert await run.result(timeout=60) == "nobody"


async def test_without_a_default_a_timeout_raises_and_is_not_retried(app, clock):
    starts: list[int] = []

    @app.task(retry=Retry(max_retries=5, backoff=Fixed(timedelta(0))))
    async def ask(ctx: Context) -> str:
        starts.append(ctx.attempt)
        return await ctx.wait_for_signal("approve", str, timeout=HOUR)

    run = await ask.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await time_out(app, clock, HOUR)
        with pytest.raises(ExecutionFailed, match="No signal 'approve': none came in time"):
            await run.result(timeout=60)
    assert starts == [1, 1]


async def test_a_policy_that_names_the_timeout_retries_and_asks_again(app, clock):
    @app.task(
        retry=Retry(max_retries=1, backoff=Fixed(timedelta(0)), retry_on=(WaitTimeout, OSError))
    )
    async def ask(ctx: Context) -> str:
        return await ctx.wait_for_signal("approve", str, timeout=HOUR)

    run = await ask.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await time_out(app, clock, HOUR)

        async def is_asking_again() -> bool:
            return await run.state() == "suspended" and bool(
                await clock.db.fetchval("select attempt_index = 1 from ff.execution")
            )

        await eventually(is_asking_again)
        await run.signal("approve", "late")
        assert await run.result(timeout=60) == "late"


async def test_an_operator_ends_the_wait_with_its_default(app):
    @app.task
    async def ask(ctx: Context) -> str:
        return await ctx.wait_for_signal("approve", str, timeout=HOUR, default="default")

    run = await ask.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        client = await app.client()
        assert (await client.signals.resume(run.id, actor="ada")).outcome == "resumed"
        assert await run.result(timeout=60) == "default"


async def test_signals_come_in_order_and_the_position_is_durable(app):
    starts: list[int] = []

    @app.task
    async def listen(ctx: Context) -> list[int]:
        starts.append(1)
        notes: list[int] = []
        async for note in ctx.signals("note", int):
            notes.append(note)
            if note == 3:
                break
        return notes

    run = await listen.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        for n in (1, 2, 3):
            await run.signal("note", n)
        assert await run.result(timeout=60) == [1, 2, 3]
    assert len(starts) >= 2


async def test_a_retry_yields_the_same_signals_and_goes_on_after_them(app):
    @app.task(retry=Retry(max_retries=1, backoff=Fixed(timedelta(0))))
    async def listen(ctx: Context) -> list[int]:
        notes: list[int] = []
        async for note in ctx.signals("note", int):
            notes.append(note)
            if note == 2 and ctx.attempt == 1:
                raise OSError("the machine burns")
            if note == 3:
                break
        return notes

    run = await listen.submit()
    for n in (1, 2, 3):
        await run.signal("note", n)
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [1, 2, 3]


@pytest.mark.parametrize(
    ("how", "answers", "expected"),
    [
        ({}, [], [1, 2]),
        ({"from_step": "ff.signal b"}, [("b", 5)], [1, 5]),
        # The signal that no wait had taken is spent, too.
        ({"fresh": True}, [("a", 7), ("b", 8)], [7, 8]),
    ],
)
async def test_a_replay_keeps_asks_again_or_begins_anew(app, how, answers, expected):
    @app.task
    async def ask(ctx: Context) -> list[int]:
        return [await ctx.wait_for_signal(name, int) for name in ("a", "b")]

    run = await ask.submit()
    for name, value in (("a", 1), ("a", 9), ("b", 2)):
        await run.signal(name, value)
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [1, 2]
        await (await app.client()).executions.replay(run.id, **how)
        for name, value in answers:
            await until(run, PublicState.SUSPENDED)
            await run.signal(name, value)
        assert await run.result(timeout=60) == expected


async def test_a_plain_handler_iterates_over_signals(app):
    @app.task
    def listen(ctx: Context) -> list[int]:
        notes: list[int] = []
        for note in ctx.signals_sync("note", int):
            notes.append(note)
            if note == 2:
                return notes
        return []

    run = await listen.submit()
    async with working(app, concurrency=1):
        for n in (1, 2):
            await run.signal("note", n)
        assert await run.result(timeout=60) == [1, 2]


async def test_two_waits_side_by_side_depart_as_one_suspension(app, db):
    @app.task
    async def ask(ctx: Context) -> list[str]:
        return list(
            await asyncio.gather(ctx.wait_for_signal("a", str), ctx.wait_for_signal("b", str))
        )

    run = await ask.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        assert sorted(str(one.signal) for one in await run.pending()) == ["a", "b"]
        await run.signal("b", "2")

        async def waits_for_a() -> bool:
            return [one.signal for one in await run.pending()] == ["a"]

        await eventually(waits_for_a)
        await run.signal("a", "1")
        assert await run.result(timeout=60) == ["1", "2"]
    assert await db.fetchval("select count(*) from ff.suspension") == 2


@pytest.mark.parametrize(
    ("winner", "kind"),
    [("run", "async"), ("signal", "async"), ("sleep", "async"), ("run", "plain"),
     ("signal", "plain"), ("sleep", "plain")],
)  # fmt: skip
async def test_the_first_of_a_run_a_signal_and_a_sleep(app, clock, winner, kind):
    @app.task
    async def child(ctx: Context) -> str:
        return await ctx.wait_for_signal("go", str)

    if kind == "async":

        @app.task(name="race")
        async def race(ctx: Context) -> list[Any]:
            run = await ctx.submit(child)
            won = await first(run, ctx.signal("stop", str), ctx.sleep(HOUR))
            await ctx.step("note", lambda: 1)
            return [won.index, won.value, str(run.id)]
    else:

        @app.task(name="race")
        def race(ctx: Context) -> list[Any]:
            run = ctx.submit_sync(child)
            won = first_sync(run, ctx.signal("stop", str), HOUR)
            ctx.step_sync("note", lambda: 1)
            return [won.index, won.value, str(run.id)]

    run = await race.submit()
    async with working(app, concurrency=2):
        await until(run, PublicState.SUSPENDED)
        if winner == "run":
            id = await clock.db.fetchval(
                "select e.execution_id from ff.execution e join ff.route r using (route_id)"
                " where r.task like '%child'"
            )
            other = app.get(id)
            await until(other, PublicState.SUSPENDED)
            await other.signal("go", "went")
        elif winner == "signal":
            await run.signal("stop", "enough")
        else:
            await time_out(app, clock, HOUR)
        index, value, _ = await run.result(timeout=60)
    assert (index, value) == {
        "run": (0, "went"),
        "signal": (1, "enough"),
        "sleep": (2, None),
    }[winner]


@pytest.mark.parametrize("several", [False, True])
async def test_a_handler_that_waits_in_its_slot_does_not_pause_for_a_signal(app, db, several):
    """It paused, and submitted another run when it went on: it never learned how the first ended.

    A run that was submitted without the context is not in the journal.
    """

    @app.task
    async def child(ctx: Context) -> str:
        return await ctx.wait_for_signal("go", str)

    @app.task
    async def race(ctx: Context) -> Any:
        runs = [await child.submit(), await child.submit()]
        won = await first(
            gather(runs) if several else runs[0], ctx.signal("stop", str), ctx.sleep(HOUR)
        )
        return won.value

    run = await race.submit()
    async with working(app, concurrency=3):

        async def are_waiting() -> bool:
            count = "select count(*) from ff.execution where public_state = 'suspended'"
            return bool(await db.fetchval(count) == 2)

        await eventually(are_waiting)
        for row in await db.fetch(
            "select execution_id from ff.execution where public_state = 'suspended'"
        ):
            await app.get(row[0]).signal("go", "went")
        assert await run.result(timeout=60) == (["went", "went"] if several else "went")
    assert await db.fetchval("select count(*) from ff.execution") == 3


async def test_the_loser_of_a_race_leaves_the_signal_to_the_next_wait(app, clock):
    @app.task
    async def race(ctx: Context) -> list[Any]:
        won = await first(ctx.signal("stop", str), ctx.sleep(HOUR))
        return [won.index, await ctx.wait_for_signal("stop", str)]

    run = await race.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
    await clock.advance(hours=1)
    client = await app.client()
    await (
        client.signals.expire_suspensions()
    )  # the sleep has ended, and only then does the signal come
    await clock.advance(seconds=1)
    await run.signal("stop", "kept")
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [1, "kept"]


async def test_a_sleep_and_a_run_depart_as_one_suspension(app, clock):
    @app.task
    async def child(ctx: Context) -> str:
        return await ctx.wait_for_signal("go", str)

    @app.task
    async def race(ctx: Context) -> int:
        run = await ctx.submit(child)
        return (await first(run, ctx.sleep(HOUR))).index

    run = await race.submit()
    async with working(app, concurrency=2):
        await until(run, PublicState.SUSPENDED)
        await time_out(app, clock, HOUR)
        assert await run.result(timeout=60) == 1


async def test_a_wait_beside_a_running_step_gets_its_signal(app):
    """The step keeps the handler from pausing; the wait looks for its signal meanwhile."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> int:
        begun.set()
        await go.wait()
        return 1

    @app.task
    async def both(ctx: Context) -> list[Any]:
        async def answer() -> str:
            value = await ctx.wait_for_signal("a", str)
            go.set()
            return value

        return list(await asyncio.gather(ctx.step("slow", slow), answer()))

    run = await both.submit()
    async with working(app, concurrency=1):
        await asyncio.wait_for(begun.wait(), 60)
        await run.signal("a", "x")
        assert await run.result(timeout=60) == [1, "x"]


# Types


async def test_a_value_that_does_not_fit_the_declared_type_is_refused_at_delivery(app, db):
    @app.task(signals={"paid": Receipt})
    async def ask(ctx: Context) -> int:
        return (await ctx.wait_for_signal("paid", Receipt)).amount

    run = await ask.submit()
    with pytest.raises(InvalidInput, match="amount") as refused:
        await run.signal("paid", {"amount": "many"})
    assert refused.value.field == "value"
    with pytest.raises(InvalidInput, match="takes no signal 'payed'; it takes paid"):
        await run.signal("payed", {"amount": 1})
    with pytest.raises(InvalidInput, match="amount"):
        await app.get(run.id).signal("paid", {})
    assert await db.fetchval("select count(*) from ff.signal") == 0
    await run.signal("paid", Receipt(amount=3))
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == 3


async def test_an_undeclared_value_that_does_not_fit_holds_the_execution(app, db):
    @app.task
    async def ask(ctx: Context) -> int:
        return (await ctx.wait_for_signal("paid", Receipt)).amount

    run = await ask.submit()
    await run.signal("paid", {"amount": "many"})
    async with working(app, concurrency=1):
        problem = await until_held(db, run)
    assert "signal paid" in problem
    assert "amount" in problem


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [("", 1, "name"), ("a\nb", 1, "name"), ("x" * 257, 1, "name"), ("a", "x" * 70_000, "64 KiB")],
)
async def test_a_bad_signal_is_refused_before_the_call(app, name, value, problem):
    @app.task
    async def ask(ctx: Context) -> None: ...

    run = await ask.submit()
    with pytest.raises(InvalidInput, match=problem):
        await run.signal(name, value)


async def test_an_ended_run_takes_no_signal(app):
    @app.task
    async def quick() -> int:
        return 1

    run = await quick.submit()
    async with working(app, concurrency=1):
        await run.result(timeout=60)
    with pytest.raises(TargetNotSignalable, match="has ended"):
        await run.signal("approve", True)


async def test_the_same_key_is_sent_once(app):
    @app.task
    async def ask(ctx: Context) -> list[int]:
        return [await ctx.wait_for_signal("a", int), await ctx.wait_for_signal("a", int)]

    run = await ask.submit()
    one = await run.signal("a", 1, key="k")
    two = await run.signal("a", 5, key="k")
    assert (two.is_duplicate, two.id) == (True, one.id)
    await run.signal("a", 2)
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [1, 2]


async def test_a_handler_sends_a_signal_once_however_often_it_restarts(app, db):
    @app.task
    async def sender(ctx: Context, id: str) -> None:
        await app.get(id).signal("a", 1)
        await ctx.wait_for_signal("again", int)

    @app.task
    async def ask(ctx: Context) -> int:
        return await ctx.wait_for_signal("a", int) + await ctx.wait_for_signal("b", int)

    target = await ask.submit()
    run = await sender.submit(str(target.id))
    async with working(app, concurrency=2):
        await until(run, PublicState.SUSPENDED)
        await run.signal("again", 1)
        await run.result(timeout=60)
        assert await db.fetchval("select count(*) from ff.signal where name = 'a'") == 1
        await target.signal("b", 2)
        assert await target.result(timeout=60) == 3


# In the caller's transaction


async def test_a_signal_in_the_callers_transaction_comes_with_its_commit(app, db):
    @app.task
    async def ask(ctx: Context) -> int:
        return await ctx.wait_for_signal("a", int)

    run = await ask.submit()
    connection = await db.connect()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        transaction = connection.transaction()
        await transaction.start()
        await run.signal("a", 1, via=connection)
        await transaction.rollback()
        async with connection.transaction():
            assert (await run.signal("a", 2, via=connection)).effect == "stored"
            assert await run.state() == "suspended"
        assert await run.result(timeout=60) == 2


async def test_synchronous_code_sends_signals(app):
    @app.task
    async def ask(ctx: Context) -> int:
        return await ctx.wait_for_signal("a", int)

    run = await ask.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        assert len(await asyncio.to_thread(run.pending_sync)) == 1
        await asyncio.to_thread(run.signal_sync, "a", 4)
        assert await run.result(timeout=60) == 4


async def test_a_wait_is_refused_inside_a_step(app):
    @app.task
    async def ask(ctx: Context) -> None:
        async def inner() -> None:
            await ctx.wait_for_signal("a")

        await ctx.step("s", inner)

    run = await ask.submit()
    async with working(app, concurrency=1):
        with pytest.raises(ExecutionFailed, match="inside the function of step"):
            await run.result(timeout=60)


async def test_a_sleeping_and_a_waiting_branch_wake_at_the_earlier(app, clock):
    @app.task
    async def both(ctx: Context) -> list[Any]:
        async def nap() -> str:
            await ctx.sleep(HOUR)
            return "slept"

        return list(await asyncio.gather(nap(), ctx.wait_for_signal("a", str)))

    run = await both.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await run.signal("a", "x")
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == ["slept", "x"]


async def test_the_last_free_places_of_the_mailbox_are_given_in_a_batch_too(app, db):
    @app.task
    async def ask(ctx: Context) -> None: ...

    run = await ask.submit()
    await run.signal("a", 0)
    await db.execute(
        "insert into ff.signal (partition_key, execution_id, signal_id, name, source_type,"
        " accepted_at, noticed_at, effect, xid)"
        " select g.partition_key, g.execution_id, gen_random_uuid(), 'a', 'caller', g.accepted_at,"
        " g.noticed_at, 'buffered', g.xid from ff.signal g, generate_series(1, 9994)"
    )
    sent = await asyncio.gather(*(run.signal("a", n) for n in range(10)), return_exceptions=True)
    assert sum(isinstance(one, SignalLimitExceeded) for one in sent) == 5
    assert await db.fetchval("select count(*) from ff.signal") == 10_000
