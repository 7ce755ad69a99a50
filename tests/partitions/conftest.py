"""A database with several partitions, whatever the template has."""

from __future__ import annotations

import pytest

from flowfabric import App
from flowfabric.client import FlowFabric
from flowfabric.db.library import package_source
from support.factories import NAMESPACE

NUMBER = 8


@pytest.fixture
def number():
    """How many partitions `several` has. A test with a parameter of this name chooses it."""
    return NUMBER


@pytest.fixture
async def several(db, number):
    """The database, with eight partitions or the number that the test chooses."""
    await db.execute(f"select ff.raise_partitions({number})")
    return db


@pytest.fixture
async def client(several):
    async with FlowFabric(several.url, namespace=NAMESPACE) as client:
        yield client


@pytest.fixture(params=["plain", "distributed"])
async def look_of_each_form(several, request):
    """Runs a test twice: with each form of ff.find_work."""
    library = package_source().library(distributed=request.param == "distributed")
    [file] = [one for one in library.files if one.path.endswith("/find_work.sql")]
    await several.execute(file.text)


@pytest.fixture
async def app(several):
    async with App(database_url=several.url) as app:
        yield app
