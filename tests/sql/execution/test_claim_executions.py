"""ff.claim_executions: who gets what, in which order, and what a lease looks like."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from support.database import home
from support.factories import TTL, Engine, Item, new_id, refused
from support.proofs import some_of


def ids(leases):
    return [lease.execution_id for lease in leases]


async def submit(engine, *items):
    answers = await engine.submit_many(items)
    assert {answer.word for answer in answers} == {"created"}
    return [answer.id for answer in answers]


# T9: a new attempt


async def test_a_claim_leases_and_starts_the_first_attempt(clock, engine):
    now = await clock.freeze()
    claim_id = uuid4()
    (id_,) = await submit(engine, Item(payload=b"[1]", encoding="json"))
    (lease,) = await engine.claim(claim_id=claim_id, worker="pool", instance="pool-7")
    assert lease.execution_id == id_
    assert lease.lease_id == lease.attempt_id == claim_id
    assert (lease.epoch, lease.attempt_index, lease.attempt_type) == (1, 0, "initial")
    assert (lease.claim_kind, lease.retry_count) == ("fresh", 0)
    assert (lease.namespace, lease.lane, lease.task) == ("test", "default", "tests.work")
    assert (lease.payload, lease.payload_encoding) == (b"[1]", "json")
    assert lease.lease_expires_at == now + TTL
    assert lease.attempt_deadline_at is lease.deadline_at is None

    row = await engine.row(id_)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "active",
        "leased",
        "not_applicable",
    )
    assert (row["blocking_reason"], row["outcome"], row["attempt_state"], row["cause"]) == (
        "none",
        "none",
        "running_attempt",
        "claim",
    )
    assert row["public_state"] == "active"
    assert (row["lease_id"], row["worker_id"], row["worker_instance_id"]) == (
        claim_id,
        "pool",
        "pool-7",
    )
    assert row["lease_expires_at"] == row["due_at"] == now + TTL
    assert row["started_at"] == row["attempt_started_at"] == row["transitioned_at"] == now
    assert (row["total_attempt_count"], row["epoch"], row["version"]) == (1, 1, 2)
    assert row["attempt_ended_as"] is row["last_lease_id"] is row["previous_attempt_index"] is None

    event = (await engine.events(id_))[1]
    assert (event["kind"], event["version"], event["occurred_at"]) == ("claimed", 2, now)
    assert (event["lease_id"], event["epoch"], event["attempt_index"]) == (claim_id, 1, 0)
    assert event["worker_instance_id"] == "pool-7"
    assert event["outcome"] is None
    assert await engine.attempts(id_) == []


async def test_an_empty_lane_gives_nothing_and_writes_nothing(engine):
    assert await engine.claim() == []
    await engine.register()
    before = await engine.snapshot()
    assert await engine.claim() == []
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    "state", ["leased", "delayed", "retry_delayed", "completed", "failed", "reclaim_delayed"]
)
async def test_what_is_active_delayed_or_ended_is_not_claimed(engine, make, state):
    await make.execution(state)
    before = await engine.snapshot()
    assert await engine.claim() == []
    assert await engine.snapshot() == before


async def test_a_payload_comes_from_the_row_or_from_the_body(engine):
    payloads = [b"", b"x" * 256, b"y" * 257, b"z" * 1024 * 1024, None]
    created = await submit(engine, *(Item(payload=payload) for payload in payloads))
    leases = {lease.execution_id: lease for lease in await engine.claim()}
    assert [leases[id_].payload for id_ in created] == payloads


async def test_deadlines_are_told_and_counted_from_the_claim(clock, engine):
    now = await clock.freeze()
    await submit(
        engine,
        Item(
            policy={"timeout_policy": {"attempt_timeout_ms": 90_000}},
            deadline_at=now + timedelta(hours=1),
        ),
    )
    await clock.advance(minutes=10)
    (lease,) = await engine.claim()
    assert lease.attempt_deadline_at == now + timedelta(minutes=11, seconds=30)
    assert lease.deadline_at == now + timedelta(hours=1)


async def test_a_claim_takes_what_is_there_up_to_its_limit(engine):
    await submit(engine, *[Item()] * 7)
    assert len(await engine.claim(3)) == 3
    assert len(await engine.claim(3)) == 3
    assert len(await engine.claim(3)) == 1
    assert len(await engine.claim(3)) == 0


async def test_a_claim_of_a_thousand(engine):
    await submit(engine, *[Item()] * 1000)
    leases = await engine.claim(1000)
    assert len(set(ids(leases))) == 1000


@pytest.mark.parametrize("ttl", [timedelta(seconds=1), timedelta(days=1)])
async def test_a_lease_lasts_as_long_as_was_asked(clock, engine, ttl):
    now = await clock.freeze()
    await engine.submit()
    assert (await engine.take(ttl=ttl)).lease_expires_at == now + ttl


async def test_time_never_goes_back_for_a_row(clock, engine):
    now = await clock.freeze()
    (id_,) = await submit(engine, Item())
    await clock.advance(hours=-1)
    lease = await engine.take(id_)
    row = await engine.row(id_)
    assert row["transitioned_at"] == row["started_at"] == now
    assert lease.lease_expires_at == now + TTL


# Order


async def test_higher_priority_then_older_then_smaller_id_goes_first(clock, engine):
    await clock.freeze()
    a, b, c, d = sorted(new_id() for _ in range(4))
    await submit(engine, Item(id=d, priority=5))
    await clock.advance(seconds=1)
    await submit(engine, Item(id=a, priority=1), Item(id=c, priority=5), Item(id=b, priority=5))
    assert ids(await engine.claim()) == [d, b, c, a]


@pytest.mark.parametrize("seed", some_of(range(4), turn=0))
@pytest.mark.parametrize("lanes", [1, 2, 7])
async def test_order_is_exact_over_many_routes(clock, engine, seed, lanes):
    rng = random.Random(seed)
    await clock.freeze()
    routes = [
        await engine.register(lane=f"l{n % lanes}", task=f"t{n}", capabilities=capabilities)
        for n in range(lanes)
        for capabilities in ("", "gpu")
    ]
    for _ in range(10):
        await submit(
            engine,
            *(
                Item(
                    id=UUID(int=rng.getrandbits(128)),
                    route=rng.choice(routes),
                    priority=rng.choice([0, 0, 0, 1, 9000]),
                )
                for _ in range(25)
            ),
        )
        await clock.advance(milliseconds=rng.choice([0, 1]))
    # some of them come back from workers that died, and keep their place
    for lease in rng.sample(await engine.claim(60, capabilities=["gpu"]), 30):
        await engine.release(lease)
    await clock.advance(minutes=1)
    await engine.expire()

    rows = sorted(
        await engine.rows(), key=lambda r: (r["rank"], r["created_at"], r["execution_id"])
    )
    expected = [row["execution_id"] for row in rows]
    while expected:
        limit = rng.randrange(1, 40)
        # in order, and never fewer than there are
        assert ids(await engine.claim(limit, capabilities=["gpu"])) == expected[:limit]
        del expected[:limit]


@pytest.mark.parametrize("seed", range(3))
async def test_the_first_lane_goes_first_among_equal_priorities(clock, engine, seed):
    rng = random.Random(seed)
    await clock.freeze()
    routes = {await engine.register(lane=lane, task=task): lane for lane in "abc" for task in "xyz"}
    for _ in range(5):
        await submit(
            engine,
            *(
                Item(route=rng.choice(list(routes)), priority=rng.choice([0, 1, 2]))
                for _ in range(30)
            ),
        )
        await clock.advance(milliseconds=1)

    def place(row):
        first = routes[row["route_id"]] != "b"
        return (row["rank"], first, row["created_at"], row["execution_id"])

    expected = [row["execution_id"] for row in sorted(await engine.rows(), key=place)]
    while expected:
        limit = rng.randrange(1, 30)
        assert ids(await engine.claim(limit, first_lane="b")) == expected[:limit]
        del expected[:limit]


async def test_lanes_can_take_turns(engine):
    a, b = await engine.register(lane="a"), await engine.register(lane="b")
    await submit(engine, *[Item(route=a)] * 6, *[Item(route=b)] * 2)
    turns = [(await engine.take(first_lane="ab"[n % 2])).lane for n in range(6)]
    assert turns == ["a", "b", "a", "b", "a", "a"]


async def test_an_unknown_first_lane_changes_nothing(engine):
    created = await submit(engine, *[Item()] * 3)
    assert ids(await engine.claim(first_lane="nowhere")) == created


async def test_a_floor_starts_behind_a_position(clock, engine):
    await clock.freeze()
    created = await submit(engine, *[Item(priority=5)] * 6)
    last = (await engine.claim(2))[-1]
    (late,) = await submit(engine, Item(priority=9))
    assert ids(await engine.claim(2, floor=last)) == created[2:4]
    assert ids(await engine.claim(2)) == [late, created[4]]
    assert ids(await engine.claim(2, floor=last)) == created[5:]
    assert await engine.claim(2, floor=last) == []


async def test_a_row_whose_lease_expired_keeps_its_place(clock, engine):
    await clock.freeze()
    (first,) = await submit(engine, Item())
    await engine.take(first)
    await clock.advance(seconds=1)
    (second,) = await submit(engine, Item())
    (important,) = await submit(engine, Item(priority=1))
    await clock.advance(TTL)
    await engine.expire()
    assert ids(await engine.claim()) == [important, first, second]


# Who covers what


async def test_a_worker_covers_its_lanes(engine):
    routes = {lane: await engine.register(lane=lane) for lane in ("a", "b", "c")}
    created = dict(
        zip(routes, await submit(engine, *(Item(route=r) for r in routes.values())), strict=True)
    )
    assert await engine.claim(lanes=["d"]) == []
    assert await engine.claim(lanes=[]) == []
    assert ids(await engine.claim(lanes=["a", "c", "d"])) == [created["a"], created["c"]]
    assert ids(await engine.claim(lanes=None)) == [created["b"]]


async def test_a_worker_covers_the_tasks_it_knows(engine):
    routes = {task: await engine.register(task=task) for task in ("a", "b", "c")}
    created = dict(
        zip(routes, await submit(engine, *(Item(route=r) for r in routes.values())), strict=True)
    )
    assert await engine.claim(tasks=["d"]) == []
    assert await engine.claim(tasks=[]) == []
    assert ids(await engine.claim(tasks=["b", "d"])) == [created["b"]]
    assert ids(await engine.claim(tasks=None)) == [created["a"], created["c"]]


async def test_a_worker_needs_all_required_capabilities(engine):
    cases = [
        ("", [], True),
        ("", ["gpu"], True),
        ("gpu", ["gpu"], True),
        ("gpu", ["cuda", "gpu", "x"], True),
        ("gpu,cuda", ["cuda", "gpu"], True),
        ("gpu", [], False),
        ("gpu", ["GPU"], False),
        ("gpu", ["gpu2"], False),
        ("gpu,cuda", ["gpu"], False),
        ("torch>=2.3", ["torch>=2.3"], True),
        ("torch>=2.3", ["torch>=2.4"], False),
        ("größe", ["größe"], True),
    ]
    for n, (required, offered, fits) in enumerate(cases):
        route = await engine.register(lane=f"l{n}", capabilities=required)
        (id_,) = await submit(engine, Item(route=route))
        leases = await engine.claim(lanes=[f"l{n}"], capabilities=offered)
        assert ids(leases) == ([id_] if fits else []), (required, offered)
        assert (await engine.row(id_))["public_state"] == ("active" if fits else "waiting")


async def test_an_unmatched_head_does_not_block_what_is_behind_it(engine):
    needy = await engine.register(capabilities="gpu")
    plain = await engine.register()
    await submit(engine, *[Item(route=needy, priority=9)] * 50)
    (id_,) = await submit(engine, Item(route=plain))
    assert ids(await engine.claim(1)) == [id_]


async def test_a_worker_covers_its_namespace(engine):
    other = engine.within("other")
    (mine,) = await submit(engine, Item())
    (theirs,) = await submit(other, Item())
    assert ids(await engine.claim()) == [mine]
    assert ids(await engine.within("third").claim()) == []
    assert ids(await engine.within(None).claim()) == [theirs]


@pytest.mark.parametrize(
    ("state", "worked"),
    [("active", True), ("draining", True), ("paused", False), ("disabled", False)],
)
async def test_the_state_of_the_lane_decides(db, engine, state, worked):
    (id_,) = await submit(engine, Item())
    await db.execute("update ff.lane set state = $1", state)
    before = await engine.snapshot()
    assert ids(await engine.claim()) == ([id_] if worked else [])
    if not worked:
        assert await engine.snapshot() == before
        await db.execute("update ff.lane set state = 'active'")
        assert ids(await engine.claim()) == [id_]


async def test_a_pause_ends_at_its_time(db, clock, engine):
    now = await clock.freeze()
    (id_,) = await submit(engine, Item())
    await db.execute(
        "update ff.lane set state = 'paused', resumes_at = $1", now + timedelta(minutes=5)
    )
    await clock.advance(minutes=4)
    assert await engine.claim() == []
    await clock.advance(minutes=1)
    assert ids(await engine.claim()) == [id_]


async def test_a_paused_lane_is_not_reclaimed_either(db, engine, make):
    execution = await make.execution("expired_lease")
    await db.execute("update ff.lane set state = 'paused'")
    assert await engine.claim() == []
    await db.execute("update ff.lane set state = 'draining'")
    assert ids(await engine.claim()) == [execution.id]


# T9 after a failure, T10, T21


async def test_a_retry_is_a_new_attempt_and_the_old_one_becomes_history(clock, engine, make):
    execution = await make.execution("retry_waiting", ttl=timedelta(minutes=1))
    first = execution.last_lease
    before = await engine.row(execution.id)
    now = await clock.freeze()
    lease = await engine.take(execution.id, instance="pool-2")
    assert (lease.claim_kind, lease.attempt_type, lease.attempt_index) == ("fresh", "retry", 1)
    assert (lease.epoch, lease.retry_count) == (first.epoch + 1, 1)
    assert lease.attempt_id == lease.lease_id != first.attempt_id

    row = await engine.row(execution.id)
    assert (row["total_attempt_count"], row["previous_attempt_index"]) == (2, 0)
    assert row["attempt_reason"] == "transient"
    assert row["started_at"] == before["started_at"]
    assert row["attempt_started_at"] == now
    for column in ("failure_class", "failure_reason", "last_lease_id", "attempt_ended_as"):
        assert row[column] is None, column

    (past,) = await engine.attempts(execution.id)
    assert (past["attempt_index"], past["attempt_id"], past["attempt_type"]) == (
        0,
        first.attempt_id,
        "initial",
    )
    assert (past["epoch"], past["ended_as"]) == (first.epoch, "ended_failure")
    assert (past["started_at"], past["ended_at"]) == (
        before["attempt_started_at"],
        before["attempt_ended_at"],
    )
    assert (past["failure_class"], past["failure_reason"]) == ("transient", "it broke")
    assert (past["last_lease_id"], past["last_lease_end"]) == (first.lease_id, "fail")
    assert past["last_lease_retry_at"] == before["last_lease_retry_at"]
    assert (past["last_worker_id"], past["last_worker_instance_id"]) == ("pool", "pool-1")
    assert past["previous_attempt_index"] is past["attempt_reason"] is None
    assert (await engine.kinds(execution.id))[-1] == "claimed"


async def test_the_category_of_the_failure_is_the_reason_of_the_retry(clock, engine):
    await engine.submit(policy={"retry_policy": {}})
    await engine.fail(await engine.take(), "timeout", category="upstream_slow")
    await clock.advance(minutes=1)
    await engine.promote()
    lease = await engine.take()
    assert (await engine.row(lease.execution_id))["attempt_reason"] == "upstream_slow"


async def test_an_interrupted_attempt_is_resumed(clock, engine, make):
    execution = await make.execution("interrupted")
    first = execution.last_lease
    before = await engine.row(execution.id)
    await clock.advance(minutes=10)
    lease = await engine.take(execution.id, instance="pool-2")
    assert (lease.claim_kind, lease.attempt_type) == ("resumed", "initial")
    assert (lease.attempt_index, lease.attempt_id) == (0, first.attempt_id)
    assert lease.epoch == first.epoch + 1
    assert lease.lease_id not in (first.lease_id, lease.attempt_id)
    assert lease.attempt_deadline_at is None

    row = await engine.row(execution.id)
    assert row["cause"] == "resume"
    assert (row["total_attempt_count"], row["retry_count"], row["reclaim_count"]) == (1, 0, 0)
    assert row["attempt_started_at"] == before["attempt_started_at"]
    assert row["attempt_paused_at"] is row["attempt_pause_cause"] is None
    assert (row["last_lease_id"], row["last_lease_end"]) == (first.lease_id, "release")
    assert await engine.attempts(execution.id) == []
    assert (await engine.kinds(execution.id))[-1] == "resumed"


async def test_a_resumed_attempt_has_the_time_it_had_left(clock, engine):
    now = await clock.freeze()
    await engine.submit(policy={"timeout_policy": {"attempt_timeout_ms": 60_000}})
    lease = await engine.take()
    await clock.advance(seconds=20)
    await engine.release(lease)
    await clock.advance(hours=1)
    again = await engine.take()
    assert again.attempt_deadline_at == now + timedelta(hours=1, seconds=60)
    await clock.advance(TTL)
    await engine.expire()
    anew = await engine.take()
    assert anew.attempt_deadline_at == now + timedelta(hours=1, seconds=20 + 30 + 60)


async def test_an_expired_lease_is_reclaimed_with_a_new_attempt(clock, engine, make):
    execution = await make.execution("expired_lease")
    first = execution.last_lease
    expired_at = (await engine.row(execution.id))["transitioned_at"]
    await clock.advance(minutes=1)
    now = await clock.freeze()
    lease = await engine.take(execution.id, worker="other", instance="other-1")
    assert (lease.claim_kind, lease.attempt_type, lease.attempt_index) == (
        "reclaimed",
        "reclaim",
        1,
    )
    assert lease.epoch == first.epoch + 1
    assert lease.attempt_id == lease.lease_id

    row = await engine.row(execution.id)
    assert (row["cause"], row["reclaim_count"], row["retry_count"]) == ("reclaim", 1, 0)
    assert (row["worker_id"], row["worker_instance_id"]) == ("other", "other-1")
    assert (row["previous_attempt_index"], row["attempt_reason"]) == (
        0,
        "lease_expired_reclaimable",
    )
    assert row["due_at"] == row["lease_expires_at"] == now + TTL

    (past,) = await engine.attempts(execution.id)
    assert (past["ended_as"], past["epoch"]) == ("interrupted_reclaimed", first.epoch)
    assert (past["last_lease_id"], past["last_lease_end"]) == (first.lease_id, "expire_lease")
    assert (past["last_worker_id"], past["last_worker_instance_id"]) == ("pool", "pool-1")
    assert expired_at <= past["ended_at"] <= now
    assert past["failure_class"] is None
    assert await engine.kinds(execution.id) == [
        "submitted",
        "claimed",
        "lease_expired",
        "reclaimed",
    ]


async def test_a_revoked_lease_is_reclaimed_with_a_new_attempt(engine, make):
    execution = await make.execution("leased")
    first = execution.last_lease
    await engine.revoke(execution.id)
    lease = await engine.take(execution.id)
    assert (lease.claim_kind, lease.attempt_type, lease.attempt_index) == (
        "reclaimed",
        "reclaim",
        1,
    )
    # one for the revocation, one for the new lease
    assert lease.epoch == first.epoch + 2
    row = await engine.row(execution.id)
    assert (row["reclaim_count"], row["attempt_reason"]) == (1, "lease_revoked")
    (past,) = await engine.attempts(execution.id)
    assert (past["ended_as"], past["epoch"]) == ("interrupted_reclaimed", first.epoch + 1)
    assert (past["last_lease_id"], past["last_lease_end"]) == (first.lease_id, "revoke_lease")


async def test_a_revoked_lease_counts_towards_the_limit_of_reclaims(engine, make):
    execution = await make.execution("leased", max_reclaims=0)
    await engine.revoke(execution.id)
    assert await engine.claim() == []
    row = await engine.row(execution.id)
    assert (row["public_state"], row["failure_category"]) == ("failed", "reclaim_cap_exceeded")
    assert (row["last_lease_id"], row["last_lease_end"]) == (
        execution.last_lease.lease_id,
        "revoke_lease",
    )


async def test_an_expired_lease_is_reclaimed_only_once_it_is_marked(clock, engine):
    await engine.submit()
    await engine.take()
    await clock.advance(TTL)
    assert await engine.claim() == []
    await engine.expire()
    assert len(await engine.claim()) == 1


async def test_epochs_rise_by_one_with_every_lease(clock, engine):
    await engine.submit(policy={"retry_policy": {"max_retries": 9}})
    epochs = []
    for _ in range(3):
        lease = await engine.take()
        epochs.append(lease.epoch)
        await engine.release(lease)
        lease = await engine.take()
        epochs.append(lease.epoch)
        await engine.fail(lease)
        await clock.advance(minutes=10)
        await engine.promote()
        lease = await engine.take()
        epochs.append(lease.epoch)
        await clock.advance(TTL)
        await engine.expire()
        await clock.advance(minutes=10)
        await engine.promote()
    assert epochs == list(range(1, 10))
    (row,) = await engine.rows()
    past = await engine.attempts(row["execution_id"])
    assert [attempt["epoch"] for attempt in past] == [2, 3, 5, 6, 8]
    assert [attempt["attempt_type"] for attempt in past] == [
        "initial",
        "retry",
        "reclaim",
        "retry",
        "reclaim",
    ]
    assert [attempt["previous_attempt_index"] for attempt in past] == [None, 0, 1, 2, 3]
    assert (row["retry_count"], row["reclaim_count"], row["total_attempt_count"]) == (3, 2, 6)


# T22: too many reclaims


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_an_execution_that_lost_its_lease_too_often_fails(clock, engine, limit):
    (id_,) = await submit(engine, Item(max_reclaims=limit))
    for n in range(limit + 1):
        lease = await engine.take(id_, instance=f"pool-{n}")
        await clock.advance(TTL)
        await engine.expire()
        await clock.advance(minutes=5)
        await engine.promote()
    now = await clock.freeze()
    assert await engine.claim() == []

    row = await engine.row(id_)
    assert (row["phase"], row["ownership"], row["outcome"], row["public_state"]) == (
        "terminal",
        "unowned",
        "failed",
        "failed",
    )
    assert (row["cause"], row["attempt_state"]) == ("exceed_reclaims", "attempt_terminal")
    assert (row["reclaim_count"], row["total_attempt_count"]) == (limit, limit + 1)
    assert (row["failure_class"], row["failure_category"]) == (
        "infra_crash",
        "reclaim_cap_exceeded",
    )
    assert str(limit) in row["failure_reason"]
    assert (row["attempt_ended_as"], row["attempt_ended_at"]) == ("interrupted_reclaimed", now)
    assert row["terminal_at"] == now
    assert (row["last_lease_id"], row["last_lease_end"]) == (lease.lease_id, "expire_lease")
    assert row["last_worker_instance_id"] == f"pool-{limit}"
    assert row["epoch"] == lease.epoch
    assert row["due_at"] is row["lease_id"] is row["attempt_deadline_at"] is None
    event = (await engine.events(id_))[-1]
    assert (event["kind"], event["outcome"]) == ("failed", "failed")
    assert event["attempt_index"] == limit


async def test_executions_over_the_limit_do_not_keep_others_from_being_claimed(clock, engine):
    over = await submit(engine, *[Item(max_reclaims=0, priority=9)] * 3)
    await engine.claim()
    await clock.advance(TTL)
    await engine.expire()
    created = await submit(engine, *[Item()] * 4)
    assert ids(await engine.claim(4)) == created
    assert {(await engine.row(id_))["public_state"] for id_ in over} == {"failed"}


async def test_many_executions_over_the_limit_are_ended_in_bounded_steps(clock, engine):
    """A claim leaves at most twice its limit locked; the rest is ended by those that follow."""
    await submit(engine, *[Item(max_reclaims=0, priority=9)] * 10)
    await engine.claim()
    await clock.advance(TTL)
    await engine.expire()
    created = await submit(engine, Item())
    claims = [await engine.claim(2) for _ in range(3)]
    assert [ids(leases) for leases in claims] == [[], [], created]


# Locked rows


async def test_what_others_have_locked_is_skipped_however_much_it_is(db, engine):
    created = await submit(engine, *[Item()] * 120)
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = any ($1) for no key update",
            created[:100],
        )
        assert ids(await engine.claim(5)) == created[100:105]
        assert ids(await engine.claim(50)) == created[105:]
        assert await engine.claim(5) == []
    assert ids(await engine.claim(200)) == created[:100]


async def test_every_other_row_locked(db, engine):
    created = await submit(engine, *[Item()] * 60)
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = any ($1) for no key update",
            created[::2],
        )
        assert ids(await engine.claim(20)) == created[1:41:2]
        assert ids(await engine.claim(20)) == created[41::2]


async def test_two_claims_at_once_share_no_row(db, engine):
    await submit(engine, *[Item()] * 40)
    other = await db.connect()
    async with other.transaction():
        theirs = await Engine(other).claim(15, instance="other-1")
        ours = await engine.claim(100)
    assert (len(theirs), len(ours)) == (15, 25)
    assert not set(ids(theirs)) & set(ids(ours))


# Repeats


async def test_a_repeated_claim_returns_the_same_leases(clock, engine):
    await submit(engine, *[Item(payload=b"x" * 300)] * 5)
    claim_id = uuid4()
    first = await engine.claim(3, claim_id=claim_id)
    before = await engine.snapshot()
    assert await engine.claim(3, claim_id=claim_id) == first
    assert await engine.claim(100, claim_id=claim_id, lanes=["elsewhere"]) == first
    assert await engine.snapshot() == before


async def test_a_repeated_claim_tells_the_kinds_again(clock, engine, make):
    states = ("waiting", "interrupted", "expired_lease", "retry_waiting")
    for state in states:
        await make.execution(state, ttl=timedelta(hours=1))
    claim_id = uuid4()
    first = await engine.claim(claim_id=claim_id)
    assert sorted(lease.claim_kind for lease in first) == ["fresh", "fresh", "reclaimed", "resumed"]
    assert await engine.claim(claim_id=claim_id) == first


async def test_a_repeated_claim_returns_only_what_is_still_held(clock, engine):
    await submit(engine, *[Item()] * 4)
    claim_id = uuid4()
    completed, released, expired, held = await engine.claim(claim_id=claim_id)
    await engine.complete(completed)
    await engine.release(released)
    await clock.advance(TTL / 2)
    await engine.renew(held)
    await clock.advance(TTL / 2)
    await engine.expire()
    assert ids(await engine.claim(claim_id=claim_id)) == [held.execution_id]
    assert expired.execution_id != held.execution_id


async def test_the_slot_of_a_process_holds_its_last_claim(db, engine):
    await submit(engine, *[Item()] * 4)
    await engine.claim(1, instance="a")
    last = await engine.claim(2, instance="a")
    await engine.claim(1, instance="b")
    slots = await db.fetch("select * from ff.claim_slot order by worker_instance_id")
    assert [slot["worker_instance_id"] for slot in slots] == ["a", "b"]
    assert slots[0]["claim_id"] == last[0].lease_id
    assert slots[0]["execution_ids"] == ids(last)


async def test_a_claim_that_found_nothing_may_find_something_when_repeated(engine):
    claim_id = uuid4()
    assert await engine.claim(claim_id=claim_id) == []
    (id_,) = await submit(engine, Item())
    assert ids(await engine.claim(claim_id=claim_id)) == [id_]


# WF001


async def test_a_claim_that_makes_no_sense_is_refused(engine):
    cases = [
        ("worker_id", {"worker": ""}),
        ("worker_id", {"worker": None}),
        ("worker_id", {"worker": "a b"}),
        ("worker_id", {"worker": "a\n"}),
        ("worker_id", {"worker": "x" * 257}),
        ("worker_instance_id", {"instance": ""}),
        ("worker_instance_id", {"instance": None}),
        ("worker_instance_id", {"instance": "a\x7f"}),
        ("worker_instance_id", {"instance": "é" * 129}),
        ("capabilities", {"capabilities": [""]}),
        ("capabilities", {"capabilities": ["a,b"]}),
        ("capabilities", {"capabilities": ["a b"]}),
        ("capabilities", {"capabilities": ["a\n"]}),
        ("capabilities", {"capabilities": [None]}),
        ("capabilities", {"capabilities": ["a", None]}),
        ("capabilities", {"capabilities": [f"c{n}" for n in range(257)]}),
        ("capabilities", {"capabilities": ["x" * 4097]}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 1001}),
        ("limit", {"limit": None}),
        ("lease_ttl", {"ttl": None}),
        ("lease_ttl", {"ttl": timedelta(milliseconds=999)}),
        ("lease_ttl", {"ttl": timedelta(days=1, microseconds=1)}),
    ]
    await submit(engine, Item())
    before = await engine.snapshot()
    for field, arguments in cases:
        with refused("WF001", message="invalid_input", field=field):
            await engine.claim(**arguments)
    assert await engine.snapshot() == before


async def test_a_claim_needs_an_id_a_list_of_capabilities_and_a_possible_floor(db, engine):
    call = (
        f"select ff.claim_executions(p_partition_key => '{home()}', p_namespace => 'test', "
        "p_worker_id => 'a', p_worker_instance_id => 'a', p_claim_id => $1, p_lanes => null, "
        "p_tasks => null, p_capabilities => $2::text[], p_limit => 1, p_lease_ttl => '30 s', "
        "p_floor_rank => $3)"
    )
    with refused("WF001", field="claim_id"):
        await db.execute(call, None, [], None)
    with refused("WF001", field="capabilities"):
        await db.execute(call, uuid4(), None, None)
    for rank in (-32768, -1, 9001, 32767):
        with refused("WF001", field="floor_rank"):
            await db.execute(call, uuid4(), [], rank)


RETRIES = {"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def test_the_epoch_rises_over_attempts_and_never_starts_again(engine, clock):
    """Retry, resume, reclaim, revoke, cancel and replay: one counter for the execution."""
    submitted = await engine.submit(policy=RETRIES)
    epochs = []

    async def take():
        await engine.promote()
        lease = await engine.take(submitted.id)
        epochs.append(lease.epoch)
        return lease

    await engine.fail(await take())
    await engine.release(await take())
    await take()
    await clock.advance(TTL)
    await engine.expire()
    await take()
    await engine.revoke(submitted.id)
    await take()
    await engine.cancel(submitted.id)
    await engine.replay(submitted.id)
    await engine.complete(await take())
    assert epochs == [1, 2, 3, 4, 6, 8]
    assert (await engine.row(submitted.id))["attempt_index"] == 4
