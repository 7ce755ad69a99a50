"""Post events to the URLs of webhooks. A worker posts only to the hosts in its settings."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeAlias
from uuid import UUID

from flowfabric.client import FlowFabric, Signed, WebhookLease, level_of
from flowfabric.core.errors import CursorExpired, FlowFabricError, InvalidInput, Unavailable
from flowfabric.core.execution import Event, EventPage
from flowfabric.core.ids import uuid7
from flowfabric.core.webhook import Address, Allowed, Blocked, parse_address, parse_webhook_url
from flowfabric.telemetry import ENGINE_LOGGER

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[Address]]]

POST_SECONDS = 5.0
# How often a worker looks for webhooks that no worker serves, and for new events of the webhooks
# that it serves.
LOOK_SECONDS = 2.0
POLL_SECONDS = 1.0
PASSING_SECONDS = 30.0
LEASE = timedelta(seconds=30)
# After a failure or a crash, at most this many events are posted again.
PAGE = 20


class Refusal(Exception):
    """The receiver did not accept a post, or could not be reached."""


async def resolve_host(host: str, port: int) -> Sequence[Address]:
    """Ask the resolver of the system for all addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [parse_address(str(address[0])) for *_, address in found]


def is_installed() -> bool:
    """Return whether the library that posts events (httpx2) is installed."""
    return find_spec("httpx2") is not None


