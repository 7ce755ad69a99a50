"""Schedules: the registrations of `App.cron` and `App.every`, and the loop that fires them."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from flowfabric.app.task import Task
from flowfabric.client import Declaration, Declared, Fired, FlowFabric, level_of
from flowfabric.core.errors import FlowFabricError, InvalidInput, NotFound, Refused
from flowfabric.core.execution import check_name
from flowfabric.core.schedule import (
    MAX_SCHEDULE_NAME_BYTES,
    MAX_SCHEDULE_TAGS,
    DueSchedule,
    Rule,
)
from flowfabric.core.states import Misfire
from flowfabric.handlers import Context
from flowfabric.telemetry import ENGINE_LOGGER

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
TaskT = TypeVar("TaskT", bound=Task[..., Any, Any])

# A worker looks for due schedules at least this often, because an operator may have resumed one.
MOST_PAUSE = timedelta(seconds=10)
LEAST_PAUSE = timedelta(milliseconds=20)
# A schedule that could not fire, for example because its lane is closed, is tried again after this
# time.
RETRY_PAUSE = timedelta(seconds=5)
# Schedules are declared again after this time, because a restored backup may lack them.
DECLARE_SECONDS = 300.0
MOST_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A task and the times at which it is submitted."""

    name: str
    task: Task[..., Any, Any]
    rule: Rule
    misfire: Misfire
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def declaration(self) -> Declaration:
        """Build the declaration of this schedule. Raise InvalidInput if the arguments of the
        schedule do not fit the task."""
        try:
            submission = self.task.submission(tuple(self.args), dict(self.kwargs))
        except InvalidInput as error:
            raise InvalidInput(
                field=f"schedule {self.name}: {error.field}",
                problem=f"{error.problem}; pass it as args= or kwargs= of the schedule",
            ) from error
        # Check here: if the database refused one schedule, none would be declared.
        if len(submission.tags) > MAX_SCHEDULE_TAGS:
            raise InvalidInput(
                field=f"schedule {self.name}: tags",
                problem=f"must be at most {MAX_SCHEDULE_TAGS}: two are added when it fires",
            )
        submission.check()
        for option in ("key", "delay", "delayed_until"):
            if getattr(submission, option) is not None:
                raise InvalidInput(
                    field=option,
                    problem=f"cannot be used with {self.name}: the schedule decides the times",
                )
        return Declaration(
            name=self.name, submission=submission, rule=self.rule, misfire=self.misfire
        )


def check_schedule_name(name: str, taken: Iterable[str]) -> None:
    check_name("name", name)
    if len(name.encode()) > MAX_SCHEDULE_NAME_BYTES:
        raise InvalidInput(
            field="name",
            problem=f"must be at most {MAX_SCHEDULE_NAME_BYTES} bytes; pass a shorter name=",
        )
    if name in taken:
        raise InvalidInput(
            field="name",
            problem=f"a schedule named {name} already exists; pass another name=",
        )


def check_arguments(args: Any, kwargs: Any) -> None:
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise InvalidInput(field="args", problem="must be a tuple of arguments, as in (7,)")
    if not isinstance(kwargs, Mapping):
        raise InvalidInput(field="kwargs", problem="must be a mapping of names to arguments")


