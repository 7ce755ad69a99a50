"""Operations on executions through the client: answers, repeats, and calls that are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.addresses import address
from flowfabric.core.errors import (
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotTerminal,
    ExecutionTerminal,
    InvalidInput,
    MaxReplaysExhausted,
    StaleLease,
)
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.states import EventKind, PublicState
from flowfabric.db import functions

ROUTE = Route("default", "default", "tests.work")


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url) as client:
        yield client


async def submitted(client, **options):
    submission = Submission(id=mint(), route=ROUTE, payload=b"null", **options)
    return (await client.executions.submit(submission)).id


async def claimed(client, **options):
    await submitted(client, **options)
    (one,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    return one


async def kinds(client, id):
    return [str(event.kind) for event in await client.executions.events(id)]


async def test_an_operator_leads_an_execution_from_end_to_end(client):
    id = await submitted(client)
    executions = client.executions
    assert (await executions.change_priority(id, 5, actor="ann")).detail["new_priority"] == 5
    assert (await executions.block_for_admission(id, "paused_by_operator", actor="ann")).outcome
    assert (await executions.retry(id, actor="ann")).outcome == "unblocked"
    assert (await executions.cancel(id, reason="no", actor="ann")).public_state == "cancelled"
    assert (await executions.cancel(id)).outcome == "cancelled"
    assert (await executions.replay(id, actor="ann")).outcome == "replayed"
    assert await kinds(client, id) == [
        "submitted",
        "priority_changed",
        "blocked",
        "unblocked",
        "cancelled",
        "replayed",
    ]
    events = await executions.events(id)
    assert {event.actor for event in events[1:]} == {"ann"}
    assert events[4].detail["reason"] == "no"


async def test_a_holder_reports_delays_and_holds(client):
    one = await claimed(client)
    await client.executions.report_progress(one, 10, "begun")
    until = await client.executions.delay(one, timedelta(hours=1))
    assert until is not None
    assert await client.executions.state(one.id) == PublicState.DELAYED
    await client.executions.retry(one.id)
    (one,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    await client.executions.hold(one, "look at this", step="pay")
    assert (await client.executions.unblock(one.id)).outcome == "unblocked"
    (one,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    await client.executions.wait_children(one)
    (one,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    answer = await client.executions.cancel(one.id, source="lease_holder", claimed=one)
    assert answer.public_state == PublicState.CANCELLED


async def test_a_lease_is_revoked_by_the_client(client):
    one = await claimed(client)
    aimed = await client.leases.revoke(one.id, worker_instance_id="other")
    assert (aimed.outcome, aimed.detail["reason"]) == (
        "already_satisfied",
        "different_worker_instance_id",
    )
    assert (await client.leases.revoke(one.id, lease_id=one.lease_id)).outcome == "revoked"


async def test_an_operation_goes_on_when_somebody_else_was_faster(client, monkeypatch):
    """The version moves between the look and the call; it is tried again as things are now."""
    id = await submitted(client)
    real = client.database.call
    moved = 0

    async def call(statement, **arguments):
        nonlocal moved
        rows = await real(statement, **arguments)
        if statement is functions.READ_VERSION and moved < 2:
            moved += 1
            kind = "waiting_for_budget" if moved == 1 else "waiting_for_quota"
            await real(
                functions.BLOCK_EXECUTION_FOR_ADMISSION,
                **address(id, "default"),
                blocking_reason=kind,
                detail=None,
                actor="bob",
            )
        return rows

    monkeypatch.setattr(client.database, "call", call)
    answer = await client.executions.change_priority(id, 9, actor="ann")
    assert (moved, answer.outcome) == (2, "changed")


async def test_a_call_whose_answer_was_lost_is_not_made_twice(client, monkeypatch):
    """As after a lost connection: the first call took effect, its repeat is told so."""
    one = await claimed(client)
    await client.executions.complete(one)
    real = client.database.call

    async def twice(statement, **arguments):
        if statement is functions.REPLAY_EXECUTION:
            await real(statement, **arguments)
        return await real(statement, **arguments)

    monkeypatch.setattr(client.database, "call", twice)
    answer = await client.executions.replay(one.id)
    assert (answer.outcome, answer.public_state) == ("already_applied", "waiting")
    assert (await kinds(client, one.id)).count(EventKind.REPLAYED) == 1


async def test_ten_operators_at_once_replay_once(client):
    one = await claimed(client)
    await client.executions.complete(one)
    answers = await asyncio.gather(
        *(client.executions.replay(one.id) for _ in range(10)), return_exceptions=True
    )
    assert sum(getattr(answer, "outcome", "") == "replayed" for answer in answers) == 1
    assert all(
        isinstance(answer, ExecutionNotTerminal)
        or answer.outcome in ("replayed", "already_applied")
        for answer in answers
    )
    assert (await client.executions.describe(one.id)).replay_count == 1


async def test_two_operators_who_want_different_things_both_get_an_answer_that_is_true(client):
    """What somebody else wrote at the same moment is not taken for one's own lost answer."""
    for _ in range(10):
        id = await submitted(client)
        answers = await asyncio.gather(
            client.executions.change_priority(id, 100, actor="ann"),
            client.executions.change_priority(id, 200, actor="bob"),
        )
        assert [answer.outcome for answer in answers] == ["changed", "changed"]
        actors = [event.actor for event in await client.executions.events(id)][1:]
        assert sorted(actors) == ["ann", "bob"]


