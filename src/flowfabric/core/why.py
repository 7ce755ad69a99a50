"""Explain why an execution is not running: the engine's answer, and a plain sentence for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias

from flowfabric.core.ids import ExecutionId
from flowfabric.core.limit import amount_text

Evidence: TypeAlias = Mapping[str, Any]

# An execution fails after this many crashes while it runs alone.
LONE_CRASHES = 3


class Dimension(StrEnum):
    """What a reason is about, such as a lease or a quota."""

    END = "end"
    LEASE = "lease"
    OPERATOR = "operator"
    BUDGET = "budget"
    QUOTA = "quota"
    ROUTE = "route"
    DEPENDENCY = "dependency"
    SIGNAL = "signal"
    TIME = "time"
    ATTEMPT = "attempt"
    GRANT = "grant"
    LANE = "lane"
    WORKER = "worker"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Why:
    """A reason for the state of an execution.

    `evidence` contains the facts. `changes_at` is when the reason can change by itself, or None.
    `others` contains the other reasons, then remarks. A remark is a fact, not a reason.
    """

    id: ExecutionId
    dimension: Dimension
    code: str
    evidence: Evidence
    changes_at: datetime | None
    others: tuple[Why, ...] = ()

    @property
    def sentence(self) -> str:
        """The reason in plain English."""
        return SENTENCES[self.code](self.evidence)

    def __str__(self) -> str:
        return self.sentence


def _at(evidence: Evidence, name: str) -> str:
    when = datetime.fromisoformat(evidence[name]).astimezone(UTC)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _able(e: Evidence, name: str) -> str:
    """Return in words how many workers can run the execution. `name` is the word for one worker."""
    if e["are_more_able"]:
        return f"more than {e['able_workers']} {name}s"
    return _count(e["able_workers"], name)


def _part(evidence: Evidence, name: str, before: str, after: str = "") -> str:
    """Return one fact between the texts `before` and `after`.

    If the evidence does not contain the fact, return an empty string.
    """
    value = evidence.get(name)
    if value is None:
        return ""
    text = _at(evidence, name) if name.endswith(("_at", "since")) else str(value)
    return f"{before}{text}{after}"


def _completed(e: Evidence) -> str:
    return f"It is done: it completed at {_at(e, 'at')} in attempt {e['attempts']}."


def _trimmed(e: Evidence) -> str:
    last = f"It was trimmed; its last event was {e['last_event']} at {_at(e, 'at')}."
    names = e.get("subscriptions")
    if not names:
        return last
    verb = "subscription" if len(names) == 1 else "subscriptions"
    return (
        f"{last} Its events stay for the {verb} {', '.join(names)}, until {_at(e, 'until')} at the "
        "latest."
    )


def _failed(e: Evidence) -> str:
    reason = _part(e, "failure_reason", ": ")
    return (
        f"It is over: it failed at {_at(e, 'at')} after {_count(e['attempts'], 'attempt')}{reason}."
    )


def _reclaims_exhausted(e: Evidence) -> str:
    return (
        f"It is over: it failed at {_at(e, 'at')} because its workers vanished again and again "
        f"({_count(e['reclaims'], 'reclaim')})."
    )


def _crashed_alone(e: Evidence) -> str:
    return (
        f"It is over: it failed at {_at(e, 'at')} because its worker vanished "
        f"{_count(e['lone_crashes'], 'time')} while it ran alone."
    )


def _cancelled(e: Evidence) -> str:
    who = e.get("actor") or e["cancelled_by"]
    return f"It is over: {who} cancelled it at {_at(e, 'at')}{_part(e, 'reason', ': ')}."


def _skipped(e: Evidence) -> str:
    what = "its dependencies cannot be satisfied"
    if "upstream" in e:
        ended = str(e["upstream_outcome"])
        verb = {"cancelled": "was ", "skipped": "was "}.get(ended, "")
        what = f"{e.get('upstream_name') or e['upstream']} {verb}{ended}"
    return f"It is over: it was skipped at {_at(e, 'at')} because {what}."


def _deadline_passed(e: Evidence) -> str:
    return f"It is over: it expired at {_at(e, 'at')} because its deadline had passed."


def _attempt_timed_out(e: Evidence) -> str:
    return (
        f"It is over: it expired at {_at(e, 'at')} because its attempt timed out and no retry was "
        "left."
    )


def _deadline_due(e: Evidence) -> str:
    return (
        f"Its deadline was {_at(e, 'deadline_at')}; it expires as soon as the reconciler for "
        "deadlines runs."
    )


def _running(e: Evidence) -> str:
    progress = _part(e, "progress_percent", ", ", " % done")
    return (
        f"It is running: {e['worker_instance_id']} holds its lease until "
        f"{_at(e, 'lease_expires_at')}{progress}."
    )


def _holder_silent(e: Evidence) -> str:
    heard = (
        f"was last heard at {_at(e, 'last_heard_at')}"
        if "last_heard_at" in e
        else "is not among the live workers"
    )
    return (
        f"{e['worker_instance_id']} holds its lease until {_at(e, 'lease_expires_at')}, "
        f"but {heard}."
    )


def _lease_expired(e: Evidence) -> str:
    return (
        f"{e['worker_instance_id']} let its lease expire at {_at(e, 'lease_expires_at')}; the "
        f"execution waits for one of {_able(e, 'worker')} to reclaim it "
        f"(reclaim {e['reclaims'] + 1} of {e['max_reclaims']})."
    )


def _lease_revoked(e: Evidence) -> str:
    return (
        f"{e.get('by') or 'An operator'} revoked the lease of {e['worker_instance_id']}"
        f"{_part(e, 'reason', ' (', ')')}; the execution waits for one of "
        f"{_able(e, 'worker')} to reclaim it."
    )


def _reclaims_used_up(e: Evidence) -> str:
    if e.get("lone_crashes", 0) >= LONE_CRASHES:
        return (
            f"Its worker vanished {_count(e['lone_crashes'], 'time')} while it ran alone. The next "
            "worker that claims it ends it as failed."
        )
    return (
        f"Its workers vanished too often: it has used {_count(e['max_reclaims'], 'reclaim')} of "
        f"{e['max_reclaims']}. The next worker that claims it ends it as failed."
    )


def _crash_loop(e: Evidence) -> str:
    lost = f"{_count(e['reclaims'], 'reclaim')} of {e['max_reclaims']}"
    alone = f"it runs alone now, {e['lone_crashes']} of {LONE_CRASHES} crashes so far"
    if "reclaim_at" not in e:
        return f"It is in a crash loop: its workers keep vanishing ({lost}); {alone}."
    return (
        f"It is in a crash loop: its workers keep vanishing ({lost}); {alone}. A worker can "
        f"reclaim it from {_at(e, 'reclaim_at')} on."
    )


_AFTER_TIMEOUT = {
    "auto_resume": "it continues without an answer",
    "fail": "it fails",
    "cancel": "it is cancelled",
    "expire": "it expires",
    "escalate": "it is left to an operator",
}


def _suspended(e: Evidence) -> str:
    return f"It has been suspended since {_at(e, 'since')}, {_awaited(e)}{_then(e)}."


def _suspended_for_operator(e: Evidence) -> str:
    return (
        f"It has been suspended since {_at(e, 'since')}, {_awaited(e)}; its time is over, and it "
        "waits for an operator to resume or cancel it."
    )


def _awaited(e: Evidence) -> str:
    """Say what a suspended execution waits for, and how much of it has come."""
    names = [_wait(one) for one in e.get("waits", ())]
    if runs := e.get("runs"):
        names.append(_count(runs, "run"))
    what = " or ".join(names) if names else "its time"
    reason = str(e["reason"]).replace("_", " ")
    words = f"waiting for {what}"
    if reason not in ("waiting for signal", "waiting for operator review") and not any(
        "question" in one for one in e.get("waits", ())
    ):
        words += f" ({reason})"
    if others := e.get("other_signals"):
        words += f"; {_count(others, 'signal')} for other waits came"
    return words


def _wait(wait: Mapping[str, Any]) -> str:
    """Say what one wait waits for, who has answered, and who has not."""
    words = _condition(wait["condition"], wait.get("names", {}))
    if "question" in wait:
        words += f' of "{wait["question"]}"'
    missing = wait.get("unanswered", [])
    if "approved" in wait or "rejected" in wait or "question" in wait:
        parts = [
            f"{len(wait[how])} {how}: {', '.join(wait[how])}"
            for how in ("approved", "rejected")
            if how in wait
        ]
        if missing:
            parts.append(f"no answer from {', '.join(missing)}")
    elif answered := wait.get("answered"):
        many = len(answered) + len(missing) + len(wait.get("closed", []))
        parts = [f"{len(answered)} of {many} came: {', '.join(answered)}"]
        if missing:
            parts.append(f"still missing: {', '.join(missing)}")
    else:
        parts = []
    if closed := wait.get("closed"):
        parts.append(f"closed without an answer: {', '.join(closed)}")
    return f"{words} ({'; '.join(parts)})" if parts else words


def _condition(condition: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Say what a condition waits for. `names` maps the ids of waitpoints to their names."""

    def several(members: Any) -> str:
        return f"({', '.join(_condition(one, names) for one in members)})"

    if "signal" in condition:
        return f"the signal {condition['signal']}"
    if "waitpoint" in condition:
        id = str(condition["waitpoint"])
        return f"the answer of the waitpoint {names.get(id, id)}"
    if "approve" in condition:
        return f"{condition['approve']} of {len(condition['of'])} approvals"
    if "every" in condition:
        return f"all of {several(condition['every'])}"
    if "at_least" in condition:
        return f"{condition['at_least']} of {several(condition['of'])}"
    return "an operator"


