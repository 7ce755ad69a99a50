-- Set the limits of a quota, for one key or for all keys. These limits override the declared limits
-- until ff.lift_quota is called.
--
-- A null argument keeps the limit that is in force now. p_clear names limits to remove
-- (concurrency, rate). The limits for one key override the limits for all keys. Waiting executions
-- that now have room start with the next claims. Running executions are never stopped.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF306 quota_not_found
-- Locks:    the quota, then its gates in id order, waiting up to 2 s for each
-- Repeat:   `unchanged`
-- Rights:   app
drop function if exists ff.set_quota;
create function ff.set_quota(
  p_namespace   text,
  p_quota       text,
  p_key         text default null,
  p_concurrency integer default null,
  p_rate        integer default null,
  p_rate_window interval default null,
  p_clear       text[] default '{}',
  p_reason      text default null,
  p_actor       text default null
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
  v_old     record;
  v_new     record;
  v_problem text[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_problem := ff._gate_name_problem('quota', p_namespace, p_quota, v_key);
  if v_problem is null and (p_clear is null or not p_clear <@ array['concurrency', 'rate']) then
    v_problem := array['clear', 'must name concurrency, rate or both'];
  elsif v_problem is null and p_concurrency is not null and 'concurrency' = any (p_clear) then
    v_problem := array['clear', 'must not name concurrency, which is set'];
  elsif v_problem is null and num_nonnulls(p_rate, p_rate_window) > 0 and 'rate' = any (p_clear) then
    v_problem := array['clear', 'must not name rate, which is set'];
  elsif v_problem is null and num_nonnulls(p_concurrency, p_rate, p_rate_window) = 0
        and p_clear = '{}' then
    v_problem := array['concurrency', 'must be given, or a rate, or a limit to clear'];
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_quota := ff._lock_quota(p_namespace, p_quota, v_key);
  v_now := ff.now();
  v_old := ff._read_limits(p_namespace, p_quota, v_key);
  select coalesce(p_concurrency, case when 'concurrency' <> all (p_clear) then v_old.concurrency end)
           as concurrency,
         coalesce(p_rate, case when 'rate' <> all (p_clear) then v_old.rate end) as rate,
         coalesce(p_rate_window, case when 'rate' <> all (p_clear) then v_old.rate_window end)
           as rate_window
    into v_new;
  v_problem := ff._quota_problem(v_new.concurrency, v_new.rate, v_new.rate_window, 'queue');
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  insert into ff.quota_change as c (
    namespace, quota, key, concurrency, rate, rate_window, reason, changed_by, changed_at)
  values (p_namespace, p_quota, v_key, v_new.concurrency, v_new.rate, v_new.rate_window, p_reason,
          p_actor, v_now)
  on conflict (namespace, quota, key) do update
    set concurrency = excluded.concurrency, rate = excluded.rate,
        rate_window = excluded.rate_window, reason = excluded.reason,
        changed_by = excluded.changed_by, changed_at = greatest(excluded.changed_at, c.changed_at)
    where (c.concurrency, c.rate, c.rate_window, c.reason, c.changed_by) is distinct from
          (excluded.concurrency, excluded.rate, excluded.rate_window, excluded.reason,
           excluded.changed_by);
  outcome := case when found then 'changed' else 'unchanged' end;
  if outcome = 'changed' then
    perform ff._share_quota(p_namespace, p_quota, nullif(v_key, ''), v_now);
    for v_partition in 0..ff._count_partitions() - 1 loop
      perform ff._apply_quota(
        v_partition::smallint, p_namespace, p_quota, nullif(v_key, ''), v_now);
    end loop;
    perform ff._write_audit(
      p_namespace, p_actor, 'set_quota', concat_ws(' ', p_quota, nullif(v_key, '')), p_reason,
      jsonb_build_object('concurrency', v_old.concurrency, 'rate', v_old.rate,
                         'per', v_old.rate_window),
      jsonb_build_object('concurrency', v_new.concurrency, 'rate', v_new.rate,
                         'per', v_new.rate_window));
  end if;
  key := v_key;
  concurrency := v_new.concurrency;
  rate := v_new.rate;
  rate_window := v_new.rate_window;
  return next;
end;
$$;
