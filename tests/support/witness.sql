-- The witness guards test databases. It refuses every state change that ff.transition does not
-- list, and every state change that must write an event and does not write exactly that event. It
-- checks when a statement ends, because a state change and its event are written in one statement.
-- With distributed tables a submit needs two statements: there the event may come later in the
-- transaction (witness_pairs.sql).

create function ff_test.refuse(p_problem text, p_execution_id uuid, p_detail text)
returns void
language plpgsql
as $$
begin
  raise exception using
    errcode = 'WF290',
    message = p_problem,
    detail = format('execution %s: %s', p_execution_id, p_detail);
end;
$$;

-- Returns the problem with one state change of an execution, or null.
create function ff_test.move_problem(p_old ff.execution, p_new ff.execution)
returns text
language plpgsql
stable
as $$
declare
  v_kinds  ff.event_kind[];
  v_events ff.event_kind[];
begin
  if p_old.phase is not null
     and (p_old.phase, p_old.ownership, p_old.eligibility, p_old.attempt_state, p_old.version)
       = (p_new.phase, p_new.ownership, p_new.eligibility, p_new.attempt_state, p_new.version)
  then
    return case
      when p_old.cause <> p_new.cause then 'the cause changed without a transition'
      when p_old.outcome <> p_new.outcome then 'the outcome changed without a transition'
      when p_old.transitioned_at <> p_new.transitioned_at
        then 'transitioned_at changed without a transition'
    end;
  end if;

  select array_agg(t.event_kind) into v_kinds
  from ff.transition t
  where t.cause = p_new.cause
    and (t.from_phase, t.from_ownership, t.from_eligibility, t.from_attempt_state)
      is not distinct from (p_old.phase, p_old.ownership, p_old.eligibility, p_old.attempt_state)
    and (t.to_phase, t.to_ownership, t.to_eligibility, t.to_attempt_state)
      = (p_new.phase, p_new.ownership, p_new.eligibility, p_new.attempt_state);
  if v_kinds is null then
    return 'not in ff.transition';
  end if;

  if p_new.version = coalesce(p_old.version, 0) then
    return case when array_position(v_kinds, null) is null
             then 'a loud transition did not raise the version' end;
  end if;
  if array_remove(v_kinds, null) = '{}' then
    return 'a quiet transition raised the version';
  end if;
  if p_new.version <> coalesce(p_old.version, 0) + 1 then
    return 'the version was not raised by one';
  end if;
  select coalesce(array_agg(v.kind), '{}') into v_events
  from ff.event v
  where v.partition_key = p_new.partition_key and v.execution_id = p_new.execution_id
    and v.version = p_new.version;
  return case
    when cardinality(v_events) = 0 then 'a loud transition without its event'
    when cardinality(v_events) > 1 then 'a transition with more than one event'
    when v_events[1] <> all (array_remove(v_kinds, null)) then 'an event of the wrong kind'
  end;
end;
$$;

create function ff_test.describe_move(p_old ff.execution, p_new ff.execution)
returns text
language sql
stable
as $$
  select format('%s: %s/%s/%s/%s v%s -> %s/%s/%s/%s v%s', p_new.cause,
                p_old.phase, p_old.ownership, p_old.eligibility, p_old.attempt_state, p_old.version,
                p_new.phase, p_new.ownership, p_new.eligibility, p_new.attempt_state, p_new.version)
$$;

-- Whether a new execution may get its event by a later statement: not with plain tables.
create function ff_test.may_pair()
returns boolean
language sql
stable
as $$
  select exists (select from ff.meta m where m.name = 'distributed' and m.value = 'true')
$$;

-- One plan serves all statements of a session, with one row or with 10 000. So table rows are found
-- by an index, and the rows of one statement are joined by a hash.
create function ff_test.witness_insert()
returns trigger
language plpgsql
set plan_cache_mode = auto
set enable_seqscan = off
set enable_hashjoin = off
as $$
begin
  perform ff_test.refuse(w.problem, w.execution_id, w.detail)
  from (
    select n.execution_id, ff_test.move_problem(null, n) as problem,
           ff_test.describe_move(null, n) as detail
    from new_rows n
  ) w
  where w.problem is not null
    and not (w.problem = 'a loud transition without its event' and ff_test.may_pair());
  return null;
end;
$$;

create function ff_test.witness_update()
returns trigger
language plpgsql
set plan_cache_mode = auto
set enable_seqscan = off
set enable_hashjoin = on
set enable_nestloop = off
as $$
begin
  if (select count(*) from new_rows)
     <> (select count(*) from new_rows n join old_rows o using (partition_key, execution_id)) then
    perform ff_test.refuse('the id of an execution changed', null, null);
  end if;
  perform ff_test.refuse(w.problem, w.execution_id, w.detail)
  from (
    select n.execution_id, ff_test.move_problem(o, n) as problem,
           ff_test.describe_move(o, n) as detail
    from new_rows n
    join old_rows o using (partition_key, execution_id)
  ) w
  where w.problem is not null;
  return null;
