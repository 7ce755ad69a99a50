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
  v_generations integer[];
  v_xids        xid8[];
  v_keeps       interval[];
begin
  select array_agg(p.generation), array_agg(p.xid), array_agg(p.keep)
    into v_generations, v_xids, v_keeps
  from (
    select coalesce(c.parts[6]::integer, 0) as generation,
           -- A transaction that was unfinished below the last one may have committed since.
           coalesce(greatest(c.parts[7]::bigint - coalesce((
             select max(('x' || lpad(d.distance, 16, '0'))::bit(64)::bigint) + 1
             from unnest(string_to_array(nullif(c.parts[8], ''), ',')) d(distance)), 0), 0),
             0)::text::xid8 as xid,
           s.keep
    from ff.subscription s
    left join lateral (
      select string_to_array(t.part, ':') as parts
      from string_to_table(s.cursor_text, '/') t(part)
      where starts_with(t.part, 'ff2:' || p_partition_key || ':')
      limit 1) c on true
    where s.keep > interval '0'
  ) p;
  if v_xids is null then
    return '{}';
  end if;
  return array(
    select distinct u.id
    from unnest(p_execution_ids, p_first_due_ats) u(id, first_due_at)
    cross join unnest(v_generations, v_xids, v_keeps) p(generation, xid, keep)
    where u.first_due_at + p.keep > p_now
      and exists (
        select from ff.event e
        where e.partition_key = p_partition_key and e.execution_id = u.id
          and case when (e.generation, e.xid) > (p.generation, p.xid) then true else false end
        offset 0));
end;
$$;
