"""A process that can be killed at any of its calls to the database.

Run as a program it reads lines `url point` and forks a worker for each, which ends itself by
`kill -9` at that point: `record_steps:2:before` is before its second call of record_steps is sent,
`record_steps:2:after` when the answer is there. `commit:1:before` is before the transaction of a
transactional step ends. It says the process number of each, and when it has
ended. Every point that a worker passes is a line in a file.

The hook is here, not in the package: the worker's own `db.call.invoke` is wrapped after the fork.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from flowfabric import App, Context, Ended
from flowfabric.client import caller_connections
from flowfabric.db import call
from flowfabric.db.connection import read_only

# What a worker calls on its own, whatever its handlers do.
BACKGROUND = {
    *("expire_executions", "expire_leases", "heartbeat_workers", "hint", "mark_worker_dead"),
    *("promote_delayed", "reap_grants", "register_worker", "renew_leases", "resolve_wakes"),
    *("sweep_workers", "trim_events", "trim_keys", "trim_retention", "list_expired_leases"),
    *("declare_schedules", "due_schedules", "fire_schedule", "orphan_schedules"),
    *("cancel_siblings", "reconcile_siblings", "cancel_backlog"),
}
STEPS = ("load", "price", "charge", "pack", "ship")
RESULT = ["load 7", "price 7", "charge 7", "child of 7", "pack 7", "ship 7"]


def journey(app: App, log: Path) -> Any:
    """Five steps, a sleep and a child; every call of a function is a line in the log."""

    def note(name: str, n: int) -> str:
        with log.open("a") as file:
            file.write(f"{name}\n")
        return f"{name} {n}"

    @app.task(name="child")
    async def child(n: int) -> str:
        note("child", n)
        await asyncio.sleep(0.03)  # most often its parent has begun to wait
        return f"child of {n}"

    @app.task(name="journey", max_reclaims=1000)
    async def parent(ctx: Context, n: int) -> list[str]:
        done = [await ctx.step(name, note, name, n) for name in STEPS[:3]]
        await ctx.sleep(timedelta(hours=1))
        run = await ctx.submit(child, n)
        done.append(await run.result())
        return [*done, *[await ctx.step(name, note, name, n) for name in STEPS[3:]]]

    return parent


def ledger(app: App, log: Path) -> Any:
    """Three generations; each books itself in a transaction, and adds in a step."""

    async def book(connection: Any, generation: int, total: int) -> int:
        await connection.execute("insert into ledger values ($1, $2)", generation, total)
        return total + 1

    def add(total: int) -> int:
        return total + 10

    @app.task(name="ledger", max_reclaims=1000)
    async def run(ctx: Context, total: int) -> int:
        total = await ctx.transaction(book, ctx.generation, total)
        total = await ctx.step("add", add, total)
        if ctx.generation < 2:
            await ctx.continue_as(total)
        return total

    return run


def die_at(point: str, passed: Path) -> None:
    """Wrap the way to the database so that the process ends there."""
    invoke = call.invoke
    calls: Counter[str] = Counter()

    def at(name: str, end: str) -> None:
        here = f"{name}:{calls[name]}:{end}"
        with passed.open("a") as file:
            file.write(f"{here}\n")
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def counted(connection: Any, statement: Any, args: Any) -> Any:
        name = statement.name
        if name in BACKGROUND:
            return await invoke(connection, statement, args)
        if name == "claim_executions":
            rows = await invoke(connection, statement, args)
            if rows:  # one that found nothing is nobody's
                calls[name] += 1
                at(name, "after")
            return rows
        calls[name] += 1
        at(name, "before")
        rows = await invoke(connection, statement, args)
        at(name, "after")
        return rows

    call.invoke = counted

    # A transactional step has a connection of its own.
    send, transaction = caller_connections.Asyncpg.call, caller_connections.Asyncpg.transaction

    async def sent(self: Any, operation: Any, args: Any) -> str:
        calls[operation.name] += 1
        at(operation.name, "before")
        answer = await send(self, operation, args)
        at(operation.name, "after")
        return answer

    @asynccontextmanager
    async def transacted(self: Any) -> AsyncIterator[None]:
        calls["commit"] += 1
        async with transaction(self):
            yield
            at("commit", "before")
        at("commit", "after")

    caller_connections.Asyncpg.call = sent
    caller_connections.Asyncpg.transaction = transacted


def hooked(app: App, log: Path) -> Any:
    """A task that ends in one of two ways, and a hook with a step: a line in the log."""

    def note(name: str) -> None:
        with log.open("a") as file:
            file.write(f"{name}\n")

    @app.task(name="hooked", max_reclaims=1000)
    async def task(n: int) -> int:
        if n < 0:
            raise LookupError(n)
        return n

    @task.on_end(max_reclaims=1000)
    async def told(ctx: Context, ended: Ended[int | None]) -> str:
        await ctx.step("note", note, f"{ended.outcome}:{ended.arguments['n']}")
        return str(ended.id)

    return task


def changed(app: App, log: Path, code: str = "new") -> Any:
    """A task that begins anew with code that has lost a step: each call is a line in the log."""

    def note(name: str) -> str:
        with log.open("a") as file:
            file.write(f"{name}\n")
        return name

    @app.task(name="changed", max_reclaims=1000, on_change="restart")
    async def task(ctx: Context) -> list[str]:
        names = ("old", "pay") if code == "old" else ("new", "pay")
        done = [await ctx.step(name, note, name) for name in names]
        await ctx.sleep(timedelta(hours=1))
        return [*done, await ctx.step("ship", note, "ship")]

    return task


def talker(app: App, log: Path) -> Any:
    """A handler that streams between, before and inside its steps, and sleeps."""

    @app.task(name="talker", max_reclaims=1000)
    async def run(ctx: Context, n: int) -> int:
        async def speak(word: str) -> None:
            for part in range(3):
                await ctx.stream.send(f"{word}{part}")

        for place in range(3):
            await speak(f"before{place}.")
            await ctx.step(f"step {place}", speak, f"in{place}.")
        await ctx.sleep(timedelta(hours=1))
        await speak("after.")
        await ctx.stream.summary({"n": n})
        return n

    return run


TASKS = {
    "journey": journey,
    "talker": talker,
    "hooked": hooked,
    "ledger": ledger,
    "changed": changed,
}


async def work(url: str, log: Path, what: str) -> None:
    if what == "check":
        await check(url, log)
        return
    app = App(database_url=url, lease_ttl=timedelta(seconds=30))
    TASKS[what](app, log)
    await app.run_worker(concurrency=2)


async def check(url: str, log: Path) -> None:
    """Check journals as `flowfabric check` does; every verdict is a line in the log."""
    app = App(database_url=read_only(url))
    journey(app, log)
    changed(app, log)
    with log.open("a") as file:
        async for one in app.check_journals():
            file.write(f"{one.fit} {one.id}\n")
    await app.close()


def main() -> None:
    log, what = Path(sys.argv[1]), sys.argv[2]
    for line in sys.stdin:
        url, point = line.split()
        pid = os.fork()
        if not pid:
            die_at(point, log.with_suffix(".points"))
            asyncio.run(work(url, log, what))
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("ended", status, flush=True)


if __name__ == "__main__":
    main()
