"""Approvals: ask several approvers a question, answer it, and list the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from flowfabric.client.addresses import Scoped, address, lease_address, location
from flowfabric.client.executions import SETTLE_PATIENCE_SECONDS
from flowfabric.client.outcomes import refusal
from flowfabric.client.partitions import ask_reachable
from flowfabric.core.execution import Claimed, check_words
from flowfabric.core.ids import AnyId, ExecutionId, uuid7
from flowfabric.core.partition import Found
from flowfabric.core.signal import (
    ApprovalAnswer,
    ApprovalInfo,
    Delivered,
    decision_name,
    encode_comment,
    read_comment,
)
from flowfabric.db import functions

# How many approvals of an execution are read.
MAX_APPROVALS = 1000


class Approvals(Scoped):
    """Operations on approvals."""

    async def create(
        self,
        claimed: Claimed,
        approval_id: UUID,
        approvers: Sequence[tuple[str, UUID]],
        question: str,
        *,
        details: bytes | None,
        need: int,
        deny: int,
        step: tuple[str, int] | None = None,
    ) -> list[str]:
        """Ask approvers a question, on behalf of the holder of the lease. Return their tokens.

        `approvers` has the name of each approver, with the id of the waitpoint to make. The tokens
        are in the same order. The approval is granted after `need` approvals, and denied after
        `deny` rejections. `step` is the name and the occurrence of the step that asks.
        """
        rows = await self._database.call(
            functions.CREATE_APPROVAL,
            **lease_address(claimed, self._namespace),
            approval_id=approval_id,
            waitpoint_ids=[id for _, id in approvers],
            approvers=[name for name, _ in approvers],
            question=question,
            details=details,
            details_encoding="json",
            need=need,
            deny=deny,
            step_name=None if step is None else step[0],
            step_occurrence=None if step is None else step[1],
            patience=SETTLE_PATIENCE_SECONDS,
        )
        if rows[0]["outcome"] != "created":
            raise refusal(rows[0]["outcome"], rows[0]["detail"], id=str(claimed.id))
        return list(rows[0]["tokens"])

    async def answer(
        self,
        id: AnyId,
        *,
        is_approved: bool,
        actor: str,
        approver: str | None = None,
        comment: str | None = None,
        approval_id: UUID | None = None,
    ) -> Delivered:
        """Answer an approval as an operator, without a token.

        It counts as the answer of `approver` or, if that is None, of the approver named `actor`.
        """
        check_words(actor=actor)
        payload = encode_comment(comment)
        signal_id = uuid7()
        id = await self._execution(id)
        rows = await self._database.call(
            functions.DELIVER_APPROVAL_SIGNAL,
            **address(id, self._namespace),
            decision=decision_name(is_approved),
            actor=actor,
            signal_id=signal_id,
            approver=approver,
            approval_id=approval_id,
            payload=payload,
            payload_encoding="json",
        )
        row = rows[0]
        return Delivered(row["signal_id"], row["signal_id"] != signal_id, row["effect"])

    async def of(self, id: AnyId) -> Sequence[ApprovalInfo]:
        """Return all approvals of an execution, open and decided, oldest first."""
        id = await self._execution(id)
        partition, uuid = location(id)
        return await self._read(partition, uuid, None, MAX_APPROVALS)

    async def list(
        self, *, after: ApprovalInfo | None = None, limit: int = 100
    ) -> Found[ApprovalInfo]:
        """Return a page of the open approvals in all partitions, oldest first.

        `after` is the last approval of the previous page. `missing` names partitions that did not
        answer.
        """

        async def read(partition: int) -> Sequence[ApprovalInfo]:
            return await self._read(partition, None, after, limit)

        pages, missing = await ask_reachable(await self._database.partitions.all(), read)
        found = [one for page in pages for one in page]
        found.sort(key=lambda one: (one.created_at, one.approval_id))
        return Found(found[:limit], missing)

    async def _read(
        self, partition: int, execution_id: UUID | None, after: ApprovalInfo | None, limit: int
    ) -> Sequence[ApprovalInfo]:
        rows = await self._database.call(
            functions.LIST_APPROVALS,
            partition_key=partition,
            namespace=self._namespace,
            execution_id=execution_id,
            after_at=None if after is None else after.created_at,
            after_id=None if after is None else after.approval_id,
            limit=limit,
        )
        return [_info(partition, row) for row in rows]


def _info(partition: int, row: Any) -> ApprovalInfo:
    given = zip(
        row["approvers"],
        row["decisions"],
        row["decided_at"],
        row["deciders"],
        row["comments"],
        strict=True,
    )
    answers = [
        ApprovalAnswer(approver, decision == "approved", at, by, read_comment(comment))
        for approver, decision, at, by, comment in given
        if decision is not None
    ]
    return ApprovalInfo(
        id=ExecutionId.of(partition, row["execution_id"]),
        approval_id=row["approval_id"],
        question=row["question"],
        details=None if row["details"] is None else json.loads(row["details"]),
        need=row["need_count"],
        deny=row["deny_count"],
        created_at=row["created_at"],
        is_open=row["is_open"],
        approvers=tuple(row["approvers"]),
        answers=tuple(sorted(answers, key=lambda one: (one.at, one.approver))),
    )
