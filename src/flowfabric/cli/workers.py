"""`flowfabric worker`: run a worker, list workers, drain one, and mark one as dead."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from typer.core import TyperGroup

from flowfabric.cli import worker
from flowfabric.cli.imports import near
from flowfabric.cli.options import EXIT_NOT_FOUND, ExplainedChange, Namespaces, command
from flowfabric.cli.output import Printer, complain
from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.worker import WorkerInfo
from flowfabric.drawing.table import Column
from flowfabric.drawing.text import Cell, Styled
from flowfabric.drawing.times import short

PAGE = 1000

INSTANCE_ARGUMENT = typer.Argument(
    metavar="INSTANCE", help="Worker instance, as `worker ls` prints it."
)


class RunByDefault(TyperGroup):
    """Accepts `worker shop:app` as a short form of `worker run shop:app`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in (*self.commands, "--help"):
            meant = near(
                args[0], self.commands, {c: f"`flowfabric worker {c}`" for c in self.commands}
            )
            if meant and ":" not in args[0]:
                ctx.fail(f"there is no command {args[0]!r}{meant}")
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="worker",
    cls=RunByDefault,
    no_args_is_help=True,
    help="Run a worker, list workers, drain one, mark one as dead.\n\n`worker MODULE:APP` is short "
    "for `worker run MODULE:APP`; its options are in `worker run --help`.",
)
command(app, "run")(worker.worker)


@command(app)
async def ls(
    database: Namespaces,
    printer: Printer,
    dead: bool = typer.Option(
        False, "--dead", help="Also list dead workers that have not been removed yet."
    ),
) -> None:
    """List the live workers.

    By default, a worker sends a heartbeat every 10 s. After 20 s without a heartbeat it is shown as
    silent. After 60 s without a heartbeat it is no longer alive, and a reconciler removes it.
    """
    async with database.client() as client:
        found = await _all(client, dead)
        now = await client.executions.server_time()
    columns = _columns(now, with_namespace=client.namespace is None)
    printer.records(found, columns, empty=f"no worker is alive{_where(client)}")


@command(app)
async def drain(
    database: Namespaces,
    printer: Printer,
    change: ExplainedChange,
    instance: Annotated[str, INSTANCE_ARGUMENT],
) -> int:
    """Ask a worker to finish the executions that it runs, and to end.

    The worker learns of the request with its next heartbeat, within 10 s by default. From that
    moment it claims nothing more. Its process ends when its executions have finished, or when its
    drain timeout is over. If something starts the process again, the new worker claims as before.

    Exit codes: 3: no such worker. 5: no database.
    """
    if not instance:
        raise InvalidInput(field="INSTANCE", problem="must not be empty")
    async with database.client() as client:
        asked_in = {
            space: outcome
            for space in await _spaces(client, instance)
            if (
                outcome := await client.workers.drain(
                    instance, change.reason, namespace=space, actor=change.who
                )
            )
            != "not_registered"
        }
    words = {"asked": "asked to drain", "already_asked": "was asked to drain before"}
    for space, outcome in asked_in.items():
        facts = {"namespace": space or "", "worker_instance_id": instance, "outcome": outcome}
        line = f"{instance}  {words[outcome]}"
        printer.record(facts, [line].copy)
    if asked_in:
        return 0
    complain(f"{instance} is not registered{_where(client)}")
    return EXIT_NOT_FOUND


