"""Journals in flight against today's code: which would be held, without running a step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, PublicState
from flowfabric.db.connection import read_only
from flowfabric.worker.journal_check import Fit
from steps.stage import until
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)


class Shop:
    """A handler whose code can be changed while its execution sleeps."""

    def __init__(self, app: Any, is_async: bool) -> None:
        self.calls: list[str] = []
        self.names = ["charge", "pack", "ship"]
        self.child = app.task(name="label")(self.print_label)
        self.error: Exception | None = None
        self.has_patch = False
        self.task = app.task(name="order")(self.order if is_async else self.order_sync)

    async def order(self, ctx: Context) -> None:
        for name in self.names[:1]:
            await ctx.step(name, self.do, name)
        if self.has_patch and await ctx.patched("fraud"):
            await ctx.step("fraud", self.do, "fraud")
        await (await ctx.submit(self.child, 7)).result()
        for name in self.names[1:2]:
            await ctx.step(name, self.do, name)
        if self.error is not None:
            raise self.error
        await ctx.sleep(HOUR)
        for name in self.names[2:]:
            await ctx.step(name, self.do, name)

    def order_sync(self, ctx: Context) -> None:
        for name in self.names[:1]:
            ctx.step_sync(name, self.do, name)
        if self.has_patch and ctx.patched_sync("fraud"):
            ctx.step_sync("fraud", self.do, "fraud")
        ctx.submit_sync(self.child, 7).result_sync()
        for name in self.names[1:2]:
            ctx.step_sync(name, self.do, name)
        if self.error is not None:
            raise self.error
        ctx.sleep_sync(HOUR)
        for name in self.names[2:]:
            ctx.step_sync(name, self.do, name)

    def do(self, name: str) -> str:
        self.calls.append(name)
        return name

    async def print_label(self, number: int) -> int:
        self.calls.append("label")
        return number


CHANGES = {
    "nothing": ({}, Fit.CONTINUES, None, None),
    "a step at the end": (
        {"names": ["charge", "pack", "ship", "thank"]},
        Fit.CONTINUES,
        None,
        None,
    ),
    "another name": (
        {"names": ["charge", "wrap", "ship"]},
        Fit.HELD,
        "pack",
        "the code runs 'wrap' where this was recorded",
    ),
    "a step less": (
        {"names": ["charge"]},
        Fit.HELD,
        "pack",
        "the code runs 'ff.sleep' where this was recorded",
    ),
    "an error": ({"error": LookupError("no such order")}, Fit.RAISES, None, "LookupError"),
    "a patch": ({"has_patch": True}, Fit.CONTINUES, None, None),
}


@pytest.mark.parametrize("is_async", [True, False])
async def test_each_change_of_the_code_gets_its_verdict(app, db, is_async):
    shop = Shop(app, is_async)
    async with working(app):
        run = await shop.task.submit()
        await until(run, PublicState.DELAYED)
    calls, before = list(shop.calls), await contents(db)

    for what, (changes, fit, step, problem) in CHANGES.items():
        kept = {name: getattr(shop, name) for name in changes}
        vars(shop).update(changes)
        (verdict,) = [one async for one in app.check_journals()]
        assert (verdict.id, verdict.task) == (run.id, "order")
        assert (verdict.fit, verdict.step) == (fit, step), what
        assert (verdict.problem or "").startswith(problem or ""), what
        vars(shop).update(kept)

    assert shop.calls == calls, "no step ran"
    assert await contents(db) == before, "nothing was written"


async def contents(db) -> list[Any]:
    """What the database holds."""
    return [
        await db.fetch(f"select * from ff.{table} order by 1, 2, 3")
        for table in ("execution", "event", "step", "attempt", "route")
    ]


async def test_a_handler_that_writes_outside_its_steps_cannot_be_checked(app, db):
    is_changed = False

    @app.task
    async def other() -> None: ...

    @app.task
    async def work(ctx: Context) -> None:
        await ctx.step("one", len, "text")
        if is_changed:
            await other.submit()
        await ctx.sleep(HOUR)

    async with working(app):
        await until(await work.submit(), PublicState.DELAYED)
    await app.close()
    is_changed = True
    before = await contents(db)
    go_back = app.use_database(read_only(db.url))
    verdicts = [one async for one in app.check_journals()]
    await app.close()
    go_back()
    assert [(one.fit, one.problem) for one in verdicts] == [
        (Fit.UNKNOWN, "the handler writes outside its steps")
    ]
    assert await contents(db) == before


async def test_a_hook_is_checked_and_none_is_declared(app, db):
    @app.task
    async def work() -> None: ...

    @work.on_success
    async def tell(ctx: Context, ended: Any) -> None:
        await ctx.step("one", len, "text")
        await ctx.sleep(HOUR)

    async with working(app):
        await (await work.submit()).result(timeout=60)
        (hook,) = await eventually(lambda: _hooks(db), within=60)
        await until(app.get(hook), PublicState.DELAYED)
    await app.close()
    go_back = app.use_database(read_only(db.url))
    verdicts = [one async for one in app.check_journals()]
    await app.close()
    go_back()
    assert [one.fit for one in verdicts] == [Fit.CONTINUES]


async def _hooks(db) -> list[str]:
    rows = await db.fetch("select execution_id from ff.execution where parent_id is not null")
    return [str(row["execution_id"]) for row in rows]


async def test_an_execution_of_another_code_version_is_left_to_it(make_app, db):
    old, new, reader = (
        make_app(code_version="1"),
        make_app(code_version="2"),
        make_app(code_version="3", reads={"1"}),
    )
    for app in (old, new, reader):

        @app.task(name="work")
        async def work(ctx: Context, name: str = "one" if app is old else "two") -> None:
            await ctx.step(name, len, "text")
            await ctx.sleep(HOUR)

    async with working(old):
        run = await old.tasks["work"].submit("one")
        await until(run, PublicState.DELAYED)
    assert [one.fit async for one in new.check_journals()] == [Fit.OTHER_VERSION]
    assert [one.fit async for one in reader.check_journals()] == [Fit.CONTINUES]


async def test_a_replayed_flow_is_not_submitted_by_a_check(app, db):
    @app.task(name="part")
    async def part() -> int:
        return 1

    @app.task(name="whole")
    async def whole(ctx: Context) -> None:
        async with ctx.flow(app.flow("f")) as flow:
            flow.add(part)
        await flow.run.result()

    async with working(app):
        run = await whole.submit()
        await run.result(timeout=60)
    await (await app.client()).executions.replay(run.id)
    before = await contents(db)
    assert [one.fit async for one in app.check_journals()] == [Fit.CONTINUES]
    assert await contents(db) == before
