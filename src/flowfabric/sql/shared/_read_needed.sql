-- Find the executions whose events must stay, because a subscription still needs them (`needed`).
-- Also find the executions whose events a subscription loses if the events are deleted now
-- (lost_ids), and the subscription that loses them (lost_by). An execution can be in both lists,
-- because one subscription can need its events while another subscription loses them.
--
-- A subscription may keep events that it has not acknowledged, but only for a limited time
-- (ff.subscription.keep). The time counts from p_first_due_ats, when the events were first due to
-- be deleted. Until that time is over, the subscription needs the events. After that, the
-- subscription loses the events. A subscription whose cursor does not name the partition has read
-- nothing in it.
drop function if exists ff._read_needed;
create function ff._read_needed(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_first_due_ats timestamptz[],
  p_now           timestamptz,
  out needed      uuid[],
  out lost_ids    uuid[],
  out lost_by     text[]
)
returns record
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
  v_lost   uuid[];
begin
  needed := '{}';
  lost_ids := '{}';
  lost_by := '{}';
  for v_reader in
    select coalesce(c.parts[6]::integer, 0) as generation,
           coalesce(c.parts[7], '0')::xid8 as last_xid,
           -- These transactions were unfinished at the cursor and may have committed since.
           array(
             select (c.parts[7]::bigint - ('x' || lpad(d.distance, 16, '0'))::bit(64)::bigint)
                      ::text::xid8
             from unnest(string_to_array(nullif(c.parts[8], ''), ',')) d(distance)) as unfinished,
           s.keep, s.namespace || ' ' || s.name as key
    from ff.subscription s
    left join lateral (
      select string_to_array(t.part, ':') as parts
      from string_to_table(s.cursor_text, '/') t(part)
      where starts_with(t.part, 'ff2:' || p_partition_key || ':')
      limit 1) c on true
  loop
    select needed || coalesce(array_agg(u.id) filter (where u.is_kept), '{}'),
           coalesce(array_agg(u.id) filter (where not u.is_kept), '{}')
      into needed, v_lost
    from (
      select i.id, i.first_due_at + v_reader.keep > p_now as is_kept
      from unnest(p_execution_ids, p_first_due_ats) i(id, first_due_at)
      where i.id <> all (needed)
        and exists (
          select from ff.event e
          where e.partition_key = p_partition_key and e.execution_id = i.id
            and case when e.generation > v_reader.generation then true
                     when e.generation < v_reader.generation then false
                     else e.xid > v_reader.last_xid or e.xid = any (v_reader.unfinished) end
          offset 0)
      offset 0) u;
    lost_ids := lost_ids || v_lost;
    lost_by := lost_by || array_fill(v_reader.key, array[cardinality(v_lost)]);
  end loop;
end;
$$;
