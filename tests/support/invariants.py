"""The invariants as one SQL function, so that a test checks them in one round trip.

The function has the queries of `flowfabric doctor` (src/flowfabric/sql/doctor/invariants), without
the eventual invariants: a test that moves the clock need not run the reconcilers.
"""

from __future__ import annotations

from itertools import groupby

from flowfabric.doctor import Check, invariants

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
    "B": ("budget", "budget_dimension", "budget_ledger"),
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
    "Q": (
        *("gate", "gate_share", "gate_ticket", "gate_release", "line"),
        "execution x where x.line_id is not null or x.quota_ids is not null",
        "execution x where x.budget_ids is not null",
    ),
    "R": ("grant",),
    "U": (
        *("suspension", "waitpoint", "signal", "signal_inbox", "step"),
        "execution x where x.phase = 'suspended'",
    ),
    "V": ("stream", "stream_chunk", "execution x where x.has_stream"),
    "W": ("worker", "worker_event"),
}
# These are about the key of the database, which always exists.
_ALWAYS = ("U10", "U11")


def invariants_function() -> str:
    """Return the statement that creates ff_test.broken_invariants(). Schema ff_test must exist."""
    checks = [check for check in invariants() if not check.is_eventual]
    queries = []
    for letter, several in groupby(checks, key=_topic):
        texts = [f"return query\n{check.text};" for check in several]
        if letter in _ABOUT:
            there = " or ".join(f"exists (select from ff.{rows})" for rows in _ABOUT[letter])
            texts = [f"if {there} then", *texts, "end if;"]
        queries += texts
    return _FUNCTION.format(queries="\n".join(queries))


def _topic(check: Check) -> str:
    return check.name if check.name in _ALWAYS else check.name[0]
