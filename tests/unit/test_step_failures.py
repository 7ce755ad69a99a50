"""asyncio knows whether the exception of a task was received, in private: this pins how."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from flowfabric.handlers.step_failures import is_exception_retrieved

Failing = asyncio.Task[None]


async def awaited(task: Failing) -> None:
    with suppress(ConnectionError):
        await task


async def gathered(task: Failing) -> None:
    await asyncio.gather(task, return_exceptions=True)


async def shielded(task: Failing) -> None:
    with suppress(ConnectionError):
        await asyncio.shield(task)


async def asked_for_its_result(task: Failing) -> None:
    await asyncio.wait([task])
    with suppress(ConnectionError):
        task.result()


async def asked_for_its_exception(task: Failing) -> None:
    await asyncio.wait([task])
    task.exception()


async def waited_for(task: Failing) -> None:
    await asyncio.wait([task])


async def seen_by_a_callback(task: Failing) -> None:
    ended = asyncio.Event()
    task.add_done_callback(lambda _: ended.set())
    await ended.wait()


@pytest.mark.parametrize(
    ("use", "is_retrieved"),
    [
        (awaited, True),
        (gathered, True),
        (shielded, True),
        (asked_for_its_result, True),
        (asked_for_its_exception, True),
        (waited_for, False),
        (seen_by_a_callback, False),
    ],
)
async def test_an_exception_is_retrieved_once_somebody_has_received_it(
    use: Callable[[Failing], Awaitable[None]], is_retrieved: bool
) -> None:
    async def fail() -> None:
        raise ConnectionError("away")

    task = asyncio.create_task(fail())
    await use(task)
    assert is_exception_retrieved(task) is is_retrieved
    assert is_exception_retrieved(task) is is_retrieved, "asking receives nothing"
    task.exception()


async def test_a_task_of_a_task_group_hands_its_exception_to_the_group() -> None:
    async def fail() -> None:
        raise ConnectionError("away")

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(fail())
    assert is_exception_retrieved(task)


async def test_a_task_that_returned_or_was_cancelled_has_nothing_to_retrieve() -> None:
    done = asyncio.create_task(asyncio.sleep(0))
    cancelled = asyncio.create_task(asyncio.sleep(60))
    cancelled.cancel()
    await asyncio.wait([done, cancelled])
    assert is_exception_retrieved(done)
    assert is_exception_retrieved(cancelled)
