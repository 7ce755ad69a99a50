"""A bound login that knows the ids, the tokens or the names of another namespace's waits reaches
none of them; and no sender can make an execution hold more than its limits."""

from __future__ import annotations

import pytest

from support.factories import Engine, new_id, refused

from .conftest import OURS


@pytest.fixture
async def ours(login) -> Engine:
    return Engine(await login("bound"), namespace=OURS)


async def suspended(engine: Engine):
    """A suspended execution of `engine`, with a waitpoint: its lease, the waitpoint, the token."""
    lane = f"lane-{new_id()}"
    execution = await engine.submit(route=await engine.register(lane=lane))
    lease = await engine.take(execution.id, lanes=[lane])
    waitpoint, token = await engine.waitpoint(lease, "payment")
    await engine.ask(lease, signal="approve")
    assert (await engine.suspend(lease, "approve")).word == "suspended"
    return lease, waitpoint, token


async def facts(keeper, id):
    return await keeper.fetchrow(
        "select e.version, e.phase, (select count(*) from ff.signal g where g.execution_id = $1) "
        "as signals, (select count(*) from ff.waitpoint w where w.execution_id = $1 and "
        "w.closed_at is null) as waitpoints from ff.execution e where e.execution_id = $1",
        id,
    )


async def test_a_token_answers_no_other_execution_by_a_list_that_counts_from_zero(ours, keeper):
    """The token would be judged by the second execution, and the first one get the answer."""
    asked, _, _ = await suspended(ours)
    mine, _, token = await suspended(ours)
    before = await facts(keeper, asked.execution_id)
    with refused("WF001", field="execution_ids"):
        await ours.connection.fetch(
            "select * from ff.deliver_signals(0::smallint, $1, ('[0:1]={' || $2 || ','"
            " || $3 || '}')::uuid[], array[$4, $5]::uuid[], array[null, 'x'],"
            " array[null, null]::bytea[], p_tokens => array[$6, null])",
            OURS, str(asked.execution_id), str(mine.execution_id), new_id(), new_id(), token,
        )  # fmt: skip
    assert await facts(keeper, asked.execution_id) == before


async def test_a_foreign_execution_gets_no_signal_by_name_nor_by_token(ours, theirs, keeper):
    lease, _, token = await suspended(theirs)
    before = await facts(keeper, lease.execution_id)
    for name in ("approve", "payment"):
        answer = await ours.signal(lease.execution_id, name)
        assert answer.word == "not_found"
    (answer,) = await ours.signal_many(
        [{"execution_id": lease.execution_id, "name": None, "payload": b"1", "token": token}]
    )
    assert answer.word == "invalid_token"
    # The answers are those for an execution that does not exist.
    assert (await ours.signal(new_id(), "approve")).word == "not_found"
    assert await facts(keeper, lease.execution_id) == before


@pytest.mark.parametrize(
    "call",
    [
        "ff.resume_execution(0::smallint, $1, $2)",
        "ff.list_pending_waitpoints(0::smallint, $1, $2)",
        "ff.close_waitpoint(0::smallint, $1, $2, $3)",
        "ff.observe_signals(0::smallint, $1, $2, $3, 1, $3)",
    ],
)
async def test_a_foreign_suspension_is_not_found(ours, theirs, keeper, call):
    lease, waitpoint, _ = await suspended(theirs)
    before = await facts(keeper, lease.execution_id)
    with refused("WF301"):
        await ours.connection.fetch(
            f"select x.* from {call} x where $3::uuid is not null",
            OURS,
            lease.execution_id,
            waitpoint,
        )
    assert await facts(keeper, lease.execution_id) == before


async def test_foreign_signals_and_suspensions_are_in_no_list(ours, theirs):
    lease, _, _ = await suspended(theirs)
    await theirs.signal(lease.execution_id, "secret", b'"card 4111"')
    assert await ours.signals(lease.execution_id) == []
    listed = await ours.list_suspended()
    assert lease.execution_id not in {row["execution_id"] for row in listed}


async def approval(engine: Engine):
    """An execution of `engine` that asks ada: its lease and her token."""
    lane = f"lane-{new_id()}"
    execution = await engine.submit(route=await engine.register(lane=lane))
    lease = await engine.take(execution.id, lanes=[lane])
    tokens = await engine.connection.fetchval(
        "select tokens from ff.create_approval(0::smallint, $1, $2, $3, $4, $5, $6, $7, $8, "
        "'Pay 4111?', null, null, 1, 1)",
        engine.namespace,
        lease.execution_id,
        lease.lease_id,
        lease.epoch,
        lease.attempt_id,
        new_id(),
        [new_id()],
        ["ada"],
    )
    return lease, tokens[0]


