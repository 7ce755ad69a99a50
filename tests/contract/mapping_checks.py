"""One check for every operation of tools/mapping.toml that is done: it calls ours on real rows and
says what it saw. Keys and values are those of the operation's `facts`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.execution import Claimed, Failure, Route, Submission
from flowfabric.core.flow import Edge, Graph, Group, Node, Policy
from flowfabric.core.ids import ExecutionId, FlowId, mint, mint_flow, mint_in
from flowfabric.core.states import FailureClass, GroupPolicy, OnSatisfied
from flowfabric.db.connection import open_connection as unbound
from reads.stage import TTL, Stage
from support.factories import Engine
from support.sabotage import unwitnessed

Facts = dict[str, Any]
Check = Callable[["World"], Awaitable[Facts]]

CHECKS: dict[str, Check] = {}
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
WORKER = {"worker_id": "pool", "worker_instance_id": "pool-1"}


def check(name: str) -> Callable[[Check], Check]:
    """Registers the check of one operation, under the reference's name for it."""

    def register(function: Check) -> Check:
        assert name not in CHECKS, f"two checks of {name}"
        CHECKS[name] = function
        return function

    return register


class World(Stage):
    """The stage, and a few questions about what is on it."""

    async def state(self, id: ExecutionId) -> str:
        return str(await self.executions.state(id))

    async def kinds(self, id: ExecutionId) -> list[str]:
        return [str(event.kind) for event in await self.executions.events(id)]

    async def last_detail(self, id: ExecutionId) -> Any:
        return (await self.executions.events(id))[-1].detail

    async def completed(self, lane: str, result: bytes = b"1", **options: Any) -> Claimed:
        held = await self.claimed(lane=lane, **options)
        await self.executions.complete(held, result)
        return held

    async def interrupted(self, lane: str) -> Claimed:
        held = await self.claimed(lane=lane)
        assert await self.client.leases.release([held]) == {}
        return held

    async def next(self, lane: str) -> Claimed:
        return await self.claim(lanes=[lane])

    async def grants_stored(self) -> int:
        return len(await Engine(self.db.conn).grants())


async def said(call: Awaitable[Any]) -> str:
    """The class of the error that a call raises; `success` if it does not."""
    try:
        await call
    except FlowFabricError as error:
        return type(error).__name__
    return "success"


def forged(held: Claimed) -> Claimed:
    return replace(held, epoch=held.epoch + 1)


# attempt.rs


@check("claim")
async def _(world: World) -> Facts:
    found: Facts = {"nothing_to_do": await world.executions.claim(**WORKER)}
    await world.submit(lane="a", needs=["gpu"], priority=9)
    await world.submit(lane="a")
    held = await world.next("a")
    found["behind_work_it_cannot_do"] = held.claim_kind
    found["state"] = await world.state(held.id)
    found["epoch"] = held.epoch
    found["events"] = await world.kinds(held.id)
    await world.client.leases.release([held])
    found["after_a_release"] = (again := await world.next("a")).claim_kind
    await world.lose(again)
    return found | {"after_a_lost_lease": (await world.next("a")).claim_kind}


async def resume_grant(world: World, lane: str) -> tuple[Claimed, Any]:
    held = await world.interrupted(lane)
    return held, await world.client.grants.issue_claim_grant(held.id, **WORKER)


@check("claim_from_resume_grant")
async def _(world: World) -> Facts:
    claim = world.client.grants.claim_from_resume_grant
    first, grant = await resume_grant(world, "a")
    other_key = replace(grant, key=bytes(32))
    found: Facts = {
        "another_key": await said(claim(other_key, worker_instance_id="pool-1")),
        "another_worker": await said(claim(grant, worker_id="w", worker_instance_id="w-1")),
    }
    held = await claim(grant, worker_instance_id="pool-2")
    found |= {
        "claim_kind": held.claim_kind,
        "attempt_index": held.attempt_index,
        "same_attempt": held.attempt_id == first.attempt_id,
        "epoch": held.epoch,
        "state": await world.state(held.id),
        "events": await world.kinds(held.id),
    }
    ended, grant = await resume_grant(world, "b")
    await world.executions.cancel(ended.id)
    found["of_an_ended_execution"] = await said(claim(grant, worker_instance_id="pool-1"))
    _, grant = await resume_grant(world, "c")
    await world.clock.advance(TTL)
    return found | {"too_late": await said(claim(grant, worker_instance_id="pool-1"))}


@check("renew")
async def _(world: World) -> Facts:
    renew = world.client.leases.renew
    held = await world.claimed()
    await world.clock.advance(SECOND)
    lost, _ = await renew([held], TTL)
    now = (await world.executions.describe(held.id)).lease_expires_at
    found: Facts = {
        "lost": len(lost),
        "extended": now == held.lease_expires_at + SECOND,
        "events": await world.kinds(held.id),
    }
    await world.clock.advance(TTL)
    lost, _ = await renew([held], TTL)
    found["lost_after_expiry"] = len(lost)
    found["events_after_expiry"] = await world.kinds(held.id)
    lost, _ = await renew([await world.completed("b")], TTL)
    return found | {"lost_after_the_end": len(lost)}


@check("progress")
async def _(world: World) -> Facts:
    report = world.executions.report_progress
    held = await world.claimed()
    await report(held, 10, "half way")
    await report(held, 40)
    shown = await world.executions.describe(held.id)
    found: Facts = {
        "percent": shown.progress_percent,
        "message": shown.progress_message,
        "events": await world.kinds(held.id),
        "beyond_100": await said(report(held, 101)),
    }
    await world.clock.advance(TTL)
    return found | {"after_expiry": await said(report(held, 50))}


@check("complete")
async def _(world: World) -> Facts:
    complete, result = world.executions.complete, world.executions.result
    held = await world.claimed()
    found: Facts = {"forged_epoch": await said(complete(forged(held), b"0"))}
    await complete(held, b"42")
    found |= {"state": await world.state(held.id), "result": (await result(held.id)).decode()}
    await complete(held, b"43")
    found["result_after_a_repeat"] = (await result(held.id)).decode()
    found["events"] = await world.kinds(held.id)
    held = await world.claimed(lane="b")
    await world.client.leases.revoke(held.id)
    found["after_a_revocation"] = await said(complete(held))
    await world.next("b")
    found["by_an_earlier_holder"] = await said(complete(held))
    held = await world.claimed(lane="c")
    await world.clock.advance(TTL)
    return found | {"after_expiry": await said(complete(held))}


