"""Schedules on a real Postgres beside their model: after every call the two must agree.

A walk of calls with good, stale and malformed arguments; a failure prints the calls that led to it.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

import asyncpg
import pytest

from support.model import Answer, Refusal
from support.schedule_model import Declared, Schedules

START = datetime(2030, 1, 1, tzinfo=UTC)
NAMESPACE = "test"
APPS = ("shop", "till")
NAMES = ("hourly", "nightly", "often")
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
_COMPARED = (
    "cron",
    "every",
    "time_zone",
    "anchor_at",
    "is_anchored",
    "misfire",
    "priority",
    "declared_at",
    "next_at",
    "rule_no",
    "is_paused",
    "orphaned_at",
    "last_at",
    "last_id",
    "fired_count",
    "last_call_id",
    "last_call_count",
    "changed_at",
    "changed_by",
    "reason",
    "state",
)


class Walk:
    """One walk: chooses calls, makes them on both sides and compares."""

    def __init__(self, conn, clock, route, number) -> None:
        self.conn, self.clock, self.route = conn, clock, route
        self.dice = Random(number)
        self.model = Schedules(START)
        self.told: list[str] = []
        self.words: Counter[tuple[str, str]] = Counter()
        # what workers have read and may act upon late: app, name, rule_no, next_at
        self.read: list[tuple[str, str, int, datetime | None]] = []
        self.last_fire = None
        self.last_declaration = None

    def _uuid(self) -> UUID:
        return UUID(int=self.dice.getrandbits(128))

    def _firing_id(self, app: str, name: str, at: datetime) -> UUID:
        return UUID(int=Random(f"{app} {name} {at}").getrandbits(128))

    def _name(self) -> str:
        return self.dice.choice([*NAMES, *NAMES, "unknown"])

    def _schedule(self, app, name):
        known = self.model.apps.get(app)
        return known.schedules.get(name) if known is not None else None

    async def go(self, steps: int) -> None:
        await self.clock.freeze(START)
        choices = ["declare"] * 4 + ["fire"] * 8 + ["set"] * 4 + ["pass_time"] * 5
        choices += ["due", "due", "run", "forget", "lane", "fire_again", "declare_again", "look"]
        for _ in range(steps):
            await getattr(self, self.dice.choice(choices))()

    async def call(self, function, expect, read, **arguments):
        text = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(arguments, 1))
        try:
            expected = expect()
        except Refusal as refusal:
            expected = refusal.answer
        try:
            rows = await self.conn.fetch(
                f"select a.* from ff.{function}({text}) a", *arguments.values()
            )
            actual = read(rows)
        except asyncpg.PostgresError as error:
            if not (error.sqlstate or "").startswith("WF"):
                raise
            detail = json.loads(error.detail or "{}")
            facts = {"field": detail["field"]} if "field" in detail else {}
            actual = Answer(str(error.message), facts, is_raised=True)
        self.told.append(f"{function} {arguments}\n  -> {actual}")
        self.words[function, actual.word] += 1
        assert actual == expected, self._story()
        await self._compare()
        return actual

    def _story(self) -> str:
        return "\n".join(self.told[-40:])

    async def _compare(self) -> None:
        rows = await self.conn.fetch("select s.* from ff.schedule s")
        theirs = {(r["app"], r["name"]): {name: r[name] for name in _COMPARED} for r in rows}
        ours = {
            (app, name): {field: getattr(schedule, field) for field in _COMPARED}
            for app, known in self.model.apps.items()
            for name, schedule in known.schedules.items()
        }
        assert theirs == ours, self._story()
        apps = await self.conn.fetch("select app, version, generation from ff.schedule_app")
        assert {r["app"]: (tuple(r["version"]), r["generation"]) for r in apps} == {
            app: (known.version, known.generation) for app, known in self.model.apps.items()
        }, self._story()
        fired = await self.conn.fetch("select execution_id, tags from ff.execution_body")
        tags = {r["execution_id"]: json.loads(r["tags"]) for r in fired}
        assert {
            id_: (t["schedule.name"], datetime.fromisoformat(t["schedule.at"]))
            for id_, t in tags.items()
        } == self.model.submitted, self._story()

    # Calls

    async def declare(self) -> None:
        dice, now = self.dice, self.model.now
        app = dice.choice(APPS)
        known = self.model.apps.get(app)
        names = [name for name in NAMES if dice.random() < 0.8]
        items = {}
        for name in names:
            rule: dict[str, object] = {"cron": dice.choice(["0 * * * *", "0 9 * * *"])}
            if dice.random() < 0.4:
                start = START + dice.choice([0, 0, 5]) * MINUTE
                rule = {
                    "every": dice.choice([MINUTE, 5 * MINUTE]),
                    "anchor_at": start,
                    "is_anchored": dice.random() < 0.5,
                }
            there = self._schedule(app, name)
            if there is not None and dice.random() < 0.5:
                rule = {
                    "cron": there.cron,
                    "every": there.every,
                    "anchor_at": there.anchor_at,
                    "is_anchored": there.is_anchored,
                }
            if dice.random() < 0.02:
                rule = {}
            items[name] = Declared(
                **rule,
                misfire=dice.choice(["once", "once", "all"]),
                priority=dice.choice([0, 0, 5]),
                next_at=None if dice.random() < 0.02 else now + dice.choice([1, 2, 5]) * MINUTE,
            )
        version = dice.choice([(1,), (1, 2), (1, 2), (2,), (2,), (2,), (2, 0, 1), ()])
        generation = dice.choice(
            [None, None, known.generation if known else 0, max(known.generation - 1, 0)]
            if known
            else [None, 0]
        )
        self.last_declaration = (app, version, generation, items)
        await self._declare(*self.last_declaration)

    async def declare_again(self) -> None:
        """A worker says what it said, with the generation it was told."""
        if self.last_declaration is not None:
            app, version, _, items = self.last_declaration
            first = await self._declare(app, version, None, items)
            if first.word == "declared":
                assert await self._declare(app, version, first["generation"], items) == first

    async def _declare(self, app, version, generation, items):
        told = list(items.values())
        return await self.call(
            "declare_schedules",
            lambda: self.model.declare(app, version, generation, items),
            lambda rows: Answer(
                rows[0]["outcome"],
                {"generation": rows[0]["generation"], "version": list(rows[0]["version"])},
            ),
            namespace=NAMESPACE,
            app=app,
            version=list(version),
            generation=generation,
            names=list(items),
            schedule_ids=[UUID(int=Random(f"{app} {name}").getrandbits(128)) for name in items],
            route_ids=[self.route] * len(items),
            crons=[item.cron for item in told],
            everys=[item.every for item in told],
            anchor_ats=[item.anchor_at for item in told],
            are_anchored=[item.is_anchored for item in told],
            misfires=[item.misfire for item in told],
            priorities=[item.priority for item in told],
            next_ats=[item.next_at for item in told],
        )

    async def look(self) -> None:
        """A worker reads a schedule, to fire it later."""
        app, name = self.dice.choice(APPS), self._name()
        schedule = self._schedule(app, name)
        if schedule is not None:
            self.read.append((app, name, schedule.rule_no, schedule.next_at))

    async def fire(self) -> None:
        dice, now = self.dice, self.model.now
        due = [
            (app, name, schedule.rule_no, schedule.next_at)
            for app, known in self.model.apps.items()
            for name, schedule in known.schedules.items()
            if schedule.next_at is not None and schedule.next_at <= now
        ]
        if self.read and (not due or dice.random() < 0.3):
            app, name, rule_no, expected = dice.choice(self.read)
        elif due:
            app, name, rule_no, expected = dice.choice(due)
            self.read.append((app, name, rule_no, expected))
        else:
            app, name, rule_no, expected = dice.choice(APPS), "unknown", 0, now
        ats = []
        if expected is not None:
            ats = [expected + n * MINUTE for n in range(dice.choice([0, 1, 1, 1, 2, 3]))]
            if dice.random() < 0.9:
                ats = [at for at in ats if at <= now]
        last = ats[-1] if ats else (expected or now)
        next_at = dice.choice([*[max(last, now) + MINUTE] * 8, last + SECOND, last, None])
        ids = [self._firing_id(app, name, at) for at in ats]
        self.last_fire = (app, name, self._uuid(), rule_no, expected, ats, next_at, ids)
        await self.fire_again()

    async def fire_again(self) -> None:
        if self.last_fire is None:
            return
        app, name, call_id, rule_no, expected, ats, next_at, ids = self.last_fire
        await self.call(
            "fire_schedule",
            lambda: self.model.fire(*self.last_fire),
            lambda rows: Answer(
                rows[0]["outcome"], {"fired": rows[0]["fired"], "next_at": rows[0]["next_at"]}
            ),
            partition_key=0,
            namespace=NAMESPACE,
            app=app,
            name=name,
            call_id=call_id,
            rule_no=rule_no,
            expected_next_at=expected,
            fire_ats=ats,
            next_at=next_at,
            execution_ids=ids,
        )

    async def set(self) -> None:
        dice = self.dice
        app, name = dice.choice(APPS), self._name()
        schedule = self._schedule(app, name)
        is_paused = dice.choice([True, True, True, False, False, False, False, None])
        next_at = dice.choice([None, *[self.model.now + MINUTE] * 6])
        rule_no = schedule.rule_no if schedule else 0
        rule_no = dice.choice([rule_no] * 6 + [rule_no + 1, None])
        reason, actor = dice.choice([None, "why"]), dice.choice([None, "ann"])
        await self.call(
            "set_schedule",
            lambda: self.model.set(app, name, is_paused, next_at, rule_no, reason, actor),
            lambda rows: Answer(
                rows[0]["outcome"], {"state": rows[0]["state"], "next_at": rows[0]["next_at"]}
            ),
            namespace=NAMESPACE,
            app=app,
            name=name,
            is_paused=is_paused,
            next_at=next_at,
            rule_no=rule_no,
            reason=reason,
            actor=actor,
        )

    async def run(self) -> None:
        app, name = self.dice.choice(APPS), self._name()
        id_ = self.dice.choice([self._uuid(), *self.model.submitted][:2])
        await self.call(
            "run_schedule",
            lambda: self.model.run(app, name, id_),
            lambda rows: Answer(rows[0]["outcome"], {"execution_id": rows[0]["execution_id"]}),
            partition_key=0,
            namespace=NAMESPACE,
            app=app,
            name=name,
            execution_id=id_,
        )

    async def forget(self) -> None:
        app, name = self.dice.choice(APPS), self._name()
        await self.call(
            "forget_schedule",
            lambda: self.model.forget(app, name),
            lambda rows: Answer(rows[0]["outcome"]),
            namespace=NAMESPACE,
            app=app,
            name=name,
        )

    async def due(self) -> None:
        app = self.dice.choice(APPS)
        names = self.dice.choice([None, None, ["often"], []])

        def read(rows):
            assert {r["read_at"] for r in rows} == {self.model.now}
            return Answer(
                "due", {"names": [r["name"] for r in rows[:-1]], "due_in": rows[-1]["due_in"]}
            )

        await self.call(
            "due_schedules",
            lambda: self.model.due(app, names),
            read,
            namespace=NAMESPACE,
            app=app,
            names=names,
        )

    async def lane(self) -> None:
        self.model.is_lane_open = self.dice.random() < 0.8
        await self.conn.execute(
            "select from ff.set_lane(p_namespace => 'test', p_lane => 'a', p_state => $1)",
            "active" if self.model.is_lane_open else "draining",
        )

    async def pass_time(self) -> None:
        self.model.now += self.dice.choice([SECOND, 30 * SECOND, MINUTE, 2 * MINUTE, -30 * SECOND])
        await self.clock.freeze(self.model.now)


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.slow(short=1)) for n in range(1, 4))]
)
async def test_schedules_do_what_the_model_says(engine, conn, clock, number):
    route = await engine.register(lane="a")
    walk = Walk(conn, clock, route, number)
    await walk.go(300)
    seen = {word for (function, word) in walk.words if function == "fire_schedule"}
    assert {"fired", "invalid_input"} <= seen
    assert walk.words["declare_schedules", "declared"] > 5
