"""Hooks as an app registers them: ordinary tasks that only an end submits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from flowfabric import (
    App,
    Context,
    Ended,
    EndedError,
    ExecutionFailed,
    InvalidInput,
    Outcome,
    Retry,
)
from flowfabric.core.ids import mint


@pytest.fixture
def ff(ff):
    """The harness may do nothing that the engine would not: its promises hold after every test."""
    yield ff
    ff.check()


@pytest.fixture
def app() -> App:
    return App(name="shop")


class Mailer:
    def __init__(self) -> None:
        self.sent: list[str] = []


async def test_a_hook_is_a_task_with_steps_retries_lane_and_providers(ff, app):
    mailer = Mailer()
    app.provide(Mailer, lambda: mailer)
    tries = []

    @app.task(name="shop.buy")
    async def buy(item: str) -> str:
        raise LookupError("sold out")

    @buy.on_failure(lane="alerts", retry=Retry(max_retries=1), priority=7)
    async def tell(ctx: Context, ended: Ended[str], mailer: Mailer) -> str:
        assert ended.error is not None
        await ctx.step(
            "mail", mailer.sent.append, f"{ended.arguments['item']}: {ended.error.message}"
        )
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise ConnectionError
        return "told"

    run = await ff.submit(buy, "tea")
    with pytest.raises(ExecutionFailed):
        await ff.run(run)
    (hook,) = ff.assert_submitted(tell.using(lane="alerts", priority=7))
    assert hook.task == "shop.buy.on_failure"
    assert await ff.run(app.get(hook.id)) == "told"
    assert (mailer.sent, len(tries)) == (["tea: sold out"], 2)


async def test_a_hook_of_a_node_gets_the_results_that_the_node_got(ff, app):
    seen: list[Any] = []

    @app.task(name="load")
    async def load() -> int:
        return 7

    @app.task(name="double")
    async def double(n: int, text: str) -> int:
        return 2 * n

    @double.on_success
    async def note(ended: Ended[int]) -> None:
        seen.append((ended.arguments, ended.result))

    async with app.flow("sum") as f:
        f.add(double, f.add(load).result, "x")
    await ff.drain()
    assert seen == [({"n": 7, "text": "x"}, 14)]


async def test_arguments_that_do_not_fit_are_told_as_they_are(ff, app):
    seen: list[Any] = []

    @app.task(name="work")
    async def before(n: str) -> None: ...

    run = await ff.submit(before, "seven")
    del app.tasks["work"]

    @app.task(name="work")
    async def work(n: int) -> None: ...

    @work.on_failure
    async def note(ended: Ended[Any]) -> None:
        seen.append((ended.id, ended.arguments))

    await ff.drain()
    assert seen == [(run.id, {"n": "seven"})]


async def test_a_hook_of_the_app_is_not_called_for_hooks(ff, app):
    called: list[str] = []

    @app.on_end
    async def note(ended: Ended[Any]) -> None:
        called.append(ended.task)

    @app.task(name="work")
    async def work() -> None: ...

    @work.on_success
    async def broken(ended: Ended[None]) -> None:
        raise LookupError

    await ff.submit(work)
    await ff.drain()
    await ff.skip(hours=1)
    await ff.drain()
    assert called == ["work"]
    assert sorted(one.task for one in ff.submitted()) == [
        "shop.on_end",
        "work",
        "work.on_success",
    ]


async def test_a_hook_that_is_registered_late_is_called(ff, app):
    called = []

    @app.task(name="work")
    async def work() -> None: ...

    run = await ff.submit(work)

    @work.on_cancel
    async def note(ended: Ended[Any]) -> None:
        called.append(ended.reason)

    # No worker has started: who submits and cancels declares the hooks.
    await ff.submit(work)
    await run.cancel(reason="not wanted")
    assert await ff.drain() == 2
    assert called == ["not wanted"]


async def test_a_worker_of_a_later_version_without_the_hook_removes_it(ff, app):
    @app.task(name="work")
    async def work() -> None: ...

    @work.on_end
    async def note(ended: Ended[Any]) -> None: ...

    await ff.submit(work)
    later = App(name="shop", version="1")
    later.task(name="work")(work.function)
    await later.worker(is_paced=True)
    await ff.drain()
    assert [one.task for one in ff.submitted()] == ["work"]


def test_a_hook_can_be_called_in_a_test(app):
    @app.task
    def buy(item: str) -> str:
        return item

    @buy.on_failure
    def tell(ended: Ended[Any]) -> str:
        return f"{ended.arguments['item']}: {ended.error and ended.error.type}"

    ended: Ended[Any] = Ended(
        id=mint(),
        task=buy.name,
        outcome=Outcome.FAILED,
        ended_at=datetime.now(UTC),
        arguments={"item": "tea"},
        error=EndedError(type="LookupError", message="sold out"),
    )
    assert tell(ended) == "tea: LookupError"


class TestMistakes:
    async def test_only_an_end_submits_a_hook(self, ff, app):
        @app.task
        def work() -> None: ...

        @work.on_end
        def note(ended: Ended[Any]) -> None: ...

        with pytest.raises(InvalidInput, match="is a hook: the end of an execution submits it"):
            await note.submit(None)

    def test_a_hook_has_no_hooks(self, app):
        @app.task(name="work")
        def work() -> None: ...

        @work.on_end
        def note(ended: Ended[Any]) -> None: ...

        with pytest.raises(InvalidInput, match=r"work\.on_end is a hook, and a hook has no hooks"):
            note.on_end  # noqa: B018

    def test_two_hooks_of_one_kind_need_two_names(self, app):
        @app.task(name="work")
        def work() -> None: ...

        work.on_end(lambda ended: None)
        with pytest.raises(InvalidInput, match=r"work\.on_end is already registered"):
            work.on_end(lambda ended: None)
        assert work.on_end(name="work.again")(lambda ended: None).name == "work.again"

    @pytest.mark.parametrize("count", [0, 2])
    async def test_a_hook_takes_an_ended(self, ff, app, count):
        @app.task(name="work")
        def work() -> None: ...

        work.on_end((lambda: None) if count == 0 else (lambda a, b: None))
        await ff.submit(work)
        with pytest.raises(InvalidInput, match="must take one argument, an Ended"):
            await ff.drain()
