"""ff.renew_leases: a lease goes on, or its holder learns why not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import TTL, Item, new_id, refused


async def test_a_renewal_moves_the_expiry_and_nothing_else(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("leased")
    before = await engine.row(execution.id)
    events = await engine.events()
    now = await clock.advance(seconds=10)
    assert (await engine.renew(execution.last_lease)).word == "renewed"
    after = await engine.row(execution.id)
    changed = {column for column in before.keys() if before[column] != after[column]}  # noqa: SIM118
    assert changed == {"lease_expires_at", "mutated_at"}
    assert after["lease_expires_at"] == now + TTL
    assert after["mutated_at"] == now
    assert await engine.events() == events


async def test_a_renewal_counts_from_now_even_if_that_is_sooner(clock, engine, make):
    now = await clock.freeze()
    execution = await make.execution("leased", ttl=timedelta(hours=1))
    await engine.renew(execution.last_lease, timedelta(seconds=5))
    assert (await engine.row(execution.id))["lease_expires_at"] == now + timedelta(seconds=5)
    await clock.advance(seconds=5)
    assert (await engine.expire())[0] == 1


@pytest.mark.parametrize("ttl", [timedelta(seconds=1), timedelta(days=1)])
async def test_a_lease_is_renewed_for_as_long_as_was_asked(clock, engine, make, ttl):
    now = await clock.freeze()
    execution = await make.execution("leased")
    await engine.renew(execution.last_lease, ttl)
    assert (await engine.row(execution.id))["lease_expires_at"] == now + ttl


async def test_a_lease_is_kept_for_ever_by_renewing_it(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("leased")
    for _ in range(10):
        await clock.advance(TTL - timedelta(milliseconds=1))
        assert (await engine.renew(execution.last_lease)).word == "renewed"
        await engine.expire()
    assert (await engine.row(execution.id))["ownership"] == "leased"
    assert await engine.kinds(execution.id) == ["submitted", "claimed"]


@pytest.mark.parametrize("state", ["resumed", "retried", "reclaimed"])
async def test_a_later_holder_renews(engine, make, state):
    execution = await make.execution(state)
    assert (await engine.renew(execution.last_lease)).word == "renewed"


async def test_the_expiry_never_falls_behind_the_last_transition(clock, engine, make):
    now = await clock.freeze()
    execution = await make.execution("leased")
    await clock.advance(hours=-1)
    await engine.renew(execution.last_lease)
    assert (await engine.row(execution.id))["lease_expires_at"] == now + TTL


async def test_all_leases_of_a_process_are_renewed_without_a_word(clock, db, engine):
    await engine.submit_many([Item()] * 200)
    leases = await engine.claim(200)
    await clock.advance(seconds=20)
    rows = await db.fetch(
        f"select * from ff.renew_leases('{home()}', 'test', $1, $2, $3, $4, '30 s')",
        [lease.execution_id for lease in leases],
        [lease.lease_id for lease in leases],
        [lease.epoch for lease in leases],
        [lease.attempt_id for lease in leases],
    )
    assert rows == []
    await clock.advance(seconds=20)
    assert {answer.word for answer in await engine.renew_many(leases)} == {"renewed"}


async def test_a_late_renewal_is_refused_and_marks_the_lease_expired(clock, engine, make):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await engine.renew(execution.last_lease)).word == "lease_expired"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]
    before = await engine.snapshot()
    assert (await engine.renew(execution.last_lease)).word == "lease_expired"
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    ("forgery", "word"),
    [
        ({"lease_id": uuid4()}, "stale_lease"),
        ({"epoch": 0}, "stale_lease"),
        ({"epoch": 2}, "stale_lease"),
        ({"attempt_id": uuid4()}, "stale_lease"),
        ({"execution_id": new_id()}, "not_found"),
        ({"lease_id": None}, "invalid"),
        ({"epoch": None}, "invalid"),
        ({"attempt_id": None}, "invalid"),
        ({"execution_id": None}, "invalid"),
    ],
)
async def test_a_forged_fence_writes_nothing(engine, make, forgery, word):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    answer = await engine.renew(replace(execution.last_lease, **forgery))
    assert answer.word == word
    if word == "invalid":
        assert answer.detail["problem"] == "fence_required"
    assert await engine.snapshot() == before


async def test_not_active_tells_how_the_execution_ended(engine, make):
    execution = await make.execution("completed")
    answer = await engine.renew(execution.last_lease)
    assert answer.word == "not_active"
    assert answer.detail == {
        "phase": "terminal",
        "outcome": "success",
        "epoch": 1,
        "attempt_id": str(execution.last_lease.attempt_id),
        "ended_by": "completed",
    }


LOST = {
    "cancelled": ("not_active", {"actor": "ada", "source": "operator_override", "because": "no"}),
    "lease_revoked": ("lease_revoked", {"actor": "ada", "because": "no"}),
    "reclaimed": ("stale_lease", {"actor": "ada", "because": "no"}),
    "timed_out": ("not_active", {"timeout_ms": 2000}),
    "with_its_parent": ("not_active", {"source": "parent"}),
}


@pytest.mark.parametrize("how", LOST)
async def test_a_late_holder_is_told_how_it_lost_its_lease(clock, engine, make, how):
    word, facts = LOST[how]
    parent = await make.execution("leased")
    timeout = {"timeout_policy": {"attempt_timeout_ms": 2000}}
    execution = await make.execution(
        "leased", policy=timeout, parent=parent.id, with_parent=how == "with_its_parent"
    )
    match how:
        case "cancelled":
            await engine.cancel(execution.id, actor="ada", reason="no")
        case "with_its_parent":
            await engine.cancel(parent.id)
        case "timed_out":
            await clock.advance(timedelta(seconds=3))
        case _:
            await engine.revoke(execution.id, actor="ada", reason="no")
    if how == "reclaimed":
        await engine.take(execution.id)
    answer = await engine.renew(execution.last_lease)
    assert answer.word == word
    asked = {name: answer.detail.get(name) for name in facts}
    assert asked == facts
    ended_by = {"reclaimed": "lease_revoked", "timed_out": "expired"}
    assert answer.detail["ended_by"] == ended_by.get(
        how, how.replace("with_its_parent", "cancelled")
    )


async def test_an_execution_of_another_namespace_is_not_found(engine, make):
    execution = await make.execution("leased")
    assert (await engine.within("other").renew(execution.last_lease)).word == "not_found"
    assert (await engine.within(None).renew(execution.last_lease)).word == "renewed"


async def test_a_busy_lease_is_left_for_the_next_beat(db, clock, engine):
    await engine.submit_many([Item()] * 3)
    leases = await engine.claim()
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update",
            leases[1].execution_id,
        )
        words = [answer.word for answer in await engine.renew_many(leases)]
        assert words == ["renewed", "busy", "renewed"]
        missing = replace(leases[1], execution_id=new_id())
        assert (await engine.renew(missing)).word == "not_found"
    assert (await engine.renew(leases[1])).word == "renewed"


async def test_a_mixed_batch_gets_an_answer_for_each_item(clock, engine, make):
    done = (await make.execution("completed")).last_lease
    late = (await make.execution("leased", ttl=timedelta(seconds=1))).last_lease
    await clock.advance(seconds=2)
    await engine.submit_many([Item()] * 2)
    good = await engine.claim()
    answers = await engine.renew_many(
        [good[1], done, late, good[0], good[1], replace(good[0], execution_id=new_id())]
    )
    assert [answer.word for answer in answers] == [
        "renewed",
        "not_active",
        "lease_expired",
        "renewed",
        "duplicate",
        "not_found",
    ]


@pytest.mark.parametrize(
    "ttl", [None, timedelta(milliseconds=999), timedelta(days=1, microseconds=1), -TTL]
)
async def test_a_lease_lasts_between_a_second_and_a_day(engine, make, ttl):
    execution = await make.execution("leased")
    with refused("WF001", message="invalid_input", field="lease_ttl"):
        await engine.renew(execution.last_lease, ttl)


@pytest.mark.parametrize("size", [0, 1001])
async def test_a_batch_has_one_to_a_thousand_items(engine, make, size):
    lease = (await make.execution("leased")).last_lease
    with refused("WF001", field="execution_ids"):
        await engine.renew_many([lease] * size)


async def test_arrays_of_different_length_are_refused(db):
    with refused("WF001", field="execution_ids"):
        await db.execute(
            f"select ff.renew_leases('{home()}', 'test', array[$1]::uuid[], array[]::uuid[], "
            "array[1]::bigint[], array[$1]::uuid[], '30 s')",
            uuid4(),
        )
