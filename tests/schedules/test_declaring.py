"""Which schedules there are is what the newest version of an app says; operators pause, resume and
run them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric import FlowFabric
from flowfabric.core.errors import InvalidInput, ScheduleNotFound, ScheduleOrphaned
from flowfabric.core.states import ScheduleState
from support.factories import refused
from worker.apps import working
from worker.waiting import eventually

from .stage import fired, scheduled, scheduler
from .wall_clock import utc

START = utc(2026, 5, 4, 8, 30)
HOUR = timedelta(hours=1)
HOURLY = "0 * * * *"
ID = UUID(int=7)


@pytest.fixture(autouse=True)
async def at_start(clock):
    await clock.freeze(START)


@pytest.fixture
async def schedules(db):
    async with FlowFabric(db.url) as client:
        yield client.schedules


@pytest.fixture
def shop(make_app):
    """An app with a schedule for each name: hourly, or by the rule given."""

    def make(*names, version="0", app="shop", **rules):
        made = make_app(name=app, version=version)
        for name, rule in {**dict.fromkeys(names, HOURLY), **rules}.items():
            made_by = made.cron if isinstance(rule, str) else made.every
            scheduled(made, name, made_by(rule, name=name))
        return made

    return make


async def states(schedules):
    return {one.name: one.state.value for one in await schedules.list()}


async def declare(app):
    return await (await scheduler(app)).declare()


# Pause, resume, run


async def test_a_paused_schedule_does_not_fire_and_catches_nothing_up(shop, schedules, db, clock):
    app = shop("tick")
    await declare(app)
    paused = await schedules.pause("tick", reason="inventory", actor="ann")
    assert (paused.state, paused.next_at) == (ScheduleState.PAUSED, None)
    assert (paused.reason, paused.changed_by, paused.changed_at) == ("inventory", "ann", START)
    await clock.advance(3 * HOUR)
    assert await app.fire_schedules() == 0
    resumed = await schedules.resume("tick", actor="bob")
    assert resumed.state is ScheduleState.ACTIVE
    assert resumed.next_at == utc(2026, 5, 4, 12)
    assert (resumed.reason, resumed.changed_by) == (None, "bob")
    assert await app.fire_schedules() == 0
    await clock.advance(HOUR)
    assert await app.fire_schedules() == 1
    assert await fired(db, "tick") == [utc(2026, 5, 4, 12)]


async def test_a_pause_outlives_declarations_and_new_rules(shop, schedules, clock):
    await declare(shop("tick"))
    await schedules.pause("tick", reason="inventory")
    await declare(shop("tick"))
    await declare(shop(tick="0 12 * * *", version="2"))
    (info,) = await schedules.list()
    assert (info.state, info.reason, info.cron) == (ScheduleState.PAUSED, "inventory", "0 12 * * *")
    assert (await schedules.resume("tick")).next_at == utc(2026, 5, 4, 12)


async def test_pausing_and_resuming_twice_changes_nothing_more(shop, schedules, clock):
    await declare(shop("tick"))
    first = await schedules.pause("tick", actor="ann")
    await clock.advance(HOUR)
    assert await schedules.pause("tick", actor="ann") == first
    resumed = await schedules.resume("tick")
    await clock.advance(HOUR)
    assert await schedules.resume("tick") == resumed


async def test_a_schedule_is_run_now_beside_its_times(shop, schedules, db, clock):
    app = shop("tick")
    await declare(app)
    (before,) = await schedules.list()
    id = await schedules.run("tick", actor="ann")
    assert (await schedules.list()) == [before]
    client = await app.client()
    found = await client.executions.describe(id)
    assert found is not None
    assert (found.task, found.creator) == ("tasks.tick", "ann")
    assert found.tags == {"schedule.name": "tick", "schedule.at": "2026-05-04T08:30:00Z"}
    await schedules.pause("tick")
    await schedules.run("tick")
    assert len(await fired(db, "tick")) == 2


async def test_the_next_times_are_told(shop, schedules):
    await declare(shop("tick"))
    assert await schedules.next("tick", count=3) == [utc(2026, 5, 4, h) for h in (9, 10, 11)]
    await schedules.pause("tick")
    assert await schedules.next("tick", count=1) == [utc(2026, 5, 4, 9)]
    for bad in (0, 1001, True, "5"):
        with pytest.raises(InvalidInput) as caught:
            await schedules.next("tick", count=bad)
        assert caught.value.field == "count"


async def test_an_unknown_schedule_is_told_the_nearest(shop, schedules):
    await declare(shop("report"))
    for act in (schedules.get, schedules.pause, schedules.resume, schedules.run, schedules.next):
        with pytest.raises(ScheduleNotFound, match=r"did you mean report\?"):
            await act("reprot")


async def test_two_apps_may_have_schedules_of_one_name(shop, schedules):
    await declare(shop("tick"))
    await declare(shop("tick", app="bank"))
    with pytest.raises(InvalidInput, match="bank, shop") as caught:
        await schedules.pause("tick")
    assert caught.value.field == "app"
    await schedules.pause("tick", app="bank")
    assert [(one.app, one.state.value) for one in await schedules.list()] == [
        ("bank", "paused"),
        ("shop", "active"),
    ]


async def test_another_tenants_schedules_are_not_there(shop, db):
    await declare(shop("tick"))
    async with FlowFabric(db.url, namespace="other") as client:
        assert await client.schedules.list() == []
        with pytest.raises(ScheduleNotFound):
            await client.schedules.pause("tick")
    async with FlowFabric(db.url, namespace=None) as client:
        assert [one.namespace for one in await client.schedules.list()] == ["default"]


# Orphans


async def test_what_is_not_declared_any_more_is_orphaned_and_never_fires(
    shop, schedules, db, clock
):
    await declare(shop("tick", "tock"))
    await declare(shop("tock"))
    assert await states(schedules) == {"tick": "orphaned", "tock": "active"}
    await clock.advance(HOUR)
    assert await shop("tock").fire_schedules() == 1
    async with FlowFabric(db.url) as client:
        due, _, _ = await client.schedules.due("shop")
        assert due == []
    with pytest.raises(ScheduleOrphaned):
        await schedules.run("tick")
    # an operator's resume does not make it fire either
    assert (await schedules.resume("tick")).state is ScheduleState.ORPHANED
    assert await fired(db, "tick") == []


async def test_what_was_orphaned_while_it_was_being_fired_does_not_fire(shop, schedules, db, clock):
    app = shop("tick")
    await declare(app)
    await clock.advance(HOUR)
    (due,), now, _ = await schedules.due("shop")
    await declare(shop())
    answer = await schedules.fire("shop", due, now)
    assert (answer.outcome, answer.count) == ("inactive", 0)
    assert await fired(db, "tick") == []


async def test_an_orphan_that_is_declared_again_goes_on_from_then(shop, schedules, db, clock):
    await declare(shop("tick"))
    (first,) = await schedules.list()
    await declare(shop())
    await clock.advance(5 * HOUR)
    await declare(shop("tick"))
    (info,) = await schedules.list()
    assert (info.state, info.next_at) == (ScheduleState.ACTIVE, utc(2026, 5, 4, 14))
    assert info.schedule_id == first.schedule_id
    assert await fired(db, "tick") == []


async def test_an_orphan_that_was_paused_is_paused_when_it_is_back(shop, schedules):
    await declare(shop("tick"))
    await schedules.pause("tick")
    await declare(shop())
    assert await states(schedules) == {"tick": "orphaned"}
    await declare(shop("tick"))
    assert await states(schedules) == {"tick": "paused"}


async def test_a_renamed_schedule_is_another_one(shop, schedules, db, clock):
    await declare(shop("tick"))
    await declare(shop("tack"))
    assert await states(schedules) == {"tack": "active", "tick": "orphaned"}
    await clock.advance(HOUR)
    assert await shop("tack").fire_schedules() == 1
    assert await fired(db, "tack") == [utc(2026, 5, 4, 9)]
    await schedules.forget("tick")
    assert await states(schedules) == {"tack": "active"}
    with pytest.raises(InvalidInput, match="declared by its app"):
        await schedules.forget("tack")


# Versions


async def test_the_newest_version_wins_and_an_older_worker_does_not_undo_it(
    shop, schedules, db, clock
):
    old, new = shop("tick", "gone", version="1.9"), shop("tick", "fresh", version="1.10")
    worker = await scheduler(old)
    assert (await worker.declare()).outcome == "declared"
    assert (await declare(new)).outcome == "declared"
    before = await schedules.list()
    # said again by the one that runs, and by one that starts
    assert (await worker.declare()).outcome == "older"
    assert (await declare(shop("tick", "gone", version="1.9"))).outcome == "older"
    assert await schedules.list() == before
    assert await states(schedules) == {"fresh": "active", "gone": "orphaned", "tick": "active"}
    # it fires what it knows, as the newest version says, and nothing else
    await clock.advance(HOUR)
    assert (await worker.fire_due())[0] == 1
    assert [await fired(db, name) for name in ("tick", "gone", "fresh")] == [
        [utc(2026, 5, 4, 9)],
        [],
        [],
    ]
    assert await new.fire_schedules() == 1


@pytest.mark.parametrize(
    ("known", "declared", "outcome"),
    [
        ("1", "1.0", "declared"),
        ("1.0", "1", "declared"),
        ("1.0.0.0.0.0.0.0", "1.0", "declared"),
        ("0", "0.0.1", "declared"),
        ("1.0.1", "1", "older"),
    ],
)
async def test_a_version_stays_as_it_was_written_and_what_it_leaves_out_counts_as_0(
    shop, schedules, known, declared, outcome
):
    await declare(shop("tick", version=known))
    assert (await declare(shop("tick", version=declared))).outcome == outcome
    (found,) = await schedules.list()
    assert found.version == (declared if outcome == "declared" else known)


async def test_a_version_without_schedules_is_a_version_too(shop, schedules):
    assert (await declare(shop(version="2"))).outcome == "declared"
    assert (await declare(shop("tick", version="1"))).outcome == "older"
    assert await schedules.list() == []
    assert (await declare(shop("tick", version="3"))).outcome == "declared"
    assert (await declare(shop(version="4"))).outcome == "declared"
    assert (await declare(shop("tick", version="3"))).outcome == "older"
    assert await states(schedules) == {"tick": "orphaned"}


async def test_of_one_version_the_last_that_started_wins(shop, schedules):
    first, second = await scheduler(shop("tick")), await scheduler(shop("tock"))
    await first.declare()
    await second.declare()
    # the first goes on and says the same again
    assert (await first.declare()).outcome == "superseded"
    assert (await second.declare()).outcome == "declared"
    assert await states(schedules) == {"tick": "orphaned", "tock": "active"}


async def test_a_database_that_forgot_is_told_again(shop, schedules, db):
    worker = await scheduler(shop("tick"))
    await worker.declare()
    await db.execute("delete from ff.schedule; delete from ff.schedule_app")
    assert (await worker.declare()).outcome == "declared"
    assert await states(schedules) == {"tick": "active"}


async def test_two_workers_that_start_together_declare_once(shop, schedules):
    apps = [shop("tick", pulse=timedelta(minutes=7)) for _ in range(6)]
    answers = await asyncio.gather(*map(declare, apps))
    assert {answer.outcome for answer in answers} == {"declared"}
    assert {answer.generation for answer in answers} == {1}
    assert await states(schedules) == {"pulse": "active", "tick": "active"}


# Rules


async def test_a_changed_rule_goes_on_from_now(shop, schedules, db, clock):
    await declare(shop("tick"))
    await clock.advance(3 * HOUR)
    await declare(shop(tick="15 * * * *"))
    (info,) = await schedules.list()
    assert info.next_at == utc(2026, 5, 4, 12, 15)
    assert info.rule_no == 1


async def test_another_time_zone_is_another_rule(make_app, schedules):
    for zone, hour in (("UTC", 9), ("Europe/Berlin", 7 + 24)):
        app = make_app(name="shop")
        scheduled(app, "tick", app.cron("0 9 * * *", tz=zone, name="tick"))
        await declare(app)
        (info,) = await schedules.list()
        assert info.next_at == utc(2026, 5, 4) + hour * HOUR


async def test_what_is_not_the_rule_changes_without_a_new_time(make_app, schedules, clock):
    for misfire in ("once", "all"):
        app = make_app(name="shop")
        scheduled(app, "tick", app.cron(HOURLY, misfire=misfire, name="tick"))
        await declare(app)
        await clock.advance(3 * HOUR)
    (info,) = await schedules.list()
    assert (info.misfire, info.next_at, info.rule_no) == ("all", utc(2026, 5, 4, 9), 0)
    assert await app.fire_schedules() == 6


async def test_equal_steps_keep_their_anchor_through_restarts(shop, schedules, db, clock):
    step = timedelta(minutes=7)
    for _ in range(14):
        # Each time another worker, that comes a while after the last one went.
        await shop(pulse=step).fire_schedules()
        await clock.advance(minutes=3, seconds=17)
    (info,) = await schedules.list()
    assert info.anchor_at == START
    times = await fired(db, "pulse")
    assert times == [START + n * step for n in range(1, len(times) + 1)]
    assert len(times) == 6
    assert info.next_at == START + 7 * step


async def test_other_steps_are_counted_from_when_they_changed(shop, schedules, clock):
    await declare(shop(pulse=timedelta(minutes=7)))
    await clock.advance(minutes=100)
    await declare(shop(pulse=timedelta(minutes=10)))
    (info,) = await schedules.list()
    assert info.anchor_at == START + timedelta(minutes=100)
    assert info.next_at == START + timedelta(minutes=110)


async def test_steps_may_have_a_start(make_app, schedules):
    for start, first in (
        (utc(2026, 5, 1), utc(2026, 5, 4, 13)),
        (utc(2026, 6, 1), utc(2026, 6, 1)),
    ):
        app = make_app(name="shop")
        scheduled(app, "pulse", app.every(timedelta(hours=5), start=start, name="pulse"))
        await declare(app)
        (info,) = await schedules.list()
        assert (info.anchor_at, info.next_at) == (start, first)


async def test_the_29th_of_february_fires_in_its_year(shop, schedules, db, clock):
    app = shop(leap="0 12 29 2 *")
    await declare(app)
    await clock.set(utc(2028, 2, 29, 11, 59))
    assert await app.fire_schedules() == 0
    await clock.advance(minutes=1)
    assert await app.fire_schedules() == 1
    assert (await schedules.get("leap")).next_at == utc(2032, 2, 29, 12)


# Bad declarations


BAD = [
    ({"p_app": ""}, "app"),
    ({"p_namespace": None}, "namespace"),
    ({"p_version": []}, "version"),
    ({"p_version": None}, "version"),
    ({"p_version": [1, None]}, "version"),
    ({"p_version": [[1], [2]]}, "version"),
    ({"p_version": [-1]}, "version"),
    ({"p_names": None}, "names"),
    ({"p_names": ["a", "a"]}, "names"),
    ({"p_names": ["a b"]}, "name"),
    ({"p_names": [None]}, "name"),
    ({"p_schedule_ids": [None]}, "schedule_id"),
    ({"p_schedule_ids": None}, "names"),
    ({"p_route_ids": [1]}, "route_id"),
    ({"p_route_ids": [None]}, "route_id"),
    ({"p_crons": None}, "cron"),
    ({"p_everys": [HOUR]}, "cron"),
    ({"p_crons": None, "p_everys": [HOUR]}, "anchor_at"),
    ({"p_crons": None, "p_everys": [HOUR / 7200], "p_anchor_ats": [START]}, "every"),
    ({"p_time_zones": [""]}, "time_zone"),
    ({"p_misfires": ["twice"]}, "misfire"),
    ({"p_next_ats": [None]}, "next_at"),
    ({"p_payloads": [b"x" * 1_048_577]}, "payload"),
    ({"p_payload_encodings": ["x" * 65]}, "payload_encoding"),
    ({"p_options": ["[]"]}, "options"),
    ({"p_options": ['{"deadline_ms": 3456000000000}']}, "deadline"),
    ({"p_options": ['{"max_reclaims": -1}']}, "max_reclaims"),
    ({"p_options": ['{"policy": "{"}']}, "policy"),
    ({"p_options": ['{"tags": []}']}, "tags"),
    ({"p_options": [json.dumps({"tags": {f"shop.n{n}": "x" for n in range(63)}})]}, "tags"),
    ({"p_options": ['{"task_version": ""}']}, "task_version"),
    ({"p_options": ['{"key": "k"}']}, "options"),
]


@pytest.mark.parametrize(("change", "field"), BAD, ids=[str(n) for n in range(len(BAD))])
async def test_what_cannot_be_declared_is_refused(change, field, db, engine):
    named = {
        "p_namespace": "test",
        "p_app": "shop",
        "p_version": [0],
        "p_names": ["tick"],
        "p_schedule_ids": [uuid4()],
        "p_route_ids": [await engine.register()],
        "p_crons": [HOURLY],
        "p_next_ats": [START + HOUR],
        **change,
    }
    given = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    with pytest.raises(Exception, match="invalid_input") as caught:
        await db.fetch(f"select outcome from ff.declare_schedules({given})", *named.values())
    assert f'"field": "{field}"' in caught.value.detail
    assert await db.fetchval("select count(*) from ff.schedule") == 0


async def test_two_schedules_do_not_share_an_id(db, engine):
    route = await engine.register()
    declare = (
        "select outcome from ff.declare_schedules('test', $1, '{0}', p_names => $2, "
        "p_schedule_ids => $3, p_route_ids => $4, p_crons => $5, p_next_ats => $6)"
    )

    def given(app, *names):
        n = len(names)
        return app, names, [ID] * n, [route] * n, [HOURLY] * n, [START + HOUR] * n

    with refused("WF001", field="schedule_id"):
        await db.fetch(declare, *given("shop", "tick", "tock"))
    assert await db.fetchval("select count(*) from ff.schedule") == 0
    for _ in range(2):
        assert await db.fetchval(declare, *given("shop", "tick")) == "declared"
    with refused("WF001", field="schedule_id"):
        await db.fetch(declare, *given("other", "tick"))
    assert await db.fetchval("select count(*) from ff.schedule_app") == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"p_is_paused": None}, "is_paused"),
        ({"p_is_paused": False}, "rule_no"),
        ({"p_is_paused": False, "p_rule_no": 0}, "next_at"),
        ({"p_reason": "x" * 257}, "reason"),
    ],
)
async def test_what_cannot_be_set_is_refused(change, field, db):
    named = {"p_namespace": "default", "p_app": "a", "p_name": "n", "p_is_paused": True, **change}
    given = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    with pytest.raises(Exception, match="invalid_input") as caught:
        await db.fetch(f"select outcome from ff.set_schedule({given})", *named.values())
    assert f'"field": "{field}"' in caught.value.detail


async def test_a_resume_with_an_old_rule_is_told_so(shop, schedules, db):
    await declare(shop("tick"))
    await schedules.pause("tick")
    await declare(shop(tick="15 * * * *"))
    row = await db.fetchrow(
        "select * from ff.set_schedule('default', 'shop', 'tick', false, $1, 0)", START + HOUR
    )
    assert tuple(row) == ("rule_changed", "paused", None)


# A worker in its loop


async def test_a_worker_notices_what_an_operator_resumes(make_app, schedules, clock, monkeypatch):
    monkeypatch.setattr("flowfabric.app.schedules.MOST_PAUSE", timedelta(milliseconds=50))
    app = make_app(name="shop")
    ran = []

    @app.cron(HOURLY, name="tick")
    async def tick() -> None:
        ran.append(1)

    async with working(app):
        await eventually(schedules.list)
        await schedules.pause("tick")
        await clock.advance(2 * HOUR)
        await schedules.resume("tick")
        await clock.advance(HOUR)
        await eventually(lambda: ran)
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("options", "args", "field"),
    [
        ({"tags": {f"shop.n{n}": "x" for n in range(63)}}, (), "tags"),
        ({}, ("x" * (1 << 20),), "payload"),
    ],
)
async def test_a_schedule_that_cannot_be_stored_keeps_the_worker_from_starting(
    make_app, options, args, field
):
    app = make_app()

    @app.every(timedelta(hours=1), args=args)
    @app.task(name="shop.work", **options)
    async def work(text: str = "") -> None: ...

    with pytest.raises(InvalidInput, match=field):
        await app.worker()


# Apps that take each other's schedules away


async def test_what_a_declaration_orphans_is_said_loudly(shop, caplog):
    await declare(shop("tick", "tock"))
    declared = await declare(shop("tack"))
    assert declared.orphaned == ("tick", "tock")
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "app shop, tick, tock" in warning
    assert "tick, tock" in warning
    assert "App(name=" in warning


async def test_an_app_that_declares_the_same_again_says_nothing(shop, caplog):
    await declare(shop("tick"))
    assert (await declare(shop("tick", "tock"))).orphaned == ()
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


async def test_two_apps_of_one_name_with_schedules_do_not_work_in_one_process(shop):
    async with working(shop("tick")):
        with pytest.raises(InvalidInput) as refused:
            await shop("tock").worker()
        assert refused.value.field == "name"
        await shop("tock", app="other").worker()


async def test_an_app_works_under_a_name_that_another_has_given_up(shop):
    first = shop("tick")
    async with working(first):
        pass
    await first.close()
    await shop("tock").worker()
