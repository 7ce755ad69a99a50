"""Children: submitted by a parent, and ended with it if they are to."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import Engine, Item, new_id

PENDING = {"wakes_pending": True}


async def child(engine, parent, *, lane="kids", with_parent=True, **item):
    route = await engine.register(lane=lane)
    answer = await engine.submit(route=route, parent=parent, with_parent=with_parent, **item)
    assert answer.word == "created", answer
    return answer.id


async def states(engine, ids):
    return [(await engine.row(id_))["public_state"] for id_ in ids]


async def unfinished(engine):
    return sum(row["phase"] != "terminal" for row in await engine.rows())


async def test_a_child_knows_its_parent(engine, make):
    parent = await make.execution("leased")
    kid = await child(engine, parent.id)
    loose = await child(engine, parent.id, with_parent=None)
    row = await engine.row(kid)
    assert (row["parent_id"], row["ends_with_parent"]) == (parent.id, True)
    row = await engine.row(loose)
    assert (row["parent_id"], row["ends_with_parent"]) == (parent.id, False)
    assert (await engine.row(parent.id))["is_awaited"] is True


async def test_a_child_that_does_not_end_with_its_parent_asks_nothing_of_it(engine, make):
    parent = await make.execution("completed")
    before = await engine.row(parent.id)
    kid = await child(engine, parent.id, with_parent=False)
    assert await engine.row(parent.id) == before
    assert await states(engine, [kid]) == ["waiting"]


@pytest.mark.parametrize("how", ["complete", "fail", "cancel", "expire"])
async def test_children_end_with_their_parent(engine, make, clock, how):
    parent = await make.execution("leased", deadline=timedelta(seconds=20))
    kid = await child(engine, parent.id)
    running = await engine.grant_and_claim(await child(engine, parent.id))
    loose = await child(engine, parent.id, with_parent=False)
    match how:
        case "complete":
            answer = await engine.complete(parent.lease)
        case "fail":
            answer = await engine.fail(parent.lease, "permanent")
        case "cancel":
            answer = await engine.cancel(parent.id)
        case _:
            await clock.advance(seconds=20)
            await engine.expire_executions()
            answer = None
    assert answer is None or answer.detail is None
    row = await engine.row(kid)
    assert (row["public_state"], row["cancelled_by"], row["cancellation_reason"]) == (
        "cancelled",
        "parent",
        "its parent ended",
    )
    assert await states(engine, [running.execution_id, loose]) == ["cancelled", "waiting"]
    # whoever ran the child is told off
    assert (await engine.complete(running)).word == "not_active"
    assert await engine.kinds(kid) == ["submitted", "cancelled"]


async def test_a_retry_of_the_parent_leaves_its_children_alone(engine, make):
    parent = await make.execution("leased", policy={"retry_policy": {}})
    kid = await child(engine, parent.id)
    assert (await engine.fail(parent.lease, "transient")).word == "retry_scheduled"
    assert await states(engine, [kid]) == ["waiting"]


async def test_children_that_have_ended_stay_as_they_ended(engine, make):
    parent = await make.execution("leased")
    kid = await child(engine, parent.id)
    await engine.complete(await engine.grant_and_claim(kid))
    before = await engine.row(kid)
    await engine.complete(parent.lease)
    assert await engine.row(kid) == before


async def test_grandchildren_end_too(engine, make):
    parent = await make.execution("leased")
    generations = [parent.id]
    for _ in range(6):
        generations.append(await child(engine, generations[-1]))
    loose = await child(engine, generations[-1], with_parent=False)
    assert (await engine.cancel(parent.id)).detail is None
    assert await states(engine, generations) == ["cancelled"] * 7
    assert await states(engine, [loose]) == ["waiting"]


async def test_who_waits_for_a_child_that_ends_with_its_parent_is_woken(engine, make):
    parent, waiter = await make.execution("leased"), await make.execution("leased")
    kid = await child(engine, parent.id)
    await engine.wait_for(waiter.lease, [kid])
    await engine.complete(parent.lease)
    assert (await engine.row(waiter.id))["eligibility"] == "eligible_now"


async def test_a_parent_that_waits_for_its_children_and_is_cancelled_takes_them_along(engine, make):
    parent = await make.execution("leased")
    kids = [await child(engine, parent.id) for _ in range(3)]
    await engine.wait_for(parent.lease, kids)
    await engine.cancel(parent.id)
    assert await states(engine, kids) == ["cancelled"] * 3
    assert await engine.waits(parent.id) == []


async def test_more_than_a_hundred_children_end_in_bounded_steps(engine, make):
    parent = await make.execution("leased")
    route = await engine.register(lane="kids")
    await engine.submit_many(
        [Item(route=route, parent=parent.id, with_parent=True) for _ in range(230)]
    )
    answer = await engine.complete(parent.lease)
    assert (answer.word, answer.detail) == ("completed", PENDING)
    assert await unfinished(engine) == 130
    assert await engine.resolve() == (100, timedelta(0))
    assert await engine.resolve() == (30, None)
    assert await unfinished(engine) == 0


async def test_a_wide_and_deep_family_ends_whole(engine, make):
    parent = await make.execution("leased")
    route = await engine.register(lane="kids")
    level = [parent.id]
    for size in (5, 4, 6):
        items = [
            Item(route=route, parent=id_, with_parent=True) for id_ in level for _ in range(size)
        ]
        level = [answer.id for answer in await engine.submit_many(items)]
    assert await unfinished(engine) == 1 + 5 + 20 + 120
    assert (await engine.cancel(parent.id)).detail == PENDING
    rounds = 0
    while (await engine.resolve())[1] is not None:
        rounds += 1
        assert rounds < 10
    assert await unfinished(engine) == 0


async def test_a_child_that_is_locked_is_ended_later(db, engine, make):
    parent = await make.execution("leased")
    kid = await child(engine, parent.id)
    connection = await db.connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        "select from ff.execution where execution_id = $1 for no key update", kid
    )
    assert (await engine.complete(parent.lease)).detail == PENDING
    assert await states(engine, [kid]) == ["waiting"]
    await transaction.rollback()
    assert await engine.resolve() == (1, None)
    assert await states(engine, [kid]) == ["cancelled"]


# Submitting


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
async def test_a_parent_that_has_ended_takes_no_more_children(engine, make, state):
    parent = await make.execution(state)
    before = await engine.snapshot()
    answer = await engine.submit(
        route=parent.route, parent=parent.id, with_parent=True, key="k", fingerprint=b"f"
    )
    assert (answer.word, answer.detail) == (
        "parent_ended",
        {"parent_id": f"{{fp:{home()}}}:{parent.id}"},
    )
    assert await engine.snapshot() == before


async def test_a_parent_that_is_gone_or_of_another_namespace_takes_none_either(engine, make):
    parent = await make.execution("leased")
    assert (await engine.submit(parent=new_id(), with_parent=True)).word == "parent_ended"
    other = engine.within("other")
    route = await other.register(lane="x")
    answer = await other.submit(route=route, parent=parent.id, with_parent=True)
    assert answer.word == "parent_ended"
    assert (await engine.row(parent.id))["is_awaited"] is False


async def test_the_rest_of_a_batch_is_stored(engine, make):
    open_, ended = await make.execution("leased"), await make.execution("completed")
    route = await engine.register(lane="kids")
    answers = await engine.submit_many(
        [
            Item(route=route, parent=ended.id, with_parent=True),
            Item(route=route, parent=open_.id, with_parent=True),
            Item(route=route),
            Item(route=route, parent=ended.id, with_parent=False),
        ]
    )
    assert [answer.word for answer in answers] == ["parent_ended", *["created"] * 3]


async def test_a_child_that_does_not_end_with_its_parent_has_one_all_the_same(engine, make):
    """One that is there, whatever its state, and of the child's namespace."""
    parent = await make.execution("completed")
    child = await engine.submit(parent=parent.id)
    assert child.word == "created"
    loner = new_id()
    for foreign in (
        await engine.submit(parent=new_id()),
        await engine.submit(id=loner, parent=loner),
        await engine.within("foreign").submit(parent=parent.id),
    ):
        assert (foreign.word, list(foreign.detail)) == ("parent_ended", ["parent_id"])
    assert (await engine.submit(id=child.id, parent=new_id())).word == "duplicate"


