-- Delete the backlog of a cancelled flow if no members are left in the backlog. The caller has
-- locked the backlog.
drop function if exists ff._delete_empty_backlog;
create function ff._delete_empty_backlog(p_partition_key smallint, p_flow_id uuid)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  if not exists (
    select from ff.cancel_backlog_member m
    where m.partition_key = p_partition_key and m.flow_id = p_flow_id) then
    delete from ff.cancel_backlog b
    where b.partition_key = p_partition_key and b.flow_id = p_flow_id;
  end if;
end;
$$;
