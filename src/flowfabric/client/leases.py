"""Leases: renew, release, revoke and expire them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from flowfabric.client.addresses import Scoped, lease_addresses
from flowfabric.client.batching import Busy
from flowfabric.client.operations import apply_once
from flowfabric.client.outcomes import answers, handle_batch, refusal
from flowfabric.core.errors import FlowFabricError, RetryExhausted
from flowfabric.core.execution import Claimed, Steered
from flowfabric.core.ids import AnyId
from flowfabric.core.states import EventKind
from flowfabric.db import functions
from flowfabric.db.call import Rows
from flowfabric.db.functions import Statement

BATCH = 1000


class Caller(Protocol):
    """Anything that can call the engine: a pool or a session."""

    async def call(
        self, statement: Statement, *, patience: float = ..., **arguments: Any
    ) -> Rows: ...


class Leases(Scoped):
    """Operations on leases."""

    async def renew(
        self, held: Sequence[Claimed], ttl: timedelta, *, caller: Caller | None = None
    ) -> tuple[dict[Claimed, FlowFabricError], list[Claimed]]:
        """Renew leases. Return the lost leases with their reasons, and the leases of busy rows."""
        lost: dict[Claimed, FlowFabricError] = {}
        busy: list[Claimed] = []
        for group in _by_partition(held):
            rows = await (caller or self._database).call(
                functions.RENEW_LEASES,
                **lease_addresses(group, self._namespace),
                lease_ttl=ttl,
                patience=2.0,
            )
            for row in rows:
                claimed, outcome = group[row["item"] - 1], row["outcome"]
                # The batch held two leases on one execution: the next heartbeat judges the second.
                if outcome in ("busy", "duplicate"):
                    busy.append(claimed)
                else:
                    lost[claimed] = refusal(outcome, row["detail"])
        return lost, busy

    async def release(
        self, held: Sequence[Claimed], *, cause: str = "worker_shutdown"
    ) -> dict[Claimed, Exception]:
        """Release executions unfinished; return the leases that were refused, with the error."""
        refused: dict[Claimed, Exception] = {}
        for group in _by_partition(held):
            rows = await self._database.call(
                functions.RELEASE_LEASES,
                **lease_addresses(group, self._namespace),
                cause=cause,
                wait=False,
            )
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
    ) -> Steered:
        """Revoke the lease of an active execution; another worker reclaims it.

        With a lease id or a worker instance, any other lease stays and the answer says so.
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

    async def expire(self, *, partition: int = 0, limit: int = 500) -> tuple[int, timedelta | None]:
        """Mark expired leases; return how many, and the time until the next timer."""
        return await handle_batch(
            self._database, functions.EXPIRE_LEASES, partition_key=partition, limit=limit
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


def _by_partition(held: Sequence[Claimed]) -> list[list[Claimed]]:
    groups: dict[int, list[Claimed]] = {}
    for claimed in held:
        groups.setdefault(claimed.partition_key, []).append(claimed)
    return [
        group[start : start + BATCH]
        for group in groups.values()
        for start in range(0, len(group), BATCH)
    ]
