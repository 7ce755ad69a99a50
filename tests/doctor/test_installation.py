"""X01 to X08: each finds what it is named for, and a sound installation has none of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import asyncpg
import pytest

from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from flowfabric.doctor import Level, examine, installation_checks, invariants
from flowfabric.doctor import installation as module


async def findings(url, *, throwaway=True, level=None):
    """(name, problem) of every finding about the installation."""
    async with open_connection(url, statement_cache_size=0) as connection:
        report = await examine(connection, is_throwaway=throwaway)
    return [
        (finding.name, finding.problem)
        for finding in report.findings
        if finding.name.startswith("X") and level in (None, finding.level)
    ]


@pytest.fixture
def own(servers):
    """The URL of a database on a server of the test's own: roles belong to the whole server."""
    return servers.make().url


@pytest.fixture
async def owner(own):
    connection = await asyncpg.connect(own)
    yield connection
    await connection.close()


def errors(url, **options):
    return findings(url, level=Level.ERROR, **options)


@asynccontextmanager
async def role(connection, name, *statements):
    """A role of the cluster, for the length of a block."""
    await connection.execute(f"create role {name} login")
    try:
        for statement in statements:
            await connection.execute(statement.format(role=name))
        yield
    finally:
        await connection.execute(f"drop owned by {name}")
        await connection.execute(f"drop role {name}")


async def test_a_fresh_installation_is_sound(bare):
    assert await errors(bare) == []


def test_every_check_says_what_to_do():
    assert [check.name for check in installation_checks()] == [
        "X01",
        "X02",
        "X03",
        "X04",
        "X05",
        "X06",
        "X07",
        "X08",
    ]
    for check in installation_checks():
        assert check.title.endswith(".")
        assert check.meaning
        assert check.remedy


# X01


async def test_a_server_without_fsync_is_refused_unless_it_may_be_lost(bare):
    """The server of the tests is one."""
    found = await errors(bare, throwaway=False)
    assert {name for name, _ in found} == {"X01"}
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        assert any(f"{setting} is off" in problem for _, problem in found)
    assert await errors(bare, throwaway=True) == []


async def test_synchronous_commit_off_for_the_database_is_refused(bare, plain):
    name = await plain.fetchval("select current_database()")
    await plain.execute(f"alter database {name} set synchronous_commit = off")
    found = await errors(bare, throwaway=False)
    assert ("X01", f"synchronous_commit=off for database {name}") in found


@pytest.mark.slow(short=3, of="installations")
async def test_synchronous_commit_off_for_a_role_that_uses_the_schema_is_refused(own, owner):
    off = "alter role {role} set synchronous_commit = false"
    problem = ("X01", "synchronous_commit=false for role doctor_worker")
    async with role(owner, "doctor_worker", off):
        assert problem not in await errors(own, throwaway=False)
        await owner.execute("grant usage on schema ff to doctor_worker")
        assert problem in await errors(own, throwaway=False)
        assert await errors(own, throwaway=True) == []


@pytest.mark.slow(short=3, of="installations")
async def test_synchronous_commit_off_for_a_role_in_another_database_is_none_of_ours(own, owner):
    off = "alter role {role} in database postgres set synchronous_commit = off"
    usage = "grant usage on schema ff to {role}"
    async with role(owner, "doctor_worker", off, usage):
        found = await errors(own, throwaway=False)
        assert [problem for _, problem in found if "doctor_worker" in problem] == []
        here = await owner.fetchval("select current_database()")
        await owner.execute(
            f"alter role doctor_worker in database {here} set synchronous_commit = off"
        )
        problem = f"synchronous_commit=off for role doctor_worker in database {here}"
        assert ("X01", problem) in await errors(own, throwaway=False)


async def test_synchronous_commit_off_in_the_url_is_refused(bare):
    joint = "&" if "?" in bare else "?"
    found = await errors(f"{bare}{joint}synchronous_commit=off", throwaway=False)
    assert ("X01", "synchronous_commit is off for this session (client)") in found


