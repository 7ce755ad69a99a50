"""One step of a walk: choose, call the engine and the model, compare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import asyncpg
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from support.gate_model import GatedModel
from support.model import Answer, Execution, Fence, Lane, Refusal

from . import comparison, reading
from .bench import ROUTES, START, Bench, Call, Disagreement
from .choices import OPERATIONS, WEIGHTED
from .comparison import LOOK

T = TypeVar("T")


_RESET = """
truncate ff.execution, ff.execution_body, ff.attempt, ff.event, ff."grant", ff.claim_slot,
  ff.idempotency_key, ff.event_trim, ff.step, ff.run_wait, ff.flow, ff.edge, ff.edge_group,
  ff.signal, ff.signal_inbox, ff.suspension,
  ff.stream, ff.stream_chunk, ff.kept_result, ff.cancel_backlog, ff.cancel_backlog_member,
  ff.trim_mark, ff.trim_position, ff.quota, ff.quota_change, ff.gate, ff.gate_release,
  ff.gate_ticket, ff.line, ff.budget, ff.budget_dimension, ff.budget_ledger, ff.budget_report
  restart identity;
update ff.lane set state = 'active', resumes_at = null, reason = null, changed_by = null,
  changed_at = null;
"""


class Walker(RuleBasedStateMachine):
    """Every operation as a step.

    A step is one number, from which all of its choices follow. Rules and arguments drawn one by one
    leave out whole operations in every example and repeat themselves, and few executions live to
    see their end. Hypothesis still shortens the list of steps when one fails, which is enough. It
    likes small numbers and repeats them: so the second time a number means something else, as it
    does in another example and in another walk.
    """

    bench: ClassVar[Bench]
    walk: ClassVar[int]
    weighted: ClassVar[list[str]] = WEIGHTED

    def __init__(self) -> None:
        super().__init__()
        self.model = GatedModel(START)
        self.model.lanes = {route.place: Lane() for route in ROUTES}
        self.fences: dict[UUID, list[Fence]] = {}
        self.grant_keys: dict[UUID, bytes] = {}
        self.last_claims: dict[str, tuple[Any, ...]] = {}
        self.ids: list[UUID] = []
        self.aim: UUID | None = None
        self._minted = 0
        self._steps = 0
        self._used: Counter[int] = Counter()
        self._run(self._reset())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.bench.run(call)

    async def _reset(self) -> None:
        connection = self.bench.connection
        await connection.execute(_RESET)
        await connection.fetchval("select ff_test.freeze_clock($1)", START)
        self.model.gates, self.model.budgets = await self.bench.declare()
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
        name = dice.choice(self.weighted)
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
        comparison.compare(self.model, self.bench.places, call, seen)
        self.bench.reserved += any(g.reserved_for or g.start_for for g in self.model.gates.values())
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
        seen = await connection.fetchrow(LOOK, self._next_xid, list(self.model.touched))
        assert seen is not None
        self._next_xid = seen["next_xid"]
        return answer, seen

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

    # Calls of one shape

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
            lambda rows: reading.outcomes(rows, len(fences), silent),
        )

    def _fences(self, picks: list[int], kind: str) -> list[Fence]:
        return [self.fence(self.choose_held(pick), kind) for pick in picks]

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
            lambda rows: reading.single(rows, facts),
        )

    def _operation(self, function: str, id_: UUID, who: str | None, **more: Any) -> Call:
        return Call(
            function,
            {"partition_key": 0, "namespace": who, "execution_id": id_, **more},
            lambda rows: reading.shown(rows),
        )

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

    # Time and locks

    def _advance(self, span: timedelta) -> None:
        self.model.now += span
        self._run(self.bench.connection.fetchval("select ff_test.freeze_clock($1)", self.model.now))

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

    def _unlock(self, transaction: Any) -> None:
        if transaction is not None:
            self._run(transaction.rollback())
            self.model.locked = set()
