"""A run: what can be asked of it and done to it, and what it says when there is no result."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric import (
    Context,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionId,
    Fixed,
    InvalidInput,
    NotFound,
    ResultTimeout,
    Retry,
    Run,
)
from flowfabric.db import functions
from support.answers import Answers
from support.database import several_partitions
from worker.apps import working

MISSING = "{fp:0}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e"


@pytest.fixture
def work(app):
    @app.task(name="shop.work")
    async def work(n: int) -> set[int]:
        return {n}

    return work


# Cancelling


async def test_a_run_is_cancelled_and_its_result_says_who_and_why(app, work):
    run = await work.submit(1)

    assert await run.cancel("no longer wanted", actor="ann") is True
    assert await run.cancel() is True
    with pytest.raises(ExecutionCancelled) as caught:
        await run.result()

    assert str(caught.value) == (
        "shop.work was cancelled by ann: no longer wanted. "
        f"To run it again: flowfabric retry {run.id.uuid}"
    )
    assert (caught.value.actor, caught.value.reason) == ("ann", "no longer wanted")
    assert await run.state() == "cancelled"


async def test_nobody_in_particular_is_an_operator(app, work):
    run = await work.submit(1)
    await run.cancel()
    with pytest.raises(ExecutionCancelled, match=r"shop\.work was cancelled by an operator\. To"):
        await run.result()


async def test_what_has_ended_otherwise_is_not_cancelled(app, work):
    run = await work.submit(1)
    async with working(app):
        assert await run.result(timeout=60) == {1}
    assert await run.cancel() is False
    assert await run.result() == {1}


async def test_a_running_handler_is_stopped(app):
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    run = await wait.submit()
    async with working(app):
        await asyncio.wait_for(started.wait(), 60)
        assert await run.cancel("enough")
        await asyncio.wait_for(stopped.wait(), 60)


# Other ends


async def test_a_failure_says_where_its_trace_is_and_how_to_go_on(app):
    @app.task(name="shop.broken", retry=Retry(1, Fixed(timedelta(0))))
    async def broken() -> None:
        raise LookupError("no such order")

    run = await broken.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed) as caught:
            await run.result(timeout=60)

    assert str(caught.value) == (
        "shop.broken failed in attempt 2: LookupError: no such order\n"
        f"(Its trace is in the error's `trace`. To run it again: flowfabric retry {run.id.uuid})"
    )
    assert "raise LookupError" in caught.value.trace


async def test_an_execution_that_ran_out_of_time_says_which(app, clock):
    @app.task(name="shop.slow", deadline=timedelta(minutes=1))
    async def slow() -> None: ...

    run = await slow.submit()
    await clock.advance(minutes=2)
    await (await app.client()).executions.expire()
    with pytest.raises(ExecutionExpired) as caught:
        await run.result(timeout=60)

    assert str(caught.value) == (
        "shop.slow ran out of time: its deadline has passed. Its `deadline` may be too short. "
        f"To run it again: flowfabric retry {run.id.uuid}"
    )


async def test_waiting_ends_and_the_run_goes_on(app, work):
    run = await work.submit(1)
    with pytest.raises(ResultTimeout, match=r"It continues: call result\(\) again"):
        await run.result(timeout=0.01)


# Progress


async def test_progress_is_what_the_handler_said(app, clock):
    now = await clock.freeze()
    go = asyncio.Event()

    @app.task
    async def load(ctx: Context) -> None:
        client = await app.client()
        await client.executions.report_progress(ctx._run.claimed, 40, "half way")
        go.set()
        await asyncio.sleep(60)

    run = await load.submit()
    before = await run.progress()
    assert (before.percent, before.message, before.at) == (None, None, None)
    async with working(app):
        await asyncio.wait_for(go.wait(), 60)
        progress = await run.progress()
        await run.cancel()
    assert (progress.percent, progress.message, progress.at) == (40, "half way", now)


# Events


@several_partitions
async def test_events_come_in_order_and_end_with_the_execution(app, work):
    run = await work.using(delay=timedelta(milliseconds=300)).submit(1)

    async def kinds() -> list[str]:
        return [event.kind async for event in run.events()]

    following = asyncio.create_task(kinds())
    async with working(app):
        assert await asyncio.wait_for(following, 60) == ["submitted", "claimed", "completed"]
    # what has ended is told from the beginning
    assert await kinds() == ["submitted", "claimed", "completed"]


async def test_events_go_on_after_a_replay(app, work, monkeypatch):
    run = await work.submit(1)
    await run.cancel()
    await (await app.client()).executions.replay(run.id)
    events = run.events()
    assert [(await anext(events)).kind for _ in range(3)] == ["submitted", "cancelled", "replayed"]
    answers = Answers(monkeypatch)
    following = asyncio.create_task(anext(events))
    await answers.until(functions.LIST_EVENTS, 2, following)
    assert not following.done()
    await run.cancel()
    assert (await asyncio.wait_for(following, 60)).kind == "cancelled"
    with pytest.raises(StopAsyncIteration):
        await anext(events)


# A run by its id


@several_partitions
async def test_a_run_is_found_again_by_its_id(app, work):
    run = await work.submit(7)
    found = app.get(str(run.id))

    assert found.id == run.id
    assert isinstance(found.id, ExecutionId)
    async with working(app):
        assert await found.result(timeout=60) == {7}
    assert found.task == "shop.work"
    for id in (run.id, run.id.uuid, str(run.id.uuid), run.id.uuid.hex):
        again = app.get(id)
        assert (await again.state(), again.id) == ("completed", run.id)


async def test_a_result_of_a_task_that_is_not_registered_is_plain_json(app, make_app, work):
    run = await work.submit(7)
    async with working(app):
        await run.result(timeout=60)

    assert await make_app().get(run.id).result() == [7]


async def test_an_error_of_a_found_run_names_its_task(app, make_app, work):
    run = await work.submit(7)
    with pytest.raises(ResultTimeout, match=r"^shop\.work has not ended"):
        await make_app().get(run.id).result(timeout=0.01)


@pytest.mark.parametrize(
    "ask",
    [
        lambda run: run.result(),
        lambda run: run.result(timeout=60),
        lambda run: run.state(),
        lambda run: run.cancel(),
        lambda run: run.progress(),
        lambda run: anext(run.events()),
    ],
)
async def test_a_run_that_is_not_there_says_so_when_asked(app, ask):
    run: Run[object] = app.get(MISSING)
    assert run.id.uuid == UUID(MISSING.partition("}:")[2])
    with pytest.raises(NotFound) as caught:
        await asyncio.wait_for(ask(run), 60)
    assert MISSING in str(caught.value)
    assert caught.value.facts["execution_id"] == MISSING


async def test_another_namespace_sees_no_run(app, make_app, work):
    run = await work.submit(7)
    with pytest.raises(NotFound):
        await make_app(namespace="other").get(run.id).result(timeout=60)


@pytest.mark.parametrize("id", ["", "7", "{fp:x}:7", "3f5a6b7c8d9e", "0" * 32])
def test_what_is_no_id_is_refused_at_once(app, id):
    with pytest.raises(InvalidInput) as caught:
        app.get(id)
    assert caught.value.field == "execution_id"


# Synchronously


async def test_synchronous_code_can_ask_the_same(app, work):
    def program() -> list[object]:
        run = work.submit_sync(3)
        first, second = work.submit_sync(4), app.get(MISSING)
        first.cancel_sync("enough")
        found: list[object] = [run.state_sync(), run.progress_sync().percent]
        found.append(run.result_sync(timeout=60))
        found.append([event.kind for event in run.events_sync()])
        found.append(run.cancel_sync())
        found.append([event.kind for event in first.events_sync()])
        with pytest.raises(NotFound):
            second.result_sync()
        return found

    program_ends = asyncio.get_running_loop().run_in_executor(None, program)
    async with working(app):
        state, percent, result, kinds, cancelled, ends = await asyncio.wait_for(program_ends, 60)

    assert state in ("waiting", "active", "completed")
    assert (percent, result, cancelled) == (None, {3}, False)
    assert kinds == ["submitted", "claimed", "completed"]
    assert ends[-1] in ("cancelled", "completed")


async def test_a_synchronous_question_does_not_block_the_loop(app, work):
    run = await work.submit(1)
    for ask, instead in (
        (run.state_sync, "await run.state()"),
        (run.result_sync, "await run.result()"),
        (run.cancel_sync, "await run.cancel()"),
        (run.progress_sync, "await run.progress()"),
        (lambda: next(run.events_sync()), "async for item in run.events()"),
        (lambda: next(run.stream_sync()), "async for item in run.stream()"),
        (lambda: next(app.subscribe_sync("mail")), "async for item in app.subscribe(...)"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(f"In async code use: {instead}")) as told:
            ask()
        assert told.value.__context__ is None


@pytest.mark.parametrize("id", [None, 5, UUID(int=0), b"{fp:0}:"])
def test_what_is_no_text_is_no_id(app, id):
    with pytest.raises(InvalidInput, match="execution_id"):
        app.get(id)