SLOW = pytest.mark.slow(short=1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param("-c fsync=off", "PGOPTIONS sets fsync=off", marks=SLOW),
        pytest.param("-cfsync=0", "PGOPTIONS sets fsync=0", marks=SLOW),
        ("-c jit=on -c synchronous_commit=OFF", "PGOPTIONS sets synchronous_commit=OFF"),
        pytest.param("--full-page-writes=no", "PGOPTIONS sets full-page-writes=no", marks=SLOW),
    ],
)
async def test_pgoptions_that_switch_it_off_are_refused(bare, monkeypatch, options, problem):
    monkeypatch.setenv("PGOPTIONS", options)
    assert ("X01", problem) in await errors(bare, throwaway=False)
    assert await errors(bare, throwaway=True) == []


@pytest.mark.parametrize("options", ["", "-c fsync=on", "-c synchronous_commit=local", "-c 'x"])
def test_other_pgoptions_are_left_alone(options):
    assert list(module._weak_options(options)) == []


async def test_a_function_that_does_not_wait_for_the_disk_is_refused(bare, plain):
    await plain.execute("alter function ff.renew_leases set synchronous_commit = off")
    found = await errors(bare, throwaway=False)
    assert any("synchronous_commit=off in the function ff.renew_leases" in p for _, p in found)


async def test_an_unlogged_table_is_refused(bare, plain):
    await plain.execute("alter table ff.claim_slot set unlogged")
    found = await errors(bare, throwaway=False)
    assert ("X01", "the table ff.claim_slot is unlogged: a crash empties it") in found


# X02


async def test_no_schema_is_a_finding_and_nothing_else_is_looked_at(cluster):
    async with open_connection(cluster.url, statement_cache_size=0) as connection:
        report = await examine(connection, is_throwaway=True)
    (finding,) = [finding for finding in report.findings if finding.level is Level.ERROR]
    assert finding.name == "X02"
    assert "no flowfabric schema" in finding.problem
    assert [verdict.name for verdict in report.verdicts] == [
        "X01",
        "X02",
        "X03",
        "X04",
        "X05",
        "X06",
        "X07",
        "X08",
    ]
    assert "not checked" in report.notes[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            "create or replace function ff._check_limit(p_limit integer) returns void "
            "language plpgsql immutable as $$begin end$$",
            "the function ff._check_limit differs from this release",
        ),
        ("drop function ff.trim_keys", "the function ff.trim_keys is missing"),
        (
            "alter table ff.execution drop constraint execution_state",
            "the constraint execution_state is missing",
        ),
        (
            "alter table ff.execution drop constraint execution_limits",
            "the constraint execution_limits is missing",
        ),
        ("drop index ff.execution_due", "the index execution_due is missing"),
    ],
)
async def test_what_differs_from_the_release_is_found(bare, plain, change, problem):
    await plain.execute(change)
    assert ("X02", problem) in await errors(bare)


@pytest.mark.parametrize(
    "change",
    [
        "update ff.schema_step set checksum = 'another' where step = 1",
        "delete from ff.schema_step where step = 1",
        "update ff.meta set value = '0' where name = 'library_version'",
    ],
)
async def test_a_schema_that_does_not_fit_is_found(bare, plain, change):
    await plain.execute(change)
    assert "X02" in {name for name, _ in await errors(bare)}


async def test_a_library_with_another_text_is_a_warning(bare, plain):
    await plain.execute("update ff.meta set value = 'another' where name = 'library_hash'")
    assert await errors(bare) == []
    assert "X02" in {name for name, _ in await findings(bare)}


# X03


