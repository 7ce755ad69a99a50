"""Two versions of the code at once: each continues what it began."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from flowfabric import App, Context, InvalidInput, PublicState
from flowfabric.client import FlowFabric
from steps.stage import held_at, skip, until, until_held
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)
# Short leases, so that the worker asks often what it may take over.
QUICK: dict[str, Any] = {"lease_ttl": timedelta(seconds=1)}

OLD = ("charge", "pack", "sleep", "ship")
CHANGED = {
    "added": ("check", "charge", "pack", "sleep", "ship"),
    "removed": ("charge", "sleep", "ship"),
    "renamed": ("charge", "wrap", "sleep", "ship"),
    "reordered": ("pack", "charge", "sleep", "ship"),
}


def order(app: App, steps: tuple[str, ...]) -> Any:
    """A task that runs these steps and returns their names."""

    async def do(name: str) -> str:
        return f"{app.settings.code_version}:{name}"

    @app.task(name="order")
    async def run(ctx: Context) -> list[str]:
        found = []
        for name in steps:
            if name == "sleep":
                await ctx.sleep(HOUR)
            else:
                found.append(await ctx.step(name, do, name))
        return found

    return run


async def asleep(app: App, task: Any) -> Any:
    """An execution that the app's code has begun and that sleeps now; the worker has stopped."""
    run = await task.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
    await eventually(partial(is_signed_off, await app.client()))
    return run


async def is_signed_off(client: FlowFabric) -> bool:
    """Whether no worker is registered: a late sign-off would count from a clock that was moved."""
    return not await client.workers.list()


@pytest.mark.parametrize("change", CHANGED)
async def test_an_execution_is_finished_by_the_version_that_began_it(make_app, db, clock, change):
    old, new = make_app(code_version="1"), make_app(code_version="2")
    task = order(old, OLD)
    order(new, CHANGED[change])
    run = await asleep(old, task)
    async with working(new):
        await skip(new, clock, HOUR)
        other = await task.submit()  # new work is for everybody
        await until(other, PublicState.DELAYED)
        assert await run.state() == "waiting"
        async with working(old):
            assert await run.result(timeout=60) == ["1:charge", "1:pack", "1:ship"]
    assert await held_at(db, other) is None


async def test_without_versions_it_is_held_and_says_what_to_do(make_app, db, clock):
    old, new = make_app(), make_app()
    task = order(old, OLD)
    order(new, CHANGED["renamed"])
    run = await asleep(old, task)
    async with working(new):
        await skip(new, clock, HOUR)
        detail = await until_held(db, run)
    assert "restore the code and retry, or replay --from-step or --fresh" in detail
    assert "with a code version, an execution stays with its own code" in detail


async def test_an_app_continues_the_versions_it_reads(make_app, clock):
    old, new = make_app(code_version="1"), make_app(code_version="2", reads={"1"})
    task = order(old, OLD)
    order(new, (*OLD, "thank"))
    run = await asleep(old, task)
    async with working(new):
        await skip(new, clock, HOUR)
        assert await run.result(timeout=60) == ["1:charge", "1:pack", "2:ship", "2:thank"]


async def test_the_last_worker_gone_others_take_over_after_the_grace(make_app, db, clock):
    old = make_app(code_version="1")
    new = make_app(code_version="2", version_grace=timedelta(hours=2), **QUICK)
    task = order(old, OLD)
    order(new, OLD)
    run = await asleep(old, task)
    async with working(new):
        await skip(new, clock, HOUR)
        client = await new.client()
        await eventually(lambda: client.workers.list())
        assert await run.state() == "waiting"
        await clock.advance(HOUR)
        assert await run.result(timeout=60) == ["1:charge", "1:pack", "2:ship"]


async def test_a_worker_that_only_finishes_leaves_new_work_to_others(make_app, clock):
    app = make_app(code_version="1")
    task = order(app, OLD)
    run = await asleep(app, task)
    new = await task.submit()
    async with working(app, finish_only=True) as worker:
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == ["1:charge", "1:pack", "1:ship"]
        await eventually(lambda: worker.is_idle)
        assert await new.state() == "waiting"
        client = await app.client()
        (info,) = await eventually(lambda: client.workers.list())
        assert (info.code_version, info.reads, info.finish_only) == ("1", [], True)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"code_version": ""}, "code_version"),
        ({"code_version": "1 2"}, "code_version"),
        ({"code_version": 1}, "code_version"),
        ({"reads": {"1"}}, "reads"),
        ({"code_version": "2", "reads": "1"}, "reads"),
        ({"code_version": "2", "reads": {None}}, "reads"),
        ({"code_version": "2", "reads": {f"{n}" for n in range(101)}}, "reads"),
        ({"version_grace": timedelta(days=8)}, "version_grace"),
        ({"version_grace": 60}, "version_grace"),
    ],
)
async def test_wrong_versions_are_refused(make_app, settings, field):
    with pytest.raises(InvalidInput) as caught:
        make_app(**settings)
    assert caught.value.field == field


async def test_finishing_only_needs_a_version(make_app):
    app = make_app()
    order(app, OLD)
    with pytest.raises(InvalidInput, match="FLOWFABRIC_CODE_VERSION"):
        await app.worker(finish_only=True)


async def test_the_version_comes_from_the_environment_unless_the_app_says_it(make_app, monkeypatch):
    monkeypatch.setenv("FLOWFABRIC_CODE_VERSION", "7f3a")
    monkeypatch.setenv("FLOWFABRIC_VERSION_GRACE", "5")
    app = make_app()
    assert app.settings.code_version == "7f3a"
    assert app.settings.version_grace == timedelta(seconds=5)
    assert make_app(code_version="2").settings.code_version == "2"
    assert app.version == "0"  # the version that orders schedules is another one
