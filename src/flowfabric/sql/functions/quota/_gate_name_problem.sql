-- Check the name and the key of a quota or budget. Return the field and the text of the first
-- problem, or null. p_field is the field in which the caller gave the name. The key '' means no
-- key.
drop function if exists ff._gate_name_problem;
create function ff._gate_name_problem(p_field text, p_namespace text, p_name text, p_key text)
returns text[]
language plpgsql
immutable
as $$
begin
  return case
    when p_namespace is null or p_namespace = '' or octet_length(p_namespace) > 256
      or p_namespace ~ E'[\x01-\x20\x7f]'
      then array['namespace', 'must be 1 to 256 bytes without whitespace or control characters']
    when p_name is null or p_name = '' or octet_length(p_name) > 256 or p_name ~ E'[\x01-\x20\x7f]'
      then array[p_field, 'must be 1 to 256 bytes without whitespace or control characters']
    when starts_with(p_name, 'ff:')
      then array[p_field, 'must not begin with ff:, which is kept for the limits of lanes']
    when octet_length(p_key) > 256 or p_key ~ E'[\x01-\x1f\x7f]'
      then array['key', 'must be at most 256 bytes without control characters'] end;
end;
$$;
