"""The client's grants: what they hand out, what they show, and what they refuse by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric import FlowFabric
from flowfabric.core.errors import (
    CapabilityMismatch,
    ClaimGrantExpired,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotLeaseable,
    ExecutionNotReclaimable,
    GrantAlreadyExists,
    InvalidClaimGrant,
    InvalidInput,
    LeaseConflict,
    NotAResumedExecution,
    ReclaimCapExceeded,
    UseClaimResumedExecution,
)
from flowfabric.core.execution import Route, Submission
from flowfabric.core.grant import Grant
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.core.states import GrantKind
from support.clock import Clock
from support.database import Database
from support.factories import Engine

ROUTE = Route("default", "default", "tests.work")
WORKER = {"worker_id": "pool", "worker_instance_id": "pool-1"}


@pytest.fixture
async def client(db: Database) -> AsyncIterator[FlowFabric]:
    async with FlowFabric(db.url) as client:
        yield client


async def submitted(client: FlowFabric, route: Route = ROUTE, **options: Any) -> ExecutionId:
    submission = Submission(id=mint(), route=route, payload=b"null", **options)
    return (await client.executions.submit(submission)).id


async def interrupted(client: FlowFabric) -> ExecutionId:
    id = await submitted(client)
    held = await client.grants.issue_grant_and_claim(id)
    assert await client.leases.release([held]) == {}
    return id


async def unchanged(db: Database, error: type[Exception], call: Any) -> Any:
    engine = Engine(db.conn)
    before = await engine.snapshot()
    with pytest.raises(error) as caught:
        await call
    assert await engine.snapshot() == before
    return caught.value


async def test_a_grant_is_issued_used_and_completed(client, db):
    id = await submitted(client)
    grant = await client.grants.issue_claim_grant(id, **WORKER, ttl=timedelta(seconds=30))
    assert (grant.id, grant.kind, grant.worker_id) == (id, GrantKind.CLAIM, "pool")
    claimed = await client.grants.claim_execution(grant, worker_instance_id="pool-2")
    assert (claimed.id, claimed.epoch, claimed.attempt) == (id, 1, 1)
    assert (claimed.claim_kind, claimed.payload) == ("fresh", b"null")
    await client.executions.complete(claimed, b"1")
    assert await client.executions.state(id) == "completed"


async def test_a_resume_grant_goes_on_with_the_attempt(client):
    id = await interrupted(client)
    grant = await client.grants.issue_claim_grant(id, **WORKER)
    assert grant.kind is GrantKind.RESUME
    claimed = await client.grants.claim_from_resume_grant(grant, worker_instance_id="pool-1")
    assert (claimed.claim_kind, claimed.attempt, claimed.epoch) == ("resumed", 1, 2)
    assert client.grants.claim_resumed_execution == client.grants.claim_from_resume_grant


async def test_a_reclaim_grant_takes_over(client, clock: Clock):
    id = await submitted(client)
    await client.grants.issue_grant_and_claim(id)
    await clock.advance(seconds=31)
    grant = await client.grants.issue_reclaim_grant(id, **WORKER)
    assert grant.kind is GrantKind.RECLAIM
    claimed = await client.grants.reclaim_execution(grant, worker_instance_id="pool-1")
    assert (claimed.claim_kind, claimed.attempt, claimed.epoch) == ("reclaimed", 2, 2)
    await client.executions.complete(claimed)


async def test_an_operator_takes_one_execution(client):
    id = await submitted(client)
    claimed = await client.grants.issue_grant_and_claim(id)
    described = await client.executions.describe(id)
    assert described is not None
    assert (described.worker_id, described.lease_id) == ("operator", claimed.lease_id)


async def test_a_grant_does_not_show_its_key(client):
    id = await submitted(client)
    grant = await client.grants.issue_claim_grant(id, **WORKER)
    assert len(grant.key) == 32
    assert "key" not in repr(grant)
    assert repr(grant.key) not in repr(grant)


async def test_every_grant_has_a_key_of_its_own(client):
    keys = set()
    for _ in range(3):
        grant = await client.grants.issue_claim_grant(await submitted(client), **WORKER)
        keys.add(grant.key)
    assert len(keys) == 3


async def test_a_given_key_and_a_given_claim_id_make_a_call_repeatable(client):
    id = await submitted(client)
    key = b"k" * 32
    first = await client.grants.issue_claim_grant(id, **WORKER, key=key)
    assert await client.grants.issue_claim_grant(id, **WORKER, key=key) == first
    claims = [
        await client.grants.claim_execution(first, worker_instance_id="p", claim_id=UUID(int=7))
        for _ in range(2)
    ]
    assert claims[0].fence == claims[1].fence


async def test_grants_that_are_over_are_reaped(client, clock):
    await clock.freeze()
    id = await submitted(client)
    await client.grants.issue_claim_grant(id, **WORKER, ttl=timedelta(seconds=5))
    assert await client.grants.reap() == (0, timedelta(seconds=5))
    await clock.advance(seconds=5)
    assert await client.grants.reap() == (1, None)


@pytest.mark.parametrize("key", [b"", b"x" * 31, b"x" * 33, "x" * 32, bytearray(32), 7])
async def test_a_malformed_key_is_refused_by_name(client, db, key):
    id = await submitted(client)
    call = client.grants.issue_claim_grant(id, **WORKER, key=key)
    error = await unchanged(db, InvalidInput, call)
    assert error.field == "key"
    grant = await client.grants.issue_claim_grant(id, **WORKER)
    with pytest.raises(InvalidInput) as caught:
        replace(grant, key=key)
    assert caught.value.field == "key"
    assert str(key) not in str(caught.value) or not key


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("worker_id", {"worker_id": ""}),
        ("worker_id", {"worker_id": None}),
        ("worker_id", {"worker_id": "a b"}),
        ("worker_instance_id", {"worker_instance_id": "x" * 257}),
        ("worker_instance_id", {"worker_instance_id": 5}),
        ("grant_ttl", {"ttl": 5}),
        ("grant_ttl", {"ttl": timedelta()}),
        ("grant_ttl", {"ttl": timedelta(seconds=61)}),
        ("capabilities", {"capabilities": "gpu"}),
        ("capabilities", {"capabilities": ["a,b"]}),
        ("capabilities", {"capabilities": [5]}),
    ],
)
@pytest.mark.parametrize("issue", ["issue_claim_grant", "issue_reclaim_grant"])
async def test_bad_input_of_an_issue_is_refused_by_name(client, db, issue, field, change):
    id = await submitted(client)
    call = getattr(client.grants, issue)(id, **{**WORKER, **change})
    assert (await unchanged(db, InvalidInput, call)).field == field


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("worker_id", {"worker_id": ""}),
        ("worker_instance_id", {"worker_instance_id": "a\nb"}),
        ("worker_instance_id", {"worker_instance_id": None}),
        ("lease_ttl", {"lease_ttl": 30}),
        ("lease_ttl", {"lease_ttl": timedelta(milliseconds=1)}),
    ],
)
@pytest.mark.parametrize("use", ["claim_execution", "claim_from_resume_grant", "reclaim_execution"])
async def test_bad_input_of_a_claim_is_refused_by_name(client, db, use, field, change):
    id = await submitted(client)
    grant = await client.grants.issue_claim_grant(id, **WORKER)
    call = getattr(client.grants, use)(grant, **{"worker_instance_id": "pool-1", **change})
    assert (await unchanged(db, InvalidInput, call)).field == field


async def test_an_unknown_or_foreign_execution_is_not_found(client, db):
    id = await submitted(client)
    grant = await client.grants.issue_claim_grant(id, **WORKER)
    async with FlowFabric(db.url, namespace="another") as stranger:
        for other, target in ((client, mint()), (stranger, id)):
            aimed = replace(grant, id=target)
            for call in (
                other.grants.issue_claim_grant(target, **WORKER),
                other.grants.issue_reclaim_grant(target, **WORKER),
                other.grants.issue_grant_and_claim(target),
                other.grants.claim_execution(aimed, worker_instance_id="pool-1"),
                other.grants.claim_from_resume_grant(aimed, worker_instance_id="pool-1"),
                other.grants.reclaim_execution(aimed, worker_instance_id="pool-1"),
            ):
                await unchanged(db, ExecutionNotFound, call)


async def test_the_wrong_state_has_its_own_error(client, db, clock):
    waiting, going_on = await submitted(client), await interrupted(client)
    ended = await submitted(client)
    await client.executions.complete(await client.grants.issue_grant_and_claim(ended))
    leased = await submitted(client)
    await client.grants.issue_grant_and_claim(leased, lease_ttl=timedelta(hours=1))
    grants = client.grants
    first = await grants.issue_claim_grant(waiting, **WORKER)
    second = await grants.issue_claim_grant(going_on, **WORKER)
    here: dict[str, Any] = {"worker_instance_id": "pool-1"}
    for error, call in (
        (GrantAlreadyExists, grants.issue_claim_grant(waiting, **WORKER)),
        (GrantAlreadyExists, grants.issue_grant_and_claim(waiting)),
        (ExecutionNotEligible, grants.issue_claim_grant(ended, **WORKER)),
        (ExecutionNotEligible, grants.issue_grant_and_claim(ended)),
        (LeaseConflict, grants.issue_grant_and_claim(leased)),
        (LeaseConflict, grants.claim_execution(replace(first, id=leased), **here)),
        (ExecutionNotLeaseable, grants.claim_execution(replace(first, id=ended), **here)),
        (UseClaimResumedExecution, grants.claim_execution(second, **here)),
        (NotAResumedExecution, grants.claim_from_resume_grant(first, **here)),
        (InvalidClaimGrant, grants.claim_execution(replace(first, key=b"x" * 32), **here)),
        (InvalidClaimGrant, grants.claim_execution(first, worker_id="other", **here)),
        (ExecutionNotReclaimable, grants.issue_reclaim_grant(leased, **WORKER)),
        (ExecutionNotReclaimable, grants.reclaim_execution(first, **here)),
    ):
        await unchanged(db, error, call)
    await clock.advance(seconds=10)
    await unchanged(db, ClaimGrantExpired, grants.claim_execution(first, **here))


async def test_a_worker_that_lacks_something_is_told_what(client, db):
    route = Route("default", "default", "tests.heavy", frozenset({"gpu", "arm"}))
    id = await submitted(client, route)
    error = await unchanged(db, CapabilityMismatch, client.grants.issue_claim_grant(id, **WORKER))
    assert (error.field, error.facts["missing"]) == ("capabilities", "arm,gpu")
    grant = await client.grants.issue_claim_grant(id, **WORKER, capabilities={"gpu", "arm"})
    assert isinstance(grant, Grant)


async def test_an_execution_over_its_limit_of_reclaims_is_ended_and_said_so(client, clock):
    id = await submitted(client, max_reclaims=0)
    await client.grants.issue_grant_and_claim(id)
    await clock.advance(seconds=31)
    for _ in range(2):
        with pytest.raises(ReclaimCapExceeded) as caught:
            await client.grants.issue_reclaim_grant(id, **WORKER)
        assert caught.value.facts["max_reclaims"] == 0
    assert await client.executions.state(id) == "failed"


async def test_no_error_shows_a_key(client):
    id = await submitted(client)
    grant = await client.grants.issue_claim_grant(id, **WORKER)
    with pytest.raises(InvalidClaimGrant) as caught:
        await client.grants.claim_execution(grant, worker_id="other", worker_instance_id="o-1")
    assert grant.key.hex() not in f"{caught.value} {caught.value.facts}"
