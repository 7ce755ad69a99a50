"""A schedule fires each of its times once, whoever is there, and catches up as its misfire rule
says."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from flowfabric import App, Context, FlowFabric, Retry
from flowfabric.core.errors import InvalidInput, LaneClosed
from flowfabric.core.ids import firing_id
from worker.apps import working
from worker.waiting import eventually

from .stage import fired, nothing, scheduled, scheduler
from .wall_clock import utc

START = utc(2026, 5, 4, 8, 30)
HOUR = timedelta(hours=1)
DAYS = timedelta(days=3)


@pytest.fixture
async def at_start(clock):
    await clock.freeze(START)


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url) as client:
        yield client


async def hourly(make_app, **options):
    app = make_app(name="shop")
    scheduled(app, "tick", app.cron("0 * * * *", name="tick", **options))
    return app


# After downtime


async def down(make_app, clock, expression, misfire):
    """An app whose workers were gone for three days and a bit, and what fires when one is back."""
    app = make_app(name="shop")
    scheduled(app, "tick", app.cron(expression, name="tick", misfire=misfire))
    await (await scheduler(app)).declare()
    await clock.advance(DAYS + timedelta(minutes=35))
    again = await scheduler(app)
    await again.declare()
    return await again.fire_due()


async def test_once_fires_one_time_for_three_days(at_start, make_app, db, clock):
    assert (await down(make_app, clock, "0 * * * *", "once"))[0] == 1
    assert await fired(db, "tick") == [utc(2026, 5, 7, 9)]


async def test_skip_fires_none_of_three_days(at_start, make_app, db, clock):
    count, due_in = await down(make_app, clock, "0 * * * *", "skip")
    assert (count, due_in) == (0, timedelta(minutes=55))
    assert await fired(db, "tick") == []
    await clock.advance(timedelta(minutes=55))
    app = await hourly(make_app, misfire="skip")
    assert await app.fire_schedules() == 1
    assert await fired(db, "tick") == [utc(2026, 5, 7, 10)]


async def test_all_fires_every_hour_of_three_days(at_start, make_app, db, clock):
    assert (await down(make_app, clock, "0 * * * *", "all"))[0] == 73
    assert await fired(db, "tick") == [utc(2026, 5, 4, 9) + n * HOUR for n in range(73)]


async def test_all_catches_up_beyond_what_one_call_submits(at_start, make_app, db, clock):
    count, due_in = await down(make_app, clock, "* * * * *", "all")
    assert count == 3 * 24 * 60 + 35
    times = await fired(db, "tick")
    assert times == [START + n * timedelta(minutes=1) for n in range(1, count + 1)]
    assert due_in == timedelta(minutes=1)


async def test_two_workers_catch_up_together(at_start, make_app, db, clock):
    apps = [await hourly(make_app, misfire="all") for _ in range(2)]
    for app in apps:
        await (await scheduler(app)).declare()
    await clock.advance(DAYS)
    counts = await asyncio.gather(*(app.fire_schedules() for app in apps))
    assert sum(counts) == 72
    assert len(await fired(db, "tick")) == 72


# At the same moment


async def test_of_two_at_the_same_moment_one_fires(at_start, make_app, db, clock):
    """Both wait for the row of the schedule, held by a third, and then go on."""
    app = await hourly(make_app)
    await (await scheduler(app)).declare()
    await clock.advance(HOUR)
    async with FlowFabric(db.url) as one, FlowFabric(db.url) as two:
        (due,), now, _ = await one.schedules.due("shop")
        side = await db.connect()
        async with side.transaction():
            await side.execute("select from ff.schedule for update")
            racing = [
                asyncio.create_task(client.schedules.fire("shop", due, now))
                for client in (one, two)
            ]
            await eventually(
                lambda: db.fetchval(
                    "select count(*) = 2 from pg_stat_activity "
                    "where datname = current_database() and wait_event_type = 'Lock' "
                    "and query like '%fire_schedule%'"
                )
            )
        answers = await asyncio.gather(*racing)
    assert sorted((answer.outcome, answer.count) for answer in answers) == [
        ("already_fired", 0),
        ("fired", 1),
    ]
    assert {answer.next_at for answer in answers} == {utc(2026, 5, 4, 10)}
    assert await fired(db, "tick") == [utc(2026, 5, 4, 9)]


async def test_many_at_the_same_moment_fire_once(at_start, make_app, db, clock):
    app = await hourly(make_app)
    await (await scheduler(app)).declare()
    async with FlowFabric(db.url, pool_size=8) as client:
        for hour in range(1, 13):
            await clock.advance(HOUR)
            (due,), now, _ = await client.schedules.due("shop")
            answers = await asyncio.gather(
                *(client.schedules.fire("shop", due, now) for _ in range(8))
            )
            assert sum(answer.count for answer in answers) == 1
            assert len(await fired(db, "tick")) == hour


async def test_a_repeat_of_the_same_call_gets_the_first_answer(at_start, make_app, db, clock):
    app = await hourly(make_app, misfire="all")
    await (await scheduler(app)).declare()
    await clock.advance(5 * HOUR)
    client = await app.client()
    (due,), now, _ = await client.schedules.due("shop")
    call = due.schedule_id
    answers = [await client.schedules.fire("shop", due, now, call_id=call) for _ in range(3)]
    assert [(answer.outcome, answer.count) for answer in answers] == [("fired", 5)] * 3
    assert len(await fired(db, "tick")) == 5


async def test_a_time_fires_once_even_if_the_clock_goes_back(at_start, make_app, db, clock):
    """The id of a firing is made of the schedule and the time, so the second is the first."""
    app = await hourly(make_app)
    await (await scheduler(app)).declare()
    await clock.advance(HOUR)
    assert await app.fire_schedules() == 1
    await clock.set(START)
    again = make_app(name="shop")
    # Another rule, that has the same hour again.
    scheduled(again, "tick", again.cron("0 9-17 * * *", name="tick"))
    await (await scheduler(again)).declare()
    await clock.advance(HOUR)
    await again.fire_schedules()
    assert await fired(db, "tick") == [utc(2026, 5, 4, 9)]
    assert await db.fetchval("select count(*) from ff.execution") == 1


async def test_what_was_read_before_the_rule_changed_does_not_fire(at_start, make_app, db, clock):
    app = await hourly(make_app)
    await (await scheduler(app)).declare()
    await clock.advance(HOUR)
    client = await app.client()
    (due,), now, _ = await client.schedules.due("shop")
    other = make_app(name="shop")
    scheduled(other, "tick", other.cron("0 12 * * *", name="tick"))
    await (await scheduler(other)).declare()
    answer = await client.schedules.fire("shop", due, now)
    assert (answer.outcome, answer.next_at) == ("already_fired", utc(2026, 5, 4, 12))
    assert await fired(db, "tick") == []


# What is fired


async def test_a_firing_is_submitted_as_its_task_says(at_start, make_app, db, clock):
    app = make_app(name="shop")

    @app.cron("0 9 * * *", tz="Europe/Berlin", name="report", args=("daily",), kwargs={"pages": 3})
    @app.task(
        name="tasks.report",
        lane="slow",
        priority=7,
        needs={"printer"},
        retry=Retry(max_retries=5),
        deadline=HOUR,
        max_reclaims=3,
        tags={"team.name": "sales"},
    )
    async def report(kind: str, pages: int) -> None: ...

    await (await scheduler(app)).declare()
    await clock.set(utc(2026, 5, 5, 7, 0))
    assert await app.fire_schedules() == 1
    client = await app.client()
    (info,) = await client.schedules.list()
    assert info.last_at == utc(2026, 5, 5, 7)
    assert info.last_id.uuid == firing_id(info.schedule_id, info.last_at).uuid
    assert info.fired_count == 1
    found = await client.executions.describe(info.last_id)
    assert found is not None
    assert (found.task, found.lane, found.priority) == ("tasks.report", "slow", 7)
    assert found.capabilities == {"printer"}
    assert found.max_reclaims == 3
    assert found.creator == "schedule:report"
    assert found.tags == {
        "schedule.at": "2026-05-05T07:00:00Z",
        "schedule.name": "report",
        "team.name": "sales",
    }
    assert json.loads(found.payload) == {"kind": "daily", "pages": 3}
    assert found.deadline_at == found.created_at + HOUR
    assert found.policy["retry_policy"]["max_retries"] == 5


async def test_a_closed_lane_keeps_its_schedule_waiting(at_start, make_app, db, clock, caplog):
    app = await hourly(make_app, misfire="all")

    @app.cron("0 * * * *", name="other")
    @app.task(name="tasks.other", lane="open")
    async def other() -> None: ...

    worker = await scheduler(app)
    await worker.declare()
    client = await app.client()
    await client.lanes.drain("default")
    await clock.advance(2 * HOUR)
    count, due_in = await worker.fire_due()
    # the other one catches up by its own rule, once
    assert count == 1
    assert due_in == timedelta(seconds=5)
    await worker.fire_due()
    assert caplog.text.count("schedule could not fire: tick") == 1
    (due,), now, _ = await client.schedules.due("shop")
    with pytest.raises(LaneClosed):
        await client.schedules.fire("shop", due, now)
    assert await fired(db, "tick") == []
    await client.lanes.resume("default")
    assert await app.fire_schedules() == 2
    assert await fired(db, "tick") == [utc(2026, 5, 4, 9), utc(2026, 5, 4, 10)]


async def test_a_worker_process_declares_fires_and_runs(make_app, db):
    """End to end with the clock of the world: no connection more than a worker has anyway."""
    app: App = make_app(name="shop")
    ran = asyncio.Event()

    @app.every(timedelta(seconds=1), name="pulse")
    async def pulse() -> None:
        ran.set()

    async with working(app):
        await asyncio.wait_for(ran.wait(), 60)
        assert await db.others() <= 3
    assert (await pulse.submit()).id


async def test_the_same_function_is_still_a_task(make_app, db):
    app = make_app(name="shop")

    @app.cron("0 0 29 2 *")
    async def leap(n: int = 29) -> int:
        return n

    assert await leap() == 29
    assert list(app.schedules) == [leap.name]
    async with working(app):
        assert await (await leap.submit(3)).result(timeout=60) == 3


# Calls that are refused


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"p_call_id": None}, "call_id"),
        ({"p_fire_ats": None}, "fire_ats"),
        ({"p_fire_ats": [None]}, "fire_ats"),
        ({"p_fire_ats": [utc(2026, 5, 4, 8)]}, "fire_ats"),
        ({"p_fire_ats": [utc(2026, 5, 4, 10)]}, "fire_ats"),
        ({"p_execution_ids": []}, "execution_ids"),
        ({"p_execution_ids": [None]}, "execution_ids"),
        ({"p_expected_next_at": utc(2026, 5, 4, 10)}, "expected_next_at"),
        ({"p_expected_next_at": None}, "expected_next_at"),
        ({"p_next_at": utc(2026, 5, 4, 9)}, "next_at"),
        ({"p_next_at": None}, "next_at"),
    ],
)
async def test_what_cannot_fire_is_refused(change, field, at_start, make_app, db, clock):
    app = await hourly(make_app)
    await (await scheduler(app)).declare()
    await clock.advance(HOUR)
    client = await app.client()
    (due,), _, _ = await client.schedules.due("shop")
    named = {
        "p_partition_key": 0,
        "p_namespace": "default",
        "p_app": "shop",
        "p_name": "tick",
        "p_call_id": due.schedule_id,
        "p_rule_no": 0,
        "p_expected_next_at": due.next_at,
        "p_fire_ats": [due.next_at],
        "p_next_at": due.next_at + HOUR,
        "p_execution_ids": [due.schedule_id],
        **change,
    }
    given = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    with pytest.raises(Exception, match="invalid_input") as caught:
        await db.fetch(f"select outcome from ff.fire_schedule({given})", *named.values())
    assert json.loads(caught.value.detail)["field"] == field
    assert await fired(db, "tick") == []


async def test_what_is_not_there_does_not_fire(at_start, make_app, clock):
    app = await hourly(make_app)
    await (await scheduler(app)).declare()
    await clock.advance(HOUR)
    client = await app.client()
    (due,), now, _ = await client.schedules.due("shop")
    answer = await client.schedules.fire("another", due, now)
    assert (answer.outcome, answer.count, answer.next_at) == ("gone", 0, None)


# What is written in the app


def test_bad_rules_are_refused_where_they_are_written(app):
    for call, field in (
        (lambda: app.cron("every day"), "cron"),
        (lambda: app.cron("0 9 * * *", tz="Europe/Berln"), "tz"),
        (lambda: app.cron("0 9 * * *", misfire="twice"), "misfire"),
        (lambda: app.every(5), "every"),
        (lambda: app.every(HOUR, args="x"), "args"),
        (lambda: app.every(HOUR, kwargs=[1]), "kwargs"),
        (lambda: app.every(HOUR, name="has blanks")(nothing), "name"),
        (lambda: app.every(HOUR, name="x" * 241)(nothing), "name"),
        (lambda: App(name="two words"), "name"),
        (lambda: App(version="latest"), "version"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field
    assert app.tasks == {}
    assert app.schedules == {}


def test_two_schedules_of_one_task_need_two_names(app):
    task = app.every(HOUR)(nothing)
    with pytest.raises(InvalidInput, match="already exists"):
        app.cron("0 9 * * *")(task)
    assert app.cron("0 9 * * *", name="mornings")(task) is task
    assert len(app.schedules) == 2
    with pytest.raises(InvalidInput, match="another app"):
        App().every(HOUR, name="theirs")(task)


async def test_a_task_that_needs_arguments_is_refused_when_a_worker_starts(make_app):
    app = make_app(name="shop")

    @app.every(HOUR)
    async def greet(name: str) -> None: ...

    with pytest.raises(InvalidInput, match="name") as caught:
        await app.worker()
    assert "args=" in str(caught.value)
    app.schedules.clear()
    app.every(HOUR, args=("you",))(greet)
    assert await app.worker()


async def test_a_schedule_has_no_times_but_its_own(make_app):
    app = make_app(name="shop")
    app.every(HOUR)(app.task(nothing).using(delay=HOUR))
    with pytest.raises(InvalidInput) as caught:
        await app.fire_schedules()
    assert caught.value.field == "delay"


def test_an_app_is_named_for_the_module_that_makes_it():
    assert App().name == __name__
    assert App(name="shop").name == "shop"


async def test_a_handler_knows_for_which_time_it_runs(make_app, clock):
    await clock.set(START)
    app = make_app(name="shop")
    seen = []

    @app.cron("0 9 * * *", name="report")
    async def report(ctx: Context) -> None:
        seen.append(await ctx.scheduled_at())

    @app.cron("0 9 * * *", name="plain")
    def plain(ctx: Context) -> None:
        seen.append(ctx.scheduled_at_sync())

    await (await scheduler(app)).declare()
    await clock.set(utc(2026, 5, 4, 9, 0, 20))
    async with working(app):
        await eventually(lambda: len(seen) == 2)
        assert seen == [utc(2026, 5, 4, 9)] * 2
        # submitted by hand, it has none
        await report.submit()
        await eventually(lambda: len(seen) == 3)
    assert seen[-1] is None
