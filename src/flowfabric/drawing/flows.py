"""Draws flows as text and as plain data: lists, single records, and trees of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from flowfabric.core.flow import FlowInfo, FlowListed, FlowMember, FlowState, FlowSummary
from flowfabric.drawing.executions import short_id, state_cell
from flowfabric.drawing.picture import ORDER, Picture, words
from flowfabric.drawing.plain import plain
from flowfabric.drawing.table import Column, record, table
from flowfabric.drawing.text import Cell, Screen, cell, cut, paint, printable, text_width
from flowfabric.drawing.times import exact, relative, short
from flowfabric.drawing.tree import tree_lines

MEMBERS_SHOWN = 20

_COLOURS = {
    FlowState.RUNNING: "cyan",
    FlowState.BLOCKED: "yellow",
    FlowState.COMPLETED: "green",
    FlowState.FAILED: "red",
}


def _state_cell(state: FlowState) -> Cell:
    return cell(state, _COLOURS.get(state))


def flow_columns(now: datetime, *, is_wide: bool, with_namespace: bool) -> list[Column[FlowListed]]:
    """Return the columns of a list of flows."""
    return [
        Column("ID", lambda each: short_id(each.id)),
        Column("STATE", lambda each: _state_cell(each.state)),
        Column(
            "NAMESPACE",
            lambda each: each.namespace,
            least=6,
            drop=1,
            is_shown=is_wide or with_namespace,
        ),
        Column("KIND", lambda each: each.flow_kind, least=8, keeps_end=True),
        Column("NODES", lambda each: str(each.node_count), is_number=True),
        Column("EDGES", lambda each: str(each.edge_count), is_number=True, drop=2),
        Column("AGE", lambda each: short(now - each.created_at), is_number=True),
        Column("CREATED", lambda each: exact(each.created_at), is_shown=is_wide),
    ]


def flow_facts(info: FlowInfo, summary: FlowSummary) -> dict[str, Any]:
    """Return a flow as plain data, without its members."""
    facts = plain(info)
    facts["state"] = summary.state
    facts["counts"] = {state.value: count for state, count in summary.counts.items()}
    facts["groups"] = list(map(plain, info.groups))
    return facts


def flow_lines(
    info: FlowInfo,
    summary: FlowSummary,
    members: Sequence[FlowMember],
    now: datetime,
    screen: Screen,
) -> list[str]:
    """Return a flow as text: its facts, and a table of the given members."""
    cancelled = None
    if info.cancelled_at is not None:
        by = f" by {info.cancelled_by}" if info.cancelled_by else ""
        cancelled = f"{relative(info.cancelled_at, now)}{by}, {info.cancel_policy}"
    trimmed = max(info.node_count - summary.total, 0)
    facts = [
        ("id", short_id(info.id)),
        ("kind", info.flow_kind),
        ("state", _state_cell(summary.state)),
        ("namespace", info.namespace),
        ("members", _counts(summary)),
        ("trimmed", f"{trimmed} members" if trimmed else None),
        ("edges", str(info.edge_count)),
        ("created", relative(info.created_at, now)),
        ("creator", info.creator),
        ("cancelled", cancelled),
        ("reason", info.cancel_reason),
        ("tags", " ".join(f"{key}={value}" for key, value in sorted(info.tags.items()))),
    ]
    lines = record(facts, screen)
    if members:
        lines += ["", *_members(members, now, screen)]
    return lines


def flow_tree(picture: Picture, info: FlowInfo, summary: FlowSummary, screen: Screen) -> list[str]:
    """Return a flow as a tree of its nodes, below a line about the flow."""
    head, counts = printable(info.flow_kind), _counts(summary)
    if screen.width is not None:
        head = cut(head, max(screen.width - len(summary.state) - 2, 8))
        room = screen.width - text_width(head) - len(summary.state) - 4
        counts = cut(counts, room) if room > 8 else ""
    first = f"{head}  {paint(_state_cell(summary.state), screen)}  {counts}".rstrip()
    return [first, *tree_lines(picture, screen)]


def _counts(summary: FlowSummary) -> str:
    parts = [
        f"{summary.counts[state]} {words(state)}" for state in ORDER if state in summary.counts
    ]
    return f"{summary.total}: {', '.join(parts)}" if parts else "0"


def _members(members: Sequence[FlowMember], now: datetime, screen: Screen) -> list[str]:
    """Return a table of members, with failed members on top. It has at most MEMBERS_SHOWN rows."""
    rank = {state: number for number, state in enumerate(ORDER)}
    chosen = sorted(members, key=lambda each: rank[each.public_state])[:MEMBERS_SHOWN]
    columns: list[Column[FlowMember]] = [
        Column("NAME", lambda each: each.name or "-", least=10),
        Column("STATE", lambda each: state_cell(each.public_state)),
        Column("TASK", lambda each: each.task, least=8, keeps_end=True, drop=2),
        Column(
            "AGE",
            lambda each: short(now - (each.terminal_at or each.started_at or each.created_at)),
            is_number=True,
            drop=1,
        ),
        Column("ID", lambda each: short_id(each.id)),
        Column("FAILURE", lambda each: each.failure_reason or "", least=10, drop=3),
    ]
    lines = table(columns, chosen, screen)
    if len(members) > len(chosen):
        lines.append(f"and {len(members) - len(chosen)} more; `flow graph` shows all")
    return lines
