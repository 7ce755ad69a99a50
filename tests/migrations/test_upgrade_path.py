"""A database that an earlier release left, migrated to the head: it equals a fresh installation,
keeps its rows, and understands the calls of the old release. See dumps/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection

DUMP = Path(__file__).parent / "dumps" / "parcel.sql"
# What a client of that release sends.
OLD_CALLS = (
    "select count_parcels from ff.count_parcels()",
    "select id from ff.parcel_view where id = 1",
)


@pytest.fixture
def old(cluster, url):
    """The test's database is as the old release left it: step 1, library 1, three parcels."""
    restore(cluster, url, DUMP.read_text(encoding="utf-8"))


@pytest.fixture
def head(sample):
    """The release of today: a second step, a function that grew, a new one, one that is gone."""
    sample.function(
        "count_parcels", "(select count(*) from ff.parcel)", "p_least integer default 0"
    )
    sample.function("weigh_parcels", "(select coalesce(sum(weight), 0) from ff.parcel)")
    return sample.source(library_version=2)


def restore(cluster, url: str, script: str) -> None:
    cluster.run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"--dbname={url}", input=script)


def dump(cluster, url: str) -> str:
    text = cluster.run("pg_dump", "--schema-only", "--schema=ff", "--dbname", url)
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


async def test_an_old_database_migrated_equals_a_fresh_one(cluster, make_database, url, old, head):
    fresh = make_database()
    for target in (url, fresh):
        async with open_connection(target) as connection:
            await schema.migrate(connection, source=head)
            await schema.verify(connection, source=head)
    # A dump writes some expressions with fewer parentheses than they were made with, so the fresh
    # one goes through a dump as well.
    twin = make_database()
    restore(cluster, twin, dump(cluster, fresh))
    assert dump(cluster, url) == dump(cluster, twin)
    ledgers = []
    for target in (url, fresh):
        async with open_connection(target) as connection:
            ledgers.append(
                await connection.fetch(
                    "select s.step::text, s.name, s.checksum from ff.schema_step s"
                    " union all select m.name, m.value, null from ff.meta m order by 1, 2"
                )
            )
    assert ledgers[0] == ledgers[1]


async def test_a_second_migration_finds_nothing_to_do(connection, old, head):
    first = await schema.migrate(connection, source=head)
    assert (first.steps, first.is_library_recreated) == ((2,), True)
    again = await schema.migrate(connection, source=head)
    assert (again.steps, again.is_library_recreated) == ((), False)


async def test_what_the_old_release_stored_is_still_there(connection, old, head):
    rows = "select id from ff.parcel order by id"
    before = await connection.fetch(rows)
    assert [row["id"] for row in before] == [1, 2, 3]
    await schema.migrate(connection, source=head)
    assert await connection.fetch(rows) == before


async def test_every_call_of_the_old_client_is_still_understood(connection, old, head):
    before = [await connection.fetch(call) for call in OLD_CALLS]
    await schema.migrate(connection, source=head)
    assert [await connection.fetch(call) for call in OLD_CALLS] == before
    assert await connection.fetchval("select to_regproc('ff.lose_parcel') is null")
