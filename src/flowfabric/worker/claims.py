"""Claims executions. Decides when to claim, how many, and from which lane first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from contextvars import Context
from datetime import timedelta
from time import monotonic

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
from flowfabric.worker.rotation import PartitionRotation, Turn
from flowfabric.worker.runner import Runner
from flowfabric.worker.settlement import RETRY_SECONDS, Settlement
from flowfabric.worker.suspects import SuspectRunner, Suspects

MAX_CLAIM = 500
IDLE_POLL_SECONDS = 10.0
# After a hint, a worker claims twice, with this pause in between, because a claim skips rows that
# are locked.
SECOND_LOOK_SECONDS = 0.25
# How often a worker polls when it receives no hints.
NO_HINTS_POLL_SECONDS = 0.5
# At most this many executions wait here for a slot.
MAX_AHEAD = 1000
# How long a claimed execution may wait for a slot. Then the worker releases it, so that another
# worker can run it.
AHEAD_SECONDS = 0.25
# The timeout of an attempt starts at its claim. If the timeout is shorter than this, the worker
# claims only for free slots: a waiting attempt could time out before its handler starts.
SHORT_ATTEMPT = timedelta(seconds=20 * AHEAD_SECONDS)
# How many times a claim waits for the claim of another worker. After that, both run at the same
# time.
GIVES_WAY = 6
# After this many full claims in a row, the worker stops listening for hints.
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
        self._rotation = PartitionRotation(client.database.partitions, self._find_work)
        self._driver = Driver(self._begin_next, on_task_kept=self._on_task_kept)
        self._begun: Claimed | None = None
        # Claimed executions that wait for a slot.
        self.waiting: deque[Claimed] = deque()
        # Claimed executions that did not start in time and will be released.
        self._overdue: list[Claimed] = []
        # When the last executions were accepted, and how many have started since then.
        self._accepted_at = 0.0
        self._started = 0
        # Whether this worker has claimed an attempt with a short timeout.
        self._has_short_attempts = False
        self.is_claiming = False
        self.is_idle = False
        self._full_claims = 0
        self._room_freed = asyncio.Event()
        self._woken = asyncio.Event()
        # Whether the second claim after a hint is still due.
        self._is_hinted = False

    def wake(self) -> None:
        """Claim soon, because there may be work."""
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
            self._woken.clear()
            turn = await self._next_turn()
            if turn is None:
                self._suspects.split([])
                await self._adapt(None, [], limit, False)
                continue
            behind_suspects = self._suspects.floor_in(turn.partition)
            claimed = await self._claim(turn, limit, behind_suspects)
            if claimed is not None:
                await self._adapt(turn, claimed, limit, behind_suspects is not None)

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
        """Start the executions that wait for a slot, while slots are free."""
        if not self._driver.is_running and self._start_yielding():
            self._driver.start()

    def _start_yielding(self) -> bool:
        """Start the waiting executions, each in its own asyncio task.

        Stop before an execution whose coroutine will probably not yield (see `driver.py`). Return
        True after such a stop, and False if no execution or no free slot is left.
        """
        while self.waiting and self._runner.slots.free > 0:
            if not self._runner.yields(self.waiting[0]):
                return True
            self._started += 1
            self._runner.start(self.waiting.popleft())
        return False

    def _begin_next(self, task: asyncio.Task[None]) -> tuple[Context, Step] | None:
        """Begin the next execution whose coroutine will probably not yield.

        Return its contextvars and its coroutine; None if nothing can begin.
        """
        if self._stopping.is_set() or not self._start_yielding():
            return None
        if monotonic() - self._accepted_at > AHEAD_SECONDS:
            self._set_overdue_aside()
        self._started += 1
        self._begun = self.waiting.popleft()
        return self._runner.begin(self._begun, task)

    def _on_task_kept(self, has_yielded: bool) -> None:
        if has_yielded and self._begun is not None:
            self._runner.note_yielded(self._begun)
        if not self._stopping.is_set():
            self.start_waiting()

    def discard(self, gone: Collection[Claimed]) -> None:
        """Drop the waiting executions whose leases are lost (`gone`)."""
        if any(claimed in gone for claimed in self.waiting):
            self.waiting = deque(claimed for claimed in self.waiting if claimed not in gone)
            self.notify_room()
        self._overdue = [claimed for claimed in self._overdue if claimed not in gone]

    def take_waiting(self) -> list[Claimed]:
        """Remove and return all executions that have not started."""
        waiting = [*self.waiting, *self._overdue]
        self.waiting.clear()
        self._overdue = []
        return waiting

    async def recover_last_claim(self) -> list[Claimed]:
        """Ask again for the lost answers of claims, and return the claimed executions.

        In each partition, only the last claim can lack an answer. The worker repeats it with the
        same id and no tasks. The engine then returns the executions that the claim took the first
        time, and claims nothing new.
        """
        recovered: list[Claimed] = []
        for turn in self._rotation.pending:
            assert turn.pending is not None
            claim_id, asked_at = turn.pending
            try:
                claimed = await self._client.executions.claim(
                    worker_id=self._registration.worker_id,
                    worker_instance_id=self._registration.worker_instance_id,
                    tasks=[],
                    lease_ttl=self._ttl,
                    partition=turn.partition,
                    caller=self._session,
                    patience=1.0,
                    claim_id=claim_id,
                )
            except FlowFabricError as error:
                WORKER_LOGGER.error("last claim not recovered, its leases will expire: %s", error)
                claimed = []
            turn.pending = None
            self._heartbeat.keep(claimed, asked_at, self._on_lost)
            recovered += claimed
        return recovered

    async def _next_turn(self) -> Turn | None:
        """Return the partition to claim from; None if no partition has work."""
        if self._rotation.is_single:
            return await self._rotation.next()
        self.is_claiming = True
        try:
            return await self._rotation.next()
        finally:
            self.is_claiming = False

    async def _find_work(self) -> dict[int, int]:
        here = self._registration
        return await self._client.executions.find_work(
            tasks=here.tasks,
            lanes=here.lanes,
            capabilities=here.capabilities,
            code_versions=here.code.served,
            unserved=here.takeover.routes,
            finish_only=here.finish_only,
            caller=self._session,
            patience=1.0,
        )

    async def _claim(
        self, turn: Turn, limit: int, behind_suspects: Floor | None
    ) -> list[Claimed] | None:
        """Claim executions and accept them. Return None if the claim failed and must be tried
        again."""
        claim_id, asked_at = turn.pending or (uuid7(), monotonic())
        here = self._registration
        self.is_claiming = True
        try:
            claim = self._client.executions.claim(
                worker_id=here.worker_id,
                worker_instance_id=here.worker_instance_id,
                tasks=here.tasks,
                lanes=here.lanes,
                capabilities=here.capabilities,
                limit=limit,
                lease_ttl=self._ttl,
                # In the turn of ordinary work, the claim starts after the suspects, at a floor. A
                # floor needs one order for all lanes, so lanes do not take turns.
                first_lane=None if behind_suspects else self._lanes.next(),
                floor=behind_suspects or turn.floor.get(),
                partition=turn.partition,
                caller=self._session,
                patience=1.0,
                claim_id=claim_id,
                reports_starts=True,
                code_versions=here.code.served,
                unserved=here.takeover.routes,
                finish_only=here.finish_only,
                gives_way=GIVES_WAY,
            )
            claimed = await self._rotation.within_time(turn, claim)
        except Unavailable as error:
            # The database may have made the claim, so the retry uses the same id.
            turn.pending = (claim_id, asked_at)
            delay = RETRY_SECONDS[min(turn.failures, len(RETRY_SECONDS) - 1)]
            self._rotation.after_failure(turn, delay)
            WORKER_LOGGER.log(level_of(error), "claim failed, retrying: %s", error)
            if self._rotation.is_single:
                await self._wait(delay)
            return None
        except BaseException:
            turn.pending = (claim_id, asked_at)
            raise
        finally:
            self.is_claiming = False
        self._rotation.after(turn, claimed, is_full=len(claimed) == limit)
        self._accept(claimed, asked_at)
        return claimed

    def _accept(self, claimed: list[Claimed], asked_at: float) -> None:
        """Start or queue the ordinary executions, and pass suspects to the suspect runner."""
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

    async def _adapt(
        self, turn: Turn | None, claimed: list[Claimed], limit: int, is_behind_suspects: bool
    ) -> None:
        """Prepare the next claim after this one.

        Set or clear the floor: the position where this claim stopped and the next one starts. If
        there is probably no more work, wait for a hint.
        """
        if turn is not None and (is_behind_suspects or self._suspects.current is not None):
            turn.floor.clear()
        elif turn is not None and len(claimed) == limit:
            self._hints.wake_another()
            self._full_claims += 1
            if self._full_claims == BUSY_CLAIMS:
                await self._hints.stop_listening()
            if not self._lanes.take_turns:
                turn.floor.set_behind(claimed[-1])
        elif turn is not None and turn.floor.is_set:
            turn.floor.clear()
        elif turn is not None and not self._rotation.is_single:
            self._full_claims = 0  # the next partition may have work
        elif not self._hints.is_listening:
            # The next claim finds work that arrived between the last claim and the start of
            # listening.
            self._full_claims = 0
            await self._hints.listen()
        else:
            self._full_claims = 0
            pause = SECOND_LOOK_SECONDS if self._is_hinted else IDLE_POLL_SECONDS
            if self._hints.are_missed:
                pause = NO_HINTS_POLL_SECONDS
            if (retry_in := self._rotation.retry_in) is not None:
                pause = min(pause, retry_in)
            await self._wait(pause)

    @property
    def _limit(self) -> int:
        """Return how many executions to claim now: for slots that are free or soon will be."""
        free, waiting = self._runner.slots.free, len(self.waiting)
        ahead = min(self._runner.pace.within_horizon, MAX_AHEAD)
        if self._has_short_attempts:
            ahead = 0
        half = (ahead + 1) // 2
        if waiting > half:
            # Enough executions wait: claim again when at most half of them are left.
            return 0
        return min(free + ahead - waiting, max(free, half), MAX_CLAIM)

    def _is_short(self, claimed: Claimed) -> bool:
        """Tell whether an attempt must not wait for a slot, because its timeout is very short."""
        end = claimed.attempt_deadline_at
        return end is not None and end - claimed.lease_expires_at + self._ttl < SHORT_ATTEMPT

    def _is_overdue(self, now: float) -> bool:
        """Tell whether executions have waited too long for a slot."""
        return bool(self.waiting) and now - self._accepted_at > AHEAD_SECONDS

    def _set_overdue_aside(self) -> None:
        """Keep the waiting executions that will start soon, and mark the others for release."""
        now = monotonic()
        soon = self._started * AHEAD_SECONDS / (now - self._accepted_at)
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
            async with asyncio.timeout(AHEAD_SECONDS if self.waiting else None):
                await self._room_freed.wait()
        except TimeoutError:
            return  # the waiting executions may be overdue

    async def _wait(self, seconds: float) -> None:
        self.is_idle = True
        try:
            async with asyncio.timeout(AHEAD_SECONDS if self.waiting else seconds):
                await self._woken.wait()
        except TimeoutError:
            self._is_hinted = False
        finally:
            self.is_idle = False


class _LaneTurns:
    """Chooses the lane that goes first in the next claim, so that lanes take turns."""

    def __init__(self, lanes: Sequence[str] | None, task_lanes: Collection[str]) -> None:
        self._lanes: list[str | None] = [*sorted(set(lanes or task_lanes))]
        if lanes is None and len(self._lanes) > 1:
            # One turn names no lane. It serves lanes that submissions use but no task declares.
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
