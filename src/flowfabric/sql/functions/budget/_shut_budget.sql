-- Shut or open a budget and its lines, depending on its usage. The caller has locked the budget.
--
-- A budget is shut if the used and refused amounts of a dimension together reach its hard limit. If
-- the refused amounts did not count, the usage could stay just below the limit: executions would
-- still start, and the usage of each would be refused. A budget with on_exceed `warn` is never
-- shut.
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
