"""Whatever a public function is called with, it answers or refuses with an error of ours.

The calls are made from pg_proc: good arguments, of which one (in the long run also two) is
replaced by something hostile of its type. Only our own SQLSTATEs may come out, and those that say
"again". What such a call changed must not contradict itself either: the long run keeps it, and the
invariants look at it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from uuid import uuid4

import asyncpg
import pytest

from support.factories import new_id
from support.flows import make_flow

SEED = 20260
QUICK_LIGHT = 2
"""Of the values of a parameter, in the quick run."""
QUICK_HEAVY = 30
LONG_CALLS = 10_000

AGAIN = {"40001", "40P01", "55P03"}
"""Serialisation failure, deadlock, lock not available."""

FUNCTIONS = """
select p.proname as name, p.proargnames[:p.pronargs] as parameters,
       array(select t.oid::regtype::text from unnest(p.proargtypes) with ordinality t(oid, n)
             order by t.n) as types
from pg_proc p
where p.pronamespace = 'ff'::regnamespace and p.proname !~ '^_' and p.pronargs > 0
order by p.proname, p.pronargs
"""

# Runs calls and undoes each; returns what each answered, or the state with which it was refused.
ANSWERED = r"""
create function pg_temp.answered(p_calls text[]) returns text[]
language plpgsql
as $$
declare
  v_found text[] := '{}';
  v_one   text;
begin
  for v_n in 1 .. cardinality(p_calls) loop
    begin
      execute format('select coalesce(jsonb_agg(x.t order by x.t), %L)::text from (
                        select y::text as t from (%s) y) x', '[]', p_calls[v_n]) into v_one;
      raise exception using errcode = 'WF000';
    exception when others then
      if sqlstate <> 'WF000' then
        v_one := sqlstate;
      end if;
    end;
    v_found := v_found || v_one;
  end loop;
  return v_found;
end;
$$
"""

# Runs calls and undoes each; tells of those that ended with a state that is not ours, or with
# any error that matches.
TRIED = r"""
create function pg_temp.tried(p_calls text[], p_also text default null)
returns table (n integer, state text, message text)
language plpgsql
as $$
begin
  for v_n in 1 .. cardinality(p_calls) loop
    begin
      n := v_n;
      execute p_calls[n];
      raise exception using errcode = 'WF000';
    exception when others then
      get stacked diagnostics state = returned_sqlstate, message = message_text;
      if state = 'WF000' then
        continue;
      elsif state !~ '^WF' and state not in ('40001', '40P01', '55P03') or state ~ p_also then
        return next;
      end if;
    end;
  end loop;
