"""One run: who takes part, what breaks, who looks on, and what is left to be checked in the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from faults.proxy import proxied
from faults.server import Server
from faults.workers import Crew
from flowfabric.core.ids import ExecutionId
from flowfabric.db.connection import open_connection
from flowfabric.doctor import Level, examine, explain

from .faults import Nemesis, Pace
from .history import Event, History, Row, read_calls
from .rules import check
from .stage import Calm
from .subscriber import FILE as DELIVERIES
from .subscriber import read_deliveries

SEED = 20261116
TESTS = Path(__file__).parents[1]
# After the last fault, how long nothing that is due may stand still (a lease, two rounds of every
# reconciler, and 30 s for a slow machine), and how long all of it may take.
STUCK_SECONDS = 120.0
DRAIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    # Either faults of every kind come for some time, or these come once each, in this order.
    seconds: float = 0.0
    faults: tuple[str, ...] = ()
    # The submits end after so many, if it is not 0.
    submits: int = 0
    workers: int
    lease_seconds: float
    submits_per_second: float
    pace: Pace
    doctor_every: float = 0.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    history: History
    problems: list[str]
    findings: list[str]
    faults: Counter[str]
    away: list[float]
    figures: dict[str, Any] = field(default_factory=dict)


async def chaos(server: Server, folder: Path, scale: Scale, tell: Callable[[str], None]) -> Outcome:
    """Let everything go wrong for a while, wait until all work is done, and check what happened."""
    began = monotonic()
    doctor = Doctor(server)
    crews: list[Crew] = []
    async with proxied(server.url) as proxy:

        def start(name: str, *roles: str) -> Crew:
            crews.append(crew_of(folder / name, roles, proxy.url, scale))
            return crews[-1]

        try:
            subscriber = start("subscriber", "subscriber")
            await subscriber.until_started()
            await until_subscribed(folder / DELIVERIES)
            start("people", "submitter", "operators")
            # Every fourth worker is one as users have it; the others make trouble.
            roles = ["worker" if n % 4 else "app_worker" for n in range(scale.workers)]
            workers = start("workers", *roles)
            for crew in crews:
                await crew.until_started()
            nemesis = Nemesis(
                workers=workers,
                subscriber=subscriber,
                server=server,
                proxy=proxy,
                random=Random(SEED),
                pace=scale.pace,
                lease_seconds=scale.lease_seconds,
            )
            await endure(scale, nemesis, doctor, crews, tell)
            Calm(folder).declare()
            ended = await until_all_ended(server)
            deliveries = await until_all_delivered(server, folder / DELIVERIES)
            for crew in crews:
                # Not in this thread: they say good-bye through the proxy, which runs in it.
                codes = await asyncio.to_thread(crew.close, 60.0)
                # One that had just taken the place of another may not have been listening yet.
                assert set(codes) <= {0, -signal.SIGTERM}, (codes, crew.log())
                assert crew.errors() == [], crew.log()
        finally:
            for crew in crews:
                crew.destroy()
    await doctor.look(is_full=True)
    history = await snapshot(server, folder, scale.lease_seconds)
    checking = monotonic()
    problems = check(history, deliveries)
    figures = figures_of(history, nemesis) | {
        "seconds": round(monotonic() - began),
        "seconds until all had ended": round(ended, 1),
        "seconds of checking": round(monotonic() - checking, 1),
        "looks of the doctor": doctor.looks,
        "warnings of the doctor": dict(doctor.warnings),
    }
    tell(f"{figures}")
    for problem in problems:
        tell(problem)
    for id in sorted({word for p in problems for word in p.split() if word.startswith("{fp:")})[:1]:
        tell(await explained(server, id.rstrip(":")))
    return Outcome(
        history=history,
        problems=problems,
        findings=doctor.errors,
        faults=nemesis.counts,
        away=nemesis.away,
        figures=figures,
    )


def crew_of(home: Path, roles: Sequence[str], url: str, scale: Scale) -> Crew:
    """Processes that play these parts; the folder above theirs is that of the histories."""
    home.mkdir()
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(TESTS)]
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CHAOS_DATABASE_URL": url,
        "CHAOS_FOLDER": str(home.parent),
        "CHAOS_LEASE_SECONDS": str(scale.lease_seconds),
        "CHAOS_SUBMITS_PER_SECOND": str(scale.submits_per_second),
        "CHAOS_SUBMITS": str(scale.submits),
    }
    commands = [
        [sys.executable, "-m", f"chaos.{role}", f"{role}{n}", str(SEED)]
        for n, role in enumerate(roles)
    ]
    return Crew(home, commands, environment)


async def endure(
    scale: Scale,
    nemesis: Nemesis,
    doctor: Doctor,
    crews: Sequence[Crew],
    tell: Callable[[str], None],
) -> None:
    """The faults, with a look of the doctor every so often."""
    if scale.faults:
        await nemesis.run_once(scale.faults)
        for crew in crews:
            crew.supervise()
        return
    breaking = asyncio.create_task(nemesis.run())
    started = checked = monotonic()
    try:
        while monotonic() - started < scale.seconds:
            await asyncio.sleep(0.5)
            if breaking.done():
                breaking.result()
            for crew in crews:
                crew.supervise()
            if monotonic() - checked >= scale.doctor_every:
                checked = monotonic()
                async with nemesis.server_lock:
                    told = await doctor.look()
                tell(f"{monotonic() - started:4.0f} s  {told}  {nemesis}")
    finally:
        breaking.cancel()
        with suppress(asyncio.CancelledError):
            await breaking


async def until_subscribed(path: Path) -> None:
    """Wait for the first cursor: what happens before it, nobody is owed."""
    deadline = monotonic() + 60
    while not list(read_deliveries(path)):
        assert monotonic() < deadline, "nobody subscribes"
        await asyncio.sleep(0.05)


class Doctor:
    """Looks at what changed since the last time; the first and the last time at everything."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._cursor: str | None = None
        self.looks = 0
        self.errors: list[str] = []
        self.warnings: Counter[str] = Counter()

    async def look(self, *, is_full: bool = False) -> str:
        async with open_connection(self._server.url, statement_cache_size=0) as connection:
            since = None if is_full else self._cursor
            report = await examine(connection, since=since)
        self.looks += 1
        self._cursor = report.cursor
        for finding in report.findings:
            if finding.level is Level.ERROR:
                self.errors.append(f"{finding.name} {finding.execution}: {finding.problem}")
            else:
                self.warnings[finding.name] += 1
        errors, warnings = report.count(Level.ERROR), report.count(Level.WARNING)
        return (
            f"doctor: {errors} errors, {warnings} warnings, {report.duration.total_seconds():.1f} s"
        )


