"""The functions of the engine that a server offers over HTTP, and the scope that each one needs.

A caller over HTTP has one namespace. So each of these functions takes the namespace as an argument
or needs none. Functions that need a lease are not offered: workers over HTTP have their own paths,
with signed leases.
"""

from __future__ import annotations

from flowfabric.core.token import Scope
from flowfabric.db import functions
from flowfabric.db.functions import Statement

_BY_SCOPE: dict[Scope, tuple[Statement, ...]] = {
    Scope.READ: (
        functions.READ_PARTITIONS,
        functions.SERVER_TIME,
        functions.OPEN_CURSOR,
        functions.READ_EVENTS,
        functions.READ_RESULTS,
        functions.READ_STREAMS,
        functions.READ_SUMMARY,
        functions.READ_STATE,
        functions.READ_VERSION,
        functions.READ_CONTEXT,
        functions.READ_PROGRESS,
        functions.READ_EVENT,
        functions.READ_KEY,
        functions.READ_EXECUTION_INFO,
        functions.DESCRIBE_EXECUTION,
        functions.EXPLAIN_EXECUTION,
        functions.LIST_ATTEMPTS,
        functions.LIST_EVENTS,
        functions.LIST_STEPS,
        functions.LIST_EXECUTIONS,
        functions.COUNT_EXECUTIONS,
        functions.LIST_EXECUTION_IDS,
        functions.FIND_IDS,
        functions.LIST_EXPIRED_LEASES,
        functions.DESCRIBE_FLOW,
        functions.SUMMARISE_FLOW,
        functions.LIST_FLOWS,
        functions.LIST_EDGES,
        functions.DESCRIBE_EDGE,
        functions.LIST_FLOW_MEMBERS,
        functions.EVALUATE_FLOW_ELIGIBILITY,
        functions.READ_INPUTS,
        functions.LIST_APPROVALS,
        functions.LIST_PENDING_WAITPOINTS,
        functions.COUNT_WAITPOINTS,
        functions.LIST_SIGNALS,
        functions.READ_SIGNALS,
        functions.LIST_SUSPENDED,
        functions.LIST_WORKERS,
        functions.LIST_UNSERVED_ROUTES,
        functions.LIST_VERSIONS,
        functions.READ_TRAFFIC,
        functions.READ_MINUTES,
        functions.LIST_LANES,
        functions.LIST_TASKS,
        functions.DESCRIBE_TASK,
        functions.LIST_QUOTAS,
        functions.LIST_GATES,
        functions.GET_BUDGET_STATUS,
        functions.LIST_BUDGETS,
        functions.LIST_SCHEDULES,
        functions.LIST_SUBSCRIPTIONS,
        functions.READ_LAGS,
        functions.LIST_WEBHOOKS,
    ),
    Scope.SUBMIT: (
        functions.REGISTER_ROUTES,
        functions.REGISTER_GATES,
        functions.SUBMIT_EXECUTIONS,
        functions.SUBMIT_FLOW,
        functions.CREATE_FLOW,
        functions.ADD_EXECUTION_TO_FLOW,
        functions.STAGE_DEPENDENCY_EDGE,
        functions.APPLY_DEPENDENCY_TO_CHILD,
        functions.SET_EDGE_GROUP_POLICY,
        functions.SET_TAGS,
        functions.SET_FLOW_TAGS,
    ),
    Scope.SIGNAL: (functions.DELIVER_SIGNALS,),
    Scope.OPERATE: (
        functions.CANCEL_EXECUTION,
        functions.CHANGE_PRIORITY,
        functions.REPLAY_EXECUTION,
        functions.RETRY_EXECUTION,
        functions.RESUME_EXECUTION,
        functions.UNBLOCK_EXECUTION,
        functions.REVOKE_LEASE,
        functions.CANCEL_FLOW_HEADER,
        functions.CANCEL_MEMBERS,
        functions.ACK_CANCEL_MEMBER,
        functions.DELIVER_APPROVAL_SIGNAL,
        functions.READ_WAITPOINT_TOKEN,
        functions.SET_LANE,
        functions.SET_LANE_OPTIONS,
        functions.SET_SCHEDULE,
        functions.RUN_SCHEDULE,
        functions.FORGET_SCHEDULE,
        functions.DRAIN_WORKER,
        functions.MARK_WORKER_DEAD,
        functions.EXPIRE_WORKER_LEASES,
        functions.CREATE_QUOTA,
        functions.SET_QUOTA,
        functions.LIFT_QUOTA,
        functions.DELETE_QUOTA,
        functions.CREATE_BUDGET,
        functions.RAISE_BUDGET,
        functions.LIFT_BUDGET,
        functions.RESET_BUDGET,
        functions.RESET_SUBSCRIPTION,
        functions.REMOVE_SUBSCRIPTION,
        functions.ENABLE_WEBHOOK,
    ),
    Scope.ADMIN: (
        functions.LIST_API_TOKENS,
        functions.REVOKE_API_TOKEN,
        functions.LIST_AUDIT,
    ),
}

OFFERED: dict[str, tuple[Scope, Statement]] = {
    statement.name: (scope, statement)
    for scope, statements in _BY_SCOPE.items()
    for statement in statements
}

# Functions that a client calls in the background: hints and reconcilers. Over HTTP, the client
# does not send these calls, because workers make them anyway.
MADE_BY_WORKERS = frozenset(
    {
        functions.HINT.name,
        functions.RESOLVE_WAKES.name,
        functions.CANCEL_SIBLINGS.name,
        functions.NOTICE_SIGNALS.name,
    }
)
