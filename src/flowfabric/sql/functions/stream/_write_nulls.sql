-- Replace every text `__ff_null__` in a document by a JSON null. A merge patch cannot write a null,
-- because a null in a patch deletes its key.
drop function if exists ff._write_nulls;
create function ff._write_nulls(p_value jsonb)
returns jsonb
language plpgsql
immutable
as $$
begin
  return case jsonb_typeof(p_value)
    when 'string' then case when p_value = '"__ff_null__"' then 'null' else p_value end
    when 'object' then coalesce(
      (select jsonb_object_agg(e.key, ff._write_nulls(e.value)) from jsonb_each(p_value) e), '{}')
    when 'array' then coalesce(
      (select jsonb_agg(ff._write_nulls(e.value) order by e.n)
       from jsonb_array_elements(p_value) with ordinality e(value, n)), '[]')
    else p_value end;
end;
$$;