def _then(e: Evidence) -> str:
    if "timeout_at" not in e:
        return ""
    what = _AFTER_TIMEOUT[str(e["then"])]
    if e["then"] == "auto_resume":
        due = [one for one in e.get("waits", ()) if one.get("until_at") == e["timeout_at"]]
        defaults = {one.get("has_default") for one in due}
        if not due:
            what = "it continues"
        elif defaults == {True}:
            what = "it continues with the default of its wait"
        elif defaults == {False}:
            what = "its wait raises WaitTimeout"
    return f"; at {_at(e, 'timeout_at')} {what}"


def _held(e: Evidence) -> str:
    step = _part(e, "step", " at step ")
    reason = e.get("reason") or e.get("detail") or "no reason was given"
    return f"Its worker held it{step} for an operator to look at: {reason}."


def _paused_by_operator(e: Evidence) -> str:
    who = e.get("actor") or "An operator"
    return f"{who} paused it{_part(e, 'since', ' at ')}{_part(e, 'detail', ': ')}."


def _paused_by_policy(e: Evidence) -> str:
    return (
        f"A policy paused it{_part(e, 'since', ' at ')}{_part(e, 'detail', ': ')}"
        f"{_part(e, 'actor', ' (', ')')}."
    )


def _flow_being_cancelled(e: Evidence) -> str:
    how = {"cancel_pending": " (running members may finish)"}.get(e.get("policy", ""), "")
    return (
        f"Its flow{_part(e, 'flow_id', ' ')} is being cancelled{_part(e, 'actor', ' by ')}"
        f"{_part(e, 'since', ' since ')}{how}{_part(e, 'reason', ': ')}."
    )


