-- Return those of the given trimmed executions that have events which a subscription still needs: it
-- has not acknowledged them, and its time to keep them is not over. The time is counted from the
-- instant at which the events were first due. A subscription whose cursor does not name the partition
-- stands at its start.
drop function if exists ff._read_needed;
create function ff._read_needed(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_first_due_ats timestamptz[],
  p_now           timestamptz
)
returns uuid[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_reader record;
  v_needed uuid[] := '{}';
begin
  for v_reader in
    select coalesce(c.parts[6]::integer, 0) as generation,
           coalesce(c.parts[7], '0')::xid8 as last_xid,
           -- Transactions that were unfinished then, and may have committed since.
           array(
             select (c.parts[7]::bigint - ('x' || lpad(d.distance, 16, '0'))::bit(64)::bigint)
                      ::text::xid8
             from unnest(string_to_array(nullif(c.parts[8], ''), ',')) d(distance)) as unfinished,
           s.keep
    from ff.subscription s
    left join lateral (
      select string_to_array(t.part, ':') as parts
      from string_to_table(s.cursor_text, '/') t(part)
      where starts_with(t.part, 'ff2:' || p_partition_key || ':')
      limit 1) c on true
    where s.keep > interval '0'
  loop
    v_needed := v_needed || array(
      select u.id
      from unnest(p_execution_ids, p_first_due_ats) u(id, first_due_at)
      where u.id <> all (v_needed) and u.first_due_at + v_reader.keep > p_now
        and exists (
          select from ff.event e
          where e.partition_key = p_partition_key and e.execution_id = u.id
            and case when e.generation > v_reader.generation then true
                     when e.generation < v_reader.generation then false
                     else e.xid > v_reader.last_xid or e.xid = any (v_reader.unfinished) end
          offset 0));
  end loop;
  return v_needed;
end;
$$;
