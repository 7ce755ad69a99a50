"""Subscriptions: list them, move them, and consume their events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.client.addresses import Scoped
from flowfabric.client.consumer import HintListener, Subscription
from flowfabric.client.events import (
    Events,
    Feed,
    check_page_size,
    wanted_kinds,
    wanted_texts,
)
from flowfabric.client.partitions import ask_reachable
from flowfabric.core.errors import InvalidInput, SubscriptionNotFound, Unavailable
from flowfabric.core.partition import Found
from flowfabric.core.states import EventKind
from flowfabric.core.subscription import (
    DEFAULT_KEEP,
    MAX_LEASE,
    MIN_LEASE,
    EventFilter,
    OnExpiry,
    SubscriptionInfo,
    SubscriptionLease,
    check_on_expiry,
    check_subscription_name,
)
from flowfabric.core.webhook import WebhookInfo
from flowfabric.db import functions
from flowfabric.db.records import reader
from flowfabric.db.session import Database

_info = reader(
    SubscriptionInfo,
    functions.LIST_SUBSCRIPTIONS,
    unread="cursor_text",
    default="behind_at waiting is_expired state",
    on_expiry=OnExpiry,
)


_lease = reader(SubscriptionLease, functions.LEASE_SUBSCRIPTION)


Lagging = TypeVar("Lagging", SubscriptionInfo, WebhookInfo)


class Subscriptions(Scoped):
    """The subscriptions of a namespace."""

    def __init__(self, database: Database, events: Events, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self.events = events
        self.listener = HintListener(database)
        self._is_closed = False

    def check_open(self) -> None:
        """Raise Unavailable if the client is closed, so that no consumer waits on a closed
        client."""
        if self._is_closed:
            raise Unavailable("The client is closed.")

    def consume(self, name: str, **options: Any) -> Subscription:
        """Return the events of a subscription, to iterate over. The first iteration creates the
        subscription.

        The options are the options of `App.subscribe`, but with the lists `tasks`, `lanes` and
        `instance_tags` instead of `task`, `lane` and `instance_tag`.
        """

        async def connect() -> Subscriptions:
            return self

        return subscription(connect, name, **options)

    async def list(self, name: str | None = None) -> Found[SubscriptionInfo]:
        """List subscriptions, and how far each is behind.

        `missing` names the partitions that cannot be reached. Events in them are not counted.
        """
        rows = await self._database.call(
            functions.LIST_SUBSCRIPTIONS, namespace=self._namespace, name=name
        )
        return await self.with_lags([_info(row) for row in rows], name)

    async def with_lags(self, infos: Sequence[Lagging], name: str | None) -> Found[Lagging]:
        """Return the given subscriptions or webhooks, and how far each is behind."""
        found = {(one.namespace, one.name): one for one in infos}
        if not found:
            return Found()

        async def lags(partition: int) -> Any:
            return await self._database.call(
                functions.READ_LAGS, partition_key=partition, namespace=self._namespace, name=name
            )

        answers, missing = await ask_reachable(await self._database.partitions.all(), lags)
        for row in (row for answer in answers for row in answer):
            one = found.get((row["namespace"], row["name"]))
            if one is None:
                continue
            times = [time for time in (one.behind_at, row["behind_at"]) if time is not None]
            found[one.namespace, one.name] = replace(
                one,
                behind_at=min(times, default=None),
                waiting=one.waiting + row["waiting"],
                is_expired=one.is_expired or row["is_expired"],
            )
        return Found([one.judged() for one in found.values()], missing)

    async def get(self, name: str) -> SubscriptionInfo:
        """Return one subscription."""
        self._own()
        check_subscription_name(name)
        for found in await self.list(name):
            return found
        raise SubscriptionNotFound.explained({"subscription": name})

    async def reset(
        self,
        name: str,
        *,
        since: datetime | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Move a subscription to the end of the event log. If `since` is given, move it instead to
        the first event that happened at `since` or later.

        A running consumer continues at the new position.
        """
        check_subscription_name(name)
        await self._database.call(
            functions.RESET_SUBSCRIPTION,
            namespace=self._own(),
            name=name,
            cursor=await self.events.open(since),
            reason=reason,
            actor=actor,
        )

    async def remove(self, name: str) -> None:
        """Delete a subscription with its position. A repeat changes nothing."""
        check_subscription_name(name)
        await self._database.call(functions.REMOVE_SUBSCRIPTION, namespace=self._own(), name=name)

    async def close(self) -> None:
        """Stop listening for events, and stop the consumers of this client."""
        self._is_closed = True
        await self.listener.close()

    async def lease(
        self,
        name: str,
        holder_id: UUID,
        *,
        holder_name: str,
        ttl: timedelta,
        filter: EventFilter,
        on_expiry: OnExpiry = OnExpiry.STOP,
        keep: timedelta = DEFAULT_KEEP,
        cursor: str | None = None,
    ) -> SubscriptionLease:
        """Take or renew the lease on a subscription."""
        rows = await self._database.call(
            functions.LEASE_SUBSCRIPTION,
            namespace=self._own(),
            name=name,
            holder_id=holder_id,
            holder_name=holder_name,
            ttl=ttl,
            kinds=filter.kinds,
            tasks=filter.tasks,
            lanes=filter.lanes,
            instance_tags=filter.instance_tags,
            on_expiry=on_expiry,
            keep=keep,
            cursor=cursor,
        )
        return _lease(rows[0])

    async def ack(
        self,
        name: str,
        holder_id: UUID,
        epoch: int,
        *,
        ttl: timedelta,
        ack_no: int | None = None,
        cursor: str | None = None,
        count: int = 0,
    ) -> bool:
        """Store the position (`cursor`) of the consumer that has the lease, and renew the lease.
        If `cursor` is None, only renew the lease. Return False if the consumer has lost the lease.

        `ack_no` numbers the calls of one lease from 1, so that a late repeat does not put the
        position back.
        """
        rows = await self._database.call(
            functions.ACK_SUBSCRIPTION,
            namespace=self._own(),
            name=name,
            holder_id=holder_id,
            epoch=epoch,
            ttl=ttl,
            ack_no=ack_no,
            cursor=cursor,
            count=count,
        )
        return bool(rows[0]["outcome"] == "acked")

    async def release(self, name: str, holder_id: UUID, epoch: int) -> None:
        """Release the lease on a subscription. A repeat changes nothing."""
        await self._database.call(
            functions.RELEASE_SUBSCRIPTION,
            namespace=self._own(),
            name=name,
            holder_id=holder_id,
            epoch=epoch,
        )

    def _own(self) -> str:
        if self._namespace is None:
            raise InvalidInput(
                field="namespace", problem="must be given: a subscription belongs to one namespace"
            )
        return self._namespace


