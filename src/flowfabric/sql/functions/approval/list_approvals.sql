-- List approvals with the answers so far, oldest first. If p_execution_id is null, list the open
-- approvals of unfinished executions. Otherwise list all approvals of that execution.
--
-- The arrays have one item per approver, sorted by the name of the approver. The items of
-- decisions, deciders, decided_at and comments are null until that approver has answered. A comment
-- is also null if the approver gave none.
--
-- p_after_at and p_after_id are created_at and approval_id of the last approval on the previous
-- page. If they are null, the list begins with the oldest approval.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_approvals;
create function ff.list_approvals(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid default null,
  p_after_at      timestamptz default null,
  p_after_id      uuid default null,
  p_limit         integer default 100
)
returns table (
  execution_id     uuid,
  approval_id      uuid,
  question         text,
  details          bytea,
  details_encoding text,
  need_count       integer,
  deny_count       integer,
  created_at       timestamptz,
  is_open          boolean,
  approvers        text[],
  waitpoint_ids    uuid[],
  decisions        text[],
  deciders         text[],
  decided_at       timestamptz[],
  comments         bytea[]
)
language plpgsql
stable
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
  v_executions uuid[];
  v_approvals  uuid[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  if p_execution_id is null then
    select array_agg(f.execution_id), array_agg(f.approval_id) into v_executions, v_approvals
    from (
      select distinct on (w.created_at, w.approval_id) w.execution_id, w.approval_id
      from ff.waitpoint w
      where w.partition_key = p_partition_key and w.closed_at is null
        and w.approval_id is not null
        and (p_after_at is null or (w.created_at, w.approval_id) > (p_after_at, p_after_id))
        and exists (
          select from ff.execution e
          where e.partition_key = p_partition_key and e.execution_id = w.execution_id
            and e.phase <> 'terminal'
            and case when p_namespace is null then true else e.namespace = p_namespace end
          offset 0)
      order by w.created_at, w.approval_id
      limit p_limit) f;
  else
    select array_agg(f.execution_id), array_agg(f.approval_id) into v_executions, v_approvals
    from (
      select a.execution_id, a.approval_id from ff.approval a
      where a.partition_key = p_partition_key and a.execution_id = p_execution_id
        and (p_after_at is null or (a.created_at, a.approval_id) > (p_after_at, p_after_id))
        and exists (
          select from ff.execution e
          where e.partition_key = p_partition_key and e.execution_id = p_execution_id
            and case when p_namespace is null then true else e.namespace = p_namespace end
          offset 0)
      order by a.created_at, a.approval_id
      limit p_limit) f;
  end if;
  return query
  select u.id, u.approval_id, a.question, a.details, a.details_encoding, a.need_count,
         a.deny_count, a.created_at, x.is_open, x.approvers, x.waitpoint_ids, x.decisions,
         x.deciders, x.decided_at, x.comments
  from unnest(v_executions, v_approvals) with ordinality u(id, approval_id, n)
  cross join lateral (
    select p.question, p.details, p.details_encoding, p.need_count, p.deny_count, p.created_at
    from ff.approval p
    where p.partition_key = p_partition_key and p.execution_id = u.id
      and p.approval_id = u.approval_id
    offset 0) a
  cross join lateral (
    select bool_or(w.closed_at is null) and exists (
             select from ff.execution e
             where e.partition_key = p_partition_key and e.execution_id = u.id
               and e.phase <> 'terminal'
             offset 0) as is_open,
           array_agg(w.key order by w.key) as approvers,
           array_agg(w.waitpoint_id order by w.key) as waitpoint_ids,
           array_agg(g.name order by w.key) as decisions,
           array_agg(g.source_identity order by w.key) as deciders,
           array_agg(g.accepted_at order by w.key) as decided_at,
           array_agg(g.payload order by w.key) as comments
    from ff.waitpoint w
    left join lateral (
      select s.name, s.source_identity, s.accepted_at, s.payload from ff.signal s
      where s.partition_key = p_partition_key and s.execution_id = u.id
        and s.waitpoint_id = w.waitpoint_id and s.category = 'approval'
      offset 0) g on true
    where w.partition_key = p_partition_key and w.execution_id = u.id
      and w.approval_id = u.approval_id
    offset 0) x
  order by u.n;
end;
$$;
