"""Batches in any order of ids never wait for one another in a ring."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta

import pytest

from support.factories import Engine, Item, Lease

from .crowd import engines, fill, together

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "most", [1_000, pytest.param(20_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
async def test_renewals_against_completions_in_opposite_order(db, engine, most):
    """Thousands of calls of six sessions over the same hundred leases, each in its own order."""
    # The witness has its own tests; here it would double the time.
    await db.execute("alter table ff.execution disable trigger user")
    await db.execute("alter table ff.event disable trigger user")
    route = await engine.register()
    await fill(engine, [Item(route=route)] * 4000)
    current: list[Lease] = await engine.claim(100, ttl=HOUR)
    calls = Counter()
    words = Counter()

    async def renew(number, engine):
        dice = random.Random(number)
        while calls.total() < most:
            batch = dice.sample(current, min(5, len(current)))
            batch.sort(key=lambda lease: lease.execution_id, reverse=number % 2 == 0)
            calls["renew"] += 1
            words.update(f"renew {a.word}" for a in await engine.renew_many(batch, HOUR))

    async def settle(number, engine):
        dice = random.Random(number)
        while calls.total() < most:
            batch = dice.sample(current, min(3, len(current)))
            batch.sort(key=lambda lease: lease.execution_id, reverse=number % 2 == 1)
            kind = "complete" if dice.random() < 0.1 else "release"
            calls[kind] += 1
            if kind == "complete":
                answers = await engine.complete_many(batch, [b"1"] * len(batch))
            else:
                answers = await engine.release_many(batch)
            words.update(f"{kind} {answer.word}" for answer in answers)
            gone = {
                lease.execution_id
                for lease, answer in zip(batch, answers, strict=True)
                if answer.word != "busy"
            }
            current[:] = [lease for lease in current if lease.execution_id not in gone]
            if len(current) < 80:
                calls["claim"] += 1
                fresh = await engine.claim(40, instance=f"settler-{number}", ttl=HOUR)
                # Those whose lease another session reported lost while it was on its way.
                known = {lease.execution_id for lease in fresh}
                current[:] = [lease for lease in current if lease.execution_id not in known]
                current.extend(fresh)

    crowd = await engines(db, 6)
    await together(
        *(renew(number, engine) for number, engine in enumerate(crowd[:4])),
        *(settle(number, engine) for number, engine in enumerate(crowd[4:])),
    )
    assert calls.total() >= most
    # They did meet: otherwise the test proves nothing.
    assert words["renew busy"] > 0
    assert words["renew renewed"] > most // 2
    assert words["complete completed"] > most // 200
    assert words["release released"] > most // 200


RETRIES = {"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def test_opposite_operations_on_the_same_rows_never_deadlock(db, engine, make, clock):
    """Holders, operators and reconcilers on the same ten executions, all at once, ten times."""
    crowd = [Engine(await db.connect()) for _ in range(6)]
    for _ in range(10):
        policy = RETRIES | {"timeout_policy": {"attempt_timeout_ms": 3_600_000}}
        executions = [
            await make.execution(
                "leased", policy=policy, deadline=timedelta(hours=1), ttl=timedelta(hours=2)
            )
            for _ in range(10)
        ]
        leases = [execution.last_lease for execution in executions]
        await clock.advance(hours=1)
        calls = [
            crowd[0].complete_many(leases),
            crowd[1].fail_many(leases[::-1], ["transient"] * 10, ["no"] * 10),
            crowd[2].expire_executions(),
            crowd[3].expire(),
            _all(crowd[4].cancel, executions),
            _all(crowd[5].revoke, executions[::-1]),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [answer for answer in answers if _is_deadlock(answer)] == []
        for execution in executions:
            kinds = await engine.kinds(execution.id)
            assert (
                sum(kind in ("completed", "failed", "cancelled", "expired") for kind in kinds) == 1
            )


async def _all(call, executions):
    for execution in executions:
        try:
            await call(execution.id)
        except Exception as error:
            if _is_deadlock(error):
                raise


def _is_deadlock(answer):
    return getattr(answer, "sqlstate", None) in ("40P01", "40001", "55P03")
