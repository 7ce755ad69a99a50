"""Settles executions: completes, fails, pauses or releases them in the database."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidInput,
    LeaseLost,
    Unavailable,
)
from flowfabric.core.execution import Claimed, Failure
from flowfabric.core.states import FailureClass
from flowfabric.core.trace import skip_library
from flowfabric.handlers import (
    Pause,
    PauseForNewerCode,
    PauseForRuns,
    PauseOnHold,
    PauseToRestart,
)
from flowfabric.tasks import failure_of
from flowfabric.telemetry import WORKER_LOGGER, about
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.log_text import attempt_text, clock_text, loss_text

# How long to wait before the attempt of a cancelled handler fails. If the program is ending, the
# worker releases the execution in this time instead.
INTERRUPT_SECONDS = 1.0
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SHUTDOWN = "worker_shutdown"
# How long the end of an attempt waits for the frames that its handler has sent.
FRAMES_SECONDS = 10.0


class Settlement:
    """Settles the executions of one worker after their handlers have ended or were told to stop."""

    def __init__(
        self, client: FlowFabric, heartbeat: Heartbeat, *, on_wait: Callable[[], None]
    ) -> None:
        self._client = client
        self._heartbeat = heartbeat
        # Called when an execution begins to wait for other executions. Their rows were locked for a
        # moment, so a claim may have skipped them.
        self._on_wait = on_wait
        self._loop = asyncio.get_running_loop()
        self._completing = 0
        self._all_completed = asyncio.Event()
        self._settling: set[asyncio.Future[None]] = set()
        self._interrupted: dict[Claimed, tuple[Failure, BaseException]] = {}
        # Executions to release when the worker ends.
        self._to_release: dict[Claimed, None] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, and `fail_interrupted` has no attempt left to fail."""
        return not (self._completing or self._settling or self._interrupted)

    @property
    def is_finished(self) -> bool:
        """Whether the settlement is idle and has nothing left to release."""
        return self.is_idle and not self._to_release

    def complete(self, claimed: Claimed, result: bytes | None) -> None:
        """Complete an execution with its result. The call is batched with others."""
        try:
            self._client.executions.complete_soon(claimed, result, self._on_completed)
        except Unavailable as error:
            self._on_answer(claimed, error, has_result=True)
        else:
            self._completing += 1

    def fail(self, claimed: Claimed, failure: Failure, error: BaseException) -> None:
        """Fail an attempt with its error. The stored retry policy decides whether to retry."""
        self._settle(
            self._fail(claimed, failure, error),
            functools.partial(self._on_failed, claimed, failure, error),
        )

    def fail_interrupted(self, claimed: Claimed, failure: Failure, error: BaseException) -> None:
        """Fail an attempt, after a short wait, because other code has cancelled its asyncio task.

        Most likely the event loop and the worker are ending. If so, the execution is released
        instead: an attempt must not fail because a program stops.
        """
        self._interrupted[claimed] = (failure, error)
        self._loop.call_later(INTERRUPT_SECONDS, self._end_interruption, claimed)

    def pause(self, claimed: Claimed, pause: Pause) -> None:
        """Apply `pause` to an execution. For example, this delays or suspends the execution."""
        self._settle(
            self._apply(pause, claimed), functools.partial(self._on_paused, claimed, pause)
        )

    def release_later(self, claimed: Iterable[Claimed]) -> None:
        """Note that these executions must be released when the worker ends."""
        self._to_release.update(dict.fromkeys(claimed))

    async def release(self, several: Sequence[Claimed], cause: str = SHUTDOWN) -> None:
        """Release executions now. If this is cancelled, the next `release_noted` releases them."""
        self.release_later(several)
        if several:
            await self._release(several, cause)
            for claimed in several:
                self._to_release.pop(claimed, None)

    async def release_noted(self) -> None:
        """Release all executions that `release_later` noted.

        Also release the executions that the next `fail_interrupted` would end as failed.
        """
        self.release_later(self.take_interrupted())
        await self.release(list(self._to_release))

    async def settle_all(self) -> None:
        """Release and settle all executions.

        Repeat this until `is_finished` is true: when a result is refused, its attempt must be
        failed next.
        """
        await self.release_noted()
        if self._completing:
            self._all_completed.clear()
            await self._all_completed.wait()
        if self._settling:
            await asyncio.wait(self._settling)

    def take_interrupted(self) -> list[Claimed]:
        """Return the executions that `fail_interrupted` has not failed yet.

        After this call, `fail_interrupted` does not fail them.
        """
        interrupted = list(self._interrupted)
        self._interrupted.clear()
        return interrupted

    def _settle(
        self, work: Coroutine[Any, Any, None], on_done: Callable[[asyncio.Future[None]], None]
    ) -> None:
        future = asyncio.ensure_future(work)
        self._settling.add(future)
        future.add_done_callback(on_done)

    async def _store_frames(self, claimed: Claimed) -> None:
        """Store the frames that the handler has sent, before its attempt ends."""
        if not self._client.streams.is_sending(claimed):
            return
        try:
            async with asyncio.timeout(FRAMES_SECONDS):
                await self._client.streams.flush(claimed)
        except (FlowFabricError, TimeoutError) as error:
            WORKER_LOGGER.warning(
                "frames not stored: %s: %s", attempt_text(claimed), error or "no answer in time"
            )

    async def _fail(self, claimed: Claimed, failure: Failure, error: BaseException) -> None:
        await self._store_frames(claimed)
        answer = await self._client.executions.fail(claimed, failure)
        if answer.delayed_until is None:
            level, event = logging.ERROR, "execution failed"
        else:
            again = clock_text(answer.delayed_until)
            level, event = logging.WARNING, f"attempt failed, retry at {again}"
        _log_error(level, event, claimed, failure.reason, error)

    async def _apply(self, pause: Pause, claimed: Claimed) -> None:
        _log_pause(claimed, pause)
        await self._store_frames(claimed)
        for seconds in RETRY_SECONDS:
            try:
                instead = await pause.apply(self._client, claimed)
            except Unavailable as error:
                WORKER_LOGGER.info("pause not stored, retrying: %s: %s", claimed.id, error)
                await asyncio.sleep(seconds)
            else:
                break
        else:
            instead = await pause.apply(self._client, claimed)
        if instead is not None:
            await self._apply(instead, claimed)

    def _on_completed(
        self, item: tuple[Claimed, bytes | None], error: BaseException | None
    ) -> None:
        claimed = item[0]
        self._completing -= 1
        if error is None:
            self._heartbeat.drop(claimed)
        elif isinstance(error, asyncio.CancelledError):
            # All tasks of the loop were cancelled, including the task of this call. Repeat it.
            self.complete(*item)
        else:
            self._on_answer(claimed, error, has_result=True)
        if not self._completing:
            self._all_completed.set()

    def _on_failed(
        self,
        claimed: Claimed,
        failure: Failure,
        error: BaseException,
        future: asyncio.Future[None],
    ) -> None:
        self._settling.discard(future)
        if future.cancelled():
            # The loop is ending. If the failure was not stored, the attempt runs again.
            self.release_later([claimed])
            return
        if (refused := future.exception()) is not None:
            _log_error(logging.WARNING, "handler failed", claimed, failure.reason, error)
        self._on_answer(claimed, refused, has_result=False)

    def _on_answer(
        self, claimed: Claimed, error: BaseException | None, *, has_result: bool
    ) -> None:
        self._heartbeat.drop(claimed)
        if isinstance(error, LeaseLost | ExecutionNotActive):
            log_loss("handler ended too late, its result does not count", claimed, error)
        elif isinstance(error, InvalidInput) and has_result:
            # The database refused the result, but it can store the failure.
            self.fail(claimed, failure_of(error, FailureClass.PERMANENT), error)
        elif error is not None:
            WORKER_LOGGER.error(
                "attempt not settled, it will run again: %s: %s", attempt_text(claimed), error
            )

    def _on_paused(self, claimed: Claimed, pause: Pause, future: asyncio.Future[None]) -> None:
        self._settling.discard(future)
        if future.cancelled():
            # The loop is ending.
            self.release_later([claimed])
            return
        self._heartbeat.drop(claimed)
        if isinstance(pause, PauseForRuns):
            # The pause locked rows for a moment, so a claim may have skipped them.
            self._on_wait()
        if (error := future.exception()) is None:
            return
        if isinstance(error, ExecutionNotActive) and error.is_late:
            log_loss("pause came too late", claimed, error)
        elif isinstance(error, LeaseLost | ExecutionNotActive):
            WORKER_LOGGER.info(
                "pause came too late: %s: %s", attempt_text(claimed), loss_text(error)
            )
        else:
            WORKER_LOGGER.error(
                "pause not stored, the attempt will run again: %s: %s",
                attempt_text(claimed),
                error,
            )

    def _end_interruption(self, claimed: Claimed) -> None:
        interrupted = self._interrupted.pop(claimed, None)
        if interrupted is not None:
            self.fail(claimed, *interrupted)

    async def _release(self, several: Sequence[Claimed], cause: str) -> None:
        await asyncio.gather(*(self._store_frames(claimed) for claimed in several))
        try:
            refused = await self._client.leases.release(list(several), cause=cause)
        except FlowFabricError as error:
            WORKER_LOGGER.error("leases not released, they will expire: %s", error)
            refused = {}
        for claimed in several:
            self._heartbeat.drop(claimed)
        for claimed, reason in refused.items():
            WORKER_LOGGER.warning("lease not released: %s: %s", attempt_text(claimed), reason)


