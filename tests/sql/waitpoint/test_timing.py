"""The time of a verification says nothing about why a token was refused."""

from __future__ import annotations

import json
from math import sqrt
from statistics import fmean, variance

import pytest

from sql.waitpoint.test_waitpoints import data_of, token_of

MEASURE = """
create function pg_temp.measure(p_tokens text[], p_rounds integer)
returns table (kind integer, spent double precision)
language plpgsql
as $$
declare
  v_began timestamptz;
  v_kind  integer;
  v_now   constant timestamptz := ff.now();
begin
  for i in 1..p_rounds loop
    for v_kind in select g from generate_series(1, cardinality(p_tokens)) g order by random() loop
      v_began := clock_timestamp();
      perform ff._verify_token(p_tokens[v_kind], v_now);
      kind := v_kind;
      spent := extract(epoch from clock_timestamp() - v_began) * 1e6;
      return next;
    end loop;
  end loop;
end;
$$
"""
BOUND = 4.5


def welch(one: list[float], two: list[float]) -> float:
    return (fmean(one) - fmean(two)) / sqrt(variance(one) / len(one) + variance(two) / len(two))


@pytest.mark.slow
async def test_unknown_wrong_and_valid_tokens_take_the_same_time(engine, make, db, sized):
    execution = await make.execution("leased")
    _, valid = await engine.waitpoint(execution.lease)
    data = data_of(valid)
    wrong = token_of(data[:-1] + bytes([data[-1] ^ 1]))
    # Another key of the same length, so that the token has the same length.
    unknown = token_of(data[:2] + b"zz" + data[4:])
    tokens = [valid, wrong, unknown]
    await db.execute(MEASURE)
    words = await db.fetch(
        "select v.word from unnest($1::text[]) u(t) "
        "cross join lateral ff._verify_token(t, ff.now()) v",
        tokens,
    )
    assert [row["word"] for row in words] == ["verified", "invalid_token", "invalid_token"]
    rounds = sized(20_000, short=2_000)
    await db.fetch("select * from pg_temp.measure($1, 200)", tokens)
    times: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for row in await db.fetch("select * from pg_temp.measure($1, $2)", tokens, rounds):
        times[row["kind"]].append(row["spent"])
    # The slowest tenth is the machine, not the function.
    kept = {kind: sorted(one)[: len(one) * 9 // 10] for kind, one in times.items()}
    found = {
        f"{one}-{two}": round(welch(kept[one], kept[two]), 2)
        for one, two in ((1, 2), (1, 3), (2, 3))
    }
    assert all(abs(t) < BOUND for t in found.values()), json.dumps(found)
