"""The end of a member resolves its edges and decides about the downstream members."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import pairwise

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Failure
from flowfabric.core.states import FailureClass
from support.database import home
from support.factories import Engine
from support.flows import Edge, Flow, Group, make_flow

PENDING = {"wakes_pending": True}


def fan_in(names, **group):
    """Nodes and edges of upstreams that all lead to `z`, and the group they are in."""
    return {
        "nodes": [*names, "z"],
        "edges": [(name, "z") for name in names],
        "groups": [Group("z", **group)] if group else [],
    }


# The table of policies


@pytest.mark.parametrize(
    ("policy", "k", "n", "succeeded", "lost", "state"),
    [
        ("all_of", None, 3, 3, 0, "satisfied"),
        ("all_of", None, 3, 2, 0, "pending"),
        ("all_of", None, 3, 0, 1, "impossible"),
        ("all_of", None, 3, 2, 1, "impossible"),
        ("all_of", None, 1, 1, 0, "satisfied"),
        ("all_of", None, 0, 0, 0, "pending"),
        ("any_of", None, 3, 1, 0, "satisfied"),
        ("any_of", None, 3, 1, 2, "satisfied"),
        ("any_of", None, 3, 0, 2, "pending"),
        ("any_of", None, 3, 0, 3, "impossible"),
        ("any_of", None, 0, 0, 0, "pending"),
        ("quorum", 3, 5, 3, 0, "satisfied"),
        ("quorum", 3, 5, 3, 2, "satisfied"),
        ("quorum", 3, 5, 2, 2, "pending"),
        ("quorum", 3, 5, 2, 3, "impossible"),
        ("quorum", 3, 5, 0, 3, "impossible"),
        ("quorum", 3, 5, 0, 2, "pending"),
        ("quorum", 1, 1, 0, 1, "impossible"),
        # more than there are: at the first one that is resolved, whatever it is
        ("quorum", 3, 2, 1, 0, "impossible"),
    ],
)
async def test_a_group_is_judged_by_its_counts(db, policy, k, n, succeeded, lost, state):
    found = await db.fetchval(
        "select ff._evaluate_group($1, $2, $3, $4, $5)::text", policy, k, n, succeeded, lost
    )
    assert found == state


@pytest.mark.parametrize(
    ("outcome", "bucket"),
    [("success", "succeeded"), ("failed", "failed"), ("cancelled", "failed")],
)
async def test_an_outcome_is_counted_in_its_bucket(db, outcome, bucket):
    flow = await make_flow(db, **fan_in("abc", policy="quorum", k=2, on_satisfied="let_run"))
    await flow.end("a", outcome)
    row = await flow.group("z")
    counts = {name: row[name] for name in ("succeeded", "failed", "skipped")}
    assert counts == {"succeeded": 0, "failed": 0, "skipped": 0} | {bucket: 1}
    (edge, *_) = await flow.edges()
    assert edge["outcome"] == outcome
    assert edge["resolution"] == ("satisfied" if outcome == "success" else "impossible")


async def test_an_expired_upstream_counts_as_failed_and_a_skipped_one_as_skipped(db, clock):
    flow = await make_flow(
        db,
        nodes=["a", "b", "z"],
        edges=[("a", "b"), ("a", "z"), ("b", "z")],
        groups=[Group("z", "any_of", on_satisfied="let_run")],
        items={"a": {"deadline": timedelta(minutes=1)}},
    )
    await clock.advance(minutes=2)
    await flow.engine.expire_executions()
    assert await flow.states() == {"a": "expired", "b": "skipped", "z": "skipped"}
    assert await flow.counts("z") == ("impossible", 2, 0, 1, 1)


# All of


async def test_a_member_waits_until_the_last_of_all_its_upstreams_has_succeeded(db):
    flow = await make_flow(db, **fan_in("abc"))
    for name in "ab":
        await flow.complete(name)
        assert await flow.state("z") == "waiting_children"
    assert await flow.counts("z") == ("pending", 3, 2, 0, 0)
    await flow.complete("c")
    row = await flow.row("z")
    assert (row["eligibility"], row["blocking_reason"]) == ("eligible_now", "waiting_for_worker")
    assert (row["cause"], row["attempt_state"]) == ("satisfy_dependencies", "pending_first_attempt")
    assert await flow.counts("z") == ("satisfied", 3, 3, 0, 0)
    # quiet
    assert await flow.engine.kinds(flow["z"]) == ["submitted"]


async def test_an_all_of_that_is_named_is_like_one_that_is_not(db):
    named = await make_flow(db, **fan_in("ab", policy="all_of"))
    plain = await make_flow(db, **fan_in("ab"))
    for flow in (named, plain):
        await flow.complete("b")
        await flow.complete("a")
    assert await named.states() == await plain.states()
    assert await named.counts("z") == await plain.counts("z")


async def test_a_chain_runs_to_its_end_and_every_hop_is_claimable_at_once(db):
    """Nobody has to promote, sweep or poll between two hops."""
    names = [f"n{i}" for i in range(6)]
    flow = await make_flow(db, nodes=names, edges=list(pairwise(names)))
    for name in names:
        await flow.complete(name)
    assert set((await flow.states()).values()) == {"completed"}


async def test_one_end_frees_all_that_waited_for_it(db):
    flow = await make_flow(db, nodes=[*"abcd"], edges=[("a", "b"), ("a", "c"), ("a", "d")])
    await flow.complete("a")
    assert await flow.states("bcd") == dict.fromkeys("bcd", "waiting")


async def test_a_diamond_joins_again(db):
    flow = await make_flow(
        db, nodes=[*"abcd"], edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    )
    for name in "abc":
        assert await flow.state("d") == "waiting_children"
        await flow.complete(name)
    assert await flow.state("d") == "waiting"


async def test_one_branch_that_fails_skips_the_join_and_lets_the_other_end(db):
    flow = await make_flow(
        db, nodes=[*"abcd"], edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    )
    await flow.complete("a")
    await flow.fail("b")
    assert await flow.state("d") == "skipped"
    await flow.complete("c")
    assert await flow.states() == {
        "a": "completed",
        "b": "failed",
        "c": "completed",
        "d": "skipped",
    }


async def test_a_failure_is_not_passed_on_while_a_retry_is_left(db):
    flow = await make_flow(
        db,
        nodes=["a", "b"],
        edges=[("a", "b")],
        items={"a": {"policy": {"retry_policy": {"max_retries": 1}}}},
    )
    await flow.fail("a", "transient")
    assert await flow.states() == {"a": "delayed", "b": "waiting_children"}


async def test_a_batch_that_ends_many_upstreams_fires_their_group_once(db):
    names = [f"n{i}" for i in range(50)]
    flow = await make_flow(db, **fan_in(names))
    leases = [await flow.take(name) for name in names]
    answers = await flow.engine.complete_many(leases)
    assert {(answer.word, answer.detail) for answer in answers} == {("completed", None)}
    assert await flow.counts("z") == ("satisfied", 50, 50, 0, 0)
    assert await flow.state("z") == "waiting"


# Any of and quorum


async def test_the_first_success_is_enough_and_the_others_are_cancelled(db):
    flow = await make_flow(db, **fan_in("abc", policy="any_of", on_satisfied="cancel_remaining"))
    await flow.complete("b")
    assert await flow.states() == {
        "a": "cancelled",
        "b": "completed",
        "c": "cancelled",
        "z": "waiting",
    }
    row = await flow.group("z")
    assert (row["state"], row["cancel_reason"]) == ("satisfied", "sibling_quorum_satisfied")
    assert (row["fired_k"], row["fired_n"]) == (1, 3)


async def test_a_quorum_fires_exactly_at_k_and_lets_the_others_run(db):
    flow = await make_flow(db, **fan_in("abc", policy="quorum", k=2, on_satisfied="let_run"))
    await flow.complete("a")
    assert await flow.state("z") == "waiting_children"
    await flow.complete("b")
    assert await flow.states() == {
        "a": "completed",
        "b": "completed",
        "c": "waiting",
        "z": "waiting",
    }
    row = await flow.group("z")
    assert (row["cancel_pending"], row["cancel_reason"]) == (False, None)
    assert (row["fired_k"], row["fired_n"]) == (2, 3)


async def test_a_quorum_that_cannot_be_met_skips_with_exactly_one_event(db):
    flow = await make_flow(db, **fan_in("abcde", policy="quorum", k=3, on_satisfied="let_run"))
    for name in "abc":
        assert await flow.state("z") == "waiting_children"
        await flow.fail(name)
    assert await flow.state("z") == "skipped"
    await flow.fail("d")
    await flow.complete("e")
    assert await flow.counts("z") == ("impossible", 5, 1, 4, 0)
    assert await flow.engine.kinds(flow["z"]) == ["submitted", "skipped"]


@pytest.mark.parametrize("policy", ["any_of", "quorum"])
@pytest.mark.parametrize("on_satisfied", ["cancel_remaining", "let_run"])
@pytest.mark.parametrize("result", ["satisfied", "impossible"])
async def test_what_becomes_of_the_rest(db, policy, on_satisfied, result):
    """The rest is cancelled or let run, also when the group is impossible."""
    k = 2 if policy == "quorum" else None
    names = "abc" if policy == "quorum" else "ab"
    flow = await make_flow(db, **fan_in(names, policy=policy, k=k, on_satisfied=on_satisfied))
    ends = {
        ("any_of", "satisfied"): [("a", "success")],
        ("any_of", "impossible"): [("a", "failed"), ("b", "failed")],
        ("quorum", "satisfied"): [("a", "success"), ("b", "success")],
        ("quorum", "impossible"): [("a", "failed"), ("b", "failed")],
    }[policy, result]
    for name, outcome in ends:
        await flow.end(name, outcome)
    assert (await flow.group("z"))["state"] == result
    assert await flow.state("z") == ("waiting" if result == "satisfied" else "skipped")
    rest = [name for name in names if name not in dict(ends)]
    is_cancelled = on_satisfied == "cancel_remaining"
    for name in rest:
        row = await flow.row(name)
        assert row["public_state"] == ("cancelled" if is_cancelled else "waiting")
        assert row["cancellation_reason"] == (f"sibling_quorum_{result}" if is_cancelled else None)
    reason = (await flow.group("z"))["cancel_reason"]
    assert reason == (f"sibling_quorum_{result}" if is_cancelled else None)


async def test_a_group_fires_once_whatever_comes_later(db):
    """The decision is stored, and a later success is only counted."""
    flow = await make_flow(db, **fan_in("abc", policy="any_of", on_satisfied="let_run"))
    await flow.complete("a")
    fired = await flow.group("z")
    lease = await flow.take("z")
    await flow.complete("b")
    await flow.fail("c")
    assert await flow.counts("z") == ("satisfied", 3, 2, 1, 0)
    row = await flow.group("z")
    assert [row[name] for name in ("fired_at", "fired_k", "fired_n")] == [
        fired[name] for name in ("fired_at", "fired_k", "fired_n")
    ]
    assert (await flow.engine.complete(lease)).word == "completed"
    assert await flow.engine.kinds(flow["z"]) == ["submitted", "claimed", "completed"]


async def test_what_counted_at_the_decision_can_be_told_for_ever_after(db, clock):
    """An edge that is resolved later is later than the decision, also within one instant."""
    await clock.freeze()
    flow = await make_flow(db, **fan_in("abc", policy="any_of", on_satisfied="let_run"))
    await flow.complete("a")
    await flow.complete("b")
    fired_at = (await flow.group("z"))["fired_at"]
    edges = await flow.edges()
    assert [edge["resolved_at"] and edge["resolved_at"] <= fired_at for edge in edges] == [
        True,
        False,
        None,
    ]


async def test_several_groups_must_all_be_satisfied(db):
    flow = await make_flow(
        db,
        nodes=[*"abcz"],
        edges=[Edge("a", "z"), Edge("b", "z", group=1), Edge("c", "z", group=1)],
        groups=[Group("z", "any_of", on_satisfied="let_run", group=1)],
    )
    await flow.complete("b")
    assert await flow.state("z") == "waiting_children"
    await flow.complete("a")
    assert await flow.state("z") == "waiting"


async def test_one_impossible_group_is_enough_to_skip(db):
    flow = await make_flow(db, nodes=[*"abz"], edges=[Edge("a", "z"), Edge("b", "z", group=1)])
    await flow.complete("a")
    await flow.fail("b")
    assert await flow.state("z") == "skipped"


async def test_a_policy_without_an_edge_is_no_dependency(db):
    flow = await make_flow(
        db,
        nodes=["a", "z"],
        edges=[("a", "z")],
        groups=[Group("z", "any_of", on_satisfied="let_run", group=1)],
    )
    await flow.complete("a")
    assert await flow.state("z") == "waiting"


# Skips


async def test_a_skip_goes_on_to_all_that_depends_on_it(db):
    flow = await make_flow(db, nodes=[*"abcd"], edges=[("a", "b"), ("b", "c"), ("c", "d")])
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "skipped", "c": "skipped", "d": "skipped"}
    assert await flow.counts("c") == ("impossible", 1, 0, 0, 1)


async def test_a_skip_says_in_its_event_which_upstream_it_was_and_of_which_flow(db):
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.fail("a")
    (*_, event) = await flow.engine.events(flow["b"])
    assert (event["kind"], event["outcome"], event["flow_id"]) == ("skipped", "skipped", flow.id)
    assert json.loads(event["detail"]) == {
        "reason": "dependency_impossible",
        "upstream": f"{{fp:{home()}}}:{flow['a']}",
        "outcome": "failed",
    }
    row = await flow.row("b")
    assert (row["total_attempt_count"], row["attempt_state"]) == (0, "pending_first_attempt")


async def test_skips_have_no_depth_limit(db):
    """A chain of 350 in four bounded transactions."""
    names = [f"n{i:03}" for i in range(350)]
    flow = await make_flow(db, nodes=names, edges=list(pairwise(names)))
    assert (await flow.fail("n000")).detail == PENDING
    rows = "select count(*) from ff.execution where outcome = 'skipped'"
    assert await db.fetchval(rows) == 100
    steps = 0
    while (await flow.engine.resolve())[1] is not None:
        steps += 1
    assert steps == 2
    assert await db.fetchval(rows) == 349


async def test_the_skip_of_an_active_member_takes_its_lease_and_fences_its_worker(db):
    flow = await make_flow(db, nodes=["a", "z"], edges=[Edge("a", "z", is_applied=False)])
    lease = await flow.take("z")
    await flow.apply(0, lease)
    await flow.fail("a")
    row = await flow.row("z")
    assert (row["public_state"], row["ownership"], row["lease_id"]) == ("skipped", "unowned", None)
    assert (row["epoch"], row["attempt_state"]) == (lease.epoch + 1, "attempt_terminal")
    assert (row["attempt_ended_as"], row["last_lease_end"]) == ("ended_cancelled", "skip")
    assert (await flow.engine.complete(lease)).word in ("not_active", "stale_lease")
    assert (await flow.engine.renew(lease)).word in ("not_active", "stale_lease")
    (*_, event) = await flow.engine.events(flow["z"])
    assert (event["kind"], event["lease_id"]) == ("skipped", lease.lease_id)


@pytest.mark.parametrize("where", ["delayed", "held", "interrupted", "expired lease"])
async def test_the_skip_finds_a_member_wherever_it_is(db, clock, where):
    flow = await make_flow(db, nodes=["a", "z"], edges=[Edge("a", "z", is_applied=False)])
    lease = await flow.take("z")
    await flow.apply(0, lease)
    match where:
        case "delayed":
            await flow.engine.delay(lease, timedelta(hours=1))
        case "held":
            await flow.engine.hold(lease)
        case "interrupted":
            await flow.engine.release(lease)
        case _:
            await clock.advance(minutes=5)
            await flow.engine.expire()
    await flow.cancel("a")
    assert await flow.state("z") == "skipped"


async def test_a_deadline_that_passes_skips_those_downstream(db, clock):
    """An end by a timer is an end like any other."""
    flow = await make_flow(
        db,
        nodes=["a", "b"],
        edges=[("a", "b")],
        items={"a": {"deadline": timedelta(minutes=1)}},
    )
    await clock.advance(minutes=1)
    await flow.engine.expire_executions()
    assert await flow.states() == {"a": "expired", "b": "skipped"}


async def test_workers_that_vanish_too_often_skip_those_downstream(db, clock):
    flow = await make_flow(
        db, nodes=["a", "b"], edges=[("a", "b")], items={"a": {"max_reclaims": 0}}
    )
    await flow.take("a")
    await clock.advance(minutes=5)
    await flow.engine.expire()
    assert await flow.engine.claim(1, lanes=[flow.lanes["a"]]) == []
    assert await flow.states() == {"a": "failed", "b": "skipped"}


# Once, whatever is repeated


async def tell_again(flow: Flow, name: str) -> int:
    """As if whoever ended it had left something to do, which it had not."""
    await flow.engine.connection.execute(
        "update ff.execution set wakes_pending = true where execution_id = $1", flow[name]
    )
    told, due_in = await flow.engine.resolve()
    assert due_in is None
    return told


@pytest.mark.parametrize("outcome", ["success", "failed"])
async def test_telling_of_an_end_twice_changes_nothing(db, outcome):
    """The edge's own record is what makes it harmless."""
    flow = await make_flow(db, **fan_in("abc", policy="quorum", k=2, on_satisfied="let_run"))
    await flow.end("a", outcome)
    before = [tuple(await flow.group("z")), *map(tuple, await flow.edges())]
    assert await tell_again(flow, "a") == 0
    assert [tuple(await flow.group("z")), *map(tuple, await flow.edges())] == before


