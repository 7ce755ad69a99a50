-- Refuse a batch whose arrays differ in length. A null array does not count.
drop function if exists ff._check_batch;
create function ff._check_batch(p_size integer, p_sizes integer[], p_wait boolean default false)
returns void
language plpgsql
immutable
as $$
begin
  if p_size is null or p_size not between 1 and 1000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_ids', 'problem', 'must hold 1 to 1000 items'));
  end if;
  if p_size <> any (p_sizes) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_ids', 'problem', 'arrays of one call must have the same length'));
  end if;
  if p_wait and p_size > 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'wait', 'problem', 'only a single item may wait for its row'));
  end if;
end;
$$;
