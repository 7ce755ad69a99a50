-- Record the highest trimmed event as the trim mark of the partition. A cursor that stands before
-- the mark has expired. The mark never falls, even if several calls trim at the same time.
--
-- p_lost_by names the subscriptions that had not acknowledged the trimmed events. For each of these
-- subscriptions, the call records a loss with the time p_now. If p_lost_by is not empty, the call
-- also deletes the losses of subscriptions that no longer exist.
--
-- Call this function at the end of a transaction, because other calls that trim wait for the row of
-- the mark until that transaction ends.
drop function if exists ff._raise_trim_mark;
create function ff._raise_trim_mark(
  p_partition_key smallint,
  p_generation    integer,
  p_xid           xid8,
  p_lost_by       text[] default '{}',
  p_now           timestamptz default null
)
returns void
language plpgsql
as $$
declare
  v_losses jsonb;
begin
  if p_xid is null then
    return;
  end if;
  insert into ff.trim_mark as m (partition_key, generation, xid)
  values (p_partition_key, p_generation, p_xid)
  on conflict (partition_key) do update
    set generation = excluded.generation, xid = excluded.xid
    where (m.generation, m.xid) < (excluded.generation, excluded.xid);
  if p_lost_by = '{}' then
    return;
  end if;
  -- The insert has locked the row, even if it did not raise the mark.
  v_losses := (select m.losses from ff.trim_mark m where m.partition_key = p_partition_key);
  v_losses := (
    select jsonb_object_agg(
             k.key, case when k.key = any (p_lost_by) then to_jsonb(p_now)
                         else v_losses -> k.key end)
    from (select s.namespace || ' ' || s.name as key from ff.subscription s offset 0) k
    where k.key = any (p_lost_by) or v_losses ? k.key);
  update ff.trim_mark m set losses = coalesce(v_losses, '{}')
  where m.partition_key = p_partition_key;
end;
$$;
