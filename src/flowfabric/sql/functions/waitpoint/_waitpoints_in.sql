-- Return the ids of the waitpoints that a condition names. Returns null if the condition names
-- none.
drop function if exists ff._waitpoints_in;
create function ff._waitpoints_in(p_condition jsonb)
returns uuid[]
language plpgsql
immutable
as $$
begin
  return (
    select array_agg(distinct (w #>> '{}')::uuid)
    from jsonb_path_query(p_condition, 'strict $.**.waitpoint ? (@.type() == "string")',
                          silent => true) w);
end;
$$;
