"""ff.read_streams and rewinds: what readers get, from where, and until when."""

from __future__ import annotations

from uuid import uuid4

import pytest

from support.factories import Engine, refused
from support.streams import START, append, read, read_many


async def test_an_execution_without_a_stream_is_open_and_empty(engine, make):
    held = await make.execution("leased")
    found = await read(engine, held.id)
    assert (found.word, found.is_ended, found.frames, found.last) == ("found", False, [], None)
    await engine.complete(held.lease)
    assert (await read(engine, held.id)).is_ended


async def test_an_unknown_or_foreign_execution_is_not_found(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"secret")
    assert (await read(engine, uuid4())).word == "not_found"
    foreign = Engine(engine.connection, namespace="another")
    found = await read(foreign, held.id)
    assert (found.word, found.frames) == ("not_found", [])


async def test_a_reader_goes_on_after_any_frame(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a", b"b", b"c")
    await append(engine, held.lease, b"d", no=3)
    everything = (await read(engine, held.id)).frames
    for place, frame in enumerate(everything):
        rest = await read(engine, held.id, frame.id)
        assert rest.frames == everything[place + 1 :]


async def test_pages_follow_one_another(engine, make):
    held = await make.execution("leased")
    for no in range(0, 60, 3):
        await append(engine, held.lease, *[b"%d" % n for n in range(no, no + 3)], no=no)
    found, after = [], START
    while page := (await read(engine, held.id, after, limit=10)).frames:
        assert len(page) <= 12
        found += page
        after = page[-1].id
    assert [one.payload for one in found] == [b"%d" % n for n in range(60)]


async def test_a_page_holds_about_a_mebibyte(engine, make):
    held = await make.execution("leased")
    for no in range(24):
        await append(engine, held.lease, b"x" * 65536, no=no)
    assert len((await read(engine, held.id)).frames) == 16


async def test_one_call_reads_many_streams_and_leaves_out_what_has_nothing_new(engine, make):
    quiet, told, ended = [await make.execution("leased") for _ in range(3)]
    last = (await append(engine, quiet.lease, b"q")).id
    await append(engine, told.lease, b"t")
    await append(engine, ended.lease, b"e")
    await engine.complete(ended.lease)
    asked = [(quiet.id, last), (told.id, START), (ended.id, START), (uuid4(), START)]
    found = await read_many(engine, asked, changed=True)
    assert found[0] is None
    assert found[1].payloads == [b"t"]
    assert (found[2].payloads, found[2].is_ended) == ([b"e"], True)
    assert found[3].word == "not_found"
    assert (await read_many(engine, asked))[0].frames == []


@pytest.mark.parametrize("limit", [0, 10001, None])
async def test_a_limit_out_of_range_is_refused(engine, make, limit):
    held = await make.execution("leased")
    with refused("WF001", field="limit"):
        await read(engine, held.id, limit=limit)


@pytest.mark.parametrize("after", [(-1, 0), (0, -1), (None, 0)])
async def test_a_position_that_is_none_is_refused(engine, make, after):
    held = await make.execution("leased")
    with refused("WF001", field="after"):
        await read(engine, held.id, after)


async def again(engine: Engine, held, how: str = "revoke"):
    """The execution loses its lease, and another worker takes it."""
    if how == "revoke":
        await engine.revoke(held.id)
    else:
        await engine.release(held.lease)
    return await engine.take(held.id)


async def test_a_later_lease_that_sends_again_rewinds_to_the_beginning(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a", b"b")
    lease = await again(engine, held)
    await append(engine, lease, b"c")
    found = await read(engine, held.id)
    assert (found.rewinds, found.valid) == ([START], [b"c"])
    assert found.payloads == [b"a", b"b", b"c"]
    # Only the first append of a lease does.
    await append(engine, lease, b"d", no=1)
    assert len((await read(engine, held.id)).rewinds) == 1


async def test_frames_of_recorded_steps_are_kept(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a", b"b")
    kept = (await append(engine, held.lease, b"c", no=2, position=1)).id
    await append(engine, held.lease, b"d", no=3, position=2)
    lease = await again(engine, held)
    await append(engine, lease, b"e", base=2, position=3)
    found = await read(engine, held.id)
    assert (found.rewinds, found.valid) == ([kept], [b"a", b"b", b"c", b"e"])


async def test_a_pause_in_the_same_attempt_needs_no_rewind(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a")
    lease = await again(engine, held, "release")
    assert lease.attempt_id == held.lease.attempt_id
    await append(engine, lease, b"b", base=1)
    found = await read(engine, held.id)
    assert (found.rewinds, found.valid) == ([], [b"a", b"b"])


async def test_the_next_generation_does_not_send_the_frames_of_the_last_again(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a", position=3)
    await engine.continue_as(held.lease, b"[]")
    lease = await engine.take(held.id)
    await append(engine, lease, b"b")
    found = await read(engine, held.id)
    assert (found.rewinds, found.valid) == ([], [b"a", b"b"])
    lease = await again(engine, held)
    await append(engine, lease, b"c")
    assert (await read(engine, held.id)).valid == [b"a", b"c"]


async def test_a_rewind_never_names_a_frame_that_was_rewound_before(engine, make):
    held = await make.execution("leased")
    kept = (await append(engine, held.lease, b"a", position=2)).id
    await append(engine, held.lease, b"b", no=1, position=3)
    lease = await again(engine, held)
    await append(engine, lease, b"c", base=3, position=4)
    lease = await again(engine, held)
    await append(engine, lease, b"d", base=4, position=4)
    found = await read(engine, held.id)
    assert (found.rewinds, found.valid) == ([kept, kept], [b"a", b"d"])


async def test_rewinds_pile_up_and_still_read_right(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a")
    for n in range(4):
        lease = await again(engine, held)
        await append(engine, lease, b"%d" % n, base=1)
    lease = await again(engine, held)
    await append(engine, lease, b"from the start")
    found = await read(engine, held.id)
    assert found.valid == [b"from the start"]
    assert [one.attempt_index for one in found.frames] == sorted(
        one.attempt_index for one in found.frames
    )
