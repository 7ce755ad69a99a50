"""Whatever was killed, the next start gets a working server with the data in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading

import asyncpg
import pytest

from flowfabric import embedded
from flowfabric.embedded import postmaster
from flowfabric.embedded.folder import Folder


def test_a_killed_server_is_started_again_with_its_data(project, query, kill_server):
    server = embedded.start(project)
    query(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
    kill_server(project)
    with embedded.start(project) as again:
        assert again.started
        assert query(again.url, "SELECT answer FROM kept") == 42
        server.release()
        assert query(again.url, "SELECT 1") == 1


def test_a_leftover_process_id_that_another_process_has_now_is_not_believed(
    project, query, kill_server
):
    server = embedded.start(project)
    owner = server.data.stat()
    kill_server(project)
    as_root = os.geteuid() == 0
    bystander = subprocess.Popen(
        ["sleep", "600"],
        user=owner.st_uid if as_root else None,
        group=owner.st_gid if as_root else None,
        extra_groups=[] if as_root else None,
    )
    try:
        socket_lock = server.data.parent / ".s.PGSQL.5432.lock"
        for lock in (server.data / "postmaster.pid", socket_lock):
            lines = lock.read_text().splitlines()
            lock.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
        with embedded.start(project) as again:
            assert again.started
            assert query(again.url, "SELECT 1") == 1
        server.release()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_busy_orphan_of_a_killed_server_is_ended(project, query, kill_server, monkeypatch):
    monkeypatch.setattr("flowfabric.embedded.postmaster._ORPHAN_SECONDS", 0.2)
    server = embedded.start(project)

    def work() -> None:
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            query(server.url, "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO%' AND state = 'active'"
        while not query(server.url, busy):
            pass
        kill_server(project)
        with embedded.start(project) as again:
            assert again.started
            assert query(again.url, "SELECT 1") == 1
        server.release()
    finally:
        worker.join(timeout=60)
    assert not worker.is_alive()


def test_a_start_waits_for_a_server_that_is_stopping(project, server_pid, wait_until, monkeypatch):
    server = embedded.start(project)
    looks: list[postmaster.State] = []
    look = postmaster._state

    def noted(folder: Folder) -> postmaster.State:
        looks.append(look(folder))
        return looks[-1]

    monkeypatch.setattr(postmaster, "_state", noted)

    async def scenario() -> None:
        connection = await asyncpg.connect(server.url)
        # A "smart" shutdown waits for the connection to end.
        os.kill(server_pid(project), signal.SIGTERM)
        stopping = asyncio.to_thread(
            wait_until, lambda: "stopping" in (server.data / "postmaster.pid").read_text()
        )
        await stopping
        starting = asyncio.create_task(asyncio.to_thread(embedded.start, project))
        # It has looked twice, so the first look did not satisfy it.
        await asyncio.to_thread(wait_until, lambda: looks[:2] == [postmaster.State.CHANGING] * 2)
        assert not starting.done()
        await connection.close()
        again = await starting
        assert again.started
        again.release()

    asyncio.run(scenario())
    server.release()


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_server_that_is_too_busy_to_answer_is_waited_for(project, server_pid, new_process):
    with embedded.start(project) as server:
        pid = server_pid(project)
        os.kill(pid, signal.SIGSTOP)
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(400)]
        try:
            for client in crowd:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.connect(str(server.data.parent / ".s.PGSQL.5432"))
            assert postmaster._state(Folder(project)) is postmaster.State.CHANGING
            process = new_process()
            process.tell_start(project)
        finally:
            for client in crowd:
                client.close()
            os.kill(pid, signal.SIGCONT)
        assert process.answer() == [server.url, False]


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_killed_making_leaves_nothing_half_made(new_project, new_process, query, wait_until):
    process = new_process()
    process.tell_start(new_project)
    private = new_project / ".flowfabric" / "postgres"
    wait_until(lambda: list(private.glob("data.*/base")))
    process.kill()
    with embedded.start(new_project) as server:
        assert server.started
        assert query(server.url, "SELECT 1") == 1
    assert [path.name for path in private.iterdir()] == ["data"]


def test_an_interrupted_start_leaves_neither_a_user_nor_a_draft(project, monkeypatch, is_up):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("flowfabric.embedded.postmaster._has_started_or_died", interrupted)
        with pytest.raises(KeyboardInterrupt):
            embedded.start(project)
    assert not any((project / ".flowfabric" / "users").iterdir())
    embedded.start(project).release()
    assert not is_up(project)


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_server_whose_starter_was_killed_before_it_listened_is_used(
    project, new_process, query, wait_until
):
    process = new_process()
    process.tell_start(project)
    wait_until(lambda: (project / ".flowfabric/postgres/data/postmaster.pid").exists())
    process.kill()
    with embedded.start(project) as server:
        assert query(server.url, "SELECT 1") == 1
