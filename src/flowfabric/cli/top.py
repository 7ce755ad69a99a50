"""`flowfabric top`: watch lanes, workers and rates."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import typer

from flowfabric.cli.lanes import COLOURS
from flowfabric.cli.options import Namespaces
from flowfabric.cli.output import Printer, screen, styled
from flowfabric.cli.workers import heard
from flowfabric.client import FlowFabric
from flowfabric.core.errors import Unavailable
from flowfabric.core.execution import ExecutionFilter, ExecutionSummary
from flowfabric.core.lane import LaneTraffic
from flowfabric.core.states import PublicState
from flowfabric.core.worker import WorkerInfo
from flowfabric.db.connection import address_of
from flowfabric.drawing.plain import plain
from flowfabric.drawing.table import Column, table
from flowfabric.drawing.text import Cell, Screen, Styled, cell
from flowfabric.drawing.times import precise, short

WINDOW = timedelta(seconds=10)
# How many running executions are looked at for their progress.
MOST_LISTED = 50
_RUNNING = ExecutionFilter(states=[PublicState.ACTIVE])
# After a read, pause for at least this many times its duration, to spare a slow database.
PAUSE_FACTOR = 5.0
# Executions that wait longer than this are highlighted.
_LONG = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `top` shows: the lanes and workers at one moment."""

    at: datetime
    lanes: Sequence[LaneTraffic]
    workers: Sequence[WorkerInfo]
    # Running executions that have reported progress, newest first.
    progressing: Sequence[ExecutionSummary] = ()
    # Partitions that did not answer.
    missing: Sequence[int] = ()

    @property
    def running(self) -> Counter[str]:
        """The number of running executions per worker."""
        found: Counter[str] = Counter()
        for lane in self.lanes:
            for worker, number in zip(lane.workers, lane.running, strict=True):
                found[worker] += number
        return found


def top(
    database: Namespaces,
    printer: Printer,
    once: bool = typer.Option(
        False, "--once", help="Print once and exit. This is the default if there is no terminal."
    ),
    interval: float = typer.Option(
        1.0, "--interval", "-i", min=0.2, max=3600, help="Refresh after this many seconds."
    ),
) -> None:
    """Watch lanes, workers and rates until Ctrl-C.

    Rates cover the last 10 seconds, or less under heavy load. A + after a count means that the
    count may be too low, because the command reads only a limited number of rows.
    """
    client = database.client()
    if once or printer.output is not None or not sys.stdout.isatty():
        asyncio.run(_once(client, printer))
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(_watch(client, interval))


async def _once(client: FlowFabric, printer: Printer) -> None:
    async with client:
        snapshot = await _read(client)
    printer.record(_facts(snapshot), lambda: _lines(snapshot, client, screen()))


