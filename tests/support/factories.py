"""The SQL functions as Python calls, and a factory that builds executions in any state.

    lease = await engine.claim_one()                    # a Lease, or None
    outcome = await engine.complete(lease, b"42")       # Outcome(word="completed", ...)
    retry = await engine.fail(lease, "transient")       # .word, .delayed_until, .next_attempt_index

    execution = await make.execution("retry_delayed")   # .id, .lease (the latest), .route
    row = await engine.row(execution.id)                # the row of ff.execution
    kinds = await engine.kinds(execution.id)            # ["submitted", "claimed", ...]

Calls name their arguments, as every client must. If a whole call is refused, asyncpg raises an
error with the SQLSTATE. `with refused("WF001", field="limit"):` expects such an error.
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

from flowfabric.core.ids import PartitionedId

from .clock import Clock
from .database import Database, home

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
    "suspended",
    "blocked",
    "revoked",
    "cancelled",
    "cancelled_unstarted",
    "expired",
    "timed_out",
    "replayed",
]
STATES: tuple[State, ...] = get_args(State)

# Every row of the tables that calls write to.
_STORED = " union all ".join(
    f"select '{table}', t::text from ff.\"{table}\" t"
    for table in (
        "execution",
        "execution_body",
        "attempt",
        "event",
        "idempotency_key",
        "claim_slot",
        "grant",
        "step",
        "run_wait",
    )
)

_last_id = count(secrets.randbits(40) << 20)


def new_id() -> UUID:
    """Return a UUIDv7. Later ids are greater, even within one millisecond."""
    milliseconds = time.time_ns() // 1_000_000
    low = next(_last_id) & ((1 << 62) - 1)
    return UUID(int=(milliseconds << 80) | (0x7 << 76) | (0b10 << 62) | low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One execution to submit. Omitted fields are null in the call."""

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
    key_partitions: int | None = None
    parent: UUID | None = None
    with_parent: bool | None = None
    trace: str | None = None
    version: str | None = None
    quotas: tuple[int, ...] | None = None
    budgets: tuple[int, ...] | None = None
    fair_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The answer to a submitted item. `id` is the new or the existing execution."""

    word: str
    id: UUID | None
    detail: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease that a claim returned. `replace(lease, epoch=7)` forges one."""

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
class Asked:
    """The answer of ask_waits for one wait."""

    word: str
    detail: Any
    recorded_at: datetime | None
    until_at: datetime | None
    ready_at: datetime | None
    taken_as: str | None
    signal_ids: list[UUID] | None
    value: bytes | None
    encoding: str | None
    attempt_index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The answer of deliver_signals for one signal."""

    word: str
    signal_id: UUID | None
    effect: str | None
    detail: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The answer of a call that issues a grant, and the key of that call."""

    execution_id: UUID
    key: bytes
    word: str
    kind: str | None
    expires_at: datetime | None
    detail: Any = None


_CLAIMED = [field.name for field in fields(Lease) if field.name != "lease_id"]
# What an array of ff.claim_executions means that is null.
_USUAL = {
    "claim_kind": "fresh",
    "epoch": 1,
    "attempt_index": 0,
    "attempt_type": "initial",
    "retry_count": 0,
    "replay_count": 0,
    "crash_count": 0,
    "generation": 0,
}


