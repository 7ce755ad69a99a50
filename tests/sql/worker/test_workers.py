"""The registry of workers: who is there, for how long, and what became of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.database import home
from support.factories import Engine, refused

TTL = timedelta(seconds=60)


class Registry:
    """The functions of the registry, on one connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def register(self, instance: str | None = "pool-1", **changes: Any) -> str:
        given = {
            "namespace": "test",
            "worker_id": "pool",
            "lanes": None,
            "tasks": ["tests.work"],
            "capabilities": [],
            "ttl": TTL,
        } | changes
        return await self.connection.fetchval(
            "select outcome from ff.register_worker($1, $2, $3, $4, $5, $6, $7)",
            given["namespace"],
            given["worker_id"],
            instance,
            given["lanes"],
            given["tasks"],
            given["capabilities"],
            given["ttl"],
        )

    async def beat(self, *instances: str | None, namespaces: Any = ...) -> list[str]:
        rows = await self.connection.fetch(
            "select worker_instance_id from ff.heartbeat_workers($1, $2) order by 1",
            ["test"] * len(instances) if namespaces is ... else namespaces,
            list(instances),
        )
        return [row[0] for row in rows]

    async def drain(self, instance: str = "pool-1", reason: str | None = "deploy") -> str:
        return await self.connection.fetchval(
            "select outcome from ff.drain_worker('test', $1, $2, 'ada')", instance, reason
        )

    async def mark_dead(
        self, instance: str | None = "pool-1", reason: str | None = "gone", namespace: str = "test"
    ) -> str:
        return await self.connection.fetchval(
            "select outcome from ff.mark_worker_dead($1, $2, $3)", namespace, instance, reason
        )

    async def list(self, **arguments: Any) -> list[Any]:
        given = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(arguments, 1))
        return await self.connection.fetch(
            f"select w.* from ff.list_workers({given}) w", *arguments.values()
        )

    async def names(self, **arguments: Any) -> list[str]:
        return [row["worker_instance_id"] for row in await self.list(**arguments)]

    async def sweep(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        row = await self.connection.fetchrow(
            "select handled, due_in from ff.sweep_workers($1)", limit
        )
        return row["handled"], row["due_in"]

    async def history(self) -> list[tuple[str, str]]:
        rows = await self.connection.fetch(
            "select worker_instance_id, kind::text from ff.worker_event order by worker_event_id"
        )
        return [tuple(row) for row in rows]


@pytest.fixture
def registry(db) -> Registry:
    return Registry(db.conn)


async def test_a_worker_registers_once_and_is_refreshed_after_that(clock, registry):
    await clock.freeze()
    assert await registry.register(lanes=["b", "a", "b"], capabilities=["gpu", "arm"]) == (
        "registered"
    )
    (first,) = await registry.list()
    await clock.advance(seconds=1)
    assert await registry.register(tasks=None, ttl=2 * TTL) == "refreshed"
    (second,) = await registry.list()

    assert (first["lanes"], first["capabilities"]) == (["a", "b"], ["arm", "gpu"])
    assert (second["lanes"], second["tasks"], second["capabilities"]) == (None, None, [])
    assert second["registered_at"] == first["registered_at"]
    assert second["expires_at"] == first["heartbeat_at"] + timedelta(seconds=1) + 2 * TTL
    assert await registry.history() == [("pool-1", "registered")]


async def test_a_worker_is_asked_once_to_drain_and_told_with_every_heartbeat(clock, registry):
    await registry.register("pool-1")
    await registry.register("pool-2")
    assert [await registry.drain(), await registry.drain()] == ["asked", "already_asked"]
    asked = "select worker_instance_id, asked from ff.heartbeat_workers($1, $2) order by 1"
    names = ["gone", "pool-1", "pool-2"]
    for _ in range(2):
        told = await registry.connection.fetch(asked, ["test"] * 3, names)
        assert [tuple(row) for row in told] == [("gone", "register"), ("pool-1", "drain")]
    # A worker that registers again, for instance after an outage, is still asked.
    assert await registry.register("pool-1") == "refreshed"
    assert await registry.drain() == "already_asked"
    assert (await registry.history())[2:] == [("pool-1", "drain_asked")]
    # The name of a dead worker is free: the next worker of this name is not asked.
    await clock.advance(TTL)
    assert await registry.drain("pool-2") == "not_registered"
    assert await registry.register("pool-1") == "registered"
    assert await registry.drain("gone") == "not_registered"
    assert [row["drain_asked_at"] for row in await registry.list()] == [None]


async def test_a_heartbeat_stores_what_runs_and_how_long_the_loop_took(registry):
    await registry.connection.execute(
        "select ff.register_worker('test', 'pool', 'pool-1', null, null, '{}', '1 minute',"
        " p_host => 'box', p_slots => 20)"
    )
    beat = "select ff.heartbeat_workers('{test}', '{pool-1}', $1, $2)"
    lag = timedelta(milliseconds=7)
    for running, lags in (([3], [lag]), (None, None)):
        await registry.connection.execute(beat, running, lags)
        (found,) = await registry.list()
        assert (found["host"], found["slots"], found["running"]) == ("box", 20, 3)
        assert found["loop_lag"] == (lag if lags else None)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("'{1,2}', null", "running"),
        ("'{-1}', null", "running"),
        ("null, '{1 s,1 s}'", "loop_lags"),
        ("null, '{-1 s}'", "loop_lags"),
    ],
)
async def test_a_heartbeat_with_a_wrong_figure_is_refused(registry, arguments, field):
    with refused("WF001", field=field):
        await registry.connection.execute(
            f"select ff.heartbeat_workers('{{test}}', '{{pool-1}}', {arguments})"
        )


