"""A start that fails says what happened, where, and what to do next."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess

import pytest

from flowfabric import embedded
from flowfabric.embedded.errors import start_failed

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


def test_a_setting_the_server_does_not_like_is_quoted_from_its_log(project, is_up):
    with pytest.raises(embedded.StartFailed) as caught:
        embedded.start(project, options={"shared_buffers": "nonsense"})
    assert "did not start" in str(caught.value)
    assert 'invalid value for parameter "shared_buffers": "nonsense"' in str(caught.value)
    assert str(project / ".flowfabric" / "postgres.log") in str(caught.value)
    embedded.start(project).release()
    assert not is_up(project)


def test_only_the_last_lines_of_this_start_are_quoted(project):
    for attempt in ("first", "second"):
        with pytest.raises(embedded.StartFailed, match=attempt) as caught:
            embedded.start(project, options={"shared_buffers": attempt})
    assert "first" not in str(caught.value)


def test_a_project_that_does_not_exist_is_to_be_created(folder):
    with pytest.raises(embedded.FolderNotWritable, match=r"mkdir -p .*/absent"):
        embedded.start(folder / "absent")


def test_a_file_in_place_of_the_folder_is_pointed_out(new_project):
    (new_project / ".flowfabric").touch()
    with pytest.raises(embedded.FolderNotWritable, match=r"\.flowfabric is not a folder"):
        embedded.start(new_project)


@as_root
def test_a_folder_that_cannot_be_written_is_named(new_project, new_process):
    nobody = pwd.getpwnam("nobody").pw_uid
    error, message = new_process(uid=nobody).start(new_project)
    assert error == "FolderNotWritable"
    assert f"{new_project}/.flowfabric" in message
    assert "Permission denied" in message


@as_root
def test_a_folder_of_another_user_is_named(project, new_process):
    nobody = pwd.getpwnam("nobody").pw_uid
    error, message = new_process(uid=nobody).start(project)
    assert error == "FolderNotWritable"
    assert f"{project}/.flowfabric" in message


@as_root
def test_a_user_without_a_name_is_told_that_it_needs_one(new_project, new_process):
    nameless = 54321
    new_project.chmod(0o777)
    error, message = new_process(uid=nameless).start(new_project)
    assert error == "StartFailed"
    assert "could not look up effective user ID 54321" in message
    assert "/etc/passwd" in message


def test_a_program_that_reports_a_full_disk_means_a_full_disk(new_project, folder, monkeypatch):
    programs = folder / "programs"
    programs.mkdir()
    for name in ("postgres", "initdb"):
        program = programs / name
        program.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "{name} (PostgreSQL) 17.1" && exit\n'
            'echo "initdb: error: could not write file: No space left on device" >&2\nexit 1\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", str(programs))
    with pytest.raises(embedded.DiskFull, match=f"df -h {new_project}"):
        embedded.start(new_project)
    assert not any((new_project / ".flowfabric" / "postgres").iterdir())


def fill(path):
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.fixture
def small_disk(folder):
    """A disk with room for a server's data, and not for much more."""
    disk = folder / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs", disk],
        check=False,
        capture_output=True,
    )
    if not made or made.returncode != 0:
        pytest.skip("this system mounts nothing for us")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_disk_too_full_for_new_data_is_told_from_other_failures(small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(bytes(44 * 1024 * 1024))
    with pytest.raises(embedded.DiskFull, match="Free some space"):
        embedded.start(small_disk)
    filler.unlink()
    with embedded.start(small_disk) as server:
        assert server.started


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_disk_too_full_to_start_on_is_told_from_other_failures(small_disk):
    embedded.start(small_disk).release()
    fill(small_disk / "filler")
    with pytest.raises(embedded.DiskFull, match="df -h"):
        embedded.start(small_disk)
    (small_disk / "filler").unlink()
    with embedded.start(small_disk) as server:
        assert server.started


def test_a_server_that_said_nothing_is_reported_as_such(tmp_path):
    error = start_failed("It did not start", tmp_path, "\n\n")
    assert isinstance(error, embedded.StartFailed)
    assert "(nothing was logged)" in str(error)
