"""`flowfabric flow`: look at flows, draw them, cancel them, run again what failed in them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import typer

from flowfabric.cli.actions import ACTOR_OPTION, REASON_OPTION, default_actor
from flowfabric.cli.database import (
    ALL_NAMESPACES_OPTION,
    EXIT_CONFLICT,
    EXIT_UNREACHABLE,
    NAMESPACE_OPTION,
    URL_OPTION,
    exit_code,
    failures_as_exit_codes,
    resolve_database_url,
    resolve_namespace,
)
from flowfabric.cli.executions import PARTITION_OPTION, short_id, state_cell, state_colour
from flowfabric.cli.ids import FLOW_ID_ARGUMENT, FLOW_IDS_ARGUMENT, parse_flow_id, parse_flow_ids
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
    cut,
    is_json,
    json_line,
    printable,
    say,
    styled,
    table,
    table_width,
    text_width,
)
from flowfabric.cli.times import exact, relative, short, span
from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    FlowFabricError,
    FlowNotFound,
    InvalidInput,
    Unavailable,
)
from flowfabric.core.flow import (
    FlowCancellation,
    FlowCancelOutcome,
    FlowInfo,
    FlowListed,
    FlowMember,
    FlowState,
    FlowSummary,
)
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import FlowCancelPolicy, PublicState
from flowfabric.drawing import Picture, as_svg, fold, picture_of
from flowfabric.drawing.folding import unfolded
from flowfabric.drawing.picture import ORDER, words
from flowfabric.drawing.tree import SIGNS, Row, tree_of

PAGE = 500
MEMBERS_SHOWN = 20
# How long --wait waits if nothing else is said.
PATIENCE = timedelta(minutes=5)

app = typer.Typer(
    name="flow",
    no_args_is_help=True,
    help="Look at flows, draw them, cancel them.\n\nExit codes: 2 wrong usage, 3 no such flow, "
    "4 its state does not allow it, 5 no database.",
)

_COLOURS = {
    FlowState.RUNNING: "cyan",
    FlowState.BLOCKED: "yellow",
    FlowState.COMPLETED: "green",
    FlowState.FAILED: "red",
}
UNFOLD_OPTION = typer.Option(
    False, "--unfold", help="Draw every node, also where many are alike; not for large flows."
)


@app.command()
def ls(
    state: list[str] | None = typer.Option(
        None, "--state", "-s", help="Only these states, as running,failed.", show_default=False
    ),
    limit: int = typer.Option(50, "--limit", min=0, help="At most so many; 0 is all of them."),
    output: Output | None = OUTPUT_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    partition: int = PARTITION_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """List flows, newest first."""
    with failures_as_exit_codes():
        states = _states(state)
        space = resolve_namespace(namespace, all_namespaces)
        form = output or (Output.TABLE if sys.stdout.isatty() else Output.JSON)

        async def act(client: FlowFabric) -> None:
            await _list(client, states, limit, form, partition, space is None)

        _run(act, database_url, space)


@app.command()
def show(
    ids: list[str] = FLOW_IDS_ARGUMENT,
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Show a flow: its state, how far its members are, and those that need a look.

    Exit code 3 if it is not there.
    """
    as_json = is_json(output)

    async def one(client: FlowFabric, id: FlowId) -> None:
        info, summary = await _known(client, id)
        if as_json:
            say(json_line(_facts(info, summary)))
            return
        now = await client.executions.server_time()
        notable = [state for state in ORDER if state is not PublicState.COMPLETED]
        members = await client.flows.members(id, states=notable)
        for line in _portrait(info, summary, members, now):
            say(line)

    _each(one, ids, namespace, all_namespaces, database_url, blank_between=not as_json)


