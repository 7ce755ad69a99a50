"""Waitpoints, their tokens, and the keys that sign them."""

from __future__ import annotations

import asyncio
import hmac
import random
import string
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from support.database import home
from support.factories import new_id, refused

HOUR = timedelta(hours=1)
SECRET = "ab" * 32
VERIFY = (
    "select v.word from unnest($1::text[]) u(t) cross join lateral ff._verify_token(t, ff.now()) v"
)


async def by_token(engine, id, token, payload=b"1", **given):
    (answer,) = await engine.signal_many(
        [{"execution_id": id, "name": None, "payload": payload, "token": token, **given}]
    )
    return answer


async def rotate(db, kid, grace=timedelta(days=1), secret=None):
    return await db.fetchrow("select * from ff.rotate_hmac_key($1, $2, $3)", kid, grace, secret)


def data_of(token):
    body = token.removeprefix("ffw_")
    return urlsafe_b64decode(body + "=" * (-len(body) % 4))


def token_of(data):
    return "ffw_" + urlsafe_b64encode(data).decode().rstrip("=")


def wait_for(id, **given):
    return {"name": f"wait {id}", "condition": {"waitpoint": str(id)}, **given}


async def test_a_token_is_the_whole_address_signed(engine, make, db):
    await db.execute("select ff.seed_hmac_key('seeded', $1)", SECRET)
    execution = await make.execution("leased")
    id, token = await engine.waitpoint(execution.lease)
    data = data_of(token)
    body = b"\x01\x06seeded" + home().to_bytes(2) + execution.id.bytes + id.bytes
    assert data == body + hmac.digest(bytes.fromhex(SECRET), body, "sha256")
    assert token == token_of(data)


@pytest.mark.parametrize(
    ("key", "message", "digest"),
    [
        (b"\x0b" * 20, b"Hi There",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (b"Jefe", b"what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (b"\xaa" * 131, b"Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"),
    ],
)  # fmt: skip
async def test_the_digest_is_that_of_rfc_4231(db, key, message, digest):
    found = await db.fetchval(
        "select sha256(b.outer_block || sha256(b.inner_block || $2::bytea)) "
        "from ff._hmac_blocks($1::bytea) b",
        key,
        message,
    )
    assert found.hex() == digest


async def test_the_first_key_is_made_by_the_migration(db):
    (key,) = await db.fetch("select * from ff.list_hmac_keys()")
    assert (key["kid"], key["is_active"], key["expires_at"]) == ("k1", True, None)


async def test_a_signal_to_the_token_satisfies_the_wait(engine, make):
    execution = await make.execution("leased", lane="w")
    id, token = await engine.waitpoint(execution.lease)
    wait = wait_for(id)
    assert (await engine.ask(execution.lease, **wait)).word == "open"
    await engine.suspend(execution.lease, wait["name"])
    assert (await by_token(engine, execution.id, token, b"7")).effect == "woken"
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, **wait, take=True)).value == b"7"
    (signal,) = await engine.signals(execution.id)
    assert signal["name"] == "payment"


async def test_a_signal_to_a_pending_waitpoint_is_kept_for_the_wait(engine, make):
    execution = await make.execution("leased")
    id, token = await engine.waitpoint(execution.lease)
    assert (await by_token(engine, execution.id, token)).effect == "buffered"
    answer = await engine.ask(execution.lease, **wait_for(id))
    assert answer.word == "ready"
    suspended = await engine.suspend(execution.lease, wait_for(id)["name"])
    assert suspended.word == "already_satisfied"
    assert (await engine.row(execution.id))["public_state"] == "active"


async def test_a_signal_by_name_reaches_the_open_waitpoint_of_that_name(engine, make):
    execution = await make.execution("leased")
    id, _ = await engine.waitpoint(execution.lease, "payment")
    await engine.signal(execution.id, "payment", b"by name")
    assert (await engine.ask(execution.lease, **wait_for(id), take=True)).value == b"by name"
    # With the waitpoint closed, the next one is kept for a wait by name.
    await engine.signal(execution.id, "payment", b"later")
    taken = await engine.ask(execution.lease, "payment", position=1, take=True)
    assert taken.value == b"later"


