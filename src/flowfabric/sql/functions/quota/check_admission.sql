-- Take a slot of a quota for work outside an execution, if there is room.
--
-- The slot counts like a running execution until ff.release_admission is called, or until p_ttl is
-- over. The call also counts as a start. p_ticket_id is an id that the caller makes for its ticket.
--
-- The outcomes are: admitted · already_admitted (an earlier call with this p_ticket_id took a slot,
-- which is neither released nor expired) · rate_exceeded (retry_at says when there is room again)
-- · concurrency_exceeded. If both limits are reached, the outcome is rate_exceeded. A refused call
-- takes nothing.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF306 quota_not_found (also if a quota with keys gets no key, or
--           a quota without keys gets one) · WF402 route_collision (another gate has the same id)
-- Locks:    the quota, only if its gate does not exist yet; then the gate; waits up to 2 s for each
-- Repeat:   `already_admitted` while the caller has the slot; a refused call is judged again
-- Rights:   app
drop function if exists ff.check_admission;
create function ff.check_admission(
  p_partition_key smallint,
  p_namespace     text,
  p_quota         text,
  p_key           text,
  p_ticket_id     uuid,
  p_ttl           interval default interval '1 minute'
)
returns table (outcome text, expires_at timestamptz, retry_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_id      bigint;
  v_now     timestamptz;
  v_gate    ff.gate;
  v_over    integer;
  v_kept    integer;
  v_problem text[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_partition(p_partition_key);
  v_problem := ff._gate_name_problem('quota', p_namespace, p_quota, p_key);
  if v_problem is null and ff._is_nil_id(p_ticket_id) then
    v_problem := array['ticket_id', 'must be a uuid other than the nil uuid'];
  elsif v_problem is null
     and ff._is_within(p_ttl, interval '1 second', interval '1 day') is not true then
    v_problem := array['ttl', 'must be from a second to a day'];
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_id := ff._hash_gate(false, p_namespace, p_quota, coalesce(p_key, ''));
  if not exists (
       select from ff.quota q
       where q.namespace = p_namespace and q.quota = p_quota
         and q.is_keyed = (coalesce(p_key, '') <> '')) then
    perform ff._refuse('WF306', 'quota_not_found', jsonb_build_object('quota', p_quota));
  end if;
  perform ff._make_gate(p_partition_key, v_id, p_namespace, p_quota, coalesce(p_key, ''));
  perform ff._lock_gates(p_partition_key, array[v_id], true);
  v_now := ff.now();
  select k.expires_at into expires_at from ff.gate_ticket k
  where k.partition_key = p_partition_key and k.gate_id = v_id and k.ticket_id = p_ticket_id
    and k.expires_at > v_now;
  if found then
    outcome := 'already_admitted';
    return next;
    return;
  end if;
  with given_back as (
    delete from ff.gate_release r
    where r.partition_key = p_partition_key and r.gate_id = v_id
    returning r.slots
  ),
  over as (
    delete from ff.gate_ticket k
    where k.partition_key = p_partition_key and k.gate_id = v_id and k.expires_at <= v_now
    returning 1
  )
  select coalesce((select sum(b.slots) from given_back b), 0) + (select count(*) from over)
    into v_over;
  update ff.gate g set running = g.running - v_over
  where g.partition_key = p_partition_key and g.gate_id = v_id
  returning g.* into v_gate;
  v_kept := (v_gate.reserved_for is not null)::integer;
  if (v_gate.rate - (v_gate.start_for is not null)::integer > (
       select case when count(s.n) = 62 then sum(s.n) end from unnest(ff._roll_slices(
         v_gate.slices, v_gate.slice_base,
         ff._newest_slice(v_gate.slice_base, v_gate.rate_window, v_now))) s(n)))
     is not true and v_gate.rate is not null then
    perform ff._count_starts(p_partition_key, v_id, 0, v_now);
    outcome := 'rate_exceeded';
    select g.opens_at into retry_at from ff.gate g
    where g.partition_key = p_partition_key and g.gate_id = v_id;
  elsif v_gate.max_running <= v_gate.running + v_kept then
    outcome := 'concurrency_exceeded';
  else
    outcome := 'admitted';
    expires_at := v_now + p_ttl;
    insert into ff.gate_ticket (partition_key, gate_id, ticket_id, taken_at, expires_at)
    values (p_partition_key, v_id, p_ticket_id, v_now, expires_at);
    update ff.gate g set running = g.running + 1
    where g.partition_key = p_partition_key and g.gate_id = v_id
    returning g.* into v_gate;
    if v_gate.rate is not null then
      perform ff._count_starts(p_partition_key, v_id, 1, v_now);
    end if;
  end if;
  -- Another partition may still have an unused share: mark the gate, so that shares are balanced.
  if outcome like '%_exceeded' and ff._count_partitions() > 1 then
    update ff.gate g set wanted_at = v_now
    where g.partition_key = p_partition_key and g.gate_id = v_id;
  end if;
  -- The releases that were counted here may have made room for executions in line.
  perform ff._write_lines(p_partition_key, array[v_id], '{}', v_now);
  return next;
end;
$$;
