"""Calls the function of a step on the event loop or in a thread, with timeout and retries."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from flowfabric import tracing
from flowfabric.core.policy import Retry
from flowfabric.handlers.durable_run import HandlerPaused
from flowfabric.handlers.loops import call_for_future, call_in_new_thread
from flowfabric.handlers.steps import codec_of, in_step, is_coroutine_function, retry_delay
from flowfabric.telemetry import WORKER_LOGGER

if TYPE_CHECKING:
    from flowfabric.core.step import StepRecord
    from flowfabric.handlers.durable_run import DurableRun
    from flowfabric.handlers.handler_run import HandlerRun
    from flowfabric.handlers.journal import Entry

T = TypeVar("T")

# The value of a step, and the record if another run recorded the step first.
Done: TypeAlias = "tuple[Any, StepRecord | None]"
# How often a plain handler checks for cancellation while it waits for a retry.
_CHECK_SECONDS = 0.1


class StepCall:
    """The function of a step with its arguments, its retry policy and the timeout of a call."""

    __slots__ = (
        *("_args", "_function", "_kwargs", "_name", "_retry", "_run", "_seconds"),
        *("codec", "durable"),
    )

    def __init__(
        self,
        run: HandlerRun,
        durable: DurableRun,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        retry: Retry | None,
        timeout: timedelta | None = None,
    ) -> None:
        self._run = run
        self.durable = durable
        self.codec = codec_of(function, name)
        self._name = name
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._retry = retry
        self._seconds = None if timeout is None else timeout.total_seconds()

    async def do(self, entry: Entry) -> Done:
        """Call the function and record its value."""
        value = await self.call()
        stored = self.codec.write(value, self._name)
        record = await self.durable.record(entry, value=stored, encoding=self.codec.encoding)
        return value, None if record.value == stored else record

    def do_sync(self, entry: Entry) -> Done:
        """Like `do`, in the thread of a plain handler."""
        value = self.call_sync()
        stored, encoding = self.codec.write(value, self._name), self.codec.encoding
        record = self._run.call_sync(
            lambda: self.durable.record(entry, value=stored, encoding=encoding)
        )
        return value, None if record.value == stored else record

    async def call(self) -> Any:
        """Call the function until it returns or no retry is left. A `def` function runs in a
        thread."""
        failures = 0
        while True:
            try:
                with tracing.step_span(self._name):
                    return await self._call_once()
            except Exception as error:
                if (delay := self._delay_before_retry(failures, error)) is None:
                    raise
            failures += 1
            await asyncio.sleep(delay)

    def call_sync(self) -> Any:
        """Like `call`, in the thread of a plain handler."""
        failures = 0
        while True:
            try:
                with tracing.step_span(self._name):
                    return self._call_once_sync()
            except Exception as error:
                if (delay := self._delay_before_retry(failures, error)) is None:
                    raise
            failures += 1
            until = time.monotonic() + delay
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _CHECK_SECONDS))
                if self._run.is_cancelled:
                    raise HandlerPaused()

    def _delay_before_retry(self, failures: int, error: Exception) -> float | None:
        """Return the seconds until the next try, or None if no retry is left."""
        if self._run.is_cancelled or self._retry is None:
            return None
        if (delay := retry_delay(self._retry, failures, error)) is None:
            return None
        WORKER_LOGGER.info(
            "step failed, retrying in %.3g s: %s, %s", delay, self._name, type(error).__name__
        )
        return delay

    async def _call_once(self) -> Any:
        if self._seconds is None:
            return await self._call_unlimited()
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._call_unlimited()
        except TimeoutError as error:
            if not limit.expired():
                raise
            # A plain function continues in its thread, and its value is dropped.
            raise TimeoutError(
                f"step {self._name!r} took longer than {self._seconds:g} s"
            ) from error

    async def _call_unlimited(self) -> Any:
        token = in_step.set(self._name)
        try:
            return await self._call_function()
        finally:
            in_step.reset(token)

    async def _call_function(self) -> Any:
        if is_coroutine_function(self._function):
            return await self._function(*self._args, **self._kwargs)
        call = functools.partial(self._function, *self._args, **self._kwargs)
        if self._seconds is None:
            value = await self._call_in_thread(call)
        else:
            value = await call_in_new_thread(call, "the function")
        return await value if inspect.isawaitable(value) else value

    async def _call_in_thread(self, call: Callable[[], T]) -> T:
        inherited = contextvars.copy_context()
        found: T = await self.durable.run_in_thread(
            functools.partial(inherited.run, call_for_future, call, "the function")
        )
        return found

    def _call_once_sync(self) -> Any:
        if self._seconds is not None:
            # Call in another thread: this thread could not stop the function at the timeout.
            return self._run.call_sync(self._call_once)
        token = in_step.set(self._name)
        try:
            return self._call_function_sync()
        finally:
            in_step.reset(token)

    def _call_function_sync(self) -> Any:
        value = self._function(*self._args, **self._kwargs)
        if not inspect.isawaitable(value):
            return value
        return self._run.call_sync(lambda: _await(value))


async def _await(value: Any) -> Any:
    return await value
