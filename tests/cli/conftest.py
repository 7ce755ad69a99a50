"""The fixtures of worker/apps.py, and `flowfabric` for the tests of this folder."""

from __future__ import annotations

import pytest

from cli.operating import Commands
from support.database import Database
from worker.apps import app, folder, make_app, plain_environment, start_worker

__all__ = ["app", "folder", "make_app", "plain_environment", "start_worker"]


@pytest.fixture
def ff(db: Database) -> Commands:
    """`await ff("ls", "--state", "failed")` on the database of the test."""
    return Commands(db.url)
