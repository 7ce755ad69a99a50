"""What cannot be submitted is refused with the field's name, and leaves no row behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric import App, FlowFabric, InvalidInput
from flowfabric.core.execution import MAX_PAYLOAD_BYTES, Route, Submission
from flowfabric.core.ids import ExecutionId, mint
from support.database import Database

ROUTE = Route("default", "default", "tests.work")


@pytest.fixture
async def client(db: Database) -> AsyncIterator[FlowFabric]:
    async with FlowFabric(db.url) as client:
        yield client


async def nothing_stored(db: Database) -> bool:
    count: int = await db.fetchval(
        "select (select count(*) from ff.execution) + (select count(*) from ff.event) "
        "+ (select count(*) from ff.idempotency_key)"
    )
    return count == 0


LANES = {
    "empty": "",
    "long": "x" * 65,
    "accent": "café",
    "nul": "a\x00b",
    "newline": "a\nb",
    "surrogate": "a\ud800",
    "number": 5,
    "list": [],
    "dictionary": {},
    "bytes": b"mail",
}
PRIORITIES = {"text": "high", "bool": True, "float": 1.5, "large": 2**31, "small": -(2**31) - 1}
TAGS = {
    "text": "a.b",
    "list": ["a.b"],
    "pairs": [("a.b", "c")],
    "number": 7,
    "upper": {"A.b": "x"},
    "flat": {"team": "x"},
    "empty": {"": "x"},
    "key type": {5: "x"},
    "value type": {"a.b": 5},
    "none": {"a.b": None},
    "nul": {"a.b": "x\x00"},
    "surrogate": {"a.b": "\ud800"},
    "long": {"a.b": "x" * 1025},
    "many": {f"a.b{n}": "x" for n in range(65)},
}
KEYS = {"empty": "", "long": "x" * 513, "nul": "a\x00", "number": 5, "surrogate": "\ud800"}
DELAYS = {"number": 5, "text": "1 hour", "endless": timedelta.max}
MOMENTS = {"naive": datetime(2026, 1, 1), "text": "tomorrow"}  # noqa: DTZ001
CAPABILITIES = {
    "text": "gpu",
    "number": {5},
    "empty": {""},
    "comma": {"a,b"},
    "space": {"a b"},
    "nul": {"a\x00"},
    "many": {f"c{n}" for n in range(257)},
    "long": {"x" * 4097},
    "surrogate": {"\ud800"},
}


def cases(options: dict[str, dict[str, Any]]) -> Any:
    # Known: core.execution.check_lane and core.policy.capability_set encode before they check.
    found = [
        (field, value, f"{field}-{name}")
        for field, some in options.items()
        for name, value in some.items()
    ]
    return pytest.mark.parametrize(
        ("field", "value"),
        [
            pytest.param(
                field,
                value,
                id=id,
            )
            for field, value, id in found
        ],
    )


@cases(
    {
        "lane": LANES,
        "priority": PRIORITIES,
        "tags": TAGS,
        "key": KEYS,
        "delay": DELAYS,
        "delayed_until": MOMENTS,
        "unique": {"word": "sometimes"},
        "window": {"number": 5, "negative": timedelta(days=-1)},
    }
)
async def test_a_bad_option_of_a_task_is_refused_and_named(app, db, field, value):
    @app.task(name="shop.work")
    async def work(n: int) -> int:
        return n

    more = {"key": "k"} if field in ("unique", "window") else {}
    with pytest.raises(InvalidInput) as caught:
        await work.using(**{field: value, **more}).submit(1)

    assert field in str(caught.value)
    assert await nothing_stored(db)


@cases({"lane": LANES, "needs": CAPABILITIES, "name": {"empty": " ", "space": "a b", "nul": "\0"}})
def test_a_bad_option_is_refused_when_the_task_is_registered(field, value):
    app = App(database_url="postgresql://nowhere")

    with pytest.raises(InvalidInput) as caught:

        @app.task(**{field: value})
        async def work() -> None: ...

    assert field in str(caught.value)
    assert app.tasks == {}


@cases(
    {
        "namespace": {"empty": "", "nul": "a\x00", "long": "x" * 257, "number": 1, "list": []},
        "lane": LANES,
        "task": {"empty": "", "nul": "a\x00", "long": "x" * 257, "space": "a b", "list": []},
        "capabilities": {"set": {"gpu"}, "list": ["gpu"]},
    }
)
async def test_a_bad_route_is_refused_and_named(client, db, field, value):
    route = replace(ROUTE, **{field: value})

    with pytest.raises(InvalidInput) as caught:
        await client.executions.submit(Submission(id=mint(), route=route, payload=b"1"))

    assert caught.value.field == field
    assert await nothing_stored(db)
    assert await db.fetchval("select count(*) from ff.route") == 0


@cases(
    {
        "id": {"nil": ExecutionId.of(0, UUID(int=0))},
        "priority": PRIORITIES,
        "tags": TAGS,
        "creator": {"empty": "", "long": "x" * 257, "nul": "a\x00", "number": 5},
        "max_reclaims": {"negative": -1, "large": 1_000_001, "text": "3", "bool": True},
        "payload": {"large": b"x" * (MAX_PAYLOAD_BYTES + 1)},
        "policy": {
            "not json": "{",
            "number": "5",
            "unknown": '{"retry_policy": {"max_retries": -1}}',
        },
        "payload_encoding": {"long": "x" * 65},
    }
)
async def test_a_bad_field_of_a_submission_is_refused_and_named(client, db, field, value):
    one = Submission(id=mint(), route=ROUTE, payload=b"1")

    with pytest.raises(InvalidInput) as caught:
        await client.executions.submit(replace(one, **{field: value}))

    assert field in str(caught.value)
    assert await nothing_stored(db)


async def test_a_payload_of_a_mebibyte_is_stored_and_one_byte_more_is_not(app, db):
    @app.task(name="shop.work")
    async def work(text: str) -> None: ...

    most = MAX_PAYLOAD_BYTES - len('{"text":""}')
    with pytest.raises(InvalidInput, match=r"payload: is 1048577 bytes; at most 1048576"):
        await work.submit("x" * (most + 1))
    assert await nothing_stored(db)

    await work.submit("x" * most)
    assert await db.fetchval("select count(*) from ff.execution") == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        (("many",), {}, "count"),
        ((), {}, "count"),
        ((1, "x", 3), {}, "arguments of shop.work"),
        ((1,), {"colour": "red"}, "colour"),
        ((1,), {"note": object()}, "note"),
        ((1,), {"note": b"\xff"}, "note"),
        ((1,), {"note": "\ud800"}, "note"),
    ],
)
async def test_wrong_arguments_are_refused_and_named(app, db, args, kwargs, named):
    @app.task(name="shop.work")
    async def work(count: int, note: object = None) -> None: ...

    for submit in (work.submit(*args, **kwargs), app.submit("shop.work", *args, **kwargs)):
        with pytest.raises(InvalidInput) as caught:
            await submit
        assert named in str(caught.value)
        assert "shop.work" in str(caught.value)
    assert await nothing_stored(db)


async def test_an_unknown_task_is_refused_with_those_that_are_known(app, db):
    @app.task(name="shop.work")
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match=r"task: no task is named 'shop.wrok'.*shop.work"):
        await app.submit("shop.wrok")
    assert await nothing_stored(db)


async def test_text_with_nul_is_stored_inside_a_payload(app, db):
    """A payload is bytes to the engine: only the fields it reads itself are limited."""

    @app.task(name="shop.work")
    async def work(text: str) -> None: ...

    run = await work.submit("a\x00b")

    client = await app.client()
    assert work.spec.decode((await client.executions.describe(run.id)).payload) == (["a\x00b"], {})


async def test_submit_many_stores_nothing_if_one_of_them_is_bad(app, db):
    @app.task(name="shop.work")
    async def work(count: int) -> None: ...

    with pytest.raises(InvalidInput, match="count"):
        await work.submit_many([(1,), ("two",), (3,)])
    with pytest.raises(InvalidInput, match="priority"):
        await work.using(priority="high").submit_many([(1,), (2,)])
    assert await nothing_stored(db)


async def test_priorities_beyond_the_range_are_clamped(app, db):
    @app.task(name="shop.work")
    async def work() -> None: ...

    client = await app.client()
    for given, kept in ((-5, 0), (9000, 9000), (9001, 9000), (2**31 - 1, 9000)):
        run = await work.using(priority=given).submit()
        info = await client.executions.describe(run.id)
        assert info.priority == kept


def test_two_tasks_of_one_name_are_refused():
    app = App(database_url="postgresql://nowhere")

    @app.task(name="shop.work")
    async def one() -> None: ...

    with pytest.raises(InvalidInput, match=r"shop\.work is already registered"):

        @app.task(name="shop.work")
        async def two() -> None: ...


@pytest.mark.parametrize("word", [5, "\0", "\ud800", b"no"])
@pytest.mark.parametrize("field", ["reason", "actor"])
async def test_words_that_cannot_be_sent_are_named(client, field, word):
    given: Any = {field: word}
    id = mint()
    for call in (
        client.executions.cancel,
        client.executions.retry,
        client.executions.replay,
        client.executions.unblock,
    ):
        with pytest.raises(InvalidInput) as refused:
            await call(id, **given)
        assert refused.value.field == field
    for change in (client.schedules.pause, client.schedules.resume):
        with pytest.raises(InvalidInput) as refused:
            await change("tick", **given)
        assert refused.value.field == field


async def test_an_app_that_is_no_name_is_named(client):
    app: Any = 5
    with pytest.raises(InvalidInput) as refused:
        await client.schedules.get("tick", app=app)
    assert refused.value.field == "app"
    with pytest.raises(InvalidInput) as refused:
        await client.schedules.list(app=app)
    assert refused.value.field == "app"
