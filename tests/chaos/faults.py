"""The nemesis: breaks workers, connections and the server, as its seed tells it."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from faults.proxy import Cut, Proxy
from faults.server import Server
from faults.workers import Crew

# The calls whose answer is lost after their commit.
CUT = (
    "submit_executions",
    "claim_executions",
    "complete_executions",
    "fail_executions",
    "renew_leases",
    "release_leases",
    "delay_execution",
    "report_progress",
    "cancel_execution",
    "replay_execution",
    "revoke_lease",
    "change_priority",
    "read_events",
)
TERMINATE = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and application_name like 'flowfabric%'
order by md5(pid::text || $1) limit $2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many seconds lie between two faults of a kind, on average."""

    kill: float
    pause: float
    crash: float
    cut: float
    sever: float
    lose: float
    terminate: float
    subscriber: float


class Nemesis:
    def __init__(
        self,
        *,
        workers: Crew,
        subscriber: Crew,
        server: Server,
        proxy: Proxy,
        random: Random,
        pace: Pace,
        lease_seconds: float,
    ) -> None:
        self._workers = workers
        self._subscriber = subscriber
        self._server = server
        self._proxy = proxy
        self._pace = pace
        self._random = random
        self._lease_seconds = lease_seconds
        self._paused: set[int] = set()
        # Held while the server is away, and by whoever wants it to stay.
        self.server_lock = asyncio.Lock()
        self.counts: Counter[str] = Counter()
        self.away: list[float] = []

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))

    async def run(self) -> None:
        """Break things until cancelled."""
        pace = self._pace
        async with asyncio.TaskGroup() as group:
            for seconds, fault in (
                (pace.kill, self._kill),
                (pace.pause, self._pause),
                (pace.crash, self._crash),
                (pace.cut, self._cut),
                (pace.sever, self._sever),
                (pace.lose, self._lose),
                (pace.terminate, self._terminate),
                (pace.subscriber, self._kill_subscriber),
            ):
                # Each with a seed of its own, so that one that is late does not move the others.
                random = Random(self._random.random())
                group.create_task(self._repeat(seconds, fault, random))

    async def run_once(self, names: Sequence[str]) -> None:
        """Break these things, one after another, as soon as the workers are at work."""
        await self._until_claimed()
        for name in names:
            fault: Callable[[Random], Awaitable[None]] = getattr(self, f"_{name}")
            await fault(Random(self._random.random()))

    async def _until_claimed(self) -> None:
        claims = "select count(*) from ff.event where kind = 'claimed'"
        while True:
            ((number,),) = await self._server.fetch(claims)
            if number:
                return
            await asyncio.sleep(0.02)

    async def _repeat(
        self, seconds: float, fault: Callable[[Random], Awaitable[None]], random: Random
    ) -> None:
        while True:
            await asyncio.sleep(seconds * random.uniform(0.5, 1.5))
            await fault(random)

    async def _kill(self, random: Random) -> None:
        self._workers.kill(self._victim(random))
        self.counts["kill -9 of a worker"] += 1

    async def _pause(self, random: Random) -> None:
        """Stop a worker for longer than its leases, and let it go on as if nothing had been."""
        position = self._victim(random)
        self._paused.add(position)
        try:
            self._workers.stop(position)
            await asyncio.sleep(self._lease_seconds + random.choice((0.1, 0.5, 1.5)))
            self.counts["SIGSTOP of a worker"] += 1
        finally:
            self._workers.go_on(position)
            self._paused.discard(position)

    async def _crash(self, random: Random) -> None:
        async with self.server_lock:
            how = random.choice((signal.SIGKILL, signal.SIGQUIT))
            # A server that has been killed must be there again, whatever happens to us meanwhile.
            restart = asyncio.ensure_future(self._server.restart(how, random.uniform(0.0, 0.5)))
            try:
                self.away.append(await asyncio.shield(restart))
            except asyncio.CancelledError:
                self.away.append(await restart)
                raise
            finally:
                word = "kill -9" if how == signal.SIGKILL else "immediate shutdown"
                self.counts[f"{word} of Postgres"] += 1

    async def _cut(self, random: Random) -> None:
        """Lose the answer of the next call of some function, after its commit."""
        cut = self._proxy.cut = Cut(random.choice(CUT))
        try:
            async with asyncio.timeout(2):
                await cut.happened.wait()
            self.counts["answer lost"] += 1
        except TimeoutError:
            return
        finally:
            self._proxy.cut = None

    async def _sever(self, random: Random) -> None:
        self.counts["connection cut"] += sum(self._proxy.sever(random) for _ in range(3))

    async def _lose(self, random: Random) -> None:
        """A connection that stays open and says nothing any more."""
        self.counts["connection gone dead"] += self._proxy.sever(random, silently=True)

    async def _terminate(self, random: Random) -> None:
        rows = await self._server.fetch(TERMINATE, str(random.random()), random.randint(1, 6))
        self.counts["backend ended"] += len(rows)

    async def _kill_subscriber(self, random: Random) -> None:
        self._subscriber.kill(0)
        self.counts["kill -9 of the subscriber"] += 1

    def _victim(self, random: Random) -> int:
        free = [n for n in range(len(self._workers.workers)) if n not in self._paused]
        return random.choice(free)
