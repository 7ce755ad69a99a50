"""Texts for log lines of a worker: the name of an attempt, and how a lease was lost."""

from __future__ import annotations

from datetime import datetime

from flowfabric.core.errors import (
    ExecutionNotActive,
    FlowFabricError,
    LeaseExpired,
    NotFound,
    StaleLease,
)
from flowfabric.core.execution import CANCEL_SOURCES, Claimed
from flowfabric.core.states import EventKind
from flowfabric.core.text import printable


def attempt_text(claimed: Claimed) -> str:
    """Return the name of an attempt, for example `app.render 01a1e3ef, attempt 2`."""
    return f"{claimed.task} {claimed.id}, attempt {claimed.attempt}"


def clock_text(moment: datetime) -> str:
    """Return the time of day of `moment`, as log lines show it."""
    return moment.astimezone().strftime("%H:%M:%S")


def loss_text(error: FlowFabricError) -> str:
    """Say how a lease was lost, for example `cancelled by ada: wrong order`."""
    facts = error.facts
    by, because = facts.get("ended_by"), facts.get("because")
    source = facts.get("source") or ""
    who = facts.get("actor") or CANCEL_SOURCES.get(source, source) or "an operator"
    if (timeout := facts.get("timeout_ms")) is not None:
        text, because = f"timed out after {timeout / 1000:g} s", None
    elif facts.get("reason") == "deadline_passed":
        text, because = "its deadline passed, the execution expired", None
    elif by == EventKind.CANCELLED:
        text = f"cancelled by {who}"
    elif by == EventKind.LEASE_REVOKED:
        text = f"revoked by {who}"
    elif by == EventKind.LEASE_EXPIRED or isinstance(error, LeaseExpired):
        text, because = "lease expired", None
        if (ttl := facts.get("not_renewed_for")) is not None:
            text += f", not renewed for {ttl.total_seconds():g} s"
    elif isinstance(error, NotFound):
        text = "the execution was deleted"
    else:
        return printable(str(error))
    if timeout is not None and isinstance(error, ExecutionNotActive):
        again = error.delayed_until
        text += f", retry at {clock_text(again)}" if again else ", no retry is left"
    if isinstance(error, StaleLease):
        text += ", another worker has the execution"
    return printable(f"{text}: {because}" if because else text)