async def test_telling_of_the_winner_again_after_the_group_fired_changes_nothing(db):
    flow = await make_flow(db, **fan_in("ab", policy="any_of", on_satisfied="cancel_remaining"))
    await flow.complete("a")
    before = await flow.states(), tuple(await flow.group("z"))
    assert await tell_again(flow, "a") == 0
    assert (await flow.states(), tuple(await flow.group("z"))) == before


async def test_a_second_end_with_another_outcome_is_ignored(db):
    """An edge was resolved by the first end; two ends of one instant differ."""
    flow = await make_flow(db, **fan_in("ab", policy="quorum", k=2, on_satisfied="let_run"))
    await flow.complete("a")
    assert (await flow.engine.replay(flow["a"])).word == "replayed"
    await flow.fail("a")
    assert await flow.counts("z") == ("pending", 2, 1, 0, 0)
    (edge, _) = await flow.edges()
    assert (edge["resolution"], edge["outcome"]) == ("satisfied", "success")


async def test_two_edges_between_one_pair_both_count(db):
    flow = await make_flow(db, nodes=["a", "b", "z"], edges=[("a", "z"), ("a", "z"), ("b", "z")])
    await flow.complete("a")
    assert await flow.counts("z") == ("pending", 3, 2, 0, 0)
    await flow.complete("b")
    assert await flow.counts("z") == ("satisfied", 3, 3, 0, 0)