def _blocked(what: str) -> Callable[[Evidence], str]:
    def sentence(e: Evidence) -> str:
        return (
            f"It cannot be claimed{_part(e, 'since', ' (since ', ')')}: {what}"
            f"{_part(e, 'detail', ' (', ')')}."
        )

    return sentence


def _position_in_line(e: Evidence) -> str:
    """Say where an execution stands in the line of a quota or budget."""
    if e["is_more"]:
        return f"more than {e['ahead']} are before it"
    return "it is first in line" if not e["ahead"] else f"it is number {e['ahead'] + 1} in line"


def _waits_for_quota(e: Evidence) -> str:
    name = f"quota {e['quota']}={e['key']}" if "key" in e else f"quota {e['quota']}"
    if e["quota"] == "ff:lane":
        name = f"limit of the lane {e['key']}"
    parts = []
    if "concurrency" in e:
        parts.append(f"{e['running']} of {e['concurrency']} running")
    if "opens_at" in e:
        parts.append(f"its rate has room at {_at(e, 'opens_at')}")
    parts.append(_position_in_line(e))
    if reserved := e.get("reserved"):
        slots = "slot is" if reserved == 1 else "slots are"
        parts.append(f"{reserved} {slots} reserved for it in its other quotas")
    return f"It waits for the {name}: {'; '.join(parts)}."


def _waits_for_budget(e: Evidence) -> str:
    name = f"{e['budget']}={e['key']}" if "key" in e else e["budget"]
    used = ""
    if "dimension" in e:
        amounts = (amount_text(e["dimension"], e[part]) for part in ("usage", "limit"))
        used = f"{' of '.join(amounts)} {e['dimension']} used; "
    reset = f"; it is reset at {_at(e, 'next_reset_at')}" if "next_reset_at" in e else ""
    return f"It waits for the budget {name}: {used}{_position_in_line(e)}{reset}."


def _waiting_for_children(e: Evidence) -> str:
    return f"It has waited for its dependencies since {_at(e, 'since')}{_part(e, 'detail', ': ')}."


