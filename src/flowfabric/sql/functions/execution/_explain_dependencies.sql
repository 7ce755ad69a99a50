-- Explain which dependencies block an execution. Returns one row for every undecided edge group,
-- with up to 5 upstreams whose edge is not resolved. If there is no undecided group, one row says
-- that the execution waits for children.
--
-- An upstream may have ended before a replay of the execution reopened its edge. Such upstreams are
-- listed first: the execution waits until they are replayed and end again. Then come active
-- upstreams, then all others.
drop function if exists ff._explain_dependencies;
create function ff._explain_dependencies(
  p_partition_key smallint,
  p_row           ff.execution
)
returns table (dimension text, code text, evidence jsonb, changes_at timestamptz)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select 'dependency', 'waiting_for_upstreams',
    jsonb_build_object(
      'since', p_row.transitioned_at, 'group', y.group_no, 'policy', y.policy,
      'needed', case y.policy when 'all_of' then y.n when 'any_of' then 1 else y.k end,
      'n', y.n, 'succeeded', y.succeeded, 'lost', y.failed + y.skipped,
      'open', coalesce(o.list, '[]'), 'is_more', coalesce(o.number, 0) > 5),
    null::timestamptz
  from ff.edge_group y
  cross join lateral (
    select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
             'id', format('{fp:%s}:%s', p_partition_key, s.upstream_id), 'name', s.node_name,
             'state', s.public_state, 'is_over', s.is_over or null,
             'is_unapplied', s.is_unapplied or null)) order by s.nth)
             filter (where s.nth <= 5) as list,
           count(*) as number
    from (
      select g.upstream_id, b.node_name, e.public_state,
             coalesce(g.reopened_version >= e.version and e.phase = 'terminal', false) as is_over,
             g.resolution is null as is_unapplied,
             row_number() over (
               order by coalesce(g.reopened_version >= e.version and e.phase = 'terminal', false)
                 desc, e.phase <> 'active', g.upstream_id, g.edge_id) as nth
      from ff.edge g
      join ff.execution e
        on e.partition_key = p_partition_key and e.execution_id = g.upstream_id
      left join ff.execution_body b
        on b.partition_key = p_partition_key and b.execution_id = g.upstream_id
      where g.partition_key = p_partition_key and g.downstream_id = p_row.execution_id
        and g.group_no = y.group_no
        and case when coalesce(g.resolution, 'unsatisfied') = 'unsatisfied'
              then true else false end) s
  ) o
  where y.partition_key = p_partition_key and y.downstream_id = p_row.execution_id
    and case when y.state = 'pending' and y.n > 0 then true else false end
  order by y.group_no;
  if not found then
    return query select 'dependency', 'waiting_for_children',
      jsonb_strip_nulls(jsonb_build_object(
        'detail', p_row.blocking_detail, 'since', p_row.transitioned_at)),
      null::timestamptz;
  end if;
end;
$$;