async def test_a_drain_without_a_reason_is_refused(registry):
    await registry.register()
    with refused("WF001", field="reason"):
        await registry.drain(reason=None)


async def test_a_second_registration_in_the_same_moment_is_a_refresh(clock, registry):
    await clock.freeze()
    assert await registry.register() == "registered"
    assert await registry.register() == "refreshed"


async def test_a_worker_that_expired_registers_anew_though_nobody_swept_it(clock, registry):
    await registry.register()
    await clock.advance(TTL)
    assert await registry.register() == "registered"
    assert await registry.history() == [
        ("pool-1", "registered"),
        ("pool-1", "ttl_swept"),
        ("pool-1", "registered"),
    ]


async def test_dead_workers_are_not_listed_unless_asked_for(clock, registry):
    await registry.register()
    await clock.advance(TTL)
    assert await registry.list() == []
    (dead,) = await registry.list(with_dead=True)
    assert dead["is_alive"] is False


async def test_a_name_is_refused_while_its_owner_lives_and_free_when_it_is_dead(clock, registry):
    await registry.register(worker_id="first")
    with refused(
        "WF001",
        field="worker_instance_id",
        problem="instance_id reassigned: the live worker first has it",
    ):
        await registry.register(worker_id="second")
    assert [row["worker_id"] for row in await registry.list()] == ["first"]

    await clock.advance(TTL)
    assert await registry.register(worker_id="second") == "registered"
    assert [row["worker_id"] for row in await registry.list()] == ["second"]


async def test_of_two_first_registrations_at_once_one_wins_and_the_other_is_told(db):
    registries = [Registry(await db.connect()) for _ in range(2)]
    for round_ in range(20):
        answers = await asyncio.gather(
            *(
                one.register(f"pool-{round_}", worker_id=f"owner-{n}")
                for n, one in enumerate(registries)
            ),
            return_exceptions=True,
        )
        assert sorted(isinstance(answer, Exception) for answer in answers) == [False, True]
        (error,) = [answer for answer in answers if isinstance(answer, Exception)]
        assert isinstance(error, asyncpg.PostgresError)
        assert error.sqlstate == "WF001"
        winner = [not isinstance(answer, Exception) for answer in answers].index(True)
        owner = await db.fetchval(
            "select worker_id from ff.worker where worker_instance_id = $1", f"pool-{round_}"
        )
        assert owner == f"owner-{winner}"


async def test_whoever_registers_second_waits_for_the_first_and_then_sees_it(db):
    first, second = Registry(await db.connect()), Registry(await db.connect())
    transaction = first.connection.transaction()
    await transaction.start()
    assert await first.register(worker_id="first") == "registered"
    waiting = asyncio.ensure_future(second.register(worker_id="second"))
    await db.until_waiting(waiting)
    await transaction.commit()
    with refused("WF001", field="worker_instance_id"):
        await waiting


