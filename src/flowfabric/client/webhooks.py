"""Webhooks: subscriptions with a URL to which workers post the events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.client.addresses import Scoped
from flowfabric.client.events import Events, wanted_kinds, wanted_texts
from flowfabric.client.subscriptions import Subscriptions
from flowfabric.core.errors import InvalidInput, WebhookNotFound
from flowfabric.core.ids import partition_of, uuid7
from flowfabric.core.partition import Found
from flowfabric.core.states import EventKind
from flowfabric.core.subscription import check_subscription_name
from flowfabric.core.webhook import WebhookInfo, parse_webhook_url
from flowfabric.db import functions
from flowfabric.db.records import reader
from flowfabric.db.session import Database

_info = reader(
    WebhookInfo,
    functions.LIST_WEBHOOKS,
    unread="cursor_text",
    default="behind_at waiting is_expired state",
)


@dataclass(frozen=True, slots=True)
class WebhookLease:
    """The answer to `Webhooks.lease`. `outcome` is `leased` or `busy`. If it is `leased`, the other
    fields say what to post, and where.
    """

    outcome: str
    epoch: int
    cursor_text: str
    url: str
    kinds: list[str] | None
    tasks: list[str] | None
    has_detail: bool
    failure_count: int


_lease = reader(WebhookLease, functions.LEASE_WEBHOOK)


@dataclass(frozen=True, slots=True)
class Signed:
    """The signature of one post. The signature also covers the time `signed_at`."""

    signed_at: datetime
    signature: str


class Webhooks(Scoped):
    """The webhooks of a namespace. Only an operator may add, list and enable them."""

    def __init__(
        self,
        database: Database,
        events: Events,
        subscriptions: Subscriptions,
        namespace: str | None,
    ) -> None:
        super().__init__(database, namespace)
        self.events = events
        self._subscriptions = subscriptions

    async def add(
        self,
        name: str,
        url: str,
        *,
        kinds: Iterable[EventKind | str] | None = None,
        tasks: Iterable[str] | None = None,
        has_detail: bool = False,
        since: datetime | None = None,
        actor: str | None = None,
    ) -> str:
        """Create a webhook and return the secret that signs its posts. No other call returns the
        secret.

        The webhook begins with new events. If `since` is given, it begins with the first event that
        happened at `since` or later.
        """
        check_subscription_name(name)
        target = parse_webhook_url(url)
        chosen = wanted_kinds(kinds, None)
        rows = await self._database.call(
            functions.ADD_WEBHOOK,
            namespace=self._own(),
            name=name,
            webhook_id=uuid7(),
            url=url,
            host=target.host_and_port,
            cursor=await self.events.open(since),
            kinds=None if chosen is None else list(chosen),
            tasks=wanted_texts("tasks", tasks),
            has_detail=has_detail,
            actor=actor,
        )
        return str(rows[0]["secret"])

    async def list(self, name: str | None = None) -> Found[WebhookInfo]:
        """List webhooks, the last answer of each receiver, and how far each webhook is behind.

        `missing` names the partitions that cannot be reached. Events in them are not counted.
        """
        rows = await self._database.call(
            functions.LIST_WEBHOOKS, namespace=self._namespace, name=name
        )
        return await self._subscriptions.with_lags([_info(row) for row in rows], name)

    async def get(self, name: str) -> WebhookInfo:
        """Return one webhook."""
        self._own()
        check_subscription_name(name)
        for found in await self.list(name):
            return found
        raise WebhookNotFound.explained({"webhook": name})

    async def enable(
        self, name: str, *, reason: str | None = None, actor: str | None = None
    ) -> None:
        """Enable a webhook again. It continues with the first event that was not accepted."""
        check_subscription_name(name)
        await self._database.call(
            functions.ENABLE_WEBHOOK,
            namespace=self._own(),
            name=name,
            reason=reason,
            actor=actor,
        )

    async def remove(self, name: str) -> None:
        """Delete a webhook. A repeat changes nothing."""
        await self._subscriptions.remove(name)

    async def due(self) -> Sequence[tuple[str, str]]:
        """Return the webhooks that a worker can lease now, each with its host and port."""
        rows = await self._database.call(functions.DUE_WEBHOOKS, namespace=self._own())
        return [(row["name"], row["host"]) for row in rows]

    async def lease(
        self, name: str, holder_id: UUID, *, holder_name: str, ttl: timedelta
    ) -> WebhookLease:
        """Take or renew the lease on a webhook."""
        rows = await self._database.call(
            functions.LEASE_WEBHOOK,
            namespace=self._own(),
            name=name,
            holder_id=holder_id,
            holder_name=holder_name,
            ttl=ttl,
        )
        return _lease(rows[0])

    async def sign(
        self,
        name: str,
        ids: Sequence[str],
        bodies: Sequence[bytes],
        *,
        holder_id: UUID | None = None,
        epoch: int | None = None,
    ) -> Sequence[Signed] | None:
        """Sign posts, which are given by their ids and bodies. The database computes the
        signatures. Return None if the lease was lost.
        """
        rows = await self._database.call(
            functions.SIGN_WEBHOOK,
            namespace=self._own(),
            name=name,
            holder_id=holder_id,
            epoch=epoch,
            ids=ids,
            bodies=bodies,
        )
        if rows[0]["outcome"] != "signed":
            return None
        return [Signed(row["signed_at"], row["signature"]) for row in rows]

    async def fail(
        self, name: str, holder_id: UUID, epoch: int, *, ack_no: int, answer: str
    ) -> str:
        """Record that a post failed; return `failed`, `disabled` or `subscription_lost`."""
        rows = await self._database.call(
            functions.FAIL_WEBHOOK,
            # If the webhook is disabled, an event is written. It may be in any partition.
            partition_key=partition_of(holder_id.bytes, self._database.partitions.numbers.minted),
            namespace=self._own(),
            name=name,
            holder_id=holder_id,
            epoch=epoch,
            ack_no=ack_no,
            answer=answer[:250],
        )
        return str(rows[0]["outcome"])

    async def ack(self, name: str, holder_id: UUID, epoch: int, **stored: Any) -> bool:
        """Store the position of a webhook, and renew its lease. Return False if `holder_id` has
        lost the lease. `stored` is passed to `Subscriptions.ack`.
        """
        return await self._subscriptions.ack(name, holder_id, epoch, **stored)

    async def release(self, name: str, holder_id: UUID, epoch: int) -> None:
        """Release the lease on a webhook. A repeat changes nothing."""
        await self._subscriptions.release(name, holder_id, epoch)

    def _own(self) -> str:
        if self._namespace is None:
            raise InvalidInput(
                field="namespace", problem="must be given: a webhook belongs to one namespace"
            )
        return self._namespace
