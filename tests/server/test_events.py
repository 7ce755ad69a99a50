"""The event log over HTTP: pages, and streams that resume."""

from __future__ import annotations

import asyncio
import json

import httpx

from flowfabric.server import events as server_events
from flowfabric.server import principals
from worker.waiting import eventually

SUBMIT = {"task": "add", "arguments": {"x": 2}}


async def test_events_come_in_pages_from_a_cursor(http):
    start = (await http.get("/v1/events")).json()["next_cursor"]
    uuid = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    await http.post(f"/v1/executions/{uuid}/cancel")
    page = (await http.get("/v1/events", params={"cursor": start})).json()
    assert [one["kind"] for one in page["items"]] == ["submitted", "cancelled"]
    assert page["has_more"] is False
    rest = (await http.get("/v1/events", params={"cursor": page["next_cursor"]})).json()
    assert rest["items"] == []
    some = (await http.get("/v1/events", params={"since": "1h", "kind": "cancelled"})).json()
    assert [one["uuid"] for one in some["items"]] == [uuid]
    wrong = await http.get("/v1/events", params={"cursor": "nonsense"})
    assert wrong.status_code == 422, wrong.text


async def frames_of(world, token, number, **headers):
    """Read a stream as a server would send it, until it has sent so many events."""
    found, last = [], None
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/events",
        "raw_path": b"/v1/events",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 9090),
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"accept", b"text/event-stream"),
            (b"authorization", f"Bearer {token}".encode()),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ],
    }
    enough, gone = asyncio.Event(), asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal last
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        for block in message.get("body", b"").decode().split("\n\n"):
            for line in block.splitlines():
                if line.startswith("data: "):
                    found.append(json.loads(line[6:]))
                if line.startswith("id: "):
                    last = line[4:]
                    if len(found) >= number:
                        enough.set()

    task = asyncio.create_task(world.served(scope, receive, send))
    started = asyncio.create_task(enough.wait())
    yield found
    await asyncio.wait([started, task], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    gone.set()
    await asyncio.wait([task], timeout=30)
    started.cancel()
    yield last


async def test_a_stream_sends_what_happens_and_resumes(world, http):
    token = await world.token("read")
    start = (await http.get("/v1/events")).json()["next_cursor"]
    first = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    stream = frames_of(world, token, 2, last_event_id=start)
    found = await anext(stream)
    second = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    last = await anext(stream)
    await stream.aclose()
    assert [one["uuid"] for one in found] == [first, second]
    third = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    stream = frames_of(world, token, 1, last_event_id=last)
    found = await anext(stream)
    await anext(stream)
    await stream.aclose()
    assert [one["uuid"] for one in found] == [third]


async def test_streams_share_one_reader_and_leave_nothing(world, http):
    token = await world.token("read")
    start = (await http.get("/v1/events")).json()["next_cursor"]
    await http.post("/v1/executions", json=SUBMIT)
    streams = [frames_of(world, token, 1, last_event_id=start) for _ in range(10)]
    for stream in streams:
        await anext(stream)
    backend = world.served.state.backend
    for stream in streams:
        await anext(stream)
        await stream.aclose()
    (feed,) = backend._feeds.values()
    assert feed.queues == set()
    await eventually(feed.task.done)


async def test_a_stream_that_does_not_read_is_closed_and_harms_nobody(world, http, monkeypatch):
    monkeypatch.setattr(server_events, "BEHIND", 2)
    client = await world.client()
    feed = server_events.Feed(client)
    cursor = await client.events.open()
    slow, quick = feed.open_queue(cursor), feed.open_queue(cursor)
    seen = 0
    for _ in range(5):
        await http.post("/v1/executions", json=SUBMIT)
        page = await asyncio.wait_for(quick.get(), 30)
        seen += len(page.events)
    assert seen == 5
    left = [slow.get_nowait() for _ in range(slow.qsize())]
    assert left[-1] is None
    feed.close_queue(quick)
    await eventually(feed.task.done)


async def test_a_stream_ends_when_its_token_is_revoked(world, http, monkeypatch):
    """It did not: a revoked token got events for as long as it stayed connected."""
    monkeypatch.setattr(principals, "CACHE_SECONDS", 0.0)
    made = (await http.post("/v1/tokens", json={"name": "x", "scopes": ["read"]})).json()
    start = (await http.get("/v1/events")).json()["next_cursor"]
    first = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    stream = frames_of(world, made["token"], 2, last_event_id=start)
    found = await anext(stream)
    await eventually(lambda: len(found) == 1)
    await http.delete(f"/v1/tokens/{made['id']}")
    await http.post("/v1/executions", json=SUBMIT)
    await anext(stream)  # the server has ended the stream
    await stream.aclose()
    assert [one["uuid"] for one in found] == [first]


async def test_a_large_answer_is_compressed_and_a_stream_is_not(http, serving, world):
    asked = {"accept-encoding": "gzip"}
    large = await http.get("/v1/openapi.json", headers=asked)
    assert large.headers["content-encoding"] == "gzip"
    assert large.json()["openapi"]
    assert "content-encoding" not in (await http.get("/livez", headers=asked)).headers
    token = await world.token("read")
    headers = {**asked, "authorization": f"Bearer {token}", "accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(base_url=serving, timeout=60) as caller,
        caller.stream("GET", "/v1/events", headers=headers) as answer,
    ):
        assert "content-encoding" not in answer.headers


async def test_a_silent_stream_of_events_sends_comments(serving, world, monkeypatch):
    monkeypatch.setattr(server_events, "SILENCE_SECONDS", 0.01)
    token = await world.token("read")
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(base_url=serving, timeout=60) as caller,
        caller.stream("GET", "/v1/events", headers=headers) as answer,
    ):
        seen = b""
        async for part in answer.aiter_bytes():
            seen += part
            if seen.count(b":\n\n") >= 5:
                break
    assert not seen.replace(b":\n\n", b""), "nothing happened, so nothing else is sent"
