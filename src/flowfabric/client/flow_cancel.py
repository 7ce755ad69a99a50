"""Cancel flows, and replay the failed members of flows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from flowfabric.client.addresses import Scoped, address, flow_address
from flowfabric.client.cascades import Cascades
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.errors import (
    FlowAlreadyTerminal,
    FlowCancelTimeout,
    FlowFabricError,
    FlowNotFound,
    InvalidInput,
    Refused,
    RetryExhausted,
)
from flowfabric.core.execution import check_words
from flowfabric.core.flow import (
    FlowCancellation,
    FlowCancelOutcome,
    FlowRetried,
    MembersCancelled,
)
from flowfabric.core.ids import AnyId, ExecutionId, FlowId
from flowfabric.core.states import FlowCancelPolicy, PublicState
from flowfabric.db import functions
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

# After this time a reconciler cancels the remaining members: the caller may have died.
GRACE = timedelta(seconds=30)
# How many members one call cancels.
_BATCH = 100
# How many members one query reads.
_PAGE = 500
# Pauses before locked members are tried again. After the last pause, a caller that waits tries
# again every 0.1 s.
_PAUSES = (0.005, 0.02, 0.05)
_PAUSE = 0.1
# Members that stay locked for this long are returned in `failed`.
_LOCKED_SECONDS = 2.0


class FlowCancelling(Scoped):
    """Operations that cancel a flow or replay its failed members. `Flows` inherits them."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._cascades = Cascades(database)
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait until the cancellations that run in the background have finished."""
        if self._ending:
            await asyncio.wait(self._ending)

    async def cancel(
        self,
        id: AnyId,
        *,
        cancel_policy: FlowCancelPolicy | str = FlowCancelPolicy.CANCEL_ALL,
        reason: str | None = None,
        actor: str | None = None,
        wait: timedelta | None = None,
        grace: timedelta = GRACE,
    ) -> FlowCancellation:
        """Cancel a flow. After that, no member can be added to the flow.

        The cancel policy `cancel_all` cancels all unfinished members. `cancel_pending` lets running
        members finish and cancels the others. With both policies, no member can start any more.
        `flow_only` cancels no member. While members are unfinished, a later call can use a stricter
        cancel policy. A flow whose members have all ended stays unchanged.

        If `wait` is None, the members are cancelled in the background. Otherwise the call waits
        until the cancelled members have ended. Under `cancel_pending` it also waits for the running
        members. If members are left after `wait`, the call raises FlowCancelTimeout. If for 2 s
        only locked members are left, the call returns these members in `failed`.

        If this process dies, a reconciler cancels the remaining members after `grace`.
        """
        id = await self._flow(id)
        if wait is not None and (not isinstance(wait, timedelta) or wait < timedelta()):
            raise InvalidInput(field="wait", problem="must be a timedelta, 0 or more")
        answer = await self._header(id, cancel_policy, reason, actor, grace)
        if answer.open_count == 0:
            return answer
        if wait is None:
            task = asyncio.create_task(self._end_behind(id))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            if answer.outcome is FlowCancelOutcome.CANCELLED:
                return replace(answer, outcome=FlowCancelOutcome.SCHEDULED)
            return answer
        locked = await self._end_members(id, wait)
        if locked:
            return replace(answer, outcome=FlowCancelOutcome.PARTIALLY_CANCELLED, failed=locked)
        return answer

    async def retry_failed(
        self, id: AnyId, *, reason: str | None = None, actor: str | None = None
    ) -> FlowRetried:
        """Replay the members that failed or expired, and the members that were skipped because of
        them.

        Members that could not be replayed are in `refused`, with their errors. Raises
        FlowAlreadyTerminal if a cancelled flow has members that failed or expired.
        """
        id = await self._flow(id)
        where = flow_address(id, self._namespace)
        check_words(reason=reason, actor=actor)
        if not await self._database.call(functions.DESCRIBE_FLOW, **where):
            raise FlowNotFound(id=str(id))
        retried = FlowRetried([], {})
        after: UUID | None = None
        states = [PublicState.FAILED, PublicState.EXPIRED]
        while rows := await self._database.call(
            functions.LIST_FLOW_MEMBERS, **where, after=after, limit=_PAGE, states=states
        ):
            for row in rows:
                member = ExecutionId.of(id.partition_key, row["execution_id"])
                try:
                    # If the version changed after the read, another caller has replayed the member.
                    await self._database.call(
                        functions.REPLAY_EXECUTION,
                        **address(member, self._namespace),
                        reason=reason,
                        actor=actor,
                        from_step=None,
                        from_occurrence=0,
                        fresh=False,
                        if_version=row["version"],
                        payload=None,
                    )
                except FlowAlreadyTerminal:
                    raise
                except (Refused, RetryExhausted) as error:
                    retried.refused[member] = error
                else:
                    retried.replayed.append(member)
            after = rows[-1]["execution_id"]
        return retried

    async def cancel_header(
        self,
        id: AnyId,
        *,
        cancel_policy: FlowCancelPolicy | str = FlowCancelPolicy.CANCEL_ALL,
        reason: str | None = None,
        actor: str | None = None,
        grace: timedelta = GRACE,
    ) -> FlowCancellation:
        """Cancel a flow and record which members to cancel, but do not cancel the members yet.

        Call `cancel_members` to cancel them.
        """
        id = await self._flow(id)
        answer = await self._header(id, cancel_policy, reason, actor, grace)
        if answer.open_count and answer.outcome is FlowCancelOutcome.CANCELLED:
            return replace(answer, outcome=FlowCancelOutcome.SCHEDULED)
        return answer

    async def cancel_members(self, id: AnyId, *, limit: int = 100) -> MembersCancelled:
        """Cancel up to `limit` members on the backlog of a cancelled flow."""
        id = await self._flow(id)
        row = (
            await self._database.call(
                functions.CANCEL_MEMBERS,
                **flow_address(id, self._namespace),
                limit=limit,
            )
        )[0]
        if row["wakes_pending"]:
            await self._cascades.resolve(id.partition_key)
        return MembersCancelled(
            row["handled"],
            row["remaining"],
            row["draining"],
            [ExecutionId.of(id.partition_key, one) for one in row["remaining_ids"]],
        )

    async def ack_cancel_member(self, id: AnyId, member: AnyId) -> int:
        """Take an ended member off the backlog of its flow. Return how many members are left."""
        id = await self._flow(id)
        member = await self._execution(member)
        where = flow_address(id, self._namespace)
        if member.partition_key != id.partition_key:
            raise InvalidInput(field="member", problem=f"{member!r} is not a member of {id}")
        row = (
            await self._database.call(
                functions.ACK_CANCEL_MEMBER, **where, execution_id=member.uuid
            )
        )[0]
        remaining: int = row["remaining"]
        return remaining

    async def cancel_backlog(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Cancel the members on the backlogs of cancelled flows whose grace is over.

        Return how many members were taken off the backlogs, and the time until the next call.
        """
        return await handle_everywhere(
            self._database,
            functions.CANCEL_BACKLOG,
            Due.FLOW_CANCEL,
            partition=partition,
            limit=limit,
        )

    async def _header(
        self,
        id: FlowId,
        cancel_policy: FlowCancelPolicy | str,
        reason: str | None,
        actor: str | None,
        grace: timedelta,
    ) -> FlowCancellation:
        check_words(reason=reason, actor=actor)
        if not isinstance(grace, timedelta):
            raise InvalidInput(field="grace", problem="must be a timedelta")
        chosen = _cancel_policy(cancel_policy)
        row = (
            await self._database.call(
                functions.CANCEL_FLOW_HEADER,
                **flow_address(id, self._namespace),
                policy=chosen.value,
                reason=reason,
                actor=actor,
                grace=grace,
                call_id=uuid4(),
            )
        )[0]
        return _read(id, row)

    async def _end_members(self, id: FlowId, wait: timedelta) -> list[ExecutionId]:
        """Cancel the members of a cancelled flow, and wait until they have ended.

        If for 2 s only locked members are left, return these members; otherwise return []. Raises
        FlowCancelTimeout if members are left after `wait`.
        """
        started = moved = monotonic()
        pauses = iter(_PAUSES)
        while True:
            step = await self.cancel_members(id, limit=_BATCH)
            if step.remaining == step.draining == 0:
                return []
            now = monotonic()
            if step.handled:
                moved, pauses = now, iter(_PAUSES)
            elif step.locked and not step.draining and now - moved >= _LOCKED_SECONDS:
                return step.locked
            if now - started >= wait.total_seconds():
                raise FlowCancelTimeout(
                    f"{step.remaining + step.draining} members of {id} have not ended within "
                    f"{wait.total_seconds():g} s; their cancellation continues.",
                    id=str(id),
                    remaining=step.remaining,
                    draining=step.draining,
                )
            if not step.handled:
                left = wait.total_seconds() - (now - started)
                await asyncio.sleep(min(next(pauses, _PAUSE), left))

    async def _end_behind(self, id: FlowId) -> None:
        pauses = iter(_PAUSES)
        try:
            while (step := await self.cancel_members(id, limit=_BATCH)).remaining:
                if step.handled:
                    continue
                pause = next(pauses, None)
                if pause is None:
                    return
                await asyncio.sleep(pause)
        except FlowFabricError as error:
            # The flow itself is cancelled. A reconciler cancels the remaining members.
            ENGINE_LOGGER.debug("cancellation left to the reconciler: %s: %s", id, error)


def _cancel_policy(given: FlowCancelPolicy | str) -> FlowCancelPolicy:
    try:
        return FlowCancelPolicy(given)
    except ValueError:
        problem = "must be cancel_all, cancel_pending or flow_only"
        raise InvalidInput(field="cancel_policy", problem=problem) from None


def _read(id: FlowId, row: Any) -> FlowCancellation:
    return FlowCancellation(
        id=id,
        outcome=FlowCancelOutcome(row["outcome"]),
        cancel_policy=None if row["policy"] is None else FlowCancelPolicy(row["policy"]),
        reason=row["reason"],
        member_count=row["member_count"],
        open_count=row["open_count"],
        members=[ExecutionId.of(id.partition_key, one) for one in row["members"]],
        failed=[],
    )
