"""A submit that joins the caller's transaction: the execution exists if and only if it commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from flowfabric import App, Fixed, InvalidInput, KeyReused, NotFound, Retry, Run, SchemaMismatch
from flowfabric.core.errors import LaneClosed, RetryExhausted, UnknownRoute
from support.database import another_installation
from support.proofs import some_of
from via.kinds import KINDS, Caller
from worker.apps import working
from worker.waiting import eventually


def kinds(turn: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", some_of(KINDS, turn))


# What must be the same however an execution was submitted.
COMPARED = (
    *("lane", "task", "capabilities", "priority", "public_state", "payload", "payload_encoding"),
    *("delayed_until", "deadline_at", "tags", "policy", "max_reclaims", "attempt"),
)


@pytest.fixture
async def notes(db):
    """A table of the caller's own."""
    await db.execute("create table note (text text)")

    async def count() -> int:
        return await db.fetchval("select count(*) from note")

    return count


@pytest.fixture
def greet(app):
    @app.task(name="shop.greet", version="7")
    async def greet(name: str, times: int = 1) -> str:
        return " ".join([f"Hello, {name}"] * times)

    return greet


async def traces(db) -> int:
    return await db.fetchval(
        "select (select count(*) from ff.execution) + (select count(*) from ff.event) "
        "+ (select count(*) from ff.execution_body) + (select count(*) from ff.idempotency_key)"
    )


@kinds(0)
async def test_what_is_committed_runs(db, app, greet, notes, kind):
    async with KINDS[kind](db.url) as caller, working(app):
        run = await caller.submit(greet, "Ann", times=2)

        # An idle worker is woken by the commit.
        assert await run.result(timeout=60) == "Hello, Ann Hello, Ann"
        assert not run.is_duplicate
        assert await notes() == 1


@kinds(1)
async def test_what_is_rolled_back_leaves_no_trace(db, app, greet, notes, kind):
    async with KINDS[kind](db.url) as caller:
        run = await caller.submit(greet, "Ann", key="ann", commit=False)

    assert await traces(db) == await notes() == 0
    with pytest.raises(NotFound, match="rolled back"):
        await run.result(timeout=60)


@kinds(2)
async def test_a_savepoint_takes_its_submit_back_and_no_more(db, app, greet, notes, kind):
    async with KINDS[kind](db.url) as caller:
        undone = await caller.submit(greet, "Ann", key="ann", undo=True)
        assert await traces(db) == 0
        assert await notes() == 1
        run = await caller.submit(greet, "Ann", key="ann")

    assert run.id != undone.id
    assert not run.is_duplicate
    assert await run.state() == "waiting"


@kinds(3)
async def test_a_refused_submit_leaves_the_transaction_usable(db, app, greet, notes, kind):
    client = await app.client()
    await greet.using(lane="closed").submit("Ann")
    await client.lanes.disable("closed")
    await greet.submit("Ann", key="ann")

    async def refused(caller: Caller) -> None:
        async with caller.transaction():
            for error, task, name in (
                (LaneClosed, greet.using(lane="closed"), "Ann"),
                (KeyReused, greet.using(key="ann"), "Bob"),
            ):
                with pytest.raises(error):
                    await task.using(via=caller.via).submit(name)
            await caller.note()

    def refused_sync(caller: Caller) -> None:
        with caller.transaction():
            for error, task, name in (
                (LaneClosed, greet.using(lane="closed"), "Ann"),
                (KeyReused, greet.using(key="ann"), "Bob"),
            ):
                with pytest.raises(error):
                    task.using(via=caller.via).submit_sync(name)
            caller.note()

    async with KINDS[kind](db.url) as caller:
        await caller.run(refused_sync if caller.thread else refused)

    assert await notes() == 1
    assert await db.fetchval("select count(*) from ff.execution") == 2


