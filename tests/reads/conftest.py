"""The world of stage.py for every test of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric.client import FlowFabric
from support.clock import Clock
from support.database import Database

from .stage import Stage


@pytest.fixture
async def stage(db: Database, clock: Clock) -> AsyncIterator[Stage]:
    await clock.freeze()
    async with FlowFabric(db.url, namespace="test") as client:
        yield Stage(client, db, clock)
