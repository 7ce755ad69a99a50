-- Cancel the upstreams in p_members, which a decided group no longer needs (T23). The group stores
-- a list of the upstreams that are left to cancel.
--
-- At most p_limit upstreams are locked and checked. An upstream that another group still waits for
-- is not cancelled, and leaves the list. Two groups can be decided at the same time. So the check
-- is made under the lock of the upstream, where the second group sees that the first one is
-- decided. Upstreams that another transaction has locked stay on the list, and so do upstreams
-- beyond p_limit.
--
-- If the edge of an unfinished upstream is resolved, the upstream had ended and was then replayed.
-- Such an upstream is not cancelled.
--
-- The caller has locked the group's downstream.
drop function if exists ff._cancel_siblings;
create function ff._cancel_siblings(
  p_partition_key   smallint,
  p_downstream_id   uuid,
  p_group_no        smallint,
  p_members         uuid[],
  p_reason          text,
  p_now             timestamptz,
  p_limit           integer,
  out cancelled_ids uuid[],
  out left_ids      uuid[],
  out terminal      integer,
  out missing       integer,
  out retained      integer
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
  v_open   uuid[];
  v_locked uuid[];
  v_ended  uuid[];
begin
  select coalesce(array_agg(u.id order by u.n) filter (where x.phase <> 'terminal'), '{}'),
         count(*) filter (where x.phase = 'terminal'), count(*) filter (where x.phase is null)
    into v_open, terminal, missing
  from unnest(p_members) with ordinality u(id, n)
  left join lateral (
    select e.phase from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
    offset 0) x on true;
  v_locked := array(
    select l.execution_id
    from unnest(v_open) with ordinality u(id, n)
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      for no key update skip locked
    ) l
    limit p_limit);
  left_ids := array(
    select u.id from unnest(v_open) with ordinality u(id, n)
    where u.id <> all (v_locked) order by u.n);

  select coalesce(array_agg(u.id) filter (where not x.has_ended and not x.is_needed), '{}'),
         coalesce(array_agg(u.id) filter (where x.has_ended), '{}')
    into cancelled_ids, v_ended
  from unnest(v_locked) u(id)
  cross join lateral (
    select e.phase = 'terminal' or not exists (
             select from ff.edge o
             where o.partition_key = p_partition_key and o.upstream_id = u.id
               and o.downstream_id = p_downstream_id and o.resolution = 'unsatisfied'
               and case when o.group_no = p_group_no then true else false end
             offset 0) as has_ended,
           exists (
             select from ff.edge g
             join ff.edge_group y
               on y.partition_key = p_partition_key and y.downstream_id = g.downstream_id
                 and y.group_no = g.group_no
             where g.partition_key = p_partition_key and g.upstream_id = u.id
               and g.resolution = 'unsatisfied'
               and case when y.state = 'pending'
                         and (g.downstream_id, g.group_no) <> (p_downstream_id, p_group_no)
                     then true else false end
             offset 0) as is_needed
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
    offset 0) x;
  terminal := terminal + cardinality(v_ended);
  retained := cardinality(v_locked) - cardinality(v_ended) - cardinality(cancelled_ids);
  if cardinality(cancelled_ids) > 0 then
    perform ff._end_executions(
      p_partition_key, cancelled_ids, 'cancelled', 'cancel', 'cancelled', 'cancel',
      'ended_cancelled', p_now,
      p_reason => p_reason,
      p_cancelled_by => 'flow_cascade',
      p_detail => jsonb_build_object(
        'source', 'flow_cascade', 'reason', p_reason,
        'downstream', format('{fp:%s}:%s', p_partition_key, p_downstream_id)),
      p_wake => false);
  end if;
  update ff.edge_group y set
    cancel_pending = cardinality(left_ids) > 0,
    cancel_members = left_ids,
    cancel_reason = p_reason,
    cancel_enqueued_at = case when cardinality(left_ids) > 0
                           then coalesce(y.cancel_enqueued_at, p_now) end
  where y.partition_key = p_partition_key and y.downstream_id = p_downstream_id
    and y.group_no = p_group_no;
end;
$$;
