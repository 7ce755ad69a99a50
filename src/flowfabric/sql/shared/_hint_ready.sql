-- Send hints to the workers that cover the given routes: work may be waiting. The call sends one
-- hint for each lane of these routes.
drop function if exists ff._hint_ready;
create function ff._hint_ready(p_partition_key smallint, p_routes bigint[])
returns void
language plpgsql
as $$
begin
  if p_routes is not null then
    perform pg_notify('ff_ready', concat_ws(' ', p_partition_key, l.namespace, l.lane))
    from (select distinct r.namespace, r.lane from ff.route r where r.route_id = any (p_routes)) l;
  end if;
end;
$$;
