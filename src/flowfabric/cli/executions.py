"""`flowfabric ls`, `show`, `why` and `attempts`: looking at executions."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import typer

from flowfabric.cli.database import (
    ALL_NAMESPACES_OPTION,
    EXIT_NOT_FOUND,
    NAMESPACE_OPTION,
    URL_OPTION,
    failures_as_exit_codes,
    resolve_database_url,
    resolve_namespace,
)
from flowfabric.cli.filters import WHERE_OPTION, Where, from_flags
from flowfabric.cli.ids import IDS_ARGUMENT, parse_ids
from flowfabric.cli.output import (
    FORM_OPTION,
    OUTPUT_OPTION,
    Cell,
    Column,
    Form,
    Output,
    Progress,
    Styled,
    complain,
    is_json,
    json_line,
    printable,
    say,
    styled,
    table,
    table_width,
)
from flowfabric.cli.times import exact, precise, relative, short
from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.execution import (
    AttemptInfo,
    Event,
    ExecutionFilter,
    ExecutionInfo,
    ExecutionSummary,
)
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import BlockingReason, PublicState
from flowfabric.core.step import StepRecord
from flowfabric.core.why import Why

PAGE = 500
EVENTS_SHOWN = 10
ATTEMPTS_SHOWN = 5
STEPS_SHOWN = 20
PARTITION_OPTION = typer.Option(
    0, "--partition", min=0, max=32_767, help="The partition to search.", hidden=True
)

_COLOURS = {
    PublicState.ACTIVE: "cyan",
    PublicState.COMPLETED: "green",
    PublicState.FAILED: "red",
    PublicState.EXPIRED: "red",
    PublicState.DELAYED: "yellow",
    PublicState.SUSPENDED: "yellow",
    PublicState.RATE_LIMITED: "yellow",
}


def ls(
    where: list[str] | None = WHERE_OPTION,
    state: list[str] | None = typer.Option(
        None, "--state", "-s", help="Only these states, as failed,expired.", show_default=False
    ),
    lane: list[str] | None = typer.Option(
        None, "--lane", "-l", help="Only this lane; may be repeated.", show_default=False
    ),
    task: list[str] | None = typer.Option(
        None, "--task", "-t", help="Only this task; may be repeated.", show_default=False
    ),
    tag: list[str] | None = typer.Option(
        None, "--tag", metavar="K=V", help="Only with this tag; may be repeated.",
        show_default=False,
    ),
    since: str | None = typer.Option(
        None, "--since", help="Only created since: 30s, 10m, 2h, 7d, or an ISO time.",
        show_default=False,
    ),
    limit: int = typer.Option(50, "--limit", min=0, help="At most so many; 0 is all of them."),
    count: bool = typer.Option(False, "--count", help="Only how many: exact up to 10000."),
    output: Output | None = OUTPUT_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    partition: int = PARTITION_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:  # fmt: skip
    """List executions, newest first."""
    with failures_as_exit_codes():
        chosen = from_flags(where, states=state, lanes=lane, tasks=task, tags=tag, since=since)
        space = resolve_namespace(namespace, all_namespaces)
        form = output or (Output.TABLE if sys.stdout.isatty() else Output.JSON)
        url = resolve_database_url(database_url)
        if count:
            asyncio.run(_count(url, space, chosen, partition, form))
        else:
            asyncio.run(_list(url, space, chosen, partition, limit, form))


def show(
    ids: list[str] = IDS_ARGUMENT,
    payload: bool = typer.Option(
        False, "--payload", help="Show the payload and the result, too. They may be confidential."
    ),
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Show all about an execution.

    State, why, lease, attempts, progress, deadline, failure, tags, the steps it has recorded and
    the last ten events. Exit code 3 if it is not there.
    """
    as_json = is_json(output)

    async def one(client: FlowFabric, id: ExecutionId) -> None:
        info = await client.executions.describe(id)
        if info is None:
            raise ExecutionNotFound(id=str(id))
        why = await client.executions.why(id)
        attempts = await client.executions.attempts(id)
        events = await client.executions.events(id)
        steps = await client.steps.list(id) if info.step_count else []
        if as_json:
            say(json_line(_facts(info, why, attempts, steps, events, payload)))
            return
        now = await client.executions.server_time()
        for line in _portrait(info, why, attempts, steps, events, now, payload):
            say(line)

    _each(one, ids, namespace, all_namespaces, database_url, blank_between=not as_json)


