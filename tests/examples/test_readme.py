"""The code of the README, as far as it goes without waiting for a day."""

from __future__ import annotations

import re
from pathlib import Path

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
