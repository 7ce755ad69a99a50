"""Limits of sizes, lengths and numbers: each is tried with a value just within and just beyond.

`says` is compared with the engine's own message, so the page shows what a caller gets.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from support.factories import Engine, Item

from .world import HOUR, SECOND, World

DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
MEBIBYTE = 1024 * 1024
CENTURY_MS = 3_153_600_000_000

Call = Callable[[World, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: values that fit, values beyond it, and a call that takes such a value."""

    field: str
    functions: list[str]
    says: str
    fits: list[Any]
    beyond: list[Any]
    call: Call


LIMITS: list[Limit] = []


def limit(
    field: str,
    *,
    functions: list[str],
    says: str,
    fits: list[Any],
    beyond: list[Any] | None = None,
    paths: list[str] | None = None,
) -> Callable[[Call], Call]:
    """Register a call that must refuse every value in `beyond`, naming `field`.

    `says` is the problem in the refusal, or the part that all refusals share. `paths` are fields
    that a document must not have.
    """
    tried = [*(beyond or []), *map(nested, paths or [])]

    def register(call: Call) -> Call:
        LIMITS.append(Limit(field, functions, says, fits, tried, call))
        return call

    return register


def nested(path: str) -> dict[str, Any]:
    """A document with one field: a.b is {"a": {"b": 1}}."""
    first, _, rest = path.partition(".")
    return {first: nested(rest) if rest else 1}


async def sql(world: World, function: str, **named: Any) -> Any:
    """A call past the client, which refuses some of this itself."""
    given = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(named, 1))
    return await world.db.fetch(f"select a.* from ff.{function}({given}) a", *named.values())


async def fenced(world: World, function: str, **more: Any) -> Any:
    held = await world.claimed(lane=str(uuid4()))
    return await sql(
        world,
        function,
        partition_key=0,
        namespace="test",
        execution_id=held.execution_id,
        lease_id=held.lease_id,
        epoch=held.epoch,
        attempt_id=held.attempt_id,
        **more,
    )


async def fenced_batch(world: World, function: str, **more: Any) -> Any:
    held = await world.claimed(lane=str(uuid4()))
    return await sql(
        world,
        function,
        partition_key=0,
        namespace="test",
        execution_ids=[held.execution_id],
        lease_ids=[held.lease_id],
        epochs=[held.epoch],
        attempt_ids=[held.attempt_id],
        **more,
    )


async def submit(world: World, **options: Any) -> Any:
    """Past the client, too."""
    return await Engine(world.db.conn).submit(Item(**options))


@limit(
    "lease_ttl",
    functions=["claim_executions", "claim_execution", "reclaim_execution"],
    says="must be between one second and one day",
    fits=[SECOND, DAY],
    beyond=[SECOND - MICROSECOND, DAY + MICROSECOND],
)
async def _(world: World, value: timedelta) -> Any:
    return await world.executions.claim(worker_id="w", worker_instance_id="w-1", lease_ttl=value)


@limit(
    "lease_ttl",
    functions=["renew_leases"],
    says="must be between one second and one day",
    fits=[SECOND, DAY],
    beyond=[SECOND - MICROSECOND, DAY + MICROSECOND, None],
)
async def _(world: World, value: timedelta | None) -> Any:
    return await fenced_batch(world, "renew_leases", lease_ttl=value)


@limit(
    "grant_ttl",
    functions=["issue_claim_grant", "issue_reclaim_grant"],
    says="must be between one millisecond and one minute",
    fits=[SECOND / 1000, 60 * SECOND],
    beyond=[timedelta(), 60 * SECOND + MICROSECOND],
)
async def _(world: World, value: timedelta) -> Any:
    return await world.client.grants.issue_claim_grant(
        await world.submit(), worker_id="w", worker_instance_id="w-1", ttl=value
    )


@limit(
    "liveness_ttl",
    functions=["register_worker"],
    says="must be between one second and seven days",
    fits=[SECOND, 7 * DAY],
    beyond=[SECOND - MICROSECOND, 7 * DAY + MICROSECOND],
)
async def _(world: World, value: timedelta) -> Any:
    return await world.client.workers.register(
        worker_id="w", worker_instance_id="w-1", liveness_ttl=value
    )


@limit(
    "limit",
    functions=["claim_executions"],
    says="must be 1 to 1000",
    fits=[1, 1000],
    beyond=[0, 1001],
)
async def _(world: World, value: int) -> Any:
    return await Engine(world.db.conn).claim(value)


@limit(
    "limit",
    functions=["list_execution_ids", "expire_leases", "promote_delayed", "trim_retention"],
    says="must be 1 to 10000",
    fits=[1, 10_000],
    beyond=[0, 10_001],
)
async def _(world: World, value: int) -> Any:
    return await sql(world, "promote_delayed", partition_key=0, limit=value)


@limit(
    "execution_ids",
    functions=["complete_executions", "fail_executions", "renew_leases", "submit_executions"],
    says="must hold 1 to 1000 items",
    fits=[1, 1000],
    beyond=[0, 1001],
)
async def _(world: World, value: int) -> Any:
    return await sql(
        world,
        "renew_leases",
        partition_key=0,
        namespace="test",
        execution_ids=[uuid4() for _ in range(value)],
        lease_ids=[uuid4()] * value,
        epochs=[1] * value,
        attempt_ids=[uuid4()] * value,
        lease_ttl=HOUR,
    )


