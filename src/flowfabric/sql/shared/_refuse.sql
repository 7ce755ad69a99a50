-- Raise a refusal: a WFnnn code, its stable name, and the facts that the caller needs to correct
-- the call.
drop function if exists ff._refuse;
create function ff._refuse(p_code text, p_name text, p_detail jsonb default '{}')
returns void
language plpgsql
as $$
begin
  raise exception using
    errcode = p_code,
    message = p_name,
    detail = p_detail::text;
end;
$$;
