-- A clock that tests can set. It replaces the engine's own clock. All connections read the same
-- row. Only templates of test databases have this clock.
create schema if not exists ff_test;

create table ff_test.clock (
  is_only   boolean     primary key default true check (is_only),
  shift     interval    not null default interval '0',
  frozen_at timestamptz
);
insert into ff_test.clock default values;

create or replace function ff.now()
returns timestamptz
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return (select coalesce(c.frozen_at, clock_timestamp() + c.shift) from ff_test.clock c);
end;
$$;

create function ff_test.set_clock(p_when timestamptz)
returns timestamptz
language sql
as $$
  update ff_test.clock
  set shift = p_when - clock_timestamp(),
      frozen_at = case when frozen_at is not null then p_when end;
  select ff.now();
$$;

create function ff_test.advance_clock(p_span interval)
returns timestamptz
language sql
as $$
  update ff_test.clock set shift = shift + p_span, frozen_at = frozen_at + p_span;
  select ff.now();
$$;

create function ff_test.freeze_clock(p_when timestamptz)
returns timestamptz
language sql
as $$
  update ff_test.clock set frozen_at = coalesce(p_when, ff.now());
  select ff.now();
$$;

create function ff_test.run_clock()
returns timestamptz
language sql
as $$
  update ff_test.clock set shift = frozen_at - clock_timestamp(), frozen_at = null
  where frozen_at is not null;
  select ff.now();
$$;

-- Move the clock forward for all connections. The leases of the workers in p_living move with it,
-- as if these workers had renewed their leases.
create function ff_test.skip(p_span interval, p_living text[])
returns timestamptz
language sql
as $$
  update ff.execution
  set lease_expires_at = lease_expires_at + p_span
  where ownership = 'leased' and worker_instance_id = any(p_living);
  select ff_test.advance_clock(p_span);
$$;
