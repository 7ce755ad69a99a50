"""Nodes of a flow, and how one node waits for others: `all_of`, `any_of`, `quorum`, `first_of`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, Union, cast, overload

from flowfabric.app.task import Task
from flowfabric.core.errors import InvalidInput
from flowfabric.core.flow import EdgeGroupPolicy
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import GroupPolicy, OnSatisfied
from flowfabric.tasks import ArgumentTemplate, Placeholder

if TYPE_CHECKING:
    from flowfabric.app.flow import Flow

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T_co = TypeVar("T_co", covariant=True)


class Node(Generic[T_co]):
    """A node of a flow: a task with its arguments. Pass `node.result` to other nodes."""

    __slots__ = (
        "_arguments",
        "_flow",
        "_id",
        "_joins",
        "_limit_facts",
        "_task",
        "_wiring",
        "index",
        "name",
    )

    def __init__(
        self,
        flow: Flow,
        index: int,
        name: str,
        task: Task[..., Any, Any],
        arguments: bytes | ArgumentTemplate,
        limit_facts: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.index = index
        self._flow = flow
        self._task = task
        self._arguments = arguments
        self._limit_facts = limit_facts
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
        """The id of the execution of this node; known once the flow is stored."""
        if self._id is None:
            raise RuntimeError(f"{self.name} has no id before its flow is stored")
        return self._id

    @property
    def result(self) -> T_co:
        """A placeholder for the result of this node, to pass to another node as an argument.

        Pass it by itself, or in a list, tuple, set or dict. The receiver waits for this node. A
        receiver that waits by `any_of` or `quorum` gets the result only if this node was among the
        first to succeed, and None otherwise.
        """
        origin = f"the result of {self.name}"
        return cast(T_co, Reference(origin, self._task.spec.result_hint, self))

    def after(self, *what: Node[Any] | Join) -> Self:
        """Make this node wait for more nodes, also for nodes that were added to the flow later.

        A flow in which nodes wait for each other cannot be stored.
        """
        self._flow._wait(self, what)
        return self


class Join:
    """How many of several nodes must have succeeded before another node may run.

    Create it with `all_of`, `any_of` or `quorum`, and pass it to `after`.
    """

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
                raise InvalidInput(field="nodes", problem=not_a_node(node))
            if node.name in seen and node.flow is nodes[0].flow:
                raise InvalidInput(field="nodes", problem=f"must not contain {node.name} twice")
            seen.add(node.name)

    def __repr__(self) -> str:
        number = "" if self.k is None else f"{self.k}, "
        return f"{self.kind}({number}{', '.join(node.name for node in self.nodes)})"

    @property
    def group_policy(self) -> EdgeGroupPolicy:
        rest = OnSatisfied.CANCEL_REMAINING if self.cancel_rest else OnSatisfied.LET_RUN
        match self.kind:
            case GroupPolicy.ALL_OF:
                return EdgeGroupPolicy.all_of()
            case GroupPolicy.ANY_OF:
                return EdgeGroupPolicy.any_of(rest)
            case GroupPolicy.QUORUM:
                return EdgeGroupPolicy.quorum(self.k or 0, rest)


After: TypeAlias = "Node[Any] | Join | Iterable[Node[Any] | Join]"


def all_of(*nodes: Node[Any]) -> Join:
    """Return a `Join` for `after`: all these nodes must have succeeded.

    `after=[a, b]` means the same.
    """
    return Join(GroupPolicy.ALL_OF, nodes, None, False)


def any_of(*nodes: Node[Any], cancel_rest: bool = False) -> Join:
    """Return a `Join` for `after`: one of these nodes must have succeeded.

    If `cancel_rest` is true, the remaining nodes are then cancelled, except nodes that are still
    needed elsewhere in the flow.
    """
    _check_some(nodes)
    return Join(GroupPolicy.ANY_OF, nodes, None, bool(cancel_rest))


def quorum(k: int, /, *nodes: Node[Any], cancel_rest: bool = False) -> Join:
    """Return a `Join` for `after`: `k` of these nodes must have succeeded.

    If `cancel_rest` is true, the remaining nodes are cancelled when `k` nodes have succeeded, or
    when fewer than `k` nodes can still succeed. Nodes that are still needed elsewhere in the flow
    are not cancelled.
    """
    _check_some(nodes)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInput(field="k", problem="must be a whole number, 1 or more")
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
    """Return a placeholder for the result of the first node that succeeds.

    A node that gets the placeholder as an argument waits until one of `nodes` has succeeded.
    `cancel_rest` works as in `any_of`.
    """
    return Choice(any_of(*nodes, cancel_rest=cancel_rest))


class Reference(Placeholder):
    """A placeholder for the result of one node."""

    __slots__ = ("node",)

    def __init__(self, origin: str, hint: Any, node: Node[Any]) -> None:
        super().__init__(origin, hint)
        self.node = node


class Choice(Placeholder):
    """What `first_of` returns: a placeholder for the result of the first node that succeeds."""

    __slots__ = ("join",)

    def __init__(self, join: Join) -> None:
        names = ", ".join(node.name for node in join.nodes)
        hints = tuple(node.task.spec.result_hint for node in join.nodes)
        super().__init__(f"the first result of {names}", _union(hints))
        self.join = join


@dataclass(frozen=True, slots=True)
class Wiring:
    """The groups of nodes that one node waits for. `choices` says which group belongs to which
    `first_of`."""

    groups: tuple[tuple[EdgeGroupPolicy, tuple[Node[Any], ...]], ...]
    choices: Mapping[int, int]  # the index of the group for the id() of each Join


def not_a_node(given: Any) -> str:
    if isinstance(given, Placeholder):
        return f"must be nodes, not results such as {given!r}"
    text = f"must be nodes of the flow, not {type(given).__name__}"
    if isinstance(given, str):
        return f"{text}: pass what f.add(...) returned, or f.nodes[{given!r}]"
    if isinstance(given, Iterable):
        return f"{text}: pass them one by one, as *nodes"
    return text


def _union(hints: tuple[Any, ...]) -> Any:
    try:
        return Union[hints]  # noqa: UP007
    except TypeError:  # a hint may be unhashable
        return Any


def _check_some(nodes: tuple[Any, ...]) -> None:
    if not nodes:
        raise InvalidInput(field="nodes", problem="must contain at least one node")
