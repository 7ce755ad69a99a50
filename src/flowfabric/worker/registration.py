"""Tells the registry which workers of this process are there: one call for all of them, on the
heartbeat's thread and connection. Nobody's work depends on it: what fails is logged and tried again
with a later beat."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Protocol

from flowfabric.client.leases import Caller
from flowfabric.core.errors import InvalidInput
from flowfabric.telemetry import WORKER_LOGGER

# A worker counts as dead after this many lease times without a beat.
_LIVENESS_SHARE = 2
# A beat is due a little before a third of that, so that it falls on a beat of the leases.
_BEAT_SHARE = 3.5
# The leases must not wait for the registry longer than this part of their time.
_LEASE_SHARE = 10


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker says about itself."""

    worker_id: str
    worker_instance_id: str
    lanes: Sequence[str] | None
    tasks: Sequence[str]
    capabilities: Sequence[str]


class Registry(Protocol):
    """What is needed of a client: the registry of workers, over a session of the caller's."""

    async def register(
        self,
        *,
        worker_id: str,
        worker_instance_id: str,
        lanes: Sequence[str] | None,
        tasks: Sequence[str] | None,
        capabilities: Sequence[str],
        liveness_ttl: timedelta,
        caller: Caller | None,
        patience: float,
    ) -> str: ...

    async def heartbeat(
        self, worker_instance_ids: Sequence[str], *, caller: Caller | None, patience: float
    ) -> list[str]: ...

    async def mark_dead(
        self, worker_instance_id: str, reason: str, *, caller: Caller | None, patience: float
    ) -> bool: ...


class Registrations:
    """The workers of this process that are there, and those that left."""

    def __init__(self, registry: Registry, lease_ttl: timedelta) -> None:
        self._registry = registry
        self._lease_ttl = lease_ttl
        self._ttl = lease_ttl * _LIVENESS_SHARE
        # Written by the workers' loops, read by the heartbeat's: each step is one operation of the
        # interpreter. Only the heartbeat's thread touches the other two.
        self._here: dict[str, Registration] = {}
        self._left: deque[str] = deque()
        self._registered: set[str] = set()
        self._due_at = 0.0

    def join(self, registration: Registration) -> None:
        """From now on this worker is there; from any thread."""
        self._here[registration.worker_instance_id] = registration

    def leave(self, worker_instance_id: str) -> None:
        """The worker has stopped; from any thread."""
        if self._here.pop(worker_instance_id, None) is not None:
            self._left.append(worker_instance_id)

    async def beat(self, caller: Caller) -> bool:
        """Say what there is to say; True if not all of it could be said in time."""
        enough = monotonic() + self._lease_ttl.total_seconds() / _LEASE_SHARE
        try:
            await self._part(caller)
            await self._beat_if_due(caller)
            for registration in list(self._here.values()):
                if registration.worker_instance_id not in self._registered:
                    if monotonic() > enough:
                        return True
                    await self._register(registration, caller)
        except Exception as error:
            WORKER_LOGGER.warning("the registry of workers could not be told: %s", error)
        return False

    async def end(self, caller: Caller) -> None:
        """Every worker of this process has gone."""
        for name in list(self._here):
            self.leave(name)
        try:
            await self._part(caller)
        except Exception as error:
            WORKER_LOGGER.warning("workers could not be signed off, they will expire: %s", error)

    async def _beat_if_due(self, caller: Caller) -> None:
        names = [name for name in list(self._here) if name in self._registered]
        if not names or monotonic() < self._due_at:
            return
        missing = await self._registry.heartbeat(names, caller=caller, patience=0.0)
        self._registered.difference_update(missing)
        self._due_at = monotonic() + self._ttl.total_seconds() / _BEAT_SHARE

    async def _register(self, registration: Registration, caller: Caller) -> None:
        try:
            await self._registry.register(
                worker_id=registration.worker_id,
                worker_instance_id=registration.worker_instance_id,
                lanes=registration.lanes,
                tasks=registration.tasks,
                capabilities=registration.capabilities,
                liveness_ttl=self._ttl,
                caller=caller,
                patience=0.0,
            )
        except InvalidInput as error:
            # It would be refused again: the worker works without being listed.
            WORKER_LOGGER.warning(
                "worker %s cannot be registered: %s", registration.worker_instance_id, error
            )
            self._here.pop(registration.worker_instance_id, None)
        else:
            self._registered.add(registration.worker_instance_id)

    async def _part(self, caller: Caller) -> None:
        while self._left:
            name = self._left[0]
            if name in self._registered:
                await self._registry.mark_dead(name, "worker_shutdown", caller=caller, patience=0.0)
                self._registered.discard(name)
            self._left.popleft()