@check("fail")
async def _(world: World) -> Facts:
    fail = world.executions.fail
    broken = Failure(FailureClass.TRANSIENT, "broken")
    held = await world.claimed(lane="a")
    await fail(held, broken)
    found: Facts = {"without_a_policy": await world.state(held.id)}
    held = await world.claimed(lane="b", retries=1)
    answer = await fail(held, broken)
    found |= {
        "with_a_policy": await world.state(held.id),
        "next_attempt_index": answer.next_attempt_index,
        "same_answer_again": await fail(held, broken) == answer,
        "events": await world.kinds(held.id),
    }
    await world.executions.retry(held.id)
    await fail(await world.next("b"), broken)
    found["after_the_last_retry"] = await world.state(held.id)
    held = await world.claimed(lane="c", retries=1)
    await fail(held, Failure(FailureClass.PERMANENT, "broken"))
    return found | {"permanent": await world.state(held.id)}


@check("delay")
async def _(world: World) -> Facts:
    delay = world.executions.delay
    held = await world.claimed(lane="a", deadline=5 * HOUR)
    until = await delay(held, HOUR)
    shown = await world.executions.describe(held.id)
    assert shown.delayed_until == until
    found: Facts = {
        "state": await world.state(held.id),
        "keeps_the_deadline": shown.deadline_at == held.deadline_at is not None,
        "events": await world.kinds(held.id),
        "completing_after_it": await said(world.executions.complete(held)),
    }
    await world.clock.advance(HOUR)
    await world.executions.promote_delayed()
    again = await world.next("a")
    found |= {"next_claim": again.claim_kind, "next_attempt_index": again.attempt_index}
    held = await world.claimed(lane="b")
    await delay(held, until=await world.now() - HOUR)
    return found | {"to_a_past_time": await world.state(held.id)}


@check("wait_children")
async def _(world: World) -> Facts:
    held = await world.claimed(lane="a")
    await world.executions.wait_children(held)
    found: Facts = {"state": await world.state(held.id), "events": await world.kinds(held.id)}
    again = await world.next("a")
    return found | {"next_claim": again.claim_kind, "next_attempt_index": again.attempt_index}


# exec_core.rs


@check("create_execution")
async def _(world: World) -> Facts:
    id = await world.submit(priority=20_000, needs=["gpu"])
    shown = await world.executions.describe(id)
    first = await world.submit(key="k", key_fingerprint=b"1")
    again = await world.submit(key="k", key_fingerprint=b"1")
    return {
        "state": await world.state(id),
        "events": await world.kinds(id),
        "priority_20000": shown.priority,
        "needs": sorted(shown.capabilities),
        "with_a_delay": await world.state(await world.submit(delay=HOUR)),
        "same_id_again": await said(world.submit(id=id, needs=["gpu"])),
        "same_key_again": "duplicate" if again == first else "another execution",
        "same_key_other_arguments": await said(world.submit(key="k", key_fingerprint=b"2")),
        "bad_tag_key": await said(world.submit(tags={"Bad": "1"})),
    }


@check("describe_execution")
async def _(world: World) -> Facts:
    held = await world.claimed(tags={"team.b": "2", "team.a": "1"})
    shown = await world.executions.describe(held.id)
    return {
        "state": str(shown.public_state),
        "lease": "the holder's" if shown.lease_id == held.lease_id else shown.lease_id,
        "attempt": "the holder's" if shown.attempt_id == held.attempt_id else shown.attempt_id,
        "tags": list(shown.tags),
        "missing": str(await world.executions.describe(mint())),
    }


@check("read_execution_context")
async def _(world: World) -> Facts:
    id = await world.submit(payload=b"[1]", tags={"team.a": "1"})
    context = await world.executions.context(id)
    return {
        "payload": context.payload.decode(),
        "task": context.task,
        "tags": list(context.tags),
        "missing": str(await world.executions.context(mint())),
    }


@check("read_current_attempt_index")
async def _(world: World) -> Facts:
    read = world.executions.attempt_index
    id = await world.submit(lane="a")
    found: Facts = {"before_the_first": await read(id)}
    held = await world.next("a")
    found["during_the_first"] = await read(id)
    await world.lose(held)
    await world.next("a")
    return found | {"during_the_second": await read(id), "missing": str(await read(mint()))}


@check("read_total_attempt_count")
async def _(world: World) -> Facts:
    read = world.executions.attempt_count
    id = await world.submit(lane="a")
    found: Facts = {"before_the_first": await read(id)}
    held = await world.next("a")
    found["during_the_first"] = await read(id)
    await world.client.leases.release([held])
    held = await world.next("a")
    found["resumed"] = await read(id)
    await world.lose(held)
    await world.next("a")
    return found | {"during_the_second": await read(id), "missing": str(await read(mint()))}


@check("read_execution_state")
async def _(world: World) -> Facts:
    id = await world.submit(lane="a")
    found: Facts = {"submitted": await world.state(id)}
    held = await world.next("a")
    found["claimed"] = await world.state(id)
    await world.executions.delay(held, HOUR)
    found["delayed"] = await world.state(id)
    await world.executions.retry(id)
    await world.executions.complete(await world.next("a"))
    return found | {"completed": await world.state(id), "missing": await world.state(mint())}


@check("read_execution_info")
async def _(world: World) -> Facts:
    first = await world.now()
    held = await world.interrupted("a")
    await world.clock.advance(SECOND)
    await world.next("a")
    await world.executions.cancel(held.id)
    info = await world.executions.info(held.id)
    dimensions = (
        *(info.phase, info.ownership, info.eligibility, info.blocking_reason, info.outcome),
        *(info.attempt_state, info.public_state),
    )
    return {
        "vector": [str(value) for value in dimensions],
        "started_at": "the first claim" if info.started_at == first else str(info.started_at),
        "missing": str(await world.executions.info(mint())),
    }


