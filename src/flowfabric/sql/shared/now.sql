-- The engine's clock. Tests replace it with one they can set; it is replaced, never dropped.
-- Without a search_path of its own, so that the planner inlines it.
create or replace function ff.now()
returns timestamptz
language sql
volatile
as $$ select pg_catalog.clock_timestamp() $$;
