"""Wait for executions to end. All callers in a process share the same queries."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from flowfabric.client.events import ENDED_CHANNEL, STREAM_CHANNEL
from flowfabric.client.executions import Executions
from flowfabric.core.errors import Unavailable
from flowfabric.core.execution import Ending
from flowfabric.core.ids import AnyId
from flowfabric.db.session import Database, Notify, Session
from flowfabric.telemetry import ENGINE_LOGGER

# How often a waiter polls: every 0.5 s without a hint; with hints, at most every 0.01 s.
POLL_SECONDS = 0.5
LEAST_SECONDS = 0.01
BATCH = 1000
# A client closes its listening connection after this many seconds without a waiting caller.
LINGER_SECONDS = 5.0

# The waits for executions of one partition.
Group: TypeAlias = dict[UUID, set[asyncio.Future[Ending]]]


class Results:
    """Waits until executions have ended, on behalf of all callers in this process."""

    def __init__(self, database: Database, executions: Executions) -> None:
        self._database = database
        self._executions = executions
        self._waiting: dict[int, Group] = {}
        self._hinted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._own: Session | None = None
        self._shared: Session | None = None
        self._listening: Session | None = None
        # Further channels on which the same session listens, for readers of streams.
        self._also: dict[str, Notify] = {}

    def share(self, session: Session) -> None:
        """Listen on `session`, which is already open, instead of opening another session."""
        self._shared = session
        self._hinted.set()  # the current waits move to this session

    def unshare(self) -> None:
        self._shared = None
        self._hinted.set()

    async def wait(self, id: AnyId) -> Ending:
        """Wait until an execution has ended and return its ending."""
        id = await self._executions.find(id)
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        group = self._waiting.setdefault(id.partition_key, {})
        waiters = group.setdefault(id.uuid, set())
        waiters.add(future)
        self._hinted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            return await future
        finally:
            waiters.discard(future)
            if not waiters:
                group.pop(id.uuid, None)

    async def follow(self, channel: str, notify: Notify) -> None:
        """Call `notify` for every message on `channel`, until `unfollow` is called.

        This uses the session that also listens for the ends of executions.
        """
        self._also[channel] = notify
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._listen()

    def unfollow(self, channel: str) -> None:
        self._also.pop(channel, None)

    @property
    def own_session(self) -> Session | None:
        """The session that this client opened only to listen; None if the client listens on a
        worker's session.
        """
        return self._own if self._listening is self._own else None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for group in self._waiting.values():
            for waiters in group.values():
                for future in waiters:
                    if not future.done():
                        future.set_exception(Unavailable("The client is closed."))

    async def _run(self) -> None:
        try:
            await self._listen()
            idle_since = monotonic()
            while (
                any(self._waiting.values())
                or self._also
                or monotonic() - idle_since < LINGER_SECONDS
            ):
                self._hinted.clear()
                if self._listening is not (self._shared or self._own):
                    await self._listen()
                if any(self._waiting.values()):
                    idle_since = monotonic()
                    await self._look()
                    await asyncio.sleep(LEAST_SECONDS)
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._hinted.wait()
                except TimeoutError:
                    await self._listen()
        finally:
            self._task = None
            await self._forget()

    async def _look(self) -> None:
        for partition, group in list(self._waiting.items()):
            ids = list(group)
            for start in range(0, len(ids), BATCH):
                await self._look_at(partition, group, ids[start : start + BATCH])

    async def _look_at(self, partition: int, group: Group, ids: list[UUID]) -> None:
        try:
            endings = await self._executions.read_results(partition, ids)
        except Exception as error:
            # Pass any error to the waiters, which could otherwise wait forever.
            self._fail(error, ids, group)
            return
        for ending in endings:
            for future in group.get(ending.execution_id, ()):
                if not future.done():
                    future.set_result(ending)

    def _fail(self, error: Exception, ids: list[UUID], group: Group) -> None:
        for id in ids:
            for future in group.get(id, ()):
                if not future.done():
                    future.set_exception(error)

    async def _listen(self) -> None:
        if self._shared is None and self._own is None:
            self._own = self._database.session("results")
        elif self._shared is not None and self._own is not None:
            own, self._own = self._own, None
            await own.close()
        session = self._listening = self._shared or self._own
        if session is None:
            return
        try:
            await session.listen(ENDED_CHANNEL, lambda _: self._hinted.set())
            for channel, notify in list(self._also.items()):
                await session.listen(channel, notify)
        except Exception as error:
            ENGINE_LOGGER.debug("cannot listen for endings, polling instead: %s", error)

    async def _forget(self) -> None:
        own, self._own, self._listening = self._own, None, None
        if self._shared is not None:
            await self._shared.unlisten(ENDED_CHANNEL)
            await self._shared.unlisten(STREAM_CHANNEL)
        if own is not None:
            await own.close()
