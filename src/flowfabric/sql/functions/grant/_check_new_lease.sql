-- Refuse a claim id that an earlier lease or attempt of the execution has used.
drop function if exists ff._check_new_lease;
create function ff._check_new_lease(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_claim_id      uuid,
  p_used_ids      uuid[]
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  if p_claim_id = any (p_used_ids) or exists (
       select from ff.attempt t
       where t.partition_key = p_partition_key and t.execution_id = p_execution_id
         and case when p_claim_id in (t.last_lease_id, t.attempt_id) then true else false end) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'claim_id', 'problem', 'was used for a lease that has ended; make a new one'));
  end if;
end;
$$;
