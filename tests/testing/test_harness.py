"""The harness as a test uses it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

import pytest

from flowfabric import App, Context, ExecutionFailed, InvalidInput, PublicState, Retry
from flowfabric.testing import Harness

from . import shop
from .shop import Item, app, greet

LEASE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _no_charges():
    shop.charges.clear()


@pytest.fixture
def ff(ff):
    """The harness may do nothing that the engine would not: its promises hold after every test."""
    yield ff
    ff.check()


async def test_frames_are_those_that_stay_valid(ff):
    own = App()

    @own.task(retry=Retry(max_retries=1), streams=Item)
    async def say(ctx: Context) -> None:
        await ctx.stream.send(f"attempt {ctx.attempt}")
        await ctx.stream.best_effort(Item("tea", Decimal(2)))
        if ctx.attempt == 1:
            raise LookupError

    run = await ff.submit(say)
    await ff.run(run)
    text, item = await ff.frames(run)
    assert (text.text, item.data) == ("attempt 2", Item("tea", Decimal(2)))


@pytest.mark.parametrize(("is_answered", "expected"), [(True, "ada says yes"), (False, "nobody")])
async def test_a_signal_ends_a_wait_and_so_does_its_timeout(ff, is_answered, expected):
    own = App()

    @own.task
    async def ask(ctx: Context) -> str:
        return await ctx.wait_for_signal("answer", str, timeout=LEASE, default="nobody")

    run = await ff.submit(ask)
    await ff.run_until(run, "suspended")
    if is_answered:
        await ff.signal(run, "answer", "ada says yes", by="ada")
    else:
        await ff.skip(LEASE)
    assert await ff.run(run) == expected


class TestRun:
    async def test_a_task_is_submitted_and_its_result_returned(self, ff):
        assert await ff.run(greet, "ada", loud=True) == "ADA"

    async def test_the_result_has_its_type(self, ff):
        assert await ff.run(shop.order, Item("tea", Decimal("2.50"))) == Decimal("2.50")

    async def test_a_run_that_was_submitted_before(self, ff):
        run = await ff.submit(greet, "ada")
        assert await run.state() is PublicState.WAITING
        assert await ff.run(run) == "ada"
        assert await ff.run(run) == "ada"

    async def test_the_worker_has_what_the_tasks_need_and_threads_for_plain_ones(self, ff):
        assert await ff.run(shop.double, 4) == 8

    async def test_a_failure_is_raised(self, ff):
        with pytest.raises(ExecutionFailed, match="no such thing") as caught:
            await ff.run(shop.broken)
        assert caught.value.type == "LookupError"
        assert "in broken" in caught.value.__notes__[0]

    async def test_time_passes_for_retries_by_itself(self, ff):
        before = await ff.now()
        assert await ff.run(shop.flaky) == 3
        assert await ff.now() - before >= timedelta(hours=2)

    async def test_what_nobody_can_run_is_explained(self, ff):
        run = await ff.submit(greet, "ada")
        client = await ff.client()
        await client.lanes.pause("default", actor="test")
        with pytest.raises(AssertionError, match="does not reach its end") as caught:
            await ff.run(run)
        assert "paused" in str(caught.value)

    @pytest.mark.parametrize("work", [Harness.run, partial(Harness.run_until, state="completed")])
    async def test_a_run_that_ends_after_its_state_was_read_has_ended(self, ff, work, monkeypatch):
        run = await ff.submit(greet, "ada")
        settle = ff._settle

        async def end_the_run_and_find_no_handler(*_):
            monkeypatch.setattr(ff, "_settle", settle)
            await ff.drain()
            return False

        monkeypatch.setattr(ff, "_settle", end_the_run_and_find_no_handler)
        await work(ff, run)
        assert await run.state() is PublicState.COMPLETED


class TestDrain:
    async def test_everything_that_can_run_runs(self, ff):
        await ff.submit(shop.welcome, ["ada", "bob"])
        assert await ff.drain() == 3
        assert await ff.drain() == 0

    async def test_what_is_delayed_stays(self, ff):
        run = await ff.submit(shop.flaky)
        assert await ff.drain() == 1
        assert await run.state() is PublicState.DELAYED
        await ff.skip(hours=1)
        assert await ff.drain() == 1

    async def test_one_after_the_other_by_priority(self, ff):
        seen = []
        local = App()

        @local.task
        async def note(name: str) -> None:
            seen.append(f"{name} begins")
            await asyncio.sleep(0.01)
            seen.append(f"{name} ends")

        await ff.submit(note, "low")
        await ff.submit(note.using(priority=5), "high")
        assert await ff.drain() == 2
        assert seen == ["high begins", "high ends", "low begins", "low ends"]

    async def test_several_at_once_if_asked(self, ff):
        together = asyncio.Barrier(3)
        local = App()

        @local.task
        async def meet() -> None:
            await together.wait()

        for _ in range(3):
            await ff.submit(meet)
        assert await ff.drain(concurrency=3) == 3

    async def test_what_was_submitted_past_the_harness_runs_too(self, ff):
        run = await greet.submit("ada")
        assert await ff.drain() == 1
        assert await run.result(timeout=60) == "ada"

    async def test_work_that_feeds_itself_is_noticed(self, ff, monkeypatch):
        monkeypatch.setattr("flowfabric.testing.harness.MOST_ATTEMPTS", 5)
        await ff.submit(shop.forever)
        with pytest.raises(AssertionError, match=r"does .*forever submit itself"):
            await ff.drain()

    async def test_a_handler_that_does_not_end_is_named(self, ff):
        await ff.submit(shop.stuck_at_first)
        ff.timeout = 0.1
        with pytest.raises(AssertionError, match=r"still running:\n.*stuck_at_first"):
            await ff.drain()


@pytest.mark.slow(short=4, of="the harness")
class TestRunUntil:
    async def test_active_is_when_the_handler_has_begun(self, ff):
        run = await ff.submit(shop.stuck_at_first)
        await ff.run_until(run, "active")
        assert await run.state() is PublicState.ACTIVE

    async def test_delayed_is_when_it_waits_for_time(self, ff):
        run = await ff.submit(shop.flaky)
        await ff.run_until(run, "delayed")
        assert await run.state() is PublicState.DELAYED

    async def test_an_end_may_be_waited_for(self, ff):
        run = await ff.submit(greet, "ada")
        await ff.run_until(run, PublicState.COMPLETED)
        assert await run.state() is PublicState.COMPLETED

    async def test_a_state_it_passes_by_is_told_with_what_happened(self, ff):
        run = await ff.submit(greet, "ada")
        with pytest.raises(
            AssertionError, match="has ended as completed and did not reach delayed"
        ) as e:
            await ff.run_until(run, "delayed")
        assert "claimed" in str(e.value)

    async def test_a_state_it_needs_time_for_is_told_with_the_reason(self, ff):
        run = await ff.submit(shop.flaky)
        with pytest.raises(AssertionError, match="is delayed and nothing can run now") as caught:
            await ff.run_until(run, "completed")
        assert "back-off" in str(caught.value)

    async def test_a_misspelt_state_is_refused(self, ff):
        run = await ff.submit(greet, "ada")
        with pytest.raises(InvalidInput, match="did you mean 'delayed'"):
            await ff.run_until(run, "delaid")


class TestClock:
    async def test_it_moves_by_what_is_asked(self, ff):
        before = await ff.now()
        after = await ff.skip(timedelta(minutes=1), weeks=1, days=1, hours=1, seconds=1)
        moved = after - before - timedelta(days=8, hours=1, minutes=1, seconds=1)
        assert timedelta() <= moved < timedelta(seconds=20)

    async def test_it_does_not_go_back(self, ff):
        with pytest.raises(InvalidInput, match="must not be negative"):
            await ff.skip(days=-1)

    async def test_a_handler_that_runs_keeps_its_lease(self, ff):
        run = await ff.submit(shop.stuck_at_first)
        await ff.run_until(run, "active")
        await ff.skip(days=1)
        await (await ff.client()).leases.expire()
        assert [str(event.kind) for event in await ff.events(run)] == ["submitted", "claimed"]

    async def test_the_next_test_begins_in_the_present(self, ff):
        assert abs(await ff.now() - datetime.now(UTC)) < timedelta(seconds=20)


class TestCrash:
    async def test_what_ran_is_left_to_its_lease_and_taken_over(self, ff):
        run = await ff.submit(shop.stuck_at_first)
        await ff.run_until(run, "active")
        assert await ff.crash_worker() == [run.id]
        assert await ff.drain() == 0
        assert await run.state() is PublicState.ACTIVE
        await ff.skip(LEASE)
        assert await ff.run(run) == "attempt 2"
        kinds = [str(event.kind) for event in await ff.events(run)]
        assert kinds == ["submitted", "claimed", "lease_expired", "reclaimed", "completed"]

    async def test_run_passes_the_time_until_the_lease_is_over(self, ff):
        run = await ff.submit(shop.stuck_at_first)
        await ff.run_until(run, "active")
        await ff.crash_worker()
        assert await ff.run(run) == "attempt 2"

    async def test_an_idle_worker_leaves_nothing(self, ff):
        await ff.run(greet, "ada")
        assert await ff.crash_worker() == []
        assert await ff.run(greet, "bob") == "bob"

    @pytest.mark.parametrize("task", [shop.onboard, shop.onboard_plainly])
    async def test_behind_a_step_the_step_is_not_done_again(self, ff, task):
        run = await ff.submit(task, "ada")
        await ff.run_until(run, step="charge")
        assert [step.name for step in await ff.steps(run)] == ["charge"]
        assert await ff.crash_worker() == [run.id]
        assert await ff.run(run) == "receipt for ada"
        assert shop.charges == ["ada"]


class TestSteps:
    async def test_a_day_of_sleep_is_skipped(self, ff):
        run = await ff.submit(shop.onboard, "ada")
        await ff.run_until(run, "delayed")
        await ff.skip(hours=23)
        assert await ff.drain() == 0
        await ff.skip(hours=1)
        assert await ff.drain() == 1
        assert await run.state() is PublicState.COMPLETED
        assert shop.charges == ["ada"]

    async def test_a_handler_behind_a_step_goes_on_with_the_next_call(self, ff):
        run = await ff.submit(shop.onboard, "ada")
        await ff.run_until(run, step="charge")
        await ff.run_until(run, "delayed")
        await ff.run_until(run, "delayed")
        assert await ff.run(run) == "receipt for ada"

    async def test_a_step_it_does_not_come_to_is_told(self, ff):
        run = await ff.submit(shop.onboard, "ada")
        with pytest.raises(AssertionError, match="does not reach step 'thank'") as caught:
            await ff.run_until(run, step="thank")
        assert "Its steps: charge" in str(caught.value)

    async def test_children_are_worked_on_while_their_parent_waits(self, ff):
        assert await ff.run(shop.household, ["ada", "bob"]) == [
            "receipt for ada",
            "receipt for bob",
        ]
        ff.assert_submitted(shop.onboard, "bob")

    async def test_either_a_state_or_a_step(self, ff):
        run = await ff.submit(greet, "ada")
        with pytest.raises(InvalidInput, match="either a state or a step"):
            await ff.run_until(run, "active", step="charge")


class TestSchedules:
    async def test_they_fire_when_their_time_has_come(self, ff):
        await ff.start_schedules(app)
        assert await ff.drain() == 0
        await ff.skip(days=1)
        assert await ff.drain() == 1
        ff.assert_submitted(shop.report)

    async def test_they_do_not_unless_asked(self, ff):
        await ff.run(greet, "ada")
        await ff.skip(days=1)
        assert await ff.drain() == 0


@pytest.mark.slow(short=4, of="the harness")
class TestAssertSubmitted:
    async def test_by_arguments(self, ff):
        await ff.run(shop.welcome, ["ada", "bob"])
        ff.assert_submitted(greet, "ada")
        ff.assert_submitted(greet, name="bob", loud=False)
        ff.assert_submitted(greet, "eve", times=0)
        found = ff.assert_submitted(greet, times=2)
        assert [dict(one.arguments) for one in found] == [{"name": "ada"}, {"name": "bob"}]

    async def test_arguments_are_compared_as_they_are_stored(self, ff):
        when = datetime(2027, 1, 1, tzinfo=UTC)
        await ff.submit(shop.order, Item("tea", Decimal("2.50")), when)
        ff.assert_submitted(shop.order, Item("tea", Decimal("2.50")))
        ff.assert_submitted(shop.order, at=when)
        ff.assert_submitted(shop.order, at=when + timedelta(hours=1), times=0)

    async def test_by_options(self, ff):
        await ff.run(shop.welcome, ["ada"])
        await ff.run(shop.remind, "bob")
        ff.assert_submitted(greet.using(lane="mail", priority=3), "ada")
        ff.assert_submitted(greet.using(tags={"shop.kind": "mail"}), "ada")
        ff.assert_submitted(greet.using(key="remind-bob", delay=3 * shop.DAY))
        ff.assert_submitted(greet.using(lane="other"), "ada", times=0)
        ff.assert_submitted(greet.using(delay=shop.DAY), times=0)

    async def test_the_message_shows_what_was_submitted_instead(self, ff):
        await ff.run(shop.welcome, ["bob"])
        with pytest.raises(AssertionError) as caught:
            ff.assert_submitted(greet.using(lane="mail"), "ada", loud=True)
        assert str(caught.value).splitlines() == [
            f"{greet.name}(name='ada', loud=True) with lane='mail' should have been submitted "
            "once, and was never.",
            "Submissions of this task:",
            f"  {greet.name}(name='bob'): waiting, lane mail, priority 3, "
            "tags {'shop.kind': 'mail'}",
            "Submissions of other tasks:",
            f"  {shop.welcome.name}(names=['bob']): completed, lane default, priority 0",
        ]

    async def test_too_often_is_as_wrong_as_never(self, ff):
        await ff.run(shop.welcome, ["ada", "ada"])
        with pytest.raises(AssertionError, match="once, and was twice"):
            ff.assert_submitted(greet, "ada")
        ff.assert_submitted(greet, "ada", times=None)

    async def test_nothing_at_all(self, ff):
        with pytest.raises(AssertionError, match=r"at least once, and was never\.\nNothing was"):
            ff.assert_submitted(greet, times=None)

    async def test_an_argument_the_task_does_not_have(self, ff):
        with pytest.raises(InvalidInput, match="unexpected keyword"):
            ff.assert_submitted(greet, nam="ada")

    async def test_an_option_nobody_can_tell_afterwards(self, ff):
        with pytest.raises(InvalidInput, match="cannot compare deadline"):
            ff.assert_submitted(greet.using(deadline=shop.DAY), "ada")


@pytest.mark.slow(short=4, of="the harness")
class TestMisuse:
    async def test_a_function_that_is_no_task(self, ff):
        async def plain() -> int:
            return 1

        for call in (ff.submit, ff.run, ff.assert_submitted):
            with pytest.raises(InvalidInput, match=r"not function: decorate it with @app\.task"):
                await call(plain)

    async def test_an_id_where_a_run_belongs(self, ff):
        run = await ff.submit(greet, "ada")
        with pytest.raises(InvalidInput, match=r"not ExecutionId: app\.get\(id\) returns one"):
            await ff.run_until(run.id, "completed")
        with pytest.raises(InvalidInput, match=r"not ExecutionId: app\.get\(id\) returns one"):
            await ff.run(run.id)

    async def test_a_number_where_a_time_belongs(self, ff):
        with pytest.raises(InvalidInput, match="must be a timedelta"):
            await ff.skip(60)

    async def test_a_step_that_was_recorded_before(self, ff):
        run = await ff.submit(shop.onboard, "tea")
        await ff.run_until(run, step="charge")
        with pytest.raises(AssertionError, match="'charge' was recorded before this call"):
            await ff.run_until(run, step="charge")


class TestBinding:
    async def test_every_app_uses_the_database_of_the_test(self, ff, monkeypatch):
        assert app.settings.database_url == ff.database_url
        assert App().settings.database_url == ff.database_url

    async def test_one_that_was_given_another_url_follows_when_it_is_met(self, ff):
        other = App(database_url="postgresql://nobody@nowhere.invalid/db")

        @other.task
        async def work() -> int:
            return 1

        assert await ff.run(work) == 1

    def test_they_go_back_afterwards(self, ff_db):
        before = app.settings
        harness = Harness(ff_db)
        made = App()
        assert app.settings.database_url == made.settings.database_url == ff_db.url
        harness.end()
        assert app.settings is before
        assert made.settings.database_url == App().settings.database_url != ff_db.url


class TestPlainTests:
    def test_they_call_what_others_await(self, ff):
        run = greet.submit_sync("ada")
        assert ff.call(ff.drain()) == 1
        assert run.result_sync(timeout=60) == "ada"
        assert ff.call(ff.run(shop.flaky)) == 3
        ff.assert_submitted(greet, "ada")

    async def test_others_must_not(self, ff):
        with pytest.raises(TypeError, match="use await"):
            ff.call(ff.drain())


def test_a_broken_promise_is_told(ff_db):
    harness = Harness(ff_db)
    try:
        harness.check()
        harness.call(harness.submit(greet, "ada"))
        ff_db.execute("delete from ff.event")
        with pytest.raises(AssertionError, match="The database violates invariants"):
            harness.check()
    finally:
        harness.end()


def test_the_database_can_be_looked_at(ff_db):
    ff_db.execute("create table guest (name text); insert into guest values ('ada')")
    assert ff_db.fetch("select name from guest where name = $1", "ada") == [{"name": "ada"}]
    assert ff_db.submitted() == []


async def test_nothing_is_left_on_the_loop(ff_db):
    before = asyncio.all_tasks()
    harness = Harness(ff_db)
    try:
        run = await harness.submit(shop.stuck_at_first)
        await harness.run_until(run, "active")
    finally:
        await harness.close()
        assert asyncio.all_tasks() == before
        harness.end()
    rows = ff_db.fetch(
        "select application_name from pg_stat_activity "
        "where datname = $1 and application_name like 'flowfabric%'",
        ff_db.name,
    )
    assert rows == []
