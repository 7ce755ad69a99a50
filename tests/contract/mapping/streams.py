"""Streams and summaries."""

from __future__ import annotations

from typing import Any

from flowfabric.core.execution import Claimed
from flowfabric.core.states import StreamMode
from flowfabric.core.stream import Frame, FrameEncoding, OutgoingFrame

from .world import See, World, operation

SOURCE = "contract"


async def _send(world: World, held: Claimed, *frames: bytes, mode: str = "durable") -> None:
    queue = world.client.streams.sender.queue(held, 0)
    for payload in frames:
        frame = OutgoingFrame(payload, FrameEncoding.TEXT, "text", StreamMode(mode))
        assert queue.put_nowait(frame)
    await world.client.streams.flush(held)


async def _texts(world: World, held: Claimed, **given: Any) -> tuple[list[str], bool]:
    page = await world.client.streams.read(held.id, **given)
    return [one.text for one in page.items if isinstance(one, Frame)], page.is_ended


@operation(
    "append_frame",
    sql=["append_frames"],
    python=["streams.flush"],
    reasons=["0050"],
)
async def _(world: World, see: See) -> None:
    """Frames travel in chunks, numbered per lease, so that a call may be repeated. An execution has
    one stream for all its attempts. Every end of a lease closes it.
    """
    held = await world.claimed()
    await _send(world, held, b"a", b"b")
    see("stored", (await _texts(world, held))[0], ["a", "b"])
    await world.executions.complete(held)
    see("ended", (await _texts(world, held))[1], True)


@operation(
    "read_stream",
    sql=["read_streams"],
    python=["streams.read"],
    reasons=["0050"],
)
async def _(world: World, see: See) -> None:
    """One call reads many streams, each after an id. Best-effort frames can be left out."""
    held = await world.claimed()
    await _send(world, held, b"a", b"b")
    first = (await world.client.streams.read(held.id)).items[0]
    assert isinstance(first, Frame)
    see("after", (await _texts(world, held, since=first.id))[0], ["b"])
    await _send(world, held, b"c", mode="best_effort")
    see("durable", (await _texts(world, held, with_best_effort=False))[0], ["a", "b"])


@operation(
    "tail_stream",
    sql=["read_streams"],
    python=["streams.follow"],
    reasons=["0050"],
)
async def _(world: World, see: See) -> None:
    """A follower waits without a connection and ends with the execution. All followers of a process
    share one query.
    """
    held = await world.claimed()
    await _send(world, held, b"a")
    frames = world.client.streams.follow(held.id)
    first = await anext(frames)
    assert isinstance(first, Frame)
    see("first", first.text, "a")
    await world.executions.complete(held)
    see("rest", [one async for one in frames], [])


@operation(
    "read_summary",
    sql=["read_summary"],
    python=["streams.summary"],
    reasons=["0050"],
)
async def _(world: World, see: See) -> None:
    """The document of the execution, not of an attempt. It survives the trimming of frames."""
    held = await world.claimed()
    see("none", await world.client.streams.summary(held.id), None)
    await _send(world, held, b'{"a": 1}', b'{"b": 2}', mode="summary")
    summary = await world.client.streams.summary(held.id)
    assert summary is not None
    see("document", summary.document, {"a": 1, "b": 2})
    see("version", summary.version, 2)