async def test_a_parent_that_is_locked_makes_its_children_busy(db, engine, make):
    parent = await make.execution("leased")
    other = Engine(await db.connect())
    transaction = other.connection.transaction()
    await transaction.start()
    await other.complete(parent.last_lease)
    item = Item(parent=parent.id, with_parent=True, id=new_id())
    assert (await engine.submit(item)).word == "busy"
    await transaction.commit()
    assert (await engine.submit(item)).word == "parent_ended"


async def test_a_parent_cannot_end_past_a_child_that_is_being_stored(db, engine, make):
    parent = await make.execution("leased")
    route = await engine.register(lane="kids")
    other = Engine(await db.connect())
    transaction = other.connection.transaction()
    await transaction.start()
    kid = (await other.submit(route=route, parent=parent.id, with_parent=True)).id
    ending = asyncio.create_task(engine.complete(parent.lease, wait=True))
    await db.until_waiting(ending)
    await transaction.commit()
    assert (await ending).word == "completed"
    assert await states(engine, [kid]) == ["cancelled"]


async def test_a_repeated_submit_of_a_child_is_a_duplicate_whatever_became_of_the_parent(
    engine, make
):
    parent = await make.execution("leased")
    item = Item(
        route=await engine.register(lane="kids"), parent=parent.id, with_parent=True, id=new_id()
    )
    assert (await engine.submit(item)).word == "created"
    assert (await engine.submit(item)).word == "duplicate"
    await engine.complete(parent.lease)
    before = await engine.snapshot()
    again = await engine.submit(item)
    assert (again.word, again.id) == ("duplicate", item.id)
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"with_parent": True}, "parent_id"),
        ({"with_parent": True, "parent": "self"}, "parent_id"),
        ({"trace": "x" * 4097}, "trace_context"),
        ({"version": ""}, "task_version"),
        ({"version": "x" * 257}, "task_version"),
    ],
)
async def test_a_bad_field_is_refused_and_named(engine, item, field):
    id_ = uuid4()
    if item.get("parent") == "self":
        item = {**item, "parent": id_}
    route = await engine.register()
    before = await engine.snapshot()
    answer = await engine.submit(id=id_, route=route, **item)
    assert (answer.word, answer.detail["field"]) == ("invalid", field)
    assert await engine.snapshot() == before


