"""A step that failed and whose failure the handler caught has failed for every later run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest

from flowfabric import (
    Context,
    ExecutionFailed,
    Fixed,
    InvalidInput,
    PublicState,
    Retry,
    StepFailed,
    Unavailable,
)
from flowfabric.client.steps import Steps
from flowfabric.core.states import StepKind
from flowfabric.core.step import StepRecord
from flowfabric.db import call
from flowfabric.handlers.step_errors import error_of, stored_error
from steps.stage import journal, skip, until, until_held
from worker.apps import working
from worker.test_leases_kept import steal
from worker.waiting import eventually

HOUR = timedelta(hours=1)
AT_ONCE = Fixed(timedelta(0))
AGAIN = Retry(max_retries=1, backoff=AT_ONCE)


class SoldOut(Exception):
    def __init__(self, article: str, left: int, *, shop: object = None) -> None:
        super().__init__(article, left)
        self.left = left
        self.status = HTTPStatus.GONE
        self.shop = shop

    def __str__(self) -> str:
        return f"{self.args[0]} is sold out"


class Vanished(Exception):
    """A class that is not there any more in the later run."""


class Shop:
    """What may happen once, and what did. The second reservation would succeed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def charge(self) -> int:
        self.calls.append("charge")
        return 7

    def reserve(self) -> str:
        self.calls.append("reserve")
        if self.calls.count("reserve") == 1:
            raise SoldOut("hat", 0, shop=self)
        return "reserved"

    def refund(self, payment: int) -> str:
        self.calls.append("refund")
        return f"refunded {payment}"

    def ship(self) -> str:
        self.calls.append("ship")
        return "shipped"


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def kinds(db: Any) -> dict[str, str]:
    """Name and kind of what is recorded, in order."""
    rows = await db.fetch("select name, kind::text from ff.step order by position, name")
    return {row["name"]: row["kind"] for row in rows}


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("how", ["sleep", "retry", "crash"])
async def test_what_was_compensated_is_not_done_after_all(app, db, clock, shop, kind, how):
    reached = threading.Event()
    caught: list[tuple[str, int]] = []

    if kind == "async":

        @app.task(retry=AGAIN)
        async def order(ctx: Context) -> str:
            payment = await ctx.step("charge", shop.charge)
            try:
                await ctx.step("reserve", shop.reserve)
            except SoldOut as error:
                caught.append((str(error), error.left))
                await ctx.step("refund", shop.refund, payment)
                if how == "sleep":
                    await ctx.sleep(HOUR)
                elif how == "retry" and ctx.attempt == 1:
                    raise RuntimeError("once more") from None
                elif how == "crash" and ctx.epoch == 1:
                    reached.set()
                    await asyncio.sleep(60)
                return "refunded"
            return await ctx.step("ship", shop.ship)
    else:

        @app.task(retry=AGAIN)
        def order(ctx: Context) -> str:
            payment = ctx.step_sync("charge", shop.charge)
            try:
                ctx.step_sync("reserve", shop.reserve)
            except SoldOut as error:
                caught.append((str(error), error.left))
                ctx.step_sync("refund", shop.refund, payment)
                if how == "sleep":
                    ctx.sleep_sync(HOUR)
                elif how == "retry" and ctx.attempt == 1:
                    raise RuntimeError("once more") from None
                elif how == "crash" and ctx.epoch == 1:
                    reached.set()
                    while not ctx.cancelled:
                        time.sleep(0.01)
                return "refunded"
            return ctx.step_sync("ship", shop.ship)

    run = await order.submit()
    async with working(app):
        if how == "sleep":
            await until(run, PublicState.DELAYED)
            await skip(app, clock, HOUR)
        elif how == "crash":
            await eventually(reached.is_set)
            await (await app.client()).leases.revoke(run.id, reason="crash", actor="test")
        assert await run.result(timeout=60) == "refunded"
    assert shop.calls == ["charge", "reserve", "refund"]
    assert caught == [("hat is sold out", 0)] * 2
    found = await kinds(db)
    assert list(found)[:3] == ["charge", "reserve", "refund"]
    assert [found[name] for name in ("charge", "reserve", "refund")] == ["step", "failure", "step"]
    rows = await db.fetch("select position, is_sequential from ff.step order by position")
    assert [row["position"] for row in rows] == list(range(len(rows)))
    assert all(row["is_sequential"] for row in rows)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_failure_that_ends_the_attempt_is_not_remembered(app, db, shop, kind):
    if kind == "async":

        @app.task(retry=AGAIN)
        async def order(ctx: Context) -> str:
            await ctx.step("charge", shop.charge)
            try:
                return await ctx.step("reserve", shop.reserve)
            except SoldOut as error:
                raise RuntimeError("no hat") from error
    else:

        @app.task(retry=AGAIN)
        def order(ctx: Context) -> str:
            ctx.step_sync("charge", shop.charge)
            return ctx.step_sync("reserve", shop.reserve)

    run = await order.submit()
    async with working(app):
        assert await run.result(timeout=60) == "reserved"
    assert shop.calls == ["charge", "reserve", "reserve"]
    assert await kinds(db) == {"charge": "step", "reserve": "step"}


