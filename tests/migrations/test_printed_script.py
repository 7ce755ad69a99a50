"""The script of `flowfabric db sql`, run through psql, leads where `migrate` leads."""

from __future__ import annotations

import re
import subprocess

import pytest

from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection
from flowfabric.db.library import package_source
from support.programs import programs


def run_script(url, script):
    return subprocess.run(
        [programs() / "psql", "-X", "--quiet", "--dbname", url],
        input=script,
        text=True,
        capture_output=True,
    )


def dump(cluster, url):
    text = cluster.run("pg_dump", "--schema-only", "--dbname", url)
    # Recent releases of pg_dump put a random key around their output.
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


@pytest.fixture(params=["sample", "package"])
def source(request, sample):
    return sample.source() if request.param == "sample" else package_source()


async def test_the_script_makes_the_same_schema_as_migrate(
    cluster, make_database, source, app_role
):
    migrated, scripted = make_database(), make_database()
    async with open_connection(migrated) as connection:
        await schema.migrate(connection, source=source)

    finished = run_script(scripted, schema.sql(source=source))

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout + finished.stderr == ""
    assert dump(cluster, scripted) == dump(cluster, migrated)
    async with open_connection(scripted) as connection:
        again = await schema.migrate(connection, source=source)
    assert again.steps == ()
    assert not again.is_library_recreated


async def test_a_script_is_for_plain_or_for_distributed_tables(make_database, sample):
    sample.two_forms("form")
    url, source = make_database(), sample.source()
    plain, distributed = schema.sql(source=source), schema.sql(2, distributed=True, source=source)
    assert run_script(url, plain).returncode == 0

    refused = run_script(url, distributed)

    assert refused.returncode != 0
    assert "this script is for distributed tables" in refused.stderr
    async with open_connection(url) as connection:
        await connection.execute("insert into ff.meta (name, value) values ('distributed', 'true')")
        assert run_script(url, distributed).returncode == 0
        assert await connection.fetchval("select ff.form()") == "distributed"
        assert not (await schema.migrate(connection, source=source)).is_library_recreated
    assert "this script is for plain tables" in run_script(url, schema.sql(2, source=source)).stderr


async def test_a_script_from_a_step_goes_on_from_there(cluster, make_database, sample):
    migrated, scripted = make_database(), make_database()
    assert run_script(scripted, schema.sql(source=sample.source())).returncode == 0
    sample.write(
        "schema/0003_index.sql",
        "-- no-transaction\n-- breaking\ncreate index concurrently heavy on ff.parcel (weight);\n",
    )
    sample.function("count_parcels", "2")
    source = sample.source(library_version=2)
    async with open_connection(migrated) as connection:
        await schema.migrate(connection, source=source)

    finished = run_script(scripted, schema.sql(2, source=source))

    assert finished.returncode == 0, finished.stderr
    assert dump(cluster, scripted) == dump(cluster, migrated)
    async with open_connection(scripted) as connection:
        assert (await schema.migrate(connection, source=source)).steps == ()
        breaking = await connection.fetch("select step from ff.schema_step where breaking")
    assert [row["step"] for row in breaking] == [3]


def test_a_script_that_starts_too_late_stops_before_it_changes_anything(url, sample):
    finished = run_script(url, schema.sql(1, source=sample.source()))

    assert finished.returncode != 0
    assert "run the earlier steps first" in finished.stderr


def test_a_script_that_is_run_twice_stops_at_the_first_step(url, sample):
    script = schema.sql(source=sample.source())
    assert run_script(url, script).returncode == 0

    again = run_script(url, script)

    assert again.returncode != 0
    assert "Key (step)=(1) already exists" in again.stderr


def test_an_older_script_stops_at_a_newer_database(url, sample):
    assert run_script(url, schema.sql(source=sample.source(library_version=2))).returncode == 0

    finished = run_script(url, schema.sql(2, source=sample.source(library_version=1)))

    assert finished.returncode != 0
    assert "newer than this script" in finished.stderr


@pytest.mark.parametrize("from_step", [-1, 3])
def test_a_script_from_an_unknown_step_is_refused(sample, from_step):
    with pytest.raises(ValueError, match="steps go from 1 to 2"):
        schema.sql(from_step, source=sample.source())
