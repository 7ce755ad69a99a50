-- Return the share of one partition if a limit is split evenly among the partitions. The remainder
-- goes to different partitions for different gates. Otherwise the first partitions would get the
-- remainders of all gates.
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
