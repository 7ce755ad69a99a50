"""Clients of one database, and a helper that consumes what is left."""

from __future__ import annotations

import pytest

from flowfabric.client import FlowFabric
from support.factories import NAMESPACE


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


@pytest.fixture
async def other(db):
    """A client of another process."""
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client
