"""A bound login that knows, guesses or overhears what belongs to another namespace gets nothing by
it, changes nothing by it and holds up nobody."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from support.factories import Engine, Item, new_id

from .conftest import OURS

TTL = timedelta(seconds=30)


@pytest.fixture
async def ours(login) -> Engine:
    return Engine(await login("bound"), namespace=OURS)


async def test_a_claim_of_another_worker_cannot_be_repeated(ours, theirs):
    """It could: the slot had no namespace, and a hint told the name of the claim."""
    await theirs.submit_many([Item(payload=b'"card 4111"'), Item(payload=b'"card 4112"')])
    leases = await theirs.claim(2, instance="their-1")
    assert await ours.claim(1, claim_id=leases[0].lease_id, instance="their-1") == []
    again = await theirs.claim(2, claim_id=leases[0].lease_id, instance="their-1")
    assert [lease.execution_id for lease in again] == [lease.execution_id for lease in leases]
    await theirs.complete_many(leases)


async def test_a_hint_names_a_worker_and_nothing_else(login, theirs):
    listener, heard = await login("bound"), asyncio.Queue()
    await listener.add_listener("ff_lost", lambda *told: heard.put_nowait(told[3]))
    execution = await theirs.submit()
    await theirs.take(execution.id, instance="their-2")
    await theirs.connection.execute(
        "select ff.cancel_execution(0::smallint, $1, $2, 'why', 'operator_override')",
        theirs.namespace,
        execution.id,
    )
    assert await asyncio.wait_for(heard.get(), 5) == "their-2"


@pytest.mark.parametrize(
    "call",
    [
        "ff.wait_for_runs(0::smallint, $1, $2, $2, 1, $2, array[$3::uuid])",
        "ff.wait_children(0::smallint, $1, $3, $2, 1, $2)",
        "ff.delay_execution(0::smallint, $1, $3, $2, 1, $2, interval '1 s')",
        "ff.complete_executions(0::smallint, $1, array[$3::uuid], array[$2::uuid], "
        "array[1::bigint], array[$2::uuid], array[null::bytea], p_wait => true)",
    ],
)
async def test_no_row_of_another_namespace_is_locked(ours, theirs, call):
    execution = await theirs.submit()
    lease = await theirs.take(execution.id)
    async with ours.connection.transaction():
        await ours.connection.fetch(f"select * from {call}", OURS, new_id(), execution.id)
        assert (await theirs.complete(lease)).word == "completed"


async def test_no_policy_stops_the_reconcilers(ours, theirs):
    """A duration too small for a double stopped them for everybody."""
    for path in (("retry_policy", "backoff", "initial_delay_ms"), ("retention_ms",)):
        policy: object = 1e-300
        for key in reversed(path):
            policy = {key: policy}
        answer = await ours.submit(policy=json.dumps(policy).replace("1e-300", "1e-400"))
        assert answer.word == "invalid", answer


async def test_an_id_of_theirs_is_no_flow_of_ours(ours, theirs):
    """Events are found by id: a flow with the id of an execution would write into its history."""
    execution = await theirs.submit()
    with pytest.raises(Exception, match="invalid_input"):
        await ours.connection.execute(
            "select ff.create_flow(0::smallint, $1, $2, 'kind')", OURS, execution.id
        )


async def test_a_cursor_names_no_execution(ours, theirs):
    execution = await theirs.submit()
    cursor = await ours.connection.fetchval("select ff.open_cursor(0::smallint)")
    assert str(execution.id) not in cursor
    rows = await ours.connection.fetch(
        "select * from ff.read_events(0::smallint, $1, $2, 100)", OURS, cursor
    )
    assert [row["execution_id"] for row in rows] == [None]


async def test_why_tells_of_ones_own_namespace_only(ours, theirs):
    await theirs.connection.execute(
        "select ff.register_worker($1, 'w', 'their-3', null, null, '{}', interval '1 min')",
        theirs.namespace,
    )
    execution = await ours.submit()
    rows = await ours.connection.fetch(
        "select * from ff.explain_execution(0::smallint, $1, $2)", OURS, execution.id
    )
    assert theirs.namespace not in "".join(str(row["evidence"]) for row in rows)