async def test_a_beat_extends_the_life_and_writes_no_event(clock, registry):
    await clock.freeze()
    for instance in ("pool-1", "pool-2"):
        await registry.register(instance)
    for _ in range(5):
        await clock.advance(TTL / 2)
        assert await registry.beat("pool-1", "pool-2") == []
    assert await registry.names() == ["pool-1", "pool-2"]
    (one, _) = await registry.list()
    assert one["expires_at"] == await clock.now() + TTL
    assert await registry.history() == [("pool-1", "registered"), ("pool-2", "registered")]


async def test_a_beat_tells_who_has_to_register_again(clock, registry):
    await registry.register("silent")
    await clock.advance(TTL)
    await registry.register("fresh")
    assert await registry.beat("fresh", "silent", "unknown") == ["silent", "unknown"]
    # a beat does not wake the dead
    assert await registry.names() == ["fresh"]


async def test_a_beat_never_waits_for_a_worker_that_is_busy(db, registry):
    await registry.register("pool-1")
    await registry.register("pool-2")
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.worker where worker_instance_id = 'pool-1' for update")
        assert await asyncio.wait_for(registry.beat("pool-1", "pool-2"), 60) == []


async def test_the_same_instance_in_two_namespaces_is_two_workers(registry):
    assert await registry.register(namespace="a") == "registered"
    assert await registry.register(namespace="b", worker_id="other") == "registered"
    assert await registry.register(namespace="") == "registered"
    assert await registry.mark_dead(namespace="a") == "marked"
    assert [row["namespace"] for row in await registry.list()] == ["", "b"]
    assert await registry.beat("pool-1", "pool-1", namespaces=["a", "b"]) == ["pool-1"]


async def test_a_worker_marked_dead_is_gone_and_the_reason_is_kept(db, registry):
    await registry.register()
    assert await registry.mark_dead(reason="out of memory") == "marked"
    assert await registry.mark_dead(reason="out of memory") == "not_registered"
    assert await registry.list(with_dead=True) == []
    row = await db.fetchrow("select * from ff.worker_event where kind = 'marked_dead'")
    assert (row["worker_id"], row["reason"]) == ("pool", "out of memory")
    assert await registry.beat("pool-1") == ["pool-1"]


@pytest.mark.parametrize("reason", [None, "x" * 257, "two\nlines", "\x7f"])
async def test_a_reason_that_cannot_be_stored_is_refused_and_nothing_happens(registry, reason):
    await registry.register()
    with refused("WF001", field="reason"):
        await registry.mark_dead(reason=reason)
    assert await registry.names() == ["pool-1"]


async def test_marking_dead_may_name_a_reason_of_exactly_256_bytes(registry):
    await registry.register()
    assert await registry.mark_dead(reason="x" * 256) == "marked"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("namespace", {"namespace": None}),
        ("namespace", {"namespace": "a b"}),
        ("namespace", {"namespace": "x" * 257}),
        ("worker_id", {"worker_id": None}),
        ("worker_id", {"worker_id": ""}),
        ("worker_instance_id", {"instance": None}),
        ("worker_instance_id", {"instance": "a\tb"}),
        ("lanes", {"lanes": ["ok", ""]}),
        ("lanes", {"lanes": [None]}),
        ("lanes", {"lanes": ["x" * 65]}),
        ("tasks", {"tasks": ["a b"]}),
        ("tasks", {"tasks": [None]}),
        ("capabilities", {"capabilities": None}),
        ("capabilities", {"capabilities": ["a,b"]}),
        ("liveness_ttl", {"ttl": None}),
        ("liveness_ttl", {"ttl": timedelta(0)}),
        ("liveness_ttl", {"ttl": timedelta(days=8)}),
    ],
)
async def test_what_cannot_be_registered_is_refused_by_its_field(registry, field, changes):
    with refused("WF001", field=field):
        await registry.register(**changes)
    assert await registry.list(with_dead=True) == []


@pytest.mark.parametrize(
    ("field", "instances", "namespaces"),
    [
        ("worker_instance_ids", [], []),
        ("worker_instance_ids", [None], ["test"]),
        ("namespaces", ["a"], None),
        ("namespaces", ["a"], [None]),
        ("namespaces", ["a"], ["x", "y"]),
    ],
)
async def test_a_beat_that_makes_no_sense_is_refused(registry, field, instances, namespaces):
    with refused("WF001", field=field):
        await registry.beat(*instances, namespaces=namespaces)


