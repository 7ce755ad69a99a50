"""Signals, suspensions and their reconcilers at the same time: who wins, and what the loser sees.

Each test holds the transaction of the winner open while the loser calls, and then commits it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from support.factories import TTL, Engine, Execution, Factory, refused

from .crowd import engines, open_transaction, together, until_blocked

HOUR = timedelta(hours=1)


async def suspended(engine: Engine, make: Factory, behavior: str = "fail") -> Execution:
    execution = await make.execution("leased")
    assert execution.lease is not None
    await engine.ask(execution.lease, "approve", timeout=HOUR)
    answer = await engine.suspend(execution.lease, "approve", on_timeout=behavior)
    assert answer.word == "suspended"
    return execution


async def test_a_suspension_on_its_way_leaves_the_expiry_nothing(db, engine, make, clock):
    execution = await make.execution("leased")
    await engine.ask(execution.lease, "approve")
    holder, reconciler = await engines(db, 2)
    async with open_transaction(holder):
        assert (await holder.suspend(execution.lease, "approve")).word == "suspended"
        await clock.advance(TTL)
        assert (await reconciler.expire())[0] == 0
    assert (await reconciler.expire())[0] == 0
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "suspended"]


async def test_an_expiry_on_its_way_refuses_the_suspension(db, engine, make, clock):
    execution = await make.execution("leased")
    await engine.ask(execution.lease, "approve")
    holder, reconciler = await engines(db, 2)
    await clock.advance(TTL)
    async with open_transaction(reconciler):
        assert (await reconciler.expire())[0] == 1
        late = asyncio.create_task(holder.suspend(execution.lease, "approve"))
        await until_blocked(db, holder, late)
    assert (await late).word == "lease_expired"
    assert (await engine.row(execution.id))["public_state"] != "suspended"


async def test_two_suspensions_of_one_lease_are_one(db, engine, make):
    execution = await make.execution("leased")
    await engine.ask(execution.lease, "approve")
    id = uuid4()
    several = await engines(db, 4)
    answers = await together(
        *(one.suspend(execution.lease, "approve", suspension_id=id) for one in several)
    )
    assert {one.word for one in answers} == {"suspended"}
    assert (await engine.kinds(execution.id)).count("suspended") == 1


@pytest.mark.parametrize("behavior", ["fail", "auto_resume"])
async def test_a_timeout_on_its_way_comes_before_the_signal(db, engine, make, clock, behavior):
    execution = await suspended(engine, make, behavior)
    sender, reconciler = await engines(db, 2)
    await clock.advance(HOUR)
    async with open_transaction(reconciler):
        assert (await reconciler.time_out())[0] == 1
        # The row is locked, so the signal is stored: its sender never waits.
        assert (await sender.signal(execution.id)).effect == "stored"
    await engine.notice()
    state = (await engine.row(execution.id))["public_state"]
    assert state == ("failed" if behavior == "fail" else "waiting")
    assert (await engine.kinds(execution.id)).count("woken") == (behavior != "fail")
    word = (await sender.signal(execution.id)).word
    assert word == ("not_signalable" if behavior == "fail" else "accepted")


async def test_a_signal_on_its_way_leaves_the_timeout_nothing(db, engine, make, clock):
    execution = await suspended(engine, make)
    sender, reconciler = await engines(db, 2)
    await clock.advance(HOUR)
    async with open_transaction(sender):
        assert (await sender.signal(execution.id)).effect == "woken"
        assert (await reconciler.time_out())[0] == 0
    assert (await reconciler.time_out())[0] == 0
    assert (await engine.row(execution.id))["public_state"] == "waiting"


async def test_a_cancel_on_its_way_ends_before_the_signal(db, engine, make):
    execution = await suspended(engine, make)
    sender, operator = await engines(db, 2)
    async with open_transaction(operator):
        await operator.cancel(execution.id)
        assert (await sender.signal(execution.id)).effect == "stored"
    await engine.notice()
    assert (await engine.row(execution.id))["public_state"] == "cancelled"
    assert (await sender.signal(execution.id)).word == "not_signalable"


async def test_a_signal_on_its_way_is_followed_by_the_cancel(db, engine, make):
    execution = await suspended(engine, make)
    sender, operator = await engines(db, 2)
    async with open_transaction(sender):
        assert (await sender.signal(execution.id)).effect == "woken"
        late = asyncio.create_task(operator.cancel(execution.id))
        await until_blocked(db, operator, late)
    await late
    assert await engine.kinds(execution.id) == [
        "submitted", "claimed", "suspended", "woken", "cancelled",
    ]  # fmt: skip


async def test_an_expiry_of_a_waitpoint_and_a_wait_for_it_agree(db, engine, make, clock):
    """A waitpoint that is waited for does not expire; a wait for an expired one has timed out."""
    for is_first in (True, False):
        execution = await make.execution("leased")
        id, token = await engine.waitpoint(execution.lease, expires_in=timedelta(seconds=1))
        await clock.advance(seconds=1)
        holder, reconciler = await engines(db, 2)
        wait = {"name": f"wait {id}", "condition": {"waitpoint": str(id)}}
        sent = {"execution_id": execution.id, "name": None, "token": token}
        if is_first:
            async with open_transaction(holder):
                assert (await holder.ask(execution.lease, **wait)).word == "open"
                await reconciler.connection.fetch("select ff.expire_waitpoints(0::smallint)")
            (answer,) = await engine.signal_many([sent])
            assert answer.word == "accepted"
        else:
            await reconciler.connection.fetch("select ff.expire_waitpoints(0::smallint)")
            assert (await holder.ask(execution.lease, **wait)).word == "timed_out"
            (answer,) = await engine.signal_many([sent])
            assert answer.word == "waitpoint_closed"


CLOSE = "select ff.close_waitpoint(0::smallint, 'test', $1, $2)"


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_closing_and_a_suspension_at_once_leave_no_wait_that_nobody_ends(
    db, engine, make, is_first
):
    execution = await make.execution("leased")
    a, _ = await engine.waitpoint(execution.lease, "a")
    b, _ = await engine.waitpoint(execution.lease, "b")
    both = {"every": [{"waitpoint": str(a)}, {"waitpoint": str(b)}]}
    await engine.ask(execution.lease, "both", condition=both)
    holder, owner = await engines(db, 2)
    first, second = (owner, holder) if is_first else (holder, owner)
    calls = {
        owner: lambda: owner.connection.execute(CLOSE, execution.id, b),
        holder: lambda: holder.suspend(execution.lease, "both"),
    }
    async with open_transaction(first):
        done = await calls[first]()
        late = asyncio.create_task(calls[second]())
        await until_blocked(db, second, late)
    answer = await late if is_first else done
    assert answer.word == ("already_satisfied" if is_first else "suspended")
    await late
    await engine.time_out()
    assert (await engine.row(execution.id))["public_state"] == ("active" if is_first else "waiting")


async def test_a_token_is_minted_under_one_active_key(db, engine, make):
    """A waitpoint made while the key is rotated has a token that verifies."""
    execution = await make.execution("leased")
    keeper, *holders = await engines(db, 5)
    made = await together(
        *(one.waitpoint(execution.lease, f"k{n}") for n, one in enumerate(holders)),
        keeper.connection.fetch("select * from ff.rotate_hmac_key('next', '1 hour')"),
    )
    tokens = [one[1] for one in made[:-1]]
    answers = await engine.signal_many(
        [{"execution_id": execution.id, "name": None, "token": token} for token in tokens]
    )
    assert {one.word for one in answers} == {"accepted"}


async def test_answers_of_one_approver_at_once_are_one(db, engine, make):
    execution = await make.execution("leased")
    lease = execution.lease
    row = await db.fetchrow(
        "select * from ff.create_approval(0::smallint, null, $1, $2, $3, $4, $5, $6, $7, '?', "
        "null, null, 2, 1)",
        lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id, uuid4(),
        [uuid4(), uuid4()], ["ada", "bob"],
    )  # fmt: skip
    several = await engines(db, 6)
    items = [
        {"execution_id": execution.id, "name": name, "token": row["tokens"][0]}
        for name in ("approved", "rejected") * 3
    ]
    answers = await together(
        *(one.signal_many([item]) for one, item in zip(several, items, strict=True))
    )
    words = sorted(answer.word for (answer,) in answers)
    assert words == ["accepted", *["already_answered"] * 3, *["duplicate"] * 2]


async def test_one_operator_for_two_approvers_at_once_answers_once(db, engine, make):
    execution = await make.execution("leased")
    lease = execution.lease
    await db.fetchrow(
        "select * from ff.create_approval(0::smallint, null, $1, $2, $3, $4, $5, $6, $7, '?', "
        "null, null, 2, 1)",
        lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id, uuid4(),
        [uuid4(), uuid4()], ["ada", "bob"],
    )  # fmt: skip
    first, second = await engines(db, 2)
    call = (
        "select * from ff.deliver_approval_signal(0::smallint, null, $1, 'approved', 'eve', $2, $3)"
    )
    async with open_transaction(first):
        await first.connection.fetch(call, execution.id, uuid4(), "ada")
        late = asyncio.create_task(second.connection.fetch(call, execution.id, uuid4(), "bob"))
        await until_blocked(db, second, late)
    with refused("WF245"):
        await late


async def test_an_answer_by_token_on_its_way_comes_before_an_operators(db, engine, make):
    execution = await make.execution("leased")
    lease = execution.lease
    (token,) = await db.fetchval(
        "select tokens from ff.create_approval(0::smallint, null, $1, $2, $3, $4, $5, $6, "
        "array['ops'], '?', null, null, 1, 1)",
        lease.execution_id,
        lease.lease_id,
        lease.epoch,
        lease.attempt_id,
        uuid4(),
        [uuid4()],
    )
    approver, operator = await engines(db, 2)
    async with open_transaction(approver):
        sent = {"execution_id": execution.id, "name": "approved", "token": token}
        (first,) = await approver.signal_many([sent], join=True)
        late = asyncio.create_task(
            operator.connection.fetchrow(
                "select * from ff.deliver_approval_signal(0::smallint, null, $1, 'approved', "
                "'ada', $2, 'ops')",
                execution.id,
                uuid4(),
            )
        )
        await until_blocked(db, operator, late)
    answer = await late
    assert (answer["outcome"], answer["signal_id"]) == ("duplicate", first.signal_id)
