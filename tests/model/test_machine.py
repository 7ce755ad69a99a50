"""The engine on a real Postgres beside its model: after every call the two must agree.

A step is one call of one operation, with arguments that are good, stale, foreign or malformed.
After it the answer, every execution it could have touched (all columns of its state), the events it
appended, the attempts that became history, the grants and the keys are compared with the model; now
and then the call is repeated at once, and every 50 steps all invariants are asked.

A failure prints the calls that led to it, as few as Hypothesis can find.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from support.database import Template
from support.flow_model import Backlog, Flow, Graph, Group
from support.flow_model import Edge as FlowEdge
from support.model import (
    Answer,
    Event,
    Execution,
    Fence,
    Item,
    Model,
    PastAttempt,
    Policy,
    Recorded,
    Refusal,
    Retry,
    Route,
    Step,
    Worker,
)

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=UTC)
STEPS = 100  # of one example
NAMESPACE, STRANGER = "test", "other"
TASK = "tests.work"
ROUTES = (
    Route(NAMESPACE, "a"),
    Route(NAMESPACE, "b"),
    Route(NAMESPACE, "a", frozenset({"gpu"})),
    Route(STRANGER, "a"),
)
WORKERS = (
    Worker("pool", "pool-1"),
    Worker("pool", "pool-2", frozenset({"gpu"})),
    Worker("farm", "farm-1", frozenset({"gpu", "big"})),
)
NOTHING = timedelta()
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
POLICIES: tuple[tuple[Policy, dict[str, Any] | None], ...] = (
    (Policy(), None),
    (
        Policy(retry=Retry(max_retries=2, fixed=5 * SECOND)),
        {"retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 5000}}},
    ),
    (Policy(retry=Retry()), {"retry_policy": {}}),
    (
        Policy(retry=Retry(categories=frozenset({"io", "timeout"}))),
        {"retry_policy": {"retryable_categories": ["io", "timeout"]}},
    ),
    (
        Policy(attempt_timeout=40 * SECOND),
        {"timeout_policy": {"attempt_timeout_ms": 40_000}},
    ),
    (
        Policy(attempt_timeout=25 * SECOND, retry=Retry(max_retries=1)),
        {
            "timeout_policy": {"attempt_timeout_ms": 25_000},
            "retry_policy": {"max_retries": 1},
        },
    ),
    (Policy(max_reclaims=0), {"max_reclaim_count": 0}),
    (Policy(max_reclaims=3), {"max_reclaim_count": 3}),
    (Policy(max_replays=1), {"max_replay_count": 1}),
    (Policy(retention=2 * MINUTE), {"retention_ms": 120_000}),
)

# Columns of ff.execution that the model leaves out: those that say where and what, not how it is;
# due_at, which is only a lower bound (an invariant watches it); and what the two lists below treat.
_UNSEEN = {"route", "policy", "priority", "tags", "history", "journal", "execution_id"}
_SEEN = tuple(f.name for f in fields(Execution) if f.name not in _UNSEEN)
_DERIVED = ("public_state", "attempt_index")
_PAUSE = ("attempt_paused_at", "attempt_pause_cause")
_EVENT = tuple(f.name for f in fields(Event))
_ATTEMPT = tuple(f.name for f in fields(PastAttempt))
_STEP = tuple(f.name for f in fields(Recorded))
_LISTED = tuple(name for name in _STEP if name != "epoch")
_FLOW = tuple(f.name for f in fields(Flow))
_EDGE = tuple(f.name for f in fields(FlowEdge))
_GROUP = tuple(f.name for f in fields(Group))
_BACKLOG = tuple(f.name for f in fields(Backlog) if f.name != "members")
# How a group may be judged: policy, k, on_satisfied
RULES: tuple[tuple[str, int | None, str | None], ...] = (
    ("all_of", None, None),
    ("all_of", None, None),
    ("any_of", None, "cancel_remaining"),
    ("any_of", None, "let_run"),
    ("quorum", 1, "cancel_remaining"),
    ("quorum", 2, "cancel_remaining"),
    ("quorum", 2, "let_run"),
)

_LOOK = """
select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next_xid,
  array(select e from ff.execution e
        where e.partition_key = 0
          and (e.xmin::text::bigint >= $1 or e.execution_id = any ($2::uuid[]))) as executions,
  array(select e.execution_id from ff.execution e where e.partition_key = 0) as ids,
  array(select v from ff.event v
        where v.partition_key = 0 and v.xid >= $1::text::xid8 order by v.event_id) as events,
  array(select a from ff.attempt a
        where a.partition_key = 0 and a.xmin::text::bigint >= $1
        order by a.execution_id, a.attempt_index) as attempts,
  array(select g from ff."grant" g where g.partition_key = 0) as grants,
  array(select k from ff.idempotency_key k where k.partition_key = 0) as keys,
  array(select b from ff.execution_body b
        where b.partition_key = 0 and b.xmin::text::bigint >= $1 and b.tags is not null) as bodies,
  array(select s.execution_id || ' ' || s.name || ' ' || s.occurrence from ff.step s
        where s.partition_key = 0) as step_names,
  array(select s from ff.step s
        where s.partition_key = 0 and s.xmin::text::bigint >= $1) as steps,
  array(select w from ff.run_wait w where w.partition_key = 0) as waits,
  array(select t from ff.event_trim t where t.partition_key = 0) as event_trims,
  array(select f from ff.flow f where f.partition_key = 0) as flows,
  array(select d from ff.edge d where d.partition_key = 0) as edges,
  array(select y from ff.edge_group y where y.partition_key = 0) as groups,
  array(select b from ff.cancel_backlog b where b.partition_key = 0) as backlogs,
  array(select m from ff.cancel_backlog_member m where m.partition_key = 0) as backlog_members
"""

_RESET = """
truncate ff.execution, ff.execution_body, ff.attempt, ff.event, ff."grant", ff.claim_slot,
  ff.idempotency_key, ff.event_trim, ff.step, ff.run_wait, ff.flow, ff.edge, ff.edge_group,
  ff.kept_result, ff.cancel_backlog, ff.cancel_backlog_member restart identity;
update ff.lane set state = 'active', resumes_at = null, reason = null, changed_by = null,
  changed_at = null;
