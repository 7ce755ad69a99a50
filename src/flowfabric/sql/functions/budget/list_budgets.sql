-- List budgets with their limits and usage, sorted by namespace, name and key in byte order.
--
-- usage, refused, hard_limits and soft_limits are JSON objects by dimension. `refused` adds up the
-- amounts of refused reports. A dimension without a hard limit is not in hard_limits, and a
-- dimension without a soft limit is not in soft_limits. `raised` lists the dimensions whose hard
-- limit ff.raise_budget has set. in_line is the number of executions of p_partition_key that wait
-- for the budget. It is exact up to 10 000; 10 001 means more.
--
-- p_after_namespace, p_after_budget and p_after_key name the last budget on the previous page.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_budgets;
create function ff.list_budgets(
  p_partition_key   smallint,
  p_namespace       text,
  p_budget          text default null,
  p_key             text default null,
  p_after_namespace text default null,
  p_after_budget    text default null,
  p_after_key       text default null,
  p_limit           integer default 100
)
returns table (
  budget_id             bigint,
  namespace             text,
  budget                text,
  key                   text,
  on_exceed             text,
  period                text,
  period_zone           text,
  period_length         interval,
  period_started_at     timestamptz,
  next_reset_at         timestamptz,
  is_shut               boolean,
  usage                 jsonb,
  refused               jsonb,
  hard_limits           jsonb,
  soft_limits           jsonb,
  raised                text[],
  in_line               integer,
  breach_count          bigint,
  soft_breach_count     bigint,
  last_breach_at        timestamptz,
  last_breach_dimension text,
  created_at            timestamptz,
  changed_by            text,
  changed_at            timestamptz,
  reason                text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  return query
  select b.budget_id, b.namespace, b.budget, b.key, b.on_exceed::text, b.period::text,
         b.period_zone, b.period_length, b.period_started_at, b.next_reset_at, b.is_shut,
         coalesce(d.usage, '{}'), coalesce(d.refused, '{}'), coalesce(d.hard_limits, '{}'),
         coalesce(d.soft_limits, '{}'), coalesce(d.raised, '{}'),
         (select count(*)::integer
          from (select from ff.execution e
                where e.partition_key = p_partition_key and e.line_id = b.budget_id
                limit 10001) w),
         b.breach_count, b.soft_breach_count, b.last_breach_at, b.last_breach_dimension,
         b.created_at, b.changed_by, b.changed_at, b.reason
  from (
    select x.* from ff.budget x
    where (p_namespace is null or x.namespace = p_namespace)
      and (p_budget is null or x.budget = p_budget)
      and (p_key is null or x.key = p_key)
      and (p_after_budget is null
           or (x.namespace collate "C", x.budget collate "C", x.key collate "C")
              > (p_after_namespace, p_after_budget, coalesce(p_after_key, '')))
    order by x.namespace collate "C", x.budget collate "C", x.key collate "C"
    limit p_limit) b
  left join lateral (
    select jsonb_object_agg(y.dimension, y.usage) as usage,
           jsonb_object_agg(y.dimension, y.refused) as refused,
           jsonb_object_agg(y.dimension, coalesce(y.raised_hard, y.declared_hard))
             filter (where coalesce(y.raised_hard, y.declared_hard) is not null) as hard_limits,
           jsonb_object_agg(y.dimension, y.declared_soft)
             filter (where y.declared_soft is not null) as soft_limits,
           array_agg(y.dimension order by y.dimension)
             filter (where y.raised_hard is not null) as raised
    from ff.budget_dimension y where y.budget_id = b.budget_id) d on true
  order by b.namespace collate "C", b.budget collate "C", b.key collate "C";
end;
$$;