async def _watch(client: FlowFabric, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    loop = asyncio.get_running_loop()
    async with client:
        snapshot = await _read(client)
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            problem, took = "", 0.0
            due = loop.time()
            while True:
                height = shutil.get_terminal_size().lines - 1
                lines = _lines(snapshot, client, screen(), height)
                if problem:
                    lines = [styled(problem, "red"), *lines]
                text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")
                live.update(text, refresh=True)
                due = max(due + interval, loop.time() + PAUSE_FACTOR * took)
                await asyncio.sleep(due - loop.time())
                before = loop.time()
                try:
                    snapshot, problem = await _read(client), ""
                except Unavailable as error:
                    problem = f"not read since {_time(snapshot.at)}: {error}"
                took = loop.time() - before


async def _read(client: FlowFabric) -> Snapshot:
    lanes = await client.lanes.traffic(window=WINDOW)
    workers = await client.workers.list()
    missing = set(lanes.missing)
    progressing: list[ExecutionSummary] = []
    if any(lane.active for lane in lanes):
        page = await client.executions.list(_RUNNING, limit=MOST_LISTED)
        missing.update(page.missing)
        progressing = [one for one in page.executions if _progress(one)]
    now = await client.executions.server_time()
    return Snapshot(now, lanes, workers, progressing, sorted(missing))


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    running = snapshot.running
    lanes = []
    for lane in snapshot.lanes:
        facts = plain(lane) | {
            f"{name}_per_second": round(rate, 3) for name, rate in _rates(lane).items()
        }
        del facts["workers"], facts["running"]
        lanes.append(facts)
    workers = [
        {**plain(worker), "running": running[worker.worker_instance_id]}
        for worker in snapshot.workers
    ]
    progressing = [
        {
            "id": one.id,
            "task": one.task,
            "percent": one.progress_percent,
            "message": one.progress_message,
            "worker_instance_id": one.worker_instance_id,
        }
        for one in snapshot.progressing
    ]
    return {
        "at": snapshot.at,
        "lanes": lanes,
        "workers": workers,
        "progress": progressing,
        "missing": list(snapshot.missing),
    }


def _rates(lane: LaneTraffic) -> dict[str, float]:
    return {
        name: getattr(lane, name) / lane.seconds
        for name in ("submitted", "completed", "retried", "failed")
    }


def _lines(
    snapshot: Snapshot, client: FlowFabric, screen: Screen, height: int | None = None
) -> list[str]:
    where = address_of(client.database.url).replace(f"{Path.cwd()}/", "")
    totals = Counter[str]()
    for lane in snapshot.lanes:
        totals.update(_rates(lane))
    number = len(snapshot.workers)
    lines = [
        f"{where}  {_time(snapshot.at)}  "
        f"{'no worker' if not number else '1 worker' if number == 1 else f'{number} workers'}  "
        f"in {_rate(totals['submitted'])}/s  done {_rate(totals['completed'])}/s  "
        f"failed {_rate(totals['failed'])}/s",
        "",
    ]
    if snapshot.missing:
        names = ", ".join(map(str, snapshot.missing))
        lines.insert(1, styled(f"not everything is shown: no answer from partition {names}", "red"))
    workers = _workers_table(snapshot, screen)
    lanes = _lanes_table(snapshot, screen)
    running = _progress_table(snapshot, screen)
    if height is not None:
        # Lanes get as many lines as they need, but at most two thirds of the lines if there are
        # many workers.
        room = height - len(lines) - 1
        running = _cut(running, max(room // 4, 2), "executions") if running else running
        room -= len(running)
        lanes = _cut(lanes, max(room - len(workers), room * 2 // 3), "lanes")
        workers = _cut(workers, room - len(lanes), "workers")
    return [*lines, *lanes, "", *workers, *running]


def _cut(lines: list[str], room: int, what: str) -> list[str]:
    if len(lines) <= room:
        return lines
    room = max(room, 2)
    return [*lines[: room - 1], f"… {len(lines) - room + 1} more {what}; -o json shows all"]


def _lanes_table(snapshot: Snapshot, screen: Screen) -> list[str]:
    if not snapshot.lanes:
        return ["no lanes yet; a lane appears with its first submission"]

    def state(lane: LaneTraffic) -> Cell:
        left = "" if lane.resumes_at is None else f" {precise(lane.resumes_at - snapshot.at)}"
        colour = COLOURS.get(lane.state)
        return Styled(lane.state + left, colour) if colour else lane.state

    def oldest(lane: LaneTraffic) -> Cell:
        if lane.waiting_since is None:
            return "-"
        age = max(snapshot.at - lane.waiting_since, timedelta(0))
        return Styled(short(age), "yellow") if age > _LONG else short(age)

    def counted(number: int, is_more: bool) -> str:
        return f"{number}{'+' if is_more else ''}"

    def rate(name: str, title: str, colour: str = "", drop: int = 0) -> Column[LaneTraffic]:
        def shown(lane: LaneTraffic) -> Cell:
            value = _rates(lane)[name]
            return cell(_rate(value), colour if value else None)

        return Column(title, shown, is_number=True, drop=drop)

    columns: list[Column[LaneTraffic]] = [
        Column("LANE", lambda one: one.lane, least=8),
        Column("STATE", state),
        Column("WAITING", lambda one: counted(one.waiting, one.is_more_waiting), is_number=True),
        Column(
            "IN LINE",
            lambda one: counted(one.in_line, one.is_more_in_line),
            is_number=True,
            is_shown=any(one.in_line for one in snapshot.lanes),
        ),
        Column("OLDEST", oldest, is_number=True, drop=1),
        Column("DELAYED", lambda one: counted(one.delayed, one.is_more_timed), is_number=True),
        Column("ACTIVE", lambda one: counted(one.active, one.is_more_timed), is_number=True),
        rate("submitted", "IN/S"),
        rate("completed", "DONE/S"),
        rate("retried", "RETRY/S", "yellow", drop=2),
        rate("failed", "FAIL/S", "red"),
    ]
    busiest = sorted(snapshot.lanes, key=lambda lane: not _is_busy(lane))
    return table(columns, busiest, screen)


def _is_busy(lane: LaneTraffic) -> bool:
    return bool(
        lane.waiting
        or lane.in_line
        or lane.active
        or lane.submitted
        or lane.completed
        or lane.failed
    )


def _workers_table(snapshot: Snapshot, screen: Screen) -> list[str]:
    if not snapshot.workers:
        return ["no worker is alive: flowfabric worker MODULE:APP starts one"]
    running, now = snapshot.running, snapshot.at
    columns: list[Column[WorkerInfo]] = [
        Column("WORKER", lambda one: one.worker_instance_id, least=12),
        Column("RUNS", lambda one: str(running[one.worker_instance_id]), is_number=True),
        Column("LANES", lambda one: "any" if one.lanes is None else ",".join(one.lanes), least=6),
        Column(
            "TASKS",
            lambda one: "any" if one.tasks is None else str(len(one.tasks)),
            is_number=True,
            drop=2,
        ),
        Column("UP", lambda one: short(now - one.registered_at), is_number=True, drop=1),
        Column("HEARD", lambda one: heard(one, now), is_number=True),
    ]
    busiest = sorted(snapshot.workers, key=lambda one: -running[one.worker_instance_id])
    return table(columns, busiest, screen)


def _progress_table(snapshot: Snapshot, screen: Screen) -> list[str]:
    if not snapshot.progressing:
        return []
    columns: list[Column[ExecutionSummary]] = [
        Column("RUNNING", lambda one: str(one.id.uuid)),
        Column("TASK", lambda one: one.task, least=8),
        Column("PROGRESS", _progress, least=8),
        Column("WORKER", lambda one: one.worker_instance_id or "-", drop=1),
    ]
    return ["", *table(columns, snapshot.progressing, screen)]


def _progress(one: ExecutionSummary) -> str:
    percent = None if one.progress_percent is None else f"{one.progress_percent} %"
    return ", ".join(filter(None, (percent, one.progress_message)))


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"
