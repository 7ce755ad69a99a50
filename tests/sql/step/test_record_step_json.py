"""record_step_json: one step by any driver, in the transaction of its own writes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from support.factories import Engine, Lease, refused

ANOTHER = UUID("01234567-89ab-7def-8123-456789abcdef")


def step_of(lease: Lease, **changes: Any) -> dict[str, Any]:
    return {
        "execution_id": str(lease.execution_id),
        "lease_id": str(lease.lease_id),
        "epoch": lease.epoch,
        "attempt_id": str(lease.attempt_id),
        "name": "book",
        "occurrence": 0,
        "position": 0,
        "is_sequential": True,
        "follows": -1,
        "value_base64": "Nw==",
        "encoding": "json",
        **changes,
    }


async def record(engine: Engine, step: Any, database: str | None = None) -> dict[str, Any]:
    answer = await engine.connection.fetchval(
        "select ff.record_step_json($1, $2, $3::jsonb, $4)",
        engine.partition_key,
        engine.namespace,
        None if step is None else json.dumps(step),
        database,
    )
    return json.loads(answer)


async def test_a_step_is_recorded_once_and_a_repeat_gets_what_was_stored(engine, make):
    lease = (await make.execution("leased")).lease
    first = await record(engine, step_of(lease))
    assert (first["outcome"], first["attempt_index"], first["value_base64"]) == (
        *("recorded", 0),
        None,
    )
    again = await record(engine, step_of(lease, value_base64="OA=="))
    assert (again["outcome"], again["value_base64"], again["encoding"]) == (
        *("exists", "Nw=="),
        "json",
    )
    (row,) = await engine.steps(lease.execution_id)
    assert (row["name"], row["value"], row["kind"]) == ("book", b"7", "step")
    assert row["recorded_at"].isoformat()[:19] == first["recorded_at"][:19]


async def test_it_is_rolled_back_with_its_transaction(engine, make):
    lease = (await make.execution("leased")).lease
    transaction = engine.connection.transaction()
    await transaction.start()
    assert (await record(engine, step_of(lease)))["outcome"] == "recorded"
    await transaction.rollback()
    assert await engine.steps(lease.execution_id) == []


@pytest.mark.parametrize(
    ("forged", "word"),
    [
        ({"epoch": 99}, "stale_lease"),
        ({"lease_id": ANOTHER}, "stale_lease"),
        ({"execution_id": ANOTHER}, "not_found"),
        ({"attempt_id": None}, "invalid"),
    ],
    ids=str,
)
async def test_a_wrong_fence_changes_nothing(engine, make, forged, word):
    lease = (await make.execution("leased")).lease
    before = await engine.snapshot()
    step = step_of(replace(lease, **forged))
    step |= {name: None for name, value in forged.items() if value is None}
    assert (await record(engine, step))["outcome"] == word
    assert await engine.snapshot() == before


async def test_a_locked_execution_is_busy_and_never_waited_for(engine, make, db):
    lease = (await make.execution("leased")).lease
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.execution for no key update")
        assert (await record(engine, step_of(lease)))["outcome"] == "busy"
    assert (await record(engine, step_of(lease)))["outcome"] == "recorded"


@pytest.mark.parametrize(
    "changes",
    [
        {"execution_id": "seven"},
        {"epoch": "seven"},
        {"position": 2**31},
        {"occurrence": 1.5},
        {"is_sequential": "perhaps"},
        {"value_base64": "?"},
        {"name": ""},
        {"follows": 7},
    ],
    ids=str,
)
async def test_a_bad_field_is_answered_and_leaves_the_transaction_usable(engine, make, changes):
    lease = (await make.execution("leased")).lease
    async with engine.connection.transaction():
        answer = await record(engine, step_of(lease, **changes))
        assert await engine.connection.fetchval("select 1") == 1
    assert (answer["outcome"], [answer["detail"]["field"]]) == ("invalid", [*changes])
    assert await engine.steps(lease.execution_id) == []


async def test_what_is_no_object_is_refused(engine):
    with refused("WF001", field="step"):
        await record(engine, [1])


async def test_another_database_is_told_apart(engine, make):
    lease = (await make.execution("leased")).lease
    here = (await record(engine, None))["database"]
    assert (await record(engine, step_of(lease), "elsewhere"))["detail"]["field"] == "database"
    assert await engine.steps(lease.execution_id) == []
    assert (await record(engine, step_of(lease), here))["outcome"] == "recorded"
