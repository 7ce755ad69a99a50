"""An hour of traffic: flows, failures, approvals, streams, limits and schedules."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from flowfabric import Budget, Context, Fixed, Limit, PublicState, Retry
from flowfabric.app.run import Run
from flowfabric.core.states import Eligibility
from flowfabric.core.subscription import EventFilter
from server.stage import World
from steps.stage import skip, until
from support.clock import Clock
from worker.apps import working
from worker.waiting import eventually

NEVER = Retry(max_retries=0)
# How many orders are paid between two looks at the clock, and the numbers of orders that succeed.
SALES = (4, 6, 5, 9, 12, 8, 3, 0, 5, 7, 2, 1, 4, 8, 11, 14, 9, 6, 6, 3, 0, 2, 5, 4, 7)
GOOD = (1, 2, 4, 7, 8, 11, 13, 14, 16, 17, 19, 22, 23, 26)


@dataclass
class Traffic:
    """What the traffic has left behind, by name."""

    runs: dict[str, Run[Any]] = field(default_factory=dict)
    flows: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    # The name of the task that most executions have.
    task: str = ""


async def make_traffic(
    world: World, clock: Clock, *, hostile: str = "", rounds: int = 2
) -> Traffic:
    """Run an hour of traffic, and sell something in each of some rounds.

    `hostile` is a text that every name and value contains.
    """
    app, left = world.app, Traffic()
    # A name has no blanks.
    name = hostile.replace(" ", "/")

    @app.task(name=f"shop.charge{name}", lane="payments", retry=NEVER)
    async def charge(order: int, note: str = "") -> str:
        if order % 3 == 0:
            raise ValueError(f"card declined for order {order} {hostile}".strip())
        if order % 5 == 0:
            raise TimeoutError(f"the bank did not answer {hostile}".strip())
        return f"paid {order} {hostile}"

    @app.task(name="shop.flaky", retry=Retry(max_retries=1, backoff=Fixed(timedelta(0))))
    async def flaky(ctx: Context) -> None:
        raise ConnectionError(f"try {ctx.attempt} {hostile}".strip())

    @app.task(name="shop.onboard")
    async def onboard(ctx: Context, user: str) -> str:
        await ctx.step(f"write{hostile}", str.upper, user)
        await ctx.sleep(timedelta(days=1))
        return user

    @app.task(name="shop.release")
    async def release(ctx: Context, version: str) -> bool:
        def ask(request: Any) -> None:
            left.tokens[request.approver] = request.token

        team = await ctx.approval(
            f"Release {version} to production? {hostile}".strip(),
            details={"version": version, "risk": "two migrations", "by": hostile or "ada"},
            approvers=["legal", "ops"],
            ask=ask,
        )
        return bool(team)

    @app.task(name="shop.write")
    async def write(ctx: Context, topic: str) -> str:
        for word in ("Once", "upon", "a", "time"):
            await ctx.stream.send(f"{word} {hostile}")
        await ctx.progress(80, f"almost {hostile}".strip())
        return topic

    @app.task(name="shop.render", limit=Limit(f"gpu{name}", concurrency=1), lane="gpu")
    async def render(ctx: Context, n: int) -> None:
        await ctx.sleep(timedelta(hours=1))

    @app.task(name="shop.node", retry=NEVER)
    async def node(n: int = 0, *, fails: bool = False) -> int:
        if fails:
            raise RuntimeError(f"node {n} broke {hostile}".strip())
        return n

    is_changed = False

    @app.task(name="shop.import")
    async def load(ctx: Context, source: str) -> None:
        await ctx.step(f"download{hostile}" if is_changed else "fetch", str.upper, source)
        await ctx.sleep(timedelta(minutes=45))

    @app.cron("*/30 * * * *", name="sync-stock")
    @app.task(name="shop.sync")
    async def sync() -> None: ...

    @app.cron("0 9 * * 1-5", tz="Europe/Berlin", name="morning-report")
    @app.task(name="shop.report")
    async def report() -> None: ...

    left.task = charge.name
    client = await world.client()
    await client.budgets.create(
        Budget(f"model-spend{name}", usd="20.00", period="day"), actor="ada"
    )
    await client.budgets.create(Budget("tokens", tokens=1000))
    await client.budgets.report_usage_admin(f"model-spend{name}", usd="20.00")
    await client.budgets.report_usage_admin("tokens", tokens=640)
    tagged = charge.using(tags={"tenant.name": hostile or "acme"})
    orders = await tagged.submit_many([(n,) for n in range(1, 13)])
    left.runs |= {"failed": orders[2], "paid": orders[0]}
    left.runs["flaky"] = await flaky.submit()
    left.runs["asleep"] = await onboard.submit("ada")
    left.runs["asked"] = await release.submit("1.4.0")
    left.runs["streamed"] = await write.submit("tale")
    left.runs["held"] = await load.submit("products.csv")
    async with app.flow(f"nightly{hostile}") as f:
        first = f.add(node, 1, name=f"extract{hostile}")
        parts = [f.add(node, first.result, name=f"part {n}") for n in range(12)]
        broken = f.add(node, 7, fails=True, name="check")
        f.add(node, 2, name="load", after=[parts[0], broken])
    left.flows["nightly"] = f.run
    async with working(app, concurrency=4):
        for one in ("paid", "failed", "flaky", "streamed"):
            await client.results.wait(left.runs[one].id)
        await until(left.runs["asked"], PublicState.SUSPENDED)
        await until(left.runs["asleep"], PublicState.DELAYED)
        await until(left.runs["held"], PublicState.DELAYED)
    is_changed = True
    async with working(app, concurrency=4):
        for n in range(rounds):
            await skip(app, clock, timedelta(minutes=50) / rounds)
            orders = [*GOOD[: SALES[n % len(SALES)]], *([9, 10][: n % 3])]
            for sold in await charge.submit_many([(order,) for order in orders]):
                await client.results.wait(sold.id)

        async def is_held() -> bool:
            info = await client.executions.describe(left.runs["held"].id)
            return info is not None and info.eligibility is Eligibility.BLOCKED_BY_OPERATOR

        await eventually(is_held, what="the changed import is held")
    left.runs["waiting"] = await charge.using(lane="mail").submit(1)
    await client.lanes.pause(
        "mail", reason=f"provider is down {hostile}"[:250].strip(), actor="ada"
    )
    if hostile:
        # The name of a lane is short printable ASCII.
        lane = hostile.encode("ascii", "replace").decode()[:64]
        await charge.using(lane=lane).submit(1)
        await client.lanes.pause(lane, reason=hostile[:250], actor=hostile[:250])
    await clock.advance(timedelta(minutes=10))
    await _go_on(world, hostile, left, await render.submit_many([(n,) for n in range(3)]))
    return left


async def _go_on(world: World, hostile: str, left: Traffic, renders: list[Run[Any]]) -> None:
    """Leave behind what is going on now: a worker, a lease, a line, and readers of events."""
    client = await world.client()
    ending = hostile.replace(" ", "/")
    name = f"gpu-1{ending}"
    await client.workers.register(
        worker_id="gpu", worker_instance_id=name, lanes=["gpu"], host=f"host{ending}", slots=4
    )
    # One of the renders runs, and the others stand in the line of their quota.
    (claimed,) = await client.executions.claim(
        worker_id="gpu",
        worker_instance_id=name,
        lanes=["gpu"],
        limit=3,
        lease_ttl=timedelta(minutes=2),
    )
    left.runs["active"] = next(one for one in renders if one.id == claimed.id)
    left.runs["in line"] = next(one for one in renders if one.id != claimed.id)
    await client.subscriptions.lease(
        "mailer",
        uuid4(),
        holder_name=name,
        ttl=timedelta(seconds=30),
        filter=EventFilter(),
        cursor=await client.events.open(),
    )
    await client.webhooks.add("hook", "https://hooks.example.com/flowfabric")
    await client.minutes.roll_up()


def pages_of(left: Traffic) -> dict[str, str]:
    """Return the paths of all pages by name."""
    return {
        "overview": "",
        "day": "?chart=24h",
        "executions": "/executions",
        "failed": f"/executions/{left.runs['failed'].id.uuid}",
        "flaky": f"/executions/{left.runs['flaky'].id.uuid}",
        "asked": f"/executions/{left.runs['asked'].id.uuid}",
        "streamed": f"/executions/{left.runs['streamed'].id.uuid}",
        "held": f"/executions/{left.runs['held'].id.uuid}",
        "active": f"/executions/{left.runs['active'].id.uuid}",
        "in line": f"/executions/{left.runs['in line'].id.uuid}",
        "bulk": "/bulk?verb=retry&where=state%3Dfailed",
        "flows": "/flows",
        "flow": f"/flows/{left.flows['nightly'].id.uuid}",
        "times": f"/flows/{left.flows['nightly'].id.uuid}?view=gantt",
        "approvals": "/approvals",
        "schedules": "/schedules",
        "schedule": "/schedules/one?name=morning-report&app=shop",
        "lanes": "/lanes",
        "budgets": "/budgets",
        "workers": "/workers",
        "tasks": "/tasks",
        "task": f"/tasks/one?{urlencode({'name': left.task})}",
        "task's day": f"/tasks/one?{urlencode({'name': left.task, 'chart': '24h'})}",
        "events": "/events?since=2h",
        "audit": "/audit",
        "subscriptions": "/subscriptions",
        "system": "/system",
    }
