"""ff.read_events on the events of real transitions: what they carry, and what filters hide."""

from __future__ import annotations

import pytest

from support.database import home
from support.factories import STATES, Engine, Item, refused

NO_FILTER: dict[str, object] = {}


async def start(db) -> str:
    return await db.fetchval(f"select ff.open_cursor('{home()}')")


def position(cursor: str) -> list[str]:
    """A cursor without its list of unfinished transactions: others on this server may end."""
    parts = cursor.split(":")
    return parts[:7] + parts[8:12]


async def read(db, cursor, *, namespace=None, limit=500, **filters):
    """The events of a page and the cursor behind it."""
    given = "".join(f", p_{name} => ${number}" for number, name in enumerate(filters, 4))
    rows = await db.fetch(
        f"select * from ff.read_events(p_partition_key => '{home()}', p_namespace => $1, "
        f"p_cursor => $2, p_limit => $3{given})",
        namespace,
        cursor,
        limit,
        *filters.values(),
    )
    *events, end = rows
    assert end["event_id"] is None
    assert all(event["next_cursor"] is None for event in events)
    return events, end["next_cursor"]


async def test_each_transition_is_read_as_its_event_with_all_it_carries(db, engine, make):
    cursor = await start(db)
    execution = await make.execution("completed", lane="mail")
    events, _ = await read(db, cursor)
    assert [(e["version"], e["kind"], e["outcome"]) for e in events] == [
        (1, "submitted", None),
        (2, "claimed", None),
        (3, "completed", "success"),
    ]
    rows = await db.fetch(
        "select event_id, occurred_at, attempt_index, lease_id, epoch, worker_instance_id, "
        "namespace from ff.event order by event_id"
    )
    for event, row in zip(events, rows, strict=True):
        assert event["execution_id"] == execution.id
        assert (event["lane"], event["task"]) == ("mail", "tests.work")
        assert {name: event[name] for name in row.keys()} == dict(row)  # noqa: SIM118
    assert events[1]["lease_id"] == execution.last_lease.lease_id
    assert events[1]["worker_instance_id"] == "pool-1"


@pytest.mark.parametrize(
    "state",
    ["delayed", "interrupted", "resumed", "retry_delayed", "expired_lease", "reclaimed", "failed"],
)
@pytest.mark.parametrize("limit", [1, 500])
async def test_an_execution_is_read_in_order_of_version_whatever_happened(db, make, state, limit):
    cursor = await start(db)
    execution = await make.execution(state)
    seen = []
    for _ in range(20):
        events, cursor = await read(db, cursor, limit=limit)
        seen += [event["version"] for event in events if event["execution_id"] == execution.id]
        if not events:
            break
    version = await db.fetchval(
        "select version from ff.execution where execution_id = $1", execution.id
    )
    assert seen == list(range(1, version + 1))


@pytest.mark.parametrize("limit", [1, 500])
async def test_a_life_that_spans_generations_is_one_history(db, engine, make, limit):
    """After each event the partition moves, and event ids begin again; invariants hold."""
    leased = [await make.execution("leased") for _ in range(2)]
    assert await db.fetchval(f"select ff._raise_generation('{home()}')") == 1
    await db.execute("alter table ff.event alter column event_id restart with 1")
    for execution in leased:
        await engine.complete(execution.last_lease)
    await db.execute(f"select ff._raise_generation('{home()}')")
    await db.execute("alter table ff.event alter column event_id restart with 1")
    await engine.replay(leased[0].id)
    cursor = await db.fetchval(f"select ff.open_cursor('{home()}', '2000-01-01')")
    seen = []
    for _ in range(20):
        events, cursor = await read(db, cursor, limit=limit)
        seen += [(event["execution_id"], event["version"]) for event in events]
    assert len(seen) == 7
    for execution, last in zip(leased, (4, 3), strict=True):
        assert [v for id_, v in seen if id_ == execution.id] == list(range(1, last + 1))
        listed = await engine.events(execution.id)
        assert [event["version"] for event in listed] == list(range(1, last + 1))
    generations = await db.fetch("select distinct generation from ff.event order by 1")
    assert [row[0] for row in generations] == [0, 1, 2]


