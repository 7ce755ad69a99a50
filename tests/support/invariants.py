"""The engine's own invariants as one SQL function, so that a test asks them in one round trip.

The queries are those that `flowfabric doctor` runs (src/flowfabric/sql/doctor/invariants). Those
that hold only after a while are left out: a test that sets the clock need not run reconcilers.
"""

from __future__ import annotations

from itertools import groupby

from flowfabric.doctor import invariants

# Planned one by one they take a third of the time of one large query. A stable function has one
# snapshot for all of them.
_FUNCTION = """
create function ff_test.broken_invariants()
returns table (name text, partition_key smallint, execution_id uuid, problem text)
language plpgsql
stable
set jit = off
as $invariants$
#variable_conflict use_column
begin
{queries}
end;
$invariants$
"""

# What there has to be for some of them to be worth planning.
_ABOUT = {
    "C": (
        "run_wait",
        "execution x where x.parent_id is not null or x.wait_left is not null or x.wakes_pending",
    ),
    "D": ("idempotency_key",),
    "F": (
        "execution x where x.flow_id is not null",
        *("flow", "edge", "edge_group", "kept_result"),
        *("cancel_backlog", "cancel_backlog_member"),
    ),
    "J": ("step", "execution x where x.route_id >= 4611686018427387904"),
    "P": ("schedule", "schedule_app"),
    "W": ("worker", "worker_event"),
}


def invariants_function() -> str:
    """The text that makes ff_test.broken_invariants(); the schema ff_test has to be there."""
    checks = [check for check in invariants() if not check.is_eventual]
    queries = []
    for letter, several in groupby(checks, key=lambda check: check.name[0]):
        texts = [f"return query\n{check.text};" for check in several]
        if letter in _ABOUT:
            there = " or ".join(f"exists (select from ff.{rows})" for rows in _ABOUT[letter])
            texts = [f"if {there} then", *texts, "end if;"]
        queries += texts
    return _FUNCTION.format(queries="\n".join(queries))
