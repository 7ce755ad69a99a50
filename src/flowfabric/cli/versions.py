"""`flowfabric versions`: list code versions, and say which ones can be switched off."""

from __future__ import annotations

from dataclasses import asdict

import typer

from flowfabric.cli.options import Namespaces
from flowfabric.cli.output import Printer, say_all
from flowfabric.core.code_version import VersionInfo, answer_versions
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.table import Column
from flowfabric.drawing.text import printable

# Counts of the engine are exact up to this number.
_MAX_COUNTED = 10_000


async def versions(
    database: Namespaces,
    printer: Printer,
    task: str | None = typer.Argument(
        None, metavar="[TASK]", help="List only this task. Default: all tasks.", show_default=False
    ),
) -> None:
    """List code versions, their executions in flight, and which versions you can switch off.

    An execution is in flight if it has recorded steps and has not ended. To switch off a version is
    to stop its workers. You can do so if none of its executions is in flight and its workers begin
    no new executions. You can also do so if workers of another version read its journals (READ BY).
    """
    async with database.client() as client:
        found = await client.workers.versions(task)
    answers = answer_versions(found)
    if printer.is_json:
        known = {(one.namespace, one.code_version): one for one in answers}
        for one in found:
            answer = known[one.namespace, one.code_version]
            facts = {"may_stop": answer.may_stop, "answer": answer.sentence}
            say_all([json_line(asdict(one) | facts)])
        return
    space = client.namespace
    where = "" if space is None else f" in the namespace {space} (--all-namespaces?)"
    what = "" if task is None else f" for the task {task}"
    printer.records(
        found,
        _columns(with_namespace=space is None),
        empty=f"no code version is in flight or has a worker{what}{where}",
    )
    if answers:
        say_all(["", *(printable(answer.sentence) for answer in answers)])


def _columns(*, with_namespace: bool) -> list[Column[VersionInfo]]:
    def in_flight(one: VersionInfo) -> str:
        return f">{_MAX_COUNTED}" if one.in_flight > _MAX_COUNTED else str(one.in_flight)

    def workers(one: VersionInfo) -> str:
        finishing = one.workers - one.beginners
        return f"{one.workers} ({finishing} finish only)" if finishing else str(one.workers)

    return [
        Column("NAMESPACE", lambda one: one.namespace, least=8, is_shown=with_namespace),
        Column("TASK", lambda one: one.task, least=12),
        Column("VERSION", lambda one: one.code_version, least=8),
        Column("IN FLIGHT", in_flight, is_number=True),
        Column("WORKERS", workers),
        Column("READ BY", lambda one: ",".join(one.readers) or "-", least=6),
    ]
