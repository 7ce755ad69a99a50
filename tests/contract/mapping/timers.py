"""What happens because time passes."""

from __future__ import annotations

from typing import Any

from flowfabric.core.execution import Claimed
from reads.stage import TTL

from .world import HOUR, WORKER, See, World, operation, said

SOURCE = "contract"


@operation(
    "mark_lease_expired_if_due",
    sql=["expire_leases"],
    python=["leases.expire"],
    reasons=["0011", "D-44", "D-50", "D-52"],
)
async def _(world: World, see: See) -> None:
    """Many in one pass, which says when the next is due. The execution stays active and owned by
    nobody until it is reclaimed.
    """
    expire = world.client.leases.expire
    held = await world.claimed()
    see("not_due", (await expire())[0], 0)
    await world.clock.advance(TTL)
    see("due", (await expire())[0], 1)
    see("again", (await expire())[0], 0)
    info = await world.executions.info(held.id)
    see("ownership", str(info.ownership), "lease_expired_reclaimable")
    see("state", str(info.public_state), "active")
    see("events", await world.kinds(held.id), ["submitted", "claimed", "lease_expired"])


@operation(
    "promote_delayed",
    sql=["promote_delayed"],
    python=["executions.promote_delayed"],
    reasons=["0011", "D-41", "D-43", "D-47"],
)
async def _(world: World, see: See) -> None:
    """Many in one pass. It goes by the delay's own column and leaves the deadline alone."""
    promote = world.executions.promote_delayed
    id = await world.submit(delay=HOUR, deadline=5 * HOUR)
    deadline_at = (await world.executions.describe(id)).deadline_at
    see("not_due", (await promote())[0], 0)
    await world.clock.advance(HOUR)
    see("due", (await promote())[0], 1)
    shown = await world.executions.describe(id)
    see("state", str(shown.public_state), "waiting")
    see("keeps_the_deadline", shown.deadline_at == deadline_at is not None, True)
    see("events", await world.kinds(id), ["submitted"])


@operation(
    "expire_execution",
    sql=["expire_executions"],
    python=["executions.expire"],
    reasons=["D-44", "D-45", "D-47"],
)
async def _(world: World, see: See) -> None:
    """An attempt that took too long counts as failed and may be retried; the timeout is that of the
    attempt, not of the lease. A deadline ends an execution in any state. A reconciler looks for
    both, and a call of the holder that comes first does the same under its lock. A claim that finds
    an execution past its deadline ends it, too, and leases it to nobody.
    """

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
    see("attempt_timed_out", await world.state(slow.id), "expired")
    see("attempt_timed_out_with_retries", await world.state(retried.id), "delayed")
    see("past_its_deadline_while_running", await world.state(running.id), "expired")
    see("past_its_deadline_while_waiting", await world.state(waiting), "expired")
    see("events", await world.kinds(running.id), ["submitted", "claimed", "expired"])
    see("holder_completes", await said(world.executions.complete(running)), "ExecutionNotActive")
