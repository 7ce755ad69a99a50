"""Steps: done once, whatever becomes of the run that did them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, SecretStr

from flowfabric import (
    Context,
    ExecutionFailed,
    Fixed,
    GiveUp,
    InvalidInput,
    PublicState,
    Retry,
    RetryAfter,
    current,
    first,
    gather,
    quorum_of,
)
from steps.stage import journal, until
from worker.apps import working
from worker.waiting import eventually

AT_ONCE = Fixed(timedelta(0))
AGAIN = Retry(max_retries=1, backoff=AT_ONCE)


@dataclass
class Point:
    x: int
    at: datetime


class Order(BaseModel):
    price: Decimal
    points: list[Point]


ORDER = Order(price=Decimal("1.50"), points=[Point(1, datetime(2026, 1, 2, tzinfo=UTC))])


def plain_order() -> Order:
    return ORDER


async def order() -> Order:
    return ORDER


async def nothing() -> None:
    return None


def without_a_hint(value: Any):
    return value


class Base(BaseModel):
    password: SecretStr


class Derived(Base):
    more: int = 1


def secret() -> Base:
    return Derived(password=SecretStr("hush"))


class Doubler:
    async def __call__(self, n: int) -> set[int]:
        return {2 * n}


class Shop:
    async def open(self, times: int = 1) -> tuple[int, ...]:
        return (1,) * times


async def test_a_step_is_done_once_and_its_value_comes_back_as_its_type(app, db):
    calls: list[str] = []
    runs: list[list[Any]] = []

    def counted(name, value):
        calls.append(name)
        return value

    async def a() -> Order:
        return counted("a", await order())

    def b() -> Order:
        return counted("b", plain_order())

    async def c(*, deep: dict[str, list[int]]) -> dict[str, list[int]]:
        return counted("c", deep)

    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task(retry=AGAIN)
    async def work(ctx: Context) -> None:
        found = [
            await ctx.step("a", a),
            await ctx.step("b", b),
            await ctx.step("c", c, deep={"n": [1, 2]}),
            await ctx.step("none", nothing),
            await ctx.step("bound", Shop().open, 2),
            await ctx.step("partial", partial(Shop().open, times=3)),
            await ctx.step("untyped", without_a_hint, {"a": [1, None, "x", 1.5, True]}),
            await ctx.step("lambda", lambda: "value"),
            await ctx.step("class", Point, 3, at=ORDER.points[0].at),
            await ctx.step("object", Doubler(), 3),
            await ctx.step("coroutine", lambda: nothing()),
            await ctx.step("task", double, 4),
        ]
        runs.append(found)
        if ctx.attempt == 1:
            raise RuntimeError("once more")

    run = await work.submit()
    async with working(app):
        await run.result(timeout=60)
    values = [
        *(ORDER, ORDER, {"n": [1, 2]}, None, (1, 1), (1, 1, 1)),
        *({"a": [1, None, "x", 1.5, True]}, "value", Point(3, ORDER.points[0].at)),
        *({6}, None, 8),
    ]
    assert runs == [values, values]
    assert calls == ["a", "b", "c"]
    rows = await db.fetch("select position, is_sequential, attempt_index, kind::text from ff.step")
    assert sorted(row["position"] for row in rows) == list(range(12))
    assert {(row["is_sequential"], row["attempt_index"], row["kind"]) for row in rows} == {
        (True, 0, "step")
    }


async def test_a_loop_of_one_name_counts_its_rounds(app, db):
    calls: list[int] = []

    async def one(n: int) -> int:
        calls.append(n)
        return n * n

    @app.task(retry=AGAIN)
    async def work(ctx: Context) -> list[int]:
        found = []
        for n in range(5):
            found.append(await ctx.step("square", one, n))
            if n == 2 and ctx.attempt == 1:
                raise RuntimeError("once more")
        return found

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == [0, 1, 4, 9, 16]
    assert calls == [0, 1, 2, 3, 4]
    assert list(await journal(db, run)) == [("square", n) for n in range(5)]


async def test_a_plain_step_runs_in_a_thread_and_knows_its_execution(app):
    @app.task
    async def work(ctx: Context) -> list[bool]:
        def look() -> list[bool]:
            return [
                threading.current_thread() is threading.main_thread(),
                current() is ctx,
            ]

        return await ctx.step("look", look)

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == [False, True]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: datetime(2026, 1, 1, tzinfo=UTC), "return type"),
        (lambda: (1, 2), "return type"),
        (lambda: {1: 2}, "return type"),
        (lambda: object(), "step 'odd'"),
        (lambda: ORDER, "return type"),
        (lambda: float("nan"), "return type"),
        (secret, "plain Base"),
        (lambda: "x" * 1_100_000, "1 MiB"),
    ],
    ids=["datetime", "tuple", "int keys", "object", "model", "nan", "subclass", "large"],
)
async def test_a_value_that_would_not_come_back_is_refused_and_names_the_step(
    app, db, function, words
):
    @app.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.step("odd", function)
        except InvalidInput as error:
            return str(error)
        return "stored"

    run = await work.submit()
    async with working(app):
        found = await run.result(timeout=60)
    assert words in found
    assert "odd" in found
    assert await db.fetch("select from ff.step where kind = 'step'") == []


async def test_a_value_that_is_not_what_the_hint_says_is_refused(app, db):
    async def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    async def missing() -> int:
        return None  # type: ignore[return-value]

    @app.task
    async def work(ctx: Context) -> int:
        refused = 0
        for function in (wrong, missing):
            try:
                await ctx.step(function.__name__, function)
            except InvalidInput:
                refused += 1
        return refused

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == 2
    assert await db.fetch("select from ff.step where kind = 'step'") == []


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_is_tried_again_where_it_stands(app, db, kind):
    calls: list[int] = []
    retry = Retry(max_retries=3, backoff=AT_ONCE, never_on=KeyError)

    def flaky() -> int:
        calls.append(1)
        if len(calls) < 4:
            raise ConnectionError("away")
        return len(calls)

    def hopeless() -> int:
        calls.append(1)
        raise KeyError("never")

    if kind == "async":

        @app.task
        async def work(ctx: Context) -> int:
            found = await ctx.step("flaky", flaky, retry=retry)
            with pytest.raises(KeyError):
                await ctx.step("hopeless", hopeless, retry=retry)
            return found
    else:

        @app.task
        def work(ctx: Context) -> int:
            found = ctx.step_sync("flaky", flaky, retry=retry)
            with pytest.raises(KeyError):
                ctx.step_sync("hopeless", hopeless, retry=retry)
            return found

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == 4
    assert len(calls) == 5
    assert await db.fetchval("select attempt_index from ff.execution") == 0


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_may_say_when_to_call_it_again_and_has_a_time_limit(app, kind):
    calls: list[str] = []
    retry = Retry(max_retries=3, backoff=Fixed(timedelta(hours=1)), never_on=TimeoutError)
    stop = threading.Event()

    def busy() -> int:
        calls.append("busy")
        if calls.count("busy") < 3:
            raise RetryAfter(0, "429")
        return len(calls)

    def refused() -> None:
        calls.append("refused")
        raise GiveUp("no such card")

    def slow() -> None:
        stop.wait(60)

    async def stuck() -> None:
        await asyncio.sleep(60)

    late = "step 'slow' took longer than 0.05 s"
    if kind == "async":

        @app.task
        async def work(ctx: Context) -> int:
            found = await ctx.step("busy", busy, retry=retry)
            with pytest.raises(GiveUp, match="no such card"):
                await ctx.step("refused", refused, retry=retry)
            for function in (slow, stuck):
                with pytest.raises(TimeoutError, match=late):
                    await ctx.step("slow", function, retry=retry, timeout=0.05)
            return found
    else:

        @app.task
        def work(ctx: Context) -> int:
            found = ctx.step_sync("busy", busy, retry=retry)
            with pytest.raises(GiveUp, match="no such card"):
                ctx.step_sync("refused", refused, retry=retry)
            for function in (slow, stuck):
                with pytest.raises(TimeoutError, match=late):
                    ctx.step_sync("slow", function, retry=retry, timeout=0.05)
            return found

    run = await work.submit()
    try:
        async with working(app):
            assert await run.result(timeout=60) == 3
            stop.set()
    finally:
        stop.set()
    assert calls == ["busy"] * 3 + ["refused"]


async def test_limited_plain_steps_take_no_thread_from_each_other(app):
    """Every `def` handler has a thread of the worker, and hung calls keep theirs."""
    stop = threading.Event()
    calls: list[int] = []

    def hang_once(n: int) -> int:
        calls.append(n)
        if calls.count(n) == 1:
            stop.wait(60)
        return n

    @app.task
    def plain(ctx: Context, n: int) -> int:
        return ctx.step_sync("call", hang_once, n, timeout=0.3, retry=Retry(50, AT_ONCE))

    @app.task
    async def on_the_loop(ctx: Context, n: int) -> int:
        return await ctx.step("call", hang_once, n, timeout=0.3, retry=Retry(50, AT_ONCE))

    runs = [await plain.submit(n) for n in range(3)]
    runs += [await on_the_loop.submit(n) for n in range(3, 6)]
    try:
        async with working(app, concurrency=2):
            assert [await run.result(timeout=60) for run in runs] == [0, 1, 2, 3, 4, 5]
    finally:
        stop.set()
    # Twice on an idle machine; on a busy one a call that hangs no more may be late, too.
    assert all(calls.count(n) >= 2 for n in range(6))


async def test_a_recorded_retry_after_still_knows_when(app, db, clock):
    async def busy() -> None:
        raise RetryAfter(90, "429")

    @app.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.step("busy", busy)
        except RetryAfter:
            await ctx.sleep(3600)
            raise

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        await clock.advance(hours=1)
        await (await app.client()).executions.promote_delayed()

        async def waits_for_its_retry() -> bool:
            reason = await db.fetchval("select blocking_reason::text from ff.execution")
            return reason == "waiting_for_retry_backoff"

        await eventually(waits_for_its_retry, within=60)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), "2 s", True])
async def test_a_time_limit_of_a_step_is_a_duration(app, bad):
    @app.task
    async def work(ctx: Context) -> None:
        await ctx.step("one", len, "text", timeout=bad)

    run = await work.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed, match="timeout: must be"):
            await run.result(timeout=60)


async def test_retries_of_a_step_come_to_an_end(app):
    calls: list[int] = []

    async def broken() -> None:
        calls.append(1)
        raise ConnectionError("away")

    @app.task
    async def work(ctx: Context) -> None:
        await ctx.step("broken", broken, retry=Retry(max_retries=2, backoff=AT_ONCE))

    run = await work.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed, match="away"):
            await run.result(timeout=60)
    assert len(calls) == 3


async def test_twenty_steps_side_by_side_that_end_in_any_order_replay(app, db):
    calls: list[int] = []
    numbers = random.Random(7)

    async def one(n: int) -> int:
        await asyncio.sleep(numbers.uniform(0, 0.05))
        calls.append(n)
        return n + 100

    @app.task(retry=Retry(max_retries=2, backoff=AT_ONCE))
    async def work(ctx: Context) -> list[int]:
        await ctx.step("first", lambda: 1)
        found = await asyncio.gather(*(ctx.step(f"one-{n}", one, n) for n in range(20)))
        await ctx.step("last", lambda: 2)
        if ctx.attempt < 3:
            raise RuntimeError("once more")
        return found

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == [n + 100 for n in range(20)]
    assert sorted(calls) == list(range(20))
    assert calls != list(range(20)), "they were meant to end in another order"
    assert len(await journal(db, run)) == 22


async def test_a_crowd_of_steps_that_was_cut_short_is_finished(app, db):
    """Half of them are recorded when the attempt fails: the next one does the others."""
    calls: list[int] = []

    async def one(n: int) -> int:
        calls.append(n)
        if n % 2 and calls.count(n) == 1:
            await asyncio.sleep(0.05)
            raise ConnectionError(str(n))
        return n

    @app.task(retry=AGAIN)
    async def work(ctx: Context) -> list[int]:
        found = await asyncio.gather(
            *(ctx.step(f"one-{n}", one, n) for n in range(10)), return_exceptions=True
        )
        for value in found:
            if isinstance(value, BaseException):
                raise value
        return list(found)

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == list(range(10))
    assert {n: calls.count(n) for n in range(10)} == {n: 1 + n % 2 for n in range(10)}


async def test_branches_of_several_steps_replay(app, db):
    calls: list[str] = []
    numbers = random.Random(3)

    async def one(name: str) -> str:
        await asyncio.sleep(numbers.uniform(0, 0.02))
        calls.append(name)
        return name

    async def branch(ctx: Context, letter: str) -> list[str]:
        return [await ctx.step(f"{letter}{n}", one, f"{letter}{n}") for n in range(4)]

    @app.task(retry=Retry(max_retries=3, backoff=AT_ONCE))
    async def work(ctx: Context) -> list[list[str]]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(ctx, letter)) for letter in "xyz"]
        await ctx.step("end", lambda: 0)
        if ctx.attempt < 4:
            raise RuntimeError("once more")
        return [task.result() for task in tasks]

    run = await work.submit()
    async with working(app):
        found = await run.result(timeout=60)
    assert found == [[f"{letter}{n}" for n in range(4)] for letter in "xyz"]
    assert len(calls) == 12


@pytest.mark.parametrize(
    "what",
    ["step", "sleep", "sleep_until", "now", "submit", "random"],
)
async def test_a_step_may_not_contain_what_is_recorded_itself(app, what):
    @app.task
    async def child() -> None: ...

    @app.task
    async def work(ctx: Context) -> str:
        async def inner() -> None:
            match what:
                case "step":
                    await ctx.step("inner", nothing)
                case "sleep":
                    await ctx.sleep(1)
                case "sleep_until":
                    await ctx.sleep_until(datetime(2030, 1, 1, tzinfo=UTC))
                case "now":
                    await ctx.now()
                case "submit":
                    await ctx.submit(child)
                case "random":
                    ctx.random.random()

        try:
            await ctx.step("outer", inner)
        except RuntimeError as error:
            return str(error)
        return "done"

    run = await work.submit()
    async with working(app):
        assert "inside the function of" in await run.result(timeout=60)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda ctx: ctx.step("", nothing), "name"),
        (lambda ctx: ctx.step("x" * 257, nothing), "name"),
        (lambda ctx: ctx.step("a\nb", nothing), "name"),
        (lambda ctx: ctx.step("ff.mine", nothing), "name"),
        (lambda ctx: ctx.step("a", nothing, retry=3), "retry"),
        (lambda ctx: ctx.step("a", nothing, retry=Retry(max_retries=-1)), "retry.max_retries"),
        (lambda ctx: ctx.sleep(float("nan")), "duration"),
        (lambda ctx: ctx.sleep(float("inf")), "duration"),
        (lambda ctx: ctx.sleep(1e300), "duration"),
        (lambda ctx: ctx.sleep(True), "duration"),
        (lambda ctx: ctx.sleep("1h"), "duration"),
        (lambda ctx: ctx.sleep(timedelta(days=100_000)), "delay"),
        (lambda ctx: ctx.sleep(1, name="ff.x"), "name"),
        (lambda ctx: ctx.sleep_until(datetime(2030, 1, 1)), "when"),  # noqa: DTZ001
        (lambda ctx: ctx.sleep_until("tomorrow"), "when"),
        (lambda ctx: ctx.progress(101), "percent"),
        (lambda ctx: ctx.progress(), "percent"),
    ],
)
async def test_bad_input_names_its_field_and_records_nothing(app, db, call, field):
    @app.task
    async def work(ctx: Context) -> str:
        try:
            await call(ctx)
        except InvalidInput as error:
            return error.field
        return "accepted"

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == field
    assert await journal(db, run) == {}


async def test_time_and_random_numbers_are_the_same_in_every_run(app, db, clock):
    seen: dict[str, list[list[Any]]] = {}

    @app.task(retry=AGAIN)
    async def work(ctx: Context) -> datetime:
        found = [await ctx.now(), ctx.random.random(), await ctx.now(name="later")]
        found.append(ctx.random.getrandbits(64))
        seen.setdefault(ctx.execution_id, []).append(found)
        if ctx.attempt == 1:
            await clock.advance(seconds=5)
            raise RuntimeError("once more")
        return found[0]

    run, other = await work.submit(), await work.submit()
    async with working(app, concurrency=1):
        at = await run.result(timeout=60)
        await other.result(timeout=60)
    first, second = seen[run.id]
    assert first == second
    assert at == first[0]
    assert seen[other.id][0][1] != first[1], "another execution has other numbers"
    recorded = await db.fetchval(
        "select recorded_at from ff.step where name = 'ff.now' and execution_id = $1", run.id.uuid
    )
    assert recorded == at


async def test_the_context_is_given_wherever_its_parameter_stands(app):
    @app.task
    async def first(ctx: Context, n: int) -> int:
        return n if ctx is current() else -1

    @app.task
    async def last(n: int, ctx: Context) -> int:
        return n if ctx is current() else -1

    @app.task
    async def keyword(n: int, *, ctx: Context) -> int:
        return n if ctx is current() else -1

    @app.task
    async def optional(n: int, ctx: Context | None = None) -> int:
        return n if ctx is current() else -1

    @app.task
    async def annotated(n: int, ctx: Annotated[Context, "ours"]) -> int:
        return n if ctx is current() else -1

    @app.task
    async def middle(n: int, ctx: Context, *more: int, **named: int) -> int:
        return n + sum(more) + sum(named.values()) if ctx is current() else -1

    @app.task
    async def ambient(n: int) -> int:
        assert current.task.endswith("ambient")
        assert current.attempt == 1
        assert not current.cancelled
        return await current.step("n", lambda: n)

    runs = [await task.submit(7) for task in (first, last, keyword, optional, annotated, ambient)]
    runs.append(await middle.submit(1, 2, 3, a=1))
    async with working(app):
        assert [await run.result(timeout=60) for run in runs] == [7] * 7


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_value_with_a_secret_is_marked(app, db, is_plain):
    def password() -> Base:
        return Base(password=SecretStr("hush"))

    def passwords() -> list[SecretStr]:
        return [SecretStr("hush")]

    def number() -> int:
        return 7

    steps = (password, passwords, number)
    if is_plain:

        @app.task
        def work(ctx: Context) -> None:
            for one in steps:
                ctx.step_sync(one.__name__, one)

    else:

        @app.task
        async def work(ctx: Context) -> None:
            for one in steps:
                await ctx.step(one.__name__, one)

    async with working(app):
        await (await work.submit()).result(timeout=60)
    rows = await db.fetch("select name, encoding from ff.step order by position")
    assert [tuple(row) for row in rows] == [
        ("password", "secret"),
        ("passwords", "secret"),
        ("number", None),
    ]


async def test_outside_a_handler_there_is_no_context():
    with pytest.raises(RuntimeError, match="outside a handler"):
        current()
    with pytest.raises(RuntimeError, match="outside a handler"):
        _ = current.attempt
    assert repr(current) == "flowfabric.current"
    assert dir(current) == dir(Context(object()))  # type: ignore[arg-type]
    twins = {"step", "sleep", "sleep_until", "now", "scheduled_at", "progress", "submit"}
    twins |= {"transaction", "continue_as", "patched", "deprecate_patch"}
    twins |= {"wait_for", "wait_for_signal", "waitpoint", "signals", "usage", "approval"}
    facts = {
        "execution_id",
        "task",
        "lane",
        "attempt",
        "epoch",
        "generation",
        "cancelled",
        "random",
    }
    assert set(dir(current)) == {
        *twins,
        *(f"{name}_sync" for name in twins),
        *facts,
        "flow",
        "signal",
        "stream",
    }
    assert not hasattr(current, "__wrapped__")


async def test_a_context_that_outlives_its_handler_records_nothing(app, db):
    kept: list[Context] = []

    @app.task
    async def work(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.step("a", nothing)

    @app.task
    async def idle(ctx: Context) -> None:
        kept.append(ctx)

    async with working(app):
        for task in (work, idle):
            await (await task.submit()).result(timeout=60)
        for ctx in kept:
            with pytest.raises(RuntimeError, match=r"ended|no handler"):
                await ctx.step("b", nothing)
            assert not ctx.cancelled
    assert await db.fetchval("select count(*) from ff.step") == 1


async def test_progress_is_shown(app):
    @app.task
    async def work(ctx: Context) -> None:
        await ctx.progress(40)
        await ctx.progress(message="half of it")

    @app.task
    def plain(ctx: Context) -> None:
        ctx.progress_sync(70, "more")

    run, other = await work.submit(), await plain.submit()
    async with working(app):
        await run.result(timeout=60)
        await other.result(timeout=60)
        found = [await one.progress() for one in (run, other)]
    assert [(one.percent, one.message) for one in found] == [(40, "half of it"), (70, "more")]


async def test_a_plain_handler_has_all_of_it(app, db, clock):
    calls: list[str] = []

    @app.task
    async def child(n: int) -> int:
        return n * 2

    async def on_the_loop() -> str:
        calls.append("loop")
        return threading.current_thread().name

    def here() -> str:
        calls.append("here")
        return threading.current_thread().name

    @app.task(retry=AGAIN)
    def work(ctx: Context) -> list[Any]:
        mine = threading.current_thread().name
        found = [
            ctx.step_sync("here", here) == mine or ctx.attempt > 1,
            ctx.step_sync("loop", on_the_loop) != mine,
            ctx.now_sync() <= ctx.now_sync(name="again"),
            ctx.submit_sync(child, 4).result_sync(),
        ]
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return found

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == [True, True, True, 8]
    assert calls == ["here", "loop"]
    assert await db.fetchval("select count(*) from ff.step where not is_sequential") == 0
    assert await db.fetchval("select count(*) from ff.execution where parent_id is not null") == 1


async def test_the_twins_for_threads_refuse_to_block_the_loop(app):
    @app.task
    async def work(ctx: Context) -> list[str]:
        told = []
        for call in (
            lambda: ctx.step_sync("a", lambda: 1),
            lambda: ctx.sleep_sync(1),
            lambda: ctx.sleep_until_sync(datetime(2030, 1, 1, tzinfo=UTC)),
            ctx.now_sync,
            lambda: ctx.progress_sync(1),
        ):
            try:
                call()
            except RuntimeError as error:
                told.append(str(error))
        return told

    run = await work.submit()
    async with working(app):
        told = await run.result(timeout=60)
    assert len(told) == 5
    assert all("would block the event loop" in one for one in told)


async def test_what_is_awaited_names_its_twin_in_a_plain_handler(app, db):
    @app.task
    def child() -> None: ...

    calls: dict[str, Callable[[Context, Any], Any]] = {
        "ctx.step_sync": lambda ctx, run: ctx.step("a", nothing),
        "ctx.sleep_sync": lambda ctx, run: ctx.sleep(1),
        "ctx.sleep_until_sync": lambda ctx, run: ctx.sleep_until(datetime(2030, 1, 1, tzinfo=UTC)),
        "ctx.now_sync": lambda ctx, run: ctx.now(),
        "ctx.scheduled_at_sync": lambda ctx, run: ctx.scheduled_at(),
        "ctx.progress_sync": lambda ctx, run: ctx.progress(1),
        "ctx.submit_sync": lambda ctx, run: ctx.submit(child),
        "task.submit_sync": lambda ctx, run: child.submit(),
        "task.submit_many_sync": lambda ctx, run: child.submit_many([()]),
        "run.result_sync": lambda ctx, run: run.result(),
        "run.state_sync": lambda ctx, run: run.state(),
        "gather_sync": lambda ctx, run: gather([run]),
        "first_sync": lambda ctx, run: first([run]),
        "quorum_of_sync": lambda ctx, run: quorum_of(1, [run]),
        "flow.submit_sync": lambda ctx, run: app.flow("f").submit(),
    }

    assert all(map(asyncio.iscoroutinefunction, (child.submit, child.submit_many, gather)))

    def told(call: Callable[[], Any]) -> str:
        try:
            return f"returned {call()!r}"
        except RuntimeError as error:
            return str(error)

    @app.task
    def work(ctx: Context) -> list[str]:
        run = app.get(str(ctx.execution_id))
        return [told(lambda call=call: call(ctx, run)) for call in calls.values()]

    @app.task
    def own_loop(ctx: Context) -> str:
        async def inner() -> None:
            await ctx.step("a", nothing)

        return told(lambda: asyncio.run(inner()))

    @app.task
    async def in_a_step(ctx: Context) -> str:
        def inner() -> str:
            return told(lambda: ctx.step("a", nothing))

        return await ctx.step("outer", inner)

    runs = [await task.submit() for task in (work, own_loop, in_a_step)]
    async with working(app):
        several, alone, inside = [await run.result(timeout=60) for run in runs]
    for name, found in zip(calls, several, strict=True):
        assert f"In a `def` task use: {name}(...)" in found
    assert "ctx.step_sync" in alone
    assert "inside the function of step 'outer'" in inside
    assert [row["name"] for row in await db.fetch("select name from ff.step")] == ["outer"]


async def test_journals_are_read_together_and_only_those_of_the_namespace(app, make_app, db):
    @app.task(name="work")
    async def work(ctx: Context, n: int) -> int:
        found = [await ctx.step(f"{n}-{step}", lambda: n) for step in range(n)]
        await ctx.sleep(timedelta(hours=1))
        return len(found)

    runs = [await work.submit(n) for n in range(4)]
    async with working(app):
        for run in runs:
            await until(run, PublicState.DELAYED)
    client = await app.client()
    for run in runs:
        await client.executions.retry(run.id)
    held = await client.executions.claim(worker_id="w", worker_instance_id="w-1", limit=10)
    found = await asyncio.gather(*(client.steps.journal(one) for one in held))
    places = {run.id.partition_key for run in runs}
    assert client.database.meter.operations["list_steps"].calls == len(places)
    sizes = {one.id: len(records) for one, records in zip(held, found, strict=True)}
    assert sizes == {run.id: n + 1 for n, run in enumerate(runs)}
    for one, records in zip(held, found, strict=True):
        assert records == await client.steps.list(one.id)
    other = make_app(namespace="other")
    assert await (await other.client()).steps.journal(held[0]) == []
