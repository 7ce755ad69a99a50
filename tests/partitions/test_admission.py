"""Limits with eight partitions: executions in line are found, admitted and swept in all of them."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric import Limit
from support.admission import Admission
from support.factories import Engine, Item
from worker.apps import working

from .conftest import NUMBER
from .test_work import fail_calls


@pytest.mark.slow  # the one slot moves from partition to partition, about one a second
async def test_what_stands_in_line_in_any_partition_runs_in_the_end(app):
    @app.task(limit=Limit("tenant", concurrency=1, key="tenant"))
    async def ask(tenant: str) -> str:
        await asyncio.sleep(0)
        return tenant

    calls = [(tenant,) for tenant in ("acme", "beta") for _ in range(3 * NUMBER)]
    runs = await ask.submit_many(calls, keys=[f"key {n}" for n in range(len(calls))])
    assert len({run.id.partition_key for run in runs}) == NUMBER
    async with working(app, concurrency=10):
        results = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 240)
    assert results == [tenant for (tenant,) in calls]


@pytest.mark.usefixtures("look_of_each_form")
async def test_the_look_over_the_partitions_finds_lines_that_have_room(client, several):
    engine = Engine(several.conn, partition_key=5)
    admission = Admission(engine)
    # Each partition has a share of one.
    gate = await admission.quota(concurrency=NUMBER)
    await admission.submit(3, quotas=[gate])
    assert set(await client.executions.find_work()) == {5}
    (lease,) = await engine.claim(3)
    # What the gate refuses stands in line: nobody can claim it.
    assert await client.executions.find_work() == {}
    await engine.complete(lease)
    assert set(await client.executions.find_work()) == {5}
    # The sweep opens the line.
    await client.quotas.sweep()
    assert await several.fetchval("select is_open from ff.line where partition_key = 5")
    assert set(await client.executions.find_work()) == {5}
    assert len(await engine.claim(3)) == 1
    assert await client.executions.find_work() == {}


async def test_the_limit_of_a_lane_counts_in_all_partitions(client, several):
    engines = [Engine(several.conn, partition_key=n) for n in range(NUMBER)]
    for engine in engines:
        await engine.submit_many([Item(route=await engine.register(lane="mail"))] * 3)
    await several.fetch(
        "select * from ff.set_lane_options($1, 'mail', '{\"concurrency\": 4}')",
        engines[0].namespace,
    )
    running = []
    for _ in range(8):
        for engine in engines:
            running += [(engine, one) for one in await engine.claim(10)]
        assert len(running) <= 4
        await client.quotas.balance()
    assert len(running) == 4
    left = 3 * NUMBER
    for _ in range(200):
        while running:
            engine, lease = running.pop()
            await engine.complete(lease)
            left -= 1
        await client.quotas.sweep()
        await client.quotas.balance()
        for engine in engines:
            running += [(engine, one) for one in await engine.claim(10)]
        assert len(running) <= 4
        if not left:
            break
    assert left == 0


@pytest.mark.usefixtures("look_of_each_form")
async def test_rates_and_slots_that_ran_out_open_lines_of_all_partitions(client, several, clock):
    for partition in (2, 6):
        engine = Engine(several.conn, partition_key=partition)
        admission = Admission(engine)
        gate = await admission.quota(rate=NUMBER, rate_window_ms=60_000)
        await admission.submit(2, quotas=[gate])
        assert len(await engine.claim(2)) == 1
    assert await client.executions.find_work() == {}
    await clock.advance(minutes=2)
    assert set(await client.executions.find_work()) == {2, 6}
    await client.quotas.sweep()
    opened = await several.fetch("select partition_key from ff.line where is_open order by 1")
    assert [row["partition_key"] for row in opened] == [2, 6]


async def test_the_counters_of_a_quota_are_sums_over_all_partitions(
    client, several, clock, monkeypatch
):
    for partition in (2, 5, 6):
        engine = Engine(several.conn, partition_key=partition)
        admission = Admission(engine)
        numbers = {"concurrency": 2 * NUMBER, "rate": NUMBER, "rate_window_ms": 60_000}
        gate = await admission.quota("region", "acme", **numbers)
        await admission.submit(partition, quotas=[gate])
        assert len(await engine.claim(10)) == 1
        await clock.advance(seconds=1)
    await admission.quota("region", "beta", **numbers)
    found = await client.quotas.gates("region")
    assert [gate.key for gate in found] == ["acme", "beta"]
    acme, beta = found
    assert (acme.running, acme.started, acme.in_line) == (3, 3, 1 + 4 + 5)
    assert (acme.concurrency, acme.rate) == (2 * NUMBER, NUMBER)
    assert (beta.running, beta.in_line, beta.opens_at) == (0, 0, None)
    times = [(await client.quotas.gates("region", partition=n))[0].opens_at for n in (2, 5, 6)]
    assert acme.opens_at == min(times) < max(times)
    # The share of one partition.
    (share,) = await client.quotas.gates("region", partition=5)
    assert (share.concurrency, share.rate, share.running, share.in_line) == (2, 1, 1, 4)
    # Pages by key, and a number that an operator has set.
    await client.quotas.set("region", key="acme", concurrency=4)
    (first,) = await client.quotas.gates("region", limit=1)
    (second,) = await client.quotas.gates("region", after=first.key, limit=1)
    assert (first.key, first.concurrency, first.is_set) == ("acme", 4, True)
    assert (second.key, second.concurrency, second.is_set) == ("beta", 2 * NUMBER, False)
    (only,) = await client.quotas.gates("region", key="beta")
    assert only == second
    await fail_calls(client, monkeypatch, 5)
    partial = await client.quotas.gates("region", key="acme")
    assert (partial[0].in_line, partial.missing) == (1 + 5, (5,))


async def test_executions_of_all_partitions_wait_for_a_budget(client, several, monkeypatch):
    for partition in (1, 3, 6):
        engine = Engine(several.conn, partition_key=partition)
        admission = Admission(engine)
        budget = await admission.budget(on_exceed="suspend", tokens=10)
        if partition == 1:
            await client.budgets.report_usage_admin("monthly", tokens=10)
            await client.budgets.report_usage_admin("monthly", tokens=1)
        await admission.submit(partition, budgets=[budget])
        assert await engine.claim(10) == []
    await admission.budget("yearly", tokens=10)
    found = await client.budgets.get("monthly")
    assert (found.in_line, found.is_shut, found.missing) == (1 + 3 + 6, True, ())
    listed = await client.budgets.list()
    assert [(one.budget, one.in_line) for one in listed] == [("monthly", 10), ("yearly", 0)]
    assert (await client.budgets.get("monthly", partition=3)).in_line == 3
    assert [one.budget for one in await client.budgets.list(limit=1)] == ["monthly"]
    await fail_calls(client, monkeypatch, 3)
    assert (await client.budgets.list()).missing == (3,)
    partial = await client.budgets.get("monthly")
    assert (partial.in_line, partial.missing) == (1 + 6, (3,))


@pytest.mark.parametrize("numbers", [{"concurrency": 1}, {"rate": "1/min"}], ids=str)
async def test_a_slot_outside_an_execution_is_taken_wherever_its_share_is(client, numbers):
    for name in ("one", "two", "three", "four"):
        assert await client.quotas.create(Limit(name, **numbers))
        admission, ticket_id = await client.quotas.check_admission(name)
        assert admission.is_admitted
        again, _ = await client.quotas.check_admission(name, ticket_id=ticket_id)
        assert again.outcome == "already_admitted"
        refused, _ = await client.quotas.check_admission(name)
        assert not refused.is_admitted
        await client.quotas.release_admission(name, ticket_id, is_unused=True)
        async with client.quotas.admitted(name):
            (gate,) = await client.quotas.gates(name)
            assert gate.tickets == 1
