"""Workers: register them, report that they are alive, drain them, list and remove them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice

from flowfabric.client.addresses import Scoped
from flowfabric.client.leases import Caller
from flowfabric.client.outcomes import handle_batch
from flowfabric.client.partitions import ask_each, ask_reachable, within_time
from flowfabric.core.code_version import NO_VERSION, CodeVersion, VersionInfo
from flowfabric.core.errors import InvalidInput, Unavailable
from flowfabric.core.execution import check_text
from flowfabric.core.worker import Asked, WorkerInfo
from flowfabric.db import functions
from flowfabric.db.outage import level_of
from flowfabric.db.partitions import Rest
from flowfabric.db.records import reader
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

BATCH = 1000
# The engine counts up to 10 000 executions in flight. This number means more than 10 000.
MANY = 10_001
# The namespace of a worker that serves all namespaces.
EVERY_NAMESPACE = ""
# A claim accepts at most this many routes of other code versions.
_MOST_UNSERVED = 1000
# How long one of several partitions may take to name its unserved routes. The heartbeat waits for
# the answer, and it also renews leases.
UNSERVED_SECONDS = 1.0


_info = reader(WorkerInfo, functions.LIST_WORKERS)
_version = reader(VersionInfo, functions.LIST_VERSIONS)


class Workers(Scoped):
    """The registry of workers.

    The engine uses it to decide which workers take over the executions of another code version.
    """

    def __init__(self, database: Database, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._unreached = Rest()

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
        host: str | None = None,
        slots: int | None = None,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> str:
        """Register a worker. Return `registered`, or `refreshed` if it was registered before."""
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
            host=host,
            slots=slots,
            patience=patience,
        )
        return str(rows[0]["outcome"])

    async def heartbeat(
        self,
        worker_instance_ids: Sequence[str],
        *,
        running: Sequence[int] | None = None,
        loop_lag: timedelta | None = None,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> Asked:
        """Report that workers are alive, and how many handlers each of them runs.

        `loop_lag` is the loop lag of this process. Return which workers must register again and
        which must drain.
        """
        asked = Asked([], [])
        for start in range(0, len(worker_instance_ids), BATCH):
            names = list(worker_instance_ids[start : start + BATCH])
            rows = await (caller or self._database).call(
                functions.HEARTBEAT_WORKERS,
                namespaces=[self._own] * len(names),
                worker_instance_ids=names,
                running=None if running is None else list(running[start : start + BATCH]),
                loop_lags=None if loop_lag is None else [loop_lag] * len(names),
                patience=patience,
            )
            for row in rows:
                getattr(asked, row["asked"]).append(row["worker_instance_id"])
        return asked

    async def drain(
        self,
        worker_instance_id: str,
        reason: str,
        *,
        namespace: str | None = None,
        actor: str | None = None,
    ) -> str:
        """Ask a worker to finish the executions that it runs, and to end.

        Return `asked`, `already_asked`, or `not_registered`. The worker learns of the request with
        its next heartbeat.
        """
        rows = await self._database.call(
            functions.DRAIN_WORKER,
            namespace=self._of(namespace) or self._own,
            worker_instance_id=worker_instance_id,
            reason=reason,
            actor=actor,
        )
        return str(rows[0]["outcome"])

    async def mark_dead(
        self,
        worker_instance_id: str,
        reason: str,
        *,
        namespace: str | None = None,
        expire_leases: bool = False,
        partitions: Iterable[int] | None = None,
        actor: str | None = None,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> bool:
        """Remove a worker from the registry; return False if it was not registered.

        If `expire_leases` is true, the leases of the worker expire immediately, even if the worker
        is no longer registered. Otherwise, the leases expire at their usual time.
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

            async def expire(partition: int) -> None:
                handled = BATCH
                while handled == BATCH:
                    rows = await self._database.call(
                        functions.EXPIRE_WORKER_LEASES,
                        partition_key=partition,
                        namespace=self._of(namespace) or None,
                        worker_instance_id=worker_instance_id,
                        limit=BATCH,
                    )
                    handled = rows[0]["handled"]

            if partitions is None:
                partitions = await self._database.partitions.all()
            _, unreached = await ask_reachable(partitions, expire)
            if unreached:
                raise Unavailable(
                    "Its leases were not ended in the partitions that cannot be reached: "
                    f"{', '.join(map(str, unreached))}; call again.",
                    partitions=unreached,
                )
        return bool(rows[0]["outcome"] == "marked")

    async def list(
        self,
        *,
        namespace: str | None = None,
        after: WorkerInfo | None = None,
        limit: int = 1000,
        with_dead: bool = False,
    ) -> list[WorkerInfo]:
        """List the live workers, sorted by namespace and instance, starting after `after`.

        If `with_dead` is true, also list dead workers that are not swept yet. A client of one
        namespace gets only the workers of that namespace.
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
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> dict[str, Sequence[int]]:
        """Return, for each given worker, the ids of the routes that the worker should take over.

        A worker should take over a route of another code version if the route has unfinished
        executions, and if no worker that serves this version was alive during the grace.
        """
        found: dict[str, dict[int, None]] = {}
        # Use the last known number: a heartbeat runs on its own event loop without the pool, so it
        # cannot read the number.
        count = self._database.partitions.numbers.partitions

        async def ask(partition: int, names: Sequence[str]) -> None:
            rows = await (caller or self._database).call(
                functions.LIST_UNSERVED_ROUTES,
                partition_key=partition,
                namespace=self._namespace,
                worker_instance_ids=[*names],
                patience=patience,
            )
            for row in rows:
                found.setdefault(row["worker_instance_id"], {})[row["route_id"]] = None

        for start in range(0, len(worker_instance_ids), BATCH):
            names = worker_instance_ids[start : start + BATCH]
            for partition in filter(self._unreached.is_over, range(count)):
                try:
                    await within_time(partition, count, ask(partition, names), UNSERVED_SECONDS)
                except Unavailable as error:
                    if count == 1:
                        raise
                    # The routes of the other partitions do not wait for this one.
                    self._unreached.begin(partition)
                    message = "unserved routes of partition %s not read: %s"
                    ENGINE_LOGGER.log(level_of(error), message, partition, error)
                else:
                    self._unreached.end(partition)
        # Return at most as many routes as a claim accepts. Later calls return the other routes,
        # once no execution waits in the first ones.
        return {name: [*islice(routes, _MOST_UNSERVED)] for name, routes in found.items()}

    async def versions(self, task: str | None = None) -> Sequence[VersionInfo]:
        """Return the code versions of each task. For each version, count its unfinished executions
        and its live workers.
        """

        async def read(partition: int) -> Sequence[VersionInfo]:
            rows = await self._database.call(
                functions.LIST_VERSIONS,
                partition_key=partition,
                namespace=self._namespace,
                task=task,
            )
            return [_version(row) for row in rows]

        # If a partition did not answer, a version could seem unused. So all partitions must answer.
        answers = await ask_each(await self._database.partitions.all(), read)
        if len(answers) == 1:
            return answers[0]
        found: dict[tuple[str, str, str], VersionInfo] = {}
        for one in (version for answer in answers for version in answer):
            name = (one.namespace, one.task, one.code_version)
            if (before := found.get(name)) is not None:
                one = replace(one, in_flight=min(one.in_flight + before.in_flight, MANY))
            found[name] = one
        return [found[name] for name in sorted(found)]

    async def server_key(self) -> bytes:
        """Return the key with which HTTP servers sign leases. All servers of a database share this
        key.
        """
        rows = await self._database.call(functions.READ_SERVER_KEY, namespace=self._namespace)
        return bytes(rows[0]["read_server_key"])

    async def sweep(self, *, limit: int = 500) -> tuple[int, timedelta | None]:
        """Remove workers that stopped sending heartbeats, and old events of workers.

        Return the number of removed workers or of removed events, whichever is larger. Also return
        the time until the next worker counts as dead if it sends no more heartbeats.
        """
        return await handle_batch(self._database, functions.SWEEP_WORKERS, limit=limit)

    def _of(self, namespace: str | None) -> str | None:
        """Return the given namespace, or the client's namespace if none is given.

        Raise InvalidInput if the client is for another namespace than the given one.
        """
        if namespace is not None and self._namespace not in (None, namespace):
            raise InvalidInput(field="namespace", problem="is not the namespace of this client")
        return self._namespace if namespace is None else namespace

    @property
    def _own(self) -> str:
        return EVERY_NAMESPACE if self._namespace is None else self._namespace
