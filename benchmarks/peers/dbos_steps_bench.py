"""Measures DBOS' steps by its asynchronous and its synchronous API. The faster API counts.

The workflows are started directly, not through a queue, so they do not wait until a queue polls.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import psycopg
from common import CONC, DSN, check_steps, concurrently, report_steps, time_steps
from dbos import DBOS

DBOS(
    config={
        "name": "bench",
        "system_database_url": DSN,
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)


@DBOS.step()
async def nothing() -> None: ...


@DBOS.step()
def plain_nothing() -> None: ...


@DBOS.workflow()
async def row(steps: int) -> None:
    for _ in range(steps):
        await nothing()


@DBOS.workflow()
def plain_row(steps: int) -> None:
    for _ in range(steps):
        plain_nothing()


async def run(executions: int, steps: int) -> None:
    async def one(_: int) -> None:
        await row(steps)

    await concurrently(one, range(executions), CONC)


async def main() -> None:
    threads = ThreadPoolExecutor(CONC)

    async def run_plain(executions: int, steps: int) -> None:
        loop = asyncio.get_running_loop()
        runs = (loop.run_in_executor(threads, plain_row, steps) for _ in range(executions))
        await asyncio.gather(*runs)

    single, many = await time_steps(run)
    plain_single, plain_many = await time_steps(run_plain)
    with psycopg.connect(DSN) as connection:
        executions, steps = connection.execute(
            "select (select count(*) from dbos.workflow_status where status = 'SUCCESS'),"
            " (select count(*) from dbos.operation_outputs)"
        ).fetchone()
    check_steps(executions, steps, times=2)
    report_steps(
        f"dbos {version('dbos')} (the faster API)",
        min(single, plain_single),
        min(many, plain_many),
        measurements=2,
        async_seconds=[round(single, 3), round(many, 3)],
        sync_seconds=[round(plain_single, 3), round(plain_many, 3)],
    )


DBOS.launch()
asyncio.run(main())
DBOS.destroy()
