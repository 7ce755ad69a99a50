"""Streams, summaries, approvals and subscriptions over HTTP."""

from __future__ import annotations

import asyncio
import json

from flowfabric import Context
from flowfabric.client.approvals import Approvals
from flowfabric.core.partition import Found
from flowfabric.server import principals
from flowfabric.server import streams as server_streams
from worker.apps import working
from worker.waiting import eventually


def streaming(app):
    @app.task(name="talk")
    async def talk(ctx: Context) -> int:
        for word in ("a", "b", b"\xff\x00"):
            await ctx.stream.send(word)
        return 3


async def test_frames_come_in_pages_and_as_events(world, http):
    streaming(world.app)
    uuid = (await http.post("/v1/executions", json={"task": "talk"})).json()["uuid"]
    place = f"/v1/executions/{uuid}/stream"
    assert (await http.get(place)).json()["is_ended"] is False
    async with working(world.app):
        await http.get(f"/v1/executions/{uuid}/result", headers={"prefer": "wait=30"})
    first = (await http.get(place)).json()
    assert [one["data"] for one in first["items"]] == ["a", "b", "/wA="], "bytes as base64"
    rest = (await http.get(place, params={"cursor": first["items"][0]["id"]})).json()
    assert [one["data"] for one in rest["items"]] == ["b", "/wA="]
    assert rest["is_ended"] is True
    resume = {"accept": "text/event-stream", "last-event-id": first["items"][1]["id"]}
    blocks = (await http.get(place, headers=resume)).text.strip().split("\n\n")
    assert blocks[-1].startswith("event: end")
    (frame,) = [block for block in blocks if "event: frame" in block]
    assert json.loads(frame.partition("data: ")[2])["data"] == "/wA="
    assert (await http.get(f"/v1/executions/{uuid}/summary")).status_code == 404
    wrong = await http.get(place, params={"cursor": "x"})
    assert wrong.status_code == 422, wrong.text


async def test_frames_end_when_the_token_is_revoked(world, http, monkeypatch):
    monkeypatch.setattr(principals, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(server_streams, "SILENCE_SECONDS", 0.01)
    uuid = (await http.post("/v1/executions", json={"task": "add", "arguments": [1]})).json()[
        "uuid"
    ]
    made = (await http.post("/v1/tokens", json={"name": "x", "scopes": ["read"]})).json()
    reader = world.with_token(made["token"], accept="text/event-stream")
    reading = asyncio.create_task(reader.get(f"/v1/executions/{uuid}/stream"))
    # The execution never ends; only the revoked token ends the stream.
    await eventually(lambda: world.served.state.backend.authenticate._known and not reading.done())
    await http.delete(f"/v1/tokens/{made['id']}")
    answer = await asyncio.wait_for(reading, 30)
    assert "event: end" not in answer.text


async def test_approvals_and_subscriptions_are_listed(http):
    uuid = (await http.post("/v1/executions", json={"task": "add", "arguments": [1]})).json()[
        "uuid"
    ]
    assert (await http.get("/v1/approvals")).json()["items"] == []
    assert (await http.get(f"/v1/executions/{uuid}/approvals")).json()["items"] == []
    none = await http.post(f"/v1/executions/{uuid}/approvals/answer", json={"approve": True})
    assert none.status_code in (404, 409), none.text
    assert (await http.get("/v1/subscriptions")).json()["items"] == []
    for method, path in (("GET", ""), ("POST", "/reset"), ("DELETE", "")):
        answer = await http.request(method, f"/v1/subscriptions/x{path}")
        assert answer.json()["type"] == "urn:flowfabric:subscription_not_found"


async def test_a_list_of_approvals_names_the_partitions_that_did_not_answer(http, monkeypatch):
    async def partial(self: Approvals, **_: object) -> Found[object]:
        return Found([], (3,))

    monkeypatch.setattr(Approvals, "list", partial)
    assert (await http.get("/v1/approvals")).json() == {
        "items": [],
        "next_cursor": None,
        "missing_partitions": [3],
    }
    page = (await http.get("/dashboard/approvals")).text
    assert "no answer from partition 3." in page
