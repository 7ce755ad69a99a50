"""Workers: register, renew, list and remove them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from flowfabric.client.addresses import Scoped
from flowfabric.client.leases import Caller
from flowfabric.client.outcomes import handle_batch
from flowfabric.core.code_version import NO_VERSION, CodeVersion, VersionInfo
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_text
from flowfabric.core.worker import WorkerInfo
from flowfabric.db import functions
from flowfabric.db.records import reader

BATCH = 1000
# The namespace of a worker that serves all namespaces.
EVERY_NAMESPACE = ""


_info = reader(WorkerInfo, functions.LIST_WORKERS)
_version = reader(VersionInfo, functions.LIST_VERSIONS)


class Workers(Scoped):
    """The registry of workers. Only the takeover of code versions depends on it."""

    async def register(
        self,
        *,
        worker_id: str,
        worker_instance_id: str,
        lanes: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        capabilities: Iterable[str] = (),
        liveness_ttl: timedelta = timedelta(seconds=60),
        code: CodeVersion = NO_VERSION,
        finish_only: bool = False,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> str:
        """Register a worker: `registered`, or `refreshed` if it was registered before."""
        check_text("worker_instance_id", worker_instance_id, 256)
        rows = await (caller or self._database).call(
            functions.REGISTER_WORKER,
            namespace=self._own,
            worker_id=worker_id,
            worker_instance_id=worker_instance_id,
            lanes=None if lanes is None else list(lanes),
            tasks=None if tasks is None else list(tasks),
            capabilities=list(capabilities),
            liveness_ttl=liveness_ttl,
            code_version=code.name,
            reads=sorted(code.reads),
            version_grace=code.grace,
            finish_only=finish_only,
            patience=patience,
        )
        return str(rows[0]["outcome"])

    async def heartbeat(
        self,
        worker_instance_ids: Sequence[str],
        *,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> list[str]:
        """Report that workers are alive; return the workers that must register again."""
        missing: list[str] = []
        for start in range(0, len(worker_instance_ids), BATCH):
            names = list(worker_instance_ids[start : start + BATCH])
            rows = await (caller or self._database).call(
                functions.HEARTBEAT_WORKERS,
                namespaces=[self._own] * len(names),
                worker_instance_ids=names,
                patience=patience,
            )
            missing += [row["worker_instance_id"] for row in rows]
        return missing

    async def mark_dead(
        self,
        worker_instance_id: str,
        reason: str,
        *,
        namespace: str | None = None,
        expire_leases: bool = False,
        partitions: Iterable[int] = (0,),
        actor: str | None = None,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> bool:
        """Remove a worker from the registry; return False if it was not registered.

        Its leases expire in time, or at once with `expire_leases`; that works for a worker that is
        no longer registered, too.
        """
        rows = await (caller or self._database).call(
            functions.MARK_WORKER_DEAD,
            namespace=self._of(namespace) or self._own,
            worker_instance_id=worker_instance_id,
            reason=reason,
            actor=actor,
            patience=patience,
        )
        if expire_leases:
            for partition in partitions:
                handled = BATCH
                while handled == BATCH:
                    found = await self._database.call(
                        functions.EXPIRE_WORKER_LEASES,
                        partition_key=partition,
                        namespace=self._of(namespace) or None,
                        worker_instance_id=worker_instance_id,
                        limit=BATCH,
                    )
                    handled = found[0]["handled"]
        return bool(rows[0]["outcome"] == "marked")

    async def list(
        self,
        *,
        namespace: str | None = None,
        after: WorkerInfo | None = None,
        limit: int = 1000,
        with_dead: bool = False,
    ) -> list[WorkerInfo]:
        """List live workers by namespace and instance, starting after `after`.

        A client of one namespace gets only the workers of that namespace.
        """
        rows = await self._database.call(
            functions.LIST_WORKERS,
            namespace=self._of(namespace),
            after_namespace=after.namespace if after else None,
            after_instance_id=after.worker_instance_id if after else None,
            limit=limit,
            with_dead=with_dead,
        )
        return [_info(row) for row in rows]

    async def unserved(
        self,
        worker_instance_ids: Sequence[str],
        *,
        partition: int = 0,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> dict[str, Sequence[int]]:
        """Return the ids of the routes that registered workers should take over, by worker.

        Executions of another code version wait there, and no worker that serves the version has
        been alive for the grace.
        """
        found: dict[str, Sequence[int]] = {}
        for start in range(0, len(worker_instance_ids), BATCH):
            rows = await (caller or self._database).call(
                functions.LIST_UNSERVED_ROUTES,
                partition_key=partition,
                namespace=self._namespace,
                worker_instance_ids=[*worker_instance_ids[start : start + BATCH]],
                patience=patience,
            )
            for row in rows:
                found[row["worker_instance_id"]] = [
                    *found.get(row["worker_instance_id"], ()),
                    row["route_id"],
                ]
        return found

    async def versions(
        self, task: str | None = None, *, partition: int = 0
    ) -> Sequence[VersionInfo]:
        """Return the code versions of the tasks: what is in flight, and who serves it."""
        rows = await self._database.call(
            functions.LIST_VERSIONS, partition_key=partition, namespace=self._namespace, task=task
        )
        return [_version(row) for row in rows]

    async def sweep(self, *, limit: int = 500) -> tuple[int, timedelta | None]:
        """Remove silent workers; return how many, and the time until the next may be due."""
        return await handle_batch(self._database, functions.SWEEP_WORKERS, limit=limit)

    def _of(self, namespace: str | None) -> str | None:
        """Return the namespace to use; refuse another namespace than the client's."""
        if namespace is not None and self._namespace not in (None, namespace):
            raise InvalidInput(field="namespace", problem="is not the namespace of this client")
        return self._namespace if namespace is None else namespace

    @property
    def _own(self) -> str:
        return EVERY_NAMESPACE if self._namespace is None else self._namespace
