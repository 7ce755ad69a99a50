"""`flowfabric submit` and `flowfabric result`: submit an execution, and print its result."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer

from flowfabric.app.run import Run
from flowfabric.app.task import Task
from flowfabric.cli.ids import ID_ARGUMENT, find_execution, missing
from flowfabric.cli.imports import TASK_ARGUMENT, load_task, near
from flowfabric.cli.options import EXIT_CONFLICT, TRACE_OPTION, Endpoint, Namespaces, exit_code
from flowfabric.cli.output import Form, Printer, complain, harmless, say
from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionEnded,
    ExecutionFailed,
    ExecutionNotFound,
    InvalidInput,
    ResultTimeout,
)
from flowfabric.core.execution import OnConflict, check_tags
from flowfabric.core.ids import ExecutionId, parse_id
from flowfabric.core.times import span, when
from flowfabric.core.trace import LIBRARY, fold
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.text import printable

EXIT_FAILED = 1


class Unique(StrEnum):
    """How long an idempotency key is valid."""

    WINDOW = "window"
    UNFINISHED = "unfinished"


WAIT_OPTION = typer.Option(
    False, "--wait", help="Wait until the execution has ended, and print its result as JSON."
)
TIMEOUT_OPTION = typer.Option(
    None,
    "--timeout",
    metavar="30s",
    help="With --wait, stop waiting after this time. The execution itself continues.",
    show_default=False,
)


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """Option group: the options of a submission."""

    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="Submit at most once with this key; a repeat returns the same execution.",
        ),
    ] = None
    unique: Annotated[
        Unique | None,
        typer.Option(
            "--unique",
            help="Keep the key for a day after the submission (window), or until the execution has "
            "ended (unfinished). Default: window.",
            show_default=False,
        ),
    ] = None
    on_conflict: Annotated[
        OnConflict | None,
        typer.Option(
            "--on-conflict",
            help="Choose what to do if the key was used with other arguments: refuse (raise), or "
            "return the earlier execution (existing). Default: raise.",
            show_default=False,
        ),
    ] = None
    lane: Annotated[
        str | None,
        typer.Option("--lane", "-l", help="Submit to this lane. Default: the lane of the task."),
    ] = None
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            "-p",
            help="Set the priority, 0 to 9000, higher first. Default: the priority of the task.",
        ),
    ] = None
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay",
            metavar="10m",
            help="Start after a time such as 30s, 10m or 7d, or at an ISO time. Default: now.",
        ),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="2h",
            help="Expire the execution after this time, counted from the submission.",
        ),
    ] = None
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TEAM.NAME=VALUE", help="Add a tag; may be repeated."),
    ] = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as keyword arguments of `Task.using`."""
        if self.unique is not None and self.key is None:
            raise InvalidInput(field="--unique", problem="requires --key")
        if self.on_conflict is not None and self.key is None:
            raise InvalidInput(field="--on-conflict", problem="requires --key")
        options: dict[str, Any] = {"key": self.key, "lane": self.lane, "priority": self.priority}
        options["unique"] = None if self.unique is None else str(self.unique)
        options["on_conflict"] = None if self.on_conflict is None else str(self.on_conflict)
        if self.delay is not None:
            moment = when(self.delay, "delay")
            options["delayed_until" if isinstance(moment, datetime) else "delay"] = moment
        if self.deadline is not None:
            options["deadline"] = span(self.deadline, "deadline")
        if self.tags:
            options["tags"] = _tags(self.tags)
        return options


