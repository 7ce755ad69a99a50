"""`flowfabric cancel`, `revoke-lease`, `priority`, `replay`, `retry`, `resume`: change executions.

Exit codes: 0: all done. 1: not confirmed. 2: wrong usage. 3: no such execution. 4: an execution was
refused because of its state. 5: no database, or an execution stayed locked. 130: interrupted. If
several executions are refused, the highest code counts.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Annotated, Any
from uuid import UUID

import typer

from flowfabric.cli.executions import matching, unknown_tasks
from flowfabric.cli.ids import (
    OPTIONAL_IDS_ARGUMENT,
    PARTITION_OPTION,
    find_execution,
    missing,
    parse_ids,
)
from flowfabric.cli.options import EXIT_INTERRUPTED, WHERE_OPTION, Change, Namespaces, exit_code
from flowfabric.cli.output import Printer, Progress
from flowfabric.client import FlowFabric
from flowfabric.client.detail_reads import located
from flowfabric.client.filters import Where, parse
from flowfabric.core.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    MissingRole,
    RetryExhausted,
    SchemaError,
    Unavailable,
)
from flowfabric.core.execution import ExecutionCount, ExecutionFilter, OperationAnswer
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.text import printable

AT_ONCE = 8
# On a terminal, if a filter matches more executions than this, only refusals are printed.
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

DRY_RUN_OPTION = typer.Option("--dry-run", help="Print what would change, and change nothing.")


@dataclass(frozen=True, kw_only=True)
class Choice(Namespaces):
    """The options of all commands here: the executions to change, --dry-run and --yes."""

    ids: Annotated[list[str] | None, OPTIONAL_IDS_ARGUMENT] = None
    where: Annotated[list[str] | None, WHERE_OPTION] = None
    dry_run: Annotated[bool, DRY_RUN_OPTION] = False
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Do not ask for confirmation. Required if --where is used and there is no "
            "terminal.",
        ),
    ] = False
    partition: Annotated[int | None, PARTITION_OPTION] = None


@dataclass(frozen=True, slots=True)
class Action:
    """One operation on executions, and the states in which it is allowed.

    If `is_careful` is true, a filter must contain a state or held=yes, so that nobody changes more
    executions than intended. `do` gets the version that the execution had when the filter matched
    it, or None. If the version has changed since then, `do` skips the execution.
    """

    verb: str
    states: Sequence[PublicState]
    do: Callable[[FlowFabric, ExecutionId, int | None], Awaitable[OperationAnswer]]
    is_careful: bool = False


def cancel(choice: Choice, report: Printer, change: Change) -> int:
    """End executions as cancelled.

    If --where names no state, only unfinished executions are selected.

    Exit codes: 3: not found. 4: already ended. 5: no database.
    """
    action = Action(
        "cancel",
        _UNFINISHED,
        lambda ff, id, version: ff.executions.cancel(
            id, reason=change.reason, actor=change.who, if_version=version
        ),
    )
    return _run(action, choice, report)


def revoke_lease(
    choice: Choice,
    report: Printer,
    change: Change,
    lease: str | None = typer.Option(
        None,
        "--lease",
        metavar="UUID",
        help="Choose only executions with this lease.",
        show_default=False,
    ),
    worker: str | None = typer.Option(
        None,
        "--worker",
        metavar="INSTANCE",
        help="Choose only executions that this worker instance has leased.",
        show_default=False,
    ),
) -> int:
    """Revoke the leases of running executions.

    Other workers reclaim the executions. An execution without a lease stays unchanged.

    Exit codes: 3: not found. 5: no database.
    """
    lease_id = None if lease is None else _lease_id(lease)
    if worker == "":
        raise InvalidInput(field="--worker", problem="must not be empty; omit it for any worker")
    action = Action(
        "revoke-lease",
        (PublicState.ACTIVE,),
        lambda ff, id, version: ff.leases.revoke(
            id,
            lease_id=lease_id,
            worker_instance_id=worker,
            reason=change.reason,
            actor=change.who,
            if_version=version,
        ),
    )
    return _run(action, choice, report)


def priority(
    choice: Choice,
    report: Printer,
    change: Change,
    number: str = typer.Argument(
        metavar="N", help="Set this priority, from 0 to 9000. Higher priorities run first."
    ),
) -> int:
    """Change the priority of waiting executions.

    An execution that sleeps, is delayed or has no worker also counts as waiting. If --where names
    no state, only waiting executions are selected.

    Exit codes: 3: not found. 4: running, suspended or ended. 5: no database.
    """
    chosen = _priority(number)
    action = Action(
        "change-priority",
        _IN_LINE,
        lambda ff, id, version: ff.executions.change_priority(
            id, chosen, reason=change.reason, actor=change.who, if_version=version
        ),
    )
    return _run(action, choice, report)


def replay(
    choice: Choice,
    report: Printer,
    change: Change,
    from_step: str | None = typer.Option(
        None,
        "--from-step",
        metavar="NAME[#N]",
        help="Forget the step NAME and all steps that started after it. NAME#N is occurrence N of "
        "the step, counted from 0.",
    ),
    fresh: bool = typer.Option(False, "--fresh", help="Forget all steps."),
) -> int:
    """Run ended executions again, with a new attempt.

    Recorded steps do not run again, unless you pass --from-step or --fresh. With one of these
    options, an execution can also be replayed if it is held because the code no longer fits its
    recorded steps. --where must contain a state or held=yes.

    Exit codes: 3: not found. 4: not ended, or no replay is left. 5: no database.
    """
    step, occurrence = _step(from_step)
    if step is not None and fresh:
        raise InvalidInput(field="--fresh", problem="cannot be combined with --from-step")
    forgets = fresh or step is not None
    action = Action(
        "replay",
        (*_ENDED, PublicState.WAITING) if forgets else _ENDED,
        lambda ff, id, version: ff.executions.replay(
            id,
            reason=change.reason,
            actor=change.who,
            from_step=step,
            from_occurrence=occurrence,
            fresh=fresh,
            if_version=version,
        ),
        is_careful=True,
    )
    return _run(action, choice, report)


def retry(choice: Choice, report: Printer, change: Change) -> int:
    """Make executions run now.

    Ended executions are replayed. The delay of delayed executions ends. Held executions can be
    claimed again. --where must contain a state or held=yes.

    Exit codes: 3: not found. 4: already eligible, running, suspended or waiting for other
    executions, or no replay is left. 5: no database.
    """
    action = Action(
        "retry",
        (*_ENDED, PublicState.DELAYED, PublicState.WAITING),
        lambda ff, id, version: ff.executions.retry(
            id, reason=change.reason, actor=change.who, if_version=version
        ),
        is_careful=True,
    )
    return _run(action, choice, report)


def resume(choice: Choice, report: Printer, change: Change) -> int:
    """Resume suspended executions without the signal that they wait for.

    Each wait ends with its default; a wait without a default raises WaitTimeout in the handler.

    Exit codes: 3: not found. 4: not suspended. 5: no database.
    """
    action = Action(
        "resume",
        (PublicState.SUSPENDED,),
        lambda ff, id, version: ff.signals.resume(
            id, reason=change.reason, actor=change.who, if_version=version
        ),
    )
    return _run(action, choice, report)


def _step(text: str | None) -> tuple[str | None, int]:
    """Parse NAME or NAME#N. `load#1` is the second step named load."""
    if text is None:
        return None, 0
    name, mark, number = text.rpartition("#")
    if not mark or not (number.isascii() and number.isdecimal()):
        return text, 0
    if not name or len(number) > 9:
        raise InvalidInput(field="--from-step", problem=f"{text[:40]!r} is not NAME or NAME#N")
    return name, int(number)


