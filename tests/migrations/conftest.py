"""A throwaway cluster for the session, an empty database for each test, and folders of sample SQL
that stand in for the package's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric.db import migrate
from flowfabric.db.connection import open_connection
from flowfabric.db.library import Source
from support.private_cluster import (
    SERVER_USER,
    Cluster,
    cluster,
    database_numbers,
    make_database,
)

__all__ = ["cluster", "database_numbers", "make_database"]


@pytest.fixture(autouse=True)
def _no_retirement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody calls the functions that most tests replace."""
    monkeypatch.setattr(migrate, "RETIREMENT", timedelta(0))


@pytest.fixture
def url(make_database: Callable[[], str]) -> str:
    return make_database()


@pytest.fixture
async def connect(url: str) -> AsyncIterator[Callable[[], Any]]:
    """Opens connections to the test's database; they are closed at its end."""
    async with AsyncExitStack() as stack:

        async def open_one() -> asyncpg.Connection:
            return await stack.enter_async_context(open_connection(url))

        yield open_one


@pytest.fixture
async def connection(connect: Callable[[], Any]) -> asyncpg.Connection:
    return await connect()


@pytest.fixture
def app_role(cluster: Cluster) -> Iterator[str]:
    """The role that applications use; it exists in the whole cluster, so only while asked for."""

    def execute(statement: str, database: str = "postgres") -> str:
        where = (f"--host={cluster.folder}", f"--username={SERVER_USER}", f"--dbname={database}")
        return cluster.run("psql", "-X", "-At", *where, f"--command={statement}")

    execute("create role flowfabric_app login")
    yield "flowfabric_app"
    for database in execute("select datname from pg_database where datallowconn").split():
        execute("drop owned by flowfabric_app", database)
    execute("drop role flowfabric_app")


class SampleFolder:
    """SQL laid out like the package's, written by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def remove(self, path: str) -> None:
        (self.folder / path).unlink()

    def remove_if_there(self, path: str) -> None:
        (self.folder / path).unlink(missing_ok=True)

    def release(self) -> None:
        """Freeze the steps as they are now."""
        steps = sorted((self.folder / "schema").glob("*.sql"))
        lines = [f"{sha256(step.read_bytes()).hexdigest()}  {step.name}\n" for step in steps]
        self.write("schema/CHECKSUMS", "".join(lines))

    def function(self, name: str, result: str = "1", parameters: str = "") -> None:
        self.write(
            f"functions/sample/{name}.sql",
            f"drop function if exists ff.{name};\n"
            f"create function ff.{name}({parameters}) returns integer\n"
            "language plpgsql set search_path = pg_catalog, pg_temp security definer\n"
            f"as $$ begin return {result}; end $$;\n",
        )

    def two_forms(self, name: str) -> None:
        """A function that answers plain or distributed."""
        header = "-- Say which form this is.\n--\n-- Rights:   operator\n"
        form = (
            f"drop function if exists ff.{name};\n"
            f"create function ff.{name}() returns text\n"
            "language plpgsql\n"
            "set plan_cache_mode = force_generic_plan\n"
            "set jit = off\n"
            "as $$ begin return '{}'; end $$;\n"
        )
        plain, distributed = form.format("plain"), form.format("distributed")
        self.write(
            f"functions/sample/{name}.sql", f"{header}{plain}\n-- When distributed\n{distributed}"
        )

    def source(self, library_version: int = 1) -> Source:
        return Source(folder=self.folder, library_version=library_version)


@pytest.fixture
def sample(tmp_path: Path) -> SampleFolder:
    """Two steps, two functions and a view."""
    sample = SampleFolder(tmp_path / "sql")
    sample.write("schema/0001_parcel.sql", "create table ff.parcel (id integer primary key);\n")
    sample.write("schema/0002_weight.sql", "alter table ff.parcel add column weight integer;\n")
    sample.write(
        "shared/now.sql",
        "create or replace function ff.now() returns timestamptz\n"
        "language sql as $$ select clock_timestamp() $$;\n",
    )
    sample.function("count_parcels", "(select count(*) from ff.parcel)")
    sample.function("_private")
    sample.write(
        "views/parcel_view.sql",
        "create or replace view ff.parcel_view as select p.id, p.weight from ff.parcel p;\n",
    )
    return sample
