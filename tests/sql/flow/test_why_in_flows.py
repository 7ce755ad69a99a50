"""`why` for members of flows: what they wait for, why they were skipped, who cancels their flow."""

from __future__ import annotations

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.ids import ExecutionId
from support.database import home
from support.flows import Edge, Group, make_flow


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace="test", pool_size=1) as client:
        yield client


async def why(client, flow, name):
    return await client.executions.why(ExecutionId.parse(flow.text(name)))


async def test_a_waiting_member_says_how_many_it_has_and_names_the_others(db, client):
    flow = await make_flow(db, nodes=[*"abcz"], edges=[(name, "z") for name in "abc"])
    await flow.complete("a")
    await flow.take("c")
    answer = await why(client, flow, "z")
    assert (answer.dimension, answer.code) == ("dependency", "waiting_for_upstreams")
    assert "1 of 3 succeeded, waiting for c (active), b (waiting)." in answer.sentence
    evidence = answer.evidence
    assert (evidence["policy"], evidence["needed"], evidence["n"]) == ("all_of", 3, 3)
    assert (evidence["succeeded"], evidence["lost"], evidence["is_more"]) == (1, 0, False)
    assert evidence["open"][0] == {
        "id": f"{{fp:{home()}}}:{flow['c']}",
        "name": "c",
        "state": "active",
    }


async def test_a_quorum_says_how_many_it_needs(db, client):
    flow = await make_flow(
        db,
        nodes=[*"abcdez"],
        edges=[(name, "z") for name in "abcde"],
        groups=[Group("z", "quorum", k=3, on_satisfied="let_run")],
    )
    await flow.complete("a")
    await flow.fail("b")
    answer = await why(client, flow, "z")
    assert "1 of the 3 it needs (of 5) succeeded, waiting for c (waiting), d" in answer.sentence
    assert answer.evidence["lost"] == 1


async def test_at_most_five_are_named(db, client):
    names = [f"n{i}" for i in range(9)]
    flow = await make_flow(db, nodes=[*names, "z"], edges=[(name, "z") for name in names])
    answer = await why(client, flow, "z")
    assert len(answer.evidence["open"]) == 5
    assert answer.evidence["is_more"] is True
    assert answer.sentence.endswith(" and more.")


async def test_every_undecided_group_is_an_answer_of_its_own(db, client):
    flow = await make_flow(
        db,
        nodes=[*"abcz"],
        edges=[Edge("a", "z"), Edge("b", "z", group=1), Edge("c", "z", group=2)],
        groups=[Group("z", "any_of", on_satisfied="let_run", group=1)],
    )
    await flow.complete("a")
    answer = await why(client, flow, "z")
    found = [one for one in (answer, *answer.others) if one.code == "waiting_for_upstreams"]
    assert [one.evidence["group"] for one in found] == [1, 2]
    assert "0 of the 1 it needs (of 1) succeeded, waiting for b" in found[0].sentence


async def test_an_edge_that_is_only_staged_is_told(db, client):
    flow = await make_flow(
        db, nodes=[*"abz"], edges=[Edge("a", "z"), Edge("b", "z", is_applied=False)]
    )
    await flow.complete("a")
    answer = await why(client, flow, "z")
    assert "b (waiting, edge not applied yet)" in answer.sentence


async def test_an_upstream_that_ended_before_a_replay_is_to_be_replayed(db, client):
    flow = await make_flow(db, nodes=["a", "z"], edges=[("a", "z")])
    await flow.fail("a")
    assert (await flow.engine.replay(flow["z"])).word == "replayed"
    answer = await why(client, flow, "z")
    assert "waiting for a (failed: replay it)." in answer.sentence
    # only a later end of it counts
    assert await flow.engine.resolve() == (0, None)
    assert (await flow.engine.replay(flow["a"])).word == "replayed"
    assert "waiting for a (waiting)." in (await why(client, flow, "z")).sentence
    await flow.complete("a")
    assert await flow.state("z") == "waiting"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [("failed", "because a failed."), ("cancelled", "because a was cancelled.")],
)
async def test_a_skipped_member_says_which_upstream_it_was(db, client, outcome, words):
    flow = await make_flow(db, nodes=[*"abc"], edges=[("a", "b"), ("b", "c")])
    await flow.end("a", outcome)
    answer = await why(client, flow, "b")
    assert (answer.dimension, answer.code) == ("end", "skipped")
    assert answer.sentence.endswith(words)
    assert answer.evidence["upstream"] == f"{{fp:{home()}}}:{flow['a']}"
    assert (await why(client, flow, "c")).sentence.endswith("because b was skipped.")


async def test_a_skip_whose_event_is_gone_still_has_an_answer(db, client):
    flow = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await flow.fail("a")
    await db.execute("delete from ff.event where execution_id = $1", flow["b"])
    db.leave_broken("events were deleted by hand")
    assert "its dependencies cannot be satisfied" in (await why(client, flow, "b")).sentence


async def test_a_cancelled_sibling_says_why(db, client):
    flow = await make_flow(
        db,
        nodes=[*"abz"],
        edges=[("a", "z"), ("b", "z")],
        groups=[Group("z", "any_of", on_satisfied="cancel_remaining")],
    )
    await flow.complete("a")
    answer = await why(client, flow, "b")
    assert answer.code == "cancelled"
    assert "flow_cascade cancelled it" in answer.sentence
    assert answer.sentence.endswith(": sibling_quorum_satisfied.")


async def test_a_member_of_a_flow_that_is_being_cancelled_says_who_and_how(db, client):
    flow = await make_flow(db, nodes=[*"abc"], edges=[("a", "b")])
    await flow.take("c")
    await db.fetch(
        f"select * from ff.cancel_flow_header('{home()}', 'test', $1, 'cancel_pending', "
        "'wrong input', 'ada')",
        flow.id,
    )
    for name in "ab":
        answer = await why(client, flow, name)
        assert (answer.dimension, answer.code) == ("operator", "flow_being_cancelled")
        assert (
            f"Its flow {{fp:{home()}}}:{flow.id} is being cancelled by ada since "
            in answer.sentence
        )
        assert "(running members may finish): wrong input." in answer.sentence
        assert answer.evidence["policy"] == "cancel_pending"
    # it runs on
    assert (await why(client, flow, "c")).code in ("running", "holder_silent")
