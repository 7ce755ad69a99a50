"""Two submits of one key, or of one id, make one execution."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from flowfabric import App, KeyReused, Run
from support.factories import Engine, Item, new_id

from .crowd import engines, open_transaction, together, until_blocked


async def pay(amount: int) -> int:
    return amount


def keyed(key, **changes):
    return Item(**({"key": key, "fingerprint": b"same", "scope": "window"} | changes))


@pytest.mark.parametrize("scope", ["window", "unfinished"])
async def test_a_key_is_busy_until_the_first_commits(db, engine, scope):
    await engine.register()
    first, second = await engines(db, 2)
    item = keyed("order-7", scope=scope)
    async with open_transaction(first):
        created = await first.submit(item)
        assert created.word == "created"
        answers = await second.submit_many([item, keyed("order-8"), Item()])
        assert [answer.word for answer in answers] == ["busy", "created", "created"]
    duplicate = await second.submit(item)
    assert (duplicate.word, duplicate.id) == ("duplicate", created.id)
    other = await second.submit(item, fingerprint=b"other")
    assert (other.word, other.id) == ("key_reused", created.id)
    assert await db.fetchval("select count(*) from ff.execution") == 3


@pytest.mark.parametrize("scope", ["window", "unfinished"])
async def test_whoever_is_told_the_first_run_of_a_key_keeps_nobody_waiting(db, engine, scope):
    await engine.register()
    asking, second = await engines(db, 2)
    item = keyed("order-7", scope=scope)
    first = await engine.submit(item)
    async with open_transaction(asking):
        for words in ({"fingerprint": b"same"}, {"fingerprint": b"other"}):
            told = await asking.submit(item, **words)
            assert told.id == first.id
            assert await second.submit(item, **words) == told
        assert (await second.submit(item)).word == "duplicate"
    assert await db.fetchval("select count(*) from ff.execution") == 1


@pytest.mark.parametrize("on_conflict", ["raise", "existing"])
async def test_of_two_callers_of_one_key_with_other_arguments_one_is_stored(db, on_conflict):
    """The loser gets the run of the winner, or an error that names it."""
    async with App(database_url=db.url) as one, App(database_url=db.url) as other:
        tasks = [app.task(name="shop.pay")(pay) for app in (one, other)]
        for number in range(5):
            told = await asyncio.gather(
                *(
                    task.submit(n, key=f"order-{number}", on_conflict=on_conflict)
                    for n, task in enumerate(tasks)
                ),
                return_exceptions=True,
            )
            runs = [run for run in told if isinstance(run, Run)]
            errors = [error for error in told if isinstance(error, KeyReused)]
            (winner,) = (run for run in runs if not run.is_duplicate)
            assert len(runs) == (1 if on_conflict == "raise" else 2)
            assert {run.id for run in runs} | {error.execution_id for error in errors} == {
                winner.id
            }
            assert len(runs) + len(errors) == 2
    assert await db.fetchval("select count(*) from ff.execution") == 5


async def test_a_key_that_nobody_remembers_is_never_busy(db, engine):
    await engine.register()
    first, second = await engines(db, 2)
    item = keyed("order-7", window=timedelta(0))
    async with open_transaction(first):
        assert (await first.submit(item)).word == "created"
        assert (await second.submit(item)).word == "created"


async def test_a_key_is_free_again_after_a_rollback(db, engine):
    await engine.register()
    first, second = await engines(db, 2)
    transaction = first.connection.transaction()
    await transaction.start()
    await first.submit(keyed("order-7"))
    assert (await second.submit(keyed("order-7"))).word == "busy"
    await transaction.rollback()
    assert (await second.submit(keyed("order-7"))).word == "created"
    assert await db.fetchval("select count(*) from ff.execution") == 1


async def test_the_same_key_in_another_namespace_is_another_key(db, engine):
    await engine.register()
    first, second = await engines(db, 2)
    second = second.within("another")
    async with open_transaction(first):
        await first.submit(keyed("order-7"))
        assert (await second.submit(keyed("order-7"))).word == "created"


async def test_a_crowd_submits_the_same_keys(db, engine):
    """Eight sessions, two hundred keys, batches of twenty in an order of each one's own."""
    route = await engine.register()
    keys = [f"key-{number:03}" for number in range(200)]
    created: dict[str, object] = {}
    stood_for: list[tuple[str, object]] = []
    words = Counter()

    async def submit(number, engine: Engine):
        mine = keys[number * 25 :] + keys[: number * 25]
        if number % 2:
            mine.reverse()
        for start in range(0, len(mine), 20):
            todo = mine[start : start + 20]
            for _ in range(200):
                answers = await engine.submit_many([keyed(key, route=route) for key in todo])
                words.update(answer.word for answer in answers)
                for key, answer in zip(todo, answers, strict=True):
                    if answer.word == "created":
                        assert key not in created
                        created[key] = answer.id
                    elif answer.word == "duplicate":
                        stood_for.append((key, answer.id))
                todo = [
                    key for key, answer in zip(todo, answers, strict=True) if answer.word == "busy"
                ]
                if not todo:
                    break
            assert not todo, "busy for ever"

    crowd = await engines(db, 8)
    await together(*(submit(number, engine) for number, engine in enumerate(crowd)))
    assert set(created) == set(keys)
    assert all(created[key] == id_ for key, id_ in stood_for)
    assert len(stood_for) == 7 * len(keys)
    assert set(words) <= {"created", "duplicate", "busy"}
    assert await db.fetchval("select count(*) from ff.execution") == len(keys)


