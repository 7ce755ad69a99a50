"""Every invariant finds the corruption it is named for, in the whole database and narrowed to the
execution; the states that the engine builds are clean, which the teardown of every database test
shows again. Those that hold after a while are in test_soon.py."""

from __future__ import annotations

import re

import pytest

from flowfabric.db.inspection import narrowed, text_of
from flowfabric.doctor import find_check, invariants
from flowfabric.doctor.checks import Reads
from support.cases import for_each
from support.database import home
from support.factories import STATES
from support.sabotage import drop_checks, unwitnessed

# A partition that no database of the tests has.
NOWHERE = 77

MOVE_TO_HISTORY = (
    "insert into ff.attempt (partition_key, attempt_index, execution_id, attempt_id, attempt_type,"
    " epoch, started_at, ended_at, ended_as, last_lease_id) "
    "select partition_key, {index}, execution_id, {attempt_id}, 'initial', {epoch}, created_at, "
    "{ended_at}, 'ended_failure', {lease_id} from ff.execution"
)

PLANT_GRANT = (
    'insert into ff."grant" (partition_key, execution_id, kind, key_hash, worker_id, '
    "worker_instance_id, issued_at, expires_at) "
    "select partition_key, {id}, 'claim', sha256('k'), 'w', 'w-1', ff.now(), "
    "ff.now() + interval '{seconds} s' from ff.execution"
)

PLANT_WORKER = (
    "insert into ff.worker (namespace, worker_instance_id, worker_id, capabilities, liveness_ttl, "
    "registered_at, heartbeat_at) values ('', 'w-1', 'w', '{{}}', '{ttl}', ff.now(), {heartbeat})"
)

# A good schedule of the execution's route; what is wrong with it comes behind.
PLANT_SCHEDULE = (
    "insert into ff.schedule_app (namespace, app, version) values ('test', 'shop', '{1}'); "
    "insert into ff.schedule (namespace, app, name, schedule_id, route_id, cron, time_zone, "
    "misfire, next_at, declared_at) select 'test', 'shop', 'tick', gen_random_uuid(), route_id, "
    "'* * * * *', 'UTC', 'once', ff.now(), ff.now() from ff.execution; "
)

# A hook of the execution's task that was declared a minute before its end.
PLANT_HOOK = (
    "insert into ff.hook (namespace, task, name, kind, version, route_id, declared_at) "
    "select 'test', r.task, 'tests.hook', '{kind}', '{{0}}', r.route_id, "
    "e.terminal_at - interval '1 min' from ff.execution e join ff.route r using (route_id)"
)

PLANT_GATE = (
    "insert into ff.gate (partition_key, gate_id, namespace, quota, key, running, slices) "
    f"values ({home()}, 7, 'test', 'api', '', {{running}}, {{slices}})"
)

PLANT_BUDGET = (
    "insert into ff.budget (budget_id, namespace, budget, key, on_exceed, period_started_at, "
    "created_at, is_shut) values (4611686018427387911, 'test', 'monthly', '', 'fail', ff.now(), "
    "ff.now(), {is_shut}); "
    "insert into ff.budget_dimension (budget_id, dimension, declared_hard, usage) "
    "values (4611686018427387911, 'tokens', 100, {usage})"
)

PLANT_SPEND = (
    "; insert into ff.budget_ledger "
    "values (4611686018427387911, gen_random_uuid(), 'tokens', 0, 11, ff.now())"
)

PLANT_MANY_HOOKS = (
    "insert into ff.hook (namespace, task, name, kind, version, route_id, declared_at) "
    "select 'test', 'tests.task', 'tests.hook_' || n, 'end', '{0}', 7, ff.now() "
    "from generate_series(1, 21) n"
)


PLANT_SUSPENSION = (
    "insert into ff.suspension (partition_key, suspension_id, execution_id, attempt_index, "
    "lease_id, wait_names, wait_occurrences, reason_code, suspended_at, on_timeout) "
    "select partition_key, gen_random_uuid(), execution_id, 0, lease_id, '{}', '{}', "
    "'waiting_for_signal', ff.now(), 'auto_resume' from ff.execution"
)