def _priority(text: str) -> int:
    # int() refuses very long numbers.
    if not (text.isascii() and text.isdecimal()) or int(text[:10]) > MAX_PRIORITY:
        problem = f"{text[:40]!r} is not a priority, a whole number from 0 to {MAX_PRIORITY}"
        raise InvalidInput(field="N", problem=problem)
    return int(text)


def _lease_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidInput(field="--lease", problem=f"{text[:40]!r} is not a UUID") from error


@dataclass(slots=True)
class Tally:
    """Counts of the executions handled so far."""

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
        counts = ", ".join(f"{number} {word}" for word, number in self.words.most_common())
        return counts or "nothing to do"


def _run(action: Action, choice: Choice, report: Printer) -> int:
    where = _checked(action, choice.ids or (), choice.where)
    if where is not None and not (choice.yes or choice.dry_run or sys.stdin.isatty()):
        raise InvalidInput(field="--yes", problem="is required without a terminal")
    ids = parse_ids(choice.ids or ())
    client = choice.client(pool_size=AT_ONCE)
    if where is None and not ids:
        typer.echo("no ids were given", err=True)
        return 0
    run = _Run(action, choice, report, client, where)
    tally = run.tally
    try:
        asyncio.run(run.act(ids))
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {tally.summary()}", err=True)
        return EXIT_INTERRUPTED
    except FlowFabricError:
        if tally.handled:
            typer.echo(f"stopped; {tally.summary()}", err=True)
        raise
    return max(tally.codes, default=0)


