-- Judge the quotas and budgets of submitted items: `unknown_gate` names the ids to register,
-- `limit_reached` a quota without room that refuses what does not fit. Items in p_skip are left out.
-- Options are those of submit_executions: an array of one value applies to all items.
drop function if exists ff._judge_gates;
create function ff._judge_gates(
  p_partition_key smallint,
  p_namespace     text,
  p_skip          integer[],
  p_execution_ids uuid[],
  p_options       jsonb[]
)
returns ff.verdict[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_asked   bigint[];
  v_unknown bigint[];
  v_full    bigint[];
begin
  v_asked := array(
    select distinct (g.id #>> '{}')::bigint
    from unnest(p_options) u(o)
    cross join lateral (
      select x.id from jsonb_array_elements(
        case when jsonb_typeof(u.o -> 'quotas') = 'array' then u.o -> 'quotas' else '[]' end) x(id)
      union all
      select x.id from jsonb_array_elements(
        case when jsonb_typeof(u.o -> 'budgets') = 'array' then u.o -> 'budgets' else '[]' end)
        x(id)) g
    where (g.id #>> '{}') ~ '^[0-9]{1,18}$'
      or (g.id #>> '{}')::numeric <= 9223372036854775807);
  v_unknown := array(
    select a.id from unnest(v_asked) a(id)
    where case when a.id < 4611686018427387904
            then not exists (
              select from ff.gate g
              where g.partition_key = p_partition_key and g.gate_id = a.id
                and case when g.namespace = p_namespace then true else false end offset 0)
            else not exists (
              select from ff.budget b
              where b.budget_id = a.id
                and case when b.namespace = p_namespace then true else false end offset 0) end);
  v_full := array(
    select a.id from unnest(v_asked) a(id)
    cross join lateral (
      select g.max_running, g.running, g.opens_at from ff.gate g
      where g.partition_key = p_partition_key and g.gate_id = a.id and g.is_refusing offset 0) x
    where x.opens_at is not null
      or exists (select from ff.line y
                 where y.partition_key = p_partition_key and y.gate_id = a.id offset 0)
      or x.max_running <= x.running - coalesce((
           select sum(r.slots) from ff.gate_release r
           where r.partition_key = p_partition_key and r.gate_id = a.id), 0));
  if v_unknown = '{}' and v_full = '{}' then
    return '{}';
  end if;
  return coalesce((
    select array_agg(row(
             u.n::integer, u.id,
             case when w.unknown is not null then 'unknown_gate' else 'limit_reached' end, null, null,
             case when w.unknown is not null then jsonb_build_object('gate_ids', w.unknown)
                  else jsonb_build_object('gate_id', w.gate_id, 'quota', k.quota, 'key', k.key) end
           )::ff.verdict)
    from unnest(p_execution_ids, case when cardinality(p_options) > 1 then p_options end)
      with ordinality u(id, o, n)
    cross join lateral (
      select jsonb_agg(g.id order by g.id) filter (where g.id::bigint = any (v_unknown)) as unknown,
             min(g.id::bigint) filter (where g.id::bigint = any (v_full)) as gate_id
      from (
        select x.id from jsonb_array_elements_text(nullif(coalesce(u.o, p_options[1]) -> 'quotas',
                                                          'null')) x(id)
        union all
        select x.id from jsonb_array_elements_text(nullif(coalesce(u.o, p_options[1]) -> 'budgets',
                                                          'null')) x(id)) g) w
    left join lateral (
      select g.quota, g.key from ff.gate g
      where g.partition_key = p_partition_key and g.gate_id = w.gate_id offset 0) k on true
    where u.n <> all (p_skip) and (w.unknown is not null or w.gate_id is not null)), '{}');
end;
$$;
