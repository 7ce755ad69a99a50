-- List quotas in byte order of their names. The limits of lanes are stored as quotas, too, but are
-- not listed. If p_quota is given, only quotas of that name are listed.
--
-- The columns concurrency, rate and rate_window are the limits for every key that has no limits of
-- its own. is_set says whether an operator set these limits; otherwise these are the declared
-- limits. keys_set counts the keys for which an operator set separate limits.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_quotas;
create function ff.list_quotas(
  p_namespace       text,
  p_quota           text default null,
  p_after           text default null,
  p_after_namespace text default null,
  p_limit           integer default 100
)
returns table (
  namespace            text,
  quota                text,
  is_keyed             boolean,
  overflow             text,
  concurrency          integer,
  rate                 integer,
  rate_window          interval,
  declared_concurrency integer,
  declared_rate        integer,
  declared_rate_window interval,
  declared_at          timestamptz,
  is_set               boolean,
  keys_set             integer,
  reason               text,
  changed_by           text,
  changed_at           timestamptz
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  return query
  select q.namespace, q.quota, q.is_keyed, q.overflow::text,
         case when c.key is null then q.concurrency else c.concurrency end,
         case when c.key is null then q.rate else c.rate end,
         case when c.key is null then q.rate_window else c.rate_window end,
         q.concurrency, q.rate, q.rate_window, q.declared_at, c.key is not null,
         (select count(*)::integer from ff.quota_change x
          where x.namespace = q.namespace and x.quota = q.quota and x.key <> ''),
         c.reason, c.changed_by, c.changed_at
  from ff.quota q
  left join ff.quota_change c
    on c.namespace = q.namespace and c.quota = q.quota and c.key = ''
  where (p_namespace is null or q.namespace = p_namespace) and not starts_with(q.quota, 'ff:')
    and (p_quota is null or q.quota = p_quota)
    and (p_after is null or q.quota collate "C" > p_after
         or (q.quota = p_after and q.namespace collate "C" > p_after_namespace))
  order by q.quota collate "C", q.namespace collate "C"
  limit p_limit;
end;
$$;
