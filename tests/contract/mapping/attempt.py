"""attempt.rs: what a worker does."""

from __future__ import annotations

from dataclasses import replace

from flowfabric.core.execution import Failure
from flowfabric.core.states import FailureClass
from reads.stage import TTL

from .world import HOUR, SECOND, WORKER, See, World, forged, operation, resume_grant, said

SOURCE = "attempt.rs"


@operation(
    "claim",
    sql=["claim_executions"],
    python=["executions.claim"],
    reasons=["0006", "0019", "0020", "D-07", "D-08", "D-11", "D-20"],
)
async def _(world: World, see: See) -> None:
    """One indexed read over all lanes and routes that the worker covers, in order of priority, age
    and id, instead of one read at the head of each partition: executions that this worker cannot
    run do not hide others. A claim takes many executions at once, resumes interrupted attempts,
    reclaims lost ones, and says which it did. It also says how many workers in a row vanished while
    they ran an execution; from two on the worker runs that execution alone.
    """
    see("nothing_to_do", await world.executions.claim(**WORKER), [])
    await world.submit(lane="a", needs=["gpu"], priority=9)
    await world.submit(lane="a")
    held = await world.next("a")
    see("behind_work_it_cannot_do", held.claim_kind, "fresh")
    see("state", await world.state(held.id), "active")
    see("epoch", held.epoch, 1)
    see("events", await world.kinds(held.id), ["submitted", "claimed"])
    await world.client.leases.release([held])
    see("after_a_release", (again := await world.next("a")).claim_kind, "resumed")
    await world.lose(again)
    see("after_a_lost_lease", (await world.next("a")).claim_kind, "reclaimed")


@operation(
    "claim_from_resume_grant",
    sql=["issue_claim_grant", "claim_resumed_execution"],
    python=["grants.issue_claim_grant", "grants.claim_from_resume_grant"],
    reasons=["0010", "D-12", "D-19", "ruling: a grant is a random key, stored as its hash"],
)
async def _(world: World, see: See) -> None:
    """The claim checks the grant: its key, its worker, its time and the state of the execution. A
    grant is used once. The attempt keeps its index and its id; only the lease and its epoch are
    new.
    """
    claim = world.client.grants.claim_from_resume_grant
    first, grant = await resume_grant(world, "a")
    other_key = replace(grant, key=bytes(32))
    see(
        "another_key",
        await said(claim(other_key, worker_instance_id="pool-1")),
        "InvalidClaimGrant",
    )
    see(
        "another_worker",
        await said(claim(grant, worker_id="w", worker_instance_id="w-1")),
        "InvalidClaimGrant",
    )
    held = await claim(grant, worker_instance_id="pool-2")
    see("claim_kind", held.claim_kind, "resumed")
    see("attempt", held.attempt, 1)
    see("same_attempt", held.attempt_id == first.attempt_id, True)
    see("epoch", held.epoch, 2)
    see("state", await world.state(held.id), "active")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "released", "resumed"])
    ended, grant = await resume_grant(world, "b")
    await world.executions.cancel(ended.id)
    see(
        "of_an_ended_execution",
        await said(claim(grant, worker_instance_id="pool-1")),
        "ExecutionNotLeaseable",
    )
    _, grant = await resume_grant(world, "c")
    await world.clock.advance(TTL)
    see("too_late", await said(claim(grant, worker_instance_id="pool-1")), "ClaimGrantExpired")


@operation(
    "renew",
    sql=["renew_leases"],
    python=["leases.renew"],
    reasons=["0006", "0010", "D-21", "D-25", "D-57", "D-75"],
)
async def _(world: World, see: See) -> None:
    """One call renews all leases of a process, under the whole fence, and returns a list of the
    lost ones. A renewal writes no event. A lease found expired is marked expired and stays lost. An
    execution past its deadline or its attempt timeout is settled by the call, as the reconciler
    would.
    """
    renew = world.client.leases.renew
    held = await world.claimed()
    await world.clock.advance(SECOND)
    lost, _ = await renew([held], TTL)
    now = (await world.executions.describe(held.id)).lease_expires_at
    see("lost", len(lost), 0)
    see("extended", now == held.lease_expires_at + SECOND, True)
    see("events", await world.kinds(held.id), ["submitted", "claimed"])
    await world.clock.advance(TTL)
    lost, _ = await renew([held], TTL)
    see("lost_after_expiry", len(lost), 1)
    see(
        "events_after_expiry", await world.kinds(held.id), ["submitted", "claimed", "lease_expired"]
    )
    lost, _ = await renew([await world.completed("b")], TTL)
    see("lost_after_the_end", len(lost), 1)


@operation(
    "progress",
    sql=["report_progress"],
    python=["executions.report_progress"],
    reasons=["0010", "D-94", "D-96"],
)
async def _(world: World, see: See) -> None:
    """A percentage beyond 100, a message beyond 1024 bytes and a report under a lease that is over
    are refused. Percentage and message are columns; an omitted value does not change.
    """
    report = world.executions.report_progress
    held = await world.claimed()
    await report(held, 10, "half way")
    await report(held, 40)
    shown = await world.executions.describe(held.id)
    see("percent", shown.progress_percent, 40)
    see("message", shown.progress_message, "half way")
    see("events", await world.kinds(held.id), ["submitted", "claimed"])
    see("beyond_100", await said(report(held, 101)), "InvalidInput")
    await world.clock.advance(TTL)
    see("after_expiry", await said(report(held, 50)), "LeaseExpired")


