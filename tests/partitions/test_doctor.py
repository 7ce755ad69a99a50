"""Doctor with 8 and 32 partitions: clean after work in all of them, and it finds what is broken in
any one, in a full pass and narrowed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from flowfabric import Context
from flowfabric.db.connection import open_connection
from flowfabric.doctor import Level, examine
from support.factories import STATES, Engine, Factory
from support.sabotage import drop_checks, unwitnessed
from worker.apps import working

# The test template has a witness and a clock of its own, which doctor reports.
OURS = {"X02", "X04"}
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

NUMBERS = pytest.mark.parametrize("number", [8, pytest.param(32, marks=pytest.mark.slow)])


async def errors(db, **options):
    """Return the errors of an examination, except those about the test template."""
    async with open_connection(db.url, statement_cache_size=0) as connection:
        report = await examine(connection, is_throwaway=True, **options)
    return [f for f in report.findings if f.level is Level.ERROR and f.name not in OURS]


@NUMBERS
async def test_doctor_is_clean_with_every_state_in_every_partition(several, number, clock):
    for partition in range(number):
        make = Factory(Engine(several.conn, partition_key=partition), clock)
        for state in STATES:
            await make.execution(state)
    assert await errors(several) == []
    assert await errors(several, since=LONG_AGO) == []


@NUMBERS
async def test_doctor_is_clean_after_tasks_children_keys_and_flows(several, number, app):
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context, n: int) -> int:
        return await (await ctx.submit(child, n)).result()

    @app.task
    async def failing(n: int) -> int:
        raise ValueError(n)

    async with working(app, concurrency=50):
        runs = [await parent.submit(n, key=f"k{n}" if n % 2 else None) for n in range(3 * number)]
        async with app.flow("tests") as flow:
            flow.add(child, flow.add(child, 1).result)
        lost = await failing.submit_many([(n,) for n in range(number)])
        assert await asyncio.gather(*(run.result() for run in runs)) == list(range(3 * number))
        assert await flow.run.result(timeout=60) == 1
        await asyncio.gather(*(run.result() for run in lost), return_exceptions=True)
    assert len({run.id.partition_key for run in [*runs, *lost]}) > number // 2
    assert await errors(several) == []
    assert await errors(several, since=LONG_AGO) == []


@NUMBERS
@pytest.mark.parametrize("options", [{}, {"since": LONG_AGO}])
async def test_doctor_names_the_partition_of_a_broken_execution(several, number, options):
    several.leave_broken("planted")
    for partition in (2, number - 3):
        await Engine(several.conn, partition_key=partition).submit()
    await drop_checks(several.conn)
    async with unwitnessed(several.conn):
        await several.execute(
            "update ff.execution set version = 2 where partition_key = $1", number - 3
        )
    found = await errors(several, **options)
    assert {(one.name, one.execution.partition_key) for one in found} == {("O04", number - 3)}
