-- Record in the claim slot which executions a claim has leased, so that a repeat returns the same
-- executions.
--
-- This is the last write of a claim. It succeeds only if the slot has not changed since the claim
-- first read it (p_slot_claim). Suppose that a repeat runs at the same time as the first call. The
-- repeat waits here until the first call has committed, and then fails with 40001. If the caller
-- then repeats the claim once more, the new call reads the answer of the first call.
drop function if exists ff._write_claim_slot;
create function ff._write_claim_slot(
  p_partition_key      smallint,
  p_namespace          text,
  p_worker_instance_id text,
  p_claim_id           uuid,
  p_now                timestamptz,
  p_execution_ids      uuid[],
  p_slot_claim         uuid
)
returns void
language plpgsql
as $$
begin
  insert into ff.claim_slot as s (
    partition_key, namespace, worker_instance_id, claim_id, claimed_at, execution_ids)
  values (p_partition_key, p_namespace, p_worker_instance_id, p_claim_id, p_now, p_execution_ids)
  on conflict (partition_key, namespace, worker_instance_id) do update
    set claim_id = excluded.claim_id,
        claimed_at = excluded.claimed_at,
        execution_ids = excluded.execution_ids
    where s.claim_id is not distinct from p_slot_claim;
  if not found then
    raise exception using errcode = '40001',
      message = 'another claim of this worker instance was faster';
  end if;
end;
$$;
