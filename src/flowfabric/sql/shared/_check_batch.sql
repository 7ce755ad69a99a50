-- Refuse a malformed batch of arrays. A batch has 1 to 1000 items. Its arrays have the same length
-- and begin at index 1, because functions find an item by its index. p_wait is allowed only with a
-- single item.
--
-- p_size is the number of ids. p_sizes has the lengths of the other arrays, and in some calls the
-- upper bound of the array of ids; every entry must equal p_size. p_firsts has the lower bounds of
-- the arrays and their numbers of dimensions; every entry must be 1. A null entry stands for an
-- array that was not given, and is ignored.
drop function if exists ff._check_batch;
create function ff._check_batch(
  p_size   integer,
  p_sizes  integer[],
  p_wait   boolean default false,
  p_firsts integer[] default '{}'
)
returns void
language plpgsql
immutable
as $$
begin
  if p_size is null or p_size not between 1 and 1000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_ids', 'problem', 'must hold 1 to 1000 items'));
  end if;
  if p_size <> any (p_sizes) or 1 <> any (p_firsts) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_ids', 'problem',
      'arrays of one call must have the same length, one dimension, and count from 1'));
  end if;
  if p_wait and p_size > 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'wait', 'problem', 'only a single item may wait for its row'));
  end if;
end;
$$;
