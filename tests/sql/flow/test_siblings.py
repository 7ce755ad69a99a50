"""Upstreams that a decided group does not need any more."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from support.database import home
from support.factories import Engine, refused
from support.flows import Edge, Flow, Group, make_flow

PENDING = {"wakes_pending": True}
CANCEL = {"on_satisfied": "cancel_remaining"}


async def dispatch(where, limit=100):
    """What cancel_siblings answers, without how soon the next is due."""
    row = await where.fetchrow(f"select * from ff.cancel_siblings('{home()}', $1)", limit)
    assert row["handled"] == sum(
        row[name] for name in ("cancelled", "already_terminal", "not_found", "retained")
    )
    return dict(row)


async def reconcile(where):
    return await where.fetchval(f"select handled from ff.reconcile_siblings('{home()}')")


async def race(db, names="abc", policy="any_of", k=None) -> Flow:
    """Upstreams of `z`, of which the others are to be cancelled."""
    return await make_flow(
        db,
        nodes=[*names, "z"],
        edges=[(name, "z") for name in names],
        groups=[Group("z", policy, k=k, **CANCEL)],
    )


async def left(flow: Flow, name="z"):
    row = await flow.group(name)
    return [flow.named(id_) for id_ in row["cancel_members"]]


# At once


async def test_those_that_are_not_needed_end_with_the_decision(db):
    flow = await race(db)
    lease = await flow.take("b")
    assert (await flow.complete("a")).detail is None
    for name in "bc":
        row = await flow.row(name)
        assert (row["public_state"], row["cancelled_by"]) == ("cancelled", "flow_cascade")
        assert row["cancellation_reason"] == "sibling_quorum_satisfied"
    row = await flow.group("z")
    assert (row["cancel_pending"], row["cancel_members"]) == (False, [])
    assert row["cancel_enqueued_at"] is None
    # The lease is taken, and its holder told off
    assert (await flow.row("b"))["epoch"] == lease.epoch + 1
    assert (await flow.engine.complete(lease)).word in ("not_active", "stale_lease")


async def test_the_end_of_a_sibling_is_an_end_like_any_other(db):
    """The cancelled sibling has its event, and its end reaches its other downstream members."""
    flow = await make_flow(
        db,
        nodes=["a", "b", "c", "w", "z"],
        edges=[Edge("a", "z"), Edge("b", "z"), Edge("c", "z"), Edge("b", "w", is_applied=False)],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    waiter = await flow.take("w")
    await flow.engine.wait_for(waiter, [flow["b"]])
    await flow.complete("a")
    (*_, event) = await flow.engine.events(flow["b"])
    assert (event["kind"], event["outcome"], event["flow_id"]) == (
        "cancelled",
        "cancelled",
        flow.id,
    )
    assert json.loads(event["detail"]) == {
        "source": "flow_cascade",
        "reason": "sibling_quorum_satisfied",
        "downstream": f"{{fp:{home()}}}:{flow['z']}",
    }
    assert await flow.state("w") == "waiting"
    # and flows back into the group, where it is only counted
    assert await flow.counts("z") == ("satisfied", 3, 1, 2, 0)


async def test_stragglers_of_a_quorum_are_cancelled(db):
    flow = await race(db, "abcde", "quorum", 2)
    await flow.complete("c")
    assert await flow.states("abde") == dict.fromkeys("abde", "waiting")
    await flow.complete("e")
    assert await flow.states("abd") == dict.fromkeys("abd", "cancelled")
    assert await flow.state("z") == "waiting"


async def test_survivors_of_an_impossible_quorum_say_so(db):
    flow = await race(db, "abcd", "quorum", 3)
    await flow.fail("a")
    await flow.fail("b")
    for name in "cd":
        row = await flow.row(name)
        assert row["cancellation_reason"] == "sibling_quorum_impossible"
    assert (await flow.group("z"))["cancel_reason"] == "sibling_quorum_impossible"
    assert await flow.state("z") == "skipped"


@pytest.mark.parametrize("outcomes", [("success",), ("failed", "failed", "failed")])
async def test_who_is_let_run_is_never_cancelled(db, outcomes):
    flow = await make_flow(
        db,
        nodes=[*"abcdz"],
        edges=[(name, "z") for name in "abcd"],
        groups=[Group("z", "quorum", k=1, on_satisfied="let_run")],
    )
    for name, outcome in zip("abc", outcomes, strict=False):
        await flow.end(name, outcome)
    assert await flow.state("d") == "waiting"
    row = await flow.group("z")
    assert (row["cancel_pending"], row["cancel_reason"]) == (False, None)
    assert (await dispatch(db))["handled"] == 0


async def test_all_of_cancels_nobody(db):
    flow = await make_flow(db, nodes=[*"abcz"], edges=[(name, "z") for name in "abc"])
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "waiting", "c": "waiting", "z": "skipped"}


async def test_a_sibling_in_any_state_is_ended(db):
    flow = await make_flow(
        db,
        nodes=[*"abcdefz", "up"],
        edges=[*((name, "z") for name in "abcdef"), ("up", "f")],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    await flow.take("b")
    await flow.engine.delay(await flow.take("c"), timedelta(hours=1))
    await flow.engine.hold(await flow.take("d"))
    await flow.engine.release(await flow.take("e"))
    await flow.complete("a")
    assert await flow.states("bcdef") == dict.fromkeys("bcdef", "cancelled")
    # nobody needs what f waited for, but it is not a sibling
    assert await flow.state("up") == "waiting"


async def test_fifty_are_cancelled_at_once(db):
    names = [f"n{i:02}" for i in range(50)]
    flow = await race(db, names)
    await flow.complete("n07")
    states = await flow.states(names)
    assert list(states.values()).count("cancelled") == 49
    assert await flow.counts("z") == ("satisfied", 50, 1, 49, 0)
    assert await flow.engine.resolve() == (0, None)


# Retained


async def test_a_sibling_that_another_group_waits_for_is_retained(db):
    flow = await make_flow(
        db,
        nodes=[*"abcyz"],
        edges=[("a", "z"), ("b", "z"), ("c", "z"), ("b", "y")],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    assert (await flow.complete("a")).detail is None
    assert await flow.states("bc") == {"b": "waiting", "c": "cancelled"}
    # it is nobody's business any more
    assert await left(flow) == []
    assert (await dispatch(db))["handled"] == 0
    await flow.complete("b")
    assert await flow.state("y") == "waiting"


async def test_a_sibling_in_another_undecided_group_of_the_same_member_is_retained(db):
    flow = await make_flow(
        db,
        nodes=[*"abz"],
        edges=[Edge("a", "z"), Edge("b", "z"), Edge("b", "z", group=1)],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "waiting", "z": "waiting_children"}
    await flow.complete("b")
    assert await flow.state("z") == "waiting"


async def test_a_sibling_whose_other_groups_are_decided_is_cancelled(db):
    flow = await make_flow(
        db,
        nodes=[*"abxyz"],
        edges=[("a", "y"), ("b", "y"), ("x", "z"), ("b", "z")],
        groups=[Group("y", "any_of", on_satisfied="let_run"), Group("z", "any_of", **CANCEL)],
    )
    await flow.complete("a")
    await flow.complete("x")
    assert await flow.state("b") == "cancelled"


async def test_a_sibling_that_two_groups_let_go_at_once_is_cancelled(db):
    """One end decides both groups: neither is a reason to keep it."""
    flow = await make_flow(
        db,
        nodes=[*"abyz"],
        edges=[("a", "y"), ("b", "y"), ("a", "z"), ("b", "z")],
        groups=[Group("y", "any_of", **CANCEL), Group("z", "any_of", **CANCEL)],
    )
    await flow.complete("a")
    assert await flow.state("b") == "cancelled"


async def test_of_two_groups_that_are_decided_at_once_by_two_one_cancels(db):
    """Each decision is invisible to the other, but the sibling's lock is not."""
    flow = await make_flow(
        db,
        nodes=[*"abxyz"],
        edges=[("a", "y"), ("x", "y"), ("b", "z"), ("x", "z")],
        groups=[Group("y", "any_of", **CANCEL), Group("z", "any_of", **CANCEL)],
    )
    other = flow.over(await db.connect())
    one, two = await flow.take("a"), await flow.take("b")
    first, second = flow.engine.connection.transaction(), other.engine.connection.transaction()
    await first.start()
    await second.start()
    # y sees z undecided and keeps x; z cannot look at x, which is locked
    assert (await flow.engine.complete(one)).detail is None
    assert (await other.engine.complete(two)).detail == PENDING
    await first.commit()
    await second.commit()
    assert await flow.state("x") == "waiting"
    assert (await left(flow, "y"), await left(flow, "z")) == ([], ["x"])
    assert (await dispatch(db))["cancelled"] == 1
    assert await flow.state("x") == "cancelled"


