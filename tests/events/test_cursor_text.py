"""Cursors that are none: every one is refused by name, none is a wrong position."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime

import asyncpg
import pytest

from support.factories import refused

from .log import Reader


@pytest.fixture
async def cursor(log):
    """A cursor with everything in it: an anchor, and transactions it waits for."""
    start = await log.open()
    await log.begin_numbered(3)
    await log.write("a", "b")
    page = await log.read(start)
    assert page.unfinished >= 3
    return page.cursor


def mutations(cursor: str, count: int) -> list[str]:
    """Texts that differ from the cursor: changed, cut, doubled, swapped, foreign."""
    chance = random.Random(7)
    alphabet = "0123456789abcdefABCDEF:,-+ .xff2'\"\\\n\tZäß٣"
    parts = cursor.split(":")
    found: list[str] = []
    while len(found) < count:
        where = chance.randrange(len(cursor))
        piece = chance.choice(alphabet)
        part = chance.randrange(len(parts))
        longer = chance.choice(
            ["", "0", "00", "1", "-1", "9" * 18, "9" * 19, "f" * 16, "f" * 17, "8" + "0" * 15,
             ",", ",,", "0,", ",0", "1,1", "-", "z", "null", " ", "deadbeef" * 4]
        )  # fmt: skip
        match chance.randrange(8):
            case 0:
                text = cursor[:where] + piece + cursor[where + 1 :]
            case 1:
                text = cursor[:where] + piece + cursor[where:]
            case 2:
                text = cursor[:where] + cursor[where + 1 :]
            case 3:
                text = cursor[:where]
            case 4:
                text = ":".join([*parts[:part], longer, *parts[part + 1 :]])
            case 5:
                text = ":".join([*parts[:part], parts[part] + longer, *parts[part + 1 :]])
            case 6:
                other = chance.randrange(len(parts))
                swapped = list(parts)
                swapped[part], swapped[other] = swapped[other], swapped[part]
                text = ":".join(swapped)
            case _:
                text = ":".join([*parts[:part], parts[part], *parts[part:]])
        if text != cursor:
            found.append(text)
    return found


async def test_five_hundred_mutations_are_refused_by_name(log, cursor):
    accepted, crashed = [], []
    for text in mutations(cursor, 500):
        try:
            await log.read(text)
        except asyncpg.PostgresError as error:
            detail = json.loads(error.detail or "{}") if error.sqlstate == "WF001" else {}
            if error.sqlstate != "WF001" or detail.get("field") != "cursor":
                crashed.append((text, error.sqlstate, str(error)))
        else:
            accepted.append(text)
    assert accepted == []
    assert crashed == []
    assert (await log.read(cursor)).events == []


@pytest.mark.parametrize(
    "opened_at",
    [None, pytest.param(datetime(2000, 1, 1, tzinfo=UTC), marks=pytest.mark.slow(short=1))],
)
async def test_a_cursor_without_an_anchor_cannot_be_bent_either(log, opened_at):
    start = await log.open(opened_at)
    await log.write("a")
    for text in mutations(start, 300):
        with refused("WF001", field="cursor"):
            await log.read(text)
    assert (await log.read(start)).names == ["a1"]


@pytest.mark.parametrize(
    "text", [None, "", "ff2", ":" * 12, "ff2:" * 13, "0", "null", "x" * 100_000]
)
async def test_texts_that_are_no_cursors_are_refused_by_name(log, text):
    with refused("WF001", field="cursor"):
        await log.read(text)


async def test_a_cursor_of_another_partition_is_refused(log):
    await log.write("a", partition=1)
    one = await log.open(partition=1)
    with refused("WF001", field="cursor"):
        await log.read(one, partition=0)
    zero = await log.open()
    with refused("WF001", field="cursor"):
        await log.read(zero, partition=1)
    with refused("WF001", field="cursor"):
        await log.conn.fetch("select * from ff.read_events(null, null, $1)", zero)


async def test_partitions_have_positions_of_their_own(log):
    zero, one = await log.open(), await log.open(partition=1)
    await log.write("a")
    await log.write("b", partition=1)
    assert (await log.read(zero)).names == ["a1"]
    assert (await log.read(one, partition=1)).names == ["b1"]


@pytest.mark.parametrize("limit", [None, 0, -1, 10_001])
async def test_a_limit_out_of_bounds_is_refused_by_name(log, limit):
    start = await log.open()
    with refused("WF001", field="limit"):
        await log.read(start, limit)


async def test_a_cursor_of_another_server_has_expired(log, servers):
    other = await servers.make().log()
    await other.write("a")
    foreign = await other.open()
    await other.conn.close()
    with refused("WF403", reason="another_installation"):
        await log.read(foreign)


async def trim(log, most: int) -> None:
    """What retention will do: delete the oldest transactions, and say up to which."""
    await log.conn.execute(
        """
        with gone as (
          delete from ff.event e where e.xid in (
            select distinct x.xid from ff.event x order by x.xid limit $1)
          returning e.xid)
        select ff._raise_trim_mark(0::smallint, 0, max(g.xid)) from gone g
        """,
        most,
    )


async def test_a_cursor_older_than_what_was_trimmed_has_expired(log):
    start = await log.open()
    for number in range(6):
        await log.write(f"e{number}-")
    old = (await log.read(start, 1)).cursor
    await trim(log, 4)
    for cursor in (start, old):
        with refused("WF403", reason="trimmed"):
            await log.read(cursor)


async def test_a_cursor_whose_anchor_was_trimmed_goes_on(log):
    await log.write("a")
    # A transaction in another database of the server counts as unfinished, too.
    while (cursor := await log.open()).split(":")[7]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await trim(log, 1)
    await log.write("b")
    assert (await log.read(cursor)).names == ["b1"]


async def test_what_is_left_after_trimming_can_be_read_from_its_beginning(log):
    for number in range(6):
        await log.write(f"e{number}-")
    await trim(log, 3)
    reader = Reader(log, await log.open(datetime(2000, 1, 1, tzinfo=UTC)))
    assert await reader.drain(1) == ["e3-1", "e4-1", "e5-1"]


async def test_an_event_that_trimming_left_below_its_mark_is_still_read(log):
    (long,) = await log.begin_numbered(1)
    for number in range(4):
        await log.write(f"e{number}-")
    await trim(log, 3)
    await long.write("long")
    await long.commit()
    reader = Reader(log, await log.open(datetime(2000, 1, 1, tzinfo=UTC)))
    assert await reader.drain(1) == ["long1", "e3-1"]
    await trim(log, 1)
    assert await reader.drain(1) == []
