-- Tell whether any execution of the partition is granted, as of now: also in the middle of a statement
-- of the caller, which may have locked executions meanwhile.
drop function if exists ff._has_grants;
create function ff._has_grants(p_partition_key smallint)
returns boolean
language plpgsql
volatile
as $$
begin
  return exists (select from ff.grant g where g.partition_key = p_partition_key);
end;
$$;
