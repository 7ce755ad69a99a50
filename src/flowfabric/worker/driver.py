"""Runs coroutines that do not suspend one after another in one asyncio task."""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from sys import getrefcount
from time import monotonic
from typing import Any
from weakref import getweakrefcount

# How long coroutines run one after another before the event loop gets a turn.
SLICE_SECONDS = 0.005

Step = Coroutine[Any, Any, None]
# Begins the next coroutine in a task: returns it with its contextvars, or None if there is none.
BeginNext = Callable[["asyncio.Task[None]"], tuple[Context, Step] | None]


class Driver:
    """Starts coroutines in one asyncio task, each with its own contextvars.

    A coroutine that suspends keeps the task in which it began, and the next ones run in a new task.
    So every coroutine sees one task for its whole life. A task on which a coroutine left something,
    as a cancellation, a callback or a reference, is not used for another one.
    """

    def __init__(
        self,
        begin_next: BeginNext,
        *,
        on_task_kept: Callable[[bool], None],
        slice_seconds: float = SLICE_SECONDS,
    ) -> None:
        self._begin_next = begin_next
        # Called when the next coroutine needs another task; True if the last one has suspended.
        self._on_task_kept = on_task_kept
        self._slice_seconds = slice_seconds
        self._loop = asyncio.get_running_loop()
        self._context = Context()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a task takes the next coroutines by itself."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start a task that runs coroutines until there is none, unless one runs already."""
        if not self.is_running:
            # Not made by the loop: a factory of eager tasks would run it within this call.
            self._task = asyncio.Task(self._run(), loop=self._loop, context=self._context)

    async def _run(self) -> None:
        task = self._task
        assert task is not None
        traces = _traces(task)
        until = monotonic() + self._slice_seconds
        try:
            while (begun := self._begin_next(task)) is not None:
                try:
                    awaited = begun[0].run(begun[1].send, None)
                except StopIteration:
                    pass
                except BaseException:
                    # The error ends this task: another one must start the coroutines that wait.
                    self._give_up_task(has_suspended=False)
                    raise
                else:
                    self._give_up_task(has_suspended=True)
                    await _resume(*begun, awaited)
                    return
                if _traces(task) != traces:
                    self._give_up_task(has_suspended=False)
                    return
                if monotonic() > until:
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        self._give_up_task(has_suspended=False)
                        raise
                    until = monotonic() + self._slice_seconds
        finally:
            if self._task is task:
                self._task = None

    def _give_up_task(self, *, has_suspended: bool) -> None:
        self._task = None
        self._on_task_kept(has_suspended)


def _traces(task: asyncio.Task[None]) -> tuple[object, ...]:
    """Return values that change if a coroutine leaves something on the task it shares."""
    return (
        # Code that keeps a reference to the task can cancel it later.
        getrefcount(task),
        getweakrefcount(task),
        task.cancelling(),
        # Before Python 3.13 this stays true after `uncancel()`, and cancels what suspends next.
        task._must_cancel,  # type: ignore[attr-defined]
        # Callbacks and attributes.
        len(gc.get_referents(task)),
        task.get_name(),
    )


@types.coroutine
def _resume(own: Context, step: Step, awaited: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that has suspended, in the task that awaits this."""
    error: BaseException | None
    while True:
        value = error = None
        try:
            value = yield awaited
        except GeneratorExit:
            own.run(step.close)
            raise
        except BaseException as thrown:
            # Without this frame in its trace.
            error = thrown.with_traceback(thrown.__traceback__ and thrown.__traceback__.tb_next)
        try:
            awaited = own.run(step.send, value) if error is None else own.run(step.throw, error)
        except StopIteration:
            return