@pytest.mark.parametrize("what", ["step", "sleep", "now", "submit", "result", "return"])
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_it_is_recorded_before_whatever_comes_next(app, db, shop, kind, what, monkeypatch):
    """It has been answered when the next call to the database is sent."""

    @app.task
    async def child() -> int:
        return 1

    other = await child.submit()
    invoke = call.invoke
    sent: list[tuple[str, Any]] = []

    async def noted(connection: Any, statement: Any, args: Any) -> Any:
        is_failure = statement.name == "record_steps" and ["failure"] in args
        if not is_failure:
            sent.append((statement.name, args))
        rows = await invoke(connection, statement, args)
        # A call that finds the row locked, for example by a renewal, is sent again.
        if is_failure and rows[0]["outcome"] != "busy":
            sent.append(("failure", args))
        return rows

    monkeypatch.setattr(call, "invoke", noted)

    if kind == "async":

        @app.task
        async def work(ctx: Context) -> str:
            try:
                await ctx.step("reserve", shop.reserve)
            except SoldOut:
                match what:
                    case "step":
                        await ctx.step("next", shop.ship)
                    case "sleep":
                        await ctx.sleep(0)
                    case "now":
                        await ctx.now()
                    case "submit":
                        await ctx.submit(child)
                    case "result":
                        await other.result()
            return "done"
    else:

        @app.task
        def work(ctx: Context) -> str:
            try:
                ctx.step_sync("reserve", shop.reserve)
            except SoldOut:
                match what:
                    case "step":
                        ctx.step_sync("next", shop.ship)
                    case "sleep":
                        ctx.sleep_sync(0)
                    case "now":
                        ctx.now_sync()
                    case "submit":
                        ctx.submit_sync(child)
                    case "result":
                        other.result_sync()
            return "done"

    async with working(app):
        await other.result(timeout=60)
        sent.clear()
        run = await work.submit()
        assert await run.result(timeout=60) == "done"
    mine = {
        "submit": ("submit_executions", run),  # named as the parent, among the options
        "result": ("read_results", other),
        "return": ("complete_executions", run),
    }
    name, subject = mine.get(what, ("record_steps", run))
    shown = {repr(subject.id.uuid), str(subject.id.uuid), subject.id.uuid.hex}
    order = [
        one
        for one, args in sent
        if one == "failure" or (one == name and any(text in repr(args) for text in shown))
    ]
    if what == "submit":
        del order[0]  # the submit of the execution itself
    assert order[:2] == ["failure", name]
    assert (await kinds(db))["reserve"] == "failure"
    assert shop.calls.count("reserve") == 1


async def test_a_failure_the_handler_returned_over_stays_when_it_is_replayed(app, db, shop):
    @app.task
    async def work(ctx: Context) -> str:
        try:
            return await ctx.step("reserve", shop.reserve)
        except SoldOut as error:
            return str(error)

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == "hat is sold out"
        client = await app.client()
        await client.executions.replay(run.id)

        async def again() -> bool:
            row = await db.fetchrow("select replay_count, public_state::text from ff.execution")
            return tuple(row) == (1, "completed")

        await eventually(again)
        assert await run.result(timeout=60) == "hat is sold out"
        assert shop.calls == ["reserve"]
        # From the step on, it is called again.
        await client.executions.replay(run.id, from_step="reserve")
        await eventually(lambda: len(shop.calls) == 2)
        assert await run.result(timeout=60) == "reserved"
    assert await kinds(db) == {"reserve": "step"}


