"""The workers of a process, with connections, a heartbeat and reconcilers for all of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from flowfabric.app.schedules import Scheduler
from flowfabric.app.webhooks import WebhookDelivery
from flowfabric.client import FlowFabric
from flowfabric.core.code_version import CodeVersion
from flowfabric.reconcilers import run_reconcilers
from flowfabric.tasks import Extensions, TaskSpec
from flowfabric.worker import Heartbeat, Hints, Lifespan, LoopWatch, Registrations, Worker


class Process:
    """The workers of one process, and what they have in common.

    All workers use the connection pool of the client, one connection for claims, and one connection
    for the heartbeat.
    """

    def __init__(
        self,
        client: FlowFabric,
        lease_ttl: timedelta,
        extensions: Extensions,
        *,
        is_paced: bool = False,
    ) -> None:
        self._client = client
        self._ttl = lease_ttl
        self._workers: list[Worker] = []
        self._claims = client.database.session("claims")
        client.results.share(self._claims)
        self._hints = Hints(self._claims, client.signals.notice_soon)
        self._lifespan = Lifespan(extensions)
        loop_watch = LoopWatch(
            asyncio.get_running_loop(),
            lambda: [pair for worker in list(self._workers) for pair in worker.handlers],
        )
        self._heartbeat = Heartbeat(
            client.leases,
            lambda: client.database.session("heartbeat"),
            lease_ttl,
            Registrations(client.workers, lease_ttl, lambda: loop_watch.lag),
            loop_watch,
        )
        self._heartbeat.start()
        self._reconcilers: asyncio.Task[None] | None = None
        self._schedules: asyncio.Task[None] | None = None
        self._webhooks: asyncio.Task[None] | None = None
        if is_paced:
            return
        # Everything that is loaded now stays loaded. Freeze it, so that the garbage collector does
        # not visit it again every few hundred executions.
        gc.freeze()
        self._reconcilers = asyncio.create_task(run_reconcilers(client))

    @property
    def keeps_schedules(self) -> bool:
        return self._schedules is not None

    def keep_schedules(self, scheduler: Scheduler) -> None:
        """Declare an app's schedules and fire them until the process closes."""
        self._schedules = asyncio.create_task(scheduler.run())

    def serve_webhooks(self, delivery: WebhookDelivery) -> None:
        """Post events to webhooks until the process closes."""
        self._webhooks = asyncio.create_task(delivery.run())

    def worker(
        self,
        tasks: Mapping[str, TaskSpec],
        *,
        lanes: Sequence[str] | None,
        concurrency: int,
        needs: Iterable[str],
        worker_id: str | None,
        drain_timeout: timedelta,
        database: str,
        code: CodeVersion,
        finish_only: bool,
    ) -> Worker:
        worker = Worker(
            self._client,
            self._claims,
            self._heartbeat,
            tasks,
            hints=self._hints,
            lifespan=self._lifespan,
            lanes=lanes,
            concurrency=concurrency,
            needs=needs,
            worker_id=worker_id,
            lease_ttl=self._ttl,
            drain_timeout=drain_timeout,
            database=database,
            code=code,
            finish_only=finish_only,
        )
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        """Stop the workers, then the reconcilers and the heartbeat.

        Each worker finishes or releases its executions before it stops.
        """
        for task in (self._schedules, self._webhooks):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            await worker.stopped()
        await self._lifespan.close()
        if self._reconcilers is not None:
            self._reconcilers.cancel()
            await asyncio.wait([self._reconcilers])
        await asyncio.to_thread(self._heartbeat.stop)
        self._client.results.unshare()
        await self._claims.close()
