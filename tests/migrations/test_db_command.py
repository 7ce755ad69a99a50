"""`flowfabric db` as an operator meets it: output, messages and exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from flowfabric.cli.db import app
from flowfabric.db import migrate as schema


@pytest.fixture
def run(sample, monkeypatch):
    """Runs a command on the sample SQL with nothing but the given environment."""
    for name in ("FLOWFABRIC_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    version = [1]
    monkeypatch.setattr(schema, "package_source", lambda: sample.source(version[0]))

    def run(*arguments, library_version=1, **environment):
        version[0] = library_version
        return CliRunner().invoke(app, arguments, env=environment)

    return run


def test_migrate_prints_a_line_for_each_step(run, url):
    result = run("migrate", "--database-url", url)

    assert result.exit_code == 0, result.output
    assert [line.partition(" (")[0] for line in result.stdout.splitlines()] == [
        "schema/0001_parcel.sql: applied",
        "schema/0002_weight.sql: applied",
        "library 1: created",
    ]
    assert result.stderr == ""


def test_migrate_again_prints_no_data(run, url):
    run("migrate", "--database-url", url)

    result = run("migrate", "--database-url", url)

    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == "The database is up to date; nothing was applied.\n"


def test_migrate_goes_back_only_when_asked(run, url, sample):
    run("migrate", "--database-url", url, library_version=2)
    sample.function("count_parcels", "7")

    refused = run("migrate", "--database-url", url)
    assert refused.exit_code == 0
    assert "the database is newer" in refused.stderr
    assert refused.stdout == ""

    allowed = run("migrate", "--downgrade", "--database-url", url)
    assert allowed.exit_code == 0
    assert allowed.stdout.startswith("library 1: created")


def test_status_of_a_fitting_database_as_json(run, url):
    run("migrate", "--database-url", url)

    result = run("status", "-o", "json", "--database-url", url)

    assert result.exit_code == 0
    status = json.loads(result.stdout)
    assert status["fits"] is True
    assert status["schema"] == {"needed": 2, "found": 2}
    assert status["library"] == {"needed": 1, "found": 1, "is_current": True}
    assert [step["state"] for step in status["steps"]] == ["applied", "applied"]


def test_status_of_an_empty_database_exits_with_1(run, url):
    result = run("status", "-o", "table", "--database-url", url)

    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["STEP", "NAME", "STATE", "APPLIED", "AT"],
        ["0001", "parcel", "pending", "-"],
        ["0002", "weight", "pending", "-"],
        ["library", "1", "pending", "-"],
    ]
    assert "flowfabric db migrate" in result.stderr


@pytest.mark.parametrize("variable", ["FLOWFABRIC_DATABASE_URL", "DATABASE_URL"])
def test_the_environment_names_the_database(run, url, variable):
    assert run("migrate", **{variable: url}).exit_code == 0


def test_the_option_wins_over_the_environment(run, url):
    nowhere = "postgresql://localhost:1/nowhere"

    assert run("migrate", "--database-url", url, DATABASE_URL=nowhere).exit_code == 0


def test_no_database_at_all_is_a_usage_error_that_says_what_to_do(run):
    result = run("status")

    assert result.exit_code == 2
    assert "FLOWFABRIC_DATABASE_URL" in result.stderr


@pytest.mark.parametrize("command", ["migrate", "status"])
def test_an_unreachable_database_exits_with_5_and_hides_the_password(run, command):
    result = run(command, "--database-url", "postgresql://me:secret@localhost:1/nowhere")

    assert result.exit_code == 5
    assert "Cannot reach the database at localhost:1/nowhere" in result.stderr
    assert "secret" not in result.output


def test_a_connection_lost_on_the_way_exits_with_5(run, url, sample):
    sample.write("schema/0002_weight.sql", "select pg_terminate_backend(pg_backend_pid());\n")

    result = run("migrate", "--database-url", url)

    assert result.exit_code == 5, result.output
    assert "Lost the connection to the database" in result.stderr
    assert result.stdout.startswith("schema/0001_parcel.sql: applied")


@pytest.mark.parametrize("command", ["status", "url"])
@pytest.mark.parametrize(
    "url",
    [
        "mysql://localhost/x",
        "host=h password=secret",
        "postgresql://ada:secret/x@localhost/d",
        "postgresql://localhost:99999/d",
        "postgresql://[::1/d",
    ],
)
def test_a_url_that_is_none_is_a_usage_error(run, command, url):
    result = run(command, "--database-url", url)
    assert result.exit_code == 2, result.output
    assert "secret" not in result.output


def test_an_edited_step_exits_with_1(run, url, sample):
    run("migrate", "--database-url", url)
    sample.write("schema/0002_weight.sql", "alter table ff.parcel add column mass integer;\n")

    result = run("migrate", "--database-url", url)

    assert result.exit_code == 1
    assert "0002_weight" in result.stderr


def test_sql_prints_the_script_without_a_database(run, sample):
    result = run("sql", "--from", "1")

    assert result.exit_code == 0
    assert result.stdout == schema.sql(1, source=sample.source())


def test_sql_from_an_unknown_step_is_a_usage_error(run):
    assert run("sql", "--from", "99").exit_code == 2
