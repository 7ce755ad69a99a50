"""Flows as they are written down: what is stored, and what is refused before anything is."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest
from pydantic import JsonValue

from flowfabric import (
    App,
    Context,
    Flow,
    InvalidInput,
    all_of,
    any_of,
    first_of,
    quorum,
)
from flowfabric.core.errors import CycleDetected
from flowfabric.core.flow import Edge, EdgeGroupPolicy, Graph, Group

FAST = timedelta(seconds=1)


@dataclass
class Order:
    id: int


class Size(Enum):
    SMALL = "s"


class Tasks:
    """Tasks of every kind a graph needs."""

    def __init__(self, app: App) -> None:
        @app.task
        async def number(n: int = 0) -> int:
            return n

        @app.task
        async def text(word: str = "") -> str:
            return word

        @app.task
        async def maybe(n: int) -> int | None:
            return n

        @app.task
        async def total(numbers: list[int], label: str | None = None) -> int:
            return sum(numbers)

        @app.task
        async def votes(numbers: list[int | None]) -> int:
            return len(numbers)

        @app.task
        async def either(value: int | str) -> str:
            return str(value)

        @app.task
        async def optional(value: int | None = None, other: str | None = None) -> None: ...

        @app.task
        async def loose(value, *rest: int, **named: int): ...  # type: ignore[no-untyped-def]

        @app.task
        async def named(ctx: Context, name: str, after: int) -> str:
            return name * after

        self.number, self.text, self.maybe, self.total = number, text, maybe, total
        self.votes, self.either, self.optional = votes, either, optional
        self.loose, self.named = loose, named


@pytest.fixture
def app():
    return App(database_url="postgresql://nobody@nowhere/nothing")


@pytest.fixture
def tasks(app) -> Tasks:
    return Tasks(app)


@pytest.fixture
def f(app) -> Flow:
    return app.flow("graph")


def payload(graph: Graph, name: str) -> Any:
    (found,) = [node.submission for node in graph.nodes if node.name == name]
    return json.loads(found.payload)


class TestNames:
    def test_a_node_is_called_as_its_function_with_a_number_from_the_second_on(self, f, tasks):
        nodes = [f.add(tasks.number, n) for n in range(3)]
        assert [node.name for node in nodes] == ["number", "number-2", "number-3"]
        assert list(f.nodes) == ["number", "number-2", "number-3"]

    def test_a_name_of_its_own_is_kept_and_no_number_takes_it(self, f, tasks):
        f.add(tasks.number, name="number-2")
        assert f.add(tasks.text, name="number").name == "number"
        assert f.add(tasks.number).name == "number-3"

    def test_two_nodes_of_one_name_are_refused(self, f, tasks):
        f.add(tasks.number, name="a")
        with pytest.raises(InvalidInput, match="'a' is the name of another node") as caught:
            f.add(tasks.text, name="a")
        assert caught.value.field == "name"
        assert list(f.nodes) == ["a"]

    def test_a_parameter_wins_over_the_option_of_its_name(self, f, tasks):
        one = f.add(tasks.number)
        node = f.add(tasks.named, name="x", after=3)
        assert node.name == "named"
        assert payload(f.graph(), "named") == {"name": "x", "after": 3}
        with pytest.raises(InvalidInput, match=r"the option is f\.using\(name=\.\.\.\)"):
            f.add(tasks.named, "x", 3, name="y")
        other = f.using(name="y", after=one).add(tasks.named, "x", 3)
        assert other.name == "y"
        assert f.graph().edges == [Edge(0, 2)]


class TestEdges:
    def test_a_result_as_an_argument_makes_its_node_needed(self, f, tasks):
        a = f.add(tasks.number, 1, name="a")
        f.add(tasks.number, a.result, name="b")
        graph = f.graph()
        assert graph.edges == [Edge(0, 1)]
        assert graph.groups == []
        assert payload(graph, "a") == {"n": 1}
        assert graph.nodes[0].submission.payload_encoding is None
        assert payload(graph, "b") == {
            "arguments": {"n": None},
            "inputs": [{"at": ["n"], "of": "a"}],
        }
        assert graph.nodes[1].submission.payload_encoding == "json+inputs"

    def test_what_is_needed_twice_is_one_edge(self, f, tasks):
        a = f.add(tasks.number)
        f.add(tasks.total, [a.result, a.result, 3], after=[a, all_of(a)])
        assert f.graph().edges == [Edge(0, 1)]

    def test_results_stand_in_containers_among_values(self, f, tasks):
        a, b = f.add(tasks.number, name="a"), f.add(tasks.text, name="b")
        f.add(tasks.total, [7, a.result], label=b.result, name="c")
        f.add(tasks.loose, {"x": (a.result, 1)}, a.result, 2, k=a.result, name="d")
        graph = f.graph()
        assert payload(graph, "c") == {
            "arguments": {"numbers": [7, None], "label": None},
            "inputs": [{"at": ["numbers", 1], "of": "a"}, {"at": ["label"], "of": "b"}],
        }
        assert payload(graph, "d") == {
            "arguments": {"value": {"x": [None, 1]}, "rest": [None, 2], "named": {"k": None}},
            "inputs": [
                {"at": ["value", "x", 0], "of": "a"},
                {"at": ["rest", 0], "of": "a"},
                {"at": ["named", "k"], "of": "a"},
            ],
        }

    def test_results_stand_under_keys_that_are_no_text(self, f, app, tasks):
        @app.task
        async def sized(by_id: dict[int, int], by_size: dict[Size, int]) -> None: ...

        a = f.add(tasks.number, name="a")
        f.add(sized, {7: a.result, 8: 1}, {Size.SMALL: a.result})
        assert payload(f.graph(), "sized") == {
            "arguments": {"by_id": {"7": None, "8": 1}, "by_size": {"s": None}},
            "inputs": [{"at": ["by_id", "7"], "of": "a"}, {"at": ["by_size", "s"], "of": "a"}],
        }
        with pytest.raises(InvalidInput, match="sized-2: by_id"):
            f.add(sized, {"seven": a.result}, {})

    def test_results_stand_in_a_type_that_holds_itself(self, f, app, tasks):
        @app.task
        async def keep(value: JsonValue) -> None: ...

        a = f.add(tasks.number, name="a")
        f.add(keep, {"x": [a.result, 1, {"y": a.result}]})
        assert payload(f.graph(), "keep") == {
            "arguments": {"value": {"x": [None, 1, {"y": None}]}},
            "inputs": [{"at": ["value", "x", n], "of": "a"} for n in (0,)]
            + [{"at": ["value", "x", 2, "y"], "of": "a"}],
        }

    def test_joins_are_groups_behind_that_of_the_needed(self, f, tasks):
        a, b, c, d = (f.add(tasks.number, name=name) for name in "abcd")
        f.add(tasks.number, d.result, after=[any_of(a, b), quorum(2, a, b, c, cancel_rest=True)])
        graph = f.graph()
        assert graph.edges == [
            *(Edge(3, 4, 0), Edge(0, 4, 1), Edge(1, 4, 1)),
            *(Edge(0, 4, 2), Edge(1, 4, 2), Edge(2, 4, 2)),
        ]
        assert graph.groups == [
            Group(4, 1, EdgeGroupPolicy.any_of("let_run")),
            Group(4, 2, EdgeGroupPolicy.quorum(2, "cancel_remaining")),
        ]

    def test_the_first_of_some_is_a_group_of_its_own(self, f, tasks):
        a, b = f.add(tasks.number, name="a"), f.add(tasks.text, name="b")
        f.add(tasks.either, first_of(a, b, cancel_rest=True), name="c")
        graph = f.graph()
        assert graph.edges == [Edge(0, 2, 0), Edge(1, 2, 0)]
        assert graph.groups == [Group(2, 0, EdgeGroupPolicy.any_of("cancel_remaining"))]
        assert payload(graph, "c")["inputs"] == [{"at": ["value"], "first": 0}]

    def test_the_same_join_twice_is_one_group(self, f, tasks):
        a, b = f.add(tasks.number, name="a"), f.add(tasks.text, name="b")
        f.add(tasks.either, first_of(a, b), after=any_of(a, b), name="c")
        assert len(f.graph().groups) == 1

    def test_under_a_join_the_result_is_optional_unless_it_is_needed_anyway(self, f, tasks):
        a, b = f.add(tasks.number, name="a"), f.add(tasks.text, name="b")
        f.add(tasks.optional, a.result, b.result, after=any_of(a, b), name="c")
        f.add(tasks.number, a.result, after=[a, any_of(a, b)], name="d")
        assert [(e.upstream, e.group) for e in f.graph().edges if e.downstream == 2] == [
            (0, 0),
            (1, 0),
        ]
        assert [(e.upstream, e.group) for e in f.graph().edges if e.downstream == 3] == [
            (0, 0),
            (0, 1),
            (1, 1),
        ]

    def test_nodes_that_are_told_later_what_to_wait_for(self, f, tasks):
        a = f.add(tasks.number, name="a")
        b = f.add(tasks.number, name="b")
        assert a.after(b) is a
        graph = f.graph()
        assert [node.name for node in graph.nodes] == ["b", "a"]
        assert graph.edges == [Edge(0, 1)]

    def test_options_come_by_using(self, f, tasks):
        f.add(tasks.number.using(lane="slow", priority=7, delay=FAST, tags={"a.b": "c"}), 1)
        (node,) = f.graph().nodes
        stored = node.submission
        assert (stored.route.lane, stored.priority, stored.delay) == ("slow", 7, FAST)
        assert stored.tags == {"a.b": "c"}

    def test_arguments_are_taken_as_they_are_when_the_node_is_added(self, f, tasks):
        numbers = [1]
        f.add(tasks.total, numbers)
        numbers.append(2)
        assert payload(f.graph(), "total") == {"numbers": [1]}


class TestRefused:
    def test_a_node_of_another_flow(self, app, f, tasks):
        stranger = app.flow("other").add(tasks.number, name="stranger")
        for refused in (
            lambda: f.add(tasks.number, stranger.result),
            lambda: f.add(tasks.number, after=stranger),
            lambda: f.add(tasks.number, after=any_of(stranger)),
            lambda: f.add(tasks.number, first_of(stranger)),
            lambda: f.add(tasks.number).after(stranger),
        ):
            with pytest.raises(InvalidInput, match="stranger is a node of another flow, other"):
                refused()

    def test_more_than_there_are(self, f, tasks):
        a, b = f.add(tasks.number), f.add(tasks.number)
        with pytest.raises(InvalidInput, match="k: is 3, but there are only 2 nodes"):
            quorum(3, a, b)
        with pytest.raises(InvalidInput, match="1 or more"):
            quorum(0, a)
        with pytest.raises(InvalidInput, match="at least one"):
            any_of()
        with pytest.raises(InvalidInput, match="must not contain number twice"):
            any_of(a, a)

    def test_a_result_that_does_not_fit_its_parameter(self, f, tasks):
        a = f.add(tasks.text, name="a")
        with pytest.raises(InvalidInput, match=r"the result of a is str, but .*number takes int"):
            f.add(tasks.number, a.result)
        with pytest.raises(InvalidInput, match=r"numbers\.1: the result of a is str, .* int here"):
            f.add(tasks.total, [1, a.result])
        with pytest.raises(InvalidInput, match="the first result of a is str"):
            f.add(tasks.number, first_of(a))
        with pytest.raises(
            InvalidInput, match=r"contains the result of another node, .* takes int"
        ):
            f.add(tasks.number, [a.result])
        assert list(f.nodes) == ["a"]

    def test_a_result_that_would_be_read_as_something_else(self, f, app, tasks):
        @app.task
        async def sizes() -> tuple[Size, ...]:
            return (Size.SMALL,)

        a = f.add(sizes, name="a")
        with pytest.raises(
            InvalidInput,
            match=r"value: the result of a is .*, and would change when it is read as Any",
        ):
            f.add(tasks.loose, a.result)
        with pytest.raises(InvalidInput, match=r"value\.0: is a Size, .* instead of Any"):
            f.add(tasks.loose, [Size.SMALL, f.add(tasks.number, name="b").result])

    def test_a_result_that_may_be_none_for_a_parameter_that_may_not(self, f, tasks):
        a = f.add(tasks.maybe, 1, name="a")
        with pytest.raises(InvalidInput, match=r"the result of a is int \| None, but .* takes int"):
            f.add(tasks.number, a.result)

    def test_a_result_under_a_join_for_a_parameter_that_takes_no_none(self, f, tasks):
        a, b, c = (f.add(tasks.number, name=name) for name in "abc")
        with pytest.raises(
            InvalidInput,
            match=r"n: the result of a is None if any_of\(a, b\) succeeds without it, "
            r".*number takes int here: let it accept int \| None, or pass first_of",
        ):
            f.add(tasks.number, a.result, after=any_of(a, b))
        some = quorum(2, a, b, c)
        with pytest.raises(InvalidInput, match=r"numbers\.0: .* if quorum\(2, a, b, c\) succeeds"):
            f.add(tasks.total, [a.result, b.result, c.result], after=some)
        f.add(tasks.votes, [a.result, b.result, c.result], after=some)

    def test_nodes_that_wait_for_each_other(self, f, tasks):
        a = f.add(tasks.number, name="a")
        b = f.add(tasks.number, a.result, name="b")
        c = f.add(tasks.number, after=b, name="c")
        a.after(c)
        with pytest.raises(CycleDetected, match="a -> b -> c -> a"):
            f.graph()
        with pytest.raises(InvalidInput, match="c cannot wait for itself"):
            c.after(c)

    def test_values_that_do_not_fit_beside_results(self, f, tasks):
        a = f.add(tasks.number)
        with pytest.raises(InvalidInput, match=r"numbers\.1: Input should be a valid integer"):
            f.add(tasks.total, [a.result, "x"])
        with pytest.raises(InvalidInput, match="label: Input should be a valid string"):
            f.add(tasks.total, [a.result], 7)
        with pytest.raises(InvalidInput, match="missing a required argument: 'numbers'"):
            f.add(tasks.total, label=f.add(tasks.text).result)

    def test_a_result_inside_an_object(self, app, f, tasks):
        @app.task
        async def ship(order: Order) -> None: ...

        a = f.add(tasks.number)
        with pytest.raises(
            InvalidInput, match="contains the result of another node inside an object"
        ):
            f.add(ship, Order(a.result))

    def test_a_node_where_its_result_is_meant_and_the_other_way_round(self, f, tasks):
        a = f.add(tasks.number, name="a")
        with pytest.raises(InvalidInput, match=r"a is a node; pass its result, a\.result"):
            f.add(tasks.number, a)
        with pytest.raises(InvalidInput, match="must be nodes, not results"):
            f.add(tasks.number, after=a.result)
        for wrong in ("a", 7, [7]):
            with pytest.raises(InvalidInput, match="must be nodes of the flow, not"):
                f.add(tasks.number, after=wrong)
        with pytest.raises(InvalidInput, match="must be nodes of the flow, not int"):
            any_of(7)  # type: ignore[arg-type]

    def test_options_that_a_node_cannot_have(self, f, tasks):
        for option, value in {"key": "k", "via": object(), "with_parent": True}.items():
            with pytest.raises(InvalidInput, match="cannot be used in a flow") as caught:
                f.add(tasks.number.using(**{option: value}))
            assert caught.value.field == option

    def test_what_is_given_where_nodes_are_meant_is_told(self, f, tasks):
        a = f.add(tasks.number, name="a")
        for wrong in (lambda: any_of(a.result), lambda: f.add(tasks.number, after=[a.result])):
            with pytest.raises(InvalidInput, match="must be nodes, not results such as <the res"):
                wrong()
        with pytest.raises(InvalidInput, match="not list: pass them one by one, as "):
            any_of([a])  # type: ignore[arg-type]
        with pytest.raises(
            InvalidInput, match=r"not str: pass what .* returned, or f\.nodes\['a'\]"
        ):
            f.add(tasks.number, after="a")  # type: ignore[call-overload]

    def test_a_task_that_was_called(self, f, tasks):
        with pytest.raises(InvalidInput, match="do not call it, pass its arguments"):
            f.add(tasks.number(3))

    def test_a_result_as_a_key(self, f, app, tasks):
        @app.task
        async def by_number(found: dict[int, int]) -> None: ...

        a = f.add(tasks.number, name="a")
        with pytest.raises(InvalidInput, match="the result of a is a key here"):
            f.add(by_number, {a.result: 1})

    def test_a_delay_of_a_node_that_waits_for_others(self, f, tasks):
        a = f.add(tasks.number)
        f.add(tasks.number.using(delay=FAST), a.result)
        with pytest.raises(InvalidInput, match=r"nodes\[1\]\.delay"):
            f.graph()

    def test_what_is_no_task_or_of_another_app(self, app, f, tasks):
        with pytest.raises(InvalidInput, match="must be a task, not function: decorate it"):
            f.add(lambda: 7)
        with pytest.raises(InvalidInput, match="is a task of another app"):
            f.add(Tasks(App(name="other")).number)

    def test_a_flow_without_nodes_or_without_a_name(self, app, f):
        with pytest.raises(InvalidInput, match="graph has none: add a task first"):
            f.graph()
        with pytest.raises(InvalidInput, match="name"):
            app.flow("")

    def test_the_refusal_names_the_node(self, f, tasks):
        with pytest.raises(InvalidInput) as caught:
            f.add(tasks.number, "x", name="sum")
        assert str(caught.value).startswith("sum: n: ")
        assert caught.value.field == "n"


class TestResultsBeforeTheRun:
    def test_nothing_can_be_done_with_them(self, f, tasks):
        result: Any = f.add(tasks.number, name="a").result
        for wrong in (
            lambda: result + 1,
            lambda: result > 1,
            lambda: result == 1,
            lambda: bool(result),
            lambda: f"{result}",
            lambda: list(result),
            lambda: result.name,
            lambda: result[0],
            lambda: int(result),
        ):
            with pytest.raises(
                TypeError, match="the result of a is not known before the flow runs"
            ):
                wrong()

    def test_they_show_what_they_are(self, f, tasks):
        a, b = f.add(tasks.number, name="a"), f.add(tasks.number, name="b")
        assert repr(a.result) == "<the result of a>"
        assert repr(first_of(a, b)) == "<the first result of a, b>"
        assert repr(quorum(1, a, b)) == "quorum(1, a, b)"


class TestTheBlock:
    async def test_a_flow_is_used_once(self, app, tasks):
        f = app.flow("graph")
        with suppress(ZeroDivisionError):
            async with f:
                a = f.add(tasks.number)
                raise ZeroDivisionError
        with pytest.raises(RuntimeError, match="begin another flow"):
            f.add(tasks.number)
        with pytest.raises(RuntimeError, match="was not stored: its block or the submit raised"):
            _ = f.run
        with pytest.raises(RuntimeError, match="no id before"):
            _ = a.id
        with pytest.raises(RuntimeError, match="begin another flow"):
            await f.submit()

    async def test_a_with_that_would_block_the_event_loop_says_so(self, app, tasks):
        with pytest.raises(RuntimeError, match=r"async with app\.flow"), app.flow("graph") as f:
            f.add(tasks.number)
