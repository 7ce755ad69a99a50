-- Return the share of one partition if a limit is split evenly. What is left over goes to other
-- partitions for each gate, so that small limits do not all lie in the first ones.
drop function if exists ff._even_share;
create function ff._even_share(
  p_limit integer, p_partitions integer, p_share_no integer, p_gate_id bigint)
returns integer
language plpgsql
immutable
as $$
begin
  return p_limit / p_partitions
    + ((p_share_no + p_gate_id) % p_partitions < p_limit % p_partitions)::integer;
end;
$$;
