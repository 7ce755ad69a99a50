-- Clear finished lists of siblings to cancel. A decided group has such a list. A list is finished
-- when all siblings on it have ended or are gone. This call cancels nothing; ff.cancel_siblings
-- cancels the siblings.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the downstreams of the groups, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.reconcile_siblings;
create function ff.reconcile_siblings(p_partition_key smallint, p_limit integer default 50)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_locked uuid[];
begin
  perform ff._check_pass(p_limit);
  v_locked := array(
    select l.execution_id
    from (
      select distinct o.downstream_id
      from (
        select y.downstream_id from ff.edge_group y
        where y.partition_key = p_partition_key and y.cancel_pending
        order by y.cancel_enqueued_at
        limit p_limit) o
      order by o.downstream_id
    ) a
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = a.downstream_id
      for no key update skip locked
    ) l);
  with item as materialized (
    select p_partition_key as pk, g.downstream_id, g.group_no
    from unnest(v_locked) u(id)
    cross join lateral (
      select y.downstream_id, y.group_no, y.cancel_members from ff.edge_group y
      where y.partition_key = p_partition_key and y.downstream_id = u.id
        and case when y.cancel_pending then true else false end
      offset 0) g
    where not exists (
      select from unnest(g.cancel_members) m(id)
      cross join lateral (
        select e.phase from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = m.id
        offset 0) x
      where x.phase <> 'terminal')
    offset 0
  ),
  closed as (
    update ff.edge_group y set
      cancel_pending = false,
      cancel_members = '{}',
      cancel_enqueued_at = null
    from item i
    where y.partition_key = i.pk and y.downstream_id = i.downstream_id
      and y.group_no = i.group_no
    returning y.downstream_id
  )
  select count(*) into handled from closed;
  return next;
end;
$$;
