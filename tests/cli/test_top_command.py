"""`flowfabric top`: once for scripts, live on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import sys

from flowfabric.client import FlowFabric
from support.factories import NAMESPACE


async def test_a_pipe_gets_one_snapshot_as_json(ff, make):
    for state in ("leased", "delayed", "waiting"):
        await make.execution(state, lane="mail")

    finished = await ff("top")

    assert finished.code == 0
    (lane,) = finished.line["lanes"]
    assert (lane["waiting"], lane["delayed"], lane["active"]) == (1, 1, 1)
    assert lane["submitted"] == 3
    assert lane["submitted_per_second"] == 0.3
    assert lane["is_more_waiting"] is lane["is_more_timed"] is False


async def test_a_worker_is_shown_with_what_it_runs(ff, db, make):
    lease = (await make.execution("leased")).last_lease
    holder = await db.fetchrow(
        "select worker_id, worker_instance_id from ff.execution where lease_id = $1", lease.lease_id
    )
    worker_id, instance = holder
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        await client.workers.register(worker_id=worker_id, worker_instance_id=instance)

    (worker,) = (await ff("top", "-o", "json")).line["workers"]

    assert (worker["worker_instance_id"], worker["running"]) == (instance, 1)


async def test_a_table_shows_lanes_and_says_if_nobody_works(ff, make):
    await make.execution("waiting")

    finished = await ff("top", "--once", "-o", "table")

    head, _, titles, row, *rest = finished.out.splitlines()
    assert "no worker" in head
    assert titles.split()[:3] == ["LANE", "STATE", "WAITING"]
    assert row.split()[1:3] == ["active", "1"]
    assert "no worker is alive" in rest[-1]


async def test_running_executions_show_their_progress(ff, make, engine):
    held = await make.execution("leased")
    await make.execution("leased")
    assert (await ff("top")).line["progress"] == []
    await engine.progress(held.lease, 40, "half of the pages")
    (shown,) = (await ff("top")).line["progress"]
    assert (shown["percent"], shown["message"]) == (40, "half of the pages")
    table = await ff("top", "-o", "table")
    assert "40 %, half of the pages" in table.out


async def test_an_empty_database_says_so(ff):
    finished = await ff("top", "--once", "-o", "table")

    assert "no lanes yet" in finished.out


async def test_a_terminal_sees_it_change_until_ctrl_c(db, make):
    await make.execution("waiting", lane="mail")
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric", "top", "--interval", "0.2"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
            "COLUMNS": "100",
            "LINES": "20",
            "FLOWFABRIC_DATABASE_URL": db.url,
            "FLOWFABRIC_NAMESPACE": NAMESPACE,
        },
    )
    os.close(theirs)
    shown = ""

    async def until(text: str) -> None:
        nonlocal shown
        async with asyncio.timeout(60):
            while not re.search(text, shown):
                shown += (await asyncio.to_thread(os.read, ours, 65536)).decode()

    await until(r"active +1 ")
    shown = ""
    await make.execution("waiting", lane="mail")
    await until(r"active +2 ")
    process.send_signal(signal.SIGINT)

    assert await asyncio.wait_for(process.wait(), 60) == 0
    os.close(ours)
    assert "Traceback" not in shown


async def test_an_unreachable_database_ends_with_five(ff):
    finished = await ff("top", "--database-url", "postgresql://u:secret@127.0.0.1:1/x")

    assert finished.code == 5
    assert "secret" not in finished.err
