-- Cancel children that are bound to ended executions (T23). At most p_limit children are cancelled,
-- and locked children are skipped. Returns how many children were cancelled (handled), and the
-- cancelled children whose ends the caller must propagate (ended_ids). The caller has locked the
-- ended executions.
drop function if exists ff._cancel_bound_children;
create function ff._cancel_bound_children(
  p_partition_key smallint,
  p_ended_ids     uuid[],
  p_now           timestamptz,
  p_limit         integer,
  out handled     integer,
  out ended_ids   uuid[]
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
  v_children uuid[];
begin
  v_children := array(
    select l.execution_id
    from unnest(p_ended_ids) u(id)
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.parent_id = u.id
        and case when e.ends_with_parent and e.phase <> 'terminal' then true else false end
      for no key update skip locked
    ) l
    limit p_limit);
  handled := cardinality(v_children);
  ended_ids := '{}';
  if handled > 0 then
    perform ff._end_executions(
      p_partition_key, v_children, 'cancelled', 'cancel', 'cancelled', 'cancel', 'ended_cancelled',
      p_now,
      p_reason => 'its parent ended',
      p_cancelled_by => 'parent',
      p_detail => jsonb_build_object('source', 'parent', 'reason', 'its parent ended'),
      p_wake => false);
    ended_ids := ff._read_awaited(p_partition_key, v_children);
  end if;
end;
$$;
