"""A subscription that lags keeps its events for a while; then it is told that they are gone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.core.errors import CursorExpired
from flowfabric.core.states import EventKind
from flowfabric.core.subscription import SubscriptionState
from flowfabric.db.connection import open_connection
from flowfabric.doctor import examine
from support.factories import refused

from .consuming import begin, names, rest

MONTH = timedelta(days=30)


async def trim(client, clock, by: timedelta) -> int:
    """Move the clock, trim everything that is due, and count the events that are left."""
    await clock.advance(by)
    while (await client.retention.trim_executions(limit=500))[0]:
        pass
    while (await client.retention.trim_events(limit=500))[0]:
        pass
    return await clock.db.fetchval("select count(*) from ff.event")


async def problems(db) -> list[str]:
    async with open_connection(db.url, statement_cache_size=0) as connection:
        report = await examine(connection, is_throwaway=True)
    return [finding.problem for finding in report.findings if finding.name == "X07"]


async def test_events_that_were_acknowledged_are_trimmed_as_ever(client, clock, make):
    await begin(client)
    await make.execution("completed")
    await rest(client)
    assert await trim(client, clock, MONTH) == 0


async def test_events_stay_for_a_subscription_that_lags(db, client, clock, make):
    await begin(client)
    await make.execution("completed")
    assert await trim(client, clock, MONTH) == 3
    (problem,) = await problems(db)
    assert problem.startswith("the subscription billing of namespace test is behind")
    assert names(await rest(client)) == ["submitted 1", "claimed 2", "completed 3"]
    assert await problems(db) == []
    assert await trim(client, clock, timedelta(hours=1)) == 0
    assert await rest(client) == []


async def test_events_stay_no_longer_than_the_subscription_keeps_them(db, client, clock, make):
    await begin(client, keep=timedelta(days=2))
    await make.execution("completed")
    assert await trim(client, clock, MONTH) == 3
    assert await trim(client, clock, timedelta(days=1, hours=22)) == 3
    assert await trim(client, clock, timedelta(hours=3)) == 0
    (problem,) = await problems(db)
    assert "has lost events" in problem
    assert (await client.subscriptions.get("billing")).state == SubscriptionState.EXPIRED
    with pytest.raises(CursorExpired) as told:
        await rest(client)
    assert told.value.resume_from is not None
    await client.subscriptions.reset("billing", since=told.value.resume_from)
    assert await rest(client) == []
    assert await problems(db) == []


async def test_by_policy_a_consumer_resumes_with_the_events_that_are_left(client, clock, make):
    await begin(client, keep=timedelta(0))
    await make.execution("completed")
    assert await trim(client, clock, MONTH) == 0
    await make.execution("completed")
    found = await rest(client, kinds=[EventKind.COMPLETED], on_expiry="resume")
    assert names(found) == ["completed 3"]
    assert (await client.subscriptions.get("billing")).state == SubscriptionState.IDLE


async def test_the_slowest_subscription_decides(client, clock, make):
    await begin(client, "slow")
    await begin(client, "fast")
    await make.execution("completed")
    await rest(client, "fast")
    assert await trim(client, clock, MONTH) == 3
    await rest(client, "slow")
    assert await trim(client, clock, timedelta(hours=1)) == 0


async def test_a_removed_subscription_keeps_nothing(client, clock, make):
    await begin(client)
    await make.execution("completed")
    await client.subscriptions.remove("billing")
    assert await trim(client, clock, MONTH) == 0


async def test_a_forged_cursor_cannot_stop_the_trimming(db, client, clock, make):
    """Its owner can read and change it. Numbers that make no sense count as the beginning."""
    await begin(client)
    await make.execution("completed")
    hold = await db.fetchrow("select cursor_text, on_expiry from ff.subscription")
    parts = hold["cursor_text"].split(":")
    parts[6], parts[7] = "5", "fffffffffffffff"
    forged = ":".join(parts)
    ask = (
        "select outcome from ff.hold_subscription('test', 'forged', gen_random_uuid(), 'me', '30s',"
        " p_keep => '1 day', p_cursor => $1)"
    )
    assert await db.fetchval(ask, forged) == "held"
    for wrong in ("", "ff2:0:x", forged.replace("ff2:", "ff3:"), f"{forged}/", f"{forged}\n"):
        with refused("WF001", field="cursor"):
            await db.fetchval(ask.replace("'forged'", "'wrong'"), wrong)
    await rest(client)
    assert await trim(client, clock, MONTH) == 3
    assert await trim(client, clock, timedelta(days=2)) == 0
