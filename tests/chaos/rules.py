"""What must be true of every history: a function for each rule, which returns what breaks it.

The numbers are those of the study that asked for them. As amended since: there are no operation
ids (what a caller minted is the identity: of a submit its execution id or key, of a claim its claim
id, of a fenced call its lease, of an operator's call the name it gave as its reason), and the log
is read by cursor, at least once, in order for each execution (H10).

Not here: the part of H7 about signals, which test_signals.py checks beside this; and H11, the
effects in a user's own table, which tests/steps/test_transactions.py checks. Flows and budgets are
in no rule: test_flows.py and test_budgets.py check them. A share of the work is under quotas:
doctor counts their slots throughout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from .history import ENDING, FENCED, LEASING, OK, OPERATIONS, UNKNOWN, Call, Event, History
from .linear import linearise

# Between the clock of the database and ours there may be this much.
CLOCK_SECONDS = 0.5
SHOWN = 5


def h1_confirmed_work_is_there(history: History) -> list[str]:
    """An execution whose submit was confirmed is in the database, with what was handed in; or its
    short retention has passed, and then the log still tells that it ended."""
    found = []
    payloads = {call.args["id"]: call.args["payload"] for call in history.of("submit")}
    trimmed = {call.args["id"] for call in history.of("submit") if call.args["is_trimmed"]}
    for call in history.of("submit"):
        if not call.is_ok:
            continue
        id = call.answer["id"]
        row = history.rows.get(id)
        events = history.events.get(id, [])
        if row is None:
            if id not in trimmed or not events or events[-1].kind not in ENDING:
                found.append(f"{id} was confirmed and is lost: {call}")
        elif row.payload not in (None, payloads.get(id)):
            found.append(f"{id} holds {row.payload!r}, not {payloads.get(id)!r}")
    return found


def h2_nothing_comes_from_nowhere(history: History) -> list[str]:
    """Every execution in the database or the log was handed in by somebody, and none of them by a
    submit that was told of another execution with its key."""
    asked = {call.args["id"] for call in history.of("submit")}
    others = {
        call.args["id"]
        for call in history.of("submit")
        if call.is_ok and call.answer["id"] != call.args["id"]
    }
    there = history.rows.keys() | history.events.keys()
    return [f"{id} was submitted by nobody" for id in there - asked] + [
        f"{id} exists beside the one that its key stands for" for id in there & others
    ]


def h3_a_lease_has_one_holder(history: History) -> list[str]:
    """An epoch of an execution is given to one claim at most, later claims get higher ones, and a
    lease in the log was asked for by somebody."""
    found = []
    for id, leases in history.leases.items():
        holders: dict[int, str] = {}
        for call, item in leases:
            first = holders.setdefault(item["epoch"], call.args["claim"])
            if first != call.args["claim"]:
                found.append(f"{id} epoch {item['epoch']} went to {first} and {call.args['claim']}")
        for n, (earlier, before) in enumerate(leases):
            for later, after in leases[n + 1 :]:
                if (
                    earlier.returned < later.invoked
                    and earlier.args["claim"] != later.args["claim"]
                    and before["epoch"] >= after["epoch"]
                ):
                    found.append(f"{id} epoch {after['epoch']} was given after {before['epoch']}")
    asked = {call.args["claim"] for call in history.of("claim")}
    for id, events in history.events.items():
        found += [
            f"{id} was leased as {event.lease}, which nobody asked for"
            for event in events
            if event.kind in LEASING and event.lease not in asked
        ]
    return found


def h4_a_stale_holder_changes_nothing(history: History) -> list[str]:
    """Once somebody was given a higher epoch, or was told that the lease is revoked or cancelled,
    or the lease has simply run out, its holder's calls do not succeed. The only yes it may still
    hear is its own first answer again."""
    found = []
    taken = _taken_away(history)
    grants: dict[tuple[str, str], list[float]] = defaultdict(list)
    for id, leases in history.leases.items():
        for call, item in leases:
            grants[id, item["lease"]].append(call.returned)
    for call in history.fenced:
        # A renewal without an answer may have come through at any time.
        if call.op == "renew" and (call.is_ok or call.verdict == UNKNOWN):
            grants[call.args["id"], call.args["lease"]].append(call.returned)
    for call in history.fenced:
        if not call.is_ok:
            continue
        id, lease, epoch = call.args["id"], call.args["lease"], call.args["epoch"]
        if _is_first_answer_again(history, call):
            continue
        for later, item in history.leases.get(id, ()):
            if item["epoch"] > epoch and later.returned < call.invoked:
                found.append(f"epoch {item['epoch']} was out when this succeeded: {call}")
                break
        else:
            if taken.get((id, lease), call.invoked) < call.invoked:
                found.append(f"the lease was taken away before this succeeded: {call}")
            elif given := grants.get((id, lease)):
                age = call.invoked - max((t for t in given if t < call.returned), default=0)
                is_open = any(t >= call.returned for t in given)
                if not is_open and age > history.lease_seconds + CLOCK_SECONDS:
                    found.append(f"the lease was over for {age:.1f} s when this succeeded: {call}")
    for id, events in history.events.items():
        highest = 0
        for event in events:
            if event.kind in LEASING:
                highest = event.epoch or 0
            elif event.lease and event.kind != "lease_revoked" and not event.is_engine:
                # taking a lease away raises the epoch by one
                allowed = highest + (event.kind == "cancelled")
                if event.epoch != allowed:
                    found.append(f"{id}: {event.kind} by epoch {event.epoch} under {highest}")
    return found


def h5_one_end_for_each_life(history: History) -> list[str]:
    """Between two replays an execution ends once; the log, the row and everybody who was told of an
    end agree on which one it was, and a call that was refused did not bring it about."""
    found = []
    by_lease: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
    by_name: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in history.of("complete", "fail"):
        by_lease[call.args["id"], call.args["lease"], call.op].append(call)
    for call in history.of("cancel", "cancel_held"):
        by_name[call.args["id"], call.args["reason"]].append(call)
    for id, events in history.events.items():
        end: Event | None = None
        for event in events:
            if event.kind == "replayed":
                if end is None:
                    found.append(f"{id} was replayed before its end")
                end = None
            elif end is not None:
                found.append(f"{id}: {event.kind} after it ended as {end.kind}")
            elif event.kind in ENDING:
                end = event
                if not event.is_engine:
                    op = {"completed": "complete", "failed": "fail"}.get(event.kind)
                    callers = (
                        by_lease[id, event.lease or "", op]
                        if op
                        else by_name[id, event.reason or ""]
                    )
                    if all(call.error and call.op != "cancel" for call in callers):
                        found.append(f"{id}: nobody who may have won {event.kind} asked for it")
        row = history.rows.get(id)
        if row is not None and row.is_ended != (end is not None):
            found.append(f"{id} is {row.public_state}, its log says otherwise")
        elif row is not None and end is not None and row.public_state != end.kind:
            found.append(f"{id} is {row.public_state}, its log says {end.kind}")
    for call in history.of("complete", "fail"):
        if call.is_ok:
            wanted = "retry_scheduled" if call.answer.get("retries") else _END[call.op]
            if [event.kind for event in history.written(call)] != [wanted]:
                found.append(f"not once in the log: {call}")
    return found


def h6_the_result_is_the_winners(history: History) -> list[str]:
    """The bytes of a result are those that the holder of the winning lease handed in, and if it
    handed in twice, the first ones; at the end and in every read."""
    found = []
    candidates: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in history.of("complete"):
        if not call.error:
            candidates[call.args["id"], call.args["lease"]].append(call)

    def allowed(id: str, lease: str | None) -> set[str]:
        calls = candidates[id, lease or ""]
        return {
            call.args["result"]
            for call in calls
            if not any(other.is_ok and other.returned < call.invoked for other in calls)
        }

    for id, row in history.rows.items():
        if row.public_state == "completed" and id in history.events:
            lease = history.events[id][-1].lease
            if row.result not in allowed(id, lease):
                found.append(f"{id} has {row.result!r}, {lease} won with {allowed(id, lease)}")
        elif row.result is not None:
            found.append(f"{id} is {row.public_state} and has the result {row.result!r}")
    for call in history.of("read"):
        if call.is_ok and call.answer.get("state") == "completed":
            events = history.events.get(call.args["id"], [])
            lease = next((e.lease for e in events if e.version == call.answer["version"]), None)
            if call.answer["result"] not in allowed(call.args["id"], lease):
                found.append(f"a result of nobody: {call}")
    return found


def h7_confirmed_moves_are_there_once(history: History) -> list[str]:
    """A confirmed move (put off, given back, held, revoked, cancelled, replayed, another priority)
    is in the log exactly once, and whoever reads later does not see an execution from before it.

    Signals and suspensions would be checked the same way; there are none yet.
    """
    found = []
    versions: dict[str, list[tuple[float, int, Call]]] = defaultdict(list)
    for call in history.of(*FENCED, *OPERATIONS):
        if not call.is_ok or call.op in ("renew", "progress"):
            continue
        written = history.written(call)
        did = call.answer.get("outcome") in (None, *_DONE)
        if did and call.op in ("cancel", "cancel_held"):
            # One who cancels what is cancelled already is told the same.
            events = history.events.get(call.args["id"], ())
            if not any(event.kind == "cancelled" for event in events):
                found.append(f"confirmed and not in the log: {call}")
        elif did and len(written) != 1:
            found.append(f"confirmed, and {len(written)} times in the log: {call}")
        for event in written[:1]:
            versions[call.args["id"]].append((call.returned, event.version, call))
    for call in history.of("read"):
        if call.is_ok and call.answer["version"] is not None:
            for returned, version, move in versions[call.args["id"]]:
                if returned < call.invoked and call.answer["version"] < version:
                    found.append(f"{call} does not see {move}")
    return found


def h8_a_repeat_acts_once(history: History) -> list[str]:
    """Who asks again by the same name hears the same, and it happened once. A submit is named by
    its id or its key, a claim by its claim id, a fenced call by its lease, others by their reason.

    One exception: a plain cancel says nothing about the version it is for. If its answer is lost,
    and somebody replays the execution before it is repeated, it cancels the new life as well; once
    in each life, and not if it named a version.
    """
    found = []
    answers: dict[tuple[str, ...], Any] = {}

    def agree(name: tuple[str, ...], answer: Any, call: Call) -> None:
        if answers.setdefault(name, answer) != answer:
            found.append(f"heard {answers[name]} before: {call}")

    for call in history.calls:
        if not call.is_ok:
            continue
        if call.op == "submit":
            agree(("submit", call.args["id"]), call.answer["id"], call)
            if call.args["key"] is not None:
                agree(("key", call.args["key"]), call.answer["id"], call)
        elif call.op == "claim":
            for item in call.answer["items"]:
                agree(("claim", call.args["claim"], item["id"]), item, call)
        elif call.op == "fail":
            agree(("fail", call.args["id"], call.args["lease"]), dict(call.answer), call)
    plain = {c.args["reason"] for c in history.of("cancel") if c.args["if_version"] is None}
    for id, events in history.events.items():
        effects: dict[tuple[str, str], int] = defaultdict(int)
        life = 0
        for event in events:
            life += event.kind == "replayed"
            if event.kind in LEASING or (event.lease and event.kind in _BY_LEASE):
                family = "lease" if event.kind in LEASING else "end"
                effects[family, event.lease or ""] += not event.is_engine
            elif event.reason in plain:
                effects[f"in life {life}", event.reason or ""] += 1
            elif event.reason is not None:
                effects["as", event.reason] += 1
        for (what, name), times in effects.items():
            if times > 1:
                found.append(f"{id}: {what} {name} took effect {times} times")
    return found


def h9_a_reader_never_goes_back(history: History) -> list[str]:
    """What a process reads of an execution is never older than what it was told before: by a read
    or by the answer to a call of its own."""
    found = []
    seen: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for call in history.of("read", *FENCED, *OPERATIONS):
        if not call.is_ok or call.op == "renew":
            continue
        told = [event.version for event in history.written(call)] if call.op != "read" else []
        if (version := call.answer.get("version")) is not None:
            told.append(version)
        if told:
            seen[call.process, call.args["id"]].append((call.returned, max(told)))
    for call in history.of("read"):
        if call.is_ok and call.answer["version"] is not None:
            floor = max(
                (v for t, v in seen[call.process, call.args["id"]] if t < call.invoked), default=0
            )
            if call.answer["version"] < floor:
                found.append(f"version {floor} was known: {call}")
    return found


def h10_a_subscriber_misses_nothing(
    history: History, deliveries: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Every event is delivered, those of one execution in the order of their versions; a second
    time only after the subscriber had started anew from the cursor it had saved. No cursor expires
    while nothing is trimmed."""
    found = []
    highest: dict[str, int] = defaultdict(int)
    since_start: dict[str, int] = defaultdict(int)
    for page in deliveries:
        if page["what"] != "page":
            since_start.clear()
        if page["what"] == "expired":
            found.append("the engine does not know the cursor it gave out")
        for id, version in page["events"]:
            if version > highest[id] + 1:
                found.append(f"{id}: version {version} came after {highest[id]}")
            if version <= since_start[id]:
                found.append(f"{id}: version {version} came again without a new start")
            highest[id] = max(highest[id], version)
            since_start[id] = version
    for id, events in history.events.items():
        if highest[id] != events[-1].version:
            found.append(f"{id}: {highest[id]} of {events[-1].version} events were delivered")
    return found + [f"{id} is not in the log" for id in highest.keys() - history.events.keys()]