@check("get_execution_result")
async def _(world: World) -> Facts:
    read = world.executions.result
    held = await world.claimed(lane="a")
    found: Facts = {"while_it_runs": str(await read(held.id))}
    await world.executions.complete(held, b"\x00\xff")
    found["bytes"] = (await read(held.id)).hex()
    await world.executions.replay(held.id)
    found["after_a_replay"] = str(await read(held.id))
    held = await world.claimed(lane="b")
    await world.fail(held)
    return found | {"failed": str(await read(held.id)), "missing": str(await read(mint()))}


@check("set_execution_tag")
async def _(world: World) -> Facts:
    tag = world.executions.set_tag
    id = await world.submit()
    await tag(id, "team.a", "1")
    before = await world.executions.describe(id)
    await world.clock.advance(SECOND)
    await tag(id, "team.a", "2")
    await tag(id, "team.b", "3")
    after = await world.executions.describe(id)
    return {
        "tags": dict(after.tags),
        "moves_mutated_at": after.mutated_at == before.mutated_at + SECOND,
        "events": await world.kinds(id),
        "missing": await said(tag(mint(), "team.a", "1")),
        "bad_key": await said(tag(id, "Bad", "1")),
    }


@check("get_execution_tag")
async def _(world: World) -> Facts:
    tag = world.executions.tag
    id = await world.submit(tags={"team.a": "1"})
    return {
        "value": await tag(id, "team.a"),
        "absent": str(await tag(id, "team.b")),
        "missing": str(await tag(mint(), "team.a")),
        "bad_key": await said(tag(id, "Bad")),
    }


@check("get_execution_namespace")
async def _(world: World) -> Facts:
    id = await world.submit()
    async with FlowFabric(world.db.url, namespace="other") as other:
        foreign = await other.executions.namespace(id)
    return {
        "namespace": await world.executions.namespace(id),
        "missing": str(await world.executions.namespace(mint())),
        "from_another_namespace": str(foreign),
    }


@check("list_executions")
async def _(world: World) -> Facts:
    listed = world.executions.list_ids
    ids = sorted([await world.submit() for _ in range(3)], key=lambda id: id.uuid)
    first = await listed(limit=2)
    second = await listed(limit=2, after=first.cursor)
    return {
        "ascending": first.ids + second.ids == ids,
        "pages": [len(first.ids), len(second.ids)],
        "last_cursor": str(second.cursor),
        "limit_0": (await listed(limit=0)).ids,
        "bad_partition": await said(listed(partition=-1)),
    }


@check("cancel")
async def _(world: World) -> Facts:
    cancel = world.executions.cancel
    held = await world.claimed()
    found: Facts = {
        "without_its_lease": await said(cancel(held.id, source="lease_holder")),
        "forged_epoch": await said(cancel(held.id, source="lease_holder", held=forged(held))),
    }
    found["outcome"] = (await cancel(held.id, source="lease_holder", held=held)).outcome
    done = await world.completed("b")
    return found | {
        "state": await world.state(held.id),
        "events": await world.kinds(held.id),
        "cancelled_by": (await world.executions.describe(held.id)).cancelled_by,
        "again": (await cancel(held.id, source="lease_holder", held=held)).outcome,
        "completing_after_it": await said(world.executions.complete(held)),
        "of_a_completed_one": await said(cancel(done.id, source="lease_holder", held=done)),
        "missing": await said(cancel(mint(), source="lease_holder", held=held)),
    }


@check("resolve_execution_flow_id")
async def _(world: World) -> Facts:
    flow, (member,) = await _graph(world, "a", ())
    return {
        "member": "its flow" if await world.executions.flow_id(member) == flow else "another",
        "solo": str(await world.executions.flow_id(await world.submit())),
        "missing": str(await world.executions.flow_id(mint())),
    }


@check("trim_retention")
async def _(world: World) -> Facts:
    trim = world.client.retention.trim
    cancelled = await world.submit(lane="a")
    await world.executions.cancel(cancelled)
    completed = (await world.completed("b")).id
    await world.submit(lane="c")
    running = (await world.claim(lanes=["c"])).id
    too_young, _ = await trim(retention=2 * HOUR)
    await world.clock.advance(3 * HOUR)
    handled, _ = await trim(retention=2 * HOUR)
    return {
        "too_young": too_young,
        "handled": handled,
        "cancelled": await world.state(cancelled),
        "completed": await world.state(completed),
        "running": await world.state(running),
        "events_kept": await world.kinds(cancelled),
    }


# operator.rs


@check("cancel_execution")
async def _(world: World) -> Facts:
    cancel = world.executions.cancel
    held = await world.claimed()
    other: Facts = {"source": "system_timeout"}
    found: Facts = {
        "other_source_without_a_fence": await said(cancel(held.id, **other)),
        "other_source_forged_epoch": await said(cancel(held.id, **other, held=forged(held))),
        "outcome": (await cancel(held.id, reason="no longer wanted", actor="ann")).outcome,
        "state": await world.state(held.id),
        "events": await world.kinds(held.id),
        "epoch": (await world.executions.describe(held.id)).epoch,
        "reason": (await world.last_detail(held.id))["reason"],
        "again": (await cancel(held.id)).outcome,
        "completing_after_it": await said(world.executions.complete(held)),
        "of_a_completed_one": await said(cancel((await world.completed("b")).id)),
        "missing": await said(cancel(mint())),
    }
    granted = await world.submit(lane="c")
    await world.client.grants.issue_claim_grant(granted, **WORKER)
    await cancel(granted)
    return found | {"its_grant": "there" if await world.grants_stored() else "gone"}


@check("revoke_lease")
async def _(world: World) -> Facts:
    revoke = world.client.leases.revoke
    held = await world.claimed(lane="a")
    found: Facts = {
        "another_instance": (await revoke(held.id, worker_instance_id="w-9")).detail["reason"],
        "another_lease": (await revoke(held.id, lease_id=uuid4())).detail["reason"],
    }
    answer = await revoke(held.id, reason="node is going down", actor="ann")
    own = answer.detail["lease_id"] == str(held.lease_id)
    found |= {
        "outcome": answer.outcome,
        "state": str(answer.public_state),
        "lease_id": "the holder's" if own else answer.detail["lease_id"],
        "epoch": answer.detail["epoch"],
        "events": await world.kinds(held.id),
        "reason": (await world.last_detail(held.id))["reason"],
        "again": (await revoke(held.id)).detail["reason"],
        "of_a_completed_one": (await revoke((await world.completed("b")).id)).detail["reason"],
        "holder_completes": await said(world.executions.complete(held)),
        "missing": await said(revoke(mint())),
    }
    return found | {"next_claim": (await world.next("a")).claim_kind}