def subscription(
    connect: Callable[[], Awaitable[Subscriptions]],
    name: str,
    *,
    kinds: Iterable[EventKind | str] | None = None,
    feed: Feed | str | None = None,
    tasks: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
    instance_tags: Iterable[str] | None = None,
    since: datetime | None = None,
    on_expiry: OnExpiry | str = OnExpiry.STOP,
    keep: timedelta = DEFAULT_KEEP,
    lease_ttl: timedelta = timedelta(seconds=30),
    page_size: int = 500,
    follow: bool = True,
    call: Callable[..., Any] | None = None,
) -> Subscription:
    """Return the events of a subscription. `connect` returns the `Subscriptions` of a client."""
    check_subscription_name(name)
    chosen = wanted_kinds(kinds, feed)
    if not isinstance(lease_ttl, timedelta) or not MIN_LEASE <= lease_ttl <= MAX_LEASE:
        raise InvalidInput(field="lease_ttl", problem="must be from 1 second to 1 hour")
    return Subscription(
        connect,
        name,
        EventFilter(
            None if chosen is None else list(chosen),
            wanted_texts("tasks", tasks),
            wanted_texts("lanes", lanes),
            wanted_texts("instance_tags", instance_tags),
            feed,
        ),
        since=since,
        on_expiry=check_on_expiry(on_expiry),
        keep=keep,
        lease_ttl=lease_ttl,
        page_size=check_page_size(page_size),
        follow=follow,
        call=call,
    )
