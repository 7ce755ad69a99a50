"""A project's server: made, reached, restarted, and set up as asked."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowfabric import embedded


def test_a_new_project_gets_a_server_that_asyncpg_reaches_by_its_url(new_project, query, source):
    with embedded.start(new_project) as server:
        assert server.started
        assert server.version.startswith("18." if source == "wheel" else "")
        assert server.url.startswith("postgresql://flowfabric@/flowfabric?host=/")
        assert query(server.url, "SHOW server_version").startswith(server.version)
        assert query(server.url, "SELECT current_database() || ' ' || current_user") == (
            "flowfabric flowfabric"
        )
        assert server.data.is_relative_to(new_project / ".flowfabric")


def test_the_server_is_durable_and_listens_on_a_private_socket_only(new_project, query):
    with embedded.start(new_project) as server:
        expected = {
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "max_connections": "100",
            "shared_buffers": "128MB",
            "server_encoding": "UTF8",
            "TimeZone": "UTC",
        }
        for name, value in expected.items():
            assert query(server.url, f"SHOW {name}") == value, name
        collate = "SELECT datcollate FROM pg_database WHERE datname = current_database()"
        assert query(server.url, collate) == "C"
        socket = Path(query(server.url, "SHOW unix_socket_directories").strip('"'))
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert stat.S_IMODE((socket / ".s.PGSQL.5432").stat().st_mode) == 0o700


def test_what_was_written_is_there_after_a_stop_and_the_next_start(project, query, is_up):
    with embedded.start(project) as server:
        query(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert not is_up(project)
    with embedded.start(project) as server:
        assert server.started
        assert query(server.url, "SELECT answer FROM kept") == 42


@pytest.mark.slow(short=6, of="embedded servers")
def test_starting_again_takes_a_moment_and_joining_takes_none(new_project):
    def use() -> float:
        began = time.perf_counter()
        embedded.start(new_project).release()
        return time.perf_counter() - began

    # The first start makes the data, on the same busy machine; a wait would slow all ten others.
    first = use()
    assert any(use() < first / 2 for _ in range(10))
    with embedded.start(new_project):
        assert any(use() < first / 8 for _ in range(10))


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_project_may_have_any_name(folder, query):
    project = folder / """it's "a", 100% \\ ü $HOME & more"""
    project.mkdir()
    with embedded.start(project) as server:
        assert query(server.url, "SELECT 1") == 1
        with embedded.start(project) as again:
            assert not again.started


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_path_too_long_for_a_socket_puts_the_socket_elsewhere(folder, query, new_process):
    project = folder / ("long" * 20) / "project"
    project.mkdir(parents=True)
    with embedded.start(project) as server:
        socket = Path(query(server.url, "SHOW unix_socket_directories").strip('"'))
        assert not socket.is_relative_to(project)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert new_process().start(project) == [server.url, False]
    with embedded.start(project) as server:
        assert query(server.url, "SELECT 1") == 1
        server.stop()
    assert not socket.exists()


def test_a_short_path_to_a_project_may_be_relative(project, query, monkeypatch):
    monkeypatch.chdir(project)
    with embedded.start(Path()) as server:
        assert query(server.url, "SELECT 1") == 1


def test_options_and_pgoptions_become_server_settings(project, query, monkeypatch):
    monkeypatch.setenv(
        "PGOPTIONS", r"-c work_mem=5MB -cstatement_timeout=7s --search-path=a,\ b -c jit=on"
    )
    with embedded.start(project, options={"jit": "off", "app.name": "it's"}) as server:
        # asyncpg must not be the one to pass them on.
        monkeypatch.delenv("PGOPTIONS")
        assert query(server.url, "SHOW work_mem") == "5MB"
        assert query(server.url, "SHOW statement_timeout") == "7s"
        assert query(server.url, "SHOW search_path") == "a, b"
        assert query(server.url, "SHOW jit") == "off"
        assert query(server.url, "SHOW app.name") == "it's"


