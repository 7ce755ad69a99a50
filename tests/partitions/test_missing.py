"""Every face that shows rows of all partitions names the partition that does not answer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from flowfabric import Budget
from flowfabric.cli import events as events_command
from flowfabric.cli.output import Output
from flowfabric.core.errors import ConnectionLost
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint_in
from server.conftest import http, world
from server.stage import OURS, World
from worker.apps import app, folder, make_app, plain_environment, start_worker
from worker.waiting import eventually

from .conftest import NUMBER

__all__ = [
    "app", "folder", "http", "make_app", "plain_environment", "start_worker", "world",
]  # fmt: skip

AWAY = 3
NOTE = f"Not everything is shown: no answer from partition {AWAY}."
READS = (
    "/v1/executions",
    "/v1/executions/count",
    "/v1/flows",
    "/v1/minutes",
    "/v1/subscriptions",
    "/v1/approvals",
    "/v1/budgets",
)
PAGES = (
    "",
    "/executions",
    "/flows",
    "/tasks",
    "/tasks/one?name=add",
    "/approvals",
    "/subscriptions",
    "/bulk?verb=cancel&where=state%3Dwaiting",
)


@pytest.fixture
async def short(several, world: World, monkeypatch) -> World:
    """A server on eight partitions, of which one does not answer. Each has an execution."""
    client = await world.client()
    route = Route(OURS, "default", "add", frozenset())
    await client.executions.submit_many(
        [
            Submission(id=mint_in(partition), route=route, payload=b"[1]")
            for partition in range(NUMBER)
        ]
    )
    await client.budgets.create(Budget("tokens", tokens=1))
    world.start = await client.events.open(datetime(2020, 1, 1, tzinfo=UTC))
    await client.webhooks.add("crm", "https://hooks.example.com/")
    async with aclosing(aiter(client.subscriptions.consume("billing"))) as events:
        next = asyncio.ensure_future(anext(events))
        await eventually(client.subscriptions.list)
        next.cancel()
        await asyncio.gather(next, return_exceptions=True)
    assert client.database is (await world.app.client()).database
    call = client.database.call

    async def failing(statement, *, patience=10.0, **arguments):
        if arguments.get("partition_key") == AWAY:
            raise ConnectionLost(f"no answer of {statement.name}")
        return await call(statement, patience=patience, **arguments)

    monkeypatch.setattr(client.database, "call", failing)
    return world


async def test_every_answer_of_the_server_names_the_partition(short, http):
    found = {path: (await http.get(path)).json().get("missing_partitions") for path in READS}
    assert [path for path, missing in found.items() if missing != [AWAY]] == []


async def test_a_bulk_act_names_the_partition_that_it_did_not_reach(short, http):
    asked = {"where": "state=waiting", "reason": "no need"}
    dry = (await http.post("/v1/bulk/cancel", json=asked)).json()
    assert (dry["matches"], dry["missing_partitions"]) == (NUMBER - 1, [AWAY])
    done = (await http.post("/v1/bulk/cancel", json=asked | {"dry_run": False})).json()
    assert (done["handled"], done["missing_partitions"]) == (NUMBER - 1, [AWAY])


async def test_every_page_of_the_dashboard_names_the_partition(short, http):
    answers = {path: await http.get(f"/dashboard{path}") for path in PAGES}
    assert {path: one.status_code for path, one in answers.items()} == dict.fromkeys(PAGES, 200)
    assert [path for path, one in answers.items() if NOTE not in one.text] == []


async def test_flows_and_failures_name_the_partition(short):
    client = await short.client()
    assert (await client.flows.list()).missing == (AWAY,)
    assert (await client.executions.failures()).missing == (AWAY,)
    assert (await client.webhooks.list()).missing == (AWAY,)


async def test_the_printed_events_name_the_partition_once(short, capsys):
    client = await short.client()
    await events_command._print(client, short.start, False, {}, Output.TABLE)
    printed = capsys.readouterr()
    assert printed.err.count(f"no answer from partition {AWAY}") == 1
    assert printed.out.count("submitted") == NUMBER - 1
