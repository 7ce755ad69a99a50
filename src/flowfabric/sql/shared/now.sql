-- Read the engine's clock. Tests replace this function by a settable clock, so a migration never
-- drops it. It has no search_path of its own, because that would prevent inlining.
create or replace function ff.now()
returns timestamptz
language sql
volatile
as $$ select pg_catalog.clock_timestamp() $$;
