"""Admission at the claim: slots, lines, releases and rates."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.core.why import SENTENCES
from support.admission import Admission
from support.database import home
from support.factories import Item, refused
from support.forms import are_distributed
from support.proofs import drawn


@pytest.fixture
def admission(engine):
    return Admission(engine, has_all=True)


async def sweep(admission):
    return await admission.engine.connection.fetchrow(f"select * from ff.sweep_gates('{home()}')")


async def states(engine):
    rows = await engine.connection.fetch(
        "select eligibility::text, line_id from ff.execution order by execution_id"
    )
    return [(row["eligibility"], row["line_id"]) for row in rows]


async def test_no_more_run_than_the_limit(admission, engine):
    gate = await admission.quota(concurrency=2)
    await admission.submit(5, quotas=[gate])

    leases = await engine.claim(10)

    assert len(leases) == 2
    assert await engine.claim(10, instance="other") == []
    assert (await admission.gate())["running"] == 2
    assert (await admission.gate())["in_line"] == 3
    assert await states(engine) == [("not_applicable", None)] * 2 + [("blocked_by_quota", gate)] * 3


async def test_what_a_claim_leases_makes_no_line(admission, engine):
    first = await admission.quota("tenant", "a", concurrency=1)
    second = await admission.quota("tenant", "b", concurrency=1)
    await admission.submit(2, quotas=[first])
    await admission.submit(1, quotas=[second])
    assert len(await engine.claim(3)) == 2
    rows = await engine.connection.fetch("select gate_id from ff.line")
    assert [row["gate_id"] for row in rows] == [first]


async def test_a_freed_slot_admits_the_first_in_line(admission, engine):
    gate = await admission.quota(concurrency=1)
    first, second, third = await admission.submit(3, quotas=[gate])

    lease = await engine.take(first.id)
    assert await engine.claim(10) == []
    await engine.complete(lease)

    assert [found.execution_id for found in await engine.claim(10)] == [second.id]
    assert (await engine.row(third.id))["public_state"] == "rate_limited"


ENDS = {
    "complete": lambda engine, lease: engine.complete(lease),
    "fail": lambda engine, lease: engine.fail(lease, "permanent"),
    "release": lambda engine, lease: engine.release(lease),
    "delay": lambda engine, lease: engine.delay(lease, timedelta(hours=1)),
    "hold": lambda engine, lease: engine.hold(lease, "by test"),
    "cancel": lambda engine, lease: engine.cancel(lease.execution_id),
    "revoke": lambda engine, lease: engine.revoke(lease.execution_id),
}


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_lease_gives_its_slot_back(admission, engine, end):
    gate = await admission.quota(concurrency=1)
    await admission.submit(1, quotas=[gate])
    lease = await engine.take()
    assert (await admission.gate())["running"] == 1

    await ENDS[end](engine, lease)

    assert (await admission.gate())["running"] == 0


async def test_an_expired_lease_gives_its_slot_back(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    lost = await engine.take()
    await clock.advance(hours=1)
    await engine.expire()
    assert (await admission.gate())["running"] == 0

    (found,) = await engine.claim(10)

    # The lost one is first in order, and takes the only slot again.
    assert (found.execution_id, found.claim_kind) == (lost.execution_id, "reclaimed")
    assert (await admission.gate())["running"] == 1


async def test_a_timed_out_attempt_gives_its_slot_back(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(concurrency=1)
    policy = {
        "timeout_policy": {"attempt_timeout_ms": 1000},
        "retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 1000}},
    }
    await admission.submit(1, quotas=[gate], policy=policy)
    await engine.take(ttl=timedelta(hours=1))
    await clock.advance(seconds=2)
    await engine.expire_executions()
    assert (await admission.gate())["running"] == 0


async def test_a_row_to_reclaim_waits_in_line_for_its_slot(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    first = await engine.take()
    await engine.revoke(first.execution_id)
    taken = await engine.take()
    assert taken.execution_id == first.execution_id
    second = await engine.claim(10)
    assert second == []
    await engine.revoke(taken.execution_id)
    await admission.one("set_quota", quota="api", concurrency=1)
    assert [lease.execution_id for lease in await engine.claim(10)] == [first.execution_id]


async def test_a_submit_joins_a_closed_line(admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    await engine.take()
    await engine.claim(10)

    (late,) = await admission.submit(1, quotas=[gate])
    if are_distributed():  # there the next claim puts it into the line
        assert await engine.claim(10) == []

    row = await engine.connection.fetchrow(
        "select eligibility::text, line_id, blocking_reason::text from ff.execution "
        "where execution_id = $1",
        late.id,
    )
    assert tuple(row) == ("blocked_by_quota", gate, "waiting_for_quota")


async def test_a_saturated_key_delays_no_other(admission, engine):
    acme = await admission.quota("tenant", "acme", concurrency=1)
    other = await admission.quota("tenant", "initech", concurrency=1)
    await admission.submit(300, quotas=[acme])
    (theirs,) = await admission.submit(1, quotas=[other])

    leases = await engine.claim(2)

    assert theirs.id in [lease.execution_id for lease in leases]
    assert len(leases) == 2


async def test_a_row_under_two_gates_leaves_neither_idle(admission, engine):
    a, b = await admission.quota("a", concurrency=1), await admission.quota("b", concurrency=1)
    (first,) = await admission.submit(1, quotas=[a])
    (both,) = await admission.submit(1, quotas=[a, b])
    (alone,) = await admission.submit(1, quotas=[b])

    leases = await engine.claim(10)

    assert [lease.execution_id for lease in leases] == [first.id, alone.id]
    for lease in leases:
        await engine.complete(lease)
    assert [lease.execution_id for lease in await engine.claim(10)] == [both.id]


async def test_a_higher_limit_opens_the_line(admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(3, quotas=[gate])
    await engine.claim(10)
    assert await engine.claim(10) == []
    await admission.one("set_quota", quota="api", concurrency=3)
    assert len(await engine.claim(10)) == 2


async def test_a_higher_rate_opens_the_line(admission, engine):
    gate = await admission.quota(rate=1, rate_window_ms=60000)
    await admission.submit(3, quotas=[gate])
    assert len(await engine.claim(10)) == 1
    await admission.one("set_quota", quota="api", rate=3)
    assert len(await engine.claim(10)) == 2


async def test_a_lower_limit_stops_nobody_and_starts_nobody(admission, engine):
    gate = await admission.quota(concurrency=3)
    await admission.submit(5, quotas=[gate])
    leases = await engine.claim(10)
    await admission.one("set_quota", quota="api", concurrency=1)
    await engine.complete(leases[0])
    await engine.complete(leases[1])
    assert await engine.claim(10) == []
    await engine.complete(leases[2])
    assert len(await engine.claim(10)) == 1


async def test_those_in_line_start_when_their_quota_is_deleted(admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(3, quotas=[gate])
    await engine.claim(10)
    await admission.one("delete_quota", quota="api")
    assert len(await engine.claim(10)) == 2


async def test_the_line_keeps_the_order_of_priority(admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    lease = await engine.take()
    await engine.claim(10)
    (urgent,) = await admission.submit(1, quotas=[gate], priority=9)
    await engine.complete(lease)
    await engine.take(urgent.id)


async def test_a_row_in_line_can_be_cancelled_and_blocked(admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    await engine.take()
    await engine.claim(10)
    parked = (await engine.rows())[1]["execution_id"]
    assert (await engine.cancel(parked)).word == "cancelled"
    assert (await states(engine))[1] == ("not_applicable", None)


async def test_an_unblocked_row_leaves_the_line_and_is_parked_again(admission, engine):
    gate = await admission.quota(concurrency=1)
    _, parked = await admission.submit(2, quotas=[gate])
    await engine.take()
    await engine.claim(10)
    await engine.unblock(parked.id)
    assert (await states(engine))[1] == ("eligible_now", None)
    assert await engine.claim(10) == []
    assert (await states(engine))[1] == ("blocked_by_quota", gate)


async def test_a_grant_takes_a_slot_or_is_refused(admission, engine):
    """A refused grant takes neither a slot nor a start."""
    gate = await admission.quota(concurrency=1, rate=5, rate_window_ms=3_600_000)
    first, second = await admission.submit(2, quotas=[gate])
    await engine.grant_and_claim(first.id)
    assert (await admission.gate())["running"] == 1
    with refused("WF205", quota="api"):
        await engine.grant_and_claim(second.id)
    counted = await admission.gate()
    assert (counted["running"], counted["started"]) == (1, 1)


async def test_a_grant_beside_a_claim_costs_no_slot(admission, engine):
    gate = await admission.quota(concurrency=3)
    first, other, last = await admission.submit(3, quotas=[gate])
    await engine.grant(other.id, worker="other")
    assert [lease.execution_id for lease in await engine.claim(10)] == [first.id, last.id]
    assert (await admission.gate())["running"] == 2


async def test_claims_of_several_routes_and_mixed_work_take_slots(admission, engine):
    gate = await admission.quota(concurrency=2)
    other = await engine.register(task="tests.other")
    await admission.submit(2, quotas=[gate])
    await admission.submit(1, quotas=[gate], route=other)
    await admission.submit(1, route=other)
    assert len(await engine.claim(10)) == 3
    assert (await admission.gate())["running"] == 2
    assert (await admission.gate())["in_line"] == 1


async def test_releases_without_a_line_are_added_when_room_is_short_or_by_the_sweep(
    admission, engine
):
    gate = await admission.quota(concurrency=2)
    for _ in range(3):
        await admission.submit(2, quotas=[gate])
        for lease in await engine.claim(2):
            await engine.complete(lease)
    assert (await admission.gate())["running"] == 0
    (row,) = await engine.connection.fetch(f"select handled from ff.sweep_gates('{home()}')")
    assert row["handled"] == 1
    assert await engine.connection.fetchval("select count(*) from ff.gate_release") == 0


async def test_a_resumed_execution_takes_a_slot(admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(1, quotas=[gate])
    await engine.release(await engine.take())
    lease = await engine.take()
    assert lease.claim_kind == "resumed"
    assert (await admission.gate())["running"] == 1


async def test_a_paused_lane_holds_no_slot(admission, engine):
    gate = await admission.quota(concurrency=1)
    route = await engine.register(lane="slow")
    await admission.submit(1, quotas=[gate], route=route)
    await engine.connection.execute("select ff.set_lane($1, 'slow', 'paused')", engine.namespace)
    (ours,) = await admission.submit(1, quotas=[gate])
    await engine.take(ours.id)


async def test_a_refusing_quota_stores_nothing_when_it_is_full(admission, engine):
    gate = await admission.quota(concurrency=1, overflow="refuse")
    await admission.submit(1, quotas=[gate])
    await engine.take()
    (answer,) = await admission.submit(1, quotas=[gate])
    assert answer.word == "limit_reached"
    assert answer.detail["quota"] == "api"
    assert len(await engine.rows()) == 1


async def test_a_rate_lets_its_number_start_in_any_window(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(rate=3, rate_window_ms=60_000)
    await admission.submit(8, quotas=[gate])

    assert len(await engine.claim(10)) == 3
    await clock.advance(seconds=59)
    assert await engine.claim(10) == []
    # At most a sixtieth of the window too strict.
    await clock.advance(seconds=4)
    assert len(await engine.claim(10)) == 3


async def test_a_rate_is_used_evenly_as_starts_leave_the_window(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(rate=2, rate_window_ms=60_000)
    await admission.submit(4, quotas=[gate])
    assert len(await engine.claim(1)) == 1
    await clock.advance(seconds=30)
    assert len(await engine.claim(10)) == 1
    assert await engine.claim(10) == []
    await clock.advance(seconds=33)
    assert len(await engine.claim(10)) == 1
    assert await engine.claim(10) == []


async def test_a_resumed_execution_counts_no_start(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(rate=1, rate_window_ms=60_000)
    await admission.submit(1, quotas=[gate])
    await engine.release(await engine.take())
    assert (await engine.take()).claim_kind == "resumed"


async def test_a_resumed_execution_does_not_wait_for_a_rate_behind_those_that_start(
    admission, engine, clock
):
    await clock.freeze()
    gate = await admission.quota(rate=1, rate_window_ms=3_600_000)
    (first,) = await admission.submit(1, quotas=[gate], priority=0)
    await engine.release(await engine.take())
    # These come before it, and find no room.
    await admission.submit(5, quotas=[gate], priority=10)
    found = await engine.claim(2)
    assert [(one.execution_id, one.claim_kind) for one in found] == [(first.id, "resumed")]


async def stand_in_line_to_resume(admission, engine, **limits):
    """Make an execution that will resume wait for a slot behind two starts. Return it and these."""
    gate = await admission.quota(concurrency=2, rate_window_ms=3_600_000, **limits)
    (waiting,) = await admission.submit(1, quotas=[gate])
    await engine.release(await engine.take(waiting.id))
    await admission.submit(2, quotas=[gate], priority=10)
    starts = await engine.claim(2)
    assert len(starts) == 2
    assert await engine.claim(1) == []
    assert (await engine.row(waiting.id))["line_id"] == gate
    return waiting.id, starts


async def open_by_claim(admission, engine):
    pass


async def open_by_sweep(admission, engine):
    assert (await sweep(admission))["handled"] == 0


async def open_by_hold(admission, engine):
    answer = await admission.one(
        "check_admission", partition_key=home(), quota="api", key=None, ticket_id=uuid4()
    )
    assert answer["outcome"] == "rate_exceeded"


@pytest.mark.parametrize("opens", [open_by_claim, open_by_sweep, open_by_hold])
async def test_a_resumed_execution_in_line_for_a_slot_does_not_wait_for_the_rate(
    admission, engine, clock, opens
):
    await clock.freeze()
    waiting, starts = await stand_in_line_to_resume(admission, engine, rate=3)
    # These wait for the rate in the same line, and come first.
    gate = (await engine.row(waiting))["line_id"]
    behind = [one.id for one in await admission.submit(3, quotas=[gate], priority=10)]
    await engine.complete(starts[0])
    await opens(admission, engine)
    found = await engine.claim(2)
    assert [(one.execution_id, one.claim_kind) for one in found] == [(waiting, "resumed")]
    # Nothing else resumes, so the line is closed again.
    assert await engine.claim(2) == []
    assert not await engine.connection.fetchval("select is_open from ff.line")
    assert {(await engine.row(id_))["line_id"] for id_ in behind} == {gate}


async def test_a_claim_that_uses_up_a_rate_goes_on_to_those_that_resume(admission, engine, clock):
    await clock.freeze()
    waiting, starts = await stand_in_line_to_resume(admission, engine, rate=4)
    gate = (await engine.row(waiting))["line_id"]
    first, _ = await admission.submit(2, quotas=[gate], priority=10)
    for lease in starts:
        await engine.complete(lease)
    found = await engine.claim(2)
    assert [(one.execution_id, one.claim_kind) for one in found] == [
        (first.id, "fresh"),
        (waiting, "resumed"),
    ]


async def test_a_start_in_another_lane_that_uses_up_a_rate_lets_resume(admission, engine, clock):
    await clock.freeze()
    waiting, starts = await stand_in_line_to_resume(admission, engine, rate=4)
    gate = (await engine.row(waiting))["line_id"]
    await admission.submit(1, quotas=[gate], route=await engine.register(lane="other"))
    for lease in starts:
        await engine.complete(lease)
    assert len(await engine.claim(1, lanes=["other"])) == 1
    assert (await engine.take(waiting)).claim_kind == "resumed"


async def test_an_execution_to_be_reclaimed_waits_for_the_rate_in_a_closed_line(
    admission, engine, clock
):
    """Its attempt is interrupted, too, but a reclaim starts another one."""
    await clock.freeze()
    gate = await admission.quota(concurrency=2, rate=2, rate_window_ms=3_600_000)
    (lost,) = await admission.submit(1, quotas=[gate])
    await engine.take(lost.id, ttl=timedelta(seconds=1))
    (second,) = await admission.submit(1, quotas=[gate])
    await engine.take(second.id)
    await clock.advance(seconds=2)
    assert (await engine.expire())[0] == 1
    assert await engine.claim(1) == []
    assert (await engine.row(lost.id))["line_id"] == gate
    assert not await engine.connection.fetchval("select is_open from ff.line")


async def test_a_line_that_nobody_can_resume_from_is_closed_again(admission, engine, clock):
    await clock.freeze()
    waiting, starts = await stand_in_line_to_resume(admission, engine, rate=3)
    gate = (await engine.row(waiting))["line_id"]
    await admission.submit(1, quotas=[gate])
    await engine.complete(starts[0])
    await sweep(admission)
    assert await engine.connection.fetchval("select is_open from ff.line")
    await engine.cancel(waiting)
    await sweep(admission)
    assert not await engine.connection.fetchval("select is_open from ff.line")


async def test_a_repeated_submit_is_a_duplicate_though_its_quota_has_no_room_now(admission, engine):
    gate = await admission.quota(concurrency=2, overflow="refuse")
    keyed = Item(quotas=(gate,), key="k", fingerprint=b"x")
    first, second = await engine.submit(Item(quotas=(gate,))), await engine.submit(keyed)
    assert len(await engine.claim(2)) == 2
    assert (await engine.submit(Item(quotas=(gate,)))).word == "limit_reached"
    # The answers were lost. Nothing is to be stored, so nothing needs room.
    assert (await engine.submit(Item(quotas=(gate,), id=first.id))).word == "duplicate"
    assert (await engine.submit(keyed)).id == second.id


async def test_a_quota_that_refuses_has_room_as_soon_as_its_line_is_served(
    admission, engine, clock
):
    await clock.freeze()
    slots = await admission.quota("slots", concurrency=1, overflow="refuse")
    await admission.submit(2, quotas=[slots])
    lease = await engine.take()
    assert await engine.claim(1) == []
    await engine.complete(lease)
    assert (await admission.submit(1, quotas=[slots]))[0].word == "limit_reached"
    await engine.complete(await engine.take())
    # No sweep has removed the empty line.
    assert (await admission.submit(1, quotas=[slots]))[0].word == "created"
    rate = await admission.quota("rate", rate=1, rate_window_ms=1000, overflow="refuse")
    await admission.submit(1, quotas=[rate])
    assert len(await engine.claim(5)) == 2
    assert (await admission.submit(1, quotas=[rate]))[0].word == "limit_reached"
    await clock.advance(seconds=2)
    assert (await admission.submit(1, quotas=[rate]))[0].word == "created"


async def test_a_clock_that_goes_back_lets_no_more_start(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(rate=2, rate_window_ms=60_000)
    await admission.submit(4, quotas=[gate])
    assert len(await engine.claim(10)) == 2
    await clock.advance(seconds=-30)
    assert await engine.claim(10) == []
    await clock.advance(hours=-5)
    await sweep(admission)
    assert await engine.claim(10) == []
    await clock.advance(minutes=2)
    assert len(await engine.claim(10)) == 2


async def test_a_shut_budget_starts_nobody_until_its_reset(admission, engine):
    budget = await admission.budget(tokens=100)
    await admission.submit(3, budgets=[budget])
    lease = await engine.take()
    # Reaching the limit is no breach, and stops new starts.
    assert (await admission.report(lease, {"tokens": 100})).word == "ok"

    assert await engine.claim(10) == []
    assert (await admission.status())["in_line"] == 2
    assert (await states(engine))[1] == ("blocked_by_budget", budget)
    await admission.one("reset_budget", budget="monthly")
    assert len(await engine.claim(10)) == 2


async def test_a_shut_budget_in_front_delays_no_other(admission, engine):
    budget = await admission.budget(tokens=1)
    await admission.submit(50, budgets=[budget])
    lease = await engine.take()
    await admission.report(lease, {"tokens": 1})
    free = await engine.submit()
    assert [found.execution_id for found in await engine.claim(1)] == [free.id]


async def test_a_running_execution_is_told_of_a_hard_breach_and_goes_on(admission, engine):
    budget = await admission.budget(tokens=100)
    await admission.submit(1, budgets=[budget])
    lease = await engine.take()
    answer = await admission.report(lease, {"tokens": 101})
    assert (answer.word, answer.detail["limit"]) == ("hard_breach", 100)
    assert (await engine.complete(lease)).word == "completed"


async def test_a_budget_that_suspends_takes_the_lease_and_resumes_the_attempt(admission, engine):
    budget = await admission.budget(tokens=100, on_exceed="suspend")
    gate = await admission.quota(concurrency=1)
    await admission.submit(1, budgets=[budget], quotas=[gate])
    lease = await engine.take()
    await admission.report(lease, {"tokens": 90}, "a")

    answer = await admission.report(lease, {"tokens": 20}, "b")

    assert answer.word == "suspended"
    assert (await admission.gate())["running"] == 0
    assert (await states(engine))[0] == ("blocked_by_budget", budget)
    assert (await engine.complete(lease)).word == "not_active"
    assert (await admission.report(lease, {"tokens": 20}, "b")).word == "suspended"
    assert await engine.claim(10) == []
    await admission.one("reset_budget", budget="monthly")
    again = await engine.take()
    assert (again.claim_kind, again.attempt_index) == ("resumed", 0)
    assert (await admission.report(again, {"tokens": 20}, "b")).word == "ok"


async def test_an_amount_that_never_fits_is_a_breach_and_no_endless_wait(admission, engine):
    budget = await admission.budget(tokens=100, on_exceed="suspend")
    await admission.submit(1, budgets=[budget])
    lease = await engine.take()
    assert (await admission.report(lease, {"tokens": 101})).word == "hard_breach"


async def test_a_budget_that_warns_writes_an_event(admission, engine):
    budget = await admission.budget(tokens=100, on_exceed="warn")
    await admission.submit(1, budgets=[budget])
    lease = await engine.take()
    assert (await admission.report(lease, {"tokens": 150})).word == "soft_breach"
    events = await engine.events(lease.execution_id)
    assert [event["kind"] for event in events] == ["submitted", "claimed", "budget_exceeded"]
    assert (await engine.complete(lease)).word == "completed"


async def test_a_report_is_fenced(admission, engine):
    budget = await admission.budget(tokens=100)
    await admission.submit(1, budgets=[budget])
    lease = await engine.take()
    forged = replace(lease, epoch=lease.epoch + 1)
    assert (await admission.report(forged, {"tokens": 5})).word == "stale_lease"
    assert (await admission.status())["usage"] in ('{"tokens": 0}', {"tokens": 0})


async def test_usage_counts_in_all_budgets_or_in_none(admission, engine):
    small = await admission.budget("small", tokens=10)
    large = await admission.budget("large", tokens=100)
    await admission.submit(1, budgets=[small, large])
    lease = await engine.take()
    assert (await admission.report(lease, {"tokens": 11})).word == "hard_breach"
    assert (await admission.status("large"))["usage"] == '{"tokens": 0}'
    assert (await admission.report(lease, {"tokens": 9})).word == "ok"
    assert (await admission.status("large"))["usage"] == '{"tokens": 9}'


async def test_an_execution_without_budgets_may_report(admission, engine):
    await engine.submit(Item())
    assert (await admission.report(await engine.take(), {"tokens": 5})).word == "ok"


async def take(admission, ticket_id, **changes):
    given = {"quota": "api", "key": None, "ticket_id": ticket_id, "ttl": timedelta(minutes=1)}
    return await admission.one("check_admission", partition_key=home(), **(given | changes))


async def give_back(admission, ticket_id, **changes):
    return await admission.one(
        "release_admission",
        partition_key=home(),
        quota="api",
        key=None,
        ticket_id=ticket_id,
        **changes,
    )


async def test_a_hold_is_admitted_once_and_counts_like_a_lease(admission, engine):
    gate = await admission.quota(concurrency=2)
    await admission.submit(3, quotas=[gate])
    mine = uuid4()
    assert (await take(admission, mine))["outcome"] == "admitted"
    assert (await take(admission, mine))["outcome"] == "already_admitted"
    assert len(await engine.claim(10)) == 1
    assert (await take(admission, uuid4()))["outcome"] == "concurrency_exceeded"
    counted = await admission.gate()
    assert (counted["running"], counted["tickets"]) == (2, 1)

    assert (await give_back(admission, mine))["outcome"] == "released"
    assert (await give_back(admission, mine))["outcome"] == "released"
    assert len(await engine.claim(10)) == 1


async def test_a_hold_runs_out_by_itself(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(concurrency=1)
    await admission.submit(1, quotas=[gate])
    await take(admission, uuid4())
    assert await engine.claim(10) == []
    await clock.advance(minutes=1)
    await sweep(admission)
    assert len(await engine.claim(10)) == 1


async def test_a_rate_refuses_a_hold_and_says_when(admission, clock):
    start = await clock.freeze()
    await admission.quota(rate=1, rate_window_ms=60_000)
    mine = uuid4()
    assert (await take(admission, mine))["outcome"] == "admitted"
    refusal = await take(admission, uuid4())
    assert refusal["outcome"] == "rate_exceeded"
    assert timedelta(seconds=60) <= refusal["retry_at"] - start <= timedelta(seconds=62)
    await give_back(admission, mine)
    assert (await take(admission, uuid4()))["outcome"] == "rate_exceeded"


async def test_an_unused_hold_takes_its_start_back(admission, clock):
    await clock.freeze()
    await admission.quota(rate=1, rate_window_ms=60_000)
    mine = uuid4()
    await take(admission, mine)
    await give_back(admission, mine, is_unused=True)
    assert (await take(admission, uuid4()))["outcome"] == "admitted"


async def test_a_start_that_has_left_the_window_is_not_taken_back(admission, clock):
    """After 62 slices, the slice of the first start counts another one."""
    await clock.freeze()
    await admission.quota(rate=1, rate_window_ms=60_000)
    mine = uuid4()
    await take(admission, mine, ttl=timedelta(hours=1))
    await clock.advance(seconds=62)
    assert (await take(admission, uuid4()))["outcome"] == "admitted"
    await give_back(admission, mine, is_unused=True)
    assert (await take(admission, uuid4()))["outcome"] == "rate_exceeded"


async def test_keys_are_counted_apart(admission):
    for tenant in ("acme", "initech"):
        await admission.quota("tenant", tenant, concurrency=1)
    first = await take(admission, uuid4(), quota="tenant", key="acme")
    other = await take(admission, uuid4(), quota="tenant", key="initech")
    full = await take(admission, uuid4(), quota="tenant", key="acme")
    assert [a["outcome"] for a in (first, other, full)] == [
        "admitted",
        "admitted",
        "concurrency_exceeded",
    ]


async def test_an_unknown_quota_admits_nobody(admission):
    with refused("WF306"):
        await take(admission, uuid4())
    assert await admission.call("list_quotas") == []


async def test_an_empty_line_is_removed_and_a_used_one_stays(admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    lease = await engine.take()
    await engine.claim(10)
    await sweep(admission)
    count = "select count(*) from ff.line"
    assert await engine.connection.fetchval(count) == 1
    await engine.complete(lease)
    await engine.complete(await engine.take())
    await sweep(admission)
    await engine.claim(10)
    await sweep(admission)
    assert await engine.connection.fetchval(count) == 0


async def test_a_line_of_an_open_budget_is_opened_by_the_sweep(admission, engine):
    """A claim that read the budget before its reset may put an execution into line after it."""
    budget = await admission.budget(tokens=1)
    await admission.submit(2, budgets=[budget])
    lease = await engine.take()
    await admission.report(lease, {"tokens": 1})
    await engine.claim(10)
    await admission.one("reset_budget", budget="monthly")
    await engine.connection.execute("update ff.line set is_open = false")
    assert await engine.claim(10) == []
    await sweep(admission)
    assert len(await engine.claim(10)) == 1


async def explained(engine, execution_id):
    rows = await engine.connection.fetch(
        f"select code, evidence from ff.explain_execution('{home()}', $1, $2)",
        engine.namespace,
        execution_id,
    )
    return {row["code"]: json.loads(row["evidence"]) for row in rows}


async def test_an_execution_in_line_is_explained_by_its_quota_and_place(admission, engine):
    gate = await admission.quota("tenant", "acme", concurrency=2)
    submitted = await admission.submit(5, quotas=[gate])
    await engine.claim(10)

    told = (await explained(engine, submitted[-1].id))["waits_for_quota"]

    assert (told["quota"], told["key"]) == ("tenant", "acme")
    assert (told["running"], told["concurrency"], told["ahead"]) == (2, 2, 2)
    assert SENTENCES["waits_for_quota"](told) == (
        "It waits for the quota tenant=acme: 2 of 2 running; it is number 3 in line."
    )


async def test_an_execution_in_line_is_explained_by_its_budget(admission, engine):
    budget = await admission.budget(usd=50_000_000)
    _, waiting = await admission.submit(2, budgets=[budget])
    await admission.report(await engine.take(), {"usd": 50_000_000})
    await engine.claim(10)

    told = (await explained(engine, waiting.id))["waits_for_budget"]

    assert SENTENCES["waits_for_budget"](told) == (
        "It waits for the budget monthly: 50.00 of 50.00 usd used; it is first in line."
    )


async def test_no_window_has_more_starts_than_the_rate(admission, engine, clock):
    """Q07: from the events, over every window, whenever claims come."""
    random = drawn("windows")
    await clock.freeze()
    gate = await admission.quota(rate=5, rate_window_ms=10_000)
    await admission.submit(120, quotas=[gate])
    for _ in range(80):
        await clock.advance(milliseconds=random.choice((1, 90, 166, 167, 700, 2500)))
        await engine.claim(random.choice((1, 3, 10)), ttl=timedelta(hours=3))
    starts = [
        row["occurred_at"]
        for row in await engine.connection.fetch(
            "select occurred_at from ff.event where kind = 'claimed' order by occurred_at"
        )
    ]
    assert len(starts) > 10
    window = timedelta(seconds=10)
    for first, sixth in zip(starts, starts[5:], strict=False):
        assert sixth - first >= window


async def test_no_gate_starves_beside_more_gates_than_a_claim_opens(admission, engine):
    """A claim opens the lines of at most 100 gates. It chooses other gates each time."""
    gates = [await admission.quota("tenant", f"k{n}", concurrency=1) for n in range(130)]
    backlog = [Item(quotas=(gate,)) for gate in gates]
    for _ in range(2):
        await engine.submit_many(backlog)
    leases = await engine.claim(130)
    assert await engine.claim(10) == []
    waiting = set(gates)
    for _ in range(100):
        await engine.complete_many(leases)
        leases = await engine.claim(130)
        rows = await engine.connection.fetch(
            "select unnest(quota_ids) from ff.execution where ownership = 'leased'"
        )
        waiting -= {gate for (gate,) in rows}
        if not waiting:
            return
        # Submit a new backlog. Executions of the first backlog still wait, and they come first.
        await engine.submit_many(backlog)
    raise AssertionError(f"{len(waiting)} gates starved")


@pytest.mark.parametrize("is_set", [False, True], ids=["declared", "set again"])
async def test_a_claim_passes_many_full_gates_in_few_rounds(admission, engine, is_set):
    """Otherwise, behind thousands of users whose one slot is taken, a claim takes seconds."""
    gates = [await admission.quota("user", f"k{n}", concurrency=1) for n in range(150)]
    await engine.submit_many([Item(quotas=(gate,)) for gate in gates])
    assert len(await engine.claim(150)) == 150
    if is_set:
        # Claims look at every gate again, whose limit may have changed.
        await admission.call("set_quota", quota="user", concurrency=1)
    await engine.submit_many([Item(quotas=(gate,)) for gate in gates])
    free = await engine.submit()
    async with engine.connection.transaction():
        await engine.connection.execute("set local track_functions = 'pl'")
        assert [lease.execution_id for lease in await engine.claim(1)] == [free.id]
        rounds = await engine.connection.fetchval(
            "select pg_stat_get_xact_function_calls('ff._pick_candidates'::regproc)"
        )
    assert rounds <= (4 if is_set else 3)
    assert {state for state, _ in (await states(engine))[150:300]} == {"blocked_by_quota"}
