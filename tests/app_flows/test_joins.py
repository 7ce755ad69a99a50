"""Joins of runs: in a handler, which leaves its worker free meanwhile, and outside of one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    Context,
    ExecutionCancelled,
    ExecutionFailed,
    Fixed,
    InvalidInput,
    NotFound,
    Retry,
    first,
    first_sync,
    gather,
    gather_sync,
    quorum_of,
    quorum_of_sync,
)
from flowfabric.core.ids import mint
from flowfabric.handlers import run_ends, waits
from steps.stage import HOUR, journal, skip, until
from worker.apps import working
from worker.waiting import eventually

AGAIN = Retry(max_retries=3, backoff=Fixed(timedelta(0)))


class Stage:
    """Children that end when the test says so, and how."""

    def __init__(self, app) -> None:
        self.ends: dict[int, asyncio.Event] = {}
        self.ran: list[int] = []

        @app.task
        async def child(n: int) -> int:
            self.ran.append(n)
            await self.end(abs(n)).wait()
            if n < 0:
                raise LookupError(f"no {n}")
            return n

        self.child = child

    def end(self, n: int) -> asyncio.Event:
        return self.ends.setdefault(n, asyncio.Event())

    def let(self, *numbers: int) -> None:
        for n in numbers:
            self.end(n).set()


@pytest.fixture
def stage(app) -> Stage:
    return Stage(app)


async def kinds(db, run) -> list[str]:
    return [
        row[0]
        for row in await db.fetch(
            "select kind::text from ff.event where execution_id = $1 order by version", run.id.uuid
        )
    ]


async def ended(db, n: int, state: str) -> None:
    """Wait until the child with this argument has ended."""

    async def is_so() -> bool:
        return await db.fetchval(
            "select public_state = $1::ff.public_state from ff.execution"
            " where payload = convert_to($2, 'utf8')",
            state,
            f'{{"n":{n}}}',
        )

    await eventually(is_so)


async def set_back(db, n: int, by: timedelta) -> None:
    """Say that a child ended earlier than it did."""
    await db.fetch(
        "update ff.execution set terminal_at = terminal_at - $1::interval"
        " where payload = convert_to($2, 'utf8')",
        by,
        f'{{"n":{n}}}',
    )


class TestInAHandler:
    async def test_gather_waits_once_for_all(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> list[int]:
            return await gather([await ctx.submit(stage.child, n) for n in (3, 1, 2)])

        run = await parent.submit()
        async with working(app, concurrency=4):
            await until(run, "waiting_children")
            stage.let(1, 2, 3)
            assert await run.result(timeout=60) == [3, 1, 2]
        assert await kinds(db, run) == ["submitted", "claimed", "waiting", "resumed", "completed"]
        assert sorted(stage.ran) == [1, 2, 3]

    async def test_waiting_takes_no_slot(self, app, stage):
        @app.task
        async def parent(ctx: Context) -> list[int]:
            return await gather([await ctx.submit(stage.child, n) for n in range(3)])

        stage.let(0, 1, 2)
        run = await parent.submit()
        async with working(app, concurrency=1):
            assert await run.result(timeout=60) == [0, 1, 2]

    async def test_gather_raises_the_first_failure_when_all_have_ended(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> str:
            try:
                await gather([await ctx.submit(stage.child, n) for n in (-1, 2, -3)])
            except ExecutionFailed as error:
                return error.message
            return "none"

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(3)
            await ended(db, -3, "failed")
            stage.let(1)
            await ended(db, -1, "failed")
            assert await run.state() == "waiting_children"
            stage.let(2)
            assert await run.result(timeout=60) == "no -3"

    async def test_first_returns_the_winner_and_cancels_the_rest(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> int:
            runs = [await ctx.submit(stage.child, n) for n in (1, 2, 3)]
            return await first(runs, cancel_rest=True)

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(2)
            assert await run.result(timeout=60) == 2
        await ended(db, 1, "cancelled")
        await ended(db, 3, "cancelled")

    async def test_without_it_the_rest_goes_on(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> int:
            return await first([await ctx.submit(stage.child, n) for n in (1, 2)])

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(2)
            assert await run.result(timeout=60) == 2
            stage.let(1)
            await ended(db, 1, "completed")

    async def test_first_passes_over_failures(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> int:
            return await first([await ctx.submit(stage.child, n) for n in (-1, -2, 3)])

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(1, 2)
            await ended(db, -1, "failed")
            await ended(db, -2, "failed")
            stage.let(3)
            assert await run.result(timeout=60) == 3

    async def test_a_quorum_has_the_results_in_the_order_they_came(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> list[int]:
            return await quorum_of(2, [await ctx.submit(stage.child, n) for n in (1, -2, 3, 4)])

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(4)
            await ended(db, 4, "completed")
            stage.let(2)
            await ended(db, -2, "failed")
            stage.let(1)
            assert await run.result(timeout=60) == [4, 1]
            stage.let(3)

    async def test_a_quorum_out_of_reach_raises_at_once(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> list[int]:
            runs = [await ctx.submit(stage.child, n) for n in (-1, -2, 3)]
            return await quorum_of(2, runs, cancel_rest=True)

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(1)
            await ended(db, -1, "failed")
            stage.let(2)
            with pytest.raises(ExecutionFailed, match="no -2"):
                await run.result(timeout=60)
            await ended(db, 3, "cancelled")

    @pytest.mark.parametrize("ends", ["crash", "sleep"])
    async def test_the_winner_stays_whatever_ends_later(self, app, db, clock, stage, ends):
        """Also one that is said to have ended earlier, as by a clock that was set back."""
        winners: list[int] = []
        go_on = asyncio.Event()

        @app.task(retry=AGAIN)
        async def parent(ctx: Context) -> int:
            runs = [await ctx.submit(stage.child, n) for n in (1, 2)]
            winners.append(await first(runs))
            if len(winners) == 1:
                await go_on.wait()
                if ends == "crash":
                    raise ConnectionError
            await ctx.sleep(HOUR)
            return winners[-1]

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(2)
            await eventually(lambda: winners == [2])
            stage.let(1)
            await ended(db, 1, "completed")
            await set_back(db, 1, timedelta(minutes=1))
            go_on.set()
            await eventually(lambda: len(winners) == (2 if ends == "crash" else 1))
            await until(run, "delayed")
            await skip(app, clock, HOUR)
            assert await run.result(timeout=60) == 2
        await set_back(db, 1, -timedelta(minutes=1))
        assert set(winners) == {2}
        assert len(winners) > 1

    async def test_what_decided_is_recorded_and_a_replay_decides_anew(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> int:
            return await first([await ctx.submit(stage.child, n) for n in (1, 2)])

        stage.let(1)
        run = await parent.submit()
        async with working(app):
            assert await run.result(timeout=60) == 1
            assert list(await journal(db, run)) == [("ff.1 of 2 runs", 0)]
            before = stage.end(2)
            stage.ends.clear()
            stage.let(2)
            before.set()
            client = await app.client()
            await client.executions.replay(run.id)
            assert await run.result(timeout=60) == 2
            stage.let(1)

    async def test_joins_side_by_side(self, app, stage):
        @app.task
        async def parent(ctx: Context) -> list[Any]:
            runs = [await ctx.submit(stage.child, n) for n in range(4)]
            return list(await asyncio.gather(gather(runs[:2]), first(runs[2:]), runs[0].result()))

        run = await parent.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(0)
            await until(run, "waiting_children")
            stage.let(1, 3)
            assert await run.result(timeout=60) == [[0, 1], 3, 0]
            stage.let(2)

    async def test_a_join_against_the_clock(self, app, stage):
        @app.task
        async def parent(ctx: Context) -> list[int] | str:
            runs = [await ctx.submit(stage.child, n) for n in range(2)]
            join = asyncio.create_task(gather(runs))
            clock = asyncio.create_task(ctx.sleep(timedelta(hours=1)))
            await asyncio.wait({join, clock}, return_when=asyncio.FIRST_COMPLETED)
            return join.result() if join.done() else "too late"

        run = await parent.submit()
        async with working(app):
            await until(run, "suspended")
            stage.let(0, 1)
            assert await run.result(timeout=60) == [0, 1]

    async def test_more_than_can_be_waited_for_at_once(self, app, db, stage, monkeypatch):
        monkeypatch.setattr(waits, "MAX_TARGETS", 2)
        monkeypatch.setattr("flowfabric.app.gather.MAX_TARGETS", 2)
        monkeypatch.setattr(run_ends, "_READ_AT_ONCE", 2)

        @app.task
        async def parent(ctx: Context) -> list[int]:
            runs = [await ctx.submit(stage.child, n) for n in range(5)]
            return await gather(runs)

        @app.task
        async def race(ctx: Context) -> int:
            return await first([await ctx.submit(stage.child, n) for n in range(5)])

        run, racing = await parent.submit(), await race.submit()
        async with working(app):
            await until(run, "waiting_children")
            stage.let(*range(5))
            assert await run.result(timeout=60) == [0, 1, 2, 3, 4]
            with pytest.raises(ExecutionFailed, match="wait for at most 2"):
                await racing.result(timeout=60)
        assert (await kinds(db, run)).count("waiting") <= 3

    async def test_beside_a_step_that_takes_long(self, app, stage):
        @app.task
        async def parent(ctx: Context) -> list[Any]:
            runs = [await ctx.submit(stage.child, n) for n in range(2)]
            going = asyncio.create_task(ctx.step("long", stage.end(9).wait))
            found = await gather(runs)
            stage.let(9)
            return [found, await going]

        stage.let(0, 1)
        run = await parent.submit()
        async with working(app):
            assert await run.result(timeout=60) == [[0, 1], True]

    @pytest.mark.parametrize("join", ["gather", "first", "quorum_of"])
    async def test_in_a_thread(self, app, stage, join):
        @app.task
        def parent(ctx: Context) -> Any:
            runs = [ctx.submit_sync(stage.child, n) for n in range(2)]
            if join == "gather":
                return gather_sync(runs)
            if join == "first":
                return first_sync(runs, cancel_rest=True)
            return quorum_of_sync(2, runs)

        stage.let(0, 1)
        run = await parent.submit()
        async with working(app, concurrency=1):
            found = await run.result(timeout=60)
        assert found in (0, 1) if join == "first" else sorted(found) == [0, 1]

    async def test_runs_that_are_not_there(self, app):
        @app.task
        async def parent(ctx: Context) -> int:
            return await first([app.get(mint()), app.get(mint())])

        run = await parent.submit()
        async with working(app):
            with pytest.raises(ExecutionFailed, match="There is no execution"):
                await run.result(timeout=60)

    async def test_its_own_run(self, app):
        @app.task
        async def parent(ctx: Context) -> list[int]:
            return await gather([app.get(ctx.execution_id)])

        run = await parent.submit()
        async with working(app):
            with pytest.raises(ExecutionFailed, match="cannot wait for its own execution"):
                await run.result(timeout=60)

    async def test_in_a_step_they_wait_where_they_are(self, app, db, stage):
        @app.task
        async def parent(ctx: Context) -> list[int]:
            runs = [await ctx.submit(stage.child, n) for n in range(2)]

            async def join() -> list[int]:
                return [await first(runs), *await gather(runs)]

            return await ctx.step("join", join)

        stage.let(0, 1)
        run = await parent.submit()
        async with working(app):
            assert (await run.result(timeout=60))[1:] == [0, 1]
        assert "waiting" not in await kinds(db, run)


class TestOutside:
    async def test_gather(self, app, stage):
        runs = [await stage.child.submit(n) for n in (2, 1)]
        stage.let(1, 2)
        async with working(app):
            assert await gather(runs) == [2, 1]
            assert await gather(iter(runs)) == [2, 1]
        assert await gather([]) == []

    async def test_first_and_quorum(self, app, stage):
        runs = [await stage.child.submit(n) for n in (-1, 2, 3, 4)]
        stage.let(1, 3)
        async with working(app):
            assert await first(runs) == 3
            stage.let(2)
            assert sorted(await quorum_of(2, runs, cancel_rest=True)) == [2, 3]
            with pytest.raises(ExecutionCancelled, match="not needed any more"):
                await runs[3].result(timeout=60)
            with pytest.raises(ExecutionCancelled) as caught:
                await quorum_of(3, runs)
            assert "fewer than 3 of 4 runs" in caught.value.__notes__[-1]

    async def test_synchronously(self, app, stage):
        runs = [await stage.child.submit(n) for n in (1, 2)]
        stage.let(1, 2)

        def program() -> list[Any]:
            return [gather_sync(runs), first_sync(runs[:1]), sorted(quorum_of_sync(2, runs))]

        async with working(app):
            assert await asyncio.to_thread(program) == [[1, 2], 1, [1, 2]]
        assert gather_sync([]) == []

    async def test_runs_by_their_ids(self, app, stage):
        runs = [app.get((await stage.child.submit(n)).id) for n in (1, 2)]
        stage.let(1, 2)
        async with working(app):
            assert await gather(runs) == [1, 2]
        with pytest.raises(NotFound):
            await gather([app.get(mint())])

    async def test_what_cannot_be_joined_is_refused(self, app, stage):
        one, two = await stage.child.submit(1), await stage.child.submit(2)
        with pytest.raises(InvalidInput, match="k: is 3, but there are only 2 runs"):
            await quorum_of(3, [one, two])
        with pytest.raises(InvalidInput, match="k: must be a whole number, 1 or more"):
            await quorum_of(0, [one])
        with pytest.raises(InvalidInput, match="runs: must contain at least one run"):
            await first([])
        with pytest.raises(InvalidInput, match="must be a list of runs, not Run"):
            await first(one)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="must be runs, not int"):
            await gather([1])  # type: ignore[list-item]
        with pytest.raises(InvalidInput, match="the same run twice"):
            await gather([one, one])
