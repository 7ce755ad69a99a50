"""The fixtures of worker/apps.py, and the program of a page."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from docs.pages import Program, new_module
from flowfabric import App
from support.database import Database
from worker.apps import plain_environment

__all__ = ["plain_environment"]


def for_sqlalchemy(url: str) -> str:
    return url.replace("postgresql:", "postgresql+asyncpg:", 1)


@pytest.fixture
async def program(db: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Program]:
    """Runs the code of a page; its app uses the database of the test, by a URL for SQLAlchemy."""
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", for_sqlalchemy(db.url))
    program = Program(db, new_module("guide"))
    yield program
    for value in list(program.names.values()):
        if isinstance(value, App):
            await value.close()
    del sys.modules["guide"]