def h12_everything_fits_into_one_order(history: History) -> list[str]:
    """For each execution there is one order of all calls, within the time that each took, in which
    every answer is the one that the state machine gives at that point; its effects are the log,
    line by line, and its end is the row. Calls without an answer took effect where the log says
    so."""
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in history.of("submit"):
        # One that was told of another execution with its key is a reader of that one.
        id = call.answer["id"] if call.is_ok else call.args["id"]
        calls[id].append(call)
    for call in history.of(*OPERATIONS, "read"):
        calls[call.args["id"]].append(call)
    for call in history.fenced:
        calls[call.args["id"]].append(call)
    asked = {call.args["claim"]: call for call in reversed(list(history.of("claim")))}
    for id, leases in history.leases.items():
        calls[id] += [_claim_of(call, item) for call, item in leases]
    for id, events in history.events.items():
        heard = {item["lease"] for _, item in history.leases.get(id, ())}
        # The holder never heard of it: no answer came, or one after the lease was gone again.
        calls[id] += [
            _claim_of(asked[event.lease], None)
            for event in events
            if event.kind in LEASING and event.lease in asked and event.lease not in heard
        ]
    found = []
    for id, log in history.events.items():
        if problem := linearise(log, calls[id], history.rows.get(id)):
            found.append(f"{id}: {problem}")
    return found


