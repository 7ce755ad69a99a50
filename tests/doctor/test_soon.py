"""What holds after a while: a warning once its grace is over, an error when it stays so although a
worker is alive, and nothing as soon as a reconciler has been there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.doctor import find_check, invariants
from support.database import home
from support.flows import make_flow

KEEP_NO_LONGER = "update ff.execution set retention = '0', trim_at = terminal_at"
BE_DUE = (
    "insert into ff.schedule_app (namespace, app, version) values ('test', 'shop', '{1}'); "
    "insert into ff.schedule (namespace, app, name, schedule_id, route_id, cron, time_zone, "
    "misfire, next_at, declared_at) select 'test', 'shop', 'tick', gen_random_uuid(), route_id, "
    "'* * * * *', 'UTC', 'once', ff.now(), ff.now() from ff.execution"
)
HAVE_SIBLINGS = (
    "insert into ff.edge_group (partition_key, downstream_id, flow_id, policy, on_satisfied, n, "
    "succeeded, state, fired_at, fired_k, fired_n, cancel_pending, cancel_enqueued_at) "
    "select partition_key, execution_id, execution_id, 'any_of', 'cancel_remaining', 2, 1, "
    "'satisfied', ff.now(), 1, 2, true, ff.now() from ff.execution"
)
BE_CANCELLED = (
    "insert into ff.cancel_backlog (partition_key, flow_id, policy, requested_at, due_at) "
    "select partition_key, execution_id, 'cancel_all', ff.now(), ff.now() from ff.execution"
)

HAVE_LINE = (
    "insert into ff.line (partition_key, route_id, gate_id, is_open, served_at) "
    "select partition_key, route_id, 7, false, ff.now() from ff.execution"
)
EXPIRE_WAITPOINT = (
    "insert into ff.waitpoint (partition_key, execution_id, waitpoint_id, key, attempt_index, kid, "
    "created_at, expires_at) select partition_key, execution_id, gen_random_uuid(), 'payment', 0, "
    "'k1', ff.now(), ff.now() from ff.execution"
)
STORE_SIGNAL = (
    f"select ff.deliver_signals('{home()}', namespace, array[execution_id], "
    "array[gen_random_uuid()], '{approve}', '{null}', p_is_transactional => true) from ff.execution"
)
END_PERIOD = (
    "insert into ff.budget (budget_id, namespace, budget, key, on_exceed, period, "
    "period_started_at, created_at, next_reset_at) values (4611686018427387911, 'test', 'monthly', "
    "'', 'fail', 'hour', ff.now(), ff.now(), ff.now())"
)

# The name, the state to start from, what else to plant, how late is late, how late is stuck.
LATE = [
    ("L09", "leased", None, 46, 181),
    ("T01", "delayed", None, None, None),
    ("T01", "reclaim_delayed", None, None, None),
    ("R02", "waiting", "grant", 31, 211),
    ("K02", "completed", KEEP_NO_LONGER, 301, 3601),
    ("W02", "waiting", "worker", 156, 1021),
    ("C04", "completed", "update ff.execution set wakes_pending = true", 16, 151),
    ("P02", "waiting", BE_DUE, 61, 601),
    ("F11", "completed", HAVE_SIBLINGS, 36, 351),
    ("F12", "completed", BE_CANCELLED, 51, 501),
    ("L10", "expired_lease", "worker for days", 601, None),
    ("U09", "suspended", "update ff.suspension set timeout_at = ff.now()", 61, 601),
    ("U09", "leased", EXPIRE_WAITPOINT, 61, 601),
    ("U09", "leased", STORE_SIGNAL, 61, 601),
    ("Q04", "waiting", HAVE_LINE, 16, 151),
    ("B06", "waiting", END_PERIOD, 16, 151),
]  # fmt: skip

PLANT_WORKER = (
    "insert into ff.worker (namespace, worker_instance_id, worker_id, capabilities, liveness_ttl, "
    "registered_at, heartbeat_at) values ('', $1, 'w', '{}', $2, ff.now(), ff.now())"
)


async def broken(conn, name):
    rows = await conn.fetch(find_check(name).text)
    assert all(row["name"] == name and row["problem"] for row in rows)
    return [row["is_stuck"] for row in rows]


def test_every_invariant_that_takes_a_while_is_tried():
    assert {name for name, *_ in LATE} == {
        check.name for check in invariants() if check.is_eventual
    }


@pytest.mark.parametrize(("name", "state", "plant", "late", "stuck"), LATE)
async def test_it_is_late_and_then_stuck_while_a_worker_is_alive(
    db, conn, clock, engine, make, name, state, plant, late, stuck
):
    db.leave_broken("planted")
    await clock.freeze()
    execution = await make.execution(state)
    if plant == "grant":
        await engine.grant(execution.id)
    elif plant == "worker":
        await conn.execute(PLANT_WORKER, "w-1", timedelta(minutes=1))
    elif plant == "worker for days":
        await conn.execute(PLANT_WORKER, "w-1", timedelta(days=2))
    elif plant:
        await conn.execute(plant)
    if late is None:
        due = await conn.fetchval("select due_at from ff.execution")
        late = (due - await clock.now()).total_seconds() + 16
        stuck = late + 136
    assert await broken(conn, name) == []
    await clock.advance(seconds=late - 2)
    assert await broken(conn, name) == []
    await clock.advance(seconds=2)
    assert await broken(conn, name) == [False]
    if stuck is None:
        await clock.advance(days=1)
        assert await broken(conn, name) == [False]
        return
    await clock.advance(seconds=stuck - late)
    # Nobody is there who could have come.
    assert await broken(conn, name) == [False]
    await conn.execute(PLANT_WORKER, "w-2", timedelta(minutes=1))
    assert await broken(conn, name) == [True]


@pytest.mark.parametrize("state", ["leased", "delayed", "reclaim_delayed"])
async def test_the_reconcilers_put_it_right(conn, clock, engine, make, state):
    await make.execution(state)
    await clock.advance(days=1)
    assert [*await broken(conn, "L09"), *await broken(conn, "T01")] == [False]
    await engine.expire()
    await engine.promote()
    assert [*await broken(conn, "L09"), *await broken(conn, "T01")] == []


async def test_a_lease_that_a_silent_worker_renews_is_noticed(conn, clock, engine, make):
    await conn.execute(PLANT_WORKER, "pool-1", timedelta(seconds=30))
    execution = await make.execution("leased")
    for _ in range(6):
        await clock.advance(seconds=25)
        await engine.renew_many([execution.lease])
    rows = await conn.fetch(find_check("W02").text)
    assert [(row["execution_id"], row["is_stuck"]) for row in rows] == [
        (None, False),
        (execution.id, False),
    ]


async def test_work_that_no_live_worker_covers_is_not_expected_to_be_taken_over(
    conn, clock, engine, make
):
    await conn.execute(PLANT_WORKER, "w-1", timedelta(days=2))
    await make.execution("expired_lease")
    await conn.execute("update ff.worker set tasks = '{another}'")
    await clock.advance(hours=1)
    assert await broken(conn, "L10") == []
    await conn.execute("update ff.worker set tasks = null, lanes = '{another}'")
    assert await broken(conn, "L10") == []
    await conn.execute("update ff.worker set lanes = null, namespace = 'another'")
    assert await broken(conn, "L10") == []
    await conn.execute("update ff.worker set namespace = ''")
    assert await broken(conn, "L10") == [False]
    await conn.execute("update ff.lane set state = 'paused'")
    assert await broken(conn, "L10") == []


async def test_a_child_is_not_late_while_its_parent_goes_on(engine, make, conn, clock):
    parent = await make.execution("leased")
    route = await engine.register(lane="child")
    child = await engine.submit(route=route, parent=parent.id, policy={"retention_ms": 0})
    await engine.cancel(child.id)
    await clock.advance(hours=2)
    assert (await conn.fetchval(f"select handled from ff.trim_retention('{home()}')")) == 0
    assert await broken(conn, "K02") == []
    await engine.cancel(parent.id)
    assert await broken(conn, "K02") == []
    await clock.advance(seconds=301)
    assert len(await broken(conn, "K02")) == 1
    assert (await conn.fetchval(f"select handled from ff.trim_retention('{home()}')")) == 1
    assert await broken(conn, "K02") == []


@pytest.mark.parametrize(
    ("policy", "member", "problem"),
    [
        ("cancel_all", "leased", "a member is active"),
        ("cancel_all", "waiting", "a member is waiting"),
        ("cancel_all", "completed", "its backlog lists an ended member"),
        ("cancel_pending", "waiting", "a member is waiting"),
        # it may take its time
        ("cancel_pending", "leased", None),
        ("cancel_pending", "completed", "its backlog lists an ended member"),
    ],
)
async def test_what_a_cancelled_flow_waits_for_is_told(
    db, conn, clock, make, policy, member, problem
):
    db.leave_broken("planted")
    execution = await make.execution(member)
    await conn.execute(BE_CANCELLED.replace("cancel_all", policy))
    await conn.execute(
        "insert into ff.cancel_backlog_member select partition_key, execution_id, execution_id "
        "from ff.execution"
    )
    await clock.advance(seconds=51)
    rows = await conn.fetch(find_check("F12").text)
    if problem is None:
        assert rows == []
    else:
        (row,) = rows
        assert problem in row["problem"]
        assert row["execution_id"] == execution.id


async def test_a_list_of_others_than_its_upstreams_is_wrong_at_once(db, conn, make):
    db.leave_broken("planted")
    await make.execution("completed")
    await conn.execute(HAVE_SIBLINGS)
    assert await broken(conn, "F11") == []
    await conn.execute("update ff.edge_group set cancel_members = array[gen_random_uuid()]")
    assert await broken(conn, "F11") == [True]


async def test_a_member_is_not_late_while_its_flow_goes_on(db, conn, clock):
    flow = await make_flow(
        db, nodes=["a", "b", "c"], edges=[("a", "c")], items={"a": {"policy": {"retention_ms": 0}}}
    )
    await flow.complete("a")
    await clock.advance(hours=2)
    assert await broken(conn, "K02") == []
    await flow.complete("b")
    await flow.complete("c")
    assert await broken(conn, "K02") == []
    await clock.advance(seconds=301)
    assert await broken(conn, "K02") == [False]
