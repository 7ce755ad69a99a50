"""Leases: kept alive, given back, and marked when they ran out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from flowfabric.client.batching import Busy
from flowfabric.client.outcomes import answers, refusal
from flowfabric.client.versioned_calls import steer
from flowfabric.core.errors import RetryExhausted
from flowfabric.core.execution import Claimed, Steered
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import EventKind
from flowfabric.db import functions
from flowfabric.db.call import Rows
from flowfabric.db.functions import Statement
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

BATCH = 1000


class Caller(Protocol):
    """A pool or a session: whatever can call the engine."""

    async def call(self, statement: Statement, *args: object, patience: float = ...) -> Rows: ...


class Leases:
    """What the holder of leases can say about them."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        self._database = database
        self._namespace = namespace

    async def renew(
        self, held: Sequence[Claimed], ttl: timedelta, *, caller: Caller | None = None
    ) -> tuple[list[Claimed], list[Claimed]]:
        """Extend leases; returns those that are lost and those whose rows were busy."""
        lost: list[Claimed] = []
        busy: list[Claimed] = []
        for partition, group in _by_partition(held):
            rows = await (caller or self._database).call(
                functions.RENEW_LEASES,
                partition,
                self._namespace,
                *_fences(group),
                ttl,
                patience=2.0,
            )
            for item, outcome, detail in rows:
                # A second lease for one execution is judged in the next beat, without the first.
                late = outcome in ("busy", "duplicate")
                (busy if late else lost).append(group[item - 1])
                if not late:
                    told = refusal(outcome, detail)
                    ENGINE_LOGGER.info(
                        "lease not renewed: %s, %s",
                        group[item - 1].id,
                        told.facts.get("reason", outcome),
                    )
        return lost, busy

    async def release(
        self, held: Sequence[Claimed], *, cause: str = "worker_shutdown"
    ) -> dict[Claimed, Exception]:
        """Give leases back unfinished; returns what could not be given back, and why."""
        refused: dict[Claimed, Exception] = {}
        for partition, group in _by_partition(held):
            rows = await self._database.call(
                functions.RELEASE_LEASES, partition, self._namespace, *_fences(group), cause, False
            )
            found = answers(len(group), None, [tuple(row) for row in rows], same="released")
            for claimed, answer in zip(group, found, strict=True):
                if isinstance(answer, Busy):
                    answer = await self._release_alone(claimed, cause)
                if isinstance(answer, Exception):
                    refused[claimed] = answer
        return refused

    async def revoke(
        self,
        id: ExecutionId,
        *,
        lease_id: UUID | None = None,
        worker_instance_id: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        if_version: int | None = None,
    ) -> Steered:
        """Take the lease of a running execution away; another worker goes on with it.

        Aimed at one lease or one worker instance, it leaves any other alone and says so.
        """
        return await steer(
            self._database,
            self._namespace,
            functions.REVOKE_LEASE,
            id,
            (EventKind.LEASE_REVOKED,),
            lease_id,
            worker_instance_id,
            reason,
            actor,
            if_version=if_version,
            wrote={"reason": reason},
            actor=actor,
        )

    async def expire(self, *, partition: int = 0, limit: int = 500) -> tuple[int, timedelta | None]:
        """Mark leases that ran out; returns how many, and how long until the next timer."""
        row = (await self._database.call(functions.EXPIRE_LEASES, partition, limit))[0]
        return row["handled"], row["due_in"]

    async def _release_alone(self, claimed: Claimed, cause: str) -> Exception | None:
        try:
            rows = await self._database.call(
                functions.RELEASE_LEASES,
                claimed.partition_key,
                self._namespace,
                *_fences([claimed]),
                cause,
                True,
            )
        except RetryExhausted as error:
            return error
        answer = answers(1, None, [tuple(row) for row in rows], same="released")[0]
        return answer if isinstance(answer, Exception) else None


def _fences(group: Sequence[Claimed]) -> tuple[list[object], ...]:
    return (
        [claimed.execution_id for claimed in group],
        [claimed.lease_id for claimed in group],
        [claimed.epoch for claimed in group],
        [claimed.attempt_id for claimed in group],
    )


def _by_partition(held: Sequence[Claimed]) -> list[tuple[int, list[Claimed]]]:
    groups: dict[int, list[Claimed]] = {}
    for claimed in held:
        groups.setdefault(claimed.partition_key, []).append(claimed)
    return [
        (partition, group[start : start + BATCH])
        for partition, group in groups.items()
        for start in range(0, len(group), BATCH)
    ]
