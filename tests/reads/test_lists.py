"""Lists, counts, and leases that ran out."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import ExecutionFilter
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.core.states import BlockingReason, FailureClass, PublicState
from support.factories import Engine, refused
from support.sabotage import unwitnessed

from .stage import TTL, Stage

HOUR = timedelta(hours=1)


async def walk(stage: Stage, limit: int = 100, **wanted: Any) -> list[ExecutionId]:
    """The ids of all pages."""
    found: list[ExecutionId] = []
    cursor = None
    while True:
        page = await stage.executions.list(
            ExecutionFilter(**wanted) if wanted else None, cursor=cursor, limit=limit
        )
        assert len(page.executions) <= limit
        found += [execution.id for execution in page.executions]
        cursor = page.cursor
        if page.is_last:
            return found


# Ids


async def test_ids_come_in_pages_without_a_gap(stage: Stage) -> None:
    ids = sorted([await stage.submit() for _ in range(15)])
    found: list[ExecutionId] = []
    after = None
    for number in range(3):
        page = await stage.executions.list_ids(after=after, limit=5)
        found += page.ids
        after = page.cursor
        assert (after is None) == (number == 2)
    assert found == ids


async def test_a_short_partition_has_one_page(stage: Stage) -> None:
    id = await stage.submit()
    for limit in (1, 5, 5000):
        page = await stage.executions.list_ids(limit=limit)
        assert (page.ids, page.cursor) == ([id], None)


async def test_nothing_to_list(stage: Stage) -> None:
    await stage.submit()
    for page in (
        await stage.executions.list_ids(limit=0),
        await stage.executions.list_ids(partition=7),
    ):
        assert (page.ids, page.cursor) == ([], None)
    page = await stage.executions.list(limit=0)
    assert (page.executions, page.cursor) == ([], None)


@pytest.mark.parametrize("partition", [-1, 32768, True, "0"])
async def test_a_bad_partition_is_refused(stage: Stage, partition: Any) -> None:
    for call in (
        stage.executions.list_ids(partition=partition),
        stage.executions.list(partition=partition),
        stage.executions.count(partition=partition),
        stage.executions.expired_leases(partition=partition),
    ):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.field == "partition"


async def test_an_id_of_another_partition_is_no_place_to_go_on_from(stage: Stage) -> None:
    with pytest.raises(InvalidInput) as caught:
        await stage.executions.list_ids(partition=0, after=ExecutionId.of(3, mint().uuid))
    assert caught.value.field == "after"


async def test_a_list_of_all_partitions_goes_on_from_an_id_of_any(stage: Stage) -> None:
    ids = sorted([await stage.submit() for _ in range(3)])
    after = ExecutionId.of(3, ids[0].uuid)
    assert (await stage.executions.list_ids(after=after)).ids == ids[1:]


async def test_ids_among_many_of_another_tenant(stage: Stage) -> None:
    """A look is bounded: the page is short, and the cursor leads over what is not ours."""
    await many(stage, 12_000)
    async with unwitnessed(stage.db.conn):
        await stage.db.execute(
            "update ff.execution set namespace = 'other' where phase = 'terminal' "
            "and execution_id <> $1",
            nth(5).uuid,
        )
    found: list[ExecutionId] = []
    after, pages = None, 0
    while pages == 0 or after:
        page = await stage.executions.list_ids(after=after)
        found += page.ids
        after, pages = page.cursor, pages + 1
    assert (len(found), found[0], pages) == (2, nth(5), 2)


# Filters


async def test_the_newest_come_first(stage: Stage) -> None:
    ids = [await stage.submit(priority=n) for n in range(7)]
    assert await walk(stage, limit=3) == ids[::-1]
    (first, *_) = (await stage.executions.list()).executions
    assert (first.lane, first.task, first.priority) == ("mail", "app.send", 6)
    assert first.blocking_reason is BlockingReason.WAITING_FOR_WORKER
    assert not first.is_crash_loop


async def test_a_full_last_page_has_no_cursor(stage: Stage) -> None:
    for _ in range(4):
        await stage.submit()
    page = await stage.executions.list(limit=4)
    assert (len(page.executions), page.cursor) == (4, None)


async def zoo(stage: Stage) -> dict[str, ExecutionId]:
    """One execution in each of many states."""
    held = await stage.claimed(retries=1)
    await stage.fail(held)
    found = {"backoff": held.id}
    held = await stage.claimed()
    await stage.fail(held, FailureClass.PERMANENT)
    found["failed"] = held.id
    held = await stage.claimed()
    await stage.executions.complete(held)
    found["completed"] = held.id
    found["cancelled"] = await stage.submit()
    await stage.executions.cancel(found["cancelled"])
    found["expired"] = await stage.submit(deadline=timedelta(seconds=1))
    await stage.clock.advance(seconds=1)
    await stage.executions.expire()
    found["lost"] = await stage.lose(await stage.claimed())
    found["running"] = (await stage.claimed(lane="running")).id
    held = await stage.claimed(lane="revoked")
    found["revoked"] = held.id
    await stage.client.leases.revoke(held.id)
    found["delayed"] = await stage.submit(delay=HOUR)
    found["budget"] = await stage.submit()
    await stage.executions.block_for_admission(found["budget"], "waiting_for_budget")
    found["paused"] = await stage.submit()
    await stage.executions.block_for_admission(found["paused"], "paused_by_operator")
    found["waiting"] = await stage.submit()
    return found


async def test_every_state_and_every_pair_of_states_is_found(stage: Stage) -> None:
    """Whatever index a state is found by, the answer is that of a plain look at all rows."""
    await zoo(stage)
    rows = await stage.db.fetch("select execution_id, public_state::text from ff.execution")
    assert len({row["public_state"] for row in rows}) == 8
    for one in PublicState:
        for other in PublicState:
            wanted = {one, other}
            expected = sorted(
                (
                    ExecutionId.of(0, row["execution_id"])
                    for row in rows
                    if row["public_state"] in wanted
                ),
                reverse=True,
            )
            for limit in (1, 100):
                assert await walk(stage, limit, states=wanted) == expected, wanted
            assert (await stage.executions.count(ExecutionFilter(states=wanted))).number == len(
                expected
            )


async def test_no_state_is_no_execution(stage: Stage) -> None:
    await stage.submit()
    assert await walk(stage, states=[]) == []
    assert await walk(stage, lanes=[]) == []


async def test_by_lane_task_and_both(stage: Stage) -> None:
    one = await stage.submit(lane="mail", task="app.send")
    two = await stage.submit(lane="bulk", task="app.send")
    three = await stage.submit(lane="mail", task="app.other")
    assert await walk(stage, lanes=["mail"]) == [three, one]
    assert await walk(stage, tasks=["app.send"]) == [two, one]
    assert await walk(stage, lanes=["mail", "bulk"], tasks=["app.other", "app.none"]) == [three]
    assert await walk(stage, lanes=["none"]) == []


async def test_by_tags(stage: Stage) -> None:
    one = await stage.submit(tags={"a.b": "1", "a.c": "2"})
    two = await stage.submit(tags={"a.b": "1"})
    await stage.submit()
    assert await walk(stage, tags={"a.b": "1"}) == [two, one]
    assert await walk(stage, limit=1, tags={"a.b": "1"}) == [two, one]
    assert await walk(stage, tags={"a.b": "1", "a.c": "2"}) == [one]
    assert await walk(stage, tags={"a.b": "2"}) == []
    assert await walk(stage, tags={"a.b": "1"}, states=["waiting"], lanes=["mail"]) == [two, one]


async def test_by_time(stage: Stage) -> None:
    one = await stage.submit()
    await stage.clock.advance(HOUR)
    two = await stage.submit()
    noon = await stage.now()
    await stage.clock.advance(HOUR)
    three = await stage.submit()
    assert await walk(stage, created_after=noon) == [three, two]
    assert await walk(stage, created_before=noon) == [one]
    assert await walk(stage, created_after=noon, created_before=noon + HOUR) == [two]
    await stage.executions.cancel(one)
    assert await walk(stage, ended_after=noon) == [one]
    assert await walk(stage, ended_after=noon + 2 * HOUR) == []
    assert await walk(stage, ended_before=noon + 2 * HOUR) == [one]
    assert await walk(stage, ended_before=noon) == []


async def test_by_the_worker_that_holds_it(stage: Stage) -> None:
    first = await stage.claimed()
    await stage.submit()
    second = await stage.claim("pool-2")
    assert await walk(stage, worker_instance_id="pool-1") == [first.id]
    assert await walk(stage, worker_instance_id="pool-2", states=["active"]) == [second.id]
    assert await walk(stage, worker_instance_id="pool-2", states=["waiting"]) == []
    await stage.executions.complete(second)
    assert await walk(stage, worker_instance_id="pool-2") == []


async def test_a_crash_loop_can_be_seen(stage: Stage) -> None:
    id = await stage.lose(await stage.claimed(), 3)
    (found,) = (await stage.executions.list()).executions
    assert (found.id, found.is_crash_loop, found.reclaim_count) == (id, True, 2)
    assert (await stage.executions.describe(id)).is_crash_loop
    await stage.executions.cancel(id)
    (found,) = (await stage.executions.list()).executions
    assert not found.is_crash_loop


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "state": ("states", {"states": ["running"]}),
    "one text": ("lanes", {"lanes": "mail"}),
    "number": ("tasks", {"tasks": [1]}),
    "tag": ("tags", {"tags": {"Bad": "x"}}),
    "naive": ("created_after", {"created_after": datetime(2026, 1, 1)}),  # noqa: DTZ001
    "no time": ("created_before", {"created_before": "today"}),
    "end": ("ended_after", {"ended_after": 5}),
    "end before": ("ended_before", {"ended_before": 5}),
    "worker": ("worker_instance_id", {"worker_instance_id": ""}),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_filter_is_refused_by_name(stage: Stage, name: str) -> None:
    field, wanted = BAD[name]
    for call in (stage.executions.list, stage.executions.count):
        with pytest.raises(InvalidInput) as caught:
            await call(ExecutionFilter(**wanted))
        assert caught.value.field == field


@pytest.mark.parametrize("cursor", ["", "x", "0" * 31, "g" * 32, "'; drop table"])
async def test_a_cursor_of_nobody_is_refused(stage: Stage, cursor: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await stage.executions.list(cursor=cursor)
    assert caught.value.field == "cursor"


@pytest.mark.parametrize("limit", [-1, True, "5", None, 1.5])
async def test_a_bad_limit_is_refused(stage: Stage, limit: Any) -> None:
    for call in (
        stage.executions.list(limit=limit),
        stage.executions.list_ids(limit=limit),
        stage.executions.expired_leases(limit=limit),
    ):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.field == "limit"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("states", "p_states => array['running']"),
        ("states", "p_states => array[null]"),
        ("tags", "p_tags => 'x'"),
        ("cursor", "p_cursor => 'x'"),
        ("limit", "p_limit => null"),
        ("limit", "p_limit => 1001"),
    ],
)
async def test_the_engine_refuses_the_same(engine: Engine, field: str, arguments: str) -> None:
    with refused("WF001", field=field):
        await engine.connection.fetch(
            f"select * from ff.list_executions(0::smallint, null, {arguments})"
        )


# More than one look


async def many(stage: Stage, number: int, outcome: str = "success") -> None:
    """Ended executions, made in bulk, every tenth failed."""
    stage.db.leave_broken("rows without events, made in bulk")
    await stage.submit()
    async with unwitnessed(stage.db.conn):
        await stage.db.execute(
            "insert into ff.execution (partition_key, execution_id, route_id, namespace, rank, "
            "created_at, order_at, transitioned_at, mutated_at, version, phase, ownership, "
            "eligibility, blocking_reason, outcome, attempt_state, cause, terminal_at) "
            "select 0, ('0190' || lpad(to_hex(n), 12, '0') || lpad(to_hex(n), 16, '0'))::uuid, "
            "e.route_id, e.namespace, e.rank, e.created_at, e.created_at, e.created_at, "
            "e.created_at, 1, 'terminal', 'unowned', 'not_applicable', 'none', "
            "case when n % 10 = 0 then 'failed'::ff.outcome else 'success' end, "
            "'pending_first_attempt', 'complete', e.created_at "
            "from ff.execution e, generate_series(1, $1::bigint) n",
            number,
        )


def nth(number: int) -> ExecutionId:
    return ExecutionId.of(0, UUID(f"0190{number:012x}{number:016x}"))


async def test_pages_of_a_bounded_look_find_everything(stage: Stage) -> None:
    """The rows wanted lie far below the newest: the first pages are empty, but not the last."""
    await many(stage, 10_000)
    await stage.executions.set_tag(nth(7), "a.b", "c")
    page = await stage.executions.list(ExecutionFilter(tags={"a.b": "c"}))
    assert (page.executions, page.is_last) == ([], False)
    assert await walk(stage, tags={"a.b": "c"}) == [nth(7)]
    assert await walk(stage, states=["failed"]) == [nth(n) for n in range(10_000, 0, -10)]
    assert await walk(stage, limit=1000, states=["failed", "completed"]) == [
        nth(n) for n in range(10_000, 0, -1)
    ]
    newest = (await stage.executions.list(limit=1)).executions[0].id
    assert await walk(stage, states=["waiting"]) == [newest]
    assert await walk(stage, states=["failed", "delayed", "active"], limit=300) == [
        nth(n) for n in range(10_000, 0, -10)
    ]


async def test_many_attention_states_are_merged_in_order(stage: Stage) -> None:
    """One state has far more rows than a look takes; nothing is lost or out of order."""
    await many(stage, 30_000)
    async with unwitnessed(stage.db.conn):
        await stage.db.execute(
            "update ff.execution set outcome = 'failed' where phase = 'terminal';"
            "update ff.execution set outcome = 'expired' "
            "where execution_id < '01900000-0000-0064-0000-000000000000'"
        )
    found = await walk(stage, limit=1000, states=["failed", "expired", "skipped"])
    assert found == [nth(n) for n in range(30_000, 0, -1)]


async def test_what_runs_is_found_behind_a_crowd_of_timers(stage: Stage) -> None:
    """More are due before its lease ends than a look takes."""
    await many(stage, 6000)
    async with unwitnessed(stage.db.conn):
        await stage.db.execute(
            "update ff.execution set phase = 'runnable', outcome = 'none', terminal_at = null, "
            "eligibility = 'not_eligible_until_time', blocking_reason = 'waiting_for_delay', "
            "delayed_until = created_at, due_at = created_at where phase = 'terminal'"
        )
    held = await stage.claim()
    assert await walk(stage, states=["active"]) == [held.id]
    assert await walk(stage, worker_instance_id="pool-1") == [held.id]
    assert await walk(stage, limit=1000, states=["active", "delayed"]) == [
        held.id,
        *(nth(n) for n in range(6000, 0, -1)),
    ]


async def test_a_count_is_exact_up_to_ten_thousand(stage: Stage) -> None:
    await many(stage, 10_000)
    count = stage.executions.count
    ended = ExecutionFilter(states=["completed", "failed"])
    assert str(await count(ended)) == "10000"
    assert str(await count(ExecutionFilter(states=["failed"]))) == "1000"
    assert (await count()).is_more
    assert str(await count()) == "10000+"
    assert str(await count(ExecutionFilter(tags={"a.b": "c"}))) == "0"


# Leases that ran out


async def test_expired_leases_first_to_run_out_first(stage: Stage) -> None:
    """Unnoticed ones, marked ones, and marked ones in a pause before their reclaim."""
    looping = await stage.lose(await stage.claimed(), 3)
    marked = await stage.lose(await stage.claimed(lane="b"))
    unnoticed = await stage.claimed(lane="c")
    await stage.clock.advance(TTL)
    await stage.claimed(lane="d")
    await stage.submit()
    leases = await stage.executions.expired_leases()
    assert [(lease.id, lease.is_marked) for lease in leases] == [
        (looping, True),
        (marked, True),
        (unnoticed.id, False),
    ]
    last = leases[-1]
    assert (last.lease_id, last.epoch) == (unnoticed.lease_id, 1)
    assert (last.worker_id, last.worker_instance_id) == ("pool", "pool-1")
    assert (last.lease_expires_at, last.attempt) == (unnoticed.lease_expires_at, 1)
    early = await stage.executions.expired_leases(as_of=leases[0].lease_expires_at)
    assert [lease.id for lease in early] == [looping]
    assert await stage.executions.expired_leases(limit=0) == []
    later = await stage.executions.expired_leases(as_of=await stage.now() + TTL)
    assert len(later) == 4


async def test_a_lease_that_is_good_again_is_not_listed(stage: Stage) -> None:
    held = await stage.claimed()
    await stage.clock.advance(TTL / 2)
    await stage.client.leases.renew([held], TTL)
    await stage.clock.advance(TTL / 2)
    assert await stage.executions.expired_leases() == []
    await stage.client.leases.revoke(held.id)
    await stage.clock.advance(TTL)
    assert await stage.executions.expired_leases() == []


async def test_leases_that_end_at_the_same_instant_are_listed_once_each(stage: Stage) -> None:
    for _ in range(7):
        await stage.submit()
    held = await stage.executions.claim(
        worker_id="pool", worker_instance_id="pool-1", lease_ttl=TTL, limit=7
    )
    await stage.clock.advance(TTL)
    await stage.client.leases.expire(limit=3)
    assert len({claimed.lease_expires_at for claimed in held}) == 1
    found: list[ExecutionId] = []
    after = None
    while page := await stage.executions.expired_leases(after=after, limit=2):
        found += [lease.id for lease in page]
        after = page[-1].cursor
    assert found == sorted(claimed.id for claimed in held)


async def test_expired_leases_of_one_tenant(stage: Stage) -> None:
    await stage.claimed()
    await stage.clock.advance(TTL)
    async with FlowFabric(stage.db.url, namespace="elsewhere") as stranger:
        assert await stranger.executions.expired_leases() == []
    async with FlowFabric(stage.db.url, namespace=None) as operator:
        assert len(await operator.executions.expired_leases()) == 1


async def test_half_a_cursor_of_leases_is_refused(engine: Engine) -> None:
    with refused("WF001", field="after"):
        await engine.connection.fetch(
            "select * from ff.list_expired_leases(0::smallint, null, p_after_at => now())"
        )


@pytest.mark.parametrize("moment", ["infinity", "294276-12-31 23:59:59.999999+00"])
async def test_leases_can_be_listed_as_of_any_moment(stage: Stage, moment: str) -> None:
    await stage.claimed()
    found = await stage.db.fetchval(
        "select count(*) from ff.list_expired_leases(0::smallint, null, $1::text::timestamptz)",
        moment,
    )
    assert found == 1