async def test_a_foreign_approval_is_neither_seen_nor_answered(ours, theirs, keeper):
    lease, token = await approval(theirs)
    before = await facts(keeper, lease.execution_id)
    for id in (None, lease.execution_id):
        rows = await ours.connection.fetch(
            "select * from ff.list_approvals(0::smallint, $1, $2)", OURS, id
        )
        assert rows == []
    (answer,) = await ours.signal_many(
        [{"execution_id": lease.execution_id, "name": "approved", "token": token}]
    )
    assert answer.word == "invalid_token"
    for connection in (ours.connection, theirs.connection):
        # Only an operator answers without a token.
        with refused("42501"):
            await connection.fetch(
                "select * from ff.deliver_approval_signal(0::smallint, $1, $2, 'approved', 'ada', "
                "$3)",
                theirs.namespace,
                lease.execution_id,
                new_id(),
            )
    rows = await ours.connection.fetch("select * from ff.read_signals(0::smallint, $1)", OURS)
    assert lease.execution_id not in {row["execution_id"] for row in rows}
    assert await facts(keeper, lease.execution_id) == before


async def test_a_holder_of_another_lease_asks_no_approvers_here(ours, theirs):
    lease, _ = await approval(theirs)
    row = await ours.connection.fetchrow(
        "select * from ff.create_approval(0::smallint, $1, $2, $3, $4, $5, $6, $7, $8, '?', null, "
        "null, 1, 1)",
        OURS,
        lease.execution_id,
        lease.lease_id,
        lease.epoch,
        lease.attempt_id,
        new_id(),
        [new_id()],
        ["eve"],
    )
    assert (row["outcome"], row["tokens"]) == ("not_found", None)


async def test_an_application_reads_no_token_and_no_key(ours, theirs):
    lease, waitpoint, _ = await suspended(theirs)
    for call, arguments in (
        (
            "ff.read_waitpoint_token(0::smallint, $1, $2, $3)",
            (theirs.namespace, lease.execution_id, waitpoint),
        ),
        ("ff.list_hmac_keys()", ()),
        ("ff.rotate_hmac_key('mine')", ()),
        ("ff.count_waitpoints(0::smallint, $1)", (theirs.namespace,)),
    ):
        for connection in (ours.connection, theirs.connection):
            with refused("42501"):
                await connection.fetch(f"select * from {call}", *arguments)
    for table in ("hmac_key", "signal", "waitpoint", "suspension", "signal_inbox", "approval"):
        with refused("42501"):
            await ours.connection.fetch(f"select * from ff.{table}")
    with refused("42501"):
        await ours.connection.fetch(
            "select ff._sign_waitpoint('k1', 0::smallint, $1, $2)", lease.execution_id, waitpoint
        )


async def test_a_token_of_ours_answers_no_other_execution(ours, theirs):
    _, _, token = await suspended(ours)
    mine = await ours.submit()
    foreign, _, _ = await suspended(theirs)
    for id in (mine.id, foreign.execution_id):
        (answer,) = await ours.signal_many(
            [{"execution_id": id, "name": None, "payload": b"1", "token": token}]
        )
        assert answer.word == "invalid_token"


@pytest.mark.parametrize(
    "name",
    ["", "a\nb", "\x7f", "x" * 257, "'; drop table ff.signal; --", "ключ", "{}", "%s", "..", "🙂"],
)
async def test_a_hostile_name_is_refused_or_only_a_name(ours, name):
    lease, _, _ = await suspended(ours)
    answer = await ours.signal(lease.execution_id, name)
    if name in ("", "a\nb", "\x7f") or len(name) > 256:
        assert (answer.word, answer.detail["field"]) == ("invalid", "name")
    else:
        assert answer.word == "accepted"
        assert [row["name"] for row in await ours.signals(lease.execution_id)] == [name]


async def test_a_value_of_64_kib_is_the_largest(ours):
    execution = await ours.submit()
    assert (await ours.signal(execution.id, "note", b"x" * 65536)).word == "accepted"
    answer = await ours.signal(execution.id, "note", b"x" * 65537)
    assert answer.word == "payload_too_large"
    assert answer.detail == {"bytes": 65537, "limit": 65536}


async def test_the_holder_of_a_token_cannot_pass_as_an_operator(ours, keeper):
    """By a token the engine says what the source is. Otherwise the holder could use up the answer
    of an operator, or be counted as several sources."""
    lease, _, token = await suspended(ours)
    (answer,) = await ours.signal_many(
        [
            {
                "execution_id": lease.execution_id,
                "name": None,
                "payload": b"1",
                "token": token,
                "source_type": "operator",
                "source_identity": "ann",
            }
        ]
    )
    assert answer.word == "accepted"
    assert await keeper.fetchval(
        "select source_type from ff.signal where execution_id = $1", lease.execution_id
    ) == "token"  # fmt: skip
