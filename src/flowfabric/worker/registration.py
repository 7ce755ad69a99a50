"""Registers the workers of this process, on the heartbeat's thread and connection.

Executions run even without a registration. If a registration fails, the failure is logged and a
later beat retries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Protocol

from flowfabric.client.leases import Caller
from flowfabric.core.code_version import NO_VERSION, CodeVersion
from flowfabric.core.errors import InvalidInput
from flowfabric.core.worker import Asked
from flowfabric.db.outage import level_of
from flowfabric.telemetry import WORKER_LOGGER

# A worker counts as dead after this many lease times without a beat.
_LIVENESS_SHARE = 2
# A registry beat is due after the liveness time divided by this. That is a little less than the
# time between two lease beats, so every lease beat also updates the registry. After two missed
# beats, `worker ls` says that the worker is silent.
_BEAT_SHARE = 7
# Registry calls may delay the renewal of leases by at most the lease time divided by this.
_LEASE_SHARE = 10


class Takeover:
    """The routes of other code versions that a worker takes over because no worker serves them."""

    __slots__ = ("on_change", "routes")

    def __init__(self, on_change: Callable[[], None] | None = None) -> None:
        self.routes: Sequence[int] = ()
        self.on_change = on_change

    def replace(self, routes: Sequence[int]) -> None:
        """Replace the routes. The heartbeat's thread calls this."""
        is_more = not set(routes) <= set(self.routes)
        self.routes = routes
        if is_more and self.on_change is not None:
            self.on_change()


@dataclass(frozen=True, slots=True)
class Registration:
    """What the registry stores about a worker, and functions of the worker that a beat calls."""

    worker_id: str
    worker_instance_id: str
    lanes: Sequence[str] | None
    tasks: Sequence[str]
    capabilities: Sequence[str]
    code: CodeVersion = NO_VERSION
    # Whether the worker begins nothing new: it takes only executions that have a code version.
    finish_only: bool = False
    takeover: Takeover = field(default_factory=Takeover)
    host: str | None = None
    slots: int | None = None
    # Count the running handlers, and drain the worker. The heartbeat's thread calls both.
    count_running: Callable[[], int] = lambda: 0
    drain: Callable[[], None] = lambda: None


class Registry(Protocol):
    """The part of a client that registrations use: the registry, over a given session."""

    async def register(
        self,
        *,
        worker_id: str,
        worker_instance_id: str,
        lanes: Sequence[str] | None,
        tasks: Sequence[str] | None,
        capabilities: Sequence[str],
        liveness_ttl: timedelta,
        code: CodeVersion,
        finish_only: bool,
        host: str | None,
        slots: int | None,
        caller: Caller | None,
        patience: float,
    ) -> str: ...

    async def heartbeat(
        self,
        worker_instance_ids: Sequence[str],
        *,
        running: Sequence[int] | None,
        loop_lag: timedelta | None,
        caller: Caller | None,
        patience: float,
    ) -> Asked: ...

    async def unserved(
        self, worker_instance_ids: Sequence[str], *, caller: Caller | None, patience: float
    ) -> Mapping[str, Sequence[int]]: ...

    async def mark_dead(
        self, worker_instance_id: str, reason: str, *, caller: Caller | None, patience: float
    ) -> bool: ...


class Registrations:
    """Registers the workers of this process, and removes them from the registry when they end."""

    def __init__(
        self,
        registry: Registry,
        lease_ttl: timedelta,
        read_loop_lag: Callable[[], timedelta | None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._read_loop_lag = read_loop_lag
        self._lease_ttl = lease_ttl
        self._ttl = lease_ttl * _LIVENESS_SHARE
        # The workers' loops write `_workers` and `_removed`, and the heartbeat's loop reads them.
        # Every operation on them is atomic in the interpreter. Only the heartbeat's thread uses the
        # other attributes.
        self._workers: dict[str, Registration] = {}
        self._removed: deque[str] = deque()
        self._registered: set[str] = set()
        self._due_at = 0.0

    def add(self, registration: Registration) -> None:
        """Register a worker with the next beat. Safe to call from any thread."""
        self._workers[registration.worker_instance_id] = registration

    def remove(self, worker_instance_id: str) -> None:
        """Remove a worker from the registry with the next beat. Safe to call from any thread."""
        if self._workers.pop(worker_instance_id, None) is not None:
            self._removed.append(worker_instance_id)

    async def beat(self, caller: Caller) -> bool:
        """Update the registry. Return True if the time was too short to register every worker."""
        deadline = monotonic() + self._lease_ttl.total_seconds() / _LEASE_SHARE
        try:
            await self._sign_off(caller)
            await self._beat_if_due(caller)
            for registration in list(self._workers.values()):
                if registration.worker_instance_id not in self._registered:
                    if monotonic() > deadline:
                        return True
                    await self._register(registration, caller)
        except Exception as error:
            WORKER_LOGGER.log(level_of(error), "workers not registered, retrying: %s", error)
        return False

    async def end(self, caller: Caller) -> None:
        """Remove every worker of this process from the registry."""
        for name in list(self._workers):
            self.remove(name)
        try:
            await self._sign_off(caller)
        except Exception as error:
            WORKER_LOGGER.warning("workers not unregistered, they will expire: %s", error)

    async def _beat_if_due(self, caller: Caller) -> None:
        beating = {
            name: registration
            for name, registration in list(self._workers.items())
            if name in self._registered
        }
        if not beating or monotonic() < self._due_at:
            return
        names = list(beating)
        asked = await self._registry.heartbeat(
            names,
            running=[registration.count_running() for registration in beating.values()],
            loop_lag=self._read_loop_lag(),
            caller=caller,
            patience=0.0,
        )
        self._registered.difference_update(asked.register)
        for name in asked.drain:
            beating[name].drain()
        self._due_at = monotonic() + self._ttl.total_seconds() / _BEAT_SHARE
        await self._look_for_unserved(names, caller)

    async def _look_for_unserved(self, names: Sequence[str], caller: Caller) -> None:
        asking = {
            name: registration
            for name in names
            if (registration := self._workers.get(name)) and not registration.finish_only
        }
        if asking:
            found = await self._registry.unserved([*asking], caller=caller, patience=0.0)
            for name, registration in asking.items():
                registration.takeover.replace(found.get(name, ()))

    async def _register(self, registration: Registration, caller: Caller) -> None:
        try:
            await self._registry.register(
                worker_id=registration.worker_id,
                worker_instance_id=registration.worker_instance_id,
                lanes=registration.lanes,
                tasks=registration.tasks,
                capabilities=registration.capabilities,
                liveness_ttl=self._ttl,
                code=registration.code,
                finish_only=registration.finish_only,
                host=registration.host,
                slots=registration.slots,
                caller=caller,
                patience=0.0,
            )
        except InvalidInput as error:
            # The database would refuse a retry too, so the worker runs without a registration.
            WORKER_LOGGER.warning(
                "worker not registered: %s: %s", registration.worker_instance_id, error
            )
            self._workers.pop(registration.worker_instance_id, None)
        else:
            self._registered.add(registration.worker_instance_id)

    async def _sign_off(self, caller: Caller) -> None:
        while self._removed:
            name = self._removed[0]
            if name in self._registered:
                await self._registry.mark_dead(name, "worker_shutdown", caller=caller, patience=0.0)
                self._registered.discard(name)
            self._removed.popleft()
