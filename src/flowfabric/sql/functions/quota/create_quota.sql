-- Create a quota: a limit on the executions that name it.
--
-- p_concurrency is how many executions may run at the same time. p_rate is how many may start in
-- any p_rate_window. Null means no limit. If p_is_keyed is true, the limits apply to each value of
-- the key separately. p_overflow says what happens to a submission that finds no room: `queue`
-- means that the execution is stored and waits, `refuse` that the submission is refused.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the new quota; then, in id order, the gates that a deleted quota of the same name has
--           left; waits up to 2 s for each
-- Repeat:   `already_satisfied`, with the limits of the existing quota; the call does not change
--           them
-- Rights:   app
drop function if exists ff.create_quota;
create function ff.create_quota(
  p_namespace   text,
  p_quota       text,
  p_is_keyed    boolean default false,
  p_concurrency integer default null,
  p_rate        integer default null,
  p_rate_window interval default null,
  p_overflow    text default 'queue',
  p_actor       text default null
)
returns table (
  outcome     text,
  is_keyed    boolean,
  concurrency integer,
  rate        integer,
  rate_window interval,
  overflow    text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_problem text[];
  v_is_new  boolean;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, null);
  v_problem := coalesce(
    ff._gate_name_problem('quota', p_namespace, p_quota, null),
    ff._quota_problem(p_concurrency, p_rate, p_rate_window, p_overflow));
  if v_problem is null and p_is_keyed is null then
    v_problem := array['is_keyed', 'must be true or false'];
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  insert into ff.quota (
    namespace, quota, is_keyed, concurrency, rate, rate_window, overflow, declared_at, declared_by)
  values (p_namespace, p_quota, p_is_keyed, p_concurrency, p_rate, p_rate_window,
          p_overflow::ff.overflow, v_now, p_actor)
  on conflict do nothing;
  v_is_new := found;
  if v_is_new then
    perform ff._share_quota(p_namespace, p_quota, null, v_now);
    for v_partition in 0..ff._count_partitions() - 1 loop
      perform ff._apply_quota(
        v_partition::smallint, p_namespace, p_quota, null, v_now);
    end loop;
    perform ff._write_audit(
      p_namespace, p_actor, 'create_quota', p_quota, null, null,
      jsonb_build_object('concurrency', p_concurrency, 'rate', p_rate, 'per', p_rate_window));
  end if;
  return query
  select case when v_is_new then 'created' else 'already_satisfied' end, q.is_keyed, q.concurrency,
         q.rate, q.rate_window, q.overflow::text
  from ff.quota q where q.namespace = p_namespace and q.quota = p_quota;
end;
$$;