def submit(
    database: Endpoint,
    printer: Printer,
    task: str = TASK_ARGUMENT,
    arguments: str = typer.Argument(
        "{}",
        metavar="JSON",
        help="Arguments as JSON: an object (by name), an array (by position), or one value. "
        "Use `-` to read them from stdin.",
        show_default=False,
    ),
    wait: bool = WAIT_OPTION,
    stream: bool = typer.Option(
        False, "--stream", help="With --wait, also print on stderr what the execution streams."
    ),
    timeout: str | None = TIMEOUT_OPTION,
    *,
    options: SubmitOptions,
) -> int:
    """Submit an execution of a task, and print its id. With --wait, print its result.

    Exit codes: 0: submitted or completed. 1: failed, cancelled or expired. 2: wrong usage. 4: the
    key was used with other arguments, or the execution has not ended within --timeout. 5: no
    database.
    """
    seconds = _seconds(timeout, wait)
    if stream and not wait:
        raise InvalidInput(field="--stream", problem="requires --wait")
    chosen = options.arguments
    values = _values(arguments)
    loaded = load_task(task)
    args, kwargs = bind_arguments(loaded, values)
    from flowfabric.embedded import exists

    settings = loaded.app.settings
    if database.database_url is not None:
        loaded.app.settings = replace(settings, database_url=database.database_url, url=None)
    elif database.url is not None:
        loaded.app.settings = replace(settings, database_url=None, url=database.server_url)
    elif settings.url is not None:
        pass
    elif exists(loaded.app.project):
        loaded.app.settings = replace(loaded.app.settings, embedded=True)
    configured = loaded.using(**chosen)
    as_json = printer.output is Form.JSON
    return asyncio.run(
        _submit(configured, args, kwargs, wait, seconds, as_json, task, stream=stream)
    )


async def result(
    database: Namespaces,
    id: Annotated[str, ID_ARGUMENT],
    wait: bool = WAIT_OPTION,
    timeout: str | None = TIMEOUT_OPTION,
    trace: Annotated[bool, TRACE_OPTION] = False,
) -> int:
    """Print the result of an execution as JSON, or the traceback of its failure.

    Exit codes: 0: completed. 1: failed, cancelled, expired or skipped. 3: no such execution. 4: not
    ended yet. 5: no database.
    """
    seconds = _seconds(timeout, wait)
    parse_id(id)
    async with database.client() as client:
        execution_id = await find_execution(client, id)
        info = await client.executions.info(execution_id)
        if info is None:
            complain(missing(execution_id, client.namespace))
            return exit_code(ExecutionNotFound())
        if not wait and not info.public_state.is_terminal:
            complain(f"it has not ended yet, it is {info.public_state}; use --wait to wait for it")
            return EXIT_CONFLICT
        return await _conclude(client, execution_id, info.task, seconds, with_trace=trace)


# Arguments


