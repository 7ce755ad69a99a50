"""Connections that go dead without a word, as when a firewall forgets them: nobody waits for the
kernel to notice, which takes a quarter of an hour."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from random import Random
from time import monotonic
from typing import Any

import pytest

from flowfabric import App
from flowfabric.client import FlowFabric
from flowfabric.core.errors import ConnectionLost
from flowfabric.db import call, migrate, session
from flowfabric.db.connection import open_connection
from flowfabric.db.functions import LIST_LANES
from flowfabric.worker import claims
from support.database import Database
from worker.apps import working
from worker.waiting import eventually

from .proxy import Cut, Hole, Proxy, proxied

ANSWER_SECONDS = 1.5


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "ANSWER_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr(claims, "IDLE_POLL_SECONDS", 1.0)


async def test_a_caller_on_dead_connections_gets_his_answer_over_a_new_one(db: Database) -> None:
    """As with the usual settings, a connection is silent for as long as a caller has patience."""
    arguments = dict.fromkeys(LIST_LANES.arguments)
    async with proxied(db.url) as proxy, FlowFabric(proxy.url, pool_size=4) as client:
        await asyncio.gather(*(client.lanes.list() for _ in range(8)))
        assert sum(client.database.pool_use) > 1
        proxy.black_hole()
        began = monotonic()
        answer = client.database.call(LIST_LANES, **arguments, patience=ANSWER_SECONDS)
        assert await asyncio.wait_for(answer, 60) == []
        assert ANSWER_SECONDS <= monotonic() - began < 60
        await asyncio.wait_for(asyncio.gather(*(client.lanes.list() for _ in range(8))), 60)


async def test_a_good_bye_between_two_statements_is_a_lost_connection(db: Database) -> None:
    """The driver has read it and takes no more statements, but the connection is still open."""

    async def look(proxy: Proxy) -> None:
        async with open_connection(proxy.url) as connection:
            proxy.say_good_bye()
            await asyncio.sleep(0.1)
            await connection.fetchval("select 1")

    async with proxied(db.url) as proxy:
        with pytest.raises(ConnectionLost):
            await look(proxy)


async def test_a_client_that_opens_over_a_dead_connection_is_told(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(db.url) as proxy:

        async def verify(connection: Any) -> None:
            proxy.black_hole()
            await migrate.verify(connection)

        monkeypatch.setattr(session, "verify", verify)
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(FlowFabric(proxy.url).open(), 60)


async def test_a_caller_without_patience_is_told_what_happened(db: Database) -> None:
    async with proxied(db.url) as proxy, FlowFabric(proxy.url, pool_size=1) as client:
        await client.lanes.list()
        proxy.black_hole()
        with pytest.raises(ConnectionLost, match=r"no answer within 1\.5 s"):
            await asyncio.wait_for(
                client.database.call(LIST_LANES, **dict.fromkeys(LIST_LANES.arguments), patience=0),
                30,
            )


async def test_a_trial_of_hints_ends_if_its_connection_goes_dead(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(db.url) as proxy, FlowFabric(proxy.url) as client:
        listening = client.database.session("listening")
        await listening.listen("ff_any", lambda _: None, trial=False)
        proxy.black_hole()
        # Only now: on a busy machine, a good connection may take longer to answer.
        monkeypatch.setattr(call, "ANSWER_SECONDS", 0.2)
        assert listening._connection is not None
        trial = listening._try_hearing(listening._connection)
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(trial, 60)
        await listening.close()


@pytest.mark.slow(short=3)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(b"", b"flowfabric claims", id="the claims connect"),
        pytest.param(b"", b"flowfabric heartbeat", id="the heartbeat connects"),
        pytest.param(b"B", b"ff.register_worker(", id="the worker is registered"),
        pytest.param(b"P", b"ff.claim_executions(", id="a claim is prepared"),
        pytest.param(b"B", b"ff.claim_executions(", id="a claim is sent"),
        pytest.param(b"2", b"ff.claim_executions(", id="a claim is answered"),
        pytest.param(b"B", b"ff.complete_executions(", id="a result is sent"),
        pytest.param(b"2", b"ff.complete_executions(", id="a result is answered"),
        pytest.param(b"B", b'LISTEN "ff_ready"', id="LISTEN is sent"),
        pytest.param(b"2", b'LISTEN "ff_ready"', id="LISTEN is answered"),
        pytest.param(b"B", b'LISTEN "ff_test_', id="the trial listens"),
        pytest.param(b"B", b"pg_notify(", id="the trial sends its hint"),
        pytest.param(b"A", b"ff_test_", id="the trial hint arrives"),
        pytest.param(b"B", b'UNLISTEN "ff_test_', id="the trial ends"),
        pytest.param(b"B", b'UNLISTEN "ff_ready"', id="a busy worker stops listening"),
        pytest.param(b"A", b"ff_ready", id="a hint of work arrives"),
    ],
)
async def test_a_worker_goes_on_whenever_all_its_connections_go_dead(
    db: Database, kind: bytes, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works and receives hints again, whatever the connections were doing."""
    monkeypatch.setattr(session, "CONNECT_TIMEOUT_SECONDS", 2 * ANSWER_SECONDS)
    monkeypatch.setattr(session, "HEARING_SECONDS", ANSWER_SECONDS)
    async with proxied(db.url) as proxy:
        app = App(database_url=proxy.url)
        submitter = App(database_url=db.url)

        async def echo(n: int) -> int:
            return n

        app.task(name="echo")(echo)
        submitter.task(name="echo")(echo)
        proxy.hole = hole = Hole(kind, text)
        async with working(app, concurrency=1) as worker:
            for several in (0, 1, 10):
                runs = [await submitter.submit("echo", n) for n in range(several)]
                assert [await run.result(timeout=60) for run in runs] == list(range(several))
                await eventually(lambda: worker.is_idle)
            await asyncio.wait_for(hole.happened.wait(), 60)
            await eventually(lambda: worker._hints.is_listening and not worker._hints.are_missed)
        await submitter.close()
        await app.close()


