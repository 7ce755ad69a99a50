"""Conditions of waits: which signals satisfy them, against an evaluator written from the rules."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

HOUR = timedelta(hours=1)
CHOOSE = (
    "select ff._choose_signals($1::jsonb, $2::text[], $3::text[], $4::uuid[], $5::text[]) as chosen"
)


@dataclass(frozen=True)
class Sent:
    key: str
    name: str
    id: UUID
    source: str


def is_satisfied(condition: dict[str, Any], signals: list[Sent]) -> bool:
    """The rules, and nothing else: a set of signals satisfies a condition or does not."""
    if "every" in condition:
        return all(is_satisfied(one, signals) for one in condition["every"])
    if "at_least" in condition:
        counted = [one for one in signals if any(matches(leaf, one) for leaf in condition["of"])]
        kind = condition.get("distinct", "signals")
        marks = {"signals": "id", "waitpoints": "key", "sources": "source"}[kind]
        return len({getattr(one, marks) for one in counted}) >= condition["at_least"]
    if "approve" in condition:
        points = {f"w {leaf['waitpoint']}" for leaf in condition["of"]}
        answers: dict[str, str] = {}
        for one in signals:
            if one.key in points and one.name in ("approved", "rejected"):
                answers.setdefault(one.key, one.name)
        yes = sum(name == "approved" for name in answers.values())
        return yes >= condition["approve"] or len(answers) - yes >= condition["deny"]
    if "operator" in condition:
        return False
    return any(matches(condition, one) for one in signals)


def matches(leaf: dict[str, Any], signal: Sent) -> bool:
    where = f"s {leaf['signal']}" if "signal" in leaf else f"w {leaf['waitpoint']}"
    return signal.key == where and leaf.get("name", signal.name) == signal.name


POINTS = [str(UUID(int=n)) for n in (1, 2)]


def leaf(dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.5:
        return {"signal": dice.choice("abc")}
    found = {"waitpoint": dice.choice(POINTS)}
    return found | ({"name": dice.choice("xy")} if dice.random() < 0.5 else {})


def condition(dice: random.Random, depth: int) -> dict[str, Any]:
    choice = dice.random()
    if depth == 0 or choice < 0.3:
        return leaf(dice)
    if choice < 0.65:
        return {"every": [condition(dice, depth - 1) for _ in range(dice.randint(1, 3))]}
    if choice < 0.8:
        points = dice.sample(POINTS, dice.randint(1, len(POINTS)))
        need, deny = dice.randint(1, len(points)), dice.randint(1, len(points))
        return {"approve": need, "deny": deny, "of": [{"waitpoint": one} for one in points]}
    members = [leaf(dice) for _ in range(dice.randint(1, 3))]
    distinct = dice.choice(["signals", "waitpoints", "sources"])
    most = len(members) if distinct == "waitpoints" else 4
    return {"at_least": dice.randint(1, most), "of": members, "distinct": distinct}


def sent(dice: random.Random) -> Sent:
    name = dice.choice([*"abcxy", "approved", "rejected"])
    key = f"w {dice.choice(POINTS)}" if dice.random() < 0.5 else f"s {name}"
    return Sent(key, name, uuid4(), dice.choice(["caller ada", "caller bob", "token"]))


async def compare(db, count: int) -> None:
    dice = random.Random(29)
    met = 0
    for _ in range(count):
        asked = condition(dice, 4)
        assert (
            await db.fetchval("select ff._condition_problem($1::jsonb)", json.dumps(asked)) is None
        )
        signals = [sent(dice) for _ in range(dice.randint(0, 8))]
        for size in range(len(signals) + 1):
            some = signals[:size]
            chosen = await db.fetchval(
                CHOOSE,
                json.dumps(asked),
                [one.key for one in some],
                [one.name for one in some],
                [one.id for one in some],
                [one.source for one in some],
            )
            assert (chosen is not None) == is_satisfied(asked, some), (asked, some)
            if chosen is not None:
                met += 1
                taken = [one for one in some if one.id in chosen]
                assert len(taken) == len(chosen)
                assert is_satisfied(asked, taken), "what is taken satisfies it by itself"
    assert met > count / 2


async def test_random_conditions_are_decided_as_the_rules_say(db):
    await compare(db, 150)


@pytest.mark.slow
async def test_many_random_conditions_are_decided_as_the_rules_say(db, sized):
    await compare(db, sized(20_000, short=1000))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"every": []}, "1 to 64 members"),
        ({"every": [{"signal": "a"}] * 65}, "1 to 64 members"),
        ({"every": [{"signal": ""}]}, "1 to 256 bytes"),
        ({"every": [{"operator": True}]}, "stands alone"),
        ({"at_least": 0, "of": [{"signal": "a"}]}, "from 1 on"),
        ({"at_least": "2", "of": [{"signal": "a"}]}, "from 1 on"),
        ({"at_least": 1, "of": []}, "1 to 64 members"),
        ({"at_least": 1}, "1 to 64 members"),
        ({"at_least": 2, "of": [{"signal": "a"}], "distinct": "waitpoints"}, "more than there are"),
        ({"at_least": 1, "of": [{"signal": "a"}], "distinct": "days"}, "distinct must be"),
        ({"at_least": 1, "of": [{"every": [{"signal": "a"}]}]}, "signals or waitpoints"),
        ({"approve": 1, "of": [{"waitpoint": POINTS[0]}]}, "whole numbers from 1"),
        ({"approve": 2, "deny": 1, "of": [{"waitpoint": POINTS[0]}]}, "whole numbers from 1"),
        ({"approve": 1, "deny": 1, "of": [{"signal": "a"}]}, "1 to 64 waitpoints"),
        ({"approve": 1, "deny": 1, "of": []}, "1 to 64 waitpoints"),
        ({"signal": "a", "schema": "7"}, "schema must be an id"),
        ({"waitpoint": "x"}, "id of a waitpoint"),
        ({"waitpoint": POINTS[0], "name": ""}, "1 to 256 bytes"),
        ({"any": [{"signal": "a"}]}, "must be an object with"),
        ({}, "must be an object with"),
        ([], "must be an object"),
    ],
)
async def test_a_malformed_condition_is_refused(engine, make, given, problem):
    execution = await make.execution("leased")
    answer = await engine.ask(execution.lease, condition=given)
    assert (answer.word, answer.detail["field"]) == ("invalid", "condition")
    assert problem in answer.detail["problem"]
    assert await engine.steps(execution.id) == []


@pytest.mark.parametrize(("depth", "word"), [(4, "open"), (5, "invalid")])
async def test_conditions_are_nested_four_deep(engine, make, depth, word):
    asked: dict[str, Any] = {"signal": "a"}
    for _ in range(depth):
        asked = {"every": [asked]}
    execution = await make.execution("leased")
    assert (await engine.ask(execution.lease, condition=asked)).word == word


async def test_a_suspension_wakes_when_the_condition_is_satisfied_and_takes_what_did(engine, make):
    asked = {"every": [{"signal": "a"}, {"at_least": 2, "of": [{"signal": "b"}, {"signal": "c"}]}]}
    execution = await make.execution("leased", lane="w")
    await engine.ask(execution.lease, condition=asked, name="both")
    await engine.suspend(execution.lease, "both")
    effects = [(await engine.signal(execution.id, name)).effect for name in "bdba"]
    assert effects == ["buffered", "buffered", "buffered", "woken"]
    lease = await engine.take(execution.id, lanes=["w"])
    assert len(await engine.observed(lease)) == 3
    taken = await engine.ask(lease, condition=asked, name="both", take=True)
    assert (taken.taken_as, len(taken.signal_ids), taken.value) == ("signals", 3, None)
    left = [row["name"] for row in await engine.signals(execution.id) if row["taken_at"] is None]
    assert left == ["d"]


async def test_two_counts_do_not_share_what_they_count(engine, make):
    asked = {
        "every": [
            {"at_least": 1, "of": [{"signal": "a"}]},
            {"at_least": 2, "of": [{"signal": "b"}]},
        ]
    }
    execution = await make.execution("leased")
    for name in "aab":
        await engine.signal(execution.id, name)
    assert (await engine.ask(execution.lease, condition=asked)).word == "open"
    await engine.signal(execution.id, "b")
    assert (await engine.ask(execution.lease, condition=asked)).word == "ready"


async def test_different_sources_count_once_each(engine, make):
    asked = {"at_least": 2, "of": [{"signal": "ok"}], "distinct": "sources"}
    execution = await make.execution("leased")
    for who in ("ada", "ada"):
        await engine.signal(execution.id, "ok", source_identity=who)
    assert (await engine.ask(execution.lease, condition=asked)).word == "open"
    await engine.signal(execution.id, "ok", source_identity="bob")
    assert (await engine.ask(execution.lease, condition=asked)).word == "ready"


async def test_an_operators_condition_is_ended_by_an_operator_only(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.ask(execution.lease, condition={"operator": True}, name="review")
    await engine.suspend(execution.lease, "review", reason_code="waiting_for_operator_review")
    assert (await engine.signal(execution.id, "review")).effect == "buffered"
    assert (await engine.resume(execution.id)).word == "resumed"


async def test_all_waitpoints_of_a_condition_close_with_it(engine, make):
    execution = await make.execution("leased")
    points = [await engine.waitpoint(execution.lease, f"k{n}") for n in range(3)]
    asked = {
        "at_least": 2,
        "of": [{"waitpoint": str(id)} for id, _ in points],
        "distinct": "waitpoints",
    }
    await engine.ask(execution.lease, condition=asked, name="team")
    assert {row["state"] for row in await engine.waitpoints(execution.id)} == {"active"}
    for _, token in points[:2]:
        await engine.signal_many([{"execution_id": execution.id, "name": None, "token": token}])
    taken = await engine.ask(execution.lease, condition=asked, name="team", take=True)
    assert taken.taken_as == "signals"
    assert await engine.waitpoints(execution.id) == []
