"""What becomes of work when a program, an app or a handler ends in an unusual way."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from datetime import timedelta

import pytest

from flowfabric import Fixed, InvalidInput, Retry
from flowfabric.core.execution import Claimed
from worker.apps import working
from worker.waiting import eventually

QUICK = Retry(3, Fixed(timedelta(milliseconds=1)))

PROGRAM = """
    import asyncio
    from flowfabric import App

    app = App()
    running = asyncio.Event()

    @app.task(name="endless")
    async def endless() -> None:
        running.set()
        await asyncio.sleep(3600)

    async def main() -> None:
        asyncio.create_task(app.run_worker())
        await endless.submit()
        await running.wait()

    asyncio.run(main())
"""


async def test_a_program_that_simply_ends_gives_its_work_back(db):
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(PROGRAM)),
        env={**os.environ, "FLOWFABRIC_DATABASE_URL": db.url},
    )
    assert await asyncio.wait_for(program.wait(), 60) == 0

    row = await db.fetchrow(
        "select public_state, attempt_state, retry_count from ff.execution_view"
    )
    assert tuple(row) == ("waiting", "attempt_interrupted", 0)
    kinds = await db.fetch("select kind from ff.event_view order by version")
    assert [kind for (kind,) in kinds] == ["submitted", "claimed", "released"]


async def test_something_cancelled_inside_a_handler_is_a_failure_like_any_other(app):
    @app.task(retry=QUICK)
    async def clumsy(times: int) -> str:
        from flowfabric import current

        if current().attempt < times:
            child = asyncio.ensure_future(asyncio.sleep(3600))
            child.cancel()
            await child
        return "done"

    async with working(app):
        run = await clumsy.submit(1)
        assert await run.result(timeout=60) == "done"


async def test_a_handler_that_cancels_itself_is_tried_again(app):
    @app.task(retry=QUICK)
    async def hasty() -> str:
        from flowfabric import current

        if current().attempt == 0:
            asyncio.current_task().cancel()
            await asyncio.sleep(3600)
        return "done"

    async with working(app):
        run = await hasty.submit()
        assert await run.result(timeout=60) == "done"


async def test_closing_the_app_lets_its_workers_finish_first(make_app):
    app, watcher = make_app(), make_app()
    started = asyncio.Event()

    @app.task(name="short")
    async def short() -> str:
        started.set()
        await asyncio.sleep(0.2)
        return "done"

    @watcher.task(name="short")
    async def same() -> str:
        return "never run here"

    run = await same.submit()
    working_on = asyncio.create_task(app.run_worker())
    await asyncio.wait_for(started.wait(), 10)
    await asyncio.wait_for(app.close(), 20)

    await asyncio.wait_for(working_on, 30)
    assert await run.result(timeout=10) == "done"


async def test_a_foreign_namespace_reads_neither_attempts_nor_events(make_app):
    ours, theirs = make_app(namespace="ours"), make_app(namespace="theirs")

    @ours.task(name="secret")
    async def secret() -> None:
        raise ValueError("s3cr3t")

    async with working(ours):
        run = await secret.submit()
        with pytest.raises(Exception, match="s3cr3t"):
            await run.result(timeout=60)

    stranger, owner = await theirs.client(), await ours.client()
    assert await stranger.executions.attempts(run.id) == []
    assert await stranger.executions.events(run.id) == []
    assert len(await owner.executions.attempts(run.id)) == 1
    assert len(await owner.executions.events(run.id)) == 3


async def test_a_stale_lease_beside_a_good_one_does_not_lose_the_good_one(app, clock):
    @app.task(name="twice")
    async def twice() -> None: ...

    client = await app.client()
    await twice.submit()

    async def claim() -> Claimed:
        found: list[Claimed] = []

        async def got_it() -> bool:
            found.extend(
                await client.executions.claim(worker_id="w", worker_instance_id="w-1", limit=1)
            )
            return bool(found)

        await eventually(got_it)
        return found[0]

    stale = await claim()
    await clock.advance(minutes=5)
    await client.leases.expire()
    good = await claim()

    lost, late = await client.leases.renew([stale, good], timedelta(seconds=30))
    assert (lost, late) == ([stale], [good])
    assert await client.leases.renew([good], timedelta(seconds=30)) == ([], [])


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("needs", {"needs": "gpu"}),
        ("lanes", {"lanes": "mail"}),
        ("lanes", {"lanes": []}),
    ],
)
async def test_text_where_a_list_belongs_is_refused(app, field, options):
    @app.task
    async def any_task() -> None: ...

    with pytest.raises(InvalidInput, match=field):
        await app.worker(**options)


@pytest.mark.parametrize("timeout", [float("nan"), "1"])
async def test_a_timeout_that_is_no_time_is_refused(app, timeout):
    @app.task
    async def waiting() -> None: ...

    run = await waiting.submit()
    with pytest.raises(InvalidInput, match="timeout"):
        await run.result(timeout=timeout)
