"""The worker. It claims, runs and settles executions of its tasks, and drains when stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from flowfabric import tracing
from flowfabric.client import FlowFabric
from flowfabric.core.code_version import NO_VERSION, CodeVersion
from flowfabric.core.errors import FlowFabricError, InvalidInput, SlotsLost
from flowfabric.core.execution import Claimed, check_lane
from flowfabric.core.policy import capability_set
from flowfabric.db.session import Session
from flowfabric.tasks import TaskSpec
from flowfabric.telemetry import WORKER_LOGGER, named
from flowfabric.worker.claims import Claimer
from flowfabric.worker.drain import Drain, finish
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.hints import Hints
from flowfabric.worker.lifespan import Lifespan
from flowfabric.worker.registration import Registration, Takeover
from flowfabric.worker.runner import Runner
from flowfabric.worker.settlement import Settlement
from flowfabric.worker.suspects import SuspectRunner, Suspects

# How long `crash` waits for cancelled handlers.
CRASH_SECONDS = 1.0


def new_instance_id(worker_id: str) -> str:
    """Return a unique name for one worker of one process."""
    return f"{worker_id}-{os.getpid()}-{secrets.token_hex(4)}"


class Worker:
    """Runs executions until it is stopped."""

    def __init__(
        self,
        client: FlowFabric,
        claims: Session,
        heartbeat: Heartbeat,
        tasks: Mapping[str, TaskSpec],
        *,
        hints: Hints,
        lifespan: Lifespan,
        lanes: Sequence[str] | None = None,
        concurrency: int = 20,
        needs: Iterable[str] = (),
        worker_id: str | None = None,
        lease_ttl: timedelta = timedelta(seconds=30),
        drain_timeout: timedelta = timedelta(seconds=25),
        database: str,
        code: CodeVersion = NO_VERSION,
        finish_only: bool = False,
    ) -> None:
        _check_options(tasks, lanes, concurrency, code, finish_only)
        self.worker_id = worker_id or socket.gethostname()
        self.instance_id = new_instance_id(self.worker_id)
        self.lanes = None if lanes is None else sorted(set(lanes))
        self._registration = Registration(
            self.worker_id,
            self.instance_id,
            self.lanes,
            sorted(tasks),
            sorted(capability_set(needs)),
            code,
            finish_only,
            Takeover(self._on_takeover),
            _host_name(),
            concurrency,
            lambda: len(self._runner.running),
            self._on_drain_asked,
        )
        self._client = client
        self._database = database
        self._heartbeat = heartbeat
        self._tasks = dict(tasks)
        self._concurrency = concurrency
        self._hints = hints
        self._lifespan = lifespan
        self._loop = asyncio.get_running_loop()
        self._has_begun = False
        self._ended = asyncio.Event()
        self._ended.set()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._slots_lost: SlotsLost | None = None
        self._suspects = Suspects()
        self._settlement = Settlement(client, heartbeat, on_wait=self.wake)
        self._runner = self._make_runner(lease_ttl)
        self._suspect_runner = self._make_suspect_runner()
        self._claimer = self._make_claimer(claims, lease_ttl)
        self._drain = Drain(
            self._claimer,
            self._runner,
            self._settlement,
            self._suspect_runner,
            timeout=drain_timeout,
            hurrying=self._hurrying,
            take_waiting=self._take_waiting,
        )

    def _make_runner(self, lease_ttl: timedelta) -> Runner:
        return Runner(
            self._client,
            self._tasks,
            self._lifespan,
            self._heartbeat,
            self._settlement,
            self._suspects,
            instance_id=self.instance_id,
            code_version=self._registration.code.name,
            concurrency=self._concurrency,
            lease_ttl=lease_ttl,
            stopping=self._stopping,
            on_free_slot=self._on_free_slot,
            on_no_slots=self._stop_without_slots,
            on_interrupt=self.stop_at_once,
        )

    def _make_suspect_runner(self) -> SuspectRunner:
        return SuspectRunner(
            self._client,
            self._heartbeat,
            self._runner,
            self._settlement,
            self._suspects,
            stopping=self._stopping,
            is_quiet=lambda: self.is_quiet and self._hints.is_quiet,
            on_turn_ended=self._on_suspect_turn_ended,
            stop=self.stop,
        )

    def _make_claimer(self, session: Session, lease_ttl: timedelta) -> Claimer:
        return Claimer(
            self._client,
            session,
            self._heartbeat,
            self._hints,
            self._runner,
            self._settlement,
            self._suspects,
            self._suspect_runner,
            self._registration,
            concurrency=self._concurrency,
            lease_ttl=lease_ttl,
            task_lanes={spec.lane for spec in self._tasks.values()},
            stopping=self._stopping,
            on_lost=self._on_leases_lost_elsewhere,
        )

    @property
    def is_idle(self) -> bool:
        """Whether the worker waits for work."""
        return self._claimer.is_idle

    @property
    def is_working(self) -> bool:
        """Whether an execution runs here, waits for a slot, or is not settled yet."""
        return self._suspects.current is not None or not self._is_empty

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs here that could crash the process or suffer from a crash.

        A waiting suspect does not count.
        """
        return (
            self._is_empty
            and not self._runner.slots.has_abandoned_threads
            and not self._claimer.is_claiming
        )

    @property
    def has_suspect(self) -> bool:
        """Whether this worker has a suspect. If so, no worker in this process claims executions."""
        return self._suspects.current is not None

    @property
    def has_stuck_handlers(self) -> bool:
        """Whether a handler still runs. If one does after `run()`, it ignores its cancellation."""
        return any(not run.task.done() for run in self._runner.running.values())

    @property
    def claimed(self) -> list[Claimed]:
        """The executions that run here or wait for a slot."""
        return [*self._runner.running, *self._claimer.waiting, *self._waiting_suspect]

    @property
    def handlers(self) -> list[tuple[asyncio.Task[None], Claimed]]:
        """The running executions with their asyncio tasks. Safe to read from any thread."""
        found = []
        for claimed, run in list(self._runner.running.items()):
            # A run that has just ended has no task.
            if (task := getattr(run, "task", None)) is not None:
                found.append((task, claimed))
        return found

    @property
    def _is_empty(self) -> bool:
        return not self._runner.running and not self._claimer.waiting and self._settlement.is_idle

    @property
    def _waiting_suspect(self) -> list[Claimed]:
        suspect = self._suspects.current
        return [] if suspect is None or suspect in self._runner.running else [suspect]

    def covers(self, namespace: str, lane: str) -> bool:
        """Tell whether a hint about a lane concerns this worker."""
        return self._client.namespace in (None, namespace) and (
            self.lanes is None or lane in self.lanes
        )

    def wake(self) -> None:
        """Claim soon, because there may be work."""
        self._claimer.wake()

    def notify_room(self) -> None:
        """Check again whether there is room to claim."""
        self._claimer.notify_room()

    def stop(self) -> None:
        """Claim no more, finish the running executions, then end."""
        self._stopping.set()
        self._claimer.wake()
        self._claimer.notify_room()

    def stop_at_once(self) -> None:
        """Claim no more, and release the running executions without waiting for them."""
        self._hurrying.set()
        self.stop()

    async def stopped(self) -> None:
        """Wait until the worker has ended. If the worker never started, return immediately."""
        await self._ended.wait()

    async def begin(self) -> None:
        """Run the app's startup hooks, unless another worker of this process has run them.

        `run()` calls this by itself.
        """
        if not self._has_begun:
            self._runner.contextvars = await self._lifespan.enter(self._tasks.values())
            self._has_begun = True
            tracing.look()  # a hook may have set a tracer provider

    async def run(self) -> None:
        """Run executions until stopped or cancelled, then drain.

        The app's startup hooks run first, and its shutdown hooks run last. The first cancellation
        begins the drain. A second cancellation releases the running executions instead of waiting
        for them. Raises `SlotsLost` if handlers that do not stop have taken all slots.
        """
        self._ended.clear()
        try:
            await self.begin()
            try:
                await self._work()
            except BaseException:
                with contextlib.suppress(Exception):  # the lifespan has logged it
                    await self._exit_lifespan()
                raise
            else:
                await self._exit_lifespan()
        finally:
            self._ended.set()
            WORKER_LOGGER.info("worker stopped: %s", self.instance_id)

    async def claim_once(self, limit: int) -> list[Claimed]:
        """Claim at most `limit` executions and start them, without `run()`.

        For tests that control each claim. The executions have ended when `is_working` is False.
        """
        await self.begin()
        return await self._claimer.claim_once(limit)

    async def crash(self) -> list[Claimed]:
        """Abandon all executions as a killed process would, and return them.

        Settles and releases nothing, so the leases expire.
        """
        abandoned = [*self.claimed, *self._settlement.take_interrupted()]
        self._claimer.take_waiting()
        self._suspects.current = None
        self._hints.end_reservation()
        tasks = [run.task for run in self._runner.running.values()]
        for claimed in list(self._runner.running):
            self._runner.cancel(claimed)
        for claimed in abandoned:
            self._heartbeat.drop(claimed)
        if tasks:
            await asyncio.wait(tasks, timeout=CRASH_SECONDS)
        self._runner.threads.shutdown()
        self._runner.slots.close()
        return abandoned

    async def _exit_lifespan(self) -> None:
        self._has_begun = False
        await self._lifespan.exit()

    async def _work(self) -> None:
        WORKER_LOGGER.info(
            "worker started: %s, %s, concurrency %s, lanes %s, database %s",
            self.instance_id,
            "1 task" if len(self._tasks) == 1 else f"{len(self._tasks)} tasks",
            self._concurrency,
            ", ".join(self.lanes) if self.lanes else "all",
            self._database,
        )
        self._hints.add(self)
        self._heartbeat.add_worker(self._registration)
        claiming = asyncio.create_task(self._claimer.run())
        drain = functools.partial(self._drain.run, claiming)
        try:
            await asyncio.shield(claiming)
        except BaseException:
            # The worker was cancelled or a claim was refused. Drain the running executions anyway.
            self.stop()
            await finish(drain, self.stop_at_once)
            raise
        else:
            await finish(drain, self.stop_at_once)
            if self._slots_lost is not None:
                raise self._slots_lost
        finally:
            self._hints.remove(self)
            self._heartbeat.remove_worker(self.instance_id)
            self._runner.threads.shutdown()

    def _take_waiting(self) -> list[Claimed]:
        """Remove and return the executions that wait for a slot, and the waiting suspect."""
        waiting = [*self._claimer.take_waiting(), *self._waiting_suspect]
        self._suspects.current = None
        return waiting

    def _on_free_slot(self) -> None:
        self._claimer.notify_room()
        if not self._stopping.is_set():
            self._claimer.start_waiting()

    def _stop_without_slots(self) -> None:
        """Drain and end, because all slots are lost. A new process begins with all its slots."""
        if not self._stopping.is_set():
            self._slots_lost = SlotsLost(
                f"All {self._concurrency} slots are lost to handlers that do not stop: "
                f"{named(self._runner.slots.lost)}."
            )
            WORKER_LOGGER.error("worker drains and ends: %s", self._slots_lost)
            self.stop()

    def _on_suspect_turn_ended(self) -> None:
        self._hints.end_reservation()
        self._claimer.notify_room()
        self.wake()

    def _on_drain_asked(self) -> None:
        """Stop the worker, on its own loop.

        After an operator has asked for a drain, the heartbeat's thread calls this with every beat.
        """
        self._loop.call_soon_threadsafe(self._drain_as_asked)

    def _drain_as_asked(self) -> None:
        if not self._stopping.is_set():
            WORKER_LOGGER.info("worker drains, as an operator asked: %s", self.instance_id)
            self.stop()

    def _on_takeover(self) -> None:
        """Let the worker claim soon from routes that it takes over.

        The heartbeat's thread calls this.
        """
        self._loop.call_soon_threadsafe(self.wake)

    def _on_leases_lost_elsewhere(self, several: dict[Claimed, FlowFabricError]) -> None:
        """Pass lost leases to the worker's loop. The heartbeat's thread calls this."""
        self._loop.call_soon_threadsafe(self._on_leases_lost, several)

    def _on_leases_lost(self, several: dict[Claimed, FlowFabricError]) -> None:
        gone = set(several)
        self._claimer.discard(gone)
        if self._suspects.current in gone and self._suspects.current not in self._runner.running:
            self._suspects.current = None
            self._hints.end_reservation()
        self._runner.on_leases_lost(several)


def _host_name() -> str | None:
    """Return the name of this host without spaces, cut to the length that the registry allows."""
    return "-".join(socket.gethostname().split())[:64] or None


def _check_options(
    tasks: Mapping[str, TaskSpec],
    lanes: Sequence[str] | None,
    concurrency: int,
    code: CodeVersion,
    finish_only: bool,
) -> None:
    if not tasks:
        raise InvalidInput(field="tasks", problem="this app has no task; decorate one first")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidInput(field="concurrency", problem="must be a whole number, 1 or more")
    if isinstance(lanes, str) or (lanes is not None and not lanes):
        raise InvalidInput(field="lanes", problem="must be a list of lanes, or None for all")
    for lane in lanes or ():
        check_lane(lane)
    if finish_only and code.name is None:
        raise InvalidInput(
            field="finish_only",
            problem="needs a code version: App(code_version=...) or FLOWFABRIC_CODE_VERSION",
        )
