-- Cancel the next members on the backlog of a cancelled flow, and remove them from the backlog. The
-- backlog is deleted with its last member. Returns how many members were removed, and whether
-- propagation is pending.
--
-- Members that have ended or are gone are removed too. Locked members stay on the backlog. Under
-- the policy cancel_pending, a member with a live lease is allowed to finish. Such a member stays
-- on the backlog until it has ended, or until it has lost its lease and is cancelled.
--
-- The caller has locked the backlog.
drop function if exists ff._cancel_backlog_members;
create function ff._cancel_backlog_members(
  p_partition_key smallint,
  p_backlog       ff.cancel_backlog,
  p_limit         integer,
  p_now           timestamptz,
  out handled     integer,
  out is_pending  boolean
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
  v_open uuid[];
begin
  is_pending := false;
  v_open := array(
    select l.execution_id
    from (
      select m.execution_id from ff.cancel_backlog_member m
      where m.partition_key = p_partition_key and m.flow_id = p_backlog.flow_id
      order by m.execution_id
      offset 0
    ) a
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = a.execution_id
        and case when e.phase = 'terminal' then false
                 when p_backlog.policy = 'cancel_pending' and e.ownership = 'leased'
                   then e.lease_expires_at <= p_now
                 else true end
      for no key update skip locked
    ) l
    limit p_limit);
  if cardinality(v_open) > 0 then
    is_pending := ff._cancel_flow_members(p_partition_key, p_backlog.flow_id, v_open, p_now);
  end if;

  -- Remove ended members; the limit keeps this short.
  with gone as materialized (
    select p_partition_key as pk, p_backlog.flow_id as flow_id, m.execution_id
    from ff.cancel_backlog_member m
    left join lateral (
      select e.phase from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = m.execution_id
      offset 0
    ) x on true
    where m.partition_key = p_partition_key and m.flow_id = p_backlog.flow_id
      and coalesce(x.phase, 'terminal') = 'terminal'
    order by m.execution_id
    limit p_limit
  ),
  taken_off as (
    delete from ff.cancel_backlog_member m
    using gone g
    where m.partition_key = g.pk and m.flow_id = g.flow_id and m.execution_id = g.execution_id
    returning m.execution_id
  )
  select count(*) into handled from taken_off;
  perform ff._delete_empty_backlog(p_partition_key, p_backlog.flow_id);
end;
$$;
