"""ff.declare_hooks, and what the transaction of an end submits."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from support.database import home
from support.factories import NAMESPACE, TASK, Engine, Item, refused
from support.hints import hints

HOOK = f"{TASK}.on_end"


async def declare(
    engine: Engine,
    *kinds: str,
    version: tuple[int, ...] = (1,),
    known: tuple[str, ...] | None = (TASK,),
    namespace: str = NAMESPACE,
    with_options: dict[str, Any] | None = None,
    **changes: Any,
) -> list[str]:
    """Declare one hook of each kind for the task of the tests; return the removed ones."""
    names = [f"{TASK}.on_{kind}" for kind in kinds]
    given = {
        "namespace": namespace,
        "version": list(version),
        "known": known and list(known),
        "tasks": [TASK] * len(kinds),
        "names": names,
        "kinds": list(kinds),
        "route_ids": [
            await engine.register(lane="hooks", task=name, namespace=namespace.strip() or None)
            for name in names
        ],
        "priorities": [5] * len(kinds),
        "options": [None if with_options is None else json.dumps(with_options)] * len(kinds),
        **changes,
    }
    text = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(given, 1))
    removed = await engine.connection.fetchval(
        f"select removed from ff.declare_hooks({text})", *given.values()
    )
    return list(removed)


async def hooks_of(engine: Engine, id: UUID) -> list[dict[str, Any]]:
    """The executions that the ends of an execution submitted, with their payloads."""
    rows = await engine.connection.fetch(
        "select e.execution_id, r.task, r.lane, e.rank, e.retention, e.ends_with_parent, e.flow_id,"
        " e.phase::text, coalesce(e.payload, b.payload) as payload, b.creator, b.tags::text,"
        " b.trace_context, e.payload_encoding"
        " from ff.execution e join ff.route r using (route_id)"
        " left join ff.execution_body b using (partition_key, execution_id)"
        " where e.parent_id = $1 order by e.created_at, r.task",
        id,
    )
    return [dict(row) | {"told": json.loads(row["payload"])} for row in rows]


KINDS = ("success", "failure", "cancel", "end")


@pytest.mark.parametrize(
    ("state", "outcome", "kind"),
    [
        ("completed", "success", "success"),
        ("failed", "failed", "failure"),
        ("expired", "expired", "failure"),
        ("timed_out", "expired", "failure"),
        ("cancelled", "cancelled", "cancel"),
        ("cancelled_unstarted", "cancelled", "cancel"),
    ],
)
async def test_an_end_submits_the_hooks_of_its_kind(clock, engine, make, state, outcome, kind):
    await clock.freeze()
    await declare(engine, *KINDS)
    execution = await make.execution(state)
    hooks = await hooks_of(engine, execution.id)
    assert {hook["task"] for hook in hooks} == {f"{TASK}.on_end", f"{TASK}.on_{kind}"}
    for hook in hooks:
        assert hook["told"]["outcome"] == outcome
        assert hook["told"]["task"] == TASK
        assert hook["told"]["execution_id"] == f"{{fp:{home()}}}:{execution.id}"
        assert (hook["lane"], hook["rank"]) == ("hooks", 8995)
        assert not hook["ends_with_parent"]


async def test_a_crash_loop_ends_with_its_hooks(clock, engine, make):
    await clock.freeze()
    await declare(engine, "failure")
    execution = await make.execution("over_the_cap")
    (hook,) = await hooks_of(engine, execution.id)
    assert hook["told"]["error"]["category"] == "reclaim_cap_exceeded"


async def test_a_retry_is_not_an_end(engine, make):
    await declare(engine, "end", "failure")
    execution = await make.execution("retry_delayed")
    assert not await hooks_of(engine, execution.id)


async def test_the_payload_says_all_about_the_end(clock, engine):
    now = await clock.freeze()
    await declare(engine, "end", with_options={"tags": {"team.name": "ops"}, "task_version": "7"})
    submitted = await engine.submit(
        payload=b'{"n": 7}', tags={"tenant.id": "a"}, trace='{"traceparent": "00-1"}'
    )
    lease = await engine.take(submitted.id)
    detail = b'{"type": "LookupError"}'
    await engine.fail(lease, "permanent", reason="no such thing", category="lost", detail=detail)
    (hook,) = await hooks_of(engine, submitted.id)
    assert hook["told"] == {
        "execution_id": f"{{fp:{home()}}}:{submitted.id}",
        "task": TASK,
        "outcome": "failed",
        "ended_at": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "attempts": 1,
        "replay_count": 0,
        "error": {
            "class": "permanent",
            "category": "lost",
            "reason": "no such thing",
            "detail": "eyJ0eXBlIjogIkxvb2t1cEVycm9yIn0=",
        },
        "arguments": {"n": 7},
        "result": None,
    }
    assert hook["creator"] == "hook:end"
    assert json.loads(hook["tags"]) == {"tenant.id": "a", "team.name": "ops"}
    assert hook["trace_context"] == '{"traceparent": "00-1"}'


async def test_bytes_that_are_not_json_are_base64(engine):
    await declare(engine, "end")
    submitted = await engine.submit(payload=b"\xff\x00", encoding="raw")
    lease = await engine.take(submitted.id)
    await engine.complete(lease, b"\xfe", encoding="raw")
    (hook,) = await hooks_of(engine, submitted.id)
    assert (hook["told"]["arguments"], hook["told"]["arguments_encoding"]) == ("/wA=", "raw")
    assert (hook["told"]["result"], hook["told"]["result_encoding"]) == ("/g==", "raw")


async def test_the_largest_payload_and_result_do_not_stop_an_end(engine):
    await declare(engine, "end")
    largest = b'"' + b"x" * (1_048_576 - 2) + b'"'
    submitted = await engine.submit(payload=largest)
    lease = await engine.take(submitted.id)
    assert (await engine.complete(lease, largest)).word == "completed"
    (hook,) = await hooks_of(engine, submitted.id)
    assert hook["told"]["arguments"] == hook["told"]["result"] == "x" * (1_048_576 - 2)


async def stores(engine: Engine, act: Any) -> int:
    """How many calls of _store_executions an act makes; the numbers of a call are bounded."""
    async with engine.connection.transaction():
        await engine.connection.execute("set local track_functions = 'all'")
        calls = (
            "select coalesce(sum(calls), 0)::int from pg_stat_xact_user_functions"
            " where funcname = '_store_executions'"
        )
        before = await engine.connection.fetchval(calls)
        await act()
        return int(await engine.connection.fetchval(calls)) - before


@pytest.mark.parametrize(
    ("ends", "hooks", "size", "calls"),
    [(5, 20, 2, 1), (6, 20, 2, 2), (2, 17, 1_048_576, 2)],
    ids=["100 hooks", "120 hooks", "34 MiB"],
)
async def test_the_hooks_of_many_ends_are_stored_in_bounded_calls(
    clock, engine, ends, hooks, size, calls
):
    await clock.freeze()
    await declare_many(engine, hooks)
    payload = b'"' + b"x" * (size - 2) + b'"'
    await engine.submit_many([Item(payload=payload, deadline=timedelta(seconds=1))] * ends)
    await clock.advance(seconds=2)
    assert await stores(engine, engine.expire_executions) == calls
    stored = "select count(*) from ff.execution where parent_id is not null"
    assert await engine.connection.fetchval(stored) == hooks * ends


async def declare_many(engine: Engine, count: int, *, first: int = 0, **options: Any) -> None:
    """Declare so many hooks of the task of the tests, with names from a number on."""
    names = [f"{TASK}.hook_{n}" for n in range(first, first + count)]
    routes = [await engine.register(lane="hooks", task=name) for name in names]
    await declare(engine, *["end"] * count, names=names, route_ids=routes, **options)


async def test_every_end_of_a_replayed_execution_has_its_own_hook(engine, make):
    await declare(engine, "end")
    execution = await make.execution("completed")
    # A repeated call ends nothing again.
    assert (await engine.complete(execution.lease)).word == "completed"
    await engine.replay(execution.id)
    await engine.cancel(execution.id)
    hooks = await hooks_of(engine, execution.id)
    assert [hook["told"]["replay_count"] for hook in hooks] == [0, 1]
    secret = await engine.connection.fetchval(SECRET)
    expected = [hook_id(secret, execution.id, replay, HOOK) for replay in (0, 1)]
    assert sorted(hook["execution_id"] for hook in hooks) == sorted(expected)


SECRET = "select value from ff.meta where name = 'hook_secret'"


def hook_id(secret: str, id: UUID, replay_count: int, name: str) -> UUID:
    """As core.ids derives the ids of children, with the word hook and the secret."""
    identity = b"hook\x00" + secret.encode() + id.bytes + replay_count.to_bytes(8) + name.encode()
    digest = int.from_bytes(hashlib.sha256(identity).digest()[:10])
    return UUID(
        int=(id.int >> 80) << 80
        | 0x8 << 76
        | (digest >> 68) << 64
        | 0x2 << 62
        | digest & ((1 << 62) - 1)
    )


async def test_nobody_without_the_secret_can_take_the_id_of_a_hook(engine, make):
    """The id of an execution is no secret: it stands in logs, links and answers."""
    assert len(await engine.connection.fetchval(SECRET)) == 64
    await declare(engine, "end")
    execution = await make.execution("leased")
    other = engine.within("another")
    route = await other.register(task="tests.decoy")
    await other.submit(id=hook_id("", execution.id, 0, HOOK), route=route)
    await engine.complete(execution.lease)
    assert len(await hooks_of(engine, execution.id)) == 1


FORGERY = b'{},"outcome":"success","task":"bank.transfer","x":1'


@pytest.mark.parametrize(
    "forged",
    [
        FORGERY,
        b"",
        b" ",
        b"{",
        b"1 2",
        b"nan",
        b"\xff",
        b'"\x00"',
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="deep"),
    ],
)
async def test_a_payload_that_is_not_json_cannot_forge_facts(engine, forged):
    await declare(engine, "end")
    submitted = await engine.submit(payload=forged, encoding="json")
    await engine.complete(await engine.take(submitted.id), forged)
    (hook,) = await hooks_of(engine, submitted.id)
    told = hook["told"]
    assert (told["outcome"], told["task"]) == ("success", TASK)
    assert "x" not in told
    for part in ("arguments", "result"):
        assert told[f"{part}_encoding"] == "json"
        assert b64decode(told[part]) == forged


async def test_the_payload_of_a_node_that_is_not_json_is_base64(engine):
    await declare(engine, "end")
    submitted = await engine.submit(payload=FORGERY, encoding="json+inputs")
    await engine.cancel(submitted.id)
    (hook,) = await hooks_of(engine, submitted.id)
    assert (hook["told"]["outcome"], hook["told"]["task"]) == ("cancelled", TASK)
    assert hook["told"]["arguments_encoding"] == "json+inputs"
    assert b64decode(hook["told"]["arguments"]) == FORGERY
    # No worker fills inputs in.
    assert hook["payload_encoding"] is None


async def test_the_end_of_a_hook_calls_no_hooks(engine, make):
    await declare(engine, "end")
    await engine.connection.execute(
        "insert into ff.hook select namespace, name, 'tests.more', kind, version, route_id,"
        " priority, options, declared_at, removed_at from ff.hook"
    )
    execution = await make.execution("completed")
    (hook,) = await hooks_of(engine, execution.id)
    await engine.cancel(hook["execution_id"])
    assert not await hooks_of(engine, hook["execution_id"])


async def test_a_task_that_was_a_hook_has_hooks_again(engine, make):
    route = await engine.register(lane="hooks", task=TASK)
    decoy = {"tasks": ["decoy"], "names": [TASK], "route_ids": [route]}
    await declare(engine, "end", known=("decoy",), **decoy)
    assert await declare(engine, known=("decoy",)) == [TASK]
    await declare(engine, "end")
    execution = await make.execution("completed")
    assert len(await hooks_of(engine, execution.id)) == 1


@pytest.mark.parametrize("state", ["paused", "draining", "disabled"])
async def test_a_closed_lane_does_not_refuse_a_hook(engine, make, state):
    await declare(engine, "end")
    await engine.connection.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => 'hooks', p_state => $1)", state
    )
    execution = await make.execution("completed")
    assert len(await hooks_of(engine, execution.id)) == 1


async def test_a_hook_is_of_one_namespace(engine, make):
    await declare(engine, "end", namespace="another")
    execution = await make.execution("completed")
    assert not await hooks_of(engine, execution.id)


async def test_a_batch_of_several_namespaces_submits_each_hook_in_its_own(engine):
    for namespace in (NAMESPACE, "another"):
        await declare(engine, "end", namespace=namespace)
    both = [engine, engine.within("another")]
    leases = []
    for one in both:
        submitted = await one.submit()
        leases.append(await one.take(submitted.id))
    await engine.within(None).complete_many(leases, [b"1", b"2"])
    rows = await engine.connection.fetch(
        "select h.namespace, e.namespace as parent_namespace from ff.execution h"
        " join ff.execution e on e.execution_id = h.parent_id"
    )
    assert sorted(map(tuple, rows)) == [("another", "another"), ("test", "test")]


async def test_an_execution_that_was_submitted_before_gets_the_hooks_of_its_end(engine):
    submitted = await engine.submit()
    lease = await engine.take(submitted.id)
    await declare(engine, "end")
    await engine.complete(lease)
    assert len(await hooks_of(engine, submitted.id)) == 1


async def test_workers_hear_of_a_hook(db, engine, make):
    await declare(engine, "end")
    heard = await hints(db, "ff_ready", lambda: make.execution("completed"))
    assert f"{home()} test hooks" in heard


class TestDeclaring:
    async def test_what_is_not_declared_any_more_is_removed(self, engine, make):
        assert await declare(engine, "end", "success") == []
        assert await declare(engine, "success") == [HOOK]
        execution = await make.execution("completed")
        assert [hook["task"] for hook in await hooks_of(engine, execution.id)] == [
            f"{TASK}.on_success"
        ]
        assert await declare(engine, "end", "success") == []
        execution = await make.execution("completed")
        assert len(await hooks_of(engine, execution.id)) == 2

    async def test_hooks_of_tasks_that_the_caller_does_not_know_stay(self, engine):
        await declare(engine, "end")
        assert await declare(engine, known=("another",)) == []

    async def test_the_newest_version_decides(self, engine, make):
        await declare(engine, "end", version=(1,))
        assert await declare(engine, version=(2,)) == [HOOK]
        # An older worker that starts again brings nothing back, and takes nothing away.
        await declare(engine, "end", version=(1, 9))
        assert not await hooks_of(engine, (await make.execution("completed")).id)
        await declare(engine, "end", version=(2,))
        assert await declare(engine, version=(1, 9)) == []
        assert len(await hooks_of(engine, (await make.execution("completed")).id)) == 1

    @pytest.mark.parametrize(("first", "second"), [((1,), (1, 0)), ((1, 0), (1,))])
    async def test_a_number_that_is_left_out_counts_as_0(self, engine, first, second):
        await declare(engine, "end", version=first)
        assert await declare(engine, version=second) == [HOOK]

    async def test_a_repeat_keeps_the_time_of_the_declaration(self, clock, engine):
        first = await clock.freeze()
        await declare(engine, "end")
        await clock.advance(hours=1)
        await declare(engine, "end", with_options={"tags": {"a.b": "c"}})
        assert await engine.connection.fetchval("select declared_at from ff.hook") == first

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"namespace": " test"}, "namespace"),
            ({"namespace": ""}, "namespace"),
            ({"version": []}, "version"),
            ({"version": [-1]}, "version"),
            ({"known": None}, "known"),
            ({"known": ["another"]}, "task"),
            ({"tasks": None}, "tasks"),
            ({"kinds": []}, "tasks"),
            ({"kinds": ["start"]}, "kind"),
            ({"route_ids": [7]}, "route_id"),
            ({"names": [TASK]}, "route_id"),
            ({"options": ['{"key": "k"}']}, "options"),
            ({"options": ['{"policy": 7}']}, "policy"),
            ({"options": ['{"tags": null}']}, "tags"),
            ({"options": ['{"tags": "{}"}']}, "tags"),
            ({"options": ['{"tags": []}']}, "tags"),
            ({"known": [TASK, None]}, "known"),
            ({"known": [None]}, "known"),
            ({"known": [TASK, ""]}, "known"),
            ({"known": [TASK, "a b"]}, "known"),
            ({"known": [TASK, "a\x07"]}, "known"),
            ({"known": [TASK, "x" * 257]}, "known"),
        ],
    )
    async def test_a_malformed_declaration_is_refused(self, engine, changes, field):
        given = {"namespace": NAMESPACE, **changes}
        with refused("WF001", field=field):
            await declare(engine, "end", **given)

    async def test_a_hook_has_no_hooks(self, engine):
        route = await engine.register(lane="hooks", task=HOOK)
        with refused("WF001", field="name"):
            await declare(
                engine,
                "end",
                "success",
                known=(TASK, HOOK),
                tasks=[TASK, HOOK],
                names=[HOOK, f"{TASK}.on_success"],
            )
        assert route

    async def test_the_route_of_a_hook_has_no_code_version(self, engine):
        route = await engine.connection.fetchval(
            "select route_id from ff.register_routes('{test}', '{hooks}', array[$1], '{\"\"}',"
            " p_code_versions => '{v1}')",
            HOOK,
        )
        with refused("WF001", field="route_id"):
            await declare(engine, "end", route_ids=[route])

    async def test_a_task_has_at_most_20_hooks(self, engine):
        await declare_many(engine, 20, version=(2,))
        with refused("WF001", field="tasks"):
            await declare_many(engine, 21, version=(2,))
        # An older version takes nothing away, so it must find room.
        with refused("WF001", field="tasks"):
            await declare_many(engine, 1, first=20, version=(1,))
        # A newer one takes all others away.
        await declare_many(engine, 20, first=20, version=(3,))
        in_force = "select count(*) from ff.hook where removed_at is null"
        assert await engine.connection.fetchval(in_force) == 20

    async def test_two_hooks_of_a_task_have_two_names(self, engine):
        with refused("WF001", field="name"):
            await declare(engine, "end", "end")
