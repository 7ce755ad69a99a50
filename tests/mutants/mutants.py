"""Mistakes that somebody could make in the SQL library, each with the test that must notice it.

A mutant is one file of the library with a few words changed. Every text that is to be changed has
to occur exactly once in its file, so that a mutant cannot rot unnoticed when the library moves on.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from flowfabric.db.library import form_of

LIBRARY = files("flowfabric") / "sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    caught_by: str

    def text(self) -> str:
        """The file with the mistake in it."""
        text = form_of(LIBRARY.joinpath(self.file).read_text(encoding="utf-8"), distributed=False)
        for old, new in self.changes:
            assert text.count(old) == 1, f"{text.count(old)} times in {self.file}: {old!r}"
            text = text.replace(old, new)
        return text


VERSIONS = "tests/sql/lane/test_code_versions.py"


def _mutant(name: str, file: str, caught_by: str, *changes: tuple[str, str]) -> Mutant:
    return Mutant(name=name, file=file, changes=changes, caught_by=caught_by)


_COMPLETE = "functions/execution/complete_executions.sql"
_JUDGE = "functions/lease/_enforce_leases.sql"
_LEASE = "functions/execution/_lease_executions.sql"
_FRESH = "functions/execution/_claim_fresh.sql"
_END = "functions/execution/_end_executions.sql"
_RESOLVE = "functions/flow/_resolve_edges.sql"
_GRAPHS = "tests/flows/test_random_graphs.py"
_RESOLUTION = "tests/sql/flow/test_resolution.py"
_CANCEL = "tests/sql/flow/test_cancel_flow.py"
_REPLAY = "tests/sql/flow/test_replay_in_flows.py"
_ADMIT = "tests/sql/quota/test_claims_admit.py"
_LANE = "tests/sql/lane/test_set_lane_options.py"
_RESERVE = "tests/sql/quota/test_reservations.py"
_CLOSED = "tests/sql/quota/test_fails_closed.py"
_ASK = "tests/sql/signal/test_ask_waits.py"
_APPEND = "tests/sql/stream/test_append_frames.py"
_APPROVE = "tests/sql/approval/test_approvals.py"
_REWIND = "tests/sql/stream/test_read_streams.py"
_SUSPEND = "tests/sql/suspension/test_suspend_execution.py"
_TYPES = "tests/signals/test_types.py"
_WAITPOINT = "tests/sql/waitpoint/test_waitpoints.py"

_CONSUME = "tests/subscriptions/test_consume.py"

MUTANTS: tuple[Mutant, ...] = (
    # Subscriptions
    _mutant(
        "an acknowledgement does not look at the epoch",
        "functions/subscription/ack_subscription.sql",
        f"{_CONSUME}::test_a_late_repeat_does_not_put_the_position_back",
        (" or v_row.epoch is distinct from p_epoch", ""),
    ),
    _mutant(
        "a late acknowledgement puts the position back",
        "functions/subscription/ack_subscription.sql",
        f"{_CONSUME}::test_a_late_repeat_does_not_put_the_position_back",
        ("cursor_text = case when p_ack_no > s.ack_no then", "cursor_text = case when true then"),
    ),
    _mutant(
        "two consumers hold one subscription",
        "functions/subscription/lease_subscription.sql",
        f"{_CONSUME}::test_one_consumer_reads_at_a_time_and_the_next_one_takes_over",
        ("and v_row.lease_expires_at > v_now then", "and v_row.lease_expires_at < v_now then"),
    ),
    _mutant(
        "events that a subscription needs are trimmed with their execution",
        "functions/execution/_delete_executions.sql",
        "tests/subscriptions/test_trimming.py::test_events_stay_for_a_subscription_that_lags",
        (" and x.execution_id <> all (v_needed)", ""),
    ),
    _mutant(
        "a worker that lost its hold signs posts",
        "functions/webhook/sign_webhook.sql",
        "tests/subscriptions/test_webhooks.py::"
        "test_a_worker_that_lost_its_hold_signs_and_fails_nothing",
        (
            "(v_row.holder_id, v_row.epoch) is distinct from (p_holder_id, p_epoch)",
            "v_row.holder_id is null",
        ),
    ),
    _mutant(
        "a failure of a webhook is counted again by a repeat",
        "functions/webhook/fail_webhook.sql",
        "tests/subscriptions/test_webhooks.py::test_a_failure_is_counted_once",
        ("if p_ack_no <= v_row.ack_no or ", "if "),
    ),
    _mutant(
        "a failure of a webhook is counted before the next try",
        "functions/webhook/fail_webhook.sql",
        "tests/subscriptions/test_webhooks.py::test_a_failure_is_counted_once",
        (" or v_row.retry_at > v_now then\n    return query", " then\n    return query"),
    ),
    # The fence
    _mutant(
        "complete does not look at the epoch",
        _COMPLETE,
        "tests/sql/execution/test_complete_executions.py::"
        "test_a_forged_fence_is_stale_and_writes_nothing",
        (" and x.epoch = a.epoch", ""),
    ),
    _mutant(
        "complete does not look at the lease",
        _COMPLETE,
        "tests/sql/execution/test_complete_executions.py::"
        "test_a_forged_fence_is_stale_and_writes_nothing",
        ("x.lease_id = a.lease_id and ", ""),
    ),
    _mutant(
        "complete does not look at the attempt",
        _COMPLETE,
        "tests/sql/execution/test_complete_executions.py::"
        "test_a_forged_fence_is_stale_and_writes_nothing",
        (" and x.attempt_id = a.attempt_id", ""),
    ),
    _mutant(
        "complete does not look at the expiry",
        _COMPLETE,
        "tests/sql/execution/test_complete_executions.py::"
        "test_a_late_completion_is_refused_and_marks_the_lease_expired",
        ("and x.lease_expires_at > greatest(v_now, x.transitioned_at)", ""),
    ),
    _mutant(
        "complete takes a lease at the moment of its expiry",
        _COMPLETE,
        "tests/sql/execution/test_complete_executions.py::"
        "test_a_lease_is_over_at_the_moment_of_its_expiry",
        ("x.lease_expires_at > greatest", "x.lease_expires_at >= greatest"),
    ),
    _mutant(
        "the fence does not look at the epoch",
        _JUDGE,
        "tests/sql/lease/test_renew_leases.py::test_a_forged_fence_writes_nothing",
        ("s.epoch <> s.row_epoch or ", ""),
    ),
    _mutant(
        "a renewal revives an expired lease",
        _JUDGE,
        "tests/sql/lease/test_renew_leases.py::"
        "test_a_late_renewal_is_refused_and_marks_the_lease_expired",
        ("or s.lease_expires_at <= greatest(v_now, s.transitioned_at)", ""),
    ),
    _mutant(
        "a lease that was found expired is not marked so",
        _JUDGE,
        "tests/sql/execution/test_fail_executions.py::"
        "test_a_late_failure_is_refused_and_marks_the_lease_expired",
        ("if v_expired is not null then", "if false then"),
    ),
    _mutant(
        "a busy row is answered as not found",
        _JUDGE,
        "tests/races/test_locked_rows.py::test_all_other_leases_are_renewed_meanwhile",
        ("then 'busy' else 'not_found' end", "then 'not_found' else 'not_found' end"),
    ),
    _mutant(
        "the fenced path waits for a row",
        _JUDGE,
        "tests/races/test_locked_rows.py::test_all_other_leases_are_renewed_meanwhile",
        ("for no key update skip locked", "for no key update"),
    ),
    _mutant(
        "the clock is read before the wait for the row",
        _JUDGE,
        "tests/races/test_pairs.py::test_a_call_that_waits_reads_the_clock_after_the_wait_from_every_state[fail]",
        ("  v_now      timestamptz;\n", "  v_now      timestamptz := ff.now();\n"),
        ("  v_now := ff.now();\n", ""),
    ),
    _mutant(
        "a repeat is told off",
        _JUDGE,
        "tests/sql/execution/test_complete_executions.py::"
        "test_the_lease_that_completed_gets_the_same_answer_again",
        ("when s.lease_id = s.last_lease_id and s.last_lease_end = p_end then 'repeat'\n", ""),
    ),
    # The epoch
    _mutant(
        "a cancel leaves the epoch as it is",
        _END,
        "tests/sql/execution/test_cancel_execution.py::"
        "test_a_live_lease_is_taken_away_and_the_epoch_rises",
        ("epoch = e.epoch + (e.ownership = 'leased')::integer", "epoch = e.epoch"),
    ),
    _mutant(
        "a revocation leaves the epoch as it is",
        "functions/lease/revoke_lease.sql",
        "tests/sql/lease/test_revoke_lease.py::test_a_lease_is_revoked_and_the_next_claim_reclaims",
        ("epoch = e.epoch + 1,", "epoch = e.epoch,"),
    ),
    _mutant(
        "a later lease has the epoch of the one before",
        _LEASE,
        "tests/sql/execution/test_claim_executions.py::test_epochs_rise_by_one_with_every_lease",
        ("\n      epoch = e.epoch + 1,", "\n      epoch = e.epoch,"),
    ),
    _mutant(
        "a replay starts the epochs again",
        "functions/execution/_write_replays.sql",
        "tests/sql/execution/test_claim_executions.py::"
        "test_the_epoch_rises_over_attempts_and_never_starts_again",
        ("retry_count = 0,", "retry_count = 0, epoch = 0,"),
    ),
    # Leases
    _mutant(
        "the attempt before is not kept",
        _LEASE,
        "tests/sql/execution/test_claim_executions.py::"
        "test_a_retry_is_a_new_attempt_and_the_old_one_becomes_history",
        ("where p_has_past and i.is_new and", "where false and i.is_new and"),
    ),
    _mutant(
        "a claim waits for rows that others hold",
        "functions/execution/_pick_candidates.sql",
        "tests/sql/execution/test_claim_executions.py::test_two_claims_at_once_share_no_row",
        ("for no key update skip locked", "for no key update"),
    ),
    _mutant(
        "a claim does not look again after it has locked a row",
        "functions/execution/_pick_candidates.sql",
        "tests/races/test_claim_exclusively.py::test_eight_claimers_never_share_an_execution[10000]",
        (
            """((e.phase = 'runnable' and (e.eligibility = 'eligible_now' or e.line_id is not null))
               or (e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
                   and e.reclaim_at is null))""",
            "true",
        ),
    ),
    _mutant(
        "a claim takes from a lane that is closed",
        "functions/lane/_read_covered_routes.sql",
        "tests/sql/execution/test_claim_executions.py::test_the_state_of_the_lane_decides",
        (
            "\n        and (l.state in ('active', 'draining') or l.resumes_at <= p_now)\n"
            "      order by x.route_id) r;\n  end if;\n  if cardinality(p_unserved) > 0",
            "\n      order by x.route_id) r;\n  end if;\n  if cardinality(p_unserved) > 0",
        ),
    ),
    _mutant(
        "a claim overwrites the slot of its process",
        "functions/execution/_write_claim_slot.sql",
        "tests/races/test_claim_slot.py::test_of_two_claims_of_one_process_the_later_is_sent_back",
        ("where s.claim_id is not distinct from p_slot_claim", ""),
    ),
    _mutant(
        "a claim does not count reclaims against their limit",
        "functions/execution/_pick_candidates.sql",
        "tests/sql/execution/test_claim_executions.py::"
        "test_an_execution_that_lost_its_lease_too_often_fails",
        ("e.reclaim_count - e.company_count >= e.max_reclaims", "false"),
    ),
    _mutant(
        "reclaims follow one another without a wait",
        "functions/lease/_expire_leases.sql",
        "tests/sql/lease/test_expire_leases.py::"
        "test_from_the_third_loss_on_a_row_waits_longer_each_time",
        ("case when b.crash_count >= 3 and", "case when b.crash_count >= 3000000 and"),
    ),
    _mutant(
        "leases are marked expired without a lock",
        "functions/lease/expire_leases.sql",
        "tests/races/test_pairs.py::test_two_at_once_in_every_pair[renew]",
        ("for no key update skip locked", ""),
    ),
    # Grants
    _mutant(
        "a used grant stays",
        "functions/grant/_consume_grant.sql",
        "tests/sql/grant/test_claim_execution.py::test_a_grant_becomes_a_lease_and_is_gone",
        ("delete from ff.grant g\n  where ", "delete from ff.grant g\n  where false and "),
    ),
    _mutant(
        "any key opens a grant",
        "functions/grant/_consume_grant.sql",
        "tests/sql/grant/test_claim_execution.py::test_another_key_does_not_open_a_grant",
        (" or v_grant.key_hash <> sha256(p_key)", ""),
    ),
    _mutant(
        "a claim does not see a grant that came at the last moment",
        "functions/execution/_not_granted_elsewhere.sql",
        "tests/races/test_grants.py::test_a_grant_between_the_look_and_the_lock_of_a_claim_is_seen",
        ("g.expires_at > p_now and g.worker_id <> p_worker_id", "false"),
    ),
    _mutant(
        "a quick claim does not see a grant that came at the last moment",
        _FRESH,
        "tests/races/test_grants.py::test_a_grant_between_the_look_and_the_lock_of_a_claim_is_seen",
        ("and g.execution_id = any (v_ids)))", "and false))"),
    ),
    _mutant(
        "a quick claim is content with what others do not hold",
        _FRESH,
        "tests/races/test_claim_order.py::test_a_claim_looks_behind_a_window_that_others_hold",
        ("if v_seen = 2 * p_limit then", "if false then"),
    ),
    _mutant(
        "a quick claim takes what is over",
        _FRESH,
        "tests/sql/execution/test_claim_forms.py",
        (
            "\n               and x.transitioned_at <= v_now and coalesce(x.deadline_at > v_now",
            "\n               and coalesce(true",
        ),
    ),
    _mutant(
        "a quick claim does not look at the flow",
        _FRESH,
        "tests/sql/flow/test_cancel_flow.py::"
        "test_a_claim_passes_members_of_cancelled_flows_and_takes_what_is_behind",
        ("where f.cancel_policy <> 'flow_only'", "where false"),
    ),
    _mutant(
        "a cancel leaves the grant behind",
        _END,
        "tests/sql/execution/test_cancel_execution.py::test_a_cancellation_takes_the_grant_along",
        ("where g.partition_key = i.pk and g.execution_id = i.id;", "where false;"),
    ),
    # Time
    _mutant(
        "a promotion forgets the attempt state",
        "functions/execution/promote_delayed.sql",
        "tests/sql/execution/test_promote_delayed.py::"
        "test_the_attempt_state_is_kept_because_it_routes_the_next_claim",
        ("delayed_until = null,", "delayed_until = null, attempt_state = 'pending_first_attempt',"),
    ),
    _mutant(
        "a promotion forgets the deadline",
        "functions/execution/promote_delayed.sql",
        "tests/sql/execution/test_expire_executions.py::"
        "test_a_retry_and_a_promotion_keep_the_deadline",
        ("due_at = e.deadline_at,", "due_at = null,"),
    ),
    _mutant(
        "the time of an attempt does not end",
        "functions/execution/expire_executions.sql",
        "tests/sql/execution/test_expire_executions.py::"
        "test_an_attempt_that_renews_its_lease_still_runs_out_of_time",
        (
            "or (e.ownership = 'leased' and e.attempt_deadline_at <= v_now)",
            "or (e.ownership = 'leased' and false)",
        ),
    ),
    _mutant(
        "a retry is not counted",
        "functions/execution/fail_executions.sql",
        "tests/sql/execution/test_fail_executions.py::"
        "test_a_failed_execution_can_be_tried_until_its_retries_are_used_up",
        (
            "retry_count = e.retry_count + (d.wait is not null)::integer",
            "retry_count = e.retry_count",
        ),
    ),
    _mutant(
        "a deadline waits for a row that somebody holds",
        "functions/execution/expire_executions.sql",
        "tests/races/test_pairs.py::test_two_at_once_in_every_pair[cancel]",
        ("for no key update skip locked", "for no key update"),
    ),
    # Operators
    _mutant(
        "a replay keeps the old outcome",
        "functions/execution/_write_replays.sql",
        "tests/sql/execution/test_replay_execution.py::test_every_ended_execution_can_be_replayed",
        ("outcome = 'none',", ""),
    ),
    _mutant(
        "a replay does not ask for the version",
        "functions/execution/replay_execution.sql",
        "tests/sql/execution/test_replay_execution.py::"
        "test_a_repeat_for_the_same_version_does_nothing",
        ("if v_row.version <> p_if_version then", "if false then"),
    ),
    _mutant(
        "a change of priority does not raise the version",
        "functions/execution/change_priority.sql",
        "tests/sql/execution/test_change_priority.py::"
        "test_any_runnable_execution_gets_a_new_priority",
        ("version = e.version + 1,", ""),
    ),
    _mutant(
        "an operator of one namespace reaches another",
        "functions/execution/_lock_execution.sql",
        "tests/sql/execution/test_cancel_execution.py::test_a_foreign_namespace_finds_nothing",
        ("and case when p_namespace is null then true else e.namespace = p_namespace end", ""),
    ),
    _mutant(
        "the row is read before it is locked",
        "functions/execution/_lock_execution.sql",
        "tests/races/test_operators.py::"
        "test_the_second_waits_and_sees_what_the_first_did[complete-cancel]",
        (
            "  for no key update;\n  if not found then",
            "  ;\n  perform 1 from ff.execution e\n"
            "  where e.partition_key = p_partition_key and e.execution_id = p_execution_id\n"
            "  for no key update;\n  if not found then",
        ),
    ),
    # Events and trimming
    _mutant(
        "a revocation writes no event",
        "functions/lease/revoke_lease.sql",
        "tests/sql/lease/test_revoke_lease.py::test_a_lease_is_revoked_and_the_next_claim_reclaims",
        ("from revoked r;", "from revoked r where false;"),
    ),
    _mutant(
        "the cursor stands at the end of the snapshot",
        "functions/event/_deliver_events.sql",
        "tests/events/test_commit_order.py::"
        "test_a_transaction_that_ends_late_is_delivered_when_it_ends",
        (
            "ff._format_cursor(p_partition_key, v_generation, v_last_event.xid,",
            "ff._format_cursor(p_partition_key, v_generation, pg_snapshot_xmax(v_snapshot),",
        ),
    ),
    _mutant(
        "an older generation is judged by the snapshot",
        "functions/event/_deliver_events.sql",
        "tests/events/test_generations.py::test_a_reader_goes_on_after_a_move[500-1000000]",
        ("v_is_old := v_generation < v_cursor.current;", "v_is_old := false;"),
    ),
    _mutant(
        "the first writer on another node goes on in the old generation",
        "functions/event/_enter_generation.sql",
        "tests/events/test_generations.py::"
        "test_the_first_on_another_node_raises_the_generation[writer]",
        ("if v_node_id = v_here then", "if true then"),
    ),
    _mutant(
        "a trim mark is compared without its generation",
        "functions/event/_parse_cursor.sql",
        "tests/events/test_generations.py::"
        "test_what_is_trimmed_in_an_old_generation_expires_only_cursors_before_it",
        ("(generation, last_xid) < (v_gone, v_gone_to)", "last_xid < v_gone_to"),
    ),
    _mutant(
        "a transaction without events expires the position of a subscription",
        "functions/event/_parse_cursor.sql",
        "tests/subscriptions/test_trimming.py::"
        "test_a_long_transaction_that_writes_no_event_expires_no_subscription",
        ("or not v_is_kept and exists (", "or exists ("),
    ),
    _mutant(
        "no loss of a subscription is recorded",
        "functions/event/_raise_trim_mark.sql",
        "tests/subscriptions/test_trimming.py::"
        "test_a_position_below_the_trim_mark_expires_when_its_events_are_lost",
        ("if p_lost_by = '{}' then", "if true then"),
    ),
    _mutant(
        "the cursor forgets what has not ended",
        "functions/event/_format_cursor.sql",
        "tests/events/test_commit_order.py::"
        "test_a_transaction_that_ends_late_is_delivered_when_it_ends",
        ("where x.xid < v_last", "where false"),
    ),
    _mutant(
        "what was replayed meanwhile is trimmed",
        "functions/execution/_trim_batch.sql",
        "tests/races/test_pairs.py::test_two_at_once_in_every_pair[replay]",
        ("    for update skip locked);", "    );"),
    ),
    _mutant(
        "options that all items share are stored unseen",
        "functions/execution/submit_executions.sql",
        "tests/sql/execution/test_submit_executions.py::"
        "test_a_bad_value_that_is_shared_refuses_every_item",
        ("or ff._options_problem(p_options[1]) is not null ", ""),
    ),
    _mutant(
        "an item lends its body to another with its id",
        "functions/execution/_store_executions.sql",
        "tests/sql/execution/test_submit_executions.py",
        (" and i.n <> all (seconds)", ""),
    ),
    # Keys
    _mutant(
        "a key is taken without asking who is busy with it",
        "functions/execution/_reserve_keys.sql",
        "tests/races/test_submit_at_once.py::test_a_key_is_busy_until_the_first_commits",
        ("if v_item.is_kept and not pg_try_", "if false and not pg_try_"),
    ),
    _mutant(
        "a key is forgotten when its execution has ended",
        "functions/execution/_reserve_keys.sql",
        "tests/sql/execution/test_submit_executions.py::"
        "test_a_key_within_its_window_outlives_the_execution",
        *(
            (
                f"when 'window' then k.expires_at > v_now\n{behind}",
                "when 'window' then k.expires_at > v_now and exists ("
                "select from ff.execution e where e.partition_key = k.partition_key "
                f"and e.execution_id = k.execution_id and e.phase <> 'terminal')\n{behind}",
            )
            for behind in ("            else", "             -- an earlier item")
        ),
    ),
    _mutant(
        "whoever asks for a key that is taken takes it, too",
        "functions/execution/_reserve_keys.sql",
        "tests/races/test_submit_at_once.py::"
        "test_whoever_is_told_the_first_run_of_a_key_keeps_nobody_waiting[window]",
        ("offset 0) k", "limit 0) k"),
    ),
    # Code versions
    _mutant(
        "every worker claims what another version began",
        "functions/lane/_read_covered_routes.sql",
        f"{VERSIONS}::test_only_workers_that_serve_the_version_claim_it_from_then_on",
        (
            "x.task = any (p_tasks) and x.namespace = p_namespace and x.code_version is null",
            "x.task = any (p_tasks) and x.namespace = p_namespace",
        ),
    ),
    _mutant(
        "a worker that comes back does not end the takeover",
        "functions/lane/_read_unserved.sql",
        f"{VERSIONS}::test_a_worker_that_comes_back_ends_the_takeover_at_once",
        ("w.liveness_ttl > p_now", "w.liveness_ttl > p_now + interval '1 day'"),
    ),
    _mutant(
        "a takeover does not wait for the grace",
        "functions/lane/list_unserved_routes.sql",
        f"{VERSIONS}::test_the_grace_counts_from_the_last_sign_of_life[killed]",
        ("greatest(x.liveness_ttl, w.version_grace) +", "x.liveness_ttl +"),
    ),
    _mutant(
        "an execution without steps belongs to a version",
        "shared/_move_to_versions.sql",
        f"{VERSIONS}::test_a_step_that_is_not_recorded_moves_nothing",
        ("(u.version is not null) = exists (", "(u.version is not null) or exists ("),
    ),
    # Steps
    _mutant(
        "whoever lost its lease records steps",
        "functions/step/record_steps.sql",
        "tests/sql/step/test_record_steps.py::test_a_fence_that_is_not_good_records_nothing",
        (
            "where v_words[u.n] = 'leased' and v_fields[u.n] is null and v_nths[u.n] = 1",
            "where v_words[u.n] in ('leased', 'stale_lease') and v_fields[u.n] is null "
            "and v_nths[u.n] = 1",
        ),
    ),
    _mutant(
        "the last writer of a step wins",
        "functions/step/record_steps.sql",
        "tests/sql/step/test_record_steps.py::"
        "test_the_first_writer_wins_and_a_repeat_gets_its_value",
        (
            "on conflict do nothing\n    returning recorded_at, until_at into",
            "on conflict (partition_key, execution_id, name, occurrence) "
            "do update set value = excluded.value\n    returning recorded_at, until_at into",
        ),
    ),
    _mutant(
        "the step of a zombie stands for that of the holder",
        "functions/step/record_steps.sql",
        "tests/model/test_found.py::test_a_step_is_not_said_to_exist_because_a_zombie_asked_for_it",
        ("a.word = 'leased' and p.words is null\n", "p.words is null\n"),
    ),
    _mutant(
        "a replay keeps the step it is to begin with",
        "functions/execution/_delete_steps.sql",
        "tests/sql/step/test_replay_from_step.py::test_from_a_step_on_everything_is_forgotten",
        ("s.position >= v_position\n    returning", "s.position > v_position\n    returning"),
    ),
    _mutant(
        "retry lets a sleeper sleep on",
        "functions/execution/retry_execution.sql",
        "tests/sql/step/test_record_steps.py::test_retry_ends_the_sleep_as_well",
        ("s.kind = 'sleep' and s.until_at > v_now", "s.kind = 'sleep' and s.until_at < v_now"),
    ),
    # Waits and children
    _mutant(
        "one run too few is enough",
        "shared/_wake_waiters.sql",
        "tests/sql/execution/test_wait_for_runs.py::test_k_of_n_is_enough",
        ("count(*)::integer as number", "count(*)::integer + 1 as number"),
    ),
    _mutant(
        "who could not be told is forgotten",
        "shared/_propagate_end.sql",
        "tests/sql/execution/test_cascades.py::test_a_waiter_that_is_locked_is_left_and_the_answer_says_so",
        ("set wakes_pending = i.is_pending", "set wakes_pending = false"),
    ),
    _mutant(
        "a child outlives its parent",
        "shared/_cancel_bound_children.sql",
        "tests/sql/execution/test_children.py::test_children_end_with_their_parent",
        (
            "when e.ends_with_parent and e.phase <> 'terminal' then true else",
            "when true then false else",
        ),
    ),
    _mutant(
        "grandchildren live on",
        "shared/_read_awaited.sql",
        "tests/sql/execution/test_children.py::test_grandchildren_end_too",
        ("    where x.is_awaited);", "    where false);"),
    ),
    _mutant(
        "a wait does not lock what it waits for",
        "functions/execution/wait_for_runs.sql",
        "tests/sql/execution/test_wait_for_runs.py::"
        "test_it_waits_for_a_target_that_is_ending_and_counts_it",
        ("array_append(v_targets, p_execution_id)", "array[p_execution_id]"),
    ),
    _mutant(
        "a waiter that ends leaves its waits behind",
        "functions/execution/_end_executions.sql",
        "tests/sql/execution/test_wait_for_runs.py::"
        "test_a_waiter_that_is_cancelled_leaves_no_wait_behind",
        ("if v_idlers is not null then", "if false then"),
    ),
    _mutant(
        "a parent that has ended takes more children",
        "functions/execution/_bind_to_parents.sql",
        "tests/sql/execution/test_children.py::test_a_parent_that_has_ended_takes_no_more_children",
        (" filter (where l.phase <> 'terminal')", ""),
    ),
    _mutant(
        "a claim leases the children of what it ends",
        "functions/execution/_claim_in_rounds.sql",
        "tests/model/test_found.py::test_a_claim_leases_no_child_whose_parent_it_ends",
        ("      where x.phase <> 'terminal'\n", "      where true\n"),
    ),
    _mutant(
        "an attempt is timed out after its parent ended it",
        "functions/execution/_settle_overdue_executions.sql",
        "tests/model/test_found.py::"
        "test_an_attempt_out_of_time_is_not_settled_after_its_parent_ended_it",
        ("      where x.phase = 'active');", "      where true);"),
    ),
    # Schedules
    _mutant(
        "a schedule fires whatever was read of it",
        "functions/schedule/fire_schedule.sql",
        "tests/schedules/test_firing.py::test_of_two_at_the_same_moment_one_fires",
        ("    and s.next_at = p_expected_next_at and s.rule_no = p_rule_no\n", ""),
    ),
    _mutant(
        "a schedule fires by a rule that is over",
        "functions/schedule/fire_schedule.sql",
        "tests/schedules/test_firing.py::test_what_was_read_before_the_rule_changed_does_not_fire",
        ("s.next_at = p_expected_next_at and s.rule_no = p_rule_no", "s.next_at is not null"),
    ),
    _mutant(
        "an older version of an app says which schedules there are",
        "functions/schedule/declare_schedules.sql",
        "tests/schedules/test_declaring.py::"
        "test_the_newest_version_wins_and_an_older_worker_does_not_undo_it",
        ("if v_known.version <> p_version then", "if false then"),
    ),
    _mutant(
        "a declaration lets a paused schedule go on",
        "functions/schedule/declare_schedules.sql",
        "tests/schedules/test_declaring.py::test_a_pause_outlives_declarations_and_new_rules",
        ("next_at = case when s.is_paused then null\n", "is_paused = false, next_at = case\n"),
    ),
    _mutant(
        "a schedule that is not declared any more goes on",
        "functions/schedule/declare_schedules.sql",
        "tests/schedules/test_declaring.py::"
        "test_what_is_not_declared_any_more_is_orphaned_and_never_fires",
        ("      and s.name <> all (p_names)\n", "      and false\n"),
    ),
    # Hooks
    _mutant(
        "a completed execution calls no hooks",
        "functions/execution/complete_executions.sql",
        "tests/sql/hook/test_hook_functions.py::test_an_end_submits_the_hooks_of_its_kind",
        ("if v_has_hooks and v_done", "if false and v_done"),
    ),
    _mutant(
        "an end of a replayed execution takes the hook of its first end",
        "functions/execution/_submit_hooks.sql",
        "tests/sql/hook/test_hook_functions.py::test_every_end_of_a_replayed_execution_has_its_own_hook",
        ("d.execution_id, d.replay_count, h.name)", "d.execution_id, 0, h.name)"),
    ),
    _mutant(
        "the end of a hook calls hooks",
        "functions/execution/_submit_hooks.sql",
        "tests/sql/hook/test_hook_functions.py::test_the_end_of_a_hook_calls_no_hooks",
        ("      where not exists (\n", "      where true or not exists (\n"),
    ),
    _mutant(
        "an older version of an app brings a removed hook back",
        "functions/hook/declare_hooks.sql",
        "tests/sql/hook/test_hook_functions.py::TestDeclaring::test_the_newest_version_decides",
        (
            "  where ff._comparable_version(h.version) <= "
            "ff._comparable_version(excluded.version)\n    and (",
            "  where (true) and (",
        ),
    ),
    # Flows
    _mutant(
        "a group fires again at every later success",
        _RESOLVE,
        f"{_RESOLUTION}::test_a_group_fires_once_whatever_comes_later",
        ("y.fired_at is null and y.state <> 'pending' as", "y.state <> 'pending' as"),
        ("case when y.fired_at is null and y.state", "case when y.state"),
        ("coalesce(y.fired_at, j.fired_at)", "coalesce(j.fired_at, y.fired_at)"),
    ),
    _mutant(
        "a group is judged by the edges that are applied",
        _RESOLVE,
        f"{_RESOLUTION}::test_a_staged_edge_counts_as_running_until_it_is_applied",
        (
            "z.policy, z.k, z.n, z.succeeded",
            "z.policy, z.k, (select count(*)::integer from ff.edge g where g.partition_key = c.pk "
            "and g.downstream_id = c.downstream_id and g.group_no = c.group_no "
            "and g.applied_at is not null), z.succeeded",
        ),
    ),
    _mutant(
        "one success too few is enough",
        "functions/flow/_evaluate_group.sql",
        f"{_GRAPHS}::test_a_graph_ends_as_the_evaluator_says",
        ("p_succeeded >= v_needed then", "p_succeeded >= greatest(v_needed - 1, 1) then"),
    ),
    _mutant(
        "a group gives up one failure too late",
        "functions/flow/_evaluate_group.sql",
        f"{_GRAPHS}::test_a_graph_ends_as_the_evaluator_says",
        ("p_lost > p_n - v_needed", "p_lost > p_n - v_needed + 1"),
    ),
    _mutant(
        "one satisfied group is enough",
        _RESOLVE,
        f"{_GRAPHS}::test_a_graph_ends_as_the_evaluator_says",
        ("when y.state <> 'satisfied' and y.n > 0 then", "when false then"),
    ),
    _mutant(
        "an edge is counted whenever its end is told",
        _RESOLVE,
        f"{_RESOLUTION}::test_two_resolvers_at_once_resolve_once",
        (
            "        and o.resolution = 'unsatisfied'\n        and case",
            "        and o.resolution is not null\n        and case",
        ),
        (
            "case when o.resolution = 'unsatisfied'\n",
            "case when o.resolution is not null\n",
        ),
    ),
    _mutant(
        "an end waits for the members it concerns",
        _RESOLVE,
        f"{_RESOLUTION}::test_a_member_that_is_locked_is_left_and_told_later",
        ("for no key update skip locked", "for no key update"),
    ),
    _mutant(
        "a member that could not be told is forgotten",
        "shared/_propagate_end.sql",
        f"{_GRAPHS}::test_a_graph_ends_well_whatever_gets_in_its_way",
        ("and g.resolution = 'unsatisfied'", "and false"),
    ),
    _mutant(
        "a satisfied group wakes whoever it leads to",
        _RESOLVE,
        f"{_RESOLUTION}::test_a_satisfied_group_leaves_alone_whoever_does_not_wait_for_it",
        (
            "case when e.eligibility = 'blocked_by_dependencies' and e.wait_left is null",
            "case when e.phase = 'runnable'",
        ),
    ),
    _mutant(
        "a skip leaves the epoch alone",
        _END,
        f"{_RESOLUTION}::test_the_skip_of_an_active_member_takes_its_lease_and_fences_its_worker",
        (
            "e.epoch + (e.ownership = 'leased')::integer",
            "e.epoch + (e.ownership = 'leased' and p_cause <> 'skip')::integer",
        ),
    ),
    _mutant(
        "a sibling is cancelled though another group waits for it",
        "functions/flow/_cancel_siblings.sql",
        f"{_GRAPHS}::test_a_graph_ends_as_the_evaluator_says",
        ("not x.has_ended and not x.is_needed", "not x.has_ended"),
    ),
    _mutant(
        "a locked sibling is not cancelled later",
        "functions/flow/_cancel_siblings.sql",
        "tests/sql/flow/test_siblings.py::"
        "test_a_sibling_that_is_locked_is_listed_and_cancelled_later",
        ("where u.id <> all (v_locked) order by u.n", "where false order by u.n"),
    ),
    _mutant(
        "a replay leaves closed what its end had closed",
        "functions/execution/_reopen_edges.sql",
        f"{_REPLAY}::test_a_chain_of_skipped_members_is_replayed_to_its_end",
        (
            "resolution = 'unsatisfied', outcome = null, resolved_at = null\n"
            "      from item i\n      where ",
            "resolution = 'unsatisfied', outcome = null, resolved_at = null\n"
            "      from item i\n      where false and ",
        ),
    ),
    _mutant(
        "a claim does not look at the flow",
        "functions/execution/_pick_candidates.sql",
        f"{_CANCEL}::test_a_claim_passes_members_of_cancelled_flows_and_takes_what_is_behind",
        ("select f.cancel_policy = 'flow_only' from ff.flow f", "select true from ff.flow f"),
    ),
    _mutant(
        "the header pauses nobody",
        "functions/flow/cancel_flow_header.sql",
        f"{_CANCEL}::test_the_header_pauses_those_that_wait_and_ends_nobody",
        (
            "perform ff._pause_members(p_partition_key, p_flow_id, v_flow.cancel_reason, v_now);",
            "null;",
        ),
    ),
    _mutant(
        "who drains is cancelled",
        "functions/flow/_cancel_backlog_members.sql",
        f"{_CANCEL}::test_cancel_pending_lets_the_running_ones_drain_and_ends_the_others",
        ("when p_backlog.policy = 'cancel_pending' and e.ownership = 'leased'", "when false"),
    ),
    _mutant(
        "a member of a cancelled flow is tried again",
        "functions/execution/fail_executions.sql",
        f"{_CANCEL}::test_a_draining_member_that_fails_with_retries_left_is_cancelled_at_once",
        ("case when not e.is_cancelled then e.wait end as wait", "e.wait as wait"),
        ("e.is_cancelled and e.wait is not null as is_cancelled", "false as is_cancelled"),
    ),
    _mutant(
        "a circle is stored",
        "functions/flow/stage_dependency_edge.sql",
        "tests/sql/flow/test_graph_building.py::test_a_circle_of_two_is_refused",
        ("if v_path is not null then", "if false then"),
    ),
    # Signals
    _mutant(
        "a look takes the signal",
        "functions/signal/ask_waits.sql",
        f"{_ASK}::test_a_look_leaves_the_signal_for_others",
        (
            """v_step.ready_at := v_signal.ready_at;
        if p_takes[v_item] then""",
            """v_step.ready_at := v_signal.ready_at;
        if true then""",
        ),
    ),
    _mutant(
        "a signal that was stored before the suspension is not seen",
        "functions/suspension/suspend_execution.sql",
        f"{_SUSPEND}::test_a_signal_stored_without_a_lock_before_the_suspension_is_seen",
        ("perform ff._notice_signals(p_partition_key, array[p_execution_id], v_now);", "null;"),
    ),
    _mutant(
        "a suspension does not look at the signals that are there",
        "functions/suspension/_read_ready.sql",
        f"{_SUSPEND}::test_a_signal_that_is_there_already_keeps_the_lease",
        ("if v_signal.signal_ids is not null then", "if false then"),
    ),
    _mutant(
        "a timeout wins over a signal that came before it was applied",
        "functions/suspension/expire_suspensions.sql",
        f"{_SUSPEND}::test_a_signal_in_the_inbox_counts_before_the_timeout",
        ("perform ff._notice_signals(p_partition_key, v_locked, v_now);", "null;"),
    ),
    _mutant(
        "an end leaves the suspension open",
        _END,
        f"{_SUSPEND}::test_cancel_closes_what_is_open_and_a_late_signal_revives_nothing",
        ("if v_asleep is not null then", "if false then"),
    ),
    _mutant(
        "a denial counts as an approval",
        "functions/signal/_choose_signals.sql",
        f"{_APPROVE}::test_the_last_needed_answer_wakes_the_execution",
        ("case when p_names[i] = 'approved' then 1 else 0 end", "1"),
    ),
    _mutant(
        "a closed waitpoint leaves its waits open",
        "functions/waitpoint/_close_waitpoints.sql",
        f"{_WAITPOINT}::test_a_suspension_that_nobody_can_end_any_more_times_out",
        (
            """perform ff._time_out_unanswerable_waits(
    p_partition_key, p_execution_id, p_waitpoint_ids, p_now);""",
            "null;",
        ),
    ),
    _mutant(
        "a signal by name answers an approval",
        "functions/signal/_read_matching_signals.sql",
        f"{_APPROVE}::test_a_signal_by_name_never_answers_an_approval",
        (
            "= any (v_points) and x.closed_at is null and x.approval_id is null",
            "= any (v_points) and x.closed_at is null",
        ),
    ),
    _mutant(
        "one operator answers for two approvers",
        "functions/approval/deliver_approval_signal.sql",
        f"{_APPROVE}::test_one_operator_cannot_answer_for_two_approvers",
        (
            """w.waitpoint_id = v_point.waitpoint_id
           or (g.source_type = 'operator' and g.source_identity = p_actor)""",
            "w.waitpoint_id = v_point.waitpoint_id",
        ),
    ),
    _mutant(
        "an approver answers an approval under any name",
        "functions/signal/_signal_problem.sql",
        f"{_APPROVE}::test_an_answer_is_approved_or_rejected",
        ("when p_is_approval and p_name not in ('approved', 'rejected')", "when false"),
    ),
    _mutant(
        "no signal is checked with the type of the wait",
        "functions/signal/_read_expected_types.sql",
        f"{_TYPES}::test_a_wait_refuses_a_value_of_another_type_where_it_is_sent",
        ("case when t.schema_id is not null and t.room >", "case when false and t.room >"),
    ),
    _mutant(
        "the type of the wait binds every later signal",
        "functions/signal/_read_expected_types.sql",
        f"{_TYPES}::test_a_second_value_may_have_the_type_of_a_later_wait",
        ("is not null and t.room > (", "is not null and t.room >= ("),
    ),
    _mutant(
        "a signal by name answers several waitpoints",
        "functions/signal/_read_matching_signals.sql",
        f"{_WAITPOINT}::test_a_signal_by_name_answers_one_of_several_waitpoints",
        ("w.key = g.name and w.turn = g.turn", "w.key = g.name"),
    ),
    _mutant(
        "the feed skips a transaction that was open while a page was read",
        "functions/signal/read_signals.sql",
        "tests/sql/signal/test_read_signals.py::test_a_cursor_moves_only_to_what_was_delivered",
        (
            "from pg_snapshot_xip(v_now) r(xid)\n        where not v_is_old",
            "from pg_snapshot_xip(v_now) r(xid)\n        where false",
        ),
    ),
    _mutant(
        "the feed reads a new generation by the snapshot of the old one",
        "functions/signal/read_signals.sql",
        "tests/sql/signal/test_read_signals.py::test_a_reader_goes_on_after_a_move",
        ("limit 1), v_current);\n      v_seen := '3:3:';", "limit 1), v_current);"),
    ),
    _mutant(
        "a token may be spelled in several ways",
        "functions/waitpoint/_verify_token.sql",
        f"{_WAITPOINT}::test_trailing_bits_do_not_make_another_spelling",
        ("translate(encode(v_bytes, 'base64'), E'+/=\\n', '-_') = p_token", "'' <> p_token"),
    ),
    _mutant(
        "a retired key verifies for ever",
        "functions/waitpoint/_verify_token.sql",
        f"{_WAITPOINT}::test_after_a_rotation_old_tokens_verify_for_the_grace",
        ("when v_key.expires_at < p_now then", "when false then"),
    ),
    _mutant(
        "a closed waitpoint takes answers",
        "functions/signal/deliver_signals.sql",
        f"{_WAITPOINT}::test_the_token_is_dead_when_the_answer_is_taken",
        ("when v_row.is_closed then 'waitpoint_closed'", "when false then 'waitpoint_closed'"),
    ),
    _mutant(
        "a replay from a later wait opens an answered waitpoint",
        "functions/execution/_delete_steps.sql",
        f"{_WAITPOINT}::test_a_replay_from_a_later_wait_leaves_an_answered_waitpoint_closed",
        (" and w.waitpoint_id <> all (v_kept)", ""),
    ),
    # Streams
    _mutant(
        "a repeated append stores its frames again",
        "functions/stream/_append_chunks.sql",
        f"{_APPEND}::test_a_repeated_append_stores_nothing_twice",
        ("least(greatest(s.last_no + 1 - p_first_nos[u.n], 0), p_counts[u.n])::integer", "0"),
    ),
    _mutant(
        "a gap in the numbers is not noticed",
        "functions/stream/_append_chunks.sql",
        f"{_APPEND}::test_a_gap_in_the_numbers_is_refused",
        ("when i.first_no > s.last_no + 1 then 'gap'", "when false then 'gap'"),
    ),
    _mutant(
        "an append does not look at the lease after it has locked the stream",
        "functions/stream/append_frames.sql",
        f"{_APPEND}::test_a_stale_lease_appends_nothing",
        (
            "where u.id = any (v_locked)\n      and (e.lease_id",
            "where false\n      and (e.lease_id",
        ),
    ),
    _mutant(
        "the end of a lease leaves its stream open",
        "functions/stream/_close_streams.sql",
        f"{_APPEND}::test_every_end_of_a_lease_closes_the_stream",
        ("    lease_id = null,", "    lease_id = s.lease_id,"),
        (
            "closed_at = case when s.lease_id is not null or i.is_over then p_now "
            "else s.closed_at end",
            "closed_at = s.closed_at",
        ),
        (
            """close_reason = case when s.lease_id is not null or i.is_over then p_end
                        else s.close_reason end""",
            "close_reason = s.close_reason",
        ),
    ),
    _mutant(
        "an append of a lease that streams does not look at the namespace",
        "functions/stream/append_frames.sql",
        f"{_APPEND}::test_a_foreign_namespace_appends_nothing_and_reads_no_summary",
        ("                  and (p_namespace is null or e.namespace = p_namespace)\n", ""),
    ),
    _mutant(
        "a capped stream does not say what is gone",
        "functions/stream/_trim_streams.sql",
        f"{_APPEND}::test_a_cap_keeps_the_newest_frames_and_says_so",
        ("floor_ms = coalesce(v_ms, s.floor_ms)", "floor_ms = s.floor_ms"),
    ),
    _mutant(
        "the stream of an execution outlives it",
        "functions/execution/_delete_executions.sql",
        f"{_APPEND}::test_a_trimmed_execution_leaves_nothing_of_its_stream",
        ("    where x.has_stream\n", "    where false\n"),
    ),
    _mutant(
        "a patch of a summary replaces objects instead of merging them",
        "functions/stream/_merge_patch.sql",
        f"{_APPEND}::test_summary_frames_build_a_document",
        ("then ff._merge_patch(v_document -> e.key, e.value)", "then e.value"),
    ),
    _mutant(
        "ids follow the clock back",
        "functions/stream/_append_chunks.sql",
        f"{_APPEND}::test_ids_rise_while_the_clock_goes_back",
        ("    last_ms = greatest(v_ms, s.last_ms),", "    last_ms = v_ms,"),
    ),
    _mutant(
        "a later lease rewinds frames of recorded steps",
        "functions/stream/_open_streams.sql",
        f"{_REWIND}::test_frames_of_recorded_steps_are_kept",
        ("c.mode <> 'rewind' and (c.generation, c.position) < (s.generation, u.base)", "false"),
    ),
    _mutant(
        "durable frames are trimmed like best-effort frames",
        "functions/stream/_trim_streams.sql",
        f"{_APPEND}::test_only_best_effort_frames_are_trimmed_by_their_rate",
        ("and c.mode in ('summary', 'best_effort')", ""),
    ),
    # Limits
    _mutant(
        "a claim does not look whether there is room",
        "functions/execution/_take_slots.sql",
        f"{_ADMIT}::test_no_more_run_than_the_limit",
        ("where k.running > coalesce(k.max_running, 1000)", "where false"),
    ),
    _mutant(
        "a claim that finds no room keeps the slots",
        "functions/execution/_take_slots.sql",
        f"{_ADMIT}::test_no_more_run_than_the_limit",
        ("set running = g.running - t.asked", "set running = g.running"),
    ),
    _mutant(
        "the general claim does not look whether there is room",
        "functions/quota/_admit_to_gates.sql",
        f"{_ADMIT}::test_no_more_run_than_the_limit",
        (
            "elsif v_rooms[v_nth] <= (v_reserved[v_nth] <> v_row.id is true)::integer then",
            "elsif false then",
        ),
    ),
    _mutant(
        "the end of a lease gives nothing back",
        "functions/quota/_release_slots.sql",
        f"{_ADMIT}::test_a_freed_slot_admits_the_first_in_line",
        ("u.id, count(*) from", "u.id, 0 from"),
    ),
    _mutant(
        "a release opens no line",
        "functions/quota/_fold_releases.sql",
        f"{_ADMIT}::test_a_freed_slot_admits_the_first_in_line",
        ("perform ff._write_lines(p_partition_key, v_locked, '{}', p_now);", ""),
    ),
    _mutant(
        "an execution that resumes waits for the rate",
        "functions/quota/_write_lines.sql",
        f"{_ADMIT}::test_a_resumed_execution_in_line_for_a_slot_does_not_wait_for_the_rate",
        ("e.attempt_state = 'attempt_interrupted'", "false"),
    ),
    _mutant(
        "the line of a gate without a share of the rate is open",
        "functions/quota/_write_lines.sql",
        "tests/partitions/test_shares.py::test_a_quota_refuses_only_if_no_partition_has_room",
        (" or g.rate <= (g.start_for is not null)::integer", ""),
    ),
    _mutant(
        "a shut budget lets executions start",
        "functions/execution/_claim_fresh.sql",
        f"{_ADMIT}::test_a_shut_budget_starts_nobody_until_its_reset",
        ("select unnest(x.quota_ids || x.budget_ids) as id", "select unnest(x.quota_ids) as id"),
    ),
    _mutant(
        "nothing is reserved for an execution that is refused again and again",
        "functions/quota/_admit_to_gates.sql",
        f"{_RESERVE}::test_an_execution_under_three_gates_starts_under_a_steady_load",
        ("::integer >= 5 then", "::integer >= 5000 then"),
    ),
    _mutant(
        "anybody gets a reserved slot",
        "functions/quota/_admit_to_gates.sql",
        f"{_RESERVE}::test_a_reserved_slot_goes_to_nobody_else",
        ("<= (v_reserved[v_nth] <> v_row.id is true)::integer", "<= 0"),
    ),
    _mutant(
        "slots are reserved above the awaited gate",
        "functions/quota/_admit_to_gates.sql",
        f"{_RESERVE}::test_only_slots_below_the_awaited_gate_are_reserved",
        ("if v_gate < v_refuser and not v_is_slow", "if v_gate <> v_refuser and not v_is_slow"),
    ),
    _mutant(
        "a reserved start goes to others",
        "functions/quota/_admit_to_gates.sql",
        f"{_RESERVE}::test_a_reserved_start_goes_to_nobody_else_and_the_rate_goes_on",
        (
            "v_starts[v_nth] <= (v_keeping[v_nth] <> v_row.id is true)::integer",
            "v_starts[v_nth] <= 0",
        ),
    ),
    _mutant(
        "an execution that waits for a slot keeps no start",
        "functions/quota/_admit_to_gates.sql",
        f"{_RESERVE}::test_a_start_is_reserved_while_another_quota_has_no_slot",
        ("          v_keeping[v_nth] := v_row.id;", "          null;"),
    ),
    _mutant(
        "a quota refuses by the share of one partition",
        "functions/quota/_judge_gates.sql",
        "tests/partitions/test_shares.py::test_a_quota_refuses_only_if_no_partition_has_room",
        (
            "if ff._is_used_up(\n           p_partition_key, v_refusing[v_nth], "
            "v_refusing[v_nth] = any (v_full), v_now)",
            "if (v_refusing[v_nth] = any (v_full))",
        ),
    ),
    _mutant(
        "a reservation that nobody needs stays",
        "functions/quota/_read_void_reservations.sql",
        f"{_RESERVE}::test_a_reservation_that_nobody_needs_is_dropped",
        ("where x.execution_id is not null and not", "where false and not"),
    ),
    _mutant(
        "a missing gate lets first attempts start",
        "functions/execution/_take_slots.sql",
        f"{_CLOSED}::test_a_first_attempt_that_cannot_be_judged_does_not_start",
        ("or v_locked <> v_quotas", "or false"),
    ),
    _mutant(
        "a missing budget lets executions start",
        "functions/execution/_take_slots.sql",
        f"{_CLOSED}::test_a_first_attempt_that_cannot_be_judged_does_not_start",
        (
            "and not b.is_shut)\n     < cardinality(p_gate_ids) - v_quotas then",
            "and b.is_shut) > 0 then",
        ),
    ),
    _mutant(
        "executions from before the limit of their lane do not count",
        "functions/execution/_claim_fresh.sql",
        f"{_LANE}::test_lifting_the_limit_opens_the_lane",
        ("if p_lane_gate is not null and not v_is_gated then", "if false then"),
    ),
    _mutant(
        "a claim with a grant passes the limit of its lane",
        "functions/grant/_admit_with_grant.sql",
        f"{_LANE}::test_a_grant_takes_a_slot_of_the_lane_or_is_refused",
        ("if v_gate is not null then", "if false then"),
    ),
    _mutant(
        "weights change no turns",
        "functions/execution/_order_fairly.sql",
        f"{_LANE}::test_a_key_with_a_weight_gets_more_turns",
        ("/ coalesce(v_group.weight, 1)", ""),
    ),
    _mutant(
        "code changes what an operator set for a lane",
        "functions/lane/set_lane_options.sql",
        f"{_LANE}::test_what_an_operator_sets_wins_over_code_until_it_is_lifted",
        (
            "v_new := coalesce(v_lane.options, v_lane.declared, '{}');",
            "v_new := coalesce(v_lane.declared, v_lane.options, '{}'); v_lane.options := null;",
        ),
    ),
    _mutant(
        "a start that has left the window is taken back",
        "functions/quota/release_admission.sql",
        f"{_ADMIT}::test_a_start_that_has_left_the_window_is_not_taken_back",
        ("v_slice > v_gate.slice_base - 62 and", ""),
    ),
    _mutant(
        "a share grows by what another partition still runs",
        "functions/quota/_grow_shares.sql",
        "tests/partitions/test_shares.py::test_a_changed_limit_is_split_again_and_holds",
        ("sum(greatest(s.concurrency, u.running))", "sum(s.concurrency)"),
    ),
    _mutant(
        "what a hard limit refused does not count",
        "functions/budget/_shut_budget.sql",
        "tests/sql/budget/test_budgets.py::test_what_is_refused_shuts_the_budget",
        ("d.usage::numeric + d.refused", "d.usage::numeric"),
    ),
)
