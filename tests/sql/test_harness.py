"""The database of a test is given back whatever the test left behind (support/database.py)."""

from __future__ import annotations

import asyncio


async def test_a_transaction_that_a_test_left_open_does_not_hold_up_the_next_test(databases):
    database = await databases.take(is_own=False)
    other = await database.connect()
    for connection in (database.conn, other):
        await connection.transaction().start()
    await database.conn.execute("lock table ff.execution in access exclusive mode")
    await other.execute("lock table ff.event in access exclusive mode")
    await asyncio.wait_for(databases.give_back(database), 30)
    again = await databases.take(is_own=False)
    assert await again.fetchval("select count(*) from ff.execution") == 0
    await databases.give_back(again)