async def test_a_held_execution_that_forgets_it_calls_the_function_again(app, db, clock, shop):
    names = ["reserve", "refund"]

    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.step(names[0], shop.reserve)
        except SoldOut:
            await ctx.step(names[1], shop.refund, 7)
            await ctx.sleep(HOUR)
            return "refunded"
        return await ctx.step("ship", shop.ship)

    run = await order.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        names[0] = "book"
        await skip(app, clock, HOUR)
        detail = await until_held(db, run)
        assert detail.startswith("reserve: the code runs 'book' where this was recorded")
        assert shop.calls == ["reserve", "refund"]
        client = await app.client()
        await client.executions.replay(run.id, from_step="reserve")
        assert await run.result(timeout=60) == "shipped"
    assert shop.calls == ["reserve", "refund", "reserve", "ship"]


async def test_a_handler_that_leaves_a_failure_out_is_held(app, db, clock, shop):
    is_new = False

    @app.task
    async def work(ctx: Context) -> str:
        if not is_new:
            await asyncio.gather(ctx.step("reserve", shop.reserve), return_exceptions=True)
            await ctx.sleep(HOUR)
        return "done"

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        is_new = True
        await skip(app, clock, HOUR)
        assert (await until_held(db, run)).startswith("reserve: was recorded, but the handler")


async def test_the_retries_of_a_step_come_first(app, db, clock):
    calls: list[int] = []

    def away() -> None:
        calls.append(1)
        raise ConnectionError(len(calls), "away")

    @app.task
    async def work(ctx: Context) -> list[Any]:
        try:
            await ctx.step("away", away, retry=Retry(max_retries=2, backoff=AT_ONCE))
        except ConnectionError as error:
            await ctx.sleep(HOUR)
            return [error.errno, error.strerror, *error.args]
        return []

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        assert len(calls) == 3
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == [3, "away", 3, "away"]
    assert len(calls) == 3


async def test_a_loop_of_its_own_goes_through_its_rounds(app, db, clock):
    calls: list[int] = []

    async def poll() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise TimeoutError("not yet")
        return f"after {len(calls)}"

    @app.task
    async def work(ctx: Context) -> str:
        while True:
            try:
                return await ctx.step("poll", poll)
            except TimeoutError:
                await ctx.sleep(HOUR)

    run = await work.submit()
    async with working(app):
        for n in range(2):
            await eventually(lambda n=n: len(calls) == n + 1)
            await until(run, PublicState.DELAYED)
            await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == "after 3"
    assert len(calls) == 3
    assert list(await journal(db, run)) == [
        *(("poll", 0), ("ff.sleep", 0), ("poll", 1), ("ff.sleep", 1), ("poll", 2))
    ]


# Side by side


async def test_failures_among_steps_side_by_side_are_the_same_in_the_next_run(app, db, clock):
    calls: list[int] = []
    runs: list[list[Any]] = []

    async def one(n: int) -> int:
        calls.append(n)
        await asyncio.sleep(0.001 * n)
        if n % 2 and calls.count(n) == 1:
            raise SoldOut(f"article {n}", n)
        return n

    @app.task
    async def work(ctx: Context) -> None:
        found = await asyncio.gather(
            *(ctx.step(f"one-{n}", one, n) for n in range(6)), return_exceptions=True
        )
        runs.append([f"{type(x).__name__} {x}" if isinstance(x, Exception) else x for x in found])
        await ctx.sleep(HOUR)

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        await run.result(timeout=60)
    odd = {n: f"SoldOut article {n} is sold out" for n in (1, 3, 5)}
    assert runs == [[odd.get(n, n) for n in range(6)]] * 2
    assert sorted(calls) == list(range(6))
    rows = await db.fetch("select distinct position from ff.step where kind <> 'sleep'")
    assert len(rows) == 1, "they share a position"


async def test_branches_that_go_on_do_not_make_a_failure_of_another_last(app, db):
    """The attempt fails by it: the next one has to call the function again."""
    calls: list[str] = []
    went_on = asyncio.Event()

    async def note(name: str) -> str:
        calls.append(name)
        if name == "bad 1" and calls.count(name) == 1:
            raise ConnectionError("away")
        return name

    async def branch(ctx: Context, letter: str) -> None:
        await ctx.step(f"{letter} 1", note, f"{letter} 1")
        if letter == "good" and not went_on.is_set():
            await asyncio.sleep(0.02)
        await ctx.step(f"{letter} 2", note, f"{letter} 2")
        went_on.set()

    @app.task(retry=AGAIN)
    async def work(ctx: Context) -> str:
        try:
            await asyncio.gather(branch(ctx, "good"), branch(ctx, "bad"))
        except ConnectionError:
            await went_on.wait()
            raise
        return "done"

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == "done"
    assert calls == ["good 1", "bad 1", "good 2", "bad 1", "bad 2"]
    assert set((await kinds(db)).values()) == {"step"}


