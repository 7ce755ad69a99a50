"""Every endpoint of the reference has its counterpart: the table of internals, row by row."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

from server.stage import routes_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "http-counterparts.md"
ROW = re.compile(r"^\| `(\w+) ([^`]+)` \| `(\w+) ([^`]+)` \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text())

# How each counterpart is called, in order, and its status.
CALLS = {
    "POST /v1/executions": ({"task": "add", "arguments": {"x": 1}, "delay": "1h"}, 201),
    "GET /v1/executions": (None, 200),
    "GET /v1/executions/{id}": (None, 200),
    "GET /v1/executions/{id}/state": (None, 200),
    "GET /v1/executions/{id}/waitpoints": (None, 200),
    "GET /v1/executions/{id}/waitpoints/{waitpoint_id}/token": (None, 404),
    "GET /v1/executions/{id}/result": (None, 202),
    "GET /v1/executions/{id}/stream": (None, 200),
    "POST /v1/executions/{id}/signal": ({"name": "go"}, 200),
    "PUT /v1/executions/{id}/priority": ({"priority": 5}, 200),
    "POST /v1/executions/{id}/revoke-lease": (None, 200),
    "POST /v1/flows/empty": ({"kind": "x"}, 201),
    "POST /v1/flows/{id}/members": ({"execution_id": "{execution}"}, 201),
    "POST /v1/flows/{id}/edges": (
        {"upstream": "{execution}", "downstream": "{other}", "expected_graph_revision": 2},
        201,
    ),
    "POST /v1/flows/{id}/edges/apply": (
        {"upstream": "{execution}", "downstream": "{other}", "edge_id": "{edge}"},
        200,
    ),
    "POST /v1/executions/{id}/cancel": ({"reason": "x"}, 200),
    "POST /v1/executions/{id}/replay": ({"fresh": True}, 200),
    "POST /v1/workers/claim": (
        {"worker_id": "w", "worker_instance_id": "w-1", "tasks": ["add"]},
        200,
    ),
    "POST /v1/flows/{id}/cancel": ({"cancel_policy": "cancel_all"}, 200),
    "POST /v1/budgets": ({"name": "b", "tokens": 10}, 201),
    "GET /v1/budgets/{name}": (None, 200),
    "POST /v1/budgets/{name}/usage": ({"amounts": {"tokens": 1}}, 200),
    "POST /v1/budgets/{name}/reset": (None, 200),
    "POST /v1/quotas": ({"name": "q", "concurrency": 1}, 201),
    "POST /v1/keys/rotate": ({"name": "2026-12"}, 200),
    "GET /healthz": (None, 200),
    "GET /metrics": (None, 200),
}


def test_the_table_has_the_29_endpoints():
    assert len(ROWS) == 29
    assert len({(method, path) for method, path, *_ in ROWS}) == 29
    assert {f"{method} {path}" for _, _, method, path, _ in ROWS} == set(CALLS)


async def test_every_counterpart_is_there_and_answers(world, http):
    known = {f"{method} {path}" for method, path, _ in routes_of(world.served)}
    assert known >= set(CALLS)
    other = (await http.post("/v1/executions", json={"task": "add", "arguments": [1]})).json()
    found = {"{other}": other["uuid"], "{name}": "b", "{waitpoint_id}": str(uuid4())}
    for name, (body, status) in CALLS.items():
        method, path = name.split()
        if name == "POST /v1/flows/{id}/edges":
            member = {"execution_id": found["{other}"]}
            await http.post(f"/v1/flows/{found['{flow}']}/members", json=member)
        kind = "{flow}" if path.startswith("/v1/flows") else "{execution}"
        place = path.replace("{id}", found.get(kind, ""))
        for key, value in found.items():
            place = place.replace(key, value)
        if body is not None:
            body = {
                key: found.get(value, value) if isinstance(value, str) else value
                for key, value in body.items()
            }
        answer = await http.request(method, place, json=body)
        assert answer.status_code == status, (name, answer.text)
        if name == "POST /v1/executions":
            found["{execution}"] = answer.json()["uuid"]
        if name == "POST /v1/flows/empty":
            found["{flow}"] = answer.json()["uuid"]
        if name == "POST /v1/flows/{id}/edges":
            found["{edge}"] = answer.json()["edge_id"]
