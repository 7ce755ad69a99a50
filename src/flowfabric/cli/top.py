"""`flowfabric top`: lanes, workers and rates, as they are now and as they change."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowfabric.cli.database import (
    ALL_NAMESPACES_OPTION,
    NAMESPACE_OPTION,
    URL_OPTION,
    failures_as_exit_codes,
    resolve_database_url,
    resolve_namespace,
)
from flowfabric.cli.output import (
    FORM_OPTION,
    Cell,
    Column,
    Form,
    Styled,
    is_json,
    json_line,
    say,
    styled,
    table,
    table_width,
)
from flowfabric.cli.times import precise, short
from flowfabric.client import FlowFabric
from flowfabric.core.errors import Unavailable
from flowfabric.core.lane import LaneTraffic
from flowfabric.core.worker import WorkerInfo
from flowfabric.db.connection import place

WINDOW = timedelta(seconds=10)
# A pause is this many times as long as the look before it: a slow database is looked at less often.
AT_LEAST = 5.0
_COLOURS = {"paused": "yellow", "draining": "yellow", "disabled": "red"}
# Something waits this long although a worker is there: worth a look.
_LONG = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is to be seen at one moment."""

    at: datetime
    lanes: Sequence[LaneTraffic]
    workers: Sequence[WorkerInfo]

    @property
    def running(self) -> Counter[str]:
        """How many executions each worker runs."""
        found: Counter[str] = Counter()
        for lane in self.lanes:
            for worker, number in zip(lane.workers, lane.running, strict=True):
                found[worker] += number
        return found


