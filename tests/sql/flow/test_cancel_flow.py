"""Cancelling a flow: its header, the backlog of its members, and who may still start meanwhile."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from support.cancelling import (
    ack,
    backlog,
    cancel,
    empty_flow,
    header,
    members,
    reconcile,
    stored,
)
from support.clock import Clock
from support.database import Database, home
from support.factories import Engine, refused
from support.flows import Flow, Group, make_flow

RETRY = {"policy": {"retry_policy": {"max_retries": 5}}}
CHAIN: dict[str, Any] = {"nodes": ["a", "b", "c"], "edges": [("a", "b"), ("b", "c")]}


async def detail(flow: Flow) -> Any:
    row = await flow.engine.connection.fetchrow(
        "select kind::text, version, flow_id, actor, detail from ff.event where execution_id = $1",
        flow.id,
    )
    return None if row is None else {**row, "detail": json.loads(row["detail"])}


# The header


async def test_the_header_writes_a_row_for_every_member_that_has_not_ended(db: Database) -> None:
    flow = await make_flow(db, **CHAIN)
    await flow.complete("a")
    answer = await header(flow, reason="enough", actor="ann")
    assert (answer["outcome"], answer["policy"], answer["reason"]) == (
        "cancelled",
        "cancel_all",
        "enough",
    )
    assert (answer["member_count"], answer["open_count"]) == (2, 2)
    assert set(answer["members"]) == {flow["b"], flow["c"]}
    assert await backlog(flow) == (1, {"b", "c"})
    row = await stored(flow)
    assert (row["cancel_policy"], row["cancel_reason"], row["cancelled_by"]) == (
        "cancel_all",
        "enough",
        "ann",
    )
    assert await detail(flow) == {
        "kind": "flow_cancel_requested",
        "version": 1,
        "flow_id": flow.id,
        "actor": "ann",
        "detail": {"policy": "cancel_all", "reason": "enough", "member_count": 2},
    }


async def test_the_grace_says_when_the_reconciler_comes(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, **CHAIN)
    now = await clock.freeze()
    await header(flow)
    assert await db.fetchval("select due_at from ff.cancel_backlog") == now + timedelta(seconds=30)
    assert await reconcile(flow) == (0, timedelta(seconds=30))
    assert await backlog(flow) == (1, {"a", "b", "c"})
    await clock.advance(seconds=30)
    assert await reconcile(flow) == (3, None)
    assert await flow.states() == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"policy": "everything"}, "policy"),
        ({"policy": None}, "policy"),
        ({"grace": timedelta(seconds=-1)}, "grace"),
        ({"grace": None}, "grace"),
        ({"grace": timedelta(days=366)}, "grace"),
        ({"call_id": UUID(int=0)}, "call_id"),
        ({"reason": "x" * 257}, "reason"),
        ({"actor": "a\nb"}, "actor"),
    ],
)
async def test_a_bad_request_names_the_field_and_changes_nothing(
    db: Database, given: dict[str, Any], field: str
) -> None:
    flow = await make_flow(db, **CHAIN)
    with refused("WF001", field=field):
        await header(flow, **given)
    assert (await stored(flow))["cancelled_at"] is None
    assert await backlog(flow) == (0, set())
    assert await detail(flow) is None


async def test_an_unknown_flow_is_not_found(db: Database) -> None:
    flow = await make_flow(db, **CHAIN)
    with refused("WF305", message="flow_not_found"):
        await header(Flow(engine=flow.engine, id=uuid4(), ids={}, lanes={}))
    with refused("WF305"):
        await header(flow.over(flow.engine.within("other")))
    with refused("WF305"):
        await members(flow.over(flow.engine.within("other")))
    with refused("WF001", field="flow_id"):
        await header(Flow(engine=flow.engine, id=None, ids={}, lanes={}))  # type: ignore[arg-type]
    with refused("WF001", field="limit"):
        await members(flow, 0)
    assert (await stored(flow))["cancelled_at"] is None


async def test_a_second_cancel_tells_what_the_first_one_said_and_changes_nothing(
    db: Database,
) -> None:
    flow = await make_flow(db, **CHAIN)
    await header(flow, "cancel_pending", reason="first", actor="ann")
    before = await stored(flow)
    for policy in ("cancel_pending", "flow_only"):
        answer = await header(flow, policy, reason="second", actor="bob")
    assert (answer["outcome"], answer["policy"], answer["reason"]) == (
        "already_terminal",
        "cancel_pending",
        "first",
    )
    assert set(answer["members"]) == set(flow.ids.values())
    assert await stored(flow) == before
    assert await db.fetchval("select count(*) from ff.event where kind::text like 'flow%'") == 1


async def test_the_same_call_gets_its_first_answer_again(db: Database) -> None:
    flow = await make_flow(db, **CHAIN)
    call_id = uuid4()
    first = await header(flow, call_id=call_id)
    assert await header(flow, call_id=call_id) == first
    await members(flow, 1)
    again = await header(flow, call_id=call_id)
    assert (again["outcome"], len(again["members"])) == ("cancelled", 2)
    assert (await header(flow, call_id=uuid4()))["outcome"] == "already_terminal"


async def test_of_a_large_flow_at_most_a_thousand_members_are_named_again(db: Database) -> None:
    flow = await make_flow(db, nodes=[f"n{number}" for number in range(1010)])
    assert len((await header(flow))["members"]) == 1010
    again = await header(flow)
    assert (len(again["members"]), again["member_count"]) == (1000, 1010)


async def test_flow_only_leaves_the_members_alone_and_no_backlog(db: Database) -> None:
    flow = await make_flow(db, **CHAIN)
    assert (await header(flow, "flow_only"))["open_count"] == 0
    assert await backlog(flow) == (0, set())
    done = await members(flow)
    assert (done["handled"], done["remaining"]) == (0, 0)
    for name in "abc":
        await flow.complete(name)
    assert set((await flow.states()).values()) == {"completed"}


async def test_no_header_lingers_where_nobody_is_left_to_end(db: Database) -> None:
    empty = await empty_flow(Engine(db.conn))
    assert (await header(empty))["members"] == []
    assert await backlog(empty) == (0, set())
    assert (await header(empty))["outcome"] == "already_terminal"


@pytest.mark.parametrize("end", ["success", "failed", "cancelled"])
@pytest.mark.parametrize("policy", ["cancel_all", "flow_only"])
async def test_a_flow_whose_members_have_all_ended_is_not_cancelled_any_more(
    db: Database, end: str, policy: str
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.end("a", end)
    if end == "success":
        await flow.complete("b")
    before = await stored(flow), await flow.states()
    answer = await header(flow, policy, reason="too late", call_id=uuid4())
    assert dict(answer) == {
        "outcome": "already_terminal",
        "policy": None,
        "reason": None,
        "member_count": 0,
        "open_count": 0,
        "members": [],
    }
    assert (await stored(flow), await flow.states()) == before
    assert await detail(flow) is None
    # and what failed can still be mended
    await flow.engine.replay(flow["a"])
    assert (await header(flow))["outcome"] == "cancelled"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("flow_only", "cancel_all"),
        ("cancel_pending", "cancel_all"),
        ("flow_only", "cancel_pending"),
    ],
)
async def test_a_stricter_policy_may_follow_while_members_live(
    db: Database, first: str, second: str
) -> None:
    flow = await make_flow(db, nodes=["done", "running", "ready"])
    await flow.complete("done")
    lease = await flow.take("running", ttl=timedelta(hours=1))
    await cancel(flow, first, reason="slowly", actor="ann")
    answer = await header(flow, second, reason="now", actor="bob")
    assert (answer["outcome"], answer["policy"], answer["reason"]) == ("cancelled", second, "now")
    assert set(answer["members"]) == {flow["running"]} | (
        {flow["ready"]} if first == "flow_only" else set()
    )
    assert answer["member_count"] == answer["open_count"] == len(answer["members"])
    row = await stored(flow)
    assert (row["cancel_policy"], row["cancel_reason"], row["cancelled_by"]) == (
        second,
        "now",
        "bob",
    )
    assert await flow.engine.claim(100, lanes=[flow.lanes["ready"]]) == []
    done = await members(flow)
    if second == "cancel_all":
        assert await backlog(flow) == (0, set())
        assert (await flow.engine.complete(lease)).word == "not_active"
        assert (await flow.row("running"))["cancellation_reason"] == "now"
    else:
        assert (done["remaining"], done["draining"]) == (0, 1)
        assert (await flow.engine.complete(lease)).word == "completed"
    assert await flow.state("ready") == "cancelled"
    events = await db.fetch(
        "select version, detail from ff.event where execution_id = $1 order by version", flow.id
    )
    assert [event["version"] for event in events] == [1, 2]
    assert json.loads(events[1]["detail"]) == {
        "policy": second,
        "reason": "now",
        "member_count": len(answer["members"]),
        "raised_from": first,
    }
    await members(flow)
    assert (await header(flow, "cancel_all"))["outcome"] == "already_terminal"


async def test_a_stricter_policy_without_a_reason_keeps_the_one_there_is(db: Database) -> None:
    flow = await make_flow(db, nodes=["a"])
    await header(flow, "flow_only", reason="slowly", actor="ann")
    assert (await header(flow))["reason"] == "slowly"
    await members(flow)
    assert (await flow.row("a"))["cancellation_reason"] == "slowly"


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending"])
async def test_the_header_pauses_those_that_wait_and_ends_nobody(
    db: Database, clock: Clock, policy: str
) -> None:
    flow = await make_flow(
        db,
        nodes=["ready", "delayed", "blocked", "held", "retrying", "running"],
        edges=[("ready", "blocked")],
        items={"delayed": {"delay": timedelta(hours=1)}, "retrying": RETRY},
    )
    engine = flow.engine
    await engine.hold(await flow.take("held"))
    assert (await flow.fail("retrying", "transient")).word == "retry_scheduled"
    lease = await flow.take("running")
    before = {name: (await flow.row(name))["version"] for name in flow.ids}
    await header(flow, policy, reason="enough")
    for name in ("ready", "delayed", "blocked", "held", "retrying"):
        row = await flow.row(name)
        assert row["blocking_reason"] == "paused_by_flow_cancel", name
        assert (row["eligibility"], row["blocking_detail"]) == ("blocked_by_operator", "enough")
        assert row["version"] == before[name]
        with refused("WF205"):
            await engine.unblock(row["execution_id"], actor="ann")
        with refused("WF205"):
            await engine.retry(row["execution_id"])
    row = await flow.row("running")
    assert (row["ownership"], row["epoch"], row["version"]) == (
        "leased",
        lease.epoch,
        before["running"],
    )
    await clock.advance(hours=2)
    await engine.promote()
    await engine.renew(lease)
    assert await engine.claim(100) == []


# The members


async def test_all_members_end_as_cancelled_each_with_its_event(db: Database) -> None:
    flow = await make_flow(db, **CHAIN)
    done = await cancel(flow, reason="enough", actor="ann")
    assert (done["handled"], done["remaining"], done["draining"]) == (3, 0, 0)
    for name in "abc":
        row = await flow.row(name)
        # One encoding of cancelled, so that retention and replay know it
        assert (row["phase"], row["outcome"], row["public_state"]) == (
            "terminal",
            "cancelled",
            "cancelled",
        )
        assert (row["cancelled_by"], row["cancellation_reason"]) == ("flow_cascade", "enough")
        events = await flow.engine.events(flow[name])
        assert [event["kind"] for event in events] == ["submitted", "cancelled"]
        assert (events[-1]["flow_id"], events[-1]["actor"]) == (flow.id, "ann")
        assert json.loads(events[-1]["detail"]) == {"source": "flow_cascade", "reason": "enough"}
    assert await backlog(flow) == (0, set())
    assert (await members(flow))["handled"] == 0


async def test_without_a_reason_members_say_that_their_flow_was_cancelled(db: Database) -> None:
    flow = await make_flow(db, nodes=["a"])
    await cancel(flow)
    assert (await flow.row("a"))["cancellation_reason"] == "flow_cancelled"


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending"])
async def test_what_has_ended_is_never_touched(db: Database, policy: str) -> None:
    flow = await make_flow(
        db, nodes=["done", "failed", "skipped", "gone", "open"], edges=[("failed", "skipped")]
    )
    await flow.complete("done", b"42")
    await flow.fail("failed")
    await flow.cancel("gone")
    before = {name: await flow.row(name) for name in ("done", "failed", "skipped", "gone")}
    assert before["skipped"]["public_state"] == "skipped"
    await cancel(flow, policy, reason="enough")
    for name, row in before.items():
        assert await flow.row(name) == row, name
    assert await flow.state("open") == "cancelled"


async def test_a_member_that_ends_before_it_is_cancelled_keeps_its_end(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    lease = await flow.take("a")
    await header(flow)
    assert (await flow.engine.complete(lease, b"42")).word == "completed"
    done = await members(flow)
    assert (done["handled"], done["remaining"]) == (2, 0)
    assert await flow.states() == {"a": "completed", "b": "cancelled"}
    assert await flow.engine.kinds(flow["a"]) == ["submitted", "claimed", "completed"]


async def test_a_cancelled_member_takes_the_lease_away(db: Database) -> None:
    flow = await make_flow(db, nodes=["a"])
    lease = await flow.take("a")
    await cancel(flow)
    row = await flow.row("a")
    assert (row["ownership"], row["lease_id"], row["epoch"]) == ("unowned", None, lease.epoch + 1)
    assert (row["attempt_state"], row["attempt_ended_as"]) == (
        "attempt_terminal",
        "ended_cancelled",
    )
    assert (await flow.engine.complete(lease)).word == "not_active"
    assert (await flow.engine.fail(lease, "transient")).word == "not_active"
    assert (await flow.engine.renew(lease)).word == "not_active"
    assert await flow.state("a") == "cancelled"
    feed = await db.fetch(
        "select kind from ff.lease_feed where execution_id = $1 order by event_id", flow["a"]
    )
    assert [row["kind"] for row in feed][-1] in ("revoked", "cancelled")


async def test_a_member_ends_those_who_wait_for_it(db: Database) -> None:
    flow = await make_flow(db, nodes=["a"])
    engine = flow.engine
    waiter = await engine.submit(route=await engine.register(lane="waiter"))
    lease = await engine.take(waiter.id, lanes=["waiter"])
    await db.execute("update ff.execution set is_awaited = true where execution_id = $1", flow["a"])
    assert (await engine.wait_for(lease, [flow["a"]])).open == 1
    await cancel(flow)
    assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"


async def test_cancel_pending_lets_the_running_ones_drain_and_ends_the_others(
    db: Database, clock: Clock
) -> None:
    flow = await make_flow(
        db, nodes=["running", "lost", "revoked", "ready", "blocked"], edges=[("ready", "blocked")]
    )
    lease = await flow.take("running", ttl=timedelta(hours=1))
    await flow.take("lost")
    await clock.advance(minutes=1)
    await flow.engine.expire()
    await flow.take("revoked")
    await flow.engine.revoke(flow["revoked"])
    done = await cancel(flow, "cancel_pending", reason="enough")
    assert (done["handled"], done["remaining"], done["draining"]) == (4, 0, 1)
    assert await flow.states() == {
        "running": "active",
        "lost": "cancelled",
        "revoked": "cancelled",
        "ready": "cancelled",
        "blocked": "cancelled",
    }
    assert await backlog(flow) == (1, {"running"})
    again = await members(flow)
    assert (again["handled"], again["draining"], again["remaining_ids"]) == (0, 1, [])
    # Nothing was enqueued for the dispatcher of siblings
    assert await db.fetchval("select count(*) from ff.edge_group where cancel_pending") == 0
    assert (await flow.engine.complete(lease)).word == "completed"
    assert (await members(flow))["handled"] == 1
    assert await backlog(flow) == (0, set())


@pytest.mark.parametrize("way", ["release", "delay", "expire", "revoke", "hold", "wait"])
async def test_a_draining_member_that_lets_go_is_cancelled_then(
    db: Database, clock: Clock, way: str
) -> None:
    flow = await make_flow(db, nodes=["a"])
    engine = flow.engine
    lease = await flow.take("a")
    assert (await cancel(flow, "cancel_pending"))["draining"] == 1
    match way:
        case "release":
            await engine.release(lease)
        case "delay":
            await engine.delay(lease)
        case "expire":
            # nobody has marked it yet
            await clock.advance(minutes=1)
        case "revoke":
            await engine.revoke(flow["a"])
        case "hold":
            await engine.hold(lease)
        case "wait":
            await engine.wait_children(lease)
    assert await engine.claim(100, lanes=[flow.lanes["a"]]) == []
    done = await members(flow)
    assert (done["handled"], done["draining"]) == (1, 0)
    assert await flow.state("a") == "cancelled"
    assert (await engine.complete(lease)).word in ("not_active", "lease_expired")


async def test_a_draining_member_that_fails_with_retries_left_is_cancelled_at_once(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b")], items={"a": RETRY})
    lease = await flow.take("a")
    other = await flow.take("c")
    await header(flow, "cancel_pending", reason="enough")
    answer = await flow.engine.fail(lease, "transient", category="net")
    assert (answer.word, answer.delayed_until) == ("failed", None)
    assert await flow.engine.fail(lease, "transient", category="net") == answer
    row = await flow.row("a")
    assert (row["public_state"], row["cancelled_by"], row["cancellation_reason"]) == (
        "cancelled",
        "flow_cascade",
        "enough",
    )
    assert (row["retry_count"], row["failure_category"], row["attempt_ended_as"]) == (
        0,
        "net",
        "ended_failure",
    )
    assert await flow.engine.kinds(flow["a"]) == ["submitted", "claimed", "cancelled"]
    # without retries left it fails
    assert (await flow.engine.fail(other, "transient")).word == "failed"
    assert await flow.state("c") == "failed"
    assert (await members(flow))["handled"] == 3


async def test_in_a_flow_that_is_not_cancelled_or_for_itself_alone_a_failure_is_retried(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], items={"a": RETRY, "b": RETRY})
    assert (await flow.fail("a", "transient")).word == "retry_scheduled"
    await header(flow, "flow_only")
    assert (await flow.fail("b", "transient")).word == "retry_scheduled"


@pytest.mark.parametrize("noticed_by", ["the reconciler", "its holder"])
@pytest.mark.parametrize("retries", [True, False])
async def test_a_draining_attempt_that_times_out_is_not_tried_again(
    db: Database, clock: Clock, retries: bool, noticed_by: str
) -> None:
    policy: dict[str, Any] = {"timeout_policy": {"attempt_timeout_ms": 1000}}
    if retries:
        policy["retry_policy"] = {"max_retries": 5}
    flow = await make_flow(db, nodes=["a", "b"], items={"a": {"policy": policy}})
    lease = await flow.take("a", ttl=timedelta(hours=1))
    await header(flow, "cancel_pending", reason="enough")
    await clock.advance(seconds=2)
    if noticed_by == "the reconciler":
        assert (await flow.engine.expire_executions())[0] == 1
    else:
        assert (await flow.engine.complete(lease)).word == "not_active"
    row = await flow.row("a")
    if retries:
        assert (row["public_state"], row["cancellation_reason"]) == ("cancelled", "enough")
        assert row["epoch"] == lease.epoch + 1
    else:
        assert row["public_state"] == "expired"
    assert (await flow.engine.complete(lease)).word == "not_active"


async def test_a_stale_outcome_of_an_attempt_is_not_shown_after_the_cancel(db: Database) -> None:
    flow = await make_flow(db, nodes=["a"], items={"a": RETRY})
    assert (await flow.fail("a", "transient")).word == "retry_scheduled"
    await cancel(flow, reason="enough")
    row = await flow.row("a")
    assert (row["outcome"], row["delayed_until"], row["result"]) == ("cancelled", None, None)
    assert (row["attempt_state"], row["attempt_ended_as"]) == (
        "attempt_terminal",
        "ended_failure",
    )


async def test_members_end_in_batches_and_none_of_them_is_skipped(db: Database) -> None:
    names = [f"n{number}" for number in range(7)]
    flow = await make_flow(db, nodes=names, edges=list(pairwise(names)))
    await header(flow)
    left = [((done := await members(flow, 2))["handled"], done["remaining"]) for _ in range(4)]
    assert left == [(2, 5), (2, 3), (2, 1), (1, 0)]
    # the ends of the first ones do not skip those that are still to be cancelled
    assert set((await flow.states()).values()) == {"cancelled"}


async def test_a_locked_member_stays_on_the_backlog_and_is_named(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    other = await db.connect()
    await header(flow)
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", flow["a"]
        )
        first = await members(flow)
        assert (first["handled"], first["remaining"], first["remaining_ids"]) == (1, 1, [])
        second = await members(flow)
        assert (second["handled"], second["remaining_ids"]) == (0, [flow["a"]])
        assert await backlog(flow) == (1, {"a"})
    assert (await members(flow))["handled"] == 1
    assert set((await flow.states()).values()) == {"cancelled"}


# The acknowledgement


async def test_acks_drain_the_backlog_and_the_last_one_removes_it(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    await header(flow)
    events = await db.fetchval("select count(*) from ff.event")
    for name, left in (("a", 1), ("b", 0)):
        await flow.cancel(name)
        answer = await ack(flow, flow[name])
        assert (answer["outcome"], answer["remaining"]) == ("acked", left)
        assert (await backlog(flow))[0] == (1 if left else 0)
    assert await db.fetchval("select count(*) from ff.event") == events + 2


async def test_an_ack_of_what_is_not_there_is_fine(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    assert (await ack(flow, flow["a"]))["outcome"] == "acked"
    await header(flow)
    assert (await ack(flow, uuid4()))["remaining"] == 2
    assert (await ack(flow, flow["a"], uuid4()))["remaining"] == 0
    assert (await ack(flow.over(flow.engine.within("other")), flow["a"]))["remaining"] == 0
    assert await backlog(flow) == (1, {"a", "b"})
    with refused("WF001", field="execution_id"):
        await ack(flow, None)


async def test_a_member_that_lives_on_is_not_acked(db: Database) -> None:
    flow = await make_flow(db, nodes=["a"])
    await header(flow)
    with refused("WF206", message="not_terminal"):
        await ack(flow, flow["a"])
    assert await backlog(flow) == (1, {"a"})


async def test_two_last_acks_at_once_leave_no_header(db: Database) -> None:
    for _ in range(10):
        flow = await make_flow(db, nodes=["a", "b"])
        await header(flow)
        await flow.cancel("a")
        await flow.cancel("b")
        other = flow.over(Engine(await db.connect()))
        await asyncio.gather(ack(flow, flow["a"]), ack(other, flow["b"]))
        assert await backlog(flow) == (0, set())


# The reconciler


async def test_the_reconciler_finishes_what_a_crash_left(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"])
    await header(flow, reason="enough")
    await members(flow, 1)
    await clock.advance(seconds=31)
    assert await reconcile(flow, 1) == (1, timedelta())
    assert await reconcile(flow) == (1, None)
    assert await reconcile(flow) == (0, None)
    assert set((await flow.states()).values()) == {"cancelled"}
    assert (await flow.row("c"))["cancellation_reason"] == "enough"


async def test_the_reconciler_comes_back_to_those_that_drain(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, nodes=["a"])
    lease = await flow.take("a", ttl=timedelta(hours=1))
    await header(flow, "cancel_pending")
    await clock.freeze()
    await clock.advance(seconds=31)
    assert await reconcile(flow) == (0, timedelta(seconds=15))
    assert await reconcile(flow) == (0, timedelta(seconds=15))
    await flow.engine.complete(lease)
    await clock.advance(seconds=15)
    assert await reconcile(flow) == (1, None)
    assert await backlog(flow) == (0, set())


async def test_the_reconciler_drops_the_backlog_of_a_flow_that_is_gone(
    db: Database, clock: Clock
) -> None:
    flow = await make_flow(db, nodes=["a"])
    await header(flow)
    await flow.cancel("a")
    await db.execute("delete from ff.flow where flow_id = $1", flow.id)
    await clock.advance(seconds=31)
    assert await reconcile(flow) == (1, None)
    assert await backlog(flow) == (0, set())
    db.leave_broken("the flow was deleted by hand")


async def test_the_reconciler_drops_a_header_without_members(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, nodes=["a"])
    await header(flow)
    await flow.cancel("a")
    await db.execute("delete from ff.cancel_backlog_member")
    await clock.advance(seconds=31)
    assert await reconcile(flow) == (0, None)
    assert await backlog(flow) == (0, set())


async def test_the_reconciler_and_a_dispatcher_do_not_meet(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    await header(flow)
    await clock.advance(seconds=31)
    other = flow.over(Engine(await db.connect()))
    async with flow.engine.connection.transaction():
        assert (await members(flow, 1))["handled"] == 1
        done = await members(other)
        assert (done["handled"], done["remaining"]) == (0, 2)
        assert (await reconcile(other))[0] == 0
    assert (await members(other))["handled"] == 1
    assert set((await flow.states()).values()) == {"cancelled"}


async def test_a_backlog_that_cannot_be_worked_on_does_not_stand_in_the_way_of_others(
    db: Database, clock: Clock
) -> None:
    draining = [await make_flow(db, nodes=["a"]) for _ in range(60)]
    for flow in draining:
        await flow.take("a", ttl=timedelta(hours=1))
        await header(flow, "cancel_pending")
    late = await make_flow(db, nodes=["a"])
    await header(late)
    await clock.advance(seconds=31)
    await reconcile(late)
    await reconcile(late)
    assert await late.state("a") == "cancelled"


# Claims of every kind


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending"])
async def test_no_claim_gets_a_member_between_the_header_and_its_own_cancel(
    db: Database, clock: Clock, policy: str
) -> None:
    flow = await make_flow(
        db, nodes=["fresh", "interrupted", "lost", "revoked", "retry"], items={"retry": RETRY}
    )
    engine = flow.engine
    await engine.release(await flow.take("interrupted"))
    for name in ("lost", "revoked"):
        await flow.take(name)
    await clock.advance(minutes=1)
    await engine.expire()
    other = await db.connect()
    # locked, so that the header cannot pause them; then they are free again
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = any ($1) for no key update",
            list(flow.ids.values()),
        )
        await header(flow, policy)
    for name in ("fresh", "interrupted"):
        assert (await flow.row(name))["eligibility"] == "eligible_now"
    assert await engine.claim(100) == []
    assert await engine.claim(1) == []
    for name in ("fresh", "interrupted"):
        with refused("WF207"):
            await engine.grant(flow[name])
        with refused("WF207"):
            await engine.grant_and_claim(flow[name])
    assert (await engine.grant_reclaim(flow["lost"])).word == "not_reclaimable"
    await members(flow)
    assert set((await flow.states()).values()) == {"cancelled"}


async def test_a_grant_from_before_the_cancel_is_worth_nothing(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, nodes=["fresh", "interrupted", "lost"])
    engine = flow.engine
    await engine.release(await flow.take("interrupted"))
    await flow.take("lost")
    await clock.advance(minutes=1)
    await engine.expire()
    fresh = await engine.grant(flow["fresh"])
    resumed = await engine.grant(flow["interrupted"])
    reclaim = await engine.grant_reclaim(flow["lost"])
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = any ($1) for no key update",
            list(flow.ids.values()),
        )
        await header(flow)
    with refused("WF207"):
        await engine.use(fresh)
    with refused("WF207"):
        await engine.use_resume(resumed)
    word, lease, _ = await engine.use_reclaim(reclaim)
    assert (word, lease) == ("not_reclaimable", None)
    await members(flow)
    assert await engine.grants() == []


async def test_a_claim_passes_members_of_cancelled_flows_and_takes_what_is_behind(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"])
    free = await make_flow(db, nodes=["c"])
    alone = await flow.engine.submit()
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = any ($1) for no key update",
            list(flow.ids.values()),
        )
        await header(flow)
    leases = await flow.engine.claim(2)
    assert {lease.execution_id for lease in leases} == {free["c"], alone.id}
    # one by one, as a claim does that has met many others
    for lease in leases:
        await flow.engine.release(lease)
    assert (
        await db.fetchval(
            f"select (ff._lock_candidate('{home()}', $1, ff.now())).is_open", flow["a"]
        )
        is False
    )
    assert await db.fetchval(
        f"select (ff._lock_candidate('{home()}', $1, ff.now())).is_open", free["c"]
    )


# Races


async def test_a_claim_that_was_first_is_cancelled_by_the_dispatcher_and_fenced(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a"])
    other = flow.over(Engine(await db.connect()))
    async with other.engine.connection.transaction():
        lease = await other.take("a")
        await header(flow)
        assert (await members(flow))["remaining_ids"] == [flow["a"]]
    assert (await members(flow))["handled"] == 1
    assert await flow.state("a") == "cancelled"
    assert (await flow.engine.complete(lease)).word == "not_active"


async def test_a_claim_and_a_header_at_once_leave_nobody_running(db: Database) -> None:
    for _ in range(20):
        flow = await make_flow(db, nodes=["a", "b", "c"])
        other = Engine(await db.connect())
        leases, _ = await asyncio.gather(
            other.claim(3, lanes=list(flow.lanes.values())), header(flow)
        )
        await cancel(flow)
        assert set((await flow.states()).values()) == {"cancelled"}
        for lease in leases:
            assert (await other.complete(lease)).word == "not_active"


async def test_what_becomes_eligible_while_the_flow_is_cancelled_does_not_live_on(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b"), ("b", "c")])
    other = flow.over(Engine(await db.connect()))
    lease = await other.take("a")
    async with other.engine.connection.transaction():
        # it holds the lock of b, so that the header cannot pause it
        await other.engine.complete(lease)
        await header(flow)
    assert (await flow.row("b"))["eligibility"] == "eligible_now"
    assert await flow.engine.claim(100) == []
    assert (await members(flow))["remaining"] == 0
    assert await flow.states() == {"a": "completed", "b": "cancelled", "c": "cancelled"}


async def test_a_paused_member_whose_group_is_satisfied_stays_paused(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    lease = await flow.take("a")
    await header(flow, "cancel_pending")
    assert (await flow.engine.complete(lease)).word == "completed"
    assert (await flow.row("b"))["blocking_reason"] == "paused_by_flow_cancel"
    assert (await flow.counts("b"))[0] == "satisfied"
    await members(flow)
    assert await flow.states() == {"a": "completed", "b": "cancelled"}


async def test_a_paused_member_whose_group_is_impossible_is_cancelled_not_skipped(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    lease = await flow.take("a")
    await header(flow, "cancel_pending")
    assert (await flow.engine.fail(lease, "permanent")).word == "failed"
    assert (await flow.counts("b"))[0] == "impossible"
    assert await flow.state("b") == "waiting"
    await members(flow)
    assert await flow.states() == {"a": "failed", "b": "cancelled"}


async def test_a_retry_that_is_promoted_while_the_flow_is_cancelled_does_not_live_on(
    db: Database, clock: Clock
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], items={"a": RETRY})
    other = flow.over(Engine(await db.connect()))
    assert (await flow.fail("a", "transient")).word == "retry_scheduled"
    await clock.advance(hours=1)
    async with other.engine.connection.transaction():
        assert (await other.engine.promote())[0] == 1
        await header(flow)
    assert (await flow.row("a"))["eligibility"] == "eligible_now"
    assert await flow.engine.claim(100) == []
    await members(flow)
    assert await flow.states() == {"a": "cancelled", "b": "cancelled"}


async def test_a_failure_at_the_same_time_as_the_header_is_not_retried_in_the_end(
    db: Database, clock: Clock
) -> None:
    flow = await make_flow(db, nodes=["a"], items={"a": RETRY})
    other = flow.over(Engine(await db.connect()))
    lease = await other.take("a")
    async with other.engine.connection.transaction():
        assert (await other.engine.fail(lease, "transient")).word == "retry_scheduled"
        await header(flow, "cancel_pending")
    await clock.advance(hours=1)
    await flow.engine.promote()
    assert await flow.engine.claim(100) == []
    await members(flow)
    assert await flow.state("a") == "cancelled"


async def test_a_waiter_of_runs_that_is_woken_while_the_flow_is_cancelled_does_not_live_on(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a"])
    engine = flow.engine
    child = await engine.submit(route=await engine.register(lane="child"))
    assert (await engine.wait_for(await flow.take("a"), [child.id])).open == 1
    await header(flow)
    assert (await flow.row("a"))["eligibility"] == "blocked_by_dependencies"
    await engine.complete(await engine.take(child.id, lanes=["child"]))
    assert (await flow.row("a"))["eligibility"] == "eligible_now"
    assert await engine.claim(100, lanes=[flow.lanes["a"]]) == []
    await members(flow)
    assert await flow.state("a") == "cancelled"
    assert await engine.waits(flow["a"]) == []


async def test_a_quorum_that_is_cancelled_whole_ends_everybody_once(db: Database) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "c", "d"],
        edges=[("a", "d"), ("b", "d"), ("c", "d")],
        groups=[Group("d", "quorum", 2, "cancel_remaining")],
    )
    await header(flow, reason="enough")
    while (await members(flow, 1))["handled"]:
        pass
    assert set((await flow.states()).values()) == {"cancelled"}
    for name in flow.ids:
        assert (await flow.engine.kinds(flow[name])).count("cancelled") == 1
    assert await backlog(flow) == (0, set())


async def add(flow: Flow, execution_id: UUID | None) -> str:
    word: str = await flow.engine.connection.fetchval(
        f"select outcome from ff.add_execution_to_flow(p_partition_key => '{home()}', "
        "p_namespace => $1, p_flow_id => $2, p_execution_id => $3)",
        flow.engine.namespace,
        flow.id,
        execution_id,
    )
    return word


async def test_who_is_added_before_the_header_ends_with_the_flow_who_comes_later_is_refused(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a"])
    other = flow.over(Engine(await db.connect()))
    early, late = await flow.engine.submit(), await flow.engine.submit()
    async with other.engine.connection.transaction():
        assert await add(other, early.id) == "added"
        waiting = asyncio.create_task(header(flow))
        await db.until_waiting(waiting)
    assert (await waiting)["open_count"] == 2
    with refused("WF215"):
        await add(flow, late.id)
    await members(flow)
    assert (await flow.engine.row(early.id))["public_state"] == "cancelled"
    assert (await flow.engine.row(late.id))["public_state"] == "waiting"


async def test_an_add_and_a_header_at_once_leave_nobody_behind(db: Database) -> None:
    for _ in range(6):
        flow = await make_flow(db, nodes=["a"])
        other = flow.over(Engine(await db.connect()))
        one = await flow.engine.submit()
        added, _ = await asyncio.gather(add(other, one.id), header(flow), return_exceptions=True)
        await cancel(flow)
        state = (await flow.engine.row(one.id))["public_state"]
        if isinstance(added, BaseException):
            assert isinstance(added, asyncpg.PostgresError)
            assert (added.sqlstate, state) == ("WF215", "waiting")
        else:
            assert (added, state) == ("added", "cancelled")


async def test_a_cancelled_flow_is_trimmed_with_its_event(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await cancel(flow)
    await clock.advance(days=31)
    for _ in range(3):
        await db.fetch(f"select * from ff.trim_retention('{home()}')")
    assert await db.fetchval("select count(*) from ff.execution") == 0
    assert await db.fetchval("select count(*) from ff.flow") == 0
    await clock.advance(days=2)
    await db.fetch(f"select * from ff.trim_events('{home()}')")
    assert await db.fetchval("select count(*) from ff.event") == 0
