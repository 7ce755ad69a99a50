"""The sender of frames: order, repeats, back-pressure. The database is a function here."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from flowfabric.client import frames
from flowfabric.client.frames import FrameQueue, FrameSender, pack_hint
from flowfabric.core.errors import RetryExhausted, StaleLease, StreamStalled, Unavailable
from flowfabric.core.execution import Claimed
from flowfabric.core.states import StreamMode
from flowfabric.core.stream import FrameEncoding, OutgoingFrame


def claimed(partition: int = 0) -> Claimed:
    now = datetime.now(UTC)
    return Claimed(
        execution_id=uuid4(),
        namespace="test",
        lane="default",
        task="tests.work",
        claim_kind="fresh",
        rank=0,
        order_at=now,
        epoch=1,
        attempt=1,
        attempt_id=uuid4(),
        attempt_type="initial",
        lease_expires_at=now,
        attempt_deadline_at=None,
        deadline_at=None,
        retry_count=0,
        payload_encoding=None,
        payload=None,
        replay_count=0,
        trace_context=None,
        crash_count=0,
        generation=0,
        partition_key=partition,
        lease_id=uuid4(),
    )


def frame(text: str, mode: str = "durable") -> OutgoingFrame:
    return OutgoingFrame(text.encode(), FrameEncoding.TEXT, "text", StreamMode(mode))


class Store:
    """Answers calls as told, and keeps what it stored, as the engine would: by number."""

    def __init__(self) -> None:
        self.stored: dict[UUID, list[str]] = {}
        self.calls: list[list[tuple[UUID, int, int]]] = []
        # What the next calls answer instead: an error for the call, or one for each chunk.
        self.answers: list[object] = []
        self.hints: list[str] = []
        self.called = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, partition, batch):
        await self.open.wait()
        self.called.set()
        self.calls.append(
            [(q.claimed.execution_id, chunk.first_no, len(chunk.frames)) for q, chunk in batch]
        )
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, tuple):
            is_stored, error = answer
        else:
            is_stored, error = answer is None, answer
        if is_stored:
            for queue, chunk in batch:
                kept = self.stored.setdefault(queue.claimed.execution_id, [])
                assert chunk.first_no <= len(kept), "a gap"
                kept[chunk.first_no :] = [one.payload.decode() for one in chunk.frames]
        if isinstance(error, Unavailable) and not isinstance(error, RetryExhausted):
            raise error
        return [error] * len(batch)

    async def hint(self, payload: str) -> None:
        self.hints.append(payload)


@pytest.fixture
async def store():
    return Store()


@pytest.fixture
async def sender(store, monkeypatch):
    monkeypatch.setattr(frames, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(frames, "OUTAGE_SECONDS", 0.0)
    made = FrameSender(store, store.hint)
    yield made
    store.open.set()
    await made.close()


async def test_frames_of_all_queues_go_into_one_call(sender, store):
    queues = [sender.queue(claimed(), 0) for _ in range(10)]
    for n in range(5):
        for queue in queues:
            assert queue.put_nowait(frame(str(n)))
    await asyncio.gather(*(queue.flush() for queue in queues))
    assert [len(call) for call in store.calls] == [10]
    assert list(store.stored.values()) == [list("01234")] * 10
    assert len(store.hints) == 1


async def test_a_busy_chunk_is_not_overtaken_by_later_frames(sender, store):
    queue = sender.queue(claimed(), 0)
    store.answers = [RetryExhausted(), RetryExhausted()]
    for text in "abc":
        queue.put_nowait(frame(text))
        await store.called.wait()
    await queue.flush()
    assert store.stored[queue.claimed.execution_id] == list("abc")
    assert [call[0][1] for call in store.calls[:3]] == [0, 0, 0]


async def test_a_lost_answer_is_asked_for_again_and_stores_nothing_twice(sender, store):
    queue = sender.queue(claimed(), 0)
    store.answers = [(True, Unavailable("cut")), Unavailable("gone")]
    for text in "abc":
        queue.put_nowait(frame(text))
    await queue.flush()
    assert store.stored[queue.claimed.execution_id] == list("abc")


async def test_another_mode_begins_another_chunk(sender, store):
    queue = sender.queue(claimed(), 0)
    for text, mode in (("a", "durable"), ("b", "durable"), ("c", "summary"), ("d", "durable")):
        queue.put_nowait(frame(text, mode))
    await queue.flush()
    assert [(first, count) for _, first, count in store.calls[0]] == [(0, 2), (2, 1), (3, 1)]


async def test_a_lost_lease_ends_the_queue_and_its_waiters(sender, store):
    queue = sender.queue(claimed(), 0)
    store.open.clear()
    store.answers = [StaleLease()]
    queue.put_nowait(frame("a"))
    flushing = asyncio.create_task(queue.flush())
    await asyncio.sleep(0)
    store.open.set()
    with pytest.raises(StaleLease):
        await flushing
    with pytest.raises(StaleLease):
        queue.put_nowait(frame("b"))


async def test_a_full_queue_waits_and_then_raises(sender, store, monkeypatch):
    monkeypatch.setattr(frames, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(frames, "QUEUE_BYTES", 10)
    queue = sender.queue(claimed(), 0)
    store.open.clear()
    await queue.put(frame("x" * 10))
    assert not queue.put_nowait(frame("y"))
    with pytest.raises(StreamStalled):
        await queue.put(frame("y"))
    monkeypatch.setattr(frames, "STALL_SECONDS", 30)
    waiting = asyncio.create_task(queue.put(frame("y")))
    await asyncio.sleep(0)
    store.open.set()
    await waiting
    await queue.flush()
    assert store.stored[queue.claimed.execution_id] == ["x" * 10, "y"]


async def test_threads_put_frames_in_their_order(sender, store):
    queue = sender.queue(claimed(), 0)

    def talk(name: str) -> None:
        for n in range(200):
            assert queue.put_nowait(frame(f"{name}{n}"))

    threads = [threading.Thread(target=talk, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await queue.flush()
    told = store.stored[queue.claimed.execution_id]
    for name in "ab":
        assert [one for one in told if one[0] == name] == [f"{name}{n}" for n in range(200)]


async def test_a_queue_goes_when_its_handler_has_ended(sender, store):
    stored, lost, empty = (sender.queue(claimed(), 0) for _ in range(3))
    store.open.clear()
    stored.put_nowait(frame("a"))
    lost.put_nowait(frame("b"))
    sender.close_queue(stored.claimed, is_lost=False)
    sender.close_queue(lost.claimed, is_lost=True)
    sender.close_queue(empty.claimed, is_lost=False)
    with pytest.raises(RuntimeError, match="has ended"):
        stored.put_nowait(frame("c"))
    store.open.set()
    await sender.flush(stored.claimed)
    assert store.stored.get(stored.claimed.execution_id) == ["a"]
    assert lost.claimed.execution_id not in store.stored
    for ended in (stored.claimed, lost.claimed, empty.claimed):
        assert isinstance(sender.queue(ended, 0), FrameQueue)
        assert sender.queue(ended, 0) not in (stored, lost, empty)


def test_a_hint_names_up_to_300_streams():
    ids = [uuid4() for _ in range(301)]
    assert pack_hint(2, ids) == "2 *"
    packed = pack_hint(2, ids[:300])
    assert packed.startswith("2 ")
    assert len(packed.encode()) < 8000
