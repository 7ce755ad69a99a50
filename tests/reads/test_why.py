"""`why` names what keeps an execution from running, in every situation there is."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import flowfabric
from flowfabric.client import FlowFabric
from flowfabric.core.code_version import CodeVersion
from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.execution import Claimed, Route
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.core.limit import Budget, Gate, Limit
from flowfabric.core.signal import Signal, Wait
from flowfabric.core.states import FailureClass, StepKind
from flowfabric.core.step import Step
from flowfabric.core.why import SENTENCES, Dimension, Why
from support.sabotage import unwitnessed

from .stage import BACKOFF, TTL, Stage

HOUR = timedelta(hours=1)
SQL = Path(flowfabric.__file__).parent / "sql/functions/execution"

Build = Callable[[Stage], Awaitable[ExecutionId]]


@dataclass(frozen=True, slots=True)
class Situation:
    """How to get there, and what is to be answered; `after` is when it changes, from now on."""

    build: Build
    dimension: str
    code: str
    words: tuple[str, ...] = ()
    after: timedelta | None = None
    # when it changes at the latest: after a half of this at least
    within: timedelta | None = None
    others: tuple[str, ...] = ()


SITUATIONS: dict[str, Situation] = {}


def situation(name: str, dimension: str, code: str, *words: str, **rest: Any) -> Any:
    def keep(build: Build) -> Build:
        assert name not in SITUATIONS
        SITUATIONS[name] = Situation(build, dimension, code, words, **rest)
        return build

    return keep


# Workers


@situation("nobody is alive", "worker", "no_worker_alive", "No worker is alive")
async def _(stage: Stage) -> ExecutionId:
    return await stage.submit()


@situation("the last worker is gone", "worker", "no_worker_alive", "the last was heard at")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    await stage.clock.advance(days=2)
    return await stage.submit()


@situation(
    "nobody knows the task", "worker", "task_unknown", "No worker knows the task app.send", "2 live"
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker("pool-1", tasks=["app.other"])
    await stage.worker("pool-2", tasks=["app.third"])
    return await stage.submit()


@situation(
    "nobody who knows the task serves the lane",
    "worker",
    "lane_not_served",
    "none serves the lane mail",
    "they serve bulk",
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker("pool-1", lanes=["bulk"])
    await stage.worker("pool-2", lanes=["mail"], tasks=["app.other"])
    return await stage.submit()


@situation(
    "nobody has the capabilities",
    "worker",
    "capabilities_missing",
    "the nearest, pool-2, lacks gpu",
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker("pool-1")
    await stage.worker("pool-2", capabilities=["smtp"])
    return await stage.submit(needs={"gpu", "smtp"})


@situation(
    "the live workers serve another namespace",
    "worker",
    "other_namespaces_only",
    "serves its namespace test.",
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker(namespace="elsewhere")
    return await stage.submit()


async def begun(stage: Stage, version: str) -> ExecutionId:
    """An execution of a code version, released."""
    held = await stage.claimed()
    step = Step(name="a", occurrence=0, position=0, code_version=version)
    await stage.client.steps.record(held, step)
    assert not await stage.client.leases.release([held])
    return held.id


@situation(
    "nobody serves its code version",
    "worker",
    "version_not_served",
    "No live worker serves its code version 1.",
    "Other workers (version 2) take it over from",
    after=timedelta(minutes=1),
    others=("in_line",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker(code=CodeVersion("2"))
    return await begun(stage, "1")


@situation(
    "its code version is taken over",
    "worker",
    "version_not_served",
    "the last was heard at",
    "Other workers take it over now",
    others=("in_line",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker("pool-2", code=CodeVersion("1"))
    await stage.client.workers.mark_dead("pool-2", "stopped")
    id = await begun(stage, "1")
    await stage.clock.advance(HOUR)
    await stage.worker()
    return id


@situation("its code version is served", "queue", "in_line", "Its attempt is next in line")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker(code=CodeVersion("2", frozenset({"1"})))
    return await begun(stage, "1")


# The line


@situation("it is next", "queue", "in_line", "It is next in line", "1 live worker can run it")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await stage.submit()


@situation("a worker of every namespace can run it", "queue", "in_line", "next in line")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker(namespace=None, tasks=None)
    return await stage.submit()


@situation("others are before it", "queue", "in_line", "with 3 before it", "2 live workers")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker("pool-1")
    await stage.worker("pool-2")
    await stage.submit()
    await stage.submit(task="app.other")
    mine = await stage.submit()
    await stage.submit(priority=5)
    await stage.submit(lane="bulk")
    await stage.submit()
    return mine


@situation("its worker gave it back", "queue", "in_line", "Its attempt is next in line")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    assert not await stage.client.leases.release([held])
    return held.id


@situation("its retry is due", "queue", "in_line", "Its next attempt is next in line")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed(retries=3)
    await stage.fail(held)
    await stage.clock.advance(BACKOFF)
    await stage.executions.promote_delayed()
    return held.id


@situation(
    "it was replayed",
    "queue",
    "in_line",
    "After its replay, it is next in line",
    others=("replayed",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.executions.complete(held)
    await stage.executions.replay(held.id, reason="wrong template", actor="ada")
    return held.id


@situation("it waits for children that are none", "queue", "in_line", "Its attempt is next")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.executions.wait_children(held)
    return held.id


# Lanes


@situation(
    "its lane is paused until a time",
    "lane",
    "lane_paused",
    "Its lane mail is paused by ada until",
    "the provider is down",
    after=HOUR,
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    until = await stage.now() + HOUR
    await stage.client.lanes.pause("mail", until=until, reason="the provider is down", actor="ada")
    return id


@situation(
    "its lane is paused for good", "lane", "lane_paused", "until an operator resumes it", "ada"
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.client.lanes.pause("mail", actor="ada")
    return id


@situation(
    "its lane is paused and nobody is there",
    "lane",
    "lane_paused",
    "is paused",
    others=("no_worker_alive",),
)
async def _(stage: Stage) -> ExecutionId:
    id = await stage.submit()
    await stage.client.lanes.pause("mail")
    return id


@situation("its lane is disabled", "lane", "lane_disabled", "Its lane mail is disabled by ada")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.client.lanes.disable("mail", reason="retired", actor="ada")
    return id


@situation("its lane is draining", "queue", "in_line", "next in line", others=("lane_draining",))
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.client.lanes.drain("mail", actor="ada")
    return id


@situation(
    "the pause of its lane is over", "queue", "in_line", "next in line", others=("lane_pause_over",)
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.client.lanes.pause("mail", until=await stage.now() + HOUR)
    await stage.clock.advance(HOUR)
    return id


# Time


@situation(
    "it was submitted for later", "time", "delayed_by_submit", "submitted to start at", after=HOUR
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await stage.submit(delay=HOUR)


@situation(
    "it is delayed and its lane is paused",
    "time",
    "delayed_by_submit",
    after=HOUR,
    others=("lane_paused",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit(delay=HOUR)
    await stage.client.lanes.pause("mail")
    return id


@situation(
    "it put itself off",
    "time",
    "delayed_by_worker",
    "handler delayed it until",
    "pool-1",
    after=HOUR,
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.executions.delay(held, HOUR)
    return held.id


@situation(
    "its worker has older code",
    "time",
    "waiting_for_newer_code",
    "waits for a worker with newer code until",
    "pool-1 does not know its step ff.patch x",
    "held after 10 minutes",
    after=timedelta(seconds=1),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.executions.wait_for_newer_code(held, "ff.patch x")
    return held.id


@situation(
    "it is in back-off",
    "time",
    "retry_backoff",
    "in back-off until",
    "the mail server is down",
    "before retry 1 of 3",
    after=BACKOFF,
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed(retries=3)
    await stage.fail(held)
    return held.id


@situation("its time has come", "time", "promotion_due", "which is past", after=timedelta())
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit(delay=HOUR)
    await stage.clock.advance(HOUR)
    return id


@situation(
    "its deadline comes before its time",
    "time",
    "expires_before_it_starts",
    "it will expire without running",
    after=HOUR,
    others=("delayed_by_submit", "deadline_ahead"),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await stage.submit(delay=2 * HOUR, deadline=HOUR)


@situation("its deadline is ahead", "queue", "in_line", "next in line", others=("deadline_ahead",))
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await stage.submit(deadline=HOUR)


@situation(
    "its deadline has passed unnoticed",
    "time",
    "deadline_due",
    "it expires as soon as",
    after=timedelta(),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit(deadline=HOUR)
    await stage.clock.advance(HOUR)
    return id


# Grants


@situation("it is granted", "grant", "granted", "granted to pool-2 until", after=HOUR / 60)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.client.grants.issue_claim_grant(
        id, worker_id="pool", worker_instance_id="pool-2", ttl=HOUR / 60
    )
    return id


@situation("a grant that is over is no obstacle", "queue", "in_line", "next in line")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.client.grants.issue_claim_grant(
        id, worker_id="pool", worker_instance_id="pool-2", ttl=HOUR / 60
    )
    await stage.clock.advance(HOUR / 60)
    return id


@situation(
    "it may be reclaimed by grant",
    "grant",
    "granted",
    "granted to pool-2",
    after=HOUR / 60,
    others=("crash_loop",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.lose(await stage.claimed(), 3)
    await stage.client.grants.issue_reclaim_grant(
        id, worker_id="pool", worker_instance_id="pool-2", ttl=HOUR / 60
    )
    return id


# Leases


@situation("it runs", "lease", "running", "It is running: pool-1 holds its lease until", after=TTL)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return (await stage.claimed()).id


@situation("it runs and tells how far it is", "lease", "running", "40 % done", after=TTL)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.executions.report_progress(held, 40, "almost there")
    return held.id


@situation(
    "its holder is not in the registry",
    "lease",
    "holder_silent",
    "pool-1 holds its lease until",
    "is not among the live workers",
    after=TTL,
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker("pool-2")
    return (await stage.claimed()).id


@situation("its holder fell silent", "lease", "holder_silent", "was last heard at", after=TTL)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    await stage.clock.advance(days=2)
    return (await stage.claimed()).id


@situation(
    "its lease ran out",
    "lease",
    "lease_expired",
    "pool-1 let its lease expire at",
    "reclaim 1 of 100",
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await stage.lose(await stage.claimed())


@situation("its lease ran out unnoticed", "lease", "lease_expired", "let its lease expire at")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.clock.advance(TTL)
    return held.id


@situation(
    "its lease ran out and nobody can take it over",
    "worker",
    "task_unknown",
    "No worker knows the task",
    others=("lease_expired",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker(tasks=["app.other"])
    return await stage.lose(await stage.claimed())


@situation(
    "its workers keep vanishing",
    "attempt",
    "crash_loop",
    "It is in a crash loop",
    "2 reclaims of 100",
    "0 of 3 crashes so far",
    "A worker can reclaim it from",
    within=timedelta(seconds=1),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await stage.lose(await stage.claimed(), 3)


@situation("it runs after many reclaims", "lease", "running", after=TTL, others=("crash_loop",))
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.lose(await stage.claimed(), 3)
    await stage.clock.advance(minutes=1)
    await stage.executions.promote_delayed()
    assert (await stage.claim()).id == id
    return id


@situation(
    "its reclaims are used up",
    "lease",
    "reclaims_used_up",
    "The next worker that claims it ends it",
    others=("crash_loop",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await stage.lose(await stage.claimed(max_reclaims=1), 2)


@situation(
    "its lease was revoked",
    "lease",
    "lease_revoked",
    "ada revoked the lease of pool-1",
    "the host is sick",
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.client.leases.revoke(held.id, reason="the host is sick", actor="ada")
    return held.id


# Operators and admission


@situation(
    "its worker held it",
    "operator",
    "held",
    "held it at step charge",
    "the recorded steps do not fit",
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.executions.hold(held, "the recorded steps do not fit", step="charge")
    return held.id


@situation(
    "an operator paused it", "operator", "paused_by_operator", "ada paused it", "look at it first"
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.executions.block_for_admission(
        id, "paused_by_operator", detail="look at it first", actor="ada"
    )
    return id


@situation("a policy paused it", "operator", "paused_by_policy", "A policy paused it", "at night")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.executions.block_for_admission(id, "paused_by_policy", detail="at night")
    return id


@situation("a budget is used up", "budget", "blocked_by_budget", "a budget is used up", "team-7")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.executions.block_for_admission(id, "waiting_for_budget", detail="team-7")
    return id


@situation("a quota is used up", "quota", "blocked_by_quota", "a quota is used up", "per minute")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    id = await stage.submit()
    await stage.executions.block_for_admission(id, "waiting_for_quota", detail="60 per minute")
    return id


@situation(
    "others hold the slots of its quota",
    "quota",
    "waits_for_quota",
    "It waits for the quota mails=acme: 1 of 1 running; it is number 2 in line.",
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    quotas = (Gate("test", Limit("mails", concurrency=1, key="tenant"), "acme"),)
    ids = [await stage.submit(quotas=quotas) for _ in range(3)]
    await stage.claim(limit=3)
    return ids[2]


@situation(
    "its budget is spent",
    "budget",
    "waits_for_budget",
    "It waits for the budget month: 10 of 10 tokens used; it is first in line; it is reset at",
    after=HOUR,
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    budgets = (Gate("test", Budget("month", tokens=10, period=HOUR)),)
    id = await stage.submit(budgets=budgets)
    await stage.client.budgets.report_usage_admin("month", tokens=10)
    assert not await stage.executions.claim(worker_id="pool", worker_instance_id="pool-1", limit=1)
    return id


@situation("no worker could run it", "route", "blocked_by_route", "no worker could run it")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker(capabilities=["gpu"])
    id = await stage.submit(needs={"gpu"})
    await stage.executions.block_for_admission(id, "waiting_for_capable_worker")
    return id


@situation(
    "it waits for runs", "dependency", "waiting_for_runs", "for all of its runs", "(1 ended)"
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held, *others = [await stage.claimed() for _ in range(4)]
    await stage.executions.wait_for_runs(held, [other.id for other in others])
    await stage.executions.complete(others[1])
    return held.id


@situation("it waits for some of several", "dependency", "waiting_for_runs", "for 2 of 3 runs")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held, *others = [await stage.claimed() for _ in range(4)]
    await stage.executions.wait_for_runs(held, [other.id for other in others], 2)
    return held.id


@situation("it sleeps", "time", "sleeping", "It sleeps until", "(step nap #2)", after=HOUR)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    nap = Step(name="nap", occurrence=2, position=0, kind=StepKind.SLEEP, delay=HOUR)
    record = await stage.client.steps.record(held, nap)
    await stage.executions.delay(held, until=record.until_at)
    return held.id


@situation("it depends on others", "dependency", "waiting_for_children", "its dependencies")
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    # No function leads here before there are flows.
    id = await stage.submit()
    async with unwitnessed(stage.db.conn):
        await stage.db.execute(
            "update ff.execution set eligibility = 'blocked_by_dependencies', "
            "blocking_reason = 'waiting_for_children', cause = 'apply_dependency'"
        )
    return id


async def _suspend(stage: Stage, **given: Any) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await _wait(stage, held, {"signal": "approve"}, **given)
    return held.id


async def _wait(stage: Stage, held: Claimed, condition: dict[str, Any], **given: Any) -> None:
    wait = Wait(
        name="ff.signal approve",
        occurrence=0,
        position=0,
        is_sequential=True,
        condition=condition,
        timeout=timedelta(hours=1),
    )
    await stage.client.signals.ask(held, wait)
    assert await stage.client.signals.suspend(held, waits=[(wait.name, 0)], **given)


@situation(
    "it is suspended",
    "signal",
    "suspended",
    "waiting for the signal approve (waiting for approval)",
    "it continues without",
    after=timedelta(hours=1),
)
async def _(stage: Stage) -> ExecutionId:
    return await _suspend(stage, reason_code="waiting_for_approval")


@situation(
    "it waits for a waitpoint",
    "signal",
    "suspended",
    "waiting for the answer of the waitpoint payment; at ",
    "its wait raises WaitTimeout.",
    after=timedelta(hours=1),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    await stage.client.signals.create_waitpoint(held, UUID(int=7), "payment")
    await _wait(stage, held, {"waitpoint": str(UUID(int=7)), "default": False})
    return held.id


@situation(
    "it waits for several answers",
    "signal",
    "suspended",
    "waiting for all of (the answer of the waitpoint legal, 2 of (the answer of the waitpoint "
    "finance, the answer of the waitpoint ops), the signal packed) (2 of 4 came: finance, packed; "
    "still missing: legal, ops); 1 signal for other waits came; at ",
    "it continues with the default of its wait.",
    after=timedelta(hours=1),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    signals = stage.client.signals
    keys = ("legal", "finance", "ops")
    tokens = [
        await signals.create_waitpoint(held, UUID(int=n), key) for n, key in enumerate(keys, 1)
    ]
    legal, *two = [{"waitpoint": str(UUID(int=n))} for n in (1, 2, 3)]
    several = {"at_least": 2, "of": two, "distinct": "waitpoints"}
    await _wait(stage, held, {"every": [legal, several, {"signal": "packed"}], "default": True})
    await signals.deliver_by_token(tokens[1], Signal(payload=b"1"))
    for name in ("packed", "note"):
        await signals.deliver(held.id, Signal(name=name, payload=b"1"))
    return held.id


@situation(
    "it waits for approvals",
    "signal",
    "suspended",
    'waiting for 2 of 3 approvals of "Ship?" (1 approved: legal; 1 rejected: ops; no answer from '
    "finance); at ",
    "it continues with the default of its wait.",
    after=timedelta(hours=1),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    points = [(key, UUID(int=n)) for n, key in enumerate(("legal", "finance", "ops"), 1)]
    approvals = stage.client.approvals
    await approvals.create(held, UUID(int=9), points, "Ship?", details=None, need=2, deny=2)
    members = [{"waitpoint": str(id)} for _, id in points]
    condition = {"approve": 2, "deny": 2, "of": members, "default": True}
    await _wait(stage, held, condition, reason_code="waiting_for_approval")
    await approvals.answer(held.id, is_approved=True, actor="legal")
    await approvals.answer(held.id, is_approved=False, actor="ops")
    return held.id


@situation(
    "it sleeps or waits for a signal",
    "signal",
    "suspended",
    "waiting for the signal approve; at ",
    " it continues.",
    after=timedelta(minutes=1),
)
async def _(stage: Stage) -> ExecutionId:
    return await _suspend(stage, until=await stage.now() + timedelta(minutes=1))


@situation(
    "nobody can answer any more",
    "signal",
    "suspended",
    "waiting for all of (the answer of the waitpoint legal, the answer of the waitpoint ops) "
    "(closed without an answer: ops)",
    after=timedelta(0),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    held = await stage.claimed()
    signals = stage.client.signals
    for n, key in enumerate(("legal", "ops"), 1):
        await signals.create_waitpoint(held, UUID(int=n), key)
    members = [{"waitpoint": str(UUID(int=n))} for n in (1, 2)]
    await _wait(stage, held, {"every": members})
    await signals.close_waitpoint(held.id, UUID(int=2))
    return held.id


@situation(
    "nobody answered in time",
    "signal",
    "suspended_for_operator",
    "waits for an operator",
)
async def _(stage: Stage) -> ExecutionId:
    id = await _suspend(stage, on_timeout="escalate")
    await stage.clock.advance(hours=1)
    await stage.client.signals.expire_suspensions()
    return id


# The end


@situation("it completed", "end", "completed", "it completed at", "in attempt 1")
async def _(stage: Stage) -> ExecutionId:
    held = await stage.claimed()
    await stage.executions.complete(held)
    return held.id


@situation("it failed", "end", "failed", "after 1 attempt: the mail server is down")
async def _(stage: Stage) -> ExecutionId:
    held = await stage.claimed()
    await stage.fail(held, FailureClass.PERMANENT)
    return held.id


@situation("its workers vanished too often", "end", "reclaims_exhausted", "vanished", "1 reclaim")
async def _(stage: Stage) -> ExecutionId:
    id = await stage.lose(await stage.claimed(max_reclaims=1), 2)
    assert not await stage.executions.claim(worker_id="pool", worker_instance_id="pool-1")
    return id


@situation("it crashed alone too often", "end", "crashed_alone", "vanished 3 times", "ran alone")
async def _(stage: Stage) -> ExecutionId:
    id = await _crash_alone(stage)
    assert not await stage.executions.claim(worker_id="pool", worker_instance_id="pool-1")
    return id


@situation(
    "it crashed alone too often and nobody has looked",
    "lease",
    "reclaims_used_up",
    "Its worker vanished 3 times while it ran alone",
    others=("crash_loop",),
)
async def _(stage: Stage) -> ExecutionId:
    await stage.worker()
    return await _crash_alone(stage)


async def _crash_alone(stage: Stage) -> ExecutionId:
    id = await stage.lose(await stage.claimed(), 2)
    for _ in range(3):
        await stage.clock.advance(minutes=5)
        await stage.executions.promote_delayed()
        held = await stage.claim()
        await stage.executions.start(held, alone=True)
        await stage.lose(held, 1)
    return id


@situation("it was cancelled", "end", "cancelled", "ada cancelled it at", "not needed any more")
async def _(stage: Stage) -> ExecutionId:
    id = await stage.submit()
    await stage.executions.cancel(id, reason="not needed any more", actor="ada")
    return id


@situation("its deadline passed", "end", "deadline_passed", "because its deadline had passed")
async def _(stage: Stage) -> ExecutionId:
    id = await stage.submit(deadline=HOUR)
    await stage.clock.advance(HOUR)
    await stage.executions.expire()
    return id


@situation("its attempt ran out of time", "end", "attempt_timed_out", "no retry was left")
async def _(stage: Stage) -> ExecutionId:
    held = await stage.claimed(timeout=timedelta(seconds=5))
    await stage.clock.advance(seconds=5)
    await stage.executions.expire()
    return held.id


def check(why: Why, expected: Situation, now: datetime) -> None:
    assert (why.dimension, why.code) == (expected.dimension, expected.code), why
    if expected.within is not None:
        assert why.changes_at is not None
        assert now + expected.within / 2 <= why.changes_at <= now + expected.within
    else:
        assert why.changes_at == (None if expected.after is None else now + expected.after)
    for word in expected.words:
        assert word in why.sentence
    assert tuple(other.code for other in why.others) == expected.others
    for answer in (why, *why.others):
        assert re.fullmatch(r"[A-Za-z0-9].*\.", answer.sentence)
        assert "None" not in answer.sentence
        assert "unknown" not in answer.sentence


@pytest.mark.parametrize("name", SITUATIONS)
async def test_the_answer_to(stage: Stage, name: str) -> None:
    expected = SITUATIONS[name]
    id = await expected.build(stage)
    if expected.code == "waiting_for_children":
        stage.db.leave_broken("there is no function for this state yet")
    why = await stage.executions.why(id)
    check(why, expected, await stage.now())
    assert str(why) == why.sentence
    assert {answer.id for answer in (why, *why.others)} == {id}


def test_there_are_enough_situations() -> None:
    assert len(SITUATIONS) >= 25
    assert {entry.dimension for entry in SITUATIONS.values()} == set(Dimension)


def test_every_code_of_the_engine_has_its_sentence() -> None:
    """The codes in the SQL, with those that are made of a word of the schema, are those here."""
    files = [SQL / "explain_execution.sql", *SQL.glob("_explain_*.sql")]
    made = "".join(file.read_text(encoding="utf-8").split("begin\n", 1)[1] for file in files)
    made = made.replace("'lane_' || v_lane.state::text", "'lane_paused' 'lane_disabled'")
    made = made.replace("v_row.eligibility::text,", " ".join(f"'blocked_by_{w}'" for w in WORDS))
    quoted = set(re.findall(r"'([a-z_]+)'", made))
    assert set(SENTENCES) <= quoted
    told = {entry.code for entry in SITUATIONS.values()}
    told |= {code for entry in SITUATIONS.values() for code in entry.others}
    # Of flows, of signals, of a state that is never stored.
    later = {"skipped", "resume_delayed", "flow_being_cancelled", "blocked_by_lane_state"}
    later.add("trimmed")  # see tests/subscriptions/test_trimming.py
    later.add("waiting_for_upstreams")  # see tests/sql/flow/test_why_in_flows.py
    assert set(SENTENCES) - told == later


WORDS = ("budget", "quota", "route", "lane_state")


async def test_a_missing_execution_is_not_found(stage: Stage) -> None:
    with pytest.raises(ExecutionNotFound):
        await stage.executions.why(mint())


async def test_another_tenant_s_execution_is_not_found(stage: Stage) -> None:
    id = await stage.submit()
    async with FlowFabric(stage.db.url, namespace="elsewhere") as stranger:
        with pytest.raises(ExecutionNotFound):
            await stranger.executions.why(id)
    async with FlowFabric(stage.db.url, namespace=None) as operator:
        assert (await operator.executions.why(id)).code == "no_worker_alive"


async def test_only_an_operator_is_told_which_namespaces_are_served(stage: Stage) -> None:
    await stage.worker(namespace="elsewhere")
    id = await stage.submit()
    async with FlowFabric(stage.db.url, namespace=None) as operator:
        sentence = (await operator.executions.why(id)).sentence
    assert sentence.endswith("serves its namespace test; the live workers serve elsewhere.")


async def test_a_lane_is_counted_up_to_a_thousand(stage: Stage) -> None:
    await stage.worker()
    async with unwitnessed(stage.db.conn):
        await stage.submit()
        await stage.db.execute(
            "insert into ff.execution (partition_key, execution_id, route_id, namespace, rank, "
            "created_at, order_at, transitioned_at, mutated_at, version, phase, ownership, "
            "eligibility, blocking_reason, outcome, attempt_state, cause) "
            "select 0, gen_random_uuid(), e.route_id, e.namespace, e.rank, e.created_at, "
            "e.order_at, e.transitioned_at, e.mutated_at, 1, e.phase, e.ownership, e.eligibility, "
            "e.blocking_reason, e.outcome, e.attempt_state, e.cause "
            "from ff.execution e, generate_series(1, 1200)"
        )
        stage.db.leave_broken("rows without events, made in bulk")
        await stage.clock.advance(seconds=1)
        last = await stage.submit()
    why = await stage.executions.why(last)
    assert (why.evidence["ahead"], why.evidence["is_more"]) == (1000, True)
    assert "with 1000+ before it" in why.sentence


async def test_a_lane_of_many_tasks_is_counted_in_part(stage: Stage) -> None:
    """Two hundred routes are looked at; what the others hold may come before it, too."""
    await stage.worker()
    for number in range(200):
        await stage.client.lanes.register(Route("test", "mail", f"app.other_{number}", frozenset()))
    why = await stage.executions.why(await stage.submit())
    assert (why.evidence["ahead"], why.evidence["is_more"]) == (0, True)
    assert "with 0+ before it" in why.sentence


async def test_a_crowd_of_workers_is_counted_up_to_a_hundred(stage: Stage) -> None:
    for number in range(101):
        await stage.worker(f"pool-{number}")
        if number == 99:
            exact = await stage.executions.why(await stage.submit())
    assert "100 live workers can run it" in exact.sentence
    why = await stage.executions.why(await stage.submit())
    assert "more than 100 live workers can run it" in why.sentence


async def test_the_evidence_names_times_by_the_clock_of_the_database(stage: Stage) -> None:
    await stage.worker()
    held = await stage.claimed()
    why = await stage.executions.why(held.id)
    told = datetime.fromisoformat(why.evidence["lease_expires_at"])
    assert told.astimezone(UTC) == held.lease_expires_at == why.changes_at
    assert why.evidence["epoch"] == 1
    assert why.evidence["attempt"] == 1


async def test_the_answer_changes_nothing(stage: Stage) -> None:
    held = await stage.claimed()
    before = await stage.db.fetch("select * from ff.execution")
    await stage.executions.why(held.id)
    assert await stage.db.fetch("select * from ff.execution") == before
