"""`flowfabric serve` as a process, and the server mounted in another application."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress

import httpx
import pytest
from fastapi import FastAPI

from flowfabric.core.task import TaskDeclaration
from server.stage import OURS
from worker.waiting import eventually

SUBMIT = {"task": "elsewhere", "arguments": {}}


class Served:
    """A server process on a free port."""

    def __init__(self, db, port: int | None = None) -> None:
        self._url = db.url
        if port is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        self.port = port

    async def __aenter__(self) -> Served:
        environment = {
            **os.environ,
            "FLOWFABRIC_DATABASE_URL": self._url,
            "FLOWFABRIC_NAMESPACE": OURS,
            "FLOWFABRIC_LOG_LEVEL": "WARNING",
        }
        command = [sys.executable, "-m", "flowfabric", "serve", "--port", str(self.port)]
        self.process = await asyncio.create_subprocess_exec(*command, env=environment)
        await eventually(self._answers)
        return self

    async def __aexit__(self, *_) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def caller(self, token: str | None) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", headers=headers)

    async def _answers(self) -> bool:
        assert self.process.returncode is None
        async with self.caller(None) as caller:
            with suppress(httpx.HTTPError):
                return (await caller.get("/readyz")).status_code == 200
        return False


@pytest.fixture
async def token(world):
    client = await world.client()
    await client.tasks.register(OURS, [0], [TaskDeclaration(task="elsewhere")])
    return await world.token("submit")


async def test_the_command_serves_and_stops_on_a_signal(db, token):
    async with Served(db) as served, served.caller(token) as caller:
        made = await caller.post("/v1/executions", json=SUBMIT)
        assert made.status_code == 201, made.text
        assert "server" not in made.headers
        async with served.caller(None) as nobody:
            assert (await nobody.post("/v1/executions", json=SUBMIT)).status_code == 401
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), 60) == 0


async def test_the_server_can_be_mounted(world):
    web = FastAPI()
    web.mount("/flowfabric", world.served)
    token = await world.token("submit")
    transport = httpx.ASGITransport(app=web)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://x", headers=headers
    ) as caller:
        body = {"task": "add", "arguments": {"x": 1}}
        made = await caller.post("/flowfabric/v1/executions", json=body)
        assert made.status_code == 201, made.text
        place = made.headers["location"]
        assert place == f"/flowfabric/v1/executions/{made.json()['uuid']}"
        assert (await caller.get(f"{place}/state")).json()["public_state"] == "waiting"
        missing = await caller.get("/flowfabric/nowhere")
        assert missing.json()["type"] == "urn:flowfabric:unknown_path"
        allowed = await caller.options("/flowfabric/v1/executions")
        assert allowed.headers["allow"] == "GET, HEAD, OPTIONS, POST"


@pytest.mark.slow
async def test_a_killed_server_has_lost_nothing_that_it_acknowledged(db, world, token, sized):
    acknowledged: list[str] = []

    async def submit(served, number):
        async with served.caller(token) as caller:
            for _ in range(number):
                with suppress(httpx.HTTPError):
                    answer = await caller.post("/v1/executions", json=SUBMIT)
                    if answer.status_code == 201:
                        acknowledged.append(answer.json()["uuid"])

    port = None
    for _ in range(sized(10, short=2)):
        async with Served(db, port) as served:
            port = served.port
            load = asyncio.gather(*(submit(served, 200) for _ in range(8)))
            already = len(acknowledged)
            await eventually(lambda already=already: len(acknowledged) > already + 50)
            served.process.kill()
            await load
    client = await world.client()
    assert len(acknowledged) > 100
    for uuid in acknowledged:
        assert await client.executions.state(uuid) is not None
