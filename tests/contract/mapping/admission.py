"""Blocking an execution, and unblocking it."""

from __future__ import annotations

from .world import HOUR, WORKER, See, World, operation, said

SOURCE = "contract"


@operation(
    "block_execution_for_admission",
    sql=["block_execution_for_admission"],
    python=["executions.block_for_admission"],
    reasons=["0024", "D-60"],
)
async def _(world: World, see: See) -> None:
    """It works on Postgres. Only an execution that is eligible, or blocked by a budget, a quota or
    a missing worker, can be blocked. So unblocking never runs an execution before its time. An
    event is written only if an actor is given.
    """
    block = world.executions.block_for_admission
    id, held_back = await world.submit(lane="a"), await world.submit(lane="a")
    answer = await block(id, "waiting_for_budget", actor="ann")
    operator = await block(held_back, "paused_by_operator")
    see("outcome", answer.outcome, "blocked")
    see("budget", str(answer.public_state), "rate_limited")
    see("operator", str(operator.public_state), "waiting")
    see("events", await world.kinds(id), ["submitted", "blocked"])
    see("claimable", await world.executions.claim(**WORKER, lanes=["a"]), [])
    see("again", (await block(id, "waiting_for_budget", actor="ann")).outcome, "blocked")
    see(
        "delayed",
        await said(block(await world.submit(delay=HOUR), "waiting_for_quota")),
        "ExecutionNotEligible",
    )
    see(
        "completed",
        await said(block((await world.completed("b")).id, "waiting_for_quota")),
        "ExecutionNotActive",
    )
    see("unknown_reason", await said(block(id, "waiting_for_godot")), "InvalidInput")


@operation(
    "block_route",
    sql=["block_execution_for_admission"],
    python=["executions.block_for_admission"],
    reasons=["0019", "0024", "D-08"],
)
async def _(world: World, see: See) -> None:
    """The same call with the reason waiting_for_capable_worker. When a worker that can run the
    execution registers, the execution is unblocked. Claims do not need it: they look only at routes
    that their worker covers.
    """
    id = await world.submit()
    answer = await world.executions.block_for_admission(id, "waiting_for_capable_worker")
    shown = await world.executions.describe(id)
    see("outcome", answer.outcome, "blocked")
    see("eligibility", str(shown.eligibility), "blocked_by_route")
    see("state", str(shown.public_state), "waiting")
    await world.worker()
    shown = await world.executions.describe(id)
    see("when_a_capable_worker_registers", str(shown.eligibility), "eligible_now")


@operation(
    "unblock_execution",
    sql=["unblock_execution"],
    python=["executions.unblock"],
    reasons=["0023", "0024"],
)
async def _(world: World, see: See) -> None:
    """It works on Postgres. With an actor it writes an event, and the call may name a version.
    Nothing lifts the pause of a flow that is being cancelled.
    """
    unblock = world.executions.unblock
    id = await world.submit()
    await world.executions.block_for_admission(id, "waiting_for_budget", actor="ann")
    another = await said(unblock(id, expected_reason="waiting_for_quota", actor="ann"))
    answer = await unblock(id, expected_reason="waiting_for_budget", actor="ann")
    see("outcome", answer.outcome, "unblocked")
    see("state", str(answer.public_state), "waiting")
    see("events", await world.kinds(id), ["submitted", "blocked", "unblocked"])
    see("another_reason", another, "ExecutionNotEligible")
    see(
        "not_blocked",
        await said(unblock(await world.submit(), actor="ann")),
        "ExecutionNotEligible",
    )
