"""Refuses blocking calls on an event loop and async calls in a thread. Runs code in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Before Python 3.12, asyncio uses this attribute to mark plain functions that return coroutines.
COROUTINE_MARK = "_is_coroutine"


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def check_no_loop(instead: str, how: str = "await") -> None:
    """Refuse a blocking call on a thread that runs an event loop.

    The error names the async call to use: `how` (`await` or `async for`) and `instead`.
    """
    if running_loop() is not None:
        raise RuntimeError(f"This would block the event loop. In async code use: {how} {instead}")


def not_awaited(call: str, instead: str) -> RuntimeError:
    """Return the error for an async call in the thread of a `def` task."""
    return RuntimeError(
        f"{call} must be awaited in an `async def` task. In a `def` task use: {instead}(...)"
    )


def mark_coroutine_function(call: Callable[P, R]) -> Callable[P, R]:
    """Mark a plain function as a coroutine function, because its result must be awaited."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(call)
    setattr(call, COROUTINE_MARK, getattr(asyncio.coroutines, COROUTINE_MARK))
    return call


async def call_and_await(work: Callable[[], Awaitable[T]]) -> T:
    """Call `work` and await its result, both on the loop that runs this coroutine."""
    return await work()


def call_for_future(call: Callable[[], T], what: str) -> T:
    """Call a function. If it raises StopIteration, which no future can carry, raise RuntimeError.

    `what` is the name of the function in that error.
    """
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError(f"{what} raised StopIteration") from error


async def call_in_new_thread(call: Callable[[], T], what: str) -> T:
    """Call a plain function in a new thread. If the caller is cancelled, the thread runs on.

    The worker's own threads are not used: a function that never returns would block one of them.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    inherited = contextvars.copy_context()

    def set_future(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, value))

    def work() -> None:
        value, failure = None, None
        try:
            value = inherited.run(call_for_future, call, what)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_future, value, failure)

    threading.Thread(target=work, name="flowfabric-call", daemon=True).start()
    return await future
