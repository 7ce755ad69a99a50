"""The invariants as one SQL function, so that a test checks them in one round trip.

The function has the queries of `flowfabric doctor` (src/flowfabric/sql/doctor/invariants), without
the eventual invariants: a test that moves the clock need not run the reconcilers.
"""

from __future__ import annotations

from itertools import groupby

from flowfabric.doctor import invariants

# Separate queries take a third of the time of one large query. In a stable function, they all use
# the same snapshot.
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

# Some invariants are checked only if these rows exist, which saves the time to plan them.
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
    """Return the statement that creates ff_test.broken_invariants(). Schema ff_test must exist."""
    checks = [check for check in invariants() if not check.is_eventual]
    queries = []
    for letter, several in groupby(checks, key=lambda check: check.name[0]):
        texts = [f"return query\n{check.text};" for check in several]
        if letter in _ABOUT:
            there = " or ".join(f"exists (select from ff.{rows})" for rows in _ABOUT[letter])
            texts = [f"if {there} then", *texts, "end if;"]
        queries += texts
    return _FUNCTION.format(queries="\n".join(queries))
