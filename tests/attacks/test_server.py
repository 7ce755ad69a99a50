"""An HTTP server whose login of the database is bound to a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from attacks.conftest import OURS, THEIRS
from flowfabric import App
from flowfabric.core.token import Scope
from server.stage import World, routes_of
from support.private_cluster import Cluster

# They wait, or answer without end.
WAITING = {"/dashboard/live"}


@pytest.fixture
async def keepers(cluster: Cluster, stronghold: str) -> AsyncIterator[App]:
    """The app of the owner, who can make tokens."""
    async with App(database_url=cluster.url(stronghold, "keeper"), namespace=OURS) as app:
        yield app


@pytest.fixture
async def bound(cluster: Cluster, stronghold: str) -> AsyncIterator[World]:
    """A server with the bound login."""
    app = App(database_url=cluster.url(stronghold, "bound"), namespace=OURS)
    world = World(app)
    yield world
    await world.close()
    await app.close()


async def made(keepers: App, namespace: str) -> str:
    client = (await keepers.client()).within(namespace)
    return (await client.tokens.create("tests", list(Scope))).token


async def test_a_token_of_another_namespace_is_unknown_to_a_bound_server(keepers, bound):
    theirs = bound.with_token(await made(keepers, THEIRS))
    for method, path, access in routes_of(bound.served):
        if access.scope is None or path.startswith("/dashboard"):
            continue
        place = path.replace("{id}", str(uuid4())).replace("{name}", "x")
        answer = await theirs.request(method, place.replace("{waitpoint_id}", str(uuid4())))
        assert answer.status_code in (401, 403, 429), (method, path, answer.text)


async def test_a_bound_server_answers_every_read_of_its_own_namespace(keepers, bound):
    """Reads for operators name the role that the login of the server lacks. They answered 503, as
    if a later call could succeed."""
    ours = bound.with_token(await made(keepers, OURS))
    refused = set()
    for method, path, access in routes_of(bound.served, ["GET"]):
        if access.scope is None or path in WAITING:
            continue
        place = path.replace("{id}", str(uuid4())).replace("{name}", "x")
        answer = await ours.request(method, place.replace("{waitpoint_id}", str(uuid4())))
        assert answer.status_code < 500, (path, answer.text)
        if answer.status_code == 403:
            assert "flowfabric_operator" in answer.text, path
            refused.add(path)
            if path.startswith("/v1"):
                facts = answer.json()
                assert facts["type"] == "urn:flowfabric:missing_role"
                assert facts["role"] == "flowfabric_operator"
    assert refused == {
        *("/v1/keys", "/v1/tokens", "/v1/audit", "/v1/namespaces"),
        *("/dashboard/audit", "/dashboard/subscriptions"),
    }


async def test_a_bound_server_writes_in_its_own_namespace_only(keepers, bound):
    ours = bound.with_token(await made(keepers, OURS))
    client = await keepers.client()
    worker = {"worker_id": "w", "worker_instance_id": "w-1"}
    task = {**worker, "tasks": [{"name": "upper"}]}
    assert (await ours.post("/v1/workers/register", json=task)).status_code == 200
    stored = await ours.post("/v1/executions", json={"task": "upper", "arguments": {}})
    assert stored.status_code == 201, stored.text
    foreign = {"arguments": {"namespace": THEIRS}}
    answer = await ours.post("/v1/calls/read/list_lanes", json=foreign)
    assert answer.status_code in (403, 422), answer.text
    claim = {**worker, "tasks": ["upper"]}
    (held,) = (await ours.post("/v1/workers/claim", json=claim)).json()["items"]
    done = await ours.post("/v1/leases/complete", json={"lease": held["lease"], "result": 1})
    assert done.status_code == 200
    assert (await client.within(THEIRS).executions.list()).executions == []
    # A token is an act of operators, which the login of the server is not.
    made_here = await ours.post("/v1/tokens", json={"name": "x", "scopes": ["admin"]})
    assert made_here.json()["type"] == "urn:flowfabric:missing_role", made_here.text