async def test_a_signal_by_name_is_for_whichever_wait_asks_first(engine, make, clock):
    """It was bound to the waitpoint of that name, also to one that nobody would ever wait for."""
    execution = await make.execution("leased", ttl=HOUR * 5)
    never, _ = await engine.waitpoint(execution.lease, expires_in=HOUR)
    later, _ = await engine.waitpoint(execution.lease)
    for payload in (b"1", b"2", b"3"):
        await engine.signal(execution.id, "payment", payload)
    assert (await engine.ask(execution.lease, "payment", take=True)).value == b"1"
    await clock.advance(hours=1)
    assert (await engine._tick("ff.expire_waitpoints", 10))[0] == 1
    dead = await engine.ask(execution.lease, **wait_for(never), position=1, take=True)
    assert dead.taken_as == "timeout"
    assert (
        await engine.ask(execution.lease, **wait_for(later), position=2, take=True)
    ).value == b"2"
    taken = await engine.ask(execution.lease, "payment", 1, position=3, take=True)
    assert taken.value == b"3"


async def test_a_signal_by_name_answers_one_of_several_waitpoints(engine, make, clock):
    execution = await make.execution("leased")
    points = []
    for _ in range(3):
        points.append((await engine.waitpoint(execution.lease, "vote"))[0])
        await clock.advance(seconds=1)
    leaves = [{"waitpoint": str(id)} for id in points]
    conditions = {
        "all": {"every": leaves},
        "two": {"at_least": 2, "of": leaves, "distinct": "waitpoints"},
    }

    async def words():
        asked = [
            await engine.ask(execution.lease, name, condition=one, position=n)
            for n, (name, one) in enumerate(conditions.items())
        ]
        return [one.word for one in asked]

    await engine.signal(execution.id, "vote", b"1")
    assert await words() == ["open", "open"]
    await clock.advance(seconds=1)
    await engine.signal(execution.id, "vote", b"2")
    assert await words() == ["open", "ready"]
    await clock.advance(seconds=1)
    await engine.signal(execution.id, "vote", b"3")
    taken = await engine.ask(execution.lease, "all", condition=conditions["all"], take=True)
    assert len(taken.signal_ids) == 3
    rows = await engine.signals(execution.id)
    assert [row["waitpoint_id"] for row in rows] == points


async def test_a_signal_by_name_does_not_lose_its_key_to_the_waitpoint_it_answers(engine, make):
    execution = await make.execution("leased")
    id, _ = await engine.waitpoint(execution.lease)
    first = await engine.signal(execution.id, "payment", dedup_key="k")
    assert (await engine.ask(execution.lease, **wait_for(id), take=True)).word == "taken"
    again = await engine.signal(execution.id, "payment", dedup_key="k")
    assert (again.word, again.signal_id) == ("duplicate", first.signal_id)


async def test_a_second_answer_is_spent_with_the_first(engine, make):
    """A replay from the wait asks again; the answer that was left would have been taken at once."""
    execution = await make.execution("leased", lane="w")
    given = {"step_name": "made", "step_occurrence": 0}
    id, token = await engine.waitpoint(execution.lease, **given)
    await engine.record(execution.lease, name="made")
    for payload in (b"1", b"2"):
        await by_token(engine, execution.id, token, payload)
    wait = wait_for(id, position=1)
    assert (await engine.ask(execution.lease, **wait, take=True)).value == b"1"
    await engine.complete(execution.lease)
    await engine.replay(execution.id, from_step=wait["name"])
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, **wait, take=True)).word == "open"
    await by_token(engine, execution.id, token, b"3")
    assert (await engine.ask(lease, **wait, take=True)).value == b"3"


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_replay_from_a_later_wait_leaves_an_answered_waitpoint_closed(
    engine, make, is_held
):
    """Its token was accepted again, though the answer that the first wait took was kept."""
    execution = await make.execution("leased", lane="w")
    given = {"step_name": "made", "step_occurrence": 0}
    id, token = await engine.waitpoint(execution.lease, **given)
    await engine.record(execution.lease, name="made")
    await by_token(engine, execution.id, token, b"1")
    first = wait_for(id, position=1, take=True)
    later = first | {"name": "later", "position": 2}
    assert (await engine.ask(execution.lease, **first)).value == b"1"
    assert (await engine.ask(execution.lease, **later)).taken_as == "timeout"
    if is_held:
        await engine.hold(execution.lease, "why")
    else:
        await engine.complete(execution.lease)
    await engine.replay(execution.id, from_step="later")
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await by_token(engine, execution.id, token, b"2")).word == "waitpoint_closed"
    assert (await engine.ask(lease, **first)).value == b"1"
    assert (await engine.ask(lease, **later)).taken_as == "timeout"