end;
$$
"""

HEAVY = re.compile(r"0000\b|11000")

WORDS = [
    "''", "' '", r"E'\x01\x1b'", r"E'a\nb'", "'ä😀'", "'*'", "'{'", "'[]'", "'null'", "'{}'",
    "'NaN'", "'infinity'", "'0'", "'-1'", "'1e400'", "'{\"a\": 1}'", r"""'{"a.b": "\u0000"}'""",
    r"""'{"a.b": "\ud800"}'""", """'{"a.b": {"c": []}}'""", "'\\'", "'%s'", "'ff2:0:1'",
    "repeat('x', 300)", "repeat('ä', 129)", "repeat('x', 10000000)", "repeat('[', 20000)",
    "repeat('{\"a.b\":', 20000)",
    """'{"retry_policy": {"max_retries": 1e400}}'""",
    """'{"retry_policy": {"max_retries": 3, "backoff": {"fixed": {"delay_ms": 1e300}}}}'""",
    """'{"timeout_policy": {"attempt_timeout_ms": 9223372036854775807}}'""",
    """'{"retention_ms": -1}'""", """'{"max_replay_count": 1.5}'""",
    """'{"max_reclaim_count": []}'""",
]  # fmt: skip

# Hostile values by type, as SQL.
HOSTILE: dict[str, list[str]] = {
    "text": WORDS,
    "uuid": [
        "'00000000-0000-0000-0000-000000000000'",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        "gen_random_uuid()",
    ],
    "smallint": ["-1", "1", "32767", "(-32768)"],
    "integer": ["0", "-1", "1", "10001", "2147483647", "(-2147483648)"],
    "bigint": ["0", "-1", "9223372036854775807", "(-9223372036854775808)"],
    "boolean": ["true", "false"],
    "bytea": [r"'\x'", r"'\x00'", "convert_to(repeat('x', 10000000), 'UTF8')"],
    "interval": [
        "'0'", "'-1 day'", "'1 microsecond'", "'178000000 years'", "'-178000000 years'",
        "'100 years 1 day'", "'2147483647 days'",
    ],
    "timestamp with time zone": [
        "'infinity'", "'-infinity'", "'294276-12-31 00:00+00'", "'4713-01-02 00:00+00 BC'",
        "'0001-01-01 00:00+00'", "'9998-12-31 23:59:59+00'", "'294276-12-31 23:59:59.999999+00'",
    ],
    "jsonb": [
        "'null'", "'true'", "'5'", "'\"x\"'", "'[]'", "'{}'", "'[[]]'", "'[null]'", "'[{}]'",
        "'{\"nodes\": []}'", "('[' || repeat('[', 3000) || repeat(']', 3000) || ']')",
        "to_jsonb(repeat('x', 10000000))::text",
        "('[' || repeat('1,', 20000) || '1]')",
    ],
}  # fmt: skip

JSON_VALUES: list[object] = [
    None, True, -1, 1.5, 10**400, 2**63, "", " ", "x", "\x01", "x" * 300, "1e400", "infinity",
    [], {}, [[]], {"a": 1}, [None], {"a.b": "c"},
]  # fmt: skip


@dataclass
class Stage:
    """Good arguments, by the name of the parameter; some functions want others."""

    usual: dict[str, str]
    own: dict[str, dict[str, str]]
    documents: dict[str, list[str]]
    """More that is hostile, by the name of the parameter."""

    def good(self, function: str, parameter: str, type_: str) -> str | None:
        """As SQL, or None: leave it out."""
        value = self.own.get(function, {}).get(parameter, self.usual.get(parameter))
        return None if value is None else f"({value})::{type_}"


def hostile(type_: str, good: str | None) -> list[str]:
    """What a parameter of this type may be replaced by."""
    if not type_.endswith("[]"):
        return [f"null::{type_}", *(f"{value}::{type_}" for value in HOSTILE[type_])]
    element = type_.removesuffix("[]")
    good = good or f"array[null]::{type_}"
    several = [f"array[{value}]::{type_}" for value in HOSTILE[element]]
    return [
        f"null::{type_}",
        f"'{{}}'::{type_}",
        f"array[null]::{type_}",
        f"array[null, null]::{type_}",
        # longer than the others, in two dimensions, counted from elsewhere, far too long
        f"{good} || {good}",
        f"array[{good}]",
        f"array[{good}, {good}]",
        f"array_fill(({good})[1], array[1], array[7])",
        f"array_fill(({good})[1], array[1], array[-2147483648])",
        f"array_fill(({good})[1], array[11000])",
        *several,
    ]


def documents(base: object) -> Iterator[str]:
    """A JSON document with each of its fields replaced by what does not belong there."""

    def variants(value: object) -> Iterator[object]:
        yield from JSON_VALUES
        if isinstance(value, dict):
            for name in value:
                for other in variants(value[name]):
                    yield {**value, name: other}
            for name in value:
                yield {key: one for key, one in value.items() if key != name}
            yield {**value, "unknown": 1}
        elif isinstance(value, list) and value:
            for other in variants(value[0]):
                yield [other, *value[1:]]
            yield [*value, *value]

    for document in variants(base):
        text = json.dumps(document).replace("'", "''")
        yield f"'{text}'::jsonb"


@pytest.fixture
async def stage(db, engine, make) -> Stage:
    policy = {"retry_policy": {"max_retries": 3}}
    states = {
        state: (await make.execution(state)).id
        for state in ("waiting", "delayed", "completed", "failed", "expired_lease", "blocked",
                      "suspended",
                      "asleep", "awaiting", "retried", "revoked", "interrupted")
    }  # fmt: skip
    # Behind those that let time pass.
    leased = await make.execution("leased")
    flow = await make_flow(db, nodes=["a", "b", "c"], edges=[("a", "b"), ("b", "c")])
    edge = (await flow.edges())[0]
    loose = await make_flow(db, nodes=["a", "b"], edges=[("a", "b")])
    await loose.complete("a")
    waitpoint, _ = await engine.waitpoint(leased.lease)
    route = await engine.register()
    us = {"worker": "w", "instance": "w-1"}
    granted = await engine.grant((await engine.submit(policy=policy)).id, **us)
    granted_resume = await engine.grant(states["interrupted"], **us)
    granted_reclaim = await engine.grant_reclaim(states["revoked"], **us)
    worker = await db.fetchval(
        "select outcome from ff.register_worker('test', 'w', 'w-1', null, null, '{}', '1 min')"
    )
    assert worker == "registered"
    declared = await db.fetchval(
        "select outcome from ff.declare_schedules('test', 'shop', '{1}', p_names => '{tick}', "
        "p_schedule_ids => array[gen_random_uuid()], p_route_ids => array[$1::bigint], "
        "p_crons => '{* * * * *}', p_time_zones => '{UTC}', p_misfires => '{once}', "
        "p_next_ats => array[now() - interval '1 min'])",
        route,
    )
    assert declared == "declared", declared
    await db.execute("select ff.create_quota('test', 'api', p_concurrency => 5)")
    await db.execute("select ff.create_budget('test', 'monthly', '', '{tokens}', '{100}')")
    await db.execute("select ff.register_tasks('test', '{1}', '{tests.work}')")
    cursor = await db.fetchval("select ff.open_cursor(0::smallint)")
    holder = uuid4()
    for statement in (
        "select ff.lease_subscription('test', 'billing', $1, 'me', '1 h', p_cursor => $2)",
        "select ff.add_webhook('test', 'crm', $1, 'https://x.example/', 'x.example:443', $2)",
    ):
        await db.execute(statement, holder, cursor)
    await db.execute("select ff.lease_webhook('test', 'crm', $1, 'me', '1 h')", holder)
    lease = leased.lease
    assert lease is not None
    token = uuid4()
    await db.execute(
        r"select ff.create_api_token('test', $1, decode(repeat('cd', 32), 'hex'), 'ffp_12345678',"
        " 'ada', '{read}')",
        token,
    )
    asked = await db.fetchval(
        "select outcome from ff.create_approval(0::smallint, 'test', $1, $2, $3, $4, $5,"
        " array[$6::uuid], '{ada}', 'Ship?', null, null, 1, 1)",
        *(lease.execution_id, lease.lease_id, lease.epoch, lease.attempt_id, uuid4(), uuid4()),
    )
    assert asked == "created", asked

    def literal(value: object) -> str:
        return f"'{value}'"

    def key(value: bytes) -> str:
        return rf"'\x{value.hex()}'"

    options = {
        "delayed_until": None, "deadline_ms": 5000, "deadline_at": None, "policy": policy,
        "max_reclaims": 3, "tags": {"a.b": "c"}, "creator": "me", "key": "k",
        "key_fingerprint": "00", "key_scope": "window", "key_window_ms": 1000,
        "parent_id": str(lease.execution_id), "with_parent": True, "trace_context": "{}",
        "task_version": "1",
    }  # fmt: skip
    item = {
        "execution_id": str(new_id()), "route_id": route, "payload": {"a": 1},
        "payload_encoding": "json", "priority": 3, "delay_ms": 5, **options,
    }  # fmt: skip
    node = {"execution_id": str(new_id()), "name": "n", "route_id": route, "payload": {"a": 1},
            "priority": 3, "policy": policy, "tags": {"a.b": "c"}}  # fmt: skip
    other = {"execution_id": str(new_id()), "name": "m", "route_id": route}
    graph = {
        "flow_id": str(new_id()), "flow_kind": "chain", "tags": {"a.b": "c"}, "creator": "me",
        "nodes": [node, other],
        "edges": [{"from": 0, "to": 1, "group": 0, "data_passing_ref": "r"}],
        "groups": [
            {"node": 1, "group": 0, "policy": {"kind": "any_of", "on_satisfied": "let_run"}}
        ],
    }  # fmt: skip
    gates = [
        {"kind": "quota", "name": "q", "key": "k", "concurrency": 2, "rate": 3,
         "rate_window_ms": 1000, "overflow": "queue"},
        {"kind": "budget", "name": "b", "key": "k", "limits": {"tokens": {"hard": 9, "soft": 5}},
         "period": "day", "zone": "UTC", "on_exceed": "fail"},
    ]  # fmt: skip
    limits = [{"kind": "quota", "name": "q", "is_keyed": True, "argument": "tenant"}]
    usage = {"tokens": 1}

    usual = {
        "p_partition_key": "0",
        "p_namespace": "'test'",
        "p_execution_id": literal(lease.execution_id),
        "p_lease_id": literal(lease.lease_id),
        "p_epoch": str(lease.epoch),
        "p_attempt_id": literal(lease.attempt_id),
        "p_execution_ids": f"array['{lease.execution_id}']",
        "p_lease_ids": f"array['{lease.lease_id}']",
        "p_epochs": f"array[{lease.epoch}]",
        "p_attempt_ids": f"array['{lease.attempt_id}']",
        "p_lease_ttl": "'30 s'",
        "p_grant_ttl": "'10 s'",
        "p_liveness_ttl": "'1 min'",
        "p_worker_id": "'w'",
        "p_worker_instance_id": "'w-1'",
        "p_claim_id": literal(uuid4()),
        "p_call_id": literal(uuid4()),
        "p_capabilities": "'{gpu}'",
        "p_flow_id": literal(flow.id),
        "p_edge_id": literal(edge["edge_id"]),
        "p_upstream_id": literal(edge["upstream_id"]),
        "p_downstream_id": literal(edge["downstream_id"]),
        "p_limit": "10",
        "p_tags": """'{"a.b": "c"}'""",
        "p_lanes": "'{default}'",
        "p_tasks": "'{tests.work}'",
        "p_results": r"array['\x31'::bytea]",
        "p_classes": "'{transient}'",
        "p_reasons": "'{why}'",
        "p_names": "'{load}'",
        "p_occurrences": "'{0}'",
        "p_positions": "'{0}'",
        "p_are_sequential": "'{true}'",
        "p_kinds": "'{step}'",
        "p_values": r"array['\x31'::bytea]",
        "p_route_ids": f"array[{route}]",
        "p_payloads": r"array['\x31'::bytea]",
        "p_app": "'shop'",
        "p_name": "'tick'",
        "p_version": "'{1}'",
        "p_targets": f"array['{states['waiting']}']",
        "p_cursor": literal(cursor),
        "p_lane": "'default'",
        "p_flow_kind": "'chain'",
        "p_policy": "'any_of'",
        "p_login": "'pg_monitor'",
        "p_are_alone": "'{true}'",
        "p_on_satisfied": "'let_run'",
        "p_reason": "'why'",
        "p_blocking_reason": "'waiting_for_quota'",
        "p_priority": "5",
        "p_key": key(granted.key),
        "p_is_paused": "true",
        "p_items": f"'{json.dumps([item])}'",
        "p_flow": f"'{json.dumps(graph)}'",
        "p_quota": "'api'",
        "p_budget": "'monthly'",
        "p_dimensions": "'{tokens}'",
        "p_hard_limits": "'{50}'",
        "p_amounts": "'{1}'",
        "p_ticket_id": literal(uuid4()),
        "p_gates": literal(json.dumps(gates)),
        "p_task": "'tests.work'",
    }

    next_at = (
        "(select s.next_at from ff.schedule s "
        "where (s.namespace, s.app, s.name) = ('test', 'shop', 'tick'))"
    )

    def of(state: str) -> dict[str, str]:
        return {"p_execution_id": literal(states[state])}

    no_key = {"p_key": "''"}
    subscription = {
        "p_name": "'billing'", "p_holder_id": literal(holder), "p_epoch": "1",
        "p_holder_name": "'me'", "p_ttl": "'30 s'", "p_kinds": "'{completed}'",
    }  # fmt: skip
    webhook = {**subscription, "p_name": "'crm'"}
    own = {
        "lease_subscription": subscription,
        "ack_subscription": {**subscription, "p_ack_no": "1"},
        "release_subscription": subscription,
        "reset_subscription": subscription,
        "remove_subscription": subscription,
        "list_subscriptions": subscription,
        "add_webhook": {
            **webhook, "p_name": "'new'", "p_webhook_id": literal(uuid4()),
            "p_url": "'https://x.example/'", "p_host": "'x.example:443'",
        },
        "list_webhooks": webhook,
        "lease_webhook": webhook,
        "sign_webhook": {**webhook, "p_ids": "'{x}'", "p_bodies": r"array['\x31'::bytea]"},
        "fail_webhook": {**webhook, "p_ack_no": "1", "p_answer": "'HTTP 500'"},
        "enable_webhook": webhook,
        "read_lags": subscription,
        "add_execution_to_flow": of("waiting"),
        "block_execution_for_admission": of("waiting"),
        "cancel_flow_header": {"p_policy": "'cancel_all'"},
        "change_priority": of("waiting"),
        "claim_execution": {"p_execution_id": literal(granted.execution_id)},
        # One value for all items, or an array of values, not both.
        "complete_executions": dict.fromkeys(
            ("p_lease_id", "p_epoch", "p_attempt_id", "p_result"), "null"
        ),
        "issue_claim_grant": {**of("waiting"), "p_key": key(bytes(32))},
        "issue_reclaim_grant": {**of("expired_lease"), "p_key": key(bytes(32))},
        "issue_grant_and_claim": of("waiting"),
        "claim_resumed_execution": {**of("interrupted"), "p_key": key(granted_resume.key)},
        "delay_execution": {"p_delay": "'1 min'"},
        "report_progress": {"p_percent": "5", "p_message": "'half'"},
        "set_lane": {"p_state": "'paused'", "p_retention": "'1 day'"},
        "forget_schedule": {"p_name": "'gone'"},
        "reclaim_execution": {**of("revoked"), "p_key": key(granted_reclaim.key)},
        "replay_execution": of("completed"),
        "retry_execution": of("delayed"),
        "resume_execution": of("suspended"),
        "create_waitpoint": {"p_waitpoint_id": literal(uuid4()), "p_key": "'payment'"},
        "close_waitpoint": {"p_waitpoint_id": literal(waitpoint)},
        "register_signal_schemas": {"p_documents": "array['{}'::jsonb]"},
        "create_approval": {
            "p_approval_id": literal(uuid4()), "p_waitpoint_ids": f"array['{uuid4()}'::uuid]",
            "p_approvers": "'{ada}'", "p_need": "1", "p_deny": "1", "p_question": "'Ship?'",
            "p_details": r"'\x31'::bytea", "p_details_encoding": "'json'",
        },
        "deliver_approval_signal": {
            "p_decision": "'approved'", "p_actor": "'ada'", "p_signal_id": literal(new_id()),
        },
        "read_signals": {"p_cursor": "null"},
        "read_waitpoint_token": {"p_waitpoint_id": literal(waitpoint)},
        "rotate_hmac_key": {"p_kid": "'k2'", "p_grace": "'1 day'"},
        "seed_hmac_key": {"p_kid": "'k3'", "p_secret": f"'{'ab' * 32}'"},
        "ask_waits": {
            "p_conditions": """array['{"signal": "approve"}'::jsonb]""", "p_timeouts": "'{1 h}'",
            "p_takes": "'{false}'",
        },
        "suspend_execution": {
            "p_suspension_id": literal(uuid4()), "p_k": "1", "p_reason_code": "'manual_pause'",
            "p_on_timeout": "'fail'",
        },
        "deliver_signals": {"p_signal_ids": f"array['{new_id()}']"},
        "deliver_signal_json": {
            "p_signal": literal(json.dumps({
                "execution_id": str(lease.execution_id), "signal_id": str(new_id()),
                "name": "approve", "payload_base64": "MQ==",
            })) + "::jsonb",
        },
        "unblock_execution": of("blocked"),
        "read_results": {"p_execution_ids": f"array['{states['completed']}']"},
        "continue_execution": {"p_payload": r"'\x31'::bytea"},
        "find_ids": {"p_text": literal(str(lease.execution_id))},
        "list_unserved_routes": {"p_worker_instance_ids": "'{w-1}'"},
        "record_step_json": {
            "p_step": literal(json.dumps({
                "execution_id": str(lease.execution_id), "lease_id": str(lease.lease_id),
                "epoch": lease.epoch, "attempt_id": str(lease.attempt_id), "name": "load",
                "occurrence": 0, "position": 0, "is_sequential": True, "follows": -1,
                "value_base64": "MQ==",
            })) + "::jsonb",
        },
        "list_steps": {"p_execution_ids": f"array['{states['asleep']}']"},
        "read_inputs": {"p_execution_ids": f"array['{flow['b']}']"},
        "submit_executions": {
            "p_execution_ids": f"array['{new_id()}']",
            "p_options": f"array[{literal(json.dumps(options))}::jsonb]",
        },
        "create_flow": {"p_flow_id": literal(new_id())},
        "list_executions": {"p_cursor": "null", "p_states": "'{active}'"},
        "count_executions": {"p_cursor": "null", "p_states": "'{active}'"},
        "read_events": {"p_execution_ids": "null", "p_kinds": "'{claimed}'"},
        "list_events": {"p_version": "1"},
        "register_routes": {
            "p_namespaces": "'{test}'", "p_capabilities": "'{gpu}'",
        },
        "append_frames": {
            "p_bases": "'{0}'", "p_positions": "'{0}'", "p_modes": "'{durable}'",
            "p_first_nos": "'{0}'", "p_counts": "'{1}'", "p_kinds": "'{stdout}'",
            "p_encodings": "'{text}'",
        },
        "read_streams": {"p_after_ms": "'{0}'", "p_after_seqs": "'{0}'"},
        "create_api_token": {
            "p_token_id": literal(uuid4()), "p_token_hash": rf"'\x{'ab' * 32}'::bytea",
            "p_prefix": "'ffp_abcdefgh'", "p_name": "'ada'", "p_scopes": "'{read}'",
        },
        "revoke_api_token": {"p_token_id": literal(token)},
        "use_api_token": {"p_token_hash": rf"'\x{'cd' * 32}'::bytea"},
        "heartbeat_workers": {
            "p_namespaces": "'{test}'", "p_worker_instance_ids": "'{w-1}'",
        },
        "declare_schedules": {
            "p_version": "'{2}'", "p_names": "'{tick}'", "p_schedule_ids": f"array['{uuid4()}']",
            "p_crons": "'{* * * * *}'", "p_time_zones": "'{UTC}'", "p_misfires": "'{once}'",
            "p_next_ats": "array[now()]",
            "p_options": """array['{"creator": "ada", "tags": {"a.b": "c"}}'::jsonb]""",
        },
        "declare_hooks": {
            "p_version": "'{2}'", "p_known": "'{work}'", "p_tasks": "'{work}'",
            "p_names": "'{tests.work}'", "p_kinds": "'{end}'", "p_priorities": "'{0}'",
            "p_options": """array['{"tags": {"a.b": "c"}}'::jsonb]""",
        },
        "fire_schedule": {
            "p_rule_no": "0",
            "p_expected_next_at": next_at,
            "p_fire_ats": f"array[{next_at}]",
            "p_next_at": "now() + interval '1 min'",
            "p_execution_ids": f"array['{new_id()}']",
        },
        "run_schedule": {"p_execution_id": literal(new_id())},
        "set_edge_group_policy": {"p_downstream_id": literal(flow["c"]), "p_group_no": "1"},
        "stage_dependency_edge": {
            "p_edge_id": literal(uuid4()), "p_upstream_id": literal(flow["a"]),
            "p_downstream_id": literal(flow["c"]), "p_expected_graph_revision": "5",
        },
        "list_edges": {"p_upstream_id": "null", "p_downstream_id": "null"},
        "evaluate_flow_eligibility": {"p_execution_id": literal(flow["b"])},
        "promote_blocked_to_eligible": {"p_execution_id": literal(loose["b"])},
        "find_due": {"p_kinds": "'{timer}'"},
        "read_minutes": {"p_since": "now() - interval '1 h'"},
        "read_waitpoint": {"p_token": "'ffw_x'"},
        "set_lane_options": {
            "p_options": """'{"concurrency": 5}'::jsonb""", "p_is_declared": "false",
        },
        "raise_partitions": {
            "p_partitions": "(select i.partitions from ff.installation i limit 1)",
        },
        "register_tasks": {
            "p_results": "null", "p_limits": f"array[{literal(json.dumps(limits))}::jsonb]",
        },
        "create_quota": {"p_quota": "'new'", "p_concurrency": "5"},
        "set_quota": {"p_key": "null", "p_concurrency": "7"},
        "lift_quota": {"p_key": "null"},
        "list_gates": {"p_key": "null"},
        "check_admission": {"p_key": "null"},
        "release_admission": {"p_key": "null"},
        "create_budget": {**no_key, "p_budget": "'new'"},
        "raise_budget": no_key,
        "lift_budget": no_key,
        "reset_budget": no_key,
        "get_budget_status": no_key,
        "list_budgets": {"p_key": "null"},
        "record_spend": no_key,
        "release_budget": no_key,
        "report_usage_admin": no_key,
        "report_usage": {"p_usages": f"array[{literal(json.dumps(usage))}::jsonb]"},
        "ack_cancel_member": {"p_execution_id": literal(flow["b"])},
    }  # fmt: skip
    await db.execute(TRIED)
    await db.execute(ANSWERED)
    more = {
        "p_items": list(documents([item])),
        "p_flow": list(documents(graph)),
        "p_options": [f"array[{document}]" for document in documents(options)],
        "set_lane_options.p_options": list(
            documents({"concurrency": 5, "rate": 9, "rate_window_ms": 1000, "weights": {"a": 2}})
        ),
        "p_gates": [*documents(gates), *documents(gates[::-1])],
        "p_limits": [f"array[{document}]" for document in documents(limits)],
        "p_usages": [f"array[{document}]" for document in documents(usage)],
    }
    return Stage(usual, own, more)


@dataclass(frozen=True)
class Call:
    function: str
    changed: tuple[str, ...]
    text: str
    is_heavy: bool


def calls_of(stage: Stage, function: asyncpg.Record) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The good arguments of a function, and what each may be replaced by."""
    name = function["name"]
    types = dict(zip(function["parameters"], function["types"], strict=True))
    good = {p: value for p, t in types.items() if (value := stage.good(name, p, t)) is not None}
    bad = {
        p: hostile(t, good.get(p)) + stage.documents.get(f"{name}.{p}", stage.documents.get(p, []))
        for p, t in types.items()
    }
    return good, bad


