"""Operations on one execution, for an operator or for the worker that holds its lease."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from flowfabric.client.addresses import Scoped, address, lease_address, location
from flowfabric.client.cascades import Cascades
from flowfabric.client.outcomes import refusal
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.errors import ExecutionNotFound, InvalidInput, RetryExhausted
from flowfabric.core.execution import (
    CancelSource,
    Claimed,
    OperationAnswer,
    check_payload,
    check_words,
)
from flowfabric.core.ids import AnyId, ExecutionId
from flowfabric.core.states import BlockingReason, EventKind, PublicState
from flowfabric.core.step import check_step_name
from flowfabric.db import functions
from flowfabric.db.functions import Function
from flowfabric.db.session import Database

# How many times an operation is tried while other callers keep changing the execution.
_TRIES = 5

_ANSWERS = {
    "cancelled",
    "changed",
    "replayed",
    "promoted",
    "unblocked",
    "blocked",
    "resumed",
    "revoked",
    "already_satisfied",
    "already_applied",
}


class ExecutionOperations(Scoped):
    """Operations on one execution, in any state.

    After a lost connection, the client sends the operation again. If this could have a second
    effect, the operation applies to one version of the execution only: `if_version` or, if that is
    None, the version that the client read before the first send.
    """

    def __init__(self, database: Database, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._cascades = Cascades(database)

    async def cancel(
        self,
        id: AnyId,
        *,
        reason: str | None = None,
        source: str = CancelSource.OPERATOR_OVERRIDE,
        actor: str | None = None,
        claimed: Claimed | None = None,
        if_version: int | None = None,
    ) -> OperationAnswer:
        """Cancel an execution. If the execution is cancelled already, nothing changes.

        `source` says who cancels. An operator needs no lease. The holder of the lease must pass it
        as `claimed`. Any other source must pass `claimed` if the execution is active. If
        `if_version` is given, an unfinished execution with another version stays unchanged.
        """
        id = await self._execution(id)
        check_words(reason=reason, actor=actor)
        rows = await self._database.call(
            functions.CANCEL_EXECUTION,
            **address(id, self._namespace),
            reason=reason,
            source=str(source),
            actor=actor,
            lease_id=claimed.lease_id if claimed else None,
            epoch=claimed.epoch if claimed else None,
            attempt_id=claimed.attempt_id if claimed else None,
            if_version=if_version,
        )
        answer = read_answer(id, rows[0])
        if answer.detail.get("wakes_pending"):
            await self._cascades.resolve(id.partition_key)
            answer = replace(answer, detail={})
        return answer

    async def change_priority(
        self,
        id: AnyId,
        priority: int,
        *,
        reason: str | None = None,
        actor: str | None = None,
        if_version: int | None = None,
    ) -> OperationAnswer:
        """Change the priority of a runnable execution.

        A value below 0 becomes 0, and a value above 9000 becomes 9000.
        """
        id = await self._execution(id)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidInput(field="priority", problem="must be a whole number")
        check_words(reason=reason, actor=actor)
        priority = min(max(priority, 0), 9000)
        return await apply_once(
            self._database,
            self._namespace,
            functions.CHANGE_PRIORITY,
            id,
            (EventKind.PRIORITY_CHANGED,),
            if_version=if_version,
            actor=actor,
            wrote={"new_priority": priority, "reason": reason},
            priority=priority,
            reason=reason,
        )

    async def replay(
        self,
        id: AnyId,
        *,
        reason: str | None = None,
        actor: str | None = None,
        from_step: str | None = None,
        from_occurrence: int = 0,
        fresh: bool = False,
        payload: bytes | None = None,
        if_version: int | None = None,
    ) -> OperationAnswer:
        """Run an ended execution again, in a new attempt. Its history stays.

        By default the recorded steps stay and are not run again. If `from_step` is given, that step
        and every step started after it are deleted. If `fresh` is true, all steps are deleted. With
        one of these two options, the call also accepts a held execution, which then continues.

        `payload` replaces the arguments of the execution. The event of the replay records this.
        """
        id = await self._execution(id)
        if from_step is not None:
            check_step_name(from_step, field="from_step")
        check_words(reason=reason, actor=actor)
        if payload is not None:
            check_payload(payload)
        if isinstance(from_occurrence, bool) or not isinstance(from_occurrence, int):
            raise InvalidInput(field="from_occurrence", problem="must be a whole number, 0 or more")
        return await apply_once(
            self._database,
            self._namespace,
            functions.REPLAY_EXECUTION,
            id,
            (EventKind.REPLAYED, EventKind.UNBLOCKED),
            if_version=if_version,
            actor=actor,
            wrote={
                "reason": reason,
                "from_step": from_step,
                "from_occurrence": None if from_step is None else from_occurrence,
                "fresh": True if fresh else None,
                "input": None if payload is None else "edited",
            },
            reason=reason,
            from_step=from_step,
            from_occurrence=from_occurrence,
            fresh=bool(fresh),
            payload=payload,
        )

    async def retry(
        self,
        id: AnyId,
        *,
        reason: str | None = None,
        actor: str | None = None,
        if_version: int | None = None,
    ) -> OperationAnswer:
        """Make an execution run now.

        An ended execution is replayed. A delayed execution is promoted. An execution that is held,
        paused, or blocked by a budget, a quota or a missing worker is unblocked.
        """
        id = await self._execution(id)
        check_words(reason=reason, actor=actor)
        return await apply_once(
            self._database,
            self._namespace,
            functions.RETRY_EXECUTION,
            id,
            (EventKind.REPLAYED, EventKind.PROMOTED, EventKind.UNBLOCKED),
            if_version=if_version,
            actor=actor,
            wrote={"reason": reason},
            reason=reason,
        )

    async def block_for_admission(
        self,
        id: AnyId,
        blocking_reason: BlockingReason | str,
        *,
        detail: str | None = None,
        actor: str | None = None,
    ) -> OperationAnswer:
        """Block a waiting execution, so that no worker claims it. `blocking_reason` says why."""
        id = await self._execution(id)
        check_words(detail=detail, actor=actor)
        rows = await self._database.call(
            functions.BLOCK_EXECUTION_FOR_ADMISSION,
            **address(id, self._namespace),
            blocking_reason=str(blocking_reason),
            detail=detail,
            actor=actor,
        )
        return read_answer(id, rows[0])

    async def unblock(
        self,
        id: AnyId,
        *,
        expected_reason: BlockingReason | str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        if_version: int | None = None,
    ) -> OperationAnswer:
        """Unblock an execution if it is blocked for the expected reason.

        If `expected_reason` is None, unblock it whatever the reason is.
        """
        id = await self._execution(id)
        check_words(reason=reason, actor=actor)
        if actor is None:
            # Without an actor there is no event and no new version. A repeated call finds nothing
            # to unblock.
            rows = await self._database.call(
                functions.UNBLOCK_EXECUTION,
                **address(id, self._namespace),
                expected_reason=None if expected_reason is None else str(expected_reason),
                reason=reason,
                actor=None,
                if_version=if_version,
            )
            return read_answer(id, rows[0])
        return await apply_once(
            self._database,
            self._namespace,
            functions.UNBLOCK_EXECUTION,
            id,
            (EventKind.UNBLOCKED,),
            if_version=if_version,
            actor=actor,
            wrote={"reason": reason},
            expected_reason=None if expected_reason is None else str(expected_reason),
            reason=reason,
        )

    async def promote_blocked_to_eligible(self, id: AnyId) -> OperationAnswer:
        """Unblock a flow member that is blocked although its dependencies are satisfied."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.PROMOTE_BLOCKED_TO_ELIGIBLE, **address(id, self._namespace)
        )
        return read_answer(id, rows[0])

    async def report_progress(
        self, claimed: Claimed, percent: int | None = None, message: str | None = None
    ) -> None:
        """Report the progress of a running execution. None leaves a value unchanged."""
        if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int)):
            raise InvalidInput(field="percent", problem="must be a whole number from 0 to 100")
        if percent is not None and not 0 <= percent <= 100:
            raise InvalidInput(field="percent", problem=f"is {percent}; must be from 0 to 100")
        await self._fenced(
            functions.REPORT_PROGRESS, claimed, done="reported", percent=percent, message=message
        )

    async def delay(
        self,
        claimed: Claimed,
        delay: timedelta | None = None,
        *,
        until: datetime | None = None,
    ) -> datetime | None:
        """Give back a running execution, delayed by `delay` or until `until`.

        After the delay, the next claim continues the same attempt. Return the time at which the
        delay is over.
        """
        if until is not None and until.tzinfo is None:
            raise InvalidInput(field="until", problem="must be a datetime with a time zone")
        row = await self._delay(claimed, delay, until)
        found: datetime | None = row["delayed_until"]
        return found

    async def wait_for_newer_code(self, claimed: Claimed, step: str) -> bool:
        """Give back a running execution, so that a worker with newer code can claim it.

        Call this if the code of this worker does not know the recorded step `step`. The execution
        is delayed for some seconds.

        If workers have delayed the execution in this way for 10 minutes, and no live worker has
        newer code, return False and keep the lease.
        """
        row = await self._delay(claimed, newer_step=step)
        return bool(row["outcome"] == "delayed")

    async def _delay(
        self,
        claimed: Claimed,
        delay: timedelta | None = None,
        until: datetime | None = None,
        newer_step: str | None = None,
    ) -> Any:
        return await self._fenced(
            functions.DELAY_EXECUTION,
            claimed,
            done=("delayed", "no_newer_code"),
            delay=delay,
            delayed_until=until,
            newer_step=newer_step,
        )

    async def wait_children(self, claimed: Claimed) -> None:
        """Give back a running execution that must wait for its dependencies.

        The call itself does not wait. When the dependencies are satisfied, the next claim continues
        the same attempt.
        """
        await self._fenced(functions.WAIT_CHILDREN, claimed, done="waiting")

    async def wait_for_runs(
        self, claimed: Claimed, targets: Sequence[ExecutionId], k: int | None = None
    ) -> int:
        """Give back a running execution that must wait for other executions.

        The execution is not claimed until `k` of the executions in `targets` have ended (default:
        all of them). The next claim then continues the same attempt. The call itself does not wait.
        It returns the number of targets that have not ended.
        """
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
            raise InvalidInput(field="k", problem="must be a whole number, 1 or more")
        uuids = []
        for target in targets:
            partition, uuid = location(target)
            if partition != claimed.partition_key:
                raise InvalidInput(
                    field="targets", problem=f"{target} is in another partition than {claimed.id}"
                )
            uuids.append(uuid)
        row = await self._fenced(
            functions.WAIT_FOR_RUNS, claimed, done="waiting", targets=uuids, k=k
        )
        found: int = row["open"]
        return found

    async def hold(self, claimed: Claimed, reason: str, *, step: str | None = None) -> None:
        """Hold a running execution until an operator decides what follows.

        The operator can continue the execution with `retry`, replay it from a step, or cancel it.
        """
        await self._fenced(functions.HOLD_EXECUTION, claimed, done="held", reason=reason, step=step)

    async def continue_as(
        self, claimed: Claimed, payload: bytes | None, *, encoding: str | None = None
    ) -> int:
        """Begin the next generation of a running execution: new arguments and an empty journal.

        The call gives the execution back; the next claim runs the new generation. Return the number
        of the new generation.
        """
        row = await self._fenced(
            functions.CONTINUE_EXECUTION,
            claimed,
            done="continued",
            payload=payload,
            payload_encoding=encoding,
        )
        found: int = row["generation"]
        return found

    async def expire(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Expire executions whose deadline has passed, and end attempts whose timeout has passed.

        Return how many executions were changed, and the time until the next call.
        """
        return await handle_everywhere(
            self._database, functions.EXPIRE_EXECUTIONS, Due.TIMER, partition=partition, limit=limit
        )

    async def resolve_wakes(
        self, *, partition: int | None = None, limit: int = 100
    ) -> tuple[int, timedelta | None]:
        """Propagate pending ends, for example the ends that a dead process has left pending.

        Return how many ends were propagated, and the time until the next call.
        """
        return await self._cascades.resolve_once(partition, limit)

    async def cancel_siblings(
        self, *, partition: int | None = None, limit: int = 100
    ) -> tuple[int, timedelta | None]:
        """Cancel siblings that a decided edge group no longer needs.

        Each group has a list of the siblings to cancel. Return how many siblings were taken off
        these lists, and the time until the next call.
        """
        return await self._cascades.cancel_siblings_once(partition, limit)

    async def reconcile_siblings(
        self, *, partition: int | None = None, limit: int = 50
    ) -> tuple[int, timedelta | None]:
        """Clean up decided edge groups. Each group has a list of the siblings to cancel.

        If all siblings on a list have ended, the list is emptied. Return how many lists were
        emptied, and the time until the next call.
        """
        return await handle_everywhere(
            self._database,
            functions.RECONCILE_SIBLINGS,
            Due.SIBLING,
            partition=partition,
            limit=limit,
        )

    async def _fenced(
        self,
        operation: Function,
        claimed: Claimed,
        *,
        done: str | Sequence[str],
        **arguments: Any,
    ) -> Any:
        where = lease_address(claimed, self._namespace)
        row = (await self._database.call(operation, **where, **arguments))[0]
        if row["outcome"] not in ((done,) if isinstance(done, str) else done):
            raise refusal(row["outcome"], row["detail"], id=str(claimed.id))
        return row


async def apply_once(
    database: Database,
    namespace: str | None,
    operation: Function,
    id: ExecutionId,
    kinds: tuple[EventKind, ...],
    *,
    if_version: int | None,
    actor: str | None,
    wrote: Mapping[str, object],
    **arguments: Any,
) -> OperationAnswer:
    """Apply an operation to one version of an execution, so that sending it twice has one effect.

    If `if_version` is None, the call reads the current version, and sends the operation for this
    version. If the execution has changed before the operation arrives, the call reads the new
    version and tries again.

    The call does not try again if an earlier send made the change, and only its answer was lost.
    Then the event of the change has one of `kinds` and the actor `actor`, and its details contain
    `wrote`.
    """
    where = address(id, namespace)

    async def send(version: int) -> OperationAnswer:
        rows = await database.call(operation, **where, **arguments, actor=actor, if_version=version)
        return read_answer(id, rows[0])

    if if_version is not None:
        return await send(if_version)
    for _ in range(_TRIES):
        rows = await database.call(functions.READ_VERSION, **where)
        if not rows:
            raise ExecutionNotFound(id=str(id))
        version: int = rows[0]["version"]
        answer = await send(version)
        if answer.outcome != "already_applied":
            return answer
        rows = await database.call(functions.READ_EVENT, **where, version=version + 1)
        if rows and _is_ours(rows[0], kinds, actor, wrote):
            return answer
    raise RetryExhausted(
        f"{id} changed {_TRIES} times during this call; the call had no effect, try again later.",
        operation=operation.name,
    )


def read_answer(id: ExecutionId, row: Any) -> OperationAnswer:
    """Return the answer of an operation on one execution. Raise an error if it was refused."""
    if row["outcome"] not in _ANSWERS:
        raise refusal(row["outcome"], row["detail"], id=str(id))
    return OperationAnswer(
        id=id,
        outcome=row["outcome"],
        public_state=PublicState(row["public_state"]),
        version=row["version"],
        detail=json.loads(row["detail"]) if row["detail"] else {},
    )


def _is_ours(
    row: Any, kinds: tuple[EventKind, ...], actor: str | None, wrote: Mapping[str, object]
) -> bool:
    detail = json.loads(row["detail"]) if row["detail"] else {}
    return (
        row["kind"] in kinds
        and row["actor"] == actor
        and all(detail.get(name) == value for name, value in wrote.items())
    )
