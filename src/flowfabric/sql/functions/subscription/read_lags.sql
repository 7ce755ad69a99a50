-- Return how far subscriptions, including webhooks, are behind in one partition.
--
-- behind_at is the time of the first event of the namespace after the position. `waiting` is the
-- number of events of the namespace after the position, counted up to 1 000. Events that the
-- subscription filters out count, too. is_expired says that events after the position were trimmed.
--
-- For each subscription, the call reads at most 100 000 events divided by the number of
-- subscriptions. This limit is never below 1 000. Events of other namespaces count toward the
-- limit. Events beyond the limit are not counted.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
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
  v_losses  jsonb;
  v_rows    integer;
begin
  perform ff._check_namespace(p_namespace);
  v_trimmed := ff._read_trim_mark(p_partition_key);
  v_gone := split_part(v_trimmed, '.', 1);
  v_gone_to := split_part(v_trimmed, '.', 2);
  v_losses := (select m.losses from ff.trim_mark m where m.partition_key = p_partition_key);
  -- the most events that the call reads for each subscription
  v_rows := 100000 / greatest(1, (
    select count(*)
    from ff.subscription x
    where (p_namespace is null or x.namespace = p_namespace)
      and (p_name is null or x.name = p_name)));
  return query
  select s.namespace, s.name, w.behind_at, w.waiting,
         coalesce(c.parts is not null and v_trimmed is distinct from c.parts[12]
                  and (c.generation, c.xid) < (v_gone, v_gone_to), false)
           or coalesce((v_losses ->> (s.namespace || ' ' || s.name))::timestamptz > s.stored_at,
                       false)
  from (
    select x.namespace, x.name, x.cursor_text,
           greatest(x.created_at, x.acked_at, x.changed_at) as stored_at
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
      select l.occurred_at
      from (
        select e.occurred_at, e.namespace
        from ff.event e
        where e.partition_key = p_partition_key
          and (e.generation, e.xid) > (c.generation, c.xid)
        order by e.generation, e.xid
        limit greatest(v_rows, 1000)) l
      where l.namespace = s.namespace
      limit 1000) v
  ) w
  order by s.namespace, s.name;
end;
$$;
