"""Reading one execution."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.ids import mint
from flowfabric.core.states import (
    AttemptState,
    BlockingReason,
    Eligibility,
    Outcome,
    Ownership,
    Phase,
    PublicState,
)
from support.factories import STATES, Factory, State
from support.sabotage import unwitnessed

from .stage import TTL, Stage

HOUR = timedelta(hours=1)


async def test_a_new_execution_is_described_as_it_was_submitted(stage: Stage) -> None:
    id = await stage.submit(
        payload=b"[1]",
        needs={"smtp"},
        priority=7,
        tags={"b.two": "2", "a.one": "1"},
        creator="ada",
        retries=2,
    )
    info = await stage.executions.describe(id)
    assert (info.id, info.namespace, info.lane, info.task) == (id, "test", "mail", "app.send")
    assert (info.public_state, info.total_attempt_count) == (PublicState.WAITING, 0)
    assert list(info.tags.items()) == [("a.one", "1"), ("b.two", "2")]
    assert (info.priority, info.creator, info.payload) == (7, "ada", b"[1]")
    assert info.capabilities == {"smtp"}
    assert info.policy["retry_policy"]["max_retries"] == 2
    assert (info.attempt_id, info.lease_id, info.lease_expires_at) == (None, None, None)
    assert info.created_at == info.mutated_at == await stage.now()


async def test_the_state_vector_of_a_new_execution(stage: Stage) -> None:
    id = await stage.submit(priority=3)
    info = await stage.executions.info(id)
    assert (info.phase, info.ownership, info.eligibility) == (
        Phase.RUNNABLE,
        Ownership.UNOWNED,
        Eligibility.ELIGIBLE_NOW,
    )
    assert (info.blocking_reason, info.outcome) == (BlockingReason.WAITING_FOR_WORKER, Outcome.NONE)
    assert info.attempt_state is AttemptState.PENDING_FIRST_ATTEMPT
    assert (info.public_state, info.priority) == (PublicState.WAITING, 3)
    assert (info.started_at, info.terminal_at, info.flow_id) == (None, None, None)


async def test_a_delayed_execution_says_until_when(stage: Stage) -> None:
    info = await stage.executions.describe(await stage.submit(delay=HOUR))
    assert (info.public_state, info.blocking_reason) == (
        PublicState.DELAYED,
        BlockingReason.WAITING_FOR_DELAY,
    )
    assert info.delayed_until == info.due_at == await stage.now() + HOUR


async def test_a_claimed_execution_and_a_member_of_a_flow_can_be_described(
    stage: Stage,
) -> None:
    held = await stage.claimed()
    flow = (await stage.client.flows.create("test")).id
    await stage.client.flows.add_execution(flow, held.id)
    info = await stage.executions.describe(held.id)
    assert info.public_state is PublicState.ACTIVE
    assert info.flow_id == await stage.executions.flow_id(held.id) == flow
    assert (await stage.executions.info(held.id)).flow_id == flow
    assert (info.attempt_id, info.attempt) == (held.attempt_id, 1)


OUTCOMES: dict[State, Outcome] = {
    "completed": Outcome.SUCCESS,
    "failed": Outcome.FAILED,
    "over_the_cap": Outcome.FAILED,
    "cancelled": Outcome.CANCELLED,
    "cancelled_unstarted": Outcome.CANCELLED,
    "expired": Outcome.EXPIRED,
    "timed_out": Outcome.EXPIRED,
}


@pytest.mark.parametrize("state", OUTCOMES)
async def test_every_end_has_its_outcome(stage: Stage, make: Factory, state: State) -> None:
    execution = await make.execution(state)
    id = mint().of(0, execution.id)
    info = await stage.executions.info(id)
    assert (info.phase, info.outcome) == (Phase.TERMINAL, OUTCOMES[state])
    assert info.terminal_at is not None
    assert (await stage.executions.describe(id)).outcome is OUTCOMES[state]


async def test_an_execution_over_its_reclaims_can_be_read(stage: Stage, make: Factory) -> None:
    execution = await make.execution("over_the_cap")
    info = await stage.executions.info(mint().of(0, execution.id))
    assert (info.attempt_state, info.public_state) == (
        AttemptState.ATTEMPT_TERMINAL,
        PublicState.FAILED,
    )


@pytest.mark.parametrize("state", STATES)
async def test_every_read_tells_the_same_state(stage: Stage, make: Factory, state: State) -> None:
    """The public state follows from the others, and nobody blocks what runs or has ended."""
    execution = await make.execution(state)
    id = mint().of(0, execution.id)
    info = await stage.executions.info(id)
    full = await stage.executions.describe(id)
    listed = {one.id: one for one in (await stage.executions.list()).executions}[id]
    for name in StateNames:
        assert getattr(full, name) == getattr(info, name)
    assert await stage.executions.state(id) == info.public_state == listed.public_state
    if info.phase is Phase.TERMINAL:
        assert info.public_state.value == {"success": "completed"}.get(info.outcome, info.outcome)
    elif info.phase is Phase.ACTIVE:
        assert info.public_state is PublicState.ACTIVE
    if info.phase is Phase.TERMINAL or info.attempt_state is AttemptState.RUNNING_ATTEMPT:
        assert info.blocking_reason is BlockingReason.NONE
        assert info.blocking_detail is None
    else:
        assert info.blocking_reason is not BlockingReason.NONE
    assert (await stage.executions.why(id)).code


StateNames = (
    "phase",
    "ownership",
    "eligibility",
    "blocking_reason",
    "blocking_detail",
    "outcome",
    "attempt_state",
    "public_state",
    "version",
    "attempt",
    "total_attempt_count",
    "started_at",
    "terminal_at",
)


async def test_every_mutation_moves_mutated_at(stage: Stage) -> None:
    id = await stage.submit(retries=3)
    executions = stage.executions
    held: Any = None

    async def claim() -> None:
        nonlocal held
        held = await stage.claim()

    async def release() -> None:
        assert not await stage.client.leases.release([held])

    seen = [(await executions.describe(id)).mutated_at]
    for move in (
        lambda: executions.set_tag(id, "a.b", "c"),
        lambda: executions.change_priority(id, 5),
        claim,
        lambda: stage.client.leases.renew([held], TTL),
        lambda: executions.report_progress(held, 10, None),
        release,
        claim,
        lambda: stage.fail(held),
        lambda: executions.retry(id),
        claim,
        lambda: executions.complete(held),
        lambda: executions.replay(id),
        lambda: executions.cancel(id),
    ):
        await stage.clock.advance(seconds=1)
        await move()
        seen.append((await executions.describe(id)).mutated_at)
    assert seen == sorted(set(seen)), "some operation left it where it was"


async def test_a_running_execution_shows_its_attempt_and_its_lease(stage: Stage) -> None:
    held = await stage.claimed()
    info = await stage.executions.describe(held.id)
    assert (info.attempt_id, info.attempt) == (held.attempt_id, 1)
    assert (info.lease_id, info.epoch) == (held.lease_id, 1)
    assert (info.worker_id, info.worker_instance_id) == ("pool", "pool-1")
    assert info.lease_expires_at == held.lease_expires_at == await stage.now() + TTL
    assert info.total_attempt_count == 1
    assert info.attempt_started_at == info.started_at == await stage.now()


async def test_the_lease_is_shown_only_while_there_is_one(stage: Stage) -> None:
    held = await stage.claimed()
    await stage.executions.complete(held, b"1")
    info = await stage.executions.describe(held.id)
    assert (info.lease_id, info.worker_instance_id, info.lease_expires_at) == (None, None, None)
    assert info.attempt_id == held.attempt_id


async def test_who_cancelled_it_and_why_is_shown(stage: Stage) -> None:
    id = await stage.submit()
    await stage.executions.cancel(id, reason="too late", actor="ada")
    info = await stage.executions.describe(id)
    assert (info.cancelled_by, info.cancellation_reason) == ("operator_override", "too late")


async def test_progress_is_shown(stage: Stage) -> None:
    held = await stage.claimed()
    await stage.executions.report_progress(held, 40, "almost there")
    info = await stage.executions.describe(held.id)
    assert (info.progress_percent, info.progress_message) == (40, "almost there")
    assert info.progressed_at == await stage.now()


async def test_a_query_about_a_missing_execution_finds_nothing(stage: Stage) -> None:
    executions, id = stage.executions, mint()
    for read in (
        "describe",
        "info",
        "state",
        "context",
        "result",
        "attempt_count",
        "flow_id",
        "namespace",
    ):
        assert await getattr(executions, read)(id) is None, read
    assert await executions.tag(id, "a.b") is None
    assert (await executions.tags(id), await executions.attempts(id)) == ({}, [])
    assert await executions.events(id) == []


async def test_a_command_to_a_missing_execution_says_not_found(stage: Stage) -> None:
    executions, id = stage.executions, mint()
    for command in (
        executions.set_tag(id, "a.b", "c"),
        executions.set_tags(id, {"a.b": "c"}),
        executions.why(id),
        executions.cancel(id),
        executions.replay(id),
        executions.retry(id),
        executions.change_priority(id, 1),
        stage.client.leases.revoke(id),
    ):
        with pytest.raises(ExecutionNotFound):
            await command


async def test_another_tenant_sees_nothing(stage: Stage) -> None:
    held = await stage.claimed(tags={"a.b": "c"})
    async with FlowFabric(stage.db.url, namespace="elsewhere") as stranger:
        reads = stranger.executions
        assert await reads.describe(held.id) is None
        assert await reads.info(held.id) is None
        assert await reads.namespace(held.id) is None
        assert await reads.tags(held.id) == {}
        assert await reads.attempts(held.id) == []
        assert (await reads.list()).executions == []
        assert (await reads.list_ids()).ids == []
        assert (await reads.count()).number == 0
        with pytest.raises(ExecutionNotFound):
            await reads.set_tag(held.id, "a.b", "d")
    assert await stage.executions.tag(held.id, "a.b") == "c"
    assert await stage.executions.namespace(held.id) == "test"


@pytest.mark.parametrize("payload", [b"", b"[1]", b"\x00\xff" * 4000])
async def test_the_context_has_what_a_worker_needs(stage: Stage, payload: bytes) -> None:
    id = await stage.submit(payload=payload, payload_encoding="raw", tags={"a.b": "c"})
    context = await stage.executions.context(id)
    assert (context.task, context.payload_encoding) == ("app.send", "raw")
    assert (context.payload, context.tags) == (payload, {"a.b": "c"})


async def test_a_result_is_there_once_it_completed(stage: Stage) -> None:
    held = await stage.claimed()
    assert await stage.executions.result(held.id) is None
    result = bytes(range(256)) * 3
    await stage.executions.complete(held, result)
    assert await stage.executions.result(held.id) == result


async def test_a_failed_execution_has_no_result(stage: Stage) -> None:
    held = await stage.claimed()
    await stage.fail(held)
    assert await stage.executions.state(held.id) is PublicState.FAILED
    assert await stage.executions.result(held.id) is None


async def test_a_replayed_execution_has_no_result_until_it_completes_again(stage: Stage) -> None:
    held = await stage.claimed()
    await stage.executions.complete(held, b"1")
    await stage.executions.replay(held.id)
    assert await stage.executions.result(held.id) is None
    await stage.executions.complete(await stage.claim(), b"2")
    assert await stage.executions.result(held.id) == b"2"


async def test_attempts_count_from_one_and_none_is_zero(stage: Stage) -> None:
    id = await stage.submit(retries=3)
    reads = stage.executions

    async def numbers() -> set[int]:
        info, listed, whole = await reads.info(id), await reads.list(), await reads.describe(id)
        found = {each.attempt for each in (info, whole, *listed.executions)}
        return found | {await reads.attempt_count(id), info.total_attempt_count}

    assert await numbers() == {0}
    held = await stage.claim()
    assert (await numbers(), held.attempt) == ({1}, 1)
    await stage.fail(held)
    assert await numbers() == {1}
    await reads.retry(id)
    again = await stage.claim()
    assert (await numbers(), again.attempt) == ({2}, 2)
    assert [attempt.attempt for attempt in await reads.attempts(id)] == [1, 2]
    assert [event.attempt for event in await reads.events(id)][:2] == [None, 1]
    first, second = await reads.attempts(id)
    assert (first.failure_reason, second.failure_reason) == ("the mail server is down", None)


async def test_the_first_start_stays_over_retries(stage: Stage) -> None:
    held = await stage.claimed(retries=3)
    started = (await stage.executions.info(held.id)).started_at
    await stage.fail(held)
    await stage.clock.advance(HOUR)
    await stage.executions.promote_delayed()
    await stage.executions.complete(await stage.claim())
    info = await stage.executions.info(held.id)
    assert (info.started_at, info.terminal_at) == (started, await stage.now())
    assert info.outcome is Outcome.SUCCESS


async def test_the_time_of_the_server(stage: Stage) -> None:
    assert await stage.executions.server_time() == await stage.now()
    await stage.clock.advance(HOUR)
    assert await stage.executions.server_time() == await stage.now()


async def test_an_impossible_state_is_an_error_and_no_guess(stage: Stage) -> None:
    """A word that this release does not know is not shown as if it were another."""
    id = await stage.submit()
    stage.db.leave_broken("a word of a later release")
    await stage.db.execute("alter type ff.attempt_state add value 'of_a_later_release'")
    await stage.db.execute("alter table ff.execution drop constraint running_iff_leased")
    async with unwitnessed(stage.db.conn):
        await stage.db.execute("update ff.execution set attempt_state = 'of_a_later_release'")
    for read in (stage.executions.info(id), stage.executions.describe(id)):
        with pytest.raises(ValueError, match="of_a_later_release"):
            await read
