"""Test tools: a pytest plugin with a real Postgres, a movable clock and a worker that can crash.

async def test_onboard(ff):
    run = await ff.submit(onboard, 7)
    await ff.run_until(run, "delayed")
    await ff.skip(days=1)
    assert await ff.run(run) == "in"
"""

from __future__ import annotations

from flowfabric.testing.database import Database, Postgres
from flowfabric.testing.harness import Harness
from flowfabric.testing.submissions import Submitted

__all__ = ["Database", "Harness", "Postgres", "Submitted"]
