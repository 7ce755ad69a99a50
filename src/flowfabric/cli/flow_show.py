"""Print one flow, for `flowfabric show` and `flowfabric flow show`."""

from __future__ import annotations

from flowfabric.cli.output import Printer, screen
from flowfabric.client import FlowFabric
from flowfabric.client.detail_reads import read_flow
from flowfabric.core.ids import FlowId
from flowfabric.core.states import PublicState
from flowfabric.drawing.flows import flow_facts, flow_lines
from flowfabric.drawing.picture import ORDER

_STATES_BUT_COMPLETED = [state for state in ORDER if state is not PublicState.COMPLETED]


async def show_flow(client: FlowFabric, id: FlowId, printer: Printer) -> None:
    """Print a flow, and the members that have not completed."""
    info, summary = await read_flow(client, id)
    now = await client.executions.server_time()
    members = []
    if not printer.is_json:
        members = await client.flows.members(id, states=_STATES_BUT_COMPLETED)
    printer.record(
        flow_facts(info, summary), lambda: flow_lines(info, summary, members, now, screen())
    )
