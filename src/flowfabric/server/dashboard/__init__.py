"""The HTTP routes of the dashboard: pages for people, below `/dashboard`.

The sign-in stores a token in a cookie, by which pages recognise the visitor. Forms that change
something are accepted only from the dashboard's own origin. Most pages need the scope `read`, and
most acts need `operate`.
"""

from __future__ import annotations

from flowfabric.server.dashboard import (
    access,
    activity,
    approvals,
    asked,
    executions,
    flows,
    limits,
    live,
    overview,
    schedules,
    system,
    tasks,
    workers,
)
from flowfabric.server.dashboard.page import PREFIX, is_page, problem_page

GROUPS = (
    overview.routes,
    executions.routes,
    flows.routes,
    approvals.routes,
    asked.routes,
    limits.routes,
    schedules.routes,
    workers.routes,
    tasks.routes,
    activity.routes,
    system.routes,
    live.routes,
    access.routes,
)

__all__ = ["GROUPS", "PREFIX", "is_page", "problem_page"]
