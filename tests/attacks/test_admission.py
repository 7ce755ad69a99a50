"""A bound login that keeps its transaction open after a pass over gates and budgets holds up nobody
in another namespace."""

from __future__ import annotations

import pytest

from flowfabric.core.limit import gate_id
from support.admission import Admission
from support.factories import Engine, Item

PASSES = (
    "select * from ff.sweep_gates(0::smallint)",
    "select * from ff.reset_due_budgets()",
    "select * from ff.balance_gates()",
)


@pytest.fixture
async def bound(login):
    return await login("bound")


@pytest.fixture
async def ours(bound, keeper):
    """The namespace of the bound login. Nothing is left in it for the claims of other tests."""
    ours = Engine(bound, namespace="ours")
    yield ours
    unfinished = (
        "select execution_id from ff.execution where namespace = 'ours' and outcome = 'none'"
    )
    for row in await keeper.fetch(unfinished):
        await ours.cancel(row["execution_id"])


@pytest.fixture
def admission(theirs):
    return Admission(theirs)


async def test_an_open_sweep_holds_no_gate_of_another_namespace(bound, admission, theirs):
    gate = await admission.quota(concurrency=2)
    await admission.submit(1, quotas=[gate])
    # A release that no claim has added.
    await theirs.complete(await theirs.take())
    await admission.submit(1, quotas=[gate])
    async with bound.transaction():
        for one in PASSES:
            await bound.fetch(one)
        assert len(await theirs.claim(10)) == 1


async def test_an_open_sweep_ends_no_hold_of_another_namespace(bound, admission, keeper, theirs):
    gate = await admission.quota(concurrency=1)
    ticket = "11111111-1111-4111-8111-111111111111"
    await admission.one("check_admission", partition_key=0, quota="api", key=None, ticket_id=ticket)
    await keeper.execute(
        "update ff.gate_ticket set expires_at = now() - interval '1 s' where gate_id = $1", gate
    )
    async with bound.transaction():
        for one in PASSES:
            await bound.fetch(one)
        answer = await admission.one(
            "check_admission", partition_key=0, quota="api", key=None, ticket_id=ticket
        )
        assert answer["outcome"] == "admitted"


async def test_an_open_reset_holds_no_budget_of_another_namespace(bound, admission, keeper, theirs):
    budget = await admission.budget(tokens=100)
    await admission.submit(2, budgets=[budget])
    await admission.report(await theirs.take(), {"tokens": 100})
    assert await theirs.claim(10) == []
    await keeper.execute(
        "update ff.budget set period = 'hour', period_zone = 'UTC', "
        "next_reset_at = now() - interval '1 s' where budget_id = $1",
        budget,
    )
    async with bound.transaction():
        for one in PASSES:
            await bound.fetch(one)
        # A claim puts it into the line of the budget, and a report waits for nobody.
        await admission.submit(1, budgets=[budget], route=await theirs.register(lane="other"))
        await theirs.claim(10)
        answer = await admission.one(
            "report_usage_admin", budget="monthly", key=None, dimensions=["tokens"], amounts=[1]
        )
        assert answer["outcome"] == "ok"


async def test_a_bound_login_sweeps_its_own_gates(bound, keeper, ours):
    admission = Admission(ours)
    gate = await admission.quota("own", concurrency=1)
    await admission.submit(1, quotas=[gate])
    await ours.complete(await ours.take())
    await bound.fetch(PASSES[0])
    assert await keeper.fetchval("select running from ff.gate where gate_id = $1", gate) == 0


async def test_an_open_claim_under_many_full_gates_holds_no_gate_of_another_namespace(
    bound, admission, ours, keeper, theirs
):
    gates = [await Admission(ours).quota("tenant", f"k{n}", concurrency=1) for n in range(101)]
    for _ in range(2):
        await ours.submit_many([Item(quotas=(gate,)) for gate in gates])
    await ours.claim(101)
    assert await ours.claim(10) == []
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    lease = await theirs.take()
    assert await theirs.claim(10) == []
    # A release that no claim has counted, and an execution that waits for it.
    await theirs.complete(lease)
    async with bound.transaction():
        assert await ours.claim(10) == []
        assert len(await theirs.claim(10)) == 1


async def test_a_bound_login_opens_its_lines_behind_many_gates_of_another_namespace(
    bound, admission, ours, keeper, theirs
):
    gates = [await admission.quota("tenant", f"k{n}", concurrency=1) for n in range(101)]
    for _ in range(2):
        await theirs.submit_many([Item(quotas=(gate,)) for gate in gates])
    leases = await theirs.claim(101)
    assert await theirs.claim(10) == []
    # Its id is higher than most.
    name = max((f"q{n}" for n in range(500)), key=lambda one: gate_id("quota", "ours", one, ""))
    gate = await Admission(ours).quota(name, concurrency=1)
    await Admission(ours).submit(2, quotas=[gate])
    lease = await ours.take()
    assert await ours.claim(10) == []
    await theirs.complete_many(leases)
    await ours.complete(lease)
    await bound.fetch(PASSES[0])
    assert await keeper.fetchval("select running from ff.gate where gate_id = $1", gate) == 0


async def test_open_changes_of_a_bound_login_stop_no_pass_over_gates(bound, ours, keeper, theirs):
    mine = Admission(ours)
    gate = await mine.quota("held", concurrency=2)
    budget = await mine.budget("held", tokens=100)
    await mine.submit(3, quotas=[gate], budgets=[budget])
    await keeper.execute(
        "update ff.budget set period = 'hour', period_zone = 'UTC', "
        "next_reset_at = now() - interval '1 s' where budget_id = $1",
        budget,
    )
    await keeper.execute("set lock_timeout = '1s'")
    async with bound.transaction():
        leases = await ours.claim(10)
        assert len(leases) == 2
        await mine.report(leases[0], {"tokens": 100})
        await mine.one("set_quota", quota="held", concurrency=1)
        await ours.complete_many(leases)
        for one in PASSES:
            await keeper.fetch(one)
        await theirs.submit()
        assert len(await theirs.claim(10)) == 1


async def test_a_foreign_gate_is_unknown_whether_it_is_full_or_not(admission, ours, theirs):
    full, free = [
        await admission.quota(name, concurrency=1, overflow="refuse") for name in ("full", "free")
    ]
    budget = await admission.budget(tokens=5)
    await admission.submit(1, quotas=[full])
    await theirs.take()
    items = [Item(quotas=(full,)), Item(quotas=(free,)), Item(budgets=(budget,))]
    assert [(await ours.submit(one)).word for one in items] == ["unknown_gate"] * 3
    assert (await admission.gate("full"))["in_line"] == 0
    assert (await admission.status())["usage"] == '{"tokens": 0}'
