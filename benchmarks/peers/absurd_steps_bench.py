"""Measures Absurd's steps.

An asynchronous worker of Absurd runs everything on one connection, so CONC workers with one task
each are the fastest. Workers with nothing to run do not poll.
"""

# ruff: noqa: ASYNC110  Absurd offers only polling, with a shortest interval of 50 ms

from __future__ import annotations

import asyncio
from importlib.metadata import version

import psycopg
from absurd_schema import install
from absurd_sdk import AsyncAbsurd
from common import CONC, DSN, check_steps, report_steps, time_steps

POLL_SECONDS = 0.005
UNFINISHED = "select count(*) from absurd.t_default where state not in ('completed', 'failed')"
COMPLETED = "select count(*) from absurd.t_default where state = 'completed'"
STORED = "select count(*) from absurd.c_default"


async def nothing() -> None: ...


async def row(params, ctx):
    for n in range(params["steps"]):
        await ctx.step(f"step-{n}", nothing)


async def main() -> None:
    install(DSN)
    clients = [AsyncAbsurd(DSN) for _ in range(8)]
    workers = [AsyncAbsurd(DSN) for _ in range(CONC)]
    await clients[0].create_queue("default")
    for worker in workers:
        worker.register_task("row")(row)
    watcher = await psycopg.AsyncConnection.connect(
        DSN, autocommit=True, application_name="bench watcher"
    )

    async def count(query: str) -> int:
        return (await (await watcher.execute(query)).fetchone())[0]

    async def run(executions: int, steps: int) -> None:
        rest = iter(range(executions))

        async def submit(client: AsyncAbsurd) -> None:
            for _ in rest:
                await client.spawn("row", {"steps": steps}, queue="default")

        active = workers[:executions]
        running = [
            asyncio.create_task(worker.start_worker(poll_interval=POLL_SECONDS))
            for worker in active
        ]
        await asyncio.gather(*map(submit, clients))
        while await count(UNFINISHED):
            await asyncio.sleep(POLL_SECONDS)
        for worker in active:
            worker.stop_worker()
        await asyncio.gather(*running)

    times = await time_steps(run)
    check_steps(await count(COMPLETED), await count(STORED))
    report_steps(f"absurd {version('absurd-sdk')}", *times)
    for one in (*clients, *workers):
        await one.close()
    await watcher.close()


asyncio.run(main())
