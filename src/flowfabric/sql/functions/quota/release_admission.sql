-- Give back a slot that ff.check_admission took. If p_is_unused is true, the start of that call no
-- longer counts. If the caller has no such slot, nothing happens, and the outcome is still
-- `released`.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the gate, only if p_is_unused is true; then the ticket; waits up to 2 s for each
-- Repeat:   `released` again; nothing is given back twice
-- Rights:   app
drop function if exists ff.release_admission;
create function ff.release_admission(
  p_partition_key smallint,
  p_namespace     text,
  p_quota         text,
  p_key           text,
  p_ticket_id     uuid,
  p_is_unused     boolean default false
)
returns table (outcome text)
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
  v_id       bigint;
  v_gate     ff.gate;
  v_taken_at timestamptz;
  v_slice    bigint;
  v_problem  text[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_partition(p_partition_key);
  v_problem := ff._gate_name_problem('quota', p_namespace, p_quota, p_key);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_id := ff._hash_gate(false, p_namespace, p_quota, coalesce(p_key, ''));
  if p_is_unused then
    perform ff._lock_gates(p_partition_key, array[v_id], true);
  end if;
  delete from ff.gate_ticket k
  where k.partition_key = p_partition_key and k.gate_id = v_id and k.ticket_id = p_ticket_id
  returning k.taken_at into v_taken_at;
  if found then
    insert into ff.gate_release (partition_key, gate_id, slots) values (p_partition_key, v_id, 1);
    select g.* into v_gate from ff.gate g
    where g.partition_key = p_partition_key and g.gate_id = v_id;
    if p_is_unused and v_gate.slices is not null then
      v_slice := floor(extract(epoch from v_taken_at) * 60
                       / extract(epoch from v_gate.rate_window));
      -- A start that has left the window is no longer counted: its element of the array now counts
      -- a later slice.
      if v_slice > v_gate.slice_base - 62 and v_slice <= v_gate.slice_base
         and v_gate.slices[(v_slice % 62)::integer + 1] > 0 then
        v_gate.slices[(v_slice % 62)::integer + 1] :=
          v_gate.slices[(v_slice % 62)::integer + 1] - 1;
        update ff.gate g set slices = v_gate.slices, opens_at = null
        where g.partition_key = p_partition_key and g.gate_id = v_id;
      end if;
    end if;
  end if;
  outcome := 'released';
  return next;
end;
$$;
