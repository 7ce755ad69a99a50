"""Concurrent single submits share statements, and no item suffers for another."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from flowfabric import App, FlowFabric, InvalidInput, KeyReused, Run
from flowfabric.core.errors import RetryExhausted
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint, mint_for_key
from support.database import Database, several_partitions
from support.proofs import some_of
from support.sabotage import unwitnessed
from support.timing import is_ever_within
from worker.waiting import eventually

ROUTE = Route("default", "default", "tests.work")


@pytest.fixture
async def client(db: Database) -> AsyncIterator[FlowFabric]:
    async with FlowFabric(db.url) as client:
        yield client


def submission(**changes: Any) -> Submission:
    return replace(Submission(id=mint(), route=ROUTE, payload=b"null"), **changes)


def keyed(key: str, fingerprint: bytes = b"f", **changes: Any) -> Submission:
    return submission(
        id=mint_for_key("default", key), key=key, key_fingerprint=fingerprint, **changes
    )


def statements(client: FlowFabric, name: str = "submit_executions") -> int:
    operation = client.database.meter.operations.get(name)
    return operation.calls if operation else 0


async def stored(db: Database) -> int:
    count: int = await db.fetchval("select count(*) from ff.execution")
    return count


async def test_concurrent_submits_share_statements(client, db):
    answers = await asyncio.gather(*(client.executions.submit(submission()) for _ in range(1000)))

    assert len({answer.id for answer in answers}) == 1000
    assert await stored(db) == 1000
    # The first may leave alone; the rest fills batches of 500.
    assert statements(client) <= 5
    assert statements(client, "register_routes") == 1


async def test_a_submit_while_idle_costs_one_statement_and_no_delay(client, db):
    await client.executions.submit(submission())
    before = statements(client)
    for _ in range(50):
        await client.executions.submit(submission())

    assert statements(client) - before == 50
    # A timer of even a few milliseconds would show in the fastest of them.
    assert await is_ever_within(0.005, lambda: client.executions.submit(submission()), tries=1000)


async def test_a_cancelled_caller_withdraws_what_has_not_left(client, db):
    await client.executions.submit(submission())
    blocker = await db.connect()
    async with blocker.transaction():
        await blocker.execute("lock table ff.execution in share mode")
        first = asyncio.create_task(client.executions.submit(submission()))
        await eventually(lambda: _is_waiting(db))
        withdrawn, kept = submission(), submission()
        callers = [asyncio.create_task(client.executions.submit(s)) for s in (withdrawn, kept)]
        await asyncio.sleep(0)
        callers[0].cancel()
        await asyncio.wait([callers[0]])

    assert (await first).is_duplicate is False
    assert (await callers[1]).id == kept.id
    assert callers[0].cancelled()
    assert await client.executions.state(withdrawn.id) is None
    assert await client.executions.state(kept.id) == "waiting"


async def test_a_caller_cancelled_after_its_item_left_does_not_cancel_the_statement(client, db):
    await client.executions.submit(submission())
    blocker = await db.connect()
    items = [submission() for _ in range(10)]
    async with blocker.transaction():
        await blocker.execute("lock table ff.execution in share mode")
        callers = [asyncio.create_task(client.executions.submit(item)) for item in items]
        await eventually(lambda: _is_waiting(db))
        callers[3].cancel()
        await asyncio.wait([callers[3]])

    answers = await asyncio.gather(*callers, return_exceptions=True)

    assert [type(answer).__name__ for answer in answers].count("CancelledError") == 1
    # It had left: the statement stored it, and all the others.
    assert await stored(db) == 11


async def _is_waiting(db: Database) -> bool:
    waiting: bool = await db.fetchval(
        "select exists (select from pg_locks l join pg_database d on d.oid = l.database "
        "where d.datname = current_database() and not l.granted "
        "and l.relation = 'ff.execution'::regclass)"
    )
    return waiting


async def test_an_item_that_the_engine_refuses_harms_no_other_of_its_batch(client, db):
    items = [submission() for _ in range(500)]
    items[250] = submission(policy='{"retry_policy": {"max_retries": -1}}')
    await client.lanes.register(ROUTE)

    answers = await asyncio.gather(
        *(client.executions.submit(item) for item in items), return_exceptions=True
    )

    assert isinstance(answers[250], InvalidInput)
    assert answers[250].field == "policy"
    assert [answer.id for n, answer in enumerate(answers) if n != 250] == [
        item.id for n, item in enumerate(items) if n != 250
    ]
    assert await stored(db) == 499
    assert statements(client) == 1


async def test_an_item_that_breaks_the_whole_statement_harms_no_other_of_its_batch(client, db):
    items = [submission() for _ in range(500)]
    # No text of the server holds a NUL: it refuses the whole statement.
    items[321] = submission(policy="nul \x00 inside")
    await client.lanes.register(ROUTE)

    answers = await asyncio.gather(
        *(client.executions.submit(item) for item in items), return_exceptions=True
    )

    assert isinstance(answers[321], InvalidInput)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Exception)] == [321]
    assert await stored(db) == 499
    assert 1 < statements(client) <= 2 * (500).bit_length() + 1


async def test_what_the_driver_cannot_send_harms_no_other_of_its_batch(client, db):
    items = [submission() for _ in range(100)]
    items[7] = submission(delay=timedelta(days=999_999_999))  # no timestamp is that far away
    items[70] = keyed("k", key_window=object())
    await client.lanes.register(ROUTE)

    answers = await asyncio.gather(
        *(client.executions.submit(item) for item in items), return_exceptions=True
    )

    assert [n for n, answer in enumerate(answers) if isinstance(answer, InvalidInput)] == [7, 70]
    assert await stored(db) == 98


async def test_closing_sends_what_was_handed_in(db):
    client = await FlowFabric(db.url).open()
    await client.lanes.register(ROUTE)
    callers = [asyncio.create_task(client.executions.submit(submission())) for _ in range(1200)]
    await asyncio.sleep(0)

    await client.close()

    await asyncio.gather(*callers)
    assert await stored(db) == 1200


async def test_the_same_id_again_is_a_success(client, db):
    one = submission()

    first = await client.executions.submit(one)
    second, third = await asyncio.gather(
        client.executions.submit(one), client.executions.submit(one)
    )

    assert first == second == third
    assert not second.is_duplicate
    assert await stored(db) == 1


@several_partitions
async def test_a_key_names_the_first_execution_that_used_it(client, db):
    first, second = keyed("order-7"), keyed("order-7")

    answers = await asyncio.gather(
        client.executions.submit(first), client.executions.submit(second)
    )

    assert {answer.id for answer in answers} in ({first.id}, {second.id})
    assert sorted(answer.is_duplicate for answer in answers) == [False, True]
    with pytest.raises(KeyReused, match="order-7"):
        await client.executions.submit(keyed("order-7", b"other"))
    assert await stored(db) == 1


async def test_a_busy_key_is_repeated_alone_while_the_others_go_on(client, db):
    await client.executions.submit(keyed("warm-up"))
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await _take_key(other, "held")

    held = asyncio.create_task(client.executions.submit(keyed("held")))
    others = [client.executions.submit(keyed(f"free-{n}")) for n in range(50)]
    await asyncio.wait_for(asyncio.gather(*others), 60)
    assert not held.done()
    await transaction.rollback()

    assert not (await asyncio.wait_for(held, 60)).is_duplicate
    assert await stored(db) == 52


async def test_all_callers_of_a_hot_key_get_the_first_run(db):
    """Also beside an open transaction that asked for the key in vain."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(FlowFabric(db.url, pool_size=1)) for _ in range(24)
        ]
        answers = await asyncio.gather(*(one.executions.submit(keyed("hot")) for one in clients))
        [first] = [answer.id for answer in answers if not answer.is_duplicate]
        other = await db.connect()
        await stack.enter_async_context(other.transaction())
        await _take_key(other, "hot")
        answers += await asyncio.gather(*(one.executions.submit(keyed("hot")) for one in clients))
    assert {answer.id for answer in answers} == {first}
    assert await stored(db) == 1