end;
$$;

create function ff_test.witness_delete()
returns trigger
language plpgsql
as $$
begin
  if coalesce(current_setting('ff_test.may_forget', true), '') = 'yes' then
    return null;
  end if;
  if old.phase <> 'terminal' then
    perform ff_test.refuse('only what has ended is deleted', old.execution_id,
                           'tests may delete more with ff_test.forget()');
  end if;
  return null;
end;
$$;

create function ff_test.witness_event()
returns trigger
language plpgsql
set plan_cache_mode = auto
set enable_seqscan = off
set enable_hashjoin = off
as $$
begin
  perform ff_test.refuse(w.problem, w.execution_id, format('%s v%s', w.kind, w.version))
  from (
    select v.execution_id, v.kind, v.version,
           case
             when v.kind = 'flow_cancel_requested' then
               case when v.execution_id is distinct from v.flow_id
                      or not exists (
                        select from ff.flow f
                        where f.partition_key = v.partition_key and f.flow_id = v.flow_id
                          and f.cancelled_at = v.occurred_at)
                      or (select count(*) from ff.event x
                          where x.partition_key = v.partition_key
                            and x.execution_id = v.execution_id) <> v.version
                 then 'an event of no flow that was just cancelled' end
             when v.kind = 'webhook_disabled' then
               case when v.version <> 1 or e.execution_id is not null
                      or not exists (
                        select from ff.subscription s
                        where s.namespace = v.namespace and s.name = v.detail ->> 'webhook'
                          and s.disabled_at = v.occurred_at)
                 then 'an event of no webhook that was just disabled' end
             when e.execution_id is null then 'an event of no execution'
             when v.version <> e.version then 'an event without a transition'
             when v.xid <> pg_current_xact_id() then 'an event of another transaction'
             when v.kind <> all (array(
                    select t.event_kind from ff.transition t
                    where t.cause = e.cause and t.event_kind is not null
                      and (t.to_phase, t.to_ownership, t.to_eligibility, t.to_attempt_state)
                        = (e.phase, e.ownership, e.eligibility, e.attempt_state)))
               then 'an event of the wrong kind'
             when (select count(*) from ff.event x
                   where x.partition_key = v.partition_key and x.execution_id = v.execution_id
                     and x.version = v.version) > 1
               then 'a transition with more than one event'
           end as problem
    from new_rows v
    left join ff.execution e
      on e.partition_key = v.partition_key and e.execution_id = v.execution_id
  ) w
  where w.problem is not null;
  return null;
end;
$$;

create function ff_test.witness_append_only()
returns trigger
language plpgsql
as $$
begin
  perform ff_test.refuse(format('rows of %s are not updated', tg_table_name), null, null);
  return null;
end;
$$;

create trigger witness_insert after insert on ff.execution
  referencing new table as new_rows
  for each statement execute function ff_test.witness_insert();
create trigger witness_update after update on ff.execution
  referencing old table as old_rows new table as new_rows
  for each statement execute function ff_test.witness_update();
create trigger witness_delete after delete on ff.execution
  for each row execute function ff_test.witness_delete();
create trigger witness_event after insert on ff.event
  referencing new table as new_rows
  for each statement execute function ff_test.witness_event();
create trigger witness_append_only after update on ff.event
  for each row execute function ff_test.witness_append_only();
create trigger witness_append_only after update on ff.attempt
  for each row execute function ff_test.witness_append_only();

-- Deletes an execution and all that it owns, except its key and its events. They are trimmed later.
create function ff_test.forget(p_partition_key smallint, p_execution_id uuid)
returns void
language plpgsql
as $$
begin
  perform set_config('ff_test.may_forget', 'yes', true);
  delete from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  perform set_config('ff_test.may_forget', '', true);
  delete from ff.execution_body b
  where b.partition_key = p_partition_key and b.execution_id = p_execution_id;
  delete from ff.attempt a
  where a.partition_key = p_partition_key and a.execution_id = p_execution_id;
  delete from ff.step s
  where s.partition_key = p_partition_key and s.execution_id = p_execution_id;
  delete from ff.run_wait w
  where w.partition_key = p_partition_key and w.waiter_id = p_execution_id;
  delete from ff.signal g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id;
  delete from ff.signal_inbox b
  where b.partition_key = p_partition_key and b.execution_id = p_execution_id;
  delete from ff.suspension p
  where p.partition_key = p_partition_key and p.execution_id = p_execution_id;
  delete from ff.waitpoint w
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id;
  delete from ff.stream s
  where s.partition_key = p_partition_key and s.execution_id = p_execution_id;
  delete from ff.stream_chunk c
  where c.partition_key = p_partition_key and c.execution_id = p_execution_id;
  delete from ff.stream_summary y
  where y.partition_key = p_partition_key and y.execution_id = p_execution_id;
  insert into ff.event_trim (partition_key, due_at, execution_id)
  values (p_partition_key, ff.now() + interval '100 years', p_execution_id);
end;
$$;
