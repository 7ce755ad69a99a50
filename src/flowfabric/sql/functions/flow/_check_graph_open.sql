-- Refuse to change the graph of a flow that was cancelled, or that has lost members to a trim.
drop function if exists ff._check_graph_open;
create function ff._check_graph_open(p_flow ff.flow)
returns void
language plpgsql
immutable
as $$
begin
  if p_flow.cancelled_at is not null or p_flow.trimmed_at is not null then
    perform ff._refuse('WF215', 'flow_already_terminal', jsonb_strip_nulls(jsonb_build_object(
      'id', format('{fp:%s}:%s', p_flow.partition_key, p_flow.flow_id),
      'cancelled_at', p_flow.cancelled_at, 'trimmed_at', p_flow.trimmed_at)));
  end if;
end;
$$;