async def test_a_sibling_that_runs_again_is_cancelled_as_well(db):
    """Replayed after the member was: its edge is open as that of any other."""
    flow = await race(db, "ab")
    await flow.fail("a")
    await flow.fail("b")
    for name in "zab":
        assert (await flow.engine.replay(flow[name])).word == "replayed"
    assert await flow.states() == {"a": "waiting", "b": "waiting", "z": "waiting_children"}
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "z": "waiting"}


# Left for the dispatcher


async def test_a_sibling_that_is_locked_is_listed_and_cancelled_later(db):
    """The list is the other live upstreams, without the winner and those that have ended."""
    flow = await race(db, "abcde")
    await flow.fail("e")
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["b"], flow["d"])
    assert (await flow.engine.complete(lease)).detail == PENDING
    row = await flow.group("z")
    assert (row["cancel_pending"], row["cancel_reason"]) == (True, "sibling_quorum_satisfied")
    assert row["cancel_enqueued_at"] is not None
    assert await left(flow) == ["b", "d"]
    assert await flow.states("bcd") == {"b": "waiting", "c": "cancelled", "d": "waiting"}
    answer = await dispatch(db)
    assert (answer["handled"], answer["due_in"]) == (0, timedelta(milliseconds=100))
    await holder.rollback()
    answer = await dispatch(db)
    assert (answer["cancelled"], answer["due_in"]) == (2, None)
    assert await flow.states("bd") == dict.fromkeys("bd", "cancelled")
    row = await flow.group("z")
    assert (row["cancel_pending"], row["cancel_members"]) == (False, [])
    # kept for whoever wonders
    assert row["cancel_reason"] == "sibling_quorum_satisfied"
    assert await flow.counts("z") == ("satisfied", 5, 1, 4, 0)