@limit(
    "payload",
    functions=["submit_executions", "submit_json", "submit_flow"],
    says="is larger than 1 MiB (1048576 bytes)",
    fits=[MEBIBYTE],
    beyond=[MEBIBYTE + 1],
)
async def _(world: World, value: int) -> Any:
    return await submit(world, payload=b"x" * value)


@limit(
    "result",
    functions=["complete_executions"],
    says="is larger than 1 MiB (1048576 bytes)",
    fits=[MEBIBYTE],
    beyond=[MEBIBYTE + 1],
)
async def _(world: World, value: int) -> Any:
    return await fenced_batch(world, "complete_executions", results=[b"x" * value])


@limit(
    "message",
    functions=["report_progress"],
    says="must be at most 1024 bytes",
    fits=["x" * 1024],
    beyond=["x" * 1025, "ü" * 513],
)
async def _(world: World, value: str) -> Any:
    return await fenced(world, "report_progress", message=value)


@limit(
    "percent",
    functions=["report_progress"],
    says="must be from 0 to 100",
    fits=[0, 100],
    beyond=[-1, 101],
)
async def _(world: World, value: int) -> Any:
    return await fenced(world, "report_progress", percent=value)


@limit(
    "reason",
    functions=["fail_executions"],
    says="must be at most 256 bytes without control characters",
    fits=["x" * 256],
    beyond=["x" * 257, "two\nlines"],
)
async def _(world: World, value: str) -> Any:
    return await fenced_batch(world, "fail_executions", classes=["transient"], reasons=[value])


@limit(
    "detail",
    functions=["fail_executions"],
    says="must be at most 64 KiB",
    fits=[b"x" * 65536],
    beyond=[b"x" * 65537],
)
async def _(world: World, value: bytes) -> Any:
    return await fenced_batch(
        world, "fail_executions", classes=["transient"], reasons=["it broke"], details=[value]
    )


@limit(
    "reason",
    functions=["cancel_execution", "cancel_flow_header", "revoke_lease", "set_lane"],
    says="must be at most 256 bytes without control characters",
    fits=["x" * 256],
    beyond=["x" * 257, "two\nlines"],
)
async def _(world: World, value: str) -> Any:
    id = await world.submit()
    return await sql(
        world,
        "cancel_execution",
        partition_key=0,
        namespace="test",
        execution_id=id.uuid,
        reason=value,
    )


@limit(
    "tags",
    functions=["submit_executions", "set_tags", "set_flow_tags", "create_flow"],
    says="are more than 64",
    fits=[64],
    beyond=[65],
)
async def _(world: World, value: int) -> Any:
    return await submit(world, tags={f"team.n{n}": "1" for n in range(value)})


@limit(
    "tags",
    functions=["submit_executions", "set_tags", "set_flow_tags", "create_flow"],
    says="must be text of at most 1024 bytes",
    fits=["x" * 1024],
    beyond=["x" * 1025],
)
async def _(world: World, value: str) -> Any:
    return await submit(world, tags={"team.a": value})


@limit(
    "tags",
    functions=["submit_executions", "set_tags", "set_flow_tags", "create_flow"],
    says="is not of the form team.field (lower case letters, digits, _)",
    fits=["team.a", "t.1"],
    beyond=["team", "Team.a", "team.", "te-am.a"],
)
async def _(world: World, value: str) -> Any:
    return await submit(world, tags={value: "1"})


@limit(
    "key",
    functions=["submit_executions", "submit_json"],
    says="must be 1 to 512 bytes",
    fits=["x", "x" * 512],
    beyond=["x" * 513],
)
async def _(world: World, value: str) -> Any:
    return await submit(world, key=value, fingerprint=b"1")


@limit(
    "policy",
    functions=["submit_executions", "submit_json", "submit_flow"],
    says="is larger than 64 KiB",
    fits=[],
    beyond=[json.dumps({"retry_policy": {"retryable_categories": ["x" * 65536]}})],
)
async def _(world: World, value: str) -> Any:
    return await submit(world, policy=value)


@limit(
    "policy",
    functions=["submit_executions", "submit_json", "submit_flow"],
    says="is not a field of a policy",
    fits=[
        {"max_reclaim_count": 1_000_000, "max_replay_count": 0, "retention_ms": CENTURY_MS},
        {"timeout_policy": {"attempt_timeout_ms": CENTURY_MS}},
        {"retry_policy": {"max_retries": 1_000_000, "retryable_categories": ["io"]}},
        {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": CENTURY_MS}}},
        {"retry_policy": {"backoff": {"initial_delay_ms": 1, "max_delay_ms": 2}}},
        {"retry_policy": {"backoff": {"multiplier": 1000, "jitter": True}}},
    ],
    paths=[
        "routing_requirements",
        "delay_until",
        "dedup_window_ms",
        "suspension_policy",
        "stream_policy.durability_mode",
        "timeout_policy.execution_deadline_ms",
        "timeout_policy.max_reclaim_count",
        "retry_policy.attempt_timeout_ms",
        "retry_policy.backoff.base_ms",
    ],
)
async def _(world: World, value: dict[str, Any]) -> Any:
    return await submit(world, policy=value)
