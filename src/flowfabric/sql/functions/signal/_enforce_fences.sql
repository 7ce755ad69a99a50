-- Enforce a batch of fences in which several items can belong to one execution.
--
-- Only the first item of an execution is judged. A later item with the same fence gets the same
-- verdict. A later item with another fence is `busy`. Locks are taken as in ff._enforce_leases.
drop function if exists ff._enforce_fences;
create function ff._enforce_fences(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_wait          boolean
)
returns ff.verdict[]
language plpgsql
as $$
declare
  v_fences integer[];
  v_judged ff.verdict[];
begin
  v_fences := array(
    select min(u.n)::integer from unnest(p_execution_ids) with ordinality u(id, n)
    group by u.id order by 1);
  v_judged := ff._enforce_leases(
    p_partition_key, p_namespace, null,
    array(select p_execution_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    array(select p_lease_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    array(select p_epochs[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    array(select p_attempt_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
    p_wait);
  return array(
    select row(
      u.n::integer, u.id,
      case when j.word not in ('busy', 'not_found')
            and (u.lease_id is distinct from p_lease_ids[v_fences[j.item]]
                 or u.epoch is distinct from p_epochs[v_fences[j.item]]
                 or u.attempt_id is distinct from p_attempt_ids[v_fences[j.item]])
             then 'busy' else j.word end,
      j.until_at, j.attempt_index, j.detail)::ff.verdict
    from unnest(v_judged) j
    join unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids)
      with ordinality u(id, lease_id, epoch, attempt_id, n)
      on u.id is not distinct from p_execution_ids[v_fences[j.item]]
    order by u.n);
end;
$$;
