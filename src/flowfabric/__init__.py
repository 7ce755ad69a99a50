"""Durable execution for Python on PostgreSQL."""

from __future__ import annotations

from flowfabric.app.app import App
from flowfabric.app.flow import Flow
from flowfabric.app.flow_run import FlowRun
from flowfabric.app.gathering import (
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
from flowfabric.core.ended import Ended, EndedError
from flowfabric.core.errors import (
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    FlowFabricError,
    InvalidInput,
    KeyReused,
    LeaseLost,
    NotFound,
    ResultTimeout,
    SchemaMismatch,
    StepFailed,
    Unavailable,
)
from flowfabric.core.flow import FlowState
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.policy import Exponential, Fixed, Retry
from flowfabric.core.states import Outcome, PublicState
from flowfabric.handlers import Context, current
from flowfabric.tasks import CallNext, provided

__all__ = [
    "App",
    "CallNext",
    "Context",
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
    "InvalidInput",
    "KeyReused",
    "LeaseLost",
    "Node",
    "NotFound",
    "Outcome",
    "PublicState",
    "ResultTimeout",
    "Retry",
    "Run",
    "SchemaMismatch",
    "StepFailed",
    "Task",
    "Unavailable",
    "all_of",
    "any_of",
    "current",
    "first",
    "first_of",
    "first_sync",
    "gather",
    "gather_sync",
    "provided",
    "quorum",
    "quorum_of",
    "quorum_of_sync",
]
