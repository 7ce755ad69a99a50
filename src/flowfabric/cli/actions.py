"""`flowfabric cancel`, `revoke-lease`, `priority`, `replay`, `retry`: acting on executions.

Exit codes: 0 all done · 1 not confirmed · 2 wrong usage · 3 an id is not there · 4 the state of one
does not allow it · 5 the database cannot be reached, or kept one busy · 130 interrupted. Of
several, the highest one of 3, 4 and 5.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any
from uuid import UUID

import typer

from flowfabric.cli.database import (
    ALL_NAMESPACES_OPTION,
    EXIT_INTERRUPTED,
    NAMESPACE_OPTION,
    URL_OPTION,
    exit_code,
    failures_as_exit_codes,
    resolve_database_url,
    resolve_namespace,
)
from flowfabric.cli.executions import PARTITION_OPTION, matching, missing
from flowfabric.cli.filters import WHERE_OPTION, Where, parse
from flowfabric.cli.ids import OPTIONAL_IDS_ARGUMENT, parse_ids
from flowfabric.cli.output import Form, Progress, is_json, json_line, printable
from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    RetryExhausted,
    SchemaError,
    Unavailable,
)
from flowfabric.core.execution import ExecutionCount, ExecutionFilter, Steered
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState

AT_ONCE = 8
# A filter that matches more than this does not get a line each on a terminal.
LINES_SHOWN = 20
MAX_PRIORITY = 9000

_UNFINISHED = tuple(state for state in PublicState if not state.is_terminal)
_ENDED = tuple(state for state in PublicState if state.is_terminal)
_IN_LINE = (
    PublicState.WAITING,
    PublicState.DELAYED,
    PublicState.RATE_LIMITED,
    PublicState.WAITING_CHILDREN,
    PublicState.RESUMABLE,
)

REASON_OPTION = typer.Option(None, "--reason", "-r", help="Why; kept.", show_default=False)
ACTOR_OPTION = typer.Option(
    None, "--actor", help="Who does it; kept. Default: user@host.", show_default=False
)
DRY_RUN_OPTION = typer.Option(
    False, "--dry-run", help="Only print what would be done; change nothing."
)
YES_OPTION = typer.Option(
    False, "--yes", "-y", help="Do not ask; needed with --where where nobody can be asked."
)

REPORT_OPTION = typer.Option(
    None,
    "-o",
    "--output",
    help="json is an object a line. Default: table on a terminal, JSON otherwise. On a terminal, "
    f"a filter that matches more than {LINES_SHOWN} gets lines only for what was refused.",
    show_default=False,
)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do to executions, and the states in which it can be done.

    `is_careful`: a filter must name the states, as hardly anybody means all of them. What a filter
    with states found is acted on at the version it had then: one that has moved on is let alone.
    """

    verb: str
    states: Sequence[PublicState]
    do: Callable[[FlowFabric, ExecutionId, int | None], Awaitable[Steered]]
    is_careful: bool = False


