-- Recount edge groups after some of their edges were reopened. The caller has locked the
-- downstreams.
--
-- A satisfied group stays satisfied. If an impossible group can be satisfied again, it becomes
-- pending and has no siblings to cancel any more. If a group stays decided, the members in
-- p_replayed_ids are removed from its list of siblings to cancel.
drop function if exists ff._recount_groups;
create function ff._recount_groups(
  p_partition_key  smallint,
  p_downstream_ids uuid[],
  p_group_nos      smallint[],
  p_replayed_ids   uuid[]
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  with counted as materialized (
    select distinct p_partition_key as pk, u.downstream_id, u.group_no, c.succeeded, c.failed,
           c.skipped
    from unnest(p_downstream_ids, p_group_nos) u(downstream_id, group_no)
    cross join lateral (
      select count(*) filter (where g.resolution = 'satisfied')::integer as succeeded,
             count(*) filter (where g.resolution = 'impossible'
                                and g.outcome <> 'skipped')::integer as failed,
             count(*) filter (where g.resolution = 'impossible'
                                and g.outcome = 'skipped')::integer as skipped
      from ff.edge g
      where g.partition_key = p_partition_key and g.downstream_id = u.downstream_id
        and g.group_no = u.group_no
    ) c
    offset 0
  ),
  judged as materialized (
    select c.pk, c.downstream_id, c.group_no, c.succeeded, c.failed, c.skipped,
           case when y.state <> 'impossible' then y.state
                -- A quorum that is larger than its number of edges becomes impossible only when an
                -- upstream ends.
                when c.succeeded + c.failed + c.skipped = 0 then 'pending'
                else ff._evaluate_group(y.policy, y.k, y.n, c.succeeded, c.failed + c.skipped)
           end as state,
           array(select m.id from unnest(y.cancel_members) with ordinality m(id, nth)
                 where m.id <> all (p_replayed_ids) order by m.nth) as cancel_members
    from counted c
    cross join lateral (
      select z.state, z.policy, z.k, z.n, z.cancel_members from ff.edge_group z
      where z.partition_key = c.pk and z.downstream_id = c.downstream_id
        and z.group_no = c.group_no
      offset 0) y
    offset 0
  )
  update ff.edge_group y set
    succeeded = j.succeeded,
    failed = j.failed,
    skipped = j.skipped,
    state = j.state,
    fired_at = case when j.state <> 'pending' then y.fired_at end,
    fired_k = case when j.state <> 'pending' then y.fired_k end,
    fired_n = case when j.state <> 'pending' then y.fired_n end,
    cancel_pending = j.state <> 'pending' and j.cancel_members <> '{}',
    cancel_members = case when j.state <> 'pending' then j.cancel_members else '{}' end,
    cancel_reason = case when j.state <> 'pending' then y.cancel_reason end,
    cancel_enqueued_at = case when j.state <> 'pending' and j.cancel_members <> '{}'
                           then y.cancel_enqueued_at end
  from judged j
  where y.partition_key = j.pk and y.downstream_id = j.downstream_id and y.group_no = j.group_no;
end;
$$;
