"""The code of the README, as far as it goes without waiting for a day."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from flowfabric import App, first_of
from worker.apps import working

README = Path(__file__).parents[2] / "README.md"


async def test_the_tour_registers_its_tasks_and_its_schedule(monkeypatch, db):
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", db.url)
    tour = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)[0]
    declared, calls = tour.split("\n\nrun = ")
    names = {"__name__": "tour"}
    exec(compile(declared, "README.md", "exec", dont_inherit=True), names)
    app = names["app"]
    assert set(app.tasks) == {"tour.send_mail", "tour.onboard", "tour.report"}
    assert list(app.schedules) == ["tour.report"]
    await app.prepare()
    run = await names["onboard"].submit(7)
    assert await run.state() == "waiting"
    assert "await run.result(timeout=30)" in calls
    await app.close()


async def test_the_flow_is_stored_and_passes_the_first_offer_on(monkeypatch, db):
    monkeypatch.setenv("FLOWFABRIC_DATABASE_URL", db.url)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (flow,) = [block for block in blocks if "app.flow(" in block]
    app = App()

    @app.task
    async def ask(carrier: str) -> int:
        await asyncio.sleep(0 if carrier == "swift" else 60)
        return len(carrier)

    @app.task
    async def book(price: int) -> str:
        return f"booked for {price}"

    @app.task
    async def print_label(text: str) -> str:
        return f"label: {text}"

    @app.task
    async def tell_customer() -> None: ...

    names = {"app": app, "first_of": first_of, "print": lambda told: found.append(told)}
    names |= {task.__name__: task for task in (ask, book, print_label, tell_customer)}
    found: list[dict[str, object]] = []
    body = "async def main():\n" + "".join(f"    {line}\n" for line in flow.splitlines())
    exec(compile(body, "README.md", "exec", dont_inherit=True), names)
    async with working(app):
        await names["main"]()
    assert found == [
        {
            "ask": 5,
            "book": "booked for 5",
            "print_label": "label: booked for 5",
            "tell_customer": None,
        }
    ]
    await app.close()