async def test_a_cancel_for_a_version_lets_alone_what_has_moved_on(client):
    one = await claimed(client)
    answer = await client.executions.cancel(one.id, if_version=1)
    assert answer.outcome == "already_applied"
    assert await client.executions.state(one.id) == "active"
    assert (await client.executions.cancel(one.id, if_version=2)).outcome == "cancelled"


async def test_whoever_unblocks_says_why(client):
    id = await submitted(client)
    await client.executions.block_for_admission(id, "waiting_for_budget", detail="x", actor="a")
    await client.executions.unblock(id, reason="paid", actor="bob")
    event = (await client.executions.events(id))[-1]
    assert (event.actor, event.detail["reason"]) == ("bob", "paid")


@pytest.mark.parametrize("reason", ["waiting_for_budget", "waiting_for_capable_worker"])
async def test_retry_lifts_every_block(client, reason):
    id = await submitted(client)
    await client.executions.block_for_admission(id, reason)
    assert (await client.executions.retry(id)).outcome == "unblocked"


@pytest.mark.parametrize(
    "read",
    ["state", "describe", "info", "context", "result", "attempts", "events", "why", "tags"],
)
@pytest.mark.parametrize("malformed", ["{fp:0}:x", None, 7])
async def test_a_read_without_an_id_says_what_an_id_is(client, read, malformed):
    with pytest.raises(InvalidInput, match="execution_id"):
        await getattr(client.executions, read)(malformed)


OPERATIONS = {
    "cancel": lambda client, id: client.executions.cancel(id),
    "priority": lambda client, id: client.executions.change_priority(id, 1),
    "replay": lambda client, id: client.executions.replay(id),
    "retry": lambda client, id: client.executions.retry(id),
    "block": lambda client, id: client.executions.block_for_admission(id, "paused_by_operator"),
    "unblock": lambda client, id: client.executions.unblock(id),
    "unblock with an actor": lambda client, id: client.executions.unblock(id, actor="ann"),
    "revoke": lambda client, id: client.leases.revoke(id),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_unknown_id_a_foreign_one_and_no_id_at_all(client, db, name):
    id = await submitted(client)
    before = await db.fetch("select * from ff.execution")
    with pytest.raises(ExecutionNotFound):
        await OPERATIONS[name](client, mint())
    async with FlowFabric(db.url, namespace="other") as stranger:
        with pytest.raises(ExecutionNotFound):
            await OPERATIONS[name](stranger, id)
    for malformed in ("nope", id.uuid.hex[-12:], None, 7):
        with pytest.raises(InvalidInput, match="execution_id"):
            await OPERATIONS[name](client, malformed)
    assert await db.fetch("select * from ff.execution") == before


async def test_a_wrong_state_is_an_error_of_its_own(client):
    waiting = await submitted(client)
    with pytest.raises(ExecutionNotTerminal):
        await client.executions.replay(waiting)
    with pytest.raises(ExecutionNotEligible):
        await client.executions.retry(waiting)
    with pytest.raises(ExecutionNotEligible):
        await client.executions.unblock(waiting)
    one = (await client.executions.claim(worker_id="w", worker_instance_id="w-1"))[0]
    with pytest.raises(ExecutionNotEligible):
        await client.executions.change_priority(one.id, 3)
    await client.executions.complete(one)
    with pytest.raises(ExecutionTerminal) as ended:
        await client.executions.cancel(one.id)
    assert ended.value.facts["outcome"] == "success"
    with pytest.raises(ExecutionNotActive):
        await client.executions.block_for_admission(one.id, "waiting_for_quota")


async def test_the_limit_of_replays_is_an_error_of_its_own(client):
    id = await submitted(client, policy='{"max_replay_count": 0}')
    await client.executions.cancel(id)
    with pytest.raises(MaxReplaysExhausted):
        await client.executions.replay(id)


@pytest.mark.parametrize("field", ["lease_id", "epoch", "attempt_id"])
async def test_a_forged_fence_is_stale(client, field):
    one = await claimed(client)
    forged = replace(one, **{field: 99 if field == "epoch" else uuid4()})
    for call in (
        client.executions.report_progress(forged, 1),
        client.executions.delay(forged, timedelta(1)),
        client.executions.wait_children(forged),
        client.executions.hold(forged, "why"),
        client.executions.cancel(one.id, source="lease_holder", claimed=forged),
    ):
        with pytest.raises(StaleLease):
            await call
    assert await kinds(client, one.id) == ["submitted", "claimed"]


async def test_bad_arguments_name_their_field(client):
    one = await claimed(client)
    calls = {
        "percent": lambda: client.executions.report_progress(one, 101),
        "priority": lambda: client.executions.change_priority(one.id, "high"),
        "until": lambda: client.executions.delay(one, until=datetime(2030, 1, 1)),  # noqa: DTZ001
        "delay": lambda: client.executions.delay(one),
        "reason": lambda: client.executions.hold(one, ""),
        "blocking_reason": lambda: client.executions.block_for_admission(one.id, "whatever"),
        "actor": lambda: client.executions.cancel(one.id, actor="x" * 300),
        "source": lambda: client.executions.cancel(one.id, source=""),
        "fence": lambda: client.executions.cancel(one.id, source="lease_holder"),
    }
    for field, call in calls.items():
        with pytest.raises(InvalidInput) as refused:
            await call()
        assert refused.value.field == field
    assert await kinds(client, one.id) == ["submitted", "claimed"]
