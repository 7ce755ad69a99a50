"""An app finds its database, says what is wrong with it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from flowfabric import App, FlowFabric, InvalidInput, SchemaMismatch, Unavailable
from support.isolation import chosen_binaries
from support.proofs import some_of
from support.timing import is_ever_within
from worker.apps import working
from worker.waiting import eventually

URL = "postgresql://user:secret@db.example/shop"


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder that the user of the server can enter; pytest's own is closed to all but root."""
    folder = Path(tempfile.mkdtemp(prefix="ff-app-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_url_comes_from_the_call_then_our_variable_then_the_common_one(monkeypatch):
    assert App().settings.database_url is None
    monkeypatch.setenv("DATABASE_URL", "postgresql://common")
    assert App().settings.database_url == "postgresql://common"
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", "postgresql://ours")
    assert App().settings.database_url == "postgresql://ours"
    assert App(database_url=URL).settings.database_url == URL
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", "")
    assert App().settings.database_url == "postgresql://common"


def test_other_settings_come_from_the_call_then_the_environment(monkeypatch):
    monkeypatch.setenv("FLOWFABRIC_NAMESPACE", "blue")
    monkeypatch.setenv("FLOWFABRIC_LEASE_TTL", "5")
    assert App().settings.namespace == "blue"
    assert App().settings.lease_ttl == timedelta(seconds=5)
    assert App(namespace="red").settings.namespace == "red"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FLOWFABRIC_LEASE_TTL", "soon"),
        ("FLOWFABRIC_LEASE_TTL", "0.5"),
        ("FLOWFABRIC_NAMESPACE", "a b"),
        ("FLOWFABRIC_LOG_FORMAT", "yaml"),
        ("FLOWFABRIC_DRAIN_TIMEOUT", "-1"),
    ],
)
def test_a_bad_setting_is_refused(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)

    with pytest.raises(InvalidInput) as caught:
        App()

    field = variable.removeprefix("FLOWFABRIC_").lower()
    assert field in str(caught.value).lower()


@pytest.mark.slow(short=6, of="embedded servers")
async def test_without_a_url_it_starts_a_server_of_its_own_and_migrates(project, capsys, caplog):
    caplog.set_level("INFO")
    app = App(project=project)
    assert app.database_url is None

    @app.task
    async def work(n: int) -> int:
        return n + 1

    async with app:
        run = await work.submit(1)
        async with working(app):
            assert await run.result(timeout=60) == 2
        url = app.database_url
        assert url == app._server.url
        assert (project / ".flowfabric").is_dir()
    assert capsys.readouterr().err.startswith(
        f"flowfabric: no database is set, so this app uses a Postgres in {project}/.flowfabric. "
        "To use yours, set FLOWFABRIC_DATABASE_URL or DATABASE_URL.\n"
    )
    assert f", database embedded in {project}/.flowfabric" in caplog.text

    # The last one out stops it.
    with pytest.raises((OSError, asyncpg.PostgresError)):
        await asyncpg.connect(url, timeout=5)


@pytest.mark.slow(short=6, of="embedded servers")
async def test_two_loops_that_start_at_once_share_one_server_and_stop_it(project):
    app = App(project=project)

    @app.task(name="shop.work")
    async def work(n: int) -> int:
        return n

    barrier = threading.Barrier(2)
    errors: list[BaseException] = []

    def run() -> None:
        async def submit() -> None:
            await work.submit(1)
            await asyncio.to_thread(barrier.wait, 20)
            await app.close()

        try:
            asyncio.run(submit())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 40)

    assert errors == []
    assert app._server is None
    (pid,) = list((project / ".flowfabric").rglob("postmaster.pid")) or [None]
    assert pid is None


async def test_a_database_without_the_schema_names_the_command(cluster, template):
    name = f"{template.name}_empty"
    administration = await asyncpg.connect(cluster.url)
    await administration.execute(f"create database {name}")
    try:
        app = App(database_url=cluster.url_of(name))

        @app.task
        async def work() -> None: ...

        for _ in range(2):  # the failure is not remembered
            with pytest.raises(SchemaMismatch, match="flowfabric db migrate"):
                await work.submit()
        await app.prepare()
        run = await work.submit()
        assert await run.state() == "waiting"
        await app.close()
    finally:
        await administration.execute(f"drop database {name} with (force)")
        await administration.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@127.0.0.1:1/shop",
        "postgresql://user:secret@no-such-host.invalid/shop",
        "postgresql:///shop?host=/no/such/folder",
    ],
)
async def test_an_unreachable_database_is_said_to_be_so_at_once(url):
    app = App(database_url=url)

    @app.task
    async def work() -> None: ...

    async def submit() -> None:
        with pytest.raises(Unavailable) as caught:
            await work.submit()
        told.append(str(caught.value))

    told: list[str] = []
    assert await is_ever_within(8, submit)
    assert "Cannot reach the database" in told[0]
    assert "secret" not in told[0]
    await app.close()