def _checked(action: Action, ids: Sequence[str], where: Sequence[str] | None) -> Where | None:
    """Return the filter that --where gives, or None if ids were given.

    If `action.is_careful` is true, a filter with neither states nor held=yes is refused. For other
    actions, such a filter gets the states in which the action is allowed.
    """
    if bool(ids) == bool(where):
        raise InvalidInput(field="ID", problem="give ids or --where, or - to read ids from stdin")
    if not where:
        return None
    chosen = parse(where)
    if chosen.is_everything:
        raise InvalidInput(field="--where", problem="must contain at least one condition")
    # A filter for held executions needs no state, because all held executions are in one state.
    if chosen.states is None and not chosen.held:
        if action.is_careful:
            raise InvalidInput(
                field="--where",
                problem=f"must name the states to {action.verb}, for example state=failed",
            )
        return replace(chosen, states=tuple(action.states), is_state_meant=False)
    return chosen


_Page = list[tuple[ExecutionId, PublicState | None, int | None]]


async def _given_pages(
    client: FlowFabric, ids: Sequence[ExecutionId], is_dry: bool
) -> AsyncIterator[_Page]:
    for start in range(0, len(ids), 500):
        part = ids[start : start + 500]
        yield [(id, await client.executions.state(id) if is_dry else None, None) for id in part]


async def _matching_pages(
    client: FlowFabric, filter: ExecutionFilter, partition: int | None, is_state_meant: bool
) -> AsyncIterator[_Page]:
    """Yield pages of matching executions.

    If the user named a state (`is_state_meant`), each execution comes with its version. Otherwise
    the version is None.
    """
    async for page in matching(client, filter, partition):
        yield [
            (each.id, each.public_state, each.version if is_state_meant else None) for each in page
        ]


