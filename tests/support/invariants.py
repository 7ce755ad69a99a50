"""The engine's own invariants as one SQL function, so that a test asks them in one round trip.

The queries are those that `flowfabric doctor` runs (src/flowfabric/sql/doctor/invariants). Those
that hold only after a while are left out: a test that sets the clock need not run reconcilers.
"""

from __future__ import annotations

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


def invariants_function() -> str:
    """The text that makes ff_test.broken_invariants(); the schema ff_test has to be there."""
    checks = [check for check in invariants() if not check.is_eventual]
    return _FUNCTION.format(queries="\n".join(f"return query\n{check.text};" for check in checks))
