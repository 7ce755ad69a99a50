"""A process that can be killed at any of its calls to the database while it cancels.

Run as a program it reads lines `url procedure flow point` and forks one process for each, which
ends itself by `kill -9` at that point: `3:before` is before its third call is sent, `3:after` when
the answer is there. It says how each ended: the points it passed, and its status.

The hook is here, not in the package: the process's own `db.call.invoke` is wrapped after the fork.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import Any

from flowfabric.client import FlowFabric, flow_cancel
from flowfabric.client.cascades import Cascades
from flowfabric.core.ids import FlowId
from flowfabric.db import call

# Few at a time, so that there are many transactions.
BATCH = 2


def die_at(point: str, passed: int) -> None:
    """Wrap the way to the database so that the process ends there."""
    invoke = call.invoke
    number = 0

    def at(end: str, name: str) -> None:
        os.write(passed, f"{number}:{end}:{name} ".encode())
        if f"{number}:{end}" == point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def counted(connection: Any, statement: Any, args: Any) -> Any:
        nonlocal number
        number += 1
        at("before", statement.name)
        rows = await invoke(connection, statement, args)
        at("after", statement.name)
        return rows

    call.invoke = counted


async def cancel(client: FlowFabric, flow: FlowId) -> None:
    """What whoever cancels a flow does, and waits for."""
    await client.flows.cancel(flow, reason="enough", actor="ann", wait=timedelta(seconds=30))


async def work_off(client: FlowFabric, _: FlowId) -> None:
    """What the reconcilers do with backlogs that are due."""
    while (await client.flows.cancel_backlog(limit=BATCH))[0]:
        pass
    await tell(client)


async def tell(client: FlowFabric, _: FlowId | None = None) -> None:
    """What the reconcilers do with wakes and siblings."""
    wakes = Cascades(client.database)
    while True:
        _, due_in = await wakes.resolve_once(0, BATCH)
        handled, cancel_in = await wakes.cancel_siblings_once(0, BATCH)
        if due_in is None and cancel_in is None and not handled:
            return


PROCEDURES = {"cancel": cancel, "work_off": work_off, "tell": tell}


async def work(url: str, procedure: str, flow: str) -> None:
    flow_cancel._BATCH = BATCH
    async with FlowFabric(url, namespace=None, pool_size=1) as client:
        await PROCEDURES[procedure](client, FlowId.parse(flow))


def main() -> None:
    for line in sys.stdin:
        url, procedure, flow, point = line.split()
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            try:
                die_at(point, writing)
                asyncio.run(work(url, procedure, flow))
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            passed = file.read()
        _, status = os.waitpid(pid, 0)
        print(passed.strip() or "-", status, sep="|", flush=True)


if __name__ == "__main__":
    main()