async def test_a_retry_after_a_replay_asks_the_holder_of_the_token_again(engine, make, clock):
    """The answer that the replay had spent kept the waitpoint closed after the next timeout."""
    execution = await make.execution("leased", lane="w", policy={"retry_policy": {}})
    given = {"step_name": "made", "step_occurrence": 0}
    id, token = await engine.waitpoint(execution.lease, **given)
    await engine.record(execution.lease, name="made")
    await by_token(engine, execution.id, token, b"1")
    wait = wait_for(id, position=1, timeout=timedelta(seconds=5), take=True)
    await engine.ask(execution.lease, **wait)
    await engine.complete(execution.lease)
    await engine.replay(execution.id, from_step=wait["name"])
    lease = await engine.take(execution.id, lanes=["w"])
    await engine.ask(lease, **wait)
    await clock.advance(seconds=5)
    assert (await engine.ask(lease, **wait)).taken_as == "timeout"
    assert (await engine.fail(lease, "transient")).word == "retry_scheduled"
    await engine.retry(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, **wait)).word == "open"
    assert (await by_token(engine, execution.id, token, b"2")).word == "accepted"
    assert (await engine.ask(lease, **wait)).value == b"2"


async def test_waitpoints_of_one_key_do_not_share_their_signals(engine, make):
    execution = await make.execution("leased")
    one, token = await engine.waitpoint(execution.lease)
    for payload in (b"1", b"2"):
        await by_token(engine, execution.id, token, payload)
    assert (await engine.ask(execution.lease, **wait_for(one), take=True)).value == b"1"
    two, _ = await engine.waitpoint(execution.lease)
    assert (await engine.ask(execution.lease, **wait_for(two), position=1)).word == "open"


async def test_a_wait_for_the_waitpoint_of_another_execution_is_refused(engine, make):
    one, two = await make.execution("leased"), await make.execution("leased")
    id, token = await engine.waitpoint(one.lease)
    own, _ = await engine.waitpoint(two.lease)
    foreign = {"every": [{"waitpoint": str(own)}, {"waitpoint": str(id)}]}
    for condition in (foreign, wait_for(id)["condition"], wait_for(uuid4())["condition"]):
        answer = await engine.ask(two.lease, "w", condition=condition)
        assert (answer.word, answer.detail["field"]) == ("invalid", "condition")
    assert await engine.steps(two.id) == []
    assert (await by_token(engine, one.id, token)).word == "accepted"


