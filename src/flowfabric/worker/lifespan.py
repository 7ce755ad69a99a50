"""Runs the app's hooks before the first worker of a process starts and after the last one ends."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from flowfabric.tasks.extensions import Extensions, Hook
from flowfabric.tasks.providers import ResolvedProvider, Values
from flowfabric.tasks.spec import TaskSpec
from flowfabric.telemetry import WORKER_LOGGER

_Request = tuple[ResolvedProvider, asyncio.Future[None]]


class Lifespan:
    """Runs the app's startup and shutdown hooks, and keeps provided values for the workers.

    One asyncio task makes and closes all values: some context managers must exit in the task that
    entered them.
    """

    def __init__(self, extensions: Extensions) -> None:
        self.extensions = extensions
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[contextvars.Context]
        self._requests: asyncio.Queue[_Request | None]
        self._values: Values = {}

    async def enter(self, specs: Iterable[TaskSpec]) -> contextvars.Context:
        """Run the startup hooks once, and return the contextvars that they set.

        Raises the error of a hook or a provider, and `InvalidInput` for a task that can never run.
        """
        providers: dict[ResolvedProvider, None] = {}
        for spec in specs:
            spec.check()
            providers |= dict.fromkeys(self.extensions.plan(spec).of_worker)
        self._users += 1
        try:
            if self._task is None:
                self._started = asyncio.get_running_loop().create_future()
                self._requests = asyncio.Queue()
                self._values = {}
                self._task = asyncio.create_task(self._run())
            either: list[asyncio.Future[Any]] = [self._started, self._task]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._started.done():
                await asyncio.shield(self._task)
            await self.shared(tuple(providers))
        except BaseException:
            if (ending := self._remove_user()) is not None:
                ending.cancel()
                await asyncio.gather(ending, return_exceptions=True)
            raise
        return self._started.result()

    async def exit(self) -> None:
        """Run the shutdown hooks if this is the last worker. Raises the error of a hook."""
        requests = self._requests
        if (ending := self._remove_user()) is not None:
            requests.put_nowait(None)
            await asyncio.shield(ending)

    async def close(self) -> None:
        """Run the shutdown hooks now, even if other workers still run."""
        if self._users:
            self._users = 1
            await self.exit()

    async def shared(self, providers: tuple[ResolvedProvider, ...]) -> Values:
        """Make the missing values of `providers`, and return all values that the workers share."""
        for provider in providers:
            if provider not in self._values:
                if self._task is None or self._task.done():
                    raise RuntimeError("the worker has ended and has closed its provided values")
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._requests.put_nowait((provider, done))
                await done
        return self._values

    def _remove_user(self) -> asyncio.Task[None] | None:
        self._users -= 1
        if self._users:
            return None
        ending, self._task = self._task, None
        return ending

    async def _run(self) -> None:
        started, requests, values = self._started, self._requests, self._values
        failure: BaseException | None = None
        try:
            for hook in self.extensions.on_startup:
                await _call(hook)
            started.set_result(contextvars.copy_context())
            async with AsyncExitStack() as stack:
                await _provide(requests, stack, values)
        except BaseException as error:
            failure = error
            if started.done() and isinstance(error, Exception):
                WORKER_LOGGER.exception("closing provided values failed")
        for hook in reversed(self.extensions.on_shutdown):
            try:
                await _call(hook)
            except Exception as error:
                # Log the error, and run the other hooks.
                WORKER_LOGGER.exception("shutdown hook failed: %s", _name(hook))
                failure = failure or error
        if failure is not None:
            raise failure


async def _provide(
    requests: asyncio.Queue[_Request | None], stack: AsyncExitStack, values: Values
) -> None:
    """Make requested values, one after another, until the last worker ends."""
    while (request := await requests.get()) is not None:
        provider, done = request
        try:
            if provider not in values:
                await provider.enter(stack, values, None)
        except BaseException as error:
            if not done.done():
                done.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not done.done():
                done.set_result(None)


async def _call(hook: Hook) -> None:
    answer = hook()
    if inspect.isawaitable(answer):
        await answer


def _name(hook: Hook) -> str:
    return getattr(hook, "__qualname__", None) or repr(hook)
