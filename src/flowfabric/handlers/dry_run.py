"""Runs a handler against its journal up to its first new step. Runs no step and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowfabric.core.execution import Submitted
from flowfabric.handlers.durable_run import DurableRun
from flowfabric.handlers.handler_run import HandlerRun

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric
    from flowfabric.core.execution import Claimed, Submission
    from flowfabric.core.states import StepKind
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