async def test_a_child_that_is_replayed_has_a_life_of_its_own(engine, make):
    parent = await make.execution("leased")
    kid = await child(engine, parent.id)
    await engine.complete(parent.lease)
    assert (await engine.replay(kid)).word == "replayed"
    row = await engine.row(kid)
    assert (row["ends_with_parent"], row["parent_id"]) == (False, parent.id)
    await engine.replay(parent.id)
    await engine.cancel(parent.id)
    assert await states(engine, [kid]) == ["waiting"]


# What rides along


@pytest.mark.parametrize("payload", [None, b"", b"null", b"x" * 256, b"x" * 257])
@pytest.mark.parametrize("trace", [None, '{"traceparent": "00-1-2-01"}'])
async def test_the_claim_returns_payload_and_trace_context(engine, payload, trace):
    await engine.submit(payload=payload, trace=trace, version="7")
    lease = await engine.take()
    assert (lease.payload, lease.trace_context, lease.replay_count) == (payload, trace, 0)
    again = await engine.claim(1, claim_id=lease.lease_id)
    assert [(a.payload, a.trace_context) for a in again] == [(payload, trace)]
    body = await engine.connection.fetchrow(
        "select task_version, trace_context from ff.execution_body"
    )
    assert tuple(body) == ("7", trace)


async def test_a_resumed_and_a_replayed_claim_carry_them_too(engine, make):
    execution = await make.execution("leased", lane="w", trace="{}", payload=b"small")
    await engine.release(execution.lease)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (lease.payload, lease.trace_context) == (b"small", "{}")
    await engine.complete(lease)
    await engine.replay(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (lease.payload, lease.trace_context, lease.replay_count) == (b"small", "{}", 1)


async def test_without_a_trace_context_a_small_payload_stays_on_the_row(engine):
    await engine.submit_many([Item(payload=b"a"), Item(payload=b"b", trace="{}")])
    assert [row["payload"] for row in await engine.rows()] == [b"a", None]
    assert len(await engine.connection.fetch("select from ff.execution_body")) == 1
