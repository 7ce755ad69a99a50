-- Admit one locked execution to its gates for a claim with a grant, or refuse the call: not_eligible,
-- with the quota or budget that has no room.
drop function if exists ff._check_admitted;
create function ff._check_admitted(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_now           timestamptz
)
returns void
language plpgsql
as $$
declare
  v_answer record;
  v_why    record;
begin
  v_answer := ff._admit_candidates(p_partition_key, array[p_execution_id], null, p_now);
  if v_answer.admitted = '{}' then
    select g.quota, b.budget, coalesce(g.key, b.key) as key into v_why
    from unnest(v_answer.closed) c(id)
    left join ff.gate g on g.partition_key = p_partition_key and g.gate_id = c.id
    left join ff.budget b on b.budget_id = c.id
    limit 1;
    perform ff._refuse('WF205', 'not_eligible', jsonb_strip_nulls(jsonb_build_object(
      'problem', 'a limit has no room', 'quota', v_why.quota, 'budget', v_why.budget,
      'key', nullif(v_why.key, ''))));
  end if;
end;
$$;
