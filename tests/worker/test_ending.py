"""What becomes of work when a program, an app or a handler ends in an unusual way."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from datetime import timedelta

import pytest

from flowfabric import Fixed, InvalidInput, Retry
from flowfabric.core.errors import ConnectionLost
from flowfabric.core.execution import Claimed
from worker.apps import working
from worker.waiting import eventually

QUICK = Retry(3, Fixed(timedelta(milliseconds=1)))

PROGRAM = """
    import asyncio, logging, os, signal, sys
    import asyncpg
    from flowfabric import App

    logging.basicConfig()
    app = App()
    running = asyncio.Event()

    @app.task(name="endless")
    async def endless() -> None:
        running.set()
        await asyncio.sleep(3600)

    @app.task(name="raising")
    async def raising() -> None:
        await running.wait()
        if quick_runs:
            await first_result()
        raise KeyboardInterrupt

    @app.task(name="raising.plain")
    def raising_in_a_thread() -> None:
        asyncio.run_coroutine_threadsafe(running.wait(), loop).result()
        raise KeyboardInterrupt

    @app.task(name="exiting")
    async def exiting() -> None:
        async def leave() -> None:
            await running.wait()
            sys.exit(7)

        await asyncio.create_task(leave())

    @app.task(name="interrupted")
    async def interrupted() -> None:
        await running.wait()
        os.kill(os.getpid(), signal.SIGINT)  # the first cancels the main task, and it drains
        while not working.cancelling():
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(3600)

    @app.task(name="quick")
    async def quick() -> None:
        running.set()

    async def first_result() -> None:
        # With several partitions, this may be claimed before any quick one.
        connection = await asyncpg.connect(os.environ["FLOWFABRIC_DATABASE_URL"])
        completed = "select from ff.execution_view where public_state = 'completed'"
        while not await connection.fetchval(f"select exists ({completed})"):
            await asyncio.sleep(0.001)
        await connection.close()

    async def main(wanted: str | None = None, busy: str = "0") -> None:
        global loop, working, quick_runs
        loop, quick_runs = asyncio.get_running_loop(), int(busy)
        if wanted is None:
            asyncio.create_task(app.run_worker())
        await endless.submit()
        if wanted is None:
            await running.wait()
        else:
            await quick.submit_many([() for _ in range(quick_runs)])
            await app.submit(wanted)
            await quick.submit_many([() for _ in range(quick_runs)])
            working = asyncio.current_task()
            await app.run_worker()

    asyncio.run(main(*sys.argv[1:]))
"""


async def run_program(db, *wanted: str) -> tuple[int | None, str]:
    """Run the program above to its end; returns its exit code and what it said."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(PROGRAM), *wanted),
        env={**os.environ, "FLOWFABRIC_DATABASE_URL": db.url},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await asyncio.wait_for(program.communicate(), 60)
    finally:
        if program.returncode is None:
            program.kill()
    return program.returncode, said.decode()


@pytest.mark.parametrize(
    ("wanted", "code", "told"),
    [
        pytest.param((), 0, "", id="it simply ends", marks=pytest.mark.slow(short=1)),
        pytest.param(
            ("raising",),
            -signal.SIGINT,
            "KeyboardInterrupt in raising ",
            id="interrupt raised",
            marks=pytest.mark.slow(short=1),
        ),
        pytest.param(
            ("raising.plain",),
            -signal.SIGINT,
            "KeyboardInterrupt in raising.plain ",
            id="interrupt raised in a thread",
            marks=pytest.mark.slow(short=1),
        ),
        pytest.param(
            ("exiting",), 7, "", id="a task of a handler exits", marks=pytest.mark.slow(short=1)
        ),
        pytest.param(
            ("interrupted",), -signal.SIGINT, "KeyboardInterrupt in interrupted ", id="Ctrl-C x2"
        ),
    ],
)
async def test_a_program_that_ends_gives_its_work_back(db, wanted, code, told):
    ended_with, said = await run_program(db, *wanted)
    assert ended_with == code, said
    assert told in said

    rows = await db.fetch("select public_state, attempt_state, retry_count from ff.execution_view")
    assert [tuple(row) for row in rows] == [("waiting", "attempt_interrupted", 0)] * len(rows)
    assert len(rows) == 1 + len(wanted)
    kinds = await db.fetch("select kind from ff.event_view order by version, kind")
    assert [kind for (kind,) in kinds] == [
        kind for kind in ("submitted", "claimed", "released") for _ in rows
    ]


async def test_a_busy_program_that_is_interrupted_leaves_no_lease_behind(db):
    """Claims are on their way when all tasks of the loop are cancelled, and results, too."""
    ended_with, said = await run_program(db, "raising", "300")
    assert ended_with == -signal.SIGINT, said

    rows = await db.fetch("select public_state::text, count(*) from ff.execution_view group by 1")
    found = dict(map(tuple, rows))
    assert found.keys() == {"completed", "waiting"}
    assert sum(found.values()) == 602


async def test_a_claim_whose_answer_was_lost_is_given_back_when_the_worker_stops(app, monkeypatch):
    @app.task
    async def work() -> None: ...

    worker = await app.worker()
    client = await app.client()
    claim, cut = client.executions.claim, asyncio.Event()

    async def claim_and_cut(**arguments):
        answer = await claim(**arguments)
        if answer and not cut.is_set():
            cut.set()
            worker.stop()
            raise ConnectionLost("cut")
        return answer

    monkeypatch.setattr(client.executions, "claim", claim_and_cut)
    run = await work.submit()
    await asyncio.wait_for(worker.run(), 60)
    assert cut.is_set()
    assert await run.state() == "waiting"


async def test_something_cancelled_inside_a_handler_is_a_failure_like_any_other(app):
    @app.task(retry=QUICK)
    async def clumsy(times: int) -> str:
        from flowfabric import current

        if current().attempt <= times:
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

        if current().attempt == 1:
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
    await asyncio.wait_for(started.wait(), 60)
    await asyncio.wait_for(app.close(), 60)

    await asyncio.wait_for(working_on, 60)
    assert await run.result(timeout=60) == "done"


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
    assert (list(lost), late) == ([stale], [good])
    assert await client.leases.renew([good], timedelta(seconds=30)) == ({}, [])


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
