"""The engine's SQL functions as Python calls, and executions in any state built through them.

    lease = await engine.claim_one()                    # a Lease, or None
    outcome = await engine.complete(lease, b"42")       # Outcome(word="completed", ...)
    retry = await engine.fail(lease, "transient")       # .word, .delayed_until, .next_attempt_index

    execution = await make.execution("retry_delayed")   # .id, .lease (the latest), .route
    row = await engine.row(execution.id)                # the row of ff.execution
    kinds = await engine.kinds(execution.id)            # ["submitted", "claimed", ...]

Calls name their arguments, as every client must. A refusal of the whole call raises what asyncpg
makes of its SQLSTATE; `with refused("WF001", field="limit"):` expects one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from uuid import UUID, uuid4

import asyncpg
import pytest

from .clock import Clock
from .database import Database

if TYPE_CHECKING:
    from .database import Connection, Record

NAMESPACE = "test"
LANE = "default"
TASK = "tests.work"
TTL = timedelta(seconds=30)

State: TypeAlias = Literal[
    "waiting",
    "delayed",
    "leased",
    "interrupted",
    "resumed",
    "retry_delayed",
    "retry_waiting",
    "retried",
    "expired_lease",
    "reclaim_delayed",
    "reclaimed",
    "completed",
    "failed",
    "over_the_cap",
    "delayed_by_worker",
    "waited",
    "awaiting",
    "asleep",
    "held",
    "blocked",
    "revoked",
    "cancelled",
    "cancelled_unstarted",
    "expired",
    "timed_out",
    "replayed",
]
STATES: tuple[State, ...] = get_args(State)

_last_id = count(secrets.randbits(40) << 20)


def new_id() -> UUID:
    """A UUIDv7: sortable by the millisecond it was made in, and here also by order of making."""
    milliseconds = time.time_ns() // 1_000_000
    low = next(_last_id) & ((1 << 62) - 1)
    return UUID(int=(milliseconds << 80) | (0x7 << 76) | (0b10 << 62) | low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One execution to submit; what is left out is null in the call."""

    route: int | None = None
    id: UUID | None = None
    payload: bytes | None = b"null"
    priority: int | None = None
    encoding: str | None = None
    delay: timedelta | None = None
    delayed_until: datetime | None = None
    deadline: timedelta | None = None
    deadline_at: datetime | None = None
    policy: str | Mapping[str, object] | None = None
    max_reclaims: int | None = None
    tags: str | Mapping[str, object] | None = None
    creator: str | None = None
    key: str | None = None
    fingerprint: bytes | None = None
    scope: str | None = None
    window: timedelta | None = None
    parent: UUID | None = None
    with_parent: bool | None = None
    trace: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """`created`, or why not; `id` is the execution that stands for the item."""

    word: str
    id: UUID | None
    detail: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a claim gave for one execution. `replace(lease, epoch=7)` forges one."""

    execution_id: UUID
    lease_id: UUID
    epoch: int
    attempt_id: UUID
    attempt_index: int
    attempt_type: str
    claim_kind: str
    lease_expires_at: datetime
    attempt_deadline_at: datetime | None
    deadline_at: datetime | None
    namespace: str
    lane: str
    task: str
    rank: int
    order_at: datetime
    retry_count: int
    payload_encoding: str | None
    payload: bytes | None
    replay_count: int
    trace_context: str | None
    crash_count: int
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The answer of a call that issues a grant, and the key it was asked with."""

    execution_id: UUID
    key: bytes
    word: str
    kind: str | None
    expires_at: datetime | None
    detail: Any = None


