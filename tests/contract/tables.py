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
    "stream",
    "stream_chunk",
    "stream_summary",
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
    "gate_ticket",
    "minute",
    "minute_position",
    "line",
    "fair_key",
    "fair_lane",
}
# Tables that stay on the coordinator of a cluster.
COORDINATOR = {"worker", "worker_event"}
# Small tables that exist whole on every node, and what the migration itself keeps.
ON_EVERY_NODE = {
    "hmac_key",
    "signal_schema",
    "lane",
    "route",
    "transition",
    "meta",
    "schema_step",
    "schedule",
    "schedule_app",
    "hook",
    "task",
    "namespace_grant",
    "api_token",
    "audit",
    "quota",
    "quota_change",
    "gate_share",
    "budget",
    "budget_dimension",
    "budget_ledger",
    "budget_report",
    "subscription",
}
GLOBAL = COORDINATOR | ON_EVERY_NODE

# What looks into all partitions at once: over the table that has a row for each.
ACROSS = {"balance_gates", "find_claim", "find_work", "find_due", "raise_partitions"}