async def test_an_answer_after_an_earlier_resume_wakes_nobody_and_ends_nothing(engine, make):
    """The suspension that was ended before has nothing to do with a waitpoint made since."""
    execution = await make.execution("suspended", lane="w")
    await engine.signal(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    _, token = await engine.waitpoint(lease)
    before = await engine.row(execution.id)
    assert (await by_token(engine, execution.id, token)).effect == "buffered"
    assert await engine.row(execution.id) == before
    assert (await engine.complete(lease)).word == "completed"


async def test_the_token_is_dead_when_the_answer_is_taken(engine, make):
    execution = await make.execution("leased")
    id, token = await engine.waitpoint(execution.lease)
    await by_token(engine, execution.id, token)
    await engine.ask(execution.lease, **wait_for(id), take=True)
    assert (await by_token(engine, execution.id, token)).word == "waitpoint_closed"
    assert await engine.waitpoints(execution.id) == []


@pytest.mark.parametrize("how", ["cancel", "complete", "deadline", "timeout"])
async def test_the_token_is_dead_when_the_execution_or_the_wait_has_ended(engine, make, clock, how):
    execution = await make.execution("leased", deadline=HOUR * 9)
    id, token = await engine.waitpoint(execution.lease)
    if how == "cancel":
        await engine.cancel(execution.id)
    elif how == "complete":
        await engine.complete(execution.lease)
    elif how == "deadline":
        await clock.advance(hours=9)
        await engine.expire_executions()
    else:
        await engine.ask(execution.lease, **wait_for(id), timeout=timedelta(seconds=1))
        await clock.advance(seconds=1)
        await engine.ask(execution.lease, **wait_for(id), take=True)
    word = "waitpoint_closed" if how == "timeout" else "not_signalable"
    assert (await by_token(engine, execution.id, token)).word == word
    assert await engine.waitpoints(execution.id) == []


async def test_a_plain_replay_waits_for_the_same_token_and_a_fresh_one_does_not(engine, make):
    execution = await make.execution("leased", lane="w")
    given = {"step_name": "ff.waitpoint payment", "step_occurrence": 0}
    _, token = await engine.waitpoint(execution.lease, **given)
    await engine.record(execution.lease, name="ff.waitpoint payment")
    await engine.cancel(execution.id)
    await engine.replay(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await by_token(engine, execution.id, token)).word == "accepted"
    await engine.complete(lease)
    await engine.replay(execution.id, fresh=True)
    assert (await by_token(engine, execution.id, token)).word == "waitpoint_closed"


async def test_an_unawaited_waitpoint_expires_and_an_awaited_one_never(engine, make, clock, db):
    execution = await make.execution("leased", ttl=HOUR * 5)
    one, token = await engine.waitpoint(execution.lease, "a", expires_in=HOUR)
    two, other = await engine.waitpoint(execution.lease, "b", expires_in=HOUR)
    await engine.ask(execution.lease, **wait_for(two))
    await clock.advance(hours=1)
    # Dead at once, also before the reconciler has seen it.
    assert (await by_token(engine, execution.id, token)).word == "waitpoint_closed"
    assert (await engine._tick("ff.expire_waitpoints", 10))[0] == 1
    assert [row["waitpoint_id"] for row in await engine.waitpoints(execution.id)] == [two]
    assert await db.fetchval("select close_reason from ff.waitpoint where key = 'a'") == (
        "never_committed"
    )
    assert (await by_token(engine, execution.id, other)).word == "accepted"
    assert one != two


async def test_without_a_key_no_token_is_made_and_the_answer_says_so(engine, make, db):
    execution = await make.execution("leased")
    id, _ = await engine.waitpoint(execution.lease)
    lease = execution.lease
    await db.execute("delete from ff.hmac_key")
    with refused("WF246"):
        await engine.waitpoint(lease)
    with refused("WF246"):
        await db.execute(
            f"select ff.create_approval('{home()}', 'test', $1, $2, $3, $4, $5, $6, '{{ada}}', "
            "'Ship?', null, null, 1, 1)",
            *(lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id),
            *(uuid4(), [uuid4()]),
        )
    read = f"select token from ff.read_waitpoint_token('{home()}', 'test', $1, $2)"
    with refused("WF246"):
        await db.fetchval(read, execution.id, id)
    await rotate(db, "k2")
    token = await db.fetchval(read, execution.id, id)
    assert (await by_token(engine, execution.id, token)).word == "accepted"
    assert len(await engine.waitpoints(execution.id)) == 1


async def test_a_waitpoint_needs_a_live_lease(engine, make, clock):
    execution = await make.execution("leased")
    stale = replace(execution.lease, epoch=execution.lease.epoch + 1)
    assert (await engine.waitpoint(stale))[1] == "stale_lease"
    await clock.advance(seconds=31)
    assert (await engine.waitpoint(execution.lease))[1] == "lease_expired"
    suspended = await make.execution("suspended")
    assert (await engine.waitpoint(suspended.lease))[1] == "not_active"


async def test_the_same_id_gets_the_same_token_and_another_key_is_refused(engine, make):
    execution = await make.execution("leased")
    id, token = await engine.waitpoint(execution.lease)
    assert await engine.waitpoint(execution.lease, waitpoint_id=id) == (id, token)
    assert (await engine.waitpoint(execution.lease, "other", waitpoint_id=id))[1] == (
        "waitpoint_exists"
    )
    assert (await engine.waitpoint(execution.lease))[1] != token


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": None}, "key"),
        ({"key": "x" * 257}, "key"),
        ({"waitpoint_id": UUID(int=0)}, "waitpoint_id"),
        ({"expires_in": timedelta(seconds=-1)}, "expires_in"),
    ],
)
async def test_bad_input_names_the_field(engine, make, given, field):
    execution = await make.execution("leased")
    with refused("WF001", field=field):
        await engine.waitpoint(execution.lease, **given)
    assert await engine.waitpoints(execution.id) == []


