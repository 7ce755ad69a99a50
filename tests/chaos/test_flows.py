"""Flows while workers are killed, the server crashes and some flows are cancelled: all of them end,
every node ends once and as the rules of the groups say, and the doctor finds nothing."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from faults.load import tasks_on
from faults.server import Server
from faults.workers import Fleet
from flowfabric import App
from flowfabric.core.errors import Unavailable
from flowfabric.core.flow import Edge, EdgeGroupPolicy, Graph, Group, Node
from flowfabric.core.ids import mint_flow, mint_in
from flowfabric.db.connection import open_connection
from flowfabric.doctor import examine
from flows.evaluator import Ended, Rule, Simulation, audit, final_groups, random_graph
from flows.evaluator import Graph as Shape

SEED = 20261117
LEASE_SECONDS = 2.0
CRASH_AFTER = 0.5
CANCELLED = 0.1
# Nothing that is left may stand still for longer: a lease, its reclaim, every reconciler twice.
STUCK_SECONDS = 120.0
SUCCESS = {"quick": True, "nap": True, "flaky": True, "doomed": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    flows: int
    nodes: int
    workers: int
    kills: int
    concurrency: int
    # how long after its submit a flow is cancelled, at most
    cancel_seconds: float


SHORT = Scale(flows=5, nodes=16, workers=2, kills=2, concurrency=5, cancel_seconds=2.0)
LONG = Scale(flows=200, nodes=50, workers=4, kills=30, concurrency=10, cancel_seconds=40.0)


@dataclass(slots=True)
class Planned:
    """A flow to be: its shape, what every node will do, and the ids it has."""

    shape: Shape
    kinds: Sequence[str]
    graph: Graph
    # in the midst of its work
    is_cancelled: bool

    @property
    def ids(self) -> list[Any]:
        return [node.submission.id.uuid for node in self.graph.nodes]

    def simulation(self) -> Simulation:
        """Ends as the kinds of the nodes say, level by level."""
        simulation = Simulation(self.shape)
        while ready := simulation.ready:
            simulation.end(
                {n: "success" if SUCCESS[self.kinds[n]] else "failed" for n in sorted(ready)}
            )
        return simulation


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_few_flows_survive_kills_and_a_crash(durable: Server, tmp_path: Path) -> None:
    await survive(durable, tmp_path, SHORT, print)


# `--short` runs only the test above.
@pytest.mark.slow(short=0)
@pytest.mark.timeout(1200)
async def test_two_hundred_flows_survive_kills_and_a_crash(
    durable: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tell(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", end="", flush=True)

    await survive(durable, tmp_path, LONG, tell)


async def survive(server: Server, folder: Path, scale: Scale, tell: Callable[[str], None]) -> None:
    random = Random(SEED)
    app, tasks = tasks_on(server.url)
    plans = [plan(random, tasks, scale.nodes) for _ in range(scale.flows)]
    total = scale.flows * scale.nodes
    fleet = Fleet(
        folder, server.url, scale.workers, concurrency=scale.concurrency, lease=LEASE_SECONDS
    )
    try:
        await fleet.until_started()
        began = monotonic()
        async with asyncio.TaskGroup() as group:
            submitting = group.create_task(submit(app, plans, Random(SEED), scale.cancel_seconds))
            breaking = group.create_task(break_things(server, fleet, random, scale, total, tell))
        refused, away = submitting.result(), breaking.result()
        await until_all_ended(server, fleet, total)
        seconds = monotonic() - began
        # One that had just taken the place of another may not have been listening yet.
        assert set(fleet.close()) <= {0, -signal.SIGTERM}, fleet.log()
        errors = fleet.errors()
    finally:
        await app.close()
        fleet.destroy()

    problems, figures = await judge(server, plans)
    async with open_connection(server.url, statement_cache_size=0) as connection:
        report = await examine(connection)
    # The server of the tests is not what X01 to X05 want.
    findings = [finding for finding in report.findings if not finding.name.startswith("X")]
    tell(
        f"{seconds:.1f} s: {scale.flows} flows of {scale.nodes} nodes, {scale.workers} workers, "
        f"{scale.kills} kill -9, Postgres away for {away:.1f} s, {refused} submits repeated; "
        f"{figures}; doctor: {len(findings)} findings in "
        f"{report.duration.total_seconds():.1f} s"
    )
    assert problems == []
    assert [f"{f.name} {f.execution}: {f.problem}" for f in findings] == []
    # The faults must have hit running executions, or this proves nothing. Of two kills both may
    # hit idle workers.
    assert figures["reclaimed"] >= scale.kills // 2 or scale.kills < 5
    assert errors == []


def plan(random: Random, tasks: Mapping[str, Any], size: int) -> Planned:
    shape = random_graph(random, size, cancels=random.random() < 0.5)
    kinds = random.choices(list(SUCCESS), (55, 20, 13, 12), k=size)
    id = mint_flow()
    nodes = []
    for number, kind in enumerate(kinds):
        arguments = (number, 0.05) if kind == "nap" else (number,)
        submission = tasks[kind].node_submission(
            mint_in(id.partition_key), tasks[kind].spec.encode(arguments, {}), None, {}
        )
        nodes.append(Node(f"n{number}", submission))
    return Planned(
        shape,
        kinds,
        Graph(
            id=id,
            kind="chaos",
            nodes=nodes,
            edges=[Edge(e.upstream, e.downstream, e.group) for e in shape.edges],
            groups=[Group(node, no, policy(rule)) for (node, no), rule in shape.rules.items()],
        ),
        random.random() < CANCELLED,
    )


def policy(rule: Rule) -> EdgeGroupPolicy:
    after = "cancel_remaining" if rule.cancels else "let_run"
    if rule.policy == "all_of":
        return EdgeGroupPolicy.all_of()
    return (
        EdgeGroupPolicy.any_of(after)
        if rule.policy == "any_of"
        else EdgeGroupPolicy.quorum(rule.k or 1, after)
    )


async def submit(app: App, plans: Sequence[Planned], random: Random, within: float) -> int:
    """Store all of them, and cancel some a while later, each as often as it takes; returns how
    often a call was lost."""
    lost = 0
    client = await app.client()

    async def insist(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal lost
        while True:
            try:
                await call()
                return
            except Unavailable:
                lost += 1
                await asyncio.sleep(0.05)

    async def cancel(planned: Planned, after: float) -> None:
        await asyncio.sleep(after)
        cancel_policy = random.choice(["cancel_all", "cancel_pending"])
        await insist(lambda: client.flows.cancel(planned.graph.id, cancel_policy=cancel_policy))

    async with asyncio.TaskGroup() as group:
        for planned in plans:
            await insist(partial(client.flows.submit, planned.graph))
            if planned.is_cancelled:
                group.create_task(cancel(planned, random.uniform(0.0, within)))
    return lost


async def break_things(
    server: Server,
    fleet: Fleet,
    random: Random,
    scale: Scale,
    total: int,
    tell: Callable[[str], None],
) -> float:
    """A kill whenever another part of the work is done, and the crash in the middle of it."""
    kills, away, told = 0, 0.0, 0.0
    began = monotonic()
    while kills < scale.kills:
        ended = await count_ended(server)
        if not away and ended >= total * CRASH_AFTER:
            away = await server.restart(signal.SIGQUIT)
        if ended >= total * kills / (scale.kills + 1):
            fleet.kill(random.randrange(scale.workers))
            kills += 1
        fleet.supervise()
        if monotonic() - told > 5:
            told = monotonic()
            tell(
                f"{told - began:5.1f} s  {ended}/{total} ended, {kills} kill -9, {away:.1f} s away"
            )
        await asyncio.sleep(0.1)
    return away or await server.restart(signal.SIGQUIT)


async def count_ended(server: Server) -> int:
    ((ended,),) = await server.fetch("select count(*) from ff.execution where phase = 'terminal'")
    return int(ended)


async def until_all_ended(server: Server, fleet: Fleet, total: int) -> None:
    last, moved = -1, monotonic()
    while (ended := await count_ended(server)) < total:
        fleet.supervise()
        if ended != last:
            last, moved = ended, monotonic()
        assert monotonic() - moved < STUCK_SECONDS, f"stuck at {ended} of {total}"
        await asyncio.sleep(0.2)
    # Whoever is not needed any more has ended; now the lists that say so have to go.
    while (await server.fetch(
        "select (select count(*) from ff.edge_group where cancel_pending)"
        " + (select count(*) from ff.cancel_backlog_member)"
        " + (select count(*) from ff.execution where wakes_pending)"
    ))[0][0]:  # fmt: skip
        assert monotonic() - moved < STUCK_SECONDS, "somebody has yet to be told"
        await asyncio.sleep(0.2)


async def judge(server: Server, plans: Sequence[Planned]) -> tuple[list[str], dict[str, Any]]:
    """Every flow against the rules; returns what is wrong and what happened."""
    rows = await server.fetch(
        "select v.execution_id, v.kind::text, v.outcome::text, e.flow_id, e.cancelled_by::text, "
        "e.total_attempt_count > 0 as ran from ff.event v join ff.execution e "
        "using (partition_key, execution_id) where v.outcome is not null order by v.event_id"
    )
    counted = await server.fetch(
        "select downstream_id, group_no, n, succeeded, failed, skipped, state::text "
        "from ff.edge_group"
    )
    groups = {(row["downstream_id"], row["group_no"]): row for row in counted}
    histories: dict[Any, list[Any]] = {}
    for row in rows:
        histories.setdefault(row["flow_id"], []).append(row)
    problems: list[str] = []
    exact = 0
    for planned in plans:
        ids = planned.ids
        numbers = {id: number for number, id in enumerate(ids)}
        history = [
            Ended(
                numbers[row["execution_id"]],
                row["outcome"],
                "skip"
                if row["kind"] == "skipped"
                else "sibling"
                if row["kind"] == "cancelled"
                else "ours",
                row["kind"] in ("completed", "failed") or row["ran"],
            )
            for row in histories.get(planned.graph.id.uuid, [])
        ]
        found = [] if planned.is_cancelled else audit(planned.shape, history)
        outcomes = {end.node: end.outcome for end in history}
        if len(outcomes) < len(history):
            found.append("a node ended twice")
        found += [f"node {n} is lost" for n in range(len(ids)) if n not in outcomes]
        found += [
            f"node {end.node}, {planned.kinds[end.node]}, is {end.outcome}"
            for end in history
            if end.by == "ours" and (end.outcome == "success") != SUCCESS[planned.kinds[end.node]]
        ]
        for (node, number), group in final_groups(planned.shape, outcomes).items():
            row = groups[ids[node], number]
            names = ("n", "succeeded", "failed", "skipped")
            if [row[name] for name in names] != [getattr(group, name) for name in names]:
                found.append(f"group {number} of {node} counts {dict(row)}, not {group}")
        rules = planned.shape.rules.values()
        if not planned.is_cancelled and not any(rule.cancels for rule in rules):
            # Without cancelled siblings the order does not matter.
            exact += 1
            if outcomes != (wanted := planned.simulation().outcomes):
                found.append(f"{outcomes} instead of {wanted}")
        problems += [f"{planned.graph.id}: {problem}" for problem in found]
    kinds = Counter({
        row["kind"]: row["count"]
        for row in await server.fetch("select kind::text, count(*) from ff.event group by 1")
    })  # fmt: skip
    return problems, {
        "edges": sum(len(planned.shape.edges) for planned in plans),
        "flows compared node by node": exact,
        "flows cancelled": sum(planned.is_cancelled for planned in plans),
        "reclaimed": kinds["reclaimed"],
        "events": dict(sorted(kinds.items())),
    }
