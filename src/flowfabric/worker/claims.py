"""Claims executions: when, how many, and from which lane first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from contextvars import Context
from datetime import timedelta
from time import monotonic
from uuid import UUID

from flowfabric.client import FlowFabric
from flowfabric.client.executions import Floor
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import uuid7
from flowfabric.db.outage import level_of
from flowfabric.db.session import Session
from flowfabric.telemetry import WORKER_LOGGER
from flowfabric.worker.driver import Driver, Step
from flowfabric.worker.heartbeat import Heartbeat, OnLost
from flowfabric.worker.hints import Hints
from flowfabric.worker.registration import Registration
from flowfabric.worker.runner import Runner
from flowfabric.worker.settlement import RETRY_SECONDS, Settlement
from flowfabric.worker.suspects import SuspectRunner, Suspects

MAX_CLAIM = 500
IDLE_POLL_SECONDS = 10.0
# How long after a hint a worker claims once more: a claim skips what is locked for a moment.
SECOND_LOOK_SECONDS = 0.25
# How often a worker polls that receives no hints.
NO_HINTS_POLL_SECONDS = 0.5
FLOOR_SECONDS = 0.1
# At most so many executions wait here for a slot.
MAX_AHEAD = 1000
# How long a claimed execution may wait for a slot before it is released: another worker could run
# it meanwhile.
AHEAD_HOLD_SECONDS = 0.25
# The time of an attempt begins with its claim. If it is shorter than this, nothing is claimed ahead
# of a free slot: the attempt could time out before its handler starts.
SHORT_ATTEMPT = timedelta(seconds=20 * AHEAD_HOLD_SECONDS)
# After this many full claims in a row, hints are not needed.
BUSY_CLAIMS = 3


class Claimer:
    """Claims executions for one worker while it has room for them."""

    def __init__(
        self,
        client: FlowFabric,
        session: Session,
        heartbeat: Heartbeat,
        hints: Hints,
        runner: Runner,
        settlement: Settlement,
        suspects: Suspects,
        suspect_runner: SuspectRunner,
        registration: Registration,
        *,
        concurrency: int,
        lease_ttl: timedelta,
        task_lanes: Collection[str],
        stopping: asyncio.Event,
        on_lost: OnLost,
    ) -> None:
        self._client = client
        self._session = session
        self._heartbeat = heartbeat
        self._hints = hints
        self._runner = runner
        self._settlement = settlement
        self._suspects = suspects
        self._suspect_runner = suspect_runner
        self._registration = registration
        self._concurrency = concurrency
        self._ttl = lease_ttl
        self._stopping = stopping
        self._on_lost = on_lost
        self._lanes = _LaneTurns(registration.lanes, task_lanes)
        self._floor = _ClaimFloor()
        self._driver = Driver(self._begin_next, on_task_kept=self._on_task_kept)
        self._begun: Claimed | None = None
        # Claimed, and waiting for a slot.
        self.waiting: deque[Claimed] = deque()
        # Claimed and not run in time: to be released.
        self._overdue: list[Claimed] = []
        # When executions were accepted last, and how many have started since.
        self._accepted_at = 0.0
        self._started = 0
        # Whether an attempt here had little time.
        self._has_short_attempts = False
        self.is_claiming = False
        self.is_idle = False
        # The id and the time of a claim whose answer is not known.
        self._pending: tuple[UUID, float] | None = None
        self._failures = 0
        self._full_claims = 0
        self._room_freed = asyncio.Event()
        self._woken = asyncio.Event()
        # Whether a hint has come and the second look after it has not.
        self._is_hinted = False

    def wake(self) -> None:
        """Claim soon: there may be work."""
        self.is_idle = False
        self._is_hinted = True
        self._woken.set()

    def notify_room(self) -> None:
        """Check again whether there is room to claim."""
        self._room_freed.set()

    async def run(self) -> None:
        """Claim until the worker stops."""
        while not self._stopping.is_set():
            if self._overdue or self._is_overdue(monotonic()):
                await self._release_overdue()
                continue
            limit = self._limit
            if limit <= 0 or self._suspects.current is not None or self._hints.is_reserved:
                await self._wait_for_room()
                continue
            limit = self._suspects.limit(limit)
            behind_suspects = self._suspects.floor
            self._woken.clear()
            claimed = await self._claim(limit, behind_suspects)
            if claimed is not None:
                await self._adapt(claimed, limit, behind_suspects is not None)

    async def claim_once(self, limit: int) -> list[Claimed]:
        """Claim at most `limit` executions once, and start them."""
        if self._suspects.current is not None or self._hints.is_reserved:
            return []
        asked_at = monotonic()
        here = self._registration
        claimed = await self._client.executions.claim(
            worker_id=here.worker_id,
            worker_instance_id=here.worker_instance_id,
            tasks=here.tasks,
            lanes=here.lanes,
            capabilities=here.capabilities,
            limit=limit,
            lease_ttl=self._ttl,
            caller=self._session,
            reports_starts=True,
            code_versions=here.code.served,
            unserved=here.takeover.routes,
            finish_only=here.finish_only,
        )
        self._accept(claimed, asked_at)
        return claimed

    def start_waiting(self) -> None:
        """Start what waits for a slot, as far as there are slots."""
        if not self._driver.is_running and self._start_suspending():
            self._driver.start()

    def _start_suspending(self) -> bool:
        """Start what will probably suspend, each in a task of its own, up to one that will not."""
        while self.waiting and self._runner.slots.free > 0:
            if not self._runner.suspends(self.waiting[0]):
                return True
            self._started += 1
            self._runner.start(self.waiting.popleft())
        return False

    def _begin_next(self, task: asyncio.Task[None]) -> tuple[Context, Step] | None:
        """Begin the next execution that will probably not suspend, if there is a slot for it."""
        if self._stopping.is_set() or not self._start_suspending():
            return None
        if self._is_overdue(monotonic()):
            self._set_overdue_aside()
        self._started += 1
        self._begun = self.waiting.popleft()
        return self._runner.begin(self._begun, task)

    def _on_task_kept(self, has_suspended: bool) -> None:
        if has_suspended and self._begun is not None:
            self._runner.note_suspended(self._begun)
        if not self._stopping.is_set():
            self.start_waiting()

    def discard(self, gone: Collection[Claimed]) -> None:
        """Drop executions that wait for a slot and whose leases are lost."""
        if any(claimed in gone for claimed in self.waiting):
            self.waiting = deque(claimed for claimed in self.waiting if claimed not in gone)
            self.notify_room()
        self._overdue = [claimed for claimed in self._overdue if claimed not in gone]

    def take_waiting(self) -> list[Claimed]:
        """Return what has not started and forget it."""
        waiting = [*self.waiting, *self._overdue]
        self.waiting.clear()
        self._overdue = []
        return waiting

    async def recover_last_claim(self) -> list[Claimed]:
        """Return what a claim leased whose answer was not received.

        The claim is repeated under its id for no task: it returns the leases and adds none.
        """
        if self._pending is None:
            return []
        claim_id, asked_at = self._pending
        try:
            claimed = await self._client.executions.claim(
                worker_id=self._registration.worker_id,
                worker_instance_id=self._registration.worker_instance_id,
                tasks=[],
                lease_ttl=self._ttl,
                caller=self._session,
                patience=1.0,
                claim_id=claim_id,
            )
        except FlowFabricError as error:
            WORKER_LOGGER.error("last claim not recovered, its leases will expire: %s", error)
            claimed = []
        self._pending = None
        self._heartbeat.keep(claimed, asked_at, self._on_lost)
        return claimed

    async def _claim(self, limit: int, behind_suspects: Floor | None) -> list[Claimed] | None:
        """Claim and accept; None after an error that passes, to be repeated."""
        claim_id, asked_at = self._pending or (uuid7(), monotonic())
        here = self._registration
        self.is_claiming = True
        try:
            claimed = await self._client.executions.claim(
                worker_id=here.worker_id,
                worker_instance_id=here.worker_instance_id,
                tasks=here.tasks,
                lanes=here.lanes,
                capabilities=here.capabilities,
                limit=limit,
                lease_ttl=self._ttl,
                # Behind the suspects lanes do not take turns: the floor compares their places.
                first_lane=None if behind_suspects else self._lanes.next(),
                floor=behind_suspects or self._floor.get(),
                caller=self._session,
                patience=1.0,
                claim_id=claim_id,
                reports_starts=True,
                code_versions=here.code.served,
                unserved=here.takeover.routes,
                finish_only=here.finish_only,
            )
        except Unavailable as error:
            # The claim may have been made: it is repeated under the same id.
            self._pending = (claim_id, asked_at)
            delay = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
            self._failures += 1
            WORKER_LOGGER.log(level_of(error), "claim failed, retrying: %s", error)
            await self._wait(delay)
            return None
        except BaseException:
            self._pending = (claim_id, asked_at)
            raise
        finally:
            self.is_claiming = False
        self._failures, self._pending = 0, None
        self._accept(claimed, asked_at)
        return claimed

    def _accept(self, claimed: list[Claimed], asked_at: float) -> None:
        """Start ordinary executions or let them wait for a slot; begin the turn of a suspect."""
        self._heartbeat.keep(claimed, asked_at, self._on_lost)
        ordinary, suspects = self._suspects.split(claimed)
        if ordinary:
            self._accepted_at, self._started = monotonic(), 0
            if not self.waiting and not self._runner.running:
                self._runner.pace.resume(self._accepted_at)
        self.waiting.extend(ordinary)
        if not self._has_short_attempts:
            self._has_short_attempts = any(self._is_short(one) for one in ordinary)
        self.start_waiting()
        if suspects:
            self._suspect_runner.start(suspects)

    async def _adapt(self, claimed: list[Claimed], limit: int, is_behind_suspects: bool) -> None:
        """Choose how to claim next: from a floor, at once, or after a hint."""
        if is_behind_suspects or self._suspects.current is not None:
            self._floor.clear()
        elif len(claimed) == limit:
            self._hints.wake_another()
            self._full_claims += 1
            if self._full_claims == BUSY_CLAIMS:
                await self._hints.stop_listening()
            if not self._lanes.take_turns:
                self._floor.set_behind(claimed[-1])
        elif self._floor.is_set:
            self._floor.clear()
        elif not self._hints.is_listening:
            # One more claim finds what came between the last one and the listening.
            self._full_claims = 0
            await self._hints.listen()
        else:
            self._full_claims = 0
            if self._hints.are_missed:
                await self._wait(NO_HINTS_POLL_SECONDS)
            else:
                await self._wait(SECOND_LOOK_SECONDS if self._is_hinted else IDLE_POLL_SECONDS)

    @property
    def _limit(self) -> int:
        """How many executions to claim now: as many as end soon, so that claims are few."""
        free, waiting = self._runner.slots.free, len(self.waiting)
        ahead = min(self._runner.pace.within_horizon, MAX_AHEAD)
        if self._has_short_attempts:
            ahead = 0
        half = (ahead + 1) // 2
        if waiting > half:
            # Handlers have enough to run during the next claim, which brings the other half.
            return 0
        return min(free + ahead - waiting, max(free, half), MAX_CLAIM)

    def _is_short(self, claimed: Claimed) -> bool:
        """Tell whether an attempt has so little time that it must not wait here."""
        end = claimed.attempt_deadline_at
        return end is not None and end - claimed.lease_expires_at + self._ttl < SHORT_ATTEMPT

    def _is_overdue(self, now: float) -> bool:
        """Tell whether what waits here should have been started long ago."""
        return bool(self.waiting) and now - self._accepted_at > AHEAD_HOLD_SECONDS

    def _set_overdue_aside(self) -> None:
        """Keep what will start soon; the rest another worker could run meanwhile."""
        now = monotonic()
        soon = self._started * AHEAD_HOLD_SECONDS / (now - self._accepted_at)
        kept = max(self._runner.slots.free, int(soon))
        self._accepted_at, self._started = now, 0
        if len(self.waiting) > kept:
            waiting = list(self.waiting)
            self.waiting, self._overdue = deque(waiting[:kept]), [*self._overdue, *waiting[kept:]]
            self._runner.pace.forget()
            self.notify_room()
            self.wake()

    async def _release_overdue(self) -> None:
        if self._is_overdue(monotonic()):
            self._set_overdue_aside()
        overdue, self._overdue = self._overdue, []
        await self._settlement.release(overdue, "claimed_ahead")

    async def _wait_for_room(self) -> None:
        self._room_freed.clear()
        try:
            async with asyncio.timeout(AHEAD_HOLD_SECONDS if self.waiting else None):
                await self._room_freed.wait()
        except TimeoutError:
            return  # what waits here may be overdue

    async def _wait(self, seconds: float) -> None:
        self.is_idle = True
        try:
            async with asyncio.timeout(AHEAD_HOLD_SECONDS if self.waiting else seconds):
                await self._woken.wait()
        except TimeoutError:
            self._is_hinted = False
        finally:
            self.is_idle = False


class _LaneTurns:
    """Which lane goes first among equals in the next claim: the lanes take turns."""

    def __init__(self, lanes: Sequence[str] | None, task_lanes: Collection[str]) -> None:
        self._lanes: list[str | None] = [*sorted(set(lanes or task_lanes))]
        if lanes is None and len(self._lanes) > 1:
            # One turn by age alone also serves lanes that only a submission names.
            self._lanes.append(None)
        self._turn = 0

    @property
    def take_turns(self) -> bool:
        return len(self._lanes) > 1

    def next(self) -> str | None:
        if not self.take_turns:
            return None
        self._turn = (self._turn + 1) % len(self._lanes)
        return self._lanes[self._turn]


class _ClaimFloor:
    """Where the next claim starts: behind the last full claim, for a moment."""

    def __init__(self) -> None:
        self._floor: Floor | None = None
        self._since = 0.0

    @property
    def is_set(self) -> bool:
        return self._floor is not None

    def get(self) -> Floor | None:
        """Return the floor, unless it is too old: urgent work may have come before it."""
        if self._floor is not None and monotonic() - self._since > FLOOR_SECONDS:
            self._floor = None
        return self._floor

    def set_behind(self, last: Claimed) -> None:
        if self._floor is None:
            self._since = monotonic()
        self._floor = (last.rank, last.order_at, last.execution_id)

    def clear(self) -> None:
        self._floor = None
