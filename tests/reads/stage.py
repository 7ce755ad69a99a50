"""A small world to ask questions about: one tenant's client, a stopped clock, a few moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flowfabric.client import FlowFabric
from flowfabric.core.code_version import NO_VERSION, CodeVersion
from flowfabric.core.execution import Claimed, Failure, Route, Submission
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.core.policy import Fixed, Retry, policy_json
from flowfabric.core.states import FailureClass
from support.clock import Clock
from support.database import Database

TTL = timedelta(seconds=30)
BACKOFF = timedelta(minutes=5)


@dataclass(slots=True)
class Stage:
    """Each call is one of the client's; `now` is the time of the stopped clock."""

    client: FlowFabric
    db: Database
    clock: Clock

    @property
    def executions(self) -> Any:
        return self.client.executions

    async def submit(
        self,
        *,
        lane: str = "mail",
        task: str = "app.send",
        needs: Iterable[str] = (),
        retries: int | None = None,
        timeout: timedelta | None = None,
        **options: Any,
    ) -> ExecutionId:
        retry = None if retries is None else Retry(max_retries=retries, backoff=Fixed(BACKOFF))
        submission = Submission(
            id=options.pop("id", None) or mint(),
            route=Route("test", lane, task, frozenset(needs)),
            payload=options.pop("payload", b"null"),
            policy=policy_json(retry=retry, timeout=timeout),
            **options,
        )
        return (await self.executions.submit(submission)).id

    async def worker(
        self,
        instance: str = "pool-1",
        *,
        lanes: Iterable[str] | None = None,
        tasks: Iterable[str] | None = ("app.send",),
        capabilities: Iterable[str] = (),
        namespace: str | None = "test",
        code: CodeVersion = NO_VERSION,
    ) -> None:
        """A worker that is alive for a day."""
        settings: dict[str, Any] = {
            "worker_id": "pool",
            "worker_instance_id": instance,
            "lanes": lanes,
            "tasks": tasks,
            "capabilities": capabilities,
            "liveness_ttl": timedelta(days=1),
            "code": code,
        }
        if namespace == "test":
            await self.client.workers.register(**settings)
            return
        async with FlowFabric(self.db.url, namespace=namespace) as other:
            await other.workers.register(**settings)

    async def claim(self, instance: str = "pool-1", **options: Any) -> Claimed:
        (claimed,) = await self.executions.claim(
            worker_id="pool", worker_instance_id=instance, lease_ttl=TTL, **options
        )
        return claimed  # type: ignore[no-any-return]

    async def claimed(self, **options: Any) -> Claimed:
        await self.submit(**options)
        return await self.claim(
            lanes=[options.get("lane", "mail")], capabilities=tuple(options.get("needs", ()))
        )

    async def fail(self, held: Claimed, kind: FailureClass = FailureClass.TRANSIENT) -> None:
        await self.executions.fail(held, Failure(kind, "the mail server is down", "smtp"))

    async def lose(self, held: Claimed, times: int = 1) -> ExecutionId:
        """Let the lease run out, and have it reclaimed and lost again as often as asked."""
        for again in range(times):
            if again:
                await self.claim()
            await self.clock.advance(TTL)
            await self.client.leases.expire()
        return held.id

    async def now(self) -> datetime:
        return await self.clock.now()
