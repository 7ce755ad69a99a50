"""Parameters that many HTTP routes share, and functions that find an execution or a flow by id."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from flowfabric.core.errors import ExecutionNotFound, FlowNotFound, InvalidInput
from flowfabric.core.ids import ExecutionId, FlowId, parse_id
from flowfabric.server.routing import Call
from flowfabric.server.submissions import Body

Id = Annotated[
    str, Path(description="A whole id, a UUID, or at least the last 8 digits of a UUID.")
]
Name = Annotated[str, Path(max_length=256)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Words = Annotated[list[str], Query()]


class Reason(Body):
    """The reason for an operation. It is recorded with the operation."""

    reason: str | None = Field(default=None, max_length=256)


async def find(call: Call, id: str) -> ExecutionId:
    """Return the whole id of an execution. `id` may be the last digits of its UUID."""
    return await call.client.executions.find(checked_id(id))


async def existing(call: Call, id: str) -> ExecutionId:
    """Return the id of an execution; raise ExecutionNotFound if the caller's namespace does not
    have it.
    """
    found = await find(call, id)
    if await call.client.executions.state(found) is None:
        raise ExecutionNotFound(id=id)
    return found


async def find_flow(call: Call, id: str) -> FlowId:
    return await call.client.flows.find(checked_id(id))


async def existing_flow(call: Call, id: str) -> FlowId:
    """Return the id of a flow; raise FlowNotFound if the caller's namespace does not have it."""
    found = await find_flow(call, id)
    if await call.client.flows.summary(found) is None:
        raise FlowNotFound(id=id)
    return found


def checked_id(text: str, field: str = "id") -> str:
    """Return a text if it is an id, otherwise refuse it. The error lists the accepted forms."""
    try:
        return parse_id(text)
    except InvalidInput as error:
        raise InvalidInput(field=field, problem=error.problem) from error


def why_of(body: Reason | None) -> str | None:
    return None if body is None else body.reason
