"""Suspensions, signals and waitpoints."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.core.execution import Claimed
from flowfabric.core.signal import Signal, Wait

from .world import HOUR, See, World, operation, said

SOURCE = "contract"


def _wait(timeout: timedelta | None = None) -> Wait:
    return Wait(
        name="approve",
        occurrence=0,
        position=0,
        is_sequential=True,
        condition={"signal": "approve"},
        timeout=timeout,
    )


async def _suspended(world: World, **given: object) -> Claimed:
    held = await world.claimed()
    wait = _wait(HOUR)
    await world.client.signals.ask(held, wait)
    await world.client.signals.suspend(held, waits=[(wait.name, 0)], **given)  # type: ignore[arg-type]
    return held


@operation(
    "suspend",
    sql=["suspend_execution"],
    python=["signals.suspend"],
    reasons=["0041"],
)
async def _(world: World, see: See) -> None:
    """The waits are opened first, by ask_waits. A wait that is ready already keeps the lease. The
    caller's suspension id makes a repeat harmless.
    """
    held = await world.claimed()
    wait = _wait()
    await world.client.signals.ask(held, wait)
    see("suspended", await world.client.signals.suspend(held, waits=[(wait.name, 0)]), True)
    see("state", str(await world.executions.state(held.id)), "suspended")
    other = await world.claimed()
    await world.client.signals.ask(other, wait)
    await world.client.signals.deliver(other.id, Signal(name="approve"))
    see("ready", await world.client.signals.suspend(other, waits=[(wait.name, 0)]), False)


@operation(
    "deliver_signal",
    sql=["deliver_signals"],
    python=["signals.deliver"],
    reasons=["0041"],
)
async def _(world: World, see: See) -> None:
    """By name, in the plural. A signal without a wait is kept; a sender never waits for a row."""
    held = await _suspended(world)
    signal = Signal(name="approve", payload=b"true")
    see("woken", (await world.client.signals.deliver(held.id, signal)).effect, "woken")
    see("again", (await world.client.signals.deliver(held.id, signal)).is_duplicate, True)
    await world.executions.cancel(held.id)
    late = Signal(name="approve", payload=b"true")
    see("ended", await said(world.client.signals.deliver(held.id, late)), "TargetNotSignalable")


@operation(
    "resume_execution",
    sql=["resume_execution"],
    python=["signals.resume"],
    reasons=["0041", "D-46"],
)
async def _(world: World, see: See) -> None:
    """The waits end as taken by the operator: a handler gets its defaults."""
    held = await _suspended(world)
    see("outcome", (await world.client.signals.resume(held.id)).outcome, "resumed")
    see("state", str(await world.executions.state(held.id)), "waiting")
    see("again", await said(world.client.signals.resume(held.id)), "ExecutionNotSuspended")


@operation(
    "expire_suspension",
    sql=["expire_suspensions"],
    python=["signals.expire_suspensions"],
    reasons=["0041", "D-63"],
)
async def _(world: World, see: See) -> None:
    """One pass applies many timeouts, each by its behaviour, and says when the next one is due."""
    held = await _suspended(world, on_timeout="fail")
    see("not_due", (await world.client.signals.expire_suspensions())[0], 0)
    await world.clock.advance(HOUR)
    see("due", (await world.client.signals.expire_suspensions())[0], 1)
    see("state", str(await world.executions.state(held.id)), "failed")


@operation(
    "list_suspended",
    sql=["list_suspended"],
    python=["signals.suspended"],
    reasons=["ruling: a page of a list may be short and have a cursor"],
)
async def _(world: World, see: See) -> None:
    """Longest suspended first; executions.list filters by the state as well."""
    held = await _suspended(world)
    (one,) = await world.client.signals.suspended()
    see("id", one.id == held.id, True)
    see("reason", one.reason_code, "waiting_for_signal")


@operation(
    "observe_signals",
    sql=["observe_signals"],
    python=["signals.observe"],
    reasons=["0041"],
)
async def _(world: World, see: See) -> None:
    """What ended the latest suspension, for the holder of the next lease."""
    held = await _suspended(world)
    await world.client.signals.deliver(held.id, Signal(name="approve", payload=b"1"))
    again = await world.next("mail")
    (signal,) = await world.client.signals.observe(again)
    see("name", signal.name, "approve")


@operation(
    "create_waitpoint",
    sql=["create_waitpoint", "deliver_signals", "read_waitpoint"],
    python=["signals.create_waitpoint", "signals.deliver_by_token", "signals.asked"],
    reasons=["0041"],
)
async def _(world: World, see: See) -> None:
    """The caller mints the id. The token is the whole address; every wrong one has one answer."""
    held = await world.claimed()
    signals = world.client.signals
    token = await signals.create_waitpoint(held, UUID(int=7), "payment")
    see("prefix", token[:4], "ffw_")
    see("wrong", await said(signals.deliver_by_token(token[:-1], Signal())), "InvalidToken")
    see("asked", (await signals.asked(token)).state, "open")
    see("right", (await signals.deliver_by_token(token, Signal())).effect, "buffered")


@operation(
    "deliver_approval_signal",
    sql=["deliver_approval_signal", "create_approval", "list_approvals"],
    python=["approvals.answer", "approvals.create", "approvals.list", "approvals.of"],
    reasons=["0049"],
)
async def _(world: World, see: See) -> None:
    """One waitpoint per approver. The actor is the source; the lane is not asked for."""
    held = await world.claimed()
    approvals = world.client.approvals
    points = [("ada", UUID(int=7)), ("bob", UUID(int=8))]
    tokens = await approvals.create(
        held, UUID(int=9), points, "Ship?", details=b"7", need=2, deny=1
    )
    see("tokens", len(tokens), 2)
    see("asked", [one.question for one in await approvals.list()], ["Ship?"])
    answer = await approvals.answer(held.id, is_approved=True, actor="ada")
    see("approved", answer.effect, "buffered")
    see(
        "twice",
        await said(approvals.answer(held.id, is_approved=False, actor="ada")),
        "AlreadyAnswered",
    )
    see(
        "unknown",
        await said(approvals.answer(held.id, is_approved=True, actor="eve")),
        "ApprovalNotFound",
    )
    (one,) = await approvals.of(held.id)
    see("waiting_for", list(one.waiting_for), ["bob"])


@operation(
    "close_waitpoint",
    sql=["close_waitpoint"],
    python=["signals.close_waitpoint"],
    reasons=["0041", "0061", "D-62"],
)
async def _(world: World, see: See) -> None:
    """A closed waitpoint wakes nobody by itself; its token is dead. A wait that nobody can answer
    any more times out.
    """
    held = await world.claimed()
    signals = world.client.signals
    token = await signals.create_waitpoint(held, UUID(int=7), "payment")
    see("closed", await signals.close_waitpoint(held.id, UUID(int=7)), True)
    see("again", await signals.close_waitpoint(held.id, UUID(int=7)), False)
    see("signal", await said(signals.deliver_by_token(token, Signal())), "WaitpointClosed")
    see("unknown", await said(signals.close_waitpoint(held.id, UUID(int=8))), "WaitpointNotFound")


@operation(
    "list_pending_waitpoints",
    sql=["list_pending_waitpoints", "read_waitpoint_token"],
    python=["signals.waitpoints", "signals.read_token"],
    reasons=["0041"],
)
async def _(world: World, see: See) -> None:
    """The list shows no token; an operator reads one at a time."""
    held = await world.claimed()
    signals = world.client.signals
    token = await signals.create_waitpoint(held, UUID(int=7), "payment")
    (one,) = await signals.waitpoints(held.id)
    see("state", one.state, "pending")
    see("token", await signals.read_token(held.id, UUID(int=7)) == token, True)


@operation(
    "rotate_waitpoint_hmac_secret",
    sql=["rotate_hmac_key", "seed_hmac_key", "list_hmac_keys", "count_waitpoints"],
    python=["signals.rotate_key", "signals.seed_key", "signals.keys", "signals.count_waitpoints"],
    reasons=["0041"],
)
async def _(world: World, see: See) -> None:
    """The database makes the secret, unless one is given: parameters of calls get logged."""
    signals = world.client.signals
    see("seeded", await signals.seed_key("shared", "ab" * 32), True)
    see("rotated", (await signals.rotate_key("next")).previous_kid, "shared")
    see("kids", sorted(key.kid for key in await signals.keys()), ["k1", "next", "shared"])
    see("open", await signals.count_waitpoints(), {})
    see("again", await said(signals.rotate_key("shared")), "RotationConflict")


@operation(
    "expire_pending_waitpoints",
    sql=["expire_waitpoints"],
    python=["signals.expire_waitpoints"],
    reasons=["0041"],
)
async def _(world: World, see: See) -> None:
    """Only waitpoints that no wait was opened for."""
    held = await world.claimed()
    signals = world.client.signals
    await signals.create_waitpoint(held, UUID(int=7), "payment", expires_in=timedelta(seconds=1))
    see("not_due", (await signals.expire_waitpoints())[0], 0)
    await world.clock.advance(seconds=1)
    see("due", (await signals.expire_waitpoints())[0], 1)