PLANT_WAITPOINT = (
    "insert into ff.waitpoint (partition_key, execution_id, waitpoint_id, key, attempt_index, kid, "
    f"created_at) values ({home()}, gen_random_uuid(), gen_random_uuid(), 'payment', 0, 'k', "
    "ff.now())"
)

PLANT_STREAM = (
    "insert into ff.stream (partition_key, execution_id, lease_id, last_no, last_ms, last_seq, "
    "durable_count, opened_at) select partition_key, execution_id, lease_id, 1, 20, 1, 2, ff.now() "
    "from ff.execution; update ff.execution set has_stream = true; "
)
PLANT_CHUNK = (
    "insert into ff.stream_chunk (partition_key, execution_id, ms, seq, frame_count, mode, "
    "mode_no, attempt_index, epoch, generation, position, first_no, byte_count, appended_at, "
    "payloads, kinds, encodings) select partition_key, execution_id, {ms}, {seq}, 2, 'durable', "
    "2, 0, {epoch}, 0, 0, {no}, 2, ff.now(), '{{a,b}}', '{{text,text}}', '{{text,text}}' "
    "from ff.execution; "
)
PLANT_FRAMES = PLANT_STREAM + PLANT_CHUNK.format(ms=10, seq=0, epoch="epoch", no=0)

PLANT_SIGNAL = (
    "insert into ff.signal (partition_key, execution_id, signal_id, name, source_type, "
    "accepted_at, noticed_at, effect, xid{columns}) select partition_key, execution_id, "
    "gen_random_uuid(), 'approve', 'caller', ff.now(), ff.now(), 'buffered', '3'{values} "
    "from ff.execution"
)

WAITPOINT = "00000000-0000-4000-8000-000000000007"
PLANT_OPEN_WAITPOINT = (
    "insert into ff.waitpoint (partition_key, execution_id, waitpoint_id, key, attempt_index, kid, "
    f"created_at, approval_id) select partition_key, execution_id, '{WAITPOINT}', 'pay', 0, 'k1', "
    "ff.now(), {approval} from ff.execution"
)


def history(
    *,
    index="0",
    attempt_id="gen_random_uuid()",
    epoch="0",
    lease_id="gen_random_uuid()",
    ended_at="created_at",
):
    return MOVE_TO_HISTORY.format(
        index=index, attempt_id=attempt_id, epoch=epoch, lease_id=lease_id, ended_at=ended_at
    )