@check("change_priority")
async def _(world: World) -> Facts:
    change = world.executions.change_priority
    id = await world.submit()
    outcome = (await change(id, 20_000)).outcome
    blocked = await world.submit()
    await world.executions.block_for_admission(blocked, "paused_by_operator")
    return {
        "outcome": outcome,
        "priority_20000": (await world.executions.describe(id)).priority,
        "events": await world.kinds(id),
        "detail": await world.last_detail(id),
        "delayed": (await change(await world.submit(delay=HOUR), 5)).outcome,
        "blocked": (await change(blocked, 5)).outcome,
        "for_a_version_gone_by": (await change(id, 7, if_version=1)).outcome,
        "running": await said(change((await world.claimed(lane="b")).id, 5)),
        "completed": await said(change((await world.completed("c")).id, 5)),
        "missing": await said(change(mint(), 5)),
    }


@check("replay_execution")
async def _(world: World) -> Facts:
    replay = world.executions.replay
    held = await world.claimed(lane="a", tags={"team.a": "1"})
    await world.executions.cancel(held.id)
    outcome = (await replay(held.id)).outcome
    found: Facts = {
        "outcome": outcome,
        "state": await world.state(held.id),
        "events": await world.kinds(held.id),
        "attempts_kept": len(await world.executions.attempts(held.id)),
        "for_a_version_gone_by": (await replay(held.id, if_version=3)).outcome,
    }
    again = await world.next("a")
    found["next_attempt"] = [again.attempt_type, again.attempt_index]
    found["running"] = await said(replay(again.id))
    limited = await world.submit(lane="b")
    said_last = "success"
    for _ in range(11):
        await world.executions.cancel(limited)
        assert said_last == "success"
        said_last = await said(replay(limited))
    return found | {"beyond_the_limit": said_last, "missing": await said(replay(mint()))}


async def flow_of(world: World, lane: str, size: int) -> tuple[FlowId, list[ExecutionId]]:
    """A flow of members that do not depend on each other."""
    flow, members = mint_flow(), [mint() for _ in range(size)]
    route = Route("test", lane, "app.send")
    await world.client.flows.submit(
        Graph(
            id=flow,
            kind="test",
            nodes=[
                Node(f"n{number}", Submission(id=id, route=route, payload=b"null"))
                for number, id in enumerate(members)
            ],
        )
    )
    return flow, members


@check("cancel_flow_header")
async def _(world: World) -> Facts:
    flows = world.client.flows
    flow, members = await flow_of(world, "a", 3)
    done = await world.next("a")
    await world.executions.complete(done, b"1")
    answer = await flows.cancel_header(flow, reason="enough")
    open_ = [id for id in members if id != done.id]
    found: Facts = {
        "outcome": str(answer.outcome),
        "members": len(answer.members),
        "state_before_its_turn": await world.state(open_[0]),
        "claimable": len(
            await world.executions.claim(**WORKER, lease_ttl=TTL, lanes=["a"], limit=5)
        ),
        "unblock": await said(world.executions.unblock(open_[0])),
    }
    await flows.cancel_members(flow)
    second = await flows.cancel_header(flow, policy="flow_only", reason="again")
    shown = await world.executions.describe(open_[0])
    draining, _ = await flow_of(world, "b", 1)
    running = await world.next("b")
    await flows.cancel_header(draining, policy="cancel_pending")
    await flows.cancel_members(draining)
    raised, (kept,) = await flow_of(world, "e", 1)
    await world.next("e")
    await flows.cancel_header(raised, policy="cancel_pending")
    higher = await flows.cancel_header(raised)
    await flows.cancel_members(raised)
    ended, _ = await flow_of(world, "f", 1)
    await world.executions.complete(await world.next("f"), b"1")
    late = await flows.cancel_header(ended)
    alone, (free,) = await flow_of(world, "c", 1)
    await flows.cancel_header(alone, policy="flow_only")
    awaited, both = await flow_of(world, "d", 2)
    await flows.cancel(awaited, wait=HOUR)
    return found | {
        "states": [await world.state(id) for id in (done.id, *open_)],
        "events_of_a_member": await world.kinds(open_[0]),
        "cancelled_by": shown.cancelled_by,
        "policy_of_a_second_call": [str(second.outcome), str(second.policy), second.reason],
        "raised_to_cancel_all": [str(higher.outcome), await world.state(kept)],
        "of_a_flow_that_has_ended": [str(late.outcome), str(late.policy)],
        "running_under_cancel_pending": await world.state(running.id),
        "members_under_flow_only": await world.state(free),
        "waiting_ends_with_the_members": [await world.state(id) for id in both],
        "unknown_policy": await said(flows.cancel_header(alone, policy="everything")),
        "missing": await said(flows.cancel_header(mint_flow())),
    }


@check("ack_cancel_member")
async def _(world: World) -> Facts:
    ack = world.client.flows.ack_cancel_member
    flow, members = await flow_of(world, "a", 2)
    await world.client.flows.cancel_header(flow)
    unfinished = await said(ack(flow, members[0]))
    left = []
    for id in members:
        await world.executions.cancel(id)
        left.append(await ack(flow, id))
    return {
        "unfinished": unfinished,
        "left": left,
        "again": await ack(flow, members[0]),
        "backlogs_left": await world.db.fetchval("select count(*) from ff.cancel_backlog"),
        "not_a_member": await ack(flow, mint()),
    }


# Contract, scheduling and grants


@check("issue_claim_grant")
async def _(world: World) -> Facts:
    issue = world.client.grants.issue_claim_grant
    id = await world.submit(lane="a")
    grant = await issue(id, **WORKER)
    other = {"worker_id": "w", "worker_instance_id": "w-1", "lanes": ["a"]}
    hidden = await world.executions.claim(**other) == []
    needy = await world.submit(lane="b", needs=["gpu"])
    found: Facts = {
        "kind": str(grant.kind),
        "kind_when_interrupted": str((await resume_grant(world, "c"))[1].kind),
        "state": await world.state(id),
        "events": await world.kinds(id),
        "hidden_from_others": hidden,
        "second_grant": await said(issue(id, **WORKER)),
        "lacking_capabilities": await said(issue(needy, **WORKER)),
        "delayed": await said(issue(await world.submit(delay=HOUR), **WORKER)),
        "missing": await said(issue(mint(), **WORKER)),
    }
    await world.clock.advance(TTL)
    (held,) = await world.executions.claim(**other)
    return found | {"visible_when_over": held.id == id}