def home_name() -> str:
    """Return the name of the module that creates the app; for a script, the name of its file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", "main"))
    if module == "__main__":
        file = frame.f_globals.get("__file__")
        return Path(file).stem if file else "main"
    return module


def _is_ours(module: str) -> bool:
    return module == "flowfabric" or module.startswith("flowfabric.")


class Scheduler:
    """Declares the schedules of an app and fires the due ones. Several schedulers can run at the
    same time.
    """

    def __init__(
        self,
        client: FlowFabric,
        app: str,
        version: Sequence[int],
        declarations: Sequence[Declaration],
        *,
        namespace: str,
    ) -> None:
        self._client = client
        self._app = app
        self._version = version
        self._declarations = declarations
        self._namespace = namespace
        self._names = [one.name for one in declarations]
        self._generation: int | None = None
        self._is_outdated = False
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Declare the schedules, then fire due schedules until this call is cancelled.

        If the app has no schedules, only declare that it has none.
        """
        declared_at = None
        backoff = 1.0
        while True:
            try:
                if declared_at is None or monotonic() - declared_at > DECLARE_SECONDS:
                    await self.declare()
                    declared_at = monotonic()
                if not self._declarations:
                    return
                _, due_in = await self.fire_due()
            except Exception as error:
                # Catch every error: without this loop, no schedule would fire here.
                ENGINE_LOGGER.log(
                    level_of(error),
                    "schedules failed, retrying: %s: %s",
                    self._app,
                    error,
                    exc_info=None if isinstance(error, FlowFabricError) else error,
                )
                await asyncio.sleep(backoff * random.uniform(0.8, 1.2))
                backoff = min(backoff * 2, MOST_BACKOFF_SECONDS)
                continue
            backoff = 1.0
            pause = MOST_PAUSE * random.uniform(0.9, 1.1)
            if due_in is not None:
                pause = min(pause, max(due_in, LEAST_PAUSE))
            await asyncio.sleep(pause.total_seconds())

    async def declare(self) -> Declared:
        """Declare the schedules of this app."""
        declared = await self._client.schedules.declare(
            self._app,
            self._version,
            self._declarations,
            namespace=self._namespace,
            generation=self._generation,
        )
        if declared.outcome == "declared":
            self._generation = declared.generation
        if declared.orphaned:
            ENGINE_LOGGER.warning(
                "schedules no longer declared, they will not fire: app %s, %s. If you still want "
                "them, check for another app of the same name and give each its own App(name=...)",
                self._app,
                ", ".join(declared.orphaned),
            )
        is_outdated = declared.outcome != "declared" and bool(self._declarations)
        if is_outdated and not self._is_outdated:
            ENGINE_LOGGER.info(
                "schedules of this worker ignored: app %s, declared by %s",
                self._app,
                f"version {'.'.join(map(str, declared.version))}"
                if declared.outcome == "older"
                else "a worker that started later",
            )
        self._is_outdated = is_outdated
        return declared

    async def fire_due(self) -> tuple[int, timedelta | None]:
        """Fire all due schedules. Return how many executions were submitted, and how long it is
        until the next schedule is due."""
        fired = 0
        failed = False
        while True:
            due, now, due_in = await self._client.schedules.due(
                self._app, self._names, namespace=self._namespace
            )
            waits = [] if due_in is None else [due_in]
            for one in due:
                answer = await self._fire(one, now)
                failed = failed or answer is None
                if answer is not None:
                    fired += answer.count
                    if answer.next_at is not None:
                        waits.append(answer.next_at - now)
            if not failed and any(wait <= timedelta(0) for wait in waits):
                continue  # more is due than one call may submit
            if failed:
                waits.append(RETRY_PAUSE)
            return fired, min(waits, default=None)

    async def _fire(self, due: DueSchedule, now: datetime) -> Fired | None:
        """Fire one schedule; if it cannot fire now, log that once and return None."""
        try:
            answer = await self._client.schedules.fire(
                self._app, due, now, namespace=self._namespace
            )
        except (InvalidInput, NotFound, Refused) as error:
            if due.name not in self._failing:
                self._failing.add(due.name)
                ENGINE_LOGGER.warning("schedule could not fire: %s: %s", due.name, error)
            return None
        self._failing.discard(due.name)
        return answer


class PlainFunction(Protocol[P, T_co]):
    """A plain function. Unlike a task, it has `__code__`."""

    __code__: Any

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class ContextFunction(Protocol[P, T_co]):
    """A function whose first parameter is the context."""

    __code__: Any

    def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class ScheduleDecorator(Protocol):
    """The decorator that `@app.cron(...)` and `@app.every(...)` return."""

    @overload
    def __call__(self, function: TaskT, /) -> TaskT: ...
    @overload
    def __call__(
        self, function: ContextFunction[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: PlainFunction[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: ContextFunction[P, T], /) -> Task[P, T, T]: ...
    @overload
    def __call__(self, function: PlainFunction[P, T], /) -> Task[P, T, T]: ...