def call(function: str, good: dict[str, str], changes: dict[str, str]) -> Call:
    arguments = ", ".join(f"{name} => {value}" for name, value in {**good, **changes}.items())
    return Call(
        function,
        tuple(changes),
        f"select * from ff.{function}({arguments})",
        any(HEAVY.search(value) for value in changes.values()),
    )


async def every_call(conn: asyncpg.Connection, stage: Stage) -> AsyncIterator[list[Call]]:
    """Every parameter with every value that is hostile to it: the calls of each in turn."""
    for function in await conn.fetch(FUNCTIONS):
        good, bad = calls_of(stage, function)
        for parameter, values in bad.items():
            yield [call(function["name"], good, {parameter: value}) for value in values]


async def foreign_errors(conn: asyncpg.Connection, calls: list[Call]) -> list[str]:
    """What came out that is not ours. Nothing that the calls did stays."""
    wrong = []
    for start in range(0, len(calls), 50):
        some = calls[start : start + 50]
        rows = await conn.fetch("select * from pg_temp.tried($1)", [one.text for one in some])
        wrong += [told(some[row["n"] - 1], row["state"], row["message"]) for row in rows]
    return wrong


def told(call: Call, state: str, message: str) -> str:
    text = re.sub(r"\s+", " ", call.text)
    return f"{state} {message[:200]} <- {', '.join(call.changed)} of {text[:1000]}"


