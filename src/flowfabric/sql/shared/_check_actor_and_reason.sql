-- Refuse an actor or a reason that is longer than 256 bytes or contains control characters. Null is
-- accepted.
drop function if exists ff._check_actor_and_reason;
create function ff._check_actor_and_reason(p_actor text, p_reason text)
returns void
language plpgsql
immutable
as $$
declare
  v_field constant text := case
    when octet_length(p_actor) > 256 or p_actor ~ E'[\x01-\x1f\x7f]' then 'actor'
    when octet_length(p_reason) > 256 or p_reason ~ E'[\x01-\x1f\x7f]' then 'reason' end;
begin
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_field, 'problem', 'must be at most 256 bytes without control characters'));
  end if;
end;
$$;
