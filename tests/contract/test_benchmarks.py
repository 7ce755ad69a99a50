"""A benchmark that calls functions of the engine by SQL still fits these functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.database import Database

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.own_database
async def test_the_scale_benchmark_fills_and_claims_what_it_says(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from scale import Situation, sample

    tiny = Situation(
        "tiny", routes=2, waiting=500, finished=500, foreign=10, foreign_routes=1, other_versions=1
    )
    connection = await tiny.prepare(db.url)
    try:
        assert await sample(tiny, connection) > 0
        found = await connection.fetch(
            "select r.code_version, e.public_state::text, count(*)::integer from ff.execution e "
            "join ff.route r using (route_id) group by 1, 2"
        )
    finally:
        await connection.close()
    # The foreign executions have no version when the other version begins, so it gets them, too.
    assert {tuple(row) for row in found} == {
        (None, "completed", 500),
        ("other-0", "waiting", 1010),
        (None, "waiting", 500),
    }
