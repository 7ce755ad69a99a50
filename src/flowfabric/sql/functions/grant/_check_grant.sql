-- Refuse malformed arguments of a grant, before any table is read.
drop function if exists ff._check_grant;
create function ff._check_grant(
  p_execution_id uuid,
  p_key          bytea,
  p_grant_ttl    interval default interval '1 second'
)
returns void
language plpgsql
immutable
as $$
declare
  v_field   text;
  v_problem text;
begin
  if ff._is_nil_id(p_execution_id) then
    v_field := 'execution_id'; v_problem := 'must be the id of an execution';
  elsif p_key is null or octet_length(p_key) <> 32 then
    v_field := 'key'; v_problem := 'must be 32 random bytes made for this grant';
  elsif ff._is_within(p_grant_ttl, interval '1 millisecond', interval '1 minute') is not true then
    v_field := 'grant_ttl'; v_problem := 'must be between one millisecond and one minute';
  else
    return;
  end if;
  perform ff._refuse('WF001', 'invalid_input',
                     jsonb_build_object('field', v_field, 'problem', v_problem));
end;
$$;
