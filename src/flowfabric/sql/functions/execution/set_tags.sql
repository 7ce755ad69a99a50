-- Add tags to executions, or change the values of tags that they have. Other tags stay. No event is
-- written.
--
-- If one of the tags is not valid, the whole call is refused. An execution that would have more
-- than 64 tags is refused as `invalid`. Returns a row for every item that was not tagged. No row
-- means that all items were tagged.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · per item: not_found · busy · invalid (field, problem)
-- Locks:    executions in id order, without waiting; if p_wait is true, waits up to 2 s for the
--           only item
-- Repeat:   a tag that is set already changes nothing
-- Rights:   app
drop function if exists ff.set_tags;
create function ff.set_tags(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_tags          text,
  p_wait          boolean default false
)
returns table (item integer, outcome text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_problem text;
  v_tags    jsonb;
  v_key     text;
  v_now     timestamptz;
  v_locked  uuid[];
  v_full    uuid[];
  v_tagged  uuid[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(
    cardinality(p_execution_ids), '{}', p_wait,
    array[array_lower(p_execution_ids, 1), array_ndims(p_execution_ids)]);
  v_problem := case when p_tags is null then 'must not be null' else ff._tags_problem(p_tags) end;
  if v_problem is null and p_tags::jsonb = '{}' then
    v_problem := 'must not be empty';
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'tags', 'problem', v_problem));
  end if;
  v_tags := p_tags::jsonb;

  if p_wait then
    select array[e.execution_id] into v_locked
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
      and (p_namespace is null or e.namespace = p_namespace)
    for no key update;
  else
    select array_agg(l.id) into v_locked
    from (select distinct x.id from unnest(p_execution_ids) x(id) order by x.id) u
    cross join lateral (
      select e.execution_id as id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and (p_namespace is null or e.namespace = p_namespace)
      for no key update skip locked) l;
  end if;
  v_now := ff.now();
  select m.value into v_key from ff.meta m where m.name = 'instance_tag_key';

  v_full := array(
    select u.id from unnest(v_locked) u(id)
    join ff.execution_body b on b.partition_key = p_partition_key and b.execution_id = u.id
    where (select count(*) from jsonb_object_keys(b.tags || v_tags)) > 64);

  v_tagged := array(
    select u.id
    from unnest(v_locked) u(id)
    left join lateral (
      select b.tags from ff.execution_body b
      where b.partition_key = p_partition_key and b.execution_id = u.id offset 0) o on true
    where u.id <> all (v_full) and not coalesce(o.tags @> v_tags, false));
  insert into ff.execution_body as b (partition_key, execution_id, tags)
  select p_partition_key, u.id, v_tags from unnest(v_tagged) u(id)
  on conflict (partition_key, execution_id) do update
    set tags = coalesce(b.tags, '{}') || excluded.tags;
  update ff.execution e set
    has_body = true,
    instance_tag = case when v_key is null then e.instance_tag
                        else coalesce(v_tags ->> v_key, e.instance_tag) end,
    mutated_at = greatest(v_now, e.transitioned_at, e.mutated_at)
  from (select p_partition_key as pk, u.id from unnest(v_tagged) u(id) offset 0) i
  where e.partition_key = i.pk and e.execution_id = i.id;

  return query
  select u.n::integer,
         case when x.id is null then 'not_found' when u.id = any (v_full) then 'invalid'
              else 'busy' end,
         case when x.id is null then jsonb_build_object(
                'id', format('{fp:%s}:%s', p_partition_key, u.id))
              when u.id = any (v_full) then jsonb_build_object(
                'field', 'tags', 'problem', 'would be more than 64') end
  from unnest(p_execution_ids) with ordinality u(id, n)
  left join lateral (
    select e.execution_id as id from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
      and case when p_namespace is null then true else e.namespace = p_namespace end
    offset 0) x on true
  where x.id is null or u.id = any (v_full) or u.id <> all (coalesce(v_locked, '{}'))
  order by u.n;
end;
$$;