def why(
    ids: list[str] = IDS_ARGUMENT,
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Say why an execution is not running, or that it is.

    Exit code 3 if it is not there.
    """
    as_json, several = is_json(output), len(ids) > 1 or "-" in ids

    async def one(client: FlowFabric, id: ExecutionId) -> None:
        found = await client.executions.why(id)
        if as_json:
            say(json_line({"id": id, **_reason_facts(found)}))
            return
        if several:
            say(str(id))
        for line in _sentences(found):
            say(line)

    _each(one, ids, namespace, all_namespaces, database_url)


def attempts(
    ids: list[str] = IDS_ARGUMENT,
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """List the attempts of an execution, first to latest.

    Exit code 3 if it is not there.
    """
    as_json, several = is_json(output), len(ids) > 1 or "-" in ids

    async def one(client: FlowFabric, id: ExecutionId) -> None:
        found = await client.executions.attempts(id)
        if not found and await client.executions.state(id) is None:
            raise ExecutionNotFound(id=str(id))
        if as_json:
            for attempt in found:
                say(json_line({"id": id, **asdict(attempt)}))
            return
        if several:
            say(str(id))
        if not found:
            typer.echo("no attempt yet", err=True)
            return
        for line in _attempts_table(found, await client.executions.server_time()):
            say(line)

    _each(one, ids, namespace, all_namespaces, database_url)


async def matching(
    client: FlowFabric, filter: ExecutionFilter, partition: int, *, limit: int = 0
) -> AsyncIterator[list[ExecutionSummary]]:
    """Pages of what matches, newest first, to the end or the limit; none twice.

    The cursor goes down the ids, so what is changed or submitted meanwhile does not come again.
    """
    cursor, left = None, limit
    while True:
        page = await client.executions.list(
            filter, cursor=cursor, limit=min(left, PAGE) if limit else PAGE, partition=partition
        )
        yield page.executions
        cursor = page.cursor
        left -= len(page.executions)
        if cursor is None or (limit and left <= 0):
            return


def missing(id: ExecutionId, namespace: str | None) -> str:
    where = "" if namespace is None else f" in the namespace {namespace}"
    hint = "" if namespace is None else ", or belong to another (--all-namespaces)"
    return f"{id}: there is no such execution{where}; it may have been trimmed{hint}"


def state_colour(state: PublicState) -> str | None:
    return _COLOURS.get(state)


def state_cell(state: PublicState) -> Cell:
    colour = state_colour(state)
    return Styled(state, colour) if colour else str(state)


def short_id(id: ExecutionId) -> str:
    """What is enough to name it: the UUID alone in partition 0."""
    return str(id) if id.partition_key else str(id.uuid)


# ls


async def _count(
    url: str, namespace: str | None, where: Where, partition: int, form: Output
) -> None:
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        filter = where.resolved(await client.executions.server_time())
        async with Progress(for_logs=False).telling(lambda: "counting"):
            found = await client.executions.count(filter, partition=partition)
    if form is Output.JSON:
        say(json_line({"count": found.number, "is_more": found.is_more}))
    else:
        say(str(found))


async def _list(
    url: str, namespace: str | None, where: Where, partition: int, limit: int, form: Output
) -> None:
    progress = Progress(for_logs=False)
    found: list[ExecutionSummary] = []
    number = 0
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        now = await client.executions.server_time()
        # One more than asked for tells whether there are more.
        pages = matching(client, where.resolved(now), partition, limit=limit + 1 if limit else 0)
        async with progress.telling(lambda: f"searching: {number} found"):
            async for page in pages:
                for summary in page:
                    number += 1
                    if limit and number > limit:
                        break
                    if form is Output.JSON:
                        progress.say(json_line(asdict(summary)))
                    elif form is Output.ID:
                        progress.say(str(summary.id))
                    else:
                        found.append(summary)
    if found:
        for line in _summaries(found, now, form is Output.WIDE, namespace is None):
            say(line)
    if not number:
        typer.echo("nothing matches", err=True)
    elif limit and number > limit:
        typer.echo(f"only the newest {limit}; --limit 0 lists all", err=True)


def _summaries(
    found: Sequence[ExecutionSummary], now: datetime, wide: bool, with_namespace: bool
) -> list[str]:
    columns = [
        Column("ID"),
        Column("STATE", least=9),
        Column("TASK", least=8, keeps_end=True),
        Column("LANE", least=6, drop=4),
        Column("TRY", is_number=True, drop=3),
        Column("AGE", is_number=True),
        Column("WHY", least=10),
    ]
    rows: list[list[Cell]] = [
        [
            str(one.id) if wide else short_id(one.id),
            state_cell(one.public_state),
            one.task,
            one.lane,
            str(one.total_attempt_count),
            short(now - one.created_at),
            _in_short(one, now),
        ]
        for one in found
    ]
    if with_namespace or wide:
        columns.insert(2, Column("NAMESPACE", least=6, drop=2))
        for row, one in zip(rows, found, strict=True):
            row.insert(2, one.namespace)
    if wide:
        for column in (
            Column("PRIORITY", is_number=True),
            Column("RECLAIMS", is_number=True),
            Column("CREATED"),
            Column("WORKER"),
        ):
            columns.insert(-1, column)
        for row, one in zip(rows, found, strict=True):
            row[-1:-1] = [
                str(one.priority),
                str(one.reclaim_count),
                exact(one.created_at),
                one.worker_instance_id or "-",
            ]
    return table(columns, rows, None if wide else table_width())


def _in_short(one: ExecutionSummary, now: datetime) -> Cell:
    """Why it is as it is, in a few words."""
    if one.is_crash_loop:
        return Styled(f"crash loop, {one.reclaim_count} workers lost", "red")
    if one.public_state.is_terminal:
        return one.failure_reason or ""
    words = ""
    if one.blocking_reason is not BlockingReason.NONE:
        # What it is waiting for; that it waits, its state says.
        words = one.blocking_reason.removeprefix("waiting_").replace("_", " ")
    elif one.public_state is PublicState.ACTIVE and one.worker_instance_id:
        words = f"on {one.worker_instance_id}"
    if one.delayed_until is not None and one.public_state is PublicState.DELAYED:
        left = one.delayed_until - now
        due = f"in {precise(left)}" if left > timedelta(0) else "due"
        words = f"{due}, {words}" if words else due
    if one.failure_reason:
        words = f"{words}: {one.failure_reason}" if words else one.failure_reason
    return words


# show, why, attempts


def _each(
    one: Callable[[FlowFabric, ExecutionId], Awaitable[None]],
    texts: Sequence[str],
    namespace: str | None,
    all_namespaces: bool,
    database_url: str | None,
    *,
    blank_between: bool = False,
) -> None:
    """Show one id after the other; those that are not there are told, and set the exit code."""
    with failures_as_exit_codes():
        ids = parse_ids(texts)
        space = resolve_namespace(namespace, all_namespaces)
        url = resolve_database_url(database_url)

        async def run() -> bool:
            is_complete = True
            async with FlowFabric(url, namespace=space, pool_size=1) as client:
                for number, id in enumerate(ids):
                    if number and blank_between:
                        say("")
                    try:
                        await one(client, id)
                    except ExecutionNotFound:
                        complain(missing(id, space))
                        is_complete = False
            return is_complete

        if not asyncio.run(run()):
            raise typer.Exit(EXIT_NOT_FOUND)


def _reason_facts(why: Why) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "dimension": why.dimension,
        "code": why.code,
        "sentence": why.sentence,
        "evidence": why.evidence,
        "changes_at": why.changes_at,
    }
    if why.others:
        facts["others"] = [_reason_facts(other) for other in why.others]
    return _without_null(facts)


def _sentences(why: Why) -> list[str]:
    return [printable(why.sentence), *(f"  also: {printable(str(other))}" for other in why.others)]


def _facts(
    info: ExecutionInfo,
    why: Why,
    attempts: Sequence[AttemptInfo],
    steps: Sequence[StepRecord],
    events: Sequence[Event],
    with_payload: bool,
) -> dict[str, Any]:
    facts = asdict(info)
    for name in ("payload", "result"):
        body: bytes | None = facts.pop(name)
        if body is None:
            continue
        facts[f"{name}_bytes"] = len(body)
        if with_payload:
            text = _decoded(body)
            facts[name if text is not None else f"{name}_base64"] = (
                base64.b64encode(body).decode() if text is None else text
            )
    facts["why"] = _reason_facts(why)
    facts["attempts"] = [_without_null(asdict(attempt)) for attempt in attempts]
    if steps:
        facts["steps"] = [_step_facts(step, with_payload) for step in steps]
    facts["events"] = [_without_null(asdict(event)) for event in events[-EVENTS_SHOWN:]]
    return facts


def _step_facts(step: StepRecord, with_payload: bool) -> dict[str, Any]:
    facts = asdict(step)
    value: bytes | None = facts.pop("value")
    if value is not None:
        facts["value_bytes"] = len(value)
        if with_payload:
            text = _decoded(value)
            facts["value" if text is not None else "value_base64"] = (
                base64.b64encode(value).decode() if text is None else text
            )
    return _without_null(facts)


def _portrait(
    info: ExecutionInfo,
    why: Why,
    attempts: Sequence[AttemptInfo],
    steps: Sequence[StepRecord],
    events: Sequence[Event],
    now: datetime,
    with_payload: bool,
) -> list[str]:
    """An execution for whoever is woken at night."""
    state: str = info.public_state
    colour = _COLOURS.get(info.public_state)
    head = styled(state, colour) if colour else state
    if info.is_crash_loop:
        head += "  " + styled("CRASH LOOP", "red")
    lines = [str(info.id)]

    def add(label: str, text: str | None, *, is_styled: bool = False) -> None:
        if text:
            lines.append(f"  {label:<10} {text if is_styled else printable(text)}")

    def at(label: str, moment: datetime | None) -> None:
        if moment is not None:
            add(label, relative(moment, now))

    add("state", head, is_styled=True)
    for number, sentence in enumerate(_sentences(why)):
        add("why" if not number else "", sentence.strip())
    at("changes", why.changes_at)
    add("task", info.task)
    add("lane", info.lane)
    add("namespace", info.namespace)
    add("priority", str(info.priority))
    add("needs", ", ".join(sorted(info.capabilities)))
    at("created", info.created_at)
    add("creator", info.creator)
    if info.parent_id is not None:
        add("parent", f"{info.parent_id}{', ends with it' if info.ends_with_parent else ''}")
    if info.child_count:
        add("children", str(info.child_count))
    add("version", info.task_version)
    at("started", info.started_at)
    at("ended", info.terminal_at)
    if info.terminal_at is None:
        at("delayed", info.delayed_until)
        at("deadline", info.deadline_at)
    if info.lease_id is not None and info.lease_expires_at is not None:
        add("lease", f"{info.lease_id} epoch {info.epoch}")
        add("", f"held by {info.worker_instance_id} of {info.worker_id}")
        add("", f"until {relative(info.lease_expires_at, now)}")
    if info.terminal_at is None:
        at("times out", info.attempt_deadline_at)
        at("reclaim", info.reclaim_at)
    add("progress", _progress(info, now))
    add("attempts", _tally(info))
    if info.failure_reason or info.failure_class:
        kind = " ".join(filter(None, (info.failure_class, info.failure_category)))
        add("failure", ": ".join(filter(None, (kind, info.failure_reason))))
    if info.cancelled_by or info.cancellation_reason:
        add(
            "cancelled",
            f"by {info.cancelled_by}"
            + (f": {info.cancellation_reason}" if info.cancellation_reason else ""),
        )
    add("tags", " ".join(f"{key}={value}" for key, value in info.tags.items()))
    at("trimmed", info.trim_at)
    for name, body, encoding in (
        ("payload", info.payload, info.payload_encoding),
        ("result", info.result, info.result_encoding),
    ):
        if body is not None:
            add(name, f"{len(body)} bytes{f' of {encoding}' if encoding else ''}")
            if with_payload:
                text = _decoded(body)
                shown = base64.b64encode(body).decode() if text is None else text
                lines.extend(f"             {printable(line)}" for line in shown.splitlines())
    if attempts:
        left_out = len(attempts) - ATTEMPTS_SHOWN
        lines += ["", "  attempts" + (f" (the last {ATTEMPTS_SHOWN})" if left_out > 0 else "")]
        lines += ["  " + line for line in _attempts_table(attempts[-ATTEMPTS_SHOWN:], now, 2)]
    if steps:
        left_out = len(steps) - STEPS_SHOWN
        lines += ["", "  steps" + (f" (the last {STEPS_SHOWN})" if left_out > 0 else "")]
        lines += ["  " + line for line in _steps_table(steps[-STEPS_SHOWN:], now, with_payload)]
    if events:
        left_out = len(events) - EVENTS_SHOWN
        lines += ["", "  events" + (f" (the last {EVENTS_SHOWN})" if left_out > 0 else "")]
        lines += ["  " + line for line in _events_table(events[-EVENTS_SHOWN:], 2)]
    return lines


def _progress(info: ExecutionInfo, now: datetime) -> str | None:
    if info.progressed_at is None:
        return None
    percent = None if info.progress_percent is None else f"{info.progress_percent} %"
    told = ", ".join(filter(None, (percent, info.progress_message)))
    return f"{told} ({short(now - info.progressed_at)} ago)"


def _tally(info: ExecutionInfo) -> str:
    parts = [str(info.total_attempt_count)]
    for number, word in ((info.retry_count, "retries"), (info.replay_count, "replays")):
        if number:
            parts.append(f"{word} {number}")
    if info.reclaim_count:
        parts.append(f"reclaims {info.reclaim_count} of {info.max_reclaims}")
    return ", ".join(parts)


def _attempts_table(attempts: Sequence[AttemptInfo], now: datetime, indent: int = 0) -> list[str]:
    columns = [
        Column("#", is_number=True),
        Column("TYPE"),
        Column("STATE", least=10),
        Column("STARTED", drop=2),
        Column("TOOK", is_number=True),
        Column("WORKER", least=8),
        Column("FAILURE", least=10),
    ]
    rows: list[list[Cell]] = [
        [
            str(one.attempt_index),
            one.attempt_type,
            one.lifecycle,
            exact(one.started_at),
            short((one.ended_at or now) - one.started_at) + ("" if one.ended_at else "…"),
            one.worker_instance_id or "-",
            ": ".join(filter(None, (one.failure_class, one.failure_reason)))
            or one.pause_cause
            or "",
        ]
        for one in attempts
    ]
    return table(columns, rows, _room(indent))


def _steps_table(steps: Sequence[StepRecord], now: datetime, with_values: bool) -> list[str]:
    columns = [
        Column("#", is_number=True),
        Column("STEP", least=10),
        Column("KIND"),
        Column("RECORDED", drop=2),
        Column("ATTEMPT", is_number=True, drop=1),
        Column("VALUE", least=10),
    ]
    rows: list[list[Cell]] = [
        [
            str(step.position),
            step.name + (f"#{step.occurrence}" if step.occurrence else ""),
            step.kind,
            exact(step.recorded_at),
            str(step.attempt_index),
            _step_value(step, now, with_values),
        ]
        for step in steps
    ]
    return table(columns, rows, _room(2))


def _step_value(step: StepRecord, now: datetime, with_values: bool) -> str:
    if step.until_at is not None:
        return f"until {relative(step.until_at, now)}"
    if step.value is None:
        return ""
    if not with_values:
        return f"{len(step.value)} bytes"
    text = _decoded(step.value)
    return base64.b64encode(step.value).decode() if text is None else text


def _events_table(events: Sequence[Event], indent: int) -> list[str]:
    columns = [
        Column("#", is_number=True),
        Column("AT"),
        Column("EVENT"),
        Column("BY", least=8),
        Column("DETAIL", least=10),
    ]
    rows: list[list[Cell]] = [
        [
            str(event.version),
            exact(event.occurred_at),
            event.kind,
            event.actor or event.worker_instance_id or "-",
            " ".join(f"{key}={value}" for key, value in (event.detail or {}).items()),
        ]
        for event in events
    ]
    return table(columns, rows, _room(indent))


def _room(indent: int) -> int | None:
    width = table_width()
    return None if width is None else width - indent


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _without_null(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
