-- Bind new executions to their parents. Lock the parents in id order, without waiting, and mark
-- them (is_awaited), so that their ends are propagated. Return verdicts on the items that must be
-- refused.
--
-- If another transaction has locked a parent, the verdict on its children is busy, because that
-- transaction may be ending the parent. If a parent has ended or is gone, the verdict on its
-- children is parent_ended, and the parent is not marked.
drop function if exists ff._bind_to_parents;
create function ff._bind_to_parents(
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
  v_locked uuid[];
  v_open   uuid[];
begin
  select array_agg(l.execution_id), array_agg(l.execution_id) filter (where l.phase <> 'terminal')
    into v_locked, v_open
  from (
    select distinct (u.o ->> 'parent_id')::uuid as parent_id
    from unnest(p_options) with ordinality u(o, n)
    where u.n <> all (p_skip) and u.o -> 'with_parent' = 'true'
    order by 1
  ) a
  cross join lateral (
    select e.execution_id, e.phase from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = a.parent_id
      and case when e.namespace = p_namespace then true else false end
    for no key update skip locked
  ) l;

  update ff.execution e set is_awaited = true
  from (select p_partition_key as pk, u.id from unnest(v_open) u(id) offset 0) i
  where e.partition_key = i.pk and e.execution_id = i.id
    and case when e.is_awaited then false else true end;

  return coalesce((
    select array_agg(row(
             u.n, u.id,
             case when x.execution_id is null or u.parent_id = any (v_locked) then 'parent_ended'
                  else 'busy' end,
             null, null,
             case when x.execution_id is null or u.parent_id = any (v_locked)
               then jsonb_build_object(
                 'parent_id', format('{fp:%s}:%s', p_partition_key, u.parent_id)) end)::ff.verdict)
    from (select i.id, (i.o ->> 'parent_id')::uuid as parent_id, i.n
          from unnest(p_execution_ids, p_options) with ordinality i(id, o, n)
          where i.n <> all (p_skip) and i.o -> 'with_parent' = 'true'
          offset 0) u
    left join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.parent_id
        and case when e.namespace = p_namespace then true else false end
      offset 0) x on true
    where u.parent_id <> all (coalesce(v_open, '{}'))
  ), '{}');
end;
$$;
