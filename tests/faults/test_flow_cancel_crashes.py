"""Cancelling a flow and cancelling siblings, killed behind every transaction: whoever comes next
finishes, and the end is the one that nobody disturbed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.ids import FlowId
from support.cancelling import backlog, header
from support.clock import Clock
from support.database import Database
from support.flows import Flow, Group, make_flow
from support.proofs import drawn

from . import cancellers


class Killer:
    """Starts processes that cancel, and ends them at a point."""

    def __init__(self, db: Database, process: asyncio.subprocess.Process) -> None:
        self._db = db
        self._process = process

    async def run(self, procedure: str, flow: Flow, point: str = "never") -> list[str]:
        """Returns the points that the process passed, the one it was killed at as the last."""
        assert self._process.stdin
        assert self._process.stdout
        line = f"{self._db.url} {procedure} {FlowId.of(0, flow.id)} {point}\n"
        self._process.stdin.write(line.encode())
        answer = (await asyncio.wait_for(self._process.stdout.readline(), 60)).decode().strip()
        passed, _, status = answer.rpartition("|")
        points = [one for one in passed.split() if one != "-"]
        was_killed = bool(points) and points[-1].startswith(f"{point}:")
        assert int(status) == (signal.SIGKILL.value if was_killed else 0), answer
        return points


@pytest.fixture
async def killer(db: Database) -> AsyncIterator[Killer]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "faults.cancellers"),
        cwd=Path(__file__).parent.parent,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield Killer(db, process)
    process.kill()
    await process.communicate()


def names(points: list[str]) -> list[str]:
    return [point.split(":")[2] for point in points if ":after:" in point]


async def picture(flow: Flow) -> Any:
    """All that the flow came to, without ids and times."""
    engine = flow.engine
    found: dict[str, Any] = {"backlog": await backlog(flow)}
    for name in flow.ids:
        row = await flow.row(name)
        found[name] = (
            *(row["public_state"], row["cancelled_by"], row["cancellation_reason"]),
            *(row["version"], row["epoch"], row["wakes_pending"], row["lease_id"]),
            await engine.kinds(flow[name]),
        )
    rows = await engine.connection.fetch("select * from ff.edge_group where flow_id = $1", flow.id)
    for row in rows:
        found[f"{flow.named(row['downstream_id'])} {row['group_no']}"] = (
            *(row["state"], row["n"], row["succeeded"], row["failed"], row["skipped"]),
            *(row["cancel_pending"], row["cancel_members"]),
        )
    found["edges"] = [(edge["resolution"], edge["outcome"]) for edge in await flow.edges()]
    return found


async def busy_flow(db: Database) -> Flow:
    """A flow in the middle of its life: completed, running, ready, blocked by all kinds."""
    flow = await make_flow(
        db,
        nodes=["done", "run", "ready", "x", "y", "z", "join", "late", "last"],
        edges=[
            *[("done", "ready"), ("run", "x"), ("x", "join"), ("y", "join"), ("z", "join")],
            *[("join", "late"), ("late", "last"), ("ready", "last")],
        ],
        groups=[Group("join", "quorum", 2, "let_run")],
    )
    await flow.complete("done")
    await flow.take("run", ttl=timedelta(hours=10))
    return flow


async def finished_by_reconcilers(db: Database, clock: Clock, flow: Flow) -> None:
    await clock.advance(seconds=31)
    async with FlowFabric(db.url, namespace=None) as client:
        await cancellers.work_off(client, FlowId.of(0, flow.id))


async def finished_by_another_call(db: Database, clock: Clock, flow: Flow) -> None:
    async with FlowFabric(db.url, namespace=None) as client:
        await cancellers.cancel(client, FlowId.of(0, flow.id))
        await cancellers.tell(client)


Finish = Callable[[Database, Clock, Flow], Awaitable[None]]


# One point in so many; from another one on whenever the test runs.
SOME = pytest.mark.parametrize(
    "each",
    [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow(short=1))],
)


@SOME
@pytest.mark.timeout(300)
@pytest.mark.parametrize("finish", [finished_by_reconcilers, finished_by_another_call])
async def test_whoever_cancels_a_flow_may_die_behind_any_transaction(
    db: Database, clock: Clock, killer: Killer, finish: Finish, each: int
) -> None:
    undisturbed = await busy_flow(db)
    points = await killer.run("cancel", undisturbed)
    assert names(points) == ["cancel_flow_header", *["cancel_members"] * 4]
    expected = await picture(undisturbed)
    assert expected["backlog"] == (0, set())
    assert {expected[name][0] for name in undisturbed.ids} == {"completed", "cancelled"}
    for point in points[drawn("points").randrange(each) :: each]:
        flow = await busy_flow(db)
        number, end, _ = point.split(":")
        assert (await killer.run("cancel", flow, f"{number}:{end}"))[-1] == point
        if number != "1" or end != "before":
            # from the header on no member starts any more, whoever is alive
            lanes = list(flow.lanes.values())
            assert await flow.engine.claim(100, lanes=lanes, instance=f"{point}") == []
            if finish is finished_by_another_call:
                assert (await header(flow))["outcome"] == "already_terminal"
        else:
            await header(flow, reason="enough", actor="ann")
        await finish(db, clock, flow)
        assert await picture(flow) == expected, f"killed at {point}"


@SOME
@pytest.mark.timeout(300)
async def test_the_reconciler_of_backlogs_may_die_behind_any_transaction(
    db: Database, clock: Clock, killer: Killer, each: int
) -> None:
    undisturbed = await busy_flow(db)
    await header(undisturbed, reason="enough", actor="ann")
    await clock.advance(seconds=31)
    points = await killer.run("work_off", undisturbed)
    assert names(points).count("cancel_backlog") == 5
    expected = await picture(undisturbed)
    assert expected["backlog"] == (0, set())
    for point in points[drawn("points").randrange(each) :: each]:
        flow = await busy_flow(db)
        await header(flow, reason="enough", actor="ann")
        await clock.advance(seconds=31)
        number, end, _ = point.split(":")
        assert (await killer.run("work_off", flow, f"{number}:{end}"))[-1] == point
        await finished_by_reconcilers(db, clock, flow)
        assert await picture(flow) == expected, f"killed at {point}"


@SOME
@pytest.mark.timeout(300)
async def test_a_canceller_and_then_its_reconciler_may_die_behind_any_transaction(
    db: Database, clock: Clock, killer: Killer, each: int
) -> None:
    undisturbed = await busy_flow(db)
    await killer.run("cancel", undisturbed)
    expected = await picture(undisturbed)
    pairs = [*product(range(2, 5), range(1, 4))]
    for first, second in pairs[drawn("points").randrange(each) :: each]:
        flow = await busy_flow(db)
        await killer.run("cancel", flow, f"{first}:after")
        await clock.advance(seconds=31)
        await killer.run("work_off", flow, f"{second}:after")
        await finished_by_reconcilers(db, clock, flow)
        assert await picture(flow) == expected, (first, second)


async def race(db: Database) -> Flow:
    """A race of nine of which one has won, while somebody held all the others; another member
    still waits for one of these."""
    runners = [f"r{number}" for number in range(9)]
    flow = await make_flow(
        db,
        nodes=[*runners, "goal", "other", "after"],
        edges=[*[(runner, "goal") for runner in runners], ("r1", "other"), ("other", "after")],
        groups=[Group("goal", "any_of", None, "cancel_remaining")],
    )
    lease = await flow.take("r0")
    await flow.take("r2", ttl=timedelta(hours=10))
    holder = await db.connect()
    async with holder.transaction():
        await holder.execute(
            "select from ff.execution where execution_id = any ($1) for no key update",
            [flow[runner] for runner in runners[1:]],
        )
        await flow.engine.complete(lease)
    group = await flow.group("goal")
    assert len(group["cancel_members"]) == 8
    return flow


@SOME
@pytest.mark.timeout(300)
async def test_whoever_cancels_siblings_may_die_behind_any_transaction(
    db: Database, killer: Killer, each: int
) -> None:
    undisturbed = await race(db)
    points = await killer.run("tell", undisturbed)
    assert names(points).count("cancel_siblings") >= 4
    expected = await picture(undisturbed)
    assert expected["goal"][0] == "waiting"
    assert expected["r1"][0] == "waiting"
    assert {expected[f"r{number}"][:3] for number in range(2, 9)} == {
        ("cancelled", "flow_cascade", "sibling_quorum_satisfied")
    }
    assert expected["goal 0"][-2:] == (False, [])
    for point in points[drawn("points").randrange(each) :: each]:
        flow = await race(db)
        number, end, _ = point.split(":")
        assert (await killer.run("tell", flow, f"{number}:{end}"))[-1] == point
        await killer.run("tell", flow)
        assert await picture(flow) == expected, f"killed at {point}"
