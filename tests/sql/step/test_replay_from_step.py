"""ff.replay_execution with a journal: from a step, or fresh; on ended and on held executions."""

from __future__ import annotations

import asyncio

import pytest

from support.factories import Engine, Step, refused

NAMES = ("a", "b", "b", "c")


async def journal(engine, lease):
    counts: dict[str, int] = {}
    items = []
    for position, name in enumerate(NAMES):
        occurrence = counts.get(name, 0)
        counts[name] = occurrence + 1
        items.append((lease, Step(name=name, occurrence=occurrence, position=position)))
    await engine.record_many(items)


async def names(engine, execution):
    return [(s["name"], s["occurrence"]) for s in await engine.steps(execution.id)]


async def ended(engine, make):
    execution = await make.execution("leased", lane="w")
    await journal(engine, execution.lease)
    await engine.complete(execution.lease)
    return execution


async def held(engine, make):
    execution = await make.execution("leased", lane="w")
    await journal(engine, execution.lease)
    await engine.hold(execution.lease, "the code changed", "b")
    return execution


async def test_a_plain_replay_keeps_every_step(engine, make):
    execution = await ended(engine, make)
    await engine.replay(execution.id)
    assert len(await names(engine, execution)) == 4
    event = (await engine.events(execution.id))[-1]
    assert "dropped_steps" not in event["detail"]


async def test_from_a_step_on_everything_is_forgotten(engine, make):
    execution = await ended(engine, make)
    answer = await engine.replay(execution.id, from_step="b", reason="b was wrong", actor="eve")
    assert (answer.word, answer.public_state) == ("replayed", "waiting")
    assert await names(engine, execution) == [("a", 0)]
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["actor"]) == ("replayed", "eve")
    for word in ('"from_step": "b"', '"from_occurrence": 0', '"dropped_steps": 3'):
        assert word in event["detail"]
    lease = await engine.take(execution.id, lanes=["w"])
    assert (lease.attempt_type, lease.replay_count) == ("replay", 1)


async def test_from_a_later_occurrence_the_earlier_ones_stay(engine, make):
    execution = await ended(engine, make)
    await engine.replay(execution.id, from_step="b", from_occurrence=1)
    assert await names(engine, execution) == [("a", 0), ("b", 0)]


async def test_steps_beside_the_named_one_at_its_position_go_too(engine, make):
    execution = await make.execution("leased")
    await engine.record_many(
        [
            (execution.lease, Step(name="a", position=0)),
            (execution.lease, Step(name="x", position=1, sequential=False)),
            (execution.lease, Step(name="y", position=1, sequential=False)),
        ]
    )
    await engine.complete(execution.lease)
    await engine.replay(execution.id, from_step="y")
    assert await names(engine, execution) == [("a", 0)]


async def test_fresh_forgets_the_whole_journal(engine, make):
    execution = await ended(engine, make)
    assert (await engine.replay(execution.id, fresh=True)).word == "replayed"
    assert await names(engine, execution) == []
    assert '"fresh": true' in (await engine.events(execution.id))[-1]["detail"]


async def test_fresh_without_a_journal_is_fine(engine, make):
    execution = await make.execution("completed")
    assert (await engine.replay(execution.id, fresh=True)).word == "replayed"


@pytest.mark.parametrize(
    ("options", "left"), [({"from_step": "b"}, [("a", 0)]), ({"fresh": True}, [])]
)
async def test_a_held_execution_is_unblocked_instead(engine, make, options, left):
    execution = await held(engine, make)
    answer = await engine.replay(execution.id, actor="eve", **options)
    assert (answer.word, answer.public_state) == ("unblocked", "waiting")
    assert await names(engine, execution) == left
    row = await engine.row(execution.id)
    assert (row["eligibility"], row["replay_count"]) == ("eligible_now", 0)
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "held", "unblocked"]
    lease = await engine.take(execution.id, lanes=["w"])
    assert (lease.claim_kind, lease.attempt_index) == ("resumed", 0)


async def test_a_held_execution_is_not_replayed_plainly(engine, make):
    execution = await held(engine, make)
    with refused("WF206"):
        await engine.replay(execution.id)


@pytest.mark.parametrize("state", ["waiting", "leased", "asleep", "awaiting", "blocked"])
async def test_what_has_neither_ended_nor_is_held_keeps_its_steps(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    with refused("WF206"):
        await engine.replay(execution.id, fresh=True)
    assert await engine.snapshot() == before


async def test_an_unknown_step_is_refused_naming_those_there_are(engine, make):
    execution = await ended(engine, make)
    before = await engine.snapshot()
    with refused(
        "WF001",
        field="from_step",
        problem="there is no step d#0; recorded are a#0, b#0, b#1, c#0",
    ):
        await engine.replay(execution.id, from_step="d")
    with refused("WF001", field="from_step"):
        await engine.replay(execution.id, from_step="b", from_occurrence=2)
    assert await engine.snapshot() == before
    bare = await make.execution("completed")
    with refused("WF001", field="from_step", problem="there is no step d#0; none is recorded"):
        await engine.replay(bare.id, from_step="d")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"from_step": "b", "fresh": True}, "fresh"),
        ({"fresh": None}, "fresh"),
        ({"from_occurrence": -1, "from_step": "b"}, "from_occurrence"),
        ({"from_occurrence": None, "from_step": "b"}, "from_occurrence"),
        ({"from_occurrence": 1}, "from_occurrence"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(engine, make, options, field):
    execution = await ended(engine, make)
    before = await engine.snapshot()
    with refused("WF001", field=field):
        await engine.replay(execution.id, **options)
    assert await engine.snapshot() == before


async def test_a_replay_meant_for_an_older_version_forgets_nothing(engine, make):
    execution = await ended(engine, make)
    version = (await engine.row(execution.id))["version"]
    assert (await engine.replay(execution.id, fresh=True, if_version=version - 1)).word == (
        "already_applied"
    )
    assert len(await names(engine, execution)) == 4


async def test_a_replay_over_its_limit_forgets_nothing(engine, make):
    execution = await make.execution("leased", policy={"max_replay_count": 0})
    await engine.record(execution.lease)
    await engine.complete(execution.lease)
    with refused("WF212"):
        await engine.replay(execution.id, fresh=True)
    assert len(await names(engine, execution)) == 1


async def test_of_two_replays_at_once_one_acts(db, engine, make):
    execution = await ended(engine, make)
    version = (await engine.row(execution.id))["version"]
    other = Engine(await db.connect())
    answers = await asyncio.gather(
        engine.replay(execution.id, from_step="b", if_version=version),
        other.replay(execution.id, fresh=True, if_version=version),
    )
    assert sorted(answer.word for answer in answers) == ["already_applied", "replayed"]
    assert len(await names(engine, execution)) in (0, 1)