@kinds(4)
async def test_a_key_in_the_callers_transaction_leads_to_the_existing_run(
    db, app, greet, notes, kind
):
    first = await greet.submit("Ann", key="ann")
    many = greet.using(on_conflict="existing")
    calls, keys = [("Bob",), ("Cid",), ("Dan",)], ["ann", "cid", "cid"]
    async with KINDS[kind](db.url) as caller:
        run = await caller.submit(greet, "Bob", key="ann", on_conflict="existing")

        async def submit_many(caller: Caller) -> list[Run[str]]:
            async with caller.transaction():
                return await many.using(via=caller.via).submit_many(calls, keys=keys)

        def submit_many_sync(caller: Caller) -> list[Run[str]]:
            with caller.transaction():
                return many.using(via=caller.via).submit_many_sync(calls, keys=keys)

        runs = await caller.run(submit_many_sync if caller.thread else submit_many)

    assert (run.id, run.is_duplicate) == (first.id, True)
    assert [one.is_duplicate for one in runs] == [True, False, True]
    assert runs[0].id == first.id
    assert runs[1].id == runs[2].id == (await app.get_by_key("cid")).id
    assert await notes() == 1
    assert await db.fetchval("select count(*) from ff.execution") == 2


@kinds(5)
async def test_everything_that_can_be_asked_for_travels(db, app, kind, clock):
    await clock.freeze()

    @app.task(
        name="shop.all",
        lane="mail",
        priority=3,
        needs={"smtp"},
        retry=Retry(max_retries=2, backoff=Fixed(timedelta(seconds=5))),
        deadline=timedelta(hours=2),
        tags={"team.name": "blue"},
        version="1.2",
    )
    async def everything(text: str) -> str:
        return text

    text = 'ü \u0000 \\ " ' + "x" * 1000
    await db.execute("create table note (text text)")
    async with KINDS[kind](db.url) as caller:
        joined = everything.using(
            delay=timedelta(minutes=1), tags={"team.size": "9"}, unique="unfinished"
        )
        run = await caller.submit(joined, text, key="k")
        plain = await joined.using(key="l").submit(text)
        again = await caller.submit(joined, text, key="l")

    client = await app.client()
    one, other = [await client.executions.describe(r.id) for r in (run, plain)]
    for name in COMPARED:
        assert getattr(one, name) == getattr(other, name), name
    assert again.id == plain.id
    assert again.is_duplicate
    assert await db.fetchval("select array_agg(distinct task_version) from ff.execution_body") == [
        "1.2"
    ]


async def test_many_join_one_transaction(db, app, greet, notes):
    connection = await db.connect()
    joined = greet.using(via=connection)
    transaction = connection.transaction()
    await transaction.start()
    await joined.submit_many([(str(n),) for n in range(1200)])
    await transaction.rollback()
    assert await traces(db) == 0

    async with connection.transaction():
        runs = await joined.submit_many([(str(n),) for n in range(1200)])
    async with working(app, concurrency=100):
        query = "select count(*) from ff.execution where public_state = 'completed'"
        await eventually(lambda: _is(db.fetchval(query), 1200))
        assert [await run.result() for run in runs[::300]] == [
            f"Hello, {n}" for n in range(0, 1200, 300)
        ]


async def _is(value: Awaitable[Any], expected: object) -> bool:
    return await value == expected


def test_many_join_one_transaction_synchronously(db, app, greet):
    with psycopg.connect(db.url) as connection:
        runs = greet.using(via=connection).submit_many_sync([("Ann",), ("Bob",)])
    assert [run.state_sync() for run in runs] == ["waiting", "waiting"]
    asyncio.run(app.close())


async def test_the_namespace_is_that_of_the_app(db, make_app):
    apps = [make_app(namespace=name) for name in ("blue", "red")]
    tasks = []
    for app in apps:

        @app.task(name="shop.work")
        async def work() -> str:
            return "done"

        tasks.append(work)
    connection = await db.connect()
    async with connection.transaction():
        runs = [await task.submit(key="k", via=connection) for task in tasks]

    assert [run.is_duplicate for run in runs] == [False, False]
    assert [
        (await (await app.client()).executions.info(run.id)).namespace
        for app, run in zip(apps, runs, strict=True)
    ] == ["blue", "red"]
    with pytest.raises(NotFound):
        await apps[0].get(runs[1].id).state()


# What is refused


