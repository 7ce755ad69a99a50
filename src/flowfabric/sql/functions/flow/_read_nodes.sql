-- Read the nodes of a flow that is given as JSON. Returns their names in the order of p_nodes, or
-- the first problem. A node follows the rules of an item of ff.submit_json, but has neither key nor
-- parent.
drop function if exists ff._read_nodes;
create function ff._read_nodes(
  p_nodes     jsonb,
  out names   text[],
  out problem text[]
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set jit = off
as $$
#variable_conflict use_column
begin
  -- Rows come in the order of the array, and no statement below changes that order.
  select array_agg(j.name),
         (array_agg(array[format('nodes[%s].%s', j.n - 1, j.words[1]), j.words[2]])
            filter (where j.words is not null))[1:1]
    into names, problem
  from (
    select i.n, i.v ->> 'name' as name,
           case
             when jsonb_typeof(i.v) <> 'object' then array['', 'must be an object']
             when jsonb_typeof(i.v -> 'name') is distinct from 'string'
                  or octet_length(i.v ->> 'name') not between 1 and 256
               then array['name', 'must be text of 1 to 256 bytes']
             when i.v ?| array['key', 'key_fingerprint', 'key_scope', 'key_window_ms', 'key_partitions',
                               'parent_id', 'with_parent']
               then array['key', 'a node has neither a key nor a parent']
             else ff._item_problem(i.v) end as words
    from jsonb_array_elements(p_nodes) with ordinality i(v, n)
    offset 0) j;
  if problem is not null then
    problem := array[rtrim(problem[1][1], '.'), problem[1][2]];
    return;
  end if;
  select array[format('nodes[%s].name', d.n - 1), format('%s is the name of two nodes', d.name)]
    into problem
  from (select u.name, u.n, row_number() over (partition by u.name order by u.n) as nth
        from unnest(names) with ordinality u(name, n)) d
  where d.nth > 1
  order by d.n limit 1;
end;
$$;
