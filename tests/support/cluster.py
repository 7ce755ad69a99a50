"""One PostgreSQL server for a whole test run: the one that `flowfabric.testing` gives to everybody.

`FLOWFABRIC_TEST_DATABASE_URL` names a server to use instead (any database of it, as a
superuser). DATABASE_URL and FLOWFABRIC_DATABASE_URL are never read: tests drop databases.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowfabric.testing.server import VARIABLE, shared_server
from flowfabric.testing.server import Server as Cluster

__all__ = ["VARIABLE", "Cluster", "cluster"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with shared_server() as server:
        yield server