RIGHTS = [
    (
        "grant execute on function ff.trim_keys to public",
        "revoke execute on function ff.trim_keys from public",
        "PUBLIC may call ff.trim_keys",
    ),
    (
        "grant select on ff.execution to public",
        "revoke select on ff.execution from public",
        "PUBLIC may access ff.execution",
    ),
    (
        "grant insert on ff.event to flowfabric_app",
        "revoke insert on ff.event from flowfabric_app",
        "flowfabric_app may write to ff.event",
    ),
    (
        "revoke execute on function ff.trim_keys from flowfabric_app",
        "grant execute on function ff.trim_keys to flowfabric_app",
        "flowfabric_app may not call ff.trim_keys",
    ),
    (
        "grant select on ff.execution_view to flowfabric_app",
        "revoke select on ff.execution_view from flowfabric_app",
        "flowfabric_app may read ff.execution_view",
    ),
    (
        "revoke select on ff.installation from flowfabric_app",
        "grant select on ff.installation to flowfabric_app",
        "flowfabric_app may not read ff.installation",
    ),
    (
        "grant execute on function ff._refuse to flowfabric_app",
        "revoke execute on function ff._refuse from flowfabric_app",
        "flowfabric_app may call the private ff._refuse",
    ),
    (
        "alter function ff.trim_keys set search_path = ''",
        "alter function ff.trim_keys set search_path = pg_catalog, pg_temp",
        "finds the caller's names first",
    ),
    (
        "revoke usage on schema ff from flowfabric_app",
        "grant usage on schema ff to flowfabric_app",
        "flowfabric_app may not use schema ff",
    ),
    (
        "alter view ff.execution_view owner to flowfabric_app",
        "alter view ff.execution_view owner to postgres",
        "flowfabric_app owns ff.execution_view",
    ),
    (
        "alter function ff.trim_keys owner to flowfabric_app",
        "alter function ff.trim_keys owner to postgres; "
        "grant execute on function ff.trim_keys to flowfabric_app",
        "belongs to flowfabric_app, the tables to postgres",
    ),
]


@pytest.mark.slow
async def test_rights_that_are_missing_or_too_many_are_found(own, owner):
    async with role(owner, "flowfabric_app"):
        assert {name for name, _ in await errors(own)} == {"X03"}
        await migrate(owner)
        assert await errors(own) == []
        for change, undo, problem in RIGHTS:
            await owner.execute(change)
            found = await errors(own)
            assert {name for name, _ in found} == {"X03"}, change
            assert any(problem in text for _, text in found), change
            await owner.execute(undo)
            assert await errors(own) == [], undo


@pytest.mark.slow(short=3, of="installations")
async def test_a_role_that_may_not_read_the_tables_is_told_so(own, owner):
    async def report():
        # A session that plays another role may do what that role may.
        async with open_connection(f"{own}&role=doctor_guest") as connection:
            return await examine(connection, is_throwaway=True)

    async with role(owner, "doctor_guest"), role(owner, "flowfabric_app"):
        found = await report()
        assert "X02" in {finding.name for finding in found.findings}
        assert "not checked" in found.notes[0]
        await owner.execute("grant usage on schema ff to doctor_guest")
        await owner.execute("grant select on ff.installation to doctor_guest")
        found = await report()
        problems = {finding.problem for finding in found.findings if finding.name == "X03"}
        assert "doctor_guest may not read ff.execution" in problems
        assert "doctor_guest may not call ff.now" in problems
        assert "not checked" in found.notes[0]
        await migrate(owner)
        await owner.execute("grant pg_read_all_data, flowfabric_app to doctor_guest")
        found = await report()
        assert found.is_sound
        assert len(found.verdicts) == len(installation_checks()) + len(invariants())
        assert found.cursor


# X04


async def test_an_index_left_invalid_is_found(bare, plain):
    await plain.execute(
        "update pg_index set indisvalid = false where indexrelid = 'ff.event_history'::regclass"
    )
    assert await errors(bare) == [("X04", "the index ff.event_history is not valid")]


