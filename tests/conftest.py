"""The fixtures of all tests that need a database; support/database.py tells how to use them.
support/isolation.py tells where they run."""

from __future__ import annotations

from support.clock import clock
from support.cluster import cluster
from support.database import conn, databases, db, template
from support.factories import engine, make
from support.isolation import nowhere, pytest_collection, pytest_sessionfinish

__all__ = [
    "clock",
    "cluster",
    "conn",
    "databases",
    "db",
    "engine",
    "make",
    "nowhere",
    "pytest_collection",
    "pytest_sessionfinish",
    "template",
]