@check("claim_execution")
async def _(world: World) -> Facts:
    grants = world.client.grants
    id, claim_id = await world.submit(lane="a"), uuid4()
    grant = await grants.issue_claim_grant(id, **WORKER)
    bad = replace(grant, key=bytes(32))
    found: Facts = {
        "another_key": await said(grants.claim_execution(bad, worker_instance_id="pool-1"))
    }
    once: Facts = {"worker_instance_id": "pool-1", "claim_id": claim_id}
    held = await grants.claim_execution(grant, **once)
    again = await grants.claim_execution(grant, **once)
    _, resume = await resume_grant(world, "b")
    found |= {
        "claim_kind": held.claim_kind,
        "attempt_index": held.attempt_index,
        "epoch": held.epoch,
        "state": await world.state(id),
        "events": await world.kinds(id),
        "same_claim_id_again": "the same lease" if again.fence == held.fence else "another",
        "second_use": await said(grants.claim_execution(grant, worker_instance_id="pool-1")),
        "interrupted": await said(grants.claim_execution(resume, worker_instance_id="pool-1")),
    }
    late = await grants.issue_claim_grant(await world.submit(lane="c"), **WORKER)
    await world.clock.advance(TTL)
    too_late = await said(grants.claim_execution(late, worker_instance_id="pool-1"))
    return found | {"too_late": too_late}


@check("claim_resumed_execution")
async def _(world: World) -> Facts:
    claim = world.client.grants.claim_resumed_execution
    first, grant = await resume_grant(world, "a")
    held = await claim(grant, worker_instance_id="pool-1")
    plain = await world.client.grants.issue_claim_grant(await world.submit(lane="b"), **WORKER)
    return {
        "claim_kind": held.claim_kind,
        "same_attempt": held.attempt_id == first.attempt_id,
        "not_interrupted": await said(claim(plain, worker_instance_id="pool-1")),
    }


@check("issue_grant_and_claim")
async def _(world: World) -> Facts:
    take = world.client.grants.issue_grant_and_claim
    held = await take(await world.submit(lane="a", needs=["gpu"]))
    granted = await world.submit(lane="b")
    await world.client.grants.issue_claim_grant(granted, **WORKER)
    shown = await world.executions.describe(held.id)
    return {
        "worker": shown.worker_id,
        "claim_kind": held.claim_kind,
        "whatever_it_needs": await world.state(held.id),
        "when_interrupted": (await take((await world.interrupted("c")).id)).claim_kind,
        "running": await said(take(held.id)),
        "granted_to_another": await said(take(granted)),
        "delayed": await said(take(await world.submit(delay=HOUR))),
        "missing": await said(take(mint())),
    }


@check("issue_reclaim_grant")
async def _(world: World) -> Facts:
    issue = world.client.grants.issue_reclaim_grant
    held = await world.claimed(lane="a")
    capped = await world.claimed(lane="b", max_reclaims=0)
    await world.clock.advance(TTL)
    grant = await issue(held.id, **WORKER)
    over = await said(issue(capped.id, **WORKER))
    return {
        "kind": str(grant.kind),
        "events": await world.kinds(held.id),
        "second_grant": await said(issue(held.id, **WORKER)),
        "live_lease": await said(issue((await world.claimed(lane="c")).id, **WORKER)),
        "over_the_limit": over,
        "state_over_the_limit": await world.state(capped.id),
        "missing": await said(issue(mint(), **WORKER)),
    }


@check("reclaim_execution")
async def _(world: World) -> Facts:
    reclaim, issue = world.client.grants.reclaim_execution, world.client.grants.issue_reclaim_grant
    leases = {lane: await world.claimed(lane=lane) for lane in "abc"}
    await world.clock.advance(TTL)
    grants = {lane: await issue(held.id, **WORKER) for lane, held in leases.items()}
    bad = replace(grants["a"], key=bytes(32))
    found: Facts = {
        "another_key": await said(reclaim(bad, worker_instance_id="pool-1")),
        "another_worker": await said(reclaim(grants["a"], worker_id="w", worker_instance_id="w-1")),
    }
    held = await reclaim(grants["a"], worker_instance_id="pool-2")
    await world.executions.cancel(leases["b"].id)
    attempts = await world.executions.attempts(held.id)
    found |= {
        "claim_kind": held.claim_kind,
        "attempt_index": held.attempt_index,
        "epoch": held.epoch,
        "events": await world.kinds(held.id),
        "old_attempt": str(attempts[0].lifecycle),
        "ended_meanwhile": await said(reclaim(grants["b"], worker_instance_id="pool-1")),
    }
    await world.clock.advance(TTL)
    return found | {"too_late": await said(reclaim(grants["c"], worker_instance_id="pool-1"))}


# Contract, the forms of worker calls with named fields


async def without_a_fence(world: World, function: str, held: Claimed, **more: Any) -> str:
    """What a plural function answers for an item whose lease, epoch and attempt are null."""
    named: Facts = {
        "p_partition_key": 0,
        "p_namespace": "test",
        "p_execution_ids": [held.execution_id],
        "p_lease_ids": [None],
        "p_epochs": [None],
        "p_attempt_ids": [None],
        **more,
    }
    given = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    query = f"select outcome from ff.{function}({given})"
    return str(await world.db.fetchval(query, *named.values()))


@check("renew_lease")
async def _(world: World) -> Facts:
    held = await world.claimed()
    lost, _ = await world.client.leases.renew([held], TTL)
    return {
        "lost": len(lost),
        "epoch": (await world.executions.describe(held.id)).epoch,
        "without_a_fence": await without_a_fence(world, "renew_leases", held, p_lease_ttl=TTL),
    }


@check("complete_execution")
async def _(world: World) -> Facts:
    held = await world.claimed()
    refused = await without_a_fence(world, "complete_executions", held, p_results=[b"1"])
    found: Facts = {
        "without_a_fence": refused,
        "state_without_a_fence": await world.state(held.id),
    }
    await world.executions.complete(held)
    return found | {"state": await world.state(held.id)}