async def test_a_connection_without_a_transaction_is_refused(db, app, greet):
    connection = await db.connect()
    with pytest.raises(InvalidInput, match=r"via: .*not in a transaction.*connection.transaction"):
        await greet.submit("Ann", via=connection)

    async with await psycopg.AsyncConnection.connect(db.url, autocommit=True) as connection:
        with pytest.raises(InvalidInput, match="not in a transaction"):
            await greet.submit("Ann", via=connection)
        async with connection.transaction():
            await greet.submit("Ann", via=connection)
    assert await db.fetchval("select count(*) from ff.execution") == 1


@pytest.mark.parametrize("kind", ["sqlalchemy_session", "sqlalchemy_connection"])
async def test_sqlalchemy_in_autocommit_is_refused(db, app, greet, kind):
    engine = sqlalchemy.create_engine(
        db.url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )

    def submit() -> None:
        with Session(engine) if kind == "sqlalchemy_session" else engine.connect() as via:
            greet.submit_sync("Ann", via=via)

    with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
        await asyncio.to_thread(submit)
    engine.dispose()
    assert await traces(db) == 0


async def test_asynchronous_sqlalchemy_in_autocommit_is_refused(db, app, greet):
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(
            db.url.replace("postgresql://", f"postgresql+{driver}://"), isolation_level="AUTOCOMMIT"
        )
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
                await greet.submit("Ann", via=session)
        await engine.dispose()
    assert await traces(db) == 0


@pytest.mark.parametrize("kind", ["django_connection", "django_alias"])
async def test_django_outside_atomic_is_refused(db, app, greet, kind):
    async with KINDS[kind](db.url) as caller:
        with pytest.raises(InvalidInput, match=r"transaction\.atomic"):
            await caller.run(lambda caller: greet.submit_sync("Ann", via=caller.via))
    assert await traces(db) == 0


async def test_another_database_system_is_refused(app, greet):
    engine = sqlalchemy.create_engine("sqlite://")

    def submit() -> None:
        with engine.connect() as connection:
            greet.submit_sync("Ann", via=connection)

    with pytest.raises(InvalidInput, match="via: is a connection to sqlite"):
        await asyncio.to_thread(submit)
    engine.dispose()


@pytest.mark.parametrize("other", [object(), "default", 3, asyncpg.Pool])
async def test_anything_else_is_told_what_is_accepted(app, greet, other):
    with pytest.raises(InvalidInput) as caught:
        await greet.submit("Ann", via=other)

    assert caught.value.field == "via"
    for name in ("asyncpg", "psycopg", "SQLAlchemy", "Django"):
        assert name in str(caught.value)


async def test_a_synchronous_connection_is_not_for_submit(db, app, greet):
    with (
        psycopg.connect(db.url) as connection,
        pytest.raises(InvalidInput, match=r"via: is a synchronous .*greet\.submit_sync\("),
    ):
        await greet.submit("Ann", via=connection)