@command(app, "mark-dead")
async def mark_dead(
    database: Namespaces,
    printer: Printer,
    change: ExplainedChange,
    instance: Annotated[str, INSTANCE_ARGUMENT],
    expire_leases: bool = typer.Option(
        False,
        "--expire-leases",
        help="Let other workers reclaim the executions of this worker immediately.",
    ),
) -> int:
    """Remove a dead worker from the list of live workers.

    Use this command when a host has died and you do not want to wait until its workers count as
    dead, 60 s after their last heartbeat. The worker's executions wait until their leases expire,
    unless you add --expire-leases. The command stops no process: a worker that is still running is
    listed again after its next heartbeat.

    Exit codes: 3: no such worker. 5: no database.
    """
    if not instance:
        raise InvalidInput(field="INSTANCE", problem="must not be empty")
    async with database.client() as client:
        marked_in = await _mark(client, instance, change.reason, change.who, expire_leases)
    for space in marked_in:
        facts = {"namespace": space, "worker_instance_id": instance, "outcome": "marked_dead"}
        printer.record(facts, lambda: [f"{instance}  marked dead"])
    if marked_in:
        return 0
    expired = ", but its leases were ended" if expire_leases else ""
    complain(f"{instance} is not registered{_where(client)}{expired}")
    return EXIT_NOT_FOUND


def _where(client: FlowFabric) -> str:
    """Return words that name the searched namespace, or "" if all namespaces were searched."""
    namespace = client.namespace
    return "" if namespace is None else f" in the namespace {namespace} (--all-namespaces?)"


async def _spaces(client: FlowFabric, instance: str) -> list[str | None]:
    """Return the namespaces in which to look for a worker.

    If the client is for one namespace, return this namespace. Otherwise return the namespaces in
    which the worker is registered, or [None] if it is not registered.
    """
    if client.namespace is not None:
        return [client.namespace]
    known = await _all(client, True)
    return [w.namespace for w in known if w.worker_instance_id == instance] or [None]


async def _mark(
    client: FlowFabric, instance: str, reason: str, actor: str, expire_leases: bool
) -> list[str]:
    """Mark a worker as dead in the client's namespace, or in all namespaces.

    Return the namespaces in which the worker was registered.
    """
    return [
        space or ""
        for space in await _spaces(client, instance)
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


def _busy(worker: WorkerInfo) -> Cell:
    """Return how many slots of the worker are in use, and whether it was asked to drain."""
    slots = "" if worker.slots is None else f"/{worker.slots}"
    text = f"{worker.running}{slots}"
    return text if worker.drain_asked_at is None else Styled(f"{text}, draining", "yellow")


def _lag(worker: WorkerInfo) -> str:
    """Return how long the event loop of the worker took to answer, in milliseconds."""
    lag = worker.loop_lag
    return "-" if lag is None else f"{lag.total_seconds() * 1000:.0f} ms"


def heard(worker: WorkerInfo, now: datetime) -> Cell:
    """Return how long ago the worker sent its last heartbeat, and whether it is silent."""
    age = short(now - worker.heartbeat_at)
    return Styled(f"{age} ago, silent", "red") if worker.is_silent else f"{age} ago"


def _columns(now: datetime, *, with_namespace: bool) -> list[Column[WorkerInfo]]:
    return [
        Column(
            "NAMESPACE",
            lambda worker_info: worker_info.namespace or "(all)",
            least=8,
            is_shown=with_namespace,
        ),
        Column("INSTANCE", lambda worker_info: worker_info.worker_instance_id, least=12),
        Column("WORKER", lambda worker_info: worker_info.worker_id, least=8),
        Column(
            "LANES",
            lambda worker_info: "any" if worker_info.lanes is None else ",".join(worker_info.lanes),
            least=6,
        ),
        Column(
            "TASKS",
            lambda worker_info: "any" if worker_info.tasks is None else str(len(worker_info.tasks)),
            is_number=True,
        ),
        Column(
            "CAPABILITIES",
            lambda worker_info: ",".join(sorted(worker_info.capabilities)) or "-",
            least=6,
            drop=1,
        ),
        Column("HOST", lambda worker_info: worker_info.host or "-", least=6, drop=3),
        Column("BUSY", _busy, is_number=True),
        Column("LAG", _lag, is_number=True, drop=1),
        Column(
            "UP", lambda worker_info: short(now - worker_info.registered_at), is_number=True, drop=2
        ),
        Column("HEARD", lambda worker_info: heard(worker_info, now), is_number=True),
    ]