async def test_a_task_nobody_has_looked_at_has_not_been_got_over(app, db):
    """The handler itself goes on beside it, and learns of the failure only then."""
    calls: list[str] = []

    async def note(name: str) -> str:
        calls.append(name)
        if name == "bad" and calls.count(name) == 1:
            raise ConnectionError("away")
        return name

    @app.task(retry=AGAIN)
    async def work(ctx: Context) -> str:
        beside = asyncio.create_task(ctx.step("bad", note, "bad"))
        await asyncio.wait([beside])
        await ctx.step("own", note, "own")
        return await beside

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == "bad"
    assert calls == ["bad", "own", "bad"]
    assert await kinds(db) == {"bad": "step", "own": "step"}


@pytest.mark.parametrize("how", ["try", "gather", "group", "swallowed"])
async def test_a_branch_that_gets_over_a_failure_of_its_own_is_believed(app, db, clock, shop, how):
    async def fallible(ctx: Context) -> str:
        match how:
            case "try":
                try:
                    return await ctx.step("reserve", shop.reserve)
                except SoldOut:
                    return "sold out"
            case "gather":
                found = await asyncio.gather(
                    ctx.step("reserve", shop.reserve), return_exceptions=True
                )
                return "sold out" if isinstance(found[0], SoldOut) else "reserved"
            case "group":
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(ctx.step("reserve", shop.reserve))
                except ExceptionGroup:
                    return "sold out"
            case "swallowed":
                return await asyncio.create_task(quiet(ctx))
        return "reserved"

    async def quiet(ctx: Context) -> str:
        try:
            return await ctx.step("reserve", shop.reserve)
        except SoldOut:
            return "sold out"

    async def branch(ctx: Context) -> str:
        if await fallible(ctx) == "sold out":
            return await ctx.step("refund", shop.refund, 7)
        return await ctx.step("ship", shop.ship)

    @app.task
    async def work(ctx: Context) -> str:
        slow = asyncio.create_task(ctx.sleep(HOUR, name="beside"))
        found = await asyncio.create_task(branch(ctx))
        await slow
        return found

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        found = await kinds(db)
        assert (found["reserve"], found["refund"]) == ("failure", "step")
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == "refunded 7"
    assert shop.calls == ["reserve", "refund"]


async def test_threads_of_a_plain_handler_leave_it_to_the_handler(app, db):
    """Whether it got over what failed in its pool shows when it goes on itself."""
    calls: list[str] = []

    def note(name: str) -> str:
        calls.append(name)
        if name == "b" and calls.count(name) == 1:
            raise ConnectionError("away")
        return name

    @app.task(retry=AGAIN)
    def work(ctx: Context) -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            return list(pool.map(lambda name: ctx.step_sync(name, note, name), "abc"))

    @app.task
    def lenient(ctx: Context) -> str:
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(ctx.step_sync, "b", note, "b").exception()
        ctx.step_sync("end", note, "end")
        return type(error).__name__

    async with working(app):
        assert await (await work.submit()).result(timeout=60) == ["a", "b", "c"]
        assert set((await kinds(db)).values()) == {"step"}
        calls.clear()
        assert await (await lenient.submit()).result(timeout=60) == "ConnectionError"
    assert "failure" in (await kinds(db)).values()


