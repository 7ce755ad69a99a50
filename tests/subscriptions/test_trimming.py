"""A subscription that lags keeps its events for a while; then it is told that they are gone."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import CursorExpired, ExecutionNotFound
from flowfabric.core.states import EventKind
from flowfabric.core.subscription import SubscriptionState
from flowfabric.db.connection import open_connection
from flowfabric.doctor import examine
from support.database import home, several_partitions
from support.factories import Engine, refused
from support.proofs import drawn

from .consuming import LONG_AGO, begin, names, rest

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


@asynccontextmanager
async def unfinished(db):
    """A transaction with a number, as another database of the server may have it open for long."""
    connection = await db.connect()
    async with connection.transaction():
        await connection.execute("select pg_current_xact_id()")
        yield connection


async def test_a_long_transaction_that_writes_no_event_expires_no_subscription(
    db, client, clock, make
):
    """The position names it. Once events after its number are trimmed, nothing was lost."""
    await begin(client)
    async with unfinished(db):
        await make.execution("completed")
        await rest(client)
    (cursor,) = [
        one
        for one in (await db.fetchval("select cursor_text from ff.subscription")).split("/")
        if one.startswith(f"ff2:{home()}:")
    ]
    assert cursor.split(":")[7] != ""
    assert await trim(client, clock, MONTH) == 0
    assert await rest(client) == []


async def test_late_events_stay_for_a_subscription_and_expire_it_only_when_they_are_lost(
    db, client, clock, make
):
    """Its position stands behind their number; other events there are trimmed meanwhile."""
    for name in ("patient", "hasty"):
        await begin(client, name, keep=timedelta(days=2))
    async with unfinished(db) as connection:
        late = Engine(connection)
        lane = await late.register(lane="late")
        slow = await late.submit(route=lane)
        await make.execution("completed")
        for name in ("patient", "hasty"):
            await rest(client, name, keep=timedelta(days=2))
    lease = await Engine(db.conn).take(slow.id, lanes=["late"])
    await Engine(db.conn).complete(lease)
    assert await trim(client, clock, MONTH) == 3
    expected = ["submitted 1", "claimed 2", "completed 3"]
    assert names(await rest(client, "patient", keep=timedelta(days=2))) == expected
    assert await trim(client, clock, timedelta(days=2, hours=2)) == 0
    assert await rest(client, "patient", keep=timedelta(days=2)) == []
    with pytest.raises(CursorExpired):
        await rest(client, "hasty", keep=timedelta(days=2))


async def test_a_position_below_the_trim_mark_expires_when_its_events_are_lost(
    db, client, clock, make
):
    """Newer events were trimmed before it began, so the mark does not rise with its own loss."""
    old = await make.execution("completed")
    await make.execution("completed", policy={"retention_ms": 0})
    await trim(client, clock, timedelta(days=2))
    assert await db.fetchval("select count(*) from ff.event where execution_id = $1", old.id) == 3
    keep = timedelta(days=1)
    assert len(await rest(client, ack=False, since=LONG_AGO, keep=keep)) == 3
    assert await trim(client, clock, MONTH) == 3
    assert await trim(client, clock, keep * 2) == 0
    assert (await client.subscriptions.get("billing")).state == SubscriptionState.EXPIRED
    with pytest.raises(CursorExpired):
        await rest(client, keep=keep)
    await clock.advance(seconds=1)
    await client.subscriptions.reset("billing", since=LONG_AGO)
    assert await rest(client, keep=keep) == []
    assert await problems(db) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_subscription_expires_exactly_when_events_that_it_needs_are_deleted(
    db, client, clock, make, sized
):
    """Beside it: long transactions with and without events, and a subscription that keeps less."""
    random, steps = drawn("losses of subscriptions"), sized(400, short=30)
    keeps = {"short": timedelta(hours=30), "long": timedelta(days=4)}
    seen: dict[str, set] = {}
    ever: set = set()
    losses = reads = 0

    async def now() -> set:
        rows = await db.fetch("select execution_id, version from ff.event")
        ever.update(map(tuple, rows))
        return {tuple(row) for row in rows}

    async def restart(name) -> None:
        await client.subscriptions.remove(name)
        await clock.advance(seconds=1)
        await begin(client, name, keep=keeps[name])
        await now()
        seen[name] = set(ever)

    for name in keeps:
        await restart(name)
    open_ones: list = []
    lane = await Engine(db.conn).register(lane="late")
    async with AsyncExitStack() as stack:
        for _ in range(steps):
            match random.choice(["work", "open", "close", "read", "read", "wait", "wait"]):
                case "work":
                    await make.execution("completed")
                case "open" if len(open_ones) < 3:
                    late = await stack.enter_async_context(AsyncExitStack())
                    connection = await late.enter_async_context(unfinished(db))
                    slow = None
                    if random.random() < 0.5:
                        slow = await Engine(connection).submit(route=lane)
                    open_ones.append((late, slow))
                case "close" if open_ones:
                    late, slow = open_ones.pop(random.randrange(len(open_ones)))
                    await late.aclose()
                    if slow:
                        lease = await Engine(db.conn).take(slow.id, lanes=["late"])
                        await Engine(db.conn).complete(lease)
                case "wait":
                    await now()
                    by = timedelta(hours=random.choice([1, 20, 50, 31 * 24]))
                    await trim(client, clock, by)
                case "read":
                    name = random.choice(list(keeps))
                    stored = await now()
                    lost = ever - stored - seen[name]
                    reads += 1
                    if lost:
                        losses += 1
                        with pytest.raises(CursorExpired):
                            await rest(client, name, keep=keeps[name])
                        await restart(name)
                    else:
                        found = await rest(client, name, keep=keeps[name])
                        got = {(event.id.uuid, event.version) for event in found}
                        assert got >= ever - seen[name]
                        seen[name] |= got
    assert 0 < losses < reads or steps < 400


async def test_by_policy_a_consumer_resumes_with_the_events_that_are_left(client, clock, make):
    await begin(client, keep=timedelta(0))
    await make.execution("completed")
    assert await trim(client, clock, MONTH) == 0
    await make.execution("completed")
    found = await rest(client, kinds=[EventKind.COMPLETED], on_expiry="resume")
    assert names(found) == ["completed 3"]
    assert (await client.subscriptions.get("billing")).state == SubscriptionState.IDLE


@several_partitions
async def test_why_names_the_subscription_that_keeps_the_events_of_a_trimmed_execution(
    db, client, clock, make
):
    """A bare UUID finds its partition. Another namespace is told nothing."""
    await clock.freeze()
    await begin(client, keep=timedelta(days=3))
    execution = await make.execution("completed")
    await trim(client, clock, MONTH + timedelta(hours=1))
    why = await client.executions.why(execution.id)
    assert (why.dimension, why.code) == ("end", "trimmed")
    assert why.changes_at == await clock.now() + timedelta(days=3)
    assert "its last event was completed at" in why.sentence
    assert "Its events stay for the subscription billing, until" in why.sentence
    async with FlowFabric(db.url, namespace="elsewhere") as stranger:
        with pytest.raises(ExecutionNotFound):
            await stranger.executions.why(execution.id)
    await rest(client, keep=timedelta(days=3))
    assert "billing" not in (await client.executions.why(execution.id)).sentence
    await trim(client, clock, timedelta(hours=2))
    with pytest.raises(ExecutionNotFound):
        await client.executions.why(execution.id)


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
    lease = await db.fetchrow("select cursor_text, on_expiry from ff.subscription")
    parts = lease["cursor_text"].split(":")
    parts[6], parts[7] = "5", "fffffffffffffff"
    forged = ":".join(parts)
    ask = (
        "select outcome from ff.lease_subscription('test', 'forged', gen_random_uuid(), 'me', "
        "'30s', p_keep => '1 day', p_cursor => $1)"
    )
    assert await db.fetchval(ask, forged) == "leased"
    for wrong in ("", "ff2:0:x", forged.replace("ff2:", "ff3:"), f"{forged}/", f"{forged}\n"):
        with refused("WF001", field="cursor"):
            await db.fetchval(ask.replace("'forged'", "'wrong'"), wrong)
    await rest(client)
    assert await trim(client, clock, MONTH) == 3
    assert await trim(client, clock, timedelta(days=2)) == 0
