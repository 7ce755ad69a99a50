"""The life of a process's workers: what happens once before the first and once after the last."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from flowfabric.tasks.extensions import Extensions, Hook
from flowfabric.tasks.providers import Opening, Values
from flowfabric.tasks.spec import TaskSpec
from flowfabric.telemetry import WORKER_LOGGER

_Wish = tuple[Opening, asyncio.Future[None]]


class Lifespan:
    """Runs the hooks at both ends, and keeps what is provided for the time between them.

    That happens in an asyncio task of its own: a context manager may have to be left by the task
    that entered it.
    """

    def __init__(self, extensions: Extensions) -> None:
        self.extensions = extensions
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._began: asyncio.Future[contextvars.Context]
        self._wishes: asyncio.Queue[_Wish | None]
        self._values: Values = {}

    async def enter(self, specs: Iterable[TaskSpec]) -> contextvars.Context:
        """Begin, or join what has begun; returns what the hooks have left in contextvars.

        Raises what a hook or a factory raised, and `InvalidInput` for a task that could never run.
        """
        openings: dict[Opening, None] = {}
        for spec in specs:
            spec.check()
            openings |= dict.fromkeys(self.extensions.plan(spec).of_worker)
        self._users += 1
        try:
            if self._task is None:
                self._began = asyncio.get_running_loop().create_future()
                self._wishes = asyncio.Queue()
                self._values = {}
                self._task = asyncio.create_task(self._live())
            either: list[asyncio.Future[Any]] = [self._began, self._task]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._began.done():
                await asyncio.shield(self._task)
            await self.shared(tuple(openings))
        except BaseException:
            if (ending := self._leave()) is not None:
                ending.cancel()
                await asyncio.gather(ending, return_exceptions=True)
            raise
        return self._began.result()

    async def leave(self) -> None:
        """End it if nobody else is in it; raises what a hook raised then."""
        wishes = self._wishes
        if (ending := self._leave()) is not None:
            wishes.put_nowait(None)
            await asyncio.shield(ending)

    async def close(self) -> None:
        """End it, whoever is still in it."""
        if self._users:
            self._users = 1
            await self.leave()

    async def shared(self, openings: tuple[Opening, ...]) -> Values:
        """What lives as long as this, made now if it is not there yet."""
        for opening in openings:
            if opening not in self._values:
                if self._task is None or self._task.done():
                    raise RuntimeError("the worker has ended, and what it provided with it")
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._wishes.put_nowait((opening, done))
                await done
        return self._values

    def _leave(self) -> asyncio.Task[None] | None:
        self._users -= 1
        if self._users:
            return None
        ending, self._task = self._task, None
        return ending

    async def _live(self) -> None:
        began, wishes, values = self._began, self._wishes, self._values
        failure: BaseException | None = None
        try:
            for hook in self.extensions.on_startup:
                await _called(hook)
            began.set_result(contextvars.copy_context())
            async with AsyncExitStack() as stack:
                await _fulfil(wishes, stack, values)
        except BaseException as error:
            failure = error
            if began.done() and isinstance(error, Exception):
                WORKER_LOGGER.exception("what the worker provided could not be closed")
        for hook in reversed(self.extensions.on_shutdown):
            try:
                await _called(hook)
            except Exception as error:
                # The others run all the same.
                WORKER_LOGGER.exception("a shutdown hook failed: %s", _name(hook))
                failure = failure or error
        if failure is not None:
            raise failure


async def _fulfil(
    wishes: asyncio.Queue[_Wish | None], stack: AsyncExitStack, values: Values
) -> None:
    """Make what is wished for, one after the other, until there is no more to come."""
    while (wish := await wishes.get()) is not None:
        opening, done = wish
        try:
            if opening not in values:
                await opening.enter(stack, values, None)
        except BaseException as error:
            if not done.done():
                done.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not done.done():
                done.set_result(None)


async def _called(hook: Hook) -> None:
    answer = hook()
    if inspect.isawaitable(answer):
        await answer


def _name(hook: Hook) -> str:
    return getattr(hook, "__qualname__", None) or repr(hook)
