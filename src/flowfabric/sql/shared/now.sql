-- Read the engine's clock. Tests replace this function with a settable clock, so it is replaced,
-- never dropped. It has no search_path of its own, because that would prevent inlining.
create or replace function ff.now()
returns timestamptz
language sql
volatile
as $$ select pg_catalog.clock_timestamp() $$;