def _waiting_for_upstreams(e: Evidence) -> str:
    needed = f"{e['n']}" if e["policy"] == "all_of" else f"the {e['needed']} it needs (of {e['n']})"
    names = []
    for upstream in e["open"]:
        how = upstream["state"].replace("_", " ")
        if "is_over" in upstream:
            how += ": replay it"
        elif "is_unapplied" in upstream:
            how += ", edge not applied yet"
        names.append(f"{upstream.get('name') or upstream['id']} ({how})")
    more = " and more" if e["is_more"] else ""
    return (
        f"It has waited for its upstreams since {_at(e, 'since')}: {e['succeeded']} of {needed} "
        f"succeeded, waiting for {', '.join(names)}{more}."
    )


def _waiting_for_runs(e: Evidence) -> str:
    many = f"{e['needed']} of {e['runs']} runs" if e["needed"] < e["runs"] else "all of its runs"
    if e["runs"] == 1:
        many = "a run"
    ended = f"{e['ended']} ended" if e["ended"] else "none has ended"
    more = " and more" if e["is_more"] else ""
    return (
        f"It has waited since {_at(e, 'since')} for {many} to end ({ended}); open: "
        f"{', '.join(e['open'])}{more}."
    )


def _expires_before_it_starts(e: Evidence) -> str:
    return (
        f"Its deadline, {_at(e, 'deadline_at')}, comes before the end of its delay, "
        f"{_at(e, 'delayed_until')}: it will expire without running."
    )


def _promotion_due(e: Evidence) -> str:
    return (
        f"It was delayed until {_at(e, 'delayed_until')}, which is past; it becomes eligible as "
        "soon as the reconciler for delays runs."
    )


def _retry_backoff(e: Evidence) -> str:
    return (
        f"It failed{_part(e, 'failure_reason', ' (', ')')} and is in back-off until "
        f"{_at(e, 'delayed_until')}, before retry {e['retry']} of {e['max_retries']}."
    )


def _delayed_by_submit(e: Evidence) -> str:
    return f"It was submitted to start at {_at(e, 'delayed_until')}."


def _delayed_by_worker(e: Evidence) -> str:
    who = e.get("worker_instance_id") or "its worker"
    return f"Its handler delayed it until {_at(e, 'delayed_until')} (last leased by {who})."


def _waiting_for_newer_code(e: Evidence) -> str:
    who = e.get("worker_instance_id") or "its worker"
    return (
        f"It waits for a worker with newer code until {_at(e, 'delayed_until')}: {who} does not "
        f"know its step {e['step']}. Workers have passed it on since {_at(e, 'since')}; if none "
        "has newer code, it is held after 10 minutes."
    )


def _sleeping(e: Evidence) -> str:
    nth = f" #{e['occurrence']}" if e["occurrence"] else ""
    return f"It sleeps until {_at(e, 'delayed_until')} (step {e['sleep']}{nth})."


def _resume_delayed(e: Evidence) -> str:
    return f"It was resumed and continues at {_at(e, 'delayed_until')}."


def _granted(e: Evidence) -> str:
    return (
        f"It is granted to {e['worker_instance_id']} until {_at(e, 'expires_at')}; other workers "
        "do not claim it."
    )


def _lane_paused(e: Evidence) -> str:
    until = _part(e, "resumes_at", " until ") or " until an operator resumes it"
    return (
        f"Its lane {e['lane']} is paused{_part(e, 'by', ' by ')}{until}{_part(e, 'reason', ': ')}."
    )


def _lane_disabled(e: Evidence) -> str:
    return f"Its lane {e['lane']} is disabled{_part(e, 'by', ' by ')}{_part(e, 'reason', ': ')}."


def _lane_draining(e: Evidence) -> str:
    return (
        f"Its lane {e['lane']} is draining{_part(e, 'by', ' (', ')')}: executions that wait in it "
        "still run, new ones are refused."
    )


def _lane_pause_over(e: Evidence) -> str:
    return f"The pause of its lane {e['lane']} ended at {_at(e, 'resumes_at')}."


def _no_worker_alive(e: Evidence) -> str:
    return f"No worker is alive{_part(e, 'last_heard_at', '; the last was heard at ')}."


def _other_namespaces_only(e: Evidence) -> str:
    # The engine names other namespaces only to a caller that reads all of them.
    others = f"; the live workers serve {', '.join(e['namespaces'])}" if "namespaces" in e else ""
    return f"No live worker serves its namespace {e['namespace']}{others}."


def _task_unknown(e: Evidence) -> str:
    return (
        f"No worker knows the task {e['task']}: none of {_count(e['live_workers'], 'live worker')} "
        "has registered it."
    )