@dataclass(slots=True)
class _Run:
    """Carries out an action on all chosen executions, several at a time, and reports each."""

    action: Action
    choice: Choice
    report: Printer
    client: FlowFabric
    where: Where | None
    progress: Progress = field(default_factory=Progress)
    tally: Tally = field(default_factory=Tally)
    # The error that stopped the command, because every further execution would get it, too.
    stopped_by: FlowFabricError | None = None

    async def act(self, texts: Sequence[str]) -> None:
        async with self.client:
            found = [await find_execution(self.client, text) for text in texts]
            ids = list(dict.fromkeys(found))
            if self.where is None:
                self.tally.total = ExecutionCount(len(ids))
                pages = _given_pages(self.client, ids, self.choice.dry_run)
            else:
                now = await self.client.executions.server_time()
                filter, partition = await located(
                    self.client, self.where.resolved(now), self.choice.partition
                )
                # Leave out executions that are submitted from now on.
                filter = replace(filter, created_before=min(filter.created_before or now, now))
                async with Progress(for_logs=False).during(lambda: "counting"):
                    self.tally.total = await self.client.executions.count(
                        filter, partition=partition
                    )
                if not self.tally.total.number:
                    hint = await unknown_tasks(self.client, self.where.tasks)
                    typer.echo(hint or f"nothing matches: {self.where}", err=True)
                    return
                self._confirm(self.tally.total)
                pages = _matching_pages(self.client, filter, partition, self.where.is_state_meant)
            self.tally.started = monotonic()
            async with self.progress.during(self.tally.progress):
                async for page in pages:
                    await self.page(page)
        if self.choice.dry_run:
            typer.echo(f"dry run, nothing was changed: {self.tally.summary()}", err=True)
        elif self.tally.handled > 1 or self.where is not None:
            typer.echo(self.tally.summary(), err=True)

    def _confirm(self, total: ExecutionCount) -> None:
        """Print how many executions match.

        Ask for confirmation, unless --yes or --dry-run is given.
        """
        space = self.client.namespace
        noun = "execution" if total.number == 1 else "executions"
        where = f"{'all namespaces' if space is None else space}: {printable(str(self.where))}"
        question = f"{self.action.verb} {total} {noun} of {where}"
        if self.choice.dry_run or self.choice.yes:
            typer.echo(question, err=True)
        elif not typer.confirm(f"{question}\nContinue?", err=True):
            raise typer.Abort

    async def page(self, page: _Page) -> None:
        if self.choice.dry_run:
            for id, state, _ in page:
                self._predict(id, state)
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
            except (InvalidInput, MissingRole, SchemaError) as error:
                # An error about `from_step` depends on the steps of this execution. Any other
                # of these errors would hit every execution, so stop.
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

    def _done(self, answer: OperationAnswer) -> None:
        word = answer.outcome.replace("_", " ")
        if answer.outcome == "already_applied" and self.where is not None:
            word = "changed in between, skipped"
        self.tally.count(word)
        detail = " ".join(f"{key}={value}" for key, value in answer.detail.items())
        self._print(
            answer.id,
            f"{answer.id.uuid}  {word}  {detail}" if self._has_lines else None,
            outcome=answer.outcome,
            public_state=answer.public_state,
            version=answer.version,
            detail=answer.detail or None,
        )

    def _refused(self, id: ExecutionId, error: FlowFabricError) -> None:
        word = error.name or type(error).__name__
        self.tally.count(word.replace("_", " "), exit_code(error))
        if isinstance(error, ExecutionNotFound):
            problem = missing(id, self.client.namespace)
        else:
            facts = {key: value for key, value in error.facts.items() if key != "id"}
            problem = f"{id.uuid}: {type(error).explained(facts)}"
        if self.report.is_json:
            self._print(id, None, outcome=word, error=problem)
        else:
            self.progress.complain(printable(problem))

    def _predict(self, id: ExecutionId, state: PublicState | None) -> None:
        if state is None:
            self._refused(id, ExecutionNotFound(id=str(id)))
            return
        is_allowed = state in self.action.states
        outcome = f"would {self.action.verb}" if is_allowed else "would be refused"
        self.tally.count(outcome)
        self._print(
            id,
            f"{id.uuid}  {outcome}  (it is {state})",
            outcome=outcome.replace(" ", "_").replace("-", "_"),
            public_state=state,
        )

    def _print(self, id: ExecutionId, line: str | None, **facts: Any) -> None:
        """Print the outcome for one execution.

        With -o json, print `facts` as a JSON line. Otherwise print `line`, or nothing if `line` is
        None.
        """
        if self.report.is_json:
            self.progress.say(json_line({"id": id, "action": self.action.verb, **facts}))
        elif line is not None:
            self.progress.say(printable(line).rstrip())

    @property
    def _has_lines(self) -> bool:
        total = self.tally.total
        return (
            self.where is None
            or not sys.stdout.isatty()
            or (total is not None and not total.is_more and total.number <= LINES_SHOWN)
        )