_CLAIMED = [field.name for field in fields(Lease) if field.name != "lease_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step to record; `kind` sleep wants a delay or an end."""

    name: str | None = "load"
    occurrence: int | None = 0
    position: int | None = 0
    sequential: bool | None = True
    kind: str | None = "step"
    value: bytes | None = None
    encoding: str | None = None
    delay: timedelta | None = None
    until: datetime | None = None
    follows: int | None = None
    code_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The answer to one step."""

    word: str
    recorded_at: datetime | None
    until_at: datetime | None
    value: bytes | None
    encoding: str | None
    attempt_index: int | None
    detail: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to one item of a fenced call."""

    word: str
    detail: Any = None
    delayed_until: datetime | None = None
    next_attempt_index: int | None = None
    public_state: str | None = None
    version: int | None = None
    open: int | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution in the state that was asked for. `lease` is its latest, live or not."""

    id: UUID
    route: int
    lease: Lease | None = None

    @property
    def last_lease(self) -> Lease:
        assert self.lease is not None, "this state has never been leased"
        return self.lease


@contextmanager
def refused(code: str, *, message: str | None = None, **detail: object) -> Iterator[None]:
    """Expects the whole call to be refused with this SQLSTATE, and these entries in its detail."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield
    assert caught.value.sqlstate == code, caught.value
    assert message in (None, caught.value.message), caught.value
    if detail:
        assert json.loads(caught.value.detail or "{}").items() >= detail.items()


class Engine:
    """The SQL functions on one connection, in one namespace of partition 0."""

    def __init__(
        self, connection: Connection, *, namespace: str | None = NAMESPACE, partition_key: int = 0
    ) -> None:
        self.connection = connection
        self.namespace = namespace
        self.partition_key = partition_key
        self._routes: dict[tuple[str, str, str, str | None], int] = {}

    def within(self, namespace: str | None) -> Engine:
        """The same connection as another tenant, or as an operator (None)."""
        return Engine(self.connection, namespace=namespace, partition_key=self.partition_key)

    # Routes

    async def register(
        self,
        *,
        lane: str = LANE,
        task: str = TASK,
        capabilities: str | None = "",
        namespace: str | None = None,
    ) -> int:
        """The id of a route, registered unless this object knows it already."""
        namespace = namespace or self.namespace or NAMESPACE
        route = (namespace, lane, task, capabilities)
        if route not in self._routes:
            (row,) = await self.register_many([route])
            assert row["outcome"] == "registered", dict(row)
            self._routes[route] = row["route_id"]
        return self._routes[route]

    async def register_many(
        self, routes: Sequence[tuple[str | None, str | None, str | None, str | None]]
    ) -> list[dict[str, Any]]:
        """Rows of register_routes in item order; a route is namespace, lane, task, capabilities."""
        namespaces, lanes, tasks, capabilities = (
            list(column) for column in zip(*routes, strict=True)
        )
        rows = await self.connection.fetch(
            "select item, route_id, outcome, detail from ff.register_routes("
            "p_namespaces => $1::text[], p_lanes => $2::text[], p_tasks => $3::text[], "
            "p_capabilities => $4::text[]) order by item",
            namespaces,
            lanes,
            tasks,
            capabilities,
        )
        return [dict(row) | {"detail": _json(row["detail"])} for row in rows]

    # Submit

    async def submit(self, item: Item | None = None, **changes: Any) -> Submitted:
        """Submit one execution, by default to the default route."""
        (answer,) = await self.submit_many([replace(item or Item(), **changes)])
        return answer

    async def submit_many(self, items: Sequence[Item], *, hint: bool = True) -> list[Submitted]:
        """Submit a batch; an array that no item needs is null, as the client does it."""
        if any(item.route is None for item in items):
            route = await self.register()
            items = [
                item if item.route is not None else replace(item, route=route) for item in items
            ]
        ids = [item.id or new_id() for item in items]
        rows = await self.connection.fetch(
            "select item, outcome, execution_id, detail from ff.submit_executions("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_route_ids => $4::bigint[], p_payloads => $5::bytea[], "
            "p_payload_encodings => $6::text[], p_priorities => $7::integer[], "
            "p_delays => $8::interval[], p_options => $9::jsonb[], p_hint => $10)",
            self.partition_key,
            self.namespace,
            ids,
            [item.route for item in items],
            [item.payload for item in items],
            _column(items, "encoding"),
            _column(items, "priority"),
            _column(items, "delay"),
            _options(items),
            hint,
        )
        answers = [Submitted(word="created", id=id_) for id_ in ids]
        for row in rows:
            assert answers[row["item"] - 1].word == "created", "two answers for one item"
            answers[row["item"] - 1] = Submitted(
                word=row["outcome"], id=row["execution_id"], detail=_json(row["detail"])
            )
        return answers

    # Claim

    async def claim(
        self,
        limit: int = 100,
        *,
        claim_id: UUID | None = None,
        worker: str = "pool",
        instance: str = "pool-1",
        lanes: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        ttl: timedelta | None = TTL,
        first_lane: str | None = None,
        floor: Lease | None = None,
        reports_starts: bool = False,
        versions: Sequence[str] | None = None,
        unserved: Sequence[int] | None = None,
        finish_only: bool = False,
    ) -> list[Lease]:
        """The leases of one claim, in the order in which the function returned them."""
        claim_id = claim_id or uuid4()
        rows = await self.connection.fetch(
            f"select {', '.join(_CLAIMED)} from ff.claim_executions("
            "p_partition_key => $1, p_namespace => $2, p_worker_id => $3, "
            "p_worker_instance_id => $4, p_claim_id => $5, p_lanes => $6::text[], "
            "p_tasks => $7::text[], p_capabilities => $8::text[], p_limit => $9, "
            "p_lease_ttl => $10, p_first_lane => $11, p_floor_rank => $12::smallint, "
            "p_floor_at => $13, p_floor_id => $14, p_reports_starts => $15, "
            "p_code_versions => $16::text[], p_unserved => $17::bigint[], p_finish_only => $18)",
            self.partition_key,
            self.namespace,
            worker,
            instance,
            claim_id,
            lanes,
            tasks,
            list(capabilities),
            limit,
            ttl,
            first_lane,
            floor.rank if floor else None,
            floor.order_at if floor else None,
            floor.execution_id if floor else None,
            reports_starts,
            versions,
            unserved,
            finish_only,
        )
        return [Lease(lease_id=claim_id, **row) for row in rows]

    async def claim_one(self, execution_id: UUID | None = None, **arguments: Any) -> Lease | None:
        """The next lease; with an id, that execution must be the one."""
        leases = await self.claim(1, **arguments)
        if execution_id is not None:
            assert [lease.execution_id for lease in leases] == [execution_id]
        return leases[0] if leases else None

    async def take(self, execution_id: UUID | None = None, **arguments: Any) -> Lease:
        """Like claim_one, but there must be one."""
        lease = await self.claim_one(execution_id, **arguments)
        assert lease is not None, "nothing to claim"
        return lease

    # Grants

    async def grant(
        self,
        execution_id: UUID | None,
        *,
        key: bytes | None = None,
        worker: str | None = "pool",
        instance: str | None = "pool-1",
        capabilities: Sequence[str | None] | None = (),
        ttl: timedelta | None = timedelta(seconds=10),
        function: str = "issue_claim_grant",
    ) -> Granted:
        """Grant an execution to a worker; `key` is made up unless given."""
        key = secrets.token_bytes(32) if key is None else key
        row = await self.connection.fetchrow(
            f"select outcome, kind, expires_at, detail from ff.{function}("
            "p_partition_key => $1, p_namespace => $2, p_execution_id => $3, p_key => $4, "
            "p_worker_id => $5, p_worker_instance_id => $6, p_capabilities => $7::text[], "
            "p_grant_ttl => $8)",
            self.partition_key,
            self.namespace,
            execution_id,
            key,
            worker,
            instance,
            None if capabilities is None else list(capabilities),
            ttl,
        )
        assert row is not None
        assert execution_id is not None
        return Granted(
            execution_id=execution_id,
            key=key,
            word=row["outcome"],
            kind=row["kind"],
            expires_at=row["expires_at"],
            detail=_json(row["detail"]),
        )

    async def grant_reclaim(self, execution_id: UUID | None, **arguments: Any) -> Granted:
        return await self.grant(execution_id, function="issue_reclaim_grant", **arguments)

    async def use(self, grant: Granted, **arguments: Any) -> Lease:
        """Claim with a grant of kind claim."""
        return await self._use("claim_execution", grant, **arguments)

    async def use_resume(self, grant: Granted, **arguments: Any) -> Lease:
        """Claim with a grant of kind resume."""
        return await self._use("claim_resumed_execution", grant, **arguments)

    async def use_reclaim(self, grant: Granted, **arguments: Any) -> tuple[str, Lease | None, Any]:
        """Claim with a grant of kind reclaim: the word, the lease if there is one, the detail."""
        lease_id, row = await self._show("reclaim_execution", grant, **arguments)
        lease = None
        if row["outcome"] == "reclaimed":
            lease = Lease(lease_id=lease_id, **{name: row[name] for name in _CLAIMED})
        return row["outcome"], lease, _json(row["detail"])

    async def grant_and_claim(
        self, execution_id: UUID | None, *, claim_id: UUID | None = None, ttl: Any = TTL
    ) -> Lease:
        claim_id = claim_id or uuid4()
        row = await self.connection.fetchrow(
            "select a.* from ff.issue_grant_and_claim(p_partition_key => $1, p_namespace => $2, "
            "p_execution_id => $3, p_claim_id => $4, p_lease_ttl => $5) a",
            self.partition_key,
            self.namespace,
            execution_id,
            claim_id,
            ttl,
        )
        assert row is not None
        return Lease(lease_id=claim_id, **{name: row[name] for name in _CLAIMED})

    async def reap(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """How many reap_grants handled, and the time to the next one."""
        return await self._tick("ff.reap_grants", limit)

    async def grants(self) -> list[Record]:
        """Every grant there is, live or not."""
        return await self.connection.fetch(
            'select * from ff."grant" where partition_key = $1 order by execution_id',
            self.partition_key,
        )

    async def _use(self, function: str, grant: Granted, **arguments: Any) -> Lease:
        lease_id, row = await self._show(function, grant, **arguments)
        return Lease(lease_id=lease_id, **{name: row[name] for name in _CLAIMED})

    async def _show(
        self,
        function: str,
        grant: Granted,
        *,
        claim_id: UUID | None = None,
        worker: str | None = "pool",
        instance: str | None = "pool-2",
        ttl: timedelta | None = TTL,
        **more: Any,
    ) -> tuple[UUID, Record]:
        named = {
            "p_partition_key": self.partition_key,
            "p_namespace": self.namespace,
            "p_execution_id": grant.execution_id,
            "p_key": grant.key,
            "p_worker_id": worker,
            "p_worker_instance_id": instance,
            "p_claim_id": claim_id or uuid4(),
            "p_lease_ttl": ttl,
            **{f"p_{name}": value for name, value in more.items()},
        }
        given = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
        row = await self.connection.fetchrow(
            f"select a.* from ff.{function}({given}) a", *named.values()
        )
        assert row is not None
        return named["p_claim_id"], row

    # Calls of a lease holder

    async def complete(
        self,
        lease: Lease,
        result: bytes | None = b"null",
        *,
        encoding: str | None = "json",
        wait: bool = False,
    ) -> Outcome:
        (answer,) = await self.complete_many([lease], [result], [encoding], wait=wait)
        return answer

    async def complete_many(
        self,
        leases: Sequence[Lease],
        results: Sequence[bytes | None] | None = None,
        encodings: Sequence[str | None] | None = None,
        *,
        wait: bool = False,
        hint: bool = True,
    ) -> list[Outcome]:
        rows = await self.connection.fetch(
            "select item, outcome, detail from ff.complete_executions("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
            "p_results => $7::bytea[], p_result_encodings => $8::text[], p_wait => $9, "
            "p_hint => $10)",
            *self._fences(leases),
            results,
            encodings,
            wait,
            hint,
        )
        return _outcomes(rows, len(leases), "completed")

    async def fail(
        self,
        lease: Lease,
        class_: str | None = "transient",
        reason: str | None = "it broke",
        *,
        category: str | None = None,
        detail: bytes | None = None,
        retry_delay: timedelta | None = None,
        retry_at: datetime | None = None,
        wait: bool = False,
    ) -> Outcome:
        (answer,) = await self.fail_many(
            *([lease], [class_], [reason], [category], [detail]),
            retry_delays=[retry_delay],
            retry_ats=[retry_at],
            wait=wait,
        )
        return answer

    async def fail_many(
        self,
        leases: Sequence[Lease],
        classes: Sequence[str | None],
        reasons: Sequence[str | None],
        categories: Sequence[str | None] | None = None,
        details: Sequence[bytes | None] | None = None,
        *,
        retry_delays: Sequence[timedelta | None] | None = None,
        retry_ats: Sequence[datetime | None] | None = None,
        wait: bool = False,
        hint: bool = True,
    ) -> list[Outcome]:
        rows = await self.connection.fetch(
            "select item, outcome, delayed_until, next_attempt_index, detail "
            "from ff.fail_executions("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
            "p_classes => $7::text[], p_reasons => $8::text[], p_categories => $9::text[], "
            "p_details => $10::bytea[], p_retry_delays => $11::interval[], "
            "p_retry_ats => $12::timestamptz[], p_wait => $13, p_hint => $14)",
            *self._fences(leases),
            classes,
            reasons,
            categories,
            details,
            retry_delays,
            retry_ats,
            wait,
            hint,
        )
        assert len(rows) == len(leases), "fail answers every item"
        return _outcomes(rows, len(leases), "")

    async def renew(self, lease: Lease, ttl: timedelta | None = TTL) -> Outcome:
        (answer,) = await self.renew_many([lease], ttl)
        return answer

    async def renew_many(
        self, leases: Sequence[Lease], ttl: timedelta | None = TTL
    ) -> list[Outcome]:
        rows = await self.connection.fetch(
            "select item, outcome, detail from ff.renew_leases("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
            "p_lease_ttl => $7)",
            *self._fences(leases),
            ttl,
        )
        return _outcomes(rows, len(leases), "renewed")

    async def start(self, lease: Lease, *, alone: bool | None = False) -> Outcome:
        (answer,) = await self.start_many([lease], alone=alone)
        return answer

    async def start_many(
        self, leases: Sequence[Lease], *, alone: bool | None = False
    ) -> list[Outcome]:
        rows = await self.connection.fetch(
            "select item, outcome, detail from ff.start_executions("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
            "p_alones => $7::boolean[])",
            *self._fences(leases),
            [alone] * len(leases),
        )
        return _outcomes(rows, len(leases), "started")

    async def release(
        self, lease: Lease, cause: str | None = "worker_shutdown", *, wait: bool = False
    ) -> Outcome:
        (answer,) = await self.release_many([lease], cause, wait=wait)
        return answer

    async def release_many(
        self,
        leases: Sequence[Lease],
        cause: str | None = "worker_shutdown",
        *,
        wait: bool = False,
    ) -> list[Outcome]:
        rows = await self.connection.fetch(
            "select item, outcome, detail from ff.release_leases("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
            "p_cause => $7, p_wait => $8)",
            *self._fences(leases),
            cause,
            wait,
        )
        return _outcomes(rows, len(leases), "released")

    async def delay(
        self,
        lease: Lease,
        delay: timedelta | None = timedelta(hours=1),
        *,
        until: datetime | None = None,
        newer_step: str | None = None,
    ) -> Outcome:
        given = {"p_delay": delay, "p_delayed_until": until, "p_newer_step": newer_step}
        return await self._fenced("delay_execution", lease, **given)

    async def wait_children(self, lease: Lease) -> Outcome:
        return await self._fenced("wait_children", lease)

    async def wait_for(
        self, lease: Lease, targets: Sequence[UUID | None] | None, k: int | None = None
    ) -> Outcome:
        """Wait until k of the targets have ended; without k, all."""
        return await self._fenced("wait_for_runs", lease, p_targets=targets, p_k=k)

    async def record(self, lease: Lease, step: Step | None = None, **changes: Any) -> Recorded:
        """Record one step."""
        (answer,) = await self.record_many([(lease, replace(step or Step(), **changes))])
        return answer

    async def record_many(
        self, items: Sequence[tuple[Lease, Step]], *, wait: bool = False
    ) -> list[Recorded]:
        rows = await self.connection.fetch(
            "select item, outcome, recorded_at, until_at, value, encoding, attempt_index, detail "
            "from ff.record_steps("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
            "p_names => $7::text[], p_occurrences => $8::integer[], p_positions => $9::integer[], "
            "p_sequentials => $10::boolean[], p_kinds => $11::text[], p_values => $12::bytea[], "
            "p_encodings => $13::text[], p_delays => $14::interval[], "
            "p_untils => $15::timestamptz[], p_follows => $16::integer[], "
            "p_code_versions => $17::text[], p_wait => $18)",
            *self._fences([lease for lease, _ in items]),
            *([getattr(step, field.name) for _, step in items] for field in fields(Step)[:-1]),
            versions if any(versions := [step.code_version for _, step in items]) else None,
            wait,
        )
        assert [row["item"] for row in rows] == list(range(1, len(items) + 1))
        return [
            Recorded(
                word=row["outcome"],
                detail=_json(row["detail"]),
                **{
                    name: row[name]
                    for name in ("recorded_at", "until_at", "value", "encoding", "attempt_index")
                },
            )
            for row in rows
        ]

    async def steps(self, execution_id: UUID) -> list[Record]:
        """The journal, as list_steps shows it."""
        return await self.connection.fetch(
            "select s.* from ff.list_steps($1, $2, $3) s",
            self.partition_key,
            self.namespace,
            [execution_id],
        )

    async def waits(self, execution_id: UUID) -> list[Record]:
        """What an execution waits for: the rows of its present wait."""
        return await self.connection.fetch(
            "select * from ff.run_wait where partition_key = $1 and waiter_id = $2 "
            "order by target_id",
            self.partition_key,
            execution_id,
        )

    async def hold(
        self, lease: Lease, reason: str | None = "the code changed", step: str | None = None
    ) -> Outcome:
        return await self._fenced("hold_execution", lease, p_reason=reason, p_step=step)

    async def continue_as(
        self, lease: Lease, payload: bytes | None = b"[]", encoding: str | None = None
    ) -> Outcome:
        return await self._fenced(
            "continue_execution", lease, p_payload=payload, p_payload_encoding=encoding
        )

    async def progress(
        self, lease: Lease, percent: int | None = None, message: str | None = None
    ) -> Outcome:
        return await self._fenced("report_progress", lease, p_percent=percent, p_message=message)

    async def cancel_held(self, lease: Lease, reason: str | None = None) -> Outcome:
        """Cancelled by the holder of the lease."""
        return await self._fenced(
            "cancel_execution", lease, p_reason=reason, p_source="lease_holder"
        )

    async def _fenced(self, function: str, lease: Lease, **arguments: Any) -> Outcome:
        """One fenced call on one execution."""
        return await self._single(
            function,
            lease.execution_id,
            p_lease_id=lease.lease_id,
            p_epoch=lease.epoch,
            p_attempt_id=lease.attempt_id,
            **arguments,
        )

    # Calls of an operator

    async def cancel(self, execution_id: UUID | None, **arguments: Any) -> Outcome:
        return await self._single("cancel_execution", execution_id, **_given(arguments))

    async def revoke(self, execution_id: UUID | None, **arguments: Any) -> Outcome:
        return await self._single("revoke_lease", execution_id, **_given(arguments))

    async def change_priority(
        self, execution_id: UUID | None, priority: int | None, **arguments: Any
    ) -> Outcome:
        return await self._single(
            "change_priority", execution_id, p_priority=priority, **_given(arguments)
        )

    async def replay(self, execution_id: UUID | None, **arguments: Any) -> Outcome:
        return await self._single("replay_execution", execution_id, **_given(arguments))

    async def retry(self, execution_id: UUID | None, **arguments: Any) -> Outcome:
        return await self._single("retry_execution", execution_id, **_given(arguments))

    async def block(
        self, execution_id: UUID | None, reason: str | None = "paused_by_operator", **more: Any
    ) -> Outcome:
        return await self._single(
            "block_execution_for_admission",
            execution_id,
            p_blocking_reason=reason,
            **_given(more),
        )

    async def unblock(self, execution_id: UUID | None, **arguments: Any) -> Outcome:
        return await self._single("unblock_execution", execution_id, **_given(arguments))

    async def _single(self, function: str, execution_id: UUID | None, **arguments: Any) -> Outcome:
        """A call on one execution; its one row of an answer."""
        named = {
            "p_partition_key": self.partition_key,
            "p_namespace": self.namespace,
            "p_execution_id": execution_id,
            **arguments,
        }
        given = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
        row = await self.connection.fetchrow(
            f"select a.* from ff.{function}({given}) a", *named.values()
        )
        assert row is not None, "a single call has an answer"
        return Outcome(
            word=row["outcome"],
            detail=_json(row["detail"]),
            delayed_until=row.get("delayed_until"),
            public_state=row.get("public_state"),
            version=row.get("version"),
            open=row.get("open"),
            generation=row.get("generation"),
        )

    # Time

    async def expire_executions(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """How many expire_executions handled, and the time to the next due row."""
        return await self._tick("ff.expire_executions", limit)

    async def resolve(self, limit: int | None = 100) -> tuple[int, timedelta | None]:
        """How many resolve_wakes told, and how soon there is more to do."""
        return await self._tick("ff.resolve_wakes", limit)

    async def promote(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """How many promote_delayed handled, and the time to the next due row."""
        return await self._tick("ff.promote_delayed", limit)

    async def expire(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """How many expire_leases handled, and the time to the next due row."""
        return await self._tick("ff.expire_leases", limit)

    async def _tick(self, function: str, limit: int | None) -> tuple[int, timedelta | None]:
        row = await self.connection.fetchrow(
            f"select handled, due_in from {function}(p_partition_key => $1, p_limit => $2)",
            self.partition_key,
            limit,
        )
        assert row is not None
        return row["handled"], row["due_in"]

    # Reads

    async def results(self, ids: Sequence[UUID]) -> dict[UUID, Record]:
        """The answers of read_results, by execution."""
        rows = await self.connection.fetch(
            "select r.* from ff.read_results(p_partition_key => $1, p_namespace => $2, "
            "p_execution_ids => $3::uuid[]) r",
            self.partition_key,
            self.namespace,
            ids,
        )
        return {row["execution_id"]: row for row in rows}

    async def row(self, execution_id: UUID | None) -> Record:
        """The execution's row, whole."""
        row: Record | None = await self.connection.fetchrow(
            "select * from ff.execution where partition_key = $1 and execution_id = $2",
            self.partition_key,
            execution_id,
        )
        assert row is not None, f"no execution {execution_id}"
        return row

    async def rows(self) -> list[Record]:
        """Every execution of the partition, in id order."""
        return await self.connection.fetch(
            "select * from ff.execution where partition_key = $1 order by execution_id",
            self.partition_key,
        )

    async def events(self, execution_id: UUID | None = None) -> list[Record]:
        """The events of one execution in order of version, or of all in order of writing."""
        return await self.connection.fetch(
            "select * from ff.event where partition_key = $1 "
            "and ($2::uuid is null or execution_id = $2) order by generation, event_id",
            self.partition_key,
            execution_id,
        )

    async def kinds(self, execution_id: UUID | None = None) -> list[str]:
        return [event["kind"] for event in await self.events(execution_id)]

    async def attempts(self, execution_id: UUID) -> list[Record]:
        """The attempts that ended before the latest one, from the history table."""
        return await self.connection.fetch(
            "select * from ff.attempt where partition_key = $1 and execution_id = $2 "
            "order by attempt_index",
            self.partition_key,
            execution_id,
        )

    async def snapshot(self) -> list[tuple[Any, ...]]:
        """All that is stored, to see that a call wrote nothing."""
        tables = (
            "execution",
            "execution_body",
            "attempt",
            "event",
            "idempotency_key",
            "claim_slot",
            '"grant"',
            "step",
            "run_wait",
        )
        return [
            (table, tuple(row))
            for table in tables
            for row in await self.connection.fetch(f"select t.* from ff.{table} t order by t::text")
        ]

    def _fences(self, leases: Sequence[Lease]) -> tuple[Any, ...]:
        return (
            self.partition_key,
            self.namespace,
            [lease.execution_id for lease in leases],
            [lease.lease_id for lease in leases],
            [lease.epoch for lease in leases],
            [lease.attempt_id for lease in leases],
        )


class Factory:
    """Builds executions in every state that can be reached, through the public functions alone.

    It moves the clock for the states that need time to pass (so build those first: other leases age
    with them). Executions that wait for a worker in the same lane would get in its way, so each
    gets a lane of its own unless told otherwise.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._lanes = count(1)

    async def execution(
        self,
        state: State = "waiting",
        *,
        lane: str | None = None,
        ttl: timedelta = TTL,
        **item: Any,
    ) -> Execution:
        """An execution in `state`; `item` takes the fields of Item."""
        lane = lane or f"lane-{next(self._lanes)}"
        if "route" not in item:
            item["route"] = await self._engine.register(lane=lane)
        policy = dict(item.pop("policy", None) or {})
        if state in ("retry_delayed", "retry_waiting", "retried"):
            policy.setdefault("retry_policy", {"max_retries": 3})
        if state == "over_the_cap":
            policy["max_reclaim_count"] = 0
        if state == "delayed":
            item.setdefault("delay", timedelta(hours=1))
        if state == "expired":
            item.setdefault("deadline", timedelta(hours=2))
        if state == "timed_out":
            policy.setdefault("timeout_policy", {"attempt_timeout_ms": 7_200_000})
            ttl = timedelta(hours=3)
        submitted = await self._engine.submit(**item, policy=policy or None)
        assert submitted.word == "created", submitted
        assert submitted.id is not None
        execution = Execution(id=submitted.id, route=item["route"])
        match state:
            case "waiting" | "delayed":
                return execution
            case "blocked":
                assert (await self._engine.block(execution.id, actor="op")).word == "blocked"
                return execution
            case "cancelled_unstarted":
                assert (await self._engine.cancel(execution.id)).word == "cancelled"
                return execution
            case "expired":
                await self._clock.advance(hours=2)
                assert (await self._engine.expire_executions())[0] == 1
                return execution
        lease = await self._lease(execution, lane, ttl)
        return replace(execution, lease=await self._lead(execution, lane, ttl, lease, state))

    async def _lease(self, execution: Execution, lane: str, ttl: timedelta) -> Lease:
        return await self._engine.take(execution.id, lanes=[lane], ttl=ttl)

    async def _lead(
        self, execution: Execution, lane: str, ttl: timedelta, lease: Lease, state: State
    ) -> Lease:
        """Lead a freshly leased execution on to its state; returns its latest lease."""
        engine = self._engine
        match state:
            case "completed":
                assert (await engine.complete(lease)).word == "completed"
            case "failed":
                assert (await engine.fail(lease, "permanent")).word == "failed"
            case "interrupted":
                assert (await engine.release(lease)).word == "released"
            case "delayed_by_worker":
                assert (await engine.delay(lease)).word == "delayed"
            case "waited":
                assert (await engine.wait_children(lease)).word == "waiting"
            case "awaiting":
                # for another that never ends
                other = await engine.submit(
                    route=await engine.register(lane=f"{lane}-awaited"), delay=timedelta(days=1)
                )
                assert (await engine.wait_for(lease, [other.id])).word == "waiting"
            case "asleep":
                nap = await engine.record(lease, name="nap", kind="sleep", delay=timedelta(hours=1))
                assert (await engine.delay(lease, None, until=nap.until_at)).word == "delayed"
            case "held":
                assert (await engine.hold(lease)).word == "held"
            case "revoked":
                assert (await engine.revoke(execution.id)).word == "revoked"
            case "cancelled":
                assert (await engine.cancel(execution.id)).word == "cancelled"
            case "timed_out":
                await self._clock.advance(hours=2)
                assert (await engine.expire_executions())[0] == 1
            case "replayed":
                assert (await engine.complete(lease)).word == "completed"
                assert (await engine.replay(execution.id)).word == "replayed"
            case "resumed":
                await engine.release(lease)
                return await self._lease(execution, lane, ttl)
            case "retry_delayed" | "retry_waiting" | "retried":
                retry = await engine.fail(lease, "transient")
                assert retry.word == "retry_scheduled", retry
                if state != "retry_delayed":
                    assert retry.delayed_until is not None
                    await self._clock.advance(retry.delayed_until - await self._clock.now())
                    await engine.promote()
                if state == "retried":
                    return await self._lease(execution, lane, ttl)
            case "expired_lease" | "reclaimed" | "over_the_cap":
                await self._let_expire(ttl)
                if state == "reclaimed":
                    return await self._lease(execution, lane, ttl)
                if state == "over_the_cap":
                    assert await engine.claim(1, lanes=[lane]) == []
            case "reclaim_delayed":
                for _ in range(2):
                    await self._let_expire(ttl)
                    lease = await self._lease(execution, lane, ttl)
                await self._let_expire(ttl)
        return lease

    async def _let_expire(self, ttl: timedelta) -> None:
        await self._clock.advance(ttl)
        await self._engine.expire()


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {f"p_{name}": value for name, value in arguments.items()}


def _column(items: Sequence[Item], name: str) -> list[Any] | None:
    values = [getattr(item, name) for item in items]
    return None if all(value is None for value in values) else values


def _options(items: Sequence[Item]) -> list[str | None] | None:
    """The rare fields, one object an item, as the client writes them."""
    options = [options_of(item) for item in items]
    return [json.dumps(one) if one else None for one in options] if any(options) else None


def options_of(item: Item) -> dict[str, Any]:
    """What an item has of the options of submit_executions."""
    found = {
        "delayed_until": item.delayed_until and item.delayed_until.isoformat(),
        "deadline_ms": _milliseconds(item.deadline),
        "deadline_at": item.deadline_at and item.deadline_at.isoformat(),
        "policy": item.policy,
        "max_reclaims": item.max_reclaims,
        "tags": item.tags,
        "creator": item.creator,
        "key": item.key,
        "key_fingerprint": None if item.fingerprint is None else item.fingerprint.hex(),
        "key_scope": item.scope,
        "key_window_ms": _milliseconds(item.window),
        "parent_id": item.parent and str(item.parent),
        "with_parent": item.with_parent,
        "trace_context": item.trace,
        "task_version": item.version,
    }
    return {name: value for name, value in found.items() if value is not None}


def _milliseconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration / timedelta(milliseconds=1)


def _outcomes(rows: Sequence[Record], size: int, silent: str) -> list[Outcome]:
    answers: list[Outcome | None] = [None] * size
    for row in rows:
        assert answers[row["item"] - 1] is None, "two answers for one item"
        answers[row["item"] - 1] = Outcome(
            word=row["outcome"],
            detail=_json(row["detail"]),
            delayed_until=row.get("delayed_until"),
            next_attempt_index=row.get("next_attempt_index"),
        )
    return [answer or Outcome(word=silent) for answer in answers]


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


@pytest.fixture
def engine(db: Database) -> Engine:
    return Engine(db.conn)


@pytest.fixture
def make(engine: Engine, clock: Clock) -> Factory:
    return Factory(engine, clock)
