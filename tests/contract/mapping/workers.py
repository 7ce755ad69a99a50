"""Workers and their beats."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

from flowfabric.client import FlowFabric

from .world import See, World, operation, said

SOURCE = "contract"


ALIVE = timedelta(minutes=1)


@operation(
    "register_worker",
    sql=["register_worker"],
    python=["workers.register"],
    reasons=["D-85", "D-86"],
)
async def _(world: World, see: See) -> None:
    """Only a worker that is alive is refreshed, and only while it is alive its instance cannot be
    taken by another. The tasks a worker knows are stored too, and what was blocked for want of
    such a worker is let go.
    """

    def register(worker_id: str) -> Awaitable[str]:
        return world.client.workers.register(
            worker_id=worker_id, worker_instance_id="w-1", liveness_ttl=ALIVE
        )

    see("first", await register("w"), "registered")
    see("again", await register("w"), "refreshed")
    see("another_worker_same_instance", await said(register("v")), "InvalidInput")
    await world.clock.advance(2 * ALIVE)
    see("after_its_time", await register("v"), "registered")


async def worker(world: World, instance: str) -> None:
    await world.client.workers.register(
        worker_id="w", worker_instance_id=instance, liveness_ttl=ALIVE
    )


@operation(
    "heartbeat_worker",
    sql=["heartbeat_workers"],
    python=["workers.heartbeat"],
    reasons=["0006", "D-87"],
)
async def _(world: World, see: See) -> None:
    """Many in one call; it returns those that must register again and writes no history."""
    beat = world.client.workers.heartbeat
    await worker(world, "w-1")
    see("alive", await beat(["w-1"]), [])
    see("unknown", await beat(["w-1", "w-9"]), ["w-9"])
    await world.clock.advance(2 * ALIVE)
    see("after_its_time", await beat(["w-1"]), ["w-1"])


@operation(
    "mark_worker_dead",
    sql=["mark_worker_dead"],
    python=["workers.mark_dead"],
    reasons=["D-87"],
)
async def _(world: World, see: See) -> None:
    """Its leases run out by themselves, or at once if that is asked for."""
    mark = world.client.workers.mark_dead
    await worker(world, "pool-1")
    held = await world.claimed()

    async def ownership() -> str:
        return str((await world.executions.info(held.id)).ownership)

    see("bad_reason", await said(mark("pool-1", "two\nlines")), "InvalidInput")
    see("known", await mark("pool-1", "gone"), True)
    see("unknown", await mark("pool-1", "gone"), False)
    see("its_lease", await ownership(), "leased")
    await mark("pool-1", "gone", expire_leases=True)
    see("its_lease_with_expire_leases", await ownership(), "lease_expired_reclaimable")


@operation(
    "list_workers",
    sql=["list_workers"],
    python=["workers.list"],
    reasons=["D-85", "D-88"],
)
async def _(world: World, see: See) -> None:
    """Only those alive, unless the dead are asked for. Without a namespace it lists all of them,
    which is for operators.
    """
    listed = world.client.workers.list
    await worker(world, "w-0")
    await world.clock.advance(2 * ALIVE)
    await worker(world, "w-1")
    async with FlowFabric(world.db.url, namespace="other") as other:
        foreign = await other.workers.list(with_dead=True)
    see("alive", [info.worker_instance_id for info in await listed()], ["w-1"])
    see(
        "with_dead",
        [info.worker_instance_id for info in await listed(with_dead=True)],
        ["w-0", "w-1"],
    )
    see("of_another_namespace", foreign, [])


@operation(
    "ttl_sweep",
    sql=["sweep_workers"],
    python=["workers.sweep"],
    reasons=["0011", "D-87"],
)
async def _(world: World, see: See) -> None:
    """It says when the next worker is due, and removes what was written down about workers 30 days
    ago.
    """
    sweep = world.client.workers.sweep
    await worker(world, "w-1")
    see("not_due", (await sweep())[0], 0)
    await world.clock.advance(2 * ALIVE)
    see("due", (await sweep())[0], 1)
    see("left", await world.client.workers.list(with_dead=True), [])
