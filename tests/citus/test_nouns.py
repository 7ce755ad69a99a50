"""Each noun of the engine on a distributed database with several partitions, from end to end.

The cases share one database, because it takes half a minute to distribute one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from flowfabric import App, Budget, Context, Limit, Run
from flowfabric.core.errors import LimitReached
from flowfabric.core.ids import key_partition
from flowfabric.doctor import examine
from worker.apps import working
from worker.waiting import eventually

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
COUNT = 16
Case = Callable[[App], Awaitable[None]]


def keys(noun: str) -> list[str]:
    """Keys that are in several partitions."""
    return [f"{noun} {number}" for number in range(COUNT)]


async def limits(app: App) -> None:
    running, most = set(), 0

    @app.task(name="limited", limit=Limit("slots", concurrency=3))
    async def limited(n: int) -> int:
        nonlocal most
        running.add(n)
        most = max(most, len(running))
        await asyncio.sleep(0.05)
        running.remove(n)
        return n

    async with working(app, concurrency=10):
        runs = await limited.submit_many([(n,) for n in range(COUNT)], keys=keys("limit"))
        assert len({run.id.partition_key for run in runs}) > 1
        assert [await run.result(timeout=120) for run in runs] == list(range(COUNT))
    assert most <= 3
    client = await app.client()
    assert (await client.quotas.get("slots")).concurrency == 3
    (gate,) = await client.quotas.gates("slots")
    assert (gate.concurrency, gate.in_line) == (3, 0)
    async with client.quotas.admitted("slots", max_wait=timedelta(seconds=60)):
        pass
    assert "default" in {lane.lane for lane in await client.lanes.list()}


async def refusals(app: App) -> None:
    """A quota that refuses: each partition stores one submit more than there is room for."""
    go = asyncio.Event()
    started = asyncio.Event()

    @app.task(name="narrow", limit=Limit("narrow", concurrency=1, overflow="refuse"))
    async def narrow(n: int) -> int:
        started.set()
        await go.wait()
        return n

    client = await app.client()
    number = (await client.partitions.numbers()).keyed
    partition = key_partition("default", "narrow 0", number)
    alike = [f"narrow {n}" for n in range(COUNT * number)]
    first, second, third, fourth, *_ = [
        key for key in alike if key_partition("default", key, number) == partition
    ]

    async def in_line() -> bool:
        (gate,) = await client.quotas.gates("narrow")
        return (gate.running, gate.in_line, gate.concurrency) == (1, 1, 1)

    caller = await asyncpg.connect(client.database.url)
    await caller.execute("create table wish (key text)")
    async with working(app, concurrency=10):
        runs = [await narrow.submit(1, key=first)]
        await asyncio.wait_for(started.wait(), 60)
        runs.append(await narrow.submit(2, key=second))
        await eventually(in_line)
        with pytest.raises(LimitReached):
            await narrow.submit(3, key=third)

        async def wish(n: int, key: str) -> Run[int]:
            async with caller.transaction():
                await caller.execute("insert into wish values ($1)", key)
                return await narrow.using(via=caller).submit(n, key=key)

        with pytest.raises(LimitReached):
            await wish(3, third)
        assert await caller.fetchval("select count(*) from wish") == 0
        # What exists already is a duplicate, and not refused.
        async with caller.transaction():
            again = await narrow.using(via=caller).submit(2, key=second)
        assert again.id == runs[1].id
        go.set()
        assert [await run.result(timeout=120) for run in runs] == [1, 2]
        assert await (await wish(4, fourth)).result(timeout=120) == 4
        assert await caller.fetch("select key from wish") == [(fourth,)]
    await caller.close()


async def budgets(app: App) -> None:
    @app.task(name="spend", budget=Budget("tokens", tokens=100))
    async def spend(ctx: Context, n: int) -> int:
        await ctx.usage(tokens=n)
        return n

    async with working(app, concurrency=10):
        runs = await spend.submit_many([(2,)] * COUNT, keys=keys("budget"))
        assert [await run.result(timeout=120) for run in runs] == [2] * COUNT
        client = await app.client()
        assert (await client.budgets.get("tokens")).usage["tokens"] == 2 * COUNT
        await client.budgets.reset("tokens")
        await client.budgets.raise_limits("tokens", tokens=500)


async def signals(app: App) -> None:
    tokens: dict[int, str] = {}

    @app.task(name="ask")
    async def ask(ctx: Context, n: int) -> list[int]:
        waitpoint = await ctx.waitpoint("payment")
        tokens[n] = waitpoint.token
        approved = await ctx.wait_for_signal("approve", int)
        return [approved, await waitpoint.wait(int)]

    async with working(app, concurrency=COUNT):
        runs = await ask.submit_many([(n,) for n in range(COUNT)], keys=keys("signal"))
        await eventually(lambda: len(tokens) == COUNT)
        for n, run in enumerate(runs):
            await run.signal("approve", n)
            await app.signal(tokens[n], 100 + n)
        assert [await run.result(timeout=120) for run in runs] == [
            [n, 100 + n] for n in range(COUNT)
        ]


async def timeouts(app: App) -> None:
    @app.task(name="wait")
    async def wait(ctx: Context) -> str:
        return await ctx.wait_for_signal(
            "never", str, timeout=timedelta(seconds=1), default="nobody"
        )

    async with working(app, concurrency=COUNT):
        runs = await wait.submit_many([()] * COUNT, keys=keys("timeout"))
        assert [await run.result(timeout=120) for run in runs] == ["nobody"] * COUNT
    client = await app.client()

    async def has_expired() -> bool:
        return (await client.signals.expire_suspensions())[0] > 0

    ended = {}
    for behavior in ("fail", "cancel", "expire"):
        run = await wait.submit()
        (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
        until = datetime.now(UTC) + timedelta(milliseconds=100)
        assert await client.signals.suspend(held, until=until, on_timeout=behavior)
        await eventually(has_expired)
        ended[behavior] = str(await run.state())
    assert ended == {"fail": "failed", "cancel": "cancelled", "expire": "expired"}


async def streams(app: App) -> None:
    @app.task(name="talk")
    async def talk(ctx: Context, n: int) -> None:
        for word in range(3):
            await ctx.stream.send(f"{n} {word}")

    async with working(app, concurrency=10):
        runs = await talk.submit_many([(n,) for n in range(COUNT)], keys=keys("stream"))
        for n, run in enumerate(runs):
            async with asyncio.timeout(120):
                heard = [frame.text async for frame in run.stream()]
            assert heard == [f"{n} {word}" for word in range(3)]


async def subscriptions(app: App) -> None:
    @app.task(name="count")
    async def count(n: int) -> int:
        return n

    client = await app.client()
    seen: list[str] = []

    async def consume() -> None:
        wishes = {"since": LONG_AGO, "kinds": ["completed"]}
        async for event in client.subscriptions.consume("billing", **wishes):
            seen.append(str(event.id))
            await event.ack()

    consuming = asyncio.create_task(consume())
    try:
        async with working(app, concurrency=10):
            runs = await count.submit_many([(n,) for n in range(COUNT)], keys=keys("event"))
            for run in runs:
                await run.result(timeout=120)
            await eventually(lambda: {run.id for run in runs} <= set(seen))
    finally:
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    assert len(seen) == len(set(seen)), "an acknowledged event came again"
    assert (await client.subscriptions.get("billing")).name == "billing"


async def webhooks(app: App) -> None:
    client = await app.client()
    added = await client.webhooks.add("crm", "https://hooks.example.com/")
    assert added is not None
    assert (await client.webhooks.get("crm")).name == "crm"
    await client.webhooks.remove("crm")


async def tokens(app: App) -> None:
    client = await app.client()
    made = await client.tokens.create("ci", ["read"], actor="ann")
    used = await client.tokens.use(made.token)
    assert used is not None
    assert await client.tokens.revoke(made.id, actor="ann")
    assert await client.tokens.use(made.token) is None
    assert {entry.actor for entry in await client.tokens.audit()} >= {"ann"}


async def transactions(app: App) -> None:
    """A transactional step, and a signal that joins a transaction of the caller."""

    @app.task(name="note")
    async def note(ctx: Context, n: int) -> int:
        async def write(connection: asyncpg.Connection) -> int:
            await connection.execute("insert into note values ($1)", n)
            return n

        written = await ctx.transaction("write", write)
        return written + await ctx.wait_for_signal("more", int)

    client = await app.client()
    caller = await asyncpg.connect(client.database.url)
    await caller.execute("create table note (n integer)")
    async with working(app, concurrency=COUNT):
        runs = await note.submit_many([(n,) for n in range(COUNT)], keys=keys("transaction"))
        for run in runs:
            async with caller.transaction():
                await run.signal("more", 100, via=caller)
        results = [await run.result(timeout=120) for run in runs]
    assert results == [100 + n for n in range(COUNT)]
    assert await caller.fetchval("select count(*) from note") == COUNT
    await caller.close()


async def keys_of_tokens(app: App) -> None:
    client = await app.client()
    assert (await client.signals.rotate_key("k-new")).outcome == "rotated"
    assert (await client.signals.keys())[0].kid == "k-new"


async def minutes(app: App) -> None:
    client = await app.client()
    while (await client.minutes.roll_up())[0]:
        pass
    counted = await client.minutes.read()
    done = sum(
        one.event_count for one in counted if one.task == "count" and one.kind == "completed"
    )
    assert done == COUNT


CASES = (
    limits,
    refusals,
    budgets,
    signals,
    timeouts,
    streams,
    subscriptions,
    webhooks,
    tokens,
    transactions,
    keys_of_tokens,
    minutes,
)


@pytest.mark.timeout(900)
async def test_every_noun_works_from_end_to_end(cluster_database, coordinator):
    wrong = {}
    for case in CASES:
        async with App(database_url=cluster_database.url, name="shop") as app:
            try:
                await case(app)
            except Exception as error:
                wrong[case.__name__] = f"{type(error).__name__}: {error}"
    assert wrong == {}, "\n".join(f"{noun}: {problem}" for noun, problem in wrong.items())
    report = await examine(coordinator, is_throwaway=True)
    assert [one.problem for one in report.findings] == []