def top(
    once: bool = typer.Option(
        False, "--once", help="Print it once. The default if stdout is not a terminal."
    ),
    interval: float = typer.Option(
        1.0, "--interval", "-i", min=0.2, max=3600, help="Seconds between two looks."
    ),
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Watch lanes, workers and rates. Ctrl-C ends it.

    Rates are those of the last 10 seconds, or of a shorter time if much happens. A look costs the
    database the same however much it holds: counts stop at a few thousand and get a +.
    """
    with failures_as_exit_codes():
        space = resolve_namespace(namespace, all_namespaces)
        url = resolve_database_url(database_url)
        if once or output is not None or not sys.stdout.isatty():
            asyncio.run(_once(url, space, is_json(output)))
            return
        with suppress(KeyboardInterrupt):
            asyncio.run(_watch(url, space, interval))


async def _once(url: str, namespace: str | None, as_json: bool) -> None:
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        snapshot = await _look(client)
    if as_json:
        say(json_line(_facts(snapshot)))
        return
    for line in _lines(snapshot, _where(url), table_width()):
        say(line)


async def _watch(url: str, namespace: str | None, interval: float) -> None:
    loop = asyncio.get_running_loop()
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        snapshot = await _look(client)
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            problem, took = "", 0.0
            due = loop.time()
            while True:
                size = shutil.get_terminal_size()
                lines = _lines(snapshot, _where(url), size.columns, size.lines - 1)
                if problem:
                    lines = [styled(problem, "red"), *lines]
                text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")
                live.update(text, refresh=True)
                due = max(due + interval, loop.time() + AT_LEAST * took)
                await asyncio.sleep(due - loop.time())
                before = loop.time()
                try:
                    snapshot, problem = await _look(client), ""
                except Unavailable as error:
                    problem = f"as it was at {_time(snapshot.at)}: {error}"
                took = loop.time() - before


async def _look(client: FlowFabric) -> Snapshot:
    lanes = await client.lanes.traffic(window=WINDOW)
    workers = await client.workers.list()
    return Snapshot(await client.executions.server_time(), lanes, workers)


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    running = snapshot.running
    return {
        "at": snapshot.at,
        "lanes": [
            {
                **{
                    key: value
                    for key, value in asdict(lane).items()
                    if value is not None and key not in ("workers", "running")
                },
                **{f"{name}_per_second": round(rate, 3) for name, rate in _rates(lane).items()},
            }
            for lane in snapshot.lanes
        ],
        "workers": [
            {
                **{key: value for key, value in asdict(worker).items() if value is not None},
                "running": running[worker.worker_instance_id],
            }
            for worker in snapshot.workers
        ],
    }


def _rates(lane: LaneTraffic) -> dict[str, float]:
    return {
        name: getattr(lane, name) / lane.seconds
        for name in ("submitted", "completed", "retried", "failed")
    }


# What people see


def _lines(
    snapshot: Snapshot, where: str, width: int | None, height: int | None = None
) -> list[str]:
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
    workers = _workers_table(snapshot, width)
    lanes = _lanes_table(snapshot, width)
    if height is not None:
        # Who is there matters less than what piles up: lanes get what they need, up to two thirds.
        room = height - len(lines) - 1
        lanes = _cut(lanes, max(room - len(workers), room * 2 // 3), "lanes")
        workers = _cut(workers, room - len(lanes), "workers")
    return [*lines, *lanes, "", *workers]


def _cut(lines: list[str], room: int, what: str) -> list[str]:
    if len(lines) <= room:
        return lines
    room = max(room, 2)
    return [*lines[: room - 1], f"… {len(lines) - room + 1} more {what}; -o json shows all"]


def _lanes_table(snapshot: Snapshot, width: int | None) -> list[str]:
    if not snapshot.lanes:
        return ["no lanes yet; one appears with its first submission"]
    columns = [
        Column("LANE", least=8),
        Column("STATE"),
        Column("WAITING", is_number=True),
        Column("OLDEST", is_number=True, drop=1),
        Column("DELAYED", is_number=True),
        Column("ACTIVE", is_number=True),
        Column("IN/S", is_number=True),
        Column("DONE/S", is_number=True),
        Column("RETRY/S", is_number=True, drop=2),
        Column("FAIL/S", is_number=True),
    ]
    busiest = sorted(snapshot.lanes, key=lambda lane: not _is_busy(lane))
    return table(columns, [_lane_row(lane, snapshot.at) for lane in busiest], width)


def _is_busy(lane: LaneTraffic) -> bool:
    return bool(lane.waiting or lane.active or lane.submitted or lane.completed or lane.failed)


def _lane_row(lane: LaneTraffic, now: datetime) -> list[Cell]:
    state: Cell = lane.state
    if colour := _COLOURS.get(lane.state):
        until = "" if lane.resumes_at is None else f" {precise(lane.resumes_at - now)}"
        state = Styled(lane.state + until, colour)
    oldest: Cell = "-"
    if lane.waiting_since is not None:
        age = max(now - lane.waiting_since, timedelta(0))
        oldest = Styled(short(age), "yellow") if age > _LONG else short(age)
    rates = _rates(lane)
    more = "+" if lane.is_more_timed else ""
    return [
        lane.lane,
        state,
        f"{lane.waiting}{'+' if lane.is_more_waiting else ''}",
        oldest,
        f"{lane.delayed}{more}",
        f"{lane.active}{more}",
        _rate(rates["submitted"]),
        _rate(rates["completed"]),
        _warned(rates["retried"], "yellow"),
        _warned(rates["failed"], "red"),
    ]


def _workers_table(snapshot: Snapshot, width: int | None) -> list[str]:
    if not snapshot.workers:
        return ["no worker is alive: flowfabric worker MODULE:APP starts one"]
    columns = [
        Column("WORKER", least=12),
        Column("RUNS", is_number=True),
        Column("LANES", least=6),
        Column("TASKS", is_number=True, drop=2),
        Column("UP", is_number=True, drop=1),
        Column("HEARD", is_number=True),
    ]
    running = snapshot.running
    rows: list[list[Cell]] = [
        [
            one.worker_instance_id,
            str(running[one.worker_instance_id]),
            _named(one.lanes),
            "any" if one.tasks is None else str(len(one.tasks)),
            short(snapshot.at - one.registered_at),
            f"{short(snapshot.at - one.heartbeat_at)} ago",
        ]
        for one in sorted(snapshot.workers, key=lambda w: -running[w.worker_instance_id])
    ]
    return table(columns, rows, width)


def _named(lanes: Sequence[str] | None) -> str:
    return "any" if lanes is None else ",".join(lanes)


def _warned(rate: float, colour: str) -> Cell:
    return Styled(_rate(rate), colour) if rate else _rate(rate)


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def _where(url: str) -> str:
    return place(url).removeprefix(f"{Path.cwd()}/")


def _time(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"
