"""Two claimers never hold the same execution at the same time."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest

from support.factories import Item

from .crowd import engines, fill, together


@pytest.mark.parametrize("number", [800, pytest.param(10_000, marks=pytest.mark.slow(short=0))])
async def test_eight_claimers_never_share_an_execution(db, engine, number):
    """A fifth of the executions are given back once, so there are more claims than executions."""
    route = await engine.register()
    ids = await fill(engine, [Item(route=route)] * number)
    held: dict[UUID, int] = {}
    claims = Counter()
    given_back: set[UUID] = set()

    async def work(number, engine):
        dice = random.Random(number)
        while leases := await engine.claim(dice.randint(1, 120), instance=f"worker-{number}"):
            for lease in leases:
                assert lease.execution_id not in held, f"{number} and {held[lease.execution_id]}"
                held[lease.execution_id] = number
                claims[lease.execution_id] += 1
                assert lease.epoch == claims[lease.execution_id]
            back = [
                lease
                for lease in leases
                if dice.random() < 0.2 and lease.execution_id not in given_back
            ]
            if back:
                # Ours until the call is sent: from then on somebody else may have them.
                for lease in back:
                    given_back.add(lease.execution_id)
                    del held[lease.execution_id]
                answers = await engine.release_many(back)
                assert {answer.word for answer in answers} <= {"released", "busy"}
                for lease, answer in zip(back, answers, strict=True):
                    # A claimer that came too late for the row may hold it for a moment.
                    if answer.word == "busy":
                        assert (await engine.release(lease, wait=True)).word == "released"

    crowd = await engines(db, 8)
    await together(*(work(number, engine) for number, engine in enumerate(crowd)))
    # Somebody may have given rows back after everybody else had found nothing.
    await work(8, engine)

    assert set(held) == set(ids)
    assert claims.total() == number + len(given_back) > number * 1.1
    owners = await db.fetch("select execution_id, worker_instance_id from ff.execution")
    assert {row["execution_id"]: row["worker_instance_id"] for row in owners} == {
        execution: f"worker-{number}" for execution, number in held.items()
    }
    assert await db.fetchval(
        "select count(*) from ff.event where kind in ('claimed', 'resumed')"
    ) == sum(claims.values())
