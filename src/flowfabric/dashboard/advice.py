"""Advise people what to do about an execution. The advice names the buttons of its page."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from flowfabric.core.why import Evidence, Why

_START = "Start a worker with flowfabric worker MODULE:APP. The execution then starts by itself."
_REPLAY = "Once the cause is gone, give a reason and press Replay. Recorded steps are kept."
_BY_ITSELF = "Nothing is wrong: it continues by itself at that time."
_AT_ONCE = "It tries again by itself. To start it at once, give a reason and press Retry now."
_UNBLOCK = "Once the cause is gone, give a reason and press Retry now."
_OTHERS = "Open the executions that it waits for: their pages say why they have not ended."
_LOG = "Look for the cause in the log of its workers, for example too little memory."
_CRASHES = f"{_LOG} If it cannot run, give a reason and press Cancel."


def _suspended(e: Evidence) -> str:
    waits = e.get("waits", ())
    if any("question" in one for one in waits):
        return "Press Answer, and approve or deny it there."
    if e.get("runs"):
        return _OTHERS
    if waits:
        return (
            "Send what it waits for with the form below. Resume without an answer ends its waits "
            "with their defaults, or with an error if they have none."
        )
    return "Give a reason, then resume it without an answer or cancel it."


def _quota(e: Evidence) -> str:
    where = "the lane" if e["quota"] == "ff:lane" else "the quota"
    room = "its rate has room" if "opens_at" in e and "concurrency" not in e else "there is room"
    return f"It starts by itself as soon as {room}. To start more, open {where} and set its limit."


def _budget(e: Evidence) -> str:
    rest = ", or wait for the reset" if "next_reset_at" in e else ""
    return f"Open the budget, then raise its limit or reset it{rest}."


def _same(text: str) -> Callable[[Evidence], str]:
    return lambda _: text


# The advice for each reason. A reason without an entry needs none.
ADVICE: dict[str, Callable[[Evidence], str]] = {
    "suspended": _suspended,
    "waits_for_quota": _quota,
    "waits_for_budget": _budget,
    "lane_not_served": lambda e: (
        # Quote the lane: people copy the command into a shell, and a lane may be named $(...).
        f"Run flowfabric worker MODULE:APP --lanes {shlex.quote(e['lane'])} to start a worker for "
        "this lane."
    ),
    "blocked_by_budget": _same("Open the budgets, then raise a limit or reset the budget."),
} | {
    code: _same(text)
    for code, text in {
        "failed": f"Read the error under Attempts. {_REPLAY}",
        "reclaims_exhausted": f"{_LOG} {_REPLAY}",
        "crashed_alone": f"{_LOG} {_REPLAY}",
        "cancelled": "If it should run after all, give a reason and press Replay.",
        "skipped": "Open its flow, give a reason, and press Retry failed.",
        "deadline_passed": "If its result is still needed, submit it again with a later deadline.",
        "attempt_timed_out": f"Look under Steps to see where the time went. {_REPLAY}",
        "running": "Nothing is wrong. If it hangs, revoke its lease: another worker then runs it.",
        "holder_silent": "Another worker takes it over when the lease ends. To hand it over now, "
        "give a reason and press Revoke lease.",
        "lease_expired": "It starts when a worker is free. If none is, start another worker.",
        "lease_revoked": "It starts when a worker is free. If none is, start another worker.",
        "reclaims_used_up": _CRASHES,
        "crash_loop": _CRASHES,
        "suspended_for_operator": "Give a reason, then resume it without an answer or cancel it.",
        "held": "Deploy code that runs the recorded steps, then give a reason and press Retry now. "
        "Or choose under Replay from which step the new code runs.",
        "paused_by_operator": _UNBLOCK,
        "paused_by_policy": _UNBLOCK,
        "blocked_by_quota": _UNBLOCK,
        "blocked_by_route": _UNBLOCK,
        "blocked_by_lane_state": _UNBLOCK,
        "waiting_for_children": _OTHERS,
        "waiting_for_runs": _OTHERS,
        "waiting_for_upstreams": _OTHERS,
        "expires_before_it_starts": "To run it before its deadline, give a reason and press Retry "
        "now.",
        "retry_backoff": _AT_ONCE,
        "delayed_by_submit": _BY_ITSELF,
        "delayed_by_worker": _BY_ITSELF,
        "sleeping": _BY_ITSELF,
        "resume_delayed": _BY_ITSELF,
        "waiting_for_newer_code": "Deploy the newer code to a worker that serves this lane.",
        "lane_paused": "Open the lane, give a reason, and press Resume.",
        "lane_disabled": "Open the lane, give a reason, and press Resume.",
        "no_worker_alive": _START,
        "other_namespaces_only": "Start a worker for this namespace. The execution then starts by "
        "itself.",
        "task_unknown": "Start a worker whose app has this task, or deploy the task to the running "
        "workers. If the task was renamed, cancel this execution and submit it anew.",
        "capabilities_missing": "Start a worker that offers what is missing.",
        "version_not_served": "Start a worker with that code version, or wait for the takeover.",
        "in_line": "It starts when a worker is free. If the line grows, start more workers.",
    }.items()
}


def advice_of(why: Why) -> str | None:
    """Return in words what a person can do about a reason, or None if there is nothing to do."""
    advise = ADVICE.get(why.code)
    return None if advise is None else advise(why.evidence)
