"""`flowfabric` as its users meet it: help, messages and exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flowfabric import App, embedded
from flowfabric.cli import db, worker
from flowfabric.cli.main import app

Run = Callable[..., Result]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user of the server can enter; pytest's own is closed to all but root."""
    path = Path(tempfile.mkdtemp(prefix="ff-cli-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs `flowfabric ...` in the folder, in this process: a new one takes half a second."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(*arguments: str, **environment: str) -> Result:
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()
        return CliRunner().invoke(
            app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", **environment}
        )

    yield run
    sys.modules.pop("shop", None)
    root.handlers[:] = handlers
    root.setLevel(level)


def plain(text: str) -> str:
    """Without the frames and line breaks of the terminal."""
    return " ".join(text.replace("│", " ").replace("─", " ").split())


def test_help_lists_the_commands(run):
    finished = run("--help")

    assert finished.exit_code == 0
    for command in ("worker", "demo", "db"):
        assert command in finished.stdout


def test_the_installed_command_is_the_same(folder):
    command = Path(sys.executable).parent / "flowfabric"

    finished = subprocess.run([command, "--help"], cwd=folder, capture_output=True, text=True)

    assert finished.returncode == 0
    assert "worker" in finished.stdout


@pytest.mark.parametrize("reference", ["shop", "shop:", ":app", ""])
def test_a_reference_that_is_none_is_a_usage_error(run, reference):
    finished = run("worker", reference)

    assert finished.exit_code == 2
    assert "module:app" in plain(finished.stderr)


def test_a_module_that_is_missing_is_named(run, folder):
    finished = run("worker", "shop:app")

    assert finished.exit_code == 2
    assert "there is no module 'shop'" in plain(finished.stderr)
    assert "run `flowfabric init` first" in plain(finished.stderr)
    assert "Traceback" not in finished.stderr


def test_a_module_that_imports_something_missing_shows_where(run, folder):
    # The missing name is the beginning of the module's own.
    (folder / "shop.py").write_text("import sho\n")

    finished = run("worker", "shop:app")

    assert finished.exit_code == 1
    assert "No module named 'sho'" in finished.stderr
    assert 'shop.py", line 1' in finished.stderr


def test_a_module_without_that_app_lists_those_it_has(run, folder):
    (folder / "shop.py").write_text(
        "from flowfabric import App\nmail = App()\nprint_ = App()\napp = 5\n"
    )

    for name in ("app", "nothing", "mail.deeper"):
        finished = run("worker", f"shop:{name}")
        assert finished.exit_code == 2
        assert f"'shop' has no App named '{name}'; it has shop:mail, shop:print_" in plain(
            finished.stderr
        )


def test_an_app_without_tasks_is_a_usage_error(run, folder, db):
    (folder / "shop.py").write_text("from flowfabric import App\napp = App()\n")

    finished = run("worker", "shop:app", "--database-url", db.url)

    assert finished.exit_code == 2
    assert "this app has no task" in plain(finished.stderr)


TASK = "from flowfabric import App\napp = App()\n@app.task\ndef work() -> None: ...\n"


def test_an_unreachable_database_ends_with_five(run, folder):
    (folder / "shop.py").write_text(TASK)

    finished = run("worker", "shop:app", "--database-url", "postgresql://u:secret@127.0.0.1:1/x")

    assert finished.exit_code == 5
    assert "error: Cannot reach the database" in finished.stderr
    assert "secret" not in finished.stderr
    assert "Traceback" not in finished.stderr


def test_bad_settings_are_usage_errors(run, folder, db):
    (folder / "shop.py").write_text(TASK)
    url = {"FLOWFABRIC_DATABASE_URL": db.url}

    for arguments, environment, told in (
        (["-c", "0"], url, "--concurrency"),
        (["--needs", "a b"], url, "needs"),
        (["--lanes", "caf\u00e9"], url, "lane"),
        ([], {**url, "FLOWFABRIC_LEASE_TTL": "soon"}, "FLOWFABRIC_LEASE_TTL"),
        ([], {**url, "FLOWFABRIC_LOG_LEVEL": "LOUD"}, "LOUD"),
    ):
        finished = run("worker", "shop:app", *arguments, **environment)
        assert finished.exit_code == 2, (arguments, environment, finished.stderr)
        assert told in plain(finished.stderr)
        assert "Traceback" not in finished.stderr


def test_a_database_without_the_schema_names_the_command(run, folder, cluster, template):
    # The database for administration has no schema of ours.
    (folder / "shop.py").write_text(TASK)

    finished = run("worker", "shop:app", "--database-url", cluster.url)

    assert finished.exit_code == 1
    assert "flowfabric db migrate" in plain(finished.stderr)


def test_a_worker_does_not_invent_a_database(run, folder):
    (folder / "shop.py").write_text(TASK)

    finished = run("worker", "shop:app")

    assert finished.exit_code == 2
    told = plain(finished.stderr)
    for way in ("FLOWFABRIC_DATABASE_URL or DATABASE_URL", "`flowfabric dev`", "--embedded"):
        assert way in told
    assert not (folder / ".flowfabric").exists()
    both = run("worker", "shop:app", "--embedded", "--database-url", "postgresql://h/d")
    assert both.exit_code == 2
    assert "cannot be combined with --database-url" in plain(both.stderr)


@pytest.mark.parametrize("how", ["init", "--embedded", "FLOWFABRIC_EMBEDDED"])
def test_a_database_that_is_meant_is_created(run, folder, monkeypatch, how):
    monkeypatch.setattr(worker, "serve", lambda app, *_, **__: _only(app))
    if how == "init":
        assert run("init", "shop.py").exit_code == 0
    (folder / "shop.py").write_text(TASK)
    options = [how] if how == "--embedded" else []
    # This one may be meant for another program.
    environment = {"DATABASE_URL": "postgresql://127.0.0.1:1/x"} if how != "init" else {}
    if how == "FLOWFABRIC_EMBEDDED":
        environment[how] = "1"

    finished = run("worker", "shop:app", *options, **environment)

    assert finished.exit_code == 0, finished.stderr
    assert _seen == [(None, True)]
    _seen.clear()


_seen: list[tuple[str | None, bool]] = []


async def _only(app: App) -> None:
    """What the worker would use; nothing is started."""
    _seen.append((app.settings.database_url, app.settings.embedded))


@pytest.mark.slow(short=6, of="embedded servers")
def test_db_uses_the_server_of_the_project(run, folder):
    without = run("db", "status")
    assert without.exit_code == 2
    assert "FLOWFABRIC_DATABASE_URL" in plain(without.stderr)
    with embedded.start(folder):  # makes .flowfabric/, and keeps the server up for the commands
        _use_the_server(run)


def _use_the_server(run: Run) -> None:
    missing = run("db", "status")
    assert missing.exit_code == 1, missing.stderr
    assert "pending" in missing.stdout
    migrated = run("db", "migrate")
    assert migrated.exit_code == 0, migrated.stderr
    assert "applied" in migrated.stdout
    found = run("db", "status")
    assert found.exit_code == 0
    assert "pending" not in found.stdout
    url = run("db", "url")
    assert "stops now" not in url.stderr
    answer = subprocess.run(
        [embedded.find_psql(), url.stdout.strip(), "-Atc", "select count(*) from ff.execution"],
        capture_output=True,
        text=True,
    )
    assert (answer.stdout, answer.stderr) == ("0\n", "")
    assert run("db", "psql", "--", "-c", "select 1 from nothing").exit_code == 1


def test_the_password_of_a_url_is_printed_only_when_asked(run):
    url = {"DATABASE_URL": "postgresql+asyncpg://ada:s3cret@db.internal/shop"}
    assert run("db", "url", **url).stdout == "postgresql://ada@db.internal/shop\n"
    shown = run("db", "url", "--show-password", **url)
    assert shown.stdout == "postgresql://ada:s3cret@db.internal/shop\n"


def test_psql_gets_the_password_where_nobody_else_reads_it(run, monkeypatch):
    called = []
    monkeypatch.setattr(os, "execve", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(db, "find_psql", lambda: Path("/usr/bin/psql"))
    url = "postgresql://ada:s3cret@db.internal/shop?sslpassword=s3cret&sslmode=require"
    run("db", "psql", "--database-url", url, "--", "-c", "select 1")
    (_, command, environment), *_ = called
    shown = "postgresql://ada@db.internal/shop?sslmode=require"
    assert command == ["/usr/bin/psql", shown, "-c", "select 1"]
    assert environment["PGPASSWORD"] == "s3cret"


def test_without_psql_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(db, "find_psql", lambda: None)
    finished = run("db", "psql", "--database-url", "postgresql://h/d")
    assert finished.exit_code == 127
    assert "apt-get install postgresql-client" in plain(finished.stderr)