def h13_everything_ends(history: History) -> list[str]:
    """When the faults are over and there was time, nothing is left unfinished but what an operator
    has to look at first."""
    return [
        f"{id} is still {row.public_state}"
        for id, row in history.rows.items()
        if not row.is_ended and row.eligibility != "blocked_by_operator"
    ]


def nobody_was_told_nonsense(history: History) -> list[str]:
    """Nothing that was asked in a run is malformed: whoever is told so met a mistake of the engine,
    such as a row that the database refuses to store."""
    return [str(call) for call in history.calls if call.error and call.error not in REFUSALS]


REFUSALS = (
    "ExecutionNotActive",
    "ExecutionNotEligible",
    "ExecutionNotFound",
    "ExecutionNotTerminal",
    "ExecutionTerminal",
    "LeaseExpired",
    "LeaseRevoked",
    "MaxReplaysExhausted",
    "StaleLease",
)

RULES: dict[str, Callable[[History], list[str]]] = {
    "H1": h1_confirmed_work_is_there,
    "H2": h2_nothing_comes_from_nowhere,
    "H3": h3_a_lease_has_one_holder,
    "H4": h4_a_stale_holder_changes_nothing,
    "H5": h5_one_end_for_each_life,
    "H6": h6_the_result_is_the_winners,
    "H7": h7_confirmed_moves_are_there_once,
    "H8": h8_a_repeat_acts_once,
    "H9": h9_a_reader_never_goes_back,
    "H12": h12_everything_fits_into_one_order,
    "H13": h13_everything_ends,
    "refusals": nobody_was_told_nonsense,
}