async def test_a_key_that_may_be_taken_over_is_taken_over_once(db, engine, clock):
    await engine.register()
    item = keyed("order-7", window=timedelta(minutes=5))
    old = await engine.submit(item)
    await clock.advance(minutes=6)
    crowd = await engines(db, 8)
    answers = await together(*(engine.submit(item) for engine in crowd))
    created = [answer for answer in answers if answer.word == "created"]
    assert len(created) == 1
    assert created[0].id != old.id
    assert {a.id for a in answers if a.word == "duplicate"} <= {created[0].id}
    assert await db.fetchval("select count(*) from ff.execution") == 2


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_one_id_at_once(db, engine, ending):
    """The id is the identity of a submit: its second arrival is a duplicate, or the first."""
    await engine.register()
    first, second = await engines(db, 2)
    item = Item(id=new_id())
    transaction = first.connection.transaction()
    await transaction.start()
    assert (await first.submit(item)).word == "created"
    repeat = asyncio.create_task(second.submit(item))
    await until_blocked(db, second, repeat)
    await getattr(transaction, ending)()
    answer = await repeat
    assert answer.word == ("duplicate" if ending == "commit" else "created")
    assert answer.id == item.id
    assert await db.fetchval("select count(*) from ff.execution") == 1
    assert await engine.kinds(item.id) == ["submitted"]


async def test_a_key_that_is_not_remembered_holds_nobody_up(db, engine):
    await engine.register()
    first, second = await engines(db, 2)
    async with open_transaction(first):
        assert (await first.submit(keyed("order-7", window=timedelta(0)))).word == "created"
        assert (await second.submit(keyed("order-7"))).word == "created"


async def test_a_key_that_an_earlier_item_takes_is_taken_for_those_that_do_not_keep_it(engine):
    await engine.register()
    items = [keyed("order-7"), keyed("order-7", window=timedelta(0))]
    first, second = await engine.submit_many(items)
    assert (first.word, second.word, second.id) == ("created", "duplicate", first.id)


async def test_a_crowd_submits_the_same_ids(db, engine):
    route = await engine.register()
    items = [Item(id=new_id(), route=route, payload=b"x" * 300) for _ in range(200)]
    crowd = await engines(db, 6)

    async def submit(number, engine):
        batch = items[::-1] if number % 2 else items
        words = Counter()
        for start in range(0, len(batch), 50):
            answers = await engine.submit_many(batch[start : start + 50])
            words.update(answer.word for answer in answers)
        return words

    words = sum(
        await together(*(submit(number, engine) for number, engine in enumerate(crowd))), Counter()
    )
    assert words == {"created": 200, "duplicate": 1000}
    assert await db.fetchval("select count(*) from ff.execution") == 200
    assert await db.fetchval("select count(*) from ff.execution_body") == 200
