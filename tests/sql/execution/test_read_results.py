"""ff.read_results: how executions ended."""

from __future__ import annotations

import pytest

from support.factories import Item, new_id, refused


async def test_a_result_is_told_byte_for_byte(clock, engine, make):
    execution = await make.execution("leased")
    now = await clock.freeze()
    await engine.complete(execution.last_lease, b"\x00[1]", encoding="json")
    (row,) = (await engine.results([execution.id])).values()
    assert dict(row) == {
        "execution_id": execution.id,
        "public_state": "completed",
        "terminal_at": now,
        "attempt_index": 0,
        "result_encoding": "json",
        "result": b"\x00[1]",
        "failure_class": None,
        "failure_category": None,
        "failure_reason": None,
        "failure_detail": None,
    }


async def test_a_failure_is_told_with_its_cause(engine, make):
    execution = await make.execution("retried")
    await engine.fail(
        execution.last_lease, "permanent", "no such file", category="io", detail=b"trace"
    )
    row = (await engine.results([execution.id]))[execution.id]
    assert (row["public_state"], row["attempt_index"]) == ("failed", 1)
    assert (row["failure_class"], row["failure_category"]) == ("permanent", "io")
    assert (row["failure_reason"], row["failure_detail"]) == ("no such file", b"trace")
    assert row["result"] is row["result_encoding"] is None


async def test_an_execution_that_lost_its_workers_is_told_as_failed(engine, make):
    execution = await make.execution("over_the_cap")
    row = (await engine.results([execution.id]))[execution.id]
    assert (row["public_state"], row["failure_class"]) == ("failed", "infra_crash")
    assert row["failure_category"] == "reclaim_cap_exceeded"


@pytest.mark.parametrize(
    "state", ["waiting", "delayed", "leased", "interrupted", "retry_delayed", "expired_lease"]
)
async def test_a_live_execution_has_no_row(engine, make, state):
    execution = await make.execution(state)
    assert await engine.results([execution.id]) == {}


async def test_only_those_that_ended_are_told(engine):
    answers = await engine.submit_many([Item()] * 6)
    leases = await engine.claim(4)
    await engine.complete_many(leases[:2])
    ids = [answer.id for answer in answers] + [new_id(), None]
    found = await engine.results(ids)
    assert set(found) == {lease.execution_id for lease in leases[:2]}


async def test_another_namespace_sees_nothing_and_an_operator_sees_all(engine, make):
    execution = await make.execution("completed")
    assert await engine.within("other").results([execution.id]) == {}
    assert set(await engine.within(None).results([execution.id])) == {execution.id}


@pytest.mark.parametrize("size", [0, 1001])
async def test_one_to_a_thousand_are_asked_for(engine, size):
    with refused("WF001", message="invalid_input", field="execution_ids"):
        await engine.results([new_id()] * size)


async def test_a_read_writes_nothing(engine, make):
    execution = await make.execution("completed")
    before = await engine.snapshot()
    await engine.results([execution.id])
    assert await engine.snapshot() == before
