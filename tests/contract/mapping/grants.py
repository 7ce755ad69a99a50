"""Claims with a grant."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from flowfabric.core.ids import mint
from reads.stage import TTL

from .world import HOUR, WORKER, Facts, See, World, operation, resume_grant, said

SOURCE = "contract"


@operation(
    "issue_claim_grant",
    sql=["issue_claim_grant"],
    python=["grants.issue_claim_grant"],
    reasons=["D-13", "D-19", "ruling: at most one grant an execution"],
)
async def _(world: World, see: See) -> None:
    """The caller makes the key, 256 random bits, and only its hash is stored; there is no signature
    and no keystore. The kind of the grant says whether to claim or to resume. The execution's row
    does not change, so that an expired grant hides nothing. An execution in a paused or disabled
    lane, or in a cancelled flow, gets no grant.
    """
    issue = world.client.grants.issue_claim_grant
    id = await world.submit(lane="a")
    grant = await issue(id, **WORKER)
    other = {"worker_id": "w", "worker_instance_id": "w-1", "lanes": ["a"]}
    hidden = await world.executions.claim(**other) == []
    needy = await world.submit(lane="b", needs=["gpu"])
    see("kind", str(grant.kind), "claim")
    see("kind_when_interrupted", str((await resume_grant(world, "c"))[1].kind), "resume")
    see("state", await world.state(id), "waiting")
    see("events", await world.kinds(id), ["submitted"])
    see("hidden_from_others", hidden, True)
    see("second_grant", await said(issue(id, **WORKER)), "GrantAlreadyExists")
    see("lacking_capabilities", await said(issue(needy, **WORKER)), "CapabilityMismatch")
    see(
        "delayed",
        await said(issue(await world.submit(delay=HOUR), **WORKER)),
        "ExecutionNotEligible",
    )
    see("missing", await said(issue(mint(), **WORKER)), "ExecutionNotFound")
    await world.clock.advance(TTL)
    (held,) = await world.executions.claim(**other)
    see("visible_when_over", held.id == id, True)


@operation(
    "claim_execution",
    sql=["claim_execution"],
    python=["grants.claim_execution"],
    reasons=["0010", "D-16", "D-17", "D-18"],
)
async def _(world: World, see: See) -> None:
    """The claim id is the id of the lease and of the attempt; a repeat with the same claim id gets
    the same lease. The engine chooses the attempt index; an expected index is only compared.
    """
    grants = world.client.grants
    id, claim_id = await world.submit(lane="a"), uuid4()
    grant = await grants.issue_claim_grant(id, **WORKER)
    bad = replace(grant, key=bytes(32))
    see(
        "another_key",
        await said(grants.claim_execution(bad, worker_instance_id="pool-1")),
        "InvalidClaimGrant",
    )
    once: Facts = {"worker_instance_id": "pool-1", "claim_id": claim_id}
    held = await grants.claim_execution(grant, **once)
    again = await grants.claim_execution(grant, **once)
    _, resume = await resume_grant(world, "b")
    see("claim_kind", held.claim_kind, "fresh")
    see("attempt", held.attempt, 1)
    see("epoch", held.epoch, 1)
    see("state", await world.state(id), "active")
    see("events", await world.kinds(id), ["submitted", "claimed"])
    see(
        "same_claim_id_again",
        "the same lease" if again.fence == held.fence else "another",
        "the same lease",
    )
    see(
        "second_use",
        await said(grants.claim_execution(grant, worker_instance_id="pool-1")),
        "LeaseConflict",
    )
    see(
        "interrupted",
        await said(grants.claim_execution(resume, worker_instance_id="pool-1")),
        "UseClaimResumedExecution",
    )
    late = await grants.issue_claim_grant(await world.submit(lane="c"), **WORKER)
    await world.clock.advance(TTL)
    too_late = await said(grants.claim_execution(late, worker_instance_id="pool-1"))
    see("too_late", too_late, "ClaimGrantExpired")


@operation(
    "claim_resumed_execution",
    sql=["claim_resumed_execution"],
    python=["grants.claim_resumed_execution"],
    reasons=["D-11", "D-12"],
)
async def _(world: World, see: See) -> None:
    """The same call as claim_from_resume_grant. The attempt must be interrupted; the public state
    does not matter.
    """
    claim = world.client.grants.claim_resumed_execution
    first, grant = await resume_grant(world, "a")
    held = await claim(grant, worker_instance_id="pool-1")
    plain = await world.client.grants.issue_claim_grant(await world.submit(lane="b"), **WORKER)
    see("claim_kind", held.claim_kind, "resumed")
    see("same_attempt", held.attempt_id == first.attempt_id, True)
    see(
        "not_interrupted",
        await said(claim(plain, worker_instance_id="pool-1")),
        "NotAResumedExecution",
    )


@operation(
    "issue_grant_and_claim",
    sql=["issue_grant_and_claim"],
    python=["grants.issue_grant_and_claim"],
    reasons=["0010", "D-16", "D-18"],
)
async def _(world: World, see: See) -> None:
    """A refusal leaves nothing behind. The answer is the whole lease."""
    take = world.client.grants.issue_grant_and_claim
    held = await take(await world.submit(lane="a", needs=["gpu"]))
    granted = await world.submit(lane="b")
    await world.client.grants.issue_claim_grant(granted, **WORKER)
    shown = await world.executions.describe(held.id)
    see("worker", shown.worker_id, "operator")
    see("claim_kind", held.claim_kind, "fresh")
    see("whatever_it_needs", await world.state(held.id), "active")
    see("when_interrupted", (await take((await world.interrupted("c")).id)).claim_kind, "resumed")
    see("running", await said(take(held.id)), "LeaseConflict")
    see("granted_to_another", await said(take(granted)), "GrantAlreadyExists")
    see("delayed", await said(take(await world.submit(delay=HOUR))), "ExecutionNotEligible")
    see("missing", await said(take(mint())), "ExecutionNotFound")


@operation(
    "issue_reclaim_grant",
    sql=["issue_reclaim_grant"],
    python=["grants.issue_reclaim_grant"],
    reasons=["D-52", "D-53", "D-55", "D-56", "ruling: one number, max_reclaims"],
)
async def _(world: World, see: See) -> None:
    """A lease that expired unnoticed is marked first. There is one limit of reclaims, in the
    policy. It counts only losses that the execution may have caused itself, not losses beside
    another execution's crash. Reaching the limit, or three crashes while it ran alone, ends the
    execution here.
    """
    issue = world.client.grants.issue_reclaim_grant
    held = await world.claimed(lane="a")
    capped = await world.claimed(lane="b", max_reclaims=0)
    await world.clock.advance(TTL)
    grant = await issue(held.id, **WORKER)
    over = await said(issue(capped.id, **WORKER))
    see("kind", str(grant.kind), "reclaim")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "lease_expired"])
    see("second_grant", await said(issue(held.id, **WORKER)), "GrantAlreadyExists")
    see(
        "live_lease",
        await said(issue((await world.claimed(lane="c")).id, **WORKER)),
        "ExecutionNotReclaimable",
    )
    see("over_the_limit", over, "ReclaimCapExceeded")
    see("state_over_the_limit", await world.state(capped.id), "failed")
    see("missing", await said(issue(mint(), **WORKER)), "ExecutionNotFound")


@operation(
    "reclaim_execution",
    sql=["reclaim_execution"],
    python=["grants.reclaim_execution"],
    reasons=["0002", "D-50", "D-51", "D-53", "D-54"],
)
async def _(world: World, see: See) -> None:
    """The call checks again under the lock that the lease is lost. The old attempt moves to the
    history with its lease closed, so that no late timer of the old attempt affects the new holder.
    """
    reclaim, issue = world.client.grants.reclaim_execution, world.client.grants.issue_reclaim_grant
    leases = {lane: await world.claimed(lane=lane) for lane in "abc"}
    await world.clock.advance(TTL)
    grants = {lane: await issue(held.id, **WORKER) for lane, held in leases.items()}
    bad = replace(grants["a"], key=bytes(32))
    see("another_key", await said(reclaim(bad, worker_instance_id="pool-1")), "InvalidClaimGrant")
    see(
        "another_worker",
        await said(reclaim(grants["a"], worker_id="w", worker_instance_id="w-1")),
        "InvalidInput",
    )
    held = await reclaim(grants["a"], worker_instance_id="pool-2")
    await world.executions.cancel(leases["b"].id)
    attempts = await world.executions.attempts(held.id)
    see("claim_kind", held.claim_kind, "reclaimed")
    see("attempt", held.attempt, 2)
    see("epoch", held.epoch, 2)
    see(
        "events", await world.kinds(held.id), ["submitted", "claimed", "lease_expired", "reclaimed"]
    )
    see("old_attempt", str(attempts[0].lifecycle), "interrupted_reclaimed")
    see(
        "ended_meanwhile",
        await said(reclaim(grants["b"], worker_instance_id="pool-1")),
        "ExecutionNotReclaimable",
    )
    await world.clock.advance(TTL)
    see(
        "too_late",
        await said(reclaim(grants["c"], worker_instance_id="pool-1")),
        "ClaimGrantExpired",
    )