async def test_a_synchronous_connection_on_an_event_loop_is_sent_to_a_thread(db, app, greet):
    with (
        psycopg.connect(db.url) as connection,
        pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(greet\.submit_sync, "),
    ):
        greet.submit_sync("Ada", via=connection)


async def test_an_asynchronous_connection_is_not_for_submit_sync(db, app, greet):
    connection = await db.connect()
    with pytest.raises(InvalidInput, match=r"via: is an asynchronous .*await greet\.submit\("):
        await asyncio.to_thread(lambda: greet.submit_sync("Ann", via=connection))


async def test_bad_arguments_send_nothing(db, app, greet):
    connection = await db.connect()
    async with connection.transaction():
        with pytest.raises(InvalidInput, match="times"):
            await greet.submit("Ann", "often", via=connection)
        assert await connection.fetchval("select 1") == 1


async def test_another_database_is_refused_although_it_knows_the_task(
    db, app, greet, template, cluster
):
    """Routes have the same ids everywhere: only its identity tells one database from another."""
    async with (
        another_installation(template) as name,
        App(database_url=cluster.url_of(name)) as other,
    ):

        @other.task(name="shop.greet")
        async def greet_there(name: str, times: int = 1) -> str:
            return name

        await greet_there.submit("Bob")
        connection = await asyncpg.connect(cluster.url_of(name))
        async with connection.transaction():
            with pytest.raises(
                InvalidInput, match=f"via: this is {name}, not the intended database"
            ):
                await greet.submit("Ann", via=connection)
            await greet_there.submit("Cid", via=connection)
        assert await connection.fetchval("select count(*) from ff.execution") == 2
        await connection.close()
    assert await traces(db) == 0


async def test_a_database_without_the_schema_is_said_to_be_one(db, app, greet, cluster):
    connection = await asyncpg.connect(cluster.url)
    async with connection.transaction():
        with pytest.raises(SchemaMismatch, match="via lacks submit_json"):
            await greet.submit("Ann", via=connection)
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await greet.submit("Ann", via=connection)
    await connection.close()


async def test_a_role_without_the_right_is_told_which_one(db, app, greet):
    connection = await db.connect()
    async with connection.transaction():
        await connection.execute("create role ff_nobody; set local role ff_nobody")
        with pytest.raises(SchemaMismatch, match="flowfabric_app"):
            async with connection.transaction():
                await greet.submit("Ann", via=connection)
        await connection.execute("reset role; drop role ff_nobody")


# Keys, snapshots, a database made anew


async def test_a_key_that_another_transaction_holds_is_waited_for(db, app, greet):
    first, second = await db.connect(), await db.connect()
    holding = first.transaction()
    await holding.start()
    run = await greet.submit("Ann", key="k", via=first)

    async def join() -> Any:
        async with second.transaction():
            return await greet.submit("Ann", key="k", via=second)

    asked: list[str] = []
    second.add_query_logger(lambda record: asked.append(record.query))
    joining = asyncio.create_task(join())
    # It asks again, so it was told of the key and waits.
    await eventually(lambda: sum("submit_json" in query for query in asked) >= 2)
    assert not joining.done()
    await holding.commit()
    duplicate = await asyncio.wait_for(joining, 60)

    assert duplicate.is_duplicate
    assert duplicate.id == run.id


async def test_a_transaction_that_is_told_the_first_run_holds_no_key(db, app, greet):
    run = await greet.submit("Ann", key="k")
    first, second = await db.connect(), await db.connect()
    async with first.transaction(), second.transaction():
        for connection in (first, second, None):
            assert (await greet.submit("Ann", key="k", via=connection)).id == run.id


async def test_a_key_that_stays_held_is_given_up_and_the_transaction_goes_on(
    db, app, greet, monkeypatch
):
    monkeypatch.setattr("flowfabric.client.batching.BUSY_PAUSES", (0.001, 0.001))
    first, second = await db.connect(), await db.connect()
    async with first.transaction():
        await greet.submit("Ann", key="k", via=first)
        async with second.transaction():
            with pytest.raises(RetryExhausted, match="'k' is locked by another transaction"):
                await greet.submit("Ann", key="k", via=second)
            await greet.submit("Ann", key="l", via=second)
    assert await db.fetchval("select count(*) from ff.execution") == 2


async def test_a_snapshot_older_than_the_route_is_told_to_start_over(db, app, greet):
    connection = await db.connect()
    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select count(*) from ff.route")
        with pytest.raises(UnknownRoute, match="REPEATABLE READ"):
            await greet.submit("Ann", via=connection)
    async with connection.transaction(isolation="serializable"):
        run = await greet.submit("Ann", via=connection)
    assert await run.state() == "waiting"


async def test_a_database_made_anew_is_noticed(db, app, greet):
    old = await greet.submit("Ann")
    await db.forget(old.id.uuid, old.id.partition_key)
    await db.execute("delete from ff.event; delete from ff.route")
    connection = await db.connect()
    async with connection.transaction():
        run = await greet.submit("Ann", via=connection)
    assert await run.state() == "waiting"


async def test_the_hint_is_sent_by_the_commit_and_not_before(db, app, greet):
    connection = await db.connect()
    async with working(app) as worker:
        await eventually(lambda: worker.is_idle)
        transaction = connection.transaction()
        await transaction.start()
        run = await greet.submit("Ann", via=connection)
        await asyncio.sleep(0.1)
        await eventually(lambda: worker.is_idle)
        await transaction.commit()
        assert await run.result(timeout=60) == "Hello, Ann"
