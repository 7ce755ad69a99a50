"""`flowfabric worker`: run a worker, list the live ones, and mark a dead one."""

from __future__ import annotations

from datetime import datetime

import typer
from typer.core import TyperGroup

from flowfabric.cli import worker
from flowfabric.cli.options import EXIT_NOT_FOUND, Actor, Namespaces, command
from flowfabric.cli.output import Printer, complain, say
from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.worker import WorkerInfo
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.table import Column
from flowfabric.drawing.text import Cell, Styled
from flowfabric.drawing.times import short

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
command(app, "run")(worker.worker)


@command(app)
async def ls(
    database: Namespaces,
    printer: Printer,
    dead: bool = typer.Option(False, "--dead", help="Also list workers that fell silent."),
) -> None:
    """List the workers that are alive."""
    async with database.client() as client:
        found = await _all(client, dead)
        now = await client.executions.server_time()
    space = client.namespace
    where = "" if space is None else f" in the namespace {space} (--all-namespaces?)"
    columns = _columns(now, with_namespace=space is None)
    printer.records(found, columns, empty=f"no worker is alive{where}")


@command(app, "mark-dead")
async def mark_dead(
    database: Namespaces,
    printer: Printer,
    actor: Actor,
    instance: str = typer.Argument(metavar="INSTANCE", help="As `worker ls` shows it."),
    reason: str = typer.Option(..., "--reason", "-r", help="Reason, recorded with the change."),
    expire_leases: bool = typer.Option(
        False, "--expire-leases", help="Let other workers take over its executions at once."
    ),
) -> int:
    """Take a worker out of the list, because it is known to be gone.

    It comes back with its next heartbeat. Exit code 3 if it is not in the list.
    """
    if not instance:
        raise InvalidInput(field="INSTANCE", problem="must not be empty")
    async with database.client() as client:
        found = await _mark(client, instance, reason, actor.who, expire_leases)
    for where in found:
        if printer.is_json:
            facts = {"namespace": where, "worker_instance_id": instance, "outcome": "marked_dead"}
            say(json_line(facts))
        else:
            say(f"{instance}  marked dead")
    if found:
        return 0
    space = client.namespace
    in_space = "" if space is None else f" of the namespace {space} (--all-namespaces?)"
    freed = "; what it held is let go" if expire_leases else ""
    complain(f"{instance} is not in the list{in_space}{freed}")
    return EXIT_NOT_FOUND


async def _mark(
    client: FlowFabric, instance: str, reason: str, actor: str, expire_leases: bool
) -> list[str]:
    """Mark it in the one namespace, or wherever it is; returns where it was."""
    spaces = [client.namespace]
    if client.namespace is None:
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


def _columns(now: datetime, *, with_namespace: bool) -> list[Column[WorkerInfo]]:
    def heard(one: WorkerInfo) -> Cell:
        age = short(now - one.heartbeat_at)
        return f"{age} ago" if one.is_alive else Styled(f"{age} ago, silent", "red")

    return [
        Column("NAMESPACE", lambda one: one.namespace or "(all)", least=8, is_shown=with_namespace),
        Column("INSTANCE", lambda one: one.worker_instance_id, least=12),
        Column("WORKER", lambda one: one.worker_id, least=8),
        Column("LANES", lambda one: "any" if one.lanes is None else ",".join(one.lanes), least=6),
        Column(
            "TASKS",
            lambda one: "any" if one.tasks is None else str(len(one.tasks)),
            is_number=True,
        ),
        Column(
            "CAPABILITIES", lambda one: ",".join(sorted(one.capabilities)) or "-", least=6, drop=1
        ),
        Column("UP", lambda one: short(now - one.registered_at), is_number=True, drop=2),
        Column("HEARD", heard, is_number=True),
    ]
