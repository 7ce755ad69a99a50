"""Consume a subscription: lease it, read its events, and store the acknowledged position."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from flowfabric.client.events import POLL_SECONDS, RECONNECT_SECONDS, listen_for_hints
from flowfabric.core.errors import (
    CursorExpired,
    FlowFabricError,
    InvalidInput,
    RetryExhausted,
    SubscriptionBusy,
    SubscriptionLost,
    Unavailable,
)
from flowfabric.core.execution import Event, EventPage
from flowfabric.core.ids import uuid7
from flowfabric.core.subscription import EventFilter, OnExpiry, SubscriptionLease
from flowfabric.db.outage import level_of
from flowfabric.db.session import Database, Session
from flowfabric.telemetry import ENGINE_LOGGER

if TYPE_CHECKING:
    from flowfabric.client.subscriptions import Subscriptions

# A position is stored at most this often, and when a consumer ends.
STORE_SECONDS = 0.1
# While the log has only events that the subscription does not want, its position is stored this
# often.
PASSING_SECONDS = 30.0
# A consumer that waits for its turn asks this often.
BUSY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class SubscribedEvent(Event):
    """An event of a subscription. Call `ack` once you have processed it."""

    _turn: _Turn | None = None
    _number: int = 0

    async def ack(self) -> None:
        """Acknowledge this event and all events before it.

        The position is stored only for whole pages of events. If the consumer crashes, or leaves
        the loop in the middle of a page, some acknowledged events may come again.

        Raises SubscriptionLost if another consumer has the subscription now, or if the subscription
        was reset. Events whose acknowledgement was not stored may then come again.
        """
        assert self._turn is not None
        await self._turn.ack(self._number)

    def ack_sync(self) -> None:
        """Acknowledge this event and all events before it, from synchronous code. See `ack`."""
        assert self._turn is not None
        if self._turn.call is None:
            raise InvalidInput(field="ack_sync", problem="needs app.subscribe_sync; await ack()")
        self._turn.call(self.ack, "event.ack()")


_FIELDS = tuple(field.name for field in fields(Event))


def _numbered(event: Event, turn: _Turn, number: int) -> SubscribedEvent:
    values: dict[str, Any] = {name: getattr(event, name) for name in _FIELDS}
    values |= {"_turn": turn, "_number": number}
    return SubscribedEvent(**values)


class HintListener:
    """Listens for hints on one connection, for all consumers of a client.

    The connection is closed when the client has no consumers left.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Session | None = None
        self._heard: set[asyncio.Event] = set()

    def add(self, heard: asyncio.Event) -> None:
        self._heard.add(heard)

    async def listen(self) -> None:
        """Begin to listen for hints, unless this listener is already connected."""
        if self._session is None:
            self._session = self._database.session("subscriptions")
        if not self._session.is_connected:
            await listen_for_hints(self._session, self._tell)

    async def remove(self, heard: asyncio.Event) -> None:
        self._heard.discard(heard)
        if not self._heard:
            await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._tell()

    def _tell(self) -> None:
        for heard in self._heard:
            heard.set()


@dataclass(slots=True)
class _Page:
    """A page of events that was delivered to the consumer.

    `last` is the number of the last event in the page. The events of a turn are numbered from 1.
    `cursor` is the position after the page. `count` is the number of events in the page.
    """

    last: int
    cursor: str
    count: int


