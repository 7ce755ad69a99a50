-- Open or close the lines of a budget in one partition. If lines are opened, send hints to the
-- workers of their routes. The caller has locked the budget.
drop function if exists ff._set_lines;
create function ff._set_lines(p_partition_key smallint, p_gate_id bigint, p_is_open boolean)
returns void
language plpgsql
as $$
declare
  v_routes bigint[];
begin
  with changed as (
    update ff.line y set is_open = p_is_open
    where y.partition_key = p_partition_key and y.gate_id = p_gate_id and y.is_open <> p_is_open
    returning y.route_id
  )
  select array_agg(c.route_id) into v_routes from changed c;
  if p_is_open and v_routes is not null then
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
end;
$$;
