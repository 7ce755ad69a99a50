"""Renews every lease of the process, on its own thread and connection.

Leases are therefore renewed even while user code blocks the event loop. C code that keeps the GIL
also blocks this thread: if it keeps the GIL for longer than a lease lasts, leases expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from time import monotonic
from typing import Protocol

from flowfabric.client.events import LOST_CHANNEL
from flowfabric.client.leases import Caller
from flowfabric.core.errors import FlowFabricError, LeaseExpired
from flowfabric.core.execution import Claimed
from flowfabric.db.outage import level_of
from flowfabric.telemetry import WORKER_LOGGER
from flowfabric.worker.loop_watch import LoopWatch
from flowfabric.worker.registration import Registration, Registrations

# Called with the lost leases. The error says how each lease was lost.
OnLost = Callable[[dict[Claimed, FlowFabricError]], None]

# After a failed beat, the next beat comes after the lease time divided by this.
_URGENT_SHARE = 15
# If a row was busy, the next beat comes after this time. While rows stay busy, every beat doubles
# it, up to the pause after a failed beat.
_BUSY_SECONDS = 0.05
# A regular beat comes after the lease time divided by this.
_REGULAR_SHARE = 3
# How long to wait for more hints after a hint, so that many hints cost few beats.
HINT_SECONDS = 0.02
_FOR_THE_MAIN_THREAD = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class Renewer(Protocol):
    """The part of a client that the heartbeat uses: it renews leases over a given session."""

    async def renew(
        self, leases: list[Claimed], ttl: timedelta, *, caller: Caller | None
    ) -> tuple[dict[Claimed, FlowFabricError], list[Claimed]]: ...


class BeatSession(Caller, Protocol):
    async def listen(
        self, channel: str, notify: Callable[[str | None], None], *, trial: bool = ...
    ) -> None: ...

    async def close(self) -> None: ...


class _KeptLease:
    __slots__ = ("claimed", "is_lost", "on_lost", "until")

    def __init__(self, claimed: Claimed, until: float, on_lost: OnLost) -> None:
        self.claimed = claimed
        self.until = until
        self.on_lost = on_lost
        self.is_lost = False


class Heartbeat:
    """Renews all leases in one call for each beat, and reports the lost leases.

    When a lease is revoked, the database sends a hint, and the heartbeat beats immediately. If the
    hint is lost, the next regular beat finds the lost lease.
    """

    def __init__(
        self,
        renewer: Renewer,
        connect: Callable[[], BeatSession],
        ttl: timedelta,
        registrations: Registrations | None = None,
        loop_watch: LoopWatch | None = None,
    ) -> None:
        self._renewer = renewer
        self._registrations = registrations
        self._loop_watch = loop_watch
        self._connect = connect
        self._ttl = ttl
        # The workers' loop writes this and the heartbeat's loop reads it. Every operation on it is
        # atomic in the interpreter, so it needs no lock. Only the heartbeat's thread decides that
        # a lease is lost.
        self._kept: dict[int, _KeptLease] = {}
        self._instance_ids: set[str] = set()
        self._busy_seconds = _BUSY_SECONDS
        self._stopping = False
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread and wait until it runs."""
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run_in_thread, args=(started,), name="flowfabric-heartbeat", daemon=True
        )
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """End the thread. Leases that the worker still has will expire: nothing renews them."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(self._end)
        thread.join(timeout=10)

    def keep(self, claimed: list[Claimed], asked_at: float, on_lost: OnLost) -> None:
        """Begin to renew the leases of these executions.

        `asked_at` is the time of their claim on the monotonic clock. The heartbeat calls `on_lost`
        on its own thread, and reports each lost lease once.
        """
        until = asked_at + self._ttl.total_seconds()
        for one in claimed:
            self._kept[id(one)] = _KeptLease(one, until, on_lost)

    def drop(self, claimed: Claimed) -> None:
        """Stop renewing a lease, because it has ended."""
        self._kept.pop(id(claimed), None)

    def add_worker(self, registration: Registration) -> None:
        """Register a worker, and react to hints about its leases until it is removed."""
        self._instance_ids.add(registration.worker_instance_id)
        if self._registrations is not None:
            self._registrations.add(registration)
            self._wake()

    def remove_worker(self, worker_instance_id: str) -> None:
        self._instance_ids.discard(worker_instance_id)
        if self._registrations is not None:
            self._registrations.remove(worker_instance_id)
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._woken.set)

    def _run_in_thread(self, started: threading.Event) -> None:
        # If the kernel delivered a signal to this thread, a sleeping main thread would not wake up.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_MAIN_THREAD)
        asyncio.run(self._run(started))

    async def _run(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        started.set()
        session = self._connect()
        watching = (
            None if self._loop_watch is None else asyncio.create_task(self._loop_watch.watch())
        )
        try:
            await self._listen(session)
            while not self._stopping:
                self._woken.clear()
                pause = await self._beat(session)
                if self._registrations is not None and await self._registrations.beat(session):
                    pause = min(pause, self._urgent_seconds)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                        # Wait for more hints: one beat answers all of them.
                        await asyncio.sleep(HINT_SECONDS)
            if self._registrations is not None:
                await self._registrations.end(session)
        finally:
            if watching is not None:
                watching.cancel()
            await session.close()

    def _end(self) -> None:
        self._stopping = True
        self._woken.set()

    async def _listen(self, session: BeatSession) -> None:
        try:
            await session.listen(LOST_CHANNEL, self._on_hint, trial=False)
        except Exception as error:
            # The session listens again after it reconnects, and every beat finds lost leases too.
            WORKER_LOGGER.log(level_of(error), "listening for revoked leases failed: %s", error)

    def _on_hint(self, payload: str | None) -> None:
        """If the hint is for a worker of this process, beat now: the worker may have lost a lease.

        Also beat if `payload` is None, because hints may have been missed. A hint proves nothing:
        every database user who can connect can send one.
        """
        if payload is None or payload in self._instance_ids:
            self._woken.set()

    @property
    def _urgent_seconds(self) -> float:
        return self._ttl.total_seconds() / _URGENT_SHARE

    async def _beat(self, session: BeatSession) -> float:
        """Renew all leases once. Return the seconds until the next beat."""
        regular = self._ttl.total_seconds() / _REGULAR_SHARE
        kept = [one for one in list(self._kept.values()) if not one.is_lost]
        if not kept:
            return regular
        started = monotonic()
        by_claim = {id(one.claimed): one for one in kept}
        try:
            lost, busy = await self._renewer.renew(
                [one.claimed for one in kept], self._ttl, caller=session
            )
        except Exception as error:
            # Catch every error: if the heartbeat ended, the process would lose all its leases.
            WORKER_LOGGER.log(
                level_of(error),
                "leases not renewed: %s",
                error,
                exc_info=None if isinstance(error, FlowFabricError) else error,
            )
            self._give_up_expired(kept)
            return self._urgent_seconds
        gone = {id(claimed): error for claimed, error in lost.items()}
        missed = {id(claimed) for claimed in busy}
        for key, one in by_claim.items():
            if key not in gone and key not in missed:
                one.until = started + self._ttl.total_seconds()
        self._lose({by_claim[key]: error for key, error in gone.items()})
        self._give_up_expired(kept)
        if not missed:
            self._busy_seconds = _BUSY_SECONDS
            return regular
        pause = min(self._busy_seconds, self._urgent_seconds)
        self._busy_seconds = 2 * pause
        return pause

    def _give_up_expired(self, kept: list[_KeptLease]) -> None:
        """Report leases as lost that have expired by the clock of this process.

        Other workers may have them now.
        """
        now = monotonic()
        expired = LeaseExpired(not_renewed_for=self._ttl)
        self._lose({one: expired for one in kept if one.until <= now})

    def _lose(self, several: Mapping[_KeptLease, FlowFabricError]) -> None:
        """Report lost leases, with one call for each worker.

        With one call for each lease, the worker could start an execution whose lost lease was not
        reported yet.
        """
        lost: dict[OnLost, dict[Claimed, FlowFabricError]] = {}
        for one, error in several.items():
            if self._kept.get(id(one.claimed)) is one and not one.is_lost:
                one.is_lost = True
                lost.setdefault(one.on_lost, {})[one.claimed] = error
        for on_lost, claimed in lost.items():
            try:
                on_lost(claimed)
            except Exception as problem:
                # The loop of the worker may have ended.
                WORKER_LOGGER.warning("lost leases not reported to their worker: %s", problem)
