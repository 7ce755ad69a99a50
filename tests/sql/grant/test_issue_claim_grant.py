"""ff.issue_claim_grant: one execution promised to one worker for a moment, and nothing else."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

import pytest

from support.database import home
from support.factories import Item, refused

SECOND = timedelta(seconds=1)
TEN = timedelta(seconds=10)


async def unchanged(engine, code, call, **detail):
    """The call is refused, and nothing is stored that was not there before."""
    before = await engine.snapshot()
    with refused(code, **detail):
        await call
    assert await engine.snapshot() == before


async def test_a_waiting_execution_is_granted_and_does_not_change(clock, engine, make):
    now = await clock.freeze()
    execution = await make.execution("waiting")
    before = (await engine.row(execution.id), await engine.events())
    grant = await engine.grant(execution.id, ttl=TEN)
    assert (grant.word, grant.kind, grant.expires_at) == ("granted", "claim", now + TEN)
    assert (await engine.row(execution.id), await engine.events()) == before
    (row,) = await engine.grants()
    assert (row["execution_id"], row["kind"]) == (execution.id, "claim")
    assert (row["worker_id"], row["worker_instance_id"]) == ("pool", "pool-1")
    assert (row["issued_at"], row["expires_at"]) == (now, now + TEN)


async def test_the_key_is_not_stored_only_its_hash(engine, make, conn):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id)
    (row,) = await engine.grants()
    assert row["key_hash"] == hashlib.sha256(grant.key).digest()
    stored = await conn.fetchval('select string_agg(g::text, $1) from ff."grant" g', "")
    assert grant.key.hex() not in stored


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("waiting", "claim"),
        ("retry_waiting", "claim"),
        ("replayed", "claim"),
        ("interrupted", "resume"),
    ],
)
async def test_the_kind_says_how_the_execution_is_to_be_claimed(engine, make, state, kind):
    execution = await make.execution(state)
    assert (await engine.grant(execution.id)).kind == kind


@pytest.mark.parametrize(
    "state",
    [
        "delayed",
        "retry_delayed",
        "blocked",
        "held",
        "leased",
        "expired_lease",
        "revoked",
        "completed",
        "failed",
        "cancelled",
    ],
)
async def test_only_what_waits_for_a_worker_is_granted(engine, make, state):
    execution = await make.execution(state)
    await unchanged(engine, "WF205", engine.grant(execution.id), message="not_eligible")


async def test_a_second_grant_is_refused_while_the_first_lives(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("waiting")
    await engine.grant(execution.id, ttl=TEN)
    await clock.advance(TEN - timedelta(milliseconds=1))
    for worker in ("pool", "other"):
        call = engine.grant(execution.id, worker=worker)
        await unchanged(engine, "WF405", call, message="grant_exists", worker_id="pool")


async def test_a_grant_is_over_at_its_expiry_and_can_be_replaced(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("waiting")
    first = await engine.grant(execution.id, ttl=TEN)
    now = await clock.advance(TEN)
    second = await engine.grant(execution.id, worker="other", instance="other-1", ttl=SECOND)
    assert second.expires_at == now + SECOND
    (row,) = await engine.grants()
    assert (row["worker_id"], row["worker_instance_id"]) == ("other", "other-1")
    assert (row["issued_at"], row["expires_at"]) == (now, now + SECOND)
    with refused("WF406"):
        await engine.use(first)
    assert (await engine.use(second, worker="other")).execution_id == execution.id


async def test_the_same_key_gets_the_same_answer(clock, engine, make):
    execution = await make.execution("waiting")
    first = await engine.grant(execution.id)
    before = await engine.snapshot()
    await clock.advance(SECOND)
    assert await engine.grant(execution.id, key=first.key, ttl=timedelta(minutes=1)) == first
    assert await engine.snapshot() == before


async def test_the_same_key_for_another_worker_is_another_grant(engine, make):
    execution = await make.execution("waiting")
    first = await engine.grant(execution.id)
    call = engine.grant(execution.id, key=first.key, worker="other")
    await unchanged(engine, "WF405", call)


async def test_a_worker_that_lacks_something_is_told_what(engine, make):
    route = await engine.register(capabilities="zip,gpu,tls")
    execution = await make.execution("waiting", route=route)
    call = engine.grant(execution.id, capabilities=["tls"])
    await unchanged(
        engine,
        "WF002",
        call,
        message="capability_mismatch",
        field="capabilities",
        missing="gpu,zip",
    )
    grant = await engine.grant(execution.id, capabilities=["more", "zip", "tls", "gpu"])
    assert grant.word == "granted"


@pytest.mark.parametrize("ttl", [timedelta(milliseconds=1), timedelta(minutes=1)])
async def test_the_shortest_and_the_longest_grant(engine, make, ttl):
    execution = await make.execution("waiting")
    assert (await engine.grant(execution.id, ttl=ttl)).word == "granted"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("grant_ttl", {"ttl": None}),
        ("grant_ttl", {"ttl": timedelta()}),
        ("grant_ttl", {"ttl": timedelta(microseconds=999)}),
        ("grant_ttl", {"ttl": timedelta(minutes=1, microseconds=1)}),
        ("key", {"key": b""}),
        ("key", {"key": b"x" * 31}),
        ("key", {"key": b"x" * 33}),
        ("worker_id", {"worker": None}),
        ("worker_id", {"worker": ""}),
        ("worker_id", {"worker": "a b"}),
        ("worker_instance_id", {"instance": None}),
        ("worker_instance_id", {"instance": "x" * 257}),
        ("capabilities", {"capabilities": None}),
        ("capabilities", {"capabilities": [None]}),
        ("capabilities", {"capabilities": ["a,b"]}),
    ],
)
@pytest.mark.parametrize("function", ["issue_claim_grant", "issue_reclaim_grant"])
async def test_what_makes_no_sense_is_refused_by_name(engine, make, function, field, arguments):
    execution = await make.execution("waiting")
    call = engine.grant(execution.id, function=function, **arguments)
    await unchanged(engine, "WF001", call, message="invalid_input", field=field)


@pytest.mark.parametrize("function", ["issue_claim_grant", "issue_reclaim_grant"])
async def test_null_is_neither_a_key_nor_an_execution(engine, make, conn, function):
    execution = await make.execution("waiting")
    with refused("WF001", field="execution_id"):
        await engine.grant(None, function=function)
    with refused("WF001", field="key"):
        await conn.fetch(
            f"select * from ff.{function}('{home()}', null, $1, null, 'w', 'w-1', '{{}}', '1 s')",
            execution.id,
        )
    assert await engine.grants() == []


async def test_an_execution_that_is_not_there_is_not_found(engine, make):
    execution = await make.execution("waiting")
    await make.execution("waiting")
    for other, id_ in (
        (engine, execution.id.__class__(int=1)),
        (engine.within("another"), execution.id),
    ):
        await unchanged(engine, "WF301", other.grant(id_), message="not_found")
        await unchanged(engine, "WF301", other.grant_reclaim(id_), message="not_found")
    assert (await engine.within(None).grant(execution.id)).word == "granted"


@pytest.mark.parametrize("state", ["paused", "disabled"])
async def test_a_lane_that_is_not_worked_stops_grants_as_well(engine, make, conn, state):
    execution = await make.execution("waiting", lane="slow")
    grant = await engine.grant(execution.id)
    other = await make.execution("waiting", lane="slow")
    await conn.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => 'slow', p_state => $1)", state
    )
    with refused("WF207", lane="slow", lane_state=state):
        await engine.use(grant)
    with refused("WF207", lane="slow", lane_state=state):
        await engine.grant(other.id)
    await conn.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => 'slow', p_state => 'active')"
    )
    assert (await engine.use(grant)).execution_id == execution.id


async def test_a_key_is_good_for_its_own_execution_only(engine):
    one, two = await engine.submit_many([Item()] * 2)
    key = secrets.token_bytes(32)
    await engine.grant(one.id, key=key)
    other = await engine.grant(two.id)
    with refused("WF406"):
        await engine.use(type(other)(**{**_fields(other), "key": key}))


def _fields(grant):
    return {name: getattr(grant, name) for name in grant.__slots__}
