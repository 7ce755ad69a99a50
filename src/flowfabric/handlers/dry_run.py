"""Runs a handler against its journal, up to its first new step.

Such a dry run calls no function of a step and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowfabric.core.execution import Submitted
from flowfabric.handlers.durable_run import DurableRun
from flowfabric.handlers.handler_run import HandlerRun
from flowfabric.handlers.run_frames import RunFrames

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric
    from flowfabric.core.execution import Claimed, Submission
    from flowfabric.core.stream import OutgoingFrame
    from flowfabric.handlers.journal import Entry


@dataclass(frozen=True, slots=True)
class ReachedNewStep:
    """Stops a dry run, because the handler has reached an operation that is not recorded."""

    name: str

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        """Do nothing, because a dry run does not pause its execution."""


class NoFrames(RunFrames):
    """Accepts all frames of a handler, but sends none of them."""

    def put_nowait(self, frame: OutgoingFrame) -> bool:
        return True

    def put_soon(self, frame: OutgoingFrame) -> bool:
        return True


class DryDurableRun(DurableRun):
    """The durable part of a dry run. It stops the handler before an unrecorded operation."""

    frames_class = NoFrames

    def _begin_anything_new(self, name: str) -> None:
        self.pause_with(ReachedNewStep(name))
        raise self.interruption()

    async def _decide_patch(self, entry: Entry, value: bytes) -> bytes:
        """Return the answer that a worker would record."""
        return value

    async def report_progress(self, percent: int | None, message: str | None) -> None:
        """Report nothing."""

    async def report_usage(self, usage: Mapping[str, int], dedup_key: str) -> str:
        """Report nothing."""
        return "ok"

    async def _store_child(self, submission: Submission) -> Submitted:
        id = submission.id
        if id is None or await self._worker.client.executions.state(id) is None:
            self._begin_anything_new(f"child {submission.route.task}")
        return Submitted(id, is_duplicate=True)


class DryRun(HandlerRun):
    """A run of a handler without a lease, which stops at the first new step."""

    __slots__ = ()

    durable_class = DryDurableRun
