"""`ff.raise_partitions` and `flowfabric db partitions`: up, never down, and after a rest."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from support.factories import NAMESPACE, refused


@pytest.fixture
async def fresh(db):
    """A database with as few partitions as there can be."""
    if await db.fetchval("select partitions from ff.installation") > 1:
        pytest.skip("the template has several partitions")
    return db


@pytest.fixture
async def client(fresh):
    async with FlowFabric(fresh.url, namespace=NAMESPACE) as client:
        yield client


async def numbers(db) -> tuple[int, int, int]:
    row = await db.fetchrow(
        "select partitions, minted_partitions, keyed_partitions from ff.installation"
    )
    return tuple(row)


async def test_an_unused_database_uses_its_partitions_at_once(client, fresh):
    answer = await client.partitions.raise_to(8)
    assert (answer.partitions, answer.minted, answer.keyed) == (8, 8, 8)
    assert answer.rests_for == timedelta(0)
    assert client.database.partitions.numbers.minted == 8
    assert await fresh.fetchval("select count(*) from ff.partition") == 8


async def test_new_ids_use_a_raised_number_after_a_rest_and_keys_do_not(client, fresh, engine):
    await engine.submit()
    answer = await client.partitions.raise_to(8)
    assert (answer.partitions, answer.minted, answer.keyed) == (8, 1, 1)
    assert timedelta(seconds=25) < answer.rests_for <= timedelta(seconds=30)
    again = await client.partitions.raise_to(8)
    assert (again.partitions, again.minted, again.keyed) == (8, 1, 1)
    await client.partitions.raise_to(16, rest=timedelta(0))
    assert await numbers(fresh) == (16, 16, 1)
    await client.partitions.raise_to(16, keys=True)
    assert await numbers(fresh) == (16, 16, 16)


async def test_a_second_raise_during_the_rest_keeps_the_number_in_use(client, fresh, engine):
    await engine.submit()
    await client.partitions.raise_to(4)
    await client.partitions.raise_to(8)
    assert await numbers(fresh) == (8, 1, 1)


async def test_the_number_is_never_lowered(client, fresh):
    await client.partitions.raise_to(8)
    with pytest.raises(InvalidInput, match="can only be raised") as caught:
        await client.partitions.raise_to(4)
    assert caught.value.field == "partitions"
    assert await numbers(fresh) == (8, 8, 8)


async def test_the_number_of_keys_is_not_raised_while_a_key_is_stored(client, fresh, engine):
    await engine.submit(key="one", fingerprint=b"")
    with pytest.raises(InvalidInput, match="would not be found") as caught:
        await client.partitions.raise_to(8, keys=True)
    assert caught.value.field == "keys"
    assert await numbers(fresh) == (1, 1, 1)


@pytest.mark.parametrize("number", [0, -1, 32_768, None])
async def test_an_impossible_number_is_refused(fresh, number):
    with refused("WF001", field="partitions"):
        await fresh.fetch("select * from ff.raise_partitions($1)", number)


async def test_a_kind_of_due_work_that_does_not_exist_is_refused(fresh):
    with refused("WF001", field="kind"):
        await fresh.fetch("select * from ff.find_due('nonsense')")