async def test_a_claim_that_waits_for_work_polls_if_its_connection_goes_dead(db: Database) -> None:
    async with proxied(db.url) as proxy, FlowFabric(proxy.url) as client:
        app = App(database_url=db.url)
        app.task(name="echo")(lambda: None)
        proxy.hole = hole = Hole(b"B", b'LISTEN "ff_test_')
        claim = client.executions.claim(
            worker_id="w", worker_instance_id="w-1", max_wait=timedelta(seconds=60)
        )
        claiming = asyncio.create_task(claim)
        await asyncio.wait_for(hole.happened.wait(), 60)
        run = await app.submit("echo")
        assert [one.id for one in await asyncio.wait_for(claiming, 60)] == [run.id]
        await app.close()


async def test_a_worker_does_not_forget_a_claim_whose_answer_was_lost(db: Database) -> None:
    """The claim was committed, the server was away for longer than a claim waits, and the lease
    would last another half minute."""
    async with proxied(db.url) as proxy:
        app = App(database_url=proxy.url)
        submitter = App(database_url=db.url)

        async def echo(n: int) -> int:
            return n

        app.task(name="echo")(echo)
        submitter.task(name="echo")(echo)
        run = await submitter.submit("echo", 1)
        proxy.cut = cut = Cut("claim_executions")
        async with working(app):
            await asyncio.wait_for(cut.happened.wait(), 60)
            proxy.is_closed = True
            assert await db.fetchval("select ownership::text from ff.execution") == "leased"
            await asyncio.sleep(2.5)
            proxy.is_closed = False
            assert await run.result(timeout=60) == 1
        kinds = await db.fetch("select kind::text from ff.event order by version")
        assert [row[0] for row in kinds] == ["submitted", "claimed", "completed"]
        await submitter.close()
        await app.close()


@pytest.mark.slow(short=4, of="processes")
async def test_a_worker_says_once_that_its_database_is_lost_and_once_that_it_is_back(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(db.url) as proxy:
        app = App(database_url=proxy.url)
        app.task(name="echo")(lambda: None)
        where = proxy.url.partition("@")[2]

        def lines(text: str) -> list[str]:
            return [line for line in caplog.messages if text in line]

        with caplog.at_level("DEBUG"):
            async with working(app) as worker:
                await eventually(lambda: worker.is_idle)
                proxy.is_closed = True
                await eventually(lambda: not proxy.sever(Random(0)))
                await eventually(lambda: lines("database lost"))
                await eventually(lambda: len(lines("claim failed, retrying")) > 1)
                proxy.is_closed = False
                await eventually(lambda: lines("database is back"))
        await app.close()
    (gone,), (back,) = lines("database lost"), lines("database is back")
    assert gone.startswith(f"database lost, trying again until it is back: {where}: ")
    assert re.fullmatch(rf"database is back after \d\.\d s: {re.escape(where)}", back)
    told = [one for one in caplog.records if one.levelname == "WARNING"]
    assert [one.getMessage() for one in told] == [gone, back]
