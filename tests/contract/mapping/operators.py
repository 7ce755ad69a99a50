"""operator.rs: what an operator does."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.core.execution import Route, Submission
from flowfabric.core.flow import Graph, Node
from flowfabric.core.ids import ExecutionId, FlowId, mint, mint_flow
from reads.stage import TTL

from .world import HOUR, WORKER, Facts, See, World, forged, operation, said

SOURCE = "operator.rs"


@operation(
    "cancel_execution",
    sql=["cancel_execution"],
    python=["executions.cancel"],
    reasons=["0010", "0025", "D-24", "D-59", "D-61", "D-62", "D-68"],
)
async def _(world: World, see: See) -> None:
    """The caller names the source, which decides what it must show. `operator_override`, the
    default, needs no lease and ignores a fence. `lease_holder` always shows the whole fence, not
    only the epoch. Any other source shows the fence while the execution is active. Every
    cancellation writes its event, frees the lease and drops grants. Cancelling a cancelled
    execution again gets the same answer, whoever asks; if an execution ended otherwise, the error
    says so and is not InvalidInput.
    """
    cancel = world.executions.cancel
    held = await world.claimed()
    other: Facts = {"source": "system_timeout"}
    see("other_source_without_a_fence", await said(cancel(held.id, **other)), "InvalidInput")
    see(
        "other_source_forged_epoch",
        await said(cancel(held.id, **other, claimed=forged(held))),
        "StaleLease",
    )
    see(
        "outcome",
        (await cancel(held.id, reason="no longer wanted", actor="ann")).outcome,
        "cancelled",
    )
    see("state", await world.state(held.id), "cancelled")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "cancelled"])
    see("epoch", (await world.executions.describe(held.id)).epoch, 2)
    see("reason", (await world.last_detail(held.id))["reason"], "no longer wanted")
    see("again", (await cancel(held.id)).outcome, "cancelled")
    see("completing_after_it", await said(world.executions.complete(held)), "ExecutionNotActive")
    see(
        "of_a_completed_one",
        await said(cancel((await world.completed("b")).id)),
        "ExecutionTerminal",
    )
    see("missing", await said(cancel(mint())), "ExecutionNotFound")
    granted = await world.submit(lane="c")
    await world.client.grants.issue_claim_grant(granted, **WORKER)
    await cancel(granted)
    see("its_grant", "there" if await world.grants_stored() else "gone", "gone")
    waiting = await world.submit(lane="d")
    see("other_source_while_it_waits", (await cancel(waiting, **other)).outcome, "cancelled")
    see("other_source_when_it_is_cancelled", (await cancel(waiting, **other)).outcome, "cancelled")


@operation(
    "revoke_lease",
    sql=["revoke_lease"],
    python=["leases.revoke"],
    reasons=["0023", "0025", "D-24", "D-52", "D-67"],
)
async def _(world: World, see: See) -> None:
    """It answers with the id of the lease. An ended or delayed execution has no lease to revoke.
    The execution stays active and the next claim reclaims it; reason and actor are stored. The call
    may name a version, so that its repeat does not revoke the next holder's lease.
    """
    revoke = world.client.leases.revoke
    held = await world.claimed(lane="a")
    see(
        "another_instance",
        (await revoke(held.id, worker_instance_id="w-9")).detail["reason"],
        "different_worker_instance_id",
    )
    see(
        "another_lease",
        (await revoke(held.id, lease_id=uuid4())).detail["reason"],
        "lease_id_mismatch",
    )
    answer = await revoke(held.id, reason="node is going down", actor="ann")
    own = answer.detail["lease_id"] == str(held.lease_id)
    see("outcome", answer.outcome, "revoked")
    see("state", str(answer.public_state), "active")
    see("lease_id", "the holder's" if own else answer.detail["lease_id"], "the holder's")
    see("epoch", answer.detail["epoch"], 2)
    see("events", await world.kinds(held.id), ["submitted", "claimed", "lease_revoked"])
    see("reason", (await world.last_detail(held.id))["reason"], "node is going down")
    see("again", (await revoke(held.id)).detail["reason"], "no_active_lease")
    see(
        "of_a_completed_one",
        (await revoke((await world.completed("b")).id)).detail["reason"],
        "no_active_lease",
    )
    see("holder_completes", await said(world.executions.complete(held)), "LeaseRevoked")
    see("missing", await said(revoke(mint())), "ExecutionNotFound")
    see("next_claim", (await world.next("a")).claim_kind, "reclaimed")


@operation(
    "change_priority",
    sql=["change_priority"],
    python=["executions.change_priority"],
    reasons=["0023", "D-67", "ruling: any runnable state"],
)
async def _(world: World, see: See) -> None:
    """The priority of any waiting execution can be changed, also of a delayed or blocked one. The
    call may name a version, so that a repeat does not write a second event.
    """
    change = world.executions.change_priority
    id = await world.submit()
    outcome = (await change(id, 20_000)).outcome
    blocked = await world.submit()
    await world.executions.block_for_admission(blocked, "paused_by_operator")
    see("outcome", outcome, "changed")
    see("priority_20000", (await world.executions.describe(id)).priority, 9000)
    see("events", await world.kinds(id), ["submitted", "priority_changed"])
    see("detail", await world.last_detail(id), {"old_priority": 0, "new_priority": 9000})
    see("delayed", (await change(await world.submit(delay=HOUR), 5)).outcome, "changed")
    see("blocked", (await change(blocked, 5)).outcome, "changed")
    see("for_a_version_gone_by", (await change(id, 7, if_version=1)).outcome, "already_applied")
    see(
        "running", await said(change((await world.claimed(lane="b")).id, 5)), "ExecutionNotEligible"
    )
    see("completed", await said(change((await world.completed("c")).id, 5)), "ExecutionNotEligible")
    see("missing", await said(change(mint(), 5)), "ExecutionNotFound")


@operation(
    "replay_execution",
    sql=["replay_execution"],
    python=["executions.replay"],
    reasons=["0023", "D-59", "D-66", "ruling: retries and reclaims are counted from 0 again"],
)
async def _(world: World, see: See) -> None:
    """Every outcome may be replayed, cancelled ones included, up to the limit of the policy (10).
    The history stays and the next claim starts a new attempt. The call may name a version. In a
    flow, edges that the end of the execution had made impossible are open again, and each member
    that was skipped because of them is replayed with it, which does not count as a replay of that
    member. A replayed member that was itself skipped waits again. In a cancelled flow nothing is
    replayed.
    """
    replay = world.executions.replay
    held = await world.claimed(lane="a", tags={"team.a": "1"})
    await world.executions.cancel(held.id)
    outcome = (await replay(held.id)).outcome
    see("outcome", outcome, "replayed")
    see("state", await world.state(held.id), "waiting")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "cancelled", "replayed"])
    see("attempts_kept", len(await world.executions.attempts(held.id)), 1)
    see("for_a_version_gone_by", (await replay(held.id, if_version=3)).outcome, "already_applied")
    again = await world.next("a")
    see("next_attempt", [again.attempt_type, again.attempt], ["replay", 2])
    see("running", await said(replay(again.id)), "ExecutionNotTerminal")
    limited = await world.submit(lane="b")
    said_last = "success"
    for _ in range(11):
        await world.executions.cancel(limited)
        assert said_last == "success"
        said_last = await said(replay(limited))
    see("beyond_the_limit", said_last, "MaxReplaysExhausted")
    see("missing", await said(replay(mint())), "ExecutionNotFound")


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


@operation(
    "cancel_flow_header",
    sql=["cancel_flow_header", "cancel_members"],
    python=["flows.cancel_header", "flows.cancel_members", "flows.cancel"],
    reasons=["D-64", "D-65", "D-97"],
)
async def _(world: World, see: See) -> None:
    """It cancels the flow, records the members that have not ended, and pauses the waiting ones.
    From then on no claim and no grant takes a member. The policy `flow_only` leaves the members
    alone. The members are ended later, each under its own lock, by the same routine as any other
    execution: at once by flows.cancel, or by a reconciler. A policy ends only the members it names,
    and an ended member keeps its outcome. A call that waits for the flow waits for its members. The
    event counts the members that had not ended, and the answer names them. While members have not
    ended, a stricter policy may follow; a flow whose members have all ended is already_terminal.
    """
    flows = world.client.flows
    flow, members = await flow_of(world, "a", 3)
    done = await world.next("a")
    await world.executions.complete(done, b"1")
    answer = await flows.cancel_header(flow, reason="enough")
    open_ = [id for id in members if id != done.id]
    see("outcome", str(answer.outcome), "scheduled")
    see("members", len(answer.members), 2)
    see("state_before_its_turn", await world.state(open_[0]), "waiting")
    see(
        "claimable",
        len(await world.executions.claim(**WORKER, lease_ttl=TTL, lanes=["a"], limit=5)),
        0,
    )
    see("unblock", await said(world.executions.unblock(open_[0])), "ExecutionNotEligible")
    await flows.cancel_members(flow)
    second = await flows.cancel_header(flow, cancel_policy="flow_only", reason="again")
    shown = await world.executions.describe(open_[0])
    draining, _ = await flow_of(world, "b", 1)
    running = await world.next("b")
    await flows.cancel_header(draining, cancel_policy="cancel_pending")
    await flows.cancel_members(draining)
    raised, (kept,) = await flow_of(world, "e", 1)
    await world.next("e")
    await flows.cancel_header(raised, cancel_policy="cancel_pending")
    higher = await flows.cancel_header(raised)
    await flows.cancel_members(raised)
    ended, _ = await flow_of(world, "f", 1)
    await world.executions.complete(await world.next("f"), b"1")
    late = await flows.cancel_header(ended)
    alone, (free,) = await flow_of(world, "c", 1)
    await flows.cancel_header(alone, cancel_policy="flow_only")
    awaited, both = await flow_of(world, "d", 2)
    await flows.cancel(awaited, wait=HOUR)
    see(
        "states",
        [await world.state(id) for id in (done.id, *open_)],
        ["completed", "cancelled", "cancelled"],
    )
    see("events_of_a_member", await world.kinds(open_[0]), ["submitted", "cancelled"])
    see("cancelled_by", shown.cancelled_by, "flow_cascade")
    see(
        "policy_of_a_second_call",
        [str(second.outcome), str(second.cancel_policy), second.reason],
        ["already_terminal", "cancel_all", "enough"],
    )
    see(
        "raised_to_cancel_all",
        [str(higher.outcome), await world.state(kept)],
        ["scheduled", "cancelled"],
    )
    see(
        "of_a_flow_that_has_ended",
        [str(late.outcome), str(late.cancel_policy)],
        ["already_terminal", "None"],
    )
    see("running_under_cancel_pending", await world.state(running.id), "active")
    see("members_under_flow_only", await world.state(free), "waiting")
    see("claimed_under_flow_only", (await world.next("c")).id == free, True)
    see(
        "waiting_ends_with_the_members",
        [await world.state(id) for id in both],
        ["cancelled", "cancelled"],
    )
    see(
        "unknown_policy",
        await said(flows.cancel_header(alone, cancel_policy="everything")),
        "InvalidInput",
    )
    see("missing", await said(flows.cancel_header(mint_flow())), "FlowNotFound")


@operation(
    "ack_cancel_member",
    sql=["ack_cancel_member"],
    python=["flows.ack_cancel_member"],
    reasons=["D-64", "D-68"],
)
async def _(world: World, see: See) -> None:
    """A member that has not ended is not acknowledged, because then nothing would end it any more.
    Callers of flows.cancel or flows.cancel_members do not need this call.
    """
    ack = world.client.flows.ack_cancel_member
    flow, members = await flow_of(world, "a", 2)
    await world.client.flows.cancel_header(flow)
    unfinished = await said(ack(flow, members[0]))
    left = []
    for id in members:
        await world.executions.cancel(id)
        left.append(await ack(flow, id))
    see("unfinished", unfinished, "ExecutionNotTerminal")
    see("left", left, [1, 0])
    see("again", await ack(flow, members[0]), 0)
    see("backlogs_left", await world.db.fetchval("select count(*) from ff.cancel_backlog"), 0)
    see("not_a_member", await ack(flow, mint()), 0)
