"""Keeps every lease of the process alive, on a thread and a connection of its own, so that user
code which blocks the event loop does not lose them. Code that does not let go of the GIL for longer
than a lease stops this thread as well, and loses them: C code may do that, Python code cannot."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Protocol

from flowfabric.client.events import LOST_CHANNEL
from flowfabric.client.leases import Caller
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.execution import Claimed
from flowfabric.telemetry import WORKER_LOGGER
from flowfabric.worker.loop_watch import LoopWatch
from flowfabric.worker.registration import Registration, Registrations

Lost = Callable[[list[Claimed]], None]

# Beats come this often while a row was busy, so that it is not forgotten until its lease is over.
_BUSY_SHARE = 15
_REGULAR_SHARE = 3
# How long a hint waits for others, so that a storm of them costs a few beats.
HINT_SECONDS = 0.02


class Renewer(Protocol):
    """What the heartbeat needs of a client: leases renewed over a session of its own."""

    async def renew(
        self, held: list[Claimed], ttl: timedelta, *, caller: Caller | None
    ) -> tuple[list[Claimed], list[Claimed]]: ...


class BeatSession(Caller, Protocol):
    async def listen(
        self, channel: str, notify: Callable[[str | None], None], *, trial: bool = ...
    ) -> None: ...

    async def close(self) -> None: ...


class _Held:
    __slots__ = ("claimed", "is_lost", "lost", "until")

    def __init__(self, claimed: Claimed, until: float, lost: Lost) -> None:
        self.claimed = claimed
        self.until = until
        self.lost = lost
        self.is_lost = False


class Heartbeat:
    """Renews all held leases in one call a beat, and says which are lost.

    A hint tells at once of a lease that somebody took away; the next beat finds it anyway.
    """

    def __init__(
        self,
        renewer: Renewer,
        connect: Callable[[], BeatSession],
        ttl: timedelta,
        registrations: Registrations | None = None,
        pulse: LoopWatch | None = None,
    ) -> None:
        self._renewer = renewer
        self._registrations = registrations
        self._loop_watch = pulse
        self._connect = connect
        self._ttl = ttl
        # Written by the workers' loop, read by ours: each step on it is one operation of the
        # interpreter, so no lock is needed, and only this thread decides that a lease is lost.
        self._held: dict[int, _Held] = {}
        self._names: set[str] = set()
        self._stopping = False
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)),
            name="flowfabric-heartbeat",
            daemon=True,
        )
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """End the thread; what is still held will run out."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(self._end)
        thread.join(timeout=10)

    def hold(self, claimed: list[Claimed], asked_at: float, lost: Lost) -> None:
        """Keep these leases alive. They were asked for at `asked_at`, by the monotonic clock.

        `lost` is called on the heartbeat's thread, once for each lease that is gone.
        """
        until = asked_at + self._ttl.total_seconds()
        for one in claimed:
            self._held[id(one)] = _Held(one, until, lost)

    def drop(self, claimed: Claimed) -> None:
        """Stop keeping a lease: it has ended."""
        self._held.pop(id(claimed), None)

    def join(self, registration: Registration) -> None:
        """Hear hints for this worker, and tell the registry that it is there, until it leaves."""
        self._names.add(registration.worker_instance_id)
        if self._registrations is not None:
            self._registrations.join(registration)
            self._wake()

    def leave(self, worker_instance_id: str) -> None:
        self._names.discard(worker_instance_id)
        if self._registrations is not None:
            self._registrations.leave(worker_instance_id)
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._woken.set)

    async def _run(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        started.set()
        session = self._connect()
        watching = (
            None if self._loop_watch is None else asyncio.create_task(self._loop_watch.watch())
        )
        try:
            regular = self._ttl.total_seconds() / _REGULAR_SHARE
            await self._listen(session)
            while not self._stopping:
                self._woken.clear()
                busy = await self._beat(session)
                if self._registrations is not None:
                    busy = await self._registrations.beat(session) or busy
                pause = self._ttl.total_seconds() / _BUSY_SHARE if busy else regular
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                        # Hints that come together are answered by one beat, however many.
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
            await session.listen(LOST_CHANNEL, self._heard, trial=False)
        except Exception as error:
            # Only a hint: the session listens when it connects, and every beat is a net.
            WORKER_LOGGER.warning("cannot listen for leases that are taken away: %s", error)

    def _heard(self, payload: str | None) -> None:
        """A lease of the named worker was taken away; None: hints may have been missed. Ask the
        database at once: a hint proves nothing, and anybody who may connect can send one."""
        if payload is None or payload in self._names:
            self._woken.set()

    async def _beat(self, session: BeatSession) -> bool:
        """One beat; True if some leases could not be renewed now and should be soon."""
        held = [one for one in list(self._held.values()) if not one.is_lost]
        if not held:
            return False
        started = monotonic()
        by_claim = {id(one.claimed): one for one in held}
        try:
            lost, busy = await self._renewer.renew(
                [one.claimed for one in held], self._ttl, caller=session
            )
        except Exception as error:
            # Whatever it is: a heartbeat that ends loses every lease of the process.
            WORKER_LOGGER.warning(
                "leases could not be renewed: %s",
                error,
                exc_info=None if isinstance(error, FlowFabricError) else error,
            )
            self._give_up_expired(held)
            return True
        gone = {id(claimed) for claimed in lost}
        missed = {id(claimed) for claimed in busy}
        for key, one in by_claim.items():
            if key not in gone and key not in missed:
                one.until = started + self._ttl.total_seconds()
        self._lose([one for key, one in by_claim.items() if key in gone])
        self._give_up_expired(held)
        return bool(missed)

    def _give_up_expired(self, held: list[_Held]) -> None:
        """By our own clock the lease is over: somebody else may have it already."""
        now = monotonic()
        self._lose([one for one in held if one.until <= now])

    def _lose(self, several: list[_Held]) -> None:
        """Tell each worker at once of all it lost, so that it starts none of them meanwhile."""
        told: dict[Lost, list[Claimed]] = {}
        for one in several:
            if self._held.get(id(one.claimed)) is one and not one.is_lost:
                one.is_lost = True
                told.setdefault(one.lost, []).append(one.claimed)
        for lost, claimed in told.items():
            try:
                lost(claimed)
            except Exception as error:
                # The loop of its worker may have ended.
                WORKER_LOGGER.warning("nobody heard that leases are lost: %s", error)
