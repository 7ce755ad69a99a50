"""The rules themselves: each finds the history that breaks it, and lets a good one pass."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from . import rules
from .history import OK, REFUSED, UNKNOWN, Call, Event, History, Row, calls_of
from .linear import linearise

X = "{fp:0}:01900000-0000-7000-8000-000000000001"
Y = "{fp:0}:01900000-0000-7000-8000-000000000002"
A, B, C = "lease-a", "lease-b", "lease-c"


def call(op: str, at: float, until: float | None = None, /, **facts: Any) -> Call:
    """A call from `at` on; without `until` its answer never came. `no=` names a refusal."""
    answer = facts.pop("answer", {})
    error = facts.pop("no", None)
    process = facts.pop("process", "p")
    if until is None:
        return Call(process=process, op=op, invoked=at, args=facts)
    return Call(
        process=process,
        op=op,
        invoked=at,
        returned=until,
        verdict=REFUSED if error else OK,
        args=facts,
        answer={"error": error} if error else answer,
    )


def submit(at: float, id: str = X, *, stands_for: str | None = None, **facts: Any) -> Call:
    args = {"id": id, "key": None, "payload": "1", "is_trimmed": False} | facts
    return call("submit", at, at + 0.5, **args, answer={"id": stands_for or id})


def claim(at: float, lease: str, epoch: int, attempt: int, kind: str = "claimed") -> Call:
    item = {"id": X, "lease": lease, "epoch": epoch, "attempt": attempt, "kind": kind}
    return call("claim", at, at + 0.5, claim=lease, answer={"items": [item]})


def complete(
    at: float, lease: str, epoch: int, *, until: float | None = -1, result: str = "r", **facts: Any
) -> Call:
    until = at + 0.5 if until == -1 else until
    return call("complete", at, until, id=X, lease=lease, epoch=epoch, result=result, **facts)


def read(at: float, version: int, state: str, epoch: int, **facts: Any) -> Call:
    answer = {
        "version": version,
        "state": state,
        "epoch": epoch,
        "result": facts.pop("result", None),
    }
    return call("read", at, at + 0.1, id=X, **facts, answer=answer)


def operation(op: str, at: float, name: str, outcome: str, version: int, state: str) -> Call:
    answer = {"outcome": outcome, "version": version, "state": state, "why": None}
    return call(op, at, at + 0.1, id=X, reason=name, if_version=None, answer=answer)


def log(*events: tuple[Any, ...]) -> list[Event]:
    """Events as (kind, lease, epoch, attempt, detail), numbered."""
    names = ("kind", "lease", "epoch", "attempt", "detail")
    return [
        Event(version=n, **dict(zip(names, event, strict=False)))
        for n, event in enumerate(events, start=1)
    ]


def good() -> History:
    """A worker that lost its lease, another that took over and won, a cancel that came too late,
    a replay, and an end that nobody confirmed."""
    return History(
        calls=[
            submit(0),
            claim(1, A, 1, 1),
            call("renew", 1.6, 1.7, items=[{"id": X, "lease": A, "epoch": 1}],
                 answer={"lost": [], "busy": []}),
            claim(5, B, 2, 2, "reclaimed"),
            complete(6, A, 1, no="StaleLease", result="of a zombie"),
            call("progress", 6.1, 6.2, id=X, lease=B, epoch=2),
            complete(6.5, B, 2, result="of the winner"),
            complete(7.2, B, 2, result="once more, with other words"),
            read(8, 5, "completed", 2, result="of the winner"),
            call("cancel", 8.2, 8.3, id=X, reason="p/1", if_version=None, no="ExecutionTerminal"),
            operation("replay", 9, "p/2", "replayed", 6, "waiting"),
            complete(9.5, B, 2, result="and again"),
            claim(10, C, 3, 3),
            complete(11, C, 3, until=None, result="of nobody knows"),
            read(12, 8, "completed", 3, result="of nobody knows"),
        ],
        rows={X: Row(public_state="completed", version=8, epoch=3, payload="1",
                     result="of nobody knows")},
        events={X: log(
            ("submitted",),
            ("claimed", A, 1, 1),
            ("lease_expired", A, 1, 1),
            ("reclaimed", B, 2, 2),
            ("completed", B, 2, 2),
            ("replayed", None, None, None, {"reason": "p/2"}),
            ("claimed", C, 3, 3),
            ("completed", C, 3, 3),
        )},
    )  # fmt: skip


GOOD_PAGES = [
    {"events": [], "cursor": "0", "what": "start"},
    {"events": [[X, n] for n in range(1, 5)], "cursor": "4", "what": "page"},
    {"events": [], "cursor": "4", "what": "start"},
    {"events": [[X, n] for n in range(4, 9)], "cursor": "8", "what": "page"},
]


def broken(history: History, pages: list[dict[str, Any]] | None = None) -> set[str]:
    return {problem.split(" ")[0] for problem in rules.check(history, pages)}


def test_a_good_history_passes() -> None:
    assert rules.check(good(), GOOD_PAGES) == []


def test_an_empty_history_passes() -> None:
    assert rules.check(History(), []) == []


def test_h1_finds_confirmed_work_that_is_lost() -> None:
    history = good()
    history.calls.append(submit(13, Y))
    assert broken(history) == {"H1"}


def test_h1_finds_work_that_is_not_what_was_handed_in() -> None:
    history = good()
    history.rows[X] = replace(history.rows[X], payload="2")
    assert broken(history) == {"H1"}


def test_h1_lets_work_go_whose_retention_has_passed() -> None:
    history = good()
    history.calls[0] = submit(0, is_trimmed=True)
    del history.rows[X]
    assert broken(history) == set()


def test_h2_finds_work_that_nobody_submitted() -> None:
    history = good()
    history.rows[Y] = Row(public_state="completed", version=1, epoch=0)
    assert "H2" in broken(history)


def test_h2_finds_a_second_execution_for_one_key() -> None:
    history = good()
    history.calls.append(submit(13, Y, stands_for=X, key="k"))
    assert broken(history) == set()
    history.rows[Y] = Row(public_state="completed", version=1, epoch=0)
    assert "H2" in broken(history)


def test_h3_finds_an_epoch_with_two_holders() -> None:
    history = good()
    history.calls.append(claim(5.2, C, 2, 2, "reclaimed"))
    assert "H3" in broken(history)


def test_h3_finds_epochs_that_fall() -> None:
    history = good()
    history.calls.append(claim(20, "lease-d", 1, 3))
    assert "H3" in broken(history)


def test_h3_finds_a_lease_that_nobody_asked_for() -> None:
    history = good()
    history.calls = [one for one in history.calls if one.args.get("claim") != C]
    assert "H3" in broken(history)


def test_h4_finds_a_success_under_a_higher_epoch() -> None:
    history = good()
    history.calls.append(complete(6.1, A, 1))
    assert "H4" in broken(history)


def test_h4_finds_a_renewal_under_a_higher_epoch() -> None:
    history = good()
    items = [{"id": X, "lease": A, "epoch": 1}]
    history.calls.append(call("renew", 6.1, 6.2, items=items, answer={"lost": [], "busy": []}))
    assert "H4" in broken(history)


def test_h4_finds_a_success_long_after_the_lease_ran_out() -> None:
    history = good()
    history.calls.append(call("progress", 4.9, 4.95, id=X, lease=A, epoch=1))
    assert "H4" in broken(history)


def test_h4_finds_a_success_after_the_lease_was_revoked() -> None:
    history = History(
        calls=[
            submit(0),
            claim(1, A, 1, 1),
            operation("revoke", 2, "p/1", "revoked", 3, "active"),
            call("progress", 2.5, 2.6, id=X, lease=A, epoch=1),
        ],
        rows={X: Row(public_state="active", version=3, epoch=2)},
        events={X: log(("submitted",), ("claimed", A, 1, 1),
                       ("lease_revoked", A, 2, 1, {"reason": "p/1"}))},
    )  # fmt: skip
    assert "H4" in broken(history)


def test_h4_finds_a_stale_holder_in_the_log() -> None:
    history = good()
    history.events[X][4] = replace(history.events[X][4], lease=A, epoch=1)
    assert "H4" in broken(history)


def test_h5_finds_two_ends_in_one_life() -> None:
    history = good()
    history.events[X] = log(
        *((e.kind, e.lease, e.epoch, e.attempt, e.detail) for e in history.events[X]),
        ("cancelled", None, 3, 3, {"reason": "p/9"}),
    )
    assert "H5" in broken(history)


def test_h5_finds_a_row_that_ended_otherwise() -> None:
    history = good()
    history.rows[X] = replace(history.rows[X], public_state="failed", result=None)
    assert "H5" in broken(history)


def test_h5_finds_an_end_by_a_call_that_was_refused() -> None:
    history = good()
    history.calls[13] = complete(11, C, 3, no="StaleLease", result="of nobody knows")
    assert "H5" in broken(history)


def test_h5_finds_a_confirmed_end_that_never_was() -> None:
    history = good()
    history.calls[13] = complete(11, C, 3, result="of nobody knows")
    history.events[X].pop()
    history.rows[X] = replace(history.rows[X], public_state="active", version=7, result=None)
    assert "H5" in broken(history)


def test_h6_finds_a_result_of_somebody_else() -> None:
    history = good()
    history.rows[X] = replace(history.rows[X], result="of a zombie")
    assert broken(history) == {"H6"}


def test_h6_finds_a_repeat_that_overwrote_the_result() -> None:
    history = good()
    history.calls[8] = read(8, 5, "completed", 2, result="once more, with other words")
    assert broken(history) == {"H6"}


def test_h7_finds_a_confirmed_move_that_is_not_in_the_log() -> None:
    history = good()
    history.calls.append(operation("priority", 9.3, "p/3", "changed", 7, "waiting"))
    assert "H7" in broken(history)


def test_h7_finds_a_reader_who_does_not_see_a_confirmed_move() -> None:
    history = good()
    history.calls.append(read(9.2, 5, "completed", 2, result="of the winner", process="q"))
    assert "H7" in broken(history)


def test_h8_finds_a_repeat_with_another_answer() -> None:
    history = good()
    history.calls += [
        submit(13, Y, stands_for=X, key="k"),
        submit(14, Y, stands_for=Y, key="k"),
    ]
    assert "H8" in broken(history)


def test_h8_finds_an_operation_that_took_effect_twice() -> None:
    history = good()
    history.events[X] = log(
        *((e.kind, e.lease, e.epoch, e.attempt, e.detail) for e in history.events[X]),
        ("replayed", None, None, None, {"reason": "p/2"}),
    )
    assert "H8" in broken(history)


def test_h8_finds_a_lease_that_ended_an_execution_twice() -> None:
    history = good()
    history.events[X][7] = replace(history.events[X][7], lease=B, epoch=2)
    assert "H8" in broken(history)


@pytest.mark.parametrize("if_version", [None, 1])
def test_h8_lets_a_cancel_act_again_after_a_replay_unless_it_named_a_version(
    if_version: int | None,
) -> None:
    cancel = operation("cancel", 1, "p/1", "cancelled", 4, "cancelled")
    cancel.args = {**cancel.args, "if_version": if_version}
    cancel.returned = 9.0
    history = History(
        calls=[submit(0), cancel, operation("replay", 2, "q/1", "replayed", 3, "waiting")],
        rows={X: Row(public_state="cancelled", version=4, epoch=0)},
        events={X: log(
            ("submitted",),
            ("cancelled", None, 0, None, {"reason": "p/1"}),
            ("replayed", None, None, None, {"reason": "q/1"}),
            ("cancelled", None, 0, None, {"reason": "p/1"}),
        )},
    )  # fmt: skip
    assert broken(history) == (set() if if_version is None else {"H8"})


def test_h9_finds_a_process_that_reads_what_it_knew_to_be_over() -> None:
    history = good()
    history.calls.append(read(8.15, 4, "active", 2))
    assert "H9" in broken(history)


def test_h9_finds_a_read_from_before_ones_own_write() -> None:
    history = good()
    history.calls.append(read(7.05, 4, "active", 2))
    assert "H9" in broken(history)
    history = good()
    history.calls.append(read(6.6, 4, "active", 2))
    assert broken(history) == set()


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param([*GOOD_PAGES[:2], {**GOOD_PAGES[3], "events": [[X, 6]]}], id="a gap"),
        pytest.param(GOOD_PAGES[:3], id="the end is missing"),
        pytest.param([*GOOD_PAGES[:2], GOOD_PAGES[3]], id="again without a new start"),
        pytest.param([*GOOD_PAGES, {**GOOD_PAGES[1], "events": [[Y, 1]]}], id="from nowhere"),
        pytest.param([*GOOD_PAGES, {**GOOD_PAGES[2], "what": "expired"}], id="an expired cursor"),
    ],
)
def test_h10_finds_a_subscriber_that_missed_something(pages: list[dict[str, Any]]) -> None:
    assert broken(good(), pages) == {"H10"}


def test_h12_finds_effects_in_the_wrong_order() -> None:
    """The replay was confirmed before the completion it follows in the log was asked for."""
    history = good()
    history.calls[10] = operation("replay", 6.3, "p/2", "replayed", 6, "waiting")
    assert "H12" in broken(history)


def test_h12_finds_an_answer_that_is_right_at_no_moment() -> None:
    history = good()
    history.calls.append(
        call("cancel", 5.6, 5.7, id=X, reason="p/7", if_version=None, no="ExecutionTerminal")
    )
    assert broken(history) == {"H12"}


def test_h12_finds_a_refusal_with_the_wrong_word() -> None:
    history = good()
    history.calls[4] = complete(6, A, 1, no="LeaseRevoked")
    assert broken(history) == {"H12"}


def test_h12_finds_a_transition_that_is_none() -> None:
    history = good()
    history.events[X][2] = replace(history.events[X][2], kind="delayed")
    assert "H12" in broken(history)


@pytest.mark.parametrize(
    ("reason", "is_found"), [("waiting_for_quota", False), ("paused_by_policy", True)]
)
def test_h12_lets_an_operator_take_an_execution_out_of_a_line(reason: str, is_found: bool) -> None:
    """It got into the line quietly, so the log does not say when. A hold would stand in the log."""
    history = History(
        calls=[submit(0), operation("retry", 1, "p/1", "unblocked", 2, "waiting")],
        rows={X: Row(public_state="waiting", version=2, epoch=0)},
        events={X: log(
            ("submitted",),
            ("unblocked", None, None, None, {"reason": "p/1", "blocking_reason": reason}),
        )},
    )  # fmt: skip
    assert ("H12" in broken(history)) is is_found


def test_h12_finds_a_row_that_the_log_does_not_lead_to() -> None:
    history = good()
    history.rows[X] = replace(history.rows[X], epoch=4)
    assert broken(history) == {"H12"}


def test_h12_finds_a_log_with_a_gap() -> None:
    history = good()
    del history.events[X][2]
    assert "H12" in broken(history)


def test_h12_goes_back_when_two_calls_may_have_written_one_line() -> None:
    """Both may have completed it, as far as the log tells. Only the second was confirmed early
    enough for the read; the first one is heard again later."""
    events = log(("submitted",), ("claimed", A, 1, 1), ("completed", A, 1, 1))
    claimed = call("claim", 1, 1.5, claim=A, answer={"lease": A, "epoch": 1, "attempt": 1})
    calls = [
        submit(0),
        claimed,
        complete(2.0, A, 1, until=9.0),
        complete(2.1, A, 1, until=2.4),
        read(3.0, 3, "completed", 1),
    ]
    assert linearise(events, calls) is None
    calls[3] = complete(3.5, A, 1, until=4.0)
    assert linearise(events, calls) is None
    calls[2] = complete(3.4, A, 1, until=9.0)
    assert "no order" in (linearise(events, calls) or "")


def test_h12_knows_that_a_claim_may_hear_of_its_lease_too_late() -> None:
    """Its first answer was lost; when it was repeated, the lease had run out."""
    history = good()
    history.calls[1] = call("claim", 1, 4.5, claim=A, answer={"items": []})
    history.calls = [one for one in history.calls if one.op != "renew"]
    assert broken(history) == set()


def test_h13_finds_what_never_ended() -> None:
    history = good()
    history.events[X].pop()
    history.calls = history.calls[:-2]
    history.rows[X] = Row(public_state="active", version=7, epoch=3, payload="1")
    assert broken(history) == {"H13"}


def test_h13_lets_wait_what_an_operator_has_to_look_at() -> None:
    history = good()
    history.events[X][7] = Event(version=8, kind="held", lease=C, epoch=3, attempt=3)
    history.calls = [*history.calls[:-2], call("hold", 11, 11.5, id=X, lease=C, epoch=3)]
    history.rows[X] = Row(
        public_state="waiting", version=8, epoch=3, eligibility="blocked_by_operator", payload="1"
    )
    assert broken(history) == set()


def test_a_refusal_that_no_call_of_a_run_deserves_is_found() -> None:
    history = good()
    history.calls[4] = complete(6, A, 1, no="InvalidInput")
    assert "refusals" in broken(history)


def test_a_process_that_was_killed_leaves_a_call_without_an_answer() -> None:
    lines = [
        {"t": 1.0, "n": 1, "op": "read", "args": {"id": X}},
        {"t": 1.1, "n": 1, "verdict": OK, "answer": {"version": None}},
        {"t": 1.2, "n": 2, "op": "read", "args": {"id": X}},
        {"t": 1.3, "n": 2, "verdict": UNKNOWN, "answer": {"error": "ConnectionLost"}},
        {"t": 1.4, "n": 3, "op": "read", "args": {"id": X}},
    ]
    texts = [json.dumps(line) for line in lines]
    first, second, third = calls_of("p", [*texts, '{"t": 1.5, "n": 3, "verd'])
    assert (first.verdict, first.returned) == (OK, 1.1)
    assert (second.verdict, second.returned) == (UNKNOWN, inf)
    assert (third.verdict, third.returned) == (UNKNOWN, inf)