def check(history: History, deliveries: Iterable[Mapping[str, Any]] | None = None) -> list[str]:
    """What breaks any rule, each with its number; of a rule that is broken often, the beginning."""
    broken = {name: rule(history) for name, rule in RULES.items()}
    if deliveries is not None:
        broken["H10"] = h10_a_subscriber_misses_nothing(history, deliveries)
    found = []
    for name, problems in broken.items():
        found += [f"{name} {problem}" for problem in problems[:SHOWN]]
        if len(problems) > SHOWN:
            found.append(f"{name} and {len(problems) - SHOWN} more")
    return found


_END = {"complete": "completed", "fail": "failed"}
_DONE = ("revoked", "replayed", "promoted", "unblocked", "changed", "cancelled")
_BY_LEASE = ("completed", "failed", "retry_scheduled", "delayed", "released", "held")


def _claim_of(call: Call, item: Mapping[str, Any] | None) -> Call:
    """A claim as one of the executions it leased sees it; without an item, as if unanswered."""
    return Call(
        process=call.process,
        op="claim",
        invoked=call.invoked,
        returned=inf if item is None else call.returned,
        verdict=UNKNOWN if item is None else OK,
        args={"claim": call.args["claim"]},
        answer=item or {},
    )


def _is_first_answer_again(history: History, call: Call) -> bool:
    """Whether the log shows that this lease did this before anybody got a higher epoch."""
    events = history.events.get(call.args["id"], [])
    if call.op == "cancel_held":
        # What is cancelled is cancelled, whoever asks.
        return any(event.kind == "cancelled" for event in events)
    bound = next(
        (e.version for e in events if e.kind in LEASING and (e.epoch or 0) > call.args["epoch"]),
        None,
    )
    return any(bound is None or event.version < bound for event in history.written(call))


def _taken_away(history: History) -> dict[tuple[str, str], float]:
    """When somebody was first told that a lease is revoked, or its execution cancelled."""
    found: dict[tuple[str, str], float] = {}
    for call in history.of("revoke", "cancel"):
        if call.is_ok:
            for event in history.written(call):
                if event.lease is not None:
                    key = call.args["id"], event.lease
                    found[key] = min(found.get(key, call.returned), call.returned)
    return found
