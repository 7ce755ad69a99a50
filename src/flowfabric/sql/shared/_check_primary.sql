-- Refuse a call on a standby. A standby lags, and its snapshots differ from the snapshots of the
-- primary.
drop function if exists ff._check_primary;
create function ff._check_primary()
returns void
language plpgsql
stable
as $$
begin
  if pg_is_in_recovery() then
    perform ff._refuse('WF203', 'read_only_server', jsonb_build_object(
      'hint', 'connect to the primary: a standby cannot tell which events are still to come'));
  end if;
end;
$$;