# A graph that is still being built


async def test_a_staged_edge_counts_as_running_until_it_is_applied(db):
    """Neither satisfied nor impossible too soon."""
    flow = await make_flow(
        db, nodes=[*"abz"], edges=[Edge("a", "z"), Edge("b", "z", is_applied=False)]
    )
    await flow.complete("a")
    assert await flow.counts("z") == ("pending", 2, 1, 0, 0)
    assert await flow.state("z") == "waiting_children"
    quorum = await make_flow(
        db,
        nodes=[*"abz"],
        edges=[Edge("a", "z"), Edge("b", "z", is_applied=False)],
        groups=[Group("z", "quorum", k=1, on_satisfied="let_run")],
    )
    await quorum.fail("a")
    assert await quorum.counts("z") == ("pending", 2, 0, 1, 0)


async def test_an_end_before_its_edge_is_applied_resolves_nothing(db):
    """Only what is applied is resolved; applying it looks at the end."""
    flow = await make_flow(
        db, nodes=[*"abz"], edges=[Edge("a", "z", is_applied=False), Edge("b", "z")]
    )
    await flow.complete("a")
    (staged, _) = await flow.edges()
    assert (staged["resolution"], staged["resolved_at"]) == (None, None)
    assert await flow.counts("z") == ("pending", 2, 0, 0, 0)
    await flow.complete("b")
    assert await flow.state("z") == "waiting_children"
    assert (await flow.apply(0))["public_state"] == "waiting"
    assert await flow.counts("z") == ("satisfied", 2, 2, 0, 0)


