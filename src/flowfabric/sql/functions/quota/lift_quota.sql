-- Remove the limits that an operator set for a quota with ff.set_quota, for one key or for all
-- keys.
--
-- If p_key is given, the limits that an operator set for all keys apply to this key again. If there
-- are none, the declared limits apply. If p_key is null, the declared limits apply to all keys
-- again, except to keys for which an operator set separate limits.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF306 quota_not_found
-- Locks:    the quota, then its gates in id order, waiting up to 2 s for each
-- Repeat:   `unchanged`
-- Rights:   app
drop function if exists ff.lift_quota;
create function ff.lift_quota(
  p_namespace text,
  p_quota     text,
  p_key       text default null,
  p_reason    text default null,
  p_actor     text default null
)
returns table (
  outcome     text,
  key         text,
  concurrency integer,
  rate        integer,
  rate_window interval
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_key     constant text := coalesce(p_key, '');
  v_now     timestamptz;
  v_quota   ff.quota;
  v_limits  record;
  v_problem text[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_problem := ff._gate_name_problem('quota', p_namespace, p_quota, v_key);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_quota := ff._lock_quota(p_namespace, p_quota, v_key);
  v_now := ff.now();
  delete from ff.quota_change c
  where c.namespace = p_namespace and c.quota = p_quota and c.key = v_key;
  outcome := case when found then 'lifted' else 'unchanged' end;
  if outcome = 'lifted' then
    perform ff._share_quota(p_namespace, p_quota, nullif(v_key, ''), v_now);
    for v_partition in 0..ff._count_partitions() - 1 loop
      perform ff._apply_quota(
        v_partition::smallint, p_namespace, p_quota, nullif(v_key, ''), v_now);
    end loop;
    perform ff._write_audit(
      p_namespace, p_actor, 'lift_quota', concat_ws(' ', p_quota, nullif(v_key, '')), p_reason);
  end if;
  v_limits := ff._read_limits(p_namespace, p_quota, v_key);
  key := v_key;
  concurrency := v_limits.concurrency;
  rate := v_limits.rate;
  rate_window := v_limits.rate_window;
  return next;
end;
$$;
