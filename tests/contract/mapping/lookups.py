"""Reads that are not about one execution."""

from __future__ import annotations

from typing import Any

from reads.stage import TTL

from .world import See, World, operation

SOURCE = "contract"


@operation(
    "list_lanes",
    sql=["list_lanes"],
    python=["lanes.list"],
    reasons=["0007", "D-09"],
)
async def _(world: World, see: See) -> None:
    """It lists all lanes of a namespace at once, with their state and the number of waiting
    executions, exact up to 10 000; lanes are few.
    """
    await world.claimed(lane="a")
    for _ in range(2):
        await world.submit(lane="b")
    await world.client.lanes.pause("b")
    lanes = await world.client.lanes.list()
    see("lanes", [lane.lane for lane in lanes], ["a", "b"])
    see("waiting", [lane.waiting for lane in lanes], [0, 2])
    see("paused", str(lanes[1].state), "paused")


@operation(
    "server_time_ms",
    sql=["server_time"],
    python=["executions.server_time"],
    reasons=["0008", "D-92"],
)
async def _(world: World, see: See) -> None:
    """It returns an aware datetime. Every decision uses this clock: no call takes the caller's time
    for now.
    """
    time = await world.executions.server_time()
    see("time", "the database's" if time == await world.now() else str(time), "the database's")
    see("aware", time.tzinfo is not None, True)


@operation(
    "list_expired_leases",
    sql=["list_expired_leases"],
    python=["executions.expired_leases"],
    reasons=["D-58"],
)
async def _(world: World, see: See) -> None:
    """It lists every expired lease, marked or not, and pages by time and id without loss or
    repetition.
    """
    listed = world.executions.expired_leases
    await world.claimed(lane="a")
    await world.clock.advance(TTL)
    before = await listed()
    await world.client.leases.expire()
    after = await listed()
    await world.claimed(lane="b")
    await world.clock.advance(TTL)
    pages: list[list[Any]] = []
    while not pages or pages[-1]:
        pages.append(await listed(limit=1, after=pages[-1][0].cursor if pages else None))
    see("marked", [lease.is_marked for lease in before], [False])
    see("after_marking", [lease.is_marked for lease in after], [True])
    see("pages", [len(page) for page in pages], [1, 1, 0])
