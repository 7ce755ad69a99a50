"""The registry of tasks, and submits of tasks that have limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from support.database import home
from support.factories import NAMESPACE, TASK, Engine, Item, new_id, refused

TENANT = {"kind": "quota", "name": "tenant", "is_keyed": True, "argument": "tenant"}
OPENAI = {"kind": "quota", "name": "openai", "is_keyed": False, "argument": None}
MONTHLY = {"kind": "budget", "name": "monthly", "is_keyed": True, "argument": None}


async def register(
    engine: Engine,
    *limits: dict[str, Any],
    tasks: tuple[str | None, ...] = (TASK,),
    version: tuple[int, ...] = (1,),
    namespace: str | None = NAMESPACE,
    **changes: Any,
) -> list[str]:
    """Register tasks with these limits; return the outcome of each."""
    given = {
        "namespace": namespace,
        "version": list(version),
        "tasks": list(tasks),
        "limits": [json.dumps(limits)] * len(tasks),
        **changes,
    }
    text = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(given, 1))
    rows = await engine.connection.fetch(
        f"select task, outcome from ff.register_tasks({text})", *given.values()
    )
    assert sorted(row["task"] for row in rows) == sorted(task or "" for task in tasks)
    return [row["outcome"] for row in rows]


async def describe(engine: Engine, task: str = TASK) -> dict[str, Any] | None:
    row = await engine.connection.fetchrow(
        "select namespace, task, version, arguments, result, limits, lanes, app_version,"
        " registered_at, changed_at from ff.describe_task(p_namespace => $1, p_task => $2)",
        engine.namespace,
        task,
    )
    return None if row is None else dict(row)


async def test_a_task_is_described_as_it_was_registered(clock, engine):
    now = await clock.freeze()
    await engine.register(lane="mail")
    outcomes = await register(
        engine,
        TENANT,
        versions=["7"],
        arguments=['{"type": "object"}'],
        results=['{"type": "string"}'],
    )
    assert outcomes == ["registered"]
    told = await describe(engine)
    assert told is not None
    assert json.loads(told.pop("limits")) == [TENANT]
    assert json.loads(told.pop("arguments")) == {"type": "object"}
    assert json.loads(told.pop("result")) == {"type": "string"}
    assert told == {
        "namespace": NAMESPACE,
        "task": TASK,
        "version": "7",
        "lanes": ["mail"],
        "app_version": [1],
        "registered_at": now,
        "changed_at": now,
    }
    assert await describe(engine, "shop.unknown") is None


async def test_a_repeat_changes_nothing_and_a_null_schema_keeps_the_known_one(clock, engine):
    await register(engine, TENANT, arguments=['{"type": "object"}'])
    assert await register(engine, TENANT) == ["unchanged"]
    assert await register(engine, TENANT, versions=["8"]) == ["changed"]
    told = await describe(engine)
    assert told is not None
    assert json.loads(told["arguments"]) == {"type": "object"}


async def test_the_newest_version_of_an_app_decides(engine):
    await register(engine, TENANT, version=(2, 0))
    assert await register(engine, version=(1, 9)) == ["newer"]
    told = await describe(engine)
    assert told is not None
    assert json.loads(told["limits"]) == [TENANT]
    assert await register(engine, version=(2, 1)) == ["changed"]
    assert (await engine.submit()).word == "created"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("namespace", {"namespace": "a b"}),
        ("version", {"version": ()}),
        ("tasks", {"tasks": ("a b",)}),
        ("tasks", {"tasks": (TASK, TASK)}),
        ("tasks", {"limits": []}),
        ("versions", {"versions": [""]}),
        ("limits", {"limits": ['{"name": "tenant"}']}),
        ("limits", {"limits": ['[{"kind": "quota", "name": "x", "is_keyed": true, "more": 1}]']}),
        ("limits.kind", {"limits": ['[{"kind": "lane", "name": "x", "is_keyed": true}]']}),
        ("limits.name", {"limits": ['[{"kind": "quota", "name": "a b", "is_keyed": true}]']}),
        ("limits.is_keyed", {"limits": ['[{"kind": "quota", "name": "x"}]']}),
        (
            "limits.argument",
            {"limits": ['[{"kind": "quota", "name": "x", "is_keyed": true, "argument": 1}]']},
        ),
        ("limits.name", {"limits": [json.dumps([TENANT, TENANT])]}),
    ],
)
async def test_what_cannot_be_registered_is_named_and_changes_nothing(engine, field, changes):
    with refused("WF001", field=field):
        await register(engine, **changes)
    assert await engine.connection.fetchval("select count(*) from ff.task") == 0


async def test_tasks_are_listed_once_whether_registered_or_submitted(engine):
    await engine.register(task="shop.submitted")
    await register(engine, TENANT, tasks=("shop.limited", "shop.submitted"))
    await register(engine, tasks=("shop.plain",))
    await engine.register(task="shop.only_submitted")
    rows = await engine.connection.fetch(
        "select task, is_registered, is_limited from ff.list_tasks(p_namespace => $1)", NAMESPACE
    )
    assert [tuple(row) for row in rows] == [
        ("shop.limited", True, True),
        ("shop.only_submitted", False, False),
        ("shop.plain", True, False),
        ("shop.submitted", True, True),
    ]
    rest = await engine.connection.fetch(
        "select task from ff.list_tasks(p_namespace => $1, p_after => 'shop.only', p_limit => 2)",
        NAMESPACE,
    )
    assert [row["task"] for row in rest] == ["shop.only_submitted", "shop.plain"]


async def test_a_route_learns_of_limits_whichever_comes_first(engine):
    before = await engine.register(lane="before")
    await register(engine, TENANT)
    after = await engine.register(lane="after")
    other = await engine.register(task="tests.other")
    for route, word in ((before, "invalid"), (after, "invalid"), (other, "created")):
        assert (await engine.submit(route=route)).word == word


async def test_a_new_route_and_a_change_of_limits_wait_for_each_other(db, engine):
    other = Engine(await db.connect())
    async with engine.connection.transaction():
        await engine.register(lane="new")
        waiting = asyncio.create_task(register(other, TENANT))
        await db.until_waiting(waiting)
    assert await waiting == ["registered"]
    assert (await engine.submit(route=await engine.register(lane="new"))).word == "invalid"


async def test_a_limit_that_is_gone_no_longer_needs_a_key(engine):
    await register(engine, TENANT)
    assert (await engine.submit()).word == "invalid"
    await register(engine)
    assert (await engine.submit()).word == "created"


async def gates(engine: Engine, *asked: tuple[str, str, str]) -> dict[str, list[str]]:
    """Register gates by kind, name and key; return the options that name them."""
    found: dict[str, list[str]] = {}
    for kind, name, key in asked:
        numbers = {"concurrency": 1} if kind == "quota" else {"limits": {"usd": {"hard": 1}}}
        gate = {"kind": kind, "name": name, **numbers} | ({"key": key} if key else {})
        row = await engine.connection.fetchrow(
            f"select gate_id, outcome from ff.register_gates('{home()}', $1, $2::jsonb)",
            engine.namespace,
            json.dumps([gate]),
        )
        assert row["outcome"] == "registered"
        found.setdefault(f"{kind}s", []).append(str(row["gate_id"]))
    return found


ACME = ("quota", "tenant", "acme")
SHARED = ("quota", "openai", "")
ACME_MONTHLY = ("budget", "monthly", "acme")
UNKEYED_MONTHLY = ("budget", "monthly", "")


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ((), "quotas", "the quota tenant: register its gate with the argument tenant as its key"),
        ((SHARED, ACME_MONTHLY), "quotas", "under the quota tenant"),
        ((ACME, ACME_MONTHLY), "quotas", "under the quota openai: register its gate, and name"),
        ((ACME, SHARED), "budgets", "under the budget monthly: register its gate with its key"),
        ((ACME, SHARED, UNKEYED_MONTHLY), "budgets", "under the budget monthly"),
        ((ACME, SHARED, ACME_MONTHLY), None, None),
    ],
)
async def test_a_submit_of_a_limited_task_without_its_keys_is_refused(
    engine, given, field, problem
):
    await register(engine, TENANT, OPENAI, MONTHLY)
    route = await engine.register()
    rows = await engine.connection.fetch(
        f"select outcome, detail from ff.submit_executions(p_partition_key => '{home()}',"
        " p_namespace => $1, p_execution_ids => array[$2::uuid], p_route_ids => array[$3::bigint],"
        " p_payloads => array['{}'::bytea], p_options => array[$4::jsonb])",
        NAMESPACE,
        new_id(),
        route,
        json.dumps(await gates(engine, *given)),
    )
    if field is None:
        assert rows == []
        return
    detail = json.loads(rows[0]["detail"])
    assert (rows[0]["outcome"], detail["field"]) == ("invalid", field)
    assert problem in detail["problem"]
    assert TASK in detail["problem"]


async def test_json_and_flows_are_refused_alike_and_store_nothing(engine):
    await register(engine, TENANT)
    route = await engine.register()
    item = {"execution_id": str(new_id()), "route_id": route}
    answer = json.loads(
        await engine.connection.fetchval(
            f"select ff.submit_json('{home()}', $1, $2::jsonb)",
            NAMESPACE,
            json.dumps([item]),
        )
    )
    assert answer["items"][0]["outcome"] == "invalid"
    assert answer["items"][0]["detail"]["field"] == "quotas"
    flow = {
        "flow_id": str(new_id()),
        "flow_kind": "report",
        "nodes": [{"name": "one", **item}],
        "edges": [],
        "groups": [],
    }
    answer = json.loads(
        await engine.connection.fetchval(
            f"select ff.submit_flow('{home()}', $1, $2::jsonb)", NAMESPACE, json.dumps(flow)
        )
    )
    assert (answer["outcome"], answer["detail"]["field"]) == ("invalid", "nodes[0].quotas")
    assert await engine.connection.fetchval("select count(*) from ff.execution") == 0


async def test_of_a_batch_only_the_items_without_a_key_are_refused(engine):
    await register(engine, TENANT)
    free = await engine.register(task="tests.free")
    answers = await engine.submit_many([Item(), Item(route=free)])
    assert [answer.word for answer in answers] == ["invalid", "created"]


HOSTILE = [
    ["abc"], ["-1"], [1.5], ["1e5"], [" 5"], ["٣"], [True], [None], [[]], [{}], "x", {"a": 1}, 7,
    [str(2**63)], ["1"] * 21,
]  # fmt: skip


@pytest.mark.parametrize("is_limited", [False, True])
async def test_an_item_with_bad_gates_is_refused_and_its_neighbours_are_stored(engine, is_limited):
    if is_limited:
        await register(engine, OPENAI)
    route = await engine.register()
    good = await gates(engine, SHARED)
    bad = [{field: ids} for field in ("quotas", "budgets") for ids in HOSTILE]
    bad.append({**good, "fair_key": "x" * 10_000})
    options = [good, *bad, good]
    ids = [new_id() for _ in options]
    rows = await engine.connection.fetch(
        f"select item, outcome from ff.submit_executions('{home()}', $1, $2::uuid[], "
        "array[$3::bigint], array['1'::bytea], p_options => $4::jsonb[])",
        NAMESPACE,
        ids,
        route,
        [json.dumps(one) for one in options],
    )
    assert sorted(map(tuple, rows)) == [(n, "invalid") for n in range(2, len(bad) + 2)]
    stored = await engine.connection.fetch("select execution_id from ff.execution")
    assert {row["execution_id"] for row in stored} == {ids[0], ids[-1]}
    for one in bad:
        rows = await engine.connection.fetch(
            f"select outcome from ff.submit_executions('{home()}', $1, array[$2::uuid], "
            "array[$3::bigint], array['1'::bytea], p_options => array[$4::jsonb])",
            NAMESPACE,
            new_id(),
            route,
            json.dumps(one),
        )
        assert [row["outcome"] for row in rows] == ["invalid"], one
    assert await engine.connection.fetchval("select count(*) from ff.fair_key") == 0