async def test_too_many_siblings_are_cancelled_in_bounded_steps(db):
    names = [f"n{i:03}" for i in range(261)]
    flow = await race(db, names)
    assert (await flow.complete("n000")).detail == PENDING
    count = "select count(*) from ff.execution where outcome = 'cancelled'"
    assert await db.fetchval(count) == 100
    answer = await dispatch(db)
    assert (answer["cancelled"], answer["due_in"]) == (100, timedelta(0))
    answer = await dispatch(db)
    assert (answer["cancelled"], answer["due_in"]) == (60, None)
    assert await flow.engine.resolve() == (0, None)
    assert await flow.counts("z") == ("satisfied", 261, 1, 260, 0)


async def test_a_sibling_that_ended_meanwhile_keeps_its_end(db):
    """The race of appendix B: whoever has the row first wins."""
    flow = await race(db)
    lease, loser = await flow.take("a"), await flow.take("b")
    holder = await db.lock_executions(flow["b"])
    await flow.engine.complete(lease)
    await holder.rollback()
    assert (await flow.engine.complete(loser)).word == "completed"
    answer = await dispatch(db)
    assert (answer["cancelled"], answer["already_terminal"]) == (0, 1)
    assert await flow.state("b") == "completed"
    assert await flow.counts("z") == ("satisfied", 3, 2, 1, 0)


