"""A server on the database of the test."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn

from flowfabric.server.protocol import BoundedProtocol
from server.stage import OURS, World, make_tasks
from worker.apps import app, folder, make_app, plain_environment, start_worker
from worker.waiting import eventually

__all__ = ["app", "folder", "make_app", "plain_environment", "start_worker"]


@pytest.fixture
async def world(make_app):
    made = make_app(namespace=OURS, name="shop")
    make_tasks(made)
    world = World(made)
    yield world
    await world.close()


@pytest.fixture
async def http(world):
    """A caller who may do everything in its namespace."""
    return await world.caller("admin")


@pytest.fixture
async def serving(world):
    """The address of the server on a real socket."""
    config = uvicorn.Config(
        world.served, port=0, log_config=None, lifespan="off", http=BoundedProtocol
    )
    running = uvicorn.Server(config)
    task = asyncio.create_task(running._serve())
    await eventually(lambda: running.started)
    (socket,) = running.servers[0].sockets
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    running.should_exit = True
    await asyncio.wait_for(task, 60)
