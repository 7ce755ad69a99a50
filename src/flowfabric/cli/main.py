"""The `flowfabric` command."""

from __future__ import annotations

from typing import Annotated

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
    versions,
    workers,
)
from flowfabric.cli.options import (
    AllNamespaces,
    DatabaseUrl,
    NamespaceName,
    accept_global_options,
    command,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)


@app.callback()
def flowfabric(
    context: typer.Context,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="table|json|...",
            help="Format of the output. Default: table on a terminal, else json.",
            show_default=False,
        ),
    ] = None,
    namespace: NamespaceName = None,
    all_namespaces: AllNamespaces = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Durable execution for Python on PostgreSQL.

    --output, --namespace, --all-namespaces and --database-url may come before or after a command
    that takes them. If an option stands in both places, the one after the command counts.
    """
    accept_global_options(context)


for function in (
    *(init.init, dev.dev, submit.submit, submit.result, top.top),
    *(executions.ls, executions.show, executions.why, executions.attempts),
    *(actions.cancel, actions.revoke_lease, actions.priority, actions.replay, actions.retry),
    *(events.events, doctor.doctor, demo.demo, versions.versions),
):
    command(app)(function)
for noun in (db, workers, flows, lanes, namespaces, schedules):
    app.add_typer(noun.app)


def main() -> None:
    app()