async def test_a_sibling_that_is_gone_is_not_looked_for_again(db):
    flow = await race(db)
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["b"])
    await flow.engine.complete(lease)
    await holder.rollback()
    db.leave_broken("a member is gone, and its edge is not")
    await db.forget(flow["b"])
    answer = await dispatch(db)
    assert (answer["not_found"], answer["due_in"]) == (1, None)
    assert (await flow.group("z"))["cancel_pending"] is False


async def test_a_listed_sibling_is_retained_if_another_group_needs_it_by_then(db):
    flow = await make_flow(
        db,
        nodes=[*"abyz"],
        edges=[Edge("a", "z"), Edge("b", "z"), Edge("b", "y")],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["b"])
    await flow.engine.complete(lease)
    await holder.rollback()
    answer = await dispatch(db)
    assert (answer["retained"], answer["cancelled"], answer["due_in"]) == (1, 0, None)
    assert await flow.state("b") == "waiting"
    assert await left(flow) == []


@pytest.mark.parametrize("outcome", ["success", "failed"])
async def test_a_listed_sibling_that_ended_and_was_replayed_is_let_run(db, outcome):
    """As if the dispatcher had come before the replay."""
    flow = await race(db, "abc")
    lease, held = await flow.take("a"), await flow.take("b")
    holders = [await db.lock_executions(flow["b"]), await db.lock_executions(flow["c"])]
    await flow.engine.complete(lease)
    for holder in holders:
        await holder.rollback()
    assert await left(flow) == ["b", "c"]
    if outcome == "success":
        await flow.engine.complete(held)
    else:
        await flow.engine.fail(held, "permanent")
    assert (await flow.engine.replay(flow["b"])).word == "replayed"
    answer = await dispatch(db)
    assert (answer["cancelled"], answer["due_in"]) == (1, None)
    assert await flow.states("abc") == {"a": "completed", "b": "waiting", "c": "cancelled"}
    assert await left(flow) == []


async def test_a_member_that_is_locked_keeps_its_list(db):
    """The group is written under the lock of its member, also by the dispatcher."""
    flow = await race(db)
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["b"])
    await flow.engine.complete(lease)
    await holder.rollback()
    holder = await db.lock_executions(flow["z"])
    answer = await dispatch(db)
    assert (answer["handled"], answer["due_in"]) == (0, timedelta(milliseconds=100))
    await holder.rollback()
    assert (await dispatch(db))["cancelled"] == 1


async def test_two_dispatchers_at_once_cancel_once(db):
    names = [f"n{i:03}" for i in range(141)]
    flow = await race(db, names)
    await flow.complete("n000")
    connections = [db.conn, await db.connect(), await db.connect()]
    answers = await asyncio.gather(*(dispatch(each) for each in connections))
    assert sum(answer["cancelled"] for answer in answers) == 40
    assert (await dispatch(db))["handled"] == 0
    kinds = await flow.engine.kinds()
    assert kinds.count("cancelled") == 140


async def test_a_dispatcher_that_holds_a_group_is_passed_by(db):
    flow = await race(db, "abc")
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["b"], flow["c"])
    await flow.engine.complete(lease)
    await holder.rollback()
    other = await db.connect()
    transaction = db.conn.transaction()
    await transaction.start()
    assert (await dispatch(db))["cancelled"] == 2
    assert (await dispatch(other))["handled"] == 0
    await transaction.commit()
    assert (await dispatch(other))["due_in"] is None


async def test_many_groups_drain_cleanly(db):
    flows = [await race(db, "ab") for _ in range(8)]
    leases = [await flow.take("a") for flow in flows]
    holder = await db.lock_executions(*(flow["b"] for flow in flows))
    await flows[0].engine.complete_many(leases)
    await holder.rollback()
    assert (await dispatch(db, 5))["cancelled"] == 5
    answer = await dispatch(db, 5)
    assert (answer["cancelled"], answer["due_in"]) == (3, None)
    for flow in flows:
        assert await flow.state("b") == "cancelled"
        assert (await flow.group("z"))["cancel_pending"] is False


