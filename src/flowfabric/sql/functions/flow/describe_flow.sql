-- Read one flow with its groups. The groups are in order of downstream id and group number. Returns
-- no row if the flow does not exist.
--
-- `state` is the stored state: open or cancelled. ff.summarise_flow derives a state from the
-- members.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.describe_flow;
create function ff.describe_flow(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid
)
returns table (
  flow_id        uuid,
  namespace      text,
  flow_kind      text,
  state          text,
  graph_revision integer,
  node_count     integer,
  edge_count     integer,
  created_at     timestamptz,
  mutated_at     timestamptz,
  cancelled_at   timestamptz,
  cancel_policy  text,
  cancel_reason  text,
  cancelled_by   text,
  trimmed_at     timestamptz,
  tags           jsonb,
  creator        text,
  edge_groups    jsonb
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select f.flow_id, f.namespace, f.flow_kind,
         case when f.cancelled_at is null then 'open' else 'cancelled' end,
         f.graph_revision, f.node_count, f.edge_count, f.created_at, f.mutated_at, f.cancelled_at,
         f.cancel_policy::text, f.cancel_reason, f.cancelled_by, f.trimmed_at,
         coalesce(f.tags, '{}'), f.creator,
         coalesce((
           select jsonb_agg(jsonb_build_object(
                    'downstream_id', y.downstream_id, 'group_no', y.group_no,
                    'policy', y.policy, 'k', y.k, 'on_satisfied', y.on_satisfied, 'n', y.n,
                    'succeeded', y.succeeded, 'failed', y.failed, 'skipped', y.skipped,
                    'state', y.state, 'fired_at', y.fired_at,
                    'cancel_pending', y.cancel_pending, 'cancel_reason', y.cancel_reason)
                  order by y.downstream_id, y.group_no)
           from ff.edge_group y
           where y.partition_key = p_partition_key and y.flow_id = p_flow_id), '[]')
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
    and case when p_namespace is null then true else f.namespace = p_namespace end;
end;
$$;
