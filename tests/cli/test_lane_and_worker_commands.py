"""`lane` and `worker`: what an operator sees of both, and does to them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from flowfabric.client import FlowFabric
from support.factories import NAMESPACE


@pytest.fixture
async def workers(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client.workers


async def test_lanes_are_listed_with_what_waits(ff, make):
    await make.execution("waiting", lane="mail")
    await make.execution("completed", lane="print")
    found = await ff("lane", "ls")
    assert found.code == 0
    assert {line["lane"]: (line["state"], line["waiting"]) for line in found.lines} == {
        "mail": ("active", 1),
        "print": ("active", 0),
    }
    table = (await ff("lane", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == [
        "LANE", "STATE", "WAITING", "RESUMES", "KEEPS", "CHANGED", "REASON",
    ]  # fmt: skip
    assert table[1].split() == ["mail", "active", "1", "-", "default", "-"]


async def test_no_lanes_are_no_mistake(ff, db):
    found = await ff("lane", "ls", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no lanes yet" in found.err


@pytest.mark.parametrize(
    ("verb", "state"),
    [("pause", "paused"), ("drain", "draining"), ("disable", "disabled"), ("resume", "active")],
)
async def test_a_lane_changes_its_state(ff, make, db, verb, state):
    await make.execution("waiting", lane="mail")
    await ff("lane", "pause", "mail")
    line = (await ff("lane", verb, "mail", "--reason", "full", "--actor", "ann")).line
    assert (line["lane"], line["state"], line["waiting"]) == ("mail", state, 1)
    assert (line["reason"], line["changed_by"]) == ("full", "ann")
    assert await db.fetchval("select state::text from ff.lane where lane = 'mail'") == state
    table = (await ff("lane", "ls", "-o", "table")).out
    assert "by ann" in table
    assert "full" in table


async def test_a_pause_ends_by_itself(ff, make, clock):
    await make.execution("waiting", lane="mail")
    now = await clock.now()
    line = (await ff("lane", "pause", "mail", "--until", "2h")).line
    left = datetime.fromisoformat(line["resumes_at"]) - now
    assert timedelta(hours=2) <= left < timedelta(hours=2, minutes=5)
    table = (await ff("lane", "ls", "-o", "table")).out
    assert "in 1h59m" in table or "in 2h" in table
    at = (now + timedelta(days=1)).isoformat()
    line = (await ff("lane", "pause", "mail", "--until", at)).line
    assert datetime.fromisoformat(line["resumes_at"]) == datetime.fromisoformat(at)
    past = await ff("lane", "pause", "mail", "--until", "2020-01-01")
    assert past.code == 2
    assert "future" in past.err


async def test_a_lane_keeps_things_as_long_as_told(ff, make):
    await make.execution("waiting", lane="mail")
    assert (await ff("lane", "retention", "mail", "7d")).line["retention"] == 604800
    assert " 7d " in (await ff("lane", "ls", "-o", "table")).out
    assert "retention" not in (await ff("lane", "retention", "mail", "default")).line


@pytest.mark.parametrize("verb", ["pause", "resume", "drain", "disable", "retention"])
async def test_a_lane_that_is_not_there_ends_with_three(ff, db, verb):
    rest = ("7d",) if verb == "retention" else ()
    found = await ff("lane", verb, "nope", *rest)
    assert (found.code, found.out) == (3, "")
    assert "There is no such lane" in found.err
    assert (await ff("lane", verb, "caf\u00e9", *rest)).code == 2


async def test_workers_are_listed(ff, workers, db):
    await workers.register(
        worker_id="pool",
        worker_instance_id="pool-1",
        lanes=["mail", "print"],
        tasks=["a", "b", "c"],
        capabilities=["gpu"],
    )
    await workers.register(worker_id="pool", worker_instance_id="pool-2")
    found = await ff("worker", "ls")
    assert [line["worker_instance_id"] for line in found.lines] == ["pool-1", "pool-2"]
    assert found.lines[0]["lanes"] == ["mail", "print"]
    assert found.lines[0]["liveness_ttl"] == 60
    rows = [row.split() for row in (await ff("worker", "ls", "-o", "table")).out.splitlines()]
    assert rows[0] == [
        *("INSTANCE", "WORKER", "LANES", "TASKS", "CAPABILITIES"),
        *("HOST", "BUSY", "LAG", "UP", "HEARD"),
    ]
    assert rows[1][:5] == ["pool-1", "pool", "mail,print", "3", "gpu"]
    assert rows[2][:5] == ["pool-2", "pool", "any", "any", "-"]


@pytest.mark.parametrize(("seconds", "is_silent"), [(9, False), (20, True), (45, True)])
async def test_a_worker_is_silent_after_two_missed_heartbeats(
    ff, workers, clock, seconds, is_silent
):
    await workers.register(worker_id="pool", worker_instance_id="pool-1")
    await clock.advance(seconds=seconds)
    assert (await ff("worker", "ls")).line["is_silent"] is is_silent
    for command in (["worker", "ls"], ["top"]):
        told = (await ff(*command, "-o", "table")).out
        assert "s ago" in told
        assert told.rstrip().endswith(", silent") is is_silent


async def test_dead_workers_are_listed_when_asked(ff, workers, clock):
    await workers.register(worker_id="pool", worker_instance_id="pool-1")
    await clock.advance(minutes=5)
    found = await ff("worker", "ls", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no worker is alive" in found.err
    assert "5m ago, silent" in (await ff("worker", "ls", "--dead", "-o", "table")).out
    assert (await ff("worker", "ls", "--dead")).line["is_alive"] is False


async def test_workers_of_other_namespaces_are_listed_when_asked(ff, workers, db):
    await workers.register(worker_id="pool", worker_instance_id="pool-1")
    async with FlowFabric(db.url, namespace=None) as everyone:
        await everyone.workers.register(worker_id="all", worker_instance_id="all-1")
    assert (await ff("worker", "ls")).line["worker_instance_id"] == "pool-1"
    table = (await ff("worker", "ls", "-A", "-o", "table")).out
    assert table.splitlines()[1].split()[:2] == ["(all)", "all-1"]
    assert "pool-1" in table
    assert (await ff("worker", "mark-dead", "all-1", "--reason", "x")).code == 3
    assert (await ff("worker", "mark-dead", "all-1", "--reason", "x", "-A")).code == 0
    assert [line["worker_instance_id"] for line in (await ff("worker", "ls", "-A")).lines] == [
        "pool-1"
    ]


async def test_a_worker_is_asked_to_drain_once(ff, workers):
    await workers.register(worker_id="pool", worker_instance_id="pool-1", slots=5)
    for outcome, words in (
        ("asked", "pool-1  asked to drain"),
        ("already_asked", "pool-1  was asked to drain before"),
    ):
        found = await ff("worker", "drain", "pool-1", "--reason", "deploy")
        assert (found.code, found.line["outcome"]) == (0, outcome)
        table = await ff("worker", "drain", "pool-1", "--reason", "deploy", "-A", "-o", "table")
        assert table.out.strip() == words if outcome == "already_asked" else table.code == 0
    assert "0/5, draining" in (await ff("worker", "ls", "-o", "table")).out
    unknown = await ff("worker", "drain", "pool-2", "--reason", "deploy")
    assert (unknown.code, unknown.out) == (3, "")
    assert "is not registered" in unknown.err


async def test_a_worker_is_marked_dead_once(ff, workers):
    await workers.register(worker_id="pool", worker_instance_id="pool-1")
    found = await ff("worker", "mark-dead", "pool-1", "--reason", "host is gone")
    assert (found.code, found.line["outcome"]) == (0, "marked_dead")
    assert (await ff("worker", "ls")).out == ""
    again = await ff("worker", "mark-dead", "pool-1", "--reason", "host is gone")
    assert (again.code, again.out) == (3, "")
    assert "is not registered" in again.err


async def test_what_a_dead_worker_holds_is_let_go_when_asked(ff, workers, make, engine):
    await workers.register(worker_id="pool", worker_instance_id="pool-1")
    execution = await make.execution("leased")
    await ff("worker", "mark-dead", "pool-1", "--reason", "gone", "--expire-leases")
    assert (await engine.kinds(execution.id))[-1] == "lease_expired"


async def test_worker_still_runs_an_app(ff):
    for arguments in (("shop:app",), ("-c", "2", "shop:app"), ("run", "shop:app")):
        found = await ff("worker", *arguments)
        assert found.code == 2
        assert "there is no module 'shop'" in found.err
    assert "MODULE:APP" in (await ff("worker", "run", "--help")).out
    assert "mark-dead" in (await ff("worker", "--help")).out
