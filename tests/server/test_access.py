"""Who may call what: scopes, namespaces, tokens, hosts, origins and bodies."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from flowfabric.core.errors import FlowFabricError, InvalidInput, name_of
from flowfabric.core.token import Scope, allowed_scopes, mint_token
from flowfabric.server import principals, routing, server
from flowfabric.server.dashboard import PREFIX
from flowfabric.server.problems import STATUS, status_of
from flowfabric.server.routing import CONTROL, LARGE, Access, GuardedRoute
from server.stage import OURS, THEIRS, Caller, make_tasks, routes_of
from worker.waiting import eventually

SUBMIT = {"task": "add", "arguments": {"x": 2}}
WORKER = {"worker_id": "w", "worker_instance_id": "w-1"}


def filled(path: str) -> str:
    """Return a path with an id that does not exist in place of every parameter."""
    for name in ("{id}", "{waitpoint_id}"):
        path = path.replace(name, str(uuid4()))
    return path.replace("{name}", "x").replace("{verb}", "cancel")


def has_problem(answer, status, name):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"urn:flowfabric:{name}"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    return True


async def test_every_route_refuses_every_token_without_its_scope(world):
    """The matrix of scopes and routes, made from the app: nothing is left out."""
    callers = {scope: await world.caller(scope) for scope in Scope}
    nobody = world.with_token(None)
    for number, (method, path, access) in enumerate(routes_of(world.served)):
        assert isinstance(access, Access)
        if access.scope is None:
            continue
        place = filled(path)
        allowed = [scope for scope in Scope if access.scope in allowed_scopes([scope])]
        # Try the scope of the route, and one scope that includes it: another one for each route.
        tried = {access.scope, allowed[number % len(allowed)]}
        unknown = await nobody.request(method, place)
        if path.startswith(PREFIX):
            assert unknown.headers["location"] == "/dashboard/sign-in"
        else:
            assert has_problem(unknown, 401, "unauthorized")
        for scope, caller in callers.items():
            if scope in allowed and scope not in tried:
                continue
            answer = await caller.request(method, place)
            words = "needs a token with the scope"
            refused = answer.status_code == 403 and words in answer.text
            assert refused is (scope not in allowed), (method, path, scope)


async def test_routes_without_a_scope_are_few_and_named(world):
    open_ = {path for _, path, access in routes_of(world.served) if access.scope is None}
    assert open_ == {
        *(f"{PREFIX}/{name}" for name in ("sign-in", "sign-out", "static/{name}")),
        "/livez",
        "/readyz",
        "/healthz",
        "/v1/openapi.json",
        # the token in the path is the right to answer
        "/w/{token}",
        "/w/{token}/answer",
        "/v1/waitpoints/{token}",
    }


def test_a_route_without_a_scope_cannot_be_made():
    async def forgotten() -> None: ...

    with pytest.raises(TypeError, match="declares no scope"):
        GuardedRoute("/v1/forgotten", forgotten)


# A body that fits each route, so that only the name in the path can be wrong.
FITTING = {
    "/v1/executions/{id}/priority": {"priority": 1},
    "/v1/executions/{id}/tags": {"team.name": "x"},
    "/v1/executions/{id}/signal": {"name": "go"},
    "/v1/flows/{id}/members": {"execution_id": "{execution}"},
    "/v1/flows/{id}/edges": {
        "upstream": str(uuid4()),
        "downstream": "{execution}",
        "expected_graph_revision": 0,
    },
    "/v1/flows/{id}/edges/apply": {
        "edge_id": str(uuid4()),
        "upstream": str(uuid4()),
        "downstream": "{execution}",
    },
    "/v1/flows/{id}/group-policies": {"downstream": "{execution}", "kind": "all_of"},
    "/v1/executions/{id}/approvals/answer": {"approve": True},
    **{f"/v1/calls/{scope}/{{name}}": {"arguments": {}} for scope in Scope},
    "/v1/quotas/{name}": {"concurrency": 1},
    "/v1/budgets/{name}": {"amounts": {"tokens": 1}},
    "/v1/budgets/{name}/usage": {"amounts": {"tokens": 1}},
}
# These say that nothing changed, as they do for a name that nobody has.
UNCHANGED = {("DELETE", "/v1/quotas/{name}"), ("POST", "/v1/workers/{name}/mark-dead")}
# The token is its own right; a verb is no name.
NAMELESS = {"/w/{token}", "/w/{token}/answer", "/v1/waitpoints/{token}", "/v1/bulk/{verb}"}


async def test_no_route_finds_what_belongs_to_another_namespace(world):
    """The matrix of namespaces and names, made from the app: a new route cannot be forgotten."""
    theirs = await world.caller("admin", namespace=THEIRS)
    ours = await world.caller("admin")
    uuid = (await theirs.post("/v1/executions", json={**SUBMIT, "lane": "x"})).json()["uuid"]
    graph = {"kind": "x", "nodes": [{"name": "a", **SUBMIT}]}
    flow = (await theirs.post("/v1/flows", json=graph)).json()["uuid"]
    token = (await theirs.post("/v1/tokens", json={"name": "x", "scopes": ["read"]})).json()["id"]
    await theirs.post("/v1/quotas", json={"name": "x", "concurrency": 1})
    await theirs.post("/v1/budgets", json={"name": "x", "tokens": 1})
    worker = {"worker_id": "x", "worker_instance_id": "x", "tasks": [{"name": "x"}]}
    assert (await theirs.post("/v1/workers/register", json=worker)).status_code == 200
    names = {"/v1/executions": uuid, "/v1/flows": flow, "/v1/tokens": token}
    names |= {f"{PREFIX}/executions": uuid, f"{PREFIX}/flows": flow}
    before = (await theirs.get("/v1/audit")).json()
    for method, path, _ in routes_of(world.served):
        if "{" not in path or path in NAMELESS:
            continue
        stem = path.partition("/{")[0]
        place = path.replace("{id}", names.get(stem, "x")).replace("{name}", "x")
        place = place.replace("{waitpoint_id}", str(uuid4())).replace("{act}", "cancel")
        place = place.replace("{rest:path}", "x/y")
        assert "{" not in place, f"the matrix does not know {path}"
        body = json.loads(json.dumps(FITTING.get(path)).replace("{execution}", uuid))
        sent: dict[str, Any] = {"json": body}
        if path.startswith(PREFIX) and method == "POST":
            own = {"origin": "http://127.0.0.1:9090"}
            sent = {"data": {"version": "1", "reason": "x"}, "headers": own}
        answer = await ours.request(method, place, **sent)
        if (method, path) in UNCHANGED:
            assert answer.json()["outcome"] == "unchanged"
        else:
            assert answer.status_code == 404, (method, path, answer.text)
        if stem == "/v1/executions":
            for form in (f"{{fp:0}}:{uuid}", uuid[-12:]):
                answer = await ours.request(method, place.replace(uuid, form), json=body)
                assert answer.status_code == 404, (method, path, answer.text)
    lists = {path for method, path, _ in routes_of(world.served, ["GET"]) if "{" not in path}
    for path in lists - {"/v1/tokens", "/v1/audit", "/v1/keys"}:
        answer = await ours.get(path)
        if answer.headers["content-type"] == "application/json" and path.startswith("/v1/"):
            assert answer.json().get("items", []) == [], path
    assert (await theirs.get("/v1/audit")).json() == before


async def test_a_token_is_taken_by_its_exact_text_only(world):
    token = await world.token("read")
    for wrong in (
        mint_token(),
        token[:-1],
        token + "x",
        token.upper(),
        "ffp_",
        "",
        "ffw_" + token[4:],
        "x" * 5000,
    ):
        caller = world.with_token(wrong)
        assert has_problem(await caller.get("/v1/executions"), 401, "unauthorized")
    for header in (token, f"Basic {token}", f"Bearer{token}"):
        caller = world.with_token(None, authorization=header)
        assert has_problem(await caller.get("/v1/executions"), 401, "unauthorized")
    assert (await world.with_token(token).get("/v1/executions")).status_code == 200


async def test_an_expired_and_a_revoked_token_are_refused(world, clock, monkeypatch):
    monkeypatch.setattr(principals, "CACHE_SECONDS", 0.0)
    short = world.with_token(await world.token("read", expires=timedelta(hours=1)))
    assert (await short.get("/v1/executions")).status_code == 200
    await clock.advance(timedelta(hours=1))
    assert has_problem(await short.get("/v1/executions"), 401, "unauthorized")
    admin = await world.caller("admin")
    made = (await admin.post("/v1/tokens", json={"name": "ci", "scopes": ["submit"]})).json()
    ci = world.with_token(made["token"])
    assert (await ci.get("/v1/executions")).status_code == 200
    assert (await admin.delete(f"/v1/tokens/{made['id']}?reason=left")).json() == {
        "id": made["id"],
        "outcome": "revoked",
    }
    assert has_problem(await ci.get("/v1/executions"), 401, "unauthorized")
    listed = (await admin.get("/v1/tokens")).json()["items"]
    assert made["token"] not in str(listed)
    (entry,) = [one for one in listed if one["token_id"] == made["id"]]
    assert entry["revoked_reason"] == "left"
    acts = [one["act"] for one in (await admin.get("/v1/audit")).json()["items"]]
    assert acts[:2] == ["revoke_api_token", "create_api_token"]


async def revoked_while_waiting(world, monkeypatch, scope, method, path, look, end, **request):
    """Return the answer to a request that waits, whose token is revoked before the wait ends.

    `look` is the call by which the request finds that it has to wait.
    """
    monkeypatch.setattr(principals, "CACHE_SECONDS", 0.0)
    client = await world.client()
    made = await client.tokens.create("waiting", [scope])
    meter = (await world.served.state.backend.app.client()).database.meter
    looked = asyncio.Event()

    def note(name, *_):
        if name == look:
            looked.set()

    monkeypatch.setattr(meter, "listeners", [*meter.listeners, note])
    caller = world.with_token(made.token)
    waiting = asyncio.create_task(caller.request(method, path, **request))
    await asyncio.wait_for(looked.wait(), 60)
    await client.tokens.revoke(made.id)
    await end()
    return await waiting


async def test_a_request_that_waits_gets_nothing_after_its_token_is_revoked(
    world, http, monkeypatch
):
    """It got the result, up to 30 seconds later."""
    uuid = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    wait = {"prefer": "wait=30"}

    async def end():
        await http.post(f"/v1/executions/{uuid}/cancel")

    async def restart():
        await http.post(f"/v1/executions/{uuid}/replay")

    path = f"/v1/executions/{uuid}/result"
    answer = await revoked_while_waiting(
        world, monkeypatch, "read", "GET", path, "read_results", end, headers=wait
    )
    assert has_problem(answer, 401, "unauthorized")
    await restart()
    body = {"arguments": {"partition_key": 0, "execution_ids": [{"uuid": uuid}]}}
    answer = await revoked_while_waiting(
        world,
        monkeypatch,
        "read",
        "POST",
        "/v1/calls/read/read_results",
        "read_results",
        end,
        json=body,
        headers=wait,
    )
    assert has_problem(answer, 401, "unauthorized")


async def test_a_claim_that_waits_leases_nothing_after_its_token_is_revoked(
    world, http, monkeypatch
):
    """It did: nobody could work on the execution until the lease expired."""

    async def submit():
        await http.post("/v1/executions", json=SUBMIT)

    body = {**WORKER, "tasks": ["add"], "wait_seconds": 30}
    path = "/v1/workers/claim"
    answer = await revoked_while_waiting(
        world, monkeypatch, "work", "POST", path, "claim_executions", submit, json=body
    )
    assert has_problem(answer, 401, "unauthorized")
    (found,) = (await http.get("/v1/executions")).json()["items"]
    assert found["public_state"] == "waiting"


async def test_a_valid_token_is_remembered_for_less_than_five_seconds():
    assert principals.CACHE_SECONDS < 5


async def test_tokens_of_another_namespace_can_be_neither_seen_nor_revoked(world):
    admin = await world.caller("admin")
    made = (await admin.post("/v1/tokens", json={"name": "x", "scopes": ["read"]})).json()
    other = await world.caller("admin", namespace=THEIRS)
    assert made["id"] not in (await other.get("/v1/tokens")).text
    answer = await other.delete(f"/v1/tokens/{made['id']}")
    assert has_problem(answer, 404, "api_token_not_found")


async def test_after_many_wrong_tokens_an_address_has_to_wait(world):
    good = await world.token("read")
    for _ in range(principals.FAILURES):
        await world.with_token(mint_token()).get("/v1/executions")
    answer = await world.with_token(mint_token()).get("/v1/executions")
    assert has_problem(answer, 429, "too_many_failures")
    assert int(answer.headers["retry-after"]) > 0
    other = httpx.ASGITransport(app=world.served, client=("127.0.0.2", 1))
    async with httpx.AsyncClient(transport=other, base_url="http://x") as elsewhere:
        headers = {"authorization": f"Bearer {good}"}
        assert (await elsewhere.get("/v1/executions", headers=headers)).status_code == 200


async def test_wrong_tokens_of_a_stranger_lock_out_no_caller_of_the_same_proxy(world, monkeypatch):
    """They did: behind a proxy all callers have one address."""
    monkeypatch.setattr(principals, "CACHE_SECONDS", 0.0)
    known = await world.caller("admin")
    made = (await known.post("/v1/tokens", json={"name": "x", "scopes": ["read"]})).json()
    other = world.with_token(made["token"])
    assert (await other.get("/v1/executions")).status_code == 200
    for _ in range(principals.FAILURES):
        await world.with_token(mint_token()).get("/v1/executions")
    assert (await known.get("/v1/executions")).status_code == 200
    # A revoked token is asked for once more, and is a stranger then.
    await known.delete(f"/v1/tokens/{made['id']}")
    assert has_problem(await other.get("/v1/executions"), 401, "unauthorized")
    assert has_problem(await other.get("/v1/executions"), 429, "too_many_failures")


# Requests of pages, and of other machines


@pytest.fixture
async def unguarded(make_app):
    app = make_app(namespace=OURS)
    make_tasks(app)
    return server(app, auth="none")


CROSS_SITE = [
    ({"host": "evil.example"}, 421, "unknown_host"),
    ({"host": "127.0.0.1.evil.example:9090"}, 421, "unknown_host"),
    ({"origin": "http://evil.example"}, 403, "cross_origin"),
    ({"origin": "null"}, 403, "cross_origin"),
    ({"sec-fetch-site": "cross-site"}, 403, "cross_origin"),
    ({"sec-fetch-site": "same-site"}, 403, "cross_origin"),
    ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
    ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    ({"content-type": ""}, 415, "unsupported_media_type"),
]


@pytest.mark.parametrize(("headers", "status", "name"), CROSS_SITE)
async def test_without_auth_a_page_of_another_site_can_do_nothing(unguarded, headers, status, name):
    async with Caller(unguarded) as caller:
        body = b'{"task": "add", "arguments": {"x": 1}}'
        headers = {"content-type": "application/json", **headers}
        answer = await caller.post("/v1/executions", content=body, headers=headers)
        assert has_problem(answer, status, name)
        assert "access-control-allow-origin" not in answer.headers
        same = {"content-type": "application/json", "origin": "http://127.0.0.1:9090"}
        taken = await caller.post("/v1/executions", content=body, headers=same)
        assert taken.status_code == 201


@pytest.mark.parametrize("address", ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1"])
async def test_without_auth_only_this_machine_is_served(unguarded, address):
    transport = httpx.ASGITransport(app=unguarded, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as caller:
        assert has_problem(await caller.get("/v1/executions"), 403, "loopback_only")


async def test_only_named_origins_may_call_from_a_page(make_app):
    served = server(make_app(), cors_origins=["https://shop.example"])
    async with Caller(served) as caller:
        for origin, is_allowed in (("https://shop.example", True), ("https://evil", False)):
            answer = await caller.options("/v1/executions", headers={"origin": origin})
            assert (answer.status_code, answer.headers["allow"]) == (
                204,
                "GET, HEAD, OPTIONS, POST",
            )
            assert ("access-control-allow-origin" in answer.headers) is is_allowed


# Bodies and headers

BODIES = [
    (b"{", "application/json", 400, "invalid_json"),
    (b"", "application/json", 422, "invalid_input"),
    (b"[]", "application/json", 422, "invalid_input"),
    (b"null", "application/json", 422, "invalid_input"),
    (b"\xff\xfe", "application/json", 400, "invalid_json"),
    (b'{"task": "add"}', "text/plain", 415, "unsupported_media_type"),
    (b'{"task": "add", "x": 1}', "application/json", 422, "invalid_input"),
    (b'{"task": 7}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "priority": 1e9}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "arguments": {"x": "a"}}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "arguments": {}}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "delay": "soon"}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "delay": -1}', "application/json", 422, "invalid_input"),
    (b'{"task": "\\u0000"}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "key": "\\u0000"}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "tags": {"Bad": "1"}}', "application/json", 422, "invalid_input"),
    (b'{"task": "echo", "arguments": {"value": NaN}}', "application/json", 422, "invalid_input"),
    (b'{"task": "echo", "arguments": {"value": 1e400}}', "application/json", 422, "invalid_input"),
    (b'{"task": "add", "delay": -Infinity}', "application/json", 422, "invalid_input"),
    (b"[" * 100_000, "application/json", 400, "invalid_json"),
    (b"x" * (LARGE + 1), "application/json", 413, "body_too_large"),
]


@pytest.mark.parametrize(("body", "kind", "status", "name"), BODIES)
async def test_a_bad_body_is_refused_by_its_field_and_changes_nothing(
    http, body, kind, status, name
):
    answer = await http.post("/v1/executions", content=body, headers={"content-type": kind})
    assert has_problem(answer, status, name)
    assert status != 422 or answer.json()["field"]
    assert (await http.get("/v1/executions/count")).json()["count"] == 0


# Routes that store a JSON value of a caller, and the name of the value.
STORING = [
    ("/v1/executions", {"task": "upper", "arguments": "?"}, "arguments.text"),
    ("/v1/executions/batch", {"items": [{"task": "upper", "arguments": "?"}]}, "items.0."),
    ("/v1/leases/complete", {"lease": "ffl_x", "result": "?"}, "result.text"),
    ("/v1/leases/steps", {"lease": "x", "name": "a", "position": 0, "value": "?"}, "value.text"),
    ("/v1/leases/frames", {"lease": "x", "first_no": 0, "frames": [{"data": "?"}]}, "frames.0."),
    (f"/v1/executions/{UUID(int=1)}/signal", {"name": "go", "value": "?"}, "value.text"),
    ("/v1/waitpoints/x", {"value": "?"}, "value.text"),
    ("/v1/workers/register", {**WORKER, "tasks": [{"name": "a", "arguments": "?"}]}, "tasks.0."),
    ("/v1/calls/submit/submit_executions", {"arguments": {"options": "?"}}, "arguments.options."),
]


async def test_numbers_that_json_does_not_have_are_stored_nowhere(http):
    """They were: a worker in another language could not read them."""
    for (path, body, field), number in product(STORING, ("NaN", "-Infinity", "1e400")):
        text = json.dumps(body).replace('"?"', f'{{"text": {number}}}')
        answer = await http.post(path, content=text, headers={"content-type": "application/json"})
        assert has_problem(answer, 422, "invalid_input")
        assert answer.json()["field"].startswith(field)


async def test_a_chunked_body_is_cut_at_the_limit(http):
    async def endless():
        while True:
            yield b" " * 4096

    answer = await http.post(
        f"/v1/executions/{uuid4()}/cancel",
        content=endless(),
        headers={"content-type": "application/json"},
    )
    assert has_problem(answer, 413, "body_too_large")
    assert answer.json()["limit_bytes"] == CONTROL


async def test_a_body_that_never_comes_gives_up(http, monkeypatch):
    monkeypatch.setattr("flowfabric.server.routing.BODY_SECONDS", 0.01)

    async def never():
        yield b"{"
        await asyncio.sleep(30)

    answer = await http.post(
        "/v1/executions", content=never(), headers={"content-type": "application/json"}
    )
    assert has_problem(answer, 408, "slow_body")


async def test_every_answer_has_its_headers_and_no_framework_answer_is_left(http):
    for method, path, status, name in (
        ("GET", "/nowhere", 404, "unknown_path"),
        ("DELETE", "/v1/executions", 405, "method_not_allowed"),
        ("GET", "/v1/executions?limit=x", 422, "invalid_input"),
        ("GET", "/v1/executions?limit=0", 422, "invalid_input"),
        ("GET", "/v1/executions?cursor=x", 422, "invalid_input"),
        ("GET", "/v1/executions/nothing", 422, "invalid_input"),
        ("GET", "/docs", 404, "unknown_path"),
    ):
        answer = await http.request(method, path)
        assert answer.status_code == status, (path, answer.text)
        assert has_problem(answer, status, name)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers


async def test_a_request_id_is_kept_if_it_is_harmless(http):
    kept = await http.get("/livez", headers={"x-request-id": "abc-1"})
    assert kept.headers["x-request-id"] == "abc-1"
    made = await http.get("/livez", headers={"x-request-id": "a b" * 40})
    assert made.headers["x-request-id"] != "a b" * 40


async def test_head_answers_like_get_without_a_body(http):
    answer = await http.head("/v1/executions")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_token_never_reaches_the_log(world, caplog):
    token = await world.token("read")
    with caplog.at_level(logging.DEBUG):
        await world.with_token(token).get("/v1/executions")
        await world.with_token(token + "x").get("/v1/executions")
    assert "/v1/executions 200" in caplog.text
    assert token not in caplog.text


async def test_an_unexpected_error_tells_the_client_nothing(world, http, monkeypatch, caplog):
    async def broken(*_, **__):
        raise RuntimeError("a secret of the server")

    client = await world.client()
    monkeypatch.setattr(client.executions, "list", broken)
    http.event_hooks = {}  # the document has no 500
    answer = await http.get("/v1/executions")
    assert has_problem(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert "a secret of the server" in caplog.text


# The mapping of errors


def every_error(kind=FlowFabricError):
    for each in kind.__subclasses__():
        yield each
        yield from every_error(each)


def test_every_error_has_a_status_and_a_name_of_its_own():
    found = sorted(set(every_error()), key=lambda kind: kind.__name__)
    names = [name_of(kind) for kind in found]
    assert len(set(names)) == len(names) > 60
    ours = [kind for kind in found if kind.__module__ == "flowfabric.core.errors"]
    unmapped = {kind.__name__ for kind in ours if status_of(kind("x")) == 500}
    assert unmapped == {"StepFailed", "SlotsLost"}  # they happen inside a worker
    assert status_of(InvalidInput(field="x", problem="y")) == 422
    for kind, status in STATUS:
        assert 400 <= status < 600, kind


async def test_a_token_made_over_http_expires_and_does_not_outlive_its_maker(world):
    forever = await world.caller("admin")
    made = (await forever.post("/v1/tokens", json={"name": "x", "scopes": ["read"]})).json()
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(
        made["created_at"]
    )
    assert lifetime == timedelta(days=90)
    short = world.with_token(await world.token("admin", expires=timedelta(hours=1)))
    made = (await short.post("/v1/tokens", json={"name": "x", "scopes": ["read"]})).json()
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(
        made["created_at"]
    )
    assert lifetime <= timedelta(hours=1)
    for caller, expires in ((short, "2h"), (forever, "400d"), (forever, 0), (forever, None)):
        body = {"name": "x", "scopes": ["read"], "expires": expires}
        answer = await caller.post("/v1/tokens", json=body)
        assert (answer.status_code, answer.json()["field"][:7]) == (422, "expires"), expires


async def test_payloads_can_be_hidden_from_callers_who_may_only_read(world):
    world.served.state.backend.hides_payloads = True
    reader, submitter = await world.caller("read"), await world.caller("submit")
    uuid = (await submitter.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    place = f"/v1/executions/{uuid}"
    for path in (f"{place}?payload=true", f"{place}/steps?payload=true", f"{place}/result"):
        assert has_problem(await reader.get(path), 403, "forbidden")
        assert (await submitter.get(path)).status_code in (200, 202)
    for path in (f"{place}/stream", f"{place}/summary"):
        assert has_problem(await reader.get(path), 403, "forbidden")
    assert (await reader.get(place)).status_code == 200
    found = {"arguments": {"partition_key": 0, "execution_id": {"uuid": uuid}}}
    for caller, is_shown in ((reader, False), (submitter, True)):
        answer = (await caller.post("/v1/calls/read/describe_execution", json=found)).json()
        row = dict(zip(answer["columns"], answer["rows"][0], strict=True))
        assert (row["payload"] is not None) is is_shown
    streams = {"arguments": {"partition_key": 0, "execution_ids": [{"uuid": uuid}]}}
    answer = await reader.post("/v1/calls/read/read_streams", json=streams)
    assert has_problem(answer, 403, "forbidden")


async def test_a_caller_has_a_bounded_number_of_open_streams(world, http, serving, monkeypatch):
    monkeypatch.setattr(routing, "MAX_STREAMS", 2)
    token = await world.token("read")
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    async with httpx.AsyncClient(base_url=serving, headers=headers, timeout=60) as caller:
        async with caller.stream("GET", "/v1/events"), caller.stream("GET", "/v1/events"):
            counts = world.served.state.backend.open_streams
            await eventually(lambda: sum(counts.values()) == 2)
            refused = await caller.get("/v1/events")
            assert refused.status_code == 429
            assert refused.headers["retry-after"]
            assert refused.json()["type"] == "urn:flowfabric:too_many_streams"
            assert (await http.get("/v1/events")).status_code == 200, "others are not concerned"
        await eventually(lambda: not counts)


async def test_the_logins_of_other_namespaces_are_not_listed(world, http):
    answer = await http.get("/v1/namespaces")
    assert (answer.status_code, answer.json()["items"]) == (200, [])