async def test_a_quorum_of_more_than_there_are_is_impossible_at_the_first_end(db):
    flow = await make_flow(
        db, **fan_in("ab", policy="quorum", k=3, on_satisfied="cancel_remaining")
    )
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "z": "skipped"}


# Those that are not waiting for it


@pytest.mark.parametrize("where", ["delayed", "held", "interrupted", "active", "retry"])
async def test_a_satisfied_group_leaves_alone_whoever_does_not_wait_for_it(db, where):
    """A delayed, held or running member is not woken."""
    flow = await make_flow(
        db,
        nodes=["a", "z"],
        edges=[Edge("a", "z", is_applied=False)],
        items={"z": {"policy": {"retry_policy": {"max_retries": 3}}}},
    )
    lease = await flow.take("z")
    await flow.apply(0, lease)
    match where:
        case "delayed":
            await flow.engine.delay(lease, timedelta(hours=1))
        case "held":
            await flow.engine.hold(lease)
        case "interrupted":
            await flow.engine.release(lease)
        case "retry":
            await flow.engine.fail(lease, "transient")
    before = tuple(await flow.row("z"))
    await flow.complete("a")
    assert tuple(await flow.row("z")) == before
    assert await flow.counts("z") == ("satisfied", 1, 1, 0, 0)