def claimed_leases(row: Record | None, claim_id: UUID) -> list[Lease]:
    """The leases that a row of ff.claim_executions holds, in its order."""
    if row is None:
        return []
    count = len(row["execution_ids"])
    columns: dict[str, Sequence[Any]] = {}
    for name in _CLAIMED:
        values = row["attempt_indexes" if name == "attempt_index" else f"{name}s"]
        if name in ("namespace", "lane", "task"):
            values = [values[no - 1] for no in row["route_nos"] or [1] * count]
        elif values is None:
            values = [claim_id if name == "attempt_id" else _USUAL.get(name)] * count
        elif name == "lease_expires_at" and len(values) == 1:
            values = values * count
        columns[name] = values
    return [
        Lease(lease_id=claim_id, **{name: columns[name][n] for name in _CLAIMED})
        for n in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step to record. A sleep needs a delay or an end."""

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
    timeout_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution in the requested state. `lease` is its latest lease, live or not."""

    id: UUID
    route: int
    lease: Lease | None = None

    @property
    def last_lease(self) -> Lease:
        assert self.lease is not None, "this state has never been leased"
        return self.lease


@contextmanager
def refused(code: str, *, message: str | None = None, **detail: object) -> Iterator[None]:
    """Expect that the whole call is refused with this SQLSTATE and these entries in its detail."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield
    assert caught.value.sqlstate == code, caught.value
    assert message in (None, caught.value.message), caught.value
    if detail:
        assert json.loads(caught.value.detail or "{}").items() >= detail.items()


class Engine:
    """The SQL functions on one connection, in one namespace of one partition, by default home()."""

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str | None = NAMESPACE,
        partition_key: int | None = None,
    ) -> None:
        self.connection = connection
        self.namespace = namespace
        self.partition_key = home() if partition_key is None else partition_key
        self._routes: dict[tuple[str, str, str, str | None], int] = {}

    @classmethod
    def of(cls, connection: Connection, id: PartitionedId, **options: Any) -> Engine:
        """The functions in the partition of an execution or a flow."""
        return cls(connection, partition_key=id.partition_key, **options)

    async def everywhere(self) -> list[Engine]:
        """The same for each partition there is."""
        number = await self.connection.fetchval("select partitions from ff.installation")
        return [
            Engine(self.connection, namespace=self.namespace, partition_key=one)
            for one in range(number)
        ]

    def within(self, namespace: str | None) -> Engine:
        """Return an engine on the same connection for another tenant, or for an operator (None)."""
        return Engine(self.connection, namespace=namespace, partition_key=self.partition_key)

    def on(self, connection: Connection) -> Engine:
        """The same tenant on another connection."""
        return Engine(connection, namespace=self.namespace, partition_key=self.partition_key)

    # Routes

    async def register(
        self,
        *,
        lane: str = LANE,
        task: str = TASK,
        capabilities: str | None = "",
        namespace: str | None = None,
    ) -> int:
        """Return the id of a route. Register it unless this object knows it."""
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
        """Return the rows of register_routes in item order.

        A route is namespace, lane, task, capabilities.
        """
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
        """Submit a batch. An array that no item needs is null, as in the client."""
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
        """Return the leases of one claim, in the order of the function."""
        claim_id = claim_id or uuid4()
        row = await self.connection.fetchrow(
            "select * from ff.claim_executions("
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
        return claimed_leases(row, claim_id)

    async def claim_one(self, execution_id: UUID | None = None, **arguments: Any) -> Lease | None:
        """Claim the next lease. With an id, the lease must be for that execution."""
        leases = await self.claim(1, **arguments)
        if execution_id is not None:
            assert [lease.execution_id for lease in leases] == [execution_id]
        return leases[0] if leases else None

    async def take(self, execution_id: UUID | None = None, **arguments: Any) -> Lease:
        """Claim the next lease, and fail if there is none."""
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
        """Grant an execution to a worker. Without `key`, make one up."""
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
        """Claim with a grant of kind reclaim. Return the word, the lease if any, and the detail."""
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
        """Return how many grants reap_grants handled, and the time to the next one."""
        return await self._tick("ff.reap_grants", limit)

    async def grants(self) -> list[Record]:
        """Return every grant, live or not."""
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

    async def complete_alike(
        self, ids: Sequence[UUID], fence: Lease, result: bytes | None = None
    ) -> list[Outcome]:
        """Complete executions that share the rest of the fence and the result, given once."""
        rows = await self.connection.fetch(
            "select item, outcome, detail from ff.complete_executions("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => null, p_epochs => null, p_attempt_ids => null, p_results => null, "
            "p_lease_id => $4, p_epoch => $5, p_attempt_id => $6, p_result => $7)",
            self.partition_key,
            self.namespace,
            ids,
            fence.lease_id,
            fence.epoch,
            fence.attempt_id,
            result,
        )
        return _outcomes(rows, len(ids), "completed")

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
            "p_are_alone => $7::boolean[])",
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
        """Let the execution wait until k of the targets have ended; without k, all of them."""
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
            "p_are_sequential => $10::boolean[], p_kinds => $11::text[], p_values => $12::bytea[], "
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
        """Return the journal, as list_steps shows it."""
        return await self.connection.fetch(
            "select s.* from ff.list_steps($1, $2, $3) s",
            self.partition_key,
            self.namespace,
            [execution_id],
        )

    async def waits(self, execution_id: UUID) -> list[Record]:
        """Return the rows of an execution's present wait."""
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
        """Cancel an execution as the holder of its lease."""
        return await self._fenced(
            "cancel_execution", lease, p_reason=reason, p_source="lease_holder"
        )

    async def _fenced(self, function: str, lease: Lease, **arguments: Any) -> Outcome:
        """Make one fenced call on one execution."""
        return await self._single(
            function,
            lease.execution_id,
            p_lease_id=lease.lease_id,
            p_epoch=lease.epoch,
            p_attempt_id=lease.attempt_id,
            **arguments,
        )

    async def ask(
        self,
        lease: Lease,
        signal: str = "approve",
        occurrence: int = 0,
        *,
        name: str | None = None,
        position: int = 0,
        timeout: timedelta | None = None,
        take: bool | None = False,
        condition: object = None,
        sequential: bool = True,
        wait: bool = False,
        code_version: str | None = None,
    ) -> Asked:
        """Ask for the answer of one wait; its name is that of the signal."""
        (row,) = await self.connection.fetch(
            "select * from ff.ask_waits("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
            "p_names => $7::text[], p_occurrences => $8::integer[], p_positions => $9::integer[], "
            "p_are_sequential => $10::boolean[], p_conditions => $11::jsonb[], "
            "p_timeouts => $12::interval[], p_takes => $13::boolean[], p_wait => $14, "
            "p_code_versions => $15::text[])",
            *self._fences([lease]),
            [signal if name is None else name],
            [occurrence],
            [position],
            [sequential],
            [json.dumps({"signal": signal} if condition is None else condition)],
            [timeout],
            [take],
            wait,
            None if code_version is None else [code_version],
        )
        return Asked(
            word=row["outcome"],
            detail=_json(row["detail"]),
            **{field.name: row[field.name] for field in fields(Asked)[2:]},
        )

    async def suspend(self, lease: Lease, *waits: str | tuple[str, int], **given: Any) -> Outcome:
        """Suspend until one of the waits is ready; `given` are further arguments."""
        several = [(one, 0) if isinstance(one, str) else one for one in waits]
        return await self._fenced(
            "suspend_execution",
            lease,
            **{
                "p_suspension_id": new_id(),
                "p_wait_names": [name for name, _ in several],
                "p_wait_occurrences": [occurrence for _, occurrence in several],
                **{f"p_{name}": value for name, value in given.items()},
            },
        )

    async def signal(
        self,
        execution_id: UUID | None,
        name: str | None = "approve",
        payload: bytes | None = b"true",
        **given: Any,
    ) -> Delivered:
        """Deliver one signal by name."""
        item = {"execution_id": execution_id, "name": name, "payload": payload, **given}
        shared = {key: item.pop(key) for key in ("join", "wait") if key in item}
        return (await self.signal_many([item], **shared))[0]

    async def signal_many(
        self, items: Sequence[Mapping[str, Any]], *, join: bool = False, wait: bool = False
    ) -> list[Delivered]:
        def column(name: str, default: Any = None) -> list[Any]:
            return [item.get(name, default() if callable(default) else default) for item in items]

        keys = column("dedup_key")
        tokens = column("token")
        rows = await self.connection.fetch(
            "select * from ff.deliver_signals("
            "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
            "p_signal_ids => $4::uuid[], p_names => $5::text[], p_payloads => $6::bytea[], "
            "p_dedup_keys => $7::text[], p_source_types => $8::text[], "
            "p_source_identities => $9::text[], p_payload_encodings => $10::text[], "
            "p_categories => $11::text[], p_correlation_ids => $12::text[], "
            "p_is_transactional => $13, p_wait => $14, p_tokens => $15::text[])",
            self.partition_key,
            self.namespace,
            column("execution_id"),
            column("signal_id", new_id),
            column("name", "approve"),
            column("payload", b"true"),
            keys if any(key is not None for key in keys) else None,
            column("source_type"),
            column("source_identity"),
            column("encoding"),
            column("category"),
            column("correlation_id"),
            join,
            wait,
            tokens if any(token is not None for token in tokens) else None,
        )
        assert [row["item"] for row in rows] == list(range(1, len(items) + 1))
        return [
            Delivered(
                word=row["outcome"],
                signal_id=row["signal_id"],
                effect=row["effect"],
                detail=_json(row["detail"]),
            )
            for row in rows
        ]

    async def waitpoint(
        self, lease: Lease, key: str | None = "payment", **given: Any
    ) -> tuple[UUID, str]:
        """Create a waitpoint; returns its id and token."""
        id = given.pop("waitpoint_id", None) or uuid4()
        arguments = {f"p_{name}": value for name, value in given.items()}
        row = await self.connection.fetchrow(
            "select * from ff.create_waitpoint(p_partition_key => $1, p_namespace => $2, "
            "p_execution_id => $3, p_lease_id => $4, p_epoch => $5, p_attempt_id => $6, "
            "p_waitpoint_id => $7, p_key => $8"
            + "".join(f", {name} => ${n}" for n, name in enumerate(arguments, 9))
            + ")",
            self.partition_key,
            self.namespace,
            lease.execution_id,
            lease.lease_id,
            lease.epoch,
            lease.attempt_id,
            id,
            key,
            *arguments.values(),
        )
        assert row is not None
        return id, row["token"] or row["outcome"]

    async def waitpoints(self, execution_id: UUID, **given: Any) -> list[Record]:
        """The open waitpoints of an execution."""
        return await self.connection.fetch(
            "select w.* from ff.list_pending_waitpoints($1, $2, $3, $4, $5) w",
            self.partition_key,
            self.namespace,
            execution_id,
            given.get("after"),
            given.get("limit", 100),
        )

    async def signals(self, execution_id: UUID, **given: Any) -> list[Record]:
        """The signals of an execution, as list_signals shows them."""
        return await self.connection.fetch(
            "select s.* from ff.list_signals($1, $2, $3, $4, $5) s",
            self.partition_key,
            self.namespace,
            execution_id,
            given.get("after"),
            given.get("limit", 100),
        )

    async def observed(self, lease: Lease) -> list[Record]:
        """What observe_signals shows the holder."""
        return await self.connection.fetch(
            "select s.* from ff.observe_signals($1, $2, $3, $4, $5, $6) s",
            self.partition_key,
            self.namespace,
            lease.execution_id,
            lease.lease_id,
            lease.epoch,
            lease.attempt_id,
        )

    async def suspensions(self, execution_id: UUID) -> list[Record]:
        """The suspensions of an execution, first to latest."""
        return await self.connection.fetch(
            "select * from ff.suspension where partition_key = $1 and execution_id = $2 "
            "order by suspended_at",
            self.partition_key,
            execution_id,
        )

    async def list_suspended(self, **given: Any) -> list[Record]:
        return await self.connection.fetch(
            "select s.* from ff.list_suspended($1, $2, $3, $4, $5) s",
            self.partition_key,
            self.namespace,
            given.get("after_at"),
            given.get("after_id"),
            given.get("limit", 100),
        )

    async def notice(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """Notice the signals that were stored without a lock."""
        return await self._tick("ff.notice_signals", limit)

    async def time_out(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """Apply the timeouts of suspensions."""
        return await self._tick("ff.expire_suspensions", limit)

    # Calls of an operator

    async def resume(self, execution_id: UUID | None, **arguments: Any) -> Outcome:
        return await self._single("resume_execution", execution_id, **_given(arguments))

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
        """Make a call on one execution, and return the one row of its answer."""
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
            timeout_at=row.get("timeout_at"),
        )

    # Time

    async def expire_executions(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """Return how many rows expire_executions handled, and the time to the next due row."""
        return await self._tick("ff.expire_executions", limit)

    async def resolve(self, limit: int | None = 100) -> tuple[int, timedelta | None]:
        """Return how many rows resolve_wakes handled, and the time until there is more to do."""
        return await self._tick("ff.resolve_wakes", limit)

    async def promote(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """Return how many rows promote_delayed handled, and the time to the next due row."""
        return await self._tick("ff.promote_delayed", limit)

    async def expire(self, limit: int | None = 500) -> tuple[int, timedelta | None]:
        """Return how many rows expire_leases handled, and the time to the next due row."""
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
        """Return the answers of read_results, by execution."""
        rows = await self.connection.fetch(
            "select r.* from ff.read_results(p_partition_key => $1, p_namespace => $2, "
            "p_execution_ids => $3::uuid[]) r",
            self.partition_key,
            self.namespace,
            ids,
        )
        return {row["execution_id"]: row for row in rows}

    async def row(self, execution_id: UUID | None) -> Record:
        """Return the whole row of an execution."""
        row: Record | None = await self.connection.fetchrow(
            "select * from ff.execution where partition_key = $1 and execution_id = $2",
            self.partition_key,
            execution_id,
        )
        assert row is not None, f"no execution {execution_id}"
        return row

    async def rows(self) -> list[Record]:
        """Return every execution of the partition, in id order."""
        return await self.connection.fetch(
            "select * from ff.execution where partition_key = $1 order by execution_id",
            self.partition_key,
        )

    async def events(self, execution_id: UUID | None = None) -> list[Record]:
        """Return the events of one execution by version, or all events in the order of writing."""
        return await self.connection.fetch(
            "select * from ff.event where partition_key = $1 "
            "and ($2::uuid is null or execution_id = $2) order by generation, event_id",
            self.partition_key,
            execution_id,
        )

    async def kinds(self, execution_id: UUID | None = None) -> list[str]:
        return [event["kind"] for event in await self.events(execution_id)]

    async def attempts(self, execution_id: UUID) -> list[Record]:
        """Return the attempts before the latest one, from the history table."""
        return await self.connection.fetch(
            "select * from ff.attempt where partition_key = $1 and execution_id = $2 "
            "order by attempt_index",
            self.partition_key,
            execution_id,
        )

    async def snapshot(self) -> list[tuple[str, str]]:
        """Return all stored rows, to check that a call wrote nothing."""
        return sorted((row[0], row[1]) for row in await self.connection.fetch(_STORED))

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
    """Builds executions in every reachable state, through the public functions only.

    Some states need time to pass, and then the factory moves the clock. Build these states first,
    because other leases age with the clock. By default each execution gets its own lane, so that a
    claim does not return another execution.
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
        """Build an execution in `state`. `item` takes the fields of Item."""
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
        """Bring a freshly leased execution to `state`. Return its latest lease."""
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
                # Wait for another execution that never ends.
                other = await engine.submit(
                    route=await engine.register(lane=f"{lane}-awaited"), delay=timedelta(days=1)
                )
                assert (await engine.wait_for(lease, [other.id])).word == "waiting"
            case "asleep":
                nap = await engine.record(lease, name="nap", kind="sleep", delay=timedelta(hours=1))
                assert (await engine.delay(lease, None, until=nap.until_at)).word == "delayed"
            case "held":
                assert (await engine.hold(lease)).word == "held"
            case "suspended":
                assert (await engine.ask(lease, "approve")).word == "open"
                assert (await engine.suspend(lease, "approve")).word == "suspended"
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
    """Return the rare fields as one JSON object per item, as the client writes them."""
    options = [options_of(item) for item in items]
    return [json.dumps(one) if one else None for one in options] if any(options) else None


def options_of(item: Item) -> dict[str, Any]:
    """Return the options of submit_executions that an item sets."""
    found = {
        "delayed_until": item.delayed_until and item.delayed_until.isoformat(),
        "deadline_ms": _milliseconds(item.deadline),
        "deadline_at": item.deadline_at and item.deadline_at.isoformat(),
        "quotas": item.quotas and [str(id_) for id_ in item.quotas],
        "budgets": item.budgets and [str(id_) for id_ in item.budgets],
        "fair_key": item.fair_key,
        "policy": item.policy,
        "max_reclaims": item.max_reclaims,
        "tags": item.tags,
        "creator": item.creator,
        "key": item.key,
        "key_fingerprint": None if item.fingerprint is None else item.fingerprint.hex(),
        "key_scope": item.scope,
        "key_window_ms": _milliseconds(item.window),
        "key_partitions": item.key_partitions,
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
