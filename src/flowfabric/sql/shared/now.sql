-- Read the engine's clock. Tests replace this function with a settable clock, so a migration never
-- drops it. It has no search_path, because Postgres never inlines a function that has one.
create or replace function ff.now()
returns timestamptz
language sql
volatile
as $$ select pg_catalog.clock_timestamp() $$;
