"""`App(url=…, token=…)`: the same calls, records and errors through a server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric import App, Context, Frame
from flowfabric.client import FlowFabric
from flowfabric.core import errors
from flowfabric.core.errors import (
    ExecutionCancelled,
    ExecutionFailed,
    ExecutionNotFound,
    FlowFabricError,
    Forbidden,
    InvalidInput,
    KeyReused,
    LaneClosed,
    NotOverHttp,
    ResultTimeout,
    TaskNotFound,
    Unavailable,
    class_of,
    name_of,
)
from flowfabric.core.states import PublicState
from flowfabric.core.token import Scope
from flowfabric.db import functions
from flowfabric.db.http import HttpDatabase
from flowfabric.db.http_functions import MADE_BY_WORKERS, OFFERED
from flowfabric.db.wire import decode, encode, row_type
from server.stage import OURS, THEIRS, make_tasks
from support.proofs import drawn
from worker.apps import working

JSON = {"content-type": "application/json"}


def add_tasks(app: App) -> None:
    make_tasks(app)

    @app.task(name="ask")
    async def ask(ctx: Context) -> str:
        answer = await ctx.wait_for_signal("name", str)
        return f"hello {answer}"

    @app.task(name="count")
    async def count(ctx: Context, to: int) -> int:
        for number in range(to):
            await ctx.stream.send(number)
        return to


@pytest.fixture
async def remote(world, serving):
    """Makes apps without a database: they have the address of the server, and a token."""
    made = []

    async def connect(*scopes: str, namespace: str = OURS, token: str | None = None) -> App:
        token = token or await world.token(*scopes, namespace=namespace)
        app = App(url=serving, token=token, namespace=namespace, name="shop")
        add_tasks(app)
        made.append(app)
        return app

    world.app.tasks.clear()
    add_tasks(world.app)
    yield connect
    for app in made:
        await app.close()


async def test_an_app_submits_waits_and_reads_through_a_server(remote, world):
    app = await remote("submit")
    async with working(world.app):
        run = await app.tasks["add"].submit(1, y=2)
        assert await run.result(timeout=60) == 3
        assert await run.state() is PublicState.COMPLETED
        assert "completed" in [one.kind async for one in run.events()]
        many = await app.tasks["add"].submit_many([(n,) for n in range(20)])
        assert await asyncio.gather(*(one.result(60) for one in many)) == list(range(1, 21))
        assert await app.get(run.id).result(timeout=60) == 3
        adding = app.tasks["add"]
        assert await asyncio.to_thread(lambda: adding.submit_sync(5).result_sync(60)) == 6
    described = await (await app.client()).executions.describe(run.id)
    assert described.creator.startswith("token tests (ffp_")
    known = await (await world.client()).executions.describe(run.id)
    assert replace(known, attempt_id=UUID(int=0)) == described


async def test_signals_and_streams_go_through_a_server(remote, world):
    app = await remote("submit", "signal")
    async with working(world.app):
        asked = await app.tasks["ask"].submit()
        sent = await asked.signal("name", "Ada", by="somebody else")
        assert await asked.result(timeout=60) == "hello Ada"
        counted = await app.tasks["count"].submit(3)
        frames = [one async for one in counted.stream()]
    assert [one.data for one in frames if isinstance(one, Frame)] == [0, 1, 2]
    (stored,) = await (await world.client()).signals.list(asked.id)
    assert (stored.id, stored.source_type) == (sent.id, "http")
    assert stored.source_identity.startswith("token tests"), "not from the request"


async def test_a_flow_is_stored_and_read_through_a_server(remote, world):
    app = await remote("submit")
    async with working(world.app):
        async with app.flow("sum") as flow:
            first = flow.add(app.tasks["add"], 1)
            flow.add(app.tasks["add"], first.result, y=10)
        assert await flow.run.result(timeout=60) == 12


async def test_an_operator_operates_through_a_server(remote, world):
    app = await remote("submit", "operate")
    client = await app.client()
    run = await app.tasks["add"].submit(1)
    await client.lanes.pause("default", reason="deploy")
    assert (await client.lanes.get("default")).changed_by.startswith("token tests")
    assert await run.cancel("not wanted", actor="somebody else")
    with pytest.raises(ExecutionCancelled) as caught:
        await run.result(timeout=60)
    assert caught.value.actor.startswith("token tests"), "not from the request"
    assert (caught.value.reason, await run.cancel()) == ("not wanted", True)
    (found,) = (await client.executions.list()).executions
    assert (found.id, found.public_state) == (run.id, "cancelled")
    done = await client.executions.replay(run.id)
    assert (done.outcome, await run.state()) == ("replayed", "waiting")


async def test_refusals_are_the_same_errors_as_without_a_server(remote, world):
    app = await remote("submit", "operate")
    client, ours = await app.client(), await world.client()
    unknown = app.get("01a1e3ef-0000-7000-8000-000000000000")
    with pytest.raises(ExecutionNotFound):
        await unknown.result(timeout=60)
    await app.tasks["add"].submit(1, key="k")
    with pytest.raises(KeyReused):
        await app.tasks["add"].submit(2, key="k")
    run = await app.tasks["add"].submit(1)
    with pytest.raises(ResultTimeout):
        await run.result(timeout=0.1)
    for calls in (client, ours):
        with pytest.raises(InvalidInput) as caught:
            await calls.executions.set_tags(run.id, {"no dot": "x"})
        assert (caught.value.field, caught.value.problem) == ("tags", caught.value.facts["problem"])
        with pytest.raises(TaskNotFound):
            await calls.tasks.describe("nobody")
    await client.lanes.drain("default")
    with pytest.raises(LaneClosed):
        await app.tasks["add"].submit(3)


async def test_a_failure_has_its_type_message_and_trace(remote, world):
    app = await remote("submit")
    run = await app.tasks["fail"].submit()
    async with working(world.app):
        with pytest.raises(ExecutionFailed) as caught:
            await run.result(timeout=60)
    assert (caught.value.type, caught.value.message) == ("ValueError", "no")
    assert "raise ValueError" in caught.value.trace


async def test_what_http_does_not_offer_says_so_by_name(remote):
    app = await remote("admin")
    with pytest.raises(NotOverHttp, match="worker cannot run over HTTP"):
        await app.run_worker()
    client = await app.client()
    with pytest.raises(NotOverHttp, match="claim_executions is not offered over HTTP"):
        await client.executions.claim(worker_id="w", worker_instance_id="w", tasks=["add"])
    with pytest.raises(NotOverHttp, match="in your own transaction"):
        await client.transactional.identity()
    with pytest.raises(NotOverHttp, match="create_api_token is not offered"):
        await client.tokens.create("x", ["read"])
    with pytest.raises(Forbidden, match=f"namespace {OURS}, not {THEIRS}"):
        client.within(THEIRS)


async def test_a_token_opens_only_its_own_namespace_and_its_scopes(remote, world, serving):
    reader = await remote("read")
    with pytest.raises(Forbidden, match="scope submit"):
        await reader.tasks["add"].submit(1)
    token = await world.token("submit", namespace=THEIRS)
    wrong = await remote(token=token)
    with pytest.raises(Forbidden, match=f"namespace {THEIRS}, not {OURS}"):
        await wrong.tasks["add"].submit(1)
    async with FlowFabric(HttpDatabase(serving, token), namespace=None) as adopted:
        assert adopted.namespace == THEIRS
    unknown = await remote(token="ffp_" + "x" * 43)
    with pytest.raises(Forbidden, match="unknown, expired or revoked"):
        await unknown.client()


async def test_a_server_that_is_not_there_is_named(remote):
    gone = App(url="http://127.0.0.1:9", token="ffp_x")
    with pytest.raises(Unavailable, match=r"Cannot reach the server at http://127\.0\.0\.1:9"):
        await gone.client()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"url": "localhost:9090"}, "url"),
        ({"url": "http://me:secret@host"}, "url"),
        ({"url": "http://host", "database_url": "postgresql://host/x"}, "url"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(given, field):
    with pytest.raises(InvalidInput) as caught:
        App(**given)
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


def test_the_address_and_the_token_come_from_the_environment(monkeypatch, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FLOWFABRIC_URL", "https://flow.example.org")
    monkeypatch.setenv("FLOWFABRIC_TOKEN", "ffp_hidden")
    monkeypatch.setenv("DATABASE_URL", "postgresql://another/program")
    app = App()
    assert (app.settings.url, app.settings.database_url) == ("https://flow.example.org", None)
    assert app.settings.token == "ffp_hidden"
    assert "ffp_hidden" not in repr(app.settings)
    assert App(database_url="postgresql://ours/x").settings.url is None
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", "postgresql://ours/x")
    with pytest.raises(InvalidInput, match="contradicts FLOWFABRIC_DATABASE_URL"):
        App()
    (folder / "flowfabric.toml").write_text('token = "ffp_x"')
    with pytest.raises(InvalidInput, match="set FLOWFABRIC_TOKEN"):
        App()


# The wire, and what is offered


def test_every_offered_function_takes_a_namespace_or_needs_none():
    without = {
        name
        for name, (_, statement) in OFFERED.items()
        if not {"namespace", "namespaces"} & set(statement.arguments)
    }
    assert without == {"read_partitions", "server_time", "open_cursor"}


def test_no_offered_function_takes_a_lease_or_a_secret():
    taken = {"lease_id", "lease_ids", "epochs", "attempt_ids", "secret", "token_hash", "token"}
    takers = {name for name, (_, one) in OFFERED.items() if taken & set(one.arguments)}
    optional = {"apply_dependency_to_child", "cancel_execution"}
    assert takers == optional, "the server leaves their leases empty"
    assert not MADE_BY_WORKERS & set(OFFERED)


async def test_only_the_scope_of_a_function_opens_it(http):
    chance = drawn("scopes of calls over HTTP")
    for name, (scope, _) in OFFERED.items():
        for other in (scope, chance.choice([one for one in Scope if one is not scope])):
            path = f"/v1/calls/{other}/{name}"
            answer = await http.post(path, json={"arguments": {}})
            refused = answer.json().get("type", "") in (
                "urn:flowfabric:unknown_call",
                "urn:flowfabric:unknown_path",
            )
            assert refused is (other is not scope), (name, other, answer.text)


async def test_no_answer_of_a_call_has_a_lease(world, http):
    client = await world.client()
    await http.post("/v1/executions", json={"task": "add", "arguments": {"x": 1}})
    (held,) = await client.executions.claim(
        worker_id="w", worker_instance_id="w", tasks=["add"], limit=1
    )
    await client.leases.revoke(held.id)
    address = {"partition_key": 0, "execution_id": {"uuid": str(held.execution_id)}}
    answers = [
        await http.post(f"/v1/calls/read/{name}", json={"arguments": {**address, **more}})
        for name, more in (
            ("describe_execution", {}),
            ("list_attempts", {}),
            ("list_events", {}),
            ("explain_execution", {}),
        )
    ]
    assert [one.status_code for one in answers] == [200] * 4
    text = " ".join(one.text for one in answers)
    assert str(held.lease_id) not in text
    assert str(held.attempt_id) not in text
    assert "00000000-0000-0000-0000-000000000000" in text


async def test_a_caller_cannot_name_another_namespace_or_declare_a_limit(world, http):
    answer = await http.post("/v1/calls/read/list_lanes", json={"arguments": {"namespace": THEIRS}})
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:flowfabric:forbidden")
    routes = {"namespaces": [OURS, THEIRS], "lanes": ["a", "a"], "tasks": ["t", "t"]}
    answer = await http.post("/v1/calls/submit/register_routes", json={"arguments": routes})
    assert answer.status_code == 403
    gate = [{"kind": "quota", "name": "new", "concurrency": 1}]
    gates = {"partition_key": 0, "gates": json.dumps(gate)}
    answer = await http.post("/v1/calls/submit/register_gates", json={"arguments": gates})
    assert "quota_not_found" in answer.text
    assert (await (await world.client()).quotas.list()) == []


async def test_arguments_that_cannot_be_are_refused_with_their_field(http):
    """No JSON value makes a call fail in the server."""
    chance = drawn("arguments of calls over HTTP")
    odd = [None, True, -1, 2**70, 1.5, "", "x\0", "\ud800", [], [[[[[1]]]]], {}, {"uuid": "x"}]
    odd += [{"uuid": str(UUID(int=1))}, {"at": "x"}, {"us": 10**30}, {"base64": "?"}, {"a": 1}]
    odd += [{"at": "0001-01-01T00:00:00"}, {"decimal": "NaN"}, [None, 1, "x"], {"us": 1, "at": "x"}]
    for name, (scope, statement) in OFFERED.items():
        for _ in range(1):
            given = {one: chance.choice(odd) for one in statement.arguments}
            body = json.dumps({"arguments": given})
            answer = await http.post(f"/v1/calls/{scope}/{name}", content=body, headers=JSON)
            assert answer.status_code < 500, (name, given, answer.text)
        answer = await http.post(f"/v1/calls/{scope}/{name}", json={"arguments": {"x": 1}})
        assert (answer.status_code, answer.json()["field"]) == (422, "arguments.x")


@pytest.mark.parametrize("value", [None, True, 7, 1.5, "é", b"\0\xff", UUID(int=3), [[1], None]])
def test_what_is_encoded_is_decoded_the_same(value):
    assert decode("x", json.loads(json.dumps(encode(value)))) == value


def test_times_and_durations_keep_their_microseconds():
    from datetime import UTC, datetime

    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    span = timedelta(days=400, microseconds=1)
    assert decode("x", json.loads(json.dumps(encode([moment, span])))) == [moment, span]


def test_a_row_is_read_by_name_and_by_position():
    row = row_type(("a", "b"))((1, 2))
    assert (row[0], row["b"], dict(row), row.get("c", 3), [*row]) == (
        1,
        2,
        {"a": 1, "b": 2},
        3,
        [1, 2],
    )


def test_every_error_is_found_again_by_its_name():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, FlowFabricError):
            assert class_of(name_of(kind)) is kind
    assert class_of("nonsense") is None


async def test_a_column_that_the_server_added_is_left_out():
    from flowfabric.db.http import _rows

    answer = {"columns": ["new", "server_time"], "rows": [[1, 2]]}
    (row,) = _rows(functions.SERVER_TIME, answer)
    assert dict(row) == {"server_time": 2}


async def test_a_call_with_an_id_of_another_namespace_answers_as_for_no_id(world, http):
    """The matrix of calls and ids, made from the table: a new function cannot be forgotten."""
    theirs = await world.caller("admin", namespace=THEIRS)
    made = await theirs.post("/v1/executions", json={"task": "add", "arguments": {"x": 1}})
    graph = {"kind": "x", "nodes": [{"name": "a", "task": "add", "arguments": {"x": 1}}]}
    flow = await theirs.post("/v1/flows", json=graph)
    foreign = {"execution": made.json()["uuid"], "flow": flow.json()["uuid"]}
    nobody = {"execution": str(uuid4()), "flow": str(uuid4())}
    before = await (await world.client(THEIRS)).executions.list()
    told: Counter[int] = Counter()
    for name, (scope, statement) in OFFERED.items():
        taken = set(statement.arguments)
        if not taken & {"execution_id", "execution_ids", "flow_id", "text"}:
            continue
        answers = []
        for ids in (foreign, nobody):
            given = {one: value for one, value in PLAUSIBLE.items() if one in taken}
            given |= {
                one: value
                for one, value in {
                    "execution_id": {"uuid": ids["execution"]},
                    "execution_ids": [{"uuid": ids["execution"]}],
                    "flow_id": {"uuid": ids["flow"]},
                    "text": ids["execution"].replace("-", ""),
                }.items()
                if one in taken
            }
            if name == "submit_executions":
                continue  # its ids are new ones; a taken id is told apart by nobody's design
            answer = await http.post(f"/v1/calls/{scope}/{name}", json={"arguments": given})
            text = answer.text
            for id in (*ids.values(), ids["execution"].replace("-", "")):
                text = text.replace(id, "ID")
            facts = json.loads(text)
            facts.pop("request_id", None)
            answers.append((answer.status_code, facts))
            told[answer.status_code] += 1
        assert answers[:1] == answers[1:], name
    assert told[200] + told[404] >= 40, told
    assert await (await world.client(THEIRS)).executions.list() == before


# Arguments with which a call comes as far as its ids.
PLAUSIBLE = {
    "partition_key": 0,
    "limit": 10,
    "reason": "x",
    "policy": "cancel_all",
    "priority": 5,
    "signal_ids": [{"uuid": str(UUID(int=7))}],
    "names": ["go"],
    "payloads": [{"base64": "bnVsbA=="}],
    "payload_encodings": ["json"],
    "tags": ['{"team.name": "x"}'],
    "wait": False,
    "is_transactional": False,
    "after_ms": [0],
    "after_seqs": [0],
    "with_best_effort": True,
    "changed": False,
    "cursor": None,
    "decision": "approved",
    "signal_id": {"uuid": str(UUID(int=8))},
    "waitpoint_id": {"uuid": str(UUID(int=9))},
    "edge_id": {"uuid": str(UUID(int=10))},
    "upstream_id": {"uuid": str(UUID(int=11))},
    "downstream_id": {"uuid": str(UUID(int=12))},
    "expected_graph_revision": 0,
    "worker_instance_id": None,
}
