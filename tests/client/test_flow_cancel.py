"""client.flows.cancel and retry_failed: with and without waiting, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    FlowAlreadyTerminal,
    FlowCancelTimeout,
    FlowNotFound,
    InvalidInput,
    MaxReplaysExhausted,
    RetryExhausted,
)
from flowfabric.core.flow import FlowCancellation, FlowCancelOutcome
from flowfabric.core.ids import ExecutionId, FlowId, mint, mint_flow
from flowfabric.core.states import EventKind, FlowCancelPolicy
from flowfabric.db import functions
from support.answers import Answers
from support.cancelling import backlog, empty_flow
from support.clock import Clock
from support.database import Database, home
from support.factories import NAMESPACE, Engine
from support.flows import Flow, make_flow
from worker.waiting import eventually

SECONDS = timedelta(seconds=60)


@pytest.fixture
async def client(db: Database) -> AsyncIterator[FlowFabric]:
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


def id_of(flow: Flow) -> FlowId:
    return FlowId.of(home(), flow.id)


def ids(flow: Flow, *names: str) -> set[ExecutionId]:
    return {ExecutionId.of(home(), flow[name]) for name in names or flow.ids}


def told(answer: FlowCancellation) -> tuple[Any, ...]:
    return answer.outcome, answer.cancel_policy, answer.reason, set(answer.members), answer.failed


async def are_cancelled(flow: Flow) -> bool:
    return set((await flow.states()).values()) == {"cancelled"}


async def test_without_waiting_the_members_are_ended_behind_the_call(
    db: Database, client: FlowFabric
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b")])
    answer = await client.flows.cancel(id_of(flow), reason="enough", actor="ann")
    assert told(answer) == (
        FlowCancelOutcome.SCHEDULED,
        FlowCancelPolicy.CANCEL_ALL,
        "enough",
        ids(flow),
        [],
    )
    await eventually(lambda: are_cancelled(flow))


async def test_closing_the_client_lets_the_cancel_come_to_its_end(db: Database) -> None:
    flow = await make_flow(db, nodes=[f"n{number}" for number in range(250)])
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        answer = await client.flows.cancel(id_of(flow))
        assert (answer.outcome, answer.member_count) == (FlowCancelOutcome.SCHEDULED, 250)
    assert await are_cancelled(flow)
    assert await backlog(flow) == (0, set())


async def test_with_waiting_every_member_has_ended_when_it_returns(
    db: Database, client: FlowFabric
) -> None:
    flow = await make_flow(db, nodes=[f"n{number}" for number in range(230)])
    answer = await client.flows.cancel(id_of(flow), reason="enough", wait=SECONDS)
    assert answer.outcome is FlowCancelOutcome.CANCELLED
    assert set(answer.members) == ids(flow)
    assert await are_cancelled(flow)
    assert await backlog(flow) == (0, set())


async def test_a_flow_without_anybody_to_end_is_cancelled_at_once(
    db: Database, client: FlowFabric
) -> None:
    empty = await empty_flow(Engine(db.conn))
    answer = await client.flows.cancel(id_of(empty))
    assert told(answer)[:2] == (FlowCancelOutcome.CANCELLED, FlowCancelPolicy.CANCEL_ALL)
    ended = await make_flow(db, nodes=["a"])
    await ended.fail("a")
    answer = await client.flows.cancel(id_of(ended))
    assert told(answer)[:2] == (FlowCancelOutcome.ALREADY_TERMINAL, None)
    assert len((await client.flows.retry_failed(id_of(ended))).replayed) == 1
    going_on = await make_flow(db, nodes=["a"])
    answer = await client.flows.cancel(id_of(going_on), cancel_policy="flow_only", wait=SECONDS)
    assert answer.outcome is FlowCancelOutcome.CANCELLED
    await going_on.complete("a")


async def test_waiting_waits_for_the_members_not_for_the_flow(
    db: Database, client: FlowFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.client.flow_cancel._LOCKED_SECONDS", 60.0)
    flow = await make_flow(db, nodes=["a", "b"])
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        "select from ff.execution where execution_id = $1 for no key update", flow["a"]
    )
    answers = Answers(monkeypatch)
    cancelling = asyncio.create_task(client.flows.cancel(id_of(flow), wait=SECONDS))
    # It has told of the flow and ended the other member; then it asks for this one again.
    await answers.until(functions.CANCEL_MEMBERS, 3, cancelling)
    assert not cancelling.done()
    await transaction.rollback()
    assert (await cancelling).outcome is FlowCancelOutcome.CANCELLED
    assert await are_cancelled(flow)


async def test_a_member_that_drains_too_long_is_a_timeout_and_the_flow_stays_cancelled(
    db: Database, client: FlowFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    lease = await flow.take("a")
    with pytest.raises(FlowCancelTimeout) as caught:
        await client.flows.cancel(
            id_of(flow), cancel_policy="cancel_pending", wait=timedelta(milliseconds=200)
        )
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.facts == {"id": str(id_of(flow)), "remaining": 0, "draining": 1}
    assert await flow.states() == {"a": "active", "b": "cancelled"}
    answers = Answers(monkeypatch)
    waiting = asyncio.create_task(
        client.flows.cancel(id_of(flow), cancel_policy="cancel_pending", wait=SECONDS)
    )
    await answers.until(functions.CANCEL_MEMBERS, 2, waiting)
    assert not waiting.done()
    assert (await flow.engine.complete(lease)).word == "completed"
    answer = await waiting
    assert told(answer)[:2] == (
        FlowCancelOutcome.ALREADY_TERMINAL,
        FlowCancelPolicy.CANCEL_PENDING,
    )
    assert await flow.states() == {"a": "completed", "b": "cancelled"}
    assert await backlog(flow) == (0, set())


async def test_no_time_to_wait_is_a_timeout_unless_all_is_done_at_once(
    db: Database, client: FlowFabric
) -> None:
    quick = await make_flow(db, nodes=["a"])
    answer = await client.flows.cancel(id_of(quick), wait=timedelta())
    assert answer.outcome is FlowCancelOutcome.CANCELLED
    slow = await make_flow(db, nodes=[f"n{number}" for number in range(150)])
    with pytest.raises(FlowCancelTimeout):
        await client.flows.cancel(id_of(slow), wait=timedelta())


async def test_a_member_that_is_held_for_good_is_named_and_ended_later(
    db: Database, client: FlowFabric, clock: Clock
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"])
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", flow["b"]
        )
        answer = await client.flows.cancel(id_of(flow), reason="enough", wait=SECONDS)
    assert answer.outcome is FlowCancelOutcome.PARTIALLY_CANCELLED
    assert set(answer.failed) == ids(flow, "b")
    assert set(answer.members) == ids(flow)
    assert await flow.states() == {"a": "cancelled", "b": "waiting", "c": "cancelled"}
    await clock.advance(seconds=31)
    handled, _ = await client.flows.cancel_backlog()
    assert handled == 1
    assert await are_cancelled(flow)


async def test_a_flow_that_somebody_holds_is_given_up_after_a_while(
    db: Database, client: FlowFabric
) -> None:
    flow = await make_flow(db, nodes=["a"])
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.flow where flow_id = $1 for update", flow.id)
        with pytest.raises(RetryExhausted):
            await client.flows.cancel(id_of(flow))
    assert await flow.state("a") == "waiting"


async def test_a_flow_that_was_cancelled_before_tells_how(db: Database, client: FlowFabric) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    await client.flows.cancel(
        id_of(flow), cancel_policy="cancel_pending", reason="first", wait=SECONDS
    )
    answer = await client.flows.cancel(id_of(flow), cancel_policy="cancel_all", reason="second")
    assert told(answer) == (
        FlowCancelOutcome.ALREADY_TERMINAL,
        FlowCancelPolicy.CANCEL_PENDING,
        "first",
        set(),
        [],
    )


async def test_a_flow_that_drains_too_long_may_be_cancelled_at_once(
    db: Database, client: FlowFabric
) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    lease = await flow.take("a")
    await client.flows.cancel(id_of(flow), cancel_policy="cancel_pending")
    answer = await client.flows.cancel(id_of(flow), reason="now", wait=SECONDS)
    assert told(answer)[:3] == (
        FlowCancelOutcome.CANCELLED,
        FlowCancelPolicy.CANCEL_ALL,
        "now",
    )
    assert (await flow.engine.complete(lease)).word == "not_active"
    assert await are_cancelled(flow)


async def test_a_second_cancel_finishes_what_the_first_left(
    db: Database, client: FlowFabric
) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    answer = await client.flows.cancel_header(id_of(flow))
    assert answer.outcome is FlowCancelOutcome.SCHEDULED
    assert await backlog(flow) == (1, {"a", "b"})
    answer = await client.flows.cancel(id_of(flow), wait=SECONDS)
    assert answer.outcome is FlowCancelOutcome.ALREADY_TERMINAL
    assert await are_cancelled(flow)


async def test_the_parts_of_a_cancel_can_be_called_one_by_one(
    db: Database, client: FlowFabric
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"])
    await client.flows.cancel_header(id_of(flow))
    await client.executions.cancel(ExecutionId.of(home(), flow["a"]))
    assert await client.flows.ack_cancel_member(id_of(flow), ExecutionId.of(home(), flow["a"])) == 2
    step = await client.flows.cancel_members(id_of(flow), limit=1)
    assert (step.handled, step.remaining, step.draining, step.locked) == (1, 1, 0, [])
    step = await client.flows.cancel_members(id_of(flow))
    assert (step.handled, step.remaining) == (1, 0)
    with pytest.raises(InvalidInput, match="execution_id"):
        await client.flows.ack_cancel_member(id_of(flow), "a")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("cancel_policy", {"cancel_policy": "everything"}),
        ("wait", {"wait": 3}),
        ("wait", {"wait": timedelta(seconds=-1)}),
        ("grace", {"grace": 3}),
        ("grace", {"grace": timedelta(seconds=-1)}),
        ("reason", {"reason": "x" * 300}),
        ("actor", {"actor": "a\x00b"}),
    ],
)
async def test_bad_input_names_the_field_and_cancels_nothing(
    db: Database, client: FlowFabric, field: str, given: dict[str, Any]
) -> None:
    flow = await make_flow(db, nodes=["a"])
    with pytest.raises(InvalidInput) as caught:
        await client.flows.cancel(id_of(flow), **given)
    assert caught.value.field == field
    assert await flow.state("a") == "waiting"
    assert await db.fetchval("select cancelled_at from ff.flow") is None


async def test_an_id_that_is_none_of_a_flow_is_told_so(db: Database, client: FlowFabric) -> None:
    flow = await make_flow(db, nodes=["a"])
    for wrong in ("nope", mint(), None):
        with pytest.raises(InvalidInput, match=r"flow_id|FlowId"):
            await client.flows.cancel(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"flow_id|FlowId"):
            await client.flows.retry_failed(wrong)  # type: ignore[arg-type]
    with pytest.raises(FlowNotFound):
        await client.flows.cancel(mint_flow())
    with pytest.raises(FlowNotFound):
        await client.flows.retry_failed(mint_flow())
    async with FlowFabric(db.url, namespace="other") as stranger:
        with pytest.raises(FlowNotFound):
            await stranger.flows.cancel(id_of(flow))
        with pytest.raises(FlowNotFound):
            await stranger.flows.retry_failed(id_of(flow))
    assert await flow.state("a") == "waiting"


async def test_subscribers_read_that_a_flow_was_cancelled(db: Database, client: FlowFabric) -> None:
    flow = await make_flow(db, nodes=["a"])
    cursor = await client.events.open()
    await client.flows.cancel(id_of(flow), reason="enough", actor="ann", wait=SECONDS)
    page = await client.events.read(cursor)
    (event,) = [one for one in page.events if one.kind is EventKind.FLOW_CANCEL_REQUESTED]
    assert event.flow_id == id_of(flow)
    assert event.actor == "ann"
    assert event.detail == {"policy": "cancel_all", "reason": "enough", "member_count": 1}


# Retry


async def test_what_failed_is_replayed_and_what_was_skipped_with_it(
    db: Database, client: FlowFabric, clock: Clock
) -> None:
    flow = await make_flow(
        db,
        nodes=["good", "bad", "late", "after", "open"],
        edges=[("bad", "after"), ("late", "after")],
        items={"late": {"deadline": timedelta(hours=1)}},
    )
    await flow.complete("good")
    await flow.fail("bad")
    await clock.advance(hours=2)
    await flow.engine.expire_executions()
    assert await flow.states(["late", "after"]) == {"late": "expired", "after": "skipped"}
    answer = await client.flows.retry_failed(id_of(flow), reason="again", actor="ann")
    assert set(answer.replayed) == ids(flow, "bad", "late")
    assert answer.refused == {}
    assert await flow.states() == {
        "good": "completed",
        "bad": "waiting",
        "late": "waiting",
        "after": "waiting_children",
        "open": "waiting",
    }
    again = await client.flows.retry_failed(id_of(flow))
    assert (again.replayed, again.refused) == ([], {})


async def test_who_cannot_be_replayed_is_named_with_the_reason(
    db: Database, client: FlowFabric
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], items={"a": {"policy": {"max_replay_count": 0}}})
    await flow.fail("a")
    await flow.fail("b")
    answer = await client.flows.retry_failed(id_of(flow))
    assert set(answer.replayed) == ids(flow, "b")
    ((id, error),) = answer.refused.items()
    assert {id} == ids(flow, "a")
    assert isinstance(error, MaxReplaysExhausted)


async def test_in_a_cancelled_flow_nothing_is_retried(db: Database, client: FlowFabric) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    await flow.fail("a")
    await client.flows.cancel(id_of(flow), wait=SECONDS)
    with pytest.raises(FlowAlreadyTerminal):
        await client.flows.retry_failed(id_of(flow))
    assert await flow.state("a") == "failed"
