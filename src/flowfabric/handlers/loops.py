"""Tells code on an event loop from code in a thread, and names the call that belongs there."""

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

# asyncio's mark, before Python 3.12, on plain functions that return a coroutine.
COROUTINE_MARK = "_is_coroutine"


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def check_no_loop(instead: str) -> None:
    """Refuse a blocking call on a thread that runs an event loop."""
    if running_loop() is not None:
        raise RuntimeError(f"This would block the event loop. In async code use: await {instead}")


def not_awaited(call: str, instead: str) -> RuntimeError:
    """Return the error for an async call in the thread of a `def` task."""
    return RuntimeError(
        f"{call} has to be awaited in an `async def` task. In a `def` task use: {instead}(...)"
    )


def mark_coroutine_function(call: Callable[P, R]) -> Callable[P, R]:
    """Mark a plain function whose result must be awaited, as if it were an `async def`."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(call)
    setattr(call, COROUTINE_MARK, getattr(asyncio.coroutines, COROUTINE_MARK))
    return call


async def call_and_await(work: Callable[[], Awaitable[T]]) -> T:
    """Call `work` on the loop that runs this coroutine, not where the coroutine was made."""
    return await work()


def call_for_future(call: Callable[[], T], what: str) -> T:
    """Call in a thread for a future, which cannot carry a StopIteration."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError(f"{what} raised StopIteration") from error


async def call_in_new_thread(call: Callable[[], T], what: str) -> T:
    """Call a plain function in a thread of its own, which nobody waits for if the caller gives up.

    Not in the worker's threads: a call that does not end would keep one from the others.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    inherited = contextvars.copy_context()

    def settle(value: T | None, error: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="flowfabric-call", daemon=True).start()
    return await future
