"""From submit to result: what a handler gets, what its caller gets, and how attempts fail."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter

from flowfabric import (
    Context,
    ExecutionFailed,
    Exponential,
    Fixed,
    InvalidInput,
    Retry,
    Run,
    current,
    gather,
)
from flowfabric.handlers import HandlerRun
from support.factories import Engine
from worker.apps import working
from worker.waiting import eventually

QUICK = Fixed(timedelta(milliseconds=20))


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float


class Order(BaseModel):
    number: int
    placed: datetime
    price: Decimal
    points: list[Point]
    colour: Colour
    id: UUID


async def failure(run: Run[Any], within: float = 60) -> ExecutionFailed:
    with pytest.raises(ExecutionFailed) as caught:
        await run.result(timeout=within)
    return caught.value


async def test_an_async_and_a_plain_function_run_to_their_results(app):
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def shout(text: str) -> str:
        return text.upper()

    async with working(app):
        runs = await double.submit(21), await shout.submit("hey")

        assert await runs[0].result(timeout=60) == 42
        assert await runs[1].result(timeout=60) == "HEY"
        assert await runs[0].state() == "completed"


async def test_calling_a_task_calls_its_function(app):
    @app.task
    async def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    @app.task
    def triple(n: int) -> int:
        return 3 * n

    assert await double(2) == 4
    assert triple(2) == 6
    assert double.__doc__ == "Twice as much."
    assert app.tasks[double.name] is double


async def test_typed_values_arrive_as_their_types_both_ways(app):
    seen: list[Order] = []

    @app.task(name="shop.place")
    async def place(order: Order, *points: Point, scale: Decimal = Decimal(1)) -> Order:
        seen.append(order)
        assert isinstance(points[0], Point)
        assert isinstance(scale, Decimal)
        return order.model_copy(update={"price": order.price * scale, "points": list(points)})

    order = Order(
        number=1,
        placed=datetime(2026, 11, 15, 12, tzinfo=UTC),
        price=Decimal("9.99"),
        points=[],
        colour=Colour.RED,
        id=UUID(int=7),
    )
    async with working(app):
        run = await place.submit(order, Point(1, 2.5), scale=Decimal("1.5"))
        found = await run.result(timeout=60)

    assert seen == [order]
    assert found == order.model_copy(update={"price": Decimal("14.985"), "points": [Point(1, 2.5)]})
    assert isinstance(found.points[0], Point)


async def test_a_handler_knows_its_execution(app):
    @app.task(name="shop.who")
    def who(n: int, ctx: Context) -> list[Any]:
        assert current() is ctx
        return [str(ctx.execution_id), ctx.task, ctx.attempt, ctx.epoch, ctx.cancelled, n]

    async with working(app):
        run = await who.submit(5)

        assert await run.result(timeout=60) == [run.id, "shop.who", 1, 1, False, 5]
    with pytest.raises(RuntimeError, match="outside a handler"):
        current()


async def test_a_plain_handler_submits_through_its_worker(app):
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    def parent(n: int) -> int:
        return child.submit_sync(n).result_sync(timeout=60)

    async with working(app):
        run = await parent.submit(1)
        assert await run.result(timeout=60) == 2


async def test_a_failing_task_is_retried_until_it_succeeds(app):
    @app.task(retry=Retry(max_retries=4, backoff=QUICK))
    async def shaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("the bank does not answer")
        return ctx.attempt

    async with working(app):
        run = await shaky.submit()
        assert await run.result(timeout=60) == 3

        client = await app.client()
        info = await client.executions.describe(run.id)
    assert info.retry_count == 2
    assert info.reclaim_count == 0
    attempts = await client.executions.attempts(run.id)
    assert [attempt.failure_reason for attempt in attempts[:2]] == [
        "ConnectionError: the bank does not answer"
    ] * 2


async def test_a_task_without_a_retry_policy_fails_at_once(app):
    @app.task(name="shop.broken")
    async def broken() -> None:
        raise LookupError("no such\norder")

    async with working(app):
        error = await failure(await broken.submit())

    assert str(error).startswith("shop.broken failed in attempt 1: LookupError: no such order\n")
    assert error.type == "LookupError"
    assert error.message == "no such order"
    assert "in broken" in error.trace
    assert 'raise LookupError("no such\\norder")' in error.trace


async def test_retries_come_to_an_end_with_the_last_failure(app):
    @app.task(
        name="shop.broken",
        retry=Retry(2, Exponential(timedelta(milliseconds=10), timedelta(milliseconds=20))),
    )
    def broken(ctx: Context) -> None:
        raise TypeAdapterError(f"attempt {ctx.attempt}")

    async with working(app):
        error = await failure(await broken.submit())

    assert "failed in attempt 3" in str(error)
    assert error.type == f"{__name__}.TypeAdapterError"
    assert error.message == "attempt 3"


class TypeAdapterError(Exception):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class NotAnException(BaseException):
    pass


ODD: dict[str, BaseException] = {
    "lines": ValueError("one\ntwo"),
    "nul": ValueError("a\x00b"),
    "surrogates": ValueError("\ud800"),
    "megabyte": ValueError("é" * 1_000_000),
    "unprintable": Unprintable(),
    "stop iteration": StopIteration(),
    "stop async iteration": StopAsyncIteration(),
    "system exit": SystemExit(1),
    "base exception": NotAnException("odd"),
    "cancelled": asyncio.CancelledError("by itself"),
    "timeout": TimeoutError(),
    "group": ExceptionGroup("several", [ValueError(1)]),
    "base group": BaseExceptionGroup("several", [NotAnException(1)]),
}


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_whatever_a_handler_raises_its_execution_fails_and_the_worker_goes_on(
    app, kind, caplog
):
    # xdist cannot send a log with half of a character to the process that it reports to.
    caplog.set_level(logging.CRITICAL, "flowfabric")
    if kind == "async":

        @app.task(name="shop.odd")
        async def odd(name: str) -> None:
            raise ODD[name]

    else:

        @app.task(name="shop.odd")
        def odd(name: str) -> None:
            raise ODD[name]

    @app.task(name="shop.fine")
    async def fine() -> str:
        return "fine"

    async with working(app):
        runs = {name: await odd.submit(name) for name in ODD}
        errors = {name: await failure(run) for name, run in runs.items()}
        assert await (await fine.submit()).result(timeout=60) == "fine"

    assert errors["system exit"].type == "SystemExit"
    assert errors["cancelled"].type == "asyncio.exceptions.CancelledError"
    assert errors["base exception"].message == "odd"
    assert errors["megabyte"].message.startswith("ééé")
    # An async function cannot raise these two as they are; a plain one can.
    assert "StopIteration" in errors["stop iteration"].trace
    assert all(error.trace for error in errors.values())


async def test_a_payload_that_no_longer_validates_fails_for_good_and_says_why(app, db, caplog):
    @app.task(name="shop.count", retry=Retry(5, QUICK))
    async def count(amount: int) -> int:
        raise AssertionError("it must not be called")

    engine = Engine(db.conn, namespace="default")
    route = await engine.register(task="shop.count")
    ids = [
        (await engine.submit(route=route, payload=payload, policy=retrying())).id
        for payload in (b'{"amount": "secret-4711"}', b"{}", b"\xff not json", b"[]")
    ]
    with caplog.at_level(logging.DEBUG, "flowfabric"):
        async with working(app):
            await eventually(lambda: _all_ended(db, 4))

    found = await engine.results(ids)
    for id in ids:
        assert found[id]["public_state"] == "failed"
        assert found[id]["failure_class"] == "permanent"
        assert found[id]["attempt_index"] == 0
    assert "amount" in found[ids[0]]["failure_reason"]
    assert "payload" in found[ids[0]]["failure_reason"]
    assert "amount" in found[ids[1]]["failure_reason"]
    assert "secret-4711" not in caplog.text


def retrying() -> dict[str, Any]:
    return {"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 20}}}


async def _all_ended(db: Any, count: int) -> bool:
    ended: int = await db.fetchval("select count(*) from ff.execution where phase = 'terminal'")
    return ended == count


class NotJson:
    pass


@pytest.mark.parametrize("name", ["object", "surrogate", "wrong type", "nothing"])
async def test_a_result_that_is_not_json_fails_for_good_and_says_so(app, db, name):
    values = {"object": NotJson(), "surrogate": "\ud800", "wrong type": "x", "nothing": None}
    calls = []

    @app.task(name="shop.untyped", retry=Retry(5, QUICK))
    async def untyped() -> Any:
        calls.append(1)
        return values[name]

    @app.task(name="shop.typed", retry=Retry(5, QUICK))
    async def typed() -> int:
        calls.append(1)
        return values[name]  # type: ignore[return-value]

    task = untyped if name in ("object", "surrogate") else typed
    async with working(app):
        run = await task.submit()
        error = await failure(run)

    assert len(calls) == 1
    assert "result" in str(error)
    assert await db.fetchval("select failure_class::text from ff.execution") == "permanent"


async def test_a_result_that_is_too_large_fails_for_good_and_says_so(app, db):
    calls = []

    @app.task(retry=Retry(5, QUICK))
    async def large() -> str:
        calls.append(1)
        return "x" * 1_048_576

    @app.task
    async def just_fits() -> str:
        return "x" * (1_048_576 - 2)

    async with working(app):
        runs = await large.submit(), await just_fits.submit()
        error = await failure(runs[0])
        assert len(await runs[1].result(timeout=60)) == 1_048_574

    assert len(calls) == 1
    assert "result" in str(error)
    assert "1 MiB" in str(error)


async def test_a_result_too_large_is_settled_also_by_a_worker_that_stops(app, db):
    started = asyncio.Event()

    @app.task
    async def large() -> str:
        started.set()
        return "x" * 2_000_000

    worker = await app.worker(concurrency=1)
    run = await large.submit()
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), 60)
    worker.stop()
    await asyncio.wait_for(task, 60)

    assert await run.state() == "failed"


async def test_an_error_of_validation_in_the_handlers_own_work_is_retried(app):
    """Only the payload and the result are ours: what a handler validates may be right later."""

    @app.task(retry=Retry(3, QUICK))
    async def fetch(ctx: Context) -> int:
        return TypeAdapter(int).validate_python("not yet" if ctx.attempt == 1 else 5)

    async with working(app):
        run = await fetch.submit()
        assert await run.result(timeout=60) == 5


async def test_handlers_log_with_their_execution(app, caplog):
    @app.task(name="shop.talk")
    async def talk(secret: str) -> None:
        logging.getLogger("shop").info("working")
        raise ValueError("it broke")

    with caplog.at_level(logging.DEBUG):
        async with working(app):
            await failure(await talk.submit("secret-4711"))

    assert ", attempt 1: ValueError: it broke" in caplog.text
    assert "secret-4711" not in caplog.text


async def test_a_worker_needs_a_task_and_a_sane_concurrency(make_app):
    with pytest.raises(InvalidInput, match="tasks: this app has no task"):
        await make_app().worker()
    app = make_app()

    @app.task
    async def work() -> None: ...

    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(InvalidInput, match="concurrency"):
            await app.worker(concurrency=wrong)
    with pytest.raises(InvalidInput, match="lane"):
        await app.worker(lanes=["a\n"])
    with pytest.raises(InvalidInput, match="needs"):
        await app.worker(needs=["a b"])


async def test_an_execution_that_has_ended_leaves_nothing_to_the_garbage_collector(app):
    """A cycle for every execution would cost more than the rest of its run."""

    @app.task
    async def work() -> None: ...

    runs = await work.submit_many([()] * 20)
    gc.collect()
    gc.disable()
    try:
        async with working(app):
            await gather(runs)
        left = [one for one in gc.get_objects() if isinstance(one, HandlerRun)]
        assert len(left) <= 1, "the last one may be in a local of the event loop"
    finally:
        gc.enable()
