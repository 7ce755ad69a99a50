"""Databases that earlier releases left: migrated to the head they equal a fresh installation,
their executions can be worked on, and clients of that release go on calling. See dumps/README.md.
"""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.ids import uuid7
from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection
from flowfabric.db.library import package_source
from support.invariants import invariants_function

DUMPS = Path(__file__).parent / "dumps"
NAMES = sorted(path.stem for path in DUMPS.glob("*.sql"))
LEASE = timedelta(seconds=60)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture(params=NAMES)
def old(request, cluster, url):
    """The name of an earlier release; the test's database is as that release left it."""
    _check_that_it_is_current(request.param)
    restore(cluster, url, (DUMPS / f"{request.param}.sql").read_text(encoding="utf-8"))
    return request.param


def _check_that_it_is_current(name: str) -> None:
    """A step that is not released yet may change, and takes the dump along."""
    text = (DUMPS / f"{name}.sql").read_text(encoding="utf-8")
    stale = [
        s.file
        for s in package_source().steps()
        if not s.is_released and f"\n{s.number}\t{s.name}\t" in text and s.checksum not in text
    ]
    assert not stale, (
        f"schema/{stale[0]} changed since this dump was made; as long as it is not released, run: "
        f".venv/bin/python tests/migrations/dumps/make.py . {name}"
    )


def restore(cluster, url: str, script: str) -> None:
    cluster.run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"--dbname={url}", input=script)


def calls_of(name: str) -> dict[str, dict[str, Any]]:
    calls = json.loads((DUMPS / f"{name}.calls.json").read_text(encoding="utf-8"))
    return {call["name"]: call for call in calls}


def dump(cluster, url: str) -> str:
    text = cluster.run("pg_dump", "--schema-only", "--schema=ff", "--dbname", url)
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


async def check_invariants(connection) -> None:
    await connection.execute("create schema if not exists ff_test")
    if not await connection.fetchval("select to_regproc('ff_test.broken_invariants') is not null"):
        await connection.execute(invariants_function())
    assert await connection.fetch("select * from ff_test.broken_invariants()") == []


async def test_an_old_database_migrated_equals_a_fresh_one(cluster, make_database, url, old):
    fresh = make_database()
    for target in (url, fresh):
        async with open_connection(target) as connection:
            await schema.migrate(connection)
            await schema.verify(connection)
    # A dump writes some expressions with fewer parentheses than they were made with, so the fresh
    # one goes through a dump as well.
    twin = make_database()
    restore(cluster, twin, dump(cluster, fresh))
    assert dump(cluster, url) == dump(cluster, twin)
    ledgers = []
    for target in (url, fresh):
        async with open_connection(target) as connection:
            ledgers.append(
                await connection.fetch(
                    "select s.step::text, s.name, s.checksum from ff.schema_step s"
                    " union all select m.name, m.value, null from ff.meta m"
                    " union all select t::text, null, null from ff.transition t order by 1, 2"
                )
            )
    assert ledgers[0] == ledgers[1]


async def test_a_second_migration_finds_nothing_to_do(connection, old):
    await schema.migrate(connection)
    again = await schema.migrate(connection)
    assert again.steps == ()
    assert not again.is_library_recreated


async def test_what_the_old_release_left_unfinished_is_finished(connection, url, old):
    rows = "select execution_id, public_state::text, version from ff.execution order by 1"
    before = await connection.fetch(rows)
    assert {row["public_state"] for row in before} == {
        *("waiting", "delayed", "active", "completed", "failed")
    }
    await schema.migrate(connection)
    assert await connection.fetch(rows) == before
    await check_invariants(connection)
    async with FlowFabric(url) as client:
        ended = []
        while claimed := await client.executions.claim(
            worker_id="new",
            worker_instance_id="new-1",
            capabilities=["gpu"],
            limit=100,
            lease_ttl=LEASE,
        ):
            for one in claimed:
                await client.executions.complete(one, b'"new"')
                ended.append(one.execution_id)
        waiting = [row for row in before if row["public_state"] == "waiting"]
        assert set(ended) >= {row["execution_id"] for row in waiting}
        # ... and the one whose lease had run out.
        assert len(ended) == len(waiting) + 1
        page = await client.events.read(await client.events.open(LONG_AGO))
        assert len(page.events) == await connection.fetchval("select count(*) from ff.event")
    await check_invariants(connection)


