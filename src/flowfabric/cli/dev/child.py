"""The worker that `flowfabric dev` starts anew after every save.

It says over a socket what it has loaded, is told which database to use, and ends when it is told to
or when whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import typer

import flowfabric
from flowfabric.app.app import App
from flowfabric.app.task import Task
from flowfabric.cli.dev.watch import project_files
from flowfabric.cli.imports import load_app
from flowfabric.cli.output import complain
from flowfabric.cli.worker import Signals, serve
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.handlers import Context
from flowfabric.tasks import CallNext
from flowfabric.telemetry import WORKER_LOGGER, install_logging
from flowfabric.worker import Worker

# What runs when a file is saved gets this long; then it is given back and runs on the new code.
DRAIN = timedelta(seconds=2)
LOOK_SECONDS = 1.0
# Executions told of in a second; nobody reads more.
MOST_TOLD = 20
EXIT_BROKEN = 3
# Stop at once; SIGTERM lets running executions finish.
HURRY = signal.SIGUSR1

_MACHINERY = tuple(str(Path(str(one.__file__)).parent) for one in (asyncio, flowfabric))
_EXAMPLES: dict[Any, Any] = {str: "text", int: 1, float: 1.5, bool: True, list: [], dict: {}}


def main() -> None:
    parent = socket.socket(fileno=int(sys.argv[1]))
    lines = parent.makefile("r")
    wanted = json.loads(lines.readline())
    install_logging(wanted["log_format"], wanted["log_level"])

    def tell(**facts: Any) -> None:
        parent.sendall(json.dumps(facts).encode() + b"\n")

    try:
        app = load_app(wanted["app"])
        told = _told(app, wanted["app"])
    except typer.BadParameter as error:
        complain(error.message)
        sys.exit(EXIT_BROKEN)
    except FlowFabricError as error:
        complain(error)
        sys.exit(EXIT_BROKEN)
    except typer.Exit:
        sys.exit(EXIT_BROKEN)
    except KeyboardInterrupt:
        sys.exit(0)
    tell(files=project_files(), **told)
    answer = lines.readline()
    if not answer:
        return
    app.middleware(Told())
    drain = min(app.settings.drain_timeout, DRAIN)
    app.settings = replace(
        app.settings, database_url=json.loads(answer)["database_url"], drain_timeout=drain
    )
    try:
        asyncio.run(_work(app, parent, tell, wanted))
    except InvalidInput as error:
        complain(error)
        sys.exit(EXIT_BROKEN)
    except FlowFabricError as error:
        complain(error)
        sys.exit(1)
    except NotBegun as error:
        _explain(error.__cause__ or error)
        sys.exit(EXIT_BROKEN)
    except KeyboardInterrupt:
        pass


class NotBegun(Exception):
    """A startup hook, or what makes something for all of the worker, has failed."""


async def _work(
    app: App, parent: socket.socket, tell: Callable[..., None], wanted: dict[str, Any]
) -> None:
    loop = asyncio.get_running_loop()
    # Ctrl-C reaches the whole terminal; whoever started us says what it means.
    loop.add_signal_handler(signal.SIGINT, lambda: None)

    def armed(worker: Worker) -> None:
        def stop() -> None:
            loop.remove_reader(parent)
            worker.stop()

        # Nothing more is sent: if there is something to read, it is the end.
        loop.add_reader(parent, stop)

    def begun() -> None:
        tell(is_working=True, files=project_files())
        watching.append(loop.create_task(_watch(tell)))

    watching: list[asyncio.Task[None]] = []
    try:
        signals = Signals([signal.SIGTERM], at_once=HURRY)
        await serve(app, signals, armed=armed, begun=begun, **wanted["options"])
    except FlowFabricError:
        raise
    except Exception as error:
        if watching:
            raise
        raise NotBegun from error


def _explain(error: BaseException) -> None:
    """Tell why the worker could not start: the frames of the project, not those of the machinery
    that lead to them."""
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    typer.echo("".join(lines).rstrip(), err=True)
    complain("the worker could not start")


def _is_machinery(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_MACHINERY)


class Told:
    """Middleware that tells what has completed: all of it, or how much if it is a lot."""

    def __init__(self) -> None:
        self._second = 0
        self._number = 0

    async def __call__(self, ctx: Context, call_next: CallNext) -> Any:
        value = await call_next()
        second = int(monotonic())
        if second != self._second:
            if self._number > MOST_TOLD:
                WORKER_LOGGER.info("and %s more completed", self._number - MOST_TOLD)
            self._second, self._number = second, 0
        self._number += 1
        if self._number <= MOST_TOLD:
            WORKER_LOGGER.info("%s completed", ctx.task)
        return value


async def _watch(tell: Callable[..., None]) -> None:
    """Tell of modules that are imported later."""
    number = len(sys.modules)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if len(sys.modules) != number:
            number = len(sys.modules)
            try:
                tell(files=project_files())
            except OSError:
                return


def _told(app: App, reference: str) -> dict[str, Any]:
    """What whoever started us has to know about the app."""
    if not app.tasks:
        raise InvalidInput(field="tasks", problem="this app has no task; decorate one first")
    return {
        "tasks": sorted(app.tasks),
        "example": _example(app, reference.partition(":")[0]),
        "database_url": app.settings.database_url,
        "project": str(app.project),
    }


def _example(app: App, module_name: str) -> str | None:
    """A command that submits one of the tasks."""
    module = sys.modules[module_name]
    for name, value in vars(module).items():
        if isinstance(value, Task) and app.tasks.get(value.name) is value:
            arguments = _arguments(value)
            given = f" '{json.dumps(arguments, ensure_ascii=False)}'" if arguments else ""
            return f"flowfabric submit {module_name}:{name}{given} --wait"
    return None


def _arguments(task: Task[..., Any, Any]) -> dict[str, Any]:
    hints = inspect.get_annotations(task.spec.function, eval_str=True)
    return {
        name: "Ada" if name == "name" else _EXAMPLES.get(hints.get(name), "…")
        for name, parameter in task.spec.signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
