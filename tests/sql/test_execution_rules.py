"""The three CHECKs of ff.execution are equal to the rules by name."""

from __future__ import annotations

import pytest

from support.rules import rules
from support.sabotage import checks_against, unwitnessed

ENUMS = {
    "phase": "ff.phase",
    "ownership": "ff.ownership",
    "eligibility": "ff.eligibility",
    "outcome": "ff.outcome",
    "attempt_state": "ff.attempt_state",
    "blocking_reason": "ff.blocking_reason",
}
LEASE = ("lease_id", "lease_expires_at", "worker_id", "worker_instance_id")
# What matters of every other column that a rule of the state reads.
VALUES = {
    "terminal_at": ["null::timestamptz", "now()"],
    "delayed_until": ["null::timestamptz", "now()"],
    "reclaim_at": ["null::timestamptz", "now()"],
    "trim_at": ["null::timestamptz", "now()"],
    "cancelled_by": ["null::text", "'somebody'"],
    "wakes_pending": ["false", "true"],
    "wait_left": ["null::integer", "0", "1"],
    "line_id": ["null::bigint", "7"],
    "held": ["array[null, null, null, null]::text[]", "'{a,b,c,d}'", "'{a,b,NULL,NULL}'"],
}
# The columns that decide how a row stands, against all others at rest.
STATE = ("phase", "ownership", "eligibility", "outcome", "attempt_state")


def source(varied: set[str]) -> str:
    """A query for every combination of the varied columns, the others at their first value."""
    parts = []
    for name, kind in ENUMS.items():
        first = "'none'" if name in ("outcome", "blocking_reason", "attempt_state") else None
        values = f"unnest(enum_range(null::{kind}))"
        parts.append(
            f"(select {values} as {name}) as {name}_"
            if name in varied or first is None
            else f"(select {first}::{kind} as {name}) as {name}_"
        )
    for name, texts in VALUES.items():
        chosen = texts if name in varied else texts[:1]
        rows = ", ".join(f"({text})" for text in chosen)
        parts.append(f"(values {rows}) as {name}_({name})")
    return " cross join ".join(parts)


# The rules of the other two CHECKs read none of these columns.
REST = """
  0::smallint as rank, 0::bigint as epoch, 1::bigint as version, 0 as max_reclaims,
  null::bytea as payload, null::bytea as result, null::smallint as progress_percent,
  null::uuid as attempt_id, 0 as total_attempt_count, 0 as attempt_index,
  0 as company_count, 0 as reclaim_count, 0 as lone_crash_count, 0 as crash_count,
  false as ends_with_parent, null::uuid as parent_id"""


async def three_checks(db) -> str:
    rows = await db.fetch(
        "select pg_get_expr(conbin, conrelid) as rule from pg_constraint"
        " where conname in ('execution_state', 'execution_counts', 'execution_limits')"
    )
    assert len(rows) == 3
    return " and ".join(f"({row['rule']}) is not false" for row in rows)


async def disagreements(db, vectors: str) -> tuple[int, int, list[dict[str, object]]]:
    """How many vectors there are, how many are legal, and those on which the two disagree."""
    named = " and ".join(f"({rule}) is not false" for rule in rules().values())
    held = ", ".join(f"held[{n}] as {name}" for n, name in enumerate(LEASE, start=1))
    query = f"""
        select count(*) as vectors, count(*) filter (where by_name) as legal,
               (array_agg(to_jsonb(v)) filter (where by_name <> by_checks))[1:3] as apart
        from (select x.*, ({named}) as by_name, ({await three_checks(db)}) as by_checks
              from (select y.*, {held}, {REST} from ({vectors}) y) x) v"""
    row = await db.fetchrow(query)
    return row["vectors"], row["legal"], row["apart"] or []


@pytest.mark.parametrize(
    "others",
    [
        {"terminal_at", "delayed_until", "held"},
        {"reclaim_at", "held", "trim_at"},
        {"blocking_reason", "terminal_at", "held"},
        {"line_id", "terminal_at", "held"},
        {"cancelled_by", "trim_at", "wakes_pending", "wait_left", "terminal_at"},
    ],
    ids=lambda others: "-".join(sorted(others)),
)
async def test_the_checks_and_the_rules_by_name_refuse_the_same_states(db, others):
    vectors, legal, apart = await disagreements(db, f"select * from {source({*STATE, *others})}")
    assert vectors >= 5 * 4 * 9 * 6 * 7
    assert legal > 0
    assert apart == []


@pytest.mark.parametrize("rows", [20_000, pytest.param(60_000, marks=pytest.mark.slow(short=0))])
async def test_they_agree_on_random_rows_of_all_columns_together(db, rows):
    chosen = [
        f"(enum_range(null::{kind}))"
        f"[1 + floor(random() * cardinality(enum_range(null::{kind})))::integer] as {name}"
        for name, kind in ENUMS.items()
    ]
    for name, texts in VALUES.items():
        whens = " ".join(f"when {n} then {text}" for n, text in enumerate(texts))
        chosen.append(f"case floor(random() * {len(texts)})::integer {whens} end as {name}")
    await db.execute("select setseed(0.7)")

    vectors, _, apart = await disagreements(
        db, f"select {', '.join(chosen)} from generate_series(1, {rows})"
    )
    assert (vectors, apart) == (rows, [])


@pytest.mark.parametrize(
    "change",
    [
        "attempt_index = 1",
        "attempt_id = gen_random_uuid()",
        "total_attempt_count = 1",
        "company_count = 1",
        "company_count = -1",
        "lone_crash_count = 1",
        "ends_with_parent = true",
        "rank = 9001",
        "epoch = -1",
        "version = 0",
        "max_reclaims = -1",
        "payload = convert_to(repeat('x', 257), 'UTF8')",
        "result = convert_to(repeat('x', 1048577), 'UTF8')",
        "progress_percent = 101",
    ],
)
async def test_counts_and_limits_are_refused_by_a_check_and_by_a_rule(db, make, change):
    await make.execution("waiting")
    names = {"execution_counts", "execution_limits"}
    async with unwitnessed(db.conn):
        violated = set(await checks_against(db.conn, f"update ff.execution set {change}"))

    assert len(violated & names) == 1
    assert len(violated - names) == 1