@check("fail_execution")
async def _(world: World) -> Facts:
    held = await world.claimed()
    more: Facts = {"p_classes": ["permanent"], "p_reasons": ["broken"]}
    found: Facts = {
        "without_a_fence": await without_a_fence(world, "fail_executions", held, **more),
        "state_without_a_fence": await world.state(held.id),
    }
    await world.fail(held)
    return found | {"state": await world.state(held.id)}


# Contract, admission


@check("block_execution_for_admission")
async def _(world: World) -> Facts:
    block = world.executions.block_for_admission
    id, held_back = await world.submit(lane="a"), await world.submit(lane="a")
    answer = await block(id, "waiting_for_budget", actor="ann")
    operator = await block(held_back, "paused_by_operator")
    return {
        "outcome": answer.outcome,
        "budget": str(answer.public_state),
        "operator": str(operator.public_state),
        "events": await world.kinds(id),
        "claimable": await world.executions.claim(**WORKER, lanes=["a"]),
        "again": (await block(id, "waiting_for_budget", actor="ann")).outcome,
        "delayed": await said(block(await world.submit(delay=HOUR), "waiting_for_quota")),
        "completed": await said(block((await world.completed("b")).id, "waiting_for_quota")),
        "unknown_reason": await said(block(id, "waiting_for_godot")),
    }


@check("block_route")
async def _(world: World) -> Facts:
    id = await world.submit()
    answer = await world.executions.block_for_admission(id, "waiting_for_capable_worker")
    shown = await world.executions.describe(id)
    return {
        "outcome": answer.outcome,
        "eligibility": str(shown.eligibility),
        "state": str(shown.public_state),
    }


@check("unblock_execution")
async def _(world: World) -> Facts:
    unblock = world.executions.unblock
    id = await world.submit()
    await world.executions.block_for_admission(id, "waiting_for_budget", actor="ann")
    another = await said(unblock(id, expected_reason="waiting_for_quota", actor="ann"))
    answer = await unblock(id, expected_reason="waiting_for_budget", actor="ann")
    return {
        "outcome": answer.outcome,
        "state": str(answer.public_state),
        "events": await world.kinds(id),
        "another_reason": another,
        "not_blocked": await said(unblock(await world.submit(), actor="ann")),
    }


# Contract, time


@check("mark_lease_expired_if_due")
async def _(world: World) -> Facts:
    expire = world.client.leases.expire
    held = await world.claimed()
    found: Facts = {"not_due": (await expire())[0]}
    await world.clock.advance(TTL)
    found |= {"due": (await expire())[0], "again": (await expire())[0]}
    info = await world.executions.info(held.id)
    return found | {
        "ownership": str(info.ownership),
        "state": str(info.public_state),
        "events": await world.kinds(held.id),
    }


@check("promote_delayed")
async def _(world: World) -> Facts:
    promote = world.executions.promote_delayed
    id = await world.submit(delay=HOUR, deadline=5 * HOUR)
    deadline_at = (await world.executions.describe(id)).deadline_at
    found: Facts = {"not_due": (await promote())[0]}
    await world.clock.advance(HOUR)
    found["due"] = (await promote())[0]
    shown = await world.executions.describe(id)
    return found | {
        "state": str(shown.public_state),
        "keeps_the_deadline": shown.deadline_at == deadline_at is not None,
        "events": await world.kinds(id),
    }


@check("expire_execution")
async def _(world: World) -> Facts:
    async def claimed(lane: str, **options: Any) -> Claimed:
        await world.submit(lane=lane, **options)
        (held,) = await world.executions.claim(**WORKER, lanes=[lane], lease_ttl=9 * HOUR)
        return held

    slow = await claimed("a", timeout=HOUR)
    retried = await claimed("b", timeout=HOUR, retries=1)
    running = await claimed("c", deadline=HOUR)
    waiting = await world.submit(lane="d", deadline=HOUR)
    await world.clock.advance(HOUR)
    await world.executions.expire()
    return {
        "attempt_timed_out": await world.state(slow.id),
        "attempt_timed_out_with_retries": await world.state(retried.id),
        "past_its_deadline_while_running": await world.state(running.id),
        "past_its_deadline_while_waiting": await world.state(waiting),
        "events": await world.kinds(running.id),
        "holder_completes": await said(world.executions.complete(running)),
    }


# Contract, reads


@check("list_lanes")
async def _(world: World) -> Facts:
    await world.claimed(lane="a")
    for _ in range(2):
        await world.submit(lane="b")
    await world.client.lanes.pause("b")
    lanes = await world.client.lanes.list()
    return {
        "lanes": [lane.lane for lane in lanes],
        "waiting": [lane.waiting for lane in lanes],
        "paused": str(lanes[1].state),
    }


@check("server_time_ms")
async def _(world: World) -> Facts:
    time = await world.executions.server_time()
    return {
        "time": "the database's" if time == await world.now() else str(time),
        "aware": time.tzinfo is not None,
    }


@check("list_expired_leases")
async def _(world: World) -> Facts:
    listed = world.executions.expired_leases
    await world.claimed(lane="a")
    await world.clock.advance(TTL)
    before = await listed()
    await world.client.leases.expire()
    after = await listed()
    await world.claimed(lane="b")
    await world.clock.advance(TTL)
    pages: list[list[Any]] = []
    while not pages or pages[-1]:
        pages.append(await listed(limit=1, after=pages[-1][0].cursor if pages else None))
    return {
        "marked": [lease.is_marked for lease in before],
        "after_marking": [lease.is_marked for lease in after],
        "pages": [len(page) for page in pages],
    }


# Contract, workers

ALIVE = timedelta(minutes=1)


@check("register_worker")
async def _(world: World) -> Facts:
    def register(worker_id: str) -> Awaitable[str]:
        return world.client.workers.register(
            worker_id=worker_id, worker_instance_id="w-1", liveness_ttl=ALIVE
        )

    found: Facts = {
        "first": await register("w"),
        "again": await register("w"),
        "another_worker_same_instance": await said(register("v")),
    }
    await world.clock.advance(2 * ALIVE)
    return found | {"after_its_time": await register("v")}


async def worker(world: World, instance: str) -> None:
    await world.client.workers.register(
        worker_id="w", worker_instance_id=instance, liveness_ttl=ALIVE
    )


