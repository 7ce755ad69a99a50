"""The feed of signals: every committed signal is read once, whatever transactions overlap."""

from __future__ import annotations

import re

import pytest

from support.database import home
from support.factories import refused
from support.proofs import drawn


async def read(engine, cursor=None, limit=500, namespace=None):
    *rows, last = await engine.connection.fetch(
        f"select * from ff.read_signals('{home()}', $1, $2, $3)", namespace, cursor, limit
    )
    return [row["signal_id"] for row in rows], last["next_cursor"]


async def test_the_feed_says_who_sent_what_to_whom_and_what_it_did(engine, make, db):
    execution = await make.execution("suspended")
    await engine.signal(execution.id, source_identity="ada")
    *rows, last = await db.fetch(f"select * from ff.read_signals('{home()}', 'test')")
    (one,) = rows
    assert (one["execution_id"], one["name"], one["source_identity"], one["effect"]) == (
        execution.id,
        "approve",
        "ada",
        "woken",
    )
    assert (one["namespace"], last["signal_id"]) == ("test", None)
    assert (await read(engine, namespace="another"))[0] == []
    (row,) = await db.fetch("select * from ff.signal_feed")
    assert "payload" not in dict(row)
    assert row["signal_id"] == one["signal_id"]


async def test_the_feed_tells_what_each_signal_did(engine, make, db):
    """One that satisfies, one that only counts, one that waits for nobody, and no repeat."""
    waits = await make.execution("suspended")
    runs = await make.execution("leased")
    condition = {"every": [{"signal": "a"}, {"signal": "b"}]}
    both = await make.execution("leased")
    await engine.ask(both.lease, "both", condition=condition)
    assert (await engine.suspend(both.lease, "both")).word == "suspended"
    sent = [(waits, "approve"), (runs, "approve"), (both, "a"), (both, "b")]
    told = [await engine.signal(one.id, name, dedup_key=name) for one, name in sent]
    again = await engine.signal(waits.id, "approve", dedup_key="approve")
    assert again.word == "duplicate"
    effects = [one.effect for one in told]
    assert effects == ["woken", "buffered", "buffered", "woken"]
    rows = await db.fetch("select signal_id, effect from ff.signal_feed")
    assert {row["signal_id"]: row["effect"] for row in rows} == {
        one.signal_id: one.effect for one in told
    }


async def test_a_cursor_moves_only_to_what_was_delivered(engine, make, db):
    execution = await make.execution("leased")
    found, cursor = await read(engine)
    assert (found, (await read(engine, cursor))[1]) == ([], cursor)
    late = engine.on(await db.connect())
    transaction = late.connection.transaction()
    await transaction.start()
    first = (await late.signal(execution.id, join=True)).signal_id
    second = (await engine.signal(execution.id)).signal_id
    found, cursor = await read(engine, cursor)
    assert found == [second]
    assert (await read(engine, cursor))[0] == []
    await transaction.commit()
    found, after = await read(engine, cursor)
    assert found == [first]
    assert (await read(engine, after))[0] == []
    # The same cursor again gets the same signals again.
    assert (await read(engine, cursor))[0] == [first]


async def test_now_reads_only_what_comes_later(engine, make):
    execution = await make.execution("leased")
    await engine.signal(execution.id)
    _, cursor = await read(engine, "now")
    later = (await engine.signal(execution.id)).signal_id
    assert (await read(engine, cursor))[0] == [later]


async def test_overlapping_senders_and_small_pages_miss_nothing_and_repeat_nothing(
    engine, make, db
):
    chance = drawn("overlapping senders of the feed")
    execution = await make.execution("leased")
    senders = [engine.on(await db.connect()) for _ in range(4)]
    open_ = {}
    sent, found, cursor = set(), [], None
    for _ in range(60):
        sender = chance.choice(senders)
        if sender in open_:
            transaction, ids = open_.pop(sender)
            if chance.random() < 0.7:
                await transaction.commit()
                sent |= ids
            else:
                await transaction.rollback()
        else:
            transaction = sender.connection.transaction()
            await transaction.start()
            ids = {
                (await sender.signal(execution.id, join=True)).signal_id
                for _ in range(chance.randrange(1, 4))
            }
            open_[sender] = transaction, ids
        if chance.random() < 0.5:
            page, cursor = await read(engine, cursor, limit=chance.randrange(1, 4))
            found += page
    for transaction, ids in open_.values():
        await transaction.commit()
        sent |= ids
    while page := (await read(engine, cursor, limit=2))[0]:
        found += page
        _, cursor = await read(engine, cursor, limit=2)
    assert len(found) == len(set(found))
    assert set(found) == sent


# How far the numbers of the new server lie behind those of the old one.
SHIFTS = [1_000_000, 4, 0]


async def move(db, shift, cursor=None):
    """Move the partition to a server that counts `shift` transactions behind the present one.

    Return the cursor that the old server would have made. In truth the past is moved up, because
    no server counts backwards.
    """
    generation = await db.fetchval(f"select ff._find_generation('{home()}')")
    await db.execute(
        "update ff.signal set xid = (xid::text::bigint + $1)::text::xid8 where generation = $2",
        shift,
        generation,
    )
    await db.execute(f"select ff._raise_generation('{home()}')")
    if cursor is None:
        return None
    number, snapshot = cursor.split(".")
    assert int(number) == generation
    return f"{number}." + re.sub("[0-9]+", lambda xid: str(int(xid[0]) + shift), snapshot)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_a_reader_goes_on_after_a_move(engine, make, db, shift, limit):
    execution = await make.execution("leased")

    async def send(number):
        return [(await engine.signal(execution.id)).signal_id for _ in range(number)]

    delivered = await send(2)
    found, cursor = await read(engine)
    assert found == delivered
    unread = await send(3)
    cursor = await move(db, shift, cursor)
    expected = unread + await send(3)
    await move(db, shift)
    expected += await send(2)
    for start, wanted in ((cursor, expected), (None, delivered + expected)):
        found, after = [], start
        while (page := await read(engine, after, limit))[0]:
            found += page[0]
            after = page[1]
        assert found == wanted
        assert page[1] == after


async def test_a_late_commit_before_a_move_is_read_after_it(engine, make, db):
    execution = await make.execution("leased")
    late = engine.on(await db.connect())
    async with late.connection.transaction():
        first = (await late.signal(execution.id, join=True)).signal_id
        second = (await engine.signal(execution.id)).signal_id
        found, cursor = await read(engine)
        assert found == [second]
    cursor = await move(db, 1_000_000, cursor)
    third = (await engine.signal(execution.id)).signal_id
    found, cursor = await read(engine, cursor)
    assert found == [first]
    assert (await read(engine, cursor))[0] == [third]


@pytest.mark.parametrize("cursor", ["", "x", "3:3:", "0.9:3:", "0.1:2:3", "0.5:9:7,6", "1.3:3:"])
async def test_a_text_that_is_no_cursor_is_refused(engine, cursor):
    with refused("WF001", field="cursor"):
        await read(engine, cursor)
