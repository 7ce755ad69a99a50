"""Workers and their heartbeats."""

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
    """Only a live worker is refreshed, and another worker cannot take its instance while it is
    alive. The tasks of a worker are stored, too, and executions that were blocked because no worker
    was capable are unblocked.
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
    """One call for many workers; it returns the workers that must register again and writes no
    history.
    """
    beat = world.client.workers.heartbeat
    await worker(world, "w-1")
    see("alive", (await beat(["w-1"])).register, [])
    see("unknown", (await beat(["w-1", "w-9"])).register, ["w-9"])
    await world.clock.advance(2 * ALIVE)
    see("after_its_time", (await beat(["w-1"])).register, ["w-1"])


@operation(
    "mark_worker_dead",
    sql=["mark_worker_dead"],
    python=["workers.mark_dead"],
    reasons=["D-87"],
)
async def _(world: World, see: See) -> None:
    """The leases of the worker run out by themselves, or end at once if the caller asks for it."""
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
    """It lists live workers, and dead ones on request. Without a namespace it lists the workers of
    all namespaces; this is for operators.
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
    """It says when the next worker is due, and removes records of workers after 30 days."""
    sweep = world.client.workers.sweep
    await worker(world, "w-1")
    see("not_due", (await sweep())[0], 0)
    await world.clock.advance(2 * ALIVE)
    see("due", (await sweep())[0], 1)
    see("left", await world.client.workers.list(with_dead=True), [])
