"""Leases: renew, release, revoke and expire them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol
from uuid import UUID

from flowfabric.client.addresses import Scoped, lease_addresses
from flowfabric.client.batching import Busy
from flowfabric.client.operations import apply_once
from flowfabric.client.outcomes import answers, refusal
from flowfabric.client.partitions import within_time
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.errors import FlowFabricError, RetryExhausted, Unavailable
from flowfabric.core.execution import Claimed, OperationAnswer
from flowfabric.core.ids import AnyId
from flowfabric.core.states import EventKind
from flowfabric.db import functions
from flowfabric.db.call import Rows
from flowfabric.db.functions import Statement
from flowfabric.db.outage import level_of
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

BATCH = 1000
# With several partitions, a call that renews leases has this time limit: the ttl of the leases
# divided by RENEW_SHARE, but at least LEAST_RENEW_SECONDS.
RENEW_SHARE = 10
LEAST_RENEW_SECONDS = 0.5


class Caller(Protocol):
    """An object that can call the engine: a pool of connections, or a session."""

    async def call(
        self, statement: Statement, *, patience: float = ..., **arguments: Any
    ) -> Rows: ...


class Leases(Scoped):
    """Operations on leases."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        super().__init__(database, namespace)
        # For each partition, the time at which renewing its leases last failed.
        self._failed: dict[int, float] = {}

    async def renew(
        self, leases: Sequence[Claimed], ttl: timedelta, *, caller: Caller | None = None
    ) -> tuple[dict[Claimed, FlowFabricError], list[Claimed]]:
        """Renew leases.

        Return the leases that are lost, with their errors. Also return the leases that could not be
        renewed this time, for example because their rows were locked.
        """
        lost: dict[Claimed, FlowFabricError] = {}
        busy: list[Claimed] = []
        groups = _by_partition(leases)
        several = len({group[0].partition_key for group in groups})
        # Partitions that failed last time come last.
        groups.sort(key=lambda group: self._failed.get(group[0].partition_key, 0.0))
        problems: list[FlowFabricError] = []
        for group in groups:
            partition = group[0].partition_key
            call = (caller or self._database).call(
                functions.RENEW_LEASES,
                **lease_addresses(group, self._namespace),
                lease_ttl=ttl,
                patience=2.0 if several == 1 else 0.0,
            )
            try:
                seconds = max(ttl.total_seconds() / RENEW_SHARE, LEAST_RENEW_SECONDS)
                rows = await within_time(partition, several, call, seconds)
            except Unavailable as error:
                if several == 1:
                    raise
                # The leases of other partitions must not wait for this partition. Its leases are
                # tried again soon.
                self._failed[partition] = monotonic()
                busy += group
                problems.append(error)
                ENGINE_LOGGER.log(
                    level_of(error), "leases not renewed in partition %s: %s", partition, error
                )
                continue
            self._failed.pop(partition, None)
            for row in rows:
                claimed, outcome = group[row["item"] - 1], row["outcome"]
                # `duplicate`: the batch has two leases on one execution. The next heartbeat renews
                # the second.
                if outcome in ("busy", "duplicate"):
                    busy.append(claimed)
                else:
                    lost[claimed] = refusal(outcome, row["detail"])
        if problems and len(problems) == len(groups):
            raise problems[0]
        return lost, busy

    async def release(
        self, leases: Sequence[Claimed], *, cause: str = "worker_shutdown"
    ) -> dict[Claimed, Exception]:
        """Release the given leases, so that other workers can claim the executions.

        Return the leases that could not be released, with their errors.
        """
        refused: dict[Claimed, Exception] = {}
        groups = _by_partition(leases)
        for group in groups:
            try:
                rows = await self._database.call(
                    functions.RELEASE_LEASES,
                    **lease_addresses(group, self._namespace),
                    cause=cause,
                    wait=False,
                )
            except Unavailable as error:
                if len(groups) == 1:
                    raise
                # The leases of the other partitions can still be released.
                refused |= dict.fromkeys(group, error)
                continue
            found = answers(len(group), None, rows, same="released")
            for claimed, answer in zip(group, found, strict=True):
                if isinstance(answer, Busy):
                    answer = await self._release_alone(claimed, cause)
                if isinstance(answer, Exception):
                    refused[claimed] = answer
        return refused

    async def revoke(
        self,
        id: AnyId,
        *,
        lease_id: UUID | None = None,
        worker_instance_id: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        if_version: int | None = None,
    ) -> OperationAnswer:
        """Revoke the lease of an active execution. The next claim reclaims the execution.

        If `lease_id` is given, only a lease with this id is revoked. If `worker_instance_id` is
        given, only a lease of this holder is revoked. Any other lease stays, and the answer
        says why.
        """
        id = await self._execution(id)
        return await apply_once(
            self._database,
            self._namespace,
            functions.REVOKE_LEASE,
            id,
            (EventKind.LEASE_REVOKED,),
            if_version=if_version,
            actor=actor,
            wrote={"reason": reason},
            expected_lease_id=lease_id,
            worker_instance_id=worker_instance_id,
            reason=reason,
        )

    async def expire(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Mark expired leases. Return how many were marked, and the time until the next call."""
        return await handle_everywhere(
            self._database, functions.EXPIRE_LEASES, Due.TIMER, partition=partition, limit=limit
        )

    async def _release_alone(self, claimed: Claimed, cause: str) -> Exception | None:
        try:
            rows = await self._database.call(
                functions.RELEASE_LEASES,
                **lease_addresses([claimed], self._namespace),
                cause=cause,
                wait=True,
            )
        except RetryExhausted as error:
            return error
        answer = answers(1, None, rows, same="released")[0]
        return answer if isinstance(answer, Exception) else None


def _by_partition(leases: Sequence[Claimed]) -> list[list[Claimed]]:
    groups: dict[int, list[Claimed]] = {}
    for claimed in leases:
        groups.setdefault(claimed.partition_key, []).append(claimed)
    return [
        group[start : start + BATCH]
        for group in groups.values()
        for start in range(0, len(group), BATCH)
    ]
