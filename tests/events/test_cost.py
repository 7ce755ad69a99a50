"""What a page costs: the same at the end of a long log as at its beginning."""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter

import pytest

from support.timing import is_ever_within

from .log import Reader


async def timed_pages(log, cursor: str, limit: int) -> list[float]:
    """Milliseconds of every page from a cursor to the end, the last one aside."""
    reader = Reader(log, cursor)
    times = []
    has_more = True
    while has_more:
        started = perf_counter()
        rows = await log.conn.fetch(
            "select next_cursor, has_more from ff.read_events(0::smallint, null, $1, $2)",
            reader.cursor,
            limit,
        )
        times.append((perf_counter() - started) * 1000)
        reader.cursor, has_more = rows[-1]["next_cursor"], rows[-1]["has_more"]
        reader.pages += len(rows) - 1
    assert reader.pages == await log.conn.fetchval("select count(*) from ff.event")
    return times[:-1]


async def fill(log, transactions: int, events: int) -> None:
    await log.conn.execute("set synchronous_commit = off")
    await log.conn.execute(f"call t.fill({transactions}, {events})")


@pytest.mark.slow
async def test_catching_up_with_a_hundred_thousand_events_takes_the_same_time_per_page(log):
    start = await log.open()
    await fill(log, 5_000, 20)
    times = await timed_pages(log, start, 500)
    assert len(times) == 199
    # the fastest of many, since the machine may be busier at the end than it was at the start
    first, last = min(times[:50]), min(times[-50:])
    print(f"pages of 500: {1000 / first:.0f}/s at the start, {1000 / last:.0f}/s at the end")
    assert last < 2 * first
    assert min(times) < 100


async def test_a_page_reads_no_more_rows_than_it_needs(log):
    """In buffers, which do not depend on how busy the machine is."""
    start = await log.open()
    await fill(log, 2_000, 20)
    await log.conn.execute("vacuum analyze ff.event")
    buffers = []
    cursor = start
    for _ in range(70):
        plan = await log.conn.fetchval(
            "explain (analyze, buffers, format json) "
            f"select * from ff.read_events(0::smallint, null, '{cursor}', 500)"
        )
        buffers.append(_buffers(plan))
        cursor = (await log.read(cursor, 500)).cursor
    # Each event is looked at a few times, in two indexes of three levels.
    assert max(buffers) < 500 * 8
    assert max(buffers[-20:]) < 1.3 * max(buffers[1:20])


async def test_an_idle_look_costs_next_to_nothing_however_long_the_log(log):
    await fill(log, 2_000, 20)
    cursor = await log.open()
    await log.read(cursor)
    plan = await log.conn.fetchval(
        "explain (analyze, buffers, format json) "
        f"select * from ff.read_events(0::smallint, null, '{cursor}', 500)"
    )
    assert _buffers(plan) < 200


@pytest.mark.parametrize("length", [300])
async def test_a_long_chain_of_inversions_is_followed_once(log, length):
    """Each transaction needs the next higher one, so that a page of one takes all of them."""
    start = await log.open()
    # The numbers are older than every transaction that is open in any database of the server.
    await log.conn.execute(
        """
        insert into ff.event
          (partition_key, version, xid, execution_id, occurred_at, kind, namespace)
        select 0, v, (s.base + n + 2 - v)::text::xid8, md5(n::text)::uuid, now(), 'claimed', 'test'
        from (select pg_snapshot_xmin(pg_current_snapshot())::text::bigint - $1 - 10 as base) s,
             generate_series($1, 1, -1) n, generate_series(1, 2) v
        order by n desc, v
        """,
        length,
    )
    page = await log.read(start, 1)
    assert len(page.events) == 2 * length
    assert not page.has_more
    assert await is_ever_within(2, lambda: log.read(start, 1))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_page_of_a_million_events_takes_at_most_twenty_milliseconds(log, sized):
    start = await log.open()
    await fill(log, sized(50_000, short=10_000), 20)
    times = await timed_pages(log, start, 500)
    first, last = median(times[:200]), median(times[-200:])
    idle = await log.open()
    looks = []
    for _ in range(50):
        started = perf_counter()
        await log.read(idle)
        looks.append((perf_counter() - started) * 1000)
    started = perf_counter()
    await log.open(await log.conn.fetchval("select max(occurred_at) from ff.event"))
    since = (perf_counter() - started) * 1000
    print(
        f"1 000 000 events: {first:.1f} ms a page at the start, {last:.1f} ms at the end; "
        f"idle {median(looks):.2f} ms; open_cursor(since the last moment) {since:.0f} ms"
    )
    assert last < 20
    assert last < 1.5 * first
    assert median(looks) < 20


def _buffers(plan: str) -> int:

    (top,) = json.loads(plan)
    return int(top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"])
