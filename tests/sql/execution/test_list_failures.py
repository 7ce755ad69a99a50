"""ff.list_failures: failed executions in groups of one fingerprint."""

from __future__ import annotations

from support.database import home
from support.factories import refused

FAIL = f"""
    select outcome, detail from ff.fail_executions(
      '{home()}', null, array[$1::uuid], array[$2::uuid], array[$3::bigint], array[$4::uuid],
      array[$5::text], array[$6::text], array[$7::text], p_places => array[$8::text])
"""
LIST = f"select * from ff.list_failures('{home()}', $1, p_task => $2)"
NEVER = {"retry_policy": {"max_retries": 0}}
ONCE = {"retry_policy": {"max_retries": 1}}


async def fail(db, lease, category, place, reason="it broke", class_="permanent"):
    return await db.fetchrow(
        FAIL,
        *(lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id),
        *(class_, reason, category, place),
    )


async def test_failures_of_one_fingerprint_are_one_group(db, make):
    for category, place in (
        *[("ValueError", "shop.pay")] * 3,
        ("ValueError", "shop.mail"),
        ("KeyError", "shop.pay"),
        (None, None),
    ):
        execution = await make.execution("leased", policy=NEVER)
        await fail(db, execution.lease, category, place, f"{category} in {execution.id}")
        if (category, place) == ("ValueError", "shop.pay"):
            last = execution.id
    groups = await db.fetch(LIST, None, None)
    assert [(row["category"], row["place"], row["number"]) for row in groups[:1]] == [
        ("ValueError", "shop.pay", 3)
    ]
    assert sorted(row["number"] for row in groups) == [1, 1, 1, 3]
    assert (groups[0]["last_id"], groups[0]["reason"]) == (last, f"ValueError in {last}")
    assert {(row["seen"], row["is_more"]) for row in groups} == {(6, False)}
    (task,) = {row["task"] for row in groups}
    assert len(await db.fetch(LIST, None, task)) == 4
    assert await db.fetch(LIST, None, "another") == []
    assert await db.fetch(LIST, "another", None) == []


async def test_the_place_belongs_to_its_attempt_and_to_a_failure_only(clock, db, engine, make):
    execution = await make.execution("leased", policy=ONCE)
    await fail(db, execution.lease, "ValueError", "shop.pay", class_="transient")
    await clock.advance(minutes=1)
    await engine.promote()
    lease = await engine.take(execution.id)
    places = "select failure_place from ff.attempt_view where execution_id = $1 order by 1"
    assert [row[0] for row in await db.fetch(places, execution.id)] == ["shop.pay", None]
    await engine.complete(lease)
    assert [row[0] for row in await db.fetch(places, execution.id)] == ["shop.pay", None]
    assert await db.fetch(LIST, None, None) == []


async def test_a_place_that_is_too_long_is_refused(db, engine, make):
    execution = await make.execution("leased", policy=NEVER)
    answer = await fail(db, execution.lease, "ValueError", "x" * 257)
    assert answer["outcome"] == "invalid"
    assert '"place"' in answer["detail"]
    assert (await engine.row(execution.id))["phase"] == "active"
    with refused("WF001"):
        await db.fetch(f"select * from ff.list_failures('{home()}', null, null, 0)")
