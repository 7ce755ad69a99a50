"""The demo: two workers, some executions, one kill -9, and a summary of the recovery."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from flowfabric.app.app import App
from flowfabric.app.run import Run
from flowfabric.cli.dashboard import MISSING, open_dashboard
from flowfabric.cli.demo import tasks
from flowfabric.cli.options import EXIT_UNREACHABLE
from flowfabric.cli.output import say
from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.execution import Ending, Event, ExecutionInfo
from flowfabric.core.states import EventKind, PublicState
from flowfabric.drawing.plain import json_line
from flowfabric.embedded import EmbeddedError, Server
from flowfabric.embedded import start as start_server

LEASE_SECONDS = 3
WORK_SECONDS = 4.0
LIMIT_SECONDS = 60.0
REFRESH_SECONDS = 0.1


@dataclass
class Scene:
    """What the demo shows: its executions, their endings, and its messages so far."""

    runs: list[Run[Any]] = field(default_factory=list)
    endings: dict[Any, Ending] = field(default_factory=dict)
    sleeper: ExecutionInfo | None = None
    lines: list[str] = field(default_factory=list)
    started: float = field(default_factory=monotonic)

    def say(self, line: str) -> None:
        self.lines.append(f"{monotonic() - self.started:5.1f} s  {line}")


def demo(
    as_json: bool = typer.Option(
        False, "--json", help="Print a summary as one JSON line at the end."
    ),
    folder: Path = typer.Option(
        Path("."), "--folder", help="Keep the data of the demo in this folder, in .flowfabric/."
    ),
    stay: bool = typer.Option(
        False, "--stay", help="Keep the workers and the dashboard running until Ctrl-C."
    ),
) -> None:
    """Kill a worker and watch its execution recover, on a Postgres that starts by itself."""
    # With --json, stdout contains only the summary.
    console = Console(stderr=as_json, highlight=False)
    try:
        summary = asyncio.run(_play(console, folder.resolve(), stay=stay))
    except (FlowFabricError, EmbeddedError) as error:
        Console(stderr=True).print(f"[red]error:[/] {error}")
        raise typer.Exit(EXIT_UNREACHABLE) from error
    if as_json:
        say(json_line(summary))
    if summary["lost"] or summary["failed"] or not summary["recovered"]:
        raise typer.Exit(1)


async def _play(console: Console, folder: Path, *, stay: bool) -> dict[str, int]:
    async with AsyncExitStack() as stack:
        clock = monotonic()
        server = await asyncio.to_thread(start_server, folder)
        stack.push_async_callback(asyncio.to_thread, server.release)
        verb = "started" if server.started else "is running"
        console.print(
            f"[bold]Postgres {server.version}[/] {verb}  ({monotonic() - clock:.1f} s, "
            f"{server.data})"
        )
        app = await _connected(server)
        stack.push_async_callback(app.close)
        client = await app.client()
        console.print("[bold]schema[/] is in place")
        dashboard = await open_dashboard(_watching(app))
        if dashboard is not None:
            stack.push_async_callback(dashboard.close)
        where = MISSING if dashboard is None else dashboard.address
        console.print(f"[bold]dashboard[/] {escape(where)}")
        crew = {name: await _start_worker(server, app, name) for name in ("ada", "bob")}
        stack.push_async_callback(_stop_workers, crew)
        console.print(f"[bold]workers[/] {', '.join(crew)} started, lease {LEASE_SECONDS} s\n")
        scene = Scene()
        await _submit(scene)
        await _watch(console, scene, client, crew)
        summary = await _conclude(console, scene, client)
        if stay:
            await _stay(console, where)
        return summary


def _watching(app: App) -> App:
    """Return a second app for the dashboard, with the database and namespace of the first app."""
    watching = App(name="demo")
    watching.settings = app.settings
    return watching


async def _stay(console: Console, where: str) -> None:
    """Wait for Ctrl-C."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    console.print(f"[bold]running[/] until Ctrl-C: {escape(where)}")
    await stopping.wait()


async def _connected(server: Server) -> App:
    """Return the app of the demo, with a migrated database and a new namespace."""
    app = tasks.app
    app.settings = replace(
        app.settings, database_url=server.url, url=None, namespace=f"demo-{secrets.token_hex(4)}"
    )
    await app.prepare()
    return app


async def _start_worker(server: Server, app: App, name: str) -> asyncio.subprocess.Process:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("FLOWFABRIC_")
    }
    environment |= {
        "FLOWFABRIC_DATABASE_URL": server.url,
        "FLOWFABRIC_NAMESPACE": app.settings.namespace,
        "FLOWFABRIC_LEASE_TTL": str(LEASE_SECONDS),
        "FLOWFABRIC_LOG_LEVEL": "ERROR",
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric", "worker", f"{tasks.__name__}:app"),
        *("--worker-id", name, "-c", "8"),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
    )


async def _submit(scene: Scene) -> None:
    scene.runs.append(await tasks.sleeper.submit(WORK_SECONDS))
    scene.runs += await tasks.greet.submit_many([(f"guest {n}",) for n in range(20)])
    scene.runs += await tasks.resize.submit_many([(f"photo-{n}.jpg", 640) for n in range(10)])
    scene.runs += await tasks.charge_card.submit_many([(n,) for n in range(5)])
    scene.say(f"{len(scene.runs)} executions submitted")


