"""Flows from the first line to the last result: real tasks, a real worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from flowfabric import (
    ExecutionCancelled,
    ExecutionFailed,
    ExecutionSkipped,
    Fixed,
    FlowState,
    InvalidInput,
    NotFound,
    ResultTimeout,
    Retry,
    Unavailable,
    any_of,
    first_of,
    quorum,
)
from flowfabric.core.ids import mint_flow
from support.database import several_partitions
from worker.apps import working
from worker.waiting import eventually

AT_ONCE = Fixed(timedelta(0))


@dataclass
class Order:
    id: int
    at: datetime
    price: Decimal
    lines: list[str]


@pytest.fixture
def add(app):
    @app.task
    async def add(a: int, b: int = 0) -> int:
        return a + b

    return add


@pytest.fixture
def total(app):
    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    return total


@pytest.fixture
def broken(app):
    @app.task
    async def broken(n: int = 0) -> int:
        raise LookupError(f"no such thing as {n}")

    return broken


@pytest.fixture
def gates(app):
    """A task that waits for the test to let it go."""
    opened: dict[str, asyncio.Event] = {}

    @app.task
    async def gate(at: str) -> str:
        await opened.setdefault(at, asyncio.Event()).wait()
        return at

    def open_(name: str) -> None:
        opened.setdefault(name, asyncio.Event()).set()

    return gate, open_


async def states(run) -> dict[str, str]:
    return {one.name: str(one.public_state) for one in (await run.graph()).members}


class TestResults:
    @several_partitions
    async def test_values_pass_from_node_to_node(self, app, add, total):
        async with app.flow("sums") as f:
            a, b = f.add(add, 1, 2, name="a"), f.add(add, 10, name="b")
            c = f.add(add, a.result, b=b.result, name="c")
            f.add(total, [a.result, 100, c.result], name="d")

        async with working(app):
            assert await f.run.result(timeout=60) == 116
            assert await f.run.result(c) == 13
            assert await f.run.result("b") == 10
            assert await f.run.results() == {"a": 3, "b": 10, "c": 13, "d": 116}
            assert await f.run.state() is FlowState.COMPLETED
            assert await f.run.wait() is FlowState.COMPLETED

    async def test_values_have_their_types(self, app):
        made = Order(7, datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"), ["tea"])
        seen: list[object] = []

        @app.task
        async def order() -> Order:
            return made

        @app.task
        async def look(order: Order, several: dict[str, list[Order]], *rest: Order) -> int:
            seen.extend([order, several, rest])
            return len(rest)

        async with app.flow("orders") as f:
            one, two = f.add(order), f.add(order)
            f.add(look, one.result, {"x": [two.result, made]}, two.result, one.result)

        async with working(app):
            assert await f.run.result(timeout=60) == 2
        assert seen == [made, {"x": [made, made]}, (made, made)]

    async def test_what_a_retried_node_is_given_stays(self, app, add):
        seen: list[int] = []

        @app.task(retry=Retry(max_retries=2, backoff=AT_ONCE))
        async def flaky(n: int) -> int:
            seen.append(n)
            if len(seen) < 3:
                raise ConnectionError
            return n

        async with app.flow("flaky") as f:
            f.add(flaky, f.add(add, 7).result)

        async with working(app):
            assert await f.run.result(timeout=60) == 7
        assert seen == [7, 7, 7]

    async def test_a_wide_fan_in(self, app, add, total):
        async with app.flow("wide") as f:
            f.add(total, [f.add(add, n).result for n in range(200)])

        async with working(app):
            assert await f.run.result(timeout=60) == sum(range(200))

    async def test_the_first_of_some_passes_the_winner(self, app, gates):
        gate, open_ = gates

        @app.task
        async def greet(name: str) -> str:
            return f"Hello, {name}"

        async with app.flow("race") as f:
            slow, fast = f.add(gate, "slow", name="slow"), f.add(gate, "fast", name="fast")
            f.add(greet, first_of(slow, fast, cancel_rest=True))

        open_("fast")
        async with working(app):
            assert await f.run.result(timeout=60) == "Hello, fast"
            assert await f.run.results(timeout=60) == {"fast": "fast", "greet": "Hello, fast"}
            assert (await states(f.run))["slow"] == "cancelled"
            with pytest.raises(ExecutionCancelled):
                await f.run.result("slow")

    async def test_under_a_quorum_what_is_not_there_is_none(self, app, gates):
        gate, open_ = gates

        @app.task
        async def count(votes: list[str | None]) -> list[str | None]:
            return votes

        async with app.flow("votes") as f:
            a, b, c = (f.add(gate, name, name=name) for name in "abc")
            f.add(count, [a.result, b.result, c.result], after=quorum(2, a, b, c))

        open_("a")
        open_("c")
        async with working(app):
            assert await f.run.result(timeout=60) == ["a", None, "c"]
            open_("b")
            assert await f.run.results(timeout=60) == {
                "a": "a",
                "b": "b",
                "c": "c",
                "count": ["a", None, "c"],
            }

    async def test_any_of_goes_on_after_a_failure(self, app, add, broken):
        async with app.flow("failover") as f:
            a, b = f.add(broken, name="a"), f.add(add, 1, name="b")
            f.add(add, 40, 2, after=any_of(a, b), name="c")

        async with working(app):
            assert await f.run.result(timeout=60) == 42
            assert await f.run.results(timeout=60) == {"b": 1, "c": 42}
            whole = await f.run.results(return_exceptions=True)
        assert isinstance(whole.pop("a"), ExecutionFailed)
        assert whole == {"b": 1, "c": 42}

    async def test_plain_tasks_take_results_as_well(self, app, add):
        @app.task
        def double(n: int) -> int:
            return 2 * n

        async with app.flow("plain") as f:
            f.add(double, f.add(double, f.add(add, 1).result).result)

        async with working(app):
            assert await f.run.result(timeout=60) == 4

    async def test_several_last_nodes_have_several_results(self, app, add):
        async with app.flow("two") as f:
            a = f.add(add, 1, name="a")
            f.add(add, a.result, 1, name="b")
            f.add(add, a.result, 2, name="c")

        async with working(app):
            with pytest.raises(InvalidInput, match=r"2 last nodes \(b, c\).*results\(\)"):
                await f.run.result(timeout=60)
            assert await f.run.results(timeout=60) == {"a": 1, "b": 2, "c": 3}


class TestFailures:
    async def test_a_failed_last_node_raises(self, app, add, broken):
        async with app.flow("bad") as f:
            f.add(broken, f.add(add, 3).result)

        async with working(app):
            for asked in (f.run.result, f.run.results):
                with pytest.raises(ExecutionFailed, match="no such thing as 3") as caught:
                    await asked(timeout=60)
                assert caught.value.type == "LookupError"
                assert "node broken of the flow bad" in caught.value.__notes__[0]

    async def test_a_skipped_one_raises_what_it_was_skipped_for(self, app, add, broken):
        async with app.flow("bad") as f:
            a = f.add(broken, 5, name="a")
            b = f.add(add, a.result, name="b")
            f.add(add, b.result, name="c")

        async with working(app):
            with pytest.raises(ExecutionFailed, match="no such thing as 5") as caught:
                await f.run.result(timeout=60)
            assert "c was skipped because of this." in caught.value.__notes__
            with pytest.raises(ExecutionFailed, match="no such thing as 5"):
                await f.run.results(timeout=60)
            assert await f.run.wait() is FlowState.FAILED
            assert await states(f.run) == {"a": "failed", "b": "skipped", "c": "skipped"}
            found = await f.run.results(return_exceptions=True)
        assert [type(one) for one in found.values()] == [
            ExecutionFailed,
            ExecutionSkipped,
            ExecutionSkipped,
        ]

    async def test_a_result_that_is_not_what_its_type_said_fails_the_node_for_good(self, app, add):
        @app.task
        async def loose():  # type: ignore[no-untyped-def]
            return "seven"

        @app.task(retry=Retry(max_retries=2, backoff=AT_ONCE))
        async def strict(n: int) -> int:
            return n

        async with app.flow("bad") as f:
            f.add(strict, f.add(loose).result)

        async with working(app):
            with pytest.raises(
                ExecutionFailed, match=r"attempt 1: .*does not fit the parameters of .*strict: n: "
            ):
                await f.run.result(timeout=60)

    async def test_a_database_that_does_not_answer_fails_only_the_attempt(self, app, add):
        @app.task(retry=Retry(max_retries=2, backoff=AT_ONCE))
        async def again(n: int) -> int:
            return n

        client = await app.client()
        inputs, asked = client.flows.inputs, []

        async def failing(ids):
            asked.append(ids)
            if len(asked) == 1:
                raise Unavailable("gone")
            return await inputs(ids)

        client.flows.inputs = failing  # type: ignore[method-assign]
        async with app.flow("again") as f:
            f.add(again, f.add(add, 1).result)

        async with working(app):
            assert await f.run.result(timeout=60) == 1
        assert len(asked) == 2

    async def test_a_failure_is_told_before_the_rest_has_ended(self, app, broken, gates):
        gate, open_ = gates
        async with app.flow("bad") as f:
            f.add(broken)
            f.add(gate, "slow")

        async with working(app):
            with pytest.raises(ExecutionFailed):
                await f.run.results(timeout=60)
            assert (await states(f.run))["gate"] != "completed"
            open_("slow")

    async def test_what_has_not_ended_in_time_goes_on(self, app, add, gates):
        gate, open_ = gates
        async with app.flow("slow") as f:
            f.add(add, 1)
            f.add(gate, "slow")

        async with working(app):
            for asked in (f.run.results, f.run.wait):
                with pytest.raises(ResultTimeout, match=r"slow has not ended within 0\.2 s"):
                    await asked(timeout=0.2)
            open_("slow")
            assert await f.run.results(timeout=60) == {"add": 1, "gate": "slow"}


class TestAgain:
    async def test_what_failed_is_run_again_with_what_was_skipped(self, app, add):
        tries: list[int] = []

        @app.task
        async def flaky() -> int:
            tries.append(1)
            if len(tries) == 1:
                raise LookupError("no such thing")
            return 7

        async with app.flow("again") as f:
            f.add(add, f.add(flaky).result, 1)

        async with working(app):
            with pytest.raises(ExecutionFailed):
                await f.run.result(timeout=60)
            told = await f.run.retry_failed("try again", actor="ada")
            assert told.replayed == [f.nodes["flaky"].id]
            assert await f.run.result(timeout=60) == 8
            assert await f.run.results(timeout=60) == {"flaky": 7, "add": 8}

    async def test_a_graph_is_shown_as_a_tree_and_drawn(self, app, add, total):
        async with app.flow("sums") as f:
            f.add(total, [f.add(add, 1, name="a").result, f.add(add, 2, name="b").result])
        graph = await f.run.graph()
        head, *rows = str(graph).splitlines()
        assert head.startswith("sums  ")
        assert len(rows) == 3
        assert graph.svg().startswith("<svg")


class TestStoring:
    async def test_nothing_is_stored_when_the_block_raises(self, app, db, add):
        with pytest.raises(ZeroDivisionError):
            async with app.flow("bad") as f:
                f.add(add, 1 // 0)
        assert await db.fetchval("select count(*) from ff.execution") == 0
        assert await db.fetchval("select count(*) from ff.flow") == 0

    async def test_nothing_is_stored_of_a_graph_with_a_circle(self, app, db, add):
        async def circle() -> None:
            async with app.flow("bad") as f:
                a = f.add(add, 1, name="a")
                a.after(f.add(add, a.result, name="b"))

        with pytest.raises(Exception, match="a -> b -> a"):
            await circle()
        assert await db.fetchval("select count(*) from ff.execution") == 0

    async def test_everything_is_there_before_anything_runs(self, app, add):
        async with app.flow("sums", tags={"team.name": "shop"}) as f:
            a = f.add(add.using(lane="slow", priority=3), 1)
            f.add(add, a.result)

        assert await states(f.run) == {"add": "waiting", "add-2": "waiting_children"}
        graph = await f.run.graph()
        assert graph.info.tags == {"team.name": "shop"}
        assert graph.info.flow_kind == "sums"
        (edge,) = graph.edges
        assert (edge.upstream_id, edge.downstream_id) == (a.id, f.nodes["add-2"].id)
        info = await (await app.client()).executions.describe(a.id)
        assert (info.lane, info.priority) == ("slow", 3)

    async def test_a_flow_is_found_by_its_id(self, app, make_app, add, total):
        async with app.flow("sums") as f:
            f.add(total, [f.add(add, 1, name="a").result, f.add(add, 2, name="b").result])

        async with working(app):
            found = app.get_flow(str(f.run.id))
            assert await found.result(timeout=60) == 3
            assert found.name == "sums"
            assert await found.results() == {"a": 1, "b": 2, "total": 3}
            assert list(await found.nodes()) == ["a", "b", "total"]
            assert await found.node("a").result() == 1
            with pytest.raises(InvalidInput, match="'x' is not a node of sums; its nodes: a, b"):
                await found.result("x")
        # Elsewhere its tasks are not registered: what they returned is read as JSON.
        assert await make_app().get_flow(f.run.id).result() == 3

    async def test_a_flow_that_is_not_there(self, app):
        nowhere = app.get_flow(mint_flow())
        for asked in (nowhere.result, nowhere.results, nowhere.state, nowhere.graph, nowhere.nodes):
            with pytest.raises(NotFound, match="There is no flow"):
                await asked()
        with pytest.raises(InvalidInput, match="flow_id"):
            app.get_flow("7")

    async def test_a_flow_that_is_cancelled_ends_its_nodes(self, app, add, gates):
        gate, _ = gates
        async with app.flow("long") as f:
            f.add(add, 1, after=f.add(gate, "never"))

        async with working(app):
            run = await f.run.nodes()

            async def is_active() -> bool:
                return await run["gate"].state() == "active"

            await eventually(is_active)
            await f.run.cancel("no longer wanted", actor="ada", wait=20)
            assert await states(f.run) == {"gate": "cancelled", "add": "cancelled"}
            with pytest.raises(ExecutionCancelled, match=r"no longer wanted\. A cancelled flow"):
                await f.run.result()
            assert await f.run.state() is FlowState.CANCELLED

    async def test_a_node_of_another_flow_of_the_same_name(self, app, add):
        async with app.flow("one") as f:
            f.add(add, 1)
        async with app.flow("two") as g:
            mine = g.add(add, 1)
        with pytest.raises(InvalidInput, match="add is a node of another flow, two, not of one"):
            await f.run.result(mine)

    async def test_a_graph_as_text_cannot_control_the_terminal(self, app, add):
        async with app.flow("one\x1b[2J\ntwo") as f:
            f.add(add, 1, name="a\x1b[31m\nb")
        lines = str(await f.run.graph()).splitlines()
        assert len(lines) == 2
        assert "\x1b" not in "".join(lines)


class TestSynchronously:
    async def test_a_with_block_and_its_run(self, app, add):
        def program() -> list[object]:
            with app.flow("sums") as f:
                a = f.add(add, 1, 2, name="a")
                f.add(add, a.result, 4, name="b")
            run = f.run
            return [
                run.result_sync(timeout=60),
                run.result_sync(a),
                run.results_sync(timeout=60),
                run.wait_sync(timeout=60),
                run.state_sync(),
                run.summary_sync().total,
                len(run.graph_sync().edges),
                list(run.nodes_sync()),
            ]

        async with working(app):
            assert await asyncio.to_thread(program) == [
                *(7, 3, {"a": 3, "b": 7}, FlowState.COMPLETED, FlowState.COMPLETED, 2, 1),
                ["a", "b"],
            ]

    async def test_nothing_is_stored_when_the_block_raises(self, app, db, add):
        def program() -> None:
            with app.flow("bad") as f:
                f.add(add, 1 // 0)

        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(program)
        assert await db.fetchval("select count(*) from ff.execution") == 0

    async def test_a_run_is_cancelled(self, app, add):
        def program() -> str:
            with app.flow("long") as f:
                f.add(add, 1)
            f.run.cancel_sync("no longer wanted", wait=20)
            return str(f.run.state_sync())

        assert await asyncio.to_thread(program) == "cancelled"
