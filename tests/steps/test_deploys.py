"""Deploys with real processes: two versions of the code under load, and no execution held."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from flowfabric import App
from flowfabric.core.code_version import answer_versions
from worker.waiting import eventually

CHANGES = ("added", "removed", "renamed", "reordered")
# SHOP says which code this is; FLOWFABRIC_CODE_VERSION, whether the engine is told; PATCHED,
# whether the new code has the old one in it.
MODULE = """
import asyncio
import os

from flowfabric import App, Context

app = App()
CODE = os.environ["SHOP"]
OLD = ("charge", "pack", "sleep", "ship")
NEW = {
    "added": ("check", "charge", "pack", "sleep", "ship"),
    "removed": ("charge", "sleep", "ship"),
    "renamed": ("charge", "wrap", "sleep", "ship"),
    "reordered": ("pack", "charge", "sleep", "ship"),
}


async def do(name: str) -> str:
    await asyncio.sleep(0.02)
    return f"{CODE}:{name}"


def define(change: str, steps: tuple[str, ...]) -> None:
    @app.task(name=f"shop.{change}")
    async def order(ctx: Context) -> list[str]:
        found = []
        path = steps
        if CODE == "2" and "PATCHED" in os.environ and not await ctx.patched("steps"):
            path = OLD
        for name in path:
            if name == "sleep":
                await ctx.sleep(float(os.environ["NAP"]))
            else:
                found.append(await ctx.step(name, do, name))
        return found


for change, steps in NEW.items():
    define(change, steps if CODE == "2" else OLD)
