"""The witness refuses every state change that ff.transition does not list, and every loud one
without exactly its event. Each test here is a mutant of a move that is legal as it stands."""

from __future__ import annotations

import pytest

from support.cancelling import header
from support.database import home
from support.factories import refused
from support.flows import make_flow
from support.sabotage import drop_checks, unwitnessed

# The holder of a lease gives it back (T15), written by hand the way the engine writes it.
RELEASE = {
    "phase": "'runnable'",
    "ownership": "'unowned'",
    "eligibility": "'eligible_now'",
    "attempt_state": "'attempt_interrupted'",
    "cause": "'release'",
    "blocking_reason": "'waiting_for_worker'",
    "version": "e.version + 1",
    "lease_id": "null",
    "lease_expires_at": "null",
    "worker_id": "null",
    "worker_instance_id": "null",
    "due_at": "null",
}
EVENT = {
    "partition_key": str(home()),
    "xid": "pg_current_xact_id()",
    "execution_id": "m.execution_id",
    "version": "m.version",
    "kind": "'released'::ff.event_kind",
    "lease_id": "m.old_lease_id",
    "epoch": "m.epoch",
    "namespace": "m.namespace",
    "occurred_at": "m.transitioned_at",
}
PROMOTE = {
    "eligibility": "'eligible_now'",
    "blocking_reason": "'waiting_for_worker'",
    "cause": "'promote'",
    "delayed_until": "null",
    "due_at": "null",
}


async def move(conn, execution_id, changes, *events):
    """One statement: an update of the execution, and the given events of it."""
    sets = ", ".join(f"{column} = {value}" for column, value in changes.items())
    logged = " union all ".join(
        f"select {', '.join(event.values())} from moved m" for event in events
    )
    log = f", logged as (insert into ff.event ({', '.join(EVENT)}) {logged})" if events else ""
    async with conn.transaction():
        await conn.execute(
            "with was as (select x.execution_id, x.lease_id from ff.execution x "
            f"where x.execution_id = '{execution_id}'), "
            f"moved as (update ff.execution e set {sets} from was "
            "where e.execution_id = was.execution_id "
            "returning e.execution_id, e.version, e.epoch, e.namespace, e.transitioned_at, "
            f"was.lease_id as old_lease_id){log} select from moved"
        )


@pytest.fixture
async def unchecked(conn):
    """Without the CHECK constraints, in a transaction that brings them back."""
    transaction = conn.transaction()
    await transaction.start()
    await drop_checks(conn)
    yield
    await transaction.rollback()


@pytest.fixture
async def before(make):
    return await make.execution("leased")


@pytest.fixture
async def leased(before, unchecked):
    return before.id


async def test_a_move_in_the_table_with_its_event_is_accepted(conn, engine, leased):
    await move(conn, leased, RELEASE, EVENT)
    assert await engine.kinds(leased) == ["submitted", "claimed", "released"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("phase", "'suspended'"),
        ("ownership", "'lease_revoked'"),
        ("eligibility", "'blocked_by_route'"),
        ("attempt_state", "'pending_retry_attempt'"),
        ("cause", "'complete'"),
    ],
)
async def test_a_move_to_another_state_is_refused(conn, engine, leased, column, value):
    with refused("WF290", message="not in ff.transition"):
        await move(conn, leased, RELEASE | {column: value}, EVENT)
    assert await engine.kinds(leased) == ["submitted", "claimed"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("phase", "suspended"),
        ("ownership", "lease_expired_reclaimable"),
        ("eligibility", "blocked_by_budget"),
        ("attempt_state", "attempt_interrupted"),
    ],
)
async def test_a_move_from_another_state_is_refused(conn, leased, column, value):
    async with unwitnessed(conn):
        await conn.execute(f"update ff.execution set {column} = '{value}'")
    with refused("WF290", message="not in ff.transition"):
        await move(conn, leased, RELEASE, EVENT)


