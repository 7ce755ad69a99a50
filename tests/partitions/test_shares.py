"""Limits with eight partitions: each has a share, unused shares move, and the limit holds."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from support.admission import Admission
from support.factories import Engine

from .conftest import NUMBER

MINUTE = timedelta(minutes=1)


class Stage:
    """An engine for each partition, on one connection."""

    def __init__(self, db) -> None:
        self.db = db
        self.engines = [Engine(db.conn, partition_key=n) for n in range(NUMBER)]
        self.admissions = [Admission(engine) for engine in self.engines]

    async def submit(self, partition: int, number: int = 1, **limits) -> None:
        gate = await self.admissions[partition].quota(**limits)
        route = await self.engines[partition].register()
        await self.admissions[partition].submit(number, quotas=[gate], route=route)

    async def claim(self) -> list:
        return [
            (partition, lease)
            for partition, engine in enumerate(self.engines)
            for lease in await engine.claim(100, instance=f"i{partition}")
        ]

    async def balance(self) -> int:
        """Balance once. All shares together are never above the limit."""
        handled = await self.db.fetchval("select handled from ff.balance_gates()")
        over = await self.db.fetch(
            "select s.gate_id from ff.gate_share s join ff.quota q using (namespace, quota) "
            "group by s.gate_id, q.concurrency, q.rate "
            "having sum(s.concurrency) > q.concurrency or sum(s.rate) > q.rate"
        )
        assert over == []
        return handled

    async def shares(self) -> list[int]:
        rows = await self.db.fetch("select concurrency from ff.gate_share order by share_no")
        return [row["concurrency"] for row in rows]

    async def running(self) -> int:
        return await self.db.fetchval(
            "select count(*) from ff.execution where ownership = 'leased'"
        )


@pytest.fixture
def stage(several):
    return Stage(several)


async def test_each_partition_starts_its_share_and_together_they_start_the_limit(stage):
    for partition in range(NUMBER):
        await stage.submit(partition, 4, concurrency=10)
    assert len(await stage.claim()) == 10
    assert sorted(await stage.shares()) == [1] * 6 + [2] * 2


async def test_an_unused_share_shrinks_first_and_grows_in_a_later_call(stage):
    await stage.submit(3, 20, concurrency=8)
    assert len(await stage.claim()) == 1
    assert await stage.balance() == 1
    assert await stage.shares() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert await stage.claim() == []
    assert await stage.balance() == 1
    assert await stage.shares() == [0, 0, 0, 8, 0, 0, 0, 0]
    assert len(await stage.claim()) == 7
    assert await stage.balance() == 0


async def test_a_used_share_stays_where_it_is_used(stage):
    await stage.submit(0, 1, concurrency=8)
    await stage.submit(1, 20, concurrency=8)
    assert len(await stage.claim()) == 2
    for _ in range(4):
        await stage.balance()
    assert await stage.shares() == [1, 7, 0, 0, 0, 0, 0, 0]
    assert len(await stage.claim()) == 6


async def test_a_limit_of_one_serves_all_partitions_in_turn(stage):
    for partition in range(NUMBER):
        await stage.submit(partition, 2, concurrency=1)
    done = 0
    for _ in range(100):
        leases = await stage.claim()
        assert await stage.running() <= 1
        for partition, lease in leases:
            await stage.engines[partition].complete(lease)
            done += 1
        if done == 2 * NUMBER:
            break
        await stage.balance()
    assert done == 2 * NUMBER


async def test_waiting_partitions_get_even_shares(stage):
    await stage.submit(3, 20, concurrency=8)
    await stage.claim()
    while await stage.balance():
        pass
    held = await stage.claim()
    assert await stage.running() == 8
    # Another partition comes: it gets its part as the first one ends work.
    await stage.submit(5, 20, concurrency=8)
    for _ in range(40):
        partition, lease = held.pop(0)
        await stage.engines[partition].complete(lease)
        await stage.balance()
        held += await stage.claim()
        assert await stage.running() <= 8
        shares = await stage.shares()
        if shares[3] - shares[5] < 2 or shares[5] >= 3:
            break
    assert shares[5] >= 3


async def test_a_changed_limit_is_split_again_and_holds(stage):
    await stage.submit(3, 20, concurrency=8)
    await stage.claim()
    while await stage.balance():
        pass
    await stage.claim()
    set_ = stage.admissions[0].one
    await set_("set_quota", quota="api", concurrency=4)
    assert sum(await stage.shares()) == 4
    # Eight run in partition 3. A higher limit gives away only what is above them.
    await set_("set_quota", quota="api", concurrency=10)
    for partition in range(NUMBER):
        await stage.submit(partition, 5)
    await stage.claim()
    assert await stage.running() == 10
    await set_("set_quota", quota="api", clear=["concurrency"])
    assert len(await stage.claim()) > 10


@pytest.mark.parametrize("limit", ["concurrency", "rate"])
async def test_a_limit_lowered_to_what_runs_lets_no_partition_start_more(stage, limit):
    given = {"rate_window_ms": 60000} if limit == "rate" else {}
    for partition in range(4):
        await stage.submit(partition, 2, **{limit: 16}, **given)
    held = await stage.claim()
    assert len(held) == 8
    lower = {"rate_window": MINUTE} if limit == "rate" else {}
    await stage.admissions[0].one("set_quota", quota="api", **{limit: 8}, **lower)
    for partition in range(4, NUMBER):
        await stage.submit(partition, 2)
    assert await stage.claim() == []
    if limit == "concurrency":
        # What ends in one partition starts in another, once shares are balanced.
        partition, lease = held.pop()
        await stage.engines[partition].complete(lease)
        await stage.db.fetch("select ff.sweep_gates($1)", partition)
        for _ in range(2):
            await stage.balance()
            await stage.claim()
        assert await stage.running() == 8


async def test_a_rate_is_shared_too(stage):
    limit = {"rate": 8, "rate_window_ms": 60000}
    await stage.submit(3, 20, **limit)
    assert len(await stage.claim()) == 1
    for _ in range(4):
        await stage.balance()
    assert len(await stage.claim()) == 7
    await stage.submit(4, 5, **limit)
    for _ in range(4):
        await stage.balance()
        assert await stage.claim() == []


async def test_a_hold_finds_room_once_shares_are_balanced(stage):
    one = stage.admissions[2].one
    await one("create_quota", quota="api", is_keyed=False, concurrency=1)
    given = {"partition_key": 2, "quota": "api", "key": None, "ttl": MINUTE}
    outcomes = []
    for _ in range(3):
        answer = await one("check_admission", ticket_id=uuid4(), **given)
        outcomes.append(answer["outcome"])
        await stage.balance()
    assert outcomes.count("admitted") == 1
    assert outcomes[-1] != "admitted" or outcomes[:2] == ["concurrency_exceeded"] * 2


async def test_gates_of_one_partition_keep_their_limits_when_there_are_more(db, engine):
    admission = Admission(engine)
    gate = await admission.quota(concurrency=3)
    await admission.submit(5, quotas=[gate])
    assert len(await engine.claim(10)) == 3
    await db.execute("select ff.raise_partitions(2)")
    other = Engine(db.conn, partition_key=1)
    assert await Admission(other).quota() == gate
    await Admission(other).submit(1, quotas=[gate], route=await other.register())
    assert await other.claim(10, instance="other") == []
    rows = await db.fetch("select concurrency from ff.gate_share order by share_no")
    assert [row["concurrency"] for row in rows] == [3, 0]


async def test_a_partition_that_came_later_starts_without_a_share(stage):
    await stage.submit(3, 20, concurrency=8)
    await stage.db.execute("select ff.raise_partitions(9)")
    late = Stage(stage.db)
    late.engines = [Engine(stage.db.conn, partition_key=8)]
    late.admissions = [Admission(late.engines[0])]
    await late.submit(0, 1, concurrency=8)
    assert await late.claim() == []
    for _ in range(2):
        await stage.balance()
    assert len(await late.claim()) == 1


@pytest.mark.parametrize("limits", [{"concurrency": 4}, {"rate": 4, "rate_window_ms": 3_600_000}])
async def test_a_quota_refuses_only_if_no_partition_has_room(stage, limits):
    """Half of the partitions have no share of the limit."""
    limits = {**limits, "overflow": "refuse"}
    words = []
    for partition in (*range(NUMBER), *range(NUMBER)):
        gate = await stage.admissions[partition].quota(**limits)
        route = await stage.engines[partition].register()
        (answer,) = await stage.admissions[partition].submit(1, quotas=[gate], route=route)
        words.append(answer.word)
        await stage.claim()
    assert words == ["created"] * 4 + ["limit_reached"] * (2 * NUMBER - 4)
    # Unused shares move to the executions that wait for them.
    for _ in range(4):
        await stage.balance()
        await stage.claim()
    assert await stage.running() == 4
