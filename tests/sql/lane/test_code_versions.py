"""Code versions: an execution belongs to the version of the code that records its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from support.database import home
from support.factories import NAMESPACE, TASK, Engine, Lease, Step, refused
from support.sabotage import unwitnessed

MINUTE = timedelta(minutes=1)
LEASE = timedelta(hours=1)


@dataclass
class Fleet:
    """Workers of several versions, on one connection."""

    engine: Engine
    connection: Any

    async def register(self, version: str | None, instance: str | None = None, **changes: Any):
        given = {"lanes": None, "tasks": [TASK], "capabilities": [], "reads": [], "grace": MINUTE}
        given |= {"namespace": NAMESPACE, "ttl": MINUTE, "finish_only": False} | changes
        return await self.connection.fetchval(
            "select outcome from ff.register_worker($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            given["namespace"],
            "pool",
            instance or f"v{version}",
            given["lanes"],
            given["tasks"],
            given["capabilities"],
            given["ttl"],
            version,
            given["reads"],
            given["grace"],
            given["finish_only"],
        )

    async def beat(self, *instances: str) -> None:
        await self.connection.fetch(
            "select 1 from ff.heartbeat_workers($1, $2)", [NAMESPACE] * len(instances), instances
        )

    async def leave(self, instance: str) -> None:
        await self.connection.fetch(
            "select 1 from ff.mark_worker_dead($1, $2, 'stopped')", NAMESPACE, instance
        )

    async def unserved(self, *instances: str) -> list[tuple[str, str]]:
        """The routes that the workers are told to take over, as pairs of worker and version."""
        rows = await self.connection.fetch(
            f"select u.worker_instance_id, r.code_version from ff.list_unserved_routes('{home()}', "
            "$1, $2) u join ff.route r using (route_id) order by 1, 2",
            self.engine.namespace,
            list(instances),
        )
        return [tuple(row) for row in rows]

    async def routes(self, instance: str) -> list[int]:
        rows = await self.connection.fetch(
            f"select route_id from ff.list_unserved_routes('{home()}', $1, $2)",
            NAMESPACE,
            [instance],
        )
        return [row[0] for row in rows]

    async def version(self, id: UUID) -> str | None:
        """The version that an execution belongs to."""
        return await self.connection.fetchval(
            "select r.code_version from ff.execution e join ff.route r using (route_id) "
            "where e.execution_id = $1",
            id,
        )

    async def claim(self, *versions: str, **arguments: Any) -> list[Lease]:
        """Claim as a worker that serves these versions."""
        arguments = {"tasks": [TASK], "ttl": LEASE} | arguments
        return await self.engine.claim(versions=list(versions) or None, **arguments)

    async def record(self, lease: Lease, version: str | None, **changes: Any) -> str:
        """Record a step as the client does: register the route of the version when asked to."""
        answer = await self.engine.record(lease, code_version=version, **changes)
        if answer.word == "unknown_route":
            await self.register_route(version, **{"lane": lease.lane} | answer.detail)
            answer = await self.engine.record(lease, code_version=version, **changes)
        return answer.word

    async def register_route(self, version: str | None, **facts: Any) -> str:
        return await self.connection.fetchval(
            "select outcome from ff.register_routes(array[$1], array[$2], array[$3], array[$4], "
            "p_code_versions => array[$5])",
            facts.get("namespace", NAMESPACE),
            facts["lane"],
            facts.get("task", TASK),
            ",".join(facts.get("capabilities", [])),
            version,
        )

    async def begun(self, version: str, **arguments: Any) -> Lease:
        """An execution of this version with a step, released."""
        await self.engine.submit(**arguments)
        (lease,) = await self.claim(limit=1)
        assert await self.record(lease, version) == "recorded"
        await self.engine.release(lease)
        return lease


@pytest.fixture
def fleet(engine, db) -> Fleet:
    return Fleet(engine, db.conn)


async def test_the_first_step_moves_an_execution_to_its_version(engine, fleet):
    submitted = await engine.submit()
    (lease,) = await fleet.claim("1")
    assert await fleet.version(submitted.id) is None
    before = await engine.row(submitted.id)
    unknown = await engine.record(lease, code_version="1")
    assert (unknown.word, unknown.detail["code_version"]) == ("unknown_route", "1")
    assert await engine.steps(submitted.id) == []
    assert await fleet.record(lease, "1") == "recorded"

    row = await engine.row(submitted.id)
    assert await fleet.version(submitted.id) == "1"
    assert row["route_id"] >= 2**62 > before["route_id"]
    assert {**row, "route_id": 0} == {**before, "route_id": 0}  # no transition
    assert await engine.kinds(submitted.id) == ["submitted", "claimed"]


async def test_the_first_wait_moves_an_execution_to_its_version(engine, fleet):
    submitted = await engine.submit()
    (lease,) = await fleet.claim("1")
    unknown = await engine.ask(lease, code_version="1")
    assert (unknown.word, unknown.detail["code_version"]) == ("unknown_route", "1")
    assert await engine.steps(submitted.id) == []
    await fleet.register_route("1", **{"lane": lease.lane} | unknown.detail)
    asked = await engine.ask(lease, code_version="1")
    assert asked.word == (await engine.ask(lease)).word != "unknown_route"
    assert await fleet.version(submitted.id) == "1"


async def test_only_workers_that_serve_the_version_claim_it_from_then_on(engine, fleet):
    lease = await fleet.begun("1")
    assert await fleet.claim("2") == []
    assert await fleet.claim() == []
    assert await fleet.claim("1", tasks=["other"]) == []
    assert await fleet.claim("2", tasks=None) == []
    (again,) = await fleet.claim("2", "1")
    assert (again.execution_id, again.task, again.lane) == (lease.execution_id, TASK, "default")
    await engine.release(again)
    assert len(await fleet.claim("1", tasks=None)) == 1


async def test_an_expired_lease_is_reclaimed_by_the_version_only(engine, fleet, clock):
    await engine.submit()
    (lease,) = await fleet.claim("1")
    await fleet.record(lease, "1")
    await clock.advance(2 * LEASE)
    await engine.expire()
    assert await fleet.claim("2") == []
    assert len(await fleet.claim("1")) == 1


async def test_code_without_a_version_records_without_a_move(engine, fleet):
    await engine.submit()
    (lease,) = await fleet.claim()
    assert await fleet.record(lease, None) == "recorded"
    await engine.release(lease)
    (lease,) = await fleet.claim("1")
    assert await fleet.record(lease, "1", name="next", position=1) == "recorded"
    assert await fleet.version(lease.execution_id) == "1"
    await engine.release(lease)
    (lease,) = await fleet.claim("1")
    assert await fleet.record(lease, None, name="last", position=2) == "recorded"
    assert await fleet.version(lease.execution_id) == "1"


async def test_a_version_that_continues_a_journal_keeps_it(engine, fleet):
    """The older version could not read what the newer one has added."""
    lease = await fleet.begun("1")
    (lease,) = await fleet.claim("2", "1")
    assert await fleet.version(lease.execution_id) == "1"
    assert await fleet.record(lease, "2", name="new", position=1) == "recorded"
    await engine.release(lease)
    assert await fleet.claim("1") == []
    assert len(await fleet.claim("2")) == 1


@pytest.mark.parametrize("kind", ["now", "sleep", "failure"])
async def test_every_entry_of_the_journal_counts_as_a_step(engine, fleet, kind):
    await engine.submit()
    (lease,) = await fleet.claim("1")
    delay = MINUTE if kind == "sleep" else None
    assert await fleet.record(lease, "1", kind=kind, delay=delay) == "recorded"
    assert await fleet.version(lease.execution_id) == "1"


async def test_a_step_that_is_not_recorded_moves_nothing(engine, fleet):
    await engine.submit()
    (lease,) = await fleet.claim("1")
    await fleet.register_route("1", lane="default")
    assert await fleet.record(lease, "1", kind="nap") == "invalid"
    assert await fleet.record(replace(lease, epoch=9), "1") != "recorded"
    assert await fleet.version(lease.execution_id) is None


async def test_steps_of_several_versions_and_none_go_in_one_call(engine, fleet):
    ids = [(await engine.submit()).id for _ in range(3)]
    leases = await fleet.claim()
    for version in ("1", "2"):
        await fleet.register_route(version, lane="default")
    versions = ["1", None, "2"]
    answers = await engine.record_many(
        [
            (lease, Step(code_version=one, name=name, position=at))
            for lease, one in zip(leases, versions, strict=True)
            for at, name in enumerate("ab")
        ]
    )
    assert [answer.word for answer in answers] == ["recorded"] * 6
    assert [await fleet.version(id) for id in ids] == versions


async def test_needs_and_lane_stay_with_the_version(engine, fleet):
    route = await engine.register(lane="gpu", capabilities="cuda,big")
    await engine.submit(route=route)
    (lease,) = await fleet.claim("1", capabilities=["big", "cuda"])
    assert await fleet.record(lease, "1") == "recorded"
    await engine.release(lease)
    assert await fleet.claim("1", capabilities=["big"]) == []
    assert await fleet.claim("1", capabilities=["big", "cuda"], lanes=["default"]) == []
    assert len(await fleet.claim("1", capabilities=["big", "cuda"], lanes=["gpu"])) == 1


async def test_a_worker_that_only_finishes_begins_nothing_new(engine, fleet):
    lease = await fleet.begun("1")
    await engine.submit()
    for tasks in ([TASK], None):
        (again,) = await fleet.claim("1", finish_only=True, tasks=tasks)
        assert again.execution_id == lease.execution_id
        await engine.release(again)
    assert len(await fleet.claim("1")) == 2


async def test_a_fresh_replay_belongs_to_no_version(engine, fleet, db):
    lease = await fleet.begun("1")
    (again,) = await fleet.claim("1")
    await engine.complete(again)
    assert await fleet.version(lease.execution_id) == "1"
    await engine.replay(lease.execution_id)
    assert await fleet.claim("2") == []  # a plain replay keeps the journal
    (again,) = await fleet.claim("1")
    await engine.complete(again)
    await engine.replay(lease.execution_id, fresh=True)
    assert await fleet.version(lease.execution_id) is None
    assert len(await fleet.claim("2")) == 1


@pytest.mark.parametrize(("step", "version"), [("load", None), ("second", "1")])
async def test_a_replay_from_the_first_step_belongs_to_no_version(engine, fleet, step, version):
    await engine.submit()
    (lease,) = await fleet.claim("1")
    await fleet.record(lease, "1")
    await fleet.record(lease, "1", name="second", position=1)
    await engine.hold(lease, step="second", reason="the code changed")
    await engine.replay(lease.execution_id, from_step=step)
    assert await fleet.version(lease.execution_id) == version


async def test_a_submit_cannot_name_the_route_of_a_version(engine, fleet, db):
    lease = await fleet.begun("1")
    route = (await engine.row(lease.execution_id))["route_id"]
    assert (await engine.submit(route=route)).word == "unknown_route"


async def test_a_route_of_a_version_is_registered_once(engine, fleet, db):
    for _ in range(2):
        assert await fleet.register_route("1", lane="default") == "registered"
    assert await fleet.register_route("2", lane="default") == "registered"
    assert (
        await db.conn.fetchval("select count(*) from ff.route where code_version is not null") == 2
    )
    for wrong in ("", "a b", "x" * 65, "a\x01"):
        assert await fleet.register_route(wrong, lane="default") == "invalid"


# Takeover


async def test_a_version_without_a_worker_is_taken_over_after_the_grace(engine, fleet, clock):
    await clock.freeze()
    await fleet.register("1")
    await fleet.register("2", grace=3 * MINUTE)
    await fleet.register(None)
    lease = await fleet.begun("1")
    await clock.advance(MINUTE * 2.9)
    await fleet.beat("v2", "vNone")  # too late: they have expired, as v1 has
    await fleet.register("2", grace=3 * MINUTE)
    await fleet.register(None)
    assert await fleet.unserved("v2", "vNone") == [("vNone", "1")]  # its grace is a minute
    assert await fleet.claim(unserved=await fleet.routes("vNone")) != []
    await clock.advance(MINUTE * 0.2)
    assert await fleet.unserved("v2") == [("v2", "1")]
    assert lease.execution_id


@pytest.mark.parametrize("how", ["stopped", "killed", "killed and swept", "restarted"])
async def test_the_grace_counts_from_the_last_sign_of_life(engine, fleet, clock, how):
    await clock.freeze()
    await fleet.register("1", ttl=timedelta(seconds=30))
    await fleet.register("2", ttl=LEASE)
    await fleet.begun("1")
    await clock.advance(MINUTE)
    assert await fleet.unserved("v2") == [("v2", "1")]
    await fleet.register("1", ttl=timedelta(seconds=30))
    assert await fleet.unserved("v2") == []
    if how == "stopped":
        await fleet.leave("v1")
    await clock.advance(seconds=31)
    if how == "killed and swept":
        assert await fleet.connection.fetchval("select handled from ff.sweep_workers()") == 1
    if how == "restarted":
        await fleet.register("1", ttl=timedelta(seconds=30))
    await clock.advance(seconds=28)
    assert await fleet.unserved("v2") == []
    await clock.advance(seconds=1)
    assert await fleet.unserved("v2") == ([] if how == "restarted" else [("v2", "1")])


async def test_a_worker_that_comes_back_ends_the_takeover_at_once(engine, fleet, clock):
    await fleet.register("2", ttl=LEASE)
    await fleet.begun("1")
    await clock.advance(MINUTE)
    routes = await fleet.routes("v2")
    (lease,) = await fleet.claim("2", unserved=routes)
    await engine.release(lease)
    await fleet.register("1")
    assert await fleet.claim("2", unserved=routes) == []
    assert len(await fleet.claim("1")) == 1


async def test_a_taken_over_execution_stays_with_its_new_version(engine, fleet, clock):
    await fleet.register("2", ttl=LEASE)
    await fleet.begun("1")
    await clock.advance(MINUTE)
    (lease,) = await fleet.claim("2", unserved=await fleet.routes("v2"))
    await fleet.record(lease, "2", name="next", position=1)
    await engine.release(lease)
    await fleet.register("1")
    assert await fleet.claim("1") == []
    assert len(await fleet.claim("2")) == 1


@pytest.mark.parametrize(
    ("facts", "takes_over"),
    [
        ({}, False),
        ({"version": "3", "reads": ["1"]}, False),
        ({"lanes": ["other"]}, True),
        ({"tasks": ["other"]}, True),
        ({"lanes": ["default"], "tasks": [TASK]}, False),
        ({"namespace": "elsewhere"}, True),
        ({"namespace": ""}, False),
        ({"version": "3"}, True),
    ],
)
async def test_a_version_is_served_by_workers_that_cover_the_route(
    engine, fleet, clock, facts, takes_over
):
    await fleet.register("2", ttl=LEASE)
    await fleet.begun("1")
    await clock.advance(MINUTE)
    facts = {"version": "1"} | facts
    await fleet.register(facts.pop("version"), "other", ttl=LEASE, **facts)
    assert bool(await fleet.unserved("v2")) == takes_over


async def test_a_worker_is_told_only_of_routes_it_covers(engine, fleet, clock):
    await fleet.begun("1")
    await fleet.register("2", ttl=LEASE)
    await fleet.register("2", "reader", reads=["1"], ttl=LEASE)
    await fleet.register("2", "other-lane", lanes=["other"], ttl=LEASE)
    await fleet.register("2", "other-task", tasks=["other"], ttl=LEASE)
    await fleet.register("1", "same", ttl=timedelta(seconds=1))
    await fleet.leave("reader")
    await clock.advance(MINUTE)
    assert await fleet.unserved("v2", "other-lane", "other-task", "same", "stranger") == [
        ("v2", "1")
    ]


async def test_a_version_whose_executions_have_ended_is_not_taken_over(engine, fleet, clock):
    await fleet.register("2", ttl=LEASE)
    await fleet.begun("1")
    (lease,) = await fleet.claim("1")
    await engine.complete(lease)
    await clock.advance(MINUTE)
    assert await fleet.unserved("v2") == []


async def test_a_claim_takes_over_nothing_but_what_it_names(engine, fleet):
    await fleet.begun("1")
    base = await engine.register()
    assert await fleet.claim("2", unserved=[base, 1, 2**62 + 1]) == []


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"version": "a b"}, "code_version"),
        ({"version": None, "reads": ["1"]}, "reads"),
        ({"version": "2", "reads": [None]}, "reads"),
        ({"version": "2", "reads": ["1"] * 101}, "reads"),
        ({"version": "2", "grace": timedelta(days=8)}, "version_grace"),
        ({"version": "2", "grace": None}, "version_grace"),
    ],
)
async def test_a_worker_with_wrong_versions_is_refused(fleet, facts, field):
    with refused("WF001", field=field):
        await fleet.register(facts.pop("version"), "w", **facts)


# What is in flight


async def test_versions_are_listed_with_what_is_in_flight_and_who_serves_it(engine, fleet, clock):
    await fleet.begun("1")
    await fleet.begun("1")
    await fleet.begun("2")
    await engine.submit()
    await fleet.register("2", reads=["1"], tasks=[TASK, "other"])
    await fleet.register("2", "finisher", tasks=[TASK], finish_only=True)
    await fleet.register("3", tasks=[TASK])
    await fleet.register("4", tasks=[TASK], ttl=timedelta(seconds=1))
    await clock.advance(seconds=2)
    rows = await fleet.connection.fetch(
        "select task, code_version, in_flight, workers, beginners, readers "
        f"from ff.list_versions('{home()}', $1)",
        NAMESPACE,
    )
    assert [tuple(row) for row in rows] == [
        ("other", "2", 0, 1, 1, []),
        (TASK, "1", 2, 0, 0, ["2"]),
        (TASK, "2", 1, 2, 1, []),
        (TASK, "3", 0, 1, 1, []),
    ]
    one = await fleet.connection.fetch(
        f"select code_version from ff.list_versions('{home()}', $1, 'other')", NAMESPACE
    )
    assert [row[0] for row in one] == ["2"]
    assert await fleet.connection.fetch(f"select 1 from ff.list_versions('{home()}', 'no')") == []


async def test_lanes_and_traffic_count_versions_too(engine, fleet):
    await fleet.begun("1")
    depth = await fleet.connection.fetchval(
        "select waiting from ff.list_lanes($1, 'default')", NAMESPACE
    )
    traffic = f"select waiting, completed from ff.read_traffic('{home()}', $1)"
    assert depth == 1
    assert tuple(await fleet.connection.fetchrow(traffic, NAMESPACE)) == (1, 0)
    (lease,) = await fleet.claim("1")
    await engine.complete(lease)
    assert tuple(await fleet.connection.fetchrow(traffic, NAMESPACE)) == (0, 1)


class Relay:
    """An execution that workers with older code pass on."""

    def __init__(self, fleet: Fleet, clock: Any) -> None:
        self.fleet, self.clock = fleet, clock

    async def pass_on(self, instance: str) -> Any:
        """Let a worker claim the execution, and say that its code does not know a patch."""
        await self.fleet.engine.promote()
        (lease,) = await self.fleet.claim(limit=1, instance=instance)
        return await self.fleet.engine.delay(lease, None, newer_step="ff.patch x")

    async def pass_on_for(self, span: timedelta, *instances: str) -> str:
        """Let workers take turns for a time; returns the last answer."""
        answer = await self.pass_on(instances[0])
        end = await self.clock.now() + span
        while answer.word == "delayed" and await self.clock.now() < end:
            await self.clock.advance(seconds=30)
            await self.fleet.beat(*instances)
            for instance in instances:
                answer = await self.pass_on(instance)
                if answer.word != "delayed":
                    break
                await self.clock.advance(seconds=10)
        return str(answer.word)


@pytest.fixture
async def relay(fleet, clock):
    await clock.freeze()
    await fleet.engine.submit()
    return Relay(fleet, clock)


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        ({}, "delayed"),
        ({"namespace": ""}, "delayed"),
        ({"lanes": ["other"]}, "no_newer_code"),
        ({"tasks": ["other"]}, "no_newer_code"),
        ({"namespace": "other"}, "no_newer_code"),
        ({"finish_only": True}, "no_newer_code"),
        ({"ttl": MINUTE}, "no_newer_code"),
        (None, "no_newer_code"),
    ],
    ids=str,
)
async def test_older_code_passes_on_as_long_as_a_worker_lives_that_has_not(
    fleet, relay, clock, facts, answer
):
    await fleet.register(None, "old-1")
    await fleet.register(None, "old-2")
    if facts is not None:
        await fleet.register(None, "new", **{"ttl": timedelta(hours=1)} | facts)
    start = await clock.now()
    assert await relay.pass_on_for(timedelta(minutes=30), "old-1", "old-2") == answer
    if answer == "no_newer_code":
        assert await clock.now() - start >= timedelta(minutes=10)
        (row,) = await fleet.connection.fetch("select lease_id, public_state from ff.execution")
        assert row["lease_id"] is not None, "the holder keeps its lease, to hold the execution"


async def test_passing_on_waits_longer_and_longer(fleet, relay, clock):
    waits = []
    for seconds in (0, 4, 16, 100, 400):
        await clock.advance(seconds=seconds)
        waits.append((await relay.pass_on("old")).delayed_until - await clock.now())
    assert [one.total_seconds() for one in waits] == [1, 1, 5, 10, 10]
    row = await fleet.connection.fetchrow("select * from ff.execution")
    assert (row["attempt_pause_cause"], row["retry_count"], row["crash_count"]) == (
        "older_code",
        0,
        0,
    )


@pytest.mark.own_database
async def test_passing_on_counts_across_generations_of_events(fleet, relay, clock):
    await clock.advance(seconds=1)
    for _ in range(8):
        await relay.pass_on("old")
        await clock.advance(seconds=10)
    await fleet.connection.execute(f"select ff._raise_generation('{home()}')")
    await fleet.connection.execute("alter table ff.event alter column event_id restart with 1")
    for wait in (10, 10):
        answer = await relay.pass_on("old")
        assert answer.delayed_until - await clock.now() == timedelta(seconds=wait)
        await clock.advance(seconds=wait)


async def test_the_ten_minutes_begin_anew_when_fitting_code_had_the_execution(fleet, relay, clock):
    assert (await relay.pass_on("old")).word == "delayed"
    await clock.advance(minutes=9)
    await fleet.engine.promote()
    (lease,) = await fleet.claim(limit=1, instance="new")
    await fleet.engine.delay(lease, MINUTE)
    await clock.advance(minutes=9)
    answer = await relay.pass_on("old")
    assert answer.delayed_until - await clock.now() == timedelta(seconds=1)


FLOOD = """
with route as (
  insert into ff.route (
    route_id, namespace, lane, task, capabilities, code_version, registered_at)
  select 4611686018427387904 + n, $1, 'default', 'flood', '{}', n::text, ff.now()
  from generate_series(0, 10000) n
  returning route_id)