@pytest.mark.slow(short=6, of="embedded servers")
def test_other_pg_variables_do_not_reach_the_server(project, query, monkeypatch):
    for name in ("PGDATA", "PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGTZ", "PGLOCALEDIR"):
        monkeypatch.setenv(name, "/nonsense")
    with embedded.start(project) as server:
        environment = Path(f"/proc/{_pid(server)}/environ")
        if environment.exists():
            assert b"/nonsense" not in environment.read_bytes()
        for name in ("PGPORT", "PGHOST", "PGUSER", "PGDATABASE"):
            monkeypatch.delenv(name)
        assert query(server.url, "SHOW TimeZone") == "UTC"


@pytest.mark.parametrize("name", ["listen_addresses", "PORT", "hba_file"])
def test_settings_that_would_move_or_open_the_server_are_refused(new_project, name):
    with pytest.raises(embedded.SettingRefused, match="cannot be changed"):
        embedded.start(new_project, options={name: "*"})
    assert not (new_project / ".flowfabric").exists()


@pytest.mark.parametrize("text", ["-c", "-c nonsense", "-d 5", "work_mem=1MB", "-c =1"])
def test_pgoptions_that_are_not_settings_are_refused(new_project, monkeypatch, text):
    monkeypatch.setenv("PGOPTIONS", text)
    with pytest.raises(embedded.SettingRefused, match="-c name=value"):
        embedded.start(new_project)


def test_the_log_is_in_the_folder_and_git_ignores_the_folder(project):
    with embedded.start(project) as server:
        assert server.log == project / ".flowfabric" / "postgres.log"
        assert "ready to accept connections" in server.log.read_text()
    assert (project / ".flowfabric" / ".gitignore").read_text() == "*\n"


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_log_that_has_grown_long_is_put_aside(project, monkeypatch):
    monkeypatch.setattr("flowfabric.embedded.folder._LARGEST_LOG", 10)
    embedded.start(project).release()
    embedded.start(project).release()
    assert (project / ".flowfabric" / "postgres.log.old").exists()


@pytest.mark.slow(short=6, of="embedded servers")
@pytest.mark.parametrize("found", ["none", "open to all", "open to all, of a running server"])
def test_nobody_else_may_read_the_log_and_the_record(project, monkeypatch, open_umask, found):
    kept = project / ".flowfabric"
    files = [kept / name for name in ("postgres.log", "postgres.log.old", "postgres.json")]
    monkeypatch.setattr("flowfabric.embedded.folder._LARGEST_LOG", 10)
    embedded.start(project).release()  # puts the long log aside

    def open_to_all() -> None:
        for file in files:
            file.chmod(0o666)

    if found == "none":
        for file in files:
            file.unlink()
        embedded.start(project).release()
    elif found == "open to all":
        open_to_all()
    with embedded.start(project):
        if found.endswith("running server"):
            open_to_all()
            embedded.start(project).release()
        assert {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in files} == {
            file.name: "0o600" for file in files
        }


@pytest.mark.slow(short=6, of="embedded servers")
def test_no_file_is_closed_that_a_link_in_the_folder_leads_to(project, folder):
    """Else the owner of a project that root works in could close any file of the machine."""
    victim = folder / "victim"
    victim.touch()
    victim.chmod(0o644)
    old = project / ".flowfabric" / "postgres.log.old"
    old.symlink_to(victim)
    embedded.start(project).release()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644


@pytest.mark.slow(short=6, of="embedded servers")
def test_it_works_without_a_network(new_project, package):
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-n", "true"], check=False).returncode != 0:
        pytest.skip("this system cannot cut the network")
    script = (
        f"import embedded, pathlib; embedded.start(pathlib.Path({str(new_project)!r})).release()"
    )
    subprocess.run(
        [unshare, "-n", sys.executable, "-B", "-c", script],
        env=os.environ | {"PYTHONPATH": str(package)},
        check=True,
    )


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def _pid(server: embedded.Server) -> int:
    return int((server.data / "postmaster.pid").read_text().splitlines()[0])
