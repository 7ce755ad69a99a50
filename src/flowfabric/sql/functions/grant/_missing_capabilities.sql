-- Return the capabilities that a route needs and a worker lacks, sorted and joined by commas.
-- Returns null if the worker lacks none.
drop function if exists ff._missing_capabilities;
create function ff._missing_capabilities(p_route_id bigint, p_capabilities text[])
returns text
language plpgsql
stable
as $$
begin
  return (
    select string_agg(t.token, ',' order by t.token collate "C")
    from ff.route r
    cross join lateral unnest(r.capabilities) t(token)
    where r.route_id = p_route_id and t.token <> all (p_capabilities));
end;
$$;
