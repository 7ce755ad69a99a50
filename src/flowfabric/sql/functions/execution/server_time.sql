-- Read the database's clock, which all timers use.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.server_time;
create function ff.server_time()
returns timestamptz
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now constant timestamptz := ff.now();
begin
  return v_now;
end;
$$;
