"""The worker that `flowfabric dev` restarts after every save.

Over a socket, the worker sends the list of loaded files and receives the URL of the database. The
worker ends when the command stops it, or when the command has ended.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, get_origin

import typer

import flowfabric
from flowfabric.app.app import App
from flowfabric.app.task import Task
from flowfabric.cli.dev.watch import project_files
from flowfabric.cli.imports import load_app, print_traceback
from flowfabric.cli.output import complain
from flowfabric.cli.worker import Signals, serve
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.handlers import Context
from flowfabric.tasks import CallNext
from flowfabric.telemetry import WORKER_LOGGER, install_logging
from flowfabric.worker import Worker

# After a save, running executions have this long to finish. Then they are released and run again
# with the new code.
DRAIN = timedelta(seconds=2)
LOOK_SECONDS = 1.0
# At most this many completed executions per second are logged one by one.
MAX_LOGGED_PER_SECOND = 20
EXIT_BROKEN = 3
# The signal to stop at once; SIGTERM lets running executions finish.
STOP_AT_ONCE = signal.SIGUSR1

_MACHINERY = tuple(str(Path(str(package.__file__)).parent) for package in (asyncio, flowfabric))
_EXAMPLES: dict[Any, Any] = {str: "text", int: 1, float: 1.5, bool: True, list: [], dict: {}}


def main() -> None:
    parent = socket.socket(fileno=int(sys.argv[1]))
    lines = parent.makefile("r")
    request = json.loads(lines.readline())
    install_logging(request["log_format"], request["log_level"])

    def send(**facts: Any) -> None:
        parent.sendall(json.dumps(facts).encode() + b"\n")

    try:
        app = load_app(request["app"])
        facts = app_facts(app, request["app"])
    except typer.BadParameter as error:
        send(usage=error.message)
        sys.exit(EXIT_BROKEN)
    except FlowFabricError as error:
        complain(error)
        sys.exit(EXIT_BROKEN)
    except typer.Exit:
        sys.exit(EXIT_BROKEN)
    send(files=project_files(), **facts)
    answer = lines.readline()
    if not answer:
        return
    app.middleware(LogCompleted())
    drain = min(app.settings.drain_timeout, DRAIN)
    app.settings = replace(
        app.settings, database_url=json.loads(answer)["database_url"], url=None, drain_timeout=drain
    )
    try:
        asyncio.run(_work(app, parent, send, request))
    except InvalidInput as error:
        complain(error)
        sys.exit(EXIT_BROKEN)
    except FlowFabricError as error:
        complain(error)
        sys.exit(1)
    except StartupFailed as error:
        print_traceback(error.__cause__ or error, _is_machinery)
        complain("the worker could not start")
        sys.exit(EXIT_BROKEN)


class StartupFailed(Exception):
    """A startup hook or a provider with `scope="worker"` has failed."""


async def _work(
    app: App, parent: socket.socket, send: Callable[..., None], request: dict[str, Any]
) -> None:
    loop = asyncio.get_running_loop()

    def on_created(worker: Worker) -> None:
        def stop() -> None:
            loop.remove_reader(parent)
            worker.stop()

        # The command sends no further message. If the socket is readable, the command has ended.
        loop.add_reader(parent, stop)

    def on_started() -> None:
        send(is_working=True, files=project_files())
        watching.append(loop.create_task(_watch(send)))

    watching: list[asyncio.Task[None]] = []
    try:
        signals = Signals([signal.SIGTERM], at_once=STOP_AT_ONCE)
        await serve(
            app, signals, on_created=on_created, on_started=on_started, **request["options"]
        )
    except FlowFabricError:
        raise
    except Exception as error:
        if watching:
            raise
        raise StartupFailed from error


def _is_machinery(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_MACHINERY)


class LogCompleted:
    """Middleware that logs the first 20 completed executions of each second, and how many more
    completed in that second.
    """

    def __init__(self) -> None:
        self._second = 0
        self._number = 0

    async def __call__(self, ctx: Context, call_next: CallNext) -> Any:
        value = await call_next()
        second = int(monotonic())
        if second != self._second:
            if self._number > MAX_LOGGED_PER_SECOND:
                WORKER_LOGGER.info("and %s more completed", self._number - MAX_LOGGED_PER_SECOND)
            self._second, self._number = second, 0
        self._number += 1
        if self._number <= MAX_LOGGED_PER_SECOND:
            WORKER_LOGGER.info("%s completed", ctx.task)
        return value


async def _watch(send: Callable[..., None]) -> None:
    """Check every second whether modules were imported. If so, send the list of files again."""
    number = len(sys.modules)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if len(sys.modules) != number:
            number = len(sys.modules)
            try:
                send(files=project_files())
            except OSError:
                return


def app_facts(app: App, reference: str) -> dict[str, Any]:
    """Return the facts about an app that `flowfabric dev` needs."""
    if not app.tasks:
        raise InvalidInput(field="tasks", problem="this app has no task; decorate one first")
    return {
        "tasks": sorted(app.tasks),
        "example": _example(app, reference.partition(":")[0]),
        "database_url": app.settings.database_url,
        "namespace": app.settings.namespace,
        "project": str(app.project),
    }


def _example(app: App, module_name: str) -> str | None:
    """Return a command line that submits a task of the module, or None if no variable is a task."""
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
        name: "Ada" if name == "name" else _value(hints.get(name))
        for name, parameter in task.spec.signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _value(hint: Any) -> Any:
    """Return an example value for a parameter of this type, or "…" if there is none."""
    return _EXAMPLES.get(get_origin(hint) or hint, "…")
