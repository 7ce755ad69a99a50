"""The tables by kind: those with a partition_key, and those that exist whole on every node."""

from __future__ import annotations

PARTITIONED = {
    "execution",
    "execution_body",
    "attempt",
    "event",
    "claim_slot",
    "idempotency_key",
    "grant",
    "event_trim",
    "event_generation",
    "trim_mark",
    "trim_position",
    "step",
    "run_wait",
    "signal",
    "signal_inbox",
    "suspension",
    "waitpoint",
    "approval",
    "flow",
    "edge",
    "edge_group",
    "kept_result",
    "cancel_backlog",
    "cancel_backlog_member",
    "partition",
    "gate",
    "gate_release",
    "gate_hold",
    "line",
    "fair_key",
    "fair_lane",
}
# Small tables that exist whole on every node, and what the migration itself keeps.
GLOBAL = {
    "hmac_key",
    "signal_schema",
    "lane",
    "route",
    "transition",
    "meta",
    "schema_step",
    "worker",
    "worker_event",
    "schedule",
    "schedule_app",
    "hook",
    "task",
    "namespace_grant",
    "quota",
    "quota_change",
    "budget",
    "budget_dimension",
    "budget_ledger",
    "budget_report",
    "subscription",
}

# What looks into all partitions at once: over the table that has a row for each.
ACROSS = {"find_work", "find_due", "raise_partitions"}