class Poster:
    """Posts to one URL, by the rules of `core.webhook`.

    Each post resolves the host name once, checks the address, and connects to exactly that address.
    Redirects are not followed, proxy settings in the environment are ignored, and the body of the
    answer is not read.
    """

    def __init__(
        self,
        url: str,
        allowed: Allowed,
        *,
        resolve: Resolve = resolve_host,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        if not is_installed():
            raise InvalidInput(
                field="webhooks", problem="need a library; pip install 'flowfabric[webhooks]'"
            )
        import httpx2

        self._target = parse_webhook_url(url)
        self._allowed = allowed
        self._resolve = resolve
        # Each poster has its own client. A shared client could reuse a connection to another host
        # with the same address, and that host has another certificate.
        self._client = httpx2.AsyncClient(
            verify=trust or ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=POST_SECONDS,
        )
        self._failure: tuple[type[Exception], ...] = (httpx2.HTTPError, OSError)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def post(self, id: str, body: bytes, signed: Signed) -> int:
        """Post a signed body and return the HTTP status.

        Raise Refusal if the receiver does not accept the post.
        """
        try:
            async with asyncio.timeout(POST_SECONDS):
                status = await self._send(id, body, signed)
        except TimeoutError as error:
            raise Refusal(f"no answer within {POST_SECONDS:.0f} s") from error
        except Blocked as error:
            raise Refusal(str(error)) from error
        except self._failure as error:
            raise Refusal(f"{type(error).__name__}: {error}") from error
        if 300 <= status < 400:
            raise Refusal(f"HTTP {status}: redirects are not followed")
        if not 200 <= status < 300:
            raise Refusal(f"HTTP {status}")
        return status

    async def _send(self, id: str, body: bytes, signed: Signed) -> int:
        target = self._target
        # Do not resolve a host that is not on the list.
        if not self._allowed.allows_host(target.host_and_port):
            self._allowed.check(target, [])
        if target.address is not None:
            addresses: Sequence[Address] = [target.address]
        else:
            addresses = await self._resolve(target.host, target.port)
        address = self._allowed.check(target, addresses)
        host = f"[{address}]" if address.version == 6 else str(address)
        request = self._client.build_request(
            "POST",
            f"https://{host}:{target.port}{target.path}",
            content=body,
            headers={
                "Host": target.host if target.port == 443 else target.host_and_port,
                "Content-Type": "application/json",
                "User-Agent": f"flowfabric/{version('flowfabric')}",
                "Webhook-Id": id,
                "Webhook-Timestamp": str(int(signed.signed_at.timestamp())),
                "Webhook-Signature": signed.signature,
            },
            extensions={"sni_hostname": target.host},
        )
        response = await self._client.send(request, stream=True)
        await response.aclose()
        return int(response.status_code)


def event_id(event: Event) -> str:
    """Return the id by which a receiver recognises an event that it gets twice."""
    return f"{event.id.uuid}.{event.version}.{event.kind}"


def event_body(event: Event, *, has_detail: bool) -> bytes:
    """Return the body of a post: the event and its execution, without arguments or results."""
    data = {
        "execution_id": str(event.id.uuid),
        "id": str(event.id),
        "version": event.version,
        "task": event.task,
        "lane": event.lane,
        "namespace": event.namespace,
        "outcome": event.outcome,
        "attempt": event.attempt,
        "flow_id": None if event.flow_id is None else str(event.flow_id),
    }
    if has_detail:
        data["detail"] = event.detail
    return _json(event.kind, event.occurred_at, data)


def trial_body(now: datetime, namespace: str, name: str) -> bytes:
    """Return the body of a post that `flowfabric webhook test` sends."""
    return _json("test", now, {"namespace": namespace, "webhook": name})


def _json(kind: str, at: datetime, data: dict[str, Any]) -> bytes:
    body = {"type": kind, "timestamp": at.isoformat(), "data": data}
    return json.dumps(body, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Accepted:
    """Events that a receiver has accepted, and that come after the stored position of its webhook.

    `epoch` is the epoch of the last lease that this process had on the webhook. Under a lease with
    the next epoch, this process does not post the events again. Under a lease with a later epoch,
    this process posts them again, because an operator may have reset the webhook in the meantime.
    """

    epoch: int
    ids: set[str]


class WebhookDelivery:
    """Posts events to the webhooks of one namespace.

    A webhook is skipped if the settings do not allow this process to call its host.
    """

    def __init__(
        self,
        client: FlowFabric,
        allowed: Allowed,
        *,
        resolve: Resolve = resolve_host,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._client = client
        self._allowed = allowed
        self._resolve = resolve
        self._trust = trust
        self._serving: dict[str, asyncio.Task[None]] = {}
        # For each webhook, the accepted events after its stored position.
        self._accepted: dict[str, Accepted] = {}

    async def run(self) -> None:
        """Serve webhooks until cancelled."""
        try:
            while True:
                try:
                    await self.look()
                except Exception as error:
                    # Catch every error: if this loop ended, this process would serve no webhook.
                    ENGINE_LOGGER.log(
                        level_of(error),
                        "search for webhooks failed, trying again: %s",
                        error,
                        exc_info=None if isinstance(error, FlowFabricError) else error,
                    )
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            tasks = list(self._serving.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def look(self) -> None:
        """Begin to serve the webhooks that no worker serves, if their hosts are allowed."""
        for name, host in await self._client.webhooks.due():
            if name not in self._serving and self._allowed.allows_host(host):
                task = asyncio.create_task(self._serve(name), name=f"flowfabric webhook {name}")
                self._serving[name] = task
                task.add_done_callback(partial(self._forget, name))

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        self._serving.pop(name, None)

    async def _serve(self, name: str) -> None:
        try:
            await self.serve(name)
        except Exception as error:
            ENGINE_LOGGER.log(
                level_of(error),
                "webhook given up for now: %s: %s",
                name,
                error,
                exc_info=None if isinstance(error, FlowFabricError) else error,
            )

    async def serve(self, name: str, *, follow: bool = True) -> int:
        """Post the events of a webhook until a post fails or the lease is lost.

        If `follow` is false, also stop when no event is left. Return how many events were posted.
        """
        holder_id = uuid7()
        holder_name = f"{socket.gethostname()}:{os.getpid()}"[:256]
        webhooks = self._client.webhooks
        lease = await webhooks.lease(name, holder_id, holder_name=holder_name, ttl=LEASE)
        if lease.outcome != "leased":
            return 0
        renewals = asyncio.create_task(self._renew(name, holder_id, lease.epoch))
        try:
            return await self._post_all(name, holder_id, lease, follow, renewals)
        finally:
            renewals.cancel()
            await asyncio.wait([renewals])
            with suppress(Unavailable):
                await webhooks.release(name, holder_id, lease.epoch)

    async def _post_all(
        self,
        name: str,
        holder_id: UUID,
        lease: WebhookLease,
        follow: bool,
        renewals: asyncio.Task[None],
    ) -> int:
        webhooks = self._client.webhooks
        cursor, ack_no, posted = lease.cursor_text, 0, 0
        stored_at, has_moved = monotonic(), False
        accepted = self._accepted_before(name, lease.epoch)
        try:
            parse_webhook_url(lease.url)
        except InvalidInput as error:
            # The client refuses such a URL, but an operator can store it with SQL.
            await self._fail(name, holder_id, lease.epoch, 1, str(error))
            return 0
        poster = Poster(lease.url, self._allowed, resolve=self._resolve, trust=self._trust)
        async with poster:
            while not renewals.done():
                page = await self._read(name, cursor, lease)
                events = [event for event in page.events if event_id(event) not in accepted]
                try:
                    # A page holds whole transactions, so it may be long.
                    for start in range(0, len(events), PAGE):
                        if renewals.done() or not await self._post_events(
                            name, holder_id, lease, events[start : start + PAGE], poster, accepted
                        ):
                            return posted
                        posted += len(events[start : start + PAGE])
                except Refusal as error:
                    ack_no += 1
                    await self._fail(name, holder_id, lease.epoch, ack_no, str(error))
                    return posted
                has_moved, cursor = has_moved or page.cursor != cursor, page.cursor
                if has_moved and (page.events or monotonic() - stored_at > PASSING_SECONDS):
                    ack_no += 1
                    if not await webhooks.ack(
                        name,
                        holder_id,
                        lease.epoch,
                        ttl=LEASE,
                        ack_no=ack_no,
                        cursor=cursor,
                        count=len(page.events),
                    ):
                        return posted
                    stored_at, has_moved = monotonic(), False
                    accepted.clear()
                if page.has_more:
                    continue
                if not follow:
                    return posted
                await asyncio.sleep(POLL_SECONDS)
        return posted

    def _accepted_before(self, name: str, epoch: int) -> set[str]:
        before = self._accepted.get(name)
        ids = before.ids if before is not None and before.epoch + 1 == epoch else set()
        self._accepted[name] = Accepted(epoch, ids)
        return ids

    async def _post_events(
        self,
        name: str,
        holder_id: UUID,
        lease: WebhookLease,
        events: Sequence[Event],
        poster: Poster,
        accepted: set[str],
    ) -> bool:
        """Post events in order; return False if the lease was lost."""
        ids = [event_id(event) for event in events]
        bodies = [event_body(event, has_detail=lease.has_detail) for event in events]
        signatures = await self._client.webhooks.sign(
            name, ids, bodies, holder_id=holder_id, epoch=lease.epoch
        )
        if signatures is None:
            return False
        for id, body, signed in zip(ids, bodies, signatures, strict=True):
            await poster.post(id, body, signed)
            accepted.add(id)
        return True

    async def _read(self, name: str, cursor: str, lease: WebhookLease) -> EventPage:
        events = self._client.events
        while True:
            try:
                return await events.read(cursor, limit=PAGE, kinds=lease.kinds, tasks=lease.tasks)
            except CursorExpired as error:
                ENGINE_LOGGER.warning(
                    "webhook lost events, resuming at %s: %s", error.resume_from, name
                )
                cursor = await events.open(error.resume_from)

    async def _fail(self, name: str, holder_id: UUID, epoch: int, ack_no: int, answer: str) -> None:
        outcome = await self._client.webhooks.fail(
            name, holder_id, epoch, ack_no=ack_no, answer=answer
        )
        if outcome == "disabled":
            ENGINE_LOGGER.error("webhook disabled after its last failure: %s: %s", name, answer)
        else:
            ENGINE_LOGGER.warning("webhook post failed, trying again later: %s: %s", name, answer)

    async def _renew(self, name: str, holder_id: UUID, epoch: int) -> None:
        """Renew the lease until it is lost."""
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            try:
                if not await self._client.webhooks.ack(name, holder_id, epoch, ttl=LEASE):
                    return
            except FlowFabricError as error:
                ENGINE_LOGGER.log(level_of(error), "webhook lease not renewed: %s", error)
