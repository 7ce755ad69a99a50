-- Explain an execution that was trimmed but still has events. If subscriptions in the namespace of
-- the execution still need these events, the answer names the subscriptions, and the time until
-- which the subscriptions can keep the events. Returns no row if there are no events.
drop function if exists ff._explain_trimmed;
create function ff._explain_trimmed(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_now           timestamptz
)
returns table (dimension text, code text, evidence jsonb, changes_at timestamptz)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_last   record;
  v_due_at timestamptz;
  v_kept   record;
begin
  select e.namespace, e.kind, e.occurred_at into v_last
  from ff.event e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and e.kind not in ('flow_cancel_requested', 'webhook_disabled')
    and case when p_namespace is null then true else e.namespace = p_namespace end
  order by e.generation desc, e.event_id desc
  limit 1;
  if not found then
    return;
  end if;
  -- If a subscription needs the events, their trim is put off by an hour at a time.
  select t.first_due_at into v_due_at
  from (
    select x.execution_id, x.first_due_at from ff.event_trim x
    where x.partition_key = p_partition_key and x.due_at <= p_now + interval '1 hour'
    order by x.due_at
    limit 10000) t
  where t.execution_id = p_execution_id and t.first_due_at is not null
  limit 1;
  select jsonb_agg(s.name order by s.name) as names, max(v_due_at + s.keep) as until into v_kept
  from ff.subscription s
  left join lateral (
    select string_to_array(t.part, ':') as parts
    from string_to_table(s.cursor_text, '/') t(part)
    where starts_with(t.part, 'ff2:' || p_partition_key || ':')
    limit 1) c on true
  where v_due_at + s.keep > p_now and s.namespace = v_last.namespace
    and exists (
      select from ff.event e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_id
        and (e.generation, e.xid)
            > (coalesce(c.parts[6]::integer, 0), coalesce(c.parts[7], '0')::xid8)
      offset 0);
  return query select 'end', 'trimmed',
    jsonb_strip_nulls(jsonb_build_object(
      'last_event', v_last.kind, 'at', v_last.occurred_at, 'subscriptions', v_kept.names,
      'until', v_kept.until)),
    v_kept.until;
end;
$$;
