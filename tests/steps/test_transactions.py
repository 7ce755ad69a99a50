"""Transactional steps: their own writes and their record commit together, or neither does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from flowfabric import Context, ExecutionFailed, Fixed, PublicState, Retry
from steps.stage import journal, until
from support.database import another_installation
from worker.apps import working
from worker.waiting import eventually

AGAIN = Retry(max_retries=3, backoff=Fixed(timedelta(0)))


@pytest.fixture
async def notes(db):
    await db.execute("create table note (text text not null)")

    async def read() -> list[str]:
        return [row["text"] for row in await db.fetch("select text from note order by text")]

    return read


async def with_asyncpg(connection: asyncpg.Connection[Any], text: str) -> str:
    await connection.execute("insert into note values ($1)", text)
    return f"{text} noted"


async def with_async_psycopg(connection: psycopg.AsyncConnection[Any], text: str) -> str:
    await connection.execute("insert into note values (%s)", [text])
    return f"{text} noted"


def with_psycopg(connection: psycopg.Connection[Any], text: str) -> str:
    connection.execute("insert into note values (%s)", [text])
    return f"{text} noted"


async def with_async_session(session: Any, text: str) -> str:
    await session.execute(sqlalchemy.text("insert into note values (:text)"), {"text": text})
    return f"{text} noted"


def with_session(session: Any, text: str) -> str:
    session.execute(sqlalchemy.text("insert into note values (:text)"), {"text": text})
    return f"{text} noted"


def url_for(driver: str, url: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def engine(url: str) -> Any:
    return sqlalchemy.create_engine(url_for("psycopg", url), poolclass=sqlalchemy.NullPool)


def async_engine(driver: str, url: str) -> Any:
    return create_async_engine(url_for(driver, url), poolclass=sqlalchemy.NullPool)


KINDS: dict[str, tuple[Callable[..., Any], Callable[[str], Any]]] = {
    "ours": (with_asyncpg, lambda url: None),
    "psycopg": (with_psycopg, lambda url: lambda: psycopg.connect(url)),
    "psycopg_async": (
        with_async_psycopg,
        lambda url: lambda: psycopg.AsyncConnection.connect(url, autocommit=True),
    ),
    "sessionmaker": (
        with_session,
        lambda url: sessionmaker(engine(url)),
    ),
    "engine": (
        with_session,
        lambda url: engine(url).connect,
    ),
    "async_sessionmaker": (
        with_async_session,
        lambda url: async_sessionmaker(async_engine("asyncpg", url)),
    ),
    "async_engine": (
        with_async_session,
        lambda url: async_engine("psycopg", url).connect,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_writes_and_the_record_are_stored_together(make_app, db, notes, kind):
    function, connect = KINDS[kind]
    app = make_app(connect=connect(db.url))

    @app.task(name="in_a_coroutine")
    async def handler(ctx: Context, text: str) -> str:
        noted = await ctx.transaction("note it", function, text)
        await ctx.sleep(0.05)
        return noted

    @app.task(name="in_a_thread")
    def plain(ctx: Context, text: str) -> str:
        noted = ctx.transaction_sync(function, text)
        ctx.sleep_sync(0.05)
        return noted

    async with working(app):
        run, other = await handler.submit("a"), await plain.submit("b")
        assert await run.result(timeout=60) == "a noted"
        assert await other.result(timeout=60) == "b noted"
    assert await notes() == ["a", "b"], "each handler ran twice, its transaction once"
    assert (await journal(db, run))["note it", 0] == b'"a noted"'
    assert (await journal(db, other))[function.__name__, 0] == b'"b noted"'


async def test_a_transaction_may_be_the_first_step_of_a_code_version(make_app, db, notes):
    app = make_app(code_version="1")

    @app.task
    async def work(ctx: Context) -> str:
        return await ctx.transaction(with_asyncpg, "a")

    async with working(app):
        run = await work.submit()
        assert await run.result(timeout=60) == "a noted"
    assert await notes() == ["a"]
    assert (
        await db.fetchval(
            "select r.code_version from ff.execution e join ff.route r on r.route_id = e.route_id"
        )
        == "1"
    )


async def test_a_secret_of_a_transaction_is_marked_as_one(app, db, notes):
    async def secret(connection: Any) -> SecretStr:
        return SecretStr("hunter2")

    @app.task
    async def work(ctx: Context) -> None:
        await ctx.transaction(secret)

    async with working(app):
        await (await work.submit()).result(timeout=60)
    assert await db.fetchval("select encoding from ff.step") == "secret"


async def test_a_role_that_one_transaction_sets_is_not_that_of_the_next(app, db, notes):
    async def become(connection: Any) -> None:
        await connection.execute("set session role pg_monitor")

    async def who(connection: Any) -> str:
        return str(await connection.fetchval("select current_user"))

    @app.task
    async def work(ctx: Context) -> str:
        first = await ctx.transaction("first", who)
        with pytest.raises(Exception, match="permission denied"):
            await ctx.transaction("become", become)
        assert await ctx.transaction("last", who) == first
        return first

    async with working(app, concurrency=1):
        assert await (await work.submit()).result(timeout=60) != "pg_monitor"


async def test_a_connection_lost_before_the_function_is_opened_again(app, db, notes):
    @app.task
    async def work(ctx: Context, text: str) -> str:
        return await ctx.transaction(with_asyncpg, text)

    async with working(app):
        await (await work.submit("a")).result(timeout=60)
        await db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like '%transactions'"
        )
        assert await (await work.submit("b")).result(timeout=60) == "b noted"
    assert await notes() == ["a", "b"]


async def test_an_error_of_the_function_rolls_back_and_may_be_retried(app, db, notes):
    calls = 0

    async def sometimes(connection: Any, text: str) -> None:
        nonlocal calls
        calls += 1
        await with_asyncpg(connection, text)
        if calls < 3:
            raise ValueError("not yet")

    @app.task
    async def handler(ctx: Context) -> str:
        await ctx.transaction("first", sometimes, "a", retry=AGAIN)
        try:
            await ctx.transaction(with_asyncpg, None)
        except asyncpg.NotNullViolationError as error:
            return type(error).__name__
        return ""

    async with working(app):
        run = await handler.submit()
        assert await run.result(timeout=60) == "NotNullViolationError"
    assert await notes() == ["a"]
    assert set(await journal(db, run)) == {("first", 0), ("with_asyncpg", 0)}


async def test_what_fails_at_the_commit_is_the_error_of_the_step(app, db, notes):
    await db.execute(
        "alter table note add constraint once unique (text) deferrable initially deferred"
    )

    @app.task
    async def handler(ctx: Context) -> None:
        await ctx.transaction(with_asyncpg, "a")
        await ctx.transaction(with_asyncpg, "a")

    async with working(app):
        run = await handler.submit()
        with pytest.raises(ExecutionFailed, match="UniqueViolationError"):
            await run.result(timeout=60)
    assert await notes() == ["a"]
    assert set(await journal(db, run)) == {("with_asyncpg", 0)}


class Cut(Exception):
    """The connection was cut; no SQLSTATE."""


class CuttingTransaction:
    def __init__(self, connection: Any, inner: Any, when: str, cuts: list[str]) -> None:
        self._connection, self._inner, self._when, self._cuts = connection, inner, when, cuts

    async def __aenter__(self) -> None:
        await self._inner.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and not self._cuts:
            self._cuts.append(self._when)
            if self._when == "before":
                self._connection.terminate()
            await self._inner.__aexit__(None, None, None)
            raise Cut
        await self._inner.__aexit__(kind, error, trace)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_without_an_answer_is_looked_up_first(app, db, notes, monkeypatch, when):
    from flowfabric.client.caller_connections import Asyncpg

    plain, cuts, calls = Asyncpg.transaction, [], []
    monkeypatch.setattr(
        Asyncpg,
        "transaction",
        lambda self: CuttingTransaction(self._connection, plain(self), when, cuts),
    )

    async def note(connection: Any, text: str) -> str:
        calls.append(text)
        return await with_asyncpg(connection, text)

    @app.task
    async def handler(ctx: Context) -> str:
        return await ctx.transaction(note, "a")

    async with working(app):
        assert await (await handler.submit()).result(timeout=60) == "a noted"
    assert cuts == [when]
    assert await notes() == ["a"]
    assert len(calls) == (2 if when == "before" else 1)


async def test_another_run_that_recorded_the_step_first_undoes_the_writes(app, db, notes):
    async def overtaken(connection: Any, text: str) -> str:
        await with_asyncpg(connection, text)
        await db.execute(
            "insert into ff.step (partition_key, execution_id, name, occurrence, position,"
            " is_sequential, kind, attempt_index, epoch, recorded_at, value, follows)"
            " select partition_key, execution_id, 'overtaken', 0, 0, true, 'step', 0, epoch,"
            " transitioned_at, '\"first\"', -1 from ff.execution"
        )
        return "second"

    @app.task
    async def handler(ctx: Context) -> str:
        return await ctx.transaction(overtaken, "a")

    async with working(app):
        assert await (await handler.submit()).result(timeout=60) == "first"
    assert await notes() == []


async def test_a_cancel_never_waits_for_the_function(app, db, notes):
    inside, released = asyncio.Event(), asyncio.Event()

    async def slow(connection: Any, text: str) -> None:
        await with_asyncpg(connection, text)
        inside.set()
        with_error = asyncio.shield(asyncio.ensure_future(released.wait()))
        try:
            await with_error
        except asyncio.CancelledError:
            await released.wait()

    @app.task
    async def handler(ctx: Context) -> None:
        await ctx.transaction(slow, "a")

    async with working(app):
        run = await handler.submit()
        await inside.wait()
        async with asyncio.timeout(60):
            await run.cancel()
        assert await run.state() == PublicState.CANCELLED
        released.set()
    assert await notes() == [], "the fence refused the record, so the writes are gone"
    assert await journal(db, run) == {}


async def test_a_busy_row_is_waited_for_within_the_transaction(app, db, notes):
    calls = 0
    asked: list[str] = []

    async def note(connection: Any, run_id: str) -> None:
        nonlocal calls
        calls += 1
        await with_asyncpg(connection, "a")
        connection.add_query_logger(lambda record: asked.append(record.query))
        locking.set()
        await locked.wait()

    @app.task
    async def handler(ctx: Context) -> None:
        await ctx.transaction(note, str(ctx.execution_id))

    locking, locked = asyncio.Event(), asyncio.Event()
    async with working(app):
        run = await handler.submit()
        await locking.wait()
        other = await asyncpg.connect(db.url)
        async with other.transaction():
            await other.execute("select from ff.execution for update")
            locked.set()
            # It asks again, so it was told of the row and waits.
            await eventually(lambda: sum("record_step_json" in query for query in asked) >= 2)
        await other.close()
        await run.result(timeout=60)
    assert calls == 1
    assert await notes() == ["a"]


async def test_a_conflict_runs_the_transaction_again(app, db, notes):
    tries = 0

    async def counted(connection: Any) -> int:
        nonlocal tries
        tries += 1
        await with_asyncpg(connection, f"try {tries}")
        if tries == 1:
            await connection.execute("do $$ begin raise sqlstate '40001'; end $$")
        return tries

    @app.task
    async def handler(ctx: Context) -> int:
        return await ctx.transaction(counted)

    async with working(app):
        assert await (await handler.submit()).result(timeout=60) == 2
    assert await notes() == ["try 2"]


@contextmanager
def begun(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        connection.execute("select 1")
        yield connection


@asynccontextmanager
async def in_an_async_block(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


def autocommitting(url: str) -> Any:
    return engine(url).execution_options(isolation_level="AUTOCOMMIT").connect


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[str], Any], str]] = {
    "no synchronous connection": (with_psycopg, lambda url: None, "is a `def` and needs a sync"),
    "an async function": (
        with_asyncpg,
        lambda url: engine(url).connect,
        "for `async with` that gives",
    ),
    "a plain function": (
        with_psycopg,
        lambda url: lambda: psycopg.AsyncConnection.connect(url),
        "for `with` that gives",
    ),
    "the other kind in a block": (
        with_asyncpg,
        lambda url: lambda: in_an_async_block(url),
        "gives a synchronous connection, but the function of step 'with_asyncpg' is async def",
    ),
    "not a connection": (with_psycopg, lambda url: lambda: nullcontext(7), "must be an asyncpg"),
    "in a transaction": (with_psycopg, lambda url: lambda: begun(url), "already in a transaction"),
    "autocommit": (with_session, autocommitting, "use an isolation level other than AUTOCOMMIT"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_connection_that_cannot_record_is_refused_before_the_function(
    make_app, db, notes, case
):
    function, connect, problem = REFUSED[case]
    await fails_with(make_app(connect=connect(db.url)), function, problem)
    assert await notes() == []


async def fails_with(app: Any, function: Callable[..., Any], problem: str) -> None:
    """A transaction with this function fails, and says why."""

    @app.task(name="fails")
    async def handler(ctx: Context) -> None:
        await ctx.transaction(function, "a")

    async with working(app):
        with pytest.raises(ExecutionFailed) as caught:
            await (await handler.submit()).result(timeout=60)
    assert problem in str(caught.value)


async def test_another_database_is_refused(make_app, template, cluster):
    async with another_installation(template) as name:
        there = make_app(connect=lambda: psycopg.connect(cluster.url_of(name)))
        await fails_with(there, with_psycopg, "a database other than the execution's")


async def test_a_database_without_the_schema_is_refused(make_app, cluster):
    nowhere = make_app(connect=lambda: psycopg.connect(cluster.url))
    await fails_with(nowhere, with_psycopg, "given as connect lacks record_step_json")


async def test_a_role_that_may_not_record_is_refused(make_app, db, notes):
    await db.execute("create role stranger login")
    try:
        await db.execute("grant all on note to stranger")

        def connect() -> Any:
            connection = psycopg.connect(db.url)
            connection.execute("set session authorization stranger")
            connection.commit()
            return connection

        app = make_app(connect=connect)
        await fails_with(app, with_psycopg, "Grant it the role flowfabric_app")
        assert await notes() == []
    finally:
        await db.execute("drop owned by stranger")
        await db.execute("drop role stranger")


@pytest.mark.parametrize(
    "call", [lambda ctx: ctx.transaction("name"), lambda ctx: ctx.transaction(7)]
)
async def test_a_transaction_needs_a_function(app, call):
    @app.task
    async def handler(ctx: Context) -> None:
        await call(ctx)

    async with working(app):
        with pytest.raises(ExecutionFailed, match="must be a function"):
            await (await handler.submit()).result(timeout=60)


async def test_a_transaction_starts_no_step(app, notes):
    @app.task
    async def handler(ctx: Context) -> None:
        async def nested(connection: Any) -> None:
            await ctx.step("inner", with_asyncpg, connection, "a")

        await ctx.transaction(nested)

    async with working(app):
        run = await handler.submit()
        with pytest.raises(ExecutionFailed, match="inside the function of step 'nested'"):
            await run.result(timeout=60)
    await until(run, PublicState.FAILED)
    assert await notes() == []