def _lane_not_served(e: Evidence) -> str:
    return (
        f"Workers that know the task {e['task']} are alive, but none serves the lane {e['lane']}; "
        f"they serve {', '.join(e['lanes'])}."
    )


def _capabilities_missing(e: Evidence) -> str:
    return (
        f"No live worker offers all capabilities it needs; the nearest, {e['nearest']}, lacks "
        f"{', '.join(e['missing'])}."
    )


def _version_not_served(e: Evidence) -> str:
    heard = _part(e, "last_heard_at", "; the last was heard at ")
    others = f" (version {', '.join(e['others'])})" if e.get("others") else ""
    when = "now" if e["is_due"] else f"from {_at(e, 'takeover_at')} on"
    return (
        f"No live worker serves its code version {e['code_version']}{heard}. Other workers{others} "
        f"take it over {when}, and hold it if their code does not fit."
    )


def _in_line(e: Evidence) -> str:
    first = {
        "retry": "Its next attempt is",
        "replay": "After its replay, it is",
        "resume": "Its attempt is",
    }
    subject = first.get(e["waits_as"], "It is")
    workers = f"{_able(e, 'live worker')} can run it"
    if not e["ahead"] and not e["is_more"]:
        return f"{subject} next in line in the lane {e['lane']}; {workers}."
    ahead = f"{e['ahead']}+" if e["is_more"] else str(e["ahead"])
    return (
        f"{subject} in line in the lane {e['lane']}, with {ahead} before it; {workers}, but all "
        "may be busy."
    )


def _replayed(e: Evidence) -> str:
    return (
        f"It was replayed{_part(e, 'by', ' by ')} (replay {e['replay']} of {e['max_replays']})"
        f"{_part(e, 'reason', ': ')}."
    )


def _deadline_ahead(e: Evidence) -> str:
    return f"It expires at its deadline, {_at(e, 'deadline_at')}, unless it has ended by then."


# One entry for every code that the engine returns.
SENTENCES: dict[str, Callable[[Evidence], str]] = {
    "completed": _completed,
    "trimmed": _trimmed,
    "failed": _failed,
    "reclaims_exhausted": _reclaims_exhausted,
    "crashed_alone": _crashed_alone,
    "cancelled": _cancelled,
    "skipped": _skipped,
    "deadline_passed": _deadline_passed,
    "attempt_timed_out": _attempt_timed_out,
    "deadline_due": _deadline_due,
    "running": _running,
    "holder_silent": _holder_silent,
    "lease_expired": _lease_expired,
    "lease_revoked": _lease_revoked,
    "reclaims_used_up": _reclaims_used_up,
    "crash_loop": _crash_loop,
    "suspended": _suspended,
    "suspended_for_operator": _suspended_for_operator,
    "held": _held,
    "paused_by_operator": _paused_by_operator,
    "paused_by_policy": _paused_by_policy,
    "flow_being_cancelled": _flow_being_cancelled,
    "waits_for_quota": _waits_for_quota,
    "waits_for_budget": _waits_for_budget,
    "blocked_by_budget": _blocked("a budget is used up"),
    "blocked_by_quota": _blocked("a quota is used up"),
    "blocked_by_route": _blocked("no worker could run it"),
    "blocked_by_lane_state": _blocked("its lane is not active"),
    "waiting_for_children": _waiting_for_children,
    "waiting_for_runs": _waiting_for_runs,
    "waiting_for_upstreams": _waiting_for_upstreams,
    "expires_before_it_starts": _expires_before_it_starts,
    "promotion_due": _promotion_due,
    "retry_backoff": _retry_backoff,
    "delayed_by_submit": _delayed_by_submit,
    "delayed_by_worker": _delayed_by_worker,
    "waiting_for_newer_code": _waiting_for_newer_code,
    "sleeping": _sleeping,
    "resume_delayed": _resume_delayed,
    "granted": _granted,
    "lane_paused": _lane_paused,
    "lane_disabled": _lane_disabled,
    "lane_draining": _lane_draining,
    "lane_pause_over": _lane_pause_over,
    "no_worker_alive": _no_worker_alive,
    "other_namespaces_only": _other_namespaces_only,
    "task_unknown": _task_unknown,
    "lane_not_served": _lane_not_served,
    "capabilities_missing": _capabilities_missing,
    "version_not_served": _version_not_served,
    "in_line": _in_line,
    "replayed": _replayed,
    "deadline_ahead": _deadline_ahead,
}
