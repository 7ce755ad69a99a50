"""Flows: a graph of tasks, written down in Python and stored as a whole before anything runs.

    async with app.flow("report") as f:
        pages = [f.add(fetch, url) for url in urls]
        total = f.add(summarise, [page.result for page in pages])
        f.add(publish, total.result, after=any_of(*mirrors))
    print(await f.run.result())

A node waits for those whose results it is given, and for what `after` says. The arguments are
checked when a node is added, results by their types; nothing is stored until the block has ended,
and nothing at all if it raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    overload,
)

from flowfabric import tracing
from flowfabric.app.flow_run import FlowRun, Member
from flowfabric.app.task import Task
from flowfabric.app.via import submit_flow_joined, submit_flow_joined_sync
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import MAX_NAME_BYTES, Submission, check_tags, check_text
from flowfabric.core.flow import MAX_KIND_BYTES, Edge, FlowSubmitted, Graph, Group, Policy
from flowfabric.core.flow import Node as GraphNode
from flowfabric.core.ids import ExecutionId, FlowId, mint_flow, mint_in
from flowfabric.core.states import GroupPolicy, OnSatisfied
from flowfabric.handlers.context import Context, asynchronous, running
from flowfabric.handlers.handler_run import Unrepeated
from flowfabric.tasks.assignability import accepts_none, shown
from flowfabric.tasks.inputs import ENCODING, Placeholder, Woven, leaves, weave

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.client.submissions import Place

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T_co = TypeVar("T_co", covariant=True)

# What `add` takes beside the arguments of a task, unless the task has a parameter of that name.
ADD_OPTIONS = ("after", "name")
# Options of a task that one node of a flow cannot have, and why.
_NO_OPTIONS = {
    "key": "a node has no key",
    "unique": "a node has no key",
    "window": "a node has no key",
    "via": "the whole flow joins a transaction: give it to app.flow(..., via=...)",
    "with_parent": "a node is no child",
}


class Node(Generic[T_co]):
    """One task of a flow, with its arguments. `result` stands for what it will return."""

    __slots__ = ("_arguments", "_flow", "_id", "_joins", "_task", "_wiring", "name", "place")

    def __init__(
        self,
        flow: Flow,
        place: int,
        name: str,
        task: Task[..., Any, Any],
        arguments: bytes | Woven,
    ) -> None:
        self.name = name
        self.place = place
        self._flow = flow
        self._task = task
        self._arguments = arguments
        self._joins: list[Join] = []
        self._wiring: Wiring | None = None
        self._id: ExecutionId | None = None

    def __repr__(self) -> str:
        return f"Node({self.name})"

    @property
    def task(self) -> Task[..., Any, Any]:
        return self._task

    @property
    def flow(self) -> Flow:
        return self._flow

    @property
    def id(self) -> ExecutionId:
        """The execution it is; known once the flow has been stored."""
        if self._id is None:
            raise RuntimeError(f"{self.name} has no id before its flow is stored")
        return self._id

    @property
    def result(self) -> T_co:
        """What this node will return, to be passed to another one as an argument: by itself, or in
        a list, a tuple, a set or a dict. That one waits for this one then.

        In a group of which not all are needed (`any_of`, `quorum`) it is None if this node was not
        among those that succeeded first.
        """
        giver = f"the result of {self.name}"
        return cast(T_co, Reference(giver, self._task.spec.result_hint, self))

    def after(self, *what: Node[Any] | Join) -> Self:
        """Let this node wait for others as well, also for some that were added later. Nodes that
        wait for each other in a circle are refused when the flow is stored."""
        self._flow._wait(self, what)
        return self


class Join:
    """How many of some nodes have to succeed before another may start: made by `all_of`, `any_of`
    and `quorum`, given to `after`."""

    __slots__ = ("cancel_rest", "k", "kind", "nodes")

    def __init__(
        self, kind: GroupPolicy, nodes: tuple[Node[Any], ...], k: int | None, cancel_rest: bool
    ) -> None:
        self.kind = kind
        self.nodes = nodes
        self.k = k
        self.cancel_rest = cancel_rest
        seen: set[str] = set()
        for node in nodes:
            if not isinstance(node, Node):
                raise InvalidInput(field="nodes", problem=_no_node(node))
            if node.name in seen and node.flow is nodes[0].flow:
                raise InvalidInput(field="nodes", problem=f"{node.name} is given twice")
            seen.add(node.name)

    def __repr__(self) -> str:
        number = "" if self.k is None else f"{self.k}, "
        return f"{self.kind}({number}{', '.join(node.name for node in self.nodes)})"

    @property
    def policy(self) -> Policy:
        rest = OnSatisfied.CANCEL_REMAINING if self.cancel_rest else OnSatisfied.LET_RUN
        match self.kind:
            case GroupPolicy.ALL_OF:
                return Policy.all_of()
            case GroupPolicy.ANY_OF:
                return Policy.any_of(rest)
            case GroupPolicy.QUORUM:
                return Policy.quorum(self.k or 0, rest)


After: TypeAlias = "Node[Any] | Join | Iterable[Node[Any] | Join]"


def all_of(*nodes: Node[Any]) -> Join:
    """All of these have to succeed: what `after=[a, b]` means as well."""
    return Join(GroupPolicy.ALL_OF, nodes, None, False)


def any_of(*nodes: Node[Any], cancel_rest: bool = False) -> Join:
    """One of these has to succeed. With `cancel_rest` the others are cancelled then, unless
    something else still waits for them; otherwise they go on."""
    _check_some(nodes)
    return Join(GroupPolicy.ANY_OF, nodes, None, bool(cancel_rest))


def quorum(k: int, /, *nodes: Node[Any], cancel_rest: bool = False) -> Join:
    """`k` of these have to succeed. With `cancel_rest` the others are cancelled then, or when too
    many have failed, unless something else still waits for them; otherwise they go on."""
    _check_some(nodes)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInput(field="k", problem="must be a whole number from 1 on")
    if k > len(nodes):
        raise InvalidInput(field="k", problem=f"is {k}, but there are only {len(nodes)} nodes")
    return Join(GroupPolicy.QUORUM, nodes, k, bool(cancel_rest))


@overload
def first_of(a: Node[A], /, *, cancel_rest: bool = False) -> A: ...
@overload
def first_of(a: Node[A], b: Node[B], /, *, cancel_rest: bool = False) -> A | B: ...
@overload
def first_of(a: Node[A], b: Node[B], c: Node[C], /, *, cancel_rest: bool = False) -> A | B | C: ...
@overload
def first_of(
    a: Node[A], b: Node[B], c: Node[C], d: Node[D], /, *, cancel_rest: bool = False
) -> A | B | C | D: ...
@overload
def first_of(*nodes: Node[T], cancel_rest: bool = False) -> T: ...


def first_of(*nodes: Node[Any], cancel_rest: bool = False) -> Any:
    """What the first of these to succeed returns, to be passed to another node as an argument. That
    one waits for any of them; with `cancel_rest` the others are cancelled then."""
    return Choice(any_of(*nodes, cancel_rest=cancel_rest))


class Reference(Placeholder):
    """The result of one node."""

    __slots__ = ("node",)

    def __init__(self, giver: str, hint: Any, node: Node[Any]) -> None:
        super().__init__(giver, hint)
        self.node = node


class Choice(Placeholder):
    """The result of whichever node of a group succeeds first."""

    __slots__ = ("join",)

    def __init__(self, join: Join) -> None:
        names = ", ".join(node.name for node in join.nodes)
        hints = tuple(node.task.spec.result_hint for node in join.nodes)
        super().__init__(f"the first result of {names}", _union(hints))
        self.join = join


@dataclass(frozen=True, slots=True)
class Wiring:
    """The groups of nodes that one node waits for, and which of them a `first_of` means."""

    groups: tuple[tuple[Policy, tuple[Node[Any], ...]], ...]
    choices: Mapping[int, int]  # by the id of its Join


class Flow:
    """A flow that is being written down. Made by `app.flow(name)`; see there."""

    def __init__(
        self,
        app: App,
        name: str,
        *,
        via: object = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        check_text("name", name, MAX_KIND_BYTES)
        self._tags = {} if tags is None else dict(tags)
        check_tags(self._tags)
        self._app = app
        self._name = name
        self._via = via
        self._nodes: list[Node[Any]] = []
        self._by_name: dict[str, Node[Any]] = {}
        self._numbers: dict[str, int] = {}
        self._context: Context | None = None
        self._run: FlowRun | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Flow({self._name}, {len(self._nodes)} nodes)"

    @property
    def name(self) -> str:
        return self._name

    @property
    def app(self) -> App:
        return self._app

    @property
    def via(self) -> object:
        return self._via

    @property
    def nodes(self) -> Mapping[str, Node[Any]]:
        """What was added, by name, in that order."""
        return MappingProxyType(self._by_name)

    @property
    def run(self) -> FlowRun:
        """The flow that was stored; it is there behind the block."""
        if self._run is None:
            raise RuntimeError(
                f"{self._name} was not stored: its block raised, or storing it did"
                if self._is_closed
                else f"{self._name} is not stored yet: its run is there behind the block"
            )
        return self._run

    @property
    def is_stored(self) -> bool:
        """Whether it has been stored, and has a run."""
        return self._run is not None

    # The arguments of a task cannot be typed together with options of ours (decision 0026): with
    # one they are checked when the node is added. `using(...)` keeps the types.

    @overload
    def add(self, task: Task[P, Any, T], /, *args: P.args, **kwargs: P.kwargs) -> Node[T]: ...
    @overload
    def add(
        self,
        task: Task[..., Any, T],
        /,
        *args: Any,
        after: After,
        name: str | None = None,
        **kwargs: Any,
    ) -> Node[T]: ...
    @overload
    def add(
        self, task: Task[..., Any, T], /, *args: Any, name: str | None, **kwargs: Any
    ) -> Node[T]: ...

    def add(self, task: Task[..., Any, Any], /, *args: Any, **kwargs: Any) -> Node[Any]:
        """Add a task with its arguments: values, or results of nodes that were added before.

        It waits for the nodes whose results it is given, and for those of `after`: a node, several
        of them, `any_of(...)`, `quorum(...)`, or several of those. If what it waits for cannot
        succeed any more, it is skipped. `name` is what the flow calls it, by default the name of
        the function, with a number from the second on.

        Options come by `task.using(lane=..., priority=...)`. With `after` or `name` the arguments
        are not seen by a type checker; `f.using(after=...).add(...)` keeps their types.
        """
        given: dict[str, Any] = {}
        if kwargs and isinstance(task, Task):
            own = task.spec.keywords
            given = {
                option: kwargs.pop(option)
                for option in ADD_OPTIONS
                if option in kwargs and option not in own
            }
        return self._add(task, args, kwargs, **given)

    def using(self, *, after: After = (), name: str | None = None) -> Adding:
        """`f.using(after=..., name=...).add(task, ...)`: the same as with these among the
        arguments, but typed."""
        return Adding(self, after, name)

    def graph(self) -> Graph:
        """What would be stored, checked as a whole; CycleDetected names nodes that wait for each
        other."""
        graph = self._graph()
        graph.check()
        return graph

    @asynchronous("flow.submit_sync")
    async def submit(self) -> FlowRun:
        """Store the flow; when this returns, it is durable. The end of an `async with` does it.

        With `via` it is stored when the transaction of that connection commits, or not at all.
        """
        self._close()
        if self._context is not None:
            await self._context.once(f"flow {self._name}", self._store_once)
            return self.run
        graph = self._graph()
        client = await self._app.client()
        with tracing.send_span([node.submission for node in graph.nodes]):
            if self._via is None:
                answer = await client.flows.submit(graph)
            else:
                answer = await submit_flow_joined(client, self._via, graph)
        return self._stored(graph, answer)

    def submit_sync(self) -> FlowRun:
        """`submit` for synchronous code; the end of a `with` does it."""
        call = self._app.portal.call
        if self._via is None:
            return call(self.submit, f"flow.submit(), or: async with app.flow({self._name!r})")
        self._close()
        graph = self._graph()

        def find(anew: bool) -> Place:
            # A synchronous connection cannot be awaited: somebody else's thread can.
            thread = "asyncio.to_thread(flow.submit_sync)"
            return call(lambda: self._place(graph, anew), thread)

        with tracing.send_span([node.submission for node in graph.nodes]):
            answer = submit_flow_joined_sync(find, self._via, graph)
        return self._stored(graph, answer)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._is_closed = True
        elif not self._is_closed:
            await self.submit()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._is_closed = True
        elif not self._is_closed:
            self.submit_sync()

    def within(self, context: Context) -> None:
        """Store it once for all runs of a handler: for `ctx.flow(...)`."""
        self._check_open()
        if self._via is not None:
            raise InvalidInput(
                field="via", problem="a flow of a handler is stored by itself, once: leave via out"
            )
        self._context = context

    def _add(
        self,
        task: Task[..., Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        after: After | None = (),
        name: str | None = None,
    ) -> Node[Any]:
        self._check_open()
        self._check_task(task)
        named = self._named(task, name)
        inside = [one for one in leaves([args, kwargs]) if isinstance(one, Placeholder | Node)]
        try:
            for one in inside:
                self._check_source(one)
            arguments: bytes | Woven
            arguments = weave(task.spec, args, kwargs) if inside else task.spec.encode(args, kwargs)
            node: Node[Any] = Node(self, len(self._nodes), named, task, arguments)
            joins = self._joins(node, () if after is None else after)
            node._wiring = self._wired(node, joins)
        except InvalidInput as error:
            problem = _explained(error.problem, task, kwargs)
            raise InvalidInput(
                f"{named}: {error.field}: {problem}",
                field=error.field,
                problem=problem,
                node=named,
            ) from error
        node._joins = joins
        self._nodes.append(node)
        self._by_name[named] = node
        return node

    def _wait(self, node: Node[Any], what: Iterable[Node[Any] | Join]) -> None:
        self._check_open()
        more = self._joins(node, what)
        wiring = None
        if any(join.kind is not GroupPolicy.ALL_OF for join in more):
            wiring = self._wired(node, [*node._joins, *more])  # what it is given may become None
        node._joins += more
        node._wiring = wiring

    def _wiring(self, node: Node[Any]) -> Wiring:
        if node._wiring is None:
            node._wiring = self._wired(node, node._joins)
        return node._wiring

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self._name} has been stored or given up: begin another flow")

    def _close(self) -> None:
        self._check_open()
        self._is_closed = True

    def _check_task(self, task: Any) -> None:
        if not isinstance(task, Task):
            instead = "decorate it with @app.task"
            if inspect.iscoroutine(task):
                task.close()
                instead = "do not call it, its arguments come behind it, as in f.add(task, ...)"
            raise InvalidInput(
                field="task", problem=f"must be a task, not {type(task).__name__}: {instead}"
            )
        if task.app is not self._app:
            raise InvalidInput(field="task", problem=f"{task.name} is a task of another app")
        for option, why in _NO_OPTIONS.items():
            value = getattr(task.options, option)
            if value is not None and value is not False:
                raise InvalidInput(field=option, problem=f"does not go with a flow: {why}")

    def _named(self, task: Task[..., Any, Any], name: str | None) -> str:
        if name is not None:
            check_text("name", name, MAX_NAME_BYTES)
            if name in self._by_name:
                raise InvalidInput(field="name", problem=f"{name!r} is the name of another node")
            return name
        plain = task.__name__
        number = self._numbers.get(plain, 0)
        while True:
            number += 1
            found = plain if number == 1 else f"{plain}-{number}"
            if found not in self._by_name:
                self._numbers[plain] = number
                return found

    def _check_source(self, source: Placeholder | Node[Any]) -> None:
        if isinstance(source, Node):
            raise InvalidInput(
                field="arguments",
                problem=f"{source.name} is a node; what it returns is {source.name}.result",
            )
        nodes: tuple[Node[Any], ...] = ()
        if isinstance(source, Reference):
            nodes = (source.node,)
        elif isinstance(source, Choice):
            nodes = source.join.nodes
        for node in nodes:
            self._check_node("arguments", node)

    def _check_node(self, field: str, node: Any) -> None:
        if not isinstance(node, Node):
            raise InvalidInput(field=field, problem=_no_node(node))
        if node.flow is not self:
            raise InvalidInput(
                field=field, problem=f"{node.name} is a node of another flow, {node.flow.name}"
            )

    def _joins(self, node: Node[Any], after: After) -> list[Join]:
        several = [after] if isinstance(after, Node | Join) else after
        if isinstance(several, str | Placeholder) or not isinstance(several, Iterable):
            raise InvalidInput(field="after", problem=_no_node(after))
        found = []
        for one in several:
            join = one if isinstance(one, Join) else None
            for upstream in (one,) if join is None else join.nodes:
                self._check_node("after", upstream)
                if upstream is node:
                    raise InvalidInput(field="after", problem=f"{node.name} cannot wait for itself")
            found.append(all_of(cast("Node[Any]", one)) if join is None else join)
        return found

    def _wired(self, node: Node[Any], joins: list[Join]) -> Wiring:
        """The groups of a node: one of all that it needs, then those of which it needs some."""
        gaps = node._arguments.gaps if isinstance(node._arguments, Woven) else ()
        needed: dict[Node[Any], None] = {}
        partial: dict[tuple[Policy, tuple[Node[Any], ...]], list[int]] = {}
        some: dict[Node[Any], Join] = {}
        chosen = [gap.value.join for gap in gaps if isinstance(gap.value, Choice)]
        for join in (*joins, *chosen):
            if join.kind is GroupPolicy.ALL_OF:
                needed.update(dict.fromkeys(join.nodes))
            else:
                partial.setdefault((join.policy, join.nodes), []).append(id(join))
                some.update(dict.fromkeys(join.nodes, join))
        for gap in gaps:
            if not isinstance(gap.value, Reference) or gap.value.node in needed:
                continue
            upstream = gap.value.node
            if upstream not in some:
                needed[upstream] = None
            elif not accepts_none(gap.hint):
                raise InvalidInput(
                    field=".".join(map(str, gap.at)),
                    problem=f"{gap.value.giver} is None if {some[upstream]!r} is decided without "
                    f"it, and {node.task.name} takes {shown(gap.hint)} here: let it take "
                    f"{shown(gap.hint)} | None, or pass first_of(...)",
                )
        groups = [(Policy.all_of(), tuple(needed))] if needed else []
        choices = {}
        for (policy, nodes), ids in partial.items():
            choices.update(dict.fromkeys(ids, len(groups)))
            groups.append((policy, nodes))
        return Wiring(tuple(groups), choices)

    def _graph(
        self, id: FlowId | None = None, derived: Callable[[str], ExecutionId] | None = None
    ) -> Graph:
        """What is stored: checked as a whole."""
        if not self._nodes:
            raise InvalidInput(field="nodes", problem=f"{self._name} has none: add a task first")
        id = mint_flow() if id is None else id
        for node in self._nodes:
            node._id = mint_in(id.partition_key) if derived is None else derived(node.name)
        edges, groups = [], []
        for node in self._nodes:
            for number, (policy, upstreams) in enumerate(self._wiring(node).groups):
                edges += [Edge(upstream.place, node.place, number) for upstream in upstreams]
                if policy.kind is not GroupPolicy.ALL_OF:
                    groups.append(Group(node.place, number, policy))
        return Graph(
            id=id,
            kind=self._name,
            nodes=[
                GraphNode(node.name, _submission(node, self._wiring(node))) for node in self._nodes
            ],
            edges=edges,
            groups=groups,
            tags=self._tags,
            parent_id=None if self._context is None else self._context.execution_id,
        ).in_order()

    async def _store_once(self, place: Unrepeated) -> None:
        """Store the flow of a handler, unless an earlier run of it has."""
        assert self._context is not None
        whole = place.derived("")
        graph = self._graph(FlowId.of(whole.partition_key, whole.uuid), place.derived)
        answer = FlowSubmitted(graph.id, is_duplicate=True)
        if not place.is_repeated:
            client = await self._app.client()
            with tracing.send_span([node.submission for node in graph.nodes]):
                answer = await self._context.ask(client.flows.submit(graph))
            self._context.know([node.id for node in self._nodes])
        self._stored(graph, answer)

    async def _place(self, graph: Graph, anew: bool) -> Place:
        client = await self._app.client()
        return await client.transactional.place(
            [node.submission for node in graph.nodes], anew=anew
        )

    def _stored(self, graph: Graph, answer: FlowSubmitted) -> FlowRun:
        if self._context is None and (context := running.get()) is not None:
            context.loosen([node.id for node in self._nodes])
        waited_for = {graph.nodes[edge.upstream].name for edge in graph.edges}
        self._run = FlowRun(
            self._app,
            answer.id,
            name=self._name,
            members={
                node.name: Member(node.id, node.task.name, is_last=node.name not in waited_for)
                for node in self._nodes
            },
            is_duplicate=answer.is_duplicate,
            is_stored=self._via is None,
        )
        return self._run


class Adding:
    """A flow with options for the nodes that are added through it."""

    __slots__ = ("_after", "_flow", "_name")

    def __init__(self, flow: Flow, after: After, name: str | None) -> None:
        self._flow = flow
        self._after = after
        self._name = name

    def add(self, task: Task[P, Any, T], /, *args: P.args, **kwargs: P.kwargs) -> Node[T]:
        """`Flow.add` with these options."""
        return self._flow._add(task, args, dict(kwargs), self._after, self._name)


def _submission(node: Node[Any], wiring: Wiring) -> Submission:
    arguments = node._arguments
    if isinstance(arguments, bytes):
        return node.task.node_submission(node.id, arguments, None)

    def source(value: Placeholder) -> Mapping[str, Any]:
        if isinstance(value, Choice):
            return {"first": wiring.choices[id(value.join)]}
        return {"of": cast(Reference, value).node.name}

    return node.task.node_submission(node.id, arguments.payload(source), ENCODING)


def _explained(problem: str, task: Task[..., Any, Any], kwargs: dict[str, Any]) -> str:
    """What is wrong with arguments, and what somebody may have meant."""
    if any(f".{kind.__qualname__}'" in problem for kind in (Reference, Choice)):
        return (
            "holds the result of another node inside an object; it can be passed by itself, or in "
            "a list, tuple, set or dict"
        )
    for option in ADD_OPTIONS:
        if option in kwargs:
            hint = f"{option} is a parameter of {task.name}; the option is f.using({option}=...)"
            return f"{problem} ({hint})"
    return problem


def _no_node(given: Any) -> str:
    if isinstance(given, Placeholder):
        return f"must be nodes, not results, such as {given!r}"
    text = f"must be nodes of the flow, not {type(given).__name__}"
    if isinstance(given, str):
        return f"{text}: what f.add(...) returned, or f.nodes[{given!r}]"
    if isinstance(given, Iterable):
        return f"{text}: give them one by one, as *nodes"
    return text


def _union(hints: tuple[Any, ...]) -> Any:
    try:
        return Union[hints]  # noqa: UP007
    except TypeError:  # a hint need not be hashable
        return Any


def _check_some(nodes: tuple[Any, ...]) -> None:
    if not nodes:
        raise InvalidInput(field="nodes", problem="must be at least one")
