"""change_priority: another place in the order for whatever waits."""

from __future__ import annotations

import pytest

from support.factories import Engine, Item, new_id, refused


@pytest.mark.parametrize(
    "state",
    ["waiting", "delayed", "interrupted", "retry_delayed", "held", "blocked", "replayed"],
)
async def test_any_runnable_execution_gets_a_new_priority(engine, make, state):
    execution = await make.execution(state, priority=10)
    before = await engine.row(execution.id)
    answer = await engine.change_priority(execution.id, 70, actor="ann", reason="urgent")
    row = await engine.row(execution.id)
    assert (answer.word, answer.detail) == ("changed", {"old_priority": 10, "new_priority": 70})
    assert (row["rank"], row["version"]) == (9000 - 70, before["version"] + 1)
    assert row["transitioned_at"] == before["transitioned_at"]
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["actor"]) == ("priority_changed", "ann")


async def test_the_next_claim_follows_the_new_order(engine):
    route = await engine.register()
    first, second = [
        answer.id for answer in await engine.submit_many([Item(route=route), Item(route=route)])
    ]
    await engine.change_priority(second, 1)
    assert [lease.execution_id for lease in await engine.claim(2)] == [second, first]


@pytest.mark.parametrize(("given", "stored"), [(10_000, 9000), (-5, 0), (50, 50)])
async def test_a_priority_is_clamped(engine, make, given, stored):
    execution = await make.execution("waiting")
    answer = await engine.change_priority(execution.id, given)
    assert answer.detail["new_priority"] == stored


@pytest.mark.parametrize(
    "state", ["leased", "expired_lease", "revoked", "completed", "failed", "cancelled"]
)
async def test_what_does_not_wait_has_no_place_in_the_order(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    with refused("WF205"):
        await engine.change_priority(execution.id, 7)
    assert await engine.snapshot() == before


async def test_a_repeat_for_the_same_version_does_nothing(engine, make):
    execution = await make.execution("waiting")
    version = (await engine.row(execution.id))["version"]
    await engine.change_priority(execution.id, 7, if_version=version)
    again = await engine.change_priority(execution.id, 7, if_version=version)
    assert (again.word, again.detail) == ("already_applied", {"new_priority": 7})
    assert (await engine.kinds(execution.id)).count("priority_changed") == 1


async def test_bad_input_is_refused_and_nothing_changes(db, engine, make):
    execution = await make.execution("waiting")
    before = await engine.snapshot()
    with refused("WF001", field="priority"):
        await engine.change_priority(execution.id, None)
    with refused("WF001", field="actor"):
        await engine.change_priority(execution.id, 1, actor="x" * 300)
    with refused("WF301"):
        await engine.change_priority(new_id(), 1)
    with refused("WF301"):
        await Engine(db.conn, namespace="other").change_priority(execution.id, 1)
    assert await engine.snapshot() == before