async def test_the_group_that_waits_longest_comes_first(db, clock):
    flows = []
    for _ in range(3):
        flow = await race(db, "ab")
        lease = await flow.take("a")
        holder = await db.lock_executions(flow["b"])
        await flow.engine.complete(lease)
        await holder.rollback()
        flows.append(flow)
        await clock.advance(seconds=1)
    for flow in flows:
        assert (await dispatch(db, 1))["cancelled"] == 1
        assert await flow.state("b") == "cancelled"


async def test_what_a_cancelled_sibling_leaves_in_turn_is_for_the_resolver(db):
    """The sibling is cancelled; whoever else depends on it is locked at that moment."""
    flow = await make_flow(
        db,
        nodes=[*"abwz"],
        edges=[("a", "z"), ("b", "z"), Edge("b", "w", is_applied=False)],
        groups=[Group("z", "any_of", **CANCEL)],
    )
    waiter = await flow.take("w")
    await flow.engine.wait_for(waiter, [flow["b"]])
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["w"])
    assert (await flow.engine.complete(lease)).detail == PENDING
    assert (await flow.row("b"))["wakes_pending"] is True
    await holder.rollback()
    assert await flow.engine.resolve() == (1, None)
    assert await flow.state("w") == "waiting"


# The reconciler


async def test_the_reconciler_closes_a_group_whose_siblings_have_all_ended(db):
    flow = await race(db)
    lease, loser = await flow.take("a"), await flow.take("b")
    holder = await db.lock_executions(flow["b"])
    await flow.engine.complete(lease)
    await holder.rollback()
    await flow.engine.complete(loser)
    assert await reconcile(db) == 1
    row = await flow.group("z")
    assert (row["cancel_pending"], row["cancel_members"]) == (False, [])
    assert await reconcile(db) == 0


async def test_the_reconciler_never_cancels(db):
    flow = await race(db)
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["b"])
    await flow.engine.complete(lease)
    await holder.rollback()
    assert await reconcile(db) == 0
    assert await flow.state("b") == "waiting"
    assert await left(flow) == ["b"]
    assert (await dispatch(db))["cancelled"] == 1


async def test_the_reconciler_passes_by_a_member_that_is_locked(db):
    flow = await race(db)
    lease, loser = await flow.take("a"), await flow.take("b")
    holder = await db.lock_executions(flow["b"])
    await flow.engine.complete(lease)
    await holder.rollback()
    await flow.engine.complete(loser)
    holder = await db.lock_executions(flow["z"])
    assert await reconcile(db) == 0
    await holder.rollback()
    assert await reconcile(db) == 1


@pytest.mark.parametrize("function", ["cancel_siblings", "reconcile_siblings"])
@pytest.mark.parametrize("limit", [None, 0, 10_001])
async def test_a_limit_that_makes_no_sense_is_refused(db, function, limit):
    with refused("WF001", field="limit"):
        await db.fetch(f"select * from ff.{function}('{home()}', $1)", limit)


async def test_sibling_cancels_and_completions_at_once_end_every_sibling_once(db):
    """Appendix B: the completion wins or is fenced, and nobody ends twice."""
    names = [f"n{i:02}" for i in range(24)]
    flow = await race(db, names)
    leases = [await flow.take(name) for name in names]
    engines = [Engine(await db.connect()) for _ in range(4)]

    async def end(number: int) -> list[str]:
        words = []
        for lease in leases[number::4]:
            words.append((await engines[number].complete(lease)).word)
            await dispatch(engines[number].connection)
            await engines[number].resolve()
        return words

    await asyncio.gather(*(end(number) for number in range(4)))
    for _ in range(200):
        answer = await dispatch(db)
        told, due_in = await flow.engine.resolve()
        if answer["due_in"] is None and due_in is None and not told:
            break
    states = list((await flow.states(names)).values())
    assert set(states) <= {"completed", "cancelled"}
    succeeded = states.count("completed")
    assert await flow.counts("z") == ("satisfied", 24, succeeded, 24 - succeeded, 0)
    for name in names:
        kinds = await flow.engine.kinds(flow[name])
        assert kinds[:2] == ["submitted", "claimed"]
        assert len(kinds) == 3
