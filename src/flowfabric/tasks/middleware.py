"""Middleware: functions that an app calls around every run of a task."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from flowfabric.core.errors import InvalidInput


class CallNext(Protocol):
    """Calls the next middleware, or the task, and returns its result."""

    def __call__(self) -> Awaitable[Any]: ...


# The first argument is the context. Its class belongs to a higher layer; `App.middleware` types it.
Middleware = Callable[[Any, CallNext], Awaitable[Any]]


def check_middleware(function: Middleware) -> None:
    """Refuse a function that cannot be called as middleware."""
    call = function if inspect.isroutine(function) else type(function).__call__
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)):
        raise InvalidInput(field="middleware", problem=f"{function!r} must be an async function")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise InvalidInput(
            field="middleware",
            problem=f"{function!r} must take the context and call_next: {error}",
        ) from error


async def call_middleware(middleware: Sequence[Middleware], context: Any, call: CallNext) -> Any:
    """Call a task through all middleware. The first registered one is the outermost."""
    for one in reversed(middleware):
        call = _Link(one, context, call)
    return await call()


class _Link:
    """One middleware and the call that it wraps."""

    __slots__ = ("_call_next", "_context", "_function", "_is_used")

    def __init__(self, function: Middleware, context: Any, call_next: CallNext) -> None:
        self._function = function
        self._context = context
        self._call_next = call_next
        self._is_used = False

    async def __call__(self) -> Any:
        return await self._function(self._context, self._once)

    async def _once(self) -> Any:
        if self._is_used:
            # A second call in one attempt would be a retry that the database does not count.
            raise RuntimeError(
                "call_next() was called a second time. To retry the task, let the error pass: the "
                "retry policy of the task decides"
            )
        self._is_used = True
        return await self._call_next()
