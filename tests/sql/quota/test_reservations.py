"""An execution under several gates that is refused again and again gets a slot reserved in each."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.core.limit import gate_id
from flowfabric.core.why import SENTENCES
from support.admission import Admission
from support.database import home

SWEEP = f"select * from ff.sweep_gates('{home()}')"


class Street:
    """Gates with one slot each, in the order of their ids.

    Every slot is taken and has others in its line, and one execution waits for all of them.
    """

    def __init__(self, admission, gates, starved, running, quotas):
        self.admission, self.gates, self.starved = admission, gates, starved
        self.running, self.quotas = running, quotas
        self.engine = admission.engine

    @classmethod
    async def build(cls, admission, count=3, **changes):
        gates = sorted([await admission.quota(f"q{n}", concurrency=1) for n in range(count)])
        quotas, running = {}, {}
        for gate in gates:
            (one,) = await admission.submit(1, quotas=[gate], priority=9)
            quotas[one.id] = gate
            running[gate] = await admission.engine.take(one.id)
        (starved,) = await admission.submit(1, quotas=gates, **changes)
        for gate in gates:
            for one in await admission.submit(15, quotas=[gate]):
                quotas[one.id] = gate
        assert await admission.engine.claim(5) == []
        return cls(admission, gates, starved.id, running, quotas)

    async def serve(self, gate):
        """End what runs under a gate, claim, and tell whether the starved execution started."""
        if gate in self.running:
            await self.engine.complete(self.running.pop(gate))
        for lease in await self.engine.claim(5):
            if lease.execution_id == self.starved:
                return True
            self.running[self.quotas[lease.execution_id]] = lease
        return False

    async def refuse_five_times(self):
        """Serve the gates in turn until a slot is reserved."""
        for n in range(30):
            assert not await self.serve(self.gates[n % len(self.gates)])
            if await self.reserved():
                return
        raise AssertionError("nothing was reserved")

    async def reserved(self):
        rows = await self.engine.connection.fetch(
            "select gate_id from ff.gate where reserved_for = $1 order by gate_id", self.starved
        )
        return [row["gate_id"] for row in rows]


@pytest.fixture
def admission(engine):
    return Admission(engine, has_all=True)


async def test_an_execution_under_three_gates_starts_under_a_steady_load(admission):
    street = await Street.build(admission)
    served = 0
    while not await street.serve(street.gates[served % 3]):
        served += 1
        assert served < 30, "it starved"
    assert await street.reserved() == []


async def test_a_reserved_slot_goes_to_nobody_else(admission, engine):
    street = await Street.build(admission)
    await street.refuse_five_times()
    (gate,) = await street.reserved()
    assert gate not in street.running
    ((evidence,),) = await engine.connection.fetch(
        f"select evidence from ff.explain_execution('{home()}', $1, $2) "
        "where code = 'waits_for_quota'",
        engine.namespace,
        street.starved,
    )
    told = SENTENCES["waits_for_quota"](json.loads(evidence))
    assert told.endswith("; 1 slot is reserved for it in its other quotas."), told
    assert await engine.claim(5) == []
    quota = await engine.connection.fetchval("select quota from ff.gate where gate_id = $1", gate)
    answer = await admission.one(
        "check_admission", partition_key=home(), quota=quota, key=None, ticket_id=uuid4()
    )
    assert answer["outcome"] == "concurrency_exceeded"


async def test_only_slots_below_the_awaited_gate_are_reserved(admission, engine):
    street = await Street.build(admission)
    await street.refuse_five_times()
    awaited = await engine.connection.fetchval(
        "select line_id from ff.execution where execution_id = $1", street.starved
    )
    assert all(gate < awaited for gate in await street.reserved())


async def test_an_execution_refused_often_reserves_also_if_another_closed_the_gate(
    admission, engine
):
    """The claim does not put it into line unseen, as it does with others of a closed gate."""
    street = await Street.build(admission, count=2)
    count = "select refusal_count from ff.execution where execution_id = $1"
    for n in range(3):
        assert not await street.serve(street.gates[n % 2])
    assert await engine.connection.fetchval(count, street.starved) == 4
    await engine.unblock(street.starved)
    # Another route has no closed line that it would join.
    other = await engine.register(lane="other")
    await admission.submit(1, quotas=street.gates[1:], priority=9, route=other)
    await engine.complete(street.running.pop(street.gates[0]))
    assert await engine.claim(1) == []
    assert await street.reserved() == street.gates[:1]


async def test_two_executions_with_the_same_gates_both_start(admission):
    """One reservation per gate, so the second waits until the first has started."""
    street = await Street.build(admission)
    (other,) = await admission.submit(1, quotas=street.gates)
    first = 0
    while not await street.serve(street.gates[first % 3]):
        first += 1
        assert first < 40
    lease = await street.engine.connection.fetchrow(
        "select lease_id from ff.execution where execution_id = $1", street.starved
    )
    assert lease["lease_id"] is not None
    await street.engine.cancel(street.starved)
    street.starved = other.id
    second = 0
    while not await street.serve(street.gates[second % 3]):
        second += 1
        assert second < 40


@pytest.mark.parametrize("how", ["cancel", "block", "pause"])
async def test_a_reservation_that_nobody_needs_is_dropped(admission, engine, how):
    street = await Street.build(admission)
    await street.refuse_five_times()
    (gate,) = await street.reserved()
    if how == "cancel":
        await engine.cancel(street.starved)
    elif how == "block":
        await engine.block(street.starved, "paused_by_operator")
    else:
        lane = await engine.connection.fetchval(
            "select r.lane from ff.execution e join ff.route r using (route_id) "
            "where e.execution_id = $1",
            street.starved,
        )
        await engine.connection.execute(
            "select ff.set_lane($1, $2, 'paused')", engine.namespace, lane
        )
    await engine.connection.fetch(SWEEP)
    assert await street.reserved() == []
    if how == "pause":
        await engine.connection.execute(
            "select ff.set_lane($1, $2, 'active')", engine.namespace, lane
        )
    # The slot serves the next in line again.
    assert [street.quotas[lease.execution_id] for lease in await engine.claim(5)] == [gate]


async def test_a_reservation_without_a_worker_lapses(admission, engine, clock):
    """The awaited gate has room, and nobody comes for the execution."""
    await clock.freeze()
    street = await Street.build(admission)
    await street.refuse_five_times()
    awaited = await engine.connection.fetchval(
        "select line_id from ff.execution where execution_id = $1", street.starved
    )
    await engine.complete(street.running.pop(awaited))
    await engine.connection.fetch(SWEEP)
    await clock.advance(seconds=29)
    await engine.connection.fetch(SWEEP)
    assert await street.reserved() != []
    await clock.advance(seconds=2)
    await engine.connection.fetch(SWEEP)
    assert await street.reserved() == []


@pytest.mark.parametrize("window", [timedelta(seconds=1), timedelta(hours=1)])
@pytest.mark.parametrize("is_first", [True, False], ids=["rate first", "slot first"])
@pytest.mark.parametrize("slots", [None, 2], ids=["rate", "rate and slots"])
async def test_a_start_is_reserved_while_another_quota_has_no_slot(
    admission, engine, clock, window, is_first, slots
):
    """The rate has room while the slot is taken, and the slot is free while the rate has none."""
    await clock.freeze()
    names = sorted(("a", "b"), key=lambda name: gate_id("quota", engine.namespace, name, ""))
    of_rate, of_slot = names if is_first else names[::-1]
    milliseconds = int(window / timedelta(milliseconds=1))
    slot = await admission.quota(of_slot, concurrency=1)
    rate = await admission.quota(of_rate, rate=1, rate_window_ms=milliseconds, concurrency=slots)
    (first,) = await admission.submit(1, quotas=[slot], priority=9)
    lease = await engine.take(first.id, ttl=timedelta(days=1))
    (starved,) = await admission.submit(1, quotas=sorted([slot, rate]))
    of_one = {one.id for one in await admission.submit(40, quotas=[slot])}
    await admission.submit(40, quotas=[rate])
    for _ in range(30):
        await clock.advance(window * 62 / 60)
        started = await engine.claim(5, ttl=timedelta(days=1))
        if starved.id in {one.execution_id for one in started}:
            break
        for one in started:
            if one.execution_id in of_one:
                lease = one
            else:
                await engine.complete(one)
        if lease is not None:
            await engine.complete(lease)
        started = await engine.claim(5, ttl=timedelta(days=1))
        if starved.id in {one.execution_id for one in started}:
            break
        lease = next((one for one in started if one.execution_id in of_one), None)
    else:
        raise AssertionError("it starved")


async def test_a_reserved_start_goes_to_nobody_else_and_the_rate_goes_on(admission, engine, clock):
    await clock.freeze()
    slot = await admission.quota("slot", concurrency=1)
    rate = await admission.quota("rate", rate=2, rate_window_ms=3_600_000)
    (first,) = await admission.submit(1, quotas=[slot], priority=9)
    await engine.take(first.id, ttl=timedelta(days=1))
    (starved,) = await admission.submit(1, quotas=sorted([slot, rate]))
    # It was refused five times: by the slot while the rate had room, and by the rate.
    await engine.connection.execute(
        "update ff.execution set refusal_count = 5 where execution_id = $1", starved.id
    )
    others = {one.id for one in await admission.submit(9, quotas=[rate])}
    (only,) = await engine.claim(5)
    assert only.execution_id in others
    kept = await engine.connection.fetchval(
        "select start_for from ff.gate where gate_id = $1", rate
    )
    assert kept == starved.id
    held = await admission.one(
        "check_admission", partition_key=home(), quota="rate", key=None, ticket_id=uuid4()
    )
    assert held["outcome"] == "rate_exceeded"
    # Each window has one start for others.
    for _ in range(2):
        assert await engine.claim(5) == []
        await clock.advance(minutes=62)
        assert len(await engine.claim(5)) == 1
    # The start is free again once the execution needs it no more.
    await engine.cancel(starved.id)
    await engine.connection.fetch(SWEEP)
    assert len(await engine.claim(5)) == 1


async def test_the_count_begins_again_when_it_has_run(admission, engine):
    street = await Street.build(admission)
    served = 0
    while not await street.serve(street.gates[served % 3]):
        served += 1
    assert (
        await engine.connection.fetchval(
            "select refusal_count from ff.execution where execution_id = $1", street.starved
        )
        is None
    )
