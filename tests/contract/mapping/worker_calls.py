"""Worker calls in the form that names the fields of the fence."""

from __future__ import annotations

from typing import Any

from flowfabric.core.execution import Claimed
from reads.stage import TTL

from .world import Facts, See, World, operation

SOURCE = "contract"


async def without_a_fence(world: World, function: str, held: Claimed, **more: Any) -> str:
    """Return a plural function's answer for an item whose lease, epoch and attempt are null."""
    named: Facts = {
        "p_partition_key": 0,
        "p_namespace": "test",
        "p_execution_ids": [held.execution_id],
        "p_lease_ids": [None],
        "p_epochs": [None],
        "p_attempt_ids": [None],
        **more,
    }
    given = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    query = f"select outcome from ff.{function}({given})"
    return str(await world.db.fetchval(query, *named.values()))


@operation(
    "renew_lease",
    sql=["renew_leases"],
    python=["leases.renew"],
    reasons=["0010", "ruling: a handle is a dataclass with the fence"],
)
async def _(world: World, see: See) -> None:
    """The same call as `renew`: a handle is a dataclass that holds the fence."""
    held = await world.claimed()
    lost, _ = await world.client.leases.renew([held], TTL)
    see("lost", len(lost), 0)
    see("epoch", (await world.executions.describe(held.id)).epoch, 1)
    see(
        "without_a_fence",
        await without_a_fence(world, "renew_leases", held, p_lease_ttl=TTL),
        "invalid",
    )


@operation(
    "complete_execution",
    sql=["complete_executions"],
    python=["executions.complete"],
    reasons=["0010", "D-27", "ruling: no terminal call of a worker without its fence"],
)
async def _(world: World, see: See) -> None:
    """The same call as `complete`, always with a fence: an operator cannot complete an execution
    that a worker holds. A second, unguarded way to complete would break the promise that a result
    comes from its holder. To stop a worker, use cancel; to take its work away, use revoke.
    """
    held = await world.claimed()
    refused = await without_a_fence(world, "complete_executions", held, p_results=[b"1"])
    see("without_a_fence", refused, "invalid")
    see("state_without_a_fence", await world.state(held.id), "active")
    await world.executions.complete(held)
    see("state", await world.state(held.id), "completed")


@operation(
    "fail_execution",
    sql=["fail_executions"],
    python=["executions.fail"],
    reasons=[
        "0010",
        "D-27",
        "D-41",
        "D-42",
        "ruling: no terminal call of a worker without its fence",
    ],
)
async def _(world: World, see: See) -> None:
    """The same call as `fail`, always with a fence. The stored policy decides, not the caller's."""
    held = await world.claimed()
    more: Facts = {"p_classes": ["permanent"], "p_reasons": ["broken"]}
    see("without_a_fence", await without_a_fence(world, "fail_executions", held, **more), "invalid")
    see("state_without_a_fence", await world.state(held.id), "active")
    await world.fail(held)
    see("state", await world.state(held.id), "failed")
