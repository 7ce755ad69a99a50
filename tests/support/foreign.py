"""Open transactions in another database of the server, as parallel test processes have them.

Transaction numbers and snapshots belong to the whole server. So a cursor may list a transaction of
another database as unfinished, and a test must not depend on it. In a run of the whole suite this
happens by chance. With FLOWFABRIC_TEST_FOREIGN_TRANSACTIONS=8 it happens all the time: so many
transactions are open at once, each for 0.02 to 5 seconds: shorter or longer than a test.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest

from .proofs import drawn

FOREIGN_TRANSACTIONS = "FLOWFABRIC_TEST_FOREIGN_TRANSACTIONS"


@pytest.fixture(scope="session", autouse=True)
def foreign_transactions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep transactions open during the run, if the variable asks for it."""
    number = int(os.environ.get(FOREIGN_TRANSACTIONS, "0"))
    if number == 0:
        yield
        return
    url = request.getfixturevalue("cluster").url
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        holding = executor.submit(asyncio.run, _hold(url, number, is_over))
        yield
        is_over.set()
        holding.result()


async def _hold(url: str, number: int, is_over: threading.Event) -> None:
    await asyncio.gather(*(_hold_one(url, place, is_over) for place in range(number)))


async def _hold_one(url: str, place: int, is_over: threading.Event) -> None:
    chance = drawn("foreign transactions", place)
    connection = await asyncpg.connect(url)
    try:
        while not is_over.is_set():
            async with connection.transaction():
                await connection.execute("select pg_current_xact_id()")
                await asyncio.to_thread(is_over.wait, 0.02 * 250 ** chance.random())
    finally:
        await connection.close()
