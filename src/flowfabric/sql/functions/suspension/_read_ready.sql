-- Return the first of the given waits that lets an execution continue, or null if there is none. A
-- wait lets the execution continue if its answer was taken, if signals satisfy it, or if it has
-- timed out at p_now. The result names the wait, and `by` says what ended it. The caller has locked
-- the execution, and has noticed its signals in an earlier statement.
drop function if exists ff._read_ready;
create function ff._read_ready(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_names         text[],
  p_occurrences   integer[],
  p_now           timestamptz
)
returns jsonb
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_wait   record;
  v_signal record;
begin
  for v_wait in
    select s.name, s.occurrence, s.condition, s.taken_as, s.until_at
    from unnest(p_names, p_occurrences) u(name, occurrence)
    cross join lateral (
      select x.name, x.occurrence, x.condition, x.taken_as, x.until_at from ff.step x
      where x.partition_key = p_partition_key and x.execution_id = p_execution_id
        and x.name = u.name and x.occurrence = u.occurrence
      offset 0) s
  loop
    if v_wait.taken_as is not null then
      return jsonb_build_object('by', v_wait.taken_as, 'wait', v_wait.name,
                                'occurrence', v_wait.occurrence);
    end if;
    v_signal := ff._read_matching_signals(p_partition_key, p_execution_id, v_wait.condition);
    if v_signal.signal_ids is not null then
      return jsonb_build_object('by', 'signals', 'wait', v_wait.name,
                                'occurrence', v_wait.occurrence,
                                'signal_ids', v_signal.signal_ids);
    end if;
    if v_wait.until_at <= p_now then
      return jsonb_build_object('by', 'timeout', 'wait', v_wait.name,
                                'occurrence', v_wait.occurrence);
    end if;
  end loop;
  return null;
end;
$$;
