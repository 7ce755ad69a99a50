"""Durable execution for Python on PostgreSQL."""

from __future__ import annotations

from flowfabric.app.app import App
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
    Unavailable,
)
from flowfabric.core.ids import ExecutionId
from flowfabric.core.policy import Exponential, Fixed, Retry
from flowfabric.core.states import PublicState
from flowfabric.worker.context import Context, current
from flowfabric.worker.middleware import CallNext
from flowfabric.worker.providers import provided

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
    "FlowFabric",
    "FlowFabricError",
    "InvalidInput",
    "KeyReused",
    "LeaseLost",
    "NotFound",
    "PublicState",
    "ResultTimeout",
    "Retry",
    "Run",
    "SchemaMismatch",
    "StepFailed",
    "Task",
    "Unavailable",
    "current",
    "provided",
]
