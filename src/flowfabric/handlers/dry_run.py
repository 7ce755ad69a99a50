"""Runs a handler against its journal up to its first new step. Runs no step and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowfabric.core.execution import Submitted
from flowfabric.core.states import StepKind
from flowfabric.handlers.durable_run import DurableRun, OnceCall
from flowfabric.handlers.handler_run import HandlerRun
from flowfabric.handlers.steps import RESERVED_PREFIX

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric
    from flowfabric.core.execution import Claimed, Submission
    from flowfabric.core.step import StepRecord
    from flowfabric.handlers.journal import Entry


@dataclass(frozen=True, slots=True)
class ReachedNewStep:
    """The handler has reached something that no earlier run has recorded."""

    name: str

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        """Do nothing: a dry run is never settled."""


class DryDurableRun(DurableRun):
    """A durable run that stops where it would do something new."""

    async def begin_step(self, name: str, kind: StepKind, *, is_own: bool) -> Entry:
        entry = await super().begin_step(name, kind, is_own=is_own)
        if entry.record is None:
            raise self._stop(name)
        return entry

    async def record(
        self, entry: Entry, *, kind: StepKind | None = None, **facts: object
    ) -> StepRecord:
        raise self._stop(entry.name)

    async def is_patched(self, name: str, *, is_own: bool) -> bool:
        journal, entry = await self._begin_patch(name, is_own)
        if entry.record is None:
            return not journal.is_replaying
        return entry.record.value == b"true"

    async def once(
        self, name: str, work: Callable[[OnceCall], Awaitable[Any]], *, is_own: bool
    ) -> Any:
        step = f"{RESERVED_PREFIX}{name}"
        entry = await self.begin_step(step, StepKind.STEP, is_own=is_own)
        recorded = json.loads((entry.record and entry.record.value) or b"{}")
        if recorded.get("replay_count") != self._claimed.replay_count:
            # A replay decides anew.
            raise self._stop(step)
        call = OnceCall(self._claimed, name, entry.occurrence)
        call.is_replayed, call.value = True, recorded.get("value")
        return await work(call)

    async def report_progress(self, percent: int | None, message: str | None) -> None:
        """Report nothing."""

    async def _store_child(self, submission: Submission) -> Submitted:
        id = submission.id
        if id is None or await self._worker.client.executions.state(id) is None:
            raise self._stop(f"child {submission.route.task}")
        return Submitted(id, is_duplicate=True)

    def _stop(self, name: str) -> BaseException:
        self.pause_with(ReachedNewStep(name))
        return self.interruption()


class DryRun(HandlerRun):
    """A run of a handler that holds no lease."""

    __slots__ = ()

    durable_class = DryDurableRun
