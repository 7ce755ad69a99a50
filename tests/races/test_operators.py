"""Operators, holders and time at the same execution in the same moment: one order of two."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import permutations

import pytest

from support.factories import Engine
from support.proofs import some_of

from .crowd import open_transaction, until_blocked

RETRY = {"retry_policy": {"max_retries": 3}}


async def word(call):
    """The outcome word of a call, or the SQLSTATE it was refused with."""
    try:
        return (await call).word
    except Exception as error:
        return getattr(error, "sqlstate", None) or repr(error)


def calls(execution):
    return {
        "complete": lambda engine: engine.complete(execution.lease, wait=True),
        "fail": lambda engine: engine.fail(execution.lease, wait=True),
        "delay": lambda engine: engine.delay(execution.lease),
        "hold": lambda engine: engine.hold(execution.lease),
        "cancel": lambda engine: engine.cancel(execution.id),
        "revoke": lambda engine: engine.revoke(execution.id),
        "cancel_held": lambda engine: engine.cancel_held(execution.lease),
        "replay": lambda engine: engine.replay(execution.id),
        "retry": lambda engine: engine.retry(execution.id),
    }


NAMES = ["complete", "fail", "delay", "hold", "cancel", "revoke", "cancel_held", "replay", "retry"]


@pytest.mark.parametrize(("first", "second"), some_of(permutations(NAMES, 2), turn=0))
async def test_the_second_waits_and_sees_what_the_first_did(db, engine, make, first, second):
    """With the first one's transaction open, the second waits; then it answers as if it came after,
    and both answers are those of the serial order."""
    serial = await make.execution("leased", policy=RETRY)
    expected = [await word(calls(serial)[name](engine)) for name in (first, second)]
    state = (await engine.row(serial.id))["public_state"]

    execution = await make.execution("leased", policy=RETRY)
    one, two = Engine(await db.connect()), Engine(await db.connect())
    async with open_transaction(one):
        answered = [await word(calls(execution)[first](one))]
        later = asyncio.create_task(word(calls(execution)[second](two)))
        # A refused first call aborts its transaction, and with it its lock.
        if not answered[0].startswith("WF"):
            await until_blocked(db, two, later)
    answered.append(await asyncio.wait_for(later, 60))
    assert answered == expected
    assert (await engine.row(execution.id))["public_state"] == state


async def test_exactly_one_end_when_complete_cancel_and_deadline_meet(db, engine, make, clock):
    for _ in range(15):
        execution = await make.execution(
            "leased", ttl=timedelta(hours=2), deadline=timedelta(hours=1)
        )
        await clock.advance(hours=1)
        others = [Engine(await db.connect()) for _ in range(3)]
        await asyncio.gather(
            word(others[0].complete(execution.lease, wait=True)),
            word(others[1].cancel(execution.id)),
            others[2].expire_executions(),
        )
        kinds = await engine.kinds(execution.id)
        assert sum(kind in ("completed", "cancelled", "expired") for kind in kinds) == 1
        assert (await engine.row(execution.id))["phase"] == "terminal"
