--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: ff; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA ff;


--
-- Name: attempt_lifecycle; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.attempt_lifecycle AS ENUM (
    'created',
    'started',
    'suspended',
    'ended_success',
    'ended_failure',
    'ended_cancelled',
    'interrupted_reclaimed'
);


--
-- Name: attempt_state; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.attempt_state AS ENUM (
    'none',
    'pending_first_attempt',
    'running_attempt',
    'attempt_interrupted',
    'pending_retry_attempt',
    'pending_replay_attempt',
    'attempt_terminal'
);


--
-- Name: attempt_type; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.attempt_type AS ENUM (
    'initial',
    'retry',
    'reclaim',
    'replay',
    'fallback'
);


--
-- Name: blocking_reason; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.blocking_reason AS ENUM (
    'none',
    'waiting_for_worker',
    'waiting_for_retry_backoff',
    'waiting_for_resume_delay',
    'waiting_for_delay',
    'waiting_for_signal',
    'waiting_for_approval',
    'waiting_for_callback',
    'waiting_for_tool_result',
    'waiting_for_children',
    'waiting_for_budget',
    'waiting_for_quota',
    'waiting_for_capable_worker',
    'waiting_for_locality_match',
    'paused_by_operator',
    'paused_by_policy',
    'paused_by_flow_cancel'
);


--
-- Name: candidate; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.candidate AS (
	is_open boolean,
	is_over boolean,
	has_past boolean
);


--
-- Name: cause; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.cause AS ENUM (
    'submit',
    'apply_dependency',
    'satisfy_dependencies',
    'skip',
    'block',
    'unblock',
    'promote',
    'claim',
    'resume',
    'change_priority',
    'complete',
    'schedule_retry',
    'fail',
    'delay',
    'release',
    'wait_children',
    'wait_for_runs',
    'suspend',
    'wake',
    'expire_lease',
    'revoke_lease',
    'reclaim',
    'exceed_reclaims',
    'cancel',
    'expire',
    'time_out',
    'time_out_suspension',
    'escalate',
    'replay',
    'hold'
);


--
-- Name: eligibility; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.eligibility AS ENUM (
    'eligible_now',
    'not_eligible_until_time',
    'blocked_by_dependencies',
    'blocked_by_budget',
    'blocked_by_quota',
    'blocked_by_route',
    'blocked_by_lane_state',
    'blocked_by_operator',
    'not_applicable'
);


--
-- Name: event_kind; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.event_kind AS ENUM (
    'submitted',
    'claimed',
    'resumed',
    'reclaimed',
    'released',
    'lease_expired',
    'lease_revoked',
    'completed',
    'failed',
    'retry_scheduled',
    'delayed',
    'waiting',
    'suspended',
    'woken',
    'escalated',
    'held',
    'cancelled',
    'expired',
    'skipped',
    'priority_changed',
    'replayed',
    'flow_cancel_requested',
    'blocked',
    'unblocked',
    'promoted'
);


--
-- Name: failure_class; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.failure_class AS ENUM (
    'transient',
    'permanent',
    'infra_crash',
    'timeout',
    'cancelled'
);


--
-- Name: grant_kind; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.grant_kind AS ENUM (
    'claim',
    'resume',
    'reclaim'
);


--
-- Name: key_scope; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.key_scope AS ENUM (
    'window',
    'unfinished'
);


--
-- Name: lane_state; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.lane_state AS ENUM (
    'active',
    'paused',
    'draining',
    'disabled'
);


--
-- Name: lease_end; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.lease_end AS ENUM (
    'complete',
    'fail',
    'release',
    'delay',
    'wait_children',
    'wait_for_runs',
    'suspend',
    'hold',
    'cancel',
    'skip',
    'expire',
    'time_out',
    'expire_lease',
    'revoke_lease'
);


--
-- Name: misfire; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.misfire AS ENUM (
    'once',
    'skip',
    'all'
);


--
-- Name: outcome; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.outcome AS ENUM (
    'none',
    'success',
    'failed',
    'cancelled',
    'expired',
    'skipped'
);


--
-- Name: ownership; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.ownership AS ENUM (
    'unowned',
    'leased',
    'lease_expired_reclaimable',
    'lease_revoked'
);


--
-- Name: phase; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.phase AS ENUM (
    'submitted',
    'runnable',
    'active',
    'suspended',
    'terminal'
);


--
-- Name: public_state; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.public_state AS ENUM (
    'waiting',
    'delayed',
    'rate_limited',
    'waiting_children',
    'active',
    'suspended',
    'resumable',
    'completed',
    'failed',
    'cancelled',
    'expired',
    'skipped'
);


--
-- Name: schedule_state; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.schedule_state AS ENUM (
    'active',
    'paused',
    'orphaned'
);


--
-- Name: step_kind; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.step_kind AS ENUM (
    'step',
    'failure',
    'sleep',
    'now'
);


--
-- Name: verdict; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.verdict AS (
	item integer,
	execution_id uuid,
	word text,
	until_at timestamp with time zone,
	attempt_index integer,
	detail jsonb
);


--
-- Name: worker_event_kind; Type: TYPE; Schema: ff; Owner: -
--

CREATE TYPE ff.worker_event_kind AS ENUM (
    'registered',
    'marked_dead',
    'ttl_swept'
);


--
-- Name: _backoff(jsonb, integer, double precision); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._backoff(p_backoff jsonb, p_retry_count integer, p_chance double precision) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
declare
  v_initial double precision := coalesce((p_backoff ->> 'initial_delay_ms')::double precision, 1000);
  v_max     double precision := coalesce((p_backoff ->> 'max_delay_ms')::double precision, 60000);
  v_factor  double precision := coalesce((p_backoff ->> 'multiplier')::double precision, 2);
  v_delay   double precision;
begin
  v_delay := case coalesce(p_backoff ->> 'type', 'exponential')
    when 'fixed' then coalesce((p_backoff ->> 'delay_ms')::double precision, 1000)
    when 'exponential' then
      -- in logarithms, because a power can leave the range of a double
      case when v_initial <= 0 then 0
           when ln(v_initial) + p_retry_count * ln(greatest(v_factor, 1e-9)) >= ln(greatest(v_max, 1))
             then v_max
           else least(v_initial * power(v_factor, p_retry_count), v_max) end
    else 1000
  end;
  if coalesce((p_backoff ->> 'jitter')::boolean, false) then
    v_delay := v_delay * (0.5 + 0.5 * p_chance);
  end if;
  return interval '1 millisecond' * v_delay;
end;
$$;


--
-- Name: _candidates(smallint, bigint[], smallint[], boolean, smallint, smallint, timestamp with time zone, uuid, integer, text, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._candidates(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_worker_id text, p_now timestamp with time zone) RETURNS TABLE(rank smallint, turn smallint, created_at timestamp with time zone, execution_id uuid)
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  -- Twice a route's fair part of the window, so that most routes need no second look.
  v_share constant integer := case cardinality(p_routes)
    when 1 then p_window
    else 2 * ((p_window - 1) / cardinality(p_routes) + 1) + 1 end;
begin
  return query
  with route as materialized (
    select p_partition_key as pk, u.route_id, u.turn, p_from_rank as from_rank,
           case when u.turn = p_from_turn then p_from_at
                when u.turn > p_from_turn then '-infinity'::timestamptz
                else 'infinity'::timestamptz end as from_at,
           p_from_id as from_id
    from unnest(p_routes, p_turns) u(route_id, turn)
    offset 0
  ),
  head as materialized (
    select r.pk, r.route_id, r.turn, h.rank, h.created_at, h.execution_id, h.nth
    from route r
    cross join lateral (
      select e.rank, e.created_at, e.execution_id, row_number() over () as nth
      from (
        select x.rank, x.created_at, x.execution_id
        from ff.execution x
        where x.partition_key = r.pk and x.route_id = r.route_id
          and x.phase = 'runnable' and x.eligibility = 'eligible_now'
          and (x.rank, x.created_at, x.execution_id) > (r.from_rank, r.from_at, r.from_id)
          and case when p_worker_id is null then true else not exists (
                select from ff.grant g
                where g.partition_key = x.partition_key and g.execution_id = x.execution_id
                  and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                        then true else false end) end
        order by x.rank, x.created_at, x.execution_id
        limit v_share
      ) e
    ) h
  ),
  -- Where the window ends, if the heads fill it: nothing behind this position is in it.
  bound as materialized (
    select h.rank, h.turn, h.created_at, h.execution_id
    from head h
    order by h.rank, h.turn, h.created_at, h.execution_id
    offset p_window - 1 limit 1
  )
  select c.rank, c.turn, c.created_at, c.execution_id
  from (
    select h.rank, h.turn, h.created_at, h.execution_id from head h
    union all
    -- A route whose heads all lie before the end may have more there.
    select m.rank, h.turn, m.created_at, m.execution_id
    from head h
    left join bound b on true
    cross join lateral (
      select e.rank, e.created_at, e.execution_id
      from ff.execution e
      where e.partition_key = h.pk and e.route_id = h.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
        and (e.rank, e.created_at, e.execution_id) > (h.rank, h.created_at, h.execution_id)
        and (e.rank, e.created_at, e.execution_id) <= (
              coalesce(b.rank, 9001::smallint),
              case when b.turn is null or h.turn < b.turn then 'infinity'::timestamptz
                   when h.turn > b.turn then '-infinity'::timestamptz
                   else b.created_at end,
              coalesce(b.execution_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
        and case when p_worker_id is null then true else not exists (
              select from ff.grant g
              where g.partition_key = e.partition_key and g.execution_id = e.execution_id
                and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                      then true else false end) end
      order by e.rank, e.created_at, e.execution_id
      limit p_window
    ) m
    where h.nth = v_share and cardinality(p_routes) > 1
      and (b.rank is null or (h.rank, h.turn, h.created_at, h.execution_id)
                             < (b.rank, b.turn, b.created_at, b.execution_id))
    union all
    select m.rank, r.turn, m.created_at, m.execution_id
    from route r
    cross join lateral (
      select e.rank, e.created_at, e.execution_id
      from ff.execution e
      where e.partition_key = r.pk and e.route_id = r.route_id
        and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
        and e.reclaim_at is null
        and (e.rank, e.created_at, e.execution_id) > (r.from_rank, r.from_at, r.from_id)
        and case when p_worker_id is null then true else not exists (
              select from ff.grant g
              where g.partition_key = e.partition_key and g.execution_id = e.execution_id
                and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                      then true else false end) end
      order by e.rank, e.created_at, e.execution_id
      limit p_window
    ) m
    where p_reclaiming
  ) c
  order by c.rank, c.turn, c.created_at, c.execution_id
  limit p_window;
end;
$$;


--
-- Name: _check_batch(integer, integer[], boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_batch(p_size integer, p_sizes integer[], p_wait boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
begin
  if p_size is null or p_size not between 1 and 1000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_ids', 'problem', 'must hold 1 to 1000 items'));
  end if;
  if p_size <> any (p_sizes) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_ids', 'problem', 'arrays of one call must have the same length'));
  end if;
  if p_wait and p_size > 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'wait', 'problem', 'only a single item may wait for its row'));
  end if;
end;
$$;


--
-- Name: _check_claim(text, text, uuid, text[], integer, interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_claim(p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_capabilities text[], p_limit integer, p_lease_ttl interval) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $_$
declare
  v_field   text;
  v_problem text := 'must be 1 to 256 bytes without whitespace or control characters';
begin
  if p_worker_id is null or p_worker_id !~ '^[^\x01-\x20\x7f]+$'
     or octet_length(p_worker_id) > 256 then
    v_field := 'worker_id';
  elsif p_worker_instance_id is null or p_worker_instance_id !~ '^[^\x01-\x20\x7f]+$'
     or octet_length(p_worker_instance_id) > 256 then
    v_field := 'worker_instance_id';
  elsif p_claim_id is null then
    v_field := 'claim_id'; v_problem := 'must be a uuid made for this call';
  elsif p_capabilities is null or cardinality(p_capabilities) > 256
     or octet_length(array_to_string(p_capabilities, ',')) > 4096 then
    v_field := 'capabilities'; v_problem := 'must be at most 256 tokens and 4096 bytes';
  elsif array_position(p_capabilities, null) is not null
     or array_to_string(p_capabilities, '') ~ '[\x01-\x20\x7f,]'
     or array_position(p_capabilities, '') is not null then
    v_field := 'capabilities';
    v_problem := 'tokens must not be empty nor hold commas, whitespace or control characters';
  elsif p_limit is null or p_limit not between 1 and 1000 then
    v_field := 'limit'; v_problem := 'must be 1 to 1000';
  elsif p_lease_ttl is null or p_lease_ttl not between interval '1 second' and interval '1 day' then
    v_field := 'lease_ttl'; v_problem := 'must be between one second and one day';
  else
    return;
  end if;
  perform ff._refuse('WF001', 'invalid_input',
                     jsonb_build_object('field', v_field, 'problem', v_problem));
end;
$_$;


--
-- Name: _check_cursor(smallint, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_cursor(p_partition_key smallint, p_cursor text) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $_$
declare
  v_parts      text[] := string_to_array(p_cursor, ':');
  v_at         timestamptz;
  v_trimmed    text;
  v_last       xid8;
  v_unfinished xid8[];
  v_reason     text;
begin
  if p_cursor is null or octet_length(p_cursor) > 65536 or cardinality(v_parts) <> 11
     or p_cursor !~ ('^ff1:[0-9]{1,5}:[0-9a-f]{1,16}:[0-9A-F]{8}:[0-9]{1,18}:[0-9a-f,]*'
                     || ':[0-9]{1,18}:[0-9]{1,18}:[0-9a-f-]{0,36}:[0-9]{0,18}:[0-9a-f]{8}$')
     or right(p_cursor, 8) <> left(
          encode(sha256(convert_to(left(p_cursor, -9), 'UTF8')), 'hex'), 8) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'is not a cursor of ours; open one with open_cursor'));
  end if;
  if v_parts[2]::integer is distinct from p_partition_key then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'belongs to partition ' || v_parts[2]));
  end if;

  select m.value into v_trimmed
  from ff.meta m where m.name = 'trimmed_xid:' || p_partition_key;
  v_at := timestamptz 'epoch' + v_parts[8]::bigint * interval '1 microsecond';
  v_last := v_parts[5]::xid8;
  v_unfinished := array(
    select (v_parts[5]::bigint - ('x' || lpad(d.distance, 16, '0'))::bit(64)::bigint)::text::xid8
    from unnest(string_to_array(nullif(v_parts[6], ''), ',')) d(distance));
  v_reason := case
    when v_parts[3] <> (select to_hex(s.system_identifier) from pg_control_system() s)
      then 'another_system'
    when v_parts[4] <> left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
      then 'another_timeline'
    when v_trimmed <> v_parts[10] and (
        v_last < v_trimmed::xid8
        or exists (
          select from unnest(v_unfinished) u(xid)
          where u.xid <= v_trimmed::xid8
            and pg_visible_in_snapshot(u.xid, pg_current_snapshot())))
      then 'trimmed'
    when v_parts[7] <> '0' and (v_trimmed is null or v_last > v_trimmed::xid8)
      and not exists (
        select from ff.event e
        where e.partition_key = p_partition_key and e.xid = v_last
          and e.event_id = v_parts[7]::bigint and e.execution_id = v_parts[9]::uuid
          and e.occurred_at = v_at)
      then 'history_lost' end;
  if v_reason is not null then
    -- What this cursor has not delivered may be older than its anchor: long transactions.
    v_at := least(
      v_at,
      (select min(e.occurred_at) from ff.event e
       where e.partition_key = p_partition_key and e.xid > v_last),
      (select min(e.occurred_at) from ff.event e
       where e.partition_key = p_partition_key and e.xid = any (v_unfinished)));
    perform ff._refuse('WF403', 'cursor_expired', jsonb_build_object(
      'reason', v_reason, 'resume_from', v_at - interval '1 minute',
      'hint', 'open a cursor at resume_from; some events will be seen twice'));
  end if;
  v_parts[10] := v_trimmed;
  return v_parts;
end;
$_$;


--
-- Name: _check_grant(uuid, bytea, interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_grant(p_execution_id uuid, p_key bytea, p_grant_ttl interval DEFAULT '00:00:01'::interval) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
declare
  v_field   text;
  v_problem text;
begin
  if p_execution_id is null then
    v_field := 'execution_id'; v_problem := 'must be the id of an execution';
  elsif p_key is null or octet_length(p_key) <> 32 then
    v_field := 'key'; v_problem := 'must be 32 random bytes made for this grant';
  elsif p_grant_ttl is null
     or p_grant_ttl not between interval '1 millisecond' and interval '1 minute' then
    v_field := 'grant_ttl'; v_problem := 'must be between one millisecond and one minute';
  else
    return;
  end if;
  perform ff._refuse('WF001', 'invalid_input',
                     jsonb_build_object('field', v_field, 'problem', v_problem));
end;
$$;


--
-- Name: _check_lane(bigint, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_lane(p_route_id bigint, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO ''
    AS $$
declare
  v_lane ff.lane;
begin
  select l.* into v_lane
  from ff.route r
  join ff.lane l on l.lane = r.lane
  where r.route_id = p_route_id
    and not (l.state in ('active', 'draining') or coalesce(l.resumes_at <= p_now, false));
  if found then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_strip_nulls(jsonb_build_object(
      'lane', v_lane.lane, 'lane_state', v_lane.state, 'resumes_at', v_lane.resumes_at,
      'reason', v_lane.reason)));
  end if;
end;
$$;


--
-- Name: _check_limit(integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_limit(p_limit integer) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'limit', 'problem', 'must be 1 to 10000'));
  end if;
end;
$$;


--
-- Name: _check_new_lease(smallint, uuid, uuid, uuid[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_new_lease(p_partition_key smallint, p_execution_id uuid, p_claim_id uuid, p_used_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
begin
  if p_claim_id = any (p_used_ids) or exists (
       select from ff.attempt t
       where t.partition_key = p_partition_key and t.execution_id = p_execution_id
         and case when p_claim_id in (t.last_lease_id, t.attempt_id) then true else false end) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'claim_id', 'problem', 'was used for a lease that has ended; make a new one'));
  end if;
end;
$$;


--
-- Name: _check_words(text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_words(p_actor text, p_reason text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
declare
  v_field constant text := case
    when octet_length(p_actor) > 256 or p_actor ~ '[\x01-\x1f\x7f]' then 'actor'
    when octet_length(p_reason) > 256 or p_reason ~ '[\x01-\x1f\x7f]' then 'reason' end;
begin
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_field, 'problem', 'must be at most 256 bytes without control characters'));
  end if;
end;
$$;


--
-- Name: _check_worker(text, text, text, text[], text[], text[], interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._check_worker(p_namespace text, p_worker_id text, p_worker_instance_id text, p_lanes text[], p_tasks text[], p_capabilities text[], p_liveness_ttl interval) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $_$
declare
  v_field   text;
  v_problem text;
begin
  -- a worker is named as it is when it claims
  perform ff._check_claim(p_worker_id, p_worker_instance_id,
                          '00000000-0000-0000-0000-000000000000', p_capabilities, 1,
                          interval '1 second');
  if p_namespace is null or octet_length(p_namespace) > 256 or p_namespace ~ '[\x01-\x20\x7f]' then
    v_field := 'namespace';
    v_problem := 'must be at most 256 bytes without whitespace or control characters; '
                 || 'an empty one means all';
  elsif cardinality(p_lanes) > 1000 or exists (
      select from unnest(p_lanes) u(lane) where u.lane is null or u.lane !~ '^[ -~]{1,64}$') then
    v_field := 'lanes';
    v_problem := 'must be at most 1000 names of 1 to 64 printable ASCII characters, or null for all';
  elsif cardinality(p_tasks) > 10000 or exists (
      select from unnest(p_tasks) u(task)
      where u.task is null or u.task !~ '^[^\x01-\x20\x7f]+$' or octet_length(u.task) > 256) then
    v_field := 'tasks';
    v_problem := 'must be at most 10000 names of 1 to 256 bytes without whitespace or control '
                 || 'characters, or null for any';
  elsif p_liveness_ttl is null
     or p_liveness_ttl not between interval '1 second' and interval '7 days' then
    v_field := 'liveness_ttl'; v_problem := 'must be between one second and seven days';
  else
    return;
  end if;
  perform ff._refuse('WF001', 'invalid_input',
                     jsonb_build_object('field', v_field, 'problem', v_problem));
end;
$_$;


--
-- Name: _claimed(smallint, uuid[], uuid); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._claimed(p_partition_key smallint, p_execution_ids uuid[], p_claim_id uuid) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, claim_kind text, rank smallint, created_at timestamp with time zone, epoch bigint, attempt_index integer, attempt_id uuid, attempt_type text, lease_expires_at timestamp with time zone, attempt_deadline_at timestamp with time zone, deadline_at timestamp with time zone, retry_count integer, payload_encoding text, payload bytea, replay_count integer, trace_context text)
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
  return query
  select e.execution_id, e.namespace, r.lane, r.task,
         case e.cause when 'claim' then 'fresh' when 'resume' then 'resumed' else 'reclaimed' end,
         e.rank, e.created_at, e.epoch, e.attempt_index, e.attempt_id, e.attempt_type::text,
         e.lease_expires_at, e.attempt_deadline_at, e.deadline_at, e.retry_count,
         e.payload_encoding, coalesce(e.payload, b.payload), e.replay_count, b.trace_context
  from unnest(p_execution_ids) with ordinality i(execution_id, n)
  cross join lateral (
    select x.* from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = i.execution_id
      and x.lease_id = p_claim_id and x.ownership = 'leased'
    offset 0) e
  cross join lateral (
    select x.lane, x.task from ff.route x where x.route_id = e.route_id offset 0) r
  left join lateral (
    select x.payload, x.trace_context from ff.execution_body x
    where e.payload is null
      and x.partition_key = p_partition_key and x.execution_id = e.execution_id
    offset 0) b on true
  order by i.n;
end;
$$;


--
-- Name: _drop_granted(smallint, uuid[], text, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._drop_granted(p_partition_key smallint, p_execution_ids uuid[], p_worker_id text, p_now timestamp with time zone) RETURNS uuid[]
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
begin
  return array(
    select u.id from unnest(p_execution_ids) with ordinality u(id, n)
    where not exists (
      select from ff.grant g
      where g.partition_key = p_partition_key and g.execution_id = u.id
        and case when g.expires_at > p_now and g.worker_id <> p_worker_id
              then true else false end)
    order by u.n);
end;
$$;


--
-- Name: _end_executions(smallint, uuid[], ff.outcome, ff.cause, ff.event_kind, ff.lease_end, ff.attempt_lifecycle, timestamp with time zone, ff.failure_class, text, text, text, text, jsonb, boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._end_executions(p_partition_key smallint, p_execution_ids uuid[], p_outcome ff.outcome, p_cause ff.cause, p_kind ff.event_kind, p_lease_end ff.lease_end, p_ended_as ff.attempt_lifecycle, p_now timestamp with time zone, p_class ff.failure_class DEFAULT NULL::ff.failure_class, p_category text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, p_cancelled_by text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_detail jsonb DEFAULT NULL::jsonb, p_wake boolean DEFAULT true) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_xid     constant xid8 := pg_current_xact_id();
  v_losers  uuid[];
  v_idlers  uuid[];
  v_awaited uuid[];
  v_wakes   record;
begin
  with item as materialized (
    select p_partition_key as pk, u.execution_id, x.lease_id, x.worker_instance_id, x.ownership,
           x.wait_left, p_class is not null and x.attempt_ended_as is null as is_failing
    from unnest(p_execution_ids) u(execution_id)
    cross join lateral (
      -- as it was: the event tells which lease ended
      select e.lease_id, e.worker_instance_id, e.ownership, e.attempt_ended_as, e.wait_left
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.execution_id
      offset 0
    ) x
    offset 0
  ),
  ended as (
    update ff.execution e set
      phase = 'terminal',
      ownership = 'unowned',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      blocking_detail = null,
      blocked_at = null,
      outcome = p_outcome,
      attempt_state = case e.attempt_state when 'pending_first_attempt' then e.attempt_state
                                           else 'attempt_terminal' end,
      cause = p_cause,
      version = e.version + 1,
      epoch = e.epoch + (e.ownership = 'leased')::integer,
      last_lease_id = coalesce(e.lease_id, e.last_lease_id),
      last_lease_end = case when e.lease_id is null then e.last_lease_end
                            when e.ownership = 'leased' then p_lease_end
                            else 'expire_lease' end,
      last_lease_retry_at = case when e.lease_id is null then e.last_lease_retry_at end,
      last_worker_id = coalesce(e.worker_id, e.last_worker_id),
      last_worker_instance_id = coalesce(e.worker_instance_id, e.last_worker_instance_id),
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      delayed_until = null,
      reclaim_at = null,
      due_at = null,
      trim_at = greatest(p_now, e.transitioned_at) + e.retention,
      attempt_deadline_at = null,
      attempt_time_left = null,
      wait_left = null,
      attempt_ended_at = case when e.total_attempt_count > 0
        then coalesce(e.attempt_ended_at, greatest(p_now, e.transitioned_at)) end,
      attempt_ended_as = case when e.total_attempt_count > 0
        then coalesce(e.attempt_ended_as, p_ended_as) end,
      failure_class = case when i.is_failing then p_class else e.failure_class end,
      failure_category = case when i.is_failing then p_category else e.failure_category end,
      failure_reason = case when i.is_failing then p_reason else e.failure_reason end,
      failure_detail = case when not i.is_failing then e.failure_detail end,
      cancellation_reason = case when p_outcome = 'cancelled' then p_reason end,
      cancelled_by = p_cancelled_by,
      terminal_at = greatest(p_now, e.transitioned_at),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.total_attempt_count, e.epoch,
              e.route_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at,
              e.is_awaited, i.lease_id, i.worker_instance_id, i.ownership, i.wait_left
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, outcome, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, actor, detail)
    select p_partition_key, v_xid, d.execution_id, d.version, p_kind, p_outcome,
           case when d.total_attempt_count > 0 then d.attempt_index end,
           case when d.ownership = 'leased' or p_cause = 'exceed_reclaims' then d.lease_id end,
           d.epoch, d.worker_instance_id, d.route_id, d.flow_id, d.namespace, d.instance_tag,
           d.transitioned_at, p_actor, p_detail
    from ended d
  )
  select array_agg(d.execution_id) filter (where d.ownership = 'leased'),
         array_agg(d.execution_id) filter (where d.wait_left is not null),
         array_agg(d.execution_id) filter (where d.is_awaited)
    into v_losers, v_idlers, v_awaited
  from ended d;

  if v_idlers is not null then
    delete from ff.run_wait w
    using (select p_partition_key as pk, u.id from unnest(v_idlers) u(id) offset 0) i
    where w.partition_key = i.pk and w.waiter_id = i.id;
  end if;

  delete from ff.grant g
  using (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
  where g.partition_key = i.pk and g.execution_id = i.id;
  perform ff._hint_lost(p_partition_key, v_losers);
  perform pg_notify('ff_ended', p_partition_key::text);
  if not p_wake or v_awaited is null then
    return false;
  end if;
  v_wakes := ff._wake_runs(p_partition_key, v_awaited, p_now);
  return v_wakes.pending_ids is not null;
end;
$$;


--
-- Name: _exceed_reclaims(smallint, uuid[], timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._exceed_reclaims(p_partition_key smallint, p_execution_ids uuid[], p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_row record;
begin
  -- One by one: it is rare, and each says how often it happened.
  for v_row in
    select u.id, e.reclaim_count, e.max_reclaims
    from unnest(p_execution_ids) u(id)
    cross join lateral (
      select x.reclaim_count, x.max_reclaims from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.id
      offset 0) e
  loop
    continue when not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = v_row.id
        and case when e.phase = 'active' then true else false end);
    perform ff._end_executions(
      p_partition_key, array[v_row.id], 'failed', 'exceed_reclaims', 'failed', 'expire_lease',
      'interrupted_reclaimed', p_now,
      p_class => 'infra_crash',
      p_category => 'reclaim_cap_exceeded',
      p_reason => format('its workers vanished %s times; the limit is %s reclaims',
                         v_row.reclaim_count + 1, v_row.max_reclaims),
      p_detail => jsonb_build_object(
        'category', 'reclaim_cap_exceeded', 'reclaims', v_row.reclaim_count));
  end loop;
end;
$$;


--
-- Name: _expire_leases(smallint, uuid[], timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._expire_leases(p_partition_key smallint, p_execution_ids uuid[], p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_xid constant xid8 := pg_current_xact_id();
begin
  with item as materialized (
    select p_partition_key as partition_key, u.execution_id
    from unnest(p_execution_ids) u(execution_id)
    offset 0
  ),
  marked as (
    update ff.execution e set
      ownership = 'lease_expired_reclaimable',
      blocking_reason = 'waiting_for_worker',
      attempt_state = 'attempt_interrupted',
      cause = 'expire_lease',
      version = e.version + 1,
      attempt_paused_at = greatest(p_now, e.transitioned_at),
      attempt_pause_cause = 'lease_expired',
      reclaim_at = w.reclaim_at,
      due_at = least(w.reclaim_at, e.deadline_at),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from item i
    cross join lateral (
      select case when x.reclaim_count >= 2
               then p_now + least(interval '1 second' * power(2, least(x.reclaim_count - 2, 8)),
                                  interval '4 minutes') end as reclaim_at
      from ff.execution x
      where x.partition_key = i.partition_key and x.execution_id = i.execution_id
      offset 0
    ) w
    where e.partition_key = i.partition_key and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.lease_id, e.epoch, e.route_id,
              e.worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
  )
  insert into ff.event (
    partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
    worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
  select p_partition_key, v_xid, m.execution_id, m.version, 'lease_expired', m.attempt_index,
         m.lease_id, m.epoch, m.worker_instance_id, m.route_id, m.flow_id, m.namespace,
         m.instance_tag, m.transitioned_at
  from marked m;
end;
$$;


--
-- Name: _first_id_of(timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._first_id_of(p_at timestamp with time zone) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
begin
  return (lpad(to_hex(greatest((extract(epoch from p_at) * 1000)::bigint, 0)), 12, '0')
          || repeat('0', 20))::uuid;
end;
$$;


--
-- Name: _forget_steps(smallint, uuid, text, integer, boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._forget_steps(p_partition_key smallint, p_execution_id uuid, p_from_step text, p_from_occurrence integer, p_fresh boolean) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_position integer := 0;
  v_dropped  integer;
begin
  if not p_fresh and p_from_step is null then
    return '{}';
  end if;
  if p_from_step is not null then
    select s.position into v_position
    from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.name = p_from_step and s.occurrence = p_from_occurrence;
    if not found then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'from_step',
        'problem', format(
          'there is no step %s#%s; %s', p_from_step, p_from_occurrence, coalesce((
            select 'recorded are ' || string_agg(format('%s#%s', s.name, s.occurrence), ', '
                                                order by s.position, s.name, s.occurrence)
            from (
              select x.name, x.occurrence, x.position from ff.step x
              where x.partition_key = p_partition_key and x.execution_id = p_execution_id
              order by x.position, x.name, x.occurrence
              limit 50) s), 'none is recorded'))));
    end if;
  end if;
  with dropped as (
    delete from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.position >= v_position
    returning s.name
  )
  select count(*) into v_dropped from dropped;
  return jsonb_strip_nulls(jsonb_build_object(
    'from_step', p_from_step,
    'from_occurrence', case when p_from_step is not null then p_from_occurrence end,
    'fresh', case when p_fresh then true end,
    'dropped_steps', v_dropped));
end;
$$;


--
-- Name: _hint_lost(smallint, uuid[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._hint_lost(p_partition_key smallint, p_execution_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
begin
  if p_execution_ids is not null then
    perform pg_notify('ff_lost', concat_ws(' ', e.last_worker_instance_id, p_partition_key,
                                           u.execution_id, e.last_lease_id))
    from unnest(p_execution_ids) u(execution_id)
    cross join lateral (
      select x.last_worker_instance_id, x.last_lease_id from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.execution_id
      offset 0) e;
  end if;
end;
$$;


--
-- Name: _hint_ready(smallint, bigint[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._hint_ready(p_partition_key smallint, p_routes bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
begin
  if p_routes is not null then
    perform pg_notify('ff_ready', p_partition_key || ':' || l.lane)
    from (select distinct r.lane from ff.route r where r.route_id = any (p_routes)) l;
  end if;
end;
$$;


--
-- Name: _interrupt_executions(smallint, uuid[], ff.cause, ff.eligibility, ff.blocking_reason, ff.lease_end, ff.event_kind, text, timestamp with time zone, timestamp with time zone, text, jsonb, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._interrupt_executions(p_partition_key smallint, p_execution_ids uuid[], p_cause ff.cause, p_eligibility ff.eligibility, p_blocking_reason ff.blocking_reason, p_lease_end ff.lease_end, p_kind ff.event_kind, p_pause_cause text, p_now timestamp with time zone, p_until_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_blocking_detail text DEFAULT NULL::text, p_detail jsonb DEFAULT NULL::jsonb, p_wait_left integer DEFAULT NULL::integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_xid    constant xid8 := pg_current_xact_id();
  v_routes bigint[];
begin
  with item as materialized (
    select p_partition_key as pk, u.execution_id
    from unnest(p_execution_ids) u(execution_id)
    offset 0
  ),
  interrupted as (
    update ff.execution e set
      phase = 'runnable',
      ownership = 'unowned',
      eligibility = p_eligibility,
      blocking_reason = p_blocking_reason,
      blocking_detail = p_blocking_detail,
      blocked_at = case when p_eligibility = 'blocked_by_operator'
                     then greatest(p_now, e.transitioned_at) end,
      attempt_state = 'attempt_interrupted',
      cause = p_cause,
      version = e.version + 1,
      delayed_until = p_until_at,
      due_at = least(p_until_at, e.deadline_at),
      last_lease_id = e.lease_id,
      last_lease_end = p_lease_end,
      last_lease_retry_at = p_until_at,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      attempt_paused_at = greatest(p_now, e.transitioned_at),
      attempt_pause_cause = p_pause_cause,
      attempt_time_left = case when e.attempt_deadline_at is not null then greatest(
        e.attempt_deadline_at - greatest(p_now, e.transitioned_at), interval '0') end,
      attempt_deadline_at = null,
      wait_no = e.wait_no + (p_cause = 'wait_for_runs')::integer,
      wait_left = p_wait_left,
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch, e.route_id,
              e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
    select p_partition_key, v_xid, r.execution_id, r.version, p_kind, r.attempt_index,
           r.last_lease_id, r.epoch, r.last_worker_instance_id, r.route_id, r.flow_id, r.namespace,
           r.instance_tag, r.transitioned_at, p_detail
    from interrupted r
  )
  select array_agg(distinct r.route_id) into v_routes from interrupted r;

  if p_eligibility = 'eligible_now' then
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
end;
$$;


--
-- Name: _is_count(jsonb); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._is_count(p_value jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
begin
  if jsonb_typeof(p_value) is distinct from 'number' then
    return false;
  end if;
  return p_value::text::numeric between 0 and 1000000 and p_value::text::numeric % 1 = 0;
end;
$$;


--
-- Name: _is_milliseconds(jsonb, numeric); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._is_milliseconds(p_value jsonb, p_least numeric DEFAULT 1) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
begin
  if jsonb_typeof(p_value) is distinct from 'number' then
    return false;
  end if;
  return p_value::text::numeric between p_least and 3153600000000;
end;
$$;


--
-- Name: _item_problem(jsonb); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._item_problem(p_item jsonb) RETURNS text[]
    LANGUAGE plpgsql STABLE
    SET search_path TO ''
    AS $_$
declare
  v_field   text;
  v_problem text;
  v_value   jsonb;
begin
  if jsonb_typeof(p_item) <> 'object' then
    return array['items', 'must hold objects'];
  end if;
  begin
    for v_field, v_value in select e.key, e.value from jsonb_each(p_item) e order by e.key loop
      continue when jsonb_typeof(v_value) = 'null';
      case
        when v_field = 'payload' then
          if p_item ->> 'payload_base64' is not null then
            return array[v_field, 'must not be given together with payload_base64'];
          end if;
        when v_field in ('payload_encoding', 'creator', 'key', 'key_scope', 'trace_context',
                         'task_version') then
          v_problem := 'must be text';
          if jsonb_typeof(v_value) <> 'string' then
            return array[v_field, v_problem];
          end if;
        when v_field in ('execution_id', 'parent_id') then
          v_problem := 'must be a uuid';
          perform (p_item ->> v_field)::uuid;
        when v_field in ('priority', 'max_reclaims') then
          v_problem := 'must be a whole number of 32 bits';
          perform (p_item ->> v_field)::integer;
        when v_field = 'route_id' then
          v_problem := 'must be an id that register_routes gave';
          perform (p_item ->> v_field)::bigint;
        when v_field in ('delay_ms', 'deadline_ms', 'key_window_ms') then
          v_problem := 'must be a number of milliseconds, at most a hundred years';
          if jsonb_typeof(v_value) <> 'number'
             or abs((p_item ->> v_field)::numeric) > 3155760000000 then
            return array[v_field, v_problem];
          end if;
        when v_field in ('delayed_until', 'deadline_at') then
          v_problem := 'must be a time with its zone, as in 2026-03-01T09:00:00Z';
          if p_item ->> v_field !~* ('^\d{4}-\d\d-\d\d[t ]\d\d:\d\d(:\d\d(\.\d+)?)?'
                                     '(z|[+-]\d\d(:?\d\d)?)$') then
            return array[v_field, v_problem];
          end if;
          perform (p_item ->> v_field)::timestamptz;
        when v_field = 'with_parent' then
          if jsonb_typeof(v_value) <> 'boolean' then
            return array[v_field, 'must be true or false'];
          end if;
        when v_field = 'payload_base64' then
          v_problem := 'must be bytes in base64';
          perform decode(p_item ->> v_field, 'base64');
        when v_field = 'key_fingerprint' then
          v_problem := 'must be bytes in hexadecimal';
          perform decode(p_item ->> v_field, 'hex');
        when v_field in ('policy', 'tags') then
          null;
        else
          return array[v_field, 'is not a field of an item'];
      end case;
    end loop;
  exception when data_exception then
    return array[v_field, v_problem];
  end;
  if p_item ->> 'execution_id' is null then
    return array['execution_id', 'must be a uuid'];
  end if;
  if p_item ->> 'route_id' is null then
    return array['route_id', 'must be an id that register_routes gave'];
  end if;
  return null;
end;
$_$;


--
-- Name: _judge_leases(smallint, text, ff.lease_end, uuid[], uuid[], bigint[], uuid[], boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._judge_leases(p_partition_key smallint, p_namespace text, p_end ff.lease_end, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_wait boolean) RETURNS ff.verdict[]
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_now     timestamptz;
  v_judged  ff.verdict[];
  v_expired uuid[];
begin
  if p_wait then
    perform 1 from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
    for no key update;
  end if;
  v_now := ff.now();

  with asked as materialized (
    select p_partition_key as pk, u.id, u.lease_id, u.epoch, u.attempt_id, u.n::integer as n,
           lag(u.id) over (order by u.id, u.n) is not distinct from u.id as is_second
    from unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids)
      with ordinality u(id, lease_id, epoch, attempt_id, n)
    order by u.id, u.n
    offset 0
  ),
  seen as materialized (
    select a.pk, a.id, a.lease_id, a.epoch, a.attempt_id, a.n, a.is_second, e.execution_id,
           e.phase, e.ownership, e.outcome, e.row_epoch, e.row_lease_id, e.lease_expires_at,
           e.row_attempt_id, e.row_attempt_index, e.last_lease_id, e.last_lease_end,
           e.last_lease_retry_at, e.total_attempt_count, e.transitioned_at
    from asked a
    left join lateral (
      select x.execution_id, x.phase, x.ownership, x.outcome, x.epoch as row_epoch,
             x.lease_id as row_lease_id, x.lease_expires_at, x.attempt_id as row_attempt_id,
             x.attempt_index as row_attempt_index, x.last_lease_id, x.last_lease_end,
             x.last_lease_retry_at, x.total_attempt_count, x.transitioned_at
      from ff.execution x
      where not a.is_second
        and x.partition_key = a.pk and x.execution_id = a.id
        and case when p_namespace is null then true else x.namespace = p_namespace end
      for no key update skip locked
    ) e on true
  ),
  judged as (
    select s.n, s.id, s.phase, s.ownership, s.outcome, s.row_epoch, s.row_attempt_id,
           s.row_attempt_index, s.last_lease_retry_at, h.last_lease_retry_at as history_until,
           h.attempt_index as history_index,
           case
             when s.id is null or s.lease_id is null or s.epoch is null or s.attempt_id is null
               then 'invalid'
             when s.is_second then 'duplicate'
             when s.execution_id is null then
               case when exists (
                      select from ff.execution x
                      where x.partition_key = s.pk and x.execution_id = s.id
                        and case when p_namespace is null then true
                                 else x.namespace = p_namespace end)
                 then 'busy' else 'not_found' end
             when s.lease_id = s.row_lease_id then
               case when s.ownership <> 'leased'
                      or s.lease_expires_at <= greatest(v_now, s.transitioned_at)
                      then 'lease_expired'
                    when s.epoch <> s.row_epoch or s.attempt_id <> s.row_attempt_id
                      then 'stale_lease'
                    else 'held' end
             when s.lease_id = s.last_lease_id and s.last_lease_end = p_end then 'repeat'
             when h.last_lease_end = p_end then 'repeat of an ended attempt'
             when s.phase <> 'active' then 'not_active'
             when s.lease_id = s.last_lease_id and s.ownership = 'lease_revoked'
               then 'lease_revoked'
             else 'stale_lease'
           end as word
    from seen s
    left join lateral (
      select t.last_lease_end, t.last_lease_retry_at, t.attempt_index
      from ff.attempt t
      where t.partition_key = s.pk and t.execution_id = s.id
        and s.total_attempt_count > 1
        and s.lease_id is distinct from s.row_lease_id
        and t.last_lease_id = s.lease_id
      limit 1
    ) h on true
  )
  select array_agg(row(
           j.n, j.id,
           case j.word when 'repeat of an ended attempt' then 'repeat' else j.word end,
           case j.word when 'repeat of an ended attempt' then j.history_until
                       when 'repeat' then j.last_lease_retry_at end,
           case j.word when 'repeat of an ended attempt' then j.history_index
                       else j.row_attempt_index end,
           case j.word
             when 'not_active' then jsonb_build_object(
               'phase', j.phase, 'outcome', j.outcome, 'epoch', j.row_epoch,
               'attempt_id', j.row_attempt_id)
             when 'invalid' then jsonb_build_object(
               'field', 'fence', 'problem', 'fence_required',
               'hint', 'give execution_id, lease_id, epoch and attempt_id as the claim did')
           end)::ff.verdict),
         array_agg(j.id) filter (where j.word = 'lease_expired' and j.ownership = 'leased')
    into v_judged, v_expired
  from judged j;

  if v_expired is not null then
    perform ff._expire_leases(p_partition_key, v_expired, v_now);
  end if;
  return coalesce(v_judged, '{}');
end;
$$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: execution; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.execution (
    partition_key smallint NOT NULL,
    rank smallint NOT NULL,
    attempt_index integer DEFAULT 0 NOT NULL,
    execution_id uuid NOT NULL,
    route_id bigint NOT NULL,
    epoch bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    transitioned_at timestamp with time zone NOT NULL,
    mutated_at timestamp with time zone NOT NULL,
    version integer NOT NULL,
    total_attempt_count integer DEFAULT 0 NOT NULL,
    retry_count integer DEFAULT 0 NOT NULL,
    replay_count integer DEFAULT 0 NOT NULL,
    reclaim_count integer DEFAULT 0 NOT NULL,
    max_reclaims integer DEFAULT 100 NOT NULL,
    phase ff.phase NOT NULL,
    ownership ff.ownership NOT NULL,
    eligibility ff.eligibility NOT NULL,
    blocking_reason ff.blocking_reason NOT NULL,
    outcome ff.outcome NOT NULL,
    attempt_state ff.attempt_state NOT NULL,
    cause ff.cause NOT NULL,
    public_state ff.public_state GENERATED ALWAYS AS (
CASE phase
    WHEN 'terminal'::ff.phase THEN
    CASE outcome
        WHEN 'success'::ff.outcome THEN 'completed'::ff.public_state
        WHEN 'cancelled'::ff.outcome THEN 'cancelled'::ff.public_state
        WHEN 'expired'::ff.outcome THEN 'expired'::ff.public_state
        WHEN 'skipped'::ff.outcome THEN 'skipped'::ff.public_state
        ELSE 'failed'::ff.public_state
    END
    WHEN 'suspended'::ff.phase THEN 'suspended'::ff.public_state
    WHEN 'active'::ff.phase THEN 'active'::ff.public_state
    WHEN 'runnable'::ff.phase THEN
    CASE eligibility
        WHEN 'not_eligible_until_time'::ff.eligibility THEN 'delayed'::ff.public_state
        WHEN 'blocked_by_dependencies'::ff.eligibility THEN 'waiting_children'::ff.public_state
        WHEN 'blocked_by_budget'::ff.eligibility THEN 'rate_limited'::ff.public_state
        WHEN 'blocked_by_quota'::ff.eligibility THEN 'rate_limited'::ff.public_state
        ELSE 'waiting'::ff.public_state
    END
    ELSE 'waiting'::ff.public_state
END) STORED NOT NULL,
    namespace text NOT NULL,
    due_at timestamp with time zone,
    delayed_until timestamp with time zone,
    reclaim_at timestamp with time zone,
    deadline_at timestamp with time zone,
    started_at timestamp with time zone,
    terminal_at timestamp with time zone,
    attempt_timeout interval,
    lease_id uuid,
    lease_expires_at timestamp with time zone,
    worker_id text,
    worker_instance_id text,
    last_lease_id uuid,
    last_lease_end ff.lease_end,
    last_lease_retry_at timestamp with time zone,
    last_worker_id text,
    last_worker_instance_id text,
    attempt_id uuid,
    attempt_type ff.attempt_type,
    attempt_started_at timestamp with time zone,
    attempt_paused_at timestamp with time zone,
    attempt_pause_cause text,
    attempt_deadline_at timestamp with time zone,
    attempt_time_left interval,
    attempt_ended_at timestamp with time zone,
    attempt_ended_as ff.attempt_lifecycle,
    previous_attempt_index integer,
    attempt_reason text,
    failure_class ff.failure_class,
    failure_category text,
    failure_reason text,
    failure_detail bytea,
    flow_id uuid,
    instance_tag text,
    blocking_detail text,
    payload_encoding text,
    payload bytea,
    result_encoding text,
    result bytea,
    cancellation_reason text,
    cancelled_by text,
    progress_percent smallint,
    progress_message text,
    progressed_at timestamp with time zone,
    blocked_at timestamp with time zone,
    retention interval,
    trim_at timestamp with time zone,
    parent_id uuid,
    ends_with_parent boolean DEFAULT false NOT NULL,
    is_awaited boolean DEFAULT false NOT NULL,
    wakes_pending boolean DEFAULT false NOT NULL,
    wait_no integer DEFAULT 0 NOT NULL,
    wait_left integer,
    CONSTRAINT attempt_iff_counted CHECK ((((attempt_id IS NOT NULL) = (total_attempt_count > 0)) AND (attempt_index = GREATEST((total_attempt_count - 1), 0)))),
    CONSTRAINT blocked_only_while_waiting CHECK (((blocking_reason = 'none'::ff.blocking_reason) OR ((phase <> 'terminal'::ff.phase) AND (attempt_state <> 'running_attempt'::ff.attempt_state)))),
    CONSTRAINT cancelled_iff_by_somebody CHECK (((cancelled_by IS NOT NULL) = (outcome = 'cancelled'::ff.outcome))),
    CONSTRAINT delayed_iff_until CHECK (((eligibility = 'not_eligible_until_time'::ff.eligibility) = (delayed_until IS NOT NULL))),
    CONSTRAINT eligible_iff_runnable CHECK (((phase = 'runnable'::ff.phase) = (eligibility <> 'not_applicable'::ff.eligibility))),
    CONSTRAINT follows_only_a_parent CHECK (((NOT ends_with_parent) OR (parent_id IS NOT NULL))),
    CONSTRAINT lease_iff_held CHECK ((num_nonnulls(lease_id, lease_expires_at, worker_id, worker_instance_id) =
CASE
    WHEN (ownership = ANY (ARRAY['leased'::ff.ownership, 'lease_expired_reclaimable'::ff.ownership])) THEN 4
    ELSE 0
END)),
    CONSTRAINT limits CHECK ((((rank >= 0) AND (rank <= 9000)) AND (epoch >= 0) AND (version >= 1) AND (max_reclaims >= 0) AND (octet_length(payload) <= 256) AND (octet_length(result) <= 1048576))),
    CONSTRAINT owned_iff_active CHECK (((phase = 'active'::ff.phase) = (ownership <> 'unowned'::ff.ownership))),
    CONSTRAINT policy_pause_is_an_operator_block CHECK (((blocking_reason <> 'paused_by_policy'::ff.blocking_reason) OR (eligibility = 'blocked_by_operator'::ff.eligibility) OR (phase = 'suspended'::ff.phase))),
    CONSTRAINT progress_is_a_percentage CHECK (((progress_percent >= 0) AND (progress_percent <= 100))),
    CONSTRAINT reclaim_wait_only_when_reclaimable CHECK (((reclaim_at IS NULL) OR (ownership = ANY (ARRAY['lease_expired_reclaimable'::ff.ownership, 'lease_revoked'::ff.ownership])))),
    CONSTRAINT running_iff_leased CHECK (((attempt_state = 'running_attempt'::ff.attempt_state) = (ownership = 'leased'::ff.ownership))),
    CONSTRAINT submitted_is_never_stored CHECK ((phase <> 'submitted'::ff.phase)),
    CONSTRAINT terminal_iff_ended CHECK (((phase = 'terminal'::ff.phase) = (terminal_at IS NOT NULL))),
    CONSTRAINT terminal_iff_outcome CHECK (((phase = 'terminal'::ff.phase) = (outcome <> 'none'::ff.outcome))),
    CONSTRAINT trimmed_only_when_ended CHECK (((trim_at IS NULL) OR (phase = 'terminal'::ff.phase))),
    CONSTRAINT waits_only_while_blocked CHECK (((wait_left IS NULL) OR ((eligibility = 'blocked_by_dependencies'::ff.eligibility) AND (wait_left > 0)))),
    CONSTRAINT wakes_only_when_ended CHECK (((NOT wakes_pending) OR (phase = 'terminal'::ff.phase)))
)
WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1');


--
-- Name: _judge_reclaim(smallint, ff.execution, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._judge_reclaim(p_partition_key smallint, p_row ff.execution, p_now timestamp with time zone) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
declare
  v_is_expired constant boolean := p_row.ownership = 'leased' and p_row.lease_expires_at <= p_now;
begin
  if (p_row.phase, p_row.cause) = ('terminal', 'exceed_reclaims') then
    return 'reclaim_cap_exceeded';
  elsif p_row.phase <> 'active' or (p_row.ownership = 'leased' and not v_is_expired) then
    return 'not_reclaimable';
  end if;
  if v_is_expired then
    perform ff._expire_leases(p_partition_key, array[p_row.execution_id], p_now);
    perform ff._hint_ready(p_partition_key, array[p_row.route_id]);
  end if;
  if p_row.reclaim_count >= p_row.max_reclaims then
    perform ff._exceed_reclaims(p_partition_key, array[p_row.execution_id], p_now);
    return 'reclaim_cap_exceeded';
  end if;
  return null;
end;
$$;


--
-- Name: _judge_submits(text, uuid[], bigint[], bigint[], bytea[], text[], interval[], timestamp with time zone[], interval[], timestamp with time zone[], text[], integer[], text[], text[], text[], bytea[], text[], interval[], uuid[], boolean[], text[], text[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._judge_submits(p_namespace text, p_execution_ids uuid[], p_route_ids bigint[], p_closed_routes bigint[], p_payloads bytea[], p_payload_encodings text[], p_delays interval[], p_delayed_untils timestamp with time zone[], p_deadlines interval[], p_deadline_ats timestamp with time zone[], p_policies text[], p_max_reclaims integer[], p_tags text[], p_creators text[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[], p_parent_ids uuid[], p_with_parents boolean[], p_trace_contexts text[], p_task_versions text[]) RETURNS ff.verdict[]
    LANGUAGE plpgsql STABLE
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
  return coalesce((
    select array_agg(row(j.n, j.id, j.word, null, null, j.detail)::ff.verdict)
    from (
      select u.n, u.id,
             case when p.field is not null then 'invalid'
                  when r.route_id is null then 'unknown_route' else 'lane_closed' end as word,
             case when p.field is not null
                    then jsonb_build_object('field', p.field, 'problem', p.problem)
                  when r.route_id is null then jsonb_build_object('route_id', u.route_id)
                  else jsonb_build_object('field', 'lane', 'lane', r.lane, 'state', l.state) end
               as detail
      from unnest(p_execution_ids, p_route_ids, p_payloads, p_payload_encodings, p_delays,
                  p_delayed_untils, p_deadlines, p_deadline_ats, p_policies, p_max_reclaims, p_tags,
                  p_creators, p_keys, p_key_fingerprints, p_key_scopes, p_key_windows, p_parent_ids,
                  p_with_parents, p_trace_contexts, p_task_versions)
        with ordinality u(id, route_id, payload, encoding, delay, delayed_until, deadline,
                          deadline_at, policy, max_reclaims, tags, creator, key, fingerprint, scope,
                          wnd, parent_id, with_parent, trace_context, task_version, n)
      cross join lateral (
        select case
            when u.id is null then array['execution_id', 'must be a uuid']
            when octet_length(u.payload) > 1048576
              then array['payload', 'is larger than 1 MiB (1048576 bytes)']
            when octet_length(u.encoding) > 64
              then array['payload_encoding', 'must be at most 64 bytes']
            -- what is infinite or leaves the calendar would break every sum it gets into
            when u.delay not between interval '-36525 days' and interval '36525 days'
              then array['delay', 'must be at most a hundred years']
            when u.delayed_until >= timestamptz '9999-01-01 00:00:00+00'
              then array['delayed_until', 'must be before the year 9999']
            when u.deadline not between interval '-36525 days' and interval '36525 days'
              then array['deadline', 'must be at most a hundred years']
            when u.deadline_at < timestamptz '0001-01-02 00:00:00+00'
              or u.deadline_at >= timestamptz '9999-01-01 00:00:00+00'
              then array['deadline_at', 'must be between the years 1 and 9999']
            when u.max_reclaims not between 0 and 1000000
              then array['max_reclaims', 'must be from 0 to 1000000']
            when octet_length(u.creator) > 256
              then array['creator', 'must be at most 256 bytes']
            when p_policies is not null and ff._policy_problem(u.policy) is not null
              then array['policy', ff._policy_problem(u.policy)]
            when p_tags is not null and ff._tags_problem(u.tags) is not null
              then array['tags', ff._tags_problem(u.tags)]
            when u.key is not null and (u.key = '' or octet_length(u.key) > 512)
              then array['key', 'must be 1 to 512 bytes']
            when u.key is not null and u.fingerprint is null
              then array['key_fingerprint', 'is needed with a key']
            when u.key is not null and coalesce(u.scope, 'window') not in ('window', 'unfinished')
              then array['key_scope', 'must be window or unfinished']
            when u.key is not null
              and coalesce(u.wnd, interval '0') not between interval '0' and interval '10 years'
              then array['key_window', 'must be between nothing and ten years']
            when u.with_parent and u.parent_id is null
              then array['parent_id', 'is needed for a child that ends with its parent']
            when u.with_parent and u.parent_id = u.id
              then array['parent_id', 'must be another execution']
            when octet_length(u.trace_context) > 4096
              then array['trace_context', 'must be at most 4096 bytes']
            when u.task_version = '' or octet_length(u.task_version) > 256
              then array['task_version', 'must be 1 to 256 bytes']
          end as words) w
      cross join lateral (select w.words[1] as field, w.words[2] as problem) p
      left join ff.route r on r.route_id = u.route_id and r.namespace = p_namespace
        and p_closed_routes is not null
      left join ff.lane l on l.lane = r.lane
      where p.field is not null or u.route_id = any (p_closed_routes)
         or u.route_id is null
    ) j), '{}');
end;
$$;


--
-- Name: _lease_executions(smallint, uuid[], boolean, uuid, text, text, interval, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._lease_executions(p_partition_key smallint, p_execution_ids uuid[], p_has_past boolean, p_claim_id uuid, p_worker_id text, p_worker_instance_id text, p_lease_ttl interval, p_now timestamp with time zone) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, claim_kind text, rank smallint, created_at timestamp with time zone, epoch bigint, attempt_index integer, attempt_id uuid, attempt_type text, lease_expires_at timestamp with time zone, attempt_deadline_at timestamp with time zone, deadline_at timestamp with time zone, retry_count integer, payload_encoding text, payload bytea, replay_count integer, trace_context text)
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_xid constant xid8 := pg_current_xact_id();
begin
  if not p_has_past then
    -- First attempts, as almost always: nothing to move, and every column of an attempt is empty.
    return query
    with item as materialized (
      select p_partition_key as pk, u.execution_id, u.n
      from unnest(p_execution_ids) with ordinality u(execution_id, n)
      offset 0
    ),
    leased as (
      update ff.execution e set
        phase = 'active',
        ownership = 'leased',
        eligibility = 'not_applicable',
        blocking_reason = 'none',
        attempt_state = 'running_attempt',
        cause = 'claim',
        version = e.version + 1,
        epoch = e.epoch + 1,
        lease_id = p_claim_id,
        lease_expires_at = greatest(p_now, e.transitioned_at) + p_lease_ttl,
        due_at = least(greatest(p_now, e.transitioned_at) + least(p_lease_ttl, e.attempt_timeout),
                       e.deadline_at),
        worker_id = p_worker_id,
        worker_instance_id = p_worker_instance_id,
        started_at = greatest(p_now, e.transitioned_at),
        transitioned_at = greatest(p_now, e.transitioned_at),
        mutated_at = greatest(p_now, e.transitioned_at),
        total_attempt_count = 1,
        attempt_id = p_claim_id,
        attempt_type = case e.attempt_state when 'pending_replay_attempt'
                         then 'replay'::ff.attempt_type else 'initial' end,
        attempt_started_at = greatest(p_now, e.transitioned_at),
        attempt_deadline_at = greatest(p_now, e.transitioned_at) + e.attempt_timeout
      from item i
      where e.partition_key = i.pk and e.execution_id = i.execution_id
      returning e.execution_id, e.version, e.attempt_type, e.epoch, e.route_id, e.rank,
                e.created_at, e.lease_expires_at, e.attempt_deadline_at, e.deadline_at,
                e.retry_count, e.replay_count, e.payload_encoding, e.payload, e.namespace, e.flow_id,
                e.instance_tag, e.transitioned_at, i.n
    ),
    logged as (
      insert into ff.event (
        partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
        worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
      select p_partition_key, v_xid, l.execution_id, l.version, 'claimed', 0, p_claim_id, l.epoch,
             p_worker_instance_id, l.route_id, l.flow_id, l.namespace, l.instance_tag,
             l.transitioned_at
      from leased l
    )
    select l.execution_id, l.namespace, r.lane, r.task, 'fresh', l.rank, l.created_at, l.epoch, 0,
           p_claim_id, l.attempt_type::text, l.lease_expires_at, l.attempt_deadline_at,
           l.deadline_at, l.retry_count, l.payload_encoding, coalesce(l.payload, b.payload),
           l.replay_count, b.trace_context
    from leased l
    cross join lateral (
      select x.lane, x.task from ff.route x where x.route_id = l.route_id offset 0) r
    left join lateral (
      select x.payload, x.trace_context from ff.execution_body x
      where l.payload is null
        and x.partition_key = p_partition_key and x.execution_id = l.execution_id
      offset 0) b on true
    order by l.n;
    return;
  end if;

  return query
  with item as materialized (
    select p_partition_key as pk, u.execution_id, u.n, x.is_new, x.attempt_type, x.attempt_reason
    from unnest(p_execution_ids) with ordinality u(execution_id, n)
    cross join lateral (
      select e.phase = 'active' or e.attempt_state <> 'attempt_interrupted' as is_new,
             case when e.phase = 'active' then 'reclaim'::ff.attempt_type
                  when e.attempt_state = 'pending_retry_attempt' then 'retry'
                  when e.attempt_state = 'pending_replay_attempt' then 'replay'
                  else 'initial' end as attempt_type,
             case when e.phase = 'active' then e.ownership::text
                  when e.attempt_state = 'pending_retry_attempt'
                    then coalesce(e.failure_category, e.failure_class::text) end as attempt_reason
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.execution_id
      offset 0
    ) x
    offset 0
  ),
  past as (
    insert into ff.attempt (
      partition_key, execution_id, attempt_index, attempt_id, attempt_type, epoch, started_at,
      ended_at, ended_as, previous_attempt_index, attempt_reason, failure_class, failure_category,
      failure_reason, failure_detail, last_lease_id, last_lease_end, last_lease_retry_at,
      last_worker_id, last_worker_instance_id)
    select e.partition_key, e.execution_id, e.attempt_index, e.attempt_id, e.attempt_type, e.epoch,
           e.attempt_started_at,
           coalesce(e.attempt_ended_at, greatest(p_now, e.transitioned_at)),
           coalesce(e.attempt_ended_as, 'interrupted_reclaimed'),
           e.previous_attempt_index, e.attempt_reason, e.failure_class, e.failure_category,
           e.failure_reason, e.failure_detail,
           coalesce(e.lease_id, e.last_lease_id),
           case when e.lease_id is null then e.last_lease_end else 'expire_lease' end,
           case when e.lease_id is null then e.last_lease_retry_at end,
           coalesce(e.worker_id, e.last_worker_id),
           coalesce(e.worker_instance_id, e.last_worker_instance_id)
    from item i
    cross join lateral (
      select x.*
      from ff.execution x
      where x.partition_key = i.pk and x.execution_id = i.execution_id
      offset 0
    ) e
    where p_has_past and i.is_new and e.total_attempt_count > 0
  ),
  leased as (
    update ff.execution e set
      phase = 'active',
      ownership = 'leased',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      attempt_state = 'running_attempt',
      cause = case when e.phase = 'active' then 'reclaim'::ff.cause
                   when i.is_new then 'claim' else 'resume' end,
      version = e.version + 1,
      epoch = e.epoch + 1,
      lease_id = p_claim_id,
      lease_expires_at = greatest(p_now, e.transitioned_at) + p_lease_ttl,
      due_at = least(
        greatest(p_now, e.transitioned_at) + least(
          p_lease_ttl, case when i.is_new then e.attempt_timeout else e.attempt_time_left end),
        e.deadline_at),
      worker_id = p_worker_id,
      worker_instance_id = p_worker_instance_id,
      reclaim_at = null,
      blocking_detail = null,
      blocked_at = null,
      progress_percent = case when not i.is_new then e.progress_percent end,
      progress_message = case when not i.is_new then e.progress_message end,
      progressed_at = case when not i.is_new then e.progressed_at end,
      reclaim_count = e.reclaim_count + (e.phase = 'active')::integer,
      started_at = coalesce(e.started_at, greatest(p_now, e.transitioned_at)),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at),
      total_attempt_count = case when i.is_new then e.total_attempt_count + 1 else e.total_attempt_count end,
      attempt_index = case when i.is_new then e.total_attempt_count else e.attempt_index end,
      attempt_id = case when i.is_new then p_claim_id else e.attempt_id end,
      attempt_type = case when i.is_new then i.attempt_type else e.attempt_type end,
      attempt_started_at = case when i.is_new then greatest(p_now, e.transitioned_at) else e.attempt_started_at end,
      attempt_reason = case when i.is_new then i.attempt_reason else e.attempt_reason end,
      previous_attempt_index = case when not i.is_new then e.previous_attempt_index
                                    when e.total_attempt_count > 0 then e.attempt_index end,
      attempt_deadline_at = greatest(p_now, e.transitioned_at)
        + case when i.is_new then e.attempt_timeout else e.attempt_time_left end,
      attempt_time_left = null,
      attempt_paused_at = null,
      attempt_pause_cause = null,
      attempt_ended_at = null,
      attempt_ended_as = null,
      failure_class = case when not i.is_new then e.failure_class end,
      failure_category = case when not i.is_new then e.failure_category end,
      failure_reason = case when not i.is_new then e.failure_reason end,
      failure_detail = case when not i.is_new then e.failure_detail end,
      last_lease_id = case when not i.is_new then e.last_lease_id end,
      last_lease_end = case when not i.is_new then e.last_lease_end end,
      last_lease_retry_at = case when not i.is_new then e.last_lease_retry_at end,
      last_worker_id = case when not i.is_new then e.last_worker_id end,
      last_worker_instance_id = case when not i.is_new then e.last_worker_instance_id end
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.attempt_id, e.attempt_type, e.epoch,
              e.route_id, e.rank, e.created_at, e.lease_expires_at, e.attempt_deadline_at,
              e.deadline_at, e.retry_count, e.replay_count, e.payload_encoding, e.payload, e.cause, e.namespace,
              e.flow_id, e.instance_tag, e.transitioned_at, i.n
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
    select p_partition_key, v_xid, l.execution_id, l.version,
           case l.cause when 'claim' then 'claimed'::ff.event_kind
                        when 'resume' then 'resumed' else 'reclaimed' end,
           l.attempt_index, p_claim_id, l.epoch, p_worker_instance_id, l.route_id, l.flow_id,
           l.namespace, l.instance_tag, l.transitioned_at
    from leased l
  )
  select l.execution_id, l.namespace, r.lane, r.task,
         case l.cause when 'claim' then 'fresh' when 'resume' then 'resumed' else 'reclaimed' end,
         l.rank, l.created_at, l.epoch, l.attempt_index, l.attempt_id, l.attempt_type::text,
         l.lease_expires_at, l.attempt_deadline_at, l.deadline_at, l.retry_count,
         l.payload_encoding, coalesce(l.payload, b.payload), l.replay_count, b.trace_context
  from leased l
  cross join lateral (
    select x.lane, x.task from ff.route x where x.route_id = l.route_id offset 0) r
  left join lateral (
    select x.payload, x.trace_context from ff.execution_body x
    where l.payload is null
      and x.partition_key = p_partition_key and x.execution_id = l.execution_id
    offset 0) b on true
  order by l.n;
end;
$$;


--
-- Name: _lock_candidate(smallint, uuid); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._lock_candidate(p_partition_key smallint, p_execution_id uuid) RETURNS ff.candidate
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_row ff.candidate;
begin
  select (e.phase = 'runnable' and e.eligibility = 'eligible_now')
           or (e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
               and e.reclaim_at is null),
         e.phase = 'active' and e.reclaim_count >= e.max_reclaims,
         e.total_attempt_count > 0
    into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
  for no key update skip locked;
  return v_row;
end;
$$;


--
-- Name: _lock_execution(smallint, text, uuid); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._lock_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid) RETURNS ff.execution
    LANGUAGE plpgsql
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_row ff.execution;
begin
  select e.* into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end
  for no key update;
  if not found then
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  return v_row;
end;
$$;


--
-- Name: _lock_executions(smallint, uuid[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._lock_executions(p_partition_key smallint, p_execution_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
begin
  perform 1
  from (select distinct u.id from unnest(p_execution_ids) u(id) order by u.id offset 0) a
  cross join lateral (
    select e.execution_id from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = a.id
    for no key update
  ) l;
end;
$$;


--
-- Name: _make_eligible(smallint, uuid, ff.cause, ff.event_kind, timestamp with time zone, text, jsonb); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._make_eligible(p_partition_key smallint, p_execution_id uuid, p_cause ff.cause, p_kind ff.event_kind, p_now timestamp with time zone, p_actor text, p_detail jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_xid   constant xid8 := pg_current_xact_id();
  v_route bigint;
begin
  with eligible as (
    update ff.execution e set
      eligibility = 'eligible_now',
      blocking_reason = 'waiting_for_worker',
      blocking_detail = null,
      blocked_at = null,
      cause = p_cause,
      version = e.version + (p_kind is not null)::integer,
      delayed_until = null,
      due_at = e.deadline_at,
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version, e.route_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, route_id, flow_id, namespace, instance_tag,
      occurred_at, actor, detail)
    select p_partition_key, v_xid, p_execution_id, e.version, p_kind, e.route_id, e.flow_id,
           e.namespace, e.instance_tag, e.transitioned_at, p_actor, p_detail
    from eligible e
    where p_kind is not null
  )
  select e.route_id into v_route from eligible e;
  perform ff._hint_ready(p_partition_key, array[v_route]);
end;
$$;


--
-- Name: _missing_capabilities(bigint, text[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._missing_capabilities(p_route_id bigint, p_capabilities text[]) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO ''
    AS $$
begin
  return (
    select string_agg(t.token, ',' order by t.token collate "C")
    from ff.route r
    cross join lateral unnest(r.capabilities) t(token)
    where r.route_id = p_route_id and t.token <> all (p_capabilities));
end;
$$;


--
-- Name: _pick_candidates(smallint, bigint[], smallint[], boolean, smallint, smallint, timestamp with time zone, uuid, integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._pick_candidates(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_need integer, p_worker_id text, p_now timestamp with time zone) RETURNS TABLE(picked uuid[], capped uuid[], has_past boolean, vain integer, seen integer, is_cut boolean, rank smallint, turn smallint, created_at timestamp with time zone, execution_id uuid)
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
  return query
  with candidate as materialized (
    select p_partition_key as pk, c.rank, c.turn, c.created_at, c.execution_id
    from ff._candidates(p_partition_key, p_routes, p_turns, p_reclaiming, p_from_rank, p_from_turn,
                        p_from_at, p_from_id, p_window, p_worker_id, p_now) c
  ),
  taken as materialized (
    select l.execution_id, l.is_open, l.is_over, l.has_past, c.rank, c.turn, c.created_at
    from candidate c
    cross join lateral (
      select e.execution_id,
             (e.phase = 'runnable' and e.eligibility = 'eligible_now')
               or (e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
                   and e.reclaim_at is null) as is_open,
             e.phase = 'active' and e.reclaim_count >= e.max_reclaims as is_over,
             e.total_attempt_count > 0 as has_past
      from ff.execution e
      where e.partition_key = c.pk and e.execution_id = c.execution_id
      for no key update skip locked
    ) l
    limit p_need
  )
  select coalesce(t.picked, '{}'), coalesce(t.capped, '{}'), coalesce(t.has_past, false),
         t.vain, z.seen, t.tried = p_need, y.rank, y.turn, y.created_at, y.execution_id
  from (select array_agg(x.execution_id) filter (where x.is_open and not x.is_over) as picked,
               array_agg(x.execution_id) filter (where x.is_open and x.is_over) as capped,
               bool_or(x.has_past) as has_past,
               count(*)::integer as tried,
               (count(*) filter (where not x.is_open))::integer as vain
        from taken x) t
  cross join (select count(*)::integer as seen from candidate) z
  -- The last row tried: the last one taken if that was enough, else the last of the window.
  left join lateral (
    select w.rank, w.turn, w.created_at, w.execution_id
    from (select x.rank, x.turn, x.created_at, x.execution_id from taken x
          where t.tried = p_need
          union all
          select c.rank, c.turn, c.created_at, c.execution_id from candidate c
          where t.tried < p_need) w
    order by w.rank desc, w.turn desc, w.created_at desc, w.execution_id desc
    limit 1) y on true;
end;
$$;


--
-- Name: _pick_singly(smallint, bigint[], smallint[], boolean, smallint, smallint, timestamp with time zone, uuid, integer, integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._pick_singly(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_need integer, p_most_vain integer, p_worker_id text, p_now timestamp with time zone) RETURNS TABLE(picked uuid[], capped uuid[], has_past boolean, vain integer, seen integer, is_cut boolean, rank smallint, turn smallint, created_at timestamp with time zone, execution_id uuid)
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_candidate record;
  v_row       ff.candidate;
begin
  picked := '{}'; capped := '{}'; has_past := false; vain := 0; seen := 0; is_cut := false;
  for v_candidate in
    select c.rank, c.turn, c.created_at, c.execution_id
    from ff._candidates(p_partition_key, p_routes, p_turns, p_reclaiming, p_from_rank, p_from_turn,
                        p_from_at, p_from_id, p_window, p_worker_id, p_now) c
  loop
    if cardinality(picked) = p_need then
      is_cut := true;
      exit;
    end if;
    seen := seen + 1;
    rank := v_candidate.rank;
    turn := v_candidate.turn;
    created_at := v_candidate.created_at;
    execution_id := v_candidate.execution_id;
    -- Most of what others took meanwhile shows without a lock.
    continue when not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = v_candidate.execution_id
        and case when (e.phase = 'runnable' and e.eligibility = 'eligible_now')
                   or (e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
                       and e.reclaim_at is null)
              then true else false end);
    if vain < p_most_vain then
      v_row := ff._lock_candidate(p_partition_key, v_candidate.execution_id);
    else
      begin
        v_row := ff._lock_candidate(p_partition_key, v_candidate.execution_id);
        if not v_row.is_open then
          raise no_data_found;
        end if;
      exception when no_data_found then
        v_row := null;
      end;
    end if;
    if v_row.is_open and v_row.is_over then
      capped := capped || v_candidate.execution_id;
    elsif v_row.is_open then
      picked := picked || v_candidate.execution_id;
      has_past := has_past or v_row.has_past;
    elsif v_row.is_open is not null then
      vain := vain + 1;
    end if;
  end loop;
  return next;
end;
$$;


--
-- Name: _policy_problem(text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._policy_problem(p_policy text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
declare
  v_policy  jsonb;
  v_retry   jsonb;
  v_entry   record;
  v_unknown text;
begin
  if p_policy is null then
    return null;
  end if;
  if octet_length(p_policy) > 65536 then
    return 'is larger than 64 KiB';
  end if;
  begin
    v_policy := p_policy::jsonb;
  exception when data_exception or program_limit_exceeded then
    return 'malformed: it is not JSON';
  end;
  if jsonb_typeof(v_policy) <> 'object' then
    return 'malformed: it is not an object';
  end if;
  -- A field that nobody obeys would be a promise nobody keeps.
  select format('%s: is not a field of a policy', k.path) into v_unknown
  from (
    select p.key as path from jsonb_object_keys(v_policy) p(key)
    where p.key not in ('retry_policy', 'timeout_policy', 'max_reclaim_count', 'max_replay_count',
                        'retention_ms')
    union all
    select s.key || '.' || f.key
    from jsonb_each(v_policy) s
    cross join lateral jsonb_object_keys(
      case when s.key in ('retry_policy', 'timeout_policy') and jsonb_typeof(s.value) = 'object'
             then s.value else '{}' end) f(key)
    where f.key not in ('max_retries', 'backoff', 'retryable_categories', 'attempt_timeout_ms')
  ) k
  order by k.path
  limit 1;
  if v_unknown is not null then
    return v_unknown;
  end if;
  for v_entry in
    select e.key, e.value from jsonb_each(v_policy) e
    where e.key in ('max_reclaim_count', 'max_replay_count')
  loop
    if not ff._is_count(v_entry.value) then
      return v_entry.key || ': must be a whole number from 0 to 1000000';
    end if;
  end loop;
  if v_policy ? 'retention_ms' and not ff._is_milliseconds(v_policy -> 'retention_ms', 0) then
    return 'retention_ms: must be a number from 0 to 3153600000000';
  end if;
  if v_policy ? 'timeout_policy' then
    if jsonb_typeof(v_policy -> 'timeout_policy') <> 'object' then
      return 'timeout_policy: must be an object';
    end if;
    if v_policy -> 'timeout_policy' ? 'attempt_timeout_ms'
       and not ff._is_milliseconds(v_policy #> '{timeout_policy,attempt_timeout_ms}') then
      return 'timeout_policy.attempt_timeout_ms: must be a number from 1 to 3153600000000';
    end if;
  end if;
  v_retry := v_policy -> 'retry_policy';
  if v_retry is null then
    return null;
  end if;
  if jsonb_typeof(v_retry) <> 'object' then
    return 'retry_policy: must be an object';
  end if;
  if v_retry ? 'max_retries' and not ff._is_count(v_retry -> 'max_retries') then
    return 'retry_policy.max_retries: must be a whole number from 0 to 1000000';
  end if;
  if v_retry ? 'retryable_categories' then
    if jsonb_typeof(v_retry -> 'retryable_categories') <> 'array' then
      return 'retry_policy.retryable_categories: must be a list of text';
    end if;
    if exists (select from jsonb_array_elements(v_retry -> 'retryable_categories') c
               where jsonb_typeof(c) <> 'string') then
      return 'retry_policy.retryable_categories: must be a list of text';
    end if;
  end if;
  if v_retry ? 'backoff' then
    if jsonb_typeof(v_retry -> 'backoff') <> 'object' then
      return 'retry_policy.backoff: must be an object';
    end if;
    if coalesce(v_retry #>> '{backoff,type}', 'exponential') not in ('fixed', 'exponential') then
      return 'retry_policy.backoff.type: must be fixed or exponential';
    end if;
    if v_retry #> '{backoff,jitter}' is not null
       and jsonb_typeof(v_retry #> '{backoff,jitter}') <> 'boolean' then
      return 'retry_policy.backoff.jitter: must be true or false';
    end if;
    for v_entry in
      select e.key, e.value from jsonb_each(v_retry -> 'backoff') e
      where e.key in ('delay_ms', 'initial_delay_ms', 'max_delay_ms')
    loop
      if not ff._is_milliseconds(v_entry.value, 0) then
        return 'retry_policy.backoff.' || v_entry.key || ': must be a number from 0 to 3153600000000';
      end if;
    end loop;
    if v_retry #> '{backoff,multiplier}' is not null then
      if jsonb_typeof(v_retry #> '{backoff,multiplier}') <> 'number' then
        return 'retry_policy.backoff.multiplier: must be a number from 1 to 1000';
      elsif (v_retry #>> '{backoff,multiplier}')::numeric not between 1 and 1000 then
        return 'retry_policy.backoff.multiplier: must be a number from 1 to 1000';
      end if;
    end if;
  end if;
  return null;
end;
$$;


--
-- Name: _refuse(text, text, jsonb); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._refuse(p_code text, p_name text, p_detail jsonb DEFAULT '{}'::jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
begin
  raise exception using
    errcode = p_code,
    message = p_name,
    detail = p_detail::text;
end;
$$;


--
-- Name: _replay_execution(smallint, ff.execution, text, text, jsonb); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._replay_execution(p_partition_key smallint, p_row ff.execution, p_reason text, p_actor text, p_detail jsonb DEFAULT '{}'::jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_now   timestamptz;
  v_xid   xid8;
  v_most  integer;
  v_wakes record;
begin
  select coalesce((b.policy ->> 'max_replay_count')::numeric, 10) into v_most
  from ff.execution_body b
  where b.partition_key = p_partition_key and b.execution_id = p_row.execution_id;
  if p_row.replay_count >= coalesce(v_most, 10) then
    perform ff._refuse('WF212', 'max_replays_exhausted', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_row.execution_id),
      'replays', p_row.replay_count, 'limit', coalesce(v_most, 10)));
  end if;

  v_now := ff.now();
  v_now := greatest(v_now, p_row.transitioned_at);
  v_xid := pg_current_xact_id();
  if p_row.wakes_pending then
    v_wakes := ff._wake_runs(p_partition_key, array[p_row.execution_id], v_now, 10000);
    if v_wakes.pending_ids is not null then
      raise exception using errcode = '40001',
        message = 'somebody who waits for this execution is busy';
    end if;
  end if;
  with replayed as (
    update ff.execution e set
      phase = 'runnable',
      eligibility = 'eligible_now',
      blocking_reason = 'waiting_for_worker',
      outcome = 'none',
      attempt_state = 'pending_replay_attempt',
      cause = 'replay',
      version = e.version + 1,
      replay_count = e.replay_count + 1,
      retry_count = 0,
      reclaim_count = 0,
      deadline_at = case when e.deadline_at > v_now then e.deadline_at end,
      due_at = case when e.deadline_at > v_now then e.deadline_at end,
      terminal_at = null,
      trim_at = null,
      result = null,
      result_encoding = null,
      cancellation_reason = null,
      cancelled_by = null,
      ends_with_parent = false,
      -- the failure of an attempt stays with it; that of a deadline before any is over
      failure_class = case when e.total_attempt_count > 0 then e.failure_class end,
      failure_category = case when e.total_attempt_count > 0 then e.failure_category end,
      failure_reason = case when e.total_attempt_count > 0 then e.failure_reason end,
      transitioned_at = v_now,
      mutated_at = v_now
    where e.partition_key = p_partition_key and e.execution_id = p_row.execution_id
    returning e.version
  )
  insert into ff.event (
    partition_key, xid, execution_id, version, kind, route_id, flow_id, namespace, instance_tag,
    occurred_at, actor, detail)
  select p_partition_key, v_xid, p_row.execution_id, r.version, 'replayed', p_row.route_id,
         p_row.flow_id, p_row.namespace, p_row.instance_tag, v_now, p_actor,
         jsonb_strip_nulls(jsonb_build_object('branch', 'normal', 'reason', p_reason)) || p_detail
  from replayed r;
  perform ff._hint_ready(p_partition_key, array[p_row.route_id]);
end;
$$;


--
-- Name: _require_primary(); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._require_primary() RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO ''
    AS $$
begin
  if pg_is_in_recovery() then
    perform ff._refuse('WF203', 'read_only_server', jsonb_build_object(
      'hint', 'connect to the primary: a standby cannot tell which events are still to come'));
  end if;
end;
$$;


--
-- Name: _retry_wait(jsonb, integer, text, text, double precision); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._retry_wait(p_policy jsonb, p_retry_count integer, p_class text, p_category text, p_chance double precision) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
declare
  v_retry constant jsonb := p_policy -> 'retry_policy';
begin
  if v_retry is null
     or p_retry_count >= coalesce((v_retry ->> 'max_retries')::numeric, 3)
     or p_class in ('permanent', 'cancelled')
     or (coalesce(jsonb_array_length(v_retry -> 'retryable_categories'), 0) > 0
         and not v_retry -> 'retryable_categories' ? coalesce(p_category, p_class)) then
    return null;
  end if;
  return ff._backoff(v_retry -> 'backoff', p_retry_count, p_chance);
end;
$$;


--
-- Name: _scan_executions(smallint, text, text[], text[], text[], text, timestamp with time zone, timestamp with time zone, timestamp with time zone, text, text, integer, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._scan_executions(p_partition_key smallint, p_namespace text, p_states text[], p_lanes text[], p_tasks text[], p_tags text, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_ended_after timestamp with time zone, p_worker_instance_id text, p_cursor text, p_take integer, p_look_at integer) RETURNS TABLE(execution_ids uuid[], next_id uuid)
    LANGUAGE plpgsql STABLE
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $_$
#variable_conflict use_column
declare
  v_known     constant text[] := enum_range(null::ff.public_state)::text[];
  v_indexed   constant text[] := array[
    'delayed', 'rate_limited', 'waiting_children', 'suspended', 'resumable', 'failed', 'cancelled',
    'expired', 'skipped'];
  v_problem   text := ff._tags_problem(p_tags);
  v_tags      jsonb;
  v_states    ff.public_state[];
  v_attention ff.public_state[] := '{}';
  v_active    uuid[] := '{}';
  v_routes    bigint[];
  v_before    uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_look_at   integer := p_look_at;
  -- rows found by another index lie scattered and cost twice as much
  v_scattered constant integer := greatest(p_look_at / 2, 100);
  v_quota     integer := 0;
  v_ids       uuid[];
  v_cut       uuid;
begin
  if not p_states <@ v_known or array_position(p_states, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'states', 'problem', 'must be of ' || array_to_string(v_known, ', ')));
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'tags', 'problem', v_problem));
  end if;
  if p_cursor !~ '^[0-9a-f]{32}$' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'is none that a list returned'));
  end if;
  v_tags := nullif(p_tags::jsonb, '{}');
  v_before := coalesce(p_cursor::uuid, v_before);
  if p_worker_instance_id is not null then
    p_states := array(select s from unnest(coalesce(p_states, v_known)) s where s = 'active');
  end if;
  v_states := p_states::ff.public_state[];

  if p_lanes is not null or p_tasks is not null then
    v_routes := array(
      select r.route_id from ff.route r
      where (p_lanes is null or r.lane = any (p_lanes))
        and (p_tasks is null or r.task = any (p_tasks))
        and (p_namespace is null or r.namespace = p_namespace));
  end if;
  if v_states = '{}' or v_routes = '{}' then
    return query select '{}'::uuid[], null::uuid;
    return;
  end if;

  if p_states <@ (v_indexed || 'active'::text) then
    v_attention := array_remove(v_states, 'active');
    v_look_at := 0;
    if 'active' = any (p_states) then
      -- Everything active has a timer or waits to be reclaimed. One more than is looked at means
      -- that there are too many to put into order.
      v_active := array(
        select d.execution_id from (
          select e.execution_id from ff.execution e
          where e.partition_key = p_partition_key and e.due_at is not null
          order by e.due_at
          limit v_scattered) d);
      v_active := v_active || array(
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key
          and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
          and e.reclaim_at is null
        limit v_scattered);
      if cardinality(v_active) >= v_scattered then
        v_active := '{}';
        v_attention := '{}';
        v_look_at := v_scattered;
      end if;
    end if;
    if cardinality(v_attention) > 0 then
      v_quota := greatest((v_scattered - cardinality(v_active)) / cardinality(v_attention), 100);
    end if;
  end if;

  with seen as materialized (
    select k.execution_id, k.route_id, k.namespace, k.public_state, k.created_at, k.terminal_at,
           k.worker_instance_id, 'all' as part
    from (
      select e.execution_id, e.route_id, e.namespace, e.public_state, e.created_at, e.terminal_at,
             e.worker_instance_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id < v_before
      order by e.execution_id desc
      limit v_look_at) k
    union all
    select k.execution_id, k.route_id, k.namespace, k.public_state, k.created_at, k.terminal_at,
           k.worker_instance_id, s.state::text
    from unnest(v_attention) s(state)
    cross join lateral (
      select e.execution_id, e.route_id, e.namespace, e.public_state, e.created_at, e.terminal_at,
             e.worker_instance_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.public_state = s.state
        and e.public_state in (
          'delayed', 'rate_limited', 'waiting_children', 'suspended', 'resumable', 'failed',
          'cancelled', 'expired', 'skipped')
        and e.execution_id < v_before
      order by e.execution_id desc
      limit v_quota) k
    union all
    select k.execution_id, k.route_id, k.namespace, k.public_state, k.created_at, k.terminal_at,
           k.worker_instance_id, null
    from (select distinct x.id from unnest(v_active) x(id)) u
    cross join lateral (
      select e.execution_id, e.route_id, e.namespace, e.public_state, e.created_at, e.terminal_at,
             e.worker_instance_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and case when e.phase = 'active' and e.execution_id < v_before then true else false end
      offset 0) k
  ),
  -- Below this id something may have been left out.
  cut as materialized (
    select c.execution_id
    from (
      select (array_agg(s.execution_id order by s.execution_id))[1] as execution_id
      from seen s
      where s.part is not null
      group by s.part
      having count(*) >= case when s.part = 'all' then v_look_at else v_quota end) c
    order by c.execution_id desc
    limit 1
  ),
  fitting as (
    select s.execution_id
    from seen s
    where (v_states is null or s.public_state = any (v_states))
      and (p_namespace is null or s.namespace = p_namespace)
      and (v_routes is null or s.route_id in (select u.id from unnest(v_routes) u(id)))
      and (p_created_after is null or s.created_at >= p_created_after)
      and (p_created_before is null or s.created_at < p_created_before)
      and (p_ended_after is null or s.terminal_at >= p_ended_after)
      and (p_worker_instance_id is null or s.worker_instance_id = p_worker_instance_id)
      and s.execution_id >= coalesce((select c.execution_id from cut c),
                                     '00000000-0000-0000-0000-000000000000')
    order by s.execution_id desc
    offset 0
  ),
  tagged as (
    select f.execution_id
    from fitting f
    left join lateral (
      select b.tags @> v_tags as is_tagged
      from ff.execution_body b
      where b.partition_key = p_partition_key and b.execution_id = f.execution_id
        and v_tags is not null
      offset 0) t on true
    where v_tags is null or t.is_tagged
    limit p_take + 1
  )
  select array(select t.execution_id from tagged t), (select c.execution_id from cut c)
    into v_ids, v_cut;
  return query
  select v_ids[1 : p_take], case when cardinality(v_ids) > p_take then v_ids[p_take] else v_cut end;
end;
$_$;


--
-- Name: schedule; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.schedule (
    namespace text NOT NULL,
    app text NOT NULL,
    name text NOT NULL,
    schedule_id uuid NOT NULL,
    route_id bigint NOT NULL,
    cron text,
    every interval,
    time_zone text NOT NULL,
    anchor_at timestamp with time zone,
    is_anchored boolean DEFAULT false NOT NULL,
    rule_no integer DEFAULT 0 NOT NULL,
    misfire ff.misfire NOT NULL,
    payload_encoding text,
    payload bytea,
    priority integer DEFAULT 0 NOT NULL,
    deadline interval,
    max_reclaims integer,
    policy jsonb,
    tags jsonb,
    task_version text,
    is_paused boolean DEFAULT false NOT NULL,
    orphaned_at timestamp with time zone,
    state ff.schedule_state GENERATED ALWAYS AS (
CASE
    WHEN (orphaned_at IS NOT NULL) THEN 'orphaned'::ff.schedule_state
    WHEN is_paused THEN 'paused'::ff.schedule_state
    ELSE 'active'::ff.schedule_state
END) STORED NOT NULL,
    next_at timestamp with time zone,
    last_at timestamp with time zone,
    last_id uuid,
    fired_count bigint DEFAULT 0 NOT NULL,
    last_call_id uuid,
    last_call_count integer,
    declared_at timestamp with time zone NOT NULL,
    changed_at timestamp with time zone,
    changed_by text,
    reason text,
    CONSTRAINT every_has_an_anchor CHECK (((every IS NULL) = (anchor_at IS NULL))),
    CONSTRAINT last_firing_is_whole CHECK (((num_nulls(last_at, last_id) = ANY (ARRAY[0, 2])) AND ((last_at IS NULL) = (fired_count = 0)))),
    CONSTRAINT one_rule CHECK ((num_nonnulls(cron, every) = 1)),
    CONSTRAINT only_an_active_schedule_has_a_next_time CHECK (((next_at IS NOT NULL) = ((orphaned_at IS NULL) AND (NOT is_paused))))
);


--
-- Name: _submit_firings(smallint, ff.schedule, timestamp with time zone[], uuid[], text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._submit_firings(p_partition_key smallint, p_schedule ff.schedule, p_fire_ats timestamp with time zone[], p_execution_ids uuid[], p_creator text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $_$
declare
  v_size    constant integer[] := array[cardinality(p_fire_ats)];
  v_refused record;
  v_detail  jsonb;
begin
  if v_size = '{0}' then
    return;
  end if;
  select r.outcome, r.detail into v_refused
  from ff.submit_executions(
    p_partition_key     => p_partition_key,
    p_namespace         => p_schedule.namespace,
    p_execution_ids     => p_execution_ids,
    p_route_ids         => array_fill(p_schedule.route_id, v_size),
    p_payloads          => array_fill(p_schedule.payload, v_size),
    p_priorities        => array_fill(p_schedule.priority, v_size),
    p_payload_encodings => case when p_schedule.payload_encoding is not null
                             then array_fill(p_schedule.payload_encoding, v_size) end,
    p_deadlines         => case when p_schedule.deadline is not null
                             then array_fill(p_schedule.deadline, v_size) end,
    p_policies          => case when p_schedule.policy is not null
                             then array_fill(p_schedule.policy::text, v_size) end,
    p_max_reclaims      => array_fill(p_schedule.max_reclaims, v_size),
    p_tags              => array(
      select (coalesce(p_schedule.tags, '{}') || jsonb_build_object(
                'schedule.name', p_schedule.name,
                'schedule.at', regexp_replace(
                  to_char(u.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '\.0+$', '')
                  || 'Z'))::text
      from unnest(p_fire_ats) with ordinality u(at, n)
      order by u.n),
    p_creators          => array_fill(coalesce(p_creator, 'schedule:' || p_schedule.name), v_size),
    p_task_versions     => case when p_schedule.task_version is not null
                             then array_fill(p_schedule.task_version, v_size) end) r
  where r.outcome <> 'duplicate'
  order by r.item
  limit 1;
  if not found then
    return;
  end if;
  v_detail := coalesce(v_refused.detail, '{}') || jsonb_build_object('schedule', p_schedule.name);
  if v_refused.outcome = 'lane_closed' then
    perform ff._refuse('WF202', 'lane_closed', v_detail);
  elsif v_refused.outcome = 'unknown_route' then
    perform ff._refuse('WF302', 'unknown_route', v_detail);
  end if;
  perform ff._refuse('WF001', 'invalid_input', v_detail);
end;
$_$;


--
-- Name: _tags_problem(text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._tags_problem(p_tags text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $_$
declare
  v_tags jsonb;
  v_key  text;
begin
  if p_tags is null then
    return null;
  end if;
  if octet_length(p_tags) > 131072 then
    return 'are larger than 128 KiB';
  end if;
  begin
    v_tags := p_tags::jsonb;
  exception when data_exception or program_limit_exceeded then
    return 'malformed: they are not JSON, or hold a NUL character';
  end;
  if jsonb_typeof(v_tags) <> 'object' then
    return 'must be an object of text';
  end if;
  if (select count(*) from jsonb_object_keys(v_tags)) > 64 then
    return 'are more than 64';
  end if;
  select t.key into v_key from jsonb_each(v_tags) t
  where t.key !~ '^[a-z][a-z0-9_]*\.[a-z0-9_][a-z0-9_.]*$' limit 1;
  if found then
    return format('the key %s is not of the form team.field (lower case letters, digits, _)',
                  to_jsonb(v_key)::text);
  end if;
  select t.key into v_key from jsonb_each(v_tags) t
  where jsonb_typeof(t.value) <> 'string' or octet_length(t.value #>> '{}') > 1024 limit 1;
  if found then
    return format('the value of %s must be text of at most 1024 bytes', v_key);
  end if;
  return null;
end;
$_$;


--
-- Name: _take_keys(smallint, text, integer[], uuid[], text[], bytea[], text[], interval[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._take_keys(p_partition_key smallint, p_namespace text, p_skip integer[], p_execution_ids uuid[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[]) RETURNS ff.verdict[]
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
  v_refused ff.verdict[] := '{}';
  v_item    record;
  v_first   record;
  v_now     timestamptz;
begin
  for v_item in
    select u.id, u.key, u.fingerprint, coalesce(u.scope, 'window')::ff.key_scope as scope,
           coalesce(u.wnd, interval '1 day') as wnd, u.n::integer as n
    from unnest(p_execution_ids, p_keys, p_key_fingerprints, p_key_scopes, p_key_windows)
      with ordinality u(id, key, fingerprint, scope, wnd, n)
    where u.key is not null and u.n <> all (p_skip)
    order by u.key collate "C", u.n
  loop
    if not pg_try_advisory_xact_lock(hashtextextended(
             concat_ws(E'\x01', 'ff.idempotency_key', p_partition_key, p_namespace, v_item.key), 0))
    then
      v_refused := v_refused
        || row(v_item.n, v_item.id, 'busy', null, null, null)::ff.verdict;
      continue;
    end if;
    v_now := ff.now();
    select k.execution_id, k.fingerprint,
           case k.scope
             when 'window' then k.expires_at > v_now
             -- an earlier item of this call has its key, but not its row yet
             else coalesce((
               select e.phase <> 'terminal' from ff.execution e
               where e.partition_key = k.partition_key and e.execution_id = k.execution_id),
               k.execution_id = any (p_execution_ids)) end as is_live
      into v_first
    from ff.idempotency_key k
    where k.partition_key = p_partition_key and k.namespace = p_namespace and k.key = v_item.key
    for update;
    if found and v_first.is_live then
      v_refused := v_refused || case
        when v_first.fingerprint = v_item.fingerprint then
          row(v_item.n, v_first.execution_id, 'duplicate', null, null, null)::ff.verdict
        else row(v_item.n, v_first.execution_id, 'key_reused', null, null,
                 jsonb_build_object('field', 'key', 'key', v_item.key))::ff.verdict end;
      continue;
    end if;
    -- A window of nothing means: do not remember the key. An id that is taken will not be created,
    -- and the execution that has it, perhaps another tenant's, did not ask for this key.
    if (v_item.wnd > interval '0' or v_item.scope = 'unfinished')
       and not exists (
         select from ff.execution e
         where e.partition_key = p_partition_key and e.execution_id = v_item.id) then
      insert into ff.idempotency_key as k (
        partition_key, namespace, key, execution_id, scope, fingerprint, expires_at)
      values (p_partition_key, p_namespace, v_item.key, v_item.id, v_item.scope,
              v_item.fingerprint, v_now + v_item.wnd)
      on conflict (partition_key, namespace, key) do update
        set execution_id = excluded.execution_id,
            scope = excluded.scope,
            fingerprint = excluded.fingerprint,
            expires_at = excluded.expires_at;
    end if;
  end loop;
  return v_refused;
end;
$$;


--
-- Name: _take_parents(smallint, text, integer[], uuid[], uuid[], boolean[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._take_parents(p_partition_key smallint, p_namespace text, p_skip integer[], p_execution_ids uuid[], p_parent_ids uuid[], p_with_parents boolean[]) RETURNS ff.verdict[]
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_locked uuid[];
  v_open   uuid[];
begin
  select array_agg(l.execution_id), array_agg(l.execution_id) filter (where l.phase <> 'terminal')
    into v_locked, v_open
  from (
    select distinct u.parent_id
    from unnest(p_parent_ids, p_with_parents) with ordinality u(parent_id, with_parent, n)
    where u.with_parent and u.n <> all (p_skip)
    order by u.parent_id
  ) a
  cross join lateral (
    select e.execution_id, e.phase from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = a.parent_id
      and case when e.namespace = p_namespace then true else false end
    for no key update skip locked
  ) l;

  update ff.execution e set is_awaited = true
  from (select p_partition_key as pk, u.id from unnest(v_open) u(id) offset 0) i
  where e.partition_key = i.pk and e.execution_id = i.id
    and case when e.is_awaited then false else true end;

  return coalesce((
    select array_agg(row(
             u.n, u.id,
             case when x.execution_id is null or u.parent_id = any (v_locked) then 'parent_ended'
                  else 'busy' end,
             null, null,
             case when x.execution_id is null or u.parent_id = any (v_locked)
               then jsonb_build_object(
                 'parent_id', format('{fp:%s}:%s', p_partition_key, u.parent_id)) end)::ff.verdict)
    from unnest(p_execution_ids, p_parent_ids, p_with_parents)
      with ordinality u(id, parent_id, with_parent, n)
    left join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.parent_id
        and case when e.namespace = p_namespace then true else false end
      offset 0) x on true
    where u.with_parent and u.n <> all (p_skip) and u.parent_id <> all (coalesce(v_open, '{}'))
  ), '{}');
end;
$$;


--
-- Name: _trim_executions(smallint, uuid[], interval, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._trim_executions(p_partition_key smallint, p_execution_ids uuid[], p_event_floor interval, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_xid xid8;
begin
  with item as materialized (
    select p_partition_key as pk, u.execution_id
    from unnest(p_execution_ids) u(execution_id)
    offset 0
  ),
  executions as (
    delete from ff.execution e
    using item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.terminal_at
  ),
  bodies as (
    delete from ff.execution_body b
    using item i
    where b.partition_key = i.pk and b.execution_id = i.execution_id
  ),
  attempts as (
    delete from ff.attempt a
    using item i
    where a.partition_key = i.pk and a.execution_id = i.execution_id
  ),
  steps as (
    delete from ff.step s
    using item i
    where s.partition_key = i.pk and s.execution_id = i.execution_id
  ),
  waits as (
    delete from ff.run_wait w
    using item i
    where w.partition_key = i.pk and w.waiter_id = i.execution_id
  ),
  grants as (
    delete from ff.grant g
    using item i
    where g.partition_key = i.pk and g.execution_id = i.execution_id
  ),
  kept as (
    insert into ff.event_trim (partition_key, due_at, execution_id)
    select p_partition_key, x.terminal_at + p_event_floor, x.execution_id
    from executions x
    where x.terminal_at + p_event_floor > p_now
    on conflict do nothing
  ),
  old as materialized (
    select p_partition_key as pk, x.execution_id
    from executions x
    where x.terminal_at + p_event_floor <= p_now
    offset 0
  ),
  events as (
    delete from ff.event v
    using old o
    where v.partition_key = o.pk and v.execution_id = o.execution_id
    returning v.xid
  )
  select max(v.xid) into v_xid from events v;
  perform ff._trimmed_to(p_partition_key, v_xid);
end;
$$;


--
-- Name: _trimmed_to(smallint, xid8); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._trimmed_to(p_partition_key smallint, p_xid xid8) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
begin
  if p_xid is not null then
    insert into ff.meta as m (name, value)
    values ('trimmed_xid:' || p_partition_key, p_xid::text)
    on conflict (name) do update
      set value = greatest(m.value::xid8, excluded.value::xid8)::text
      where m.value is null or m.value::xid8 < excluded.value::xid8;
  end if;
end;
$$;


--
-- Name: _use_grant(smallint, uuid, ff.grant_kind, bytea, text, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._use_grant(p_partition_key smallint, p_execution_id uuid, p_kind ff.grant_kind, p_key bytea, p_worker_id text, p_now timestamp with time zone) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_grant ff.grant;
begin
  select g.* into v_grant from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id;
  if v_grant.kind is distinct from p_kind or v_grant.key_hash <> sha256(p_key) then
    return 'invalid_grant';
  elsif v_grant.worker_id <> p_worker_id then
    return 'other_worker';
  elsif v_grant.expires_at <= p_now then
    return 'grant_expired';
  end if;
  delete from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id;
  return 'good';
end;
$$;


--
-- Name: _wake_runs(smallint, uuid[], timestamp with time zone, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._wake_runs(p_partition_key smallint, p_ended_ids uuid[], p_now timestamp with time zone, p_limit integer DEFAULT 100, OUT told integer, OUT pending_ids uuid[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_ended   uuid[] := p_ended_ids;
  v_all     uuid[] := p_ended_ids;
  v_waiters uuid[];
  v_woken   uuid[];
  v_routes  bigint[];
  v_heirs   uuid[];
begin
  told := 0;
  while cardinality(v_ended) > 0 loop
    -- Waiters. Whatever changes about a wait changes under the waiter's lock.
    v_waiters := array(
      select l.execution_id
      from (
        select distinct w.waiter_id
        from unnest(v_ended) u(id)
        cross join lateral (
          select x.waiter_id from ff.run_wait x
          where x.partition_key = p_partition_key and x.target_id = u.id and x.ended_at is null
          order by x.waiter_id limit p_limit) w
        order by w.waiter_id
      ) a
      cross join lateral (
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = a.waiter_id
        for no key update skip locked
      ) l
      limit greatest(p_limit - told, 0));
    if cardinality(v_waiters) > 0 then
      with item as materialized (
        select p_partition_key as pk, w.waiter_id, u.id as target_id
        from unnest(v_ended) u(id)
        cross join lateral (
          select x.waiter_id from ff.run_wait x
          where x.partition_key = p_partition_key and x.target_id = u.id and x.ended_at is null
          offset 0) w
        where w.waiter_id = any (v_waiters)
        offset 0
      ),
      ended as (
        update ff.run_wait w set ended_at = p_now
        from item i
        where w.partition_key = i.pk and w.waiter_id = i.waiter_id and w.target_id = i.target_id
        returning w.waiter_id
      ),
      counted as materialized (
        select p_partition_key as pk, d.waiter_id, count(*)::integer as number
        from ended d group by d.waiter_id
        offset 0
      ),
      counted_down as (
        update ff.execution e set
          wait_left = case when e.wait_left > c.number then e.wait_left - c.number end,
          eligibility = case when e.wait_left > c.number then e.eligibility
                             else 'eligible_now' end,
          blocking_reason = case when e.wait_left > c.number then e.blocking_reason
                                 else 'waiting_for_worker' end,
          cause = case when e.wait_left > c.number then e.cause else 'satisfy_dependencies' end,
          transitioned_at = case when e.wait_left > c.number then e.transitioned_at
                                 else greatest(p_now, e.transitioned_at) end,
          mutated_at = greatest(p_now, e.transitioned_at, e.mutated_at)
        from counted c
        where e.partition_key = c.pk and e.execution_id = c.waiter_id
        returning e.execution_id, e.route_id, e.wait_left
      )
      select array_agg(d.execution_id) filter (where d.wait_left is null),
             array_agg(distinct d.route_id) filter (where d.wait_left is null)
        into v_woken, v_routes
      from counted_down d;
      delete from ff.run_wait w
      using (select p_partition_key as pk, u.id from unnest(v_woken) u(id) offset 0) i
      where w.partition_key = i.pk and w.waiter_id = i.id;
      perform ff._hint_ready(p_partition_key, v_routes);
      told := told + cardinality(v_waiters);
    end if;

    -- Children that end with them.
    v_heirs := array(
      select l.execution_id
      from unnest(v_ended) u(id)
      cross join lateral (
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key and e.parent_id = u.id
          and case when e.ends_with_parent and e.phase <> 'terminal' then true else false end
        for no key update skip locked
      ) l
      limit greatest(p_limit - told, 0));
    v_ended := '{}';
    if cardinality(v_heirs) > 0 then
      perform ff._end_executions(
        p_partition_key, v_heirs, 'cancelled', 'cancel', 'cancelled', 'cancel', 'ended_cancelled',
        p_now,
        p_reason => 'its parent ended',
        p_cancelled_by => 'parent',
        p_detail => jsonb_build_object('source', 'parent', 'reason', 'its parent ended'),
        p_wake => false);
      told := told + cardinality(v_heirs);
      v_ended := array(
        select u.id from unnest(v_heirs) u(id)
        cross join lateral (
          select e.is_awaited from ff.execution e
          where e.partition_key = p_partition_key and e.execution_id = u.id
          offset 0) x
        where x.is_awaited);
      v_all := v_all || v_ended;
    end if;
  end loop;

  with item as materialized (
    select p_partition_key as pk, u.id,
           exists (
             select from ff.run_wait w
             where w.partition_key = p_partition_key and w.target_id = u.id and w.ended_at is null)
           or exists (
             select from ff.execution c
             where c.partition_key = p_partition_key and c.parent_id = u.id
               and case when c.ends_with_parent and c.phase <> 'terminal'
                     then true else false end) as is_pending
    from unnest(v_all) u(id)
    offset 0
  ),
  marked as (
    update ff.execution e set wakes_pending = i.is_pending
    from item i
    where e.partition_key = i.pk and e.execution_id = i.id
      and case when e.wakes_pending <> i.is_pending then true else false end
  )
  select array_agg(i.id) filter (where i.is_pending) into pending_ids from item i;
end;
$$;


--
-- Name: _walk_ended(smallint, uuid, integer, interval, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._walk_ended(p_partition_key smallint, p_position uuid, p_limit integer, p_retention interval, p_now timestamp with time zone, OUT doomed uuid[], OUT next_id uuid) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_last    constant uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_at      uuid := coalesce(p_position, '00000000-0000-0000-0000-000000000000');
  v_left    integer := 2000;
  v_young   uuid;
  v_foreign uuid;
  v_end     uuid;
  v_seen    uuid[];
  v_ended   uuid[];
  v_ends_at timestamptz[];
begin
  -- An id tells its time in milliseconds: what was made in the last of them belongs to it.
  v_young := ff._first_id_of(p_now + interval '2 milliseconds' - least(p_retention, (
    select min(l.retention) from ff.lane l)));
  v_foreign := ff._first_id_of(p_now + interval '1 day');
  doomed := '{}';
  loop
    if v_at < v_young then
      v_end := v_young;
    else
      v_at := greatest(v_at, v_foreign);
      v_end := v_last;
    end if;
    with seen as materialized (
      select e.execution_id, e.route_id, e.phase, e.terminal_at, e.retention, e.wakes_pending,
             e.parent_id
      from ff.execution e
      where e.partition_key = p_partition_key
        and e.execution_id > v_at and e.execution_id <= v_end
      order by e.execution_id
      limit v_left
    ),
    ended as materialized (
      select s.execution_id, s.terminal_at
      from seen s
      left join lateral (
        select x.retention
        from ff.route r join ff.lane x on x.lane = r.lane
        where r.route_id = s.route_id
        offset 0
      ) l on true
      where s.phase = 'terminal' and s.retention is null and not s.wakes_pending
        and s.terminal_at + coalesce(l.retention, p_retention) <= p_now
        and case when s.parent_id is null then true else not exists (
              select from ff.execution p
              where p.partition_key = p_partition_key and p.execution_id = s.parent_id
                and p.phase <> 'terminal') end
      order by s.execution_id
      limit p_limit - cardinality(doomed)
    )
    select array(select s.execution_id from seen s order by s.execution_id),
           array(select d.execution_id from ended d order by d.execution_id),
           array(select d.terminal_at from ended d order by d.execution_id)
      into v_seen, v_ended, v_ends_at;

    -- Whoever has been replayed meanwhile has another end, or none.
    next_id := case
      when cardinality(v_ended) = p_limit - cardinality(doomed) then v_ended[cardinality(v_ended)]
      when cardinality(v_seen) = v_left then v_seen[v_left] end;
    doomed := doomed || array(
      select w.execution_id
      from unnest(v_ended, v_ends_at) u(execution_id, terminal_at)
      cross join lateral (
        select e.execution_id
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.execution_id
          and e.phase = 'terminal' and e.retention is null and e.terminal_at = u.terminal_at
          and not e.wakes_pending
        for update skip locked
      ) w);
    exit when next_id is not null or v_end = v_last;
    v_left := v_left - cardinality(v_seen);
    v_at := v_young;
  end loop;
end;
$$;


--
-- Name: _write_cursor(smallint, xid8, pg_snapshot, bigint, timestamp with time zone, uuid, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._write_cursor(p_partition_key smallint, p_last_xid xid8, p_snapshot pg_snapshot, p_anchor_id bigint, p_anchor_at timestamp with time zone, p_anchor_of uuid, p_trimmed text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
declare
  v_last bigint := coalesce(p_last_xid::text::bigint, 0);
  v_body text;
begin
  v_body := concat_ws(':',
    'ff1', p_partition_key,
    (select to_hex(s.system_identifier) from pg_control_system() s),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
    v_last,
    coalesce((
      select string_agg(to_hex(v_last - x.xid), ',' order by x.xid desc)
      from (
        select r.xid::text::bigint as xid from pg_snapshot_xip(p_snapshot) r(xid)
        union
        -- our own transaction is in no list, and may still write
        select pg_current_xact_id_if_assigned()::text::bigint
      ) x
      where x.xid < v_last
    ), ''),
    coalesce(p_anchor_id, 0),
    coalesce((extract(epoch from p_anchor_at) * 1000000)::bigint, 0),
    coalesce(p_anchor_of::text, ''),
    coalesce(p_trimmed, ''));
  return v_body || ':' || left(encode(sha256(convert_to(v_body, 'UTF8')), 'hex'), 8);
end;
$$;


--
-- Name: _write_grant(smallint, uuid, ff.grant_kind, bytea, text, text, timestamp with time zone, interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff._write_grant(p_partition_key smallint, p_execution_id uuid, p_kind ff.grant_kind, p_key bytea, p_worker_id text, p_worker_instance_id text, p_now timestamp with time zone, p_grant_ttl interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
begin
  insert into ff.grant (
    partition_key, execution_id, kind, key_hash, worker_id, worker_instance_id, issued_at,
    expires_at)
  values (p_partition_key, p_execution_id, p_kind, sha256(p_key), p_worker_id,
          p_worker_instance_id, p_now, p_now + p_grant_ttl)
  on conflict (partition_key, execution_id) do update
    set (kind, key_hash, worker_id, worker_instance_id, issued_at, expires_at)
      = (excluded.kind, excluded.key_hash, excluded.worker_id, excluded.worker_instance_id,
         excluded.issued_at, excluded.expires_at);
end;
$$;


--
-- Name: block_execution_for_admission(smallint, text, uuid, text, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.block_execution_for_admission(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_blocking_reason text, p_detail text DEFAULT NULL::text, p_actor text DEFAULT NULL::text) RETURNS TABLE(outcome text, public_state text, version integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_row   ff.execution;
  v_now   timestamptz;
  v_xid   xid8;
  v_to    constant ff.eligibility := case p_blocking_reason
    when 'waiting_for_budget' then 'blocked_by_budget'
    when 'waiting_for_quota' then 'blocked_by_quota'
    when 'waiting_for_capable_worker' then 'blocked_by_route'
    when 'paused_by_operator' then 'blocked_by_operator'
    when 'paused_by_policy' then 'blocked_by_operator' end;
  v_by    constant ff.blocking_reason := case when v_to is not null then p_blocking_reason end;
  v_event constant integer := (p_actor is not null)::integer;
begin
  perform ff._check_words(p_actor, p_detail);
  if v_to is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'blocking_reason', 'problem',
      'must be waiting_for_budget, waiting_for_quota, waiting_for_capable_worker, '
      'paused_by_operator or paused_by_policy'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.phase = 'terminal' then
    perform ff._refuse('WF201', 'not_active', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'outcome', v_row.outcome));
  end if;
  if v_row.eligibility = v_to and v_row.blocking_reason = v_by then
    return query select 'blocked', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if v_row.eligibility not in ('eligible_now', 'blocked_by_budget', 'blocked_by_quota',
                               'blocked_by_route') then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'blocking_reason', v_row.blocking_reason,
      'hint', 'only an execution that could be claimed now can be blocked'));
  end if;
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  v_xid := pg_current_xact_id();
  with blocked as (
    update ff.execution e set
      eligibility = v_to,
      blocking_reason = v_by,
      blocking_detail = p_detail,
      blocked_at = v_now,
      cause = 'block',
      version = e.version + v_event,
      transitioned_at = v_now,
      mutated_at = v_now
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version
  )
  insert into ff.event (
    partition_key, xid, execution_id, version, kind, route_id, flow_id, namespace, instance_tag,
    occurred_at, actor, detail)
  select p_partition_key, v_xid, p_execution_id, b.version, 'blocked', v_row.route_id,
         v_row.flow_id, v_row.namespace, v_row.instance_tag, v_now, p_actor,
         jsonb_strip_nulls(jsonb_build_object('blocking_reason', v_by, 'reason', p_detail))
  from blocked b
  where v_event = 1;
  return query
  select 'blocked', e.public_state::text, e.version, null::jsonb
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
end;
$$;


--
-- Name: cancel_execution(smallint, text, uuid, text, text, text, uuid, bigint, uuid, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.cancel_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text DEFAULT NULL::text, p_source text DEFAULT 'operator_override'::text, p_actor text DEFAULT NULL::text, p_lease_id uuid DEFAULT NULL::uuid, p_epoch bigint DEFAULT NULL::bigint, p_attempt_id uuid DEFAULT NULL::uuid, p_if_version integer DEFAULT NULL::integer) RETURNS TABLE(outcome text, public_state text, version integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_row        ff.execution;
  v_now        timestamptz;
  v_verdict    ff.verdict;
  v_is_pending boolean;
begin
  perform ff._check_words(p_actor, p_reason);
  if p_source is null or p_source = '' or octet_length(p_source) > 256
     or p_source ~ '[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'source', 'problem', 'must be 1 to 256 bytes without control characters'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.phase = 'terminal' then
    if v_row.outcome <> 'cancelled' then
      perform ff._refuse('WF204', 'already_terminal', jsonb_build_object(
        'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'outcome', v_row.outcome));
    end if;
    return query select 'cancelled', 'cancelled', v_row.version, null::jsonb;
    return;
  end if;
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if p_source = 'lease_holder' or (p_source <> 'operator_override' and v_row.phase = 'active') then
    if num_nulls(p_lease_id, p_epoch, p_attempt_id) > 0 then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'fence',
        'problem', case num_nulls(p_lease_id, p_epoch, p_attempt_id)
                     when 3 then 'fence_required' else 'partial_fence_triple' end,
        'hint', 'give lease_id, epoch and attempt_id, or cancel as operator_override'));
    end if;
    v_verdict := (ff._judge_leases(p_partition_key, p_namespace, 'cancel', array[p_execution_id],
                                   array[p_lease_id], array[p_epoch], array[p_attempt_id], false))[1];
    if v_verdict.word <> 'held' then
      -- Read again: the lease may have been marked expired. A lease that was cancelled and comes back
      -- after a replay is told so again.
      return query
      select case v_verdict.word when 'repeat' then 'cancelled' else v_verdict.word end,
             e.public_state::text, e.version, v_verdict.detail
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
      return;
    end if;
  end if;

  v_now := ff.now();
  v_is_pending := ff._end_executions(
    p_partition_key, array[p_execution_id], 'cancelled', 'cancel', 'cancelled', 'cancel',
    'ended_cancelled', v_now,
    p_reason => p_reason,
    p_cancelled_by => p_source,
    p_actor => p_actor,
    p_detail => jsonb_strip_nulls(jsonb_build_object('source', p_source, 'reason', p_reason)));
  return query
  select 'cancelled', 'cancelled', v_row.version + 1,
         case when v_is_pending then jsonb_build_object('wakes_pending', true) end;
end;
$$;


--
-- Name: change_priority(smallint, text, uuid, integer, text, text, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.change_priority(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_priority integer, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_if_version integer DEFAULT NULL::integer) RETURNS TABLE(outcome text, public_state text, version integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_row    ff.execution;
  v_now    timestamptz;
  v_xid    xid8;
  v_rank   constant smallint := 9000 - least(greatest(p_priority, 0), 9000);
  v_change jsonb;
begin
  perform ff._check_words(p_actor, p_reason);
  if p_priority is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'priority', 'problem', 'must be a whole number'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version,
                        jsonb_build_object('new_priority', 9000 - v_row.rank);
    return;
  end if;
  if v_row.phase <> 'runnable' then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'hint', 'only an execution that waits has a place in the order'));
  end if;
  v_now := ff.now();
  v_xid := pg_current_xact_id();
  v_change := jsonb_build_object('old_priority', 9000 - v_row.rank, 'new_priority', 9000 - v_rank);
  with changed as (
    update ff.execution e set
      rank = v_rank,
      cause = 'change_priority',
      version = e.version + 1,
      mutated_at = greatest(v_now, e.mutated_at)
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version, e.mutated_at
  )
  insert into ff.event (
    partition_key, xid, execution_id, version, kind, route_id, flow_id, namespace, instance_tag,
    occurred_at, actor, detail)
  select p_partition_key, v_xid, p_execution_id, c.version, 'priority_changed', v_row.route_id,
         v_row.flow_id, v_row.namespace, v_row.instance_tag, c.mutated_at, p_actor,
         v_change || jsonb_strip_nulls(jsonb_build_object('reason', p_reason))
  from changed c;
  return query select 'changed', v_row.public_state::text, v_row.version + 1, v_change;
end;
$$;


--
-- Name: claim_execution(smallint, text, uuid, bytea, text, text, uuid, interval, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.claim_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval, p_expected_attempt_index integer DEFAULT NULL::integer) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, claim_kind text, rank smallint, created_at timestamp with time zone, epoch bigint, attempt_index integer, attempt_id uuid, attempt_type text, lease_expires_at timestamp with time zone, attempt_deadline_at timestamp with time zone, deadline_at timestamp with time zone, retry_count integer, payload_encoding text, payload bytea, replay_count integer, trace_context text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now  timestamptz;
  v_row  ff.execution;
  v_word text;
begin
  perform ff._check_grant(p_execution_id, p_key);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, '{}', 1, p_lease_ttl);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  if v_row.ownership = 'leased' and v_row.lease_id = p_claim_id then
    return query select * from ff._claimed(p_partition_key, array[p_execution_id], p_claim_id);
    return;
  end if;

  if v_row.ownership = 'leased' then
    perform ff._refuse('WF404', 'lease_conflict', jsonb_build_object(
      'worker_id', v_row.worker_id, 'lease_expires_at', v_row.lease_expires_at));
  elsif v_row.phase <> 'runnable' or v_row.eligibility <> 'eligible_now' then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_build_object(
      'phase', v_row.phase, 'eligibility', v_row.eligibility, 'ownership', v_row.ownership));
  elsif v_row.attempt_state = 'attempt_interrupted' then
    perform ff._refuse('WF208', 'use_claim_resumed', jsonb_build_object(
      'attempt_index', v_row.attempt_index));
  elsif p_expected_attempt_index <> v_row.total_attempt_count then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_build_object(
      'expected_attempt_index', p_expected_attempt_index,
      'next_attempt_index', v_row.total_attempt_count));
  end if;
  perform ff._check_lane(v_row.route_id, v_now);
  perform ff._check_new_lease(p_partition_key, p_execution_id, p_claim_id, array[
    v_row.last_lease_id, v_row.attempt_id]);
  v_word := ff._use_grant(p_partition_key, p_execution_id, 'claim', p_key, p_worker_id, v_now);
  if v_word = 'grant_expired' then
    perform ff._refuse('WF407', 'grant_expired');
  elsif v_word <> 'good' then
    perform ff._refuse('WF406', 'invalid_grant');
  end if;
  return query select * from ff._lease_executions(
    p_partition_key, array[p_execution_id], v_row.total_attempt_count > 0, p_claim_id, p_worker_id,
    p_worker_instance_id, p_lease_ttl, v_now);
end;
$$;


--
-- Name: claim_executions(smallint, text, text, text, uuid, text[], text[], text[], integer, interval, text, smallint, timestamp with time zone, uuid); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.claim_executions(p_partition_key smallint, p_namespace text, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lanes text[], p_tasks text[], p_capabilities text[], p_limit integer, p_lease_ttl interval, p_first_lane text DEFAULT NULL::text, p_floor_rank smallint DEFAULT NULL::smallint, p_floor_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_floor_id uuid DEFAULT NULL::uuid) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, claim_kind text, rank smallint, created_at timestamp with time zone, epoch bigint, attempt_index integer, attempt_id uuid, attempt_type text, lease_expires_at timestamp with time zone, attempt_deadline_at timestamp with time zone, deadline_at timestamp with time zone, retry_count integer, payload_encoding text, payload bytea, replay_count integer, trace_context text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now        timestamptz;
  v_slot_claim uuid;
  v_slot_ids   uuid[];
  v_routes     bigint[];
  v_turns      smallint[];
  v_reclaiming boolean;
  v_granted    boolean;
  v_left       uuid[];
  v_round      record;
  v_window     integer := p_limit;
  v_from_rank  smallint := coalesce(p_floor_rank, -1::smallint);
  v_from_turn  smallint := 0;
  v_from_at    timestamptz := coalesce(p_floor_at, '-infinity');
  v_from_id    uuid := coalesce(p_floor_id, '00000000-0000-0000-0000-000000000000');
  v_seen       bigint := 0;
  v_need       integer;
  v_vain       integer := 0;
  v_picked     uuid[] := '{}';
  v_capped     uuid[] := '{}';
  v_has_past   boolean := false;
begin
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, p_capabilities, p_limit,
                          p_lease_ttl);

  select s.claim_id, s.execution_ids into v_slot_claim, v_slot_ids
  from ff.claim_slot s
  where s.partition_key = p_partition_key and s.worker_instance_id = p_worker_instance_id;
  if v_slot_claim = p_claim_id then
    return query select * from ff._claimed(p_partition_key, v_slot_ids, p_claim_id);
    return;
  end if;

  v_now := ff.now();
  select array_agg(r.route_id order by r.route_id),
         array_agg((r.lane <> coalesce(p_first_lane, r.lane))::integer::smallint
                   order by r.route_id)
    into v_routes, v_turns
  from (
    -- One way by the index for a worker that knows its tasks, one for a caller that takes any.
    select k.route_id, k.lane, k.namespace, k.capabilities
    from (select distinct u.task from unnest(p_tasks) u(task)) t
    cross join lateral (
      select x.route_id, x.lane, x.namespace, x.capabilities
      from ff.route x where x.task = t.task offset 0) k
    union all
    select x.route_id, x.lane, x.namespace, x.capabilities
    from ff.route x where p_tasks is null
  ) r
  join ff.lane l on l.lane = r.lane
  where (p_lanes is null or r.lane = any (p_lanes))
    and (p_namespace is null or r.namespace = p_namespace)
    and r.capabilities <@ p_capabilities
    and (l.state in ('active', 'draining') or l.resumes_at <= v_now);
  if v_routes is null then
    return;
  end if;
  select exists (
           select from ff.execution e
           where e.partition_key = p_partition_key
             and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
             and e.reclaim_at is null),
         exists (
           select from ff.grant g
           where g.partition_key = p_partition_key and g.expires_at > '-infinity'
             and g.expires_at > v_now)
    into v_reclaiming, v_granted;

  -- Each round reads the next window of candidates in order, without locks, then locks them in that
  -- order; what others have locked is skipped, so the next round goes on behind. Rows locked in vain
  -- stay locked: once there might be more of them than the limit, they are tried one by one.
  loop
    v_need := p_limit - cardinality(v_picked);
    if v_vain + v_need <= p_limit then
      select r.picked, r.capped, r.has_past, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.created_at, r.execution_id
        into v_round
      from ff._pick_candidates(
        p_partition_key, v_routes, v_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_window, v_need, case when v_granted then p_worker_id end, v_now) r;
    else
      select r.picked, r.capped, r.has_past, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.created_at, r.execution_id
        into v_round
      from ff._pick_singly(
        p_partition_key, v_routes, v_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_window, v_need, p_limit - v_vain,
        case when v_granted then p_worker_id end, v_now) r;
    end if;
    -- A grant may have come between reading a row and locking it; from here on none can.
    if v_round.picked <> '{}' or v_round.capped <> '{}' then
      v_granted := exists (select from ff.grant g where g.partition_key = p_partition_key);
      if v_granted then
        v_left := ff._drop_granted(p_partition_key, v_round.picked, p_worker_id, v_now);
        v_vain := v_vain + cardinality(v_round.picked) - cardinality(v_left);
        v_round.picked := v_left;
        v_round.capped := ff._drop_granted(p_partition_key, v_round.capped, p_worker_id, v_now);
      end if;
    end if;
    v_picked := v_picked || v_round.picked;
    v_capped := v_capped || v_round.capped;
    v_has_past := v_has_past or v_round.has_past;
    v_seen := v_seen + v_round.seen;
    v_vain := v_vain + v_round.vain;
    exit when cardinality(v_picked) = p_limit
           or cardinality(v_picked) + cardinality(v_capped) >= 2 * p_limit
           or (v_round.seen < v_window and not v_round.is_cut);
    -- A window that others hold whole is a sign of more to come: look further at once.
    v_window := case when v_round.picked = '{}' and v_round.vain = 0 and v_round.capped = '{}'
                       then least(v_window * 2, 8000)
                     else greatest(p_limit - cardinality(v_picked), 20) end;
    v_from_rank := v_round.rank;
    v_from_turn := v_round.turn;
    v_from_at := v_round.created_at;
    v_from_id := v_round.execution_id;
  end loop;

  if cardinality(v_capped) > 0 then
    perform ff._exceed_reclaims(p_partition_key, v_capped, v_now);
    -- Their children may be among those to be leased, and have ended with them.
    v_picked := array(
      select u.id from unnest(v_picked) with ordinality u(id, n)
      cross join lateral (
        select e.phase from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.phase <> 'terminal'
      order by u.n);
  end if;
  if v_seen = 0 then
    -- Nothing there, unless the original of this call has taken it since the slot was read.
    return query
    select c.* from ff.claim_slot s
    cross join lateral ff._claimed(p_partition_key, s.execution_ids, p_claim_id) c
    where s.partition_key = p_partition_key and s.worker_instance_id = p_worker_instance_id
      and s.claim_id = p_claim_id;
    return;
  end if;
  if cardinality(v_picked) > 0 then
    if v_granted then
      delete from ff.grant g
      using (select p_partition_key as pk, u.id from unnest(v_picked) u(id) offset 0) i
      where g.partition_key = i.pk and g.execution_id = i.id;
    end if;
    return query select * from ff._lease_executions(
      p_partition_key, v_picked, v_has_past, p_claim_id, p_worker_id, p_worker_instance_id,
      p_lease_ttl, v_now);
  end if;

  -- Written last and only from the state read first: a repeat that overlaps its original waits here
  -- and is then sent back to read the original's answer. So it is written, too, when all that waits
  -- is locked: it may be the original that holds it, and only one of the two may count.
  insert into ff.claim_slot as s (
    partition_key, worker_instance_id, claim_id, claimed_at, execution_ids)
  values (p_partition_key, p_worker_instance_id, p_claim_id, v_now, v_picked)
  on conflict (partition_key, worker_instance_id) do update
    set claim_id = excluded.claim_id,
        claimed_at = excluded.claimed_at,
        execution_ids = excluded.execution_ids
    where s.claim_id is not distinct from v_slot_claim;
  if not found then
    raise exception using errcode = '40001',
      message = 'another claim of this worker instance was faster';
  end if;
end;
$$;


--
-- Name: claim_resumed_execution(smallint, text, uuid, bytea, text, text, uuid, interval, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.claim_resumed_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval, p_expected_attempt_index integer DEFAULT NULL::integer) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, claim_kind text, rank smallint, created_at timestamp with time zone, epoch bigint, attempt_index integer, attempt_id uuid, attempt_type text, lease_expires_at timestamp with time zone, attempt_deadline_at timestamp with time zone, deadline_at timestamp with time zone, retry_count integer, payload_encoding text, payload bytea, replay_count integer, trace_context text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now  timestamptz;
  v_row  ff.execution;
  v_word text;
begin
  perform ff._check_grant(p_execution_id, p_key);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, '{}', 1, p_lease_ttl);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  if v_row.ownership = 'leased' and v_row.lease_id = p_claim_id then
    return query select * from ff._claimed(p_partition_key, array[p_execution_id], p_claim_id);
    return;
  end if;

  if v_row.ownership = 'leased' then
    perform ff._refuse('WF404', 'lease_conflict', jsonb_build_object(
      'worker_id', v_row.worker_id, 'lease_expires_at', v_row.lease_expires_at));
  elsif v_row.phase <> 'runnable' or v_row.eligibility <> 'eligible_now' then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_build_object(
      'phase', v_row.phase, 'eligibility', v_row.eligibility, 'ownership', v_row.ownership));
  elsif v_row.attempt_state <> 'attempt_interrupted' then
    perform ff._refuse('WF209', 'not_resumed', jsonb_build_object(
      'attempt_state', v_row.attempt_state));
  elsif p_expected_attempt_index <> v_row.attempt_index then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_build_object(
      'expected_attempt_index', p_expected_attempt_index, 'attempt_index', v_row.attempt_index));
  end if;
  perform ff._check_lane(v_row.route_id, v_now);
  perform ff._check_new_lease(p_partition_key, p_execution_id, p_claim_id, array[
    v_row.last_lease_id, v_row.attempt_id]);
  v_word := ff._use_grant(p_partition_key, p_execution_id, 'resume', p_key, p_worker_id, v_now);
  if v_word = 'grant_expired' then
    perform ff._refuse('WF407', 'grant_expired');
  elsif v_word <> 'good' then
    perform ff._refuse('WF406', 'invalid_grant');
  end if;
  return query select * from ff._lease_executions(
    p_partition_key, array[p_execution_id], true, p_claim_id, p_worker_id, p_worker_instance_id,
    p_lease_ttl, v_now);
end;
$$;


--
-- Name: complete_executions(smallint, text, uuid[], uuid[], bigint[], uuid[], bytea[], text[], boolean, boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.complete_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_results bytea[], p_result_encodings text[] DEFAULT NULL::text[], p_wait boolean DEFAULT false, p_hint boolean DEFAULT true) RETURNS TABLE(item integer, outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_xid     xid8;
  v_done    bigint[];
  v_awaited uuid[];
  v_wakes   record;
  v_rest    bigint[];
  v_judged  ff.verdict[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids),
    cardinality(p_results), cardinality(p_result_encodings)], p_wait);
  if p_wait then
    perform 1 from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
    for no key update;
  end if;
  v_now := ff.now();
  v_xid := pg_current_xact_id();

  -- The fence stands inside a case: as plain conditions it would tempt the planner away from the
  -- primary key. What does not pass is judged below, item by item.
  with asked as materialized (
    select p_partition_key as pk, u.id, u.lease_id, u.epoch, u.attempt_id, u.result, u.encoding,
           u.n, lag(u.id) over (order by u.id, u.n) is not distinct from u.id as is_second
    from unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids, p_results,
                p_result_encodings)
      with ordinality u(id, lease_id, epoch, attempt_id, result, encoding, n)
    order by u.id, u.n
    offset 0
  ),
  held as materialized (
    select a.pk, a.id, a.result, a.encoding, a.n
    from asked a
    cross join lateral (
      select x.execution_id
      from ff.execution x
      where x.partition_key = a.pk and x.execution_id = a.id
        and case when not a.is_second and x.ownership = 'leased'
                  and x.lease_id = a.lease_id and x.epoch = a.epoch and x.attempt_id = a.attempt_id
                  and x.lease_expires_at > greatest(v_now, x.transitioned_at)
                  and coalesce(octet_length(a.result), 0) <= 1048576
                  and coalesce(octet_length(a.encoding), 0) <= 64
                  and (p_namespace is null or x.namespace = p_namespace)
              then true else false end
      for no key update skip locked
    ) e
  ),
  done as (
    update ff.execution e set
      phase = 'terminal',
      ownership = 'unowned',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      outcome = 'success',
      attempt_state = 'attempt_terminal',
      cause = 'complete',
      version = e.version + 1,
      result = h.result,
      result_encoding = h.encoding,
      last_lease_id = e.lease_id,
      last_lease_end = 'complete',
      last_lease_retry_at = null,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      due_at = null,
      trim_at = greatest(v_now, e.transitioned_at) + e.retention,
      attempt_deadline_at = null,
      attempt_ended_at = greatest(v_now, e.transitioned_at),
      attempt_ended_as = 'ended_success',
      terminal_at = greatest(v_now, e.transitioned_at),
      transitioned_at = greatest(v_now, e.transitioned_at),
      mutated_at = greatest(v_now, e.transitioned_at)
    from held h
    where e.partition_key = h.pk and e.execution_id = h.id
    returning h.n, e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch, e.route_id,
              e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at,
              e.is_awaited
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, outcome, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
    select p_partition_key, v_xid, d.execution_id, d.version, 'completed', 'success',
           d.attempt_index, d.last_lease_id, d.epoch, d.last_worker_instance_id, d.route_id,
           d.flow_id, d.namespace, d.instance_tag, d.transitioned_at
    from done d
  )
  select array_agg(d.n), array_agg(d.execution_id) filter (where d.is_awaited)
    into v_done, v_awaited
  from done d;

  if p_hint and v_done is not null then
    perform pg_notify('ff_ended', p_partition_key::text);
  end if;
  if v_awaited is not null then
    v_wakes := ff._wake_runs(p_partition_key, v_awaited, v_now);
    return query
    select u.n::integer, 'completed', jsonb_build_object('wakes_pending', true)
    from unnest(p_execution_ids) with ordinality u(id, n)
    where u.n = any (v_done) and u.id = any (v_wakes.pending_ids);
  end if;
  if cardinality(v_done) = cardinality(p_execution_ids) then
    return;
  end if;

  v_rest := array(
    select n from generate_subscripts(p_execution_ids, 1) n where n <> all (coalesce(v_done, '{}')));
  v_judged := ff._judge_leases(
    p_partition_key, p_namespace, 'complete',
    array(select p_execution_ids[n] from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select p_lease_ids[n] from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select p_epochs[n] from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select p_attempt_ids[n] from unnest(v_rest) with ordinality r(n, o) order by o),
    false);
  return query
  select v_rest[j.item]::integer,
         case when j.word = 'repeat' then 'completed'
              when j.word = 'held' and b.field is not null then 'invalid'
              -- good again, but not a moment ago: somebody held the row, so it is to be repeated
              when j.word = 'held' then 'busy'
              else j.word end,
         case when j.word = 'held' and b.field is not null
                then jsonb_build_object('field', b.field, 'problem', b.problem)
              else j.detail end
  from unnest(v_judged) j
  cross join lateral (
    select w.words[1] as field, w.words[2] as problem
    from (select case
              when octet_length(p_results[v_rest[j.item]]) > 1048576
                then array['result', 'is larger than 1 MiB (1048576 bytes)']
              when octet_length(p_result_encodings[v_rest[j.item]]) > 64
                then array['result_encoding', 'must be at most 64 bytes']
            end as words) w) b;
end;
$$;


--
-- Name: count_executions(smallint, text, text[], text[], text[], text, timestamp with time zone, timestamp with time zone, timestamp with time zone, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.count_executions(p_partition_key smallint, p_namespace text, p_states text[] DEFAULT NULL::text[], p_lanes text[] DEFAULT NULL::text[], p_tasks text[] DEFAULT NULL::text[], p_tags text DEFAULT NULL::text, p_created_after timestamp with time zone DEFAULT NULL::timestamp with time zone, p_created_before timestamp with time zone DEFAULT NULL::timestamp with time zone, p_ended_after timestamp with time zone DEFAULT NULL::timestamp with time zone, p_worker_instance_id text DEFAULT NULL::text, p_cursor text DEFAULT NULL::text) RETURNS TABLE(counted integer, next_cursor text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
#variable_conflict use_column
begin
  return query
  select cardinality(f.execution_ids), replace(f.next_id::text, '-', '')
  from ff._scan_executions(
    p_partition_key, p_namespace, p_states, p_lanes, p_tasks, p_tags, p_created_after,
    p_created_before, p_ended_after, p_worker_instance_id, p_cursor, 10000,
    case when p_tags is null then 2500 else 1500 end) f;
end;
$$;


--
-- Name: declare_schedules(text, text, integer[], bigint, text[], uuid[], bigint[], text[], interval[], text[], timestamp with time zone[], boolean[], text[], timestamp with time zone[], bytea[], text[], integer[], interval[], integer[], text[], text[], text[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.declare_schedules(p_namespace text, p_app text, p_version integer[], p_generation bigint DEFAULT NULL::bigint, p_names text[] DEFAULT '{}'::text[], p_schedule_ids uuid[] DEFAULT '{}'::uuid[], p_route_ids bigint[] DEFAULT '{}'::bigint[], p_crons text[] DEFAULT NULL::text[], p_everys interval[] DEFAULT NULL::interval[], p_time_zones text[] DEFAULT NULL::text[], p_anchor_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_are_anchored boolean[] DEFAULT NULL::boolean[], p_misfires text[] DEFAULT NULL::text[], p_next_ats timestamp with time zone[] DEFAULT '{}'::timestamp with time zone[], p_payloads bytea[] DEFAULT NULL::bytea[], p_payload_encodings text[] DEFAULT NULL::text[], p_priorities integer[] DEFAULT NULL::integer[], p_deadlines interval[] DEFAULT NULL::interval[], p_max_reclaims integer[] DEFAULT NULL::integer[], p_policies text[] DEFAULT NULL::text[], p_tags text[] DEFAULT NULL::text[], p_task_versions text[] DEFAULT NULL::text[]) RETURNS TABLE(outcome text, generation bigint, version integer[], orphaned text[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_known   ff.schedule_app;
  v_field   text;
  v_problem text;
  v_which   text;
  v_new     text[];
  v_changed boolean;
  v_gone    text[];
begin
  if p_namespace is null or p_namespace = '' or octet_length(p_namespace) > 256
     or p_namespace ~ '[\x01-\x20\x7f]' then
    v_field := 'namespace';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif p_app is null or p_app = '' or octet_length(p_app) > 256 or p_app ~ '[\x01-\x20\x7f]' then
    v_field := 'app';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif coalesce(cardinality(p_version) not between 1 and 8, true)
     or array_position(p_version, null) is not null or 0 > any (p_version) then
    v_field := 'version'; v_problem := 'must be 1 to 8 numbers from 0 on';
  elsif coalesce(cardinality(p_names) > 10000, true) then
    v_field := 'names'; v_problem := 'must be at most 10000';
  elsif cardinality(p_names) <> any (array[
          coalesce(cardinality(p_schedule_ids), -1), coalesce(cardinality(p_route_ids), -1),
          coalesce(cardinality(p_next_ats), -1), cardinality(p_crons), cardinality(p_everys),
          cardinality(p_time_zones), cardinality(p_anchor_ats), cardinality(p_are_anchored),
          cardinality(p_misfires), cardinality(p_payloads), cardinality(p_payload_encodings),
          cardinality(p_priorities), cardinality(p_deadlines), cardinality(p_max_reclaims),
          cardinality(p_policies), cardinality(p_tags), cardinality(p_task_versions)]) then
    v_field := 'names'; v_problem := 'arrays of one call must have the same length';
  elsif (select count(distinct u.name) < count(u.name) from unnest(p_names) u(name)) then
    v_field := 'names'; v_problem := 'must be different';
  else
    select w.words[1], w.words[2], u.name into v_field, v_problem, v_which
    from unnest(p_names, p_schedule_ids, p_route_ids, p_crons, p_everys, p_time_zones, p_anchor_ats,
                p_misfires, p_next_ats, p_payloads, p_payload_encodings, p_deadlines,
                p_max_reclaims, p_policies, p_tags, p_task_versions)
      with ordinality u(name, id, route_id, cron, every, time_zone, anchor_at, misfire, next_at,
                        payload, encoding, deadline, max_reclaims, policy, tags, task_version, n)
    cross join lateral (
      select case
          when u.name is null or u.name = '' or octet_length(u.name) > 240
            or u.name ~ '[\x01-\x20\x7f]'
            then array['name', 'must be 1 to 240 bytes without whitespace or control characters']
          when u.id is null then array['schedule_id', 'must be a uuid']
          when not exists (select from ff.route r
                           where r.route_id = u.route_id and r.namespace = p_namespace)
            then array['route_id', 'must be a route registered in this namespace']
          when num_nonnulls(u.cron, u.every) <> 1
            then array['cron', 'must be given, or else every, not both']
          when u.cron = '' or octet_length(u.cron) > 256
            then array['cron', 'must be 1 to 256 bytes']
          when u.every not between interval '1 second' and interval '36525 days'
            then array['every', 'must be between a second and a hundred years']
          when (u.every is null) <> (u.anchor_at is null)
            then array['anchor_at', 'goes with every']
          when u.anchor_at < timestamptz '0001-01-02 00:00:00+00'
            or u.anchor_at >= timestamptz '9999-01-01 00:00:00+00'
            then array['anchor_at', 'must be between the years 1 and 9999']
          when octet_length(u.time_zone) not between 1 and 64
            then array['time_zone', 'must be 1 to 64 bytes']
          when coalesce(u.misfire, 'once') not in ('once', 'skip', 'all')
            then array['misfire', 'must be once, skip or all']
          when u.next_at is null or u.next_at < timestamptz '0001-01-02 00:00:00+00'
            or u.next_at >= timestamptz '9999-01-01 00:00:00+00'
            then array['next_at', 'must be between the years 1 and 9999']
          when octet_length(u.payload) > 1048576
            then array['payload', 'is larger than 1 MiB (1048576 bytes)']
          when octet_length(u.encoding) > 64
            then array['payload_encoding', 'must be at most 64 bytes']
          when u.deadline not between interval '-36525 days' and interval '36525 days'
            then array['deadline', 'must be at most a hundred years']
          when u.max_reclaims not between 0 and 1000000
            then array['max_reclaims', 'must be from 0 to 1000000']
          when ff._policy_problem(u.policy) is not null
            then array['policy', ff._policy_problem(u.policy)]
          when ff._tags_problem(u.tags) is not null
            then array['tags', ff._tags_problem(u.tags)]
          when (select count(*) from jsonb_object_keys(u.tags::jsonb)) > 62
            then array['tags', 'must be at most 62: two more say what fired']
          when octet_length(u.task_version) not between 1 and 256
            then array['task_version', 'must be 1 to 256 bytes']
        end as words) w
    where w.words is not null
    order by u.n
    limit 1;
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_strip_nulls(jsonb_build_object(
      'field', v_field, 'problem', v_problem, 'schedule', v_which)));
  end if;

  insert into ff.schedule_app as a (namespace, app, version)
  values (p_namespace, p_app, p_version)
  on conflict (namespace, app) do update set version = greatest(a.version, excluded.version)
  returning a.namespace, a.app, a.version, a.generation into v_known;
  v_now := ff.now();
  if v_known.version > p_version then
    return query select 'older', v_known.generation, v_known.version, '{}'::text[];
    return;
  end if;
  if v_known.generation > p_generation then
    return query select 'superseded', v_known.generation, v_known.version, '{}'::text[];
    return;
  end if;

  -- What has a rule other than the one stored; no call but this one changes rules.
  v_new := array(
    select u.name
    from unnest(p_names, p_crons, p_everys, p_time_zones, p_anchor_ats, p_are_anchored)
      u(name, cron, every, time_zone, anchor_at, is_anchored)
    join ff.schedule s on s.namespace = p_namespace and s.app = p_app and s.name = u.name
    where (s.cron, s.every, s.time_zone)
          is distinct from (u.cron, u.every, coalesce(u.time_zone, 'UTC'))
       or (u.is_anchored and u.anchor_at is distinct from s.anchor_at));

  with declared as (
    insert into ff.schedule as s (
      namespace, app, name, schedule_id, route_id, cron, every, time_zone, anchor_at, is_anchored,
      misfire, payload_encoding, payload, priority, deadline, max_reclaims, policy, tags,
      task_version, next_at, declared_at)
    select p_namespace, p_app, u.name, u.id, u.route_id, u.cron, u.every,
           coalesce(u.time_zone, 'UTC'), u.anchor_at, coalesce(u.is_anchored, false),
           coalesce(u.misfire, 'once')::ff.misfire, u.encoding, u.payload, coalesce(u.priority, 0),
           u.deadline, u.max_reclaims, u.policy::jsonb, nullif(u.tags::jsonb, '{}'),
           u.task_version, u.next_at, v_now
    from unnest(p_names, p_schedule_ids, p_route_ids, p_crons, p_everys, p_time_zones, p_anchor_ats,
                p_are_anchored, p_misfires, p_next_ats, p_payloads, p_payload_encodings,
                p_priorities, p_deadlines, p_max_reclaims, p_policies, p_tags, p_task_versions)
      u(name, id, route_id, cron, every, time_zone, anchor_at, is_anchored, misfire, next_at,
        payload, encoding, priority, deadline, max_reclaims, policy, tags, task_version)
    order by u.name
    on conflict (namespace, app, name) do update set
      route_id = excluded.route_id, cron = excluded.cron, every = excluded.every,
      time_zone = excluded.time_zone,
      anchor_at = case when s.name = any (v_new) then excluded.anchor_at else s.anchor_at end,
      is_anchored = excluded.is_anchored,
      rule_no = s.rule_no + case when s.name = any (v_new) then 1 else 0 end,
      misfire = excluded.misfire, payload_encoding = excluded.payload_encoding,
      payload = excluded.payload, priority = excluded.priority, deadline = excluded.deadline,
      max_reclaims = excluded.max_reclaims, policy = excluded.policy, tags = excluded.tags,
      task_version = excluded.task_version, orphaned_at = null,
      next_at = case when s.is_paused then null
                     when s.orphaned_at is not null or s.name = any (v_new) then excluded.next_at
                     else s.next_at end
    where s.orphaned_at is not null or s.name = any (v_new)
       or (s.route_id, s.is_anchored, s.misfire, s.payload_encoding, s.payload, s.priority,
           s.deadline, s.max_reclaims, s.policy, s.tags, s.task_version)
          is distinct from (
            excluded.route_id, excluded.is_anchored, excluded.misfire, excluded.payload_encoding,
            excluded.payload, excluded.priority, excluded.deadline, excluded.max_reclaims,
            excluded.policy, excluded.tags, excluded.task_version)
    returning s.name
  ),
  orphaned as (
    update ff.schedule s set orphaned_at = v_now, next_at = null
    where s.namespace = p_namespace and s.app = p_app and s.orphaned_at is null
      and s.name <> all (p_names)
    returning s.name
  )
  select exists (select from declared) or exists (select from orphaned),
         array(select o.name from orphaned o order by o.name)
  into v_changed, v_gone;
  if v_changed then
    update ff.schedule_app a set generation = a.generation + 1
    where a.namespace = p_namespace and a.app = p_app
    returning a.generation into v_known.generation;
  end if;
  return query select 'declared', v_known.generation, v_known.version, v_gone;
end;
$$;


--
-- Name: delay_execution(smallint, text, uuid, uuid, bigint, uuid, interval, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.delay_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_delay interval DEFAULT NULL::interval, p_delayed_until timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(outcome text, delayed_until timestamp with time zone, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_verdict ff.verdict;
  v_now     timestamptz;
  v_until   timestamptz;
begin
  if num_nonnulls(p_delay, p_delayed_until) <> 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delay', 'problem', 'give either a delay or a time to wait until'));
  end if;
  if p_delay not between interval '-36525 days' and interval '36525 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delay', 'problem', 'must be at most a hundred years'));
  end if;
  if p_delayed_until >= timestamptz '9999-01-01 00:00:00+00' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delayed_until', 'problem', 'must be before the year 9999'));
  end if;
  v_verdict := (ff._judge_leases(
    p_partition_key, p_namespace, 'delay', array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'held' then
    return query
    select case v_verdict.word when 'repeat' then 'delayed' else v_verdict.word end,
           v_verdict.until_at, v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  v_until := coalesce(p_delayed_until, v_now + p_delay);
  v_until := case when v_until > v_now then v_until end;
  if v_until is null then
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'delay', 'eligible_now', 'waiting_for_worker',
      'delay', 'delayed', 'worker_delay', v_now);
  else
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'delay', 'not_eligible_until_time',
      'waiting_for_delay', 'delay', 'delayed', 'worker_delay', v_now,
      p_until_at => v_until,
      p_detail => jsonb_build_object('delayed_until', v_until));
  end if;
  return query select 'delayed', v_until, null::jsonb;
end;
$$;


--
-- Name: due_schedules(text, text, text[], integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.due_schedules(p_namespace text, p_app text, p_names text[] DEFAULT NULL::text[], p_limit integer DEFAULT 1000) RETURNS TABLE(name text, schedule_id uuid, rule_no integer, cron text, every interval, time_zone text, anchor_at timestamp with time zone, misfire text, next_at timestamp with time zone, read_at timestamp with time zone, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  perform ff._check_limit(p_limit);
  if p_namespace is null or p_app is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', case when p_namespace is null then 'namespace' else 'app' end,
      'problem', 'must be given'));
  end if;
  v_now := ff.now();
  return query
  (select s.name, s.schedule_id, s.rule_no, s.cron, s.every, s.time_zone, s.anchor_at,
          s.misfire::text, s.next_at, v_now, null::interval
   from ff.schedule s
   where s.namespace = p_namespace and s.app = p_app and s.state = 'active' and s.next_at <= v_now
     and (p_names is null or s.name = any (p_names))
   order by s.next_at, s.name
   limit p_limit)
  union all
  select null, null, null, null, null, null, null, null, null, v_now, (
    select s.next_at - v_now
    from ff.schedule s
    where s.namespace = p_namespace and s.app = p_app and s.state = 'active' and s.next_at > v_now
      and (p_names is null or s.name = any (p_names))
    order by s.next_at
    limit 1);
end;
$$;


--
-- Name: expire_executions(smallint, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.expire_executions(p_partition_key smallint, p_limit integer DEFAULT 500) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now      timestamptz := ff.now();
  v_xid      xid8;
  v_ended    uuid[];
  v_late     uuid[];
  v_hopeless uuid[];
  v_retried  uuid[];
begin
  perform ff._check_limit(p_limit);
  select array_agg(d.execution_id) filter (where d.is_ended),
         array_agg(d.execution_id) filter (where not d.is_ended)
    into v_ended, v_late
  from (
    select e.execution_id, coalesce(e.deadline_at <= v_now, false) as is_ended
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at <= v_now
      and case when e.phase <> 'terminal'
                and (e.deadline_at <= v_now
                     or (e.ownership = 'leased' and e.attempt_deadline_at <= v_now))
            then true else false end
    order by e.due_at
    limit p_limit
    for no key update skip locked
  ) d;

  if v_ended is not null then
    perform ff._end_executions(
      p_partition_key, v_ended, 'expired', 'expire', 'expired', 'expire', 'ended_failure', v_now,
      p_class => 'timeout', p_category => 'execution_deadline',
      p_reason => 'its deadline has passed',
      p_detail => jsonb_build_object('category', 'execution_deadline'));
    -- What ended with its parent just now has no attempt any more.
    v_late := array(
      select u.id from unnest(v_late) u(id)
      cross join lateral (
        select e.phase from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.phase = 'active');
  end if;

  if cardinality(v_late) > 0 then
    v_xid := pg_current_xact_id();
    with item as materialized (
      select p_partition_key as pk, x.execution_id, x.lease_id, x.worker_instance_id, x.wait
      from unnest(v_late) u(execution_id)
      cross join lateral (
        select e.execution_id, e.lease_id, e.worker_instance_id,
               -- a policy may name either word
               coalesce(
                 ff._retry_wait(b.policy, e.retry_count, 'timeout', 'attempt_timeout', random()),
                 ff._retry_wait(b.policy, e.retry_count, 'timeout', null, random())) as wait
        from ff.execution e
        left join ff.execution_body b
          on b.partition_key = e.partition_key and b.execution_id = e.execution_id
        where e.partition_key = p_partition_key and e.execution_id = u.execution_id
        offset 0
      ) x
      offset 0
    ),
    retried as (
      update ff.execution e set
        phase = 'runnable',
        ownership = 'unowned',
        eligibility = 'not_eligible_until_time',
        blocking_reason = 'waiting_for_retry_backoff',
        attempt_state = 'pending_retry_attempt',
        cause = 'time_out',
        version = e.version + 1,
        epoch = e.epoch + 1,
        retry_count = e.retry_count + 1,
        delayed_until = greatest(v_now, e.transitioned_at) + i.wait,
        due_at = least(greatest(v_now, e.transitioned_at) + i.wait, e.deadline_at),
        last_lease_id = e.lease_id,
        last_lease_end = 'time_out',
        last_lease_retry_at = greatest(v_now, e.transitioned_at) + i.wait,
        last_worker_id = e.worker_id,
        last_worker_instance_id = e.worker_instance_id,
        lease_id = null,
        lease_expires_at = null,
        worker_id = null,
        worker_instance_id = null,
        attempt_deadline_at = null,
        attempt_ended_at = greatest(v_now, e.transitioned_at),
        attempt_ended_as = 'ended_failure',
        failure_class = 'timeout',
        failure_category = 'attempt_timeout',
        failure_reason = 'the attempt ran out of time',
        failure_detail = null,
        transitioned_at = greatest(v_now, e.transitioned_at),
        mutated_at = greatest(v_now, e.transitioned_at)
      from item i
      where e.partition_key = i.pk and e.execution_id = i.execution_id and i.wait is not null
      returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.flow_id,
                e.namespace, e.instance_tag, e.transitioned_at, e.delayed_until, i.lease_id,
                i.worker_instance_id
    ),
    logged as (
      insert into ff.event (
        partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
        worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
      select p_partition_key, v_xid, r.execution_id, r.version, 'retry_scheduled', r.attempt_index,
             r.lease_id, r.epoch, r.worker_instance_id, r.route_id, r.flow_id, r.namespace,
             r.instance_tag, r.transitioned_at,
             jsonb_build_object('class', 'timeout', 'category', 'attempt_timeout',
                                'delayed_until', r.delayed_until)
      from retried r
    )
    select array_agg(r.execution_id) into v_retried from retried r;
    perform ff._hint_lost(p_partition_key, v_retried);

    v_hopeless := array(
      select u.id from unnest(v_late) u(id) where u.id <> all (coalesce(v_retried, '{}')));
    if cardinality(v_hopeless) > 0 then
      perform ff._end_executions(
        p_partition_key, v_hopeless, 'expired', 'time_out', 'expired', 'time_out', 'ended_failure',
        v_now, p_class => 'timeout', p_category => 'attempt_timeout',
        p_reason => 'the attempt ran out of time',
        p_detail => jsonb_build_object('category', 'attempt_timeout'));
    end if;
  end if;

  return query
  select coalesce(cardinality(v_ended), 0) + coalesce(cardinality(v_late), 0),
         (select e.due_at - v_now from ff.execution e
          where e.partition_key = p_partition_key and e.due_at > v_now
          order by e.due_at limit 1);
end;
$$;


--
-- Name: expire_leases(smallint, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.expire_leases(p_partition_key smallint, p_limit integer DEFAULT 500) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz := ff.now();
  v_expired uuid[];
  v_early   uuid[];
begin
  perform ff._check_limit(p_limit);
  select array_agg(d.execution_id) filter (where d.is_expired),
         array_agg(d.execution_id) filter (where not d.is_expired)
    into v_expired, v_early
  from (
    select e.execution_id, e.lease_expires_at <= greatest(v_now, e.transitioned_at) as is_expired
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at <= v_now
      -- what is due for its deadline alone is left to expire_executions
      and case when e.ownership = 'leased'
                and (e.lease_expires_at <= greatest(v_now, e.transitioned_at)
                     or least(e.lease_expires_at, e.deadline_at, e.attempt_deadline_at) > v_now)
            then true else false end
    order by e.due_at
    limit p_limit
    for no key update skip locked
  ) d;

  if v_expired is not null then
    perform ff._expire_leases(p_partition_key, v_expired, v_now);
    perform ff._hint_ready(p_partition_key, array(
      select distinct e.route_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = any (v_expired)));
  end if;
  if v_early is not null then
    update ff.execution e
    set due_at = least(e.lease_expires_at, e.deadline_at, e.attempt_deadline_at)
    from (select p_partition_key as pk, u.id from unnest(v_early) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id;
  end if;
  return query
  select coalesce(cardinality(v_expired), 0) + coalesce(cardinality(v_early), 0),
         (select e.due_at - v_now from ff.execution e
          where e.partition_key = p_partition_key and e.due_at > v_now
          order by e.due_at limit 1);
end;
$$;


--
-- Name: expire_worker_leases(smallint, text, text, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.expire_worker_leases(p_partition_key smallint, p_namespace text, p_worker_instance_id text, p_limit integer DEFAULT 500) RETURNS TABLE(handled integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now  timestamptz := ff.now();
  v_held uuid[];
begin
  perform ff._check_limit(p_limit);
  if p_worker_instance_id is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_id', 'problem', 'must be given'));
  end if;
  v_held := array(
    select l.execution_id
    from (
      select t.execution_id
      from (
        select e.execution_id, e.ownership, e.worker_instance_id, e.namespace
        from ff.execution e
        where e.partition_key = p_partition_key and e.due_at is not null
        order by e.due_at
      ) t
      where t.ownership = 'leased' and t.worker_instance_id = p_worker_instance_id
        and (p_namespace is null or t.namespace = p_namespace)
      limit p_limit
    ) c
    cross join lateral (
      select x.execution_id
      from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = c.execution_id
        and x.ownership = 'leased' and x.worker_instance_id = p_worker_instance_id
      for no key update skip locked
    ) l);
  if cardinality(v_held) > 0 then
    update ff.execution e
    set lease_expires_at = greatest(v_now, e.transitioned_at),
        mutated_at = greatest(v_now, e.transitioned_at)
    from (select p_partition_key as pk, u.id from unnest(v_held) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id;
    perform ff._expire_leases(p_partition_key, v_held, v_now);
    perform ff._hint_ready(p_partition_key, array(
      select distinct e.route_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = any (v_held)));
  end if;
  handled := cardinality(v_held);
  return next;
end;
$$;


--
-- Name: explain_execution(smallint, text, uuid); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.explain_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid) RETURNS TABLE(dimension text, code text, evidence jsonb, changes_at timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := ff.now();
  v_row    ff.execution;
  v_route  ff.route;
  v_lane   ff.lane;
  v_grant  ff.grant;
  v_policy jsonb;
  v_event  record;
  v_holder record;
  v_sleep  ff.step;
  v_live   record;
  v_able   bigint;
  v_routes bigint[];
  v_ahead  bigint;
  v_is_up  boolean;
  v_closed boolean;
begin
  select e.* into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  if not found then
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  select r.* into v_route from ff.route r where r.route_id = v_row.route_id;
  select l.* into v_lane from ff.lane l where l.lane = v_route.lane;
  select b.policy into v_policy
  from ff.execution_body b
  where b.partition_key = p_partition_key and b.execution_id = p_execution_id;
  -- Who did the last thing, and why: the latest events are the first to be looked at.
  select v.kind, v.actor, v.detail, v.occurred_at into v_event
  from (
    select x.kind, x.actor, x.detail, x.occurred_at, x.event_id from ff.event x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_id
    order by x.event_id desc
    limit 50) v
  where v.kind in ('blocked', 'held', 'cancelled', 'lease_revoked', 'replayed', 'skipped')
  order by v.event_id desc
  limit 1;

  if v_row.phase = 'terminal' then
    return query select 'end',
      case v_row.outcome
        when 'success' then 'completed'
        when 'expired' then case when v_row.cause = 'expire'
                              then 'deadline_passed' else 'attempt_timed_out' end
        when 'cancelled' then 'cancelled'
        when 'skipped' then 'skipped'
        else case v_row.cause when 'exceed_reclaims' then 'reclaims_exhausted'
                              else 'failed' end end,
      jsonb_strip_nulls(jsonb_build_object(
        'at', v_row.terminal_at, 'attempts', v_row.total_attempt_count,
        'retries', v_row.retry_count, 'reclaims', v_row.reclaim_count,
        'failure_class', v_row.failure_class, 'failure_category', v_row.failure_category,
        'failure_reason', v_row.failure_reason, 'deadline_at', v_row.deadline_at,
        'cancelled_by', v_row.cancelled_by, 'reason', v_row.cancellation_reason,
        'actor', case when v_event.kind::text = v_row.outcome::text then v_event.actor end,
        'kept_until', v_row.trim_at)),
      null::timestamptz;
    return;
  end if;

  select g.* into v_grant
  from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and case when g.expires_at > v_now then true else false end;
  if v_row.deadline_at <= v_now then
    return query select 'time', 'deadline_due',
      jsonb_build_object('deadline_at', v_row.deadline_at), v_row.deadline_at;
  end if;

  if v_row.ownership = 'leased' and v_row.lease_expires_at > v_now then
    select w.heartbeat_at, w.heartbeat_at + w.liveness_ttl > v_now as is_live into v_holder
    from ff.worker w
    where w.namespace in ('', v_row.namespace) and w.worker_instance_id = v_row.worker_instance_id
    order by w.heartbeat_at desc
    limit 1;
    return query select 'lease',
      case when v_holder.is_live then 'running' else 'holder_silent' end,
      jsonb_strip_nulls(jsonb_build_object(
        'worker_id', v_row.worker_id, 'worker_instance_id', v_row.worker_instance_id,
        'lease_expires_at', v_row.lease_expires_at, 'epoch', v_row.epoch,
        'attempt_index', v_row.attempt_index, 'attempt_type', v_row.attempt_type,
        'attempt_started_at', v_row.attempt_started_at,
        'attempt_deadline_at', v_row.attempt_deadline_at,
        'last_heard_at', v_holder.heartbeat_at, 'progress_percent', v_row.progress_percent,
        'progress_message', v_row.progress_message)),
      least(v_row.lease_expires_at, v_row.attempt_deadline_at, v_row.deadline_at);
  elsif v_row.phase = 'suspended' then
    return query select 'signal', 'suspended',
      jsonb_strip_nulls(jsonb_build_object(
        'blocking_reason', v_row.blocking_reason, 'detail', v_row.blocking_detail,
        'since', v_row.transitioned_at)),
      v_row.due_at;
  elsif v_row.eligibility = 'blocked_by_operator' then
    return query select 'operator',
      case when v_row.attempt_pause_cause = 'held' then 'held'
           when v_row.blocking_reason = 'paused_by_flow_cancel' then 'flow_being_cancelled'
           when v_row.blocking_reason = 'paused_by_policy' then 'paused_by_policy'
           else 'paused_by_operator' end,
      jsonb_strip_nulls(jsonb_build_object(
        'detail', v_row.blocking_detail, 'since', v_row.blocked_at,
        'actor', case when v_event.kind = 'blocked' then v_event.actor end,
        'step', case when v_event.kind = 'held' then v_event.detail ->> 'step' end,
        'reason', case when v_event.kind = 'held' then v_event.detail ->> 'reason' end)),
      null::timestamptz;
  elsif v_row.eligibility in ('blocked_by_budget', 'blocked_by_quota', 'blocked_by_route',
                              'blocked_by_lane_state') then
    return query select
      case v_row.eligibility when 'blocked_by_budget' then 'budget' when 'blocked_by_quota' then 'quota'
                             when 'blocked_by_route' then 'route' else 'lane' end,
      v_row.eligibility::text,
      jsonb_strip_nulls(jsonb_build_object(
        'detail', v_row.blocking_detail, 'since', v_row.blocked_at,
        'capabilities', case when v_row.eligibility = 'blocked_by_route' then v_route.capabilities end,
        'actor', case when v_event.kind = 'blocked' then v_event.actor end)),
      null::timestamptz;
  elsif v_row.wait_left is not null then
    return query
    select 'dependency', 'waiting_for_runs',
      jsonb_build_object(
        'since', v_row.transitioned_at, 'runs', count(*), 'ended', count(w.ended_at),
        'needed', count(w.ended_at) + v_row.wait_left,
        'open', coalesce(jsonb_agg(format('{fp:%s}:%s', p_partition_key, w.target_id)
                                   order by w.target_id)
                         filter (where w.ended_at is null and w.nth <= 10), '[]'),
        'is_more', count(*) filter (where w.ended_at is null) > 10),
      null::timestamptz
    from (
      select x.target_id, x.ended_at,
             row_number() over (partition by x.ended_at is null order by x.target_id) as nth
      from ff.run_wait x
      where x.partition_key = p_partition_key and x.waiter_id = p_execution_id) w;
  elsif v_row.eligibility = 'blocked_by_dependencies' then
    return query select 'dependency', 'waiting_for_children',
      jsonb_strip_nulls(jsonb_build_object(
        'detail', v_row.blocking_detail, 'since', v_row.transitioned_at)),
      null::timestamptz;
  elsif v_row.eligibility = 'not_eligible_until_time' then
    if v_row.deadline_at > v_now and v_row.deadline_at <= v_row.delayed_until then
      return query select 'time', 'expires_before_it_starts',
        jsonb_build_object('deadline_at', v_row.deadline_at, 'delayed_until', v_row.delayed_until),
        v_row.deadline_at;
    end if;
    if v_row.delayed_until <= v_now then
      return query select 'time', 'promotion_due',
        jsonb_build_object('delayed_until', v_row.delayed_until,
                           'blocking_reason', v_row.blocking_reason),
        v_row.delayed_until;
    elsif v_row.attempt_state = 'pending_retry_attempt' then
      return query select 'time', 'retry_backoff',
        jsonb_strip_nulls(jsonb_build_object(
          'delayed_until', v_row.delayed_until, 'retry', v_row.retry_count,
          'max_retries', coalesce((v_policy #>> '{retry_policy,max_retries}')::numeric, 3),
          'failure_class', v_row.failure_class, 'failure_category', v_row.failure_category,
          'failure_reason', v_row.failure_reason, 'failed_at', v_row.attempt_ended_at)),
        v_row.delayed_until;
    else
      -- The sleep it is in: the first of its journal that ends when the delay does.
      if v_row.attempt_state = 'attempt_interrupted' then
        select s.* into v_sleep
        from ff.step s
        where s.partition_key = p_partition_key and s.execution_id = p_execution_id
          and case when s.kind = 'sleep' and s.until_at = v_row.delayed_until
                then true else false end
        order by s.position
        limit 1;
      end if;
      return query select 'time',
        case when v_row.blocking_reason = 'waiting_for_resume_delay' then 'resume_delayed'
             when v_sleep.name is not null then 'sleeping'
             when v_row.attempt_state = 'attempt_interrupted' then 'delayed_by_worker'
             else 'delayed_by_submit' end,
        jsonb_strip_nulls(jsonb_build_object(
          'delayed_until', v_row.delayed_until, 'sleep', v_sleep.name,
          'occurrence', v_sleep.occurrence,
          'worker_instance_id', case when v_row.attempt_state = 'attempt_interrupted'
                                  then v_row.last_worker_instance_id end)),
        v_row.delayed_until;
    end if;
  elsif v_row.reclaim_at is not null and v_grant.execution_id is null then
    -- who has a grant need not wait
    return query select 'attempt', 'crash_loop',
      jsonb_strip_nulls(jsonb_build_object(
        'reclaims', v_row.reclaim_count, 'max_reclaims', v_row.max_reclaims,
        'reclaim_at', v_row.reclaim_at, 'is_due', v_row.reclaim_at <= v_now,
        'worker_instance_id', coalesce(v_row.worker_instance_id, v_row.last_worker_instance_id))),
      v_row.reclaim_at;
  end if;

  v_is_up := v_row.ownership = 'leased' and v_row.lease_expires_at > v_now;
  if not v_is_up then
    if v_grant.execution_id is not null then
      return query select 'grant', 'granted',
        jsonb_build_object(
          'kind', v_grant.kind, 'worker_id', v_grant.worker_id,
          'worker_instance_id', v_grant.worker_instance_id, 'issued_at', v_grant.issued_at,
          'expires_at', v_grant.expires_at),
        v_grant.expires_at;
    end if;

    v_closed := v_lane.state = 'disabled'
      or (v_lane.state = 'paused' and (v_lane.resumes_at is null or v_lane.resumes_at > v_now));
    if v_closed then
      return query select 'lane', 'lane_' || v_lane.state::text,
        jsonb_strip_nulls(jsonb_build_object(
          'lane', v_lane.lane, 'by', v_lane.changed_by, 'reason', v_lane.reason,
          'since', v_lane.changed_at, 'resumes_at', v_lane.resumes_at)),
        v_lane.resumes_at;
    end if;
  end if;

  if not v_is_up and v_grant.execution_id is null then
    select count(*) into v_able
    from (
      select from ff.worker x
      where x.heartbeat_at + x.liveness_ttl > v_now and x.namespace in ('', v_row.namespace)
        and v_route.capabilities <@ x.capabilities
        and (x.lanes is null or v_route.lane = any (x.lanes))
        and (x.tasks is null or v_route.task = any (x.tasks))
      limit 101) w;
  end if;

  if v_able = 0 then
    -- The funnel: alive, of this namespace, knows the task, serves the lane, has the capabilities.
    -- Who is there is looked at up to 1 000 workers.
    select count(*) as alive,
           count(*) filter (where w.is_ours) as ours,
           count(*) filter (where w.is_ours and w.knows) as knowing,
           count(*) filter (where w.is_ours and w.knows and w.serves) as serving,
           (array_agg(w.worker_instance_id order by cardinality(w.missing), w.worker_instance_id)
             filter (where w.missing is not null))[1] as nearest,
           (array_agg(array_to_json(w.missing)
                      order by cardinality(w.missing), w.worker_instance_id)
             filter (where w.missing is not null))[1] as missing,
           (array_agg(distinct w.namespace) filter (where not w.is_ours))[1:10] as elsewhere,
           (array_agg(distinct w.served) filter (where w.is_ours and w.knows))[1:10] as lanes
      into v_live
    from (
      select k.worker_instance_id, k.namespace, k.is_ours, k.knows, k.serves,
             case when k.is_ours and k.knows then array_to_string(k.lanes, ', ') end as served,
             case when k.is_ours and k.knows and k.serves then array(
               select c.name from unnest(v_route.capabilities) c(name)
               where c.name <> all (k.capabilities)) end as missing
      from (
        select x.worker_instance_id, x.namespace, x.lanes, x.capabilities,
               x.namespace in ('', v_row.namespace) as is_ours,
               x.tasks is null or v_route.task = any (x.tasks) as knows,
               x.lanes is null or v_route.lane = any (x.lanes) as serves
        from ff.worker x
        where x.heartbeat_at + x.liveness_ttl > v_now
        order by x.namespace not in ('', v_row.namespace)
        limit 1000
      ) k
    ) w;
    return query select 'worker',
      case when v_live.alive = 0 then 'no_worker_alive'
           when v_live.ours = 0 then 'other_namespaces_only'
           when v_live.knowing = 0 then 'task_unknown'
           when v_live.serving = 0 then 'lane_not_served'
           else 'capabilities_missing' end,
      jsonb_strip_nulls(jsonb_build_object(
        'task', v_route.task, 'lane', v_route.lane, 'namespace', v_row.namespace,
        'live_workers', v_live.alive,
        'needs', case when v_live.serving > 0 then v_route.capabilities end,
        'nearest', v_live.nearest, 'missing', v_live.missing,
        'namespaces', case when v_live.alive > 0 and v_live.ours = 0 then v_live.elsewhere end,
        'lanes', case when v_live.knowing > 0 and v_live.serving = 0 then v_live.lanes end,
        'last_heard_at', case when v_live.alive = 0 then (
          select max(x.heartbeat_at) from ff.worker x) end)),
      null::timestamptz;
  end if;

  if v_able is not null then
    if v_row.phase = 'active' and v_row.reclaim_at is null then
      return query select 'lease',
        case when v_row.reclaim_count >= v_row.max_reclaims then 'reclaims_used_up'
             when v_row.ownership = 'lease_revoked' then 'lease_revoked'
             else 'lease_expired' end,
        jsonb_strip_nulls(jsonb_build_object(
          'worker_instance_id', coalesce(v_row.worker_instance_id, v_row.last_worker_instance_id),
          'lease_expires_at', v_row.lease_expires_at, 'is_marked', v_row.ownership <> 'leased',
          'reclaims', v_row.reclaim_count, 'max_reclaims', v_row.max_reclaims,
          'able_workers', least(v_able, 100), 'are_more_able', v_able > 100,
          'by', case when v_event.kind = 'lease_revoked' then v_event.actor end,
          'reason', case when v_event.kind = 'lease_revoked' then v_event.detail ->> 'reason' end)),
        null::timestamptz;
    end if;

    if v_row.eligibility = 'eligible_now' and v_able > 0 and not v_closed
       and coalesce(v_row.deadline_at > v_now, true) then
      -- Whoever is before it in its lane, of any task; at most 200 routes and 1 001 rows are read.
      v_routes := array(
        select r.route_id from ff.route r
        where r.lane = v_route.lane
        order by r.route_id <> v_row.route_id
        limit 201);
      select count(*) into v_ahead
      from (
        select from unnest(v_routes[1:200]) r(route_id)
        cross join lateral (
          select from ff.execution e
          where e.partition_key = p_partition_key and e.route_id = r.route_id
            and e.phase = 'runnable' and e.eligibility = 'eligible_now'
            and (e.rank, e.created_at, e.execution_id)
              < (v_row.rank, v_row.created_at, v_row.execution_id)
          limit 1001) e
        limit 1001) a;
      return query select 'queue', 'in_line',
        jsonb_strip_nulls(jsonb_build_object(
          'lane', v_route.lane, 'task', v_route.task, 'ahead', least(v_ahead, 1000),
          'is_more', v_ahead > 1000 or cardinality(v_routes) > 200,
          'able_workers', least(v_able, 100), 'are_more_able', v_able > 100,
          'priority', 9000 - v_row.rank, 'since', v_row.transitioned_at,
          'waits_as', case v_row.attempt_state
            when 'pending_retry_attempt' then 'retry' when 'pending_replay_attempt' then 'replay'
            when 'attempt_interrupted' then 'resume' else 'first' end)),
        null::timestamptz;
    end if;
  end if;

  -- Not in the way, but good to know.
  if v_row.attempt_state = 'pending_replay_attempt' then
    return query select 'attempt', 'replayed',
      jsonb_strip_nulls(jsonb_build_object(
        'replay', v_row.replay_count,
        'max_replays', coalesce((v_policy ->> 'max_replay_count')::numeric, 10),
        'by', case when v_event.kind = 'replayed' then v_event.actor end,
        'reason', case when v_event.kind = 'replayed' then v_event.detail ->> 'reason' end,
        'at', case when v_event.kind = 'replayed' then v_event.occurred_at end)),
      null::timestamptz;
  end if;
  if v_row.reclaim_count >= 2
     and (v_row.reclaim_at is null or v_grant.execution_id is not null) then
    return query select 'attempt', 'crash_loop',
      jsonb_strip_nulls(jsonb_build_object(
        'reclaims', v_row.reclaim_count, 'max_reclaims', v_row.max_reclaims,
        'reclaim_at', v_row.reclaim_at)),
      v_row.reclaim_at;
  end if;
  if v_lane.state = 'paused' and v_lane.resumes_at <= v_now then
    return query select 'lane', 'lane_pause_over',
      jsonb_strip_nulls(jsonb_build_object(
        'lane', v_lane.lane, 'by', v_lane.changed_by, 'resumes_at', v_lane.resumes_at)),
      v_lane.resumes_at;
  elsif v_lane.state = 'draining' then
    return query select 'lane', 'lane_draining',
      jsonb_strip_nulls(jsonb_build_object(
        'lane', v_lane.lane, 'by', v_lane.changed_by, 'reason', v_lane.reason,
        'since', v_lane.changed_at)),
      null::timestamptz;
  end if;
  if v_row.deadline_at > v_now then
    return query select 'time', 'deadline_ahead',
      jsonb_build_object('deadline_at', v_row.deadline_at), v_row.deadline_at;
  end if;
end;
$$;


--
-- Name: fail_executions(smallint, text, uuid[], uuid[], bigint[], uuid[], text[], text[], text[], bytea[], boolean, boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.fail_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_classes text[], p_reasons text[], p_categories text[] DEFAULT NULL::text[], p_details bytea[] DEFAULT NULL::bytea[], p_wait boolean DEFAULT false, p_hint boolean DEFAULT true) RETURNS TABLE(item integer, outcome text, delayed_until timestamp with time zone, next_attempt_index integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_xid     xid8;
  v_judged  ff.verdict[];
  v_settled ff.verdict[];
  v_awaited uuid[];
  v_wakes   record;
  v_pending uuid[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids),
    cardinality(p_classes), cardinality(p_reasons), cardinality(p_categories),
    cardinality(p_details)], p_wait);
  v_judged := ff._judge_leases(p_partition_key, p_namespace, 'fail', p_execution_ids, p_lease_ids,
                               p_epochs, p_attempt_ids, p_wait);
  v_now := ff.now();
  v_xid := pg_current_xact_id();

  with item as materialized (
    select p_partition_key as pk, j.item, j.execution_id, p_reasons[j.item] as reason,
           p_categories[j.item] as category, p_details[j.item] as detail,
           p_classes[j.item] as class,
           case when p_classes[j.item] is null
                  or p_classes[j.item] not in ('transient', 'permanent', 'infra_crash', 'timeout',
                                               'cancelled')
                  then 'class'
                when p_reasons[j.item] is null or octet_length(p_reasons[j.item]) > 256
                  or p_reasons[j.item] ~ '[\x01-\x1f\x7f]'
                  then 'reason'
                when octet_length(p_categories[j.item]) > 256 then 'category'
                when octet_length(p_details[j.item]) > 65536 then 'detail' end as bad_field
    from unnest(v_judged) j
    where j.word = 'held'
    offset 0
  ),
  decided as materialized (
    select i.pk, i.item, i.execution_id, i.class::ff.failure_class as class, i.category, i.reason,
           i.detail, greatest(v_now, e.transitioned_at) as now,
           ff._retry_wait(e.policy, e.retry_count, i.class, i.category, random()) as wait
    from item i
    cross join lateral (
      select x.retry_count, x.transitioned_at, b.policy
      from ff.execution x
      left join ff.execution_body b
        on b.partition_key = x.partition_key and b.execution_id = x.execution_id
      where x.partition_key = i.pk and x.execution_id = i.execution_id
      offset 0
    ) e
    where i.bad_field is null
    offset 0
  ),
  failed as (
    update ff.execution e set
      phase = case when d.wait is null then 'terminal'::ff.phase else 'runnable' end,
      ownership = 'unowned',
      eligibility = case when d.wait is null then 'not_applicable'::ff.eligibility
                         else 'not_eligible_until_time' end,
      blocking_reason = case when d.wait is null then 'none'::ff.blocking_reason
                             else 'waiting_for_retry_backoff' end,
      outcome = case when d.wait is null then 'failed'::ff.outcome else 'none' end,
      attempt_state = case when d.wait is null then 'attempt_terminal'::ff.attempt_state
                           else 'pending_retry_attempt' end,
      cause = case when d.wait is null then 'fail'::ff.cause else 'schedule_retry' end,
      version = e.version + 1,
      retry_count = e.retry_count + (d.wait is not null)::integer,
      delayed_until = d.now + d.wait,
      due_at = case when d.wait is not null then least(d.now + d.wait, e.deadline_at) end,
      last_lease_id = e.lease_id,
      last_lease_end = 'fail',
      last_lease_retry_at = d.now + d.wait,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      attempt_deadline_at = null,
      attempt_ended_at = d.now,
      attempt_ended_as = 'ended_failure',
      failure_class = d.class,
      failure_category = d.category,
      failure_reason = d.reason,
      failure_detail = d.detail,
      terminal_at = case when d.wait is null then d.now end,
      trim_at = case when d.wait is null then d.now + e.retention end,
      transitioned_at = d.now,
      mutated_at = d.now
    from decided d
    where e.partition_key = d.pk and e.execution_id = d.execution_id
    returning d.item, e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch,
              e.route_id, e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag,
              e.transitioned_at, e.delayed_until, e.failure_class, e.failure_category,
              e.total_attempt_count, e.is_awaited
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, outcome, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
    select p_partition_key, v_xid, f.execution_id, f.version,
           case when f.delayed_until is null then 'failed'::ff.event_kind
                else 'retry_scheduled' end,
           case when f.delayed_until is null then 'failed'::ff.outcome end,
           f.attempt_index, f.last_lease_id, f.epoch, f.last_worker_instance_id, f.route_id,
           f.flow_id, f.namespace, f.instance_tag, f.transitioned_at,
           jsonb_strip_nulls(jsonb_build_object(
             'class', f.failure_class, 'category', f.failure_category,
             'delayed_until', f.delayed_until))
    from failed f
  )
  select array_agg(row(
           a.item, a.execution_id, a.word, a.delayed_until, a.attempt_index, a.detail)::ff.verdict),
         array_agg(a.execution_id) filter (where a.is_awaited)
    into v_settled, v_awaited
  from (
    select f.item, f.execution_id,
           case when f.delayed_until is null then 'failed' else 'retry_scheduled' end as word,
           f.delayed_until,
           case when f.delayed_until is not null then f.total_attempt_count end as attempt_index,
           null::jsonb as detail, f.is_awaited and f.delayed_until is null as is_awaited
    from failed f
    union all
    select i.item, i.execution_id, 'invalid', null, null, jsonb_build_object(
             'field', i.bad_field,
             'problem', case i.bad_field
               when 'class' then 'must be transient, permanent, infra_crash, timeout or cancelled'
               when 'reason' then 'must be at most 256 bytes without control characters'
               when 'category' then 'must be at most 256 bytes'
               else 'must be at most 64 KiB' end), false
    from item i
    where i.bad_field is not null
  ) a;
  if v_awaited is not null then
    v_wakes := ff._wake_runs(p_partition_key, v_awaited, v_now);
    v_pending := v_wakes.pending_ids;
  end if;

  return query
  select s.item, s.word, s.until_at, s.attempt_index,
         case when s.execution_id = any (v_pending)
                then jsonb_build_object('wakes_pending', true)
              else s.detail end
  from unnest(v_settled) s
  union all
  select j.item,
         case when j.word <> 'repeat' then j.word
              when j.until_at is null then 'failed' else 'retry_scheduled' end,
         j.until_at,
         case when j.word = 'repeat' and j.until_at is not null then j.attempt_index + 1 end,
         j.detail
  from unnest(v_judged) j
  where j.word <> 'held';

  if p_hint and exists (select from unnest(v_judged) j where j.word = 'held') then
    perform pg_notify('ff_ended', p_partition_key::text);
  end if;
end;
$$;


--
-- Name: fire_schedule(smallint, text, text, text, uuid, integer, timestamp with time zone, timestamp with time zone[], timestamp with time zone, uuid[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.fire_schedule(p_partition_key smallint, p_namespace text, p_app text, p_name text, p_call_id uuid, p_rule_no integer, p_expected_next_at timestamp with time zone, p_fire_ats timestamp with time zone[], p_next_at timestamp with time zone, p_execution_ids uuid[]) RETURNS TABLE(outcome text, fired integer, next_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  -- read before the lock: what is not due yet at this time is refused, so earlier is stricter
  v_now      constant timestamptz := ff.now();
  v_size     constant integer := cardinality(p_fire_ats);
  v_field    text;
  v_problem  text;
  v_schedule ff.schedule;
begin
  if p_call_id is null then
    v_field := 'call_id'; v_problem := 'must be a uuid';
  elsif v_size is null or v_size > 1000 or array_position(p_fire_ats, null) is not null then
    v_field := 'fire_ats'; v_problem := 'must be at most 1000 times';
  elsif cardinality(p_execution_ids) is distinct from v_size
     or array_position(p_execution_ids, null) is not null then
    v_field := 'execution_ids'; v_problem := 'must be one for each time';
  elsif p_expected_next_at is null or p_expected_next_at > v_now then
    v_field := 'expected_next_at'; v_problem := 'is not due yet';
  elsif exists (
      select from (select u.at, lag(u.at) over (order by u.n) as previous
                   from unnest(p_fire_ats) with ordinality u(at, n)) f
      where f.at <= f.previous or f.at < p_expected_next_at or f.at > v_now) then
    v_field := 'fire_ats'; v_problem := 'must ascend from the expected time up to now';
  elsif p_next_at is null or p_next_at >= timestamptz '9999-01-01 00:00:00+00'
     or p_next_at <= coalesce(p_fire_ats[v_size], p_expected_next_at) then
    v_field := 'next_at'; v_problem := 'must be behind the times that fire, before the year 9999';
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;

  update ff.schedule s set
    next_at = p_next_at,
    last_at = coalesce(p_fire_ats[v_size], s.last_at),
    last_id = coalesce(p_execution_ids[v_size], s.last_id),
    fired_count = s.fired_count + v_size,
    last_call_id = p_call_id,
    last_call_count = v_size
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name
    and s.next_at = p_expected_next_at and s.rule_no = p_rule_no
  returning s.* into v_schedule;
  if found then
    perform ff._submit_firings(p_partition_key, v_schedule, p_fire_ats, p_execution_ids, null);
    return query select 'fired', v_size, p_next_at;
    return;
  end if;
  return query
  select case when s.last_call_id = p_call_id then 'fired' when s.next_at is null then 'inactive'
              else 'already_fired' end,
         case when s.last_call_id = p_call_id then s.last_call_count else 0 end,
         case when s.last_call_id = p_call_id then p_next_at else s.next_at end
  from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name;
  if not found then
    return query select 'gone', 0, null::timestamptz;
  end if;
end;
$$;


--
-- Name: forget_schedule(text, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.forget_schedule(p_namespace text, p_app text, p_name text) RETURNS TABLE(outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
begin
  delete from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name
    and s.orphaned_at is not null;
  if exists (
      select from ff.schedule s
      where s.namespace = p_namespace and s.app = p_app and s.name = p_name) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'name', 'problem', 'is declared by its app; only an orphaned schedule is removed'));
  end if;
  return query select 'forgotten';
end;
$$;


--
-- Name: heartbeat_workers(text[], text[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.heartbeat_workers(p_namespaces text[], p_worker_instance_ids text[]) RETURNS TABLE(namespace text, worker_instance_id text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  if p_worker_instance_ids is null or cardinality(p_worker_instance_ids) not between 1 and 10000
     or array_position(p_worker_instance_ids, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_ids', 'problem', 'must be 1 to 10000 names'));
  end if;
  if p_namespaces is null or cardinality(p_namespaces) <> cardinality(p_worker_instance_ids)
     or array_position(p_namespaces, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'namespaces', 'problem', 'must be as many as there are workers, none of them null'));
  end if;
  v_now := ff.now();
  with beating as materialized (
    select w.namespace, w.worker_instance_id
    from (
      select distinct u.namespace, u.instance
      from unnest(p_namespaces, p_worker_instance_ids) u(namespace, instance)
      order by u.namespace, u.instance
    ) a
    cross join lateral (
      select x.namespace, x.worker_instance_id
      from ff.worker x
      where x.namespace = a.namespace and x.worker_instance_id = a.instance
        and x.heartbeat_at + x.liveness_ttl > v_now
      for no key update skip locked
    ) w
  )
  update ff.worker w
  set heartbeat_at = greatest(v_now, w.heartbeat_at)
  from beating b
  where w.namespace = b.namespace and w.worker_instance_id = b.worker_instance_id;

  return query
  select distinct u.namespace, u.instance
  from unnest(p_namespaces, p_worker_instance_ids) u(namespace, instance)
  where not exists (
    select from ff.worker w
    where w.namespace = u.namespace and w.worker_instance_id = u.instance
      and w.heartbeat_at + w.liveness_ttl > v_now);
end;
$$;


--
-- Name: hold_execution(smallint, text, uuid, uuid, bigint, uuid, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.hold_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_reason text, p_step text DEFAULT NULL::text) RETURNS TABLE(outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_verdict ff.verdict;
  v_now     timestamptz;
begin
  perform ff._check_words(null, p_reason);
  if p_reason is null or p_reason = '' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'reason', 'problem', 'say why, in 1 to 256 bytes'));
  end if;
  if p_step = '' or octet_length(p_step) > 256 or p_step ~ '[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'step', 'problem', 'must be 1 to 256 bytes without control characters'));
  end if;
  v_verdict := (ff._judge_leases(
    p_partition_key, p_namespace, 'hold', array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'held' then
    return query
    select case v_verdict.word when 'repeat' then 'held' else v_verdict.word end, v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  perform ff._interrupt_executions(
    p_partition_key, array[p_execution_id], 'hold', 'blocked_by_operator', 'paused_by_policy',
    'hold', 'held', 'held', v_now,
    p_blocking_detail => concat_ws(': ', p_step, p_reason),
    p_detail => jsonb_strip_nulls(jsonb_build_object('step', p_step, 'reason', p_reason)));
  return query select 'held', null::jsonb;
end;
$$;


--
-- Name: issue_claim_grant(smallint, text, uuid, bytea, text, text, text[], interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.issue_claim_grant(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_capabilities text[], p_grant_ttl interval) RETURNS TABLE(outcome text, kind text, expires_at timestamp with time zone, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_row     ff.execution;
  v_grant   ff.grant;
  v_kind    ff.grant_kind;
  v_missing text;
begin
  perform ff._check_grant(p_execution_id, p_key, p_grant_ttl);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_execution_id, p_capabilities, 1,
                          interval '1 minute');
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);

  select g.* into v_grant from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and case when g.expires_at > v_now then true else false end;
  if v_grant.key_hash = sha256(p_key) and v_grant.worker_id = p_worker_id
     and v_grant.kind <> 'reclaim' then
    return query select 'granted', v_grant.kind::text, v_grant.expires_at, null::jsonb;
    return;
  end if;

  if v_row.phase <> 'runnable' or v_row.eligibility <> 'eligible_now' then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'phase', v_row.phase, 'eligibility', v_row.eligibility, 'ownership', v_row.ownership));
  elsif v_grant.kind is not null then
    perform ff._refuse('WF405', 'grant_exists', jsonb_build_object(
      'worker_id', v_grant.worker_id, 'expires_at', v_grant.expires_at));
  end if;
  perform ff._check_lane(v_row.route_id, v_now);
  v_missing := ff._missing_capabilities(v_row.route_id, p_capabilities);
  if v_missing is not null then
    perform ff._refuse('WF002', 'capability_mismatch', jsonb_build_object(
      'field', 'capabilities', 'problem', 'the worker lacks ' || v_missing,
      'missing', v_missing));
  end if;

  v_kind := case v_row.attempt_state when 'attempt_interrupted' then 'resume' else 'claim' end;
  perform ff._write_grant(p_partition_key, p_execution_id, v_kind, p_key, p_worker_id,
                          p_worker_instance_id, v_now, p_grant_ttl);
  return query select 'granted', v_kind::text, v_now + p_grant_ttl, null::jsonb;
end;
$$;


--
-- Name: issue_grant_and_claim(smallint, text, uuid, uuid, interval, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.issue_grant_and_claim(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_claim_id uuid, p_lease_ttl interval, p_worker_id text DEFAULT 'operator'::text, p_worker_instance_id text DEFAULT 'operator'::text) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, claim_kind text, rank smallint, created_at timestamp with time zone, epoch bigint, attempt_index integer, attempt_id uuid, attempt_type text, lease_expires_at timestamp with time zone, attempt_deadline_at timestamp with time zone, deadline_at timestamp with time zone, retry_count integer, payload_encoding text, payload bytea, replay_count integer, trace_context text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now   timestamptz;
  v_row   ff.execution;
  v_grant ff.grant;
begin
  if p_execution_id is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_id', 'problem', 'must be the id of an execution'));
  end if;
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, '{}', 1, p_lease_ttl);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  if v_row.ownership = 'leased' and v_row.lease_id = p_claim_id then
    return query select * from ff._claimed(p_partition_key, array[p_execution_id], p_claim_id);
    return;
  end if;

  if v_row.ownership = 'leased' then
    perform ff._refuse('WF404', 'lease_conflict', jsonb_build_object(
      'worker_id', v_row.worker_id, 'lease_expires_at', v_row.lease_expires_at));
  elsif v_row.phase <> 'runnable' or v_row.eligibility <> 'eligible_now' then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'phase', v_row.phase, 'eligibility', v_row.eligibility, 'ownership', v_row.ownership));
  end if;
  perform ff._check_new_lease(p_partition_key, p_execution_id, p_claim_id, array[
    v_row.last_lease_id, v_row.attempt_id]);
  -- One that is over goes; a live one is somebody else's.
  delete from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
  returning g.* into v_grant;
  if v_grant.expires_at > v_now then
    perform ff._refuse('WF405', 'grant_exists', jsonb_build_object(
      'worker_id', v_grant.worker_id, 'expires_at', v_grant.expires_at));
  end if;
  return query select * from ff._lease_executions(
    p_partition_key, array[p_execution_id], v_row.total_attempt_count > 0, p_claim_id, p_worker_id,
    p_worker_instance_id, p_lease_ttl, v_now);
end;
$$;


--
-- Name: issue_reclaim_grant(smallint, text, uuid, bytea, text, text, text[], interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.issue_reclaim_grant(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_capabilities text[], p_grant_ttl interval) RETURNS TABLE(outcome text, kind text, expires_at timestamp with time zone, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_row     ff.execution;
  v_grant   ff.grant;
  v_word    text;
  v_missing text;
begin
  perform ff._check_grant(p_execution_id, p_key, p_grant_ttl);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_execution_id, p_capabilities, 1,
                          interval '1 minute');
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);

  select g.* into v_grant from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and case when g.expires_at > v_now then true else false end;
  if v_grant.key_hash = sha256(p_key) and v_grant.worker_id = p_worker_id
     and v_grant.kind = 'reclaim' then
    return query select 'granted', v_grant.kind::text, v_grant.expires_at, null::jsonb;
    return;
  end if;

  v_word := ff._judge_reclaim(p_partition_key, v_row, v_now);
  if v_word is not null then
    return query select v_word, null::text, null::timestamptz, jsonb_build_object(
      'phase', v_row.phase, 'ownership', v_row.ownership, 'reclaim_count', v_row.reclaim_count,
      'max_reclaims', v_row.max_reclaims);
    return;
  elsif v_grant.kind is not null then
    perform ff._refuse('WF405', 'grant_exists', jsonb_build_object(
      'worker_id', v_grant.worker_id, 'expires_at', v_grant.expires_at));
  end if;
  perform ff._check_lane(v_row.route_id, v_now);
  v_missing := ff._missing_capabilities(v_row.route_id, p_capabilities);
  if v_missing is not null then
    return query select 'not_reclaimable', null::text, null::timestamptz, jsonb_build_object(
      'problem', 'capability_mismatch', 'missing', v_missing);
    return;
  end if;

  perform ff._write_grant(p_partition_key, p_execution_id, 'reclaim', p_key, p_worker_id,
                          p_worker_instance_id, v_now, p_grant_ttl);
  return query select 'granted', 'reclaim', v_now + p_grant_ttl, null::jsonb;
end;
$$;


--
-- Name: list_execution_ids(smallint, text, uuid, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.list_execution_ids(p_partition_key smallint, p_namespace text, p_after uuid DEFAULT NULL::uuid, p_limit integer DEFAULT 1000) RETURNS TABLE(execution_id uuid, next_after uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_after constant uuid := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
  v_ids   uuid[];
  v_last  uuid;
begin
  perform ff._check_limit(p_limit);
  select array_agg(s.execution_id order by s.execution_id) filter (where s.is_ours),
         (array_agg(s.execution_id order by s.execution_id desc))[1]
    into v_ids, v_last
  from (
    select e.execution_id, p_namespace is null or e.namespace = p_namespace as is_ours
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id > v_after
    order by e.execution_id
    limit case when p_namespace is null then p_limit else 10000 end
  ) s;
  if cardinality(v_ids) >= p_limit then
    v_ids := v_ids[1 : p_limit];
    v_last := v_ids[p_limit];
  end if;
  return query
  select u.id, null::uuid from unnest(v_ids) with ordinality u(id, n) order by u.n;
  execution_id := null;
  next_after := (
    select v_last from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id > v_last
    limit 1);
  return next;
end;
$$;


--
-- Name: list_executions(smallint, text, text[], text[], text[], text, timestamp with time zone, timestamp with time zone, timestamp with time zone, text, text, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.list_executions(p_partition_key smallint, p_namespace text, p_states text[] DEFAULT NULL::text[], p_lanes text[] DEFAULT NULL::text[], p_tasks text[] DEFAULT NULL::text[], p_tags text DEFAULT NULL::text, p_created_after timestamp with time zone DEFAULT NULL::timestamp with time zone, p_created_before timestamp with time zone DEFAULT NULL::timestamp with time zone, p_ended_after timestamp with time zone DEFAULT NULL::timestamp with time zone, p_worker_instance_id text DEFAULT NULL::text, p_cursor text DEFAULT NULL::text, p_limit integer DEFAULT 100) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, priority integer, public_state text, blocking_reason text, attempt_index integer, total_attempt_count integer, retry_count integer, replay_count integer, reclaim_count integer, is_crash_loop boolean, worker_instance_id text, created_at timestamp with time zone, started_at timestamp with time zone, terminal_at timestamp with time zone, delayed_until timestamp with time zone, deadline_at timestamp with time zone, failure_reason text, version integer, next_cursor text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_ids     uuid[] := '{}';
  v_next    uuid;
  v_look_at integer;
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'limit', 'problem', 'must be 1 to 1000'));
  end if;
  -- A short look is mostly enough; only who finds too little takes a long one.
  foreach v_look_at in array case when p_tags is null then array[least(2 * p_limit, 500), 2000]
                                  else array[200, 1300] end
  loop
    select v_ids || f.execution_ids, f.next_id into v_ids, v_next
    from ff._scan_executions(
      p_partition_key, p_namespace, p_states, p_lanes, p_tasks, p_tags, p_created_after,
      p_created_before, p_ended_after, p_worker_instance_id,
      coalesce(replace(v_next::text, '-', ''), p_cursor), p_limit - cardinality(v_ids),
      v_look_at) f;
    exit when v_next is null or cardinality(v_ids) = p_limit;
  end loop;
  return query
  select e.execution_id, e.namespace, r.lane, r.task, 9000 - e.rank, e.public_state::text,
         e.blocking_reason::text, e.attempt_index, e.total_attempt_count, e.retry_count,
         e.replay_count, e.reclaim_count, e.reclaim_count >= 2 and e.phase <> 'terminal',
         e.worker_instance_id, e.created_at, e.started_at, e.terminal_at, e.delayed_until,
         e.deadline_at,
         case when e.attempt_state <> 'pending_replay_attempt' then e.failure_reason end, e.version,
         null::text
  from unnest(v_ids) with ordinality u(id, n)
  cross join lateral (
    select x.* from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
    offset 0) e
  cross join lateral (
    select y.lane, y.task from ff.route y where y.route_id = e.route_id offset 0) r
  order by u.n;
  execution_id := null; namespace := null; lane := null; task := null; priority := null;
  public_state := null; blocking_reason := null; attempt_index := null;
  total_attempt_count := null; retry_count := null; replay_count := null; reclaim_count := null;
  is_crash_loop := null; worker_instance_id := null; created_at := null; started_at := null;
  terminal_at := null; delayed_until := null; deadline_at := null; failure_reason := null;
  version := null;
  next_cursor := replace(v_next::text, '-', '');
  return next;
end;
$$;


--
-- Name: list_expired_leases(smallint, text, timestamp with time zone, timestamp with time zone, uuid, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.list_expired_leases(p_partition_key smallint, p_namespace text, p_as_of timestamp with time zone DEFAULT NULL::timestamp with time zone, p_after_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_after_id uuid DEFAULT NULL::uuid, p_limit integer DEFAULT 1000) RETURNS TABLE(execution_id uuid, namespace text, lease_id uuid, epoch bigint, worker_id text, worker_instance_id text, lease_expires_at timestamp with time zone, attempt_index integer, is_marked boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := ff.now();
  v_as_of constant timestamptz := coalesce(p_as_of, v_now);
begin
  perform ff._check_limit(p_limit);
  if num_nonnulls(p_after_at, p_after_id) = 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'after', 'problem', 'takes both the time and the id of the last lease'));
  end if;
  return query
  select c.execution_id, c.namespace, c.lease_id, c.epoch, c.worker_id, c.worker_instance_id,
         c.lease_expires_at, c.attempt_index, c.ownership <> 'leased'
  from (
    -- due_at never lies behind the expiry; a wait before a reclaim is 4 minutes at most.
    select e.execution_id, e.namespace, e.lease_id, e.epoch, e.worker_id, e.worker_instance_id,
           e.lease_expires_at, e.attempt_index, e.ownership
    from ff.execution e
    where e.partition_key = p_partition_key
      and e.due_at <= greatest(v_as_of, v_now) + interval '5 minutes'
      and case when e.ownership = 'leased'
                or (e.ownership = 'lease_expired_reclaimable' and e.reclaim_at is not null)
            then e.lease_expires_at <= v_as_of else false end
    union all
    select e.execution_id, e.namespace, e.lease_id, e.epoch, e.worker_id, e.worker_instance_id,
           e.lease_expires_at, e.attempt_index, e.ownership
    from ff.execution e
    where e.partition_key = p_partition_key
      and e.ownership in ('lease_expired_reclaimable', 'lease_revoked') and e.reclaim_at is null
      and case when e.ownership = 'lease_expired_reclaimable'
            then e.lease_expires_at <= v_as_of else false end
  ) c
  where (p_namespace is null or c.namespace = p_namespace)
    and (p_after_at is null
         or (c.lease_expires_at, c.execution_id) > (p_after_at, p_after_id))
  order by c.lease_expires_at, c.execution_id
  limit p_limit;
end;
$$;


--
-- Name: list_steps(smallint, text, uuid[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.list_steps(p_partition_key smallint, p_namespace text, p_execution_ids uuid[]) RETURNS TABLE(execution_id uuid, name text, occurrence integer, "position" integer, is_sequential boolean, kind text, value bytea, encoding text, recorded_at timestamp with time zone, until_at timestamp with time zone, attempt_index integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
  perform ff._check_batch(cardinality(p_execution_ids), '{}');
  return query
  select s.execution_id, s.name, s.occurrence, s.position, s.is_sequential, s.kind::text, s.value,
         s.encoding, s.recorded_at, s.until_at, s.attempt_index
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select x.execution_id from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
      and case when p_namespace is null or x.namespace = p_namespace then true else false end
    offset 0
  ) e
  cross join lateral (
    select y.* from ff.step y
    where y.partition_key = p_partition_key and y.execution_id = e.execution_id
    offset 0
  ) s
  order by s.execution_id, s.position, s.name, s.occurrence;
end;
$$;


--
-- Name: list_workers(text, text, text, integer, boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.list_workers(p_namespace text DEFAULT NULL::text, p_after_namespace text DEFAULT NULL::text, p_after_instance_id text DEFAULT NULL::text, p_limit integer DEFAULT 1000, p_with_dead boolean DEFAULT false) RETURNS TABLE(namespace text, worker_instance_id text, worker_id text, lanes text[], tasks text[], capabilities text[], liveness_ttl interval, registered_at timestamp with time zone, heartbeat_at timestamp with time zone, expires_at timestamp with time zone, is_alive boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  perform ff._check_limit(p_limit);
  if (p_after_namespace is null) <> (p_after_instance_id is null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'after', 'problem', 'must name both the namespace and the instance, or neither'));
  end if;
  v_now := ff.now();
  return query
  select w.namespace, w.worker_instance_id, w.worker_id, w.lanes, w.tasks, w.capabilities,
         w.liveness_ttl, w.registered_at, w.heartbeat_at, w.heartbeat_at + w.liveness_ttl,
         w.heartbeat_at + w.liveness_ttl > v_now
  from ff.worker w
  where (p_namespace is null or w.namespace = p_namespace)
    and (p_with_dead or w.heartbeat_at + w.liveness_ttl > v_now)
    and (p_after_namespace is null
         or (w.namespace, w.worker_instance_id) > (p_after_namespace, p_after_instance_id))
  order by w.namespace, w.worker_instance_id
  limit p_limit;
end;
$$;


--
-- Name: mark_worker_dead(text, text, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.mark_worker_dead(p_namespace text, p_worker_instance_id text, p_reason text, p_actor text DEFAULT NULL::text) RETURNS TABLE(outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  if p_namespace is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'namespace', 'problem', 'must be given; an empty one is the worker for all'));
  end if;
  if p_worker_instance_id is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_id', 'problem', 'must be given'));
  end if;
  if p_reason is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'reason', 'problem', 'must be given'));
  end if;
  perform ff._check_words(p_actor, p_reason);
  v_now := ff.now();
  with marked as (
    delete from ff.worker w
    where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id
    returning w.worker_id, w.heartbeat_at
  ),
  logged as (
    insert into ff.worker_event (
      namespace, worker_instance_id, worker_id, kind, occurred_at, actor, reason)
    select p_namespace, p_worker_instance_id, m.worker_id, 'marked_dead',
           greatest(v_now, m.heartbeat_at), p_actor, p_reason
    from marked m
  )
  select case when count(*) > 0 then 'marked' else 'not_registered' end into outcome from marked;
  return next;
end;
$$;


--
-- Name: now(); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.now() RETURNS timestamp with time zone
    LANGUAGE sql
    AS $$ select pg_catalog.clock_timestamp() $$;


--
-- Name: open_cursor(smallint, timestamp with time zone); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.open_cursor(p_partition_key smallint, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  v_trimmed  text;
  v_snapshot pg_snapshot;
  v_own      xid8;
  v_last     record;
begin
  perform ff._require_primary();
  select m.value into v_trimmed
  from ff.meta m where m.name = 'trimmed_xid:' || p_partition_key;
  v_snapshot := pg_current_snapshot();
  v_own := coalesce(pg_current_xact_id_if_assigned(), '0'::xid8);
  if p_since is null then
    select e.event_id, e.xid, e.occurred_at, e.execution_id into v_last
    from ff.event e
    where e.partition_key = p_partition_key
      and e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
    order by e.xid desc, e.event_id desc
    limit 1;
  else
    -- The highest event before the first one wanted. A walk over the index: rarely done, and exact.
    select e.event_id, e.xid, e.occurred_at, e.execution_id into v_last
    from ff.event e
    where e.partition_key = p_partition_key
      and e.xid < coalesce(
        (select f.xid from ff.event f
         where f.partition_key = p_partition_key and f.occurred_at >= p_since
           and f.xid <> v_own and pg_visible_in_snapshot(f.xid, v_snapshot)
         order by f.xid limit 1),
        pg_snapshot_xmax(v_snapshot))
      and e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
    order by e.xid desc, e.event_id desc
    limit 1;
  end if;
  return ff._write_cursor(p_partition_key, v_last.xid, v_snapshot, v_last.event_id,
                          v_last.occurred_at, v_last.execution_id, v_trimmed);
end;
$$;


--
-- Name: promote_delayed(smallint, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.promote_delayed(p_partition_key smallint, p_limit integer DEFAULT 500) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now    timestamptz := ff.now();
  v_routes bigint[];
  v_count  integer;
begin
  perform ff._check_limit(p_limit);
  with due as materialized (
    select e.partition_key as pk, e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at <= v_now
      and case when e.delayed_until <= v_now or e.reclaim_at <= v_now then true else false end
    order by e.due_at
    limit p_limit
    for no key update skip locked
  ),
  promoted as (
    update ff.execution e set
      eligibility = case when e.delayed_until is null then e.eligibility else 'eligible_now' end,
      blocking_reason = 'waiting_for_worker',
      cause = case when e.delayed_until is null then e.cause else 'promote' end,
      delayed_until = null,
      reclaim_at = null,
      due_at = e.deadline_at,
      transitioned_at = case when e.delayed_until is null then e.transitioned_at
                             else greatest(v_now, e.transitioned_at) end,
      mutated_at = greatest(v_now, e.transitioned_at)
    from due d
    where e.partition_key = d.pk and e.execution_id = d.execution_id
    returning e.route_id
  )
  select count(*), array_agg(distinct p.route_id) into v_count, v_routes from promoted p;

  perform ff._hint_ready(p_partition_key, v_routes);
  return query
  select v_count,
         (select e.due_at - v_now from ff.execution e
          where e.partition_key = p_partition_key and e.due_at > v_now
          order by e.due_at limit 1);
end;
$$;


--
-- Name: read_events(smallint, text, text, integer, text[], text[], text[], uuid[], text[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.read_events(p_partition_key smallint, p_namespace text, p_cursor text, p_limit integer DEFAULT 500, p_kinds text[] DEFAULT NULL::text[], p_lanes text[] DEFAULT NULL::text[], p_tasks text[] DEFAULT NULL::text[], p_execution_ids uuid[] DEFAULT NULL::uuid[], p_instance_tags text[] DEFAULT NULL::text[]) RETURNS TABLE(event_id bigint, execution_id uuid, version integer, kind text, occurred_at timestamp with time zone, attempt_index integer, lease_id uuid, epoch bigint, worker_instance_id text, outcome text, flow_id uuid, namespace text, lane text, task text, instance_tag text, actor text, detail text, next_cursor text, has_more boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_snapshot   pg_snapshot;
  v_own        xid8;
  v_parts      text[];
  v_last       xid8;
  v_unfinished xid8[];
  v_cut        xid8;
  v_checked    xid8;
  v_beyond     xid8;
  v_anchor     record;
begin
  perform ff._check_limit(p_limit);
  perform ff._require_primary();
  v_parts := ff._check_cursor(p_partition_key, p_cursor);
  v_last := v_parts[5]::xid8;
  v_unfinished := array(
    select (v_parts[5]::bigint - ('x' || lpad(d.distance, 16, '0'))::bit(64)::bigint)::text::xid8
    from unnest(string_to_array(nullif(v_parts[6], ''), ',')) d(distance));
  v_snapshot := pg_current_snapshot();
  v_own := coalesce(pg_current_xact_id_if_assigned(), '0'::xid8);

  -- Enough for a page: up to and including the transaction of its last row.
  select e.xid into v_cut
  from ff.event e
  where e.partition_key = p_partition_key and e.xid > v_last
    and e.xid < pg_snapshot_xmax(v_snapshot)
    and e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
  order by e.xid, e.event_id
  offset p_limit - 1 limit 1;

  -- A transaction that began early may have written late: then an execution's earlier event carries
  -- a higher number. Go on until every event in the page has its predecessor before or in it.
  v_checked := v_last;
  while v_cut is not null loop
    select p.xid into v_beyond
    from (
      select e.execution_id, e.event_id
      from ff.event e
      where e.partition_key = p_partition_key and e.xid > v_checked and e.xid <= v_cut
        and e.version > 1
      union all
      select e.execution_id, e.event_id
      from unnest(v_unfinished) u(xid)
      cross join lateral (
        select x.execution_id, x.event_id from ff.event x
        where x.partition_key = p_partition_key and x.xid = u.xid and x.version > 1
        offset 0) e
      where v_checked = v_last
    ) w
    cross join lateral (
      select b.xid
      from ff.event b
      where b.partition_key = p_partition_key and b.execution_id = w.execution_id
        and b.event_id < w.event_id
      order by b.event_id desc
      limit 1
    ) p
    where p.xid > v_cut and pg_visible_in_snapshot(p.xid, v_snapshot)
    order by p.xid desc
    limit 1;
    exit when v_beyond is null;
    v_checked := v_cut;
    v_cut := v_beyond;
  end loop;

  return query
  select e.event_id, e.execution_id, e.version, e.kind::text, e.occurred_at, e.attempt_index,
         e.lease_id, e.epoch, e.worker_instance_id, e.outcome::text, e.flow_id, e.namespace,
         r.lane, r.task, e.instance_tag, e.actor, e.detail::text, null::text, null::boolean
  from (
    select x.event_id, x.execution_id, x.version, x.kind, x.occurred_at, x.attempt_index,
           x.lease_id, x.epoch, x.worker_instance_id, x.outcome, x.flow_id, x.namespace,
           x.instance_tag, x.actor, x.detail, x.route_id, x.xid
    from ff.event x
    where x.partition_key = p_partition_key and x.xid > v_last
      and x.xid <= coalesce(v_cut, pg_snapshot_xmax(v_snapshot))
    union all
    select l.event_id, l.execution_id, l.version, l.kind, l.occurred_at, l.attempt_index,
           l.lease_id, l.epoch, l.worker_instance_id, l.outcome, l.flow_id, l.namespace,
           l.instance_tag, l.actor, l.detail, l.route_id, l.xid
    from unnest(v_unfinished) u(xid)
    cross join lateral (
      select y.* from ff.event y
      where y.partition_key = p_partition_key and y.xid = u.xid
      offset 0) l
  ) e
  left join lateral (
    select s.lane, s.task from ff.route s where s.route_id = e.route_id offset 0) r on true
  where e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
    and (p_namespace is null or e.namespace = p_namespace)
    and (p_kinds is null or e.kind::text = any (p_kinds))
    and (p_lanes is null or r.lane = any (p_lanes))
    and (p_tasks is null or r.task = any (p_tasks))
    and (p_execution_ids is null or e.execution_id = any (p_execution_ids))
    and (p_instance_tags is null or e.instance_tag = any (p_instance_tags))
  order by e.event_id;

  -- The highest transaction delivered, hidden rows included; nothing new leaves the cursor alone.
  select e.event_id, e.xid, e.occurred_at, e.execution_id into v_anchor
  from ff.event e
  where e.partition_key = p_partition_key and e.xid > v_last
    and e.xid <= coalesce(v_cut, pg_snapshot_xmax(v_snapshot))
    and e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
  order by e.xid desc, e.event_id desc
  limit 1;
  next_cursor := case
    when v_anchor.xid is not null then
      ff._write_cursor(p_partition_key, v_anchor.xid, v_snapshot, v_anchor.event_id,
                       v_anchor.occurred_at, v_anchor.execution_id, v_parts[10])
    when exists (
        select from unnest(v_unfinished) u(xid)
        where u.xid <> v_own and pg_visible_in_snapshot(u.xid, v_snapshot)) then
      ff._write_cursor(p_partition_key, v_last, v_snapshot, v_parts[7]::bigint,
                       timestamptz 'epoch' + v_parts[8]::bigint * interval '1 microsecond',
                       nullif(v_parts[9], '')::uuid, v_parts[10])
    else p_cursor end;
  has_more := v_cut is not null and exists (
    select from ff.event e
    where e.partition_key = p_partition_key and e.xid > v_cut
      and e.xid < pg_snapshot_xmax(v_snapshot)
      and e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot));

  -- What was trimmed while we read may be missing above.
  if exists (
    select from ff.meta m
    where m.name = 'trimmed_xid:' || p_partition_key and m.value is distinct from v_parts[10])
  then
    perform ff._check_cursor(p_partition_key, p_cursor);
  end if;
  event_id := null; execution_id := null; version := null; kind := null; occurred_at := null;
  attempt_index := null; lease_id := null; epoch := null; worker_instance_id := null;
  outcome := null; flow_id := null; namespace := null; lane := null; task := null;
  instance_tag := null; actor := null; detail := null;
  return next;
end;
$$;


--
-- Name: read_results(smallint, text, uuid[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.read_results(p_partition_key smallint, p_namespace text, p_execution_ids uuid[]) RETURNS TABLE(execution_id uuid, public_state text, terminal_at timestamp with time zone, attempt_index integer, result_encoding text, result bytea, failure_class text, failure_category text, failure_reason text, failure_detail bytea)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
  perform ff._check_batch(cardinality(p_execution_ids), '{}');
  return query
  select e.execution_id, e.public_state::text, e.terminal_at, e.attempt_index, e.result_encoding,
         e.result, e.failure_class::text,
         case when e.cause = 'expire' then 'execution_deadline' else e.failure_category end,
         e.failure_reason, e.failure_detail
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select x.* from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
      and case when x.phase = 'terminal' and (p_namespace is null or x.namespace = p_namespace)
            then true else false end
    offset 0
  ) e;
end;
$$;


--
-- Name: read_traffic(smallint, text, interval, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.read_traffic(p_partition_key smallint, p_namespace text DEFAULT NULL::text, p_window interval DEFAULT '00:00:10'::interval, p_limit integer DEFAULT 1000) RETURNS TABLE(lane text, state text, resumes_at timestamp with time zone, waiting integer, is_more_waiting boolean, waiting_since timestamp with time zone, delayed integer, active integer, is_more_timed boolean, submitted integer, completed integer, retried integer, failed integer, seconds double precision, workers text[], running integer[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now   timestamptz := ff.now();
  v_share integer;
begin
  perform ff._check_limit(p_limit);
  if p_window is null or p_window <= interval '0' or p_window > interval '1 hour' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'window', 'problem', 'must be longer than nothing and at most one hour'));
  end if;
  v_share := greatest(100, 10 * p_limit / greatest(1, (
    select count(*) from ff.route r where p_namespace is null or r.namespace = p_namespace)));
  return query
  with recursive route as materialized (
    select r.route_id, r.lane
    from ff.route r
    where p_namespace is null or r.namespace = p_namespace
  ),
  line as materialized (
    select r.lane, sum(least(w.number, v_share))::integer as waiting,
           bool_or(w.number > v_share) as is_more
    from route r
    cross join lateral (
      select count(*) as number
      from (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.route_id = r.route_id
          and e.phase = 'runnable' and e.eligibility = 'eligible_now'
        limit v_share + 1) c) w
    group by r.lane
  ),
  first as (
    select r.lane, r.route_id, h.rank, h.transitioned_at, 1 as depth
    from route r
    cross join lateral (
      select e.rank, e.transitioned_at
      from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = r.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
      order by e.rank, e.created_at, e.execution_id
      limit 1) h
    union all
    select f.lane, f.route_id, h.rank, h.transitioned_at, f.depth + 1
    from first f
    cross join lateral (
      select e.rank, e.transitioned_at
      from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = f.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now' and e.rank > f.rank
      order by e.rank, e.created_at, e.execution_id
      limit 1) h
    where f.depth < 10
  ),
  oldest as (
    select f.lane, min(f.transitioned_at) as since from first f group by f.lane
  ),
  due as materialized (
    select e.execution_id, e.route_id, e.phase, e.eligibility,
           case when e.ownership = 'leased' then e.worker_instance_id end as worker_instance_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at is not null
    order by e.due_at
    limit p_limit
  ),
  timed as materialized (
    select d.execution_id, d.route_id, d.phase, d.eligibility, d.worker_instance_id from due d
    union
    select c.execution_id, c.route_id, c.phase, c.eligibility, null
    from (
      select e.execution_id, e.route_id, e.phase, e.eligibility
      from ff.execution e
      where e.partition_key = p_partition_key
        and e.ownership in ('lease_expired_reclaimable', 'lease_revoked') and e.reclaim_at is null
      limit p_limit) c
    where not exists (select from due d where d.execution_id = c.execution_id)
  ),
  held as (
    select r.lane, t.worker_instance_id as worker, count(*)::integer as number
    from timed t
    join route r on r.route_id = t.route_id
    where t.phase = 'active'
    group by r.lane, t.worker_instance_id
  ),
  activity as (
    select h.lane, sum(h.number)::integer as active,
           array_agg(h.worker order by h.worker) filter (where h.worker is not null) as workers,
           array_agg(h.number order by h.worker) filter (where h.worker is not null) as running
    from held h
    group by h.lane
  ),
  later as (
    select r.lane, count(*)::integer as delayed
    from timed t
    join route r on r.route_id = t.route_id
    where t.eligibility = 'not_eligible_until_time'
    group by r.lane
  ),
  tail as materialized (
    select v.route_id, v.kind, v.occurred_at
    from ff.event v
    where v.partition_key = p_partition_key
    order by v.xid desc, v.event_id desc
    limit p_limit
  ),
  span as materialized (
    select case when count(*) >= p_limit and min(t.occurred_at) > v_now - p_window
             then greatest(v_now - min(t.occurred_at), interval '1 ms') else p_window end as length
    from tail t
  ),
  traffic as (
    select r.lane,
           (count(*) filter (where t.kind = 'submitted'))::integer as submitted,
           (count(*) filter (where t.kind = 'completed'))::integer as completed,
           (count(*) filter (where t.kind = 'retry_scheduled'))::integer as retried,
           (count(*) filter (where t.kind in ('failed', 'expired')))::integer as failed
    from tail t
    join route r on r.route_id = t.route_id
    where t.occurred_at > v_now - p_window
    group by r.lane
  )
  select l.lane, l.state::text, l.resumes_at, coalesce(n.waiting, 0), coalesce(n.is_more, false),
         o.since, coalesce(d.delayed, 0), coalesce(a.active, 0),
         (select count(*) from due) >= p_limit,
         coalesce(t.submitted, 0), coalesce(t.completed, 0), coalesce(t.retried, 0),
         coalesce(t.failed, 0), extract(epoch from s.length)::double precision,
         coalesce(a.workers, '{}'), coalesce(a.running, '{}')
  from ff.lane l
  cross join span s
  left join line n on n.lane = l.lane
  left join oldest o on o.lane = l.lane
  left join activity a on a.lane = l.lane
  left join later d on d.lane = l.lane
  left join traffic t on t.lane = l.lane
  where p_namespace is null or n.lane is not null
  order by l.lane collate "C";
end;
$$;


--
-- Name: reap_grants(smallint, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.reap_grants(p_partition_key smallint, p_limit integer DEFAULT 500) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now  timestamptz := ff.now();
  v_over uuid[];
begin
  perform ff._check_limit(p_limit);
  with over as materialized (
    select g.partition_key as pk, g.execution_id
    from ff.grant g
    where g.partition_key = p_partition_key and g.expires_at > '-infinity'
      and g.expires_at <= v_now
    order by g.expires_at
    limit p_limit
    for update skip locked
  ),
  reaped as (
    delete from ff.grant g
    using over o
    where g.partition_key = o.pk and g.execution_id = o.execution_id
    returning g.execution_id
  )
  select array_agg(r.execution_id) into v_over from reaped r;

  if v_over is not null then
    perform ff._hint_ready(p_partition_key, (
      select array_agg(distinct e.route_id)
      from unnest(v_over) u(id)
      cross join lateral (
        select x.route_id from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = u.id
          and case when (x.phase = 'runnable' and x.eligibility = 'eligible_now')
                     or (x.ownership in ('lease_expired_reclaimable', 'lease_revoked')
                         and x.reclaim_at is null)
                then true else false end
        offset 0) e));
  end if;
  return query
  select coalesce(cardinality(v_over), 0),
         (select g.expires_at - v_now from ff.grant g
          where g.partition_key = p_partition_key and g.expires_at > '-infinity'
            and g.expires_at > v_now
          order by g.expires_at limit 1);
end;
$$;


--
-- Name: reclaim_execution(smallint, text, uuid, bytea, text, text, uuid, interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.reclaim_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval) RETURNS TABLE(execution_id uuid, namespace text, lane text, task text, claim_kind text, rank smallint, created_at timestamp with time zone, epoch bigint, attempt_index integer, attempt_id uuid, attempt_type text, lease_expires_at timestamp with time zone, attempt_deadline_at timestamp with time zone, deadline_at timestamp with time zone, retry_count integer, payload_encoding text, payload bytea, replay_count integer, trace_context text, outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now  timestamptz;
  v_row  ff.execution;
  v_word text;
begin
  perform ff._check_grant(p_execution_id, p_key);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, '{}', 1, p_lease_ttl);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  if v_row.ownership = 'leased' and v_row.lease_id = p_claim_id then
    return query select c.*, 'reclaimed', null::jsonb
    from ff._claimed(p_partition_key, array[p_execution_id], p_claim_id) c;
    return;
  end if;

  v_word := ff._judge_reclaim(p_partition_key, v_row, v_now);
  if v_word is null then
    perform ff._check_lane(v_row.route_id, v_now);
    perform ff._check_new_lease(p_partition_key, p_execution_id, p_claim_id, array[
      v_row.lease_id, v_row.last_lease_id, v_row.attempt_id]);
    v_word := ff._use_grant(p_partition_key, p_execution_id, 'reclaim', p_key, p_worker_id, v_now);
    if v_word = 'other_worker' then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'worker_id', 'problem', 'the grant is for another worker'));
    end if;
  end if;
  if v_word <> 'good' then
    outcome := v_word;
    detail := jsonb_build_object(
      'phase', v_row.phase, 'ownership', v_row.ownership, 'reclaim_count', v_row.reclaim_count,
      'max_reclaims', v_row.max_reclaims);
    return next;
    return;
  end if;
  return query select l.*, 'reclaimed', null::jsonb
  from ff._lease_executions(
    p_partition_key, array[p_execution_id], true, p_claim_id, p_worker_id, p_worker_instance_id,
    p_lease_ttl, v_now) l;
end;
$$;


--
-- Name: record_steps(smallint, text, uuid[], uuid[], bigint[], uuid[], text[], integer[], integer[], boolean[], text[], bytea[], text[], interval[], timestamp with time zone[], boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.record_steps(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_names text[], p_occurrences integer[], p_positions integer[], p_sequentials boolean[], p_kinds text[], p_values bytea[], p_encodings text[] DEFAULT NULL::text[], p_delays interval[] DEFAULT NULL::interval[], p_untils timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_wait boolean DEFAULT false) RETURNS TABLE(item integer, outcome text, recorded_at timestamp with time zone, until_at timestamp with time zone, value bytea, encoding text, attempt_index integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now    timestamptz;
  v_fences integer[];
  v_judged ff.verdict[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids),
    cardinality(p_names), cardinality(p_occurrences), cardinality(p_positions),
    cardinality(p_sequentials), cardinality(p_kinds), cardinality(p_values),
    cardinality(p_encodings), cardinality(p_delays), cardinality(p_untils)], p_wait);

  -- One verdict an execution: of its first item. An item of it with another fence comes back alone.
  v_fences := array(
    select min(u.n)::integer from unnest(p_execution_ids) with ordinality u(id, n)
    group by u.id order by 1);
  v_judged := ff._judge_leases(
    p_partition_key, p_namespace, null,
    array(select p_execution_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    array(select p_lease_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    array(select p_epochs[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    array(select p_attempt_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    p_wait);
  v_now := ff.now();

  return query
  with asked as materialized (
    select p_partition_key as pk, u.id, u.name, u.occurrence, u.position, u.sequential, u.kind,
           u.value, u.encoding, u.delay, u.until_at, u.epoch, u.n::integer as n, j.detail,
           j.attempt_index,
           case when j.word not in ('busy', 'not_found')
                 and (u.lease_id is distinct from p_lease_ids[v_fences[j.item]]
                      or u.epoch is distinct from p_epochs[v_fences[j.item]]
                      or u.attempt_id is distinct from p_attempt_ids[v_fences[j.item]])
                  then 'busy'
                else j.word end as word
    from unnest(v_judged) j
    join unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids, p_names, p_occurrences,
                p_positions, p_sequentials, p_kinds, p_values, p_encodings, p_delays, p_untils)
      with ordinality u(id, lease_id, epoch, attempt_id, name, occurrence, position, sequential,
                        kind, value, encoding, delay, until_at, n)
      on u.id is not distinct from p_execution_ids[v_fences[j.item]]
    offset 0
  ),
  judged as materialized (
    select a.*, greatest(v_now, e.transitioned_at) as now, p.words,
           row_number() over (partition by a.id, a.name, a.occurrence,
                                           a.word = 'held' and p.words is null
                              order by a.n) as nth
    from asked a
    left join lateral (
      select x.transitioned_at from ff.execution x
      where a.word = 'held' and x.partition_key = a.pk and x.execution_id = a.id
      offset 0) e on true
    cross join lateral (
      select case
          when a.word <> 'held' then null
          when a.name is null or a.name = '' or octet_length(a.name) > 256
            or a.name ~ '[\x01-\x1f\x7f]'
            then array['name', 'must be 1 to 256 bytes without control characters']
          when a.occurrence is null or a.occurrence < 0
            then array['occurrence', 'must be a number from 0 on']
          when a.position is null or a.position < 0
            then array['position', 'must be a number from 0 on']
          when a.sequential is null then array['is_sequential', 'must be true or false']
          when a.kind is null or a.kind not in ('step', 'failure', 'sleep', 'now')
            then array['kind', 'must be step, failure, sleep or now']
          when octet_length(a.value) > 1048576
            then array['value', 'is larger than 1 MiB (1048576 bytes)']
          when a.kind in ('sleep', 'now') and a.value is not null
            then array['value', 'belongs to a step or a failure only']
          when octet_length(a.encoding) > 64
            then array['encoding', 'must be at most 64 bytes']
          when a.kind = 'sleep' and num_nonnulls(a.delay, a.until_at) <> 1
            then array['delay', 'give either a delay or a time to sleep until']
          when a.kind <> 'sleep' and num_nonnulls(a.delay, a.until_at) > 0
            then array['delay', 'belongs to a sleep only']
          when a.delay not between interval '-36525 days' and interval '36525 days'
            then array['delay', 'must be at most a hundred years']
          when a.until_at < timestamptz '0001-01-02 00:00:00+00'
            or a.until_at >= timestamptz '9999-01-01 00:00:00+00'
            then array['until_at', 'must be between the years 1 and 9999']
        end as words) p
    offset 0
  ),
  stored as (
    insert into ff.step (
      partition_key, execution_id, name, occurrence, position, is_sequential, kind, attempt_index,
      epoch, recorded_at, until_at, encoding, value)
    select j.pk, j.id, j.name, j.occurrence, j.position, j.sequential, j.kind::ff.step_kind,
           j.attempt_index, j.epoch, j.now, coalesce(j.until_at, j.now + j.delay), j.encoding,
           j.value
    from judged j
    where j.word = 'held' and j.words is null and j.nth = 1
    on conflict do nothing
    returning execution_id, name, occurrence, recorded_at, until_at
  )
  -- What is not stored here was there before, or is that of an earlier item of this call.
  select j.n,
         case when j.words is not null then 'invalid'
              when j.word <> 'held' then j.word
              when j.nth = 1 and s.name is not null then 'recorded'
              else 'exists' end,
         coalesce(s.recorded_at, o.recorded_at),
         coalesce(s.until_at, o.until_at),
         case when j.nth > 1 or s.name is null then coalesce(o.value, f.value) end,
         case when j.nth > 1 or s.name is null then coalesce(o.encoding, f.encoding) end,
         case when j.word = 'held' and j.words is null
           then coalesce(o.attempt_index, j.attempt_index) end,
         case when j.words is not null
                then jsonb_build_object('field', j.words[1], 'problem', j.words[2])
              when j.word <> 'busy' then j.detail end
  from judged j
  left join stored s on s.execution_id = j.id and s.name = j.name and s.occurrence = j.occurrence
    and j.word = 'held' and j.words is null
  left join judged f on f.id = j.id and f.name = j.name and f.occurrence = j.occurrence
    and f.nth = 1 and f.words is null and j.nth > 1 and s.name is not null and j.words is null
    and f.word = 'held'
  left join lateral (
    select x.recorded_at, x.until_at, x.value, x.encoding, x.attempt_index
    from ff.step x
    where j.word = 'held' and j.words is null and s.name is null
      and x.partition_key = j.pk and x.execution_id = j.id and x.name = j.name
      and x.occurrence = j.occurrence
    offset 0) o on true
  order by j.n;
end;
$$;


--
-- Name: register_routes(text[], text[], text[], text[], text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.register_routes(p_namespaces text[], p_lanes text[], p_tasks text[], p_capabilities text[], p_registered_by text DEFAULT 'submit_executions'::text) RETURNS TABLE(item integer, route_id bigint, outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $_$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_asked   record;
  v_tokens  text[];
  v_problem text;
  v_field   text;
  v_id      bigint;
  v_known   record;
begin
  for v_asked in
    select u.namespace, u.lane, u.task, u.capabilities, u.n::integer as n
    from unnest(p_namespaces, p_lanes, p_tasks, p_capabilities)
      with ordinality u(namespace, lane, task, capabilities, n)
    order by u.namespace, u.lane, u.task, u.capabilities
  loop
    v_tokens := case when coalesce(v_asked.capabilities, '') = '' then '{}'::text[]
                     else string_to_array(v_asked.capabilities, ',') end;
    v_tokens := array(select distinct t collate "C" from unnest(v_tokens) t order by 1);
    v_field := null;
    if v_asked.namespace is null or v_asked.namespace = ''
       or octet_length(v_asked.namespace) > 256 or v_asked.namespace ~ '[\x01-\x20\x7f]' then
      v_field := 'namespace';
      v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
    elsif v_asked.lane is null or v_asked.lane = '' then
      v_field := 'lane'; v_problem := 'must not be empty';
    elsif octet_length(v_asked.lane) > 64 then
      v_field := 'lane'; v_problem := format('is %s bytes long; at most 64 are allowed',
                                             octet_length(v_asked.lane));
    elsif v_asked.lane !~ '^[ -~]+$' then
      v_field := 'lane'; v_problem := 'must be printable ASCII';
    elsif v_asked.task is null or v_asked.task = '' or octet_length(v_asked.task) > 256
       or v_asked.task ~ '[\x01-\x20\x7f]' then
      v_field := 'task';
      v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
    elsif octet_length(v_asked.capabilities) > 4096 then
      v_field := 'capabilities'; v_problem := 'required:too_many_bytes';
    elsif cardinality(v_tokens) > 256 then
      v_field := 'capabilities'; v_problem := 'required:too_many_tokens';
    elsif exists (select from unnest(v_tokens) t where t = '') then
      v_field := 'capabilities'; v_problem := 'required:empty_token';
    elsif exists (select from unnest(v_tokens) t where t ~ '[\x01-\x20\x7f]') then
      v_field := 'capabilities'; v_problem := 'required:control_or_whitespace';
    end if;

    item := v_asked.n;
    if v_field is not null then
      route_id := null;
      outcome := 'invalid';
      detail := jsonb_build_object('field', v_field, 'problem', v_problem);
      return next;
      continue;
    end if;

    v_id := ('x' || substr(encode(sha256(convert_to(
              concat_ws(E'\x01', v_asked.namespace, v_asked.lane, v_asked.task,
                        array_to_string(v_tokens, ',')), 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint
            & 9223372036854775807;
    insert into ff.lane (lane, registered_at, registered_by)
    values (v_asked.lane, v_now, p_registered_by)
    on conflict do nothing;
    insert into ff.route (route_id, namespace, lane, task, capabilities, registered_at)
    values (v_id, v_asked.namespace, v_asked.lane, v_asked.task, v_tokens, v_now)
    on conflict do nothing;

    select r.namespace, r.lane, r.task, r.capabilities into v_known
    from ff.route r where r.route_id = v_id;
    if (v_known.namespace, v_known.lane, v_known.task, v_known.capabilities)
       is distinct from (v_asked.namespace, v_asked.lane, v_asked.task, v_tokens) then
      perform ff._refuse('WF402', 'route_collision', jsonb_build_object(
        'route_id', v_id, 'task', v_asked.task, 'taken_by', v_known.task,
        'hint', 'rename the task: two routes hash to the same id'));
    end if;
    route_id := v_id;
    outcome := 'registered';
    detail := null;
    return next;
  end loop;
end;
$_$;


--
-- Name: register_worker(text, text, text, text[], text[], text[], interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.register_worker(p_namespace text, p_worker_id text, p_worker_instance_id text, p_lanes text[], p_tasks text[], p_capabilities text[], p_liveness_ttl interval) RETURNS TABLE(outcome text, expires_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_now    timestamptz;
  v_owner  text;
  v_is_new boolean;
begin
  perform ff._check_worker(p_namespace, p_worker_id, p_worker_instance_id, p_lanes, p_tasks,
                           p_capabilities, p_liveness_ttl);
  v_now := ff.now();
  with swept as (
    delete from ff.worker w
    where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id
      and w.heartbeat_at + w.liveness_ttl <= v_now
    returning w.worker_id
  )
  insert into ff.worker_event (namespace, worker_instance_id, worker_id, kind, occurred_at)
  select p_namespace, p_worker_instance_id, s.worker_id, 'ttl_swept', v_now from swept s;

  -- Whoever comes second waits here for the first, and then sees whose row it is.
  insert into ff.worker as w (
    namespace, worker_instance_id, worker_id, lanes, tasks, capabilities, liveness_ttl,
    registered_at, heartbeat_at)
  values (
    p_namespace, p_worker_instance_id, p_worker_id,
    case when p_lanes is not null
      then array(select distinct u.x collate "C" from unnest(p_lanes) u(x) order by 1) end,
    case when p_tasks is not null
      then array(select distinct u.x collate "C" from unnest(p_tasks) u(x) order by 1) end,
    array(select distinct u.x collate "C" from unnest(p_capabilities) u(x) order by 1),
    p_liveness_ttl, v_now, v_now)
  on conflict (namespace, worker_instance_id) do update
    set lanes = excluded.lanes,
        tasks = excluded.tasks,
        capabilities = excluded.capabilities,
        liveness_ttl = excluded.liveness_ttl,
        heartbeat_at = greatest(w.heartbeat_at, excluded.heartbeat_at)
    where w.worker_id = excluded.worker_id
  -- only a row that was never updated has no xmax
  returning w.xmax = 0, w.heartbeat_at + w.liveness_ttl into v_is_new, expires_at;
  if not found then
    select w.worker_id into v_owner
    from ff.worker w
    where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id;
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_id',
      'problem', 'instance_id reassigned: the live worker ' || coalesce(v_owner, '?') || ' has it'));
  end if;
  if v_is_new then
    insert into ff.worker_event (namespace, worker_instance_id, worker_id, kind, occurred_at)
    values (p_namespace, p_worker_instance_id, p_worker_id, 'registered', v_now);
  end if;
  outcome := case when v_is_new then 'registered' else 'refreshed' end;
  return next;
end;
$$;


--
-- Name: release_leases(smallint, text, uuid[], uuid[], bigint[], uuid[], text, boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.release_leases(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_cause text DEFAULT 'worker_shutdown'::text, p_wait boolean DEFAULT false) RETURNS TABLE(item integer, outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now    timestamptz;
  v_judged ff.verdict[];
  v_held   uuid[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids)], p_wait);
  if p_cause is null or octet_length(p_cause) > 256 or p_cause ~ '[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cause', 'problem', 'must be at most 256 bytes without control characters'));
  end if;
  v_judged := ff._judge_leases(p_partition_key, p_namespace, 'release', p_execution_ids,
                               p_lease_ids, p_epochs, p_attempt_ids, p_wait);
  v_now := ff.now();
  v_held := array(select j.execution_id from unnest(v_judged) j where j.word = 'held');
  if cardinality(v_held) > 0 then
    perform ff._interrupt_executions(
      p_partition_key, v_held, 'release', 'eligible_now', 'waiting_for_worker', 'release',
      'released', p_cause, v_now, p_detail => jsonb_build_object('cause', p_cause));
  end if;
  return query
  select j.item, case j.word when 'repeat' then 'released' else j.word end, j.detail
  from unnest(v_judged) j
  where j.word <> 'held';
end;
$$;


--
-- Name: renew_leases(smallint, text, uuid[], uuid[], bigint[], uuid[], interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.renew_leases(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_lease_ttl interval) RETURNS TABLE(item integer, outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now    timestamptz;
  v_judged ff.verdict[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids)]);
  if p_lease_ttl is null or p_lease_ttl not between interval '1 second' and interval '1 day' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'lease_ttl', 'problem', 'must be between one second and one day'));
  end if;
  v_judged := ff._judge_leases(p_partition_key, p_namespace, null, p_execution_ids, p_lease_ids,
                               p_epochs, p_attempt_ids, false);
  v_now := ff.now();

  update ff.execution e set
    lease_expires_at = greatest(v_now, e.transitioned_at) + p_lease_ttl,
    due_at = least(e.due_at, greatest(v_now, e.transitioned_at) + p_lease_ttl),
    mutated_at = greatest(v_now, e.transitioned_at)
  from (
    select p_partition_key as pk, j.execution_id
    from unnest(v_judged) j
    where j.word = 'held'
    offset 0
  ) i
  where e.partition_key = i.pk and e.execution_id = i.execution_id;

  return query
  select j.item, j.word, j.detail from unnest(v_judged) j where j.word <> 'held';
end;
$$;


--
-- Name: replay_execution(smallint, text, uuid, text, text, text, integer, boolean, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.replay_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_from_step text DEFAULT NULL::text, p_from_occurrence integer DEFAULT 0, p_fresh boolean DEFAULT false, p_if_version integer DEFAULT NULL::integer) RETURNS TABLE(outcome text, public_state text, version integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_row     ff.execution;
  v_now     timestamptz;
  v_is_held boolean;
  v_detail  jsonb;
begin
  perform ff._check_words(p_actor, p_reason);
  if p_fresh is null or (p_fresh and p_from_step is not null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'fresh', 'problem', 'give a step to go on from, or fresh, or neither'));
  end if;
  if p_from_occurrence is null or p_from_occurrence < 0
     or (p_from_occurrence > 0 and p_from_step is null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'from_occurrence', 'problem', 'must be a number from 0 on, of a step'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  v_is_held := v_row.eligibility = 'blocked_by_operator'
    and v_row.blocking_reason = 'paused_by_policy' and (p_fresh or p_from_step is not null);
  if v_row.phase <> 'terminal' and not v_is_held then
    perform ff._refuse('WF206', 'not_terminal', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'hint', 'only an ended execution can be replayed; cancel it first'));
  end if;

  v_now := ff.now();
  v_detail := ff._forget_steps(
    p_partition_key, p_execution_id, p_from_step, p_from_occurrence, p_fresh);
  if v_is_held then
    perform ff._make_eligible(
      p_partition_key, p_execution_id, 'unblock', 'unblocked', v_now, p_actor,
      jsonb_strip_nulls(jsonb_build_object(
        'blocking_reason', v_row.blocking_reason, 'reason', p_reason)) || v_detail);
    return query select 'unblocked', 'waiting', v_row.version + 1, null::jsonb;
  else
    perform ff._replay_execution(p_partition_key, v_row, p_reason, p_actor, v_detail);
    return query select 'replayed', 'waiting', v_row.version + 1, null::jsonb;
  end if;
end;
$$;


--
-- Name: report_progress(smallint, text, uuid, uuid, bigint, uuid, integer, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.report_progress(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_percent integer DEFAULT NULL::integer, p_message text DEFAULT NULL::text) RETURNS TABLE(outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_verdict ff.verdict;
  v_now     timestamptz;
begin
  if num_nonnulls(p_percent, p_message) = 0 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'percent', 'problem', 'give a percentage, a message or both'));
  end if;
  if p_percent not between 0 and 100 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'percent', 'problem', 'must be from 0 to 100'));
  end if;
  if octet_length(p_message) > 1024 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'message', 'problem', 'must be at most 1024 bytes'));
  end if;
  v_verdict := (ff._judge_leases(
    p_partition_key, p_namespace, null, array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'held' then
    return query select v_verdict.word, v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  update ff.execution e set
    progress_percent = coalesce(p_percent, e.progress_percent),
    progress_message = coalesce(p_message, e.progress_message),
    progressed_at = greatest(v_now, e.mutated_at),
    mutated_at = greatest(v_now, e.mutated_at)
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  return query select 'reported', null::jsonb;
end;
$$;


--
-- Name: resolve_wakes(smallint, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.resolve_wakes(p_partition_key smallint, p_limit integer DEFAULT 100) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now   timestamptz := ff.now();
  v_ended uuid[];
  v_wakes record;
begin
  perform ff._check_limit(p_limit);
  handled := 0;
  v_ended := array(
    select e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.wakes_pending
    order by e.execution_id
    limit p_limit
    for no key update skip locked);
  if cardinality(v_ended) > 0 then
    v_wakes := ff._wake_runs(p_partition_key, v_ended, v_now, p_limit);
    handled := v_wakes.told;
  end if;
  due_in := case
    when not exists (
      select from ff.execution e where e.partition_key = p_partition_key and e.wakes_pending)
      then null
    when handled > 0 then interval '0'
    else interval '100 milliseconds' end;
  return next;
end;
$$;


--
-- Name: retry_execution(smallint, text, uuid, text, text, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.retry_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_if_version integer DEFAULT NULL::integer) RETURNS TABLE(outcome text, public_state text, version integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_row  ff.execution;
  v_now  timestamptz;
  v_word text;
begin
  perform ff._check_words(p_actor, p_reason);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  v_now := ff.now();
  if v_row.phase = 'terminal' then
    v_word := 'replayed';
    perform ff._replay_execution(p_partition_key, v_row, p_reason, p_actor);
  elsif v_row.eligibility = 'not_eligible_until_time' then
    v_word := 'promoted';
    if v_row.attempt_state = 'attempt_interrupted' then
      -- else it would find its sleep in the journal and sleep on
      update ff.step s set until_at = greatest(v_now, s.recorded_at)
      where s.partition_key = p_partition_key and s.execution_id = p_execution_id
        and case when s.kind = 'sleep' and s.until_at > v_now then true else false end;
    end if;
    perform ff._make_eligible(
      p_partition_key, p_execution_id, 'promote', 'promoted', v_now, p_actor,
      jsonb_strip_nulls(jsonb_build_object('delayed_until', v_row.delayed_until, 'reason', p_reason)));
  elsif v_row.eligibility in ('blocked_by_operator', 'blocked_by_budget', 'blocked_by_quota',
                              'blocked_by_route')
    and v_row.blocking_reason <> 'paused_by_flow_cancel' then
    v_word := 'unblocked';
    perform ff._make_eligible(
      p_partition_key, p_execution_id, 'unblock', 'unblocked', v_now, p_actor,
      jsonb_strip_nulls(jsonb_build_object(
        'blocking_reason', v_row.blocking_reason, 'reason', p_reason)));
  else
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'hint', 'it is neither ended, delayed, held nor blocked'));
  end if;
  return query select v_word, 'waiting', v_row.version + 1, null::jsonb;
end;
$$;


--
-- Name: revoke_lease(smallint, text, uuid, uuid, text, text, text, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.revoke_lease(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_expected_lease_id uuid DEFAULT NULL::uuid, p_worker_instance_id text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_if_version integer DEFAULT NULL::integer) RETURNS TABLE(outcome text, public_state text, version integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_row  ff.execution;
  v_now  timestamptz;
  v_xid  xid8;
  v_word text;
begin
  perform ff._check_words(p_actor, p_reason);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  v_word := case
    when v_row.ownership <> 'leased' or v_row.lease_expires_at <= v_now then 'no_active_lease'
    when v_row.lease_id <> p_expected_lease_id then 'lease_id_mismatch'
    when v_row.worker_instance_id <> nullif(p_worker_instance_id, '')
      then 'different_worker_instance_id' end;
  if v_word is not null then
    return query select 'already_satisfied', v_row.public_state::text, v_row.version,
                        jsonb_build_object('reason', v_word);
    return;
  end if;

  v_xid := pg_current_xact_id();
  with revoked as (
    update ff.execution e set
      ownership = 'lease_revoked',
      blocking_reason = 'waiting_for_worker',
      attempt_state = 'attempt_interrupted',
      cause = 'revoke_lease',
      version = e.version + 1,
      epoch = e.epoch + 1,
      last_lease_id = e.lease_id,
      last_lease_end = 'revoke_lease',
      last_lease_retry_at = null,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      due_at = e.deadline_at,
      attempt_deadline_at = null,
      attempt_paused_at = v_now,
      attempt_pause_cause = 'lease_revoked',
      transitioned_at = v_now,
      mutated_at = v_now
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version, e.epoch
  )
  insert into ff.event (
    partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
    worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, actor, detail)
  select p_partition_key, v_xid, p_execution_id, r.version, 'lease_revoked', v_row.attempt_index,
         v_row.lease_id, r.epoch, v_row.worker_instance_id, v_row.route_id, v_row.flow_id,
         v_row.namespace, v_row.instance_tag, v_now, p_actor,
         jsonb_strip_nulls(jsonb_build_object('reason', p_reason))
  from revoked r;

  perform ff._hint_ready(p_partition_key, array[v_row.route_id]);
  perform ff._hint_lost(p_partition_key, array[p_execution_id]);
  return query
  select 'revoked', 'active', v_row.version + 1,
         jsonb_build_object('lease_id', v_row.lease_id, 'epoch', v_row.epoch + 1,
                            'worker_instance_id', v_row.worker_instance_id);
end;
$$;


--
-- Name: run_schedule(smallint, text, text, text, uuid, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.run_schedule(p_partition_key smallint, p_namespace text, p_app text, p_name text, p_execution_id uuid, p_actor text DEFAULT NULL::text) RETURNS TABLE(outcome text, execution_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
  v_now      constant timestamptz := ff.now();
  v_schedule ff.schedule;
begin
  perform ff._check_words(p_actor, null);
  if p_execution_id is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_id', 'problem', 'must be a uuid'));
  end if;
  select s.* into v_schedule
  from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name;
  if not found then
    perform ff._refuse('WF304', 'schedule_not_found', jsonb_build_object(
      'schedule', p_name, 'app', p_app));
  end if;
  if v_schedule.state = 'orphaned' then
    perform ff._refuse('WF214', 'schedule_orphaned', jsonb_build_object(
      'schedule', p_name, 'app', p_app, 'orphaned_at', v_schedule.orphaned_at));
  end if;
  perform ff._submit_firings(
    p_partition_key, v_schedule, array[v_now], array[p_execution_id], p_actor);
  return query select 'submitted', p_execution_id;
end;
$$;


--
-- Name: server_time(); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.server_time() RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
  v_now constant timestamptz := ff.now();
begin
  return v_now;
end;
$$;


--
-- Name: set_lane(text, text, timestamp with time zone, interval, boolean, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.set_lane(p_lane text, p_state text DEFAULT NULL::text, p_resumes_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_retention interval DEFAULT NULL::interval, p_clear_retention boolean DEFAULT false, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text) RETURNS TABLE(outcome text, lane text, state text, resumes_at timestamp with time zone, retention interval, reason text, changed_by text, changed_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_field   text;
  v_problem text;
  v_changed boolean;
begin
  perform ff._check_words(p_actor, p_reason);
  if p_lane is null then
    v_field := 'lane'; v_problem := 'must be given';
  elsif p_state not in ('active', 'paused', 'draining', 'disabled') then
    v_field := 'state'; v_problem := 'must be active, paused, draining or disabled';
  elsif p_resumes_at is not null and p_state is distinct from 'paused' then
    v_field := 'resumes_at'; v_problem := 'goes with the state paused only';
  elsif p_resumes_at >= timestamptz '9999-01-01 00:00:00+00' then
    v_field := 'resumes_at'; v_problem := 'must be before the year 9999';
  elsif p_clear_retention is null or (p_clear_retention and p_retention is not null) then
    v_field := 'clear_retention'; v_problem := 'must be false when there is a retention';
  elsif p_retention not between interval '0' and interval '36525 days' then
    v_field := 'retention'; v_problem := 'must be between nothing and a hundred years';
  elsif p_state is null and p_retention is null and not p_clear_retention then
    v_field := 'state'; v_problem := 'must be given, or a retention';
  end if;
  if v_field is null then
    v_now := ff.now();
    -- A repeat may come after the pause that it asks for is over.
    if p_resumes_at <= v_now and not exists (
         select from ff.lane l
         where l.lane = p_lane and l.state = 'paused' and l.resumes_at = p_resumes_at) then
      v_field := 'resumes_at'; v_problem := 'must be in the future';
    end if;
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;

  update ff.lane l set
    state = coalesce(p_state::ff.lane_state, l.state),
    resumes_at = case when p_state is null then l.resumes_at else p_resumes_at end,
    retention = case when p_clear_retention then null else coalesce(p_retention, l.retention) end,
    -- a change of the retention alone leaves the reason of the state
    reason = case when p_state is null then coalesce(p_reason, l.reason) else p_reason end,
    changed_by = p_actor,
    changed_at = greatest(v_now, l.changed_at)
  where l.lane = p_lane
    and (l.state, l.resumes_at, l.retention, l.reason, l.changed_by) is distinct from (
      coalesce(p_state::ff.lane_state, l.state),
      case when p_state is null then l.resumes_at else p_resumes_at end,
      case when p_clear_retention then null else coalesce(p_retention, l.retention) end,
      case when p_state is null then coalesce(p_reason, l.reason) else p_reason end, p_actor);
  v_changed := found;
  return query
  select case when v_changed then 'changed' else 'unchanged' end, l.lane, l.state::text,
         l.resumes_at, l.retention, l.reason, l.changed_by, l.changed_at
  from ff.lane l where l.lane = p_lane;
  if not found then
    perform ff._refuse('WF303', 'lane_not_found', jsonb_build_object('lane', p_lane));
  end if;
  if v_changed and p_state in ('active', 'draining') then
    perform pg_notify('ff_ready', p.partition_key || ':' || p_lane)
    from (select generate_series(0, m.value::integer - 1) as partition_key
          from ff.meta m where m.name = 'partitions') p;
  end if;
end;
$$;


--
-- Name: set_schedule(text, text, text, boolean, timestamp with time zone, integer, text, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.set_schedule(p_namespace text, p_app text, p_name text, p_is_paused boolean, p_next_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_rule_no integer DEFAULT NULL::integer, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text) RETURNS TABLE(outcome text, state text, next_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_now      timestamptz;
  v_field    text;
  v_problem  text;
  v_changed  boolean;
  v_schedule ff.schedule;
begin
  perform ff._check_words(p_actor, p_reason);
  if p_is_paused is null then
    v_field := 'is_paused'; v_problem := 'must be true or false';
  elsif not p_is_paused and p_rule_no is null then
    v_field := 'rule_no'; v_problem := 'must be given to go on';
  elsif not p_is_paused and (p_next_at is null or p_next_at < timestamptz '0001-01-02 00:00:00+00'
        or p_next_at >= timestamptz '9999-01-01 00:00:00+00') then
    v_field := 'next_at'; v_problem := 'must be given to go on, before the year 9999';
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;

  v_now := ff.now();
  update ff.schedule s set
    is_paused = p_is_paused,
    next_at = case when not p_is_paused and s.orphaned_at is null then p_next_at end,
    reason = p_reason,
    changed_by = p_actor,
    changed_at = greatest(v_now, s.changed_at)
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name
    and case when p_is_paused
          then not s.is_paused or (s.reason, s.changed_by) is distinct from (p_reason, p_actor)
          else s.is_paused and s.rule_no = p_rule_no end;
  v_changed := found;
  select s.* into v_schedule
  from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name;
  if not found then
    perform ff._refuse('WF304', 'schedule_not_found', jsonb_build_object(
      'schedule', p_name, 'app', p_app));
  end if;
  return query
  select case when v_changed then 'changed'
              when v_schedule.is_paused = p_is_paused then 'unchanged'
              else 'rule_changed' end,
         v_schedule.state::text, v_schedule.next_at;
end;
$$;


--
-- Name: set_tags(smallint, text, uuid[], text, boolean); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.set_tags(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_tags text, p_wait boolean DEFAULT false) RETURNS TABLE(item integer, outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_problem text;
  v_tags    jsonb;
  v_key     text;
  v_now     timestamptz;
  v_locked  uuid[];
  v_full    uuid[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), '{}', p_wait);
  v_problem := case when p_tags is null then 'must not be null' else ff._tags_problem(p_tags) end;
  if v_problem is null and p_tags::jsonb = '{}' then
    v_problem := 'must not be empty';
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'tags', 'problem', v_problem));
  end if;
  v_tags := p_tags::jsonb;

  if p_wait then
    select array[e.execution_id] into v_locked
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
      and (p_namespace is null or e.namespace = p_namespace)
    for no key update;
  else
    select array_agg(l.id) into v_locked
    from (select distinct x.id from unnest(p_execution_ids) x(id) order by x.id) u
    cross join lateral (
      select e.execution_id as id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and (p_namespace is null or e.namespace = p_namespace)
      for no key update skip locked) l;
  end if;
  v_now := ff.now();
  select m.value into v_key from ff.meta m where m.name = 'instance_tag_key';

  v_full := array(
    select u.id from unnest(v_locked) u(id)
    join ff.execution_body b on b.partition_key = p_partition_key and b.execution_id = u.id
    where (select count(*) from jsonb_object_keys(b.tags || v_tags)) > 64);

  with item as materialized (
    select p_partition_key as pk, u.id
    from unnest(v_locked) u(id)
    left join lateral (
      select b.tags from ff.execution_body b
      where b.partition_key = p_partition_key and b.execution_id = u.id offset 0) o on true
    where u.id <> all (v_full) and not coalesce(o.tags @> v_tags, false)
    offset 0
  ),
  tagged as (
    insert into ff.execution_body as b (partition_key, execution_id, tags)
    select i.pk, i.id, v_tags from item i
    on conflict (partition_key, execution_id) do update
      set tags = coalesce(b.tags, '{}') || excluded.tags
    returning b.execution_id
  )
  update ff.execution e set
    instance_tag = case when v_key is null then e.instance_tag
                        else coalesce(v_tags ->> v_key, e.instance_tag) end,
    mutated_at = greatest(v_now, e.transitioned_at, e.mutated_at)
  from item i
  where e.partition_key = i.pk and e.execution_id = i.id;

  return query
  select u.n::integer,
         case when x.id is null then 'not_found' when u.id = any (v_full) then 'invalid'
              else 'busy' end,
         case when x.id is null then jsonb_build_object(
                'id', format('{fp:%s}:%s', p_partition_key, u.id))
              when u.id = any (v_full) then jsonb_build_object(
                'field', 'tags', 'problem', 'would be more than 64') end
  from unnest(p_execution_ids) with ordinality u(id, n)
  left join lateral (
    select e.execution_id as id from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
      and case when p_namespace is null then true else e.namespace = p_namespace end
    offset 0) x on true
  where x.id is null or u.id = any (v_full) or u.id <> all (coalesce(v_locked, '{}'))
  order by u.n;
end;
$$;


--
-- Name: submit_executions(smallint, text, uuid[], bigint[], bytea[], integer[], text[], interval[], timestamp with time zone[], interval[], timestamp with time zone[], text[], integer[], text[], text[], text[], bytea[], text[], interval[], boolean, uuid[], boolean[], text[], text[]); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.submit_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_route_ids bigint[], p_payloads bytea[], p_priorities integer[] DEFAULT NULL::integer[], p_payload_encodings text[] DEFAULT NULL::text[], p_delays interval[] DEFAULT NULL::interval[], p_delayed_untils timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_deadlines interval[] DEFAULT NULL::interval[], p_deadline_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_policies text[] DEFAULT NULL::text[], p_max_reclaims integer[] DEFAULT NULL::integer[], p_tags text[] DEFAULT NULL::text[], p_creators text[] DEFAULT NULL::text[], p_keys text[] DEFAULT NULL::text[], p_key_fingerprints bytea[] DEFAULT NULL::bytea[], p_key_scopes text[] DEFAULT NULL::text[], p_key_windows interval[] DEFAULT NULL::interval[], p_hint boolean DEFAULT true, p_parent_ids uuid[] DEFAULT NULL::uuid[], p_with_parents boolean[] DEFAULT NULL::boolean[], p_trace_contexts text[] DEFAULT NULL::text[], p_task_versions text[] DEFAULT NULL::text[]) RETURNS TABLE(item integer, outcome text, execution_id uuid, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now        timestamptz;
  v_xid        xid8;
  v_closed     bigint[];
  v_lanes      text[];
  v_is_suspect boolean;
  v_has_body   boolean;
  v_tag_key    text;
  v_refused    ff.verdict[] := '{}';
  v_skip       integer[] := '{}';
  v_second     integer[] := '{}';
  v_created    uuid[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_route_ids), cardinality(p_payloads), cardinality(p_priorities),
    cardinality(p_payload_encodings), cardinality(p_delays), cardinality(p_delayed_untils),
    cardinality(p_deadlines), cardinality(p_deadline_ats), cardinality(p_policies),
    cardinality(p_max_reclaims), cardinality(p_tags), cardinality(p_creators), cardinality(p_keys),
    cardinality(p_key_fingerprints), cardinality(p_key_scopes), cardinality(p_key_windows),
    cardinality(p_parent_ids), cardinality(p_with_parents), cardinality(p_trace_contexts),
    cardinality(p_task_versions)]);

  if p_partition_key is distinct from 0 then
    -- Nobody would ever look into a partition that is not there.
    if p_partition_key is null or p_partition_key not between 0 and (
         select m.value::integer - 1 from ff.meta m where m.name = 'partitions') then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'partition_key', 'problem', 'there is no such partition'));
    end if;
  end if;

  select array_agg(distinct l.lane),
         array_agg(u.route_id) filter (where l.state is null or l.state in ('draining', 'disabled'))
    into v_lanes, v_closed
  from (select distinct x.route_id from unnest(p_route_ids) x(route_id)) u
  left join ff.route r on r.route_id = u.route_id and r.namespace = p_namespace
  left join ff.lane l on l.lane = r.lane;

  -- The closer look at every item is for calls that have something to look at.
  select coalesce(bool_or(u.id is null or octet_length(u.payload) > 1048576
                          or u.max_reclaims not between 0 and 1000000), false),
         coalesce(bool_or(octet_length(u.payload) > 256), false)
    into v_is_suspect, v_has_body
  from unnest(p_execution_ids, p_payloads, p_max_reclaims) u(id, payload, max_reclaims);
  v_has_body := v_has_body or p_policies is not null or p_tags is not null
                or p_creators is not null or p_trace_contexts is not null
                or p_task_versions is not null;
  if v_is_suspect or v_closed is not null or array_position(p_route_ids, null) is not null
     or num_nonnulls(p_route_ids) = 0
     or num_nonnulls(p_payload_encodings, p_delays, p_delayed_untils, p_deadlines, p_deadline_ats,
                     p_policies, p_tags, p_creators, p_keys, p_with_parents, p_trace_contexts,
                     p_task_versions) > 0 then
    v_refused := ff._judge_submits(
      p_namespace, p_execution_ids, p_route_ids, v_closed, p_payloads, p_payload_encodings,
      p_delays, p_delayed_untils, p_deadlines, p_deadline_ats, p_policies, p_max_reclaims, p_tags,
      p_creators, p_keys, p_key_fingerprints, p_key_scopes, p_key_windows, p_parent_ids,
      p_with_parents, p_trace_contexts, p_task_versions);
  end if;
  if cardinality(v_refused) > 0 then
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_with_parents is not null then
    v_refused := v_refused || ff._take_parents(
      p_partition_key, p_namespace, v_skip, p_execution_ids, p_parent_ids, p_with_parents);
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_keys is not null then
    v_refused := v_refused || ff._take_keys(
      p_partition_key, p_namespace, v_skip, p_execution_ids, p_keys, p_key_fingerprints,
      p_key_scopes, p_key_windows);
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_tags is not null then
    select m.value into v_tag_key from ff.meta m where m.name = 'instance_tag_key';
  end if;
  v_now := ff.now();
  v_xid := pg_current_xact_id();

  with created as (
    insert into ff.execution (
      partition_key, execution_id, route_id, namespace, rank, created_at, transitioned_at,
      mutated_at, version, phase, ownership, eligibility, blocking_reason, outcome, attempt_state,
      cause, delayed_until, due_at, deadline_at, attempt_timeout, retention, max_reclaims,
      instance_tag, payload_encoding, payload, parent_id, ends_with_parent)
    select p_partition_key, u.id, u.route_id, p_namespace,
           9000 - least(greatest(coalesce(u.priority, 0), 0), 9000),
           v_now, v_now, v_now, 1, 'runnable', 'unowned',
           case when w.until_at is null then 'eligible_now'::ff.eligibility
                else 'not_eligible_until_time' end,
           case when w.until_at is null then 'waiting_for_worker'::ff.blocking_reason
                else 'waiting_for_delay' end,
           'none', 'pending_first_attempt', 'submit', w.until_at,
           least(w.until_at, u.deadline_at, v_now + u.deadline),
           coalesce(u.deadline_at, v_now + u.deadline),
           case when u.policy is not null then interval '1 millisecond'
             * (u.policy::jsonb #>> '{timeout_policy,attempt_timeout_ms}')::double precision end,
           case when u.policy is not null then interval '1 millisecond'
             * (u.policy::jsonb ->> 'retention_ms')::double precision end,
           coalesce(u.max_reclaims, (u.policy::jsonb ->> 'max_reclaim_count')::numeric, 100),
           case when v_tag_key is not null then u.tags::jsonb ->> v_tag_key end,
           u.encoding,
           -- a trace context rides with the payload: the claim looks for both in one place
           case when octet_length(u.payload) <= 256 and u.trace_context is null then u.payload end,
           u.parent_id, coalesce(u.with_parent, false)
    from unnest(p_execution_ids, p_route_ids, p_payloads, p_priorities, p_payload_encodings,
                p_delays, p_delayed_untils, p_deadlines, p_deadline_ats, p_policies,
                p_max_reclaims, p_tags, p_parent_ids, p_with_parents, p_trace_contexts)
      with ordinality u(id, route_id, payload, priority, encoding, delay, delayed_until, deadline,
                        deadline_at, policy, max_reclaims, tags, parent_id, with_parent,
                        trace_context, n)
    cross join lateral (
      select case when coalesce(u.delayed_until, v_now + u.delay) > v_now
               then coalesce(u.delayed_until, v_now + u.delay) end as until_at) w
    where u.n <> all (v_skip)
    order by u.id, u.n
    on conflict do nothing
    returning execution_id, route_id, instance_tag
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, route_id, namespace, instance_tag,
      occurred_at)
    select p_partition_key, v_xid, c.execution_id, 1, 'submitted', c.route_id, p_namespace,
           c.instance_tag, v_now
    from created c
  )
  select array_agg(c.execution_id) into v_created from created c;

  -- Of the items with one id the first was created; no other may lend it its body.
  if cardinality(v_created) is distinct from cardinality(p_execution_ids) - cardinality(v_skip) then
    v_second := array(
      select s.n
      from (select u.n, row_number() over (partition by u.id order by u.n) as nth
            from unnest(p_execution_ids) with ordinality u(id, n)
            where u.n <> all (v_skip)) s
      where s.nth > 1);
  end if;
  if v_has_body then
    insert into ff.execution_body (
      partition_key, execution_id, payload, policy, tags, creator, trace_context, task_version)
    select p_partition_key, u.id,
           case when octet_length(u.payload) > 256 or u.trace_context is not null
             then u.payload end,
           u.policy::jsonb, nullif(u.tags::jsonb, '{}'), u.creator, u.trace_context, u.task_version
    from unnest(p_execution_ids, p_payloads, p_policies, p_tags, p_creators, p_trace_contexts,
                p_task_versions)
      with ordinality u(id, payload, policy, tags, creator, trace_context, task_version, n)
    where (octet_length(u.payload) > 256 or u.policy is not null or u.tags is not null
           or u.creator is not null or u.trace_context is not null or u.task_version is not null)
      and u.id = any (v_created) and u.n <> all (v_skip) and u.n <> all (v_second);
  end if;

  if p_hint and v_created is not null then
    perform pg_notify('ff_ready', p_partition_key || ':' || l.lane) from unnest(v_lanes) l(lane)
    where l.lane is not null;
  end if;
  if cardinality(v_created) = cardinality(p_execution_ids) then
    return;
  end if;
  return query
  -- A lane that was closed since, or a parent that ended, does not take back what was accepted.
  select r.item, case when x.is_there then 'duplicate' else r.word end, r.execution_id,
         case when x.is_there then null else r.detail end
  from unnest(v_refused) r
  left join lateral (
    select true as is_there from ff.execution e
    where r.word in ('lane_closed', 'parent_ended') and e.partition_key = p_partition_key
      and e.execution_id = r.execution_id and e.namespace = p_namespace
    offset 0) x on true
  union all
  select u.n::integer, case when x.is_ours then 'duplicate' else 'invalid' end, u.id,
         case when not x.is_ours then jsonb_build_object(
           'field', 'execution_id', 'problem', 'is taken: make a new one') end
  from unnest(p_execution_ids) with ordinality u(id, n)
  cross join lateral (
    select e.namespace = p_namespace as is_ours from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
    offset 0) x
  where u.n <> all (v_skip)
    and (u.id <> all (coalesce(v_created, '{}')) or u.n = any (v_second));
end;
$$;


--
-- Name: submit_json(smallint, text, jsonb, text); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.submit_json(p_partition_key smallint, p_namespace text, p_items jsonb, p_database text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  v_database text;
  v_answers  jsonb;
  v_sound    integer[];
begin
  if p_namespace is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'namespace', 'problem', 'must not be null'));
  end if;
  if jsonb_typeof(p_items) is distinct from 'array' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'items', 'problem', 'must be a list of objects'));
  end if;
  if jsonb_array_length(p_items) > 1000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'items', 'problem', 'must hold at most 1000 items'));
  end if;
  select format('%s/%s', to_hex(s.system_identifier), d.oid) into v_database
  from pg_control_system() s, pg_database d
  where d.datname = current_database();

  select jsonb_agg(jsonb_build_object(
           'item', j.n, 'outcome', 'invalid', 'execution_id', null,
           'detail', jsonb_build_object('field', j.words[1], 'problem', j.words[2])))
           filter (where j.words is not null),
         array_agg(j.n order by j.n) filter (where j.words is null)
    into v_answers, v_sound
  from (
    select i.n::integer as n,
           case when p_database <> v_database
                  then array['database', format('this is %s, another database than the one it was '
                                                'meant for', current_database())]
                else ff._item_problem(i.value) end as words
    from jsonb_array_elements(p_items) with ordinality i(value, n)) j;

  if v_sound is not null then
    -- in the order of the items; an array that no item needs is null
    with given as (
      select array_agg(i.id) as ids,
             array_agg(i.route_id) as route_ids,
             array_agg(i.payload) as payloads,
             case when count(i.priority) > 0 then array_agg(i.priority) end as priorities,
             case when count(i.encoding) > 0 then array_agg(i.encoding) end as encodings,
             case when count(i.delay) > 0 then array_agg(i.delay) end as delays,
             case when count(i.delayed_until) > 0 then array_agg(i.delayed_until) end as delayed_untils,
             case when count(i.deadline) > 0 then array_agg(i.deadline) end as deadlines,
             case when count(i.deadline_at) > 0 then array_agg(i.deadline_at) end as deadline_ats,
             case when count(i.policy) > 0 then array_agg(i.policy) end as policies,
             case when count(i.max_reclaims) > 0 then array_agg(i.max_reclaims) end as max_reclaims,
             case when count(i.tags) > 0 then array_agg(i.tags) end as tags,
             case when count(i.creator) > 0 then array_agg(i.creator) end as creators,
             case when count(i.key) > 0 then array_agg(i.key) end as keys,
             case when count(i.fingerprint) > 0 then array_agg(i.fingerprint) end as fingerprints,
             case when count(i.scope) > 0 then array_agg(i.scope) end as scopes,
             case when count(i.wnd) > 0 then array_agg(i.wnd) end as windows,
             case when count(i.parent_id) > 0 then array_agg(i.parent_id) end as parent_ids,
             case when count(i.with_parent) > 0 then array_agg(i.with_parent) end as with_parents,
             case when count(i.trace_context) > 0 then array_agg(i.trace_context) end as trace_contexts,
             case when count(i.task_version) > 0 then array_agg(i.task_version) end as task_versions
      from (
        select (i.v ->> 'execution_id')::uuid as id,
               (i.v ->> 'route_id')::bigint as route_id,
               b.payload,
               (i.v ->> 'priority')::integer as priority,
               i.v ->> 'payload_encoding' as encoding,
               interval '1 millisecond' * (i.v ->> 'delay_ms')::double precision as delay,
               (i.v ->> 'delayed_until')::timestamptz as delayed_until,
               interval '1 millisecond' * (i.v ->> 'deadline_ms')::double precision as deadline,
               (i.v ->> 'deadline_at')::timestamptz as deadline_at,
               i.v ->> 'policy' as policy,
               (i.v ->> 'max_reclaims')::integer as max_reclaims,
               i.v ->> 'tags' as tags,
               i.v ->> 'creator' as creator,
               i.v ->> 'key' as key,
               case when i.v ->> 'key' is not null then coalesce(
                 decode(i.v ->> 'key_fingerprint', 'hex'),
                 sha256(convert_to(coalesce((
                   select r.task from ff.route r where r.route_id = (i.v ->> 'route_id')::bigint),
                   ''), 'utf8') || '\x00'::bytea || coalesce(b.payload, ''))) end as fingerprint,
               i.v ->> 'key_scope' as scope,
               interval '1 millisecond' * (i.v ->> 'key_window_ms')::double precision as wnd,
               (i.v ->> 'parent_id')::uuid as parent_id,
               (i.v ->> 'with_parent')::boolean as with_parent,
               i.v ->> 'trace_context' as trace_context,
               i.v ->> 'task_version' as task_version
        from jsonb_array_elements(p_items) with ordinality i(v, n)
        cross join lateral (
          select coalesce(decode(i.v ->> 'payload_base64', 'base64'),
                          convert_to((i.v -> 'payload')::text, 'utf8')) as payload) b
        where i.n = any (v_sound)
        order by i.n) i
    ),
    told as (
      select s.item, s.outcome, s.execution_id, s.detail
      from given g
      cross join lateral ff.submit_executions(
        p_partition_key => p_partition_key,
        p_namespace => p_namespace,
        p_execution_ids => g.ids,
        p_route_ids => g.route_ids,
        p_payloads => g.payloads,
        p_priorities => g.priorities,
        p_payload_encodings => g.encodings,
        p_delays => g.delays,
        p_delayed_untils => g.delayed_untils,
        p_deadlines => g.deadlines,
        p_deadline_ats => g.deadline_ats,
        p_policies => g.policies,
        p_max_reclaims => g.max_reclaims,
        p_tags => g.tags,
        p_creators => g.creators,
        p_keys => g.keys,
        p_key_fingerprints => g.fingerprints,
        p_key_scopes => g.scopes,
        p_key_windows => g.windows,
        p_parent_ids => g.parent_ids,
        p_with_parents => g.with_parents,
        p_trace_contexts => g.trace_contexts,
        p_task_versions => g.task_versions) s
    )
    select coalesce(v_answers, '[]') || jsonb_agg(jsonb_build_object(
             'item', v_sound[u.k], 'outcome', coalesce(t.outcome, 'created'),
             'execution_id', coalesce(t.execution_id, (p_items -> (v_sound[u.k] - 1)
                                                       ->> 'execution_id')::uuid),
             'detail', t.detail))
      into v_answers
    from generate_subscripts(v_sound, 1) u(k)
    left join told t on t.item = u.k;
  end if;

  return jsonb_build_object('database', v_database, 'items', coalesce((
    select jsonb_agg(a.value order by (a.value ->> 'item')::integer)
    from jsonb_array_elements(v_answers) a(value)), '[]'));
end;
$$;


--
-- Name: sweep_workers(integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.sweep_workers(p_limit integer DEFAULT 500) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now   timestamptz := ff.now();
  v_swept integer;
  v_old   integer;
begin
  perform ff._check_limit(p_limit);
  with silent as materialized (
    select w.namespace, w.worker_instance_id
    from ff.worker w
    where w.heartbeat_at + w.liveness_ttl <= v_now
    order by w.namespace, w.worker_instance_id
    limit p_limit
    for update skip locked
  ),
  swept as (
    delete from ff.worker w
    using silent s
    where w.namespace = s.namespace and w.worker_instance_id = s.worker_instance_id
    returning w.namespace, w.worker_instance_id, w.worker_id
  ),
  logged as (
    insert into ff.worker_event (namespace, worker_instance_id, worker_id, kind, occurred_at)
    select s.namespace, s.worker_instance_id, s.worker_id, 'ttl_swept', v_now from swept s
  )
  select count(*) into v_swept from swept;

  -- The oldest come first; they are numbered in the order of writing.
  with old as materialized (
    select v.worker_event_id
    from (
      select x.worker_event_id, x.occurred_at from ff.worker_event x
      order by x.worker_event_id limit p_limit
    ) o
    join ff.worker_event v on v.worker_event_id = o.worker_event_id
    where o.occurred_at <= v_now - interval '30 days'
    for update of v skip locked
  ),
  gone as (
    delete from ff.worker_event v
    using old o
    where v.worker_event_id = o.worker_event_id
    returning v.worker_event_id
  )
  select count(*) into v_old from gone;

  return query
  select greatest(v_swept, v_old),
         (select min(w.heartbeat_at + w.liveness_ttl) - v_now from ff.worker w
          where w.heartbeat_at + w.liveness_ttl > v_now);
end;
$$;


--
-- Name: trim_events(smallint, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.trim_events(p_partition_key smallint, p_limit integer DEFAULT 500) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now timestamptz := ff.now();
  v_xid xid8;
begin
  perform ff._check_limit(p_limit);
  with due as materialized (
    select t.partition_key as pk, t.due_at, t.execution_id
    from ff.event_trim t
    where t.partition_key = p_partition_key and t.due_at <= v_now
    order by t.due_at, t.execution_id
    limit p_limit
    for update skip locked
  ),
  done as (
    delete from ff.event_trim t
    using due d
    where t.partition_key = d.pk and t.due_at = d.due_at and t.execution_id = d.execution_id
    returning t.execution_id
  ),
  alone as materialized (
    select d.pk, d.execution_id
    from due d
    where not exists (
      select from ff.execution e
      where e.partition_key = d.pk and e.execution_id = d.execution_id)
    offset 0
  ),
  events as (
    delete from ff.event v
    using alone a
    where v.partition_key = a.pk and v.execution_id = a.execution_id
    returning v.xid
  )
  select (select count(*) from done), (select max(v.xid) from events v) into handled, v_xid;
  perform ff._trimmed_to(p_partition_key, v_xid);
  due_in := (
    select t.due_at - v_now from ff.event_trim t
    where t.partition_key = p_partition_key and t.due_at > v_now
    order by t.due_at limit 1);
  return next;
end;
$$;


--
-- Name: trim_keys(smallint, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.trim_keys(p_partition_key smallint, p_limit integer DEFAULT 500) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now timestamptz := ff.now();
begin
  perform ff._check_limit(p_limit);
  with due as materialized (
    select k.partition_key as pk, k.namespace, k.key, k.scope, k.execution_id
    from ff.idempotency_key k
    where k.partition_key = p_partition_key
      and k.expires_at > '-infinity' and k.expires_at <= v_now
    order by k.expires_at
    limit p_limit
    for update skip locked
  ),
  judged as materialized (
    select d.pk, d.namespace, d.key, d.scope = 'unfinished' and exists (
             select from ff.execution e
             where e.partition_key = d.pk and e.execution_id = d.execution_id
               and e.phase <> 'terminal') as is_live
    from due d
    offset 0
  ),
  over as (
    delete from ff.idempotency_key k
    using judged j
    where not j.is_live
      and k.partition_key = j.pk and k.namespace = j.namespace and k.key = j.key
  ),
  moved as (
    update ff.idempotency_key k
    set expires_at = v_now + interval '1 hour'
    from judged j
    where j.is_live
      and k.partition_key = j.pk and k.namespace = j.namespace and k.key = j.key
  )
  select count(*) into handled from due;

  -- Nobody repeats a claim after a day.
  delete from ff.claim_slot s
  using (
    select x.partition_key as pk, x.worker_instance_id
    from ff.claim_slot x
    where x.partition_key = p_partition_key and x.claimed_at <= v_now - interval '1 day'
    limit p_limit
    for update skip locked
  ) o
  where s.partition_key = o.pk and s.worker_instance_id = o.worker_instance_id;

  due_in := (
    select k.expires_at - v_now from ff.idempotency_key k
    where k.partition_key = p_partition_key
      and k.expires_at > '-infinity' and k.expires_at > v_now
    order by k.expires_at limit 1);
  return next;
end;
$$;


--
-- Name: trim_retention(smallint, integer, interval, interval); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.trim_retention(p_partition_key smallint, p_limit integer DEFAULT 500, p_retention interval DEFAULT '30 days'::interval, p_event_floor interval DEFAULT '24:00:00'::interval) RETURNS TABLE(handled integer, due_in interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now      timestamptz := ff.now();
  v_doomed   uuid[];
  v_position text;
  v_walk     record;
begin
  perform ff._check_limit(p_limit);
  if p_retention is null
     or p_retention not between interval '0' and interval '36525 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'retention', 'problem', 'must be between nothing and a hundred years'));
  end if;
  if p_event_floor is null
     or p_event_floor not between interval '0' and interval '36525 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'event_floor', 'problem', 'must be between nothing and a hundred years'));
  end if;

  v_doomed := array(
    select e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.trim_at <= v_now and e.phase = 'terminal'
      and case
            when e.wakes_pending then false
            when e.parent_id is null then true
            else not exists (
              select from ff.execution p
              where p.partition_key = p_partition_key and p.execution_id = e.parent_id
                and p.phase <> 'terminal') end
    order by e.trim_at
    limit p_limit
    for update skip locked);

  if cardinality(v_doomed) < p_limit then
    insert into ff.meta (name, value)
    select 'trim_position:' || p_partition_key, ''
    where not exists (
      select from ff.meta m where m.name = 'trim_position:' || p_partition_key)
    on conflict do nothing;
    select m.value into v_position
    from ff.meta m where m.name = 'trim_position:' || p_partition_key
    for update skip locked;
    if found then
      v_walk := ff._walk_ended(p_partition_key, nullif(v_position, '')::uuid,
                               p_limit - cardinality(v_doomed), p_retention, v_now);
      v_doomed := v_doomed || v_walk.doomed;
      due_in := case when v_walk.next_id is not null then interval '2 seconds' end;
      update ff.meta m set value = coalesce(v_walk.next_id::text, '')
      where m.name = 'trim_position:' || p_partition_key
        and m.value is distinct from coalesce(v_walk.next_id::text, '');
    end if;
  end if;

  if cardinality(v_doomed) > 0 then
    perform ff._trim_executions(p_partition_key, v_doomed, p_event_floor, v_now);
  end if;
  handled := cardinality(v_doomed);
  return next;
end;
$$;


--
-- Name: unblock_execution(smallint, text, uuid, text, text, text, integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.unblock_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_expected_reason text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_if_version integer DEFAULT NULL::integer) RETURNS TABLE(outcome text, public_state text, version integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_row ff.execution;
  v_now timestamptz;
begin
  perform ff._check_words(p_actor, p_reason);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if v_row.eligibility = 'eligible_now' and v_row.cause = 'unblock' then
    return query select 'unblocked', 'waiting', v_row.version, null::jsonb;
    return;
  end if;
  if v_row.eligibility not in ('blocked_by_budget', 'blocked_by_quota', 'blocked_by_route',
                               'blocked_by_operator')
     or v_row.blocking_reason = 'paused_by_flow_cancel'
     or v_row.blocking_reason::text <> nullif(p_expected_reason, '') then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'blocking_reason', v_row.blocking_reason,
      'hint', 'it is not blocked, or for another reason'));
  end if;
  v_now := ff.now();
  perform ff._make_eligible(
    p_partition_key, p_execution_id, 'unblock',
    case when p_actor is not null then 'unblocked'::ff.event_kind end, v_now, p_actor,
    jsonb_strip_nulls(jsonb_build_object(
      'blocking_reason', v_row.blocking_reason, 'reason', p_reason)));
  return query
  select 'unblocked', 'waiting', v_row.version + (p_actor is not null)::integer, null::jsonb;
end;
$$;


--
-- Name: wait_children(smallint, text, uuid, uuid, bigint, uuid); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.wait_children(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid) RETURNS TABLE(outcome text, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
declare
  v_verdict ff.verdict;
  v_now     timestamptz;
begin
  v_verdict := (ff._judge_leases(
    p_partition_key, p_namespace, 'wait_children', array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'held' then
    return query
    select case v_verdict.word when 'repeat' then 'waiting' else v_verdict.word end,
           v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  perform ff._interrupt_executions(
    p_partition_key, array[p_execution_id], 'wait_children', 'eligible_now', 'waiting_for_worker',
    'wait_children', 'waiting', 'waiting_children', v_now,
    p_detail => jsonb_build_object('open', 0));
  return query select 'waiting', null::jsonb;
end;
$$;


--
-- Name: wait_for_runs(smallint, text, uuid, uuid, bigint, uuid, uuid[], integer); Type: FUNCTION; Schema: ff; Owner: -
--

CREATE FUNCTION ff.wait_for_runs(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_targets uuid[], p_k integer DEFAULT NULL::integer) RETURNS TABLE(outcome text, open integer, detail jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET lock_timeout TO '2s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_verdict ff.verdict;
  v_targets uuid[];
  v_missing uuid;
  v_open    uuid[];
  v_ready   bigint[];
  v_k       integer;
  v_left    integer;
begin
  if cardinality(p_targets) is null or cardinality(p_targets) not between 1 and 1000
     or array_position(p_targets, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'targets', 'problem', 'must be 1 to 1000 executions'));
  end if;
  if p_execution_id = any (p_targets) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'targets', 'problem', 'an execution cannot wait for itself'));
  end if;
  v_targets := array(select distinct u.id from unnest(p_targets) u(id) order by u.id);
  v_k := coalesce(p_k, cardinality(v_targets));
  if v_k not between 1 and cardinality(v_targets) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'k', 'problem', 'must be from 1 to the number of different executions'));
  end if;

  perform ff._lock_executions(p_partition_key, array_append(v_targets, p_execution_id));
  v_now := ff.now();
  select (array_agg(u.id order by u.id) filter (where e.execution_id is null))[1],
         array_agg(u.id order by u.id) filter (where e.phase <> 'terminal'),
         array_agg(distinct e.route_id)
           filter (where e.phase = 'runnable' and e.eligibility = 'eligible_now')
    into v_missing, v_open, v_ready
  from unnest(v_targets) u(id)
  left join lateral (
    select x.execution_id, x.phase, x.eligibility, x.route_id from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
      and case when p_namespace is null then true else x.namespace = p_namespace end
    offset 0) e on true;
  perform ff._hint_ready(p_partition_key, v_ready);

  v_verdict := (ff._judge_leases(
    p_partition_key, p_namespace, 'wait_for_runs', array[p_execution_id], array[p_lease_id],
    array[p_epoch], array[p_attempt_id], false))[1];
  if v_verdict.word = 'repeat' then
    return query
    select 'waiting', (select count(*)::integer from ff.run_wait w
                       where w.partition_key = p_partition_key and w.waiter_id = p_execution_id
                         and w.ended_at is null), null::jsonb;
    return;
  elsif v_verdict.word <> 'held' then
    return query select v_verdict.word, null::integer, v_verdict.detail;
    return;
  end if;

  if v_missing is not null then
    return query select 'not_found', null::integer, jsonb_build_object(
      'field', 'targets', 'id', format('{fp:%s}:%s', p_partition_key, v_missing));
    return;
  end if;

  v_left := v_k - (cardinality(v_targets) - coalesce(cardinality(v_open), 0));
  if v_left > 0 then
    update ff.execution e set is_awaited = true
    from (select p_partition_key as pk, u.id from unnest(v_open) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id
      and case when e.is_awaited then false else true end;
    insert into ff.run_wait (partition_key, waiter_id, target_id, wait_no, ended_at)
    select p_partition_key, p_execution_id, u.id, w.wait_no + 1,
           case when u.id <> all (v_open) then v_now end
    from unnest(v_targets) u(id)
    cross join lateral (
      select x.wait_no from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = p_execution_id
      offset 0) w;
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'wait_for_runs', 'blocked_by_dependencies',
      'waiting_for_children', 'wait_for_runs', 'waiting', 'waiting_for_runs', v_now,
      p_detail => jsonb_build_object('open', cardinality(v_open), 'needed', v_left),
      p_wait_left => v_left);
  else
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'wait_for_runs', 'eligible_now',
      'waiting_for_worker', 'wait_for_runs', 'waiting', 'waiting_for_runs', v_now,
      p_detail => jsonb_build_object('open', coalesce(cardinality(v_open), 0), 'needed', 0));
  end if;
  return query select 'waiting', coalesce(cardinality(v_open), 0), null::jsonb;
end;
$$;


--
-- Name: attempt; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.attempt (
    partition_key smallint NOT NULL,
    attempt_index integer NOT NULL,
    execution_id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    attempt_type ff.attempt_type NOT NULL,
    epoch bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    ended_as ff.attempt_lifecycle NOT NULL,
    previous_attempt_index integer,
    attempt_reason text,
    failure_class ff.failure_class,
    failure_category text,
    failure_reason text,
    failure_detail bytea,
    last_lease_id uuid,
    last_lease_end ff.lease_end,
    last_lease_retry_at timestamp with time zone,
    last_worker_id text,
    last_worker_instance_id text,
    CONSTRAINT ended_means_ended CHECK ((ended_as = ANY (ARRAY['ended_success'::ff.attempt_lifecycle, 'ended_failure'::ff.attempt_lifecycle, 'ended_cancelled'::ff.attempt_lifecycle, 'interrupted_reclaimed'::ff.attempt_lifecycle])))
);


--
-- Name: attempt_view; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.attempt_view AS
 SELECT a.partition_key,
    a.execution_id,
    a.attempt_index,
    a.attempt_id,
    (a.attempt_type)::text AS attempt_type,
    (a.ended_as)::text AS lifecycle,
    a.epoch,
    a.started_at,
    a.ended_at,
    a.last_worker_id AS worker_id,
    a.last_worker_instance_id AS worker_instance_id,
    a.previous_attempt_index,
    a.attempt_reason,
    NULL::timestamp with time zone AS paused_at,
    NULL::text AS pause_cause,
    (a.failure_class)::text AS failure_class,
    a.failure_category,
    a.failure_reason,
    a.failure_detail,
    a.last_lease_id AS lease_id
   FROM ff.attempt a
UNION ALL
 SELECT e.partition_key,
    e.execution_id,
    e.attempt_index,
    e.attempt_id,
    (e.attempt_type)::text AS attempt_type,
        CASE
            WHEN (e.attempt_ended_as IS NOT NULL) THEN (e.attempt_ended_as)::text
            WHEN (e.attempt_paused_at IS NOT NULL) THEN 'suspended'::text
            ELSE 'started'::text
        END AS lifecycle,
    e.epoch,
    e.attempt_started_at AS started_at,
    e.attempt_ended_at AS ended_at,
    COALESCE(e.worker_id, e.last_worker_id) AS worker_id,
    COALESCE(e.worker_instance_id, e.last_worker_instance_id) AS worker_instance_id,
    e.previous_attempt_index,
    e.attempt_reason,
    e.attempt_paused_at AS paused_at,
    e.attempt_pause_cause AS pause_cause,
    (e.failure_class)::text AS failure_class,
    e.failure_category,
    e.failure_reason,
    e.failure_detail,
    COALESCE(e.lease_id, e.last_lease_id) AS lease_id
   FROM ff.execution e
  WHERE (e.total_attempt_count > 0);


--
-- Name: claim_slot; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.claim_slot (
    partition_key smallint NOT NULL,
    worker_instance_id text NOT NULL,
    claim_id uuid NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    execution_ids uuid[] NOT NULL
)
WITH (fillfactor='50');


--
-- Name: event; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.event (
    partition_key smallint NOT NULL,
    version integer NOT NULL,
    attempt_index integer,
    event_id bigint NOT NULL,
    xid xid8 NOT NULL,
    execution_id uuid NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    route_id bigint,
    epoch bigint,
    kind ff.event_kind NOT NULL,
    outcome ff.outcome,
    lease_id uuid,
    flow_id uuid,
    namespace text NOT NULL,
    worker_instance_id text,
    instance_tag text,
    actor text,
    detail jsonb
)
WITH (autovacuum_vacuum_insert_scale_factor='0.1');


--
-- Name: completion_feed; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.completion_feed AS
 SELECT v.partition_key,
    v.event_id,
    v.execution_id,
    v.version,
    (v.outcome)::text AS outcome,
    v.occurred_at,
    v.flow_id,
    v.namespace,
    v.instance_tag
   FROM ff.event v
  WHERE (v.kind = ANY (ARRAY['completed'::ff.event_kind, 'failed'::ff.event_kind, 'cancelled'::ff.event_kind, 'expired'::ff.event_kind, 'skipped'::ff.event_kind]));


--
-- Name: event_event_id_seq; Type: SEQUENCE; Schema: ff; Owner: -
--

ALTER TABLE ff.event ALTER COLUMN event_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ff.event_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: event_trim; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.event_trim (
    partition_key smallint NOT NULL,
    due_at timestamp with time zone NOT NULL,
    execution_id uuid NOT NULL
);


--
-- Name: route; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.route (
    route_id bigint NOT NULL,
    namespace text NOT NULL,
    lane text NOT NULL,
    task text NOT NULL,
    capabilities text[] NOT NULL,
    registered_at timestamp with time zone NOT NULL,
    CONSTRAINT route_id_is_63_bits CHECK ((route_id >= 0))
);


--
-- Name: event_view; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.event_view AS
 SELECT v.partition_key,
    v.event_id,
    v.execution_id,
    v.version,
    (v.kind)::text AS kind,
    v.occurred_at,
    v.attempt_index,
    v.lease_id,
    v.epoch,
    v.worker_instance_id,
    (v.outcome)::text AS outcome,
    v.flow_id,
    v.namespace,
    r.lane,
    r.task,
    v.instance_tag,
    v.actor,
    (v.detail)::text AS detail
   FROM (ff.event v
     LEFT JOIN ff.route r ON ((r.route_id = v.route_id)));


--
-- Name: execution_body; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.execution_body (
    partition_key smallint NOT NULL,
    execution_id uuid NOT NULL,
    payload bytea,
    policy jsonb,
    tags jsonb,
    creator text,
    trace_context text,
    task_version text,
    CONSTRAINT body_limits CHECK ((octet_length(payload) <= 1048576))
)
WITH (autovacuum_vacuum_insert_scale_factor='0.1');


--
-- Name: execution_list; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.execution_list AS
 SELECT e.partition_key,
    e.execution_id,
    e.namespace,
    r.lane,
    r.task,
    (9000 - e.rank) AS priority,
    (e.public_state)::text AS public_state,
    (e.blocking_reason)::text AS blocking_reason,
    e.attempt_index,
    e.total_attempt_count,
    e.retry_count,
    e.reclaim_count,
    e.worker_instance_id,
    e.created_at,
    e.started_at,
    e.terminal_at,
    e.delayed_until,
        CASE
            WHEN (e.attempt_state <> 'pending_replay_attempt'::ff.attempt_state) THEN e.failure_reason
            ELSE NULL::text
        END AS failure_reason,
    e.flow_id,
    (e.phase)::text AS phase,
    (e.ownership)::text AS ownership,
    (e.eligibility)::text AS eligibility,
    (e.outcome)::text AS outcome,
    (e.attempt_state)::text AS attempt_state,
    e.blocking_detail,
    e.version,
    e.replay_count,
    e.max_reclaims,
    e.lease_expires_at,
    e.reclaim_at,
    e.deadline_at,
    e.due_at,
    e.cancellation_reason,
    e.cancelled_by,
    e.progress_percent,
    e.blocked_at,
    e.trim_at,
    ((e.reclaim_count >= 2) AND (e.phase <> 'terminal'::ff.phase)) AS is_crash_loop
   FROM (ff.execution e
     JOIN ff.route r ON ((r.route_id = e.route_id)));


--
-- Name: step; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.step (
    partition_key smallint NOT NULL,
    execution_id uuid NOT NULL,
    name text NOT NULL,
    occurrence integer NOT NULL,
    "position" integer NOT NULL,
    is_sequential boolean NOT NULL,
    kind ff.step_kind NOT NULL,
    attempt_index integer NOT NULL,
    epoch bigint NOT NULL,
    recorded_at timestamp with time zone NOT NULL,
    until_at timestamp with time zone,
    encoding text,
    value bytea,
    CONSTRAINT only_a_sleep_has_an_end CHECK (((kind = 'sleep'::ff.step_kind) = (until_at IS NOT NULL))),
    CONSTRAINT step_limits CHECK (((occurrence >= 0) AND ("position" >= 0) AND ((octet_length(name) >= 1) AND (octet_length(name) <= 256)) AND (octet_length(value) <= 1048576)))
)
WITH (autovacuum_vacuum_insert_scale_factor='0.1');


--
-- Name: execution_view; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.execution_view AS
 SELECT e.partition_key,
    e.execution_id,
    e.namespace,
    r.lane,
    r.task,
    r.capabilities,
    (9000 - e.rank) AS priority,
    (e.public_state)::text AS public_state,
    (e.phase)::text AS phase,
    (e.ownership)::text AS ownership,
    (e.eligibility)::text AS eligibility,
    (e.blocking_reason)::text AS blocking_reason,
    e.blocking_detail,
    (e.outcome)::text AS outcome,
    (e.attempt_state)::text AS attempt_state,
    (e.cause)::text AS cause,
    e.version,
    e.epoch,
    e.attempt_index,
    e.attempt_id,
    (e.attempt_type)::text AS attempt_type,
    e.total_attempt_count,
    e.retry_count,
    e.replay_count,
    e.reclaim_count,
    e.max_reclaims,
    e.lease_id,
    e.worker_id,
    e.worker_instance_id,
    e.lease_expires_at,
    e.created_at,
    e.started_at,
    e.terminal_at,
    e.transitioned_at,
    e.mutated_at,
    e.delayed_until,
    e.reclaim_at,
    e.deadline_at,
    e.attempt_deadline_at,
        CASE
            WHEN (e.attempt_state <> 'pending_replay_attempt'::ff.attempt_state) THEN (e.failure_class)::text
            ELSE NULL::text
        END AS failure_class,
        CASE
            WHEN (e.cause = 'expire'::ff.cause) THEN 'execution_deadline'::text
            WHEN (e.attempt_state <> 'pending_replay_attempt'::ff.attempt_state) THEN e.failure_category
            ELSE NULL::text
        END AS failure_category,
        CASE
            WHEN (e.attempt_state <> 'pending_replay_attempt'::ff.attempt_state) THEN e.failure_reason
            ELSE NULL::text
        END AS failure_reason,
        CASE
            WHEN (e.attempt_state <> 'pending_replay_attempt'::ff.attempt_state) THEN e.failure_detail
            ELSE NULL::bytea
        END AS failure_detail,
    e.payload_encoding,
    COALESCE(e.payload, b.payload) AS payload,
    e.result_encoding,
    e.result,
    (b.policy)::text AS policy,
    (b.tags)::text AS tags,
    b.creator,
    e.flow_id,
    e.cancellation_reason,
    e.cancelled_by,
    e.progress_percent,
    e.progress_message,
    e.progressed_at,
    e.blocked_at,
    e.retention,
    e.trim_at,
    e.due_at,
    e.attempt_started_at,
    e.attempt_paused_at,
    e.attempt_pause_cause,
    e.attempt_time_left,
    e.instance_tag,
    ((e.reclaim_count >= 2) AND (e.phase <> 'terminal'::ff.phase)) AS is_crash_loop,
    b.task_version,
    e.parent_id,
    e.ends_with_parent,
    e.wait_no,
    e.wait_left,
    e.wakes_pending,
    b.trace_context,
    ( SELECT count(*) AS count
           FROM ff.execution c
          WHERE ((c.partition_key = e.partition_key) AND (c.parent_id = e.execution_id))) AS child_count,
    ( SELECT count(*) AS count
           FROM ff.step s
          WHERE ((s.partition_key = e.partition_key) AND (s.execution_id = e.execution_id))) AS step_count
   FROM ((ff.execution e
     JOIN ff.route r ON ((r.route_id = e.route_id)))
     LEFT JOIN ff.execution_body b ON (((b.partition_key = e.partition_key) AND (b.execution_id = e.execution_id))));


--
-- Name: grant; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff."grant" (
    partition_key smallint NOT NULL,
    execution_id uuid NOT NULL,
    kind ff.grant_kind NOT NULL,
    key_hash bytea NOT NULL,
    worker_id text NOT NULL,
    worker_instance_id text NOT NULL,
    issued_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT key_hash_is_sha256 CHECK ((octet_length(key_hash) = 32))
);


--
-- Name: idempotency_key; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.idempotency_key (
    partition_key smallint NOT NULL,
    namespace text NOT NULL,
    key text NOT NULL,
    execution_id uuid NOT NULL,
    scope ff.key_scope NOT NULL,
    fingerprint bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL
);


--
-- Name: meta; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.meta (
    name text NOT NULL,
    value text
);


--
-- Name: schema_step; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.schema_step (
    step integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    breaking boolean NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: installation; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.installation AS
 SELECT s.step,
    s.name,
    s.checksum,
    s.breaking,
    s.applied_at,
    ( SELECT (m.value)::integer AS value
           FROM ff.meta m
          WHERE (m.name = 'library_version'::text)) AS library_version,
    ( SELECT m.value
           FROM ff.meta m
          WHERE (m.name = 'library_hash'::text)) AS library_hash
   FROM (( SELECT) one
     LEFT JOIN ff.schema_step s ON (true));


--
-- Name: lane; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.lane (
    lane text NOT NULL,
    state ff.lane_state DEFAULT 'active'::ff.lane_state NOT NULL,
    resumes_at timestamp with time zone,
    registered_at timestamp with time zone NOT NULL,
    registered_by text NOT NULL,
    changed_at timestamp with time zone,
    changed_by text,
    reason text,
    retention interval,
    CONSTRAINT lane_is_short_printable_ascii CHECK ((lane ~ '^[ -~]{1,64}$'::text)),
    CONSTRAINT resumes_only_when_paused CHECK (((state = 'paused'::ff.lane_state) OR (resumes_at IS NULL)))
);


--
-- Name: lane_depth; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.lane_depth AS
 SELECT l.lane,
    (l.state)::text AS state,
    l.resumes_at,
    l.registered_at,
    (COALESCE(LEAST(sum(d.waiting), (10001)::numeric), (0)::numeric))::integer AS waiting,
    l.retention,
    l.reason,
    l.changed_by,
    l.changed_at
   FROM ((ff.lane l
     LEFT JOIN ff.route r ON ((r.lane = l.lane)))
     LEFT JOIN LATERAL ( SELECT count(*) AS waiting
           FROM ( SELECT
                   FROM ff.execution e
                  WHERE ((e.partition_key = 0) AND (e.route_id = r.route_id) AND (e.phase = 'runnable'::ff.phase) AND (e.eligibility = 'eligible_now'::ff.eligibility))
                 LIMIT 10001) w) d ON (true))
  GROUP BY l.lane, l.state, l.resumes_at, l.registered_at, l.retention, l.reason, l.changed_by, l.changed_at;


--
-- Name: lease_feed; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.lease_feed AS
 SELECT v.partition_key,
    v.event_id,
    v.execution_id,
    v.version,
        CASE
            WHEN (v.kind = ANY (ARRAY['claimed'::ff.event_kind, 'resumed'::ff.event_kind])) THEN 'acquired'::text
            WHEN (v.kind = 'reclaimed'::ff.event_kind) THEN 'reclaimed'::text
            WHEN (v.kind = ANY (ARRAY['lease_expired'::ff.event_kind, 'expired'::ff.event_kind])) THEN 'expired'::text
            ELSE 'revoked'::text
        END AS lease_event,
    (v.kind)::text AS kind,
    v.attempt_index,
    v.lease_id,
    v.epoch,
    v.worker_instance_id,
    v.occurred_at,
    v.namespace,
    v.instance_tag
   FROM ff.event v
  WHERE (v.lease_id IS NOT NULL);


--
-- Name: operator_feed; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.operator_feed AS
 SELECT v.partition_key,
    v.event_id,
    v.execution_id,
    v.version,
    (v.kind)::text AS kind,
    v.actor,
    (v.detail)::text AS detail,
    v.flow_id,
    v.occurred_at,
    v.namespace,
    v.instance_tag
   FROM ff.event v
  WHERE (v.kind = ANY (ARRAY['priority_changed'::ff.event_kind, 'replayed'::ff.event_kind, 'flow_cancel_requested'::ff.event_kind]));


--
-- Name: run_wait; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.run_wait (
    partition_key smallint NOT NULL,
    waiter_id uuid NOT NULL,
    target_id uuid NOT NULL,
    wait_no integer NOT NULL,
    ended_at timestamp with time zone
);


--
-- Name: schedule_app; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.schedule_app (
    namespace text NOT NULL,
    app text NOT NULL,
    version integer[] NOT NULL,
    generation bigint DEFAULT 0 NOT NULL,
    CONSTRAINT a_version_has_numbers CHECK (((cardinality(version) >= 1) AND (cardinality(version) <= 8) AND (array_position(version, NULL::integer) IS NULL)))
);


--
-- Name: schedule_view; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.schedule_view AS
 SELECT s.namespace,
    s.app,
    s.name,
    s.schedule_id,
    (s.state)::text AS state,
    a.version,
    a.generation,
    r.task,
    r.lane,
    s.cron,
    s.every,
    s.time_zone,
    s.anchor_at,
    s.is_anchored,
    s.rule_no,
    (s.misfire)::text AS misfire,
    s.priority,
    s.is_paused,
    s.orphaned_at,
    s.next_at,
    s.last_at,
    s.last_id,
    s.fired_count,
    s.declared_at,
    s.changed_at,
    s.changed_by,
    s.reason
   FROM ((ff.schedule s
     JOIN ff.schedule_app a ON (((a.namespace = s.namespace) AND (a.app = s.app))))
     JOIN ff.route r ON ((r.route_id = s.route_id)));


--
-- Name: step_view; Type: VIEW; Schema: ff; Owner: -
--

CREATE VIEW ff.step_view AS
 SELECT s.partition_key,
    s.execution_id,
    e.namespace,
    s.name,
    s.occurrence,
    s."position",
    s.is_sequential,
    (s.kind)::text AS kind,
    s.attempt_index,
    s.epoch,
    s.recorded_at,
    s.until_at,
    s.encoding,
    octet_length(s.value) AS value_bytes
   FROM (ff.step s
     JOIN ff.execution e ON (((e.partition_key = s.partition_key) AND (e.execution_id = s.execution_id))));


--
-- Name: transition; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.transition (
    number text NOT NULL,
    cause ff.cause NOT NULL,
    from_phase ff.phase,
    from_ownership ff.ownership,
    from_eligibility ff.eligibility,
    from_attempt_state ff.attempt_state,
    to_phase ff.phase NOT NULL,
    to_ownership ff.ownership NOT NULL,
    to_eligibility ff.eligibility NOT NULL,
    to_attempt_state ff.attempt_state NOT NULL,
    event_kind ff.event_kind
);


--
-- Name: worker; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.worker (
    namespace text NOT NULL,
    worker_instance_id text NOT NULL,
    worker_id text NOT NULL,
    lanes text[],
    tasks text[],
    capabilities text[] NOT NULL,
    liveness_ttl interval NOT NULL,
    registered_at timestamp with time zone NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL
);


--
-- Name: worker_event; Type: TABLE; Schema: ff; Owner: -
--

CREATE TABLE ff.worker_event (
    worker_event_id bigint NOT NULL,
    namespace text NOT NULL,
    worker_instance_id text NOT NULL,
    worker_id text NOT NULL,
    kind ff.worker_event_kind NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    actor text,
    reason text
);


--
-- Name: worker_event_worker_event_id_seq; Type: SEQUENCE; Schema: ff; Owner: -
--

ALTER TABLE ff.worker_event ALTER COLUMN worker_event_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ff.worker_event_worker_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Data for Name: attempt; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.attempt (partition_key, attempt_index, execution_id, attempt_id, attempt_type, epoch, started_at, ended_at, ended_as, previous_attempt_index, attempt_reason, failure_class, failure_category, failure_reason, failure_detail, last_lease_id, last_lease_end, last_lease_retry_at, last_worker_id, last_worker_instance_id) FROM stdin;
0	0	01a1e341-0f34-71ed-8018-228ef78dc3b8	01a1e341-0f43-75d3-aaa7-beb7c1661fbe	initial	1	2026-11-16 07:27:34.212422+00	2026-11-16 07:27:34.218389+00	ended_failure	\N	\N	transient	old	broken	\\x7472616365	01a1e341-0f43-75d3-aaa7-beb7c1661fbe	fail	2026-11-16 07:27:34.219389+00	old	old-1
0	0	01a1e341-0fbd-7581-b5be-f6837f1b5d4b	01a1e341-0fbf-776c-902f-68c6ae85d2dc	initial	1	2026-11-16 07:27:34.335751+00	2026-11-16 07:27:35.442555+00	interrupted_reclaimed	\N	\N	\N	\N	\N	\N	01a1e341-0fbf-776c-902f-68c6ae85d2dc	expire_lease	\N	old	old-1
\.


--
-- Data for Name: claim_slot; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.claim_slot (partition_key, worker_instance_id, claim_id, claimed_at, execution_ids) FROM stdin;
0	old-1	01a1e341-1895-75ca-a9a0-94b5a920eb5c	2026-11-16 07:27:36.598302+00	{01a1e341-1891-773a-9ffb-26fa6438d7eb}
\.


--
-- Data for Name: event; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.event (partition_key, version, attempt_index, event_id, xid, execution_id, occurred_at, route_id, epoch, kind, outcome, lease_id, flow_id, namespace, worker_instance_id, instance_tag, actor, detail) FROM stdin;
0	1	\N	1	732	01a1e341-0e7d-76c4-9002-cbafae831e61	2026-11-16 07:27:34.066215+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	2	733	01a1e341-0e7d-76c4-9002-cbafae831e61	2026-11-16 07:27:34.077768+00	349961808710839234	1	claimed	\N	01a1e341-0eba-702b-b893-b41a21d53eb2	\N	default	old-1	\N	\N	\N
0	3	0	3	734	01a1e341-0e7d-76c4-9002-cbafae831e61	2026-11-16 07:27:34.093315+00	349961808710839234	1	completed	success	01a1e341-0eba-702b-b893-b41a21d53eb2	\N	default	old-1	\N	\N	\N
0	1	\N	4	736	01a1e341-0ed0-7576-a44c-7e41d09e67be	2026-11-16 07:27:34.127943+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	5	737	01a1e341-0ed0-7576-a44c-7e41d09e67be	2026-11-16 07:27:34.138199+00	349961808710839234	1	claimed	\N	01a1e341-0ef5-7170-865e-8e30ccc46a02	\N	default	old-1	\N	\N	\N
0	3	0	6	738	01a1e341-0ed0-7576-a44c-7e41d09e67be	2026-11-16 07:27:34.160006+00	349961808710839234	1	failed	failed	01a1e341-0ef5-7170-865e-8e30ccc46a02	\N	default	old-1	\N	\N	{"class": "transient", "category": "old"}
0	1	\N	7	740	01a1e341-0f14-7576-8b9c-e4a7e01c790c	2026-11-16 07:27:34.174638+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	8	741	01a1e341-0f14-7576-8b9c-e4a7e01c790c	2026-11-16 07:27:34.177809+00	349961808710839234	1	claimed	\N	01a1e341-0f20-70ef-ac99-67ad5e617da6	\N	default	old-1	\N	\N	\N
0	3	0	9	742	01a1e341-0f14-7576-8b9c-e4a7e01c790c	2026-11-16 07:27:34.188549+00	349961808710839234	1	retry_scheduled	\N	01a1e341-0f20-70ef-ac99-67ad5e617da6	\N	default	old-1	\N	\N	{"class": "transient", "category": "old", "delayed_until": "2026-11-17T03:27:34.188549+00:00"}
0	1	\N	10	744	01a1e341-0f34-71ed-8018-228ef78dc3b8	2026-11-16 07:27:34.206448+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	11	745	01a1e341-0f34-71ed-8018-228ef78dc3b8	2026-11-16 07:27:34.212422+00	349961808710839234	1	claimed	\N	01a1e341-0f43-75d3-aaa7-beb7c1661fbe	\N	default	old-1	\N	\N	\N
0	3	0	12	746	01a1e341-0f34-71ed-8018-228ef78dc3b8	2026-11-16 07:27:34.218389+00	349961808710839234	1	retry_scheduled	\N	01a1e341-0f43-75d3-aaa7-beb7c1661fbe	\N	default	old-1	\N	\N	{"class": "transient", "category": "old", "delayed_until": "2026-11-16T07:27:34.219389+00:00"}
0	4	1	13	749	01a1e341-0f34-71ed-8018-228ef78dc3b8	2026-11-16 07:27:34.279663+00	349961808710839234	2	claimed	\N	01a1e341-0f87-7093-bee0-439ef07b3597	\N	default	old-1	\N	\N	\N
0	5	1	14	750	01a1e341-0f34-71ed-8018-228ef78dc3b8	2026-11-16 07:27:34.29394+00	349961808710839234	2	completed	success	01a1e341-0f87-7093-bee0-439ef07b3597	\N	default	old-1	\N	\N	\N
0	1	\N	15	752	01a1e341-0f9f-70bf-b834-a77e0a1582fa	2026-11-16 07:27:34.303804+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	16	753	01a1e341-0f9f-70bf-b834-a77e0a1582fa	2026-11-16 07:27:34.309015+00	349961808710839234	1	claimed	\N	01a1e341-0fa4-7209-b811-308329037559	\N	default	old-1	\N	\N	\N
0	3	0	17	754	01a1e341-0f9f-70bf-b834-a77e0a1582fa	2026-11-16 07:27:34.313884+00	349961808710839234	1	released	\N	01a1e341-0fa4-7209-b811-308329037559	\N	default	old-1	\N	\N	{"cause": "worker_shutdown"}
0	4	0	18	755	01a1e341-0f9f-70bf-b834-a77e0a1582fa	2026-11-16 07:27:34.321869+00	349961808710839234	2	resumed	\N	01a1e341-0fb1-76ec-b978-43e6cd44c5fd	\N	default	old-1	\N	\N	\N
0	1	\N	19	757	01a1e341-0fbd-7581-b5be-f6837f1b5d4b	2026-11-16 07:27:34.334384+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	20	758	01a1e341-0fbd-7581-b5be-f6837f1b5d4b	2026-11-16 07:27:34.335751+00	349961808710839234	1	claimed	\N	01a1e341-0fbf-776c-902f-68c6ae85d2dc	\N	default	old-1	\N	\N	\N
0	3	0	21	759	01a1e341-0fbd-7581-b5be-f6837f1b5d4b	2026-11-16 07:27:35.439728+00	349961808710839234	1	lease_expired	\N	01a1e341-0fbf-776c-902f-68c6ae85d2dc	\N	default	old-1	\N	\N	\N
0	4	1	22	760	01a1e341-0fbd-7581-b5be-f6837f1b5d4b	2026-11-16 07:27:35.442555+00	349961808710839234	2	reclaimed	\N	01a1e341-1412-7531-b6ad-27f9af47eb17	\N	default	old-1	\N	\N	\N
0	5	1	23	761	01a1e341-0fbd-7581-b5be-f6837f1b5d4b	2026-11-16 07:27:35.445231+00	349961808710839234	2	completed	success	01a1e341-1412-7531-b6ad-27f9af47eb17	\N	default	old-1	\N	\N	\N
0	1	\N	24	763	01a1e341-1416-733d-9ddf-52f86fb5a0ed	2026-11-16 07:27:35.447154+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	25	764	01a1e341-1416-733d-9ddf-52f86fb5a0ed	2026-11-16 07:27:35.449569+00	349961808710839234	1	claimed	\N	01a1e341-1418-7278-af36-e4857a673fba	\N	default	old-1	\N	\N	\N
0	3	0	26	765	01a1e341-1416-733d-9ddf-52f86fb5a0ed	2026-11-16 07:27:36.557038+00	349961808710839234	1	lease_expired	\N	01a1e341-1418-7278-af36-e4857a673fba	\N	default	old-1	\N	\N	\N
0	1	\N	27	766	01a1e341-1872-7131-8e23-25884c3de658	2026-11-16 07:27:36.566696+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	1	\N	28	767	01a1e341-1880-7261-8b28-1d73e153e28a	2026-11-16 07:27:36.577379+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	1	\N	29	769	01a1e341-1883-77d3-9b1f-711fdeb2e39b	2026-11-16 07:27:36.587804+00	3443912107856408636	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	1	\N	30	770	01a1e341-188d-75a1-8618-a655328c2bfc	2026-11-16 07:27:36.590875+00	3443912107856408636	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	1	\N	31	771	01a1e341-1891-773a-9ffb-26fa6438d7eb	2026-11-16 07:27:36.593945+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	2	0	32	772	01a1e341-1891-773a-9ffb-26fa6438d7eb	2026-11-16 07:27:36.598302+00	349961808710839234	1	claimed	\N	01a1e341-1895-75ca-a9a0-94b5a920eb5c	\N	default	old-1	\N	\N	\N
0	1	\N	33	775	01a1e341-18aa-73a6-9969-06aafd22b023	2026-11-16 07:27:36.6193+00	349961808710839234	\N	submitted	\N	\N	\N	default	\N	\N	\N	\N
0	3	0	34	776	01a1e341-1891-773a-9ffb-26fa6438d7eb	2026-11-16 07:27:36.621476+00	349961808710839234	1	completed	success	01a1e341-1895-75ca-a9a0-94b5a920eb5c	\N	default	old-1	\N	\N	\N
\.


--
-- Data for Name: event_trim; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.event_trim (partition_key, due_at, execution_id) FROM stdin;
\.


--
-- Data for Name: execution; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.execution (partition_key, rank, attempt_index, execution_id, route_id, epoch, created_at, transitioned_at, mutated_at, version, total_attempt_count, retry_count, replay_count, reclaim_count, max_reclaims, phase, ownership, eligibility, blocking_reason, outcome, attempt_state, cause, namespace, due_at, delayed_until, reclaim_at, deadline_at, started_at, terminal_at, attempt_timeout, lease_id, lease_expires_at, worker_id, worker_instance_id, last_lease_id, last_lease_end, last_lease_retry_at, last_worker_id, last_worker_instance_id, attempt_id, attempt_type, attempt_started_at, attempt_paused_at, attempt_pause_cause, attempt_deadline_at, attempt_time_left, attempt_ended_at, attempt_ended_as, previous_attempt_index, attempt_reason, failure_class, failure_category, failure_reason, failure_detail, flow_id, instance_tag, blocking_detail, payload_encoding, payload, result_encoding, result, cancellation_reason, cancelled_by, progress_percent, progress_message, progressed_at, blocked_at, retention, trim_at, parent_id, ends_with_parent, is_awaited, wakes_pending, wait_no, wait_left) FROM stdin;
0	9000	0	01a1e341-0e7d-76c4-9002-cbafae831e61	349961808710839234	1	2026-11-16 07:27:34.066215+00	2026-11-16 07:27:34.093315+00	2026-11-16 07:27:34.093315+00	3	1	0	0	0	100	terminal	unowned	not_applicable	none	success	attempt_terminal	complete	default	\N	\N	\N	\N	2026-11-16 07:27:34.077768+00	2026-11-16 07:27:34.093315+00	\N	\N	\N	\N	\N	01a1e341-0eba-702b-b893-b41a21d53eb2	complete	\N	old	old-1	01a1e341-0eba-702b-b893-b41a21d53eb2	initial	2026-11-16 07:27:34.077768+00	\N	\N	\N	\N	2026-11-16 07:27:34.093315+00	ended_success	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\\x22646f6e6522	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-0ed0-7576-a44c-7e41d09e67be	349961808710839234	1	2026-11-16 07:27:34.127943+00	2026-11-16 07:27:34.160006+00	2026-11-16 07:27:34.160006+00	3	1	0	0	0	100	terminal	unowned	not_applicable	none	failed	attempt_terminal	fail	default	\N	\N	\N	\N	2026-11-16 07:27:34.138199+00	2026-11-16 07:27:34.160006+00	\N	\N	\N	\N	\N	01a1e341-0ef5-7170-865e-8e30ccc46a02	fail	\N	old	old-1	01a1e341-0ef5-7170-865e-8e30ccc46a02	initial	2026-11-16 07:27:34.138199+00	\N	\N	\N	\N	2026-11-16 07:27:34.160006+00	ended_failure	\N	\N	transient	old	broken	\\x7472616365	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-0f14-7576-8b9c-e4a7e01c790c	349961808710839234	1	2026-11-16 07:27:34.174638+00	2026-11-16 07:27:34.188549+00	2026-11-16 07:27:34.188549+00	3	1	1	0	0	100	runnable	unowned	not_eligible_until_time	waiting_for_retry_backoff	none	pending_retry_attempt	schedule_retry	default	2026-11-17 03:27:34.188549+00	2026-11-17 03:27:34.188549+00	\N	\N	2026-11-16 07:27:34.177809+00	\N	\N	\N	\N	\N	\N	01a1e341-0f20-70ef-ac99-67ad5e617da6	fail	2026-11-17 03:27:34.188549+00	old	old-1	01a1e341-0f20-70ef-ac99-67ad5e617da6	initial	2026-11-16 07:27:34.177809+00	\N	\N	\N	\N	2026-11-16 07:27:34.188549+00	ended_failure	\N	\N	transient	old	broken	\\x7472616365	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	1	01a1e341-0f34-71ed-8018-228ef78dc3b8	349961808710839234	2	2026-11-16 07:27:34.206448+00	2026-11-16 07:27:34.29394+00	2026-11-16 07:27:34.29394+00	5	2	1	0	0	100	terminal	unowned	not_applicable	none	success	attempt_terminal	complete	default	\N	\N	\N	\N	2026-11-16 07:27:34.212422+00	2026-11-16 07:27:34.29394+00	\N	\N	\N	\N	\N	01a1e341-0f87-7093-bee0-439ef07b3597	complete	\N	old	old-1	01a1e341-0f87-7093-bee0-439ef07b3597	retry	2026-11-16 07:27:34.279663+00	\N	\N	\N	\N	2026-11-16 07:27:34.29394+00	ended_success	0	old	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\\x227365636f6e6422	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-0f9f-70bf-b834-a77e0a1582fa	349961808710839234	2	2026-11-16 07:27:34.303804+00	2026-11-16 07:27:34.321869+00	2026-11-16 07:27:34.332674+00	4	1	0	0	0	100	active	leased	not_applicable	none	none	running_attempt	resume	default	2026-11-17 03:27:34.321869+00	\N	\N	\N	2026-11-16 07:27:34.309015+00	\N	\N	01a1e341-0fb1-76ec-b978-43e6cd44c5fd	2026-11-17 03:27:34.332674+00	old	old-1	01a1e341-0fa4-7209-b811-308329037559	release	\N	old	old-1	01a1e341-0fa4-7209-b811-308329037559	initial	2026-11-16 07:27:34.309015+00	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	1	01a1e341-0fbd-7581-b5be-f6837f1b5d4b	349961808710839234	2	2026-11-16 07:27:34.334384+00	2026-11-16 07:27:35.445231+00	2026-11-16 07:27:35.445231+00	5	2	0	0	1	100	terminal	unowned	not_applicable	none	success	attempt_terminal	complete	default	\N	\N	\N	\N	2026-11-16 07:27:34.335751+00	2026-11-16 07:27:35.445231+00	\N	\N	\N	\N	\N	01a1e341-1412-7531-b6ad-27f9af47eb17	complete	\N	old	old-1	01a1e341-1412-7531-b6ad-27f9af47eb17	reclaim	2026-11-16 07:27:35.442555+00	\N	\N	\N	\N	2026-11-16 07:27:35.445231+00	ended_success	0	lease_expired_reclaimable	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\\x227265636c61696d656422	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-1416-733d-9ddf-52f86fb5a0ed	349961808710839234	1	2026-11-16 07:27:35.447154+00	2026-11-16 07:27:36.557038+00	2026-11-16 07:27:36.557038+00	3	1	0	0	0	100	active	lease_expired_reclaimable	not_applicable	waiting_for_worker	none	attempt_interrupted	expire_lease	default	\N	\N	\N	\N	2026-11-16 07:27:35.449569+00	\N	\N	01a1e341-1418-7278-af36-e4857a673fba	2026-11-16 07:27:36.449569+00	old	old-1	\N	\N	\N	\N	\N	01a1e341-1418-7278-af36-e4857a673fba	initial	2026-11-16 07:27:35.449569+00	2026-11-16 07:27:36.557038+00	lease_expired	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-1872-7131-8e23-25884c3de658	349961808710839234	0	2026-11-16 07:27:36.566696+00	2026-11-16 07:27:36.566696+00	2026-11-16 07:27:36.566696+00	1	0	0	0	0	100	runnable	unowned	eligible_now	waiting_for_worker	none	pending_first_attempt	submit	default	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-1880-7261-8b28-1d73e153e28a	349961808710839234	0	2026-11-16 07:27:36.577379+00	2026-11-16 07:27:36.577379+00	2026-11-16 07:27:36.577379+00	1	0	0	0	0	100	runnable	unowned	not_eligible_until_time	waiting_for_delay	none	pending_first_attempt	submit	default	2026-11-17 03:27:36.577379+00	2026-11-17 03:27:36.577379+00	\N	2026-11-17 13:27:36.577379+00	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	8993	0	01a1e341-1883-77d3-9b1f-711fdeb2e39b	3443912107856408636	0	2026-11-16 07:27:36.587804+00	2026-11-16 07:27:36.587804+00	2026-11-16 07:27:36.587804+00	1	0	0	0	0	100	runnable	unowned	eligible_now	waiting_for_worker	none	pending_first_attempt	submit	default	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-188d-75a1-8618-a655328c2bfc	3443912107856408636	0	2026-11-16 07:27:36.590875+00	2026-11-16 07:27:36.590875+00	2026-11-16 07:27:36.590875+00	1	0	0	0	0	100	runnable	unowned	eligible_now	waiting_for_worker	none	pending_first_attempt	submit	default	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
0	9000	0	01a1e341-18aa-73a6-9969-06aafd22b023	349961808710839234	0	2026-11-16 07:27:36.6193+00	2026-11-16 07:27:36.6193+00	2026-11-16 07:27:36.6193+00	1	0	0	0	0	100	runnable	unowned	eligible_now	waiting_for_worker	none	pending_first_attempt	submit	default	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	01a1e341-1891-773a-9ffb-26fa6438d7eb	f	f	f	0	\N
0	8991	0	01a1e341-1891-773a-9ffb-26fa6438d7eb	349961808710839234	1	2026-11-16 07:27:36.593945+00	2026-11-16 07:27:36.621476+00	2026-11-16 07:27:36.621476+00	3	1	0	0	0	100	terminal	unowned	not_applicable	none	success	attempt_terminal	complete	default	\N	\N	\N	\N	2026-11-16 07:27:36.598302+00	2026-11-16 07:27:36.621476+00	\N	\N	\N	\N	\N	01a1e341-1895-75ca-a9a0-94b5a920eb5c	complete	\N	old	old-1	01a1e341-1895-75ca-a9a0-94b5a920eb5c	initial	2026-11-16 07:27:36.598302+00	\N	\N	\N	\N	2026-11-16 07:27:36.621476+00	ended_success	\N	\N	\N	\N	\N	\N	\N	\N	\N	\N	\\x5b315d	\N	\\x22706172656e7422	\N	\N	\N	\N	\N	\N	\N	\N	\N	f	f	f	0	\N
\.


--
-- Data for Name: execution_body; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.execution_body (partition_key, execution_id, payload, policy, tags, creator, trace_context, task_version) FROM stdin;
0	01a1e341-0f14-7576-8b9c-e4a7e01c790c	\N	{"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 72000000.0}, "max_retries": 3}}	\N	\N	\N	\N
0	01a1e341-0f34-71ed-8018-228ef78dc3b8	\N	{"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 1.0}, "max_retries": 3}}	\N	\N	\N	\N
0	01a1e341-1872-7131-8e23-25884c3de658	\N	\N	{"team.name": "x"}	me	\N	\N
0	01a1e341-188d-75a1-8618-a655328c2bfc	\N	{"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 1.0}, "max_retries": 3}}	\N	\N	\N	\N
\.


--
-- Data for Name: grant; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff."grant" (partition_key, execution_id, kind, key_hash, worker_id, worker_instance_id, issued_at, expires_at) FROM stdin;
\.


--
-- Data for Name: idempotency_key; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.idempotency_key (partition_key, namespace, key, execution_id, scope, fingerprint, expires_at) FROM stdin;
0	default	k	01a1e341-1872-7131-8e23-25884c3de658	window	\\x66	2026-11-17 07:27:36.565336+00
\.


--
-- Data for Name: lane; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.lane (lane, state, resumes_at, registered_at, registered_by, changed_at, changed_by, reason, retention) FROM stdin;
default	active	\N	2026-11-16 07:27:34.030717+00	submit_executions	\N	\N	\N	\N
gpu	active	\N	2026-11-16 07:27:36.580718+00	submit_executions	\N	\N	\N	\N
\.


--
-- Data for Name: meta; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.meta (name, value) FROM stdin;
partitions	1
instance_tag_key	\N
library_version	1
library_hash	24dcb3bc47264997a391335bdd02fb6497dbba8eb7789c880a9badc8735c9003
\.


--
-- Data for Name: route; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.route (route_id, namespace, lane, task, capabilities, registered_at) FROM stdin;
349961808710839234	default	default	old.task	{}	2026-11-16 07:27:34.030717+00
3443912107856408636	default	gpu	old.render	{gpu}	2026-11-16 07:27:36.580718+00
\.


--
-- Data for Name: run_wait; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.run_wait (partition_key, waiter_id, target_id, wait_no, ended_at) FROM stdin;
\.


--
-- Data for Name: schedule; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.schedule (namespace, app, name, schedule_id, route_id, cron, every, time_zone, anchor_at, is_anchored, rule_no, misfire, payload_encoding, payload, priority, deadline, max_reclaims, policy, tags, task_version, is_paused, orphaned_at, next_at, last_at, last_id, fired_count, last_call_id, last_call_count, declared_at, changed_at, changed_by, reason) FROM stdin;
\.


--
-- Data for Name: schedule_app; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.schedule_app (namespace, app, version, generation) FROM stdin;
\.


--
-- Data for Name: schema_step; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.schema_step (step, name, checksum, breaking, applied_at) FROM stdin;
1	execution	73ecde9b2a63e5dfe3f233ba2a9f7476458b5ce87af74188c2f72183f06c1342	f	2026-11-16 07:27:33.847216+00
2	transition	3516e899433e883535337175d8ee8ecd60ed265a16bd24687c230f00210962ab	f	2026-11-16 07:27:33.877807+00
3	operation	eff1dc2acc703e6bfd4b3e54318dae5d8f702977c5528e6e378640aba6524845	f	2026-11-16 07:27:33.883523+00
4	developer	987006d8424756481aa2bc9b8b99fc7c0e04b5dd6d257708519d510e2a744af1	f	2026-11-16 07:27:33.896421+00
\.


--
-- Data for Name: step; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.step (partition_key, execution_id, name, occurrence, "position", is_sequential, kind, attempt_index, epoch, recorded_at, until_at, encoding, value) FROM stdin;
0	01a1e341-1891-773a-9ffb-26fa6438d7eb	charge	0	0	t	step	0	1	2026-11-16 07:27:36.605363+00	\N	\N	\\x31
0	01a1e341-1891-773a-9ffb-26fa6438d7eb	nap	0	1	t	sleep	0	1	2026-11-16 07:27:36.616464+00	2026-11-17 03:27:36.616464+00	\N	\N
\.


--
-- Data for Name: transition; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.transition (number, cause, from_phase, from_ownership, from_eligibility, from_attempt_state, to_phase, to_ownership, to_eligibility, to_attempt_state, event_kind) FROM stdin;
T1	submit	\N	\N	\N	\N	runnable	unowned	eligible_now	pending_first_attempt	submitted
T2	submit	\N	\N	\N	\N	runnable	unowned	not_eligible_until_time	pending_first_attempt	submitted
T3	apply_dependency	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_first_attempt	\N
T3	apply_dependency	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_first_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_first_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_first_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_first_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_first_attempt	\N
T3	apply_dependency	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_dependencies	attempt_interrupted	\N
T3	apply_dependency	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_dependencies	attempt_interrupted	\N
T3	apply_dependency	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_dependencies	attempt_interrupted	\N
T3	apply_dependency	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_dependencies	attempt_interrupted	\N
T3	apply_dependency	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_dependencies	attempt_interrupted	\N
T3	apply_dependency	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_dependencies	attempt_interrupted	\N
T3	apply_dependency	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	\N
T3	apply_dependency	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	\N
T3	apply_dependency	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	\N
T3	apply_dependency	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	\N
T3	apply_dependency	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	\N
T4	satisfy_dependencies	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	\N
T4	satisfy_dependencies	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	\N
T4	satisfy_dependencies	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	\N
T4	satisfy_dependencies	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	blocked
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	\N
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	\N
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	\N
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	\N
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	blocked
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	blocked
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	blocked
T6	block	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	blocked
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	\N
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	\N
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	\N
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	\N
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	blocked
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	blocked
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	blocked
T6	block	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	\N
T6	block	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	blocked
T6	block	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	blocked
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	\N
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	blocked
T6	block	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	\N
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	blocked
T6	block	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	\N
T6	block	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	blocked
T6	block	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	blocked
T7	unblock	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	\N
T7	unblock	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	\N
T7	unblock	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	\N
T7	unblock	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	\N
T7	unblock	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	\N
T7	unblock	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	\N
T7	unblock	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	\N
T7	unblock	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	\N
T7	unblock	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	\N
T7	unblock	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	\N
T7	unblock	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	\N
T7	unblock	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	\N
T7	unblock	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	\N
T7	unblock	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	\N
T7	unblock	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	\N
T7	unblock	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	\N
T7	unblock	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	unblocked
T7	unblock	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	unblocked
T7	unblock	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	unblocked
T7	unblock	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	unblocked
T7	unblock	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	unblocked
T7	unblock	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	unblocked
T8	promote	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	\N
T8	promote	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	\N
T8	promote	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	\N
T8	promote	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	\N
T8	promote	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	promoted
T8	promote	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	promoted
T8	promote	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	promoted
T8	promote	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	promoted
T11	change_priority	runnable	unowned	eligible_now	pending_first_attempt	runnable	unowned	eligible_now	pending_first_attempt	priority_changed
T11	change_priority	runnable	unowned	not_eligible_until_time	pending_first_attempt	runnable	unowned	not_eligible_until_time	pending_first_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_dependencies	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_first_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_budget	pending_first_attempt	runnable	unowned	blocked_by_budget	pending_first_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_quota	pending_first_attempt	runnable	unowned	blocked_by_quota	pending_first_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_route	pending_first_attempt	runnable	unowned	blocked_by_route	pending_first_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_operator	pending_first_attempt	runnable	unowned	blocked_by_operator	pending_first_attempt	priority_changed
T11	change_priority	runnable	unowned	eligible_now	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	priority_changed
T11	change_priority	runnable	unowned	not_eligible_until_time	attempt_interrupted	runnable	unowned	not_eligible_until_time	attempt_interrupted	priority_changed
T11	change_priority	runnable	unowned	blocked_by_dependencies	attempt_interrupted	runnable	unowned	blocked_by_dependencies	attempt_interrupted	priority_changed
T11	change_priority	runnable	unowned	blocked_by_budget	attempt_interrupted	runnable	unowned	blocked_by_budget	attempt_interrupted	priority_changed
T11	change_priority	runnable	unowned	blocked_by_quota	attempt_interrupted	runnable	unowned	blocked_by_quota	attempt_interrupted	priority_changed
T11	change_priority	runnable	unowned	blocked_by_route	attempt_interrupted	runnable	unowned	blocked_by_route	attempt_interrupted	priority_changed
T11	change_priority	runnable	unowned	blocked_by_operator	attempt_interrupted	runnable	unowned	blocked_by_operator	attempt_interrupted	priority_changed
T11	change_priority	runnable	unowned	eligible_now	pending_retry_attempt	runnable	unowned	eligible_now	pending_retry_attempt	priority_changed
T11	change_priority	runnable	unowned	not_eligible_until_time	pending_retry_attempt	runnable	unowned	not_eligible_until_time	pending_retry_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_budget	pending_retry_attempt	runnable	unowned	blocked_by_budget	pending_retry_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_quota	pending_retry_attempt	runnable	unowned	blocked_by_quota	pending_retry_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_route	pending_retry_attempt	runnable	unowned	blocked_by_route	pending_retry_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_operator	pending_retry_attempt	runnable	unowned	blocked_by_operator	pending_retry_attempt	priority_changed
T11	change_priority	runnable	unowned	eligible_now	pending_replay_attempt	runnable	unowned	eligible_now	pending_replay_attempt	priority_changed
T11	change_priority	runnable	unowned	not_eligible_until_time	pending_replay_attempt	runnable	unowned	not_eligible_until_time	pending_replay_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_budget	pending_replay_attempt	runnable	unowned	blocked_by_budget	pending_replay_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_quota	pending_replay_attempt	runnable	unowned	blocked_by_quota	pending_replay_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_route	pending_replay_attempt	runnable	unowned	blocked_by_route	pending_replay_attempt	priority_changed
T11	change_priority	runnable	unowned	blocked_by_operator	pending_replay_attempt	runnable	unowned	blocked_by_operator	pending_replay_attempt	priority_changed
T9	claim	runnable	unowned	eligible_now	pending_first_attempt	active	leased	not_applicable	running_attempt	claimed
T9	claim	runnable	unowned	eligible_now	pending_retry_attempt	active	leased	not_applicable	running_attempt	claimed
T9	claim	runnable	unowned	eligible_now	pending_replay_attempt	active	leased	not_applicable	running_attempt	claimed
T10	resume	runnable	unowned	eligible_now	attempt_interrupted	active	leased	not_applicable	running_attempt	resumed
T21	reclaim	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	active	leased	not_applicable	running_attempt	reclaimed
T21	reclaim	active	lease_revoked	not_applicable	attempt_interrupted	active	leased	not_applicable	running_attempt	reclaimed
T12	complete	active	leased	not_applicable	running_attempt	terminal	unowned	not_applicable	attempt_terminal	completed
T13	schedule_retry	active	leased	not_applicable	running_attempt	runnable	unowned	not_eligible_until_time	pending_retry_attempt	retry_scheduled
T14	fail	active	leased	not_applicable	running_attempt	terminal	unowned	not_applicable	attempt_terminal	failed
T15	delay	active	leased	not_applicable	running_attempt	runnable	unowned	not_eligible_until_time	attempt_interrupted	delayed
T15	delay	active	leased	not_applicable	running_attempt	runnable	unowned	eligible_now	attempt_interrupted	delayed
T15	release	active	leased	not_applicable	running_attempt	runnable	unowned	eligible_now	attempt_interrupted	released
T16	wait_children	active	leased	not_applicable	running_attempt	runnable	unowned	blocked_by_dependencies	attempt_interrupted	waiting
T16	wait_children	active	leased	not_applicable	running_attempt	runnable	unowned	eligible_now	attempt_interrupted	waiting
T16	wait_for_runs	active	leased	not_applicable	running_attempt	runnable	unowned	blocked_by_dependencies	attempt_interrupted	waiting
T16	wait_for_runs	active	leased	not_applicable	running_attempt	runnable	unowned	eligible_now	attempt_interrupted	waiting
T17	suspend	active	leased	not_applicable	running_attempt	suspended	unowned	not_applicable	attempt_interrupted	suspended
T30	hold	active	leased	not_applicable	running_attempt	runnable	unowned	blocked_by_operator	attempt_interrupted	held
T19	expire_lease	active	leased	not_applicable	running_attempt	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	lease_expired
T20	revoke_lease	active	leased	not_applicable	running_attempt	active	lease_revoked	not_applicable	attempt_interrupted	lease_revoked
T24	time_out	active	leased	not_applicable	running_attempt	runnable	unowned	not_eligible_until_time	pending_retry_attempt	retry_scheduled
T24	time_out	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	runnable	unowned	not_eligible_until_time	pending_retry_attempt	retry_scheduled
T24	time_out	active	lease_revoked	not_applicable	attempt_interrupted	runnable	unowned	not_eligible_until_time	pending_retry_attempt	retry_scheduled
T5	skip	runnable	unowned	eligible_now	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	skipped
T23	cancel	runnable	unowned	eligible_now	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	cancelled
T24	expire	runnable	unowned	eligible_now	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	expired
T5	skip	runnable	unowned	not_eligible_until_time	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	skipped
T23	cancel	runnable	unowned	not_eligible_until_time	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	cancelled
T24	expire	runnable	unowned	not_eligible_until_time	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	expired
T5	skip	runnable	unowned	blocked_by_dependencies	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	skipped
T23	cancel	runnable	unowned	blocked_by_dependencies	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	cancelled
T24	expire	runnable	unowned	blocked_by_dependencies	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	expired
T5	skip	runnable	unowned	blocked_by_budget	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	skipped
T23	cancel	runnable	unowned	blocked_by_budget	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	cancelled
T24	expire	runnable	unowned	blocked_by_budget	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	expired
T5	skip	runnable	unowned	blocked_by_quota	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	skipped
T23	cancel	runnable	unowned	blocked_by_quota	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	cancelled
T24	expire	runnable	unowned	blocked_by_quota	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	expired
T5	skip	runnable	unowned	blocked_by_route	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	skipped
T23	cancel	runnable	unowned	blocked_by_route	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	cancelled
T24	expire	runnable	unowned	blocked_by_route	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	expired
T5	skip	runnable	unowned	blocked_by_operator	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	skipped
T23	cancel	runnable	unowned	blocked_by_operator	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	cancelled
T24	expire	runnable	unowned	blocked_by_operator	pending_first_attempt	terminal	unowned	not_applicable	pending_first_attempt	expired
T5	skip	runnable	unowned	eligible_now	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	eligible_now	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	eligible_now	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	not_eligible_until_time	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	not_eligible_until_time	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	not_eligible_until_time	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_dependencies	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_dependencies	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_dependencies	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_budget	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_budget	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_budget	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_quota	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_quota	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_quota	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_route	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_route	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_route	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_operator	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_operator	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_operator	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	eligible_now	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	eligible_now	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	eligible_now	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	not_eligible_until_time	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	not_eligible_until_time	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	not_eligible_until_time	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_dependencies	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_budget	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_budget	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_budget	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_quota	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_quota	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_quota	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_route	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_route	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_route	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_operator	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_operator	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_operator	pending_retry_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	eligible_now	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	eligible_now	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	eligible_now	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	not_eligible_until_time	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	not_eligible_until_time	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	not_eligible_until_time	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_budget	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_budget	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_budget	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_quota	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_quota	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_quota	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_route	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_route	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_route	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	runnable	unowned	blocked_by_operator	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	runnable	unowned	blocked_by_operator	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	runnable	unowned	blocked_by_operator	pending_replay_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	active	leased	not_applicable	running_attempt	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	active	leased	not_applicable	running_attempt	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	active	leased	not_applicable	running_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	active	lease_revoked	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	active	lease_revoked	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	active	lease_revoked	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T5	skip	suspended	unowned	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	skipped
T23	cancel	suspended	unowned	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T24	expire	suspended	unowned	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T24	time_out	active	leased	not_applicable	running_attempt	terminal	unowned	not_applicable	attempt_terminal	expired
T24	time_out	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T24	time_out	active	lease_revoked	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T22	exceed_reclaims	active	lease_expired_reclaimable	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	failed
T22	exceed_reclaims	active	lease_revoked	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	failed
T25	time_out_suspension	suspended	unowned	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	failed
T25	time_out_suspension	suspended	unowned	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	cancelled
T25	time_out_suspension	suspended	unowned	not_applicable	attempt_interrupted	terminal	unowned	not_applicable	attempt_terminal	expired
T18	wake	suspended	unowned	not_applicable	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	woken
T18	wake	suspended	unowned	not_applicable	attempt_interrupted	runnable	unowned	not_eligible_until_time	attempt_interrupted	woken
T26	time_out_suspension	suspended	unowned	not_applicable	attempt_interrupted	runnable	unowned	eligible_now	attempt_interrupted	woken
T27	escalate	suspended	unowned	not_applicable	attempt_interrupted	suspended	unowned	not_applicable	attempt_interrupted	escalated
T28	replay	terminal	unowned	not_applicable	attempt_terminal	runnable	unowned	eligible_now	pending_replay_attempt	replayed
T29	replay	terminal	unowned	not_applicable	attempt_terminal	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	replayed
T28	replay	terminal	unowned	not_applicable	pending_first_attempt	runnable	unowned	eligible_now	pending_replay_attempt	replayed
T29	replay	terminal	unowned	not_applicable	pending_first_attempt	runnable	unowned	blocked_by_dependencies	pending_replay_attempt	replayed
\.


--
-- Data for Name: worker; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.worker (namespace, worker_instance_id, worker_id, lanes, tasks, capabilities, liveness_ttl, registered_at, heartbeat_at) FROM stdin;
\.


--
-- Data for Name: worker_event; Type: TABLE DATA; Schema: ff; Owner: -
--

COPY ff.worker_event (worker_event_id, namespace, worker_instance_id, worker_id, kind, occurred_at, actor, reason) FROM stdin;
\.


--
-- Name: event_event_id_seq; Type: SEQUENCE SET; Schema: ff; Owner: -
--

SELECT pg_catalog.setval('ff.event_event_id_seq', 34, true);


--
-- Name: worker_event_worker_event_id_seq; Type: SEQUENCE SET; Schema: ff; Owner: -
--

SELECT pg_catalog.setval('ff.worker_event_worker_event_id_seq', 1, false);


--
-- Name: attempt attempt_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (partition_key, execution_id, attempt_index);


--
-- Name: claim_slot claim_slot_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.claim_slot
    ADD CONSTRAINT claim_slot_pkey PRIMARY KEY (partition_key, worker_instance_id);


--
-- Name: event event_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (partition_key, xid, event_id);


--
-- Name: event_trim event_trim_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.event_trim
    ADD CONSTRAINT event_trim_pkey PRIMARY KEY (partition_key, due_at, execution_id);


--
-- Name: execution_body execution_body_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.execution_body
    ADD CONSTRAINT execution_body_pkey PRIMARY KEY (partition_key, execution_id);


--
-- Name: execution execution_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.execution
    ADD CONSTRAINT execution_pkey PRIMARY KEY (partition_key, execution_id);


--
-- Name: grant grant_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff."grant"
    ADD CONSTRAINT grant_pkey PRIMARY KEY (partition_key, execution_id);


--
-- Name: idempotency_key idempotency_key_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.idempotency_key
    ADD CONSTRAINT idempotency_key_pkey PRIMARY KEY (partition_key, namespace, key);


--
-- Name: lane lane_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (lane);


--
-- Name: meta meta_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);


--
-- Name: route route_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.route
    ADD CONSTRAINT route_pkey PRIMARY KEY (route_id);


--
-- Name: run_wait run_wait_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.run_wait
    ADD CONSTRAINT run_wait_pkey PRIMARY KEY (partition_key, waiter_id, target_id);


--
-- Name: schedule_app schedule_app_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.schedule_app
    ADD CONSTRAINT schedule_app_pkey PRIMARY KEY (namespace, app);


--
-- Name: schedule schedule_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (namespace, app, name);


--
-- Name: schedule schedule_schedule_id_key; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.schedule
    ADD CONSTRAINT schedule_schedule_id_key UNIQUE (schedule_id);


--
-- Name: schema_step schema_step_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.schema_step
    ADD CONSTRAINT schema_step_pkey PRIMARY KEY (step);


--
-- Name: step step_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.step
    ADD CONSTRAINT step_pkey PRIMARY KEY (partition_key, execution_id, name, occurrence);


--
-- Name: transition transition_once; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.transition
    ADD CONSTRAINT transition_once UNIQUE NULLS NOT DISTINCT (cause, from_phase, from_ownership, from_eligibility, from_attempt_state, to_phase, to_ownership, to_eligibility, to_attempt_state, event_kind);


--
-- Name: worker_event worker_event_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.worker_event
    ADD CONSTRAINT worker_event_pkey PRIMARY KEY (worker_event_id);


--
-- Name: worker worker_pkey; Type: CONSTRAINT; Schema: ff; Owner: -
--

ALTER TABLE ONLY ff.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (namespace, worker_instance_id);


--
-- Name: event_history; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX event_history ON ff.event USING btree (partition_key, execution_id, event_id);


--
-- Name: execution_attention; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX execution_attention ON ff.execution USING btree (partition_key, public_state, execution_id) WHERE (public_state = ANY (ARRAY['delayed'::ff.public_state, 'rate_limited'::ff.public_state, 'waiting_children'::ff.public_state, 'suspended'::ff.public_state, 'resumable'::ff.public_state, 'failed'::ff.public_state, 'cancelled'::ff.public_state, 'expired'::ff.public_state, 'skipped'::ff.public_state]));


--
-- Name: execution_due; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX execution_due ON ff.execution USING btree (partition_key, due_at) WHERE (due_at IS NOT NULL);


--
-- Name: execution_parent; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX execution_parent ON ff.execution USING btree (partition_key, parent_id, execution_id) WHERE (parent_id IS NOT NULL);


--
-- Name: execution_ready; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX execution_ready ON ff.execution USING btree (partition_key, route_id, rank, created_at, execution_id) WHERE ((phase = 'runnable'::ff.phase) AND (eligibility = 'eligible_now'::ff.eligibility));


--
-- Name: execution_reclaim; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX execution_reclaim ON ff.execution USING btree (partition_key, route_id, rank, created_at, execution_id) WHERE ((ownership = ANY (ARRAY['lease_expired_reclaimable'::ff.ownership, 'lease_revoked'::ff.ownership])) AND (reclaim_at IS NULL));


--
-- Name: execution_trim; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX execution_trim ON ff.execution USING btree (partition_key, trim_at) WHERE (trim_at IS NOT NULL);


--
-- Name: execution_wakes; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX execution_wakes ON ff.execution USING btree (partition_key, execution_id) WHERE wakes_pending;


--
-- Name: grant_expiry; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX grant_expiry ON ff."grant" USING btree (partition_key, expires_at) WHERE (expires_at > '-infinity'::timestamp with time zone);


--
-- Name: idempotency_key_expiry; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX idempotency_key_expiry ON ff.idempotency_key USING btree (partition_key, expires_at) WHERE (expires_at > '-infinity'::timestamp with time zone);


--
-- Name: route_lane; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX route_lane ON ff.route USING btree (lane);


--
-- Name: route_task; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX route_task ON ff.route USING btree (task, lane);


--
-- Name: run_wait_target; Type: INDEX; Schema: ff; Owner: -
--

CREATE INDEX run_wait_target ON ff.run_wait USING btree (partition_key, target_id) WHERE (ended_at IS NULL);


--
-- Name: FUNCTION _backoff(p_backoff jsonb, p_retry_count integer, p_chance double precision); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._backoff(p_backoff jsonb, p_retry_count integer, p_chance double precision) FROM PUBLIC;


--
-- Name: FUNCTION _candidates(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_worker_id text, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._candidates(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _check_batch(p_size integer, p_sizes integer[], p_wait boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_batch(p_size integer, p_sizes integer[], p_wait boolean) FROM PUBLIC;


--
-- Name: FUNCTION _check_claim(p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_capabilities text[], p_limit integer, p_lease_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_claim(p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_capabilities text[], p_limit integer, p_lease_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION _check_cursor(p_partition_key smallint, p_cursor text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_cursor(p_partition_key smallint, p_cursor text) FROM PUBLIC;


--
-- Name: FUNCTION _check_grant(p_execution_id uuid, p_key bytea, p_grant_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_grant(p_execution_id uuid, p_key bytea, p_grant_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION _check_lane(p_route_id bigint, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_lane(p_route_id bigint, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _check_limit(p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_limit(p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION _check_new_lease(p_partition_key smallint, p_execution_id uuid, p_claim_id uuid, p_used_ids uuid[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_new_lease(p_partition_key smallint, p_execution_id uuid, p_claim_id uuid, p_used_ids uuid[]) FROM PUBLIC;


--
-- Name: FUNCTION _check_words(p_actor text, p_reason text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_words(p_actor text, p_reason text) FROM PUBLIC;


--
-- Name: FUNCTION _check_worker(p_namespace text, p_worker_id text, p_worker_instance_id text, p_lanes text[], p_tasks text[], p_capabilities text[], p_liveness_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._check_worker(p_namespace text, p_worker_id text, p_worker_instance_id text, p_lanes text[], p_tasks text[], p_capabilities text[], p_liveness_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION _claimed(p_partition_key smallint, p_execution_ids uuid[], p_claim_id uuid); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._claimed(p_partition_key smallint, p_execution_ids uuid[], p_claim_id uuid) FROM PUBLIC;


--
-- Name: FUNCTION _drop_granted(p_partition_key smallint, p_execution_ids uuid[], p_worker_id text, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._drop_granted(p_partition_key smallint, p_execution_ids uuid[], p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _end_executions(p_partition_key smallint, p_execution_ids uuid[], p_outcome ff.outcome, p_cause ff.cause, p_kind ff.event_kind, p_lease_end ff.lease_end, p_ended_as ff.attempt_lifecycle, p_now timestamp with time zone, p_class ff.failure_class, p_category text, p_reason text, p_cancelled_by text, p_actor text, p_detail jsonb, p_wake boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._end_executions(p_partition_key smallint, p_execution_ids uuid[], p_outcome ff.outcome, p_cause ff.cause, p_kind ff.event_kind, p_lease_end ff.lease_end, p_ended_as ff.attempt_lifecycle, p_now timestamp with time zone, p_class ff.failure_class, p_category text, p_reason text, p_cancelled_by text, p_actor text, p_detail jsonb, p_wake boolean) FROM PUBLIC;


--
-- Name: FUNCTION _exceed_reclaims(p_partition_key smallint, p_execution_ids uuid[], p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._exceed_reclaims(p_partition_key smallint, p_execution_ids uuid[], p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _expire_leases(p_partition_key smallint, p_execution_ids uuid[], p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._expire_leases(p_partition_key smallint, p_execution_ids uuid[], p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _first_id_of(p_at timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._first_id_of(p_at timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _forget_steps(p_partition_key smallint, p_execution_id uuid, p_from_step text, p_from_occurrence integer, p_fresh boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._forget_steps(p_partition_key smallint, p_execution_id uuid, p_from_step text, p_from_occurrence integer, p_fresh boolean) FROM PUBLIC;


--
-- Name: FUNCTION _hint_lost(p_partition_key smallint, p_execution_ids uuid[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._hint_lost(p_partition_key smallint, p_execution_ids uuid[]) FROM PUBLIC;


--
-- Name: FUNCTION _hint_ready(p_partition_key smallint, p_routes bigint[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._hint_ready(p_partition_key smallint, p_routes bigint[]) FROM PUBLIC;


--
-- Name: FUNCTION _interrupt_executions(p_partition_key smallint, p_execution_ids uuid[], p_cause ff.cause, p_eligibility ff.eligibility, p_blocking_reason ff.blocking_reason, p_lease_end ff.lease_end, p_kind ff.event_kind, p_pause_cause text, p_now timestamp with time zone, p_until_at timestamp with time zone, p_blocking_detail text, p_detail jsonb, p_wait_left integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._interrupt_executions(p_partition_key smallint, p_execution_ids uuid[], p_cause ff.cause, p_eligibility ff.eligibility, p_blocking_reason ff.blocking_reason, p_lease_end ff.lease_end, p_kind ff.event_kind, p_pause_cause text, p_now timestamp with time zone, p_until_at timestamp with time zone, p_blocking_detail text, p_detail jsonb, p_wait_left integer) FROM PUBLIC;


--
-- Name: FUNCTION _is_count(p_value jsonb); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._is_count(p_value jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _is_milliseconds(p_value jsonb, p_least numeric); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._is_milliseconds(p_value jsonb, p_least numeric) FROM PUBLIC;


--
-- Name: FUNCTION _item_problem(p_item jsonb); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._item_problem(p_item jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _judge_leases(p_partition_key smallint, p_namespace text, p_end ff.lease_end, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_wait boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._judge_leases(p_partition_key smallint, p_namespace text, p_end ff.lease_end, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_wait boolean) FROM PUBLIC;


--
-- Name: FUNCTION _judge_reclaim(p_partition_key smallint, p_row ff.execution, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._judge_reclaim(p_partition_key smallint, p_row ff.execution, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _judge_submits(p_namespace text, p_execution_ids uuid[], p_route_ids bigint[], p_closed_routes bigint[], p_payloads bytea[], p_payload_encodings text[], p_delays interval[], p_delayed_untils timestamp with time zone[], p_deadlines interval[], p_deadline_ats timestamp with time zone[], p_policies text[], p_max_reclaims integer[], p_tags text[], p_creators text[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[], p_parent_ids uuid[], p_with_parents boolean[], p_trace_contexts text[], p_task_versions text[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._judge_submits(p_namespace text, p_execution_ids uuid[], p_route_ids bigint[], p_closed_routes bigint[], p_payloads bytea[], p_payload_encodings text[], p_delays interval[], p_delayed_untils timestamp with time zone[], p_deadlines interval[], p_deadline_ats timestamp with time zone[], p_policies text[], p_max_reclaims integer[], p_tags text[], p_creators text[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[], p_parent_ids uuid[], p_with_parents boolean[], p_trace_contexts text[], p_task_versions text[]) FROM PUBLIC;


--
-- Name: FUNCTION _lease_executions(p_partition_key smallint, p_execution_ids uuid[], p_has_past boolean, p_claim_id uuid, p_worker_id text, p_worker_instance_id text, p_lease_ttl interval, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._lease_executions(p_partition_key smallint, p_execution_ids uuid[], p_has_past boolean, p_claim_id uuid, p_worker_id text, p_worker_instance_id text, p_lease_ttl interval, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _lock_candidate(p_partition_key smallint, p_execution_id uuid); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._lock_candidate(p_partition_key smallint, p_execution_id uuid) FROM PUBLIC;


--
-- Name: FUNCTION _lock_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._lock_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid) FROM PUBLIC;


--
-- Name: FUNCTION _lock_executions(p_partition_key smallint, p_execution_ids uuid[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._lock_executions(p_partition_key smallint, p_execution_ids uuid[]) FROM PUBLIC;


--
-- Name: FUNCTION _make_eligible(p_partition_key smallint, p_execution_id uuid, p_cause ff.cause, p_kind ff.event_kind, p_now timestamp with time zone, p_actor text, p_detail jsonb); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._make_eligible(p_partition_key smallint, p_execution_id uuid, p_cause ff.cause, p_kind ff.event_kind, p_now timestamp with time zone, p_actor text, p_detail jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _missing_capabilities(p_route_id bigint, p_capabilities text[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._missing_capabilities(p_route_id bigint, p_capabilities text[]) FROM PUBLIC;


--
-- Name: FUNCTION _pick_candidates(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_need integer, p_worker_id text, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._pick_candidates(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_need integer, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _pick_singly(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_need integer, p_most_vain integer, p_worker_id text, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._pick_singly(p_partition_key smallint, p_routes bigint[], p_turns smallint[], p_reclaiming boolean, p_from_rank smallint, p_from_turn smallint, p_from_at timestamp with time zone, p_from_id uuid, p_window integer, p_need integer, p_most_vain integer, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _policy_problem(p_policy text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._policy_problem(p_policy text) FROM PUBLIC;


--
-- Name: FUNCTION _refuse(p_code text, p_name text, p_detail jsonb); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._refuse(p_code text, p_name text, p_detail jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _replay_execution(p_partition_key smallint, p_row ff.execution, p_reason text, p_actor text, p_detail jsonb); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._replay_execution(p_partition_key smallint, p_row ff.execution, p_reason text, p_actor text, p_detail jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _require_primary(); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._require_primary() FROM PUBLIC;


--
-- Name: FUNCTION _retry_wait(p_policy jsonb, p_retry_count integer, p_class text, p_category text, p_chance double precision); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._retry_wait(p_policy jsonb, p_retry_count integer, p_class text, p_category text, p_chance double precision) FROM PUBLIC;


--
-- Name: FUNCTION _scan_executions(p_partition_key smallint, p_namespace text, p_states text[], p_lanes text[], p_tasks text[], p_tags text, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_ended_after timestamp with time zone, p_worker_instance_id text, p_cursor text, p_take integer, p_look_at integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._scan_executions(p_partition_key smallint, p_namespace text, p_states text[], p_lanes text[], p_tasks text[], p_tags text, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_ended_after timestamp with time zone, p_worker_instance_id text, p_cursor text, p_take integer, p_look_at integer) FROM PUBLIC;


--
-- Name: FUNCTION _submit_firings(p_partition_key smallint, p_schedule ff.schedule, p_fire_ats timestamp with time zone[], p_execution_ids uuid[], p_creator text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._submit_firings(p_partition_key smallint, p_schedule ff.schedule, p_fire_ats timestamp with time zone[], p_execution_ids uuid[], p_creator text) FROM PUBLIC;


--
-- Name: FUNCTION _tags_problem(p_tags text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._tags_problem(p_tags text) FROM PUBLIC;


--
-- Name: FUNCTION _take_keys(p_partition_key smallint, p_namespace text, p_skip integer[], p_execution_ids uuid[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._take_keys(p_partition_key smallint, p_namespace text, p_skip integer[], p_execution_ids uuid[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[]) FROM PUBLIC;


--
-- Name: FUNCTION _take_parents(p_partition_key smallint, p_namespace text, p_skip integer[], p_execution_ids uuid[], p_parent_ids uuid[], p_with_parents boolean[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._take_parents(p_partition_key smallint, p_namespace text, p_skip integer[], p_execution_ids uuid[], p_parent_ids uuid[], p_with_parents boolean[]) FROM PUBLIC;


--
-- Name: FUNCTION _trim_executions(p_partition_key smallint, p_execution_ids uuid[], p_event_floor interval, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._trim_executions(p_partition_key smallint, p_execution_ids uuid[], p_event_floor interval, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _trimmed_to(p_partition_key smallint, p_xid xid8); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._trimmed_to(p_partition_key smallint, p_xid xid8) FROM PUBLIC;


--
-- Name: FUNCTION _use_grant(p_partition_key smallint, p_execution_id uuid, p_kind ff.grant_kind, p_key bytea, p_worker_id text, p_now timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._use_grant(p_partition_key smallint, p_execution_id uuid, p_kind ff.grant_kind, p_key bytea, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _wake_runs(p_partition_key smallint, p_ended_ids uuid[], p_now timestamp with time zone, p_limit integer, OUT told integer, OUT pending_ids uuid[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._wake_runs(p_partition_key smallint, p_ended_ids uuid[], p_now timestamp with time zone, p_limit integer, OUT told integer, OUT pending_ids uuid[]) FROM PUBLIC;


--
-- Name: FUNCTION _walk_ended(p_partition_key smallint, p_position uuid, p_limit integer, p_retention interval, p_now timestamp with time zone, OUT doomed uuid[], OUT next_id uuid); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._walk_ended(p_partition_key smallint, p_position uuid, p_limit integer, p_retention interval, p_now timestamp with time zone, OUT doomed uuid[], OUT next_id uuid) FROM PUBLIC;


--
-- Name: FUNCTION _write_cursor(p_partition_key smallint, p_last_xid xid8, p_snapshot pg_snapshot, p_anchor_id bigint, p_anchor_at timestamp with time zone, p_anchor_of uuid, p_trimmed text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._write_cursor(p_partition_key smallint, p_last_xid xid8, p_snapshot pg_snapshot, p_anchor_id bigint, p_anchor_at timestamp with time zone, p_anchor_of uuid, p_trimmed text) FROM PUBLIC;


--
-- Name: FUNCTION _write_grant(p_partition_key smallint, p_execution_id uuid, p_kind ff.grant_kind, p_key bytea, p_worker_id text, p_worker_instance_id text, p_now timestamp with time zone, p_grant_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff._write_grant(p_partition_key smallint, p_execution_id uuid, p_kind ff.grant_kind, p_key bytea, p_worker_id text, p_worker_instance_id text, p_now timestamp with time zone, p_grant_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION block_execution_for_admission(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_blocking_reason text, p_detail text, p_actor text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.block_execution_for_admission(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_blocking_reason text, p_detail text, p_actor text) FROM PUBLIC;


--
-- Name: FUNCTION cancel_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text, p_source text, p_actor text, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_if_version integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.cancel_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text, p_source text, p_actor text, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_if_version integer) FROM PUBLIC;


--
-- Name: FUNCTION change_priority(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_priority integer, p_reason text, p_actor text, p_if_version integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.change_priority(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_priority integer, p_reason text, p_actor text, p_if_version integer) FROM PUBLIC;


--
-- Name: FUNCTION claim_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval, p_expected_attempt_index integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.claim_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval, p_expected_attempt_index integer) FROM PUBLIC;


--
-- Name: FUNCTION claim_executions(p_partition_key smallint, p_namespace text, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lanes text[], p_tasks text[], p_capabilities text[], p_limit integer, p_lease_ttl interval, p_first_lane text, p_floor_rank smallint, p_floor_at timestamp with time zone, p_floor_id uuid); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.claim_executions(p_partition_key smallint, p_namespace text, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lanes text[], p_tasks text[], p_capabilities text[], p_limit integer, p_lease_ttl interval, p_first_lane text, p_floor_rank smallint, p_floor_at timestamp with time zone, p_floor_id uuid) FROM PUBLIC;


--
-- Name: FUNCTION claim_resumed_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval, p_expected_attempt_index integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.claim_resumed_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval, p_expected_attempt_index integer) FROM PUBLIC;


--
-- Name: FUNCTION complete_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_results bytea[], p_result_encodings text[], p_wait boolean, p_hint boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.complete_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_results bytea[], p_result_encodings text[], p_wait boolean, p_hint boolean) FROM PUBLIC;


--
-- Name: FUNCTION count_executions(p_partition_key smallint, p_namespace text, p_states text[], p_lanes text[], p_tasks text[], p_tags text, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_ended_after timestamp with time zone, p_worker_instance_id text, p_cursor text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.count_executions(p_partition_key smallint, p_namespace text, p_states text[], p_lanes text[], p_tasks text[], p_tags text, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_ended_after timestamp with time zone, p_worker_instance_id text, p_cursor text) FROM PUBLIC;


--
-- Name: FUNCTION declare_schedules(p_namespace text, p_app text, p_version integer[], p_generation bigint, p_names text[], p_schedule_ids uuid[], p_route_ids bigint[], p_crons text[], p_everys interval[], p_time_zones text[], p_anchor_ats timestamp with time zone[], p_are_anchored boolean[], p_misfires text[], p_next_ats timestamp with time zone[], p_payloads bytea[], p_payload_encodings text[], p_priorities integer[], p_deadlines interval[], p_max_reclaims integer[], p_policies text[], p_tags text[], p_task_versions text[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.declare_schedules(p_namespace text, p_app text, p_version integer[], p_generation bigint, p_names text[], p_schedule_ids uuid[], p_route_ids bigint[], p_crons text[], p_everys interval[], p_time_zones text[], p_anchor_ats timestamp with time zone[], p_are_anchored boolean[], p_misfires text[], p_next_ats timestamp with time zone[], p_payloads bytea[], p_payload_encodings text[], p_priorities integer[], p_deadlines interval[], p_max_reclaims integer[], p_policies text[], p_tags text[], p_task_versions text[]) FROM PUBLIC;


--
-- Name: FUNCTION delay_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_delay interval, p_delayed_until timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.delay_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_delay interval, p_delayed_until timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION due_schedules(p_namespace text, p_app text, p_names text[], p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.due_schedules(p_namespace text, p_app text, p_names text[], p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION expire_executions(p_partition_key smallint, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.expire_executions(p_partition_key smallint, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION expire_leases(p_partition_key smallint, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.expire_leases(p_partition_key smallint, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION expire_worker_leases(p_partition_key smallint, p_namespace text, p_worker_instance_id text, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.expire_worker_leases(p_partition_key smallint, p_namespace text, p_worker_instance_id text, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION explain_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.explain_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid) FROM PUBLIC;


--
-- Name: FUNCTION fail_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_classes text[], p_reasons text[], p_categories text[], p_details bytea[], p_wait boolean, p_hint boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.fail_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_classes text[], p_reasons text[], p_categories text[], p_details bytea[], p_wait boolean, p_hint boolean) FROM PUBLIC;


--
-- Name: FUNCTION fire_schedule(p_partition_key smallint, p_namespace text, p_app text, p_name text, p_call_id uuid, p_rule_no integer, p_expected_next_at timestamp with time zone, p_fire_ats timestamp with time zone[], p_next_at timestamp with time zone, p_execution_ids uuid[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.fire_schedule(p_partition_key smallint, p_namespace text, p_app text, p_name text, p_call_id uuid, p_rule_no integer, p_expected_next_at timestamp with time zone, p_fire_ats timestamp with time zone[], p_next_at timestamp with time zone, p_execution_ids uuid[]) FROM PUBLIC;


--
-- Name: FUNCTION forget_schedule(p_namespace text, p_app text, p_name text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.forget_schedule(p_namespace text, p_app text, p_name text) FROM PUBLIC;


--
-- Name: FUNCTION heartbeat_workers(p_namespaces text[], p_worker_instance_ids text[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.heartbeat_workers(p_namespaces text[], p_worker_instance_ids text[]) FROM PUBLIC;


--
-- Name: FUNCTION hold_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_reason text, p_step text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.hold_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_reason text, p_step text) FROM PUBLIC;


--
-- Name: FUNCTION issue_claim_grant(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_capabilities text[], p_grant_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.issue_claim_grant(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_capabilities text[], p_grant_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION issue_grant_and_claim(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_claim_id uuid, p_lease_ttl interval, p_worker_id text, p_worker_instance_id text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.issue_grant_and_claim(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_claim_id uuid, p_lease_ttl interval, p_worker_id text, p_worker_instance_id text) FROM PUBLIC;


--
-- Name: FUNCTION issue_reclaim_grant(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_capabilities text[], p_grant_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.issue_reclaim_grant(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_capabilities text[], p_grant_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION list_execution_ids(p_partition_key smallint, p_namespace text, p_after uuid, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.list_execution_ids(p_partition_key smallint, p_namespace text, p_after uuid, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION list_executions(p_partition_key smallint, p_namespace text, p_states text[], p_lanes text[], p_tasks text[], p_tags text, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_ended_after timestamp with time zone, p_worker_instance_id text, p_cursor text, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.list_executions(p_partition_key smallint, p_namespace text, p_states text[], p_lanes text[], p_tasks text[], p_tags text, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_ended_after timestamp with time zone, p_worker_instance_id text, p_cursor text, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION list_expired_leases(p_partition_key smallint, p_namespace text, p_as_of timestamp with time zone, p_after_at timestamp with time zone, p_after_id uuid, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.list_expired_leases(p_partition_key smallint, p_namespace text, p_as_of timestamp with time zone, p_after_at timestamp with time zone, p_after_id uuid, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION list_steps(p_partition_key smallint, p_namespace text, p_execution_ids uuid[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.list_steps(p_partition_key smallint, p_namespace text, p_execution_ids uuid[]) FROM PUBLIC;


--
-- Name: FUNCTION list_workers(p_namespace text, p_after_namespace text, p_after_instance_id text, p_limit integer, p_with_dead boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.list_workers(p_namespace text, p_after_namespace text, p_after_instance_id text, p_limit integer, p_with_dead boolean) FROM PUBLIC;


--
-- Name: FUNCTION mark_worker_dead(p_namespace text, p_worker_instance_id text, p_reason text, p_actor text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.mark_worker_dead(p_namespace text, p_worker_instance_id text, p_reason text, p_actor text) FROM PUBLIC;


--
-- Name: FUNCTION now(); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.now() FROM PUBLIC;


--
-- Name: FUNCTION open_cursor(p_partition_key smallint, p_since timestamp with time zone); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.open_cursor(p_partition_key smallint, p_since timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION promote_delayed(p_partition_key smallint, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.promote_delayed(p_partition_key smallint, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION read_events(p_partition_key smallint, p_namespace text, p_cursor text, p_limit integer, p_kinds text[], p_lanes text[], p_tasks text[], p_execution_ids uuid[], p_instance_tags text[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.read_events(p_partition_key smallint, p_namespace text, p_cursor text, p_limit integer, p_kinds text[], p_lanes text[], p_tasks text[], p_execution_ids uuid[], p_instance_tags text[]) FROM PUBLIC;


--
-- Name: FUNCTION read_results(p_partition_key smallint, p_namespace text, p_execution_ids uuid[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.read_results(p_partition_key smallint, p_namespace text, p_execution_ids uuid[]) FROM PUBLIC;


--
-- Name: FUNCTION read_traffic(p_partition_key smallint, p_namespace text, p_window interval, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.read_traffic(p_partition_key smallint, p_namespace text, p_window interval, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION reap_grants(p_partition_key smallint, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.reap_grants(p_partition_key smallint, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION reclaim_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.reclaim_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_key bytea, p_worker_id text, p_worker_instance_id text, p_claim_id uuid, p_lease_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION record_steps(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_names text[], p_occurrences integer[], p_positions integer[], p_sequentials boolean[], p_kinds text[], p_values bytea[], p_encodings text[], p_delays interval[], p_untils timestamp with time zone[], p_wait boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.record_steps(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_names text[], p_occurrences integer[], p_positions integer[], p_sequentials boolean[], p_kinds text[], p_values bytea[], p_encodings text[], p_delays interval[], p_untils timestamp with time zone[], p_wait boolean) FROM PUBLIC;


--
-- Name: FUNCTION register_routes(p_namespaces text[], p_lanes text[], p_tasks text[], p_capabilities text[], p_registered_by text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.register_routes(p_namespaces text[], p_lanes text[], p_tasks text[], p_capabilities text[], p_registered_by text) FROM PUBLIC;


--
-- Name: FUNCTION register_worker(p_namespace text, p_worker_id text, p_worker_instance_id text, p_lanes text[], p_tasks text[], p_capabilities text[], p_liveness_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.register_worker(p_namespace text, p_worker_id text, p_worker_instance_id text, p_lanes text[], p_tasks text[], p_capabilities text[], p_liveness_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION release_leases(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_cause text, p_wait boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.release_leases(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_cause text, p_wait boolean) FROM PUBLIC;


--
-- Name: FUNCTION renew_leases(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_lease_ttl interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.renew_leases(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_lease_ids uuid[], p_epochs bigint[], p_attempt_ids uuid[], p_lease_ttl interval) FROM PUBLIC;


--
-- Name: FUNCTION replay_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text, p_actor text, p_from_step text, p_from_occurrence integer, p_fresh boolean, p_if_version integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.replay_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text, p_actor text, p_from_step text, p_from_occurrence integer, p_fresh boolean, p_if_version integer) FROM PUBLIC;


--
-- Name: FUNCTION report_progress(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_percent integer, p_message text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.report_progress(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_percent integer, p_message text) FROM PUBLIC;


--
-- Name: FUNCTION resolve_wakes(p_partition_key smallint, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.resolve_wakes(p_partition_key smallint, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION retry_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text, p_actor text, p_if_version integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.retry_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_reason text, p_actor text, p_if_version integer) FROM PUBLIC;


--
-- Name: FUNCTION revoke_lease(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_expected_lease_id uuid, p_worker_instance_id text, p_reason text, p_actor text, p_if_version integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.revoke_lease(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_expected_lease_id uuid, p_worker_instance_id text, p_reason text, p_actor text, p_if_version integer) FROM PUBLIC;


--
-- Name: FUNCTION run_schedule(p_partition_key smallint, p_namespace text, p_app text, p_name text, p_execution_id uuid, p_actor text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.run_schedule(p_partition_key smallint, p_namespace text, p_app text, p_name text, p_execution_id uuid, p_actor text) FROM PUBLIC;


--
-- Name: FUNCTION server_time(); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.server_time() FROM PUBLIC;


--
-- Name: FUNCTION set_lane(p_lane text, p_state text, p_resumes_at timestamp with time zone, p_retention interval, p_clear_retention boolean, p_reason text, p_actor text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.set_lane(p_lane text, p_state text, p_resumes_at timestamp with time zone, p_retention interval, p_clear_retention boolean, p_reason text, p_actor text) FROM PUBLIC;


--
-- Name: FUNCTION set_schedule(p_namespace text, p_app text, p_name text, p_is_paused boolean, p_next_at timestamp with time zone, p_rule_no integer, p_reason text, p_actor text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.set_schedule(p_namespace text, p_app text, p_name text, p_is_paused boolean, p_next_at timestamp with time zone, p_rule_no integer, p_reason text, p_actor text) FROM PUBLIC;


--
-- Name: FUNCTION set_tags(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_tags text, p_wait boolean); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.set_tags(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_tags text, p_wait boolean) FROM PUBLIC;


--
-- Name: FUNCTION submit_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_route_ids bigint[], p_payloads bytea[], p_priorities integer[], p_payload_encodings text[], p_delays interval[], p_delayed_untils timestamp with time zone[], p_deadlines interval[], p_deadline_ats timestamp with time zone[], p_policies text[], p_max_reclaims integer[], p_tags text[], p_creators text[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[], p_hint boolean, p_parent_ids uuid[], p_with_parents boolean[], p_trace_contexts text[], p_task_versions text[]); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.submit_executions(p_partition_key smallint, p_namespace text, p_execution_ids uuid[], p_route_ids bigint[], p_payloads bytea[], p_priorities integer[], p_payload_encodings text[], p_delays interval[], p_delayed_untils timestamp with time zone[], p_deadlines interval[], p_deadline_ats timestamp with time zone[], p_policies text[], p_max_reclaims integer[], p_tags text[], p_creators text[], p_keys text[], p_key_fingerprints bytea[], p_key_scopes text[], p_key_windows interval[], p_hint boolean, p_parent_ids uuid[], p_with_parents boolean[], p_trace_contexts text[], p_task_versions text[]) FROM PUBLIC;


--
-- Name: FUNCTION submit_json(p_partition_key smallint, p_namespace text, p_items jsonb, p_database text); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.submit_json(p_partition_key smallint, p_namespace text, p_items jsonb, p_database text) FROM PUBLIC;


--
-- Name: FUNCTION sweep_workers(p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.sweep_workers(p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION trim_events(p_partition_key smallint, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.trim_events(p_partition_key smallint, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION trim_keys(p_partition_key smallint, p_limit integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.trim_keys(p_partition_key smallint, p_limit integer) FROM PUBLIC;


--
-- Name: FUNCTION trim_retention(p_partition_key smallint, p_limit integer, p_retention interval, p_event_floor interval); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.trim_retention(p_partition_key smallint, p_limit integer, p_retention interval, p_event_floor interval) FROM PUBLIC;


--
-- Name: FUNCTION unblock_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_expected_reason text, p_reason text, p_actor text, p_if_version integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.unblock_execution(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_expected_reason text, p_reason text, p_actor text, p_if_version integer) FROM PUBLIC;


--
-- Name: FUNCTION wait_children(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.wait_children(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid) FROM PUBLIC;


--
-- Name: FUNCTION wait_for_runs(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_targets uuid[], p_k integer); Type: ACL; Schema: ff; Owner: -
--

REVOKE ALL ON FUNCTION ff.wait_for_runs(p_partition_key smallint, p_namespace text, p_execution_id uuid, p_lease_id uuid, p_epoch bigint, p_attempt_id uuid, p_targets uuid[], p_k integer) FROM PUBLIC;


--
-- PostgreSQL database dump complete
--


