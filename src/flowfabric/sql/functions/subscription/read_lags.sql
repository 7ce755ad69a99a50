-- Return how far the subscriptions are behind in one partition: the time of the first event after the
-- position, how many events wait (counted up to 1 000, filtered ones included), and whether events
-- after the position were trimmed.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Replay:   a read
-- Rights:   app
drop function if exists ff.read_lags;
create function ff.read_lags(p_partition_key smallint, p_namespace text, p_name text default null)
returns table (
  namespace  text,
  name       text,
  behind_at  timestamptz,
  waiting    integer,
  is_expired boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_trimmed text;
  v_gone    integer;
  v_gone_to xid8;
begin
  perform ff._check_namespace(p_namespace);
  v_trimmed := ff._read_trim_mark(p_partition_key);
  v_gone := split_part(v_trimmed, '.', 1);
  v_gone_to := split_part(v_trimmed, '.', 2);
  return query
  select s.namespace, s.name, w.behind_at, w.waiting,
         coalesce(c.parts is not null and v_trimmed is distinct from c.parts[12]
                  and (c.generation, c.xid) < (v_gone, v_gone_to), false)
  from (
    select x.namespace, x.name, x.cursor_text
    from ff.subscription x
    where (p_namespace is null or x.namespace = p_namespace) and (p_name is null or x.name = p_name)
    offset 0
  ) s
  cross join lateral (
    select p.parts, coalesce(p.parts[6]::integer, 0) as generation,
           coalesce(p.parts[7], '0')::xid8 as xid
    from (select (
      select string_to_array(t.part, ':')
      from string_to_table(s.cursor_text, '/') t(part)
      where starts_with(t.part, 'ff2:' || p_partition_key || ':')
      limit 1) as parts) p
    offset 0
  ) c
  cross join lateral (
    select min(v.occurred_at) as behind_at, count(*)::integer as waiting
    from (
      select e.occurred_at
      from ff.event e
      where e.partition_key = p_partition_key
        and (e.generation, e.xid) > (c.generation, c.xid)
      order by e.generation, e.xid
      limit 1000) v
  ) w
  order by s.namespace, s.name;
end;
$$;
