-- Delete an orphaned schedule. Its executions stay.
--
-- A declared schedule cannot be deleted, because the next worker would declare it again.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the row of the schedule, waiting up to 2 s
-- Repeat:   `forgotten` again, because the schedule does not exist
-- Rights:   app
drop function if exists ff.forget_schedule;
create function ff.forget_schedule(p_namespace text, p_app text, p_name text)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
begin
  perform ff._check_namespace(p_namespace);
  delete from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name
    and s.orphaned_at is not null;
  if exists (
      select from ff.schedule s
      where s.namespace = p_namespace and s.app = p_app and s.name = p_name) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'name', 'problem', 'is declared by its app; only an orphaned schedule is removed'));
  end if;
  return query select 'forgotten';
end;
$$;
