"""Measures our steps by the same protocol as the peers in `peers/`, by the public API only."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from pathlib import Path

from flowfabric import App
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from common import CONC, DSN, check_steps, report_steps, time_steps

from steps import tasks


async def main() -> None:
    async with open_connection(DSN) as connection:
        await migrate(connection)
    async with App(database_url=DSN) as app:
        tasks(app)

        async def run(executions: int, steps: int) -> None:
            runs = await asyncio.gather(
                *(app.submit("bench.row", steps) for _ in range(executions))
            )
            await asyncio.gather(*(one.result(timeout=120) for one in runs))

        worker = await app.worker(concurrency=CONC)
        running = asyncio.create_task(worker.run())
        times = await time_steps(run)
        worker.stop()
        await running
    async with open_connection(DSN) as connection:
        check_steps(
            await connection.fetchval(
                "select count(*) from ff.execution where phase = 'terminal' and outcome = 'success'"
            ),
            await connection.fetchval("select count(*) from ff.step"),
        )
    report_steps(f"flowfabric {version('flowfabric')}", *times)


asyncio.run(main())
