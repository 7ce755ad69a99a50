"""ff.complete_executions: the result, the fence, and the same answer again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import TTL, Engine, Item, new_id, refused
from support.hints import hints

MIB = 1024 * 1024


async def leases_of(engine, count):
    await engine.submit_many([Item()] * count)
    return await engine.claim(count)


# T12


async def test_a_completed_execution_keeps_its_result_and_loses_its_lease(clock, engine, make):
    execution = await make.execution("leased")
    lease = execution.last_lease
    await clock.advance(seconds=5)
    now = await clock.freeze()
    assert (await engine.complete(lease, b'{"a": 1}', encoding="json")).word == "completed"

    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "terminal",
        "unowned",
        "not_applicable",
    )
    assert (row["blocking_reason"], row["outcome"], row["attempt_state"], row["cause"]) == (
        "none",
        "success",
        "attempt_terminal",
        "complete",
    )
    assert row["public_state"] == "completed"
    assert (row["result"], row["result_encoding"]) == (b'{"a": 1}', "json")
    assert row["terminal_at"] == row["transitioned_at"] == row["attempt_ended_at"] == now
    assert row["attempt_ended_as"] == "ended_success"
    for column in ("lease_id", "lease_expires_at", "worker_id", "worker_instance_id", "due_at"):
        assert row[column] is None, column
    assert (row["last_lease_id"], row["last_lease_end"]) == (lease.lease_id, "complete")
    assert (row["last_worker_id"], row["last_worker_instance_id"]) == ("pool", "pool-1")
    # the epoch and the attempt survive, so that the holder can prove what it did
    assert (row["epoch"], row["attempt_id"]) == (lease.epoch, lease.attempt_id)

    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["outcome"], event["version"]) == ("completed", "success", 3)
    assert (event["lease_id"], event["epoch"]) == (lease.lease_id, lease.epoch)
    assert (event["attempt_index"], event["worker_instance_id"]) == (0, "pool-1")
    assert event["occurred_at"] == now
    assert await engine.attempts(execution.id) == []


@pytest.mark.parametrize(
    ("result", "encoding"),
    [(None, None), (b"", None), (b"\x00\xff", "raw"), (b"x" * MIB, "json")],
    ids=["none", "empty", "binary", "1 MiB"],
)
async def test_any_result_up_to_a_mebibyte_is_kept_byte_for_byte(engine, make, result, encoding):
    execution = await make.execution("leased")
    assert (await engine.complete(execution.last_lease, result, encoding=encoding)).word == (
        "completed"
    )
    row = await engine.row(execution.id)
    assert (row["result"], row["result_encoding"]) == (result, encoding)


async def test_results_may_be_left_out_altogether(engine):
    leases = await leases_of(engine, 3)
    assert {answer.word for answer in await engine.complete_many(leases)} == {"completed"}


@pytest.mark.parametrize("state", ["resumed", "retried", "reclaimed"])
async def test_a_later_holder_completes(engine, make, state):
    execution = await make.execution(state)
    assert (await engine.complete(execution.last_lease)).word == "completed"
    assert (await engine.row(execution.id))["public_state"] == "completed"


async def test_a_renewed_lease_completes_after_its_first_expiry(clock, engine, make):
    execution = await make.execution("leased")
    await clock.advance(TTL - timedelta(seconds=1))
    await engine.renew(execution.last_lease)
    await clock.advance(TTL - timedelta(seconds=1))
    assert (await engine.complete(execution.last_lease)).word == "completed"


async def test_a_whole_batch_is_completed_without_a_word(db, engine):
    leases = await leases_of(engine, 500)
    rows = await db.fetch(
        f"select * from ff.complete_executions('{home()}', 'test', $1, $2, $3, $4, null)",
        [lease.execution_id for lease in leases],
        [lease.lease_id for lease in leases],
        [lease.epoch for lease in leases],
        [lease.attempt_id for lease in leases],
    )
    assert rows == []
    assert {row["public_state"] for row in await engine.rows()} == {"completed"}


# Refusals


async def test_a_late_completion_is_refused_and_marks_the_lease_expired(clock, engine, make):
    execution = await make.execution("leased")
    await clock.advance(TTL + timedelta(milliseconds=1))
    now = await clock.freeze()
    assert (await engine.complete(execution.last_lease)).word == "lease_expired"
    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["attempt_state"], row["cause"]) == (
        "active",
        "lease_expired_reclaimable",
        "attempt_interrupted",
        "expire_lease",
    )
    assert (row["result"], row["terminal_at"], row["transitioned_at"]) == (None, None, now)
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]
    assert len(await engine.claim()) == 1


async def test_a_lease_is_over_at_the_moment_of_its_expiry(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("leased")
    other = await make.execution("leased")
    await clock.set(execution.last_lease.lease_expires_at - timedelta(microseconds=1))
    assert (await engine.complete(other.last_lease)).word == "completed"
    await clock.set(execution.last_lease.lease_expires_at)
    assert (await engine.complete(execution.last_lease)).word == "lease_expired"


@pytest.mark.parametrize(
    "forgery",
    [
        {"lease_id": uuid4()},
        {"epoch": 0},
        {"epoch": 2},
        {"attempt_id": uuid4()},
        {"lease_id": uuid4(), "epoch": 2, "attempt_id": uuid4()},
    ],
    ids=["lease", "older epoch", "newer epoch", "attempt", "all"],
)
async def test_a_forged_fence_is_stale_and_writes_nothing(engine, make, forgery):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    assert (await engine.complete(replace(execution.last_lease, **forgery))).word == "stale_lease"
    assert await engine.snapshot() == before


@pytest.mark.parametrize("state", ["waiting", "delayed"])
async def test_an_execution_that_was_never_leased_is_not_active(engine, make, state):
    execution = await make.execution(state)
    some = await make.execution("leased")
    before = await engine.snapshot()
    answer = await engine.complete(replace(some.last_lease, execution_id=execution.id))
    assert answer.word == "not_active"
    assert answer.detail == {"phase": "runnable", "outcome": "none", "epoch": 0, "attempt_id": None}
    assert await engine.snapshot() == before


async def test_not_active_tells_how_the_execution_ended(engine, make):
    execution = await make.execution("failed")
    answer = await engine.complete(execution.last_lease)
    assert answer.word == "not_active"
    assert answer.detail == {
        "phase": "terminal",
        "outcome": "failed",
        "ended_by": "failed",
        "epoch": 1,
        "attempt_id": str(execution.last_lease.attempt_id),
    }


async def test_an_unknown_execution_is_not_found(engine, make):
    execution = await make.execution("leased")
    answer = await engine.complete(replace(execution.last_lease, execution_id=new_id()))
    assert answer.word == "not_found"


async def test_an_execution_of_another_namespace_is_not_found(engine, make):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    assert (await engine.within("other").complete(execution.last_lease)).word == "not_found"
    assert await engine.snapshot() == before
    assert (await engine.within(None).complete(execution.last_lease)).word == "completed"


@pytest.mark.parametrize("field", ["execution_id", "lease_id", "epoch", "attempt_id"])
async def test_a_fence_must_be_whole(engine, make, field):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    answer = await engine.complete(replace(execution.last_lease, **{field: None}))
    assert answer.word == "invalid"
    assert answer.detail["field"] == "fence"
    assert answer.detail["problem"] == "fence_required"
    assert await engine.snapshot() == before


async def test_a_result_that_is_too_large_is_refused_and_the_lease_stays(engine, make):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    answer = await engine.complete(execution.last_lease, b"x" * (MIB + 1))
    assert answer.word == "invalid"
    assert answer.detail["field"] == "result"
    assert await engine.snapshot() == before
    assert (await engine.complete(execution.last_lease, b"x")).word == "completed"


async def test_an_encoding_that_is_too_long_is_refused_and_the_lease_stays(engine, make):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    answer = await engine.complete(execution.last_lease, b"x", encoding="e" * 65)
    assert answer.word == "invalid"
    assert answer.detail["field"] == "result_encoding"
    assert await engine.snapshot() == before


async def test_a_locked_row_is_busy_and_harms_no_other(db, engine):
    leases = await leases_of(engine, 5)
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update",
            leases[2].execution_id,
        )
        answers = await engine.complete_many(leases)
        assert [answer.word for answer in answers] == [
            "completed",
            "completed",
            "busy",
            "completed",
            "completed",
        ]
    assert (await engine.complete(leases[2])).word == "completed"


async def test_a_single_item_may_wait_for_its_row_but_not_for_ever(db, engine, make):
    execution = await make.execution("leased")
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.execution for no key update")
        with refused("55P03"):
            await engine.complete(execution.last_lease, wait=True)
    assert (await engine.complete(execution.last_lease, wait=True)).word == "completed"


async def test_only_a_single_item_may_wait(engine):
    leases = await leases_of(engine, 2)
    with refused("WF001", message="invalid_input", field="wait"):
        await engine.complete_many(leases, wait=True)


@pytest.mark.parametrize("size", [0, 1001])
async def test_a_batch_has_one_to_a_thousand_items(engine, make, size):
    execution = await make.execution("leased")
    with refused("WF001", field="execution_ids"):
        await engine.complete_many([execution.last_lease] * size)


async def test_arrays_of_different_length_are_refused(engine):
    leases = await leases_of(engine, 2)
    with refused("WF001", field="execution_ids"):
        await engine.complete_many(leases, [b"1"])
    with refused("WF001", field="execution_ids"):
        await engine.complete_many(leases, [b"1", b"2"], ["json"])


async def test_a_mixed_batch_gets_an_answer_for_each_item(clock, engine, make):
    done = (await make.execution("completed")).last_lease
    failed = (await make.execution("failed")).last_lease
    late = (await make.execution("leased", ttl=timedelta(seconds=1))).last_lease
    await clock.advance(seconds=2)
    good = await leases_of(engine, 3)
    batch = [
        good[2],
        replace(good[0], execution_id=new_id()),
        failed,
        good[1],
        late,
        done,
        replace(good[0], epoch=9),
        good[0],
    ]
    results = [str(n).encode() for n in range(len(batch))]
    answers = await engine.complete_many(batch, results)
    assert [answer.word for answer in answers] == [
        "completed",
        "not_found",
        "not_active",
        "completed",
        "lease_expired",
        "completed",
        "stale_lease",
        # a second item for an execution, whatever the first one was worth
        "duplicate",
    ]
    assert (await engine.row(good[2].execution_id))["result"] == b"0"
    assert (await engine.row(good[1].execution_id))["result"] == b"3"
    assert (await engine.row(done.execution_id))["result"] == b"null"
    assert (await engine.row(good[0].execution_id))["public_state"] == "active"


async def test_of_two_items_for_one_execution_the_first_counts(engine, make):
    execution = await make.execution("leased")
    lease = execution.last_lease
    answers = await engine.complete_many([lease, lease], [b"first", b"second"])
    assert answers[0].word == "completed"
    assert answers[1].word in ("completed", "duplicate")
    assert (await engine.row(execution.id))["result"] == b"first"
    assert (await engine.kinds(execution.id)).count("completed") == 1


FORGED = {"good": {}, "lease": {"lease_id": uuid4()}, "epoch": {"epoch": 9}}
FORGED["attempt"] = {"attempt_id": uuid4()}


@pytest.mark.parametrize("forged", FORGED)
async def test_a_value_that_all_items_share_may_be_given_once(engine, forged):
    leases = await leases_of(engine, 3)
    ids = [lease.execution_id for lease in leases]
    missing = new_id()
    fence = replace(leases[0], **FORGED[forged])
    answers = await engine.complete_alike([*ids, missing, ids[0]], fence, b"7")
    words = [answer.word for answer in answers]
    if forged == "good":
        assert words[:4] == ["completed"] * 3 + ["not_found"]
        assert {(await engine.row(id_))["result"] for id_ in ids} == {b"7"}
        assert await engine.complete_alike(ids, fence, b"8") == answers[:3]
    else:
        assert words == ["stale_lease"] * 3 + ["not_found", "duplicate"]
        assert {(await engine.row(id_))["public_state"] for id_ in ids} == {"active"}


@pytest.mark.parametrize("name", ["lease_id", "epoch", "attempt_id", "result"])
async def test_a_value_is_given_once_or_in_an_array(engine, name):
    """Given both ways, the value filled gaps of the array: a result of nothing became another."""
    (lease,) = await leases_of(engine, 1)
    fence = {key: getattr(lease, key) for key in ("lease_id", "epoch", "attempt_id")}
    values = fence | {"result": b"7"}
    with refused("WF001", field="lease_id"):
        await engine.connection.execute(
            "select ff.complete_executions(p_partition_key => $1, p_namespace => $2, "
            "p_execution_ids => $3, p_lease_ids => array[$4::uuid], "
            "p_epochs => $5, p_attempt_ids => $6, p_results => array[null::bytea], "
            f"p_{name} => $7)",
            *(engine.partition_key, engine.namespace, [lease.execution_id], lease.lease_id),
            *([lease.epoch], [lease.attempt_id], values[name]),
        )
    assert (await engine.row(lease.execution_id))["public_state"] == "active"


# Replay


async def test_the_lease_that_completed_gets_the_same_answer_again(clock, engine, make):
    execution = await make.execution("completed")
    before = await engine.snapshot()
    await clock.advance(days=1)
    assert (await engine.complete(execution.last_lease, b"other")).word == "completed"
    assert (await engine.complete(execution.last_lease, wait=True)).word == "completed"
    assert await engine.snapshot() == before


async def test_a_repeated_batch_gets_the_same_answers_again(engine):
    leases = await leases_of(engine, 20)
    await engine.complete_many(leases[:10])
    answers = await engine.complete_many(leases)
    assert {answer.word for answer in answers} == {"completed"}
    assert (await engine.kinds()).count("completed") == 20


# Hints


async def test_a_completion_hints_that_something_ended(db, engine):
    leases = await leases_of(engine, 10)
    assert await hints(db, "ff_ended", lambda: engine.complete_many(leases[:5])) == [f"{home()}"]
    assert await hints(db, "ff_ended", lambda: engine.complete_many(leases[:5])) == []
    assert await hints(db, "ff_ended", lambda: engine.complete_many(leases[5:], hint=False)) == []


async def test_two_completions_at_once_end_it_once(db, engine, make):
    """The loser waits for the winner's commit, and then finds another state, not its own."""
    execution = await make.execution("leased")
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    assert (await Engine(other).complete(execution.last_lease, b"1")).word == "completed"
    assert (await engine.complete(execution.last_lease, b"2")).word == "busy"
    await transaction.commit()
    assert (await engine.complete(execution.last_lease, b"2")).word == "completed"
    assert (await engine.row(execution.id))["result"] == b"1"


async def test_expiry_is_told_before_a_wrong_epoch(engine, make, clock):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await engine.complete(replace(execution.last_lease, epoch=9))).word == "lease_expired"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
