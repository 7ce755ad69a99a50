"""One PostgreSQL server for a whole test run, from `flowfabric.testing`.

`FLOWFABRIC_TEST_DATABASE_URL` names a server to use instead (any of its databases, as a
superuser). DATABASE_URL and FLOWFABRIC_DATABASE_URL are never read, because tests drop databases.
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
