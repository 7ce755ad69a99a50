"""Durable execution for Python on PostgreSQL."""

from __future__ import annotations

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.app.flow import Flow
    from flowfabric.app.flow_run import FlowRun
    from flowfabric.app.gather import (
        first,
        first_sync,
        gather,
        gather_sync,
        quorum_of,
        quorum_of_sync,
    )
    from flowfabric.app.nodes import Node, all_of, any_of, first_of, quorum
    from flowfabric.app.run import Run
    from flowfabric.app.task import Task
    from flowfabric.client import FlowFabric
    from flowfabric.client.consumer import SubscribedEvent, Subscription
    from flowfabric.core.ended_execution import Ended, EndedError
    from flowfabric.core.errors import (
        BudgetExceeded,
        CursorExpired,
        ExecutionCancelled,
        ExecutionExpired,
        ExecutionFailed,
        ExecutionSkipped,
        FlowFabricError,
        InvalidInput,
        KeyReused,
        LeaseLost,
        LimitReached,
        NotFound,
        ResultTimeout,
        SchemaMismatch,
        StepFailed,
        SubscriptionLost,
        TooManySteps,
        Unavailable,
        WaitTimeout,
    )
    from flowfabric.core.flow import FlowState
    from flowfabric.core.ids import ExecutionId, FlowId
    from flowfabric.core.limit import Budget, Limit
    from flowfabric.core.policy import Exponential, Fixed, Retry, StreamPolicy
    from flowfabric.core.retry_errors import GiveUp, RetryAfter
    from flowfabric.core.signal import ApprovalAnswer
    from flowfabric.core.states import Outcome, PublicState
    from flowfabric.core.stream import Frame, Rewind, Truncated
    from flowfabric.handlers import (
        Approval,
        ApprovalRequest,
        Context,
        answer,
        at_least,
        current,
        every,
        signal,
    )
    from flowfabric.tasks import CallNext, provided

__all__ = [
    "App",
    "Approval",
    "ApprovalAnswer",
    "ApprovalRequest",
    "Budget",
    "BudgetExceeded",
    "CallNext",
    "Context",
    "CursorExpired",
    "Ended",
    "EndedError",
    "ExecutionCancelled",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionId",
    "ExecutionSkipped",
    "Exponential",
    "Fixed",
    "Flow",
    "FlowFabric",
    "FlowFabricError",
    "FlowId",
    "FlowRun",
    "FlowState",
    "Frame",
    "GiveUp",
    "InvalidInput",
    "KeyReused",
    "LeaseLost",
    "Limit",
    "LimitReached",
    "Node",
    "NotFound",
    "Outcome",
    "PublicState",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Rewind",
    "Run",
    "SchemaMismatch",
    "StepFailed",
    "StreamPolicy",
    "SubscribedEvent",
    "Subscription",
    "SubscriptionLost",
    "Task",
    "TooManySteps",
    "Truncated",
    "Unavailable",
    "WaitTimeout",
    "all_of",
    "answer",
    "any_of",
    "at_least",
    "current",
    "every",
    "first",
    "first_of",
    "first_sync",
    "gather",
    "gather_sync",
    "provided",
    "quorum",
    "quorum_of",
    "quorum_of_sync",
    "signal",
]

# The module of each public name. A name is imported at first use, so that commands start fast.
_MODULES = {
    "app.app": "App",
    "app.flow": "Flow",
    "app.flow_run": "FlowRun",
    "app.gather": "first first_sync gather gather_sync quorum_of quorum_of_sync",
    "app.nodes": "Node all_of any_of first_of quorum",
    "app.run": "Run",
    "app.task": "Task",
    "client": "FlowFabric",
    "client.consumer": "SubscribedEvent Subscription",
    "core.ended_execution": "Ended EndedError",
    "core.errors": "BudgetExceeded CursorExpired ExecutionCancelled ExecutionExpired "
    "ExecutionFailed ExecutionSkipped FlowFabricError InvalidInput KeyReused LeaseLost "
    "LimitReached NotFound ResultTimeout SchemaMismatch StepFailed SubscriptionLost TooManySteps "
    "Unavailable WaitTimeout",
    "core.flow": "FlowState",
    "core.ids": "ExecutionId FlowId",
    "core.limit": "Budget Limit",
    "core.policy": "Exponential Fixed Retry StreamPolicy",
    "core.retry_errors": "GiveUp RetryAfter",
    "core.signal": "ApprovalAnswer",
    "core.states": "Outcome PublicState",
    "core.stream": "Frame Rewind Truncated",
    "handlers": "Approval ApprovalRequest Context answer at_least current every signal",
    "tasks": "CallNext provided",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
