"""Tags: set, read, and never half of them."""

from __future__ import annotations

import asyncio
import json

import pytest

from flowfabric.core.errors import ExecutionNotFound, InvalidInput
from flowfabric.core.ids import mint
from support.factories import Engine, refused
from worker.waiting import eventually

from .stage import Stage

BAD_KEYS = (
    "",
    "Cairn.x",
    "1cairn.x",
    "cairn",
    "cairn.",
    "cairn..x",
    ".cairn",
    "cair n.x",
    "ca-irn.x",
    "cairn.Foo",
    "cairn.foo bar",
    'cairn.foo"bar',
    "cairn.foo-bar",
    "cairn.foo\\bar",
)


async def test_tags_come_back_in_order(stage: Stage) -> None:
    id = await stage.submit()
    assert (
        await stage.executions.set_tags(id, {"b.x": "2", "a1_2.x": "ü", "app.sub.field": ""}) == 3
    )
    assert list((await stage.executions.tags(id)).items()) == [
        ("a1_2.x", "ü"),
        ("app.sub.field", ""),
        ("b.x", "2"),
    ]
    assert await stage.executions.tag(id, "b.x") == "2"
    assert await stage.executions.tag(id, "b.y") is None


async def test_an_execution_without_tags_can_get_some(stage: Stage) -> None:
    """Whether or not it has a body yet, and its time of mutation moves."""
    bare = await stage.submit()
    bodied = await stage.submit(payload=b"x" * 300, creator="ada")
    await stage.clock.advance(seconds=1)
    for id in (bare, bodied):
        await stage.executions.set_tag(id, "a.b", "c")
        info = await stage.executions.describe(id)
        assert info.tags == {"a.b": "c"}
        assert info.mutated_at == await stage.now()
    assert (info.payload, info.creator) == (b"x" * 300, "ada")


async def test_a_new_value_leaves_the_others(stage: Stage) -> None:
    id = await stage.submit(tags={"a.b": "1", "a.c": "2"})
    await stage.executions.set_tag(id, "a.b", "3")
    assert await stage.executions.tags(id) == {"a.b": "3", "a.c": "2"}


async def test_tagging_is_no_event_and_no_move(stage: Stage) -> None:
    held = await stage.claimed()
    before = await stage.executions.describe(held.id)
    await stage.clock.advance(seconds=1)
    await stage.executions.set_tag(held.id, "a.b", "c")
    after = await stage.executions.describe(held.id)
    assert (after.version, after.transitioned_at) == (before.version, before.transitioned_at)
    assert len(await stage.executions.events(held.id)) == 2
    await stage.executions.complete(held)


async def test_an_ended_execution_can_be_tagged(stage: Stage) -> None:
    held = await stage.claimed()
    await stage.executions.complete(held)
    await stage.executions.set_tag(held.id, "a.b", "c")
    assert await stage.executions.tag(held.id, "a.b") == "c"


async def test_the_same_tags_again_change_nothing(stage: Stage) -> None:
    id = await stage.submit()
    await stage.executions.set_tag(id, "a.b", "c")
    before = await stage.executions.describe(id)
    await stage.clock.advance(seconds=1)
    await stage.executions.set_tag(id, "a.b", "c")
    assert await stage.executions.describe(id) == before


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_a_bad_key_stores_nothing_at_all(stage: Stage, engine: Engine, key: str) -> None:
    id = await stage.submit(tags={"a.b": "1"})
    for call in (
        stage.executions.set_tag(id, key, "x"),
        stage.executions.set_tags(id, {"a.b": "2", key: "x"}),
        stage.executions.set_tags_of([id, mint()], {key: "x"}),
        stage.executions.tag(id, key),
    ):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.field == "tags"
        assert repr(key) in str(caught.value)
    with refused("WF001", field="tags"):
        await set_tags(engine, [id.uuid], json.dumps({"a.b": "2", key: "x"}))
    assert await stage.executions.tags(id) == {"a.b": "1"}


@pytest.mark.parametrize("tags", [None, "{}", "[]", "x", '{"a.b": 1}', '{"a.b": null}'])
async def test_the_engine_refuses_what_are_no_tags(
    stage: Stage, engine: Engine, tags: str | None
) -> None:
    id = await stage.submit()
    with refused("WF001", field="tags"):
        await set_tags(engine, [id.uuid], tags)
    with refused("WF001", field="execution_ids"):
        await set_tags(engine, None, '{"a.b": "c"}')
    assert await stage.executions.tags(id) == {}


async def test_no_tags_at_all_are_refused(stage: Stage) -> None:
    id = await stage.submit()
    with pytest.raises(InvalidInput, match="must not be empty"):
        await stage.executions.set_tags(id, {})


async def test_more_than_64_in_the_end_are_refused(stage: Stage) -> None:
    id = await stage.submit(tags={f"a.t{n}": "x" for n in range(60)})
    with pytest.raises(InvalidInput, match="more than 64"):
        await stage.executions.set_tags(id, {f"b.t{n}": "x" for n in range(5)})
    assert len(await stage.executions.tags(id)) == 60
    await stage.executions.set_tags(id, {f"b.t{n}": "x" for n in range(4)})
    assert len(await stage.executions.tags(id)) == 64


async def test_many_executions_at_once(stage: Stage) -> None:
    ids = [await stage.submit() for _ in range(3)]
    missing = mint()
    refused = await stage.executions.set_tags_of([*ids, missing, ids[0]], {"a.b": "c"})
    assert list(refused) == [missing]
    assert isinstance(refused[missing], ExecutionNotFound)
    for id in ids:
        assert await stage.executions.tags(id) == {"a.b": "c"}


async def test_the_instance_tag_follows(stage: Stage) -> None:
    await stage.db.execute(
        "insert into ff.meta (name, value) values ('instance_tag_key', 'app.instance') "
        "on conflict (name) do update set value = excluded.value"
    )
    id = await stage.submit(tags={"app.instance": "one"})
    await stage.executions.set_tag(id, "app.other", "x")
    assert (await stage.executions.describe(id)).instance_tag == "one"
    await stage.executions.set_tag(id, "app.instance", "two")
    assert (await stage.executions.describe(id)).instance_tag == "two"
    await stage.claim()
    assert [event.instance_tag for event in await stage.executions.events(id)] == ["one", "two"]


async def test_a_busy_execution_is_waited_for_and_the_others_are_not(stage: Stage) -> None:
    busy, free = await stage.submit(), await stage.submit()
    side = await stage.db.connect()
    transaction = side.transaction()
    await transaction.start()
    await side.execute(
        "select from ff.execution where execution_id = $1 for no key update", busy.uuid
    )
    tagging = asyncio.ensure_future(stage.executions.set_tags_of([busy, free], {"a.b": "c"}))
    assert await eventually(lambda: stage.executions.tags(free)) == {"a.b": "c"}
    assert not tagging.done()
    await transaction.rollback()
    assert await tagging == {}
    assert await stage.executions.tags(busy) == {"a.b": "c"}


async def test_two_who_tag_at_once_both_count(stage: Stage) -> None:
    id = await stage.submit()
    await asyncio.gather(*(stage.executions.set_tag(id, f"a.t{n}", str(n)) for n in range(12)))
    assert await stage.executions.tags(id) == {f"a.t{n}": str(n) for n in range(12)}


async def set_tags(engine: Engine, ids: object, tags: str | None) -> None:
    await engine.connection.fetch(
        "select * from ff.set_tags(0::smallint, 'test', $1::uuid[], $2)", ids, tags
    )
