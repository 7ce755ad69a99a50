"""Sixty hours round each change of the clock, minute by minute, with two workers that look at the
same moment: what fires is what the clock on the wall says, each time once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from support.proofs import some_of

from .stage import fired, scheduled, scheduler
from .wall_clock import MINUTE, firings, utc

RULES = {
    "30 2 * * *": ({30}, {2}, True),
    "0 * * * *": ({0}, set(range(24)), False),
    "* * * * *": (set(range(60)), set(range(24)), False),
}
ZONES = ("Europe/Berlin", "America/New_York")
CHANGES = {
    "Berlin in spring": utc(2026, 3, 29, 1),
    "New York in spring": utc(2026, 3, 8, 7),
    "Berlin in autumn": utc(2026, 10, 25, 1),
    "New York in autumn": utc(2026, 11, 1, 6),
}


@pytest.mark.parametrize(
    "span",
    [
        pytest.param(timedelta(hours=2), id="short"),
        pytest.param(
            timedelta(hours=60),
            id="full",
            marks=[pytest.mark.slow(short=1), pytest.mark.timeout(400)],
        ),
    ],
)
@pytest.mark.parametrize("change", some_of(CHANGES, 0, share=4))
async def test_two_workers_fire_every_time_once(change, span, make_app, db, clock):
    start = CHANGES[change] - span / 2
    end = start + span
    await clock.freeze(start)
    workers = []
    for _ in range(2):
        app = make_app(name="clocks")
        for zone in ZONES:
            for rule in RULES:
                name = f"{zone}:{rule.replace(' ', '_')}"
                scheduled(app, name, app.cron(rule, tz=zone, name=name))
        workers.append(await scheduler(app))
        await workers[-1].declare()

    now, count = start, 0
    while now < end:
        now = await clock.advance(MINUTE)
        answers = await asyncio.gather(*(worker.fire_due() for worker in workers))
        count += sum(answer[0] for answer in answers)

    expected = 0
    for zone in ZONES:
        for rule, (minutes, hours, is_fixed) in RULES.items():
            times = firings(minutes, hours, zone, start, end, is_fixed=is_fixed)
            assert await fired(db, f"{zone}:{rule.replace(' ', '_')}") == times, (zone, rule)
            expected += len(times)
    assert count == expected
    assert count == await db.fetchval("select count(*) from ff.execution")
    print(f"{change}: {count} firings in {span}, two workers")
