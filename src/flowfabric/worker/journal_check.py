"""Checks today's code against the journals of unfinished executions. Writes nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from flowfabric.client import FlowFabric
from flowfabric.core.code_version import NO_VERSION, CodeVersion
from flowfabric.core.errors import ReadOnlyServer
from flowfabric.core.execution import Claimed, ExecutionFilter, ExecutionInfo
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState
from flowfabric.core.trace import facts_of
from flowfabric.handlers import (
    DryRun,
    HandlerPaused,
    PauseOnHold,
    WorkerServices,
    call_in_new_thread,
    context_of,
    current_run,
)
from flowfabric.tasks import UNFILLED_ENCODINGS, Inputs, TaskSpec, failure_of, fill_payload
from flowfabric.worker.lifespan import Lifespan

# How long one handler may take to reach its first new step.
HANDLER_SECONDS = 10.0
_UNFINISHED = tuple(state for state in PublicState if not state.is_terminal)
_NIL = UUID(int=0)


class Fit(StrEnum):
    """What a worker with today's code would do with an execution."""

    CONTINUES = "continues"
    HELD = "held"
    RESTARTS = "restarts"
    # The execution belongs to another code version: workers with that version continue it.
    OTHER_VERSION = "other_version"
    RAISES = "raises"
    # The handler did not reach its first new step.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class JournalVerdict:
    """Says whether the journal of an execution fits the code.

    If the journal does not fit, `step` and `problem` say where and why.
    """

    id: ExecutionId
    task: str
    fit: Fit
    step: str | None = None
    problem: str | None = None


class JournalCheck:
    """Runs handlers against their journals. Each handler stops at its first unrecorded step."""

    def __init__(
        self,
        client: FlowFabric,
        tasks: Mapping[str, TaskSpec],
        lifespan: Lifespan,
        code: CodeVersion = NO_VERSION,
    ) -> None:
        self._client = client
        self._code = code
        self._tasks = tasks
        self._lifespan = lifespan
        self._inputs = Inputs(client)
        self._loop = asyncio.get_running_loop()

    async def check_all(self) -> AsyncIterator[JournalVerdict]:
        """Check every unfinished execution of these tasks that has recorded a step."""
        wanted = ExecutionFilter(states=_UNFINISHED, tasks=list(self._tasks))
        cursor: str | None = None
        while True:
            page = await self._client.executions.list(wanted, cursor=cursor)
            for one in page.executions:
                info = await self._client.executions.describe(one.id)
                if info is not None and info.step_count and not info.public_state.is_terminal:
                    yield await self.check(info)
            if (cursor := page.cursor) is None:
                break

    async def check(self, info: ExecutionInfo) -> JournalVerdict:
        """Check one execution."""
        version = info.code_version
        if version is not None and version not in (self._code.name, *self._code.reads):
            problem = f"needs code version {version}: keep workers of that version until it ends"
            return JournalVerdict(info.id, info.task, Fit.OTHER_VERSION, problem=problem)
        run = DryRun(_as_claimed(info), self._tasks[info.task], self._services())
        run.task = self._loop.create_task(self._run(run))
        done, _ = await asyncio.wait([run.task], timeout=HANDLER_SECONDS)
        durable = run.durable
        pause = None if durable is None else durable.pause
        error: BaseException | None = None
        if not done:
            run.cancel()
            run.task.cancel()
        elif not run.task.cancelled():
            error = run.task.exception()
        verdict = functools.partial(JournalVerdict, info.id, info.task)
        if isinstance(pause, PauseOnHold):
            fit = Fit.RESTARTS if run.is_restarted_on_change else Fit.HELD
            return verdict(fit, pause.step, pause.problem)
        if not done:
            return verdict(
                Fit.UNKNOWN,
                problem=f"no new step within {HANDLER_SECONDS:g} s: the handler works outside its "
                "steps",
            )
        if pause is not None or error is None or isinstance(error, HandlerPaused):
            return verdict(Fit.CONTINUES)
        if isinstance(error, ReadOnlyServer):
            return verdict(Fit.UNKNOWN, problem="the handler writes outside its steps")
        facts = facts_of(failure_of(error).detail)
        return verdict(Fit.RAISES, problem=f"{facts['type']}: {facts['message']}")

    async def _run(self, run: DryRun) -> None:
        current_run.set(run)
        claimed, spec = run.claimed, run.spec
        payload = claimed.payload
        if claimed.payload_encoding in UNFILLED_ENCODINGS:
            payload = await fill_payload(claimed, spec, self._inputs)
        context = context_of(run)
        args, kwargs = spec.decode(payload, None if spec.context_name is None else context)
        await self._lifespan.extensions.call(
            spec,
            context,
            args,
            kwargs,
            shared=self._lifespan.shared,
            run_in_thread=functools.partial(self._run_in_thread, claimed),
        )
        await run.check_journal()

    async def _run_in_thread(self, claimed: Claimed, call: Callable[[], Any]) -> Any:
        return await call_in_new_thread(call, "the handler")

    def _services(self) -> WorkerServices:
        return WorkerServices(
            client=self._client,
            loop=self._loop,
            lease_ttl=timedelta(hours=1),
            code_version=None,
            run_in_thread=self._run_in_thread,
            on_pausing=lambda claimed: None,
            on_lease_lost=lambda claimed, error: None,
            on_blocking_wait=lambda claimed: None,
        )


def _as_claimed(info: ExecutionInfo) -> Claimed:
    """Return the execution as the next worker would claim it, with an invented lease."""
    now = datetime.now(UTC)
    return Claimed(
        execution_id=info.id.uuid,
        namespace=info.namespace,
        lane=info.lane,
        task=info.task,
        claim_kind="check",
        rank=0,
        order_at=info.created_at,
        # An epoch above 1 makes the run read the journal.
        epoch=info.epoch + 1,
        attempt=info.attempt,
        attempt_id=_NIL,
        attempt_type="",
        lease_expires_at=now + timedelta(hours=1),
        attempt_deadline_at=None,
        deadline_at=info.deadline_at,
        retry_count=info.retry_count,
        payload_encoding=info.payload_encoding,
        payload=info.payload,
        replay_count=info.replay_count,
        trace_context=None,
        crash_count=0,
        partition_key=info.id.partition_key,
        lease_id=_NIL,
        generation=info.generation,
    )
