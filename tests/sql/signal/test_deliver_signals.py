"""ff.deliver_signals, ff.notice_signals, ff.list_signals and ff.observe_signals."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from support.database import home
from support.factories import TTL, new_id, refused

HOUR = timedelta(hours=1)


async def test_a_signal_wakes_the_execution_that_waits_for_it(engine, make):
    execution = await make.execution("suspended")
    delivered = await engine.signal(execution.id, "approve", b"7")
    assert (delivered.word, delivered.effect) == ("accepted", "woken")
    row = await engine.row(execution.id)
    assert (row["phase"], row["eligibility"], row["blocking_reason"]) == (
        "runnable",
        "eligible_now",
        "waiting_for_worker",
    )
    assert (row["attempt_state"], row["public_state"]) == ("attempt_interrupted", "waiting")
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "suspended", "woken"]
    (suspension,) = await engine.suspensions(execution.id)
    assert suspension["close_reason"] == "resumed"
    (event,) = [one for one in await engine.events(execution.id) if one["kind"] == "woken"]
    assert str(delivered.signal_id) in event["detail"]


async def test_the_woken_attempt_goes_on_and_takes_the_signal(engine, make, db):
    execution = await make.execution("suspended")
    before = await engine.row(execution.id)
    signal = await engine.signal(execution.id, "approve", b"7", encoding="json")
    lease = await engine.take(execution.id, lanes=["lane-1"])
    assert (lease.attempt_id, lease.epoch) == (before["attempt_id"], before["epoch"] + 1)
    (seen,) = await engine.observed(lease)
    assert (seen["signal_id"], seen["payload"], seen["name"]) == (signal.signal_id, b"7", "approve")
    taken = await engine.ask(lease, take=True)
    assert (taken.word, taken.taken_as, taken.value, taken.encoding) == (
        "taken",
        "signals",
        b"7",
        "json",
    )
    assert taken.signal_ids == [signal.signal_id]
    (row,) = await engine.signals(execution.id)
    assert (row["wait_name"], row["wait_occurrence"]) == ("approve", 0)
    # To be woken is not to be completed.
    assert await db.fetchval("select count(*) from ff.completion_feed") == 0


async def test_a_signal_for_another_name_is_kept_and_wakes_nobody(engine, make):
    execution = await make.execution("suspended")
    delivered = await engine.signal(execution.id, "other")
    assert (delivered.word, delivered.effect) == ("accepted", "buffered")
    assert (await engine.row(execution.id))["public_state"] == "suspended"


@pytest.mark.parametrize("state", ["waiting", "delayed", "leased", "retry_delayed", "held"])
async def test_a_signal_before_the_wait_is_kept_for_it(engine, make, state):
    execution = await make.execution(state)
    before = await engine.row(execution.id)
    assert (await engine.signal(execution.id)).effect == "buffered"
    assert await engine.row(execution.id) == before


async def test_a_kept_signal_satisfies_the_wait_at_its_first_ask(engine, make):
    execution = await make.execution("leased")
    await engine.signal(execution.id, "approve", b"1")
    assert (await engine.ask(execution.lease, take=True)).value == b"1"


async def test_signals_are_taken_in_the_order_of_their_notice_each_once(engine, make, clock):
    execution = await make.execution("leased")
    for payload in (b"1", b"2", b"3"):
        await engine.signal(execution.id, "note", payload)
        await clock.advance(seconds=1)
    values = [
        (await engine.ask(execution.lease, "note", n, position=n, take=True)).value
        for n in range(3)
    ]
    assert values == [b"1", b"2", b"3"]
    assert (await engine.ask(execution.lease, "note", 3, position=3, take=True)).word == "open"


async def test_the_same_signal_twice_is_a_duplicate_and_wakes_once(engine, make):
    execution = await make.execution("suspended")
    id = new_id()
    assert (await engine.signal(execution.id, signal_id=id)).word == "accepted"
    again = await engine.signal(execution.id, signal_id=id)
    assert (again.word, again.signal_id, again.effect) == ("duplicate", id, None)
    assert len(await engine.signals(execution.id)) == 1
    assert (await engine.kinds(execution.id)).count("woken") == 1


async def test_a_repeat_is_a_duplicate_also_after_the_execution_has_ended(engine, make):
    execution = await make.execution("leased")
    id = new_id()
    await engine.signal(execution.id, signal_id=id, dedup_key="k")
    await engine.complete(execution.lease)
    again = await engine.signal(execution.id, signal_id=id)
    assert (again.word, again.signal_id, again.effect) == ("duplicate", id, None)
    by_key = await engine.signal(execution.id, dedup_key="k")
    assert (by_key.word, by_key.signal_id) == ("duplicate", id)
    assert (await engine.signal(execution.id)).word == "not_signalable"


async def test_the_same_key_to_the_same_name_is_a_duplicate(engine, make):
    one, two = await make.execution("leased"), await make.execution("leased")
    first = await engine.signal(one.id, dedup_key="k")
    again = await engine.signal(one.id, dedup_key="k", payload=b"other")
    assert (again.word, again.signal_id) == ("duplicate", first.signal_id)
    assert (await engine.signal(one.id, "other", dedup_key="k")).word == "accepted"
    assert (await engine.signal(two.id, dedup_key="k")).word == "accepted"


async def test_two_signals_with_one_id_or_key_in_one_call_are_stored_once(engine, make):
    execution = await make.execution("leased")
    id = new_id()
    answers = await engine.signal_many(
        [
            {"execution_id": execution.id, "signal_id": id},
            {"execution_id": execution.id, "signal_id": id},
            {"execution_id": execution.id, "dedup_key": "k"},
            {"execution_id": execution.id, "dedup_key": "k"},
        ]
    )
    assert sorted(one.word for one in answers) == ["accepted", "accepted", "duplicate", "duplicate"]
    assert answers[0].signal_id == answers[1].signal_id
    assert answers[2].signal_id == answers[3].signal_id
    assert len(await engine.signals(execution.id)) == 2


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
async def test_an_ended_execution_takes_no_signal(engine, make, state):
    execution = await make.execution(state)
    assert (await engine.signal(execution.id)).word == "not_signalable"
    assert await engine.signals(execution.id) == []


async def test_an_unknown_or_foreign_execution_is_not_found(engine, make):
    execution = await make.execution("suspended")
    assert (await engine.signal(new_id())).word == "not_found"
    assert (await engine.within("other").signal(execution.id)).word == "not_found"
    assert await engine.within("other").signals(execution.id) == []
    assert (await engine.row(execution.id))["public_state"] == "suspended"


async def test_a_large_payload_is_refused_with_its_size(engine, make):
    execution = await make.execution("leased")
    assert (await engine.signal(execution.id, payload=b"x" * 65_536)).word == "accepted"
    refusal = await engine.signal(execution.id, payload=b"x" * 65_537)
    assert (refusal.word, refusal.detail) == (
        "payload_too_large",
        {"bytes": 65_537, "limit": 65_536},
    )


async def test_ten_thousand_untaken_signals_are_the_limit(engine, make):
    execution = await make.execution("leased")
    for _ in range(10):
        await engine.signal_many([{"execution_id": execution.id, "payload": None}] * 1000)
    refusal = await engine.signal(execution.id)
    assert (refusal.word, refusal.detail) == ("signal_limit_exceeded", {"limit": 10_000})
    await engine.ask(execution.lease, take=True)
    assert (await engine.signal(execution.id)).word == "accepted"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"signal_id": UUID(int=0)}, "signal_id"),
        ({"execution_id": None}, "execution_id"),
        ({"dedup_key": ""}, "dedup_key"),
        ({"source_identity": "x" * 257}, "source_identity"),
        ({"source_type": "x" * 65}, "source_type"),
        ({"category": "x" * 65}, "category"),
        ({"correlation_id": "x" * 257}, "correlation_id"),
        ({"encoding": "x" * 65}, "payload_encoding"),
    ],
)
async def test_bad_input_names_the_field_and_stores_nothing(engine, make, given, field):
    execution = await make.execution("leased")
    (answer,) = await engine.signal_many([{"execution_id": execution.id, **given}])
    assert (answer.word, answer.detail["field"]) == ("invalid", field)
    assert await engine.signals(execution.id) == []


async def test_a_bad_item_does_not_hold_up_the_others(engine, make):
    one, two = await make.execution("suspended"), await make.execution("suspended")
    answers = await engine.signal_many(
        [
            {"execution_id": two.id},
            {"execution_id": one.id, "name": ""},
            {"execution_id": new_id()},
            {"execution_id": one.id},
        ]
    )
    assert [one.word for one in answers] == ["accepted", "invalid", "not_found", "accepted"]
    assert [one.effect for one in answers] == ["woken", None, None, "woken"]


async def test_a_batch_larger_than_the_limit_is_refused(engine, make):
    with refused("WF001", field="execution_ids"):
        await engine.signal_many([])


async def test_a_sender_does_not_wait_for_a_locked_execution(engine, make, db):
    execution = await make.execution("suspended")
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.execution for no key update")
        delivered = await asyncio.wait_for(engine.signal(execution.id), 60)
        assert (delivered.word, delivered.effect) == ("accepted", "stored")
    assert (await engine.row(execution.id))["public_state"] == "suspended"
    assert (await engine.notice())[0] == 1
    assert (await engine.row(execution.id))["public_state"] == "waiting"
    assert (await engine.notice()) == (0, None)


async def test_a_signal_in_the_callers_transaction_locks_no_execution(engine, make, db, clock):
    execution = await make.execution("leased")
    caller = await db.connect()
    async with caller.transaction():
        joined = engine.on(caller)
        assert (await joined.signal(execution.id, join=True)).effect == "stored"
        # The holder renews and asks while the transaction is open, for longer than a lease.
        for _ in range(3):
            await clock.advance(TTL * 0.6)
            assert (await asyncio.wait_for(engine.renew(execution.lease), 10)).word == "renewed"
            assert (await asyncio.wait_for(engine.ask(execution.lease), 10)).word == "open"
    assert (await engine.ask(execution.lease, take=True)).word == "taken"


async def test_a_rolled_back_signal_was_never_sent(engine, make, db):
    execution = await make.execution("suspended")
    caller = await db.connect()
    transaction = caller.transaction()
    await transaction.start()
    await engine.on(caller).signal(execution.id, join=True)
    await transaction.rollback()
    assert (await engine.notice()) == (0, None)
    assert await engine.signals(execution.id) == []


async def test_an_open_sender_with_the_same_key_makes_a_batch_busy(engine, make, db):
    execution = await make.execution("leased")
    caller = await db.connect()
    async with caller.transaction():
        await engine.on(caller).signal(execution.id, dedup_key="k", join=True)
        answer = await asyncio.wait_for(engine.signal(execution.id, dedup_key="k"), 60)
        assert answer.word == "busy"
    assert (await engine.signal(execution.id, dedup_key="k", wait=True)).word == "duplicate"


async def test_a_signal_whose_execution_was_trimmed_meanwhile_is_deleted(engine, make, db, clock):
    execution = await make.execution("leased")
    caller = await db.connect()
    async with caller.transaction():
        await engine.on(caller).signal(execution.id, join=True)
        await engine.complete(execution.lease)
        await clock.advance(days=60)
        await engine.connection.execute(f"select ff.trim_executions('{home()}')")
    await engine.notice()
    assert await db.fetchval("select count(*) from ff.signal") == 0
    assert await db.fetchval("select count(*) from ff.signal_inbox") == 0


async def test_the_signal_list_is_read_page_by_page(engine, make, clock):
    execution = await make.execution("leased")
    for n in range(5):
        await engine.signal(execution.id, "note", str(n).encode())
        await clock.advance(seconds=1)
    first = await engine.signals(execution.id, limit=3)
    rest = await engine.signals(execution.id, after=first[-1]["signal_id"], limit=3)
    assert [row["payload"] for row in first + rest] == [b"0", b"1", b"2", b"3", b"4"]


async def test_only_the_holder_observes_signals(engine, make):
    execution = await make.execution("suspended")
    await engine.signal(execution.id)
    with refused("WF101"):
        await engine.observed(execution.lease)
    lease = await engine.take(execution.id, lanes=["lane-1"])
    assert len(await engine.observed(lease)) == 1


async def test_a_first_claim_observes_nothing(engine, make):
    execution = await make.execution("leased")
    await engine.signal(execution.id)
    assert await engine.observed(execution.lease) == []


async def test_two_concurrent_signals_wake_once_and_both_are_kept(engine, make, db):
    execution = await make.execution("suspended")
    others = [engine.on(await db.connect()) for _ in range(4)]
    answers = await asyncio.gather(*(one.signal(execution.id) for one in others))
    assert {one.word for one in answers} == {"accepted"}
    await engine.notice()
    assert (await engine.kinds(execution.id)).count("woken") == 1
    assert len(await engine.signals(execution.id)) == 4
