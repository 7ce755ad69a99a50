"""One run of a handler under one lease, as the worker and the app see it.

A handler sees the same run through its `Context`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from flowfabric.core.states import FailureClass
from flowfabric.handlers.durable_run import DurableRun, OnceCall, WorkerServices
from flowfabric.handlers.loops import (
    call_and_await,
    mark_coroutine_function,
    not_awaited,
    running_loop,
)
from flowfabric.handlers.steps import in_step
from flowfabric.tasks.handler_context import HandlerContext

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric
    from flowfabric.core.execution import Claimed, Ending
    from flowfabric.core.ids import ExecutionId
    from flowfabric.tasks.spec import TaskSpec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_creating = threading.Lock()

# An execution of so many generations is held, whatever its task says.
MAX_RESTARTS = 100


class HandlerRun:
    """Made by the worker for every handler it calls. The durable part is made when first used."""

    __slots__ = (
        "_worker",
        "claimed",
        "context",
        "durable",
        "failure_class",
        "is_cancelled",
        "spec",
        "task",
    )

    durable_class = DurableRun
    # The asyncio task in which the worker runs the execution.
    task: asyncio.Task[None]

    def __init__(self, claimed: Claimed, spec: TaskSpec, worker: WorkerServices) -> None:
        self.claimed = claimed
        self.spec = spec
        self._worker: WorkerServices | None = worker
        # Made when a handler, a middleware or a provider asks for it.
        self.context: HandlerContext | None = None
        self.durable: DurableRun | None = None
        # True once the lease is lost or released.
        self.is_cancelled = False
        # How a failure of this run is classified.
        self.failure_class = FailureClass.TRANSIENT

    @property
    def is_pausing(self) -> bool:
        """Whether the handler is being unwound because its execution pauses."""
        return self.durable is not None and self.durable.pause is not None

    @property
    def is_restarted_on_change(self) -> bool:
        """Whether the execution begins anew if the code does not fit its journal.

        Not forever: a handler that differs from run to run would never end.
        """
        return self.spec.on_change == "restart" and self.claimed.generation < MAX_RESTARTS

    @property
    def has_step_failures(self) -> bool:
        """Whether steps failed that have to be recorded if the handler returns now."""
        return self.durable is not None and self.durable.has_failures

    @property
    def worker(self) -> WorkerServices:
        """Return the worker that runs the handler; an error once the handler has ended."""
        if self._worker is None:
            raise RuntimeError("no handler runs with this context: nothing can be recorded")
        return self._worker

    def is_on_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether a loop is the worker's; an ended run belongs to every loop."""
        return self._worker is None or self._worker.loop is loop

    def make_durable(self) -> DurableRun:
        """Return the durable part of the run; stop a handler that was cancelled."""
        durable = self.durable
        if durable is None:
            with _creating:  # a plain handler may have threads of its own
                worker = self.worker
                root = self.task if self.spec.is_async else None
                make = self.durable_class
                durable = self.durable = self.durable or make(self.claimed, worker, root)
        if self.is_cancelled:
            raise durable.interruption()
        return durable

    def begin(self, what: str) -> DurableRun:
        """Return the durable part for a call that is not allowed inside a step."""
        durable = self.make_durable()
        durable.check_allowed(what)
        return durable

    def is_own_flow(self) -> bool:
        """Tell whether the handler itself calls, not a task or a thread that it started.

        A call that a plain handler makes on the loop carries the contextvars of its thread.
        """
        if self.spec.is_async:
            return running_loop() is not None and asyncio.current_task() is self.task
        return current_run.get() is self

    def call_sync(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the worker's loop and wait for it in this thread."""
        durable = self.make_durable()
        coroutine = call_and_await(work)
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, durable.loop)
        except RuntimeError:
            # The loop is closed: the worker has ended.
            coroutine.close()
            raise durable.interruption() from None
        return answer.result()

    def cancel(self) -> None:
        """Stop counting what the handler does: the lease is lost or released."""
        self.is_cancelled = True
        if self.durable is not None:
            self.durable.cancel()

    def end(self) -> None:
        """End the run; nothing more can be done with its context."""
        self._worker = None
        # The task's contextvars refer to this run: without the cycle both are freed at once.
        del self.task
        if self.durable is not None:
            self.durable.end()

    async def check_journal(self) -> None:
        """Compare a handler that has returned with its journal."""
        if self._worker is not None:
            await self.make_durable().check_journal()

    # For the app: waits for other runs, and what a handler does through objects of the app.

    def is_durable_with(self, client: FlowFabric) -> bool:
        """Tell whether a call made here with this client belongs to the handler's journal."""
        worker = self._worker
        return worker is not None and worker.client is client and in_step.get() is None

    async def wait_for_end(self, id: ExecutionId, client: FlowFabric) -> Ending | None:
        """Wait for a run so that the handler can pause; None if it has to wait in its slot."""
        if self._worker is None or self._worker.client is not client:
            return None
        durable = self.make_durable()
        if not durable.can_pause_for(id):
            return None
        return await durable.wait_for_end(id, is_own=self.is_own_flow())

    async def wait_for_ends(
        self, ids: Sequence[ExecutionId], needed: int, client: FlowFabric
    ) -> list[Ending] | None:
        """Wait for several runs so that the handler can pause; None if it cannot pause."""
        if not self.is_durable_with(client):
            return None
        durable = self.make_durable()
        if not all(durable.can_pause_for(id) for id in ids):
            return None
        return await durable.wait_for_ends(ids, needed, is_own=self.is_own_flow())

    async def once(self, name: str, work: Callable[[OnceCall], Awaitable[Any]]) -> Any:
        """Decide something in the first run of the handler, for all later runs."""
        durable = self.begin(name)
        return await durable.once(name, work, is_own=self.is_own_flow())

    async def query(self, question: Awaitable[T]) -> T:
        """Wait for an answer of the database; the handler does not pause meanwhile."""
        return await self.make_durable().query(question)

    def note_existing(self, ids: Iterable[ExecutionId]) -> None:
        """Note runs that are known to exist."""
        self.make_durable().ends.note_existing(ids)

    def note_unrecorded(self, ids: Iterable[ExecutionId]) -> None:
        """Note runs that the handler submitted without its context.

        The next run of the handler submits others, so the handler waits for these in its slot.
        """
        if self._worker is not None and not self.is_cancelled and in_step.get() is None:
            self.make_durable().ends.note_unrecorded(ids)

    def report_blocking_wait(self) -> None:
        """Tell the worker, from any thread, that the handler waits for runs in its slot."""
        if (worker := self._worker) is not None:
            worker.loop.call_soon_threadsafe(worker.on_blocking_wait, self.claimed)


current_run: ContextVar[HandlerRun | None] = ContextVar("flowfabric_run", default=None)


def async_only(instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a call in the thread of a plain handler, which cannot await it; name the twin."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if current_run.get() is not None and running_loop() is None:
                raise not_awaited(f"{instead.removesuffix('_sync')}(...)", instead)
            return function(*args, **kwargs)

        return mark_coroutine_function(call)

    return decorate