async def test_the_list_says_which_names_a_waitpoint_takes_and_shows_a_fingerprint(
    engine, make, db
):
    execution = await make.execution("leased")
    points = {key: await engine.waitpoint(execution.lease, key) for key in "abcd"}
    ids = {key: str(id) for key, (id, _) in points.items()}
    named = [{"waitpoint": ids["a"], "name": name} for name in ("yes", "no", "yes")]
    both = {"every": [*named, {"waitpoint": ids["b"], "name": "x"}, {"waitpoint": ids["b"]}]}
    await engine.ask(execution.lease, "both", condition=both)
    taken = {"waitpoint": ids["d"], "name": "x"}
    await by_token(engine, execution.id, points["c"][1])
    lease = execution.lease
    await db.execute(
        f"select ff.create_approval('{home()}', 'test', $1, $2, $3, $4, $5, $6, '{{ada}}', "
        "'Ship?', null, null, 1, 1)",
        *(lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id, uuid4(), [uuid4()]),
    )
    late = {"condition": taken, "timeout": timedelta(0), "take": True, "sequential": False}
    await engine.ask(execution.lease, "late", **late)
    rows = {row["key"]: row for row in await engine.waitpoints(execution.id)}
    names = {key: row["required_signal_names"] for key, row in rows.items()}
    assert names == {"a": ["yes", "no"], "b": [], "c": [], "ada": ["approved", "rejected"]}
    for key in "abc":
        assert rows[key]["token_fingerprint"] == data_of(points[key][1])[-32:].hex()[:16]
    assert [rows[key]["signal_count"] for key in "ac"] == [0, 1]
    await rotate(db, "k2", grace=timedelta(0))
    await db.execute("delete from ff.hmac_key where kid = 'k1'")
    assert {row["token_fingerprint"] for row in await engine.waitpoints(execution.id)} == {None}


async def test_the_list_shows_no_token_and_goes_page_by_page(engine, make):
    execution = await make.execution("leased")
    made = sorted([await engine.waitpoint(execution.lease, f"k{n}") for n in range(3)])
    rows = await engine.waitpoints(execution.id, limit=2)
    rows += await engine.waitpoints(execution.id, after=rows[-1]["waitpoint_id"])
    assert [row["waitpoint_id"] for row in rows] == [id for id, _ in made]
    assert {row["state"] for row in rows} == {"pending"}
    assert not any(token in str(row) for row in rows for _, token in made)
    with refused("WF301"):
        await engine.waitpoints(new_id())


CLOSE = f"select outcome from ff.close_waitpoint('{home()}', 'test', $1, $2)"


async def test_closing_kills_the_token_and_wakes_nobody_by_itself(engine, make, db):
    execution = await make.execution("leased")
    id, token = await engine.waitpoint(execution.lease)
    await engine.ask(execution.lease, **wait_for(id))
    await engine.suspend(execution.lease, wait_for(id)["name"])
    assert await db.fetchval(CLOSE, execution.id, id) == "closed"
    assert await db.fetchval(CLOSE, execution.id, id) == "already_closed"
    assert (await by_token(engine, execution.id, token)).word == "waitpoint_closed"
    assert (await engine.row(execution.id))["public_state"] == "suspended"
    with refused("WF309"):
        await db.fetchval(CLOSE, execution.id, uuid4())


@pytest.mark.parametrize(
    ("behavior", "state"), [("auto_resume", "waiting"), ("fail", "failed"), ("escalate", None)]
)
async def test_a_suspension_that_nobody_can_end_any_more_times_out(
    engine, make, db, behavior, state
):
    """Its timeout was an hour away, or never."""
    for timeout in (HOUR, None):
        execution = await make.execution("leased", lane="w")
        id, _ = await engine.waitpoint(execution.lease)
        wait = wait_for(id)
        await engine.ask(execution.lease, **wait, timeout=timeout)
        await engine.suspend(execution.lease, wait["name"], on_timeout=behavior)
        await db.fetchval(CLOSE, execution.id, id)
        await engine.time_out()
        assert (await engine.row(execution.id))["public_state"] == (state or "suspended")
        if behavior == "auto_resume":
            lease = await engine.take(execution.id, lanes=["w"])
            assert (await engine.ask(lease, **wait, take=True)).taken_as == "timeout"
        elif behavior == "escalate":
            assert (await engine.row(execution.id))["blocking_reason"] == "paused_by_operator"
            await engine.cancel(execution.id)