async def test_listing_goes_over_all_namespaces_in_pages(registry):
    for namespace in ("b", "", "a"):
        for n in (2, 1):
            await registry.register(f"pool-{n}", namespace=namespace)
    found: list[tuple[str, str]] = []
    after: tuple[str | None, str | None] = (None, None)
    while True:
        page = await registry.list(after_namespace=after[0], after_instance_id=after[1], limit=4)
        found += [(row["namespace"], row["worker_instance_id"]) for row in page]
        if len(page) < 4:
            break
        after = found[-1]
    assert found == [(space, f"pool-{n}") for space in ("", "a", "b") for n in (1, 2)]
    assert await registry.names(namespace="a") == ["pool-1", "pool-2"]


@pytest.mark.parametrize("limit", [None, 0, 10_001])
async def test_the_size_of_a_page_is_capped(registry, limit):
    with refused("WF001", field="limit"):
        await registry.list(limit=limit)
    with refused("WF001", field="limit"):
        await registry.sweep(limit)


async def test_half_a_position_is_refused(registry):
    with refused("WF001", field="after"):
        await registry.list(after_namespace="a")


async def test_the_sweep_removes_the_silent_and_says_when_to_come_again(clock, registry):
    await clock.freeze()
    await registry.register("silent")
    await clock.advance(TTL / 2)
    await registry.register("alive")
    assert await registry.sweep() == (0, TTL / 2)
    await clock.advance(TTL / 2)
    assert await registry.sweep() == (1, TTL / 2)
    assert await registry.sweep() == (0, TTL / 2)
    assert await registry.names(with_dead=True) == ["alive"]
    assert (await registry.history())[-1] == ("silent", "ttl_swept")


async def test_the_sweep_takes_a_batch_and_passes_over_what_is_locked(db, clock, registry):
    for n in range(5):
        await registry.register(f"pool-{n}")
    await clock.advance(TTL)
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.worker where worker_instance_id = 'pool-0' for update")
        assert (await registry.sweep(3))[0] == 3
        assert (await registry.sweep(3))[0] == 1
    assert await registry.names(with_dead=True) == ["pool-0"]


async def test_many_sweepers_at_once_write_one_event_for_each_worker(db, clock, registry):
    for n in range(40):
        await registry.register(f"pool-{n:02}")
    await clock.advance(TTL)
    sweepers = [Registry(await db.connect()) for _ in range(4)]

    async def sweep(one: Registry) -> int:
        swept = 0
        while found := (await one.sweep(3))[0]:
            swept += found
        return swept

    assert sum(await asyncio.gather(*(sweep(one) for one in sweepers))) == 40
    history = await registry.history()
    assert [kind for _, kind in history].count("ttl_swept") == 40
    assert len({name for name, kind in history if kind == "ttl_swept"}) == 40


async def test_a_beat_and_a_sweep_at_once_leave_the_worker_alive_or_to_be_told(db, clock):
    beating, sweeping = Registry(await db.connect()), Registry(await db.connect())
    for round_ in range(6):
        name = f"pool-{round_}"
        await beating.register(name, ttl=timedelta(seconds=1))
        await clock.advance(milliseconds=999)
        await asyncio.gather(beating.beat(name), sweeping.sweep())
        told = await beating.beat(name)
        assert (name in await sweeping.names()) == (told == [])


async def test_what_became_of_workers_is_kept_for_thirty_days(clock, registry):
    await registry.register("old")
    await registry.mark_dead("old")
    await clock.advance(days=29)
    await registry.register("young")
    await registry.sweep()
    assert len(await registry.history()) == 3
    await clock.advance(days=1)
    assert (await registry.sweep(1))[0] == 1
    await registry.sweep()
    assert await registry.history() == [("young", "registered"), ("young", "ttl_swept")]


async def test_the_round_of_three_workers(clock, registry):
    """Two beat, one of them is marked dead, the third falls silent."""
    for n in (1, 2, 3):
        await registry.register(f"pool-{n}")
    await clock.advance(TTL / 2)
    assert await registry.beat("pool-1", "pool-2") == []
    assert await registry.mark_dead("pool-2", "host lost") == "marked"
    await clock.advance(TTL / 2)
    swept, dead = await registry.sweep(), await registry.mark_dead("pool-3")
    assert (swept[0], dead) == (1, "not_registered")
    assert await registry.names(with_dead=True) == ["pool-1"]
    assert (await registry.history())[3:] == [("pool-2", "marked_dead"), ("pool-3", "ttl_swept")]


