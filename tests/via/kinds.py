"""The kinds of connections that `via=` takes, each behind one face, on their real drivers.

Whoever is synchronous lives in a thread of its own, as it would in a program: psycopg and
SQLAlchemy do not mind, Django keeps its connections by thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
import django
import django.conf
import django.db
import psycopg
import psycopg.rows
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from flowfabric import Run, Task

NOTE = "insert into note (text) values ('noted')"


@dataclass(slots=True)
class Caller:
    """A program with a connection: it begins, writes, submits, and ends its transaction."""

    via: Any
    note: Callable[[], Any]
    transaction: Callable[[], Any]
    savepoint: Callable[[], Any]
    thread: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[Any], Any]) -> Any:
        """Do something where this program does things."""
        if self.thread is None:
            return await work(self)
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, self)

    async def submit(
        self,
        task: Task[..., Any, Any],
        *args: Any,
        commit: bool = True,
        undo: bool = False,
        **options: Any,
    ) -> Run[Any]:
        """A transaction that writes a note and submits; with `undo` the submit is in a savepoint
        that is rolled back."""
        work = _submitting if self.thread is not None else _submitting_async
        return await self.run(lambda caller: work(caller, task, args, commit, undo, options))


class RolledBack(Exception):
    pass


async def _submitting_async(
    caller: Caller,
    task: Task[..., Any, Any],
    args: tuple[Any, ...],
    commit: bool,
    undo: bool,
    options: dict[str, Any],
) -> Run[Any]:
    run = None
    try:
        async with caller.transaction():
            await caller.note()
            try:
                if undo:
                    async with caller.savepoint():
                        run = await task.submit(*args, via=caller.via, **options)
                        raise RolledBack
                run = await task.submit(*args, via=caller.via, **options)
            except RolledBack:
                pass
            if not commit:
                raise RolledBack
    except RolledBack:
        pass
    assert run is not None
    return run


def _submitting(
    caller: Caller,
    task: Task[..., Any, Any],
    args: tuple[Any, ...],
    commit: bool,
    undo: bool,
    options: dict[str, Any],
) -> Run[Any]:
    run = None
    try:
        with caller.transaction():
            caller.note()
            try:
                if undo:
                    with caller.savepoint():
                        run = task.submit_sync(*args, via=caller.via, **options)
                        raise RolledBack
                run = task.submit_sync(*args, via=caller.via, **options)
            except RolledBack:
                pass
            if not commit:
                raise RolledBack
    except RolledBack:
        pass
    assert run is not None
    return run


Opener = Callable[[str], AbstractAsyncContextManager[Caller]]


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    try:
        yield _of_asyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as lent:
        # as many programs do, which would send our JSON twice encoded
        await lent.set_type_codec(
            "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
        )
        yield _of_asyncpg(lent)


def _of_asyncpg(connection: Any) -> Caller:
    return Caller(
        connection,
        lambda: connection.execute(NOTE),
        connection.transaction,
        connection.transaction,
    )


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[Caller]:
    async with _thread(lambda: psycopg.connect(url)) as (thread, connection):
        yield Caller(
            connection,
            lambda: connection.execute(NOTE),
            connection.transaction,
            connection.transaction,
            thread,
        )


@asynccontextmanager
async def psycopg_odd_connection(url: str) -> AsyncIterator[Caller]:
    """Autocommit with explicit transactions, rows as dicts, cursors with other placeholders."""

    def connect() -> Any:
        connection = psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row)
        connection.cursor_factory = psycopg.RawCursor
        return connection

    async with _thread(connect) as (thread, connection):
        yield Caller(
            connection,
            lambda: connection.execute(NOTE),
            connection.transaction,
            connection.transaction,
            thread,
        )


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Caller(
            connection,
            lambda: connection.execute(NOTE),
            connection.transaction,
            connection.transaction,
        )


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(_for("psycopg", url))
    async with _thread(lambda: Session(engine)) as (thread, session):
        yield _of_session(session, thread)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(_for("psycopg", url))
    sessions = scoped_session(sessionmaker(engine))
    async with _thread(lambda: sessions) as (thread, session):
        yield _of_session(session, thread)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(_for("psycopg", url))
    async with _thread(engine.connect) as (thread, connection):
        yield _of_session(connection, thread)
    engine.dispose()


def _of_session(session: Any, thread: ThreadPoolExecutor) -> Caller:
    return Caller(
        session,
        lambda: session.execute(sqlalchemy.text(NOTE)),
        session.begin,
        session.begin_nested,
        thread,
    )


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Caller]:
    async with _engine("asyncpg", url) as engine, AsyncSession(engine) as session:
        yield _of_async_session(session)


@asynccontextmanager
async def sqlalchemy_async_session_psycopg(url: str) -> AsyncIterator[Caller]:
    async with _engine("psycopg", url) as engine, AsyncSession(engine) as session:
        yield _of_async_session(session)


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[Caller]:
    async with _engine("asyncpg", url) as engine, engine.connect() as connection:
        yield _of_async_session(connection)


def _of_async_session(session: AsyncSession | AsyncConnection) -> Caller:
    return Caller(
        session,
        lambda: session.execute(sqlalchemy.text(NOTE)),
        session.begin,
        session.begin_nested,
    )


@asynccontextmanager
async def django_connection(url: str) -> AsyncIterator[Caller]:
    """`django.db.connection`, as it is imported everywhere."""
    async with _django(url) as (thread, _):
        yield _of_django(django.db.connection, thread)


@asynccontextmanager
async def django_alias(url: str) -> AsyncIterator[Caller]:
    """`connections["default"]`, for programs with several databases."""
    async with _django(url) as (thread, wrapper):
        yield _of_django(wrapper, thread)


@asynccontextmanager
async def _django(url: str) -> AsyncIterator[tuple[ThreadPoolExecutor, Any]]:
    if not django.conf.settings.configured:
        django.conf.settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True
        )
        django.setup()
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    django.db.connections.settings["default"].update(
        NAME=parts.path.lstrip("/"),
        USER=parts.username or query.get("user", [""])[0],
        PASSWORD=unquote(parts.password or ""),
        HOST=parts.hostname or query.get("host", [""])[0],
        PORT=str(parts.port or query.get("port", [""])[0]),
    )
    # A new thread has no connection yet: it gets one to the database of this test.
    async with _thread(lambda: django.db.connections["default"]) as (thread, wrapper):
        yield thread, wrapper


def _of_django(connection: Any, thread: ThreadPoolExecutor) -> Caller:
    def note() -> None:
        with connection.cursor() as cursor:
            cursor.execute(NOTE)

    return Caller(
        connection, note, django.db.transaction.atomic, django.db.transaction.atomic, thread
    )


KINDS: dict[str, Opener] = {
    opener.__name__: opener  # type: ignore[attr-defined]
    for opener in (
        asyncpg_connection,
        asyncpg_pool,
        psycopg_connection,
        psycopg_odd_connection,
        psycopg_async_connection,
        sqlalchemy_session,
        sqlalchemy_scoped_session,
        sqlalchemy_connection,
        sqlalchemy_async_session,
        sqlalchemy_async_session_psycopg,
        sqlalchemy_async_connection,
        django_connection,
        django_alias,
    )
}


@asynccontextmanager
async def _thread(make: Callable[[], Any]) -> AsyncIterator[tuple[ThreadPoolExecutor, Any]]:
    """A thread, and what was made in it; closed there."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:
        made = await loop.run_in_executor(thread, make)
        try:
            yield thread, made
        finally:
            # a session may be a registry of sessions
            close = getattr(made, "remove", None) or made.close
            await loop.run_in_executor(thread, close)


@asynccontextmanager
async def _engine(driver: str, url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(_for(driver, url))
    try:
        yield engine
    finally:
        await engine.dispose()


def _for(driver: str, url: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)
