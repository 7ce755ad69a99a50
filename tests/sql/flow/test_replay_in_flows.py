"""Replay of members of a flow: what their end had decided is open again, and those that were
skipped because of it are replayed with them.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from support.cancelling import cancel, header
from support.clock import Clock
from support.database import Database, home
from support.factories import Engine, refused
from support.flows import Edge, Flow, Group, make_flow


async def replayed(flow: Flow, name: str) -> list[Any]:
    """The details of the events of its replays."""
    return [
        json.loads(event["detail"])
        for event in await flow.engine.events(flow[name])
        if event["kind"] == "replayed"
    ]


async def resolutions(flow: Flow, to: str) -> list[str]:
    return [edge["resolution"] for edge in await flow.edges(to)]


async def test_the_replay_of_a_failed_node_replays_what_was_skipped_because_of_it(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b"), ("b", "c")])
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "skipped", "c": "skipped"}
    answer = await flow.engine.replay(flow["a"], reason="again", actor="ann")
    assert (answer.word, answer.public_state) == ("replayed", "waiting")
    assert await flow.states() == {"a": "waiting", "b": "waiting_children", "c": "waiting_children"}
    for name in "bc":
        row = await flow.row(name)
        # T29: not counted towards its limit
        assert (row["replay_count"], row["attempt_state"]) == (0, "pending_replay_attempt")
        assert (row["outcome"], row["blocking_reason"]) == ("none", "waiting_for_children")
        assert await flow.counts(name) == ("pending", 1, 0, 0, 0)
        assert await resolutions(flow, name) == ["unsatisfied"]
        (told,) = await replayed(flow, name)
        assert told == {
            "branch": "skipped_flow_member",
            "caused_by": f"{{fp:{home()}}}:{flow['a']}",
            "reason": "again",
        }
    assert (await flow.row("a"))["replay_count"] == 1
    (told,) = await replayed(flow, "a")
    assert told == {"branch": "normal", "reason": "again", "groups_reset": 2, "with": 2}
    for name in "abc":
        await flow.complete(name)
    assert set((await flow.states()).values()) == {"completed"}


async def test_a_member_replayed_with_its_upstream_may_be_skipped_and_replayed_again(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    for _ in range(3):
        await flow.fail("a")
        assert await flow.state("b") == "skipped"
        await flow.engine.replay(flow["a"])
        assert await flow.state("b") == "waiting_children"
    await flow.complete("a")
    lease = await flow.take("b")
    assert (lease.attempt_type, lease.attempt_index) == ("replay", 0)
    assert (await flow.row("b"))["replay_count"] == 0


async def test_a_chain_of_skipped_members_is_replayed_to_its_end(db: Database) -> None:
    names = [f"n{number}" for number in range(60)]
    flow = await make_flow(db, nodes=names, edges=list(pairwise(names)))
    await flow.fail("n0")
    assert list((await flow.states()).values()).count("skipped") == 59
    await flow.engine.replay(flow["n0"])
    assert list((await flow.states()).values()).count("waiting_children") == 59


async def test_another_upstream_that_failed_too_keeps_the_member_skipped(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "c"), ("b", "c")])
    await flow.fail("a")
    await flow.fail("b")
    await flow.engine.replay(flow["a"])
    assert await flow.state("c") == "skipped"
    assert await flow.counts("c") == ("impossible", 2, 0, 1, 0)
    assert await resolutions(flow, "c") == ["unsatisfied", "impossible"]
    await flow.engine.replay(flow["b"])
    assert await flow.state("c") == "waiting_children"
    assert await flow.counts("c") == ("pending", 2, 0, 0, 0)
    await flow.complete("a")
    await flow.complete("b")
    assert await flow.state("c") == "waiting"


async def test_a_success_is_kept_and_the_rest_counted_anew(db: Database) -> None:
    flow = await make_flow(
        db, nodes=["a", "b", "c", "d"], edges=[("a", "d"), ("b", "d"), ("c", "d")]
    )
    await flow.complete("a")
    await flow.fail("b")
    await flow.complete("c")
    assert await flow.counts("d") == ("impossible", 3, 2, 1, 0)
    await flow.engine.replay(flow["b"])
    assert await flow.counts("d") == ("pending", 3, 2, 0, 0)
    # One success more is not enough by itself to fire a group that was reset
    assert await flow.state("d") == "waiting_children"
    await flow.complete("b")
    assert await flow.counts("d") == ("satisfied", 3, 3, 0, 0)
    assert await flow.state("d") == "waiting"


async def test_a_diamond_is_opened_from_both_sides(db: Database) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "c", "d"],
        edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")],
    )
    await flow.fail("a")
    assert await flow.state("d") == "skipped"
    await flow.engine.replay(flow["a"])
    assert await flow.states("bcd") == dict.fromkeys("bcd", "waiting_children")
    assert await flow.counts("d") == ("pending", 3, 0, 0, 0)
    for name in "abcd":
        await flow.complete(name)


async def test_running_and_ended_descendants_are_left_alone(db: Database) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "c", "d", "e"],
        edges=[("a", "c"), ("b", "c"), ("a", "d"), ("b", "d"), ("a", "e")],
        groups=[Group("c", "any_of", None, "let_run"), Group("d", "any_of", None, "let_run")],
    )
    await flow.complete("b")
    lease = await flow.take("c")
    await flow.complete("d", b"42")
    await flow.cancel("e")
    before = {name: await flow.row(name) for name in "cde"}
    await flow.fail("a")
    await flow.engine.replay(flow["a"])
    for name, row in before.items():
        assert await flow.row(name) == row
    for name in "cd":
        assert await flow.counts(name) == ("satisfied", 2, 1, 0, 0)
        assert await resolutions(flow, name) == ["unsatisfied", "satisfied"]
    # what it decides now changes nothing that was decided
    await flow.complete("a")
    for name in "cd":
        assert await flow.counts(name) == ("satisfied", 2, 2, 0, 0)
    assert (await flow.engine.complete(lease)).word == "completed"
    assert await flow.state("e") == "cancelled"


async def test_satisfied_edges_stay_satisfied_when_their_upstream_is_replayed(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.complete("a")
    await flow.engine.replay(flow["a"])
    assert await flow.states() == {"a": "waiting", "b": "waiting"}
    assert await resolutions(flow, "b") == ["satisfied"]
    await flow.fail("a")
    assert await flow.counts("b") == ("satisfied", 1, 1, 0, 0)
    await flow.complete("b")


async def test_a_quorum_that_can_be_reached_again_is_open_again(db: Database) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "c", "d"],
        edges=[("a", "d"), ("b", "d"), ("c", "d")],
        groups=[Group("d", "quorum", 2, "let_run")],
    )
    await flow.fail("a")
    await flow.fail("b")
    assert await flow.state("d") == "skipped"
    await flow.engine.replay(flow["b"])
    assert await flow.counts("d") == ("pending", 3, 0, 1, 0)
    group = await flow.group("d")
    assert (group["fired_at"], group["fired_k"], group["fired_n"]) == (None, None, None)
    await flow.complete("b")
    await flow.complete("c")
    assert await flow.state("d") == "waiting"


async def test_a_group_that_is_open_again_cancels_nobody(db: Database) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "c", "d"],
        edges=[("a", "d"), ("b", "d"), ("c", "d")],
        groups=[Group("d", "quorum", 3, "cancel_remaining")],
    )
    other = await db.connect()
    lease = await flow.take("a")
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = any ($1) for no key update",
            [flow["b"], flow["c"]],
        )
        await flow.engine.fail(lease, "permanent")
    group = await flow.group("d")
    assert (group["cancel_pending"], set(group["cancel_members"])) == (
        True,
        {flow["b"], flow["c"]},
    )
    await flow.engine.replay(flow["a"])
    group = await flow.group("d")
    assert (group["state"], group["cancel_pending"], group["cancel_members"]) == (
        "pending",
        False,
        [],
    )
    for name in "abcd":
        await flow.complete(name)


async def test_one_of_several_groups_that_is_impossible_keeps_the_member_skipped(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[Edge("a", "c", 0), Edge("b", "c", 1)])
    await flow.fail("a")
    await flow.fail("b")
    await flow.engine.replay(flow["a"])
    assert (await flow.counts("c", 0))[0] == "pending"
    assert (await flow.counts("c", 1))[0] == "impossible"
    assert await flow.state("c") == "skipped"
    await flow.engine.replay(flow["b"])
    assert await flow.state("c") == "waiting_children"


# The member itself


async def test_a_skipped_member_waits_for_a_later_end_of_its_upstream(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b"), ("b", "c")])
    await flow.fail("a")
    answer = await flow.engine.replay(flow["b"], actor="ann")
    assert answer.public_state == "waiting_children"
    row = await flow.row("b")
    assert (row["replay_count"], row["eligibility"]) == (1, "blocked_by_dependencies")
    (edge,) = await flow.edges("b")
    assert (edge["resolution"], edge["reopened_version"]) == (
        "unsatisfied",
        (await flow.row("a"))["version"],
    )
    (told,) = await replayed(flow, "b")
    assert (told["branch"], told["groups_reset"], told["with"]) == ("skipped_flow_member", 2, 1)
    # telling of the old end again does nothing
    await db.execute(
        "update ff.execution set wakes_pending = true where execution_id = $1", flow["a"]
    )
    await flow.engine.resolve()
    assert await flow.states("bc") == {"b": "waiting_children", "c": "waiting_children"}
    await flow.engine.replay(flow["a"])
    await flow.complete("a")
    assert await flow.state("b") == "waiting"
    await flow.complete("b")
    await flow.complete("c")


async def test_a_later_end_without_success_skips_it_again(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.fail("a")
    await flow.engine.replay(flow["b"])
    await flow.engine.replay(flow["a"])
    assert await flow.state("b") == "waiting_children"
    await flow.fail("a")
    assert await flow.state("b") == "skipped"


async def test_a_member_cancelled_while_it_waited_waits_again(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "c"), ("b", "c")])
    await flow.complete("a")
    await flow.cancel("c")
    answer = await flow.engine.replay(flow["c"])
    assert answer.public_state == "waiting_children"
    assert await flow.counts("c") == ("pending", 2, 1, 0, 0)
    await flow.complete("b")
    assert await flow.state("c") == "waiting"


async def test_a_member_cancelled_while_it_waited_runs_if_all_have_succeeded_since(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.cancel("b")
    await flow.complete("a")
    answer = await flow.engine.replay(flow["b"])
    assert answer.public_state == "waiting"
    (told,) = await replayed(flow, "b")
    assert told == {"branch": "normal"}
    await flow.complete("b")


async def test_a_member_that_had_what_it_needs_runs_at_once(db: Database) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "c"],
        edges=[("a", "c"), ("b", "c")],
        groups=[Group("c", "any_of", None, "let_run")],
    )
    await flow.fail("a")
    await flow.complete("b")
    await flow.fail("c")
    answer = await flow.engine.replay(flow["c"])
    assert answer.public_state == "waiting"
    assert await flow.counts("c") == ("satisfied", 2, 1, 1, 0)
    lease = await flow.take("c")
    assert (lease.attempt_type, lease.attempt_index) == ("replay", 1)


async def test_a_result_that_came_when_the_member_had_ended_is_its_payload_when_it_runs(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "z"], edges=[Edge("a", "z", ref="payload")])
    await flow.cancel("z")
    await flow.complete("a", b"42")
    assert (await flow.engine.replay(flow["z"])).public_state == "waiting"
    assert (await flow.take("z")).payload == b"42"


async def test_a_result_that_came_when_the_member_was_skipped_is_its_payload_when_it_runs(
    db: Database,
) -> None:
    flow = await make_flow(
        db, nodes=["a", "b", "z"], edges=[Edge("a", "z"), Edge("b", "z", 1, ref="payload")]
    )
    await flow.fail("a")
    await flow.complete("b", b"42")
    await flow.engine.replay(flow["a"])
    await flow.complete("a", b"1")
    assert (await flow.take("z")).payload == b"42"


async def test_a_payload_that_a_member_ran_with_stays_when_it_is_replayed(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "z"], edges=[Edge("a", "z", ref="payload")])
    await flow.complete("a", b"42")
    await flow.complete("z")
    await flow.engine.replay(flow["a"])
    await flow.complete("a", b"43")
    await flow.engine.replay(flow["z"])
    assert (await flow.take("z")).payload == b"42"


async def test_an_operator_may_replay_a_member_it_cancelled(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    lease = await flow.take("a")
    await flow.cancel("a")
    assert await flow.states() == {"a": "cancelled", "b": "skipped"}
    await flow.engine.replay(flow["a"])
    assert await flow.states() == {"a": "waiting", "b": "waiting_children"}
    again = await flow.take("a")
    assert (again.attempt_index, again.attempt_type) == (lease.attempt_index + 1, "replay")
    assert len(await flow.engine.attempts(flow["a"])) == 1


async def test_the_limit_of_replays_is_that_of_the_member_one_asks_for(
    db: Database,
) -> None:
    most = {"policy": {"max_replay_count": 1}}
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")], items={"b": most, "a": most})
    await flow.fail("a")
    await flow.engine.replay(flow["b"])
    await flow.engine.replay(flow["a"])
    await flow.fail("a")
    with refused("WF212"):
        await flow.engine.replay(flow["a"])
    with refused("WF212"):
        await flow.engine.replay(flow["b"])
    assert await flow.states() == {"a": "failed", "b": "skipped"}
    assert await flow.counts("b") == ("impossible", 1, 0, 1, 0)


async def test_what_has_not_ended_is_not_replayed(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    for name in "ab":
        with refused("WF206"):
            await flow.engine.replay(flow[name])


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending", "flow_only"])
async def test_in_a_cancelled_flow_nothing_is_replayed(db: Database, policy: str) -> None:
    flow = await make_flow(db, nodes=["a", "b", "open"], edges=[("a", "b")])
    await flow.fail("a")
    await cancel(flow, policy)
    before = await flow.engine.snapshot()
    for name in "ab":
        with refused("WF215", message="flow_already_terminal"):
            await flow.engine.replay(flow[name])
        with refused("WF215"):
            await flow.engine.retry(flow[name])
    assert await flow.engine.snapshot() == before
    assert await resolutions(flow, "b") == ["impossible"]


async def test_in_a_flow_that_misses_members_nothing_is_replayed(db: Database) -> None:
    flow = await make_flow(db, nodes=["a"])
    await flow.fail("a")
    await db.execute("update ff.flow set trimmed_at = ff.now() where flow_id = $1", flow.id)
    with refused("WF215"):
        await flow.engine.replay(flow["a"])


async def test_a_replay_for_a_version_gone_by_changes_nothing(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.fail("a")
    version = (await flow.row("a"))["version"]
    assert (await flow.engine.replay(flow["a"], if_version=version)).word == "replayed"
    before = await flow.engine.snapshot()
    assert (await flow.engine.replay(flow["a"], if_version=version)).word == "already_applied"
    assert await flow.engine.snapshot() == before


async def test_retry_replays_a_member_like_replay_does(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.fail("a")
    answer = await flow.engine.retry(flow["b"])
    assert (answer.word, answer.public_state) == ("replayed", "waiting_children")
    assert (await flow.engine.retry(flow["a"])).word == "replayed"
    with refused("WF205"):
        await flow.engine.retry(flow["b"])


async def test_a_deadline_that_has_passed_is_lifted_from_those_replayed_with_it(
    db: Database, clock: Clock
) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "c"],
        edges=[("a", "b"), ("a", "c")],
        items={"b": {"deadline": timedelta(hours=1)}, "c": {"deadline": timedelta(days=1)}},
    )
    await flow.fail("a")
    await clock.advance(hours=2)
    await flow.engine.replay(flow["a"])
    assert (await flow.row("b"))["deadline_at"] is None
    row = await flow.row("c")
    assert row["deadline_at"] is not None
    assert row["due_at"] == row["deadline_at"]
    await flow.engine.expire_executions()
    assert await flow.states("bc") == {"b": "waiting_children", "c": "waiting_children"}


# What a member was promised


async def inputs(flow: Flow, to: str) -> dict[str, bytes | None]:
    """The results that count for a member, as its worker reads them."""
    rows = await flow.engine.connection.fetch(
        "select node_name, result from ff.read_inputs($1, $2, $3) where is_counted",
        flow.engine.partition_key,
        flow.engine.namespace,
        [flow[to]],
    )
    return {row["node_name"]: row["result"] for row in rows}


async def kept(db: Database) -> int:
    return int(await db.fetchval("select count(*) from ff.kept_result"))


async def test_a_waiting_member_keeps_its_input_while_the_upstream_runs_again(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b"), ("a", "c")])
    await flow.complete("a", b"1")
    await flow.engine.replay(flow["a"])
    assert await inputs(flow, "b") == {"a": b"1"}
    again = await flow.take("a")
    assert await inputs(flow, "b") == {"a": b"1"}
    await flow.take("b")
    await flow.engine.complete(again, b"2")
    # one has started, the other has not
    assert (await inputs(flow, "b"), await inputs(flow, "c")) == ({"a": b"1"}, {"a": b"2"})


async def test_a_new_result_is_for_those_that_have_not_started(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.complete("a", b"1")
    await flow.engine.replay(flow["a"])
    await flow.complete("a", b"2")
    assert await inputs(flow, "b") == {"a": b"2"}
    assert await kept(db) == 0


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_a_replay_that_does_not_succeed_leaves_the_input_as_it_was(
    db: Database, end: str
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.complete("a", b"1")
    await flow.engine.replay(flow["a"])
    await flow.end("a", end)
    assert await inputs(flow, "b") == {"a": b"1"}
    await flow.engine.replay(flow["a"])
    assert await inputs(flow, "b") == {"a": b"1"}
    await flow.complete("a", b"3")
    assert await inputs(flow, "b") == {"a": b"3"}


async def test_every_attempt_and_every_replay_sees_what_the_first_one_saw(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.complete("a", b"1")
    await flow.engine.release(await flow.take("b"))
    for result in (b"2", b"3"):
        await flow.engine.replay(flow["a"])
        assert await inputs(flow, "b") == {"a": b"1"}
        await flow.complete("a", result)
        assert await inputs(flow, "b") == {"a": b"1"}
    await flow.complete("b")
    await flow.engine.replay(flow["b"])
    assert await inputs(flow, "b") == {"a": b"1"}
    assert await kept(db) == 1


async def test_a_group_that_is_decided_while_an_upstream_runs_again_has_its_result(
    db: Database,
) -> None:
    flow = await make_flow(
        db, nodes=["a", "b", "c"], edges=[Edge("a", "c", ref="payload"), ("b", "c")]
    )
    await flow.complete("a", b"1")
    await flow.engine.replay(flow["a"])
    await flow.complete("b", b"9")
    assert await inputs(flow, "c") == {"a": b"1", "b": b"9"}
    assert (await flow.take("c")).payload == b"1"


async def test_a_payload_that_was_passed_on_is_the_new_one_until_the_member_starts(
    db: Database,
) -> None:
    flow = await make_flow(
        db,
        nodes=["a", "b", "z", "y"],
        edges=[
            Edge("a", "z", ref="payload"),
            Edge("a", "y", 0, ref="payload"),
            Edge("b", "y", 1, ref="payload"),
        ],
    )
    await flow.complete("a", b"1")
    await flow.complete("b", b"9")
    await flow.engine.replay(flow["a"])
    await flow.complete("a", b"2")
    assert (await flow.take("z")).payload == b"2"
    # its payload came from the other group, which was decided later
    assert (await flow.take("y")).payload == b"9"


async def test_a_member_that_ended_before_it_started_runs_with_the_new_result(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "z"], edges=[Edge("a", "z", ref="payload")])
    await flow.complete("a", b"1")
    await flow.cancel("z")
    await flow.engine.replay(flow["a"])
    await flow.complete("a", b"2")
    await flow.engine.replay(flow["z"])
    assert await inputs(flow, "z") == {"a": b"2"}
    assert (await flow.take("z")).payload == b"2"


async def test_a_new_result_that_could_not_be_told_at_once_is_told_later(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b"), ("a", "c")])
    await flow.complete("a", b"1")
    await flow.engine.replay(flow["a"])
    lease = await flow.take("a")
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", flow["b"]
        )
        answer = await flow.engine.complete(lease, b"2")
        assert answer.detail == {"wakes_pending": True}
        assert (await inputs(flow, "b"), await inputs(flow, "c")) == ({"a": b"1"}, {"a": b"2"})
    await flow.engine.resolve()
    assert await inputs(flow, "b") == {"a": b"2"}
    assert not (await flow.row("a"))["wakes_pending"]
    assert await kept(db) == 0


async def test_what_was_kept_goes_with_the_upstream(db: Database, clock: Clock) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.complete("a", b"1")
    await flow.complete("b")
    await flow.engine.replay(flow["a"])
    await flow.complete("a", b"2")
    assert await kept(db) == 1
    await clock.advance(days=40)
    await db.execute(f"select from ff.trim_retention('{home()}')")
    assert await db.fetchval("select count(*) from ff.execution") == 0
    assert await kept(db) == 0


# Whoever is owed an answer, and who is busy


async def test_an_end_that_could_not_be_told_yet_is_told_before_it_is_undone(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    other = await db.connect()
    lease = await flow.take("a")
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", flow["b"]
        )
        answer = await flow.engine.fail(lease, "permanent")
        assert answer.detail == {"wakes_pending": True}
        with pytest.raises(asyncpg.SerializationError):
            await flow.engine.replay(flow["a"])
    assert (await flow.engine.replay(flow["a"])).word == "replayed"
    row = await flow.row("a")
    assert (row["wakes_pending"], row["public_state"]) == (False, "waiting")
    assert await flow.state("b") == "waiting_children"
    kinds = await flow.engine.kinds(flow["b"])
    assert kinds == ["submitted", "skipped", "replayed"]


async def test_a_skip_that_could_not_be_told_yet_is_told_before_it_is_undone(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b"), ("b", "c")])
    other = await db.connect()
    lease = await flow.take("a")
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", flow["c"]
        )
        await flow.engine.fail(lease, "permanent")
    assert (await flow.row("b"))["wakes_pending"]
    await flow.engine.replay(flow["a"])
    assert await flow.states("bc") == {"b": "waiting_children", "c": "waiting_children"}
    assert not (await flow.row("b"))["wakes_pending"]
    for name in "abc":
        await flow.complete(name)


async def test_a_replay_waits_for_a_descendant_that_is_busy_for_a_moment(db: Database) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.fail("a")
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        "select from ff.execution where execution_id = $1 for no key update", flow["b"]
    )
    replay = asyncio.create_task(flow.engine.replay(flow["a"]))
    await db.until_waiting(replay)
    await transaction.rollback()
    assert (await replay).word == "replayed"
    assert await flow.state("b") == "waiting_children"


# Races


async def test_replays_of_an_upstream_and_its_downstream_at_once(db: Database) -> None:
    for turn in range(6):
        flow = await make_flow(
            db, nodes=["a", "b", "c"], edges=[("a", "b"), ("b", "c"), ("a", "c")]
        )
        await flow.fail("a")
        one, two = Engine(await db.connect()), Engine(await db.connect())
        answers = await asyncio.gather(
            one.replay(flow["a"]), two.replay(flow["bc"[turn % 2]]), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                # who came second found it running, or has to try again
                assert isinstance(answer, asyncpg.PostgresError)
                assert answer.sqlstate in ("WF206", "40001"), answer
        states = await flow.states()
        if states["a"] == "failed":
            await flow.engine.replay(flow["a"])
        assert await flow.states("bc") == {"b": "waiting_children", "c": "waiting_children"}
        for name in "abc":
            await flow.complete(name)


async def test_a_replay_and_a_header_at_once_leave_nobody_behind(db: Database) -> None:
    for _ in range(6):
        flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
        await flow.fail("a")
        other = Engine(await db.connect())
        answer, _ = await asyncio.gather(
            other.replay(flow["a"]), header(flow), return_exceptions=True
        )
        if isinstance(answer, BaseException):
            assert isinstance(answer, asyncpg.PostgresError)
            assert answer.sqlstate == "WF215"
        await cancel(flow)
        assert await flow.state("a") in ("failed", "cancelled")
        assert await flow.state("b") in ("skipped", "cancelled")


async def test_a_header_that_came_while_a_replay_was_on_its_way_sees_the_member(
    db: Database,
) -> None:
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.fail("a")
    other = Engine(await db.connect())
    async with other.connection.transaction():
        await other.replay(flow["a"])
        waiting = asyncio.create_task(header(flow))
        await db.until_waiting(waiting)
    assert (await waiting)["open_count"] == 2
    await cancel(flow)
    assert set((await flow.states()).values()) == {"cancelled"}


async def test_a_replay_and_the_end_of_another_upstream_at_once(db: Database) -> None:
    for _ in range(6):
        flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "c"), ("b", "c")])
        await flow.fail("a")
        lease = await flow.take("b")
        one, two = Engine(await db.connect()), Engine(await db.connect())
        answer, done = await asyncio.gather(
            one.replay(flow["a"]), two.complete(lease), return_exceptions=True
        )
        assert not isinstance(done, BaseException)
        assert not isinstance(answer, BaseException) or isinstance(
            answer, asyncpg.SerializationError
        )
        while (await flow.engine.resolve())[1] is not None:
            pass
        if await flow.state("a") == "failed":
            await flow.engine.replay(flow["a"])
        await flow.complete("a")
        assert await flow.state("c") == "waiting"
