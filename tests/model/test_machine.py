"""The engine on a real Postgres beside its model: after every call the two must agree.

A step is one call of one operation, with arguments that are good, stale, foreign or malformed.
After it the answer, every execution it could have touched (all columns of its state), the events it
appended, the attempts that became history, the grants and the keys are compared with the model; now
and then the call is repeated at once, and every 50 steps all invariants are asked.

A failure prints the calls that led to it, as few as Hypothesis can find.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.database import Template
from support.proofs import drawn

from .bench import Bench, Disagreement
from .choices import WEIGHTED
from .flow_ends import FlowEnds
from .gates import Gates
from .suspensions import Suspensions
from .timers import Timers

SEED = "FLOWFABRIC_MODEL_SEED"
STEPS = 100  # of one example

# Every transition that an operation can take.
TRANSITIONS = tuple(f"T{n}" for n in range(1, 32))  # T32 is a step of Limited
# Operations on one execution: each must meet each phase.
TARGETED = (
    "complete_executions",
    "fail_executions",
    "renew_leases",
    "release_leases",
    "delay_execution",
    "wait_children",
    "wait_for_runs",
    "record_steps",
    "append_frames",
    "list_steps",
    "hold_execution",
    "continue_execution",
    "report_progress",
    "cancel_execution",
    "revoke_lease",
    "change_priority",
    "replay_execution",
    "retry_execution",
    "block_execution_for_admission",
    "unblock_execution",
    "set_tags",
    "issue_claim_grant",
    "claim_execution",
    "claim_resumed_execution",
    "issue_reclaim_grant",
    "reclaim_execution",
    "issue_grant_and_claim",
    "ask_waits",
    "suspend_execution",
    "deliver_signals",
    "resume_execution",
)
UNTARGETED = (
    "submit_executions",
    "claim_executions",
    "set_lane",
    "promote_delayed",
    "expire_leases",
    "expire_executions",
    "reap_grants",
    "resolve_wakes",
    "trim_retention",
    "trim_events",
    "trim_keys",
    "submit_flow",
    "create_flow",
    "add_execution_to_flow",
    "set_edge_group_policy",
    "stage_dependency_edge",
    "apply_dependency_to_child",
    "cancel_flow_header",
    "cancel_members",
    "ack_cancel_member",
    "cancel_backlog",
    "cancel_siblings",
    "reconcile_siblings",
    "promote_blocked_to_eligible",
    "notice_signals",
    "expire_suspensions",
)
HOLDERS = {
    "complete_executions": {"completed"},
    "fail_executions": {"failed", "retry_scheduled"},
    "renew_leases": {"renewed"},
    "start_executions": {"started"},
    "release_leases": {"released"},
    "delay_execution": {"delayed"},
    "wait_children": {"waiting"},
    "wait_for_runs": {"waiting"},
    "record_steps": {"recorded", "exists"},
    "append_frames": {"appended", "gap"},
    "hold_execution": {"held"},
    "continue_execution": {"continued"},
    "report_progress": {"reported"},
    "cancel_execution": {"cancelled"},
    "ask_waits": {"open", "ready", "timed_out", "taken"},
    "suspend_execution": {"suspended", "already_satisfied"},
}
REFUSALS = ("not_found", "invalid", "not_active", "stale_lease", "lease_expired", "lease_revoked")
# What a short walk may miss, because few executions are suspended at a time.
SUSPENDED = {"T17", "T18", "T25", "T26", "T27"}
RARE = {"ready", "timed_out", "taken", "already_satisfied"}
OTHERS = (
    ("submit_executions", "parent_ended"),
    ("replay_execution", "unblocked"),
    ("cancel_execution", "wakes_pending"),
    ("resolve_wakes", "something"),
    ("cancel_siblings", "something"),
    ("submit_flow", "created"),
    ("apply_dependency_to_child", "applied"),
    ("apply_dependency_to_child", "not_runnable"),
    ("stage_dependency_edge", "cycle_detected"),
    ("stage_dependency_edge", "stale_graph_revision"),
    ("cancel_flow_header", "cancelled"),
    ("cancel_flow_header", "already_terminal"),
    ("cancel_members", "handled"),
    ("replay_execution", "flow_already_terminal"),
)
OF_SUSPENSIONS = (
    ("deliver_signals", "accepted"),
    ("deliver_signals", "duplicate"),
    ("deliver_signals", "not_signalable"),
    ("resume_execution", "resumed"),
    ("notice_signals", "something"),
    ("expire_suspensions", "something"),
)


class Machine(FlowEnds, Timers, Suspensions, Gates):
    """Every step there is."""


class Limited(Machine):
    """The steps that meet quotas and budgets most, and more of them."""

    weighted: ClassVar[list[str]] = [
        name
        for name in WEIGHTED
        if name
        in {
            "submit", "claim", "claim_most", "claim_more", "complete", "fail", "release",
            "delay_execution", "lose_again", "time_passes", "promote_delayed", "expire_leases",
            "expire_executions", "cancel_execution", "replay_execution", "retry_execution",
            "unblock_execution", "grant_and_use", "set_lane",
        }
    ] + 3 * [
        name
        for name in WEIGHTED
        if name in vars(Gates)
    ] + 12 * ["submit_limited"] + 6 * ["claim_and_spend"]  # fmt: skip


@pytest.fixture
def bench(template: Template) -> Iterator[Bench]:
    bench = Bench(template)
    yield bench
    bench.close()


def _walk(
    bench: Bench,
    number: int,
    steps: int,
    *,
    shrinks: bool = True,
    machine: type[Machine] = Machine,
) -> None:
    machine = seed(number)(type("Machine", (machine,), {"bench": bench, "walk": number}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=steps // STEPS,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        ),
    )


def _check_coverage(bench: Bench, steps: int) -> None:
    """The walk went everywhere; a test that quietly stops testing fails here."""
    assert bench.steps >= steps
    # Each is expected tens of times; how often is left to chance.
    few = max(steps // 20_000, 1)
    missed = {number: bench.taken[number] for number in TRANSITIONS if bench.taken[number] < few}
    if steps <= 10_000:
        # Few executions are suspended at a time: a short walk misses some ways in which they end.
        missed = {number: n for number, n in missed.items() if number not in SUSPENDED}
    assert not missed, f"transitions taken less than {few} times"
    missed_pairs = {
        (function, phase)
        for function in TARGETED
        for phase in ("runnable", "active", "terminal")
        if not bench.met[function, phase]
    }
    assert len(missed_pairs) <= 3, f"operations that never met a phase: {missed_pairs}"
    # Few executions are suspended at a time, so a short walk misses some operations on them.
    unmet = {function for function in TARGETED if not bench.met[function, "suspended"]}
    most = 3 if steps > 10_000 else len(TARGETED) // 2
    assert len(unmet) <= most, f"operations that never met a suspended execution: {unmet}"
    assert not {f: bench.calls[f] for f in UNTARGETED if bench.calls[f] < few}
    for function, own in HOLDERS.items():
        for word in own - (RARE if steps <= 10_000 else set()):
            assert bench.words[function, word] >= few, f"{function} hardly ever answered {word}"
    for function, word in OTHERS + (OF_SUSPENSIONS if steps > 10_000 else ()):
        assert bench.words[function, word] >= few, f"{function} hardly ever answered {word}"
    for word in REFUSALS:
        given = sum(bench.words[function, word] for function in HOLDERS)
        assert given >= few, f"{word} was hardly ever the answer"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow(short=0))])
def test_the_engine_does_what_the_model_says(bench, number):
    """Always the same steps."""
    _walk(bench, number, 250)
    assert bench.steps >= 170


@pytest.mark.slow(short=0)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(2))
def test_the_engine_does_what_the_model_says_everywhere(bench, number):
    """20 000 steps in two parts, always the same ones."""
    _walk(bench, number, 10_500)
    _check_coverage(bench, 10_000)


@pytest.mark.slow(short=1)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_the_engine_does_what_the_model_says_for_long(bench, part, sized):
    """500 000 steps in ten parts, new ones every time; the variable repeats a part."""
    number = int(os.environ.get(SEED) or drawn("model").getrandbits(32))
    print(f"{SEED}={number}")
    steps = sized(50_000, short=3_000)
    _walk(bench, number, steps + steps // 20)
    # A short walk does not come everywhere.
    if steps >= 10_000:
        _check_coverage(bench, steps)


# What quotas and budgets answer.
OF_LIMITS = (
    ("submit_executions", "limit_reached"),
    ("report_usage", "ok"),
    ("report_usage", "soft_breach"),
    ("report_usage", "hard_breach"),
    ("report_usage", "suspended"),
    ("report_usage", "already_applied"),
    ("record_spend", "ok"),
    ("record_spend", "hard_breach"),
    ("release_budget", "something"),
    ("check_admission", "admitted"),
    ("check_admission", "already_admitted"),
    ("check_admission", "rate_exceeded"),
    ("check_admission", "concurrency_exceeded"),
    ("set_quota", "changed"),
    ("set_quota", "unchanged"),
    ("lift_quota", "lifted"),
)


@pytest.mark.timeout(600)
def test_limits_do_what_the_model_says(bench):
    """Always the same steps."""
    _walk(bench, 0, 250, machine=Limited)
    assert bench.taken["T6"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_limits_do_what_the_model_says_for_long(bench, sized):
    """100 000 steps, new ones every time; the variable repeats them."""
    number = int(os.environ.get(SEED) or drawn("limits").getrandbits(32))
    print(f"{SEED}={number}")
    steps = sized(100_000, short=1_000)
    _walk(bench, number, steps + steps // 20, machine=Limited)
    # The first examples of hypothesis are short.
    assert bench.steps >= steps // 2
    if steps > 10_000:
        assert bench.steps >= steps
        missed = [pair for pair in OF_LIMITS if not bench.words[pair]]
        assert not missed, f"answers that never came: {missed}"
        assert bench.taken["T32"], "no budget warned"
        assert bench.reserved, "no execution kept a slot or a start"


# A few ways in which the engine could be wrong, each a text in one of its functions and another in
# its place.
MUTANTS = {
    "no check of the epoch": (
        "_enforce_leases",
        "when s.epoch <> s.row_epoch or s.attempt_id <> s.row_attempt_id",
        "when s.attempt_id <> s.row_attempt_id",
    ),
    "a lease lives at its last moment": (
        "complete_executions",
        "x.lease_expires_at > greatest(v_now, x.transitioned_at)",
        "x.lease_expires_at >= greatest(v_now, x.transitioned_at)",
    ),
    "one retry too many": ("_retry_delay", "p_retry_count >=", "p_retry_count >"),
    "one reclaim too many": (
        "_prepare_reclaim",
        "e.reclaim_count - e.company_count >= e.max_reclaims",
        "e.reclaim_count - e.company_count > e.max_reclaims",
    ),
    "a late result counts": (
        "complete_executions",
        "and coalesce(least(x.deadline_at, x.attempt_deadline_at) > v_now, true)",
        "",
    ),
    "a crash is blamed on what had not started": (
        "_expire_leases",
        "when x.lease_start = 'waiting' and x.crash_count > 0 then x.crash_count",
        "when false then x.crash_count",
    ),
    "a revoke keeps the epoch": ("revoke_lease", "epoch = e.epoch + 1,", ""),
    "a replay goes on counting retries": ("_write_replays", "retry_count = 0,", ""),
    "an attempt forgets the time it had left": (
        "_interrupt_executions",
        "e.attempt_deadline_at - greatest(p_now, e.transitioned_at)",
        "e.attempt_timeout",
    ),
    "a grant can be used twice": (
        "_consume_grant",
        "delete from ff.grant g\n  where g.partition_key = p_partition_key "
        "and g.execution_id = p_execution_id;",
        "",
    ),
    "a promoted retry becomes a resumption": (
        "promote_delayed",
        "blocking_reason = 'waiting_for_worker',",
        "blocking_reason = 'waiting_for_worker', attempt_state = 'pending_first_attempt',",
    ),
    "the last writer of a step wins": (
        "record_steps",
        "on conflict do nothing",
        "on conflict (partition_key, execution_id, name, occurrence) "
        "do update set value = excluded.value",
    ),
    "one run too few is enough": (
        "_wake_waiters",
        "count(*)::integer as number",
        "count(*)::integer + 1 as number",
    ),
    "a child outlives its parent": (
        "_cancel_bound_children",
        "case when e.ends_with_parent and e.phase <> 'terminal' then true else false end",
        "false",
    ),
    "a step stays though it is to be done again": (
        "_delete_steps",
        "s.position >= v_position",
        "s.position > v_position",
    ),
    "a group needs one success less": (
        "_evaluate_group",
        "p_succeeded >= v_needed",
        "p_succeeded >= greatest(v_needed - 1, 1)",
    ),
    "a sibling is cancelled though another group waits for it": (
        "_cancel_siblings",
        "not x.has_ended and not x.is_needed",
        "not x.has_ended",
    ),
    "a replay leaves closed what its end had closed": (
        "_reopen_edges",
        "update ff.edge g set resolution = 'unsatisfied', outcome = null, resolved_at = null\n"
        "      from item i\n      where ",
        "update ff.edge g set resolution = 'unsatisfied', outcome = null, resolved_at = null\n"
        "      from item i\n      where false and ",
    ),
    "members of a cancelled flow go on waiting": (
        "cancel_flow_header",
        "perform ff._pause_members(p_partition_key, p_flow_id, v_flow.cancel_reason, v_now);",
        "null;",
    ),
    "an escalated suspension keeps its timeout": (
        "_escalate_suspensions",
        "timeout_at = null,",
        "timeout_at = p.timeout_at,",
    ),
    "the end of a run leaves its waiter suspended": (
        "_wake_waiters",
        "if v_asleep is not null then",
        "if false then",
    ),
    "an end leaves the suspension open": (
        "_end_executions",
        "if v_asleep is not null then",
        "if false then",
    ),
    "a gate admits one too many": (
        "_admit_to_gates",
        "v_rooms[v_nth] <= (v_reserved",
        "v_rooms[v_nth] < (v_reserved",
    ),
    "a refused report is forgotten": (
        "_charge_budgets",
        "set refused = least(d.refused::numeric + v_breach.amount, 9223372036854775807)::bigint",
        "set refused = d.refused",
    ),
    "another tenant may cancel": (
        "_lock_execution",
        "case when p_namespace is null then true else e.namespace = p_namespace end",
        "true",
    ),
}


@pytest.mark.slow(short=2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_engine_is_noticed(bench, mutant):
    function, right, wrong = MUTANTS[mutant]

    async def mutate() -> None:
        text: str = await bench.connection.fetchval(
            "select pg_get_functiondef(oid) from pg_proc "
            "where proname = $1 and pronamespace = 'ff'::regnamespace",
            function,
        )
        assert right in text, f"{function} has changed: say anew how to break it"
        await bench.connection.execute(text.replace(right, wrong))

    bench.run(mutate())
    with pytest.raises((Disagreement, asyncpg.PostgresError)):
        _walk(bench, 0, 20_000, shrinks=False)
