-- Read the next events after a cursor, and return the cursor that follows these events.
--
-- A cursor stores the id of the highest transaction that was delivered, and the ids of the lower
-- transactions that were unfinished when the cursor was made. A page has the events of transactions
-- with higher ids, and of the unfinished transactions that have committed since, in order of event
-- id. The last row of a page has no event. This row has the next cursor, and has_more says whether
-- more events can be read now.
--
-- A page consists of whole transactions. The events of an execution come in order, also across
-- pages. For both reasons a page can be longer than p_limit. The cursor never advances beyond the
-- transactions that were delivered, because after a crash the server may use higher transaction ids
-- a second time.
--
-- Filters hide rows, but the cursor still moves past the hidden rows. In p_tasks, * stands for any
-- text and ? for any character.
--
-- A page has events of one generation only. Older generations are complete, so all their rows are
-- visible. When a generation is read to its end, the next page continues with the next generation.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF203 read_only_server · WF403 cursor_expired
-- Locks:    none; the first call after a move of the partition to another node of the cluster locks
--           the row of the partition in ff.event_generation, and waits for it without a limit
-- Repeat:   the same events again, and possibly newer ones; `cursor_expired` if these events were
--           trimmed meanwhile
-- Rights:   app
drop function if exists ff.read_events;
create function ff.read_events(
  p_partition_key  smallint,
  p_namespace      text,
  p_cursor         text,
  p_limit          integer default 500,
  p_kinds          text[] default null,
  p_lanes          text[] default null,
  p_tasks          text[] default null,
  p_execution_ids  uuid[] default null,
  p_instance_tags  text[] default null
)
returns table (
  event_id           bigint,
  execution_id       uuid,
  version            integer,
  kind               text,
  occurred_at        timestamptz,
  attempt_index      integer,
  lease_id           uuid,
  epoch              bigint,
  worker_instance_id text,
  outcome            text,
  flow_id            uuid,
  namespace          text,
  lane               text,
  task               text,
  instance_tag       text,
  actor              text,
  detail             text,
  next_cursor        text,
  has_more           boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select e.event_id, e.execution_id, e.version, e.kind, e.occurred_at, e.attempt_index, e.lease_id,
         e.epoch, e.worker_instance_id, e.outcome, e.flow_id, e.namespace, e.lane, e.task,
         e.instance_tag, e.actor, e.detail, e.next_cursor, e.has_more
  from ff._deliver_events(
    p_partition_key, p_namespace, p_cursor, p_limit, p_kinds, p_lanes, p_tasks, p_execution_ids,
    p_instance_tags) e;
end;
$$;