async def test_a_signal_from_before_the_closing_counts_although_it_is_noticed_later(
    engine, make, db
):
    execution = await make.execution("leased", lane="w")
    id, token = await engine.waitpoint(execution.lease)
    wait = wait_for(id)
    await engine.ask(execution.lease, **wait)
    await engine.suspend(execution.lease, wait["name"])
    await engine.signal_many(
        [{"execution_id": execution.id, "name": None, "payload": b"7", "token": token}], join=True
    )
    await db.fetchval(CLOSE, execution.id, id)
    await engine.time_out()
    lease = await engine.take(execution.id, lanes=["w"])
    taken = await engine.ask(lease, **wait, take=True)
    assert (taken.taken_as, taken.value) == ("signals", b"7")


async def test_an_operator_reads_the_token_of_an_open_waitpoint(engine, make, db):
    execution = await make.execution("leased")
    id, token = await engine.waitpoint(execution.lease)
    read = f"select token from ff.read_waitpoint_token('{home()}', 'test', $1, $2)"
    assert await db.fetchval(read, execution.id, id) == token
    assert await db.fetchval(read, execution.id, uuid4()) is None
    await engine.complete(execution.lease)
    assert await db.fetchval(read, execution.id, id) is None


# Wrong tokens


async def test_every_wrong_token_has_one_answer(engine, make, db):
    one, two = await make.execution("leased"), await make.execution("leased")
    _, token = await engine.waitpoint(one.lease)
    _, other = await engine.waitpoint(two.lease)
    before = await db.fetchval("select count(*) from ff.signal")
    wrong = [
        (one.id, ""),
        (one.id, "x"),
        (one.id, token[:-1]),
        (one.id, token + "A"),
        (one.id, token + "="),
        (one.id, token + "\n"),
        (one.id, " " + token),
        (one.id, token.replace("ffw_", "ffx_")),
        (one.id, other),
        (two.id, token),
        (new_id(), token),
        (None, token),
    ]
    for id, text in wrong:
        answer = await by_token(engine, id, text)
        assert (answer.word, answer.detail, answer.effect) == ("invalid_token", None, None), text
    assert (await by_token(engine.within("other"), one.id, token)).word == "invalid_token"
    assert await db.fetchval("select count(*) from ff.signal") == before


async def test_a_token_of_a_waitpoint_that_does_not_exist_is_invalid(engine, make, db):
    execution = await make.execution("leased")
    token = await db.fetchval(
        f"select ff._sign_waitpoint('k1', '{home()}', $1, $2)", execution.id, uuid4()
    )
    assert (await by_token(engine, execution.id, token)).word == "invalid_token"


async def test_trailing_bits_do_not_make_another_spelling(engine, make):
    """base64 leaves 2 or 4 bits unused; a token with others in them decodes to the same bytes."""
    execution = await make.execution("leased")
    _, token = await engine.waitpoint(execution.lease)
    spelled = {token[:-1] + letter for letter in string.ascii_letters + string.digits + "-_"}
    same = [one for one in spelled if one != token and data_of(one) == data_of(token)]
    assert same
    for one in same:
        assert (await by_token(engine, execution.id, one)).word == "invalid_token"


