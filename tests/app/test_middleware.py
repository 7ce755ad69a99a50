"""Middleware: around every run, in order, seeing and changing what comes out."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from datetime import timedelta

import pytest

from flowfabric import Context, ExecutionFailed, Fixed, InvalidInput, Retry, current
from worker.apps import working

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_several_nest_in_the_order_of_their_registration(app):
    seen = []

    @app.middleware
    async def outer(ctx, call_next):
        seen.append("outer in")
        result = await call_next()
        seen.append("outer out")
        return result

    @app.middleware
    async def inner(ctx, call_next):
        seen.append("inner in")
        result = await call_next()
        seen.append("inner out")
        return result

    @app.task
    async def double(n: int) -> int:
        seen.append("task")
        return 2 * n

    async with working(app):
        assert await (await double.submit(4)).result(timeout=60) == 8

    assert seen == ["outer in", "inner in", "task", "inner out", "outer out"]


async def test_it_knows_the_execution_and_sees_its_result(app):
    seen = []

    @app.middleware
    async def watch(ctx: Context, call_next):
        assert current() is ctx
        result = await call_next()
        seen.append((ctx.task, ctx.execution_id, ctx.attempt, result))
        return result

    @app.task(name="shop.add")
    async def add(a: int, b: int) -> int:
        return a + b

    async with working(app):
        run = await add.submit(1, b=2)
        assert await run.result(timeout=60) == 3

    assert seen == [("shop.add", run.id, 1, 3)]


async def test_a_plain_task_runs_in_its_thread_inside_it(app):
    seen = []

    @app.middleware
    async def mark(ctx, call_next):
        seen.append(threading.current_thread())
        tenant.set("acme")
        return await call_next()

    @app.task
    def who() -> str:
        seen.append(threading.current_thread())
        return tenant.get()

    async with working(app):
        assert await (await who.submit()).result(timeout=60) == "acme"

    assert seen[0] is threading.main_thread()
    assert seen[1] is not threading.main_thread()


async def test_it_may_replace_the_result(app):
    called = []

    @app.middleware
    async def cached(ctx, call_next):
        return 42

    @app.task
    async def slow() -> int:
        called.append(1)
        return 1

    async with working(app):
        assert await (await slow.submit()).result(timeout=60) == 42
    assert called == []


async def test_what_it_returns_instead_is_checked_like_a_result(app):
    @app.middleware
    async def spoil(ctx, call_next):
        await call_next()
        return "not a number"

    @app.task(retry=Retry(max_retries=3), name="shop.count")
    async def count() -> int:
        return 1

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"the result of shop\.count cannot be stored"):
            await (await count.submit()).result(timeout=60)


async def test_it_sees_an_error_and_may_answer_it(app):
    @app.middleware
    async def forgive(ctx, call_next):
        try:
            return await call_next()
        except LookupError:
            return -1

    @app.task
    async def find(n: int) -> int:
        if n:
            raise LookupError(n)
        raise ValueError(n)

    async with working(app):
        assert await (await find.submit(1)).result(timeout=60) == -1
        with pytest.raises(ExecutionFailed, match="ValueError"):
            await (await find.submit(0)).result(timeout=60)


async def test_its_error_is_a_failure_of_the_attempt_and_is_tried_again(app):
    attempts = []

    @app.middleware
    async def shaky(ctx, call_next):
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return await call_next()

    @app.task(retry=Retry(max_retries=1, backoff=Fixed(timedelta(milliseconds=20))))
    async def greet() -> str:
        return "hello"

    async with working(app):
        assert await (await greet.submit()).result(timeout=60) == "hello"
    assert attempts == [1, 2]


async def test_it_does_not_run_for_a_payload_that_cannot_be_read(app, make_app):
    seen = []
    other = make_app()

    @other.task(name="shop.count")
    async def old(n: str) -> None: ...

    @app.middleware
    async def watch(ctx, call_next):
        seen.append(ctx)
        return await call_next()

    @app.task(name="shop.count")
    async def new(n: int) -> None: ...

    run = await old.submit("x")
    async with working(app):
        with pytest.raises(ExecutionFailed, match="payload"):
            await run.result(timeout=60)
    assert seen == []


async def test_the_next_is_called_once(app):
    @app.middleware
    async def stubborn(ctx, call_next):
        try:
            return await call_next()
        except ValueError:
            return await call_next()

    @app.task
    async def fail() -> None:
        raise ValueError

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"call_next\(\) was called a second time"):
            await (await fail.submit()).result(timeout=60)


async def test_an_object_can_be_middleware(app):
    class Counter:
        count = 0

        async def __call__(self, ctx, call_next):
            self.count += 1
            return await call_next()

    counter = Counter()
    assert app.middleware(counter) is counter

    @app.task
    async def nothing() -> None: ...

    async with working(app):
        await (await nothing.submit()).result(timeout=60)
    assert counter.count == 1


async def test_what_is_no_middleware_is_refused(app):
    with pytest.raises(InvalidInput, match="must be an async function"):

        @app.middleware
        def plain(ctx, call_next): ...

    with pytest.raises(InvalidInput, match="must take the context and call_next"):

        @app.middleware
        async def narrow(call_next): ...


async def test_what_one_handler_leaves_in_contextvars_is_not_seen_by_the_next(app):
    @app.task
    async def visit(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        await asyncio.sleep(0)
        return before

    runs = [await visit.submit(str(n)) for n in range(5)]
    async with working(app, concurrency=1):
        assert [await run.result(timeout=60) for run in runs] == ["nobody"] * 5