async def test_a_late_success_leaves_a_delayed_member_alone(db):
    flow = await make_flow(db, **fan_in("ab", policy="any_of", on_satisfied="let_run"))
    await flow.complete("a")
    await flow.engine.delay(await flow.take("z"), timedelta(hours=1))
    before = tuple(await flow.row("z"))
    await flow.complete("b")
    assert tuple(await flow.row("z")) == before


async def test_a_member_that_waits_for_runs_is_not_freed_by_its_edges(db, make):
    other = await make.execution("leased")
    flow = await make_flow(db, nodes=["a", "z"], edges=[Edge("a", "z", is_applied=False)])
    lease = await flow.take("z")
    await flow.apply(0, lease)
    assert (await flow.engine.wait_for(lease, [other.id])).word == "waiting"
    await flow.complete("a")
    assert await flow.state("z") == "waiting_children"
    await flow.engine.complete(other.last_lease)
    assert await flow.state("z") == "waiting"


async def test_a_member_that_has_ended_is_only_counted(db):
    flow = await make_flow(db, nodes=["a", "b", "z"], edges=[("a", "z"), ("b", "z")])
    await flow.cancel("z")
    await flow.complete("a")
    await flow.fail("b")
    assert await flow.state("z") == "cancelled"
    assert await flow.counts("z") == ("impossible", 2, 1, 1, 0)
    assert await flow.engine.kinds(flow["z"]) == ["submitted", "cancelled"]


