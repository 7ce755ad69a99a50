-- List the open waitpoints of an execution in order of their ids, without their tokens.
--
-- The state of an open waitpoint is `pending` before a wait for it was opened, and `active` after
-- that. Waitpoints of both states are listed. If the execution has ended, no waitpoint is listed.
-- p_after is the id of the last row of the previous page.
--
-- required_signal_names are the names of the signals that the waitpoint takes. For an approval they
-- are `approved` and `rejected`. For any other waitpoint, the open waits decide which names. The
-- list is empty if the waitpoint takes every name.
--
-- token_fingerprint is the beginning of the digest in the token. People can use it to tell tokens
-- apart without seeing them. token_fingerprint is null if the key that signs the token no longer
-- exists.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF301 not_found
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_pending_waitpoints;
create function ff.list_pending_waitpoints(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_after         uuid default null,
  p_limit         integer default 100
)
returns table (
  waitpoint_id          uuid,
  key                   text,
  state                 text,
  kid                   text,
  created_at            timestamptz,
  activated_at          timestamptz,
  expires_at            timestamptz,
  signal_count          bigint,
  required_signal_names text[],
  token_fingerprint     text
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_phase      ff.phase;
  v_conditions jsonb;
  v_row        record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  select e.phase into v_phase from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  if not found then
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  select jsonb_agg(s.condition order by s.position, s.name) into v_conditions
  from ff.step s
  where s.partition_key = p_partition_key and s.execution_id = p_execution_id
    and s.kind = 'wait' and s.taken_as is null and s.opened_at is not null;
  for v_row in
    select w.waitpoint_id, w.key, w.kid, w.created_at, w.activated_at, w.expires_at,
           w.approval_id, c.number
    from ff.waitpoint w
    cross join lateral (
      select count(*) as number from ff.signal g
      where g.partition_key = p_partition_key and g.execution_id = p_execution_id
        and g.waitpoint_id = w.waitpoint_id
      offset 0) c
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.closed_at is null and v_phase <> 'terminal'
      and (p_after is null or w.waitpoint_id > p_after)
    order by w.waitpoint_id
    limit p_limit
  loop
    waitpoint_id := v_row.waitpoint_id;
    key := v_row.key;
    state := case when v_row.activated_at is null then 'pending' else 'active' end;
    kid := v_row.kid;
    created_at := v_row.created_at;
    activated_at := v_row.activated_at;
    expires_at := v_row.expires_at;
    signal_count := v_row.number;
    required_signal_names := case
      when v_row.approval_id is not null then array['approved', 'rejected']
      else ff._required_names(v_conditions, v_row.waitpoint_id) end;
    token_fingerprint := ff._token_fingerprint(ff._sign_waitpoint(
      v_row.kid, p_partition_key, p_execution_id, v_row.waitpoint_id));
    return next;
  end loop;
end;
$$;