@check("heartbeat_worker")
async def _(world: World) -> Facts:
    beat = world.client.workers.heartbeat
    await worker(world, "w-1")
    found: Facts = {"alive": await beat(["w-1"]), "unknown": await beat(["w-1", "w-9"])}
    await world.clock.advance(2 * ALIVE)
    return found | {"after_its_time": await beat(["w-1"])}


@check("mark_worker_dead")
async def _(world: World) -> Facts:
    mark = world.client.workers.mark_dead
    await worker(world, "pool-1")
    held = await world.claimed()

    async def ownership() -> str:
        return str((await world.executions.info(held.id)).ownership)

    found: Facts = {
        "bad_reason": await said(mark("pool-1", "two\nlines")),
        "known": await mark("pool-1", "gone"),
        "unknown": await mark("pool-1", "gone"),
        "its_lease": await ownership(),
    }
    await mark("pool-1", "gone", expire_leases=True)
    return found | {"its_lease_with_expire_leases": await ownership()}


@check("list_workers")
async def _(world: World) -> Facts:
    listed = world.client.workers.list
    await worker(world, "w-0")
    await world.clock.advance(2 * ALIVE)
    await worker(world, "w-1")
    async with FlowFabric(world.db.url, namespace="other") as other:
        foreign = await other.workers.list(with_dead=True)
    return {
        "alive": [info.worker_instance_id for info in await listed()],
        "with_dead": [info.worker_instance_id for info in await listed(with_dead=True)],
        "of_another_namespace": foreign,
    }


@check("ttl_sweep")
async def _(world: World) -> Facts:
    sweep = world.client.workers.sweep
    await worker(world, "w-1")
    found: Facts = {"not_due": (await sweep())[0]}
    await world.clock.advance(2 * ALIVE)
    found["due"] = (await sweep())[0]
    return found | {"left": await world.client.workers.list(with_dead=True)}


# Flows


async def _graph(world: World, lanes: str = "abc", edges: Any = ((0, 2), (1, 2))) -> Any:
    """A flow of one node for each letter, in a lane of its own; the last waits for a quorum."""
    id = mint_flow()
    nodes = [
        Node(
            lane,
            Submission(id=mint_in(0), route=Route("test", lane, "app.send"), payload=b"null"),
        )
        for lane in lanes
    ]
    groups = [Group(len(lanes) - 1, 0, Policy.quorum(2))] if edges else []
    graph = Graph(
        id=id, kind="test", nodes=nodes, edges=[Edge(*edge) for edge in edges], groups=groups
    )
    await world.client.flows.submit(graph)
    return id, [node.submission.id for node in nodes]


async def _built(world: World, *lanes: str) -> Any:
    """A flow made step by step: its id and its members."""
    id = (await world.client.flows.create("test")).id
    members = [await world.submit(lane=lane) for lane in lanes]
    for member in members:
        await world.client.flows.add_execution(id, member)
    return id, members


@check("create_flow")
async def _(world: World) -> Facts:
    flows, id = world.client.flows, mint_flow()
    is_new = [(await flows.create(kind, id=id)).is_new for kind in ("test", "other")]
    info = await flows.describe(id)
    return {
        "is_new": is_new,
        "state": str(info.state),
        "graph_revision": info.graph_revision,
        "without_a_kind": await said(flows.create("")),
    }


@check("add_execution_to_flow")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id, other = [(await flows.create("test")).id for _ in range(2)]
    one, two = await world.submit(), await world.submit()
    answers = [await flows.add_execution(id, member) for member in (one, one, two)]
    found = {
        "counts": [[answer.node_count, answer.graph_revision] for answer in answers],
        "is_new": [answer.is_new for answer in answers],
        "of_another_flow": await said(flows.add_execution(other, one)),
        "without_a_flow": await said(flows.add_execution(mint_flow(), one)),
        "without_an_execution": await said(flows.add_execution(id, mint())),
        "of_another_partition": await said(flows.add_execution(id, mint_in(7))),
    }
    await flows.cancel(id)
    return found | {
        "to_a_cancelled_flow": await said(flows.add_execution(id, await world.submit()))
    }


@check("stage_dependency_edge")
async def _(world: World) -> Facts:
    id, (a, b) = await _built(world, "a", "b")
    stage, edge_id = world.client.flows.stage_dependency_edge, uuid4()

    async def staged(*ends: ExecutionId, revision: int = 3, **options: Any) -> Any:
        return await stage(id, *ends, expected_graph_revision=revision, **options)

    return {
        "graph_revision": (await staged(a, b, revision=2, edge_id=edge_id)).graph_revision,
        "again": (await staged(a, b, revision=2, edge_id=edge_id)).graph_revision,
        "to_itself": await said(staged(a, a)),
        "with_an_old_revision": await said(staged(a, b, revision=1)),
        "to_a_stranger": await said(staged(a, await world.submit())),
        "back_again": await said(staged(b, a)),
        "with_its_id_again": await said(staged(a, b, edge_id=edge_id)),
        "of_another_kind": await said(staged(a, b, kind="any_end")),
    }


@check("apply_dependency_to_child")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id, (a, b, c) = await _built(world, "a", "b", "c")
    edge = await flows.stage_dependency_edge(id, a, b, expected_graph_revision=3)
    answers = [await flows.apply_dependency_to_child(id, edge.edge_id, a, b) for _ in range(2)]
    other = await said(flows.apply_dependency_to_child(id, edge.edge_id, b, a))
    await world.executions.complete(await world.next("a"))
    held = await world.next("c")
    late = await flows.stage_dependency_edge(id, b, held.id, expected_graph_revision=4)
    return {
        "is_new": [answer.is_new for answer in answers],
        "unsatisfied": answers[0].unsatisfied,
        "state": str(answers[0].downstream_state),
        "after_the_end_of_the_upstream": await world.state(b),
        "other_ends": other,
        "while_it_runs": await said(flows.apply_dependency_to_child(id, late.edge_id, b, c)),
    }


