"""How log lines of a worker name an execution."""

from __future__ import annotations

from flowfabric.core.execution import Claimed


def attempt_text(claimed: Claimed) -> str:
    """Name an execution and its attempt: `app.render 01a1e3ef, attempt 2`."""
    return f"{claimed.task} {claimed.id}, attempt {claimed.attempt}"