class _Turn:
    """The turn of a consumer: what it reads and acknowledges while it has the lease."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        name: str,
        holder_id: UUID,
        lease: SubscriptionLease,
        ttl: timedelta,
        heard: asyncio.Event,
        call: Callable[..., Any] | None,
    ) -> None:
        self._subscriptions = subscriptions
        self._name = name
        self._holder_id = holder_id
        self._epoch = lease.epoch
        self._ttl = ttl
        self._heard = heard
        self.call = call
        self.is_lost = False
        self._delivered = 0
        self._acked = 0
        self._pages: deque[_Page] = deque()
        # The cursor to store. It is after the last page whose events are all acknowledged.
        self._cursor: str | None = None
        self._count = 0
        self._ack_no = 0
        self._stored_at = monotonic() - STORE_SECONDS
        self._storing = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None
        self._renewals = asyncio.create_task(self._renew())

    def deliver(self, page: EventPage) -> list[SubscribedEvent]:
        """Number and return the events of a page. Remember the page until they are acknowledged."""
        first = self._delivered + 1
        self._delivered += len(page.events)
        self._pages.append(_Page(self._delivered, page.cursor, len(page.events)))
        return [_numbered(event, self, number) for number, event in enumerate(page.events, first)]

    async def ack(self, number: int) -> None:
        if self.is_lost:
            raise SubscriptionLost(subscription=self._name)
        self._acked = max(self._acked, number)
        if not self._advance():
            return
        if monotonic() - self._stored_at >= STORE_SECONDS:
            await self.store()
        elif self._later is None:
            self._later = asyncio.create_task(self._store_later())

    async def pass_by(self) -> None:
        """While the filters exclude all events, store the position every 30 s."""
        self._advance()
        if self._cursor is not None and monotonic() - self._stored_at >= PASSING_SECONDS:
            with suppress(SubscriptionLost):
                await self.store()

    async def make_room(self, count: int, page_size: int) -> None:
        """Store the position if too many events would come again after a crash.

        These events are the acknowledged ones after the stored position, and the `count` events of
        the next page. More than `page_size` are too many.
        """
        self._advance()
        if self._cursor is not None and self._count + count > page_size:
            await asyncio.sleep(max(self._stored_at + STORE_SECONDS - monotonic(), 0))
            with suppress(SubscriptionLost):
                await self.store()

    async def store(self) -> None:
        """Store the position that follows the last acknowledged page.

        Wait if the database is down.
        """
        async with self._storing:
            cursor, count = self._cursor, self._count
            if cursor is None or self.is_lost:
                return
            self._ack_no += 1
            is_done = False
            while not is_done:
                is_done = await self._try_to_store(cursor, count)
                await asyncio.sleep(0 if is_done else RECONNECT_SECONDS)
            self._stored_at = monotonic()
            self._count -= count
            if self._cursor == cursor:
                self._cursor = None
            if self.is_lost:
                raise SubscriptionLost(subscription=self._name)

    async def _try_to_store(self, cursor: str, count: int) -> bool:
        try:
            is_ours = await self._subscriptions.ack(
                self._name,
                self._holder_id,
                self._epoch,
                ttl=self._ttl,
                ack_no=self._ack_no,
                cursor=cursor,
                count=count,
            )
        except (Unavailable, RetryExhausted) as error:
            self._subscriptions.check_open()
            ENGINE_LOGGER.log(level_of(error), "position not stored, trying again: %s", error)
            return False
        if not is_ours:
            self._lose()
        return True

    async def end(self) -> None:
        """Store the acknowledged position, and release the lease of the subscription."""
        for task in (self._renewals, self._later):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self.is_lost:
            return
        with suppress(SubscriptionLost, Unavailable, RetryExhausted):
            self._advance()
            # Do not wait for a database that is down: the lease expires by itself.
            async with self._storing:
                if self._cursor is not None:
                    self._ack_no += 1
                    await self._try_to_store(self._cursor, self._count)
            if not self.is_lost:
                await self._subscriptions.release(self._name, self._holder_id, self._epoch)

    def _advance(self) -> bool:
        """Move the position past all pages whose events are all acknowledged.

        Return True if at least one of these pages had events.
        """
        had_events = False
        while self._pages and self._pages[0].last <= self._acked:
            page = self._pages.popleft()
            self._cursor = page.cursor
            self._count += page.count
            had_events = had_events or page.count > 0
        return had_events

    async def _store_later(self) -> None:
        try:
            while self._count > 0 and not self.is_lost:
                await asyncio.sleep(max(self._stored_at + STORE_SECONDS - monotonic(), 0))
                await self.store()
        except (SubscriptionLost, Unavailable):
            # The iterator meets the same error: it begins again, or ends because the client is
            # closed.
            pass
        finally:
            # Forget this task only now: while it waits for the database, `end` must still find it.
            self._later = None

    async def _renew(self) -> None:
        while not self.is_lost:
            await asyncio.sleep(self._ttl.total_seconds() / 3)
            try:
                is_ours = await self._subscriptions.ack(
                    self._name, self._holder_id, self._epoch, ttl=self._ttl
                )
            except FlowFabricError as error:
                ENGINE_LOGGER.log(
                    level_of(error), "lease on subscription %s not renewed: %s", self._name, error
                )
                continue
            if not is_ours:
                self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            ENGINE_LOGGER.info(
                "subscription lost to another consumer or reset: %s, epoch %s",
                self._name,
                self._epoch,
            )
        self.is_lost = True
        self._heard.set()


class Subscription:
    """The events of a subscription: `async for event in app.subscribe("billing")`.

    Every event comes at least once, and the events of one execution come in order. One consumer
    reads a subscription at a time. Other consumers wait for their turn, or raise SubscriptionBusy
    if `follow` is False. The turn of a consumer ends when its code leaves the loop or the `async
    with` block.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Subscriptions]],
        name: str,
        filter: EventFilter,
        *,
        since: datetime | None,
        on_expiry: OnExpiry,
        keep: timedelta,
        lease_ttl: timedelta,
        page_size: int,
        follow: bool,
        call: Callable[..., Any] | None,
    ) -> None:
        self.name = name
        self._connect = connect
        self._filter = filter
        self._since = since
        self._on_expiry = on_expiry
        self._keep = keep
        self._ttl = lease_ttl
        self._page_size = page_size
        self._follows = follow
        self._call = call
        self._is_entered = False
        self._iterators: list[AsyncGenerator[SubscribedEvent, None]] = []

    def __aiter__(self) -> AsyncGenerator[SubscribedEvent, None]:
        iterator = self._read()
        # In an `async with` block, `__aexit__` ends the iterator. Elsewhere only the loop refers to
        # it, so Python ends it when the loop is left.
        if self._is_entered:
            self._iterators.append(iterator)
        return iterator

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_entered = False
        while self._iterators:
            await self._iterators.pop().aclose()

    async def _read(self) -> AsyncGenerator[SubscribedEvent, None]:
        subscriptions = await self._connect()
        heard = asyncio.Event()
        subscriptions.listener.add(heard)
        is_first = True
        try:
            while True:
                turn, cursor = await self._take(subscriptions, heard, is_first)
                is_first = False
                try:
                    while not turn.is_lost:
                        heard.clear()
                        subscriptions.check_open()
                        await subscriptions.listener.listen()
                        page = await self._next(subscriptions, cursor)
                        if page.cursor != cursor:
                            await turn.make_room(len(page.events), self._page_size)
                            for event in turn.deliver(page):
                                if not turn.is_lost:
                                    yield event
                        await turn.pass_by()
                        cursor = page.cursor
                        if page.has_more:
                            continue
                        if not self._follows and not page.missing:
                            return
                        with suppress(TimeoutError):
                            async with asyncio.timeout(POLL_SECONDS):
                                await heard.wait()
                finally:
                    await turn.end()
        finally:
            await subscriptions.listener.remove(heard)

    async def _next(self, subscriptions: Subscriptions, cursor: str) -> EventPage:
        """Read the next page.

        If the database is down, wait until it is back. If events after the cursor were trimmed, do
        what `on_expiry` says.
        """
        events = subscriptions.events
        resume_from: datetime | None = None
        while True:
            try:
                if resume_from is not None:
                    cursor, resume_from = await events.open(resume_from), None
                return await events.read(cursor, limit=self._page_size, **self._filter.filters())
            except Unavailable as error:
                subscriptions.check_open()
                ENGINE_LOGGER.log(
                    level_of(error), "events of subscription %s not read: %s", self.name, error
                )
                await asyncio.sleep(RECONNECT_SECONDS)
            except CursorExpired as error:
                if self._on_expiry == OnExpiry.STOP:
                    raise
                ENGINE_LOGGER.warning(
                    "subscription %s lost events; resuming at %s: %s",
                    self.name,
                    error.resume_from,
                    error.facts.get("reason"),
                )
                resume_from = error.resume_from

    async def _take(
        self, subscriptions: Subscriptions, heard: asyncio.Event, is_first: bool
    ) -> tuple[_Turn, str]:
        """Wait until this consumer has the lease. Return its turn and the stored position.

        If another consumer has the lease and `follow` is False, raise SubscriptionBusy.
        """
        holder_id = uuid7()
        cursor: str | None = None
        lease: SubscriptionLease | None = None
        is_logged = False
        while True:
            try:
                if lease is not None and lease.outcome == "unknown":
                    cursor = await subscriptions.events.open(self._since)
                lease = await subscriptions.lease(
                    self.name,
                    holder_id,
                    holder_name=f"{socket.gethostname()}:{os.getpid()}"[:256],
                    ttl=self._ttl,
                    filter=self._filter,
                    on_expiry=self._on_expiry,
                    keep=self._keep,
                    cursor=cursor,
                )
            except (Unavailable, RetryExhausted) as error:
                # If the database is down, the first call of a consumer raises at once. A consumer
                # that has read, or has waited for its turn, waits until the database is back.
                if is_first and not is_logged:
                    raise
                subscriptions.check_open()
                ENGINE_LOGGER.log(level_of(error), "subscription not leased: %s", error)
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            if lease.outcome == "unknown":
                continue
            if lease.outcome == "leased":
                turn = _Turn(
                    subscriptions, self.name, holder_id, lease, self._ttl, heard, self._call
                )
                return turn, lease.cursor_text
            if not self._follows:
                raise SubscriptionBusy.explained(
                    {"subscription": self.name, "holder_name": lease.holder_name}
                )
            if not is_logged:
                ENGINE_LOGGER.info(
                    "waiting for subscription %s: %s has its lease", self.name, lease.holder_name
                )
                is_logged = True
            await asyncio.sleep(BUSY_SECONDS)