def bind_arguments(
    task: Task[..., Any, Any], values: dict[str, Any] | list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bind values to the parameters of a task. If an argument is wrong, raise InvalidInput."""
    signature = task.spec.signature
    takes = f"{task.name} takes {_signature(signature)}"
    parameters = signature.parameters
    gathers = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if isinstance(values, dict) and not gathers:
        for name in values:
            if name not in parameters:
                hint = near(name, parameters)
                raise InvalidInput(
                    field=name, problem=f"there is no such parameter{hint or ';'} {takes}"
                )
    args, kwargs = ((), values) if isinstance(values, dict) else (tuple(values), {})
    try:
        arguments = signature.bind(*args, **kwargs)
    except TypeError as error:
        missing_names = [
            name
            for index, (name, p) in enumerate(parameters.items())
            if p.default is p.empty
            and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            and name not in kwargs
            and index >= len(args)
        ]
        if missing_names:
            are = "is" if len(missing_names) == 1 else "are"
            raise InvalidInput(
                field=", ".join(missing_names), problem=f"{are} missing; {takes}"
            ) from error
        raise InvalidInput(field="JSON", problem=f"{error}; {takes}") from error
    return arguments.args, arguments.kwargs


def _signature(signature: inspect.Signature) -> str:
    shown = []
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        hint = "" if annotation is parameter.empty else f": {_hint(annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        star = ""
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = "*"
        elif parameter.kind is parameter.VAR_KEYWORD:
            star = "**"
        shown.append(f"{star}{parameter.name}{hint}{default}")
    return ", ".join(shown) if shown else "no arguments"


def _hint(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _values(text: str) -> dict[str, Any] | list[Any]:
    source = sys.stdin.read() if text == "-" else text
    try:
        value = json.loads(source)
    except json.JSONDecodeError as error:
        raise InvalidInput(field="JSON", problem=_json_problem(source, error)) from error
    except RecursionError as error:
        raise InvalidInput(field="JSON", problem="is nested too deeply") from error
    # A value that is not an object or an array is the only argument.
    return value if isinstance(value, dict | list) else [value]


def _json_problem(source: str, error: json.JSONDecodeError) -> str:
    if not source.strip():
        return "is empty; write {} for no arguments"
    where = f"character {error.pos + 1}"
    if "\n" in source:
        where = f"line {error.lineno}, character {error.colno}"
    around = source[max(error.pos - 12, 0) : error.pos + 12]
    hint = ""
    if source.isascii() and source.strip().replace("_", "").replace("-", "").isalnum():
        hint = f"""; a text needs its own quotes: '"{source.strip()}"'"""
    elif "'" in source and '"' not in source:
        hint = "; texts and names need double quotes"
    return f"{error.msg.lower()} at {where}, near {printable(around)!r}{hint}"


def _tags(texts: list[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise InvalidInput(field="tag", problem=f"{text!r} is not of the form team.name=value")
        if name in tags:
            raise InvalidInput(field="tag", problem=f"{name} is given twice")
        tags[name] = value
    check_tags(tags)
    return tags


def _seconds(timeout: str | None, wait: bool) -> timedelta | None:
    if timeout is None:
        return None
    if not wait:
        raise InvalidInput(field="--timeout", problem="requires --wait")
    return span(timeout, "timeout")


async def _submit(
    task: Task[..., Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wait: bool,
    timeout: timedelta | None,
    as_json: bool,
    reference: str,
    *,
    stream: bool,
) -> int:
    app = task.app
    try:
        run = await task.submit(*args, **kwargs)
        if run.is_duplicate:
            typer.echo("the key was used before: this is its execution", err=True)
        if not wait:
            facts = {"id": run.id, "task": run.task, "is_duplicate": run.is_duplicate}
            say(json_line(facts) if as_json else str(run.id.uuid))
            return 0
        typer.echo(str(run.id.uuid), err=True)
        client = await app.client()
        await _warn_without_worker(client, task, reference)
        return await _conclude(client, run.id, run.task, timeout, stream=stream)
    finally:
        await app.close()


async def _stream(client: FlowFabric, id: ExecutionId, timeout: timedelta | None) -> bool:
    """Print what the execution streams until it has ended.

    Return False if it has not ended within `timeout`.
    """
    from flowfabric.cli.tail import FramePrinter

    try:
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
            await FramePrinter(to_stderr=True).follow(client, id)
    except TimeoutError:
        return False
    return True


async def _warn_without_worker(
    client: FlowFabric, task: Task[..., Any, Any], reference: str
) -> None:
    """Warn if no live worker can run the task."""
    for worker in await client.workers.list():
        if worker.tasks is None or task.name in worker.tasks:
            return
    module = reference.partition(":")[0]
    typer.echo(f"no worker runs {task.name}; start one: flowfabric dev {module}:app", err=True)


async def _conclude(
    client: FlowFabric,
    id: ExecutionId,
    task: str,
    timeout: timedelta | None,
    *,
    with_trace: bool = False,
    stream: bool = False,
) -> int:
    """Wait until the execution has ended, print its result, and return the exit code."""

    async def the_client() -> FlowFabric:
        return client

    run: Run[bytes | None] = Run(id, task, the_client, lambda stored: stored, call=_not_here)
    try:
        is_late = stream and not await _stream(client, id, timeout)
        stored = await run.result(timedelta(0) if is_late else timeout)
    except ExecutionEnded as error:
        if isinstance(error, ExecutionFailed) and error.trace:
            library = str(error.facts.get("library") or LIBRARY)
            trace = error.trace if with_trace else fold(error.trace, library)
            typer.echo(harmless(trace.rstrip()), err=True)
        complain(str(error).partition("\n")[0])
        typer.echo(f"  details: flowfabric show {id.uuid}", err=True)
        return EXIT_FAILED
    except ResultTimeout as error:
        seconds = "" if timeout is None else f" within {timeout.total_seconds():g} s"
        state = error.facts.get("state") or "unknown"
        complain(f"{task} has not ended{seconds}, it is {state}")
        typer.echo(f"  it continues; later: flowfabric result {id.uuid} --wait", err=True)
        return EXIT_CONFLICT
    except asyncio.CancelledError:
        typer.echo(f"it continues; later: flowfabric result {id.uuid} --wait", err=True)
        raise
    text = _result_text(stored)
    say(harmless(text) if sys.stdout.isatty() else text)
    return 0


def _result_text(stored: bytes | None) -> str:
    if stored is None:
        return "null"
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(stored).decode()})


def _not_here(*_: Any) -> NoReturn:
    raise RuntimeError("this command has an event loop")
