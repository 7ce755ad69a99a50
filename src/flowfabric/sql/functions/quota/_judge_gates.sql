-- Judge the quotas and budgets of submitted items. If an item names gates that are not registered,
-- the verdict is `unknown_gate`, and the detail lists the ids of these gates. Otherwise, if the
-- item names a quota that has no room and whose overflow is `refuse`, the verdict is
-- `limit_reached`. Other items get no verdict.
--
-- An item whose idempotency key is already stored does not get `limit_reached`. It is probably a
-- duplicate, and nothing is stored for a duplicate.
--
-- Items in p_skip are left out. p_options are options of submit_executions that have been checked.
-- If the array has one value, this value applies to all items.
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
  v_asked    bigint[];
  v_known    bigint[];
  v_unknown  bigint[];
  v_full     bigint[];
  v_refusing bigint[];
  v_all      bigint[] := '{}';
  v_now      timestamptz;
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
        x(id)) g);
  if v_asked = '{}' then
    return '{}';
  end if;
  v_known := array(
    select g.gate_id from ff.gate g
    where g.partition_key = p_partition_key and g.gate_id = any (v_asked)
      and case when g.namespace = p_namespace then true else false end);
  v_known := v_known || array(
    select b.budget_id from ff.budget b
    where b.budget_id = any (v_asked)
      and case when b.namespace = p_namespace then true else false end);
  v_unknown := array(select a.id from unnest(v_asked) a(id) where a.id <> all (v_known));
  v_now := ff.now();
  v_full := array(
    select a.id from unnest(v_asked) a(id)
    cross join lateral (
      select g.max_running, g.running + (g.reserved_for is not null)::integer as running, g.opens_at
      from ff.gate g
      where g.partition_key = p_partition_key and g.gate_id = a.id and g.is_refusing offset 0) x
    where x.opens_at > v_now
      or exists (select from ff.execution e
                 where e.partition_key = p_partition_key and e.line_id = a.id offset 0)
      or x.max_running <= x.running - coalesce((
           select sum(r.slots) from ff.gate_release r
           where r.partition_key = p_partition_key and r.gate_id = a.id), 0));
  if ff._count_partitions() > 1 then
    -- This partition has only a share of the limit.
    v_refusing := array(
      select a.id from unnest(v_asked) a(id)
      where exists (
        select from ff.gate g
        where g.partition_key = p_partition_key and g.gate_id = a.id
          and case when g.is_refusing then true else false end offset 0));
    for v_nth in 1..cardinality(v_refusing) loop
      if ff._is_used_up(
           p_partition_key, v_refusing[v_nth], v_refusing[v_nth] = any (v_full), v_now) then
        v_all := v_all || v_refusing[v_nth];
      end if;
    end loop;
    v_full := v_all;
  end if;
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
    where u.n <> all (p_skip) and (
      w.unknown is not null
      or w.gate_id is not null
         and not exists (
           select from ff.idempotency_key k
           where k.partition_key = p_partition_key and k.namespace = p_namespace
             and k.key = coalesce(u.o, p_options[1]) ->> 'key' offset 0))), '{}');
end;
$$;
