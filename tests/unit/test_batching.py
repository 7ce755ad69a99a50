"""Group commit without a database: what the batcher sends, when, and who gets which answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowfabric.client import batching
from flowfabric.client.batching import BUSY, MAX_ALONE, MAX_BATCH, TRIES_TOGETHER, Batcher
from flowfabric.core.errors import InvalidInput, Unavailable


class Wire:
    """Stands for the database: keeps what was sent, and answers when it is let."""

    def __init__(self, answer: Callable[[list[Any]], Sequence[Any]] | None = None) -> None:
        self.batches: list[list[Any]] = []
        self.alone: list[Any] = []
        self.open = asyncio.Event()
        self.open.set()
        self.alone_open = asyncio.Event()
        self.alone_open.set()
        self._answer = answer or (lambda batch: [f"{item}!" for item in batch])

    async def flush(self, batch: list[Any]) -> Sequence[Any]:
        self.batches.append(list(batch))
        await self.open.wait()
        return self._answer(batch)

    async def send_alone(self, item: Any) -> Any:
        self.alone.append(item)
        await self.alone_open.wait()
        return f"{item} alone"

    def batcher(self, **limits: int) -> Batcher[Any, Any]:
        return Batcher(self.flush, self.send_alone, **limits)


async def settle() -> None:
    """Let everything run that can run without waiting for something outside."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_single_item_leaves_at_once():
    wire = Wire()
    batcher = wire.batcher()

    put = asyncio.create_task(batcher.put(1))
    await settle()  # no timer is involved: a few turns of the loop are enough

    assert wire.batches == [[1]]
    assert put.done()
    assert put.result() == "1!"


async def test_items_gather_behind_a_flush_and_leave_together():
    wire = Wire()
    wire.open.clear()
    batcher = wire.batcher()

    puts = [asyncio.create_task(batcher.put(0))]
    await settle()
    puts += [asyncio.create_task(batcher.put(n)) for n in range(1, 100)]
    await settle()
    assert wire.batches == [[0]]
    wire.open.set()

    assert await asyncio.gather(*puts) == [f"{n}!" for n in range(100)]
    assert wire.batches == [[0], list(range(1, 100))]


async def test_items_handed_in_during_one_turn_of_the_loop_share_a_batch():
    wire = Wire()
    batcher = wire.batcher()

    await asyncio.gather(*(batcher.put(n) for n in range(50)))

    assert wire.batches == [list(range(50))]


async def test_a_batch_holds_no_more_than_its_limit():
    wire = Wire()
    batcher = wire.batcher()

    await asyncio.gather(*(batcher.put(n) for n in range(2 * MAX_BATCH + 1)))

    assert [len(batch) for batch in wire.batches] == [MAX_BATCH, MAX_BATCH, 1]


async def test_a_caller_cancelled_before_its_item_left_withdraws_it():
    wire = Wire()
    wire.open.clear()
    batcher = wire.batcher()
    first = asyncio.create_task(batcher.put("first"))
    await settle()
    waiting = [asyncio.create_task(batcher.put(item)) for item in ("second", "third")]
    await settle()

    waiting[0].cancel()
    wire.open.set()

    assert await first == "first!"
    assert await waiting[1] == "third!"
    assert wire.batches == [["first"], ["third"]]
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]


async def test_a_caller_cancelled_after_its_item_left_cancels_nobody_else():
    wire = Wire()
    wire.open.clear()
    batcher = wire.batcher()
    puts = [asyncio.create_task(batcher.put(n)) for n in range(3)]
    await settle()
    assert wire.batches == [[0, 1, 2]]

    puts[1].cancel()
    await settle()
    wire.open.set()

    assert await asyncio.gather(puts[0], puts[2]) == ["0!", "2!"]
    assert wire.batches == [[0, 1, 2]]