async def _watch(
    console: Console,
    scene: Scene,
    client: FlowFabric,
    crew: dict[str, asyncio.subprocess.Process],
) -> None:
    sleeper = scene.runs[0]
    killed = False
    seen = printed = 0
    with Live(
        console=console, refresh_per_second=10, transient=False, auto_refresh=console.is_terminal
    ) as live:
        while monotonic() - scene.started < LIMIT_SECONDS:
            if len(scene.endings) == len(scene.runs):
                break
            await read_endings(scene, client)
            info = scene.sleeper = await client.executions.describe(sleeper.id)
            for event in (await client.executions.events(sleeper.id))[seen:]:
                scene.say(_event_line(event))
                seen += 1
            if info is not None:
                alone = len(scene.endings) >= len(scene.runs) - 1
                if not killed and alone and info.worker_id is not None:
                    process = crew[info.worker_id]
                    process.send_signal(signal.SIGKILL)
                    killed = True
                    scene.say(f"[bold red]kill -9[/] of {info.worker_id}, which holds the sleeper")
            if console.is_terminal:
                live.update(_picture(scene))
            else:
                for line in scene.lines[printed:]:
                    console.print(line)
                printed = len(scene.lines)
            await asyncio.sleep(REFRESH_SECONDS)
        scene.sleeper = await client.executions.describe(sleeper.id)
        for event in (await client.executions.events(sleeper.id))[seen:]:
            scene.say(_event_line(event))
        if console.is_terminal:
            live.update(_picture(scene))
        else:
            for line in scene.lines[printed:]:
                console.print(line)


async def read_endings(scene: Scene, client: FlowFabric) -> None:
    """Update the scene with the endings of executions that have ended since the last call."""
    unended = defaultdict(list)
    for run in scene.runs:
        if run.id.uuid not in scene.endings:
            unended[run.id.partition_key].append(run.id.uuid)
    for partition, ids in unended.items():
        for ending in await client.executions.read_results(partition, ids):
            scene.endings[ending.execution_id] = ending


def _event_line(event: Event) -> str:
    worker = (event.worker_instance_id or "").partition("-")[0]
    where = f"attempt {event.attempt}, epoch {event.epoch}"
    match event.kind:
        case EventKind.SUBMITTED:
            return "the sleeper is submitted"
        case EventKind.CLAIMED:
            return f"{worker} claims the sleeper: {where}"
        case EventKind.LEASE_EXPIRED:
            return f"[yellow]the lease of {worker} has expired[/]: another worker may reclaim it"
        case EventKind.RECLAIMED:
            return f"{worker} reclaims it: {where}"
        case EventKind.COMPLETED:
            return f"[bold green]{worker} completes it[/]: {where}"
        case kind:
            return f"{kind} {where}"


def _picture(scene: Scene) -> Group:
    done, total = len(scene.endings), len(scene.runs)
    width = 40
    bar = "█" * (width * done // max(total, 1))
    progress = Text(f"{bar:<{width}} {done} of {total} executions ended")
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for column in ("sleeper", "state", "ownership", "worker", "lease", "attempt", "epoch"):
        table.add_column(column)
    if (info := scene.sleeper) is not None:
        table.add_row(
            str(info.id)[-12:],
            str(info.public_state),
            str(info.ownership),
            info.worker_id or "-",
            _lease_left(info),
            str(info.attempt),
            str(info.epoch),
        )
    story = Text.from_markup("\n".join(scene.lines[-10:]))
    return Group(Panel(Group(progress, Text(), table, Text(), story), title="flowfabric demo"))


def _lease_left(info: ExecutionInfo) -> str:
    if info.lease_expires_at is None:
        return "-"
    return f"{(info.lease_expires_at - datetime.now(UTC)).total_seconds():.1f} s"


async def _conclude(console: Console, scene: Scene, client: FlowFabric) -> dict[str, int]:
    sleeper = scene.runs[0]
    attempts = Table("attempt", "type", "worker", "epoch", "state", title="Its attempts")
    for attempt in await client.executions.attempts(sleeper.id):
        attempts.add_row(
            str(attempt.attempt),
            str(attempt.attempt_type),
            attempt.worker_instance_id or "",
            str(attempt.epoch),
            str(attempt.lifecycle),
        )
    events = Table("version", "event", "attempt", "epoch", "worker", "at", title="Its events")
    for event in await client.executions.events(sleeper.id):
        events.add_row(
            str(event.version),
            str(event.kind),
            "" if event.attempt is None else str(event.attempt),
            "" if event.epoch is None else str(event.epoch),
            event.worker_instance_id or "",
            event.occurred_at.astimezone().strftime("%H:%M:%S.%f")[:-3],
        )
    console.print(attempts)
    console.print(events)
    states = [ending.public_state for ending in scene.endings.values()]
    recovered = 0
    for run in scene.runs:
        info = await client.executions.describe(run.id)
        if info is not None and info.reclaim_count and info.public_state is PublicState.COMPLETED:
            recovered += 1
    completed = states.count(PublicState.COMPLETED)
    summary = {
        "submitted": len(scene.runs),
        "completed": completed,
        "failed": len(states) - completed,
        "recovered": recovered,
        "lost": len(scene.runs) - len(states),
    }
    console.print(
        f"\n[bold]{summary['completed']} of {summary['submitted']} completed[/], "
        f"{summary['recovered']} recovered from the killed worker, {summary['lost']} lost."
    )
    if not summary["lost"] and not summary["failed"]:
        value = await sleeper.result(timeout=5)
        console.print(f"The sleeper's result: {value!r}\n")
    console.print(
        "Next:\n"
        "  open README.md            write your own task in ten lines\n"
        "  make test                 run the tests\n"
        "  make bench                compare it with PgQueuer\n"
    )
    return summary


async def _stop_workers(crew: dict[str, asyncio.subprocess.Process]) -> None:
    for process in crew.values():
        if process.returncode is None:
            process.terminate()
    for process in crew.values():
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()
