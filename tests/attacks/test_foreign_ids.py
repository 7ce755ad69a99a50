"""A bound login that knows, guesses or overhears what belongs to another namespace gets nothing by
it, changes nothing by it and holds up nobody."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.core.ids import uuid7
from support.factories import Engine, Item, new_id, refused

from .conftest import OURS
from .test_namespaces import HOUSEKEEPING

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
    assert await asyncio.wait_for(heard.get(), 60) == "their-2"


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


async def test_no_old_snapshot_tidies_for_others(ours, theirs, keeper):
    """It did: a child was deleted although its parent was about to run, and submit it, again."""
    parent = await theirs.submit()
    lease = await theirs.take(parent.id)
    child = await theirs.submit(parent=parent.id, policy={"retention_ms": 0})
    assert (await theirs.complete(await theirs.take(child.id))).word == "completed"
    assert (await theirs.complete(lease)).word == "completed"
    async with ours.connection.transaction(isolation="repeatable_read"):
        await ours.connection.fetchval("select pg_current_snapshot()")
        await theirs.connection.execute(
            "select ff.replay_execution(0::smallint, $1, $2, 'why')", theirs.namespace, parent.id
        )
        await ours.connection.execute("select pg_sleep(1.001)")  # the snapshot is old now
        for name in sorted(HOUSEKEEPING):
            whole = name in ("balance_gates", "reset_due_budgets", "sweep_workers")
            partition = "" if whole else "0::smallint, "
            with refused("WF001", field="transaction_isolation"):
                async with ours.connection.transaction():
                    await ours.connection.execute(f"select ff.{name}({partition}1)")
    assert await keeper.fetchval(
        "select count(*) = 1 from ff.execution where execution_id = $1", child.id
    )


async def test_no_array_counts_from_another_number(ours, theirs, keeper):
    """One did, from 0. The end of our execution submitted the hooks of theirs, which had not even
    started. At its end these hooks were duplicates, and nobody learnt of it."""
    for engine in (ours, theirs):
        hook = await engine.register(task="alarm")
        await engine.register(task="watched")
        await engine.connection.execute(
            "select ff.declare_hooks($1, '{1}', '{watched}', '{watched}', '{alarm}', '{end}', "
            "array[$2::bigint])",
            *(engine.namespace, hook),
        )
    foreign = await theirs.submit(route=await theirs.register(task="watched"))
    own = await ours.submit(route=await ours.register(task="watched"))
    lease = await ours.take(own.id, tasks=["watched"])
    with refused("WF001", field="execution_ids"):
        await ours.connection.execute(
            "select ff.complete_executions(0::smallint, $1, $2::text::uuid[], null, null, null, "
            "null, p_lease_id => $3, p_epoch => $4, p_attempt_id => $5)",
            *(OURS, f"[0:1]={{{own.id},{foreign.id}}}"),
            *(lease.lease_id, lease.epoch, lease.attempt_id),
        )
    assert (await ours.complete(lease)).word == "completed"
    assert not await keeper.fetchval(
        "select count(*) from ff.execution e join ff.route r using (route_id) "
        "where r.namespace = $1 and r.task = 'alarm'",
        theirs.namespace,
    )


@pytest.mark.parametrize("first", [0, 2])
async def test_no_option_escapes_its_judge(ours, theirs, keeper, first):
    """One did: in an array that counted from 0, it was stored and never looked at. So an execution
    of ours became a child of theirs."""
    parent, route = await theirs.submit(), await ours.register()
    ids = [new_id(), new_id()]
    with refused("WF001"):
        await ours.connection.execute(
            "select ff.submit_executions(0::smallint, $1, $2::uuid[], $3::bigint[], "
            "array[null::bytea, null], p_options => $4::text::jsonb[])",
            *(OURS, ids, [route, route]),
            f'[{first}:{first}]={{"{{\\"parent_id\\": \\"{parent.id}\\"}}"}}',
        )
    assert not await keeper.fetch("select from ff.execution where parent_id = $1", parent.id)


async def test_no_policy_stops_the_reconcilers(ours, theirs):
    """A duration too small for a double stopped them for everybody."""
    for path in (("retry_policy", "backoff", "initial_delay_ms"), ("retention_ms",)):
        policy: object = 1e-300
        for key in reversed(path):
            policy = {key: policy}
        answer = await ours.submit(policy=json.dumps(policy).replace("1e-300", "1e-400"))
        assert answer.word == "invalid", answer


@pytest.mark.parametrize(
    ("field", "others"),
    [
        ("deadline_ms", {}),
        ("key_window_ms", {"key": "small", "key_fingerprint": "00"}),
        ("delay_ms", {}),
    ],
)
async def test_no_duration_is_too_small_for_a_double(ours, field, others):
    """A hook with such a deadline was declared. Then the end of an execution failed, and with it
    every pass of expire_executions, for all namespaces."""
    route = await ours.register(task="small")
    for small in ("1e-400", "-1e-400", "0.0009"):
        options = json.dumps({field: 7, **others}).replace("7", small)
        item = json.dumps({"execution_id": str(new_id()), "route_id": route})
        (answer,) = json.loads(
            await ours.connection.fetchval(
                "select ff.submit_json(0::smallint, $1, jsonb_build_array($2::jsonb || $3::jsonb))",
                *(OURS, item, options),
            )
        )["items"]
        assert answer["outcome"] == "invalid", answer
        if field == "deadline_ms":
            with refused("WF001", field="deadline"):
                await ours.connection.execute(
                    "select ff.declare_hooks($1, '{1}', '{watched}', '{watched}', '{small}', "
                    "'{end}', array[$2::bigint], p_options => array[$3::jsonb])",
                    *(OURS, route, options),
                )


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


async def test_a_forged_cursor_costs_no_more_than_an_opened_one(ours):
    """One of 64 KiB that named the same transaction 32 000 times returned 32 000 times its events,
    and one with a number that is too large raised an error of Postgres."""
    execution = await ours.submit()
    opened = await ours.connection.fetchval("select ff.open_cursor(0::smallint)")
    parts = opened.split(":")[:-1]

    async def read(unfinished: str) -> list[UUID | None]:
        body = ":".join((*parts[:6], str(int(parts[6]) + 1), unfinished, "0", *parts[9:]))
        cursor = f"{body}:{hashlib.sha256(body.encode()).hexdigest()[:8]}"
        rows = await ours.connection.fetch(
            "select execution_id from ff.read_events(0::smallint, $1, $2, p_execution_ids => $3)",
            *(OURS, cursor, [execution.id]),
        )
        return [row["execution_id"] for row in rows]

    for unfinished in ("1", ",".join("1" * 1000)):
        assert await read(unfinished) == [execution.id, None]
    for unfinished in ("8000000000000000", "0", "01", ",", "1,", "1,,1"):
        with refused("WF001", field="cursor"):
            await read(unfinished)


# Entries of routes and hooks that the open transaction has read.
ENTRIES_READ = """
select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))
from pg_index i where i.indrelid in ('ff.route'::regclass, 'ff.hook'::regclass)
"""


@pytest.mark.parametrize("tasks", [["crowded"], None])
async def test_no_routes_and_hooks_of_ours_slow_their_claims_and_ends(ours, theirs, tasks):
    """50 000 routes and 20 hooks of one namespace took every end of all others 1.5 seconds."""
    size, hooks = 500, [f"hook-{number}" for number in range(20)]
    many = [
        *(("crowded", f"lane-{number}", None) for number in range(size)),
        *(("crowded", f"lane-{number}", "v1") for number in range(size)),
        *((name, "crowded", None) for name in hooks),
    ]
    routes = await ours.connection.fetch(
        "select route_id from ff.register_routes($1, $2, $3, null, p_code_versions => $4) "
        "order by item",
        [OURS] * len(many),
        [lane for _, lane, _ in many],
        [task for task, _, _ in many],
        [version for _, _, version in many],
    )
    await ours.connection.execute(
        "select ff.declare_hooks($1, '{1}', '{crowded}', $2, $3, $4, $5)",
        *(OURS, ["crowded"] * len(hooks), hooks, ["success"] * len(hooks)),
        [row["route_id"] for row in routes[-len(hooks) :]],
    )
    route = await theirs.register(task="crowded")
    execution = await theirs.submit(route=route)
    async with theirs.connection.transaction():
        (lease,) = await theirs.claim(1, tasks=tasks, versions=["v1"])
        assert lease.execution_id == execution.id
        assert (await theirs.complete(lease)).word == "completed"
        assert await theirs.connection.fetchval(ENTRIES_READ) < 50


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


async def test_no_answer_tells_an_edge_of_theirs(ours, theirs):
    """It did: `connects other members`, or the id of the downstream."""
    flow, edge = new_id(), new_id()
    first, second = await theirs.submit(), await theirs.submit()
    call = theirs.connection.execute
    await call("select ff.create_flow(0::smallint, $1, $2, 'kind')", theirs.namespace, flow)
    for name, node in (("a", first), ("b", second)):
        await call(
            "select ff.add_execution_to_flow(0::smallint, $1, $2, $3, $4)",
            *(theirs.namespace, flow, node.id, name),
        )
    await call(
        "select ff.stage_dependency_edge(0::smallint, $1, $2, $3, $4, $5, 2)",
        *(theirs.namespace, flow, edge, first.id, second.id),
    )
    for ids in (
        (flow, edge, first.id, second.id),
        (flow, edge, second.id, first.id),
        (flow, new_id(), first.id, second.id),
        (new_id(), new_id(), new_id(), new_id()),
    ):
        with refused("WF003", field="edge_id", problem="edge_not_found: the flow has no such edge"):
            await ours.connection.execute(
                "select ff.apply_dependency_to_child(0::smallint, $1, $2, $3, $4, $5)", OURS, *ids
            )


# A page of each list: the ids, and the position behind it. Then its limits.
PAGES = {
    "select execution_id, next_cursor::uuid from ff.list_executions"
    "(0::smallint, $1, p_cursor => replace($2::uuid::text, '-', ''), p_limit => $3)": (1, 100),
    "select null::uuid, next_cursor::uuid from ff.count_executions"
    "(0::smallint, $1, p_cursor => replace($2::uuid::text, '-', ''), p_tasks => case when $3 = 1 "
    "then array['walk'] end)": (1, 2),
    "select execution_id, next_after from ff.list_execution_ids(0::smallint, $1, $2, $3)": (1, 99),
    "select flow_id, next_after from ff.list_flows(0::smallint, $1, $2, $3)": (1, 99),
    "select flow_id, next_after from ff.list_flows(0::smallint, $1, $2, $3, true)": (1, 99),
}


async def test_no_position_of_a_list_names_an_execution_of_theirs(ours, theirs, keeper):
    """It did. Whoever has some hundred ids of a process can compute those it will make, and take
    them first."""
    minted = [uuid7() for _ in range(10_080)]
    owned = {*minted[40::350], minted[0], minted[-1]}
    for engine in (ours, theirs):
        route = await engine.register(lane="walk", task="walk")
        ids = [id for id in minted if (id in owned) == (engine is ours)]
        for start in range(0, len(ids), 1000):
            await engine.submit_many(
                [Item(id=id, route=route) for id in ids[start : start + 1000]], hint=False
            )
        await keeper.execute(
            "insert into ff.flow (partition_key, flow_id, namespace, flow_kind, created_at, "
            "mutated_at) select 0, u.id, $1, 'walk', now(), now() from unnest($2::uuid[]) u(id)",
            *(engine.namespace, ids),
        )
    for page, limits in PAGES.items():
        for limit in limits:
            found, position = [], None
            while True:
                *rows, (_, position) = await ours.connection.fetch(page, OURS, position, limit)
                found += [id for id, _ in rows if id in owned]
                assert position is None or position not in minted or position in owned, page
                if position is None:
                    break
            if "null::uuid" not in page:
                assert sorted(found) == sorted(owned), page


async def test_an_execution_of_ours_beside_theirs_does_not_give_it_away(ours, theirs):
    """The shortest look is at two: ours, with an id that we chose, and the one below."""
    known = UUID(int=uuid7().int | (1 << 64) - 1)  # all that a position tells of an id
    secret = UUID(int=known.int - (1 << 62))
    for engine, id in ((theirs, secret), (ours, UUID(int=known.int - 1))):
        await engine.submit(id=id, route=await engine.register(lane="walk"))
    for cursor in (known, UUID(int=known.int - 1), UUID(int=known.int + 1)):
        rows = await ours.connection.fetch(
            "select next_cursor from ff.list_executions(0::smallint, $1, p_cursor => $2, "
            "p_limit => 1)",
            *(OURS, cursor.hex),
        )
        assert rows[-1]["next_cursor"] != secret.hex
