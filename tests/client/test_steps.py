"""Steps, waits for runs and children through the client."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionNotFound,
    InvalidInput,
    LeaseExpired,
    ParentEnded,
    RetryExhausted,
    StaleLease,
)
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.ids import ExecutionId, child_id, mint
from flowfabric.core.states import FailureClass, PublicState, StepKind
from flowfabric.core.step import Step
from flowfabric.db import functions
from flowfabric.reconcilers.table import RECONCILERS
from support.answers import Answers

ROUTE = Route("default", "default", "tests.work")
HOUR = timedelta(hours=1)


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url) as client:
        yield client


async def submitted(client, **options):
    id = options.pop("id", None) or mint()
    submission = Submission(id=id, route=ROUTE, payload=b"null", **options)
    return (await client.executions.submit(submission)).id


async def claim(client, number=1, ttl=HOUR):
    return await client.executions.claim(
        worker_id="w", worker_instance_id="w-1", limit=number, lease_ttl=ttl
    )


async def claimed(client, number=1, **options):
    for _ in range(number):
        await submitted(client, **options)
    found = await claim(client, number)
    assert len(found) == number
    return found


def step(name="load", position=0, **options):
    return Step(name=name, occurrence=0, position=position, **options)


async def locked(db, id):
    """A connection that holds the row until it is closed."""
    connection = await db.connect()
    await connection.execute("begin")
    await connection.execute(
        "select from ff.execution where execution_id = $1 for no key update", id.uuid
    )
    return connection


# Steps


async def test_steps_recorded_at_once_share_a_transaction(client, db):
    one, two = await claimed(client, 2)
    await client.steps.record(one, step("warm"))
    found = await asyncio.gather(
        *(
            client.steps.record(held, step(f"s{n}", n + 1, value=b"%d" % n, is_sequential=False))
            for n in range(40)
            for held in (one, two)
        )
    )
    # one flush for the first, one for those that gathered behind it
    written = "select count(distinct xmin::text) from ff.step where name <> 'warm'"
    assert await db.fetchval(written) <= 2
    assert [record.value for record in found[::2]] == [b"%d" % n for n in range(40)]
    assert len(await client.steps.list(one.id)) == 41
    assert (await client.steps.list(two.id)) == found[1::2]


async def test_a_second_record_gets_the_first_value(client):
    (held,) = await claimed(client)
    first = await client.steps.record(held, step(value=b"1", encoding="json"))
    again = await client.steps.record(held, step(value=b"2"))
    assert (again.value, again.encoding) == (b"1", "json")
    assert again.recorded_at == first.recorded_at


async def test_kinds_come_back_as_they_went_in(client):
    (held,) = await claimed(client)
    nap = await client.steps.record(held, step("nap", kind=StepKind.SLEEP, delay=HOUR))
    now = await client.steps.record(held, step("now", 1, kind=StepKind.NOW))
    oops = await client.steps.record(held, step("oops", 2, kind=StepKind.FAILURE, value=b"{}"))
    assert nap.until_at == nap.recorded_at + HOUR
    assert await client.steps.list(held.id) == [nap, now, oops]


async def test_who_lost_its_lease_is_told_and_the_rest_of_the_batch_is_recorded(client):
    (held,) = await claimed(client)
    stale = replace_fence(held, lease_id=uuid4())
    answers = await asyncio.gather(
        client.steps.record(held, step("a")),
        client.steps.record(held, step("b", 1)),
        client.steps.record(stale, step("c", 2)),
        return_exceptions=True,
    )
    assert isinstance(answers[2], StaleLease)
    assert [record.name for record in await client.steps.list(held.id)] == ["a", "b"]


def replace_fence(held, **changes):
    return replace(held, **changes)


async def test_an_expired_lease_records_nothing(client, clock):
    (held,) = await claimed(client)
    await clock.advance(HOUR)
    with pytest.raises(LeaseExpired):
        await client.steps.record(held, step())
    assert await client.steps.list(held.id) == []


async def test_a_locked_execution_is_waited_for_then_given_up(client, db):
    (held,) = await claimed(client)
    connection = await locked(db, held.id)
    recording = asyncio.create_task(client.steps.record(held, step()))
    await db.until_waiting(recording)
    await connection.close()
    assert (await recording).name == "load"
    connection = await locked(db, held.id)
    with pytest.raises(RetryExhausted):
        await client.steps.record(held, step("late", 1))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"name": "a\tb"}, "name"),
        ({"name": 7}, "name"),
        ({"occurrence": -1}, "occurrence"),
        ({"occurrence": True}, "occurrence"),
        ({"position": 2**31}, "position"),
        ({"position": None}, "position"),
        ({"is_sequential": 1}, "is_sequential"),
        ({"kind": "nap"}, "kind"),
        ({"value": b"x" * 1_048_577}, "value"),
        ({"kind": StepKind.SLEEP}, "delay"),
        ({"delay": HOUR}, "delay"),
        ({"kind": StepKind.SLEEP, "until": datetime(2040, 1, 1)}, "until"),  # noqa: DTZ001
        (
            {"kind": StepKind.SLEEP, "until": datetime(2040, 1, 1, tzinfo=UTC), "delay": HOUR},
            "delay",
        ),
    ],
)
async def test_a_bad_step_is_refused_before_it_is_sent(client, changes, field):
    (held,) = await claimed(client)
    bad = Step(**{"name": "load", "occurrence": 0, "position": 0, **changes})
    with pytest.raises(InvalidInput) as caught:
        await client.steps.record(held, bad)
    assert caught.value.field == field
    assert await client.steps.list(held.id) == []


async def test_what_only_the_engine_refuses_does_not_spoil_the_batch(client):
    (held,) = await claimed(client)
    answers = await asyncio.gather(
        client.steps.record(held, step("first")),
        client.steps.record(held, step("bad", 1, kind=StepKind.NOW, value=b"x")),
        client.steps.record(held, step("good", 2)),
        return_exceptions=True,
    )
    assert isinstance(answers[1], InvalidInput)
    assert [record.name for record in await client.steps.list(held.id)] == ["first", "good"]


async def test_a_foreign_client_sees_no_steps(client, db):
    (held,) = await claimed(client)
    await client.steps.record(held, step())
    async with FlowFabric(db.url, namespace="other") as other:
        assert await other.steps.list(held.id) == []


# Waits


async def test_a_run_waits_for_others_and_goes_on(client):
    held, *others = await claimed(client, 3)
    assert await client.executions.wait_for_runs(held, [one.id for one in others]) == 2
    await client.executions.complete(others[0])
    assert await client.executions.state(held.id) is PublicState.WAITING_CHILDREN
    await client.executions.fail(others[1], Failure(FailureClass.PERMANENT, "no"))
    (again,) = await claim(client)
    assert (again.id, again.claim_kind, again.epoch) == (held.id, "resumed", 2)


async def test_a_bad_wait_is_refused_and_named(client):
    held, other = await claimed(client, 2)
    for targets, k, field in (
        ([], None, "targets"),
        ([held.id], None, "targets"),
        ([ExecutionId.of(1, other.id.uuid)], None, "targets"),
        ([other.id], 0, "k"),
        ([other.id], 2, "k"),
        ([other.id], True, "k"),
        (["x"], None, "id"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await client.executions.wait_for_runs(held, targets, k)
        assert caught.value.field == field
    with pytest.raises(ExecutionNotFound):
        await client.executions.wait_for_runs(held, [mint()])
    assert await client.executions.state(held.id) is PublicState.ACTIVE


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
async def test_a_waiter_that_was_locked_is_woken_by_whoever_ended_its_target(client, db, how):
    held, other = await claimed(client, 2)
    await client.executions.wait_for_runs(held, [other.id])
    connection = await locked(db, held.id)
    letting_go = asyncio.get_running_loop().call_later(
        0.03, lambda: asyncio.ensure_future(connection.close())
    )
    match how:
        case "complete":
            await client.executions.complete(other)
        case "fail":
            await client.executions.fail(other, Failure(FailureClass.PERMANENT, "no"))
        case _:
            answer = await client.executions.cancel(other.id)
            assert answer.detail == {}
    await client.executions._cascades.close()
    assert letting_go is not None
    assert await client.executions.state(held.id) is PublicState.WAITING


async def test_what_its_ender_could_not_wake_is_woken_by_the_reconciler(client, db):
    held, other = await claimed(client, 2)
    await client.executions.wait_for_runs(held, [other.id])
    connection = await locked(db, held.id)
    await client.executions.complete(other)
    await client.executions._cascades.close()
    assert await client.executions.state(held.id) is PublicState.WAITING_CHILDREN
    (reconciler,) = [one for one in RECONCILERS if one.name == "wake_resolver"]
    handled, due_in = await reconciler.run_once(client, reconciler.batch)
    assert handled == 0
    assert due_in is not None
    await connection.close()
    assert await reconciler.run_once(client, reconciler.batch) == (1, None)
    assert await client.executions.state(held.id) is PublicState.WAITING


async def test_a_hundred_and_fifty_waiters_are_woken_by_one_end(client, db):
    target, *waiters = await claimed(client, 151)
    for waiter in waiters:
        await client.executions.wait_for_runs(waiter, [target.id])
    await client.executions.complete(target)
    await client.executions._cascades.close()
    assert len(await claim(client, 200)) == 150


# Children


async def test_children_end_with_their_parent_down_to_the_last(client):
    (parent,) = await claimed(client)
    for number in range(130):
        kid = child_id(parent.id, 0, "kid", number)
        await submitted(client, id=kid, parent_id=parent.id, with_parent=True)
        if number < 20:
            await submitted(
                client, id=child_id(kid, 0, "grandkid", 0), parent_id=kid, with_parent=True
            )
    await client.executions.cancel(parent.id, reason="enough")
    count = await client.executions.count()
    assert count.number == 151
    for execution in (await client.executions.list(limit=200)).executions:
        assert execution.public_state is PublicState.CANCELLED


async def test_a_parent_that_has_ended_takes_no_children(client):
    (parent,) = await claimed(client)
    await client.executions.complete(parent)
    with pytest.raises(ParentEnded):
        await submitted(client, parent_id=parent.id, with_parent=True)
    assert (await client.executions.count()).number == 1


async def test_a_parent_that_is_locked_is_tried_again(client, db, monkeypatch):
    (parent,) = await claimed(client)
    connection = await locked(db, parent.id)
    answers = Answers(monkeypatch)
    submitting = asyncio.create_task(submitted(client, parent_id=parent.id, with_parent=True))
    await answers.until(functions.SUBMIT_EXECUTIONS, 2, submitting)
    assert not submitting.done()
    await connection.close()
    info = await client.executions.describe(await submitting)
    assert info is not None
    assert (info.parent_id, info.ends_with_parent) == (parent.id, True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"with_parent": True}, "parent_id"),
        ({"parent_id": ExecutionId.of(1, uuid4())}, "parent_id"),
        ({"trace_context": "x" * 4097}, "trace_context"),
        ({"task_version": ""}, "task_version"),
        ({"task_version": "x" * 257}, "task_version"),
    ],
)
async def test_a_bad_submission_of_a_child_is_refused_and_named(client, options, field):
    with pytest.raises(InvalidInput) as caught:
        await submitted(client, **options)
    assert caught.value.field == field


async def test_replay_through_the_client_forgets_and_is_safe_to_repeat(client):
    (held,) = await claimed(client)
    await client.steps.record(held, step("a"))
    await client.steps.record(held, step("b", 1))
    await client.executions.complete(held)
    with pytest.raises(InvalidInput) as caught:
        await client.executions.replay(held.id, from_step="c")
    assert caught.value.field == "from_step"
    assert "a#0, b#0" in caught.value.problem
    answer = await client.executions.replay(held.id, from_step="b", actor="eve")
    assert answer.outcome == "replayed"
    assert [record.name for record in await client.steps.list(held.id)] == ["a"]
    again = await client.executions.replay(held.id, fresh=True, if_version=answer.version - 1)
    assert again.outcome == "already_applied"
    assert len(await client.steps.list(held.id)) == 1
