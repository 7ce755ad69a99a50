"""A server on the database of the test."""

from __future__ import annotations

import pytest

from server.stage import OURS, World, make_tasks
from worker.apps import app, folder, make_app, plain_environment, start_worker

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
