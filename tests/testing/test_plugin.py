"""The plugin in suites of others: found by its entry point, whichever plugin runs coroutines."""

from __future__ import annotations

import statistics
from importlib.metadata import entry_points
from time import perf_counter

import pytest

APP = """
    from datetime import timedelta
    from flowfabric import App, Context

    app = App()

    @app.task
    async def onboard(ctx: Context, user_id: int) -> str:
        await ctx.sleep(timedelta(days=1))
        return "in"

    @app.task
    def broken() -> None:
        raise LookupError("no such thing")
"""
# Run by whichever plugin: what is in braces are its words.
TESTS = """
    import asyncio
    import pytest
    {imports}
    from app import onboard, broken
    from flowfabric import App

    {mark}

    {fixture}
    async def started(ff):
        run = await ff.submit(onboard, 7)
        yield run
        assert await run.state() == "completed"
        {after}

    async def test_the_tour(ff):
        run = await ff.submit(onboard, 7)
        await ff.run_until(run, "delayed")
        await ff.skip(days=1)
        assert await ff.run(run) == "in"

    async def test_a_fixture_may_use_it_too(started, ff):
        assert await ff.run(started) == "in"

    class TestInAClass:
        async def test_every_test_has_a_database_of_its_own(self, ff, ff_db):
            assert ff.database_url == ff_db.url
            assert ff.submitted() == []
            await onboard.submit(1)
            ff.assert_submitted(onboard, 1)

    async def test_a_handler_may_be_left_running(ff):
        app = App()

        @app.task
        async def endless() -> None:
            await asyncio.sleep(3600)

        run = await ff.submit(endless)
        await ff.run_until(run, "active")

    def test_a_plain_one(ff):
        assert ff.call(ff.run(onboard, 7)) == "in"
"""
ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")
MODE = (*ASYNCIO, "-o", "asyncio_mode=auto")
AUTO = TESTS.format(imports="", mark="", fixture="@pytest.fixture", after="")


@pytest.fixture
def ours(cluster):
    """For a suite that need not start a server of its own."""
    return {"FLOWFABRIC_TEST_DATABASE_URL": cluster.url}


def test_pytest_finds_it():
    (found,) = (one for one in entry_points(group="pytest11") if one.name == "flowfabric")
    assert found.value == "flowfabric.testing.plugin"


@pytest.mark.slow(short=4, of="processes")
def test_under_pytest_asyncio_in_auto_mode(suite, ours):
    outcome = suite(*MODE, app=APP, test_a=AUTO, **ours)
    assert outcome.code == 0, outcome.output
    assert outcome.count("passed") == 5


@pytest.mark.slow(short=2, of="suites of users")
def test_under_pytest_asyncio_in_strict_mode(suite, ours):
    tests = TESTS.format(
        imports="import pytest_asyncio",
        mark="pytestmark = pytest.mark.asyncio",
        fixture="@pytest_asyncio.fixture",
        after="",
    )
    # A plain test is none of pytest-asyncio's business, as it says if it is marked.
    tests = tests.replace("def test_a_plain_one", "def no_test")
    outcome = suite(*ASYNCIO, app=APP, test_a=tests, **ours)
    assert outcome.code == 0, outcome.output
    assert outcome.count("passed") == 4


@pytest.mark.slow(short=2, of="suites of users")
def test_under_anyio(suite, ours):
    tests = TESTS.format(
        imports="",
        mark="""pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend():
        return "asyncio"
    """,
        fixture="@pytest.fixture",
        # Its loop ends with this fixture: nobody can close what was opened behind the test.
        after="await ff.close()",
    )
    outcome = suite("-p", "no:asyncio", app=APP, test_a=tests, **ours)
    assert outcome.code == 0, outcome.output
    assert outcome.count("passed") == 5


