"""Which databases a starting process accepts, and what it says about the others."""

from __future__ import annotations

import pytest

from flowfabric.core.errors import SchemaMismatch, SchemaMissing, StepEdited
from flowfabric.db import migrate as schema


async def test_an_empty_database_is_missing_its_schema(connection, sample):
    with pytest.raises(SchemaMissing) as raised:
        await schema.verify(connection, source=sample.source())

    assert "no flowfabric schema" in str(raised.value)
    assert "flowfabric db migrate" in str(raised.value)


async def test_verify_works_inside_the_callers_transaction(connection, sample):
    async with connection.transaction():
        with pytest.raises(SchemaMissing):
            await schema.verify(connection, source=sample.source())
        assert await connection.fetchval("select 1") == 1


async def test_a_missing_step_names_found_and_needed_and_the_command(connection, sample):
    await schema.migrate(connection, source=sample.source())
    sample.write("schema/0003_color.sql", "alter table ff.parcel add column color text;\n")

    with pytest.raises(SchemaMismatch) as raised:
        await schema.verify(connection, source=sample.source())

    assert "Found: schema step 2, library 1." in str(raised.value)
    assert "Needed: schema step 3, library 1." in str(raised.value)
    assert "flowfabric db migrate" in str(raised.value)


async def test_an_older_library_names_found_and_needed_and_the_command(connection, sample):
    await schema.migrate(connection, source=sample.source(library_version=4))

    with pytest.raises(SchemaMismatch) as raised:
        await schema.verify(connection, source=sample.source(library_version=5))

    assert "Found: schema step 2, library 4." in str(raised.value)
    assert "Needed: schema step 2, library 5." in str(raised.value)
    assert "flowfabric db migrate" in str(raised.value)


async def test_a_newer_database_is_accepted(connection, sample):
    older = sample.source(library_version=1)
    steps, library = older.steps(), older.library()
    sample.write("schema/0003_color.sql", "alter table ff.parcel add column color text;\n")
    await schema.migrate(connection, source=sample.source(library_version=2))
    sample.remove("schema/0003_color.sql")
    assert (older.steps(), older.library()) == (steps, library)

    await schema.verify(connection, source=older)


async def test_a_newer_breaking_step_is_refused(connection, sample):
    sample.write("schema/0003_color.sql", "-- breaking\nalter table ff.parcel add color text;\n")
    await schema.migrate(connection, source=sample.source())
    sample.remove("schema/0003_color.sql")

    with pytest.raises(SchemaMismatch) as raised:
        await schema.verify(connection, source=sample.source())

    assert "step 3 (color) is marked breaking" in str(raised.value)
    assert "Found: schema step 3" in str(raised.value)
    assert "Needed: schema step 2" in str(raised.value)
    assert "flowfabric db migrate" in str(raised.value)


async def test_a_breaking_step_of_our_own_is_accepted(connection, sample):
    sample.write("schema/0003_color.sql", "-- breaking\nalter table ff.parcel add color text;\n")
    await schema.migrate(connection, source=sample.source())

    await schema.verify(connection, source=sample.source())


async def test_an_edited_step_is_refused(connection, sample):
    await schema.migrate(connection, source=sample.source())
    sample.write("schema/0002_weight.sql", "alter table ff.parcel add column mass integer;\n")

    with pytest.raises(StepEdited, match=r"0002_weight .* flowfabric db migrate"):
        await schema.verify(connection, source=sample.source())


async def test_status_shows_steps_from_both_sides(connection, sample):
    sample.write("schema/0003_color.sql", "alter table ff.parcel add color text;\n")
    await schema.migrate(connection, source=sample.source())
    await connection.execute("delete from ff.schema_step where step = 2")
    sample.remove("schema/0003_color.sql")

    found = await schema.status(connection, source=sample.source())

    states = [(step.number, step.state) for step in found.steps]
    assert states == [(1, "applied"), (2, "pending"), (3, "newer")]
    assert found.pending == (2,)
    assert found.is_newer
