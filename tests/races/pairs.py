"""Two operations on one execution at the same time, and what the two serial orders would have done.

Every operation that may change an execution, from every state it may be in, stands here once; the
tests make all ordered pairs of them. One case is this: the first runs and its transaction stays
open; the second is sent on another connection; then the first commits, or rolls back.

What must come out. The serial orders are run before, on the same execution, in transactions that
are rolled back; the clock stands still, so that answers and rows can be compared as they are.

* After a commit both answers and all that is stored are those of one order; if the second had to
  wait, those of first-then-second.
* An operation that never waits may pass over a row that the first holds (a claim finds nothing, a
  reconciler handles nothing, a batch answers busy). Then it changed nothing, and when it is called
  again after the commit both are as in first-then-second. A row that nobody holds is never passed.
* After a rollback the second is as if it had been alone, or it passed over the row.
* Some executions have another beside them: one that they wait for, one that waits for them, a child
  that ends with them, or members of their flow. What becomes of the others is compared as well,
  after all that was left to be done has been done: wakes, siblings, members of a cancelled flow.
* Nobody meets a deadlock, a lock timeout or a failed serialisation, and what may pass over a row
  does not wait for it (see Case.may_wait for the one exception).
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from support.admission import Admission
from support.clock import Clock
from support.database import Database
from support.factories import (
    STATES,
    TTL,
    Engine,
    Execution,
    Factory,
    Granted,
    Lease,
    Outcome,
    Step,
)
from support.streams import append

LANE = "pairs"
OTHER_LANE = "pairs-other"
# What somebody may wait for; nobody touches it.
TARGET = UUID("01900000-0000-7000-8000-000000000001")
START = datetime(2040, 1, 1, tzinfo=UTC)
PATIENCE_SECONDS = 60.0
POLICY = {
    "retention_ms": 0,
    "retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 60_000}},
}
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The execution of a case, and what the two calls bring along."""

    id: UUID
    lease: Lease
    key: bytes
    claims: dict[int, UUID]
    # the execution that its end concerns, or that it waits for, and its lease
    other: UUID | None = None
    other_lease: Lease | None = None
    flow: UUID | None = None
    edge: UUID | None = None

    def grant(self) -> Granted:
        return Granted(
            execution_id=self.id, key=self.key, word="granted", kind=None, expires_at=None
        )

    def anew(self) -> Subject:
        """With claim ids that nobody has used."""
        return replace(self, claims={1: uuid4(), 2: uuid4()})


# States: those of the factory, and those in which something is granted or due.