async def test_every_call_of_the_old_client_is_still_understood(connection, old):
    await schema.migrate(connection)
    for call in calls_of(old).values():
        statement = await connection.prepare(call["text"])
        if "columns" in call:
            assert [column.name for column in statement.get_attributes()] == call["columns"]
            assert len(statement.get_parameters()) == len(call["arguments"])


async def test_a_worker_of_the_old_release_goes_on_working(connection, old):
    """Its own statements on today's library, from the registration to the result."""
    await schema.migrate(connection)
    calls = calls_of(old)

    async def call(name: str, /, **given: Any) -> list[Any]:
        known = calls[name]["arguments"]
        assert given.keys() <= set(known)
        return await connection.fetch(
            calls[name]["text"], *(given.get(argument) for argument in known)
        )

    async def submit(id: UUID, **options: Any) -> list[Any]:
        return await call(
            "submit_executions",
            partition_key=0,
            namespace="default",
            execution_ids=[id],
            route_ids=[route["route_id"]],
            payloads=[b"[]"],
            hint=True,
            **options,
        )

    async def claim() -> dict[str, Any]:
        claim_id = uuid7()
        (row,) = await call(
            "claim_executions",
            partition_key=0,
            namespace="default",
            worker_id="old",
            worker_instance_id="old-2",
            claim_id=claim_id,
            tasks=["old.cycle"],
            capabilities=[],
            limit=1,
            lease_ttl=LEASE,
        )
        return {
            "partition_key": 0,
            "namespace": "default",
            "execution_ids": [row["execution_id"]],
            "lease_ids": [claim_id],
            "epochs": [row["epoch"]],
            "attempt_ids": [row["attempt_id"]],
        }

    (route,) = await call(
        "register_routes",
        namespaces=["default"],
        lanes=["default"],
        tasks=["old.cycle"],
        capabilities=[""],
        registered_by="submit_executions",
    )
    assert route["outcome"] == "registered"
    id = uuid7()
    policy = '{"retry_policy":{"max_retries":2,"backoff":{"type":"fixed","delay_ms":1}}}'
    cursor = (await call("open_cursor", partition_key=0))[0][0]
    assert await submit(id, policies=[policy]) == []
    assert (await submit(id, policies=[policy]))[0]["outcome"] == "duplicate"
    fence = await claim()
    assert await call("renew_leases", **fence, lease_ttl=LEASE) == []
    assert await call("release_leases", **fence, cause="worker_shutdown", wait=False) == []
    fence = await claim()
    (failed,) = await call(
        "fail_executions",
        **fence,
        classes=["transient"],
        reasons=["once"],
        categories=[None],
        details=[None],
        wait=False,
        hint=False,
    )
    assert failed["outcome"] == "retry_scheduled"
    for _ in range(100):
        await asyncio.sleep(0.01)
        if (await call("promote_delayed", partition_key=0, limit=500))[0]["handled"]:
            break
    stale, fence = fence, await claim()
    (late,) = await call("complete_executions", **stale, results=[b"0"], wait=False, hint=False)
    assert late["outcome"] == "stale_lease"
    assert await call("complete_executions", **fence, results=[b"1"], wait=False, hint=False) == []
    (ending,) = await call("read_results", partition_key=0, namespace="default", execution_ids=[id])
    assert (ending["public_state"], ending["result"]) == ("completed", b"1")
    assert (await call("expire_leases", partition_key=0, limit=500))[0]["handled"] == 0
    events = await call(
        "read_events", partition_key=0, namespace="default", cursor=cursor, limit=500
    )
    assert [event["kind"] for event in events[:-1]] == [
        *("submitted", "claimed", "released", "resumed", "retry_scheduled", "claimed", "completed")
    ]
    await check_invariants(connection)