async def test_a_key_that_stays_busy_is_given_up_with_its_name(client, db):
    await client.executions.submit(keyed("warm-up"))
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await _take_key(other, "held")
    with pytest.raises(RetryExhausted, match="held"):
        await asyncio.wait_for(client.executions.submit(keyed("held")), 60)
    await transaction.rollback()
    assert await stored(db) == 1


async def _take_key(connection: Any, key: str) -> None:
    """As another transaction would that is about to submit with this key."""
    route = await connection.fetchval("select route_id from ff.route")
    await connection.execute(
        "select * from ff.submit_executions(p_partition_key => 0::smallint, p_namespace => "
        "'default', p_execution_ids => array[gen_random_uuid()], p_route_ids => array[$1::bigint],"
        " p_payloads => array['x'::bytea], p_options => array[jsonb_build_object("
        "'key', $2::text, 'key_fingerprint', '67')])",
        route,
        key,
    )


async def test_routes_forgotten_by_the_database_are_registered_again(client, db):
    await client.executions.submit(submission())
    async with unwitnessed(db.conn):
        await db.execute("delete from ff.event; delete from ff.execution; delete from ff.route")

    await asyncio.gather(*(client.executions.submit(submission()) for _ in range(10)))

    assert await stored(db) == 10


async def test_submit_many_stores_all_of_them_in_chunks(client, db):
    items = [submission() for _ in range(1001)]

    answers = await client.executions.submit_many(items)

    assert [answer.id for answer in answers] == [item.id for item in items]
    assert await stored(db) == 1001
    assert statements(client) == 3


