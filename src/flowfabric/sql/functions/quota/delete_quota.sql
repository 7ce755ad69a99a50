-- Delete a quota, and all limits that an operator set for it. After that, the quota has no effect.
--
-- The gates of the quota stay, without limits. The executions that wait in the lines of these gates
-- start with the next claims. If a quota of the same name is created later, executions that named
-- the old quota count at the new quota, too.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the quota, then its gates in id order, waiting up to 2 s for each
-- Repeat:   `unchanged`
-- Rights:   app
drop function if exists ff.delete_quota;
create function ff.delete_quota(
  p_namespace text,
  p_quota     text,
  p_reason    text default null,
  p_actor     text default null
)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_problem text[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_problem := ff._gate_name_problem('quota', p_namespace, p_quota, null);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  delete from ff.quota q where q.namespace = p_namespace and q.quota = p_quota;
  outcome := case when found then 'deleted' else 'unchanged' end;
  if outcome = 'deleted' then
    delete from ff.quota_change c where c.namespace = p_namespace and c.quota = p_quota;
    v_now := ff.now();
    perform ff._share_quota(p_namespace, p_quota, null, v_now);
    for v_partition in 0..ff._count_partitions() - 1 loop
      perform ff._apply_quota(v_partition::smallint, p_namespace, p_quota, null, v_now);
    end loop;
    perform ff._write_audit(p_namespace, p_actor, 'delete_quota', p_quota, p_reason);
  end if;
  return next;
end;
$$;
