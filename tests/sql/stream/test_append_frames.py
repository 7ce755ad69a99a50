"""ff.append_frames: fence, numbers, ids, modes, limits and expiry."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from uuid import uuid4

import pytest

from races.crowd import until_blocked
from support.database import home
from support.factories import TTL, Engine, refused
from support.streams import Chunk, append, append_many, expire_streams, read, stream_row, summary

SECOND = timedelta(seconds=1)


async def test_frames_are_stored_in_order_and_read_back(engine, make):
    held = await make.execution("leased")
    first = await append(engine, held.lease, b"a", b"b")
    second = await append(engine, held.lease, b"c", no=2)
    assert (first.word, first.last_no, first.frame_count) == ("appended", 1, 2)
    assert (second.word, second.last_no, second.frame_count) == ("appended", 2, 3)
    found = await read(engine, held.id)
    assert found.payloads == [b"a", b"b", b"c"]
    assert (found.word, found.is_ended, found.closed_at) == ("found", False, None)
    ids = [one.id for one in found.frames]
    assert ids == sorted(set(ids))
    assert found.last == ids[-1] == second.id


async def test_appending_is_no_transition(engine, make):
    held = await make.execution("leased")
    before = await engine.row(held.id)
    await append(engine, held.lease, b"a")
    changed = {name for name, value in (await engine.row(held.id)).items() if value != before[name]}
    assert changed == {"has_stream"}
    assert await engine.kinds(held.id) == ["submitted", "claimed"]


async def test_any_bytes_come_back_as_they_were(engine, make):
    held = await make.execution("leased")
    data = bytes(range(256)) + b"\xff\xfe\x00"
    await append(engine, held.lease, data, b"", encoding="bytes", kind="blob")
    assert (await read(engine, held.id)).payloads == [data, b""]


async def test_a_frame_may_have_64_kib_and_not_a_byte_more(engine, make):
    held = await make.execution("leased")
    big = await append(engine, held.lease, b"x" * 65536, b"y" * 65537)
    assert (big.word, big.detail) == ("payload_too_large", {"limit": 65536})
    assert (await append(engine, held.lease, b"x" * 65536)).word == "appended"
    assert (await read(engine, held.id)).payloads == [b"x" * 65536]


BAD = {
    "mode": ({"mode": "loud"}, "mode"),
    "no mode": ({"mode": None}, "mode"),
    "rewind": ({"mode": "rewind"}, "mode"),
    "number": ({"no": -1}, "first_no"),
    "no number": ({"no": None}, "first_no"),
    "base": ({"base": -1}, "base"),
    "position": ({"base": 3, "position": 2}, "position"),
    "ttl": ({"ttl": timedelta(0)}, "ttl"),
    "kind": ({"kind": ""}, "kind"),
    "long kind": ({"kind": "k" * 65}, "kind"),
    "encoding": ({"encoding": "utf16"}, "encoding"),
    "correlation": ({"correlation_id": "c" * 257}, "correlation_id"),
    "payload": ({"frames": (b"a", None)}, "payload"),
}


async def test_a_bad_chunk_names_its_field_and_is_not_stored(engine, make):
    held, good = await make.execution("leased"), await make.execution("leased")
    chunks = [Chunk(lease=held.lease, **given) for given, _ in BAD.values()]
    answers = await append_many(engine, [*chunks, Chunk(lease=good.lease)])
    for answer, (name, (_, field)) in zip(answers, BAD.items(), strict=False):
        assert (answer.word, answer.detail["field"]) == ("invalid", field), name
        assert answer.detail["problem"]
    assert answers[-1].word == "appended"
    assert (await read(engine, held.id)).frames == []


async def test_counts_must_add_up(engine, make):
    held = await make.execution("leased")
    with refused("WF001", field="counts"):
        await append_many(engine, [Chunk(lease=held.lease, frames=())])


async def test_a_repeated_append_stores_nothing_twice(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a", b"b")
    again = await append(engine, held.lease, b"a", b"b")
    longer = await append(engine, held.lease, b"a", b"b", b"c")
    assert [one.word for one in (again, longer)] == ["appended"] * 2
    assert (again.last_no, longer.last_no) == (1, 2)
    assert (await read(engine, held.id)).payloads == [b"a", b"b", b"c"]


async def test_a_stream_that_is_open_for_the_lease_is_not_opened_again(engine, make, db):
    """The first append may commit after its repeat has found no stream, and before the repeat has
    locked the execution. The repeat then opens a stream that is open already."""
    leased = await make.execution("leased")
    await append(engine, leased.lease, b"a", b"b")
    before = await stream_row(engine, leased.id)
    await db.execute("select ff._open_streams($1, $2, '{0}')", home(), [leased.id])
    assert await stream_row(engine, leased.id) == before
    assert (await append(engine, leased.lease, b"a", b"b")).last_no == 1
    assert (await read(engine, leased.id)).payloads == [b"a", b"b"]


async def test_a_gap_in_the_numbers_is_refused(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a")
    gap = await append(engine, held.lease, b"c", no=2)
    assert (gap.word, gap.detail) == ("gap", {"last_no": 0})
    first = await make.execution("leased")
    assert (await append(engine, first.lease, b"b", no=1)).word == "gap"


async def test_several_chunks_of_one_execution_keep_their_order(engine, make):
    held, other = await make.execution("leased"), await make.execution("leased")
    answers = await append_many(
        engine,
        [
            Chunk(lease=held.lease, frames=(b"a", b"b")),
            Chunk(lease=other.lease, frames=(b"z",)),
            Chunk(lease=held.lease, frames=(b'{"n": 1}',), no=2, mode="summary"),
            Chunk(lease=held.lease, frames=(b"c",), no=3),
        ],
    )
    assert [one.word for one in answers] == ["appended"] * 4
    assert [one.last_no for one in answers] == [1, 0, 2, 3]
    assert (await read(engine, held.id)).payloads == [b"a", b"b", b'{"n": 1}', b"c"]
    # What follows a refused chunk has a gap.
    answers = await append_many(
        engine,
        [
            Chunk(lease=held.lease, frames=(b"[]",), no=4, mode="summary"),
            Chunk(lease=held.lease, frames=(b"d",), no=5),
        ],
    )
    assert [one.word for one in answers] == ["invalid", "gap"]


async def test_chunks_of_one_execution_share_one_fence(engine, make):
    held = await make.execution("leased")
    other = replace(held.lease, lease_id=uuid4())
    answers = await append_many(engine, [Chunk(lease=held.lease), Chunk(lease=other, no=1)])
    assert [one.word for one in answers] == ["appended", "busy"]


async def test_a_stale_lease_appends_nothing(engine, make, clock):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a")
    wrong = replace(held.lease, lease_id=uuid4())
    assert (await append(engine, wrong, b"b", no=1)).word == "stale_lease"
    for changes in ({"epoch": held.lease.epoch + 1}, {"attempt_id": uuid4()}):
        assert (await append(engine, replace(held.lease, **changes), no=1)).word == "stale_lease"
    await clock.advance(TTL + SECOND)
    assert (await append(engine, held.lease, b"b", no=1)).word == "lease_expired"
    await engine.expire()
    assert (await append(engine, held.lease, b"b", no=1)).word == "lease_expired"
    new = await engine.take(held.id)
    assert (await append(engine, held.lease, b"b", no=1)).word == "stale_lease"
    assert (await append(engine, new, b"c")).word == "appended"
    assert (await read(engine, held.id)).payloads == [b"a", b"c"]
    assert (await append(engine, replace(new, execution_id=uuid4()))).word == "not_found"


async def test_a_foreign_namespace_appends_nothing_and_reads_no_summary(engine, make):
    """Not with the fence of a lease that streams, either."""
    fresh, held = [await make.execution("leased") for _ in range(2)]
    await append(engine, held.lease, b'{"a": 1}', mode="summary")
    foreign = Engine(engine.connection, namespace="another")
    for lease, number in ((fresh.lease, 0), (held.lease, 1), (held.lease, 0)):
        assert (await append(foreign, lease, b"x", no=number)).word == "not_found"
    mixed = [Chunk(lease=held.lease, no=1), Chunk(lease=fresh.lease)]
    assert {one.word for one in await append_many(foreign, mixed)} == {"not_found"}
    assert await summary(foreign, held.id) is None
    assert (await read(engine, held.id)).frame_count == 1
    assert await stream_row(engine, fresh.id) is None


async def test_a_trimmed_execution_leaves_nothing_of_its_stream(engine, make, clock, db):
    gone, kept = [await make.execution("leased") for _ in range(2)]
    for one in (gone, kept):
        await append(engine, one.lease, b"a")
        await append(engine, one.lease, b'{"a": 1}', no=1, mode="summary")
    await engine.complete(gone.lease)
    await clock.advance(days=31)
    await engine.connection.execute(f"select ff.trim_retention('{home()}')")
    assert (await read(engine, gone.id)).word == "not_found"
    for table in ("stream", "stream_chunk", "stream_summary"):
        rows = await db.fetch(f"select distinct execution_id from ff.{table}")
        assert [row["execution_id"] for row in rows] == [kept.id], table


async def test_ids_rise_while_the_clock_goes_back(engine, make, clock):
    await clock.freeze()
    held = await make.execution("leased")
    ids = [(await append(engine, held.lease, b"a", b"b")).id]
    await clock.advance(seconds=-20)
    ids.append((await append(engine, held.lease, b"c", no=2)).id)
    await clock.advance(seconds=21)
    ids.append((await append(engine, held.lease, b"d", no=3)).id)
    (ms, seq), second, third = ids
    assert second == (ms, seq + 1)
    assert third == (ms + 1000, 0)


ENDS = {
    "complete": lambda engine, held: engine.complete(held.lease),
    "fail": lambda engine, held: engine.fail(held.lease),
    "release": lambda engine, held: engine.release(held.lease),
    "delay": lambda engine, held: engine.delay(held.lease, delay=SECOND),
    "wait_children": lambda engine, held: engine.wait_children(held.lease),
    "hold": lambda engine, held: engine.hold(held.lease, "step", "problem"),
    "cancel": lambda engine, held: engine.cancel(held.id),
    "revoke_lease": lambda engine, held: engine.revoke(held.id),
}


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_lease_closes_the_stream(engine, make, end):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a")
    await ENDS[end](engine, held)
    found = await read(engine, held.id)
    assert (found.close_reason, found.closed_at is not None) == (end, True)
    assert found.payloads == [b"a"]
    assert found.is_ended == ((await engine.row(held.id))["phase"] == "terminal")
    late = await append(engine, held.lease, b"b", no=1)
    assert late.word in ("not_active", "lease_revoked", "stale_lease")
    assert (await read(engine, held.id)).payloads == [b"a"]


async def test_the_clock_closes_the_stream(engine, make, clock):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a")
    await clock.advance(TTL + SECOND)
    await engine.expire()
    assert (await read(engine, held.id)).close_reason == "expire_lease"
    new = await engine.take(held.id)
    assert (await append(engine, new, b"a")).word == "appended"
    assert (await stream_row(engine, held.id))["closed_at"] is None
    timed = await make.execution("leased", deadline=timedelta(seconds=5))
    await append(engine, timed.lease, b"a")
    await clock.advance(seconds=6)
    await engine.expire_executions()
    assert (await read(engine, timed.id)).close_reason == "expire"
    late = await make.execution(
        "leased",
        policy={"timeout_policy": {"attempt_timeout_ms": 5000}, "retry_policy": {"max_retries": 1}},
    )
    await append(engine, late.lease, b"a")
    await clock.advance(seconds=6)
    await engine.expire_executions()
    found = await read(engine, late.id)
    assert (found.close_reason, found.is_ended) == ("time_out", False)


async def test_an_end_waits_for_an_append_in_flight_and_no_append_follows(engine, make, db):
    held = await make.execution("leased")
    await append(engine, held.lease, b"a")
    writer, ender = Engine(await db.connect()), Engine(await db.connect())
    transaction = writer.connection.transaction()
    await transaction.start()
    assert (await append(writer, held.lease, b"b", no=1)).word == "appended"
    # The stream is locked: another append does not wait, and a renewal does not notice.
    assert (await append(engine, held.lease, b"b", no=1)).word == "busy"
    assert (await engine.renew(held.lease)).word == "renewed"
    ending = asyncio.create_task(ender.complete(held.lease))
    await until_blocked(db, ender, ending)
    assert (await read(engine, held.id)).is_ended is False
    await transaction.commit()
    assert (await ending).word == "completed"
    assert (await append(writer, held.lease, b"c", no=2)).word == "not_active"
    found = await read(engine, held.id)
    assert (found.payloads, found.is_ended) == ([b"a", b"b"], True)


async def test_an_append_does_not_wait_for_an_end_in_flight(engine, make, db):
    held, new = await make.execution("leased"), await make.execution("leased")
    await append(engine, held.lease, b"a")
    ender = Engine(await db.connect())
    transaction = ender.connection.transaction()
    await transaction.start()
    await ender.cancel(held.id)
    await ender.cancel(new.id)
    answers = await append_many(engine, [Chunk(lease=held.lease, no=1), Chunk(lease=new.lease)])
    assert [one.word for one in answers] == ["busy", "busy"]
    await transaction.rollback()
    answers = await append_many(engine, [Chunk(lease=held.lease, no=1), Chunk(lease=new.lease)])
    assert [one.word for one in answers] == ["appended", "appended"]


async def test_summary_frames_build_a_document(engine, make):
    held = await make.execution("leased")
    assert await summary(engine, held.id) is None
    patches = [
        {"a": 1, "b": {"c": 1, "d": [1, 2]}},
        {"a": None, "b": {"c": {"e": 2}, "d": [3]}},
        {"n": "__ff_null__", "l": ["__ff_null__", {"m": "__ff_null__"}], "b": {"x": None}},
    ]
    for number, patch in enumerate(patches):
        answer = await append(
            engine, held.lease, json.dumps(patch).encode(), no=number, mode="summary"
        )
        assert answer.summary_version == number + 1
    assert await summary(engine, held.id) == (
        {"b": {"c": {"e": 2}, "d": [3]}, "n": None, "l": [None, {"m": None}]},
        3,
    )
    # A repeat is not applied again.
    assert (await append(engine, held.lease, b'{"b": 1}', no=2, mode="summary")).last_no == 2
    assert (await summary(engine, held.id))[1] == 3
    await engine.complete(held.lease)
    assert (await summary(engine, held.id))[1] == 3


async def test_a_wrong_patch_changes_nothing(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b'{"a": 1}', mode="summary")
    deep = b'{"a":' * 17 + b"1" + b"}" * 17
    # So deep that functions of the engine that go through it run out of stack, and the parser.
    abysses = [b'{"a":' * n + b"1" + b"}" * n for n in (1_000, 10_000)] + [b"[" * 65_536]
    for wrong in (*abysses, b"[1]", b"null", b"{", b'{"a": "\\u0000"}', b"\xff", deep):
        answer = await append(engine, held.lease, b'{"b": 2}', wrong, no=1, mode="summary")
        assert (answer.word, answer.detail["field"]) == ("invalid", "payload"), wrong
    assert "patch_depth_exceeded" in answer.detail["problem"]
    deepest = b'{"a":' * 16 + b"1" + b"}" * 16
    assert (await append(engine, held.lease, deepest, no=1, mode="summary")).word == "appended"
    assert (await summary(engine, held.id))[1] == 2
    for n in range(17):
        answer = await append(
            engine,
            held.lease,
            json.dumps({f"k{n}": "x" * 65000}).encode(),
            no=2 + n,
            mode="summary",
        )
    assert (answer.word, "1 MiB" in answer.detail["problem"]) == ("invalid", True)


async def test_many_keys_of_a_patch_do_not_copy_the_document_one_by_one(engine, make, clock):
    await clock.freeze()
    held = await make.execution("leased")
    number = 0

    async def patch(keys: int) -> float:
        nonlocal number
        value = json.dumps({f"{number}.{n}": n for n in range(keys)}).encode()
        started = monotonic()
        answer = await append(engine, held.lease, value, no=number, mode="summary")
        assert answer.word == "appended", answer
        number += 1
        return monotonic() - started

    for _ in range(5):
        await patch(3_500)
    one = min([await patch(1) for _ in range(5)])
    # Parsing 3 500 keys takes a few times as long; 3 500 copies take 1 000 times as long.
    assert min([await patch(3_500) for _ in range(2)]) < 100 * one
    assert len((await summary(engine, held.id))[0]) == 7 * 3_500 + 5


async def test_summary_frames_are_compacted_and_the_document_stays(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, b"keep me")
    for n in range(130):
        await append(engine, held.lease, b'{"n": %d}' % n, no=n + 1, mode="summary")
    found = await read(engine, held.id)
    assert found.frame_count == 131
    assert 64 <= len(found.frames) - 1 < 128
    assert found.payloads[0] == b"keep me"
    assert await summary(engine, held.id) == ({"n": 129}, 130)


async def test_only_best_effort_frames_are_trimmed_by_their_rate(engine, make, clock):
    await clock.freeze()
    held = await make.execution("leased")
    await append(engine, held.lease, b"durable")
    no = 1
    for _ in range(20):
        await clock.advance(milliseconds=100)
        await append(engine, held.lease, *[b"x"] * 16, no=no, mode="best_effort", ttl=SECOND)
        no += 16
    row = await stream_row(engine, held.id)
    # 160 frames a second, kept for two seconds.
    assert 64 < row["kept_frames"] <= 320
    assert row["rate"] == pytest.approx(160, rel=0.1)
    found = await read(engine, held.id)
    assert found.payloads[0] == b"durable"
    assert row["kept_frames"] <= len(found.frames) - 1 <= row["kept_frames"] + 64
    assert (await read(engine, held.id, with_best_effort=False)).payloads == [b"durable"]


async def test_a_burst_raises_the_rate_a_pause_lowers_it_and_both_are_bounded(engine, make, clock):
    await clock.freeze()
    held = await make.execution("leased")

    async def push(no: int, count: int = 1, ttl: timedelta = SECOND) -> int:
        await append(engine, held.lease, *[b"x"] * count, no=no, mode="best_effort", ttl=ttl)
        row = await stream_row(engine, held.id)
        return int(row["kept_frames"])

    assert await push(0) == 64
    # In the same millisecond.
    burst = await push(1, 100)
    assert burst > 64
    assert await push(101, 1000) == 16384
    kept = 16384
    for no in range(1101, 1150):
        await clock.advance(milliseconds=500)
        assert (kept := await push(no)) <= 16384
    assert kept == 64


async def test_a_stream_of_best_effort_frames_expires_and_a_durable_frame_keeps_it(
    engine, make, clock
):
    held, mixed = await make.execution("leased"), await make.execution("leased")
    for lease in (held.lease, mixed.lease):
        await append(engine, lease, b"a", mode="best_effort", ttl=5 * SECOND)
    await append(engine, mixed.lease, b"b", no=1)
    handled, due_in = await expire_streams(engine)
    assert handled == 0
    assert timedelta(0) < due_in <= 10 * SECOND
    await clock.advance(seconds=11)
    assert (await expire_streams(engine))[0] == 1
    assert (await expire_streams(engine)) == (0, None)
    assert (await read(engine, held.id)).frames == []
    assert (await read(engine, mixed.id)).payloads == [b"a", b"b"]
    # It goes on, with higher ids.
    await append(engine, held.lease, b"c", no=1, mode="best_effort")
    assert (await read(engine, held.id)).payloads == [b"c"]


async def test_a_cap_keeps_the_newest_frames_and_says_so(engine, make):
    held = await make.execution("leased", policy={"stream_policy": {"max_frames": 100}})
    last = {}
    for no in range(0, 400, 10):
        frames = [b"%d" % n for n in range(no, no + 10)]
        last[no + 10] = (await append(engine, held.lease, *frames, no=no)).id
    found = await read(engine, held.id)
    assert found.frame_count == 400
    assert 100 <= len(found.frames) < 164
    assert found.payloads[-1] == b"399"
    removed = 400 - len(found.frames)
    ms, seq = last[removed]
    assert found.floor == (ms, seq + 1), "just above the last frame that was removed"
    assert (await stream_row(engine, held.id))["trimmed_count"] == removed


async def test_a_stream_without_a_cap_keeps_everything(engine, make):
    held = await make.execution("leased")
    await append(engine, held.lease, *[b"x"] * 10000)
    await append(engine, held.lease, *[b"y"] * 10000, no=10000)
    row = await stream_row(engine, held.id)
    assert (row["durable_count"], row["trimmed_count"]) == (20000, 0)


async def test_an_append_reads_nothing_of_what_is_stored(engine, make):
    """It does not count the frames, and trims only once in 64."""
    held = await make.execution("leased")
    for no in range(100):
        await append(engine, held.lease, b"x", no=no)
    read = (
        "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables "
        "where schemaname = 'ff' and relname = 'stream_chunk'"
    )
    async with engine.connection.transaction():
        # The server may not have added the reads of earlier calls to its statistics yet.
        before = await engine.connection.fetchval(read)
        await append(engine, held.lease, b"x", no=100)
        assert await engine.connection.fetchval(read) == before


async def test_a_full_stream_refuses_and_says_how_much_it_may_hold(engine, make):
    held = await make.execution("leased", policy={"stream_policy": {"max_bytes": 1000}})
    assert (await append(engine, held.lease, b"x" * 600)).word == "appended"
    full = await append(engine, held.lease, b"x" * 401, no=1)
    assert (full.word, full.detail) == ("stream_full", {"bytes": 600, "limit": 1000})
    assert (await append(engine, held.lease, b"x" * 400, no=1)).word == "appended"


async def test_frames_may_go_before_their_execution(engine, make, clock):
    held = await make.execution("leased", policy={"stream_policy": {"retention_ms": 60000}})
    await append(engine, held.lease, b"a")
    await append(engine, held.lease, b'{"a": 1}', no=1, mode="summary")
    await engine.complete(held.lease)
    await clock.advance(seconds=61)
    assert (await expire_streams(engine))[0] == 1
    found = await read(engine, held.id)
    assert (found.frames, found.is_ended) == ([], True)
    assert found.floor > found.last
    assert await summary(engine, held.id) == ({"a": 1}, 1)


@pytest.mark.parametrize(
    "policy",
    [
        {"max_frames": 0},
        {"max_frames": 1.5},
        {"max_bytes": "many"},
        {"retention_ms": -1},
        {"frames": 1},
    ],
)
async def test_a_malformed_stream_policy_is_refused(engine, policy):
    route = await engine.register()
    answer = await engine.submit(route=route, policy={"stream_policy": policy})
    assert (answer.word, answer.detail["field"]) == ("invalid", "policy")
    assert f"stream_policy.{next(iter(policy))}" in answer.detail["problem"]
