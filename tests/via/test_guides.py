"""The code in the guides runs as it stands."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, ExecutionFailed, InvalidInput
from via.kinds import KINDS
from worker.apps import working

GUIDES = Path(__file__).parents[2] / "docs" / "guide"


def blocks(name: str) -> Iterator[str]:
    text = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    yield from re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
async def read(db, monkeypatch):
    """The names that the code of a guide defines; its app uses the database of the test."""
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", db.url)
    apps: list[App] = []

    def read(name: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "guide"}
        for block in blocks(name):
            exec(compile(block, f"{name}.md", "exec", dont_inherit=True), names)
        apps.append(names["app"])
        return names

    yield read
    for app in apps:
        await app.close()


async def test_tasks(read, capsys):
    names = read("tasks")
    app = names["app"]
    assert "lines.0.price" in await names["refused"]()
    async with working(app, needs=["smtp"]):
        assert await names["submit"]() == Decimal("19.90")
        run = await names["send_mail"].submit("a@x", "?")
        assert await run.result(timeout=10) == "a@x: ? (attempt 0)"
        assert await names["watch"](run.id) == "completed"
    assert "claimed" in capsys.readouterr().out
    assert await names["stop"](run.id) is False
    with pytest.raises(TypeError):
        names["send_mail"]("a@x", "?")


async def test_retries(read):
    names = read("retries")
    run = await names["charge"].submit(1)
    async with working(names["app"]):
        with pytest.raises(ExecutionFailed, match="in attempt 1: CardDeclined"):
            await run.result(timeout=10)
        assert await (await names["fetch"].submit("u")).result(timeout=10) == "u"


async def test_flows(read, db):
    names = read("flows")
    app = names["app"]
    urls = ["a/b", "c"]
    async with working(app):
        assert await names["report"](urls) == "4 words"
        assert await names["two_offers"]() == 500
        assert await names["first_offer"]() == 500
        assert await (await names["weekly"].submit(urls)).result(timeout=30) == "4 words"
        assert await (await names["crawl"].submit(urls)).result(timeout=30) == 300
    async with app.flow("left") as f:
        f.add(names["fetch"], "x")
    assert await names["cancel"](str(f.run.id)) == "cancelled"
    assert await f.run.state() == "cancelled"
    kinds = "report", "offers", "race", "report of the week", "left"
    assert set(await db.fetchval("select array_agg(flow_kind) from ff.flow")) == set(kinds)


def test_every_picture_of_the_guide_is_there():
    text = (GUIDES / "flows.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert len(pictures) >= 5
    assert [name for name in pictures if not (GUIDES / name).exists()] == []


CASES = {
    "with_asyncpg": "asyncpg_connection",
    "with_psycopg": "psycopg_connection",
    "with_async_psycopg": "psycopg_async_connection",
    "with_session": "sqlalchemy_session",
    "with_async_session": "sqlalchemy_async_session",
    "with_django": "django_connection",
}


async def test_transactional_submit(db, read):
    await db.execute("create table orders (id bigint primary key)")
    # Django is configured before a program imports its connection.
    async with KINDS["django_connection"](db.url):
        names = read("transactional-submit")
    assert {name for name in names if name.startswith("with_")} == set(CASES)
    runs = []
    for number, (function, kind) in enumerate(CASES.items()):
        async with KINDS[kind](db.url) as caller:
            given = (number,) if kind == "django_connection" else (caller.via, number)
            work = partial(names[function], *given)
            runs.append(await caller.run(lambda _, work=work: work()))
    async with working(names["app"]):
        results = await asyncio.gather(*(run.result(timeout=10) for run in runs))
    assert results == [f"order {number} is confirmed" for number in range(len(CASES))]
    assert await db.fetchval("select count(*) from orders") == len(CASES)
    with pytest.raises(InvalidInput, match="via"):
        await names["confirm"].submit(1, via=3)
