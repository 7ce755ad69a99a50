-- List the gates of a quota in one partition with their counters, by key in byte order.
--
-- `concurrency` and `rate` are the shares that this partition has of the limits.
-- `whole_concurrency` and `whole_rate` are the limits in force for the key, for all partitions
-- together. If an operator set these limits, is_set is true. Then changed_by is the operator, reason
-- is the operator's reason, and changed_at is the time of the change.
--
-- `running` counts the slots that are taken, by leases and by ff.check_admission. `tickets` counts
-- the slots of ff.check_admission alone. `started` counts the starts within the last rate_window.
-- `in_line` counts executions in line; it is exact up to 10 000, and 10 001 means more. If p_key is
-- given, only the gate of that key is listed. The key of a quota without keys is ''.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF306 quota_not_found
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_gates;
create function ff.list_gates(
  p_partition_key smallint,
  p_namespace     text,
  p_quota         text,
  p_key           text default null,
  p_after         text default null,
  p_limit         integer default 100
)
returns table (
  gate_id           bigint,
  key               text,
  concurrency       integer,
  rate              integer,
  rate_window       interval,
  is_set            boolean,
  running           integer,
  tickets           integer,
  started           integer,
  in_line           integer,
  opens_at          timestamptz,
  whole_concurrency integer,
  whole_rate        integer,
  reason            text,
  changed_by        text,
  changed_at        timestamptz
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_problem text[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  v_problem := ff._gate_name_problem('quota', p_namespace, p_quota, p_key);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  if not exists (
       select from ff.quota q where q.namespace = p_namespace and q.quota = p_quota) then
    perform ff._refuse('WF306', 'quota_not_found', jsonb_build_object('quota', p_quota));
  end if;
  return query
  select g.gate_id, g.key, g.max_running, g.rate, g.rate_window,
         w.is_set,
         g.running - coalesce((
           select sum(r.slots)::integer from ff.gate_release r
           where r.partition_key = p_partition_key and r.gate_id = g.gate_id), 0),
         (select count(*)::integer from ff.gate_ticket k
          where k.partition_key = p_partition_key and k.gate_id = g.gate_id
            and k.expires_at > v_now),
         coalesce((
           select sum(s.starts)::integer
           from unnest(g.slices) with ordinality s(starts, n)
           where ((g.slice_base - s.n + 1) % 62 + 62) % 62
                 + greatest(floor(extract(epoch from v_now) * 60
                                  / extract(epoch from g.rate_window))::bigint - g.slice_base, 0)
                 < 61), 0),
         (select count(*)::integer
          from (select from ff.execution e
                where e.partition_key = p_partition_key and e.line_id = g.gate_id
                limit 10001) w),
         g.opens_at, w.concurrency, w.rate, w.reason, w.changed_by, w.changed_at
  from ff.gate g
  cross join lateral (
    select case when c.key is null then q.concurrency else c.concurrency end as concurrency,
           case when c.key is null then q.rate else c.rate end as rate,
           c.key is not null as is_set, c.reason, c.changed_by, c.changed_at
    from ff.quota q
    left join lateral (
      select x.key, x.concurrency, x.rate, x.reason, x.changed_by, x.changed_at
      from ff.quota_change x
      where x.namespace = p_namespace and x.quota = p_quota and x.key in (g.key, '')
      order by x.key desc
      limit 1) c on true
    where q.namespace = p_namespace and q.quota = p_quota) w
  where g.partition_key = p_partition_key and g.namespace = p_namespace and g.quota = p_quota
    and (p_key is null or g.key = p_key)
    and (p_after is null or g.key collate "C" > p_after)
  order by g.key collate "C"
  limit p_limit;
end;
$$;