@check("set_edge_group_policy")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id, (a, b) = await _built(world, "a", "b")
    policies = (Policy.quorum(2), Policy.quorum(2), Policy.quorum(1))
    is_new = [await flows.set_edge_group_policy(id, b, policy) for policy in policies]
    await flows.stage_dependency_edge(id, a, b, expected_graph_revision=2)
    zero = Policy(GroupPolicy.QUORUM, 0, OnSatisfied.LET_RUN)
    return {
        "is_new": is_new,
        "after_the_first_edge": await said(flows.set_edge_group_policy(id, b, Policy.any_of())),
        "without_a_flow": await said(flows.set_edge_group_policy(mint_flow(), b, Policy.any_of())),
        "k_of_zero": await said(flows.set_edge_group_policy(id, b, zero, group=1)),
    }


@check("describe_flow")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id, _members = await _graph(world)
    info = await flows.describe(id)
    return {
        "flow_kind": info.flow_kind,
        "state": str(info.state),
        "counts": [info.node_count, info.edge_count, info.graph_revision],
        "groups": [f"{one.policy.kind} {one.state} {one.n}" for one in info.groups],
        "missing": str(await flows.describe(mint_flow())),
    }


@check("list_flows")
async def _(world: World) -> Facts:
    flows = world.client.flows
    for _ in range(3):
        await _graph(world)
    first = await flows.list(limit=2)
    rest = await flows.list(limit=2, after=first.after)
    async with FlowFabric(world.db.url, namespace="other") as other:
        none = await other.flows.list()
    return {
        "pages": [len(first.flows), len(rest.flows)],
        "none": len(none.flows),
        "state": str(first.flows[0].state),
    }


@check("list_edges")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id, (a, _b, c) = await _graph(world)
    return {
        "all": len(await flows.edges(id)),
        "outgoing": len(await flows.edges(id, upstream=a)),
        "incoming": len(await flows.edges(id, downstream=c)),
        "of_a_missing_flow": len(await flows.edges(mint_flow())),
    }


@check("describe_edge")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id, (a, *_rest) = await _graph(world)
    await world.executions.complete(await world.next("a"))
    (edge,) = await flows.edges(id, upstream=a)
    found = await flows.describe_edge(id, edge.edge_id)
    return {
        "edge_state": found.edge_state,
        "resolution": str(found.resolution),
        "outcome": str(found.outcome),
        "of_another_flow": str(await flows.describe_edge(mint_flow(), edge.edge_id)),
    }


@check("project_flow_summary")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id, _members = await _graph(world)
    states = [await flows.summary(id)]
    held = await world.next("a")
    states.append(await flows.summary(id))
    await world.executions.complete(held)
    await world.executions.complete(await world.next("b"))
    states.append(await flows.summary(id))
    await world.executions.complete(await world.next("c"))
    states.append(await flows.summary(id))
    empty = await flows.summary((await flows.create("test")).id)
    return {
        "states": [str(one.state) for one in states],
        "total": states[-1].total,
        "empty": str(empty.state),
        "missing": str(await flows.summary(mint_flow())),
    }


@check("set_flow_tag")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id = (await flows.create("test")).id
    await flows.set_tag(id, "team.name", "blue")
    return {
        "tags": sorted(await flows.set_tags(id, {"team.size": "3"})),
        "bad_key": await said(flows.set_tag(id, "plain", "x")),
        "missing": await said(flows.set_tag(mint_flow(), "team.name", "x")),
    }


@check("get_flow_tag")
async def _(world: World) -> Facts:
    flows = world.client.flows
    id = (await flows.create("test", tags={"team.name": "blue"})).id
    return {
        "value": await flows.tag(id, "team.name"),
        "missing": str(await flows.tag(id, "team.size")),
        "of_a_missing_flow": str(await flows.tag(mint_flow(), "team.name")),
    }


@check("evaluate_flow_eligibility")
async def _(world: World) -> Facts:
    flows = world.client.flows
    _id, (a, _b, c) = await _graph(world)
    held = await world.next("b")
    answers = [await flows.eligibility(one) for one in (a, c, held.id, mint())]
    await world.executions.complete(held)
    await world.executions.complete(await world.next("a"))
    return {
        "answers": [str(one) for one in answers],
        "after_the_end_of_the_upstream": str(await flows.eligibility(c)),
    }


@check("promote_blocked_to_eligible")
async def _(world: World) -> Facts:
    promote = world.executions.promote_blocked_to_eligible
    _id, (a, _b, c) = await _graph(world)
    stranded = await world.submit(lane="d")
    async with unwitnessed(world.db.conn):
        # as only a mistake could leave it
        await world.db.execute(
            "update ff.execution set eligibility = 'blocked_by_dependencies', "
            "blocking_reason = 'waiting_for_children' where execution_id = $1",
            stranded.uuid,
        )
    found: Facts = {
        "stranded": (await promote(stranded)).public_state,
        "with_open_dependencies": await said(promote(c)),
        "not_blocked": await said(promote(a)),
        "missing": await said(promote(mint())),
    }
    held = await world.next("a")
    found["running"] = await said(promote(a))
    await world.executions.complete(held)
    return found | {"ended": await said(promote(a))}


async def _left_over(world: World, lanes: str) -> Any:
    """A decided group with a sibling that could not be cancelled, because somebody held its row."""
    _id, members = await _graph(world, lanes, ((0, 3), (1, 3), (2, 3)))
    async with unbound(world.db.url) as other, other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", members[2].uuid
        )
        for lane in lanes[:2]:
            await world.executions.complete(await world.next(lane))
        # until the client has given up, and leaves it to the reconcilers
        await asyncio.sleep(0.5)
    return members[2]


@check("edge_cancel_dispatcher")
async def _(world: World) -> Facts:
    sibling = await _left_over(world, "abcd")
    before = await world.state(sibling)
    handled = [(await world.executions.cancel_siblings())[0] for _ in range(2)]
    return {
        "states": [before, await world.state(sibling)],
        "handled": handled,
        "reason": (await world.executions.describe(sibling)).cancellation_reason,
    }


@check("edge_cancel_reconciler")
async def _(world: World) -> Facts:
    sibling = await _left_over(world, "abcd")
    found: Facts = {
        "while_it_lives": (await world.executions.reconcile_siblings())[0],
        "state": await world.state(sibling),
    }
    await world.executions.cancel(sibling)
    return found | {"when_it_has_ended": (await world.executions.reconcile_siblings())[0]}


def text(facts: Facts) -> str:
    """Facts in a form that compares and prints well."""
    return json.dumps(facts, indent=1, sort_keys=True, default=str)
