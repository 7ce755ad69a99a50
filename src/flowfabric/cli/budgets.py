"""`flowfabric budget`: list, show, raise and reset budgets, and report usage by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any

import typer

from flowfabric.cli.ids import complain_unreached
from flowfabric.cli.options import EXIT_CONFLICT, Change, Namespace, Namespaces, command
from flowfabric.cli.output import Printer, complain, screen
from flowfabric.client import FlowFabric
from flowfabric.core.errors import BudgetNotFound
from flowfabric.core.limit import USD, amount_text
from flowfabric.core.quota import BudgetInfo
from flowfabric.core.states import BudgetPeriod
from flowfabric.drawing.table import Column, record
from flowfabric.drawing.text import cell
from flowfabric.drawing.times import precise, short, until

app = typer.Typer(
    name="budget",
    no_args_is_help=True,
    help="List, show, raise and reset budgets, which limit what executions spend.\n\nA budget "
    "without a key is listed as soon as an app that declares the budget has connected. A budget "
    "with a key is listed after the first submission that names the key. Exit code 3 if there is "
    "no such budget.",
)

Name = Annotated[str, typer.Argument(metavar="BUDGET", help="The name of the budget.")]
For = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="KEY",
        help="Use the budget with this key, for example a tenant. Default: the one without a key.",
        show_default=False,
    ),
]
Amounts = Annotated[
    list[str],
    typer.Argument(
        metavar="DIMENSION=AMOUNT...",
        help="Amounts by dimension, for example usd=80.00 tokens=2000000.",
    ),
]

# A message names at most this many keys.
_KEYS_NAMED = 5


@command(app)
async def ls(
    database: Namespaces,
    printer: Printer,
    name: str | None = typer.Option(
        None, "--budget", help="List only budgets of this name.", show_default=False
    ),
) -> None:
    """List budgets and their usage in the current period."""
    async with database.client() as client:
        found = await client.budgets.list(budget=name)
        complain_unreached(found.missing)
        _print(printer, found, await client.executions.server_time(), client)


@command(app)
async def show(database: Namespace, printer: Printer, name: Name, key: For = "") -> None:
    """Show a budget: usage, limits, next reset, and how many executions wait for the budget."""
    async with database.client() as client, _naming_keys(client, name, key):
        await _show(client, printer, name, key)


@command(app, "raise")
async def raise_limits(
    database: Namespace,
    printer: Printer,
    change: Change,
    name: Name,
    amounts: Amounts,
    key: For = "",
) -> None:
    """Set hard limits of a budget. They override the limits in the code until `budget lift`.

    Executions that wait for the budget continue if the usage is now below the limits.
    """
    given = _amounts(amounts)
    async with database.client() as client, _naming_keys(client, name, key):
        await client.budgets.raise_limits(
            name, key=key, reason=change.reason, actor=change.who, **given
        )
        await _show(client, printer, name, key)


@command(app)
async def lift(
    database: Namespace, printer: Printer, change: Change, name: Name, key: For = ""
) -> None:
    """Remove the limits that `budget raise` has set. The limits in the code apply again."""
    async with database.client() as client, _naming_keys(client, name, key):
        await client.budgets.lift(name, key=key, reason=change.reason, actor=change.who)
        await _show(client, printer, name, key)


@command(app)
async def reset(
    database: Namespace, printer: Printer, change: Change, name: Name, key: For = ""
) -> None:
    """Begin a new period of a budget now. Executions that wait for the budget continue."""
    async with database.client() as client, _naming_keys(client, name, key):
        await client.budgets.reset(name, key=key, reason=change.reason, actor=change.who)
        await _show(client, printer, name, key)


@command(app)
async def usage(
    database: Namespace,
    printer: Printer,
    name: Name,
    amounts: Amounts,
    key: For = "",
    dedup_key: str | None = typer.Option(
        None,
        "--dedup-key",
        help="Count the usage once, even if several calls within 24 hours have this key. "
        "Default: every call counts.",
        show_default=False,
    ),
) -> int:
    """Report usage to a budget.

    If the budget has too little left, nothing is counted and the exit code is 4. A budget that only
    warns counts the usage anyway.
    """
    given = _amounts(amounts)
    async with database.client() as client, _naming_keys(client, name, key):
        answer = await client.budgets.report_usage_admin(
            name, key=key, dedup_key=dedup_key, **given
        )
        if answer.outcome == "hard_breach":
            detail = answer.detail
            dimension = str(detail.get("dimension"))
            complain(
                f"the budget {name} has no room: {dimension} is at "
                f"{amount_text(dimension, detail.get('usage'))} of "
                f"{amount_text(dimension, detail.get('limit'))}; nothing was counted"
            )
            return EXIT_CONFLICT
        await _show(client, printer, name, key)
    return 0


def _amounts(texts: Sequence[str]) -> dict[str, Any]:
    """Parse DIMENSION=AMOUNT. An amount of usd stays text; all other amounts become integers."""
    found: dict[str, Any] = {}
    for text in texts:
        dimension, sign, amount = text.partition("=")
        if not sign or not dimension or not amount:
            raise typer.BadParameter(
                f"must look like usd=80.00 or tokens=2000, not {text!r}",
                param_hint="DIMENSION=AMOUNT",
            )
        if dimension != USD and not amount.isdecimal():
            raise typer.BadParameter(
                f"{dimension} must be a whole number, not {amount!r}",
                param_hint="DIMENSION=AMOUNT",
            )
        found[dimension] = amount if dimension == USD else int(amount)
    return found


@asynccontextmanager
async def _naming_keys(client: FlowFabric, name: str, key: str) -> AsyncIterator[None]:
    """If the `with` block raises BudgetNotFound, add some existing keys to the error text."""
    try:
        yield
    except BudgetNotFound as error:
        found = await client.budgets.list(budget=name, limit=_KEYS_NAMED)
        if not any(one.key for one in found):
            raise
        keys = ", ".join(one.key for one in found if one.key)
        which = f"no key {key}" if key else "a key"
        raise BudgetNotFound(
            f"The budget {name} has {which}: give one with --for, for example {keys}.",
            budget=name,
        ) from error


async def _show(client: FlowFabric, printer: Printer, name: str, key: str) -> None:
    found = await client.budgets.get(name, key=key)
    complain_unreached(found.missing)
    now = await client.executions.server_time()
    printer.record(found, lambda: record(_facts(found, now).items(), screen()))


def _print(
    printer: Printer, budgets: Sequence[BudgetInfo], now: datetime, client: FlowFabric
) -> None:
    columns: list[Column[BudgetInfo]] = [
        Column("NAMESPACE", lambda one: one.namespace, least=8, is_shown=client.namespace is None),
        Column("BUDGET", lambda one: one.budget, least=8),
        Column("KEY", lambda one: one.key or "-", least=6),
        Column("USED", lambda one: ", ".join(_used(one)), least=12),
        Column("STATE", lambda one: cell(*_state(one))),
        Column("IN LINE", lambda one: str(one.in_line), is_number=True),
        Column("RESETS", lambda one: until(one.next_reset_at, now)),
        Column("ON EXCEED", lambda one: one.on_exceed, drop=1),
    ]
    empty = "no budgets yet; a budget is listed after the first submission that uses it"
    printer.records(budgets, columns, empty=empty)


def _facts(one: BudgetInfo, now: datetime) -> dict[str, str]:
    changed = "-"
    if one.changed_at is not None:
        by = f" by {one.changed_by}" if one.changed_by else ""
        changed = f"{short(now - one.changed_at)} ago{by}"
    return {
        "budget": one.budget,
        "key": one.key or "-",
        "namespace": one.namespace,
        "state": _state(one)[0],
        "used": ", ".join(_used(one)) or "-",
        "period": _period(one),
        "resets": until(one.next_reset_at, now),
        "on exceed": str(one.on_exceed),
        "in line": str(one.in_line),
        "breaches": str(one.breach_count),
        "raised": ", ".join(one.raised) or "-",
        "changed": changed,
        "reason": one.reason or "-",
    }


def _used(one: BudgetInfo) -> list[str]:
    names = sorted({*one.usage, *one.hard_limits})
    return [
        f"{name} {amount_text(name, one.usage.get(name, 0))}"
        f" of {amount_text(name, one.hard_limits.get(name))}"
        for name in names
    ]


def _state(one: BudgetInfo) -> tuple[str, str | None]:
    return ("shut", "red") if one.is_shut else ("open", None)


def _period(one: BudgetInfo) -> str:
    if one.period is None:
        return "none"
    if one.period is BudgetPeriod.INTERVAL and one.period_length is not None:
        return f"every {precise(one.period_length)}"
    return f"{one.period} in {one.period_zone or 'UTC'}"
