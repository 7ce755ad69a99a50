-- Resets a used test database to its first state, or reports that it cannot; then the database is
-- dropped. Runs after a test, on a connection with session_replication_role = replica, so that no
-- trigger fires.

-- The statements of a test that changed the catalogue. Deleting rows cannot undo them. Objects in
-- the schema public can be dropped; statements that changed only this schema have is_public.
create table ff_test.changed_catalogue (tag text, is_public boolean);

-- The tables with rows in the template to which a test has written.
create table ff_test.changed_rows (name text);

create function ff_test.note_command()
returns event_trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into ff_test.changed_catalogue
  select tg_tag, count(*) > 0 and coalesce(bool_and(coalesce(c.schema_name = 'public', false)), false)
  from pg_event_trigger_ddl_commands() c;
end;
$$;

create function ff_test.note_rows()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into ff_test.changed_rows values (tg_table_name);
  return null;
end;
$$;

-- Returns what identifies the statistics of the planner and the settings of the database.
create function ff_test.settings()
returns numeric[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return array[
    (select count(*) + sum(s.xmin::text::bigint) from pg_statistic s),
    (select count(*) from pg_db_role_setting s
     join pg_database d on d.oid = s.setdatabase and d.datname = current_database())];
end;
$$;

-- Creates three functions for the existing tables. A table that has rows now is restored from a copy
-- if a test has written to it; the other tables are emptied.
do $do$
declare
  v_table    regclass;
  v_has_any  boolean;
  v_copy     text;
  v_sums     text := '';
  v_restores text := '';
  v_deletes  text := '';
begin
  for v_table in
    select c.oid from pg_class c where c.relnamespace = 'ff'::regnamespace and c.relkind = 'r'
  loop
    execute format('select exists (select from %s)', v_table) into v_has_any;
    if v_has_any then
      v_copy := format('ff_test.copy_%s', v_table::oid);
      execute format('create table %s as select * from %s', v_copy, v_table);
      execute format('create trigger note_rows after insert or update or delete or truncate on %s '
                     'for each statement execute function ff_test.note_rows()', v_table);
      execute format('alter table %s enable always trigger note_rows', v_table);
      v_sums := v_sums || format('(select sum(hashtextextended(t::text, 0)) from %s t),', v_table);
      v_restores := v_restores || format(
        'delete from %1$s; insert into %1$s overriding system value select * from %2$s;',
        v_table, v_copy);
    else
      v_deletes := v_deletes || format(
        'delete from %s; get diagnostics v_rows = row_count; v_sum := v_sum + v_rows;', v_table);
    end if;
  end loop;

  execute format($format$
    create function ff_test.fingerprint() returns numeric[] language plpgsql stable
    set search_path = pg_catalog, pg_temp
    as $$
    begin
      return array[%s] || ff_test.settings();
    end
    $$
    $format$, rtrim(v_sums, ','));

  execute format($format$
    create function ff_test.restore_rows() returns void language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$ begin %s end $$
    $format$, v_restores);

  execute format($format$
    create function ff_test.delete_rows() returns bigint language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
    declare
      v_rows bigint;
      v_sum  bigint := 0;
    begin
      %s
      return v_sum;
    end
    $$
    $format$, v_deletes);
end
$do$;

-- Resets the database and returns whether it succeeded. p_ours are the backends of the connections
-- that the next test will use; all other backends are ended. p_fingerprint is the first value of
-- ff_test.fingerprint().
create function ff_test.reset(p_ours integer[], p_fingerprint numeric[])
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_sequence regclass;
  v_table    regclass;
begin
  perform pg_terminate_backend(a.pid, 10000)
  from pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.pid <> all (p_ours);

  if exists (select from ff_test.changed_catalogue c where not c.is_public) then
    return false;
  end if;
  if exists (select from ff_test.changed_catalogue) then
    for v_table in
      select c.oid from pg_class c
      where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
    loop
      execute format('drop table %s cascade', v_table);
    end loop;
    if exists (
      select from pg_class c where c.relnamespace = 'public'::regnamespace
      union all
      select from pg_proc p where p.pronamespace = 'public'::regnamespace
      union all
      select from pg_type t where t.typnamespace = 'public'::regnamespace
    ) then
      return false;
    end if;
    delete from ff_test.changed_catalogue;
  end if;
  -- After many deleted rows, give the database up: queries would have to skip the dead rows.
  if ff_test.delete_rows() > 2000 then
    return false;
  end if;
  for v_sequence in
    select c.oid from pg_class c where c.relnamespace = 'ff'::regnamespace and c.relkind = 'S'
  loop
    perform setval(v_sequence, 1, false);
  end loop;
  update ff_test.clock set shift = interval '0', frozen_at = null
  where shift <> interval '0' or frozen_at is not null;
  if not exists (select from ff_test.changed_rows) then
    return p_fingerprint[cardinality(p_fingerprint) - 1:] = ff_test.settings();
  end if;
  perform ff_test.restore_rows();
  delete from ff_test.changed_rows;
  return p_fingerprint = ff_test.fingerprint();
end;
$$;

create event trigger note_command on ddl_command_end execute function ff_test.note_command();
