-- Check the usage and the dedup key of a report. The usage is a JSON object that maps dimensions to
-- amounts. Return the field and the text of the first problem, or null.
drop function if exists ff._usage_problem;
create function ff._usage_problem(p_usage jsonb, p_dedup_key text)
returns text[]
language plpgsql
immutable
as $$
begin
  return case
    when jsonb_typeof(p_usage) is distinct from 'object' or p_usage = '{}'
      then array['usage', 'must be an object of dimension: amount']
    when (select count(*) from jsonb_object_keys(p_usage)) > 100
      then array['usage', 'must be at most 100 dimensions']
    when exists (
        select from jsonb_each(p_usage) u(dimension, amount)
        where u.dimension !~ E'^[^\x01-\x20\x7f]{1,64}$')
      then array['usage', 'must name dimensions of 1 to 64 characters without whitespace']
    when exists (
        select from jsonb_each(p_usage) u(dimension, amount)
        where (u.amount::text ~ '^[0-9]{1,19}$') is not true
          or (u.amount #>> '{}')::numeric > 9223372036854775807)
      then array['usage', 'must be whole numbers from 0 to 9223372036854775807']
    when octet_length(p_dedup_key) > 256 or p_dedup_key ~ E'[\x01-\x1f\x7f]'
      then array['dedup_key', 'must be at most 256 bytes without control characters'] end;
end;
$$;
