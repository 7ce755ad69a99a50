"""Grants: reserve an execution for one worker, which then claims it with the key of the grant."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from flowfabric.client.addresses import Scoped, address
from flowfabric.client.outcomes import refusal
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.attempts import attempt_index
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Claimed, check_name
from flowfabric.core.grant import KEY_BYTES, Grant, check_key
from flowfabric.core.ids import AnyId, ExecutionId, uuid7
from flowfabric.core.policy import capability_set
from flowfabric.core.states import GrantKind
from flowfabric.db import functions
from flowfabric.db.functions import Function
from flowfabric.db.records import reader

DEFAULT_GRANT_TTL = timedelta(seconds=10)
DEFAULT_LEASE_TTL = timedelta(seconds=30)


# One reader for each kind of claim. All return the same record, but the columns differ.
_READERS = {
    statement: reader(Claimed, statement, given="partition_key lease_id", unread=unread)
    for statement, unread in (
        (functions.CLAIM_EXECUTION, ""),
        (functions.CLAIM_RESUMED_EXECUTION, ""),
        (functions.RECLAIM_EXECUTION, "outcome detail"),
        (functions.ISSUE_GRANT_AND_CLAIM, ""),
    )
}


class Grants(Scoped):
    """Operations on grants. A program that assigns work issues a grant; one worker uses it once.

    If a call is repeated with the same `key` (issue) or the same `claim_id` (use), it returns the
    first answer.
    """

    async def issue_claim_grant(
        self,
        id: AnyId,
        *,
        worker_id: str,
        worker_instance_id: str,
        capabilities: Sequence[str] = (),
        ttl: timedelta = DEFAULT_GRANT_TTL,
        key: bytes | None = None,
    ) -> Grant:
        """Reserve a waiting execution for one worker.

        The `kind` of the returned grant says how to use the grant: `claim` with `claim_execution`,
        `resume` with `claim_from_resume_grant`.
        """
        id = await self._execution(id)
        return await self._issue(
            functions.ISSUE_CLAIM_GRANT,
            id,
            worker_id,
            worker_instance_id,
            capabilities,
            ttl,
            key,
        )

    async def issue_reclaim_grant(
        self,
        id: AnyId,
        *,
        worker_id: str,
        worker_instance_id: str,
        capabilities: Sequence[str] = (),
        ttl: timedelta = DEFAULT_GRANT_TTL,
        key: bytes | None = None,
    ) -> Grant:
        """Reserve an execution for one worker.

        The lease of the execution must have expired or been revoked.
        """
        id = await self._execution(id)
        return await self._issue(
            functions.ISSUE_RECLAIM_GRANT,
            id,
            worker_id,
            worker_instance_id,
            capabilities,
            ttl,
            key,
        )

    async def claim_execution(
        self,
        grant: Grant,
        *,
        worker_instance_id: str,
        worker_id: str | None = None,
        lease_ttl: timedelta = DEFAULT_LEASE_TTL,
        expected_attempt: int | None = None,
        claim_id: UUID | None = None,
    ) -> Claimed:
        """Use a claim grant: lease the execution, and start a new attempt."""
        return await self._claim(
            functions.CLAIM_EXECUTION,
            grant,
            worker_id,
            worker_instance_id,
            claim_id,
            lease_ttl,
            expected_attempt_index=attempt_index(expected_attempt),
        )

    async def claim_from_resume_grant(
        self,
        grant: Grant,
        *,
        worker_instance_id: str,
        worker_id: str | None = None,
        lease_ttl: timedelta = DEFAULT_LEASE_TTL,
        expected_attempt: int | None = None,
        claim_id: UUID | None = None,
    ) -> Claimed:
        """Use a resume grant: continue the interrupted attempt under a new lease."""
        return await self._claim(
            functions.CLAIM_RESUMED_EXECUTION,
            grant,
            worker_id,
            worker_instance_id,
            claim_id,
            lease_ttl,
            expected_attempt_index=attempt_index(expected_attempt),
        )

    claim_resumed_execution = claim_from_resume_grant

    async def reclaim_execution(
        self,
        grant: Grant,
        *,
        worker_instance_id: str,
        worker_id: str | None = None,
        lease_ttl: timedelta = DEFAULT_LEASE_TTL,
        claim_id: UUID | None = None,
    ) -> Claimed:
        """Use a reclaim grant: lease the execution again, and start a new attempt."""
        return await self._claim(
            functions.RECLAIM_EXECUTION, grant, worker_id, worker_instance_id, claim_id, lease_ttl
        )

    async def issue_grant_and_claim(
        self,
        id: AnyId,
        *,
        lease_ttl: timedelta = DEFAULT_LEASE_TTL,
        worker_id: str = "operator",
        worker_instance_id: str = "operator",
        claim_id: UUID | None = None,
    ) -> Claimed:
        """Lease one waiting execution as an operator. Its capabilities and the state of its lane do
        not matter."""
        id = await self._execution(id)
        _check_worker(worker_id, worker_instance_id)
        _check_span("lease_ttl", lease_ttl)
        claim_id = claim_id or uuid7()
        rows = await self._database.call(
            functions.ISSUE_GRANT_AND_CLAIM,
            **address(id, self._namespace),
            claim_id=claim_id,
            lease_ttl=lease_ttl,
            worker_id=worker_id,
            worker_instance_id=worker_instance_id,
        )
        return _READERS[functions.ISSUE_GRANT_AND_CLAIM](rows[0], id.partition_key, claim_id)

    async def reap(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete expired grants. Return how many were deleted, and the time until the next grant
        expires."""
        return await handle_everywhere(
            self._database, functions.REAP_GRANTS, Due.GRANT, partition=partition, limit=limit
        )

    async def _issue(
        self,
        function: Function,
        id: ExecutionId,
        worker_id: str,
        worker_instance_id: str,
        capabilities: Sequence[str],
        ttl: timedelta,
        key: bytes | None,
    ) -> Grant:
        _check_worker(worker_id, worker_instance_id)
        _check_span("grant_ttl", ttl)
        key = secrets.token_bytes(KEY_BYTES) if key is None else key
        check_key(key)
        rows = await self._database.call(
            function,
            **address(id, self._namespace),
            key=key,
            worker_id=worker_id,
            worker_instance_id=worker_instance_id,
            capabilities=sorted(capability_set(capabilities, "capabilities")),
            grant_ttl=ttl,
        )
        row = rows[0]
        if row["outcome"] != "granted":
            raise refusal(row["outcome"], row["detail"], id=str(id))
        return Grant(
            id=id,
            kind=GrantKind(row["kind"]),
            key=key,
            worker_id=worker_id,
            expires_at=row["expires_at"],
        )

    async def _claim(
        self,
        function: Function,
        grant: Grant,
        worker_id: str | None,
        worker_instance_id: str,
        claim_id: UUID | None,
        lease_ttl: timedelta,
        **more: Any,
    ) -> Claimed:
        worker_id = grant.worker_id if worker_id is None else worker_id
        _check_worker(worker_id, worker_instance_id)
        _check_span("lease_ttl", lease_ttl)
        claim_id = claim_id or uuid7()
        rows = await self._database.call(
            function,
            **address(grant.id, self._namespace),
            key=grant.key,
            worker_id=worker_id,
            worker_instance_id=worker_instance_id,
            claim_id=claim_id,
            lease_ttl=lease_ttl,
            **more,
        )
        row = rows[0]
        if function is functions.RECLAIM_EXECUTION and row["outcome"] != "reclaimed":
            raise refusal(row["outcome"], row["detail"], id=str(grant.id))
        return _READERS[function](row, grant.id.partition_key, claim_id)


def _check_span(name: str, span: timedelta) -> None:
    if not isinstance(span, timedelta):
        raise InvalidInput(field=name, problem=f"must be a timedelta, not {type(span).__name__}")


def _check_worker(worker_id: str, worker_instance_id: str) -> None:
    check_name("worker_id", worker_id)
    check_name("worker_instance_id", worker_instance_id)