def is_ours(state: str) -> bool:
    return state.startswith("WF") or state in AGAIN


async def wrong_lists(conn: asyncpg.Connection, stage: Stage) -> list[str]:
    """Calls with a list that counts from zero or has two dimensions: a function that reads items by
    their index refuses it, other functions answer as they answer to the plain list."""
    calls: list[tuple[str, str, Call]] = []
    for function in await conn.fetch(FUNCTIONS):
        good, _ = calls_of(stage, function)
        types = dict(zip(function["parameters"], function["types"], strict=True))
        name = function["name"]
        lists = [one for one in good if types[one].endswith("[]")]
        if lists:
            calls.append((name, "plain", call(name, good, {})))
        for parameter in lists:
            from_zero = f"array_fill(({good[parameter]})[1], array[1], array[0])"
            calls += [
                (name, parameter, call(name, good, {parameter: value}))
                for value in (from_zero, f"array[{good[parameter]}]")
            ]
    texts = [one.text for _, _, one in calls]
    found = await conn.fetchval("select pg_temp.answered($1)", texts)
    plain: dict[str, str] = {}
    wrong = []
    for (name, what, _), answer in zip(calls, found, strict=True):
        text = re.sub(r"whsec_[^)]*", "a new secret", answer)
        if what == "plain":
            plain[name] = text
            assert not text.startswith("WF"), name
        elif text not in (plain[name], "WF001"):
            wrong.append(f"{name}: {what}: {text} instead of {plain[name]}")
    assert len(plain) > 40
    return wrong