async def test_a_missing_database_is_said_to_be_so(cluster):
    app = App(database_url=cluster.url_of("no_such_database"))

    with pytest.raises(Unavailable, match="no_such_database"):
        await app.client()
    await app.close()


async def test_a_url_that_is_none_is_refused():
    app = App(database_url="mysql://db/shop")

    with pytest.raises((InvalidInput, Unavailable), match="mysql"):
        await app.client()
    await app.close()


async def test_closing_leaves_no_connection_no_task_and_no_thread(db, make_app):
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    app = make_app()

    @app.task
    async def work(n: int) -> int:
        return n

    @app.task
    def plain(n: int) -> int:
        return n

    waiting = asyncio.create_task((await work.using(lane="nobody").submit(0)).result())
    async with working(app, lanes=["default"]):
        runs = [*await work.submit_many([(1,)] * 20), *await plain.submit_many([(1,)] * 20)]
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)
    await asyncio.to_thread(plain.submit_sync, 2)
    await app.close()

    with pytest.raises(Unavailable):
        await waiting
    assert asyncio.all_tasks() - tasks == set()
    left = {t for t in threading.enumerate() if t.name.startswith("flowfabric")} - threads
    await eventually(lambda: not any(thread.is_alive() for thread in left))
    await eventually(lambda: _alone(db))


async def _alone(db) -> bool:
    count: int = await db.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name like 'flowfabric%'"
    )
    return count == 0


async def test_an_app_can_be_used_again_after_it_was_closed(db, make_app):
    app = make_app()

    @app.task
    async def work() -> int:
        return 1

    for _ in range(2):
        async with working(app):
            assert await (await work.submit()).result(timeout=60) == 1
        assert await asyncio.to_thread(work.submit_sync)
        await app.close()
        await app.close()


SMOKE = """
    import asyncio, sys, time
    from flowfabric import App, Context

    app = App()

    @app.task
    async def greet(ctx: Context, name: str) -> str:
        return f"Hello, {name}"

    @app.task
    def shout(text: str) -> str:
        return text.upper()

    async def main():
        async with app:
            worker = asyncio.create_task(app.run_worker(concurrency=4))
            runs = [await greet.submit(str(n)) for n in range(5)] + [await shout.submit("hey")]
            print([await run.result(timeout=60) for run in runs])
            worker.cancel()
            await asyncio.wait([worker])

    %s
"""
ASYNC = "asyncio.run(main())"
SYNC = "print(shout.submit_sync('sync').id != '')"
BOTH = f"{SYNC}; {ASYNC}; {SYNC}"


def complaints(stderr: str) -> list[str]:
    """What was said, but for asyncio's remarks on a busy machine."""
    return [line for line in stderr.splitlines() if not line.startswith("Executing <")]


@pytest.mark.parametrize("end", some_of([ASYNC, SYNC, BOTH], 0), ids=["async", "sync", "both"])
def test_a_program_ends_without_a_warning(db, tmp_path, end):
    (tmp_path / "smoke.py").write_text(textwrap.dedent(SMOKE) % end)

    finished = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "smoke.py"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "FLOWFABRIC_DATABASE_URL": db.url},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert finished.returncode == 0, finished.stderr
    assert complaints(finished.stderr) == []
    if end == ASYNC:
        assert finished.stdout == f"{[f'Hello, {n}' for n in range(5)] + ['HEY']}\n"


@pytest.mark.slow(short=6, of="embedded servers")
def test_a_synchronous_program_with_a_server_of_its_own_ends_cleanly(project):
    (project / "smoke.py").write_text(textwrap.dedent(SMOKE) % SYNC)

    finished = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "smoke.py"],
        cwd=project,
        env={"PATH": os.environ["PATH"], "FLOWFABRIC_EMBEDDED": "1", **chosen_binaries()},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert finished.returncode == 0, finished.stderr
    assert complaints(finished.stderr) == []
    assert not list((project / ".flowfabric").rglob("postmaster.pid"))


async def test_the_pool_is_closed_for_good(db):
    client = await FlowFabric(db.url).open()
    await client.close()

    with pytest.raises(Unavailable, match="closed"):
        await client.lanes.list()
