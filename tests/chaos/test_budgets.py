"""Budgets while workers are killed, connections end and the server crashes.

Executions of three tenants report what they use, each report to two budgets at once. The budget of
the tenant suspends them again and again; operators reset it, raise it and lift it meanwhile, and
its own period ends. The other budget only warns, so it counts all: in the end it holds the usage of
every report exactly once. Doctor looks in the middle (B01 to B06, Q01 to Q13).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from faults.server import Server
from faults.workers import Fleet, load
from flowfabric import App
from flowfabric.core.errors import BudgetNotFound

from .patience import insist, until_all_ended
from .run import Doctor

SEED = 20261119
LEASE_SECONDS = 2.0
TENANTS = ("acme", "beta", "cora")
REPORTS = 6
TASKS = """
from __future__ import annotations

import asyncio
from datetime import timedelta

from flowfabric import App, Budget, Context

app = App()
ALL = Budget("all", tokens=1_000_000_000, on_exceed="warn")
TENANT = Budget(
    "tenant", key="tenant", tokens=80, period=timedelta(minutes=1), on_exceed="suspend"
)


@app.task(name="spend", budget=[ALL, TENANT], max_reclaims=1000)
async def spend(ctx: Context, n: int, tenant: str) -> int:
    for number in range(6):
        await ctx.usage(tokens=10 + n % 7 + number)
        await asyncio.sleep(0.02)
    return n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    executions: int
    workers: int
    kills: int
    cuts: int
    crashes: int


LONG = Scale(executions=600, workers=3, kills=30, cuts=60, crashes=3)
SHORT = Scale(executions=30, workers=2, kills=2, cuts=4, crashes=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_every_report_counts_once_through_kills_cuts_and_crashes(
    durable: Server, tmp_path: Path, sized: Callable[..., Scale]
) -> None:
    scale: Scale = sized(LONG, short=SHORT)
    app, module = load(durable.url, TASKS)
    doctor = Doctor(durable)
    fleet = Fleet(
        tmp_path, durable.url, scale.workers, concurrency=10, lease=LEASE_SECONDS, tasks=TASKS
    )
    try:
        await fleet.until_started()
        for n in range(scale.executions):
            task = module["spend"].using(key=f"n-{n}")
            await insist(lambda n=n, task=task: task.submit(n, TENANTS[n % 3]))
        operating = asyncio.create_task(operate(app, Random(SEED)))
        try:
            await break_things(durable, fleet, doctor, Random(SEED), scale)
            await until_all_ended(durable, fleet)
        finally:
            operating.cancel()
            await asyncio.wait({operating})
        assert operating.cancelled(), operating.exception()
        assert set(fleet.close()) <= {0, -signal.SIGTERM}, fleet.log()
    finally:
        await app.close()
        fleet.destroy()
    await doctor.look(is_full=True)
    assert doctor.errors == []
    await durable.check_invariants()
    await judge(durable, scale)


async def operate(app: App, random: Random) -> None:
    """Reset, raise and lift the budgets of the tenants, and spend in the name of others."""
    client = await insist(app.client)
    runs = await insist(client.executions.list)
    number = 0
    while True:
        await asyncio.sleep(random.uniform(0.02, 0.1))
        number += 1
        tenant = random.choice(TENANTS)
        # A call without an answer is made again: it must count once.
        try:
            found = await insist(lambda t=tenant: client.budgets.get("tenant", key=t))
            # Only a shut budget gets room, so that some reports find none on every machine.
            acts = ("reset", "raise") if found.is_shut else ("lift", "report", "spend")
            act = random.choice(acts)
            if act == "reset":
                await insist(lambda t=tenant: client.budgets.reset("tenant", key=t))
            elif act == "raise":
                # More than was used, as a raised limit starts no new period.
                most = found.usage["tokens"] + random.randint(30, 100)
                await insist(
                    lambda t=tenant, m=most: client.budgets.raise_limits("tenant", key=t, tokens=m)
                )
            elif act == "lift":
                await insist(lambda t=tenant: client.budgets.lift("tenant", key=t))
            elif act == "report":
                for _ in range(2):
                    await insist(
                        lambda t=tenant, n=number: client.budgets.report_usage_admin(
                            "tenant", key=t, dedup_key=f"admin-{n}", tokens=3
                        )
                    )
            else:
                # What is spent here is taken back, so the sum stays that of the executions.
                one = random.choice(runs.executions).id
                await insist(
                    lambda o=one, n=number: client.budgets.record_spend(
                        "all", o, dedup_key=f"spend-{n}", tokens=50
                    )
                )
                await insist(lambda o=one: client.budgets.release("all", o))
        except BudgetNotFound:
            # Nothing of this tenant was submitted yet.
            continue


async def break_things(
    server: Server, fleet: Fleet, doctor: Doctor, random: Random, scale: Scale
) -> None:
    """Kill workers, end connections and crash the server as the usage grows; let doctor look."""
    whole = expected(scale)
    faults = [
        *("kill" for _ in range(scale.kills)),
        *("cut" for _ in range(scale.cuts)),
        *("crash" for _ in range(scale.crashes)),
    ]
    random.shuffle(faults)
    for number, fault in enumerate(faults, 1):
        while await used(server) < whole * number / (len(faults) + 2):
            fleet.supervise()
            await asyncio.sleep(0.05)
        if fault == "kill":
            fleet.kill(random.randrange(scale.workers))
        elif fault == "crash":
            await server.restart(random.choice((signal.SIGQUIT, signal.SIGKILL)))
        else:
            backends = await server.fetch(
                "select pid from pg_stat_activity where datname = current_database()"
                " and backend_type = 'client backend' and pid <> pg_backend_pid() order by pid"
            )
            if backends:
                (pid,) = random.choice(backends)
                await server.fetch("select pg_terminate_backend($1)", pid)
        if number % max(len(faults) // 5, 1) == 0:
            await doctor.look(is_full=True)
            assert doctor.errors == []


def expected(scale: Scale) -> int:
    """What all executions use together."""
    return sum(10 + n % 7 + number for n in range(scale.executions) for number in range(REPORTS))


async def used(server: Server) -> int:
    rows = await server.fetch(
        "select d.usage from ff.budget b join ff.budget_dimension d using (budget_id)"
        " where b.budget = 'all'"
    )
    return rows[0][0] if rows else 0


async def judge(server: Server, scale: Scale) -> None:
    ((ended,),) = await server.fetch(
        "select count(*) from ff.execution where outcome = 'success' and line_id is null"
    )
    assert ended == scale.executions
    assert await used(server) == expected(scale)
    ((suspended, resets),) = await server.fetch(
        "select (select count(*) from ff.event where kind = 'released'"
        " and detail ->> 'dimension' = 'tokens'),"
        " (select sum(period_no) from ff.budget where budget = 'tenant')"
    )
    assert suspended > 0
    assert resets > 0