async def until_all_ended(server: Server) -> float:
    """Wait until nothing is left to do; if what is due stands still, the rule of ends will tell."""
    began = moved = monotonic()
    last = None
    while monotonic() - moved < STUCK_SECONDS and monotonic() - began < DRAIN_SECONDS:
        ((left, due, moves),) = await server.fetch(
            "select count(*), count(*) filter (where greatest(reclaim_at, delayed_until) > now())"
            " is distinct from count(*), coalesce(sum(version), 0) from ff.execution"
            " where phase <> 'terminal' and eligibility <> 'blocked_by_operator'"
        )
        if left == 0:
            break
        if (left, moves) != last or not due:
            last, moved = (left, moves), monotonic()
        await asyncio.sleep(0.2)
    return monotonic() - began


async def until_all_delivered(server: Server, path: Path) -> list[dict[str, Any]]:
    """Give the subscriber time to see everything; the rule of the log tells whether it did."""
    deadline = monotonic() + 60
    while True:
        ((total,),) = await server.fetch("select count(*) from ff.event")
        pages = list(read_deliveries(path))
        seen = {tuple(event) for page in pages for event in page["events"]}
        if len(seen) >= total or monotonic() > deadline:
            return pages
        await asyncio.sleep(0.5)


async def snapshot(server: Server, folder: Path, lease_seconds: float) -> History:
    """The histories of all processes beside what the database holds."""
    history = History(calls=read_calls(folder), lease_seconds=lease_seconds)
    for row in await server.fetch(
        """
        select e.partition_key, e.execution_id, e.public_state::text, e.version, e.epoch,
               e.eligibility::text,
               convert_from(e.result, 'utf8') as result,
               convert_from(coalesce(e.payload, b.payload), 'utf8') as payload
        from ff.execution e left join ff.execution_body b using (partition_key, execution_id)
        """
    ):
        facts = dict(row)
        id = ExecutionId.of(facts.pop("partition_key"), facts.pop("execution_id"))
        history.rows[id] = Row(**facts)
    for row in await server.fetch(
        """
        select partition_key, execution_id, version, kind::text, lease_id::text as lease, epoch,
               attempt_index + 1 as attempt, outcome::text, detail
        from ff.event order by execution_id, version, event_id
        """
    ):
        facts = dict(row)
        facts["detail"] = json.loads(facts["detail"]) if facts["detail"] else {}
        id = ExecutionId.of(facts.pop("partition_key"), facts.pop("execution_id"))
        history.events.setdefault(id, []).append(Event(**facts))
    # So that a run can be looked at, and checked again, when its server is gone.
    kept = {
        "rows": {id: asdict(row) for id, row in history.rows.items()},
        "events": {id: list(map(asdict, events)) for id, events in history.events.items()},
    }
    (folder / "database.json").write_text(json.dumps(kept), encoding="utf-8")
    return history


def figures_of(history: History, nemesis: Nemesis) -> dict[str, Any]:
    """What happened, for the record."""
    items = [item for leases in history.leases.values() for _, item in leases]
    granted: dict[tuple[str, str], float] = {}
    for id, leases in history.leases.items():
        for call, item in leases:
            granted.setdefault((id, item["lease"]), call.returned)
    late = [
        call
        for call in history.fenced
        if call.invoked
        > granted.get((call.args["id"], call.args["lease"]), call.invoked) + history.lease_seconds
    ]
    kinds = Counter(event.kind for events in history.events.values() for event in events)
    verdicts: Counter[str] = Counter()
    for call in history.calls:
        verdicts[call.verdict] += 1
    return {
        "calls": len(history.calls),
        "calls by verdict": dict(verdicts),
        "executions": len(history.rows),
        "events": sum(kinds.values()),
        "claims": len(items),
        "zombies": len({(call.args["id"], call.args["lease"]) for call in late if not call.is_ok}),
        "zombie calls refused": sum(1 for call in late if call.error),
        "processes": len({call.process for call in history.calls}),
        "kinds": dict(sorted(kinds.items())),
        "calls by kind": dict(sorted(history.counts().items())),
        "faults": dict(sorted(nemesis.counts.items())),
        "seconds away": [round(seconds, 1) for seconds in nemesis.away],
    }


async def explained(server: Server, id: str) -> str:
    try:
        async with open_connection(server.url, statement_cache_size=0) as connection:
            found = await explain(connection, ExecutionId.parse(id))
    except Exception as error:
        return f"{id} cannot be explained: {error}"
    return "\n".join(f"{part} {facts}" for part, facts in found.rows)
