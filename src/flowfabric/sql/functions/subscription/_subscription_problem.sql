-- Check the name, the filters and the options of a subscription. Return the field and the text of
-- the first problem, or null.
drop function if exists ff._subscription_problem;
create function ff._subscription_problem(
  p_namespace     text,
  p_name          text,
  p_kinds         text[],
  p_tasks         text[],
  p_lanes         text[],
  p_instance_tags text[],
  p_on_expiry     text,
  p_keep          interval
)
returns text[]
language plpgsql
stable
as $$
declare
  v_unknown constant text := (
    select k.kind from unnest(p_kinds) k(kind)
    where k.kind is null or k.kind <> all (enum_range(null::ff.event_kind)::text[])
    limit 1);
begin
  return case
    when p_namespace is null or p_namespace !~ E'^[^\x01-\x20\x7f]+$'
         or octet_length(p_namespace) > 256
      then array['namespace', 'must be 1 to 256 bytes without blanks or control characters']
    when p_name is null or p_name !~ E'^[^\x01-\x20\x7f]+$' or octet_length(p_name) > 256
      then array['name', 'must be 1 to 256 bytes without blanks or control characters']
    when array_ndims(p_kinds) > 1 then array['kinds', 'must be a list of kinds']
    when v_unknown is not null or array_position(p_kinds, null) is not null
      then array['kinds', coalesce(v_unknown, 'null') || ' is not a kind of event']
    when cardinality(p_kinds) = 0 then array['kinds', 'must not be empty; leave it out for all']
    when exists (select from unnest(p_tasks) t where t is null or octet_length(t) > 256)
         or cardinality(p_tasks) not between 1 and 100
      then array['tasks', 'must be 1 to 100 names of at most 256 bytes; leave it out for all']
    when exists (select from unnest(p_lanes) t where t is null or octet_length(t) > 256)
         or cardinality(p_lanes) not between 1 and 100
      then array['lanes', 'must be 1 to 100 names of at most 256 bytes; leave it out for all']
    when exists (select from unnest(p_instance_tags) t where t is null or octet_length(t) > 256)
         or cardinality(p_instance_tags) not between 1 and 100
      then array['instance_tags', 'must be 1 to 100 texts of at most 256 bytes; leave it out for all']
    when p_on_expiry is null or p_on_expiry not in ('stop', 'resume')
      then array['on_expiry', 'must be stop or resume']
    when ff._is_within(p_keep, interval '0', interval '30 days') is not true
      then array['keep', 'must be between 0 and 30 days, in days or smaller units'] end;
end;
$$;
