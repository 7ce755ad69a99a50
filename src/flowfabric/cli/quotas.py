"""`flowfabric quota`: list, show, change and delete quotas."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from flowfabric.cli.ids import complain_unreached
from flowfabric.cli.options import Change, LimitNumbers, Namespace, Namespaces, command
from flowfabric.cli.output import Printer, screen
from flowfabric.client import FlowFabric
from flowfabric.core.quota import GateInfo, QuotaInfo, rate_of
from flowfabric.drawing.plain import plain
from flowfabric.drawing.table import Column, record, table
from flowfabric.drawing.text import text_of
from flowfabric.drawing.times import short, until

app = typer.Typer(
    name="quota",
    no_args_is_help=True,
    help="List, show, change and delete quotas. A quota limits how many executions run at once, "
    "how many start in a given time, or both.\n\n"
    "A quota appears when an app that declares it connects for the first time. Exit code 3 if "
    "there is no such quota.",
)

Name = Annotated[str, typer.Argument(metavar="QUOTA", help="The name of the quota.")]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="KEY",
        help="Show or change only this key, for example a tenant. Default: all keys.",
        show_default=False,
    ),
]
# `show` lists at most this many keys.
_KEYS_SHOWN = 100


@command(app)
async def ls(database: Namespaces, printer: Printer) -> None:
    """List quotas, with the concurrency and the rate that apply now."""
    async with database.client() as client:
        _print(printer, await client.quotas.list(), await client.executions.server_time(), client)


@command(app)
async def show(database: Namespace, printer: Printer, name: Name, key: For = None) -> None:
    """Show a quota, and for each key how many executions run and how many wait in line."""
    async with database.client() as client:
        await _show(client, printer, name, key)


@command(app, "set")
async def set_numbers(
    database: Namespace,
    printer: Printer,
    change: Change,
    numbers: LimitNumbers,
    name: Name,
    key: For = None,
) -> None:
    """Set the concurrency or the rate of a quota, or both.

    The new limits apply immediately. They override the limits in the code until you run `quota
    lift`. A limit that you do not give does not change.
    """
    clear = numbers.cleared
    if numbers.concurrency is None and numbers.rate is None and not clear:
        raise typer.BadParameter("give a number to set", param_hint="--concurrency or --rate")
    async with database.client() as client:
        await client.quotas.set(
            name,
            key=key,
            concurrency=numbers.concurrency,
            rate=numbers.rate,
            clear=clear,
            reason=change.reason,
            actor=change.who,
        )
        await _show(client, printer, name, key)


@command(app)
async def lift(
    database: Namespace, printer: Printer, change: Change, name: Name, key: For = None
) -> None:
    """Remove the limits that `quota set` has set.

    With --for, the limits for all keys apply to this key again. Otherwise the limits in the code
    apply again, and limits that were set for single keys stay.
    """
    async with database.client() as client:
        await client.quotas.lift(name, key=key, reason=change.reason, actor=change.who)
        await _show(client, printer, name, key)


@command(app)
async def rm(database: Namespace, change: Change, name: Name) -> None:
    """Delete a quota, so that it no longer limits executions."""
    async with database.client() as client:
        await client.quotas.get(name)
        await client.quotas.delete(name, reason=change.reason, actor=change.who)


async def _show(client: FlowFabric, printer: Printer, name: str, key: str | None) -> None:
    found = await client.quotas.get(name)
    gates = await client.quotas.gates(name, key=key, limit=_KEYS_SHOWN)
    complain_unreached(gates.missing)
    now = await client.executions.server_time()

    def lines() -> list[str]:
        facts = record(_facts(found, now).items(), screen())
        if key is not None and not gates:
            return [*facts, "", f"nothing was submitted with the key {text_of(key)} yet"]
        return [*facts, "", *gate_table(gates, now)] if gates else [*facts]

    printer.record(plain(found) | {"gates": [plain(gate) for gate in gates]}, lines)


def gate_table(gates: Sequence[GateInfo], now: datetime) -> list[str]:
    """Return the lines of a table with one row for each key of a quota."""
    columns: list[Column[GateInfo]] = [
        Column("KEY", lambda gate: gate.key or "-", least=8),
        Column("RUNNING", lambda gate: str(gate.running), is_number=True),
        Column("TICKETS", lambda gate: str(gate.tickets), is_number=True, drop=2),
        Column("LIMIT", lambda gate: _number(gate.concurrency), is_number=True),
        Column("STARTED", lambda gate: "-" if gate.rate is None else str(gate.started), drop=1),
        Column("RATE", lambda gate: _rate(gate)),
        Column("IN LINE", lambda gate: str(gate.in_line), is_number=True),
        Column("OPENS", lambda gate: until(gate.opens_at, now), drop=1),
        Column("SET", lambda gate: "yes" if gate.is_set else "", drop=1),
        Column("CHANGED", lambda gate: _changed(gate, now), drop=1),
        Column("REASON", lambda gate: gate.reason or "", least=10),
    ]
    return table(columns, gates, screen())


def _print(
    printer: Printer, quotas: Sequence[QuotaInfo], now: datetime, client: FlowFabric
) -> None:
    columns: list[Column[QuotaInfo]] = [
        Column(
            "NAMESPACE", lambda quota: quota.namespace, least=8, is_shown=client.namespace is None
        ),
        Column("QUOTA", lambda quota: quota.quota, least=8),
        Column("KEYED", lambda quota: "yes" if quota.is_keyed else "no"),
        Column("LIMIT", lambda quota: _number(quota.concurrency), is_number=True),
        Column("RATE", _rate),
        Column("OVERFLOW", lambda quota: quota.overflow),
        Column("SET", _set),
        Column("CHANGED", lambda quota: _changed(quota, now), drop=1),
        Column("REASON", lambda quota: quota.reason or "", least=10),
    ]
    empty = "no quotas yet; a quota appears with the first app that declares it"
    printer.records(quotas, columns, empty=empty)


def _facts(quota: QuotaInfo, now: datetime) -> dict[str, str]:
    declared = rate_of(quota.declared_rate, quota.declared_rate_window)
    return {
        "quota": quota.quota,
        "namespace": quota.namespace,
        "keyed": "yes, one counter per key" if quota.is_keyed else "no",
        "concurrency": _number(quota.concurrency),
        "rate": _rate(quota),
        "overflow": str(quota.overflow),
        "in the code": f"concurrency {_number(quota.declared_concurrency)}, rate {declared or '-'}",
        "set": _set(quota) or "no",
        "changed": _changed(quota, now),
        "reason": quota.reason or "-",
    }


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def _rate(one: QuotaInfo | GateInfo) -> str:
    rate = rate_of(one.rate, one.rate_window)
    return "-" if rate is None else str(rate)


def _set(quota: QuotaInfo) -> str:
    keys = "" if not quota.keys_set else f"{quota.keys_set} key{'s' if quota.keys_set > 1 else ''}"
    return ", ".join(filter(None, ("all" if quota.is_set else "", keys)))


def _changed(one: QuotaInfo | GateInfo, now: datetime) -> str:
    if one.changed_at is None:
        return "-"
    by = f" by {one.changed_by}" if one.changed_by else ""
    return f"{short(now - one.changed_at)} ago{by}"
