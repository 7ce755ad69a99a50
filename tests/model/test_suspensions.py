"""Suspensions (T17, T18, T25 to T27) against a model: random calls, and what each must answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from support.clock import Clock
from support.factories import Engine, Factory, Lease, refused
from support.proofs import drawn

TTL = timedelta(days=1)
MINUTE = timedelta(minutes=1)
NAMES = ("a", "b", "c")
# The name of a wait for the answers of two waitpoints.
BOTH = "both"
CLOSE = "select ff.close_waitpoint(0::smallint, 'test', $1, $2)"
ENDS = {"fail": "failed", "cancel": "cancelled", "expire": "expired"}
BEHAVIORS = (*ENDS, *["auto_resume"] * 6, *["escalate"] * 3)


@dataclass(slots=True)
class Waiting:
    """An open wait: until when, and what it was taken as."""

    until: datetime | None
    taken_as: str | None = None


@dataclass(slots=True)
class Subject:
    """What the model knows about one execution.

    A signal is kept with its address: its name, or the id of the waitpoint whose token it had.
    """

    id: UUID
    lease: Lease
    state: str = "active"
    mailbox: list[tuple[UUID, str]] = field(default_factory=list)
    inbox: list[tuple[UUID, str]] = field(default_factory=list)
    waits: dict[tuple[str, int], Waiting] = field(default_factory=dict)
    turn: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*NAMES, BOTH), 0))
    # The waitpoints of each wait for two of them, with their tokens.
    pairs: list[dict[UUID, str]] = field(default_factory=list)
    closed: set[UUID] = field(default_factory=set)
    named: list[tuple[str, int]] = field(default_factory=list)
    timeout: datetime | None = None
    behavior: str = "auto_resume"
    # The wait that took each signal; None if the signal is spent.
    taken: dict[UUID, tuple[str, int] | None] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.state in ("completed", *ENDS.values())

    def first(self, name: str) -> UUID | None:
        return next((id for id, one in self.mailbox if one == name), None)

    def answer(self, key: tuple[str, int]) -> list[UUID] | None:
        """The signals that a wait would take, or None."""
        name, turn = key
        addresses = [str(id) for id in self.pairs[turn]] if name == BOTH else [name]
        found = [id for one in addresses if (id := self.first(one)) is not None]
        return found if len(found) == len(addresses) else None

    def time_out_unanswerable(self, now: datetime) -> None:
        """Time out the waits that nobody can answer any more."""
        for key, wait in self.waits.items():
            if key[0] != BOTH or wait.taken_as is not None:
                continue
            dead = [id for id in self.pairs[key[1]] if id in self.closed]
            if all(self.first(str(id)) for id in dead) or (wait.until and wait.until <= now):
                continue
            wait.until = now
            if key in self.named and (self.timeout is None or self.timeout > now):
                self.timeout = now

    def take(self, key: tuple[str, int], taken_as: str, now: datetime) -> None:
        """End a wait. Its waitpoints are closed, and the other signals there are spent."""
        name, turn = key
        self.waits[key].taken_as = taken_as
        chosen = (self.answer(key) or []) if taken_as == "signals" else []
        pair = self.pairs[turn] if name == BOTH else {}
        for id, address in list(self.mailbox):
            if id in chosen or (chosen and address in map(str, pair)):
                self.taken[id] = key if id in chosen else None
                self.mailbox.remove((id, address))
        if pair.keys() - self.closed:
            self.closed |= pair.keys()
            self.time_out_unanswerable(now)

    def notice(self) -> None:
        self.mailbox += self.inbox
        self.inbox.clear()

    def is_ready(self) -> bool:
        return any(self.answer(key) for key in self.named)

    def wake(self) -> None:
        self.state, self.named, self.timeout = "waiting", [], None


class Walk:
    """Random calls on a few executions, each compared with the model."""

    def __init__(self, engine: Engine, clock: Clock, random: Random, all_: list[Subject]) -> None:
        self.engine, self.clock, self.random, self.all = engine, clock, random, all_
        self.done: set[str] = set()

    async def now(self) -> datetime:
        found: datetime = await self.engine.connection.fetchval("select ff.now()")
        return found

    async def step(self) -> None:
        one = self.random.choice(self.all)
        calls: list[Callable[[Subject], Any]] = [
            self.ask, self.ask, self.suspend, self.suspend, self.suspend, self.signal, self.signal,
            self.store, self.notice, self.later, self.resume, self.claim, self.claim, self.cancel,
            self.complete, self.by_token, self.close,
        ]  # fmt: skip
        weights = (4, 4, 6, 6, 6, 2, 2, 2, 3, 6, 2, 4, 4, 0.05, 0.05, 4, 1)
        await self.random.choices(calls, weights)[0](one)
        row = await self.engine.row(one.id)
        assert row["public_state"] == one.state, one

    async def ask(self, one: Subject) -> None:
        if one.state != "active":
            return
        name, take = self.random.choice((*NAMES, BOTH)), self.random.random() < 0.6
        key = name, one.turn[name]
        condition = None
        if name == BOTH:
            if one.turn[BOTH] == len(one.pairs):
                made = [await self.engine.waitpoint(one.lease, key) for key in "pq"]
                one.pairs.append(dict(made))
            condition = {"every": [{"waitpoint": str(id)} for id in one.pairs[-1]]}
        timeout = self.random.choice((None, MINUTE, MINUTE, 3 * MINUTE))
        now = await self.now()
        answer = await self.engine.ask(
            one.lease, *key, timeout=timeout, take=take, sequential=False, condition=condition
        )
        one.notice()
        wait = one.waits.setdefault(key, Waiting(None if timeout is None else now + timeout))
        one.time_out_unanswerable(now)
        if wait.taken_as is not None:
            expected = "taken"
        elif one.answer(key) is not None:
            expected = "taken" if take else "ready"
            if take:
                one.take(key, "signals", now)
        elif wait.until is not None and wait.until <= now:
            expected = "taken" if take else "timed_out"
            if take:
                one.take(key, "timeout", now)
        else:
            expected = "open"
        assert (answer.word, answer.taken_as) == (expected, wait.taken_as)
        if wait.taken_as is not None:
            one.turn[name] += 1
            self.done.add(f"taken as {wait.taken_as}")
            if name == BOTH:
                self.done.add(f"both taken as {wait.taken_as}")

    async def suspend(self, one: Subject) -> None:
        open_ = [key for key, wait in one.waits.items() if wait.taken_as is None]
        if one.state != "active" or not open_:
            return
        named = self.random.sample(open_, self.random.randint(1, len(open_)))
        behavior = self.random.choice(BEHAVIORS)
        now = await self.now()
        answer = await self.engine.suspend(one.lease, *named, on_timeout=behavior)
        one.notice()
        times = [until for key in named if (until := one.waits[key].until) is not None]
        one.named = named
        if one.is_ready() or any(until <= now for until in times):
            assert answer.word == "already_satisfied"
            one.named = []
            self.done.add("already satisfied")
            return
        assert answer.word == "suspended"
        one.state, one.behavior = "suspended", behavior
        one.timeout = min(times, default=None)
        self.done.add("T17")

    async def signal(self, one: Subject) -> None:
        name = self.random.choice(NAMES)
        answer = await self.engine.signal(one.id, name)
        if one.has_ended:
            assert answer.word == "not_signalable"
            return
        assert answer.signal_id is not None
        one.notice()
        one.mailbox.append((answer.signal_id, name))
        # A signal that was stored before may wake it as well.
        if one.state == "suspended" and one.is_ready():
            one.wake()
            self.done.add("T18")
        else:
            assert answer.effect == "buffered"

    async def store(self, one: Subject) -> None:
        name = self.random.choice(NAMES)
        answer = await self.engine.signal(one.id, name, join=True)
        if one.has_ended:
            assert answer.word == "not_signalable"
            return
        assert (answer.effect, answer.signal_id is None) == ("stored", False)
        assert answer.signal_id is not None
        one.inbox.append((answer.signal_id, name))

    async def by_token(self, one: Subject) -> None:
        if not one.pairs:
            return
        id, token = self.random.choice(list(self.random.choice(one.pairs[-2:]).items()))
        is_stored = self.random.random() < 0.3
        item = {"execution_id": one.id, "name": None, "token": token}
        (answer,) = await self.engine.signal_many([item], join=is_stored)
        if one.has_ended:
            assert answer.word == "not_signalable"
        elif id in one.closed:
            assert answer.word == "waitpoint_closed"
        elif is_stored:
            assert answer.signal_id is not None
            assert answer.effect == "stored"
            one.inbox.append((answer.signal_id, str(id)))
        else:
            assert answer.signal_id is not None
            one.mailbox.append((answer.signal_id, str(id)))
        if not one.has_ended and not is_stored:
            # A call with the lock notices and wakes, even if it is refused.
            one.mailbox += one.inbox
            one.inbox.clear()
            if one.state == "suspended" and one.is_ready():
                one.wake()
                self.done.add("T18")

    async def close(self, one: Subject) -> None:
        points = [id for pair in one.pairs for id in pair if id not in one.closed]
        if one.has_ended or not points:
            return
        id = self.random.choice(points)
        now = await self.now()
        await self.engine.connection.execute(CLOSE, one.id, id)
        one.closed.add(id)
        one.time_out_unanswerable(now)
        self.done.add("closed")

    async def notice(self, _: Subject) -> None:
        await self.engine.notice()
        for one in self.all:
            one.notice()
            if one.state == "suspended" and one.is_ready():
                one.wake()
                self.done.add("T18 noticed")

    async def later(self, _: Subject) -> None:
        await self.clock.advance(self.random.choice((MINUTE / 2, MINUTE, 2 * MINUTE)))
        now = await self.now()
        await self.engine.time_out()
        for one in self.all:
            if one.state != "suspended" or one.timeout is None or one.timeout > now:
                continue
            one.notice()
            if one.is_ready():
                one.wake()
            elif one.behavior == "auto_resume":
                one.wake()
                self.done.add("T26")
            elif one.behavior == "escalate":
                for key in one.named:
                    one.waits[key].until = None
                one.timeout = None
                self.done.add("T27")
            else:
                one.state = ENDS[one.behavior]
                self.done.add("T25")

    async def resume(self, one: Subject) -> None:
        if one.state != "suspended":
            with refused("WF222"):
                await self.engine.resume(one.id)
            return
        now = await self.now()
        await self.engine.resume(one.id)
        for key in one.named:
            one.take(key, "operator", now)
        one.wake()
        self.done.add("resumed")

    async def claim(self, one: Subject) -> None:
        if one.state != "waiting":
            return
        leases = {lease.execution_id: lease for lease in await self.engine.claim(ttl=TTL)}
        for other in self.all:
            if other.id in leases:
                assert other.state == "waiting"
                other.state, other.lease = "active", leases[other.id]
        assert one.state == "active"

    async def cancel(self, one: Subject) -> None:
        if not one.has_ended:
            await self.engine.cancel(one.id)
            one.state = "cancelled"

    async def complete(self, one: Subject) -> None:
        if one.state == "active":
            assert (await self.engine.complete(one.lease)).word == "completed"
            one.state = "completed"

    async def judge(self) -> None:
        """Every accepted signal is where the model says: taken by one wait, or untaken."""
        for one in self.all:
            rows = await self.engine.signals(one.id, limit=1000)
            taken = {row["signal_id"]: row for row in rows if row["taken_at"] is not None}
            assert taken.keys() == one.taken.keys()
            for id, key in one.taken.items():
                row = taken[id]
                assert (row["wait_name"], row["wait_occurrence"]) == (key or (None, None))
            left = {id for id, _ in (*one.mailbox, *one.inbox)}
            assert {row["signal_id"] for row in rows} - taken.keys() == left


async def _walk(
    engine: Engine, make: Factory, clock: Clock, random: Random, walks: int, steps: int
) -> set[str]:
    done: set[str] = set()
    for _ in range(walks):
        several = [await make.execution("leased", ttl=TTL) for _ in range(3)]
        subjects = [Subject(one.id, one.lease) for one in several if one.lease is not None]
        walk = Walk(engine, clock, random, subjects)
        for _ in range(steps):
            await walk.step()
        await walk.judge()
        for one in subjects:
            await walk.cancel(one)
        done |= walk.done
    return done


async def test_suspensions_do_what_the_model_says(engine, make, clock):
    assert await _walk(engine, make, clock, Random(20), 2, 80) >= {"T17", "T18"}


ALL = {
    "T17", "T18", "T18 noticed", "T25", "T26", "T27", "resumed", "already satisfied",
    "taken as signals", "taken as timeout", "taken as operator", "closed",
    "both taken as signals", "both taken as timeout",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_suspensions_do_what_the_model_says_for_long(engine, make, clock, sized):
    walks, expected = sized((400, ALL), short=(20, {"T17", "T18", "T26"}))
    assert await _walk(engine, make, clock, drawn("suspensions"), walks, 120) >= expected
