-- Compute the state of an edge group from its counts. p_lost is the number of upstreams that ended
-- without success. A group with enough successes is satisfied, whatever p_lost is. The order of the
-- ends does not matter.
drop function if exists ff._evaluate_group;
create function ff._evaluate_group(
  p_policy    ff.group_policy,
  p_k         integer,
  p_n         integer,
  p_succeeded integer,
  p_lost      integer
)
returns ff.group_state
language plpgsql
immutable
as $$
declare
  v_needed constant integer := case p_policy when 'all_of' then p_n when 'any_of' then 1 else p_k end;
begin
  return case
    when p_n = 0 then 'pending'
    when p_succeeded >= v_needed then 'satisfied'
    when p_lost > p_n - v_needed then 'impossible'
    else 'pending' end;
end;
$$;