# What is handed on


async def test_a_result_replaces_the_payload_before_anybody_can_claim(db):
    flow = await make_flow(db, nodes=["a", "b"], edges=[Edge("a", "b", ref="out")])
    await flow.complete("a", b"42")
    lease = await flow.take("b")
    assert (lease.payload, lease.payload_encoding) == (b"42", "json")


@pytest.mark.parametrize("ref", [None, ""])
async def test_without_a_ref_the_payload_stays(db, ref):
    flow = await make_flow(
        db, nodes=["a", "b"], edges=[Edge("a", "b", ref=ref)], items={"b": {"payload": b"mine"}}
    )
    await flow.complete("a", b"42")
    assert (await flow.take("b")).payload == b"mine"


@pytest.mark.parametrize("old", [b"mine", b"m" * 500])
@pytest.mark.parametrize("new", [b"42", b"4" * 500, b""])
@pytest.mark.parametrize("trace", [None, '{"traceparent": "00-1-2-01"}'])
async def test_results_of_any_size_replace_payloads_of_any_size(db, old, new, trace):
    flow = await make_flow(
        db,
        nodes=["a", "b"],
        edges=[Edge("a", "b", ref="x")],
        items={"b": {"payload": old, "trace": trace, "creator": "me"}},
    )
    await flow.complete("a", new)
    lease = await flow.take("b")
    assert (lease.payload, lease.trace_context) == (new, trace)
    body = await db.fetchrow(
        "select creator, node_name from ff.execution_body where execution_id = $1", flow["b"]
    )
    assert tuple(body) == ("me", "b")


async def test_no_result_replaces_nothing(db):
    flow = await make_flow(
        db, nodes=["a", "b"], edges=[Edge("a", "b", ref="x")], items={"b": {"payload": b"mine"}}
    )
    await flow.complete("a", None)
    assert (await flow.take("b")).payload == b"mine"


async def test_a_member_that_has_ended_keeps_its_payload(db):
    flow = await make_flow(
        db, nodes=["a", "b"], edges=[Edge("a", "b", ref="x")], items={"b": {"payload": b"mine"}}
    )
    await flow.cancel("b")
    await flow.complete("a", b"42")
    assert (await flow.row("b"))["payload"] == b"mine"


async def test_of_all_the_last_that_is_satisfied_wins(db):
    flow = await make_flow(
        db,
        nodes=[*"abcz"],
        edges=[Edge("a", "z", ref="x"), Edge("b", "z", ref="x"), Edge("c", "z")],
    )
    await flow.complete("b", b"b")
    await flow.complete("a", b"a")
    await flow.complete("c", b"c")
    assert (await flow.take("z")).payload == b"a"


async def test_of_any_the_one_that_fires_the_group_is_copied_and_no_later_one(db):
    flow = await make_flow(
        db,
        nodes=[*"abz"],
        edges=[Edge("a", "z", ref="x"), Edge("b", "z", ref="x")],
        groups=[Group("z", "any_of", on_satisfied="let_run")],
    )
    await flow.complete("b", b"b")
    await flow.complete("a", b"a")
    assert (await flow.take("z")).payload == b"b"


async def test_of_a_quorum_only_the_deciding_edge_is_copied(db):
    flow = await make_flow(
        db,
        nodes=[*"abcz"],
        edges=[Edge("a", "z", ref="x"), Edge("b", "z"), Edge("c", "z", ref="x")],
        groups=[Group("z", "quorum", k=2, on_satisfied="let_run")],
        items={"z": {"payload": b"mine"}},
    )
    await flow.complete("a", b"a")
    await flow.complete("b", b"b")
    await flow.complete("c", b"c")
    assert (await flow.take("z")).payload == b"mine"


# Those that cannot be told at once


