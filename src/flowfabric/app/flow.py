"""Flow: a graph of tasks. It is built in Python and stored as a whole before any task runs.

    async with app.flow("report") as f:
        pages = [f.add(fetch, url) for url in urls]
        total = f.add(summarise, [page.result for page in pages])
        f.add(publish, total.result, after=any_of(*mirrors))
    print(await f.run.result())

A node waits for the nodes whose results are its arguments, and for the nodes in `after`. Arguments
are checked when a node is added. For an argument that is the result of another node, the return
type of that node's task is checked. At the end of the `async with` block, the flow is stored. If
the block raises, nothing is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)

from flowfabric import tracing
from flowfabric.app.flow_run import FlowRun, Member
from flowfabric.app.nodes import After, Choice, Join, Node, Reference, Wiring, all_of, not_a_node
from flowfabric.app.task import Task
from flowfabric.client import submit_flow_via, submit_flow_via_sync
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import MAX_NAME_BYTES, Submission, check_tags, check_text
from flowfabric.core.flow import MAX_KIND_BYTES, Edge, EdgeGroupPolicy, FlowSubmitted, Graph, Group
from flowfabric.core.flow import Node as GraphNode
from flowfabric.core.ids import ExecutionId, FlowId, mint_flow, mint_in
from flowfabric.core.states import GroupPolicy
from flowfabric.handlers import Context, HandlerRun, OnceCall, async_only, current_run, run_of
from flowfabric.tasks import (
    INPUTS_ENCODING,
    ArgumentTemplate,
    Placeholder,
    accepts_none,
    leaf_values,
    make_template,
    type_text,
)

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.client import Destination, Find

P = ParamSpec("P")
T = TypeVar("T")

# Options of `add`, unless the task has a parameter with the same name.
ADD_OPTIONS = ("after", "name")
# Options of a task that a node cannot have, with the reason.
_NO_OPTIONS = {
    "key": "a node has no key",
    "unique": "a node has no key",
    "window": "a node has no key",
    "on_conflict": "a node has no key",
    "via": "the whole flow joins a transaction: give it to app.flow(..., via=...)",
    "with_parent": "a node is not a child",
}


class Flow:
    """A flow that is being built. Create it with `app.flow(name)`."""

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
        self._handler_run: HandlerRun | None = None
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
        """The nodes by name, in the order in which they were added."""
        return MappingProxyType(self._by_name)

    @property
    def run(self) -> FlowRun:
        """The run of the stored flow. Available after the `with` block."""
        if self._run is None:
            raise RuntimeError(
                f"{self._name} was not stored: its block or the submit raised an error"
                if self._is_closed
                else f"{self._name} is not stored yet: its run is available after the block"
            )
        return self._run

    @property
    def is_stored(self) -> bool:
        """Whether the flow is stored and therefore has a run."""
        return self._run is not None

    # Python cannot type the arguments of a task together with our options (decision 0026). With an
    # option, the arguments are checked when the node is added. `using(...)` keeps the types.

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
        """Add a task with its arguments: values, or results of nodes added before.

        The new node waits for the nodes whose results are its arguments, and for `after`: a node,
        `any_of(...)`, `quorum(...)`, or a list of these. If too few of these nodes can still
        succeed, the new node is skipped. `name` is the name of the node. The default is the name of
        the function; a number is appended if the flow already has a node of that name.

        Pass task options with `task.using(lane=..., priority=...)`. If you pass `after` or `name`
        here, a type checker does not check the arguments. With `f.using(after=...).add(...)`, it
        checks them.
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
        """Return an object that adds nodes with these options: `f.using(after=...,
        name=...).add(task, ...)`.

        A type checker then checks the arguments of the task. It cannot check them if you pass the
        options to `add` itself.
        """
        return Adding(self, after, name)

    def graph(self) -> Graph:
        """Build and check the graph; raise CycleDetected if nodes wait for each other."""
        graph = self._graph()
        graph.check()
        return graph

    @async_only("flow.submit_sync")
    async def submit(self) -> FlowRun:
        """Store the flow. The end of `async with` calls this.

        When this call returns, the flow is durable. A flow with a `via` connection is stored only
        when the transaction of that connection commits.
        """
        self._close()
        if self._handler_run is not None:
            await self._handler_run.once(f"flow {self._name}", self._store_once)
            return self.run
        self._check_has_nodes()
        client = await self._app.client()
        graph = self._graph(await client.flows.mint())
        with tracing.send_span([node.submission for node in graph.nodes]):
            if self._via is None:
                answer = await client.flows.submit(graph)
            else:
                answer = await submit_flow_via(client, self._via, graph)
        return self._stored(graph, answer)

    def submit_sync(self) -> FlowRun:
        """`submit` for synchronous code. The end of `with` calls this."""
        call = self._app.portal.call
        if self._via is None:
            return call(self.submit, f"flow.submit(), or: async with app.flow({self._name!r})")
        self._close()
        self._check_has_nodes()
        graph = self._graph(call(self._mint, "asyncio.to_thread(flow.submit_sync)"))

        def find(asked: Find | None) -> Destination:
            # A synchronous connection needs a thread. Async code can await the thread.
            thread = "asyncio.to_thread(flow.submit_sync)"
            return call(lambda: self._find_destination(graph, asked is not None), thread)

        with tracing.send_span([node.submission for node in graph.nodes]):
            answer = submit_flow_via_sync(find, self._via, graph)
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
        """Bind the flow to the handler that is running. `ctx.flow(...)` calls this.

        The flow is then stored only once, however often the handler runs.
        """
        self._check_open()
        if self._via is not None:
            raise InvalidInput(
                field="via", problem="cannot be used with ctx.flow, which stores the flow by itself"
            )
        self._handler_run = run_of(context)

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
        inside = [one for one in leaf_values([args, kwargs]) if isinstance(one, Placeholder | Node)]
        try:
            for one in inside:
                self._check_source(one)
            arguments: bytes | ArgumentTemplate
            arguments = (
                make_template(task.spec, args, kwargs) if inside else task.spec.encode(args, kwargs)
            )
            limit_facts = task.limit_facts(args, kwargs)
            node: Node[Any] = Node(self, len(self._nodes), named, task, arguments, limit_facts)
            joins = self._joins(node, () if after is None else after)
            node._wiring = self._wired(node, joins)
        except InvalidInput as error:
            problem = _explain(error.problem, task, kwargs)
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
            wiring = self._wired(
                node, [*node._joins, *more]
            )  # raises if a result may be None and the node cannot take None
        node._joins += more
        node._wiring = wiring

    def _wiring(self, node: Node[Any]) -> Wiring:
        if node._wiring is None:
            node._wiring = self._wired(node, node._joins)
        return node._wiring

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self._name} was stored or abandoned: begin another flow")

    def _close(self) -> None:
        self._check_open()
        self._is_closed = True

    def _check_task(self, task: Any) -> None:
        if not isinstance(task, Task):
            instead = "decorate it with @app.task"
            if inspect.iscoroutine(task):
                task.close()
                instead = "do not call it, pass its arguments as in f.add(task, ...)"
            raise InvalidInput(
                field="task", problem=f"must be a task, not {type(task).__name__}: {instead}"
            )
        if task.app is not self._app:
            raise InvalidInput(field="task", problem=f"{task.name} is a task of another app")
        for option, why in _NO_OPTIONS.items():
            value = getattr(task.options, option)
            if value is not None and value is not False:
                raise InvalidInput(field=option, problem=f"cannot be used in a flow: {why}")

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
                problem=f"{source.name} is a node; pass its result, {source.name}.result",
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
            raise InvalidInput(field=field, problem=not_a_node(node))
        if node.flow is not self:
            raise InvalidInput(
                field=field, problem=f"{node.name} is a node of another flow, {node.flow.name}"
            )

    def _joins(self, node: Node[Any], after: After) -> list[Join]:
        several = [after] if isinstance(after, Node | Join) else after
        if isinstance(several, str | Placeholder) or not isinstance(several, Iterable):
            raise InvalidInput(field="after", problem=not_a_node(after))
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
        """Group the nodes that a node waits for: first the nodes that must all succeed, then each
        group in which only some nodes must succeed.
        """
        gaps = node._arguments.gaps if isinstance(node._arguments, ArgumentTemplate) else ()
        needed: dict[Node[Any], None] = {}
        partial: dict[tuple[EdgeGroupPolicy, tuple[Node[Any], ...]], list[int]] = {}
        some: dict[Node[Any], Join] = {}
        chosen = [gap.value.join for gap in gaps if isinstance(gap.value, Choice)]
        for join in (*joins, *chosen):
            if join.kind is GroupPolicy.ALL_OF:
                needed.update(dict.fromkeys(join.nodes))
            else:
                partial.setdefault((join.group_policy, join.nodes), []).append(id(join))
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
                    problem=f"{gap.value.origin} is None if {some[upstream]!r} succeeds without "
                    f"it, but {node.task.name} takes {type_text(gap.hint)} here: let it accept "
                    f"{type_text(gap.hint)} | None, or pass first_of(...)",
                )
        groups = [(EdgeGroupPolicy.all_of(), tuple(needed))] if needed else []
        choices = {}
        for (group_policy, nodes), ids in partial.items():
            choices.update(dict.fromkeys(ids, len(groups)))
            groups.append((group_policy, nodes))
        return Wiring(tuple(groups), choices)

    def _graph(
        self, id: FlowId | None = None, derived: Callable[[str], ExecutionId] | None = None
    ) -> Graph:
        """Build the graph to store, with new node ids or with the ids that `derived` returns."""
        self._check_has_nodes()
        id = mint_flow() if id is None else id
        for node in self._nodes:
            node._id = mint_in(id.partition_key) if derived is None else derived(node.name)
        edges, groups = [], []
        for node in self._nodes:
            for number, (group_policy, upstreams) in enumerate(self._wiring(node).groups):
                edges += [Edge(upstream.index, node.index, number) for upstream in upstreams]
                if group_policy.kind is not GroupPolicy.ALL_OF:
                    groups.append(Group(node.index, number, group_policy))
        return Graph(
            id=id,
            kind=self._name,
            nodes=[
                GraphNode(node.name, _submission(node, self._wiring(node))) for node in self._nodes
            ],
            edges=edges,
            groups=groups,
            tags=self._tags,
            parent_id=None if self._handler_run is None else self._handler_run.claimed.id,
        ).in_order()

    def _check_has_nodes(self) -> None:
        if not self._nodes:
            raise InvalidInput(field="nodes", problem=f"{self._name} has none: add a task first")

    async def _mint(self) -> FlowId:
        return await (await self._app.client()).flows.mint()

    async def _store_once(self, call: OnceCall) -> None:
        """Store the flow of a handler, unless an earlier run of the handler has stored it."""
        assert self._handler_run is not None
        whole = call.derive_id("")
        graph = self._graph(FlowId.of(whole.partition_key, whole.uuid), call.derive_id)
        answer = FlowSubmitted(graph.id, is_duplicate=True)
        if not call.is_replayed:
            client = await self._app.client()
            with tracing.send_span([node.submission for node in graph.nodes]):
                answer = await self._handler_run.query(client.flows.submit(graph))
            self._handler_run.note_existing([node.id for node in self._nodes])
        self._stored(graph, answer)

    async def _find_destination(self, graph: Graph, anew: bool) -> Destination:
        client = await self._app.client()
        return await client.transactional.find_destination(
            [node.submission for node in graph.nodes], anew=anew
        )

    def _stored(self, graph: Graph, answer: FlowSubmitted) -> FlowRun:
        if self._handler_run is None and (handler_run := current_run.get()) is not None:
            handler_run.note_unrecorded([node.id for node in self._nodes])
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
    """Adds nodes to a flow with the options of `Flow.using`."""

    __slots__ = ("_after", "_flow", "_name")

    def __init__(self, flow: Flow, after: After, name: str | None) -> None:
        self._flow = flow
        self._after = after
        self._name = name

    def add(self, task: Task[P, Any, T], /, *args: P.args, **kwargs: P.kwargs) -> Node[T]:
        """Add a node as `Flow.add` does, with the options of `Flow.using`."""
        return self._flow._add(task, args, dict(kwargs), self._after, self._name)


def _submission(node: Node[Any], wiring: Wiring) -> Submission:
    arguments = node._arguments
    if isinstance(arguments, bytes):
        return node.task.node_submission(node.id, arguments, None, node._limit_facts)

    def source(value: Placeholder) -> Mapping[str, Any]:
        if isinstance(value, Choice):
            return {"first": wiring.choices[id(value.join)]}
        return {"of": cast(Reference, value).node.name}

    return node.task.node_submission(
        node.id, arguments.payload(source), INPUTS_ENCODING, node._limit_facts
    )


def _explain(problem: str, task: Task[..., Any, Any], kwargs: dict[str, Any]) -> str:
    """Return the text of the error for a bad argument, with advice for two common mistakes."""
    if any(f".{kind.__qualname__}'" in problem for kind in (Reference, Choice)):
        return (
            "contains the result of another node inside an object; pass it by itself, or in a "
            "list, tuple, set or dict"
        )
    for option in ADD_OPTIONS:
        if option in kwargs:
            hint = f"{option} is a parameter of {task.name}; the option is f.using({option}=...)"
            return f"{problem} ({hint})"
    return problem
