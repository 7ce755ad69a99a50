"""Flows over HTTP: a whole graph, piece by piece, pictures, cancelling."""

from __future__ import annotations

import pytest

from worker.apps import working

ADD = {"task": "add"}


def graph(*nodes):
    return {"kind": "sums", "nodes": list(nodes), "tags": {"team.name": "x"}}


async def test_a_graph_runs_with_results_as_arguments(world, http):
    body = graph(
        {"name": "a", **ADD, "arguments": {"x": 1}},
        {"name": "b", **ADD, "arguments": {"x": 2}},
        {"name": "sum", **ADD, "inputs": {"x": "a", "y": "b"}},
        {"name": "first", **ADD, "arguments": {"x": 0}, "after": [{"of": ["a", "b"], "k": 1}]},
    )
    answer = await http.post("/v1/flows", json=body)
    assert answer.status_code == 201, answer.text
    flow = answer.json()
    assert set(flow["nodes"]) == {"a", "b", "sum", "first"}
    place = f"/v1/flows/{flow['uuid']}"
    async with working(world.app):
        last = flow["nodes"]["sum"].partition(":")[2].partition(":")[2]
        ended = await http.get(f"/v1/executions/{last}/result", headers={"prefer": "wait=30"})
        other = flow["nodes"]["first"]
        await http.get(f"/v1/executions/{other}/result", headers={"prefer": "wait=30"})
    assert ended.json()["result"] == 5
    shown = (await http.get(place)).json()
    assert (shown["state"], shown["flow_kind"]) == ("completed", "sums")
    drawn = (await http.get(f"{place}/graph")).json()
    assert (len(drawn["nodes"]), len(drawn["edges"])) == (4, 4)
    picture = await http.get(f"{place}/graph.svg")
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert picture.text.startswith("<svg")
    listed = (await http.get("/v1/flows")).json()["items"]
    assert [one["uuid"] for one in listed] == [flow["uuid"]]
    failed = (await http.get(f"{place}/members", params={"state": "failed"})).json()
    assert failed["items"] == []


BAD = [
    (graph(), "nodes"),
    (graph({"name": "a", **ADD, "arguments": {"x": 1}, "after": ["b"]}), "nodes.0.after"),
    (graph({"name": "a", **ADD}), "nodes.0.arguments"),
    (graph({"name": "a", **ADD, "arguments": {"x": 1}, "key": "k"}), "nodes.0.key"),
    (graph(*[{"name": "a", **ADD, "arguments": {"x": 1}}] * 2), "nodes.1.name"),
    (
        graph({"name": "a", **ADD, "arguments": {"x": 1}, "after": [{"of": ["a"], "k": 2}]}),
        "nodes.0.after",
    ),
    (graph({"name": "a", **ADD, "arguments": {"x": 1}, "inputs": {"x": "a"}}), "nodes.0.inputs.x"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
async def test_a_wrong_graph_names_its_node_and_stores_nothing(http, body, field):
    answer = await http.post("/v1/flows", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert (await http.get("/v1/flows")).json()["items"] == []


async def test_a_cycle_is_refused(http):
    nodes = [
        {"name": "a", **ADD, "arguments": {"x": 1}, "after": ["b"]},
        {"name": "b", **ADD, "arguments": {"x": 1}, "after": ["a"]},
    ]
    answer = await http.post("/v1/flows", json=graph(*nodes))
    assert answer.json()["type"] == "urn:flowfabric:cycle_detected"


async def test_a_flow_is_built_piece_by_piece_and_cancelled(http):
    flow = (await http.post("/v1/flows/empty", json={"kind": "manual"})).json()
    place = f"/v1/flows/{flow['uuid']}"
    members = []
    for number in range(2):
        made = await http.post("/v1/executions", json={"task": "add", "arguments": [number]})
        members.append(made.json()["uuid"])
        added = await http.post(f"{place}/members", json={"execution_id": members[-1]})
        assert added.status_code == 201, added.text
    revision = added.json()["graph_revision"]
    rule = {"downstream": members[1], "kind": "quorum", "k": 1, "on_satisfied": "let_run"}
    assert (await http.put(f"{place}/group-policies", json=rule)).json()["outcome"] == "set"
    edge = {"upstream": members[0], "downstream": members[1]}
    staged = await http.post(f"{place}/edges", json={**edge, "expected_graph_revision": revision})
    assert staged.status_code == 201, staged.text
    stale = await http.post(f"{place}/edges", json={**edge, "expected_graph_revision": revision})
    assert stale.json()["type"] == "urn:flowfabric:stale_graph_revision"
    applied = await http.post(
        f"{place}/edges/apply", json={**edge, "edge_id": staged.json()["edge_id"]}
    )
    assert applied.json()["downstream_state"] == "waiting_children"
    cancelled = await http.post(
        f"{place}/cancel", json={"reason": "enough"}, headers={"prefer": "wait=20"}
    )
    assert cancelled.status_code == 200, cancelled.text
    assert (await http.get(place)).json()["state"] == "cancelled"
