-- Return the given executions that are still leased under the lease id p_claim_id. They are the
-- answer to a repeated claim.
drop function if exists ff._read_claimed;
create function ff._read_claimed(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_claim_id      uuid
)
returns table (
  execution_id        uuid,
  namespace           text,
  lane                text,
  task                text,
  claim_kind          text,
  rank                smallint,
  order_at            timestamptz,
  epoch               bigint,
  attempt_index       integer,
  attempt_id          uuid,
  attempt_type        text,
  lease_expires_at    timestamptz,
  attempt_deadline_at timestamptz,
  deadline_at         timestamptz,
  retry_count         integer,
  payload_encoding    text,
  payload             bytea,
  replay_count        integer,
  trace_context       text,
  crash_count         integer,
  generation          integer
)
language plpgsql
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
  select e.execution_id, e.namespace, r.lane, r.task,
         case e.cause when 'claim' then 'fresh' when 'resume' then 'resumed' else 'reclaimed' end,
         e.rank, e.order_at, e.epoch, e.attempt_index, e.attempt_id, e.attempt_type::text,
         e.lease_expires_at, e.attempt_deadline_at, e.deadline_at, e.retry_count,
         e.payload_encoding, coalesce(e.payload, b.payload), e.replay_count, b.trace_context,
         e.crash_count, coalesce(b.generation, 0)
  from unnest(p_execution_ids) with ordinality i(execution_id, n)
  cross join lateral (
    select x.* from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = i.execution_id
      and x.lease_id = p_claim_id and x.ownership = 'leased'
      and case when p_namespace is null then true else x.namespace = p_namespace end
    offset 0) e
  cross join lateral (
    select x.lane, x.task from ff.route x where x.route_id = e.route_id offset 0) r
  left join lateral (
    select x.payload, x.trace_context, x.generation from ff.execution_body x
    where e.payload is null
      and x.partition_key = p_partition_key and x.execution_id = e.execution_id
    offset 0) b on true
  order by i.n;
end;
$$;
