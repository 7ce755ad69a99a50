"""Executions over HTTP: submit, read, operate, signal."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.task import TaskDeclaration
from server.stage import OURS
from worker.apps import working

SUBMIT = {"task": "add", "arguments": {"x": 2, "y": 3}}


async def submitted(http, **more):
    answer = await http.post("/v1/executions", json={**SUBMIT, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["uuid"]


async def test_an_execution_is_submitted_run_and_its_result_read(world, http):
    answer = await http.post("/v1/executions", json=SUBMIT)
    assert answer.status_code == 201
    facts = answer.json()
    assert facts["id"] == f"{{fp:0}}:{facts['uuid']}"
    assert facts["is_duplicate"] is False
    assert answer.headers["location"] == f"/v1/executions/{facts['uuid']}"
    place = answer.headers["location"]
    early = await http.get(f"{place}/result")
    assert (early.status_code, early.json()["public_state"]) == (202, "waiting")
    async with working(world.app):
        ended = await http.get(f"{place}/result", headers={"prefer": "wait=30"})
    assert ended.status_code == 200
    assert ended.json()["result"] == 5
    assert ended.json()["public_state"] == "completed"
    shown = (await http.get(place, params={"payload": True})).json()
    assert shown["result"] == "5"
    assert shown["creator"].startswith("token tests (ffp_")
    assert shown["tags"] == {"team.name": "sums"}
    assert [event["kind"] for event in shown["events"]] == ["submitted", "claimed", "completed"]
    assert "lease_id" not in str(shown)
    attempts = (await http.get(f"{place}/attempts")).json()
    assert [one["lifecycle"] for one in attempts["items"]] == ["ended_success"]


async def test_a_result_comes_back_as_it_is_with_its_nulls(world, http):
    value = {"a": None, "lease_id": "mine", "b": [{"c": None}]}
    results = []
    async with working(world.app):
        for each in (value, None):
            uuid = await submitted(http, task="echo", arguments={"value": each})
            ended = await http.get(f"/v1/executions/{uuid}/result", headers={"prefer": "wait=30"})
            results.append(ended.json()["result"])
    assert results == [value, None]


async def test_a_failure_is_told_with_its_reason(world, http):
    uuid = await submitted(http, task="fail", arguments={})
    async with working(world.app):
        ended = await http.get(f"/v1/executions/{uuid}/result", headers={"prefer": "wait=30"})
    assert ended.json()["public_state"] == "failed"
    assert "no" in ended.json()["failure"]["reason"]


async def test_a_key_and_the_header_idempotency_key_are_the_same(http):
    first = await http.post("/v1/executions", json={**SUBMIT, "key": "k"})
    again = await http.post("/v1/executions", json=SUBMIT, headers={"idempotency-key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "is_duplicate": True}
    other = await http.post("/v1/executions", json={"task": "add", "arguments": [9], "key": "k"})
    assert (other.status_code, other.json()["type"]) == (409, "urn:flowfabric:key_reused")
    both = await http.post(
        "/v1/executions", json={**SUBMIT, "key": "k"}, headers={"idempotency-key": "j"}
    )
    assert (both.status_code, both.json()["field"]) == (422, "key")


async def test_a_batch_answers_each_item(http):
    items = [SUBMIT, {"task": "add", "arguments": {"z": 1}}, {"task": "nobody"}, SUBMIT]
    answer = await http.post("/v1/executions/batch", json={"items": items})
    assert answer.status_code == 200
    one, unknown, nobody, four = answer.json()["items"]
    assert one["id"] != four["id"]
    assert unknown["problem"]["field"] == "arguments.z"
    assert nobody["problem"]["type"] == "urn:flowfabric:task_not_found"
    assert (await http.get("/v1/executions/count")).json() == {"count": 2, "is_more": False}


async def test_a_task_that_another_app_registered_is_submitted_by_its_schema(world, http):
    client = await world.client()
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string"}},
        "required": ["to"],
        "additionalProperties": False,
    }
    await client.tasks.register(OURS, [1], [TaskDeclaration(task="mail.send", arguments=schema)])
    uuid = await submitted(http, task="mail.send", arguments={"to": "ann"}, lane="mail")
    shown = (await http.get(f"/v1/executions/{uuid}?payload=1")).json()
    assert (shown["payload"], shown["lane"]) == ('{"to":"ann"}', "mail")
    for arguments, field in (({}, "arguments.to"), ({"to": "a", "b": 1}, "arguments.b")):
        answer = await http.post(
            "/v1/executions", json={"task": "mail.send", "arguments": arguments}
        )
        assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_a_list_takes_the_filter_language_and_pages_by_a_link(http):
    for number in range(5):
        await submitted(http, arguments={"x": number}, lane="a" if number % 2 else "b")
    everything = (await http.get("/v1/executions?limit=1000")).json()
    assert (len(everything["items"]), everything["next_cursor"]) == (5, None)
    some = await http.get("/v1/executions", params={"where": "lane=b age<1h", "state": "waiting"})
    assert {one["lane"] for one in some.json()["items"]} == {"b"}
    seen, address = [], "/v1/executions?limit=2&lane=b"
    while address:
        answer = await http.get(address)
        seen += [one["uuid"] for one in answer.json()["items"]]
        address = answer.links["next"]["url"] if "next" in answer.links else None
    assert seen == [one["uuid"] for one in some.json()["items"]]
    wrong = await http.get("/v1/executions", params={"where": "colour=red"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "where")


OPERATIONS = [
    ("POST", "cancel", {"reason": "late"}, "cancelled"),
    ("PUT", "priority", {"priority": 7, "reason": "soon"}, "changed"),
    ("POST", "retry", {}, "promoted"),
]


@pytest.mark.parametrize(("method", "verb", "body", "outcome"), OPERATIONS)
async def test_an_operation_names_its_actor_and_obeys_if_match(http, method, verb, body, outcome):
    uuid = await submitted(http, delay="1h")
    place = f"/v1/executions/{uuid}"
    tag = (await http.get(f"{place}/state")).headers["etag"]
    old = {"if-match": '"0"'}
    stale = await http.request(method, f"{place}/{verb}", json=body, headers=old)
    assert stale.status_code == 412, stale.text
    assert stale.json()["type"] == "urn:flowfabric:version_moved"
    done = await http.request(method, f"{place}/{verb}", json=body, headers={"if-match": tag})
    assert (done.status_code, done.json()["outcome"]) == (200, outcome), done.text
    event = (await http.get(f"{place}/events")).json()["items"][-1]
    assert event["actor"].startswith("token tests")
    assert done.headers["etag"] == f'"{event["version"]}"'


async def test_replay_revoke_and_tags(world, http):
    uuid = await submitted(http)
    place = f"/v1/executions/{uuid}"
    tags = await http.put(f"{place}/tags", json={"team.name": "b"})
    assert tags.json()["tags"] == {"team.name": "b"}
    early = await http.post(f"{place}/replay")
    assert early.json()["type"] == "urn:flowfabric:execution_not_terminal"
    client = await world.client()
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    revoked = await http.post(f"{place}/revoke-lease", json={"reason": "stuck"})
    assert revoked.json()["outcome"] == "revoked"
    assert str(held.lease_id) not in revoked.text
    assert (await http.post(f"{place}/cancel")).status_code == 200
    assert (await http.post(f"{place}/replay", json={"fresh": True})).status_code == 200
    assert (await http.get(f"{place}/why")).json()["sentence"]


async def test_a_signal_is_delivered_once_under_its_key(http):
    uuid = await submitted(http)
    body = {"name": "approve", "value": {"by": "ann"}}
    key = {"idempotency-key": "once"}
    first = await http.post(f"/v1/executions/{uuid}/signal", json=body, headers=key)
    again = await http.post(f"/v1/executions/{uuid}/signal", json=body, headers=key)
    assert (first.status_code, first.json()["effect"]) == (200, "buffered")
    assert again.json()["is_duplicate"] is True
    assert again.json()["id"] == first.json()["id"]


async def test_ids_are_accepted_bare_whole_and_short(http):
    uuid = await submitted(http)
    for form in (uuid, f"{{fp:0}}:{uuid}", uuid[-12:]):
        assert (await http.get(f"/v1/executions/{form}/state")).json()["uuid"] == uuid
    missing = await http.get(f"/v1/executions/{mint()}/state")
    assert (missing.status_code, missing.json()["title"]) == (404, "Execution not found")


async def test_many_waits_share_one_look(world, http):
    client = await world.client()
    route = Route(OURS, "default", "add")
    ids = [mint() for _ in range(20)]
    for id in ids:
        await client.executions.submit(Submission(id=id, route=route, payload=b'{"x":1,"y":1}'))

    async def wait(id):
        answer = await http.get(f"/v1/executions/{id.uuid}/result", headers={"prefer": "wait=30"})
        return answer.json()["result"]

    async with working(world.app):
        assert await asyncio.gather(*map(wait, ids)) == [2] * 20
