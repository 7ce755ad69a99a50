"""Approvals: one waitpoint and one token per approver, and who answered."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import new_id, refused

HOUR = timedelta(hours=1)
TEAM = ("legal", "finance", "ops")


class Asked:
    """An execution that waits for an approval, and the tokens of its approvers."""

    def __init__(self, execution, approval_id, points, tokens, need, deny):
        self.id = execution.id
        self.lease = execution.lease
        self.approval_id = approval_id
        self.points = points
        self.tokens = dict(zip(points, tokens or (), strict=False))
        members = [{"waitpoint": str(id)} for id in points.values()]
        self.condition = {"approve": need, "deny": deny, "of": members}


@pytest.fixture
def ask(engine, make, db):
    async def create(
        approvers=TEAM, need=2, deny=2, *, is_suspended=True, question="Ship?", timeout=None
    ):
        execution = await make.execution("leased")
        lease, approval_id = execution.lease, uuid4()
        points = {name: uuid4() for name in approvers}
        row = await db.fetchrow(
            f"select * from ff.create_approval('{home()}', null, $1, $2, $3, $4, $5, $6, $7, $8, "
            "$9, 'json', $10, $11, 'ask', 0)",
            lease.execution_id,
            lease.lease_id,
            lease.epoch,
            lease.attempt_id,
            approval_id,
            list(points.values()),
            list(points),
            question,
            b'{"order": 7}',
            need,
            deny,
        )
        assert row["outcome"] == "created", row
        asked = Asked(execution, approval_id, points, row["tokens"], need, deny)
        if is_suspended:
            await engine.ask(lease, "decision", condition=asked.condition, timeout=timeout)
            assert (await engine.suspend(lease, "decision")).word == "suspended"
        return asked

    return create


@pytest.fixture
def answer(engine):
    async def send(asked, approver, decision="approved", **given):
        (answer,) = await engine.signal_many(
            [
                {
                    "execution_id": asked.id,
                    "name": decision,
                    "token": asked.tokens[approver],
                    "payload": b'{"comment": "fine"}',
                    "source_type": "token",
                    **given,
                }
            ]
        )
        return answer

    return send


@pytest.fixture
def decide(db):
    async def call(asked, approver, decision="approved", actor="ada", **given):
        return await db.fetchrow(
            f"select * from ff.deliver_approval_signal('{home()}', null, $1, $2, $3, $4, $5, $6)",
            asked.id,
            decision,
            actor,
            given.get("signal_id") or new_id(),
            approver,
            given.get("approval_id"),
        )

    return call


async def listed(db, id=None):
    return await db.fetch(f"select * from ff.list_approvals('{home()}', null, $1)", id)


@pytest.mark.parametrize(
    ("votes", "woken_at"),
    [
        ([("ops", True), ("legal", True)], 1),
        ([("ops", False), ("legal", True), ("finance", True)], 2),
        ([("ops", False), ("legal", False)], 1),
        ([("ops", True), ("legal", False), ("finance", False)], 2),
    ],
)
async def test_the_last_needed_answer_wakes_the_execution(ask, answer, votes, woken_at):
    asked = await ask()
    effects = []
    for approver, is_approved in votes:
        one = await answer(asked, approver, "approved" if is_approved else "rejected")
        effects.append(one.effect)
    assert effects == ["buffered"] * woken_at + ["woken"]


async def test_one_denial_is_a_veto_where_one_denies(ask, answer):
    asked = await ask(deny=1)
    assert (await answer(asked, "ops", "rejected")).effect == "woken"


async def test_an_approver_answers_once(ask, answer, engine):
    asked = await ask()
    assert (await answer(asked, "ops")).word == "accepted"
    again = await answer(asked, "ops")
    assert again.word == "duplicate"
    other = await answer(asked, "ops", "rejected")
    assert (other.word, other.detail) == ("already_answered", {"decision": "approved"})
    both = await engine.signal_many(
        [
            {"execution_id": asked.id, "name": name, "token": asked.tokens["legal"]}
            for name in ("rejected", "approved")
        ]
    )
    assert sorted(one.word for one in both) == ["accepted", "already_answered"]


async def test_the_token_says_who_answers_and_not_the_body(ask, answer, db):
    asked = await ask()
    await answer(asked, "ops", payload=b'{"approver": "legal"}', source_identity="legal")
    (one,) = await listed(db)
    assert dict(zip(one["approvers"], one["decisions"], strict=True)) == {
        "finance": None,
        "legal": None,
        "ops": "approved",
    }


async def test_a_signal_by_name_never_answers_an_approval(ask, engine):
    # Nor does it where an approver has the name of an answer.
    asked = await ask(("legal", "approved"), need=1)
    for name in ("legal", "approved", "rejected"):
        assert (await engine.signal(asked.id, name)).effect == "buffered"
    found = await engine.signals(asked.id)
    assert [one["waitpoint_id"] for one in found] == [None] * 3


@pytest.mark.parametrize("name", [None, "yes", "approve"])
async def test_an_answer_is_approved_or_rejected(ask, answer, name):
    asked = await ask()
    refused_ = await answer(asked, "ops", name)
    assert refused_.word == "invalid"
    assert refused_.detail["field"] == "name"
    assert "approved or rejected" in refused_.detail["problem"]


async def test_an_operator_answers_for_an_approver(ask, decide, db):
    asked = await ask()
    first = await decide(asked, "ops")
    assert (first["outcome"], first["effect"], first["approver"]) == ("accepted", "buffered", "ops")
    assert (await decide(asked, "ops"))["outcome"] == "duplicate"
    # One with the name of the actor needs no other name.
    assert (await decide(asked, None, actor="legal"))["effect"] == "woken"
    (one,) = await listed(db, asked.id)
    assert dict(zip(one["approvers"], one["deciders"], strict=True))["ops"] == "ada"


async def test_a_repeat_gets_its_first_answer_also_when_the_approval_is_decided(
    ask, answer, decide, engine
):
    asked = await ask(need=2)
    by_token, by_name = new_id(), new_id()
    await answer(asked, "legal", signal_id=by_token)
    await decide(asked, "ops", signal_id=by_name)
    (lease,) = await engine.claim()
    assert (await engine.ask(lease, "decision", condition=asked.condition, take=True)).taken_as
    again = await answer(asked, "legal", signal_id=by_token)
    assert (again.word, again.signal_id) == ("duplicate", by_token)
    again = await decide(asked, "ops", signal_id=by_name)
    assert (again["outcome"], again["signal_id"]) == ("duplicate", by_name)
    assert again["approver"] == "ops"
    assert (await answer(asked, "finance")).word == "waitpoint_closed"
    with refused("WF325"):
        await decide(asked, "finance", actor="bob")


async def test_an_operator_says_which_of_two_approvals_he_answers(ask, decide, db):
    first = await ask(is_suspended=False)
    lease, second = first.lease, uuid4()
    await db.execute(
        f"select ff.create_approval('{home()}', null, $1, $2, $3, $4, $5, $6, $7, 'Refund?', "
        "null, null, 1, 1)",
        lease.execution_id,
        lease.lease_id,
        lease.epoch,
        lease.attempt_id,
        second,
        [uuid4()],
        ["ops"],
    )
    with refused("WF001", field="approval_id"):
        await decide(first, "ops")
    await decide(first, "ops", approval_id=second)
    # The other one is the only one that asks legal.
    await decide(first, "legal", actor="bob")
    questions = {one["question"]: one["decisions"] for one in await listed(db, first.id)}
    assert questions["Refund?"] == ["approved"]
    assert sorted(filter(None, questions["Ship?"])) == ["approved"]


async def test_after_a_replay_the_holder_of_a_token_is_asked_again(ask, answer, engine, db):
    asked = await ask(is_suspended=False)
    await engine.record(asked.lease, name="ask", position=0)
    await engine.ask(asked.lease, "decision", condition=asked.condition, position=1)
    await engine.suspend(asked.lease, "decision")
    for approver in ("ops", "legal"):
        await answer(asked, approver)
    (lease,) = await engine.claim()
    await engine.ask(lease, "decision", condition=asked.condition, position=1, take=True)
    await engine.complete(lease)

    async def state(approver):
        return await db.fetchval(
            f"select outcome from ff.read_waitpoint('{home()}', null, $1, $2)",
            asked.id,
            asked.tokens[approver],
        )

    assert [await state(one) for one in TEAM] == ["answered", "closed", "answered"]
    await engine.replay(asked.id, from_step="decision")
    assert [await state(one) for one in TEAM] == ["open"] * 3
    assert (await answer(asked, "ops", "rejected")).word == "accepted"
    assert await state("ops") == "answered"


async def test_one_operator_cannot_answer_for_two_approvers(ask, decide):
    asked = await ask()
    await decide(asked, "ops")
    with refused("WF245"):
        await decide(asked, "legal")
    with refused("WF245"):
        await decide(asked, "ops", "rejected", actor="bob")


async def test_an_operator_is_told_whom_an_approval_asks(ask, decide, engine):
    asked = await ask()
    with refused("WF325", open=sorted(TEAM)):
        await decide(asked, "sales")
    with refused("WF325"):
        await decide(asked, "ops", approval_id=uuid4())
    with refused("WF001"):
        await decide(asked, "ops", "maybe")
    with refused("WF001"):
        await decide(asked, "ops", actor="")
    await engine.cancel(asked.id)
    with refused("WF325"):
        await decide(asked, "ops")


async def test_open_approvals_are_listed_until_they_are_decided(ask, answer, engine, make, db):
    first, second = await ask(), await ask(question="Refund?")
    assert [one["question"] for one in await listed(db)] == ["Ship?", "Refund?"]
    for name in ("ops", "legal"):
        await answer(first, name)
    (claimed,) = await engine.claim()
    taken = await engine.ask(claimed, "decision", condition=first.condition, take=True)
    assert (taken.word, len(taken.signal_ids)) == ("taken", 2)
    assert [one["question"] for one in await listed(db)] == ["Refund?"]
    (closed,) = await listed(db, first.id)
    assert (closed["is_open"], closed["details"]) == (False, b'{"order": 7}')
    assert (await answer(first, "finance")).word == "waitpoint_closed"
    await engine.cancel(second.id)
    assert await listed(db) == []


async def test_a_retry_after_a_timeout_waits_for_the_same_tokens(ask, answer, engine, clock):
    asked = await ask(timeout=HOUR)
    await answer(asked, "ops")
    await clock.advance(HOUR)
    await engine.connection.execute(f"select ff.expire_suspensions('{home()}')")
    (claimed,) = await engine.claim()
    again = await engine.ask(claimed, "decision", condition=asked.condition, take=True)
    assert again.taken_as == "timeout"
    assert (await answer(asked, "legal")).word == "waitpoint_closed"
    await engine.fail(claimed)
    await engine.replay(asked.id)
    assert (await answer(asked, "legal")).word == "accepted"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("approvers", {"approvers": ()}),
        ("approvers", {"approvers": ("",)}),
        ("approvers", {"approvers": [f"a{n}" for n in range(65)]}),
        ("question", {"question": ""}),
        ("question", {"question": "?" * 1025}),
        ("need", {"need": 0}),
        ("need", {"need": 4}),
        ("deny", {"deny": 4}),
        ("deny", {"need": 2, "deny": 3}),
    ],
)
async def test_a_malformed_approval_is_refused_with_its_field(ask, db, field, given):
    with refused("WF001", field=field):
        await ask(**given)
    assert await db.fetchval("select count(*) from ff.approval") == 0


async def test_the_same_ids_get_the_same_tokens_and_other_approvers_are_refused(make, db):
    execution = await make.execution("leased")
    lease, id, points = execution.lease, uuid4(), [uuid4(), uuid4()]

    async def create(approvers, approval_id):
        return await db.fetchval(
            f"select tokens from ff.create_approval('{home()}', null, $1, $2, $3, $4, $5, $6, $7, "
            "'?', null, null, 1, 1)",
            lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id, approval_id, points,
            approvers,
        )  # fmt: skip

    tokens = await create(["a", "b"], id)
    assert tokens == await create(["a", "b"], id)
    for approvers, approval_id in ((["b", "a"], id), (["a", "b"], uuid4())):
        with refused("WF001"):
            await create(approvers, approval_id)
    assert await db.fetchval("select count(*) from ff.approval") == 1


async def test_a_trimmed_execution_leaves_no_approval(ask, engine, clock, db):
    asked = await ask()
    await engine.cancel(asked.id)
    await clock.advance(timedelta(days=40))
    await db.execute(f"select ff.trim_executions('{home()}')")
    assert await db.fetchval("select count(*) from ff.approval") == 0
