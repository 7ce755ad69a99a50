"""Any sequence of operations keeps the promises: checked after every step of random walks.

A walk leads a few executions through whatever the dice say: holders, former holders, operators,
schedulers and reconcilers, while time passes. After each step: a former holder changed nothing; the
public state is the one that follows from the others; counters never fall; every version has its
event and every end is announced once; a success has no failure. And at all times the invariants.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from support.factories import TTL, Granted, Lease

STEPS = 150
ENDS = {"completed", "failed", "cancelled", "expired"}
WAITING = {
    "not_eligible_until_time": "delayed",
    "blocked_by_dependencies": "waiting_children",
    "blocked_by_budget": "rate_limited",
    "blocked_by_quota": "rate_limited",
}
POLICIES = [
    None,
    {"retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 5000}}},
    {"timeout_policy": {"attempt_timeout_ms": 40_000}, "max_reclaim_count": 2},
    {
        "retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}},
        "timeout_policy": {"attempt_timeout_ms": 20_000},
        "max_replay_count": 2,
    },
]
HELD = ("complete", "fail", "renew", "release", "delay", "wait_children", "hold", "progress")
BLOCKS = ("waiting_for_budget", "waiting_for_quota", "waiting_for_capable_worker")


class Walk:
    """The executions of one walk, and everybody who ever had something to do with them."""

    def __init__(self, engine, clock, seed):
        self.engine, self.clock = engine, clock
        self.dice = random.Random(seed)
        self.ids = []
        self.leases: list[Lease] = []
        self.grants: list[Granted] = []
        self.seen = {}
        self.words = Counter()

    async def start(self):
        for policy in POLICIES * 2:
            # some end before anybody could have claimed them
            deadline = self.dice.choice([None, timedelta(seconds=15), timedelta(minutes=3)])
            delay = self.dice.choice([None, timedelta(seconds=40)])
            answer = await self.engine.submit(policy=policy, deadline=deadline, delay=delay)
            self.ids.append(answer.id)

    async def step(self):
        """One operation, chosen by the dice; a refusal is as good as a success."""
        kind = self.dice.choices(
            ["claim", "held", "operator", "grant", "use", "time", "sweep"],
            [6, 8, 4, 2, 3, 3, 4],
        )[0]
        try:
            word = await getattr(self, f"do_{kind}")()
        except asyncpg.PostgresError as error:
            if not (error.sqlstate or "").startswith("WF"):
                raise
            word = error.sqlstate
        self.words[f"{kind} {word}"] += 1

    async def do_claim(self):
        found = await self.engine.claim(self.dice.randint(1, 3), ttl=TTL)
        self.leases += found
        return "leased" if found else "nothing"

    async def do_held(self):
        if not self.leases:
            return "nobody"
        # the latest most of the time, or anybody who ever held a lease
        newest = self.leases[-4:]
        lease = self.dice.choice(newest if self.dice.random() < 0.7 else self.leases)
        row = await self.engine.row(lease.execution_id)
        is_current = row["ownership"] == "leased" and row["lease_id"] == lease.lease_id
        name = self.dice.choice((*HELD, "cancel_held"))
        before = None if is_current else await self.engine.snapshot()
        call = getattr(self.engine, name)
        more = {
            "delay": (timedelta(seconds=self.dice.choice([-5, 15])),),
            "fail": (self.dice.choice(["transient", "permanent", "timeout"]),),
            "progress": (self.dice.randint(0, 100),),
        }.get(name, ())
        try:
            return f"{name} {(await call(lease, *more)).word}"
        finally:
            if before is not None:
                assert await self.engine.snapshot() == before, f"{name} of a former holder"

    async def do_operator(self):
        id = self.dice.choice(self.ids)
        name = self.dice.choice(
            ["cancel", "replay", "replay", "retry", "revoke", "change_priority", "block", "unblock"]
        )
        ended = [row["execution_id"] for row in await self.engine.rows() if row["terminal_at"]]
        if name == "replay" and ended:
            id = self.dice.choice(ended)
        more = {
            "change_priority": (self.dice.randint(-10, 9999),),
            "block": (self.dice.choice((*BLOCKS, "paused_by_operator", "paused_by_policy")),),
        }.get(name, ())
        actor = {"actor": "op"} if self.dice.random() < 0.5 else {}
        return f"{name} {(await getattr(self.engine, name)(id, *more, **actor)).word}"

    async def do_grant(self):
        call = self.dice.choice([self.engine.grant, self.engine.grant_reclaim])
        granted = await call(self.dice.choice(self.ids), ttl=timedelta(seconds=20))
        if granted.word == "granted":
            self.grants.append(granted)
        return granted.word

    async def do_use(self):
        if self.dice.random() < 0.2 or not self.grants:
            self.leases.append(await self.engine.grant_and_claim(self.dice.choice(self.ids)))
            return "operator"
        grant = self.dice.choice(self.grants[-3:])
        if grant.kind == "reclaim":
            word, lease, _ = await self.engine.use_reclaim(grant)
        else:
            use = self.engine.use if grant.kind == "claim" else self.engine.use_resume
            word, lease = grant.kind, await use(grant)
        if lease is not None:
            self.leases.append(lease)
        return word

    async def do_time(self):
        await self.clock.advance(seconds=self.dice.choice([1, 5, 15, 30]))
        return "passed"

    async def do_sweep(self):
        name = self.dice.choice(["expire", "promote", "expire_executions", "reap"])
        return f"{name} {bool((await getattr(self.engine, name)())[0])}"

    async def check(self):
        ends = Counter()
        versions = Counter()
        for event in await self.engine.events():
            versions[event["execution_id"]] += 1
            ends[event["execution_id"]] += event["kind"] in ENDS
        for row in await self.engine.rows():
            id = row["execution_id"]
            assert row["public_state"] == derived(row)
            assert row["version"] == versions[id]
            assert ends[id] == row["replay_count"] + (row["phase"] == "terminal")
            if row["outcome"] == "success" or row["ownership"] == "leased":
                assert (row["failure_class"], row["failure_reason"]) == (None, None)
            assert row["result"] is None or row["outcome"] == "success"
            now = tuple(row[name] for name in ("epoch", "total_attempt_count", "replay_count"))
            was = self.seen.get(id, now)
            assert all(new >= old for new, old in zip(now, was, strict=True)), (was, now)
            assert row["mutated_at"] >= row["transitioned_at"]
            self.seen[id] = now


def derived(row):
    """The public state as the specification derives it."""
    if row["phase"] == "terminal":
        return {"success": "completed", "none": "failed"}.get(row["outcome"], row["outcome"])
    if row["phase"] == "runnable":
        return WAITING.get(row["eligibility"], "waiting")
    return row["phase"]


@pytest.mark.parametrize("seed", range(8))
async def test_a_random_walk_keeps_every_promise(db, engine, clock, seed):
    walk = Walk(engine, clock, seed)
    await walk.start()
    for step in range(STEPS):
        await walk.step()
        await walk.check()
        if step % 10 == 0:
            assert await db.broken_invariants() == []
    # it did go somewhere: leases were given, lost and used up, executions ended and came back
    assert walk.words["claim leased"] > 5
    assert sum(row["replay_count"] for row in await engine.rows()) > 0
    assert len(walk.words) > 20