@pytest.mark.slow(short=2, of="suites of users")
def test_the_processes_of_xdist_share_one_server(suite, tmp_path):
    noting = """
    @pytest.fixture(autouse=True)
    def note(ff_postgres, ff_db, worker_id):
        with open("notes", "a") as notes:
            notes.write(f"{worker_id} {ff_postgres.url} {ff_db.name}\\n")
    """
    outcome = suite(
        *(*MODE, "-n", "2", "--dist", "loadscope"),
        app=APP,
        test_a=AUTO + noting,
        test_b=AUTO + noting,
    )
    assert outcome.code == 0, outcome.output
    assert outcome.count("passed") == 10
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    processes, servers, databases = (set(column) for column in zip(*notes, strict=True))
    assert (len(processes), len(servers), len(databases)) == (2, 1, 10)


@pytest.mark.slow(short=2, of="suites of users")
def test_a_suite_that_does_not_ask_for_it_starts_nothing(suite):
    outcome = suite(
        *("--setup-show", "-p", "no:asyncio"),
        test_a="""
        import threading

        def test_nothing():
            assert threading.active_count() == 1
        """,
        FLOWFABRIC_TEST_DATABASE_URL="postgresql://nowhere.invalid/none",
    )
    assert outcome.code == 0, outcome.output
    assert "ff" not in outcome.output.partition("collected")[2]


@pytest.mark.slow(short=2, of="suites of users")
def test_no_test_reaches_the_database_of_the_environment(suite, ours):
    outcome = suite(
        *MODE,
        app=APP,
        test_a="""
        import os
        from app import app, onboard

        async def test_submits(ff):
            await onboard.submit(7)
            ff.assert_submitted(onboard, 7)
            assert os.environ["DATABASE_URL"] == "postgresql://mine.invalid/mine"

        def test_afterwards():
            assert app.settings.database_url == "postgresql://live.invalid/live"
        """,
        FLOWFABRIC_DATABASE_URL="postgresql://live.invalid/live",
        DATABASE_URL="postgresql://mine.invalid/mine",
        **ours,
    )
    assert outcome.code == 0, outcome.output


@pytest.mark.slow(short=2, of="suites of users")
def test_a_failure_points_at_the_test_and_shows_the_handler(suite, ours):
    outcome = suite(
        *MODE,
        app=APP,
        test_a="""
        from app import broken, onboard

        async def test_fails(ff):
            await ff.run(broken)

        async def test_stands_still(ff):
            run = await ff.submit(onboard, 7)
            await ff.run_until(run, "completed")

        async def test_misses(ff):
            await ff.submit(onboard, 8)
            ff.assert_submitted(onboard, 7)
        """,
        **ours,
    )
    assert outcome.count("failed") == 3, outcome.output
    assert 'raise LookupError("no such thing")' in outcome.output
    assert "app.onboard is delayed and nothing can run now" in outcome.output
    assert "app.onboard(user_id=7) should have been submitted once, and was never" in outcome.output
    assert "harness.py" not in outcome.output.partition("test_stands_still")[2]


@pytest.mark.slow(short=2, of="suites of users")
async def test_another_server_is_used_if_named_and_left_as_it_was(suite, cluster, conn, tmp_path):
    outcome = suite(
        *("-p", "no:asyncio"),
        test_a="""
        from pathlib import Path

        def test_one(ff_db):
            Path("url").write_text(ff_db.url)
            Path("name").write_text(ff_db.name)

        def test_two(ff_db):
            pass
        """,
        FLOWFABRIC_TEST_DATABASE_URL=cluster.url,
    )
    assert outcome.code == 0, outcome.output
    name = (tmp_path / "name").read_text()
    assert (tmp_path / "url").read_text() == cluster.url_of(name)
    template = name.rpartition("_")[0]
    assert not await conn.fetch("select from pg_database where starts_with(datname, $1)", template)


def test_a_fresh_database_costs_little(ff_postgres, capsys):
    """From one test to the next: made, asked once and removed. The bound is for a busy machine; on
    an idle one with two cores it takes 12 ms to make one and 5 ms to remove it."""
    ff_postgres.drop(ff_postgres.database())
    spent = []
    for _ in range(15):
        began = perf_counter()
        database = ff_postgres.database()
        assert database.submitted() == []
        ff_postgres.drop(database)
        spent.append(perf_counter() - began)
    with capsys.disabled():
        print(f"\na fresh database: {statistics.median(spent) * 1000:.0f} ms")
    assert min(spent) < 0.5
