"""The public state is a stored generated column; here it is compared with the derivation table of
the state model (first match wins), over every legal vector and over every other one too."""

from __future__ import annotations

from support.sabotage import checks_against, drop_checks, unwitnessed

ENDS = {
    "success": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
    "skipped": "skipped",
    # a corrupt row, surfaced so that someone looks
    "none": "failed",
}
WAITS = {
    "eligible_now": "waiting",
    "not_eligible_until_time": "delayed",
    "blocked_by_dependencies": "waiting_children",
    "blocked_by_budget": "rate_limited",
    "blocked_by_quota": "rate_limited",
    "blocked_by_route": "waiting",
    "blocked_by_lane_state": "waiting",
    "blocked_by_operator": "waiting",
    "not_applicable": "waiting",
}
INSERT = """
insert into ff.execution (
  partition_key, execution_id, rank, route_id, namespace, created_at, order_at, transitioned_at,
  mutated_at, version, phase, ownership, eligibility, blocking_reason, outcome, attempt_state,
  cause)
select 0, gen_random_uuid(), 0, 1, 'test', ff.now(), ff.now(), ff.now(), ff.now(), 1,
       v.phase, v.ownership, v.eligibility, 'none', v.outcome, v.attempt_state, 'submit'
from ({vectors}) v
"""
LEGAL = """
select distinct t.to_phase as phase, t.to_ownership as ownership, t.to_eligibility as eligibility,
       t.to_attempt_state as attempt_state, o as outcome
from ff.transition t, unnest(enum_range(null::ff.outcome)) o
where (t.to_phase = 'terminal') = (o <> 'none')
"""
ALL = """
select phase, ownership, eligibility, attempt_state, outcome
from unnest(enum_range(null::ff.phase)) phase, unnest(enum_range(null::ff.ownership)) ownership,
     unnest(enum_range(null::ff.eligibility)) eligibility,
     unnest(enum_range(null::ff.outcome)) outcome,
     unnest(array['none', 'running_attempt']::ff.attempt_state[]) attempt_state
"""


def derived(row):
    match row["phase"]:
        case "terminal":
            return ENDS[row["outcome"]]
        case "suspended" | "active":
            return row["phase"]
        case "runnable":
            return WAITS[row["eligibility"]]
        case "submitted":
            return "waiting"


async def compare(db, vectors):
    db.leave_broken("vectors alone make no execution")
    async with unwitnessed(db.conn):
        await drop_checks(db.conn)
        await db.execute(INSERT.format(vectors=vectors))
    rows = await db.fetch("select * from ff.execution")
    assert [row["public_state"] for row in rows] == [derived(row) for row in rows]
    return rows


async def test_public_state_is_the_derived_one_for_every_legal_vector(db):
    rows = await compare(db, LEGAL)
    assert {row["public_state"] for row in rows} == {*ENDS.values(), *WAITS.values()} | {
        "active",
        "suspended",
    }


async def test_public_state_is_the_derived_one_for_every_other_vector(db):
    assert len(await compare(db, ALL)) == 5 * 4 * 9 * 6 * 2


async def test_a_state_that_is_no_legal_vector_is_refused_by_a_named_check(db, make):
    """The CHECKs stand between a wrong function and the table, also in production."""
    await make.execution("leased")
    async with unwitnessed(db.conn):
        for change, constraint in {
            "phase = 'submitted'": "submitted_is_never_stored",
            "outcome = 'success'": "terminal_iff_outcome",
            "terminal_at = ff.now()": "terminal_iff_ended",
            "ownership = 'unowned'": "owned_iff_active",
            "eligibility = 'eligible_now'": "eligible_iff_runnable",
            "worker_id = null": "lease_iff_owned",
            "delayed_until = ff.now()": "delayed_iff_until",
            "attempt_state = 'attempt_interrupted'": "running_iff_leased",
            "attempt_id = null": "attempt_iff_counted",
            "attempt_index = 1": "attempt_iff_counted",
            "blocking_reason = 'waiting_for_worker'": "blocked_only_while_waiting",
            "reclaim_at = ff.now()": "reclaim_wait_only_when_reclaimable",
            "rank = 9001": "limits",
        }.items():
            violated = await checks_against(db.conn, f"update ff.execution set {change}")
            assert constraint in violated, change
