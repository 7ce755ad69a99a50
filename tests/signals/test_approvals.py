"""Approvals in handlers: several approvers, their tokens, and what they decided."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    Approval,
    ApprovalRequest,
    Context,
    ExecutionFailed,
    InvalidInput,
    PublicState,
    first,
)
from flowfabric.core.errors import AlreadyAnswered, InvalidToken
from flowfabric.core.signal import Signal
from steps.stage import until
from worker.apps import working

HOUR = timedelta(hours=1)
TEAM = ("legal", "finance", "ops")


def facts(decision: Approval) -> list[Any]:
    return [
        bool(decision),
        list(decision.approved_by),
        list(decision.denied_by),
        decision.comments,
        [one.by for one in decision.answers],
    ]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_two_of_three_approve_and_the_handler_learns_who(app, kind):
    asked: dict[str, str] = {}

    def send(request: ApprovalRequest) -> None:
        assert (request.question, request.details) == ("Ship order 7?", {"order": 7})
        assert request.token not in repr(request)
        asked[request.approver] = request.token

    if kind == "async":

        @app.task(name="ship")
        async def ship(ctx: Context) -> list[Any]:
            team = await ctx.approval(
                "Ship order 7?", details={"order": 7}, approvers=TEAM, need=2, ask=send
            )
            return facts(team)
    else:

        @app.task(name="ship")
        def ship(ctx: Context) -> list[Any]:
            team = ctx.approval_sync(
                "Ship order 7?", details={"order": 7}, approvers=TEAM, need=2, ask=send
            )
            return facts(team)

    run = await ship.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        client = await app.client()
        (pending,) = await run.pending()
        assert pending.condition["approve"] == 2
        await app.approve(asked["ops"], comment="go", by="ada")
        with pytest.raises(AlreadyAnswered):
            await app.deny(asked["ops"])
        why = await client.executions.why(run.id)
        assert "2 of 3 approvals" in why.sentence
        assert "(1 approved: ops; no answer from finance, legal)" in why.sentence
        (listed,) = await client.signals.suspended()
        assert listed.reason_code == "waiting_for_approval"
        await app.approve(asked["legal"])
        result = await run.result(timeout=60)
    assert result == [True, ["ops", "legal"], [], {"ops": "go"}, ["ada", None]]
    with pytest.raises(InvalidToken):
        await app.approve("ffw_x")


@pytest.mark.parametrize(
    ("given", "votes", "expected"),
    [
        ({"need": 2}, ["-legal", "-ops"], (False, [], ["legal", "ops"])),
        ({}, ["-legal"], (False, [], ["legal"])),
        ({"need": 1, "deny": 1}, ["-legal"], (False, [], ["legal"])),
        ({"need": 1}, ["-legal", "ops"], (True, ["ops"], ["legal"])),
    ],
)
async def test_enough_denials_deny_it(app, given, votes, expected):
    @app.task
    async def ship(ctx: Context) -> list[Any]:
        return facts(await ctx.approval("Ship?", approvers=TEAM, **given))

    run = await ship.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        approvals = (await app.client()).approvals
        for vote in votes:
            name = vote.removeprefix("-")
            await approvals.answer(run.id, is_approved=vote == name, actor=name, comment=vote)
        result = await run.result(timeout=60)
    assert tuple(result[:3]) == expected
    (one,) = await approvals.of(run.id)
    assert (one.is_open, one.approved_count) == (False, len(expected[1]))
    assert await approvals.list() == []


async def test_an_approval_ends_with_its_timeout_or_loses_a_race(app, clock):
    @app.task
    async def ship(ctx: Context) -> list[Any]:
        late = await ctx.approval("Ship?", approvers=["ada"], timeout=HOUR, default=None)
        won = await first(ctx.approval("Pack?", approvers=["ada"]), ctx.signal("stop", str))
        return [late, won.index, won.value]

    run = await ship.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await clock.advance(HOUR)
        await (await app.client()).signals.expire_suspensions()
        await run.signal("stop", "no")
        assert await run.result(timeout=60) == [None, 1, "no"]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("approvers", {"approvers": "legal"}),
        ("approvers", {"approvers": []}),
        ("approvers", {"approvers": ["a", "a"]}),
        ("need", {"approvers": ["a"], "need": 2}),
        ("need", {"approvers": ["a"], "need": True}),
        ("deny", {"approvers": ["a"], "deny": 0}),
        ("deny", {"approvers": ["a", "b"], "deny": 2}),
        ("details", {"approvers": ["a"], "details": object()}),
        ("details", {"approvers": ["a"], "details": "x" * 70_000}),
        ("question", {"question": "", "approvers": ["a"]}),
    ],
)
async def test_a_malformed_approval_names_its_field(app, db, field, given):
    question = given.pop("question", "Ship?")

    @app.task
    async def ship(ctx: Context) -> str:
        try:
            await ctx.approval(question, **given)
        except InvalidInput as error:
            return error.field
        return "nothing"

    run = await ship.submit()
    async with working(app, concurrency=1):
        try:
            assert await run.result(timeout=60) == field
        except ExecutionFailed as error:
            raise AssertionError(str(error)) from error
    assert await db.fetchval("select count(*) from ff.approval") == 0


async def test_a_replay_from_the_decision_asks_the_approvers_again(app):
    tokens: dict[str, str] = {}

    def send(request: ApprovalRequest) -> None:
        tokens[request.approver] = request.token

    @app.task
    async def ship(ctx: Context) -> list[Any]:
        return facts(await ctx.approval("Ship?", approvers=TEAM[:2], ask=send))

    run = await ship.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        for token in tokens.values():
            await app.approve(token)
        assert (await run.result(timeout=60))[0]
        client = await app.client()
        await client.executions.replay(run.id, from_step="ff.decision Ship?")
        await until(run, PublicState.SUSPENDED)
        (asked,) = await client.approvals.list()
        assert (asked.answers, asked.waiting_for) == ((), ("finance", "legal"))
        await app.deny(tokens["legal"], comment="not now")
        result = await run.result(timeout=60)
    assert result[:4] == [False, [], ["legal"], {"legal": "not now"}]


async def test_a_comment_that_cannot_be_read_hides_no_approval(app):
    tokens: list[str] = []

    @app.task
    async def ship(ctx: Context) -> list[Any]:
        def send(request: ApprovalRequest) -> None:
            tokens.append(request.token)

        return facts(await ctx.approval("Ship?", approvers=TEAM[:2], need=2, ask=send))

    run = await ship.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        client = await app.client()
        deep = b"[" * 30_000 + b"]" * 30_000
        await client.signals.deliver_by_token(tokens[0], Signal(name="approved", payload=deep))
        (asked,) = await client.approvals.list()
        assert asked.approved_count == 1
        await app.approve(tokens[1])
        assert (await run.result(timeout=60))[:4] == [True, ["legal", "finance"], [], {}]