async def test_an_item_that_spoils_the_statement_is_found_by_halving():
    def answer(batch: list[int]) -> list[str]:
        if 333 in batch:
            raise InvalidInput(field="item", problem="the database cannot store it")
        return [f"{item}!" for item in batch]

    wire = Wire(answer)
    batcher = wire.batcher()

    answers = await asyncio.gather(
        *(batcher.put(n) for n in range(MAX_BATCH)), return_exceptions=True
    )

    assert isinstance(answers[333], InvalidInput)
    assert [answer for n, answer in enumerate(answers) if n != 333] == [
        f"{n}!" for n in range(MAX_BATCH) if n != 333
    ]
    assert len(wire.batches) <= 2 * MAX_BATCH.bit_length() + 1


async def test_an_error_of_the_statement_reaches_each_of_its_callers_and_no_other():
    def answer(batch: list[int]) -> list[str]:
        if 0 in batch:
            raise Unavailable("no database")
        return [f"{item}!" for item in batch]

    wire = Wire(answer)
    wire.open.clear()
    batcher = wire.batcher()
    first = [asyncio.create_task(batcher.put(n)) for n in range(3)]
    await settle()
    second = [asyncio.create_task(batcher.put(n)) for n in range(3, 6)]
    wire.open.set()

    failed = await asyncio.gather(*first, return_exceptions=True)
    assert [type(error) for error in failed] == [Unavailable] * 3
    assert await asyncio.gather(*second) == ["3!", "4!", "5!"]


async def test_an_error_for_one_item_is_raised_to_its_caller_alone():
    wire = Wire(lambda batch: [Unavailable("no") if n == 1 else f"{n}!" for n in batch])
    batcher = wire.batcher()

    answers = await asyncio.gather(*(batcher.put(n) for n in range(3)), return_exceptions=True)

    assert answers[0] == "0!"
    assert isinstance(answers[1], Unavailable)
    assert answers[2] == "2!"


async def test_many_busy_items_are_sent_again_together_before_each_is_sent_alone(monkeypatch):
    monkeypatch.setattr(batching, "BUSY_PAUSES", (0.0,) * TRIES_TOGETHER)
    wire = Wire(lambda batch: [BUSY if item else "0!" for item in batch])
    batcher = wire.batcher()
    many = [*range(MAX_ALONE + 2)]

    found = await asyncio.gather(*(batcher.put(item) for item in many))

    assert found == ["0!", *(f"{item} alone" for item in many[1:])]
    assert wire.batches == [many, *[many[1:]] * TRIES_TOGETHER]
    assert sorted(wire.alone) == many[1:]


async def test_many_busy_items_end_together_once_they_are_free(monkeypatch):
    monkeypatch.setattr(batching, "BUSY_PAUSES", (0.0,) * TRIES_TOGETHER)
    wire = Wire()
    wire._answer = lambda batch: [BUSY if len(wire.batches) < 3 else f"{i}!" for i in batch]
    batcher = wire.batcher()
    many = [*range(MAX_ALONE + 1)]

    found = await asyncio.gather(*(batcher.put(item) for item in many))

    assert found == [f"{item}!" for item in many]
    assert wire.alone == []


async def test_many_busy_items_are_cancelled_with_their_loop(monkeypatch):
    wire, answers = Wire(lambda batch: [BUSY for _ in batch]), {}
    batcher = wire.batcher()
    for item in range(MAX_ALONE + 1):
        batcher.put_soon(item, answers.__setitem__)
    await settle()
    (again,) = batcher._tasks
    again.cancel()
    await asyncio.wait([again])

    assert {type(answer) for answer in answers.values()} == {asyncio.CancelledError}
    assert len(answers) == MAX_ALONE + 1


async def test_a_busy_item_is_repeated_alone_and_nobody_waits_for_it():
    wire = Wire(lambda batch: [BUSY if item == 1 else f"{item}!" for item in batch])
    wire.alone_open.clear()
    batcher = wire.batcher()

    busy = asyncio.create_task(batcher.put(1))
    assert await asyncio.gather(batcher.put(0), batcher.put(2)) == ["0!", "2!"]
    assert await batcher.put(3) == "3!"
    assert not busy.done()
    wire.alone_open.set()

    assert await busy == "1 alone"
    assert wire.alone == [1]