async def test_a_step_that_was_cut_short_is_not_remembered(app, db, clock):
    calls: list[int] = []

    async def slow() -> str:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.sleep(60)
        return "done"

    @app.task
    async def work(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                return await ctx.step("slow", slow)
        except TimeoutError:
            await ctx.step("after", lambda: None)
        return "late"

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == "late"
    assert await kinds(db) == {"after": "step"}


# What does not go well


async def test_who_lost_the_lease_goes_no_further(make_app, db, clock, shop):
    app = make_app()
    began, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def reserve() -> None:
        began.set()
        await go_on.wait()
        raise SoldOut("hat", 0)

    @app.task
    async def work(ctx: Context) -> None:
        try:
            try:
                await ctx.step("reserve", reserve)
            except SoldOut:
                await ctx.step("refund", shop.refund, 7)
        finally:
            ended.set()

    run = await work.submit()
    async with working(app):
        await asyncio.wait_for(began.wait(), 60)
        await steal(db, clock, run)
        go_on.set()
        await asyncio.wait_for(ended.wait(), 60)
    assert shop.calls == []
    assert await kinds(db) == {}


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_value_whose_answer_was_lost_wins_over_the_failure(
    app, db, shop, kind, monkeypatch
):
    """It was recorded, but the handler was told otherwise: it begins again, with the value."""
    record = Steps.record
    lost: list[int] = []

    async def cut(self: Steps, held: Any, step: Any) -> StepRecord:
        answer = await record(self, held, step)
        if step.name == "charge" and not lost:
            lost.append(1)
            raise Unavailable("cut")
        return answer

    monkeypatch.setattr(Steps, "record", cut)
    if kind == "async":

        @app.task
        async def work(ctx: Context) -> int | str:
            try:
                found: int | str = await ctx.step("charge", shop.charge)
            except Unavailable:
                found = await ctx.step("refund", shop.refund, 0)
            return found
    else:

        @app.task
        def work(ctx: Context) -> int | str:
            try:
                return ctx.step_sync("charge", shop.charge)
            except Unavailable:
                return ctx.step_sync("refund", shop.refund, 0)

    run = await work.submit()
    async with working(app):
        await eventually(lambda: lost)
        assert await run.result(timeout=60) == 7
    assert shop.calls == ["charge"]
    assert await kinds(db) == {"charge": "step"}


async def test_a_failure_that_cannot_be_written_stops_what_comes_next(app, db, shop, monkeypatch):
    record = Steps.record

    async def cut(self: Steps, held: Any, step: Any) -> StepRecord:
        if step.kind is StepKind.FAILURE and not told:
            raise Unavailable("cut")
        return await record(self, held, step)

    monkeypatch.setattr(Steps, "record", cut)
    told: list[str] = []

    @app.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.step("reserve", shop.reserve)
        except SoldOut:
            try:
                await ctx.step("refund", shop.refund, 7)
            except Unavailable as error:
                told.append(str(error))
            await ctx.step("refund", shop.refund, 7)
        return "done"

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == "done"
    assert told == ["cut"]
    assert shop.calls == ["reserve", "refund"]
    assert await kinds(db) == {"reserve": "failure", "refund": "step"}


# How an exception comes back


@pytest.mark.parametrize("kind", ["gone", "local"])
async def test_a_class_that_cannot_be_found_is_a_step_failed(app, db, clock, kind, monkeypatch):
    class Local(Exception):
        pass

    chosen = Vanished if kind == "gone" else Local

    def fail() -> None:
        raise chosen("some words")

    @app.task
    async def work(ctx: Context) -> list[str]:
        try:
            await ctx.step("fail", fail)
        except chosen:
            await ctx.sleep(HOUR)
        except StepFailed as error:
            await ctx.sleep(HOUR)
            return [error.step, error.type, error.message, str(error)]
        return []

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        if kind == "gone":
            monkeypatch.delattr(sys.modules[__name__], "Vanished")
        await skip(app, clock, HOUR)
        step, name, message, text = await run.result(timeout=60)
    assert (step, message) == ("fail", "some words")
    assert name == f"{__name__}.{chosen.__qualname__}"
    assert name in text
    assert "some words" in text


async def test_one_that_is_not_caught_any_more_fails_the_execution_and_says_why(app, db, clock):
    is_new = False

    def fail() -> None:
        raise SoldOut("hat", 0)

    @app.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.step("fail", fail)
        except SoldOut:
            if is_new:
                raise
            await ctx.sleep(HOUR)

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        is_new = True
        await skip(app, clock, HOUR)
        with pytest.raises(ExecutionFailed, match="hat is sold out") as found:
            await run.result(timeout=60)
    assert "failed in an earlier run" in found.value.trace


def back(error: Exception) -> Exception:
    """An exception as a later run gets it."""
    value = stored_error(error)
    assert len(value) < 200_000
    return again(value)


def again(value: bytes | None) -> Exception:
    return error_of(
        StepRecord(
            name="s",
            occurrence=0,
            position=0,
            is_sequential=True,
            kind=StepKind.FAILURE,
            value=value,
            encoding=None,
            recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
            until_at=None,
            attempt=1,
        )
    )


class Outer:
    class Inner(Exception):
        pass


class Proud(Exception):
    """Its `__init__` must not be called again."""

    made = 0

    def __init__(self, *, text: str) -> None:
        super().__init__()
        type(self).made += 1
        self.text = text

    def __str__(self) -> str:
        return self.text


class Picky(Exception):
    def __new__(cls, *args: Any) -> Picky:
        if not all(isinstance(one, Outer) for one in args):
            raise TypeError("an Outer, please")
        return super().__new__(cls, *args)


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


def test_an_exception_comes_back_as_it_was():
    error = SoldOut("hat", 3, shop=object())
    error.add_note("by hand")
    found = back(error)
    assert type(found) is SoldOut
    assert isinstance(found, SoldOut)
    assert (found.args, found.left, found.status, str(found)) == (
        *(("hat", 3), 3, HTTPStatus.GONE, "hat is sold out"),
    )
    assert not hasattr(found, "shop"), "no JSON"
    assert found.__notes__[0] == "by hand"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        KeyError("key"),
        FileNotFoundError(2, "No such file", "a.txt"),
        Outer.Inner("a", [1, {"b": None}]),
        InvalidInput(field="lane", problem="is odd"),
        ExecutionFailed("it failed", type="x.Y", message="words"),
        RuntimeError(),
        Exception("\ud800 \x00 \n"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_plain_exceptions_come_back(error):
    found = back(error)
    assert type(found) is type(error)
    assert found.args == error.args
    assert str(found) == str(error)
    assert {**vars(error), "__notes__": 0} == {**vars(found), "__notes__": 0}


def test_its_init_is_not_called():
    error = Proud(text="I am")
    made = Proud.made
    found = back(error)
    assert isinstance(found, Proud)
    assert str(found) == "I am"
    assert Proud.made == made


def test_arguments_that_are_no_json_become_the_message():
    found = back(ValueError("odd", object, {1: 2}))
    assert type(found) is ValueError
    assert len(found.args) == 1
    assert "odd" in str(found)
    assert back(ValueError((1, 2))).args == ("(1, 2)",), "a tuple would come back as a list"
    assert back(ValueError(float("nan"))).args == ("nan",)


def test_an_error_of_ours_has_facts_whatever_they_were():
    found = back(ExecutionFailed("it failed", execution_id=object()))
    assert isinstance(found, ExecutionFailed)
    assert (found.facts, found.message) == ({}, "")


def test_sizes_are_bounded():
    error = ValueError("x" * 1_000_000)
    for n in range(100):
        setattr(error, f"a{n}", "y" * 10_000)
    error.large = "z" * 1_000_000  # type: ignore[attr-defined]
    found = back(error)
    assert len(str(found)) == 4_000
    assert 1 <= sum(name.startswith("a") for name in vars(found)) < 10
    assert not hasattr(found, "large")


def test_what_cannot_even_say_its_message_is_stored():
    assert type(back(Mute())) is Mute


@pytest.mark.parametrize(
    "error",
    [Picky(Outer()), ExceptionGroup("several", [ValueError()])],
    ids=lambda error: type(error).__name__,
)
def test_one_that_cannot_be_made_is_a_step_failed(error):
    found = back(error)
    assert isinstance(found, StepFailed)
    assert type(error).__name__ in found.type


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "int", "SystemExit", "os.path", "builtins.open", "nowhere.Error", "a b"),
        *("flowfabric.core.errors.datetime", "antigravity.Error", f"{__name__}.Shop"),
    ],
)
def test_no_name_makes_anything_but_an_exception_that_is_there(name):
    before = set(sys.modules)
    found = again(f'{{"type": "{name}", "message": "m", "args": [1]}}'.encode())
    assert isinstance(found, StepFailed)
    assert (found.type, found.message) == (name, "m")
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"null", b"[1]", b"\xff", b'{"type": 7}'),
        b'{"type": "ValueError", "args": 7}',
        b'{"type": "ValueError", "args": [], "attributes": [1]}',
    ],
)
def test_whatever_is_stored_is_a_failure(value):
    assert isinstance(again(value), StepFailed)
