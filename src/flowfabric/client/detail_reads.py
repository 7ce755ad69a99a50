"""Reads that the commands and the HTTP server share: an execution with all its details, a flow with
its summary, and the parent that a filter names.
"""

from __future__ import annotations

from dataclasses import replace

from flowfabric.client.facade import FlowFabric
from flowfabric.core.errors import ExecutionNotFound, FlowNotFound
from flowfabric.core.execution import ExecutionFilter, ExecutionInfo, ExecutionSummary
from flowfabric.core.flow import FlowInfo, FlowSummary
from flowfabric.core.ids import AnyId, FlowId
from flowfabric.drawing.executions import CHILDREN_SHOWN, ExecutionDetails


async def read_details(
    client: FlowFabric, id: AnyId, *, with_payload: bool = False, with_trace: bool = False
) -> ExecutionDetails:
    """Read everything about an execution; raise ExecutionNotFound if it does not exist."""
    info = await client.executions.describe(id)
    if info is None:
        raise ExecutionNotFound(id=str(id))
    return ExecutionDetails(
        info,
        await client.executions.why(id),
        await client.executions.attempts(id),
        await client.steps.list(id) if info.step_count else [],
        await client.executions.events(id),
        await _children(client, info),
        with_payload=with_payload,
        with_trace=with_trace,
    )


async def _children(client: FlowFabric, info: ExecutionInfo) -> list[ExecutionSummary]:
    """Return the newest children of an execution."""
    if not info.child_count:
        return []
    page = await client.executions.list(
        ExecutionFilter(parent=info.id), limit=CHILDREN_SHOWN, partition=info.id.partition_key
    )
    return page.executions


async def located(
    client: FlowFabric, filter: ExecutionFilter, partition: int | None
) -> tuple[ExecutionFilter, int | None]:
    """Find the parent execution that a filter names, so that its children can be listed.

    Return the filter with the whole id of the parent, and the partition of the parent. The children
    are in the same partition. If the filter names no parent, return the arguments unchanged.
    """
    if filter.parent is None:
        return filter, partition
    parent = await client.executions.find(filter.parent)
    return replace(filter, parent=parent), parent.partition_key


async def read_flow(client: FlowFabric, id: FlowId) -> tuple[FlowInfo, FlowSummary]:
    """Return a flow and its summary; raise FlowNotFound if it does not exist."""
    info, summary = await client.flows.describe(id), await client.flows.summary(id)
    if info is None or summary is None:
        raise FlowNotFound(id=str(id))
    return info, summary
