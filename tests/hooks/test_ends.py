"""Hooks of ends: every end of an execution submits the hooks of its task, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from flowfabric import App, Context, Ended, ExecutionFailed, Outcome, Retry, Run
from flowfabric.testing import Harness
from support.proofs import some_of


@pytest.fixture
def ff(ff):
    """The harness may do nothing that the engine would not: its promises hold after every test."""
    yield ff
    ff.check()


@pytest.fixture
def app() -> App:
    return App(name="shop")


def note_ends(app: App, owner: Any) -> list[tuple[str, Ended[Any]]]:
    """Register a hook of every kind that notes what it is called with."""
    called: list[tuple[str, Ended[Any]]] = []

    @owner.on_success
    async def success(ended: Ended[Any]) -> None:
        called.append(("success", ended))

    @owner.on_failure
    def failure(ended: Ended[Any]) -> None:
        called.append(("failure", ended))

    @owner.on_cancel
    async def cancel(ctx: Context, ended: Ended[Any]) -> None:
        called.append(("cancel", ended))

    @owner.on_end
    async def end(ended: Ended[Any]) -> None:
        called.append(("end", ended))

    return called


@pytest.mark.parametrize("is_app_wide", [False, True], ids=["of a task", "of the app"])
async def test_a_hook_gets_the_arguments_and_the_result(ff, app, is_app_wide):
    @app.task(name="shop.buy", lane="orders")
    async def buy(item: str, price: Decimal) -> Decimal:
        return price * 2

    called = note_ends(app, app if is_app_wide else buy)
    before = await ff.now()
    run = await ff.submit(buy, "tea", price=Decimal("2.50"))
    assert await ff.drain() == 3
    assert {kind for kind, _ in called} == {"end", "success"}
    for _, ended in called:
        assert ended.id == run.id
        assert ended.task == "shop.buy"
        assert ended.outcome is Outcome.SUCCESS
        assert ended.arguments == {"item": "tea", "price": Decimal("2.50")}
        assert ended.result == Decimal(5)
        assert ended.error is None
        assert (ended.attempts, ended.replay_count) == (1, 0)
        assert before <= ended.ended_at <= await ff.now()


async def fail(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="work", retry=Retry(max_retries=1))
    async def work(n: int) -> int:
        raise LookupError("no such thing")

    return await ff.submit(work, 7)


async def cancel(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    run = await ff.submit(work, 7)
    await run.cancel(reason="not wanted")
    return run


async def end_with_the_parent(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    @app.task(name="parent")
    async def parent(ctx: Context) -> str:
        return (await ctx.submit(work.using(with_parent=True, delay=timedelta(days=1)), 7)).id

    return app.get(await ff.run(parent))


async def miss_the_deadline(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="work", deadline=timedelta(minutes=1))
    async def work(n: int) -> int:
        return n

    run = await work.submit(7)
    await ff.skip(minutes=2)
    return run


async def run_out_of_time(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="work", timeout=timedelta(minutes=1))
    async def work(ctx: Context, n: int) -> None:
        await ctx.step("hang", lambda: None)

    run = await ff.submit(work, 7)
    await ff.run_until(run, step="hang")
    await ff.skip(minutes=5)
    return run


async def crash_too_often(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="work", max_reclaims=0)
    async def work(ctx: Context, n: int) -> None:
        await ctx.step("crash", lambda: None)

    run = await ff.submit(work, 7)
    await ff.run_until(run, step="crash")
    await ff.crash_worker()
    await ff.skip(minutes=5)
    return run


async def skip_a_node(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="first")
    async def first() -> int:
        raise LookupError("no such thing")

    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    async with app.flow("two") as f:
        f.add(work, f.add(first).result)
    return (await f.run.nodes())["work"]


async def cancel_a_flow(ff: Harness, app: App) -> Run[Any]:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    async with app.flow("one") as f:
        f.add(work, 7)
    await f.run.cancel()
    return (await f.run.nodes())["work"]


Way = Callable[[Harness, App], Awaitable[Run[Any]]]

ENDS: list[tuple[Way, str, Outcome, str | None, int]] = [
    (fail, "failure", Outcome.FAILED, "LookupError", 2),
    (miss_the_deadline, "failure", Outcome.EXPIRED, "execution_deadline", 0),
    (run_out_of_time, "failure", Outcome.EXPIRED, "attempt_timeout", 1),
    (crash_too_often, "failure", Outcome.FAILED, "reclaim_cap_exceeded", 1),
    (skip_a_node, "failure", Outcome.SKIPPED, None, 0),
    (cancel, "cancel", Outcome.CANCELLED, None, 0),
    (end_with_the_parent, "cancel", Outcome.CANCELLED, None, 0),
    (cancel_a_flow, "cancel", Outcome.CANCELLED, None, 0),
]


@pytest.mark.parametrize(
    ("way", "kind", "outcome", "error", "attempts"),
    some_of(ENDS, turn=0, share=2),
    ids=[way[0].__name__ for way in ENDS],
)
async def test_every_end_without_a_result_calls_the_hooks(
    ff, app, way, kind, outcome, error, attempts
):
    called = []

    @app.on_end
    async def note(ended: Ended[Any]) -> None:
        called.append(("end", ended))

    @app.on_success
    async def note_success(ended: Ended[Any]) -> None:
        called.append(("success", ended))

    @app.on_failure
    async def note_failure(ended: Ended[Any]) -> None:
        called.append(("failure", ended))

    @app.on_cancel
    async def note_cancel(ended: Ended[Any]) -> None:
        called.append(("cancel", ended))

    run = await way(ff, app)
    await ff.drain()
    if not (await run.state()).is_terminal:
        with suppress(ExecutionFailed):
            await ff.run(run)
        await ff.drain()
    ends = [(kind, ended) for kind, ended in called if ended.id == run.id]
    assert sorted(one for one, _ in ends) == sorted(["end", kind])
    for _, ended in ends:
        assert ended.task == "work"
        assert ended.outcome is outcome
        assert ended.attempts == attempts
        assert ended.result is None
        assert (ended.error and ended.error.type) == error