@pytest.mark.parametrize(
    ("message", "events"),
    [
        ("a loud transition without its event", []),
        ("a transition with more than one event", [EVENT, EVENT]),
        (
            "a transition with more than one event",
            [EVENT, EVENT | {"kind": "'claimed'::ff.event_kind"}],
        ),
        ("an event of the wrong kind", [EVENT | {"kind": "'lease_revoked'::ff.event_kind"}]),
        # T15 is also made by `delay`: the kind is another cause's
        ("an event of the wrong kind", [EVENT | {"kind": "'delayed'::ff.event_kind"}]),
        ("a loud transition without its event", [EVENT | {"version": "m.version + 1"}]),
        ("a loud transition without its event", [EVENT | {"version": "m.version - 1"}]),
        ("an event without a transition", [EVENT, EVENT | {"version": "m.version + 1"}]),
        ("an event without a transition", [EVENT, EVENT | {"version": "m.version - 2"}]),
        ("an event of no execution", [EVENT, EVENT | {"execution_id": "gen_random_uuid()"}]),
        ("an event of another transaction", [EVENT | {"xid": "'3'::xid8"}]),
    ],
)
async def test_a_loud_move_needs_exactly_its_event(conn, leased, message, events):
    with refused("WF290", message=message):
        await move(conn, leased, RELEASE, *events)


async def test_an_event_without_a_version_cannot_be_stored(conn, leased):
    with refused("23502"):
        await move(conn, leased, RELEASE, EVENT | {"version": "null"})


@pytest.mark.parametrize("raised_by", [-1, 0, 2])
async def test_a_loud_move_raises_the_version_by_one(conn, leased, raised_by):
    with refused("WF290"):
        await move(conn, leased, RELEASE | {"version": f"e.version + {raised_by}"}, EVENT)


async def test_a_cause_with_the_same_move_needs_its_own_kind(conn, leased):
    with refused("WF290", message="an event of the wrong kind"):
        await move(conn, leased, RELEASE | {"cause": "'delay'"}, EVENT)


async def test_a_promotion_may_be_quiet_or_loud(conn, engine, make):
    quiet = await make.execution("delayed")
    loud = await make.execution("delayed")
    await move(conn, quiet.id, PROMOTE)
    await move(
        conn,
        loud.id,
        PROMOTE | {"version": "e.version + 1"},
        EVENT | {"kind": "'promoted'::ff.event_kind"},
    )
    assert await engine.kinds(quiet.id) == ["submitted"]
    assert await engine.kinds(loud.id) == ["submitted", "promoted"]


async def test_a_loud_promotion_needs_its_event_and_a_quiet_one_has_none(conn, make):
    execution = await make.execution("delayed")
    with refused("WF290", message="a loud transition without its event"):
        await move(conn, execution.id, PROMOTE | {"version": "e.version + 1"})
    with refused("WF290", message="a transition with more than one event"):
        # the version stays, so the event is a second one of the submit
        await move(conn, execution.id, PROMOTE, EVENT | {"kind": "'promoted'::ff.event_kind"})


async def test_a_quiet_move_does_not_raise_the_version(db, conn, make):
    db.leave_broken("it waits for nothing, by hand")
    execution = await make.execution("waiting")
    blocked = {
        "eligibility": "'blocked_by_dependencies'",
        "blocking_reason": "'waiting_for_children'",
        "cause": "'apply_dependency'",
    }
    with refused("WF290", message="a quiet transition raised the version"):
        await move(conn, execution.id, blocked | {"version": "e.version + 1"}, EVENT)
    await move(conn, execution.id, blocked)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("e.version", "a transition with more than one event"),
        ("e.version + 1", "an event without a transition"),
        ("e.version - 1", "an event without a transition"),
    ],
)
async def test_an_event_alone_is_refused(conn, leased, version, message):
    with refused("WF290", message=message):
        await conn.execute(
            "insert into ff.event (partition_key, xid, execution_id, version, kind, namespace, "
            f"occurred_at) select {home()}, pg_current_xact_id(), e.execution_id, {version}, "
            "'claimed', e.namespace, e.transitioned_at from ff.execution e"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cause = 'resume'", "the cause changed without a transition"),
        ("outcome = 'failed'", "the outcome changed without a transition"),
        (
            "transitioned_at = transitioned_at + interval '1 s'",
            "transitioned_at changed without a transition",
        ),
        ("version = version + 1", "not in ff.transition"),
        ("execution_id = gen_random_uuid()", "the id of an execution changed"),
    ],
)
async def test_a_change_that_is_no_move_leaves_these_alone(conn, leased, change, message):
    with refused("WF290", message=message):
        await conn.execute(f"update ff.execution set {change}")


