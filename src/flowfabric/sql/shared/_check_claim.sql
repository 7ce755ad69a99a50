-- Refuse malformed arguments of a claim. This function reads no table.
drop function if exists ff._check_claim;
create function ff._check_claim(
  p_worker_id          text,
  p_worker_instance_id text,
  p_claim_id           uuid,
  p_capabilities       text[],
  p_limit              integer,
  p_lease_ttl          interval,
  p_floor_rank         smallint default null
)
returns void
language plpgsql
immutable
as $$
declare
  v_field   text;
  v_problem text := 'must be 1 to 256 bytes without whitespace or control characters';
begin
  if p_worker_id is null or p_worker_id !~ E'^[^\x01-\x20\x7f]+$'
     or octet_length(p_worker_id) > 256 then
    v_field := 'worker_id';
  elsif p_worker_instance_id is null or p_worker_instance_id !~ E'^[^\x01-\x20\x7f]+$'
     or octet_length(p_worker_instance_id) > 256 then
    v_field := 'worker_instance_id';
  elsif ff._is_nil_id(p_claim_id) then
    v_field := 'claim_id'; v_problem := 'must be a uuid made for this call, not the nil uuid';
  elsif p_capabilities is null or cardinality(p_capabilities) > 256
     or octet_length(array_to_string(p_capabilities, ',')) > 4096 then
    v_field := 'capabilities'; v_problem := 'must be at most 256 tokens and 4096 bytes';
  elsif array_ndims(p_capabilities) > 1 or array_position(p_capabilities, null) is not null
     or array_to_string(p_capabilities, '') ~ E'[\x01-\x20\x7f,]'
     or array_position(p_capabilities, '') is not null then
    v_field := 'capabilities';
    v_problem := 'tokens must not be empty or contain commas, whitespace or control characters';
  elsif p_limit is null or p_limit not between 1 and 1000 then
    v_field := 'limit'; v_problem := 'must be 1 to 1000';
  elsif ff._is_within(p_lease_ttl, interval '1 second', interval '1 day') is not true then
    v_field := 'lease_ttl'; v_problem := 'must be between one second and one day';
  elsif p_floor_rank not between 0 and 9000 then
    v_field := 'floor_rank'; v_problem := 'must be 0 to 9000';
  else
    return;
  end if;
  perform ff._refuse('WF001', 'invalid_input',
                     jsonb_build_object('field', v_field, 'problem', v_problem));
end;
$$;
