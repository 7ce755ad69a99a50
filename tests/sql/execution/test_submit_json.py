"""ff.submit_json: submit for drivers without arrays, and inside a transaction of the caller's."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from support.factories import new_id, refused

CALL = "select ff.submit_json($1::smallint, $2, $3::text::jsonb, $4)::text"


async def submit(engine, *items: Any, namespace: str | None = "test", database: str | None = None):
    text = await engine.connection.fetchval(
        CALL, engine.partition_key, namespace, json.dumps(items), database
    )
    return json.loads(text)


@pytest.fixture
async def item(engine):
    """A function that makes an item, with a new id unless one is given."""
    route = await engine.register()

    def make(**fields: Any) -> dict[str, Any]:
        return {"execution_id": str(new_id()), "route_id": route, **fields}

    return make


async def test_each_item_gets_its_answer(engine, item):
    items = [item(payload={"a": [1, "ü"]}), item()]
    answer = await submit(engine, *items)

    assert answer["items"] == [
        {"item": n, "outcome": "created", "execution_id": one["execution_id"], "detail": None}
        for n, one in enumerate(items, 1)
    ]
    first, second = [await engine.row(one["execution_id"]) for one in items]
    assert json.loads(first["payload"]) == {"a": [1, "ü"]}
    assert second["payload"] is None
    assert first["public_state"] == "waiting"
    assert [event["kind"] for event in await engine.events()] == ["submitted", "submitted"]


async def test_every_field_is_stored(db, clock, engine, item):
    now = await clock.freeze()
    parent = item()
    one = item(
        payload_base64=base64.b64encode(b"\x00\xff").decode(),
        payload_encoding="raw",
        priority=7,
        delay_ms=1500.25,
        deadline_ms=60000,
        policy={"retry_policy": {"max_retries": 2}},
        max_reclaims=3,
        tags={"team.name": "blue"},
        creator="ann",
        key="k",
        key_scope="unfinished",
        key_window_ms=1000,
        parent_id=parent["execution_id"],
        with_parent=True,
        trace_context="{}",
        task_version="2",
    )
    answer = await submit(engine, parent)
    answer = await submit(engine, one, item(delayed_until="2999-01-01T00:00:00Z"))

    assert [told["outcome"] for told in answer["items"]] == ["created", "created"]
    row = await engine.row(one["execution_id"])
    assert (row["payload_encoding"], row["rank"]) == ("raw", 8993)
    payload = await db.fetchval(
        "select payload from ff.execution_view where execution_id = $1", row["execution_id"]
    )
    assert payload == b"\x00\xff"
    assert (row["delayed_until"] - now).total_seconds() == 1.50025
    assert (row["deadline_at"] - now).total_seconds() == 60
    assert row["max_reclaims"] == 3
    assert str(row["parent_id"]) == parent["execution_id"]
    assert row["ends_with_parent"]
    body = await db.fetchrow(
        "select * from ff.execution_body where execution_id = $1", row["execution_id"]
    )
    assert json.loads(body["policy"]) == {"retry_policy": {"max_retries": 2}}
    assert json.loads(body["tags"]) == {"team.name": "blue"}
    assert (body["creator"], body["trace_context"], body["task_version"]) == ("ann", "{}", "2")
    key = await db.fetchrow("select * from ff.idempotency_key")
    assert (key["key"], key["scope"]) == ("k", "unfinished")
    assert (key["expires_at"] - now).total_seconds() == 1


async def test_a_key_without_a_fingerprint_has_that_of_task_and_payload(db, engine, item):
    await submit(engine, item(key="k", payload={"a": 1}))
    task = await db.fetchval("select task from ff.route")
    stored = await db.fetchval("select fingerprint from ff.idempotency_key")
    assert stored == hashlib.sha256(task.encode() + b'\0{"a": 1}').digest()

    again, other = item(key="k", payload={"a": 1}), item(key="k", payload={"a": 2})
    answer = await submit(engine, again, other)

    assert [told["outcome"] for told in answer["items"]] == ["duplicate", "key_reused"]
    assert answer["items"][0]["execution_id"] != again["execution_id"]


async def test_a_repeat_gets_the_first_answer(engine, item):
    one = item()
    await submit(engine, one)
    answer = await submit(engine, one)

    assert answer["items"] == [
        {"item": 1, "outcome": "duplicate", "execution_id": one["execution_id"], "detail": None}
    ]
    assert len(await engine.rows()) == 1


BAD = {
    "execution_id": ["x", None, 3, "01a1e29c-3d62-71f1-bdf2"],
    "route_id": ["x", None, 1.5, 10**30, {}],
    "priority": ["high", 1.5, 2**31, True],
    "max_reclaims": ["x", -1],
    "payload_base64": ["*", "abc", 7],
    "payload_encoding": [3, "x" * 65],
    "delay_ms": ["1", 10**15],
    "deadline_ms": [True],
    "key_window_ms": ["1 day"],
    "key_partitions": ["8", 1.5],
    "delayed_until": ["2026-02-31T00:00:00Z", "2026-03-01", "tomorrow", 5, "2026-03-01T09:00:00"],
    "deadline_at": ["infinity", "9999-12-31T23:59:59Z"],
    "policy": [3, "x", {"retries": 1}],
    "tags": ["x", {"Team": "x"}, {"team.a": 1}],
    "creator": [{}, "x" * 257],
    "key": [5, ""],
    "key_scope": [1],
    "key_fingerprint": ["zz", "abc"],
    "parent_id": ["x"],
    "with_parent": ["yes", True],
    "trace_context": [{}],
    "task_version": ["", 2],
    "prioritiy": [1],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values]
)
async def test_a_bad_value_is_answered_and_the_others_are_stored(engine, item, field, value):
    """In one transaction, which goes on: nothing is raised."""
    good = item()
    async with engine.connection.transaction():
        answer = await submit(engine, item(**{field: value}), good)
        assert await engine.connection.fetchval("select 1") == 1

    bad, stored = answer["items"]
    assert bad["outcome"] == "invalid", answer
    told = {"with_parent": "parent_id"}.get(field, field) if value is True else field
    assert bad["detail"]["field"] in (told, field.removesuffix("_ms"))
    assert bad["detail"]["problem"]
    assert (stored["item"], stored["outcome"]) == (2, "created")
    assert [str(row["execution_id"]) for row in await engine.rows()] == [good["execution_id"]]


@pytest.mark.parametrize("value", [-1, "1e400", {"a.b": "c"}])
async def test_a_bad_with_parent_is_answered_beside_a_good_parent(engine, item, value):
    parent = item()
    await submit(engine, parent)
    answer = await submit(engine, item(parent_id=parent["execution_id"], with_parent=value))
    assert answer["items"][0]["detail"] == {
        "field": "with_parent",
        "problem": "must be true or false",
    }


async def test_null_is_nothing_asked_for(engine, item):
    others = {
        field: None for field in BAD if field not in ("execution_id", "route_id", "prioritiy")
    }
    answer = await submit(engine, item(**others))
    assert [told["outcome"] for told in answer["items"]] == ["created"]


async def test_a_payload_has_one_form(engine, item):
    answer = await submit(engine, item(payload=1, payload_base64=""))
    assert answer["items"][0]["detail"]["field"] == "payload"


async def test_items_that_are_no_objects_are_answered(engine, item):
    answer = await submit(engine, 3, [], None, item())
    assert [told["outcome"] for told in answer["items"]] == ["invalid"] * 3 + ["created"]


async def test_an_unknown_route_and_a_closed_lane_are_answered(db, engine, item):
    one = item()
    await db.execute("update ff.lane set state = 'disabled'")
    answer = await submit(engine, one, item(route_id=5))
    assert [told["outcome"] for told in answer["items"]] == ["lane_closed", "unknown_route"]


@pytest.mark.parametrize("items", ['{"a": 1}', "3", "null", json.dumps([{}] * 1001)])
async def test_a_malformed_call_is_refused(engine, items):
    with refused("WF001", field="items"):
        await engine.connection.fetchval(CALL, engine.partition_key, "test", items, None)


async def test_a_namespace_is_needed(engine, item):
    with refused("WF001", field="namespace"):
        await submit(engine, item(), namespace=None)


async def test_no_items_ask_for_the_database(engine):
    answer = await submit(engine)
    again = await submit(engine)
    assert answer["items"] == []
    assert answer == again
    assert answer["database"]


async def test_a_call_meant_for_another_database_stores_nothing(db, engine, item):
    database = (await submit(engine))["database"]
    assert (await submit(engine, item(), database=database))["items"][0]["outcome"] == "created"

    answer = await submit(engine, item(), item(), database="elsewhere")

    for told in answer["items"]:
        assert told["outcome"] == "invalid"
        assert told["detail"]["field"] == "database"
        assert db.name in told["detail"]["problem"]
    assert len(await engine.rows()) == 1