@operation(
    "complete",
    sql=["complete_executions"],
    python=["executions.complete"],
    reasons=["0010", "D-21", "D-22", "D-33"],
)
async def _(world: World, see: See) -> None:
    """Lease, epoch, attempt, phase and expiry are all checked. A repeat gets the first answer,
    overwrites nothing and writes no second event. The state reads `completed` at once. A result
    after the deadline or the attempt timeout does not count, even if no reconciler has noticed it
    yet.
    """
    complete, result = world.executions.complete, world.executions.result
    held = await world.claimed()
    see("forged_epoch", await said(complete(forged(held), b"0")), "StaleLease")
    await complete(held, b"42")
    see("state", await world.state(held.id), "completed")
    see("result", (await result(held.id)).decode(), "42")
    await complete(held, b"43")
    see("result_after_a_repeat", (await result(held.id)).decode(), "42")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "completed"])
    held = await world.claimed(lane="b")
    await world.client.leases.revoke(held.id)
    see("after_a_revocation", await said(complete(held)), "LeaseRevoked")
    await world.next("b")
    see("by_an_earlier_holder", await said(complete(held)), "StaleLease")
    held = await world.claimed(lane="c")
    await world.clock.advance(TTL)
    see("after_expiry", await said(complete(held)), "LeaseExpired")
    held = await world.claimed(lane="d", deadline=SECOND)
    await world.clock.advance(SECOND)
    see("after_the_deadline", await said(complete(held, b"1")), "ExecutionNotActive")
    see("state_after_the_deadline", await world.state(held.id), "expired")


@operation(
    "fail",
    sql=["fail_executions"],
    python=["executions.fail"],
    reasons=["0010", "D-22", "D-40", "D-41", "D-42"],
)
async def _(world: World, see: See) -> None:
    """The policy stored at submit decides: number of retries, back-off, categories. Without a
    policy the first failure ends the execution. Permanent and cancelled failures and members of a
    cancelled flow are never retried. The back-off has its own column, so that the deadline does not
    change.
    """
    fail = world.executions.fail
    broken = Failure(FailureClass.TRANSIENT, "broken")
    held = await world.claimed(lane="a")
    await fail(held, broken)
    see("without_a_policy", await world.state(held.id), "failed")
    held = await world.claimed(lane="b", retries=1)
    answer = await fail(held, broken)
    see("with_a_policy", await world.state(held.id), "delayed")
    see("next_attempt", answer.next_attempt, 2)
    see("same_answer_again", await fail(held, broken) == answer, True)
    see("events", await world.kinds(held.id), ["submitted", "claimed", "retry_scheduled"])
    await world.executions.retry(held.id)
    await fail(await world.next("b"), broken)
    see("after_the_last_retry", await world.state(held.id), "failed")
    held = await world.claimed(lane="c", retries=1)
    await fail(held, Failure(FailureClass.PERMANENT, "broken"))
    see("permanent", await world.state(held.id), "failed")


@operation(
    "delay",
    sql=["delay_execution"],
    python=["executions.delay", "executions.wait_for_newer_code"],
    reasons=["0010", "D-11", "D-24", "D-43"],
)
async def _(world: World, see: See) -> None:
    """The delay has its own column, so that the deadline of the execution does not change. The
    lease ends completely; the same attempt continues later. A time in the past means now.
    """
    delay = world.executions.delay
    held = await world.claimed(lane="a", deadline=5 * HOUR)
    until = await delay(held, HOUR)
    shown = await world.executions.describe(held.id)
    assert shown.delayed_until == until
    see("state", await world.state(held.id), "delayed")
    see("keeps_the_deadline", shown.deadline_at == held.deadline_at is not None, True)
    see("events", await world.kinds(held.id), ["submitted", "claimed", "delayed"])
    see("completing_after_it", await said(world.executions.complete(held)), "ExecutionNotActive")
    await world.clock.advance(HOUR)
    await world.executions.promote_delayed()
    again = await world.next("a")
    see("next_claim", again.claim_kind, "resumed")
    see("next_attempt", again.attempt, 1)
    held = await world.claimed(lane="b")
    await delay(held, until=await world.now() - HOUR)
    see("to_a_past_time", await world.state(held.id), "waiting")
    held = await world.claimed(lane="c")
    see("to_newer_code", await world.executions.wait_for_newer_code(held, "ff.patch x"), True)
    see("until_newer_code", await world.state(held.id), "delayed")


@operation(
    "wait_children",
    sql=["wait_children"],
    python=["executions.wait_children"],
    reasons=["0017", "D-11", "D-48"],
)
async def _(world: World, see: See) -> None:
    """Without an open dependency the execution is eligible at once instead of waiting for ever.
    With open dependencies it waits for them.
    """
    held = await world.claimed(lane="a")
    await world.executions.wait_children(held)
    see("state", await world.state(held.id), "waiting")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "waiting"])
    again = await world.next("a")
    see("next_claim", again.claim_kind, "resumed")
    see("next_attempt", again.attempt, 1)
