"""Connections that go dead without a word, as when a firewall forgets them: nobody waits for the
kernel to notice, which takes a quarter of an hour."""

from __future__ import annotations

import asyncio
import re
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

from .proxy import Cut, Proxy, proxied

ANSWER_SECONDS = 1.5


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "ANSWER_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr(claims, "IDLE_POLL_SECONDS", 1.0)


async def test_a_caller_on_a_dead_connection_gets_his_answer_over_another(db: Database) -> None:
    async with proxied(db.url) as proxy, FlowFabric(proxy.url, pool_size=1) as client:
        await client.lanes.list()
        proxy.black_hole()
        began = monotonic()
        assert await asyncio.wait_for(client.lanes.list(), 60) == []
        assert ANSWER_SECONDS <= monotonic() - began < 60


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
        assert await asyncio.wait_for(trial, 60) is False
        await listening.close()


@pytest.mark.slow(short=4, of="processes")
async def test_a_worker_goes_on_after_all_its_connections_went_dead(db: Database) -> None:
    async with proxied(db.url) as proxy:
        app = App(database_url=proxy.url)
        submitter = App(database_url=db.url)

        async def echo(n: int) -> int:
            return n

        app.task(name="echo")(echo)
        submitter.task(name="echo")(echo)
        async with working(app):
            assert await (await submitter.submit("echo", 1)).result(timeout=60) == 1
            proxy.black_hole()
            # A worker that waits for a hint does not know; its next poll finds out.
            run = await submitter.submit("echo", 2)
            assert await run.result(timeout=60) == 2
        await submitter.close()
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
