"""The functions that cancel a flow, as Python calls on the connection of a test's flow.

answer = await header(flow, "cancel_all", reason="enough")   # .outcome, .members, .open_count
done = await members(flow)                                   # .handled, .remaining, .draining
assert await cancel(flow) == ...                             # header, then members to the end
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .factories import Engine, new_id
from .flows import Flow

if TYPE_CHECKING:
    from .database import Record


async def header(flow: Flow, policy: str | None = "cancel_all", **more: Any) -> Record:
    """Cancel a flow, but not its members yet."""
    return await _call(flow, "cancel_flow_header", flow_id=flow.id, policy=policy, **more)


async def members(flow: Flow, limit: int | None = 100) -> Record:
    """End the next members of a cancelled flow."""
    return await _call(flow, "cancel_members", flow_id=flow.id, limit=limit)


async def ack(flow: Flow, execution_id: UUID | None, flow_id: UUID | None = None) -> Record:
    return await _call(
        flow, "ack_cancel_member", flow_id=flow_id or flow.id, execution_id=execution_id
    )


async def reconcile(flow: Flow, limit: int | None = 500) -> tuple[int, timedelta | None]:
    """Run one pass of the backlog's reconciler."""
    row = await flow.engine.connection.fetchrow(
        "select handled, due_in from ff.cancel_backlog(p_partition_key => $1, p_limit => $2)",
        flow.engine.partition_key,
        limit,
    )
    assert row is not None
    return row["handled"], row["due_in"]


async def cancel(flow: Flow, policy: str = "cancel_all", **more: Any) -> Record:
    """Cancel a flow and as many members as possible. Return the last answer."""
    await header(flow, policy, **more)
    while (done := await members(flow))["handled"] and done["remaining"]:
        pass
    return done


async def empty_flow(engine: Engine) -> Flow:
    """Make a flow without members."""
    flow = Flow(engine=engine, id=new_id(), ids={}, lanes={})
    answer = await _call(flow, "create_flow", flow_id=flow.id, flow_kind="test")
    assert answer["outcome"] == "created"
    return flow


async def backlog(flow: Flow) -> tuple[int, set[str]]:
    """Return the number of backlog headers of the flow, and the members on its backlog."""
    connection = flow.engine.connection
    number: int = await connection.fetchval(
        "select count(*) from ff.cancel_backlog where flow_id = $1", flow.id
    )
    rows = await connection.fetch(
        "select execution_id from ff.cancel_backlog_member where flow_id = $1", flow.id
    )
    return number, {flow.named(row["execution_id"]) for row in rows}


async def stored(flow: Flow) -> Record:
    """Return the row of the flow."""
    row: Record | None = await flow.engine.connection.fetchrow(
        "select * from ff.flow where flow_id = $1", flow.id
    )
    assert row is not None
    return row


async def _call(flow: Flow, function: str, **arguments: Any) -> Record:
    named = {
        "partition_key": flow.engine.partition_key,
        "namespace": flow.engine.namespace,
        **arguments,
    }
    given = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(named, 1))
    row: Record | None = await flow.engine.connection.fetchrow(
        f"select a.* from ff.{function}({given}) a", *named.values()
    )
    assert row is not None
    return row
