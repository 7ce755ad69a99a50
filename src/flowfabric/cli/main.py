"""The `flowfabric` command."""

from __future__ import annotations

import typer

from flowfabric.cli import (
    actions,
    db,
    demo,
    dev,
    doctor,
    events,
    executions,
    flows,
    init,
    lanes,
    namespaces,
    schedules,
    submit,
    top,
    workers,
)

app = typer.Typer(
    no_args_is_help=True,
    help="Durable execution for Python on PostgreSQL.",
    pretty_exceptions_show_locals=False,
)
app.command()(init.init)
app.command()(dev.dev)
app.command()(submit.submit)
app.command()(submit.result)
app.command()(top.top)
app.add_typer(db.app)
app.add_typer(workers.app)
app.command()(executions.ls)
app.command()(executions.show)
app.command()(executions.why)
app.command()(executions.attempts)
app.command()(actions.cancel)
app.command()(actions.revoke_lease)
app.command()(actions.priority)
app.command()(actions.replay)
app.command()(actions.retry)
app.add_typer(flows.app)
app.add_typer(lanes.app)
app.add_typer(namespaces.app)
app.add_typer(schedules.app)
app.command()(events.events)
app.command()(doctor.doctor)
app.command()(demo.demo)


def main() -> None:
    app()
