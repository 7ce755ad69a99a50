"""FlowRun: the handle of one stored flow and of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload
from unicodedata import category

from flowfabric.app.gather import endings_of
from flowfabric.app.run import Run, seconds_of
from flowfabric.core.errors import (
    ExecutionSkipped,
    FlowFabricError,
    FlowNotFound,
    InvalidInput,
    ResultTimeout,
)
from flowfabric.core.execution import Ending
from flowfabric.core.flow import (
    EdgeInfo,
    FlowCancellation,
    FlowInfo,
    FlowMember,
    FlowRetried,
    FlowState,
    FlowSummary,
    GroupInfo,
)
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import FlowCancelPolicy, PublicState, Resolution
from flowfabric.drawing.picture import Picture, picture_of
from flowfabric.drawing.svg import as_svg
from flowfabric.drawing.tree import as_tree
from flowfabric.handlers import async_only

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.app.nodes import Node
    from flowfabric.client import FlowFabric

T = TypeVar("T")
R = TypeVar("R")

# How many members, edges or results one call reads.
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a flow. `is_last` means that no other member waits for this one."""

    id: ExecutionId
    task: str
    is_last: bool


@dataclass(frozen=True, slots=True)
class FlowGraph:
    """A snapshot of a flow: its members and edges. `str()` draws it as a tree."""

    info: FlowInfo
    summary: FlowSummary
    members: Sequence[FlowMember]
    edges: Sequence[EdgeInfo]

    @property
    def groups(self) -> Sequence[GroupInfo]:
        """The edge groups of the flow, each with its current state."""
        return self.info.groups

    def __str__(self) -> str:
        rows = as_tree(self._picture())
        lines = [f"{self.info.flow_kind}  {self.summary.state}", *map(str, rows)]
        return "\n".join(map(_printable, lines))

    def svg(self) -> str:
        """Draw the flow as an SVG document."""
        return as_svg(self._picture())

    def _picture(self) -> Picture:
        return picture_of(
            self.info.flow_kind, self.summary.state, self.members, self.edges, self.groups
        )