insert into ff.execution (
  partition_key, execution_id, route_id, namespace, rank, created_at, order_at, transitioned_at,
  mutated_at, version, phase, ownership, eligibility, blocking_reason, outcome, attempt_state,
  cause)
select $2, gen_random_uuid(), r.route_id, $1, 9000, ff.now(), ff.now(), ff.now(), ff.now(), 1,
       'runnable', 'unowned', 'eligible_now', 'waiting_for_worker', 'none',
       'pending_first_attempt', 'submit'
from route r
"""


@pytest.mark.parametrize("flooded", ["a", "zz"])
async def test_versions_of_one_namespace_do_not_hide_those_of_another(fleet, clock, flooded):
    async with unwitnessed(fleet.connection):
        await fleet.connection.execute(FLOOD, flooded, home())
    await fleet.begun("1")
    await clock.advance(minutes=2)
    await fleet.register("2")
    assert await fleet.unserved("v2") == [("v2", "1")]
    for read in (
        f"select in_flight from ff.list_versions('{home()}', $1) where code_version = '1'",
        f"select waiting from ff.read_traffic('{home()}', $1)",
    ):
        assert await fleet.connection.fetchval(read, NAMESPACE) == 1, read
    listed = f"select count(*) from ff.list_versions('{home()}', $1)"
    assert await fleet.connection.fetchval(listed, flooded) == 10_000
    assert await fleet.connection.fetchval(listed, None) == 10_001
    async with unwitnessed(fleet.connection):  # else the doctor looks at the flood
        await fleet.connection.execute("delete from ff.execution where namespace = $1", flooded)