delete from ff.meta where name like 'trim%';
"""


class Disagreement(AssertionError):
    """The engine did not do what the model says."""


class Bench:
    """One database for all examples of a test, and a way to call it from sync code."""

    def __init__(self, template: Template) -> None:
        self._loop = asyncio.new_event_loop()
        self._template = template
        self._name = f"{template.name}_{next(template.numbers)}"
        self.connection: asyncpg.Connection[Any] = self.run(self._create())
        # somebody else, who holds a row now and then
        self.other: asyncpg.Connection[Any] = self.run(self._open())
        self.routes: dict[Route, int] = {route: self._register(route) for route in ROUTES}
        self.steps = 0
        self.calls: Counter[str] = Counter()
        self.met: Counter[tuple[str, str]] = Counter()
        self.taken: Counter[str] = Counter()
        self.words: Counter[tuple[str, str]] = Counter()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    async def _create(self) -> asyncpg.Connection[Any]:
        administration = await asyncpg.connect(self._template.cluster.url)
        await administration.execute(
            f"create database {self._name} template {self._template.name} strategy file_copy"
        )
        await administration.close()
        return await self._open()

    async def _open(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(
            self._template.cluster.url_of(self._name), server_settings={"timezone": "UTC"}
        )

    def _register(self, route: Route) -> int:
        row = self.run(
            self.connection.fetchrow(
                "select route_id from ff.register_routes("
                "array[$1], array[$2], array[$3], array[$4])",
                route.namespace,
                route.lane,
                TASK,
                ",".join(sorted(route.capabilities)),
            )
        )
        assert row is not None
        return int(row["route_id"])

    def close(self) -> None:
        async def drop() -> None:
            await self.connection.close()
            await self.other.close()
            administration = await asyncpg.connect(self._template.cluster.url)
            await administration.execute(f"drop database {self._name} with (force)")
            await administration.close()

        self.run(drop())
        self._loop.close()


@dataclass(slots=True)
class Call:
    """One SQL call: its function, its arguments by name, and how to read what came back."""

    function: str
    arguments: dict[str, Any]
    read: Callable[[list[asyncpg.Record]], Any]
    casts: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        given = ", ".join(
            f"p_{name} => ${n}{self.casts.get(name, '')}"
            for n, name in enumerate(self.arguments, 1)
        )
        return f"select a.* from ff.{self.function}({given}) a"


Chooser = Callable[[Random], Any]


def one_of(values: Sequence[Any]) -> Chooser:
    return lambda dice: dice.choice(values)


def between(least: int, most: int) -> Chooser:
    return lambda dice: dice.randint(least, most)


def several(chooser: Chooser, most: int) -> Chooser:
    return lambda dice: [chooser(dice) for _ in range(dice.randint(1, most))]


PICK = between(0, 63)
AGAIN = one_of([False, False, False, False, True])
WHO = one_of([NAMESPACE] * 14 + [None, None, STRANGER])
FENCES = one_of(
    ["current"] * 20
    + ["former", "former", "first", "first"]
    + ["wrong_epoch", "wrong_attempt", "wrong_lease", "of_another", "no_epoch", "no_lease", "none"]
)
TTL = one_of([30 * SECOND] * 8 + [MINUTE, 5 * MINUTE, 10 * SECOND, 10 * SECOND, NOTHING])
ACTOR = one_of([None, "ann"])
STEPS_OF_A_HANDLER = ["load", "load", "save", "x", "y", "nap", "time"]
VERSION = one_of(["any", "any", "any", "seen", "seen", "older"])
GRANT_TTL = one_of([10 * SECOND] * 5 + [MINUTE, 2 * MINUTE])


OPERATIONS: dict[str, dict[str, Chooser]] = {}
WEIGHTED: list[str] = []


def operation(weight: int, **arguments: Chooser) -> Callable[[T], T]:
    """A method of the machine that is one step, chosen as often as its weight says."""

    def register(method: T) -> T:
        name: str = method.__name__  # type: ignore[attr-defined]
        OPERATIONS[name] = arguments
        WEIGHTED.extend([name] * weight)
        return method

    return register


class Machine(RuleBasedStateMachine):
    """Every operation as a step.

    A step is one number, from which all of its choices follow. Rules and arguments drawn one by one
    leave out whole operations in every example and repeat themselves, and few executions live to
    see their end. Hypothesis still shortens the list of steps when one fails, which is enough. It
    likes small numbers and repeats them: so the second time a number means something else, as it
    does in another example and in another walk.
    """

    bench: ClassVar[Bench]
    walk: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(START)
        self.model.lanes = {route.lane: self.model_lane() for route in ROUTES}
        self.fences: dict[UUID, list[Fence]] = {}
        self.grant_keys: dict[UUID, bytes] = {}
        self.last_claims: dict[str, tuple[Any, ...]] = {}
        self.ids: list[UUID] = []
        self.aim: UUID | None = None
        self._minted = 0
        self._steps = 0
        self._used: Counter[int] = Counter()
        self._run(self._reset())

    @staticmethod
    def model_lane() -> Any:
        from support.model import Lane

        return Lane()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.bench.run(call)

    async def _reset(self) -> None:
        connection = self.bench.connection
        await connection.execute(_RESET)
        await connection.fetchval("select ff_test.freeze_clock($1)", START)
        self._next_xid = await connection.fetchval(
            "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        )

    def teardown(self) -> None:
        self.bench.taken += self.model.taken

    # Choices

    def mint(self) -> UUID:
        """A UUIDv7 of the model's time; the same for the same choices."""
        self._minted += 1
        milliseconds = int(self.model.now.timestamp() * 1000)
        return UUID(int=(milliseconds << 80) | (0x7 << 76) | (0b10 << 62) | self._minted)

    def choose(self, pick: int, wanted: Callable[[Execution], bool] | None = None) -> UUID:
        """An execution, mostly one that is wanted; now and then one that is not there."""
        if self.aim is not None:
            return self.aim
        there = list(self.model.executions)
        if pick > 61 or not there:
            return UUID(int=pick + 1)
        if pick > 59:
            return self.ids[pick % len(self.ids)]  # it may have been trimmed
        liked = [id_ for id_ in there if wanted is not None and wanted(self.model.executions[id_])]
        if liked and pick % 5:
            return liked[(pick // 5) % len(liked)]
        # else one of any phase, as often of each
        phases: dict[str, list[UUID]] = {}
        for id_ in there:
            phases.setdefault(self.model.executions[id_].phase, []).append(id_)
        some = phases[sorted(phases)[pick // 5 % len(phases)]]
        return some[pick % len(some)]

    def choose_unfinished(self, pick: int) -> UUID:
        return self.choose(pick, lambda e: e.phase != "terminal")

    def choose_held(self, pick: int) -> UUID:
        return self.choose(pick, lambda e: e.is_leased)

    def fence(self, id_: UUID, kind: str) -> Fence:
        """What a holder of this execution may show: good, late, forged or broken."""
        given = self.fences.get(id_)
        if not given:
            return Fence(id_, self.mint(), 1, self.mint())
        current = given[-1]
        match kind:
            case "former":
                return given[-2] if len(given) > 1 else current
            case "first":
                return given[0]
            case "wrong_epoch":
                return replace(current, epoch=(current.epoch or 0) + 1)
            case "wrong_attempt":
                return replace(current, attempt_id=self.mint())
            case "wrong_lease":
                return replace(current, lease_id=self.mint())
            case "of_another":
                other = next((f[-1] for i, f in self.fences.items() if i != id_), current)
                return replace(other, execution_id=id_)
            case "no_epoch":
                return replace(current, epoch=None)
            case "no_lease":
                return replace(current, lease_id=None)
            case "none":
                return Fence(id_, None, None, None)
        return current

    def version(self, id_: UUID, kind: str) -> int | None:
        e = self.model.executions.get(id_)
        if kind == "any" or e is None:
            return None
        return e.version if kind == "seen" else e.version - 1

    # One step

    @initialize(salt=st.integers(0, 2**64 - 1))
    def begin(self, salt: int) -> None:
        self._salt = salt

    @rule(number=st.integers(0, 2**24 - 1))
    def act(self, number: int) -> None:
        self._used[number] += 1
        dice = Random(f"{self.walk} {self._salt} {number} {self._used[number]}")
        name = dice.choice(WEIGHTED)
        arguments = {key: chooser(dice) for key, chooser in OPERATIONS[name].items()}
        getattr(self, name)(**arguments)

    def step(
        self,
        call: Call,
        expect: Callable[[], Any],
        *,
        target: UUID | None = None,
        again: bool = False,
        is_repeatable: bool = True,
    ) -> Any:
        """Call engine and model and compare; with `again` the call is repeated at once."""
        bench = self.bench
        e = self.model.executions.get(target) if target is not None else None
        bench.steps += 1
        bench.calls[call.function] += 1
        bench.met[call.function, str(e.phase) if e is not None else "-"] += 1
        answer = self._compare(call, expect)
        if again:
            second = self._compare(call, expect)
            if is_repeatable and (second != answer or self.model.events):
                raise Disagreement(f"a repeat of {call.function} answered {second}, not {answer}")
        self._steps += 1
        if self._steps % 50 == 0:
            self._check_invariants()
        return answer

    def _compare(self, call: Call, expect: Callable[[], Any]) -> Any:
        self.model.begin()
        try:
            expected = expect()
        except Refusal as refusal:
            expected = refusal.answer
        self._count(call.function, expected)
        actual, seen = self._run(self._call(call))
        note(f"{call.function} {call.arguments}\n  -> {actual}")
        if actual != expected:
            raise Disagreement(
                f"{call.function}({call.arguments})\n  model:  {expected}\n  engine: {actual}"
            )
        self._compare_state(call, seen)
        return expected

    def _count(self, function: str, answer: Any) -> None:
        for one in answer if isinstance(answer, list) else [answer]:
            word = one.word if isinstance(one, Answer) else "something" if one else "nothing"
            self.bench.words[function, word] += 1
            if isinstance(one, Answer) and "wakes_pending" in one.facts:
                self.bench.words[function, "wakes_pending"] += 1

    async def _call(self, call: Call) -> tuple[Any, asyncpg.Record]:
        connection = self.bench.connection
        try:
            rows = await connection.fetch(call.text, *call.arguments.values())
            answer = call.read(rows)
        except asyncpg.PostgresError as error:
            if not (error.sqlstate or "").startswith("WF") or error.sqlstate == "WF290":
                raise
            detail = json.loads(error.detail or "{}")
            facts = {"field": detail["field"]} if "field" in detail else {}
            answer = Answer(str(error.message), facts, is_raised=True)
        seen = await connection.fetchrow(_LOOK, self._next_xid, list(self.model.touched))
        assert seen is not None
        self._next_xid = seen["next_xid"]
        return answer, seen

    def _compare_state(self, call: Call, seen: asyncpg.Record) -> None:
        model = self.model
        problems: list[str] = []

        def differ(what: str, ours: Any, theirs: Any) -> None:
            if ours != theirs:
                problems.append(f"{what}: model {ours}, engine {theirs}")

        differ("executions", set(model.executions), set(seen["ids"]))
        for row in seen["executions"]:
            e = model.executions.get(row["execution_id"])
            if e is None:
                continue
            is_paused = e.attempt_state == "attempt_interrupted"
            for name in (*_SEEN, *_DERIVED):
                if is_paused or name not in _PAUSE:
                    differ(f"{e.execution_id} {name}", getattr(e, name), row[name])
            differ(f"{e.execution_id} rank", 9000 - e.priority, row["rank"])
        for row in seen["bodies"]:
            e = model.executions[row["execution_id"]]
            differ(f"{e.execution_id} tags", e.tags, json.loads(row["tags"]))
        ours = sorted((asdict(v) for v in model.events), key=_order)
        theirs = sorted(({name: v[name] for name in _EVENT} for v in seen["events"]), key=_order)
        differ("events", ours, theirs)
        differ(
            "history",
            {(id_, past.attempt_index): asdict(past) for id_, past in model.buried},
            {
                (row["execution_id"], row["attempt_index"]): {name: row[name] for name in _ATTEMPT}
                for row in seen["attempts"]
            },
        )
        differ(
            "grants",
            {
                id_: (g.kind, g.worker_id, g.worker_instance_id, g.issued_at, g.expires_at)
                for id_, g in model.grants.items()
            },
            {
                g["execution_id"]: (
                    g["kind"],
                    g["worker_id"],
                    g["worker_instance_id"],
                    g["issued_at"],
                    g["expires_at"],
                )
                for g in seen["grants"]
            },
        )
        differ(
            "keys",
            {
                name: (k.execution_id, k.scope, k.fingerprint, k.expires_at)
                for name, k in model.keys.items()
            },
            {
                (k["namespace"], k["key"]): (
                    k["execution_id"],
                    k["scope"],
                    k["fingerprint"],
                    k["expires_at"],
                )
                for k in seen["keys"]
            },
        )
        differ(
            "steps",
            {
                f"{id_} {name} {occurrence}"
                for id_, e in model.executions.items()
                for name, occurrence in e.journal
            },
            set(seen["step_names"]),
        )
        for row in seen["steps"]:
            e = model.executions.get(row["execution_id"])
            step = e.journal.get((row["name"], row["occurrence"])) if e is not None else None
            if step is not None:
                differ("step", asdict(step), {name: row[name] for name in _STEP})
        differ(
            "waits",
            {ids: (wait.wait_no, wait.ended_at) for ids, wait in model.waits.items()},
            {
                (w["waiter_id"], w["target_id"]): (w["wait_no"], w["ended_at"])
                for w in seen["waits"]
            },
        )
        differ(
            "event trims",
            model.event_trims,
            {t["execution_id"]: t["due_at"] for t in seen["event_trims"]},
        )
        self._compare_flows(seen, differ)
        if problems:
            raise Disagreement("\n  ".join([f"{call.function}({call.arguments})", *problems]))

    def _compare_flows(self, seen: asyncpg.Record, differ: Callable[[str, Any, Any], None]) -> None:
        model = self.model

        def compare(what: str, names: Sequence[str], ours: dict[Any, Any], theirs: Any) -> None:
            """Row by row; ours and theirs have the same keys."""
            differ(f"{what}s", set(ours), set(theirs))
            for key in ours.keys() & theirs.keys():
                for name in names:
                    differ(f"{what} {key} {name}", getattr(ours[key], name), theirs[key][name])

        compare("flow", _FLOW, model.flows, {f["flow_id"]: f for f in seen["flows"]})
        compare("edge", _EDGE, model.edges, {d["edge_id"]: d for d in seen["edges"]})
        compare(
            "group",
            _GROUP,
            model.groups,
            {(y["downstream_id"], y["group_no"]): y for y in seen["groups"]},
        )
        compare("backlog", _BACKLOG, model.backlogs, {b["flow_id"]: b for b in seen["backlogs"]})
        differ(
            "backlog members",
            {(flow_id, id_) for flow_id, b in model.backlogs.items() for id_ in b.members},
            {(m["flow_id"], m["execution_id"]) for m in seen["backlog_members"]},
        )

    def _check_invariants(self) -> None:
        rows = self._run(self.bench.connection.fetch("select * from ff_test.broken_invariants()"))
        if rows:
            raise Disagreement("\n".join(str(dict(row)) for row in rows))

    def _keep(self, answers: Any, claim_id: UUID) -> None:
        """Remember the leases that a claim gave."""
        for answer in answers if isinstance(answers, list) else [answers]:
            if "epoch" in answer.facts:
                fence = Fence(
                    answer["execution_id"], claim_id, answer["epoch"], answer["attempt_id"]
                )
                known = self.fences.setdefault(answer["execution_id"], [])
                if fence not in known:
                    known.append(fence)

    # Submit

    @operation(
        14,
        picks=several(PICK, 3),
        route=one_of([0] * 6 + [1] * 5 + [2] * 4 + [3, None]),
        namespace=one_of([NAMESPACE] * 19 + [STRANGER]),
        priority=one_of([0, 0, 0, 5, 9000, 9001, -1]),
        delay=one_of([None, None, None, NOTHING, -SECOND, 20 * SECOND, 5 * MINUTE]),
        deadline=one_of([None, None, None, None, MINUTE, 3 * MINUTE, NOTHING]),
        policy=one_of([*range(len(POLICIES)), 1, 1, 2, 2, 5, 6, 6]),
        key=one_of([None] * 15 + ["k1", "k1", "k2", "k3", ""]),
        fingerprint=one_of([b"x", b"x", b"x", b"y", None]),
        scope=one_of(["window", "unfinished"]),
        window=one_of([MINUTE, timedelta(hours=1), NOTHING]),
        family=one_of(
            [(None, None)] * 20
            + [(3, True), (7, True), (11, None), (22, False), (62, False)]
            + [(60, True), (62, True), ("self", True), (None, True)]
        ),
        again=AGAIN,
    )
    def submit(
        self,
        picks: list[int],
        route: int | None,
        namespace: str,
        priority: int,
        delay: timedelta | None,
        deadline: timedelta | None,
        policy: int,
        key: str | None,
        fingerprint: bytes | None,
        scope: str,
        window: timedelta,
        family: tuple[int | str | None, bool | None],
        again: bool,
    ) -> None:
        if len(self.model.executions) > 20:
            picks = [63]
        chosen = ROUTES[route] if route is not None else None
        if chosen is not None and chosen.namespace == STRANGER:
            namespace = STRANGER
        rules, text = POLICIES[policy]
        parent, with_parent = family
        parent_id = self.choose_unfinished(parent) if isinstance(parent, int) else None
        items = []
        for n, pick in enumerate(picks):
            # one of those that are there again, or a new one
            id_ = self.ids[pick % len(self.ids)] if pick > 55 and self.ids else self.mint()
            if pick > 61 and n:
                id_ = items[0].id or id_
            items.append(
                Item(
                    id=id_,
                    route=chosen,
                    priority=priority,
                    delay=delay,
                    deadline=deadline,
                    policy=rules,
                    # one id twice with two keys is no call that anybody repeats
                    key=key if not key or n == 0 or id_ == items[0].id else f"{key}{n}",
                    fingerprint=fingerprint,
                    scope=scope,
                    window=window,
                    parent_id=id_ if parent == "self" else parent_id,
                    with_parent=with_parent,
                )
            )
        n = len(items)
        call = Call(
            "submit_executions",
            {
                "partition_key": 0,
                "namespace": namespace,
                "execution_ids": [item.id for item in items],
                "route_ids": [self.bench.routes[chosen] if chosen else 12345] * n,
                "payloads": [b"null"] * n,
                "priorities": [priority] * n,
                "delays": [delay] * n,
                "deadlines": [deadline] * n,
                "policies": [json.dumps(text) if text else None] * n,
                "keys": [item.key for item in items],
                "key_fingerprints": [fingerprint] * n,
                "key_scopes": [scope] * n,
                "key_windows": [window] * n,
                "parent_ids": [item.parent_id for item in items] if parent is not None else None,
                "with_parents": [with_parent] * n if with_parent is not None else None,
            },
            lambda rows: _submitted(rows, n),
        )

        def expect() -> list[Answer]:
            return self.model.submit(namespace, items)

        answers = self.step(call, expect, again=False)
        created = [i.id for i, a in zip(items, answers, strict=True) if a.word == "created"]
        self.ids += [id_ for id_ in created if id_ is not None and id_ not in self.ids]
        if again:
            second = self.step(call, expect)
            for item, first, later in zip(items, answers, second, strict=True):
                if first.word == "created" and later != Answer("duplicate", {"id": item.id}):
                    raise Disagreement(f"a repeated submit answered {later}")

    # Claim

    def _claim(
        self,
        who: str | None,
        worker: int,
        lanes: list[str] | None,
        limit: int,
        ttl: timedelta,
        again: bool,
        claim_id: UUID | None = None,
    ) -> None:
        claimer = WORKERS[worker]
        # every second worker says when it starts
        reports = worker % 2 == 0
        is_new = claim_id is None
        claim_id = claim_id or self.mint()
        call = Call(
            "claim_executions",
            {
                "partition_key": 0,
                "namespace": who,
                "worker_id": claimer.id,
                "worker_instance_id": claimer.instance,
                "claim_id": claim_id,
                "lanes": lanes,
                "tasks": [TASK],
                "capabilities": sorted(claimer.capabilities),
                "limit": limit,
                "lease_ttl": ttl,
                "reports_starts": reports,
            },
            _leases,
        )
        answers = self.step(
            call,
            lambda: self.model.claim(who, claimer, claim_id, lanes, limit, ttl, reports),
            again=again,
        )
        if isinstance(answers, list) and is_new:
            self._keep(answers, claim_id)
            if answers:
                self.last_claims[claimer.instance] = (who, worker, lanes, limit, ttl, claim_id)
            else:
                self.last_claims.pop(claimer.instance, None)

    @operation(
        5,
        who=WHO,
        worker=between(0, 2),
        lanes=one_of([None, None, None, ["a"], ["b"], ["a", "b"], ["c"]]),
        limit=one_of([1, 1, 2, 3, 10, 0]),
        ttl=TTL,
        again=AGAIN,
    )
    def claim(
        self,
        who: str | None,
        worker: int,
        lanes: list[str] | None,
        limit: int,
        ttl: timedelta,
        again: bool,
    ) -> None:
        self._claim(who, worker, lanes, limit, ttl, again)

    @operation(8, worker=one_of([2, 2, 1]), limit=one_of([1, 2, 3]), ttl=TTL)
    def claim_more(self, worker: int, limit: int, ttl: timedelta) -> None:
        self._claim(None, worker, None, limit, ttl, False)

    @operation(8, worker=one_of([2, 1]), limit=one_of([2, 5]))
    def claim_most(self, worker: int, limit: int) -> None:
        self._claim(None, worker, None, limit, 30 * SECOND, False)

    @operation(2, worker=between(0, 2))
    def claim_again_later(self, worker: int) -> None:
        """The last claim of a process, repeated after others have acted."""
        last = self.last_claims.get(WORKERS[worker].instance)
        if last is not None:
            who, _, lanes, limit, ttl, claim_id = last
            self._claim(who, worker, lanes, limit, ttl, False, claim_id)

    # Calls of a holder

    def _fenced_batch(
        self, function: str, fences: Sequence[Fence], who: str | None, silent: str, **more: Any
    ) -> Call:
        return Call(
            function,
            {
                "partition_key": 0,
                "namespace": who,
                "execution_ids": [f.execution_id for f in fences],
                "lease_ids": [f.lease_id for f in fences],
                "epochs": [f.epoch for f in fences],
                "attempt_ids": [f.attempt_id for f in fences],
                **more,
            },
            lambda rows: _outcomes(rows, len(fences), silent),
        )

    def _fences(self, picks: list[int], kind: str) -> list[Fence]:
        return [self.fence(self.choose_held(pick), kind) for pick in picks]

    @operation(8, picks=several(PICK, 3), kind=FENCES, who=WHO, again=AGAIN)
    def complete(self, picks: list[int], kind: str, who: str | None, again: bool) -> None:
        fences = self._fences(picks, kind)
        results = [b"%d" % pick for pick in picks]
        self.step(
            self._fenced_batch("complete_executions", fences, who, "completed", results=results),
            lambda: self.model.complete(who, fences, results),
            target=fences[0].execution_id,
            again=again,
            # the second of two items for one execution is completed first and a duplicate later
            is_repeatable=len({f.execution_id for f in fences}) == len(fences),
        )

    @operation(
        8,
        picks=several(PICK, 2),
        kind=FENCES,
        who=WHO,
        class_=one_of(
            ["transient"] * 4 + ["permanent", "infra_crash", "timeout", "cancelled", "odd", None]
        ),
        reason=one_of(["it broke"] * 8 + [None, "x" * 257]),
        category=one_of([None, None, "io", "other"]),
        detail=one_of([None, b"{}"]),
        again=AGAIN,
    )
    def fail(
        self,
        picks: list[int],
        kind: str,
        who: str | None,
        class_: str | None,
        reason: str | None,
        category: str | None,
        detail: bytes | None,
        again: bool,
    ) -> None:
        fences = self._fences(picks, kind)
        n = len(fences)
        self.step(
            self._fenced_batch(
                "fail_executions",
                fences,
                who,
                "",
                classes=[class_] * n,
                reasons=[reason] * n,
                categories=[category] * n,
                details=[detail] * n,
            ),
            lambda: self.model.fail(who, fences, class_, reason, category, detail),
            target=fences[0].execution_id,
            again=again,
        )

    @operation(4, picks=several(PICK, 3), kind=FENCES, who=WHO, ttl=TTL, again=AGAIN)
    def renew(
        self, picks: list[int], kind: str, who: str | None, ttl: timedelta, again: bool
    ) -> None:
        fences = self._fences(picks, kind)
        self.step(
            self._fenced_batch("renew_leases", fences, who, "renewed", lease_ttl=ttl),
            lambda: self.model.renew(who, fences, ttl),
            target=fences[0].execution_id,
            again=again,
        )

    @operation(
        4,
        picks=several(PICK, 3),
        kind=FENCES,
        who=WHO,
        alone=one_of([True, True, False, False, None]),
        again=AGAIN,
    )
    def start(
        self, picks: list[int], kind: str, who: str | None, alone: bool | None, again: bool
    ) -> None:
        fences = self._fences(picks, kind)
        self.step(
            self._fenced_batch(
                "start_executions", fences, who, "started", alones=[alone] * len(fences)
            ),
            lambda: self.model.start(who, fences, alone),
            target=fences[0].execution_id,
            again=again,
        )

    @operation(4, picks=several(PICK, 2), kind=FENCES, who=WHO, again=AGAIN)
    def release(self, picks: list[int], kind: str, who: str | None, again: bool) -> None:
        fences = self._fences(picks, kind)
        self.step(
            self._fenced_batch("release_leases", fences, who, "released", cause="worker_shutdown"),
            lambda: self.model.release(who, fences, "worker_shutdown"),
            target=fences[0].execution_id,
            again=again,
        )

    def _single(
        self, function: str, fence: Fence, who: str | None, *facts: str, **more: Any
    ) -> Call:
        return Call(
            function,
            {
                "partition_key": 0,
                "namespace": who,
                "execution_id": fence.execution_id,
                "lease_id": fence.lease_id,
                "epoch": fence.epoch,
                "attempt_id": fence.attempt_id,
                **more,
            },
            lambda rows: _single(rows, facts),
        )

    @operation(
        4,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        delay=one_of(
            [20 * SECOND, 20 * SECOND, 5 * MINUTE, NOTHING, -SECOND, None, timedelta(days=40_000)]
        ),
        again=AGAIN,
    )
    def delay_execution(
        self, pick: int, kind: str, who: str | None, delay: timedelta | None, again: bool
    ) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single("delay_execution", fence, who, "delayed_until", delay=delay),
            lambda: self.model.delay(who, fence, delay),
            target=fence.execution_id,
            again=again,
        )

    @operation(4, pick=PICK, kind=FENCES, who=WHO, again=AGAIN)
    def wait_children(self, pick: int, kind: str, who: str | None, again: bool) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single("wait_children", fence, who),
            lambda: self.model.wait_children(who, fence),
            target=fence.execution_id,
            again=again,
        )

    @operation(
        6,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        targets=one_of([[3], [8], [9], [13, 24], [6, 7, 11], [1, 17], [60], [62, 2], ["self"], []]),
        k=one_of([None, None, None, 1, 1, 2, 0, 9]),
        again=AGAIN,
    )
    def wait_for_runs(
        self,
        pick: int,
        kind: str,
        who: str | None,
        targets: list[Any],
        k: int | None,
        again: bool,
    ) -> None:
        id_ = self.choose_held(pick)
        self._wait_for(id_, kind, who, [self._other_than(id_, t) for t in targets], k, again)

    def _other_than(self, id_: UUID, pick: Any) -> UUID:
        """One to wait for: mostly unfinished, mostly another."""
        if pick == "self":
            return id_
        return self.choose(pick, lambda e: e.phase != "terminal" and e.execution_id != id_)

    def _wait_for(
        self,
        id_: UUID,
        kind: str,
        who: str | None,
        targets: list[UUID],
        k: int | None,
        again: bool,
    ) -> None:
        fence = self.fence(id_, kind)
        self.step(
            self._single("wait_for_runs", fence, who, "open", targets=targets, k=k),
            lambda: self.model.wait_for_runs(who, fence, targets, k),
            target=fence.execution_id,
            again=again,
            # what had ended before a wait without end is not kept to be counted again
            is_repeatable=False,
        )

    @operation(
        12,
        picks=several(PICK, 4),
        is_one=one_of([False, True, True]),
        kind=FENCES,
        mixed=one_of([None] * 6 + ["former", "no_lease", "wrong_epoch"]),
        who=WHO,
        names=several(one_of(STEPS_OF_A_HANDLER * 3 + ["", "a\nb"]), 4),
        occurrences=several(one_of([0] * 8 + [1, 1, 2, -1]), 4),
        kinds=several(one_of(["step"] * 10 + ["failure", "sleep", "sleep", "now", "odd", None]), 4),
        delay=one_of([20 * SECOND] * 4 + [5 * MINUTE, -SECOND, None, timedelta(days=40_000)]),
        encoding=one_of([None] * 6 + ["json"] * 6 + ["e" * 65]),
        again=AGAIN,
    )
    def record_steps(
        self,
        picks: list[int],
        is_one: bool,
        kind: str,
        mixed: str | None,
        who: str | None,
        names: list[str],
        occurrences: list[int],
        kinds: list[str | None],
        delay: timedelta | None,
        encoding: str | None,
        again: bool,
    ) -> None:
        ids = [self.choose_held(picks[0] if is_one else pick) for pick in picks]
        items = []
        for n, id_ in enumerate(ids):
            # a fence that differs stands in the middle, or in front of the others
            is_odd = mixed is not None and n == len(ids) // 2
            fence = self.fence(id_, mixed if mixed is not None and is_odd else kind)
            step_kind = kinds[n % len(kinds)]
            is_plain = step_kind not in ("sleep", "now")
            step = Step(
                name=names[n % len(names)],
                occurrence=occurrences[n % len(occurrences)],
                kind=step_kind,
                value=b"%d" % picks[n] if is_plain or picks[n] > 60 else None,
                encoding=encoding,
                delay=delay if step_kind == "sleep" or picks[n] == 60 else None,
                **self._position(names[n % len(names)], occurrences[n % len(occurrences)]),
            )
            items.append((fence, step))
        self._record(items, who, again)

    @staticmethod
    def _position(name: str, occurrence: int) -> dict[str, Any]:
        """Where a handler would come to this step: those of the second kind run beside others."""
        places = {"load": 1, "save": 4, "nap": 8, "time": 12}
        if name in places:
            return {"position": places[name] + max(occurrence, 0), "is_sequential": True}
        return {"position": 4 + 4 * max(occurrence, 0), "is_sequential": False}

    def _record(self, items: list[tuple[Fence, Step]], who: str | None, again: bool) -> None:
        steps = [step for _, step in items]
        call = self._fenced_batch(
            "record_steps",
            [fence for fence, _ in items],
            who,
            "",
            names=[step.name for step in steps],
            occurrences=[step.occurrence for step in steps],
            positions=[step.position for step in steps],
            sequentials=[step.is_sequential for step in steps],
            kinds=[step.kind for step in steps],
            values=[step.value for step in steps],
            encodings=[step.encoding for step in steps],
            delays=[step.delay for step in steps],
        )
        call.read = _recorded

        def expect() -> list[Answer]:
            return self.model.record_steps(who, items)

        answers = self.step(call, expect, target=items[0][0].execution_id)
        if again and isinstance(answers, list):
            for first, second in zip(answers, self.step(call, expect), strict=True):
                kept = ("recorded_at", "until_at", "attempt_index")
                if first.word == "recorded" and (
                    second.word != "exists" or any(first[n] != second[n] for n in kept)
                ):
                    raise Disagreement(f"a repeated step answered {second}, not {first}")

    @operation(2, pick=PICK, who=WHO)
    def list_steps(self, pick: int, who: str | None) -> None:
        id_ = self.choose(pick, lambda e: bool(e.journal))
        self.step(
            Call(
                "list_steps",
                {"partition_key": 0, "namespace": who, "execution_ids": [id_]},
                lambda rows: [{name: row[name] for name in _LISTED} for row in rows],
            ),
            lambda: [
                {name: getattr(step, name) for name in _LISTED}
                for step in self.model.list_steps(who, id_)
            ],
            target=id_,
            again=True,
        )

    @operation(
        4,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        reason=one_of(["why"] * 5 + [None, "", "x" * 257]),
        again=AGAIN,
    )
    def hold_execution(
        self, pick: int, kind: str, who: str | None, reason: str | None, again: bool
    ) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single("hold_execution", fence, who, reason=reason),
            lambda: self.model.hold(who, fence, reason),
            target=fence.execution_id,
            again=again,
        )

    @operation(
        8,
        pick=PICK,
        kind=FENCES,
        who=WHO,
        percent=one_of([0, 50, 100, None, -1, 101]),
        message=one_of([None, "on it"]),
        again=AGAIN,
    )
    def report_progress(
        self,
        pick: int,
        kind: str,
        who: str | None,
        percent: int | None,
        message: str | None,
        again: bool,
    ) -> None:
        fence = self.fence(self.choose_held(pick), kind)
        self.step(
            self._single("report_progress", fence, who, percent=percent, message=message),
            lambda: self.model.report_progress(who, fence, percent, message),
            target=fence.execution_id,
            again=again,
        )

    # Calls of an operator

    def _operation(self, function: str, id_: UUID, who: str | None, **more: Any) -> Call:
        return Call(
            function,
            {"partition_key": 0, "namespace": who, "execution_id": id_, **more},
            lambda rows: _shown(rows),
        )

    @operation(
        4,
        pick=PICK,
        who=WHO,
        source=one_of(
            [
                "operator_override",
                "operator_override",
                "lease_holder",
                "lease_holder",
                "flow_cascade",
                "",
            ]
        ),
        kind=FENCES,
        reason=one_of([None, "enough"]),
        actor=ACTOR,
        again=AGAIN,
    )
    def cancel_execution(
        self,
        pick: int,
        who: str | None,
        source: str,
        kind: str,
        reason: str | None,
        actor: str | None,
        again: bool,
    ) -> None:
        id_ = self.choose_held(pick) if source == "lease_holder" else self.choose(pick)
        fence = self.fence(id_, kind)
        self.step(
            self._operation(
                "cancel_execution",
                id_,
                who,
                reason=reason,
                source=source,
                actor=actor,
                lease_id=fence.lease_id,
                epoch=fence.epoch,
                attempt_id=fence.attempt_id,
            ),
            lambda: self.model.cancel(who, id_, source, reason, actor, fence),
            target=id_,
            again=again,
            # a holder that is late ends it first, and is then told that it has ended
            is_repeatable=not self._is_late(id_),
        )

    def _is_late(self, id_: UUID) -> bool:
        e = self.model.executions.get(id_)
        return e is not None and (self.model.is_over(e) or self.model.is_late(e))

    @operation(
        4,
        pick=PICK,
        who=WHO,
        aim=one_of(["any", "any", "lease", "other_lease", "instance", "no_instance"]),
        actor=ACTOR,
        version=VERSION,
        again=AGAIN,
    )
    def revoke_lease(
        self, pick: int, who: str | None, aim: str, actor: str | None, version: str, again: bool
    ) -> None:
        id_ = self.choose_held(pick)
        e = self.model.executions.get(id_)
        expected = {"lease": e.lease_id if e else None, "other_lease": UUID(int=7)}.get(aim)
        instance = {"instance": "pool-1", "no_instance": ""}.get(aim)
        if_version = self.version(id_, version)
        self.step(
            self._operation(
                "revoke_lease",
                id_,
                who,
                expected_lease_id=expected,
                worker_instance_id=instance,
                actor=actor,
                if_version=if_version,
            ),
            lambda: self.model.revoke(who, id_, expected, instance, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        4,
        pick=PICK,
        who=WHO,
        priority=one_of([0, 5, 9000, 9001, -1, None]),
        actor=ACTOR,
        version=VERSION,
        again=AGAIN,
    )
    def change_priority(
        self,
        pick: int,
        who: str | None,
        priority: int | None,
        actor: str | None,
        version: str,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, lambda e: e.phase == "runnable")
        if_version = self.version(id_, version)
        self.step(
            self._operation(
                "change_priority", id_, who, priority=priority, actor=actor, if_version=if_version
            ),
            lambda: self.model.change_priority(who, id_, priority, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        8,
        pick=PICK,
        who=WHO,
        actor=ACTOR,
        version=VERSION,
        how=one_of(["plain"] * 6 + ["step"] * 4 + ["fresh"] * 3 + ["unknown", "both", "neither"]),
        is_held=one_of([False, False, True]),
        again=AGAIN,
    )
    def replay_execution(
        self,
        pick: int,
        who: str | None,
        actor: str | None,
        version: str,
        how: str,
        is_held: bool,
        again: bool,
    ) -> None:
        id_ = self.choose(
            pick,
            lambda e: e.blocking_reason == "paused_by_policy" if is_held else e.phase == "terminal",
        )
        e = self.model.executions.get(id_)
        steps = list(e.journal) if e is not None else []
        from_step = {
            "step": steps[pick % len(steps)] if steps else None,
            "unknown": ("elsewhere", 1),
            "both": ("load", 0),
        }.get(how)
        fresh = {"fresh": True, "both": True, "neither": None}.get(how, False)
        if_version = self.version(id_, version)
        more = {"from_step": from_step[0], "from_occurrence": from_step[1]} if from_step else {}
        self.step(
            self._operation(
                "replay_execution",
                id_,
                who,
                actor=actor,
                if_version=if_version,
                fresh=fresh,
                **more,
            ),
            lambda: self.model.replay(who, id_, actor, if_version, from_step, fresh),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(3, pick=PICK, who=WHO, actor=ACTOR, version=VERSION, again=AGAIN)
    def retry_execution(
        self, pick: int, who: str | None, actor: str | None, version: str, again: bool
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility not in ("eligible_now", "not_applicable"))
        if_version = self.version(id_, version)
        self.step(
            self._operation("retry_execution", id_, who, actor=actor, if_version=if_version),
            lambda: self.model.retry(who, id_, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        3,
        pick=PICK,
        who=WHO,
        reason=one_of(
            [
                "waiting_for_budget",
                "waiting_for_quota",
                "waiting_for_capable_worker",
                "paused_by_operator",
                "paused_by_policy",
                "waiting_for_worker",
                None,
            ]
        ),
        detail=one_of([None, "tokens"]),
        actor=ACTOR,
        again=AGAIN,
    )
    def block_execution(
        self,
        pick: int,
        who: str | None,
        reason: str | None,
        detail: str | None,
        actor: str | None,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        self.step(
            self._operation(
                "block_execution_for_admission",
                id_,
                who,
                blocking_reason=reason,
                detail=detail,
                actor=actor,
            ),
            lambda: self.model.block(who, id_, reason, detail, actor),
            target=id_,
            again=again,
        )

    @operation(
        3,
        pick=PICK,
        who=WHO,
        expected=one_of([None, None, "", "waiting_for_budget", "paused_by_operator"]),
        actor=ACTOR,
        version=VERSION,
        again=AGAIN,
    )
    def unblock_execution(
        self,
        pick: int,
        who: str | None,
        expected: str | None,
        actor: str | None,
        version: str,
        again: bool,
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility.startswith("blocked"))
        if_version = self.version(id_, version)
        self.step(
            self._operation(
                "unblock_execution",
                id_,
                who,
                expected_reason=expected,
                actor=actor,
                if_version=if_version,
            ),
            lambda: self.model.unblock(who, id_, expected, actor, if_version),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        4,
        picks=several(PICK, 2),
        who=WHO,
        tags=one_of([{"app.a": "1"}, {"app.a": "2", "app.b": "x"}, {}, {"Bad": "1"}, None]),
        again=AGAIN,
    )
    def set_tags(
        self, picks: list[int], who: str | None, tags: dict[str, str] | None, again: bool
    ) -> None:
        ids = list(dict.fromkeys(self.choose(pick) for pick in picks))
        self.step(
            Call(
                "set_tags",
                {
                    "partition_key": 0,
                    "namespace": who,
                    "execution_ids": ids,
                    "tags": None if tags is None else json.dumps(tags),
                },
                lambda rows: _outcomes(rows, len(ids), "tagged"),
            ),
            lambda: self.model.set_tags(who, ids, tags),
            target=ids[0],
            again=again,
        )

    @operation(
        2,
        lane=one_of(["a", "b", "b", "c"]),
        state=one_of(["active"] * 6 + ["paused", "paused", "draining", "disabled", "odd", None]),
        resumes_in=one_of([None, None, MINUTE, NOTHING]),
        actor=ACTOR,
        again=AGAIN,
    )
    def set_lane(
        self,
        lane: str,
        state: str | None,
        resumes_in: timedelta | None,
        actor: str | None,
        again: bool,
    ) -> None:
        resumes_at = None if resumes_in is None else self.model.now + resumes_in
        call = Call(
            "set_lane",
            {
                "namespace": NAMESPACE,
                "lane": lane,
                "state": state,
                "resumes_at": resumes_at,
                "actor": actor,
            },
            _lane,
        )
        answer = self.step(call, lambda: self.model.set_lane(lane, state, resumes_in, actor))
        if again and not answer.is_raised:
            second = self.step(call, lambda: self.model.set_lane(lane, state, resumes_in, actor))
            if second.word != "unchanged":
                raise Disagreement(f"a repeated set_lane answered {second}")

    # Grants

    def _issue(
        self,
        function: str,
        id_: UUID,
        who: str | None,
        worker: Worker,
        ttl: timedelta,
        key: bytes,
        again: bool,
        expect: Callable[[], Answer],
    ) -> None:
        answer = self.step(
            Call(
                function,
                {
                    "partition_key": 0,
                    "namespace": who,
                    "execution_id": id_,
                    "key": key,
                    "worker_id": worker.id,
                    "worker_instance_id": worker.instance,
                    "capabilities": sorted(worker.capabilities),
                    "grant_ttl": ttl,
                },
                lambda rows: _single(rows, ("kind", "expires_at")),
            ),
            expect,
            target=id_,
            again=again,
        )
        if answer.word == "granted":
            self.grant_keys[id_] = key

    def _new_key(self, pick: int, id_: UUID) -> bytes:
        """Mostly a new key; the one it was granted with before; too short a one."""
        if pick % 11 == 0 and id_ in self.grant_keys:
            return self.grant_keys[id_]
        return b"short" if pick == 61 else self.mint().bytes * 2

    @operation(6, pick=PICK, who=WHO, worker=between(0, 2), ttl=GRANT_TTL, again=AGAIN)
    def issue_claim_grant(
        self, pick: int, who: str | None, worker: int, ttl: timedelta, again: bool
    ) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        key = self._new_key(pick, id_)
        self._issue(
            "issue_claim_grant", id_, who, WORKERS[worker], ttl, key, again,
            lambda: self.model.issue_claim_grant(who, id_, key, WORKERS[worker], ttl),
        )  # fmt: skip

    @operation(4, pick=PICK, who=WHO, worker=between(0, 2), ttl=GRANT_TTL, again=AGAIN)
    def issue_reclaim_grant(
        self, pick: int, who: str | None, worker: int, ttl: timedelta, again: bool
    ) -> None:
        id_ = self.choose(pick, lambda e: e.ownership.startswith("lease_"))
        key = self._new_key(pick, id_)
        self._issue(
            "issue_reclaim_grant", id_, who, WORKERS[worker], ttl, key, again,
            lambda: self.model.issue_reclaim_grant(who, id_, key, WORKERS[worker], ttl),
        )  # fmt: skip

    def _use(
        self, function: str, id_: UUID, pick: int, who: str | None, own: bool, **more: Any
    ) -> tuple[Call, bytes, Worker, UUID]:
        grant = self.model.grants.get(id_)
        key = self.grant_keys.get(id_, b"k" * 32) if pick % 8 else b"w" * 32
        worker = next(
            (w for w in WORKERS if own and grant is not None and w.id == grant.worker_id),
            WORKERS[pick % 3],
        )
        former = self.fences.get(id_)
        claim_id = former[0].lease_id if former and pick % 9 == 0 else self.mint()
        assert claim_id is not None
        call = Call(
            function,
            {
                "partition_key": 0,
                "namespace": who,
                "execution_id": id_,
                "key": key,
                "worker_id": worker.id,
                "worker_instance_id": worker.instance,
                "claim_id": claim_id,
                "lease_ttl": 30 * SECOND,
                **more,
            },
            _lease,
        )
        return call, key, worker, claim_id

    def _choose_granted(self, pick: int, kind: str) -> UUID:
        def is_granted(e: Execution) -> bool:
            grant = self.model.grants.get(e.execution_id)
            return grant is not None and grant.kind == kind

        return self.choose(pick, is_granted)

    @operation(
        7,
        pick=PICK,
        who=WHO,
        kind=one_of(["claim", "claim", "resume"]),
        index=one_of([None, None, None, "next", "wrong"]),
        own=one_of([True, True, True, False]),
        again=AGAIN,
    )
    def claim_granted(
        self, pick: int, who: str | None, kind: str, index: str | None, own: bool, again: bool
    ) -> None:
        id_ = self._choose_granted(pick, kind)
        e = self.model.executions.get(id_)
        expected = None
        if index is not None and e is not None:
            right = e.total_attempt_count if kind == "claim" else e.attempt_index
            expected = right + (index == "wrong")
        function = "claim_execution" if kind == "claim" else "claim_resumed_execution"
        call, key, worker, claim_id = self._use(
            function, id_, pick, who, own, expected_attempt_index=expected
        )
        answer = self.step(
            call,
            lambda: self.model.claim_granted(
                kind, who, id_, key, worker, claim_id, 30 * SECOND, expected
            ),
            target=id_,
            again=again,
        )
        self._keep(answer, claim_id)

    @operation(5, pick=PICK, who=WHO, own=one_of([True, True, True, False]), again=AGAIN)
    def reclaim_execution(self, pick: int, who: str | None, own: bool, again: bool) -> None:
        id_ = self._choose_granted(pick, "reclaim")
        call, key, worker, claim_id = self._use("reclaim_execution", id_, pick, who, own)
        call.read = _reclaimed
        answer = self.step(
            call,
            lambda: self.model.reclaim_execution(who, id_, key, worker, claim_id, 30 * SECOND),
            target=id_,
            again=again,
        )
        self._keep(answer, claim_id)

    @operation(3, pick=between(0, 59), kind=one_of(["current"]), worker=one_of([2]), again=AGAIN)
    def grant_and_use(self, pick: int, kind: str, worker: int, again: bool) -> None:
        """The whole way of a grant, which would seldom be gone step by step."""
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        if e is None:
            return
        is_open = e.attempt_state == "attempt_interrupted"
        is_lost = e.phase == "active"
        if is_lost:
            self.issue_reclaim_grant(pick, None, worker, 10 * SECOND, again)
            self.reclaim_execution(pick, None, True, again)
        else:
            self.issue_claim_grant(pick, None, worker, 10 * SECOND, again)
            self.claim_granted(pick, None, "resume" if is_open else "claim", None, True, again)

    @operation(2, pick=PICK, who=WHO, again=AGAIN)
    def issue_grant_and_claim(self, pick: int, who: str | None, again: bool) -> None:
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        former = self.fences.get(id_)
        claim_id = former[0].lease_id if former and pick % 9 == 0 else self.mint()
        assert claim_id is not None
        answer = self.step(
            Call(
                "issue_grant_and_claim",
                {
                    "partition_key": 0,
                    "namespace": who,
                    "execution_id": id_,
                    "claim_id": claim_id,
                    "lease_ttl": 30 * SECOND,
                },
                _lease,
            ),
            lambda: self.model.issue_grant_and_claim(who, id_, claim_id, 30 * SECOND),
            target=id_,
            again=again,
        )
        self._keep(answer, claim_id)

    # Lives that chance would seldom lead so far: retry after retry, reclaim after reclaim

    @operation(4, pick=between(0, 59), category=one_of([None, None, "io"]))
    def fail_again(self, pick: int, category: str | None) -> None:
        id_ = self.choose(pick, lambda e: e.policy.retry is not None and e.phase == "runnable")
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.delayed_until is not None:
            self.retry_execution(1, None, None, "any", False)
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        self.fail([1], "current", None, "transient", "it broke", category, None, False)
        self.aim = None

    @operation(3, pick=between(0, 59), is_revoked=one_of([False, False, True]))
    def lose_again(self, pick: int, is_revoked: bool) -> None:
        id_ = self.choose(
            pick, lambda e: e.phase == "active" and (bool(pick % 2) or e.policy.max_reclaims < 100)
        )
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        if is_revoked:
            self.revoke_lease(1, None, "any", None, "any", False)
            self.renew([1], "current", None, 30 * SECOND, False)
        elif e.lease_expires_at is not None:
            self._advance(max(e.lease_expires_at - self.model.now, NOTHING))
            self.expire_leases(False)
        self.issue_reclaim_grant(1, None, 2, 10 * SECOND, False)
        self.reclaim_execution(1, None, True, False)
        self.aim = None

    @operation(
        3,
        pick=between(0, 59),
        by=one_of([-SECOND, NOTHING, NOTHING, SECOND]),
        how=one_of(["complete", "complete", "renew", "fail", "record"]),
    )
    def come_late(self, pick: int, by: timedelta, how: str) -> None:
        """A holder acts at the last moment, or after it."""
        id_ = self.choose_held(pick)
        e = self.model.executions.get(id_)
        if e is None or e.lease_expires_at is None:
            return
        self._advance(max(e.lease_expires_at + by - self.model.now, NOTHING))
        self.aim = id_
        if how == "complete":
            self.complete([1], "current", None, False)
        elif how == "renew":
            self.renew([1], "current", None, 30 * SECOND, False)
        elif how == "fail":
            self.fail([1], "current", None, "transient", "it broke", None, None, False)
        else:
            save = Step(name="save", value=b"1", **self._position("save", 0))
            self._record([(self.fence(id_, "current"), save)], None, False)
        self.aim = None

    @operation(1, pick=between(0, 59))
    def lose_too_often(self, pick: int) -> None:
        id_ = self.choose(pick, lambda e: e.phase != "terminal" and e.policy.max_reclaims == 0)
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        self.aim = None
        if e.lease_expires_at is not None:
            self._advance(max(e.lease_expires_at - self.model.now, NOTHING))
            self.expire_leases(False)
            self.claim_most(2, 5)

    @operation(2, pick=between(0, 59))
    def run_out_of_time(self, pick: int) -> None:
        def ends_at(e: Execution) -> datetime | None:
            return e.attempt_deadline_at if e.is_leased else e.deadline_at

        id_ = self.choose(pick, lambda e: e.phase != "terminal" and ends_at(e) is not None)
        e = self.model.executions.get(id_)
        at = ends_at(e) if e is not None else None
        if at is not None:
            self._advance(max(at - self.model.now, NOTHING))
            self.expire_executions(False)

    @operation(3, pick=between(0, 59), how=one_of(["retry", "step", "fresh"]))
    def hold_and_repair(self, pick: int, how: str) -> None:
        """A handler finds steps that are not its own, and an operator helps it."""
        id_ = self.choose(pick, lambda e: e.is_leased or e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        load = Step(name="load", value=b"1", **self._position("load", 0))
        self._record([(self.fence(id_, "current"), load)], None, False)
        self.hold_execution(1, "current", None, "it was renamed", False)
        if how == "retry":
            self.retry_execution(1, None, "ann", "any", False)
        else:
            self.replay_execution(1, None, "ann", "any", how, True, False)
        self.aim = None

    # Whom an end concerns

    @operation(
        4, pick=between(0, 59), others=one_of([[3], [9], [6, 13], [8, 16, 21]]), k=one_of([None, 1])
    )
    def wait_again(self, pick: int, others: list[int], k: int | None) -> None:
        """Claimed to wait for others."""
        id_ = self.choose(pick, lambda e: e.eligibility == "eligible_now")
        e = self.model.executions.get(id_)
        targets = [self._other_than(id_, other) for other in others]
        if e is None or id_ in targets:
            return
        self.aim = id_
        if e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        self._wait_for(id_, "current", None, targets, k, False)
        self.aim = None

    @operation(4, pick=between(0, 59), is_child=one_of([False, True]), route=one_of([0, 1, 2]))
    def have_child(self, pick: int, is_child: bool, route: int) -> None:
        """A child that ends with its parent; of a child, to have grandchildren."""
        if len(self.model.executions) > 20:
            return
        parent = self.choose(
            pick,
            lambda e: (
                e.phase != "terminal"
                and e.route.namespace == NAMESPACE
                and (e.ends_with_parent or not is_child)
            ),
        )
        id_ = self.mint()
        item = Item(id=id_, route=ROUTES[route], parent_id=parent, with_parent=True)
        answers = self.step(
            Call(
                "submit_executions",
                {
                    "partition_key": 0,
                    "namespace": NAMESPACE,
                    "execution_ids": [id_],
                    "route_ids": [self.bench.routes[ROUTES[route]]],
                    "payloads": [b"null"],
                    "parent_ids": [parent],
                    "with_parents": [True],
                },
                lambda rows: _submitted(rows, 1),
            ),
            lambda: self.model.submit(NAMESPACE, [item]),
        )
        if answers[0].word == "created":
            self.ids.append(id_)

    def _concerned(self, id_: UUID) -> list[UUID]:
        """Who waits for this one, and which children end with it."""
        model = self.model
        waiters = [
            w for (w, target), wait in model.waits.items() if target == id_ and not wait.ended_at
        ]
        heirs = [
            e.execution_id
            for e in model.executions.values()
            if e.parent_id == id_ and e.ends_with_parent and e.phase != "terminal"
        ]
        downstreams = [
            edge.downstream_id
            for edge in model.edges.values()
            if edge.upstream_id == id_ and edge.resolution == "unsatisfied"
        ]
        siblings = [
            edge.upstream_id
            for edge in model.edges.values()
            if edge.downstream_id in downstreams
            and edge.upstream_id != id_
            and edge.resolution == "unsatisfied"
        ]
        return list(dict.fromkeys(waiters + heirs + downstreams + siblings))

    @operation(
        6,
        pick=between(0, 59),
        how=one_of(["complete", "fail", "cancel", "cancel"]),
        is_locked=one_of([False, True]),
        is_resolved=one_of([False, True]),
    )
    def end_awaited(self, pick: int, how: str, is_locked: bool, is_resolved: bool) -> None:
        """End one that concerns others; now and then one of those is locked meanwhile."""
        id_ = self.choose(
            pick, lambda e: e.phase != "terminal" and bool(self._concerned(e.execution_id))
        )
        e = self.model.executions.get(id_)
        if e is None:
            return
        self.aim = id_
        if how != "cancel" and e.eligibility == "eligible_now" and e.phase == "runnable":
            self.issue_grant_and_claim(1, None, False)
        concerned = self._concerned(id_)
        transaction = None
        if is_locked and concerned:
            transaction = self._lock(concerned[pick % len(concerned)])
        if how == "complete":
            self.complete([1], "current", None, False)
        elif how == "fail":
            self.fail([1], "current", None, "permanent", "it broke", None, None, False)
        else:
            self.cancel_execution(1, None, "operator_override", "current", None, None, False)
        if transaction is not None:
            self._run(transaction.rollback())
            self.model.locked = set()
        self.aim = None
        if is_resolved:
            self.resolve_wakes(False)

    def _lock(self, id_: UUID) -> Any:
        """Somebody else holds a row."""
        transaction = self.bench.other.transaction()
        self._run(transaction.start())
        self._run(
            self.bench.other.execute(
                "select from ff.execution where partition_key = 0 and execution_id = $1 "
                "for no key update",
                id_,
            )
        )
        self.model.locked = {id_}
        return transaction

    @operation(3, again=AGAIN)
    def resolve_wakes(self, again: bool) -> None:
        self._tick("resolve_wakes", self.model.resolve_wakes, again)

    # Flows

    @operation(
        7,
        size=one_of([2, 3, 3, 4, 5]),
        shape=between(0, 2**30),
        route=one_of([0, 1, 2]),
        again=AGAIN,
    )
    def submit_flow(self, size: int, shape: int, route: int, again: bool) -> None:
        """A small graph: chains, joins and forks, with rules of all kinds."""
        if len(self.model.executions) > 17:
            return
        dice = Random(shape)
        edges: list[tuple[int, int, int]] = []
        for to in range(1, size):
            ups = dice.sample(range(to), dice.randint(to == size - 1, min(to, 3)))
            edges += [(up, to, dice.choice([0, 0, 1])) for up in ups]
        rules = {}
        for to, number in dict.fromkeys((to, number) for _, to, number in edges):
            n = sum((to, number) == edge[1:] for edge in edges)
            rule = dice.choice(RULES)
            rules[to, number] = rule if (rule[1] or 1) <= n else RULES[0]
        policies = [dice.choice(POLICIES) for _ in range(size)]
        self._submit_flow(edges, rules, policies, route, again)

    def _submit_flow(
        self,
        edges: list[tuple[int, int, int]],
        rules: dict[tuple[int, int], tuple[str, int | None, str | None]],
        policies: Sequence[tuple[Policy, dict[str, Any] | None]],
        route: int,
        again: bool,
    ) -> list[UUID]:
        """The members, if it was stored."""
        now = self.model.now
        nodes = tuple(
            Execution(
                execution_id=self.mint(),
                route=ROUTES[route],
                policy=rules_of,
                priority=0,
                created_at=now,
                transitioned_at=now,
                mutated_at=now,
                version=0,
            )
            for rules_of, _ in policies
        )
        flow_id = self.mint()
        graph = Graph(nodes, tuple(edges), rules)
        document = {
            "flow_id": str(flow_id),
            "flow_kind": "walk",
            "nodes": [
                {
                    "execution_id": str(node.execution_id),
                    "name": f"n{at}",
                    "route_id": self.bench.routes[ROUTES[route]],
                    "payload": None,
                    **({"policy": text} if text else {}),
                }
                for at, (node, (_, text)) in enumerate(zip(nodes, policies, strict=True))
            ],
            "edges": [{"from": f, "to": t, "group": g} for f, t, g in edges],
            "groups": [
                {
                    "node": to,
                    "group": number,
                    "policy": policy,
                    **({"k": k} if k else {}),
                    **({"on_satisfied": after} if after else {}),
                }
                for (to, number), (policy, k, after) in rules.items()
            ],
        }
        call = Call(
            "submit_flow",
            {"partition_key": 0, "namespace": NAMESPACE, "flow": json.dumps(document)},
            lambda rows: Answer(json.loads(rows[0][0])["outcome"]),
            {"flow": "::jsonb"},
        )

        def expect() -> Answer:
            is_there = flow_id in self.model.flows
            if not is_there and not self.model.lanes[ROUTES[route].lane].is_open:
                return Answer("lane_closed")
            return Answer(self.model.submit_flow(flow_id, NAMESPACE, graph))

        if self.step(call, expect).word != "created":
            return []
        ids = [node.execution_id for node in nodes]
        self.ids += ids
        if again and self.step(call, expect).word != "duplicate":
            raise Disagreement("a repeated submit_flow was not a duplicate")
        return ids

    @operation(
        2,
        rule=one_of([rule for rule in RULES if rule[2] == "cancel_remaining"]),
        how=one_of(["complete", "complete", "complete", "fail"]),
        locked=one_of([None, 1, 1, 2, 3]),
        is_needed=one_of([False, True]),
        is_resolved=one_of([False, True]),
    )
    def race(
        self,
        rule: tuple[str, int | None, str | None],
        how: str,
        locked: int | None,
        is_needed: bool,
        is_resolved: bool,
    ) -> None:
        """Three that race, and one that waits for the first; now and then one of them is held by
        somebody else, or needed by another as well."""
        if len(self.model.executions) > 17:
            return
        edges = [(up, 3, 0) for up in range(3)] + ([(2, 4, 0)] if is_needed else [])
        ids = self._submit_flow(edges, {(3, 0): rule}, [POLICIES[0]] * 5, 0, False)
        if not ids:
            return
        for id_ in ids[: rule[1] or 1]:
            self.aim = id_
            self.issue_grant_and_claim(1, None, False)
            transaction = self._lock(ids[locked]) if locked not in (None, ids.index(id_)) else None
            if how == "complete":
                self.complete([1], "current", None, False)
            else:
                self.fail([1], "current", None, "permanent", "it broke", None, None, False)
            self._unlock(transaction)
        self.aim = None
        if is_resolved:
            self.resolve_wakes(False)
            self.cancel_siblings(True)

    def choose_flow(self, pick: int) -> UUID:
        """A flow, mostly one that is not cancelled; now and then one that is not there."""
        there = list(self.model.flows)
        if pick > 60 or not there:
            return UUID(int=pick + 1)
        liked = [id_ for id_, f in self.model.flows.items() if not f.cancelled_at and f.node_count]
        some = liked if liked and pick % 5 else there
        return some[pick // 5 % len(some)]

    def choose_member(self, pick: int, flow_id: UUID) -> UUID:
        members = [e.execution_id for e in self.model._members(flow_id)]
        if not members or pick > 60:
            return self.choose(pick)
        return members[pick % len(members)]

    def _flow_call(
        self, function: str, flow_id: UUID, who: str | None, read: Any, **more: Any
    ) -> Call:
        return Call(
            function,
            {"partition_key": 0, "namespace": who, "flow_id": flow_id, **more},
            read,
        )

    @operation(2, pick=PICK, name=one_of([NAMESPACE, NAMESPACE, STRANGER]), again=AGAIN)
    def create_flow(self, pick: int, name: str, again: bool) -> None:
        flow_id = self.choose_flow(pick) if pick % 4 == 0 else self.mint()
        call = self._flow_call(
            "create_flow",
            flow_id,
            name,
            lambda rows: Answer(rows[0]["outcome"], {"revision": rows[0]["graph_revision"]}),
            flow_kind="walk",
        )

        def expect() -> Answer:
            word, revision = self.model.create_flow(name, flow_id)
            return Answer(word, {"revision": revision})

        answer = self.step(call, expect)
        if again and not answer.is_raised and self.step(call, expect).word != "already_satisfied":
            raise Disagreement("a repeated create_flow made another one")

    @operation(3, pick=PICK, member=PICK, who=WHO, again=AGAIN)
    def add_execution_to_flow(self, pick: int, member: int, who: str | None, again: bool) -> None:
        flow_id = self.choose_flow(pick)
        id_ = self.choose(member, lambda e: e.flow_id is None)
        self.step(
            self._flow_call(
                "add_execution_to_flow",
                flow_id,
                who,
                lambda rows: Answer(
                    rows[0]["outcome"],
                    {"counts": (rows[0]["node_count"], rows[0]["graph_revision"])},
                ),
                execution_id=id_,
            ),
            lambda: _added(self.model.add_execution(who, flow_id, id_)),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        2, pick=PICK, member=PICK, who=WHO, group=one_of([0, 1, 2]), rule=one_of(RULES), again=AGAIN
    )
    def set_edge_group_policy(
        self,
        pick: int,
        member: int,
        who: str | None,
        group: int,
        rule: tuple[str, int | None, str | None],
        again: bool,
    ) -> None:
        flow_id = self.choose_flow(pick)
        id_ = self.choose_member(member, flow_id)
        self.step(
            self._flow_call(
                "set_edge_group_policy",
                flow_id,
                who,
                lambda rows: Answer(rows[0]["outcome"]),
                downstream_id=id_,
                policy=rule[0],
                k=rule[1],
                on_satisfied=rule[2],
                group_no=group,
            ),
            lambda: Answer(self.model.set_policy(who, flow_id, id_, group, rule)),
            target=id_,
            again=again,
            is_repeatable=False,
        )

    @operation(
        6,
        pick=PICK,
        up=PICK,
        down=PICK,
        who=WHO,
        group=one_of([0, 0, 1, 2]),
        revision=one_of(["seen"] * 5 + ["older"]),
        is_applied=one_of([True, True, True, False]),
        is_held=one_of([False, True]),
        again=AGAIN,
    )
    def stage_and_apply(
        self,
        pick: int,
        up: int,
        down: int,
        who: str | None,
        group: int,
        revision: str,
        is_applied: bool,
        is_held: bool,
        again: bool,
    ) -> None:
        flow_id = self.choose_flow(pick)
        ends = self.choose_member(up, flow_id), self.choose_member(down, flow_id)
        flow = self.model.flows.get(flow_id)
        seen = (flow.graph_revision if flow else 0) - (revision == "older")
        edge_id = self.mint()
        self.step(
            self._flow_call(
                "stage_dependency_edge",
                flow_id,
                who,
                lambda rows: Answer(rows[0]["outcome"], {"revision": rows[0]["graph_revision"]}),
                edge_id=edge_id,
                upstream_id=ends[0],
                downstream_id=ends[1],
                expected_graph_revision=seen,
                group_no=group,
            ),
            lambda: _staged(self.model.stage(who, flow_id, edge_id, ends, group, seen)),
            target=ends[1],
            again=again,
        )
        if is_applied and edge_id in self.model.edges:
            self._apply(flow_id, edge_id, ends, is_held, again)

    @operation(2, pick=PICK, is_held=one_of([False, True]), again=AGAIN)
    def apply_dependency(self, pick: int, is_held: bool, again: bool) -> None:
        """One that was only staged, mostly."""
        edges = list(self.model.edges.values())
        staged = [edge for edge in edges if edge.applied_at is None]
        some = staged or edges
        if some:
            edge = some[pick % len(some)]
            ends = edge.upstream_id, edge.downstream_id
            self._apply(
                edge.flow_id, edge.edge_id, ends if pick < 60 else ends[::-1], is_held, again
            )

    def _apply(
        self, flow_id: UUID, edge_id: UUID, ends: tuple[UUID, UUID], is_held: bool, again: bool
    ) -> None:
        fence = self.fence(ends[1], "current") if is_held else None
        more = (
            {"lease_id": fence.lease_id, "epoch": fence.epoch, "attempt_id": fence.attempt_id}
            if fence
            else {}
        )
        self.step(
            self._flow_call(
                "apply_dependency_to_child",
                flow_id,
                NAMESPACE,
                _applied,
                edge_id=edge_id,
                upstream_id=ends[0],
                downstream_id=ends[1],
                **more,
            ),
            lambda: self.model.apply(NAMESPACE, flow_id, edge_id, ends, fence),
            target=ends[1],
            again=again,
            is_repeatable=False,
        )

    @operation(
        3,
        pick=PICK,
        who=WHO,
        policy=one_of(["cancel_all"] * 3 + ["cancel_pending"] * 2 + ["flow_only"]),
        reason=one_of([None, "enough"]),
        actor=ACTOR,
        locked=one_of([None, None, 1, 2, 3]),
        is_followed=one_of([False, True]),
    )
    def cancel_flow_header(
        self,
        pick: int,
        who: str | None,
        policy: str,
        reason: str | None,
        actor: str | None,
        locked: int | None,
        is_followed: bool,
    ) -> None:
        flow_id = self.choose_flow(pick)
        members = self.model._members(flow_id)
        transaction = None
        if locked is not None and members:
            transaction = self._lock(members[locked % len(members)].execution_id)
        self.step(
            self._flow_call(
                "cancel_flow_header",
                flow_id,
                who,
                _header,
                policy=policy,
                reason=reason,
                actor=actor,
                grace=MINUTE,
            ),
            lambda: _cancelled(
                self.model.cancel_header(who, flow_id, policy, reason, actor, MINUTE)
            ),
        )
        self._unlock(transaction)
        if is_followed:
            self._cancel_members(flow_id, None, None)

    def _unlock(self, transaction: Any) -> None:
        if transaction is not None:
            self._run(transaction.rollback())
            self.model.locked = set()

    def choose_cancelled(self, pick: int) -> UUID:
        there = list(self.model.backlogs)
        return there[pick % len(there)] if there and pick < 60 else self.choose_flow(pick)

    @operation(4, pick=PICK, who=WHO, locked=one_of([None, None, 1, 2]))
    def cancel_members(self, pick: int, who: str | None, locked: int | None) -> None:
        self._cancel_members(self.choose_cancelled(pick), who, locked)

    def _cancel_members(self, flow_id: UUID, who: str | None, locked: int | None) -> None:
        members = self.model._members(flow_id)
        transaction = None
        if locked is not None and members:
            transaction = self._lock(members[locked % len(members)].execution_id)
        self.step(
            self._flow_call(
                "cancel_members",
                flow_id,
                who,
                lambda rows: Answer(
                    "handled" if rows[0]["handled"] else "nothing",
                    {
                        "counts": tuple(rows[0][n] for n in ("handled", "remaining", "draining")),
                        "is_pending": rows[0]["wakes_pending"],
                    },
                ),
            ),
            lambda: _ended(self.model.cancel_members(who, flow_id)),
        )
        self._unlock(transaction)

    @operation(1, pick=PICK, member=PICK, who=WHO, again=AGAIN)
    def ack_cancel_member(self, pick: int, member: int, who: str | None, again: bool) -> None:
        flow_id = self.choose_cancelled(pick)
        id_ = self.choose_member(member, flow_id)
        self.step(
            self._flow_call(
                "ack_cancel_member",
                flow_id,
                who,
                lambda rows: Answer(rows[0]["outcome"], {"remaining": rows[0]["remaining"]}),
                execution_id=id_,
            ),
            lambda: Answer("acked", {"remaining": self.model.ack_member(who, flow_id, id_)}),
            target=id_,
            again=again,
        )

    @operation(1, again=AGAIN)
    def cancel_backlog(self, again: bool) -> None:
        self._tick("cancel_backlog", self.model.cancel_backlog, again)

    @operation(3, again=AGAIN)
    def cancel_siblings(self, again: bool) -> None:
        self._tick("cancel_siblings", self.model.cancel_siblings, again)

    @operation(1, again=AGAIN)
    def reconcile_siblings(self, again: bool) -> None:
        self._tick("reconcile_siblings", self.model.reconcile_siblings, again)

    @operation(1, pick=PICK, who=WHO, again=AGAIN)
    def promote_blocked(self, pick: int, who: str | None, again: bool) -> None:
        id_ = self.choose(pick, lambda e: e.cause in ("satisfy_dependencies", "apply_dependency"))
        self.step(
            Call(
                "promote_blocked_to_eligible",
                {"partition_key": 0, "namespace": who, "execution_id": id_},
                lambda rows: Answer(rows[0]["outcome"]),
            ),
            lambda: Answer(self.model.promote_blocked(who, id_)),
            target=id_,
            again=again,
        )

    @operation(4, pick=between(0, 59), is_skipped=one_of([False, True]), actor=ACTOR)
    def replay_member(self, pick: int, is_skipped: bool, actor: str | None) -> None:
        """One that failed and made others impossible, or one that was skipped."""
        self.aim = self.choose(
            pick,
            lambda e: (
                e.flow_id is not None
                and e.phase == "terminal"
                and (e.outcome == "skipped" if is_skipped else e.outcome in ("failed", "cancelled"))
                and not self.model._is_dead(e)
            ),
        )
        self.replay_execution(1, None, actor, "any", "plain", False, False)
        self.aim = None

    @operation(
        6,
        pick=between(0, 59),
        how=one_of(["complete", "complete", "fail", "cancel"]),
        is_locked=one_of([False, False, True]),
        is_resolved=one_of([False, True]),
    )
    def end_member(self, pick: int, how: str, is_locked: bool, is_resolved: bool) -> None:
        """End an upstream of others."""
        upstreams = {
            edge.upstream_id
            for edge in self.model.edges.values()
            if edge.resolution == "unsatisfied"
            and self.model.executions[edge.upstream_id].phase != "terminal"
        }
        open_ = [
            id_
            for id_ in upstreams
            if self.model.executions[id_].is_claimable or self.model.executions[id_].is_leased
        ]
        some = sorted(open_) if open_ and pick % 7 else sorted(upstreams)
        if some:
            self.aim = some[pick % len(some)]
            self.end_awaited(pick, how, is_locked, False)
            if is_resolved:
                self.cancel_siblings(False)

    @operation(3, pick=between(0, 59), is_woken=one_of([False, True]))
    def sleep_again(self, pick: int, is_woken: bool) -> None:
        """A handler falls asleep, and now and then an operator wakes it."""
        id_ = self.choose(pick, lambda e: e.is_leased)
        e = self.model.executions.get(id_)
        if e is None or not e.is_leased:
            return
        self.aim = id_
        nap = Step(
            name="nap",
            occurrence=sum(name == "nap" for name, _ in e.journal),
            kind="sleep",
            delay=MINUTE,
            **self._position("nap", sum(name == "nap" for name, _ in e.journal)),
        )
        self._record([(self.fence(id_, "current"), nap)], None, False)
        self.delay_execution(1, "current", None, MINUTE, False)
        if is_woken:
            self.retry_execution(1, None, None, "any", False)
        self.aim = None

    # Time

    def _advance(self, span: timedelta) -> None:
        self.model.now += span
        self._run(self.bench.connection.fetchval("select ff_test.freeze_clock($1)", self.model.now))

    @operation(
        5,
        span=one_of(
            [
                SECOND,
                5 * SECOND,
                10 * SECOND,
                10 * SECOND,
                20 * SECOND,
                30 * SECOND,
                30 * SECOND,
                MINUTE,
                5 * MINUTE,
                timedelta(hours=1),
                -5 * SECOND,
                -MINUTE,
            ]
        ),
    )
    def time_passes(self, span: timedelta) -> None:
        self._advance(span)

    def _tick(
        self, function: str, expect: Callable[[], int], again: bool, is_exact: bool = True
    ) -> None:
        call = Call(
            function,
            {"partition_key": 0, "limit": 500},
            lambda rows: rows[0]["handled"] if is_exact else 0,
        )
        self.step(call, expect)
        if again and self.step(call, expect) != 0:
            raise Disagreement(f"a repeat of {function} had something left to do")

    @operation(3, again=AGAIN)
    def promote_delayed(self, again: bool) -> None:
        self._tick("promote_delayed", self.model.promote_delayed, again)

    @operation(2, again=AGAIN)
    def expire_leases(self, again: bool) -> None:
        # handled also counts rows whose timer was only moved on
        self._tick("expire_leases", lambda: self.model.expire_leases() * 0, again, is_exact=False)

    @operation(2, span=one_of([10 * SECOND, 30 * SECOND, MINUTE]))
    def leases_run_out(self, span: timedelta) -> None:
        self._advance(span)
        self._tick("expire_leases", lambda: self.model.expire_leases() * 0, False, is_exact=False)

    @operation(3, again=AGAIN)
    def expire_executions(self, again: bool) -> None:
        self._tick("expire_executions", self.model.expire_executions, again)

    @operation(2, again=AGAIN)
    def reap_grants(self, again: bool) -> None:
        self._tick("reap_grants", self.model.reap_grants, again)

    @operation(
        1,
        retention=one_of([timedelta(hours=1), 10 * MINUTE]),
        floor=one_of([NOTHING, timedelta(hours=2)]),
    )
    def trim_retention(self, retention: timedelta, floor: timedelta) -> None:
        """Until the walk has been around: a call may begin in the middle."""
        call = Call(
            "trim_retention",
            {"partition_key": 0, "limit": 500, "retention": retention, "event_floor": floor},
            lambda rows: 0,
        )
        self._run(self.bench.connection.execute("delete from ff.meta where name like 'trim_pos%'"))
        self.step(call, lambda: self.model.trim_retention(retention, floor) * 0)

    @operation(1, again=AGAIN)
    def trim_events(self, again: bool) -> None:
        self._tick("trim_events", self.model.trim_events, again)

    @operation(1, again=AGAIN)
    def trim_keys(self, again: bool) -> None:
        self._tick("trim_keys", self.model.trim_keys, again)


# Answers as the model gives them


def _order(event: dict[str, Any]) -> tuple[str, int]:
    return str(event["execution_id"]), event["version"]


def _facts(detail: str | None) -> dict[str, Any]:
    told = json.loads(detail) if detail else {}
    return {name: told[name] for name in ("field", "wakes_pending") if name in told}


def _submitted(rows: list[asyncpg.Record], size: int) -> list[Answer]:
    answers = [Answer("created")] * size
    for row in rows:
        facts = _facts(row["detail"])
        if row["outcome"] == "duplicate":
            facts = {"id": row["execution_id"]}
        answers[row["item"] - 1] = Answer(row["outcome"], facts)
    return answers


_LEASE = (
    "execution_id",
    "claim_kind",
    "epoch",
    "attempt_index",
    "attempt_id",
    "attempt_type",
    "lease_expires_at",
    "attempt_deadline_at",
    "deadline_at",
    "retry_count",
    "replay_count",
    "crash_count",
)


def _leases(rows: list[asyncpg.Record]) -> list[Answer]:
    return [Answer("leased", {name: row[name] for name in _LEASE}) for row in rows]


def _lease(rows: list[asyncpg.Record]) -> Answer:
    (answer,) = _leases(rows)
    return answer


def _reclaimed(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    if row["outcome"] != "reclaimed":
        return Answer(row["outcome"])
    return Answer("reclaimed", _leases(rows)[0].facts)


def _outcomes(rows: list[asyncpg.Record], size: int, silent: str) -> list[Answer]:
    answers = [Answer(silent)] * size
    for row in rows:
        facts = _facts(row["detail"])
        if row["outcome"] in ("failed", "retry_scheduled"):
            facts |= {name: row[name] for name in ("delayed_until", "next_attempt_index")}
        answers[row["item"] - 1] = Answer(row["outcome"], facts)
    return answers


def _recorded(rows: list[asyncpg.Record]) -> list[Answer]:
    answers = []
    for n, row in enumerate(rows, 1):
        assert row["item"] == n
        facts = _facts(row["detail"])
        if row["outcome"] in ("recorded", "exists"):
            facts = {
                name: row[name]
                for name in ("recorded_at", "until_at", "attempt_index", "value", "encoding")
            }
        answers.append(Answer(row["outcome"], facts))
    return answers


def _single(rows: list[asyncpg.Record], names: Sequence[str]) -> Answer:
    (row,) = rows
    facts = _facts(row["detail"])
    if not facts and row["outcome"] in (
        "delayed", "waiting", "granted", "not_reclaimable", "reclaim_cap_exceeded"
    ):  # fmt: skip
        facts = {name: row[name] for name in names}
    return Answer(row["outcome"], facts)


def _shown(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    facts = {"public_state": row["public_state"], "version": row["version"]}
    if row["outcome"] == "already_satisfied":
        facts["reason"] = json.loads(row["detail"])["reason"]
    elif row["outcome"] == "cancelled":
        facts |= _facts(row["detail"])
    return Answer(row["outcome"], facts)


def _added(answer: tuple[str, int, int]) -> Answer:
    return Answer(answer[0], {"counts": answer[1:]})


def _staged(answer: tuple[str, int]) -> Answer:
    return Answer(answer[0], {"revision": answer[1]})


def _applied(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    if row["outcome"] not in ("applied", "already_applied"):
        return Answer(row["outcome"], _facts(row["detail"]))
    return Answer(
        row["outcome"],
        {"open": row["unsatisfied"], "state": row["public_state"], **_facts(row["detail"])},
    )


def _header(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    return _cancelled((row["outcome"], row["policy"], row["reason"], row["open_count"]))


def _cancelled(answer: tuple[str, str | None, str | None, int]) -> Answer:
    word, policy, reason, left = answer
    return Answer(word, {"policy": policy, "reason": reason, "open": left})


def _ended(answer: tuple[int, int, int, bool]) -> Answer:
    return Answer(
        "handled" if answer[0] else "nothing", {"counts": answer[:3], "is_pending": answer[3]}
    )


def _lane(rows: list[asyncpg.Record]) -> Answer:
    (row,) = rows
    return Answer(row["outcome"], {name: row[name] for name in ("state", "resumes_at")})


# The tests

SEED = "FLOWFABRIC_MODEL_SEED"

# Every transition that an operation of today can take; those of suspensions are to come.
TRANSITIONS = tuple(f"T{n}" for n in range(1, 31) if n not in (17, 18, 25, 26, 27))
# Operations on one execution: each must meet each phase.
TARGETED = (
    "complete_executions",
    "fail_executions",
    "renew_leases",
    "release_leases",
    "delay_execution",
    "wait_children",
    "wait_for_runs",
    "record_steps",
    "list_steps",
    "hold_execution",
    "report_progress",
    "cancel_execution",
    "revoke_lease",
    "change_priority",
    "replay_execution",
    "retry_execution",
    "block_execution_for_admission",
    "unblock_execution",
    "set_tags",
    "issue_claim_grant",
    "claim_execution",
    "claim_resumed_execution",
    "issue_reclaim_grant",
    "reclaim_execution",
    "issue_grant_and_claim",
)
UNTARGETED = (
    "submit_executions",
    "claim_executions",
    "set_lane",
    "promote_delayed",
    "expire_leases",
    "expire_executions",
    "reap_grants",
    "resolve_wakes",
    "trim_retention",
    "trim_events",
    "trim_keys",
    "submit_flow",
    "create_flow",
    "add_execution_to_flow",
    "set_edge_group_policy",
    "stage_dependency_edge",
    "apply_dependency_to_child",
    "cancel_flow_header",
    "cancel_members",
    "ack_cancel_member",
    "cancel_backlog",
    "cancel_siblings",
    "reconcile_siblings",
    "promote_blocked_to_eligible",
)
HOLDERS = {
    "complete_executions": {"completed"},
    "fail_executions": {"failed", "retry_scheduled"},
    "renew_leases": {"renewed"},
    "start_executions": {"started"},
    "release_leases": {"released"},
    "delay_execution": {"delayed"},
    "wait_children": {"waiting"},
    "wait_for_runs": {"waiting"},
    "record_steps": {"recorded", "exists"},
    "hold_execution": {"held"},
    "report_progress": {"reported"},
    "cancel_execution": {"cancelled"},
}
REFUSALS = ("not_found", "invalid", "not_active", "stale_lease", "lease_expired", "lease_revoked")
OTHERS = (
    ("submit_executions", "parent_ended"),
    ("replay_execution", "unblocked"),
    ("cancel_execution", "wakes_pending"),
    ("resolve_wakes", "something"),
    ("cancel_siblings", "something"),
    ("submit_flow", "created"),
    ("apply_dependency_to_child", "applied"),
    ("apply_dependency_to_child", "not_runnable"),
    ("stage_dependency_edge", "cycle_detected"),
    ("stage_dependency_edge", "stale_graph_revision"),
    ("cancel_flow_header", "cancelled"),
    ("cancel_flow_header", "already_terminal"),
    ("cancel_members", "handled"),
    ("replay_execution", "flow_already_terminal"),
)


@pytest.fixture
def bench(template: Template) -> Iterator[Bench]:
    bench = Bench(template)
    yield bench
    bench.close()


def _walk(bench: Bench, number: int, steps: int, *, shrinks: bool = True) -> None:
    machine = seed(number)(type("Machine", (Machine,), {"bench": bench, "walk": number}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=steps // STEPS,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        ),
    )


def _check_coverage(bench: Bench, steps: int) -> None:
    """The walk went everywhere; a test that quietly stops testing fails here."""
    assert bench.steps >= steps
    # Each is expected tens of times; how often is left to chance.
    few = max(steps // 20_000, 1)
    missed = {number: bench.taken[number] for number in TRANSITIONS if bench.taken[number] < few}
    assert not missed, f"transitions taken less than {few} times"
    missed_pairs = {
        (function, phase)
        for function in TARGETED
        for phase in ("runnable", "active", "terminal")
        if not bench.met[function, phase]
    }
    assert len(missed_pairs) <= 3, f"operations that never met a phase: {missed_pairs}"
    assert not {f: bench.calls[f] for f in UNTARGETED if bench.calls[f] < few}
    for function, own in HOLDERS.items():
        for word in own:
            assert bench.words[function, word] >= few, f"{function} hardly ever answered {word}"
    for function, word in OTHERS:
        assert bench.words[function, word] >= few, f"{function} hardly ever answered {word}"
    for word in REFUSALS:
        given = sum(bench.words[function, word] for function in HOLDERS)
        assert given >= few, f"{word} was hardly ever the answer"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(2))
def test_the_engine_does_what_the_model_says(bench, number):
    """20 000 steps in two parts, always the same ones."""
    _walk(bench, number, 10_500)
    _check_coverage(bench, 10_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_the_engine_does_what_the_model_says_for_long(bench, part):
    """500 000 steps in ten parts, new ones every time; the variable repeats a part."""
    number = int(os.environ.get(SEED) or secrets.randbits(32))
    print(f"{SEED}={number}")
    _walk(bench, number, 52_500)
    _check_coverage(bench, 50_000)


# A few ways in which the engine could be wrong, each a text in one of its functions and another in
# its place.
MUTANTS = {
    "no check of the epoch": (
        "_judge_leases",
        "when s.epoch <> s.row_epoch or s.attempt_id <> s.row_attempt_id",
        "when s.attempt_id <> s.row_attempt_id",
    ),
    "a lease lives at its last moment": (
        "complete_executions",
        "x.lease_expires_at > greatest(v_now, x.transitioned_at)",
        "x.lease_expires_at >= greatest(v_now, x.transitioned_at)",
    ),
    "one retry too many": ("_retry_wait", "p_retry_count >=", "p_retry_count >"),
    "one reclaim too many": (
        "_judge_reclaim",
        "e.reclaim_count - e.company_count >= e.max_reclaims",
        "e.reclaim_count - e.company_count > e.max_reclaims",
    ),
    "a late result counts": (
        "complete_executions",
        "and coalesce(least(x.deadline_at, x.attempt_deadline_at) > v_now, true)",
        "",
    ),
    "a crash is blamed on what had not started": (
        "_expire_leases",
        "when x.lease_start = 'waiting' and x.crash_count > 0 then x.crash_count",
        "when false then x.crash_count",
    ),
    "a revoke keeps the epoch": ("revoke_lease", "epoch = e.epoch + 1,", ""),
    "a replay goes on counting retries": ("_write_replays", "retry_count = 0,", ""),
    "an attempt forgets the time it had left": (
        "_interrupt_executions",
        "e.attempt_deadline_at - greatest(p_now, e.transitioned_at)",
        "e.attempt_timeout",
    ),
    "a grant can be used twice": (
        "_use_grant",
        "delete from ff.grant g\n  where g.partition_key = p_partition_key "
        "and g.execution_id = p_execution_id;",
        "",
    ),
    "a promoted retry becomes a resumption": (
        "promote_delayed",
        "blocking_reason = 'waiting_for_worker',",
        "blocking_reason = 'waiting_for_worker', attempt_state = 'pending_first_attempt',",
    ),
    "the last writer of a step wins": (
        "record_steps",
        "on conflict do nothing",
        "on conflict (partition_key, execution_id, name, occurrence) "
        "do update set value = excluded.value",
    ),
    "one run too few is enough": (
        "_wake_waiters",
        "count(*)::integer as number",
        "count(*)::integer + 1 as number",
    ),
    "a child outlives its parent": (
        "_end_heirs",
        "case when e.ends_with_parent and e.phase <> 'terminal' then true else false end",
        "false",
    ),
    "a step stays though it is to be done again": (
        "_forget_steps",
        "s.position >= v_position",
        "s.position > v_position",
    ),
    "a group needs one success less": (
        "_evaluate_group",
        "p_succeeded >= v_needed",
        "p_succeeded >= greatest(v_needed - 1, 1)",
    ),
    "a sibling is cancelled though another group waits for it": (
        "_cancel_siblings",
        "not x.has_ended and not x.is_needed",
        "not x.has_ended",
    ),
    "a replay leaves closed what its end had closed": (
        "_reopen_edges",
        "update ff.edge g set resolution = 'unsatisfied', outcome = null, resolved_at = null\n"
        "      from item i\n      where ",
        "update ff.edge g set resolution = 'unsatisfied', outcome = null, resolved_at = null\n"
        "      from item i\n      where false and ",
    ),
    "members of a cancelled flow go on waiting": (
        "cancel_flow_header",
        "perform ff._pause_members(p_partition_key, p_flow_id, v_flow.cancel_reason, v_now);",
        "null;",
    ),
    "another tenant may cancel": (
        "_lock_execution",
        "case when p_namespace is null then true else e.namespace = p_namespace end",
        "true",
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutant",
    [
        name if n == 0 else pytest.param(name, marks=pytest.mark.slow)
        for n, name in enumerate(MUTANTS)
    ],
)
def test_a_wrong_engine_is_noticed(bench, mutant):
    function, right, wrong = MUTANTS[mutant]

    async def mutate() -> None:
        text: str = await bench.connection.fetchval(
            "select pg_get_functiondef(oid) from pg_proc "
            "where proname = $1 and pronamespace = 'ff'::regnamespace",
            function,
        )
        assert right in text, f"{function} has changed: say anew how to break it"
        await bench.connection.execute(text.replace(right, wrong))

    bench.run(mutate())
    with pytest.raises((Disagreement, asyncpg.PostgresError)):
        _walk(bench, 0, 20_000, shrinks=False)