# The name of the invariant, the state to start from, and what to do to it.
CORRUPTIONS = [
    ("U01", "suspended", "update ff.suspension set closed_at = ff.now(), close_reason = 'lost'"),
    ("U01", "suspended", "update ff.execution set suspension_id = gen_random_uuid()"),
    ("U01", "leased", PLANT_SUSPENSION),
    ("U02", "suspended", "update ff.step set opened_at = null"),
    ("U02", "suspended", "update ff.step set name = 'another'"),
    ("U02", "suspended", "update ff.suspension set attempt_index = 7"),
    ("U03", "cancelled", PLANT_OPEN_WAITPOINT.format(approval="null")),
    ("U03", "leased", PLANT_OPEN_WAITPOINT.format(approval=f"'{WAITPOINT}'")),
    ("U04", "suspended", PLANT_OPEN_WAITPOINT.format(approval="null") + "; update ff.step set "
     "taken_as = 'timeout', taken_at = ff.now(), "
     f"condition = '{{\"waitpoint\": \"{WAITPOINT}\"}}'"),
    ("U06", "leased", PLANT_SUSPENSION + "; update ff.suspension set closed_at = ff.now(), "
     "close_reason = 'resumed', "
     f"woken_by = '{{\"by\": \"signals\", \"signal_ids\": [\"{WAITPOINT}\"]}}'"),
    ("U08", "leased", PLANT_SIGNAL.format(columns="", values="")
     + "; update ff.signal set noticed_at = null, effect = null"),
    ("U08", "leased", PLANT_SIGNAL.format(columns="", values="")
     + "; update ff.signal set effect = null"),
    ("U10", "waiting", "update ff.hmac_key set is_active = false, expires_at = ff.now()"),
    ("U11", "waiting", "update ff.hmac_key set inner_block = outer_block"),
    ("U05", "suspended", PLANT_SIGNAL.format(columns="", values="")),
    ("U05", "suspended", PLANT_OPEN_WAITPOINT.format(approval="null") + "; " + PLANT_SIGNAL.format(
        columns="", values="") + "; update ff.signal g set name = w.key from ff.waitpoint w; "
     f"update ff.step set condition = '{{\"waitpoint\": \"{WAITPOINT}\"}}'"),
    ("U07", "leased", PLANT_SIGNAL.format(
        columns=", taken_at, wait_name, wait_occurrence", values=", ff.now(), 'approve', 0")),
    ("U07", "suspended", "update ff.step set taken_as = 'signals', taken_at = ff.now(), "
     "signal_ids = array[gen_random_uuid()]"),
    ("U07", "leased", "insert into ff.signal_inbox (partition_key, execution_id, signal_id, "
     "stored_at) select partition_key, execution_id, gen_random_uuid(), ff.now() "
     "from ff.execution"),
    ("U12", "suspended", "update ff.suspension set execution_id = gen_random_uuid()"),
    ("U12", "waiting", PLANT_WAITPOINT),
    ("V01", "leased", PLANT_FRAMES + PLANT_CHUNK.format(ms=11, seq=0, epoch="epoch", no=3)),
    ("V01", "leased", PLANT_FRAMES + PLANT_CHUNK.format(ms=11, seq=0, epoch="epoch", no=1)),
    ("V02", "leased", PLANT_FRAMES + PLANT_CHUNK.format(ms=10, seq=1, epoch="epoch", no=2)),
    ("V02", "leased", PLANT_FRAMES + PLANT_CHUNK.format(ms=11, seq=0, epoch="epoch - 1", no=0)),
    ("V02", "leased", PLANT_FRAMES + "update ff.stream set last_ms = 9"),
    ("V03", "leased", PLANT_FRAMES + "update ff.stream set lease_id = gen_random_uuid()"),
    ("V03", "expired_lease", PLANT_FRAMES),
    ("V04", "leased", PLANT_FRAMES + "update ff.execution set has_stream = false"),
    ("V04", "leased", PLANT_STREAM + "delete from ff.stream"),
    ("J03", "waiting", "update ff.execution set route_id = 4611686018427387904"),
    ("S01", "waiting", "update ff.execution set outcome = 'success'"),
    ("S01", "completed", "update ff.execution set terminal_at = null"),
    ("S01", "leased", "update ff.execution set phase = 'terminal'"),
    ("S02", "waiting", "update ff.execution set ownership = 'leased'"),
    ("S02", "leased", "update ff.execution set ownership = 'unowned'"),
    ("S03", "waiting", "update ff.execution set eligibility = 'not_applicable'"),
    ("S03", "completed", "update ff.execution set eligibility = 'eligible_now'"),
    ("S03", "waiting", "update ff.execution set eligibility = 'blocked_by_lane_state'"),
    ("S04", "leased", "update ff.execution set worker_instance_id = null"),
    ("S04", "expired_lease", "update ff.execution set lease_expires_at = null"),
    ("S04", "completed", "update ff.execution set lease_id = gen_random_uuid()"),
    ("S05", "delayed", "update ff.execution set delayed_until = null"),
    ("S05", "waiting", "update ff.execution set delayed_until = ff.now()"),
    ("S05", "delayed", "update ff.execution set due_at = null"),
    ("S05", "leased", "update ff.execution set due_at = due_at + interval '1 s'"),
    ("S05", "reclaim_delayed", "update ff.execution set due_at = null"),
    ("S06", "leased", "update ff.execution set attempt_state = 'attempt_interrupted'"),
    ("S06", "expired_lease", "update ff.execution set attempt_state = 'running_attempt'"),
    ("S06", "completed", "update ff.execution set attempt_state = 'pending_first_attempt'"),
    ("S06", "waiting", "update ff.execution set attempt_state = 'pending_retry_attempt'"),
    ("S06", "waiting", "update ff.execution set attempt_state = 'pending_replay_attempt'"),
    ("S06", "waiting", "update ff.execution set attempt_state = 'attempt_terminal'"),
    ("S06", "interrupted", "update ff.execution set attempt_state = 'pending_first_attempt'"),
    (
        "S07",
        "waiting",
        "alter table ff.execution alter column public_state drop expression; "
        "update ff.execution set public_state = 'resumable'",
    ),
    ("S08", "leased", "update ff.execution set started_at = created_at - interval '1 s'"),
    ("S08", "completed", "update ff.execution set terminal_at = started_at - interval '1 s'"),
    ("S08", "waiting", "update ff.execution set mutated_at = created_at - interval '1 s'"),
    ("S08", "completed", "update ff.execution set started_at = null"),
    ("S09", "waiting", f"update ff.execution set partition_key = {NOWHERE}"),
    ("S09", "retried", "update ff.attempt set execution_id = gen_random_uuid()"),
    ("S09", "retried", "update ff.execution_body set execution_id = gen_random_uuid()"),
    ("S12", "waiting", "update ff.execution set cancelled_by = 'nobody'"),
    ("S12", "waiting", "update ff.execution set trim_at = ff.now()"),
    ("S12", "leased", "update ff.execution set attempt_index = 3"),
    ("O05", "waiting", "update ff.event set execution_id = gen_random_uuid()"),
    ("S09", "waiting", "update ff.execution set route_id = 1"),
    ("S09", "waiting", "update ff.execution set namespace = 'another'"),
    ("S09", "waiting", "delete from ff.lane"),
    ("H01", "completed", PLANT_HOOK.format(kind="success")),
    ("H01", "completed", PLANT_HOOK.format(kind="end")),
    ("H01", "failed", PLANT_HOOK.format(kind="failure")),
    ("H02", "waiting", PLANT_MANY_HOOKS),
    ("H02", "waiting", "delete from ff.meta where name = 'hook_secret'"),
    ("H02", "waiting", "update ff.meta set value = 'short' where name = 'hook_secret'"),
    ("Q01", "waiting", PLANT_GATE.format(running=1, slices="null")),
    ("Q01", "leased", PLANT_GATE.format(running=0, slices="null") + "; "
     "update ff.execution set quota_ids = '{7}'"),
    ("Q02", "waiting", PLANT_GATE.format(running=0, slices="null") + "; "
     "update ff.gate set max_running = 1"),
    ("Q02", "waiting", PLANT_GATE.format(running=0, slices="null") + "; "
     "insert into ff.quota (namespace, quota, is_keyed, concurrency, declared_at) "
     "values ('test', 'api', false, 2, ff.now()); "
     # of several partitions
     "insert into ff.gate_share (gate_id, share_no, namespace, quota, key, concurrency) "
     "values (7, 0, 'test', 'api', '', 3)"),
    ("Q03", "waiting", "update ff.execution set quota_ids = '{7}', line_id = 7, "
     "eligibility = 'blocked_by_quota', blocking_reason = 'waiting_for_quota'"),
    ("Q06", "waiting", PLANT_GATE.format(running=-1, slices="null")),
    ("Q13", "waiting", "update ff.execution set quota_ids = '{7}'"),
    ("Q13", "waiting", "update ff.execution set budget_ids = '{4611686018427387911}'"),
    ("Q06", "waiting", PLANT_GATE.format(running=0, slices="'{1,2}'")),
    ("B01", "waiting", PLANT_BUDGET.format(is_shut="false", usage=101)),
    ("B02", "waiting", PLANT_BUDGET.format(is_shut="true", usage=99)),
    ("B02", "waiting", PLANT_BUDGET.format(is_shut="false", usage=100)),
    ("B03", "waiting", PLANT_BUDGET.format(is_shut="false", usage=10) + PLANT_SPEND),
    ("K01", "completed", "update ff.execution set trim_at = terminal_at"),
    ("K01", "completed", "update ff.execution set retention = interval '1 day'"),
    ("S10", "waiting", "update ff.execution set rank = 9001"),
    ("S10", "waiting", "update ff.execution set payload = decode(repeat('00', 257), 'hex')"),
    ("S10", "waiting", "update ff.execution set blocking_reason = 'none'"),
    ("S10", "failed", "update ff.execution set result = 'x'"),
    ("S10", "leased", "update ff.execution set attempt_index = 3"),
    ("S10", "completed", "update ff.execution set due_at = ff.now()"),
    ("S10", "retried", """update ff.execution_body set tags = '{"Bad": "key"}'"""),
    ("S10", "retried", "update ff.execution_body set payload = 'short'"),
    ("S10", "waiting", "alter table ff.execution add check (rank = 0) not valid"),
    ("L01", "retried", "delete from ff.attempt"),
    ("L01", "retried", "update ff.attempt set attempt_index = 1"),
    ("L01", "leased", history(epoch="-1")),
    ("L02", "leased", "update ff.execution set lease_id = null"),
    ("L02", "interrupted", "update ff.execution set lease_id = gen_random_uuid(), "
                           "lease_expires_at = ff.now()"),
    ("L02", "resumed", "update ff.execution set last_lease_id = lease_id"),
    ("L02", "retried", "update ff.attempt a set last_lease_id = e.lease_id from ff.execution e"),
    ("L03", "retried", "update ff.attempt a set attempt_id = e.attempt_id from ff.execution e"),
    ("L05", "retried", "update ff.attempt set epoch = 2"),
    ("O02", "retried", "update ff.event set epoch = 1 where epoch is not null"),
    ("L07", "retried", "update ff.execution set retry_count = 4"),
    ("L07", "leased", "update ff.execution set retry_count = 4"),
    ("L07", "reclaimed", "update ff.execution set max_reclaims = 0"),
    ("L07", "waiting", "update ff.execution set replay_count = 11"),
    ("L07", "leased", "update ff.execution set crash_count = 3, lone_crash_count = 3"),
    ("L07", "completed", "update ff.execution set crash_count = 1"),
    ("L08", "leased", "update ff.execution set attempt_ended_at = ff.now()"),
    ("L08", "leased", "update ff.execution set attempt_ended_at = ff.now(), "
                      "attempt_ended_as = 'ended_success'"),
    ("L08", "completed", "update ff.execution set attempt_ended_at = null, "
                         "attempt_ended_as = null"),
    ("L08", "retried", "update ff.attempt set ended_at = started_at - interval '1 s'"),
    ("L08", "retried", "update ff.attempt set ended_as = 'started'"),
    ("O01", "completed", "delete from ff.event where kind = 'completed'"),
    ("O01", "completed", "update ff.event set outcome = 'failed' where kind = 'completed'"),
    ("O01", "completed", "update ff.event set kind = 'failed' where kind = 'completed'"),
    ("O01", "leased", "update ff.event set kind = 'skipped', outcome = 'skipped' "
                      "where kind = 'submitted'"),
    ("O02", "leased", "delete from ff.event where kind = 'claimed'"),
    ("O02", "resumed", "delete from ff.event where kind = 'released'"),
    ("O02", "resumed", "update ff.event set epoch = 2 where kind = 'released'"),
    ("O02", "resumed", "update ff.event set lease_id = gen_random_uuid() where kind = 'released'"),
    ("O02", "reclaimed", "update ff.event set kind = 'claimed' where kind = 'reclaimed'"),
    ("O02", "interrupted", "delete from ff.event where kind = 'released'"),
    ("O04", "waiting", "update ff.execution set version = 2"),
    ("O04", "leased", "update ff.event set version = 3 where version = 2"),
    ("O04", "leased", "update ff.event set version = 1"),
    ("O04", "leased", "delete from ff.event where version = 1"),
    ("O05", "completed", "delete from ff.execution"),
    ("O06", "replayed", "update ff.event set kind = 'unblocked' where kind = 'replayed'"),
    ("O06", "completed", "update ff.execution set replay_count = 1"),
    ("S10", "completed", "update ff.execution set progress_percent = 101"),
    ("S10", "retried", "update ff.execution_body set policy = '[]'"),
    ("S10", "retried", """update ff.execution_body set policy = '{"max_replay_count": "x"}'"""),
    ("W01", "waiting", PLANT_WORKER.format(heartbeat="ff.now() - interval '1 s'", ttl="1 min")),
    ("W01", "waiting", PLANT_WORKER.format(heartbeat="ff.now()", ttl="0 s")),
    ("R01", "waiting", PLANT_GRANT.format(id="gen_random_uuid()", seconds=10)),
    ("R01", "leased", PLANT_GRANT.format(id="execution_id", seconds=10)),
    ("R01", "completed", PLANT_GRANT.format(id="execution_id", seconds=10)),
    ("R03", "waiting", PLANT_GRANT.format(id="execution_id", seconds=61)),
    ("R03", "waiting", PLANT_GRANT.format(id="execution_id", seconds=0)),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set next_at = null"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set is_paused = true"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set orphaned_at = ff.now()"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set cron = null"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set every = '1 h'"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set cron = null, every = '1 h'"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set route_id = 1"),
    ("P01", "waiting", PLANT_SCHEDULE + "delete from ff.schedule_app"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set fired_count = 1"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set last_at = next_at, "
                       "fired_count = 1"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set fired_count = 1, "
                       "last_at = next_at, last_id = (select execution_id from ff.execution); "
                       "update ff.execution set namespace = 'another'"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set next_at = 'infinity'"),
    ("P01", "waiting", PLANT_SCHEDULE + "update ff.schedule set next_at = '9999-01-01 00:00+00'"),
    ("J01", "asleep", "update ff.step set execution_id = gen_random_uuid()"),
    ("J01", "asleep", "update ff.step set epoch = 5"),
    ("J01", "asleep", "update ff.step set attempt_index = 1"),
    ("J01", "asleep", "update ff.step set recorded_at = recorded_at - interval '1 day'"),
    ("J01", "asleep", "update ff.step set until_at = null"),
    ("J01", "asleep", "update ff.step set value = 'x'"),
    ("J01", "asleep", "insert into ff.step select partition_key, execution_id, 'twin', 0, position,"
                      " true, 'step', attempt_index, epoch, recorded_at from ff.step"),
    ("C01", "awaiting", "delete from ff.run_wait"),
    ("C01", "awaiting", "update ff.run_wait set wait_no = 7"),
    ("C01", "awaiting", "update ff.run_wait set ended_at = ff.now()"),
    ("C01", "awaiting", "update ff.execution set wait_left = 2 where wait_left is not null"),
    ("C01", "awaiting", "update ff.execution set wait_left = null"),
    ("C01", "asleep", "insert into ff.run_wait select partition_key, execution_id, execution_id, 1 "
                      "from ff.execution"),
    ("C02", "awaiting", "update ff.run_wait set target_id = gen_random_uuid()"),
    ("C02", "awaiting", "update ff.execution set is_awaited = false"),
    ("C02", "awaiting", "update ff.execution set phase = 'terminal' where is_awaited"),
    ("C03", "waiting", "update ff.execution set ends_with_parent = true, "
                       "parent_id = gen_random_uuid()"),
    ("C03", "waiting", "update ff.execution set ends_with_parent = true, "
                       "parent_id = execution_id"),
    ("C05", "waiting", "update ff.execution set parent_id = gen_random_uuid()"),
    ("C05", "completed", "update ff.execution set parent_id = gen_random_uuid()"),
    ("C05", "waiting", "update ff.execution set parent_id = execution_id"),
    ("L05", "completed", "update ff.execution set epoch = 0"),
    ("L05", "reclaimed", "update ff.execution set epoch = 1"),
    ("O02", "completed", "update ff.execution set epoch = 0"),
    ("O02", "revoked", "update ff.execution set epoch = epoch - 1"),
    ("O02", "interrupted", "update ff.execution set epoch = epoch - 1"),
    ("S11", "waiting", "update ff.execution set payload = null"),
    ("S11", "leased", "update ff.execution set payload = null"),
    ("S11", "completed", "update ff.execution set payload = null"),
    ("S11", "retried", "delete from ff.execution_body"),
    ("O07", "waiting", "update ff.event set namespace = 'another'"),
    ("O07", "completed", "update ff.event set namespace = 'another' where kind = 'completed'"),
    ("O08", "waiting", "update ff.execution set rank = 17"),
    ("O08", "completed", "update ff.execution set rank = 17"),
    ("O08", "leased", "update ff.event set detail = '{\"priority\": 3}' where version = 1"),
]  # fmt: skip


def corrupted(corruption):
    """The partition in which the execution is now."""
    return NOWHERE if f"partition_key = {NOWHERE}" in corruption else home()


def test_every_invariant_has_a_corruption():
    lasting = {check.name for check in invariants() if not check.is_eventual}
    flows = {name for name in lasting if name.startswith("F")}  # in test_flow_invariants.py
    assert {name for name, _, _ in CORRUPTIONS} | {"D01", "J02"} == lasting - flows


async def found(db):
    return {row["name"] for row in await db.broken_invariants()}


@pytest.mark.parametrize("state", sorted({state for _, state, _ in CORRUPTIONS}))
async def test_a_planted_corruption_is_found(db, make, conn, state):
    execution = await make.execution(state)
    assert await found(db) == set()
    await drop_checks(conn)
    for name, corruption in [(n, c) for n, s, c in CORRUPTIONS if s == state]:
        transaction = conn.transaction()
        await transaction.start()
        async with unwitnessed(conn):
            await conn.execute(corruption)
        rows = [row for row in await db.broken_invariants() if row["name"] == name]
        assert rows, f"{name} did not notice: {corruption}"
        assert {row["execution_id"] for row in rows} <= {execution.id, None} or "gen_" in corruption
        assert all(row["problem"] for row in rows)
        check = find_check(name)
        if check.reads is Reads.EXECUTIONS and "gen_" not in corruption:
            again = await conn.fetch(narrowed(check.text), corrupted(corruption), [execution.id])
            assert again == rows, f"{name}, narrowed, did not notice: {corruption}"
        await transaction.rollback()


@pytest.mark.parametrize(
    "corruption",
    [
        "update ff.idempotency_key set execution_id = gen_random_uuid()",
        "update ff.idempotency_key set namespace = 'another'",
    ],
)
@pytest.mark.parametrize("scope", ["window", "unfinished"])
async def test_a_live_key_that_names_no_execution_of_its_namespace_is_found(
    db, conn, engine, scope, corruption
):
    db.leave_broken("planted")
    await engine.submit(key="k", fingerprint=b"f", scope=scope)
    assert await found(db) == set()
    await conn.execute(corruption)
    assert await found(db) == {"D01"}


async def test_an_expired_key_and_the_key_of_a_trimmed_execution_are_no_corruption(
    db, clock, engine
):
    expired = await engine.submit(key="old", fingerprint=b"f")
    await clock.advance(days=1)
    kept = await engine.submit(key="new", fingerprint=b"f")
    await db.forget(expired.id)
    await db.forget(kept.id)
    assert await found(db) == set()


@pytest.mark.parametrize("state", STATES)
async def test_every_state_that_the_engine_builds_is_clean(db, make, state):
    await make.execution(state)
    assert await found(db) == set()


async def test_a_broken_database_names_the_invariant_the_execution_and_the_problem(db, make, conn):
    db.leave_broken("planted")
    execution = await make.execution("waiting")
    async with unwitnessed(conn):
        await conn.execute("update ff.execution set version = 3")
    (row,) = await db.broken_invariants()
    assert row["name"] == "O04"
    assert row["partition_key"] == home()
    assert row["execution_id"] == execution.id
    assert row["problem"] == "version 3, but the last event has version 1"


@for_each("name", [check.name for check in invariants()])
async def test_an_invariant_calls_no_function_of_the_library_but_the_clock(conn, name):
    """What it checks must not be what it trusts."""
    check = find_check(name)
    ours = await conn.fetch(
        "select p.proname from pg_proc p where p.pronamespace = 'ff'::regnamespace"
    )
    called = set(re.findall(r"\bff\.(\w+)\(", check.text)) & {row["proname"] for row in ours}
    assert called <= {"now"}
    assert not re.search(r"\b(insert|update|delete|for (no key )?(update|share))\b", check.text)
    names = [attribute.name for attribute in (await conn.prepare(check.text)).get_attributes()]
    assert names[:4] == ["name", "partition_key", "execution_id", "problem"]
    assert names[4:] == (["is_stuck"] if check.is_eventual else [])


@for_each("name", [check.name for check in invariants()])
def test_a_header_says_what_it_means_and_what_to_do(name):
    check = find_check(name)
    text = text_of(f"invariants/{name}.sql")
    assert not check.meaning.startswith("Holds:"), "a check says what it means"
    for words in (check.title, check.meaning, check.remedy):
        assert words.endswith(".")
    assert check.title[0].isupper()
    assert f"select '{name}' as name" in text
    assert set(re.findall(r"^(?:select|union all\nselect) '(\w+)'", text, re.MULTILINE)) == {name}
    assert max(map(len, text.splitlines())) <= 100


async def test_an_id_used_again_after_it_was_trimmed_begins_a_new_life(db, conn, make):
    """As an earlier release allowed: its old events stay for a while, and the new ones are counted
    from 1 again."""
    first = await make.execution("completed")
    async with unwitnessed(conn):
        await conn.execute("delete from ff.execution")
        await conn.execute(f"insert into ff.event_trim select {home()}, ff.now(), $1", first.id)
        assert await found(db) == set()
        second = await make.execution("completed")
        for table in ("execution", "event"):
            await conn.execute(
                f"update ff.{table} set execution_id = $1 where execution_id = $2",
                *(first.id, second.id),
            )
    assert await found(db) == set()


async def test_a_submission_that_is_told_twice_is_no_new_life(db, conn, make):
    db.leave_broken("planted")
    await make.execution("leased")
    async with unwitnessed(conn):
        await conn.execute(
            "insert into ff.event (partition_key, xid, execution_id, version, kind, route_id, "
            "namespace, occurred_at) select partition_key, xid, execution_id, version, kind, "
            "route_id, namespace, occurred_at from ff.event where kind = 'submitted'"
        )
    assert "O04" in await found(db)


async def test_a_payload_that_is_missing_from_the_body_is_found(db, conn, engine):
    db.leave_broken("planted")
    await engine.submit(payload=b"x" * 300)
    await engine.submit(payload=b"x", trace="{}")
    await engine.submit(payload=None, tags={"team.name": "x"})
    assert await found(db) == set()
    for damage in ("update ff.execution_body set payload = null", "delete from ff.execution_body"):
        async with unwitnessed(conn):
            await conn.execute(damage)
        rows = [row["problem"] for row in await db.broken_invariants() if row["name"] == "S11"]
        part = "payload" if "update" in damage else "body"
        assert rows == [f"waiting, and its {part} is missing"] * (2 if part == "payload" else 3)


async def test_a_changed_priority_is_the_one_of_its_last_event(db, conn, engine):
    db.leave_broken("planted")
    one = await engine.submit(priority=70)
    assert await found(db) == set()
    await engine.change_priority(one.id, 5)
    await engine.change_priority(one.id, 0)
    assert await found(db) == set()
    async with unwitnessed(conn):
        await conn.execute("update ff.execution set rank = 9000 - 70")
    assert await found(db) == {"O08"}


async def test_a_child_of_a_trimmed_parent_is_no_orphan(db, conn, clock, engine):
    parent = await engine.submit(policy={"retention_ms": 1000})
    lease = await engine.take(parent.id)
    child = await engine.submit(parent=parent.id)
    await engine.complete(lease)
    await clock.advance(seconds=2)
    assert await conn.fetchval(f"select handled from ff.trim_executions('{home()}')") == 1
    assert await found(db) == set()
    assert (await engine.row(child.id))["parent_id"] == parent.id


@pytest.mark.parametrize(
    "damage",
    [
        "delete from ff.step where position = 1",
        "update ff.step set position = 9 where position = 1",
        "update ff.step set follows = 7 where position = 2",
    ],
)
async def test_a_gap_in_the_steps_is_found(db, conn, engine, make, damage):
    db.leave_broken("planted")
    lease = (await make.execution("leased")).lease
    for position, name in enumerate("abc"):
        await engine.record(lease, name=name, position=position, follows=position - 1)
    assert await found(db) == set()
    await conn.execute(damage)
    assert await found(db) == {"J02"}
