"""The public names, on purpose: whoever changes this list changes the API."""

from __future__ import annotations

import flowfabric

PUBLIC = [
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


CONTEXT = [
    "approval",
    "approval_sync",
    "attempt",
    "cancelled",
    "continue_as",
    "continue_as_sync",
    "deprecate_patch",
    "deprecate_patch_sync",
    "epoch",
    "execution_id",
    "flow",
    "generation",
    "lane",
    "now",
    "now_sync",
    "patched",
    "patched_sync",
    "progress",
    "progress_sync",
    "random",
    "scheduled_at",
    "scheduled_at_sync",
    "signal",
    "signals",
    "signals_sync",
    "sleep",
    "sleep_sync",
    "sleep_until",
    "sleep_until_sync",
    "step",
    "step_sync",
    "stream",
    "submit",
    "submit_sync",
    "task",
    "transaction",
    "transaction_sync",
    "usage",
    "usage_sync",
    "wait_for",
    "wait_for_signal",
    "wait_for_signal_sync",
    "wait_for_sync",
    "waitpoint",
    "waitpoint_sync",
]


def test_a_context_shows_only_what_a_handler_may_use():
    assert [name for name in dir(flowfabric.Context) if not name.startswith("_")] == CONTEXT


def test_the_names_are_these():
    assert flowfabric.__all__ == PUBLIC


def test_they_are_sorted_and_there():
    assert sorted(flowfabric.__all__) == flowfabric.__all__
    for name in flowfabric.__all__:
        assert getattr(flowfabric, name) is not None


def test_they_say_what_they_are():
    for name in flowfabric.__all__:
        assert (getattr(flowfabric, name).__doc__ or "").strip(), name


def test_nothing_else_looks_public():
    """What is reachable beside them are the packages themselves."""
    # Under pytest the module has names such as @py_builtins, which nobody can write.
    names = {name for name in vars(flowfabric) if name.isidentifier()}
    loose = {name for name in names if not name.startswith("_")} - set(PUBLIC)
    packages = {
        "annotations",
        "app",
        "cli",
        "client",
        "config",
        "core",
        "dashboard",
        "db",
        "doctor",
        "drawing",
        "embedded",
        "handlers",
        "reconcilers",
        "server",
        "tasks",
        "telemetry",
        "testing",
        "tracing",
        "worker",
    }
    assert loose <= packages
