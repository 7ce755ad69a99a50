-- Tell whether a code version is valid. Null is valid.
drop function if exists ff._is_code_version;
create function ff._is_code_version(p_code_version text)
returns boolean
language plpgsql
immutable
as $$
begin
  return p_code_version is null
    or (p_code_version ~ E'^[^\x01-\x20\x7f]+$' and octet_length(p_code_version) <= 64);
end;
$$;