def _log_pause(claimed: Claimed, pause: Pause) -> None:
    """Log a pause that an operator should know about."""
    if isinstance(pause, PauseForNewerCode):
        WORKER_LOGGER.info(
            "execution left to newer code that has step %s: %s",
            pause.step,
            attempt_text(claimed),
        )
    elif isinstance(pause, PauseOnHold):
        WORKER_LOGGER.warning(
            "execution held at step %s: %s: %s",
            pause.step,
            attempt_text(claimed),
            pause.reason,
        )
    elif isinstance(pause, PauseToRestart):
        WORKER_LOGGER.warning(
            "execution starts over, the code does not fit step %s: %s: %s",
            pause.step,
            attempt_text(claimed),
            pause.problem,
        )


def _log_error(level: int, event: str, claimed: Claimed, reason: str, error: BaseException) -> None:
    """Log an error of a handler. The logged traceback begins in user code."""
    WORKER_LOGGER.log(
        level,
        "%s: %s: %s",
        event,
        attempt_text(claimed),
        reason,
        exc_info=(type(error), error, skip_library(error)),
        extra=about(claimed),
    )


def log_loss(event: str, claimed: Claimed, error: FlowFabricError) -> None:
    """Log how a lease was lost.

    The level is error if a deadline or a timeout has ended the execution, and warning otherwise.
    """
    is_end = isinstance(error, ExecutionNotActive) and error.is_late and error.delayed_until is None
    WORKER_LOGGER.log(
        logging.ERROR if is_end else logging.WARNING,
        "%s: %s: %s",
        event,
        attempt_text(claimed),
        loss_text(error),
        extra=about(claimed),
    )
