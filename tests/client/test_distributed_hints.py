"""Where the tables are distributed, the client sends the hints of new work, and workers poll. A row
of ff.meta says so; the tables of these tests are those of one server."""

from __future__ import annotations

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.db import functions
from support.hints import hints
from worker.apps import working
from worker.waiting import eventually

MARK = "insert into ff.meta (name, value) values ('distributed', 'true')"


@pytest.fixture
async def distributed(db):
    await db.execute(MARK)
    return db


def submissions(count):
    route = Route("test", "mail", "tests.work")
    return [Submission(id=mint(), route=route, payload=b"null") for _ in range(count)]


@pytest.fixture
def hint_arguments(monkeypatch):
    """Whether each submit asked the engine for a hint."""
    from flowfabric.db.session import Database

    asked = []
    call = Database.call

    async def noticing(self, statement, **arguments):
        if statement is functions.SUBMIT_EXECUTIONS:
            asked.append(arguments["hint"])
        return await call(self, statement, **arguments)

    monkeypatch.setattr(Database, "call", noticing)
    return asked


async def test_the_client_sends_one_hint_for_a_lane(distributed, hint_arguments):
    async with FlowFabric(distributed.url, namespace="test") as client:

        async def act():
            await client.executions.submit_many(submissions(3))
            await client.executions.close()

        assert await hints(distributed, "ff_ready", act) == ["0 test mail"]
    assert set(hint_arguments) == {False}


async def test_on_one_server_the_engine_sends_it(db, hint_arguments):
    async with FlowFabric(db.url, namespace="test") as client:

        async def act():
            await client.executions.submit_many(submissions(3))
            await client.executions.close()

        assert await hints(db, "ff_ready", act) == ["0 test mail"]
    assert set(hint_arguments) == {True}


@pytest.fixture
def pauses(monkeypatch):
    """How long each idle worker waits for a hint before it claims again, in seconds."""
    from flowfabric.worker.claims import Claimer

    found = []
    wait = Claimer._wait

    async def noticing(self, seconds):
        found.append(seconds)
        await wait(self, seconds)

    monkeypatch.setattr(Claimer, "_wait", noticing)
    return found


@pytest.mark.parametrize(("is_distributed", "pause"), [(False, 10.0), (True, 0.5)])
async def test_workers_of_a_distributed_database_poll_more_often(
    db, make_app, pauses, is_distributed, pause
):
    if is_distributed:
        await db.execute(MARK)
    app = make_app()

    @app.task(name="quick")
    async def quick() -> None:
        """Do nothing."""

    async with working(app):
        await eventually(lambda: pauses)
    assert set(pauses) == {pause}