@pytest.mark.parametrize("outcome", ["success", "failed", "cancelled"])
async def test_a_member_that_is_locked_is_left_and_told_later(db, outcome):
    """The end is marked, not forgotten, until every edge of it is resolved."""
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    if outcome != "cancelled":
        lease = await flow.take("a")
    transaction = await db.lock_executions(flow["b"])
    match outcome:
        case "success":
            answer = await flow.engine.complete(lease)
        case "failed":
            answer = await flow.engine.fail(lease, "permanent")
        case _:
            answer = await flow.cancel("a")
    assert answer.detail == PENDING
    assert (await flow.row("a"))["wakes_pending"] is True
    assert (await flow.edges())[0]["resolution"] == "unsatisfied"
    assert await flow.engine.resolve() == (0, timedelta(milliseconds=100))
    await transaction.rollback()
    assert await flow.engine.resolve() == (1, None)
    assert await flow.state("b") == ("waiting" if outcome == "success" else "skipped")
    assert (await flow.row("a"))["wakes_pending"] is False
    assert await flow.engine.resolve() == (0, None)


async def test_a_crash_between_two_edges_leaves_the_rest_to_a_reconciler(db):
    """The process that ended the member resolved one of three edges, and then died."""
    flow = await make_flow(db, nodes=[*"abcd"], edges=[("a", "b"), ("a", "c"), ("a", "d")])
    lease = await flow.take("a")
    holders = [await db.lock_executions(flow[name]) for name in "bd"]
    assert (await flow.engine.complete(lease)).detail == PENDING
    assert await flow.states("bcd") == {
        "b": "waiting_children",
        "c": "waiting",
        "d": "waiting_children",
    }
    for holder in holders:
        await holder.rollback()
    assert await Engine(await db.connect()).resolve(500) == (2, None)
    assert await flow.states("bcd") == dict.fromkeys("bcd", "waiting")


async def test_a_broken_cascade_of_three_hops_is_finished_and_then_left_alone(db):
    flow = await make_flow(db, nodes=[*"abcd"], edges=[("a", "b"), ("b", "c"), ("c", "d")])
    lease = await flow.take("a")
    holder = await db.lock_executions(flow["c"])
    # b is the one that owes it, and the answer for a says that there is more to do
    assert (await flow.engine.fail(lease, "permanent")).detail == PENDING
    assert (await flow.row("a"))["wakes_pending"] is False
    assert (await flow.row("b"))["wakes_pending"] is True
    assert await flow.states("cd") == dict.fromkeys("cd", "waiting_children")
    await holder.rollback()
    assert await flow.engine.resolve() == (2, None)
    assert await flow.states("bcd") == dict.fromkeys("bcd", "skipped")
    assert await flow.engine.resolve() == (0, None)


async def test_a_wide_fan_out_is_told_in_bounded_steps_that_keep_no_locks(db):
    names = [f"n{i:03}" for i in range(250)]
    flow = await make_flow(db, nodes=["a", *names], edges=[("a", name) for name in names])
    lease = await flow.take("a")
    assert (await flow.engine.complete(lease)).detail == PENDING
    ready = "select count(*) from ff.execution where eligibility = 'eligible_now'"
    assert await db.fetchval(ready) == 100
    other = await db.connect()
    async with other.transaction():
        rows = await other.fetch("select from ff.execution for update nowait")
        assert len(rows) == 251
    assert await flow.engine.resolve() == (100, timedelta(0))
    assert await flow.engine.resolve() == (50, None)
    assert await db.fetchval(ready) == 250


# Races


async def test_two_upstreams_that_end_at_once_fire_their_group_once(db):
    flow = await make_flow(db, **fan_in("ab"))
    other = flow.over(await db.connect())
    one, two = await flow.take("a"), await flow.take("b")
    first, second = flow.engine.connection.transaction(), other.engine.connection.transaction()
    await first.start()
    await second.start()
    assert (await flow.engine.complete(one)).detail is None
    # the member is the first one's until it commits
    assert (await other.engine.complete(two)).detail == PENDING
    await second.commit()
    await first.commit()
    assert await flow.state("z") == "waiting_children"
    assert await flow.engine.resolve() == (1, None)
    assert await flow.counts("z") == ("satisfied", 2, 2, 0, 0)
    assert await flow.state("z") == "waiting"


