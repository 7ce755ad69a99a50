"""The engine's own invariants as one SQL function, so that a test asks them in one round trip.

The queries are those that `flowfabric doctor` runs (src/flowfabric/sql/doctor/invariants). Those
that hold only after a while are left out: a test that sets the clock need not run reconcilers.
"""

from __future__ import annotations

from flowfabric.doctor import Check, invariants

# Planned one by one they take a third of the time of one large query; those about flows are planned
# only where there is something of a flow. A stable function has one snapshot for all of them.
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

_FLOW_TABLES = ("flow", "edge", "edge_group", "cancel_backlog", "cancel_backlog_member")
_HAS_FLOWS = " or ".join(
    ["exists (select from ff.execution e where e.flow_id is not null)"]
    + [f"exists (select from ff.{table})" for table in _FLOW_TABLES]
)


def invariants_function() -> str:
    """The text that makes ff_test.broken_invariants(); the schema ff_test has to be there."""
    checks = [check for check in invariants() if not check.is_eventual]
    about_flows = [check for check in checks if check.name.startswith("F")]
    others = [check for check in checks if check not in about_flows]
    queries = [*_queries(others), f"if {_HAS_FLOWS} then", *_queries(about_flows), "end if;"]
    return _FUNCTION.format(queries="\n".join(queries))


def _queries(checks: list[Check]) -> list[str]:
    return [f"return query\n{check.text};" for check in checks]
