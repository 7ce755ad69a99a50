-- Read the edge groups of a flow that is given as JSON, each with its policy. The default policy is
-- all_of. If something is wrong, `problem` has the field and the text of the first problem.
-- Otherwise `problem` is null.
drop function if exists ff._read_groups;
create function ff._read_groups(
  p_groups         jsonb,
  p_node_count     integer,
  p_downstreams    integer[],
  p_group_nos      smallint[],
  out downstreams  integer[],
  out group_nos    smallint[],
  out sizes        integer[],
  out policies     ff.group_policy[],
  out ks           integer[],
  out on_satisfied ff.on_satisfied[],
  out problem      text[]
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set jit = off
as $$
#variable_conflict use_column
begin
  select (array_agg(array[format('groups[%s]%s', j.n - 1, j.words[1]), j.words[2]] order by j.n)
            filter (where j.words is not null))[1:1]
    into problem
  from (
    select i.n,
           case
             when jsonb_typeof(i.v) <> 'object' then array['', 'must be an object']
             when i.v - array['node', 'group', 'policy', 'k', 'on_satisfied'] <> '{}'
               then array['', 'has fields other than node, group, policy, k and on_satisfied']
             when coalesce(i.v ->> 'node', '') !~ '^[0-9]{1,5}$'
                  or (i.v ->> 'node')::integer >= p_node_count
               then array['.node', 'there is no such node']
             when coalesce(i.v ->> 'group', '0') !~ '^[0-9]{1,4}$'
               then array['.group', 'must be a whole number from 0 to 9999']
             when coalesce(i.v ->> 'policy', '') not in ('all_of', 'any_of', 'quorum')
               then array['.policy', 'must be all_of, any_of or quorum']
             when i.v ->> 'policy' = 'quorum' and coalesce(i.v ->> 'k', '') !~ '^0*[1-9][0-9]{0,8}$'
               then array['.k', 'quorum k must be >= 1']
             when i.v ->> 'policy' <> 'quorum' and i.v ->> 'k' is not null
               then array['.k', 'belongs to a quorum only']
             when i.v ->> 'policy' = 'all_of' and i.v ->> 'on_satisfied' is not null
               then array['.on_satisfied', 'must be left out: all_of needs every upstream']
             when coalesce(i.v ->> 'on_satisfied', 'let_run') not in ('cancel_remaining', 'let_run')
               then array['.on_satisfied', 'must be cancel_remaining or let_run']
           end as words
    from jsonb_array_elements(p_groups) with ordinality i(v, n)
    offset 0) j;
  if problem is not null then
    problem := array[problem[1][1], problem[1][2]];
    return;
  end if;

  -- Read groups and edges in one pass, because the planner could not estimate the size of a join.
  select array_agg(f.node order by f.node, f.grp) filter (where f.size > 0),
         array_agg(f.grp order by f.node, f.grp) filter (where f.size > 0),
         array_agg(f.size order by f.node, f.grp) filter (where f.size > 0),
         array_agg(f.policy order by f.node, f.grp) filter (where f.size > 0),
         array_agg(f.k order by f.node, f.grp) filter (where f.size > 0),
         array_agg(case when f.policy <> 'all_of' then
                     coalesce(f.on_satisfied, 'cancel_remaining') end
                   order by f.node, f.grp) filter (where f.size > 0),
         (array_agg(array[
            format('groups[%s]%s', f.last - 1,
                   case when f.given > 1 then '' when f.size = 0 then '.node' else '.k' end),
            case when f.given > 1 then 'is given twice'
                 when f.size = 0 then 'no edge leads to this group'
                 else format('is %s, but only %s edges lead to the group', f.k, f.size) end]
            order by f.last)
          filter (where f.given > 1 or f.size = 0 or f.k > f.size))[1:1]
    into downstreams, group_nos, sizes, policies, ks, on_satisfied, problem
  from (
    select a.node, a.grp, count(*) filter (where a.n is null)::integer as size,
           coalesce(min(a.policy), 'all_of') as policy, min(a.k) as k,
           min(a.on_satisfied) as on_satisfied, count(a.n) as given, max(a.n) as last
    from (
      select u.node, u.grp, null::bigint as n, null::ff.group_policy as policy, null::integer as k,
             null::ff.on_satisfied as on_satisfied
      from unnest(p_downstreams, p_group_nos) u(node, grp)
      union all
      select (i.v ->> 'node')::integer, coalesce((i.v ->> 'group')::smallint, 0::smallint), i.n,
             (i.v ->> 'policy')::ff.group_policy, (i.v ->> 'k')::integer,
             (i.v ->> 'on_satisfied')::ff.on_satisfied
      from jsonb_array_elements(p_groups) with ordinality i(v, n)) a
    group by a.node, a.grp) f;
  if problem is not null then
    problem := array[problem[1][1], problem[1][2]];
  end if;
end;
$$;
