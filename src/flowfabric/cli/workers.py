"""`flowfabric worker`: run one, list those that are there, and tell that one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import typer
from typer.core import TyperGroup

from flowfabric.cli import worker
from flowfabric.cli.actions import ACTOR_OPTION, default_actor
from flowfabric.cli.database import (
    ALL_NAMESPACES_OPTION,
    EXIT_NOT_FOUND,
    NAMESPACE_OPTION,
    URL_OPTION,
    failures_as_exit_codes,
    resolve_database_url,
    resolve_namespace,
)
from flowfabric.cli.output import (
    FORM_OPTION,
    Cell,
    Column,
    Form,
    Styled,
    complain,
    is_json,
    json_line,
    say,
    table,
    table_width,
)
from flowfabric.cli.times import short
from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.worker import WorkerInfo

PAGE = 1000


class RunByDefault(TyperGroup):
    """`worker shop:app` is short for `worker run shop:app`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in (*self.commands, "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="worker",
    cls=RunByDefault,
    no_args_is_help=True,
    help="Run a worker, or look at those that run.\n\n`worker MODULE:APP` is short for `worker run "
    "MODULE:APP`; its options are in `worker run --help`.",
)
app.command("run")(worker.worker)


@app.command()
def ls(
    dead: bool = typer.Option(False, "--dead", help="Also those that fell silent."),
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """List the workers that are alive."""
    with failures_as_exit_codes():
        space = resolve_namespace(namespace, all_namespaces)
        url = resolve_database_url(database_url)
        asyncio.run(_list(url, space, dead, is_json(output)))


@app.command("mark-dead")
def mark_dead(
    instance: str = typer.Argument(metavar="INSTANCE", help="As `worker ls` shows it."),
    reason: str = typer.Option(..., "--reason", "-r", help="Why; kept."),
    expire_leases: bool = typer.Option(
        False, "--expire-leases", help="Let others take over what it holds at once."
    ),
    actor: str | None = ACTOR_OPTION,
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Take a worker out of the list, because it is known to be gone.

    It comes back if it beats again. Exit code 3 if it is not in the list.
    """
    who = actor or default_actor()
    with failures_as_exit_codes():
        if not instance:
            raise InvalidInput(field="INSTANCE", problem="must not be empty")
        space = resolve_namespace(namespace, all_namespaces)
        url = resolve_database_url(database_url)
        found = asyncio.run(_mark(url, space, instance, reason, who, expire_leases))
        for where in found:
            if is_json(output):
                facts = {"namespace": where, "worker_instance_id": instance}
                say(json_line({**facts, "outcome": "marked_dead"}))
            else:
                say(f"{instance}  marked dead")
        if not found:
            in_space = "" if space is None else f" of the namespace {space} (--all-namespaces?)"
            freed = "; what it held is let go" if expire_leases else ""
            complain(f"{instance} is not in the list{in_space}{freed}")
            raise typer.Exit(EXIT_NOT_FOUND)


async def _list(url: str, namespace: str | None, dead: bool, as_json: bool) -> None:
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        found = await _all(client, dead)
        now = await client.executions.server_time()
    if as_json:
        for info in found:
            say(json_line(asdict(info)))
        return
    if not found:
        where = "" if namespace is None else f" in the namespace {namespace} (--all-namespaces?)"
        typer.echo(f"no worker is alive{where}", err=True)
        return
    for line in _table(found, now, with_namespace=namespace is None):
        say(line)


async def _mark(
    url: str, namespace: str | None, instance: str, reason: str, actor: str, expire_leases: bool
) -> list[str]:
    """Mark it in the one namespace, or wherever it is; returns where it was."""
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        spaces = [namespace]
        if namespace is None:
            known = await _all(client, True)
            spaces = [w.namespace for w in known if w.worker_instance_id == instance] or [None]
        return [
            space or ""
            for space in spaces
            if await client.workers.mark_dead(
                instance, reason, namespace=space, expire_leases=expire_leases, actor=actor
            )
        ]


async def _all(client: FlowFabric, with_dead: bool) -> list[WorkerInfo]:
    found: list[WorkerInfo] = []
    while True:
        page = await client.workers.list(
            after=found[-1] if found else None, limit=PAGE, with_dead=with_dead
        )
        found += page
        if len(page) < PAGE:
            return found


def _table(found: Sequence[WorkerInfo], now: datetime, *, with_namespace: bool) -> list[str]:
    columns = [
        Column("INSTANCE", least=12),
        Column("WORKER", least=8),
        Column("LANES", least=6),
        Column("TASKS", is_number=True),
        Column("CAPABILITIES", least=6, drop=1),
        Column("UP", is_number=True, drop=2),
        Column("HEARD", is_number=True),
    ]
    rows: list[list[Cell]] = [
        [
            one.worker_instance_id,
            one.worker_id,
            "any" if one.lanes is None else ",".join(one.lanes),
            "any" if one.tasks is None else str(len(one.tasks)),
            ",".join(sorted(one.capabilities)) or "-",
            short(now - one.registered_at),
            _heard(one, now),
        ]
        for one in found
    ]
    if with_namespace:
        columns.insert(0, Column("NAMESPACE", least=8))
        for row, one in zip(rows, found, strict=True):
            row.insert(0, one.namespace or "(all)")
    return table(columns, rows, table_width())


def _heard(one: WorkerInfo, now: datetime) -> Cell:
    age = short(now - one.heartbeat_at)
    return f"{age} ago" if one.is_alive else Styled(f"{age} ago, silent", "red")
