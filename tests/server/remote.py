"""Commands through a server: the address and a token instead of a database."""

from __future__ import annotations

import pytest

from cli.operating import Commands
from server.stage import World
from support.factories import NAMESPACE


class RemoteCommands(Commands):
    """Runs `flowfabric ...` with the address of a server and a token instead of a database."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url)
        self.token = token

    def environment(self, url: str | None) -> dict[str, str]:
        return {"FLOWFABRIC_URL": url or self.url, "FLOWFABRIC_TOKEN": self.token}


@pytest.fixture
async def world(make_app):
    world = World(make_app(namespace=NAMESPACE, name="shop"))
    yield world
    await world.close()


@pytest.fixture
async def ff(world, serving):
    token = await world.token("operate", "submit", "signal", namespace=NAMESPACE)
    return RemoteCommands(serving, token)
