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

# After this many generations, an execution is held and no longer restarted.
MAX_RESTARTS = 100


class HandlerRun:
    """One run of a handler.

    The durable part of the run handles steps, sleeps and children. It is made at first use.
    """

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
        # Made when a handler, a middleware or a provider needs it.
        self.context: HandlerContext | None = None
        self.durable: DurableRun | None = None
        # True once the lease is lost or released.
        self.is_cancelled = False
        # How a failure of this run is classified.
        self.failure_class = FailureClass.TRANSIENT

    @property
    def is_pausing(self) -> bool:
        """Whether the handler is being stopped because its execution pauses."""
        return self.durable is not None and self.durable.pause is not None

    def forbid_retry(self) -> None:
        """Classify a failure of this run as permanent, so that the execution is not tried again."""
        self.failure_class = FailureClass.PERMANENT

    @property
    def is_restarted_on_change(self) -> bool:
        """Whether the execution starts over if the code does not fit its journal.

        The number of restarts is limited. Otherwise a handler whose steps are different in every
        run would never end.
        """
        return self.spec.on_change == "restart" and self.claimed.generation < MAX_RESTARTS

    @property
    def has_step_failures(self) -> bool:
        """Whether a step has failed and its failure is not recorded."""
        return self.durable is not None and self.durable.has_failures

    @property
    def has_frames(self) -> bool:
        """Whether the handler has sent frames."""
        return self.durable is not None and self.durable.frames.is_used

    @property
    def worker(self) -> WorkerServices:
        """The worker that runs the handler. Raises once the handler has ended."""
        if self._worker is None:
            raise RuntimeError("the handler of this context has ended: nothing can be recorded")
        return self._worker

    def is_on_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether `loop` is the worker's loop. True for every loop once the run has ended."""
        return self._worker is None or self._worker.loop is loop

    def make_durable(self) -> DurableRun:
        """Return the durable part of the run, and make it at first use.

        Raises if the handler was cancelled.
        """
        durable = self.durable
        if durable is None:
            with _creating:  # a plain handler may start its own threads
                worker = self.worker
                root = self.task if self.spec.is_async else None
                make = self.durable_class
                durable = self.durable = self.durable or make(self.claimed, worker, root)
        if self.is_cancelled:
            raise durable.interruption()
        return durable

    def begin(self, what: str) -> DurableRun:
        """Return the durable part of the run, for the call that `what` names.

        Refuse the call inside a step, and after the handler has ended.
        """
        durable = self.make_durable()
        durable.check_allowed(what)
        return durable

    def is_own_flow(self) -> bool:
        """Tell whether the caller is the handler itself, not one of its branches."""
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
            # The loop is closed, because the worker has ended.
            coroutine.close()
            raise durable.interruption() from None
        return answer.result()

    def cancel(self) -> None:
        """Ignore later results of the handler, because the lease is lost or released."""
        self.is_cancelled = True
        if self.durable is not None:
            self.durable.cancel()

    def end(self) -> None:
        """End the run. Its context cannot be used any more."""
        self._worker = None
        # The task's contextvars refer to this run. Break the cycle, so that Python frees both
        # immediately.
        del self.task
        if self.durable is not None:
            self.durable.end()

    async def check_journal(self) -> None:
        """Hold the execution if the handler returned without reaching every recorded step."""
        if self._worker is not None:
            await self.make_durable().check_journal()

    async def flush_frames(self) -> None:
        """Wait until all frames that the handler has sent are stored."""
        if self.durable is not None:
            await self.durable.frames.flush()

    # The methods below serve objects of the app that a handler uses, such as runs and flows.

    def is_durable_with(self, client: FlowFabric) -> bool:
        """Tell whether calls of `client` belong in the handler's journal.

        True if `client` is the worker's own client, and no function of a step is running.
        """
        worker = self._worker
        return worker is not None and worker.client is client and in_step.get() is None

    async def wait_for_end(self, id: ExecutionId, client: FlowFabric) -> Ending | None:
        """Wait until a run has ended, and return its ending. The handler can pause meanwhile.

        If the handler cannot pause, return None without waiting.
        """
        if self._worker is None or self._worker.client is not client:
            return None
        durable = self.make_durable()
        if not durable.can_pause_for(id):
            return None
        return await durable.wait_for_end(id, is_own=self.is_own_flow())

    async def wait_for_ends(
        self, ids: Sequence[ExecutionId], needed: int, client: FlowFabric
    ) -> list[Ending] | None:
        """Wait until at least `needed` of the runs `ids` have ended, and return their endings.

        The handler can pause meanwhile. If it cannot pause, return None without waiting.
        """
        if not self.is_durable_with(client):
            return None
        durable = self.make_durable()
        if not all(durable.can_pause_for(id) for id in ids):
            return None
        return await durable.wait_for_ends(ids, needed, is_own=self.is_own_flow())

    async def once(self, name: str, work: Callable[[OnceCall], Awaitable[Any]]) -> Any:
        """Call `work` in every run, and return its value.

        Only the first value is recorded. Later runs pass it to `work`.
        """
        durable = self.begin(name)
        return await durable.once(name, work, is_own=self.is_own_flow())

    async def query(self, question: Awaitable[T]) -> T:
        """Wait for an answer from the database. Until it comes, the handler does not pause."""
        return await self.make_durable().query(question)

    async def keep_slot(self, awaited: Awaitable[T], client: FlowFabric) -> T:
        """Await `awaited`. Meanwhile the handler keeps its slot and does not pause."""
        return await (self.query(awaited) if self.is_durable_with(client) else awaited)

    def note_existing(self, ids: Iterable[ExecutionId]) -> None:
        """Remember runs that exist, so that a wait does not have to check this."""
        self.make_durable().ends.note_existing(ids)

    def note_unrecorded(self, ids: Iterable[ExecutionId]) -> None:
        """Remember runs that the handler submitted without its context.

        The next run of the handler would submit them again, so the handler waits for them in its
        slot.
        """
        if self._worker is not None and not self.is_cancelled and in_step.get() is None:
            self.make_durable().ends.note_unrecorded(ids)

    def report_blocking_wait(self) -> None:
        """Tell the worker that the handler waits for other runs and keeps its slot.

        Any thread can call this.
        """
        if (worker := self._worker) is not None:
            worker.loop.call_soon_threadsafe(worker.on_blocking_wait, self.claimed)


current_run: ContextVar[HandlerRun | None] = ContextVar("flowfabric_run", default=None)


def async_only(instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an async function refuse calls in the thread of a plain handler.

    The error names the function to call instead.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if current_run.get() is not None and running_loop() is None:
                raise not_awaited(f"{instead.removesuffix('_sync')}(...)", instead)
            return function(*args, **kwargs)

        return mark_coroutine_function(call)

    return decorate
