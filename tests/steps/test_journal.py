"""How a run goes through the journal of earlier ones."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from flowfabric.core.states import StepKind
from flowfabric.core.step import StepRecord
from flowfabric.handlers.journal import Entry, Journal, Mismatch

AT = datetime(2026, 1, 1, tzinfo=UTC)


def begin(
    journal: Journal,
    name: str,
    *,
    beside: bool = False,
    alone: bool = True,
    kind: StepKind = StepKind.STEP,
) -> Entry:
    return journal.begin(name, kind, is_own=not beside, is_alone=alone)


def recorded(*entries: Entry) -> Journal:
    """The journal that a run leaves which recorded these."""
    return Journal(
        StepRecord(
            name=one.name,
            occurrence=one.occurrence,
            position=one.position,
            is_sequential=one.is_sequential,
            kind=one.kind,
            value=b"1",
            encoding=None,
            recorded_at=AT,
            until_at=AT if one.kind is StepKind.SLEEP else None,
            attempt=1,
        )
        for one in entries
    )


def test_steps_in_a_row_have_positions_in_a_row():
    first = Journal()
    found = [begin(first, name) for name in ("a", "b", "a", "c")]
    assert [one.position for one in found] == [0, 1, 2, 3]
    assert [one.occurrence for one in found] == [0, 0, 1, 0]
    assert all(one.is_sequential and one.record is None for one in found)


def test_a_later_run_finds_every_step_in_its_place():
    first = Journal()
    again = recorded(*[begin(first, name) for name in ("a", "b", "a")])
    found = [begin(again, name) for name in ("a", "b", "a")]
    assert [one.record is not None for one in found] == [True] * 3
    again.end("returned")
    new = begin(again, "c")
    assert (new.record, new.position) == (None, 3)


def test_steps_beside_the_handler_share_a_position_and_come_in_any_order():
    first = Journal()
    entries = [
        begin(first, "a"),
        *[begin(first, f"x{n}", beside=True, alone=n == 0) for n in range(4)],
        begin(first, "b"),
    ]
    assert [one.position for one in entries] == [0, 1, 1, 1, 1, 2]
    assert [one.is_sequential for one in entries] == [True, False, False, False, False, True]
    again = recorded(*entries)
    order = ["a", "x2", "x0", "x3", "x1", "b"]
    for name in order:
        assert begin(again, name, beside=name.startswith("x")).record is not None
    again.end("returned")


def test_branches_may_be_quicker_or_slower_than_last_time():
    first = Journal()
    entries = [
        begin(first, "x", beside=True),
        begin(first, "a", alone=False),
        begin(first, "y", beside=True),
        begin(first, "b"),
    ]
    again = recorded(*entries)
    for name in ("a", "b"):  # the branch has not come to x yet
        assert begin(again, name).record is not None
    assert begin(again, "c").position > entries[-1].position
    for name in ("x", "y"):
        assert begin(again, name, beside=True).record is not None


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (["a", "renamed"], "b"),
        (["new"], "a"),
        (["b"], "a"),
        (["a", "c"], "b"),
        (["a", "b", "renamed"], "c"),
    ],
)
def test_another_step_in_its_place_is_a_mismatch_that_names_the_recorded_one(code, step):
    first = Journal()
    again = recorded(*[begin(first, name) for name in ("a", "b", "c")])
    *before, odd = code
    for name in before:
        begin(again, name)
    with pytest.raises(Mismatch) as found:
        begin(again, odd)
    assert found.value.step == step
    assert repr(odd) in found.value.problem


def test_a_step_that_was_started_and_not_recorded_leaves_a_gap_that_is_no_mismatch():
    first = Journal()
    begin(first, "fails")
    again = recorded(begin(first, "b"), begin(first, "c"))
    assert begin(again, "fails").record is None
    assert begin(again, "b").record is not None
    assert begin(again, "c").record is not None


def test_what_was_recorded_and_not_reached_is_named():
    first = Journal()
    again = recorded(
        begin(first, "a"), begin(first, "x", beside=True), begin(first, "y", beside=True)
    )
    begin(again, "a")
    begin(again, "y", beside=True)
    with pytest.raises(Mismatch, match="x: was recorded, but the handler returned without it"):
        again.end("returned")


def test_a_sleep_that_is_not_reached_is_nothing_to_hold_for():
    first = Journal()
    again = recorded(begin(first, "a"), begin(first, "nap", kind=StepKind.SLEEP, beside=True))
    begin(again, "a")
    again.end("returned")


def failed(entry: Entry) -> Entry:
    """As the step is recorded when it has failed."""
    entry.kind = StepKind.FAILURE
    return entry


def test_a_failure_is_found_in_the_place_of_its_step():
    first = Journal()
    again = recorded(begin(first, "a"), failed(begin(first, "b")), begin(first, "c"))
    found = [begin(again, name).record for name in ("a", "b", "c")]
    assert [one and one.kind for one in found] == [StepKind.STEP, StepKind.FAILURE, StepKind.STEP]
    again.end("returned")


def test_a_failure_has_its_place_like_any_step():
    first = Journal()
    steps = [begin(first, "a"), failed(begin(first, "b"))]
    again = recorded(*steps)
    begin(again, "a")
    with pytest.raises(Mismatch, match="b: was recorded"):
        again.end("returned")
    with pytest.raises(Mismatch) as found:
        begin(again, "renamed")
    assert found.value.step == "b"
    with pytest.raises(Mismatch, match="recorded as a failure, but the code makes it a sleep"):
        begin(again, "b", kind=StepKind.SLEEP)


def test_another_kind_is_a_mismatch():
    first = Journal()
    again = recorded(begin(first, "nap", kind=StepKind.SLEEP))
    with pytest.raises(Mismatch, match="recorded as a sleep"):
        begin(again, "nap")


def test_going_through_a_journal_costs_the_same_for_each_step():
    def seconds(steps: int) -> float:
        first = Journal()
        again = recorded(*[begin(first, f"step {n}") for n in range(steps)])
        started = time.thread_time()
        for n in range(steps):
            begin(again, f"step {n}")
        again.end("returned")
        return time.thread_time() - started

    # Ten times the steps: ten times the time, where a look through all of them takes a hundred.
    assert min(seconds(30_000) for _ in range(2)) < 40 * min(seconds(3_000) for _ in range(3))
