"""The operations of the client, written down before they are sent and when they are answered.

Everything goes through the client as a user has it: calls in batches, repeated by themselves after
a lost connection. A process in the run does nothing that is not recorded here, except reconciling.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.client import FlowFabric
from flowfabric.core.execution import (
    CancelSource,
    Claimed,
    ExecutionInfo,
    FailAnswer,
    Failure,
    OperationAnswer,
    Submission,
    Submitted,
)
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import FailureClass

from .history import Recorder


class Verbs:
    """One client and its recorder."""

    def __init__(self, client: FlowFabric, recorder: Recorder) -> None:
        self.client = client
        self._recorder = recorder
        self._names = 0

    @property
    def process(self) -> str:
        """The name of the process in its history."""
        return self._recorder.process

    def name(self) -> str:
        """A name for one operation, which its event will carry."""
        self._names += 1
        return f"{self._recorder.process}/{self._names}"

    async def submit(self, submission: Submission) -> Submitted:
        return await self._recorder.record(
            "submit",
            self.client.executions.submit(submission),
            lambda given: {"id": given.id, "is_duplicate": given.is_duplicate},
            id=submission.id,
            key=submission.key,
            payload=submission.payload.decode(),
            is_trimmed="retention_ms" in (submission.policy or ""),
        )

    async def claim(
        self, claim_id: UUID, instance: str, limit: int, ttl: timedelta
    ) -> list[Claimed]:
        return await self._recorder.record(
            "claim",
            self.client.executions.claim(
                worker_id="chaos",
                worker_instance_id=instance,
                limit=limit,
                lease_ttl=ttl,
                claim_id=claim_id,
                patience=5.0,
            ),
            claimed,
            claim=str(claim_id),
        )

    async def renew(self, held: Sequence[Claimed], ttl: timedelta) -> None:
        await self._recorder.record(
            "renew",
            self.client.leases.renew(held, ttl),
            partial(renewed, held),
            items=[fence(one) for one in held],
        )

    async def progress(self, held: Claimed, percent: int) -> None:
        await self._recorder.record(
            "progress",
            self.client.executions.report_progress(held, percent),
            lambda _: {},
            **fence(held),
        )

    async def complete(self, held: Claimed, result: str) -> None:
        await self._recorder.record(
            "complete",
            self.client.executions.complete(held, result.encode()),
            lambda _: {},
            **fence(held),
            result=result,
        )

    async def fail(self, held: Claimed, kind: FailureClass) -> FailAnswer:
        return await self._recorder.record(
            "fail",
            self.client.executions.fail(held, Failure(kind, "chaos")),
            failed,
            **fence(held),
            kind=kind,
        )

    async def delay(self, held: Claimed, span: timedelta) -> None:
        await self._recorder.record(
            "delay", self.client.executions.delay(held, span), lambda _: {}, **fence(held)
        )

    async def release(self, held: Claimed) -> None:
        async def release() -> None:
            for error in (await self.client.leases.release([held])).values():
                raise error

        await self._recorder.record("release", release(), lambda _: {}, **fence(held))

    async def hold(self, held: Claimed) -> None:
        await self._recorder.record(
            "hold", self.client.executions.hold(held, "chaos"), lambda _: {}, **fence(held)
        )

    async def cancel_held(self, held: Claimed) -> None:
        name = self.name()
        await self._recorder.record(
            "cancel_held",
            self.client.executions.cancel(
                held.id, reason=name, source=CancelSource.LEASE_HOLDER, claimed=held
            ),
            operated,
            **fence(held),
            reason=name,
        )

    async def cancel(self, id: ExecutionId, if_version: int | None) -> OperationAnswer:
        name = self.name()
        return await self._recorder.record(
            "cancel",
            self.client.executions.cancel(
                id, reason=name, actor=self._recorder.process, if_version=if_version
            ),
            operated,
            id=id,
            reason=name,
            if_version=if_version,
        )

    async def revoke(self, id: ExecutionId, if_version: int | None) -> OperationAnswer:
        return await self._operate("revoke", self.client.leases.revoke, id, if_version)

    async def replay(self, id: ExecutionId, if_version: int | None) -> OperationAnswer:
        return await self._operate("replay", self.client.executions.replay, id, if_version)

    async def retry(self, id: ExecutionId, if_version: int | None) -> OperationAnswer:
        return await self._operate("retry", self.client.executions.retry, id, if_version)

    async def priority(
        self, id: ExecutionId, number: int, if_version: int | None
    ) -> OperationAnswer:
        async def change(id: ExecutionId, **options: Any) -> OperationAnswer:
            return await self.client.executions.change_priority(id, number, **options)

        return await self._operate("priority", change, id, if_version, priority=number)

    async def read(self, id: ExecutionId) -> ExecutionInfo | None:
        def answer(found: ExecutionInfo | None) -> dict[str, Any]:
            if found is None:
                return {"version": None}
            return {
                "version": found.version,
                "state": found.public_state,
                "epoch": found.epoch,
                "result": None if found.result is None else found.result.decode(),
            }

        return await self._recorder.record(
            "read", self.client.executions.describe(id), answer, id=id
        )

    async def _operate(
        self,
        op: str,
        operation: Callable[..., Awaitable[OperationAnswer]],
        id: ExecutionId,
        if_version: int | None,
        **args: Any,
    ) -> OperationAnswer:
        name = self.name()
        call = operation(id, reason=name, actor=self._recorder.process, if_version=if_version)
        return await self._recorder.record(
            op, call, operated, id=id, reason=name, if_version=if_version, **args
        )


# What is written down of fences and answers


def fence(held: Claimed) -> dict[str, Any]:
    return {"id": held.id, "lease": str(held.lease_id), "epoch": held.epoch}


def claimed(several: Sequence[Claimed]) -> dict[str, Any]:
    return {
        "items": [{**fence(one), "attempt": one.attempt, "kind": one.claim_kind} for one in several]
    }


def renewed(
    held: Sequence[Claimed], given: tuple[Iterable[Claimed], Iterable[Claimed]]
) -> dict[str, Any]:
    lost, busy = (set(map(id, several)) for several in given)
    return {
        "lost": [n for n, one in enumerate(held) if id(one) in lost],
        "busy": [n for n, one in enumerate(held) if id(one) in busy],
    }


def failed(given: FailAnswer) -> dict[str, Any]:
    return {"retries": given.will_retry, "next": given.next_attempt}


def operated(given: OperationAnswer) -> dict[str, Any]:
    return {
        "outcome": given.outcome,
        "version": given.version,
        "state": given.public_state,
        "why": given.detail.get("reason"),
    }