def mutated(token, others, dice):
    """One of the ways in which a token can be wrong."""
    data = bytearray(data_of(token))
    match dice.randrange(10):
        case 0 | 1:
            at = dice.randrange(len(data) * 8)
            data[at // 8] ^= 1 << at % 8
            return token_of(bytes(data))
        case 2:
            return token[: dice.randrange(len(token))]
        case 3:
            at = dice.randrange(len(token) + 1)
            return token[:at] + dice.choice(" \n\t=-_Aé") + token[at:]
        case 4:
            other = data_of(dice.choice(others))
            return token_of(bytes(data[:-32]) + other[-32:])
        case 5:
            # The execution, or the waitpoint, of another token.
            other = data_of(dice.choice(others))
            at = dice.choice([6, 22])
            data[at : at + 16] = other[at : at + 16]
            return token_of(bytes(data))
        case 6:
            return token_of(
                b"\x01\x02" + dice.choice([b"k1", b"kx", b"\xff\x00"]) + bytes(data[4:])
            )
        case 7:
            # Another partition.
            data[4:6] = dice.randbytes(2)
            return token_of(bytes(data))
        case 8:
            return token + "=" * dice.randrange(1, 4)
        case _:
            return "ffw_" + "".join(
                dice.choices(string.ascii_letters + string.digits, k=len(token) - 4)
            )


async def fuzz(engine, make, db, clock, count):
    several = [await make.execution("leased") for _ in range(4)]
    lapsed = [(await engine.waitpoint(one.lease))[1] for one in several]
    await rotate(db, "k2", timedelta(0))
    tokens = [(await engine.waitpoint(one.lease))[1] for one in several * 5]
    await clock.advance(milliseconds=1)
    dice = random.Random(18)
    for _ in range(count // 5000):
        wrong = []
        for _ in range(5000):
            token = dice.choice(tokens)
            others = [one for one in tokens if one != token]
            text = mutated(token, others, dice)
            if text not in tokens:
                wrong.append(text)
        words = {row[0] for row in await db.fetch(VERIFY, wrong)}
        assert words == {"invalid_token"}
    assert {row[0] for row in await db.fetch(VERIFY, tokens)} == {"verified"}
    assert {row[0] for row in await db.fetch(VERIFY, lapsed)} == {"token_expired"}
    # A token for another execution or partition than the call says is as wrong, and stores nothing.
    for one, token in zip(several, tokens[1:5], strict=True):
        assert (await by_token(engine, one.id, token)).word == "invalid_token"
    assert await db.fetchval("select count(*) from ff.signal") == 0


async def test_no_mutated_token_is_accepted(engine, make, db, clock):
    await fuzz(engine, make, db, clock, 10_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_mutated_token_of_a_million_is_accepted(engine, make, db, clock, sized):
    await fuzz(engine, make, db, clock, sized(1_000_000, short=1_000))


# Keys


async def test_after_a_rotation_old_tokens_verify_for_the_grace(engine, make, db, clock):
    await clock.freeze()
    execution = await make.execution("leased", ttl=timedelta(days=1))
    _, old = await engine.waitpoint(execution.lease)
    row = await rotate(db, "k2", HOUR)
    assert (row["outcome"], row["previous_kid"]) == ("rotated", "k1")
    _, new = await engine.waitpoint(execution.lease)
    await clock.advance(hours=1)
    # At the end of the grace, and not one moment later.
    assert (await by_token(engine, execution.id, old)).word == "accepted"
    await clock.advance(milliseconds=1)
    assert (await by_token(engine, execution.id, old)).word == "token_expired"
    assert (await by_token(engine, execution.id, new)).word == "accepted"


async def test_rapid_rotations_keep_each_token_for_its_own_grace(engine, make, db, clock):
    execution = await make.execution("leased", ttl=timedelta(days=1))
    tokens = []
    for kid in ("k2", "k3", "k4"):
        tokens.append((await engine.waitpoint(execution.lease))[1])
        await rotate(db, kid, HOUR)
        await clock.advance(minutes=30)
    words = [(await by_token(engine, execution.id, token)).word for token in tokens]
    # The last rotation deleted the first key, whose grace was over.
    assert words == ["invalid_token", "token_expired", "accepted"]
    row = await rotate(db, "k5")
    assert row["deleted"] == 1
    kids = [row["kid"] for row in await db.fetch("select kid from ff.list_hmac_keys()")]
    assert kids == ["k5", "k4", "k3"]
    # A deleted key is unknown: its tokens are wrong like any other.
    assert (await by_token(engine, execution.id, tokens[1])).word == "invalid_token"


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_an_operator_gets_a_token_that_works_after_a_rotation(
    engine, make, db, clock, is_deleted
):
    execution = await make.execution("leased", ttl=timedelta(days=1))
    id, old = await engine.waitpoint(execution.lease)
    read = f"select token from ff.read_waitpoint_token('{home()}', null, $1, $2)"
    await rotate(db, "k2", HOUR)
    assert await db.fetchval(read, execution.id, id) == old
    await clock.advance(hours=2)
    if is_deleted:
        await rotate(db, "k3")
    new = await db.fetchval(read, execution.id, id)
    assert new is not None
    assert (await by_token(engine, execution.id, new)).word == "accepted"


async def test_a_rotation_with_a_secret_may_be_repeated(db):
    assert (await rotate(db, "k2", secret=SECRET))["outcome"] == "rotated"
    assert (await rotate(db, "k2", secret=SECRET))["outcome"] == "unchanged"
    with refused("WF413", kid="k2"):
        await rotate(db, "k2", secret="cd" * 32)
    await rotate(db, "k3")
    with refused("WF413", kid="k2"):
        await rotate(db, "k2", secret=SECRET)


async def test_open_waitpoints_are_counted_by_the_key_of_their_tokens(engine, make, db):
    execution = await make.execution("leased")
    await engine.waitpoint(execution.lease)
    await rotate(db, "k2")
    for _ in range(2):
        await engine.waitpoint(execution.lease)
    rows = await db.fetch(f"select * from ff.count_waitpoints('{home()}')")
    assert {row["kid"]: row["number"] for row in rows} == {"k1": 1, "k2": 2}
    assert await db.fetch(f"select * from ff.count_waitpoints('{home()}', 'other')") == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("", HOUR, None), "kid"),
        (("a:b", HOUR, None), "kid"),
        (("x" * 33, HOUR, None), "kid"),
        (("k2", HOUR, "abc"), "secret"),
        (("k2", HOUR, "zz" * 32), "secret"),
        (("k2", timedelta(seconds=-1), None), "grace"),
        (("k2", None, None), "grace"),
    ],
)
async def test_a_bad_rotation_names_the_field_and_changes_nothing(db, given, field):
    with refused("WF001", field=field):
        await rotate(db, *given)
    assert await db.fetchval("select count(*) from ff.hmac_key") == 1


