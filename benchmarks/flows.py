"""Measure flows: `python benchmarks/flows.py [--quick] [fan chain diamonds cancel edges]`

fan:      One node, 1 000 nodes that take its result, one node that takes all results.
chain:    1 000 nodes in a chain, each with the result of its upstream. Milliseconds per hop.
diamonds: 100 flows of 10 nodes (1, 8, 1), submitted at once. Flows per second.
cancel:   A quorum of 2 is satisfied and cancels 100 or 1 000 siblings. The time from the satisfied
          group to the commit that ends each sibling, by the clock of the database. For running
          siblings, also the time until their handler stops.
edges:    The cost to store and to resolve one edge, in graphs of 100 to 50 000 edges. The graphs
          consist of equal parts (10 nodes that wait for the same 10), so that only the number of
          parts differs. Then one node waits for all others, and all others wait for one node.

The worker is a separate process. Without names, everything is measured. BENCH_DSN names the server
to use. For the cancels, it needs track_commit_timestamp.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import asyncpg

from flowfabric import App, Context, FlowRun, quorum
from flowfabric.client import FlowFabric
from flowfabric.core.execution import Claimed, Route, Submission
from flowfabric.core.flow import Edge, Graph, Node
from flowfabric.core.ids import mint_flow, mint_in
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server

WIDTH = DEPTH = 1000
DIAMONDS, ARMS = 100, 8
CONCURRENCY = 100
QUORUM = 2
# Siblings to cancel, rounds, and the highest allowed p99 in ms. The reference engine reached this
# p99 on sixteen cores.
CANCELS = ((100, 20, 64.0), (1000, 5, 186.0))
EDGES = (100, 1_000, 10_000, 50_000)
STARS = (100, 1_000, 9_999)
PART = 10
LONG = timedelta(hours=1)
PATIENCE = 300

Figures = dict[str, Any]
stopped: list[tuple[str, float]] = []


def tasks(app: App) -> None:
    @app.task(name="bench.begin")
    async def begin() -> int:
        return 1

    @app.task(name="bench.next")
    async def next_(n: int) -> int:
        return n + 1

    @app.task(name="bench.total")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="bench.nothing")
    async def nothing() -> None: ...

    @app.task(name="bench.run_on")
    async def run_on(ctx: Context) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append((str(ctx.execution_id.uuid), time.time()))

    @app.task(name="bench.stopped")
    async def tell_stopped() -> list[tuple[str, float]]:
        return stopped


async def work(url: str, concurrency: int) -> None:
    """Run the worker process until its stdin ends."""
    async with App(database_url=url) as app:
        tasks(app)
        worker = await app.worker(concurrency=concurrency)
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        worker.stop()
        await running


class Stage:
    """An app that submits flows, and a connection that reads their rows."""

    def __init__(self, app: App, watcher: asyncpg.Connection) -> None:
        self.app = app
        self.watcher = watcher

    def task(self, name: str) -> Any:
        return self.app.tasks[f"bench.{name}"]

    async def seconds(self, query: str, *arguments: Any) -> float:
        found = await self.watcher.fetchval(f"select extract(epoch from ({query}))", *arguments)
        return float(found)


@asynccontextmanager
async def stage(admin: str, concurrency: int = CONCURRENCY) -> AsyncIterator[Stage]:
    """Make a fresh database with a worker process."""
    async with database(admin, "bench_flows") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--worker", url, str(concurrency)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # the worker logs a line for every stopped handler
        )
        assert process.stdin
        assert process.stdout
        watcher = await asyncpg.connect(url)
        try:
            await process.stdout.readline()
            async with App(database_url=url) as app:
                tasks(app)
                await (await app.submit("bench.nothing")).result(timeout=60)
                yield Stage(app, watcher)
        finally:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 60)
            except TimeoutError:
                process.kill()
            await watcher.close()


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def median_of(rounds: Sequence[Figures]) -> Figures:
    return {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}


async def repeated(
    number: int, what: str, measure: Callable[[], Awaitable[Figures]]
) -> list[Figures]:
    found = []
    for turn in range(number):
        found.append(await measure())
        say(f"  {what}, {turn + 1} of {number}: {json.dumps(found[-1])}")
    return found


# Wide, deep, and many


async def fan(admin: str, quick: bool) -> tuple[Figures, list[Verdict]]:
    async with stage(admin) as on:

        async def once() -> Figures:
            started = time.perf_counter()
            async with on.app.flow("fan") as f:
                first = f.add(on.task("begin"))
                many = [f.add(on.task("next"), first.result) for _ in range(WIDTH)]
                last = f.add(on.task("total"), [one.result for one in many])
            stored = time.perf_counter()
            if await f.run.result(timeout=PATIENCE) != 2 * WIDTH:
                raise SystemExit("the fan-in and the fan-out have different results")
            ended = time.perf_counter()
            ids = [one.id.uuid for one in many]
            claimed = "select %s(v.occurred_at) from ff.event v where v.kind = 'claimed' and "
            return {
                "submit_s": stored - started,
                "run_s": ended - stored,
                "nodes_per_s": (WIDTH + 2) / (ended - stored),
                "fan_out_s": await on.seconds(
                    f"({claimed % 'max'} v.execution_id = any($2))"
                    " - (select terminal_at from ff.execution where execution_id = $1)",
                    first.id.uuid,
                    ids,
                ),
                "fan_in_ms": 1000
                * await on.seconds(
                    f"({claimed % 'min'} v.execution_id = $1)"
                    " - (select max(terminal_at) from ff.execution where execution_id = any($2))",
                    last.id.uuid,
                    ids,
                ),
            }

        async def plain() -> Figures:
            started = time.perf_counter()
            runs = await on.task("next").submit_many([(1,)] * WIDTH)
            stored = time.perf_counter()
            await asyncio.gather(*(run.result(timeout=PATIENCE) for run in runs))
            return {
                "plain_submit_s": stored - started,
                "plain_run_s": time.perf_counter() - stored,
            }

        await once()
        rounds = await repeated(1 if quick else 5, f"fan-out and fan-in of {WIDTH}", once)
        beside = await repeated(1 if quick else 5, f"{WIDTH} without a flow", plain)
    return {"width": WIDTH, **median_of(rounds), **median_of(beside)}, []


async def chain(admin: str, quick: bool) -> tuple[Figures, list[Verdict]]:
    async with stage(admin) as on:

        async def once(with_results: bool) -> Figures:
            nodes: list[Any] = []
            async with on.app.flow("chain") as f:
                for _ in range(DEPTH):
                    if not nodes:
                        node = f.add(on.task("begin"))
                    elif with_results:
                        node = f.add(on.task("next"), nodes[-1].result)
                    else:
                        node = f.add(on.task("begin"), after=nodes[-1])
                    nodes.append(node)
            started = time.perf_counter()
            await f.run.result(timeout=PATIENCE)
            ms = 1000 * await on.seconds(
                "(select terminal_at from ff.execution where execution_id = $2)"
                " - (select terminal_at from ff.execution where execution_id = $1)",
                nodes[0].id.uuid,
                nodes[-1].id.uuid,
            )
            word = "with_result" if with_results else "order_only"
            return {
                f"{word}_s": time.perf_counter() - started,
                f"{word}_ms_per_hop": ms / (DEPTH - 1),
            }

        number = 1 if quick else 3
        passing = await repeated(number, f"chain of {DEPTH}, results passed", lambda: once(True))
        ordered = await repeated(number, f"chain of {DEPTH}, order only", lambda: once(False))
    return {"depth": DEPTH, **median_of(passing), **median_of(ordered)}, []


async def diamonds(admin: str, quick: bool) -> tuple[Figures, list[Verdict]]:
    async with stage(admin) as on:

        async def diamond() -> FlowRun:
            async with on.app.flow("diamond") as f:
                first = f.add(on.task("begin"))
                arms = [f.add(on.task("next"), first.result) for _ in range(ARMS)]
                f.add(on.task("total"), [one.result for one in arms])
            return f.run

        async def once() -> Figures:
            started = time.perf_counter()
            runs = await asyncio.gather(*(diamond() for _ in range(DIAMONDS)))
            stored = time.perf_counter()
            results = await asyncio.gather(*(run.result(timeout=PATIENCE) for run in runs))
            ended = time.perf_counter()
            if set(results) != {2 * ARMS}:
                raise SystemExit(f"a diamond has a wrong result: {set(results)}")
            return {
                "submit_s": stored - started,
                "seconds": ended - started,
                "flows_per_s": DIAMONDS / (ended - started),
            }

        await once()
        rounds = await repeated(2 if quick else 7, f"{DIAMONDS} diamonds", once)
    found = {"flows": DIAMONDS, "nodes": ARMS + 2, **median_of(rounds)}
    rule = Rule("100 diamonds of 10 nodes at once, flows/s", 48, 200, unit="")
    return found, [rule.judge(found["flows_per_s"])]


# Siblings


async def cancel(admin: str, quick: bool) -> tuple[Figures, list[Verdict]]:
    found: Figures = {}
    verdicts = []
    for siblings, rounds, bar in CANCELS:
        rounds = max(1, rounds // 5) if quick else rounds
        for kind in ("waiting", "running"):
            async with stage(admin, siblings + CONCURRENCY) as on:
                figures = await cancels(on, siblings, rounds, kind)
            found[f"{siblings}_{kind}"] = figures
            if "p99_ms" in figures:
                rule = Rule(
                    f"quorum cancel of {siblings} {kind} siblings, p99", bar, None, True, "ms"
                )
                verdicts.append(rule.judge(figures["p99_ms"]))
    return found, verdicts


async def cancels(on: Stage, siblings: int, rounds: int, kind: str) -> Figures:
    """Return the milliseconds from a satisfied quorum to the end of each sibling."""
    client = await on.app.client()
    is_timed = await on.watcher.fetchval("show track_commit_timestamp") == "on"
    commits: list[float] = []
    terminals: list[float] = []
    stops: list[float] = []
    wholes: list[float] = []
    for lane in ("go", "later"):  # the first submission creates a lane
        await (await on.task("nothing").using(lane=lane).submit()).result(timeout=60)
    await client.lanes.pause("later")
    for turn in range(rounds + 1):
        await client.lanes.pause("go")
        sibling = on.task("run_on") if kind == "running" else on.task("nothing").using(lane="later")
        async with on.app.flow("race") as f:
            winners = [f.add(on.task("nothing").using(lane="go")) for _ in range(QUORUM)]
            rest = [f.add(sibling) for _ in range(siblings)]
            last = f.add(
                on.task("nothing"), after=quorum(QUORUM, *winners, *rest, cancel_rest=True)
            )
        if kind == "running":
            await until_active(on, f.run, siblings)
        await client.lanes.resume("go")
        await f.run.result(timeout=PATIENCE)
        await f.run.wait(timeout=PATIENCE)
        committed = "pg_xact_commit_timestamp(v.xid::xid)" if is_timed else "null::timestamptz"
        rows = await on.watcher.fetch(
            f"select g.upstream_id::text as id, extract(epoch from y.fired_at)::float8 as fired,"
            f" extract(epoch from e.terminal_at)::float8 as terminal,"
            f" extract(epoch from {committed})::float8 as committed"
            " from ff.edge_group y join ff.edge g using (partition_key, downstream_id, group_no)"
            " join ff.execution e on e.partition_key = g.partition_key"
            " and e.execution_id = g.upstream_id"
            " join ff.event v on v.partition_key = g.partition_key"
            " and v.execution_id = g.upstream_id and v.kind = 'cancelled'"
            " where y.partition_key = 0 and y.downstream_id = $1",
            last.id.uuid,
        )
        if len(rows) != siblings:
            raise SystemExit(f"{len(rows)} of {siblings} siblings were cancelled")
        if not turn:
            continue  # the first round warms up
        fired = rows[0]["fired"]
        terminals += [1000 * (row["terminal"] - fired) for row in rows]
        if is_timed:
            of_turn = [1000 * (row["committed"] - fired) for row in rows]
            commits += of_turn
            wholes.append(max(of_turn))
        if kind == "running":
            times = await stop_times(on, {row["id"] for row in rows})
            stops += [1000 * (at - fired) for at in times]
        say(f"  {siblings} {kind}, {turn} of {rounds}: all ended {wholes[-1:] or terminals[-1:]}")
    figures: Figures = {"rounds": rounds, "samples": len(terminals)}
    for word, values in (("", commits), ("terminal_at_", terminals), ("handler_stopped_", stops)):
        if values:
            figures[f"{word}p50_ms"] = round(percentile(values, 0.5), 2)
            figures[f"{word}p99_ms"] = round(percentile(values, 0.99), 2)
    return figures


async def until_active(on: Stage, run: FlowRun, number: int) -> None:
    while True:
        found = await on.watcher.fetchval(
            "select count(*) from ff.execution where partition_key = 0 and flow_id = $1"
            " and public_state = 'active'",
            run.id.uuid,
        )
        if found == number:
            return
        await asyncio.sleep(0.05)


async def stop_times(on: Stage, ids: set[str]) -> list[float]:
    """Return when the handlers stopped, by the worker's clock. The database has the same clock."""
    while True:
        told = await (await on.task("stopped").submit()).result(timeout=60)
        times = [at for id, at in told if id in ids]
        if len(times) == len(ids):
            return times
        await asyncio.sleep(0.1)