async def test_a_full_queue_blocks_its_callers_and_goes_on_when_there_is_space():
    wire = Wire()
    wire.open.clear()
    batcher = wire.batcher(max_batch=2, max_queue=4)
    puts = [asyncio.create_task(batcher.put(n)) for n in range(20)]
    await settle()
    # Nothing has left but the first batch, so most callers have not even handed theirs in.
    assert sum(len(batch) for batch in wire.batches) == 2
    assert not any(put.done() for put in puts)

    wire.open.set()

    assert await asyncio.wait_for(asyncio.gather(*puts), 60) == [f"{n}!" for n in range(20)]
    assert sorted(item for batch in wire.batches for item in batch) == list(range(20))


async def test_a_caller_blocked_by_a_full_queue_can_be_cancelled():
    wire = Wire()
    wire.open.clear()
    batcher = wire.batcher(max_batch=1, max_queue=1)
    puts = [asyncio.create_task(batcher.put(n)) for n in range(4)]
    await settle()

    puts[3].cancel()
    wire.open.set()

    assert await asyncio.wait_for(asyncio.gather(*puts[:3]), 60) == ["0!", "1!", "2!"]
    assert [3] not in wire.batches


async def test_closing_sends_what_was_handed_in_and_refuses_more():
    wire = Wire(lambda batch: [BUSY if item == 2 else f"{item}!" for item in batch])
    wire.open.clear()
    batcher = wire.batcher(max_batch=2)
    puts = [asyncio.create_task(batcher.put(n)) for n in range(5)]
    await settle()

    closing = asyncio.create_task(batcher.close())
    await settle()
    assert not closing.done()
    wire.open.set()
    await asyncio.wait_for(closing, 60)

    assert await asyncio.gather(*puts) == ["0!", "1!", "2 alone", "3!", "4!"]
    with pytest.raises(Unavailable):
        await batcher.put(6)


async def test_closing_frees_a_caller_that_a_full_queue_blocks():
    wire = Wire()
    wire.open.clear()
    batcher = wire.batcher(max_batch=1, max_queue=1)
    puts = [asyncio.create_task(batcher.put(n)) for n in range(4)]
    await settle()

    closing = asyncio.create_task(batcher.close())
    await settle()
    wire.open.set()
    await asyncio.wait_for(closing, 60)

    answers = await asyncio.wait_for(asyncio.gather(*puts, return_exceptions=True), 60)
    assert answers[:2] == ["0!", "1!"]
    assert all(isinstance(answer, Unavailable) for answer in answers[2:])


async def test_the_batcher_starts_again_after_it_was_idle():
    wire = Wire()
    batcher = wire.batcher()

    for n in range(5):
        assert await batcher.put(n) == f"{n}!"
        await settle()

    assert wire.batches == [[n] for n in range(5)]


@pytest.mark.parametrize("turns", [0, 20], ids=["before it began", "on its way"])
async def test_a_flush_that_is_cancelled_with_all_tasks_of_a_loop_leaves_nobody_without_an_answer(
    turns,
):
    """As `asyncio.run` does in the end, or after Ctrl-C."""
    wire, answers = Wire(), {}
    batcher = wire.batcher(max_batch=1)
    wire.open.clear()
    for item in range(3):
        batcher.put_soon(item, answers.__setitem__)
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    wire.open.set()
    await settle()

    cut = {item for item, answer in answers.items() if isinstance(answer, asyncio.CancelledError)}
    assert cut == ({0} if turns else set())
    assert answers.keys() == {0, 1, 2}


async def test_an_item_sent_alone_that_is_cancelled_with_all_tasks_is_answered():
    wire, answers = Wire(lambda batch: [BUSY for _ in batch]), {}
    batcher = wire.batcher()
    wire.alone_open.clear()
    batcher.put_soon(0, answers.__setitem__)
    await settle()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await settle()

    assert isinstance(answers[0], asyncio.CancelledError)
