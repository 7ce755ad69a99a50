-- Check a signal. Return the field and the text of the first problem, or null.
drop function if exists ff._signal_problem;
create function ff._signal_problem(
  p_execution_id    uuid,
  p_signal_id       uuid,
  p_name            text,
  p_encoding        text,
  p_dedup_key       text,
  p_source_type     text,
  p_source_identity text,
  p_category        text,
  p_correlation_id  text,
  p_is_approval     boolean default false
)
returns text[]
language plpgsql
immutable
as $$
begin
  return case
    when p_execution_id is null then array['execution_id', 'must be the id of an execution']
    when p_signal_id is null or ff._is_nil_id(p_signal_id)
      then array['signal_id', 'must be an id that the caller has minted']
    when ff._signal_name_problem(p_name) is not null
      then array['name', ff._signal_name_problem(p_name)]
    when p_is_approval and p_name not in ('approved', 'rejected')
      then array['name', 'must be approved or rejected: the token belongs to an approval']
    when octet_length(p_encoding) > 64 then array['payload_encoding', 'must be at most 64 bytes']
    when p_dedup_key = '' or octet_length(p_dedup_key) > 256
      then array['dedup_key', 'must be 1 to 256 bytes']
    when octet_length(p_source_type) > 64 then array['source_type', 'must be at most 64 bytes']
    when octet_length(p_source_identity) > 256
      or p_source_identity ~ E'[\x01-\x1f\x7f]'
      then array['source_identity', 'must be at most 256 bytes without control characters']
    when octet_length(p_category) > 64 then array['category', 'must be at most 64 bytes']
    when octet_length(p_correlation_id) > 256
      then array['correlation_id', 'must be at most 256 bytes']
  end;
end;
$$;