"""


@dataclass
class Deploy:
    """Workers of both versions, and a load that goes on meanwhile."""

    start_worker: Callable[..., Any]
    db: Any
    app: App
    is_versioned: bool = True
    is_patched: bool = False
    grace: float = 60.0
    lease: float = 5.0
    nap: float = 0.3
    submitted: int = 0
    tasks: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        for change in CHANGES:

            @self.app.task(name=f"shop.{change}")
            async def order() -> list[str]:
                raise NotImplementedError

            self.tasks.append(order)

    async def start(self, code: str, *options: str) -> Any:
        versions = {"FLOWFABRIC_CODE_VERSION": code} if self.is_versioned else {}
        if self.is_patched:
            versions["PATCHED"] = "1"
        worker = await self.start_worker(
            MODULE,
            *("--concurrency", "5", *options),
            SHOP=code,
            NAP=str(self.nap),
            FLOWFABRIC_LEASE_TTL=str(self.lease),
            FLOWFABRIC_VERSION_GRACE=str(self.grace),
            **versions,
        )
        await worker.logged("worker started")
        return worker

    async def submit(self, rounds: int = 1) -> None:
        for task in self.tasks:
            await task.submit_many([()] * rounds)
            self.submitted += rounds

    async def load(
        self, seconds: float, until: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """Submit for some time, and on a busy machine until something has been seen."""
        end = monotonic() + seconds
        while monotonic() < end or (until is not None and not await until()):
            assert monotonic() < end + 120, await self.states()
            await self.submit()
            await asyncio.sleep(0.2)

    async def states(self) -> dict[str, int]:
        rows = await self.db.fetch(
            "select public_state::text, count(*) from ff.execution group by 1"
        )
        return dict(map(tuple, rows))

    async def until_completed(self, within: float) -> None:
        async def are_completed() -> bool:
            return await self.states() == {"completed": self.submitted}

        await eventually(are_completed, within=within, what="all executions are completed")

    async def may_stop(self, version: str) -> bool:
        client = await self.app.client()
        answers = answer_versions(await client.workers.versions())
        return any(one.may_stop for one in answers if one.code_version == version)

    async def check(self) -> None:
        """Every execution was done by one version, and none was ever held."""
        rows = await self.db.fetch("select result from ff.execution")
        assert len(rows) == self.submitted
        for row in rows:
            assert len({step.partition(":")[0] for step in json.loads(row["result"])}) == 1, row
        assert await self.db.fetchval("select count(*) from ff.event where kind = 'held'") == 0


@pytest.fixture
def deploy(start_worker, db, make_app) -> Callable[..., Deploy]:
    return lambda **facts: Deploy(start_worker, db, make_app(), **facts)


async def roll(deploy: Deploy, third: float) -> Any:
    """Replace the workers one by one; the last old one only finishes."""
    first, second = await deploy.start("1"), await deploy.start("1")
    await asyncio.sleep(third)
    await deploy.start("2")
    await first.end()
    await asyncio.sleep(third)
    finisher = await deploy.start("1", "--finish-only")
    await second.end()
    await deploy.start("2")
    return finisher


async def switch(deploy: Deploy, third: float) -> Any:
    """Blue and green: all new workers first, then the old ones only finish."""
    blue = [await deploy.start("1"), await deploy.start("1")]
    await asyncio.sleep(third)
    for _ in blue:
        await deploy.start("2")
    finisher = await deploy.start("1", "--finish-only")
    for worker in blue:
        await worker.end()
    return finisher


async def try_out(deploy: Deploy, third: float) -> Any:
    """A canary beside the old workers for most of the time."""
    old = [await deploy.start("1"), await deploy.start("1")]
    await deploy.start("2")
    await asyncio.sleep(2 * third)
    finisher = await deploy.start("1", "--finish-only")
    for worker in old:
        await worker.end()
    return finisher


WAYS: dict[str, Callable[[Deploy, float], Awaitable[Any]]] = {
    "rolling": roll,
    "blue and green": switch,
    "canary": try_out,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
async def test_a_deploy_under_load_holds_nothing(deploy, way, sized):
    seconds = sized(60, short=9)
    shop = deploy()
    load = asyncio.create_task(shop.load(seconds))
    finisher = await WAYS[way](shop, seconds / 3)
    await load
    await eventually(lambda: shop.may_stop("1"), within=120, what="version 1 may be switched off")
    assert await finisher.end() == 0
    await shop.until_completed(within=120)
    await shop.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_with_a_patch_old_and_new_code_work_together_without_versions(deploy, sized):
    shop = deploy(is_versioned=False, is_patched=True)
    old = ("charge", "pack", "ship")
    paths = {
        *((f"shop.{change}", *old) for change in CHANGES),
        ("shop.added", "check", *old),
        ("shop.removed", "charge", "ship"),
        ("shop.renamed", "charge", "wrap", "ship"),
        ("shop.reordered", "pack", "charge", "ship"),
    }

    async def done() -> set[tuple[str, ...]]:
        rows = await shop.db.fetch(
            "select task, result from ff.execution join ff.route using (route_id)"
            " where public_state = 'completed'"
        )
        return {(row["task"], *(s[2:] for s in json.loads(row["result"]))) for row in rows}

    async def are_mixed() -> bool:
        passed_on = "select exists (select from ff.event where detail ? 'newer_step')"
        return await done() >= paths and await shop.db.fetchval(passed_on)

    load = asyncio.create_task(shop.load(sized(60, short=6), until=are_mixed))
    await shop.start("1")
    await shop.start("1")
    await shop.start("2")
    await load
    await shop.until_completed(within=300)
    assert await shop.db.fetchval("select count(*) from ff.event where kind = 'held'") == 0
    assert await done() == paths


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_without_versions_what_is_held_says_what_to_do(deploy, sized):
    shop = deploy(is_versioned=False)

    async def is_any_held() -> bool:
        return await shop.db.fetchval("select exists (select from ff.event where kind = 'held')")

    load = asyncio.create_task(shop.load(sized(60, short=6), until=is_any_held))
    await shop.start("1")
    await shop.start("2")
    await load

    async def is_quiet() -> bool:
        states = await shop.states()
        return states.get("completed", 0) + states.get("waiting", 0) == shop.submitted

    await eventually(is_quiet, within=120)
    rows = await shop.db.fetch(
        "select blocking_detail from ff.execution where blocking_reason = 'paused_by_policy'"
    )
    assert rows
    for row in rows:
        assert "restore the code and retry, or replay --from-step or --fresh" in row[0]
        assert "with a code version, an execution stays with its own code" in row[0]


@pytest.mark.slow
async def test_after_a_kill_of_the_last_old_worker_the_new_ones_take_over(deploy):
    """The steps of `added` do not fit the new code, so that the takeover is seen as a hold."""
    shop = deploy(grace=1.5, nap=60.0, lease=1.0)
    old = await shop.start("1")
    await shop.submit()

    async def are_asleep() -> bool:
        return await shop.states() == {"delayed": shop.submitted}

    await eventually(are_asleep)
    new = asyncio.create_task(shop.start("2"))
    await old.end(signal.SIGKILL)
    await shop.db.execute("update ff.execution set delayed_until = ff.now(), due_at = ff.now()")
    await new

    async def were_held() -> bool:
        return await shop.db.fetchval("select count(*) from ff.event where kind = 'held'") == 4

    await eventually(were_held)
    seen, taken = await shop.db.fetchrow(
        "select greatest((select max(heartbeat_at) from ff.worker where code_version = '1'), "
        "(select max(heartbeat_at) from ff.worker_event where code_versions = '{1}')), "
        "(select min(occurred_at) from ff.event where kind = 'resumed')"
    )
    assert taken - seen >= timedelta(seconds=shop.grace)
