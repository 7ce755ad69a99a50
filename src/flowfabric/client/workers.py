"""Workers: who is there, for how long, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from flowfabric.client.addresses import Scoped
from flowfabric.client.leases import Caller
from flowfabric.client.outcomes import handle_batch
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_text
from flowfabric.core.worker import WorkerInfo
from flowfabric.db import functions
from flowfabric.db.records import reader

BATCH = 1000
# The namespace of a worker that works for all of them.
EVERY_NAMESPACE = ""


_info = reader(WorkerInfo, functions.LIST_WORKERS)


class Workers(Scoped):
    """The registry of workers. It informs; nothing is claimed or refused because of it."""

    async def register(
        self,
        *,
        worker_id: str,
        worker_instance_id: str,
        lanes: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        capabilities: Iterable[str] = (),
        liveness_ttl: timedelta = timedelta(seconds=60),
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> str:
        """Write down that a worker is there: `registered`, or `refreshed` if it was known."""
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
        """Say that workers are alive; returns those that have to register again."""
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
        """Take a worker out of the registry; False if it was not in it.

        Its leases run out by themselves, or at once with `expire_leases`: then also those of a
        worker that is not registered any more.
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
        """Workers that are alive, in order of namespace and instance; go on behind `after`.

        A client of one namespace sees the workers of that namespace only.
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

    async def sweep(self, *, limit: int = 500) -> tuple[int, timedelta | None]:
        """Remove workers that fell silent; returns how many, and how long until the next may."""
        return await handle_batch(self._database, functions.SWEEP_WORKERS, limit=limit)

    def _of(self, namespace: str | None) -> str | None:
        """The namespace that is meant; another tenant's is not for us."""
        if namespace is not None and self._namespace not in (None, namespace):
            raise InvalidInput(field="namespace", problem="is not the one of this client")
        return self._namespace if namespace is None else namespace

    @property
    def _own(self) -> str:
        return EVERY_NAMESPACE if self._namespace is None else self._namespace
