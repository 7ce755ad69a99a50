-- Refuse a batch size or a page size that is not between 1 and 10 000.
drop function if exists ff._check_limit;
create function ff._check_limit(p_limit integer)
returns void
language plpgsql
immutable
as $$
begin
  if p_limit is null or p_limit not between 1 and 10000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'limit', 'problem', 'must be 1 to 10000'));
  end if;
end;
$$;