async def test_a_trigger_and_a_rule_are_found(bare, plain):
    await plain.execute(
        "create function public.t() returns trigger language plpgsql as $$begin return new; end$$;"
        "create trigger mine before update on ff.execution "
        "for each row execute function public.t();"
        "create rule mine as on delete to ff.worker do instead nothing"
    )
    assert await errors(bare) == [
        ("X04", "the trigger mine is on ff.execution"),
        ("X04", "the rule mine is on ff.worker"),
    ]


@pytest.mark.slow(short=3, of="installations")
async def test_events_with_numbers_of_another_server_are_found(bare, working, plain):
    await working.submit(route=await working.register())
    assert await errors(bare) == []
    await plain.execute("update ff.event set xid = '99999999999'")
    ((name, problem),) = await errors(bare)
    assert name == "X04"
    assert "99999999999" in problem


# X05


@pytest.mark.slow(short=3, of="installations")
async def test_a_clock_that_is_away_is_a_warning(bare, monkeypatch):
    class Late(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - timedelta(seconds=5)

    assert not any("clock" in problem for _, problem in await findings(bare))
    monkeypatch.setattr(module, "datetime", Late)
    found = [problem for _, problem in await findings(bare) if "clock" in problem]
    assert len(found) == 1
    assert "+5." in found[0] or "+4." in found[0]


async def test_autovacuum_that_is_off_is_a_warning(bare, plain):
    """It is off in the server of the tests."""
    await plain.execute("alter table ff.event set (autovacuum_enabled = off)")
    found = await findings(bare, level=Level.WARNING)
    assert ("X05", "autovacuum is off") in found
    assert ("X05", "autovacuum is off for ff.event") in found


async def room(url, *limits):
    """What X05 finds with other limits: nobody waits ten minutes or opens a hundred connections."""
    (check,) = (check for check in installation_checks() if check.name == "X05")
    query = check.text
    for limit, other in limits:
        assert limit in query
        query = query.replace(limit, other)
    async with open_connection(url, statement_cache_size=0) as connection:
        return [row["problem"] for row in await connection.fetch(query)]


async def test_a_transaction_that_stays_open_is_a_warning(bare, plain):
    async with plain.transaction():
        await plain.execute("set application_name = 'left open'; select pg_current_xact_id()")
        pid = await plain.fetchval("select pg_backend_pid()")
        assert not any("in a transaction" in problem for problem in await room(bare))
        found = await room(bare, ("interval '10 min'", "interval '0'"))
    assert [problem for problem in found if f"process {pid} " in problem and "left open" in problem]


async def test_hardly_any_connection_left_is_a_warning(bare):
    assert not any("connections are in use" in problem for problem in await room(bare))
    found = await room(bare, ("0.8 * u.most", "0.001 * u.most"))
    assert [problem for problem in found if "connections are in use" in problem]


async def test_a_database_that_is_never_frozen_is_a_warning(bare):
    assert not any("freeze" in problem for problem in await room(bare))
    assert any("freeze" in problem for problem in await room(bare, ("1000000000", "-1")))


async def test_a_query_that_fails_is_a_finding_and_the_others_go_on(bare, plain):
    await plain.execute("alter table ff.event_trim rename column due_at to due")
    async with open_connection(bare, statement_cache_size=0) as connection:
        report = await examine(connection, is_throwaway=True)
    failed = {f.name: f.problem for f in report.findings if "cannot be checked" in f.problem}
    assert failed.keys() == {"K02", "X07"}
    assert "due_at" in failed["K02"]
    assert not report.is_sound


@pytest.mark.slow(short=3, of="installations")
async def test_a_standby_is_refused_and_still_looked_at(servers):
    primary = servers.make()
    standby = servers.adopt(primary.back_up(standby=True))
    standby.start()
    async with open_connection(standby.url, statement_cache_size=0) as connection:
        report = await examine(connection, is_throwaway=True)
    assert [(f.name, f.problem) for f in report.findings if f.level is Level.ERROR] == [
        ("X01", "this server is a read-only standby: run doctor on its primary")
    ]
    assert len(report.verdicts) == len(installation_checks()) + len(invariants())
    assert report.cursor is None
