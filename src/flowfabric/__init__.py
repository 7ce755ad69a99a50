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
    TooManySteps,
    Unavailable,
)
from flowfabric.core.flow import FlowState
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.policy import Exponential, Fixed, Retry
from flowfabric.core.states import PublicState
from flowfabric.handlers import Context, current
from flowfabric.tasks import CallNext, provided

__all__ = [
    "App",
    "CallNext",
    "Context",
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
    "PublicState",
    "ResultTimeout",
    "Retry",
    "Run",
    "SchemaMismatch",
    "StepFailed",
    "Task",
    "TooManySteps",
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