Build = Callable[[Factory, Engine, Clock, bytes], Awaitable[Execution]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside(Execution):
    """An execution with another beside it, and the flow of both."""

    other: Execution
    flow: UUID | None = None
    edge: UUID | None = None


def _plain(state: Any) -> Build:
    async def build(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Execution:
        policy = dict(POLICY)
        if state == "timed_out":
            del policy["retry_policy"]
        return await make.execution(state, lane=LANE, policy=policy)

    return build


def _granted(state: Any, *, over: bool = False) -> Build:
    async def build(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Execution:
        execution = await _plain(state)(make, engine, clock, key)
        issue = engine.grant_reclaim if state == "expired_lease" else engine.grant
        assert (await issue(execution.id, key=key)).word == "granted"
        if over:
            await clock.advance(seconds=10)
        return execution

    return build


def _due(state: Any, after: timedelta, *, ttl: timedelta = TTL, **item: Any) -> Build:
    async def build(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Execution:
        policy = {**POLICY, **item.get("policy", {})}
        execution = await make.execution(state, lane=LANE, ttl=ttl, **{**item, "policy": policy})
        await clock.advance(after)
        return execution

    return build


async def _with_target(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Beside:
    """Both run, and one may come to wait for the other."""
    execution = await _plain("leased")(make, engine, clock, key)
    other = await make.execution("waiting", lane=OTHER_LANE)
    # of another process: who reports the first dead does not mean it
    lease = await engine.take(other.id, lanes=[OTHER_LANE], instance="pool-9")
    return Beside(
        id=execution.id,
        route=execution.route,
        lease=execution.lease,
        other=replace(other, lease=lease),
    )


async def _awaiting(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Beside:
    """It waits for one that runs."""
    pair = await _with_target(make, engine, clock, key)
    assert pair.lease is not None
    assert (await engine.wait_for(pair.lease, [pair.other.id])).word == "waiting"
    return pair


async def _awaited(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Beside:
    """It runs, and another waits for it."""
    pair = await _with_target(make, engine, clock, key)
    assert pair.other.lease is not None
    assert (await engine.wait_for(pair.other.lease, [pair.id])).word == "waiting"
    return pair


async def _with_child(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Beside:
    """It runs and has a child that ends with it."""
    execution = await _plain("leased")(make, engine, clock, key)
    route = await engine.register(lane=OTHER_LANE)
    child = await engine.submit(route=route, parent=execution.id, with_parent=True)
    assert child.word == "created"
    assert child.id is not None
    return Beside(
        id=execution.id,
        route=execution.route,
        lease=execution.lease,
        other=Execution(id=child.id, route=route, lease=None),
    )


# Members of flows: the execution of the case is named `it`, the one beside it `other`.
FLOWS: dict[str, tuple[list[str], list[tuple[int, int]], list[dict[str, Any]]]] = {
    "upstream": (["it", "other"], [(0, 1)], []),
    "downstream": (["other", "it"], [(0, 1)], []),
    "rival": (["it", "other", "rest"], [(0, 2), (1, 2)], [{"node": 2, "policy": "any_of"}]),
    "loose": (["it", "other"], [], []),
}


def _member(place: str, *, fails: bool = False, is_staged: bool = False) -> Build:
    async def build(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Beside:
        names, edges, groups = FLOWS[place]
        ids = {name: uuid4() for name in names}
        routes = {
            name: await engine.register(lane=LANE if name == "it" else OTHER_LANE) for name in names
        }
        flow = uuid4()
        answer = await engine.connection.fetchval(
            "select ff.submit_flow(0::smallint, $1, $2::text::jsonb) ->> 'outcome'",
            engine.namespace,
            json.dumps(
                {
                    "flow_id": str(flow),
                    "flow_kind": "pairs",
                    "nodes": [
                        {
                            "execution_id": str(ids[name]),
                            "name": name,
                            "route_id": routes[name],
                            "payload": None,
                            "policy": POLICY,
                        }
                        for name in names
                    ],
                    "edges": [{"from": up, "to": down} for up, down in edges],
                    "groups": groups,
                }
            ),
        )
        assert answer == "created", answer
        leases: dict[str, Lease] = {}
        for name, lane in (("it", LANE), ("other", OTHER_LANE)):
            waits = any(names[down] == name for _, down in edges)
            if not waits and not (is_staged and name == "it"):
                # of another process: who reports the first dead does not mean the other
                instance = "pool-1" if name == "it" else "pool-9"
                leases[name] = await engine.take(ids[name], lanes=[lane], instance=instance)
        if fails:
            assert (await engine.fail(leases["other"], "permanent")).word == "failed"
        edge = uuid4() if is_staged else None
        if edge is not None:
            await _stage(engine, flow, edge, ids["other"], ids["it"], 2)
        return Beside(
            id=ids["it"],
            route=routes["it"],
            lease=leases.get("it"),
            other=Execution(id=ids["other"], route=routes["other"], lease=leases.get("other")),
            flow=flow,
            edge=edge,
        )

    return build


async def _stage(
    engine: Engine, flow: UUID, edge: UUID, upstream: UUID, downstream: UUID, revision: int
) -> Any:
    return await engine.connection.fetchrow(
        "select a.* from ff.stage_dependency_edge(p_partition_key => 0::smallint, "
        "p_namespace => $1, p_flow_id => $2, p_edge_id => $3, p_upstream_id => $4, "
        "p_downstream_id => $5, p_expected_graph_revision => $6) a",
        engine.namespace,
        flow,
        edge,
        upstream,
        downstream,
        revision,
    )


def _with_steps(state: str) -> Build:
    async def build(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Execution:
        execution = await _plain("leased")(make, engine, clock, key)
        assert execution.lease is not None
        for at, name in enumerate(("open", "load", "save")):
            await engine.record(execution.lease, name=name, position=at, value=b"1")
        if state == "held":
            assert (await engine.hold(execution.lease)).word == "held"
        else:
            assert (await engine.complete(execution.lease)).word == "completed"
        return execution

    return build


def _streaming(*, is_over: bool = False) -> Build:
    async def build(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Execution:
        execution = await _plain("leased")(make, engine, clock, key)
        assert execution.lease is not None
        assert (await append(engine, execution.lease, b"a")).word == "appended"
        if is_over:
            assert (await engine.release(execution.lease)).word == "released"
            lease = await engine.take(execution.id, lanes=[LANE], instance="pool-1")
            execution = replace(execution, lease=lease)
        return execution

    return build


def _limited(state: str) -> Build:
    """Under a quota of one slot: `free` waits, `leased` has the slot, `in line` waits for that of
    another, `next` stands in the closed line of a slot that has just been given back."""

    async def build(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Execution:
        gate = await Admission(engine).quota("pairs", concurrency=1)
        if state in ("in line", "next"):
            other = await make.execution("waiting", lane=OTHER_LANE, quotas=(gate,))
            lease = await engine.take(other.id, lanes=[OTHER_LANE], instance="pool-9")
            other = replace(other, lease=lease)
        execution = await make.execution("waiting", lane=LANE, policy=POLICY, quotas=(gate,))
        if state == "leased":
            lease = await engine.take(execution.id, lanes=[LANE], instance="pool-1")
            return replace(execution, lease=lease)
        if state == "free":
            return execution
        assert await engine.claim(1, lanes=[LANE], instance="pool-8") == []
        if state == "next":
            assert (await engine.complete(lease)).word == "completed"
        return Beside(id=execution.id, route=execution.route, lease=execution.lease, other=other)

    return build


async def _owing(make: Factory, engine: Engine, clock: Clock, key: bytes) -> Execution:
    """Ended, and marked as if somebody had to be told; there is nobody."""
    execution = await _plain("completed")(make, engine, clock, key)
    await engine.connection.execute(
        "update ff.execution set wakes_pending = true where execution_id = $1", execution.id
    )
    return execution


BUILDS: dict[str, Build] = {state: _plain(state) for state in STATES} | {
    "completed, owing": _owing,
    "under a quota with room": _limited("free"),
    "leased under a quota": _limited("leased"),
    "in line": _limited("in line"),
    "in line, with room": _limited("next"),
    "completed, with steps": _with_steps("completed"),
    "held, with steps": _with_steps("held"),
    "leased, streaming": _streaming(),
    "leased again, after a stream": _streaming(is_over=True),
    "leased, beside another": _with_target,
    "awaiting one that runs": _awaiting,
    "leased and awaited": _awaited,
    "leased, with a child": _with_child,
    "member that another waits for": _member("upstream"),
    "member that waits for another": _member("downstream"),
    "member with a rival": _member("rival"),
    "member that was skipped": _member("downstream", fails=True),
    "member with a staged edge": _member("loose", is_staged=True),
    "waiting, granted": _granted("waiting"),
    "interrupted, granted": _granted("interrupted"),
    "expired lease, granted": _granted("expired_lease"),
    "waiting, grant over": _granted("waiting", over=True),
    "lease ran out": _due("leased", TTL),
    "lease ran out over the cap": _due("leased", TTL, policy={"max_reclaim_count": 0}),
    "delay is over": _due("delayed", HOUR),
    "retry is due": _due("retry_delayed", timedelta(minutes=1)),
    "reclaim is due": _due("reclaim_delayed", timedelta(minutes=5)),
    "waiting past its deadline": _due("waiting", HOUR, deadline=HOUR),
    "leased past its deadline": _due("leased", HOUR, ttl=2 * HOUR, deadline=HOUR),
    "attempt out of time": _due(
        "leased", HOUR, ttl=2 * HOUR, policy={"timeout_policy": {"attempt_timeout_ms": 3_600_000}}
    ),
}


# Operations.

Call = Callable[[Engine, Subject, int], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A call by one of the two sides. `passed` is its answer when it may not wait for the row."""

    call: Call
    home: tuple[str, ...]
    passed: Any = None
    # it is about the execution beside that of the case, if there is one
    is_beside: bool = False


def _instance(side: int) -> str:
    return f"side-{side}"


async def _set_tags(engine: Engine, subject: Subject, wait: bool) -> str:
    rows = await engine.connection.fetch(
        "select outcome from ff.set_tags(p_partition_key => $1, p_namespace => $2, "
        "p_execution_ids => $3::uuid[], p_tags => $4, p_wait => $5)",
        engine.partition_key,
        engine.namespace,
        [subject.id],
        '{"app.colour": "red"}',
        wait,
    )
    return str(rows[0]["outcome"]) if rows else "tagged"


async def _expire_worker(engine: Engine, instance: str) -> int:
    count: int = await engine.connection.fetchval(
        "select handled from ff.expire_worker_leases(p_partition_key => $1, p_namespace => $2, "
        "p_worker_instance_id => $3)",
        engine.partition_key,
        engine.namespace,
        instance,
    )
    return count


async def _record(engine: Engine, lease: Lease, wait: bool) -> Any:
    (answer,) = await engine.record_many([(lease, Step(value=b"1"))], wait=wait)
    return "busy" if answer.word == "busy" else answer


async def _append(engine: Engine, lease: Lease) -> Any:
    """Two frames from the first on: of a stream that has one, the second is new."""
    answer = await append(engine, lease, b"a", b"b")
    return "busy" if answer.word == "busy" else answer


async def _complete_other(engine: Engine, subject: Subject) -> Any:
    if subject.other_lease is None:
        return None
    return await engine.complete(subject.other_lease)


async def _cancel_other(engine: Engine, subject: Subject) -> Any:
    return None if subject.other is None else await engine.cancel(subject.other)


async def _replay_from(engine: Engine, execution_id: UUID) -> Any:
    """With the first of the two steps that a replay may be asked to begin with."""
    return await engine.replay(execution_id, from_step="load")


async def _in_flow(engine: Engine, subject: Subject, function: str, **arguments: Any) -> Any:
    """A call about the flow of the execution, if it has one."""
    if subject.flow is None:
        return None
    named = {"namespace": engine.namespace, "flow_id": subject.flow, **arguments}
    given = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(named, 1))
    row = await engine.connection.fetchrow(
        f"select a.* from ff.{function}(p_partition_key => 0::smallint, {given}) a",
        *named.values(),
    )
    assert row is not None
    return row


async def _cancel_flow(engine: Engine, subject: Subject) -> Any:
    """How many are left to be ended is not the same whoever comes first: see _stored."""
    row = await _in_flow(engine, subject, "cancel_flow_header", policy="cancel_all")
    return row and (row["outcome"], row["policy"])


async def _cancel_members(engine: Engine, subject: Subject) -> int:
    row = await _in_flow(engine, subject, "cancel_members")
    return 0 if row is None else int(row["handled"])


async def _apply(engine: Engine, subject: Subject) -> Any:
    if subject.edge is None:
        return None
    row = await _in_flow(
        engine,
        subject,
        "apply_dependency_to_child",
        edge_id=subject.edge,
        upstream_id=subject.other,
        downstream_id=subject.id,
    )
    return row["outcome"], row["unsatisfied"], row["public_state"]


async def _replay_other(engine: Engine, subject: Subject) -> Any:
    return None if subject.other is None else await engine.replay(subject.other)


async def _trim(engine: Engine) -> int:
    count: int = await engine.connection.fetchval(
        "select handled from ff.trim_retention(p_partition_key => $1)", engine.partition_key
    )
    return count


async def _handled(tick: Awaitable[tuple[int, timedelta | None]]) -> int:
    """What a reconciler did; when it is worth coming back is a hint, not a result."""
    return (await tick)[0]


_WAITING = (
    "waiting",
    "interrupted",
    "retry_waiting",
    "replayed",
    "revoked",
    "expired_lease",
    "under a quota with room",
    "in line",
    "in line, with room",
)
_CONCERNING = (
    "leased and awaited",
    "leased, with a child",
    "member that another waits for",
    "member with a rival",
)
_MEMBERS = (
    "member that another waits for",
    "member that waits for another",
    "member with a rival",
    "member with a staged edge",
)
_LEASED = (
    "leased",
    "resumed",
    "retried",
    "reclaimed",
    "lease ran out",
    "attempt out of time",
    "leased under a quota",
)
_ENDED = ("completed", "failed", "cancelled", "expired", "timed_out", "cancelled_unstarted")
_HELD = ("blocked", "held")
_LIMITED = ("under a quota with room", "leased under a quota", "in line", "in line, with room")
_LATER = ("delayed", "retry_delayed", "delayed_by_worker")
_LOST = ("expired_lease", "revoked", "expired lease, granted", "lease ran out", "reclaim is due")
_DUE = ("waiting past its deadline", "leased past its deadline", "attempt out of time")


def _fenced(call: Callable[[Engine, Lease], Awaitable[Any]], passed: Any = None) -> Operation:
    return Operation(
        call=lambda engine, subject, side: call(engine, subject.lease), home=_LEASED, passed=passed
    )


def _ending(call: Callable[[Engine, Lease], Awaitable[Any]], passed: Any = None) -> Operation:
    return replace(_fenced(call, passed), home=_LEASED + _CONCERNING)


def _operator(call: Callable[[Engine, UUID], Awaitable[Any]], home: tuple[str, ...]) -> Operation:
    return Operation(call=lambda engine, subject, side: call(engine, subject.id), home=home)


def _tick(call: Callable[[Engine], Awaitable[int]], home: tuple[str, ...]) -> Operation:
    return Operation(call=lambda engine, subject, side: call(engine), home=home, passed=0)


OPERATIONS: dict[str, Operation] = {
    "claim": Operation(
        call=lambda engine, subject, side: engine.claim(
            1,
            lanes=[LANE],
            claim_id=subject.claims[side],
            worker="others",
            instance=_instance(side),
        ),
        home=_WAITING,
        passed=[],
    ),
    "complete": _ending(lambda engine, lease: engine.complete(lease, wait=True)),
    "complete at once": _ending(lambda engine, lease: engine.complete(lease), "busy"),
    "fail": _fenced(lambda engine, lease: engine.fail(lease, wait=True)),
    "fail at once": _ending(lambda engine, lease: engine.fail(lease, "permanent"), "busy"),
    "release": _fenced(lambda engine, lease: engine.release(lease, wait=True)),
    "release at once": _fenced(lambda engine, lease: engine.release(lease), "busy"),
    "renew": _fenced(lambda engine, lease: engine.renew(lease), "busy"),
    "progress": _fenced(lambda engine, lease: engine.progress(lease, percent=50)),
    "delay": _fenced(lambda engine, lease: engine.delay(lease)),
    "record_steps": _fenced(lambda engine, lease: _record(engine, lease, True)),
    "record_steps at once": _fenced(lambda engine, lease: _record(engine, lease, False), "busy"),
    "append_frames": replace(
        _fenced(_append, "busy"),
        home=("leased, streaming", "leased again, after a stream", "leased"),
    ),
    "wait_for_runs": Operation(
        call=lambda engine, subject, side: engine.wait_for(
            subject.lease, [subject.other or TARGET]
        ),
        home=(*_LEASED, "leased, beside another", "leased and awaited"),
    ),
    "wait_children": _fenced(lambda engine, lease: engine.wait_children(lease)),
    "hold": _fenced(lambda engine, lease: engine.hold(lease)),
    "continue": _fenced(lambda engine, lease: engine.continue_as(lease)),
    "cancel as holder": _ending(lambda engine, lease: engine.cancel_held(lease)),
    "cancel": _operator(lambda engine, id_: engine.cancel(id_), _WAITING + _LEASED + _CONCERNING),
    "revoke": _operator(lambda engine, id_: engine.revoke(id_), _LEASED),
    "change_priority": _operator(
        lambda engine, id_: engine.change_priority(id_, 7), _WAITING + _LATER
    ),
    "replay": _operator(
        lambda engine, id_: engine.replay(id_), (*_ENDED, "member that was skipped")
    ),
    "replay from a step": _operator(_replay_from, ("held, with steps", "completed, with steps")),
    "retry": _operator(lambda engine, id_: engine.retry(id_), _ENDED + _HELD + _LATER),
    "block": _operator(lambda engine, id_: engine.block(id_, actor="op"), _WAITING),
    "unblock": _operator(lambda engine, id_: engine.unblock(id_, actor="op"), _HELD),
    "set_tags": Operation(
        call=lambda engine, subject, side: _set_tags(engine, subject, True), home=_WAITING
    ),
    "set_tags at once": Operation(
        call=lambda engine, subject, side: _set_tags(engine, subject, False),
        home=_WAITING,
        passed="busy",
    ),
    "issue_claim_grant": Operation(
        call=lambda engine, subject, side: engine.grant(subject.id, key=subject.key),
        home=(*_WAITING, "waiting, grant over"),
    ),
    "claim_execution": Operation(
        call=lambda engine, subject, side: engine.use(
            subject.grant(), claim_id=subject.claims[side], instance=_instance(side)
        ),
        home=("waiting, granted", "waiting", "waiting, grant over"),
    ),
    "claim_resumed_execution": Operation(
        call=lambda engine, subject, side: engine.use_resume(
            subject.grant(), claim_id=subject.claims[side], instance=_instance(side)
        ),
        home=("interrupted, granted", "interrupted"),
    ),
    "issue_reclaim_grant": Operation(
        call=lambda engine, subject, side: engine.grant_reclaim(subject.id, key=subject.key),
        home=(*_LOST, "lease ran out over the cap"),
    ),
    "reclaim_execution": Operation(
        call=lambda engine, subject, side: engine.use_reclaim(
            subject.grant(), claim_id=subject.claims[side], instance=_instance(side)
        ),
        home=("expired lease, granted", "lease ran out over the cap", "expired_lease"),
    ),
    "issue_grant_and_claim": Operation(
        call=lambda engine, subject, side: engine.grant_and_claim(
            subject.id, claim_id=subject.claims[side]
        ),
        home=(*_WAITING, "waiting, grant over"),
    ),
    "promote_delayed": _tick(
        lambda engine: _handled(engine.promote()),
        ("delay is over", "retry is due", "reclaim is due"),
    ),
    "expire_leases": _tick(
        lambda engine: _handled(engine.expire()), ("lease ran out", "lease ran out over the cap")
    ),
    "expire_executions": _tick(lambda engine: _handled(engine.expire_executions()), _DUE),
    "expire_worker_leases": _tick(lambda engine: _expire_worker(engine, "pool-1"), _LEASED),
    "reap_grants": _tick(lambda engine: _handled(engine.reap()), ("waiting, grant over",)),
    "resolve_wakes": _tick(lambda engine: _handled(engine.resolve()), ("completed, owing",)),
    "trim_retention": _tick(_trim, _ENDED),
    "complete the other at once": Operation(
        call=lambda engine, subject, side: _complete_other(engine, subject),
        home=(
            "leased, beside another",
            "awaiting one that runs",
            "member that waits for another",
            "member with a rival",
        ),
        passed="busy",
        is_beside=True,
    ),
    "replay the other": Operation(
        call=lambda engine, subject, side: _replay_other(engine, subject),
        home=("member that was skipped",),
        is_beside=True,
    ),
    "cancel the flow": Operation(
        call=lambda engine, subject, side: _cancel_flow(engine, subject),
        home=_MEMBERS,
        is_beside=True,
    ),
    "cancel its members": Operation(
        call=lambda engine, subject, side: _cancel_members(engine, subject),
        home=_MEMBERS,
        passed=0,
        is_beside=True,
    ),
    "apply the edge": Operation(
        call=lambda engine, subject, side: _apply(engine, subject),
        home=("member with a staged edge",),
        is_beside=True,
    ),
    "cancel_siblings": _tick(
        lambda engine: _handled(engine._tick("ff.cancel_siblings", 100)), ("member with a rival",)
    ),
    "cancel the other": Operation(
        call=lambda engine, subject, side: _cancel_other(engine, subject),
        home=(
            "leased and awaited",
            "leased, with a child",
            "awaiting one that runs",
            "member that another waits for",
            "member that waits for another",
            "member with a rival",
        ),
        is_beside=True,
    ),
}


# What ends leases and passes over executions.
_CLOSING = (
    "complete at once",
    "fail at once",
    "release at once",
    "expire_leases",
    "expire_executions",
    "expire_worker_leases",
)


# Cases.


@dataclass(frozen=True, slots=True, order=True)
class Case:
    state: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"[{self.state}] {self.first} | {self.second}"

    @property
    def may_wait(self) -> bool:
        """Whether the second may have to wait. An operation skips a locked execution, but two rows
        are waited for: an old grant that the reaper is about to delete, by the operation that takes
        its execution; and a stream, by the operation that ends its lease, because no frame may
        follow the end."""
        return (
            OPERATIONS[self.second].passed is None
            or self.first == "reap_grants"
            or (self.first == "append_frames" and self.second in _CLOSING)
        )


def all_of(first: str) -> list[Case]:
    """Every case with this first operation, state by state."""
    return [Case(state, first, second) for state in BUILDS for second in OPERATIONS]


def sample_of(first: str) -> list[Case]:
    """Every second operation twice: from a state where one of the two has something to do, and from
    one that goes round, so that each state meets each operation on both sides."""
    states, names = list(BUILDS), list(OPERATIONS)
    row = names.index(first)
    chosen = set()
    for at, second in enumerate(names):
        homes = OPERATIONS[first].home, OPERATIONS[second].home
        # The rarer one, as that of a reconciler is, else now this and now that.
        home = min(homes if (row + at) % 2 else homes[::-1], key=len)
        chosen.add(Case(home[(row * 7 + at) // 2 % len(home)], first, second))
        chosen.add(Case(states[(row + at) % len(states)], first, second))
    # There are more states than operations; what the round leaves out meets itself.
    for at in range(len(names), len(states)):
        chosen.add(Case(states[(row + at) % len(states)], first, first))
    order = {state: at for at, state in enumerate(states)}
    return sorted(chosen, key=lambda case: (order[case.state], case))


def few_of(cases: list[Case], first: str) -> list[Case]:
    """One in 21, others for each operation."""
    return cases[list(OPERATIONS).index(first) % 21 :: 21] or cases[:1]


def waiting() -> list[str]:
    """The operations that wait for their execution."""
    return [
        name
        for name, operation in OPERATIONS.items()
        if operation.passed is None and not operation.is_beside
    ]


def in_line_of(first: str, *, all_homes: bool) -> list[Case]:
    """Every second operation that waits, from the states where one of the two has something to do,
    or from one of them."""
    cases = []
    for at, second in enumerate(waiting()):
        homes = [*dict.fromkeys((*OPERATIONS[first].home, *OPERATIONS[second].home))]
        chosen = homes if all_homes else [homes[at % len(homes)]]
        cases += [Case(state, first, second) for state in chosen]
    return sorted(cases)


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that raised; the state is part of it, as its detail tells what it met."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Course:
    """What came of a case, or of a serial order: the answers by side, and all that is stored."""

    answers: tuple[Any, Any]
    stored: str


# They lock more than the execution, and say so when that has changed meanwhile.
_REPEATED = ("replay", "replay from a step", "replay the other", "retry")
_FORBIDDEN = ("40P01", "40001", "55P03", "57014", "23505")

_STORED = """
select jsonb_build_object(
  'other', (select to_jsonb(e) from ff.execution e
            where e.partition_key = 0 and e.execution_id = $2),
  'events of the other', (
    select jsonb_agg(to_jsonb(v) - 'event_id' - 'xid' order by v.event_id)
    from ff.event v where v.partition_key = 0 and v.execution_id = $2),
  'execution', (select to_jsonb(e) from ff.execution e
                where e.partition_key = 0 and e.execution_id = $1),
  'body', (select to_jsonb(b) from ff.execution_body b
           where b.partition_key = 0 and b.execution_id = $1),
  'attempts', (select jsonb_agg(to_jsonb(a) order by a.attempt_index) from ff.attempt a
               where a.partition_key = 0 and a.execution_id = $1),
  'events', (select jsonb_agg(to_jsonb(v) - 'event_id' - 'xid' order by v.event_id)
             from ff.event v where v.partition_key = 0 and v.execution_id = $1),
  'steps', (select jsonb_agg(to_jsonb(s) order by s.name) from ff.step s
            where s.partition_key = 0 and s.execution_id = $1),
  'waits', (select jsonb_agg(to_jsonb(w) order by w.target_id) from ff.run_wait w
            where w.partition_key = 0 and w.waiter_id = any (array[$1, $2])),
  'slots', (select jsonb_agg(jsonb_build_array(g.gate_id, g.running - coalesce((
              select sum(r.slots) from ff.gate_release r
              where r.partition_key = 0 and r.gate_id = g.gate_id), 0)) order by g.gate_id)
            from ff.gate g where g.partition_key = 0),
  'stream', (select to_jsonb(s) from ff.stream s
             where s.partition_key = 0 and s.execution_id = $1),
  'chunks', (select jsonb_agg(to_jsonb(c) order by c.ms, c.seq) from ff.stream_chunk c
             where c.partition_key = 0 and c.execution_id = $1),
  'grant', (select to_jsonb(g) from ff."grant" g
            where g.partition_key = 0 and g.execution_id = $1),
  'flow', (select jsonb_agg(to_jsonb(f)) from ff.flow f where f.partition_key = 0),
  'edges', (select jsonb_agg(to_jsonb(d) order by d.edge_id) from ff.edge d
            where d.partition_key = 0),
  'groups', (select jsonb_agg(to_jsonb(y) order by y.downstream_id) from ff.edge_group y
             where y.partition_key = 0),
  'backlog', (select jsonb_agg(to_jsonb(m) order by m.execution_id) from ff.cancel_backlog_member m
              where m.partition_key = 0),
  'rest', (select jsonb_agg(to_jsonb(e) order by e.execution_id) from ff.execution e
           where e.partition_key = 0 and e.flow_id is not null
             and e.execution_id <> all (array[$1, $2])))::text
"""

_FORGET_FLOW = """
select ff_test.forget(e.partition_key, e.execution_id) from ff.execution e
where e.partition_key = 0 and e.flow_id is not null;
insert into ff.event_trim (partition_key, due_at, execution_id)
select 0, ff.now() + interval '100 years', v.execution_id from ff.event v
where v.partition_key = 0 and v.kind = 'flow_cancel_requested' and not exists (
  select from ff.event_trim t where t.partition_key = 0 and t.execution_id = v.execution_id);
truncate ff.flow, ff.edge, ff.edge_group, ff.kept_result, ff.cancel_backlog,
  ff.cancel_backlog_member;
"""

_FORGET_GATES = "truncate ff.gate, ff.gate_release, ff.line, ff.quota, ff.claim_slot"

_IS_HELD = """
select not exists (
         select from (select from ff.execution e
                      where e.partition_key = 0 and e.execution_id = $1
                      for no key update skip locked) x)
    or ($2::uuid is not null and not exists (
         select from (select from ff.execution e
                      where e.partition_key = 0 and e.execution_id = $2
                      for no key update skip locked) x))
    or (exists (select from ff."grant" g where g.partition_key = 0 and g.execution_id = $1)
        and not exists (
          select from (select from ff."grant" g
                       where g.partition_key = 0 and g.execution_id = $1
                       for update skip locked) x))
    or ($3 and exists (select from ff.stream s where s.partition_key = 0 and s.execution_id = $1)
        and not exists (
          select from (select from ff.stream s
                       where s.partition_key = 0 and s.execution_id = $1
                       for no key update skip locked) x))
"""


class Failed(AssertionError):
    pass


def _is_judged_before_commit(case: Case, course: Course, serial: Course) -> bool:
    """Tell whether a flow was cancelled while the end of its last member was not yet committed.

    A flow cancel does not wait for members, so it counts the member as unfinished. The member ends
    as its own call says, and the flow is cancelled, not `already_terminal`.
    """
    return (
        case.second == "cancel the flow"
        and course.answers[0] == serial.answers[0]
        and course.answers[1][0] == "cancelled"
        and serial.answers[1][0] == "already_terminal"
    )


def _is_trimmed_in_part(case: Case, answer: Any, alone: Any) -> bool:
    """Tell whether trimming passed over the locked member of a flow and trimmed the others."""
    return case.second == "trim_retention" and isinstance(alone, int) and 0 < answer < alone


@dataclass(slots=True)
class Ring:
    """Where cases are run: a database with three connections and a clock that stands."""

    db: Database
    clock: Clock
    side: Engine
    sides: dict[int, Engine]
    make: Factory = field(init=False)
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _state: str | None = None
    _subject: Subject | None = None
    _untouched: str = ""

    def __post_init__(self) -> None:
        self.make = Factory(self.side, self.clock)

    @classmethod
    async def open(cls, db: Database, clock: Clock) -> Ring:
        ring = cls(db, clock, Engine(db.conn), {n: Engine(await db.connect()) for n in (1, 2)})
        # The first trimming of a partition writes down where it stands; that is not raced here.
        await _trim(ring.side)
        route = await ring.side.register(lane=f"{LANE}-target")
        await ring.side.submit(id=TARGET, route=route, delay=timedelta(days=36_000))
        return ring

    async def run(self, cases: list[Case]) -> None:
        """Run cases one by one; what goes wrong is collected and told at the end."""
        await self._run_all(cases, self._run)

    async def run_in_line(self, cases: list[Case]) -> None:
        """Let both wait for a third that holds the row, then let it go: now both are free to run,
        and the outcome is that of one order."""
        self.sides[3] = Engine(await self.db.connect())
        await self._run_all(cases, self._run_in_line)

    async def _run_all(
        self, cases: list[Case], run: Callable[[Case], Coroutine[Any, Any, None]]
    ) -> None:
        for case in cases:
            try:
                await run(case)
            except (Failed, asyncpg.PostgresError, TimeoutError) as error:
                self.problems.append(f"{case}: {type(error).__name__}: {error}")
                self._state = None
                for engine in self.sides.values():
                    await engine.connection.reset()
        assert not self.problems, f"{len(self.problems)} of {len(cases)} cases:\n" + "\n".join(
            self.problems[:20]
        )

    async def _run(self, case: Case) -> None:
        subject = await self._prepare(case.state)
        serial = {order: await self._in_order(subject, case, order) for order in ((1, 2), (2, 1))}
        self._count("cases")
        for course in serial.values():
            self._check_answers(course)
        # What is refused has rolled back already.
        if not isinstance(serial[1, 2].answers[0], Refused):
            await self._roll_back(subject, case, await self._in_order(subject, case, (2,)))
        await self._commit(subject, case, serial)
        if await self._stored(self.side, subject) != self._untouched:
            await self._clear()

    async def _run_in_line(self, case: Case) -> None:
        subject = await self._prepare(case.state)
        serial = [await self._in_order(subject, case, order) for order in ((1, 2), (2, 1))]
        async with self._holding(3, subject):
            running = []
            for n in (1, 2):
                running.append(asyncio.create_task(self._call(case, subject, n)))
                self._expect(await self._waits(running[-1], n, {3, 1} - {n}), f"{n} did not wait")
        answers = await asyncio.wait_for(asyncio.gather(*running), 60)
        course = Course((answers[0], answers[1]), await self._stored(self.side, subject))
        self._check_answers(course)
        self._count("cases in line")
        if course not in serial:
            raise Failed(_differ("in neither order", course, serial))
        if course.stored != self._untouched:
            await self._clear()

    async def run_late(self, operation: str, states: Iterable[str], by: timedelta = TTL) -> None:
        """Let a call wait for its row while time passes: it must answer as one that comes later."""
        for state in states:
            subject = await self._prepare(state)
            case = Case(state, operation, operation)
            connection = self.side.connection
            outer = connection.transaction()
            await outer.start()
            await self.clock.advance(by)
            inner = connection.transaction()
            await inner.start()
            expected = await self._call(case, subject, 2, self.side)
            if isinstance(expected, Refused):
                await inner.rollback()
            wanted = expected, await self._stored(self.side, subject)
            await outer.rollback()

            async with self._holding(1, subject):
                running = asyncio.create_task(self._call(case, subject, 2))
                waited = await self._waits(running)
                await self.clock.advance(by)
            got = await asyncio.wait_for(running, 60), await self._stored(self.side, subject)
            assert waited, f"{case}: it did not wait"
            assert got == wanted, f"{case}: {_differ('later', got, wanted)}"
            await self._clear()

    # Schedules

    async def _roll_back(self, subject: Subject, case: Case, alone: Course) -> None:
        """The first changes its mind; what the second does is rolled back as well, to be kept for
        the next schedule."""
        one, two = self.sides[1], self.sides[2]
        first, second = one.connection.transaction(), two.connection.transaction()
        await first.start()
        await self._call(case, subject, 1)
        is_held = await self._is_held(subject, case.second)
        await second.start()
        running = asyncio.create_task(self._call(case, subject, 2))
        waited = await self._waits(running)
        await first.rollback()
        answer = await asyncio.wait_for(running, 60)
        stored = self._untouched
        if not isinstance(answer, Refused):
            stored = await self._stored(two, subject)
        await second.rollback()
        if waited and not case.may_wait:
            raise Failed(f"it waited: {answer}")
        self._check_answers(Course((None, answer), stored))
        if (answer, stored) == (alone.answers[1], alone.stored):
            self._count("rolled back")
        elif not waited and is_held and self._is_passed(case, answer):
            self._expect(stored == self._untouched, "it passed over the row and changed it")
            self._count("rolled back, passed over")
        elif not waited and is_held and _is_trimmed_in_part(case, answer, alone.answers[1]):
            self._count("rolled back, trimmed in part")
        else:
            raise Failed(_differ("after a rollback", (answer, stored), alone))

    async def _commit(
        self, subject: Subject, case: Case, serial: dict[tuple[int, int], Course]
    ) -> None:
        transaction = self.sides[1].connection.transaction()
        await transaction.start()
        answers = [await self._call(case, subject, 1)]
        is_held = await self._is_held(subject, case.second)
        stored = self._untouched
        if not isinstance(answers[0], Refused):
            stored = await self._stored(self.sides[1], subject)
        running = asyncio.create_task(self._call(case, subject, 2))
        waited = await self._waits(running)
        if isinstance(answers[0], Refused):
            await transaction.rollback()
        else:
            await transaction.commit()
        answers.append(await asyncio.wait_for(running, 60))
        if waited and not case.may_wait:
            raise Failed(f"it waited: {answers}")
        course = Course((answers[0], answers[1]), await self._stored(self.side, subject))
        self._check_answers(course)
        if course == serial[1, 2]:
            self._count("waited" if waited else "first, then second")
            return
        if waited:
            raise Failed(_differ("after waiting", course, serial[1, 2]))
        if course == serial[2, 1]:
            self._count("second, then first")
            return
        if _is_judged_before_commit(case, course, serial[1, 2]):
            self._count("judged before the commit")
            return
        if is_held and _is_trimmed_in_part(case, answers[1], serial[1, 2].answers[1]):
            self._count("trimmed in part")
            return
        if not (is_held and self._is_passed(case, answers[1])):
            raise Failed(_differ("in neither order", course, serial[1, 2]))
        if (answers[0], course.stored) != (serial[1, 2].answers[0], stored):
            raise Failed(_differ("passed over, but changed", course, stored))
        # A claim with the same id would be told again that it found nothing.
        later = subject.anew()
        answer = await self._call(case, later, 2)
        stored = await self._stored(self.side, subject)
        told = repr((answer, stored)).replace(str(later.claims[2]), str(subject.claims[2]))
        if told != repr((serial[1, 2].answers[1], serial[1, 2].stored)):
            raise Failed(_differ("called again", (answer, stored), serial[1, 2]))
        self._count("passed over, then called again")

    async def _in_order(self, subject: Subject, case: Case, order: tuple[int, ...]) -> Course:
        """One after the other, then all undone."""
        connection = self.side.connection
        answers: dict[int, Any] = {}
        outer = connection.transaction()
        await outer.start()
        try:
            for n in order:
                inner = connection.transaction()
                await inner.start()
                answers[n] = await self._call(case, subject, n, self.side)
                if isinstance(answers[n], Refused):
                    await inner.rollback()
                else:
                    await inner.commit()
            stored = await self._stored(self.side, subject)
        finally:
            await outer.rollback()
        return Course((answers.get(1), answers.get(2)), stored)

    # Pieces

    async def _prepare(self, state: str) -> Subject:
        """An execution in the state: the last one, if nothing has happened to it."""
        if self._state != state or self._subject is None:
            await self._clear()
            key = secrets.token_bytes(32)
            await self.clock.freeze(START)
            made = await BUILDS[state](self.make, self.side, self.clock, key)
            other = made.other if isinstance(made, Beside) else None
            self._subject = Subject(
                id=made.id,
                lease=made.lease or _forged(made.id),
                key=key,
                claims={},
                other=other.id if other is not None else None,
                other_lease=other.lease if other is not None else None,
                flow=made.flow if isinstance(made, Beside) else None,
                edge=made.edge if isinstance(made, Beside) else None,
            )
            self._state = state
            self._untouched = await self._stored(self.side, self._subject)
            self._count("executions")
        self._subject = self._subject.anew()
        return self._subject

    async def _clear(self) -> None:
        if self._subject is not None:
            await self.db.forget(self._subject.id)
            if self._subject.other is not None:
                await self.db.forget(self._subject.other)
            await self.db.execute('delete from ff."grant"')
        if self._subject is not None and self._subject.flow is not None:
            await self.db.execute(_FORGET_FLOW)
        if self._state is not None and self._state in _LIMITED:
            await self.db.execute(_FORGET_GATES)
        self._state, self._subject = None, None

    async def _call(
        self, case: Case, subject: Subject, side: int, engine: Engine | None = None
    ) -> Any:
        name = case.first if side == 1 else case.second
        engine = engine or self.sides[side]
        try:
            if subject.flow is not None and name in _REPEATED:
                answer = await self._call_again(name, subject, side, engine)
            else:
                answer = await OPERATIONS[name].call(engine, subject, side)
            # who is locked is told later; see _stored
            if isinstance(answer, Outcome) and answer.detail == {"wakes_pending": True}:
                answer = replace(answer, detail=None)
            return answer
        except asyncpg.PostgresError as error:
            return Refused(error.sqlstate or "", error.detail or error.message or "")

    @staticmethod
    async def _call_again(name: str, subject: Subject, side: int, engine: Engine) -> Any:
        """Its flow changed while it waited: what a client repeats, once."""
        try:
            async with engine.connection.transaction():
                return await OPERATIONS[name].call(engine, subject, side)
        except asyncpg.SerializationError:
            async with engine.connection.transaction():
                return await OPERATIONS[name].call(engine, subject, side)

    @asynccontextmanager
    async def _holding(self, side: int, subject: Subject) -> AsyncIterator[None]:
        connection = self.sides[side].connection
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "select from ff.execution where partition_key = 0 and execution_id = $1 for update",
            subject.id,
        )
        try:
            yield
        finally:
            await transaction.rollback()

    async def _waits(
        self, running: asyncio.Task[Any], side: int = 2, behind: Collection[int] = (1,)
    ) -> bool:
        """Whether a side comes to wait for one of the others; returns when that is known."""
        pid = self.sides[side].connection.get_server_pid()
        others = [self.sides[n].connection.get_server_pid() for n in behind]
        deadline = monotonic() + PATIENCE_SECONDS
        while monotonic() < deadline:
            await asyncio.wait([running], timeout=0.003)
            if running.done():
                return False
            # Commits wait for one another where hints are queued; that is nobody's row.
            if await self.db.fetchval("select pg_blocking_pids($1) && $2::integer[]", pid, others):
                return True
        raise Failed("it neither ended nor waited for the other")

    async def _is_held(self, subject: Subject, second: str) -> bool:
        """Whether the second meets a lock. Only appends meet the lock of a stream."""
        held: bool = await self.side.connection.fetchval(
            _IS_HELD, subject.id, subject.other, second == "append_frames"
        )
        return held

    async def _stored(self, engine: Engine, subject: Subject) -> str:
        if subject.other is not None and subject.flow is None:
            await engine.resolve()
        if subject.flow is None:
            return await self._read(engine, subject)
        # What is left to do is done, looked at and undone: the case may not be over.
        transaction = engine.connection.transaction()
        await transaction.start()
        try:
            for _ in range(2):
                await engine.resolve()
                await engine._tick("ff.cancel_siblings", 100)
                if await engine.connection.fetchval("select count(*) from ff.flow"):
                    await _cancel_members(engine, subject)
            return await self._read(engine, subject)
        finally:
            await transaction.rollback()

    @staticmethod
    async def _read(engine: Engine, subject: Subject) -> str:
        text: str = await engine.connection.fetchval(_STORED, subject.id, subject.other)
        return text

    @staticmethod
    def _is_passed(case: Case, answer: Any) -> bool:
        passed = OPERATIONS[case.second].passed
        if isinstance(answer, Outcome):
            answer = answer.word
        return passed is not None and bool(answer == passed)

    def _check_answers(self, course: Course) -> None:
        for answer in course.answers:
            if isinstance(answer, Refused) and (
                answer.code in _FORBIDDEN or not answer.code.startswith("WF")
            ):
                raise Failed(f"{answer}")

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            raise Failed(problem)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _forged(execution_id: UUID) -> Lease:
    """A fence of an execution that was never leased."""
    return Lease(
        execution_id=execution_id,
        lease_id=uuid4(),
        epoch=1,
        attempt_id=uuid4(),
        attempt_index=0,
        attempt_type="initial",
        claim_kind="fresh",
        lease_expires_at=START,
        attempt_deadline_at=None,
        deadline_at=None,
        namespace="test",
        lane=LANE,
        task="tests.work",
        rank=0,
        order_at=START,
        retry_count=0,
        payload_encoding=None,
        payload=None,
        replay_count=0,
        trace_context=None,
        crash_count=0,
        generation=0,
    )


def _differ(when: str, got: object, wanted: object) -> str:
    return f"{when}\n  got    {got}\n  wanted {wanted}"
