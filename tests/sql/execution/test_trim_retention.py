"""ff.trim_retention: what ended long ago is deleted with all it owns, and nothing else is."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from support.database import Database, home, partitions
from support.factories import STATES, Engine, Item, new_id, refused
from support.streams import append

MONTH = timedelta(days=30)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
TABLES = ("execution", "execution_body", "attempt", "event", "grant", "event_trim")


async def trim(engine: Engine, limit: int | None = 500, **arguments: Any) -> int:
    return (await trim_once(engine, limit, **arguments))[0]


async def trim_once(
    engine: Engine, limit: int | None = 500, **arguments: Any
) -> tuple[int, timedelta | None]:
    given = {"partition_key": engine.partition_key, "limit": limit} | arguments
    names = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(given, 1))
    row = await engine.connection.fetchrow(
        f"select handled, due_in from ff.trim_retention({names})", *given.values()
    )
    assert row is not None
    return row["handled"], row["due_in"]


async def trim_all(engine: Engine, limit: int = 500, **arguments: Any) -> int:
    """Until the walk has been around and nothing is left."""
    total = 0
    while True:
        handled, due_in = await trim_once(engine, limit, **arguments)
        total += handled
        if handled < limit and due_in is None:
            return total


async def trim_events(engine: Engine, limit: int | None = 500) -> tuple[int, timedelta | None]:
    return await engine._tick("ff.trim_events", limit)


async def ids(engine: Engine) -> set[UUID]:
    return {row["execution_id"] for row in await engine.rows()}


async def owned(engine: Engine) -> dict[str, int]:
    return {
        table: await engine.connection.fetchval(f"select count(*) from ff.{table}")
        for table in TABLES
    }


async def set_lane(engine: Engine, lane: str, retention: timedelta) -> None:
    await engine.connection.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => $1, p_retention => $2)",
        lane,
        retention,
    )


async def test_an_execution_goes_thirty_days_after_its_end_with_all_it_owns(clock, engine, make):
    await clock.freeze()
    execution = await make.execution(
        "retried", tags={"team.name": "x"}, payload=b"x" * 1000, creator="me"
    )
    await engine.complete(execution.last_lease)
    assert (await owned(engine)).keys() >= {"execution"}
    assert all(n for table, n in (await owned(engine)).items() if table not in TABLES[4:])

    await clock.advance(MONTH - timedelta(microseconds=1))
    assert await trim(engine) == 0
    await clock.advance(timedelta(microseconds=1))
    assert await trim_once(engine) == (1, None)
    assert await owned(engine) == dict.fromkeys(TABLES, 0)


@pytest.mark.parametrize("state", STATES)
async def test_whatever_has_ended_goes_and_whatever_has_not_stays(clock, engine, make, state):
    """However it ended: completed, failed, cancelled, expired."""
    execution = await make.execution(state)
    is_terminal = (await engine.row(execution.id))["phase"] == "terminal"
    await clock.advance(days=400)
    assert await trim_all(engine) == int(is_terminal)
    assert (execution.id in await ids(engine)) != is_terminal


async def test_what_was_cancelled_before_it_ever_ran_goes_too(clock, engine, make):
    execution = await make.execution("waiting")
    await engine.cancel(execution.id)
    await clock.advance(MONTH)
    assert await trim(engine) == 1


async def tables_of(db: Database, execution_id: UUID) -> set[str]:
    """Return the tables that have a row of an execution."""
    tables = await db.fetch(
        "select c.table_name as name from information_schema.columns c"
        " join information_schema.tables t using (table_schema, table_name)"
        " where c.table_schema = 'ff' and c.column_name = 'execution_id'"
        " and t.table_type = 'BASE TABLE'"
    )
    return {
        row["name"]
        for row in tables
        if await db.fetchval(
            f"select exists (select from ff.{row['name']} where execution_id = $1)", execution_id
        )
    }


async def test_no_row_of_a_trimmed_execution_is_left_in_any_table(db, clock, engine, make):
    execution = await make.execution("retried", payload=b"x" * 1000, key="k", fingerprint=b"f")
    await engine.complete(execution.last_lease)
    await clock.advance(days=60)
    await trim(engine)
    await db.fetch(f"select ff.trim_keys(p_partition_key => '{home()}')")
    assert await tables_of(db, execution.id) == set()


async def test_a_trimmed_execution_leaves_no_stream_no_signal_and_no_wait(db, clock, engine, make):
    """Neither signals that nobody has noticed, nor waitpoints that nobody has answered."""
    execution = await make.execution("leased")
    lease = execution.lease
    await append(engine, lease, b"word")
    await append(engine, lease, b'{"a": 1}', no=1, mode="summary")
    await engine.waitpoint(lease)
    asked = await db.fetchval(
        f"select outcome from ff.create_approval('{home()}', null, $1, $2, $3, $4, $5, $6,"
        " '{ops}', 'Ship?', null, null, 1, 1, 'ask', 0)",
        lease.execution_id,
        lease.lease_id,
        lease.epoch,
        lease.attempt_id,
        uuid4(),
        [uuid4()],
    )
    assert asked == "created"
    await engine.ask(lease)
    assert (await engine.suspend(lease, "approve")).word == "suspended"
    await engine.signal(execution.id, "another")
    await engine.signal(execution.id, "late", join=True)
    await engine.cancel(execution.id)
    assert await tables_of(db, execution.id) >= {
        "stream", "stream_chunk", "stream_summary", "step", "suspension", "waitpoint", "approval",
        "signal", "signal_inbox",
    }  # fmt: skip
    await clock.advance(days=60)
    await trim(engine)
    assert await tables_of(db, execution.id) == set()


async def test_the_policy_goes_before_the_lane_and_the_lane_before_the_default(clock, engine, make):
    own = {"retention_ms": HOUR.total_seconds() * 1000}
    long = {"retention_ms": timedelta(days=90).total_seconds() * 1000}
    of_policy = await make.execution("completed", lane="short", policy=own)
    of_lane = await make.execution("completed", lane="short")
    of_default = await make.execution("completed", lane="plain")
    of_long_policy = await make.execution("completed", lane="short", policy=long)
    await set_lane(engine, "short", DAY)

    async def left() -> set[UUID]:
        await trim_all(engine)
        return await ids(engine)

    assert len(await left()) == 4
    await clock.advance(HOUR)
    assert await left() == {of_lane.id, of_default.id, of_long_policy.id}
    assert of_policy.id not in await ids(engine)
    await clock.advance(DAY)
    assert await left() == {of_default.id, of_long_policy.id}
    await clock.advance(MONTH)
    assert await left() == {of_long_policy.id}
    await clock.advance(days=60)
    assert await left() == set()


async def test_a_lane_may_keep_longer_than_the_default(clock, engine, make):
    kept = await make.execution("completed", lane="archive")
    await make.execution("completed", lane="plain")
    await set_lane(engine, "archive", timedelta(days=365))
    await clock.advance(days=100)
    assert await trim_all(engine) == 1
    assert await ids(engine) == {kept.id}
    await clock.advance(days=300)
    assert await trim_all(engine) == 1


async def test_the_default_can_be_another(clock, engine, make):
    await make.execution("completed")
    await clock.advance(HOUR)
    assert await trim(engine) == 0
    assert await trim(engine, retention=HOUR) == 1


async def test_a_retention_of_nothing_goes_at_once(engine, make):
    await make.execution("completed", policy={"retention_ms": 0})
    assert await trim(engine) == 1


async def test_the_batches_are_as_large_as_asked_for_and_the_oldest_go_first(clock, engine):
    submitted = [await engine.submit() for _ in range(25)]
    for one in submitted:
        await engine.complete(await engine.take(one.id))
    await clock.advance(MONTH)
    sizes = [await trim_once(engine, 10) for _ in range(4)]
    assert [handled for handled, _ in sizes] == [10, 10, 5, 0]
    # a full batch is not the end of the walk, a short one is
    assert [due_in is None for _, due_in in sizes] == [False, False, True, True]


async def test_own_retention_and_the_walk_share_a_batch(clock, engine, make):
    for _ in range(3):
        await make.execution("completed", policy={"retention_ms": 1000})
        await make.execution("completed")
    await clock.advance(MONTH)
    assert [await trim(engine, 4) for _ in range(3)] == [4, 2, 0]


async def test_ids_that_are_no_times_are_found_behind_those_that_are(clock, engine):
    """The walk jumps over ids too young to have ended long ago, and starts again at the end."""
    highest = UUID("fedcba98-7654-4210-8edc-ba9876543210")
    foreign = [uuid4() for _ in range(5)] + [highest]
    old = [new_id() for _ in range(5)]
    for id_ in (*foreign, *old):
        await engine.submit(id=id_)
        await engine.complete(await engine.take(id_))
    shift = await clock.advance(MONTH)
    stamp = int(shift.timestamp() * 1000)
    young = [UUID(int=(stamp << 80) | (7 << 76) | (2 << 62) | n) for n in range(5)]
    for id_ in young:
        await engine.submit(id=id_)
        await engine.complete(await engine.take(id_))
    assert await trim_all(engine, 3) == 11
    assert await ids(engine) == set(young)


async def test_the_walk_is_bounded_and_comes_around(db, clock, engine):
    """Rows that must stay do not keep it from those behind them."""
    await engine.submit_many([Item(id=UUID(int=n + 1)) for n in range(1000)])
    await engine.submit_many([Item(id=UUID(int=n + 1001)) for n in range(1000)])
    await engine.submit_many([Item(id=UUID(int=n + 2001), priority=9) for n in range(10)])
    for lease in await engine.claim(10):
        await engine.complete(lease)
    await clock.advance(MONTH)
    assert await trim_once(engine) == (0, timedelta(seconds=2))
    assert await trim_once(engine) == (10, None)
    assert len(await ids(engine)) == 2000


async def test_young_executions_cost_the_walk_nothing(db, clock, engine):
    await engine.submit_many([Item() for _ in range(300)])
    for lease in await engine.claim(300):
        await engine.complete(lease)
    assert await trim_once(engine) == (0, None)
    await db.execute("select pg_stat_force_next_flush()")
    reads = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'execution_pkey'"
    await db.execute("select pg_stat_clear_snapshot()")
    before = await db.fetchval(reads)
    assert await trim_once(engine) == (0, None)
    await db.execute("select pg_stat_force_next_flush()")
    await db.execute("select pg_stat_clear_snapshot()")
    assert await db.fetchval(reads) - before < 10


async def test_only_one_walks_and_the_others_go_on_without_it(db, clock, engine, make):
    assert await trim(engine) == 0
    found_by_walking = await make.execution("completed")
    await make.execution("completed", policy={"retention_ms": 1})
    await clock.advance(MONTH)
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.trim_position for update")
        assert await asyncio.wait_for(trim_once(engine), 60) == (1, None)
    assert await ids(engine) == {found_by_walking.id}
    assert await trim(engine) == 1


async def test_an_execution_that_is_locked_is_passed_over(db, clock, engine, make):
    busy, free = await make.execution("completed"), await make.execution("completed")
    own = await make.execution("completed", policy={"retention_ms": 1})
    await clock.advance(MONTH)
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = any($1) for no key update",
            [busy.id, own.id],
        )
        assert await asyncio.wait_for(trim(engine), 60) == 1
    assert await ids(engine) == {busy.id, own.id}
    assert await trim_all(engine) == 2
    assert free.id not in await ids(engine)


@pytest.mark.parametrize("policy", [None, {"retention_ms": 1}])
async def test_a_replay_that_holds_the_row_wins(db, clock, engine, make, policy):
    execution = await make.execution("completed", policy=policy)
    await clock.advance(MONTH)
    other = Engine(await db.connect())
    transaction = other.connection.transaction()
    await transaction.start()
    assert (await other.replay(execution.id)).word == "replayed"
    assert await trim(engine) == 0
    await transaction.commit()
    assert await trim_all(engine) == 0
    row = await engine.row(execution.id)
    assert (row["phase"], row["trim_at"]) == ("runnable", None)
    # its retention counts from its new end
    await engine.complete(await engine.take(execution.id))
    if policy is None:
        assert await trim_all(engine) == 0
    await clock.advance(MONTH)
    assert await trim_all(engine) == 1


async def test_a_replay_that_comes_second_finds_nothing(db, clock, engine, make):
    execution = await make.execution("completed")
    await clock.advance(MONTH)
    other = Engine(await db.connect())
    transaction = engine.connection.transaction()
    await transaction.start()
    assert await trim(engine) == 1
    replay = asyncio.ensure_future(other.replay(execution.id))
    await db.until_waiting(replay)
    await transaction.commit()
    with refused("WF301"):
        await replay


async def test_replays_and_trimmers_at_once_end_in_one_of_two_orders(db, clock, engine, make):
    executions = [
        await make.execution("completed", policy={"retention_ms": 1} if n % 2 else None)
        for n in range(24)
    ]
    await clock.advance(MONTH)
    replaying = [Engine(await db.connect()) for _ in range(3)]
    trimming = [Engine(await db.connect()) for _ in range(2)]

    async def replay(one: Engine, mine: list[Any]) -> set[UUID]:
        won = set()
        for execution in mine:
            try:
                if (await one.replay(execution.id)).word == "replayed":
                    won.add(execution.id)
            except asyncpg.PostgresError as error:
                if error.sqlstate != "WF301":
                    raise
        return won

    async def trim_slowly(one: Engine) -> int:
        return sum([await trim(one, 2) for _ in range(12)])

    found = await asyncio.gather(
        *(replay(one, executions[n::3]) for n, one in enumerate(replaying)),
        *(trim_slowly(one) for one in trimming),
    )
    replayed = set().union(*found[:3])
    trimmed = sum(found[3:]) + await trim_all(engine)
    assert await ids(engine) == replayed
    assert trimmed == len(executions) - len(replayed)


async def test_four_at_once_trim_every_execution_once_and_none_fails(db, clock, engine):
    for _ in range(3):
        submitted = await engine.submit_many(
            [Item(policy={"retention_ms": 5} if n % 3 == 0 else None) for n in range(200)]
        )
        assert len(submitted) == 200
        for lease in await engine.claim(200):
            await engine.complete(lease)
    await clock.advance(MONTH)
    trimmers = [Engine(await db.connect()) for _ in range(4)]
    found = await asyncio.gather(*(trim_all(one, 17) for one in trimmers))
    rest = await trim_all(engine)
    assert sum(found) + rest == 600
    assert await owned(engine) == dict.fromkeys(TABLES, 0)


# Children


@pytest.mark.parametrize("policy", [None, {"retention_ms": 1}], ids=["default", "own"])
@pytest.mark.parametrize("with_parent", [True, False])
async def test_a_child_stays_while_its_parent_goes_on(clock, engine, make, policy, with_parent):
    """Else the next run of the parent would submit it again."""
    parent = await make.execution("leased", lane="p")
    kid = (await engine.submit(parent=parent.id, with_parent=with_parent, policy=policy)).id
    alone = (await engine.submit(policy=policy)).id
    for id_ in (kid, alone):
        await engine.complete(await engine.take(id_))
    await engine.delay(parent.lease, timedelta(days=400))
    await clock.advance(days=365)
    assert await trim_all(engine) == 1
    assert await ids(engine) == {parent.id, kid}
    await engine.cancel(parent.id)
    assert await trim_all(engine) == 1
    assert await ids(engine) == {parent.id}


async def test_what_is_kept_does_not_keep_others(clock, engine, make):
    parent = await make.execution("delayed", lane="p", delay=timedelta(days=400))
    own = {"retention_ms": 1}
    for policy in (own, None):
        for _ in range(5):
            kid = await engine.submit(parent=parent.id, policy=policy)
            await engine.complete(await engine.take(kid.id))
        for _ in range(4):
            await make.execution("completed", policy=policy)
    await clock.advance(MONTH)
    assert await trim_all(engine, 2) == 8
    assert len(await ids(engine)) == 11


async def test_the_children_of_a_child_go_when_that_has_ended(clock, engine, make):
    parent = await make.execution("leased", lane="p")
    kid = (await engine.submit(parent=parent.id)).id
    grandkid = (await engine.submit(parent=kid)).id
    for id_ in (kid, grandkid):
        await engine.complete(await engine.take(id_))
    await clock.advance(MONTH)
    assert await trim_all(engine) == 1
    assert await ids(engine) == {parent.id, kid}


async def test_a_child_without_a_parent_any_more_goes(db, clock, engine, make):
    parent = await make.execution("completed")
    kid = (await engine.submit(parent=parent.id)).id
    await engine.complete(await engine.take(kid))
    await db.forget(parent.id)
    await clock.advance(MONTH)
    assert await trim_all(engine) == 1


# Events


async def cursor_now(engine: Engine) -> str:
    """A cursor behind all there is, which waits for no transaction of another test."""
    while True:
        cursor = await engine.connection.fetchval("select ff.open_cursor($1)", engine.partition_key)
        if not cursor.split(":")[7]:
            return cursor
        await asyncio.sleep(0.01)


async def read(engine: Engine, cursor: str) -> list[tuple[UUID, str]]:
    rows = await engine.connection.fetch(
        "select execution_id, kind from ff.read_events($1, null, $2)", engine.partition_key, cursor
    )
    return [(row["execution_id"], row["kind"]) for row in rows if row["kind"]]


async def test_the_events_of_a_short_retention_stay_for_a_day_and_not_for_ever(clock, engine, make):
    await clock.freeze()
    cursor = await cursor_now(engine)
    execution = await make.execution("completed", policy={"retention_ms": 1000})
    await clock.advance(seconds=1)
    assert await trim(engine) == 1
    assert len(await read(engine, cursor)) == 3
    assert await trim_events(engine) == (0, DAY - timedelta(seconds=1))

    await clock.advance(DAY - timedelta(seconds=1, microseconds=1))
    assert (await trim_events(engine))[0] == 0
    assert [kind for _, kind in await read(engine, cursor)] == ["submitted", "claimed", "completed"]
    await clock.advance(timedelta(microseconds=1))
    assert await trim_events(engine) == (1, None)
    assert await engine.events(execution.id) == []
    assert await owned(engine) == dict.fromkeys(TABLES, 0)
    with refused("WF403", reason="trimmed"):
        await read(engine, cursor)


async def test_the_floor_can_be_another(clock, engine, make):
    await make.execution("completed", policy={"retention_ms": 0})
    assert await trim(engine, event_floor=timedelta(0)) == 1
    assert await engine.events() == []


async def test_a_cursor_before_what_was_trimmed_has_expired_and_one_behind_goes_on(
    clock, engine, make
):
    before = await cursor_now(engine)
    await make.execution("completed")
    behind = await cursor_now(engine)
    later = await make.execution("waiting")
    await clock.advance(MONTH)
    assert await trim(engine) == 1
    with refused("WF403", reason="trimmed"):
        await read(engine, before)
    assert await read(engine, behind) == [(later.id, "submitted")]
    assert await read(engine, await cursor_now(engine)) == []


async def test_what_was_trimmed_never_goes_down(clock, engine, make):
    """A younger execution that is trimmed first leaves a mark that an older one keeps."""
    older = await make.execution("completed", policy={"retention_ms": 60_000})
    younger = await make.execution("completed", policy={"retention_ms": 1})
    assert older.id < younger.id
    mark = "select xid::text::bigint from ff.trim_mark"
    await clock.advance(seconds=1)
    assert await trim(engine, event_floor=timedelta(0)) == 1
    first = await engine.connection.fetchval(mark)
    await clock.advance(minutes=1)
    assert await trim(engine, event_floor=timedelta(0)) == 1
    assert await engine.connection.fetchval(mark) == first


async def test_trimmers_at_once_keep_the_highest_mark(db, clock, engine, make):
    for _ in range(20):
        await make.execution("completed", policy={"retention_ms": 1})
        await make.execution("completed")
    await clock.advance(MONTH)
    highest = await db.fetchval("select max(xid)::text::bigint from ff.event")
    trimmers = [Engine(await db.connect()) for _ in range(4)]
    await asyncio.gather(*(trim_all(one, 3) for one in trimmers))
    await trim_all(engine)
    assert await db.fetchval("select xid::text::bigint from ff.trim_mark") == highest


async def test_four_at_once_trim_the_events_once(db, clock, engine, make):
    for _ in range(30):
        await make.execution("completed", policy={"retention_ms": 1})
    await clock.advance(seconds=1)
    await trim_all(engine)
    await clock.advance(DAY)
    trimmers = [Engine(await db.connect()) for _ in range(4)]

    async def until_empty(one: Engine) -> int:
        total = 0
        while handled := (await trim_events(one, 4))[0]:
            total += handled
        return total

    found = await asyncio.gather(*(until_empty(one) for one in trimmers))
    assert sum(found) + await until_empty(engine) == 30
    assert await owned(engine) == dict.fromkeys(TABLES, 0)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("limit", {"limit": None}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 10_001}),
        ("retention", {"retention": None}),
        ("retention", {"retention": timedelta(seconds=-1)}),
        ("retention", {"retention": timedelta(days=40_000)}),
        ("event_floor", {"event_floor": None}),
        ("event_floor", {"event_floor": timedelta(seconds=-1)}),
        ("partition_key", {"partition_key": None}),
        ("partition_key", {"partition_key": partitions()}),
        ("namespace", {"namespace": ""}),
        ("lane", {"lane": ""}),
        ("tags", {"tags": "[]"}),
        ("after", {"after": UUID(int=1)}),
    ],
)
async def test_a_trim_that_makes_no_sense_is_refused(engine, make, field, arguments):
    await make.execution("completed", policy={"retention_ms": 0})
    with refused("WF001", field=field):
        await trim(engine, **arguments)
    assert len(await ids(engine)) == 1
    assert await engine.connection.fetchval("select count(*) from ff.meta where name ~ 'trim'") == 0


async def test_reconcilers_trim_by_what_is_stored_and_have_no_say(clock, engine, make):
    await clock.freeze()
    await make.execution("completed", policy={"retention_ms": HOUR.total_seconds() * 1000})
    await make.execution("completed")
    trim = f"select handled, due_in from ff.trim_executions(p_partition_key => '{home()}')"
    for passed, gone in ((HOUR, 1), (MONTH - HOUR * 2, 0), (HOUR * 2, 1)):
        await clock.advance(passed)
        assert tuple(await engine.connection.fetchrow(trim)) == (gone, None)
    nowhere = f"{partitions()}::smallint"
    for arguments in ("null", nowhere, "0::smallint, 0", "0::smallint, null"):
        with refused("WF001"):
            await engine.connection.execute(f"select ff.trim_executions({arguments})")


@pytest.mark.parametrize("policy", [None, {"retention_ms": 0}], ids=["by the walk", "by its time"])
@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"namespace": "test"}, {"foreign"}),
        ({"namespace": "foreign"}, {"mail", "tagged", "plain"}),
        ({"namespace": "nowhere"}, {"mail", "tagged", "plain", "foreign"}),
        ({"lane": "mail"}, {"tagged", "plain", "foreign"}),
        ({"lane": "mail", "namespace": "foreign"}, {"mail", "tagged", "plain", "foreign"}),
        ({"tags": '{"team.name": "x"}'}, {"mail", "plain", "foreign"}),
        ({"tags": '{"team.name": "y"}'}, {"mail", "tagged", "plain", "foreign"}),
        ({"tags": "{}"}, set()),
    ],
)
async def test_only_those_of_a_namespace_a_lane_or_with_tags_go(engine, filters, left, policy):
    made = {}
    for name, changes in {
        "mail": {"route": await engine.register(lane="mail")},
        "tagged": {"tags": {"team.name": "x", "team.size": "3"}},
        "plain": {},
        "foreign": {},
    }.items():
        where = engine.within("foreign") if name == "foreign" else engine
        made[name] = (await where.submit(policy=policy, **changes)).id
        assert (await where.cancel(made[name])).word == "cancelled"
    trimmed = await trim_all(engine, retention=timedelta(0), **filters)
    assert {name for name, id in made.items() if id in await ids(engine)} == left
    assert trimmed == len(made) - len(left)


async def test_a_filtered_trim_goes_on_behind_those_it_has_seen(engine):
    """The walk of all is somewhere else, and stays there."""
    items = [Item(tags={"team.name": "x"} if n % 1000 == 999 else None) for n in range(3000)]
    for start in range(0, 3000, 1000):
        await engine.submit_many(items[start : start + 1000])
    while leases := await engine.claim(limit=500):
        await engine.complete_many(leases, [b"1"] * len(leases))
    call = (
        f"select handled, due_in, next_after from ff.trim_retention(p_partition_key => '{home()}', "
        "p_retention => interval '0', p_tags => $1, p_after => $2)"
    )
    after, seen = None, []
    while True:
        handled, due_in, after = await engine.connection.fetchrow(call, '{"team.name": "x"}', after)
        assert due_in is None
        seen.append(handled)
        if after is None:
            break
    assert seen == [2, 1]
    assert (
        await engine.connection.fetchval("select count(*) from ff.meta where name ~ 'trim_p'") == 0
    )


async def test_trimming_events_takes_a_sensible_limit(engine):
    with refused("WF001", field="limit"):
        await trim_events(engine, 0)
    with refused("WF001", field="limit"):
        await trim_events(engine, None)


async def test_what_ended_in_the_millisecond_it_was_made_goes_at_its_very_moment(engine, clock):
    """Found by the model: the walk took the id for too young to have ended long ago."""
    await clock.freeze()
    now = (await clock.now() + HOUR).replace(microsecond=0)
    await clock.set(now)
    made = UUID(int=(int(now.timestamp() * 1000) << 80) | (0x7 << 76) | (0b10 << 62) | 1)
    await engine.submit(id=made)
    assert (await engine.cancel(made)).word == "cancelled"
    await clock.advance(MONTH)
    assert await trim_all(engine) == 1
    assert await ids(engine) == set()


async def test_a_repeated_submit_of_what_was_trimmed_meanwhile_does_not_run_it_again(clock, engine):
    """Nothing of it is kept but its events, which tell that it was there."""
    first, other = await engine.submit(), await engine.submit()
    for lease in await engine.claim(limit=2):
        await engine.complete(lease)
    assert await trim_all(engine, retention=timedelta(0)) == 2

    again = await engine.submit_many([Item(id=first.id), Item(), Item(id=other.id)])
    assert [answer.word for answer in again] == ["duplicate", "created", "duplicate"]
    assert [again[0].id, again[2].id] == [first.id, other.id]
    assert await ids(engine) == {again[1].id}
    await engine.connection.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => 'default', p_state => 'draining')"
    )
    assert (await engine.submit(id=first.id)).word == "duplicate"
    assert (await engine.within("foreign").submit(id=first.id)).detail["field"] == "execution_id"
    await engine.connection.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => 'default', p_state => 'active')"
    )

    await clock.advance(days=2)
    while (await trim_events(engine))[0]:
        pass
    assert (await engine.submit(id=first.id)).word == "created"
