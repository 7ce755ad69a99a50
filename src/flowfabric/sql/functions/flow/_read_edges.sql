-- Read the edges of a flow that is given as JSON. Returns the two nodes of each edge, or the first
-- problem. A node is given by its position in the list of nodes, counted from 0. The upstream of
-- an edge must come before the downstream, so there can be no cycle.
drop function if exists ff._read_edges;
create function ff._read_edges(
  p_edges         jsonb,
  p_node_count    integer,
  out upstreams   integer[],
  out downstreams integer[],
  out groups      smallint[],
  out refs        text[],
  out problem     text[]
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
  select array_agg(j.upstream), array_agg(j.downstream), array_agg(j.grp),
         case when count(j.ref) > 0 then array_agg(j.ref) end,
         (array_agg(array[format('edges[%s]%s', j.n - 1, j.words[1]), j.words[2]])
            filter (where j.words is not null))[1:1]
    into upstreams, downstreams, groups, refs, problem
  from (
    select r.n, r.upstream, r.downstream, r.grp, nullif(r.v ->> 'ref', '') as ref,
           case
             when jsonb_typeof(r.v) <> 'object' then array['', 'must be an object']
             when r.v - array['from', 'to', 'group', 'ref'] <> '{}'
               then array['', 'has fields other than from, to, group and ref']
             when r.upstream is null or r.upstream >= p_node_count
               then array['.from', 'there is no such node']
             when r.downstream is null or r.downstream >= p_node_count
               then array['.to', 'there is no such node']
             when r.upstream = r.downstream then array['.to', 'a node cannot wait for itself']
             when r.upstream > r.downstream
               then array['.from', 'must come before the node that waits for it']
             when r.grp is null then array['.group', 'must be a whole number from 0 to 9999']
             when r.v ->> 'ref' is not null and (jsonb_typeof(r.v -> 'ref') <> 'string'
                                                 or octet_length(r.v ->> 'ref') > 256)
               then array['.ref', 'must be text of at most 256 bytes']
           end as words
    from (
      select i.n, i.v,
             case when i.v ->> 'from' ~ '^[0-9]{1,5}$' then (i.v ->> 'from')::integer end as upstream,
             case when i.v ->> 'to' ~ '^[0-9]{1,5}$' then (i.v ->> 'to')::integer end as downstream,
             case when i.v ->> 'group' is null then 0::smallint
                  when i.v ->> 'group' ~ '^[0-9]{1,4}$' then (i.v ->> 'group')::smallint end as grp
      from jsonb_array_elements(p_edges) with ordinality i(v, n)
      offset 0) r
    offset 0) j;
  if problem is not null then
    problem := array[problem[1][1], problem[1][2]];
    return;
  end if;
  select array[format('edges[%s]', d.n - 1), 'is given twice'] into problem
  from (select u.n, row_number() over (
                 partition by u.upstream, u.downstream, u.grp order by u.n) as nth
        from unnest(upstreams, downstreams, groups)
          with ordinality u(upstream, downstream, grp, n)) d
  where d.nth > 1
  order by d.n limit 1;
end;
$$;
