"""Measures p50 and p99 of every operation: `python benchmarks/operations.py [--calls 300]`.

Makes one call at a time on an idle database, and measures the whole call of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from time import perf_counter
from typing import Any

import asyncpg

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Claimed, Failure, Route, Submission
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.core.policy import Fixed, Retry, policy_json
from flowfabric.core.states import FailureClass
from flowfabric.db.migrate import migrate
from harness import database, say, server

LONG = timedelta(hours=1)
WORKER = {"worker_id": "bench", "worker_instance_id": "bench-1"}
RETRYING = policy_json(retry=Retry(max_retries=1, backoff=Fixed(LONG)))

Prepared = Callable[["Bench"], Awaitable[Any]]
Timed = Callable[["Bench", Any], Awaitable[Any]]


class Bench:
    """The client, and executions in the state that an operation needs."""

    def __init__(self, client: FlowFabric) -> None:
        self.client = client
        self.numbers = count(1)
        self.lane = "default"
        self.priority = 0

    def begin(self, operation: str) -> None:
        """Use one lane per operation, so that they do not disturb each other."""
        self.lane = operation
        self.priority = 0

    async def waiting(self, **options: Any) -> ExecutionId:
        # Use the highest priority so far, so that a claim does not return an earlier execution.
        self.priority += 1
        route = Route("default", self.lane, "bench.work")
        submission = Submission(
            id=mint(), route=route, payload=b"null", priority=self.priority, **options
        )
        return (await self.client.executions.submit(submission)).id

    async def leased(self, **options: Any) -> Claimed:
        await self.waiting(**options)
        (claimed,) = await self.claim()
        return claimed

    async def claim(self) -> list[Claimed]:
        return await self.client.executions.claim(**WORKER, lanes=[self.lane], lease_ttl=LONG)

    async def ended(self) -> ExecutionId:
        claimed = await self.leased()
        await self.client.executions.complete(claimed)
        return claimed.id

    async def revoked(self) -> ExecutionId:
        claimed = await self.leased()
        await self.client.leases.revoke(claimed.id)
        return claimed.id

    async def blocked(self) -> ExecutionId:
        id = await self.waiting()
        await self.client.executions.block_for_admission(id, "waiting_for_budget")
        return id

    async def granted(self) -> Any:
        return await self.client.grants.issue_claim_grant(await self.waiting(), **WORKER)

    async def granted_resume(self) -> Any:
        claimed = await self.leased()
        await self.client.executions.wait_children(claimed)
        return await self.client.grants.issue_claim_grant(claimed.id, **WORKER)

    async def granted_reclaim(self) -> Any:
        return await self.client.grants.issue_reclaim_grant(await self.revoked(), **WORKER)

    async def nothing(self) -> None:
        """Prepare nothing."""


# Each operation has a name, a preparation (not timed) and a call (timed).
OPERATIONS: tuple[tuple[str, Prepared, Timed], ...] = (
    ("submit", Bench.nothing, lambda b, _: b.waiting()),
    ("claim", Bench.waiting, lambda b, _: b.claim()),
    ("renew", Bench.leased, lambda b, held: b.client.leases.renew([held], LONG)),
    (
        "report_progress",
        Bench.leased,
        lambda b, held: b.client.executions.report_progress(held, 50, "half"),
    ),
    ("complete", Bench.leased, lambda b, held: b.client.executions.complete(held, b"1")),
    (
        "fail, for good",
        Bench.leased,
        lambda b, held: b.client.executions.fail(held, Failure(FailureClass.PERMANENT, "x")),
    ),
    (
        "fail, to be retried",
        lambda b: b.leased(policy=RETRYING),
        lambda b, held: b.client.executions.fail(held, Failure(FailureClass.TRANSIENT, "x")),
    ),
    ("release", Bench.leased, lambda b, held: b.client.leases.release([held])),
    ("delay", Bench.leased, lambda b, held: b.client.executions.delay(held, LONG)),
    ("wait_children", Bench.leased, lambda b, held: b.client.executions.wait_children(held)),
    ("hold", Bench.leased, lambda b, held: b.client.executions.hold(held, "look")),
    ("cancel, waiting", Bench.waiting, lambda b, id: b.client.executions.cancel(id)),
    ("cancel, running", Bench.leased, lambda b, held: b.client.executions.cancel(held.id)),
    ("revoke_lease", Bench.leased, lambda b, held: b.client.leases.revoke(held.id)),
    (
        "change_priority",
        Bench.waiting,
        lambda b, id: b.client.executions.change_priority(id, 5),
    ),
    ("replay", Bench.ended, lambda b, id: b.client.executions.replay(id)),
    ("retry", Bench.ended, lambda b, id: b.client.executions.retry(id)),
    (
        "block_for_admission",
        Bench.waiting,
        lambda b, id: b.client.executions.block_for_admission(id, "waiting_for_budget"),
    ),
    ("unblock", Bench.blocked, lambda b, id: b.client.executions.unblock(id)),
    (
        "issue_claim_grant",
        Bench.waiting,
        lambda b, id: b.client.grants.issue_claim_grant(id, **WORKER),
    ),
    (
        "claim_execution",
        Bench.granted,
        lambda b, grant: b.client.grants.claim_execution(
            grant, worker_instance_id="bench-1", lease_ttl=LONG
        ),
    ),
    (
        "claim_from_resume_grant",
        Bench.granted_resume,
        lambda b, grant: b.client.grants.claim_from_resume_grant(
            grant, worker_instance_id="bench-1", lease_ttl=LONG
        ),
    ),
    (
        "issue_reclaim_grant",
        Bench.revoked,
        lambda b, id: b.client.grants.issue_reclaim_grant(id, **WORKER),
    ),
    (
        "reclaim_execution",
        Bench.granted_reclaim,
        lambda b, grant: b.client.grants.reclaim_execution(
            grant, worker_instance_id="bench-1", lease_ttl=LONG
        ),
    ),
    (
        "issue_grant_and_claim",
        Bench.waiting,
        lambda b, id: b.client.grants.issue_grant_and_claim(id, lease_ttl=LONG),
    ),
    (
        "register_worker",
        Bench.nothing,
        lambda b, _: b.client.workers.register(
            worker_id="bench",
            worker_instance_id=f"bench-{next(b.numbers)}",
            lanes=None,
            tasks=None,
            capabilities=(),
            liveness_ttl=timedelta(minutes=1),
        ),
    ),
    ("pause lane", Bench.nothing, lambda b, _: b.client.lanes.pause("submit", actor="bench")),
    ("resume lane", Bench.nothing, lambda b, _: b.client.lanes.resume("submit", actor="bench")),
    ("set_tags", Bench.waiting, lambda b, id: b.client.executions.set_tag(id, "bench.tag", "x")),
    ("describe", Bench.ended, lambda b, id: b.client.executions.describe(id)),
    ("state", Bench.ended, lambda b, id: b.client.executions.state(id)),
    ("attempts", Bench.ended, lambda b, id: b.client.executions.attempts(id)),
    ("events", Bench.ended, lambda b, id: b.client.executions.events(id)),
    ("why", Bench.waiting, lambda b, id: b.client.executions.why(id)),
    ("list", Bench.nothing, lambda b, _: b.client.executions.list()),
    ("count", Bench.nothing, lambda b, _: b.client.executions.count()),
    ("list workers", Bench.nothing, lambda b, _: b.client.workers.list()),
    ("list lanes", Bench.nothing, lambda b, _: b.client.lanes.list()),
    ("list_expired_leases", Bench.nothing, lambda b, _: b.client.executions.expired_leases()),
    (
        "promote_delayed, nothing due",
        Bench.nothing,
        lambda b, _: b.client.executions.promote_delayed(),
    ),
    ("expire_leases, nothing due", Bench.nothing, lambda b, _: b.client.leases.expire()),
    ("expire_executions, nothing due", Bench.nothing, lambda b, _: b.client.executions.expire()),
    ("reap_grants, nothing due", Bench.nothing, lambda b, _: b.client.grants.reap()),
)


async def measure(url: str, calls: int) -> list[dict[str, Any]]:
    found = []
    async with FlowFabric(url) as client:
        bench = Bench(client)
        for name, prepare, call in OPERATIONS:
            seconds = []
            bench.begin(name)
            for turn in range(calls + 10):
                given = await prepare(bench)
                started = perf_counter()
                await call(bench, given)
                if turn >= 10:
                    seconds.append(perf_counter() - started)
            seconds.sort()
            found.append(
                {
                    "operation": name,
                    "p50_ms": round(seconds[len(seconds) // 2] * 1000, 2),
                    "p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1000, 2),
                }
            )
            say(f"{name}: p50 {found[-1]['p50_ms']} ms, p99 {found[-1]['p99_ms']} ms")
    return found


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--calls", type=int, default=300, help="Time this many calls per operation. Default: 300."
    )
    calls = parser.parse_args().calls
    async with server() as admin, database(admin, "ff_operations") as url:
        connection = await asyncpg.connect(url)
        await migrate(connection)
        await connection.close()
        found = await measure(url, calls)
    for line in found:
        print(json.dumps(line))
    print(f"\n{'operation':<34} {'p50 ms':>8} {'p99 ms':>8}")
    for line in found:
        print(f"{line['operation']:<34} {line['p50_ms']:>8.2f} {line['p99_ms']:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
