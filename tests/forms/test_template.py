"""The template of the tests has the forms that FLOWFABRIC_TEST_FORMS asks for."""

from __future__ import annotations

import pytest

from flowfabric.db.library import package_source
from flowfabric.db.migrate import status
from support.factories import Item, new_id, refused
from support.forms import FORMS, are_distributed

INSERT = """
insert into ff.execution (
  partition_key, execution_id, route_id, namespace, rank, created_at, order_at, transitioned_at,
  mutated_at, version, phase, ownership, eligibility, blocking_reason, outcome, attempt_state,
  cause)
select 0, $1, e.route_id, e.namespace, e.rank, e.created_at, e.order_at, e.transitioned_at,
       e.mutated_at, 1, e.phase, e.ownership, e.eligibility, e.blocking_reason, e.outcome,
       e.attempt_state, e.cause
from ff.execution e
"""


async def test_the_functions_are_those_of_the_run(db):
    library = package_source().library(distributed=are_distributed())
    bodies = {
        file.path.rpartition("/")[2].removesuffix(".sql"): file.text.split("$$")[1]
        for file in library.files
        if file.path.startswith(("shared/_", "functions/"))
    }
    rows = await db.fetch(
        "select p.proname, p.prosrc, p.proconfig from pg_proc p "
        "where p.pronamespace = 'ff'::regnamespace and p.proname <> 'now'"
    )
    assert {row["proname"]: row["prosrc"] for row in rows} == bodies
    settings = {setting for row in rows for setting in row["proconfig"] or ()}
    assert ("plan_cache_mode=force_generic_plan" in settings) is not are_distributed()
    found = await status(db.conn)
    assert found.is_distributed is are_distributed()
    assert not found.is_library_stale


async def test_an_execution_without_its_event_is_refused_in_either_form(db, engine):
    """At once with plain tables, at the end of the transaction with distributed ones."""
    await engine.submit(Item())
    transaction = db.conn.transaction()
    await transaction.start()
    if are_distributed():
        await db.execute(INSERT, new_id())
        with refused("WF290", message="a loud transition without its event"):
            await transaction.commit()
    else:
        with refused("WF290", message="a loud transition without its event"):
            await db.execute(INSERT, new_id())
        await transaction.rollback()


def test_an_unknown_form_is_refused(monkeypatch):
    monkeypatch.setenv(FORMS, "shiny")
    with pytest.raises(ValueError, match="must be plain or distributed, not 'shiny'"):
        are_distributed()