async def test_a_seed_replaces_the_first_key_which_verifies_for_another_day(engine, make, db):
    execution = await make.execution("leased")
    _, old = await engine.waitpoint(execution.lease)
    seed = "select * from ff.seed_hmac_key($1, $2)"
    row = await db.fetchrow(seed, "shared", SECRET)
    assert (row["outcome"], row["same_secret"]) == ("seeded", True)
    assert (await by_token(engine, execution.id, old)).word == "accepted"
    again = await db.fetchrow(seed, "shared", SECRET)
    assert (again["outcome"], again["same_secret"]) == ("already_seeded", True)
    other = await db.fetchrow(seed, "shared", "cd" * 32)
    assert (other["outcome"], other["same_secret"]) == ("already_seeded", False)
    with refused("WF413"):
        await db.fetchrow(seed, "another", SECRET)
    with refused("WF001", field="secret"):
        await db.fetchrow(seed, "another", None)


async def test_two_rotations_at_once_leave_one_active_key(db):
    connections = [await db.connect() for _ in range(2)]
    await asyncio.gather(*(rotate(one, f"r{n}") for n, one in enumerate(connections)))
    assert await db.fetchval("select count(*) from ff.hmac_key where is_active") == 1
    assert await db.fetchval("select count(*) from ff.hmac_key") == 3


async def test_the_holder_of_a_token_reads_what_is_asked_and_nothing_more(engine, make, db, clock):
    async def read(token, id=None, namespace=None):
        (row,) = await db.fetch(
            f"select * from ff.read_waitpoint('{home()}', $1, $2, $3)",
            namespace,
            id or execution.id,
            token,
        )
        return dict(row)

    execution = await make.execution("leased")
    _, token = await engine.waitpoint(execution.lease, expires_in=HOUR)
    found = await read(token)
    assert (found["outcome"], found["is_approval"], found["question"]) == ("open", False, None)
    assert found["expires_at"] is not None
    wrong = token[:-2] + ("aa" if token[-2:] != "aa" else "bb")
    for answer in (
        await read(wrong),
        await read("x"),
        await read(token, new_id()),
        await read(token, namespace="other"),
    ):
        assert answer.pop("outcome") == "invalid_token"
        assert set(answer.values()) == {None}
    await by_token(engine, execution.id, token)
    assert (await read(token))["outcome"] == "answered"
    other = await make.execution("leased")
    _, late = await engine.waitpoint(other.lease, expires_in=HOUR)
    await clock.advance(HOUR)
    assert (await read(late, other.id))["outcome"] == "closed"
