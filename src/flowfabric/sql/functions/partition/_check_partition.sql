-- Refuse a partition that does not exist: no worker would ever read it.
drop function if exists ff._check_partition;
create function ff._check_partition(p_partition_key smallint)
returns void
language plpgsql
stable
as $$
begin
  if p_partition_key is null or p_partition_key not between 0 and (
       select m.value::integer - 1 from ff.meta m where m.name = 'partitions') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'partition_key', 'problem', 'there is no such partition'));
  end if;
end;
$$;