@pytest.fixture
async def scene(db, engine, make):
    """Two lanes, two tasks, two tenants, two tags; the cursor before all of it."""
    await db.execute("update ff.meta set value = 'app.instance' where name = 'instance_tag_key'")
    cursor = await start(db)
    mail = await engine.register(lane="mail", task="send")
    page = await engine.register(lane="page", task="render")
    ids = {}
    for name, route, tag in (("a", mail, "i1"), ("b", page, "i2"), ("c", mail, None)):
        tags = None if tag is None else {"app.instance": tag}
        ids[name] = (await engine.submit(Item(route=route, tags=tags))).id
    lease = await engine.take(ids["a"], lanes=["mail"])
    await engine.complete(lease)
    other = Engine(db.conn, namespace="other")
    ids["d"] = (await other.submit()).id
    return cursor, {id_: name for name, id_ in ids.items()}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (NO_FILTER, "a1 b1 c1 a2 a3 d1"),
        ({"namespace": "test"}, "a1 b1 c1 a2 a3"),
        ({"namespace": "other"}, "d1"),
        ({"namespace": "nobody"}, ""),
        ({"kinds": ["completed"]}, "a3"),
        ({"kinds": ["submitted", "claimed"]}, "a1 b1 c1 a2 d1"),
        ({"kinds": []}, ""),
        ({"kinds": ["no such kind"]}, ""),
        ({"lanes": ["mail"]}, "a1 c1 a2 a3"),
        ({"lanes": ["page", "default"]}, "b1 d1"),
        ({"tasks": ["send"]}, "a1 c1 a2 a3"),
        ({"tasks": ["render", "send"]}, "a1 b1 c1 a2 a3"),
        ({"instance_tags": ["i1"]}, "a1 a2 a3"),
        ({"instance_tags": ["i2", "i3"]}, "b1"),
        ({"executions": "bd"}, "b1 d1"),
        ({"executions": ""}, ""),
        ({"lanes": ["mail"], "kinds": ["submitted"], "instance_tags": ["i1"]}, "a1"),
        ({"lanes": ["mail"], "tasks": ["render"]}, ""),
    ],
)
async def test_filters_hide_rows_and_move_the_cursor(db, scene, filters, expected):
    start, names = scene
    filters = dict(filters)
    if (wanted := filters.pop("executions", None)) is not None:
        filters["execution_ids"] = [id_ for id_, name in names.items() if name in wanted]
    _, end = await read(db, start)
    for limit in (1, 2, 500):
        cursor, seen = start, []
        for _ in range(20):
            events, after = await read(db, cursor, limit=limit, **filters)
            seen += [f"{names[event['execution_id']]}{event['version']}" for event in events]
            if position(after) == position(cursor):
                break
            cursor = after
        assert " ".join(seen) == expected
        assert position(cursor) == position(end)


async def test_a_filter_does_not_change_where_the_pages_end(db, make):
    """Each step of a reader with a filter leads to the same cursors as without one."""
    for _ in range(6):
        await make.execution("leased")
    plain = hidden = await db.fetchval(f"select ff.open_cursor('{home()}', '2000-01-01')")
    for _ in range(12):
        _, plain = await read(db, plain, limit=2)
        _, hidden = await read(db, hidden, limit=2, kinds=["completed"])
        assert position(plain) == position(hidden)


@pytest.mark.parametrize("role", ["flowfabric_app", "flowfabric_owner"])
async def test_events_are_read_without_being_a_superuser(db, role):
    """As the application's role; and from functions whose owner is no superuser either."""
    name = f"{role}_{db.name}"
    await db.execute(f"create role {name}")
    try:
        await db.execute(f"grant usage on schema ff to {name}")
        if role == "flowfabric_owner":
            await db.execute(f"grant select on all tables in schema ff to {name}")
            for function in ("open_cursor", "read_events"):
                await db.execute(f"alter function ff.{function} owner to {name}")
            await db.execute(f"grant execute on all functions in schema ff to {name}")
        else:
            for function in ("open_cursor", "read_events"):
                await db.execute(f"grant execute on function ff.{function} to {name}")
        await db.execute(f"set role {name}")
        events, _ = await read(db, await start(db))
        assert events == []
    finally:
        await db.execute("reset role")
        await db.execute(f"reassign owned by {name} to current_user; drop owned by {name}")
        await db.execute(f"drop role {name}")


async def test_nobody_else_may_call_them(db):
    name = f"nobody_{db.name}"
    await db.execute(f"create role {name}; grant usage on schema ff to {name}")
    try:
        await db.execute(f"set role {name}")
        with refused("42501"):
            await start(db)
    finally:
        await db.execute("reset role")
        await db.execute(f"drop owned by {name}; drop role {name}")


@pytest.mark.parametrize("state", STATES)
async def test_every_event_knows_its_namespace_and_its_tag(db, engine, make, state):
    await db.execute(
        "insert into ff.meta (name, value) values ('instance_tag_key', 'app.instance') "
        "on conflict (name) do update set value = excluded.value"
    )
    execution = await make.execution(state, tags={"app.instance": "blue"})
    events = await engine.events(execution.id)
    assert {(event["namespace"], event["instance_tag"]) for event in events} == {("test", "blue")}
