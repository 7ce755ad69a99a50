-- Return the number of partitions.
drop function if exists ff._count_partitions;
create function ff._count_partitions()
returns integer
language plpgsql
stable
as $$
begin
  return (select m.value::integer from ff.meta m where m.name = 'partitions');
end;
$$;
