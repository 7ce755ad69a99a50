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


@pytest.fixture
async def program(db: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Program]:
    """Runs the code of a page; its app uses the database of the test."""
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", db.url)
    program = Program(db, new_module("guide"))
    yield program
    for value in list(program.names.values()):
        if isinstance(value, App):
            await value.close()
    del sys.modules["guide"]