async def test_submit_many_raises_what_the_engine_refuses_and_keeps_the_rest(client, db):
    await client.executions.submit(keyed("used", b"first"))
    items = [keyed("free-1"), keyed("used", b"other"), keyed("free-2")]

    with pytest.raises(KeyReused, match="used"):
        await client.executions.submit_many(items)

    assert await stored(db) == 3
    # Repeating it is safe: the ids are the same.
    assert [a.id for a in await client.executions.submit_many([items[0], items[2]])] == [
        items[0].id,
        items[2].id,
    ]
    assert await stored(db) == 3


async def test_one_app_serves_two_event_loops_in_two_threads(db, make_app):
    app = make_app()

    @app.task(name="loops.work")
    async def work(n: int) -> int:
        return n

    found: list[list[Run[int]]] = []

    def run() -> None:
        async def submit() -> None:
            found.append(await asyncio.gather(*(work.submit(n) for n in range(200))))
            await app.close()

        asyncio.run(submit())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(work.submit(n) for n in range(200)))
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)

    assert [len(runs) for runs in found] == [200, 200]
    assert await stored(db) == 600


async def test_threads_submit_through_one_background_loop(db, make_app):
    app = make_app()

    @app.task(name="threads.work")
    def work(n: int) -> int:
        return n

    def submit() -> list[str]:
        return [work.submit_sync(n).id for n in range(25)]

    ids = await asyncio.gather(*(asyncio.to_thread(submit) for _ in range(8)))

    assert len({id for some in ids for id in some}) == 200
    assert await stored(db) == 200
    # Eight callers at once on one loop: they share statements there, too.
    portal = [t for t in threading.enumerate() if t.name == "flowfabric-portal"]
    assert len(portal) == 1


async def test_submit_sync_on_an_event_loop_says_what_to_call_instead(app):
    @app.task
    def work() -> None: ...

    with pytest.raises(RuntimeError, match=r"await work\.submit\(\.\.\.\)"):
        work.submit_sync()


def _submit_in_child(app: App, task: Any, how: str, answers: Any) -> None:
    try:
        if how == "sync":
            ids = [task.submit_sync(n).id for n in range(20)]
        else:

            async def submit() -> list[str]:
                runs = await asyncio.gather(*(task.submit(n) for n in range(20)))
                await app.close()
                return [run.id for run in runs]

            ids = asyncio.run(submit())
        answers.put(ids)
    except BaseException as error:
        answers.put(repr(error))


@pytest.mark.parametrize(
    ("parent", "how"),
    some_of(product(["sync", "async", "worker"], ["sync", "async"]), turn=0),
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_submits_on_its_own_connections(db, make_app, how, parent):
    app = make_app()

    @app.task(name="fork.work")
    async def work(n: int) -> int:
        return n

    # The parent has connections, a portal thread or a worker when it forks.
    if parent == "sync":
        await asyncio.to_thread(work.submit_sync, -1)
    else:
        await work.submit(-1)
    if parent == "worker":
        await app.worker()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_submit_in_child, args=(app, work, how, answers))
    child.start()
    try:
        await eventually(lambda: not answers.empty(), what="the child answers")
        ids = answers.get()
    finally:
        child.kill()
        child.join()
    assert isinstance(ids, list), ids
    assert len(set(ids)) == 20

    # The parent's connections still are its own.
    await asyncio.gather(*(work.submit(n) for n in range(20)))
    assert await stored(db) == 41
    assert os.getpid() == app._pid
