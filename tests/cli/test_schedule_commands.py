"""`schedule`: what an operator sees of schedules, and does to them."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from support.factories import NAMESPACE

NOW = datetime.fromisoformat("2026-05-04T08:30:00+00:00")


@pytest.fixture
async def shop(make_app, clock):
    """Two schedules, declared by the worker of an app."""
    await clock.freeze(NOW)
    app = make_app(name="shop", version="1.4", namespace=NAMESPACE)

    @app.cron("0 9 * * 1-5", tz="Europe/Berlin", misfire="skip", name="report")
    async def report() -> None: ...

    @app.every(timedelta(hours=6), name="pulse")
    async def pulse() -> None: ...

    await app.fire_schedules()
    return app


async def test_schedules_are_listed_with_their_rules_and_times(ff, shop):
    found = await ff("schedule", "ls")
    assert found.code == 0
    lines = {line["name"]: line for line in found.lines}
    assert lines["report"]["cron"] == "0 9 * * 1-5"
    assert lines["report"]["next_at"] == "2026-05-05T07:00:00+00:00"
    assert lines["pulse"]["every"] == 21600
    assert {line["state"] for line in lines.values()} == {"active"}
    table = (await ff("schedule", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == [
        "NAME", "STATE", "RULE", "ZONE", "MISFIRE", "NEXT", "LAST", "FIRED", "APP", "REASON",
    ]  # fmt: skip
    assert table[1].split() == [
        "pulse", "active", "every", "6h", "-", "once", "in", "6h", "-", "0", "shop", "1.4",
    ]  # fmt: skip
    assert "Europe/Berlin" in table[2]
    assert (await ff("schedule", "ls", "--app", "bank")).out == ""


async def test_no_schedules_are_no_mistake(ff, db):
    found = await ff("schedule", "ls", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no schedules yet" in found.err


async def test_a_schedule_is_paused_and_resumed(ff, shop, clock):
    line = (await ff("schedule", "pause", "report", "-r", "inventory", "--actor", "ann")).line
    assert (line["state"], line["reason"], line["changed_by"]) == ("paused", "inventory", "ann")
    assert "next_at" not in line
    assert "inventory" in (await ff("schedule", "ls", "-o", "table")).out
    line = (await ff("schedule", "resume", "report")).line
    assert (line["state"], line["next_at"]) == ("active", "2026-05-05T07:00:00+00:00")


async def test_a_schedule_is_run_now(ff, shop):
    line = (await ff("schedule", "run", "report", "--actor", "ann")).line
    shown = (await ff("show", line["execution_id"])).line
    assert shown["creator"] == "ann"
    assert shown["tags"]["schedule.name"] == "report"
    out = (await ff("schedule", "run", "report", "-o", "table")).out
    assert UUID(out.strip())


async def test_the_next_times_are_printed_in_their_zone(ff, shop):
    found = await ff("schedule", "next", "report", "--count", "2")
    assert found.lines == [
        {"at": f"2026-05-0{day}T07:00:00+00:00", "local": f"2026-05-0{day}T09:00:00+02:00"}
        for day in (5, 6)
    ]
    await ff("schedule", "pause", "report")
    found = await ff("schedule", "next", "report", "-c", "1", "-o", "table")
    assert found.out.startswith("Tue 2026-05-05 09:00:00 CEST")
    assert "the schedule is paused" in found.err
    assert (await ff("schedule", "next", "report", "-c", "0")).code == 2


async def test_a_schedule_is_shown_whole(ff, shop):
    found = (await ff("schedule", "show", "report")).line
    assert (found["app"], found["version"], found["misfire"]) == ("shop", "1.4", "skip")
    text = (await ff("schedule", "show", "pulse", "-o", "table")).out
    assert "every 6h" in text
    assert "counted from  2026-05-04 08:30:00 UTC" in text


async def test_an_orphan_is_shown_and_can_be_forgotten(ff, shop):
    assert (await ff("schedule", "forget", "report")).code == 2
    shop.schedules.pop("report")
    await shop.fire_schedules()
    table = (await ff("schedule", "ls", "-o", "table")).out
    assert "orphaned" in table
    ran = await ff("schedule", "run", "report")
    assert ran.code == 4
    assert "no longer declares" in ran.err
    assert (await ff("schedule", "forget", "report")).code == 0
    assert "report" not in (await ff("schedule", "ls", "-o", "table")).out


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "next", "forget"])
async def test_a_schedule_that_is_not_there_exits_with_3(ff, shop, verb):
    found = await ff("schedule", verb, "reprot")
    assert found.code == 3
    assert "did you mean report?" in found.err