async def test_good_arguments_are_good_and_lists_count_from_one(conn, stage, clock):
    """Otherwise the hostile ones would be refused for a reason of the stage's."""
    calls = [
        call(function["name"], calls_of(stage, function)[0], {})
        for function in await conn.fetch(FUNCTIONS)
    ]
    rows = await conn.fetch("select * from pg_temp.tried($1, '.')", [one.text for one in calls])
    assert [told(calls[row["n"] - 1], row["state"], row["message"]) for row in rows] == []
    await clock.freeze()
    wrong = await wrong_lists(conn, stage)
    assert wrong == [], "\n".join(wrong)


async def test_no_function_lets_a_foreign_error_out(conn, stage):
    dice = random.Random(SEED)
    calls: list[Call] = []
    heavy: list[Call] = []
    async for some in every_call(conn, stage):
        light = [one for one in some if not one.is_heavy]
        calls += dice.sample(light, min(len(light), QUICK_LIGHT))
        heavy += [one for one in some if one.is_heavy]
    calls += dice.sample(heavy, QUICK_HEAVY)
    wrong = await foreign_errors(conn, calls)
    assert wrong == [], "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_function_lets_a_foreign_error_out_whatever_it_is_given(conn, stage, sized):
    calls = [one async for some in every_call(conn, stage) for one in some]
    calls = random.Random(SEED).sample(calls, len(calls) // sized(1, short=8))
    wrong = await foreign_errors(conn, calls)
    assert wrong == [], "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_what_hostile_calls_change_contradicts_nothing(db, conn, stage, sized):
    """Two arguments at a time, and what they did stays."""
    dice = random.Random(SEED)
    functions = await conn.fetch(FUNCTIONS)
    wrong = []
    for number in range(sized(LONG_CALLS, short=1_500)):
        function = dice.choice(functions)
        good, bad = calls_of(stage, function)
        names = dice.sample(sorted(bad), min(2, len(bad)))
        one = call(function["name"], good, {name: dice.choice(bad[name]) for name in names})
        try:
            await conn.execute(one.text)
        except asyncpg.PostgresError as error:
            if not is_ours(error.sqlstate):
                wrong.append(told(one, error.sqlstate, str(error)))
        if number % 500 == 499:
            assert await db.broken_invariants() == [], one.text[:2000]
    assert wrong == [], "\n".join(wrong)