async def expire_leases_of(engine: Engine, instance: str | None, limit: int = 500) -> int:
    return await engine.connection.fetchval(
        "select handled from ff.expire_worker_leases($1, $2, $3, $4)",
        engine.partition_key,
        engine.namespace,
        instance,
        limit,
    )


async def test_the_leases_of_a_dead_worker_can_be_ended_at_once(clock, engine, make):
    await clock.freeze()
    mine = await make.execution("leased")
    await engine.register(lane="other")
    theirs = await engine.submit(route=await engine.register(lane="other"))
    other = await engine.take(theirs.id, lanes=["other"], worker="pool", instance="pool-2")

    assert await expire_leases_of(engine, "pool-1") == 1
    row = await engine.row(mine.id)
    assert (row["ownership"], row["lease_expires_at"]) == (
        "lease_expired_reclaimable",
        await clock.now(),
    )
    assert (await engine.row(theirs.id))["ownership"] == "leased"
    assert (await engine.renew(mine.last_lease)).word == "lease_expired"
    assert (await engine.complete(mine.last_lease)).word == "lease_expired"
    assert (await engine.renew(other)).word == "renewed"
    assert await expire_leases_of(engine, "pool-1") == 0
    assert (await engine.take(mine.id)).claim_kind == "reclaimed"


async def test_the_leases_of_another_tenant_are_left_alone(engine, make):
    await make.execution("leased")
    assert await expire_leases_of(engine.within("other"), "pool-1") == 0
    with refused("WF001", field="worker_instance_id"):
        await expire_leases_of(engine, None)


@pytest.mark.parametrize(
    ("changes", "is_capable"),
    [
        ({"capabilities": ["gpu", "more"]}, True),
        ({"capabilities": ["gpu"], "namespace": ""}, True),
        ({"capabilities": ["gpu"], "lanes": ["default"], "tasks": None}, True),
        ({"capabilities": ["cpu"]}, False),
        ({"capabilities": ["gpu"], "namespace": "foreign"}, False),
        ({"capabilities": ["gpu"], "lanes": ["mail"]}, False),
        ({"capabilities": ["gpu"], "tasks": ["other"]}, False),
    ],
)
async def test_a_capable_worker_that_registers_lets_go_what_waited_for_one(
    db, engine, changes, is_capable
):
    waiting = await engine.submit(route=await engine.register(capabilities="gpu"))
    others = [await engine.submit(route=await engine.register(capabilities="gpu")) for _ in "ab"]
    await engine.block(waiting.id, "waiting_for_capable_worker")
    await engine.block(others[0].id, "waiting_for_quota")
    await engine.block(others[1].id, "paused_by_operator")
    await Registry(db.conn).register(**changes)
    row = await engine.row(waiting.id)
    assert row["eligibility"] == ("eligible_now" if is_capable else "blocked_by_route")
    for other in others:
        assert (await engine.row(other.id))["eligibility"].startswith("blocked_by")
    assert await engine.kinds(waiting.id) == ["submitted"]


async def test_what_was_locked_when_the_worker_came_is_let_go_soon(db, engine):
    waiting = await engine.submit()
    await engine.block(waiting.id, "waiting_for_capable_worker")
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.execution for update")
        await Registry(db.conn).register()
    assert (await engine.row(waiting.id))["eligibility"] == "blocked_by_route"
    unblock = f"select handled, due_in from ff.unblock_executions('{home()}')"
    assert tuple(await db.fetchrow(unblock)) == (1, None)
    assert (await engine.row(waiting.id))["eligibility"] == "eligible_now"
    assert tuple(await db.fetchrow(unblock)) == (0, None)
    with refused("WF001", field="limit"):
        await db.execute(f"select ff.unblock_executions('{home()}', 0)")


async def test_nobody_is_let_go_for_a_worker_that_is_dead(db, clock, engine):
    await Registry(db.conn).register()
    await clock.advance(TTL)
    waiting = await engine.submit()
    await engine.block(waiting.id, "waiting_for_capable_worker")
    await db.execute(f"select ff.unblock_executions('{home()}')")
    assert (await engine.row(waiting.id))["eligibility"] == "blocked_by_route"