def cancel(
    ids: list[str] | None = OPTIONAL_IDS_ARGUMENT,
    where: list[str] | None = WHERE_OPTION,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    yes: bool = YES_OPTION,
    output: Form | None = REPORT_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    partition: int = PARTITION_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """End executions as cancelled.

    Whatever they are doing; with --where, the unfinished ones unless it names states.

    Exit codes: 3 not found, 4 ended already, 5 no database.
    """
    who = actor or default_actor()
    action = Action(
        "cancel",
        _UNFINISHED,
        lambda ff, id, version: ff.executions.cancel(
            id, reason=reason, actor=who, if_version=version
        ),
    )
    _run(action, **_choice(locals()))


def revoke_lease(
    ids: list[str] | None = OPTIONAL_IDS_ARGUMENT,
    where: list[str] | None = WHERE_OPTION,
    lease: str | None = typer.Option(
        None, "--lease", metavar="UUID", help="Only if this is the lease.", show_default=False
    ),
    worker: str | None = typer.Option(
        None,
        "--worker",
        metavar="INSTANCE",
        help="Only if this worker instance holds it.",
        show_default=False,
    ),
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    yes: bool = YES_OPTION,
    output: Form | None = REPORT_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    partition: int = PARTITION_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Take running executions away from their workers.

    Another worker goes on with them. One that nobody holds is fine.

    Exit codes: 3 not found, 5 no database.
    """
    who = actor or default_actor()
    with failures_as_exit_codes():
        lease_id = None if lease is None else _lease_id(lease)
        if worker == "":
            raise InvalidInput(field="--worker", problem="must not be empty; leave it out for any")
    action = Action(
        "revoke-lease",
        (PublicState.ACTIVE,),
        lambda ff, id, version: ff.leases.revoke(
            id,
            lease_id=lease_id,
            worker_instance_id=worker,
            reason=reason,
            actor=who,
            if_version=version,
        ),
    )
    _run(action, **_choice(locals()))


def priority(
    ids: list[str] | None = OPTIONAL_IDS_ARGUMENT,
    number: str = typer.Argument(metavar="N", help="From 0 to 9000; higher runs first."),
    where: list[str] | None = WHERE_OPTION,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    yes: bool = YES_OPTION,
    output: Form | None = REPORT_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    partition: int = PARTITION_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Give waiting executions another place in the order.

    With --where, those in line unless it names states.

    Exit codes: 3 not found, 4 it does not wait, 5 no database.
    """
    who = actor or default_actor()
    with failures_as_exit_codes():
        chosen = _priority(number)
    action = Action(
        "change-priority",
        _IN_LINE,
        lambda ff, id, version: ff.executions.change_priority(
            id, chosen, reason=reason, actor=who, if_version=version
        ),
    )
    _run(action, **_choice(locals()))


def replay(
    ids: list[str] | None = OPTIONAL_IDS_ARGUMENT,
    where: list[str] | None = WHERE_OPTION,
    from_step: str | None = typer.Option(
        None,
        "--from-step",
        metavar="NAME[#N]",
        help="Forget this step (its N-th occurrence, from 0) and all that were started after it.",
    ),
    fresh: bool = typer.Option(False, "--fresh", help="Forget all steps."),
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    yes: bool = YES_OPTION,
    output: Form | None = REPORT_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    partition: int = PARTITION_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Run ended executions again, with a new attempt.

    Steps they have recorded are not done again, unless --from-step or --fresh says so. With one
    of these, an execution that is held because its steps do not fit goes on. --where must name a
    state.

    Exit codes: 3 not found, 4 not ended or replayed too often, 5 no database.
    """
    who = actor or default_actor()
    with failures_as_exit_codes():
        step, occurrence = _step(from_step)
        if step is not None and fresh:
            raise InvalidInput(field="--fresh", problem="does not go together with --from-step")
    forgets = fresh or step is not None
    action = Action(
        "replay",
        (*_ENDED, PublicState.WAITING) if forgets else _ENDED,
        lambda ff, id, version: ff.executions.replay(
            id,
            reason=reason,
            actor=who,
            from_step=step,
            from_occurrence=occurrence,
            fresh=fresh,
            if_version=version,
        ),
        is_careful=True,
    )
    _run(action, **_choice(locals()))


def retry(
    ids: list[str] | None = OPTIONAL_IDS_ARGUMENT,
    where: list[str] | None = WHERE_OPTION,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    yes: bool = YES_OPTION,
    output: Form | None = REPORT_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    partition: int = PARTITION_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Let executions go on now.

    Ended ones run again, delayed ones are due at once, held ones are unblocked. --where must
    name a state.

    Exit codes: 3 not found, 4 not ended, delayed or held, 5 no database.
    """
    who = actor or default_actor()
    action = Action(
        "retry",
        (*_ENDED, PublicState.DELAYED, PublicState.WAITING),
        lambda ff, id, version: ff.executions.retry(
            id, reason=reason, actor=who, if_version=version
        ),
        is_careful=True,
    )
    _run(action, **_choice(locals()))


def _step(text: str | None) -> tuple[str | None, int]:
    """A step and its occurrence; `load#1` is the second one named load."""
    if text is None:
        return None, 0
    name, mark, number = text.rpartition("#")
    if not mark or not (number.isascii() and number.isdecimal()):
        return text, 0
    if not name or len(number) > 9:
        raise InvalidInput(field="--from-step", problem=f"{text[:40]!r} is not NAME or NAME#N")
    return name, int(number)


def _priority(text: str) -> int:
    # Longer than any priority, it may be longer than any number.
    if not (text.isascii() and text.isdecimal()) or int(text[:10]) > MAX_PRIORITY:
        problem = f"{text[:40]!r} is not a priority, a whole number from 0 to {MAX_PRIORITY}"
        raise InvalidInput(field="N", problem=problem)
    return int(text)


def _lease_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidInput(field="--lease", problem=f"{text[:40]!r} is not a UUID") from error


def default_actor() -> str:
    """Who types this, as user@host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid{os.getuid()}"  # a container without a name for it
    return f"{user}@{socket.gethostname()}"[:200]


# How it runs


@dataclass(slots=True)
class Tally:
    """What became of a run so far."""

    words: Counter[str] = field(default_factory=Counter)
    codes: set[int] = field(default_factory=set)
    total: ExecutionCount | None = None
    started: float = field(default_factory=monotonic)
    refused: int = 0

    @property
    def handled(self) -> int:
        return self.words.total()

    def count(self, word: str, code: int = 0) -> None:
        self.words[word] += 1
        if code:
            self.refused += 1
            self.codes.add(code)

    def progress(self) -> str:
        rate = self.handled / max(monotonic() - self.started, 0.001)
        of = "" if self.total is None else f" of {self.total}"
        refused = f", {self.refused} refused" if self.refused else ""
        return f"{self.handled}{of} done{refused}, {rate:.0f}/s"

    def summary(self) -> str:
        told = ", ".join(f"{number} {word}" for word, number in self.words.most_common())
        return told or "nothing to do"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a command was asked to act on, and how."""

    ids: Sequence[ExecutionId]
    where: Where | None
    namespace: str | None
    partition: int
    url: str
    is_dry: bool
    is_confirmed: bool
    as_json: bool


def _choice(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: given[name]
        for name in (
            *("ids", "where", "dry_run", "yes", "output", "namespace", "all_namespaces"),
            *("partition", "database_url"),
        )
    }


def _run(
    action: Action,
    *,
    ids: Sequence[str] | None,
    where: Sequence[str] | None,
    dry_run: bool,
    yes: bool,
    output: Form | None,
    namespace: str | None,
    all_namespaces: bool,
    partition: int,
    database_url: str | None,
) -> None:
    with failures_as_exit_codes():
        chosen = _checked(action, ids or (), where)
        if chosen is not None and not (yes or dry_run or sys.stdin.isatty()):
            raise InvalidInput(field="--yes", problem="is needed here: there is nobody to ask")
        choice = Choice(
            ids=parse_ids(ids or ()),
            where=chosen,
            namespace=resolve_namespace(namespace, all_namespaces),
            partition=partition,
            url=resolve_database_url(database_url),
            is_dry=dry_run,
            is_confirmed=yes,
            as_json=is_json(output),
        )
        if chosen is None and not choice.ids:
            typer.echo("no ids were given", err=True)
            return
        tally = Tally()
        try:
            asyncio.run(_act(action, choice, tally))
        except KeyboardInterrupt:
            typer.echo(f"interrupted; {tally.summary()}", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except FlowFabricError:
            if tally.handled:
                typer.echo(f"stopped; {tally.summary()}", err=True)
            raise
        if tally.codes:
            raise typer.Exit(max(tally.codes))


def _checked(action: Action, ids: Sequence[str], where: Sequence[str] | None) -> Where | None:
    """The filter, if there is one, narrowed to the states the action is for."""
    if bool(ids) == bool(where):
        raise InvalidInput(field="ID", problem="give ids, or - to read them, or --where")
    if not where:
        return None
    chosen = parse(where)
    if chosen.is_everything:
        raise InvalidInput(field="--where", problem="must hold at least one condition")
    if chosen.states is None:
        if action.is_careful:
            raise InvalidInput(
                field="--where",
                problem=f"must say which states to {action.verb}, for example state=failed",
            )
        return replace(chosen, states=tuple(action.states), is_state_meant=False)
    return chosen


async def _act(action: Action, choice: Choice, tally: Tally) -> None:
    progress = Progress()
    async with FlowFabric(choice.url, namespace=choice.namespace, pool_size=AT_ONCE) as client:
        if choice.where is None:
            tally.total = ExecutionCount(len(choice.ids))
            pages = _given(client, choice.ids, choice.is_dry)
        else:
            now = await client.executions.server_time()
            filter = choice.where.resolved(now)
            # What is submitted from now on was not meant, and is not counted.
            filter = replace(filter, created_before=min(filter.created_before or now, now))
            async with Progress(for_logs=False).telling(lambda: "counting"):
                tally.total = await client.executions.count(filter, partition=choice.partition)
            if not tally.total.number:
                typer.echo(f"nothing matches: {choice.where}", err=True)
                return
            _confirm(action, choice, tally.total)
            pages = _found(client, filter, choice.partition, choice.where.is_state_meant)
        tally.started = monotonic()
        run = _Run(action, choice, client, progress, tally)
        async with progress.telling(tally.progress):
            async for page in pages:
                await run.page(page)
    if choice.is_dry:
        typer.echo(f"dry run, nothing was changed: {tally.summary()}", err=True)
    elif tally.handled > 1 or choice.where is not None:
        typer.echo(tally.summary(), err=True)


def _confirm(action: Action, choice: Choice, total: ExecutionCount) -> None:
    """Tell how many, and ask if there is somebody to ask."""
    where = " of all namespaces" if choice.namespace is None else f" of {choice.namespace}"
    told = f"{action.verb} {total} {'execution' if total.number == 1 else 'executions'}{where}: "
    told += printable(str(choice.where))
    if choice.is_dry or choice.is_confirmed:
        typer.echo(told, err=True)
    elif not typer.confirm(f"{told}\nGo on?", err=True):
        raise typer.Abort


_Page = list[tuple[ExecutionId, PublicState | None, int | None]]


async def _given(
    client: FlowFabric, ids: Sequence[ExecutionId], is_dry: bool
) -> AsyncIterator[_Page]:
    for start in range(0, len(ids), 500):
        part = ids[start : start + 500]
        yield [(id, await client.executions.state(id) if is_dry else None, None) for id in part]


async def _found(
    client: FlowFabric, filter: ExecutionFilter, partition: int, is_state_meant: bool
) -> AsyncIterator[_Page]:
    """Pages of what matches. Where no state was named, one that has moved on is meant as well."""
    async for page in matching(client, filter, partition):
        yield [(one.id, one.public_state, one.version if is_state_meant else None) for one in page]


@dataclass(slots=True)
class _Run:
    """Acts on pages of ids, some at a time, and tells what became of each."""

    action: Action
    choice: Choice
    client: FlowFabric
    progress: Progress
    tally: Tally
    # What makes it pointless to go on.
    stopped_by: FlowFabricError | None = None

    async def page(self, page: _Page) -> None:
        if self.choice.is_dry:
            for id, state, _ in page:
                self._foretell(id, state)
            return
        chosen = iter([(id, version) for id, _, version in page])
        await asyncio.gather(*(self._one_by_one(chosen) for _ in range(AT_ONCE)))
        if self.stopped_by is not None:
            raise self.stopped_by

    async def _one_by_one(self, chosen: Iterator[tuple[ExecutionId, int | None]]) -> None:
        for id, version in chosen:
            if self.stopped_by is not None:
                return
            try:
                answer = await self.action.do(self.client, id, version)
            except (InvalidInput, SchemaError) as error:
                # Wrong for one, wrong for all; but each has steps of its own.
                if isinstance(error, InvalidInput) and error.field == "from_step":
                    self._refused(id, error)
                else:
                    self.stopped_by = error
            except FlowFabricError as error:
                if isinstance(error, Unavailable) and not isinstance(error, RetryExhausted):
                    self.stopped_by = error
                else:
                    self._refused(id, error)
            else:
                self._done(answer)

    def _done(self, answer: Steered) -> None:
        word = answer.outcome.replace("_", " ")
        if answer.outcome == "already_applied" and self.choice.where is not None:
            word = "moved on, left alone"
        self.tally.count(word)
        if self.choice.as_json:
            self.progress.say(
                json_line(
                    {
                        "id": answer.id,
                        "action": self.action.verb,
                        "outcome": answer.outcome,
                        "public_state": answer.public_state,
                        "version": answer.version,
                        "detail": answer.detail or None,
                    }
                )
            )
        elif self._has_lines:
            detail = " ".join(f"{key}={value}" for key, value in answer.detail.items())
            self.progress.say(printable(f"{answer.id}  {word}  {detail}".rstrip()))

    def _refused(self, id: ExecutionId, error: FlowFabricError) -> None:
        word = error.name or type(error).__name__
        self.tally.count(word.replace("_", " "), exit_code(error))
        if isinstance(error, ExecutionNotFound):
            told = missing(id, self.choice.namespace)
        else:
            facts = {key: value for key, value in error.facts.items() if key != "id"}
            told = f"{id}: {type(error).explained(facts)}"
        if self.choice.as_json:
            self.progress.say(
                json_line(
                    {"id": id, "action": self.action.verb, "outcome": word, "error": str(told)}
                )
            )
        else:
            self.progress.complain(printable(told))

    def _foretell(self, id: ExecutionId, state: PublicState | None) -> None:
        if state is None:
            self._refused(id, ExecutionNotFound(id=str(id)))
            return
        fits = state in self.action.states
        outcome = f"would {self.action.verb}" if fits else "would be refused"
        self.tally.count(outcome)
        if self.choice.as_json:
            facts = {
                "id": id,
                "action": self.action.verb,
                "outcome": outcome.replace(" ", "_").replace("-", "_"),
                "public_state": state,
            }
            self.progress.say(json_line(facts))
        else:
            self.progress.say(f"{id}  {outcome}  (it is {state})")

    @property
    def _has_lines(self) -> bool:
        total = self.tally.total
        return (
            self.choice.where is None
            or not sys.stdout.isatty()
            or (total is not None and not total.is_more and total.number <= LINES_SHOWN)
        )