# Edges


def parts(edges: int, with_edges: bool = True) -> Graph:
    """Make parts of 20 nodes and 100 edges: 10 nodes that wait for the same 10 other nodes."""
    half = edges // PART
    found = [
        Edge(PART * part + upstream, half + PART * part + downstream)
        for part in range(edges // PART**2)
        for downstream in range(PART)
        for upstream in range(PART)
    ]
    return graph(2 * half, found if with_edges else [])


def graph(nodes: int, edges: Sequence[Edge]) -> Graph:
    id = mint_flow()
    route = Route("default", "default", "bench.edges")
    return Graph(
        id=id,
        kind="edges",
        nodes=[
            Node(
                f"node {place}",
                Submission(id=mint_in(id.partition_key), route=route, payload=b"{}"),
            )
            for place in range(nodes)
        ],
        edges=edges,
    )


class Drain:
    """Claims and completes everything, 100 at a time, as a worker does.

    It measures each completion until the ends are propagated. It does not measure claims.
    """

    def __init__(self, client: FlowFabric, watcher: asyncpg.Connection) -> None:
        self.client = client
        self.watcher = watcher

    async def run(self, number: int) -> float:
        seconds, ended = 0.0, 0
        while ended < number:
            claimed = await self.client.executions.claim(
                worker_id="bench", worker_instance_id="bench-1", limit=100, lease_ttl=LONG
            )
            if not claimed:
                raise SystemExit(f"only {ended} of {number} nodes could be claimed")
            started = time.perf_counter()
            await self._complete(claimed)
            seconds += time.perf_counter() - started
            ended += len(claimed)
        return seconds

    async def _complete(self, claimed: Sequence[Claimed]) -> None:
        await asyncio.gather(*(self.client.executions.complete(one, b"1") for one in claimed))
        while True:
            handled, due_in = await self.watcher.fetchrow(
                "select handled, due_in from ff.resolve_wakes(0::smallint, 100)"
            )
            if due_in is None:
                return
            if not handled:
                await asyncio.sleep(0.001)


async def edges(admin: str, quick: bool) -> tuple[Figures, list[Verdict]]:
    sizes = EDGES[:-1] if quick else EDGES
    found: Figures = {}
    async with database(admin, "bench_flow_edges") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        watcher = await asyncpg.connect(url)
        async with FlowFabric(url) as client:
            drain = Drain(client, watcher)

            async def once(shape: Callable[[], Graph], plain: Callable[[], Graph]) -> Figures:
                """Measure flows with these edges and the same flows without edges, in turn."""
                made = shape()
                number = max(1, min(10, 20_000 // len(made.edges)))
                times: dict[str, list[float]] = {}
                for _ in range(number):
                    for word, make in (("plain", plain), ("whole", shape)):
                        made = make()
                        started = time.perf_counter()
                        await client.flows.submit(made)
                        times.setdefault(f"{word}_submit", []).append(time.perf_counter() - started)
                        times.setdefault(f"{word}_drain", []).append(
                            await drain.run(len(made.nodes))
                        )
                seconds = {word: statistics.median(values) for word, values in times.items()}
                per_edge = 1e6 / len(made.edges)
                return {
                    "nodes": len(made.nodes),
                    "submit_ms": round(1000 * seconds["whole_submit"], 2),
                    "submit_us_per_edge": round(per_edge * seconds["whole_submit"], 1),
                    "submit_us_per_edge_alone": round(
                        per_edge * (seconds["whole_submit"] - seconds["plain_submit"]), 1
                    ),
                    "resolve_ms": round(1000 * seconds["whole_drain"], 1),
                    "resolve_us_per_edge": round(
                        per_edge * (seconds["whole_drain"] - seconds["plain_drain"]), 1
                    ),
                }

            await once(lambda: parts(1000), lambda: parts(1000, False))
            for size in sizes:
                found[f"{size}"] = await once(
                    lambda size=size: parts(size), lambda size=size: parts(size, False)
                )
                say(f"  {size} edges: {json.dumps(found[f'{size}'])}")
            for size in STARS[:-1] if quick else STARS:
                into = [Edge(place, size) for place in range(size)]
                out_of = [Edge(0, place + 1) for place in range(size)]
                for word, star in (("into_one", into), ("out_of_one", out_of)):
                    found[f"{word}_{size}"] = await once(
                        lambda size=size, star=star: graph(size + 1, star),
                        lambda size=size: graph(size + 1, []),
                    )
                    say(f"  {word} {size}: {json.dumps(found[f'{word}_{size}'])}")
        await watcher.close()
    return found, [
        flat(f"cost of an edge, {word}: {sizes[-1]} vs 1 000", found, figure, sizes)
        for word, figure in (("stored", "submit_us_per_edge"), ("resolved", "resolve_us_per_edge"))
    ]


def flat(subject: str, found: Figures, figure: str, sizes: Sequence[int]) -> Verdict:
    ratio = found[f"{sizes[-1]}"][figure] / found["1000"][figure]
    return Rule(subject, 1.5, 1.1, at_most=True).judge(ratio)


PARTS = {"fan": fan, "chain": chain, "diamonds": diamonds, "cancel": cancel, "edges": edges}


async def measure(chosen: Sequence[str], *, quick: bool = False) -> list[Verdict]:
    verdicts: list[Verdict] = []
    async with server(track_commit_timestamp="on") as admin:
        connection = await asyncpg.connect(admin)
        line: Figures = {
            "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
            "load": os.getloadavg()[0],
            "postgres": await connection.fetchval("show server_version"),
            "python": platform.python_version(),
            "flowfabric": version("flowfabric"),
        }
        await connection.close()
        print(json.dumps(line), flush=True)
        for name in chosen:
            say(f"{name} (load {os.getloadavg()[0]:.1f})")
            figures, judged = await PARTS[name](admin, quick)
            print(json.dumps({name: figures}), flush=True)
            verdicts += judged
    return verdicts


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(work(sys.argv[2], int(sys.argv[3])))
    else:
        names = [word for word in sys.argv[1:] if word != "--quick"]
        if set(names) - set(PARTS):
            raise SystemExit(__doc__)
        chosen = names or list(PARTS)
        sys.exit(conclude(asyncio.run(measure(chosen, quick="--quick" in sys.argv))))