async def test_a_change_of_time_alone_is_no_move(conn, leased):
    await conn.execute(
        "update ff.execution set lease_expires_at = lease_expires_at + interval '1 min', "
        "mutated_at = mutated_at + interval '1 s'"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2"}, "the version was not raised by one"),
        ({"version": "0"}, "a loud transition did not raise the version"),
        ({"cause": "'replay'"}, "not in ff.transition"),
        ({"eligibility": "'blocked_by_route'"}, "not in ff.transition"),
        ({"attempt_state": "'none'"}, "not in ff.transition"),
        ({}, "a loud transition without its event"),
    ],
)
@pytest.mark.usefixtures("unchecked")
async def test_a_new_row_starts_as_a_submit_does(conn, engine, changes, message):
    route = await engine.register()
    columns = {
        "partition_key": str(home()),
        "execution_id": "gen_random_uuid()",
        "rank": "0",
        "route_id": str(route),
        "namespace": "'test'",
        "created_at": "ff.now()",
        "order_at": "ff.now()",
        "transitioned_at": "ff.now()",
        "mutated_at": "ff.now()",
        "version": "1",
        "phase": "'runnable'",
        "ownership": "'unowned'",
        "eligibility": "'eligible_now'",
        "blocking_reason": "'waiting_for_worker'",
        "outcome": "'none'",
        "attempt_state": "'pending_first_attempt'",
        "cause": "'submit'",
    } | changes
    with refused("WF290", message=message):
        await conn.execute(
            f"insert into ff.execution ({', '.join(columns)}) "
            f"values ({', '.join(columns.values())})"
        )
        # The witness of distributed tables looks at the end of the transaction.
        await conn.execute("set constraints all immediate")


async def test_one_bad_row_among_many_is_found(conn, engine, make):
    route = await engine.register()
    for _ in range(50):
        await engine.submit(route=route)
    with refused("WF290", message="not in ff.transition"):
        await conn.execute(
            "update ff.execution set eligibility = 'blocked_by_operator', cause = 'block', "
            "attempt_state = case when execution_id = (select max(execution_id::text)::uuid "
            "from ff.execution) then 'pending_replay_attempt' else attempt_state end"
        )


async def test_executions_that_have_not_ended_are_deleted_by_the_helper_only(conn, db, make):
    execution = await make.execution("retried")
    with refused("WF290", message="only what has ended is deleted"):
        await conn.execute("delete from ff.execution")
    await db.forget(execution.id)
    assert await conn.fetchval("select count(*) from ff.execution") == 0
    assert await conn.fetchval("select count(*) from ff.attempt") == 0


async def test_events_and_past_attempts_are_never_changed(conn, make):
    await make.execution("retried")
    with refused("WF290", message="rows of event are not updated"):
        await conn.execute("update ff.event set detail = '{}'")
    with refused("WF290", message="rows of attempt are not updated"):
        await conn.execute("update ff.attempt set attempt_reason = 'another'")


async def test_the_event_of_a_flow_needs_a_flow_that_was_just_cancelled(db, conn):
    flow = await make_flow(db, nodes=["a"])
    event = (
        "insert into ff.event (partition_key, xid, execution_id, version, kind, flow_id, "
        f"namespace, occurred_at) select {home()}, pg_current_xact_id(), $1, 1, "
        "'flow_cancel_requested', $1, 'test', ff.now()"
    )
    with refused("WF290", message="an event of no flow that was just cancelled"):
        await conn.execute(event, flow.id)
    await header(flow)
    with refused("WF290", message="an event of no flow that was just cancelled"):
        await conn.execute(event, flow.id)