class FlowRun:
    """The handle of one stored flow.

    `name` is the name of the flow. A run from `app.get_flow` has no name until its first call to
    the database.
    """

    __slots__ = ("_app", "_is_located", "_is_stored", "_members", "id", "is_duplicate", "name")

    def __init__(
        self,
        app: App,
        id: FlowId,
        *,
        name: str = "",
        members: Mapping[str, Member] | None = None,
        is_duplicate: bool = False,
        is_stored: bool = True,
        is_located: bool = True,
    ) -> None:
        self.id = id
        self.name = name
        self.is_duplicate = is_duplicate
        self._app = app
        self._members = members
        self._is_stored = is_stored
        # Whether the partition of the id is known.
        self._is_located = is_located

    def __repr__(self) -> str:
        return f"FlowRun({self.name or 'unknown'}, {self.id})"

    @overload
    async def result(
        self, node: None = None, /, *, timeout: float | timedelta | None = None
    ) -> Any: ...
    @overload
    async def result(self, node: Node[T], /, *, timeout: float | timedelta | None = None) -> T: ...
    @overload
    async def result(self, node: str, /, *, timeout: float | timedelta | None = None) -> Any: ...

    @async_only("run.result_sync")
    async def result(
        self, node: Node[Any] | str | None = None, /, *, timeout: float | timedelta | None = None
    ) -> Any:
        """Wait for the end of a node and return the result of the node.

        If `node` is not given, wait for the last node: the node that no other node waits for. The
        flow must then have exactly one last node. Raises the same errors as `Run.result`. If the
        node was skipped, raises the error of the node that caused the skip. A handler that waits
        outside its steps frees its slot in the worker, unless the handler passes a `timeout`.
        """
        members = await self._read_members()
        if node is None:
            last = await self.last_nodes()
            if len(last) != 1:
                raise InvalidInput(
                    field="node",
                    problem=f"{self.name} has {len(last)} last nodes ({_some(last)}): pass one of "
                    "them to result(node), or call results()",
                )
            name = last[0]
        else:
            name = self._name_of(members, node)
        return await self._result(name, timeout)

    @async_only("run.results_sync")
    async def results(
        self, *, timeout: float | timedelta | None = None, return_exceptions: bool = False
    ) -> dict[str, Any]:
        """Wait until all nodes have ended and return their results by name.

        A last node is a node that no other node waits for. If a last node does not complete, its
        error is raised as soon as it is known, as in `result`. If any other node does not complete,
        the answer omits that node, because no last node needed it.

        If `return_exceptions` is true, no error of a node is raised: the answer has the result or
        the error of every node. After `timeout`, ResultTimeout is raised in any case.
        """
        members = await self._read_members()
        seconds = seconds_of(timeout)
        try:
            async with asyncio.timeout(seconds):
                client = await self._client()
                if not return_exceptions:
                    await self._wait_for_last(client, members, is_patient=seconds is None)
                await self._wait_for_all(client, members, is_patient=seconds is None)
        except TimeoutError as error:
            raise await self._late(seconds) from error
        return await self._collect(client, members, return_exceptions=return_exceptions)

    @async_only("run.wait_sync")
    async def wait(self, *, timeout: float | timedelta | None = None) -> FlowState:
        """Wait until all nodes have ended, in any state, and return the state of the flow."""
        members = await self._read_members()
        seconds = seconds_of(timeout)
        try:
            async with asyncio.timeout(seconds):
                client = await self._client()
                await self._wait_for_all(client, members, is_patient=seconds is None)
        except TimeoutError as error:
            raise await self._late(seconds) from error
        return await self.state()

    @async_only("run.state_sync")
    async def state(self) -> FlowState:
        """Return the state of the flow."""
        return (await self.summary()).state

    @async_only("run.summary_sync")
    async def summary(self) -> FlowSummary:
        """Return how many nodes are in each state."""
        summary = await (await self._client()).flows.summary(self.id)
        if summary is None:
            raise self._missing()
        return summary

    @async_only("run.graph_sync")
    async def graph(self) -> FlowGraph:
        """Return the current members and edges of the flow."""
        client = await self._client()
        info = await client.flows.describe(self.id)
        if info is None:
            raise self._missing()
        self.name = info.flow_kind
        flows = client.flows
        return FlowGraph(
            info, await self.summary(), await flows.members(self.id), await flows.edges(self.id)
        )

    @async_only("run.cancel_sync")
    async def cancel(
        self,
        reason: str | None = None,
        *,
        cancel_policy: FlowCancelPolicy | str = FlowCancelPolicy.CANCEL_ALL,
        actor: str | None = None,
        wait: timedelta | float | None = None,
    ) -> FlowCancellation:
        """Cancel the flow, and every node that has not ended.

        With `cancel_policy="cancel_pending"`, running nodes continue. With `"flow_only"`, no node
        is cancelled, but no more nodes can be added. Without `wait`, nodes are cancelled in the
        background. With `wait`, this call waits up to that long until the nodes have ended.
        """
        client = await self._client()
        seconds = seconds_of(wait, field="wait")
        return await client.flows.cancel(
            self.id,
            cancel_policy=cancel_policy,
            reason=reason,
            actor=actor,
            wait=None if seconds is None else timedelta(seconds=seconds),
        )

    @async_only("run.retry_failed_sync")
    async def retry_failed(
        self, reason: str | None = None, *, actor: str | None = None
    ) -> FlowRetried:
        """Retry every node that failed or expired, and the nodes that were skipped because of
        them."""
        return await (await self._client()).flows.retry_failed(self.id, reason=reason, actor=actor)

    @async_only("run.nodes_sync")
    async def nodes(self) -> dict[str, Run[Any]]:
        """Return the runs of the nodes by name, in the order in which the nodes were added."""
        members = await self._read_members()
        return {name: self._run(members[name]) for name in members}

    async def last_nodes(self) -> list[str]:
        """Return the names of the last nodes: the nodes that no other node waits for."""
        return [name for name, member in (await self._read_members()).items() if member.is_last]

    @overload
    def node(self, node: Node[T], /) -> Run[T]: ...
    @overload
    def node(self, node: str, /) -> Run[Any]: ...

    def node(self, node: Node[Any] | str, /) -> Run[Any]:
        """Return the run of a node. For a flow from `app.get_flow`, call `await nodes()` first."""
        if self._members is None:
            raise RuntimeError("the nodes of this flow are not known yet: await nodes() first")
        return self._run(self._members[self._name_of(self._members, node)])

    # For synchronous code.

    def retry_failed_sync(
        self, reason: str | None = None, *, actor: str | None = None
    ) -> FlowRetried:
        """`retry_failed` for synchronous code."""
        return self._call(lambda: self.retry_failed(reason, actor=actor), "run.retry_failed()")

    @overload
    def result_sync(
        self, node: None = None, /, *, timeout: float | timedelta | None = None
    ) -> Any: ...
    @overload
    def result_sync(self, node: Node[T], /, *, timeout: float | timedelta | None = None) -> T: ...
    @overload
    def result_sync(self, node: str, /, *, timeout: float | timedelta | None = None) -> Any: ...

    def result_sync(self, node: Any = None, /, *, timeout: float | timedelta | None = None) -> Any:
        """`result` for synchronous code."""
        return self._call(lambda: self.result(node, timeout=timeout), "run.result()")

    def results_sync(
        self, *, timeout: float | timedelta | None = None, return_exceptions: bool = False
    ) -> dict[str, Any]:
        """`results` for synchronous code."""
        return self._call(
            lambda: self.results(timeout=timeout, return_exceptions=return_exceptions),
            "run.results()",
        )

    def wait_sync(self, *, timeout: float | timedelta | None = None) -> FlowState:
        """`wait` for synchronous code."""
        return self._call(lambda: self.wait(timeout=timeout), "run.wait()")

    def state_sync(self) -> FlowState:
        """`state` for synchronous code."""
        return self._call(self.state, "run.state()")

    def summary_sync(self) -> FlowSummary:
        """`summary` for synchronous code."""
        return self._call(self.summary, "run.summary()")

    def graph_sync(self) -> FlowGraph:
        """`graph` for synchronous code."""
        return self._call(self.graph, "run.graph()")

    def nodes_sync(self) -> dict[str, Run[Any]]:
        """`nodes` for synchronous code."""
        return self._call(self.nodes, "run.nodes()")

    def cancel_sync(
        self,
        reason: str | None = None,
        *,
        cancel_policy: FlowCancelPolicy | str = FlowCancelPolicy.CANCEL_ALL,
        actor: str | None = None,
        wait: timedelta | float | None = None,
    ) -> FlowCancellation:
        """`cancel` for synchronous code."""
        return self._call(
            lambda: self.cancel(reason, cancel_policy=cancel_policy, actor=actor, wait=wait),
            "run.cancel()",
        )

    def _call(self, work: Callable[[], Coroutine[Any, Any, R]], instead: str) -> R:
        return self._app.portal.call(work, instead)

    async def _client(self) -> FlowFabric:
        client = await self._app.client()
        if not self._is_located:
            self.id, self._is_located = await client.flows.find(self.id.uuid), True
        return client

    async def _read_members(self) -> Mapping[str, Member]:
        """Return the members by name. A flow from `app.get_flow` reads them from the database."""
        if self._members is None or not self._is_stored:
            client = await self._client()
            info = await client.flows.describe(self.id)
            if info is None:
                raise self._missing()
            self.name = info.flow_kind
            self._is_stored = True
        if self._members is None:
            found = await client.flows.members(self.id)
            waited_for = {edge.upstream_id for edge in await client.flows.edges(self.id)}
            self._members = {
                one.name or str(one.id.uuid): Member(one.id, one.task, one.id not in waited_for)
                for one in found
            }
        return self._members

    def _name_of(self, members: Mapping[str, Member], node: Node[Any] | str) -> str:
        name = node if isinstance(node, str) else node.name
        member = members.get(name)
        if not isinstance(node, str) and (member is None or node.id != member.id):
            raise InvalidInput(
                field="node",
                problem=f"{name} is a node of another flow, {node.flow.name}, not of {self.name}",
            )
        if member is None:
            raise InvalidInput(
                field="node",
                problem=f"{name!r} is not a node of {self.name}; its nodes: {_some(list(members))}",
            )
        return name

    def _run(self, member: Member) -> Run[Any]:
        return self._app.run_of(member.id, member.task, is_stored=self._is_stored)

    async def _result(self, name: str, timeout: float | timedelta | None = None) -> Any:
        assert self._members is not None
        run = self._run(self._members[name])
        try:
            return await run.result(timeout)
        except FlowFabricError as error:
            error.add_note(f"This is the node {name} of the flow {self.name}, {self.id}.")
            if not isinstance(error, ExecutionSkipped):
                raise
            cause = await self._cause(self._members[name].id)
            if cause is None:
                raise
            skipped = name
        return await self._raise(cause, skipped)

    async def _raise(self, name: str, skipped: str) -> Any:
        try:
            await self._result(name, 0)
        except FlowFabricError as error:
            error.add_note(f"{skipped} was skipped because of this.")
            raise
        return await self._result(skipped)  # both nodes were replayed in the meantime

    async def _cause(self, id: ExecutionId) -> str | None:
        """Return the name of the node that caused a node to be skipped, directly or through others.

        If there are several such nodes, the node that ended first counts.
        """
        client = await self._client()
        broken: dict[ExecutionId, list[ExecutionId]] = {}
        for edge in await client.flows.edges(self.id):
            if edge.resolution is Resolution.IMPOSSIBLE:
                broken.setdefault(edge.downstream_id, []).append(edge.upstream_id)
        reached, left = {id}, [id]
        while left:
            for upstream in broken.get(left.pop(), ()):
                if upstream not in reached:
                    reached.add(upstream)
                    left.append(upstream)
        causes = [
            one
            for one in await client.flows.members(self.id)
            if one.id in reached
            and one.public_state.is_terminal
            and one.public_state not in (PublicState.SKIPPED, PublicState.COMPLETED)
        ]
        first = min(causes, key=lambda one: (one.terminal_at, one.id), default=None)
        return None if first is None else first.name or str(first.id.uuid)

    async def _wait_for_last(
        self, client: FlowFabric, members: Mapping[str, Member], *, is_patient: bool
    ) -> None:
        """Wait for the last nodes. If one of them does not complete, raise its error.

        `is_patient` works as in `endings_of`.
        """
        names = {member.id.uuid: name for name, member in members.items() if member.is_last}
        last = [member.id for member in members.values() if member.is_last]
        async with aclosing(endings_of(client, last, is_patient=is_patient)) as endings:
            async for ending in endings:
                if ending.public_state is not PublicState.COMPLETED:
                    await self._result(names[ending.execution_id], 0)

    async def _wait_for_all(
        self, client: FlowFabric, members: Mapping[str, Member], *, is_patient: bool
    ) -> None:
        ids = [member.id for member in members.values()]
        async for _ in endings_of(client, ids, is_patient=is_patient):
            pass

    async def _collect(
        self, client: FlowFabric, members: Mapping[str, Member], *, return_exceptions: bool
    ) -> dict[str, Any]:
        ids = [member.id.uuid for member in members.values()]
        endings: dict[Any, Ending] = {}
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            for ending in await client.executions.read_results(self.id.partition_key, page):
                endings[ending.execution_id] = ending
        found: dict[str, Any] = {}
        for name, member in members.items():
            one = endings.get(member.id.uuid)
            if one is not None and one.public_state is PublicState.COMPLETED:
                found[name] = self._run(member).decode(one)
            elif return_exceptions:
                found[name] = await self._error(self._run(member), one)
        return found

    async def _error(self, run: Run[Any], ending: Ending | None) -> FlowFabricError:
        """Return the error that `result` would raise for a node."""
        try:
            if ending is None:  # replayed or trimmed in the meantime
                await run.result(0)
            else:
                await run.conclude(ending)
        except FlowFabricError as error:
            return error
        raise AssertionError("the run has not completed, but its result raised no error")

    async def _late(self, seconds: float | None) -> ResultTimeout:
        summary = await self.summary()
        return ResultTimeout(
            f"{self.name} has not ended within {seconds:g} s: {summary.unfinished} of its "
            f"{summary.total} nodes are unfinished. It continues: call again to keep waiting.",
            flow_id=self.id,
            state=summary.state,
        )

    def _missing(self) -> FlowNotFound:
        text = (
            f"There is no flow {self.id} in this namespace: it was trimmed, or the transaction "
            "that submitted it was rolled back or has not committed yet."
        )
        return FlowNotFound(text, flow_id=self.id)


def _printable(line: str) -> str:
    """Put a text on one line, and replace characters that could control a terminal."""
    return "".join("?" if category(ch) in ("Cc", "Cf", "Cs") else ch for ch in line)


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:5], "..."] if len(names) > 5 else names)