async def test_many_that_end_at_once_are_counted_exactly(db):
    names = [f"n{i}" for i in range(24)]
    flow = await make_flow(db, **fan_in(names, policy="quorum", k=12, on_satisfied="let_run"))
    leases = [await flow.take(name) for name in names]
    engines = [Engine(await db.connect()) for _ in range(4)]

    async def end(number: int) -> None:
        for place in range(number, len(leases), 4):
            if place % 3 == 0:
                await engines[number].fail(leases[place], "permanent")
            else:
                await engines[number].complete(leases[place])
            await engines[number].resolve()

    await asyncio.gather(*(end(number) for number in range(4)))
    while (await flow.engine.resolve())[1] is not None:
        pass
    assert await flow.counts("z") == ("satisfied", 24, 16, 8, 0)
    assert await flow.state("z") == "waiting"


async def test_two_resolvers_at_once_resolve_once(db):
    names = [f"n{i:03}" for i in range(160)]
    flow = await make_flow(db, nodes=["a", *names], edges=[("a", name) for name in names])
    await flow.complete("a")
    others = [Engine(await db.connect()) for _ in range(2)]
    answers = await asyncio.gather(*(each.resolve() for each in (flow.engine, *others)))
    assert sum(told for told, _ in answers) == 60
    assert await flow.engine.resolve() == (0, None)
    for name in names:
        assert await flow.counts(name) == ("satisfied", 1, 1, 0, 0)


async def test_ends_of_each_others_downstreams_never_wait_for_one_another(db):
    """Two layers that end crosswise, with the renewals of those that run: no deadlock, no loss."""
    upper, lower = [f"u{i}" for i in range(8)], [f"d{i}" for i in range(8)]
    flow = await make_flow(
        db,
        nodes=[*upper, *lower],
        edges=[(up, down) for up in upper for down in lower],
    )
    leases = {name: await flow.take(name) for name in upper}
    engines = [Engine(await db.connect()) for _ in range(3)]

    async def end(engine: Engine, names: list[str]) -> None:
        for name in names:
            answer = await engine.complete(leases[name], wait=True)
            assert answer.word == "completed"

    async def beat(engine: Engine) -> None:
        for _ in range(10):
            await engine.renew_many(list(leases.values()))

    await asyncio.gather(
        end(engines[0], upper[:4]), end(engines[1], upper[:3:-1]), beat(engines[2])
    )
    while (await flow.engine.resolve())[1] is not None:
        pass
    assert await flow.states(lower) == dict.fromkeys(lower, "waiting")
    for name in lower:
        assert await flow.counts(name) == ("satisfied", 8, 8, 0, 0)


# The client does the rest at once


async def held(client, flow, name):
    (claimed,) = await client.executions.claim(
        worker_id="pool", worker_instance_id="pool-1", lanes=[flow.lanes[name]]
    )
    return claimed


async def test_a_client_that_ends_a_wide_fan_out_tells_them_all(db):
    """In milliseconds, without waiting for a reconciler."""
    names = [f"n{i:03}" for i in range(350)]
    flow = await make_flow(db, nodes=["a", *names], edges=[("a", name) for name in names])
    async with FlowFabric(db.url, namespace="test", pool_size=2) as client:
        await client.executions.complete(await held(client, flow, "a"))
        await client.executions._cascades.close()
    assert await flow.states(names) == dict.fromkeys(names, "waiting")


async def test_a_client_that_fails_skips_a_long_chain(db):
    names = [f"n{i:03}" for i in range(250)]
    flow = await make_flow(db, nodes=names, edges=list(pairwise(names)))
    async with FlowFabric(db.url, namespace="test", pool_size=2) as client:
        failure = Failure(FailureClass.PERMANENT, "no")
        await client.executions.fail(await held(client, flow, names[0]), failure)
        await client.executions._cascades.close()
    assert await flow.states(names[1:]) == dict.fromkeys(names[1:], "skipped")


@pytest.mark.parametrize("how", ["complete", "cancel"])
async def test_a_client_that_decides_a_group_cancels_all_its_siblings(db, how):
    names = [f"n{i:03}" for i in range(260)]
    policy = {"complete": "any_of", "cancel": "quorum"}[how]
    flow = await make_flow(
        db,
        nodes=[*names, "z"],
        edges=[(name, "z") for name in names],
        groups=[Group("z", policy, k=260 if how == "cancel" else None)],
    )
    async with FlowFabric(db.url, namespace="test", pool_size=2) as client:
        claimed = await held(client, flow, names[0])
        if how == "complete":
            await client.executions.complete(claimed)
            await client.executions._cascades.close()
        else:
            assert (await client.executions.cancel(claimed.id)).detail == {}
    assert await flow.states(names[1:]) == dict.fromkeys(names[1:], "cancelled")
    assert (await flow.group("z"))["cancel_pending"] is False
    assert await flow.engine.resolve() == (0, None)
