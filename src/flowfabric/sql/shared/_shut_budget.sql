-- Shut or open a budget by its usage, and its lines with it. The caller holds the lock of the budget.
--
-- A budget is shut if a dimension has used and refused its hard limit: without what was refused, usage
-- would stay just below the limit, and every new run would be refused in vain. With on_exceed warn a
-- budget is never shut.
drop function if exists ff._shut_budget;
create function ff._shut_budget(p_budget_id bigint)
returns void
language plpgsql
as $$
declare
  v_was_shut boolean;
  v_is_shut  boolean;
begin
  select b.is_shut,
         b.on_exceed <> 'warn' and exists (
           select from ff.budget_dimension d
           where d.budget_id = p_budget_id
             and d.usage::numeric + d.refused >= coalesce(d.raised_hard, d.declared_hard)
           offset 0)
    into v_was_shut, v_is_shut
  from ff.budget b where b.budget_id = p_budget_id;
  if v_is_shut = v_was_shut then
    return;
  end if;
  update ff.budget b set is_shut = v_is_shut where b.budget_id = p_budget_id;
  for v_partition in 0..ff._count_partitions() - 1 loop
    perform ff._set_lines(v_partition::smallint, p_budget_id, not v_is_shut);
  end loop;
end;
$$;
