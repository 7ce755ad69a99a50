"""Coroutines that share a task as long as they do not yield, and never notice it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any

import pytest

from flowfabric.worker.driver import SLICE_SECONDS, Driver
from worker.waiting import eventually

Handler = Callable[[], Awaitable[Any]]
VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")


class Drives:
    """A driver of handlers, with the answer of each, or what it raised."""

    def __init__(self, *handlers: Handler, slots: int = 1000) -> None:
        self.waiting = deque(enumerate(handlers))
        self.answers: dict[int, Any] = {}
        # What each task runs: unlike the task, it can be kept without being noticed.
        self.tasks: dict[int, Any] = {}
        self.running: dict[int, asyncio.Task[None]] = {}
        self.slots = slots
        self.driver = Driver(self._begin_next, on_task_kept=lambda has_yielded: self.start())
        self.context = contextvars.copy_context()

    def start(self) -> None:
        if self.waiting and len(self.running) < self.slots:
            self.driver.start()

    async def all_answers(self) -> list[Any]:
        self.start()
        await eventually(lambda: not self.waiting and not self.running)
        return [self.answers[number] for number in sorted(self.answers)]

    def _begin_next(
        self, task: asyncio.Task[None]
    ) -> tuple[contextvars.Context, Coroutine[Any, Any, None]] | None:
        if not self.waiting or len(self.running) >= self.slots:
            return None
        number, handler = self.waiting.popleft()
        self.running[number] = task
        self.tasks[number] = task.get_coro()
        return self.context.copy(), self._run(number, handler)

    async def _run(self, number: int, handler: Handler) -> None:
        try:
            self.answers[number] = await handler()
        except asyncio.CancelledError:
            self.answers[number] = "cancelled"
        except Exception as error:
            self.answers[number] = type(error)
        finally:
            del self.running[number]
            self.start()


async def quick() -> str:
    return "done"


async def yields() -> str:
    task = asyncio.current_task()
    await asyncio.sleep(0.001)
    assert asyncio.current_task() is task
    return "done"


async def test_those_that_do_not_yield_share_one_task():
    made = count_tasks()
    drives = Drives(*[quick] * 100)

    assert await drives.all_answers() == ["done"] * 100
    assert len(set(drives.tasks.values())) == 1
    assert made() == 1


async def test_one_that_yields_keeps_its_task_and_the_rest_goes_on_in_another():
    seen: list[str] = []
    go = asyncio.Event()

    async def waits() -> str:
        seen.append("waits")
        before = asyncio.current_task()
        await go.wait()
        assert asyncio.current_task() is before
        return "waited"

    async def ends() -> str:
        seen.append("ends")
        if len(seen) == 5:
            go.set()
        return "done"

    drives = Drives(ends, waits, ends, waits, ends)

    assert await drives.all_answers() == ["done", "waited", "done", "waited", "done"]
    assert seen == ["ends", "waits", "ends", "waits", "ends"], "each was started once, in order"
    tasks = drives.tasks
    assert tasks[0] == tasks[1] != tasks[2] == tasks[3] != tasks[4]


async def test_all_slots_can_be_taken_by_those_that_yield():
    now = most = 0
    full = asyncio.Event()

    async def counts() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 10:
            full.set()
        await asyncio.wait_for(full.wait(), 60)
        await asyncio.sleep(0)
        now -= 1

    await Drives(*[counts] * 50, slots=10).all_answers()

    assert most == 10


async def test_contextvars_of_one_reach_no_other_also_after_it_yields():
    async def sets() -> str:
        found = VAR.get()
        token = VAR.set("mine")
        await asyncio.sleep(0)
        assert VAR.get() == "mine"
        VAR.reset(token)
        VAR.set("left behind")
        return found

    async def sets_and_ends() -> str:
        found = VAR.get()
        VAR.set("left behind")
        return found

    drives = Drives(sets, sets_and_ends, sets, sets_and_ends, sets_and_ends)

    assert await drives.all_answers() == ["unset"] * 5
    assert VAR.get() == "unset"


async def test_the_loop_gets_a_turn_at_least_every_slice():
    turns: list[float] = []
    loop = asyncio.get_running_loop()

    def turn() -> None:
        turns.append(monotonic())
        loop.call_soon(turn)

    async def works() -> None:
        until = monotonic() + SLICE_SECONDS / 5
        while monotonic() < until:
            pass

    handlers = [works] * 50
    turn()
    await Drives(*handlers).all_answers()

    assert len(turns) >= 50 / 5, "after at most five or six of them"


def cancels_itself() -> None:
    asyncio.current_task().cancel()


def cancels_and_uncancels_itself() -> None:
    asyncio.current_task().cancel()
    asyncio.current_task().uncancel()


KEPT: list[Any] = []


def keeps_its_task() -> None:
    KEPT.append(asyncio.current_task())


def keeps_a_weak_reference() -> None:
    KEPT.append(weakref.ref(asyncio.current_task()))


def adds_a_callback() -> None:
    asyncio.current_task().add_done_callback(KEPT.append)


def names_its_task() -> None:
    asyncio.current_task().set_name("mine")


def sets_an_attribute() -> None:
    asyncio.current_task().request = 1


def leaves_a_timeout_open() -> None:
    with pytest.raises(StopIteration):
        asyncio.timeout(0).__aenter__().send(None)


@pytest.mark.parametrize(
    "leave",
    [
        cancels_itself,
        cancels_and_uncancels_itself,
        keeps_its_task,
        keeps_a_weak_reference,
        adds_a_callback,
        names_its_task,
        sets_an_attribute,
        leaves_a_timeout_open,
    ],
)
async def test_what_one_leaves_on_its_task_reaches_no_other(leave):
    async def leaves() -> str:
        leave()
        return "left"

    KEPT.clear()
    drives = Drives(leaves, yields, quick, leaves, yields, yields)

    assert await drives.all_answers() == ["left", "done", "done", "left", "done", "done"]
    tasks = drives.tasks
    assert len({tasks[0], tasks[1], tasks[3], tasks[4]}) == 4
    assert tasks[2] == tasks[3]


@pytest.mark.parametrize("at_once", [True, False])
async def test_timeouts_and_groups_work_and_reach_no_other(at_once):
    async def runs_out_of_time() -> str:
        try:
            async with asyncio.timeout(0 if at_once else 0.001):
                await asyncio.sleep(60)
        except TimeoutError:
            return "timeout"
        return "no timeout"

    async def has_time() -> str:
        async with asyncio.timeout(60):
            return await quick()

    async def fails_in_a_group() -> str:
        async def fails() -> None:
            raise ZeroDivisionError

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                if not at_once:
                    await asyncio.sleep(60)
        except ExceptionGroup:
            return "failed"
        return "not failed"

    handlers = [runs_out_of_time, has_time, fails_in_a_group, yields, has_time]

    assert await Drives(*handlers).all_answers() == ["timeout", "done", "failed", "done", "done"]
    assert asyncio.current_task().cancelling() == 0


async def test_cancelling_one_that_yielded_reaches_no_other():
    async def waits() -> None:
        await asyncio.sleep(60)

    drives = Drives(quick, waits, quick, waits, yields)
    drives.start()
    await eventually(lambda: not drives.waiting)
    drives.running[1].cancel()
    answers = asyncio.ensure_future(drives.all_answers())
    await eventually(lambda: 1 not in drives.running)
    assert 3 in drives.running
    drives.running[3].cancel()

    assert await answers == ["done", "cancelled", "done", "cancelled", "done"]


async def test_one_may_catch_its_cancellation_and_go_on():
    async def goes_on() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
        await asyncio.sleep(0)
        return VAR.get()

    drives = Drives(goes_on)
    drives.start()
    await eventually(lambda: not drives.waiting)
    drives.running[0].cancel()

    assert await drives.all_answers() == ["unset"]


async def test_one_that_waits_for_a_shared_future_gets_its_result_or_its_error():
    loop = asyncio.get_running_loop()
    good, bad = loop.create_future(), loop.create_future()

    async def waits_for_good() -> Any:
        return await good

    async def waits_for_bad() -> Any:
        return await bad

    drives = Drives(waits_for_good, waits_for_bad, waits_for_good)
    drives.start()
    loop.call_later(0.001, good.set_result, 7)
    loop.call_later(0.001, bad.set_exception, KeyError(1))

    assert await drives.all_answers() == [7, KeyError, 7]


async def test_a_driver_whose_task_was_cancelled_before_it_began_can_start_again():
    drives = Drives(quick)
    drives.start()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
    assert drives.answers == {}

    assert await drives.all_answers() == ["done"]


@pytest.mark.parametrize("has_yielded", [False, True])
def test_a_keyboard_interrupt_ends_the_loop_and_starts_no_other(has_yielded):
    began: list[int] = []

    async def interrupts() -> None:
        if has_yielded:
            await asyncio.sleep(0)
        raise KeyboardInterrupt

    async def begins() -> None:
        began.append(1)

    async def main() -> None:
        handlers = [interrupts] if has_yielded else [interrupts, begins]
        drives = Drives(*handlers)
        await drives.all_answers()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert not began


def test_a_loop_that_is_thrown_away_closes_the_coroutines_that_yielded():
    seen: list[str] = []

    async def waits() -> None:
        VAR.set("mine")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append(VAR.get())

    async def main() -> None:
        drives = Drives(waits)
        drives.start()
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    loop.run_until_complete(main())
    loop.close()
    gc.collect()

    assert seen == ["mine"]


async def test_nothing_is_left_to_the_garbage_collector():
    class Kept:
        pass

    kept: list[weakref.ref[Kept]] = []

    async def holds() -> None:
        held = Kept()
        kept.append(weakref.ref(held))
        VAR.set("held")
        await asyncio.sleep(0)

    gc.collect()
    gc.disable()
    try:
        await Drives(*[holds] * 5).all_answers()
        await asyncio.sleep(0)
        assert [one() for one in kept] == [None] * 5
    finally:
        gc.enable()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_a_factory_of_eager_tasks_changes_nothing():
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        assert await Drives(quick, yields, quick).all_answers() == ["done"] * 3
    finally:
        loop.set_task_factory(None)


def count_tasks() -> Callable[[], int]:
    """Return a function that tells how many tasks began to run since this call."""
    began: set[int] = set()
    before = {id(task) for task in asyncio.all_tasks()}
    loop = asyncio.get_running_loop()

    def look() -> None:
        began.update(id(task) for task in asyncio.all_tasks())
        loop.call_soon(look)

    look()
    return lambda: len(began - before)
