"""What a subscription delivers, whatever happens between an event and its consumer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing, suppress

import pytest

from flowfabric.client.consumer import HintListener
from flowfabric.core.errors import SubscriptionLost
from support.database import partitions
from support.factories import Engine
from support.forms import are_distributed
from support.proofs import drawn

from .consuming import LONG_AGO, PATIENCE, begin, names, rest


async def test_an_event_of_a_transaction_that_commits_late_is_delivered(db, client, engine, make):
    """The late event has a lower number than the events that were delivered before."""
    await begin(client)
    route = await engine.register(lane="late")
    connection = await db.connect()
    late = Engine(connection)
    transaction = connection.transaction()
    await transaction.start()
    slow = await late.submit(route=route)
    fast = await make.execution("waiting")
    assert [event.id.uuid for event in await rest(client)] == [fast.id]
    await transaction.commit()
    assert [event.id.uuid for event in await rest(client)] == [slow.id]
    assert await rest(client) == []


@pytest.mark.skipif(partitions() > 1, reason="the test raises the number from one")
@pytest.mark.skipif(
    are_distributed(), reason="flowfabric db distribute raises the number of partitions there"
)
async def test_a_subscription_reads_all_partitions_also_new_ones(db, client, clock):
    """Events wait for it in all of them."""
    await begin(client)
    await db.execute("select ff.raise_partitions(3, true, interval '0')")
    await client.database.partitions.refresh()
    for number in (0, 1, 2):
        engine = Engine(db.conn, partition_key=number)
        lease = await engine.take((await engine.submit()).id)
        await engine.complete(lease)
    assert (await client.subscriptions.get("billing")).waiting == 9
    await clock.advance(days=30)
    for _ in range(3):
        await client.retention.trim_executions(limit=500)
        await client.retention.trim_events(limit=500)
    found = await rest(client, page_size=2)
    by_partition = defaultdict(list)
    for event in found:
        by_partition[event.id.partition_key].append(event.version)
    assert by_partition == {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 2, 3]}
    assert (await client.subscriptions.get("billing")).waiting == 0


async def test_acts_of_operators_are_events_to_subscribe_to(client, make, engine):
    await begin(client, feed="operator")
    execution = await make.execution("waiting")
    await client.executions.change_priority(execution.id, 7)
    assert [event.kind for event in await rest(client, feed="operator")] == ["priority_changed"]


async def test_the_lease_feed_can_be_subscribed_to(client, make):
    """Only events of a lease come."""
    await begin(client, feed="lease")
    await make.execution("completed")
    assert names(await rest(client, feed="lease")) == ["claimed 2", "completed 3"]


async def test_an_instance_tag_separates_subscribers(db, client, make):
    """Every event has the tag of its execution."""
    await db.execute("update ff.meta set value = 'app.instance' where name = 'instance_tag_key'")
    for tag in ("a", "b"):
        await begin(client, tag, instance_tags=[tag])
    for tag in ("a", "b", "a"):
        await make.execution("completed", tags={"app.instance": tag})
    await make.execution("completed")
    assert len(await rest(client, "a", instance_tags=["a"])) == 6
    assert len(await rest(client, "b", instance_tags=["b"])) == 3


async def test_a_lost_hint_only_delays_an_event(client, make, monkeypatch):
    """The consumer polls."""
    await begin(client)

    async def deaf(self) -> None:
        pass

    monkeypatch.setattr(HintListener, "listen", deaf)
    async with asyncio.timeout(PATIENCE), client.subscriptions.consume("billing") as subscription:
        first = asyncio.ensure_future(anext(aiter(subscription)))
        await asyncio.sleep(0)
        execution = await make.execution("waiting")
        assert (await first).id.uuid == execution.id


async def test_a_burst_is_drained_page_by_page(client, make):
    """After one hint, or none."""
    await begin(client)
    for _ in range(8):
        await make.execution("completed")
    found = await rest(client, page_size=5)
    assert names(found) == ["submitted 1", "claimed 2", "completed 3"] * 8


async def test_the_end_of_a_consumer_leaves_no_task_and_no_connection(db, client, make):
    """Another one begins where it was."""
    await make.execution("leased")
    before = asyncio.all_tasks()
    for expected in ("submitted 1", "claimed 2"):
        stream = aiter(client.subscriptions.consume("billing", since=LONG_AGO, page_size=1))
        async with asyncio.timeout(PATIENCE), aclosing(stream):
            event = await anext(stream)
            assert names([event]) == [expected]
            await event.ack()
    assert asyncio.all_tasks() == before
    assert await db.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name like '%subscriptions'"
    ) == 0  # fmt: skip


async def test_consumers_that_die_at_random_miss_nothing_and_repeat_at_most_a_page(
    client, other, make, clock
):
    """Each comes back as a ghost: what it acknowledges late is refused, and moves nothing."""
    random = drawn("deaths of consumers")
    page_size = 3
    await begin(client)
    ghosts, seen, acked = [], [], set()
    for _ in range(7):
        for _ in range(3):
            await make.execution(random.choice(["completed", "leased", "failed"]))
        consumer = random.choice([client, other])
        stream = aiter(consumer.subscriptions.consume("billing", page_size=page_size))
        turn = []
        async with asyncio.timeout(PATIENCE):
            # Fewer than there are, so that it never waits for another one.
            for _ in range(random.randrange(1, 5)):
                event = await anext(stream)
                turn.append((event.id.uuid, event.version))
                if random.random() < 0.8:
                    await event.ack()
                    acked |= {*turn} - {*seen}
                ghosts.append((stream, event))
        repeated = [one for one in turn if one in acked and one in seen]
        assert len(repeated) <= page_size
        seen += turn
        # It dies here, without a word.
        await clock.advance(seconds=31)
    async with asyncio.timeout(PATIENCE):
        seen += [(event.id.uuid, event.version) for event in await rest(client)]
    rows = await clock.db.fetch("select execution_id, version from ff.event order by event_id")
    assert set(seen) == {tuple(row) for row in rows}
    versions = defaultdict(list)
    for execution, version in dict.fromkeys(seen):
        versions[execution].append(version)
    assert all(found == sorted(found) for found in versions.values())
    for _, event in ghosts:
        with suppress(SubscriptionLost):
            await event.ack()
    assert await rest(client) == []
    for stream, _ in ghosts:
        await stream.aclose()
    assert await rest(client) == []
