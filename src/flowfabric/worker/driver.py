"""Runs coroutines one after another in one asyncio task, until one of them yields.

A coroutine yields when it waits for something and lets the event loop run other tasks.
"""

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

# How long coroutines run one after another before the event loop runs other tasks.
SLICE_SECONDS = 0.005

Step = Coroutine[Any, Any, None]
# Returns the next coroutine for a task with its contextvars, or None if there is none.
BeginNext = Callable[["asyncio.Task[None]"], tuple[Context, Step] | None]


class Driver:
    """Starts coroutines in one asyncio task, each with its own contextvars.

    A coroutine that yields keeps the task in which it began; the next coroutines run in a new
    task. So every coroutine sees one task for its whole life. If a coroutine leaves a cancellation,
    a callback or a reference on its task, that task runs no other coroutine.
    """

    def __init__(
        self,
        begin_next: BeginNext,
        *,
        on_task_kept: Callable[[bool], None],
        slice_seconds: float = SLICE_SECONDS,
    ) -> None:
        self._begin_next = begin_next
        # Called when the next coroutine needs another task. The argument says whether the last
        # coroutine has yielded.
        self._on_task_kept = on_task_kept
        self._slice_seconds = slice_seconds
        self._loop = asyncio.get_running_loop()
        self._context = Context()
        self._task: _Task | None = None

    @property
    def is_running(self) -> bool:
        """Whether a running asyncio task will begin the next coroutines."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Unless `is_running`, start an asyncio task that will begin the next coroutines."""
        if not self.is_running:
            # Do not use `create_task`: with an eager task factory, it would run the task at once.
            self._task = _Task(self._run(), loop=self._loop, context=self._context)

    async def _run(self) -> None:
        task = self._task
        assert task is not None
        fingerprint = _fingerprint(task)
        until = monotonic() + self._slice_seconds
        try:
            while (begun := self._begin_next(task)) is not None:
                try:
                    awaited = begun[0].run(begun[1].send, None)
                except StopIteration:
                    pass
                except BaseException:
                    # The error ends this task, so another task must start the next coroutines.
                    self._give_up_task(has_yielded=False)
                    raise
                else:
                    self._give_up_task(has_yielded=True)
                    await _resume(*begun, awaited)
                    return
                if _fingerprint(task) != fingerprint:
                    self._give_up_task(has_yielded=False)
                    return
                if monotonic() > until:
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        self._give_up_task(has_yielded=False)
                        raise
                    until = monotonic() + self._slice_seconds
        finally:
            if self._task is task:
                self._task = None

    def _give_up_task(self, *, has_yielded: bool) -> None:
        self._task = None
        self._on_task_kept(has_yielded)


class _Task(asyncio.Task[None]):
    """An asyncio task that counts how often it was asked to cancel.

    `cancelling()` is not enough. After `uncancel()` it returns 0 again, but before Python 3.13 the
    next await is still cancelled.
    """

    cancels = 0

    def cancel(self, msg: Any | None = None) -> bool:
        self.cancels += 1
        return super().cancel(msg)


def _fingerprint(task: _Task) -> tuple[object, ...]:
    """Return a value that shows whether a coroutine has changed an asyncio task.

    The value changes if a coroutine leaves something on the task: a reference, a callback, a
    cancellation or a new name.
    """
    return (
        # Code that keeps a reference to the task can cancel it later.
        getrefcount(task),
        getweakrefcount(task),
        task.cancels,
        # Counts callbacks and attributes.
        len(gc.get_referents(task)),
        task.get_name(),
    )


@types.coroutine
def _resume(own: Context, step: Step, awaited: Any) -> Generator[Any, Any, None]:
    """Run the rest of a yielded coroutine in the asyncio task that awaits this generator."""
    error: BaseException | None
    while True:
        value = error = None
        try:
            value = yield awaited
        except GeneratorExit:
            own.run(step.close)
            raise
        except BaseException as thrown:
            # Remove this frame from the traceback.
            error = thrown.with_traceback(thrown.__traceback__ and thrown.__traceback__.tb_next)
        try:
            awaited = own.run(step.send, value) if error is None else own.run(step.throw, error)
        except StopIteration:
            return
