"""`flowfabric doctor`: check the installation and the invariants of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import typer

from flowfabric.cli.cluster import cluster_facts, cluster_summary
from flowfabric.cli.ids import find_execution
from flowfabric.cli.options import Database
from flowfabric.cli.output import Printer, Progress, say, say_all, screen, styled
from flowfabric.client import FlowFabric
from flowfabric.core.cursors import PREFIXES
from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import parse_id, with_bare_ids
from flowfabric.core.times import past, when
from flowfabric.db.connection import open_connection
from flowfabric.doctor import (
    Check,
    Explanation,
    Finding,
    Level,
    Report,
    examine,
    explain,
    find_check,
)
from flowfabric.drawing.plain import json_line, json_text
from flowfabric.drawing.table import record
from flowfabric.drawing.text import count_of, printable

EXIT_FINDINGS = 1

# Show at most this many findings of a check; further findings are usually of the same kind.
MAX_FINDINGS_SHOWN = 10

_CHECK_NAME = re.compile(r"[A-Za-z]\d\d")


async def doctor(
    database: Database,
    printer: Printer,
    since: str | None = typer.Option(
        None,
        "--since",
        metavar="CURSOR|TIME",
        help="Check only executions that have events after this point: an age such as 10m, 2h or "
        "7d, an ISO time, or the cursor that doctor printed last.",
        show_default=False,
    ),
    explained: str | None = typer.Option(
        None,
        "--explain",
        metavar="ID|NAME",
        help="Print everything about one execution, and which invariants hold for it. For a "
        "check such as S05, print its meaning and its remedy.",
        show_default=False,
    ),
    throwaway: bool = typer.Option(
        False,
        "--throwaway",
        help="Do not report that fsync, full_page_writes or synchronous_commit is off. Use this "
        "for a database whose data you can afford to lose.",
    ),
) -> int:
    """Check the installation and the data. Writes nothing and can run at any time.

    Needs a role that can read the tables: the owner of schema ff, a superuser, or a member of both
    pg_read_all_data and flowfabric_app. Each check is one query, so it sees a consistent snapshot,
    even while workers run.

    For a distributed database, doctor also shows the shards and partitions of every cluster node.
    With `-o json`, doctor also says for each function whether it is delegated.

    Run it without --since every night, and with `--since CURSOR` as often as you like.

    Exit codes: 0: no errors. 1: errors. 2: wrong usage. 3: no such execution. 5: no database.
    """
    as_json = printer.is_json
    if explained is not None:
        if since is not None:
            raise InvalidInput(field="since", problem="cannot be combined with --explain")
        if _CHECK_NAME.fullmatch(explained):
            _print_check(explained.upper(), as_json)
            return 0
        explanation = await _explain(parse_id(explained), database)
        lines = _explanation_lines(explanation)
        say_all([_explanation_json(explanation)] if as_json else lines)
        return EXIT_FINDINGS if any(verdict.findings for verdict in explanation.verdicts) else 0
    report = await _examine(database.address, _since(since), throwaway)
    say_all([report_json(report)] if as_json else _report_lines(report))
    for note in report.notes:
        typer.echo(note, err=True)
    if not as_json and report.cluster is not None:
        for line in cluster_summary(report.cluster):
            typer.echo(line, err=True)
    if not as_json and report.cursor:
        typer.echo(f"next time: --since {report.cursor}", err=True)
    return 0 if report.is_sound else EXIT_FINDINGS


def _since(text: str | None) -> str | datetime | None:
    if text is None or text.startswith(PREFIXES):
        return text
    return past(when(text, "since"), datetime.now(UTC))


async def _examine(url: str, since: str | datetime | None, throwaway: bool) -> Report:
    current = "connecting"

    def show(step: Any) -> None:
        nonlocal current
        current = f"{step.done + 1} of {step.total}  {step.name}  {step.title}"

    # Use no prepared statements, so that the command works through a pooler.
    async with (
        Progress(for_logs=False).during(lambda: current),
        open_connection(url, statement_cache_size=0) as connection,
    ):
        return await examine(connection, since=since, is_throwaway=throwaway, report=show)


async def _explain(text: str, database: Database) -> Explanation:
    async with FlowFabric(database.address, namespace=None, pool_size=1) as client:
        id = await find_execution(client, text)
    async with open_connection(database.address, statement_cache_size=0) as connection:
        return await explain(connection, id)


# Print a report


def _report_lines(report: Report) -> Iterator[str]:
    for verdict in report.verdicts:
        if not verdict.findings:
            continue
        level = max(verdict.findings, key=lambda finding: finding.level is Level.ERROR).level
        yield styled(f"{verdict.name}  {verdict.title}", _colour(level))
        for finding in verdict.findings[:MAX_FINDINGS_SHOWN]:
            yield f"     {finding.level:<7}  {_subject(finding)}{printable(finding.problem)}"
        if (more := len(verdict.findings) - MAX_FINDINGS_SHOWN) > 0:
            yield f"     and {more}{' or more' if verdict.is_cut else ''} others"
    errors, warnings = report.count(Level.ERROR), report.count(Level.WARNING)
    what = (
        f"{len(report.verdicts)} checks"
        if report.executions is None
        else f"{len(report.verdicts)} checks of {count_of(report.executions, 'execution')} "
        f"with {count_of(report.events or 0, 'new event')}"
    )
    result = f"{count_of(errors, 'error')}, {count_of(warnings, 'warning')}"
    if not report.findings:
        result = "no findings"
    colour = "red" if errors else "yellow" if warnings else "green"
    yield styled(f"{result}: {what} in {report.duration.total_seconds():.1f} s", colour)
    names = sorted({finding.name for finding in report.findings})
    if names:
        yield f"remedy: flowfabric doctor --explain {names[0]}"


def report_json(report: Report) -> str:
    """Return a report as JSON."""
    return json_text(
        {
            "sound": report.is_sound,
            "errors": report.count(Level.ERROR),
            "warnings": report.count(Level.WARNING),
            "findings": [_finding_facts(finding) for finding in report.findings],
            "scope": None
            if report.executions is None
            else {"executions": report.executions, "events": report.events},
            "checks": [
                {
                    "name": verdict.name,
                    "title": verdict.title,
                    "findings": len(verdict.findings),
                    "is_cut": verdict.is_cut,
                    "seconds": round(verdict.duration.total_seconds(), 4),
                }
                for verdict in report.verdicts
            ],
            "seconds": round(report.duration.total_seconds(), 4),
            "notes": report.notes,
            "cluster": None if report.cluster is None else cluster_facts(report.cluster),
            "cursor": report.cursor,
        }
    )


# Print one execution


def _explanation_lines(found: Explanation) -> Iterator[str]:
    for part, facts in found.rows:
        known = {name: value for name, value in facts.items() if value is not None}
        if part == "event":
            head = "event {version:<3} {kind:<17} {occurred_at}  ".format(**known)
            rest = {
                name: value
                for name, value in known.items()
                if name in ("attempt", "epoch", "lease_id", "outcome", "actor", "detail")
            }
            yield head + printable("  ".join(f"{name}={_plain(rest[name])}" for name in rest))
            continue
        yield styled(part, "cyan")
        yield from record(
            ((name, _plain(value)) for name, value in known.items()), screen(), indent=5
        )
    broken = 0
    for verdict in found.verdicts:
        broken += bool(verdict.findings)
        mark = styled("BROKEN", "red") if verdict.findings else styled("holds", "green")
        yield f"{verdict.name}  {mark}  {verdict.title}"
        for finding in verdict.findings:
            yield f"     {printable(finding.problem)}"
    yield f"{len(found.verdicts) - broken} of {len(found.verdicts)} invariants hold"


def _explanation_json(found: Explanation) -> str:
    return json_line(
        {
            "id": found.id,
            "sound": not any(verdict.findings for verdict in found.verdicts),
            "rows": [{"part": part, **facts} for part, facts in found.rows],
            "checks": [
                {
                    "name": verdict.name,
                    "title": verdict.title,
                    "holds": not verdict.findings,
                    "problems": [finding.problem for finding in verdict.findings],
                }
                for verdict in found.verdicts
            ],
        }
    )


# Print one check


def _print_check(name: str, as_json: bool) -> None:
    check = find_check(name)
    if check is None:
        raise InvalidInput(field="explain", problem=f"there is no check {name}")
    if as_json:
        facts = ("name", "title", "meaning", "holds", "reads", "remedy", "text")
        say(json_line({fact: getattr(check, fact) for fact in facts}))
    else:
        say_all(_check_lines(check))


def _check_lines(check: Check) -> Iterator[str]:
    yield styled(f"{check.name}  {check.title}", "cyan")
    yield ""
    yield check.meaning
    yield ""
    is_invariant = not check.name.startswith("X")
    facts = (("Holds:", check.holds), ("Reads:", check.reads)) if is_invariant else ()
    yield from record((*facts, ("Remedy:", check.remedy)), screen())
    yield ""
    yield check.text


def _finding_facts(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "level": finding.level,
        "execution": finding.execution,
        "problem": finding.problem,
    }


def _subject(finding: Finding) -> str:
    return f"{with_bare_ids(finding.execution)}  " if finding.execution else ""


def _colour(level: Level) -> str:
    return "red" if level is Level.ERROR else "yellow"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
