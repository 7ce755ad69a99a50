"""The context of a running handler, and the journal that records its durable operations."""

from __future__ import annotations

from flowfabric.handlers.approvals import Approval, ApprovalRequest
from flowfabric.handlers.conditions import answer, at_least, every, signal
from flowfabric.handlers.context import Context, context_of, current, run_of
from flowfabric.handlers.dry_run import DryRun, ReachedNewStep
from flowfabric.handlers.durable_run import HandlerPaused, OnceCall, WorkerServices
from flowfabric.handlers.handler_run import HandlerRun, async_only, current_run
from flowfabric.handlers.loops import (
    call_and_await,
    call_for_future,
    call_in_new_thread,
    check_no_loop,
)
from flowfabric.handlers.signals import AwaitedSignal
from flowfabric.handlers.waits import (
    MAX_TARGETS,
    Pause,
    PauseForNewerCode,
    PauseForRuns,
    PauseOnHold,
    PauseToRestart,
)

__all__ = [
    "MAX_TARGETS",
    "Approval",
    "ApprovalRequest",
    "AwaitedSignal",
    "Context",
    "DryRun",
    "HandlerPaused",
    "HandlerRun",
    "OnceCall",
    "Pause",
    "PauseForNewerCode",
    "PauseForRuns",
    "PauseOnHold",
    "PauseToRestart",
    "ReachedNewStep",
    "WorkerServices",
    "answer",
    "async_only",
    "at_least",
    "call_and_await",
    "call_for_future",
    "call_in_new_thread",
    "check_no_loop",
    "context_of",
    "current",
    "current_run",
    "every",
    "run_of",
    "signal",
]
