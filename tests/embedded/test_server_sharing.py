"""Processes share a server; the last one out stops it, however the others went."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from flowfabric import embedded


def test_processes_that_start_at_once_share_one_server(new_project, new_process, query, is_up):
    processes = [new_process() for _ in range(4)]
    for process in processes:
        process.tell_start(new_project)
    answers = [process.answer() for process in processes]
    assert len({url for url, _ in answers}) == 1
    assert sorted(started for _, started in answers) == [False, False, False, True]
    assert query(answers[0][0], "SELECT 1") == 1
    for process in processes:
        assert is_up(new_project)
        process.ask("server.release()")
    assert not is_up(new_project)


def test_threads_that_start_at_once_share_one_server(project, is_up):
    servers: list[embedded.Server] = []
    threads = [
        threading.Thread(target=lambda: servers.append(embedded.start(project))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.started for server in servers) == [False, False, True]
    for server in servers:
        assert is_up(project)
        server.release()
    assert not is_up(project)


def test_the_server_outlives_the_process_that_started_it(project, new_process, query, is_up):
    first, second = new_process(), new_process()
    first.start(project)
    url, started = second.start(project)
    assert not started
    assert first.end() == 0
    assert query(url, "SELECT 1") == 1
    second.ask("server.release()")
    assert not is_up(project)


def test_a_process_that_ends_without_releasing_counts_as_out(project, new_process, is_up):
    process = new_process()
    process.start(project)
    assert process.end() == 0
    assert not is_up(project)


def test_releasing_twice_counts_once(project, new_process, is_up):
    server = embedded.start(project)
    other = new_process()
    other.start(project)
    server.release()
    server.release()
    server.stop()
    assert is_up(project)
    other.ask("server.release()")
    assert not is_up(project)


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_killed_process_leaves_the_server_to_the_next_and_is_no_user_any_more(
    project, new_process, query, is_up
):
    process = new_process()
    url, _ = process.start(project)
    process.kill()
    assert is_up(project)
    with embedded.start(project) as server:
        assert not server.started
        assert query(url, "SELECT 1") == 1
    assert not is_up(project)
    assert not any((project / ".flowfabric" / "users").iterdir())


def test_stop_does_not_ask_whether_others_use_the_server(project, new_process, is_up):
    process = new_process()
    process.start(project)
    embedded.start(project).stop()
    assert not is_up(project)
    process.ask("server.release()")
    assert process.start(project)[1]


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_forked_child_neither_stops_the_server_nor_counts_as_a_user(project, new_process, is_up):
    parent = new_process()
    parent.start(project)
    # The child releases, then leaves by way of atexit.
    status = parent.ask("os.waitpid(pid, 0)[1] if (pid := os.fork()) else sys.exit(server.stop())")
    assert status == 0
    assert is_up(project)
    # This one lives on when its parent is killed.
    orphan = parent.ask("pid if (pid := os.fork()) else __import__('time').sleep(600)")
    parent.kill()
    try:
        embedded.start(project).release()
        assert not is_up(project)
    finally:
        os.kill(orphan, signal.SIGKILL)


@pytest.mark.slow(short=6, of="embedded servers")
def test_ctrl_c_in_the_terminal_of_its_starter_does_not_reach_the_server(
    project, new_process, query, is_up
):
    process = new_process()
    url, _ = process.start(project)
    with embedded.start(project):
        os.killpg(process.popen.pid, signal.SIGINT)
        assert process.popen.wait(timeout=60) != 0
        assert query(url, "SELECT 1") == 1
    assert not is_up(project)


@pytest.mark.slow(short=6, of="embedded servers")
def test_the_server_is_nobodys_child_and_leaves_no_zombie(project, server_pid, wait_until):
    with embedded.start(project):
        pid = server_pid(project)
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != os.getpid()
        assert os.getsid(pid) != os.getsid(0)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.slow(short=6, of="embedded servers")
def test_releasing_after_the_project_was_deleted_is_no_error(
    project, folder, server_pid, wait_until
):
    server = embedded.start(project)
    pid = server_pid(project)
    (project / ".flowfabric").rename(folder / "gone")
    try:
        server.release()
    finally:
        os.kill(pid, signal.SIGINT)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