@app.command()
def graph(
    id: str = FLOW_ID_ARGUMENT,
    svg: Path | None = typer.Option(
        None, "--svg", metavar="FILE", help="Draw it into this SVG file; - is stdout."
    ),
    unfold: bool = UNFOLD_OPTION,
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Draw a flow as a tree of its nodes, or as a picture.

    Nodes that are alike are drawn as one: a fan-out of 100 is one line, or one box. With -o json,
    the nodes, edges and groups themselves.

    Exit codes: 1 the file cannot be written, 3 no such flow.
    """

    async def one(client: FlowFabric, id: FlowId) -> None:
        info, summary = await _known(client, id)
        members = await client.flows.members(id)
        edges = await client.flows.edges(id)
        if svg is None and is_json(output):
            facts = {
                **_facts(info, summary),
                "nodes": [_without_null(asdict(member)) for member in members],
                "edges": [_without_null(asdict(edge)) for edge in edges],
            }
            say(json_line(facts))
            return
        picture = picture_of(info.flow_kind, summary.state, members, edges, info.groups)
        if svg is None:
            _print_tree(unfolded(picture) if unfold else fold(picture), info, summary)
        else:
            _write(svg, as_svg(picture, is_folded=not unfold))

    with failures_as_exit_codes():
        if svg is not None and output is not None:
            raise InvalidInput(field="--svg", problem="goes without --output")
    _each(one, [id], namespace, all_namespaces, database_url, parse=parse_flow_id)


@app.command()
def cancel(
    ids: list[str] = FLOW_IDS_ARGUMENT,
    policy: FlowCancelPolicy = typer.Option(
        FlowCancelPolicy.CANCEL_ALL,
        "--policy",
        help="Which members end: all unfinished ones, those that do not run, or none.",
    ),
    wait: bool = typer.Option(False, "--wait", help="Return when the members have ended."),
    timeout: str | None = typer.Option(
        None, "--timeout", help="With --wait: no longer than this, as 30s. Default: 5m.",
        show_default=False,
    ),
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only print what would be done; change nothing."
    ),
    yes: bool = typer.Option(
        False, "--yes", "-y", help="Do not ask; needed where nobody can be asked."
    ),
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:  # fmt: skip
    """Cancel flows. None of their members starts any more.

    A flow that was cancelled may be cancelled by a stricter policy while members live. One whose
    members have all ended stays as it is.

    Without --wait the members that have to end are ended behind the command's back, whatever
    happens to it.

    Exit codes: 3 not found, 4 cancelled or ended already, or not ended within --timeout, 5 no
    database, or somebody holds members.
    """
    who, as_json = actor or default_actor(), is_json(output)

    async def one(client: FlowFabric, id: FlowId) -> int:
        if dry_run:
            info, summary = await _known(client, id)
            _foretell(info, summary, policy, as_json)
            return 0
        patience = (PATIENCE if timeout is None else span(timeout, "--timeout")) if wait else None
        async with Progress(for_logs=False).telling(lambda: f"cancelling {short_flow_id(id)}"):
            answer = await client.flows.cancel(
                id, policy=policy, reason=reason, actor=who, wait=patience
            )
        return _cancelled(answer, as_json)

    with failures_as_exit_codes():
        if timeout is not None:
            span(timeout, "--timeout")
            if not wait:
                raise InvalidInput(field="--timeout", problem="goes with --wait")
        found = parse_flow_ids(ids)
        if not (yes or dry_run):
            _confirm(found, policy, database_url, resolve_namespace(namespace, all_namespaces))
    texts = [str(id) for id in found]
    _each(one, texts, namespace, all_namespaces, database_url, verb="cancel", as_json=as_json)


@app.command(name="retry-failed")
def retry_failed(
    ids: list[str] = FLOW_IDS_ARGUMENT,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only print what would be done; change nothing."
    ),
    output: Form | None = FORM_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Run the failed and expired members of flows again, with all that was skipped for them.

    Exit codes: 3 not found, 4 the flow is cancelled or a member cannot be replayed, 5 no database.
    """
    who, as_json = actor or default_actor(), is_json(output)

    async def one(client: FlowFabric, id: FlowId) -> int:
        if dry_run:
            _, summary = await _known(client, id)
            count = sum(summary.counts.get(state, 0) for state in _UNWELL)
            _tell_retry(id, "would_retry", count, as_json)
            return 0
        return await _retry(client, id, reason, who, as_json)

    _each(one, ids, namespace, all_namespaces, database_url, verb="retry-failed", as_json=as_json)


_UNWELL = (PublicState.FAILED, PublicState.EXPIRED)


def short_flow_id(id: FlowId) -> str:
    """What is enough to name it: the UUID alone in partition 0."""
    return str(id) if id.partition_key else str(id.uuid)


# How it runs


def _run(
    act: Callable[[FlowFabric], Awaitable[Any]], database_url: str | None, namespace: str | None
) -> None:
    async def connected(url: str) -> None:
        async with FlowFabric(url, namespace=namespace, pool_size=2) as client:
            await act(client)

    asyncio.run(connected(resolve_database_url(database_url)))


def _each(
    one: Callable[[FlowFabric, FlowId], Awaitable[int | None]],
    texts: Sequence[str],
    namespace: str | None,
    all_namespaces: bool,
    database_url: str | None,
    *,
    blank_between: bool = False,
    verb: str | None = None,
    as_json: bool = False,
    parse: Callable[[str], FlowId] | None = None,
) -> None:
    """One flow after the other. What is refused is told, and the highest exit code stands."""
    with failures_as_exit_codes():
        ids = parse_flow_ids(texts) if parse is None else [parse(text) for text in texts]
        space = resolve_namespace(namespace, all_namespaces)
        codes = {0}

        async def act(client: FlowFabric) -> None:
            for number, id in enumerate(ids):
                if number and blank_between:
                    say("")
                try:
                    codes.add(await one(client, id) or 0)
                except FlowFabricError as error:
                    if isinstance(error, InvalidInput | Unavailable):
                        raise
                    codes.add(exit_code(error))
                    if isinstance(error, FlowNotFound):
                        error = FlowNotFound(await _sought(client, id, space), flow_id=id)
                    _refused(id, error, verb if as_json else None)

        _run(act, database_url, space)
        if code := max(codes):
            raise typer.Exit(code)


async def _sought(client: FlowFabric, id: FlowId, namespace: str | None) -> str:
    """Why a flow is not there; perhaps the id is that of one of its nodes."""
    info = await client.executions.describe(ExecutionId.of(id.partition_key, id.uuid))
    if info is None:
        return missing(id, namespace)
    if info.flow_id is None:
        return f"{id}: is an execution, and not in a flow; see: flowfabric show"
    return f"{id}: is an execution, a node of the flow {info.flow_id}"


def _refused(id: FlowId, error: FlowFabricError, verb: str | None) -> None:
    told = str(error) if id in str(error) else f"{id}: {error}"
    if verb is not None:
        name = error.name or type(error).__name__
        say(json_line({"id": id, "action": verb, "outcome": name, "error": told}))
    else:
        complain(printable(told))


def missing(id: FlowId, namespace: str | None) -> str:
    where = "" if namespace is None else f" in the namespace {namespace}"
    hint = "" if namespace is None else ", or belong to another (--all-namespaces)"
    return f"{id}: there is no such flow{where}; it may have been trimmed{hint}"


async def _known(client: FlowFabric, id: FlowId) -> tuple[FlowInfo, FlowSummary]:
    info, summary = await client.flows.describe(id), await client.flows.summary(id)
    if info is None or summary is None:
        raise FlowNotFound(id=str(id))
    return info, summary


# ls


def _states(texts: Sequence[str] | None) -> frozenset[FlowState]:
    found = set()
    for word in (word for text in texts or () for word in text.split(",")):
        try:
            found.add(FlowState(word.lower()))
        except ValueError as error:
            raise InvalidInput(
                field="--state", problem=f"{word!r} is none; there are {', '.join(FlowState)}"
            ) from error
    return frozenset(found)


async def _pages(client: FlowFabric, partition: int) -> AsyncIterator[list[FlowListed]]:
    after = None
    while True:
        page = await client.flows.list(after=after, limit=PAGE, newest=True, partition=partition)
        yield page.flows
        after = page.after
        if after is None:
            return


async def _list(
    client: FlowFabric,
    states: frozenset[FlowState],
    limit: int,
    form: Output,
    partition: int,
    with_namespace: bool,
) -> None:
    progress = Progress(for_logs=False)
    now = await client.executions.server_time()
    shown: list[FlowListed] = []
    number = 0
    is_more = False
    async with progress.telling(lambda: f"searching: {number} found"):
        async for page in _pages(client, partition):
            for one in page:
                if states and one.state not in states:
                    continue
                if limit and number == limit:
                    is_more = True
                    break
                number += 1
                if form is Output.JSON:
                    progress.say(json_line(asdict(one)))
                elif form is Output.ID:
                    progress.say(str(one.id))
                else:
                    shown.append(one)
            if is_more:
                break
    if shown:
        for line in _listed(shown, now, form is Output.WIDE, with_namespace):
            say(line)
    if not number:
        typer.echo("nothing matches" if states else "no flows yet", err=True)
    elif is_more:
        typer.echo(f"only the newest {limit}; --limit 0 lists all", err=True)


def _listed(
    flows: Sequence[FlowListed], now: datetime, wide: bool, with_namespace: bool
) -> list[str]:
    columns = [
        Column("ID"),
        Column("STATE"),
        Column("KIND", least=8, keeps_end=True),
        Column("NODES", is_number=True),
        Column("EDGES", is_number=True, drop=2),
        Column("AGE", is_number=True),
    ]
    rows: list[list[Cell]] = [
        [
            str(one.id) if wide else short_flow_id(one.id),
            _state_cell(one.state),
            one.flow_kind,
            str(one.node_count),
            str(one.edge_count),
            short(now - one.created_at),
        ]
        for one in flows
    ]
    if with_namespace or wide:
        columns.insert(2, Column("NAMESPACE", least=6, drop=1))
        for row, one in zip(rows, flows, strict=True):
            row.insert(2, one.namespace)
    if wide:
        columns.append(Column("CREATED"))
        for row, one in zip(rows, flows, strict=True):
            row.append(exact(one.created_at))
    return table(columns, rows, None if wide else table_width())


def _state_cell(state: FlowState) -> Cell:
    colour = _COLOURS.get(state)
    return Styled(state, colour) if colour else str(state)


# show


def _facts(info: FlowInfo, summary: FlowSummary) -> dict[str, Any]:
    facts = asdict(info)
    facts["state"] = summary.state
    facts["counts"] = {state.value: count for state, count in summary.counts.items()}
    facts["groups"] = [_without_null(group) for group in facts["groups"]]
    return _without_null(facts)


def _without_null(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _counts(summary: FlowSummary) -> str:
    parts = [
        f"{summary.counts[state]} {words(state)}" for state in ORDER if state in summary.counts
    ]
    return f"{summary.total}: {', '.join(parts)}" if parts else "0"


def _portrait(
    info: FlowInfo, summary: FlowSummary, members: Sequence[FlowMember], now: datetime
) -> list[str]:
    cancelled = None
    if info.cancelled_at is not None:
        by = f" by {info.cancelled_by}" if info.cancelled_by else ""
        cancelled = f"{relative(info.cancelled_at, now)}{by}, {info.cancel_policy}"
    trimmed = max(info.node_count - summary.total, 0)
    facts: dict[str, Any] = {
        "id": info.id,
        "kind": info.flow_kind,
        "state": summary.state,
        "namespace": info.namespace,
        "members": _counts(summary),
        "trimmed": f"{trimmed} members" if trimmed else None,
        "edges": info.edge_count,
        "created": relative(info.created_at, now),
        "creator": info.creator,
        "cancelled": cancelled,
        "reason": info.cancel_reason,
        "tags": " ".join(f"{key}={value}" for key, value in sorted(info.tags.items())),
    }
    told = [(title, str(text)) for title, text in facts.items() if text not in (None, "")]
    width = max(len(title) for title, _ in told)
    lines = []
    for title, text in told:
        text = printable(text)
        if title == "state" and (colour := _COLOURS.get(summary.state)):
            text = styled(text, colour)
        lines.append(f"{title.ljust(width)}  {text}")
    if members:
        lines += ["", *_members(members, now)]
    return lines


def _members(members: Sequence[FlowMember], now: datetime) -> list[str]:
    """Those that have not simply completed, what is wrong first."""
    rank = {state: number for number, state in enumerate(ORDER)}
    chosen = sorted(members, key=lambda one: rank[one.public_state])[:MEMBERS_SHOWN]
    columns = [
        Column("NAME", least=10),
        Column("STATE"),
        Column("TASK", least=8, keeps_end=True, drop=2),
        Column("AGE", is_number=True, drop=1),
        Column("ID"),
        Column("FAILURE", least=10, drop=3),
    ]
    rows: list[list[Cell]] = [
        [
            one.name or "-",
            state_cell(one.public_state),
            one.task,
            short(now - (one.terminal_at or one.started_at or one.created_at)),
            short_id(one.id),
            one.failure_reason or "",
        ]
        for one in chosen
    ]
    lines = table(columns, rows, table_width())
    if len(members) > len(chosen):
        lines.append(f"and {len(members) - len(chosen)} more; `flow graph` shows all")
    return lines


# graph


def _write(file: Path, text: str) -> None:
    if str(file) == "-":
        say(text.rstrip("\n"))
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        complain(f"{file}: {error.strerror or error}")
        raise typer.Exit(1) from error
    typer.echo(f"drawn: {file}", err=True)


def _print_tree(picture: Picture, info: FlowInfo, summary: FlowSummary) -> None:
    width = table_width()
    head, counts = printable(info.flow_kind), _counts(summary)
    if width is not None:
        head = cut(head, max(width - len(summary.state) - 2, 8))
        room = width - text_width(head) - len(summary.state) - 4
        counts = cut(counts, room) if room > 8 else ""
    colour = _COLOURS.get(summary.state)
    state = styled(summary.state, colour) if colour else summary.state
    say(f"{head}  {state}  {counts}".rstrip())
    for row in tree_of(picture, is_ascii=not _shows_signs()):
        say(_fitted(row, width))
    if picture.note:
        typer.echo(picture.note, err=True)
    if summary.total < info.node_count:
        typer.echo(f"{info.node_count - summary.total} members were trimmed", err=True)


def _shows_signs() -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "".join(sign for sign, _ in SIGNS.values()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _fitted(row: Row, width: int | None) -> str:
    """A row with its colours, cut to the width: what it waits for first, then task and name."""
    name, told, task, waits = map(printable, (row.name, row.told, row.task, row.waits))
    if width is not None:
        room = width - len(row.indent) - 2
        name = cut(name, max(room, 8))
        room -= text_width(name)
        told = cut(told, room - 2) if room > 6 else ""
        room -= text_width(told) + 2 if told else 0
        # Waiting for others says more than the name of the task.
        waits = cut(waits, room - 2) if room > 12 else ""
        room -= text_width(waits) + 2 if waits else 0
        task = task if text_width(task) + 2 <= room else ""
    colour = row.state and state_colour(row.state)
    sign = styled(row.sign, colour) if colour else row.sign
    told = styled(told, colour) if colour and told else told
    return "  ".join(
        part for part in (f"{row.indent}{sign} {name}", told, task, waits) if part
    ).rstrip()


# cancel


def _confirm(
    ids: Sequence[FlowId], policy: FlowCancelPolicy, database_url: str | None, namespace: str | None
) -> None:
    """Tell how many members that concerns, and ask."""
    if not sys.stdin.isatty():
        raise InvalidInput(field="--yes", problem="is needed here: there is nobody to ask")
    count = 0

    async def act(client: FlowFabric) -> None:
        nonlocal count
        for id in ids:
            info, summary = await client.flows.describe(id), await client.flows.summary(id)
            if info is not None and summary is not None:
                count += _concerned(info, summary, policy)

    _run(act, database_url, namespace)
    what = f"flow {short_flow_id(ids[0])}" if len(ids) == 1 else f"{len(ids)} flows"
    told = f"cancel {what}, ending {_number(count)}"
    if not typer.confirm(f"{told}\nGo on?", err=True):
        raise typer.Abort


_MILDEST_FIRST = [
    None,
    FlowCancelPolicy.FLOW_ONLY,
    FlowCancelPolicy.CANCEL_PENDING,
    FlowCancelPolicy.CANCEL_ALL,
]


def _is_refused(info: FlowInfo, summary: FlowSummary, policy: FlowCancelPolicy) -> bool:
    """Whether cancelling a flow would change nothing."""
    if summary.unfinished == 0:
        return summary.total > 0 or info.cancel_policy is not None
    return _MILDEST_FIRST.index(policy) <= _MILDEST_FIRST.index(info.cancel_policy)


def _concerned(info: FlowInfo, summary: FlowSummary, policy: FlowCancelPolicy) -> int:
    """How many members cancelling a flow would end now."""
    if policy is FlowCancelPolicy.FLOW_ONLY or _is_refused(info, summary, policy):
        return 0
    running = summary.counts.get(PublicState.ACTIVE, 0)
    return summary.unfinished - (running if policy is FlowCancelPolicy.CANCEL_PENDING else 0)


def _number(count: int) -> str:
    return f"{count} {'member' if count == 1 else 'members'}"


def _foretell(
    info: FlowInfo, summary: FlowSummary, policy: FlowCancelPolicy, as_json: bool
) -> None:
    count = _concerned(info, summary, policy)
    is_refused = _is_refused(info, summary, policy)
    outcome = "would be refused" if is_refused else "would cancel"
    if as_json:
        facts = {
            "id": summary.id,
            "action": "cancel",
            "outcome": outcome.replace(" ", "_"),
            "state": summary.state,
            "members": count,
        }
        say(json_line(facts))
    else:
        say(f"{summary.id}  {outcome}  (it is {summary.state}, ending {_number(count)})")


def _cancelled(answer: FlowCancellation, as_json: bool) -> int:
    """Tell what became of it; returns the exit code."""
    if as_json:
        facts = {
            "id": answer.id,
            "action": "cancel",
            "outcome": answer.outcome,
            "policy": answer.policy,
            "reason": answer.reason,
            "members": answer.open_count,
            "failed": answer.failed or None,
        }
        say(json_line(facts))
    match answer.outcome:
        case FlowCancelOutcome.ALREADY_TERMINAL:
            if not as_json:
                why = f" ({answer.reason})" if answer.reason else ""
                told = f"{answer.id}: is cancelled already, with {answer.policy}{why}"
                if answer.policy is None:
                    told = f"{answer.id}: has ended already"
                complain(printable(told))
            return EXIT_CONFLICT
        case FlowCancelOutcome.PARTIALLY_CANCELLED:
            if not as_json:
                say(f"{answer.id}  partially cancelled  {_number(answer.open_count)}")
                for member in answer.failed:
                    complain(f"{member}: somebody holds it; it ends as soon as that is over")
            return EXIT_UNREACHABLE
        case outcome:
            if not as_json:
                word = outcome.replace("_", " ")
                say(f"{answer.id}  {word}  {_number(answer.open_count)}")
            return 0


# retry-failed


async def _retry(
    client: FlowFabric, id: FlowId, reason: str | None, actor: str, as_json: bool
) -> int:
    """Replay what ended badly, and tell what could not be; returns the exit code."""
    async with Progress(for_logs=False).telling(lambda: f"retrying {short_flow_id(id)}"):
        answer = await client.flows.retry_failed(id, reason=reason, actor=actor)
    for member, error in answer.refused.items():
        complain(printable(str(error) if member in str(error) else f"{member}: {error}"))
    _tell_retry(id, "retried", len(answer.replayed), as_json, refused=list(answer.refused))
    return max(map(exit_code, answer.refused.values()), default=0)


def _tell_retry(
    id: FlowId, outcome: str, count: int, as_json: bool, refused: Sequence[ExecutionId] = ()
) -> None:
    if as_json:
        facts = {
            "id": id,
            "action": "retry-failed",
            "outcome": outcome,
            "members": count,
            "refused": refused or None,
        }
        say(json_line(facts))
    else:
        say(f"{id}  {outcome.replace('_', ' ')}  {_number(count)}")
