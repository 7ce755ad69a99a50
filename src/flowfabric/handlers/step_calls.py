"""Calls the function of a step, on the event loop or in a thread: limits its time, retries it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowfabric import tracing
from flowfabric.core.policy import Retry
from flowfabric.handlers.durable_run import HandlerPaused
from flowfabric.handlers.loops import call_for_future, call_in_new_thread
from flowfabric.handlers.steps import in_step, is_coroutine_function, retry_delay
from flowfabric.telemetry import WORKER_LOGGER

if TYPE_CHECKING:
    from flowfabric.handlers.handler_run import HandlerRun

# How often a plain handler that waits for a retry checks whether it was cancelled.
_CHECK_SECONDS = 0.1


class StepCall:
    """One step's function with its arguments, its retry policy and the time limit of each call."""

    __slots__ = ("_args", "_function", "_kwargs", "_name", "_retry", "_run", "_seconds")

    def __init__(
        self,
        run: HandlerRun,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        retry: Retry | None,
        timeout: timedelta | None = None,
    ) -> None:
        self._run = run
        self._name = name
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._retry = retry
        self._seconds = None if timeout is None else timeout.total_seconds()

    async def call(self) -> Any:
        """Call the function until it returns or may not be retried; a plain one in a thread."""
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
        """Do as `call` does, in the thread of a plain handler."""
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
        """Return the seconds until the next try, or None if there is none."""
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
            # A plain function goes on in its thread; its value is dropped.
            raise TimeoutError(
                f"step {self._name!r} took longer than {self._seconds:g} s"
            ) from error

    async def _call_unlimited(self) -> Any:
        token = in_step.set(self._name)
        try:
            if is_coroutine_function(self._function):
                return await self._function(*self._args, **self._kwargs)
            call = functools.partial(self._function, *self._args, **self._kwargs)
            if self._seconds is None:
                inherited = contextvars.copy_context()
                value = await self._run.make_durable().run_in_thread(
                    functools.partial(inherited.run, call_for_future, call, "the function")
                )
            else:
                value = await call_in_new_thread(call, "the function")
            return await value if inspect.isawaitable(value) else value
        finally:
            in_step.reset(token)

    def _call_once_sync(self) -> Any:
        if self._seconds is not None:
            # In another thread, because this one could not stop waiting for the function.
            return self._run.call_sync(self._call_once)
        token = in_step.set(self._name)
        try:
            value = self._function(*self._args, **self._kwargs)
            if not inspect.isawaitable(value):
                return value
            return self._run.call_sync(lambda: _await(value))
        finally:
            in_step.reset(token)


async def _await(value: Any) -> Any:
    return await value
